"""tensorrt.DataType and the helpers of tensorrt_llm._utils that go from one library's element types to another's."""

from __future__ import annotations

import sys
from enum import Enum
from typing import Any

import numpy as np

from ingot import _lazy, dtypes
from ingot.dtypes import DType
from ingot.errors import DTypeError


class DataType(Enum):
    """tensorrt.DataType; the value of each member is ingot's element type."""

    FLOAT = dtypes.float32
    HALF = dtypes.float16
    BF16 = dtypes.bfloat16
    INT8 = dtypes.int8
    UINT8 = dtypes.uint8
    INT32 = dtypes.int32
    INT64 = dtypes.int64
    BOOL = dtypes.bool_
    FP8 = dtypes.float8_e4m3fn
    INT4 = dtypes.int4
    FP4 = dtypes.float4_e2m1fn

    @property
    def itemsize(self) -> float:
        """Bytes of one element."""
        bits: int = self.value.bits
        return bits / 8 if bits < 8 else bits // 8

    def __repr__(self) -> str:
        return f"<DataType.{self.name}>"


ALIASES = {
    "float32": DataType.FLOAT, "float16": DataType.HALF, "bfloat16": DataType.BF16, "int8": DataType.INT8,
    "uint8": DataType.UINT8, "int32": DataType.INT32, "int64": DataType.INT64, "bool": DataType.BOOL,
    "fp8": DataType.FP8, "int4": DataType.INT4, "fp4": DataType.FP4,
}  # fmt: skip
_NAMES = {member: name for name, member in ALIASES.items()} | {DataType.FP4: "nvfp4"}
_WORDS = ALIASES | {"nvfp4": DataType.FP4}


def as_dtype(like: Any) -> DType:
    """ingot's element type of a DataType, of a name, or of NumPy's, torch's or ingot's own.

    Raises:
        DTypeError: (a TypeError) anything else.
    """
    if isinstance(like, DataType):
        return like.value
    if isinstance(like, str):
        return _WORDS[like].value if like in _WORDS else dtypes.get(like)
    if type(like).__module__ == "torch":
        return as_dtype(str(like).removeprefix("torch."))
    return dtypes.get(like)


def data_type(like: Any) -> DataType:
    """The DataType of whatever `as_dtype` takes. Raises DTypeError where TensorRT has none, as for float64."""
    kind = as_dtype(like)
    try:
        return DataType(kind)
    except ValueError:
        known = ", ".join(ALIASES)
        raise DTypeError(f"TensorRT has no type for {kind.name}; cast it to one of {known}") from None


def str_dtype_to_trt(dtype: str) -> DataType:
    """The DataType of a name such as "float16"."""
    return data_type(dtype)


def torch_dtype_to_trt(dtype: Any) -> DataType:
    """The DataType of a torch.dtype."""
    return data_type(dtype)


def np_dtype_to_trt(dtype: Any) -> DataType:
    """The DataType of a NumPy dtype."""
    return data_type(np.dtype(dtype))


def trt_dtype_to_str(dtype: DataType) -> str:
    """The name of a DataType."""
    return _NAMES[data_type(dtype)]


def trt_dtype_to_np(dtype: DataType) -> np.dtype[Any]:
    """The NumPy dtype of a DataType (ml_dtypes' for bfloat16 and narrower)."""
    return as_dtype(dtype).numpy


def str_dtype_to_np(dtype: str) -> np.dtype[Any]:
    """The NumPy dtype of a name."""
    return as_dtype(dtype).numpy


def trt_dtype_to_torch(dtype: DataType) -> Any:
    """The torch.dtype of a DataType."""
    torch = _lazy.optional("torch", "trt_dtype_to_torch", "ingot[torch]")
    return getattr(torch, as_dtype(dtype).name)


def str_dtype_to_torch(dtype: str) -> Any:
    """The torch.dtype of a name."""
    return trt_dtype_to_torch(str_dtype_to_trt(dtype))


def np_dtype_to_torch(dtype: Any) -> Any:
    """The torch.dtype of a NumPy dtype."""
    return trt_dtype_to_torch(np_dtype_to_trt(dtype))


def torch_dtype_to_str(dtype: Any) -> str:
    """The name of a torch.dtype."""
    return as_dtype(dtype).name


def torch_dtype_to_np(dtype: Any) -> np.dtype[Any]:
    """The NumPy dtype of a torch.dtype."""
    return as_dtype(dtype).numpy


def is_torch(value: Any) -> bool:
    """Whether it is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
