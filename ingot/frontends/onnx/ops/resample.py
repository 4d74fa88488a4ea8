"""ONNX ops that read images, signals and volumes at other places."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot import functional as fn
from ingot.dims import Dimension
from ingot.frontends.onnx.float_sizes import MAX_UNDER, share
from ingot.frontends.onnx.ops.common import axes_at, cast, each, few, number, size_value
from ingot.frontends.onnx.ops.resizing import Axis, Way, along, by_matrix
from ingot.frontends.onnx.ops.shape import part
from ingot.frontends.onnx.ops.spatial import window
from ingot.frontends.onnx.table import MAX_PIECES, Call, onnx
from ingot.frontends.table import (
    Floats,
    MaybeInts,
    MaybeTensor,
    Result,
    Tensor,
    Unsupported,
)
from ingot.functional import regions, resample
from ingot.ir import F, Value
from ingot.ir.sizes import as_size
from ingot.ir.spec import elements

Array = np.ndarray[Any, Any]
Dims = tuple[Dimension, ...]
MaybeSizes = Dims | None

MAX_MATRIX = 1 << 23  # elements of the weights of one axis


# ------------------------------------------------------------------------------------------ weights of an axis


def _places(one: Axis, way: Way) -> Any:
    """Where in the input each element of the result lies."""
    x, size, to, scale = np.arange(few(one.to), dtype=np.float64), one.size, one.to, one.scale
    kind = way.coordinates
    if way.mode == "nearest":  # whose element a last bit decides, and float32's is the one that runtimes have
        x, scale = x.astype(np.float32), np.float32(scale)
    if kind == "half_pixel" or kind == "pytorch_half_pixel" and to > 1:
        return (x + 0.5) / scale - 0.5
    if kind == "pytorch_half_pixel":
        return np.zeros_like(x)
    whole = scale * size  # what a scale that is no ratio of the sizes asks for
    if kind == "half_pixel_symmetric":
        return size / 2 * (1 - to / whole) + (x + 0.5) / scale - 0.5
    if kind == "align_corners":  # by the sizes, as ONNX Runtime and torch: ONNX's own tests have `whole` for `to`
        return x * (size - 1) / (to - 1) if to > 1 else np.zeros_like(x)
    if kind == "asymmetric":
        return x / scale
    if kind == "tf_half_pixel_for_nn":
        return (x + 0.5) / scale
    if kind == "tf_crop_and_resize":
        low, high = one.region
        if to > 1:
            return low * (size - 1) + x * (high - low) * (size - 1) / (whole - 1)
        return np.full_like(x, 0.5 * (low + high) * (size - 1))
    raise Unsupported(f"the coordinates {kind:.40} are not known")


_NEAREST: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5), "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor, "ceil": np.ceil,
}  # fmt: skip


def _kernel(way: Way, d: Any) -> Any:
    """The weight of an element at a distance."""
    d = np.abs(d)
    if way.mode == "linear":
        return np.clip(1 - d, 0, 1)
    a = way.a
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def _weights(one: Axis, way: Way, at: Array) -> Array:
    """[to, size]: what of each input element goes into each of the result."""
    if one.to * one.size > MAX_MATRIX:
        raise Unsupported(f"the weights from {one.size:,} to {one.to:,} elements would be too large")
    narrow = min(one.scale, 1.0) if way.antialias else 1.0
    reach = (1 if way.mode == "linear" else 2) / narrow
    if (2 * reach + 4) * one.to > MAX_MATRIX:
        raise Unsupported(f"a scale of {one.scale:g} reads too many elements for each")
    first = np.floor(at - reach).astype(np.int64)
    offsets = np.arange(0, 2 * math.ceil(reach) + 3)
    index = first[:, None] + offsets
    found = _kernel(way, (index - at[:, None]) * narrow)
    inside = (index >= 0) & (index < one.size)
    if way.exclude_outside:
        found = np.where(inside, found, 0)
    if way.exclude_outside or narrow != 1:
        found = found / found.sum(1, keepdims=True)
    matrix = np.zeros((one.to, one.size))
    rows = np.broadcast_to(np.arange(one.to)[:, None], index.shape)
    np.add.at(matrix, (rows, np.clip(index, 0, one.size - 1)), found)
    return matrix


def _along(x: Any, one: Axis, way: Way) -> Any:
    """One axis at its new size."""
    at = _places(one, way)
    if way.mode == "nearest":
        index = np.clip(_NEAREST[way.nearest](at), 0, one.size - 1).astype(np.int64)
        found = F.take(x, x.network.constant(index), axis=one.axis)
    else:
        matrix = x.network.constant(_weights(one, way, at).astype(x.dtype.numpy))
        found = by_matrix(x, matrix, one.axis)
    outside = (at < 0) | (at > one.size - 1)
    if way.coordinates == "tf_crop_and_resize" and outside.any():
        mask = x.network.constant(outside.reshape([-1 if i == one.axis else 1 for i in range(len(x.shape))]))
        found = F.where(mask, number(x, way.beyond), found)
    return found


_PLAIN = {"linear": "linear", "cubic": "cubic"}


def _by_kernel(x: Any, axes: Sequence[Axis], way: Way) -> Any:
    """The resize of ours, where it means the same; None elsewhere."""
    rank = len(x.shape)
    if not 3 <= rank <= 5 or any(one.axis < 2 for one in axes) or not x.dtype.is_float or x.dtype.bits == 64:
        return None
    if way.antialias or way.exclude_outside:
        return None
    sizes: list[Dimension] = list(x.shape[2:])
    for one in axes:
        sizes[one.axis - 2] = one.to
    aligned = way.coordinates == "align_corners"
    exact = all(_exact(one) or aligned and one.to != 0 for one in axes)
    if way.mode == "linear" or way.mode == "cubic" and rank == 4 and way.a == -0.75:
        if exact and (aligned or way.coordinates in ("half_pixel", "pytorch_half_pixel") and _no_ones(axes, way)):
            return F.resize(x, sizes=tuple(sizes), mode=way.mode, align_corners=aligned)
        return None
    if way.mode == "nearest" and exact and way.coordinates == "asymmetric" and way.nearest == "floor":
        if not all(_by_sizes(one, way) for one in axes):
            return None
        return F.resize(x, sizes=tuple(sizes), mode="nearest")
    whole = all(float(one.scale).is_integer() for one in axes)  # then no place lies between two elements
    if way.mode == "nearest" and exact and way.coordinates == "half_pixel" and way.nearest.startswith("round"):
        return F.resize(x, sizes=tuple(sizes), mode="nearest_exact") if whole else None
    return None


def _by_sizes(one: Axis, way: Way) -> bool:
    """Whether an element's place by the scale, as float32 divides, lies in the element that the two sizes say."""
    if float(one.scale).is_integer() or not isinstance(one.size, int) or not isinstance(one.to, int):
        return True
    return math.isnan(one.scale) or np.array_equal(np.floor(_places(one, way)), np.arange(one.to) * one.size // one.to)


def _no_ones(axes: Sequence[Axis], way: Way) -> bool:
    return way.coordinates == "half_pixel" or all(isinstance(one.to, int) and one.to > 1 for one in axes)


def _exact(one: Axis) -> Any:
    """Whether the scale is what the two sizes say; NaN is that of sizes that were given."""
    if isinstance(one.scale, Value):
        return False
    if math.isnan(one.scale):
        return True
    if isinstance(one.size, int) and isinstance(one.to, int):
        return abs(one.scale * one.size - one.to) < 1e-6 * max(one.to, 1)
    return dims.mul(one.size, int(one.scale)) == one.to if float(one.scale).is_integer() else False


# -------------------------------------------------------------------------------------------------------- Resize


def _resized(x: Any, axes: Sequence[Axis], way: Way) -> Any:
    changed = [one for one in axes if one.to != one.size or way.coordinates == "tf_crop_and_resize"]
    if changed:  # ⌊1.1 · 2⌋ is 2, read at 0 and 1 / 1.1; alone it is left as it is, as ONNX Runtime does
        changed = [one for one in axes if one in changed or not _exact(one)]
    else:
        return x
    data = any(isinstance(n, Value) for one in changed for n in (one.scale, *one.region))
    found = None if data else _by_kernel(x, changed, way)
    if found is None and not data:
        found = _by_factors(x, changed, way)
    if found is not None:
        return found
    wide = x if x.dtype.is_float and x.dtype.bits >= 32 or way.mode == "nearest" else cast(x, dtypes.float32)
    crops = way.coordinates == "tf_crop_and_resize"
    still = None if crops else _still(x, changed)
    for one in changed:
        wide = _along(wide, one, way) if one.known else along(wide, one, way, None if crops else _same(x, one, still))
    if wide.dtype is not x.dtype and x.dtype.is_integer:
        wide = F.round(wide)
    return cast(wide, x.dtype)


_COMPOSED = {("linear", 1): "linear", ("linear", 2): "bilinear", ("linear", 3): "trilinear", ("cubic", 2): "bicubic"}


def _by_factors(x: Any, axes: Sequence[Axis], way: Way) -> Any:
    """By scales that are no ratio of sizes which only a run knows, between so many neighbours; None elsewhere."""
    if all(one.known for one in axes) or any(math.isnan(one.scale) for one in axes):
        return None
    rank = len(x.shape) - 2
    centred = way.coordinates == "half_pixel" or way.coordinates == "pytorch_half_pixel" and _no_ones(axes, way)
    mode = _COMPOSED.get((way.mode, rank), "") if centred else ""
    if way.mode == "nearest" and way.coordinates == "asymmetric" and way.nearest == "floor":
        return _nearest_by_factors(x, axes)
    odd = way.antialias or way.exclude_outside or way.mode == "cubic" and way.a != -0.75
    if not mode or odd or any(one.axis < 2 for one in axes) or not x.dtype.is_float:
        return None
    targets, still = [resample.Target(n) for n in x.shape[2:]], _still(x, axes)
    for one in axes:
        exact = Fraction(one.scale).limit_denominator(MAX_UNDER)  # 1.7, of which the file has the nearest float32
        targets[one.axis - 2] = resample.Target(one.to, _unless(still, float(np.float32(1 / exact))))
    wide = cast(x, dtypes.float32) if x.dtype.bits < 32 else x
    return cast(resample.stepped(wide, targets, mode), x.dtype)


def _still(x: Any, axes: Sequence[Axis]) -> Any:
    """Whether in a run no axis changes its size, as 1.1 leaves 9: ONNX Runtime then gives x as it is. None: never."""
    if any(not isinstance(one.scale, Value) and one.scale >= 2 or one.known and one.to != one.size for one in axes):
        return None
    still: Any = None
    for one in axes:
        same = F.equal(size_value(x, one.size), size_value(x, one.to))
        still = same if still is None else F.logical_and(still, same)
    return still


def _same(x: Any, one: Axis, still: Any) -> Any:
    """Whether an axis stays as it is: by itself, where the sizes or a scale of 1 say so, or `still` of all together."""
    if not isinstance(one.scale, Value):
        return F.equal(size_value(x, one.size), size_value(x, one.to)) if math.isnan(one.scale) else still
    alone = F.equal(one.scale, number(one.scale, 1))
    return alone if still is None else F.logical_or(alone, still)


def _unless(still: Any, step: float) -> Any:
    return np.float32(step) if still is None else F.where(still, np.float32(1), np.float32(step))


def _nearest_by_factors(x: Any, axes: Sequence[Axis]) -> Any:
    """The element at ⌊place / scale⌋ along each axis, as float32 divides."""
    still = _still(x, axes)
    for one in axes:
        places = F.iota(one.to, dtype=dtypes.float32)
        places = places if isinstance(places, Value) else x.network.constant(places)
        last = cast(size_value(x, dims.add(one.size, -1)), dtypes.float32)
        index = F.maximum(F.minimum(F.floor(F.div(places, _unless(still, one.scale))), last), 0.0)
        x = F.take(x, cast(index, dtypes.int32), axis=one.axis)
    return x


def _scaled(x: Any, size: Dimension, scale: Any) -> Dimension:
    """⌊size · scale⌋ in float32; where no fraction says it, a run counts it."""
    if isinstance(scale, Value):
        factor = cast(scale, dtypes.float32)
        usable = F.logical_and(F.greater(factor, 0.0), F.less(factor, math.inf))
        F.assertion(usable, message="Resize: a scale must be greater than 0 and finite")
    elif scale == 1:
        return size
    else:
        try:
            return share(size, scale)
        except Unsupported:
            factor = np.float32(scale)
    whole = F.floor(F.mul(cast(size_value(x, size), dtypes.float32), factor))
    return as_size(F.cast(whole, dtypes.int64))


def _axes(
    x: Any, at: Sequence[int], scales: Sequence[Any] | None, sizes: Sequence[Any] | None, policy: str,
    regions: Sequence[Any] | None,
) -> list[Axis]:  # fmt: skip
    if (scales is None) == (sizes is None) or len(scales or sizes or ()) != len(at):
        raise Unsupported("it needs either scales or sizes, one for each axis")
    for scale in scales or ():
        if not isinstance(scale, Value) and not 0 < scale < math.inf:
            raise Unsupported(f"a scale of {scale:.6g}; it must be greater than 0 and finite")
    own: list[Dimension] = [x.shape[axis] for axis in at]
    if scales is not None:
        targets, factors = [_scaled(x, size, scale) for size, scale in zip(own, scales, strict=True)], list(scales)
    elif sizes is not None and policy == "stretch":
        targets, factors = list(sizes), list(map(_ratio, own, sizes))
    else:
        assert sizes is not None
        targets, common = _of_one_ratio(x, own, sizes, policy == "not_larger")
        factors = [common] * len(own)
    found = []
    for i, axis in enumerate(at):
        region = (0.0, 1.0) if regions is None else (regions[i], regions[len(at) + i])
        found.append(Axis(axis, own[i], targets[i], factors[i], region))
    return found


def _of_one_ratio(x: Any, own: Sequence[Any], sizes: Sequence[Any], least: bool) -> tuple[list[Dimension], Any]:
    """The sizes that keep the ratios of one's own, and the scale: the least of those to the sizes, or the greatest."""
    if dims.all_fixed((*own, *sizes)):
        ratio = (min if least else max)(to / size for size, to in zip(own, sizes, strict=True))
        return [math.floor(ratio * size + 0.5) for size in own], ratio
    targets = []
    for mine, to in zip(own, sizes, strict=True):  # ⌊mine · other to / other + 1/2⌋, of all others
        rounded = [
            dims.floordiv(dims.add(dims.mul(dims.mul(mine, n), 2), size), dims.mul(size, 2))
            for size, n in zip(own, sizes, strict=True) if (size, n) != (mine, to)
        ]  # fmt: skip
        targets.append((dims.minimum if least else dims.maximum)(to, *rounded))
    ratios = [
        F.div(*(cast(size_value(x, n), dtypes.float64) for n in pair)) for pair in zip(sizes, own, strict=True)
    ]  # fmt: skip
    return targets, functools.reduce(F.minimum if least else F.maximum, ratios)


def _ratio(size: Dimension, to: Dimension) -> float:
    if isinstance(size, int) and isinstance(to, int):
        return to / size
    whole = dims.floordiv(to, size)
    return float(whole) if isinstance(whole, int) and dims.mul(size, whole) == to else math.nan


@onnx("Resize", until=10)
def resize_10(call: Call, x: Tensor, scales: Tensor, *, mode: str = "nearest") -> Result:
    return _upsampled(x, _numbers(call, scales, "scales"), mode)


def _upsampled(x: Any, scales: Sequence[Any] | None, mode: str) -> Any:
    way = Way("linear" if mode in ("linear", "bilinear") else mode, "asymmetric", "floor", -0.75, False, False, 0.0)
    return _resized(x, _axes(x, range(len(x.shape)), scales, None, "stretch", None), way)


@onnx("Upsample", until=8)
def upsample_7(x: Tensor, *, scales: Floats, mode: str = "nearest") -> Result:
    return _upsampled(x, scales, mode)


@onnx("Upsample", since=9)
def upsample_9(call: Call, x: Tensor, scales: Tensor, *, mode: str = "nearest") -> Result:
    return _upsampled(x, _numbers(call, scales, "scales"), mode)


def _numbers(call: Call, x: Any, name: str) -> list[Any] | None:
    """The elements of an operand of floats, as `each`. None: it has none."""
    return None if x is None else each(call, x, name) or None


@onnx("Resize", since=11)
def resize(
    call: Call, x: Tensor, roi: MaybeTensor = None, scales: MaybeTensor = None, sizes: MaybeSizes = None, *,
    antialias: bool = False, axes: MaybeInts = None, coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75, exclude_outside: bool = False, extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch", mode: str = "nearest", nearest_mode: str = "round_prefer_floor",
) -> Result:  # fmt: skip
    way = Way(mode, coordinate_transformation_mode, nearest_mode, cubic_coeff_a, antialias, exclude_outside,
              extrapolation_value)  # fmt: skip
    if mode not in ("nearest", "linear", "cubic") or nearest_mode not in _NEAREST:
        raise Unsupported(f"the mode {mode:.40}, {nearest_mode:.40} is not known")
    at = axes_at(range(len(x.shape)) if axes is None else axes, len(x.shape))
    regions = _numbers(call, roi, "roi") if coordinate_transformation_mode == "tf_crop_and_resize" else None
    if regions is not None and len(regions) != 2 * len(at):
        raise Unsupported(f"roi has {len(regions)} numbers, and {2 * len(at)} are needed")
    factors = _numbers(call, scales, "scales")
    return _resized(x, _axes(x, at, factors, sizes or None, keep_aspect_ratio_policy, regions), way)


# ------------------------------------------------------------------------------------------------ places as data


@onnx("GridSample")
def grid_sample(
    x: Tensor, grid: Tensor, *, mode: str = "linear", padding_mode: str = "zeros", align_corners: bool = False
) -> Result:
    word = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    return cast(fn.grid_sample(x, grid, word, padding_mode, align_corners), x.dtype)


@onnx("AffineGrid")
def affine_grid(theta: Tensor, size: Dims, *, align_corners: bool = False) -> Result:
    """Of the centres of elements, or with align_corners from the first to the last. The standard's own function drops a
    batch of 1 on its way."""
    whole = [few(n) if isinstance(n, int) else n for n in size[2:]]
    if len(whole) not in (2, 3) or theta.shape[1:] != (len(whole), len(whole) + 1):
        raise Unsupported(f"theta is {theta.spec} for an image of {len(whole)} dimensions: [N, 2, 3] or [N, 3, 4]")
    kind, places = theta.dtype, []
    for axis, n in reversed(list(enumerate(whole))):  # x first
        count = F.iota(size=n, dtype=dtypes.int64)
        at = cast(count if isinstance(count, Value) else theta.network.constant(count), kind)
        many = size_value(theta, n)
        if align_corners:
            steps = cast(F.maximum(F.sub(many, number(many, 1)), number(many, 1)), kind)
            place = F.sub(F.div(F.mul(at, 2.0), steps), 1.0)
        else:
            place = F.sub(F.div(F.add(F.mul(at, 2.0), 1.0), cast(many, kind)), 1.0)
        along = tuple(n if i == axis else 1 for i in range(len(whole)))
        places.append(F.reshape(F.expand(F.reshape(place, along), tuple(whole)), (*whole, 1)))
    places.append(F.expand(number(theta, 1), (*whole, 1)))
    base = F.reshape(F.concat(*places, dim=len(whole)), (elements(whole), len(whole) + 1))
    found = F.matmul(base, theta, transpose_b=True)
    return F.reshape(found, (theta.shape[0], *whole, len(whole)))


@onnx("DeformConv")
def deform_conv(
    x: Tensor, weight: Tensor, offset: Tensor, bias: MaybeTensor = None, mask: MaybeTensor = None, *,
    dilations: MaybeInts = None, group: int = 1, kernel_shape: MaybeInts = None, offset_group: int = 1,
    pads: MaybeInts = None, strides: MaybeInts = None,
) -> Result:  # fmt: skip
    """The places that the offsets name, read between their neighbours, and one product with the weight."""
    over = window(x, weight.shape[2:], strides, dilations, pads, "NOTSET")
    if len(over.kernel) != 2:
        raise Unsupported("only images are supported")
    few(math.prod(over.kernel))
    if not 1 <= offset_group <= MAX_PIECES:
        raise Unsupported(f"{offset_group:,} groups of offsets: at least 1 and at most {MAX_PIECES:,}")
    return regions.deform_conv2d(
        x, weight, offset, mask, bias, over.stride, over.before, over.dilation, group, offset_group
    )


@onnx("RoiAlign")
def roi_align(
    call: Call, x: Tensor, rois: Tensor, batch: Tensor, *, mode: str = "avg", output_height: int = 1,
    output_width: int = 1, sampling_ratio: int = 0, spatial_scale: float = 1.0,
    coordinate_transformation_mode: str = "half_pixel",
) -> Result:  # fmt: skip
    if mode not in ("avg", "max") or sampling_ratio < 0:
        raise Unsupported(f"the mode {mode:.40} is not avg or max, or sampling_ratio {sampling_ratio} is below 0")
    half = coordinate_transformation_mode == "half_pixel" and call.version >= 16
    shift = 0.5 if half else 0.0
    sizes_known = dims.all_fixed(x.shape[2:])
    if mode == "avg" and (sampling_ratio == 0 or not sizes_known):
        images = F.reshape(cast(batch, x.dtype), (rois.shape[0], 1))
        both = (few(output_height), few(output_width))
        return regions.roi_align(x, F.concat(images, rois, dim=1), spatial_scale, both, sampling_ratio, half)
    if sampling_ratio == 0:
        raise Unsupported("the largest of as many places as a region says (mode max with sampling_ratio 0)")
    count = rois.shape[0]
    ends = F.sub(F.mul(rois, spatial_scale), shift)
    places, inside = [], []
    for i, (bins, size) in enumerate(((output_height, x.shape[2]), (output_width, x.shape[3]))):
        if not isinstance(size, int):
            raise Unsupported("the sizes of the images must be known")
        few(bins * sampling_ratio)
        low, high = (part(ends, 1, k, 1) for k in (1 - i, 3 - i))
        length = F.sub(high, low)
        if not shift:
            length = F.maximum(length, 1.0)
        steps = (np.arange(bins * sampling_ratio) + 0.5) / (bins * sampling_ratio)
        place = F.add(F.mul(length, x.network.constant(steps.astype(x.dtype.numpy)[None])), low)
        inside.append(F.logical_and(F.greater_equal(place, -1.0), F.less_equal(place, float(size))))
        places.append(F.clip(place, minimum=0.0, maximum=float(size - 1)))
    h, w = output_height * sampling_ratio, output_width * sampling_ratio
    y = F.expand(F.reshape(places[0], (count, h, 1)), (count, h, w))
    column = F.expand(F.reshape(places[1], (count, 1, w)), (count, h, w))
    images = F.take(x, cast(batch, dtypes.int64), axis=0)
    if mode == "avg":
        read = regions.sampled(images, y, column)
    else:  # the largest of the neighbours' shares
        a, b, c, d = regions.corners(images, y, column)
        read = F.maximum(F.maximum(a, b), F.maximum(c, d))
    seen = F.logical_and(F.reshape(inside[0], (count, 1, h, 1)), F.reshape(inside[1], (count, 1, 1, w)))
    read = F.where(seen, read, number(x, 0))
    apart = F.reshape(read, (count, x.shape[1], output_height, sampling_ratio, output_width, sampling_ratio))
    return (F.reduce_mean if mode == "avg" else F.reduce_max)(apart, axes=(3, 5), keepdims=False)


