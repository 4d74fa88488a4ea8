"""The table of ATen ops by name; importing it fills it."""

from __future__ import annotations

from ingot.frontends.torch_export.aten import (  # noqa: F401
    activation,
    angles,
    columns,
    complex,
    derived,
    distances,
    fourier,
    indexing,
    layers,
    making,
    mixture,
    picking,
    pointwise,
    quantised,
    recurrent,
    reduction,
    resample,
    shapes,
    vision,
)
from ingot.frontends.torch_export.aten.table import (
    COMPLEX_TABLE,
    TABLE,
    Complex,
    Entry,
    Known,
    Unsupported,
    call,
    entry_for,
)

__all__ = ["COMPLEX_TABLE", "TABLE", "Complex", "Entry", "Known", "Unsupported", "call", "entry_for"]
