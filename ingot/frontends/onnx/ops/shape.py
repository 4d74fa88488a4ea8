"""ONNX ops that move, join, cut and make elements without computing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot import functional as fn
from ingot.dims import Dimension
from ingot.frontends.onnx.ops.common import (
    axes_at,
    cast,
    few,
    integers,
    number,
    read_shape,
    size_tensor,
    size_value,
    wide,
)
from ingot.frontends.onnx.table import MAX_PIECES, Anything, Call, MaybeNDArray, Unknown, onnx
from ingot.frontends.onnx.table import Sequence as TensorSequence
from ingot.frontends.table import (
    Ints,
    MaybeDType,
    MaybeFloat,
    MaybeFloats,
    MaybeInt,
    MaybeInts,
    MaybeTensor,
    Result,
    Results,
    Sizes,
    Tensor,
    Unsupported,
)
from ingot.ir import F, Value
from ingot.ir.checked import to_expand, to_reshape, to_shape
from ingot.ir.sizes import MAX_SIZE, as_shape, as_size
from ingot.ir.spec import axis_of, broadcast, elements

Dims = tuple[Dimension, ...]
MaybeSizes = tuple[Dimension, ...] | None

# --------------------------------------------------------------------------------------------- constants, sizes


@onnx("Constant")
def constant(
    *, value: MaybeNDArray = None, value_float: MaybeFloat = None, value_floats: MaybeFloats = None,
    value_int: MaybeInt = None, value_ints: MaybeInts = None, sparse_value: MaybeNDArray = None,
    value_string: Anything = None, value_strings: Anything = None,
) -> Result:  # fmt: skip
    given = [x for x in (value, sparse_value) if x is not None]
    if value_float is not None or value_floats is not None:
        given.append(np.array(value_floats if value_float is None else value_float, np.float32))
    if value_int is not None or value_ints is not None:
        given.append(np.array(value_ints if value_int is None else value_int, np.int64))
    if value_string is not None or value_strings is not None:
        given.append(np.array(value_strings if value_string is None else value_string, np.str_))
    if len(given) != 1:
        raise Unsupported("it must have one value")
    return given[0]


@onnx("ConstantOfShape")
def constant_of_shape(call: Call, shape: Sizes, *, value: MaybeNDArray = None) -> Result:
    array = np.zeros(1, np.float32) if value is None else value
    if array.size != 1:
        raise Unsupported("its value must have one element")
    one = call.network.constant(array.reshape(()))
    return F.expand(one, shape) if shape else one


@onnx("Shape")
def shape_of(call: Call, x: Tensor, *, start: int = 0, end: MaybeInt = None) -> Result:
    sizes = x.shape[start : len(x.shape) if end is None else end]
    return size_tensor(call, sizes) if sizes else np.zeros(0, np.int64)


@onnx("Size")
def size_of(x: Tensor) -> Result:
    return size_value(x, elements(x.shape))


@onnx("Range")
def arange(call: Call, start: Tensor, limit: Tensor, delta: Tensor) -> Result:
    """The bounds may be data, or sizes; the step of integers has to be known."""
    kind = start.dtype
    if kind.is_integer:
        step = call.contents(delta)
        if step is None:
            raise Unknown(delta, "delta")
        by = int(step.reshape(()))
        low, high = _bound(call, start), _bound(call, limit)
        if by == 0:
            raise Unsupported("delta is 0")
        if isinstance(low, int) and isinstance(high, int):
            return (low + by * np.arange(few(max(0, -(-(high - low) // by))))).astype(kind.numpy)
        count = dims.add(high, dims.mul(low, -1)) if by > 0 else dims.add(low, dims.mul(high, -1))
        count = dims.ceil_div(count, abs(by))
        if dims.bounds(count)[0] < 0:
            count = dims.maximum(count, 0)
        return cast(F.iota(size=count, start=low, step=by, dtype=dtypes.int64), kind)
    known = [call.contents(x) for x in (start, limit, delta)]
    sizes = [_whole(x, array) for x, array in zip((start, limit, delta), known, strict=True)]
    first_size, last_size, one = sizes
    if any(array is None for array in known) and one == 1 and first_size is not None and last_size is not None:
        count = dims.maximum(dims.add(last_size, dims.mul(first_size, -1)), 0)
        return cast(F.iota(size=count, start=first_size, dtype=dtypes.int64), kind)
    if any(array is None for array in known):
        first_, last_, gap_ = (F.reshape(wide(x), ()) for x in (start, limit, delta))
        ends = [cast(x, dtypes.float64) for x in (first_, last_, gap_)]  # in which runtimes count
        steps = F.div(F.sub(ends[1], ends[0]), ends[2])
        rule = "Range: start, limit and delta must be numbers, and delta not 0"
        F.assertion(F.less(F.abs(steps), math.inf), message=rule)
        size = as_size(cast(F.maximum(F.ceil(steps), 0.0), dtypes.int64))
        return cast(F.add(first_, F.mul(cast(F.iota(size=size, dtype=dtypes.int64), gap_.dtype), gap_)), kind)
    first, last, gap = (float(array.reshape(())) for array in known if array is not None)
    count = few(max(0, math.ceil((last - first) / gap)))
    return (first + gap * np.arange(count, dtype=np.float64)).astype(kind.numpy)


def _whole(x: Value, array: Any) -> Dimension | None:
    """A float that is an integer: a known one, or a size that was cast."""
    if array is not None:
        found = float(array.reshape(()))
        return int(found) if found.is_integer() else None
    sizes = x.node.inputs[0].known if x.node is not None and x.node.op.name == "cast" else None
    return None if sizes is None or x.node.inputs[0].dtype.is_float else sizes.reshape(-1)[0]


def _bound(call: Call, x: Value) -> Dimension:
    """A bound of integers: known, a size, or data that becomes one."""
    found = call.contents(x)
    return int(found.reshape(())) if found is not None else as_shape(x)[0]


@onnx("EyeLike")
def eye_like(x: Tensor, *, dtype: MaybeDType = None, k: int = 0) -> Result:
    if len(x.shape) != 2:
        raise Unsupported(f"it takes a matrix, not {x.spec}")
    sizes = [d for d in x.shape if isinstance(d, int)]
    if len(sizes) < 2:
        counts = (F.iota(size=d, dtype=dtypes.int64) for d in x.shape)
        row, column = (v if isinstance(v, Value) else x.network.constant(v) for v in counts)
        row, column = F.reshape(row, (x.shape[0], 1)), F.reshape(column, (1, x.shape[1]))
        k = max(-MAX_SIZE, min(k, MAX_SIZE))  # beyond any column
        return cast(F.equal(F.add(row, number(row, k)), column), dtype or x.dtype)
    few(math.prod(sizes))
    return np.eye(sizes[0], sizes[1], k=k, dtype=(dtype or x.dtype).numpy)


# ------------------------------------------------------------------------------------------------ same elements


@onnx("Reshape", moves=True)
def reshape(call: Call, x: Tensor, shape: Tensor, *, allowzero: bool = False) -> Result:
    found = call.contents(shape)
    found = shape.known if found is None else found
    if found is None:
        return F.reshape(*to_reshape(x, read_shape(call, x, shape, allowzero)))
    wanted = [n if isinstance(n, dims.Expr) else int(n) for n in found.reshape(-1)]
    for i, n in enumerate(wanted):
        if isinstance(n, int) and n == 0 and not allowzero:
            if i >= len(x.shape):
                raise Unsupported(f"the size at {i} is 0, and the operand has {len(x.shape)} dimensions")
            wanted[i] = x.shape[i]
    return F.reshape(*to_reshape(x, tuple(wanted)))


@onnx("Flatten", moves=True)
def flatten(x: Tensor, *, axis: int = 1) -> Result:
    at = axis if axis >= 0 else axis + len(x.shape)
    if not 0 <= at <= len(x.shape):
        raise Unsupported(f"axis {axis} is out of range")
    return F.reshape(x, (elements(x.shape[:at]), elements(x.shape[at:])))


def _keep(call: Call, x: Value, kept: Sequence[dims.Expr]) -> None:
    """A Squeeze without axes keeps what only a run knows. Where that is 1 the model has a dimension less, and what
    reads axes by their place takes another one, which no run here may."""
    names = ", ".join(map(str, kept))
    if call.same_of_any_rank():
        call.noted(f"it names no axes, and keeps the sizes that only a run knows ({names}), also when one is 1")
        return
    new = [d for d in kept if call.is_new_rule(d)]
    if new:
        call.noted(f"it names no axes, and drops none of the sizes that only a run knows ({names}); none may be 1")
    for d in new:
        size = size_value(x, d)
        F.assertion(F.not_equal(size, number(size, 1)), message=f"Squeeze names no axes, and drops {d} where it is 1")


def _squeezed(call: Call, x: Value, axes: Sequence[int] | None) -> Any:
    if axes is None:
        axes = [i for i, d in enumerate(x.shape) if d == 1 or isinstance(d, dims.Expr) and call.must_be_1(d)]
        rest = (d for i, d in enumerate(x.shape) if i not in axes)
        kept = [d for d in rest if isinstance(d, dims.Expr) and dims.bounds(d)[0] <= 1]
        if kept:
            _keep(call, x, kept)
    gone = axes_at(axes, len(x.shape))
    if any(isinstance(x.shape[a], int) and x.shape[a] != 1 for a in gone):
        raise Unsupported(f"axes {list(axes)} of {x.spec} are not all of size 1")
    x = to_shape(x, tuple(1 if i in gone else d for i, d in enumerate(x.shape)))
    return F.reshape(x, tuple(d for i, d in enumerate(x.shape) if i not in gone))


@onnx("Squeeze", until=12, moves=True)
def squeeze_1(call: Call, x: Tensor, *, axes: MaybeInts = None) -> Result:
    return _squeezed(call, x, axes)


@onnx("Squeeze", since=13, moves=True)
def squeeze(call: Call, x: Tensor, axes: MaybeInts = None) -> Result:
    return _squeezed(call, x, axes)


def _unsqueezed(x: Value, axes: Sequence[int]) -> Any:
    new = axes_at(axes, len(x.shape) + len(axes))
    rest = iter(x.shape)
    return F.reshape(x, tuple(1 if i in new else next(rest) for i in range(len(x.shape) + len(new))))


@onnx("Unsqueeze", until=12, moves=True)
def unsqueeze_1(x: Tensor, *, axes: Ints) -> Result:
    return _unsqueezed(x, axes)


@onnx("Unsqueeze", since=13, moves=True)
def unsqueeze(x: Tensor, axes: Ints) -> Result:
    return _unsqueezed(x, axes)


@onnx("Transpose", moves=True)
def transpose(x: Tensor, *, perm: MaybeInts = None) -> Result:
    return F.permute(x, tuple(reversed(range(len(x.shape)))) if perm is None else perm)


@onnx("Expand", moves=True)
def expand(x: Tensor, shape: Sizes) -> Result:
    """Both broadcast: a size of 1 keeps the other's."""
    rank = max(len(x.shape), len(shape))
    own = (1,) * (rank - len(x.shape)) + x.shape
    wanted = (1,) * (rank - len(shape)) + tuple(shape)
    if dims.all_fixed((*own, *wanted)):
        return F.expand(x, broadcast(own, wanted))
    sizes = tuple(map(_either, own, wanted))
    for size, said in zip(sizes, wanted, strict=True):
        if said not in (1, size):  # x is held to the size by the expand below, and the one that is said here
            fits = F.logical_or(*(F.equal(size_value(x, said), size_value(x, n)) for n in (1, size)))
            F.assertion(fits, message=f"Expand: [{', '.join(map(str, x.shape))}] does not broadcast to the shape given")
    return F.expand(*to_expand(x, sizes))


