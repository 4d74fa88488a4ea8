"""Reading a .pt2 file as `torch.export.save` writes it, without torch and without pickle: a zip of stored members.

    NAME/archive_format  NAME/archive_version  NAME/byteorder
    NAME/models/MODEL.json                          the exported program
    NAME/data/weights/MODEL_weights_config.json     name → member, dtype, sizes, strides, offset
    NAME/data/weights/weight_0 …                    raw storages
    NAME/data/constants/…                           the same for constants and buffers outside the state dict
    NAME/data/sample_inputs/MODEL.pt                a pickle: never read

Every offset and size is checked before a byte of data is read. The data is read with `pread`, so a file shortened
meanwhile is an error and not a SIGBUS. What is needed but pickled is refused by name.
"""

from __future__ import annotations

import os
import struct
import weakref
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ingot import strict_json
from ingot.errors import CheckpointError
from ingot.safetensors_file import open_regular
from ingot.tensor_table import MAX_READ, name_fault

MAX_JSON = 64 << 20
MAX_DIRECTORY = 64 << 20
MAX_MEMBERS = 500_000
MAX_NAME = 1024
MAX_DEPTH = 64
MAX_LISTED = 20

_END = struct.Struct("<4s4H2LH")  # end of the central directory
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR64 = struct.Struct("<4sLQL")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF
_SIZES_FOLLOW = 0x8  # flag bits: sizes stand behind the data, and the name is UTF-8
_ALLOWED_FLAGS = _SIZES_FOLLOW | 0x800


class Member(NamedTuple):
    """Where one stored member lies: its local header, then `size` bytes of data of checksum `crc`."""

    header: int
    size: int
    crc: int
    flags: int


