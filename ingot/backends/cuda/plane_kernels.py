"""Products of some rows by weights of int8, and of float32 by int4, by the matrix units of integers, in Triton.

As in `integer_kernels` a row of x becomes integers of 22 bits and a sign, by a power of two, and these three signed
bytes: three planes, each a matrix of int8. The weight stays as it is stored on its way to the matrix units, int8 even
through shared memory, so what such a product takes is near what reading the weight takes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ingot.backends.cuda.dependent_launch import after_others
from ingot.backends.cuda.epilogue import finish_split
from ingot.backends.cuda.row_kernels import row_of


@triton.jit(do_not_specialize=["rows"])
def planes(
    x, gain, beta, out, back, rows, k, eps, shift, x_stride, BK: tl.constexpr, NORM: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """out[3, rows, k] int8: the bytes of each row of x, normalised if NORM, lowest first; back[rows], float32: what
    products with them are multiplied with. A program has one row.
    """
    after_others(DEPENDENT)
    row = tl.program_id(0)
    at = tl.arange(0, BK)
    values = row_of(x, gain, beta, row, x_stride, k, eps, shift, BK, NORM)
    # As integers magnitudes are ordered as they are, and infinities and NaNs are the largest.
    power = tl.max(values.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=0) & 0x7F800000
    power = tl.maximum(power, 0x0D800000).to(tl.float32, bitcast=True)  # 2⁻¹⁰⁰ of zeros
    whole = (values * (2097152.0 / power) + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000
    digits = (whole + 0x808080) ^ 0x808080
    for i in tl.static_range(3):
        tl.store(out + (i * rows + row) * k + at, (digits >> (8 * i)).to(tl.int8), mask=at < k)
    # Where an element is none or infinite, every result is no number.
    tl.store(back + row, tl.where(power < float("inf"), power * 4.76837158203125e-07, float("nan")))


@triton.jit
def nibbles(word, HIGH: tl.constexpr, NATIVE: tl.constexpr):
    """Of bytes the low or the high four bits less 8, int8."""
    if NATIVE:
        if HIGH:
            found = tl.inline_asm_elementwise(
                "{ .reg .b32 t; shr.u32 t, $1, 4; lop3.b32 t, t, 0x0F0F0F0F, 0x80808080, 0xEA; "
                "sub.s32 t, t, 0x08080808; xor.b32 $0, t, 0x80808080; }", "=r,r", [word], tl.int8, True, 4
            )  # fmt: skip
        else:
            found = tl.inline_asm_elementwise(
                "{ .reg .b32 t; lop3.b32 t, $1, 0x0F0F0F0F, 0x80808080, 0xEA; "
                "sub.s32 t, t, 0x08080808; xor.b32 $0, t, 0x80808080; }", "=r,r", [word], tl.int8, True, 4
            )  # fmt: skip
    else:
        found = ((word >> 4) if HIGH else (word & 15)).to(tl.int8) - 8
    return found


@triton.jit
def _dot(a, b, sums):
    return tl.dot(a, b, sums, out_dtype=tl.int32)


@triton.jit
def _whole8(low, middle, high):
    return (high.to(tl.float32) * 256.0 + middle.to(tl.float32)) * 256.0 + low.to(tl.float32)


@triton.jit
def _whole4(low, middle, high):
    """Of a group, whose sums are small."""
    return high.to(tl.float32) * 65536.0 + (low + (middle << 8)).to(tl.float32)


@triton.jit(do_not_specialize=["rows"])
def product_planes(
    x, back, weight, second, scales, second_scales, bias, extra, out, partial, arrived, rows, n, extra_stride,
    out_stride, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLITS: tl.constexpr,
    HALF: tl.constexpr, PAIR: tl.constexpr, EXTRA: tl.constexpr, ACTIVATION: tl.constexpr, NATIVE: tl.constexpr,
    STAGES: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """out[rows, n] = what x stands for [rows, K] · weight[n, K]ᵀ and what follows it. x, back: as `planes` gives them.

    weight: int8 [n, K], with a scale an output; or, where HALF is not 0, bytes of two as `operands.packed` lays them,
    in groups of BK = 2 · HALF with a scale each. A program has BN outputs of up to BM rows, and one of SPLITS parts of
    K, which is a multiple of BK. The last one of the programs of these outputs to end adds up what all have left
    (`finish_split`).
    """
    after_others(DEPENDENT)
    block = tl.program_id(0)
    split = tl.program_id(1)
    column = block * BN + tl.arange(0, BN)
    row = tl.arange(0, BM)
    steps: tl.constexpr = K // BK
    first = split * steps // SPLITS
    last = (split + 1) * steps // SPLITS
    plane = rows * K
    line = tl.minimum(column, n - 1).to(tl.int64)  # what is beside the weight is read, and not written
    side = tl.minimum(row, rows - 1) * K
    sums = tl.zeros((BN, BM), tl.float32)
    others = sums
    if HALF:
        j = tl.arange(0, HALF)
        place = (line * (K // 2))[:, None] + j[None, :]
        aside = x + side[None, :] + j[:, None]
        nothing = tl.zeros((BN, BM), tl.int32)
        for group in tl.range(first, last, num_stages=STAGES):
            w = tl.load(weight + place + group * HALF, eviction_policy="evict_first")
            s = tl.load(scales + line * steps + group)
            here = aside + group * BK
            a0, a1, a2 = tl.load(here), tl.load(here + plane), tl.load(here + 2 * plane)
            b0, b1, b2 = tl.load(here + HALF), tl.load(here + plane + HALF), tl.load(here + 2 * plane + HALF)
            q = nibbles(w, False, NATIVE)
            p = nibbles(w, True, NATIVE)
            low, middle, high = _dot(q, a0, nothing), _dot(q, a1, nothing), _dot(q, a2, nothing)
            low, middle, high = _dot(p, b0, low), _dot(p, b1, middle), _dot(p, b2, high)
            sums += _whole4(low, middle, high) * s.to(tl.float32)[:, None]
            if PAIR:
                w = tl.load(second + place + group * HALF, eviction_policy="evict_first")
                s = tl.load(second_scales + line * steps + group)
                q = nibbles(w, False, NATIVE)
                p = nibbles(w, True, NATIVE)
                low, middle, high = _dot(q, a0, nothing), _dot(q, a1, nothing), _dot(q, a2, nothing)
                low, middle, high = _dot(p, b0, low), _dot(p, b1, middle), _dot(p, b2, high)
                others += _whole4(low, middle, high) * s.to(tl.float32)[:, None]
    else:
        j = tl.arange(0, BK)
        place = (line * K)[:, None] + j[None, :]
        aside = x + side[None, :] + j[:, None]
        low = tl.zeros((BN, BM), tl.int32)
        middle, high, low2, middle2, high2 = low, low, low, low, low
        for step in tl.range(first, last, num_stages=STAGES):
            w = tl.load(weight + place + step * BK, eviction_policy="evict_first")
            here = aside + step * BK
            a0, a1, a2 = tl.load(here), tl.load(here + plane), tl.load(here + 2 * plane)
            low, middle, high = _dot(w, a0, low), _dot(w, a1, middle), _dot(w, a2, high)
            if PAIR:
                v = tl.load(second + place + step * BK, eviction_policy="evict_first")
                low2, middle2, high2 = _dot(v, a0, low2), _dot(v, a1, middle2), _dot(v, a2, high2)
        sums = _whole8(low, middle, high) * tl.load(scales + line)[:, None]
        if PAIR:
            others = _whole8(low2, middle2, high2) * tl.load(second_scales + line)[:, None]
    written = (column < n)[:, None] & (row < rows)[None, :]
    factor = tl.load(back + tl.minimum(row, rows - 1))[None, :]
    finish_split(sums, others, factor, partial, arrived, block, split, bias, extra, out, row[None, :], column[:, None],
                 written, extra_stride, out_stride, SPLITS, PAIR, EXTRA, ACTIVATION)  # fmt: skip
