"""tensorrt_llm.quantization: quantising functions, and layers of int8 weights, computed as they are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ingot import dtypes
from ingot import functional as f
from ingot.compat import context
from ingot.compat.datatype import as_dtype
from ingot.compat.functional import FUNCTIONS, recorded
from ingot.compat.module import Module
from ingot.compat.parameter import Parameter
from ingot.compat.quantization import QuantMode
from ingot.compat.refusal import called, refused, single
from ingot.compat.trt_composed import dequantize as dequantized
from ingot.compat.trt_composed import quantize as quantised
from ingot.ir import F

_NO_MODE, _INT8 = QuantMode(0), QuantMode.use_weight_only()


@called("quantize")
def quantize(input: Any, scale_factor: Any, dtype: Any, axis: int = -1) -> Any:
    """round(input / scale) within -128..127, int8; scales are one number, or one for each place along `axis`."""

    def call(input: Any, scale: Any) -> Any:
        return quantised({"input": input, "scale": scale, "output_type": dtype, "axis": axis})

    return recorded("cast", call, {"input": input, "scale": scale_factor})


@called("dequantize")
def dequantize(input: Any, scale_factor: Any, axis: int = -1, output_type: Any = "float16") -> Any:
    """input · scale, as output_type."""

    def call(input: Any, scale: Any) -> Any:
        return dequantized({"input": input, "scale": scale, "output_type": output_type, "axis": axis})

    return recorded("cast", call, {"input": input, "scale": scale_factor})


def _per_token(x: Any) -> tuple[Any, Any]:
    wide = f.cast(x, "float32")
    scale = f.div(f.max(f.abs(wide), -1, True), 127.0)
    # A row of zeros has any scale: it stays zeros.
    return F.quantize(wide, f.where(f.gt(scale, 0.0), scale, 1.0), minimum=-128), scale


@called("quantize_per_token")
def quantize_per_token(x: Any) -> Any:
    """int8 numbers, and each row's scale, float32 […, 1]: the greatest of it / 127."""
    return recorded("cast", _per_token, {"x": x})


def _scaled(x: Any, scale: Any) -> Any:
    wide = f.mul(f.cast(x, "float32"), f.cast(scale, "float32"))
    return F.quantize(wide, np.float32(1), minimum=-128)


@called("quantize_tensor")
def quantize_tensor(x: Any, scale: Any) -> Any:
    """round(x · scale) within -128..127, int8."""
    return recorded("cast", _scaled, {"x": x, "scale": scale})


@called("smooth_quant_gemm")
def smooth_quant_gemm(
    input: Any, weights: Any, scales_a: Any, scales_b: Any, per_token_scaling: bool, per_channel_scaling: bool
) -> Any:
    """input · weightsᵀ of int8 numbers [M, K] and [N, K], times scales_a [M, 1] or [1, 1] and scales_b [1, N] or so.

    The result is of the type of plugin_config.smooth_quant_gemm_plugin, float32 without one.
    """
    setting = context.default_net().plugin_config.smooth_quant_gemm_plugin
    kind = as_dtype(setting) if setting not in (None, True, False, "auto") else dtypes.float32

    def call(input: Any, weights: Any, scales_a: Any, scales_b: Any) -> Any:
        for name, scales, several, at in (("per_token_scaling", scales_a, per_token_scaling, -2),
                                          ("per_channel_scaling", scales_b, per_channel_scaling, -1)):  # fmt: skip
            if not several and len(scales.shape) > 1 and scales.shape[at] != 1:
                raise refused(f"smooth_quant_gemm with {scales.shape[at]} scales and {name}=False", "give one scale")
        wide = f.matmul(f.cast(F.cast(input, dtypes.float32), "float32"), F.cast(weights, dtypes.float32), transb=True)
        return f.cast(f.mul(f.mul(wide, f.cast(scales_a, "float32")), f.cast(scales_b, "float32")), kind)

    given = {"input": input, "weights": weights, "scales_a": scales_a, "scales_b": scales_b}
    return recorded("cast", call, given)


@called("weight_only_quant_matmul")
def weight_only_quant_matmul(
    input: Any, weights: Any, scales: Any, weightTypeId: int, dtype: Any = "float16", transa: bool = False,  # noqa: N803
    transb: bool = False,
) -> Any:  # fmt: skip
    """input · weights of int8 [in, out], each column times its scale [out]; computed in `dtype`."""
    if weightTypeId != 1:
        raise refused(
            f"weight_only_quant_matmul with weightTypeId={weightTypeId}",
            'int8 weights (1), or float ones and ingot.build(…, weights="int4-g128")',
        )
    kind = as_dtype(dtype)

    def call(input: Any, weights: Any, scales: Any) -> Any:
        whole = f.mul(F.cast(weights, dtypes.float32), f.cast(scales, "float32"))
        return f.matmul(f.cast(input, kind), f.cast(whole, kind), transa, transb)

    return recorded("cast", call, {"input": input, "weights": weights, "scales": scales})


