"""Steps that make a weight of integers and scales: what `dequantize` in the network turns back.

    {"sources": ["w"], "steps": [["scales", 1, {"group": 0, "limit": 127, "in": [0]}],
                                 ["quantize", 1, {"dtype": "int8", "group": 0, "limit": 127, "in": [0, 1]}]]}

The last dimension is what a product sums over; `group` of it share a scale, or all of it (0). Integers go from −limit
to limit, or to the largest of their type; floats of 8 bits (e4m3) are rounded to nearest even. A scale is the largest
magnitude divided by `limit` (`scales`), so that nothing saturates, or the one of several that leaves the smallest
squared error (`fitted_scales`), as few integers want; where all weights are zero it is 1. `float16_scales` rounds
scales before anything is made of them, so that a weight in integers loses nothing by it.

With zero points an integer q stands for (q − zero) · scale: all 2 · limit integers serve the range of a group, which
need not lie around 0. A zero point follows from its scale (`centred_zeros`): the middle of the range lands between the
two integers in the middle. So the scale alone is searched for (`ranged_scales`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from ingot import dtypes
from ingot.errors import RecipeError
from ingot.ir.recipe import Array, Known, ScalesError, Shape, Step, register, require
from ingot.ir.steps.check import is_dtype, is_finite, is_int, is_whole, one

SCALES = (dtypes.float32, dtypes.float16)
FLOAT16_ERROR = np.float32(2.0**-7)  # of a row's largest scale: what rounding its scales to float16 may change
AT_ONCE = 1 << 16  # elements of a weight that are widened at a time: what is made of them stays in a core's cache
TRIED = (-1.0, -0.5, 0.0, 0.5, 1.0)  # what is added to the limit that the largest magnitude is divided by
PARTS = (1.04, 1.0, 0.96, 0.92, 0.88, 0.84, 0.8)  # of a range with its ends, what its integers are spread over


def scales_shape(shape: Shape, group: int) -> Shape:
    """The shape of a weight's scales. Raises RecipeError where groups do not divide its last dimension."""
    require(len(shape) > 0 and 0 not in shape, f"a weight with elements is needed, not {list(shape)}")
    require(not group or shape[-1] % group == 0, f"groups of {group} do not divide the {shape[-1]} inputs of a weight")
    return (*shape[:-1], shape[-1] // group if group else 1)


def _scales_infer(known: Sequence[Known], group: int, limit: int) -> Known:
    dtype, shape = one(known)
    require(dtype.is_float, f"a weight of {dtype.name} has no scales")
    require(limit > 0, "scales for integers up to 0 are none")
    return dtypes.float32, scales_shape(shape, group)


def _quantize_infer(known: Sequence[Known], dtype: str, group: int, limit: int, count: int) -> Known:
    wanted = "a weight and its scales" if count == 2 else "a weight, its scales and its zero points"
    require(len(known) == count, f"takes {wanted}, not {len(known)} operands")
    target = dtypes.get(dtype)
    if target is dtypes.float8_e4m3fn:
        most = dtypes.MOST_FLOAT8
        require(limit == most and count == 2, f"{dtype} goes up to {most}, and has no zero points")
    else:
        require(target.kind == "int" and 0 < limit <= 2 ** (target.bits - 1), f"{limit} does not fit {dtype}")
        require(target.bits <= 8, f"weights are stored in integers of at most 8 bits, not as {dtype}")
    (_, shape), scales, *zeros = known
    _require_scales(known[0], scales, group, limit)
    for kind, other in zeros:
        require(kind is dtypes.int8 and other == scales[1], f"its zero points are {kind.name}{list(other)}")
    return target, shape


def _require_scales(weight: Known, scales: Known, group: int, limit: int) -> None:
    _, shape = _scales_infer([weight], group, limit)
    require(scales[0] in SCALES and scales[1] == shape, f"its scales are {scales[0].name}{list(scales[1])}")


def _blocks(weight: Array, group: int) -> Iterator[tuple[slice, Array]]:
    """Rows of a weight as float32 [rows, groups, group], a few at a time, which may be written to."""
    rows = weight.reshape(-1, weight.shape[-1])
    step = max(1, AT_ONCE // weight.shape[-1])
    for begin in range(0, len(rows), step):
        some = slice(begin, begin + step)
        wide = rows[some].astype(np.float32)
        yield some, wide.reshape(len(wide), -1, group or weight.shape[-1])


def _scales_apply(arrays: Sequence[Array], group: int, limit: int, *, of: Callable[[Array, int], Array]) -> Array:
    """What `of` gives for the groups of a few rows at a time."""
    (weight,) = arrays
    found = np.empty(scales_shape(weight.shape, group), np.float32)
    flat = found.reshape(-1, found.shape[-1])
    for rows, wide in _blocks(weight, group):
        flat[rows] = of(wide, limit)
    return found


def _largest(wide: Array, limit: int) -> Array:
    """The scale of each group with which the largest magnitude lands at the limit."""
    scales: Array = np.abs(wide).max(-1)
    _check_finite(scales)
    scales /= np.float32(limit)
    scales[scales == 0] = 1
    return scales


def _check_finite(magnitudes: Array) -> None:
    if not np.isfinite(magnitudes).all():
        raise RecipeError("weights that are not finite have no scale: store them as they are (weights same)")


def _fitted(wide: Array, limit: int) -> Array:
    """The scale of each group w: with the integers q = w / s rounded, the best one is w·q / q·q, and what it leaves of
    w² is the smaller, the larger (w·q)² / q·q is. The largest magnitude lands at −limit, or a little below or above."""
    peak = np.take_along_axis(wide, np.abs(wide).argmax(-1, keepdims=True), -1)
    _check_finite(peak)
    peak[peak == 0] = 1
    wide = wide / peak  # so that neither squares nor reciprocals leave float32's range
    best, scales, whole = (np.zeros(like.shape, np.float32) for like in (peak[..., 0], peak[..., 0], wide))
    for more in TRIED:
        np.multiply(wide, np.float32(-limit - more), out=whole)
        np.clip(np.rint(whole, out=whole), -limit, limit - 1, out=whole)
        product, square = (np.einsum("rgi,rgi->rg", x, whole) for x in (wide, whole))
        square[square == 0] = 1
        gain = product * product / square
        better = gain > best
        best[better], scales[better] = gain[better], (product / square)[better]
    scales *= peak[..., 0]
    scales[scales == 0] = 1  # all are zero, or so small that their scale is
    return scales


def _zeros_infer(known: Sequence[Known], group: int, limit: int) -> Known:
    require(len(known) == 2, f"takes a weight and its scales, not {len(known)} operands")
    _require_scales(known[0], known[1], group, limit)
    require(limit <= 64, f"zero points of integers from -{limit} are int8, which ends at 127")
    return dtypes.int8, known[1][1]


def _range(wide: Array) -> tuple[Array, Array]:
    """The lowest and the highest of each group and 0, which is then an integer itself."""
    low, high = np.minimum(wide.min(-1), 0), np.maximum(wide.max(-1), 0)
    _check_finite(low)
    _check_finite(high)
    return low, high


def _centred(low: Array, high: Array, scales: Array, limit: int) -> Array:
    """The zero points with which the middle of a range lands at −1/2, held in the integers from −limit."""
    zeros = np.rint(np.float32(-0.5) - (low / scales + high / scales) * np.float32(0.5))
    return np.clip(zeros, -limit, limit - 1)


def _ranged(wide: Array, limit: int) -> Array:
    """The scale of each group that leaves the smallest squared error with the zero point that follows from it: of those
    with which so many parts of the range are told apart."""
    low, high = _range(wide)
    unit = np.maximum(high, -low)  # so that neither squares nor reciprocals leave float32's range
    unit[unit == 0] = 1
    wide, low, high = wide / unit[..., None], low / unit, high / unit
    whole = high / np.float32(2 * limit - 1) - low / np.float32(2 * limit - 1)
    none = whole == 0
    whole[none] = 1
    best, scales = np.full(whole.shape, np.inf, np.float32), whole.copy()
    for part in PARTS:
        tried = whole * np.float32(part)
        zeros = _centred(low, high, tried, limit)[..., None]
        q = np.rint(wide / tried[..., None])
        np.clip(q, -limit - zeros, limit - 1 - zeros, out=q)
        q *= tried[..., None]
        q -= wide
        left = np.einsum("rgi,rgi->rg", q, q)
        better = left < best
        best[better], scales[better] = left[better], tried[better]
    scales *= unit
    scales[none | (scales == 0)] = 1  # all are zero, or so small that their scale is
    return scales


def _zeros_apply(arrays: Sequence[Array], group: int, limit: int) -> Array:
    weight, scales = arrays
    found = np.empty(scales.shape, np.int8)
    flat, by_row = found.reshape(-1, found.shape[-1]), scales.reshape(-1, scales.shape[-1]).astype(np.float32)
    for rows, wide in _blocks(weight, group):
        flat[rows] = _centred(*_range(wide), by_row[rows], limit).astype(np.int8)
    return found


def _quantize_apply(arrays: Sequence[Array], dtype: str, group: int, limit: int) -> Array:
    weight, scales, *zeros = arrays
    target = dtypes.get(dtype)
    if target is dtypes.float8_e4m3fn:
        return _floats_of_8(weight, scales, group)
    found, most = np.empty(weight.shape, target.numpy), min(limit, 2 ** (target.bits - 1) - 1)
    flat, by_row = found.reshape(-1, found.shape[-1]), scales.reshape(-1, scales.shape[-1], 1).astype(np.float32)
    added = zeros[0].reshape(by_row.shape).astype(np.float32) if zeros else None
    for rows, wide in _blocks(weight, group):
        np.divide(wide, by_row[rows], out=wide)
        np.rint(wide, out=wide)
        if added is not None:
            wide += added[rows]
        np.clip(wide, -limit, most, out=wide)
        flat[rows] = wide.reshape(len(wide), -1).astype(np.int8).astype(found.dtype, copy=False)
    return found


def _floats_of_8(weight: Array, scales: Array, group: int) -> Array:
    """Weights in their scales as float8, nearest even; rounding may have brought one beyond the largest number."""
    found = np.empty(weight.shape, dtypes.float8_e4m3fn.numpy)
    flat, by_row = found.reshape(-1, found.shape[-1]), scales.reshape(-1, scales.shape[-1], 1)
    for rows, wide in _blocks(weight, group):
        held = np.clip(wide / by_row[rows], -dtypes.MOST_FLOAT8, dtypes.MOST_FLOAT8)
        flat[rows] = held.reshape(len(wide), -1).astype(found.dtype)
    return found


def _float16_infer(known: Sequence[Known]) -> Known:
    dtype, shape = one(known)
    require(dtype is dtypes.float32 and len(shape) > 0, f"scales are float32, not {dtype.name}{list(shape)}")
    return dtypes.float16, shape


def _float16_apply(arrays: Sequence[Array]) -> Array:
    """Nearest even. Only scales that are far smaller than others of their row may change by more than about 1 %. A 1
    is not one of those others: groups of zeros have it, beside weights of any size.
    """
    (scales,) = arrays
    with np.errstate(over="ignore"):
        found = scales.astype(np.float16)
    found[found == 0] = np.finfo(np.float16).smallest_subnormal
    largest = np.abs(scales).max(-1, initial=0, where=scales != 1)
    lost = np.abs(found.astype(np.float32) - scales).max(-1, initial=0) > largest * FLOAT16_ERROR
    if lost.any():
        raise ScalesError(
            f"float16 does not hold scales of these weights, such as {largest[lost][0]:.3g}: build the engine again, "
            "which then has float32 scales of them"
        )
    return found


_GROUPS = {"group": is_int, "limit": is_int}
register(Step("scales", 1, _scales_infer, partial(_scales_apply, of=_largest), _GROUPS))
register(Step("fitted_scales", 1, _scales_infer, partial(_scales_apply, of=_fitted), _GROUPS))
register(Step("ranged_scales", 1, _scales_infer, partial(_scales_apply, of=_ranged), _GROUPS))
register(Step("centred_zeros", 1, _zeros_infer, _zeros_apply, _GROUPS))
register(Step("float16_scales", 1, _float16_infer, _float16_apply, {}))
_QUANTIZE = {"dtype": is_dtype, **_GROUPS}
register(Step("quantize", 1, partial(_quantize_infer, count=2), _quantize_apply, _QUANTIZE))
register(Step("quantize_to_zeros", 1, partial(_quantize_infer, count=3), _quantize_apply, _QUANTIZE))


# dequantize: (q − zero) · scale in float32, rounded once, by one scale or those of a second operand that broadcasts.
def _dequantize_infer(known: Sequence[Known], dtype: str, zero: int, scale: float) -> Known:
    require(len(known) in (1, 2), f"takes integers and maybe their scales, not {len(known)} operands")
    (kind, shape), *scales = known
    narrow = kind.is_integer or (kind is dtypes.float8_e4m3fn and zero == 0)
    require(narrow and dtypes.get(dtype).is_float, f"{kind.name} as {dtype} is no dequantised weight")
    for _, other in scales:
        fits = len(other) <= len(shape) and all(n in (1, m) for n, m in zip(other[::-1], shape[::-1], strict=False))
        require(fits, f"scales {list(other)} do not broadcast to {list(shape)}")
    return dtypes.get(dtype), shape


def _dequantize_apply(arrays: Sequence[Array], dtype: str, zero: int, scale: float) -> Array:
    q, *scales = arrays
    by = scales[0].astype(np.float32) if scales else np.float32(scale)
    whole = q if dtypes.get(q.dtype).is_float else q.astype(np.int64) - zero
    with np.errstate(all="ignore"):
        return np.asarray((whole.astype(np.float32) * by).astype(dtypes.get(dtype).numpy))


# zero_products: −scale · zero, of scales and int8 zero points, what the sums of groups are multiplied with; float32.
def _zero_products_infer(known: Sequence[Known]) -> Known:
    require(len(known) == 2, f"takes scales and zero points, not {len(known)} operands")
    (dtype, shape), (kind, other) = known
    require(dtype in SCALES and kind is dtypes.int8 and shape == other,
            f"scales and int8 zero points of one shape are needed, not {dtype.name}{list(shape)} and "
            f"{kind.name}{list(other)}")  # fmt: skip
    return dtypes.float32, shape


def _zero_products_apply(arrays: Sequence[Array]) -> Array:
    scales, zeros = arrays
    return np.asarray(-scales.astype(np.float32) * zeros.astype(np.float32))


# signed: uint8 less 128, as int8.
def _signed_infer(known: Sequence[Known]) -> Known:
    dtype, shape = one(known)
    require(dtype is dtypes.uint8, f"{dtype.name} has a sign, or is none of 8 bits")
    return dtypes.int8, shape


# row_sums: the sum of a weight's int8 for each output, the first dimension, times a whole number, as float32.
def _row_sums_infer(known: Sequence[Known], factor: int) -> Known:
    dtype, shape = one(known)
    require(dtype is dtypes.int8 and len(shape) > 0, f"sums of rows of int8 are needed, not {dtype.name}{list(shape)}")
    return dtypes.float32, shape[:1]


def _row_sums_apply(arrays: Sequence[Array], factor: int) -> Array:
    (weight,) = arrays
    total = weight.reshape(weight.shape[0], -1).sum(1, dtype=np.int64) * factor
    return np.asarray(total.astype(np.float32))


register(
    Step("dequantize", 1, _dequantize_infer, _dequantize_apply,
         {"dtype": is_dtype, "zero": is_whole, "scale": is_finite})
)  # fmt: skip
register(Step("signed", 1, _signed_infer, lambda xs: (xs[0] ^ np.uint8(128)).view(np.int8), {},
              lambda array, known: [array.view(np.uint8) ^ np.uint8(128)]))  # fmt: skip
register(Step("zero_products", 1, _zero_products_infer, _zero_products_apply, {}))
register(Step("row_sums", 1, _row_sums_infer, _row_sums_apply, {"factor": is_whole}))
