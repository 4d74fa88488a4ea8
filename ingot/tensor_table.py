"""One entry of a safetensors header, checked: what the readers of checkpoints and of engine files share."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ingot.dtypes import DType

MAX_READ = 1 << 30  # Linux returns at most 2 GiB - 4 KiB per read


class TensorInfo(NamedTuple):
    """Where one tensor lies; `begin` and `end` count from the start of the file."""

    dtype: DType
    shape: tuple[int, ...]
    begin: int
    end: int


class Limits(NamedTuple):
    """What a kind of file may hold: dtypes by their safetensors code, the most dims, the most bytes of a name."""

    codes: Mapping[str, DType]
    rank: int
    name: int


def is_count(value: Any) -> bool:
    """Whether `value` is an int (no bool) that fits in 63 bits and is not negative."""
    return type(value) is int and 0 <= value < 2**63


def name_fault(name: str, limit: int) -> str | None:
    """Why `name` cannot be a tensor's name, or None. Names reach messages, logs and file names, hence the rules."""
    size = len(name.encode(errors="surrogatepass"))
    if not 0 < size <= limit:
        return f"a name has 1 to {limit} bytes, this one {size}"
    if not name.isprintable():
        return "the name holds characters that cannot be printed"
    if name.startswith("/") or ".." in name.split("/"):
        return "the name looks like a path out of a folder"
    return None


def check_entry(name: str, entry: Any, start: int, limits: Limits) -> TensorInfo | str:
    """The entry of a header whose data begins at byte `start` of the file, or what is wrong with it."""
    if (fault := name_fault(name, limits.name)) is not None:
        return fault
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        return "must have exactly dtype, shape and data_offsets"
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    dtype = limits.codes.get(code) if isinstance(code, str) else None
    if dtype is None:
        return f"unknown dtype {str(code)[:40]!r}; known are {', '.join(sorted(limits.codes))}"
    if not isinstance(shape, list) or len(shape) > limits.rank or not all(is_count(d) and d > 0 for d in shape):
        return f"shape must be a list of at most {limits.rank} positive integers, got {str(shape)[:60]}"
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(is_count, offsets)):
        return f"data_offsets must be two integers, got {str(offsets)[:60]}"
    begin, end = offsets
    needed = math.prod(shape) * dtype.bits // 8
    if end - begin != needed:
        return f"{dtype.name}{shape} needs {needed:,} bytes but its offsets span {end - begin:,}"
    return TensorInfo(dtype, tuple(shape), start + begin, start + end)


def read_tensor(descriptor: int, info: TensorInfo) -> np.ndarray[Any, Any] | None:
    """The tensor's data in an array of its own, or None when the file ends before the tensor does."""
    array: np.ndarray[Any, Any] = np.empty(info.shape, info.dtype.numpy)
    view = array.reshape(-1).view(np.uint8).data
    done = 0
    while done < len(view):
        count = os.preadv(descriptor, [view[done : done + MAX_READ]], info.begin + done)
        if count == 0:
            return None
        done += count
    return array
