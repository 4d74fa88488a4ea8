"""Ops on pairs of elements: arithmetic, comparisons, logic. Operands have one dtype and broadcast.

Floats narrower than 32 bits compute in float32 and round once. A Python number takes the tensor's dtype.
"""
from __future__ import annotations

import math
import operator
from typing import Any, ClassVar

import numpy as np

from ingot import dims, dtypes
from ingot.ir import Case, ExprBuilder, Op, Scalar, Spec, op, require
from ingot.ir.expr import floor_quotient, remainder
from ingot.ir.spec import broadcast
from ingot.ops.common import (
    Array,
    bf16,
    boolean,
    broadcast_specs,
    dims_compared,
    dims_quotient,
    dims_remainder,
    each,
    f32,
    f64,
    i8,
    i32,
    i64,
    minus,
    rounded,
    same_dtype,
    torch_wide,
    widen,
)


class Binary(Op):
    """Two operands of one dtype that broadcast; the result has that dtype."""

    compute: ClassVar[Any]
    step: ClassVar[str] = ""
    torch_name: ClassVar[str] = ""
    arguments: ClassVar[tuple[str, ...]] = ("left", "right")
    cases: ClassVar[tuple[Case, ...]] = (
        Case("same shape", (f32(3, 8), f32(3, 8))),
        Case("a bias per row, bfloat16", (bf16("T", 8), bf16(8))),
        Case("both sides broadcast", (f32(4, 1, 3), f32(5, 1))),
        Case("float64", (f64(4, 1, 3), f64(5, 1))),
        Case("with a scalar", (f32(7), f32())),
        Case("sizes differ", (f32(3, 4), f32(3, 5)), error="do not broadcast: 4 and 5"),
        Case("unknown sizes are different sizes", (f32("T"), f32("S")), error="do not broadcast: T and S"),
        Case("dtypes differ", (f32(3), bf16(3)), error="a is float32 and b is bfloat16.*cast one of them"),
    )
    integers: ClassVar[bool] = True
    floats: ClassVar[bool] = True

    def infer(self, a: Spec, b: Spec) -> Spec:
        dtype = same_dtype(a=a, b=b)
        require(dtype in dtypes.FLOATS and self.floats or dtype in dtypes.INTEGERS and self.integers,
                f"{dtype.name} operands are not taken; cast them first")
        return broadcast_specs(a, b, dtype)

    def reference(self, a: Array, b: Array) -> Array:
        with np.errstate(all="ignore"):
            return rounded(type(self).compute(widen(a), widen(b)), a)

    def expr(self, e: ExprBuilder, a: Scalar, b: Scalar) -> Scalar:
        return e.call(self.step or self.name, a, b)

    def torch(self, torch: Any, a: Any, b: Any) -> Any:
        return getattr(torch, self.torch_name or self.name)(a, b)

    @classmethod
    def draw(cls, draw: Any) -> Case:
        kinds = [dtypes.float32, dtypes.bfloat16] * cls.floats + [dtypes.int32, dtypes.int8] * cls.integers
        a, b = draw.broadcastable(2)
        dtype = draw.choice(kinds)
        return Case("random", (Spec(a, dtype), Spec(b, dtype)))


WRAPS = (Case("int8 wraps", (i8(50), i8(50))), Case("int32", (i32(3, 1), i32(4))), Case("int64", (i64(3), i64(3))))


@op("add")
class Add(Binary):
    """a + b. Integers wrap."""

    compute, cases = np.add, Binary.cases + WRAPS
    on_dims = each(dims.add)


@op("sub")
class Sub(Binary):
    """a − b. Integers wrap."""

    compute, cases = np.subtract, Binary.cases + WRAPS
    on_dims = each(minus)


@op("mul")
class Mul(Binary):
    """a · b. Integers wrap."""

    compute, cases = np.multiply, Binary.cases + WRAPS
    on_dims = each(dims.mul)


@op("maximum")
class Maximum(Binary):
    """The larger one; NaN if either is."""

    compute, step, cases = np.maximum, "max", Binary.cases + WRAPS
    on_dims = each(dims.maximum)


@op("minimum")
class Minimum(Binary):
    """The smaller one; NaN if either is."""

    compute, step, cases = np.minimum, "min", Binary.cases + WRAPS
    on_dims = each(dims.minimum)


