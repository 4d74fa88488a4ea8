"""Parameter and State: what a Module owns beside other Modules. Defining one allocates nothing."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ingot import dtypes
from ingot.dtypes import DType
from ingot.errors import ModuleError
from ingot.ir.spec import Shape, Spec, StateSpec


def as_array(value: Any) -> np.ndarray:
    """A NumPy array of what users hold: NumPy, torch (bfloat16 and floats of 8 bits too, without a copy), or anything
    array-like.
    """
    if isinstance(value, np.ndarray):
        return value
    if type(value).__module__.partition(".")[0] == "torch":
        torch: Any = sys.modules["torch"]  # a tensor exists, so torch has been imported
        value = value.detach().cpu().contiguous()
        name = str(value.dtype).removeprefix("torch.")
        narrow = {"bfloat16": torch.int16}.get(name, torch.uint8 if name.startswith("float8") else None)
        array: np.ndarray = (value if narrow is None else value.view(narrow)).numpy()
        return array if narrow is None else array.view(dtypes.get(name).numpy)
    return np.asarray(value)


class Parameter:
    """A weight: dtype and shape now, numbers later.

    Args:
        value: an array that gives shape, dtype and numbers at once.
        shape: sizes, all positive ints; needed when there is no value.
        dtype: a name such as "bfloat16"; default the value's, else float32.

    Inside `forward`, reading the attribute gives the symbolic tensor of the network being traced.
    """

    __slots__ = ("__weakref__", "_value", "spec")
    spec: Spec

    def __init__(self, value: Any = None, shape: Any = None, dtype: DType | str | None = None) -> None:
        self._value: np.ndarray | None = None
        if value is None:
            if shape is None:
                raise ModuleError("Parameter() needs a shape (or a value that has one)")
            self.spec = Spec(tuple(shape), "float32" if dtype is None else dtype)
            if not all(isinstance(size, int) and size > 0 for size in self.spec.shape):
                raise ModuleError(f"Parameter({self.spec}): every size must be a positive int")
            return
        array = as_array(value)
        kind = dtypes.get(array.dtype if dtype is None else dtype)
        self.spec = Spec(array.shape if shape is None else tuple(shape), kind)
        self.value = array

    @property
    def shape(self) -> Shape:
        return self.spec.shape

    @property
    def dtype(self) -> DType:
        return self.spec.dtype

    @property
    def value(self) -> np.ndarray | None:
        """The numbers, or None as long as nobody has given any."""
        return self._value

    @value.setter
    def value(self, value: Any) -> None:
        array = as_array(value)
        if (fault := self.refuses(array)) is not None:
            raise ModuleError(f"a {self} cannot take this value: {fault}")
        self._value = array

    def refuses(self, array: np.ndarray) -> str | None:
        """Why `array` cannot be the value, or None. Nothing is converted silently."""
        if array.shape != self.spec.shape:
            return f"shape {list(array.shape)}, expected {list(self.spec.shape)}"
        if array.dtype != self.spec.dtype.numpy:
            return f"dtype {array.dtype}, expected {self.spec.dtype.name} (convert with .astype first)"
        return None

    def __repr__(self) -> str:
        return f"Parameter({self.spec})"


class State:
    """Memory that outlives a run, such as an attention layer's KV cache. A Module's attribute, like a Parameter.

    Args:
        spec: its type, for example StateSpec("bfloat16", "kv_cache", heads=2, head_dim=64).
        name: how sessions call it; default the module path of the attribute.
        value: its NumPy form, needed only when the module is called on arrays.
    """

    __slots__ = ("__weakref__", "name", "spec", "value")

    def __init__(self, spec: StateSpec, name: str | None = None, value: np.ndarray | None = None) -> None:
        self.spec, self.name, self.value = spec, name, value

    def __repr__(self) -> str:
        return f"State({self.spec})"
