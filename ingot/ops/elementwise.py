"""Ops on each element by itself, choices and casts (pairs of elements: binary.py).

A new one is its name, its meaning in NumPy, and its steps if they have another name.

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
    f32,
    f64,
    i8,
    i32,
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


@op("mish")
class Mish(Unary):
    """x · tanh(softplus(x)) (Misra 2019)."""

    compute = staticmethod(lambda x: x * np.tanh(np.where(x > 20, x, np.log1p(np.exp(x)))))

    def expr(self, e: ExprBuilder, x: Scalar) -> Scalar:
        # tanh(log(1 + n)) is n(n + 2) / (n(n + 2) + 2) for n = exp(x): one exponential, and nothing that cancels. From
        # 20 on it is 1 in float32, and the power of n stays finite.
        n = e.exp(e.min(x, 20.0))
        product = n * (n + 2.0)
        return x * (product / (product + 2.0))

    def torch(self, torch: Any, x: Any) -> Any:
        return torch.nn.functional.mish(x)


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
            require(edge is None or x.dtype.is_float or float(edge).is_integer(),
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


