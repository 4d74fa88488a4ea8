"""Attention of ONNX, rotary embeddings, and recurrences in the place of attention."""

from __future__ import annotations

import math
from typing import Any

from ingot import dims, dtypes
from ingot import functional as fn
from ingot.dims import Dimension
from ingot.dtypes import DType
from ingot.frontends.onnx.ops.common import cast, number, size_value, wide
from ingot.frontends.onnx.ops.shape import part
from ingot.frontends.onnx.table import Call, MaybeGraph, onnx
from ingot.frontends.onnx.tensors import BY_CODE
from ingot.frontends.table import MaybeFloat, MaybeInt, MaybeTensor, Result, Tensor, Unsupported
from ingot.ir import F, Value


def in_heads(x: Any, heads: int | None) -> Any:
    """[N, T, H·D] as [N, H, T, D]."""
    if len(x.shape) == 4:
        return x
    if heads is None or len(x.shape) != 3:
        raise Unsupported(f"{x.spec} needs the number of heads")
    n, t, width = x.shape
    return F.permute(F.reshape(x, (n, t, heads, dims.floordiv(width, heads))), (0, 2, 1, 3))


def _joined(x: Any, like: Any) -> Any:
    """[N, H, T, D] as the operand was given."""
    if len(like.shape) == 4:
        return x
    n, h, t, d = x.shape
    return F.reshape(F.permute(x, (0, 2, 1, 3)), (n, t, dims.mul(h, d)))


def counting(like: Value, size: Dimension) -> Any:
    """0, 1, … below a size, int64."""
    found = F.iota(size=size, dtype=dtypes.int64)
    return found if isinstance(found, Value) else like.network.constant(found)


def both(a: Any, b: Any) -> Any:
    return b if a is None else F.logical_and(a, b)


def window(
    q: Any, keys: Dimension, offset: Any, causal: bool, left: int, right: int
) -> Any:
    """Which keys a query may see by its place: bool [T, S] or [N, 1, T, S]; None: all."""
    if not causal and left < 0 and right < 0:
        return None
    t = q.shape[-2]
    place = F.reshape(counting(q, t), (t, 1))
    if offset is not None:
        place = F.add(place, offset)
    key = F.reshape(counting(q, keys), (1, keys))
    seen: Any = None
    if causal or right >= 0:
        reach = 0 if causal and right < 0 else min(right, 0) if causal else right
        seen = F.less_equal(key, F.add(place, number(place, reach)) if reach else place)
    if left >= 0:
        seen = both(seen, F.greater_equal(key, F.sub(place, number(place, left))))
    return seen


def _mask_fitted(mask: Any, keys: Dimension) -> Any:
    """A mask that is shorter than the keys hides the rest."""
    size = mask.shape[-1]
    missing = dims.add(keys, dims.mul(size, -1))
    if missing == 0 or size == 1:
        return mask
    if not isinstance(missing, int):
        raise Unsupported(f"a mask of {size} keys where there are {keys}")
    rank = len(mask.shape)
    after = (*[0] * (rank - 1), missing)
    if mask.dtype is dtypes.bool_:
        return F.pad(mask, before=(0,) * rank, after=after, value=0.0)
    return F.pad(mask, before=(0,) * rank, after=after, value=-math.inf)


@onnx("Attention", since=23)
def attention(
    call: Call, q: Tensor, k: Tensor, v: Tensor, mask: MaybeTensor = None, past_key: MaybeTensor = None,
    past_value: MaybeTensor = None, lengths: MaybeTensor = None, *, is_causal: bool = False,
    kv_num_heads: MaybeInt = None, q_num_heads: MaybeInt = None, qk_matmul_output_mode: int = 0,
    scale: MaybeFloat = None, softcap: float = 0.0, softmax_precision: MaybeInt = None, left_window_size: int = -1,
    right_window_size: int = -1,
) -> Result:  # fmt: skip
    query, key, value = in_heads(q, q_num_heads), in_heads(k, kv_num_heads), in_heads(v, kv_num_heads)
    past: Dimension = 0
    if past_key is not None and past_value is not None:
        past = past_key.shape[2]
        key, value = F.concat(past_key, key, dim=2), F.concat(past_value, value, dim=2)
    keys, t = key.shape[2], query.shape[2]
    offset: Any = None
    seen: Any = None
    if past != 0:
        offset = size_value(query, past)
    if lengths is not None:
        valid = F.reshape(cast(lengths, dtypes.int64), (lengths.shape[0], 1, 1, 1))
        if past_key is None:
            offset = F.sub(valid, size_value(query, t))
        seen = F.less(F.reshape(counting(query, keys), (1, 1, 1, keys)), valid)
    place = window(query, keys, offset, is_causal, left_window_size, right_window_size)
    seen = place if seen is None else seen if place is None else F.logical_and(seen, place)
    added: Any = None
    if mask is not None:
        mask = _mask_fitted(mask, keys)
        if mask.dtype is dtypes.bool_:
            seen = both(seen, mask)
        else:
            added = mask
    wants_scores = len(call.wanted) > 3 and call.wanted[3]
    if softcap == 0 and not wants_scores and query.dtype in dtypes.FLOATS:
        result = plain_attention(query, key, value, seen, added, scale)
        outputs: list[Any] = [_joined(cast(result, value.dtype), q), key, value]
        return tuple(outputs[: max(call.outputs, 1)]) if call.outputs > 1 else outputs[0]
    made = written_out(query, key, value, seen, added, scale, softcap, qk_matmul_output_mode, softmax_precision)
    outputs = [_joined(made[0], q), key, value, made[1]]
    return tuple(outputs[: call.outputs]) if call.outputs > 1 else outputs[0]


