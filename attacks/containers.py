"""Attacks on the container: bytes, header, JSON, tensors (classes 1 to 25)."""

from __future__ import annotations

import json
import os
import random
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

from attacks.image import MAGIC, Image, add, engine, good, seal

# ------------------------------------------------------------------------------------------------- the file as a whole

engine(1, "empty file", lambda image: b"", both="empty|0 bytes")

_SIZE = len(good().encode())
_HEADER = _SIZE - 128
_RANDOM = random.Random(0)
for _at in sorted(
    {1, 7, 8, 9, 8 + len(MAGIC), 8 + len(MAGIC) + 64, _HEADER - 1, _HEADER, _HEADER + 64, _SIZE - 1}
    | {_RANDOM.randrange(1, _SIZE) for _ in range(12)}
):
    engine(
        2,
        f"cut off after {_at} bytes",
        lambda image, at=_at: image.encode()[:at],
        both="cut off|not an ingot|ends|begin",
    )

_STRANGERS = {
    "an ELF file": b"\x7fELF" + bytes(5000),
    "a zip file": b"PK\x03\x04" + bytes(5000),
    "a GGUF file": b"GGUF" + bytes(5000),
    "a pickle": b"\x80\x04\x95" + bytes(5000),
    "text": b"# not an engine\n" * 400,
    "zeros": bytes(8192),
    "a safetensors file": (4088).to_bytes(8, "little") + b'{"__metadata__":{"format":"pt"}}'.ljust(4088),
}
for _name, _bytes in _STRANGERS.items():
    engine(3, _name, lambda image, b=_bytes: b, both="not an ingot|no engine")


def _format(version: Any) -> Callable[[Image], None]:
    return lambda image: image.ours.update(format=version)


_NEWER = ("engine_version", "format 2; this ingot reads")
engine(4, "format 2", _format(2), python=_NEWER, native=_NEWER)
for _version in (0, -1, 1.0, "1", None, True, 2**63):
    engine(
        4,
        f"format {_version!r}",
        _format(_version),
        python=("engine_version|engine_file", "format"),
        native=("engine_version|engine_file", "format"),
    )


def _length(n: int) -> Callable[[Image], bytes]:
    return lambda image: n.to_bytes(8, "little") + image.encode()[8:]


for _n in (0, 1, 2**31, 2**32 + 4088, 2**63, 2**64 - 1, 2**64 - 8, _HEADER + 4096 - 8):
    engine(5, f"header length {_n}", _length(_n), both="header|engine")


def _big_header(path: Path) -> None:
    with path.open("wb") as file:
        file.write(((64 << 20) + 4088).to_bytes(8, "little") + MAGIC)
        file.truncate(80 << 20)


_BOTH_HEADER = {"python": ("engine_file", "header of"), "native": ("engine_file", "header length")}
add(6, "header above the cap", _big_header, _BOTH_HEADER)


def _flip(at: int) -> Callable[[Image], bytes]:
    def content(image: Image) -> bytes:
        raw = bytearray(_large(image).encode())
        raw[at] ^= 1
        return bytes(raw)

    return content


def _large(image: Image) -> Image:
    """Several pages of header and of data, so that there is a page of each kind to damage."""
    image.ours["config"] = {"note": "x" * 9000}
    return image


_PAGES = len(_large(good()).encode()) // 4096
for _page in range(_PAGES):
    engine(11, f"a flipped bit in page {_page} of the header", _flip(_page * 4096 + 2048), both="checksum")
engine(11, "a flipped bit in the checksum", _flip(8 + len(MAGIC) + 5), both="checksum|engine")
engine(11, "a flipped bit in the data", lambda image: image.encode()[:-1] + b"\x7e", verify="tensor w is damaged")

engine(12, "trailing garbage", lambda image: image.encode() + b"x", both="added|follow|cut off")


def _polyglot(image: Image) -> bytes:
    tail = BytesIO()
    with zipfile.ZipFile(tail, "w") as archive:
        archive.writestr("__main__.py", "raise SystemExit('executed')")
    return image.encode() + tail.getvalue()


engine(12, "a zip archive at the tail", _polyglot, both="added|follow|cut off")
engine(
    12,
    "text after the header's end",
    lambda image: seal(image.encode()[8:_HEADER].rstrip() + b"{}", image.data),
    both="header|Extra data",
)


def _sparse(path: Path) -> None:
    path.write_bytes(good().encode())
    os.truncate(path, 1 << 40)


