"""ATen ops that move, cut, join and repeat elements without computing."""

from __future__ import annotations

import itertools

from ingot import dims, dtypes
from ingot import functional as fn
from ingot.dims import Dimension
from ingot.frontends.torch_export.aten.making import counting
from ingot.frontends.torch_export.aten.promotion import cast, result_type
from ingot.frontends.torch_export.aten.table import (
    Ints,
    MaybeInt,
    MaybeScalar,
    MaybeSize,
    MaybeSizes,
    Result,
    Results,
    Size,
    Sizes,
    Tensor,
    Tensors,
    Unsupported,
    aten,
    few,
)
from ingot.ir import F
from ingot.ir.checked import to_expand, to_reshape
from ingot.ir.sizes import as_size
from ingot.ir.spec import axes_of, axis_of, broadcast, elements

END = 2**63 - 1  # what torch writes for "to the end"


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


def flat(x: Tensor) -> Result:
    return F.reshape(x, (elements(x.shape),))


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
        self, dim = flat(self), 0
    return fn.repeat_interleave(self, repeats, dim)


@aten("aten.repeat_interleave.self_Tensor")
def repeat_each(self: Tensor, repeats: Tensor, dim: MaybeInt = None, output_size: MaybeSize = None) -> Result:
    """Each element as often as its own number says, which only a run knows."""
    if dim is None:
        self, dim = flat(self), 0
    axis = axis_of(dim, self.ndim(), "dim")
    counts = F.expand(cast(repeats, dtypes.int64), (self.shape[axis],))
    ends = F.cumsum(counts, axis=0)
    total = as_size(F.reduce_sum(counts, axes=(0,), keepdims=True)) if output_size is None else output_size
    return F.take(self, F.bucketize(counting(self.network, total), ends, right=True), axis=axis)


@aten("aten.flip.default")
def flip(self: Tensor, dims: Ints) -> Result:
    return fn.flip(self, dims)


@aten("aten.roll.default")
def roll(self: Tensor, shifts: Sizes, dims: Ints = ()) -> Result:
    if not dims:
        return F.reshape(roll(flat(self), shifts, (0,)), self.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        axis = axis_of(dim, self.ndim(), "dims")
        self = _rolled(self, shift, axis)
    return self


def _rolled(x: Tensor, shift: Dimension, axis: int) -> Result:
    size = x.shape[axis]
    back = dims.mod(shift, dims.maximum(size, 1))
    front = dims.add(size, dims.mul(back, -1))
    return x if back == 0 or size == 0 else fn.concat([_part(x, axis, front, back), _part(x, axis, 0, front)], axis)
