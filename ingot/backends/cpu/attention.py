"""Attention over the paged KV cache and over whole tensors, and what fills the cache."""

from __future__ import annotations

from typing import Any

from ingot import dtypes
from ingot.backends.cost import Call, nbytes, size
from ingot.backends.cpu.types import FLOAT32, FLOATS, INT32
from ingot.backends.kernel import Kernel, Operand, Reads, Refusal
from ingot.ir import Node

INNER, DENSE, ANY = Reads.INNER, Reads.DENSE, Reads.ANY
MAX_HEAD_DIM = 512
STATE = Operand("state", None)
STYLE = "style: half | interleaved"
COS, SIN, SLOT = Operand("cos", FLOAT32), Operand("sin", FLOAT32), Operand("slot", INT32)


def _cache_fault(width: Any) -> str:
    """What the cache kernels decline: they walk heads of an even, known width."""
    if isinstance(width, int) and width % 2 == 0 and 0 < width <= MAX_HEAD_DIM:
        return ""
    return f"it takes an even head width up to {MAX_HEAD_DIM}, not {width}"


def _kv_write(op: Any, node: Node) -> dict[str, Any] | Refusal:
    fault = _cache_fault(node.inputs[1].shape[2])
    return Refusal(fault) if fault else {}


def _rope_kv_write(op: Any, node: Node) -> dict[str, Any] | Refusal:
    fault = _cache_fault(node.inputs[0].shape[2])
    return Refusal(fault) if fault else {"style": op.style}


def _paged_attention(op: Any, node: Node) -> dict[str, Any] | Refusal:
    fault = _cache_fault(node.inputs[0].shape[2])
    return Refusal(fault) if fault else {"scale": op.scale, "window": op.window, "softcap": op.softcap}


def _attention(op: Any, node: Node) -> dict[str, Any] | Refusal:
    q, _, v, *mask = node.inputs
    for width in (q.shape[-1], v.shape[-1]):
        if not isinstance(width, int) or width > MAX_HEAD_DIM:
            return Refusal(f"it takes a known head width up to {MAX_HEAD_DIM}, not {width}")
    if not abs(op.scale_of(q)) <= 1e30:
        return Refusal("its scale is at most 1e30")
    kind = ("bool" if mask[0].dtype is dtypes.bool_ else "float") if mask else "none"
    return {"scale": op.scale_of(q), "causal": op.causal, "heads_inside": op.heads_inside, "mask": kind,
            "empty_rows": op.empty_rows}  # fmt: skip


def _pairs(c: Call) -> int:
    """Pairs of query and key of dense attention, over all batches and heads; causal leaves out those after."""
    queries, keys = c.x[-2], c.inputs[1][1][-2]
    if not c.params["causal"]:
        return size(c.x[:-1]) * keys
    growing = min(queries, keys)  # query i sees the keys 0 … i
    return size(c.x[:-2]) * (growing * (growing + 1) // 2 + (queries - growing) * keys)


def _paged_flops(c: Call) -> int:
    _, heads, width = c.x
    return 4 * heads * width * c.attended.pairs if c.attended else 0


def _paged_bytes(c: Call) -> int:
    row = _stored_bytes(c.inputs[1], c.x[-1])
    return nbytes(c.inputs[0]) + nbytes(c.outputs[0]) + (row * c.attended.keys if c.attended else 0)


def _stored_bytes(state: Any, width: int) -> int:
    """Of a token's keys and values in a cache, whose shape is [blocks, 2, heads, block size * stored width]."""
    dtype = dtypes.get(state[0])
    return int(2 * state[1][2] * dtypes.cache_width(dtype, width) * dtype.bits // 8)


def _written_bytes(state: Any, *rows: Any) -> int:
    """Of rows, the first of which are keys, and of what a cache gets of them."""
    tokens, _, width = rows[0][1]
    return sum(nbytes(t) for t in rows) + int(tokens) * _stored_bytes(state, width)


KERNELS = (
    Kernel(
        "rope_table",
        params="scale: number",
        operands=(Operand("positions", INT32), Operand("inv_freq", FLOAT32)),
        results=(Operand("cos", FLOAT32), Operand("sin", FLOAT32)),
        runs={"rope_table": lambda op, node: {"scale": op.scale}},
        flops=None,
    ),
    Kernel(
        "rope",
        params=STYLE,
        operands=(Operand("x", FLOATS, INNER), COS, SIN),
        results=(Operand("y", ("x",)),),
        runs={"rope": lambda op, node: {"style": op.style}},
        flops=lambda c: 3 * size(c.x),
    ),
    Kernel(
        "kv_write",
        operands=(STATE, Operand("k", FLOATS, INNER), Operand("v", FLOATS, INNER), SLOT),
        results=(),
        runs={"kv_write": _kv_write},
        flops=None,
        moved=lambda c: _written_bytes(c.inputs[0], *c.inputs[1:3]),
    ),
    Kernel(
        "rope_kv_write",
        params=STYLE,
        operands=(
            Operand("q", FLOATS, INNER), Operand("k", FLOATS, INNER), Operand("v", FLOATS, INNER), COS, SIN, SLOT,
            STATE,
        ),
        results=(Operand("y", ("q",)),),
        runs={"rope_kv_write": _rope_kv_write},
        flops=lambda c: 3 * (size(c.x) + size(c.inputs[1][1])),
        moved=lambda c: 2 * nbytes(c.inputs[0]) + _written_bytes(c.inputs[6], *c.inputs[1:3]),
    ),
    Kernel(
        "paged_attention",
        params="scale: number, window?: integer or null, softcap?: number or null",
        operands=(
            Operand("q", FLOATS, INNER), STATE, Operand("query_start", INT32), Operand("context_len", INT32),
            Operand("block_table", INT32), Operand("slopes?", FLOAT32),
        ),
        results=(Operand("y", FLOATS),),
        runs={"paged_attention": _paged_attention},
        flops=_paged_flops,
        moved=_paged_bytes,
        products=True,
    ),
    Kernel(
        "attention",
        params="scale: number, causal: flag, heads_inside: flag, mask: none | bool | float, empty_rows?: zero | nan",
        operands=(
            Operand("q", FLOATS, INNER), Operand("k", ("q",), INNER), Operand("v", ("q",), INNER),
            Operand("mask?", (dtypes.bool_, *FLOATS), ANY),
        ),
        results=(Operand("y", ("q",)),),
        runs={"scaled_dot_product_attention": _attention},
        flops=lambda c: 2 * _pairs(c) * (c.x[-1] + c.y[-1]),
        products=True,
    ),
)  # fmt: skip
