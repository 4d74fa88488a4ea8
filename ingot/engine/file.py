"""The engine file: one safetensors file whose metadata holds our header. Writer and Python reader.

    u64 little-endian n | header, n bytes, space padded so that 8 + n is a multiple of 4096 | tensor data

The header begins byte for byte with {"__metadata__":{"ingot.sha256":"<64 hex>","ingot":"<our JSON as a string>"}, and
then lists the tensors in the order of their data. The digest is that of the header with its own 64 digits replaced by
zeros. Tensors start at multiples of 64; since safetensors knows no gaps, padding tensors `~pad.K` fill them. The file
ends with its last tensor. Weights carry a digest per MiB in our JSON, checked by `verify` and not by every load.

The reader trusts nothing: every fault is an EngineFileError that says which rule was broken. Engines that run are read
by the native core, by the same rules; this reader serves inspection, verification and rebuilding.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as brief
from typing import Any

import numpy as np

from ingot import _native, dtypes, strict_json
from ingot.errors import EngineFileError, EngineVersionError, FileError
from ingot.regular import IrregularError, descriptor_of
from ingot.release import reading
from ingot.tensor_table import Limits, TensorInfo, check_entry, read_tensor
from ingot.written import beside

Array = np.ndarray[Any, Any]

OLDEST_FORMAT, FORMAT = _native.FORMATS  # what is read here; the newest is written
MAX_HEADER = 64 << 20
PAGE = 4096
ALIGN = 64
CHUNK = 1 << 20  # bytes that one digest covers
MAX_NAME = 512  # bytes
MAX_RANK = 8
PAD = "~pad."
WRITTEN = 2 << 20  # bytes at a time: what is mapped later lies in pages as large as it was written by

_HEAD = b'{"__metadata__":{"ingot.sha256":"'
_MIDDLE = b'","ingot":"'
_DIGEST = slice(len(_HEAD), len(_HEAD) + 64)
_CODES = ("F32", "BF16", "F16", "F64", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64", "BOOL", "F8_E4M3")
_LIMITS = Limits({code: dtypes.from_safetensors(code) for code in _CODES}, MAX_RANK, MAX_NAME)
_KEYS = {"format", "producer", "kind", "config", "networks", "weights", "programs", "files"}


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


# ------------------------------------------------------------------------------------------------------------- writing


def digests(array: Array) -> list[str]:
    """The first 32 hex digits of the SHA-256 of every MiB of an array's bytes."""
    data = as_bytes(array)
    chunks = [data[i : i + CHUNK] for i in range(0, len(data), CHUNK)]
    if len(chunks) < 4:
        return [_digest(c) for c in chunks]
    with ThreadPoolExecutor(min(8, len(os.sched_getaffinity(0)))) as pool:
        return list(pool.map(_digest, chunks))


def _digest(data: memoryview) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def as_bytes(array: Array) -> memoryview:
    """The bytes of a contiguous array, without a copy."""
    data: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return memoryview(data)


