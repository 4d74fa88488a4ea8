"""What the tests of the row, movement and attention kernels share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ingot import _native, dtypes
from tests.kernels import one_call
from tests.kernels.one_call import Operand, View, Weight

Array = np.ndarray[Any, Any]

FLOATS = (np.dtype(np.float32), dtypes.bfloat16.numpy, np.dtype(np.float16))
# The relative error of one rounding to the type.
ROUNDING = {FLOATS[0]: 2.0**-24, FLOATS[1]: 2.0**-9, FLOATS[2]: 2.0**-11}


def session(
    buffers: Sequence[Mapping[str, Any]],
    calls: Sequence[Mapping[str, Any]],
    outputs: Mapping[str, int],
    symbols: Mapping[str, int] | None = None,
    tensors: Mapping[str, Array] | None = None,
    **options: Any,
) -> Any:
    """A session of a program made of these parts; symbols maps a name to its greatest value."""
    program = {
        "version": 1,
        "symbols": [{"name": name, "min": 0, "max": most} for name, most in (symbols or {}).items()],
        "buffers": list(buffers),
        "calls": [{"version": 1, "params": {}, "where": "", **call} for call in calls],
        "outputs": [{"name": name, "buffer": buffer} for name, buffer in outputs.items()],
    }
    header = {"format": 1, "programs": {"cpu": {"entries": {"main": program}}}}
    engine = _native.Engine.from_memory(json.dumps(header).encode(), dict(tensors or {}))
    return _native.Session(engine, **options)


def _whole(array: Array) -> Array:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _operand(array: Array | Weight) -> Operand:
    """A strided array is given to the kernel as a window on the whole array that it is part of."""
    if isinstance(array, Weight) or array.flags.c_contiguous:
        return array
    whole = _whole(array)
    offset = (array.__array_interface__["data"][0] - whole.__array_interface__["data"][0]) // array.itemsize
    return View(whole, array.shape, tuple(s // array.itemsize for s in array.strides), offset)


def run(
    kernel: str,
    inputs: Sequence[Array | Weight],
    outputs: Sequence[tuple[Any, Sequence[int]]],
    /,
    threads: int = 1,
    **params: Any,
) -> list[Array]:
    """The results of one call; outputs are (dtype, shape)."""
    described = [(np.dtype(dtype).name, tuple(shape)) for dtype, shape in outputs]
    return one_call.run(kernel, params, [_operand(array) for array in inputs], described, threads)


def same_bits(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def close(got: Array, expected: Array, roundings: float, around: float = 1.0) -> None:
    """got is within so many roundings of its type of expected (float64), relative to it and at least to `around`."""
    error = np.abs(got.astype(np.float64) - expected) / np.maximum(np.abs(expected), around)
    limit = roundings * ROUNDING[got.dtype]
    assert got.shape == expected.shape and (error <= limit).all(), f"error {error.max():.3g}, limit {limit:.3g}"
