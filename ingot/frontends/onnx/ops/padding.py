"""ONNX ops that put elements around a tensor."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ingot import dims
from ingot.dims import Dimension
from ingot.frontends.onnx.ops.common import axes_at, few, integers, number, size_value
from ingot.frontends.onnx.ops.shape import part
from ingot.frontends.onnx.table import Call, Unknown, onnx
from ingot.frontends.table import Ints, MaybeInts, MaybeTensor, Result, Tensor, Unsupported
from ingot.ir import F, Value
from ingot.ir.sizes import as_size

_MODES = {"constant", "reflect", "edge", "wrap"}


def padded(x: Any, before: Sequence[Dimension], after: Sequence[Dimension], mode: str, value: Any) -> Any:
    """x padded, or cut where a count is negative. Counts that are sizes are for the mode constant alone."""
    if mode == "constant":
        return F.pad(x, before=tuple(before), after=tuple(after), value=value)
    if any(not isinstance(n, int) and dims.bounds(n)[0] < 0 for n in (*before, *after)):
        sizes = ", ".join(map(str, (*before, *after)))
        raise Unsupported(f"padding by sizes that may be below 0 ({sizes}) with the mode {mode}")
    return _repeated(x, before, after, mode)


def _repeated(x: Any, before: Sequence[Dimension], after: Sequence[Dimension], mode: str) -> Any:
    cut = [tuple(max(0, -n) if isinstance(n, int) else 0 for n in pair) for pair in zip(before, after, strict=True)]
    for axis, (low, high) in enumerate(cut):
        if low or high:
            x = part(x, axis, low, dims.add(x.shape[axis], -low - high))
    for axis, pair in enumerate(zip(before, after, strict=True)):
        first, last = (max(n, 0) if isinstance(n, int) else n for n in pair)
        if first != 0 or last != 0:
            x = _edges(x, axis, first, last, mode)
    return x


def _edges(x: Any, axis: int, low: Dimension, high: Dimension, mode: str) -> Any:
    """Padding by what x has; an index of what is repeated, where x is shorter than its padding."""
    size = x.shape[axis]
    if isinstance(size, int) and isinstance(low, int) and isinstance(high, int):
        at = np.arange(-low, few(low + size + high) - low)
        if mode == "reflect":
            period = max(2 * (size - 1), 1)
            at = np.abs(at) % period
            at = np.where(at >= size, period - at, at) if size > 1 else np.zeros_like(at)
        else:
            at = np.clip(at, 0, size - 1) if mode == "edge" else at % size
        return F.take(x, x.network.constant(at.astype(np.int64)), axis=axis)
    if mode == "reflect":
        first, last = part(x, axis, low, low, -1), part(x, axis, dims.add(size, -2), high, -1)
    elif mode == "wrap":
        first, last = part(x, axis, dims.add(size, -low), low), part(x, axis, 0, high)
    else:
        shape = [[*x.shape[:axis], n, *x.shape[axis + 1 :]] for n in (low, high)]
        first = F.expand(part(x, axis, 0, 1), tuple(shape[0]))
        last = F.expand(part(x, axis, dims.add(size, -1), 1), tuple(shape[1]))
    return F.concat(*[first] * (low != 0), x, *[last] * (high != 0), dim=axis)


@onnx("Pad", until=10)
def pad_2(x: Tensor, *, pads: Ints, mode: str = "constant", value: float = 0.0) -> Result:
    return _pad(x, pads, None, mode, value)


@onnx("Pad", since=11)
def pad_11(
    call: Call, x: Tensor, pads: Tensor, value: MaybeTensor = None, axes: MaybeInts = None, *, mode: str = "constant"
) -> Result:
    counts = integers(call, pads, "pads")
    if data := [n for n in counts if isinstance(n, Value)]:
        if mode != "constant":
            raise Unknown(data[0], "pads of another mode than constant")
        x, counts = _cut(x, counts, axes)
    if mode == "constant" and value is not None and value.array is None:
        return _pad_by(x, counts, axes, value)
    fill = 0.0 if value is None or value.array is None else value.array.reshape(()).item()
    return _pad(x, counts, axes, mode, fill)


def _cut(x: Any, pads: Sequence[Any], axes: Ints | None) -> tuple[Any, list[Dimension]]:
    """What pads below 0 that a run finds leave of x, and the others."""
    grown = [as_size(F.where(F.less(n, number(n, 0)), number(n, 0), n)) if isinstance(n, Value) else n for n in pads]
    lost = [F.where(F.less(n, number(n, 0)), F.neg(n), number(n, 0)) if isinstance(n, Value) else 0 for n in pads]
    for axis, pair in enumerate(zip(*_counts(x, lost, axes), strict=True)):
        if data := [n for n in pair if isinstance(n, Value)]:
            left = functools.reduce(F.sub, data, size_value(x, x.shape[axis]))
            enough = F.greater_equal(left, number(left, 0))
            F.assertion(enough, message="Pad: pads below 0 cut more than there is")
            left = F.where(enough, left, number(left, 0))  # one size, and no long sum of them
            x = part(x, axis, as_size(pair[0]) if isinstance(pair[0], Value) else 0, as_size(left))
    return x, grown


def _counts(x: Value, pads: Sequence[Any], axes: Ints | None) -> tuple[list[Any], list[Any]]:
    at = axes_at(range(len(x.shape)) if axes is None else axes, len(x.shape))
    if len(pads) != 2 * len(at):
        raise Unsupported(f"pads has {len(pads)} entries for {len(at)} dimensions")
    before: list[Any] = [0] * len(x.shape)
    after: list[Any] = [0] * len(x.shape)
    for i, axis in enumerate(at):
        before[axis], after[axis] = pads[i], pads[len(at) + i]
    return before, after


def _pad(x: Value, pads: Sequence[Dimension], axes: Ints | None, mode: str, value: Any) -> Any:
    if mode not in _MODES:
        raise Unsupported(f"the mode {mode:.40} is not one of {', '.join(sorted(_MODES))}")
    before, after = _counts(x, pads, axes)
    return padded(x, before, after, mode, value)


def _pad_by(x: Value, pads: Sequence[Dimension], axes: Ints | None, value: Value) -> Any:
    """Padding by a number that is data: where a padded mask says so."""
    before, after = _counts(x, pads, axes)
    inside = F.expand(x.network.constant(np.array(True)), x.shape)
    kept = padded(inside, before, after, "constant", 0)
    return F.where(kept, padded(x, before, after, "constant", 0), F.reshape(value, ()))


@onnx("CenterCropPad")
def center_crop_pad(x: Tensor, shape: Ints, *, axes: MaybeInts = None) -> Result:
    result: Any = x
    for axis, wanted in zip(axes_at(range(len(x.shape)) if axes is None else axes, len(x.shape)), shape, strict=True):
        size = result.shape[axis]
        if not isinstance(size, int):
            raise Unsupported(f"the size {size} must be known")
        if wanted < size:
            result = part(result, axis, (size - wanted) // 2, wanted)
        elif wanted > size:
            more = wanted - size
            before = [more // 2 if i == axis else 0 for i in range(len(x.shape))]
            after = [more - more // 2 if i == axis else 0 for i in range(len(x.shape))]
            result = padded(result, before, after, "constant", 0)
    return result
