"""Sorting, the largest few, running sums and places of non-zero elements against torch eager."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.harness import Options, Result, Sample
from benchmarks.nets import Run, alternate
from ingot.builder.network import build_network
from ingot.ir import F, Network, Spec

Op = Callable[[Any], Any]

Case = tuple[str, tuple[int, ...], Op, Op]  # what it is, the shape of x, ours and torch's

CASES: tuple[Case, ...] = (
    ("sort a row", (1, 1_000_000), lambda x: F.sort(x)[0], lambda t: t.sort(stable=True)[0]),
    ("sort 1000 rows", (1000, 1000), lambda x: F.sort(x)[0], lambda t: t.sort(stable=True)[0]),
    ("sort 1000 columns", (1000, 1000), lambda x: F.sort(x, axis=0)[0], lambda t: t.sort(dim=0, stable=True)[0]),
    ("the 50 largest of a vocabulary", (1, 128_000), lambda x: F.top_k(x, k=50)[0], lambda t: t.topk(50)[0]),
    ("the 8 largest of 64, by rows", (4096, 64), lambda x: F.top_k(x, k=8)[0], lambda t: t.topk(8)[0]),
    ("cumsum of rows", (1000, 1000), lambda x: F.cumsum(x), lambda t: t.cumsum(-1)),
    ("cumsum of columns", (1000, 1000), lambda x: F.cumsum(x, axis=0), lambda t: t.cumsum(0)),
    ("nonzero, half of them", (1000, 1000), lambda x: F.nonzero(F.greater(x, 0.0)), lambda t: (t > 0).nonzero()),
)


def order(options: Options) -> Result:
    """Each op on normal float32 numbers."""
    return against_torch("order", CASES, options)


def against_torch(name: str, cases: Sequence[Case], options: Options) -> Result:
    """Functions of one operand on normal float32 numbers, each as an engine and in torch eager."""
    torch.set_num_threads(options.threads)
    result = Result(name)
    rng = np.random.default_rng(0)
    for label, shape, ours, theirs in cases:
        network = Network(name)
        network.outputs["y"] = ours(network.input("x", Spec(shape, "float32")))
        x = rng.standard_normal(shape).astype(np.float32)
        session, given = build_network(network, {}).session(options.threads), torch.from_numpy(x)
        runs: dict[str, Run] = {"ingot": partial(session.run, {"x": x}), "torch": partial(theirs, given)}
        times = alternate(runs, options.pairs)
        took = Sample.of([t * 1e3 for t in times["ingot"]])
        result.add(f"{label}: ingot", took.median, "ms", quartiles=took.quartiles)
        ratio = Sample.of([a / b for a, b in zip(times["torch"], times["ingot"], strict=True)])
        note = f"{statistics.median(times['torch']) * 1e3:.2f} ms"
        what = f"{label}: torch eager / ingot"
        result.add(what, ratio.median, "×", at_least=1.0, quartiles=ratio.quartiles, note=note)
    return result
