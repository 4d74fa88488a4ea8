"""Convolutions, pools and resampling, all over channels-last operands [N, *S, C]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ingot import dtypes
from ingot.backends.cost import Call, size, taps
from ingot.backends.cpu.product import DIRECT, MEASURED
from ingot.backends.cpu.types import FINISHED, FLOAT32, FLOATS, STORED, SUMMED
from ingot.backends.kernel import Kernel, Operand, Reads, Refusal, Use, sizes_of
from ingot.ir import Node
from ingot.ops.lowering import MOST_TAPS

INNER, ROWS = Reads.INNER, Reads.ROWS
WINDOW = "kernel: integers, stride: integers, pre_padding: integers, dilation: integers"
CONVOLUTION = f"outputs: integer, channels: integer, groups: integer, {WINDOW}"
ALGORITHMS = (DIRECT, "winograd_2", "winograd_4")  # of conv_packed, where a build has measured; else by its own rules


def _lists(op: Any, *names: str) -> dict[str, Any]:
    """How a window slides; how far, the shape of the result says."""
    return {name: list(getattr(op, name)) for name in names}


def _sliding(op: Any, kernel: Sequence[int]) -> dict[str, Any]:
    return {"kernel": list(kernel), **_lists(op, "stride", "pre_padding", "dilation")}


def _conv(op: Any, node: Node) -> dict[str, Any] | Refusal:
    if not (sizes := sizes_of(node, 1)) or not op.channels_last:
        return Refusal("its weight is not in panels, or its channels are not last")
    outputs, each, *kernel = sizes
    params = {"outputs": outputs, "channels": each * op.groups, "groups": op.groups, **_sliding(op, kernel)}
    return {**params, **_around(node)}


def _around(node: Node) -> dict[str, Any]:
    """What lies around int8 x, where that is not 0."""
    outside: int = node.op.outside  # type: ignore[attr-defined]
    return {"outside": outside} if outside else {}


def _conv_transpose(op: Any, node: Node) -> Use | Refusal:
    if not (sizes := sizes_of(node, 1)) or not op.channels_last:
        return Refusal("its weight is not in phases, or its channels are not last")
    channels, each, *kernel = sizes
    params = {"outputs": each * op.groups, "channels": channels, "groups": op.groups, **_sliding(op, kernel)}
    return Use(params, {"weights": node.op.held - 1})  # type: ignore[attr-defined]


def _depthwise(op: Any, node: Node) -> dict[str, Any] | Refusal:
    if not (sizes := sizes_of(node, 1)) or not op.channels_last:
        return Refusal("its weight is not in taps, or its channels are not last")
    if sizes[0] != op.groups:
        return Refusal("every channel has one output")
    if node.inputs[0].dtype is dtypes.int8 and math.prod(sizes[2:]) > MOST_TAPS:
        return Refusal(f"sums of int8 are exact up to {MOST_TAPS} taps")
    return {**_sliding(op, sizes[2:]), **_around(node)}


def _avg_pool(op: Any, node: Node) -> dict[str, Any] | Refusal:
    if not op.channels_last:
        return Refusal("it takes channels last")
    lists = _lists(op, "kernel", "stride", "pre_padding", "post_padding")
    return {**lists, "count_include_pad": op.count_include_pad, "divisor": op.divisor or 0}


def _max_pool(op: Any, node: Node) -> dict[str, Any] | Refusal:
    if not op.channels_last:
        return Refusal("it takes channels last")
    return _lists(op, "kernel", "stride", "pre_padding", "dilation")


def _adaptive_pool(op: Any, node: Node) -> dict[str, Any] | Refusal:
    return {"kind": op.kind} if op.channels_last else Refusal("it takes channels last")


def _resize(op: Any, node: Node) -> dict[str, Any] | Refusal:
    if not op.channels_last:
        return Refusal("it takes channels last")
    return {"mode": op.mode, "align_corners": op.align_corners}


def _grid_sample(op: Any, node: Node) -> dict[str, Any] | Refusal:
    if not op.channels_last:
        return Refusal("it takes channels last")
    return {"mode": op.mode, "beyond": op.beyond, "align_corners": op.align_corners}


TAPS = {"nearest": 1, "nearest_exact": 1, "linear": 2, "cubic": 4}  # of each axis, at most


def _blended(c: Call) -> int:
    """Two operations for each pixel that counts towards an output."""
    return int(2 * size(c.y) * TAPS[c.params["mode"]] ** (len(c.y) - 2))


KERNELS = (
    Kernel(
        "conv_packed",
        params=f"{CONVOLUTION}, outside?: integer, algorithm?: {' | '.join(ALGORITHMS)}, {MEASURED}, "
        "epilogue: expression",
        operands=(
            Operand("x", SUMMED, INNER),
            Operand("weight", ("x",), layouts=("panels of groups",)),
            Operand("*extras", STORED, ROWS),
        ),
        results=(Operand("y", FINISHED, ROWS),),
        runs={"conv": _conv},
        flops=lambda c: 2 * size(c.y) * taps(c) * (c.x[-1] // c.params["groups"]),
        products=True,
    ),
    Kernel(
        "conv_transpose_packed",
        params=f"{CONVOLUTION}, epilogue: expression",
        operands=(
            Operand("x", SUMMED, INNER),
            Operand("*weights", ("x",), layouts=("phases",)),
            Operand("*extras", STORED, ROWS),
        ),
        results=(Operand("y", FINISHED, ROWS),),
        runs={"conv_transpose": _conv_transpose},
        flops=lambda c: 2 * size(c.x) * taps(c) * (c.params["outputs"] // c.params["groups"]),
        products=True,
    ),
    Kernel(
        "conv_depthwise",
        params=f"{WINDOW}, outside?: integer, epilogue: expression",
        operands=(
            Operand("x", SUMMED, INNER),
            Operand("weight", ("x",), layouts=("taps",)),
            Operand("*extras", STORED, Reads.ANY),
        ),
        results=(Operand("y", FINISHED, INNER),),
        runs={"conv": _depthwise},
        flops=lambda c: 2 * size(c.y) * taps(c),
    ),
    Kernel(
        "avg_pool",
        params="kernel: integers, stride: integers, pre_padding: integers, post_padding: integers, "
        "count_include_pad: flag, divisor: integer",
        operands=(Operand("x", SUMMED, INNER),),
        results=(Operand("y", FLOATS, INNER),),
        runs={"avg_pool": _avg_pool},
        flops=lambda c: size(c.y) * taps(c),
    ),
    Kernel(
        "max_pool",
        params=WINDOW,
        operands=(Operand("x", SUMMED, INNER),),
        results=(Operand("y", ("x",), INNER),),
        runs={"max_pool": _max_pool},
        flops=lambda c: size(c.y) * taps(c),
    ),
    Kernel(
        "adaptive_pool",
        params="kind: average | greatest",
        operands=(Operand("x", FLOATS, INNER),),
        results=(Operand("y", ("x",), INNER),),
        runs={"adaptive_pool": _adaptive_pool},
        flops=lambda c: size(c.x),
    ),
    Kernel(
        "resize",
        params="mode: nearest | nearest_exact | linear | cubic, align_corners: flag",
        operands=(Operand("x", FLOATS, INNER),),
        results=(Operand("y", ("x",), INNER),),
        runs={"resize": _resize},
        flops=_blended,
    ),
    Kernel(
        "grid_sample",
        params="mode: nearest | linear | cubic, beyond: zeros | border | reflection, align_corners: flag",
        operands=(Operand("x", FLOATS, INNER), Operand("grid", FLOAT32, Reads.ANY)),
        results=(Operand("y", ("x",), INNER),),
        runs={"grid_sample": _grid_sample},
        flops=_blended,
    ),
)
