"""Ops on each element by itself. A new one is its name, its meaning in NumPy, and its steps if they have another name.

Floats narrower than 32 bits compute in float32 and round once. The scalar expression (`expr`) is what back ends fuse.
"""
from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ingot import dtypes
from ingot.dtypes import DType
from ingot.ir import Case, ExprBuilder, Op, Scalar, Spec, op, require
from ingot.ir.expr import erf, integer_range, truncate
from ingot.ir.spec import broadcast
from ingot.ops.common import (
    Array,
    bf16,
    boolean,
    broadcast_specs,
    f32,
    f64,
    i8,
    i32,
    i64,
    require_float,
    require_number,
    rounded,
    same_dtype,
    widen,
)


class Unary(Op):
    """One operand, result of the same shape and dtype. `compute` is its meaning; `step` its name in expressions."""

    compute: ClassVar[Any]
    step: ClassVar[str] = ""
    torch_name: ClassVar[str] = ""
    integers: ClassVar[bool] = False  # whether integers are taken too
    kernels = ("elementwise",)
    low: ClassVar[float] = -3.0  # the tests' operands lie in low..high
    high: ClassVar[float] = 3.0
    cases: ClassVar[tuple[Case, ...]] = (
        Case("a vector", (f32(33),)),
        Case("bfloat16 rounds once", (bf16(4, 40),)),
        Case("unknown row count", (f32("T", 7),)),
        Case("a scalar", (f32(),)),
        Case("nothing", (f32(0, 3),)),
        Case("bool is no number", (boolean(3),), error="cast it first"),
    )

    def infer(self, x: Spec) -> Spec:
        (require_number if self.integers else require_float)(x=x)
        return x

    def reference(self, x: Array) -> Array:
        with np.errstate(all="ignore"):
            return rounded(type(self).compute(widen(x)), x)

    def expr(self, e: ExprBuilder, x: Scalar) -> Scalar:
        return e.call(self.step or self.name, x)

    def torch(self, torch: Any, x: Any) -> Any:
        return getattr(torch, self.torch_name or self.name)(x)

    def sample(self, rng: np.random.Generator, x: Spec) -> tuple[Array, ...]:
        if x.dtype.is_integer:
            return (rng.integers(0 if x.dtype.kind == "uint" else -9, 10, x.shape).astype(x.dtype.numpy),)
        return (rng.uniform(self.low, self.high, x.shape).astype(x.dtype.numpy),)

    @classmethod
    def draw(cls, draw: Any) -> Case:
        kinds = [dtypes.float32, dtypes.bfloat16, dtypes.float16] + [dtypes.int32, dtypes.int8] * cls.integers
        return Case("random", (Spec(draw.choice(kinds), draw.shape()),))


INTEGER_CASES = (Case("int32", (i32(5),)), Case("int8", (i8(2, 3),)))


@op("neg")
class Neg(Unary):
    """−x."""

    compute, integers, cases = np.negative, True, Unary.cases + INTEGER_CASES


@op("abs")
class Abs(Unary):
    """|x|."""

    compute, integers, cases = np.abs, True, Unary.cases + INTEGER_CASES


@op("exp")
class Exp(Unary):
    """eˣ."""

    compute = np.exp


@op("log")
class Log(Unary):
    """Natural logarithm."""

    compute, low = np.log, 0.01


@op("sqrt")
class Sqrt(Unary):
    """√x."""

    compute, low = np.sqrt, 0.0


@op("rsqrt")
class Rsqrt(Unary):
    """1 / √x."""

    compute, low = staticmethod(lambda x: 1 / np.sqrt(x)), 0.01


@op("sin")
class Sin(Unary):
    """Sine of radians."""

    compute = np.sin


@op("cos")
class Cos(Unary):
    """Cosine of radians."""

    compute = np.cos


@op("tanh")
class Tanh(Unary):
    """Hyperbolic tangent."""

    compute = np.tanh


