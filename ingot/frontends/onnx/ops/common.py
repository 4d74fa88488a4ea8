"""What several families of ONNX ops share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot.dims import Dimension
from ingot.dtypes import DType
from ingot.frontends.onnx.table import MAX_MADE, Call, Unknown
from ingot.frontends.table import Unsupported
from ingot.ir import F, Value
from ingot.ir.sizes import MAX_BOUND, as_shape
from ingot.ir.spec import axis_of, elements
from ingot.ops.indexing import Iota

MAX_NESTED = 24  # of tensors that are joined of others, which are looked into


def cast(x: Any, dtype: DType) -> Any:
    """x as another type; the same one costs nothing."""
    return x if x.dtype is dtype else F.cast(x, dtype)


def axes_at(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Axes counted from the front. Raises Unsupported for one that is named twice."""
    found = tuple(axis_of(a, rank, "axes") for a in axes)
    if len(set(found)) != len(found):
        raise Unsupported(f"axes {list(axes)} name a dimension twice")
    return found


def number(x: Any, value: Any) -> Any:
    """A number of x's type, beside it."""
    with np.errstate(all="ignore"):
        return x.network.constant(np.array(value).astype(x.dtype.numpy))


def filled(call: Call, shape: Sequence[Dimension], value: Any, dtype: DType) -> Any:
    """A number over a shape."""
    with np.errstate(all="ignore"):
        one = call.network.constant(np.array(value).astype(dtype.numpy))
    return F.expand(one, tuple(shape)) if shape else one


def size_tensor(call: Call, sizes: Sequence[Dimension]) -> Any:
    """Sizes as an int64 tensor [n]."""
    if dims.all_fixed(sizes):
        return call.network.constant(np.array(sizes, np.int64))
    parts = [F.iota(size=1, start=n, dtype=dtypes.int64) for n in sizes]
    parts = [p if isinstance(p, Value) else call.network.constant(p) for p in parts]
    return parts[0] if len(parts) == 1 else F.concat(*parts, dim=0)


def few(count: int) -> int:
    """A number of elements, unless a file asks for more than any constant has."""
    if not 0 <= count <= MAX_MADE:
        raise Unsupported(f"{count:,} elements; a constant that an op makes may have {MAX_MADE:,}")
    return count


def index_of(x: Value) -> Any:
    """Indices as int32 or int64."""
    return x if x.dtype in (dtypes.int32, dtypes.int64) else cast(x, dtypes.int64)


def from_end(index: Any, size: Dimension) -> Any:
    """Indices of which those below 0 count from the end."""
    known = index.known if index.array is None else index.array
    if known is not None and all(isinstance(n, int | np.integer) and n >= 0 for n in known.flat):
        return index
    zero = number(index, 0)
    whole = number(index, size) if isinstance(size, int) else cast(size_value(index, size), index.dtype)
    return F.where(F.less(index, zero), F.add(index, whole), index)


def size_value(x: Value, size: Dimension) -> Any:
    """A size as an int64 tensor without dimensions, beside x."""
    if isinstance(size, int):
        return x.network.constant(np.array(size, np.int64))
    return F.reshape(x.network.emit(Iota(size=1, start=size, dtype=dtypes.int64), ()), ())


def each(call: Call, x: Value, name: str, depth: int = 0) -> list[Any]:
    """The elements of a tensor [n]: numbers and sizes where they are known, tensors without dimensions elsewhere.

    Raises Unknown where their number is not known.
    """
    found = call.contents(x)
    found = x.known if found is None else found
    if found is not None:
        return list(found.reshape(-1).tolist())
    if len(x.shape) != 1 or not isinstance(x.shape[0], int):
        raise Unknown(x, name)
    if depth < MAX_NESTED and x.node is not None and x.node.op.name == "concat":
        return [n for part in x.node.inputs for n in each(call, part, name, depth + 1)]
    return [F.reshape(F.slice(x, (i,), (1,), (1,)), ()) for i in range(few(x.shape[0]))]


def integers(call: Call, x: Value, name: str) -> list[Any]:
    """`each` of integers, data as int64."""
    if not x.dtype.is_integer:
        raise Unsupported(f"{name} must be integers, not {x.spec}")
    return [cast(n, dtypes.int64) if isinstance(n, Value) else n for n in each(call, x, name)]


def read_shape(call: Call, x: Any, shape: Any, allowzero: bool) -> tuple[Dimension, ...]:
    """Sizes that are data: 0 keeps the size of x there, and -1 takes what the others leave."""
    count = shape.shape[0] if len(shape.shape) == 1 else None
    if not isinstance(count, int) or count > MAX_BOUND:
        raise Unknown(shape, "shape")
    sizes = cast(shape, dtypes.int64)
    zero, one = number(sizes, 0), number(sizes, 1)
    if not allowzero:
        own = [*x.shape[:count], *[0] * (count - len(x.shape))]
        sizes = F.where(F.equal(sizes, zero), size_tensor(call, own), sizes)
    open_ = F.equal(sizes, number(sizes, -1))
    others = F.reduce_prod(F.where(open_, one, sizes), axes=(0,))
    several = F.reduce_sum(cast(open_, dtypes.int64), axes=(0,))
    one_is = F.logical_and(F.equal(several, one), F.not_equal(others, zero))
    F.assertion(F.logical_or(F.equal(several, zero), one_is),
                message="Reshape: of its sizes one may be -1, and none 0 beside it")  # fmt: skip
    left = F.floordiv(size_value(x, elements(x.shape)), F.maximum(others, one))
    return as_shape(F.where(open_, left, sizes))


def wide(x: Any) -> Any:
    """Floats narrower than float32 as float32."""
    return cast(x, dtypes.float32) if x.dtype.is_float and x.dtype.bits < 32 else x
