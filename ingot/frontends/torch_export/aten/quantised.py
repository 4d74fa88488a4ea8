"""What torch's PT2E writes around the ops that it quantises: `quantize` and `dequantize` with scales and zero points of
the tensor or of each of its channels. They become ingot's own, so that products and convolutions between them sum
integers.

torch multiplies with the reciprocal of a scale where ingot divides: what lies between two integers may become either.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ingot import dtypes
from ingot.dtypes import DType
from ingot.frontends.table import shown
from ingot.frontends.torch_export.aten.promotion import cast
from ingot.frontends.torch_export.aten.table import (
    Known,
    MaybeDType,
    MaybeQuantity,
    Quantity,
    Result,
    Results,
    Tensor,
    Unsupported,
    aten,
)
from ingot.ir import F, Value
from ingot.ir.expr import integer_range
from ingot.ops.conversion import Cast

_INTEGERS = (dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint16, dtypes.int32)
_CALIBRATE = "quantise with scales that are constants (calibrated, is_dynamic=False), or with choose_qparams"


class _Affine(NamedTuple):
    """A scale and a zero point as operands of ingot's ops; no zero point is 0."""

    scale: Value
    zero: Value | None

    @property
    def operands(self) -> tuple[Value, ...]:
        return (self.scale,) if self.zero is None else (self.scale, self.zero)


class _Range(NamedTuple):
    """The integers that a tensor is held in."""

    low: int
    high: int
    dtype: DType


# ------------------------------------------------------------------------------------------- scales and zero points


def _range(low: Any, high: Any, dtype: DType) -> _Range:
    low, high = (_integer(v, name) for v, name in ((low, "quant_min"), (high, "quant_max")))
    if dtype not in _INTEGERS:
        raise Unsupported(f"{dtype.name} is no type that ingot quantises to: {', '.join(t.name for t in _INTEGERS)}")
    least, most = integer_range(dtype)
    if not least <= low < high <= most:
        raise Unsupported(f"quant_min {low} and quant_max {high} must lie in {least}..{most} of {dtype.name}, in order")
    return _Range(low, high, dtype)


def _of_tensor(x: Value, scale: Any, zero: Any, kind: DType) -> _Affine:
    """One scale and zero point: numbers, constants of one element, or what choose_qparams makes of a tensor."""
    if isinstance(scale, Value) or isinstance(zero, Value):
        return _computed(scale, zero, kind)
    factor = np.array(_number(scale, "scale"))
    _check_scales(factor, "scale")
    points = np.array(_integer(zero, "zero_point"))
    _check_points(points, "zero_point", kind)
    network = x.network
    made = None if not points else network.constant(points.astype(kind.numpy))
    return _Affine(network.constant(factor.astype(np.float32)), made)


def _computed(scale: Any, zero: Any, kind: DType) -> _Affine:
    found = []
    for value, name, dtype in ((scale, "scale", dtypes.float32), (zero, "zero_point", kind)):
        narrow = _before_cast(value)
        if narrow is None or narrow.dtype is not dtype:
            computed = name if isinstance(value, Value) else "zero_point" if name == "scale" else "scale"
            what = _what(zero if computed == "zero_point" else scale)
            raise Unsupported(f"{computed} must be a constant, and is {what}", _CALIBRATE)
        found.append(F.reshape(narrow, ()))
    return _Affine(*found)


def _before_cast(x: Any) -> Any:
    """What a number of torch's choose_qparams is widened of; None for another one."""
    node = x.node if isinstance(x, Value) and x.spec.elements == 1 else None
    return node.inputs[0] if node is not None and isinstance(node.op, Cast) else None