def plain_attention(q: Any, k: Any, v: Any, seen: Any, added: Any, scale: float | None) -> Any:
    mask = added
    if seen is not None:
        mask = seen if added is None else F.where(seen, added, number(added, -math.inf))
    if k.dtype is not q.dtype or v.dtype is not q.dtype:
        k, v = cast(k, q.dtype), cast(v, q.dtype)
    if mask is not None and mask.dtype not in (dtypes.bool_, q.dtype, dtypes.float32):
        mask = cast(mask, dtypes.float32 if q.dtype.bits < 64 else q.dtype)
    operands = (q, k, v) if mask is None else (q, k, v, mask)
    return F.scaled_dot_product_attention(*operands, scale=scale, causal=False, empty_rows="zero")


def repeated(x: Any, heads: Dimension) -> Any:
    """The heads of keys or values, one for each head of queries."""
    own = x.shape[1]
    times = dims.floordiv(heads, own)
    return x if times == 1 else fn.repeat_interleave(x, times, 1)


def written_out(
    q: Any, k: Any, v: Any, seen: Any, added: Any, scale: float | None, softcap: float, mode: int,
    precision: int | None,
) -> tuple[Any, Any]:  # fmt: skip
    """Attention step by step, and the scores at the step that `mode` names."""
    kind = q.dtype
    size = q.shape[-1]
    if scale is None:
        if not isinstance(size, int):
            raise Unsupported("the size of a head must be known, or the scale given")
        scale = 1 / math.sqrt(size)
    root = math.sqrt(scale)
    k, v = repeated(k, q.shape[1]), repeated(v, q.shape[1])
    scores: Any = F.matmul(F.mul(wide(q), root), F.mul(wide(k), root), transpose_b=True)
    steps = [scores]
    if softcap:
        scores = F.mul(F.tanh(F.mul(scores, 1 / softcap)), softcap)
    steps.append(scores)
    if added is not None:
        scores = F.add(scores, cast(added, scores.dtype))
    if seen is not None:
        scores = F.where(seen, scores, number(scores, -math.inf))
    steps.append(scores)
    soft = BY_CODE.get(precision or 0, scores.dtype)
    exact = cast(scores, soft) if soft is dtypes.float64 else scores
    top = F.reduce_max(exact, axes=(3,), keepdims=True)
    empty = F.equal(top, number(top, -math.inf))
    weights = F.where(empty, number(exact, 0), F.softmax(exact, axis=3))
    steps.append(weights)
    found = F.matmul(cast(weights, wide(v).dtype), wide(v))
    return cast(found, kind), cast(steps[mode], kind)


@onnx("FlexAttention", domain="ai.onnx.preview")
def flex_attention(
    call: Call, q: Tensor, k: Tensor, v: Tensor, *, scale: MaybeFloat = None, score_mod: MaybeGraph = None,
    prob_mod: MaybeGraph = None, softmax_precision: MaybeInt = None,
) -> Result:  # fmt: skip
    size = q.shape[-1]
    if not isinstance(size, int):
        raise Unsupported("the size of a head must be known")
    kind = dtypes.float64 if q.dtype is dtypes.float64 else dtypes.float32
    soft: DType = BY_CODE.get(softmax_precision or 0, kind)
    key, value = repeated(k, q.shape[1]), repeated(v, q.shape[1])
    scores = F.matmul(wide(q), wide(key), transpose_b=True)
    scores = cast(F.mul(scores, 1 / math.sqrt(size) if scale is None else scale), soft)
    if score_mod is not None:
        (scores,) = call.inline(score_mod, [scores])
    weights = F.softmax(scores, axis=3)
    if prob_mod is not None:
        (weights,) = call.inline(prob_mod, [weights])
    return cast(F.matmul(cast(weights, wide(value).dtype), wide(value)), q.dtype)


# --------------------------------------------------------------------------------------------- rotary embeddings


def rotated(x: Any, cos: Any, sin: Any, interleaved: bool, count: Dimension) -> Any:
    """x [N, T, H, D] with the first `count` of D elements rotated; cos and sin broadcast to [N, T, H, count / 2]."""
    width = x.shape[3]
    turned, kept = part(x, 3, 0, count), None
    if count != width:
        kept = part(x, 3, count, dims.add(width, dims.mul(count, -1)))
    half = dims.floordiv(count, 2)
    if interleaved:
        pairs = F.reshape(turned, (*x.shape[:3], half, 2))
        a, b = (F.reshape(part(pairs, 4, i, 1), (*x.shape[:3], half)) for i in (0, 1))
    else:
        a, b = part(turned, 3, 0, half), part(turned, 3, half, half)
    real, imaginary = F.sub(F.mul(cos, a), F.mul(sin, b)), F.add(F.mul(sin, a), F.mul(cos, b))
    if interleaved:
        whole = [F.reshape(p, (*x.shape[:3], half, 1)) for p in (real, imaginary)]
        found = F.reshape(F.concat(*whole, dim=4), turned.shape)
    else:
        found = F.concat(real, imaginary, dim=3)
    return found if kept is None else F.concat(found, kept, dim=3)


