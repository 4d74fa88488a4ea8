"""tensorrt.Runtime, ICudaEngine and IExecutionContext over an engine of ingot's, on tensors of the CPU or of a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from ingot import _lazy, dims, dims_parsing
from ingot.backends.device import program_of
from ingot.compat.builder import HostMemory, bytes_of, opened
from ingot.compat.datatype import DataType, data_type
from ingot.compat.refusal import called, refused
from ingot.compat.tensor import Dims, TensorLocation
from ingot.compat.trt_enums import TensorFormat, TensorIOMode
from ingot.dims import Dim
from ingot.engine.session import Engine, Port, Session, as_array
from ingot.errors import DimError, InputError


class Runtime:
    """tensorrt.Runtime."""

    DLA_core, max_threads = -1, 1

    def __init__(self, logger: Any = None) -> None:
        self.logger = logger

    @called("Runtime.deserialize_cuda_engine")
    def deserialize_cuda_engine(self, serialized_engine: Any) -> ICudaEngine:
        """The engine of bytes that a builder gave."""
        return ICudaEngine(opened(serialized_engine))


class ICudaEngine:
    """tensorrt.ICudaEngine: inputs first, then outputs, by number and by name. `ingot` is ingot's own engine."""

    num_optimization_profiles, max_batch_size, device_memory_size = 1, 1, 0
    has_implicit_batch_dimension = refittable = False

    def __init__(self, engine: Engine) -> None:
        self.ingot = engine
        self._inputs, self._outputs = list(engine.inputs), list(engine.outputs)

    @property
    def name(self) -> str:
        return "main"

    @property
    def num_io_tensors(self) -> int:
        """How many inputs and outputs there are."""
        return len(self._inputs) + len(self._outputs)

    num_bindings = num_io_tensors

    @property
    def num_layers(self) -> int:
        """How many kernel calls a run makes."""
        return len(program_of(self.ingot.header)["calls"])

    def _ports(self) -> list[Port]:
        return [*self._inputs, *self._outputs]

    def port(self, name: str) -> Port:
        """An input or output. Raises InputError (a ValueError) for another name."""
        found = {port.name: port for port in self._ports()}
        if name not in found:
            raise InputError(f"{name!r} is no input or output; they are {', '.join(found)}")
        return found[name]

    def get_tensor_name(self, index: int) -> str:
        return str(self._ports()[index].name)

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        """Whether it is an input or an output."""
        self.port(name)
        return TensorIOMode.INPUT if name in [port.name for port in self._inputs] else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> DataType:
        return data_type(self.port(name).dtype)

    def get_tensor_shape(self, name: str) -> Dims:
        """Its sizes, -1 for those that only a run knows."""
        return Dims([dim if isinstance(dim, int) else -1 for dim in self.port(name).dims])

    def get_tensor_location(self, name: str) -> TensorLocation:
        """HOST: tensors lie in ordinary memory."""
        self.port(name)
        return TensorLocation.HOST

    def get_tensor_format(self, name: str) -> TensorFormat:
        """LINEAR: the last dimension lies closest together."""
        self.port(name)
        return TensorFormat.LINEAR

    def is_shape_inference_io(self, name: str) -> bool:
        """False: sizes follow from sizes."""
        self.port(name)
        return False

    def bounds(self) -> dict[str, tuple[int, int | None]]:
        """The least and greatest value of each named size."""
        return {s["name"]: (s["min"], s["max"]) for s in program_of(self.ingot.header)["symbols"]}

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[Dims]:
        """The least, usual and greatest sizes of an input; the usual ones are the least where none were named."""
        self._only_profile(profile_index)
        symbols = {s["name"]: s for s in program_of(self.ingot.header)["symbols"]}
        found = []
        for which in ("min", "opt", "max"):
            known = {n: s.get(which) or s["min"] if which != "max" else s["max"] for n, s in symbols.items()}
            found.append(Dims([_value(dim, known) for dim in self.port(name).dims]))
        return found

    @staticmethod
    def _only_profile(index: int) -> None:
        if index != 0:
            raise refused(f"profile {index}", "an engine takes the sizes of all profiles, as profile 0")

    def create_execution_context(self, strategy: Any = None) -> IExecutionContext:
        """What runs the engine."""
        return IExecutionContext(self)

    def serialize(self) -> HostMemory:
        """The engine as bytes."""
        return bytes_of(self.ingot)

    # -------------------------------------------------------------------------------------------- as before 10
    def get_binding_name(self, index: int) -> str:
        return self.get_tensor_name(index)

    def get_binding_index(self, name: str) -> int:
        return [port.name for port in self._ports()].index(self.port(name).name)

    def get_binding_shape(self, binding: int | str) -> Dims:
        return self.get_tensor_shape(self._named(binding))

    def get_binding_dtype(self, binding: int | str) -> DataType:
        return self.get_tensor_dtype(self._named(binding))

    def get_profile_shape(self, profile_index: int, binding: int | str) -> list[Dims]:
        return self.get_tensor_profile_shape(self._named(binding), profile_index)

    def binding_is_input(self, binding: int | str) -> bool:
        return self.get_tensor_mode(self._named(binding)) is TensorIOMode.INPUT

    def _named(self, binding: int | str) -> str:
        return binding if isinstance(binding, str) else self.get_tensor_name(binding)

    def __len__(self) -> int:
        return self.num_io_tensors

    def __iter__(self) -> Iterator[str]:
        return iter([port.name for port in self._ports()])

    def __getitem__(self, key: int | str) -> str | int:
        return self.get_binding_index(key) if isinstance(key, str) else self.get_binding_name(key)

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        return str(self.ingot)


