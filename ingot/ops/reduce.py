"""Reductions. Floats accumulate in float32 (float64 in float64) whatever the operand's dtype, and round once."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from ingot import dims, dtypes
from ingot.dtypes import DType
from ingot.ir import Case, F, Op, Spec, op, require
from ingot.ir.expr import integer_range
from ingot.ir.spec import Shape, axes_of, axis_of
from ingot.ops.common import Array, bf16, boolean, f32, f64, i8, i32, require_float, require_number, rounded, widen


def reduced(shape: Shape, axes: tuple[int, ...], keepdims: bool) -> Shape:
    """The shape after reducing `axes` (counted from the front)."""
    if keepdims:
        return tuple(1 if i in axes else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in axes)


class Reduce(Op):
    """Reduces `axes` (None: all), which stay as size 1 with `keepdims`."""

    axes: tuple[int, ...] | None = None
    keepdims: bool = False
    compute: ClassVar[Any]
    torch_name: ClassVar[str] = ""
    arguments: ClassVar[tuple[str, ...]] = ("input",)
    integers: ClassVar[bool] = True
    empty: ClassVar[bool] = True  # whether nothing can be reduced: sum and prod have a value for it
    cases: ClassVar[tuple[Case, ...]] = (
        Case("last", (f32(3, 40),), {"axes": (-1,)}),
        Case("kept", (bf16("T", 5, 7),), {"axes": (1, -1), "keepdims": True}),
        Case("the first of three", (f32(4, 3, 2),), {"axes": (0,)}),
        Case("float64 in float64", (f64(4, 300, 2),), {"axes": (1,)}),
        Case("all", (f32(3, 5),)),
        Case("no such axis", (f32(3),), {"axes": (1,)}, error="axis 1 is out of range for a tensor of rank 1"),
        Case("twice the same", (f32(3, 4),), {"axes": (1, -1)}, error="name an axis twice"),
        Case("axes that are no ints", (f32(3),), {"axes": (0.5,)}, error="axes must be a tuple of ints or None"),
        Case("bools", (boolean(3),), error="cast it first"),
    )

    def infer(self, x: Spec) -> Spec:
        (require_number if self.integers else require_float)(x=x)
        axes = axes_of(self.axes, len(x.shape))
        require(self.empty or all(x.shape[a] != 0 for a in axes), f"{self.name} of no elements has no value")
        return Spec(reduced(x.shape, axes, self.keepdims), x.dtype)

    def reference(self, x: Array) -> Array:
        axes = axes_of(self.axes, x.ndim)
        with np.errstate(all="ignore"):
            return rounded(type(self).compute(widen(x), axis=axes, keepdims=self.keepdims), x)

    def torch(self, torch: Any, x: Any) -> Any:
        axes = axes_of(self.axes, x.ndim)
        wide = x.float() if x.dtype.is_floating_point and x.itemsize < 4 else x
        return getattr(torch, self.torch_name)(wide, dim=axes, keepdim=self.keepdims).to(x.dtype) if axes else x

    @classmethod
    def draw(cls, draw: Any) -> Case:
        shape = draw.shape(least=0 if cls.empty else 1)
        dtype = draw.choice([dtypes.float32, dtypes.bfloat16] + [dtypes.int32] * cls.integers)
        return Case("random", (Spec(shape, dtype),), {"axes": draw.axes(len(shape)), "keepdims": draw.boolean()})


def _over_dims(function: Callable[..., Any], of_nothing: int | None = None) -> Callable[..., Array]:
    """Op.on_dims of a reduction, by its meaning for two dims."""
    pair = np.frompyfunc(function, 2, 1, identity=of_nothing)

    def on_dims(op: Reduce, x: Array) -> Array:
        for axis in reversed(axes_of(op.axes, x.ndim)):
            x = np.asarray(pair.reduce(x, axis, keepdims=op.keepdims), object)
        return x
    return on_dims


def _sum(x: Array, **how: Any) -> Any:
    return np.sum(x, dtype=x.dtype, **how)


def _mean(x: Array, **how: Any) -> Any:
    """NaN where a run finds no elements, without NumPy's warning."""
    total = np.sum(x, **how)
    return total / x.dtype.type(x.size / total.size if total.size else 1)


def _product(x: Array, **how: Any) -> Any:
    return np.prod(x, dtype=x.dtype, **how)


@op("reduce_sum")
class ReduceSum(Reduce):
    """The sum. Integers wrap."""

    function = "sum"
    on_dims = _over_dims(dims.add, 0)
    compute, torch_name = _sum, "sum"
    cases = (*Reduce.cases, Case("of nothing: 0", (f32(3, 0),), {"axes": (1,)}), Case("int32", (i32(9),)),
             Case("int8 wraps", (i8(90),)))