@onnx("RotaryEmbedding")
def rotary_embedding(
    x: Tensor, cos: Tensor, sin: Tensor, positions: MaybeTensor = None, *, interleaved: bool = False,
    num_heads: int = 0, rotary_embedding_dim: int = 0,
) -> Result:  # fmt: skip
    if len(x.shape) == 4:
        y = F.permute(x, (0, 2, 1, 3))
    else:
        n, t, width = x.shape
        y = F.reshape(x, (n, t, num_heads, dims.floordiv(width, num_heads)))
    if positions is not None:
        cos, sin = (F.take(table, cast(positions, dtypes.int64), axis=0) for table in (cos, sin))
    cos, sin = (F.reshape(v, (*v.shape[:2], 1, v.shape[2])) for v in (cos, sin))
    found = rotated(y, cos, sin, interleaved, rotary_embedding_dim or y.shape[3])
    return F.permute(found, (0, 2, 1, 3)) if len(x.shape) == 4 else F.reshape(found, x.shape)


# --------------------------------------------------------------------------------------- recurrences, convolutions


@onnx("LinearAttention", folds=False)
def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, past: MaybeTensor = None, decay: MaybeTensor = None, beta: MaybeTensor = None, *,
    q_num_heads: int, kv_num_heads: int, scale: float = 0.0, update_rule: str = "gated_delta", chunk_size: int = 64,
) -> Result:  # fmt: skip
    """One step of the state after the other, as the rule says."""
    if update_rule not in ("linear", "gated", "delta", "gated_delta"):
        raise Unsupported(f"the rule {update_rule:.40} is not known")
    gated, delta = "gated" in update_rule, "delta" in update_rule
    kind = q.dtype
    n, t = q.shape[:2]
    heads = [(q, q_num_heads), (k, kv_num_heads), (v, kv_num_heads)]
    query, key, value = (
        F.reshape(wide(x), (n, t, h, dims.floordiv(x.shape[2], h))) for x, h in heads
    )
    size, width = key.shape[3], value.shape[3]
    if not isinstance(size, int):
        raise Unsupported("the size of a head must be known")
    factor = scale or 1 / math.sqrt(size)
    state = F.expand(number(query, 0), (n, kv_num_heads, size, width)) if past is None else cast(past, query.dtype)
    scanned = [F.permute(x, (1, 0, 2, 3)) for x in (query, key, value)]
    if gated:
        if decay is None:
            raise Unsupported("the decay is missing")
        each = dims.floordiv(decay.shape[2], kv_num_heads)
        scanned.append(F.permute(F.reshape(cast(decay, query.dtype), (n, t, kv_num_heads, each)), (1, 0, 2, 3)))
    if delta:
        if beta is None:
            raise Unsupported("beta is missing")
        scanned.append(F.permute(F.reshape(cast(beta, query.dtype), (n, t, beta.shape[2], 1)), (1, 0, 2, 3)))
    group = q_num_heads // kv_num_heads

    def step(s: Any, *parts: Any) -> tuple[Any, Any]:
        now = list(parts)
        query_t, key_t, value_t = now[:3]
        rest = now[3:]
        if gated:
            s = F.mul(s, F.reshape(F.exp(rest.pop(0)), (n, kv_num_heads, each, 1)))
        column = F.reshape(key_t, (n, kv_num_heads, size, 1))
        if delta:
            known = F.reduce_sum(F.mul(s, column), axes=(2,), keepdims=False)
            value_t = F.mul(F.sub(value_t, known), rest.pop(0))
        s = F.add(s, F.mul(column, F.reshape(value_t, (n, kv_num_heads, 1, width))))
        row = F.reshape(query_t, (n, kv_num_heads, group, size))
        out = F.mul(F.matmul(row, s), factor)
        return s, F.reshape(out, (n, dims.mul(q_num_heads, width)))

    last, found = fn.scan(step, [state], scanned)
    return cast(F.permute(found, (1, 0, 2)), kind), cast(last, kind if past is None else past.dtype)


@onnx("CausalConvWithState")
def causal_conv_with_state(
    x: Tensor, weight: Tensor, bias: MaybeTensor = None, past: MaybeTensor = None, *, activation: str = "none"
) -> Result:
    taps = F.reshape(weight, (weight.shape[0], weight.shape[2]))
    if not isinstance(taps.shape[1], int):
        raise Unsupported("the kernel's size must be known")
    found = fn.causal_conv1d(x, taps, bias, past, None if activation == "none" else activation)
    return found[0], found[1]


