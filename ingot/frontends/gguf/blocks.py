"""How GGUF stores numbers: plain floats, or blocks of integers with scales, as ggml's ggml-common.h lays them out.

Each reader takes the blocks as bytes [n, bytes of one] and gives their values as float32 [n, values of one], by the
same float32 operations in the same order as ggml's own dequantisation, so bit for bit what that gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ingot import dtypes
from ingot.dtypes import DType

Array: TypeAlias = np.ndarray[Any, Any]
SUPER = 256  # values of a block of the K kinds


class Kind(NamedTuple):
    """A way to store numbers. `read` is None for plain floats, whose type `dtype` is; that of blocks is float32."""

    name: str
    values: int  # of one block
    bytes: int
    dtype: DType
    read: Callable[[Array], Array] | None = None


def _parts(blocks: Array, *sizes: int) -> list[Array]:
    """A block's bytes, so many for each part; the last part has the rest."""
    return np.split(blocks, np.cumsum(sizes), axis=1)


def _halves(part: Array) -> Array:
    """float16 as float32."""
    return np.ascontiguousarray(part).view(np.float16).astype(np.float32)


def _nibbles(part: Array, run: int) -> Array:
    """Of each run of bytes the lower halves, then the upper ones: [n, runs, 2, run]."""
    return (part.reshape(len(part), -1, 1, run) >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1)) & np.uint8(15)


def _spread(part: Array, shifts: int, step: int, mask: int, run: int = 32) -> Array:
    """Of each run of bytes the bits from 0 on, from `step` on, and so forth: [n, runs, shifts, run]."""
    by = np.arange(0, shifts * step, step, dtype=np.uint8).reshape(1, 1, shifts, 1)
    return (part.reshape(len(part), -1, 1, run) >> by) & np.uint8(mask)


def _fifth_bits(part: Array) -> Array:
    """32 bits as the fifth bits of 32 values."""
    words = np.ascontiguousarray(part).view("<u4")
    return ((words >> np.arange(32, dtype=np.uint32)) & np.uint32(1)).astype(np.uint8) << np.uint8(4)


def of_q4_0(blocks: Array) -> tuple[Array, Array]:
    """The integers of Q4_0, int8 [n, 32] from −8 to 7, and the scale of each block, float32 [n, 1]: a value is their
    product.
    """
    d, q = _parts(blocks, 2)
    return _nibbles(q, 16).reshape(-1, 32).astype(np.int8) - np.int8(8), _halves(d)


def _q4_0(blocks: Array) -> Array:
    whole, scales = of_q4_0(blocks)
    return scales * whole.astype(np.float32)


def _q4_1(blocks: Array) -> Array:
    d, m, q = _parts(blocks, 2, 2)
    return _halves(d) * _nibbles(q, 16).reshape(-1, 32).astype(np.float32) + _halves(m)


def _q5_0(blocks: Array) -> Array:
    d, high, q = _parts(blocks, 2, 4)
    whole = (_nibbles(q, 16).reshape(-1, 32) | _fifth_bits(high)).astype(np.int8) - np.int8(16)
    return _halves(d) * whole.astype(np.float32)


def _q5_1(blocks: Array) -> Array:
    d, m, high, q = _parts(blocks, 2, 2, 4)
    whole = _nibbles(q, 16).reshape(-1, 32) | _fifth_bits(high)
    return _halves(d) * whole.astype(np.float32) + _halves(m)


def _q8_0(blocks: Array) -> Array:
    d, q = _parts(blocks, 2)
    return _halves(d) * q.view(np.int8).astype(np.float32)


def _q2_k(blocks: Array) -> Array:
    scales, q, d, low = _parts(blocks, 16, 64, 2)
    by = (_halves(d) * (scales & np.uint8(15)).astype(np.float32))[..., None]
    less = (_halves(low) * (scales >> np.uint8(4)).astype(np.float32))[..., None]
    return np.asarray(by * _spread(q, 4, 2, 3).reshape(-1, 16, 16).astype(np.float32) - less).reshape(-1, SUPER)


