"""A directory whose weights are quantised, seen as one of float weights: each quantised layer has its `weight`.

So everything that reads checkpoints reads these. What the files hold of a weight is in `quantized`, by its name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

import numpy as np

from ingot import dtypes
from ingot.dtypes import DType
from ingot.errors import CheckpointError
from ingot.frontends.checkpoint import MAX_LISTED, Checkpoint
from ingot.frontends.quantized.config import MAX_GROUP, Quantization, Scheme, Schemes
from ingot.frontends.quantized.weights import (
    BadTensorError,
    QuantizedWeight,
    awq_columns,
    centred,
    finite,
    gptq_rows,
    gptq_zeros,
    group_of_columns,
    named,
    numbers_of_8,
    unpacked,
)
from ingot.tensor_table import TensorInfo

Array = np.ndarray[Any, Any]

SCALE_TYPES = (dtypes.float16, dtypes.bfloat16, dtypes.float32)
FLOATS_OF_8 = (dtypes.float8_e4m3fn,)
INDEX_TYPES = (dtypes.int32, dtypes.int64)
# Of what is not quantised here: the inputs of layers and the keys and values of the cache.
UNUSED = (
    ".activation_scale", ".input_scale", ".input_zero_point", ".k_scale", ".k_zero_point", ".output_scale",
    ".q_scale", ".v_scale", ".v_zero_point",
)  # fmt: skip


class QuantizedCheckpoint(Checkpoint):
    """Name → weight of a Hugging Face directory, quantised ones dequantised to float32 when they are read.

    Attributes:
        method: by which it was quantised.
        quantized: what the files hold of a weight, by its name.
        unused: tensors that say how to round inputs and caches, which is not done.
        turned: weights that the model has as [inputs, outputs].

    Raises:
        CheckpointError: as Checkpoint, and for quantised tensors that do not fit each other or config.json, together.
    """

    def __init__(self, source: str | os.PathLike[str], quantization: Quantization) -> None:
        super().__init__(source)
        self.method = quantization.method
        self.quantized: dict[str, QuantizedWeight] = {}
        self.turned: Collection[str] = ()
        self._taken: set[str] = set()
        modules = self._modules()
        schemes = Schemes(quantization, len(modules))
        faults: list[str] = []
        for module in modules:
            try:
                scheme = schemes.scheme(module)
                if isinstance(scheme, str):
                    raise BadTensorError(f"{module} is quantised, but {scheme}")
                weight = _LAYOUTS[scheme.kind](_Layer(self, module), scheme)
            except BadTensorError as error:
                faults.append(str(error))
                continue
            self.quantized[weight.name] = weight
            self._taken |= {name for name in weight.tensors if name != weight.name}
        if not modules:
            faults.append(f"config.json says that the weights are quantised ({self.method}), and no tensor is")
        if faults:
            rest = [f"… and {len(faults) - MAX_LISTED:,} more"] if len(faults) > MAX_LISTED else []
            head = f"{self.directory}: the quantised weights ({self.method}) cannot be read:"
            raise CheckpointError("\n  ".join([head, *faults[:MAX_LISTED], *rest]))
        self.unused = [name for name in super().__iter__() if name.endswith(UNUSED)]
        self._taken |= {*self.unused, *self._biases_of_zeros()}

    def __getitem__(self, name: str) -> Array:
        weight = self.quantized.get(name)
        if weight is None:
            return super().__getitem__(name)
        return weight.floats().T if name in self.turned else weight.floats()

    def __iter__(self) -> Iterator[str]:
        yield from (name for name in super().__iter__() if name not in self._taken and name not in self.quantized)
        yield from self.quantized

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in self.quantized or name in self._where

    def info(self, name: str) -> TensorInfo:
        weight = self.quantized.get(name)
        if weight is None:
            return super().info(name)
        shape = weight.shape[::-1] if name in self.turned else weight.shape
        return TensorInfo(dtypes.float32, shape, 0, 0)

    def tensor(self, name: str) -> Array:
        """A tensor as the file holds it."""
        return super().__getitem__(name)

    def tensor_info(self, name: str) -> TensorInfo | None:
        """dtype and shape of a tensor as the file holds it; None where there is none of that name."""
        return super().info(name) if name in self._where else None

    def _modules(self) -> list[str]:
        """The paths of the layers that hold quantised numbers."""
        found: dict[str, None] = {}
        for name in super().__iter__():
            module, _, role = name.rpartition(".")
            kind = super().info(name).dtype
            if role in ("qweight", "weight_packed") or (role == "weight" and kind in (dtypes.int8, *FLOATS_OF_8)):
                found[module] = None
        return list(found)

    def _biases_of_zeros(self) -> list[str]:
        """AutoGPTQ gave every layer a bias, also in models that have none."""
        if self.method != "gptq":
            return []
        biases = {f"{name.removesuffix('.weight')}.bias": weight.shape[:1] for name, weight in self.quantized.items()}
        there = {name: info.shape for name in biases if (info := self.tensor_info(name)) is not None}
        return [name for name, shape in there.items() if shape == biases[name] and not self.tensor(name).any()]


class _Layer:
    """The tensors of one layer, each checked when it is asked for."""

    def __init__(self, checkpoint: QuantizedCheckpoint, module: str) -> None:
        self.checkpoint, self.module = checkpoint, module
        self.tensors: list[str] = []

    def path(self, role: str) -> str:
        return f"{self.module}.{role}" if self.module else role

    def has(self, role: str) -> bool:
        return self.checkpoint.tensor_info(self.path(role)) is not None

    def info(self, role: str, types: tuple[DType, ...], shape: tuple[int, ...] | int) -> TensorInfo:
        """A tensor's dtype and shape. `shape`: what it must be, or how many dimensions it must have."""
        name = self.path(role)
        info = self.checkpoint.tensor_info(name)
        if info is None:
            raise BadTensorError(f"{name} is missing")
        if info.dtype not in types:
            raise BadTensorError(f"{name} is {info.dtype.name}, and must be {' or '.join(t.name for t in types)}")
        if (len(info.shape) if isinstance(shape, int) else info.shape) != shape:
            wanted = f"{shape} dimensions" if isinstance(shape, int) else list(shape)
            raise BadTensorError(f"{name} has shape {list(info.shape)}, and must have {wanted}")
        self.tensors.append(name)
        return info

    def read(self, role: str, make: Callable[[Array], Array]) -> Callable[[], Array]:
        """Reads a tensor and makes something of it. Raises CheckpointError with its name where that fails."""
        name, checkpoint = self.path(role), self.checkpoint
        return lambda: named(name, checkpoint.directory, lambda: make(checkpoint.tensor(name)))

    def now(self, role: str, make: Callable[[Array], Array | None]) -> Array | None:
        """The same at once."""
        name = self.path(role)
        try:
            return make(self.checkpoint.tensor(name))
        except BadTensorError as error:
            raise BadTensorError(f"{name} {error}") from None

    def groups(self, inputs: int, group: int) -> tuple[int, int]:
        """How many inputs share a scale, and how many groups there are."""
        self.bounded(inputs, "inputs")
        size = group or inputs
        if inputs % size:
            raise BadTensorError(f"{self.module}: groups of {size} do not divide its {inputs} inputs")
        return size, inputs // size

    def bounded(self, count: int, what: str) -> None:
        """Refuses a size that no layer has, before anything of that size is read: the group of each input, a bias."""
        if count > MAX_GROUP:
            raise BadTensorError(f"{self.module} has {count:,} {what}; at most {MAX_GROUP:,} are read")

    def weight(self, shape: tuple[int, int], bits: int, group: int, **parts: Any) -> QuantizedWeight:
        if min(shape) < 1:
            raise BadTensorError(f"{self.module} has no elements")
        self.bounded(shape[0], "outputs")
        if self.path("weight") not in self.tensors and self.has("weight"):
            raise BadTensorError(f"{self.path('weight')} stands beside the quantised one")
        return QuantizedWeight(self.path("weight"), shape, tuple(self.tensors), bits, group, **parts)


