"""What an ONNX model gives: tensors, text and sequences as outputs of the network."""

from __future__ import annotations

from typing import Any

from ingot.dtypes import DType
from ingot.frontends.narrow import Narrow
from ingot.frontends.onnx.inputs import TENSOR
from ingot.frontends.onnx.table import Sequence
from ingot.frontends.onnx.tensors import dtype_of
from ingot.frontends.onnx.text import Text
from ingot.frontends.recording import Faults, Recorder


class Outputs:
    """Makes the network's outputs. `names`: by output of the model the network's name of it, a list of them for a
    sequence, None for what is absent. `narrow`: the types of those that others carry. `text`: those that are strings.
    """

    def __init__(self, network: Recorder, faults: Faults) -> None:
        self.names: dict[str, Any] = {}
        self.narrow: dict[str, DType] = {}
        self.text: set[str] = set()
        self.notes: list[str] = []
        self._network, self._faults = network, faults

    def give(self, name: str, kind: Any, value: Any) -> None:
        """Makes an output of a value; `kind` is the type that the model says it has."""
        if value is None:
            self.names[name] = None
            self.notes.append(f"{name} is absent and was left out")
        elif isinstance(value, Sequence):
            self.names[name] = names = [f"{name}.{i}" for i in range(len(value))]
            for one, item in zip(names, value, strict=True):
                self._network.output(one, item)
        else:
            self.names[name] = name
            self._network.output(name, self._tensor(name, kind, value))

    def _tensor(self, name: str, kind: Any, value: Any) -> Any:
        if isinstance(value, Text):
            self.text.add(name)
            self.notes.append(f"output {name} is text, given as code points in int32 [..., length]")
            return value.value
        stated = kind.tensor_type.elem_type if kind.WhichOneof("value") == TENSOR else 0
        if stated and stated != value.dtype.onnx:
            says = dtype_of(stated, "an output").name
            self._faults.add("output", f"{name} is {value.dtype.name}, and the file says {says}", "")
        if not isinstance(value, Narrow):
            return value
        self.narrow[name] = value.dtype
        self.notes.append(f"output {name} is {value.dtype.name}, given as {value.value.dtype.name}")
        return value.value
