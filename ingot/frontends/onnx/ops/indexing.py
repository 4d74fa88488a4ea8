"""ONNX ops that pick, put and find elements by indices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ingot import dtypes
from ingot import functional as fn
from ingot.frontends.onnx.ops.common import cast, from_end, index_of, number
from ingot.frontends.onnx.table import Call, onnx
from ingot.frontends.table import MaybeInt, MaybeTensor, Result, Tensor, Unsupported
from ingot.ir import F, Value
from ingot.ir.checked import to_shape
from ingot.ir.sizes import as_shape
from ingot.ir.spec import axis_of, elements


@onnx("Gather")
def gather(x: Tensor, index: Tensor, *, axis: int = 0) -> Result:
    at = axis_of(axis, len(x.shape), "axis")
    return F.take(x, index_of(index), axis=at, from_end=True)


@onnx("GatherElements")
def gather_elements(x: Tensor, index: Tensor, *, axis: int = 0) -> Result:
    at = axis_of(axis, len(x.shape), "axis")
    return F.gather(x, from_end(index_of(index), x.shape[at]), axis=at)


@onnx("GatherND")
def gather_nd(x: Tensor, index: Tensor, *, batch_dims: int = 0) -> Result:
    return F.gather_nd(x, index_of(index), batch_dims=batch_dims)


_MODES = {"none": "", "add": "add", "mul": "mul", "max": "max", "min": "min"}


def _put(op: Any, x: Any, index: Any, updates: Any, reduction: str, **where: Any) -> Any:
    if reduction not in _MODES:
        raise Unsupported(f"the reduction {reduction:.40} is not supported")
    if reduction == "none":
        return op(x, index, updates, **where)
    kind = x.dtype
    if kind.is_float and kind.bits < 32:
        x, updates = cast(x, dtypes.float32), cast(updates, dtypes.float32)
    return cast(op(x, index, updates, mode=_MODES[reduction], **where), kind)


@onnx("Scatter", "ScatterElements")
def scatter_elements(x: Tensor, index: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none") -> Result:
    at = axis_of(axis, len(x.shape), "axis")
    return _put(F.scatter, x, index_of(index), to_shape(updates, index.shape), reduction, axis=at)


@onnx("ScatterND")
def scatter_nd(x: Tensor, index: Tensor, updates: Tensor, *, reduction: str = "none") -> Result:
    """As many updates as places; of a mask that is asked twice only a run shows that."""
    depth = index.shape[-1] if index.shape else 0
    if isinstance(depth, int):
        updates = to_shape(updates, (*index.shape[:-1], *x.shape[depth:]))
    return _put(F.scatter_nd, x, index_of(index), updates, reduction)


@onnx("TensorScatter")
def tensor_scatter(
    cache: Tensor, updates: Tensor, write: MaybeTensor = None, *, axis: int = -2, mode: str = "linear"
) -> Result:
    at = axis_of(axis, len(cache.shape), "axis")
    steps, size = updates.shape[at], cache.shape[at]
    offsets = F.iota(size=steps, dtype=dtypes.int64)
    offsets = offsets if isinstance(offsets, Value) else cache.network.constant(offsets)
    rank = len(cache.shape)
    index = F.reshape(offsets, tuple(steps if i == at else 1 for i in range(rank)))
    if write is not None:
        first = F.reshape(cast(write, dtypes.int64), (write.shape[0], *[1] * (rank - 1)))
        index = F.add(index, first)
    if mode == "circular":
        index = F.mod(index, number(index, size))
    return F.scatter(cache, F.expand(index, updates.shape), updates, axis=at)


@onnx("NonZero", folds=False)
def nonzero(x: Tensor) -> Result:
    return F.nonzero(F.reshape(x, (1,)) if not x.shape else x)


@onnx("Compress", folds=False)
def compress(x: Tensor, condition: Tensor, *, axis: MaybeInt = None) -> Result:
    if axis is None:
        x, axis = F.reshape(x, (elements(x.shape),)), 0
    places = F.nonzero(condition)
    return F.take(x, F.reshape(places, (places.shape[1],)), axis=axis_of(axis, len(x.shape), "axis"))


@onnx("OneHot")
def one_hot(call: Call, index: Tensor, classes: Tensor, values: Tensor, *, axis: int = -1) -> Result:
    found = call.contents(classes)
    if found is None:
        whole_depth = classes if classes.dtype.is_integer else cast(classes, dtypes.int64)
        depth = as_shape(whole_depth)[0]
    else:
        depth = int(found.reshape(()))
    rank = len(index.shape) + 1
    at = axis_of(axis, rank, "axis")
    whole = index if index.dtype.is_integer else cast(index, dtypes.int64)
    whole = from_end(index_of(whole), depth)
    each = F.iota(size=depth, dtype=whole.dtype)
    each = each if isinstance(each, Value) else index.network.constant(each)
    row = F.reshape(each, tuple(depth if i == at else 1 for i in range(rank)))
    hit = F.equal(F.reshape(whole, (*index.shape[:at], 1, *index.shape[at:])), row)
    off, on = (F.reshape(F.slice(values, (i,), (1,), (1,)), ()) for i in (0, 1))
    return F.where(hit, on, off)


@onnx("ArrayFeatureExtractor", domain="ai.onnx.ml")
def array_feature_extractor(x: Tensor, index: Tensor) -> Result:
    at = len(x.shape) - 1
    found = F.take(x, F.reshape(index_of(index), (elements(index.shape),)), axis=at)
    return F.reshape(found, (1, *found.shape)) if at == 0 else found


@onnx("Binarizer", domain="ai.onnx.ml")
def binarizer(x: Tensor, *, threshold: float = 0.0) -> Result:
    if not x.dtype.is_float and math.isfinite(threshold):
        threshold = math.floor(threshold)  # 0 is above -0.5, which as an integer were 0 too
    return cast(F.greater(x, number(x, threshold)), x.dtype)


@onnx("NonMaxSuppression", folds=False)
def non_max_suppression(
    call: Call, boxes: Tensor, scores: Tensor, most: MaybeTensor = None, overlap: MaybeTensor = None,
    least: MaybeTensor = None, *, center_point_box: int = 0,
) -> Result:  # fmt: skip
    """By a loop over the boxes of each class in the order of their scores: one is kept that no kept one overlaps."""
    batches, classes, count = scores.shape
    known = None if most is None else call.contents(most)
    if most is None or known is not None and not known.any():
        return call.network.constant(np.zeros((0, 3), np.int64))
    corners = _corners(boxes, center_point_box)
    ordered, order = F.sort(scores, axis=2, descending=True)
    shape = (batches, classes, count)
    places = F.reshape(order, (*shape, 1))
    spread = F.expand(F.reshape(corners, (batches, 1, count, 4)), (*shape, 4))
    sorted_boxes = F.gather(spread, F.expand(places, (*shape, 4)), axis=2)
    overlaps = _overlaps(sorted_boxes)
    limit = number(boxes, 0.0) if overlap is None else F.reshape(overlap, ())
    hides = F.greater(overlaps, limit)  # [N, C, i, j]
    alive = F.equal(ordered, ordered)
    if least is not None:
        alive = F.greater(ordered, F.reshape(least, ()))
    steps = F.iota(size=count, dtype=dtypes.int64)
    steps = steps if isinstance(steps, Value) else call.network.constant(steps)

    def step(left: Any, i: Any, row: Any, own: Any) -> Any:
        """left: what no kept box hides yet. A box that is left is kept, and hides those behind it."""
        kept = F.logical_and(left, F.equal(own, i))  # [N, C, count]: the box itself, where it is left
        here = F.reshape(F.reduce_max(cast(kept, dtypes.uint8), axes=(2,), keepdims=True), (batches, classes, 1))
        hidden = F.logical_and(F.logical_and(row, cast(here, dtypes.bool_)), F.greater(own, i))
        return F.logical_and(left, F.logical_not(hidden))

    rows = F.permute(hides, (2, 0, 1, 3))
    own = F.expand(F.reshape(steps, (1, 1, count)), shape)
    alive = fn.scan(step, [alive], [steps, rows], [own])
    first = F.cumsum(cast(alive, dtypes.int64), axis=2)
    kept = F.logical_and(alive, F.less_equal(first, F.reshape(cast(most, dtypes.int64), ())))
    found = F.nonzero(kept)  # [3, kept], in the order of batch, class, score
    kept_count = found.shape[1]
    batch, kind, at = (F.reshape(F.slice(found, (i, 0), (1, kept_count), (1, 1)), (kept_count,)) for i in range(3))
    index = fn.stack([batch, kind, at], 1)
    box = F.gather_nd(order, index, batch_dims=0)
    return fn.stack([batch, kind, box], 1)


def _corners(boxes: Any, center: int) -> Any:
    """[N, count, 4] as the lesser and the greater corner."""
    n, count, _ = boxes.shape
    a, b = (F.slice(boxes, (0, 0, i), (n, count, 2), (1, 1, 1)) for i in (0, 2))
    if center:
        half = F.mul(b, 0.5)
        return F.concat(F.sub(a, half), F.add(a, half), dim=2)
    return F.concat(F.minimum(a, b), F.maximum(a, b), dim=2)


def _overlaps(boxes: Any) -> Any:
    """Intersection over union of all pairs: [N, C, count, 4] → [N, C, count, count]."""
    n, c, count, _ = boxes.shape
    one, other = F.reshape(boxes, (n, c, count, 1, 4)), F.reshape(boxes, (n, c, 1, count, 4))

    def corner(x: Any, first: int) -> Any:
        return F.slice(x, (0, 0, 0, 0, first), (*x.shape[:4], 2), (1,) * 5)

    low = F.maximum(corner(one, 0), corner(other, 0))
    high = F.minimum(corner(one, 2), corner(other, 2))
    inside = F.reduce_prod(F.maximum(F.sub(high, low), 0.0), axes=(4,), keepdims=False)
    areas = [F.reduce_prod(F.sub(corner(x, 2), corner(x, 0)), axes=(4,), keepdims=False) for x in (one, other)]
    union = F.sub(F.add(areas[0], areas[1]), inside)
    some = F.greater(union, 0.0)
    return F.where(some, F.div(inside, F.where(some, union, number(union, 1))), number(union, 0))
