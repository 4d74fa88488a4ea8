"""ATen's functions of angles and their inverses, composed of exponentials and polynomials, in float32 at least."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ingot import dtypes
from ingot.frontends import arithmetic
from ingot.frontends.torch_export.aten.promotion import cast, floating
from ingot.frontends.torch_export.aten.table import Result, Tensor, aten


def _wide(compute: Callable[[Any], Any], *names: str) -> None:
    @aten(*(f"aten.{name}.default" for name in names))
    def of(self: Tensor) -> Result:
        x = floating(self)
        return cast(compute(cast(x, dtypes.float32) if x.dtype.bits < 32 else x), x.dtype)


_wide(arithmetic.log1p, "log1p")
_wide(arithmetic.expm1, "expm1", "special_expm1")
_wide(arithmetic.sinh, "sinh")
_wide(arithmetic.cosh, "cosh")
_wide(arithmetic.arcsin, "asin", "arcsin")
_wide(arithmetic.arccos, "acos", "arccos")
_wide(arithmetic.arctan, "atan", "arctan")
_wide(arithmetic.arcsinh, "asinh", "arcsinh")
_wide(arithmetic.arccosh, "acosh", "arccosh")
_wide(arithmetic.arctanh, "atanh", "arctanh")