_NO_FILE = ("engine_file|io", "regular file|folder|directory|FIFO|device")
_BOTH_NO_FILE = {"python": _NO_FILE, "native": _NO_FILE}
add(13, "a directory", Path.mkdir, _BOTH_NO_FILE)
add(13, "a FIFO", lambda path: os.mkfifo(path), _BOTH_NO_FILE)
add(13, "/dev/zero", lambda path: path.symlink_to("/dev/zero"), _BOTH_NO_FILE)
_GONE = ("io", "No such file|too many|Too many")
add(13, "a link to itself", lambda path: path.symlink_to(path), {"python": _GONE, "native": _GONE})
add(13, "no file at all", lambda path: None, {"python": _GONE, "native": _GONE})
_TOO_LONG = ("engine_file", "added|follow|cut off")
add(13, "a sparse file of 1 TB", _sparse, {"python": _TOO_LONG, "native": ("engine_file|memory", "follow|memory")})

# ---------------------------------------------------------------------------------------------------------- JSON


def _text(change: Callable[[bytes], bytes]) -> Callable[[Image], None]:
    """Changes the text of our own JSON."""

    def content(image: Image) -> None:
        image.text = change(json.dumps(image.ours, sort_keys=True).encode())

    return content


def _config(value: bytes) -> Callable[[Image], None]:
    return _text(lambda text: text.replace(b'"config": {}', b'"config": {"a": %s}' % value))


engine(7, "our JSON is not UTF-8", _config(b'"\xff\xfe"'), both="UTF-8")
engine(7, "our JSON holds an overlong NUL", _config(b'"\xc0\x80"'), both="UTF-8")
engine(7, "our JSON holds half a surrogate pair in UTF-8", _config(b'"\xed\xa0\x80"'), both="UTF-8")
engine(7, "a tensor name is not UTF-8", lambda image: setattr(image, "raw_entries", b',"\xff":{}'), both="UTF-8")
engine(7, "a byte order mark", _text(lambda text: b"\xef\xbb\xbf" + text), both="header|description")
engine(8, "JSON 100,000 deep in ours", _config(b"[" * 100_000 + b"]" * 100_000), both="deep")
engine(8, "JSON 100,000 deep, never closed", _config(b'{"a":' * 100_000), both="header|deep|description")
engine(
    8,
    "JSON 100,000 deep in the outer header",
    lambda image: setattr(image, "raw_entries", b',"w":' + b"[" * 100_000 + b"]" * 100_000),
    both="deep|unexpected",
)
engine(9, "our key twice", _text(lambda text: text.replace(b'"format": 1', b'"format": 1, "format": 1')), both="twice")
engine(
    9,
    "an escaped form of the same key",
    _text(lambda text: text.replace(b'"format": 1', b'"format": 1, "\\u0066ormat": 2')),
    both="twice",
)
engine(9, "a key twice deep inside", _text(lambda text: text.replace(b'"eps": ', b'"eps": 1, "eps": ')), both="twice")
engine(
    9,
    "two metadata objects",
    lambda image: setattr(image, "raw_entries", b',"__metadata__":{"ingot":"{}"}'),
    both="twice",
)
for _value in (
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"1e400",
    b"-1e400",
    b"1" * 21,
    b"1" * 10_000,
    b"01",
    b"+1",
    b"0x1",
    b".5",
    b"1.",
    b"'a'",
    b"undefined",
    b"[1,]",
    b'"\t"',
    b'"\\x41"',
    b"// comment\n1",
):
    _shown = _value.decode() if len(_value) < 20 else f"a number of {len(_value)} digits"
    engine(10, f"{_shown!r} as a JSON value", _config(_value), both="header|description")
engine(10, "our JSON is a list", lambda image: setattr(image, "text", b"[]"), both="object|description")
engine(10, "our JSON is empty", lambda image: setattr(image, "text", b""), both="header|description")


def _key(key: str, value: Any) -> Callable[[Image], None]:
    return lambda image: image.ours.update({key: value})


engine(10, "an unknown key of ours", _key("plugin", "libevil.so"), both="plugin")
engine(25, "an alignment field", _key("alignment", 3), both="alignment")
for _name in ("config", "networks", "weights", "programs", "files"):
    engine(10, f"{_name} is a list", _key(_name, []), python=_name, load=_name)
    engine(10, f"{_name} is missing", lambda image, n=_name: image.ours.pop(n) and None, python=_name, load=_name)
engine(10, "an unknown kind", _key("kind", "plugin"), python="kind", load="kind")

# ---------------------------------------------------------------------------------------------------------- tensors


def _entry(data: bytes | None = None, **changes: Any) -> Callable[[Image], None]:
    """Changes the entry of the one tensor."""

    def content(image: Image) -> None:
        name, entry = image.entries[0]
        image.entries[0] = (name, entry | changes)
        image.data = image.data if data is None else data

    return content