class IExecutionContext:
    """tensorrt.IExecutionContext: a session of an engine, its sizes, and the tensors that a run reads and writes.

    Tensors are given themselves, in the place of their addresses. A run has ended when the call returns. Where inputs
    lie on an NVIDIA GPU the engine runs there instead, in the order of the stream, and so are results written.
    """

    active_optimization_profile, name = 0, ""

    def __init__(self, engine: ICudaEngine) -> None:
        self.engine = engine
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._given: dict[str, Any] = {}
        self._session = engine.ingot.session()
        self._there: dict[int, Session] = {}  # on GPUs, by their numbers

    # -------------------------------------------------------------------------------------------- sizes
    def set_input_shape(self, name: str, shape: Sequence[int]) -> bool:
        """The sizes of an input in the next run. Raises InputError for sizes that do not fit."""
        self._check(name, tuple(int(size) for size in shape))
        self.shapes[name] = tuple(int(size) for size in shape)
        return True

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        port = self.engine.port(name)
        if self.engine.get_tensor_mode(name) is not TensorIOMode.INPUT:
            raise InputError(f"{name} is an output; its sizes follow from those of the inputs")
        if len(shape) != len(port.dims):
            raise InputError(f"{name} has sizes {list(shape)} and must be {port}")

    def get_tensor_shape(self, name: str) -> Dims:
        """The sizes of an input or output as of what is set, or of the last run; -1 where only a run shows them."""
        if name in self.shapes:
            return Dims(self.shapes[name])
        port = self.engine.port(name)
        missing = [p.name for p in self._session.inputs if p.name not in self._known()]
        if self.engine.get_tensor_mode(name) is TensorIOMode.INPUT or missing:
            return self.engine.get_tensor_shape(name)
        sizes = self.sizes(self._known())
        return Dims([_value(dim, sizes) for dim in port.dims])

    def _known(self) -> dict[str, tuple[int, ...]]:
        """The sizes of the inputs, as set, or fixed."""
        fixed = {p.name: tuple(self.engine.get_tensor_shape(p.name)) for p in self._session.inputs}
        known = {name: sizes for name, sizes in fixed.items() if -1 not in sizes}
        return known | {name: self.shapes[name] for name in fixed if name in self.shapes}

    def sizes(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """The named sizes that shapes of all inputs give. Raises InputError for ones that do not fit together."""
        known: dict[str, int] = {}
        bounds = self.engine.bounds()
        for port in self._session.inputs:
            name = port.name
            if name not in shapes:
                raise InputError(f"input {port} is missing")
            self._check(name, shapes[name])
            for dim, size in zip(port.dims, shapes[name], strict=True):
                value = known.setdefault(dim, size) if isinstance(dim, str) else dim
                if isinstance(value, int) and value != size:
                    raise InputError(f"{name} has sizes {list(shapes[name])} and must be {port} with {dim} = {value}")
        for name, size in known.items():
            low, high = bounds[name]
            if not low <= size <= (size if high is None else high):
                raise InputError(f"{name} = {size} is outside of its profile, {low} … {high}")
        return known

    def results(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """The sizes of the outputs for inputs of these."""
        sizes = self.sizes(shapes)
        return {port.name: tuple(_value(dim, sizes) for dim in port.dims) for port in self._session.outputs}

    @property
    def all_binding_shapes_specified(self) -> bool:
        """Whether the sizes of all inputs are known."""
        return set(self._known()) == {port.name for port in self._session.inputs}

    all_shape_inputs_specified = True

    def infer_shapes(self) -> list[str]:
        """The inputs whose sizes are missing. Raises InputError for sizes that do not fit together."""
        missing = [port.name for port in self._session.inputs if port.name not in self._known()]
        if not missing:
            self.shapes |= self.results(self._known())
        return missing

    def set_optimization_profile_async(self, profile_index: int, stream_handle: Any) -> bool:
        """Only profile 0: an engine takes the sizes of all of them."""
        self.engine._only_profile(profile_index)
        return True

    # -------------------------------------------------------------------------------------------- runs
    @called("IExecutionContext.set_tensor_address")
    def set_tensor_address(self, name: str, memory: Any) -> bool:
        """The tensor that the next run reads or writes: a torch tensor or array, in the place of its address."""
        self.engine.port(name)
        not_an_address(name, memory)
        self._given[name] = memory
        return True

    set_input_tensor_address = set_output_tensor_address = set_tensor_address

    def get_tensor_address(self, name: str) -> Any:
        """The tensor that was set; None without one."""
        return self._given.get(name)

    @called("IExecutionContext.execute_async_v3")
    def execute_async_v3(self, stream_handle: Any) -> bool:
        """Runs on the tensors that were set. Raises InputError for missing ones and for sizes that do not fit."""
        inputs = {port.name for port in self._session.inputs}
        missing = [port.name for port in self.engine._ports() if port.name not in self._given]
        if missing:
            raise InputError(f"no tensor for {', '.join(missing)}; call set_tensor_address")
        for name in inputs & self.shapes.keys():
            given = tuple(self._given[name].shape)
            if given != self.shapes[name]:
                raise InputError(f"{name} was set to {list(self.shapes[name])}, and its tensor is {list(given)}")
        return self.run(
            {name: value for name, value in self._given.items() if name in inputs},
            {name: value for name, value in self._given.items() if name not in inputs},
            stream_handle,
        )

    @called("IExecutionContext.execute_v2")
    def execute_v2(self, bindings: Sequence[Any], stream_handle: Any = None) -> bool:
        """Runs on tensors in the order of the bindings."""
        if len(bindings) != self.engine.num_io_tensors:
            raise InputError(f"{len(bindings)} bindings for {self.engine.num_io_tensors} inputs and outputs")
        for index, memory in enumerate(bindings):
            self.set_tensor_address(self.engine.get_tensor_name(index), memory)
        return self.execute_async_v3(stream_handle)  # type: ignore[no-any-return]

    def execute_async_v2(self, bindings: Sequence[Any], stream_handle: Any) -> bool:
        """execute_v2, in the order of a stream."""
        return self.execute_v2(bindings, stream_handle)  # type: ignore[no-any-return]

    def set_binding_shape(self, binding: int, shape: Sequence[int]) -> bool:
        """set_input_shape, by number."""
        return self.set_input_shape(self.engine.get_tensor_name(binding), shape)

    def get_binding_shape(self, binding: int) -> Dims:
        """get_tensor_shape, by number."""
        return self.get_tensor_shape(self.engine.get_tensor_name(binding))

    def run(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any], stream: Any = None) -> bool:
        """Runs on tensors by name, and writes into outputs; see Session.run."""
        for name, value in [*inputs.items(), *outputs.items()]:
            not_an_address(name, value)
        number = next((v.device.index for v in inputs.values() if getattr(v, "is_cuda", False)), None)
        if number is None:
            return self._written(inputs, self._session.run(inputs), outputs)
        torch = _lazy.load("torch")
        if number not in self._there:
            self._there[number] = self.engine.ingot.session(device=f"cuda:{number}")
        with torch.cuda.stream(_stream(torch, stream, number)):
            return self._written(inputs, self._there[number].run(inputs), outputs)

    def _written(self, inputs: Mapping[str, Any], results: Mapping[str, Any], outputs: Mapping[str, Any]) -> bool:
        missing = [name for name in outputs if name not in results]
        if missing:
            raise InputError(f"{', '.join(missing)}: no such output; the outputs are {', '.join(results)}")
        for name, given in outputs.items():
            there = getattr(results[name], "is_cuda", False)
            if there and not getattr(given, "is_cuda", False):
                raise InputError(f"output {name} lies on a GPU, as the inputs do, and was to be written elsewhere")
            _write(name, results[name], given if there else as_array(given, name, "output"), self._is_fixed(name))
        self.shapes = {name: tuple(array.shape) for name, array in results.items()}
        self.shapes |= {name: tuple(value.shape) for name, value in inputs.items()}
        return True

    def _is_fixed(self, name: str) -> bool:
        """Whether an output's sizes follow from those of the inputs."""
        symbols = program_of(self.engine.ingot.header)["symbols"]
        unbacked = {s["name"] for s in symbols if s.get("unbacked")}
        return not unbacked & dims.dims_of([dims_parsing.from_json(dim) for dim in self.engine.port(name).dims]).keys()

    def __bool__(self) -> bool:
        return True


def not_an_address(name: str, value: Any) -> None:
    """Refuses a number in the place of a tensor: nothing says how far memory there reaches."""
    if isinstance(value, int):
        raise refused(f"a pointer for {name!r}", "give the tensor itself, which knows its type and sizes")


def _value(dim: Any, sizes: Mapping[str, int | None]) -> int:
    """A size for values of dims; -1 where it has none."""
    expression = dims_parsing.from_json(dim)
    if isinstance(expression, int):
        return expression
    if isinstance(expression, Dim) and expression.name in sizes:
        found = sizes[expression.name]
        return -1 if found is None else found
    try:
        return expression.evaluate({name: size for name, size in sizes.items() if size is not None})
    except DimError:  # one that an op finds out
        return -1


def _stream(torch: Any, given: Any, number: int) -> Any:
    """A stream of torch's, of one or of its handle; without one, torch's current stream."""
    if given is None:
        return torch.cuda.current_stream(number)
    if isinstance(given, int):
        return torch.cuda.ExternalStream(given, device=number) if given else torch.cuda.default_stream(number)
    return given


def _write(name: str, result: Any, given: Any, fixed: bool) -> None:
    """Puts a result into the memory that was given for it: arrays, or tensors of a GPU."""
    if given.dtype != result.dtype:
        raise InputError(f"output {name} is {result.dtype}, and was to be written into {given.dtype}")
    if given.shape == result.shape:
        given[...] = result
    elif fixed or prod(given.shape) < prod(result.shape) or not _is_contiguous(given):
        raise InputError(f"output {name} is {list(result.shape)}, and was to be written into {list(given.shape)}")
    else:
        given.reshape(-1)[: prod(result.shape)] = result.reshape(-1)


def _is_contiguous(given: Any) -> bool:
    return bool(given.flags.c_contiguous if isinstance(given, np.ndarray) else given.is_contiguous())
