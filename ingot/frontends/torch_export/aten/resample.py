"""ATen's upsampling and grid sampling: images, signals and volumes at another size, or at the places of a grid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot.dims import Dimension
from ingot.frontends.torch_export.aten.promotion import cast
from ingot.frontends.torch_export.aten.table import (
    MaybeFloat,
    MaybeFloats,
    MaybeSizes,
    Result,
    Sizes,
    Tensor,
    Unsupported,
    aten,
)
from ingot.functional import grid_sample, interpolate
from ingot.functional.resample import Target, resized, share, smoothed
from ingot.ir import F

Array = np.ndarray[Any, Any]

MAX_WEIGHTS = 1 << 24  # of one dimension's antialiasing


def _by_vector(
    x: Tensor, output_size: MaybeSizes, factors: MaybeFloats, mode: str, align_corners: bool = False
) -> Result:
    """torch gives one of the two."""
    if (output_size is None) == (factors is None):
        raise Unsupported("either output_size or scale_factors must be given")
    return interpolate(x, output_size, factors, mode=mode, align_corners=align_corners)


def _to(x: Tensor, sizes: Sequence[Dimension], scales: Sequence[MaybeFloat], mode: str,
        align_corners: bool = False) -> Result:  # fmt: skip
    """The sizes are given in any case; a scale beside one says how far apart elements are read."""
    if len(sizes) != x.ndim() - 2:
        raise Unsupported(f"{len(sizes)} sizes for {x.ndim() - 2} spatial dimensions")
    triples = zip(x.shape[2:], sizes, scales, strict=True)
    targets = [Target(after, _apart(before, after, scale)) for before, after, scale in triples]
    return resized(x, targets, mode, align_corners)


def _apart(before: Dimension, after: Dimension, scale: MaybeFloat) -> float | None:
    """How far apart elements are read, where the sizes do not say the same."""
    if scale is None:
        return None
    if not scale > 0:
        raise Unsupported("a scale must be above 0")
    return None if scale.is_integer() and dims.mul(before, int(scale)) == after else 1 / scale


def _nearest(word: str, mode: str) -> None:
    @aten(*(f"aten.{word}{rank}d.vec" for rank in (1, 2, 3)))
    def by_vector(input: Tensor, output_size: MaybeSizes = None, scale_factors: MaybeFloats = None) -> Result:
        return _by_vector(input, output_size, scale_factors, mode)

    @aten(f"aten.{word}1d.default")
    def to_length(self: Tensor, output_size: Sizes, scales: MaybeFloat = None) -> Result:
        return _to(self, output_size, (scales,), mode)

    @aten(f"aten.{word}2d.default")
    def to_area(
        self: Tensor, output_size: Sizes, scales_h: MaybeFloat = None, scales_w: MaybeFloat = None
    ) -> Result:
        return _to(self, output_size, (scales_h, scales_w), mode)

    @aten(f"aten.{word}3d.default")
    def to_volume(self: Tensor, output_size: Sizes, scales_d: MaybeFloat = None, scales_h: MaybeFloat = None,
                  scales_w: MaybeFloat = None) -> Result:  # fmt: skip
        return _to(self, output_size, (scales_d, scales_h, scales_w), mode)


def _between(word: str, mode: str) -> None:
    @aten(f"aten.{word}.vec")
    def by_vector(
        input: Tensor, output_size: MaybeSizes = None, align_corners: bool = False, scale_factors: MaybeFloats = None
    ) -> Result:
        return _by_vector(input, output_size, scale_factors, mode, align_corners)


_nearest("upsample_nearest", "nearest")
_nearest("_upsample_nearest_exact", "nearest-exact")
_between("upsample_linear1d", "linear")
_between("upsample_bilinear2d", "bilinear")
_between("upsample_trilinear3d", "trilinear")
_between("upsample_bicubic2d", "bicubic")


@aten("aten.upsample_linear1d.default")
def linear(self: Tensor, output_size: Sizes, align_corners: bool, scales: MaybeFloat = None) -> Result:
    return _to(self, output_size, (scales,), "linear", align_corners)


@aten("aten.upsample_bilinear2d.default")
def bilinear(self: Tensor, output_size: Sizes, align_corners: bool, scales_h: MaybeFloat = None,
             scales_w: MaybeFloat = None) -> Result:  # fmt: skip
    return _to(self, output_size, (scales_h, scales_w), "bilinear", align_corners)


@aten("aten.upsample_bicubic2d.default")
def bicubic(self: Tensor, output_size: Sizes, align_corners: bool, scales_h: MaybeFloat = None,
            scales_w: MaybeFloat = None) -> Result:  # fmt: skip
    return _to(self, output_size, (scales_h, scales_w), "bicubic", align_corners)


@aten("aten.upsample_trilinear3d.default")
def trilinear(self: Tensor, output_size: Sizes, align_corners: bool, scales_d: MaybeFloat = None,
              scales_h: MaybeFloat = None, scales_w: MaybeFloat = None) -> Result:  # fmt: skip
    return _to(self, output_size, (scales_d, scales_h, scales_w), "trilinear", align_corners)


# ------------------------------------------------------------------------------------------------- antialiased


def _tent(x: Array) -> Array:
    found: Array = np.maximum(1 - np.abs(x), 0)
    return found


def _cubic(x: Array) -> Array:
    """The cubic kernel of parameter −0.5, which torch takes where it antialiases."""
    x, a = np.abs(x), -0.5
    near, far = ((a + 2) * x - (a + 3)) * x * x + 1, a * (((x - 5) * x + 8) * x - 4)
    found: Array = np.where(x < 1, near, np.where(x < 2, far, 0))
    return found


def _smoothed(before: int, after: int, kernel: Callable[[Array], Array], reach: float,
              align_corners: bool, scale: MaybeFloat) -> Array:  # fmt: skip
    """[after, before]: what of each element goes into each of the result. The kernel is as wide as a step is."""
    if min(before, after) < 1 or before * after > MAX_WEIGHTS:
        raise Unsupported(f"{before:,} elements cannot be antialiased to {after:,}")
    if align_corners:
        step = (before - 1) / (after - 1) if after > 1 else 0.0
    else:
        step = before / after if scale is None or not scale > 0 else 1 / scale
    wide = max(step, 1.0)
    centre = (step * (np.arange(after) + 0.5))[:, None]
    low = np.maximum(np.trunc(centre - reach * wide + 0.5), 0)
    high = np.minimum(np.trunc(centre + reach * wide + 0.5), before)
    at = np.arange(before)[None]
    share: Array = np.where((at >= low) & (at < high), kernel((at - centre + 0.5) / wide), 0)
    total = share.sum(1, keepdims=True)
    share /= np.where(total == 0, 1, total)
    return share


def _smooth(x: Tensor, sizes: Sequence[Dimension], scales: Sequence[MaybeFloat], mode: str,
            align_corners: bool) -> Result:  # fmt: skip
    """By a product with a matrix of weights for each of the two dimensions."""
    if not dims.all_fixed((*x.shape[2:], *sizes)):
        y: Any = cast(x, dtypes.float32)
        for axis, (to, scale) in enumerate(zip(sizes, scales, strict=True), 2):
            y = smoothed(y, axis, to, mode, 1 / scale if scale is not None and scale > 0 else None, align_corners)
        return cast(y, x.dtype)
    kernel, reach = {"bilinear": (_tent, 1.0), "bicubic": (_cubic, 2.0)}[mode]
    found = cast(x, dtypes.float32) if x.dtype.bits < 32 else x
    down, across = (
        x.network.constant(_smoothed(int(n), int(to), kernel, reach, align_corners, scale).astype(found.dtype.numpy))
        for n, to, scale in zip(x.shape[2:], sizes, scales, strict=True)
    )
    return cast(F.matmul(F.matmul(down, found), F.permute(across, (1, 0))), x.dtype)


def _antialiased(mode: str) -> None:
    @aten(f"aten._upsample_{mode}2d_aa.vec")
    def by_vector(
        input: Tensor, output_size: MaybeSizes = None, align_corners: bool = False, scale_factors: MaybeFloats = None
    ) -> Result:
        if output_size is not None:
            return _smooth(input, output_size, (None, None), mode, align_corners)
        if scale_factors is None:
            raise Unsupported("either output_size or scale_factors must be given")
        pairs = zip(input.shape[2:], scale_factors, strict=True)
        sizes = [int(n * factor) if isinstance(n, int) else share("a size", n, factor) for n, factor in pairs]
        return _smooth(input, sizes, scale_factors, mode, align_corners)

    @aten(f"aten._upsample_{mode}2d_aa.default")
    def to_area(self: Tensor, output_size: Sizes, align_corners: bool, scales_h: MaybeFloat = None,
                scales_w: MaybeFloat = None) -> Result:  # fmt: skip
        return _smooth(self, output_size, (scales_h, scales_w), mode, align_corners)


_antialiased("bilinear")
_antialiased("bicubic")


# ---------------------------------------------------------------------------------------------------- at a grid


_GRID_MODES, _BEYOND = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")


@aten("aten.grid_sampler.default", "aten.grid_sampler_2d.default", "aten.grid_sampler_3d.default")
def grid_sampler(input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int,
                 align_corners: bool) -> Result:  # fmt: skip
    return grid_sample(input, grid, _GRID_MODES[interpolation_mode], _BEYOND[padding_mode], align_corners)
