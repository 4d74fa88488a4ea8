"""ONNX ops that compute element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot.dtypes import DType
from ingot.frontends.arithmetic import (
    arccos,
    arccosh,
    arcsin,
    arcsinh,
    arctan,
    arctanh,
    cosh,
    sinh,
    whole_power,
)
from ingot.frontends.narrow import Narrow, decoded, encoded, is_narrow
from ingot.frontends.onnx.float_sizes import rounded
from ingot.frontends.onnx.ops.common import cast, few, number, size_tensor, wide
from ingot.frontends.onnx.table import Anything, Call, StringsOrTensor, Typed, onnx
from ingot.frontends.onnx.text import Text, same
from ingot.frontends.table import MaybeInt, MaybeTensor, Result, Tensor, Unsupported
from ingot.ir import F, Value
from ingot.ir.expr import integer_range
from ingot.ir.sizes import MAX_KNOWN
from ingot.ir.spec import axis_of

# ------------------------------------------------------------------------------------------------- arithmetic


def at_axis(a: Any, b: Any, axis: int | None) -> Any:
    """b with its first dimension at an axis of a, as broadcasting was said before opset 7."""
    if axis is None or not b.shape:
        return b
    behind = len(a.shape) - axis_of(axis, len(a.shape), "axis") - len(b.shape)
    if behind < 0:
        raise Unsupported(f"{b.spec} does not fit {a.spec} from axis {axis} on")
    return F.reshape(b, (*b.shape, *[1] * behind))


def _binary(name: str, compute: Callable[[Any, Any], Any]) -> None:
    @onnx(name, until=6)
    def of_axis(a: Tensor, b: Tensor, *, axis: MaybeInt = None, broadcast: bool = False) -> Result:
        return compute(a, at_axis(a, b, axis if broadcast else None))

    @onnx(name, since=7)
    def of(a: Tensor, b: Tensor) -> Result:
        return compute(a, b)


def _natural(x: Value) -> bool:
    """Whether a tensor's elements are known to be sizes, of 0 or more."""
    found = x.known if x.array is None else x.array
    if found is None or found.size > MAX_KNOWN:
        return False
    return all(dims.bounds(n if isinstance(n, dims.Expr) else int(n))[0] >= 0 for n in found.flat)


def _divided(a: Any, b: Any) -> Any:
    """Integers towards zero."""
    if a.dtype.is_float:
        return F.div(a, b)
    down = F.floordiv(a, b)
    if a.dtype.kind == "uint" or _natural(a) and _natural(b):
        return down
    if a.known is not None and a.array is None and _natural(b):  # in ops that can be followed
        zero = number(a, 0)
        return F.sub(F.floordiv(F.maximum(a, zero), b), F.floordiv(F.maximum(F.neg(a), zero), b))
    inexact = F.logical_and(F.less(down, number(a, 0)), F.not_equal(F.mul(down, b), a))
    return F.where(inexact, F.add(down, number(a, 1)), down)


for _name, _compute in {
    "Add": F.add, "Sub": F.sub, "Mul": F.mul, "Div": _divided, "And": F.logical_and, "Or": F.logical_or,
    "Xor": F.logical_xor, "BitwiseAnd": F.logical_and, "BitwiseOr": F.logical_or, "BitwiseXor": F.logical_xor,
}.items():  # fmt: skip
    _binary(_name, _compute)


def _comparison(name: str, op: str) -> None:
    @onnx(name)
    def of(a: Tensor, b: Tensor) -> Result:
        if a.dtype is dtypes.bool_:
            a, b = cast(a, dtypes.int32), cast(b, dtypes.int32)
        return getattr(F, op)(a, b)


for _name, _op in {"Less": "less", "LessOrEqual": "less_equal", "Greater": "greater",
                   "GreaterOrEqual": "greater_equal"}.items():  # fmt: skip
    _comparison(_name, _op)


@onnx("Equal")
def equal(a: StringsOrTensor, b: StringsOrTensor) -> Result:
    if isinstance(a, Text) is not isinstance(b, Text):
        raise Unsupported("one operand has strings and the other has not")
    return same(a, b) if isinstance(a, Text) else F.equal(a, b)


@onnx("Mod")
def mod(a: Tensor, b: Tensor, *, fmod: bool = False) -> Result:
    return F.fmod(a, b) if fmod else F.mod(a, b)


