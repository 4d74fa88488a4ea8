"""Tensors of an ONNX file: what they are without reading them, and their elements, from the file itself or from files
beside it.

External data is read from inside the model's folder only: no absolute path, no `..`, no link anywhere on the way, no
file that has a second name elsewhere.
"""

from __future__ import annotations

import math
import os
import stat
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ingot import dtypes
from ingot.dtypes import DType
from ingot.errors import CheckpointError, UnsupportedError
from ingot.frontends.onnx.text import MAX_TEXT
from ingot.frontends.onnx.wire import MAPPED, File, Inside
from ingot.ir import Spec
from ingot.ir.expr import integer_range
from ingot.ir.spec import MAX_RANK

Array = np.ndarray[Any, Any]

MAX_NAME = 1024
EXTERNAL = 1  # TensorProto.DataLocation
STRING = 8  # TensorProto.DataType
BY_CODE: dict[int, DType] = {dtype.onnx: dtype for dtype in dtypes.ALL}
_KEYS = ("location", "offset", "length", "checksum")
_FIELDS: dict[DType, str] = {
    dtypes.float32: "float_data", dtypes.complex64: "float_data", dtypes.float64: "double_data",
    dtypes.complex128: "double_data", dtypes.int64: "int64_data", dtypes.uint64: "uint64_data",
    dtypes.uint32: "uint64_data",
}  # fmt: skip
_NUMBERS = ("float_data", "double_data", "int32_data", "int64_data", "uint64_data", "string_data")


def dtype_of(code: int, what: str) -> DType:
    """The element type of ONNX's number for it."""
    found = BY_CODE.get(code)
    if found is None:
        kind = "strings, which no network computes with" if code == STRING else f"elements of the unknown type {code}"
        raise UnsupportedError(f"{what} has {kind}")
    return found


