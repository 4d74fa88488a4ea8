"""ATen ops on windows, diagonals, triangles and parts of tensors."""

from __future__ import annotations

import math

import numpy as np

from ingot import dims, dtypes
from ingot import functional as fn
from ingot.frontends.torch_export.aten.indexing import index_copy
from ingot.frontends.torch_export.aten.making import counting
from ingot.frontends.torch_export.aten.promotion import as_operand, cast, size_tensor
from ingot.frontends.torch_export.aten.table import (
    Ints,
    MaybeSize,
    Result,
    Size,
    Sizes,
    Tensor,
    Unsupported,
    aten,
    few,
)
from ingot.functional import columns
from ingot.ir import F
from ingot.ir.checked import to_reshape
from ingot.ir.spec import axis_of


def _pair(numbers: Ints) -> Ints:
    return numbers * 2 if len(numbers) == 1 else numbers


@aten("aten.im2col.default")
def im2col(self: Tensor, kernel_size: Ints, dilation: Ints, padding: Ints, stride: Ints) -> Result:
    how = [_pair(given) for given in (kernel_size, dilation, padding, stride)]
    if self.ndim() == 4:
        return columns.im2col(self, *how)
    found = columns.im2col(F.reshape(self, (1, *self.shape)), *how)
    return F.reshape(found, found.shape[1:])


@aten("aten.col2im.default")
def col2im(self: Tensor, output_size: Sizes, kernel_size: Ints, dilation: Ints, padding: Ints, stride: Ints) -> Result:
    kernel, apart, edge, step = (_pair(n) for n in (kernel_size, dilation, padding, stride))
    image = output_size * 2 if len(output_size) == 1 else output_size
    x = self if self.ndim() == 3 else F.reshape(self, (1, *self.shape))
    whole = [n for n in image if isinstance(n, int)]
    if len(whole) == len(image):
        found = columns.col2im(x, whole, kernel, apart, edge, edge, step)
    else:
        found = _folded(x, image, kernel, apart, edge, step)
    return found if self.ndim() == 3 else F.reshape(found, found.shape[1:])


def _folded(x: Tensor, image: Sizes, kernel: Ints, apart: Ints, edge: Ints, step: Ints) -> Result:
    """Columns [N, C · kernel, windows] added into images of sizes that only a run knows: a transposed convolution whose
    weights put each of a column's elements where it belongs."""
    columns_, positions = x.shape[1], math.prod(kernel)
    if not isinstance(columns_, int) or len(image) != 2 or not 1 <= positions <= columns_:
        raise Unsupported("the channels must be known at export, and the image have two dimensions")
    few(columns_ * positions)
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, apart, strict=True)]
    counts = [
        dims.add(dims.floordiv(dims.add(n, 2 * p - e), s), 1)
        for n, p, e, s in zip(image, edge, extents, step, strict=True)
    ]
    maps = F.reshape(*to_reshape(x, (x.shape[0], columns_, *counts)))
    weight = np.tile(np.eye(positions, dtype=np.float32), (columns_ // positions, 1)).reshape(columns_, 1, *kernel)
    placed = x.network.constant(weight.astype(x.dtype.numpy))
    found = F.conv_transpose(maps, placed, stride=step, pre_padding=edge, post_padding=(0, 0), dilation=apart,
                             groups=columns_ // positions)  # fmt: skip
    after = tuple(dims.add(n, dims.mul(have, -1)) for n, have in zip(image, found.shape[2:], strict=True))
    return F.pad(found, before=(0, 0, 0, 0), after=(0, 0, *after), value=0.0)


# ---------------------------------------------------------------------------------------------- parts of a tensor


@aten("aten.linalg_diagonal.default", views=True)
def matrix_diagonal(A: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Result:  # noqa: N803
    return diagonal(A, offset, dim1, dim2)


@aten("aten.diagonal.default", views=True)
def diagonal(self: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Result:
    """Every (columns + 1)-th element of the two dimensions as one row."""
    axes = [axis_of(dim, self.ndim(), "dim") for dim in (dim1, dim2)]
    rest = [i for i in range(self.ndim()) if i not in axes]
    x = F.permute(self, (*rest, *axes))
    *outer, rows, across = x.shape
    if not isinstance(rows, int) or not isinstance(across, int):
        return _diagonal(x, offset)
    count = max(min(rows + min(offset, 0), across - max(offset, 0)), 0)
    first = (offset if offset >= 0 else -offset * across) if count else 0
    flat, sizes = F.reshape(x, (*outer, rows * across)), (*outer, count)
    return F.slice(flat, (*[0] * len(outer), first), sizes, (*[1] * len(outer), across + 1))


def _diagonal(x: Tensor, offset: int) -> Result:
    """Of the last two dimensions, where only a run knows their sizes: by places among the elements of both."""
    *outer, rows, across = x.shape
    longest = dims.add(rows, min(offset, 0)), dims.add(across, -max(offset, 0))
    count = dims.maximum(dims.minimum(*longest), 0)
    first = (offset, 0) if offset < 0 else (0, offset)
    at = counting(x.network, count)
    row, column = (F.add(at, np.array(abs(n))) for n in first)
    places = F.add(F.mul(row, size_tensor(across, dtypes.int64)), column)
    return F.take(F.reshape(x, (*outer, dims.mul(rows, across))), places, axis=len(outer))


def _triangle(x: Tensor, diagonal: Size, lower: bool) -> Result:
    if x.ndim() < 2:
        raise Unsupported("a triangle needs two dimensions")
    rows, across = x.shape[-2:]
    row = F.reshape(F.iota(size=rows, start=diagonal, dtype=dtypes.int64), (rows, 1))
    column = F.reshape(F.iota(size=across, dtype=dtypes.int64), (1, across))
    inside = F.less_equal(column, row) if lower else F.greater_equal(column, row)
    return F.where(inside, x, np.zeros((), x.dtype.numpy))


@aten("aten.tril.default")
def tril(self: Tensor, diagonal: Size = 0) -> Result:
    return _triangle(self, diagonal, True)


@aten("aten.triu.default")
def triu(self: Tensor, diagonal: Size = 0) -> Result:
    return _triangle(self, diagonal, False)


def _put(self: Tensor, src: Tensor, axis: int, start: Size, step: int = 1) -> Result:
    """The tensor with what stands at start, start + step, … replaced."""
    count = src.shape[axis]
    places = F.add(F.mul(counting(self.network, count), step), as_operand(start, dtypes.int64))
    return index_copy(self, axis, places, cast(src, self.dtype))


@aten("aten.select_scatter.default")
def select_scatter(self: Tensor, src: Tensor, dim: int, index: Size) -> Result:
    axis = axis_of(dim, self.ndim(), "dim")
    place = dims.add(self.shape[axis], index) if isinstance(index, int) and index < 0 else index
    return _put(self, fn.unsqueeze(src, axis), axis, place)


@aten("aten.slice_scatter.default")
def slice_scatter(
    self: Tensor, src: Tensor, dim: int = 0, start: MaybeSize = None, end: MaybeSize = None, step: int = 1
) -> Result:
    axis = axis_of(dim, self.ndim(), "dim")
    size, first = self.shape[axis], 0 if start is None else start
    if isinstance(first, int) and first < 0:
        first = dims.maximum(dims.add(size, first), 0)
    if isinstance(first, int) and isinstance(size, int):
        first = min(first, size)
    return _put(self, F.expand(src, (*self.shape[:axis], src.shape[axis], *self.shape[axis + 1 :])), axis, first, step)