def _either(own: Dimension, wanted: Dimension) -> Dimension:
    """The size of what has one of two that are equal, or of which one is 1, where a run shows which."""
    if own in (1, wanted) or wanted == 1:
        return wanted if own == 1 else own
    for size in (own, wanted):
        low, high = dims.bounds(size)
        if low > 1 or high < 1:  # it is no 1, so the other is 1 or the same
            return size
    least = dims.minimum(own, wanted, 1)
    return dims.mul(dims.maximum(own, wanted), least)


@onnx("Tile", moves=True)
def tile(x: Tensor, repeats: Sizes) -> Result:
    return fn.repeat(x, repeats)


@onnx("DepthToSpace", moves=True)
def depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Result:
    n, c, h, w = x.shape
    b = blocksize
    depth = dims.floordiv(c, b * b)
    if mode == "DCR":
        apart = F.permute(F.reshape(x, (n, b, b, depth, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        apart = F.permute(F.reshape(x, (n, depth, b, b, h, w)), (0, 1, 4, 2, 5, 3))
    return F.reshape(apart, (n, depth, dims.mul(h, b), dims.mul(w, b)))


@onnx("SpaceToDepth", moves=True)
def space_to_depth(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Result:
    n, c, h, w = x.shape
    b = blocksize
    rows, columns = dims.floordiv(h, b), dims.floordiv(w, b)
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    apart = F.permute(F.reshape(x, (n, c, rows, b, columns, b)), order)
    return F.reshape(apart, (n, dims.mul(c, b * b), rows, columns))


# ------------------------------------------------------------------------------------------- cutting and joining


@onnx("Concat", moves=True)
def concat(*xs: Tensor, axis: int) -> Result:
    return F.concat(*xs, dim=axis)


def part(x: Any, axis: int, start: Dimension, size: Dimension, step: int = 1) -> Any:
    """So many elements along an axis."""
    rank = len(x.shape)
    return F.slice(
        x, tuple(start if i == axis else 0 for i in range(rank)),
        tuple(size if i == axis else d for i, d in enumerate(x.shape)),
        tuple(step if i == axis else 1 for i in range(rank)),
    )  # fmt: skip


def _from_start(at: Dimension, whole: Dimension) -> Dimension:
    """An end that is a size; where that is below 0, it counts from the last element: `x[-n:]`, `x[(n - 6) // 2 :]`."""
    least, most = dims.bounds(at)
    if least >= 0 or at == dims.add(whole, -1):  # which is below 0 of nothing only
        return at
    below = dims.mul(at, -1)
    return dims.add(at, dims.mul(whole, dims.minimum(1, below if most <= 0 else dims.maximum(below, 0))))


def _clamped(at: Dimension, whole: Dimension, low: Dimension, high: Dimension) -> Dimension:
    """An end of a slice as NumPy clamps it, as far as it is not known to be inside."""
    if not isinstance(at, int):
        at = _from_start(at, whole)
    elif at < 0:
        if at <= -(1 << 31):
            return low
        at = dims.add(whole, at)
    if isinstance(at, int) and at >= (1 << 31) - 1:
        return high
    if dims.bounds(dims.add(at, dims.mul(low, -1)))[0] < 0:
        at = dims.maximum(at, low)
    if dims.bounds(dims.add(high, dims.mul(at, -1)))[0] < 0:
        at = dims.minimum(at, high)
    return at


def _within(x: Any, end: Dimension, whole: Dimension) -> Dimension:
    """The end of a slice. The first T rows of a table of 512 are no more: T gets the bound 512, which a run checks."""
    own = x.network.dims.get(end.name) if isinstance(end, dims.Dim) and isinstance(whole, int) else None
    if own is None or own.unbacked or not isinstance(whole, int):
        return _clamped(end, whole, 0, whole)
    if own.max is None:
        return dims.Dim(own.name, own.min, own.opt, whole)
    return _clamped(own, whole, 0, whole)


def sliced(x: Any, axis: int, start: Dimension, end: Dimension, step: int) -> Any:
    """x[start:end:step] along an axis, with NumPy's clamping."""
    whole = x.shape[axis]
    if step == 0:
        raise Unsupported("a step is 0")
    if step > 0:
        low, high = _clamped(start, whole, 0, whole), _within(x, end, whole)
        count = dims.ceil_div(dims.add(high, dims.mul(low, -1)), step)
    else:
        last = dims.add(whole, -1)
        low, high = _clamped(start, whole, -1, last), _clamped(end, whole, -1, last)
        count = dims.ceil_div(dims.add(low, dims.mul(high, -1)), -step)
    if dims.bounds(count)[0] < 0:
        count = dims.maximum(count, 0)
    if count == 0:
        low = 0
    return part(x, axis, low, count, step)


def _sliced_by_data(x: Any, axis: int, start: Any, end: Any, step: int) -> Any:
    """x[start:end:step] where a run says an end, which it counts from the last element below 0, and clamps."""
    whole = x.shape[axis]
    if step < 1:
        raise Unknown(start if isinstance(start, Value) else end, "an end of a slice with a step below 1")
    count = size_value(x, whole)

    def at(end: Any) -> Dimension:
        if not isinstance(end, Value):
            return _clamped(end, whole, 0, whole)
        zero = number(end, 0)
        return as_size(F.where(F.less(end, zero), F.maximum(F.add(end, count), zero), F.minimum(end, count)))

    low, high = at(start), at(end)
    left = dims.ceil_div(dims.add(high, dims.mul(low, -1)), step)
    return part(x, axis, low, dims.maximum(left, 0) if dims.bounds(left)[0] < 0 else left, step)


MAX_SHOWN = 120  # characters of ends that are followed as expressions; longer ones a run counts


def _sliced(x: Value, starts: Sequence[Any], ends: Sequence[Any], axes: Ints | None, steps: Ints | None) -> Any:
    at = axes_at(range(len(starts)) if axes is None else axes, len(x.shape))
    by = (1,) * len(starts) if steps is None else steps
    result: Any = x
    for axis, start, end, step in zip(at, starts, ends, by, strict=True):
        if step >= 1 and len(f"{result.shape[axis]}{start}{end}") > MAX_SHOWN:  # clamped, all of them several times
            start, end = (size_value(result, n) if isinstance(n, dims.Expr) else n for n in (start, end))
        data = isinstance(start, Value) or isinstance(end, Value)
        result = (_sliced_by_data if data else sliced)(result, axis, start, end, step)
    return result


@onnx("Slice", until=9)
def slice_1(x: Tensor, *, starts: Ints, ends: Ints, axes: MaybeInts = None) -> Result:
    return _sliced(x, starts, ends, axes, None)


@onnx("Slice", since=10, moves=True)
def slice_10(
    call: Call, x: Tensor, starts: Tensor, ends: Tensor, axes: MaybeInts = None, steps: MaybeInts = None
) -> Result:
    return _sliced(x, integers(call, starts, "starts"), integers(call, ends, "ends"), axes, steps)


def _split(call: Call, x: Value, axis: int, sizes: Any, count: int) -> Results:
    at = axis_of(axis, len(x.shape), "axis")
    if sizes is None:
        whole = x.shape[at]
        if not 1 <= count <= MAX_PIECES:
            raise Unsupported(f"it is cut into {count:,} pieces: at least 1 and at most {MAX_PIECES:,}")
        if isinstance(whole, int):
            each = -(-whole // count)
            sizes = [max(0, min(each, whole - each * i)) for i in range(count)]
        else:
            each_ = dims.floordiv(whole, count)
            if dims.mul(each_, count) != whole:
                raise Unsupported(f"a size of {whole} is not known to be a multiple of {count}")
            sizes = [each_] * count
    found: list[Any] = []
    start: Dimension = 0
    for size in sizes:
        found.append(part(x, at, start, size))
        start = dims.add(start, size)
    left = dims.add(x.shape[at], dims.mul(start, -1))
    low, high = dims.bounds(left)
    if low > 0 or high < 0:
        raise Unsupported(f"the sizes {list(sizes)} do not add up to {x.shape[at]}")
    if left != 0:
        whole = F.equal(size_value(x, start), size_value(x, x.shape[at]))
        F.assertion(whole, message=f"{call.op}: the sizes of the pieces must add up to the size that is cut")
    return tuple(found)


@onnx("Split", until=12)
def split_2(call: Call, x: Tensor, *, axis: int = 0, split: MaybeInts = None) -> Results:
    return _split(call, x, axis, split, call.outputs)


@onnx("Split", since=13, moves=True)
def split_13(
    call: Call, x: Tensor, split: MaybeSizes = None, *, axis: int = 0, num_outputs: MaybeInt = None
) -> Results:
    return _split(call, x, axis, split, num_outputs or call.outputs)


def pieces(x: Value, axis: int, count: Dimension) -> int:
    """How many pieces a sequence of x's parts has."""
    if not isinstance(count, int) or count > MAX_PIECES:
        raise Unsupported(f"into how many pieces {x.spec} is cut must be known, and at most {MAX_PIECES:,}")
    return count


@onnx("Trilu")
def trilu(x: Tensor, k: MaybeTensor = None, *, upper: bool = True) -> Result:
    """The shift may be data."""
    rows, columns = x.shape[-2:]
    i, j = (F.iota(size=n, dtype=dtypes.int64) for n in (rows, columns))
    i, j = (v if isinstance(v, Value) else x.network.constant(v) for v in (i, j))
    edge = F.reshape(i, (rows, 1))
    if k is not None:
        edge = F.add(edge, F.reshape(cast(k, dtypes.int64), (1, 1)))
    kept = (F.greater_equal if upper else F.less_equal)(F.reshape(j, (1, columns)), edge)
    return F.where(kept, x, number(x, 0))


@onnx("ReverseSequence")
def reverse_sequence(x: Tensor, lens: Tensor, *, batch_axis: int = 1, time_axis: int = 0) -> Result:
    if {batch_axis, time_axis} != {0, 1}:
        raise Unsupported("batch and time must be the first two dimensions")
    steps, rows = x.shape[time_axis], x.shape[batch_axis]
    t = F.iota(size=steps, dtype=dtypes.int64)
    t = t if isinstance(t, Value) else x.network.constant(t)
    at = F.reshape(t, (steps, 1) if time_axis == 0 else (1, steps))
    count = F.reshape(cast(lens, dtypes.int64), (1, rows) if time_axis == 0 else (rows, 1))
    back = F.sub(F.sub(count, number(count, 1)), at)
    there = F.where(F.less(at, count), back, F.add(at, F.mul(count, number(count, 0))))
    index = F.reshape(there, (*there.shape, *[1] * (len(x.shape) - 2)))
    return F.gather(x, F.expand(index, x.shape), axis=time_axis)


# ------------------------------------------------------------------------------------- sequences and optionals


@onnx("SequenceConstruct", folds=False)
def sequence_construct(*xs: Tensor) -> Result:
    return TensorSequence(xs)


@onnx("SequenceEmpty", folds=False)
def sequence_empty(*, dtype: MaybeDType = None) -> Result:
    return TensorSequence()


def _items(xs: Any) -> TensorSequence:
    if not isinstance(xs, TensorSequence):
        raise Unsupported("it takes a sequence")
    return xs


def _place(call: Call, xs: TensorSequence, position: Value | None, end: int) -> int:
    if position is None:
        return end
    found = call.contents(position)
    if found is None:
        raise Unknown(position, "the position")
    at = int(found.reshape(()))
    if not -len(xs) <= at < len(xs) + (end == len(xs)):
        raise Unsupported(f"the position {at} is outside a sequence of {len(xs)}")
    return at + len(xs) if at < 0 else at


@onnx("SequenceInsert", folds=False)
def sequence_insert(call: Call, xs: Anything, x: Tensor, position: MaybeTensor = None) -> Result:
    items = list(_items(xs))
    items.insert(_place(call, _items(xs), position, len(items)), x)
    return TensorSequence(items)


@onnx("SequenceErase", folds=False)
def sequence_erase(call: Call, xs: Anything, position: MaybeTensor = None) -> Result:
    items = list(_items(xs))
    del items[_place(call, _items(xs), position, len(items) - 1)]
    return TensorSequence(items)


@onnx("SequenceAt", folds=False)
def sequence_at(call: Call, xs: Anything, position: Tensor) -> Result:
    return _items(xs)[_place(call, _items(xs), position, -1)]


@onnx("SequenceLength", folds=False)
def sequence_length(xs: Anything) -> Result:
    return np.array(len(_items(xs)), np.int64)


@onnx("ConcatFromSequence", folds=False)
def concat_from_sequence(xs: Anything, *, axis: int, new_axis: bool = False) -> Result:
    items = _items(xs)
    return fn.stack(list(items), axis) if new_axis else F.concat(*items, dim=axis)


@onnx("SplitToSequence", folds=False)
def split_to_sequence(
    call: Call, x: Tensor, split: MaybeTensor = None, *, axis: int = 0, keepdims: bool = True
) -> Result:
    at = axis_of(axis, len(x.shape), "axis")
    whole = x.shape[at]
    if split is None:
        parts = [part(x, at, i, 1) for i in range(pieces(x, at, whole))]
        return TensorSequence(parts if keepdims else [_squeezed(call, p, (at,)) for p in parts])
    found = call.contents(split)
    if found is None:
        raise Unknown(split, "split")
    if found.shape:
        sizes = found.tolist()
    else:
        each = int(found)
        total = pieces(x, at, whole)
        sizes = [min(each, total - i) for i in range(0, total, max(each, 1))]
    return TensorSequence(_split(call, x, at, sizes, len(sizes)))


@onnx("Optional", folds=False)
def optional(x: Anything = None, *, type: Anything = None) -> Result:
    return x


@onnx("OptionalHasElement", folds=False)
def optional_has_element(x: Anything = None) -> Result:
    return np.array(x is not None)


@onnx("OptionalGetElement", folds=False)
def optional_get_element(x: Anything) -> Result:
    return x


