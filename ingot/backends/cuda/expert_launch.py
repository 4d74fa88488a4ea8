"""Launches the kernels of a mixture of experts: which of them its rows and its weights take.

Few rows (`paired_rows`) read the weights of their own experts, pair by pair. Of more, pairs are sorted by expert on the
device, and those of each expert are products of the matrix units.
"""

from __future__ import annotations

from typing import Any

from ingot.backends.cuda.launch_shapes import UNIT, paired_rows, power
from ingot.backends.cuda.operands import Mixture, Weight

BESIDE = 8  # programs of different pairs that take the same outputs one after the other: weights are still in the cache
ROUNDED_PAIRS = 64  # of a program, from which on int4 times scales of float16 is rounded to that before it is summed


def run(launcher: Any, x: Any, router: Any, of: Mixture, out: Any) -> None:
    """out[T, hidden]: each row of x through the experts that its scores choose, router [T, experts] of float32.

    launcher: the `Launcher` of their device.
    """
    torch, rows, top = launcher.torch, len(x), of.top
    chosen = torch.empty((rows, top), dtype=torch.int32, device=x.device)
    shares = torch.empty((rows, top), dtype=torch.float32, device=x.device)
    launcher.expert_kernels.route[(rows,)](
        router, chosen, shares, of.experts, router.stride(0), TOP=top, TP=power(top), BE=power(of.experts),
        NORMALIZE=of.normalize, num_warps=1, **launcher.options,
    )  # fmt: skip
    if rows > min(map(paired_rows, of.weights)) or any(w.integers and w.inputs % UNIT for w in of.weights):
        parts = _sorted(launcher, x, chosen, of)
    else:
        between = torch.empty((rows * top, of.downs.inputs), dtype=x.dtype, device=x.device)
        parts = torch.empty((rows * top, x.shape[1]), dtype=torch.float32, device=x.device)
        _pairs(launcher, x, of.one(of.gated), of.gated, chosen, top, between)
        _pairs(launcher, between, of.one(of.downs), of.downs, chosen, 1, parts)
    hidden = int(out.shape[1])
    size = min(1024, power(hidden))
    launcher.expert_kernels.sum_pairs[(rows, -(-hidden // size))](
        parts, shares, out, hidden, out.stride(0), TOP=top, BN=size, num_warps=4, **launcher.options
    )


def _scales(x: Any, weight: Weight) -> list[Any]:
    """Its scales, x where it has none."""
    return [x if s is None else s for s in (weight.scales, weight.second_scales)]


def _pairs(launcher: Any, x: Any, one: Weight, whole: Weight, chosen: Any, top: int, out: Any) -> None:
    """out[pairs, n]: products of few pairs with their experts of `whole`, of which `one` is the first; pair p is of row
    p // top of x.
    """
    pairs, n, k = len(out), one.outputs, one.inputs
    if not whole.integers:
        block = launcher.shapes.expert_rows(one)
        launcher.expert_kernels.pair_rows[(pairs, -(-n // block.rows))](
            x, whole.first, whole.first if whole.second is None else whole.second, *_scales(x, whole), chosen, out, n,
            k, x.stride(0), TOP=top, BN=block.rows, BK=power(k), SCALED=whole.scales is not None,
            GATED=whole.second is not None, ACTIVATION=whole.acts, num_warps=block.warps, **launcher.options,
        )  # fmt: skip
        return
    block = launcher.shapes.integers(one, 1)
    programs = min(-(-n // block.rows), -(-launcher.shapes.multiprocessors * block.resident // pairs))
    words = [None if w is None else w.view(launcher.torch.int32) for w in (whole.first, whole.second)]
    line = whole.first.shape[1] // 16
    assert whole.zeros is None or block.chunks > 1 or line == 1  # see Block
    launcher.integer_kernels.product_integers[(programs, pairs)](
        x, x, chosen, whole.zeros, whole.second_zeros, words[0], x if words[1] is None else words[1],
        *_scales(x, whole), None, x, out, n, 0.0, 0.0, x.stride(0), 0, out.stride(0), ROWS=1, R=1, K=k, BN=block.rows,
        CHUNKS=block.chunks, PARTS=-(-line // block.chunks), HALF=whole.group // 2, TOP=top, NORM=0,
        PAIR=whole.second is not None, EXTRA=False, ACTIVATION=whole.acts, NATIVE=launcher.native,
        num_warps=block.warps, maxnreg=block.registers or None, **launcher.options,
    )  # fmt: skip


def _sorted(launcher: Any, x: Any, chosen: Any, of: Mixture) -> Any:
    """float32 [pairs, hidden]: every pair's part of its row, by products of the matrix units."""
    torch, device, pairs = launcher.torch, x.device, chosen.numel()
    order = torch.empty(pairs, dtype=torch.int32, device=device)
    starts = torch.empty(of.experts + 1, dtype=torch.int32, device=device)
    launcher.expert_kernels.order_pairs[(of.experts,)](
        chosen, order, starts, pairs, BP=1024, num_warps=4, **launcher.options
    )
    between = torch.empty((pairs, of.downs.inputs), dtype=x.dtype, device=device)
    parts = torch.empty((pairs, of.downs.outputs // of.experts), dtype=torch.float32, device=device)
    _tiles(launcher, x, of, of.gated, order, starts, of.top, between)
    _tiles(launcher, between, of, of.downs, order, starts, of.top, parts)
    return parts


def _high(pairs: int, experts: int) -> int:
    """Pairs of a program: half of what an expert has, for most have a few more or less."""
    return min(128, max(16, power(pairs // experts) // 2))


def _tiles(launcher: Any, x: Any, of: Mixture, weight: Weight, order: Any, starts: Any, top: int, out: Any) -> None:
    pairs, n = out.shape
    back, gated = None, weight.second is not None
    if weight.scales is not None and x.dtype == launcher.torch.bfloat16:
        made = launcher.as_rows(x, None, launcher.torch.float16)
        x, back = made.numbers, made.scales
    high, rounds = _high(pairs, of.experts), False
    if weight.group and high >= ROUNDED_PAIRS:
        rounds = x.dtype == weight.scales.dtype == launcher.torch.float16
        high = high if rounds else ROUNDED_PAIRS  # sums of groups take registers
    tile, step = launcher.shapes.expert_tile(of.one(weight), high, x.element_size())
    most = pairs // high + min(of.experts, pairs)  # each expert's last one may be short
    beside = most if most <= 2 * BESIDE else BESIDE
    launcher.expert_kernels.expert_tiles[(beside, -(-n // tile.outputs), -(-most // beside))](
        x, x if back is None else back, weight.first, weight.second if gated else weight.first, *_scales(x, weight),
        weight.zeros, weight.second_zeros, order, starts, out, of.experts, n, weight.inputs, x.stride(0), TOP=top,
        BE=power(of.experts), BM=high, BN=tile.outputs, BK=step, HALF=weight.group // 2, GATED=gated,
        SCALED=weight.scales is not None and not weight.group, ROUNDED=back is not None, ROUNDS=rounds,
        ACTIVATION=weight.acts,
        NATIVE=launcher.native, STAGES=tile.stages, num_warps=tile.warps, **launcher.options,
    )  # fmt: skip
