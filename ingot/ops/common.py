"""What op families share: rounding, broadcasting rules, and shorthands for cases."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ingot import dtypes
from ingot.dims import Dimension, add, bounds, floordiv, maximum, mod, mul
from ingot.dtypes import DType
from ingot.errors import DimError
from ingot.ir import Spec, require
from ingot.ir.expr import integer_range
from ingot.ir.spec import broadcast

Array = np.ndarray[Any, Any]


def f32(*shape: Any) -> Spec:
    return Spec(shape, dtypes.float32)


def bf16(*shape: Any) -> Spec:
    return Spec(shape, dtypes.bfloat16)


def f16(*shape: Any) -> Spec:
    return Spec(shape, dtypes.float16)


def f64(*shape: Any) -> Spec:
    return Spec(shape, dtypes.float64)


def i32(*shape: Any) -> Spec:
    return Spec(shape, dtypes.int32)


def i64(*shape: Any) -> Spec:
    return Spec(shape, dtypes.int64)


def i8(*shape: Any) -> Spec:
    return Spec(shape, dtypes.int8)


def u8(*shape: Any) -> Spec:
    return Spec(shape, dtypes.uint8)


def boolean(*shape: Any) -> Spec:
    return Spec(shape, dtypes.bool_)


def widen(x: Array) -> Array:
    """Floats narrower than 32 bits as float32, in which everything is accumulated; others as they are."""
    dtype = dtypes.get(x.dtype)
    return x.astype(np.float32) if dtype.is_float and dtype.bits < 32 else x


def torch_wide(x: Any) -> Any:
    """The same of a torch tensor, or of none."""
    return x.float() if x is not None and x.is_floating_point() and x.itemsize < 4 else x


def rounded(x: Any, like: DType | Array) -> Array:
    """One rounding to a dtype, or to that of an array."""
    with np.errstate(all="ignore"):
        return np.asarray(x).astype(like.numpy if isinstance(like, DType) else like.dtype)


def holds(dtype: DType, value: float) -> bool:
    """Whether a bool, integer or complex dtype has exactly this number."""
    if not dtype.is_integer:
        return value in (0, 1) if dtype.kind == "bool" else math.isfinite(value)
    low, high = integer_range(dtype)
    return float(value).is_integer() and low <= value <= high


def require_float(**operands: Spec) -> None:
    for name, spec in operands.items():
        require(spec.dtype in dtypes.FLOATS, f"{name} must be float32, bfloat16, float16 or float64; cast it first")


def require_number(**operands: Spec) -> None:
    for name, spec in operands.items():
        ok = spec.dtype in dtypes.FLOATS or spec.dtype in dtypes.INTEGERS
        require(ok, f"{name} must be a float or integer tensor; cast it first")


def require_index(**operands: Spec) -> None:
    for name, spec in operands.items():
        require(spec.dtype in (dtypes.int32, dtypes.int64), f"{name} must be int32 or int64; cast it first")


def same_dtype(**operands: Spec) -> DType:
    """The dtype that all operands share."""
    names = list(operands)
    first = operands[names[0]].dtype
    for name in names[1:]:
        require(operands[name].dtype is first, f"{names[0]} is {first.name} and {name} is {operands[name].dtype.name}: "
                "nothing is promoted silently, cast one of them")
    return first


def broadcast_specs(a: Spec, b: Spec, dtype: DType) -> Spec:
    if a.dtype is dtype and (a.shape == b.shape or not b.shape):
        return a
    return Spec(broadcast(a.shape, b.shape), dtype)


def certainly_negative(d: Dimension) -> bool:
    """Whether a dimension expression is below zero for every value of its dims."""
    return d < 0 if isinstance(d, int) else bounds(d)[1] < 0


def minus(a: Dimension, *b: Dimension) -> Dimension:
    return add(a, *(mul(x, -1) for x in b))


def positive(d: Dimension) -> Dimension:
    """d where it is above zero, else 0."""
    return d if bounds(d)[0] >= 0 else maximum(d, 0)


# ------------------------------------------------------------------------------------------------ Op.on_dims
def each(function: Callable[..., Any]) -> Callable[..., Array]:
    """Op.on_dims of an op on each element by itself, by its meaning for dims."""
    def on_dims(op: Any, *arrays: Array) -> Array:
        return np.asarray(np.frompyfunc(function, len(arrays), 1)(*arrays), object)
    return on_dims


def moved(op: Any, *arrays: Array) -> Array:
    """Op.on_dims of an op whose reference moves elements without looking at them."""
    return np.asarray(op.reference(*arrays), object)


def dims_quotient(a: Dimension, b: Dimension) -> Dimension:
    """a // b, which is 0 for a b of 0 as in tensors; the divisor may be negative where both are ints."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b else 0
    return floordiv(a, b)


def dims_remainder(a: Dimension, b: Dimension) -> Dimension:
    """a % b, likewise."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b if b else 0
    return mod(a, b)


def dims_compared(holds: Callable[[float, float], bool]) -> Callable[[Dimension, Dimension], bool]:
    """A comparison of dims: DimError where their bounds leave it open. `holds(a - b, 0)`."""
    def compare(a: Dimension, b: Dimension) -> bool:
        low, high = bounds(minus(a, b))
        found = {holds(sign, 0) for sign, met in ((-1, low < 0), (0, low <= 0 <= high), (1, high > 0)) if met}
        if len(found) != 1:
            raise DimError(f"how {a} compares with {b} is known only at run time")
        return found.pop()
    return compare


def show(shape: Sequence[Dimension]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def nbytes(*specs: Spec) -> int:
    """The bytes of tensors whose sizes are known."""
    return sum(int(s.elements) * s.dtype.numpy.itemsize for s in specs)


PYTHON_STEPS = 1 << 14  # Op.steps of one turn of a loop of NumPy calls


def product_steps(count: int, dtype: DType) -> int:
    """Op.steps of so many multiplications by np.matmul, which has a library for floats and plain loops for the rest."""
    return count // 8 if dtype.is_float else 4 * count

