"""ONNX ops on quantised tensors: scales and zero points stay what they are, so that products of quantised weights stay
recognisable."""

from __future__ import annotations

from typing import Any

from ingot import dims, dtypes
from ingot.dtypes import DType
from ingot.frontends.narrow import Narrow, carrier, decoded, encoded, is_narrow
from ingot.frontends.onnx.ops.common import cast, number
from ingot.frontends.onnx.ops.linear import matmul
from ingot.frontends.onnx.ops.spatial import conv, window
from ingot.frontends.onnx.table import Divisor, MaybeTyped, Scale, Typed, onnx
from ingot.frontends.onnx.tensors import dtype_of
from ingot.frontends.table import MaybeInts, MaybeTensor, Result, Tensor, Unsupported
from ingot.ir import F, Value
from ingot.ir.expr import integer_range
from ingot.ir.spec import axis_of

_NARROW = (dtypes.float32, dtypes.bfloat16, dtypes.float16)


def spread_over(scale: Any, x: Any, axis: int, block: int) -> Any:
    """A scale of the tensor, of each slice along an axis, or of blocks along it, as what broadcasts to x."""
    if block:
        at = axis_of(axis, len(x.shape), "axis")
        if block < 0:
            raise Unsupported(f"block_size must be positive, and is {block}")
        if len(scale.shape) != len(x.shape):
            raise Unsupported(f"blocks need scales of {len(x.shape)} dimensions, not {len(scale.shape)}")
        size, pieces = x.shape[at], scale.shape[at]
        if isinstance(size, int) and isinstance(pieces, int):
            if pieces != -(-size // block):
                raise Unsupported(f"{pieces} scales along axis {at} are not those of {size} in blocks of {block}")
            block = min(block, size)  # of one block
        apart = F.reshape(scale, (*scale.shape[: at + 1], 1, *scale.shape[at + 1 :]))
        wide = F.expand(apart, (*scale.shape[: at + 1], block, *scale.shape[at + 1 :]))
        joined = F.reshape(wide, (*scale.shape[:at], dims.mul(pieces, block), *scale.shape[at + 1 :]))
        if joined.shape != x.shape:
            joined = F.slice(joined, (0,) * len(x.shape), x.shape, (1,) * len(x.shape))
        return joined
    if not scale.shape or scale.shape == (1,):
        return F.reshape(scale, ())
    at = axis_of(axis, len(x.shape), "axis")
    return F.reshape(scale, tuple(scale.shape[0] if i == at else 1 for i in range(len(x.shape))))


def quantized(x: Any, scale: Any, zero: Any, kind: DType, saturate: bool = True) -> Any:
    """round(x / scale) + zero in the range of an integer type; a float of 8 bits or less rounds by itself."""
    scale = cast(scale, dtypes.float32)
    own = zero is None or isinstance(zero, Value) and zero.dtype is kind
    if kind.is_integer and 8 <= kind.bits <= 16 and own and x.dtype in _NARROW:
        low, high = integer_range(kind)
        return F.quantize(x, scale, *([] if zero is None else [zero]), dtype=kind, minimum=low, maximum=high)
    y = F.div(cast(x, dtypes.float32), scale)
    if kind.is_float:
        return encoded(y, kind, saturate)
    if not kind.is_integer:
        raise Unsupported(f"{kind.name} is no type that a tensor is quantised to")
    low, high = integer_range(kind)
    y = F.round(y)
    if zero is not None:
        y = F.add(y, cast(zero, dtypes.float32))
    whole = F.cast(F.clip(y, minimum=float(low), maximum=float(high)), carrier(kind))
    return Narrow(whole, kind) if is_narrow(kind) else whole


def numbers(x: Any) -> Any:
    """A tensor of any type as one that ops take."""
    return decoded(x) if isinstance(x, Narrow) else x


@onnx("QuantizeLinear")
def quantize_linear(
    x: Tensor, scale: Divisor, zero: MaybeTyped = None, *, axis: int = 1, block_size: int = 0,
    output_dtype: int = 0, precision: int = 0, saturate: bool = True,
) -> Result:  # fmt: skip
    kind = zero.dtype if zero is not None else dtype_of(output_dtype, "output_dtype") if output_dtype else dtypes.uint8
    spread = [None if v is None else spread_over(numbers(v), x, axis, block_size) for v in (scale, zero)]
    return quantized(x, spread[0], spread[1], kind, saturate)


@onnx("DequantizeLinear", folds=False)  # weights stay integers
def dequantize_linear(
    x: Typed, scale: Scale, zero: MaybeTyped = None, *, axis: int = 1, block_size: int = 0,
    output_dtype: int = 0,
) -> Result:  # fmt: skip
    return _dequantized(x, scale, zero, axis, block_size, output_dtype)


def _dequantized(x: Any, scale: Any, zero: Any, axis: int = 1, block_size: int = 0, output_dtype: int = 0) -> Any:
    kind = dtype_of(output_dtype, "output_dtype") if output_dtype else scale.dtype
    x, zero = numbers(x), None if zero is None else numbers(zero)
    spread = spread_over(cast(scale, dtypes.float32), x, axis, block_size)
    if x.dtype.is_integer and x.dtype.bits <= 32 and kind in dtypes.FLOATS:
        operands = [x, spread] + ([] if zero is None else [spread_over(zero, x, axis, block_size)])
        return F.dequantize(*operands, dtype=kind)
    y = cast(x, dtypes.float32)
    if zero is not None:
        y = F.sub(y, cast(spread_over(zero, x, axis, block_size), dtypes.float32))
    return cast(F.mul(y, spread), kind)


@onnx("DynamicQuantizeLinear")
def dynamic_quantize_linear(x: Tensor) -> Result:
    axes = tuple(range(len(x.shape)))
    low = F.minimum(F.reduce_min(x, axes=axes, keepdims=False), 0.0)
    high = F.maximum(F.reduce_max(x, axes=axes, keepdims=False), 0.0)
    scale = F.div(F.sub(high, low), 255.0)
    safe = F.where(F.equal(scale, 0.0), number(x, 1), scale)
    zero = F.cast(F.clip(F.round(F.div(F.neg(low), safe)), minimum=0.0, maximum=255.0), dtypes.uint8)
    return quantized(x, safe, zero, dtypes.uint8), scale, zero


def real(x: Any, scale: Any, zero: Any, axis: int = -1) -> Any:
    return _dequantized(x, scale, zero, axis) if len(scale.shape) <= 1 else by_rows(x, scale, zero)


def by_rows(x: Any, scale: Any, zero: Any) -> Any:
    """A scale that broadcasts as it is."""
    y = cast(x, dtypes.float32)
    if zero is not None:
        y = F.sub(y, cast(zero, dtypes.float32))
    return F.mul(y, cast(scale, dtypes.float32))


@onnx("QLinearMatMul")
@onnx("QLinearMatMul", domain="com.microsoft")
def qlinear_matmul(
    a: Tensor, a_scale: Scale, a_zero: Tensor, b: Tensor, b_scale: Scale, b_zero: Tensor, y_scale: Divisor,
    y_zero: Tensor,
) -> Result:  # fmt: skip
    rows = len(a.shape) - 2 if a_scale.shape not in ((), (1,)) and len(a_scale.shape) == 1 else -1
    found = matmul(real(a, a_scale, a_zero, rows), real(b, b_scale, b_zero, -1))
    scale = y_scale if len(y_scale.shape) != 1 or y_scale.shape == (1,) else _column(y_scale)
    zero = y_zero if len(y_zero.shape) != 1 or y_zero.shape == (1,) else _column(y_zero)
    return quantized(found, scale, zero, y_zero.dtype)


def _column(x: Any) -> Any:
    return F.reshape(x, (x.shape[0], 1))


@onnx("ConvInteger")
def conv_integer(
    x: Tensor, w: Tensor, x_zero: MaybeTensor = None, w_zero: MaybeTensor = None, *, auto_pad: str = "NOTSET",
    dilations: MaybeInts = None, group: int = 1, kernel_shape: MaybeInts = None, pads: MaybeInts = None,
    strides: MaybeInts = None,
) -> Result:  # fmt: skip
    over = window(x, w.shape[2:], strides, dilations, pads, auto_pad)
    y, v = _whole(x, x_zero, 1), _whole(w, w_zero, 0)
    before, after = over.before, over.after
    if min(*before, *after) < 0:
        y = F.pad(y, before=(0, 0, *before), after=(0, 0, *after), value=0.0)
        before = after = (0,) * len(over.kernel)
    return F.conv_integer(y, v, stride=over.stride, pre_padding=before, post_padding=after, dilation=over.dilation,
                          groups=group)  # fmt: skip


def _whole(x: Any, zero: Any, axis: int) -> Any:
    """Integers without their zero point, int32."""
    y = cast(x, dtypes.int32)
    return y if zero is None else F.sub(y, cast(spread_over(zero, x, axis, 0), dtypes.int32))


@onnx("QLinearConv")
def qlinear_conv(
    x: Tensor, x_scale: Scale, x_zero: Tensor, w: Tensor, w_scale: Scale, w_zero: Tensor, y_scale: Divisor,
    y_zero: Tensor, bias: MaybeTensor = None, *, auto_pad: str = "NOTSET", dilations: MaybeInts = None,
    group: int = 1, kernel_shape: MaybeInts = None, pads: MaybeInts = None, strides: MaybeInts = None,
) -> Result:  # fmt: skip
    over = window(x, w.shape[2:], strides, dilations, pads, auto_pad)
    scales = spread_over(cast(w_scale, dtypes.float32), w, 0, 0)
    weight = F.dequantize(w, scales, spread_over(w_zero, w, 0, 0), dtype=dtypes.float32)
    if bias is not None:
        of_sums = F.mul(F.reshape(cast(x_scale, dtypes.float32), ()), cast(w_scale, dtypes.float32))
        bias = F.dequantize(bias, of_sums, dtype=dtypes.float32)
    found = conv(_dequantized(x, x_scale, x_zero), weight, bias, over, group)
    return quantized(found, F.reshape(y_scale, ()), F.reshape(y_zero, ()), y_zero.dtype)
