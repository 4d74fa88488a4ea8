"""Ops on each element by itself, and choices (pairs of elements: binary.py; other dtypes: conversion.py).

A new one is its name, its meaning in NumPy, and its steps if they have another name.

Floats narrower than 32 bits compute in float32 and round once. The scalar expression (`expr`) is what back ends fuse.
"""
from __future__ import annotations

import operator
from typing import Any, ClassVar

import numpy as np

from ingot import dims, dtypes
from ingot.dtypes import DType
from ingot.ir import Case, ExprBuilder, Op, Scalar, Spec, op, require
from ingot.ir.expr import erf, integer_range
from ingot.ir.spec import broadcast
from ingot.ops.common import (
    Array,
    bf16,
    boolean,
    each,
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
    arguments: ClassVar[tuple[str, ...]] = ("input",)
    integers: ClassVar[bool] = False  # whether integers are taken too
    low: ClassVar[float] = -3.0  # the tests' operands lie in low..high
    high: ClassVar[float] = 3.0
    cases: ClassVar[tuple[Case, ...]] = (
        Case("a vector", (f32(33),)),
        Case("bfloat16 rounds once", (bf16(4, 40),)),
        Case("float64", (f64(40),)),
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
        return Case("random", (Spec(draw.shape(), draw.choice(kinds)),))


INTEGER_CASES = (Case("int32", (i32(5),)), Case("int8", (i8(2, 3),)))


@op("neg")
class Neg(Unary):
    """−x."""

    imported_as = ("aten.neg.default", "aten.negative.default")
    on_dims = each(lambda x: dims.mul(x, -1))
    compute, integers, cases = np.negative, True, Unary.cases + INTEGER_CASES


@op("abs")
class Abs(Unary):
    """|x|."""

    compute, integers, cases = np.abs, True, Unary.cases + INTEGER_CASES


@op("exp")
class Exp(Unary):
    """eˣ."""

    imported_as = ("aten.exp.default",)
    compute = np.exp


@op("log")
class Log(Unary):
    """Natural logarithm."""

    imported_as = ("aten.log.default",)
    compute, low = np.log, 0.01


@op("sqrt")
class Sqrt(Unary):
    """√x."""

    imported_as = ("aten.sqrt.default",)
    compute, low = np.sqrt, 0.0


@op("rsqrt")
class Rsqrt(Unary):
    """1 / √x."""

    imported_as = ("aten.rsqrt.default",)
    compute, low = staticmethod(lambda x: 1 / np.sqrt(x)), 0.01


@op("sin")
class Sin(Unary):
    """Sine of radians."""

    imported_as = ("aten.sin.default",)
    compute = np.sin


@op("cos")
class Cos(Unary):
    """Cosine of radians."""

    imported_as = ("aten.cos.default",)
    compute = np.cos


@op("tanh")
class Tanh(Unary):
    """Hyperbolic tangent."""

    imported_as = ("aten.tanh.default",)
    compute = np.tanh


@op("sigmoid")
class Sigmoid(Unary):
    """1 / (1 + e⁻ˣ)."""

    imported_as = ("aten.sigmoid.default",)
    compute = staticmethod(lambda x: 1 / (1 + np.exp(-x)))


@op("erf")
class Erf(Unary):
    """The error function."""

    imported_as = ("aten.erf.default",)
    compute = erf


class Jump(Unary):
    """A Unary that jumps: it sees its operand rounded to its dtype, in the middle of an expression too."""

    def expr(self, e: ExprBuilder, x: Scalar) -> Scalar:
        return e.call(self.name, e.settled(x))


@op("floor")
class Floor(Jump):
    """The largest whole number not above x."""

    imported_as = ("aten.floor.default",)
    compute = np.floor


@op("ceil")
class Ceil(Jump):
    """The smallest whole number not below x."""

    imported_as = ("aten.ceil.default",)
    compute = np.ceil


@op("round")
class Round(Jump):
    """The nearest whole number, halves to even."""

    imported_as = ("aten.round.default",)
    compute = np.rint


@op("reciprocal")
class Reciprocal(Unary):
    """1 / x."""

    imported_as = ("aten.reciprocal.default",)
    compute, step, low = np.reciprocal, "recip", 0.1


@op("relu")
class Relu(Unary):
    """max(x, 0)."""

    imported_as = ("aten.relu.default",)
    compute, integers, cases = staticmethod(lambda x: np.maximum(x, 0)), True, Unary.cases + INTEGER_CASES

    def expr(self, e: ExprBuilder, x: Scalar) -> Scalar:
        return e.max(x, 0)


@op("silu")
class Silu(Unary):
    """x · sigmoid(x)."""

    imported_as = ("aten.silu.default",)
    compute = staticmethod(lambda x: x / (1 + np.exp(-x)))

    def torch(self, torch: Any, x: Any) -> Any:
        return torch.nn.functional.silu(x)


@op("mish")
class Mish(Unary):
    """x · tanh(softplus(x)) (Misra 2019)."""

    imported_as, arguments = ("aten.mish.default",), ("x",)
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
    arguments = ()
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
        # max(s, 0) + log(1 + n) for n = exp(-|s|) does not overflow. 1 + n loses digits of a small n; the quotient of n
        # and what is left of it gives them back.
        n = e.exp(-e.abs(scaled))
        one = 1 + n
        soft = e.max(scaled, 0.0) + e.where(e.eq(one, 1.0), n, e.log(one) * (n / (one - 1)))
        return e.where(scaled > self.threshold, x, soft / self.beta)

    def torch(self, torch: Any, x: Any) -> Any:
        return torch.nn.functional.softplus(x, self.beta, self.threshold)


@op("logical_not")
class LogicalNot(Op):
    """True where x is False."""

    function, arguments = "not_op", ("input",)
    cases = (Case("a mask", (boolean(2, 5),)), Case("a number", (f32(3),), error="x must be bool"))

    def infer(self, x: Spec) -> Spec:
        require(x.dtype is dtypes.bool_, "x must be bool; compare it with 0 first")
        return x

    def reference(self, x: Array) -> Array:
        return ~x

    on_dims = each(operator.not_)

    def expr(self, e: ExprBuilder, x: Scalar) -> Scalar:
        return e.not_(x)

    def torch(self, torch: Any, x: Any) -> Any:
        return torch.logical_not(x)


# ---------------------------------------------------------------------------------------------------------- choices
@op("where")
class Where(Op):
    """a where the condition holds, else b."""

    in_scope = "moves"
    scalars_like = ("a", "b")
    on_dims = each(lambda condition, a, b: a if condition else b)
    cases = (
        Case("per element", (boolean(3, 4), f32(3, 4), f32(3, 4))),
        Case("a row mask", (boolean("T", 1), bf16("T", 6), bf16(6))),
        Case("integers", (boolean(3), i32(), i32(3))),
        Case("no bool", (f32(3), f32(3), f32(3)), error="condition must be bool"),
        Case("two dtypes", (boolean(3), f32(3), i32(3)), error="a is float32 and b is int32"),
    )

    def infer(self, condition: Spec, a: Spec, b: Spec) -> Spec:
        require(condition.dtype is dtypes.bool_, "condition must be bool; compare it with 0 first")
        return Spec(broadcast(condition.shape, a.shape, b.shape), same_dtype(a=a, b=b))

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
    arguments = ()
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
        low, high = self._edges(dtypes.get(str(x.dtype).removeprefix("torch.")))
        return x if low is high is None else torch.clamp(x, low, high)
