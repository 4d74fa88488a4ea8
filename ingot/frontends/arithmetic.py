"""Arithmetic that importers compose alike."""

from __future__ import annotations

import math
from typing import Any

from ingot import dtypes
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


def log1p(x: Any) -> Any:
    """log(1 + x), as exact near 0 as x is."""
    one = F.add(x, 1.0)
    small = F.equal(one, 1.0)
    rest = F.where(small, F.mul(x, 1.0), F.mul(F.log(one), F.div(x, F.sub(F.where(small, 2.0 + x * 0.0, one), 1.0))))
    return F.where(F.equal(F.abs(x), float("inf")), F.log(one), rest)


def arctan(x: Any) -> Any:
    """By halving the angle twice, and its series there: what is left is at most tan(π/16)."""
    size = F.abs(x)
    above = F.greater(size, 1.0)
    t = F.where(above, F.reciprocal(size), size)
    for _ in range(2):
        t = F.div(t, F.add(F.sqrt(F.add(F.mul(t, t), 1.0)), 1.0))
    square, total = F.mul(t, t), None
    for k in reversed(range(12 if x.dtype is dtypes.float64 else 6)):
        term = (-1.0) ** k / (2 * k + 1)
        total = F.add(F.mul(square, 0.0), term) if total is None else F.add(F.mul(total, square), term)
    found = F.mul(F.mul(total, t), 4.0)
    found = F.where(above, F.sub(math.pi / 2, found), found)
    return F.where(F.less(x, 0.0), F.neg(found), found)


def arcsin(x: Any) -> Any:
    return F.mul(arctan(F.div(x, F.add(F.sqrt(F.mul(F.sub(1.0, x), F.add(x, 1.0))), 1.0))), 2.0)


def arccos(x: Any) -> Any:
    return F.mul(arctan(F.sqrt(F.div(F.sub(1.0, x), F.add(x, 1.0)))), 2.0)


def cosh(x: Any) -> Any:
    large = F.exp(F.mul(F.abs(x), 0.5))  # whose square ends where the result does, and exp(x) before
    usual = F.mul(F.add(F.exp(x), F.exp(F.neg(x))), 0.5)
    return F.where(F.greater(F.abs(x), 88.0), F.mul(F.mul(large, 0.5), large), usual)


LARGE = 1e9  # from here on the square of x may be infinite, and 1 beside it is nothing


def _log_of_twice(x: Any) -> Any:
    return F.add(F.log(x), math.log(2))


def arcsinh(x: Any) -> Any:
    a = F.abs(x)
    square = F.mul(a, a)
    found = log1p(F.add(a, F.div(square, F.add(F.sqrt(F.add(square, 1.0)), 1.0))))
    found = F.where(F.greater(a, LARGE), _log_of_twice(a), found)
    return F.where(F.less(x, 0.0), F.neg(found), found)


def arctanh(x: Any) -> Any:
    return F.mul(log1p(F.div(F.mul(x, 2.0), F.sub(1.0, x))), 0.5)


def sinh(x: Any) -> Any:
    return F.mul(F.tanh(x), cosh(x))  # no difference of nearly equal numbers near 0


def arccosh(x: Any) -> Any:
    above = F.sub(x, 1.0)
    found = log1p(F.add(above, F.mul(F.sqrt(above), F.sqrt(F.add(x, 1.0)))))
    return F.where(F.greater(x, LARGE), _log_of_twice(x), found)


def expm1(x: Any) -> Any:
    """exp(x) − 1, as exact near 0 as x is."""
    return F.mul(F.tanh(F.mul(x, 0.5)), F.add(F.exp(x), 1.0))
