"""ATen ops that put elements where indices say, count them, or find them among sorted ones."""

from __future__ import annotations

import numpy as np

from ingot import dtypes
from ingot import functional as fn
from ingot.frontends.torch_export.aten.making import filled
from ingot.frontends.torch_export.aten.picking import index_parts, joined_axes
from ingot.frontends.torch_export.aten.pointwise import mul
from ingot.frontends.torch_export.aten.promotion import as_operand, cast, category
from ingot.frontends.torch_export.aten.table import (
    MaybeDType,
    MaybeInt,
    MaybeStr,
    MaybeTensor,
    MaybeTensors,
    Operand,
    Result,
    Results,
    Scalar,
    Size,
    Tensor,
    Unsupported,
    aten,
    few,
)
from ingot.ir import F, Value
from ingot.ir.spec import axis_of, broadcast, elements


def _places(index: Tensor) -> Result:
    """Indices of which those below 0 are out of range, as in torch's scatters."""
    where = index if index.dtype in (dtypes.int32, dtypes.int64) else cast(index, dtypes.int64)
    beyond = np.array(np.iinfo(where.dtype.numpy).max, where.dtype.numpy)
    return F.where(F.less(where, np.zeros((), where.dtype.numpy)), beyond, where)


def _reduced(self: Tensor, axis: int, index: Tensor, updates: Tensor, reduce: str, include_self: bool = True) -> Result:
    """A scatter of indices and updates of one shape. Sums and products of bools are any and all, as in torch."""
    if self.dtype is not dtypes.bool_:
        return fn.scatter_reduce(self, axis, index, updates, reduce, include_self)
    if reduce == "mean":
        raise Unsupported("the mean of bools does not exist")
    extreme = {"sum": "amax", "prod": "amin"}.get(reduce, reduce)
    wide = [cast(x, dtypes.uint8) for x in (self, updates)]
    return cast(fn.scatter_reduce(wide[0], axis, index, wide[1], extreme, include_self), dtypes.bool_)


# ------------------------------------------------------------------------------------------------------- scatters


def _scattered(
    self: Tensor, dim: int, index: Tensor, src: Operand, reduce: str = "", include_self: bool = True
) -> Result:
    """A scatter along a dimension; of the source as much as there are indices."""
    updates = src if isinstance(src, Value) else filled(self.network, index.shape, src, self.dtype)
    whole = self.shape
    if not self.ndim():
        self = F.reshape(self, (1,))
    if not index.shape:
        index = F.reshape(index, (1,))
    if not updates.shape:
        updates = F.reshape(updates, (1,))
    if len(updates.shape) == len(index.shape) and updates.shape != index.shape:
        rank = len(index.shape)
        updates = F.slice(updates, (0,) * rank, index.shape, (1,) * rank)
    axis, where = axis_of(dim, self.ndim(), "dim"), _places(index)
    if reduce:
        result = _reduced(self, axis, where, updates, reduce, include_self)
    else:
        result = F.scatter(self, where, updates, axis=axis)
    return result if result.shape == whole else F.reshape(result, whole)


@aten("aten.scatter.src", "aten.scatter.value")
def scatter(
    self: Tensor, dim: int, index: Tensor, src: MaybeTensor = None, value: Operand = 0
) -> Result:
    return _scattered(self, dim, index, value if src is None else src)


@aten("aten.scatter.reduce", "aten.scatter.value_reduce")
def scatter_by(
    self: Tensor, dim: int, index: Tensor, reduce: str, src: MaybeTensor = None, value: Operand = 0
) -> Result:
    names = {"add": "sum", "multiply": "prod"}
    if reduce not in names:
        raise Unsupported(f"the reduction {reduce} is not supported, only add and multiply")
    return _scattered(self, dim, index, value if src is None else src, names[reduce])


@aten("aten.scatter_add.default")
def scatter_add(self: Tensor, dim: int, index: Tensor, src: Tensor) -> Result:
    return _scattered(self, dim, index, src, "sum")


@aten("aten.scatter_reduce.two")
def scatter_reduce(
    self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool = True
) -> Result:
    return _scattered(self, dim, index, src, reduce, include_self)


def _along(self: Tensor, dim: int, index: Tensor, source: Tensor) -> tuple[int, Tensor]:
    """The axis, and an index of one dimension spread over the source."""
    if not self.ndim() or len(source.shape) != self.ndim():
        raise Unsupported("the source must have the tensor's dimensions, at least one")
    axis = axis_of(dim, self.ndim(), "dim")
    wide = F.reshape(_places(index), tuple(elements(index.shape) if i == axis else 1 for i in range(self.ndim())))
    return axis, F.expand(wide, source.shape)


@aten("aten.index_add.default")
def index_add(self: Tensor, dim: int, index: Tensor, source: Tensor, alpha: Scalar = 1) -> Result:
    axis, where = _along(self, dim, index, source)
    updates = source if alpha == 1 else cast(mul(source, alpha), self.dtype)
    return _reduced(self, axis, where, updates, "sum")


