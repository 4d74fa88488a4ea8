"""The retired API's Tensor: a symbolic tensor of ingot, with -1 for sizes that only a run knows.

Its operators and methods are functions of `functional.py`, which puts them here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np

from ingot.compat import context
from ingot.compat.datatype import DataType, as_dtype, data_type
from ingot.compat.refusal import refused
from ingot.dims import Dim, Dimension
from ingot.dtypes import DType
from ingot.errors import OpError
from ingot.ir import Spec, Value


class Word(Enum):
    """A member of one of TensorRT's enumerations; its value is ingot's word for it, or None where it has none."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}.{self.name}>"


class TensorLocation(Enum):
    """Where a tensor lies."""

    DEVICE = 0
    HOST = 1


class Dims(tuple[int, ...]):
    """tensorrt.Dims: sizes, -1 for those that only a run knows."""

    MAX_DIMS = 8

    def __new__(cls, *sizes: Any) -> Dims:
        given = sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
        return super().__new__(cls, (int(size) for size in given))

    def volume(self) -> int:
        """The product of the sizes."""
        product = 1
        for size in self:
            product *= size
        return product


class _Named:
    """What shows a value of a network, under the name that the network has for it."""

    network: Any
    value: Value

    @property
    def name(self) -> str:
        """How it is called; as an input or output, by whoever runs the engine."""
        return self.network.name_of(self.value)  # type: ignore[no-any-return]

    @name.setter
    def name(self, name: str) -> None:
        self.network.rename(self.value, name)


class ITensor(_Named):
    """tensorrt.ITensor: one tensor of a network."""

    def __init__(self, network: Any, value: Value) -> None:
        self.network, self.value = network, value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ITensor) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)

    @property
    def shape(self) -> Dims:
        """Its sizes, -1 for those that only a run knows."""
        return Dims(size if isinstance(size, int) else -1 for size in self.value.shape)

    @property
    def dtype(self) -> DataType:
        """Its element type."""
        return data_type(self.value.dtype)

    @dtype.setter
    def dtype(self, dtype: DataType) -> None:
        if as_dtype(dtype) is not self.value.dtype:
            raise refused(
                f"setting the dtype of {self.name} from {self.dtype.name} to {data_type(dtype).name}",
                "cast it: `functional.cast(tensor, dtype)`, or `network.add_cast(tensor, dtype)`",
            )

    @property
    def is_network_input(self) -> bool:
        """Whether it is given at every run."""
        return self.value.kind == "input"

    @property
    def is_network_output(self) -> bool:
        """Whether it has been marked as an output."""
        return bool(self.value.network.is_output(self.value))

    @property
    def is_shape_tensor(self) -> bool:
        """False: sizes are computed like all other numbers here."""
        return False

    def set_dimension_name(self, index: int, name: str) -> None:
        """Names a size of an input that only a run knows. Sizes of one name are equal, and may meet in one op."""
        self.network.name_dimension(self.value, index, dim_name(name))

    def get_dimension_name(self, index: int) -> str:
        """The name of a size; "" for one that is fixed."""
        size = self.value.shape[index]
        return size.name if isinstance(size, Dim) else ""

    is_execution_tensor = True
    location = TensorLocation.DEVICE

    @property
    def dynamic_range(self) -> None:
        """None: there are no implicit INT8 ranges."""
        return None

    @dynamic_range.setter
    def dynamic_range(self, value: Any) -> None:
        raise refused(
            "dynamic_range",
            "implicit INT8 is gone from TensorRT 11 too; quantise with `functional.cast(x, 'int8')`, or store weights "
            'as int8: `ingot.build(…, weights="int8")`',
        )

    def __repr__(self) -> str:
        return f"ITensor({self.name}: {self.dtype.name}{list(self.shape)})"


