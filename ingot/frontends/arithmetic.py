"""Arithmetic that importers compose alike."""

from __future__ import annotations

from typing import Any

from ingot.ir import F


def whole_power(x: Any, exponent: int) -> Any:
    """x to an exponent >= 1 by squaring, as exact as the products are."""
    result = None
    while True:
        if exponent & 1:
            result = x if result is None else F.mul(result, x)
        exponent >>= 1
        if not exponent:
            return result
        x = F.mul(x, x)
