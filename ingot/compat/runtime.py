"""tensorrt_llm.runtime: sessions that write into given tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot import dims
from ingot.backends.device import program_of
from ingot.compat.builder import opened
from ingot.compat.datatype import DataType, as_dtype, data_type
from ingot.compat.refusal import called, refused
from ingot.compat.tensor import Dims
from ingot.engine.session import Engine, Port, as_array
from ingot.errors import DimError, InputError


@dataclass
class TensorInfo:
    """Name, type and sizes of an input or output."""

    name: str
    dtype: DataType
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        self.dtype, self.shape = data_type(self.dtype), tuple(int(size) for size in self.shape)

    def numel(self) -> int:
        """The number of elements."""
        return Dims(self.shape).volume()

    def squeeze(self, dim: int) -> TensorInfo:
        """Without a dimension of size 1."""
        sizes = list(self.shape)
        if sizes[dim] == 1:
            del sizes[dim]
        return TensorInfo(self.name, self.dtype, tuple(sizes))


class Context:
    """What is known of a session's sizes: tensorrt.IExecutionContext as far as sessions are asked about it."""

    def __init__(self) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}

    def get_tensor_shape(self, name: str) -> Dims:
        """The sizes of an input or output as of the last infer_shapes or run; -1 where only a run shows them."""
        return Dims(self.shapes[name])


class Session:
    """tensorrt_llm.runtime.Session over a session of ingot's, on the CPU."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.context = Context()
        self.runtime: Any = None
        self._session = engine.session()

    @staticmethod
    def from_serialized_engine(engine: Any) -> Session:
        """A session of an engine's bytes."""
        return Session(opened(engine))

    @staticmethod
    def from_engine(engine: Any) -> Session:
        """A session of an engine."""
        return Session(opened(engine))

    @called("Session.infer_shapes")
    def infer_shapes(self, inputs: Sequence[TensorInfo], context: Context | None = None) -> list[TensorInfo]:
        """The types and sizes of the outputs for inputs of these; -1 where only a run shows a size.

        Raises:
            InputError: (a ValueError) an input that is not there or missing, another type, sizes that do not fit.
        """
        context = self.context if context is None else context
        ports = {port.name: port for port in self._session.inputs}
        for info in inputs:
            if info.name not in ports:
                raise InputError(f"{info.name!r} is no input; the inputs are {', '.join(ports)}")
            if as_dtype(info.dtype) is not as_dtype(ports[info.name].dtype):
                raise InputError(f"{info.name} is {info.dtype.name} and must be {ports[info.name]}")
        sizes = self._sizes({info.name: info.shape for info in inputs}, ports)
        found = [
            TensorInfo(port.name, data_type(port.dtype), tuple(_size(dim, sizes) for dim in port.dims))
            for port in self._session.outputs
        ]
        context.shapes = {info.name: info.shape for info in [*inputs, *found]}
        return found

    set_shapes = infer_shapes

    def _sizes(self, shapes: Mapping[str, tuple[int, ...]], ports: Mapping[str, Port]) -> dict[str, int]:
        """The sizes of dims that shapes of inputs give."""
        known: dict[str, int] = {}
        bounds = {symbol["name"]: symbol for symbol in program_of(self.engine.header)["symbols"]}
        for name, port in ports.items():
            if name not in shapes:
                raise InputError(f"input {port} is missing")
            if len(shapes[name]) != len(port.dims):
                raise InputError(f"{name} has sizes {list(shapes[name])} and must be {port}")
            for dim, size in zip(port.dims, shapes[name], strict=True):
                value = known.setdefault(dim, size) if isinstance(dim, str) else dim
                if isinstance(value, int) and value != size:
                    raise InputError(f"{name} has sizes {list(shapes[name])} and must be {port} with {dim} = {value}")
        for name, size in known.items():
            low, high = bounds[name]["min"], bounds[name]["max"]
            if not low <= size <= (size if high is None else high):
                raise InputError(f"{name} = {size} is outside of its profile, {low} … {high}")
        return known

    @called("Session.run")
    def run(
        self, inputs: Mapping[str, Any], outputs: Mapping[str, Any], stream: Any = None, context: Context | None = None
    ) -> bool:
        """Runs the engine on torch tensors or arrays and writes into `outputs`, whose sizes must be the results'.

        An output whose size only the run shows may be larger: the result is written at its beginning, and
        `session.context.get_tensor_shape(name)` is its size. The run has ended when this returns, whatever the stream.

        Raises:
            InputError: names, types or sizes that do not fit, tensors on a GPU; numbers in the place of pointers.
        """
        for name, value in [*inputs.items(), *outputs.items()]:
            if isinstance(value, int):
                raise refused(f"a pointer for {name!r}", "give the tensor itself, which knows its type and sizes")
        context = self.context if context is None else context
        results = self._session.run(inputs)
        missing = [name for name in outputs if name not in results]
        if missing:
            raise InputError(f"{', '.join(missing)}: no such output; the outputs are {', '.join(results)}")
        for name, given in outputs.items():
            _write(name, results[name], as_array(given, name, "output"), self._is_fixed(name))
        context.shapes = {name: tuple(array.shape) for name, array in results.items()}
        context.shapes |= {name: tuple(value.shape) for name, value in inputs.items()}
        return True

    def _is_fixed(self, name: str) -> bool:
        """Whether an output's sizes follow from those of the inputs."""
        unbacked = {s["name"] for s in program_of(self.engine.header)["symbols"] if s.get("unbacked")}
        port = next(port for port in self._session.outputs if port.name == name)
        return not unbacked & dims.dims_of([dims.from_json(dim) for dim in port.dims]).keys()

    def _print_engine_info(self) -> None:
        print(self.engine)

    def _print_io_info(self) -> None:
        for port in [*self._session.inputs, *self._session.outputs]:
            print(port)


def _size(dim: Any, sizes: Mapping[str, int]) -> int:
    expression = dims.from_json(dim)
    try:
        return expression if isinstance(expression, int) else expression.evaluate(sizes)
    except DimError:  # one that an op finds out
        return -1


def _write(name: str, result: np.ndarray[Any, Any], given: np.ndarray[Any, Any], fixed: bool) -> None:
    """Puts a result into the memory that was given for it."""
    if given.dtype != result.dtype:
        raise InputError(f"output {name} is {result.dtype}, and was to be written into {given.dtype}")
    if given.shape == result.shape:
        given[...] = result
    elif fixed or given.size < result.size or not given.flags.c_contiguous:
        raise InputError(f"output {name} is {list(result.shape)}, and was to be written into {list(given.shape)}")
    else:
        given.reshape(-1)[: result.size] = result.reshape(-1)
