"""The table of ATen ops by name; importing it fills it."""

from __future__ import annotations

from ingot.frontends.torch_export.aten import (  # noqa: F401
    activation,
    derived,
    indexing,
    layers,
    pointwise,
    recurrent,
    reduction,
    resample,
    shapes,
)
from ingot.frontends.torch_export.aten.table import TABLE, Entry, Unsupported, call

__all__ = ["TABLE", "Entry", "Unsupported", "call"]
