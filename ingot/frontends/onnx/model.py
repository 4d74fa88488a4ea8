"""An ONNX model as it is read: the graph, its initializers by name, the functions that it brings or that the standard
defines.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ingot import _lazy, dtypes
from ingot.errors import CheckpointError, UnsupportedError
from ingot.frontends.onnx import wire
from ingot.frontends.onnx.table import NEWEST, domain_of
from ingot.frontends.onnx.tensors import STRING, Tensors, dtype_of
from ingot.frontends.table import Unsupported
from ingot.ir import Spec
from ingot.ir.spec import MAX_RANK, elements
from ingot.tensor_table import name_fault

Array = np.ndarray[Any, Any]

MAX_NODES = 200_000  # that are recorded, inlined ones too
MAX_NAME = 1024  # bytes of the name of an input, an output, a weight


def onnx_package() -> Any:
    """The package that reads the format. Raises UserError with what to install."""
    return _lazy.optional("onnx", "reading an ONNX file", "ingot[onnx]")


class Weights(Mapping[str, Array]):
    """The initializers of a graph by name, read when asked for."""

    def __init__(self, tensors: Tensors, graph: Any) -> None:
        self._tensors = tensors
        self._stored: dict[str, Any] = {}
        for tensor in (*graph.initializer, *graph.sparse_initializer):
            name = tensor.values.name if hasattr(tensor, "values") else tensor.name
            if name in self._stored or not name:
                raise CheckpointError(f"{tensors.name}: two initializers are called {name[:80]!r}, or one has no name")
            self._stored[name] = tensor

    def spec(self, name: str) -> Spec:
        """What an initializer is."""
        tensor = self._stored[name]
        return sparse_spec(self._tensors, tensor) if hasattr(tensor, "values") else self._tensors.spec(tensor)

    def __getitem__(self, name: str) -> Array:
        tensor = self._stored[name]
        return sparse(self._tensors, tensor) if hasattr(tensor, "values") else self._tensors.array(tensor)

    def __contains__(self, name: object) -> bool:
        return name in self._stored  # without reading it

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


FREE_SPARSE, MAX_SPARSE = 4 << 20, 1024  # bytes that a sparse tensor may have written out, or so many for one stored


def sparse_spec(tensors: Tensors, tensor: Any) -> Spec:
    """What a sparse tensor is, written out. Raises CheckpointError for an impossible shape."""
    values, places = tensors.spec(tensor.values), tensors.spec(tensor.indices)
    shape = tuple(tensor.dims)
    count, stored = math.prod(shape), elements(values.shape)
    assert isinstance(stored, int)
    if any(d < 1 for d in shape) or not 1 <= len(shape) <= MAX_RANK or places.dtype is not dtypes.int64:
        raise tensors.error(tensor.values, f"is sparse, of the impossible shape {list(shape)[:MAX_RANK]}")
    size = values.dtype.numpy.itemsize
    if count * size > max(FREE_SPARSE, MAX_SPARSE * stored * size):
        raise tensors.error(
            tensor.values, f"is sparse, {stored:,} of {count:,} elements: ingot stores all of them; save it densely"
        )
    return Spec(shape, values.dtype)


def sparse(tensors: Tensors, tensor: Any) -> Array:
    """A sparse tensor written out. Raises CheckpointError for indices that do not fit."""
    shape = tuple(int(d) for d in sparse_spec(tensors, tensor).shape if isinstance(d, int))
    count = math.prod(shape)
    values, places = tensors.array(tensor.values), tensors.array(tensor.indices)
    if places.ndim == 2 and places.shape == (values.size, len(shape)):
        if places.size and (places.min() < 0 or (places >= np.array(shape)).any()):
            raise tensors.error(tensor.values, "is sparse, with indices out of range")
        places = np.ravel_multi_index(tuple(places.T), shape)
    if values.ndim != 1 or places.shape != values.shape or (
        places.size and (places.min() < 0 or places.max() >= count)
    ):  # fmt: skip
        raise tensors.error(tensor.values, "is sparse, with indices that do not fit")
    if (np.diff(places) <= 0).any():
        raise tensors.error(tensor.values, "is sparse, with indices that do not ascend")
    whole = np.zeros(count, values.dtype)
    whole[places] = values
    return whole.reshape(shape)


TEXT, MESSAGE = 9, 11  # types of protobuf's fields


def check_text(message: Any, name: str) -> None:
    """Raises CheckpointError where a name is not UTF-8: protobuf gives bytes then."""
    todo = [message]
    while todo:
        one = todo.pop()
        if one.DESCRIPTOR.name == "TensorProto":  # listing its fields would copy its elements
            texts: list[Any] = [one.name, one.doc_string]
            todo += one.external_data
        else:
            texts = []
            for field, value in one.ListFields():
                single = isinstance(value, str | bytes) or hasattr(value, "DESCRIPTOR")
                if field.type in (TEXT, MESSAGE):
                    (texts if field.type == TEXT else todo).extend((value,) if single else value)
        if any(isinstance(text, bytes) for text in texts):
            raise CheckpointError(f"{name}: a name in the model ({one.DESCRIPTOR.name}) is not UTF-8")


class Standard(NamedTuple):
    """A function of the standard, and what its attributes are where a node leaves them out."""

    function: Any
    defaults: dict[str, Any]


class Model:
    """A parsed model.

    Args:
        proto: a ModelProto.
        name: of the file, for messages.
        folder: where external data lies; None: there is none.
        inside: the tensors that were cut out of its file before it was parsed.

    Raises:
        CheckpointError: a model that contradicts itself.
        UnsupportedError: one of an opset that is too old.
    """

    def __init__(
        self, proto: Any, name: str, folder: Path | None = None, inside: wire.Inside | None = None
    ) -> None:
        self.onnx = onnx_package()
        if len(proto.graph.node) > MAX_NODES:
            raise CheckpointError(f"{name}: has more than {MAX_NODES:,} nodes, {len(proto.graph.node):,}")
        check_text(proto, name)
        self.proto, self.name, self.graph = proto, name, proto.graph
        self.tensors = Tensors(name, folder, inside)
        newest = int(self.onnx.IR_VERSION)
        if not 0 <= proto.ir_version <= newest:
            raise UnsupportedError(
                f"{name}: it is in version {proto.ir_version} of the format, and the package onnx here reads up "
                f"to {newest}: install a newer one (pip install -U onnx), or save the model in an older version"
            )
        self.versions = self._versions(proto)
        self._check_names(proto.graph)
        self.weights = Weights(self.tensors, proto.graph)
        self._functions: dict[tuple[str, str, str], Any] = {}
        for function in proto.functions:
            key = (domain_of(function.domain), function.name, getattr(function, "overload", ""))
            if key in self._functions:
                raise CheckpointError(f"{name}: the function {function.name[:80]!r} is defined twice")
            if len(set(function.input)) != len(function.input):
                raise CheckpointError(f"{name}: the function {function.name[:80]!r} has two operands of one name")
            self._functions[key] = function
        self._check_calls()

    def _versions(self, proto: Any) -> dict[str, int]:
        found: dict[str, int] = {}
        for entry in proto.opset_import:
            domain, version = domain_of(entry.domain), int(entry.version)
            shown = repr(domain[:80] or "ai.onnx")
            if not 1 <= version <= NEWEST:
                raise CheckpointError(f"{self.name}: {version} is no version of the opset {shown}")
            if found.setdefault(domain, version) != version:
                raise CheckpointError(f"{self.name}: asks for two versions of the opset {shown}")
        newest = int(self.onnx.defs.onnx_opset_version())
        if found.get("", 1) > newest:
            raise UnsupportedError(
                f"{self.name}: is written in opset {found['']}, and the newest that is known here is {newest}: export "
                f"it for an older one (opset_version={newest}), or install a newer onnx (pip install -U onnx)"
            )
        return found

    def _check_names(self, graph: Any) -> None:
        """Inputs, outputs and weights keep their names in an engine. One that begins like a path is common."""
        for kind, infos in (("input", graph.input), ("output", graph.output), ("initializer", graph.initializer)):
            seen: set[str] = set()
            for info in infos:
                if (fault := name_fault(info.name.removeprefix("/"), MAX_NAME)) is not None:
                    raise CheckpointError(f"{self.name}: the {kind} {info.name[:80]!r} cannot be named so: {fault}")
                if info.name in seen and kind == "output":
                    raise CheckpointError(f"{self.name}: two outputs are called {info.name[:80]!r}")
                seen.add(info.name)

    def versions_of(self, function: Any) -> dict[str, int]:
        """The opsets that a function is written in."""
        return self._versions(function) or self.versions

    def function(self, domain: str, op: str, overload: str) -> Any:
        """A function that the model brings, or None."""
        return self._functions.get((domain, op, overload))

    def _check_calls(self) -> None:
        """No function calls itself, and all calls written out are no more nodes than are read."""
        calls = {key: self._called(function.node) for key, function in self._functions.items()}
        sizes: dict[Any, int] = {}  # nodes of a function that is written out
        for start in calls:
            path: dict[Any, Iterator[Any]] = {start: iter(calls[start][1])}
            while path:
                last = next(reversed(path))
                below = next(path[last], None)
                if below is None:
                    count, called = calls[last]
                    sizes[last] = count + sum(times * sizes[key] for key, times in called.items())
                    del path[last]
                elif below in path:
                    raise CheckpointError(f"{self.name}: the function {below[1][:80]!r} calls itself")
                elif below not in sizes:
                    path[below] = iter(calls[below][1])
        count, called = self._called(self.graph.node)
        count += sum(times * sizes[key] for key, times in called.items())
        if count > MAX_NODES:
            raise CheckpointError(f"{self.name}: has more than {MAX_NODES:,} nodes, with the functions it calls")

    def _called(self, nodes: Any) -> tuple[int, Counter[Any]]:
        """How many nodes there are, those of subgraphs too, and which of the model's functions they call how often."""
        count, found, todo = 0, Counter[Any](), [nodes]
        while todo:
            for node in todo.pop():
                count += 1
                key = (domain_of(node.domain), node.op_type, getattr(node, "overload", ""))
                if key in self._functions:
                    found[key] += 1
                todo += [a.g.node for a in node.attribute if a.HasField("g")]
        return count, found

    def standard(self, op: str, domain: str, version: int) -> Any:
        """The function that the standard defines an op by, or None.

        Only those that are data. Others are made by code of the package onnx for a node, which does not check it.
        """
        try:
            schema = self.onnx.defs.get_schema(op, version, domain)
        except self.onnx.defs.SchemaError:
            return None
        if not schema.has_function:
            return None
        defaults = [a.default_value for a in schema.attributes.values() if a.default_value.type]
        return Standard(schema.function_body, {a.name: self.attribute(a) for a in defaults})

    def sparse(self, tensor: Any) -> Array:
        """A sparse tensor written out."""
        return sparse(self.tensors, tensor)

    def attribute(self, attribute: Any) -> Any:
        """What an attribute is: a number, a word, a tensor as an array, a graph, a type, or a tuple of them."""
        types = self.onnx.AttributeProto
        kind = attribute.type
        if kind == types.FLOAT:
            return float(attribute.f)
        if kind == types.INT:
            return int(attribute.i)
        if kind == types.STRING:
            return self._text(attribute.s)
        if kind == types.TENSOR:
            return self._tensor(attribute.t)
        if kind == types.SPARSE_TENSOR:
            return self.sparse(attribute.sparse_tensor)
        if kind == types.GRAPH:
            return attribute.g
        if kind == types.FLOATS:
            return tuple(map(float, attribute.floats))
        if kind == types.INTS:
            return tuple(map(int, attribute.ints))
        if kind == types.STRINGS:
            return tuple(map(self._text, attribute.strings))
        if kind == types.TENSORS:
            return tuple(map(self._tensor, attribute.tensors))
        if kind == types.TYPE_PROTO:
            return attribute.tp
        raise Unsupported(f"the attribute {attribute.name:.60} is of the kind {kind}, which ingot does not read")

    def _tensor(self, tensor: Any) -> Array:
        if tensor.data_type == STRING:
            return self.tensors.words(tensor)
        dtype_of(tensor.data_type, f"{self.name}: an attribute")
        return self.tensors.array(tensor)

    def _text(self, value: bytes) -> str:
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise Unsupported("a word among its attributes is not UTF-8") from None


def open_model(path: str | os.PathLike[str]) -> Model:
    """The model of an .onnx file.

    Raises:
        CheckpointError: no such file, or one that is damaged or malicious.
        UserError: the package onnx is not installed.
    """
    onnx = onnx_package()
    place = Path(path)
    data, inside = wire.read(place, onnx.ModelProto)
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except _lazy.optional("google.protobuf.message", "reading an ONNX file", "ingot[onnx]").DecodeError as e:
        raise CheckpointError(f"{path} is no ONNX model: {str(e)[:200]}") from None
    if not proto.HasField("graph"):
        raise CheckpointError(f"{path} is no ONNX model: it has no graph")
    return Model(proto, str(path), place.resolve().parent, inside)
