"""Layers without weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from ingot import dtypes, functional
from ingot.dtypes import DType
from ingot.errors import ModuleError
from ingot.nn.module import Module


class _Activation(Module):
    """A function of each element. `inplace` is accepted for torch's calls: results are always new."""

    function: ClassVar[Callable[[Any], Any]]

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()

    def forward(self, x: Any) -> Any:
        """any float tensor → the same shape and dtype"""
        return type(self).function(x)


class Mish(_Activation):
    """x · tanh(softplus(x, beta=1, threshold=20))"""

    function = functional.mish


class ReLU(_Activation):
    """max(x, 0)"""

    function = functional.relu


class SiLU(_Activation):
    """x · sigmoid(x)"""

    function = functional.silu


class Sigmoid(_Activation):
    """1 / (1 + exp(−x))"""

    function = functional.sigmoid


class Tanh(_Activation):
    """Hyperbolic tangent"""

    function = functional.tanh


class GELU(Module):
    """x · Φ(x)

    Args:
        approximate: "none" (by erf, torch's default) or "tanh".

    Raises:
        ModuleError: another word.
    """

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        if approximate not in ("none", "tanh"):
            raise ModuleError(f'GELU: approximate must be "none" or "tanh", not {approximate!r}')
        self.approximate = approximate

    def forward(self, x: Any) -> Any:
        """any float tensor → the same shape and dtype"""
        return functional.gelu(x, self.approximate)


class Identity(Module):
    """x itself; takes and ignores whatever arguments the layer has in whose place it stands."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, x: Any) -> Any:
        """any tensor → itself"""
        return x


class Dropout(Module):
    """x itself: nothing is dropped outside of a training."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Any) -> Any:
        """any tensor → itself"""
        return x


class Flatten(Module):
    """The dimensions start_dim..end_dim as one."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x: Any) -> Any:
        """any tensor → the same elements"""
        return functional.flatten(x, self.start_dim, self.end_dim)


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
