"""tensorrt_llm._utils, mapping and the small helpers of tensorrt: arrays of one type, axes, a world of one rank."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ingot import _lazy, dtypes
from ingot.compat.datatype import as_dtype, data_type
from ingot.compat.refusal import refused
from ingot.compat.tensor import Dims
from ingot.ir import spec
from ingot.nn.parameter import as_array

Array = np.ndarray[Any, Any]


def int32_array(x: Any) -> Array:
    return np.array(x, np.int32)


def int64_array(x: Any) -> Array:
    return np.array(x, np.int64)


def fp16_array(x: Any) -> Array:
    return np.array(x, np.float16)


def fp32_array(x: Any) -> Array:
    return np.array(x, np.float32)


def bf16_array(x: Any) -> Array:
    return np.array(x, dtypes.bfloat16.numpy)


def bool_array(x: Any) -> Array:
    return np.array(x, np.bool_)


dims_array = int64_array


def torch_to_numpy(x: Any) -> Array:
    """A torch tensor's numbers, bfloat16 included."""
    return as_array(x)


def numpy_to_torch(x: Array) -> Any:
    """A torch tensor of an array, bfloat16 included."""
    torch = _lazy.optional("torch", "numpy_to_torch", "ingot[torch]")
    if x.dtype == dtypes.bfloat16.numpy:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def dim_resolve_negative(dim: int | Sequence[int], ndim: int) -> tuple[int, ...]:
    """Dimensions counted from the front."""
    return tuple(spec.axis_of(d, ndim, "dim") for d in ([dim] if isinstance(dim, int) else dim))


def dim_to_trt_axes(dim: int | Sequence[int]) -> int:
    """Dimensions as TensorRT's bit mask."""
    mask = 0
    for d in [dim] if isinstance(dim, int) else dim:
        mask |= 1 << d
    return mask


def set_obj_attrs(obj: Any, attrs: dict[str, Any]) -> None:
    """Sets attributes that are not there yet."""
    for name, value in attrs.items():
        if hasattr(obj, name):
            raise refused(f"set_obj_attrs: {name}", "it has a value already; assign it yourself")
        setattr(obj, name, value)


def get_sm_version() -> int:
    """0: there is no GPU in use."""
    return 0


def pad_vocab_size(vocab_size: int, tp_size: int) -> int:
    """The next multiple."""
    return math.ceil(vocab_size / tp_size) * tp_size


def mpi_rank() -> int:
    """0: an engine runs in one process."""
    return 0


def mpi_world_size() -> int:
    """1: an engine runs in one process."""
    return 1


def mpi_barrier() -> None:
    """Nobody to wait for."""


def mpi_comm() -> Any:
    """Refused: there are no other ranks."""
    raise refused("mpi_comm", "leave it out; ingot's engines run in one process")


def check_max_num_tokens(max_num_tokens: int | None, opt_num_tokens: int | None, **limits: Any) -> tuple[Any, Any]:
    """Both as given: ingot's scheduler has its own budget of tokens."""
    return max_num_tokens, max_num_tokens if opt_num_tokens is None else opt_num_tokens


class Mapping:
    """tensorrt_llm.Mapping of one rank; more are refused."""

    def __init__(
        self, world_size: int = 1, rank: int = 0, gpus_per_node: int = 8, tp_size: int = 1, pp_size: int = 1,
        cp_size: int = 1, **kwargs: Any,
    ) -> None:  # fmt: skip
        sizes = {"world_size": world_size, "tp_size": tp_size, "pp_size": pp_size, "cp_size": cp_size, **kwargs}
        ranks = {"rank": rank, "auto_parallel": sizes.pop("auto_parallel", False)}
        ranks["enable_attention_dp"] = sizes.pop("enable_attention_dp", False)
        given = [f"{name}={size}" for name, size in sizes.items() if size not in (1, -1, None)]
        given += [f"{name}={value}" for name, value in ranks.items() if value]
        if given:
            raise refused(f"Mapping({', '.join(given)})", "ingot's engines run on one device; use Mapping()")
        self.world_size, self.rank, self.gpus_per_node = 1, 0, gpus_per_node
        self.tp_size = self.pp_size = self.cp_size = self.moe_tp_size = self.moe_ep_size = 1
        self.tp_rank = self.pp_rank = self.cp_rank = self.node_rank = self.local_rank = 0
        self.tp_group, self.pp_group, self.cp_group = [0], [0], [0]

    def is_first_pp_rank(self) -> bool:
        return True

    def is_last_pp_rank(self) -> bool:
        return True

    def has_tp(self) -> bool:
        return False

    def has_pp(self) -> bool:
        return False

    def has_cp(self) -> bool:
        return False

    def pp_layers(self, num_layers: int) -> list[int]:
        """All layers."""
        return list(range(num_layers))


class Weights:
    """tensorrt.Weights: numbers for a layer; an array, or a type alone for none."""

    def __init__(self, a: Any = None, *more: Any) -> None:
        if more:
            raise refused("Weights(dtype, pointer, count)", "give the array itself: Weights(array)")
        is_array = isinstance(a, np.ndarray) or hasattr(a, "__array__")
        self.array: Array = as_array(a) if is_array else np.zeros(0, as_dtype(a or "float32").numpy)

    @property
    def dtype(self) -> Any:
        return data_type(self.array.dtype)

    @property
    def size(self) -> int:
        return int(self.array.size)

    @property
    def nbytes(self) -> int:
        return int(self.array.nbytes)

    def numpy(self) -> Array:
        return self.array

    def __len__(self) -> int:
        return self.size


def volume(sizes: Iterable[int]) -> int:
    """The product of sizes."""
    return Dims(tuple(sizes)).volume()


def init_libnvinfer_plugins(logger: Any, namespace: str) -> bool:
    """True, and nothing is loaded: every op has its kernel."""
    return True
