"""Mixtures of experts, in Triton: what a row's router chooses, and products with the weights of these experts alone.

A *pair* is a row and one of its experts; pair p is of row p // TOP. Few rows read the weights of each pair. Of more,
pairs are sorted by expert, and a program has up to BM pairs of one expert: how many programs there are at most is known
without asking the device, and those that are left over have nothing to do. The weights of all experts lie one behind
the other.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ingot.backends.cuda.dependent_launch import after_others
from ingot.backends.cuda.epilogue import activated


@triton.jit
def route(
    router, chosen, shares, experts, stride, TOP: tl.constexpr, TP: tl.constexpr, BE: tl.constexpr,
    NORMALIZE: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """chosen, shares [rows, TOP]: of a row's scores the highest, the first one of equal ones, and their softmax; of the
    chosen ones alone if NORMALIZE. A program has one row.
    """
    after_others(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, BE)
    scores = tl.load(router + row * stride + e, mask=e < experts, other=float("-inf"))
    p = tl.exp(scores - tl.max(scores, axis=0))
    total = tl.sum(p, axis=0)
    left = tl.where(e < experts, p, -1.0)
    at = tl.arange(0, TP)
    numbers = at * 0
    found = tl.zeros((TP,), tl.float32)
    for i in tl.static_range(TOP):
        most = tl.max(left, axis=0)
        number = tl.minimum(tl.min(tl.where(left == most, e, BE), axis=0), experts - 1)  # without a number the last one
        numbers = tl.where(at == i, number, numbers)
        found = tl.where(at == i, most, found)
        left = tl.where(e == number, -1.0, left)
    by = total
    if NORMALIZE:
        by = tl.where(total == total, tl.sum(found, axis=0), total)
    tl.store(chosen + row * TOP + at, numbers, mask=at < TOP)
    tl.store(shares + row * TOP + at, found / by, mask=at < TOP)


@triton.jit
def _rows_of(weight, first, column, n, k, BN: tl.constexpr, BK: tl.constexpr):
    """Rows [BN, BK] of a weight of an expert, whose rows begin at `first`."""
    at = tl.arange(0, BK)
    where = (first + column).to(tl.int64)[:, None] * k + at[None, :]
    return tl.load(weight + where, mask=(column < n)[:, None] & (at < k)[None, :], other=0.0)


@triton.jit
def gated_rows(
    x, gates, ups, chosen, out, n, k, x_stride, TOP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    ACTIVATION: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """out[pairs, n] = act(x · gateᵀ) · (x · upᵀ) of each pair's row and expert; a program has BN outputs of a pair."""
    after_others(DEPENDENT)
    pair = tl.program_id(0)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    at = tl.arange(0, BK)
    first = tl.load(chosen + pair) * n
    gate = _rows_of(gates, first, column, n, k, BN, BK)
    up = _rows_of(ups, first, column, n, k, BN, BK)
    values = tl.load(x + (pair // TOP).to(tl.int64) * x_stride + at, mask=at < k, other=0.0).to(tl.float32)[None, :]
    a = tl.sum(gate.to(tl.float32) * values, axis=1)
    b = tl.sum(up.to(tl.float32) * values, axis=1)
    found = activated(a, ACTIVATION) * b
    tl.store(out + pair.to(tl.int64) * n + column, found.to(out.dtype.element_ty), mask=column < n)


@triton.jit
def mixed_rows(
    hidden, downs, chosen, shares, out, n, k, out_stride, TOP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """out[rows, n] = Σ share · hidden · downᵀ over a row's pairs; a program has BN outputs of one row."""
    after_others(DEPENDENT)
    row = tl.program_id(0)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    at = tl.arange(0, BK)
    total = tl.zeros((BN,), tl.float32)
    for i in tl.static_range(TOP):
        pair = row * TOP + i
        down = _rows_of(downs, tl.load(chosen + pair) * n, column, n, k, BN, BK)
        values = tl.load(hidden + pair.to(tl.int64) * k + at, mask=at < k, other=0.0).to(tl.float32)
        total += tl.sum(down.to(tl.float32) * values[None, :], axis=1) * tl.load(shares + pair)
    place = out + row.to(tl.int64) * out_stride + column
    tl.store(place, total.to(out.dtype.element_ty), mask=column < n)


@triton.jit(do_not_specialize=["pairs"])
def order_pairs(chosen, order, starts, pairs, BP: tl.constexpr, DEPENDENT: tl.constexpr):
    """order[pairs]: the pairs by expert, those of one in their order; starts[experts + 1]: where each expert's begin. A
    program has one expert.
    """
    after_others(DEPENDENT)
    expert = tl.program_id(0)
    i = tl.arange(0, BP)
    less = tl.zeros((BP,), tl.int32)
    for start in range(0, pairs, BP):
        found = tl.load(chosen + start + i, mask=start + i < pairs, other=2147483647)
        less += (found < expert).to(tl.int32)
    at = tl.sum(less, axis=0)
    tl.store(starts + expert, at)
    for start in range(0, pairs, BP):
        found = tl.load(chosen + start + i, mask=start + i < pairs, other=-1)
        mine = (found == expert).to(tl.int32)
        tl.store(order + at + tl.cumsum(mine, axis=0) - mine, start + i, mask=mine == 1)
        at += tl.sum(mine, axis=0)
    if expert == tl.num_programs(0) - 1:
        tl.store(starts + expert + 1, at)


@triton.jit
def _pairs_of(starts, number, experts, BE: tl.constexpr, BM: tl.constexpr):
    """Of a program's number its expert, `experts` if it has nothing to do, the first of its pairs in order, and where
    its expert's end.
    """
    e = tl.arange(0, BE)
    begin = tl.load(starts + e, mask=e < experts, other=0)
    end = tl.load(starts + e + 1, mask=e < experts, other=0)
    tiles = tl.where(e < experts, tl.cdiv(end - begin, BM), 0)
    until = tl.cumsum(tiles, axis=0)
    expert = tl.sum(((until <= number) & (e < experts)).to(tl.int32), axis=0)
    mine = e == expert
    first = tl.sum(tl.where(mine, begin + (number - until + tiles) * BM, 0), axis=0)
    return expert, first, tl.sum(tl.where(mine, end, 0), axis=0)


@triton.jit
def expert_tiles(
    x, weight, second, order, starts, shares, out, experts, n, k, x_stride, TOP: tl.constexpr, BE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GATED: tl.constexpr, ACTIVATION: tl.constexpr,
    STAGES: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Products of pairs by the matrix units. GATED: out[i, n] = act(x · weightᵀ) · (x · secondᵀ) of the i-th pair in
    order, x being the rows. Else out[pair, n] = share · x · weightᵀ, the i-th row of x being that of the i-th pair.
    """
    after_others(DEPENDENT)
    expert, first, end = _pairs_of(starts, tl.program_id(1), experts, BE, BM)
    place = first + tl.arange(0, BM)
    known = (place < end) & (expert < experts)
    pair = tl.load(order + place, mask=known, other=0)
    row = place
    if GATED:
        row = pair // TOP
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    base = (expert * n + column).to(tl.int64)[:, None] * k
    sums = tl.zeros((BN, BM), tl.float32)
    others = tl.zeros((BN, BM), tl.float32)
    for start in tl.range(0, tl.where(expert < experts, k, 0), BK, num_stages=STAGES):
        at = start + tl.arange(0, BK)
        inside = (column < n)[:, None] & (at < k)[None, :]
        values = tl.load(x + row.to(tl.int64)[None, :] * x_stride + at[:, None],
                         mask=known[None, :] & (at < k)[:, None], other=0.0)  # fmt: skip
        w = tl.load(weight + base + at[None, :], mask=inside, other=0.0)
        sums = tl.dot(w, values, sums, input_precision="ieee")
        if GATED:
            v = tl.load(second + base + at[None, :], mask=inside, other=0.0)
            others = tl.dot(v, values, others, input_precision="ieee")
    written = (column < n)[:, None] & known[None, :]
    if GATED:
        sums = activated(sums, ACTIVATION) * others
        line = place
    else:
        sums *= tl.load(shares + pair, mask=known, other=0.0)[None, :]
        line = pair
    tl.store(out + line.to(tl.int64)[None, :] * n + column[:, None], sums.to(out.dtype.element_ty), mask=written)


@triton.jit
def sum_pairs(parts, out, n, out_stride, TOP: tl.constexpr, BN: tl.constexpr, DEPENDENT: tl.constexpr):
    """out[rows, n]: the sums of each row's pairs, in their order."""
    after_others(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BN,), tl.float32)
    for i in tl.static_range(TOP):
        total += tl.load(parts + (row * TOP + i) * n + column, mask=column < n, other=0.0)
    tl.store(out + row * out_stride + column, total.to(out.dtype.element_ty), mask=column < n)
