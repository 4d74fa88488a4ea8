"""What detectors do with boxes: the best of those that cover each other, regions of images, and convolutions whose taps
data moves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot.dims import Dimension, Expr
from ingot.errors import OpError
from ingot.functional.control import scan, while_loop
from ingot.functional.tensor import Tensor, size_tensor
from ingot.ir import F, Value

MAX_GRID = 1 << 20  # places along one side of a bin; a box that asks for more is beyond any image


def _number(size: Dimension, like: Any) -> Any:
    """A size as a tensor of like's type."""
    if not isinstance(size, Expr):
        return like.network.constant(np.array(size, like.dtype.numpy))
    return F.cast(size_tensor(size), like.dtype)


def _column(x: Tensor, i: int, count: int = 1) -> Any:
    """So many columns of [N, C]."""
    return F.slice(x, (0, i), (x.shape[0], count), (1, 1))


# ----------------------------------------------------------------------------------------------------- the best


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """The boxes that no better one covers by more than a threshold, as places in `boxes`, the best score first.

    Its time is that of the boxes kept times all boxes.

    Args:
        boxes: float [N, 4], two corners (x, y, x, y) of which the first is the lesser.
        scores: float [N].
        iou_threshold: of the intersection over the union.

    Returns:
        int64 [K], whose size only the run shows.

    Raises:
        OpError: other shapes.
    """
    if len(boxes.shape) != 2 or boxes.shape[1] != 4 or tuple(scores.shape) != (boxes.shape[0],):
        raise OpError(f"nms: boxes must be [N, 4] and scores [N], not {list(boxes.shape)} and {list(scores.shape)}")
    count = boxes.shape[0]
    _, order = F.sort(scores, axis=0, descending=True)
    network = boxes.network
    best = F.take(boxes, order, axis=0)
    best = F.concat(best, network.constant(np.zeros((1, 4), boxes.dtype.numpy)), dim=0)  # so that there is a first
    corners = [_column(best, i, 2) for i in (0, 2)]
    area = F.reduce_prod(F.sub(corners[1], corners[0]), axes=(1,), keepdims=False)
    own = F.iota(size=dims.add(count, 1), dtype=dtypes.int64)
    own = own if isinstance(own, Value) else network.constant(own)
    limit = np.array(iou_threshold, boxes.dtype.numpy)
    if float(limit) > iou_threshold:  # the largest number that is not above it: what is above either is above both
        limit = np.nextafter(limit, np.array(-np.inf, limit.dtype))

    def more(left: Any, *_: Any) -> Any:
        return F.greater(F.reduce_sum(F.cast(left, dtypes.int32), axes=(0,), keepdims=False), 0)

    def step(left: Any, kept: Any, low: Any, high: Any, area: Any, own: Any) -> Any:
        """The first box that is left is kept, and none is left that it covers."""
        first = F.argmax(F.cast(left, dtypes.int32), axis=0, keepdims=True)
        ends = [F.take(x, first, axis=0) for x in (low, high)]
        inside = F.maximum(F.sub(F.minimum(high, ends[1]), F.maximum(low, ends[0])), 0.0)
        shared = F.reduce_prod(inside, axes=(1,), keepdims=False)
        union = F.sub(F.add(area, F.take(area, first, axis=0)), shared)
        covered = F.greater(F.div(shared, union), limit)
        here = F.equal(own, first)
        gone = F.logical_or(covered, here)
        return F.logical_and(left, F.logical_not(gone)), F.logical_or(kept, here), low, high, area, own

    every = F.less(own, _number(count, own))
    none = F.not_equal(own, own)
    _, kept, *_ = while_loop(more, step, [every, none, *corners, area, own])
    places = F.nonzero(kept)
    return F.take(order, F.reshape(places, (places.shape[1],)), axis=0)


# ------------------------------------------------------------------------------------------------------- regions


def _round(x: Any) -> Any:
    """To the nearest whole number, halves away from 0."""
    size = F.floor(F.add(F.abs(x), 0.5))
    return F.where(F.less(x, 0.0), F.neg(size), size)


def _per_image(x: Tensor, bins: int) -> Any:
    """x [N, C, H, W] as rows: of all channels at one place, or with bins of the channels that one bin has."""
    n, channels, height, width = x.shape
    if bins == 1:
        return F.reshape(F.permute(x, (0, 2, 3, 1)), (dims.mul(n, height, width), channels))
    own = dims.floordiv(channels, bins)
    if dims.mul(own, bins) != channels:
        raise OpError(f"{channels} channels cannot be divided among {bins} bins")
    apart = F.permute(F.reshape(x, (n, own, bins, height, width)), (0, 3, 4, 2, 1))
    return F.reshape(apart, (dims.mul(n, height, width, bins), own))


