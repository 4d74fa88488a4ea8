"""How products end, in Triton: SwiGLU, residual or bias, and the parts of sums that several programs have (split-K)."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def swiglu(a, b):
    """silu(a) · b of float32."""
    return a / (1.0 + tl.exp(-a)) * b


@triton.jit
def finish(sums, others, extra, out, row, columns, mask, extra_stride, out_stride, PAIR: tl.constexpr,
           EXTRA: tl.constexpr):  # fmt: skip
    """Sums as the result: silu(a) · b of a pair, plus a residual row or a bias."""
    if PAIR:
        sums = swiglu(sums, others)
    if EXTRA:
        sums += tl.load(extra + row * extra_stride + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + columns, sums.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _home(partial, block, BN: tl.constexpr, BM: tl.constexpr, SPLITS: tl.constexpr):
    spot = tl.arange(0, BN)[:, None] * BM + tl.arange(0, BM)[None, :]
    return partial + block.to(tl.int64) * (2 * SPLITS * BN * BM) + spot


@triton.jit
def leave_part(sums, others, partial, arrived, block, split, SPLITS: tl.constexpr, PAIR: tl.constexpr):
    """Leaves one of the SPLITS parts of a block's sums [BN, BM] in `partial`, float32 [blocks, SPLITS, 2, BN, BM], and
    says whether it is the last one: `arrived`, int32 [blocks], counts them, and is zeros before and after.
    """
    tile: tl.constexpr = sums.shape[0] * sums.shape[1]
    home = _home(partial, block, sums.shape[0], sums.shape[1], SPLITS)
    tl.store(home + split * (2 * tile), sums)
    if PAIR:
        tl.store(home + split * (2 * tile) + tile, others)
    tl.debug_barrier()  # all threads have written before one counts
    last = tl.atomic_add(arrived + block, 1, sem="acq_rel") == SPLITS - 1
    if last:
        tl.store(arrived + block, 0)
    return last


@triton.jit
def all_parts(partial, block, BN: tl.constexpr, BM: tl.constexpr, SPLITS: tl.constexpr, PAIR: tl.constexpr):
    """The sums of the parts that programs have left, always in the same order."""
    tile: tl.constexpr = BN * BM
    home = _home(partial, block, BN, BM, SPLITS)
    sums = tl.load(home, cache_modifier=".cg")
    for i in tl.static_range(1, SPLITS):
        sums += tl.load(home + i * (2 * tile), cache_modifier=".cg")
    others = sums
    if PAIR:
        others = tl.load(home + tile, cache_modifier=".cg")
        for i in tl.static_range(1, SPLITS):
            others += tl.load(home + i * (2 * tile) + tile, cache_modifier=".cg")
    return sums, others