def encode(header: Mapping[str, Any], tensors: Mapping[str, Array]) -> tuple[bytes, list[Array]]:
    """The file's first bytes (length and header) and the arrays that follow them without gaps, padding included."""
    entries: list[str] = []
    pieces: list[Array] = []
    at = pads = 0

    def place(name: str, code: str, array: Array) -> None:
        nonlocal at
        shape = ",".join(map(str, array.shape))
        where = f'"dtype":"{code}","shape":[{shape}],"data_offsets":[{at},{at + array.nbytes}]'
        entries.append(f"{json.dumps(name, ensure_ascii=False)}:{{{where}}}")
        pieces.append(array)
        at += array.nbytes

    for name, array in tensors.items():
        if at % ALIGN:
            place(f"{PAD}{pads}", "U8", np.zeros(ALIGN - at % ALIGN, np.uint8))
            pads += 1
        dtype = dtypes.get(array.dtype)
        code = dtype.safetensors or ""
        if code not in _LIMITS.codes:
            raise FileError(f"tensor {name}: {dtype.name} cannot be stored in an engine file")
        entry = {"dtype": code, "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        if isinstance(fault := check_entry(name, entry, 0, _LIMITS), str):
            raise FileError(f"tensor {name[:80]!r} cannot be stored: {fault}")
        place(name, code, np.asarray(array, order="C"))
    ours = json.dumps(canonical_json(header), ensure_ascii=False)[1:-1].encode()
    body = b'"},' + ",".join(entries).encode() + b"}" if entries else b'"}}'
    raw = _HEAD + b"0" * 64 + _MIDDLE + ours + body
    raw += b" " * (-(8 + len(raw)) % PAGE)
    if len(raw) > MAX_HEADER:
        raise FileError(f"the header would take {len(raw):,} bytes; an engine file's has at most {MAX_HEADER:,}")
    digest = hashlib.sha256(raw).hexdigest().encode()
    return len(raw).to_bytes(8, "little") + raw[: _DIGEST.start] + digest + raw[_DIGEST.stop :], pieces


def path_text(path: Any) -> str:
    """The name of a file, as UTF-8 has it. Raises FileError for what is none."""
    try:
        name = os.fsdecode(path)
        name.encode()
    except (TypeError, ValueError):
        raise FileError(f"{brief(path)} is no path of a file, or no UTF-8") from None
    if not name or "\0" in name:
        raise FileError(f"{brief(path)} is no path of a file")
    return name


def write(path: str | os.PathLike[str], header: Mapping[str, Any], tensors: Mapping[str, Array]) -> int:
    """Writes an engine file beside `path`, then renames it: `path` never holds a part of one.

    Returns the number of bytes. Raises FileError (full disk, read-only folder, no folder).
    """
    target = Path(path_text(path))
    if not target.name:
        raise FileError(f"{target} is a folder; name a file in it, such as {target / 'model.ingot'}")
    head, pieces = encode(header, tensors)
    size = len(head) + sum(p.nbytes for p in pieces)
    if target.is_dir():
        raise FileError(f"{target} is a folder; name a file in it, such as {target / 'model.ingot'}")
    with beside(target, size) as path:
        stream = path == target  # such as /dev/stdout, which is there and written as it is
        new = 0 if path.exists() else os.O_EXCL  # beside() makes the place of what is written again
        flags = 0 if stream else os.O_CREAT | os.O_NOFOLLOW | new
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o666)
        with open(descriptor, "wb", buffering=0) as file:
            for data in _gathered((memoryview(head), *map(as_bytes, pieces))):
                done = 0
                while done < len(data):
                    done += file.write(data[done:])
            if not stream:
                os.fsync(file.fileno())
    _sync_folder(target.parent)
    return size


def _gathered(pieces: Iterable[memoryview]) -> Iterator[memoryview]:
    """The same bytes, WRITTEN at a time; each piece is to be used before the next is asked for.

    Linux keeps a file that was just written in the pieces in which it came. Where these are huge pages, so is the
    mapping of the engine, which is read a third faster than by small pages (benchmarks/NOTES.md).
    """
    whole = memoryview(bytearray(WRITTEN))
    filled = 0
    for data in pieces:
        done = 0
        while done < len(data):
            count = min(WRITTEN - filled, len(data) - done)
            whole[filled : filled + count] = data[done : done + count]
            done, filled = done + count, filled + count
            if filled == WRITTEN:
                yield whole
                filled = 0
    yield whole[:filled]


