"""Four equations that users asked for: ingot, torch.einsum, and the whole outer product summed"""

from __future__ import annotations

import math
import statistics
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.harness import Options, Result, Sample
from benchmarks.machine import peak, roofs
from benchmarks.nets import Run, alternate
from ingot.builder.network import build_network
from ingot.engine.session import Session
from ingot.ir import F, Network, Spec

# An equation, and its operands' shapes: blocks of ST-GCN on 4 clips of 150 frames, and attention's values.
CASES: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = (
    ("nctw,cd->ndtw", (4, 64, 150, 18), (64, 128)),
    ("nkctv,kvw->nctw", (4, 3, 64, 150, 18), (3, 18, 18)),
    ("bhnm,bdhm->bdhn", (2, 8, 256, 256), (2, 64, 8, 256)),
    ("nkctv,kcvw->nctw", (4, 3, 64, 150, 18), (3, 64, 18, 18)),
)


def einsum(options: Options) -> Result:
    """Each equation on normal float32 numbers: time of a run, its share of the peak of arithmetic and of its floor, and
    memory beside that of the outer product."""
    torch.set_num_threads(options.threads)
    result = Result("einsum")
    rng = np.random.default_rng(0)
    for equation, *shapes in CASES:
        arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
        session = _session(equation, shapes, options.threads)
        tensors = [torch.from_numpy(array) for array in arrays]
        outer = _Outer(equation, tensors)
        runs: dict[str, Run] = {
            "ingot": partial(session.run, {f"x{i}": array for i, array in enumerate(arrays)}),
            "torch.einsum": partial(torch.einsum, equation, *tensors),
            "outer product": outer,
        }
        want = torch.einsum(equation, *(t.double() for t in tensors)).numpy()
        for name, found in (("ingot", runs["ingot"]()["y"]), ("the outer product", outer().numpy())):
            error = float(np.abs(found - want).max() / np.abs(want).max())
            result.add(f"{equation}: largest difference of {name}", error, "of the largest", at_most=1e-5)
        operands = sum(array.nbytes for array in arrays)
        least = operands + want.size * 4
        note = f"the outer product: {outer.nbytes / least:.1f}"
        result.add(f"{equation}: arena", session.planned({}).arena / least, "× inputs and output", note=note)
        times = alternate(runs, options.pairs)
        took = Sample.of([t * 1e3 for t in times["ingot"]])
        result.add(f"{equation}: ingot", took.median, "ms", quartiles=took.quartiles)
        operations = _operations(equation, shapes)
        arithmetic = operations / peak("float32", options.threads)
        floor = max(arithmetic, least / (roofs(options.threads)["read_bandwidth"] * 1e9))
        note = f"{operations / took.median / 1e6:.0f} GFLOP/s"
        result.add(f"{equation}: share of the peak", 100 * arithmetic / (took.median / 1e3), "%", note=note)
        note = f"{floor * 1e3:.2f} ms"
        result.add(f"{equation}: share of the floor", 100 * floor / (took.median / 1e3), "%", note=note)
        for peer in ("torch.einsum", "outer product"):
            ratio = Sample.of([a / b for a, b in zip(times[peer], times["ingot"], strict=True)])
            note = f"{statistics.median(times[peer]) * 1e3:.2f} ms"
            what = f"{equation}: {peer} / ingot"
            result.add(what, ratio.median, "×", at_least=1.0, quartiles=ratio.quartiles, note=note)
    return result


def _operations(equation: str, shapes: list[tuple[int, ...]]) -> int:
    """A multiplication and an addition for every value of all labels."""
    terms = equation.split("->")[0].split(",")
    sizes = {label: n for term, shape in zip(terms, shapes, strict=True) for label, n in zip(term, shape, strict=True)}
    return 2 * math.prod(sizes.values())


def _session(equation: str, shapes: list[tuple[int, ...]], threads: int) -> Session:
    network = Network("einsum")
    operands = [network.input(f"x{i}", Spec(shape, "float32")) for i, shape in enumerate(shapes)]
    network.outputs["y"] = F.einsum(*operands, equation=equation)
    return build_network(network, {}).session(threads)


class _Outer:
    """An equation of two operands by its meaning: every product of elements, then sums, in torch."""

    def __init__(self, equation: str, tensors: list[Any]) -> None:
        terms, self.result = equation.split("->")
        every = "".join(dict.fromkeys(terms.replace(",", "")))
        summed = "".join(label for label in every if label not in self.result)
        self.order = self.result + summed
        self.views = [self._view(term, tensor) for term, tensor in zip(terms.split(","), tensors, strict=True)]
        sizes = np.broadcast_shapes(*(tuple(view.shape) for view in self.views))
        self.nbytes = 4 * math.prod(sizes)
        self.summed = tuple(range(len(self.result), len(self.order)))

    def _view(self, term: str, tensor: Any) -> Any:
        own = [term.index(label) for label in self.order if label in term]
        turned = tensor.permute(own)
        places = iter(turned.shape)
        return turned.reshape([next(places) if label in term else 1 for label in self.order])

    def __call__(self) -> Any:
        return torch.mul(*self.views).sum(self.summed)