class Division(Binary):
    """A Binary whose second operand is not 0 in the tests."""

    def sample(self, rng: np.random.Generator, a: Spec, b: Spec) -> tuple[Array, ...]:
        if a.dtype.is_integer:
            low = 0 if a.dtype.kind == "uint" else -20
            divisor = rng.integers(1, 5, b.shape) * (1 if low == 0 else rng.choice([-1, 1], b.shape))
            return rng.integers(low, 20, a.shape).astype(a.dtype.numpy), np.asarray(divisor).astype(b.dtype.numpy)
        divisor = rng.uniform(0.5, 2, b.shape) * rng.choice([-1, 1], b.shape)
        return rng.standard_normal(a.shape).astype(a.dtype.numpy), np.asarray(divisor).astype(b.dtype.numpy)

    def torch(self, torch: Any, a: Any, b: Any) -> Any:
        if a.is_floating_point():  # devices round narrow ones on the way
            return super().torch(torch, torch_wide(a), torch_wide(b)).to(a.dtype)
        by_zero = b == 0
        if a.dtype.is_signed:  # of the smallest number by −1 processors make a signal
            by_one = b == -1
            plain = super().torch(torch, a, torch.where(by_zero | by_one, 1, b))
            found = torch.where(by_one, self.by_minus_one(torch, a), plain)
        else:
            found = super().torch(torch, a, torch.where(by_zero, 1, b))
        return torch.where(by_zero, 0, found)

    def by_minus_one(self, torch: Any, a: Any) -> Any:
        """What integers by −1 are: nothing is left of them."""
        return 0


@op("div")
class Div(Division):
    """a / b of floats. For integers say `floordiv`, or cast."""

    compute, integers = np.divide, False
    cases = (*Binary.cases, Case("integers", (i32(3), i32(3)), error="int32 operands are not taken"))


