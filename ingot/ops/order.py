"""Ops that need an order of elements: sorting, the largest few, places among sorted numbers, running sums and extremes.

NaN counts as the largest element, as in torch. Equal elements keep their order.
"""
from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ingot import dtypes
from ingot.ir import Case, Op, Spec, op, require
from ingot.ir.spec import axis_of
from ingot.ops.common import (
    Array,
    bf16,
    boolean,
    f32,
    f64,
    i8,
    i32,
    i64,
    require_float,
    require_number,
    rounded,
    same_dtype,
    torch_wide,
    widen,
)


def order_of(x: Array, axis: int, descending: bool) -> Array:
    """The places of the elements in order along an axis, equal ones by place."""
    wide = widen(x)  # NumPy sorts NaN behind everything
    if not descending:
        return np.argsort(wide, axis, kind="stable").astype(np.int64)
    back = np.flip(np.argsort(np.flip(wide, axis), axis, kind="stable"), axis)
    return np.asarray(x.shape[axis] - 1 - back, np.int64)


def torch_sorted(torch: Any, x: Any, axis: int, descending: bool) -> Any:
    """A torch tensor's elements in order, and their places. Some devices sort a NaN with a sign in front."""
    if x.is_floating_point():
        x = x.masked_fill(x.isnan(), torch.nan)
    return tuple(torch.sort(x, dim=axis, descending=descending, stable=True))


class Ordered(Op):
    """Elements in order along `axis`, and where they were (int64)."""

    axis: int = -1
    in_scope = "moves"
    outputs = 2

    def sample(self, rng: np.random.Generator, x: Spec) -> tuple[Array, ...]:
        """Few different numbers, so that some are equal; of floats both zeros and infinities.

        And NaN, but of 16 bits, which the tests compare bit by bit.
        """
        array = rng.integers(0, 9, x.evaluate({})).astype(x.dtype.numpy)
        if x.dtype.is_float:
            array[rng.random(array.shape) < 0.5] *= x.dtype.numpy.type(-1)
            for special in (np.inf, -np.inf, *[np.nan] * (x.dtype.bits >= 32)):
                array[rng.random(array.shape) < 0.1] = special
        return (array,)


@op("sort")
class Sort(Ordered):
    """The elements along `axis` in ascending (or descending) order, and where they were (int64)."""

    descending: bool = False
    cases = (
        Case("a row", (f32(1, 50),)),
        Case("bfloat16 has ties", (bf16("T", 50),), {"descending": True}),
        Case("float64", (f64(3, 9),)),
        Case("the first axis", (i32(9, 3),), {"axis": 0, "descending": True}),
        Case("int8 at its end", (i8(30),), {"descending": True}),
        Case("bools", (boolean(9),)),
        Case("nothing", (f32(3, 0),)),
        Case("a scalar", (f32(),), error="axis -1 is out of range"),
        Case("no such axis", (f32(3),), {"axis": 2}, error="axis 2 is out of range"),
    )

    def infer(self, x: Spec) -> tuple[Spec, Spec]:
        axis_of(self.axis, len(x.shape))
        return x, Spec(x.shape, dtypes.int64)

    def reference(self, x: Array) -> tuple[Array, Array]:
        axis = axis_of(self.axis, x.ndim)
        places = order_of(x, axis, self.descending)
        return np.take_along_axis(x, places, axis), places

    def torch(self, torch: Any, x: Any) -> Any:
        return torch_sorted(torch, x, self.axis, self.descending)

    @classmethod
    def draw(cls, draw: Any) -> Case:
        shape = draw.shape(min_rank=1)
        dtype = draw.choice([dtypes.float32, dtypes.bfloat16, dtypes.int32])
        return Case("random", (Spec(shape, dtype),), {"axis": draw.axis(len(shape)), "descending": draw.boolean()})


