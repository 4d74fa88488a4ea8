"""A resize of which only a run knows sizes, scales or regions: it computes where to read, and with which weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ingot import dims, dtypes
from ingot.dims import Dimension
from ingot.dtypes import DType
from ingot.frontends.onnx.ops.common import cast, number, size_value
from ingot.frontends.table import Unsupported
from ingot.ir import F, Value
from ingot.ir.sizes import as_size


class Way(NamedTuple):
    """How a resize reads: the attributes of the node."""

    mode: str
    coordinates: str
    nearest: str
    a: float
    antialias: bool
    exclude_outside: bool
    beyond: float

    @property
    def reach(self) -> int:
        """How many elements to each side a weighted mean reads."""
        return 1 if self.mode == "linear" else 2


class Axis(NamedTuple):
    """One axis that changes: from a size to another, by a scale (a number, NaN for what the sizes say, or data);
    `region` of tf_crop_and_resize, two numbers or data.
    """

    axis: int
    size: Any
    to: Any
    scale: Any
    region: tuple[Any, Any]

    @property
    def known(self) -> bool:
        """Whether all of it is numbers."""
        whole = isinstance(self.size, int) and isinstance(self.to, int)
        return whole and not any(isinstance(n, Value) for n in (self.scale, *self.region))


_NEAREST: dict[str, Callable[[Any], Any]] = {
    "round_prefer_floor": lambda x: F.ceil(F.sub(x, 0.5)), "round_prefer_ceil": lambda x: F.floor(F.add(x, 0.5)),
    "floor": F.floor, "ceil": F.ceil,
}  # fmt: skip


def along(x: Any, one: Axis, way: Way, still: Any) -> Any:
    """One axis at its new size. `still`: where this (a bool) holds, no axis changes its size, and x stays as it is."""
    kind = dtypes.float32 if way.mode == "nearest" else dtypes.float64  # of places: as for sizes that are known
    scale, at = _places(x, one, way, kind)
    last = _real(x, dims.add(one.size, -1), kind)
    outside = F.logical_or(F.less(at, 0.0), F.greater(at, last))
    if still is not None:
        at = F.where(still, _counted(x, one.to, kind), at)
    if way.mode == "nearest":
        index = F.maximum(F.minimum(_NEAREST[way.nearest](at), last), 0.0)  # of no elements the first: a fault
        found = F.take(x, cast(index, dtypes.int64), axis=one.axis)
    else:
        found = _weighted(x, one, way, at, scale, still)
    if way.coordinates != "tf_crop_and_resize":
        return found
    mask = F.reshape(outside, tuple(one.to if i == one.axis else 1 for i in range(len(x.shape))))
    return F.where(mask, number(found, way.beyond), found)


def _real(x: Any, value: Any, kind: DType) -> Any:
    """A size, a number or data as a number of a type."""
    if isinstance(value, dims.Expr):
        value = size_value(x, value)
    return cast(value, kind) if isinstance(value, Value) else x.network.constant(np.array(value, kind.numpy))


def _counted(x: Any, size: Dimension, kind: DType) -> Any:
    """0, 1, … below a size."""
    found = F.iota(size=size, dtype=dtypes.int64)
    return cast(found if isinstance(found, Value) else x.network.constant(found), kind)


def _places(x: Any, one: Axis, way: Way, kind: DType) -> tuple[Any, Any]:
    """The scale, and where in x each element of the result lies."""
    size, to = _real(x, one.size, kind), _real(x, one.to, kind)
    by_sizes = not isinstance(one.scale, Value) and math.isnan(one.scale)
    scale = F.div(to, size) if by_sizes else _real(x, one.scale, kind)
    i, several = _counted(x, one.to, kind), F.greater(to, 1.0)
    centre, word = F.div(F.add(i, 0.5), scale), way.coordinates
    if word == "half_pixel":
        at = F.sub(centre, 0.5)
    elif word == "pytorch_half_pixel":
        at = F.where(several, F.sub(centre, 0.5), number(i, 0))
    elif word == "half_pixel_symmetric":
        offset = F.mul(F.mul(size, 0.5), F.sub(1.0, F.div(to, F.mul(scale, size))))
        at = F.add(offset, F.sub(centre, 0.5))
    elif word == "align_corners":
        at = F.div(F.mul(i, F.sub(size, 1.0)), F.maximum(F.sub(to, 1.0), 1.0))
    elif word == "asymmetric":
        at = F.div(i, scale)
    elif word == "tf_half_pixel_for_nn":
        at = centre
    elif word == "tf_crop_and_resize":
        low, high = (_real(x, end, kind) for end in one.region)
        last, steps = F.sub(size, 1.0), F.sub(F.mul(scale, size), 1.0)
        whole = F.div(F.mul(F.mul(i, F.sub(high, low)), last), F.where(several, steps, number(steps, 1)))
        at = F.where(several, F.add(F.mul(low, last), whole), F.mul(F.mul(F.add(low, high), 0.5), last))
    else:
        raise Unsupported(f"the coordinates {word:.40} are not known")
    return scale, at


def _weighted(x: Any, one: Axis, way: Way, at: Any, scale: Any, still: Any) -> Any:
    """By a product with the weights of all elements, and of so many of the edge beside them as a mean may reach."""
    size, kind = one.size, at.dtype
    narrow: Any = None
    if way.antialias:
        narrow = F.minimum(scale, 1.0)
        narrow = narrow if still is None else F.where(still, number(narrow, 1), narrow)
    beside = _beside(one, way, narrow)
    whole = dims.add(size, dims.mul(beside, 2))
    place = F.sub(_counted(x, whole, dtypes.int64), size_value(x, beside))
    last = size_value(x, dims.add(size, -1))
    inside = F.maximum(F.minimum(place, last), number(place, 0))
    at = F.reshape(F.minimum(F.maximum(at, -1.0), _real(x, size, kind)), (one.to, 1))
    distance = F.abs(F.sub(F.reshape(cast(place, kind), (1, whole)), at))
    weights = _kernel(way, distance if narrow is None else F.mul(distance, narrow))
    if way.exclude_outside:
        own = F.reshape(F.equal(place, inside), (1, whole))
        weights = F.where(own, weights, number(weights, 0))
    if way.exclude_outside or narrow is not None:
        weights = F.div(weights, F.reduce_sum(weights, axes=(1,), keepdims=True))
    return by_matrix(F.take(x, inside, axis=one.axis), cast(weights, x.dtype), one.axis)


def by_matrix(x: Any, weights: Any, axis: int) -> Any:
    """x with sums of its elements along an axis, by the rows of weights [to, size]."""
    rank = len(x.shape)
    if rank == 1:
        return F.reshape(F.matmul(F.reshape(x, (1, *x.shape)), weights, transpose_b=True), (weights.shape[0],))
    order = (*(i for i in range(rank) if i != axis), axis)
    product = F.matmul(F.permute(x, order), weights, transpose_b=True)
    return F.permute(product, tuple(order.index(i) for i in range(rank)))


def _beside(one: Axis, way: Way, narrow: Any) -> Dimension:
    """How many elements beyond an edge are read."""
    if narrow is None:
        return way.reach + 1
    if isinstance(one.scale, Value):
        return as_size(cast(F.ceil(F.add(F.div(number(narrow, way.reach), narrow), 1.0)), dtypes.int64))
    if not math.isnan(one.scale):
        return math.ceil(way.reach / min(float(one.scale), 1.0)) + 1
    wide = dims.floordiv(dims.mul(one.size, way.reach), dims.maximum(one.to, 1))
    return dims.add(dims.maximum(wide, way.reach), 2)


def _kernel(way: Way, distance: Any) -> Any:
    """The weight of an element at a distance of 0 or more."""
    if way.mode == "linear":
        return F.maximum(F.sub(1.0, distance), 0.0)
    a, d = way.a, distance

    def polynomial(*coefficients: float) -> Any:
        total: Any = F.add(F.mul(d, coefficients[0]), coefficients[1])
        for coefficient in coefficients[2:]:
            total = F.add(F.mul(total, d), coefficient)
        return total

    far = F.where(F.less(d, 2.0), polynomial(a, -5 * a, 8 * a, -4 * a), number(d, 0))
    return F.where(F.less_equal(d, 1.0), polynomial(a + 2, -(a + 3), 0.0, 1.0), far)