def _q3_k(blocks: Array) -> Array:
    high, q, packed, d = _parts(blocks, 32, 64, 12)
    lower = (packed[:, None, :8] >> np.array([0, 4], np.uint8).reshape(1, 2, 1)).reshape(-1, 16) & np.uint8(15)
    upper = (packed[:, None, 8:] >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 4, 1)).reshape(-1, 16) & np.uint8(3)
    scales = (lower | upper << np.uint8(4)).astype(np.int8) - np.int8(32)
    by = (_halves(d) * scales.astype(np.float32))[..., None]
    less = (_spread(high, 8, 1, 1).reshape(-1, 16, 16) ^ np.uint8(1)) << np.uint8(2)
    whole = _spread(q, 4, 2, 3).reshape(-1, 16, 16).astype(np.int8) - less.astype(np.int8)
    return np.asarray(by * whole.astype(np.float32)).reshape(-1, SUPER)


def _scales_and_least(packed: Array) -> tuple[Array, Array]:
    """Eight scales and eight least values of 6 bits each, in 12 bytes."""
    first, second, upper = (packed.reshape(-1, 3, 4)[:, i] for i in range(3))
    six, four, two = np.uint8(63), np.uint8(15), np.uint8(48)
    scales = np.concatenate([first & six, (upper & four) | (first >> np.uint8(2) & two)], -1)
    least = np.concatenate([second & six, (upper >> np.uint8(4)) | (second >> np.uint8(2) & two)], -1)
    return scales.astype(np.float32), least.astype(np.float32)


def _q4_k(blocks: Array) -> Array:
    d, low, packed, q = _parts(blocks, 2, 2, 12)
    scales, least = _scales_and_least(packed)
    by, less = (_halves(d) * scales)[..., None], (_halves(low) * least)[..., None]
    return np.asarray(by * _nibbles(q, 32).reshape(-1, 8, 32).astype(np.float32) - less).reshape(-1, SUPER)


def _q5_k(blocks: Array) -> Array:
    d, low, packed, high, q = _parts(blocks, 2, 2, 12, 32)
    scales, least = _scales_and_least(packed)
    by, less = (_halves(d) * scales)[..., None], (_halves(low) * least)[..., None]
    fifth = _spread(high, 8, 1, 1).reshape(-1, 8, 32) << np.uint8(4)
    whole = _nibbles(q, 32).reshape(-1, 8, 32) | fifth
    return np.asarray(by * whole.astype(np.float32) - less).reshape(-1, SUPER)


def _q6_k(blocks: Array) -> Array:
    low, high, scales, d = _parts(blocks, 128, 64, 16)
    by = (_halves(d) * scales.view(np.int8).astype(np.float32))[..., None]
    upper = _spread(high, 4, 2, 3).reshape(-1, 8, 32) << np.uint8(4)
    whole = (_nibbles(low, 64).reshape(-1, 8, 32) | upper).astype(np.int8) - np.int8(32)
    return np.asarray(by * whole.reshape(-1, 16, 16).astype(np.float32)).reshape(-1, SUPER)


KINDS = {
    0: Kind("F32", 1, 4, dtypes.float32),
    1: Kind("F16", 1, 2, dtypes.float16),
    2: Kind("Q4_0", 32, 18, dtypes.float32, _q4_0),
    3: Kind("Q4_1", 32, 20, dtypes.float32, _q4_1),
    6: Kind("Q5_0", 32, 22, dtypes.float32, _q5_0),
    7: Kind("Q5_1", 32, 24, dtypes.float32, _q5_1),
    8: Kind("Q8_0", 32, 34, dtypes.float32, _q8_0),
    10: Kind("Q2_K", SUPER, 84, dtypes.float32, _q2_k),
    11: Kind("Q3_K", SUPER, 110, dtypes.float32, _q3_k),
    12: Kind("Q4_K", SUPER, 144, dtypes.float32, _q4_k),
    13: Kind("Q5_K", SUPER, 176, dtypes.float32, _q5_k),
    14: Kind("Q6_K", SUPER, 210, dtypes.float32, _q6_k),
    30: Kind("BF16", 1, 2, dtypes.bfloat16),
}
