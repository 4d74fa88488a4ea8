"""tensorrt.INetworkDefinition over a network being built."""

from __future__ import annotations

from functools import partial
from typing import Any

from ingot import functional as f
from ingot.compat.functional import recorded
from ingot.compat.missing import NETWORK
from ingot.compat.refusal import MissingName, here, refused
from ingot.compat.tensor import ITensor, Tensor
from ingot.compat.trt_enums import NetworkDefinitionCreationFlag
from ingot.compat.trt_layers import LAYERS, Conditional, Layer
from ingot.compat.trt_loop import Loop
from ingot.ir.network import Node


class RecordedLayer:
    """One op of the network, as a layer that can be looked at."""

    _network: Any
    _node: Node

    def __init__(self, network: Any, node: Node) -> None:
        self.__dict__.update(_network=network, _node=node)

    @property
    def name(self) -> str:
        """The module path and the op."""
        return f"{self._node.where}/{self._node.op.name}" if self._node.where else str(self._node.op.name)

    @property
    def type(self) -> str:
        """The op's name: an op of ingot's is seldom one layer of TensorRT's."""
        return str(self._node.op.name)

    @property
    def num_inputs(self) -> int:
        return len(self._node.given)

    @property
    def num_outputs(self) -> int:
        return len(self._node.outputs)

    def get_input(self, index: int) -> ITensor:
        return ITensor(self._network, self._node.given[index])

    def get_output(self, index: int) -> ITensor:
        return ITensor(self._network, self._node.outputs[index])

    def get_output_type(self, index: int) -> Any:
        return self.get_output(index).dtype

    def __setattr__(self, name: str, value: Any) -> None:
        raise refused(f"setting {name} of a recorded op", "set it on the layer that add_… gave, before get_output")


class INetworkDefinition:
    """The network that a Builder makes, under TensorRT's interface."""

    name = "main"
    has_implicit_batch_dimension = False
    error_recorder: Any = None

    def __init__(self, network: Any, builder: Any = None) -> None:
        self.network, self.builder = network, builder
        network.trt_network = self

    def add_input(self, name: str, dtype: Any, shape: Any) -> ITensor:
        """A tensor given at every run; -1 is a size that only a run knows."""
        return Tensor(name, dtype, shape, network=self.network).trt_tensor

    def mark_output(self, tensor: Any) -> None:
        """Makes a tensor a result of the engine, by its name."""
        self.network.mark(tensor.value, None, None)

    mark_output_for_shapes = mark_output

    def unmark_output(self, tensor: Any) -> None:
        """Takes a result back."""
        outputs = self.network.graph.outputs
        for name in [name for name, value in outputs.items() if value is tensor.value]:
            del outputs[name]

    unmark_output_for_shapes = unmark_output

    @property
    def flags(self) -> int:
        """The creation flags, one bit each."""
        strong = 1 << int(NetworkDefinitionCreationFlag.STRONGLY_TYPED) if self.network.strongly_typed else 0
        return 1 << int(NetworkDefinitionCreationFlag.EXPLICIT_BATCH) | strong

    @property
    def num_inputs(self) -> int:
        return len(self.network.graph.inputs)

    @property
    def num_outputs(self) -> int:
        return len(self.network.graph.outputs)

    @property
    def num_layers(self) -> int:
        """The number of ops recorded; a layer whose output nobody has read is none yet."""
        return len(self.network.graph.nodes)

    def __len__(self) -> int:
        return self.num_layers

    def __getitem__(self, index: int) -> RecordedLayer:
        return self.get_layer(index)

    def __bool__(self) -> bool:
        return True

    def get_layer(self, index: int) -> RecordedLayer:
        """An op, in an order in which they can run."""
        return RecordedLayer(self.network, self.network.graph.nodes[index])

    def get_input(self, index: int) -> ITensor:
        return ITensor(self.network, self.network.graph.inputs[index])

    def get_output(self, index: int) -> ITensor:
        return ITensor(self.network, list(self.network.graph.outputs.values())[index])

    def get_flag(self, flag: Any) -> bool:
        """Whether the network is strongly typed, for that flag; batches are always explicit."""
        return bool(self.flags >> int(flag) & 1)

    def add_assertion(self, condition: Any, message: str) -> Layer:
        """A run in which the condition (bool) does not hold everywhere is an error that says `message`."""
        recorded("assertion", lambda condition: f.assertion(condition, message), {"condition": condition})
        return Layer(self.network, "identity", (condition,), {})

    def add_if_conditional(self) -> Conditional:
        """A choice between two tensors."""
        return Conditional(self.network)

    def add_loop(self) -> Loop:
        """Rounds of ops; see trt_loop.py."""
        return Loop(self.network)

    def __getattr__(self, name: str) -> Any:
        kind = name.removeprefix("add_")
        if name.startswith("add_") and kind in LAYERS:
            return partial(self._added, kind)
        known = ", ".join(f"add_{kind}" for kind in LAYERS)
        raise MissingName(f"{here()}ingot's network has no {name}; instead: {NETWORK.get(name, f'one of {known}')}")

    def _added(self, kind: str, *args: Any, **kwargs: Any) -> Layer:
        return Layer(self.network, kind, args, kwargs)
