"""tensorrt_llm.Builder: networks and their engines, as bytes of an engine file of ingot's."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ingot import dims
from ingot.builder.compile import Borrowed
from ingot.builder.network import build_network
from ingot.compat.logger import logger
from ingot.compat.network import Network
from ingot.compat.refusal import called, here, refused
from ingot.compat.tensor import dim_name, ranged
from ingot.compat.trt_enums import BuilderFlag, NetworkDefinitionCreationFlag
from ingot.compat.trt_network import INetworkDefinition
from ingot.dims import Dim
from ingot.engine.session import Engine
from ingot.errors import InputError
from ingot.written import write_whole


class HostMemory(bytes):
    """A serialised engine: the bytes of an engine file, which `ingot.load` opens when they are in one."""

    @property
    def nbytes(self) -> int:
        """How many they are."""
        return len(self)

    @property
    def dtype(self) -> str:
        """What they are."""
        return "int8"


class OptimizationProfile:
    """tensorrt.IOptimizationProfile: the sizes that inputs may have."""

    def __init__(self) -> None:
        self.shapes: dict[str, tuple[tuple[int, ...], ...]] = {}

    def set_shape(self, input: str, min: Any, opt: Any, max: Any) -> None:
        """The least, usual and greatest sizes of an input."""
        found = tuple(tuple(int(n) for n in one) for one in (min, opt, max))
        ordered = all(low <= mid <= high for low, mid, high in zip(*found, strict=True))
        if len({len(one) for one in found}) != 1 or not ordered:
            raise refused(f"set_shape({input!r}, {min}, {opt}, {max})", "every dimension needs min <= opt <= max")
        self.shapes[input] = found

    def get_shape(self, input: str) -> list[tuple[int, ...]]:
        """What set_shape was given."""
        return list(self.shapes[input])

    def set_shape_input(self, input: str, min: Any, opt: Any, max: Any) -> None:
        """Refused: values of inputs have no bounds here."""
        raise refused("set_shape_input", "leave it out: bounds are for sizes, and values of inputs may be any")

    def __bool__(self) -> bool:
        return True


# flags that let TensorRT compute layers in other types, where it finds that faster: what builds in those types here
_PERMISSIONS = {
    BuilderFlag.FP16: 'ingot.build(…, precision="float16")',
    BuilderFlag.BF16: 'ingot.build(…, precision="bfloat16")',
    BuilderFlag.INT8: "ingot.quantize(net, data, inputs)",
    BuilderFlag.FP8: 'ingot.build(…, weights="fp8")',
    BuilderFlag.INT4: 'ingot.build(…, weights="int4-g128")',
}


class TrtBuilderConfig:
    """tensorrt.IBuilderConfig: flags and limits, accepted and kept; and the optimisation profiles, which count."""

    def __init__(self) -> None:
        self.profiles: list[OptimizationProfile] = []
        self.flags: set[Any] = set()
        self.recorded: list[tuple[str, Any]] = []

    def add_optimization_profile(self, profile: OptimizationProfile) -> int:
        """Adds a profile; an engine takes the sizes of all of them."""
        self.profiles.append(profile)
        return len(self.profiles) - 1

    @property
    def num_optimization_profiles(self) -> int:
        return len(self.profiles)

    def set_flag(self, flag: Any) -> None:
        """Recorded, with a warning where TensorRT might compute in other types: here types are those of the network."""
        if flag in _PERMISSIONS:
            logger.warning(
                f"{here()}set_flag({flag}) changes nothing, for types are those of the network; instead: "
                f"{_PERMISSIONS[flag]}"
            )
        self.flags.add(flag)

    def clear_flag(self, flag: Any) -> None:
        self.flags.discard(flag)

    def get_flag(self, flag: Any) -> bool:
        return flag in self.flags

    def set_memory_pool_limit(self, pool: Any, pool_size: int) -> None:
        """Recorded: a session's memory follows from its sizes (`ingot inspect --size`)."""
        self.recorded.append(("memory_pool_limit", (pool, pool_size)))

    def set_preview_feature(self, feature: Any, enable: bool) -> None:
        """Recorded."""
        self.recorded.append(("preview_feature", (feature, enable)))

    def set_tactic_sources(self, sources: int) -> bool:
        """Recorded: kernels are ingot's own."""
        self.recorded.append(("tactic_sources", sources))
        return True

    def create_timing_cache(self, serialized: bytes = b"") -> bytes:
        """Nothing is timed while an engine is built."""
        return bytes(serialized)

    def set_timing_cache(self, cache: Any, ignore_mismatch: bool = False) -> bool:
        """Recorded: nothing is timed while an engine is built."""
        return True

    def get_timing_cache(self) -> bytes:
        return b""

    profiling_verbosity: Any = None
    builder_optimization_level = 3
    avg_timing_iterations = 1
    max_aux_streams = 0
    hardware_compatibility_level: Any = None
    engine_capability: Any = None

    @property
    def int8_calibrator(self) -> None:
        return None

    @int8_calibrator.setter
    def int8_calibrator(self, calibrator: Any) -> None:
        raise refused("int8_calibrator", "`ingot.quantize(net, data, inputs)` calibrates (docs/quantization.md)")


