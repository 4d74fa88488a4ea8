"""What steps ask of their operands and arguments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ingot import dtypes
from ingot.ir.recipe import MAX_RANK, Known, require


def one(known: Sequence[Known]) -> Known:
    require(len(known) == 1, f"takes one operand, not {len(known)}")
    return known[0]


def is_ints(value: Any) -> bool:
    return isinstance(value, tuple) and all(type(v) is int and v >= 0 for v in value)


def is_shape(value: Any) -> bool:
    """Numbers of dimensions: no more of them than an array has."""
    return is_ints(value) and len(value) <= MAX_RANK


def is_int(value: Any) -> bool:
    return type(value) is int and value >= 0


def is_whole(value: Any) -> bool:
    return type(value) is int and abs(value) < 1 << 32


def is_positive(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf


def is_finite(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def is_bool(value: Any) -> bool:
    return type(value) is bool


def is_dtype(value: Any) -> bool:
    return isinstance(value, str) and any(value == dtype.name for dtype in dtypes.ALL)
