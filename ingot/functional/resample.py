"""Images, signals and volumes at another size, or at the places of a grid."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from ingot import dims, dtypes
from ingot.dims import Dimension
from ingot.errors import OpError
from ingot.functional.shape import repeat_interleave
from ingot.functional.spatial import adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d
from ingot.functional.tensor import Tensor, size_tensor
from ingot.ir import F, Value

_RANKS = {"nearest": (1, 2, 3), "nearest-exact": (1, 2, 3), "area": (1, 2, 3), "linear": (1,), "bilinear": (2,),
          "trilinear": (3,), "bicubic": (2,)}  # fmt: skip
_POOLS = {1: adaptive_avg_pool1d, 2: adaptive_avg_pool2d, 3: adaptive_avg_pool3d}
MAX_UNDER = 1 << 10  # the denominator of a factor of sizes that only a run knows
_TRIED = 1 << 20  # such sizes, for which it is known that float64 arithmetic says what the fraction says
_CUBIC = -0.75  # the parameter of the cubic kernel that torch uses


class Target(NamedTuple):
    """A dimension's new size and, where the factor counts and not the sizes, how far apart two neighbours are read."""

    size: Dimension
    apart: Any = None


def _targets(name: str, input: Tensor, size: Any, scale_factor: Any, recompute: bool) -> list[Target]:
    """For each spatial dimension where it goes."""
    rank = len(input.shape) - 2
    if (size is None) == (scale_factor is None):
        raise OpError(f"{name}: give either size or scale_factor")
    given = scale_factor if size is None else size
    each = list(given) if isinstance(given, Sequence) else [given] * rank
    if len(each) != rank:
        raise OpError(f"{name}: {len(each)} sizes or factors for {rank} spatial dimensions")
    if size is not None:
        return [Target(n) for n in each]
    found: list[Target] = []
    for whole, factor in zip(input.shape[2:], each, strict=True):
        if not 0 < factor < float("inf"):
            raise OpError(f"{name}: scale_factor must be above 0 and finite, not {factor}")
        if float(factor).is_integer():
            found.append(Target(dims.mul(whole, int(factor))))
            continue
        after = int(whole * factor) if isinstance(whole, int) else share(name, whole, factor)
        found.append(Target(after, None if recompute else 1 / factor))
    return found