class _Bins:
    """The bins [height, width] of regions [K, 5] of x [N, C, H, W], read place by place."""

    def __init__(self, name: str, x: Tensor, rois: Tensor, height: int, width: int, own: bool = False) -> None:
        if len(x.shape) != 4 or len(rois.shape) != 2 or rois.shape[1] != 5:
            raise OpError(f"{name}: the images must be [N, C, H, W] and the regions [K, 5], not {list(x.shape)} and "
                          f"{list(rois.shape)}")  # fmt: skip
        if min(height, width) < 1:
            raise OpError(f"{name}: there must be a bin, not {height} × {width}")
        self.x, self.count = x, rois.shape[0]
        self.sizes = [_number(size, x) for size in x.shape[2:]]
        self.bins, self.own = (height, width), own
        self.rows = _per_image(x, height * width if own else 1)
        image = F.reshape(F.cast(_column(rois, 0), dtypes.int64), (self.count, 1, 1))
        self.base = F.mul(image, _number(dims.mul(*x.shape[2:]), image))

    def steps(self, axis: int) -> Any:
        """The number of each bin along an axis."""
        shape = (1, -1, 1) if axis == 0 else (1, 1, -1)
        return np.arange(self.bins[axis], dtype=self.x.dtype.numpy).reshape(shape)

    def read(self, rows: Any, base: Any, places: Sequence[Any], across: Any) -> Any:
        """The elements at whole places [K, height, width] of images so wide: [K, height, width, C]."""
        row, column, line = (F.cast(p, dtypes.int64) for p in (*places, across))
        index = F.add(base, F.add(F.mul(row, line), column))
        height, width = self.bins
        if self.own:
            each = np.arange(height * width, dtype=np.int64).reshape(1, height, width)
            index = F.add(F.mul(index, np.array(height * width)), each)
        flat = F.take(rows, F.reshape(index, (dims.mul(self.count, height, width),)), axis=0)
        return F.reshape(flat, (self.count, height, width, flat.shape[1]))

    def between(self, rows: Any, base: Any, places: Sequence[Any], sizes: Sequence[Any]) -> Any:
        """The elements between whole places of images of these sizes, by their nearness."""
        lows = [F.floor(p) for p in places]
        shares = [F.sub(p, low) for p, low in zip(places, lows, strict=True)]
        highs = [F.minimum(F.add(low, 1.0), F.sub(n, 1.0)) for low, n in zip(lows, sizes, strict=True)]
        total = None
        for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
            ends = [(low, high)[k] for low, high, k in zip(lows, highs, (i, j), strict=True)]
            parts = [share if k else F.sub(1.0, share) for share, k in zip(shares, (i, j), strict=True)]
            share = F.mul(*parts)
            read = F.mul(self.read(rows, base, ends, sizes[1]), F.reshape(share, (*share.shape, 1)))
            total = read if total is None else F.add(total, read)
        return total

    def walk(self, counts: Sequence[Any], body: Any, start: Any, operands: Sequence[Any]) -> Any:
        """The last `state = body(state, i, j, sizes, rows, base, *operands)` over a grid of counts[0] × counts[1]."""

        def step(state: Any, t: Any, across: Any, height: Any, width: Any, *rest: Any) -> Any:
            i = F.floordiv(t, across)
            places = [F.cast(k, self.x.dtype) for k in (i, F.sub(t, F.mul(i, across)))]
            return body(state, *places, (height, width), *rest), F.add(t, 1)

        network = self.x.network
        across, first = (c if isinstance(c, Value) else network.constant(np.array(c)) for c in (counts[1], 0))
        length = dims.mul(*counts) if isinstance(counts[0], int) else F.mul(*counts)
        shape = (self.count, *self.bins, self.rows.shape[1])
        constant = [across, *self.sizes, self.rows, self.base, *operands]
        found, _ = scan(step, [F.expand(start, shape), first], [], constant, length=length)
        return F.permute(found, (0, 3, 1, 2))


