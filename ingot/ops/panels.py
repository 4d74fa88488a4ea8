"""The layout in which the CPU's products read weights: panels of 32 outputs, the same at every instruction-set level.

With it goes the recipe step `pack_panels` and its exact inverse. native/kernels/level/matmul.h has the same layouts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ingot import dtypes
from ingot.dtypes import DType
from ingot.ir.recipe import Array, Known, Shape, Step, register, require

PANEL = 32  # outputs in one panel
# How many values of k lie side by side: those that one step of a product reads.
DEPTH = {
    dtypes.float32: 1, dtypes.float16: 1, dtypes.bfloat16: 2, dtypes.int8: 4, dtypes.float8_e4m3fn: 4, dtypes.int4: 8,
}  # fmt: skip


def packed_dtype(dtype: DType) -> DType:
    """What the panels of a weight are stored as: two values of 4 bits are one uint8, the first in its lower half."""
    return dtypes.uint8 if dtype is dtypes.int4 else dtype


def unpacked_dtype(stored: DType) -> DType:
    """What values panels of that type hold."""
    return dtypes.int4 if stored is dtypes.uint8 else stored


def packed_shape(dtype: DType, n: int, k: int, parts: int) -> Shape:
    """Shape of `parts` packed weights [n, k]. float32 and float16: [panels, k, 32]. Others: [panels, ceil(k / depth),
    32, depth], with a depth of 2 for bfloat16 and 4 for 8 bits. int4: 8 values in [..., 32, 4] bytes."""
    depth = DEPTH[dtype]
    inner = (depth * dtype.bits // packed_dtype(dtype).bits,) if depth > 1 else ()
    return (parts * -(-n // PANEL), -(-k // depth), PANEL, *inner)


def _pack_infer(known: Sequence[Known]) -> Known:
    dtype, shape = known[0]
    require(len(known) in (1, 2), f"packs one or two weights, not {len(known)}")
    require(dtype in DEPTH, f"weights of {dtype.name} cannot be packed")
    require(len(shape) == 2 and 0 not in shape, f"a weight [N, K] is needed, not {list(shape)}")
    require(all(one == known[0] for one in known), "the weights must agree in dtype and shape")
    return packed_dtype(dtype), packed_shape(dtype, shape[0], shape[1], len(known))


def _aligned(shape: Shape, dtype: np.dtype[Any]) -> Array:
    """An empty array that begins at a cache line, which halves the lines that a wide load touches."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


def _word(dtype: DType) -> np.dtype[Any]:
    """Values of k that lie side by side move as one word."""
    return np.dtype(np.uint16) if dtype is dtypes.float16 else np.dtype(np.uint32)


def _words(weight: Array, dtype: DType) -> Array:
    """The rows of a weight [N, K] as words [N, steps], zeros behind."""
    rows = np.ascontiguousarray(weight)
    n, k = rows.shape
    if over := -k % DEPTH[dtype]:
        element = np.dtype(f"u{rows.dtype.itemsize}")
        rows = np.concatenate([rows.view(element), np.zeros((n, over), element)], 1)
    if dtype is dtypes.int4:
        values = rows.view(np.uint8) & 15
        rows = values[:, ::2] | values[:, 1::2] << 4
    return rows.view(_word(dtype))


def pack_panels(weights: Sequence[Array]) -> Array:
    """Weights [N, K] (1 or 2 of them) as panels of 32 outputs, zero padded; with two weights their panels alternate.

    float32 and float16: [panel, k, lane]. bfloat16: [panel, k pair, lane, parity], as a dot product of pairs reads it.
    8 bits: [panel, four of k, lane, which]. int4: [panel, eight of k, lane, bytes].
    """
    known = [(dtypes.get(w.dtype), w.shape) for w in weights]
    stored, shape = _pack_infer(known)
    dtype = known[0][0]
    out = _aligned(shape, stored.numpy)
    n = weights[0].shape[0]
    words = out.view(_word(dtype)).reshape(shape[:3])
    full = n // PANEL
    for part, weight in enumerate(weights):
        rows = _words(weight, dtype)
        mine = words[part :: len(weights)]
        for p in range(full):  # a panel (32 rows) at a time stays in the cache: 3-7 GB/s in NumPy
            mine[p] = rows[p * PANEL : (p + 1) * PANEL].T
        if full < len(mine):
            mine[full] = 0
            mine[full, :, : n - full * PANEL] = rows[full * PANEL :].T
    return out


def unpack_panels(packed: Array, n: int, k: int, parts: int) -> list[Array]:
    """The exact inverse of `pack_panels`: the `parts` weights [n, k]."""
    dtype = unpacked_dtype(dtypes.get(packed.dtype))
    require(dtype in DEPTH, f"weights of {dtype.name} are not packed")
    shape = packed_shape(dtype, n, k, parts)
    require(
        packed.shape == shape, f"{parts} weight(s) [{n}, {k}] are packed as {list(shape)}, not {list(packed.shape)}"
    )
    words = np.ascontiguousarray(packed).view(_word(dtype)).reshape(shape[:3])
    result = []
    for part in range(parts):
        mine = words[part::parts]
        rows = np.empty((mine.shape[0] * PANEL, mine.shape[1]), words.dtype)
        for p in range(mine.shape[0]):
            rows[p * PANEL : (p + 1) * PANEL] = mine[p].T
        result.append(np.ascontiguousarray(_values(rows, dtype)[:n, :k]))
    return result


def _values(rows: Array, dtype: DType) -> Array:
    """What `_words` made words of."""
    if dtype is not dtypes.int4:
        return rows.view(dtype.numpy)
    halves = rows.view(np.uint8)
    both = np.stack([halves << 4, halves], -1).view(np.int8) >> 4  # the shift of a signed number keeps its sign
    return both.reshape(len(rows), -1).astype(dtype.numpy)


def _pack_inverse(array: Array, known: Sequence[Known]) -> list[Array]:
    n, k = known[0][1]
    return unpack_panels(array, n, k, len(known))


register(Step("pack_panels", 1, _pack_infer, lambda xs: pack_panels(xs), {}, _pack_inverse))