@op("floordiv")
class FloorDiv(Division):
    """⌊a / b⌋ of floats and integers. Floats as Python and torch: 1 // 0.1 is 9. An integer division by 0 gives 0."""

    compute, cases = floor_quotient, Binary.cases + WRAPS
    torch_name = "floor_divide"
    imported_as = ("aten.floor_divide.default", "aten.floor_divide.Scalar")
    on_dims = each(dims_quotient)

    def reference(self, a: Array, b: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.floor_divide(a, b) if a.dtype.kind in "iu" else rounded(floor_quotient(widen(a), widen(b)), a)

    def expr(self, e: ExprBuilder, a: Scalar, b: Scalar) -> Scalar:
        return e.floordiv(e.settled(a), e.settled(b))

    def by_minus_one(self, torch: Any, a: Any) -> Any:
        """−a, which wraps."""
        return -a


@op("mod")
class Mod(Division):
    """The remainder of a by b with b's sign, of floats from the exact quotient. An integer remainder by 0 is 0."""

    function, arguments = "modulo", ("x", "y")
    imported_as = ("aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor")
    compute, cases, torch_name = remainder, Binary.cases + WRAPS, "remainder"
    on_dims = each(dims_remainder)

    def reference(self, a: Array, b: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.mod(a, b) if a.dtype.kind in "iu" else rounded(remainder(widen(a), widen(b)), a)

    def expr(self, e: ExprBuilder, a: Scalar, b: Scalar) -> Scalar:
        return e.mod(e.settled(a), e.settled(b))


@op("fmod")
class Fmod(Division):
    """The remainder of a by b with a's sign, as C's fmod. An integer remainder by 0 is 0."""

    imported_as = ("aten.fmod.Tensor", "aten.fmod.Scalar")
    compute, cases = np.fmod, Binary.cases + WRAPS

    def expr(self, e: ExprBuilder, a: Scalar, b: Scalar) -> Scalar:
        return e.fmod(e.settled(a), e.settled(b))


@op("pow")
class Pow(Binary):
    """a to the power b, floats."""

    compute, integers = np.power, False

    def sample(self, rng: np.random.Generator, a: Spec, b: Spec) -> tuple[Array, ...]:
        return (rng.uniform(0.1, 3, a.shape).astype(a.dtype.numpy), rng.uniform(-2, 2, b.shape).astype(b.dtype.numpy))


# atan(t) = t · p(t²) for t up to tan(π/8), where the terms of p shrink 25-fold: 13 of them are exact in float64.
_SPAN = math.tan(math.pi / 8)
_ARCTAN = np.polynomial.Chebyshev.interpolate(
    lambda u: np.arctan(np.sqrt(u)) / np.sqrt(u), 12, domain=[1e-12, _SPAN**2]
).convert(kind=np.polynomial.Polynomial).coef.tolist()  # fmt: skip


@op("atan2")
class Atan2(Binary):
    """The angle of (b, a) from −π to π, whose tangent is a / b: floats, with the signs of zeros."""

    compute, integers, torch_name = np.arctan2, False, "atan2"
    imported_as = ("aten.atan2.default", "aten.arctan2.default")

    def expr(self, e: ExprBuilder, a: Scalar, b: Scalar) -> Scalar:
        def negative(x: Scalar) -> Scalar:
            return e.or_(x < 0, e.recip(x) < 0)  # a zero with a sign, too

        tall, wide = e.abs(a), e.abs(b)
        low, high = e.min(tall, wide), e.max(tall, wide)
        none = e.const(0, a.dtype)
        t = e.where(e.eq(low, high), e.where(e.eq(high, 0), none, 1), low / high)  # of infinities, too
        steep = t > _SPAN
        near = e.where(steep, (t - 1) / (t + 1), t)
        square = near * near
        total = square * _ARCTAN[-1]
        for coefficient in reversed(_ARCTAN[1:-1]):
            total = (total + coefficient) * square
        angle = near * (total + _ARCTAN[0]) + e.where(steep, math.pi / 4, none)
        angle = e.where(tall > wide, math.pi / 2 - angle, angle)
        angle = e.where(negative(b), math.pi - angle, angle)
        return e.where(negative(a), -angle, angle)


class Comparison(Binary):
    """Compares numbers (equal and not_equal also bools); the result is bool."""

    cases = (*Binary.cases, Case("int64", (i64(4), i64(4))))

    def infer(self, a: Spec, b: Spec) -> Spec:
        dtype = same_dtype(a=a, b=b)
        bools = dtype is dtypes.bool_ and self.step in ("eq", "ne")
        require(dtype in dtypes.FLOATS or dtype in dtypes.INTEGERS or bools,
                f"{dtype.name} operands are not taken; cast them first")
        return Spec(broadcast(a.shape, b.shape), dtypes.bool_)

    def reference(self, a: Array, b: Array) -> Array:
        return np.asarray(type(self).compute(a, b))

    def expr(self, e: ExprBuilder, a: Scalar, b: Scalar) -> Scalar:
        return e.call(self.step, e.settled(a), e.settled(b))

    def torch(self, torch: Any, a: Any, b: Any) -> Any:
        return getattr(torch, self.step)(a, b)

    def sample(self, rng: np.random.Generator, *specs: Spec) -> tuple[Array, ...]:
        return tuple(rng.integers(0, 3, s.shape).astype(s.dtype.numpy) for s in specs)


@op("equal")
class Equal(Comparison):
    """a == b."""

    function = "eq"
    compute, step, cases = np.equal, "eq", (*Comparison.cases, Case("bools", (boolean(4), boolean(4))))
    on_dims = each(dims_compared(operator.eq))


@op("not_equal")
class NotEqual(Comparison):
    """a != b."""

    compute, step, function = np.not_equal, "ne", "ne"
    on_dims = each(dims_compared(operator.ne))


@op("less")
class Less(Comparison):
    """a < b."""

    function = "lt"
    on_dims = each(dims_compared(operator.lt))
    compute, step, cases = np.less, "lt", (
        *Comparison.cases, Case("bools have no order", (boolean(4), boolean(4)), error="bool operands are not taken"))


@op("less_equal")
class LessEqual(Comparison):
    """a <= b."""

    compute, step, function = np.less_equal, "le", "le"
    on_dims = each(dims_compared(operator.le))


@op("greater")
class Greater(Comparison):
    """a > b."""

    compute, step, function = np.greater, "gt", "gt"
    on_dims = each(dims_compared(operator.gt))


@op("greater_equal")
class GreaterEqual(Comparison):
    """a >= b."""

    compute, step, function = np.greater_equal, "ge", "ge"
    on_dims = each(dims_compared(operator.ge))


class Logical(Binary):
    """Bools, or the bits of integers."""

    floats = False
    cases = (Case("masks", (boolean(3, 4), boolean(4))), Case("bits of int32", (i32(9), i32(9))),
             Case("bits of int8", (i8(9), i8(1))),
             Case("floats have no truth", (f32(3), f32(3)), error="float32 operands are not taken"))

    def infer(self, a: Spec, b: Spec) -> Spec:
        dtype = same_dtype(a=a, b=b)
        require(dtype is dtypes.bool_ or dtype in dtypes.INTEGERS,
                f"{dtype.name} operands are not taken, only bool and integers; compare with 0 first")
        return broadcast_specs(a, b, dtype)

    def expr(self, e: ExprBuilder, a: Scalar, b: Scalar) -> Scalar:
        return e.call(self.step, a, b)

    def torch(self, torch: Any, a: Any, b: Any) -> Any:
        return getattr(torch, f"bitwise_{self.step}")(a, b)

    def sample(self, rng: np.random.Generator, *specs: Spec) -> tuple[Array, ...]:
        high = 2 if specs[0].dtype is dtypes.bool_ else 100
        return tuple(rng.integers(0, high, s.shape).astype(s.dtype.numpy) for s in specs)


@op("logical_and")
class LogicalAnd(Logical):
    """Both; for integers bit by bit."""

    compute, step, function = np.bitwise_and, "and", "op_and"


@op("logical_or")
class LogicalOr(Logical):
    """Either; for integers bit by bit."""

    compute, step, function = np.bitwise_or, "or", "op_or"


@op("logical_xor")
class LogicalXor(Logical):
    """One but not both; for integers bit by bit."""

    compute, step, function = np.bitwise_xor, "xor", "op_xor"
