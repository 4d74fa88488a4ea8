"""Convolutions and pools, all over channels-last operands [N, *S, C]."""

from __future__ import annotations

from typing import Any

from ingot.backends.cost import size, taps
from ingot.backends.cpu.types import FLOATS, STORED
from ingot.backends.kernel import Kernel, Operand, Reads, Refusal, Use, sizes_of
from ingot.ir import Node
from ingot.ops.fused import expr_json

INNER, ROWS = Reads.INNER, Reads.ROWS
WINDOW = "kernel: integers, stride: integers, pre_padding: integers, dilation: integers"
CONVOLUTION = f"outputs: integer, channels: integer, groups: integer, {WINDOW}, expr: expression"


def _lists(op: Any, *names: str) -> dict[str, Any]:
    """How a window slides; how far, the shape of the result says."""
    return {name: list(getattr(op, name)) for name in names}


def _sliding(op: Any) -> dict[str, Any]:
    return {**_lists(op, "kernel", "stride", "pre_padding", "dilation"), "expr": expr_json(op.body)}


def _parameters(op: Any, node: Node, outputs: int) -> dict[str, Any]:
    return {"outputs": outputs, "channels": node.inputs[0].shape[-1], "groups": op.groups, **_sliding(op)}


def _conv(op: Any, node: Node) -> dict[str, Any] | Refusal:
    sizes = sizes_of(node, 1)
    return _parameters(op, node, sizes[0]) if sizes else Refusal("its weight is not in panels")


def _avg_pool(op: Any, node: Node) -> dict[str, Any] | Refusal:
    if not op.channels_last:
        return Refusal("it takes channels last")
    lists = _lists(op, "kernel", "stride", "pre_padding", "post_padding")
    return {**lists, "count_include_pad": op.count_include_pad, "divisor": op.divisor or 0}


def _max_pool(op: Any, node: Node) -> dict[str, Any] | Refusal:
    if not op.channels_last:
        return Refusal("it takes channels last")
    return _lists(op, "kernel", "stride", "pre_padding", "dilation")


KERNELS = (
    Kernel(
        "conv_packed",
        params=CONVOLUTION,
        operands=(
            Operand("x", FLOATS, INNER),
            Operand("weight", ("x",), layouts=("panels of groups",)),
            Operand("*extras", STORED, ROWS),
        ),
        results=(Operand("y", FLOATS, ROWS),),
        runs={"fused_conv": _conv},
        flops=lambda c: 2 * size(c.y) * taps(c) * (c.x[-1] // c.params["groups"]),
        products=True,
    ),
    Kernel(
        "conv_transpose_packed",
        params=CONVOLUTION,
        operands=(Operand("x", FLOATS, INNER), Operand("*weights", ("x",)), Operand("*extras", STORED, ROWS)),
        results=(Operand("y", FLOATS, ROWS),),
        runs={"packed_conv_transpose": lambda op, node: Use(_parameters(op, node, op.n), {"weights": op.fixed - 1})},
        flops=lambda c: 2 * size(c.x) * taps(c) * (c.params["outputs"] // c.params["groups"]),
        products=True,
    ),
    Kernel(
        "conv_depthwise",
        params=f"{WINDOW}, expr: expression",
        operands=(Operand("x", FLOATS, INNER), Operand("weight", ("x",)), Operand("*extras", STORED, Reads.ANY)),
        results=(Operand("y", FLOATS, INNER),),
        runs={"depthwise_conv": lambda op, node: _sliding(op)},
        flops=lambda c: 2 * size(c.y) * taps(c),
    ),
    Kernel(
        "avg_pool",
        params="kernel: integers, stride: integers, pre_padding: integers, post_padding: integers, "
        "count_include_pad: flag, divisor: integer",
        operands=(Operand("x", FLOATS, INNER),),
        results=(Operand("y", FLOATS, INNER),),
        runs={"avg_pool": _avg_pool},
        flops=lambda c: size(c.y) * taps(c),
    ),
    Kernel(
        "max_pool",
        params=WINDOW,
        operands=(Operand("x", FLOATS, INNER),),
        results=(Operand("y", FLOATS, INNER),),
        runs={"max_pool": _max_pool},
        flops=lambda c: size(c.y) * taps(c),
    ),
)