@onnx("Pow")
def power(x: Tensor, y: Tensor) -> Result:
    """Of the base's type, whatever the exponent's is. Powers of integers by squaring, where the exponent is known."""
    known = y.array if y.array is not None and y.array.size == 1 else None
    exponent = None if known is None else float(known.reshape(()))
    if exponent is not None and exponent == int(exponent) and 1 <= exponent <= 64 and len(y.shape) <= len(x.shape):
        return whole_power(x, int(exponent))
    if exponent == 0.5 and x.dtype.is_float and len(y.shape) <= len(x.shape):
        return F.sqrt(x)
    if x.dtype.is_float:
        return F.pow(x, cast(y, x.dtype))
    found = F.pow(cast(x, dtypes.float64), cast(y, dtypes.float64))
    return cast(F.round(found) if not y.dtype.is_float else found, x.dtype)


def _many(name: str, compute: Callable[[Any, Any], Any]) -> None:
    @onnx(name)
    def of(*xs: Tensor) -> Result:
        if not xs:
            raise Unsupported("it has no operands")
        total: Any = xs[0]
        for x in xs[1:]:
            total = compute(total, x)
        return total


for _name, _compute in {"Max": F.maximum, "Min": F.minimum, "Sum": F.add}.items():
    _many(_name, _compute)


@onnx("Mean")
def mean(*xs: Tensor) -> Result:
    total: Any = xs[0]
    for x in xs[1:]:
        total = F.add(total, x)
    return F.div(total, number(xs[0], len(xs)))


@onnx("BitShift")
def bit_shift(x: Tensor, y: Tensor, *, direction: str) -> Result:
    """By products with, and quotients by, powers of 2 out of a table; so many bits that all go give 0."""
    if direction not in ("LEFT", "RIGHT"):
        raise Unsupported(f"direction must be LEFT or RIGHT, not {direction:.40}")
    bits, signed = x.dtype.bits, x.dtype.kind == "int"
    outside = F.greater_equal(y, number(y, bits))
    if signed:
        outside = F.logical_or(outside, F.less(y, number(y, 0)))
    table = x.network.constant(np.array([1 << i for i in range(bits)], np.uint64).astype(x.dtype.numpy))
    factor = F.take(table, cast(F.where(outside, number(y, 0), y), dtypes.int64), axis=0)
    if direction == "LEFT":
        return F.where(outside, number(x, 0), F.mul(x, factor))
    sign = F.where(F.less(x, number(x, 0)), number(x, -1), number(x, 0)) if signed else number(x, 0)
    most = F.equal(factor, number(x, -(2 ** (bits - 1)))) if signed else None  # 2ⁿ⁻¹ is negative in its own type
    whole = F.floordiv(x, factor)
    return F.where(outside if most is None else F.logical_or(outside, most), sign, whole)


@onnx("BitwiseNot")
def bitwise_not(x: Tensor) -> Result:
    return F.logical_xor(x, x.network.constant(np.asarray(-1).astype(x.dtype.numpy)))


@onnx("Not")
def logical_not(x: Tensor) -> Result:
    return F.logical_not(x)


# ----------------------------------------------------------------------------------------- one operand, floats


_FLOATS: dict[str, Callable[[Any], Any]] = {
    "Exp": F.exp, "Log": F.log, "Sqrt": F.sqrt, "Sin": F.sin, "Cos": F.cos, "Tanh": F.tanh, "Sigmoid": F.sigmoid,
    "Erf": F.erf, "Reciprocal": F.reciprocal, "Mish": F.mish, "Floor": F.floor, "Ceil": F.ceil, "Round": F.round,
}  # fmt: skip
_COMPOSED: dict[str, Callable[[Any], Any]] = {
    "Tan": lambda x: F.div(F.sin(x), F.cos(x)),
    "Sinh": sinh,
    "Cosh": cosh, "Atan": arctan, "Asin": arcsin, "Acos": arccos, "Asinh": arcsinh, "Atanh": arctanh,
    "Acosh": arccosh,
    "Softplus": lambda x: F.softplus(x, threshold=math.inf),
    "Softsign": lambda x: F.div(x, F.add(F.abs(x), 1.0)),
    "HardSwish": lambda x: F.mul(x, F.clip(F.add(F.mul(x, 1 / 6), 0.5), minimum=0.0, maximum=1.0)),
}  # fmt: skip


def _plain(name: str, compute: Callable[[Any], Any]) -> None:
    @onnx(name)
    def of(x: Tensor) -> Result:
        return compute(x)