def _sync_folder(folder: Path) -> None:
    """Makes the new name durable; file systems that cannot are left alone, the file is whole anyway."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# ------------------------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True)
class EngineFile:
    """A checked engine file: our JSON, and where each tensor lies. Reads tensors on request."""

    path: Path
    header: dict[str, Any]
    tensors: dict[str, TensorInfo]
    bytes: int

    def read(self, name: str) -> Array:
        """One tensor, in memory of its own. Raises EngineFileError when it is not there or the file was shortened."""
        if name not in self.tensors:
            raise EngineFileError(f"{self.path}: there is no tensor {name!r}")
        with _opened(self.path) as descriptor:
            array = read_tensor(descriptor, self.tensors[name])
        if array is None:
            raise EngineFileError(f"{self.path}: ends inside tensor {name}: it was shortened after it had been opened")
        return array

    def verify(self) -> int:
        """Compares every tensor with its digests; EngineFileError names what differs. Returns the bytes checked."""
        checked = 0
        for name, entry in self.header["weights"].items():
            found = digests(self.read(name))
            if found != entry["hash"]:
                at = next((i for i, (a, b) in enumerate(zip(found, entry["hash"], strict=False)) if a != b), 0)
                raise EngineFileError(
                    f"{self.path}: tensor {name} is damaged (its MiB number {at}); download or build it again"
                )
            checked += self.tensors[name].end - self.tensors[name].begin
        for name, info in self.tensors.items():
            if name.startswith(PAD) and self.read(name).any():
                raise EngineFileError(f"{self.path}: padding {name} at byte {info.begin} is not zero")
        return checked


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        descriptor = descriptor_of(path)
    except IrregularError:
        raise EngineFileError(f"{path} is not a regular file") from None
    except OSError as e:
        raise FileError(f"{path} cannot be opened: {e.strerror or e}") from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read(path: str | os.PathLike[str], verify: bool = False) -> EngineFile:
    """Reads and checks the header; with `verify` the digests of all data too.

    Raises FileError (cannot be opened), EngineVersionError (written by a newer ingot), EngineFileError (anything else).
    """
    where = Path(path)
    with _opened(where) as descriptor:
        size = os.fstat(descriptor).st_size
        raw = _header_bytes(where, descriptor, size)
    ours, entries = _parse(where, raw)
    header = check_header(where, ours)
    with reading(header):
        tensors = _check_tensors(where, entries, 8 + len(raw), size)
        _check_references(where, header, tensors)
    result = EngineFile(where, header, tensors, size)
    if verify:
        result.verify()
    return result


def _header_bytes(where: Path, descriptor: int, size: int) -> bytes:
    if size == 0:
        raise EngineFileError(f"{where}: the file is empty")
    prefix = os.pread(descriptor, 8 + len(_HEAD), 0)
    if len(prefix) < 8 + len(_HEAD) or prefix[8:] != _HEAD:
        raise EngineFileError(
            f"{where} is not an ingot engine: it does not begin as one. Engines are made by `ingot build`"
        )
    length = int.from_bytes(prefix[:8], "little")
    if length > MAX_HEADER or (8 + length) % PAGE:
        raise EngineFileError(
            f"{where}: a header of {length:,} bytes is not legal (at most {MAX_HEADER:,}, whole pages)"
        )
    if 8 + length > size:
        raise EngineFileError(
            f"{where}: the file has {size:,} bytes and its header alone {8 + length:,}: it was cut off"
        )
    raw = os.pread(descriptor, length, 8)
    if len(raw) != length:
        raise EngineFileError(f"{where}: ends inside its header")
    zeroed = raw[: _DIGEST.start] + b"0" * 64 + raw[_DIGEST.stop :]
    if hashlib.sha256(zeroed).hexdigest().encode() != raw[_DIGEST]:
        raise EngineFileError(f"{where}: the header's checksum does not match: the file is damaged")
    return raw


def _parse(where: Path, raw: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        outer = strict_json.parse_object(raw, max_depth=4)
        meta = outer.pop("__metadata__")
        if not isinstance(meta, dict) or list(meta) != ["ingot.sha256", "ingot"] or not isinstance(meta["ingot"], str):
            raise EngineFileError(f"{where}: __metadata__ must hold exactly ingot.sha256 and ingot")
        return strict_json.parse_object(meta["ingot"].encode(errors="surrogatepass")), outer
    except strict_json.JsonError as e:
        raise EngineFileError(f"{where}: bad header: {e}") from None


def check_header(where: str | os.PathLike[str], ours: dict[str, Any]) -> dict[str, Any]:
    """Our JSON itself when its keys and their types are right. Tensors and programs are checked elsewhere.

    Raises EngineVersionError for another format and for what only a newer ingot knows, EngineFileError for all else.
    """
    with reading(ours):
        _check_format(where, ours.get("format"))
        _check_keys(where, ours)
    return ours


def _check_format(where: str | os.PathLike[str], version: Any) -> None:
    if type(version) is not int or version < 1:
        raise EngineFileError(f"{where}: the header's format must be a number from 1 on, not {version!r}")
    if not OLDEST_FORMAT <= version <= FORMAT:
        reads = f"format {FORMAT}" if OLDEST_FORMAT == FORMAT else f"formats {OLDEST_FORMAT} to {FORMAT}"
        raise EngineVersionError(f"{where}: it is of format {version}; this ingot reads {reads}")


def _check_keys(where: str | os.PathLike[str], ours: dict[str, Any]) -> None:
    if unknown := sorted(set(ours) - _KEYS - {"external_ops"}):
        raise EngineFileError(f"{where}: unknown header key(s) {', '.join(map(repr, unknown))[:200]}")
    if missing := sorted(_KEYS - set(ours)):
        raise EngineFileError(f"{where}: the header lacks {', '.join(missing)}")
    for key in ("config", "networks", "weights", "programs", "files"):
        if not isinstance(ours[key], dict):
            raise EngineFileError(f"{where}: {key} must be an object")
    if ours["kind"] not in ("network", "llm", "encoder") or not isinstance(ours["producer"], str):
        raise EngineFileError(f"{where}: kind must be network, llm or encoder, and producer a string")
    for name, entry in ours["weights"].items():
        legal = isinstance(entry, dict) and set(entry) == {"recipe", "hash"} and isinstance(entry["hash"], list)
        if not legal or not all(isinstance(h, str) and len(h) == 32 for h in entry["hash"]):
            raise EngineFileError(f"{where}: weight {name[:80]!r} must have a recipe and a list of digests")
        recipe = entry["recipe"]  # read closely where it is used: a running engine needs none
        if recipe is not None and not (isinstance(recipe, dict) and recipe.keys() == {"sources", "steps"}):
            raise EngineFileError(f"{where}: the recipe of weight {name[:80]!r} must have sources and steps")
    _check_external(where, ours.get("external_ops", []))
    for name, tensor in ours["files"].items():
        if not isinstance(tensor, str):
            raise EngineFileError(f"{where}: file {name[:80]!r} must name a tensor")


def _check_external(where: str | os.PathLike[str], listed: Any) -> None:
    """The user's own ops that an engine says it needs: each once, by name, version and signature."""
    types = {"name": str, "version": int, "signature": str}
    for item in listed if isinstance(listed, list) else [None]:
        if not isinstance(item, dict) or {key: type(value) for key, value in item.items()} != types:
            raise EngineFileError(f"{where}: external_ops must list objects of a name, a version and a signature")
    names = [item["name"] for item in listed]
    if len(set(names)) < len(names):
        raise EngineFileError(f"{where}: external_ops lists an op twice")