class Tensors:
    """Reads tensors of one model.

    Args:
        folder: where external data lies; None: nowhere, as for a model that is no file.
        name: of the model, for messages.
        inside: the tensors that were cut out of the file before it was parsed.
    """

    def __init__(self, name: str, folder: Path | None, inside: Inside | None = None) -> None:
        self.name, self.folder, self._inside = name, folder, inside
        self._files: dict[tuple[int, int], File] = {}  # large files beside the model: device and inode →

    def error(self, tensor: Any, why: str) -> CheckpointError:
        return CheckpointError(f"{self.name}: tensor {tensor.name[:200]!r} {why}")

    def spec(self, tensor: Any) -> Spec:
        """What a tensor is. Raises CheckpointError for one that contradicts itself or is too short."""
        kind = dtype_of(tensor.data_type, f"{self.name}: tensor {tensor.name[:200]!r}")
        sizes = tuple(tensor.dims)
        if len(sizes) > MAX_RANK or any(d < 0 for d in sizes) or math.prod(sizes) > 1 << 46:
            raise self.error(tensor, f"has the impossible shape {list(sizes)[:MAX_RANK]}")
        self._check_one_place(tensor)
        if tensor.data_location != EXTERNAL:
            self._check_length(tensor, kind, sizes)
        return Spec(sizes, kind)

    def _check_one_place(self, tensor: Any) -> None:
        if tensor.HasField("segment"):
            raise self.error(tensor, "is a segment of a larger one, which ingot does not read")
        places = [name for name in _NUMBERS if len(getattr(tensor, name))]
        places += ["raw_data"] * tensor.HasField("raw_data") + ["external_data"] * (tensor.data_location == EXTERNAL)
        if len(places) > 1:
            raise self.error(tensor, f"has its elements in more than one place: {', '.join(places)}")

    def _raw(self, tensor: Any) -> tuple[bytes, tuple[int, int] | None]:
        """The bytes of a tensor, or where in the file they are."""
        data: bytes = tensor.raw_data
        return data, None if self._inside is None else self._inside.place(data)

    def _check_length(self, tensor: Any, kind: DType, sizes: tuple[int, ...]) -> None:
        count = math.prod(sizes)
        if tensor.HasField("raw_data"):
            data, place = self._raw(tensor)
            wanted, found, unit = stored_bytes(kind, count), place[1] if place else len(data), "bytes"
        else:
            wanted, found, unit = _items(kind, count), len(getattr(tensor, _field(kind))), "numbers"
        if wanted != found:
            raise self.error(tensor, f"of {kind.name}{list(sizes)} must have {wanted:,} {unit}, and has {found:,}")

    def array(self, tensor: Any) -> Array:
        """The elements; those of files of 1 GiB and more are mapped, not read."""
        spec = self.spec(tensor)
        kind, sizes = spec.dtype, tuple(int(d) for d in spec.shape if isinstance(d, int))
        if tensor.data_location == EXTERNAL:
            return _decoded(self._external(tensor, kind, sizes), kind, sizes)
        if tensor.HasField("raw_data"):
            data, place = self._raw(tensor)
            if place is None or self._inside is None:
                return _decoded(np.frombuffer(data, np.uint8), kind, sizes)
            return _decoded(self._inside.file.array(*place), kind, sizes)
        numbers = getattr(tensor, _field(kind))
        self._check_range(tensor, numbers, kind)
        return _from_numbers(numbers, kind, sizes)

    def words(self, tensor: Any) -> Array:
        """The elements of a tensor of strings, an array of str."""
        sizes = tuple(tensor.dims)
        count = len(tensor.string_data)
        if len(sizes) > MAX_RANK or any(d < 0 for d in sizes) or math.prod(sizes) != count:
            raise self.error(tensor, f"of strings{list(sizes)[:MAX_RANK]} has {count:,} elements")
        self._check_one_place(tensor)
        if len(max(tensor.string_data, key=len, default=b"")) * count > MAX_TEXT:
            raise self.error(tensor, f"has more than {MAX_TEXT:,} characters")
        try:
            return np.array([text.decode() for text in tensor.string_data], np.str_).reshape(sizes)
        except UnicodeDecodeError:
            raise self.error(tensor, "has a text that is not UTF-8") from None

    def elsewhere(self, tensor: Any) -> Array | None:
        """The bytes of a tensor that does not hold them itself, as they are stored; None for others."""
        spec = self.spec(tensor)
        if tensor.data_location == EXTERNAL:
            return self._external(tensor, spec.dtype, tuple(int(d) for d in spec.shape if isinstance(d, int)))
        place = self._raw(tensor)[1] if tensor.HasField("raw_data") else None
        return None if place is None or self._inside is None else self._inside.file.array(*place)

    def _check_range(self, tensor: Any, numbers: Any, kind: DType) -> None:
        """Numbers of fewer than 32 bits come in fields of 32."""
        if kind.bits >= 32 or not len(numbers):
            return
        bits = 8 if kind.bits < 8 else kind.bits  # narrow ones are packed
        low, high = integer_range(kind) if kind.kind == "int" and kind.bits == bits else (0, (1 << bits) - 1)
        if kind is dtypes.bool_:
            high = 1
        elif kind.bits < 8:
            low = -128  # the same bits as a signed byte
        found = np.array(numbers, np.int64)
        if found.min() < low or found.max() > high:
            raise self.error(tensor, f"has numbers out of the range of {kind.name}, such as {found.max()}")

    # ------------------------------------------------------------------------------------------ external data
    def _external(self, tensor: Any, kind: DType, sizes: tuple[int, ...]) -> Array:
        where = self._where(tensor)
        wanted = stored_bytes(kind, math.prod(sizes))
        offset, length = (self._number(tensor, where, key) for key in ("offset", "length"))
        if length is not None and length != wanted:
            raise self.error(tensor, f"of {kind.name}{list(sizes)} has {wanted:,} bytes, its length says {length:,}")
        start = offset or 0
        file = self._file(tensor, where.get("location", ""))
        if start + wanted > file.size:
            raise self.error(tensor, f"ends at byte {start + wanted:,} of a file that has {file.size:,}")
        return file.array(start, wanted)

    def _file(self, tensor: Any, location: str) -> File:
        """A file beside the model. Large ones, which stay mapped, are opened once."""
        descriptor = self._open(tensor, location)
        status = os.fstat(descriptor)
        key = status.st_dev, status.st_ino
        file = self._files.get(key)
        if file is not None:
            os.close(descriptor)
            return file
        file = File(descriptor, f"{self.name}: its external data {location[:200]!r}")
        if file.size >= MAPPED:
            self._files[key] = file
        return file

    def _where(self, tensor: Any) -> dict[str, str]:
        found: dict[str, str] = {}
        for entry in tensor.external_data:
            if entry.key not in _KEYS or entry.key in found:
                raise self.error(tensor, f"has the external data key {entry.key[:60]!r}, unknown or given twice")
            found[entry.key] = entry.value
        return found

    def _number(self, tensor: Any, where: dict[str, str], key: str) -> int | None:
        text = where.get(key)
        if text is None:
            return None
        if not text.isascii() or not text.isdecimal() or len(text) > 18:
            raise self.error(tensor, f"has the {key} {text[:40]!r}, which is no number of bytes")
        return int(text)

    def _open(self, tensor: Any, location: str) -> int:
        """A file below the model's folder, opened one step at a time so that no link is followed."""
        parts = PurePosixPath(location).parts
        bad = not parts or len(location) > MAX_NAME or not location.isprintable() or "\\" in location
        if bad or location.startswith("/") or ":" in parts[0] or ".." in parts or parts[0] == "*":
            raise self.error(tensor, f"lies in {location[:200]!r}, which is no path inside the model's folder")
        if self.folder is None:
            raise self.error(tensor, f"lies in {location[:200]!r}, and a model that is no file has no folder")
        held = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in parts[:-1]:
                below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=held)
                os.close(held)
                held = below
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(parts[-1], flags, dir_fd=held)
        except OSError as e:
            why = "is not there, or is a link" if e.strerror is None else e.strerror
            raise self.error(tensor, f"lies in {location[:200]!r}: {why}; links are not followed") from None
        finally:
            os.close(held)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            os.close(descriptor)
            raise self.error(tensor, f"lies in {location[:200]!r}, which is no plain file of its own: put a copy there")
        return descriptor


