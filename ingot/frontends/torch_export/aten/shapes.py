"""ATen ops that move, join, cut, pick and make elements without computing."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot import functional as fn
from ingot.dims import Dimension
from ingot.dtypes import DType
from ingot.frontends.torch_export.aten.promotion import as_operand, cast, category, result_type, size_tensor
from ingot.frontends.torch_export.aten.table import (
    Ints,
    MaybeBool,
    MaybeDType,
    MaybeInt,
    MaybeScalar,
    MaybeSize,
    MaybeSizes,
    MaybeTensor,
    MaybeTensors,
    Operand,
    Result,
    Results,
    Scalar,
    Size,
    Sizes,
    Tensor,
    Tensors,
    Unsupported,
    aten,
    few,
)
from ingot.ir import F, Network, Value
from ingot.ir.checked import to_expand, to_reshape
from ingot.ir.sizes import as_size
from ingot.ir.spec import axes_of, axis_of, broadcast, elements

END = 2**63 - 1  # what torch writes for "to the end"
MAX_MADE = 1 << 20  # elements of a constant that an op makes of numbers


# -------------------------------------------------------------------------------------------------- same elements


@aten("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default", views=True)
def reshape(self: Tensor, size: MaybeSizes = None, shape: MaybeSizes = None) -> Result:
    wanted = size if size is not None else shape
    if wanted is None:
        raise Unsupported("the argument shape is missing")
    return F.reshape(*to_reshape(self, wanted))


@aten("aten.view_as.default", "aten.reshape_as.default", views=True)
def reshape_as(self: Tensor, other: Tensor) -> Result:
    return F.reshape(*to_reshape(self, other.shape))


@aten("aten.flatten.using_ints", views=True)
def flatten(self: Tensor, start_dim: int = 0, end_dim: int = -1) -> Result:
    return fn.flatten(self, start_dim, end_dim)


@aten("aten.unflatten.int", views=True)
def unflatten(self: Tensor, dim: int, sizes: Sizes) -> Result:
    axis = axis_of(dim, self.ndim(), "dim")
    if -1 in sizes:
        rest = elements(d for d in sizes if d != -1)
        sizes = tuple(dims.floordiv(self.shape[axis], rest) if d == -1 else d for d in sizes)
    return F.reshape(*to_reshape(self, (*self.shape[:axis], *sizes, *self.shape[axis + 1 :])))


@aten("aten.squeeze.default", views=True)
def squeeze(self: Tensor) -> Result:
    return F.reshape(self, tuple(d for d in self.shape if d != 1))


@aten("aten.squeeze.dim", "aten.squeeze.dims", views=True)
def squeeze_dims(self: Tensor, dim: Ints) -> Result:
    """Dimensions of another size than 1 stay, as in torch."""
    axes = axes_of(dim, self.ndim()) if self.shape else ()
    return F.reshape(self, tuple(d for i, d in enumerate(self.shape) if i not in axes or d != 1))


@aten("aten.unsqueeze.default", views=True)
def unsqueeze(self: Tensor, dim: int) -> Result:
    return fn.unsqueeze(self, dim)


@aten("aten.permute.default", views=True)
def permute(self: Tensor, dims: Ints) -> Result:
    return F.permute(self, tuple(axis_of(d, self.ndim(), "dims") for d in dims))


@aten("aten.transpose.int", "aten.swapaxes.default", "aten.swapdims.default", views=True)
def transpose(
    self: Tensor, dim0: MaybeInt = None, dim1: MaybeInt = None, axis0: MaybeInt = None, axis1: MaybeInt = None
) -> Result:
    first, second = (dim0, dim1) if dim0 is not None else (axis0, axis1)
    if first is None or second is None:
        raise Unsupported("two dimensions must be given")
    return fn.transpose(self, first, second) if self.shape else self


@aten("aten.t.default", "aten.numpy_T.default", views=True)
def reversed_dims(self: Tensor) -> Result:
    return F.permute(self, tuple(reversed(range(self.ndim()))))


@aten("aten.mT.default", "aten.adjoint.default", "aten.mH.default", views=True)
def matrix_transpose(self: Tensor) -> Result:
    return fn.transpose(self, -2, -1)


@aten("aten.movedim.intlist", "aten.movedim.int", views=True)
def movedim(self: Tensor, source: Ints, destination: Ints) -> Result:
    rank = self.ndim()
    pairs = zip(source, destination, strict=True)
    places = {axis_of(to, rank, "destination"): axis_of(at, rank, "source") for at, to in pairs}
    rest = iter(i for i in range(rank) if i not in places.values())
    return F.permute(self, tuple(places[i] if i in places else next(rest) for i in range(rank)))


@aten("aten.expand.default", "aten.broadcast_to.default", views=True)
def expand(self: Tensor, size: Sizes, implicit: bool = False) -> Result:
    return F.expand(*to_expand(self, size))


@aten("aten.expand_as.default", views=True)
def expand_as(self: Tensor, other: Tensor) -> Result:
    return F.expand(*to_expand(self, other.shape))


@aten("aten.broadcast_tensors.default", views=True)
def broadcast_tensors(tensors: Tensors) -> Results:
    shape: Sizes = ()
    for x in tensors:
        shape = broadcast(shape, x.shape)
    return tuple(x if x.shape == shape else F.expand(x, shape) for x in tensors)


@aten("aten.contiguous.default", "aten.detach.default", "aten.detach_.default", "aten.alias.default",
      "aten.lift_fresh.default", "aten.resolve_conj.default", "aten.resolve_neg.default", views=True)  # fmt: skip
def itself(self: Tensor) -> Result:
    return self


@aten("aten.clone.default", "aten.lift_fresh_copy.default", "aten.detach_copy.default", "aten.alias_copy.default")
def clone(self: Tensor) -> Result:
    return self


@aten("aten.pixel_shuffle.default")
def pixel_shuffle(self: Tensor, upscale_factor: int) -> Result:
    *batch, channels, height, width = self.shape
    r, base = upscale_factor, self.ndim() - 3
    kept = dims.floordiv(channels, r * r)
    apart = F.reshape(self, (*batch, kept, r, r, height, width))
    order = (*range(base), base, base + 3, base + 1, base + 4, base + 2)
    return F.reshape(F.permute(apart, order), (*batch, kept, dims.mul(height, r), dims.mul(width, r)))


# ------------------------------------------------------------------------------------------- cutting and joining


def _known(x: Tensor, dim: int) -> int:
    """The size of a dimension; 0 when only a run knows it."""
    size = x.shape[axis_of(dim, x.ndim(), "dim")]
    return size if isinstance(size, int) else 0


def _part(x: Tensor, axis: int, start: Dimension, size: Dimension, step: int = 1) -> Result:
    return fn.slice(
        x,
        [start if i == axis else 0 for i in range(x.ndim())],
        [size if i == axis else d for i, d in enumerate(x.shape)],
        [step if i == axis else 1 for i in range(x.ndim())],
    )


@aten("aten.slice.Tensor", views=True)
def cut(self: Tensor, dim: int = 0, start: MaybeSize = None, end: MaybeSize = None, step: int = 1) -> Result:
    if step < 1:
        raise Unsupported(f"a step of {step} is not one that torch takes")
    axis = axis_of(dim, self.ndim(), "dim")
    stop = None if isinstance(end, int) and end >= END else end
    return self[(*[slice(None)] * axis, slice(start, stop, step))]


@aten("aten.select.int", views=True)
def select(self: Tensor, dim: int, index: Size) -> Result:
    return fn.select(self, dim, index)


@aten("aten.narrow.default", views=True)
def narrow(self: Tensor, dim: int, start: Size, length: Size) -> Result:
    axis = axis_of(dim, self.ndim(), "dim")
    if isinstance(start, int) and start < 0:
        start = dims.add(self.shape[axis], start)
    return _part(self, axis, start, length)


@aten("aten.split.Tensor", "aten.unsafe_split.Tensor", views=True)
def split(self: Tensor, split_size: int, dim: int = 0) -> Results:
    few(_known(self, dim) // max(split_size, 1))
    return fn.split(self, split_size, dim)


@aten("aten.split_with_sizes.default", "aten.split.sizes", "aten.unsafe_split_with_sizes.default", views=True)
def split_with_sizes(
    self: Tensor, split_sizes: MaybeSizes = None, dim: int = 0, split_size: MaybeSizes = None
) -> Results:
    sizes = split_sizes if split_sizes is not None else split_size
    if sizes is None:
        raise Unsupported("the argument split_sizes is missing")
    return fn.split(self, sizes, dim)


@aten("aten.chunk.default", "aten.unsafe_chunk.default", views=True)
def chunk(self: Tensor, chunks: int, dim: int = 0) -> Results:
    """torch's pieces: ⌈size / chunks⌉ each, the last smaller, and fewer of them when that is enough."""
    size = self.shape[axis_of(dim, self.ndim(), "dim")]
    if chunks < 1:
        raise Unsupported("chunks must be at least 1")
    few(chunks)
    if isinstance(size, int):
        return fn.split(self, max(-(-size // chunks), 1), dim) if size else (self,) * chunks
    part = dims.ceil_div(size, chunks)
    ends = [dims.minimum(dims.mul(part, i), size) for i in range(chunks + 1)]
    sizes = [dims.add(end, dims.mul(start, -1)) for start, end in itertools.pairwise(ends)]
    return fn.split(self, sizes, dim)


@aten("aten.unbind.int", views=True)
def unbind(self: Tensor, dim: int = 0) -> Results:
    few(_known(self, dim))
    return fn.unbind(self, dim)


@aten("aten.cat.default", "aten.concat.default", "aten.concatenate.default")
def cat(tensors: Tensors, dim: int = 0) -> Result:
    if not tensors:
        raise Unsupported("there is nothing to join")
    dtype = result_type(*tensors)
    kept = [x for x in tensors if x.shape != (0,)] or tensors[:1]  # torch skips these whatever the others' rank
    return fn.concat([cast(x, dtype) for x in kept], dim)


@aten("aten.stack.default")
def stack(tensors: Tensors, dim: int = 0) -> Result:
    if not tensors:
        raise Unsupported("there is nothing to join")
    dtype = result_type(*tensors)
    return fn.stack([cast(x, dtype) for x in tensors], dim)


@aten("aten.constant_pad_nd.default", "aten.pad.default")
def pad(self: Tensor, pad: Sizes, value: MaybeScalar = None, mode: str = "constant") -> Result:
    if not isinstance(value, int | float | None):
        raise Unsupported("the value must be known at export")
    return fn.pad(self, pad, mode, value)


def _edge_pads(word: str, mode: str) -> None:
    @aten(*(f"aten.{word}_pad{rank}d.default" for rank in (1, 2, 3)))
    def pad_edges(self: Tensor, padding: Ints) -> Result:
        return fn.pad(self, padding, mode)


_edge_pads("reflection", "reflect")
_edge_pads("replication", "replicate")


@aten("aten.repeat.default")
def repeat(self: Tensor, repeats: Sizes) -> Result:
    return fn.repeat(self, repeats)


@aten("aten.tile.default")
def tile(self: Tensor, dims: Sizes) -> Result:
    return fn.repeat(self, (*[1] * (self.ndim() - len(dims)), *dims))


@aten("aten.repeat_interleave.self_int")
def repeat_interleave(self: Tensor, repeats: Size, dim: MaybeInt = None, output_size: MaybeSize = None) -> Result:
    if dim is None:
        self, dim = F.reshape(self, (elements(self.shape),)), 0
    return fn.repeat_interleave(self, repeats, dim)


@aten("aten.repeat_interleave.self_Tensor")
def repeat_each(self: Tensor, repeats: Tensor, dim: MaybeInt = None, output_size: MaybeSize = None) -> Result:
    """Each element as often as its own number says, which only a run knows."""
    if dim is None:
        self, dim = _flat(self), 0
    axis = axis_of(dim, self.ndim(), "dim")
    counts = F.expand(cast(repeats, dtypes.int64), (self.shape[axis],))
    ends = F.cumsum(counts, axis=0)
    total = as_size(F.reduce_sum(counts, axes=(0,), keepdims=True)) if output_size is None else output_size
    return F.take(self, F.bucketize(_count(self.network, total), ends, right=True), axis=axis)


@aten("aten.flip.default")
def flip(self: Tensor, dims: Ints) -> Result:
    return fn.flip(self, dims)


@aten("aten.roll.default")
def roll(self: Tensor, shifts: Sizes, dims: Ints = ()) -> Result:
    if not dims:
        flat = F.reshape(self, (elements(self.shape),))
        return F.reshape(roll(flat, shifts, (0,)), self.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        axis = axis_of(dim, self.ndim(), "dims")
        self = _rolled(self, shift, axis)
    return self


def _rolled(x: Tensor, shift: Dimension, axis: int) -> Result:
    size = x.shape[axis]
    back = dims.mod(shift, dims.maximum(size, 1))
    front = dims.add(size, dims.mul(back, -1))
    return x if back == 0 or size == 0 else fn.concat([_part(x, axis, front, back), _part(x, axis, 0, front)], axis)


# ------------------------------------------------------------------------------------------------------- picking


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


def _flat(self: Tensor) -> Result:
    return F.reshape(self, (elements(self.shape),))


@aten("aten.median.dim")
def median_of(self: Tensor, dim: int, keepdim: bool = False) -> Results:
    return _median(self, dim, keepdim, False)


@aten("aten.nanmedian.dim")
def nanmedian_of(self: Tensor, dim: int, keepdim: bool = False) -> Results:
    return _median(self, dim, keepdim, True)


@aten("aten.median.default")
def median(self: Tensor) -> Result:
    return _median(_flat(self), 0, False, False)[0]


@aten("aten.nanmedian.default")
def nanmedian(self: Tensor) -> Result:
    return _median(_flat(self), 0, False, True)[0]


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


def _triangle(x: Tensor, diagonal: Size, lower: bool) -> Result:
    if x.ndim() < 2:
        raise Unsupported("a triangle needs two dimensions")
    rows, columns = x.shape[-2:]
    row = F.reshape(F.iota(size=rows, start=diagonal, dtype=dtypes.int64), (rows, 1))
    column = F.reshape(F.iota(size=columns, dtype=dtypes.int64), (1, columns))
    inside = F.less_equal(column, row) if lower else F.greater_equal(column, row)
    return F.where(inside, x, np.zeros((), x.dtype.numpy))


@aten("aten.tril.default")
def tril(self: Tensor, diagonal: Size = 0) -> Result:
    return _triangle(self, diagonal, True)


@aten("aten.triu.default")
def triu(self: Tensor, diagonal: Size = 0) -> Result:
    return _triangle(self, diagonal, False)


# -------------------------------------------------------------------------------------------------------- making


def filled(network: Network, size: Sizes, value: Operand, dtype: Any) -> Result:
    """A number over a shape."""
    found = as_operand(value, dtype)
    whole = found if isinstance(found, Value) else network.scalar(found, dtype)
    return F.expand(whole, size) if size else whole


@aten("aten.full.default")
def full(network: Network, size: Sizes, fill_value: Operand, dtype: MaybeDType = None) -> Result:
    return filled(network, size, fill_value, dtype or result_type(fill_value))


@aten("aten.full_like.default")
def full_like(self: Tensor, fill_value: Operand, dtype: MaybeDType = None) -> Result:
    return filled(self.network, self.shape, fill_value, dtype or self.dtype)


@aten("aten.new_full.default")
def new_full(self: Tensor, size: Sizes, fill_value: Operand, dtype: MaybeDType = None) -> Result:
    return filled(self.network, size, fill_value, dtype or self.dtype)


def _constant(word: str, value: int) -> None:
    @aten(f"aten.{word}.default")
    def make(network: Network, size: Sizes, dtype: MaybeDType = None) -> Result:
        return filled(network, size, value, dtype or dtypes.float32)

    @aten(f"aten.{word}_like.default")
    def make_like(self: Tensor, dtype: MaybeDType = None) -> Result:
        return filled(self.network, self.shape, value, dtype or self.dtype)

    @aten(f"aten.new_{word}.default")
    def make_new(self: Tensor, size: Sizes, dtype: MaybeDType = None) -> Result:
        return filled(self.network, size, value, dtype or self.dtype)


_constant("zeros", 0)
_constant("ones", 1)


@aten("aten.empty.memory_format")
def empty(network: Network, size: Sizes, dtype: MaybeDType = None) -> Result:
    """Zeros: torch leaves open what is there before it is written."""
    return filled(network, size, 0, dtype or dtypes.float32)


@aten("aten.empty_like.default")
def empty_like(self: Tensor, dtype: MaybeDType = None) -> Result:
    return filled(self.network, self.shape, 0, dtype or self.dtype)


@aten("aten.new_empty.default")
def new_empty(self: Tensor, size: Sizes, dtype: MaybeDType = None) -> Result:
    return filled(self.network, size, 0, dtype or self.dtype)


@aten("aten.scalar_tensor.default")
def scalar_tensor(network: Network, s: Operand, dtype: MaybeDType = None) -> Result:
    return filled(network, (), s, dtype or dtypes.float32)


@aten("aten.arange.default", "aten.arange.start", "aten.arange.start_step")
def arange(network: Network, end: Scalar, start: Scalar = 0, step: Scalar = 1, dtype: MaybeDType = None) -> Result:
    kind = dtype or result_type(start, end, step)
    if isinstance(step, dims.Expr) and kind.is_integer:
        return _multiples(network, start, end, step, kind)
    if not isinstance(step, int | float) or step == 0 or kind.is_integer and int(step) == 0:
        raise Unsupported("the step of arange must be a number other than 0, known at export")
    if kind.is_float and any(isinstance(n, float) and n != int(n) for n in (start, end, step)):
        return _fractions(network, start, end, step, kind)
    low, high = (n if isinstance(n, dims.Expr) else int(n) for n in (start, end))
    wide = dtypes.float32 if kind.is_float and kind.bits < 32 else kind
    found = fn.arange(low, high, wide, int(step))
    return cast(found if isinstance(found, Value) else network.constant(found), kind)


def _multiples(network: Network, start: Scalar, end: Scalar, step: dims.Expr, kind: DType) -> Result:
    """By a step that is a size, and so above 0."""
    low, high = (n if isinstance(n, dims.Expr) else int(n) for n in (start, end))
    count = dims.ceil_div(dims.add(high, dims.mul(low, -1)), step)
    at = F.iota(size=count, dtype=dtypes.int64)
    at = at if isinstance(at, Value) else network.constant(at)
    first = size_tensor(low, kind) if isinstance(low, dims.Expr) else np.array(low, kind.numpy)
    return F.add(F.mul(cast(at, kind), size_tensor(step, kind)), first)


def _fractions(network: Network, start: Scalar, end: Scalar, step: Scalar, kind: DType) -> Result:
    if isinstance(start, dims.Expr) or isinstance(end, dims.Expr) or isinstance(step, dims.Expr):
        raise Unsupported("arange of fractions up to a size that only a run knows is not supported")
    count = math.ceil((end - start) / step)
    if not 0 <= count <= MAX_MADE:
        raise Unsupported(f"an arange of {count:,} fractions; there may be {MAX_MADE:,}")
    return network.constant((start + step * np.arange(count, dtype=np.float64)).astype(kind.numpy))


@aten("aten.eye.default", "aten.eye.m")
def eye(network: Network, n: Size, m: MaybeSize = None, dtype: MaybeDType = None) -> Result:
    m, kind = n if m is None else m, dtype or dtypes.float32
    if isinstance(n, int) and isinstance(m, int):
        if not 0 <= n * m <= MAX_MADE:
            raise Unsupported("an identity matrix of more than 2^20 elements")
        return network.constant(np.eye(n, m, dtype=kind.numpy))
    rows, columns = (_count(network, size) for size in (n, m))
    return cast(F.equal(F.reshape(rows, (n, 1)), F.reshape(columns, (1, m))), kind)


def _count(network: Network, size: Dimension) -> Value:
    """0, 1, … below a size."""
    found = F.iota(size=size, dtype=dtypes.int64)
    return found if isinstance(found, Value) else network.constant(found)
