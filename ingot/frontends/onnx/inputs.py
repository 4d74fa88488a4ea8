"""What an ONNX model takes: tensors, text and sequences as inputs of the network, and its names of dims as dims."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ingot import dims, dims_parsing, dtypes
from ingot.dims import Dim, Dimension
from ingot.errors import CheckpointError, DimError, UnsupportedError
from ingot.frontends.narrow import Narrow, carried, carried_spec, is_narrow
from ingot.frontends.onnx.table import Sequence
from ingot.frontends.onnx.tensors import STRING, dtype_of
from ingot.frontends.onnx.text import Text, table_of
from ingot.frontends.recording import Faults, Recorder, checked
from ingot.ir import Spec, Value
from ingot.ir.spec import MAX_RANK

MAX_DIM_NAME = 40  # characters of the model's name of a dim, which an engine's may have 64 of
TENSOR, OPTIONAL = "tensor_type", "optional_type"


class Given(NamedTuple):
    """What is said of inputs beside the model: elements that are fixed, the tensors of a sequence, and sizes."""

    arrays: Mapping[str, Any]
    sequences: Mapping[str, list[Spec]]
    specs: Mapping[str, Spec] = {}


def marked(value: Value, spec: Spec) -> Any:
    """A tensor that the network carries in another type remembers its own."""
    return Narrow(value, spec.dtype) if is_narrow(spec.dtype) else value


class Inputs:
    """Makes the network's inputs. `names`: by input of the model the network's name of it, a list of them for a
    sequence, None for elements that are given. `text`: those that are strings. `wanted`: those of which more must be
    known."""

    def __init__(self, model: str, network: Recorder, given: Given, faults: Faults) -> None:
        self.names: dict[str, Any] = {}
        self.text: set[str] = set()
        self.wanted: set[str] = set()
        self.notes: list[str] = []
        self._model, self._network, self._given, self._faults = model, network, given, faults
        self._dims: dict[str, Dim] = {}  # by the model's name

    def value(self, name: str, kind: Any) -> Any:
        """What an input of this type is in the network."""
        which = kind.WhichOneof("value")
        if which == TENSOR and kind.tensor_type.elem_type == STRING:
            return self._strings(name, kind.tensor_type)
        if name in self._given.arrays:
            self.names[name] = None
            array = self._given.arrays[name]
            return None if array is None else marked(self._network.constant(carried(array)), Spec.of(array))
        if which == TENSOR:
            self.names[name] = name
            spec = self._given.specs.get(name) or self._declared(kind.tensor_type, name)
            return marked(self._network.input(name, checked(carried_spec(spec), name, self._model)), spec)
        if name in self._given.sequences:
            specs = self._given.sequences[name]
            self.names[name] = names = [f"{name}.{i}" for i in range(len(specs))]
            pairs = zip(names, specs, strict=True)
            return Sequence([self._network.input(n, checked(s, n, self._model)) for n, s in pairs])
        if which == OPTIONAL and kind.optional_type.elem_type.WhichOneof("value") == TENSOR:
            return self.value(name, kind.optional_type.elem_type)
        self.wanted.add(name)
        self._faults.add("input", f"{name} is no tensor: how many it has must be known", "")
        return None

    def _strings(self, name: str, kind: Any) -> Text | None:
        """Strings come as code points, with a dim more: the room for the longest one."""
        if name in self._given.arrays:
            self.names[name] = None
            return None if (array := self._given.arrays[name]) is None else table_of(self._network, array)
        sizes = self._sizes(kind, name)
        if len(sizes) >= MAX_RANK:
            raise self._error(f"input {name[:80]} has {len(sizes)} dimensions of strings, the most are {MAX_RANK - 1}")
        spec = Spec((*sizes, self._dim(f"{name}_length")), dtypes.int32)
        self.names[name] = name
        self.text.add(name)
        self.notes.append(f"input {name} is text, taken as code points in int32 [..., length], zeros behind each")
        return Text(self._network.input(name, checked(spec, name, self._model)))

    def _declared(self, kind: Any, name: str) -> Spec:
        return Spec(self._sizes(kind, name), dtype_of(kind.elem_type, f"{self._model}: input {name[:80]}"))

    def _sizes(self, kind: Any, name: str) -> list[Dimension]:
        if not kind.HasField("shape"):
            raise UnsupportedError(f"{self._model}: input {name[:80]} has no shape; names of its dims are enough")
        if len(kind.shape.dim) > MAX_RANK:
            raise self._error(f"input {name[:80]} has {len(kind.shape.dim):,} dimensions, the most are {MAX_RANK}")
        return [self._size(d, name, i) for i, d in enumerate(kind.shape.dim)]

    def _size(self, d: Any, name: str, axis: int) -> Dimension:
        if d.HasField("dim_value"):
            if d.dim_value < 0:
                return self._dim(f"{name}_{axis}")
            return int(d.dim_value)
        named = any(c.isalnum() for c in d.dim_param)  # "?" names nothing: two of them are two sizes
        return self._dim(d.dim_param if named else f"{name}_{axis}")

    def _dim(self, text: str) -> Dimension:
        """A dim of the model's name; one written as an expression of one other name is that expression."""
        try:
            found = dims_parsing.parse(text)
            if dims.affine(found) is not None:
                return found
        except DimError:
            pass
        if text not in self._dims:
            plain = re.sub(r"[^A-Za-z0-9_.]", "_", text[:MAX_DIM_NAME])
            plain = plain if re.match(r"[A-Za-z_]", plain) and plain not in ("min", "max") else f"dim_{plain}"
            taken = {d.name for d in self._dims.values()}
            self._dims[text] = Dim(plain if plain not in taken else f"{plain}_{len(taken)}_")
        return self._dims[text]

    def _error(self, why: str) -> CheckpointError:
        return CheckpointError(f"{self._model}: {why}")
