"""Norms and softmax: rows accumulated in float32 and rounded once."""

from __future__ import annotations

from typing import Any

from ingot import dtypes
from ingot.backends.cost import size
from ingot.backends.cpu.types import FINISHED, FLOATS, STORED
from ingot.backends.kernel import Kernel, Operand, Reads, Refusal, Use, present
from ingot.ir import Node
from ingot.ir.spec import axis_of
from ingot.ops.lowering import Lowered

X = Operand("x", FLOATS, Reads.INNER)


EPS = Refusal("its eps is from 0 to a million")


def _odd(op: Any) -> bool:
    """Whether eps is one that the kernels do not take; torch takes any."""
    return not 0 <= op.eps <= 1e6


def _rms_norm(op: Any, node: Node) -> dict[str, Any] | Refusal:
    if not abs(op.shift) <= 1e6:
        return Refusal("its shift is at most a million")
    return EPS if _odd(op) else {"eps": op.eps, "shift": op.shift}


def _layer_norm(op: Any, node: Node) -> dict[str, Any] | Refusal:
    if _odd(op):
        return EPS
    return {"eps": op.eps, "weight": present(node, 1), "bias": present(node, 2)}


def _group_norm(op: Any, node: Node) -> Use | Refusal:
    if not isinstance(node.op, Lowered) or not op.channels_last:
        return Refusal("it is not lowered, or its channels are not last")
    if _odd(op):
        return EPS
    weight, bias = node.op.held > 1, node.op.held > 2
    params = {"groups": op.groups, "eps": op.eps, "weight": weight, "bias": bias}
    return Use(params, {"weight": int(weight), "bias": int(bias)})


def _softmax(op: Any, node: Node) -> dict[str, Any]:
    return {"axis": axis_of(op.axis, len(node.output.shape)), "log": op.name == "log_softmax"}


KERNELS = (
    Kernel(
        "rms_norm",
        params="eps: number, shift?: number",
        operands=(X, Operand("weight?", FLOATS)),
        results=(Operand("y", FLOATS),),
        runs={"rms_norm": _rms_norm},
        flops=lambda c: 4 * size(c.x),
    ),
    Kernel(
        "layer_norm",
        params="eps: number, weight: flag, bias: flag",
        operands=(X, Operand("weight?", FLOATS), Operand("bias?", FLOATS)),
        results=(Operand("y", FLOATS),),
        runs={"layer_norm": _layer_norm},
        flops=lambda c: 7 * size(c.x),
    ),
    Kernel(
        "softmax",
        params="axis?: integer, log?: flag",
        operands=(Operand("x", FLOATS, Reads.ANY),),
        results=(Operand("y", FLOATS),),
        runs={"softmax": _softmax, "log_softmax": _softmax},
        flops=lambda c: 4 * size(c.x),
    ),
    Kernel(
        "quantize_rows",
        operands=(X,),
        results=(Operand("y", (dtypes.int8,), Reads.INNER), Operand("scales", (dtypes.float32,))),
        runs={"quantize_rows": lambda op, node: {}},
        flops=lambda c: 3 * size(c.x),
    ),
    Kernel(
        "group_norm",
        params="groups: integer, eps: number, weight: flag, bias: flag, epilogue: expression",
        operands=(
            Operand("x", FLOATS, Reads.ROWS),
            Operand("weight?", ("x",)),
            Operand("bias?", ("x",)),
            Operand("*extras", STORED, Reads.ROWS),
        ),
        results=(Operand("y", FINISHED, Reads.ROWS),),
        runs={"group_norm": _group_norm},
        flops=lambda c: 7 * size(c.x),
    ),
)