def _of_channels(x: Value, scales: Any, zeros: Any, axis: int, kind: DType) -> _Affine:
    """A scale and a zero point for each slice along an axis. A stored scale stays what it is stored as."""
    rank = len(x.shape)
    if not -rank <= axis < rank:
        raise Unsupported(f"axis {axis} must lie in {-rank}..{rank - 1}")
    axis %= rank
    factors = _array(scales, "scales")
    points = None if zeros is None else _array(zeros, "zero_points")
    count = x.shape[axis]
    for array, name in ((factors, "scales"), (points, "zero_points")):
        if array is not None and (array.ndim != 1 or len(array) not in (count, 1)):
            raise Unsupported(f"{name} must have shape ({count},), a number for each slice along axis {axis}, and have "
                              f"{array.shape}")  # fmt: skip
    _check_scales(factors, "scales")
    network, whole = x.network, tuple(len(factors) if i == axis else 1 for i in range(rank))
    stored = scales.value if isinstance(scales, Known) and scales.value.dtype is dtypes.float32 else None
    scale = network.constant(factors.astype(np.float32)) if stored is None else stored
    return _Affine(F.reshape(scale, whole if len(factors) > 1 else ()), _points(x, points, axis, kind))


def _points(x: Value, points: Any, axis: int, kind: DType) -> Value | None:
    """Zero points of slices: nothing where all are 0, and one number where all are that."""
    if points is None:
        return None
    if points.dtype.kind == "f" and not (points == np.rint(points)).all():
        raise Unsupported("zero_points must be whole numbers", "quantise with an affine or symmetric qscheme")
    _check_points(points, "zero_points", kind)
    if not points.any():
        return None
    alike = bool((points == points[0]).all())
    shape = () if alike else tuple(len(points) if i == axis else 1 for i in range(len(x.shape)))
    made: Value = x.network.constant((points[:1] if alike else points).astype(kind.numpy).reshape(shape))
    return made


def _check_scales(scales: Any, name: str) -> None:
    with np.errstate(over="ignore", under="ignore"):
        narrow = scales.astype(np.float32)
    good = np.isfinite(narrow) & (narrow > 0)
    if not good.all():
        raise Unsupported(f"{name} must be positive and finite in float32, not {_first(scales, good)}")


def _check_points(points: Any, name: str, kind: DType) -> None:
    low, high = integer_range(kind)
    good = (points >= low) & (points <= high)
    if not good.all():
        raise Unsupported(f"{name} must lie in {low}..{high} of {kind.name}, not {_first(points, good)}")


def _first(array: Any, good: Any) -> str:
    """The first number that is not good, and where it stands."""
    at = int(np.argmin(good.reshape(-1)))
    place = f" at {at}" if array.ndim else ""
    return f"{array.reshape(-1)[at].item()!r:.40}{place}"


def _array(x: Any, name: str) -> Any:
    if not isinstance(x, Known):
        raise Unsupported(f"{name} must be a constant, and is {_what(x)}", _CALIBRATE)
    if x.array.dtype.kind not in "iuf" and x.value.dtype not in dtypes.FLOATS:
        raise Unsupported(f"{name} must be numbers, not {x.value.dtype.name}")
    return x.array if x.array.dtype.kind in "iuf" else x.array.astype(np.float32)


def _number(x: Any, name: str) -> float:
    """A number, or the one that a constant tensor holds."""
    if type(x) in (int, float):
        return float(x)
    array = _array(x, name)
    if array.size != 1:
        raise Unsupported(f"{name} must be one number, not {array.shape}")
    return float(array.reshape(-1)[0])


def _integer(x: Any, name: str) -> int:
    found = x if type(x) is int else _number(x, name)
    if not math.isfinite(found) or found != int(found):
        raise Unsupported(f"{name} must be a whole number, not {found!r:.40}")
    return int(found)


def _what(x: Any) -> str:
    return shown(x.value if isinstance(x, Known) else x)


# ------------------------------------------------------------------------------------------------------------- ops


def _quantized(x: Value, affine: _Affine, kind: _Range) -> Value:
    if kind.dtype.bits <= 16:
        return F.quantize(x, *affine.operands, dtype=kind.dtype, minimum=kind.low, maximum=kind.high)  # type: ignore[no-any-return]
    y = F.round(F.div(cast(x, dtypes.float32), affine.scale))
    y = y if affine.zero is None else F.add(y, cast(affine.zero, dtypes.float32))
    return cast(F.clip(y, minimum=float(kind.low), maximum=float(kind.high)), kind.dtype)


def _dequantized(q: Value, affine: _Affine, kind: _Range, out: DType | None) -> Value:
    if q.dtype is not kind.dtype:
        raise Unsupported(f"its input is {q.dtype.name}, and its dtype says {kind.dtype.name}")
    return F.dequantize(q, *affine.operands, dtype=out or dtypes.float32)  # type: ignore[no-any-return]


