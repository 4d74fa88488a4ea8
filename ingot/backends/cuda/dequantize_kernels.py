"""Stored weights as floats again, in Triton: a whole weight of int8, int4 or float8 for the library's product, and a
product of many rows that does so with int4 a group at a time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ingot.backends.cuda.dependent_launch import after_others
from ingot.backends.cuda.epilogue import finish


@triton.jit
def _number(byte, OFFSET: tl.constexpr):
    """float32 of byte - OFFSET. The byte becomes the low bits of 2²³: a conversion takes four times as long."""
    return (byte.to(tl.uint8).to(tl.int32) | 0x4B000000).to(tl.float32, bitcast=True) - (8388608.0 + OFFSET)


@triton.jit(do_not_specialize=["rows"])
def group_tiles(
    x, weight, second, scales, second_scales, bias, extra, out, rows, n, k, x_stride, extra_stride, out_stride,
    BM: tl.constexpr, BN: tl.constexpr, HALF: tl.constexpr, PAIR: tl.constexpr, EXTRA: tl.constexpr,
    ACTIVATION: tl.constexpr, STAGES: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """As product_tiles, of int4 as `operands.packed` lays it: a group is summed from zero, then scaled."""
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    after_others(DEPENDENT)
    sums = tl.zeros((BN, BM), tl.float32)
    others = tl.zeros((BN, BM), tl.float32)
    j = tl.arange(0, HALF)
    known = columns < n
    count = k // (2 * HALF)
    place = columns.to(tl.int64)[:, None] * (k // 2) + j[None, :]
    for group in tl.range(0, count, num_stages=STAGES):
        low_at = x + row.to(tl.int64)[None, :] * x_stride + (group * 2 * HALF + j)[:, None]
        low = tl.load(low_at, mask=(row < rows)[None, :], other=0.0)
        high = tl.load(low_at + HALF, mask=(row < rows)[None, :], other=0.0)
        w = tl.load(weight + place + group * HALF, mask=known[:, None], other=0)
        s = tl.load(scales + columns * count + group, mask=known, other=0.0)
        part = tl.dot(_number(w & 15, 8).to(low.dtype), low, input_precision="ieee")
        part = tl.dot(_number(w >> 4, 8).to(low.dtype), high, part, input_precision="ieee")
        sums += part * s.to(tl.float32)[:, None]
        if PAIR:
            v = tl.load(second + place + group * HALF, mask=known[:, None], other=0)
            t = tl.load(second_scales + columns * count + group, mask=known, other=0.0)
            part = tl.dot(_number(v & 15, 8).to(low.dtype), low, input_precision="ieee")
            part = tl.dot(_number(v >> 4, 8).to(low.dtype), high, part, input_precision="ieee")
            others += part * t.to(tl.float32)[:, None]
    written = known[:, None] & (row < rows)[None, :]
    finish(sums, others, bias, extra, out, row.to(tl.int64)[None, :], columns[:, None], written, extra_stride,
           out_stride, PAIR, EXTRA, ACTIVATION)  # fmt: skip


@triton.jit(do_not_specialize=["n"])
def expand_rows(
    weight, scales, out, n, k, BN: tl.constexpr, BK: tl.constexpr, FLOATS: tl.constexpr, DEPENDENT: tl.constexpr
):
    """out[n, k] = weight · scale of int8, or of FLOATS of 8 bits, a scale an output."""
    after_others(DEPENDENT)
    row = tl.program_id(0) * BN + tl.arange(0, BN)
    at = tl.program_id(1) * BK + tl.arange(0, BK)
    inside = (row < n)[:, None] & (at < k)[None, :]
    where = row.to(tl.int64)[:, None] * k + at[None, :]
    w = tl.load(weight + where, mask=inside, other=0.0)
    if FLOATS:
        w = w.to(tl.float32)
    else:
        w = _number(w.to(tl.uint8, bitcast=True) ^ 128, 128)
    found = w * tl.load(scales + row, mask=row < n, other=0.0)[:, None]
    tl.store(out + where, found.to(out.dtype.element_ty), mask=inside)


@triton.jit
def expand_groups(weight, scales, out, n, k, BN: tl.constexpr, HALF: tl.constexpr, DEPENDENT: tl.constexpr):
    """out[n, k] = weight · scale of int4 in groups, as `operands.packed` lays it; a program has one group of rows."""
    after_others(DEPENDENT)
    row = tl.program_id(0) * BN + tl.arange(0, BN)
    group = tl.program_id(1)
    j = tl.arange(0, HALF)
    known = (row < n)[:, None] & (j >= 0)[None, :]
    line = row.to(tl.int64)[:, None]
    w = tl.load(weight + line * (k // 2) + group * HALF + j[None, :], mask=known, other=0)
    s = tl.load(scales + row * (k // (2 * HALF)) + group, mask=row < n, other=0.0).to(tl.float32)[:, None]
    place = out + line * k + group * 2 * HALF + j[None, :]
    tl.store(place, (_number(w & 15, 8) * s).to(out.dtype.element_ty), mask=known)
    tl.store(place + HALF, (_number(w >> 4, 8) * s).to(out.dtype.element_ty), mask=known)
