"""Normalisation layers. All accumulate in float32 whatever the dtype."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ingot import functional
from ingot.dtypes import DType
from ingot.errors import ModuleError
from ingot.nn.layers.linear import positive
from ingot.nn.module import Module
from ingot.nn.parameter import Parameter


def _sizes(layer: str, normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    sizes = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    positive(layer, **{f"normalized_shape[{i}]": size for i, size in enumerate(sizes)})
    return sizes


class RmsNorm(Module):
    """x / sqrt(mean(x²) + eps) · (weight + shift) over the last dimensions.

    Args:
        normalized_shape: those dimensions' sizes.
        eps: added to the mean square.
        elementwise_affine: whether there is a weight; without one it counts as ones.
        dtype: of the weight, and so of x; default float32.
        shift: added to the weight in float32; 1 where weights are stored around 0 (Gemma).
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-6,
        elementwise_affine: bool = True,
        dtype: DType | str | None = None,
        *,
        shift: float = 0.0,
    ) -> None:
        super().__init__()
        self.normalized_shape, self.eps, self.shift = _sizes("RmsNorm", normalized_shape), eps, shift
        self.register_parameter(
            "weight", Parameter(shape=self.normalized_shape, dtype=dtype) if elementwise_affine else None
        )

    def forward(self, x: Any) -> Any:
        """[…, *normalized_shape] → the same"""
        return functional.rms_norm(x, self.normalized_shape, self.weight, self.eps, self.shift)


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


class GroupNorm(Module):
    """Groups of channels normalised over their channels and all further dimensions.

    Args:
        num_groups: how many groups; divides num_channels.
        num_channels: of x.
        eps: added to the variance.
        affine: whether there are a weight and a bias [num_channels].
        dtype: of weight and bias, and so of x; default float32.

    Raises:
        ModuleError: numbers that are not positive, channels that are not a multiple of the groups.
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        dtype: DType | str | None = None,
    ) -> None:
        super().__init__()
        positive("GroupNorm", num_groups=num_groups, num_channels=num_channels)
        if num_channels % num_groups:
            raise ModuleError(f"GroupNorm: num_channels={num_channels} is not a multiple of num_groups={num_groups}")
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps
        for name in ("weight", "bias"):
            self.register_parameter(name, Parameter(shape=(num_channels,), dtype=dtype) if affine else None)

    def forward(self, x: Any) -> Any:
        """[N, num_channels, …] → the same"""
        return functional.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


class _BatchNorm(Module):
    ranks: ClassVar[tuple[int, ...]]
    ignored: ClassVar[Mapping[str, str]] = {"num_batches_tracked": "counts the steps of a training"}

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        dtype: DType | str | None = None,
    ) -> None:
        super().__init__()
        layer = type(self).__name__
        positive(layer, num_features=num_features)
        if not track_running_stats:
            raise ModuleError(f"{layer}: track_running_stats=False would take each batch's own statistics; only given "
                              "ones are supported")  # fmt: skip
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        for name, present in (("weight", affine), ("bias", affine), ("running_mean", True), ("running_var", True)):
            self.register_parameter(name, Parameter(shape=(num_features,), dtype=dtype) if present else None)

    def forward(self, x: Any) -> Any:
        """[N, num_features, …] → the same"""
        if len(x.shape) not in self.ranks:
            wanted = " or ".join(map(str, self.ranks))
            raise ModuleError(f"{type(self).__name__} takes {wanted} dimensions, got {list(x.shape)}")
        return functional.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


class BatchNorm1d(_BatchNorm):
    """Channels of [N, C] or [N, C, L] normalised; arguments as BatchNorm2d."""

    ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Channels of [N, C, H, W] normalised by the statistics of a training, which are parameters here.

    A state dict's num_batches_tracked is passed over: it says how long the training was.

    Args:
        num_features: C.
        eps: added to the variance.
        momentum: accepted for torch's calls; statistics do not change here.
        affine: whether there are a weight and a bias [C].
        track_running_stats: only True.
        dtype: of all parameters, and so of x; default float32.

    Raises:
        ModuleError: num_features that is not positive, track_running_stats=False.
    """

    ranks = (4,)


class BatchNorm3d(_BatchNorm):
    """Channels of [N, C, D, H, W] normalised; arguments as BatchNorm2d."""

    ranks = (5,)