@aten("aten.index_copy.default")
def index_copy(self: Tensor, dim: int, index: Tensor, source: Tensor) -> Result:
    axis, where = _along(self, dim, index, source)
    return F.scatter(self, where, source, axis=axis)


@aten("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor")
def index_fill(self: Tensor, dim: int, index: Tensor, value: Operand) -> Result:
    """Indices may count from the end, as in torch."""
    if not self.ndim():
        raise Unsupported("it takes a tensor with dimensions")
    axis = axis_of(dim, self.ndim(), "dim")
    count = elements(index.shape)
    where = F.reshape(cast(index, dtypes.int64), tuple(count if i == axis else 1 for i in range(self.ndim())))
    shape = (*self.shape[:axis], count, *self.shape[axis + 1 :])
    return F.scatter(self, F.expand(where, shape), filled(self.network, shape, value, self.dtype), axis=axis)


@aten("aten.index_reduce.default")
def index_reduce(
    self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool = True
) -> Result:
    axis, where = _along(self, dim, index, source)
    return _reduced(self, axis, where, source, reduce, include_self)


@aten("aten.put.default")
def put(self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Result:
    """Into the elements as one row; indices may count from the end."""
    flat, count = F.reshape(self, (elements(self.shape),)), elements(index.shape)
    where, updates = F.reshape(cast(index, dtypes.int64), (count,)), F.reshape(source, (count,))
    done = _reduced(flat, 0, where, updates, "sum") if accumulate else F.scatter(flat, where, updates)
    return F.reshape(done, self.shape)


@aten("aten.masked_scatter.default")
def masked_scatter(self: Tensor, mask: Tensor, source: Tensor) -> Result:
    shape = broadcast(self.shape, mask.shape)
    return F.masked_scatter(self if self.shape == shape else F.expand(self, shape), mask, source)


@aten("aten.index_put.default")
def index_put(self: Tensor, indices: MaybeTensors, values: Tensor, accumulate: bool = False) -> Result:
    """x[i, j, …] = values, or += with accumulate."""
    one = indices[0] if len(indices) == 1 else None
    if one is not None and one.dtype is dtypes.bool_ and not accumulate and len(one.shape) <= self.ndim():
        left = self.ndim() - len(one.shape)
        if len(values.shape) <= left:  # one value for all that a mask chooses
            wide = F.reshape(one, (*one.shape, *[1] * left))
            return F.where(wide, cast(values, self.dtype), self)
    each = [part for i in indices for part in index_parts(i)]
    given = [(axis, cast(i, dtypes.int64)) for axis, i in enumerate(each) if i is not None]
    if not given or len(each) > self.ndim() or any(category(i.dtype) != 1 for i in each if i is not None):
        raise Unsupported("the indices must be integers or masks, at least one and at most one for each dimension")
    axes = [axis for axis, _ in given]
    rest = [i for i in range(self.ndim()) if i not in axes]
    shape = given[0][1].shape
    for _, i in given[1:]:
        shape = broadcast(shape, i.shape)
    where = fn.stack([i if i.shape == shape else F.expand(i, shape) for _, i in given], -1)
    first, order = joined_axes(axes), (*axes, *rest)
    sizes = [self.shape[i] for i in rest]
    updates = F.expand(cast(values, self.dtype), (*sizes[:first], *shape, *sizes[first:]))
    depth = len(shape)
    moved = (*range(first, first + depth), *range(first), *range(first + depth, depth + len(sizes)))
    result = _put_nd(F.permute(self, order), where, F.permute(updates, moved), accumulate)
    return F.permute(result, tuple(order.index(i) for i in range(self.ndim())))


def _put_nd(x: Tensor, where: Tensor, updates: Tensor, accumulate: bool) -> Result:
    if not accumulate:
        return F.scatter_nd(x, where, updates)
    kind = x.dtype
    wide = dtypes.float32 if kind.is_float and kind.bits < 32 else kind
    if kind is dtypes.bool_:
        return cast(F.scatter_nd(cast(x, dtypes.uint8), where, cast(updates, dtypes.uint8), mode="max"), kind)
    return cast(F.scatter_nd(cast(x, wide), where, cast(updates, wide), mode="add"), kind)


# ------------------------------------------------------------------------------------------------------- gathers


@aten("aten.take.default")
def take(self: Tensor, index: Tensor) -> Result:
    flat, where = F.reshape(self, (elements(self.shape),)), cast(index, dtypes.int64)
    return F.reshape(F.gather(flat, F.reshape(where, (elements(index.shape),))), index.shape)


@aten("aten.take_along_dim.default")
def take_along_dim(self: Tensor, indices: Tensor, dim: MaybeInt = None) -> Result:
    if dim is None:
        return take(self, F.reshape(indices, (elements(indices.shape),)))
    if not self.ndim() or len(indices.shape) != self.ndim():
        raise Unsupported("the indices must have the tensor's dimensions, at least one")
    axis = axis_of(dim, self.ndim(), "dim")

    def other(shape: tuple[Size, ...]) -> tuple[Size, ...]:
        return (*shape[:axis], 1, *shape[axis + 1 :])

    both = broadcast(other(self.shape), other(indices.shape))

    def spread(x: Tensor) -> Result:
        return F.expand(x, (*both[:axis], x.shape[axis], *both[axis + 1 :]))

    return F.gather(spread(self), spread(cast(indices, dtypes.int64)), axis=axis)


# ---------------------------------------------------------------------------------------- counts and sorted elements


@aten("aten.one_hot.default")
def one_hot(self: Tensor, num_classes: int = -1) -> Result:
    if num_classes < 0:
        raise Unsupported("the number of classes must be given")
    return fn.one_hot(self, num_classes)


@aten("aten.bincount.default")
def bincount(self: Tensor, weights: MaybeTensor = None, minlength: Size = 0) -> Result:
    return fn.bincount(self, weights, minlength)


@aten("aten.histc.default")
def histc(self: Tensor, bins: int = 100, min: Scalar = 0, max: Scalar = 0) -> Result:
    if not isinstance(min, int | float) or not isinstance(max, int | float) or min > max or few(bins) < 1:
        raise Unsupported(f"{bins} bins of {min} to {max}: there must be one, of numbers in order")
    flat = F.reshape(self, (elements(self.shape),))
    if min < max:
        low, width = np.array(min, self.dtype.numpy), np.array(max - min, self.dtype.numpy)
    else:  # the least and the greatest of the data, and one more on both sides where these are the same
        least, most = (reduce(flat, axes=(0,), keepdims=False) for reduce in (F.reduce_min, F.reduce_max))
        same = F.equal(least, most)
        low = F.where(same, F.sub(least, 1.0), least)
        width = F.where(same, np.array(2, self.dtype.numpy), F.sub(most, least))
    share = F.div(F.sub(flat, low), width)
    inside = F.logical_and(F.greater_equal(share, 0.0), F.less_equal(share, 1.0))
    at = F.minimum(F.floor(F.mul(share, float(bins))), float(bins - 1))
    place = F.cast(F.where(inside, at, float(bins)), dtypes.int64)  # behind all bins what is in none
    ones = F.expand(self.network.constant(np.ones((), self.dtype.numpy)), flat.shape)
    zeros = self.network.constant(np.zeros(bins + 1, self.dtype.numpy))
    return F.slice(F.scatter(zeros, place, ones, axis=0, mode="add"), (0,), (bins,), (1,))


@aten("aten._unique2.default")
def unique(self: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> Results:
    return _all_three(self, return_inverse, return_counts, False, None)


@aten("aten.unique_consecutive.default")
def unique_consecutive(
    self: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: MaybeInt = None
) -> Results:
    return _all_three(self, return_inverse, return_counts, True, dim)


@aten("aten.unique_dim.default")
def unique_dim(
    self: Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Results:
    return _all_three(self, return_inverse, return_counts, False, dim)


def _all_three(
    self: Tensor, return_inverse: bool, return_counts: bool, consecutive: bool, dim: int | None
) -> Results:
    found = fn.unique(self, return_inverse, return_counts, consecutive=consecutive, dim=dim)
    rest = list(found[1:]) if isinstance(found, tuple) else []
    values = found[0] if isinstance(found, tuple) else found
    return values, rest.pop(0) if return_inverse else None, rest.pop(0) if return_counts else None


@aten("aten.bucketize.Tensor", "aten.bucketize.Scalar")
def bucketize(self: Operand, boundaries: Tensor, out_int32: bool = False, right: bool = False) -> Result:
    return _sorted_in(boundaries, self, right, out_int32)


@aten("aten.searchsorted.Tensor", "aten.searchsorted.Scalar")
def searchsorted(
    sorted_sequence: Tensor,
    self: Operand,
    out_int32: bool = False,
    right: bool = False,
    side: MaybeStr = None,
    sorter: MaybeTensor = None,
) -> Result:
    return _sorted_in(sorted_sequence, self, right or side == "right", out_int32, sorter)


def _sorted_in(marks: Tensor, values: Operand, right: bool, out_int32: bool, sorter: MaybeTensor = None) -> Result:
    found = as_operand(values, marks.dtype)
    x = found if isinstance(found, Value) else filled(marks.network, (), found, marks.dtype)
    result = fn.searchsorted(marks, x, right, sorter=sorter)
    return cast(result, dtypes.int32) if out_int32 else result


# ------------------------------------------------------------------------------------------------------- scans


@aten("aten.cumprod.default")
def cumprod(self: Tensor, dim: int, dtype: MaybeDType = None) -> Result:
    x = cast(self, dtype or (self.dtype if category(self.dtype) == 2 else dtypes.int64))
    return fn.cumprod(x, dim) if x.shape else x


@aten("aten.logcumsumexp.default")
def logcumsumexp(self: Tensor, dim: int) -> Result:
    return fn.logcumsumexp(self, dim) if self.shape else self


@aten("aten.cummax.default")
def cummax(self: Tensor, dim: int) -> Results:
    return fn.cummax(self, dim) if self.shape else (self, filled(self.network, (), 0, dtypes.int64))


@aten("aten.cummin.default")
def cummin(self: Tensor, dim: int) -> Results:
    return fn.cummin(self, dim) if self.shape else (self, filled(self.network, (), 0, dtypes.int64))
