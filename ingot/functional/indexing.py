"""Elements put to or taken from places that indices or masks name, beside the functions that are derived."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ingot import dtypes
from ingot.dims import Dimension
from ingot.dtypes import DType
from ingot.errors import OpError
from ingot.functional.reduction import cumsum
from ingot.functional.shape import Size, concat, expand_dims, nonzero
from ingot.functional.tensor import Tensor, axis_of
from ingot.ir import F, Value, spec
from ingot.ir.expr import integer_range
from ingot.ir.sizes import as_size


def gather_nd(input: Tensor, indices: Tensor, batch_dims: int = 1) -> Tensor:
    """What stands at the coordinates indices[…, :], behind the first `batch_dims` dimensions (ONNX GatherND).

    Args:
        indices: int32 or int64 [batch…, …, k]: k coordinates each, those below 0 counted from the end.

    Raises:
        OpError: batch dimensions that differ, more coordinates than there are dimensions.
    """
    return F.gather_nd(input, indices, batch_dims=batch_dims)


def scatter(input: Tensor, dim: int, indices: Tensor, updates: Tensor) -> Tensor:
    """The input, where updates[i, j, …] stands at the place that indices[i, j, …] says along `dim` (ONNX
    ScatterElements). Of two updates for one place the later one stays.
    """
    return F.scatter(input, indices, updates, axis=axis_of(input, dim))


# ---------------------------------------------------------------------------------------------- reducing scatters

# The mode of scatter for each reduction of scatter_reduce.
_MODES = {"sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min"}


def scatter_add(input: Tensor, dim: int, indices: Tensor, updates: Tensor) -> Tensor:
    """The input with updates[i, j, …] added at the place that indices[i, j, …] says along `dim`.

    Updates add up in their order. Integers wrap; float16 and bfloat16 add up in float32 and are rounded once.
    """
    return scatter_reduce(input, dim, indices, updates, "sum")


def scatter_reduce(
    input: Tensor, dim: int, indices: Tensor, updates: Tensor, reduce: str, include_self: bool = True
) -> Tensor:
    """The updates for each place along `dim`, reduced with what is there: "sum", "prod", "mean", "amax" or "amin".

    Args:
        include_self: False: what the input has at a place with updates takes no part.

    Raises:
        OpError: another reduction, or what scatter raises. The mean of integers is rounded down.
    """
    if reduce not in _MODES:
        raise OpError(f"scatter_reduce: there is no reduction {reduce!r}; known are {', '.join(_MODES)}")
    kind, axis = dtypes.get(input.dtype), axis_of(input, dim)
    if kind.is_float and kind.bits < 32:
        wide = (F.cast(input, "float32"), F.cast(updates, "float32"))
        return F.cast(scatter_reduce(wide[0], dim, indices, wide[1], reduce, include_self), kind)
    start = input
    if not include_self:
        start = F.scatter(input, indices, _like(indices, _neutral(reduce, kind), kind), axis=axis)
    result = F.scatter(start, indices, updates, axis=axis, mode=_MODES[reduce])
    if reduce != "mean":
        return result
    ones = _like(indices, 1, kind)
    counts = F.scatter(_like(input, int(include_self), kind), indices, ones, axis=axis, mode="add")
    counts = F.maximum(counts, np.ones((), kind.numpy))
    return F.div(result, counts) if kind.is_float else F.floordiv(result, counts)


def _neutral(reduce: str, kind: DType) -> float:
    """What changes nothing in a reduction."""
    low, high = (-np.inf, np.inf) if kind.is_float else integer_range(kind)
    return {"sum": 0, "mean": 0, "prod": 1, "amax": low, "amin": high}[reduce]


def _like(x: Tensor, value: float, kind: DType) -> Tensor:
    """A number over the shape of x."""
    return _filled(x, tuple(x.shape), value, kind)


def _filled(x: Tensor, shape: Sequence[Dimension], value: float, kind: DType) -> Tensor:
    """A number over a shape, in the network of x if it has one."""
    number = np.full((), value, kind.numpy)
    return F.expand(x.network.constant(number) if isinstance(x, Value) else number, tuple(shape))


# ---------------------------------------------------------------------------------------------- classes and counts


def one_hot(input: Tensor, num_classes: Size) -> Tensor:
    """For each class (int32 or int64, 0..num_classes − 1) a row of zeros with a 1 at its place: int64 [..., n].

    A number that is no class is a fault at run time.
    """
    size = as_size(num_classes)
    at = expand_dims(input, -1)
    zeros = _filled(input, (*input.shape, size), 0, dtypes.int64)
    return F.scatter(zeros, at, _like(at, 1, dtypes.int64), axis=len(input.shape), from_end=False)


def bincount(input: Tensor, weights: Tensor | None = None, minlength: Size = 0) -> Tensor:
    """How often each number 0, 1, … stands in the input (integers [n]): int64 [the greatest + 1, or minlength].

    Args:
        weights: numbers [n] that are added up instead of ones; float32 stays, others become float64.
        minlength: the least size of the result, which only a run shows.

    Raises:
        OpError: an input of more dimensions, weights of another shape. A number below 0 is a fault at run time.
    """
    if len(input.shape) != 1 or (weights is not None and tuple(weights.shape) != tuple(input.shape)):
        raise OpError(f"bincount: the input must have one dimension and weights its shape, not {list(input.shape)}")
    at = F.cast(input, "int64")
    beyond = F.add(at, np.ones((), np.int64))
    size = as_size(F.reduce_max(concat([beyond, as_size(minlength)]), axes=(0,)))
    if weights is None:
        updates = _like(at, 1, dtypes.int64)
    else:
        updates = weights if dtypes.get(weights.dtype) is dtypes.float32 else F.cast(weights, "float64")
    zeros = _filled(at, (size,), 0, dtypes.get(updates.dtype))
    return F.scatter(zeros, at, updates, mode="add", from_end=False)


def unique(
    input: Tensor, return_inverse: bool = False, return_counts: bool = False, *, consecutive: bool = False,
    dim: int | None = None,
) -> Tensor | tuple[Tensor, ...]:  # fmt: skip
    """The different elements, ascending, as [count], known only at run time. Each NaN is one, behind all others.

    Args:
        return_inverse: gives the place among these of each element too, int64 of the input's shape.
        return_counts: gives how often each stands in the input too, int64 [count].
        consecutive: elements stay in their order, and only runs of equal ones become one.
        dim: slices along this dimension are compared instead of elements, from their first element to their last: the
            result has the input's shape but for [count] there, and the inverse is [its size].

    Raises:
        OpError: slices without elements, or, unless `consecutive`, of a size that only a run shows.
    """
    kind = dtypes.get(input.dtype)
    x = F.cast(input, "uint8") if kind is dtypes.bool_ else input
    axis = 0 if dim is None else axis_of(input, dim)
    if dim is None:
        x = F.reshape(x, (spec.elements(input.shape),))
    rows, count = _rows(x, axis), x.shape[axis]
    numbers = F.iota(size=count, dtype=dtypes.int64)
    keys, places = (rows, numbers) if consecutive else F.sort(_row_ranks(rows))
    first = _begin(keys, numbers)
    found = nonzero(first)
    at = F.reshape(found, (found.shape[1],))
    result = F.take(x, F.take(places, at), axis=axis)
    results = [F.cast(result, kind) if kind is dtypes.bool_ else result]
    if return_inverse:
        ranks = F.sub(cumsum(F.cast(first, "int64"), 0), np.ones((), np.int64))
        inverse = F.scatter(_like(numbers, 0, dtypes.int64), places, ranks)
        results.append(F.reshape(inverse, tuple(input.shape)) if dim is None else inverse)
    if return_counts:
        ends = concat([at, count])
        results.append(F.sub(F.slice(ends, (1,), (at.shape[0],), (1,)), at))
    return results[0] if len(results) == 1 else tuple(results)


def _rows(x: Tensor, axis: int) -> Tensor:
    """Slices along an axis as rows; of one dimension its elements."""
    if len(x.shape) == 1:
        return x
    rest = tuple(i for i in range(len(x.shape)) if i != axis)
    width = spec.elements(tuple(x.shape[i] for i in rest))
    if width == 0:
        raise OpError(f"unique: the slices along dimension {axis} of {list(x.shape)} have no elements to compare")
    return F.reshape(F.permute(x, (axis, *rest)), (x.shape[axis], width))


def _begin(keys: Tensor, numbers: Tensor) -> Tensor:
    """Whether each element differs from the one before it, or each row from the row before it; the first does."""
    before = F.take(keys, F.sub(numbers, np.ones((), np.int64)), axis=0)  # none before the first, which counts
    differs = F.not_equal(keys, before)
    if len(keys.shape) == 2:
        differs = F.not_equal(F.reduce_max(F.cast(differs, "int32"), axes=(1,)), np.zeros((), np.int32))
    return F.logical_or(F.equal(numbers, np.zeros((), np.int64)), differs)


def _row_ranks(rows: Tensor) -> Tensor:
    """Numbers of rows in their order, the same for equal ones. One-dimensional: the elements, which are such numbers.

    Columns become numbers, then pairs of neighbouring columns, then pairs of these: in as many rounds as the width has
    bits.
    """
    if len(rows.shape) == 1:
        return rows
    count, width = rows.shape
    if not isinstance(width, int):
        raise OpError(f"unique: slices of {width} elements, a size that only a run shows, have no native order")
    ranks = _column_ranks(rows)
    while width > 1:
        if width % 2:
            ranks = concat([ranks, _filled(ranks, (count, 1), 0, dtypes.int64)], dim=1)
        width = (width + 1) // 2
        left, right = (F.slice(ranks, (0, side), (count, width), (1, 2)) for side in (0, 1))
        ranks = _column_ranks(F.add(F.mul(left, np.full((), 2**31, np.int64)), right))  # each is below 2^31
    return F.reshape(ranks, (count,))


def _column_ranks(x: Tensor) -> Tensor:
    """The number of each element among the different ones of its column, in their order: int64 of x's shape."""
    values, places = F.sort(x, axis=0)
    numbers = F.iota(size=x.shape[0], dtype=dtypes.int64)
    before = F.take(values, F.sub(numbers, np.ones((), np.int64)), axis=0)
    start = F.reshape(F.equal(numbers, np.zeros((), np.int64)), (x.shape[0], 1))
    first = F.logical_or(start, F.not_equal(values, before))
    ranks = F.sub(F.cumsum(F.cast(first, "int64"), axis=0), np.ones((), np.int64))
    return F.scatter(_like(x, 0, dtypes.int64), places, ranks, axis=0)


def bucketize(input: Tensor, boundaries: Tensor, right: bool = False) -> Tensor:
    """How many of the ascending boundaries [n] are below each element, or with `right` at most as large: int64."""
    return F.bucketize(input, boundaries, right=right)


def searchsorted(
    sorted_sequence: Tensor, values: Tensor, right: bool = False, *, sorter: Tensor | None = None
) -> Tensor:
    """Where each value belongs in its ascending row: int64 of the values' shape.

    Args:
        sorted_sequence: [n], or rows [..., n] with the values' leading dimensions.
        right: behind equal elements instead of before them.
        sorter: int64 of the sequence's shape, the places of the sequence in ascending order, where it is not sorted.
    """
    if sorter is not None:
        sorted_sequence = F.gather(sorted_sequence, sorter, axis=len(sorted_sequence.shape) - 1)
    return F.bucketize(values, sorted_sequence, right=right)
