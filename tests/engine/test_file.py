"""The engine file: exact round trip, identical bytes, atomic writing, and a typed error for every damage."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from ingot import dtypes
from ingot.engine import file
from ingot.errors import EngineFileError, EngineVersionError, FileError


def tensors() -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return {
        "w.0": rng.standard_normal((3, 5)).astype(np.float32),
        "w.1": rng.standard_normal((7, 2)).astype(dtypes.bfloat16.numpy),
        "w.ü": rng.integers(0, 9, (300_000, 4), np.int32),
        "flag": np.array([True, False]),
        "file.tokenizer.json": np.frombuffer(b"{}", np.uint8),
    }


def header() -> dict[str, Any]:
    weights = {name: {"recipe": None, "hash": file.digests(t)} for name, t in tensors().items()}
    return {
        "format": 1, "producer": "ingot test", "kind": "network", "config": {"note": 'quote " and \\ and ü'},
        "networks": {}, "weights": weights, "programs": {}, "files": {"tokenizer.json": "file.tokenizer.json"},
    }  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file.write(tmp_path / "net.ingot", header(), tensors())
    return tmp_path / "net.ingot"


def test_round_trip(path: Path) -> None:
    engine = file.read(path, verify=True)
    assert engine.header == header()
    for name, array in tensors().items():
        assert engine.tensors[name].begin % file.ALIGN == 0
        got = engine.read(name)
        assert got.dtype == array.dtype and got.tobytes() == array.tobytes()
    assert engine.bytes == path.stat().st_size and os.listdir(path.parent) == ["net.ingot"]


def test_any_safetensors_tool_opens_it(path: Path) -> None:
    with safe_open(path, "numpy") as opened:
        assert {n for n in opened.keys() if not n.startswith("~pad.")} == set(tensors())  # noqa: SIM118
        np.testing.assert_array_equal(opened.get_tensor("w.0"), tensors()["w.0"])


def test_identical_input_gives_identical_bytes(path: Path, tmp_path: Path) -> None:
    size = file.write(tmp_path / "again.ingot", dict(reversed(header().items())), tensors())
    assert (tmp_path / "again.ingot").read_bytes() == path.read_bytes() and size == path.stat().st_size


def test_a_failed_write_leaves_the_old_file_and_nothing_else(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()

    def interrupted(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        file.write(path, header(), tensors())
    assert path.read_bytes() == before and os.listdir(path.parent) == ["net.ingot"]


def test_it_is_written_by_huge_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However tensors lie in it: a mapping has pages as large as what was written at once."""
    sizes: list[int] = []

    class Written(io.FileIO):
        def write(self, data: Any) -> int:
            sizes.append(len(data))
            return super().write(data)

    monkeypatch.setattr(file, "open", lambda place, mode, **_: Written(place, mode), raising=False)
    many = {f"w.{i}": np.arange(i * 300_000, dtype=np.float32) for i in range(1, 6)}
    weights = {name: {"recipe": None, "hash": file.digests(array)} for name, array in many.items()}
    size = file.write(tmp_path / "x.ingot", {**header(), "weights": weights, "files": {}}, many)
    assert sizes == [2 << 20] * (size >> 21) + [size % (2 << 20)]
    found = file.read(tmp_path / "x.ingot")
    assert all(np.array_equal(found.read(name), array) for name, array in many.items())


def test_a_file_is_written_again(path: Path) -> None:
    """Over one that is there, whose permissions stay."""
    path.chmod(0o640)
    written = path.read_bytes()
    file.write(path, header(), tensors())
    assert path.read_bytes() == written and path.stat().st_mode & 0o777 == 0o640


def test_a_full_disk_is_a_typed_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileError, match="No space left on device"):
        file.write(tmp_path / "x.ingot", header(), tensors())
    assert os.listdir(tmp_path) == []


def test_bad_places_to_write(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="No such file"):
        file.write(tmp_path / "no" / "x.ingot", header(), tensors())
    with pytest.raises(FileError, match="is a folder"):
        file.write(tmp_path, header(), tensors())


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (np.zeros(2, np.complex64), "cannot be stored"),
        (np.zeros((0, 2)), "positive integers"),
        (np.zeros((1,) * 9), "at most 8"),
    ],
)
def test_what_cannot_be_stored(tmp_path: Path, array: np.ndarray[Any, Any], why: str) -> None:
    with pytest.raises(FileError, match=why):
        file.write(tmp_path / "x", header(), {"t": array})


# -------------------------------------------------------------------------------------------------------------- damage


