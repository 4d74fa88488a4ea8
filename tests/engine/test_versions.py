"""Engines of other releases: all readers take the same formats, and say which ingot reads what is too new."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attacks.image import Image, good
from ingot import _native
from ingot.backends.program import PROGRAM_VERSION
from ingot.backends.stored import recipes_of
from ingot.builder.layers import network_of
from ingot.engine import file
from ingot.engine.session import load
from ingot.errors import EngineVersionError, IngotError
from ingot.version import __version__

LATER = "99.1.0"
NEWER, SAME = f"ingot {LATER}", f"ingot {__version__}"
LIBRARY = Path(_native.__file__).parent / "libingot.so"
OLDEST, NEWEST = _native.FORMATS
Change = Callable[[Image], object]

# A process of its own, as a program that knows nothing of Python has it.
BY_C = """
import ctypes, json, sys
lib = ctypes.CDLL(sys.argv[1])
lib.ingot_last_error.restype = lib.ingot_last_error_code.restype = ctypes.c_char_p
lib.ingot_open.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
lib.ingot_session_create.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p]
for line in sys.stdin:
    engine, session = ctypes.c_void_p(), ctypes.c_void_p()
    options = (ctypes.c_int64 * 3)()
    fault = lib.ingot_open(line.strip().encode(), ctypes.byref(engine)) or lib.ingot_session_create(
        engine, None, options, ctypes.byref(session))
    words = [lib.ingot_last_error_code().decode(), lib.ingot_last_error().decode()] if fault else [None, ""]
    print(json.dumps(words), flush=True)
