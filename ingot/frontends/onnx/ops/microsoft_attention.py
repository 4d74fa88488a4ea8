"""Attention and rotary embeddings as exports for ONNX Runtime have them (com.microsoft)."""

from __future__ import annotations

from typing import Any

from ingot import dims, dtypes
from ingot.dims import Dimension
from ingot.frontends.onnx.ops.attention import (
    counting,
    in_heads,
    plain_attention,
    rotary_embedding,
    window,
)
from ingot.frontends.onnx.ops.common import cast, number, size_value
from ingot.frontends.onnx.ops.linear import matmul, matmul_integer
from ingot.frontends.onnx.ops.shape import part
from ingot.frontends.onnx.table import MICROSOFT, Call, Scale, onnx
from ingot.frontends.table import MaybeInts, MaybeTensor, Result, Tensor, Unsupported
from ingot.ir import F

FILTER = -10000.0  # what is added to the score of a key that a mask hides


def flat(x: Any) -> Any:
    """[N, H, T, D] as [N, T, H·D]."""
    n, h, t, d = x.shape
    return F.reshape(F.permute(x, (0, 2, 1, 3)), (n, t, dims.mul(h, d)))


def given(call: Call, *results: Any) -> Result:
    """As many results as the node names."""
    return results[: call.outputs] if call.outputs > 1 else results[0]


def _masked(mask: Any, like: Any, keys: Dimension, fill: float) -> Any:
    """What a mask adds to the scores, [N, 1, 1 or T, S]: 0 where it shows a key.

    mask: integers [N, S] or [N, T, S], where those above 0 show a key; or the ends of the keys [N], or these and the
    starts behind them [2·N].
    """
    n = like.shape[0]
    if len(mask.shape) == 1:
        place = F.reshape(counting(like, keys), (1, keys))
        count = mask.shape[0]
        ends = part(mask, 0, 0, n) if count != n else mask
        shown = F.less(place, F.reshape(cast(ends, dtypes.int64), (n, 1)))
        if count != n and count == dims.mul(n, 2):
            starts = F.reshape(cast(part(mask, 0, n, n), dtypes.int64), (n, 1))
            shown = F.logical_and(shown, F.greater_equal(place, starts))
        shown = F.reshape(shown, (n, 1, 1, keys))
    elif len(mask.shape) in (2, 3):
        shown = F.greater(mask, number(mask, 0))
        shown = F.reshape(shown, (mask.shape[0], 1, *(mask.shape[1:] if len(mask.shape) == 3 else (1, mask.shape[1]))))
    else:
        raise Unsupported(f"a mask {mask.spec} is not supported, only [N], [2·N], [N, S] and [N, T, S]")
    return F.where(shown, number(like, 0), number(like, fill))


def _summed(a: Any, b: Any) -> Any:
    return b if a is None else a if b is None else F.add(a, b)


def _attended(
    query: Any, key: Any, value: Any, past: Dimension, mask: Any, added: Any, fill: float, scale: float, causal: bool
) -> Any:
    """[N, T, H·D] of [N, H, T, D] and keys and values that follow past ones."""
    keys = key.shape[2]
    seen = window(query, keys, size_value(query, past) if past != 0 else None, causal, -1, -1)
    if mask is not None:
        added = _summed(_masked(mask, query, keys, fill), added)
    return flat(plain_attention(query, key, value, seen, added, scale or None))


@onnx("Attention", domain=MICROSOFT)
def attention(
    call: Call, x: Tensor, weight: Tensor, bias: MaybeTensor = None, mask: MaybeTensor = None,
    past: MaybeTensor = None, added: MaybeTensor = None, past_length: MaybeTensor = None, *, num_heads: int,
    mask_filter_value: float = FILTER, scale: float = 0.0, unidirectional: bool = False,
    qkv_hidden_sizes: MaybeInts = None, do_rotary: bool = False, rotary_embedding_dim: int = 0,
    past_present_share_buffer: bool = False,
) -> Result:  # fmt: skip
    """Queries, keys and values in one product, and attention; past and present are [2, N, H, S, D]."""
    _refuse_buffers(do_rotary, past_present_share_buffer or past_length is not None)
    projected = matmul(x, weight)
    if bias is not None:
        projected = F.add(projected, bias)
    return _of_projected(call, projected, mask, past, added, num_heads, qkv_hidden_sizes, mask_filter_value, scale,
                         unidirectional)  # fmt: skip


def _refuse_buffers(rotary: bool, shared: bool) -> None:
    if rotary or shared:
        raise Unsupported("rotary embeddings inside of it, and a buffer that past and present share, are not supported")


def _of_projected(
    call: Call, projected: Any, mask: Any, past: Any, added: Any, heads: int, sizes: Any, fill: float, scale: float,
    causal: bool,
) -> Result:  # fmt: skip
    width = projected.shape[2]
    sizes = sizes or (dims.floordiv(width, 3),) * 3
    if len(sizes) != 3 or dims.add(dims.add(sizes[0], sizes[1]), sizes[2]) != width:
        raise Unsupported(f"qkv_hidden_sizes {list(sizes)} do not add up to {width}")
    starts = (0, sizes[0], dims.add(sizes[0], sizes[1]))
    parts = [part(projected, 2, at, n) for at, n in zip(starts, sizes, strict=True)]
    query, key, value = (in_heads(p, heads) for p in parts)
    before: Dimension = 0
    if past is not None:
        before = past.shape[3]
        key, value = (
            F.concat(F.reshape(part(past, 0, i, 1), past.shape[1:]), new, dim=2) for i, new in enumerate((key, value))
        )
    found = _attended(query, key, value, before, mask, added, fill, scale, causal)
    if call.outputs == 1 or not call.wanted[1]:
        return found
    present = F.concat(*(F.reshape(p, (1, *p.shape)) for p in (key, value)), dim=0)
    return found, present


