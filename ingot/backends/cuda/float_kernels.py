"""Products with weights of floats, of 16 and 32 bits or float8 with scales, in Triton: of few rows, and by the matrix
units of more. `product_tiles` takes int8 with scales too, as floats.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ingot.backends.cuda.dependent_launch import after_others
from ingot.backends.cuda.epilogue import all_parts, finish, leave_part
from ingot.backends.cuda.row_kernels import rounded_row


@triton.jit
def _lines_of(weight, block, n, k, BN: tl.constexpr, BK: tl.constexpr):
    """Rows [BN, BK] of a block of a weight of floats."""
    columns = block * BN + tl.arange(0, BN)
    at = tl.arange(0, BK)
    inside = (columns < n)[:, None] & (at < k)[None, :]
    where = columns.to(tl.int64)[:, None] * k + at[None, :]
    return tl.load(weight + where, mask=inside, other=0.0, eviction_policy="evict_first")


@triton.jit
def _scales_of(scales, block, n, BN: tl.constexpr, SCALED: tl.constexpr):
    """The scales [BN] of a block of a weight of floats of 8 bits; of others none."""
    columns = block * BN + tl.arange(0, BN)
    found = columns
    if SCALED:
        found = tl.load(scales + columns, mask=columns < n, other=0.0)
    return found


@triton.jit
def _multiply(
    w, v, s, t, values, bias, extra, out, row, block, n, extra_stride, out_stride, BN: tl.constexpr,
    PAIR: tl.constexpr, EXTRA: tl.constexpr, ACTIVATION: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """The results of a row of x and a block of rows of a weight, or of two."""
    columns = block * BN + tl.arange(0, BN)
    sums = tl.sum(w.to(tl.float32) * values[None, :], axis=1)
    if SCALED:
        sums *= s
    others = sums
    if PAIR:
        others = tl.sum(v.to(tl.float32) * values[None, :], axis=1)
        if SCALED:
            others *= t
    finish(sums, others, bias, extra, out, row, columns, columns < n, extra_stride, out_stride, PAIR, EXTRA, ACTIVATION)


@triton.jit
def product_rows(
    x, gain, beta, weight, second, scales, second_scales, bias, extra, out, n, k, eps, shift, x_stride, extra_stride,
    out_stride, ROWS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, NORM: tl.constexpr, PAIR: tl.constexpr,
    EXTRA: tl.constexpr, ACTIVATION: tl.constexpr, SCALED: tl.constexpr, ROUNDS: tl.constexpr, NATIVE: tl.constexpr,
    STAYS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """out[ROWS, n] = norm(x)[ROWS, k] · weight[n, k]ᵀ and what follows it, for few rows.

    The weight holds floats, those of 8 bits with a scale an output (SCALED). ROUNDS: rows of x are rounded to float8,
    each with a scale of its own. A program has BN rows of the weight, whole, in registers: all its loads are under way
    at once. If it STAYS, for one row of x and no pair, it has every so manieth block of BN rows: it loads the next one
    while it sums one, and normalises x once.
    """
    first = tl.program_id(0)
    w = _lines_of(weight, first, n, k, BN, BK)
    s = _scales_of(scales, first, n, BN, SCALED)
    v, t = w, s
    if PAIR:
        v = _lines_of(second, first, n, k, BN, BK)
        t = _scales_of(second_scales, first, n, BN, SCALED)
    after_others(DEPENDENT)
    if STAYS:
        values = rounded_row(x, gain, beta, 0, x_stride, k, eps, shift, BK, NORM, ROUNDS, NATIVE)
        step = tl.num_programs(0)
        for block in range(first, tl.cdiv(n, BN), step):
            w_next = _lines_of(weight, block + step, n, k, BN, BK)
            s_next = _scales_of(scales, block + step, n, BN, SCALED)
            _multiply(w, w, s, s, values, bias, extra, out, 0, block, n, extra_stride, out_stride, BN, False, EXTRA,
                      ACTIVATION, SCALED)  # fmt: skip
            w, s = w_next, s_next
    else:
        for row in tl.static_range(ROWS):
            values = rounded_row(x, gain, beta, row, x_stride, k, eps, shift, BK, NORM, ROUNDS, NATIVE)
            _multiply(w, v, s, t, values, bias, extra, out, row, first, n, extra_stride, out_stride, BN, PAIR, EXTRA,
                      ACTIVATION, SCALED)  # fmt: skip


@triton.jit
def _finish_tile(
    sums, others, back, scales, second_scales, bias, extra, out, row, columns, rows, n, extra_stride, out_stride,
    PAIR: tl.constexpr, SCALED: tl.constexpr, ROUNDED: tl.constexpr, EXTRA: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Sums [BN, BM] as results, with the scales of the weight and of the rows."""
    if SCALED:
        sums *= tl.load(scales + columns, mask=columns < n, other=0.0)[:, None]
        if PAIR:
            others *= tl.load(second_scales + columns, mask=columns < n, other=0.0)[:, None]
    if ROUNDED:
        factor = tl.load(back + row, mask=row < rows, other=0.0)[None, :]
        sums *= factor
        others *= factor
    written = (columns < n)[:, None] & (row < rows)[None, :]
    finish(sums, others, bias, extra, out, row.to(tl.int64)[None, :], columns[:, None], written, extra_stride,
           out_stride, PAIR, EXTRA, ACTIVATION)  # fmt: skip


