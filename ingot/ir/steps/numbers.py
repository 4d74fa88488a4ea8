"""Steps that compute: conversions, and what is folded into a weight."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ingot import dtypes
from ingot.errors import RecipeError
from ingot.ir.recipe import Array, Known, Step, register, require
from ingot.ir.steps.check import is_bool, is_dtype, is_finite, is_int, is_positive, one

LIMITS = {
    dtypes.float16: "65504): build with precision bfloat16 or float32",
    dtypes.float32: "3.4e+38)",
}


# cast: conversion between number formats, round half to even.
def _cast_apply(arrays: Sequence[Array], dtype: str) -> Array:
    array, target = arrays[0], dtypes.get(dtype)
    if array.dtype == target.numpy:
        return array
    with np.errstate(over="ignore"):
        out: Array = array.astype(target.numpy)
    # bfloat16 has float32's range but for the last rounding, and masks are often float32's lowest number.
    if target in LIMITS and np.isinf(out).any():
        lost = np.isfinite(array) & np.isinf(out)
        if lost.any():
            worst = float(np.abs(array[lost].astype(np.float64)).max())
            raise RecipeError(
                f"{int(lost.sum())} weight(s) do not fit {target.name} (largest magnitude {worst:g}, limit "
                f"{LIMITS[target]}"
            )
    return out


# scale: the first operand times a vector along one of its dims, in float32, rounded once: folding of a norm's weight.
def _scale_infer(known: Sequence[Known], axis: int) -> Known:
    require(len(known) == 2, f"takes a tensor and a vector, not {len(known)} operands")
    (dtype, shape), (_, vector) = known
    require(
        axis < len(shape) and vector == (shape[axis],),
        f"a vector of {list(shape)} dim {axis} is needed, not {list(vector)}",
    )
    return dtype, shape


def _scale_apply(arrays: Sequence[Array], axis: int) -> Array:
    array, vector = arrays
    shape = tuple(-1 if d == axis else 1 for d in range(array.ndim))
    return (array.astype(np.float32) * vector.astype(np.float32).reshape(shape)).astype(array.dtype)


# times: a tensor times a number, in float32, rounded once to its type.
def _times_apply(arrays: Sequence[Array], number: float) -> Array:
    return np.asarray((arrays[0].astype(np.float32) * np.float32(number)).astype(arrays[0].dtype))


# reciprocal: 1 / x for each number, in float32, rounded once to its type.
def _reciprocal_apply(arrays: Sequence[Array]) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray((np.float32(1) / arrays[0].astype(np.float32)).astype(arrays[0].dtype))


def _reciprocal_infer(known: Sequence[Known]) -> Known:
    dtype, shape = one(known)
    require(dtype.is_float, f"{dtype.name} has no reciprocals")
    return dtype, shape


# add: the sum of two tensors of one shape, in float32, rounded once to the first one's type.
def _add_infer(known: Sequence[Known]) -> Known:
    require(len(known) == 2, f"takes two tensors, not {len(known)} operands")
    (dtype, shape), (_, other) = known
    require(shape == other, f"takes two tensors of one shape, not {list(shape)} and {list(other)}")
    return dtype, shape


def _add_apply(arrays: Sequence[Array]) -> Array:
    a, b = arrays
    return (a.astype(np.float32) + b.astype(np.float32)).astype(a.dtype)


# norm_scale, norm_shift: batch normalisation as y = x · scale + shift, computed in float64 and rounded to float32.
# Operands: variance, weight?; and mean, scale, bias?, prior? (what was added to x before).
def _vectors_infer(known: Sequence[Known], least: int, most: int) -> Known:
    count = str(least) if least == most else f"{least} to {most}"
    require(least <= len(known) <= most, f"takes {count} vectors, not {len(known)}")
    shape = known[0][1]
    require(len(shape) == 1 and all(other == shape for _, other in known),
            f"needs vectors of one size, not {', '.join(str(list(other)) for _, other in known)}")  # fmt: skip
    return dtypes.float32, shape


def _norm_scale_apply(arrays: Sequence[Array], eps: float) -> Array:
    variance, *weight = (a.astype(np.float64) for a in arrays)
    with np.errstate(all="ignore"):
        return np.asarray((weight[0] if weight else 1.0) / np.sqrt(variance + eps), np.float32)


def _norm_shift_infer(known: Sequence[Known], bias: bool, prior: bool) -> Known:
    return _vectors_infer(known, 2 + bias + prior, 2 + bias + prior)


def _norm_shift_apply(arrays: Sequence[Array], bias: bool, prior: bool) -> Array:
    mean, scale, *rest = (a.astype(np.float64) for a in arrays)
    with np.errstate(all="ignore"):
        shift = ((rest[-1] if prior else 0.0) - mean) * scale
        return np.asarray(shift + rest[0] if bias else shift, np.float32)


register(Step("cast", 1, lambda known, dtype: (dtypes.get(dtype), one(known)[1]), _cast_apply, {"dtype": is_dtype}))
register(Step("times", 1, lambda known, number: one(known), _times_apply, {"number": is_finite}))
register(Step("reciprocal", 1, _reciprocal_infer, _reciprocal_apply, {}))
register(Step("add", 1, _add_infer, _add_apply, {}))
register(Step("scale", 1, _scale_infer, _scale_apply, {"axis": is_int}))
register(Step("norm_scale", 1, lambda known, eps: _vectors_infer(known, 1, 2), _norm_scale_apply, {"eps": is_positive}))
register(Step("norm_shift", 1, _norm_shift_infer, _norm_shift_apply, {"bias": is_bool, "prior": is_bool}))