def stored_bytes(kind: DType, count: int) -> int:
    """The bytes of so many elements, where narrow ones share a byte."""
    return -(-count * kind.bits // 8) if kind.bits < 8 else count * kind.numpy.itemsize


def _field(kind: DType) -> str:
    return _FIELDS.get(kind, "int32_data")


def _items(kind: DType, count: int) -> int:
    """How many numbers a typed field has for so many elements."""
    if kind.kind == "complex":
        return 2 * count
    return -(-count * kind.bits // 8) if kind.bits < 8 else count


def _decoded(raw: Array, kind: DType, sizes: tuple[int, ...]) -> Array:
    if kind.bits < 8:
        return _unpacked(raw, kind, sizes)
    if kind is dtypes.bool_:
        truths: Array = raw != 0
        return truths.reshape(sizes)
    found: Array = raw.view(kind.numpy)
    return found.reshape(sizes)


def _unpacked(raw: Array, kind: DType, sizes: tuple[int, ...]) -> Array:
    """Elements that share a byte, the first in the lowest bits."""
    shifts = np.arange(0, 8, kind.bits, dtype=np.uint8)
    bits = (raw[:, None] >> shifts & np.uint8((1 << kind.bits) - 1)).reshape(-1)[: math.prod(sizes)]
    if kind.kind == "int":  # the sign
        high = np.uint8(1 << (kind.bits - 1))
        return ((bits ^ high).astype(np.int8) - np.int8(high)).astype(kind.numpy).reshape(sizes)
    if kind.kind == "float":
        return bits.view(kind.numpy).reshape(sizes)
    return bits.astype(kind.numpy).reshape(sizes)


def _from_numbers(numbers: Any, kind: DType, sizes: tuple[int, ...]) -> Array:
    """Elements of a typed field: floats of 16 and 8 bits are there as the integers of their bits."""
    if kind.bits < 8:
        return _unpacked(np.array(numbers, np.int64).astype(np.uint8), kind, sizes)
    if kind.is_float and _field(kind) == "int32_data":
        bits = np.uint16 if kind.bits == 16 else np.uint8
        return np.array(numbers, np.int64).astype(bits).view(kind.numpy).reshape(sizes)
    if kind.kind == "complex":
        parts: Array = np.array(numbers, np.float32 if kind is dtypes.complex64 else np.float64)
        return parts.view(kind.numpy).reshape(sizes)
    wide = np.array(numbers, np.uint64 if kind is dtypes.uint64 else None if kind.is_float else np.int64)
    return wide.astype(kind.numpy).reshape(sizes)
