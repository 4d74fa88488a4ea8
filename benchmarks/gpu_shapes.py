"""Shapes of a program for products of float8 on a GPU, at the sizes of Llama-3-8B: the time of each that is tried, for
Shapes.floats and what Launcher.product chooses by.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.gpu_decode import SHAPES, Model, started
from benchmarks.gpu_rows import timed
from benchmarks.harness import Options, Result
from ingot.backends.cuda import tile_launch
from ingot.backends.cuda.launch import Launcher
from ingot.backends.cuda.launch_shapes import Block
from ingot.backends.cuda.operands import Norm, Weight

LAYERS = 8
# Of one row: warps, rows of the weight, and programs that stay on each multiprocessor (0: they do not).
FEW = ((4, 1, 0), (4, 2, 0), (4, 4, 0), (8, 2, 0), (8, 4, 0), (8, 4, 2), (8, 4, 3), (4, 2, 4), (4, 4, 4), (16, 2, 0),
       (16, 2, 1), (16, 4, 0))  # fmt: skip
MANY = (128, 512, 4096)


def _products(model: Model) -> list[tuple[str, list[Weight], Norm | None]]:
    return [
        ("qkv", model.qkv, model.norm), ("output", model.output, None), ("gate and up", model.gate_up, model.norm),
        ("down", model.down, None),
    ]  # fmt: skip


def _time(result: Result, what: str, run: Callable[[int], None], pairs: int, done: float, unit: str) -> None:
    try:
        timed(result, what, run, LAYERS, pairs, done, unit)
    except RuntimeError as e:
        result.notes.append(f"{what}: {str(e).splitlines()[0][:90]}")


@dataclass(frozen=True)
class Case:
    """Products of one kind, of one layer after another."""

    layers: list[Weight]
    norm: Norm | None
    x: Any
    out: Any
    found: Any  # rows of float8 …
    back: Any  # … and their scales

    @staticmethod
    def of(layers: list[Weight], norm: Norm | None, rows: int) -> Case:
        first, kind = layers[0], {"dtype": torch.bfloat16, "device": "cuda"}
        x, out = torch.randn((rows, first.inputs), **kind), torch.empty((rows, first.outputs), **kind)
        return Case(layers, norm, x, out, x.to(torch.float8_e4m3fn), torch.ones(rows, device="cuda"))

    def product(self, launcher: Launcher, rounds: bool, i: int) -> None:
        launcher.product(self.x, self.layers[i], self.out, self.norm, rounds=rounds)

    def library(self, fast: bool, i: int) -> None:
        weight = self.layers[i]
        torch._scaled_mm(
            self.found, weight.first.T, scale_a=self.back[:, None], scale_b=weight.scales[None, :],
            out_dtype=torch.bfloat16, use_fast_accum=fast,
        )  # fmt: skip

    def tiles(self, launcher: Launcher, i: int) -> None:
        weight = Weight(self.layers[i].first, self.layers[i].scales)
        tile_launch.tiles(launcher, self.found, weight, self.out, None, None, self.back)


def gpu_shapes(options: Options) -> Result:
    """One row by every shape; many rows by our kernel, and by the library with each way to add up."""
    result, bandwidth = started("gpu-shapes")
    model = Model(SHAPES[0], "fp8", Launcher(torch, dependent=True))
    pairs = options.pairs
    for name, layers, norm in _products(model):
        first = layers[0]
        n, k, parts = first.outputs, first.inputs, 2 if first.second is not None else 1
        case, read = Case.of(layers, norm, 1), model.bytes(first)
        for warps, rows, resident in FEW:
            launcher = Launcher(torch, True, {(n, k, parts, "float8_e4m3fn"): Block(warps, rows, resident, resident)})
            what = f"{name}, 1 row: {warps} warps, {rows} rows, {resident} resident"
            _time(result, what, partial(case.product, launcher, False), pairs, read, "TB/s")
        for rows in MANY:
            case, done = Case.of(layers, norm, rows), 2 * rows * n * k
            for fast in (False, True):
                what = f"{name}, {rows} rows: library, fast {fast}"
                _time(result, what, partial(case.library, fast), pairs, done, "TFLOP/s")
            _time(result, f"{name}, {rows} rows: tiles", partial(case.tiles, model.launcher), pairs, done, "TFLOP/s")
            whole = partial(case.product, model.launcher, True)
            _time(result, f"{name}, {rows} rows: all of it", whole, pairs, done * parts, "TFLOP/s")
    return result
