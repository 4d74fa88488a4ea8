"""Attention of grouped queries as decoders for ONNX Runtime have it (com.microsoft): past and present keys by requests.

The requests of a batch have lengths of their own. Row n of past holds the keys of as many tokens as that request has
behind the new ones; what stands after them counts for nothing. In present the new keys follow them, and zeros those.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from ingot import dims, dtypes
from ingot.dims import Dimension
from ingot.frontends.onnx.ops.attention import (
    counting,
    in_heads,
    plain_attention,
    rotary_embedding,
    window,
    written_out,
)
from ingot.frontends.onnx.ops.common import cast, number, size_value
from ingot.frontends.onnx.ops.microsoft_attention import flat, given
from ingot.frontends.onnx.ops.shape import part
from ingot.frontends.onnx.table import MICROSOFT, Call, onnx
from ingot.frontends.table import MaybeTensor, Result, Tensor, Unsupported
from ingot.ir import F
from ingot.ir.checked import to_concat, to_expand, to_reshape
from ingot.ir.sizes import as_size

_LENGTHS = (
    "GroupQueryAttention: seqlens_k + 1 must be at least the number of new tokens (1 where these are the first), and "
    "at most total_sequence_length, which is at most that of past and new tokens"
)


class Before(NamedTuple):
    """What a batch has behind its new tokens. `count`: of tokens of each request, int64 [N]. `whole`: those of the
    longest request with its new ones; `total` is that as a size, which is a number of keys.
    """

    count: Any
    whole: Any
    total: Dimension


@onnx("GroupQueryAttention", domain=MICROSOFT, folds=False)
def group_query_attention(
    call: Call, q: Tensor, k: MaybeTensor = None, v: MaybeTensor = None, past_key: MaybeTensor = None,
    past_value: MaybeTensor = None, lengths: MaybeTensor = None, total: MaybeTensor = None, cos: MaybeTensor = None,
    sin: MaybeTensor = None, positions: MaybeTensor = None, added: MaybeTensor = None, sink: MaybeTensor = None, *,
    num_heads: int, kv_num_heads: int, scale: float = 0.0, softcap: float = 0.0, do_rotary: bool = False,
    rotary_interleaved: bool = False, local_window_size: int = -1, smooth_softmax: int = 0, qk_output: int = 0,
    k_quant_type: str = "NONE", v_quant_type: str = "NONE", kv_cache_bit_width: int = 0,
) -> Result:  # fmt: skip
    """Present has as many tokens as the longest request, or as past where that has room for more."""
    if lengths is None:
        raise Unsupported("the lengths (seqlens_k) are missing")
    if softcap < 0:
        raise Unsupported(f"softcap is {softcap:g}; it must be greater than 0, or 0 for none")
    if qk_output or kv_cache_bit_width or {k_quant_type, v_quant_type} != {"NONE"}:
        raise Unsupported("scores as a result, and quantised caches, are not supported")
    if k is None or v is None:
        width = q.shape[2]
        if not isinstance(width, int):
            raise Unsupported("the packed width must be known")
        head = width // (num_heads + 2 * kv_num_heads)
        sizes = (head * num_heads, head * kv_num_heads, head * kv_num_heads)
        q, k, v = (part(q, 2, sum(sizes[:i]), n) for i, n in enumerate(sizes))
    query, key, value = in_heads(q, num_heads), in_heads(k, kv_num_heads), in_heads(v, kv_num_heads)
    n, t = query.shape[0], query.shape[2]
    count = F.reshape(*to_reshape(lengths, (n,)))
    count = F.add(cast(count, dtypes.int64), number(cast(count, dtypes.int64), 1))
    before: Before | None = None
    if past_key is None or past_value is None or past_key.shape[2] == 0:
        some = F.greater_equal(count, number(count, 1))
        F.assertion(F.logical_and(some, F.less_equal(count, size_value(query, t))), message=_LENGTHS)
    else:
        before = _before(query, past_key.shape[2], count, total)
    if do_rotary:
        if cos is None or sin is None:
            raise Unsupported("rotary embeddings need their tables")
        if positions is None:
            positions = F.reshape(counting(query, t), (1, t))
            if before is not None:
                positions = F.add(F.reshape(before.count, (n, 1)), positions)
        query, key = (rotary_embedding(x, cos, sin, positions, interleaved=rotary_interleaved) for x in (query, key))
    keys, values, offset = key, value, None
    if before is not None:
        key, value = _present(past_key, past_value, key, value, before)
        keys, values = (x if x.shape[2] == before.total else part(x, 2, 0, before.total) for x in (key, value))
        offset = F.reshape(before.count, (n, 1, 1, 1))
    if added is not None:
        wanted = (n, query.shape[1], t, keys.shape[2])
        if len(added.shape) != 4:
            raise Unsupported(f"a bias of the scores has four dimensions, not those of {added.spec}")
        added = F.expand(*to_expand(added, tuple(1 if d == 1 else w for d, w in zip(added.shape, wanted, strict=True))))
    back = local_window_size - 1 if local_window_size > 0 else -1
    seen = window(query, keys.shape[2], offset, True, back, -1)
    if smooth_softmax > 0 or sink is not None:
        found = _with_sink(query, keys, values, seen, added, sink, scale, softcap)
    elif softcap:
        found = written_out(query, keys, values, seen, added, scale or None, softcap, 0, None)[0]
    else:
        found = plain_attention(query, keys, values, seen, added, scale or None)
    return given(call, flat(found), key, value)


def _before(query: Any, past: Dimension, count: Any, total: Any) -> Before:
    """What precedes the new tokens of requests of these lengths [N]. Nothing, where the longest of them is all new."""
    t = query.shape[2]
    room = dims.add(past, t)
    new, most = size_value(query, t), size_value(query, room)
    whole = most if total is None else F.reshape(cast(total, dtypes.int64), ())
    behind = F.where(F.equal(whole, new), number(count, 0), F.sub(count, new))
    held = F.logical_and(F.greater_equal(behind, number(count, 0)), F.less_equal(behind, size_value(query, past)))
    within = F.logical_and(F.less_equal(count, whole), F.less_equal(whole, most))
    some = F.greater_equal(count, number(count, 1))
    F.assertion(F.logical_and(some, F.logical_and(held, within)), message=_LENGTHS)
    return Before(behind, whole, room if total is None else dims.minimum(as_size(total), room))


def _present(past_key: Any, past_value: Any, key: Any, value: Any, before: Before) -> Iterator[Any]:
    """Past and new keys, and values, [N, G, P, D] each. Row by row: so many past tokens, the new ones, and zeros."""
    past_key, past_value, key, value = to_concat(past_key, past_value, key, value, dim=2)
    (n, heads, past, _), new = past_key.shape, key.shape[2]
    size = dims.maximum(before.total, past)
    place = F.reshape(counting(key, size), (1, size))
    own = F.sub(place, F.reshape(before.count, (n, 1)))  # which new token stands there
    nothing = size_value(key, dims.add(past, new))
    fresh = F.where(F.less(own, size_value(key, new)), F.add(own, size_value(key, past)), nothing)
    index = F.where(F.less(own, number(own, 0)), place, fresh)
    index = F.expand(F.reshape(index, (n, 1, size, 1)), (n, heads, size, 1))
    for held, late in ((past_key, key), (past_value, value)):
        zero = F.expand(number(late, 0), (n, heads, 1, late.shape[3]))
        yield F.gather_nd(F.concat(held, late, zero, dim=2), index, batch_dims=2)


def _with_sink(query: Any, key: Any, value: Any, seen: Any, added: Any, sink: Any, scale: float, softcap: float) -> Any:
    """With a score more in each row, that of a key without a value: 0, or what `sink` [H] says."""
    n, _, s, d = key.shape
    key, value = (F.concat(x, F.expand(number(x, 0), (n, x.shape[1], 1, x.shape[3])), dim=2) for x in (key, value))
    heads, t = query.shape[1:3]
    shown = F.expand(number(query, 0), (1, 1, t, s)) if added is None else added
    if seen is not None:
        shown = F.where(seen, shown, number(shown, float("-inf")))
    shown = F.expand(shown, (shown.shape[0], heads, t, s))
    one = number(query, 0) if sink is None else F.reshape(cast(sink, shown.dtype), (1, heads, 1, 1))
    column = F.expand(one, (shown.shape[0], heads, t, 1))
    mask = F.concat(shown, column, dim=3)
    if softcap:
        return written_out(query, key, value, None, mask, scale or None, softcap, 0, None)[0]
    return plain_attention(query, key, value, None, mask, scale or None)
