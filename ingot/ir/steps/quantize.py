"""Steps that make a weight of integers and scales: what `dequantize` in the network turns back.

    {"sources": ["w"], "steps": [["scales", 1, {"group": 0, "limit": 127, "in": [0]}],
                                 ["quantize", 1, {"dtype": "int8", "group": 0, "limit": 127, "in": [0, 1]}]]}

The last dimension is what a product sums over; `group` of it share a scale, or all of it (0). A scale is the largest
magnitude divided by `limit`, so that nothing saturates; where all are zero it is 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ingot import dtypes
from ingot.errors import RecipeError
from ingot.ir.recipe import Array, Known, Shape, Step, register, require
from ingot.ir.steps.check import is_dtype, is_int, one

AT_ONCE = 1 << 20  # elements of a weight that are widened at a time; bounds the float32 intermediates


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


def _quantize_infer(known: Sequence[Known], dtype: str, group: int, limit: int) -> Known:
    require(len(known) == 2, f"takes a weight and its scales, not {len(known)} operands")
    target = dtypes.get(dtype)
    require(target.kind == "int" and 0 < limit < 2 ** (target.bits - 1), f"{limit} does not fit {dtype}")
    require(target.bits <= 8, f"weights are stored in integers of at most 8 bits, not as {dtype}")
    (_, shape), scales = known
    require(scales == _scales_infer(known[:1], group, limit), f"its scales are {scales[0].name}{list(scales[1])}")
    return target, shape


def _blocks(weight: Array, group: int) -> Iterator[tuple[slice, Array]]:
    """Rows of a weight as float32 [rows, groups, group], a few at a time."""
    rows = weight.reshape(-1, weight.shape[-1])
    step = max(1, AT_ONCE // weight.shape[-1])
    for begin in range(0, len(rows), step):
        some = slice(begin, begin + step)
        wide = rows[some].astype(np.float32)
        yield some, wide.reshape(len(wide), -1, group or weight.shape[-1])


def _scales_apply(arrays: Sequence[Array], group: int, limit: int) -> Array:
    weight = arrays[0]
    found = np.empty(scales_shape(weight.shape, group), np.float32)
    flat = found.reshape(-1, found.shape[-1])
    for rows, wide in _blocks(weight, group):
        flat[rows] = np.abs(wide).max(-1)
    if not np.isfinite(found).all():
        raise RecipeError("weights that are not finite have no scale: store them as they are (weights same)")
    found /= np.float32(limit)
    found[found == 0] = 1
    return found


def _quantize_apply(arrays: Sequence[Array], dtype: str, group: int, limit: int) -> Array:
    weight, scales = arrays
    found = np.empty(weight.shape, dtypes.get(dtype).numpy)
    flat, by_row = found.reshape(-1, found.shape[-1]), scales.reshape(-1, scales.shape[-1], 1)
    for rows, wide in _blocks(weight, group):
        whole = np.clip(np.rint(wide / by_row[rows]), -limit, limit)
        flat[rows] = whole.reshape(len(whole), -1).astype(np.int8).astype(found.dtype)
    return found


register(Step("scales", 1, _scales_infer, _scales_apply, {"group": is_int, "limit": is_int}))
register(Step("quantize", 1, _quantize_infer, _quantize_apply, {"dtype": is_dtype, "group": is_int, "limit": is_int}))
