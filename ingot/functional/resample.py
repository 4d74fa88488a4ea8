"""Images, signals and volumes at another size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot.errors import OpError
from ingot.functional.shape import repeat_interleave
from ingot.functional.tensor import Tensor, known_size
from ingot.ir import F

_RANKS = {"nearest": (1, 2, 3), "nearest-exact": (1, 2, 3), "linear": (1,), "bilinear": (2,), "trilinear": (3,),
          "bicubic": (2,)}  # fmt: skip
_CUBIC = -0.75  # the parameter of the cubic kernel that torch uses


def _targets(
    name: str, input: Tensor, size: Any, scale_factor: Any, recompute: bool
) -> list[tuple[Any, float | None]]:
    """For each spatial dimension its new size and, where the factor was given, how far two neighbours lie apart."""
    rank = len(input.shape) - 2
    if (size is None) == (scale_factor is None):
        raise OpError(f"{name}: give either size or scale_factor")
    given = scale_factor if size is None else size
    each = list(given) if isinstance(given, Sequence) else [given] * rank
    if len(each) != rank:
        raise OpError(f"{name}: {len(each)} sizes or factors for {rank} spatial dimensions")
    if size is not None:
        return [(n, None) for n in each]
    found: list[tuple[Any, float | None]] = []
    for i, factor in enumerate(each):
        if not factor > 0:
            raise OpError(f"{name}: scale_factor must be above 0, not {factor}")
        whole = input.shape[2 + i]
        if float(factor).is_integer():
            found.append((dims.mul(whole, int(factor)), None))
        else:
            found.append((int(known_size(input, 2 + i, name) * factor), None if recompute else 1 / factor))
    return found


def _positions(mode: str, before: int, after: int, apart: float | None, align_corners: bool) -> Any:
    """Where in the input each element of the result lies, float32 as in torch."""
    at = np.arange(after, dtype=np.float32)
    if align_corners:
        return at * np.float32((before - 1) / (after - 1) if after > 1 else 0)
    step = np.float32(before / after if apart is None else apart)
    if mode == "nearest":
        return at * step
    centre = (at + np.float32(0.5)) * step
    return centre if mode == "nearest-exact" else centre - np.float32(0.5)


def _taps(mode: str, at: Any, size: int) -> list[tuple[Any, Any]]:
    """Pairs of indices and weights whose sum is the result along one dimension; indices outside mean the edge."""
    if mode.startswith("nearest"):
        return [(np.floor(at), None)]
    if mode != "bicubic":
        at = np.maximum(at, 0)
        low = np.minimum(np.floor(at), size - 1)
        return [(low, 1 - (at - low)), (low + 1, at - low)]
    low, a = np.floor(at), _CUBIC
    t = at - low

    def near(d: Any) -> Any:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Any) -> Any:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return [(low - 1, far(t + 1)), (low, near(t)), (low + 1, near(1 - t)), (low + 2, far(2 - t))]


def interpolate(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = False,
    recompute_scale_factor: bool | None = False,
    antialias: bool = False,
) -> Tensor:
    """[N, C, …] at another size of its spatial dimensions, as torch computes it.

    Args:
        size, scale_factor: the new sizes, or by how much they grow; one number for all or one each.
        mode: "nearest", "nearest-exact", "linear", "bilinear", "trilinear" or "bicubic".
        align_corners: whether the corner elements' centres (not their outer edges) fall on each other.
        recompute_scale_factor: whether a factor counts only for the sizes, which then give the factor.
        antialias: only False.

    Raises:
        OpError: another mode or one for another rank; both or neither of size and scale_factor; a size that is only
            known at run time, but for the nearest modes with whole factors.
    """
    name, rank = "interpolate", len(input.shape) - 2
    if mode not in _RANKS or rank not in _RANKS[mode]:
        known = ", ".join(m for m in _RANKS if rank in _RANKS[m]) or "none"
        raise OpError(f"{name}: no mode {mode!r} for {list(input.shape)}, [N, C, …]; there it knows {known}")
    nearest = mode.startswith("nearest")
    if antialias or (align_corners and nearest):
        raise OpError(f"{name}: {'antialias' if antialias else f'align_corners with mode {mode!r}'} is not supported")
    if not nearest and dtypes.get(input.dtype) not in dtypes.FLOATS:
        raise OpError(f"{name}: mode {mode!r} needs floats; cast the input first")
    narrow = not nearest and dtypes.get(input.dtype).bits < 32
    out = F.cast(input, dtypes.float32) if narrow else input
    for i, (after, apart) in enumerate(_targets(name, input, size, scale_factor, bool(recompute_scale_factor))):
        out = _along(name, out, 2 + i, after, apart, mode, bool(align_corners))
    return F.cast(out, input.dtype) if narrow else out


def _along(
    name: str, input: Tensor, axis: int, after: Any, apart: float | None, mode: str, align_corners: bool
) -> Tensor:
    """One dimension at its new size."""
    if after == input.shape[axis] and apart is None:
        return input
    if isinstance(after, int) and after < 1:
        raise OpError(f"{name}: dimension {axis} cannot go from size {input.shape[axis]} to {after}")
    if mode.startswith("nearest") and apart is None and dims.mod(after, input.shape[axis]) == 0:
        return repeat_interleave(input, dims.floordiv(after, input.shape[axis]), axis)  # type: ignore[arg-type]
    before = known_size(input, axis, name)
    if type(after) is not int or before < 1:
        raise OpError(f"{name}: dimension {axis} cannot go from size {before} to {after}")
    shape = (after, *[1] * (len(input.shape) - axis - 1))
    kind, total = dtypes.get(input.dtype).numpy, None
    for index, weight in _taps(mode, _positions(mode, before, after, apart, align_corners), before):
        part = F.take(input, np.clip(index, 0, before - 1).astype(np.int32), axis=axis)
        part = part if weight is None else F.mul(part, weight.reshape(shape).astype(kind))
        total = part if total is None else F.add(total, part)
    return total
