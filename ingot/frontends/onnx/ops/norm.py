"""ONNX's normalisations."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot import dtypes
from ingot.dtypes import DType
from ingot.frontends.onnx.ops.common import cast, few, wide
from ingot.frontends.onnx.table import Call, onnx
from ingot.frontends.onnx.tensors import BY_CODE
from ingot.frontends.table import MaybeTensor, Result, Tensor, Unsupported
from ingot.ir import F
from ingot.ir.spec import axis_of, elements


@onnx("BatchNormalization", until=6)
def batch_normalization_1(
    x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, *, epsilon: float = 1e-5,
    is_test: bool = False, momentum: float = 0.9, spatial: bool = True,
) -> Result:  # fmt: skip
    if not is_test:
        raise Unsupported("training mode is not supported before opset 14")
    return batch_normalization(x, scale, bias, mean, variance, epsilon=epsilon, spatial=spatial)


@onnx("BatchNormalization", since=7)
def batch_normalization(
    x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, *, epsilon: float = 1e-5,
    momentum: float = 0.9, spatial: bool = True, training_mode: bool = False,
) -> Result:  # fmt: skip
    if not spatial:
        raise Unsupported("statistics of every element (spatial = 0) are not supported")
    if not training_mode:
        kinds = {v.dtype for v in (scale, bias, mean, variance)}
        if kinds != {x.dtype}:
            operands = [cast(v, dtypes.float32) for v in (x, mean, variance, scale, bias)]
            return cast(F.batch_norm(*operands, eps=epsilon), x.dtype)
        return F.batch_norm(x, mean, variance, scale, bias, eps=epsilon)
    axes = tuple(i for i in range(len(x.shape)) if i != 1)
    y = wide(x)
    now = F.reduce_mean(y, axes=axes, keepdims=True)
    spread = F.reduce_mean(F.mul(F.sub(y, now), F.sub(y, now)), axes=axes, keepdims=True)
    flat = [F.reshape(v, (x.shape[1],)) for v in (now, spread)]
    result = F.batch_norm(y, *flat, cast(scale, y.dtype), cast(bias, y.dtype), eps=epsilon)
    kept = [F.add(F.mul(old, momentum), F.mul(cast(new, old.dtype), 1 - momentum))
            for old, new in zip((mean, variance), flat, strict=True)]  # fmt: skip
    return (cast(result, x.dtype), *kept)


def _rows(x: Any, axis: int) -> tuple[Any, Any, Any]:
    """x with the dimensions from an axis on as one, their number, and the shape of what reduces them."""
    at = axis_of(axis, len(x.shape), "axis")
    width = elements(x.shape[at:])
    flat = x if at == len(x.shape) - 1 else F.reshape(x, (*x.shape[:at], width))
    return flat, width, (*x.shape[:at], *[1] * (len(x.shape) - at))


def _vector(weight: Any, width: Any) -> Any:
    if elements(weight.shape) != width:
        raise Unsupported(f"its weight {weight.spec} is not that of the {width} elements that are normalised")
    return weight if len(weight.shape) == 1 else F.reshape(weight, (width,))


def _kind(code: int) -> DType:
    return BY_CODE.get(code, dtypes.float32)


@onnx("LayerNormalization")
@onnx("LayerNormalization", domain="com.microsoft")
def layer_normalization(
    call: Call, x: Tensor, scale: Tensor, bias: MaybeTensor = None, *, axis: int = -1, epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Result:  # fmt: skip
    flat, width, reduced = _rows(x, axis)
    fits = elements(scale.shape) == width and (bias is None or elements(bias.shape) == width)
    if fits:
        operands = [flat, cast(_vector(scale, width), x.dtype)]
        operands += [] if bias is None else [cast(_vector(bias, width), x.dtype)]
        result = F.reshape(F.layer_norm(*operands, eps=epsilon), x.shape)
    else:
        plain = F.reshape(F.layer_norm(flat, eps=epsilon), x.shape)
        result = F.mul(plain, scale) if bias is None else F.add(F.mul(plain, scale), bias)
    if call.outputs == 1 or not any(call.wanted[1:]):
        return result
    y = cast(wide(flat), _kind(stash_type)) if x.dtype.bits < 32 else flat
    last = len(y.shape) - 1
    mean = F.reduce_mean(y, axes=(last,), keepdims=True)
    centred = F.sub(y, mean)
    spread = F.reduce_mean(F.mul(centred, centred), axes=(last,), keepdims=True)
    inverse = F.reciprocal(F.sqrt(F.add(spread, epsilon)))
    return result, F.reshape(mean, reduced), F.reshape(inverse, reduced)


@onnx("RMSNormalization")
@onnx("SimplifiedLayerNormalization")
@onnx("SimplifiedLayerNormalization", domain="com.microsoft")
def rms_normalization(
    x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Result:
    flat, width, _ = _rows(x, axis)
    if elements(scale.shape) == width:
        return F.reshape(F.rms_norm(flat, cast(_vector(scale, width), x.dtype), eps=epsilon), x.shape)
    return F.mul(F.reshape(F.rms_norm(flat, eps=epsilon), x.shape), scale)


@onnx("InstanceNormalization")
def instance_normalization(x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5) -> Result:
    channels = x.shape[1]
    if not isinstance(channels, int):
        raise Unsupported("the number of channels must be known")
    return F.group_norm(x, scale, bias, groups=channels, eps=epsilon)


@onnx("GroupNormalization", until=20)
def group_normalization_18(x: Tensor, scale: Tensor, bias: Tensor, *, num_groups: int, epsilon: float = 1e-5) -> Result:
    """With a scale and a bias for each group."""
    channels = x.shape[1]
    if scale.shape != (num_groups,) or bias.shape != (num_groups,) or not isinstance(channels, int):
        both = f"{scale.spec} and {bias.spec}"
        raise Unsupported(f"scale and bias must be [{num_groups}], not {both}, and the channels known")
    if num_groups < 1 or channels % num_groups:
        raise Unsupported(f"{channels} channels cannot be divided among {num_groups} groups")
    each = x.network.constant(np.arange(few(channels)) // (channels // num_groups))
    scale, bias = (F.take(v, each, axis=0) for v in (scale, bias))
    return F.group_norm(x, scale, bias, groups=num_groups, eps=epsilon)


@onnx("GroupNormalization", since=21)
def group_normalization(
    x: Tensor, scale: Tensor, bias: Tensor, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1
) -> Result:
    return F.group_norm(x, scale, bias, groups=num_groups, eps=epsilon)


@onnx("LRN")
def lrn(x: Tensor, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Result:
    """Over neighbouring channels: sums of windows as a pool over the channels."""
    channels = x.shape[1]
    rest = elements(x.shape[2:])
    squares = F.reshape(F.mul(x, x), (x.shape[0], 1, channels, rest))
    low = (size - 1) // 2
    mean = F.avg_pool(squares, kernel=(size, 1), stride=(1, 1), pre_padding=(low, 0),
                      post_padding=(size - 1 - low, 0))  # fmt: skip
    scaled = F.add(F.mul(F.reshape(mean, x.shape), alpha), bias)
    return F.div(x, F.pow(scaled, beta))


