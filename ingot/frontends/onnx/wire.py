"""The bytes of an ONNX file, before protobuf parses them: large tensors are cut out, to be read where they lie, and a
file that is made of millions of empty messages is refused.

Protobuf takes a hundred bytes and more for a message of two, and copies every tensor that it parses.
"""

from __future__ import annotations

import os
import secrets
import tempfile
import weakref
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ingot.dtypes import uint8
from ingot.errors import CheckpointError
from ingot.safetensors_file import open_regular
from ingot.tensor_table import MAX_READ, TensorInfo, read_tensor

Array = np.ndarray[Any, Any]

MAX_FILE = (2 << 30) - 1  # what protobuf reads
LARGE = 64 << 10  # bytes from which on a tensor's data is cut out, and a message is looked through field by field
MAX_DEPTH = 100  # of messages, as protobuf has it
MAPPED = 1 << 30  # bytes of a file from which on its large tensors are copied to a file that is mapped, not to memory
ALIGNED = 8  # bytes: what the largest elements have to begin at a multiple of
WINDOW = 256 << 10
FREE_FIELDS, BYTES_A_FIELD = 100_000, 4  # the fewest bytes that a field has on average, beyond so many of them
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5


class Kind(NamedTuple):
    """What matters of a type of message: its fields that are messages, and that of a tensor's bytes (0: none)."""

    messages: dict[int, Any]  # number → descriptor
    raw: int


@cache
def _kind(descriptor: Any) -> Kind:
    messages = {f.number: f.message_type for f in descriptor.fields if f.message_type is not None}
    tensor = descriptor.name == "TensorProto"
    return Kind(messages, descriptor.fields_by_name["raw_data"].number if tensor else 0)


class File:
    """A file whose bytes are read where they lie, for as long as it stays as it is.

    Args:
        descriptor: of a regular file, which is closed with this.
        name: for messages.
    """

    def __init__(self, descriptor: int, name: str) -> None:
        self.name, self._descriptor = name, descriptor
        weakref.finalize(self, os.close, descriptor)
        self._first = self._state()
        self.size = self._first[0]
        self._apart: _Apart | None = None

    def _state(self) -> tuple[int, int]:
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns

    def check(self) -> None:
        """Raises CheckpointError when the file was changed."""
        if self._state() != self._first:
            raise CheckpointError(f"{self.name} was changed while it was read: build from it again")

    def bytes(self, begin: int, count: int) -> bytes:
        """Some of its bytes. Raises CheckpointError when they are not there."""
        parts, done = [], 0
        while done < count:
            part = os.pread(self._descriptor, min(count - done, MAX_READ), begin + done)
            if not part:
                raise CheckpointError(f"{self.name} was changed while it was read: it ends at byte {begin + done:,}")
            parts.append(part)
            done += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def array(self, begin: int, count: int) -> Array:
        """Some of its bytes, in memory of their own. Those of a large file lie in a file of ours and are mapped, where
        there is room for that; the file itself is not, because whoever shortens it would end this process."""
        self.check()
        if not count:
            return np.empty(0, np.uint8)
        if self.size < MAPPED or count < LARGE:
            return self._read(begin, count)
        try:
            self._apart = self._apart or _Apart(self.size)
            found = self._apart.copy(self._descriptor, begin, count)
        except OSError:  # a full disk, or a system that copies to no file
            found = None
        if found is None:
            return self._read(begin, count)
        self.check()
        return found

    def _read(self, begin: int, count: int) -> Array:
        found = read_tensor(self._descriptor, TensorInfo(uint8, (count,), begin, begin + count))
        self.check()
        if found is None:
            raise CheckpointError(f"{self.name} was changed while it was read: it ends before byte {begin + count:,}")
        return found


class _Apart:
    """A file without a name that the system copies bytes of another to, mapped: they take no memory that it cannot take
    back, and nobody else can shorten it.

    Args:
        size: of the other file; the copies of it take about so much at most.
    """

    def __init__(self, size: int) -> None:
        self._room = size + size // LARGE * ALIGNED
        stream = tempfile.TemporaryFile()  # noqa: SIM115
        weakref.finalize(self, stream.close)
        os.ftruncate(stream.fileno(), self._room)
        self._descriptor = stream.fileno()
        self._mapped = np.memmap(stream, np.uint8, "r", 0, (self._room,))
        self._copies: dict[tuple[int, int], Array] = {}
        self._end = 0

    def copy(self, source: int, begin: int, count: int) -> Array | None:
        """Some bytes of a descriptor's file, at a place that elements of any size may have; None where the file ends
        before them, or so much has been copied that they are no parts of it but the same again and again. Raises
        OSError when the disk is full."""
        found = self._copies.get((begin, count))
        if found is not None:
            return found
        if self._end + count > self._room:
            return None
        os.lseek(self._descriptor, self._end, os.SEEK_SET)
        done = 0
        while done < count:
            step = os.sendfile(self._descriptor, source, begin + done, min(count - done, MAX_READ))
            if not step:
                return None
            done += step
        found = self._copies[begin, count] = self._mapped[self._end : self._end + count]
        self._end += count + -count % ALIGNED
        return found


