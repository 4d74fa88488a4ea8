"""Ops on quantised tensors that ONNX Runtime has beside the standard's (com.microsoft)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ingot import dims, dtypes
from ingot.dims import Dimension
from ingot.frontends.narrow import Narrow, decoded
from ingot.frontends.onnx.ops.common import cast, index_of, number
from ingot.frontends.onnx.ops.linear import matmul_integer
from ingot.frontends.onnx.ops.microsoft import channels_first, channels_last
from ingot.frontends.onnx.ops.quantised import (
    dequantize_linear,
    dynamic_quantize_linear,
    qlinear_conv,
    quantize_linear,
    quantized,
    real,
    spread_over,
)
from ingot.frontends.onnx.ops.recurrent import Scaled, lstm
from ingot.frontends.onnx.ops.spatial import average_pool
from ingot.frontends.onnx.table import MICROSOFT, Call, Divisor, MaybeDivisor, MaybeTyped, Scale, Typed, onnx
from ingot.frontends.table import (
    Ints,
    MaybeFloat,
    MaybeFloats,
    MaybeInts,
    MaybeTensor,
    Result,
    Strs,
    Tensor,
    Unsupported,
)
from ingot.ir import F
from ingot.ir.spec import axis_of, elements
from ingot.ir.weight_format import GROUPS

MOST = 1 << 28  # elements of a weight that stays integers: what is made when an engine is built is held in memory

onnx("QuantizeLinear", domain=MICROSOFT)(quantize_linear)
onnx("DequantizeLinear", domain=MICROSOFT, folds=False)(dequantize_linear)

# ------------------------------------------------------------------------------------ element by element, pools


def _binary(name: str, compute: Callable[[Any, Any], Any]) -> None:
    @onnx(name, domain=MICROSOFT)
    def of(
        a: Tensor, a_scale: Scale, a_zero: MaybeTensor, b: Tensor, b_scale: Scale, b_zero: MaybeTensor,
        y_scale: Divisor, y_zero: MaybeTensor = None,
    ) -> Result:  # fmt: skip
        return quantized(compute(real(a, a_scale, a_zero), real(b, b_scale, b_zero)), y_scale, y_zero, a.dtype)


_binary("QLinearAdd", F.add)
_binary("QLinearMul", F.mul)


@onnx("QLinearSigmoid", domain=MICROSOFT)
def qlinear_sigmoid(
    x: Tensor, x_scale: Scale, x_zero: MaybeTensor, y_scale: Divisor, y_zero: MaybeTensor = None
) -> Result:
    return quantized(F.sigmoid(real(x, x_scale, x_zero)), y_scale, y_zero, x.dtype)


@onnx("QLinearLeakyRelu", domain=MICROSOFT)
def qlinear_leaky_relu(
    x: Tensor, x_scale: Scale, x_zero: MaybeTensor, y_scale: Divisor, y_zero: MaybeTensor = None, *, alpha: float = 0.01
) -> Result:
    y = real(x, x_scale, x_zero)
    return quantized(F.where(F.less(y, 0.0), F.mul(y, alpha), y), y_scale, y_zero, x.dtype)


@onnx("QLinearSoftmax", domain=MICROSOFT)
def qlinear_softmax(
    x: Tensor, x_scale: Scale, x_zero: MaybeTensor, y_scale: Divisor, y_zero: Tensor, *, opset: int, axis: int = -1
) -> Result:
    y = real(x, x_scale, x_zero)
    at = axis_of(axis, len(x.shape), "axis")
    if opset < 13:  # over all dimensions from the axis on
        flat = F.reshape(y, (elements(x.shape[:at]), elements(x.shape[at:])))
        found = F.reshape(F.softmax(flat, axis=1), x.shape)
    else:
        found = F.softmax(y, axis=at)
    return quantized(found, y_scale, y_zero, x.dtype)


@onnx("QLinearWhere", domain=MICROSOFT)
def qlinear_where(
    condition: Tensor, a: Tensor, a_scale: Scale, a_zero: Tensor, b: Tensor, b_scale: Scale, b_zero: Tensor,
    y_scale: Divisor, y_zero: Tensor,
) -> Result:  # fmt: skip
    found = F.where(condition, real(a, a_scale, a_zero), real(b, b_scale, b_zero))
    return quantized(found, y_scale, y_zero, y_zero.dtype)


@onnx("QLinearConcat", domain=MICROSOFT)
def qlinear_concat(y_scale: Divisor, y_zero: Tensor, *xs: Tensor, axis: int) -> Result:
    if not xs or len(xs) % 3:
        raise Unsupported(f"{len(xs)} operands are no tensors with a scale and a zero point each")
    parts = [real(xs[i], xs[i + 1], xs[i + 2]) for i in range(0, len(xs), 3)]
    return quantized(F.concat(*parts, dim=axis), y_scale, y_zero, y_zero.dtype)


@onnx("QLinearGlobalAveragePool", domain=MICROSOFT)
def qlinear_global_average_pool(
    x: Tensor, x_scale: Scale, x_zero: Tensor, y_scale: Divisor, y_zero: Tensor, *, channels_last: bool = False
) -> Result:
    last = len(x.shape)
    axes = tuple(range(1, last - 1) if channels_last else range(2, last))
    found = F.reduce_mean(real(x, x_scale, x_zero), axes=axes, keepdims=True)
    return quantized(found, y_scale, y_zero, x.dtype)


def _by_channels(compute: Callable[[Any], Any], x: Any, last: bool) -> Any:
    return channels_last(compute(channels_first(x))) if last else compute(x)


@onnx("QLinearAveragePool", domain=MICROSOFT)
def qlinear_average_pool(
    x: Tensor, x_scale: Scale, x_zero: MaybeTensor, y_scale: Divisor, y_zero: MaybeTensor = None, *,
    kernel_shape: Ints, auto_pad: str = "NOTSET", ceil_mode: bool = False, channels_last: bool = False,
    count_include_pad: bool = False, pads: MaybeInts = None, strides: MaybeInts = None,
) -> Result:  # fmt: skip
    def pooled(y: Any) -> Any:
        return average_pool(y, kernel_shape=kernel_shape, auto_pad=auto_pad, ceil_mode=ceil_mode,
                            count_include_pad=count_include_pad, pads=pads, strides=strides)  # fmt: skip

    return quantized(_by_channels(pooled, real(x, x_scale, x_zero), channels_last), y_scale, y_zero, x.dtype)


@onnx("QLinearConv", domain=MICROSOFT)
def microsoft_qlinear_conv(
    x: Tensor, x_scale: Scale, x_zero: Tensor, w: Tensor, w_scale: Scale, w_zero: Tensor, y_scale: Divisor,
    y_zero: Tensor, bias: MaybeTensor = None, *, channels_last: bool = False, auto_pad: str = "NOTSET",
    dilations: MaybeInts = None, group: int = 1, kernel_shape: MaybeInts = None, pads: MaybeInts = None,
    strides: MaybeInts = None,
) -> Result:  # fmt: skip
    def convolved(y: Any) -> Any:
        return qlinear_conv(y, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias, auto_pad=auto_pad,
                            dilations=dilations, group=group, kernel_shape=kernel_shape, pads=pads,
                            strides=strides)  # fmt: skip

    return _by_channels(convolved, x, channels_last)


# --------------------------------------------------------------------------------------------------- products


def _scaled_product(
    a: Any, b: Any, a_scale: Any, b_scale: Any, a_zero: Any, b_zero: Any, bias: Any
) -> Any:
    """a · b in integers, then in float32 by their scales; those of b may be one for each column."""
    whole = cast(matmul_integer(a, b, a_zero, b_zero), dtypes.float32)
    found = F.mul(whole, F.mul(cast(a_scale, dtypes.float32), cast(b_scale, dtypes.float32)))
    return found if bias is None else F.add(found, bias)


@onnx("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_integer_to_float(
    a: Tensor, b: Tensor, a_scale: Scale, b_scale: Scale, a_zero: MaybeTensor = None, b_zero: MaybeTensor = None,
    bias: MaybeTensor = None,
) -> Result:  # fmt: skip
    return _scaled_product(a, b, a_scale, b_scale, a_zero, b_zero, bias)


@onnx("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_matmul(
    a: Tensor, b: Tensor, b_scale: Scale, b_zero: MaybeTensor = None, bias: MaybeTensor = None
) -> Result:
    whole, scale, zero = dynamic_quantize_linear(a)
    return _scaled_product(whole, b, scale, b_scale, zero, b_zero, bias)


@onnx("QGemm", domain=MICROSOFT)
def qgemm(
    a: Tensor, a_scale: Scale, a_zero: Tensor, b: Tensor, b_scale: Scale, b_zero: Tensor, c: MaybeTensor = None,
    y_scale: MaybeDivisor = None, y_zero: MaybeTensor = None, *, alpha: float = 1.0, transA: bool = False,  # noqa: N803
    transB: bool = False,  # noqa: N803
) -> Result:  # fmt: skip
    """alpha · (a · b) + c, where c are integers of the products' scale; floats where no scale of the result is given.
    """
    outputs = 0 if transB else 1
    left, right = real(a, a_scale, a_zero), real(b, b_scale, b_zero, outputs)
    found = F.matmul(left, right, transpose_a=transA, transpose_b=transB)
    if alpha != 1:
        found = F.mul(found, alpha)
    if c is not None:
        scale = F.mul(F.mul(F.reshape(a_scale, ()), b_scale), alpha)
        found = F.add(found, F.dequantize(c, scale, dtype=dtypes.float32))
    return found if y_scale is None else quantized(found, y_scale, y_zero, a.dtype if y_zero is None else y_zero.dtype)


def _uniform(zero: Any) -> Any:
    """Zero points that are all alike and known as one number; None for 0."""
    if zero.array is None or not zero.array.size or (zero.array != zero.array.flat[0]).any():
        return zero
    return number(zero, zero.array.flat[0]) if zero.array.any() else None


def _scaled(weight: Any, scale: Any, zero: Any) -> Any:
    """A weight [D, inputs, outputs] with numbers for each direction or output; others would be read amiss."""
    if len(weight.shape) != 3:
        raise Unsupported(f"weights of {weight.spec} are not [directions, inputs, outputs]")
    directions, _, outputs = weight.shape
    for name, v in (("scales", scale), ("zero points", zero)):
        if v.shape not in ((), (directions,), (directions, outputs)):
            raise Unsupported(f"{name} of {v.spec} are not those of directions or outputs of {weight.spec}")
    return Scaled(weight, scale, _uniform(zero))


@onnx("DynamicQuantizeLSTM", domain=MICROSOFT, folds=False)
def dynamic_quantize_lstm(
    call: Call, x: Tensor, w: Tensor, r: Tensor, b: MaybeTensor, lengths: MaybeTensor, h0: MaybeTensor,
    c0: MaybeTensor, p: MaybeTensor, w_scale: Scale, w_zero: Tensor, r_scale: Scale, r_zero: Tensor, *,
    hidden_size: int = 0, direction: str = "forward", activations: Strs = (),
    activation_alpha: MaybeFloats = None, activation_beta: MaybeFloats = None, clip: MaybeFloat = None,
    input_forget: bool = False,
) -> Result:  # fmt: skip
    """Of quantised weights [D, I, 4·H]; the inputs stay floats, which ONNX Runtime rounds to 8 bits."""
    return lstm(call, x, _scaled(w, w_scale, w_zero), _scaled(r, r_scale, r_zero), b, lengths, h0, c0, p,
                hidden_size=hidden_size, direction=direction, activations=activations,
                activation_alpha=activation_alpha, activation_beta=activation_beta, clip=clip,
                input_forget=input_forget)  # fmt: skip


# -------------------------------------------------------------------------------------- weights of a few bits


@onnx("MatMulNBits", domain=MICROSOFT)
def matmul_n_bits(
    x: Tensor, packed: Tensor, scales: Scale, zeros: MaybeTensor = None, groups: MaybeTensor = None,
    bias: MaybeTensor = None, *, K: int, N: int, bits: int = 4, block_size: int, accuracy_level: int = 0,  # noqa: N803
) -> Result:  # fmt: skip
    """The weight as integers of 2, 4 or 8 bits and a scale for each group, of which K may cut off the last.

    accuracy_level lets ONNX Runtime round the other operand, which is not done.
    """
    if bits not in (2, 4, 8) or groups is not None or block_size < 1:
        raise Unsupported("only 2, 4 and 8 bits without group indices are supported")
    blocks = -(-K // block_size)
    if _is_group(packed, scales, zeros, N, K, bits, block_size):
        found = F.matmul(x, _grouped(packed, scales, zeros, (N, K), block_size, x.dtype), transpose_b=True)
        return found if bias is None else F.add(found, bias)
    whole = F.reshape(_unpacked(packed, bits), (N, blocks, block_size))
    scale = F.reshape(cast(scales, dtypes.float32), (N, blocks, 1))
    if zeros is not None and zeros.dtype.is_float:
        zero = F.reshape(cast(zeros, dtypes.float32), (N, blocks, 1))
        weight = F.mul(F.sub(cast(whole, dtypes.float32), zero), scale)
    else:
        zero = number(whole, 1 << (bits - 1))
        if zeros is not None:
            flat = F.slice(_unpacked(F.reshape(zeros, (N, -1)), bits), (0, 0), (N, blocks), (1, 1))
            zero = F.reshape(flat, (N, blocks, 1))
        weight = F.dequantize(whole, scale, zero, dtype=dtypes.float32)
    weight = F.reshape(weight, (N, blocks * block_size))
    if blocks * block_size != K:
        weight = F.slice(weight, (0, 0), (N, K), (1, 1))
    found = F.matmul(x, cast(weight, x.dtype), transpose_b=True)
    return found if bias is None else F.add(found, bias)


def _is_group(packed: Any, scales: Any, zeros: Any, outputs: int, inputs: int, bits: int, size: int) -> bool:
    """Whether a weight is stored, and products take it as int4 in groups."""
    stored = all(v is None or v.kind in ("parameter", "constant") for v in (packed, scales, zeros))
    whole = zeros is None or zeros.dtype is dtypes.uint8
    return stored and whole and bits == 4 and size in GROUPS and inputs % size == 0 and 0 < outputs * inputs <= MOST


def _grouped(packed: Any, scales: Any, zeros: Any, shape: tuple[int, int], size: int, dtype: Any) -> Any:
    """The weight [outputs, inputs] of int4 in groups; its integers and zero points are those of the file less 8."""
    by_group = (shape[0], shape[1] // size)
    whole = cast(_less_8(F.reshape(_unpacked(packed, 4), shape)), dtypes.int4)
    scale = F.reshape(cast(scales, dtypes.float32), by_group)
    if zeros is None:
        return F.dequantize(whole, scale, dtype=dtype, group=size)
    flat = F.slice(_unpacked(F.reshape(zeros, (shape[0], -1)), 4), (0, 0), by_group, (1, 1))
    return F.dequantize(whole, scale, _less_8(flat), dtype=dtype, group=size)


def _less_8(unsigned: Any) -> Any:
    signed = cast(unsigned, dtypes.int8)
    return F.sub(signed, number(signed, 8))


def _unpacked(packed: Any, bits: int) -> Any:
    """Bytes as the numbers of so many bits in them, the lowest first: [..., n] → [..., n · 8 / bits]."""
    if bits == 8:
        return packed
    parts = []
    for shift in range(0, 8, bits):
        rest = packed if shift == 0 else F.floordiv(packed, number(packed, 1 << shift))
        one = rest if shift + bits == 8 else F.mod(rest, number(packed, 1 << bits))
        parts.append(F.reshape(one, (*packed.shape, 1)))
    joined = F.concat(*parts, dim=len(packed.shape))
    return F.reshape(joined, (*packed.shape[:-1], dims.mul(packed.shape[-1], 8 // bits)))


@onnx("GatherBlockQuantized", domain=MICROSOFT)
def gather_block_quantized(
    x: Typed, index: Tensor, scales: Scale, zeros: MaybeTyped = None, *, bits: int = 4, block_size: int = 128,
    gather_axis: int = 0, quantize_axis: int = 1,
) -> Result:  # fmt: skip
    """Rows of a quantised table, which alone are turned into floats. Bytes hold two numbers of 4 bits each."""
    packed = not isinstance(x, Narrow) and bits < 8
    rank = len(x.shape)
    at, along = axis_of(gather_axis, rank, "gather_axis"), axis_of(quantize_axis, rank, "quantize_axis")
    if at == along or block_size < 1 or packed and along != rank - 1:
        raise Unsupported("the axis that is gathered has no blocks, and only the last one is packed")
    index = index_of(index)
    tensors = [None if v is None else decoded(v) if isinstance(v, Narrow) else v for v in (x, scales, zeros)]
    picked: list[Any] = [None if v is None else F.take(v, index, axis=at, from_end=True) for v in tensors]
    rows, scale, zero = picked
    last = along + len(index.shape) - 1 if along > at else along
    if packed:
        rows = _unpacked(rows, bits)
    groups: Dimension = scale.shape[last]
    if zero is None:
        zero = number(rows, 1 << (bits - 1)) if packed or x.dtype is dtypes.uint8 else None
    elif packed:
        zero = F.slice(_unpacked(zero, bits), (0,) * len(scale.shape), scale.shape, (1,) * len(scale.shape))
    size = rows.shape[last]
    if dims.mul(groups, block_size) != size:
        raise Unsupported(f"{groups} scales of {block_size} elements are not those of {size}")
    if zero is not None and zero.shape:
        zero = spread_over(zero, rows, last, block_size)
    whole = cast(rows, dtypes.float32)
    whole = whole if zero is None else F.sub(whole, cast(zero, dtypes.float32))
    return cast(F.mul(whole, spread_over(cast(scale, dtypes.float32), rows, last, block_size)), scales.dtype)
