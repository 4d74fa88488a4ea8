"""ATen ops that reduce dimensions: sums, means, extremes, their places, norms."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot import functional as fn
from ingot.dims import Dimension
from ingot.frontends.torch_export.aten.pointwise import power, sub
from ingot.frontends.torch_export.aten.promotion import cast, category, floating, size_tensor
from ingot.frontends.torch_export.aten.table import (
    MaybeDType,
    MaybeInt,
    MaybeInts,
    MaybeScalar,
    MaybeTensor,
    Result,
    Results,
    Scalar,
    Tensor,
    Unsupported,
    aten,
)
from ingot.ir import F
from ingot.ir.spec import axes_of, axis_of, elements


def _axes(x: Tensor, dim: MaybeInts) -> tuple[int, ...]:
    """The dimensions to reduce, counted from the front; none named means all."""
    return axes_of(dim or None, x.ndim()) if x.shape else ()


def _accumulator(x: Tensor, dtype: MaybeDType) -> Result:
    """x in the type of its sum: whole numbers add up in int64."""
    return cast(x, dtype or (x.dtype if category(x.dtype) == 2 else dtypes.int64))


@aten("aten.sum.default", "aten.sum.dim_IntList")
def sum(self: Tensor, dim: MaybeInts = None, keepdim: bool = False, dtype: MaybeDType = None) -> Result:
    x = _accumulator(self, dtype)
    return F.reduce_sum(x, axes=_axes(x, dim), keepdims=keepdim)


@aten("aten.prod.default", "aten.prod.dim_int")
def prod(self: Tensor, dim: MaybeInt = None, keepdim: bool = False, dtype: MaybeDType = None) -> Result:
    x = _accumulator(self, dtype)
    return F.reduce_prod(x, axes=_axes(x, None if dim is None else (dim,)), keepdims=keepdim)


@aten("aten.mean.default", "aten.mean.dim")
def mean(self: Tensor, dim: MaybeInts = None, keepdim: bool = False, dtype: MaybeDType = None) -> Result:
    x = self if dtype is None else cast(self, dtype)
    return F.reduce_mean(x, axes=_axes(x, dim), keepdims=keepdim)


def _extreme(x: Tensor, name: str, dim: MaybeInts, keepdim: bool) -> Result:
    if x.dtype is dtypes.bool_:  # as uint8, whose extremes say False of any and True of all where there are none
        found = getattr(F, name)(cast(x, dtypes.uint8), axes=_axes(x, dim), keepdims=keepdim)
        return cast(found, dtypes.bool_)
    return getattr(F, name)(x, axes=_axes(x, dim), keepdims=keepdim)


@aten("aten.amax.default", "aten.max.default")
def amax(self: Tensor, dim: MaybeInts = None, keepdim: bool = False) -> Result:
    return _extreme(self, "reduce_max", dim, keepdim)


@aten("aten.amin.default", "aten.min.default")
def amin(self: Tensor, dim: MaybeInts = None, keepdim: bool = False) -> Result:
    return _extreme(self, "reduce_min", dim, keepdim)


@aten("aten.argmax.default")
def argmax(self: Tensor, dim: MaybeInt = None, keepdim: bool = False) -> Result:
    if dim is None:
        found = F.argmax(F.reshape(self, (elements(self.shape),)), axis=0)
        return F.reshape(found, (1,) * self.ndim()) if keepdim else found
    return F.argmax(self, axis=axis_of(dim, self.ndim(), "dim"), keepdims=keepdim)


@aten("aten.argmin.default")
def argmin(self: Tensor, dim: MaybeInt = None, keepdim: bool = False) -> Result:
    if category(self.dtype) < 2:
        raise Unsupported("argmin of integers is not supported")
    return argmax(F.neg(self), dim, keepdim)


@aten("aten.max.dim")
def max_dim(self: Tensor, dim: int, keepdim: bool = False) -> Results:
    return amax(self, (dim,), keepdim), argmax(self, dim, keepdim)


@aten("aten.min.dim")
def min_dim(self: Tensor, dim: int, keepdim: bool = False) -> Results:
    return amin(self, (dim,), keepdim), argmin(self, dim, keepdim) if category(self.dtype) == 2 else None


@aten("aten.any.default", "aten.any.dim", "aten.any.dims")
def any_of(self: Tensor, dim: MaybeInts = None, keepdim: bool = False) -> Result:
    return _truth(amax(cast(self, dtypes.bool_), dim, keepdim), self)


def _truth(found: Tensor, x: Tensor) -> Result:
    """bool; of uint8 it is uint8, which was torch's first type of truth."""
    return cast(found, dtypes.uint8) if x.dtype is dtypes.uint8 else found


@aten("aten.all.default", "aten.all.dim", "aten.all.dims")
def all_of(self: Tensor, dim: MaybeInts = None, keepdim: bool = False) -> Result:
    return _truth(amin(cast(self, dtypes.bool_), dim, keepdim), self)


@aten("aten.logsumexp.default")
def logsumexp(self: Tensor, dim: MaybeInts, keepdim: bool = False) -> Result:
    x = floating(self)
    axes = _axes(x, dim)
    top = F.reduce_max(x, axes=axes, keepdims=True)
    top = F.where(F.equal(F.abs(top), float("inf")), np.zeros((), x.dtype.numpy), top)
    total = F.add(F.log(F.reduce_sum(F.exp(F.sub(x, top)), axes=axes, keepdims=True)), top)
    return total if keepdim else _without(total, axes)