_SPACE = "quantized_decomposed"
_FORMS = ("default", "tensor", "tensor2")


@aten(*(f"{_SPACE}.quantize_per_tensor.{form}" for form in _FORMS))
def quantize_per_tensor(
    input: Tensor, scale: Quantity, zero_point: Quantity, quant_min: Quantity, quant_max: Quantity, dtype: DType
) -> Result:
    kind = _range(quant_min, quant_max, dtype)
    return _quantized(input, _of_tensor(input, scale, zero_point, dtype), kind)


@aten(*(f"{_SPACE}.dequantize_per_tensor.{form}" for form in _FORMS))
def dequantize_per_tensor(
    input: Tensor, scale: Quantity, zero_point: Quantity, quant_min: Quantity, quant_max: Quantity, dtype: DType,
    out_dtype: MaybeDType = None,
) -> Result:  # fmt: skip
    kind = _range(quant_min, quant_max, dtype)
    return _dequantized(input, _of_tensor(input, scale, zero_point, dtype), kind, out_dtype)


@aten(f"{_SPACE}.quantize_per_channel.default")
def quantize_per_channel(
    input: Tensor, scales: Quantity, zero_points: Quantity, axis: int, quant_min: int, quant_max: int, dtype: DType
) -> Result:
    kind = _range(quant_min, quant_max, dtype)
    return _quantized(input, _of_channels(input, scales, zero_points, axis, dtype), kind)


@aten(f"{_SPACE}.dequantize_per_channel.default")
def dequantize_per_channel(
    input: Tensor, scales: Quantity, zero_points: MaybeQuantity, axis: int, quant_min: int, quant_max: int,
    dtype: DType, out_dtype: MaybeDType = None,
) -> Result:  # fmt: skip
    kind = _range(quant_min, quant_max, dtype)
    return _dequantized(input, _of_channels(input, scales, zero_points, axis, dtype), kind, out_dtype)


# --------------------------------------------------------------------------------------------- scales of each run


@aten(f"{_SPACE}.choose_qparams.tensor")
def choose_qparams(input: Tensor, quant_min: int, quant_max: int, eps: float, dtype: DType) -> Results:
    kind = _range(quant_min, quant_max, dtype)
    low, high = _extremes(input)
    scale = _at_least(F.div(F.sub(high, low), float(quant_max - quant_min)), eps)
    steps = F.round(F.div(F.neg(cast(low, dtypes.float32)), scale))
    points = F.clip(F.add(steps, float(kind.low)), minimum=float(kind.low), maximum=float(kind.high))
    return _widened(scale, F.cast(points, dtype))


@aten(f"{_SPACE}.choose_qparams_symmetric.tensor")
def choose_qparams_symmetric(input: Tensor, quant_min: int, quant_max: int, eps: float, dtype: DType) -> Results:
    _range(quant_min, quant_max, dtype)
    low, high = _extremes(input)
    scale = _at_least(F.div(F.maximum(F.neg(low), high), (quant_max - quant_min) / 2), eps)
    point = 128 if dtype is dtypes.uint8 else 0
    return _widened(scale, input.network.constant(np.array(point, dtype.numpy)))


def _extremes(x: Value) -> tuple[Any, Any]:
    """The smallest and the largest number of a tensor, or 0."""
    axes = tuple(range(len(x.shape)))
    low, high = F.reduce_min(x, axes=axes, keepdims=False), F.reduce_max(x, axes=axes, keepdims=False)
    return F.minimum(low, 0.0), F.maximum(high, 0.0)


def _at_least(scale: Value, eps: float) -> Any:
    if not (math.isfinite(eps) and eps > 0):
        raise Unsupported(f"eps must be positive and finite, not {eps}")
    return F.maximum(cast(scale, dtypes.float32), eps)


def _widened(scale: Value, zero: Value) -> tuple[Value, Value]:
    """As torch has them: one element each, of float64 and int64."""
    return F.cast(F.reshape(scale, (1,)), dtypes.float64), F.cast(F.reshape(zero, (1,)), dtypes.int64)