@op("sigmoid")
class Sigmoid(Unary):
    """1 / (1 + e⁻ˣ)."""

    compute = staticmethod(lambda x: 1 / (1 + np.exp(-x)))


@op("erf")
class Erf(Unary):
    """The error function."""

    compute = erf


@op("floor")
class Floor(Unary):
    """The largest whole number not above x."""

    compute = np.floor


@op("ceil")
class Ceil(Unary):
    """The smallest whole number not below x."""

    compute = np.ceil


@op("round")
class Round(Unary):
    """The nearest whole number, halves to even."""

    compute = np.rint


@op("reciprocal")
class Reciprocal(Unary):
    """1 / x."""

    compute, step, low = np.reciprocal, "recip", 0.1


@op("relu")
class Relu(Unary):
    """max(x, 0)."""

    compute, integers, cases = staticmethod(lambda x: np.maximum(x, 0)), True, Unary.cases + INTEGER_CASES

    def expr(self, e: ExprBuilder, x: Scalar) -> Scalar:
        return e.max(x, 0)


@op("silu")
class Silu(Unary):
    """x · sigmoid(x)."""

    compute = staticmethod(lambda x: x / (1 + np.exp(-x)))

    def torch(self, torch: Any, x: Any) -> Any:
        return torch.nn.functional.silu(x)


@op("gelu")
class Gelu(Unary):
    """x · Φ(x), the Gaussian's distribution function; `approximate`: by tanh, as GPT-2 and Gemma have it."""

    approximate: bool = False
    cases = (*Unary.cases, Case("by tanh", (f32(40),), {"approximate": True}),
             Case("wrong type", (f32(4),), {"approximate": "tanh"}, error="approximate must be True or False"))

    def reference(self, x: Array) -> Array:
        w = widen(x).astype(np.float64)
        if self.approximate:
            return rounded(0.5 * w * (1 + np.tanh(np.sqrt(2 / np.pi) * (w + 0.044715 * w**3))), x)
        return rounded(0.5 * w * (1 + erf(w / np.sqrt(2))), x)

    def expr(self, e: ExprBuilder, x: Scalar) -> Scalar:
        if self.approximate:
            return 0.5 * x * (1 + e.tanh(0.7978845608028654 * (x + 0.044715 * (x * x * x))))
        return 0.5 * x * (1 + e.erf(x * 0.7071067811865476))

    def torch(self, torch: Any, x: Any) -> Any:
        return torch.nn.functional.gelu(x, approximate="tanh" if self.approximate else "none")


@op("softplus")
class Softplus(Unary):
    """log(1 + exp(beta · x)) / beta, and x itself where beta · x is above the threshold."""

    beta: float = 1.0
    threshold: float = 20.0
    cases = (*Unary.cases, Case("other slope", (f32(40),), {"beta": 2.0}),
             Case("linear above the threshold", (f32(40),), {"threshold": 1.0}),
             Case("no slope", (f32(4),), {"beta": 0.0}, error="beta must not be 0"))

    def infer(self, x: Spec) -> Spec:
        require(self.beta != 0, "beta must not be 0")
        require_float(x=x)
        return x

    def reference(self, x: Array) -> Array:
        scaled = widen(x) * self.beta
        with np.errstate(all="ignore"):
            return rounded(np.where(scaled > self.threshold, widen(x), np.log1p(np.exp(scaled)) / self.beta), x)

    def expr(self, e: ExprBuilder, x: Scalar) -> Scalar:
        scaled = x * self.beta
        # max(s, 0) + log(1 + exp(-|s|)) neither overflows nor needs log1p's precision below 0
        soft = e.max(scaled, 0.0) + e.log(1 + e.exp(-e.abs(scaled)))
        return e.where(scaled > self.threshold, x, soft / self.beta)

    def torch(self, torch: Any, x: Any) -> Any:
        return torch.nn.functional.softplus(x, self.beta, self.threshold)