@op("reduce_mean")
class ReduceMean(Reduce):
    """The mean of floats."""

    function = "mean"
    compute, torch_name, integers, empty = _mean, "mean", False, False
    cases = (*Reduce.cases, Case("of nothing", (f32(0),), error="of no elements has no value"))


def _largest(x: Array, **how: Any) -> Any:
    return np.max(x, initial=_outermost(dtypes.get(x.dtype), 0), **how)


def _smallest(x: Array, **how: Any) -> Any:
    return np.min(x, initial=_outermost(dtypes.get(x.dtype), 1), **how)


def _outermost(dtype: DType, side: int) -> float | int:
    """The least number of a dtype (side 0) or the greatest (1): what a run finds among no elements."""
    return integer_range(dtype)[side] if dtype.is_integer else (-math.inf, math.inf)[side]


class Extreme(Reduce):
    """The largest or the smallest. Where a run finds no elements, what none of the dtype is beyond."""

    empty = False
    side: ClassVar[int]

    def torch(self, torch: Any, x: Any) -> Any:
        axes = axes_of(self.axes, x.ndim)
        if all(x.shape[axis] for axis in axes):
            return super().torch(torch, x)
        edge = _outermost(dtypes.get(str(x.dtype).removeprefix("torch.")), self.side)
        return x.new_full(reduced(x.shape, axes, self.keepdims), edge)


@op("reduce_max")
class ReduceMax(Extreme):
    """The largest element; NaN if any is. Where a run finds none, −∞, or the least integer."""

    function = "max"
    on_dims = _over_dims(dims.maximum)
    compute, torch_name, side = _largest, "amax", 0
    cases = (*Reduce.cases, Case("of nothing", (f32(0),), error="of no elements has no value"), Case("int8", (i8(9),)))


@op("reduce_min")
class ReduceMin(Extreme):
    """The smallest element; NaN if any is. Where a run finds none, ∞, or the greatest integer."""

    function = "min"
    on_dims = _over_dims(dims.minimum)
    compute, torch_name, side = _smallest, "amin", 1
    cases = (*Reduce.cases, Case("of nothing", (f32(0),), error="of no elements has no value"))


@op("reduce_prod")
class ReduceProd(Reduce):
    """The product. Integers wrap."""

    function = "prod"
    on_dims = _over_dims(dims.mul, 1)
    compute = _product
    cases = (*Reduce.cases, Case("of nothing: 1", (f32(0),)))

    def torch(self, torch: Any, x: Any) -> Any:
        out = x.float() if x.dtype.is_floating_point and x.itemsize < 4 else x
        for axis in reversed(axes_of(self.axes, x.ndim)):
            out = torch.prod(out, axis, keepdim=self.keepdims, dtype=out.dtype)
        return out.to(x.dtype)

    def sample(self, rng: np.random.Generator, x: Spec) -> tuple[Array, ...]:
        """Floats near ±1: a product of many others leaves the range, at a place that depends on the order."""
        if x.dtype.is_integer:
            return (rng.integers(-9, 9, x.shape).astype(x.dtype.numpy),)
        return ((rng.uniform(0.9, 1.1, x.shape) * rng.choice([-1, 1], x.shape)).astype(x.dtype.numpy),)


@op("argmax")
class ArgMax(Op):
    """The index (int64) of the largest element along `axis`, the first of equals."""

    axis: int = -1
    keepdims: bool = False
    cases = (
        Case("a row of logits", (f32(1, 300),)),
        Case("bfloat16 has ties", (bf16("T", 300),), {"keepdims": True}),
        Case("the first axis", (i32(5, 3),), {"axis": 0}),
        Case("float64", (f64(5, 3),), {"axis": 0}),
        Case("of nothing", (f32(3, 0),), error="of no elements"),
        Case("no such axis", (f32(3),), {"axis": 2}, error="axis 2 is out of range"),
    )

    def infer(self, x: Spec) -> Spec:
        require_number(x=x)
        axis = axis_of(self.axis, len(x.shape))
        require(x.shape[axis] != 0, "argmax of no elements has no value")
        return Spec(reduced(x.shape, (axis,), self.keepdims), dtypes.int64)

    def reference(self, x: Array) -> Array:
        return np.asarray(np.argmax(widen(x), axis=self.axis, keepdims=self.keepdims), np.int64)

    def torch(self, torch: Any, x: Any) -> Any:
        shape = reduced(x.shape, (axis_of(self.axis, x.ndim),), self.keepdims)
        return x.new_zeros(shape, dtype=torch.int64) if 0 in shape else torch.argmax(x, self.axis, self.keepdims)

    @classmethod
    def draw(cls, draw: Any) -> Case:
        shape = draw.shape(least=1, min_rank=1)
        return Case("random", (f32(*shape),), {"axis": draw.axis(len(shape)), "keepdims": draw.boolean()})


