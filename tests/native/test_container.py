"""The container reader: good files, and what is wrong with bad ones (attacks/ has many more)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ingot import _native
from tests.native.engines import PREFIX, WEIGHTS, chain, encode, header, normalise, seal

STORED = {name: WEIGHTS[name] for name in ("w", "table")}
GOOD = encode(header(main=normalise().json), STORED)


def refused(content: bytes, directory: Path, code: str = "engine_file") -> str:
    """The message with which a file of this content is refused."""
    path = directory / "bad.ingot"
    path.write_bytes(content)
    with pytest.raises(_native.Error) as caught:
        _native.Engine.open(str(path))
    assert caught.value.code == code, caught.value
    assert str(path) in str(caught.value)
    return str(caught.value)


def edit(change: Callable[[bytes], bytes], content: bytes = GOOD) -> bytes:
    """The file with its header changed and sealed again."""
    n = int.from_bytes(content[:8], "little")
    return seal(change(content[8 : 8 + n].rstrip(b" ")), content[8 + n :])


def test_good_file(tmp_path: Path) -> None:
    path = tmp_path / "good.ingot"
    path.write_bytes(GOOD)
    engine = _native.Engine.open(str(path))
    assert engine.entries() == ["main"] and engine.bytes_mapped == len(GOOD)
    assert json.loads(engine.header())["producer"] == "tests"
    w = engine.tensor("w")
    assert w.dtype == np.uint8 and not w.flags.writeable and w.ctypes.data % 64 == 0
    np.testing.assert_array_equal(w.view(np.float32), WEIGHTS["w"])
    with pytest.raises(_native.Error, match="no tensor 'nothing'"):
        engine.tensor("nothing")
    with pytest.raises(_native.Error, match="no entry 'nothing' for the CPU; it has 'main'"):
        _native.Session(engine, "nothing")
    del engine  # the view keeps the mapping
    np.testing.assert_array_equal(w.view(np.float32), WEIGHTS["w"])


def test_resident_weights(tmp_path: Path) -> None:
    path = tmp_path / "good.ingot"
    path.write_bytes(GOOD)
    engine = _native.Engine.open(str(path), weights="resident")
    os.truncate(path, 0)  # the file is needed no more
    assert engine.bytes_mapped == 0
    for name, array in STORED.items():
        found = engine.tensor(name)
        assert found.ctypes.data % 64 == 0
        np.testing.assert_array_equal(found.view(np.float32), array.ravel())
    with pytest.raises(_native.Error, match="'elsewhere' is neither 'mapped' nor 'resident'"):
        _native.Engine.open(str(path), weights="elsewhere")


def test_safetensors_reads_it(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    path = tmp_path / "good.ingot"
    path.write_bytes(GOOD)
    tensors = load_file(path)
    np.testing.assert_array_equal(tensors["table"], WEIGHTS["table"])


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 100, 4095, 4096, len(GOOD) - 1])
def test_cut_off(length: int, tmp_path: Path) -> None:
    refused(GOOD[:length], tmp_path)


def test_every_changed_byte_of_the_header_is_seen(tmp_path: Path) -> None:
    n = int.from_bytes(GOOD[:8], "little")
    for at in range(0, 8 + n, 97):
        refused(GOOD[:at] + bytes([GOOD[at] ^ 0x10]) + GOOD[at + 1 :], tmp_path)


BAD: dict[str, tuple[bytes, str]] = {
    "length zero": (bytes(8) + GOOD[8:], "header length 0"),
    "length huge": (b"\xff" * 8 + GOOD[8:], "header length 18446744073709551615"),
    "length beyond the file": ((1 << 20).to_bytes(8, "little") + GOOD[8:], "header length"),
    "length beyond the file, whole pages": (((1 << 20) - 8).to_bytes(8, "little") + GOOD[8:], "cut off"),
    "trailing bytes": (GOOD + b"PK\x05\x06", "4 bytes follow the last tensor"),
    "a safetensors file": (seal(b'{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x"), "no engine"),
    "a wrong digest": (GOOD.replace(GOOD[41:105], b"0" * 64), "checksum"),
    "something behind the object": (edit(lambda h: h + b" {}"), "not valid"),
    "a tab as padding": (edit(lambda h: h + b"\t"), "followed by spaces alone"),
    "not JSON": (edit(lambda h: h[:-1] + b",}"), "is not valid: at byte"),
    "a key twice": (edit(lambda h: h[:-1] + b',"w":{}}'), "occurs twice"),
    "not UTF-8": (edit(lambda h: h.replace(b"tests", b"t\xffsts")), "is not valid"),
    "a NUL": (edit(lambda h: h + b"\0"), "spaces alone"),
    "depth": (edit(lambda h: h[:-1] + b',"z":' + b"[" * 100000 + b"]" * 100000 + b"}"), "nested deeper|unexpected"),
    "a big integer": (edit(lambda h: h.replace(b'"shape":[8]', b'"shape":[99999999999999999999]')), "64 bits"),
    "an infinite number": (edit(lambda h: h.replace(b'"shape":[8]', b'"shape":[1e999]')), "not valid"),
    "a fraction": (edit(lambda h: h.replace(b'"shape":[8]', b'"shape":[8.0]')), "unexpected type"),
    "an unknown dtype": (edit(lambda h: h.replace(b'"F32","shape":[8]', b'"F4","shape":[8]')), "'F4' is unknown"),
    "a negative dimension": (edit(lambda h: h.replace(b'"shape":[8]', b'"shape":[-8]')), "must be positive"),
    "rank 9": (edit(lambda h: h.replace(b'"shape":[8]', b'"shape":[8,1,1,1,1,1,1,1,1]')), "rank 9"),
    "an overflowing shape": (edit(lambda h: h.replace(b"[8],", b"[4294967296,4294967296],")), "overflows"),
    "another size": (edit(lambda h: h.replace(b'"shape":[8]', b'"shape":[9]')), "make 36 bytes, data_offsets 32"),
    "a hole": (edit(lambda h: h.replace(b"[64,192]", b"[72,200]")), "begins at byte 72"),
    "an overlap": (edit(lambda h: h.replace(b"[64,192]", b"[32,160]")), "begins at byte 32"),
    "descending offsets": (edit(lambda h: h.replace(b"[64,192]", b"[192,64]")), "two ascending numbers"),
    "beyond the file": (edit(lambda h: h.replace(b"[4,8]", b"[5,8]").replace(b"[64,192]", b"[64,224]")), "cut off"),
    "misaligned": (edit(lambda h: h.replace(b"[32],", b"[4],").replace(b"[32,64]", b"[32,36]")
                        .replace(b"[64,192]", b"[36,164]")), "no multiple of 64"),
    "padding with a name of its own": (edit(lambda h: h.replace(b"~pad.1", b"~pad.x")), "padding must be named"),
    "a control character": (edit(lambda h: h.replace(b'"table":{"dtype', b'"ta\\u0001e":{"dtype')), "not allowed"),
    "a name that is a path": (edit(lambda h: h.replace(b'"table":{"dtype', b'"../tab":{"dtype')), "leads outside"),
    "a long name": (edit(lambda h: h.replace(b'"table":{"dtype', b'"' + b"t" * 100000 + b'":{"dtype')), "100000 bytes"),
    "an unknown member": (edit(lambda h: h.replace(b'"shape":[8]', b'"shape":[8],"x":1')), "'x' is unknown"),
    "a missing member": (edit(lambda h: h.replace(b'"dtype":"F32","shape":[8],', b'"shape":[8],')), "all needed"),
    "more metadata": (edit(lambda h: h.replace(b'"},"w"', b'","more":"x"},"w"')), "'more' is unknown"),
    "nothing inside": (seal(PREFIX + b"0" * 64 + b'","ingot":""}}', b""), "engine's description is not valid"),
    "no format": (encode({"programs": {}}, {}), "no format number from 1 on"),
    "no programs": (encode({"format": 1}, {}), "no programs"),
    "an unknown key": (encode(header() | {"pickle": "x"}, {}), "'pickle' is unknown"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_file(case: str, tmp_path: Path) -> None:
    content, message = BAD[case]
    found = refused(content, tmp_path)
    assert any(part in found for part in message.split("|")), found
    assert len(found) < 700


def test_newer_format_names_both(tmp_path: Path) -> None:
    newer = header() | {"format": 2, "something": "new"}
    message = refused(encode(newer, {}), tmp_path, "engine_version")
    assert "it is of format 2; this ingot reads format 1; written by 'tests', this is ingot 0" in message
    program = chain().json | {"version": 7}
    message = refused(encode(header(main=program), {}), tmp_path, "engine_version")
    assert "program 'main': it is of version 7; this ingot reads version 1" in message


def test_what_is_no_file(tmp_path: Path) -> None:
    fifo, sparse = tmp_path / "fifo", tmp_path / "sparse"
    os.mkfifo(fifo)
    with open(sparse, "wb") as f:
        f.truncate(1 << 40)
    for path, code, message in (
        (tmp_path, "engine_file", "a directory"),
        (fifo, "engine_file", "a FIFO"),
        (Path("/dev/zero"), "engine_file", "a device"),
        (sparse, "engine_file", "header length 0"),
        (tmp_path / "missing", "io", "No such file"),
    ):
        with pytest.raises(_native.Error, match=message) as caught:
            _native.Engine.open(str(path))
        assert caught.value.code == code


SHORTEN = """
import os, sys
from ingot import _native
engine = _native.Engine.open(sys.argv[1])
w = engine.tensor("w")
os.truncate(sys.argv[1], 4096)
print(w.sum())
"""


def test_a_file_shortened_under_its_mapping_ends_cleanly(tmp_path: Path) -> None:
    path = tmp_path / "good.ingot"
    path.write_bytes(GOOD)
    run = subprocess.run([sys.executable, "-c", SHORTEN, str(path)], capture_output=True, text=True, check=False)
    assert run.returncode == 1 and run.stdout == ""
    assert run.stderr == f"ingot: the engine file {path} was shortened or lost while it was in use; exiting\n"
