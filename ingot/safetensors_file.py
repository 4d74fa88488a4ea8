"""Reading one safetensors file: strict about the header, lazy about the data.

Layout: u64 little-endian n | n bytes of JSON {name: {dtype, shape, data_offsets}} | tensor data without holes. The data
is read with `pread` into arrays of our own, not through a mapping. A file that somebody shortens meanwhile is then a
typed error and not a SIGBUS. Building an engine holds one tensor at a time instead of the whole mapped file.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ingot import dtypes, strict_json
from ingot.errors import CheckpointError
from ingot.regular import IrregularError, descriptor_of
from ingot.tensor_table import Limits, TensorInfo, check_entry, read_tensor

MAX_HEADER = 64 << 20
MAX_TENSORS = 500_000
MAX_RANK = 64  # NumPy's limit
MAX_NAME = 1024  # bytes
MAX_LISTED = 20

_LIMITS = Limits(
    {d.safetensors: d for d in dtypes.ALL if d.safetensors is not None and d.bits % 8 == 0}, MAX_RANK, MAX_NAME
)


def open_regular(path: Path) -> int:
    """A read-only descriptor of `path`, which must be a regular file. Raises CheckpointError."""
    try:
        return descriptor_of(path)
    except IrregularError:
        raise CheckpointError(f"{path} is not a regular file") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be opened: {error.strerror or error}") from None


def read_small(path: Path, limit: int) -> bytes:
    """The whole content of a file of at most `limit` bytes."""
    descriptor = open_regular(path)
    try:
        size = os.fstat(descriptor).st_size
        if size > limit:
            raise CheckpointError(f"{path} has {size:,} bytes; such a file has at most {limit:,}")
        data = bytearray()
        while len(data) < size and (chunk := os.read(descriptor, size - len(data))):
            data += chunk
        return bytes(data)
    finally:
        os.close(descriptor)


class SafetensorsFile(Mapping[str, np.ndarray]):
    """name → array, read from the file at each access; `info` tells dtype and shape without reading.

    Raises:
        CheckpointError: anything in the file that the format does not allow, each with the tensor's name and the rule.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._descriptor = open_regular(self.path)
        self.close = weakref.finalize(self, os.close, self._descriptor)
        try:
            self.metadata, self._tensors = self._read_header()
        except BaseException:
            self.close()
            raise

    def __getitem__(self, name: str) -> np.ndarray:
        array = read_tensor(self._descriptor, self._tensors[name])
        if array is None:
            raise self._error(f"ends inside tensor {name}: the file was shortened after it had been opened")
        return array

    def __contains__(self, name: object) -> bool:
        return name in self._tensors  # a Mapping's own reads the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def info(self, name: str) -> TensorInfo:
        return self._tensors[name]

    def _error(self, why: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {why}")

    def _read_header(self) -> tuple[dict[str, str], dict[str, TensorInfo]]:
        size = os.fstat(self._descriptor).st_size
        if size == 0:
            raise self._error("the file is empty")
        head = os.pread(self._descriptor, 8, 0)
        length = int.from_bytes(head, "little")
        if len(head) < 8 or length < 2:
            raise self._error(f"is not a safetensors file ({size:,} bytes, a header of {length:,})")
        if length > min(MAX_HEADER, size - 8):
            raise self._error(
                f"is not a whole safetensors file: its header should have {length:,} bytes, the file has {size:,} "
                f"and a header at most {MAX_HEADER:,}. Download it again"
            )
        raw = os.pread(self._descriptor, length, 8)
        if len(raw) < length:
            raise self._error("ends inside its header")
        if raw[:1] != b"{":
            raise self._error("its header does not begin with '{', so it is not a safetensors file")
        try:
            header = strict_json.parse_object(raw, max_depth=4)
        except strict_json.JsonError as error:
            raise self._error(f"bad header: {error}") from None
        if len(header) > MAX_TENSORS:
            raise self._error(f"names {len(header):,} tensors; at most {MAX_TENSORS:,} are read")
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise self._error("__metadata__ must be an object of strings")
        faults: list[str] = []
        tensors: dict[str, TensorInfo] = {}
        for name, entry in header.items():
            parsed = _entry(name, entry, 8 + length, size)
            if isinstance(parsed, TensorInfo):
                tensors[name] = parsed
            else:
                faults.append(f"{name[:80]!r}: {parsed}")
        faults = faults or _layout_faults(tensors, 8 + length, size)
        if faults:
            rest = f"\n  … and {len(faults) - MAX_LISTED} more" if len(faults) > MAX_LISTED else ""
            raise self._error("bad tensors:\n  " + "\n  ".join(faults[:MAX_LISTED]) + rest)
        return metadata, tensors


def _entry(name: str, entry: Any, start: int, size: int) -> TensorInfo | str:
    """One checked header entry, or what is wrong with it."""
    info = check_entry(name, entry, start, _LIMITS)
    if isinstance(info, str):
        return info
    if info.end > size:
        return f"ends {info.end - size:,} bytes behind the end of the file; download it again"
    if (info.begin - start) % info.dtype.numpy.itemsize:
        return f"starts at byte {info.begin - start}, not a multiple of its element size {info.dtype.numpy.itemsize}"
    return info


def _layout_faults(tensors: dict[str, TensorInfo], start: int, size: int) -> list[str]:
    """Overlaps, holes and trailing bytes; without them every byte of the file belongs to exactly one thing."""
    faults: list[str] = []
    at, before = start, "the header"
    for name, info in sorted(tensors.items(), key=lambda item: item[1].begin):
        if info.begin != at:
            kind = "a hole of" if info.begin > at else "an overlap of"
            faults.append(f"{name!r}: {kind} {abs(info.begin - at):,} bytes with {before}")
        at, before = info.end, repr(name)
    if not faults and at != size:
        faults.append(f"{size - at:,} bytes follow the last tensor")
    return faults
