"""Imports nets of timm and torchvision, with random weights, and compares each engine with torch.

Their Python code is fetched by `python -m tools.vision_nets`, pinned by version and hash, into the user's cache. With
`--check 0/1` (and that folder on PYTHONPATH) each net is a line of JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import os
import subprocess
import sys
import tempfile
import traceback
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ingot import _lazy
from ingot.builder.network import build_network
from ingot.dims import Dim
from ingot.errors import IngotError, UserError
from ingot.frontends.torch_export.export import export
from ingot.frontends.torch_export.importer import build_network as import_network
from tools import torchvision_ops
from tools.conformance.onnx_nodes import host_calls
from tools.conformance.vision_list import NETS, Net

# Of torchvision only the Python code: what it has in C++ is for another torch.
PACKAGES = {
    "timm==1.0.31": "5bd50f7d0fe6d09bf9285ac2523234a1b7e6bf075c0be3e7aed09139fcb617c7",
    "torchvision==0.26.0": "fd10b5f994c210f4f6d6761cf686f82d748554adf486cb0979770c3252868c8f",
    "pillow==13.0.0": "a625df9a2a5597fa5e5266e01aefc82604bb85d291e3547981e863560d75da6c",
}
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ingot" / "vision-nets"
TOLERANCE = 1e-4  # of an output's largest element


@dataclass(frozen=True)
class Row:
    """A net: calls in its program, host calls, the largest difference at any size, the dims that runs choose, or why
    there is no engine.
    """

    net: str
    ops: int
    host: tuple[str, ...]
    error: float
    dynamic: str
    why: str

    @property
    def good(self) -> bool:
        return not self.why and self.error <= TOLERANCE


def fetch() -> None:
    """Downloads and unpacks what is not there yet."""
    for package, sha256 in PACKAGES.items():
        done = CACHE / f".{package}"
        if done.exists():
            continue
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            words = ["-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", folder, package]
            subprocess.run([sys.executable, *words], check=True)
            (wheel,) = Path(folder).glob("*.whl")
            found = hashlib.sha256(wheel.read_bytes()).hexdigest()
            if found != sha256:
                raise UserError(f"{wheel.name} has the SHA-256 {found}, pinned is {sha256}: they were fetched for "
                                "Python 3.11 on Linux, x86-64")  # fmt: skip
            with zipfile.ZipFile(wheel) as archive:
                names = archive.namelist()
                archive.extractall(CACHE, [n for n in names if n.endswith(".py") or not package.startswith("torchv")])
        done.touch()


def shown(net: Net) -> str:
    return f"{net.name} ({net.part})" if net.part else net.name


def check(first: int, step: int) -> Iterator[Row]:
    """Every step-th net in turn."""
    torch = _lazy.load("torch")
    torchvision_ops.define(before_torchvision=True)
    if not torchvision_ops.installed():
        _lazy.load("torchvision.extension")._has_ops = lambda: True  # they are ours
    for net in NETS[first::step]:
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield _tried(torch, net)


def _tried(torch: Any, net: Net) -> Row:
    dynamic, ops = ", ".join(net.dynamic.values()), 0
    try:
        module, sets = _module(torch, net).eval(), [_inputs(torch, net, s) for s in (net.sizes, *net.others)]
        _randomise(torch, module)
        exported = export(module, sets[0], _dims(module, net))
        ops = len(exported.program.graph.nodes)
        imported = import_network(exported.program, exported.source, net.name, exported.dims)
        engine = build_network(imported.network, imported.weights)
        error = max(_difference(torch, module, engine, given) for given in sets)
        return Row(shown(net), ops, host_calls(engine), error, dynamic, "")
    except IngotError as e:
        return Row(shown(net), ops, (), 0.0, dynamic, f"{type(e).__name__}: {' '.join(str(e).split())[:300]}")
    except Exception as e:  # a fault of the net's own code, or of ours: the table says it and the part fails
        traceback.print_exc()
        return Row(shown(net), ops, (), 0.0, dynamic, f"{type(e).__name__}: {' '.join(str(e).split())[:300]}")


def _dims(module: Any, net: Net) -> Any:
    """What stays free, for `dynamic` of a build."""
    name = next(iter(inspect.signature(module.forward).parameters))
    found: dict[int, Any] = {}
    for axis, word in net.dynamic.items():
        factor, _, letter = word.rpartition("*")
        found[axis] = int(factor) * Dim(letter) if factor else letter
    return {name: found} if found else None


def _difference(torch: Any, module: Any, engine: Any, given: Sequence[Any]) -> float:
    leaves = torch.utils._pytree.tree_leaves(given)
    names = [spec.name for spec in engine.inputs]
    found = list(engine.run({n: x.numpy() for n, x in zip(names, leaves, strict=True)}).values())
    with torch.no_grad():
        wanted = [y.numpy() for y in torch.utils._pytree.tree_leaves(module(*given))]
    worst = 0.0
    for a, b in zip(found, wanted, strict=True):
        if a.shape != b.shape:
            raise ValueError(f"a result is {a.shape} and should be {b.shape}")
        worst = max(worst, float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)))
    return worst if np.isfinite(worst) else float("inf")


# ------------------------------------------------------------------------------------------------------ the nets


def _module(torch: Any, net: Net) -> Any:
    package, _, name = net.name.rpartition(".")
    if not package:
        return _lazy.load("timm:create_model")(name, **net.options)
    made = _lazy.load("torchvision.models:get_model")(name, weights=None, **net.options)
    return _parts(torch)[net.part](made) if net.part else made


def _parts(torch: Any) -> dict[str, Any]:
    """Detectors as far as torch can export them: it cannot choose among boxes in Python."""
    roi_align = _lazy.load("torchvision.ops:roi_align")

    class Heads(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, detector: Any) -> None:
            super().__init__()
            self.backbone, self.head = detector.backbone, detector.head

        def forward(self, x: Any) -> Any:
            return self.head(list(self.backbone(x).values()))

    class Regions(torch.nn.Module):  # type: ignore[misc]
        """Scores and boxes of the regions that a detector's first half names."""

        def __init__(self, detector: Any) -> None:
            super().__init__()
            self.backbone, self.rpn, self.roi = detector.backbone, detector.rpn.head, detector.roi_heads

        def forward(self, x: Any) -> Any:
            features = self.backbone(x)
            scores, moves = self.rpn(list(features.values()))
            places = 32 + 8 * torch.tanh(moves[0][0, :4].flatten(1).T[:12])  # boxes that the net itself names
            boxes = torch.cat([places[:, :2] - 16, places[:, 2:] + 8], 1)
            read = roi_align(features["0"], [boxes], (7, 7), spatial_scale=0.125, sampling_ratio=2)
            return scores, self.roi.box_predictor(self.roi.box_head(read))

    return {"heads": Heads, "regions": Regions}