@triton.jit(do_not_specialize=["rows"])
def product_tiles(
    x, back, weight, second, scales, second_scales, bias, extra, out, partial, arrived, rows, n, k, x_stride,
    extra_stride, out_stride, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLITS: tl.constexpr,
    PAIR: tl.constexpr, SCALED: tl.constexpr, ROUNDED: tl.constexpr, EXTRA: tl.constexpr, ACTIVATION: tl.constexpr,
    STAGES: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """out[rows, n] = x[rows, k] · weight[n, k]ᵀ and what follows it, by the matrix units; BM rows a program.

    ROUNDED: rows of x have scales, back[rows]. A program has one of SPLITS parts of
    the inputs; with several all rows are in one program, and the last one to end finishes (`leave_part`).
    """
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    after_others(DEPENDENT)
    sums = tl.zeros((BN, BM), tl.float32)
    others = tl.zeros((BN, BM), tl.float32)
    base = columns.to(tl.int64)[:, None] * k
    split = tl.program_id(2)
    steps = tl.cdiv(k, BK)
    for start in tl.range(split * steps // SPLITS * BK, (split + 1) * steps // SPLITS * BK, BK, num_stages=STAGES):
        at = start + tl.arange(0, BK)
        inside = (columns < n)[:, None] & (at < k)[None, :]
        values = tl.load(x + row.to(tl.int64)[None, :] * x_stride + at[:, None],
                         mask=(row < rows)[None, :] & (at < k)[:, None], other=0.0)  # fmt: skip
        w = tl.load(weight + base + at[None, :], mask=inside, other=0.0, eviction_policy="evict_first")
        sums = tl.dot(w.to(values.dtype), values, sums, input_precision="ieee")
        if PAIR:
            v = tl.load(second + base + at[None, :], mask=inside, other=0.0, eviction_policy="evict_first")
            others = tl.dot(v.to(values.dtype), values, others, input_precision="ieee")
    if SPLITS == 1:
        _finish_tile(sums, others, back, scales, second_scales, bias, extra, out, row, columns, rows, n, extra_stride,
                     out_stride, PAIR, SCALED, ROUNDED, EXTRA, ACTIVATION)  # fmt: skip
    else:
        block = tl.program_id(1)
        if leave_part(sums, others, partial, arrived, block, split, SPLITS, PAIR):
            sums, others = all_parts(partial, block, BN, BM, SPLITS, PAIR)
            _finish_tile(sums, others, back, scales, second_scales, bias, extra, out, row, columns, rows, n,
                         extra_stride, out_stride, PAIR, SCALED, ROUNDED, EXTRA, ACTIVATION)  # fmt: skip