def _most(x: Any) -> Any:
    """The largest of whole numbers at or above 0, and 0 of none: int64 []."""
    flat = F.reshape(F.cast(x, dtypes.int64), (dims.mul(*x.shape),))
    return F.reduce_max(F.concat(flat, flat.network.constant(np.zeros(1, np.int64)), dim=0), axes=(0,), keepdims=False)


def _region_means(
    name: str, x: Tensor, rois: Tensor, spatial_scale: float, bins: tuple[int, int], sampling_ratio: int, shift: float,
    least: float | None, own: bool,
) -> Tensor:  # fmt: skip
    over = _Bins(name, x, rois, *bins, own=own)
    ends = F.sub(F.mul(_column(rois, 1, 4), spatial_scale), shift)
    lows, steps, grids = [], [], []
    for axis, count in enumerate(bins):
        low, high = (F.reshape(_column(ends, k), (over.count, 1, 1)) for k in (1 - axis, 3 - axis))
        size = F.sub(high, low)
        size = size if least is None else F.maximum(size, least)
        each = F.div(size, float(count))
        grid = F.clip(F.ceil(each), minimum=0.0, maximum=float(MAX_GRID))
        grids.append(F.add(F.mul(grid, 0.0), float(sampling_ratio)) if sampling_ratio > 0 else grid)
        lows.append(F.add(low, F.mul(over.steps(axis), each)))
        steps.append(each)

    def body(total: Any, i: Any, j: Any, sizes: Any, rows: Any, base: Any, *each: Any) -> Any:
        places, seen = [], []
        for at, n, low, step, grid in zip((i, j), sizes, each[:2], each[2:4], each[4:], strict=True):
            place = F.add(low, F.mul(F.div(F.add(at, 0.5), F.maximum(grid, 1.0)), step))
            inside = F.logical_and(F.greater_equal(place, -1.0), F.less_equal(place, n))
            seen.append(F.logical_and(inside, F.less(at, grid)))
            place = F.where(seen[-1], F.minimum(F.maximum(place, 0.0), F.sub(n, 1.0)), 0.0)
            places.append(F.expand(place, (over.count, *bins)))
        read = over.between(rows, base, places, sizes)
        both = F.logical_and(*seen)
        return F.add(total, F.where(F.reshape(both, (*both.shape, 1)), read, 0.0))

    counts = [sampling_ratio] * 2 if sampling_ratio > 0 else [_most(g) for g in grids]
    start = x.network.constant(np.zeros((), x.dtype.numpy))
    total = over.walk(counts, body, start, [*lows, *steps, *grids])
    number = F.maximum(F.mul(*grids), 1.0)
    return F.div(total, F.reshape(number, (over.count, 1, 1, 1)))


def roi_align(
    x: Tensor, rois: Tensor, spatial_scale: float, bins: tuple[int, int], sampling_ratio: int = -1,
    aligned: bool = False,
) -> Tensor:  # fmt: skip
    """The means of places in the bins of regions.

    Args:
        x: [N, C, H, W], and rois [K, 5]: an image, and corners (x, y, x, y) in elements over spatial_scale.
        bins: of each region, vertically and horizontally.
        sampling_ratio: places along each side of a bin; 0 or below: as many as it has elements.
        aligned: half an element is taken from the corners, and regions may be smaller than an element.

    Returns:
        [K, C, *bins].

    Raises:
        OpError: other shapes.
    """
    shift, least = (0.5, None) if aligned else (0.0, 1.0)
    return _region_means("roi_align", x, rois, spatial_scale, bins, sampling_ratio, shift, least, False)


def ps_roi_align(
    x: Tensor, rois: Tensor, spatial_scale: float, bins: tuple[int, int], sampling_ratio: int = -1
) -> Tensor:
    """As roi_align with `aligned`, but each bin has channels of its own: [K, C / (height · width), *bins]."""
    return _region_means("ps_roi_align", x, rois, spatial_scale, bins, sampling_ratio, 0.5, None, True)


def _edges(over: _Bins, rois: Tensor, spatial_scale: float, more: float, last: float) -> tuple[list[Any], list[Any]]:
    """The first element of each bin vertically and horizontally, and the one behind its last. Regions are `more`
    elements longer than their corners are apart, and one long at least; bins end `last` elements before the image does.
    """
    ends = _round(F.mul(_column(rois, 1, 4), spatial_scale))
    lows, highs = [], []
    for axis, count in enumerate(over.bins):
        low, high = (F.reshape(_column(ends, k), (over.count, 1, 1)) for k in (1 - axis, 3 - axis))
        each = F.div(F.maximum(F.add(F.sub(high, low), more), 1.0), float(count))
        steps = over.steps(axis)
        edges = [F.add(F.floor(F.mul(steps, each)), low), F.add(F.ceil(F.mul(steps + 1, each)), low)]
        edges = [F.minimum(F.maximum(e, 0.0), F.sub(over.sizes[axis], last)) for e in edges]
        lows.append(edges[0])
        highs.append(edges[1])
    return lows, highs