@op("logical_not")
class LogicalNot(Op):
    """True where x is False."""

    kernels = ("elementwise",)
    cases = (Case("a mask", (boolean(2, 5),)), Case("a number", (f32(3),), error="x must be bool"))

    def infer(self, x: Spec) -> Spec:
        require(x.dtype is dtypes.bool_, "x must be bool; compare it with 0 first")
        return x

    def reference(self, x: Array) -> Array:
        return ~x

    def expr(self, e: ExprBuilder, x: Scalar) -> Scalar:
        return e.not_(x)

    def torch(self, torch: Any, x: Any) -> Any:
        return torch.logical_not(x)


# ------------------------------------------------------------------------------------------------ two operands
class Binary(Op):
    """Two operands of one dtype that broadcast; the result has that dtype."""

    compute: ClassVar[Any]
    step: ClassVar[str] = ""
    torch_name: ClassVar[str] = ""
    kernels = ("elementwise",)
    cases: ClassVar[tuple[Case, ...]] = (
        Case("same shape", (f32(3, 8), f32(3, 8))),
        Case("a bias per row, bfloat16", (bf16("T", 8), bf16(8))),
        Case("both sides broadcast", (f32(4, 1, 3), f32(5, 1))),
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
        return Case("random", (Spec(dtype, a), Spec(dtype, b)))


WRAPS = (Case("int8 wraps", (i8(50), i8(50))), Case("int32", (i32(3, 1), i32(4))), Case("int64", (i64(3), i64(3))))


@op("add")
class Add(Binary):
    """a + b. Integers wrap."""

    compute, cases = np.add, Binary.cases + WRAPS


@op("sub")
class Sub(Binary):
    """a − b. Integers wrap."""

    compute, cases = np.subtract, Binary.cases + WRAPS


@op("mul")
class Mul(Binary):
    """a · b. Integers wrap."""

    compute, cases = np.multiply, Binary.cases + WRAPS


@op("maximum")
class Maximum(Binary):
    """The larger one; NaN if either is."""

    compute, step, cases = np.maximum, "max", Binary.cases + WRAPS


@op("minimum")
class Minimum(Binary):
    """The smaller one; NaN if either is."""

    compute, step, cases = np.minimum, "min", Binary.cases + WRAPS


class Nonzero(Binary):
    """A Binary whose second operand is not 0 in the tests."""

    def sample(self, rng: np.random.Generator, a: Spec, b: Spec) -> tuple[Array, ...]:
        if a.dtype.is_integer:
            low = 0 if a.dtype.kind == "uint" else -20
            divisor = rng.integers(1, 5, b.shape) * (1 if low == 0 else rng.choice([-1, 1], b.shape))
            return rng.integers(low, 20, a.shape).astype(a.dtype.numpy), np.asarray(divisor).astype(b.dtype.numpy)
        divisor = rng.uniform(0.5, 2, b.shape) * rng.choice([-1, 1], b.shape)
        return rng.standard_normal(a.shape).astype(a.dtype.numpy), np.asarray(divisor).astype(b.dtype.numpy)


@op("div")
class Div(Nonzero):
    """a / b of floats. For integers say `floordiv`, or cast."""

    compute, integers = np.divide, False
    cases = (*Binary.cases, Case("integers", (i32(3), i32(3)), error="int32 operands are not taken"))


@op("floordiv")
class FloorDiv(Nonzero):
    """⌊a / b⌋ of floats and integers. An integer division by 0 gives 0."""

    compute, cases = np.floor_divide, Binary.cases + WRAPS
    torch_name = "floor_divide"

    def reference(self, a: Array, b: Array) -> Array:
        with np.errstate(all="ignore"):
            if a.dtype.kind in "iu":
                return np.floor_divide(a, b)
            return rounded(np.floor(widen(a) / widen(b)), a)

    def expr(self, e: ExprBuilder, a: Scalar, b: Scalar) -> Scalar:
        return e.floordiv(a, b) if a.dtype.is_integer else e.floor(a / b)


@op("mod")
class Mod(Nonzero):
    """a − b·⌊a / b⌋: the remainder with the divisor's sign. An integer remainder by 0 is 0."""

    compute, cases, torch_name = np.mod, Binary.cases + WRAPS, "remainder"
    # a − b·⌊a/b⌋ in float32 cancels near multiples of b, where one rounding of a/b decides between 0 and b
    tolerance = 8.0

    def reference(self, a: Array, b: Array) -> Array:
        with np.errstate(all="ignore"):
            if a.dtype.kind in "iu":
                return np.mod(a, b)
            x, y = widen(a), widen(b)
            return rounded(x - y * np.floor(x / y), a)

    def expr(self, e: ExprBuilder, a: Scalar, b: Scalar) -> Scalar:
        return e.mod(a, b) if a.dtype.is_integer else a - b * e.floor(a / b)


@op("pow")
class Pow(Binary):
    """a to the power b, floats."""

    compute, integers = np.power, False

    def sample(self, rng: np.random.Generator, a: Spec, b: Spec) -> tuple[Array, ...]:
        return (rng.uniform(0.1, 3, a.shape).astype(a.dtype.numpy), rng.uniform(-2, 2, b.shape).astype(b.dtype.numpy))


class Comparison(Binary):
    """Compares numbers (equal and not_equal also bools); the result is bool."""

    cases = (*Binary.cases, Case("int64", (i64(4), i64(4))))

    def infer(self, a: Spec, b: Spec) -> Spec:
        dtype = same_dtype(a=a, b=b)
        bools = dtype is dtypes.bool_ and self.step in ("eq", "ne")
        require(dtype in dtypes.FLOATS or dtype in dtypes.INTEGERS or bools,
                f"{dtype.name} operands are not taken; cast them first")
        return Spec(dtypes.bool_, broadcast(a.shape, b.shape))

    def reference(self, a: Array, b: Array) -> Array:
        return np.asarray(type(self).compute(a, b))

    def torch(self, torch: Any, a: Any, b: Any) -> Any:
        return getattr(torch, self.step)(a, b)

    def sample(self, rng: np.random.Generator, *specs: Spec) -> tuple[Array, ...]:
        return tuple(rng.integers(0, 3, s.shape).astype(s.dtype.numpy) for s in specs)


@op("equal")
class Equal(Comparison):
    """a == b."""

    compute, step, cases = np.equal, "eq", (*Comparison.cases, Case("bools", (boolean(4), boolean(4))))


@op("not_equal")
class NotEqual(Comparison):
    """a != b."""

    compute, step = np.not_equal, "ne"


@op("less")
class Less(Comparison):
    """a < b."""

    compute, step, cases = np.less, "lt", (
        *Comparison.cases, Case("bools have no order", (boolean(4), boolean(4)), error="bool operands are not taken"))


@op("less_equal")
class LessEqual(Comparison):
    """a <= b."""

    compute, step = np.less_equal, "le"


@op("greater")
class Greater(Comparison):
    """a > b."""

    compute, step = np.greater, "gt"


@op("greater_equal")
class GreaterEqual(Comparison):
    """a >= b."""

    compute, step = np.greater_equal, "ge"


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

    compute, step = np.bitwise_and, "and"


@op("logical_or")
class LogicalOr(Logical):
    """Either; for integers bit by bit."""

    compute, step = np.bitwise_or, "or"


@op("logical_xor")
class LogicalXor(Logical):
    """One but not both; for integers bit by bit."""

    compute, step = np.bitwise_xor, "xor"


# ------------------------------------------------------------------------------------------------ choices and casts
@op("where")
class Where(Op):
    """a where the condition holds, else b."""

    kernels = ("elementwise",)
    scalars_like = ("a", "b")
    cases = (
        Case("per element", (boolean(3, 4), f32(3, 4), f32(3, 4))),
        Case("a row mask", (boolean("T", 1), bf16("T", 6), bf16(6))),
        Case("integers", (boolean(3), i32(), i32(3))),
        Case("no bool", (f32(3), f32(3), f32(3)), error="condition must be bool"),
        Case("two dtypes", (boolean(3), f32(3), i32(3)), error="a is float32 and b is int32"),
    )

    def infer(self, condition: Spec, a: Spec, b: Spec) -> Spec:
        require(condition.dtype is dtypes.bool_, "condition must be bool; compare it with 0 first")
        return Spec(same_dtype(a=a, b=b), broadcast(condition.shape, a.shape, b.shape))

    def reference(self, condition: Array, a: Array, b: Array) -> Array:
        return np.where(condition, a, b)

    def expr(self, e: ExprBuilder, condition: Scalar, a: Scalar, b: Scalar) -> Scalar:
        return e.where(condition, a, b)

    def torch(self, torch: Any, condition: Any, a: Any, b: Any) -> Any:
        return torch.where(condition, a, b)


@op("clip")
class Clip(Unary):
    """x held in low..high; None leaves a side open. NaN stays NaN."""

    minimum: float | None = None
    maximum: float | None = None
    integers = True
    cases = (*Unary.cases, *INTEGER_CASES, Case("both sides", (f32(40),), {"minimum": -1.0, "maximum": 0.5}),
             Case("one side, bfloat16", (bf16(40),), {"maximum": 0.3}),
             Case("integers", (i32(40),), {"minimum": -2.0, "maximum": 3.0}),
             Case("crossed", (f32(4),), {"minimum": 1.0, "maximum": 0.0}, error="minimum 1.0 is above maximum 0.0"),
             Case("half an integer", (i32(4),), {"minimum": 0.5}, error="0.5 is not a whole number"))

    def infer(self, x: Spec) -> Spec:
        require_number(x=x)
        require(self.minimum is None or self.maximum is None or self.minimum <= self.maximum,
                f"minimum {self.minimum} is above maximum {self.maximum}")
        for edge in (self.minimum, self.maximum):
            require(edge is None or x.dtype.is_float or edge == int(edge),
                    f"x is {x.dtype.name} and {edge} is not a whole number")
        return x

    def reference(self, x: Array) -> Array:
        low, high = self._edges(dtypes.get(x.dtype))
        wide = widen(x)
        if low is not None:
            wide = np.maximum(wide, np.asarray(low, wide.dtype))
        if high is not None:
            wide = np.minimum(wide, np.asarray(high, wide.dtype))
        return rounded(wide, x)

    def _edges(self, dtype: DType) -> tuple[Any, Any]:
        if dtype.is_float:
            return self.minimum, self.maximum
        low, high = integer_range(dtype)
        return (None if self.minimum is None else max(int(self.minimum), low),
                None if self.maximum is None else min(int(self.maximum), high))

    def expr(self, e: ExprBuilder, x: Scalar) -> Scalar:
        low, high = self._edges(x.dtype)
        out = x if low is None else e.max(x, low)
        return out if high is None else e.min(out, high)

    def torch(self, torch: Any, x: Any) -> Any:
        return x if self.minimum is self.maximum is None else torch.clamp(x, self.minimum, self.maximum).to(x.dtype)


@op("cast")
class Cast(Op):
    """Another dtype. Floats round to nearest even. Floats to integers truncate and saturate (NaN to 0); integers wrap.

    Between floats and int8 it (de)quantises: `round(x / scale)` held in −127..127, and `x · scale` (by default 1).
    """

    dtype: DType
    scale: float | None = None
    kernels = ("elementwise",)
    cases = (
        Case("to bfloat16: nearest even", (f32(40),), {"dtype": "bf16"}),
        Case("to float16", (f32(3, 5),), {"dtype": "float16"}),
        Case("from bfloat16", (bf16("T", 5),), {"dtype": "float32"}),
        Case("to int32: towards zero", (f32(40),), {"dtype": "int32"}),
        Case("to int64", (bf16(40),), {"dtype": "int64"}),
        Case("from int32", (i32(9),), {"dtype": "float32"}),
        Case("int32 to int8 wraps", (i32(90),), {"dtype": "int8"}),
        Case("int8 to int64", (i8(90),), {"dtype": "int64"}),
        Case("to bool: not 0", (f32(9),), {"dtype": "bool"}),
        Case("from bool", (boolean(9),), {"dtype": "float32"}),
        Case("bool to int32", (boolean(9),), {"dtype": "int32"}),
        Case("float64: no expression, runs by itself", (f64(9),), {"dtype": "float32"}),
        Case("quantise", (f32(90),), {"dtype": "int8", "scale": 0.01}),
        Case("quantise without scale", (f32(90),), {"dtype": "int8"}),
        Case("dequantise", (i8(90),), {"dtype": "float32", "scale": 0.01}),
        Case("no such dtype", (f32(3),), {"dtype": "float31"}, error="attribute dtype must be an element type"),
        Case("a scale without int8", (f32(3),), {"dtype": "int32", "scale": 2.0}, error="scale is for casts between"),
        Case("scale 0", (f32(3),), {"dtype": "int8", "scale": 0.0}, error="scale must be positive"),
    )

    def infer(self, x: Spec) -> Spec:
        require(self.scale is None or self._quantises(x.dtype), "scale is for casts between floats and int8")
        require(self.scale is None or 0 < self.scale < float("inf"), "scale must be positive and finite")
        require("complex" not in (x.dtype.kind, self.dtype.kind) or x.dtype.kind == self.dtype.kind,
                "a complex number has no real form; take its real part")
        return Spec(self.dtype, x.shape)

    def _quantises(self, source: DType) -> bool:
        return source.is_float and self.dtype is dtypes.int8 or source is dtypes.int8 and self.dtype.is_float

    def reference(self, x: Array) -> Array:
        source = dtypes.get(x.dtype)
        with np.errstate(all="ignore"):
            if self._quantises(source):
                scale = np.float32(1 if self.scale is None else self.scale)
                if source is dtypes.int8:
                    return rounded(x.astype(np.float32) * scale, self.dtype)
                return np.clip(np.rint(np.nan_to_num(widen(x) / scale)), -127, 127).astype(np.int8)
            if source.is_float and self.dtype.is_integer:
                if self.dtype.bits < 8:
                    low, high = integer_range(self.dtype)
                    return truncate(np.clip(x.astype(np.float64), low, high), dtypes.int8).astype(self.dtype.numpy)
                return truncate(widen(x), self.dtype)
            if self.dtype is dtypes.bool_:
                return np.asarray(widen(x) != 0)
            return x.astype(self.dtype.numpy)

    def expr(self, e: ExprBuilder, x: Scalar) -> Scalar:
        if self._quantises(x.dtype):
            scale = 1.0 if self.scale is None else float(np.float32(self.scale))
            if x.dtype is dtypes.int8:
                return e.cast(e.cast(x, dtypes.float32) * scale, self.dtype)
            number = e.cast(x, dtypes.float32)
            return e.cast(e.min(e.max(e.round(number / scale), -127.0), 127.0), dtypes.int8)
        return e.cast(x, self.dtype)

    def torch(self, torch: Any, x: Any) -> Any:
        if self._quantises(dtypes.get(str(x.dtype).removeprefix("torch."))):
            scale = 1.0 if self.scale is None else self.scale
            if self.dtype is dtypes.int8:
                return torch.clamp(torch.round(x / scale), -127, 127).to(torch.int8)
            return (x.float() * scale).to(getattr(torch, self.dtype.name))
        return x.to(getattr(torch, self.dtype.name))