@onnx("QAttention", domain=MICROSOFT)
def quantised_attention(
    call: Call, x: Tensor, weight: Tensor, bias: Tensor, x_scale: Scale, weight_scale: Scale,
    mask: MaybeTensor = None, x_zero: MaybeTensor = None, weight_zero: MaybeTensor = None, past: MaybeTensor = None, *,
    num_heads: int, mask_filter_value: float = FILTER, scale: float = 0.0, unidirectional: bool = False,
    do_rotary: bool = False, past_present_share_buffer: bool = False,
) -> Result:  # fmt: skip
    _refuse_buffers(do_rotary, past_present_share_buffer)
    product = cast(matmul_integer(x, weight, x_zero, weight_zero), dtypes.float32)
    projected = F.add(F.mul(product, F.mul(x_scale, weight_scale)), bias)
    return _of_projected(call, projected, mask, past, None, num_heads, None, mask_filter_value, scale, unidirectional)


@onnx("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(
    call: Call, q: Tensor, k: MaybeTensor = None, v: MaybeTensor = None, bias: MaybeTensor = None,
    mask: MaybeTensor = None, added: MaybeTensor = None, past_key: MaybeTensor = None,
    past_value: MaybeTensor = None, past_length: MaybeTensor = None, indirection: MaybeTensor = None, *,
    num_heads: int, mask_filter_value: float = FILTER, scale: float = 0.0, unidirectional: bool = False,
) -> Result:  # fmt: skip
    """q, k and v [N, T, H·D]; or k and v [N, H, S, D]; or k and v packed as [N, S, H, 2, D], or all as [N, T, H, 3, D].
    """
    _refuse_buffers(False, past_length is not None or indirection is not None)
    if len(call.wanted) > 3 and call.wanted[3]:
        raise Unsupported("the scores as a result are not supported")
    parts = _unpacked(q, k, v, num_heads)
    if bias is not None:
        parts = _biased(parts, bias, num_heads, k is not None and len(k.shape) == 4)
    query, key, value = parts
    past: Dimension = 0
    if past_key is not None and past_value is not None:
        past = past_key.shape[2]
        key, value = F.concat(past_key, key, dim=2), F.concat(past_value, value, dim=2)
    if mask is not None and len(mask.shape) == 1 and mask.shape[0] != query.shape[0]:
        mask = part(mask, 0, 0, query.shape[0])  # lengths of the keys, and what packed sequences have behind them
    found = _attended(query, key, value, past, mask, added, mask_filter_value, scale, unidirectional)
    return given(call, found, key, value)


def _unpacked(q: Any, k: Any, v: Any, heads: int) -> list[Any]:
    """Queries, keys and values [N, H, T, D], however they were given."""
    if len(q.shape) == 5:
        return _split(q, 3)
    if k is not None and len(k.shape) == 5:
        return [in_heads(q, heads), *_split(k, 2)]
    if k is None or v is None:
        raise Unsupported("keys or values are missing, and nothing is packed")
    return [in_heads(x, heads) for x in (q, k, v)]


def _split(x: Any, count: int) -> list[Any]:
    """[N, T, H, count, D] as so many [N, H, T, D]."""
    n, t, h, _, d = x.shape
    return [F.permute(F.reshape(part(x, 3, i, 1), (n, t, h, d)), (0, 2, 1, 3)) for i in range(count)]


def _biased(parts: list[Any], bias: Any, heads: int, ready: bool) -> list[Any]:
    """With what the bias [3·H·D] has for each; keys and values that come with their heads in place are ready."""
    found = []
    at: Dimension = 0
    for i, x in enumerate(parts):
        width = dims.mul(heads, x.shape[3])
        own = F.reshape(part(bias, 0, at, width), (heads, 1, x.shape[3]))
        found.append(x if ready and i else F.add(x, own))
        at = dims.add(at, width)
    return found


@onnx("RotaryEmbedding", domain=MICROSOFT)
def microsoft_rotary_embedding(
    x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False, num_heads: int = 0,
    rotary_embedding_dim: int = 0, scale: float = 1.0, is_packed_batching: bool = False,
) -> Result:  # fmt: skip
    if is_packed_batching:
        raise Unsupported("packed batches are not supported")
    steps = x.shape[2] if len(x.shape) == 4 else x.shape[1]
    if positions.shape in ((1,), ()):
        ahead = F.add(counting(x, steps), F.reshape(cast(positions, dtypes.int64), (1,)))
        positions = F.reshape(ahead, (1, steps))
    if len(x.shape) == 3 and not num_heads:
        head = cos.shape[1] * 2 if isinstance(cos.shape[1], int) else 0
        width = x.shape[2]
        if not head or not isinstance(width, int):
            raise Unsupported("the number of heads must be known")
        num_heads = width // head
    return rotary_embedding(x, cos, sin, positions, interleaved=interleaved, num_heads=num_heads,
                            rotary_embedding_dim=rotary_embedding_dim)  # fmt: skip
