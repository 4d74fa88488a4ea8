"""Steps that move elements: none changes a number, and most can be undone bit for bit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from reprlib import repr as brief
from typing import Any

import numpy as np

from ingot.errors import RecipeError
from ingot.ir.recipe import Array, Known, Shape, Step, register, require
from ingot.ir.steps.check import is_int, is_ints, is_shape, one


# concat: operands joined along an axis.
def _concat_infer(known: Sequence[Known], axis: int) -> Known:
    dtype, shape = known[0]
    require(axis < len(shape), f"axis {axis} is out of range for rank {len(shape)}")
    for other_dtype, other in known[1:]:
        same = (
            other_dtype == dtype
            and len(other) == len(shape)
            and all(a == b for d, (a, b) in enumerate(zip(shape, other, strict=True)) if d != axis)
        )
        require(
            same, f"operands disagree: {dtype.name}{list(shape)} and {other_dtype.name}{list(other)} along axis {axis}"
        )
    return dtype, shape[:axis] + (sum(s[axis] for _, s in known),) + shape[axis + 1 :]


def _concat_inverse(array: Array, known: Sequence[Known], axis: int) -> list[Array]:
    return np.split(array, np.cumsum([shape[axis] for _, shape in known])[:-1], axis)


# transpose: a permutation of the dims.
def _transpose_infer(known: Sequence[Known], axes: Shape) -> Known:
    dtype, shape = one(known)
    require(
        sorted(axes) == list(range(len(shape))), f"axes {list(axes)} are not a permutation of the {len(shape)} dims"
    )
    return dtype, tuple(shape[a] for a in axes)


# reshape: the same elements in row-major order.
def _reshape_infer(known: Sequence[Known], shape: Shape) -> Known:
    dtype, old = one(known)
    require(math.prod(old) == math.prod(shape), f"{list(old)} cannot be reshaped to {list(shape)}")
    return dtype, shape


# pad: zeros behind each dim.
def _pad_infer(known: Sequence[Known], after: Shape) -> Known:
    dtype, shape = one(known)
    require(len(after) == len(shape), f"pad needs one width per dim, {len(shape)}, not {len(after)}")
    return dtype, tuple(s + a for s, a in zip(shape, after, strict=True))


# slice: a box; how one source becomes several weights.
def _slice_infer(known: Sequence[Known], starts: Shape, sizes: Shape) -> Known:
    dtype, shape = one(known)
    fits = len(starts) == len(sizes) == len(shape) and all(
        a + n <= s for a, n, s in zip(starts, sizes, shape, strict=True)
    )
    require(fits, f"box at {list(starts)} of {list(sizes)} does not lie in {list(shape)}")
    return dtype, sizes


def _slice_apply(arrays: Sequence[Array], starts: Shape, sizes: Shape) -> Array:
    return arrays[0][tuple(slice(a, a + n) for a, n in zip(starts, sizes, strict=True))]


# take: elements along an axis, chosen by index, in that order.
def _take_infer(known: Sequence[Known], axis: int, indices: Shape) -> Known:
    dtype, shape = one(known)
    if axis >= len(shape) or max(indices, default=-1) >= shape[axis]:
        raise RecipeError(f"indices {brief(list(indices))} do not lie along axis {axis} of {list(shape)}")
    return dtype, (*shape[:axis], len(indices), *shape[axis + 1 :])


# diagonal: [n, m, …] as [n, m, m, …], x[i, j] at [i, j, j]; zeros elsewhere.
def _diagonal_infer(known: Sequence[Known]) -> Known:
    dtype, shape = one(known)
    require(len(shape) >= 2, f"diagonal needs two dims, not {list(shape)}")
    return dtype, (*shape[:2], *shape[1:])


def _diagonal_apply(arrays: Sequence[Array]) -> Array:
    (x,) = arrays
    made = np.zeros((*x.shape[:2], *x.shape[1:]), x.dtype)
    at = np.arange(x.shape[1])
    made[:, at, at] = x
    return made


def _diagonal_inverse(array: Array, known: Sequence[Known]) -> list[Array]:
    at = np.arange(array.shape[1])
    return [array[:, at, at]]


def _same_dims(array: Array, known: Sequence[Known], **_: Any) -> list[Array]:
    return [array.reshape(known[0][1])]


register(
    Step("concat", 1, _concat_infer, lambda xs, axis: np.concatenate(xs, axis), {"axis": is_int}, _concat_inverse)
)
register(
    Step(
        "transpose", 1, _transpose_infer, lambda xs, axes: xs[0].transpose(axes), {"axes": is_shape},
        lambda array, known, axes: [array.transpose(np.argsort(axes))],
    )
)  # fmt: skip
register(
    Step(
        "reshape",
        1,
        _reshape_infer,
        lambda xs, shape: np.ascontiguousarray(xs[0]).reshape(shape),
        {"shape": is_shape},
        _same_dims,
    )
)
register(
    Step(
        "pad", 1, _pad_infer, lambda xs, after: np.pad(xs[0], [(0, a) for a in after]), {"after": is_shape},
        lambda array, known, after: [_slice_apply([array], (0,) * array.ndim, known[0][1])],
    )
)  # fmt: skip
register(Step("slice", 1, _slice_infer, _slice_apply, {"starts": is_shape, "sizes": is_shape}))
register(
    Step("take", 1, _take_infer, lambda xs, axis, indices: np.take(xs[0], indices, axis),
         {"axis": is_int, "indices": is_ints})
)  # fmt: skip
register(Step("diagonal", 1, _diagonal_infer, _diagonal_apply, {}, _diagonal_inverse))