def _over_elements(over: _Bins, lows: list[Any], highs: list[Any], start: Any, take: Any) -> Tensor:
    """The last `state = take(state, elements)` over the elements of each bin, row by row: [K, C, height, width]."""

    def body(state: Any, i: Any, j: Any, sizes: Any, rows: Any, base: Any, *ends: Any) -> Any:
        places, seen = [], []
        for at, low, high in zip((i, j), ends[:2], ends[2:], strict=True):
            place = F.add(low, at)
            seen.append(F.less(place, high))
            places.append(F.expand(F.where(seen[-1], place, 0.0), (over.count, *over.bins)))
        read, both = over.read(rows, base, places, sizes[1]), F.logical_and(*seen)
        return F.where(F.reshape(both, (*both.shape, 1)), take(state, read), state)

    longest = [_most(F.maximum(F.sub(high, low), 0.0)) for low, high in zip(lows, highs, strict=True)]
    return over.walk(longest, body, start, [*lows, *highs])


def _have_some(lows: list[Any], highs: list[Any]) -> Any:
    return F.logical_and(*[F.greater(high, low) for low, high in zip(lows, highs, strict=True)])


def roi_pool(x: Tensor, rois: Tensor, spatial_scale: float, bins: tuple[int, int]) -> Tensor:
    """The largest elements of the bins of regions, [K, C, *bins]; 0 in a bin without elements. Operands as roi_align's.

    Raises:
        OpError: other shapes.
    """
    over = _Bins("roi_pool", x, rois, *bins)
    lows, highs = _edges(over, rois, spatial_scale, 1.0, 0.0)
    lowest = float(np.finfo(np.float32).min) if x.dtype is dtypes.float32 else -math.inf
    start = F.where(_have_some(lows, highs), lowest, np.zeros((), x.dtype.numpy))
    start = F.reshape(start, (over.count, *bins, 1))
    return _over_elements(over, lows, highs, start, lambda best, read: F.where(F.greater(read, best), read, best))


def ps_roi_pool(x: Tensor, rois: Tensor, spatial_scale: float, bins: tuple[int, int]) -> Tensor:
    """The means of the bins of regions, each bin of channels of its own, [K, C / (height · width), *bins]; 0 in a bin
    without elements, and the image's last row and column are in none. Operands as roi_align's.

    Raises:
        OpError: other shapes.
    """
    over = _Bins("ps_roi_pool", x, rois, *bins, own=True)
    lows, highs = _edges(over, rois, spatial_scale, 0.0, 1.0)
    start = x.network.constant(np.zeros((), x.dtype.numpy))
    total = _over_elements(over, lows, highs, start, F.add)
    area = F.mul(*[F.sub(high, low) for low, high in zip(lows, highs, strict=True)])
    area = F.where(_have_some(lows, highs), area, 1.0)
    return F.div(total, F.reshape(area, (over.count, 1, *bins)))


# ------------------------------------------------------------------------------------------- taps that data moves


