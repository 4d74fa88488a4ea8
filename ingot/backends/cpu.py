"""The CPU target: which kernel of the native table runs a node, with which parameters and strides, or why none does.

What a kernel takes is said here by dtype and rank; the kernel itself checks everything again when an engine is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ingot import dtypes
from ingot.backends import cpu_steps, device
from ingot.backends.base import Choose, KernelCall, Reads, Refusal, Target
from ingot.dtypes import DType
from ingot.ir import Node, StateSpec
from ingot.ir.spec import axes_of, axis_of
from ingot.ops.fused import expr_json

ANY, ROWS, INNER, DENSE = Reads.ANY, Reads.ROWS, Reads.INNER, Reads.DENSE

FLOATS = (dtypes.float32, dtypes.bfloat16, dtypes.float16)
NUMBERS = (*FLOATS, *dtypes.INTEGERS, dtypes.bool_)
STORED = (*NUMBERS, dtypes.float64)
INDICES = (dtypes.int32, dtypes.int64)
MAX_HEAD_DIM = 512


def taking(kinds: tuple[DType, ...], make: Callable[[Node], KernelCall | Refusal], first: int = 64) -> Choose:
    """A choice that refuses a node when one of its first operands, or a result, is of another dtype."""

    def choose(node: Node) -> KernelCall | Refusal:
        for value in (*node.inputs[:first], *node.outputs):
            if not isinstance(value.spec, StateSpec) and value.dtype not in kinds and value.dtype not in INDICES:
                return Refusal(f"its kernel takes no {value.dtype.name}")
        return make(node)

    return choose


def _elementwise(node: Node) -> KernelCall | Refusal:
    op: Any = node.op
    return KernelCall("elementwise", {"expr": expr_json(op.body)})


def _packed_linear(node: Node) -> KernelCall | Refusal:
    op: Any = node.op
    params = {"n": op.n, "k": op.k, "parts": op.parts, "expr": expr_json(op.body)}
    return KernelCall("matmul_packed", params, (ROWS, DENSE, ROWS), writes=ROWS)


def _packed_moe(node: Node) -> KernelCall | Refusal:
    op: Any = node.op
    params = {name: getattr(op, name) for name in ("experts", "hidden", "inner", "top_k", "normalize")}
    return KernelCall("moe", {**params, "expr": expr_json(op.body)}, (INNER, INNER, DENSE))


def _convolution(node: Node) -> KernelCall | Refusal:
    op: Any = node.op
    params = {"outputs": op.n, "channels": node.inputs[0].shape[-1], "groups": op.groups, **_sliding(op)}
    return KernelCall("conv_packed", params, (INNER, DENSE, ROWS), writes=ROWS)


def _conv_transpose(node: Node) -> KernelCall | Refusal:
    op: Any = node.op
    params = {"outputs": op.n, "channels": node.inputs[0].shape[-1], "groups": op.groups, **_sliding(op)}
    reads = (INNER, *[DENSE] * (op.fixed - 1), ROWS)
    return KernelCall("conv_transpose_packed", params, reads, writes=ROWS)


def _depthwise_conv(node: Node) -> KernelCall | Refusal:
    return KernelCall("conv_depthwise", _sliding(node.op), (INNER, DENSE, ANY), writes=INNER)


def _sliding(op: Any) -> dict[str, Any]:
    """What convolutions say; how far they go, the shape of the result says."""
    lists = {name: list(getattr(op, name)) for name in ("kernel", "stride", "pre_padding", "dilation")}
    return {**lists, "expr": expr_json(op.body)}


def _group_norm(node: Node) -> KernelCall | Refusal:
    op: Any = node.op
    params = {"groups": op.groups, "eps": op.eps, "weight": op.vectors > 0, "bias": op.vectors > 1}
    reads = (ROWS, *[DENSE] * op.vectors, ROWS)
    return KernelCall("group_norm", {**params, "expr": expr_json(op.body)}, reads, writes=ROWS)


def _avg_pool(node: Node) -> KernelCall | Refusal:
    op: Any = node.op
    if not op.channels_last:
        return Refusal("its kernel takes channels last")
    lists = {name: list(getattr(op, name)) for name in ("kernel", "stride", "pre_padding", "post_padding")}
    params = {**lists, "count_include_pad": op.count_include_pad, "divisor": op.divisor or 0}
    return KernelCall("avg_pool", params, (INNER,), writes=INNER)


def _max_pool(node: Node) -> KernelCall | Refusal:
    op: Any = node.op
    if not op.channels_last:
        return Refusal("its kernel takes channels last")
    lists = {name: list(getattr(op, name)) for name in ("kernel", "stride", "pre_padding", "dilation")}
    return KernelCall("max_pool", lists, (INNER,), writes=INNER)


def _matmul(node: Node) -> KernelCall | Refusal:
    op: Any = node.op
    a, b = node.inputs
    if op.transpose_a or op.transpose_b:
        return Refusal("the kernel reads strides instead of transposing")
    if a.dtype is node.output.dtype is dtypes.float64:
        return KernelCall("matmul_float64")
    if a.dtype not in FLOATS or node.output.dtype not in (a.dtype, dtypes.float32):
        return Refusal(f"the kernel has no product of {a.dtype.name} with a {node.output.dtype.name} result")
    return KernelCall("matmul")


def _rms_norm(node: Node) -> KernelCall | Refusal:
    op: Any = node.op
    return KernelCall("rms_norm", {"eps": op.eps, "shift": op.shift}, (INNER, DENSE))


def _layer_norm(node: Node) -> KernelCall | Refusal:
    op: Any = node.op
    count = len(node.inputs)
    return KernelCall("layer_norm", {"eps": op.eps, "weight": count > 1, "bias": count > 2}, (INNER, DENSE))


def _softmax(log: bool) -> Callable[[Node], KernelCall | Refusal]:
    def make(node: Node) -> KernelCall | Refusal:
        op: Any = node.op
        return KernelCall("softmax", {"axis": axis_of(op.axis, len(node.output.shape)), "log": log})

    return make


def _reduce(how: str) -> Callable[[Node], KernelCall | Refusal]:
    def make(node: Node) -> KernelCall | Refusal:
        op: Any = node.op
        x = node.inputs[0]
        if how == "mean" and not x.dtype.is_float:
            return Refusal("the kernel has no mean of integers")
        params = {"op": how, "axes": list(axes_of(op.axes, len(x.shape))), "keepdims": op.keepdims}
        return KernelCall("reduce", params)

    return make


def _argmax(node: Node) -> KernelCall | Refusal:
    op: Any = node.op
    axis = axis_of(op.axis, len(node.inputs[0].shape))
    return KernelCall("argmax", {"axis": axis, "keepdims": op.keepdims})


def _concat(node: Node) -> KernelCall | Refusal:
    op: Any = node.op
    return KernelCall("concat", {"axis": axis_of(op.dim, len(node.output.shape))})


def _embedding(node: Node) -> KernelCall | Refusal:
    return KernelCall("embedding", {"packed": False}, (ANY, ROWS))


def _packed_embedding(node: Node) -> KernelCall | Refusal:
    op: Any = node.op
    return KernelCall("embedding", {"packed": True, "n": op.n, "k": op.k}, (ANY, DENSE))


def _along(kernel: str) -> Callable[[Node], KernelCall | Refusal]:
    def make(node: Node) -> KernelCall | Refusal:
        op: Any = node.op
        return KernelCall(kernel, {"axis": axis_of(op.axis, len(node.inputs[0].shape))})

    return make


def _iota(node: Node) -> KernelCall | Refusal:
    op: Any = node.op
    if not isinstance(op.start, int):
        return Refusal("the kernel's start is a number, and this one is known only at run time")
    return KernelCall("iota", {"start": op.start, "step": op.step})


def _rope_table(node: Node) -> KernelCall | Refusal:
    op: Any = node.op
    if node.inputs[0].dtype is not dtypes.int32:
        return Refusal("the kernel takes int32 positions")
    return KernelCall("rope_table", {"scale": op.scale}, (DENSE,))


def _rope(node: Node) -> KernelCall | Refusal:
    op: Any = node.op
    return KernelCall("rope", {"style": op.style}, (INNER, DENSE))


def _cache_fault(node: Node, width: Any, slot: Any) -> str:
    """What the cache kernels refuse: they walk heads of an even, known width and read int32 slots."""
    if not isinstance(width, int) or width % 2 or not 2 <= width <= MAX_HEAD_DIM:
        return f"the cache kernels take an even head width up to {MAX_HEAD_DIM}, not {width}"
    if slot is not None and slot.dtype is not dtypes.int32:
        return "the cache kernels take int32 slots"
    return ""


def _kv_write(node: Node) -> KernelCall | Refusal:
    _, k, _, slot = node.inputs
    fault = _cache_fault(node, k.shape[2], slot)
    return Refusal(fault) if fault else KernelCall("kv_write", {}, (ANY, INNER, INNER, DENSE))


def _rope_kv_write(node: Node) -> KernelCall | Refusal:
    op: Any = node.op
    fault = _cache_fault(node, node.inputs[0].shape[2], node.inputs[5])
    reads = (INNER, INNER, INNER, DENSE, DENSE, DENSE, ANY)
    return Refusal(fault) if fault else KernelCall("rope_kv_write", {"style": op.style}, reads)


def _paged_attention(node: Node) -> KernelCall | Refusal:
    op: Any = node.op
    fault = _cache_fault(node, node.inputs[0].shape[2], None)
    params = {"scale": op.scale, "window": op.window, "softcap": op.softcap}
    return Refusal(fault) if fault else KernelCall("paged_attention", params, (INNER, ANY, DENSE))


def _attention(node: Node) -> KernelCall | Refusal:
    op: Any = node.op
    q, _, v, *mask = node.inputs
    for width in (q.shape[-1], v.shape[-1]):
        if not isinstance(width, int) or width > MAX_HEAD_DIM:
            return Refusal(f"the kernel takes a known head width up to {MAX_HEAD_DIM}, not {width}")
    kind = ("bool" if mask[0].dtype is dtypes.bool_ else "float") if mask else "none"
    params = {"scale": op.scale_of(q), "causal": op.causal, "heads_inside": op.heads_inside, "mask": kind,
              "empty_rows": op.empty_rows}
    return KernelCall("attention", params, (INNER, INNER, INNER, ANY))


CPU = Target(
    device.CPU,
    {
        "fused_elementwise": taking(STORED, _elementwise),
        "packed_linear": taking(FLOATS, _packed_linear, first=2),
        "packed_moe": taking(FLOATS, _packed_moe),
        "packed_conv": taking(FLOATS, _convolution, first=2),
        "packed_conv_transpose": taking(FLOATS, _conv_transpose, first=2),
        "depthwise_conv": taking(FLOATS, _depthwise_conv, first=2),
        "avg_pool": taking(FLOATS, _avg_pool),
        "max_pool": taking(FLOATS, _max_pool),
        "fused_group_norm": taking(FLOATS, _group_norm, first=1),
        "matmul": _matmul,
        "rms_norm": taking(FLOATS, _rms_norm),
        "layer_norm": taking(FLOATS, _layer_norm),
        "softmax": taking(FLOATS, _softmax(log=False)),
        "log_softmax": taking(FLOATS, _softmax(log=True)),
        **{f"reduce_{how}": taking(STORED, _reduce(how)) for how in ("sum", "mean", "max", "min", "prod")},
        "argmax": taking(STORED, _argmax),
        "concat": taking(STORED, _concat),
        "embedding": taking(STORED, _embedding),
        "packed_embedding": taking(FLOATS, _packed_embedding),
        "take": taking(STORED, _along("take")),
        "gather": taking(STORED, _along("gather")),
        "iota": taking((dtypes.float32, dtypes.float64), _iota),
        "rope_table": taking((dtypes.float32,), _rope_table),
        "rope": taking(FLOATS, _rope),
        "kv_write": taking(FLOATS, _kv_write),
        "rope_kv_write": taking(FLOATS, _rope_kv_write),
        "paged_attention": taking(FLOATS, _paged_attention),
        "scaled_dot_product_attention": taking(FLOATS, _attention, first=3),
    },
    cpu_steps.steps,
)