@op("top_k")
class TopK(Ordered):
    """The `k` largest (or smallest) elements along `axis`, in order, and where they were (int64)."""

    k: int = 1
    largest: bool = True
    cases = (
        Case("of a row of logits", (f32(1, 300),), {"k": 5}),
        Case("bfloat16 has ties: the first ones", (bf16("T", 300),), {"k": 300}),
        Case("the smallest along the first axis", (i32(9, 3),), {"axis": 0, "k": 4, "largest": False}),
        Case("none", (f32(3, 4),), {"k": 0}),
        Case("more than there are", (f32(3, 4),), {"k": 5}, error="k must be from 0 to 4, the size of axis 1, not 5"),
        Case("fewer than none", (f32(4),), {"k": -1}, error="k must be from 0"),
        Case("bools", (boolean(9),), error="cast it first"),
        Case("no such axis", (f32(3),), {"axis": 2}, error="axis 2 is out of range"),
    )

    def infer(self, x: Spec) -> tuple[Spec, Spec]:
        require_number(x=x)
        axis = axis_of(self.axis, len(x.shape))
        size = x.shape[axis]
        most = f" to {size}, the size of axis {axis}" if isinstance(size, int) else ""
        require(self.k >= 0 and (not isinstance(size, int) or self.k <= size), f"k must be from 0{most}, not {self.k}")
        shape = (*x.shape[:axis], self.k, *x.shape[axis + 1 :])
        return Spec(shape, x.dtype), Spec(shape, dtypes.int64)

    def reference(self, x: Array) -> tuple[Array, Array]:
        axis = axis_of(self.axis, x.ndim)
        places = np.take(order_of(x, axis, self.largest), np.arange(self.k), axis)
        return np.take_along_axis(x, places, axis), places

    def torch(self, torch: Any, x: Any) -> Any:
        """By a stable sort: which of equal elements torch.topk takes is not said."""
        return tuple(y.narrow(self.axis, 0, self.k) for y in torch_sorted(torch, x, self.axis, self.largest))

    @classmethod
    def draw(cls, draw: Any) -> Case:
        shape = draw.shape(least=1, min_rank=1)
        axis = draw.axis(len(shape))
        return Case("random", (f32(*shape),), {"axis": axis, "k": draw.choice(list(range(shape[axis] + 1))),
                                               "largest": draw.boolean()})  # fmt: skip


@op("bucketize")
class Bucketize(Op):
    """How many of the boundaries are below each element, or with `right` at most as large; int64, of x's shape.

    The boundaries ascend and hold no NaN. A NaN in x is above all of them. Boundaries [..., n] with x's leading
    dimensions are rows, each for the elements of x with its coordinates.
    """

    right: bool = False
    in_scope = "moves"
    cases = (
        Case("numbers", (f32("T", 5), f32(7))),
        Case("those equal too", (bf16(9), bf16(4)), {"right": True}),
        Case("integers", (i32(3, 4), i32("N"))),
        Case("one of float64", (f64(), f64(5))),
        Case("no boundaries", (f32(3), f32(0))),
        Case("other types", (f32(3), i32(4)), error="nothing is promoted silently"),
        Case("rows of boundaries", (f32("T", 3, 4), f32("T", 3, 9))),
        Case("rows, those equal too", (i32(3, 1), i32(3, 6)), {"right": True}),
        Case("boundaries of another rank", (f32(3), f32(4, 2)), error="boundaries must have one dimension, or x's"),
        Case("other rows", (f32(3, 2), f32(4, 2)), error="boundaries must have one dimension, or x's"),
        Case("no dimension", (f32(3), f32()), error="boundaries must have one dimension, or x's"),
    )

    def infer(self, x: Spec, boundaries: Spec) -> Spec:
        same_dtype(x=x, boundaries=boundaries)
        require_number(x=x)
        rows = len(x.shape) == len(boundaries.shape) > 0 and x.shape[:-1] == boundaries.shape[:-1]
        require(rows or len(boundaries.shape) == 1, "boundaries must have one dimension, or x's leading dimensions")
        return Spec(x.shape, dtypes.int64)

    def reference(self, x: Array, boundaries: Array) -> Array:
        side: Any = "right" if self.right else "left"
        if boundaries.ndim == 1:
            return np.asarray(np.searchsorted(widen(boundaries), widen(x), side), np.int64)
        found = np.zeros(x.shape, np.int64)
        for row in np.ndindex(x.shape[:-1]):
            found[row] = np.searchsorted(widen(boundaries[row]), widen(x[row]), side)
        return found

    def torch(self, torch: Any, x: Any, boundaries: Any) -> Any:
        if boundaries.ndim == 1:
            return torch.bucketize(torch_wide(x), torch_wide(boundaries), right=self.right)
        return torch.searchsorted(torch_wide(boundaries).contiguous(), torch_wide(x).contiguous(), right=self.right)

    def sample(self, rng: np.random.Generator, x: Spec, boundaries: Spec) -> tuple[Array, ...]:
        """Few different numbers, so that some are equal, and of float32 NaN."""
        array = rng.integers(0, 9, x.evaluate({})).astype(x.dtype.numpy)
        if x.dtype is dtypes.float32 and x.shape:
            array[rng.random(array.shape) < 0.1] = np.nan
        return array, np.sort(rng.integers(0, 9, boundaries.evaluate({}))).astype(x.dtype.numpy)

    @classmethod
    def draw(cls, draw: Any) -> Case:
        dtype = draw.choice([dtypes.float32, dtypes.int32])
        return Case("random", (Spec(draw.shape(), dtype), Spec((draw.size(),), dtype)), {"right": draw.boolean()})


def _scan_wide(x: Array) -> Any:
    """In what a scan of x accumulates: float32 in float64, narrower floats in float32."""
    return np.dtype(np.float64) if x.dtype == np.float32 else widen(x).dtype


