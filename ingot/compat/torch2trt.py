"""`ingot.torch2trt(model, [x])`: the one call of torch2trt, and a module that is called like the model."""

from __future__ import annotations

import copy
import inspect
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from ingot import _lazy
from ingot.builder.build import build
from ingot.compat.builder import opened
from ingot.compat.no_effect import ignored
from ingot.compat.refusal import here, refused
from ingot.compat.utils import numpy_to_torch
from ingot.dims import Dim
from ingot.engine.session import Engine
from ingot.errors import UserError
from ingot.nn.parameter import as_array
from ingot.quantization.quantize import quantize

GIVE = (
    "give samples of the model's inputs, by len() and [i] or by iteration (a few hundred, as it will see them, are "
    "usual), or leave it out for int8 weights alone"
)


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
        int8_mode: with an int8_calib_dataset calibrated int8, of convolutions too, as `ingot.quantize` makes it: by
            what the data set gives, tensors for all inputs with or without the dimension of a batch (what is left over,
            such as labels, is not read). Where the batch is that of the examples, samples are put together to it, and
            the first ones count once more where the last batch is not full. Without a data set matrices of linear
            layers and tables as int8 with scales (docs/weights.md).
        max_batch_size: above 1, the first dimension of every input may be from 1 to this.
        input_names, output_names: accepted: names are those of the module.

    Returns:
        A TRTModule: `.engine` is ingot's engine, `state_dict` holds its bytes.

    Raises:
        UnsupportedError: ops that ingot lacks, or an argument that torch2trt never had. UserError: int8_mode for a
            module without such a weight, or with data that calibrate nothing; an int8_calib_dataset without int8_mode.
    """
    unknown = sorted(kwargs.keys() - {"int8_calib_dataset", *ignored("torch2trt")})
    if unknown:
        instead = (
            "ingot.build(module, inputs, dynamic={name: {axis: ingot.Dim(…)}})"
            if any(name.endswith("_shapes") for name in unknown)
            else "leave them out"
        )
        raise refused(f"torch2trt with {', '.join(unknown)}", instead)
    data = kwargs.get("int8_calib_dataset")
    if data is not None and not int8_mode:
        raise UserError(f"{here()}torch2trt with int8_calib_dataset, and without int8_mode=True: give both, or neither")
    given = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    dynamic = None
    if max_batch_size > 1:
        names = list(inspect.signature(module.forward).parameters)[: len(given)]
        dynamic = {name: {0: Dim("batch", 1, None, max_batch_size)} for name in names}
    if any(tensor.is_cuda for tensor in (*module.parameters(), *module.buffers())):
        module = copy.deepcopy(module).cpu()
    given = tuple(x.cpu() if getattr(x, "is_cuda", False) else x for x in given)
    precision = "float16" if fp16_mode else None
    if data is None:
        weights = "int8" if int8_mode else "same"
        engine = build(module, given, precision=precision, weights=weights, dynamic=dynamic)
    else:
        size = 1 if dynamic or not given[0].ndim else len(given[0])
        engine = quantize(module, _batches(data, given, size), given, precision=precision, dynamic=dynamic)
    return _module_class()(engine)


def _batches(data: Any, examples: Sequence[Any], size: int) -> Iterator[tuple[Any, ...]]:
    """What a data set gives as batches. Samples for themselves are put together, `size` of them, and the first ones
    once more to fill the last batch: an engine of one size runs no smaller one. What does not fit the examples goes on
    as it is, for the calibration to name it."""
    torch = _lazy.optional("torch", "torch2trt", "ingot[torch]")
    indexed = hasattr(data, "__getitem__") and hasattr(data, "__len__")  # torch2trt's need not end by IndexError
    if isinstance(data, type) or (not indexed and not hasattr(data, "__iter__")):
        kind = f"the class {data.__name__}" if isinstance(data, type) else f"a {type(data).__name__}"
        raise UserError(f"{here()}torch2trt with int8_calib_dataset, which is {kind}: {GIVE}")
    first: list[tuple[Any, ...]] = []
    waiting: list[tuple[Any, ...]] = []
    sample = None
    for sample in (data[i] for i in range(len(data))) if indexed else data:
        given = tuple(sample) if isinstance(sample, tuple | list) else (sample,)
        given = tuple(
            x[None] if getattr(x, "ndim", None) == example.ndim - 1 else x
            for x, example in zip(given, examples, strict=False)
        )
        given = tuple(x.cpu() if getattr(x, "is_cuda", False) else x for x in given)
        alone = len(given) == len(examples) and all(
            isinstance(x, torch.Tensor) and x.shape == (1, *example.shape[1:])
            for x, example in zip(given, examples, strict=True)
        )
        if size == 1 or not alone:
            yield given
            continue
        waiting.append(given)
        if len(first) < size:
            first.append(given)
        if len(waiting) == size:
            yield _together(torch, waiting)
            waiting = []
    if waiting:
        yield _together(torch, [*waiting, *islice(cycle(first), size - len(waiting))])
    if sample is None:
        raise UserError(f"{here()}torch2trt with int8_calib_dataset, which is empty: {GIVE}")


def _together(torch: Any, samples: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """A batch of samples, for each input."""
    return tuple(torch.cat(some) for some in zip(*samples, strict=True))


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
