"""torch's rules for the element type of a result, and the casts that they ask for.

Tensors with dimensions decide, then tensors without any, then Python numbers: a lower one only matters when it is of
a higher category (bool < integer < float).
"""

from __future__ import annotations

from typing import Any

from ingot import dtypes
from ingot.dims import Dimension, Expr
from ingot.dtypes import DType
from ingot.frontends.torch_export.aten.table import Operand, Unsupported
from ingot.frontends.torch_export.reals import Real
from ingot.functional import tensor
from ingot.ir import F, Value
from ingot.ir.expr import integer_range

DEFAULT = dtypes.float32  # torch.get_default_dtype(), which exported programs have resolved already


def category(dtype: DType) -> int:
    """bool 0, integers 1, floats 2."""
    if dtype is dtypes.bool_:
        return 0
    if dtype.is_integer:
        return 1
    if dtype in dtypes.FLOATS:
        return 2
    raise Unsupported(f"{dtype.name} tensors are not supported in arithmetic")


def promote(a: DType, b: DType) -> DType:
    """torch.promote_types."""
    if a is b:
        return a
    low, high = (a, b) if category(a) < category(b) else (b, a)
    if category(low) != category(high):
        return high
    if category(a) == 2:
        return dtypes.float32 if a.bits == b.bits else (a if a.bits > b.bits else b)
    if a.kind == b.kind:
        return a if a.bits > b.bits else b
    unsigned, signed = (a, b) if a.kind == "uint" else (b, a)
    if unsigned is not dtypes.uint8:
        raise Unsupported(f"torch has no common type of {a.name} and {b.name}")
    return dtypes.int16 if signed.bits == 8 else signed


def _combined(higher: DType | None, lower: DType | None) -> DType | None:
    if higher is None or lower is None:
        return lower if higher is None else higher
    if category(higher) == 2:
        return higher
    return promote(higher, lower) if higher is dtypes.bool_ or category(lower) == 2 else higher


def _of_number(number: Any) -> DType:
    return dtypes.bool_ if type(number) is bool else DEFAULT if type(number) in (float, Real) else dtypes.int64


def result_type(*operands: Operand) -> DType:
    """torch.result_type of tensors and numbers."""
    tiers: list[DType | None] = [None, None, None]
    for x in operands:
        tier = 2 if not isinstance(x, Value) else 0 if x.shape else 1
        dtype = x.dtype if isinstance(x, Value) else _of_number(x)
        before = tiers[tier]
        tiers[tier] = dtype if before is None else promote(before, dtype)
    found = _combined(tiers[0], _combined(tiers[1], tiers[2]))
    assert found is not None
    return found


def cast(x: Value, dtype: DType) -> Value:
    """x as another type, as torch converts; the same one costs nothing."""
    return x if x.dtype is dtype else F.cast(x, dtype, saturate=dtype is dtypes.float8_e4m3fn)


def as_operand(x: Operand, dtype: DType) -> Any:
    """An operand in the given type: a tensor cast, a number as a number, one that depends on sizes as a tensor."""
    if isinstance(x, Value):
        return cast(x, dtype)
    if isinstance(x, Expr):
        return size_tensor(x, dtype)
    if isinstance(x, Real):
        return cast(x.tensor(), dtype)
    if category(dtype) == 1:
        return wrapped(int(x), dtype)
    return bool(x) if category(dtype) == 0 else float(x)  # a number takes the type of the tensor beside it


def wrapped(number: int, dtype: DType) -> int:
    """A number in an integer type that may be too narrow for it: torch keeps the low bits, in comparisons too."""
    low, high = integer_range(dtype)
    return (number - low) % (high - low + 1) + low


def size_tensor(size: Dimension, dtype: DType) -> Value:
    """A size as a tensor without dimensions."""
    return cast(tensor.size_tensor(size), dtype)


def promoted(*operands: Operand, least: DType | None = None) -> tuple[Any, ...]:
    """The operands in the type of their result. `least`: integers and bools become this float type."""
    dtype = result_type(*operands)
    if least is not None and category(dtype) < 2:
        dtype = least
    return tuple(as_operand(x, dtype) for x in operands)


def floating(x: Value, dtype: DType | None = None) -> Value:
    """x in `dtype`, else as a float: integers and bools become the default type."""
    if dtype is not None:
        return cast(x, dtype)
    return x if category(x.dtype) == 2 else cast(x, DEFAULT)
