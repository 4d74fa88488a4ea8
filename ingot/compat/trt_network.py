"""tensorrt.INetworkDefinition over a network being built."""

from __future__ import annotations

from functools import partial
from typing import Any

from ingot.compat.refusal import MissingName, here
from ingot.compat.tensor import ITensor, Tensor
from ingot.compat.trt_layers import INSTEAD, LAYERS, Conditional, Layer


class INetworkDefinition:
    """The network that a Builder makes, under TensorRT's interface."""

    name = "main"
    has_implicit_batch_dimension = False

    def __init__(self, network: Any) -> None:
        self.network = network
        network.trt_network = self

    def add_input(self, name: str, dtype: Any, shape: Any) -> ITensor:
        """A tensor given at every run; -1 is a size that only a run knows."""
        return Tensor(name, dtype, shape, network=self.network).trt_tensor

    def mark_output(self, tensor: Any) -> None:
        """Makes a tensor a result of the engine, by its name."""
        self.network.mark(tensor.value, None, None)

    def unmark_output(self, tensor: Any) -> None:
        """Takes a result back."""
        outputs = self.network.graph.outputs
        for name in [name for name, value in outputs.items() if value is tensor.value]:
            del outputs[name]

    @property
    def num_inputs(self) -> int:
        return len(self.network.graph.inputs)

    @property
    def num_outputs(self) -> int:
        return len(self.network.graph.outputs)

    @property
    def num_layers(self) -> int:
        return len(self.network.graph.nodes)

    def get_input(self, index: int) -> ITensor:
        return ITensor(self.network, self.network.graph.inputs[index])

    def get_output(self, index: int) -> ITensor:
        return ITensor(self.network, list(self.network.graph.outputs.values())[index])

    def get_flag(self, flag: Any) -> bool:
        """Whether the network is strongly typed, for that flag; batches are always explicit."""
        return flag.name != "STRONGLY_TYPED" or bool(self.network.strongly_typed)

    def add_if_conditional(self) -> Conditional:
        """A choice between two tensors."""
        return Conditional(self.network)

    def __getattr__(self, name: str) -> Any:
        kind = name.removeprefix("add_")
        if name.startswith("add_") and kind in LAYERS:
            return partial(self._added, kind)
        known = ", ".join(f"add_{kind}" for kind in LAYERS)
        raise MissingName(f"{here()}ingot's network has no {name}; instead: {INSTEAD.get(name, f'one of {known}')}")

    def _added(self, kind: str, *args: Any, **kwargs: Any) -> Layer:
        return Layer(self.network, kind, args, kwargs)