class Tensor(_Named):
    """tensorrt_llm.Tensor: an input when it is made by name, else what a function gave.

    Args:
        name, dtype, shape: of the input; -1 is a size that only a run knows.
        dim_range: name of each dimension → its value or (min, opt, max), one for each profile. Dimensions of one name
            are of one size.
        is_network_input, location, trt_tensor: as there; a `trt_tensor` is shown as a Tensor.
        network: default the one of the net_guard.

    Raises:
        DimError: one name with two ranges. OpError: no name or shape.
    """

    def __init__(
        self,
        name: str | None = None,
        dtype: Any = None,
        shape: Any = None,
        dim_range: Mapping[str, Sequence[Any]] | None = None,
        is_network_input: bool = True,
        location: TensorLocation = TensorLocation.DEVICE,
        network: Any = None,
        trt_tensor: ITensor | None = None,
    ) -> None:
        self.location = location
        self.network = context.default_net() if network is None else network
        if trt_tensor is not None:
            self.value = trt_tensor.value
            return
        if name is None or dtype is None or shape is None:
            raise refused("Tensor(…)", "an input needs name, dtype and shape; for numbers use `constant(ndarray)`")
        if not is_network_input:
            raise refused(
                "Tensor(is_network_input=False)", "a tensor without a producer has no value; call a function"
            )
        kind = as_dtype(dtype)
        data_type(kind)  # one that TensorRT has
        self.value = self.network.add_input(name, Spec(sizes_of(name, shape, dim_range), kind))

    @classmethod
    def of(cls, value: Value, network: Any) -> Tensor:
        """The Tensor that shows a value."""
        made = cls.__new__(cls)
        made.value, made.network, made.location = value, network, TensorLocation.DEVICE
        return made

    # -------------------------------------------------------------------------------------------- what is known
    @property
    def dtype(self) -> DataType:
        """Its element type, a tensorrt.DataType."""
        return data_type(self.value.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes, -1 for those that only a run knows."""
        return tuple(size if isinstance(size, int) else -1 for size in self.value.shape)

    @property
    def trt_tensor(self) -> ITensor:
        """The same tensor under TensorRT's interface."""
        return ITensor(self.network, self.value)

    @property
    def producer(self) -> Any:
        """The op that computes it; None for inputs, parameters and constants."""
        return self.value.node

    @property
    def profiles(self) -> list[dict[str, tuple[int, int | None, int | None]]]:
        """(min, opt, max) of its named dimensions, in one profile."""
        known = self.value.network.dims
        named = [known[size.name] for size in self.value.shape if isinstance(size, Dim)]
        return [{dim.name: (dim.min, dim.opt, dim.max) for dim in named}] if named else []

    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.value.shape)

    rank = ndim

    def size(self, dim: int | None = None) -> Any:
        """One size, or all; -1 where only a run knows."""
        return self.shape if dim is None else self.shape[dim]

    def is_dynamic(self, dim: int | None = None) -> bool:
        """Whether a size is known only at run time; without `dim`, any but the first, as there."""
        return -1 in (self.shape[1:] if dim is None else (self.shape[dim],))

    def is_trt_wrapper(self) -> bool:
        """True: there is always a tensor of the network behind it."""
        return True

    def mark_output(self, name: str | None = None, dtype: Any = None) -> None:
        """Makes it a result of the engine.

        Args:
            name: by which it is had; default its own.
            dtype: what it is cast to; the cast is recorded.
        """
        self.network.mark(self.value, name, dtype)

    # -------------------------------------------------------------------------------------------- refusals that teach
    def get_parent(self) -> Any:
        """The op that computes it."""
        return self.value.node

    def get_users(self) -> list[Any]:
        """The ops that read it."""
        return list(self.value.uses)

    def replace_all_uses_with(self, new: Tensor) -> None:
        """Whatever reads this tensor reads `new` from now on."""
        self.value.network.replace(self.value, new.value)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise OpError(
            f"the truth of {self.name} is known only at run time: use `where` instead of if, and `is` to compare "
            "tensors as objects"
        )

    def __len__(self) -> int:
        raise OpError(f"len() of {self.name}: use .size(0) or shape({self.name}, 0), and .ndim() for the rank")

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise OpError(f"{self.name} has no numbers yet: use functions of tensorrt_llm on it, not NumPy's")

    def __repr__(self) -> str:
        return f"Tensor({self.name}: {self.dtype.name}{list(self.shape)})"


def sizes_of(name: str, shape: Any, dim_range: Mapping[str, Sequence[Any]] | None) -> list[Dimension]:
    """The dimensions of an input: ints, and a Dim for each -1."""
    sizes = [int(size) for size in shape]
    if dim_range is not None and len(dim_range) != len(sizes):
        raise OpError(f"Tensor {name}: dim_range names {len(dim_range)} dimensions, shape has {len(sizes)}")
    ranges = list((dim_range or {f"{name}.{axis}": () for axis in range(len(sizes))}).items())
    return [size if size != -1 else _dim(*ranges[axis]) for axis, size in enumerate(sizes)]


def _dim(name: str, profiles: Sequence[Any]) -> Dimension:
    """A dimension that holds what every profile holds; the first profile's best size is the one to tune for."""
    bounds = [tuple(one) if isinstance(one, tuple | list) else (one,) * 3 for one in profiles]
    if any(len(one) != 3 or not all(type(n) is int for n in one) for one in bounds):
        raise OpError(f"dimension {name}: a range is an int or (min, opt, max), not {list(profiles)}")
    return ranged(dim_name(name), bounds)


def ranged(name: str, bounds: Sequence[tuple[int, ...]]) -> Dim:
    """A Dim from the least to the greatest size of (min, opt, max)s; without any, of any size."""
    if not bounds:
        return Dim(name)
    return Dim(name, min(low for low, _, _ in bounds), bounds[0][1], max(high for _, _, high in bounds))


def dim_name(name: str) -> str:
    """A name that a Dim may have, of one that is free in the retired API."""
    plain = re.sub(r"[^A-Za-z0-9_.]", "_", name)
    return plain if re.match(r"[A-Za-z_]", plain) and plain not in ("min", "max") else f"_{plain}"


# ---------------------------------------------------------------------------------------------- to ingot's and back


def plain(x: Any) -> Any:
    """What ingot's functions take of an argument: values, element types, words; lists and dicts of them."""
    if isinstance(x, Tensor | ITensor):
        return x.value
    if isinstance(x, DataType):
        return x.value
    if isinstance(x, Word):
        if x.value is None:
            raise refused(repr(x), "ingot has no op for it; compose it of others")
        return x.value
    if isinstance(x, dict):
        return {name: plain(item) for name, item in x.items()}
    if type(x) in (list, tuple):
        return type(x)(plain(item) for item in x)
    return x


def shown(x: Any, network: Any) -> Any:
    """What a function gives: Tensors of values and of arrays, which become constants; the rest as it is."""
    if isinstance(x, Value):
        return Tensor.of(network.adopted(x), network)
    if isinstance(x, np.ndarray | np.generic):
        return Tensor.of(network.graph.constant(x), network)
    if isinstance(x, tuple | list):
        return type(x)(shown(item, network) for item in x)
    return x


def dtype_of(x: Any) -> DType | None:
    """The element type of a tensor or array; None for anything else."""
    if isinstance(x, Value):
        return x.dtype
    return as_dtype(x.dtype) if isinstance(x, np.ndarray | np.generic) else None

