"""Shapes, layouts and indices. Views cost nothing where the consumer reads strides.

Sizes may be ints, dims (what `tensor.size(i)` gives) or expressions of them, and integer tensors. What is computed of
`shape(x)` is known before a run. A number that is data becomes a size when the network runs (`ops.sizes_of`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot.dims import Dimension
from ingot.dtypes import DType
from ingot.errors import OpError
from ingot.functional import slicing
from ingot.functional.elementwise import int_clip
from ingot.functional.tensor import Tensor, axis_of, known_size
from ingot.ir import F, spec
from ingot.ir.checked import to_expand, to_reshape
from ingot.ir.sizes import as_shape, as_size

Size = Any  # int | dims.Expr | the name of a dim | a tensor of one integer
Sizes = Any  # a sequence of these, or a tensor of integers
NUMBERS = (int, float, dims.Expr)  # what stands for scalar tensors where tensors are joined


# ---------------------------------------------------------------------------------------------- constants


def constant(ndarray: Any, as_dtype: DType | str | None = None, as_shape: Sequence[int] | None = None) -> Tensor:
    """Fixed numbers as an operand; they become part of the first network they meet.

    Args:
        ndarray: anything NumPy takes.
        as_dtype: another dtype.
        as_shape: another shape of the same elements.
    """
    array = np.asarray(ndarray)
    array = array if as_dtype is None else array.astype(dtypes.get(as_dtype).numpy)
    return array if as_shape is None else array.reshape(tuple(as_shape))


def constant_to_tensor_(input: Any, dtype: DType | str | None = None, to_array: bool = True) -> Tensor:
    """A Python number as a tensor: [1], or a scalar with to_array=False. int64, float32 or bool by default."""
    if not isinstance(input, bool | int | float):
        return input
    default = "bool" if isinstance(input, bool) else "int64" if isinstance(input, int) else "float32"
    return np.full((1,) if to_array else (), input, dtypes.get(dtype or default).numpy)


def constants_to_tensors_(*inputs: Any) -> tuple[Tensor, ...]:
    """Each number as a tensor [1]. Integers, tensors too, become int64 if one of the tensors is, or one of the numbers
    has to be; else they are int32 where there are tensors of int32."""
    tensors = [dtypes.get(x.dtype) for x in inputs if not isinstance(x, bool | int | float)]
    large = any(isinstance(x, int) and not -(2**31) <= x < 2**31 for x in inputs)
    kind = dtypes.int32 if dtypes.int32 in tensors and dtypes.int64 not in tensors and not large else dtypes.int64

    def one(x: Any) -> Tensor:
        if isinstance(x, int) and not isinstance(x, bool):
            return constant_to_tensor_(x, kind)
        return F.cast(x, kind) if getattr(x, "dtype", None) in (dtypes.int32, np.int32) else constant_to_tensor_(x)

    return tuple(map(one, inputs))


def arange(start: Size, end: Size, dtype: DType | str = "int64", step: int = 1) -> Tensor:
    """start, start + step, … below end, as a 1-D tensor; the bounds may be dims, or scalar tensors.

    Raises:
        OpError: a step of 0.
    """
    if type(step) is not int or step == 0:
        raise OpError(f"arange: the step must be an int other than 0, not {step!r}")
    low, high = as_size(start), as_size(end)
    span = dims.add(high, dims.mul(low, -1)) if step > 0 else dims.add(low, dims.mul(high, -1))
    size = dims.ceil_div(span, step if step > 0 else -step)
    if dims.bounds(size)[0] < 0:
        size = dims.maximum(size, 0)
    return F.iota(size=size, start=low, step=step, dtype=dtype)


def shape(
    input: Tensor, dim: int | None = None, cast_to_dtype: DType | str | None = None,
    clip_before_cast: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """The sizes as an int64 tensor [rank], or one of them as a scalar tensor.

    To compute with sizes while recording, use `tensor.shape` and `tensor.size(i)`, which give ints and dims.

    Args:
        cast_to_dtype: another dtype.
        clip_before_cast: (least, greatest), within which sizes are held before they are cast.
    """
    sizes = F.shape_of(input)
    if dim is not None:
        sizes = F.reshape(F.slice(sizes, (axis_of(input, dim),), (1,), (1,)), ())
    if cast_to_dtype is None:
        return sizes
    if clip_before_cast is not None:
        sizes = int_clip(sizes, *clip_before_cast)
    return F.cast(sizes, cast_to_dtype)


# ---------------------------------------------------------------------------------------------- other shapes


def view(input: Tensor, shape: Sizes, zero_is_placeholder: bool = True) -> Tensor:
    """The same elements under another shape. Where only a run shows that their number fits, the run checks it.

    Args:
        shape: sizes, or a tensor of them; −1 (once) is worked out, and with `zero_is_placeholder` a 0 keeps the
            dimension at its place. Of a tensor without elements a 0 that cannot mean that is the size 0.

    Raises:
        OpError: another number of elements in every run, two −1, a 0 beyond the rank.
    """
    sizes = as_shape(shape)
    kept = _placeholders(input, sizes) if zero_is_placeholder else sizes
    return F.reshape(*to_reshape(input, kept))


def _placeholders(input: Tensor, sizes: Sequence[Dimension]) -> tuple[Dimension, ...]:
    """The sizes, a 0 among them being that of the input at its place; or the very size 0, as an empty dimension's size
    in a shape that was computed is, where the input has no elements and the other meaning does not fit."""
    empty = spec.elements(input.shape) == 0
    zeros = [i for i, size in enumerate(sizes) if type(size) is int and size == 0]
    if zeros and zeros[-1] >= len(input.shape) and not empty:
        raise OpError(f"view: the 0 at position {zeros[-1]} keeps a dimension, but the tensor has {len(input.shape)}")
    if not zeros or zeros[-1] >= len(input.shape):
        return tuple(sizes)
    kept = tuple(input.shape[i] if i in zeros else size for i, size in enumerate(sizes))
    return tuple(sizes) if empty and -1 not in kept and spec.elements(kept) != 0 else kept


def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """The dimensions start_dim..end_dim as one; a scalar becomes [1]."""
    if not input.shape:
        return F.reshape(input, (1,))
    first, last = axis_of(input, start_dim, "start_dim"), axis_of(input, end_dim, "end_dim")
    if first > last:
        raise OpError(f"flatten: start_dim {start_dim} lies behind end_dim {end_dim}")
    joined = spec.elements(input.shape[first : last + 1])
    return F.reshape(input, (*input.shape[:first], joined, *input.shape[last + 1 :]))


def permute(input: Tensor, dims: Sequence[int]) -> Tensor:
    """Dimension i of the result is dimension dims[i] of the input."""
    return F.permute(input, tuple(axis_of(input, d) for d in dims))


def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Two dimensions exchanged."""
    order = list(range(len(input.shape)))
    first, second = axis_of(input, dim0, "dim0"), axis_of(input, dim1, "dim1")
    order[first], order[second] = order[second], order[first]
    return F.permute(input, tuple(order))


