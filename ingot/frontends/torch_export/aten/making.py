"""ATen ops that make tensors: of one number, of numbers in steps, and grids of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot import functional as fn
from ingot.dtypes import DType
from ingot.frontends.torch_export.aten.promotion import as_operand, cast, result_type, size_tensor
from ingot.frontends.torch_export.aten.table import (
    MaybeDType,
    MaybeSize,
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
)
from ingot.ir import F, Network, Value

MAX_MADE = 1 << 20  # elements of a constant that an op makes of numbers


def filled(network: Network, size: Sizes, value: Operand, dtype: Any) -> Result:
    """A number over a shape."""
    found = as_operand(value, dtype)
    whole = found if isinstance(found, Value) else network.scalar(found, dtype)
    return F.expand(whole, size) if size else whole


def counting(network: Network, size: Size) -> Value:
    """0, 1, … below a size."""
    found = F.iota(size=size, dtype=dtypes.int64)
    return found if isinstance(found, Value) else network.constant(found)


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
    first = size_tensor(low, kind) if isinstance(low, dims.Expr) else np.array(low, kind.numpy)
    return F.add(F.mul(cast(counting(network, count), kind), size_tensor(step, kind)), first)


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
    rows, columns = (counting(network, size) for size in (n, m))
    return cast(F.equal(F.reshape(rows, (n, 1)), F.reshape(columns, (1, m))), kind)


@aten("aten.linspace.default")
def linspace(network: Network, start: Scalar, end: Scalar, steps: Size, dtype: MaybeDType = None) -> Result:
    """From both ends to the middle, as torch computes it."""
    kind = dtype or dtypes.float32
    wide = kind if kind in (dtypes.float32, dtypes.float64) else dtypes.float32
    if isinstance(steps, dims.Expr):
        raise Unsupported("the number of steps must be known at export")
    if not 0 <= steps <= MAX_MADE:
        raise Unsupported(f"a linspace of {steps:,} numbers; there may be {MAX_MADE:,}")
    at = F.cast(counting(network, steps), wide)
    low, high = (as_operand(n, wide) for n in (start, end))
    if steps < 2:
        return cast(F.add(at, low), kind)
    step = F.div(F.sub(F.add(F.mul(at, 0.0), high), low), float(steps - 1))
    rising, falling = F.add(F.mul(at, step), low), F.sub(high, F.mul(step, F.sub(float(steps - 1), at)))
    return cast(F.where(F.less(at, float(steps // 2)), rising, falling), kind)


@aten("aten.meshgrid.indexing", "aten.meshgrid.default")
def meshgrid(tensors: Tensors, indexing: str = "ij") -> Results:
    if indexing not in ("ij", "xy"):
        raise Unsupported(f"indexing {indexing!r:.40} is not one of ij and xy")
    count = len(tensors)
    order = list(range(count))
    if indexing == "xy" and count > 1:
        order[:2] = 1, 0  # the dimensions in which the first two lie
    lengths = [x.shape[0] if x.shape else 1 for x in tensors]
    whole = tuple(lengths[order.index(i)] for i in range(count))
    return tuple(
        F.expand(F.reshape(x, tuple(n if i == order[k] else 1 for i in range(count))), whole)
        for k, (x, n) in enumerate(zip(tensors, lengths, strict=True))
    )
