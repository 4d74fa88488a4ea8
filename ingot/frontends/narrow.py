"""Tensors of elements narrower than programs have: floats of 8 and 4 bits as their bits in uint8, integers of 4 and 2
bits as int8 or uint8. What computes with them converts first, by a table and a search that run natively.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ingot import dtypes
from ingot.dtypes import DType
from ingot.frontends.table import Unsupported
from ingot.ir import F, Spec, Value
from ingot.ir.expr import integer_range

Array = np.ndarray[Any, Any]

ROUNDINGS = ("nearest", "up", "down")


class Narrow(NamedTuple):
    """A tensor of a narrow type, and what carries its elements."""

    value: Value
    dtype: DType

    @property
    def shape(self) -> Any:
        return self.value.shape

    @property
    def spec(self) -> Spec:
        return Spec(self.shape, self.dtype)


def is_narrow(dtype: DType) -> bool:
    """Whether a type is carried by another."""
    return dtype.bits < 8 or dtype.is_float and dtype.bits == 8


def carrier(dtype: DType) -> DType:
    """The type that carries a narrow one; another one itself."""
    if not is_narrow(dtype):
        return dtype
    return dtypes.int8 if dtype.kind == "int" else dtypes.uint8


def carried(array: Array) -> Array:
    """An array of a narrow type as what carries it."""
    dtype = dtypes.get(array.dtype)
    if not is_narrow(dtype):
        return array
    return array.view(np.uint8) if dtype.is_float else array.astype(carrier(dtype).numpy)


def restored(array: Array, dtype: DType) -> Array:
    """What `carried` was made of."""
    return array.view(dtype.numpy) if dtype.is_float else array.astype(dtype.numpy)


def carried_spec(spec: Spec) -> Spec:
    """The Spec of what carries a tensor."""
    return Spec(spec.shape, carrier(spec.dtype))


@cache
def _values(dtype: DType) -> Array:
    """What every code of a float means, float32."""
    return np.arange(1 << dtype.bits, dtype=np.uint8).view(dtype.numpy).astype(np.float32)


class _Search(NamedTuple):
    """From which magnitude on each code is meant: codes[i] where i boundaries are at most as large."""

    boundaries: Array
    codes: Array
    nan: int
    signed: bool
    negative_zero: bool


@cache
def _search(dtype: DType, saturate: bool, rounding: str) -> _Search:
    values = _values(dtype)
    signed = dtype is not dtypes.float8_e8m0fnu
    half = len(values) // 2 if signed else len(values)
    codes = np.array([c for c in range(half) if np.isfinite(values[c])])
    at = values[codes].astype(np.float64)
    middle = at[:-1] + (at[1:] - at[:-1]) / 2
    if rounding == "nearest":
        edges = [_above(m) if low % 2 == 0 else np.float32(m) for m, low in zip(middle, codes[:-1], strict=True)]
        over = np.float32(at[-1] + (at[-1] - at[-2]) / 2)
        last = _above(over) if codes[-1] % 2 == 0 else over
    elif rounding == "up":
        edges, last = [_above(v) for v in at[:-1]], _above(at[-1])
    else:
        edges, last = [np.float32(v) for v in at[1:]], np.float32(np.inf)
    nans = [c for c in range(half) if np.isnan(values[c])]
    nan = nans[-1] if nans else half if signed and np.isnan(values[half]) else 0
    beyond = [c for c in range(half) if np.isinf(values[c])]
    if not saturate and dtype.bits == 8:
        edges.append(last)
        codes = np.append(codes, beyond[0] if beyond else nan)
    negative_zero = signed and not np.isnan(values[half])
    return _Search(np.array(edges, np.float32), codes.astype(np.uint8), nan, signed, negative_zero)


def _above(x: Any) -> Any:
    return np.nextafter(np.float32(x), np.float32(np.inf))


def decoded(x: Narrow) -> Any:
    """The numbers as float32, or as the integers that carry them."""
    if not x.dtype.is_float:
        return x.value
    table = x.value.network.constant(_values(x.dtype))
    return F.take(table, F.cast(x.value, dtypes.int32), axis=0)


def encoded(x: Any, dtype: DType, saturate: bool = True, rounding: str = "nearest") -> Narrow:
    """Numbers in a narrow type: floats to the nearest, ties to even; integers towards zero, of which the low bits stay.
    """
    if not is_narrow(dtype):
        raise Unsupported(f"{dtype.name} is no type that a tensor is quantised to")
    if rounding not in ROUNDINGS:
        raise Unsupported(f"the rounding {rounding:.40} is not one of {', '.join(ROUNDINGS)}")
    if not dtype.is_float:
        return Narrow(_wrapped(x, dtype), dtype)
    y = x if x.dtype is dtypes.float32 else F.cast(x, dtypes.float32)
    find = _search(dtype, saturate, rounding)
    size = F.abs(y)
    boundaries, codes = (x.network.constant(a) for a in (find.boundaries, find.codes))
    place = F.bucketize(size, boundaries, right=True)
    code = F.take(codes, F.minimum(place, np.int64(len(find.codes) - 1)), axis=0)
    zero = np.uint8(0)
    if find.signed:
        below = F.logical_or(F.less(y, 0.0), F.less(F.reciprocal(y), 0.0))
        if not find.negative_zero:  # what would be its bits is the one NaN
            below = F.logical_and(below, F.logical_and(F.not_equal(code, zero), F.not_equal(code, np.uint8(find.nan))))
        code = F.where(below, F.add(code, np.uint8(1 << (dtype.bits - 1))), code)
    return Narrow(F.where(F.equal(y, y), code, np.uint8(find.nan)), dtype)


def _wrapped(x: Any, dtype: DType) -> Any:
    low, high = integer_range(dtype)
    count = high - low + 1
    whole = x if x.dtype is dtypes.int32 else F.cast(x, dtypes.int32)
    return F.cast(F.add(F.mod(F.sub(whole, np.int32(low)), np.int32(count)), np.int32(low)), carrier(dtype))