class TrtBuilder:
    """tensorrt.Builder."""

    platform_has_fast_fp16 = platform_has_fast_int8 = False
    platform_has_tf32 = False
    max_threads = 1

    def __init__(self, logger: Any = None) -> None:
        self.logger = logger

    def create_network(self, flags: int = 0) -> INetworkDefinition:
        """An empty network, strongly typed where a flag says so; batches are always explicit."""
        return INetworkDefinition(Network(bool(flags >> int(NetworkDefinitionCreationFlag.STRONGLY_TYPED) & 1)), self)

    def create_builder_config(self) -> TrtBuilderConfig:
        return TrtBuilderConfig()

    def create_optimization_profile(self) -> OptimizationProfile:
        return OptimizationProfile()

    def build_serialized_network(self, network: INetworkDefinition, config: TrtBuilderConfig) -> HostMemory:
        """The engine of a network, as bytes."""
        return serialized(network.network, config.profiles)

    build_engine_with_config = build_serialized_network

    def is_network_supported(self, network: Any, config: Any) -> bool:
        """True: what cannot be computed was refused while it was recorded."""
        return True

    def reset(self) -> None:
        """Nothing is kept between builds."""


class BuilderConfig:
    """The settings of a build; whatever was given is an attribute, and in `to_dict`."""

    def __init__(self, trt_builder_config: TrtBuilderConfig, settings: dict[str, Any]) -> None:
        self.trt_builder_config = trt_builder_config
        self._settings = settings
        for name, value in settings.items():
            setattr(self, name, value)

    def to_dict(self) -> dict[str, Any]:
        """{"builder_config": …} in JSON's values."""
        return {"builder_config": {name: _plain_setting(value) for name, value in self._settings.items()}}


def _plain_setting(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | list | dict | type(None)) else str(value)


