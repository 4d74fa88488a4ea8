"""tensorrt_llm.Parameter: a weight that is a tensor inside a net_guard, and starts with seeded random numbers."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from ingot import nn
from ingot.compat import context
from ingot.compat.datatype import as_dtype, is_torch
from ingot.compat.logger import logger
from ingot.errors import ModuleError
from ingot.nn.parameter import as_array

_made = itertools.count()


class Parameter(nn.Parameter):
    """A weight.

    Args:
        value: an array (NumPy or torch) that gives shape and dtype; or None.
        shape: its sizes, where there is no value: the numbers are then random, the same in every run of a program that
            makes its parameters in the same order.
        dtype: default float32.
        is_buffer, prefer_managed: accepted: all weights are kept by the engine.
    """

    __slots__ = ("_seed",)

    def __init__(
        self, value: Any = None, shape: Any = None, dtype: Any = None, is_buffer: bool = False,
        prefer_managed: bool = False,
    ) -> None:  # fmt: skip
        self._seed = next(_made)
        kind = None if dtype is None else as_dtype(dtype)
        if value is not None and kind is not None:
            value = as_array(value).astype(kind.numpy)
        super().__init__(value, shape, kind)

    @classmethod
    def of(cls, parameter: nn.Parameter) -> Parameter:
        """The same weight of a layer of ingot's."""
        made = cls(shape=parameter.spec.shape, dtype=parameter.spec.dtype)
        made._value = parameter._value
        return made

    @property
    def value(self) -> Any:
        """Inside a net_guard the tensor that stands for it there, elsewhere its numbers.

        Assigning takes an array of the same shape; another float type is converted, with a warning.
        """
        network = context.current()
        return self.raw_value if network is None else network.parameter(self)

    @value.setter
    def value(self, value: Any) -> None:
        array = as_array(value) if isinstance(value, np.ndarray) or is_torch(value) else np.asarray(value)
        if array.shape != self.spec.shape:
            raise ModuleError(f"a {self} cannot take an array of shape {list(array.shape)}")
        kind = as_dtype(array.dtype)
        if kind is not self.spec.dtype:
            logger.warning(f"a {self} was given {kind.name} numbers, which are converted")
            array = array.astype(self.spec.dtype.numpy)
        self._value = array

    @property
    def raw_value(self) -> np.ndarray[Any, Any]:
        """The numbers; random ones are drawn when they are first read."""
        found: np.ndarray[Any, Any] = self._drawn() if self._value is None else self._value
        self._value = found
        return found

    def is_inited(self) -> bool:
        """Whether it has been given numbers, or they have been drawn."""
        return self._value is not None

    def set_value_or_dummy(self, value: Any) -> None:
        """The value, where it fits; else random numbers."""
        if as_array(value).shape == self.spec.shape:
            self.value = value

    def _drawn(self) -> np.ndarray[Any, Any]:
        """Uniform numbers: within ±√(6 / (rows + columns)) for a matrix, ±0.1 for the rest; small ints."""
        shape: Any = self.spec.shape
        rng = np.random.default_rng(self._seed)
        bound = math.sqrt(6 / sum(shape)) if len(shape) == 2 else 0.1
        wide = rng.uniform(-bound, bound, shape) if self.spec.dtype.is_float else rng.integers(0, 2, shape)
        return np.asarray(wide, self.spec.dtype.numpy)
