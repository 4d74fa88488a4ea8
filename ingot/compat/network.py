"""tensorrt_llm.Network: what is recorded inside a net_guard, over a Network of ingot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ingot import dims, nn
from ingot.compat import context
from ingot.compat.datatype import as_dtype
from ingot.compat.logger import logger
from ingot.compat.parameter import Parameter
from ingot.compat.plugin import PluginConfig
from ingot.compat.refusal import here, refused
from ingot.compat.tensor import ITensor, Tensor
from ingot.dims import Dim
from ingot.dtypes import DType
from ingot.ir import F, Spec, Value
from ingot.ir import Network as Graph
from ingot.nn import tracer
from ingot.written import write_whole


class Parameters(tracer.Tracer):
    """The values of Parameters in one network, made at first use and named by their paths in the module called."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph, [], [], [])
        self._kind: tuple[DType, Network] | None = None
        self.known: dict[str, Parameter] = {}  # by the name of their value
        self._kept: list[Any] = []  # what names and paths are known of by id

    def learn(self, module: nn.Module) -> None:
        """Names the parameters and parts of a module tree."""
        self.name(module.named_parameters())
        for path, part in module.named_modules():
            self._paths.setdefault(id(part), path)
            self._kept.append(part)

    def name(self, named: Iterable[tuple[str, nn.Parameter]]) -> None:
        """Names parameters that have no name yet."""
        for path, parameter in named:
            self._names.setdefault(id(parameter), path)
            self._kept.append(parameter)

    @contextmanager
    def meeting(self, kind: DType | None, network: Network) -> Iterator[None]:
        """Float parameters that are read inside are cast to `kind`."""
        before, self._kind = self._kind, None if kind is None or not kind.is_float else (kind, network)
        try:
            yield
        finally:
            self._kind = before

    def value(self, item: Any, attribute: str) -> Value:
        """The network's value for a Parameter or State."""
        found = super().value(item, attribute)
        if self._kind is None or not found.dtype.is_float:
            return found
        kind, network = self._kind
        return network.cast(found, kind, "the type in which its layer computes")

    def _make(self, item: Any, attribute: str) -> Value:
        if not isinstance(item, Parameter):
            return super()._make(item, attribute)
        path = self._names.get(id(item), attribute)
        name, count = path, 0
        while name in self.network.values:
            count += 1
            name = f"{path}.{count}"
        self.known[name] = item
        self._kept.append(item)
        return self.network.parameter(name, item.spec)


