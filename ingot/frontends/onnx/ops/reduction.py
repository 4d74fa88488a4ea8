"""ONNX ops that reduce, sort, search and sum up along dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ingot import dims, dtypes
from ingot import functional as fn
from ingot.dims import Dimension
from ingot.dtypes import DType
from ingot.frontends.onnx.ops.chosen_axes import ChosenAxes, along_chosen
from ingot.frontends.onnx.ops.common import axes_at, cast, number, size_value, wide
from ingot.frontends.onnx.ops.shape import part
from ingot.frontends.onnx.table import Call, Unknown, onnx, whole_numbers
from ingot.frontends.table import MaybeInt, MaybeInts, MaybeTensor, Result, Results, Sizes, Tensor, Unsupported
from ingot.ir import F, Value
from ingot.ir.expr import integer_range
from ingot.ir.spec import axis_of, elements

Dims = tuple[Dimension, ...]
Axes = tuple[int, ...] | ChosenAxes
Reduce = Callable[[Any, Any, bool], Any]


def _along(op: Callable[..., Any], x: Any, axes: Axes, keep: bool) -> Any:
    return axes.reduce(op, x, keep) if isinstance(axes, ChosenAxes) else op(x, axes=axes, keepdims=keep)


def _of(op: Callable[..., Any]) -> Reduce:
    return lambda x, axes, keep: _along(op, x, axes, keep)


def _extreme(op: Callable[..., Any], neutral: float) -> Reduce:
    def run(x: Any, axes: Axes, keep: bool) -> Any:
        if not isinstance(axes, ChosenAxes) and any(x.shape[a] == 0 for a in axes):
            shape = tuple(1 if i in axes else d for i, d in enumerate(x.shape) if keep or i not in axes)
            return F.expand(number(x, _end(x.dtype, neutral)), shape) if shape else number(x, _end(x.dtype, neutral))
        if x.dtype is dtypes.bool_:
            return cast(_along(op, cast(x, dtypes.uint8), axes, keep), dtypes.bool_)
        return _along(op, x, axes, keep)

    return run


def _end(kind: DType, towards: float) -> Any:
    """The least or the greatest number of a type."""
    if kind.is_float:
        return towards
    low, high = (0, 1) if kind is dtypes.bool_ else integer_range(kind)
    return low if towards < 0 else high


_sum = _of(F.reduce_sum)


def _mean(x: Any, axes: Axes, keep: bool) -> Any:
    if x.dtype.is_float:
        return _along(F.reduce_mean, x, axes, keep)
    if isinstance(axes, ChosenAxes):
        raise Unknown(axes.operand, "the axes of a mean of integers")
    total = cast(F.reduce_sum(x, axes=axes, keepdims=keep), dtypes.float64)
    count = elements([x.shape[a] for a in axes])
    if not isinstance(count, int):
        raise Unsupported("the mean of integers over a size that only a run knows")
    return cast(F.div(total, float(count)), x.dtype)


def _floating(x: Any) -> Any:
    """Floats of at least 32 bits; integers as float64, which a root of them needs."""
    return wide(x) if x.dtype.is_float else cast(x, dtypes.float64)


def _l1(x: Any, axes: Axes, keep: bool) -> Any:
    return _sum(x if x.dtype.kind == "uint" else F.abs(x), axes, keep)


def _l2(x: Any, axes: Axes, keep: bool) -> Any:
    y = _floating(x)
    return cast(F.sqrt(_sum(F.mul(y, y), axes, keep)), x.dtype)


def _log_sum(x: Any, axes: Axes, keep: bool) -> Any:
    return cast(F.log(_sum(_floating(x), axes, keep)), x.dtype)


def _log_sum_exp(x: Any, axes: Axes, keep: bool) -> Any:
    y = _floating(x)
    if isinstance(axes, ChosenAxes):  # that of several axes is that of one after the other
        return cast(axes.reduce(lambda x, axes, keepdims: _log_sum_exp(x, axes, keepdims), y, keep), x.dtype)
    if any(y.shape[a] == 0 for a in axes):
        return cast(F.log(_sum(F.exp(y), axes, keep)), x.dtype)
    top = F.reduce_max(y, axes=axes, keepdims=True)
    top = F.where(F.equal(F.abs(top), float("inf")), number(y, 0), top)
    found = F.add(F.log(_sum(F.exp(F.sub(y, top)), axes, True)), top)
    shape = tuple(d for i, d in enumerate(found.shape) if keep or i not in axes)
    return cast(F.reshape(found, shape), x.dtype)


_REDUCTIONS: dict[str, Reduce] = {
    "ReduceSum": _sum, "ReduceMean": _mean, "ReduceProd": _of(F.reduce_prod),
    "ReduceMax": _extreme(F.reduce_max, -math.inf), "ReduceMin": _extreme(F.reduce_min, math.inf), "ReduceL1": _l1,
    "ReduceL2": _l2, "ReduceLogSum": _log_sum,
    "ReduceLogSumExp": _log_sum_exp, "ReduceSumSquare": lambda x, axes, keep: _sum(F.mul(x, x), axes, keep),
}  # fmt: skip


def _reduction(name: str, compute: Reduce) -> None:
    first = 13 if name == "ReduceSum" else 18

    @onnx(name, until=first - 1)
    def of_attribute(x: Tensor, *, axes: MaybeInts = None, keepdims: bool = True) -> Result:
        return compute(x, axes_at(axes or range(len(x.shape)), len(x.shape)), keepdims)

    @onnx(name, since=first)
    def of_operand(
        call: Call, x: Tensor, axes: MaybeTensor = None, *, keepdims: bool = True, noop_with_empty_axes: bool = False
    ) -> Result:
        named = axes is not None and axes.shape != (0,)
        if not named and noop_with_empty_axes:  # as a reduction of each element by itself
            return F.reshape(compute(F.reshape(x, (*x.shape, 1)), (len(x.shape),), False), x.shape)
        if not named or axes is None:
            return compute(x, tuple(range(len(x.shape))), keepdims)
        if call.contents(axes) is None:
            return compute(x, ChosenAxes(call, axes, x), keepdims)
        found = whole_numbers(call, axes, "axes")
        return compute(x, axes_at(found or range(len(x.shape)), len(x.shape)), keepdims)


for _name, _compute in _REDUCTIONS.items():
    _reduction(_name, _compute)


def _place(x: Any, axis: int, keepdims: bool, last: bool) -> Any:
    at = axis_of(axis, len(x.shape), "axis")
    if not last:
        return F.argmax(x, axis=at, keepdims=keepdims)
    size = x.shape[at]
    back = part(x, at, size - 1 if isinstance(size, int) else size + -1, size, -1)
    found = F.argmax(back, axis=at, keepdims=keepdims)
    return F.sub(size_value(found, dims.add(size, -1)), found)


@onnx("ArgMax")
def argmax(x: Tensor, *, axis: int = 0, keepdims: bool = True, select_last_index: bool = False) -> Result:
    return _place(x, axis, keepdims, select_last_index)


@onnx("ArgMin")
def argmin(x: Tensor, *, axis: int = 0, keepdims: bool = True, select_last_index: bool = False) -> Result:
    if x.dtype.is_float or x.dtype.kind == "int":
        y = F.neg(x) if x.dtype.is_float else F.logical_xor(x, number(x, -1))
    else:
        y = F.sub(number(x, 2**x.dtype.bits - 1), x)
    return _place(y, axis, keepdims, select_last_index)


# -------------------------------------------------------------------------------------- softmax and its kin


def _flat(op: Callable[..., Any], x: Any, axis: int) -> Any:
    """Until opset 13 all dimensions from the axis on count together."""
    at = axis_of(axis, len(x.shape), "axis") if x.shape else 0
    rows = F.reshape(x, (elements(x.shape[:at]), elements(x.shape[at:])))
    return F.reshape(op(rows, axis=1), x.shape)


def _softmax(name: str, op: Callable[..., Any]) -> None:
    @onnx(name, until=12)
    def of_rows(x: Tensor, *, axis: int = 1) -> Result:
        return _flat(op, x, axis)

    @onnx(name, since=13)
    def of_axis(x: Tensor, *, axis: int = -1) -> Result:
        return op(x, axis=axis_of(axis, len(x.shape), "axis"))


def _hardmax(x: Any, axis: int) -> Any:
    best = F.argmax(x, axis=axis, keepdims=True)
    size = x.shape[axis]
    at = F.iota(size=size, dtype=dtypes.int64)
    at = at if isinstance(at, Value) else x.network.constant(at)
    shape = tuple(size if i == axis else 1 for i in range(len(x.shape)))
    return cast(F.equal(best, F.reshape(at, shape)), x.dtype)


_softmax("Softmax", F.softmax)
_softmax("LogSoftmax", F.log_softmax)
_softmax("Hardmax", _hardmax)


# ------------------------------------------------------------------------------------------------ running sums


def _running(op: Callable[..., Any], x: Any, axis: int, neutral: int, exclusive: bool, reverse: bool) -> Any:
    at = axis_of(axis, len(x.shape), "axis")
    size = x.shape[at]
    kind = x.dtype
    y = _reversed(x, at) if reverse else x
    if exclusive:
        rank = len(x.shape)
        before = tuple(1 if i == at else 0 for i in range(rank))
        y = F.pad(part(y, at, 0, size + -1), before=before, after=(0,) * rank, value=float(neutral))
    y = op(y, axis=at)
    return cast(_reversed(y, at) if reverse else y, kind)


def _reversed(x: Any, axis: int) -> Any:
    size: Dimension = x.shape[axis]
    return part(x, axis, size + -1, size, -1)


@onnx("CumSum")
def cumsum(call: Call, x: Tensor, axis: Tensor, *, exclusive: bool = False, reverse: bool = False) -> Result:
    return along_chosen(call, x, axis, lambda at: _running(F.cumsum, x, at, 0, exclusive, reverse))


@onnx("CumProd")
def cumprod(call: Call, x: Tensor, axis: Tensor, *, exclusive: bool = False, reverse: bool = False) -> Result:
    return along_chosen(call, x, axis, lambda at: _running(F.cumprod, x, at, 1, exclusive, reverse))


# --------------------------------------------------------------------------------------------- sorted elements


def _top_k(x: Value, k: Any, axis: int, largest: bool) -> Results:
    at = axis_of(axis, len(x.shape), "axis")
    return F.top_k(x, axis=at, k=k, largest=largest)  # type: ignore[no-any-return]


@onnx("TopK", until=9)
def top_k_1(x: Tensor, *, k: int, axis: int = -1) -> Results:
    return _top_k(x, k, axis, True)


@onnx("TopK", since=10)
def top_k(x: Tensor, k: Sizes, *, axis: int = -1, largest: bool = True, sorted: bool = True) -> Results:
    """As many as a size says are the first of all in order."""
    if len(k) != 1:
        raise Unsupported(f"k must be one number, not {len(k)}")
    if isinstance(k[0], int):
        return _top_k(x, k[0], axis, largest)
    at = axis_of(axis, len(x.shape), "axis")
    return tuple(part(y, at, 0, k[0]) for y in F.sort(x, axis=at, descending=largest))


@onnx("Unique", folds=False)
def unique(call: Call, x: Tensor, *, axis: MaybeInt = None, sorted: bool = True) -> Results:
    by_slices = axis is not None and len(x.shape) != 1
    flat = _keys(x, axis_of(axis or 0, len(x.shape), "axis")) if by_slices else F.reshape(x, (elements(x.shape),))
    values, inverse, counts = fn.unique(flat, True, True)
    size = flat.shape[0]
    places = F.iota(size=size, dtype=dtypes.int64)
    places = places if isinstance(places, Value) else call.network.constant(places)
    start = F.expand(size_value(places, size), (values.shape[0],))
    first = F.scatter(start, inverse, places, axis=0, mode="min")
    if by_slices:
        values = F.take(x, first, axis=axis_of(axis or 0, len(x.shape), "axis"))
    if sorted:
        return values, first, inverse, counts
    _, order = F.sort(first, axis=0, descending=False)
    _, rank = F.sort(order, axis=0, descending=False)
    along = axis_of(axis or 0, len(x.shape), "axis") if by_slices else 0
    return (F.take(values, order, axis=along), F.take(first, order, axis=0), F.take(rank, inverse, axis=0),
            F.take(counts, order, axis=0))  # fmt: skip


MAX_COMPARED = 1 << 22  # elements of all pairs of slices


def _keys(x: Any, axis: int) -> Any:
    """For each slice along an axis how many come before it: equal for equal ones, and in their order."""
    count = x.shape[axis]
    rest = [i for i in range(len(x.shape)) if i != axis]
    width = elements([x.shape[i] for i in rest])
    if not isinstance(count, int) or not isinstance(width, int) or count * count * width > MAX_COMPARED:
        raise Unsupported("slices to compare must be of sizes that are known and small")
    rows = F.reshape(F.permute(x, (axis, *rest)), (count, width))
    one, other = F.reshape(rows, (count, 1, width)), F.reshape(rows, (1, count, width))
    same = cast(F.equal(one, other), dtypes.int32)
    before = F.cumprod(F.pad(part(same, 2, 0, width - 1), before=(0, 0, 1), after=(0, 0, 0), value=1.0), axis=2)
    less = F.mul(cast(F.less(other, one), dtypes.int32), cast(before, dtypes.int32))
    return cast(F.reduce_sum(less, axes=(1, 2), keepdims=False), dtypes.int64)


# -------------------------------------------------------------------------------------------------- norms of rows


@onnx("LpNormalization")
def lp_normalization(x: Tensor, *, axis: int = -1, p: int = 2) -> Result:
    at = (axis_of(axis, len(x.shape), "axis"),)
    if p not in (1, 2):
        raise Unsupported(f"p must be 1 or 2, not {p}")
    size = (_l1 if p == 1 else _l2)(x, at, True)
    return F.where(F.equal(size, 0.0), number(x, 0), F.div(x, size))


@onnx("MeanVarianceNormalization")
def mean_variance_normalization(x: Tensor, *, axes: MaybeInts = None) -> Result:
    at = axes_at((0, 2, 3) if axes is None else axes, len(x.shape))
    centred = F.sub(x, F.reduce_mean(x, axes=at, keepdims=True))
    spread = F.sqrt(F.reduce_mean(F.mul(centred, centred), axes=at, keepdims=True))
    return F.div(centred, F.add(spread, 1e-9))


def total(x: Any, axes: Sequence[int], keepdims: bool) -> Any:
    """The sum over axes."""
    return F.reduce_sum(x, axes=tuple(axes), keepdims=keepdims)


