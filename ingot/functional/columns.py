"""Windows of images as columns, and columns added back into an image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ingot import dims
from ingot.errors import OpError
from ingot.functional.shape import pad
from ingot.functional.tensor import Tensor
from ingot.ir import F

MAX_PLACES = 1 << 24  # that col2im writes in one image


def im2col(
    x: Tensor, kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> Tensor:
    """Every window of x [N, C, *S], padded with zeros, as a column: [N, C · kernel, windows]; one number per dimension.

    Raises:
        OpError: numbers that do not fit.
    """
    rank = len(x.shape) - 2
    if any(len(given) != rank for given in (kernel, dilation, padding, stride)):
        raise OpError(f"im2col: kernel, dilation, padding and stride must have {rank} entries for {list(x.shape)}")
    n, channels = x.shape[:2]
    windows: Any = pad(x, [k for p in reversed(padding) for k in (p, p)]) if any(padding) else x
    for i in range(rank):
        extent = (kernel[i] - 1) * dilation[i] + 1
        windows = F.unfold(windows, axis=2 + i, size=extent, step=stride[i])
        if dilation[i] > 1:
            sizes = (*windows.shape[:-1], kernel[i])
            windows = F.slice(windows, (0,) * len(sizes), sizes, (*[1] * (len(sizes) - 1), dilation[i]))
    counts = windows.shape[2 : 2 + rank]
    order = (0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank))
    return F.reshape(F.permute(windows, order), (n, dims.mul(channels, *kernel), dims.mul(*counts)))


def col2im(
    x: Tensor, image: Sequence[int], kernel: Sequence[int], dilation: Sequence[int], before: Sequence[int],
    after: Sequence[int], stride: Sequence[int],
) -> Tensor:  # fmt: skip
    """Columns [N, C · kernel, windows] added back to where im2col would take them of an image: [N, C, *image].

    before, after: the padding of each dimension.

    Raises:
        OpError: another number of windows than such an image has.
    """
    rank = len(image)
    n, columns, blocks = x.shape
    positions, counts = math.prod(kernel), []
    places, inside = np.zeros((), np.int64), np.ones((), bool)
    for i, size in enumerate(image):
        count = (size + before[i] + after[i] - (dilation[i] * (kernel[i] - 1) + 1)) // stride[i] + 1
        if max(count, 1) * max(kernel[i], 1) * max(inside.size, 1) > MAX_PLACES:
            raise OpError(f"col2im: there are more than {MAX_PLACES:,} elements to be added")
        at = np.arange(kernel[i])[:, None] * dilation[i] + np.arange(count) * stride[i] - before[i]
        inside = inside[..., None, None] & ((at >= 0) & (at < size))
        places = places[..., None, None] * size + np.clip(at, 0, size - 1)
        counts.append(count)
    turn = (*range(0, 2 * rank, 2), *range(1, 2 * rank, 2))
    if math.prod(counts) != blocks:
        raise OpError(f"col2im: there are {blocks} blocks, and {math.prod(counts)} positions of one")
    whole = math.prod(image)
    flat = np.where(inside, places, whole).transpose(turn).reshape(-1)  # one more element takes what is outside
    channels = dims.floordiv(columns, positions)
    rows = dims.mul(n, channels)
    updates = F.reshape(x, (rows, positions * math.prod(counts)))
    index = F.expand(F.reshape(x.network.constant(flat), (1, flat.size)), updates.shape)
    zeros = F.expand(x.network.constant(np.zeros((), x.dtype.numpy)), (rows, whole + 1))
    summed = F.scatter(zeros, index, updates, axis=1, mode="add")
    return F.reshape(F.slice(summed, (0, 0), (rows, whole), (1, 1)), (n, channels, *image))
