"""Attention over a paged cache, in Triton: rotary embedding, writes to the cache, decoding and prefill.

Tiles have P elements of a head of D, the next power of two (`vector_kernels`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from ingot.backends.cuda.dependent_launch import after_others
from ingot.backends.cuda.vector_kernels import (
    float_in_cache,
    floats_of,
    halves,
    inside,
    lines_at,
    vector,
    whole_in_cache,
)


@triton.jit
def _rotated(cos, sin, token, at, R: tl.constexpr, HALVES: tl.constexpr):
    """Of the elements `at` of a head: with which each is paired, and what it and that one are multiplied with."""
    if HALVES:
        pair = tl.where(at < R, at + R, at - R)
        angle = tl.where(at < R, at, at - R)
        sign = tl.where(at < R, -1.0, 1.0)
    else:
        pair = at ^ 1
        angle = at // 2
        sign = tl.where(at % 2 == 0, -1.0, 1.0)
    turned = at < 2 * R
    pair = tl.where(turned, pair, at)
    c = tl.load(cos + token * R + angle, mask=turned, other=1.0)
    s = tl.load(sin + token * R + angle, mask=turned, other=0.0)
    return pair, c, s * sign


@triton.jit
def _capped(scores, softcap):
    """softcap · tanh(scores / softcap)."""
    return softcap * (1.0 - 2.0 / (tl.exp(2.0 * scores / softcap) + 1.0))


@triton.jit
def _cached(
    state, scales, block_table, token, kv, start, end, columns, slots, block_stride, KV: tl.constexpr, D: tl.constexpr,
    P: tl.constexpr, W: tl.constexpr, BLOCK: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """Keys and values [BT, P] of a request's positions from start on, zeros from end on; of 8 bits words [BT, P / 4].
    The scales [BT] of these and those if they are int8. A vector takes W elements.
    """
    # Of 8 bits, four are a word; what follows counts words.
    unit: tl.constexpr = 4 if state.dtype.element_ty.primitive_bitwidth == 8 else 1
    line: tl.constexpr = KV * W // unit
    memory = state
    if unit > 1:
        memory = state.to(tl.pointer_type(tl.int32), bitcast=True)
    position = start + tl.arange(0, BT)
    old = (position < end) & (position // BLOCK < columns)
    # The host tells of blocks that are none, and nothing is read for them.
    if BLOCK % BT == 0:  # all in one block: where it begins is one number for all
        block = tl.load(block_table + token * columns + tl.minimum(start // BLOCK, columns - 1))
        begins = block.to(tl.int64) * (block_stride // unit) + (start % BLOCK) * (2 * line) + kv * (W // unit)
        memory += begins
        scales += begins
        row = tl.arange(0, BT) * (2 * line)
    else:
        block = tl.load(block_table + token * columns + position // BLOCK, mask=old, other=0)
        row = block.to(tl.int64) * (block_stride // unit) + (position % BLOCK) * (2 * line) + kv * (W // unit)
    old &= (block >= 0) & (block < slots // BLOCK)
    at = tl.arange(0, P // unit)
    keys = lines_at(memory + row, at, old, D // unit)
    values = lines_at(memory + row + line, at, old, D // unit)
    key_scale, value_scale = row, row
    if W > D:
        key_scale = tl.load(scales + row + D // 4, mask=old, other=0.0)
        value_scale = tl.load(scales + row + line + D // 4, mask=old, other=0.0)
    return keys, values, key_scale, value_scale


@triton.jit
def _newest(
    q_row, k_row, v_row, cos, sin, state, token, at, used, D: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    ROPE: tl.constexpr, HALVES: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Of a request's new row the queries [GM, P], rotated, and key and value [P] as the cache holds them, with their
    scales if it is of int8.
    """
    element = q_row.dtype.element_ty
    queries = tl.load(q_row + at[None, :], mask=inside(used[:, None], at, D), other=0.0)
    key = vector(k_row, at, D)
    if ROPE:
        pair, c, s = _rotated(cos, sin, token, at, R, HALVES)
        turned = tl.load(q_row + pair[None, :], mask=inside(used[:, None], pair, D), other=0.0).to(tl.float32)
        queries = queries.to(tl.float32) * c[None, :] + turned * s[None, :]
        key = key.to(tl.float32) * c + vector(k_row, pair, D).to(tl.float32) * s
    key = key.to(element)
    value = vector(v_row, at, D)
    key_scale, value_scale = 1.0, 1.0
    if W > D:
        wide = value.to(tl.float32)
        key, key_scale = whole_in_cache(key.to(tl.float32), wide)
        value, value_scale = whole_in_cache(wide, wide)
    else:
        key = float_in_cache(key, state.dtype.element_ty, NATIVE)
        value = float_in_cache(value, state.dtype.element_ty, NATIVE)
    return queries.to(element), key, value, key_scale, value_scale


