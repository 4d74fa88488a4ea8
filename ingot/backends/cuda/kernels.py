"""The kernels of target cuda, in Triton. Imported only where Triton is; `launch` chooses their shapes.

With DEPENDENT a kernel is started while the one before it still runs (programmatic dependent launch): it loads weights,
which nobody writes, and then waits for all that was launched before it. Every program waits, also one with nothing to
do, for the next kernel counts on it.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def after_others(DEPENDENT: tl.constexpr):
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def _row(x, gain, row, stride, k, eps, shift, BK: tl.constexpr, NORM: tl.constexpr):
    """A row of x in float32, normalised if asked: rounded then, as the op alone would round it."""
    at = tl.arange(0, BK)
    found = tl.load(x + row * stride + at, mask=at < k, other=0.0)
    wide = found.to(tl.float32)
    if NORM:
        scale = 1.0 / tl.sqrt(tl.sum(wide * wide, axis=0) / k + eps)
        weight = tl.load(gain + at, mask=at < k, other=0.0).to(tl.float32) + shift
        wide = (wide * scale * weight).to(x.dtype.element_ty).to(tl.float32)
    return wide


@triton.jit
def _number(byte, OFFSET: tl.constexpr):
    """float32 of byte - OFFSET. The byte becomes the low bits of 2²³: a conversion takes four times as long."""
    return (byte.to(tl.uint8).to(tl.int32) | 0x4B000000).to(tl.float32, bitcast=True) - (8388608.0 + OFFSET)


@triton.jit
def _wide(weight, SCALED: tl.constexpr):
    """A weight in float32; int8 if it is scaled."""
    if SCALED:
        return _number(weight.to(tl.uint8, bitcast=True) ^ 128, 128)
    else:
        return weight.to(tl.float32)


@triton.jit
def _finish(sums, others, extra, out, row, columns, n, extra_stride, out_stride,
            PAIR: tl.constexpr, EXTRA: tl.constexpr):
    """Sums of a row as the result: silu(a) · b of a pair, plus a residual row or a bias."""
    if PAIR:
        sums = sums / (1.0 + tl.exp(-sums)) * others
    if EXTRA:
        sums += tl.load(extra + row * extra_stride + columns, mask=columns < n, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + columns, sums.to(out.dtype.element_ty), mask=columns < n)


@triton.jit
def product_rows(
    x, gain, weight, second, scales, second_scales, extra, out, n, k, eps, shift, x_stride, extra_stride, out_stride,
    ROWS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, NORM: tl.constexpr, PAIR: tl.constexpr,
    SCALED: tl.constexpr, EXTRA: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """out[ROWS, n] = norm(x)[ROWS, k] · weight[n, k]ᵀ and what follows it, for few rows.

    A program has BN rows of the weight, whole, in registers: all its loads are under way at once.
    """
    columns = tl.program_id(0) * BN + tl.arange(0, BN)
    at = tl.arange(0, BK)
    inside = (columns < n)[:, None] & (at < k)[None, :]
    where = columns.to(tl.int64)[:, None] * k + at[None, :]
    w = tl.load(weight + where, mask=inside, other=0, eviction_policy="evict_first")
    if PAIR:
        v = tl.load(second + where, mask=inside, other=0, eviction_policy="evict_first")
    after_others(DEPENDENT)
    for row in tl.static_range(ROWS):
        values = _row(x, gain, row, x_stride, k, eps, shift, BK, NORM)
        sums = tl.sum(_wide(w, SCALED) * values[None, :], axis=1)
        others = sums
        if PAIR:
            others = tl.sum(_wide(v, SCALED) * values[None, :], axis=1)
        if SCALED:
            sums *= tl.load(scales + columns, mask=columns < n, other=0.0)
            if PAIR:
                others *= tl.load(second_scales + columns, mask=columns < n, other=0.0)
        _finish(sums, others, extra, out, row, columns, n, extra_stride, out_stride, PAIR, EXTRA)


@triton.jit
def product_groups(
    x, gain, weight, second, scales, second_scales, extra, out, n, k, eps, shift, x_stride, extra_stride, out_stride,
    ROWS: tl.constexpr, BN: tl.constexpr, GROUPS: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr,
    PAIR: tl.constexpr, EXTRA: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """As product_rows, of weights in groups of 4 bits: uint8 [n, k / 2], scales float32 [n, groups].

    Byte j of a group holds its elements j and j + HALF, as q + 8 each; GROUPS is a power of two.
    """
    columns = tl.program_id(0) * BN + tl.arange(0, BN)
    group = tl.arange(0, GROUPS)
    j = tl.arange(0, HALF)
    count = k // (2 * HALF)
    known = (columns < n)[:, None] & (group < count)[None, :]
    where = columns.to(tl.int64)[:, None, None] * (k // 2) + group[None, :, None] * HALF + j[None, None, :]
    w = tl.load(weight + where, mask=known[:, :, None], other=0, eviction_policy="evict_first")
    scale_at = columns[:, None] * count + group[None, :]
    s = tl.load(scales + scale_at, mask=known, other=0.0)
    if PAIR:
        v = tl.load(second + where, mask=known[:, :, None], other=0, eviction_policy="evict_first")
        t = tl.load(second_scales + scale_at, mask=known, other=0.0)
    after_others(DEPENDENT)
    low_at = group[:, None] * (2 * HALF) + j[None, :]
    valid = (group < count)[:, None] & (j >= 0)[None, :]
    for row in tl.static_range(ROWS):
        low = tl.load(x + row * x_stride + low_at, mask=valid, other=0.0).to(tl.float32)
        high = tl.load(x + row * x_stride + low_at + HALF, mask=valid, other=0.0).to(tl.float32)
        if NORM:
            squares = tl.sum(tl.sum(low * low + high * high, axis=1), axis=0)
            scale = 1.0 / tl.sqrt(squares / k + eps)
            low *= scale * (tl.load(gain + low_at, mask=valid, other=0.0).to(tl.float32) + shift)
            high *= scale * (tl.load(gain + low_at + HALF, mask=valid, other=0.0).to(tl.float32) + shift)
            low = low.to(x.dtype.element_ty).to(tl.float32)
            high = high.to(x.dtype.element_ty).to(tl.float32)
        parts = _number(w & 15, 8) * low[None, :, :] + _number(w >> 4, 8) * high[None, :, :]
        sums = tl.sum(tl.sum(parts, axis=2) * s, axis=1)
        others = sums
        if PAIR:
            parts = _number(v & 15, 8) * low[None, :, :] + _number(v >> 4, 8) * high[None, :, :]
            others = tl.sum(tl.sum(parts, axis=2) * t, axis=1)
        _finish(sums, others, extra, out, row, columns, n, extra_stride, out_stride, PAIR, EXTRA)


@triton.jit
def product_tiles(
    x, weight, second, scales, second_scales, extra, out, rows, n, k, x_stride, extra_stride, out_stride,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PAIR: tl.constexpr, SCALED: tl.constexpr,
    EXTRA: tl.constexpr, STAGES: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """out[rows, n] = x[rows, k] · weight[n, k]ᵀ and what follows it, by the matrix units; rows up to BM."""
    columns = tl.program_id(0) * BN + tl.arange(0, BN)
    row = tl.arange(0, BM)
    after_others(DEPENDENT)
    sums = tl.zeros((BN, BM), tl.float32)
    others = tl.zeros((BN, BM), tl.float32)
    base = columns.to(tl.int64)[:, None] * k
    for start in tl.range(0, k, BK, num_stages=STAGES):
        at = start + tl.arange(0, BK)
        inside = (columns < n)[:, None] & (at < k)[None, :]
        values = tl.load(x + row[None, :] * x_stride + at[:, None], mask=(row < rows)[None, :] & (at < k)[:, None],
                         other=0.0)  # fmt: skip
        w = tl.load(weight + base + at[None, :], mask=inside, other=0, eviction_policy="evict_first")
        sums = tl.dot(w.to(values.dtype), values, sums, input_precision="ieee")
        if PAIR:
            v = tl.load(second + base + at[None, :], mask=inside, other=0, eviction_policy="evict_first")
            others = tl.dot(v.to(values.dtype), values, others, input_precision="ieee")
    if SCALED:
        sums *= tl.load(scales + columns, mask=columns < n, other=0.0)[:, None]
        if PAIR:
            others *= tl.load(second_scales + columns, mask=columns < n, other=0.0)[:, None]
    if PAIR:
        sums = sums / (1.0 + tl.exp(-sums)) * others
    written = (columns < n)[:, None] & (row < rows)[None, :]
    if EXTRA:
        sums += tl.load(extra + row[None, :] * extra_stride + columns[:, None], mask=written, other=0.0).to(tl.float32)
    tl.store(out + row[None, :] * out_stride + columns[:, None], sums.to(out.dtype.element_ty), mask=written)


@triton.jit
def rms_norm(x, gain, out, k, eps, shift, x_stride, out_stride, BK: tl.constexpr, DEPENDENT: tl.constexpr):
    """Each row of x, normalised; a program has one row."""
    after_others(DEPENDENT)
    row = tl.program_id(0)
    at = tl.arange(0, BK)
    values = _row(x, gain, row, x_stride, k, eps, shift, BK, True)
    tl.store(out + row * out_stride + at, values.to(out.dtype.element_ty), mask=at < k)


@triton.jit
def _rotated(x, cos, sin, token, at, R: tl.constexpr, HALVES: tl.constexpr):
    """The elements `at` of heads at pointers x, rotated by their token's angles and rounded; [.., D]."""
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
def decode_attention(
    q, key, value, cos, sin, slot, state, context_len, block_table, partial, maxima, weights,
    scale, q_stride, k_stride, v_stride, columns, slots, block_stride,
    HEADS: tl.constexpr, KV: tl.constexpr, D: tl.constexpr, R: tl.constexpr, HALVES: tl.constexpr,
    BLOCK: tl.constexpr, BT: tl.constexpr, GM: tl.constexpr, SPLITS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One query row a request: rotates it and its key, writes key and value to the cache, and attends to one part of
    SPLITS of the context. state: [blocks, BLOCK, 2, KV, D]; partial: [B, HEADS, SPLITS, D]; maxima and weights: the
    same without D.

    The new key and value are used from registers; a request without context gives weights of 0.
    """
    after_others(DEPENDENT)
    token = tl.program_id(0)
    kv = tl.program_id(1)
    split = tl.program_id(2)
    GROUP: tl.constexpr = HEADS // KV
    context = tl.load(context_len + token)
    at = tl.arange(0, D)
    head = tl.arange(0, GM)
    used = head < GROUP
    pair, c, s = _rotated(q, cos, sin, token, at, R, HALVES)
    q_row = q + token * q_stride + (kv * GROUP + head)[:, None] * D
    queries = tl.load(q_row + at[None, :], mask=used[:, None], other=0.0).to(tl.float32) * c[None, :]
    queries += tl.load(q_row + pair[None, :], mask=used[:, None], other=0.0).to(tl.float32) * s[None, :]
    element = state.dtype.element_ty
    queries = queries.to(element)
    k_row = key + token * k_stride + kv * D
    new_key = (tl.load(k_row + at).to(tl.float32) * c + tl.load(k_row + pair).to(tl.float32) * s).to(element)
    new_value = tl.load(value + token * v_stride + kv * D + at).to(element)

    each = tl.cdiv(tl.cdiv(context, BT), SPLITS) * BT
    first = split * each
    last = tl.minimum(first + each, context)
    to = tl.load(slot + token)
    if (context > 0) & (context - 1 >= first) & (context - 1 < last) & (to >= 0) & (to < slots):
        place = state + to.to(tl.int64) * (2 * KV * D) + kv * D + at
        tl.store(place, new_key)
        tl.store(place + KV * D, new_value)

    top = tl.full((GM,), float("-inf"), tl.float32)
    total = tl.zeros((GM,), tl.float32)
    sums = tl.zeros((GM, D), tl.float32)
    for start in range(first, last, BT):
        position = start + tl.arange(0, BT)
        old = position < tl.minimum(last, context - 1)
        old &= position // BLOCK < columns
        block = tl.load(block_table + token * columns + position // BLOCK, mask=old, other=0)
        old &= (block >= 0) & (block < slots // BLOCK)  # the host tells of others, and nothing is read for them
        row = block.to(tl.int64) * block_stride + (position % BLOCK) * (2 * KV * D) + kv * D
        keys = tl.load(state + row[:, None] + at[None, :], mask=old[:, None], other=0.0)
        values = tl.load(state + row[:, None] + KV * D + at[None, :], mask=old[:, None], other=0.0)
        new = (position == context - 1)[:, None]
        keys = tl.where(new, new_key[None, :], keys)
        values = tl.where(new, new_value[None, :], values)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        scores = tl.where((position < last)[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, axis=1))
        share = tl.exp(scores - higher[:, None])
        shrink = tl.exp(top - higher)
        total = total * shrink + tl.sum(share, axis=1)
        sums = sums * shrink[:, None] + tl.dot(share.to(element), values, input_precision="ieee")
        top = higher
    line = (token * HEADS + kv * GROUP + head) * SPLITS + split
    tl.store(partial + line[:, None] * D + at[None, :], sums, mask=used[:, None])
    tl.store(maxima + line, top, mask=used)
    tl.store(weights + line, total, mask=used)


@triton.jit
def combine(partial, maxima, weights, out, out_stride, HEADS: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr,
            DEPENDENT: tl.constexpr):  # fmt: skip
    """The parts of each head's attention as one; zeros where there was no context."""
    after_others(DEPENDENT)
    token = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.arange(0, SPLITS)
    at = tl.arange(0, D)
    line = (token * HEADS + head) * SPLITS + split
    tops = tl.load(maxima + line)
    top = tl.max(tops, axis=0)
    share = tl.exp(tops - tl.where(top > float("-inf"), top, 0.0))
    total = tl.sum(tl.load(weights + line) * share, axis=0)
    sums = tl.sum(tl.load(partial + line[:, None] * D + at[None, :]) * share[:, None], axis=0)
    found = sums / tl.where(total > 0, total, 1.0)
    tl.store(out + token * out_stride + head * D + at, found.to(out.dtype.element_ty))
