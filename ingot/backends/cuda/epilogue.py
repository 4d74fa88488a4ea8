"""How products end, in Triton: bias, activation, gate and residual, and the parts of sums that several programs have
(split-K).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def activated(a, ACTIVATION: tl.constexpr):
    """An activation of float32, by the name that it has in `ops.mixture`; "" is none."""
    found = a
    if ACTIVATION == "silu":
        found = a / (1.0 + tl.exp(-a))
    elif ACTIVATION == "gelu":
        found = 0.5 * a * (1.0 + tl.erf(a * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":  # (1 + tanh(u)) / 2 is 1 / (1 + exp(-2u)), where nothing cancels
        found = a / (1.0 + tl.exp(-1.5957691216057308 * (a + 0.044715 * (a * a * a))))
    elif ACTIVATION == "relu":
        found = tl.maximum(a, 0.0, propagate_nan=tl.PropagateNan.ALL)
    else:
        tl.static_assert(ACTIVATION == "")
    return found


@triton.jit
def finish(sums, others, bias, extra, out, row, columns, mask, extra_stride, out_stride, PAIR: tl.constexpr,
           EXTRA: tl.constexpr, ACTIVATION: tl.constexpr):  # fmt: skip
    """Sums as the result: plus a bias if it is not None, activated, times the other sums of a pair, plus a residual row
    or a bias that nothing follows.
    """
    if bias is not None:
        sums += tl.load(bias + row * 0 + columns, mask=mask, other=0.0).to(tl.float32)
    sums = activated(sums, ACTIVATION)
    if PAIR:
        sums = sums * others
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


@triton.jit
def finish_split(
    sums, others, factor, partial, arrived, block, split, bias, extra, out, row, columns, mask, extra_stride,
    out_stride, SPLITS: tl.constexpr, PAIR: tl.constexpr, EXTRA: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """One of the SPLITS parts of a block's sums [BN, BM]: the last one finishes all of them, times `factor`."""
    if SPLITS == 1:
        finish(sums * factor, others * factor, bias, extra, out, row, columns, mask, extra_stride, out_stride, PAIR,
               EXTRA, ACTIVATION)  # fmt: skip
    else:
        if leave_part(sums, others, partial, arrived, block, split, SPLITS, PAIR):
            sums, others = all_parts(partial, block, sums.shape[0], sums.shape[1], SPLITS, PAIR)
            finish(sums * factor, others * factor, bias, extra, out, row, columns, mask, extra_stride, out_stride, PAIR,
                   EXTRA, ACTIVATION)  # fmt: skip