def _in_float32(name: str, compute: Callable[[Any], Any]) -> None:
    @onnx(name)
    def of(x: Tensor) -> Result:
        return cast(compute(wide(x)), x.dtype)


for _name, _unary in _FLOATS.items():
    _plain(_name, _unary)
for _name, _unary in _COMPOSED.items():
    _in_float32(_name, _unary)


@onnx("Abs")
def absolute(x: Tensor) -> Result:
    return x if x.dtype.kind == "uint" else F.abs(x)


@onnx("Neg")
def negative(x: Tensor) -> Result:
    return F.neg(x)


@onnx("Sign")
def sign(x: Tensor) -> Result:
    zero = number(x, 0)
    up, down = (cast(compare(x, zero), x.dtype) for compare in (F.greater, F.less))
    return F.sub(up, down) if x.dtype.kind != "uint" else up


@onnx("Relu")
def relu(x: Tensor) -> Result:
    return F.relu(x)


@onnx("IsNaN")
def isnan(x: Tensor) -> Result:
    return F.not_equal(x, x)


@onnx("IsInf")
def isinf(x: Tensor, *, detect_negative: bool = True, detect_positive: bool = True) -> Result:
    if detect_negative and detect_positive:
        return F.equal(F.abs(x), number(x, float("inf")))
    if not detect_negative and not detect_positive:
        return F.logical_and(F.not_equal(x, x), F.equal(x, x))
    return F.equal(x, number(x, float("inf") if detect_positive else -float("inf")))


# ---------------------------------------------------------------------------------------------- activations


@onnx("LeakyRelu")
def leaky_relu(x: Tensor, *, alpha: float = 0.01) -> Result:
    return F.where(F.less(x, 0.0), F.mul(x, alpha), x)


@onnx("PRelu", until=6)
def prelu_1(x: Tensor, slope: Tensor) -> Result:
    return prelu(x, at_axis(x, slope, 1) if slope.shape != (1,) else slope)


@onnx("PRelu", since=7)
def prelu(x: Tensor, slope: Tensor) -> Result:
    return F.where(F.less(x, number(x, 0)), F.mul(x, slope), x)


@onnx("Elu")
def elu(x: Tensor, *, alpha: float = 1.0) -> Result:
    return F.where(F.less(x, 0.0), F.mul(F.sub(F.exp(F.minimum(x, 0.0)), 1.0), alpha), x)


@onnx("Celu")
def celu(x: Tensor, *, alpha: float = 1.0) -> Result:
    return F.add(F.maximum(x, 0.0), F.minimum(F.mul(F.sub(F.exp(F.mul(x, 1 / alpha)), 1.0), alpha), 0.0))


