"""ATen ops that pick elements: by indices, by masks, and by their rank among the others."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot import dtypes
from ingot import functional as fn
from ingot.dims import Dimension
from ingot.frontends.torch_export.aten.making import filled
from ingot.frontends.torch_export.aten.promotion import cast, category, size_tensor
from ingot.frontends.torch_export.aten.shapes import flat
from ingot.frontends.torch_export.aten.table import (
    MaybeBool,
    MaybeTensor,
    MaybeTensors,
    Result,
    Results,
    Size,
    Tensor,
    Unsupported,
    aten,
)
from ingot.ir import F, Value
from ingot.ir.spec import axis_of, elements


def _index(x: Tensor) -> Result:
    return x if x.dtype in (dtypes.int32, dtypes.int64) else cast(x, dtypes.int64)


@aten("aten.embedding.default")
def embedding(weight: Tensor, indices: Tensor) -> Result:
    return F.embedding(_index(indices), weight)


@aten("aten.index_select.default")
def index_select(self: Tensor, dim: int, index: Tensor) -> Result:
    where = _index(index)
    beyond = np.array(np.iinfo(where.dtype.numpy).max)  # a fault, as in torch; take would give zeros for −1
    return fn.index_select(self, dim, F.where(F.less(where, 0), beyond, where))


@aten("aten.gather.default")
def gather(self: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Result:
    return fn.gather(self, dim, _index(index))


@aten("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index(self: Tensor, indices: MaybeTensors) -> Result:
    each = [part for i in indices for part in index_parts(i)]
    given = [(axis, i) for axis, i in enumerate(each) if i is not None]
    if not given or len(each) > self.ndim() or any(category(i.dtype) != 1 for _, i in given):
        raise Unsupported("the indices must be integers or masks, at least one and at most one for each dimension")
    axes = [axis for axis, _ in given]
    rest = [i for i in range(self.ndim()) if i not in axes]
    first = joined_axes(axes)
    order = (*rest[:first], *axes, *rest[first:])
    x = self if order == tuple(range(self.ndim())) else F.permute(self, order)
    sizes = [self.shape[axis] for axis in axes]
    whole = elements(sizes)
    flat = F.reshape(x, (*x.shape[:first], whole, *x.shape[first + len(axes) :]))
    return F.take(flat, _joint_index([_index(i) for _, i in given], sizes), axis=first)


def joined_axes(axes: list[int]) -> int:
    """Behind how many of the other dimensions those that indices choose stand: torch puts ones apart in front."""
    return axes[0] if axes == list(range(axes[0], axes[-1] + 1)) else 0


def index_parts(index: Any) -> list[Any]:
    """The index itself; for a mask the indices of what is true, one for each of its dimensions."""
    if index is None or index.dtype not in (dtypes.bool_, dtypes.uint8):
        return [index]
    if not index.shape:
        raise Unsupported("indexing by a single truth is not supported")
    return list(fn.unbind(_true_places(index), 0))


def _true_places(x: Tensor) -> Result:
    """Places of one tensor are counted once, as in torch: all that they choose has the same size."""
    before = next((node.output for node in x.network.users(x) if node.op.name == "nonzero"), None)
    return F.nonzero(x) if before is None else before


@aten("aten.nonzero.default")
def nonzero(self: Tensor) -> Result:
    if not self.shape:
        raise Unsupported("the places in a tensor without dimensions are not supported")
    return F.permute(_true_places(self), (1, 0))


@aten("aten.nonzero_numpy.default", "aten.where.default")
def nonzero_each(self: MaybeTensor = None, condition: MaybeTensor = None) -> Results:
    x = self if self is not None else condition
    if x is None or not x.shape:
        raise Unsupported("it takes a tensor with dimensions")
    return tuple(index_parts(cast(x, dtypes.bool_)))


@aten("aten.masked_select.default")
def masked_select(self: Tensor, mask: Tensor) -> Result:
    if len(mask.shape) > self.ndim():
        raise Unsupported("the mask has more dimensions than the tensor")
    return fn.masked_select(self, cast(mask, dtypes.bool_)) if self.shape else fn.masked_select(
        F.reshape(self, (1,)), F.reshape(cast(mask, dtypes.bool_), (1,)))  # fmt: skip


@aten("aten.sort.default", "aten.sort.stable")
def sort(self: Tensor, dim: int = -1, descending: bool = False, stable: MaybeBool = None) -> Results:
    if not self.shape:
        return self, filled(self.network, (), 0, dtypes.int64)
    values, places = F.sort(self, axis=axis_of(dim, self.ndim(), "dim"), descending=descending)
    return values, places


@aten("aten.argsort.default", "aten.argsort.stable")
def argsort(self: Tensor, dim: int = -1, descending: bool = False, stable: MaybeBool = None) -> Result:
    return sort(self, dim, descending)[1]


def _at_rank(x: Tensor, rank: Any, dim: int, keepdim: bool) -> Results:
    """The elements of a rank from below along an axis, and where they are. rank: an int, or a tensor of x's rank that
    has 1 along the axis.
    """
    axis = axis_of(dim, x.ndim(), "dim")
    values, places = F.sort(x, axis=axis)
    shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    at = rank if isinstance(rank, Value) else F.expand(x.network.constant(np.full((1,) * x.ndim(), rank)), shape)
    found = [F.gather(part, at, axis=axis) for part in (values, places)]
    kept = shape if keepdim else (*shape[:axis], *shape[axis + 1 :])
    return tuple(F.reshape(part, kept) for part in found)


@aten("aten.kthvalue.default")
def kthvalue(self: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Results:
    if not self.shape:
        return self, filled(self.network, (), 0, dtypes.int64)
    return _at_rank(self, k - 1, dim, keepdim)


def _median(self: Tensor, dim: int, keepdim: bool, skips_nan: bool) -> Results:
    """The lower one of an even number. Sorted, NaN come last: the rank is among the numbers alone, or one is found."""
    if not self.shape:
        return self, filled(self.network, (), 0, dtypes.int64)
    axis = axis_of(dim, self.ndim(), "dim")
    count = filled(self.network, (), self.shape[axis], dtypes.int64)
    rank = F.floordiv(F.sub(count, np.int64(1)), np.int64(2))
    if self.dtype not in dtypes.FLOATS:
        numbers = None
    else:
        is_number = cast(F.equal(self, self), dtypes.int64)
        numbers = F.reduce_sum(is_number, axes=(axis,), keepdims=True)
    if numbers is None:
        rank = F.expand(rank, (*self.shape[:axis], 1, *self.shape[axis + 1 :]))
    elif skips_nan:
        rank = F.floordiv(F.maximum(F.sub(numbers, np.int64(1)), np.int64(0)), np.int64(2))
    else:
        rank = F.where(F.less(numbers, count), numbers, rank)
    return _at_rank(self, rank, dim, keepdim)


@aten("aten.median.dim")
def median_of(self: Tensor, dim: int, keepdim: bool = False) -> Results:
    return _median(self, dim, keepdim, False)


@aten("aten.nanmedian.dim")
def nanmedian_of(self: Tensor, dim: int, keepdim: bool = False) -> Results:
    return _median(self, dim, keepdim, True)


@aten("aten.median.default")
def median(self: Tensor) -> Result:
    return _median(flat(self), 0, False, False)[0]


@aten("aten.nanmedian.default")
def nanmedian(self: Tensor) -> Result:
    return _median(flat(self), 0, False, True)[0]


@aten("aten.topk.default")
def topk(self: Tensor, k: Size, dim: int = -1, largest: bool = True, sorted: bool = True) -> Results:
    """As many as a size says are the first of all in order."""
    if not self.shape:
        raise Unsupported("it takes a tensor with dimensions")
    axis = axis_of(dim, self.ndim(), "dim")
    if isinstance(k, int):
        values, places = F.top_k(self, axis=axis, k=k, largest=largest)
        return values, places
    shape = (*self.shape[:axis], k, *self.shape[axis + 1 :])
    none, ones = (0,) * len(shape), (1,) * len(shape)
    return tuple(F.slice(y, none, shape, ones) for y in F.sort(self, axis=axis, descending=largest))


def _joint_index(indices: list[Tensor], sizes: list[Dimension]) -> Any:
    """One index into the joint dimension, from the front; what is out of range for any one is out of range there."""
    place: Any = None
    inside: Any = None
    for one, size in zip(indices, sizes, strict=True):
        wide = cast(one, dtypes.int64)
        count = size if isinstance(size, int) else size_tensor(size, dtypes.int64)
        ok = F.logical_and(F.greater_equal(wide, F.neg(count) if isinstance(count, Value) else -count),
                           F.less(wide, count))  # fmt: skip
        wrapped = F.where(F.less(wide, 0), F.add(wide, count), wide)
        place = wrapped if place is None else F.add(F.mul(place, count), wrapped)
        inside = ok if inside is None else F.logical_and(inside, ok)
    return F.where(inside, place, np.array(np.iinfo(np.int64).max))