"""


@pytest.fixture(scope="module")
def by_c() -> Iterator[Callable[[Path], tuple[str | None, str]]]:
    """Code and message of the C interface, opening a file and making a session."""
    with subprocess.Popen(
        [sys.executable, "-c", BY_C, str(LIBRARY)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin and process.stdout

        def ask(path: Path) -> tuple[str | None, str]:
            assert process.stdin and process.stdout
            process.stdin.write(f"{path}\n")
            process.stdin.flush()
            code, message = json.loads(process.stdout.readline())
            return code, message

        yield ask
        process.stdin.close()


def by_python(path: Path) -> tuple[str | None, str]:
    """The Python reader, and the networks in the header."""
    try:
        file.read(path)
    except IngotError as e:
        return e.code, str(e)
    return None, ""


def by_native(path: Path) -> tuple[str | None, str]:
    """What `ingot.load(path).session()` says."""
    try:
        load(path).session(threads=1)
    except IngotError as e:
        return e.code, str(e)
    return None, ""


def written(folder: Path, change: Change, producer: str) -> Path:
    image = good()
    image.ours["producer"] = producer
    change(image)
    path = folder / "engine.ingot"
    path.write_bytes(image.encode())
    return path


def ours(**changes: Any) -> Change:
    return lambda image: image.ours.update(changes)


def program(**changes: Any) -> Change:
    return lambda image: image.program.update(changes)


def call(index: int, **changes: Any) -> Change:
    return lambda image: image.program["calls"][index].update(changes)


def host(**changes: Any) -> Change:
    """The first call made by Python: y = cumsum(x), changed."""
    made = {"host": "cumsum", "version": 1, "in": [0], "out": [3], "params": {"axis": 1}, "where": "norm"} | changes
    return lambda image: image.program["calls"].__setitem__(0, made)


def tensor(**changes: Any) -> Change:
    return lambda image: image.entries[0][1].update(changes)


# ------------------------------------------------------------------------------------------------------------- formats


@pytest.mark.parametrize("number", [*range(OLDEST - 1, NEWEST + 3), -1, 2**62, 2**63, "1", 1.0, True, None])
def test_all_readers_take_the_same_formats(number: Any, tmp_path: Path, by_c: Any) -> None:
    path = written(tmp_path, ours(format=number), SAME)
    is_one = type(number) is int and number >= 1
    wanted = "engine_file" if not is_one else None if OLDEST <= number <= NEWEST else "engine_version"
    for reader in (by_python, by_native, by_c):
        assert reader(path)[0] == wanted, (reader, reader(path))


def test_the_numbers_are_those_that_are_written() -> None:
    assert (file.OLDEST_FORMAT, file.FORMAT) == _native.FORMATS
    assert 1 <= OLDEST <= NEWEST
    assert _native.PROGRAMS[1] == PROGRAM_VERSION


# ----------------------------------------------------------------------------------------------- what is not known here

# name → change, the readers that meet it, and what it is in a file of this release.
STRANGE: dict[str, tuple[Change, str, str]] = {
    "a format": (ours(format=NEWEST + 1), "python native c", "engine_version"),
    "a format with other tensors": (
        lambda image: (ours(format=NEWEST + 1)(image), tensor(dtype="F4")(image)), "python native c", "engine_version"),
    "a format with other programs": (
        lambda image: (ours(format=NEWEST + 1)(image), ours(programs=[])(image)), "python native c", "engine_version"),
    "a key of the header": (ours(signature="x"), "python native c", "engine_file"),
    "a kind": (ours(kind="speech"), "python native", "engine_file"),
    "an element type": (tensor(dtype="F4"), "python native c", "engine_file"),
    "a program": (program(version=_native.PROGRAMS[1] + 1), "native c", "engine_version"),
    "a key of a program": (program(streams=[]), "native c", "program"),
    "a kind of buffer": (lambda image: image.program["buffers"][4].update(kind="ring"), "native c", "program"),
    "a kernel": (call(0, kernel="flash"), "native c", "kernel_refused"),
    "a version of a kernel": (call(0, version=9), "native c", "engine_version"),
    "a parameter of a kernel": (call(0, params={"eps": 1e-5, "centred": True}), "native c", "kernel_refused"),
    "an op": (host(host="cumulate"), "native", "program"),
    "a version of an op": (host(version=9), "native", "engine_version"),
    "an attribute of an op": (host(params={"axis": 1, "exclusive": True}), "native", "program"),
}  # fmt: skip


@pytest.mark.parametrize("name", STRANGE)
def test_what_a_newer_ingot_wrote_says_which_one_reads_it(name: str, tmp_path: Path, by_c: Any) -> None:
    change, readers, _ = STRANGE[name]
    path = written(tmp_path, change, NEWER)
    for reader in readers.split():
        code, message = {"python": by_python, "native": by_native, "c": by_c}[reader](path)
        assert code == "engine_version", (reader, code, message)
        advice = f"written by {NEWER}, this is {SAME}: use {NEWER} or newer, or build the engine again with this one"
        assert message.count(advice) == 1 and message.endswith(advice), (reader, message)


@pytest.mark.parametrize("name", STRANGE)
def test_in_a_file_of_this_ingot_it_is_malformed(name: str, tmp_path: Path, by_c: Any) -> None:
    change, readers, wanted = STRANGE[name]
    path = written(tmp_path, change, SAME)
    for reader in readers.split():
        code, message = {"python": by_python, "native": by_native, "c": by_c}[reader](path)
        assert code == wanted, (reader, code, message)
        assert ("use the version that wrote it" in message) == (wanted == "engine_version")


def test_what_a_newer_ingot_wrote_runs_when_all_of_it_is_known(tmp_path: Path, by_c: Any) -> None:
    path = written(tmp_path, lambda image: None, NEWER)
    assert by_python(path) == by_native(path) == by_c(path) == (None, "")


def test_a_kernel_is_found_by_name_and_version() -> None:
    named = [(kernel["name"], kernel["version"]) for kernel in _native.kernels()]
    assert len(set(named)) == len(named) and all(version >= 1 for _, version in named)


def test_too_new_and_unknown_kernels_are_told_apart(tmp_path: Path) -> None:
    assert "this ingot has no kernel 'flash'" in by_native(written(tmp_path, call(0, kernel="flash"), SAME))[1]
    message = by_native(written(tmp_path, call(0, version=9), SAME))[1]
    assert "this ingot has no kernel 'rms_norm' of version 9, only of version 1" in message


# ------------------------------------------------------------------------------------------------- networks and recipes


def with_network(**changes: Any) -> Change:
    """A portable network of one node, y = cumsum(x), changed."""
    value = {"name": "x", "dtype": "float32", "shape": [2, 3]}
    node = {"op": "cumsum", "version": 1, "attrs": {"axis": 1}, "where": "", "in": ["x"], "out": ["y"]} | changes
    net = {"name": "main", "dims": [], "inputs": [value], "parameters": [], "constants": [], "states": [],
           "nodes": [node], "outputs": [["y", "y"]]}  # fmt: skip
    return ours(networks={"main": net})


@pytest.mark.parametrize(
    "changes", [{"op": "cumulate"}, {"version": 2}, {"attrs": {"axis": 1, "exclusive": True}}, {"line": 3}]
)
def test_networks_of_a_newer_ingot_say_so(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(EngineVersionError, match=f"; written by {NEWER}.*use {NEWER} or newer"):
        network_of(load(written(tmp_path, with_network(**changes), NEWER)))
    with pytest.raises(IngotError) as caught:
        network_of(load(written(tmp_path, with_network(**changes), SAME)))
    assert (caught.type is EngineVersionError) == ("version" in changes)


def test_a_torch_device_says_so_too(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = written(tmp_path, with_network(version=2), NEWER)
    with pytest.raises(EngineVersionError, match=f"; written by {NEWER}.*use {NEWER} or newer"):
        load(path).on("torch").session()


def test_networks_that_are_known_are_read_whoever_wrote_them(tmp_path: Path) -> None:
    assert network_of(load(written(tmp_path, with_network(), NEWER))).nodes[0].op.name == "cumsum"


def with_recipe(step: Any) -> Change:
    recipe = {"sources": ["w"], "steps": [step]}
    return lambda image: image.ours["weights"]["w"].update(recipe=recipe)


@pytest.mark.parametrize(
    "step", [["melt", 1, {"in": [0]}], ["take", 2, {"in": [0]}], ["cast", 1, {"in": [0], "dtype": "float32", "x": 1}]]
)
def test_recipes_of_a_newer_ingot_say_so(step: Any, tmp_path: Path) -> None:
    with pytest.raises(EngineVersionError, match=f"; written by {NEWER}.*use {NEWER} or newer"):
        recipes_of(load(written(tmp_path, with_recipe(step), NEWER)).header)
    with pytest.raises(IngotError) as caught:
        recipes_of(load(written(tmp_path, with_recipe(step), SAME)).header)
    assert (caught.type is EngineVersionError) == (step[1] == 2)


# ----------------------------------------------------------------------------------------------------------- producers


@pytest.mark.parametrize(("producer", "newer"), [
    ("ingot 99.0.0", True), ("ingot 0.1.1", True), ("ingot 0.10.0", True), ("ingot 1.0.0rc1", True),
    ("ingot 2.0.0.dev3+a1", True), (SAME, False), ("ingot 0.0.9", False), (f"{SAME}rc1", False), ("ingot 99", False),
    ("ingot 99.0", False), ("ingot 99.0.0 <b>", False), ("ingot 99.0.-1", False), ("ingot  99.0.0", False),
    ("ingot 99999999999999999999.0.0", False), (f"ingot 99.0.0{'0' * 60}", False), ("INGOT 99.0.0", False),
    ("onnx 99.0.0", False), ("99.0.0", False), ("", False), ("ingot 99.0.0\n", False), ("ingot ٩٩.0.0", False),
])  # fmt: skip
def test_which_producer_is_newer(producer: str, newer: bool) -> None:
    assert _native.is_newer(producer) is newer
    words = _native.who_reads(producer)
    assert f"this is {SAME}" in words and len(words) < 400 and words.isprintable()
    assert ("or newer" in words) is newer


@pytest.mark.parametrize("producer", [None, 3, ["ingot 99.0.0"], {}])
def test_a_producer_that_is_none_promises_nothing(producer: Any, tmp_path: Path, by_c: Any) -> None:
    path = written(tmp_path, lambda image: (ours(format=NEWEST + 1)(image), ours(producer=producer)(image)), SAME)
    for reader in (by_python, by_native, by_c):
        code, message = reader(path)
        assert code == "engine_version" and f"this is {SAME}" in message and "written by" not in message


def test_the_arrays_of_the_good_engine_are_what_they_were(tmp_path: Path) -> None:
    """A format number in the range is not only accepted: the engine runs."""
    feeds = {"x": np.ones((2, 8), np.float32), "ids": np.zeros(2, np.int32)}
    for number in range(OLDEST, NEWEST + 1):
        got = load(written(tmp_path, ours(format=number), SAME)).run(feeds)
        np.testing.assert_allclose(got["y"], 2.0, rtol=1e-4)