@onnx("Selu")
def selu(x: Tensor, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> Result:
    return F.mul(F.where(F.greater(x, 0.0), x, F.mul(F.sub(F.exp(F.minimum(x, 0.0)), 1.0), alpha)), gamma)


@onnx("HardSigmoid")
def hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Result:
    return F.clip(F.add(F.mul(x, alpha), beta), minimum=0.0, maximum=1.0)


@onnx("ThresholdedRelu")
def thresholded_relu(x: Tensor, *, alpha: float = 1.0) -> Result:
    return F.where(F.greater(x, alpha), x, number(x, 0))


@onnx("Shrink")
def shrink(x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Result:
    kind = x.dtype
    x = x if kind.is_float else cast(x, dtypes.float32)
    zero = number(x, 0)
    low = F.where(F.less(x, -lambd), F.add(x, bias), zero)
    return cast(F.where(F.greater(x, lambd), F.sub(x, bias), low), kind)


@onnx("Gelu")
def gelu(x: Tensor, *, approximate: str = "none") -> Result:
    if approximate not in ("none", "tanh"):
        raise Unsupported(f"approximate must be none or tanh, not {approximate:.40}")
    return F.gelu(x, approximate=approximate == "tanh")


@onnx("Swish")
def swish(x: Tensor, *, alpha: float = 1.0) -> Result:
    return F.silu(x) if alpha == 1 else F.mul(x, F.sigmoid(F.mul(x, alpha)))


@onnx("Clip", until=10)
def clip_6(x: Tensor, *, min: float = -3.4028234663852886e38, max: float = 3.4028234663852886e38) -> Result:
    return F.clip(x, minimum=min, maximum=max)


@onnx("Clip", since=11)
def clip(x: Tensor, low: MaybeTensor = None, high: MaybeTensor = None) -> Result:
    ends = [None if e is None or e.array is None else float(e.array.reshape(())) for e in (low, high)]
    plain = all(e is None or e.array is not None for e in (low, high)) and x.dtype.is_float
    if plain and (ends[0] is None or ends[1] is None or ends[0] <= ends[1]):
        return F.clip(x, minimum=ends[0], maximum=ends[1])
    if low is not None:
        x = F.maximum(x, low)
    return x if high is None else F.minimum(x, high)


@onnx("Where")
def where(condition: Tensor, a: Tensor, b: Tensor) -> Result:
    return F.where(condition, a, b)


@onnx("Identity")
def identity(x: Anything) -> Result:
    return x


@onnx("Dropout", until=11)
def dropout_7(call: Call, x: Tensor, *, ratio: float = 0.5, seed: MaybeInt = None) -> Result:
    return (x, _all_true(x)) if call.outputs > 1 else x


@onnx("Dropout", since=12)
def dropout(
    call: Call, x: Tensor, ratio: MaybeTensor = None, training: MaybeTensor = None, *, seed: MaybeInt = None
) -> Result:
    """In training mode the seed says what is left out: the same in every run, as all random numbers of an engine."""
    share = number(x, 0.5) if ratio is None else F.reshape(ratio, ())
    trains = None if training is None else call.contents(training)
    none_left_out = (known := call.contents(share)) is not None and not known.any()
    if training is None or none_left_out or trains is not None and not trains.any():
        return (x, _all_true(x)) if call.outputs > 1 else x
    kept = F.greater_equal(x.network.constant(_even(x, seed)), cast(share, dtypes.float64))
    scale = F.reciprocal(F.sub(number(wide(share), 1), wide(share)))
    found = F.mul(F.mul(cast(kept, x.dtype), x), cast(scale, x.dtype))
    if trains is None:
        now = F.reshape(training, ())
        found, kept = F.where(now, found, x), F.logical_or(kept, F.logical_not(now))
    return (found, kept) if call.outputs > 1 else found


def _even(x: Value, seed: int | None) -> Any:
    """A number of 0..1 for each element: those that NumPy's generator makes of the seed, as in the standard's tests."""
    if seed is None or not 0 <= seed < 1 << 32:
        raise Unsupported(
            "in training mode it is random, and an engine gives the same in every run: export the model for inference "
            "(model.eval()), or give the node a seed from 0 to 2^32 - 1"
        )
    count = x.spec.elements
    if not isinstance(count, int):
        raise Unsupported(f"in training mode it needs sizes that are known, and those of {x.spec} are not")
    few(count)
    return np.random.RandomState(seed).uniform(size=x.shape)


def _all_true(x: Value) -> Any:
    return F.expand(x.network.constant(np.array(True)), x.shape) if x.shape else x.network.constant(np.array(True))


# ----------------------------------------------------------------------------------------------------- types


@onnx("Cast")
def cast_to(call: Call, x: Typed, *, to: DType, saturate: bool = True, round_mode: str = "up") -> Result:
    whole = isinstance(x, Value) and x.dtype.is_float and to in (dtypes.int64, dtypes.int32)
    if whole and (sizes := rounded(x)) is not None:
        return cast(F.reshape(size_tensor(call, sizes), x.shape), to)
    return _converted(x, to, saturate, round_mode)


@onnx("BitCast")
def bit_cast(x: Tensor, *, to: DType) -> Result:
    """Truths are bytes of 0 and 1."""
    y = cast(x, dtypes.uint8) if x.dtype is dtypes.bool_ else x
    if to is dtypes.bool_:
        return cast(F.bitcast(y, dtype=dtypes.uint8), to)
    return y if y.dtype is to else F.bitcast(y, dtype=to)


@onnx("CastLike")
def cast_like(x: Typed, like: Typed, *, saturate: bool = True, round_mode: str = "up") -> Result:
    return _converted(x, like.dtype, saturate, round_mode)


def _converted(x: Any, kind: DType, saturate: bool, round_mode: str) -> Any:
    if x.dtype is kind:
        return x
    plain = decoded(x) if isinstance(x, Narrow) else x
    if is_narrow(kind):
        return encoded(plain, kind, saturate, round_mode if kind is dtypes.float8_e8m0fnu else "nearest")
    return cast(plain, kind)


def held(x: Any, dtype: Any) -> Any:
    """x in an integer type, numbers outside of its range at the nearest in it."""
    low, high = integer_range(dtype)
    return F.cast(F.clip(x, minimum=float(low), maximum=float(high)), dtype)