class Network:
    """The network of a Builder. `graph` is ingot's own, `casts` says which casts were put in and where."""

    def __init__(self, strongly_typed: bool = True) -> None:
        self.graph = Graph("main")
        self.parameters = Parameters(self.graph)
        self.plugin_config = PluginConfig()
        self.strongly_typed = strongly_typed
        self.dtype: DType | None = None  # of the precision scope
        self.casts: list[str] = []
        self.trt_network: Any = None
        self._names: dict[int, str] = {}  # of values, by id
        self._removed: list[Any] = []

    # -------------------------------------------------------------------------------------------- values
    def add_input(self, name: str, spec: Spec) -> Value:
        """A tensor given at every run."""
        return self.graph.input(name, spec)

    def adopted(self, value: Value) -> Value:
        """The value, in this network also where it was made without operands."""
        if value.network is not self.graph and value.node is not None:
            self.graph.join(value.network, value.node.op)
        return value

    def parameter(self, parameter: Parameter) -> Tensor:
        """A Parameter as a tensor of this network."""
        return Tensor.of(self.parameters.value(parameter, "parameter"), self)

    def name_of(self, value: Value) -> str:
        return self._names.get(id(value), value.name)

    def rename(self, value: Value, name: str) -> None:
        """Another name for a tensor, by which it is an output later."""
        if value.kind == "input":
            values = self.graph.values
            if name in values and values[name] is not value:
                raise refused(f"naming input {value.name} {name!r}", "another tensor has that name; choose a new one")
            del values[value.name]
            value.name = name
            values[name] = value
        else:
            self._names[id(value)] = name

    def name_dimension(self, value: Value, index: int, name: str) -> None:
        """Another name for a size of an input that nothing has read yet."""
        size = value.shape[index]
        if value.kind != "input" or value.uses or not isinstance(size, Dim):
            raise refused(f"naming dimension {index} of {self.name_of(value)}", "name sizes -1 of inputs, before use")
        named = Dim(name, size.min, size.opt, size.max)
        known = self.graph.dims.get(name)
        del self.graph.dims[size.name]
        self.graph.dims[name] = named if known is None else dims.merge(known, named)
        sizes = [self.graph.dims[name] if i == index else size for i, size in enumerate(value.shape)]
        value.spec = Spec(sizes, value.dtype)

    def cast(self, value: Value, dtype: DType, why: str) -> Value:
        """A cast that the user did not write, on record."""
        if value.dtype is dtype:
            return value
        self.casts.append(f"{here()}{self.name_of(value)} from {value.dtype.name} to {dtype.name}, {why}")
        logger.verbose(f"cast {self.casts[-1]}")
        return F.cast(value, dtype)  # type: ignore[no-any-return]

    def mark(self, value: Value, name: str | None, dtype: Any) -> None:
        """Makes a tensor an output."""
        if dtype is not None:
            value = self.cast(value, as_dtype(dtype), "as mark_output asks")
        self.graph.output(self.name_of(value) if name is None else name, value)

    # -------------------------------------------------------------------------------------------- as there
    def _add_input(self, tensor: Tensor, name: str, dtype: Any, shape: Any, dim_range: Any = None) -> None:
        tensor.value = Tensor(name, dtype, shape, dim_range, network=self).value

    def _mark_output(self, tensor: Tensor, name: str, dtype: Any = None) -> None:
        self.mark(tensor.value, name, dtype)

    def set_named_parameters(self, named_parameters: Iterable[tuple[str, Parameter]]) -> None:
        """Names parameters; those read before keep theirs."""
        self.parameters.name(named_parameters)

    @property
    def named_parameters(self) -> list[tuple[str, Parameter]]:
        """The parameters that have been read, with their names in the engine."""
        return list(self.parameters.known.items())

    def register_ndarray(self, ndarray: np.ndarray[Any, Any]) -> None:
        """A no-op: constants are kept by the network itself."""

    def get_inputs(self) -> list[Tensor]:
        """The inputs, in the order in which they were made."""
        return [Tensor.of(value, self) for value in self.graph.inputs]

    def get_outputs(self) -> list[Tensor]:
        """What has been marked as an output."""
        return [Tensor.of(value, self) for value in self.graph.outputs.values()]

    def is_input(self, tensor: Tensor | ITensor) -> bool:
        return tensor.value.kind == "input"

    def is_output(self, tensor: Tensor | ITensor) -> bool:
        return self.graph.is_output(tensor.value)

    def get_layers(self) -> list[Any]:
        """The ops, in an order in which they can run."""
        return list(self.graph.nodes)

    def get_layer_by_name(self, name: str) -> Any:
        """The op whose result has that name; None without one."""
        found = self.graph.values.get(name)
        named = {id(v): v for v in self.graph.values.values() if self.name_of(v) == name}
        found = next(iter(named.values()), found)
        return None if found is None else found.node

    def mark_removed_layer(self, layer: Any) -> None:
        """Remembers an op as removed; the build drops what no output reads by itself."""
        self._removed.append(layer)

    def is_removed_layer(self, layer: Any) -> bool:
        return any(layer is known for known in self._removed)

    @property
    def removed_layers(self) -> list[Any]:
        """What mark_removed_layer was given."""
        return list(self._removed)

    def to_dot(self, path: str | Path | None = None) -> str | None:
        """The network in the language of Graphviz; into a file where `path` is given."""
        lines = ["digraph {"]
        for value in self.graph.inputs:
            lines.append(f"  {_quoted(value.name)} [shape=box, label={_quoted(f'{value.name} {value.spec}')}]")
        for node in self.graph.nodes:
            here = _quoted(node.outputs[0].name)
            lines.append(f"  {here} [label={_quoted(node.op.name)}]")
            sources = [v.node.outputs[0].name if v.node is not None else v.name for v in node.given]
            lines += [f"  {_quoted(source)} -> {here}" for source in sources]
        for name, value in self.graph.outputs.items():
            source = value.node.outputs[0].name if value.node is not None else value.name
            lines.append(f"  {_quoted('output ' + name)} [shape=box]")
            lines.append(f"  {_quoted(source)} -> {_quoted('output ' + name)}")
        text = "\n".join([*lines, "}"]) + "\n"
        if path is None:
            return text
        write_whole(Path(path), text.encode())
        return None

    def get_tensor_users(self, tensor: Tensor | ITensor) -> list[Any]:
        return list(tensor.value.uses)

    def get_tensor_parent(self, tensor: Tensor | ITensor) -> Any:
        return tensor.value.node

    def __enter__(self) -> Network:
        self._guards: list[AbstractContextManager[Any]] = [*getattr(self, "_guards", []), context.net_guard(self)]
        self._guards[-1].__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._guards.pop().__exit__(*error)

    def __str__(self) -> str:
        return str(self.graph)


def _quoted(text: str) -> str:
    """A name in the language of Graphviz."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