def _inputs(torch: Any, net: Net, sizes: Sequence[int]) -> tuple[Any, ...]:
    x = torch.randn(*sizes)
    if net.name.endswith("raft_small"):
        return x, torch.randn(*sizes)
    return ([x.sigmoid()],) if len(sizes) == 3 else (x,)


def _randomise(torch: Any, module: Any) -> None:
    """Weights that let every layer count: none at 0, none so small that its layer is left out."""
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    with torch.no_grad():
        for name, x in state.items():
            if not x.is_floating_point():
                continue
            if name.endswith("running_var"):
                x.uniform_(0.5, 1.5)
            elif name.endswith("running_mean"):
                x.normal_(0, 0.1)
            elif isinstance(x, torch.nn.Parameter):
                fan = x[0].numel() if x.ndim > 1 else 0
                if fan > 1 or "bias" in name:
                    x.normal_(0, fan**-0.5 if fan > 1 else 0.1)
                else:
                    x.uniform_(0.4, 1.2)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.vision_nets", description=__doc__)
    parser.add_argument("--check", metavar="I/N", help="import, build and compare the I-th of N shares of the list")
    share = parser.parse_args().check
    if share is None:
        fetch()
        return 0
    first, _, step = share.partition("/")
    for row in check(int(first), int(step)):
        print(json.dumps(asdict(row)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
