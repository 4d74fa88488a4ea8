"""ATen ops on one element at a time: arithmetic, comparisons, logic, choices, casts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ingot import dtypes
from ingot.dtypes import DType
from ingot.frontends.arithmetic import whole_power
from ingot.frontends.torch_export.aten.promotion import (
    DEFAULT,
    as_operand,
    cast,
    category,
    floating,
    promoted,
    result_type,
)
from ingot.frontends.torch_export.aten.table import (
    MaybeDType,
    MaybeOperand,
    MaybeStr,
    Operand,
    Result,
    Scalar,
    Tensor,
    Unsupported,
    aten,
)
from ingot.ir import F, Value

# ------------------------------------------------------------------------------------------------ arithmetic


def dtype_of(x: Any) -> DType:
    return dtypes.get(x.dtype)


def _bools(a: Any, b: Any) -> bool:
    return any(isinstance(x, Tensor) and x.dtype is dtypes.bool_ for x in (a, b))


def _scaled(x: Any, alpha: Scalar, dtype: DType) -> Any:
    if alpha == 1:
        return x
    if not isinstance(x, Tensor):
        return x * as_operand(alpha, dtype)
    return F.mul(x, as_operand(alpha, dtype))


@aten("aten.add.Tensor", "aten.add.Scalar")
def add(self: Operand, other: Operand, alpha: Scalar = 1) -> Result:
    a, b = promoted(self, other)
    if _bools(a, b):
        return F.logical_or(a, b)
    return F.add(a, _scaled(b, alpha, result_type(self, other)))


@aten("aten.sub.Tensor", "aten.sub.Scalar", "aten.subtract.Tensor", "aten.subtract.Scalar")
def sub(self: Operand, other: Operand, alpha: Scalar = 1) -> Result:
    a, b = promoted(self, other)
    return F.sub(a, _scaled(b, alpha, result_type(self, other)))


@aten("aten.rsub.Tensor", "aten.rsub.Scalar")
def rsub(self: Tensor, other: Operand, alpha: Scalar = 1) -> Result:
    return sub(other, self, alpha)


@aten("aten.mul.Tensor", "aten.mul.Scalar", "aten.multiply.Tensor", "aten.multiply.Scalar")
def mul(self: Operand, other: Operand) -> Result:
    a, b = promoted(self, other)
    return F.logical_and(a, b) if _bools(a, b) else F.mul(a, b)


def _truncated(x: Any) -> Any:
    return F.where(F.less(x, 0), F.ceil(x), F.floor(x))


@aten("aten.div.Tensor", "aten.div.Scalar", "aten.true_divide.Tensor", "aten.true_divide.Scalar",
      "aten.divide.Tensor", "aten.divide.Scalar")  # fmt: skip
def div(self: Operand, other: Operand) -> Result:
    return F.div(*promoted(self, other, least=DEFAULT))


@aten("aten.div.Tensor_mode", "aten.div.Scalar_mode", "aten.divide.Tensor_mode", "aten.divide.Scalar_mode")
def div_mode(self: Operand, other: Operand, rounding_mode: MaybeStr = None) -> Result:
    if rounding_mode is None:
        return div(self, other)
    a, b = promoted(self, other)
    if rounding_mode == "floor":
        return F.floordiv(a, b)
    if rounding_mode != "trunc":
        raise Unsupported(f"rounding_mode {rounding_mode!r:.40} is not one of floor and trunc")
    dtype = result_type(self, other)
    if category(dtype) == 2:
        wide = dtypes.float32 if dtype.bits < 32 else dtype  # cut off before anything is rounded
        return cast(_truncated(F.div(as_operand(a, wide), as_operand(b, wide))), dtype)
    down = F.floordiv(a, b)
    inexact = F.logical_and(F.less(down, 0), F.not_equal(F.mul(down, b), a))
    return F.where(inexact, F.add(down, 1), down)


@aten("aten.pow.Tensor_Scalar", "aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def power(self: Operand, exponent: Operand) -> Result:
    dtype = result_type(self, exponent)
    if isinstance(self, Tensor) and isinstance(exponent, int | float):
        x = cast(self, dtype)
        if exponent == int(exponent) and 1 <= abs(exponent) <= 64:
            if exponent < 0 and category(dtype) < 2:
                raise Unsupported("integers to a negative power are not supported")
            whole = whole_power(x, abs(int(exponent)))
            return F.reciprocal(whole) if exponent < 0 else whole
        if exponent in (0.5, -0.5):
            return F.sqrt(x) if exponent > 0 else F.rsqrt(x)
    if category(dtype) < 2:
        raise Unsupported("a power of integers needs an exponent known at export, from 1 to 64")
    return F.pow(as_operand(self, dtype), as_operand(exponent, dtype))


@aten("aten.addcmul.default")
def addcmul(self: Tensor, tensor1: Tensor, tensor2: Tensor, value: Scalar = 1) -> Result:
    return add(self, mul(tensor1, tensor2), value)


@aten("aten.addcdiv.default")
def addcdiv(self: Tensor, tensor1: Tensor, tensor2: Tensor, value: Scalar = 1) -> Result:
    return add(self, div(tensor1, tensor2), value)


@aten("aten.lerp.Scalar", "aten.lerp.Tensor")
def lerp(self: Tensor, end: Tensor, weight: Operand) -> Result:
    return add(self, mul(sub(end, self), weight))


@aten("aten.maximum.default", "aten.max.other")
def maximum(self: Tensor, other: Operand) -> Result:
    a, b = promoted(self, other)
    return F.logical_or(a, b) if _bools(a, b) else F.maximum(a, b)


@aten("aten.minimum.default", "aten.min.other")
def minimum(self: Tensor, other: Operand) -> Result:
    a, b = promoted(self, other)
    return F.logical_and(a, b) if _bools(a, b) else F.minimum(a, b)


@aten("aten.clamp.default", "aten.clamp.Tensor", "aten.clip.default", "aten.clip.Tensor")
def clamp(self: Tensor, min: MaybeOperand = None, max: MaybeOperand = None) -> Result:
    bounds = [b for b in (min, max) if b is not None]
    dtype = result_type(self, *bounds)
    x = cast(self, dtype)
    low, high = (None if b is None else as_operand(b, dtype) for b in (min, max))
    plain = not any(isinstance(b, Tensor) for b in (low, high))
    if plain and (low is None or high is None or low <= high):
        whole = category(dtype) < 2 and any(b is not None and abs(b) > 2**53 for b in (low, high))
        if not whole:  # an edge is kept as a float
            return F.clip(x, minimum=low, maximum=high)
    if low is not None:
        x = F.maximum(x, low)
    return x if high is None else F.minimum(x, high)


@aten("aten.clamp_min.default", "aten.clamp_min.Tensor")
def clamp_min(self: Tensor, min: Operand) -> Result:
    return clamp(self, min, None)


@aten("aten.clamp_max.default", "aten.clamp_max.Tensor")
def clamp_max(self: Tensor, max: Operand) -> Result:
    return clamp(self, None, max)


# ------------------------------------------------------------------------------------- comparisons and logic


def _comparison(short: str, name: str) -> None:
    compute: Callable[..., Any] = getattr(F, name)

    @aten(f"aten.{short}.Tensor", f"aten.{short}.Scalar")
    def compare(self: Operand, other: Operand) -> Result:
        a, b = promoted(self, other)
        if _bools(a, b):  # bools have an order in torch: as 0 and 1
            a, b = as_operand(a, dtypes.int32), as_operand(b, dtypes.int32)
        return compute(a, b)


for _pair in (("eq", "equal"), ("ne", "not_equal"), ("lt", "less"), ("le", "less_equal"), ("gt", "greater"),
              ("ge", "greater_equal")):  # fmt: skip
    _comparison(*_pair)


def _logic(name: str) -> None:
    compute: Callable[..., Any] = getattr(F, f"logical_{name}")

    @aten(f"aten.logical_{name}.default")
    def of_truth(self: Tensor, other: Tensor) -> Result:
        return compute(cast(self, dtypes.bool_), cast(other, dtypes.bool_))

    @aten(f"aten.bitwise_{name}.Tensor", f"aten.bitwise_{name}.Scalar", f"aten.__{name}__.Tensor",
          f"aten.__{name}__.Scalar")  # fmt: skip
    def of_bits(self: Tensor, other: Operand) -> Result:
        return compute(*promoted(self, other))


for _word in ("and", "or", "xor"):
    _logic(_word)


@aten("aten.logical_not.default")
def logical_not(self: Tensor) -> Result:
    return F.logical_not(cast(self, dtypes.bool_))


@aten("aten.bitwise_not.default")
def bitwise_not(self: Tensor) -> Result:
    if self.dtype is dtypes.bool_:
        return F.logical_not(self)
    return F.logical_xor(self, np.asarray(-1).astype(self.dtype.numpy))


@aten("aten.isnan.default")
def isnan(self: Tensor) -> Result:
    return F.not_equal(self, self)


@aten("aten.isinf.default")
def isinf(self: Tensor) -> Result:
    return F.equal(F.abs(floating(self)), float("inf"))


# --------------------------------------------------------------------------------------------------- choices


def _chosen(x: Any, dtype: DType) -> Any:
    found = as_operand(x, dtype)
    with np.errstate(all="ignore"):
        return found if isinstance(found, Tensor) else np.array(found, dtype.numpy)


@aten("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar")
def where(condition: Tensor, self: Operand, other: Operand) -> Result:
    dtype = result_type(self, other)
    truth = cast(condition, dtypes.bool_)
    return F.where(truth, _chosen(self, dtype), _chosen(other, dtype))


@aten("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(self: Tensor, mask: Tensor, value: Operand) -> Result:
    return F.where(mask, _chosen(value, self.dtype), self)


@aten("aten.fill.Scalar", "aten.fill.Tensor")
def fill(self: Tensor, value: Operand) -> Result:
    found = as_operand(value, self.dtype)
    whole = found if isinstance(found, Tensor) else self.network.scalar(found, self.dtype)
    return F.expand(whole, self.shape)


@aten("aten.zero.default")
def zero(self: Tensor) -> Result:
    return fill(self, 0)


@aten("aten.copy.default")
def copy(self: Tensor, src: Tensor) -> Result:
    return F.expand(cast(src, self.dtype), self.shape)


# ------------------------------------------------------------------------------------------- one operand


def _unary(torch_name: str, compute: Callable[[Any], Any]) -> None:
    """A function of floats, in float32 at least; integers and bools become the default float type."""

    @aten(f"aten.{torch_name}.default")
    def of(self: Tensor) -> Result:
        x = floating(self)
        return cast(compute(cast(x, dtypes.float32) if x.dtype.bits < 32 else x), x.dtype)


_FLOATS: dict[str, Callable[[Any], Any]] = {
    "log2": lambda x: F.mul(F.log(x), 1.4426950408889634),
    "log10": lambda x: F.mul(F.log(x), 0.4342944819032518),
    "exp2": lambda x: F.pow(2.0, x),
    "tan": lambda x: F.div(F.sin(x), F.cos(x)),
    "erfc": lambda x: F.sub(1.0, F.erf(x)),
    "deg2rad": lambda x: F.mul(x, 0.017453292519943295),
    "rad2deg": lambda x: F.mul(x, 57.29577951308232),
}
for _name, _compute in _FLOATS.items():
    _unary(_name, _compute)


@aten("aten.trunc.default", "aten.fix.default")
def trunc(self: Tensor) -> Result:
    return self if category(self.dtype) < 2 else _truncated(self)


@aten("aten.abs.default", "aten.absolute.default")
def absolute(self: Tensor) -> Result:
    return self if self.dtype is dtypes.bool_ else F.abs(self)


@aten("aten.square.default")
def square(self: Tensor) -> Result:
    return power(self, 2)


@aten("aten.sign.default", "aten.sgn.default")
def sign(self: Tensor) -> Result:
    if self.dtype is dtypes.bool_:
        return self
    up, down = (cast(compare(self, 0), self.dtype) for compare in (F.greater, F.less))
    return F.sub(up, down)


# ------------------------------------------------------------------------------------------------------ casts


@aten("aten.to.dtype", "aten.to.dtype_layout", "aten._to_copy.default", "aten.to.device", views=True)
def to_dtype(self: Tensor, dtype: MaybeDType = None) -> Result:
    return self if dtype is None else cast(self, dtype)


@aten("aten.to.other", "aten.type_as.default", views=True)
def to_other(self: Tensor, other: Tensor) -> Result:
    return cast(self, other.dtype)


@aten("prims.convert_element_type.default")
def convert(a: Tensor, dtype: MaybeDType = None) -> Result:
    return to_dtype(a, dtype)


# ------------------------------------------------------------------------------------------------ signs and bits


@aten("aten.signbit.default")
def signbit(self: Tensor) -> Result:
    """Also of -0 and of NaN."""
    if category(self.dtype) < 2:
        return F.less(cast(self, dtypes.int64), 0)
    x = self if self.dtype is dtypes.float64 else cast(self, dtypes.float32)
    return F.less(F.bitcast(x, dtype=dtypes.int64 if x.dtype is dtypes.float64 else dtypes.int32), 0)


@aten("aten.copysign.Tensor", "aten.copysign.Scalar")
def copysign(self: Tensor, other: Operand) -> Result:
    size, sign = promoted(self, other, least=DEFAULT)
    size = F.abs(size)
    if not isinstance(sign, Value):
        return F.neg(size) if np.signbit(sign) else size
    return F.where(signbit(sign), F.neg(size), size)


def _ignoring_nan(self: Tensor, other: Tensor, best: Callable[..., Any]) -> Result:
    a, b = promoted(self, other)
    if category(a.dtype) < 2:
        return best(a, b)
    return F.where(F.not_equal(a, a), b, F.where(F.not_equal(b, b), a, best(a, b)))


@aten("aten.fmax.default")
def fmax(self: Tensor, other: Tensor) -> Result:
    return _ignoring_nan(self, other, F.maximum)


@aten("aten.fmin.default")
def fmin(self: Tensor, other: Tensor) -> Result:
    return _ignoring_nan(self, other, F.minimum)


@aten("aten.hypot.default")
def hypot(self: Tensor, other: Tensor) -> Result:
    """Squares neither overflow nor vanish: they are of shares of the greater number."""
    a, b = (F.abs(x) for x in promoted(self, other))
    most, least = F.maximum(a, b), F.minimum(a, b)
    share = F.div(least, F.where(F.equal(most, 0.0), 1.0, most))
    found = F.mul(most, F.sqrt(F.add(F.mul(share, share), 1.0)))
    endless = F.logical_or(F.equal(a, float("inf")), F.equal(b, float("inf")))
    return F.where(endless, float("inf"), found)


@aten("aten.round.decimals", "aten.special_round.default")
def round_to(self: Tensor, decimals: int = 0) -> Result:
    if category(self.dtype) < 2:
        if decimals:
            raise Unsupported("integers are rounded to no decimals")
        return self
    if not decimals:
        return F.round(self)
    if abs(decimals) > 30:
        raise Unsupported(f"{decimals} decimals are more than a float has")
    scale = 10.0 ** abs(decimals)
    before, after = (F.mul, F.div) if decimals > 0 else (F.div, F.mul)
    return after(F.round(before(self, scale)), scale)


@aten("aten.__lshift__.Scalar", "aten.bitwise_left_shift.Tensor_Scalar")
def left_shift(self: Tensor, other: int) -> Result:
    _check_shift(self, other)
    return F.mul(self, np.array(1 << other, np.uint64).astype(self.dtype.numpy))


@aten("aten.__rshift__.Scalar", "aten.bitwise_right_shift.Tensor_Scalar")
def right_shift(self: Tensor, other: int) -> Result:
    """Rounded down: the sign stays."""
    _check_shift(self, other)
    return F.floordiv(self, np.array(1 << other, self.dtype.numpy))


def _check_shift(x: Tensor, bits: int) -> None:
    if not x.dtype.is_integer or not 0 <= bits < x.dtype.bits - (x.dtype.kind == "int"):
        raise Unsupported(f"a shift of {x.spec} by {bits} bits; integers are shifted by fewer bits than they have")