def _without(x: Tensor, axes: tuple[int, ...]) -> Result:
    return F.reshape(x, tuple(d for i, d in enumerate(x.shape) if i not in axes))


def _variance(x: Tensor, dim: MaybeInts, correction: MaybeScalar, keepdim: bool) -> tuple[Any, Any]:
    """Two passes, accumulated in float32; the mean beside it."""
    if category(x.dtype) < 2:
        raise Unsupported("the variance of integers does not exist; convert them first")
    axes = _axes(x, dim)
    taken = 1 if correction is None else correction
    if not isinstance(taken, int | float) or taken != int(taken):
        raise Unsupported("correction must be a whole number known at export")
    wide = cast(x, dtypes.float32) if x.dtype.bits < 32 else x
    middle = F.reduce_mean(wide, axes=axes, keepdims=True)
    centred = F.sub(wide, middle)
    total = F.reduce_sum(F.mul(centred, centred), axes=axes, keepdims=True)
    count: Dimension = dims.add(elements(x.shape[a] for a in axes), -int(taken))
    if isinstance(count, int):
        variance = F.mul(total, float("nan")) if count <= 0 else F.div(total, float(count))
    else:
        variance = F.div(total, F.maximum(size_tensor(count, wide.dtype), 0.0))
    found = tuple(cast(v if keepdim else _without(v, axes), x.dtype) for v in (variance, middle))
    return found[0], found[1]


@aten("aten.var.correction")
def var(self: Tensor, dim: MaybeInts = None, correction: MaybeScalar = None, keepdim: bool = False) -> Result:
    return _variance(self, dim, correction, keepdim)[0]


@aten("aten.var.default", "aten.var.dim")
def var_unbiased(self: Tensor, dim: MaybeInts = None, unbiased: bool = True, keepdim: bool = False) -> Result:
    return var(self, dim, int(unbiased), keepdim)


@aten("aten.std.correction")
def std(self: Tensor, dim: MaybeInts = None, correction: MaybeScalar = None, keepdim: bool = False) -> Result:
    return F.sqrt(var(self, dim, correction, keepdim))


@aten("aten.std.default", "aten.std.dim")
def std_unbiased(self: Tensor, dim: MaybeInts = None, unbiased: bool = True, keepdim: bool = False) -> Result:
    return std(self, dim, int(unbiased), keepdim)


@aten("aten.var_mean.correction")
def var_mean(
    self: Tensor, dim: MaybeInts = None, correction: MaybeScalar = None, keepdim: bool = False
) -> Results:
    return _variance(self, dim, correction, keepdim)


@aten("aten.linalg_vector_norm.default", "aten.norm.ScalarOpt_dim", "aten.norm.Scalar")
def vector_norm(
    self: Tensor, ord: MaybeScalar = None, dim: MaybeInts = None, keepdim: bool = False, dtype: MaybeDType = None,
    p: MaybeScalar = None,
) -> Result:  # fmt: skip
    x = self if dtype is None else cast(self, dtype)
    if category(x.dtype) < 2:
        raise Unsupported("the norm of integers does not exist; convert them first")
    which: Scalar = 2 if ord is None and p is None else p if ord is None else ord  # type: ignore[assignment]
    size = F.abs(x)
    axes = _axes(x, dim)
    if which == float("inf"):
        return F.reduce_max(size, axes=axes, keepdims=keepdim)
    if which == 1:
        return F.reduce_sum(size, axes=axes, keepdims=keepdim)
    if which == float("-inf"):
        return F.reduce_min(size, axes=axes, keepdims=keepdim)
    if which == 0:
        return F.reduce_sum(cast(F.not_equal(x, 0.0), x.dtype), axes=axes, keepdims=keepdim)
    if not isinstance(which, int | float):
        raise Unsupported(f"the order of a norm must be known at export, not {which}")
    if which != 2:
        return power(F.reduce_sum(power(size, which), axes=axes, keepdims=keepdim), 1 / which)
    return F.sqrt(F.reduce_sum(power(x, 2), axes=axes, keepdims=keepdim))


@aten("aten.mse_loss.default")
def mse_loss(self: Tensor, target: Tensor, reduction: int = 1) -> Result:
    """reduction: 0 none, 1 the mean, 2 the sum, as torch numbers them."""
    apart = power(sub(self, target), 2)
    return apart if reduction == 0 else mean(apart) if reduction == 1 else sum(apart)


@aten("aten.cumsum.default")
def cumsum(self: Tensor, dim: int, dtype: MaybeDType = None) -> Result:
    """Accumulated in the type that it gives."""
    x = _accumulator(self, dtype)
    return F.cumsum(x, axis=axis_of(dim, x.ndim(), "dim")) if x.shape else x


@aten("aten.diff.default")
def diff(self: Tensor, n: int = 1, dim: int = -1, prepend: MaybeTensor = None, append: MaybeTensor = None) -> Result:
    """Each element less the one before it, n times over."""
    axis = axis_of(dim, self.ndim(), "dim")
    x = fn.concat([part for part in (prepend, self, append) if part is not None], axis)
    for _ in range(n):
        size = x.shape[axis]
        left = dims.maximum(dims.add(size, -1), 0)
        behind, ahead = (
            fn.slice(x, [start if i == axis else 0 for i in range(x.ndim())],
                     [left if i == axis else d for i, d in enumerate(x.shape)])
            for start in (0, dims.add(size, dims.mul(left, -1)))
        )  # fmt: skip
        x = F.not_equal(ahead, behind) if x.dtype is dtypes.bool_ else F.sub(ahead, behind)
    return x
