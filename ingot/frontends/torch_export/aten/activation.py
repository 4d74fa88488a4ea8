"""ATen's activation functions, and dropout where it does nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ingot import dims, dtypes
from ingot import functional as fn
from ingot.frontends.torch_export.aten.pointwise import mul
from ingot.frontends.torch_export.aten.promotion import category, floating
from ingot.frontends.torch_export.aten.table import (
    MaybeBool,
    MaybeDType,
    Result,
    Results,
    Scalar,
    Tensor,
    Unsupported,
    aten,
)
from ingot.ir import F
from ingot.ir.spec import axis_of

DROPS = (
    "drops elements at random, as in training: call module.eval() before torch.export.export; in that mode too "
    "functional.dropout does so without training=self.training, and attention with another dropout_p than 0"
)


def _number(value: Scalar, name: str) -> float:
    if not isinstance(value, int | float):
        raise Unsupported(f"{name} must be known at export")
    return float(value)


@aten("aten.relu6.default")
def relu6(self: Tensor) -> Result:
    return F.clip(self, minimum=0.0, maximum=6.0)


@aten("aten.hardtanh.default")
def hardtanh(self: Tensor, min_val: Scalar = -1, max_val: Scalar = 1) -> Result:
    low, high = _number(min_val, "min_val"), _number(max_val, "max_val")
    return F.clip(self, minimum=low, maximum=high)


@aten("aten.gelu.default")
def gelu(self: Tensor, approximate: str = "none") -> Result:
    if approximate not in ("none", "tanh"):
        raise Unsupported(f"approximate {approximate!r:.40} is not one of none and tanh")
    return fn.gelu(self, approximate=approximate)


@aten("aten.softplus.default")
def softplus(self: Tensor, beta: Scalar = 1, threshold: Scalar = 20) -> Result:
    return F.softplus(
        self, beta=_number(beta, "beta"), threshold=_number(threshold, "threshold")
    )


@aten("aten.log_sigmoid.default")
def log_sigmoid(self: Tensor) -> Result:
    return F.sub(F.minimum(self, 0.0), F.softplus(F.neg(F.abs(self))))


@aten("aten.leaky_relu.default")
def leaky_relu(self: Tensor, negative_slope: Scalar = 0.01) -> Result:
    slope = _number(negative_slope, "negative_slope")
    return F.where(F.greater(self, 0), self, F.mul(self, slope))


@aten("aten.prelu.default", "aten._prelu_kernel.default")
def prelu(self: Tensor, weight: Tensor) -> Result:
    if weight.shape and weight.ndim() < self.ndim():  # one slope per channel, or one for all
        weight = F.reshape(weight, (weight.shape[0], *[1] * max(self.ndim() - 2, 0)))
    return F.where(F.greater(self, 0), self, F.mul(self, weight))


@aten("aten.elu.default")
def elu(self: Tensor, alpha: Scalar = 1, scale: Scalar = 1, input_scale: Scalar = 1) -> Result:
    rate, factor, inner = (_number(n, "alpha, scale and input_scale") for n in (alpha, scale, input_scale))
    below = F.sub(F.exp(F.mul(F.minimum(self, 0), inner)), 1.0)
    return F.where(F.greater(self, 0), F.mul(self, factor), F.mul(below, rate * factor))


@aten("aten.celu.default")
def celu(self: Tensor, alpha: Scalar = 1) -> Result:
    return elu(self, alpha, 1, 1 / _number(alpha, "alpha"))


@aten("aten.selu.default")
def selu(self: Tensor) -> Result:
    return elu(self, 1.6732632423543772, 1.0507009873554805, 1)


@aten("aten.hardswish.default")
def hardswish(self: Tensor) -> Result:
    return F.mul(self, hardsigmoid(self))


@aten("aten.hardsigmoid.default")
def hardsigmoid(self: Tensor) -> Result:
    return F.div(F.clip(F.add(self, 3), minimum=0.0, maximum=6.0), 6)


@aten("aten.threshold.default")
def threshold(self: Tensor, threshold: Scalar, value: Scalar) -> Result:
    edge, fill = _number(threshold, "threshold"), _number(value, "value")
    if category(self.dtype) < 2:
        raise Unsupported("threshold of integers is not supported")
    return F.where(F.less_equal(self, edge), fill, self)  # NaN stays


@aten("aten.glu.default")
def glu(self: Tensor, dim: int = -1) -> Result:
    axis = axis_of(dim, self.ndim(), "dim")
    half = dims.floordiv(self.shape[axis], 2)
    first, second = fn.split(self, [half, dims.add(self.shape[axis], dims.mul(half, -1))], axis)
    return mul(first, F.sigmoid(second))


@aten("aten.dropout.default", "aten.feature_dropout.default", "aten.alpha_dropout.default",
      "aten.feature_alpha_dropout.default", views=True)  # fmt: skip
def dropout(input: Tensor, p: float, train: bool) -> Result:
    if train and p:
        raise Unsupported(f"it {DROPS}")
    return input


@aten("aten.native_dropout.default")
def native_dropout(input: Tensor, p: float, train: MaybeBool) -> Results:
    return dropout(input, p, bool(train)), None


def _along(name: str) -> None:
    compute: Callable[..., Any] = getattr(F, name)

    @aten(f"aten.{name}.int")
    def of(self: Tensor, dim: int, dtype: MaybeDType = None) -> Result:
        x = floating(self, dtype)
        return compute(x, axis=axis_of(dim, x.ndim(), "dim"))

    @aten(f"aten._{name}.default")
    def native(self: Tensor, dim: int, half_to_float: bool = False) -> Result:
        return of(self, dim, dtypes.float32 if half_to_float else None)


for _name in ("softmax", "log_softmax"):
    _along(_name)