class Scan(Op):
    """What all elements up to each along `axis` come to, rounded once. Integers wrap.

    float32 and float64 accumulate in float64, float16 and bfloat16 in float32.
    """

    axis: int = -1
    compute: ClassVar[Any]  # a ufunc
    cases: ClassVar[tuple[Case, ...]] = (
        Case("a row", (f32(2, 50),)),
        Case("rows abreast", (f32("T", 7),)),
        Case("bfloat16", (bf16("T", 9),)),
        Case("float64", (f64(3, 9),)),
        Case("nothing", (f32(3, 0),)),
        Case("bools", (boolean(9),), error="cast it first"),
        Case("a scalar", (f32(),), error="axis -1 is out of range"),
    )

    def infer(self, x: Spec) -> Spec:
        require_number(x=x)
        axis_of(self.axis, len(x.shape))
        return x

    def reference(self, x: Array) -> Array:
        wide = _scan_wide(x)
        with np.errstate(all="ignore"):
            return rounded(type(self).compute.accumulate(x.astype(wide), self.axis, dtype=wide), x)

    def torch(self, torch: Any, x: Any) -> Any:
        wide = torch.float64 if x.dtype is torch.float32 else torch_wide(x).dtype
        return getattr(torch, self.name)(x.to(wide), self.axis).to(x.dtype)

    @classmethod
    def draw(cls, draw: Any) -> Case:
        shape = draw.shape(min_rank=1)
        dtype = draw.choice([dtypes.float32] + [dtypes.int32] * (cls is not LogCumSumExp))
        return Case("random", (Spec(shape, dtype),), {"axis": draw.axis(len(shape))})


_INTEGERS = (
    Case("the first axis", (i64(9, 3),), {"axis": 0}),
    Case("int8 wraps", (i8(90),)),
)


@op("cumsum")
class CumSum(Scan):
    """The sum of all elements up to each along `axis`, rounded once. Integers wrap.

    float32 and float64 accumulate in float64, float16 and bfloat16 in float32.
    """

    compute = np.add
    cases = (*Scan.cases, *_INTEGERS)


@op("cumprod")
class CumProd(Scan):
    """The product of all elements up to each along `axis`, accumulated as in cumsum."""

    compute = np.multiply
    cases = (*Scan.cases, *_INTEGERS)


@op("logcumsumexp")
class LogCumSumExp(Scan):
    """The logarithm of the sum of exp of all elements up to each along `axis`; of floats. No exp overflows."""

    compute = np.logaddexp
    cases = (
        *Scan.cases,
        Case("the first axis", (f32(9, 3),), {"axis": 0}),
        Case("integers", (i32(9),), error="cast it first"),
    )

    def infer(self, x: Spec) -> Spec:
        require_float(x=x)
        return super().infer(x)


class Extreme(Ordered):
    """The greatest or smallest element up to each along `axis`, and its place (int64), of equal ones the last.

    NaN stays: from the first one on, all are.
    """

    compute: ClassVar[Any]  # a ufunc
    cases: ClassVar[tuple[Case, ...]] = (
        Case("a row", (f32(2, 50),)),
        Case("bfloat16", (bf16("T", 9),)),
        Case("float64 along the first axis", (f64(30, 3),), {"axis": 0}),
        Case("integers", (i8(4, 20),)),
        Case("bools", (boolean(9),)),
        Case("nothing", (f32(3, 0),)),
        Case("a scalar", (f32(),), error="axis -1 is out of range"),
    )

    def infer(self, x: Spec) -> tuple[Spec, Spec]:
        axis_of(self.axis, len(x.shape))
        return x, Spec(x.shape, dtypes.int64)

    def reference(self, x: Array) -> tuple[Array, Array]:
        axis, wide = axis_of(self.axis, x.ndim), widen(x)
        with np.errstate(invalid="ignore"):
            here = (wide == type(self).compute.accumulate(wide, axis)) | (wide != wide)
        along = np.arange(x.shape[axis]).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
        places = np.maximum.accumulate(np.where(here, along, 0), axis).astype(np.int64)
        return np.take_along_axis(x, places, axis), places

    def torch(self, torch: Any, x: Any) -> Any:
        return tuple(getattr(torch, self.name)(x, self.axis))

    @classmethod
    def draw(cls, draw: Any) -> Case:
        shape = draw.shape(min_rank=1)
        return Case("random", (Spec(shape, draw.choice([dtypes.float32, dtypes.bfloat16, dtypes.int32])),),
                    {"axis": draw.axis(len(shape))})  # fmt: skip


@op("cummax")
class CumMax(Extreme):
    """The greatest element up to each along `axis`, and its place (int64), of equal ones the last. NaN stays."""

    compute = np.maximum


@op("cummin")
class CumMin(Extreme):
    """The smallest element up to each along `axis`, and its place (int64), of equal ones the last. NaN stays."""

    compute = np.minimum
