"""Triton kernels of nets beside the generated ones, over channels that lie last: pools, statistics of a group norm."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def channel_moments(x, means, squares, area, channels, ROWS: tl.constexpr, BC: tl.constexpr):
    """Of ROWS places of image n, x [N, area, channels]: the mean of each channel, and the squares' sum around it.

    means, squares: float32 [N, tiles, channels].
    """
    tile = tl.program_id(0)
    n = tl.program_id(1)
    tiles = tl.num_programs(0)
    row = tile * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BC)
    ok = (row < area)[:, None] & (column < channels)[None, :]
    base = x + n.to(tl.int64) * area * channels
    found = tl.load(base + row[:, None] * channels + column[None, :], mask=ok, other=0).to(tl.float32)
    count = tl.minimum(area - tile * ROWS, ROWS).to(tl.float32)
    mean = tl.sum(found, axis=0) / count
    apart = tl.where(ok, found - mean[None, :], 0.0)
    at = (n * tiles + tile) * channels + column
    tl.store(means + at, mean, mask=column < channels)
    tl.store(squares + at, tl.sum(apart * apart, axis=0), mask=column < channels)


@triton.jit
def group_factors(
    means, squares, bias, gain, offset, scale, shift, area, channels, tiles, eps, ROWS: tl.constexpr,
    INNER: tl.constexpr, BI: tl.constexpr, BT: tl.constexpr, TURNS: tl.constexpr, BIASED: tl.constexpr,
    GAIN: tl.constexpr, OFFSET: tl.constexpr,
):  # fmt: skip
    """scale and shift, float32 [N, channels], that normalise x in groups of INNER channels: x · scale + shift.

    bias: of each channel, what is still to be added to x.
    """
    n = tl.program_id(1)
    inner = tl.arange(0, BI)
    column = tl.program_id(0) * INNER + inner
    valid = inner < INNER
    added = tl.zeros([BI], dtype=tl.float32)
    if BIASED:
        added = tl.load(bias + column, mask=valid, other=0).to(tl.float32)
    total = tl.zeros([BT, BI], dtype=tl.float32)
    for turn in range(TURNS):
        tile = turn * BT + tl.arange(0, BT)
        ok = (tile < tiles)[:, None] & valid[None, :]
        count = tl.minimum(area - tile * ROWS, ROWS).to(tl.float32)
        at = (n * tiles + tile)[:, None] * channels + column[None, :]
        total += tl.where(ok, (tl.load(means + at, mask=ok, other=0) + added[None, :]) * count[:, None], 0.0)
    whole = (area * INNER).to(tl.float32)
    mean = tl.sum(tl.sum(total, axis=1), axis=0) / whole
    around = tl.zeros([BT, BI], dtype=tl.float32)
    for turn in range(TURNS):
        tile = turn * BT + tl.arange(0, BT)
        ok = (tile < tiles)[:, None] & valid[None, :]
        count = tl.minimum(area - tile * ROWS, ROWS).to(tl.float32)
        at = (n * tiles + tile)[:, None] * channels + column[None, :]
        apart = tl.load(means + at, mask=ok, other=0) + added[None, :] - mean
        around += tl.where(ok, tl.load(squares + at, mask=ok, other=0) + apart * apart * count[:, None], 0.0)
    factor = tl.zeros([BI], dtype=tl.float32) + 1.0 / tl.sqrt_rn(tl.sum(tl.sum(around, axis=1), axis=0) / whole + eps)
    if GAIN:
        factor = factor * tl.load(gain + column, mask=valid, other=0).to(tl.float32)
    moved = (added - mean) * factor
    if OFFSET:
        moved = moved + tl.load(offset + column, mask=valid, other=0).to(tl.float32)
    tl.store(scale + n * channels + column, factor, mask=valid)
    tl.store(shift + n * channels + column, moved, mask=valid)


@triton.jit(do_not_specialize=["n", "height", "width", "high", "wide", "sy", "sx", "py", "px", "dy", "dx"])
def pool(
    x, out, n, channels, height, width, high, wide, sy, sx, py, px, dy, dx, KH: tl.constexpr, KW: tl.constexpr,
    LARGEST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The largest element or the mean of each window of images x [N, height, width, channels], out [N, high, wide,
    channels] of n elements. Windows of means lie inside."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = at < n
    place = at // channels
    row = place // wide
    x0 = place % wide * sx - px
    y0 = row % high * sy - py
    image = row // high * height
    channel = at % channels
    found = tl.full((BLOCK,), float("-inf") if LARGEST else 0.0, tl.float32)
    for i in tl.static_range(KH * KW):
        y = y0 + i // KW * dy
        z = x0 + i % KW * dx
        there = ok & (y >= 0) & (y < height) & (z >= 0) & (z < width)
        one = tl.load(x + ((image + y) * width + z) * channels + channel, mask=there,
                      other=float("-inf") if LARGEST else 0.0).to(tl.float32)  # fmt: skip
        if LARGEST:
            found = tl.maximum(found, one, propagate_nan=tl.PropagateNan.ALL)
        else:
            found += one
    tl.store(out + at, found if LARGEST else found / (KH * KW), mask=ok)
