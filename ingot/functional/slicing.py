"""Slices that reach beyond the edges of a tensor, and what stands there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot.dims import Dimension
from ingot.errors import OpError
from ingot.functional.tensor import Tensor, size_tensor
from ingot.ir import F

# What stands beyond the edges; the words are those of TensorRT's SampleMode.
MODES = ("strict_bounds", "wrap", "clamp", "fill", "reflect")


def mode_of(mode: Any) -> str:
    """The word for a mode, given as such, as a member of an enumeration with that name, or as None.

    Raises:
        OpError: another word.
    """
    word = str(getattr(mode, "name", mode)).lower()
    word = "strict_bounds" if mode is None or word == "default" else word
    if word not in MODES:
        raise OpError(f"slice: mode must be one of {', '.join(MODES)}, not {mode!r}")
    return word


def beyond(
    input: Tensor, starts: Sequence[Dimension], sizes: Sequence[Dimension], strides: Sequence[Dimension], mode: str,
    fill: Any,
) -> Tensor:  # fmt: skip
    """A box that may reach beyond the edges; `mode` is one of MODES, but not the first."""
    rank = len(input.shape)
    if not len(starts) == len(sizes) == len(strides) == rank:
        raise OpError(f"slice: starts, sizes and strides need one entry for each of the {rank} dimensions")
    out, inside = input, None
    for axis, (start, size, stride) in enumerate(zip(starts, sizes, strides, strict=True)):
        if not isinstance(stride, int):
            raise OpError(f"slice: strides are ints, not {stride}")
        whole = input.shape[axis]
        if _within(start, size, stride, whole):
            box = [(0, d, 1) if i != axis else (start, size, stride) for i, d in enumerate(out.shape)]
            out = F.slice(out, *map(tuple, zip(*box, strict=True)))
            continue
        if whole == 0 and size != 0 and mode != "fill":
            raise OpError(f"slice: dimension {axis} has no elements, of which mode {mode!r} could take {size}")
        at = F.iota(size=size, start=start, step=stride, dtype=dtypes.int64)
        if mode != "fill":
            out = F.take(out, _index(at, whole, mode), axis=axis, from_end=True)
            continue
        valid = F.logical_and(F.greater_equal(at, _number(0)), F.less(at, _number(whole)))
        out = F.take(out, F.where(valid, at, _number(-1)), axis=axis)  # which gives zeros
        valid = F.reshape(valid, (size, *[1] * (rank - axis - 1)))
        inside = valid if inside is None else F.logical_and(inside, valid)
    if inside is None or fill is None:
        return out
    value = np.asarray(fill, dtypes.get(input.dtype).numpy) if isinstance(fill, bool | int | float) else fill
    return F.where(inside, out, value)


def _within(start: Dimension, size: Dimension, stride: int, whole: Dimension) -> bool:
    """Whether all elements certainly lie inside."""
    if size == 0 or (start == 0 and stride == 1 and size == whole):
        return start == 0
    last = dims.add(start, dims.mul(dims.add(size, -1), stride))
    rest = (dims.add(whole, -1, dims.mul(n, -1)) for n in (start, last))
    return all(dims.bounds(n)[0] >= 0 for n in (start, last, *rest))


def _number(n: Dimension) -> Any:
    """A size as a scalar operand."""
    return np.int64(n) if isinstance(n, int) else size_tensor(n)


def _index(at: Any, whole: Dimension, mode: str) -> Any:
    """Which element of a dimension stands for each place. Where there are none, an index that is out of range."""
    if mode == "wrap":
        return F.mod(at, _number(dims.maximum(whole, 1)))
    last = dims.add(whole, -1)
    if mode == "clamp":
        return F.minimum(F.maximum(at, _number(0)), _number(last))
    there_and_back = dims.mul(last, 2)
    around = F.mod(F.abs(at), _number(dims.maximum(there_and_back, 1)))
    return F.minimum(around, F.sub(_number(there_and_back), around))
