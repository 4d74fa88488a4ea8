"""A good engine file made by hand, and the table of attacks; an attack changes one thing of the good file.

Written without ingot's own writer, which rightly refuses to write most of these.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAGIC = b'{"__metadata__":{"ingot.sha256":"'
WEIGHT = bytes(range(32)) * 4  # 128 bytes: 32 float32 of small magnitude
DIGEST = hashlib.sha256(WEIGHT).hexdigest()[:32]
Json = Any


def program() -> dict[str, Json]:
    """y = 2 · rms_norm(x), rows = w[ids]: inputs, a weight, temps, a view and three kernels."""
    return {
        "version": 1,
        "symbols": [{"name": "N", "min": 0, "max": 64}],
        "buffers": [
            {"kind": "input", "name": "x", "dtype": "float32", "shape": ["N", 8]},
            {"kind": "input", "name": "ids", "dtype": "int32", "shape": ["N"]},
            {"kind": "weight", "tensor": "w", "dtype": "float32", "shape": [4, 8]},
            {"kind": "temp", "dtype": "float32", "shape": ["N", 8]},
            {"kind": "temp", "dtype": "float32", "shape": ["N", 8]},
            {"kind": "view", "of": 3, "shape": ["N", 2, 4], "stride": [8, 4, 1], "offset": 0},
            {"kind": "temp", "dtype": "float32", "shape": ["N", 2, 4]},
        ],
        "calls": [
            {"kernel": "rms_norm", "version": 1, "in": [0], "out": [3], "params": {"eps": 1e-5}, "where": "norm"},
            {"kernel": "take", "version": 1, "in": [2, 1], "out": [4], "params": {"axis": 0}, "where": "rows"},
            {
                "kernel": "elementwise", "version": 1, "in": [5], "out": [6], "where": "twice",
                "params": {"expression": {"steps": [["input", "float32", 0], ["add", "float32", 0, 0]],
                                          "outputs": [1]}},
            },
        ],
        "outputs": [{"name": "y", "buffer": 6}, {"name": "rows", "buffer": 4}],
    }  # fmt: skip


@dataclass
class Image:
    """An engine file in parts. `text` replaces the JSON of `ours`; `entries` describe the tensors in `data`."""

    ours: dict[str, Json] = field(default_factory=dict)
    entries: list[tuple[str, Json]] = field(default_factory=list)
    data: bytes = WEIGHT
    text: bytes | None = None
    raw_entries: bytes | None = None

    @property
    def program(self) -> dict[str, Json]:
        found: dict[str, Json] = self.ours["programs"]["cpu"]["entries"]["main"]
        return found

    def encode(self) -> bytes:
        """The file, padded and with a right checksum."""
        text = json.dumps(self.ours, sort_keys=True).encode() if self.text is None else self.text
        # The bytes of the inner JSON are escaped by hand: they need not be UTF-8.
        inner = text.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
        tail = b"".join(b"," + json.dumps(n).encode() + b":" + json.dumps(e).encode() for n, e in self.entries)
        tail = tail if self.raw_entries is None else self.raw_entries
        return seal(MAGIC + b"0" * 64 + b'","ingot":"' + inner + b'"}' + tail + b"}", self.data)


def seal(header: bytes, data: bytes) -> bytes:
    """A file around a header: padded, with its length and the digest of what is there."""
    header += b" " * (-(8 + len(header)) % 4096)
    digest = hashlib.sha256(header).hexdigest().encode()
    header = header[: len(MAGIC)] + digest + header[len(MAGIC) + 64 :]
    return len(header).to_bytes(8, "little") + header + data


def good() -> Image:
    """The engine that all attacks start from; it opens, and runs."""
    ours = {
        "format": 1, "producer": "attacks", "kind": "network", "config": {}, "networks": {}, "files": {},
        "weights": {"w": {"recipe": {"sources": ["w"], "steps": []}, "hash": [DIGEST]}},
        "programs": {"cpu": {"entries": {"main": program()}}},
    }  # fmt: skip
    return Image(ours, [("w", {"dtype": "F32", "shape": [4, 8], "data_offsets": [0, 128]})])


# Which reader has to refuse, with which error code, and what the message has to say (a regular expression).
#   python    ingot.engine.file.read           verify    the same with the digests of all data
#   native    _native.Engine.open and Session  load      ingot.load
#   session   the same and a session
#   run       the same and a run               run_far, run_negative  with an index out of range
#   network   the portable networks in the header, verified           interpret  the same and a run
#   directory ingot.models.load                llm        ingot.LLM
#   adapter   a LoRA adapter for the model that attacks by a directory start from
#   chat      the same, and a prompt by the chat template
#   exported  a .pt2 file, imported, all its weights read
Expected = dict[str, tuple[str, str]]


@dataclass(frozen=True)
class Attack:
    name: str
    number: int
    make: Callable[[Path], None]  # creates what the path names
    expect: Expected


TABLE: dict[str, Attack] = {}


def add(number: int, name: str, make: Callable[[Path], None], expect: Expected) -> None:
    assert name not in TABLE, name
    TABLE[name] = Attack(name, number, make, expect)


def engine(number: int, name: str, content: Callable[[Image], object], **expect: tuple[str, str] | str) -> None:
    """An attack that is an engine file: `content` gets the good image and returns bytes, or changes it in place.

    `both="…"` stands for python and native with code engine_file.
    """

    def make(path: Path) -> None:
        image = good()
        written = content(image)
        path.write_bytes(written if isinstance(written, bytes) else image.encode())

    both = expect.pop("both", None)
    if both is not None:
        expect = {"python": both, "native": both} | expect
    add(number, name, make, {k: ("engine_file", v) if isinstance(v, str) else v for k, v in expect.items()})