def parts(raw: bytes) -> tuple[dict[str, Any], bytes]:
    n = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + n]), raw[8 + n :]


def assemble(text: bytes, data: bytes, pad: bool = True) -> bytes:
    """A file around any header text, its checksum made right: what a careful attacker would write."""
    text = text + b" " * (-(8 + len(text)) % 4096 if pad else 0)
    at = text.find(b'"ingot.sha256":"') + 16
    if at > 16:
        text = text[:at] + b"0" * 64 + text[at + 64 :]
        text = text[:at] + hashlib.sha256(text).hexdigest().encode() + text[at + 64 :]
    return len(text).to_bytes(8, "little") + text + data


def dumps(outer: dict[str, Any]) -> bytes:
    return json.dumps(outer, separators=(",", ":"), ensure_ascii=False).encode()


def ours(change: Callable[[dict[str, Any]], None]) -> Callable[[bytes], bytes]:
    def edit(raw: bytes) -> bytes:
        outer, data = parts(raw)
        mine = json.loads(outer["__metadata__"]["ingot"])
        change(mine)
        outer["__metadata__"]["ingot"] = json.dumps(mine)
        return assemble(dumps(outer), data)

    return edit


def entry(change: Callable[[dict[str, Any]], None]) -> Callable[[bytes], bytes]:
    def edit(raw: bytes) -> bytes:
        outer, data = parts(raw)
        change(outer)
        return assemble(dumps(outer), data)

    return edit


