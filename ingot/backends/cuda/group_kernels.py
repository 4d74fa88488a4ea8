"""Products of some rows by weights of int4 in groups, by the matrix units of float16, in Triton.

Rows are float16 by a power of two each (`row_kernels.half_rows`), so bfloat16 loses nothing down to 2⁻²⁶ of a row's
largest number; integers of 4 bits are float16 as they are. Products are exact, and sums of a group are float32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ingot.backends.cuda.dependent_launch import after_others
from ingot.backends.cuda.epilogue import finish_split
from ingot.backends.cuda.widening_kernels import with_group


@triton.jit(do_not_specialize=["rows"])
def product_groups(
    x, back, weight, second, scales, second_scales, bias, extra, out, partial, arrived, rows, n, extra_stride,
    out_stride, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, SPLITS: tl.constexpr, HALF: tl.constexpr,
    PAIR: tl.constexpr, EXTRA: tl.constexpr, ACTIVATION: tl.constexpr, NATIVE: tl.constexpr, STAGES: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """out[rows, n] = x[rows, K] · back[rows] · weight[n, K]ᵀ and what follows it.

    weight: bytes of two integers as `operands.packed` lays them, in groups of 2 · HALF with a scale each, which divide
    K. A program has BN outputs of up to BM rows, and one of SPLITS parts of the groups; the last one of these outputs
    to end adds up what all have left (`finish_split`).
    """
    after_others(DEPENDENT)
    block = tl.program_id(0)
    split = tl.program_id(1)
    column = block * BN + tl.arange(0, BN)
    row = tl.arange(0, BM)
    groups: tl.constexpr = K // (2 * HALF)
    j = tl.arange(0, HALF)
    line = tl.minimum(column, n - 1).to(tl.int64)  # what is beside the weight is read, and not written
    place = (line * (K // 2))[:, None] + j[None, :]
    aside = x + (row * K)[None, :] + j[:, None]
    there = (row < rows)[None, :]
    sums = tl.zeros((BN, BM), tl.float32)
    others = sums
    for group in tl.range(split * groups // SPLITS, (split + 1) * groups // SPLITS, num_stages=STAGES):
        w = tl.load(weight + place + group * HALF, eviction_policy="evict_first")
        s = tl.load(scales + line * groups + group)
        low = tl.load(aside + group * 2 * HALF, mask=there, other=0.0)
        high = tl.load(aside + group * 2 * HALF + HALF, mask=there, other=0.0)
        sums = with_group(sums, w, low, high, s, s, False, False, NATIVE)
        if PAIR:
            w = tl.load(second + place + group * HALF, eviction_policy="evict_first")
            s = tl.load(second_scales + line * groups + group)
            others = with_group(others, w, low, high, s, s, False, False, NATIVE)
    written = (column < n)[:, None] & there
    factor = tl.load(back + row, mask=row < rows, other=0.0)[None, :]
    finish_split(sums, others, factor, partial, arrived, block, split, bias, extra, out, row[None, :], column[:, None],
                 written, extra_stride, out_stride, SPLITS, PAIR, EXTRA, ACTIVATION)  # fmt: skip