def _norm(name: str) -> Callable[..., Any]:
    plain = FUNCTIONS[name]

    def normed(x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
        if name == "layer_norm":
            return plain(x, shape, weight, bias, eps)
        out = plain(x, shape, 1, weight, eps)
        return out if bias is None else FUNCTIONS["add"](out, bias)

    return normed


def _quantised_norm(name: str, given: dict[str, Any], scale: Any, dynamic: bool) -> Any:
    out = _norm(name)(*given.values())
    if dynamic:
        return quantize_per_token(out)
    if scale is None:
        raise refused(f"smooth_quant_{name} without scale", "give scale, or dynamic_act_scaling=True")
    return quantize_tensor(out, scale)


@called("smooth_quant_layer_norm")
def smooth_quant_layer_norm(
    input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, scale: Any = None, eps: float = 1e-5,
    use_diff_of_squares: bool = True, dynamic_act_scaling: bool = False,
) -> Any:  # fmt: skip
    """layer_norm as int8: times `scale`, or (dynamic_act_scaling) with a scale for each row, which is given too."""
    given = {"x": input, "shape": normalized_shape, "weight": weight, "bias": bias, "eps": eps}
    return _quantised_norm("layer_norm", given, scale, dynamic_act_scaling)


@called("smooth_quant_rms_norm")
def smooth_quant_rms_norm(
    input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, scale: Any = None, eps: float = 1e-6,
    dynamic_act_scaling: bool = False,
) -> Any:  # fmt: skip
    """rms_norm as int8: times `scale`, or (dynamic_act_scaling) with a scale for each row, which is given too."""
    given = {"x": input, "shape": normalized_shape, "weight": weight, "bias": bias, "eps": eps}
    return _quantised_norm("rms_norm", given, scale, dynamic_act_scaling)


# ---------------------------------------------------------------------------------------------- layers


class Quantize(Module):
    """quantize by a parameter `scaling_factor`: one number, or in_channels of them along `axis`."""

    @called("Quantize")
    def __init__(
        self, output_dtype: Any = "int8", scaling_factor_dtype: Any = "float32", in_channels: int = -1, axis: int = -1
    ) -> None:
        super().__init__()
        self.output_dtype, self.axis = output_dtype, axis
        self.scaling_factor = Parameter(shape=() if axis == -1 else (in_channels,), dtype=scaling_factor_dtype)

    def forward(self, x: Any) -> Any:
        return quantize(x, self.scaling_factor.value, self.output_dtype, self.axis)


class QuantizePerToken(Module):
    """quantize_per_token."""

    def forward(self, x: Any) -> Any:
        return quantize_per_token(x)


class Dequantize(Module):
    """dequantize by a parameter `scaling_factor`, to float32."""

    @called("Dequantize")
    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.axis = axis
        self.scaling_factor = Parameter(shape=(), dtype="float32")

    def forward(self, input: Any) -> Any:
        return dequantize(input, self.scaling_factor.value, self.axis, "float32")


class SmoothQuantLinear(Module):
    """A product of int8 activations and weights [out, in], with per_channel_scale and act_scale.

    With dynamic scaling the input is (int8, scale of each row), as quantize_per_token gives.
    """

    @called("SmoothQuantLinear")
    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, dtype: Any = None, tp_group: Any = None,
        tp_size: int = 1, gather_output: bool = True, quant_mode: QuantMode = _NO_MODE,
    ) -> None:  # fmt: skip
        super().__init__()
        single("SmoothQuantLinear", tp_size)
        if not quant_mode.has_act_and_weight_quant():
            raise refused(f"SmoothQuantLinear with {quant_mode!r}", "give QuantMode.use_smooth_quant(…)")
        self.quant_mode, self.dtype = quant_mode, dtype
        self.weight = Parameter(shape=(out_features, in_features), dtype="int8")
        channels = out_features if quant_mode.has_per_channel_scaling() else 1
        self.per_channel_scale = Parameter(shape=(1, channels), dtype="float32")
        if quant_mode.has_act_static_scaling():
            self.act_scale = Parameter(shape=(1, 1), dtype="float32")
        self.register_parameter("bias", Parameter(shape=(out_features,), dtype=dtype) if bias else None)

    def forward(self, x: Any) -> Any:
        x, scale = (x, self.act_scale.value) if self.quant_mode.has_act_static_scaling() else x
        mode = self.quant_mode
        dynamic, channels = mode.has_per_token_dynamic_scaling(), mode.has_per_channel_scaling()
        out = smooth_quant_gemm(x, self.weight.value, scale, self.per_channel_scale.value, dynamic, channels)
        if self.dtype is not None:
            out = FUNCTIONS["cast"](out, self.dtype)
        return out if self.bias is None else FUNCTIONS["add"](out, self.bias.value)


