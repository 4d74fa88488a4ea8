"""Layers without weights."""

from __future__ import annotations

from typing import Any

from ingot import dtypes, functional
from ingot.dtypes import DType
from ingot.nn.module import Module


class Mish(Module):
    """x · tanh(softplus(x, beta=1, threshold=20))"""

    def forward(self, x: Any) -> Any:
        """any float tensor → the same shape and dtype"""
        return functional.mish(x)


class Cast(Module):
    """A change of dtype; from or to int8 a (de)quantisation with range −127..127, see functional.cast.

    Raises:
        DTypeError: (a TypeError) an unknown dtype, when the layer is made.
    """

    def __init__(self, output_dtype: DType | str = "float32") -> None:
        super().__init__()
        self.output_dtype = dtypes.get(output_dtype)

    def forward(self, x: Any) -> Any:
        """any tensor → the same shape in output_dtype"""
        return functional.cast(x, self.output_dtype)