@triton.jit
def _write(
    state, scales, place, at, key, value, key_scale, value_scale, KV: tl.constexpr, D: tl.constexpr, W: tl.constexpr
):  # fmt: skip
    """Puts a key and a value into the cache, and their scales behind them if it is of int8."""
    if at.shape[0] > D:
        tl.store(state + place + at, key, mask=at < D)
        tl.store(state + place + KV * W + at, value, mask=at < D)
    else:
        tl.store(state + place + at, key)
        tl.store(state + place + KV * W + at, value)
    if W > D:
        tl.store(scales + (place + D) // 4, key_scale)
        tl.store(scales + (place + KV * W + D) // 4, value_scale)


@triton.jit
def _begun(
    queries, key, value, key_scale, value_scale, here, scale, softcap, D: tl.constexpr, W: tl.constexpr,
    SOFTCAP: tl.constexpr,
):  # fmt: skip
    """The largest score, weight and sum of queries over the newest key and value alone, if this program has it."""
    score = tl.sum(queries.to(tl.float32) * key.to(tl.float32)[None, :], axis=1) * scale
    value = value.to(tl.float32)
    if W > D:
        score *= key_scale
        value *= value_scale
    if SOFTCAP:
        score = _capped(score, softcap)
    total = tl.where(here, 1.0 + (score - score), 0.0)  # what is no number stays none
    return tl.where(here, score, float("-inf")), total, total[:, None] * tl.where(here, value, 0.0)[None, :]


@triton.jit
def _scored(
    queries, keys, key_scale, factor, slope, away, seen, softcap, window, D: tl.constexpr, W: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr,
):  # fmt: skip
    """The scores of queries over keys that are so far `away` from them; none where they are not `seen`."""
    scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * factor
    if W > D:
        scores *= key_scale[None, :]
    if ALIBI:
        scores += slope[:, None] * away[None, :].to(tl.float32)
    if SOFTCAP:
        scores = _capped(scores, softcap)
    if WINDOW:
        seen &= away > -window
    return tl.where(seen[None, :], scores, float("-inf"))


@triton.jit
def _more(
    queries, keys, values, key_scale, value_scale, top, total, sums, factor, slope, away, seen, softcap, window,
    D: tl.constexpr, W: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr,
    NARROW: tl.constexpr, SHARED: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """The largest score, weight and sum of queries, with those over a tile of cached keys and values. NARROW: these are
    words of 8 bits. SHARED: in which floats shares are multiplied with values."""
    if NARROW:
        keys = floats_of(keys, queries.dtype, W == D, NATIVE)
    scores = _scored(
        queries, keys, key_scale, factor, slope, away, seen, softcap, window, D, W, WINDOW, SOFTCAP, ALIBI
    )
    higher = tl.maximum(top, tl.max(scores, axis=1))
    base = tl.where(higher > float("-inf"), higher, 0.0)  # a window may begin behind all of these
    share = tl.exp(scores - base[:, None])
    shrink = tl.exp(top - base)
    total = total * shrink + tl.sum(share, axis=1)
    if W > D:
        share *= value_scale[None, :]
    if NARROW:
        values = floats_of(values, SHARED, W == D, NATIVE)
    sums = sums * shrink[:, None] + tl.dot(share.to(SHARED), values, input_precision="ieee")
    return higher, total, sums


@triton.jit
def _combine(
    partial, maxima, weights, out, token, kv, out_stride, HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr,
    P: tl.constexpr, GP: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """The parts of the attention of the heads that share keys as one; zeros where there was no context."""
    head = tl.arange(0, GP)
    used = head < GROUP
    at = tl.arange(0, P)
    line = (token * HEADS + kv * GROUP + head) * SPLITS
    parts = line[:, None] + tl.arange(0, SPLITS)[None, :]
    tops = tl.load(maxima + parts, mask=used[:, None], other=float("-inf"), cache_modifier=".cg")
    top = tl.max(tops, axis=1)
    base = tl.where(top > float("-inf"), top, 0.0)
    shares = tl.load(weights + parts, mask=used[:, None], other=0.0, cache_modifier=".cg")
    total = tl.sum(shares * tl.exp(tops - base[:, None]), axis=1)
    found = tl.zeros((GP, P), tl.float32)
    for i in tl.static_range(SPLITS):
        share = tl.exp(tl.load(maxima + line + i, mask=used, other=0.0, cache_modifier=".cg") - base)
        part = partial + (line + i)[:, None] * D + at[None, :]
        here = inside(used[:, None], at, D)
        found += tl.load(part, mask=here, other=0.0, cache_modifier=".cg") * share[:, None]
    found /= tl.where(total > 0, total, 1.0)[:, None]
    place = out + token * out_stride + (kv * GROUP + head)[:, None] * D + at[None, :]
    tl.store(place, found.to(out.dtype.element_ty), mask=inside(used[:, None], at, D))


@triton.jit
def _leave(
    sums, top, total, partial, maxima, weights, arrived, out, token, kv, split, out_stride, HEADS: tl.constexpr,
    KV: tl.constexpr, D: tl.constexpr, P: tl.constexpr, GP: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Writes a result, or one of SPLITS parts of it; whoever ends last combines these."""
    GROUP: tl.constexpr = HEADS // KV
    head = tl.arange(0, sums.shape[0])
    used = head < GROUP
    at = tl.arange(0, P)
    if SPLITS == 1:
        found = sums / tl.where(total > 0, total, 1.0)[:, None]
        place = out + token * out_stride + (kv * GROUP + head)[:, None] * D + at[None, :]
        tl.store(place, found.to(out.dtype.element_ty), mask=inside(used[:, None], at, D))
    else:
        line = (token * HEADS + kv * GROUP + head) * SPLITS
        tl.store(partial + (line + split)[:, None] * D + at[None, :], sums, mask=inside(used[:, None], at, D))
        tl.store(maxima + line + split, top, mask=used)
        tl.store(weights + line + split, total, mask=used)
        tl.debug_barrier()  # all threads have written before one counts
        if tl.atomic_add(arrived + token * KV + kv, 1, sem="acq_rel") == SPLITS - 1:
            tl.store(arrived + token * KV + kv, 0)
            _combine(partial, maxima, weights, out, token, kv, out_stride, HEADS, GROUP, D, P, GP, SPLITS)


@triton.jit(do_not_specialize=["columns", "slots"])
def decode_attention(
    q, key, value, cos, sin, slot, state, scales, context_len, block_table, slopes, partial, maxima, weights, arrived,
    out, scale, softcap, window, q_stride, k_stride, v_stride, out_stride, columns, slots, block_stride,
    HEADS: tl.constexpr, KV: tl.constexpr, D: tl.constexpr, P: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    ROPE: tl.constexpr, HALVES: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr,
    BLOCK: tl.constexpr, BT: tl.constexpr, GM: tl.constexpr, GP: tl.constexpr, SPLITS: tl.constexpr,
    NATIVE: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One query row a request: rotates it and its key, writes key and value to the cache, and attends to one part of
    SPLITS of the context. state: [blocks, BLOCK, 2, KV, W], floats of D = W elements, or int8 with a scale behind D
    of them; scales: the same memory as float32; partial: [B, HEADS, SPLITS, D]; maxima and weights: the same without D.

    The new key and value begin the sums; a request without context gives weights of 0. Of the programs of a request and
    a head of the cache the last to end combines the parts: `arrived`, int32 [B, KV], counts them, and is zeros before
    and after. What earlier steps have cached, and where, no kernel of this step writes: the first of it is on its way
    before others are waited for.
    """
    token = tl.program_id(0)
    kv = tl.program_id(1)
    split = tl.program_id(2)
    GROUP: tl.constexpr = HEADS // KV
    context = tl.load(context_len + token)
    begin = 0
    if WINDOW:
        begin = tl.maximum(context - window, 0) // BT * BT
    each = tl.cdiv(tl.cdiv(context - begin, BT), SPLITS) * BT
    first = begin + split * each
    last = tl.minimum(first + each, context)
    end = tl.minimum(last, context - 1)
    here = (context > 0) & (context - 1 >= first) & (context - 1 < last)
    keys, values, key_scale, value_scale = _cached(
        state, scales, block_table, token, kv, first, end, columns, slots, block_stride, KV, D, P, W, BLOCK, BT
    )
    after_others(DEPENDENT)
    at = tl.arange(0, P)
    head = tl.arange(0, GM)
    used = head < GROUP
    queries, new_key, new_value, new_key_scale, new_value_scale = _newest(
        q + token * q_stride + (kv * GROUP + head)[:, None] * D, key + token * k_stride + kv * D,
        value + token * v_stride + kv * D, cos, sin, state, token, at, used, D, W, R, ROPE, HALVES, NATIVE
    )  # fmt: skip
    to = tl.load(slot + token)
    if here & (to >= 0) & (to < slots):
        place = to.to(tl.int64) * (2 * KV * W) + kv * W
        _write(state, scales, place, at, new_key, new_value, new_key_scale, new_value_scale, KV, D, W)
    top, total, sums = _begun(
        queries, new_key, new_value, new_key_scale, new_value_scale, here, scale, softcap, D, W, SOFTCAP
    )
    factor = scale
    narrow: tl.constexpr = state.dtype.element_ty.primitive_bitwidth == 8
    if narrow and queries.dtype == tl.bfloat16:
        queries, back = halves(queries)
        factor = (back * scale)[:, None]
    # A scale of int8 may be any number: shares times it keep the range of bfloat16.
    shared: tl.constexpr = q.dtype.element_ty if W > D else queries.dtype
    slope = total
    if ALIBI:
        slope = tl.load(slopes + kv * GROUP + head, mask=used, other=0.0)
    for start in range(first, end, BT):
        position = start + tl.arange(0, BT)
        next_keys, next_values, next_key_scale, next_value_scale = _cached(
            state, scales, block_table, token, kv, start + BT, end, columns, slots, block_stride, KV, D, P, W, BLOCK, BT
        )
        top, total, sums = _more(
            queries, keys, values, key_scale, value_scale, top, total, sums, factor, slope, position - (context - 1),
            position < end, softcap, window, D, W, WINDOW, SOFTCAP, ALIBI, narrow, shared, NATIVE,
        )  # fmt: skip
        keys, values, key_scale, value_scale = next_keys, next_values, next_key_scale, next_value_scale
    _leave(
        sums, top, total, partial, maxima, weights, arrived, out, token, kv, split, out_stride, HEADS, KV, D, P, GP,
        SPLITS,
    )  # fmt: skip


@triton.jit(do_not_specialize=["slots"])
def rotate_write(
    q, key, value, cos, sin, slot, state, scales, out, q_stride, k_stride, v_stride, slots,
    HEADS: tl.constexpr, HB: tl.constexpr, KV: tl.constexpr, KB: tl.constexpr, D: tl.constexpr, P: tl.constexpr,
    W: tl.constexpr, R: tl.constexpr, ROPE: tl.constexpr, HALVES: tl.constexpr, NATIVE: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Rotates a token's queries into out [T, HEADS, D], rotates its keys, and writes them and its values to its slot.

    Without ROPE nothing is rotated and out is not written. A program has one token.
    """
    after_others(DEPENDENT)
    token = tl.program_id(0)
    at = tl.arange(0, P)[None, :]
    head = tl.arange(0, HB)[:, None]
    kv = tl.arange(0, KB)[:, None]
    to = tl.load(slot + token)
    written = inside((kv < KV) & (to >= 0) & (to < slots), tl.arange(0, P), D)
    mine = inside(kv < KV, tl.arange(0, P), D)
    k_row = key + token.to(tl.int64) * k_stride + kv * D
    keys = tl.load(k_row + at, mask=mine, other=0.0)
    if ROPE:
        pair, c, s = _rotated(cos, sin, token, tl.arange(0, P), R, HALVES)
        pair, c, s = pair[None, :], c[None, :], s[None, :]
        q_row = q + token.to(tl.int64) * q_stride + head * D
        used = inside(head < HEADS, tl.arange(0, P), D)
        queries = tl.load(q_row + at, mask=used, other=0.0).to(tl.float32) * c
        queries += tl.load(q_row + pair, mask=used, other=0.0).to(tl.float32) * s
        to_row = out + token.to(tl.int64) * (HEADS * D) + head * D
        tl.store(to_row + at, queries.to(out.dtype.element_ty), mask=used)
        keys = keys.to(tl.float32) * c + tl.load(k_row + pair, mask=mine, other=0.0).to(tl.float32) * s
    keys = keys.to(key.dtype.element_ty)
    values = tl.load(value + token.to(tl.int64) * v_stride + kv * D + at, mask=mine, other=0.0)
    place = to.to(tl.int64) * (2 * KV * W) + kv * W + at
    if W > D:
        keys, key_scale = whole_in_cache(keys.to(tl.float32), values.to(tl.float32))
        values, value_scale = whole_in_cache(values.to(tl.float32), values.to(tl.float32))
        head = tl.arange(0, KB)
        line = to.to(tl.int64) * (2 * KV * W) + head * W + D
        kept = (head < KV) & (to >= 0) & (to < slots)
        tl.store(scales + line // 4, key_scale, mask=kept)
        tl.store(scales + (line + KV * W) // 4, value_scale, mask=kept)
    else:
        keys = float_in_cache(keys, state.dtype.element_ty, NATIVE)
        values = float_in_cache(values, state.dtype.element_ty, NATIVE)
    tl.store(state + place, keys, mask=written)
    tl.store(state + place + KV * W, values, mask=written)


@triton.jit
def _attend(
    queries, top, total, sums, state, scales, table, slopes, scale, softcap, window, begin, end, at, position, kv,
    columns, blocks, block_stride, KV: tl.constexpr, D: tl.constexpr, W: tl.constexpr, WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr, ALIBI: tl.constexpr, BLOCK: tl.constexpr, BN: tl.constexpr, MASKED: tl.constexpr,
    STAGES: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """Goes on with attention of lines of queries, at these positions, over the keys from begin to end. scale: one, or
    one for EACH line.

    Scores are powers of two in `top` and in the sums: what the exponent is multiplied with is known before the loop.
    """
    plain: tl.constexpr = not (SOFTCAP or ALIBI)
    factor = scale * 1.4426950408889634 if plain else 1.4426950408889634
    times, across = scale, factor
    if EACH:
        times = scale[:, None]
        if plain:
            across = times * 1.4426950408889634
    for start in tl.range(begin, end, BN, num_stages=STAGES):
        where = start + tl.arange(0, BN)
        # The host tells of blocks that are none, and of tables too narrow; here they lead to no other memory.
        if BLOCK % BN == 0:  # all in one block
            block = tl.load(table + tl.minimum(start // BLOCK, columns - 1))
            block = tl.minimum(tl.maximum(block, 0), blocks - 1)
            begins = block.to(tl.int64) * block_stride + (start % BLOCK) * (2 * KV * W) + kv * W
            row = begins + tl.arange(0, BN) * (2 * KV * W)
        else:
            block = tl.load(table + tl.minimum(where // BLOCK, columns - 1))
            block = tl.minimum(tl.maximum(block, 0), blocks - 1)
            row = block.to(tl.int64) * block_stride + (where % BLOCK) * (2 * KV * W) + kv * W
        there = where < end if MASKED else None  # what lies behind the end may be no number
        keys = lines_at(state + row, at, there, D)
        values = lines_at(state + row + KV * W, at, there, D)
        scores = tl.dot(queries, tl.trans(keys.to(queries.dtype)), input_precision="ieee")
        if W > D:
            scores *= tl.load(scales + (row + D) // 4, mask=where < end, other=0.0)[None, :]
        if not plain:
            scores *= times
        away = where[None, :] - position[:, None]
        if ALIBI:
            scores += slopes[:, None] * away.to(tl.float32)
        if SOFTCAP:
            scores = _capped(scores, softcap)
        if MASKED:
            seen = (away <= 0) & (where < end)[None, :]
            if WINDOW:
                seen &= away > -window
            scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, axis=1) * factor)
        base = higher
        if MASKED:  # without a key that it sees a line has no largest score
            base = tl.where(higher > float("-inf"), higher, 0.0)
        share = tl.exp2(scores * across - base[:, None])
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(share, axis=1)
        sums = sums * shrink[:, None]
        if W > D:
            share *= tl.load(scales + (row + KV * W + D) // 4, mask=where < end, other=0.0)[None, :]
        sums = tl.dot(share.to(queries.dtype), values.to(queries.dtype), sums, input_precision="ieee")
        top = higher
    return top, total, sums


@triton.jit(do_not_specialize=["tokens", "columns", "blocks"])
def prefill_attention(
    q, state, scales, tiles, query_start, context_len, block_table, slopes, out, tokens, scale, softcap, window,
    q_stride, columns, blocks, block_stride, HEADS: tl.constexpr, KV: tl.constexpr, D: tl.constexpr, P: tl.constexpr,
    W: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr, BLOCK: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Attention of several rows a request over cached tokens, their own included, into out [T, HEADS, D].

    tiles: int32 [n, 2], a request and the first of its rows that a program has; −1 and 0 for one with nothing to do. A
    program has the BM // group next rows, and of these the query heads of one of the cache's heads, so that every key
    is read once for all of them.
    """
    after_others(DEPENDENT)
    tile = tl.program_id(0)
    kv = tl.program_id(1)
    GROUP: tl.constexpr = HEADS // KV
    ROWS: tl.constexpr = BM // GROUP
    request = tl.load(tiles + 2 * tile)
    first = tl.load(tiles + 2 * tile + 1)
    somebody = request >= 0
    begin = tl.load(query_start + request, mask=somebody, other=0)
    rows = tl.load(query_start + request + 1, mask=somebody, other=0) - begin
    context = tl.load(context_len + request, mask=somebody, other=0)
    line = tl.arange(0, BM)
    at = tl.arange(0, P)
    number = first + line // GROUP
    head = kv * GROUP + line % GROUP
    used = (line < ROWS * GROUP) & (number < rows) & (begin + number < tokens)
    token = (begin + number).to(tl.int64)
    here = inside(used[:, None], at, D)
    queries = tl.load(q + token[:, None] * q_stride + head[:, None] * D + at[None, :], mask=here, other=0.0)
    position = context - rows + number
    if ALIBI:
        slope = tl.load(slopes + head, mask=used, other=0.0)
    else:
        slope = position.to(tl.float32)
    each: tl.constexpr = state.dtype.element_ty == tl.float8e4nv and queries.dtype == tl.bfloat16
    if each:
        queries, back = halves(queries)
        scale = back * scale
    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    sums = tl.zeros((BM, P), tl.float32)
    table = block_table + request.to(tl.int64) * columns
    least = context - rows + first  # the first position: whatever lies before it all rows see
    end = tl.minimum(least + ROWS, context)
    whole = tl.maximum(least + 1, 0) // BN * BN
    low = 0
    if WINDOW:
        low = tl.maximum(least - window + 1, 0) // BN * BN
        whole = low
    top, total, sums = _attend(
        queries, top, total, sums, state, scales, table, slope, scale, softcap, window, low, whole, at, position, kv,
        columns, blocks, block_stride, KV, D, W, WINDOW, SOFTCAP, ALIBI, BLOCK, BN, False, STAGES, each,
    )  # fmt: skip
    top, total, sums = _attend(
        queries, top, total, sums, state, scales, table, slope, scale, softcap, window, whole, end, at, position, kv,
        columns, blocks, block_stride, KV, D, W, WINDOW, SOFTCAP, ALIBI, BLOCK, BN, True, STAGES, each,
    )  # fmt: skip
    found = sums / tl.where(total > 0, total, 1.0)[:, None]
    place = out + token[:, None] * (HEADS * D) + head[:, None] * D + at[None, :]
    tl.store(place, found.to(out.dtype.element_ty), mask=here)