def expand(input: Tensor, expand_shape: Sizes) -> Tensor:
    """Dimensions of size 1 repeated to the sizes given, new ones in front; −1 keeps a size.

    Where only a run shows whether a dimension has size 1 or the one given, the run checks it.

    Raises:
        OpError: a size that no run makes 1 or the one given; fewer sizes than dimensions.
    """
    return F.expand(*to_expand(input, as_shape(expand_shape)))


def expand_dims(input: Tensor, dim: int | Sequence[int], shape_cast_dtype: DType | str | None = None) -> Tensor:
    """Dimensions of size 1 put in; `dim` are their places in the result. `shape_cast_dtype` changes nothing: sizes have
    no dtype here."""
    places = [dim] if isinstance(dim, int) else list(dim)
    rank = len(input.shape) + len(places)
    at = spec.axes_of(places, rank)
    rest = iter(input.shape)
    return F.reshape(input, tuple(1 if i in at else next(rest) for i in range(rank)))


def unsqueeze(input: Tensor, axis: int) -> Tensor:
    """One dimension of size 1 put in before `axis`."""
    return expand_dims(input, axis)


def expand_dims_like(left: Tensor, right: Tensor) -> Tensor:
    """left with dimensions of size 1 in front, up to right's rank; a Python number as a tensor of right's dtype."""
    if isinstance(left, bool | int | float):
        left = np.asarray(left, dtypes.get(right.dtype).numpy)
    missing = len(right.shape) - len(left.shape)
    return F.reshape(left, (*[1] * missing, *left.shape)) if missing > 0 else left


