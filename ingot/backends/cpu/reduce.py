"""Reductions along any axes and strides."""

from __future__ import annotations

from typing import Any

from ingot import dtypes
from ingot.backends.cost import size
from ingot.backends.cpu.types import STORED
from ingot.backends.kernel import Kernel, Operand, Reads, Refusal
from ingot.ir import Node
from ingot.ir.spec import axes_of, axis_of

X = Operand("x", STORED, Reads.ANY)
HOW = ("sum", "mean", "max", "min", "prod")


def _reduce(op: Any, node: Node) -> dict[str, Any] | Refusal:
    (x,) = node.inputs
    how = op.name.removeprefix("reduce_")
    if how == "mean" and not x.dtype.is_float:
        return Refusal("it has no mean of integers")
    return {"op": how, "axes": list(axes_of(op.axes, len(x.shape))), "keepdims": op.keepdims}


def _argmax(op: Any, node: Node) -> dict[str, Any]:
    return {"axis": axis_of(op.axis, len(node.inputs[0].shape)), "keepdims": op.keepdims}


KERNELS = (
    Kernel(
        "reduce",
        params=f"op: {' | '.join(HOW)}, axes: integers, keepdims: flag",
        operands=(X,),
        results=(Operand("y", STORED),),
        runs={f"reduce_{how}": _reduce for how in HOW},
        flops=lambda c: size(c.x),
    ),
    Kernel(
        "argmax",
        params="axis: integer, keepdims?: flag",
        operands=(X,),
        results=(Operand("y", (dtypes.int64,)),),
        runs={"argmax": _argmax},
        flops=lambda c: size(c.x),
    ),
)