class Normalised(Op):
    """Softmax and its logarithm along one axis. A row with a NaN or +inf, or of −inf alone, gives NaN, as in torch."""

    axis: int = -1
    cases: ClassVar[tuple[Case, ...]] = (
        Case("a row", (f32(1, 50),)),
        Case("bfloat16 rounds once", (bf16("T", 50),)),
        Case("an inner axis", (f32(3, 5, 2),), {"axis": 1}),
        Case("float64: simpler ops in float64", (f64(3, 5, 2),), {"axis": 1}),
        Case("of one element", (f32(4, 1),)),
        Case("no rows", (f32(0, 3),)),
        Case("of nothing", (f32(3, 0),), error="of no elements has no value"),
        Case("integers", (i32(3),), error="cast it first"),
        Case("no such axis", (f32(3),), {"axis": 1}, error="axis 1 is out of range"),
    )

    def infer(self, x: Spec) -> Spec:
        require_float(x=x)
        require(x.shape[axis_of(self.axis, len(x.shape))] != 0, f"{self.name} of no elements has no value")
        return x

    def sample(self, rng: np.random.Generator, x: Spec) -> tuple[Array, ...]:
        """Some elements are −inf, as masks make them, and some rows altogether; those give NaN."""
        shape = x.evaluate({})
        rows = tuple(1 if i == axis_of(self.axis, len(shape)) else n for i, n in enumerate(shape))
        hidden = (rng.random(shape) < 0.1) | (rng.random(rows) < 0.2)
        return (np.where(hidden, -np.inf, 2 * rng.standard_normal(shape)).astype(x.dtype.numpy),)

    @classmethod
    def draw(cls, draw: Any) -> Case:
        shape = draw.shape(min_rank=1, least=1)
        dtype = draw.choice([dtypes.float32, dtypes.bfloat16])
        return Case("random", (Spec(shape, dtype),), {"axis": draw.axis(len(shape))})


def _shifted(x: Array, axis: int) -> Array:
    """x − max(x): the largest exponent is 0."""
    with np.errstate(all="ignore"):
        return np.asarray(x - np.max(x, axis=axis, keepdims=True, initial=-np.inf))  # a row may have no elements


def _wide(x: Any) -> Any:
    """A symbolic or eager operand in the dtype it accumulates in."""
    return F.cast(x, dtypes.float32) if dtypes.get(x.dtype).bits < 32 else x


@op("softmax")
class Softmax(Normalised):
    """eˣ / Σ eˣ along `axis`. Shifted by the maximum, accumulated in float32, rounded once; NaN where all is −inf."""

    def reference(self, x: Array) -> Array:
        e = np.exp(_shifted(widen(x), self.axis))
        return rounded(e / e.sum(axis=self.axis, keepdims=True), x)

    def decompose(self, x: Any) -> Any:
        wide = _wide(x)
        e = F.exp(F.sub(wide, F.reduce_max(wide, (self.axis,), True)))
        return F.cast(F.div(e, F.reduce_sum(e, (self.axis,), True)), x.dtype)

    def torch(self, torch: Any, x: Any) -> Any:
        return torch.softmax(x if x.itemsize > 4 else x.float(), self.axis).to(x.dtype)


@op("log_softmax")
class LogSoftmax(Normalised):
    """x − log Σ eˣ along `axis`. Shifted by the maximum, accumulated in float32, rounded once."""

    def reference(self, x: Array) -> Array:
        shifted = _shifted(widen(x), self.axis)
        return rounded(shifted - np.log(np.exp(shifted).sum(axis=self.axis, keepdims=True)), x)

    def decompose(self, x: Any) -> Any:
        wide = _wide(x)
        shifted = F.sub(wide, F.reduce_max(wide, (self.axis,), True))
        return F.cast(F.sub(shifted, F.log(F.reduce_sum(F.exp(shifted), (self.axis,), True))), x.dtype)

    def torch(self, torch: Any, x: Any) -> Any:
        return torch.log_softmax(x if x.itemsize > 4 else x.float(), self.axis).to(x.dtype)