def share(name: str, whole: Dimension, factor: float) -> Dimension:
    """⌊whole · factor⌋ of a size that only a run knows, as float64 arithmetic has it: 1.7 · whole is 17 · whole // 10.

    Raises:
        OpError: no fraction of small numbers says the same for all sizes below 2^20.
    """
    over, under = Fraction(float(factor)).limit_denominator(MAX_UNDER).as_integer_ratio()
    refused = f"{name}: a factor of {factor} needs sizes that are known when the network is recorded"
    if abs(over / under - factor) > abs(factor) * 2.0**-52 or not 0 < over < 1 << 20:
        raise OpError(refused)
    sizes = np.arange(0, _TRIED, under)  # elsewhere the product is no whole number, and not that close to one
    wrong = np.flatnonzero(np.floor(sizes * float(factor)) != sizes // under * over)
    if len(wrong):
        raise OpError(f"{refused}: at a size of {sizes[wrong[0]]} it is rounded as no fraction is")
    return dims.floordiv(dims.mul(whole, over), under)


def _number(size: Dimension) -> Any:
    """A size as a float32 operand."""
    if isinstance(size, int):
        return np.array(size, np.float32)
    return F.cast(size_tensor(size), dtypes.float32)


def _rounded(x: float) -> float:
    return float(np.float32(x))


def _step(before: Dimension, to: Target, align_corners: bool) -> Any:
    """How far apart in the input two neighbours of the result lie, float32 as in torch."""
    if align_corners:
        if isinstance(before, int) and isinstance(to.size, int):
            return _rounded((before - 1) / (to.size - 1) if to.size > 1 else 0.0)
        return F.div(_number(dims.add(before, -1)), F.maximum(_number(dims.add(to.size, -1)), 1.0))
    if to.apart is not None:
        return to.apart
    if isinstance(before, int) and isinstance(to.size, int):
        return _rounded(before / to.size)
    factor = dims.floordiv(to.size, before)
    if isinstance(factor, int) and dims.mul(before, factor) == to.size:
        return _rounded(1 / factor)
    return F.div(_number(before), _number(to.size))


def _apart(mode: str, rank: int, before: Dimension, to: Target) -> Any:
    """How far apart neighbours lie by a factor.

    Where the sizes come out equal, or for the nearest pixel twice as large, torch goes by the sizes
    (ATen/native/UpSample.h: compute_source_index_and_lambda, nearest_neighbor_compute_source_index; the nearest of
    signals and volumes takes another road there, and goes by the factor).
    """
    nearest = (1, 2) if rank == 2 else ()
    step: Any = _rounded(to.apart)
    for times in {"nearest": nearest, "linear": (1,), "bilinear": (1,), "trilinear": (1,)}.get(mode, ()):
        wanted = dims.mul(before, times)
        if isinstance(wanted, int) and isinstance(to.size, int):
            step = 1 / times if wanted == to.size else step
        else:
            same = F.equal(_number(wanted), _number(to.size))
            step = F.where(same, np.array(1 / times, np.float32), step)
    return step


def _positions(mode: str, before: Dimension, to: Target, align_corners: bool) -> Any:
    """Where in the input each element of the result lies."""
    at, step = F.iota(to.size, dtype=dtypes.float32), _step(before, to, align_corners)
    if align_corners or mode == "nearest":
        return F.mul(at, step)
    centre = F.mul(F.add(at, 0.5), step)
    return centre if mode == "nearest-exact" else F.sub(centre, 0.5)


def _taps(mode: str, at: Any, last: Any) -> list[tuple[Any, Any]]:
    """Pairs of indices and weights whose sum is the result along one dimension; indices outside mean the edge."""
    if mode.startswith("nearest"):
        return [(F.floor(at), None)]
    if mode != "bicubic":
        at = F.maximum(at, 0.0)
        low = F.minimum(F.floor(at), last)
        t = F.sub(at, low)
        return [(low, F.sub(1.0, t)), (F.add(low, 1.0), t)]
    low, a = F.floor(at), _CUBIC
    t = F.sub(at, low)

    def polynomial(d: Any, *coefficients: float) -> Any:
        """Its value at d, the highest coefficient first."""
        total: Any = coefficients[0]
        for coefficient in coefficients[1:]:
            total = F.add(F.mul(d, total), coefficient)
        return total

    near, far = (a + 2, -(a + 3), 0.0, 1.0), (a, -5 * a, 8 * a, -4 * a)
    weights = [(-1.0, F.add(t, 1.0), far), (0.0, t, near), (1.0, F.sub(1.0, t), near), (2.0, F.sub(2.0, t), far)]
    return [(F.add(low, shift), polynomial(d, *kernel)) for shift, d, kernel in weights]


def interpolate(
    input: Tensor,
    size: Dimension | Sequence[Dimension] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = False,
    recompute_scale_factor: bool | None = False,
    antialias: bool = False,
) -> Tensor:
    """[N, C, …] at another size of its spatial dimensions, as torch computes it.

    Args:
        size, scale_factor: the new sizes, or by how much they grow; one number for all or one each.
        mode: "nearest", "nearest-exact", "linear", "bilinear", "trilinear", "bicubic", or "area", the means of
            adaptive_avg_pool.
        align_corners: whether the corner elements' centres (not their outer edges) fall on each other.
        recompute_scale_factor: whether a factor counts only for the sizes, which then give the factor.
        antialias: only False.

    Raises:
        OpError: another mode or one for another rank; both or neither of size and scale_factor; a factor whose sizes
            cannot be told from ones that only a run knows.
    """
    name, rank = "interpolate", len(input.shape) - 2
    if mode not in _RANKS or rank not in _RANKS[mode]:
        known = ", ".join(m for m in _RANKS if rank in _RANKS[m]) or "none"
        raise OpError(f"{name}: no mode {mode!r} for {list(input.shape)}, [N, C, …]; there it knows {known}")
    nearest = mode.startswith("nearest")
    if antialias or (align_corners and (nearest or mode == "area")):
        raise OpError(f"{name}: {'antialias' if antialias else f'align_corners with mode {mode!r}'} is not supported")
    if not nearest and dtypes.get(input.dtype) not in dtypes.FLOATS:
        raise OpError(f"{name}: mode {mode!r} needs floats; cast the input first")
    targets = _targets(name, input, size, scale_factor, bool(recompute_scale_factor))
    if mode == "area":
        return _POOLS[rank](input, [to.size for to in targets])
    return resized(input, targets, mode, bool(align_corners))


def resized(input: Tensor, targets: Sequence[Target], mode: str, align_corners: bool) -> Tensor:
    """`interpolate` with a target for every spatial dimension."""
    kind, sizes = dtypes.get(input.dtype), tuple(to.size for to in targets)
    if sizes == tuple(input.shape[2:]) and all(to.apart is None for to in targets):
        return input
    for axis, (before, after) in enumerate(zip(input.shape[2:], sizes, strict=True), 2):
        if any(isinstance(n, int) and n < 1 for n in (before, after)):
            raise OpError(f"interpolate: dimension {axis} cannot go from size {before} to {after}")
    if kind in (dtypes.float32, dtypes.bfloat16, dtypes.float16) and all(to.apart is None for to in targets):
        word = {"bilinear": "linear", "trilinear": "linear", "bicubic": "cubic"}.get(mode, mode.replace("-", "_"))
        return F.resize(input, sizes=sizes, mode=word, align_corners=align_corners)
    pairs = zip(input.shape[2:], targets, strict=True)
    targets = [
        to if to.apart is None else to._replace(apart=_apart(mode, len(targets), before, to)) for before, to in pairs
    ]
    narrow = not mode.startswith("nearest") and dtypes.get(input.dtype).bits < 32
    out = F.cast(input, dtypes.float32) if narrow else input
    out = stepped(out, targets, mode, align_corners)
    return F.cast(out, input.dtype) if narrow else out


def stepped(input: Tensor, targets: Sequence[Target], mode: str, align_corners: bool = False) -> Tensor:
    """Each spatial dimension in turn, by the steps that the targets say, or by the sizes where they say none."""
    for axis, to in enumerate(targets, 2):
        input = _along(input, axis, to, mode, align_corners)
    return input


def _along(input: Tensor, axis: int, to: Target, mode: str, align_corners: bool) -> Tensor:
    """One dimension at its new size."""
    before, after = input.shape[axis], to.size
    if after == before and to.apart is None:
        return input
    if mode.startswith("nearest") and to.apart is None:
        factor = dims.floordiv(after, before)
        if isinstance(factor, int) and dims.mul(before, factor) == after:
            return repeat_interleave(input, factor, axis)
    shape = (after, *[1] * (len(input.shape) - axis - 1))
    last: Any = float(before - 1) if isinstance(before, int) else _number(dims.add(before, -1))
    total: Any = None
    for index, weight in _taps(mode, _positions(mode, before, to, align_corners), last):
        inside = F.cast(F.minimum(F.maximum(index, 0.0), last), dtypes.int32)
        part = F.take(input, inside, axis=axis)
        part = part if weight is None else F.mul(part, F.cast(F.reshape(weight, shape), input.dtype))
        total = part if total is None else F.add(total, part)
    return total


_KERNELS = {"bilinear": 1.0, "bicubic": 2.0}  # how far they reach


def smoothed(input: Tensor, axis: int, after: Dimension, mode: str, apart: float | None = None,
             align_corners: bool = False) -> Tensor:  # fmt: skip
    """One dimension of float32 at another size, antialiased: the kernel is as wide as a step is, where that is above
    1. By a product with a matrix of weights [before, after], which a run computes.

    Args:
        mode: "bilinear", or "bicubic" (of parameter −0.5, which torch takes here).
        apart: how far apart neighbours are read, where the sizes do not say it.
    """
    before, reach = input.shape[axis], _KERNELS[mode]
    step = _step(before, Target(after, apart), align_corners)
    wide = F.maximum(step, 1.0) if isinstance(step, Value) else max(step, 1.0)
    centre = F.mul(F.add(F.iota(after, dtype=dtypes.float32), 0.5), step)
    at = F.reshape(F.iota(before, dtype=dtypes.float32), (before, 1))
    edge = F.mul(F.mul(centre, 0.0) + reach, wide)
    low = F.floor(F.maximum(F.add(F.sub(centre, edge), 0.5), 0.0))
    high = F.minimum(F.floor(F.add(F.add(centre, edge), 0.5)), _number(before))
    distance = F.abs(F.div(F.add(F.sub(at, centre), 0.5), wide))
    if mode == "bilinear":
        found = F.maximum(F.sub(1.0, distance), 0.0)
    else:
        near = F.add(F.mul(F.mul(F.sub(F.mul(distance, 1.5), 2.5), distance), distance), 1.0)
        far = F.mul(F.sub(F.mul(F.add(F.mul(F.sub(distance, 5.0), distance), 8.0), distance), 4.0), -0.5)
        found = F.where(F.less(distance, 1.0), near, F.where(F.less(distance, 2.0), far, F.mul(far, 0.0)))
    inside = F.logical_and(F.greater_equal(at, low), F.less(at, high))
    found = F.where(inside, found, F.mul(found, 0.0))
    found = F.div(found, F.reduce_sum(found, axes=(0,), keepdims=True))
    rank = len(input.shape)
    order = (*(i for i in range(rank) if i != axis), axis)
    product = F.matmul(F.permute(input, order), found)
    return F.permute(product, tuple(order.index(i) for i in range(rank)))


_GRID_MODES = {"nearest": "nearest", "bilinear": "linear", "bicubic": "cubic"}


def grid_sample(
    input: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:
    """Images [N, C, H, W] or volumes [N, C, D, H, W] at the places of a grid [N, *S', 2 or 3] → [N, C, *S'].

    Args:
        grid: places from −1 to 1, the last dimension's first; floats, computed on in float32.
        mode: "nearest", "bilinear" (between all neighbours, of volumes too) or "bicubic" (images).
        padding_mode: what lies outside: "zeros", the "border" elements, or the image turned back ("reflection").
        align_corners: whether −1 and 1 are the centres of the first and last elements; else their outer edges.

    Raises:
        OpError: shapes, dtypes or modes that do not fit.
    """
    if mode not in _GRID_MODES:
        raise OpError(f"grid_sample: mode must be one of {', '.join(_GRID_MODES)}, not {mode!r}")
    places = grid if dtypes.get(grid.dtype) is dtypes.float32 else F.cast(grid, dtypes.float32)
    return F.grid_sample(
        input, places, mode=_GRID_MODES[mode], beyond=padding_mode, align_corners=bool(align_corners)
    )