engine(15, "a shape whose product is 2**64", _entry(shape=[2**32, 2**32]), both="overflow|needs")
engine(15, "a shape whose bytes are 2**64", _entry(shape=[2**31, 2**31], dtype="F32"), both="overflow|needs")
engine(15, "a shape whose product overflows to the right size", _entry(shape=[2**62, 2**62, 32]), both="overflow|needs")
engine(16, "a negative dim", _entry(shape=[-4, -8]), both="negative|positive")
engine(16, "a zero dim", _entry(shape=[0, 8], data_offsets=[0, 0], data=b""), both="positive|zero")
engine(16, "65 dims", _entry(shape=[4, 8] + [1] * 63), both="at most")
engine(16, "a dim of 2**63", _entry(shape=[2**63]), both="positive|unexpected|dimension")
for _shape in ([4.0, 8], ["4", 8], [True, 8], [[4], 8], "4,8", None, 32, {"0": 4}):
    engine(16, f"the shape {_shape}", _entry(shape=_shape), both="shape|unexpected")
engine(17, "fewer bytes than the shape needs", _entry(shape=[5, 8]), both="needs|make")
engine(17, "more bytes than the shape needs", _entry(shape=[3, 8]), both="needs|make")


def _two(first: list[int], second: list[int], data: int = 192) -> Callable[[Image], None]:
    """Two tensors with the given offsets."""

    def content(image: Image) -> None:
        image.data = (image.data * 2)[:data]
        other = {"dtype": "U8", "shape": [max(second[1] - second[0], 0)], "data_offsets": second}
        image.entries = [("w", image.entries[0][1] | {"data_offsets": first}), ("z", other)]

    return content


engine(18, "overlapping tensors", _two([0, 128], [64, 192]), both="must begin|begins")
engine(18, "unsorted tensors", _two([64, 192], [0, 64]), both="must begin|begins")
engine(18, "a tensor behind the end of the file", _two([0, 128], [128, 2**40]), both="cut off")
engine(18, "offsets that run backwards", _two([0, 128], [192, 128]), both="ascending|needs|offsets|positive")
engine(18, "negative offsets", _entry(data_offsets=[-128, 0]), both="ascending|offsets")
engine(18, "a misaligned tensor", _two([0, 128], [128, 160], 192), both="cut off|bytes|account")
engine(18, "offsets near 2**63", _entry(data_offsets=[2**63 - 128, 2**63]), both="offsets|unexpected|begin")
engine(18, "one offset", _entry(data_offsets=[0]), both="offsets")
engine(19, "a hole between tensors", _two([0, 128], [192, 256], 256), both="must begin|begins")
engine(19, "a hole before the first tensor", _entry(data_offsets=[64, 192], data=bytes(192)), both="must begin|begins")
for _dtype in ("F8_E9M9", "f32", "", -1, 0, None, "F4", "I4", "C64"):
    engine(23 if _dtype in ("F4", "I4") else 20, f"the dtype {_dtype!r}", _entry(dtype=_dtype), both="dtype|unexpected")


def _many(image: Image) -> None:
    one = b',"t%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    image.raw_entries = b"".join(one % i for i in range(1_000_000))
    image.data = b""


engine(21, "a million tensors", _many, both="entries|more than|tensor")


def _named(name: str) -> Callable[[Image], None]:
    def content(image: Image) -> None:
        image.entries[0] = (name, image.entries[0][1])

    return content


engine(22, "a tensor name with a NUL", _named("w\0"), both="name")
engine(22, "a tensor name with an escape sequence", _named("w\x1b[2J"), both="name")
engine(22, "a tensor name of 1 MB", _named("w" * 1_000_000), both="name")
engine(22, "an empty tensor name", _named(""), both="name")
engine(22, "a tensor name that leads out of a folder", _named("../../etc/passwd"), both="name")
engine(22, "an absolute path as tensor name", _named("/etc/passwd"), both="name")
engine(22, "two tensors of one name", lambda image: image.entries.append(image.entries[0]), both="twice")
engine(22, "a tensor without digests", lambda image: image.ours["weights"].clear(), python="no digests")
engine(22, "an entry with an unknown key", _entry(device="cuda"), both="device|exactly")
engine(22, "an entry that is a number", lambda image: image.entries.append(("z", 3)), both="exactly|unexpected")


def _padding(image: Image) -> None:
    image.entries.append(("~pad.0", {"dtype": "U8", "shape": [1 << 20], "data_offsets": [128, 128 + (1 << 20)]}))
    image.data += bytes(1 << 20)


engine(22, "padding that holds a megabyte", _padding, both="padding")


def _weight(entry: Any) -> Callable[[Image], None]:
    return lambda image: image.ours["weights"].update(w=entry)


_HASH = good().ours["weights"]["w"]["hash"]
engine(22, "a weight without recipe", _weight({"hash": _HASH}), python="recipe")
engine(
    22,
    "a weight with too many digests",
    _weight({"recipe": {"sources": ["w"], "steps": []}, "hash": _HASH * 2}),
    python="digests",
)
engine(22, "a file that names no tensor", _key("files", {"tokenizer.json": "nowhere"}), python="not there")
engine(22, "a file that names a weight of floats", _key("files", {"tokenizer.json": "w"}), python="bytes")
