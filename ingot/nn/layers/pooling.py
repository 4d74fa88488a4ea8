"""Pooling layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from ingot import functional
from ingot.errors import ModuleError
from ingot.nn.layers.convolution import Sizes, sizes_of
from ingot.nn.module import Module


class _Pool(Module):
    rank: ClassVar[int]
    pool: ClassVar[Callable[..., Any]]

    def _set(self, kernel_size: Sizes, stride: Sizes | None, padding: Sizes, ceil_mode: bool) -> None:
        layer = type(self).__name__
        self.kernel_size = sizes_of(layer, "kernel_size", kernel_size, self.rank)
        self.stride = self.kernel_size if stride is None else sizes_of(layer, "stride", stride, self.rank)
        self.padding, self.ceil_mode = sizes_of(layer, "padding", padding, self.rank, 0), ceil_mode


class _AvgPool(_Pool):
    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__()
        self._set(kernel_size, stride, padding, ceil_mode)
        self.count_include_pad, self.divisor_override = count_include_pad, divisor_override
        if divisor_override is not None and (self.rank == 1 or divisor_override < 1):
            raise ModuleError(f"{type(self).__name__}: divisor_override={divisor_override!r} must be None or, for more "
                              "than one dimension, a positive int")  # fmt: skip

    def forward(self, x: Any) -> Any:
        """[N, C, …] or [C, …] → the same with fewer windows than elements"""
        rest = () if self.rank == 1 else (self.divisor_override,)
        return type(self).pool(
            x, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad, *rest
        )


class AvgPool1d(_AvgPool):
    """The means of windows over one dimension; arguments as AvgPool2d, without divisor_override."""

    rank, pool = 1, functional.avg_pool1d


class AvgPool2d(_AvgPool):
    """The means of windows.

    Args:
        kernel_size: an int, or one for each dimension.
        stride: from one window to the next; default kernel_size.
        padding: zeros on both sides.
        ceil_mode, count_include_pad, divisor_override: as functional.avg_pool2d.

    Raises:
        ModuleError: sizes that are not positive.
    """

    rank, pool = 2, functional.avg_pool2d


class AvgPool3d(_AvgPool):
    """The means of windows over three dimensions; arguments as AvgPool2d."""

    rank, pool = 3, functional.avg_pool3d


class _MaxPool(_Pool):
    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self._set(kernel_size, stride, padding, ceil_mode)
        self.dilation = sizes_of(type(self).__name__, "dilation", dilation, self.rank)
        if return_indices:
            raise ModuleError(f"{type(self).__name__}: return_indices=True is not supported")

    def forward(self, x: Any) -> Any:
        """[N, C, …] or [C, …] → the same with fewer windows than elements"""
        return type(self).pool(x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)


class MaxPool1d(_MaxPool):
    """The largest elements of windows over one dimension; arguments as MaxPool2d."""

    rank, pool = 1, functional.max_pool1d


class MaxPool2d(_MaxPool):
    """The largest elements of windows.

    Args:
        kernel_size, dilation: an int, or one for each dimension.
        stride: from one window to the next; default kernel_size.
        padding: places on both sides that never win.
        return_indices: only False; torch has it here.
        ceil_mode: as functional.avg_pool2d.

    Raises:
        ModuleError: sizes that are not positive, return_indices.
    """

    rank, pool = 2, functional.max_pool2d


class MaxPool3d(_MaxPool):
    """The largest elements of windows over three dimensions; arguments as MaxPool2d."""

    rank, pool = 3, functional.max_pool3d


class AdaptiveAvgPool2d(Module):
    """Means of as many windows as `output_size` says, which must divide the input's size or be 1; None keeps a size."""

    def __init__(self, output_size: int | None | Sequence[int | None]) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, x: Any) -> Any:
        """[N, C, H, W] or [C, H, W] → the same with output_size rows and columns"""
        return functional.adaptive_avg_pool2d(x, self.output_size)
