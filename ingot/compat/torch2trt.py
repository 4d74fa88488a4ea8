"""`ingot.torch2trt(model, [x])`: the one call of torch2trt, and a module that is called like the model."""

from __future__ import annotations

import copy
import inspect
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ingot import _lazy
from ingot.builder.build import build
from ingot.compat.builder import opened
from ingot.compat.logger import logger
from ingot.compat.no_effect import ignored
from ingot.compat.refusal import here, refused
from ingot.compat.utils import numpy_to_torch
from ingot.dims import Dim
from ingot.engine.session import Engine
from ingot.nn.parameter import as_array


def torch2trt(
    module: Any,
    inputs: Sequence[Any],
    fp16_mode: bool = False,
    int8_mode: bool = False,
    max_batch_size: int = 1,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    **kwargs: Any,
) -> Any:
    """An engine of a torch module, as a torch module that is called like it.

    Args:
        module: a torch.nn.Module; inputs: example tensors, in the order of its forward. Both may lie on a GPU.
        fp16_mode: weights and what is between layers in float16; inputs and outputs keep their types.
        int8_mode: matrices of linear layers and tables as int8 with scales (docs/weights.md). An
            int8_calib_dataset is not read, with a warning: `ingot.quantize` calibrates layers.
        max_batch_size: above 1, the first dimension of every input may be from 1 to this.
        input_names, output_names: accepted: names are those of the module.

    Returns:
        A TRTModule: `.engine` is ingot's engine, `state_dict` holds its bytes.

    Raises:
        UnsupportedError: ops that ingot lacks, or an argument that torch2trt never had. UserError: int8_mode for a
            module without such a weight.
    """
    unknown = sorted(kwargs.keys() - ignored("torch2trt").keys())
    if unknown:
        instead = "ingot.build(module, inputs, dynamic={name: {axis: ingot.Dim(…)}})" if any(
            name.endswith("_shapes") for name in unknown
        ) else "leave them out"
        raise refused(f"torch2trt with {', '.join(unknown)}", instead)
    if kwargs.get("int8_calib_dataset") is not None:
        logger.warning(
            f"{here()}torch2trt reads no int8_calib_dataset: int8_mode stores weights of linear layers as int8, and "
            "layers compute in float; for int8 that is calibrated, of convolutions too, instead: "
            "ingot.quantize(model, data, inputs)"
        )
    given = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    dynamic = None
    if max_batch_size > 1:
        names = list(inspect.signature(module.forward).parameters)[: len(given)]
        dynamic = {name: {0: Dim("batch", 1, None, max_batch_size)} for name in names}
    if any(tensor.is_cuda for tensor in (*module.parameters(), *module.buffers())):
        module = copy.deepcopy(module).cpu()
    given = tuple(x.cpu() if getattr(x, "is_cuda", False) else x for x in given)
    engine = build(
        module, given, precision="float16" if fp16_mode else None, weights="int8" if int8_mode else "same",
        dynamic=dynamic,
    )  # fmt: skip
    return _module_class()(engine)


@cache
def _module_class() -> type[Any]:
    """TRTModule, which is a class of torch's and so waits for it."""
    torch = _lazy.optional("torch", "torch2trt", "ingot[torch]")

    class TRTModule(torch.nn.Module):  # type: ignore[misc, name-defined]
        """An engine, called like the torch module that it was built from; torch2trt's name for it.

        Without an engine it waits for `load_state_dict`.
        """

        def __init__(self, engine: Engine | None = None) -> None:
            super().__init__()
            self.engine = engine
            self._elsewhere: tuple[Engine, dict[str, Engine]] | None = None  # an engine, and itself on GPUs

        def forward(self, *inputs: Any, **named: Any) -> Any:
            """Tensors in the model's order → a tensor, a tuple of them, or a dict as the model gives.

            Where one lies on a GPU, the engine runs on device cuda there, on torch's current stream, and so do results.
            """
            if self.engine is None:
                raise refused("a TRTModule without an engine", "call load_state_dict first")
            ports = [port.name for port in self.engine.inputs]
            feeds = dict(zip(ports, inputs, strict=False)) | named
            number = next((value.device.index for value in feeds.values() if getattr(value, "is_cuda", False)), None)
            engine = self.engine if number is None else self._there(f"cuda:{number}")
            found = engine.run({name: _plain(value) for name, value in feeds.items()})
            tensors = {name: x if isinstance(x, torch.Tensor) else numpy_to_torch(x) for name, x in found.items()}
            if not all(name.startswith("output_") for name in tensors):
                return tensors
            return next(iter(tensors.values())) if len(tensors) == 1 else tuple(tensors.values())

        def _there(self, device: str) -> Engine:
            """The engine with its sessions on a GPU."""
            assert self.engine is not None
            if self._elsewhere is None or self._elsewhere[0] is not self.engine:
                self._elsewhere = (self.engine, {})
            found = self._elsewhere[1].get(device)
            return found or self._elsewhere[1].setdefault(device, self.engine.on(device))

        def get_extra_state(self) -> Any:
            """The engine's bytes, as a tensor."""
            if self.engine is None:
                return None
            with tempfile.TemporaryDirectory(prefix="ingot-") as folder:
                path = Path(folder, "engine.ingot")
                self.engine.save(path)
                return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)

        def set_extra_state(self, state: Any) -> None:
            """An engine of such bytes."""
            self.engine = None if state is None else opened(as_array(state).tobytes())

    return TRTModule


def _plain(value: Any) -> Any:
    return value.detach() if hasattr(value, "detach") else value


def __getattr__(name: str) -> Any:
    if name == "TRTModule":
        return _module_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

