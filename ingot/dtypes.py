"""Element types: every numeric type of ONNX, as frozen objects compared by identity."""
from __future__ import annotations

from dataclasses import dataclass
from reprlib import repr as brief
from typing import Any

import ml_dtypes
import numpy as np

from ingot.errors import DTypeError


@dataclass(frozen=True, eq=False, repr=False)
class DType:
    """One element type. `bits` is the logical width; arrays of 2- and 4-bit types hold one element per byte."""

    name: str
    short: str
    kind: str  # "float", "int", "uint", "bool" or "complex"
    bits: int
    numpy: np.dtype[Any]
    onnx: int  # TensorProto.DataType
    safetensors: str | None  # the container's code; None: not storable as such

    def __repr__(self) -> str:
        return self.name

    def __str__(self) -> str:
        return self.short

    def __reduce__(self) -> tuple[Any, ...]:
        return get, (self.name,)  # copies and pickles stay the one object

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")


float32 = DType("float32", "f32", "float", 32, np.dtype(np.float32), 1, "F32")
uint8 = DType("uint8", "u8", "uint", 8, np.dtype(np.uint8), 2, "U8")
int8 = DType("int8", "i8", "int", 8, np.dtype(np.int8), 3, "I8")
uint16 = DType("uint16", "u16", "uint", 16, np.dtype(np.uint16), 4, "U16")
int16 = DType("int16", "i16", "int", 16, np.dtype(np.int16), 5, "I16")
int32 = DType("int32", "i32", "int", 32, np.dtype(np.int32), 6, "I32")
int64 = DType("int64", "i64", "int", 64, np.dtype(np.int64), 7, "I64")
bool_ = DType("bool", "bool", "bool", 8, np.dtype(np.bool_), 9, "BOOL")
float16 = DType("float16", "f16", "float", 16, np.dtype(np.float16), 10, "F16")
float64 = DType("float64", "f64", "float", 64, np.dtype(np.float64), 11, "F64")
uint32 = DType("uint32", "u32", "uint", 32, np.dtype(np.uint32), 12, "U32")
uint64 = DType("uint64", "u64", "uint", 64, np.dtype(np.uint64), 13, "U64")
complex64 = DType("complex64", "c64", "complex", 64, np.dtype(np.complex64), 14, "C64")
complex128 = DType("complex128", "c128", "complex", 128, np.dtype(np.complex128), 15, None)
bfloat16 = DType("bfloat16", "bf16", "float", 16, np.dtype(ml_dtypes.bfloat16), 16, "BF16")
float8_e4m3fn = DType("float8_e4m3fn", "f8e4m3fn", "float", 8, np.dtype(ml_dtypes.float8_e4m3fn), 17, "F8_E4M3")
MOST_FLOAT8 = 448  # the largest float8_e4m3fn
float8_e4m3fnuz = DType("float8_e4m3fnuz", "f8e4m3fnuz", "float", 8, np.dtype(ml_dtypes.float8_e4m3fnuz), 18, None)
float8_e5m2 = DType("float8_e5m2", "f8e5m2", "float", 8, np.dtype(ml_dtypes.float8_e5m2), 19, "F8_E5M2")
float8_e5m2fnuz = DType("float8_e5m2fnuz", "f8e5m2fnuz", "float", 8, np.dtype(ml_dtypes.float8_e5m2fnuz), 20, None)
uint4 = DType("uint4", "u4", "uint", 4, np.dtype(ml_dtypes.uint4), 21, None)
int4 = DType("int4", "i4", "int", 4, np.dtype(ml_dtypes.int4), 22, None)
float4_e2m1fn = DType("float4_e2m1fn", "f4e2m1fn", "float", 4, np.dtype(ml_dtypes.float4_e2m1fn), 23, None)
float8_e8m0fnu = DType("float8_e8m0fnu", "f8e8m0fnu", "float", 8, np.dtype(ml_dtypes.float8_e8m0fnu), 24, "F8_E8M0")
uint2 = DType("uint2", "u2", "uint", 2, np.dtype(ml_dtypes.uint2), 25, None)
int2 = DType("int2", "i2", "int", 2, np.dtype(ml_dtypes.int2), 26, None)

ALL: tuple[DType, ...] = tuple(value for value in list(globals().values()) if isinstance(value, DType))
FLOATS: tuple[DType, ...] = (float32, bfloat16, float16, float64)  # the types arithmetic is defined on
PRECISIONS: tuple[DType, ...] = (float32, bfloat16, float16)  # those that networks compute in: words.PRECISIONS
INTEGERS: tuple[DType, ...] = (int8, int16, int32, int64, uint8, uint16, uint32, uint64)

_BY_NAME = {dtype.name: dtype for dtype in ALL} | {dtype.short: dtype for dtype in ALL}
_BY_NUMPY = {dtype.numpy: dtype for dtype in ALL}
_BY_SAFETENSORS = {dtype.safetensors: dtype for dtype in ALL if dtype.safetensors}


def get(like: object) -> DType:
    """The DType of a name ("bfloat16", "bf16"), a NumPy dtype or scalar type, or a DType itself."""
    if isinstance(like, DType):
        return like
    found = None
    if isinstance(like, str):
        found = _BY_NAME.get(like)
    elif isinstance(like, np.dtype) or isinstance(like, type) and issubclass(like, np.generic):
        found = _BY_NUMPY.get(np.dtype(like))
    if found is not None:
        return found
    raise DTypeError(f"{brief(like)} is not an element type; known are {', '.join(dtype.name for dtype in ALL)}")


def from_safetensors(code: str) -> DType:
    """The DType that a safetensors file calls `code`."""
    if (found := _BY_SAFETENSORS.get(code)) is None:
        raise DTypeError(f"{code!r} is no safetensors element type that ingot knows ({', '.join(_BY_SAFETENSORS)})")
    return found


def cache_width(dtype: DType, head_dim: int) -> int:
    """Elements that a KV cache of `dtype` takes for one vector: of int8 as many as 16 divides, and four bytes of
    a scale.
    """
    return -(-head_dim // 16) * 16 + 4 if dtype is int8 else head_dim