def _awq(layer: _Layer, scheme: Scheme) -> QuantizedWeight:
    info = layer.info("qweight", (dtypes.int32,), 2)
    inputs, outputs = info.shape[0], info.shape[1] * 8
    group, count = layer.groups(inputs, scheme.group)
    layer.info("qzeros", (dtypes.int32,), (count, outputs // 8))
    scales = layer.info("scales", SCALE_TYPES, (count, outputs))
    return layer.weight(
        (outputs, inputs), 4, group, integers=layer.read("qweight", awq_columns),
        zeros=layer.read("qzeros", awq_columns), scales=layer.read("scales", lambda a: finite(a).T),
        scale_type=scales.dtype,
    )  # fmt: skip


def _gptq(layer: _Layer, scheme: Scheme) -> QuantizedWeight:
    bits, several = scheme.bits, 32 // scheme.bits
    info = layer.info("qweight", (dtypes.int32,), 2)
    inputs, outputs = info.shape[0] * several, info.shape[1]
    group, count = layer.groups(inputs, scheme.group)
    if outputs % several:
        raise BadTensorError(f"{layer.module}: {outputs} outputs are no multiple of {several}, as zero points need")
    layer.info("qzeros", (dtypes.int32,), (count, outputs // several))
    scales = layer.info("scales", SCALE_TYPES, (count, outputs))
    columns = None
    if layer.has("g_idx"):
        layer.info("g_idx", INDEX_TYPES, (inputs,))
        columns = layer.now("g_idx", partial(group_of_columns, group=group))
    return layer.weight(
        (outputs, inputs), bits, group, integers=layer.read("qweight", partial(gptq_rows, bits=bits)),
        zeros=layer.read("qzeros", partial(gptq_zeros, bits=bits, minus=scheme.minus)),
        scales=layer.read("scales", lambda a: finite(a).T), columns=columns, scale_type=scales.dtype,
    )  # fmt: skip


def _integers(layer: _Layer, scheme: Scheme) -> QuantizedWeight:
    """compressed-tensors' integers: packed, or int8 as they are."""
    bits, several = scheme.bits, 32 // scheme.bits
    if layer.has("weight_packed"):
        packed = layer.info("weight_packed", (dtypes.int32,), 2).shape
        layer.info("weight_shape", INDEX_TYPES, (2,))
        shape: Any = tuple(layer.checkpoint.tensor(layer.path("weight_shape")).tolist())
        if shape[0] != packed[0] or -(-shape[1] // several) != packed[1]:
            raise BadTensorError(f"{layer.path('weight_shape')} says {list(shape)}, and {layer.path('weight_packed')} "
                                 f"holds {packed[0]} rows of {packed[1] * several}")  # fmt: skip
        integers = layer.read("weight_packed", lambda a: centred(unpacked(a, bits)[:, : shape[1]], bits))
    elif bits == 8:
        shape = layer.info("weight", (dtypes.int8,), 2).shape
        integers = layer.read("weight", lambda a: a)
    else:
        raise BadTensorError(f"{layer.path('weight')} is int8, and config.json says that it has {bits} bits")
    outputs, inputs = shape
    group, count = layer.groups(inputs, scheme.group)
    columns = None
    if layer.has("weight_g_idx"):
        layer.info("weight_g_idx", INDEX_TYPES, (inputs,))
        columns = layer.now(
            "weight_g_idx", lambda index: None if (index == -1).all() else group_of_columns(index, group)
        )
    zeros = None
    if layer.has("weight_zero_point"):
        zeros = _zero_points(layer, scheme, outputs, count)
    elif not scheme.symmetric:
        raise BadTensorError(f"{layer.path('weight_zero_point')} is missing, and the weights are not symmetric")
    scales, kind = _scales(layer, scheme, outputs, count)
    return layer.weight(
        (outputs, inputs), bits, group, integers=integers, scales=scales, zeros=zeros, columns=columns,
        rows=scheme.rows, scale_type=kind,
    )  # fmt: skip


def _scales(layer: _Layer, scheme: Scheme, outputs: int, count: int) -> tuple[Callable[[], Array], DType]:
    """Scales [outputs, groups] of one for the whole weight, for each output, or for groups of its inputs, and their
    type in the file."""
    name = "weight_scale" if layer.has("weight_scale") or not layer.has("weight_scale_inv") else "weight_scale_inv"
    info = layer.checkpoint.tensor_info(layer.path(name))
    if scheme.one:
        ones = (1,) * len(info.shape) if info is not None and len(info.shape) < 3 else 0
        kind = layer.info(name, SCALE_TYPES, ones).dtype
        return layer.read(name, lambda a: np.repeat(finite(a).reshape(1, 1), outputs, 0)), kind
    flat = count == 1 and info is not None and info.shape == (outputs,)
    kind = layer.info(name, SCALE_TYPES, (outputs,) if flat else (outputs, count)).dtype
    return layer.read(name, lambda a: finite(a).reshape(outputs, count)), kind


def _zero_points(layer: _Layer, scheme: Scheme, outputs: int, count: int) -> Callable[[], Array]:
    """Zero points [outputs, groups], which are packed along the outputs in files since 2025."""
    bits, several = scheme.bits, 32 // scheme.bits
    name = "weight_zero_point"
    info = layer.checkpoint.tensor_info(layer.path(name))
    if info is not None and info.dtype is dtypes.int32:
        layer.info(name, (dtypes.int32,), (-(-outputs // several), count))
        return layer.read(name, lambda a: centred(np.ascontiguousarray(unpacked(a.T, bits)[:, :outputs].T), bits))
    if info is not None and scheme.one:
        layer.info(name, (dtypes.int8,), (1,) * min(len(info.shape), 2))
        return layer.read(name, lambda a: np.repeat(_in_range(a, bits).reshape(1, 1), outputs, 0))
    flat = count == 1 and info is not None and info.shape == (outputs,)
    layer.info(name, (dtypes.int8,), (outputs,) if flat else (outputs, count))
    return layer.read(name, lambda a: _in_range(a, bits).reshape(outputs, count))


def _in_range(zeros: Array, bits: int) -> Array:
    half = 1 << (bits - 1)
    if zeros.min() < -half or zeros.max() >= half:
        raise BadTensorError(f"holds zero points outside of {-half}..{half - 1}")
    return zeros


def _floats(layer: _Layer, scheme: Scheme) -> QuantizedWeight:
    """Floats of 8 bits, of compressed-tensors and of the method fp8."""
    outputs, inputs = layer.info("weight", FLOATS_OF_8, 2).shape
    if scheme.block is None:
        group, count = layer.groups(inputs, scheme.group)
        scales, _ = _scales(layer, scheme, outputs, count)
    else:
        group = inputs
        name = "weight_scale_inv" if layer.has("weight_scale_inv") else "weight_scale"
        layer.info(name, SCALE_TYPES, (-(-outputs // scheme.block[0]), -(-inputs // scheme.block[1])))
        scales = layer.read(name, finite)
    return layer.weight(
        (outputs, inputs), 0, group, integers=layer.read("weight", numbers_of_8), scales=scales, block=scheme.block,
        rows=scheme.rows,
    )  # fmt: skip


_LAYOUTS: dict[str, Callable[[_Layer, Scheme], QuantizedWeight]] = {
    "awq": _awq, "gptq": _gptq, "integers": _integers, "floats": _floats,
}  # fmt: skip