class SmoothQuantRowLinear(SmoothQuantLinear):
    """SmoothQuantLinear."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, dtype: Any = None, tp_group: Any = None,
        tp_size: int = 1, quant_mode: QuantMode = _NO_MODE,
    ) -> None:  # fmt: skip
        super().__init__(in_features, out_features, bias, dtype, tp_size=tp_size, quant_mode=quant_mode)


class WeightOnlyQuantLinear(Module):
    """A product with int8 weights [in, out] and a scale for each column, `per_channel_scale`."""

    @called("WeightOnlyQuantLinear")
    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, dtype: Any = None, tp_group: Any = None,
        tp_size: int = 1, gather_output: bool = True, quant_mode: QuantMode = _INT8,
    ) -> None:  # fmt: skip
        super().__init__()
        single("WeightOnlyQuantLinear", tp_size)
        if not quant_mode.is_int8_weight_only() or quant_mode.has_per_group_scaling():
            raise refused(
                f"WeightOnlyQuantLinear with {quant_mode!r}", 'a Linear, and ingot.build(…, weights="int4-g128")'
            )
        self.dtype = "float32" if dtype is None else dtype
        self.weight = Parameter(shape=(in_features, out_features), dtype="int8")
        self.per_channel_scale = Parameter(shape=(out_features,), dtype=self.dtype)
        self.register_parameter("bias", Parameter(shape=(out_features,), dtype=self.dtype) if bias else None)

    def forward(self, x: Any) -> Any:
        out = weight_only_quant_matmul(x, self.weight.value, self.per_channel_scale.value, 1, self.dtype)
        return out if self.bias is None else FUNCTIONS["add"](out, self.bias.value)


class WeightOnlyQuantRowLinear(WeightOnlyQuantLinear):
    """WeightOnlyQuantLinear."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, dtype: Any = None, tp_group: Any = None,
        tp_size: int = 1, quant_mode: QuantMode = _INT8,
    ) -> None:  # fmt: skip
        super().__init__(in_features, out_features, bias, dtype, tp_size=tp_size, quant_mode=quant_mode)


class _SmoothNorm(Module):
    """What both norms share: weight, bias, and scale_to_int where scales are static."""

    def _parameters_of(self, shape: Any, weight: bool, bias: bool, dtype: Any, quant_mode: QuantMode) -> None:
        if not quant_mode.has_act_and_weight_quant():
            raise refused(f"{type(self).__name__} with {quant_mode!r}", "give QuantMode.use_smooth_quant(…)")
        self.normalized_shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.quant_mode = quant_mode
        self.register_parameter("weight", Parameter(shape=self.normalized_shape, dtype=dtype) if weight else None)
        self.register_parameter("bias", Parameter(shape=self.normalized_shape, dtype=dtype) if bias else None)
        static = quant_mode.has_act_static_scaling()
        self.register_parameter("scale_to_int", Parameter(shape=(1,), dtype="float32") if static else None)

    def _values(self) -> dict[str, Any]:
        names = {"weight": self.weight, "bias": self.bias, "scale": self.scale_to_int}
        found = {name: None if parameter is None else parameter.value for name, parameter in names.items()}
        return found | {"dynamic_act_scaling": self.quant_mode.has_per_token_dynamic_scaling()}


class SmoothQuantLayerNorm(_SmoothNorm):
    """smooth_quant_layer_norm with parameters."""

    @called("SmoothQuantLayerNorm")
    def __init__(
        self, normalized_shape: Any, eps: float = 1e-5, elementwise_affine: bool = True, dtype: Any = None,
        quant_mode: QuantMode = _NO_MODE,
    ) -> None:  # fmt: skip
        super().__init__()
        self.eps = eps
        self._parameters_of(normalized_shape, elementwise_affine, elementwise_affine, dtype, quant_mode)

    def forward(self, x: Any) -> Any:
        return smooth_quant_layer_norm(x, self.normalized_shape, eps=self.eps, **self._values())


class SmoothQuantRmsNorm(_SmoothNorm):
    """smooth_quant_rms_norm with parameters."""

    @called("SmoothQuantRmsNorm")
    def __init__(
        self, normalized_shape: Any, eps: float = 1e-6, elementwise_affine: bool = True, dtype: Any = None,
        quant_mode: QuantMode = _NO_MODE, bias: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.eps = eps
        self._parameters_of(normalized_shape, elementwise_affine, bias, dtype, quant_mode)

    def forward(self, x: Any) -> Any:
        return smooth_quant_rms_norm(x, self.normalized_shape, eps=self.eps, **self._values())


QUANTISING = {
    function.__name__: function for function in (
        quantize, dequantize, quantize_per_token, quantize_tensor, smooth_quant_gemm, weight_only_quant_matmul,
        smooth_quant_layer_norm, smooth_quant_rms_norm,
    )
}  # fmt: skip
QUANTISED_LAYERS: dict[str, Any] = {
    layer.__name__: layer for layer in (
        Quantize, QuantizePerToken, Dequantize, SmoothQuantLinear, SmoothQuantRowLinear, WeightOnlyQuantLinear,
        WeightOnlyQuantRowLinear, SmoothQuantLayerNorm, SmoothQuantRmsNorm,
    )
} | {"SmoothQuantColumnLinear": SmoothQuantLinear, "WeightOnlyQuantColumnLinear": WeightOnlyQuantLinear}  # fmt: skip
