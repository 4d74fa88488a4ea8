"""tensorrt_llm.runtime: sessions that write into given tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ingot.compat.builder import opened
from ingot.compat.datatype import DataType, as_dtype, data_type
from ingot.compat.refusal import called
from ingot.compat.tensor import Dims
from ingot.compat.trt_runtime import ICudaEngine, IExecutionContext, Runtime
from ingot.compat.utils import numpy_to_torch
from ingot.engine.session import Engine
from ingot.errors import InputError


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


class Session:
    """tensorrt_llm.runtime.Session: an engine and a context of it, on the CPU, or on the GPU that its inputs lie on."""

    def __init__(self, engine: Engine) -> None:
        self.engine = ICudaEngine(engine)
        self.context = self.engine.create_execution_context()
        self.runtime = Runtime()

    @staticmethod
    def from_serialized_engine(engine: Any) -> Session:
        """A session of an engine's bytes."""
        return Session(opened(engine))

    @staticmethod
    def from_engine(engine: Any) -> Session:
        """A session of an engine."""
        return Session(engine.ingot if isinstance(engine, ICudaEngine) else opened(engine))

    @called("Session.infer_shapes")
    def infer_shapes(
        self, inputs: Sequence[TensorInfo], context: IExecutionContext | None = None
    ) -> list[TensorInfo]:
        """The types and sizes of the outputs for inputs of these; -1 where only a run shows a size.

        Raises:
            InputError: (a ValueError) an input that is not there or missing, another type, sizes that do not fit.
        """
        context = self.context if context is None else context
        ports = {port.name: port for port in self.engine.ingot.inputs}
        for info in inputs:
            if info.name not in ports:
                raise InputError(f"{info.name!r} is no input; the inputs are {', '.join(ports)}")
            if as_dtype(info.dtype) is not as_dtype(ports[info.name].dtype):
                raise InputError(f"{info.name} is {info.dtype.name} and must be {ports[info.name]}")
        found = context.results({info.name: info.shape for info in inputs})
        context.shapes = {info.name: info.shape for info in inputs} | found
        return [TensorInfo(name, self.engine.get_tensor_dtype(name), shape) for name, shape in found.items()]

    set_shapes = infer_shapes

    @called("Session.run")
    def run(
        self, inputs: Mapping[str, Any], outputs: Mapping[str, Any], stream: Any = None,
        context: IExecutionContext | None = None,
    ) -> bool:  # fmt: skip
        """Runs the engine on torch tensors or arrays and writes into `outputs`, whose sizes must be the results'.

        An output whose size only the run shows may be larger: the result is written at its beginning, and
        `session.context.get_tensor_shape(name)` is its size. On the CPU the run has ended when this returns. Tensors
        of a GPU are read and written in the order of `stream`, or of torch's current one.

        Raises:
            InputError: names, types or sizes that do not fit; numbers in the place of pointers.
        """
        return (self.context if context is None else context).run(inputs, outputs, stream)

    @called("Session._debug_run")
    def _debug_run(self, inputs: Mapping[str, Any], context: IExecutionContext | None = None) -> dict[str, Any]:
        """The outputs for inputs, as torch tensors."""
        results = self.engine.ingot.run(dict(inputs))
        context = self.context if context is None else context
        context.shapes = {name: tuple(array.shape) for name, array in results.items()}
        return {name: numpy_to_torch(array) for name, array in results.items()}

    def _print_engine_info(self) -> None:
        print(self.engine)

    def _print_io_info(self) -> None:
        for port in [*self.engine.ingot.inputs, *self.engine.ingot.outputs]:
            print(port)