def broadcast_helper(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Both operands at the larger rank."""
    if isinstance(left, bool | int | float):
        left = expand_dims_like(left, right)
    right = expand_dims_like(right, left)
    return expand_dims_like(left, right), right


def squeeze(input: Tensor, dim: int | Sequence[int] | None = None, zero_is_placeholder: bool = False) -> Tensor:
    """Without the dimensions `dim`, which must have size 1; None: without all that have.

    Raises:
        OpError: a dimension of another size.
    """
    if dim is None:
        return F.reshape(input, tuple(d for d in input.shape if d != 1))
    at = spec.axes_of((dim,) if isinstance(dim, int) else dim, len(input.shape))
    if wrong := [i for i in at if input.shape[i] != 1]:
        raise OpError(f"squeeze: dimension {wrong[0]} of {list(input.shape)} has size {input.shape[wrong[0]]}, not 1")
    return F.reshape(input, tuple(d for i, d in enumerate(input.shape) if i not in at))


# ---------------------------------------------------------------------------------------------- joining and cutting


def concat(inputs: Sequence[Any], dim: int = 0) -> Tensor:
    """Tensors joined along `dim`. Ints and dims among them become [1] of the tensors' dtype (int64 when there is none),
    and so do scalar tensors.

    Raises:
        OpError: no tensors, sizes or dtypes that disagree.
    """
    parts = list(inputs)
    if not parts:
        raise OpError("concat: needs at least one tensor")
    tensor = next((part for part in parts if not isinstance(part, NUMBERS)), None)
    if any(isinstance(part, NUMBERS) for part in parts):
        kind = dtypes.int64 if tensor is None else dtypes.get(tensor.dtype)
        parts = [_number(part, kind) if isinstance(part, NUMBERS) else part for part in parts]
    parts = [part if len(part.shape) else F.reshape(part, (1,)) for part in parts]
    return parts[0] if len(parts) == 1 else F.concat(*parts, dim=axis_of(parts[0], dim))


def _number(number: int | float | dims.Expr, kind: DType) -> Tensor:
    if isinstance(number, dims.Expr):
        return F.cast(F.iota(size=1, start=number, dtype=dtypes.int64), kind)
    return np.asarray([number], kind.numpy)


def stack(inputs: Sequence[Any], dim: int = 0) -> Tensor:
    """Tensors of one shape joined along a new dimension. Ints and dims among scalar tensors are as in `concat`."""
    parts = list(inputs)
    if not parts:
        raise OpError("stack: needs at least one tensor")
    tensor = next((part for part in parts if not isinstance(part, NUMBERS)), None)
    place = spec.axis_of(dim, 1 if tensor is None else len(tensor.shape) + 1, "dim")
    return concat([part if isinstance(part, NUMBERS) else expand_dims(part, place) for part in parts], place)


def slice(
    input: Tensor, starts: Sizes, sizes: Sizes, strides: Sizes | None = None, mode: Any = None,
    fill_value: Any = None,
) -> Tensor:  # fmt: skip
    """A box: in dimension d, `sizes[d]` elements from `starts[d]`, every `strides[d]`-th. Sizes, not ends.

    Args:
        mode: what stands beyond the edges. None or "strict_bounds": a box has to lie within them. "fill": `fill_value`;
            "clamp": the nearest element; "wrap": the tensor again from its other edge; "reflect": the tensor turned
            back, the edge's own element once. A member of an enumeration with such a name will do.
        fill_value: a number or a scalar tensor of the input's dtype; None is 0.

    Raises:
        OpError: a box that reaches beyond the edges without a mode; another mode; of no elements nothing can be
            repeated. Where only a run shows that, it is a fault there.
    """
    first, count, word = as_shape(starts), as_shape(sizes), slicing.mode_of(mode)
    every = (1,) * len(first) if strides is None else as_shape(strides)
    if word == "strict_bounds":
        return F.slice(input, first, count, every)
    return slicing.beyond(input, first, count, every, word, fill_value)


def _part(input: Tensor, dim: int, start: Dimension, size: Dimension, stride: int = 1) -> Tensor:
    rank = len(input.shape)
    return slice(
        input,
        [start if i == dim else 0 for i in range(rank)],
        [size if i == dim else d for i, d in enumerate(input.shape)],
        [stride if i == dim else 1 for i in range(rank)],
    )


def split(tensor: Tensor, split_size_or_sections: int | Sizes, dim: int = 0) -> tuple[Tensor, ...]:
    """Cut along `dim` into pieces of one size (the last may be smaller) or of the listed sizes.

    Raises:
        OpError: sizes that do not add up, a size below 1, pieces of one size from a dimension that is not known.
    """
    axis = axis_of(tensor, dim)
    whole = tensor.shape[axis]
    if isinstance(split_size_or_sections, int):
        size, total = split_size_or_sections, known_size(tensor, axis, "split")
        if size <= 0:
            raise OpError(f"split: pieces must have a positive size, not {size}")
        sizes: list[Any] = [size] * (total // size) + ([total % size] if total % size else [])
    else:
        sizes = list(as_shape(split_size_or_sections))
    if dims.add(0, *sizes) != whole:
        raise OpError(f"split: sizes {sizes} do not add up to {whole}")
    starts: list[Dimension] = [0]
    for size in sizes:
        starts.append(dims.add(starts[-1], size))
    return tuple(_part(tensor, axis, start, size) for start, size in zip(starts, sizes, strict=False))


def chunk(tensor: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Cut along `dim` into `chunks` equal pieces.

    Raises:
        OpError: a size that is not known or not a multiple of `chunks`.
    """
    axis = axis_of(tensor, dim)
    size = known_size(tensor, axis, "chunk")
    if chunks <= 0 or size % chunks:
        raise OpError(f"chunk: dimension {dim} has size {size}, which is not a multiple of {chunks}")
    return split(tensor, size // chunks, axis)


def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """The slices along `dim`, which disappears; its size must be known."""
    axis = axis_of(input, dim)
    return tuple(select(input, axis, i) for i in range(known_size(input, axis, "unbind")))


PAD_MODES = ("constant", "reflect", "replicate", "circular")


def pad(input: Tensor, pad: Sizes, mode: str = "constant", value: float | None = None) -> Tensor:
    """Elements around dimensions; `pad` lists (before, after) from the last dimension on.

    Args:
        mode: "constant" puts `value` (default 0) there, and negative counts cut off; "reflect" the elements turned back
            at the edge element, "replicate" the edge element, "circular" what lies at the other end.

    Raises:
        OpError: another mode, an odd number of counts or too many; a dimension with fewer elements than its mode reads,
            or a negative count, of a mode other than constant.
    """
    rank, counts = len(input.shape), as_shape(pad)
    if mode not in PAD_MODES:
        raise OpError(f"pad: mode must be one of {', '.join(PAD_MODES)}, not {mode!r:.40}")
    if len(counts) % 2 or len(counts) > 2 * rank:
        raise OpError(f"pad: needs two counts per dimension, from the last on; got {len(counts)} for {rank} dimensions")
    if mode != "constant":
        return _with_edges(input, counts, mode)
    before: list[Dimension] = [0] * rank
    after: list[Dimension] = [0] * rank
    for i in range(len(counts) // 2):
        before[rank - 1 - i], after[rank - 1 - i] = counts[2 * i], counts[2 * i + 1]
    return F.pad(input, before=tuple(before), after=tuple(after), value=0.0 if value is None else float(value))


def _with_edges(input: Tensor, counts: Sequence[Dimension], mode: str) -> Tensor:
    """With what the tensor has at its edges around it."""
    for i in range(len(counts) // 2):
        axis, (low, high) = len(input.shape) - 1 - i, counts[2 * i : 2 * i + 2]
        size = input.shape[axis]
        if min(dims.bounds(low)[1], dims.bounds(high)[1]) < 0:
            raise OpError(f"pad: mode {mode} cannot cut off: {tuple(counts)}")
        before = after = None
        if mode == "reflect":  # a side without padding may have no element to begin at
            before = _part(input, axis, low, low, -1) if low != 0 else None
            after = _part(input, axis, dims.add(size, -2), high, -1) if high != 0 else None
        elif mode == "circular":
            before = _part(input, axis, dims.add(size, dims.mul(low, -1)), low) if low != 0 else None
            after = _part(input, axis, 0, high) if high != 0 else None
        else:
            shape = [(*input.shape[:axis], n, *input.shape[axis + 1 :]) for n in (low, high)]
            before = F.expand(_part(input, axis, 0, 1), shape[0]) if low != 0 else None
            after = F.expand(_part(input, axis, dims.add(size, -1), 1), shape[1]) if high != 0 else None
        input = concat([x for x in (before, input, after) if x is not None], axis)
    return input


def flip(input: Tensor, dims: Sequence[int]) -> Tensor:
    """The order reversed along `dims`."""
    for axis in spec.axes_of(tuple(dims), len(input.shape)):
        input = _flipped(input, axis)
    return input


def _flipped(input: Tensor, axis: int) -> Tensor:
    size = input.shape[axis]
    return _part(input, axis, dims.maximum(dims.add(size, -1), 0), size, -1) if size != 0 else input


def repeat(input: Tensor, sizes: Sizes) -> Tensor:
    """The tensor repeated `sizes[d]` times along dimension d; more sizes than dimensions add dimensions in front."""
    counts = as_shape(sizes)
    extra = len(counts) - len(input.shape)
    if extra < 0:
        raise OpError(f"repeat: {len(counts)} counts for {len(input.shape)} dimensions; give one or more for each")
    shape = [1] * extra + list(input.shape)
    apart = [size for d in shape for size in (1, d)]
    whole = [size for count, d in zip(counts, shape, strict=True) for size in (count, d)]
    result = [dims.mul(count, d) for count, d in zip(counts, shape, strict=True)]
    return F.reshape(F.expand(F.reshape(input, tuple(apart)), tuple(whole)), tuple(result))


def repeat_interleave(tensor: Tensor, repeats: Size, dim: int) -> Tensor:
    """Every element repeated `repeats` times along `dim`, copies side by side."""
    axis, count = axis_of(tensor, dim), as_size(repeats)
    apart = expand_dims(tensor, axis + 1)
    shape = list(apart.shape)
    wide = F.expand(apart, (*shape[: axis + 1], count, *shape[axis + 2 :]))
    return F.reshape(wide, (*shape[:axis], dims.mul(shape[axis], count), *shape[axis + 2 :]))


def meshgrid2d(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Coordinates of a grid: x [W] and y [H] each as [H, W]."""
    width, height = x.shape[0], y.shape[0]
    return F.expand(F.reshape(x, (1, width)), (height, width)), F.expand(F.reshape(y, (height, 1)), (height, width))


# ---------------------------------------------------------------------------------------------- picking


def select(input: Tensor, dim: int, index: Any) -> Tensor:
    """One slice along `dim`, which disappears. `index`: int, dim or scalar tensor; below 0 it counts from the end.

    One out of range is an error, at run time where only a run shows it.
    """
    axis = axis_of(input, dim)
    rest = (*input.shape[:axis], *input.shape[axis + 1 :])
    if isinstance(index, int | dims.Expr):
        size = input.shape[axis]
        if isinstance(index, int) and isinstance(size, int) and not -size <= index < size:
            raise OpError(f"select: index {index} is out of range for dimension {dim} of size {size}")
        start = dims.add(size, index) if isinstance(index, int) and index < 0 else index
        return F.reshape(_part(input, axis, start, 1), rest)
    if math.prod(index.shape) != 1:
        raise OpError(f"select: the index must be a scalar, not {list(index.shape)}; use index_select for several")
    return F.reshape(F.take(input, F.reshape(index, (1,)), axis=axis, from_end=True), rest)


def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """The slices along `dim` that the int tensor `index` [n] names, in its order; those below 0 count from the end.

    An index out of range is a fault at run time.
    """
    if len(index.shape) != 1:
        raise OpError(f"index_select: the index must have one dimension, not {list(index.shape)}")
    return F.take(input, index, axis=axis_of(input, dim), from_end=True)


def gather(input: Tensor, dim: int, indices: Any) -> Tensor:
    """Element (i, j, …) is input with the index at `dim` replaced by indices[i, j, …] (ONNX GatherElements).

    The indices have the input's rank, and at most its sizes elsewhere. An int picks one slice, whose size becomes 1.
    """
    axis = axis_of(input, dim)
    if isinstance(indices, int):
        sizes = [1 if i == axis else d for i, d in enumerate(input.shape)]
        return F.reshape(select(input, axis, indices), tuple(sizes))
    return F.gather(input, indices, axis=axis)


def nonzero(input: Tensor) -> Tensor:
    """The coordinates of elements other than 0, int64 [rank, count]; count is known only at run time."""
    return F.nonzero(input)


def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """The elements where the mask (bool, broadcast to the input) is true, as [count], known only at run time."""
    whole = F.expand(mask, tuple(input.shape))
    picked = F.nonzero(F.reshape(whole, (spec.elements(input.shape),)))
    return F.take(F.reshape(input, (spec.elements(input.shape),)), F.reshape(picked, (picked.shape[1],)), axis=0)
