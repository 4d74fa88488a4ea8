"""Discrete Fourier transforms along one axis."""

from __future__ import annotations

import math
from typing import Any

from ingot.backends.cost import Call, size
from ingot.backends.cpu.types import FLOATS
from ingot.backends.kernel import Kernel, Operand, Reads, Refusal
from ingot.ir import Node

ANY = Reads.ANY
X, Y = (Operand("x", FLOATS, ANY),), (Operand("y", ("x",), ANY),)
MOST = 1 << 20  # complex numbers along an axis, or as many pairs of real ones
NORM = "norm: backward | ortho | forward"


def _runs(op: Any, node: Node, **more: Any) -> dict[str, Any] | Refusal:
    at = op.place(len(node.inputs[0].shape))
    whole = (node.output if op.name == "irfft" else node.inputs[0]).shape[at]
    if isinstance(whole, int) and whole > (MOST if op.of_pairs and op.name == "fft" or whole % 2 else 2 * MOST):
        return Refusal("its axis has at most 2^20 complex numbers, or 2^21 real ones")
    return {"axis": at, "norm": op.norm, **more}


def _butterflies(n: int, elements: int) -> int:
    """5 n log2(n) operations for each row of n complex numbers, of so many numbers in all."""
    return math.ceil(5 * elements * math.log2(max(n, 2)))


def _complex(c: Call) -> int:
    return _butterflies(c.x[c.params["axis"]], size(c.x) // 2)


def _real(c: Call, whole: tuple[int, ...]) -> int:
    """Real numbers are half as many complex ones."""
    return _butterflies(whole[c.params["axis"]], size(whole)) // 2


KERNELS = (
    Kernel(
        "fft",
        params=f"axis: integer, inverse: flag, {NORM}",
        operands=X,
        results=Y,
        runs={"fft": lambda op, node: _runs(op, node, inverse=op.inverse)},
        flops=_complex,
    ),
    Kernel(
        "rfft",
        params=f"axis: integer, onesided: flag, {NORM}",
        operands=X,
        results=Y,
        runs={"rfft": lambda op, node: _runs(op, node, onesided=op.onesided)},
        flops=lambda c: _real(c, c.x),
    ),
    Kernel(
        "irfft",
        params=f"axis: integer, {NORM}",
        operands=X,
        results=Y,
        runs={"irfft": _runs},
        flops=lambda c: _real(c, c.y),
    ),
)