class Builder:
    """tensorrt_llm.Builder. `strongly_typed`: whether operands of different types are an error, as since 2024."""

    def __init__(self) -> None:
        self.trt_builder = TrtBuilder()
        self.strongly_typed = True

    def create_network(self) -> Network:
        """An empty network; record into it inside `net_guard(network)`."""
        network = Network(self.strongly_typed)
        network.trt_network = INetworkDefinition(network)
        return network

    @called("Builder.create_builder_config")
    def create_builder_config(
        self, precision: Any = "float16", timing_cache: Any = None, tensor_parallel: int = 1, use_refit: bool = False,
        int8: bool = False, strongly_typed: bool | None = None, force_num_profiles: int | None = None,
        profiling_verbosity: str = "layer_names_only", use_strip_plan: bool = False, weight_streaming: bool = False,
        precision_constraints: str | None = "obey", opt_level: int | None = None, **kwargs: Any,
    ) -> BuilderConfig:  # fmt: skip
        """Settings that are kept; types are those of the network. tensor_parallel must be 1."""
        if tensor_parallel != 1:
            raise refused(f"tensor_parallel={tensor_parallel}", "ingot's engines run on one device")
        given = {
            "precision": precision, "tensor_parallel": tensor_parallel, "use_refit": use_refit, "int8": int8,
            "strongly_typed": self.strongly_typed if strongly_typed is None else strongly_typed,
            "profiling_verbosity": profiling_verbosity,
        }  # fmt: skip
        return BuilderConfig(TrtBuilderConfig(), given | kwargs)

    @called("Builder.build_engine")
    def build_engine(self, network: Network, builder_config: BuilderConfig, managed_weights: Any = None) -> HostMemory:
        """The engine as bytes: what a file of `Engine.save` holds."""
        if managed_weights is not None:
            raise refused("build_engine with managed_weights", "leave it out: an engine holds all of its weights")
        return serialized(network, builder_config.trt_builder_config.profiles)

    @called("Builder.refit_engine")
    def refit_engine(self, network: Network, engine_buffer: bytes) -> HostMemory:
        """The engine with the present values of the network's parameters."""
        return bytes_of(opened(engine_buffer).refit({n: p.raw_value for n, p in network.named_parameters}))

    @staticmethod
    def save_timing_cache(builder_config: BuilderConfig, out_path: str) -> bool:
        """Nothing is timed while an engine is built, so nothing is written."""
        return False

    @staticmethod
    def save_config(builder_config: BuilderConfig, config_path: str) -> None:
        """The settings as a JSON file."""
        write_whole(Path(config_path), json.dumps(builder_config.to_dict(), indent=4).encode())


def serialized(network: Network, profiles: Iterable[OptimizationProfile]) -> HostMemory:
    """The engine of what has been recorded, as bytes."""
    graph = network.graph
    if not graph.outputs:
        raise refused("building an engine", "no output was marked; call `tensor.mark_output(name)` in the net_guard")
    for name, dim in _bounds(network, list(profiles)).items():
        graph.dims[name] = dims.merge(graph.dims[name], dim)
    weights = Borrowed({name: parameter.raw_value for name, parameter in network.named_parameters})
    return bytes_of(build_network(graph, weights, report=False, config={"casts": list(network.casts)}))


def _bounds(network: Network, profiles: list[OptimizationProfile]) -> dict[str, Dim]:
    """What the profiles say about dims."""
    found: dict[str, list[tuple[int, ...]]] = {}
    inputs = {network.name_of(value): value for value in network.graph.inputs}
    for profile in profiles:
        for name, shapes in profile.shapes.items():
            if name not in inputs:
                raise refused(f"a profile for {name!r}", f"the inputs are {', '.join(inputs)}")
            sizes = inputs[name].shape
            if len(sizes) != len(shapes[0]):
                raise refused(f"a profile for {name!r} of {len(shapes[0])} sizes", f"it has {len(sizes)} dimensions")
            for size, low, mid, high in zip(sizes, *shapes, strict=True):
                if isinstance(size, Dim):
                    found.setdefault(size.name, []).append((low, mid, high))
                elif not low == high == size:
                    raise refused(f"a profile for {name!r}", f"a dimension is {size}, which {low} … {high} leaves")
    return {dim_name(name): ranged(name, bounds) for name, bounds in found.items()}


def bytes_of(engine: Engine) -> HostMemory:
    """The engine as bytes: what a file of `Engine.save` holds."""
    with tempfile.TemporaryDirectory(prefix="ingot-") as folder:
        path = Path(folder, "engine.ingot")
        engine.save(path)
        return HostMemory(path.read_bytes())


def opened(engine: Any) -> Engine:
    """The engine of bytes, or of a path.

    Raises:
        InputError: neither. EngineFileError: bytes that are no engine.
    """
    if isinstance(engine, Engine):
        return engine
    if isinstance(engine, str | Path):
        return Engine.load(engine)
    if not isinstance(engine, bytes | bytearray | memoryview):
        raise InputError(f"a serialised engine is bytes, not a {type(engine).__name__}")
    with tempfile.TemporaryDirectory(prefix="ingot-") as folder:
        path = Path(folder, "engine.ingot")
        write_whole(path, bytes(engine))
        return Engine.load(path)  # stays mapped when the file is gone