def swap(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def edit(raw: bytes) -> bytes:
        n = int.from_bytes(raw[:8], "little")
        text = raw[8 : 8 + n].rstrip(b" ")
        assert old in text
        return assemble(text.replace(old, new, 1), raw[8 + n :])

    return edit


def length(n: int) -> Callable[[bytes], bytes]:
    return lambda raw: n.to_bytes(8, "little") + raw[8:]


def reorder(outer: dict[str, Any]) -> None:
    outer["w.0"] = outer.pop("w.0")


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda raw: b"", "empty"),
    "short": (lambda raw: raw[:20], "does not begin as one"),
    "wrong magic": (lambda raw: b"PK\x03\x04" + raw[4:], "whole pages|not legal|does not begin"),
    "cut in the header": (lambda raw: raw[:3000], "cut off"),
    "cut in the data": (lambda raw: raw[:-5], "cut off or added"),
    "trailing bytes": (lambda raw: raw + b"PK\x05\x06", "cut off or added"),
    "length 0": (length(0), "not legal"),
    "length 2^63": (length(2**63), "not legal"),
    "length -1": (length(2**64 - 1), "not legal"),
    "length beyond the file": (length((1 << 25) - 8), "cut off"),
    "length not whole pages": (lambda raw: assemble(raw[8:4000], b"", pad=False), "whole pages"),
    "flipped header bit": (lambda raw: raw[:500] + bytes([raw[500] ^ 1]) + raw[501:], "checksum"),
    "not UTF-8": (swap(b"flag", b"fl\xffg"), "not UTF-8"),
    "not JSON": (swap(b'"flag":', b'"flag":,'), "bad header"),
    "repeated tensor": (swap(b'"flag":', b'"w.0":'), "twice"),
    "repeated key of ours": (swap(b'\\"kind\\":', b'\\"kind\\":\\"llm\\",\\"kind\\":'), "twice"),
    "NaN": (swap(b'\\"files\\":', b'\\"x\\":NaN,\\"files\\":'), "NaN"),
    "1e400": (swap(b'\\"format\\":1', b'\\"format\\":1e400'), "too large"),
    "deep": (swap(b'\\"format\\":1', b'\\"format\\":' + b"[" * 100_000), "deep"),
    "future format": (ours(lambda h: h.update(format=2)), "of format 2"),
    "format as text": (ours(lambda h: h.update(format="1")), "number from 1"),
    "unknown key": (ours(lambda h: h.update(plugin="x.so")), "unknown header key.*plugin"),
    "missing key": (ours(lambda h: h.pop("weights")), "lacks weights"),
    "wrong kind": (ours(lambda h: h.update(kind="script")), "kind must be"),
    "weights as list": (ours(lambda h: h.update(weights=[])), "must be an object"),
    "weight without tensor": (ours(lambda h: h["weights"].update(ghost={"recipe": None, "hash": []})), "not there"),
    "weight without digest": (ours(lambda h: h["weights"]["w.0"].update(hash=[])), "one per MiB"),
    "tensor without digests": (ours(lambda h: h["weights"].pop("flag")), "flag have no digests"),
    "file that is no bytes": (ours(lambda h: h["files"].update(x="w.0")), "stored as bytes"),
    "file not there": (ours(lambda h: h["files"].update(x="../etc/passwd")), "not there"),
    "more metadata": (entry(lambda o: o["__metadata__"].update(x="y")), "exactly ingot.sha256 and ingot"),
    "unknown dtype": (entry(lambda o: o["w.0"].update(dtype="F4")), "unknown dtype"),
    "dtype as number": (entry(lambda o: o["w.0"].update(dtype=-1)), "unknown dtype"),
    "negative dim": (entry(lambda o: o["w.0"].update(shape=[-3, -5])), "positive integers"),
    "zero dim": (entry(lambda o: o["w.0"].update(shape=[0, 5])), "positive integers"),
    "rank 65": (entry(lambda o: o["w.0"].update(shape=[1] * 65)), "at most 8"),
    "product overflows": (entry(lambda o: o["w.0"].update(shape=[2**32, 2**32])), "needs 73"),
    "bytes disagree": (entry(lambda o: o["w.0"].update(shape=[3, 6])), "needs 72 bytes"),
    "negative offset": (entry(lambda o: o["w.0"].update(data_offsets=[-4, 56])), "two integers"),
    "overlap": (entry(lambda o: o["w.1"].update(data_offsets=[0, 28])), "must begin"),
    "hole": (entry(lambda o: o.pop("~pad.0")), "must begin"),
    "unsorted": (entry(reorder), "must begin"),
    "padding of 68 bytes": (
        entry(lambda o: o.update({"~pad.0": {"dtype": "U8", "shape": [68], "data_offsets": [60, 128]}})), "padding"),
    "extra key": (entry(lambda o: o["w.0"].update(mode=1)), "exactly dtype"),
    "name with NUL": (swap(b'"flag":', b'"fl\\u0000g":'), "cannot be printed"),
    "name of a megabyte": (swap(b'"flag":', b'"' + b"a" * (1 << 20) + b'":'), "1 to 512"),
    "name as path": (swap(b'"flag":', b'"../flag":'), "path out of"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_a_typed_error(path: Path, name: str) -> None:
    edit, why = DAMAGE[name]
    path.write_bytes(edit(path.read_bytes()))
    with pytest.raises(EngineFileError, match=f"(?s)^{path}.*({why})"):
        file.read(path)


def test_a_future_format_has_its_own_type(path: Path) -> None:
    path.write_bytes(ours(lambda h: h.update(format=2, new_key=1))(path.read_bytes()))
    with pytest.raises(EngineVersionError, match="it is of format 2; this ingot reads format 1; written by"):
        file.read(path)


def test_every_truncation_is_refused(path: Path) -> None:
    raw = path.read_bytes()
    n = 8 + int.from_bytes(raw[:8], "little")
    rng = random.Random(0)
    ends = [0, 1, 7, 8, 9, n - 1, n, n + 1, len(raw) - 1] + [rng.randrange(len(raw)) for _ in range(40)]
    for end in ends:
        path.write_bytes(raw[:end])
        with pytest.raises(EngineFileError):
            file.read(path)


def test_a_flipped_bit_in_any_page_is_found(path: Path) -> None:
    raw = path.read_bytes()
    rng = random.Random(1)
    pages = list(range(0, len(raw), 4096))
    for at in pages[:3] + rng.sample(pages[3:], 20) + pages[-1:]:
        where = min(at + rng.randrange(4096), len(raw) - 1)
        path.write_bytes(raw[:where] + bytes([raw[where] ^ (1 << rng.randrange(8))]) + raw[where + 1 :])
        with pytest.raises(EngineFileError):
            file.read(path, verify=True)


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(EngineFileError, match="not a regular file"):
        file.read(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(EngineFileError, match="not a regular file"):
        file.read(tmp_path / "pipe")
    with pytest.raises(EngineFileError, match="not a regular file"):
        file.read("/dev/zero")
    with pytest.raises(FileError, match="No such file"):
        file.read(tmp_path / "none.ingot")
    with open(tmp_path / "sparse.ingot", "wb") as f:
        f.truncate(1 << 40)
    with pytest.raises(EngineFileError, match="does not begin as one"):
        file.read(tmp_path / "sparse.ingot")


def test_a_file_shortened_after_opening(path: Path) -> None:
    engine = file.read(path)
    os.truncate(path, 8192)
    with pytest.raises(EngineFileError, match="shortened"):
        engine.read("w.ü")