class Inside:
    """The large tensors of a file, which were cut out of what was parsed. In the place of each stands a mark that no
    file can hold: it is drawn at random after the file was written.
    """

    def __init__(self, file: File) -> None:
        self.file, self._mark = file, secrets.token_bytes(24)
        self._places: list[tuple[int, int]] = []

    def cut(self, begin: int, count: int) -> bytes:
        """The mark for some bytes of the file."""
        self._places.append((begin, count))
        return self._mark + (len(self._places) - 1).to_bytes(8, "little")

    def place(self, data: bytes) -> tuple[int, int] | None:
        """(begin, count) in the file of what a mark stands for; None for any other bytes."""
        if len(data) != len(self._mark) + 8 or not data.startswith(self._mark):
            return None
        return self._places[int.from_bytes(data[len(self._mark) :], "little")]


def read(path: Path, message: Any) -> tuple[bytes, Inside]:
    """A file's message without its large tensors, and where those are.

    Args:
        message: the class of the message.

    Raises:
        CheckpointError: no regular file, a large one, or one that is no message or hardly anything but empty fields.
    """
    file = File(open_regular(path), str(path))
    if file.size > MAX_FILE:
        raise CheckpointError(
            f"{path} has {file.size:,} bytes; such a file has at most {MAX_FILE:,}: save its tensors as external data"
        )
    walk = _Walk(file)
    rest = walk.message(0, file.size, message.DESCRIPTOR, 0)
    file.check()
    return rest, walk.inside


class _Walk:
    """Looks through a file once, from its begin to its end."""

    def __init__(self, file: File) -> None:
        self.file, self.inside = file, Inside(file)
        self._data, self._begin = b"", 0  # the window
        self._fields = 0

    def _broken(self, at: int) -> CheckpointError:
        return CheckpointError(f"{self.file.name} is no ONNX model: it is damaged at byte {at:,}; download it again")

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        """A number at a place of the file, and where it ends."""
        number = shift = 0
        while at < end and shift < 70:
            if not 0 <= at - self._begin < len(self._data):
                self._begin, self._data = at, self.file.bytes(at, min(WINDOW, self.file.size - at))
            byte = self._data[at - self._begin]
            number |= (byte & 127) << shift
            at += 1
            if byte < 128:
                return number, at
            shift += 7
        raise self._broken(at)

    def message(self, begin: int, end: int, descriptor: Any, depth: int) -> bytes:
        """What stays of a message: all of a small one, a large one without its large tensors."""
        if depth > MAX_DEPTH:
            raise self._broken(begin)
        if end - begin < LARGE:
            return self._small(begin, end, descriptor, depth)
        kind, kept, at = _kind(descriptor), [], begin
        while at < end:
            start = at
            key, at = self._varint(at, end)
            number, wire = key >> 3, key & 7
            if wire != LENGTH:
                at = self._behind(at, end, number, wire)
                kept.append(self._bytes(start, at))
                continue
            length, at = self._varint(at, end)
            if not number or length > end - at:
                raise self._broken(start)
            self._count(at)
            if number == kind.raw and length >= LARGE:
                inner = self.inside.cut(at, length)
            elif number in kind.messages:
                inner = self.message(at, at + length, kind.messages[number], depth + 1)
            else:
                inner = self._bytes(at, at + length)
            kept += [_encoded(key), _encoded(len(inner)), inner]
            at += length
        return b"".join(kept)

    def _bytes(self, begin: int, end: int) -> bytes:
        inside = begin - self._begin
        if inside >= 0 and end - self._begin <= len(self._data):
            return self._data[inside : end - self._begin]
        return self.file.bytes(begin, end - begin)

    def _behind(self, at: int, end: int, number: int, wire: int) -> int:
        """The end of a number."""
        if wire == VARINT:
            return self._varint(at, end)[1]
        if not number or wire not in (FIXED64, FIXED32) or end - at < (8 if wire == FIXED64 else 4):
            raise self._broken(at)  # among them groups, which no version of the format has
        return at + (8 if wire == FIXED64 else 4)

    def _small(self, begin: int, end: int, descriptor: Any, depth: int) -> bytes:
        """A message that stays whole; its fields, and those of the messages in it, are counted."""
        if end - self._begin > len(self._data) or begin < self._begin:
            self._begin, self._data = begin, self.file.bytes(begin, min(WINDOW, self.file.size - begin))
        todo = [(begin, end, descriptor, depth)]
        while todo:
            at, last, inner, deep = todo.pop()
            messages = _kind(inner).messages
            while at < last:
                key, at = self._varint(at, last)
                if key & 7 != LENGTH:
                    at = self._behind(at, last, key >> 3, key & 7)
                    continue
                length, at = self._varint(at, last)
                if not key >> 3 or length > last - at or deep >= MAX_DEPTH:
                    raise self._broken(at)
                self._count(at)
                if length and key >> 3 in messages:
                    todo.append((at, at + length, messages[key >> 3], deep + 1))
                at += length
        return self._data[begin - self._begin : end - self._begin]

    def _count(self, at: int) -> None:
        self._fields += 1
        if self._fields > FREE_FIELDS + at // BYTES_A_FIELD:
            raise CheckpointError(
                f"{self.file.name} has {self._fields:,} fields in its first {at:,} bytes, more than any model: it is "
                "made of next to empty ones"
            )


def _encoded(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])