def deform_conv2d(
    x: Tensor, weight: Tensor, offset: Tensor, mask: Tensor | None = None, bias: Tensor | None = None,
    stride: Sequence[int] = (1, 1), padding: Sequence[int] = (0, 0), dilation: Sequence[int] = (1, 1),
    groups: int = 1, offset_groups: int = 1,
) -> Tensor:  # fmt: skip
    """A convolution of x [N, C, H, W] whose taps are read where offsets move them, between elements by nearness.

    Args:
        weight: [O, C / groups, kernel…].
        offset: [N, 2 · offset_groups · taps, H', W']: for each tap of the kernel vertically and horizontally, in
            elements. Beyond the edge are zeros.
        mask: [N, offset_groups · taps, H', W'], by which what is read is multiplied.
        bias: [O].

    Returns:
        [N, O, H', W'].

    Raises:
        OpError: kernels that are not two-dimensional or not known; shapes that do not fit.
    """
    kernel = weight.shape[2:]
    if len(x.shape) != 4 or len(kernel) != 2 or not dims.all_fixed(kernel):
        raise OpError(f"deform_conv2d: images [N, C, H, W] and a weight [O, C, H, W] of known size are needed, not "
                      f"{list(x.shape)} and {list(weight.shape)}")  # fmt: skip
    (n, channels), (rows, columns) = x.shape[:2], offset.shape[2:]
    taps = math.prod(kernel)
    starts = [
        F.sub(F.mul(F.iota(size=count, dtype=x.dtype), float(step)), float(before))
        for count, step, before in zip((rows, columns), stride, padding, strict=True)
    ]
    still = np.indices(kernel).reshape(2, taps, 1, 1) * np.array(dilation).reshape(2, 1, 1, 1)
    moved = F.reshape(offset, (n, offset_groups, taps, 2, rows, columns))
    shares = None if mask is None else F.reshape(mask, (n, offset_groups, taps, rows, columns))
    each = dims.floordiv(channels, offset_groups)
    found = []
    for g in range(offset_groups):
        places = []
        for i, shape in enumerate(((rows, 1), (1, columns))):
            shift = F.slice(moved, (0, g, 0, i, 0, 0), (n, 1, taps, 1, rows, columns), (1,) * 6)
            at = F.add(F.reshape(shift, (n, taps, rows, columns)), still[i].astype(x.dtype.numpy))
            at = F.add(at, F.reshape(starts[i], shape))
            places.append(F.reshape(at, (n, dims.mul(rows, taps), columns)))
        own = F.slice(x, (0, dims.mul(each, g), 0, 0), (n, each, *x.shape[2:]), (1,) * 4)
        read = F.reshape(sampled(own, *places), (n, each, taps, rows, columns))
        if shares is not None:
            share = F.slice(shares, (0, g, 0, 0, 0), (n, 1, taps, rows, columns), (1,) * 5)
            read = F.mul(read, share)
        found.append(read)
    whole = found[0] if len(found) == 1 else F.concat(*found, dim=1)
    inner, outputs = dims.mul(dims.floordiv(channels, groups), taps), weight.shape[0]
    parts = F.reshape(whole, (n, groups, inner, dims.mul(rows, columns)))
    product = F.matmul(F.reshape(weight, (groups, dims.floordiv(outputs, groups), inner)), parts)
    result = F.reshape(product, (n, outputs, rows, columns))
    return result if bias is None else F.add(result, F.reshape(bias, (outputs, 1, 1)))


def corners(x: Tensor, y: Tensor, column: Tensor) -> list[Tensor]:
    """The four elements around places [N, A, B] of x [N, C, H, W], each with its share: [N, C, A, B], zeros beyond the
    edge. By themselves and not by grid_sample, whose places are relative and so rounded.
    """
    n, c, height, width = x.shape
    flat = F.reshape(x, (n, c, dims.mul(height, width)))
    count = dims.mul(y.shape[1], y.shape[2])
    lows = [F.floor(p) for p in (y, column)]
    shares = [F.sub(p, low) for p, low in zip((y, column), lows, strict=True)]
    lasts = [_number(dims.add(size, -1), x) for size in (height, width)]
    found = []
    for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
        at = [F.add(low, float(k)) for low, k in zip(lows, (i, j), strict=True)]
        inside = [
            F.logical_and(F.greater_equal(p, 0.0), F.less_equal(p, last)) for p, last in zip(at, lasts, strict=True)
        ]
        kept = [F.where(seen, p, 0.0) for seen, p in zip(inside, at, strict=True)]
        row, place = (F.cast(p, dtypes.int64) for p in kept)
        index = F.add(F.mul(row, _number(width, row)), place)
        read = F.gather(flat, F.expand(F.reshape(index, (n, 1, count)), (n, c, count)), axis=2)
        parts = [share if k else F.sub(1.0, share) for share, k in zip(shares, (i, j), strict=True)]
        share = F.where(F.logical_and(*inside), F.mul(*parts), 0.0)
        found.append(F.mul(F.reshape(read, (n, c, *y.shape[1:])), F.reshape(share, (n, 1, *y.shape[1:]))))
    return found


def sampled(x: Tensor, y: Tensor, column: Tensor) -> Tensor:
    """x [N, C, H, W] at places [N, A, B] in elements, by nearness: [N, C, A, B]; zeros beyond the edge."""
    a, b, c, d = corners(x, y, column)
    return F.add(F.add(a, b), F.add(c, d))
