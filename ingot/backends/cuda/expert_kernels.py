"""Mixtures of experts, in Triton: what a row's router chooses, and products with the weights of these experts alone.

A *pair* is a row and one of its experts; pair p is of row p // TOP. Few rows read the weights of each pair: of floats
by `pair_rows`, of integers by `integer_kernels.product_integers`. Of more, pairs are sorted by expert, and a program
has up to BM pairs of one expert: how many programs there are at most is known without asking the device, and those that
are left over have nothing to do. The weights of all experts lie one behind the other.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ingot.backends.cuda.dependent_launch import after_others
from ingot.backends.cuda.epilogue import activated
from ingot.backends.cuda.widening_kernels import bytes_as, with_group


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
def pair_rows(
    x, weight, second, scales, second_scales, chosen, out, n, k, x_stride, TOP: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, SCALED: tl.constexpr, GATED: tl.constexpr, ACTIVATION: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """out[pairs, n] of each pair's row and expert, act(x · weightᵀ) · (x · secondᵀ) if GATED, else x · weightᵀ; pair p
    is of row p // TOP. A program has BN outputs of a pair.

    Weights hold floats, those of 8 bits with a scale an output (SCALED).
    """
    after_others(DEPENDENT)
    pair = tl.program_id(0)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    at = tl.arange(0, BK)
    first = tl.load(chosen + pair) * n
    w = _rows_of(weight, first, column, n, k, BN, BK)
    v = w
    if GATED:  # on its way before anything is summed
        v = _rows_of(second, first, column, n, k, BN, BK)
    values = tl.load(x + (pair // TOP).to(tl.int64) * x_stride + at, mask=at < k, other=0.0).to(tl.float32)[None, :]
    found = tl.sum(w.to(tl.float32) * values, axis=1)
    if SCALED:
        found *= tl.load(scales + first + column, mask=column < n, other=0.0)
    if GATED:
        up = tl.sum(v.to(tl.float32) * values, axis=1)
        if SCALED:
            up *= tl.load(second_scales + first + column, mask=column < n, other=0.0)
        found = activated(found, ACTIVATION) * up
    tl.store(out + pair.to(tl.int64) * n + column, found.to(out.dtype.element_ty), mask=column < n)


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
    x, back, weight, second, scales, second_scales, zeros, second_zeros, order, starts, out, experts, n, k, x_stride,
    TOP: tl.constexpr, BE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, HALF: tl.constexpr,
    GATED: tl.constexpr, SCALED: tl.constexpr, ROUNDED: tl.constexpr, ROUNDS: tl.constexpr, ACTIVATION: tl.constexpr,
    NATIVE: tl.constexpr, STAGES: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Products of pairs by the matrix units. GATED: out[i, n] = act(x · weightᵀ) · (x · secondᵀ) of the i-th pair in
    order, x being the rows. Else out[pair, n] = x · weightᵀ, the i-th row of x being that of the i-th pair.

    SCALED: weights hold int8 or floats of 8 bits, with a scale an output. HALF, if not 0: bytes of two integers as
    `operands.packed` lays them, in groups of 2 · HALF with a scale each, and a zero point if `zeros` is not None; a
    group is summed from zero, then scaled, or scaled first if it ROUNDS. ROUNDED: rows of x have scales, back.
    """
    after_others(DEPENDENT)
    number = tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)
    expert, first, end = _pairs_of(starts, number, experts, BE, BM)
    place = first + tl.arange(0, BM)
    known = (place < end) & (expert < experts)
    pair = tl.load(order + place, mask=known, other=0)
    row = place
    if GATED:
        row = pair // TOP
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    line = (expert * n + column).to(tl.int64)
    written = (column < n) & (expert < experts)
    source = x + row.to(tl.int64)[None, :] * x_stride
    sums = tl.zeros((BN, BM), tl.float32)
    others = tl.zeros((BN, BM), tl.float32)
    if HALF:
        j = tl.arange(0, HALF)
        count = k // (2 * HALF)
        at = line[:, None] * (k // 2) + j[None, :]
        for group in tl.range(0, tl.where(expert < experts, count, 0), num_stages=STAGES):
            here = source + (group * 2 * HALF + j)[:, None]
            low = tl.load(here, mask=known[None, :], other=0.0)
            high = tl.load(here + HALF, mask=known[None, :], other=0.0)
            w = tl.load(weight + at + group * HALF, mask=written[:, None], other=0)
            s = tl.load(scales + line * count + group, mask=written, other=0.0)
            z = s
            if zeros is not None:
                z = tl.load(zeros + line * count + group, mask=written, other=0)
            sums = with_group(sums, w, low, high, s, z, zeros is not None, ROUNDS, NATIVE)
            if GATED:
                w = tl.load(second + at + group * HALF, mask=written[:, None], other=0)
                s = tl.load(second_scales + line * count + group, mask=written, other=0.0)
                z = s
                if zeros is not None:
                    z = tl.load(second_zeros + line * count + group, mask=written, other=0)
                others = with_group(others, w, low, high, s, z, zeros is not None, ROUNDS, NATIVE)
    else:
        for start in tl.range(0, tl.where(expert < experts, k, 0), BK, num_stages=STAGES):
            at = start + tl.arange(0, BK)
            inside = written[:, None] & (at < k)[None, :]
            values = tl.load(source + at[:, None], mask=known[None, :] & (at < k)[:, None], other=0.0)
            w = tl.load(weight + line[:, None] * k + at[None, :], mask=inside, other=0.0)
            sums = tl.dot(bytes_as(w, values.dtype, NATIVE), values, sums, input_precision="ieee")
            if GATED:
                v = tl.load(second + line[:, None] * k + at[None, :], mask=inside, other=0.0)
                others = tl.dot(bytes_as(v, values.dtype, NATIVE), values, others, input_precision="ieee")
        if SCALED:
            sums *= tl.load(scales + line, mask=written, other=0.0)[:, None]
            if GATED:
                others *= tl.load(second_scales + line, mask=written, other=0.0)[:, None]
    if ROUNDED:
        factor = tl.load(back + row, mask=known, other=0.0)[None, :]
        sums *= factor
        others *= factor
    target = pair
    if GATED:
        sums = activated(sums, ACTIVATION) * others
        target = place
    tl.store(out + target.to(tl.int64)[None, :] * n + column[:, None], sums.to(out.dtype.element_ty),
             mask=written[:, None] & known[None, :])  # fmt: skip


@triton.jit
def sum_pairs(parts, shares, out, n, out_stride, TOP: tl.constexpr, BN: tl.constexpr, DEPENDENT: tl.constexpr):
    """out[rows, n]: the sums of each row's pairs, each times its share, in their order."""
    after_others(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BN,), tl.float32)
    for i in tl.static_range(TOP):
        pair = row * TOP + i
        total += tl.load(parts + pair * n + column, mask=column < n, other=0.0) * tl.load(shares + pair)
    tl.store(out + row * out_stride + column, total.to(out.dtype.element_ty), mask=column < n)
