"""Arrays from .npy and .npz files. Files come from anywhere: nothing is unpickled, and no size that a file claims is
believed before the file has been seen to have it.
"""

from __future__ import annotations

import ast
import math
import os
import re
import zipfile
import zlib
from typing import Any, BinaryIO

import numpy as np

from ingot.errors import FileError, MemoryLimitError
from ingot.regular import descriptor_of

Array = np.ndarray[Any, Any]

MAX_HEADER = 10_000  # bytes of the description in front of an array's data
PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_DESCR = re.compile(r"[<>|=](b1|[iu][1248]|f[248]|c8|c16|V2)")


def read_npy(path: str | os.PathLike[str]) -> Array:
    """The array of a .npy file. Raises FileError: not one, cut off, or of Python objects."""
    with _opened(path) as file:
        try:
            return _array(file, os.fstat(file.fileno()).st_size, str(path))
        except OSError as e:
            raise FileError(f"{path} cannot be read: {e.strerror}") from None


def read_npz(path: str | os.PathLike[str], limit: int) -> dict[str, Array]:
    """The arrays of a .npz file by name. Raises FileError as read_npy does, and MemoryLimitError before it unpacks more
    than `limit` bytes.
    """
    try:
        with _opened(path) as whole, zipfile.ZipFile(whole) as archive:
            members = archive.infolist()
            _check_members(str(path), members, limit)
            arrays = {}
            for member in members:
                with archive.open(member) as file:
                    arrays[member.filename.removesuffix(".npy")] = _array(
                        file, member.file_size, f"{path}: {member.filename}"
                    )
            return arrays
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, UnicodeError) as e:
        raise FileError(f"{path} is no well-formed .npz file: {e}") from None
    except OSError as e:
        raise FileError(f"{path} cannot be read: {e.strerror or e}") from None


def _opened(path: str | os.PathLike[str]) -> BinaryIO:
    try:
        return os.fdopen(descriptor_of(path), "rb")
    except OSError as e:
        raise FileError(f"{path} cannot be read: {e.strerror or e}") from None


def _check_members(path: str, members: list[zipfile.ZipInfo], limit: int) -> None:
    names = [member.filename for member in members]
    if len(set(names)) < len(names):
        raise FileError(f"{path}: two arrays have one name")
    if other := [name for name in names if not name.endswith(".npy")]:
        raise FileError(f"{path} holds {other[0][:80]!r}, which is no array: a .npz file holds .npy files")
    if other := [member.filename for member in members if member.compress_type not in PACKED]:
        raise FileError(f"{path}: {other[0][:80]!r} is packed by a method that NumPy does not write")
    total = sum(member.file_size for member in members)
    if total > limit:
        raise MemoryLimitError(f"{path} unpacks to {total:,} bytes, and {limit:,} are available")


def _array(file: Any, size: int, who: str) -> Array:
    """The array that fills the rest of a file of `size` bytes."""
    try:
        dtype, fortran, shape = _header(file)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as e:
        why = str(e).splitlines()[0][:200] if str(e) else type(e).__name__
        raise FileError(f"{who} is no .npy file: {why}") from None
    if dtype is None:
        raise FileError(f"{who} holds Python objects, which are not read: save an array of numbers")
    begin = file.tell()
    wanted = math.prod(shape) * dtype.itemsize
    if wanted != size - begin:
        fault = "was cut off" if wanted > size - begin else "has bytes left over"
        raise FileError(f"{who} {fault}: {dtype}{list(shape)} is {wanted:,} bytes, and {size - begin:,} are there")
    data = bytearray(wanted)
    read = 0
    while read < wanted:
        count = file.readinto(memoryview(data)[read:])
        if not count:
            raise FileError(f"{who} was cut off after {read:,} of {wanted:,} bytes")
        read += count
    if dtype.kind == "b" and np.frombuffer(data, np.uint8).max(initial=0) > 1:
        raise FileError(f"{who} has truth values that are neither 0 nor 1")
    flat = np.frombuffer(data, dtype)
    return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)


def _header(file: Any) -> tuple[np.dtype[Any] | None, bool, tuple[int, ...]]:
    """dtype (None: Python objects), whether Fortran order, and shape. NumPy's own reader takes more than it should:
    it warns about, and repairs, what no NumPy of today writes.
    """
    magic = file.read(8)
    if magic[:6] != b"\x93NUMPY" or magic[6:] not in (b"\x01\x00", b"\x02\x00", b"\x03\x00"):
        raise ValueError("it does not begin as one, or is of an unknown version")
    width = 2 if magic[6] == 1 else 4
    length = int.from_bytes(file.read(width), "little")
    if length > MAX_HEADER:
        raise ValueError(f"its description has {length:,} bytes; at most {MAX_HEADER:,} are read")
    text = file.read(length)
    if len(text) != length:
        raise ValueError("it was cut off inside its description")
    found = ast.literal_eval(text.decode("utf-8").strip())
    if not isinstance(found, dict) or found.keys() != {"descr", "fortran_order", "shape"}:
        raise ValueError("its description must have descr, fortran_order and shape")
    descr, fortran, shape = found["descr"], found["fortran_order"], found["shape"]
    sizes = isinstance(shape, tuple) and len(shape) <= 32 and all(type(n) is int and 0 <= n < 2**63 for n in shape)
    sizes = sizes and math.prod(max(n, 1) for n in shape) < 2**56  # NumPy multiplies the others of an empty array too
    if type(fortran) is not bool or not sizes:
        raise ValueError(f"its order {fortran!r:.40} and shape {shape!r:.80} are none")
    if isinstance(descr, str) and descr.startswith("|O"):
        return None, fortran, shape
    if not isinstance(descr, str) or not _DESCR.fullmatch(descr):
        raise ValueError(f"its elements are {descr!r:.80}, not plain numbers")
    return np.dtype(descr), fortran, shape