class Archive:
    """The members of a .pt2 file by name, without the folder that holds them all.

    Raises:
        CheckpointError: anything in the file that the format does not allow; the message names the member.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._descriptor = open_regular(self.path)
        self.close = weakref.finalize(self, os.close, self._descriptor)
        try:
            self._size = os.fstat(self._descriptor).st_size
            members = self._directory()
            self._members = self._without_folder(members)
            self._starts = {name: self._data_start(name, m) for name, m in self._members.items()}
            self._check_overlaps()
            self._check_labels()
        except BaseException:
            self.close()
            raise

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def size(self, name: str) -> int:
        """The bytes of a member. Raises CheckpointError when there is none of that name."""
        return self._member(name).size

    def read(self, name: str, limit: int) -> bytes:
        """A small member's content, its checksum verified."""
        if self._member(name).size > limit:
            raise self.error(f"{name} has {self._member(name).size:,} bytes; such a member has at most {limit:,}")
        return self.array(name).tobytes()

    def array(self, name: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """A member's content as bytes of our own, its checksum verified."""
        member, at = self._member(name), self._starts[name]
        data = np.empty(member.size, np.uint8)
        view, done, crc = data.data, 0, 0
        while done < member.size:
            part = view[done : done + min(MAX_READ, 1 << 22)]  # checked while it is in the cache
            count = os.preadv(self._descriptor, [part], at + done)
            if count == 0:
                raise self.error(f"ends inside {name}: the file was shortened after it had been opened")
            crc = zlib.crc32(part[:count], crc)
            done += count
        if crc != member.crc:
            raise self.error(f"{name} does not have the checksum that the directory gives: the file is damaged")
        return data

    def json(self, name: str) -> dict[str, Any]:
        """A JSON object. Raises CheckpointError for what is not strict JSON."""
        try:
            return strict_json.parse_object(self.read(name, MAX_JSON), max_depth=MAX_DEPTH)
        except strict_json.JsonError as error:
            raise self.error(f"{name}: {error}") from None

    def error(self, why: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {why}")

    def _member(self, name: str) -> Member:
        if name not in self._members:
            raise self.error(f"has no member {name[:200]!r}")
        return self._members[name]

    # ------------------------------------------------------------------------------------------- the container
    def _pread(self, count: int, at: int, what: str) -> bytes:
        data = os.pread(self._descriptor, count, at) if at >= 0 else b""
        if len(data) < count:
            raise self.error(f"ends inside {what}; save or download it again")
        return data

    def _directory(self) -> dict[str, Member]:
        if self._size < _END.size:
            raise self.error(f"is not a .pt2 archive ({self._size:,} bytes)")
        head = self._pread(4, 0, "its first bytes")
        end = _END.unpack(self._pread(_END.size, self._size - _END.size, "its end"))
        if head != b"PK\x03\x04" or end[0] != b"PK\x05\x06" or end[7]:
            if head[:2] == b"\x80\x02" or head[:1] == b"\x80":
                raise self.error(
                    "is a pickle, not a .pt2 archive. Reading a pickle can run any code, so ingot never does; "
                    "save the model with torch.export.save"
                )
            raise self.error(
                "is not a whole .pt2 archive: it must begin with a zip member and end with the zip directory"
            )
        disk, first_disk, here, count, length, start = end[1:7]
        limit = self._size - _END.size  # where the directory must have ended
        if self._size >= _END.size + _LOCATOR64.size:
            locator = self._pread(_LOCATOR64.size, limit - _LOCATOR64.size, "its end")
            if locator[:4] == b"PK\x06\x07":
                limit = _LOCATOR64.unpack(locator)[2]
                large = self._large_end(limit)
                pairs = zip((disk, first_disk, here, count, length, start), large, strict=True)
                if any(small not in (_FULL16, _FULL32, big) for small, big in pairs):
                    raise self.error("its two directory ends disagree")
                disk, first_disk, here, count, length, start = large
        if disk or first_disk or here != count:
            raise self.error("is a part of a zip archive of several disks")
        if count > MAX_MEMBERS or length > MAX_DIRECTORY:
            raise self.error(f"has {count:,} members in a directory of {length:,} bytes; that is more than any model")
        if start + length != limit:
            raise self.error("its directory does not lie where its end says")
        return self._entries(self._pread(length, start, "its directory"), count, start)

    def _large_end(self, at: int) -> tuple[int, ...]:
        """The fields of the zip64 end of the directory that stands at `at`."""
        if not 0 <= at <= self._size - _END.size - _LOCATOR64.size - _END64.size:
            raise self.error("its zip64 directory end lies outside the file")
        fields = _END64.unpack(self._pread(_END64.size, at, "its zip64 end"))
        if fields[0] != b"PK\x06\x06" or at + 12 + fields[1] != self._size - _END.size - _LOCATOR64.size:
            raise self.error("its zip64 directory end is malformed")
        return fields[4], fields[5], *fields[6:10]

    def _entries(self, data: bytes, count: int, limit: int) -> dict[str, Member]:
        members: dict[str, Member] = {}
        at = 0
        for _ in range(count):
            if at + _CENTRAL.size > len(data) or data[at : at + 4] != b"PK\x01\x02":
                raise self.error(f"its directory is malformed at entry {len(members)}")
            fields = _CENTRAL.unpack_from(data, at)
            flags, method, crc, packed, size = fields[3], fields[4], *fields[7:10]
            name_size, extra_size, comment_size, disk, header = *fields[10:14], fields[16]
            at += _CENTRAL.size
            raw, extra = data[at : at + name_size], data[at + name_size : at + name_size + extra_size]
            at += name_size + extra_size + comment_size
            name = self._name(raw)
            if name in members:
                raise self.error(f"has two members named {name!r}")
            if flags & ~_ALLOWED_FLAGS or method or disk:
                raise self.error(f"{name} is compressed, encrypted or elsewhere; torch stores members as they are")
            size, packed, header = self._large_sizes(name, extra, size, packed, header)
            if size != packed:
                raise self.error(f"{name} claims {size:,} bytes but {packed:,} are stored")
            if header + _LOCAL.size + size > limit:
                raise self.error(f"{name} claims {size:,} bytes at {header:,}, which is outside the file")
            members[name] = Member(header, size, crc, flags)
        if at != len(data):
            raise self.error("its directory is longer than its entries")
        return members

    def _name(self, raw: bytes) -> str:
        try:
            name = raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.error(f"a member's name is not UTF-8: {raw[:40]!r}") from None
        fault = name_fault(name, MAX_NAME)
        if fault is None and ("\\" in name or any(part in ("", ".") for part in name.split("/"))):
            fault = "the name is no plain relative path"
        if fault is not None:
            raise self.error(f"the member {name[:80]!r}: {fault}")
        return name

    def _large_sizes(self, name: str, extra: bytes, *values: int) -> tuple[int, int, int]:
        """Size, stored size and offset, each from the zip64 field where the small field is full."""
        wanted = [i for i, value in enumerate(values) if value == _FULL32]
        found = list(values)
        at = 0
        while wanted and at + 4 <= len(extra):
            kind, length = struct.unpack_from("<2H", extra, at)
            if kind == 1 and length >= 8 * len(wanted) and at + 4 + length <= len(extra):
                for place, i in enumerate(wanted):
                    (found[i],) = struct.unpack_from("<Q", extra, at + 4 + 8 * place)
                return found[0], found[1], found[2]
            at += 4 + length
        if wanted:
            raise self.error(f"{name} lacks its zip64 sizes")
        return found[0], found[1], found[2]

    def _without_folder(self, members: dict[str, Member]) -> dict[str, Member]:
        folders = {name.partition("/")[0] for name in members}
        if len(folders) != 1 or any("/" not in name for name in members):
            listed = ", ".join(sorted(folders)[:5])
            raise self.error(f"a .pt2 archive has all its members in one folder; this one begins with {listed}")
        (folder,) = folders
        return {name[len(folder) + 1 :]: member for name, member in members.items()}

    def _data_start(self, name: str, member: Member) -> int:
        """Where a member's data begins; its local header has to agree with the directory."""
        fields = _LOCAL.unpack(self._pread(_LOCAL.size, member.header, f"the header of {name}"))
        flags, method, size, name_size, extra_size = fields[2], fields[3], fields[8], fields[9], fields[10]
        raw = self._pread(name_size, member.header + _LOCAL.size, f"the header of {name}")
        sizes_differ = not flags & _SIZES_FOLLOW and size not in (member.size, _FULL32)
        same_name = raw.partition(b"/")[2] == name.encode()
        if fields[0] != b"PK\x03\x04" or flags != member.flags or method or not same_name or sizes_differ:
            raise self.error(f"{name}: its header and the directory disagree")
        return int(member.header + _LOCAL.size + name_size + extra_size)

    def _check_overlaps(self) -> None:
        before, end = "", 0
        for name, member in sorted(self._members.items(), key=lambda item: item[1].header):
            if member.header < end:
                raise self.error(f"{name} overlaps {before}")
            before, end = name, self._starts[name] + member.size
        if end > self._size:
            raise self.error(f"ends inside {before}; save or download it again")

    def _check_labels(self) -> None:
        if "archive_format" not in self._members:
            if "serialized_exported_program.json" in self._members:
                raise self.error("was saved by an older torch, with pickled weights; save it again with torch >= 2.11")
            if "data.pkl" in self._members:
                raise self.error(
                    "is a torch.save or TorchScript archive (data.pkl), a pickle that can run any code; "
                    "export the model with torch.export.save"
                )
            raise self.error("has no archive_format: it is a zip file, but not one of torch.export.save")
        for name, wanted in (("archive_format", b"pt2"), ("archive_version", b"0"), ("byteorder", b"little")):
            found = self.read(name, 64)
            if found != wanted:
                raise self.error(f"{name} is {found[:20].decode(errors='replace')!r}, not {wanted.decode()!r}")
