"""One GGUF file: metadata and where each tensor lies, checked before anything of its size is allocated.

Layout (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian): magic, version,
counts | metadata: name, type, value | tensors: name, dims, kind, offset | padding | data. The data is read with
`pread`, a tensor at a time, as those of safetensors files are.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ingot import dtypes
from ingot.errors import CheckpointError
from ingot.frontends.gguf.blocks import KINDS, Kind
from ingot.safetensors_file import open_regular
from ingot.tensor_table import TensorInfo, name_fault, read_tensor

Value: TypeAlias = int | float | bool | str | list[Any]

MAX_HEADER = 256 << 20  # bytes; vocabularies of 260,000 tokens and their merges take some 12 MB
MAX_KEYS, MAX_TENSORS, MAX_RANK, MAX_NAME = 100_000, 100_000, 4, 1024
MAX_ELEMENTS = 4_000_000  # of all arrays of the metadata; published ones have up to 2,000,000
PIECE = 1 << 20  # bytes of the header that are read first, then as many as there are
AT_ONCE = 1 << 22  # values that are dequantised at a time
SHOWN = 80
NUMBERS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 10: "<u8", 11: "<i8", 12: "<f8"}
BOOL, STRING, ARRAY = 7, 8, 9


class Place(NamedTuple):
    """A tensor: how its numbers are stored, its shape with the last dim the nearest, its bytes in the file."""

    kind: Kind
    shape: tuple[int, ...]
    begin: int
    end: int


class GgufFile(Mapping[str, np.ndarray]):
    """name → float32, float16 or bfloat16, read and dequantised at each access; `metadata` are its keys and values.

    Raises:
        CheckpointError: anything that the format does not allow, with the key or tensor and the byte where it stands.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._descriptor = open_regular(self.path)
        self.close = weakref.finalize(self, os.close, self._descriptor)
        try:
            self.metadata, self.places = _Header(self.path, self._descriptor).read()
        except BaseException:
            self.close()
            raise

    def info(self, name: str) -> TensorInfo:
        """dtype, as it is given, and shape of a tensor (KeyError if there is none of that name)."""
        place = self.places[name]
        return TensorInfo(place.kind.dtype, place.shape, place.begin, place.end)

    def __getitem__(self, name: str) -> np.ndarray:
        kind, shape, begin, end = self.places[name]
        if kind.read is None:
            return self._read(name, kind.dtype, shape, begin, end)
        found = np.empty(math.prod(shape), np.float32)
        for first, blocks in self.blocks(name):
            found[first * kind.values : (first + len(blocks)) * kind.values] = kind.read(blocks).reshape(-1)
        return found.reshape(shape)

    def blocks(self, name: str) -> Iterator[tuple[int, np.ndarray]]:
        """The blocks of a tensor as bytes [n, bytes of one], some at a time, each with the number of the first."""
        kind, _, begin, end = self.places[name]
        each = AT_ONCE // kind.values * kind.bytes
        for at in range(begin, end, each):
            last = min(at + each, end)
            shape = ((last - at) // kind.bytes, kind.bytes)
            yield (at - begin) // kind.bytes, self._read(name, dtypes.uint8, shape, at, last)

    def __contains__(self, name: object) -> bool:
        return name in self.places  # a Mapping's own reads the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    def _read(self, name: str, dtype: dtypes.DType, shape: tuple[int, ...], begin: int, end: int) -> np.ndarray:
        found = read_tensor(self._descriptor, TensorInfo(dtype, shape, begin, end))
        if found is None:
            raise CheckpointError(f"{self.path}: the file ends inside the tensor {name}: it was cut off meanwhile")
        return found


class _Header:
    """What lies before the data, read from the front."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self.descriptor = path, descriptor
        self.size = os.fstat(descriptor).st_size
        self.data, self.at = b"", 0
        self.elements = 0  # of arrays so far

    def read(self) -> tuple[dict[str, Value], dict[str, Place]]:
        magic, version = bytes(self.take(4, "the magic")), self.whole("<u4", "the version")
        if magic != b"GGUF":
            raise self.fault("it does not begin with GGUF, so it is no GGUF file")
        if version not in (2, 3):
            swapped = version != 0 and version & 0xFFFF == 0
            more = "; it is one of big-endian machines" if swapped else ""
            raise self.fault(f"version {version} of the format is not read, 2 and 3 are{more}")
        tensors = self.count("<u8", MAX_TENSORS, "tensors")
        keys = self.count("<u8", MAX_KEYS, "keys")
        metadata: dict[str, Value] = {}
        for _ in range(keys):
            name = self.name("a key")
            if name in metadata:
                raise self.fault(f"the key {name} stands there twice")
            metadata[name] = self.value(name)
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
            raise self.fault(f"general.alignment must be a power of two up to 2^20, not {str(alignment)[:SHOWN]}")
        listed = [self.tensor() for _ in range(tensors)]
        start = -(-self.at // alignment) * alignment
        return metadata, self.placed(listed, start, alignment)

    def tensor(self) -> tuple[str, Kind, tuple[int, ...], int]:
        name = self.name("a tensor")
        rank = self.whole("<u4", name)
        if rank > MAX_RANK:
            raise self.fault(f"the tensor {name} has {rank} dimensions, at most {MAX_RANK} are read")
        shape = tuple(self.whole("<u8", name) for _ in range(rank))[::-1]
        number = self.whole("<u4", name)
        offset = self.whole("<u8", name)
        if number not in KINDS:
            known = ", ".join(kind.name for kind in KINDS.values())
            raise self.fault(f"the tensor {name} is stored as kind {number}, which is not read; {known} are")
        return name, KINDS[number], shape, offset

    def placed(
        self, listed: list[tuple[str, Kind, tuple[int, ...], int]], start: int, alignment: int
    ) -> dict[str, Place]:
        """The tensors by name; none overlap and all lie in the file."""
        found: dict[str, Place] = {}
        for name, kind, shape, offset in listed:
            if name in found:
                raise self.fault(f"the tensor {name} stands there twice")
            elements = math.prod(shape)
            if not elements or elements >= 2**63:
                raise self.fault(f"the tensor {name} is {list(shape)}: it must have elements, fewer than 2^63")
            if (shape[-1] if shape else 1) % kind.values:
                raise self.fault(f"the tensor {name} is {list(shape)}: rows of {kind.name} are blocks of {kind.values}")
            size = elements // kind.values * kind.bytes
            if offset % alignment or start + offset + size > self.size:
                raise self.fault(
                    f"the tensor {name} of {size:,} bytes begins at {start + offset:,}, which is not aligned to "
                    f"{alignment} or leaves the file's {self.size:,} bytes; an incomplete download?"
                )
            found[name] = Place(kind, shape, start + offset, start + offset + size)
        in_order = sorted(found.items(), key=lambda item: item[1].begin)
        for (one, a), (other, b) in zip(in_order, in_order[1:], strict=False):
            if b.begin < a.end:
                raise self.fault(f"the tensors {one} and {other} overlap")
        return found

    def value(self, name: str) -> Value:
        kind = self.whole("<u4", name)
        if kind == ARRAY:
            inner = self.whole("<u4", name)
            what = f"elements of {name}{f' behind {self.elements:,} of other arrays' if self.elements else ''}"
            count = self.count("<u8", MAX_ELEMENTS - self.elements, what)
            self.elements += count
            if inner in NUMBERS:
                dtype = np.dtype(NUMBERS[inner])
                numbers = np.frombuffer(self.take(count * dtype.itemsize, name), dtype)
                return numbers.tolist()  # type: ignore[no-any-return]
            if inner not in (BOOL, STRING):
                raise self.fault(f"{name} is an array of type {inner}, which is not read")
            return [self.scalar(inner, name) for _ in range(count)]
        return self.scalar(kind, name)

    def scalar(self, kind: int, name: str) -> Value:
        if kind == STRING:
            return self.text(name)
        if kind == BOOL:
            return bool(self.number("<u1", name))
        if kind not in NUMBERS:
            raise self.fault(f"{name} is of type {kind}, which the format does not have")
        return self.number(NUMBERS[kind], name)

    def name(self, what: str) -> str:
        found = self.text(f"the name of {what}", MAX_NAME)
        if (fault := name_fault(found, MAX_NAME)) is not None:
            raise self.fault(f"the name of {what}, {found[:SHOWN]!r}: {fault}")
        return found

    def text(self, what: str, limit: int = MAX_HEADER) -> str:
        size = self.whole("<u8", what)
        if size > limit:
            raise self.fault(f"{what} has {size:,} bytes; at most {limit:,} are read")
        try:
            return bytes(self.take(size, what)).decode()
        except UnicodeDecodeError:
            raise self.fault(f"{what} is no UTF-8") from None

    def count(self, form: str, limit: int, what: str) -> int:
        found = self.whole(form, f"the number of {what}")
        if found > limit:
            raise self.fault(f"{found:,} {what}; at most {limit:,} are read")
        return found

    def whole(self, form: str, what: str) -> int:
        return int(self.number(form, what))

    def number(self, form: str, what: str) -> int | float:
        found: int | float = np.frombuffer(self.take(np.dtype(form).itemsize, what), form)[0].item()
        return found

    def take(self, size: int, what: str) -> memoryview:
        """The next bytes. Only what the file has is ever asked for."""
        if self.at + size > min(self.size, MAX_HEADER):
            where = "the file ends" if self.at + size > self.size else f"its header has more than {MAX_HEADER:,} bytes"
            raise self.fault(f"{where} inside {what}; an incomplete download?")
        while (known := len(self.data)) < self.at + size:
            piece = os.pread(self.descriptor, max(PIECE, known, self.at + size - known), known)
            if not piece:
                raise self.fault(f"the file ends inside {what}; an incomplete download?")
            self.data += piece
        found = memoryview(self.data)[self.at : self.at + size]
        self.at += size
        return found

    def fault(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: at byte {self.at:,}: {what}")