def _check_tensors(where: Path, entries: dict[str, Any], start: int, size: int) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    at = start
    for name, entry in entries.items():
        info = check_entry(name, entry, start, _LIMITS)
        if isinstance(info, str):
            raise EngineFileError(f"{where}: tensor {name[:80]!r}: {info}")
        pad = name.startswith(PAD)
        if info.begin != at:
            raise EngineFileError(
                f"{where}: tensor {name!r} must begin at byte {at}, where the one before ends, not {info.begin}"
            )
        if pad and (info.dtype is not dtypes.uint8 or info.end - info.begin >= ALIGN or info.end % ALIGN):
            raise EngineFileError(f"{where}: {name!r} is not legal padding")
        if not pad and info.begin % ALIGN:
            raise EngineFileError(f"{where}: tensor {name!r} begins at byte {info.begin}, not a multiple of {ALIGN}")
        at = info.end
        tensors[name] = info
    if at != size:
        raise EngineFileError(
            f"{where}: the header accounts for {at:,} bytes and the file has {size:,}: it was cut off or added to"
        )
    return tensors


def _check_references(where: Path, header: dict[str, Any], tensors: dict[str, TensorInfo]) -> None:
    def known(name: Any, what: str) -> TensorInfo:
        if not isinstance(name, str) or name not in tensors or name.startswith(PAD):
            raise EngineFileError(f"{where}: {what} names a tensor that is not there: {str(name)[:80]!r}")
        return tensors[name]

    for name, entry in header["weights"].items():
        info = known(name, "weights")
        if len(entry["hash"]) != -(-(info.end - info.begin) // CHUNK):
            raise EngineFileError(f"{where}: weight {name!r} has {len(entry['hash'])} digests, not one per MiB")
    for name, tensor in header["files"].items():
        info = known(tensor, f"file {name[:80]!r}")
        if info.dtype is not dtypes.uint8 or len(info.shape) != 1:
            raise EngineFileError(f"{where}: file {name[:80]!r} must be stored as bytes")
    if stray := [n for n in tensors if not n.startswith(PAD) and n not in header["weights"]]:
        raise EngineFileError(f"{where}: tensor(s) {', '.join(stray)[:200]} have no digests")
