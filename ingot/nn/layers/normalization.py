"""Normalisation layers. All accumulate in float32 whatever the dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ingot import functional
from ingot.dtypes import DType
from ingot.nn.layers.linear import positive
from ingot.nn.module import Module
from ingot.nn.parameter import Parameter


def _sizes(layer: str, normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    sizes = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    positive(layer, **{f"normalized_shape[{i}]": size for i, size in enumerate(sizes)})
    return sizes


class RmsNorm(Module):
    """x / sqrt(mean(x²) + eps) · weight over the last dimensions.

    Args:
        normalized_shape: those dimensions' sizes.
        eps: added to the mean square.
        elementwise_affine: whether there is a weight; without one it counts as ones.
        dtype: of the weight, and so of x; default float32.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-6,
        elementwise_affine: bool = True,
        dtype: DType | str | None = None,
    ) -> None:
        super().__init__()
        self.normalized_shape, self.eps = _sizes("RmsNorm", normalized_shape), eps
        self.register_parameter(
            "weight", Parameter(shape=self.normalized_shape, dtype=dtype) if elementwise_affine else None
        )

    def forward(self, x: Any) -> Any:
        """[…, *normalized_shape] → the same"""
        return functional.rms_norm(x, self.normalized_shape, self.weight, self.eps)


class LayerNorm(Module):
    """(x − mean) / sqrt(variance + eps) · weight + bias over the last dimensions.

    Args:
        normalized_shape: those dimensions' sizes.
        eps: added to the variance.
        elementwise_affine: whether there are a weight and a bias.
        bias: whether there is a bias beside the weight.
        dtype: of weight and bias, and so of x; default float32.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        dtype: DType | str | None = None,
    ) -> None:
        super().__init__()
        self.normalized_shape, self.eps = _sizes("LayerNorm", normalized_shape), eps
        for name, present in (("weight", elementwise_affine), ("bias", elementwise_affine and bias)):
            self.register_parameter(name, Parameter(shape=self.normalized_shape, dtype=dtype) if present else None)

    def forward(self, x: Any) -> Any:
        """[…, *normalized_shape] → the same"""
        return functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
