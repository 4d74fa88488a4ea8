"""Programs in programs: what the core runs of them, and what it refuses, whose shapes and numbers no file is trusted
with."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingot import _native
from ingot import functional as F
from ingot.builder.network import build_network
from ingot.dims import Dim
from ingot.errors import ValueFault
from ingot.ir import Network, Spec
from ingot.ir.interpret import interpret
from tests.functional.test_control import NETS, recorded
from tests.native.engines import WEIGHTS, Program, count_down, header, running, symbol
from tests.native.test_c_api import compiled

Json = Any
Change = Callable[[dict[str, Any]], object]


def opened(program: Json) -> _native.Engine:
    return _native.Engine.from_memory(json.dumps(header(main=program)).encode(), WEIGHTS)


def session(program: Json, threads: int = 1) -> _native.Session:
    return _native.Session(opened(program), "main", threads)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_loop(threads: int) -> None:
    found = session(count_down().json, threads)
    for i, t in ((3, 4), (0, 4), (5, 0), (1, 1), (100, 2), (3, 4)):
        a = np.arange(1, t + 1, dtype=np.float32)
        got = found.run({"i": np.array(i, np.float32), "a": a})
        assert got["i"] == 0 and got["kept"].shape == (i, t)
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(got["a"], a * np.float32(2.0**i))
            np.testing.assert_array_equal(got["kept"], a * 2.0 ** np.arange(2, i + 2, dtype=np.float32)[:, None])
    with pytest.raises(_native.Error, match="while.call: while: the condition still holds after 100 rounds") as e:
        found.run({"i": np.array(101, np.float32), "a": np.zeros(1, np.float32)})
    assert e.value.code == "value"


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_with_a_choice(reverse: bool) -> None:
    program = running().json
    program["calls"][0]["params"]["reverse"] = reverse
    found = session(program)
    for t in (4, 1, 0):
        x, start = np.random.default_rng(t).standard_normal((t, 8)).astype(np.float32), np.ones(8, np.float32)
        for flag in (True, False):
            got = found.run({"x": x, "start": start, "flag": np.array(flag)})
            rows = (x[::-1] if reverse else x) + (WEIGHTS["w"] if flag else 0)
            want = np.cumsum(np.concatenate([start[None], rows]), 0)
            np.testing.assert_allclose(got["end"], want[-1], rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(got["all"], want[1:][::-1] if reverse else want[1:], rtol=1e-5, atol=1e-5)


def test_memory() -> None:
    """The arenas of bodies are in the plan, one for bodies that take turns."""
    found = session(running().json)
    sizes = {"T": 64, "C": 8}
    planned = found.planned(sizes)
    assert planned["working"] >= 3 * 64, "the sum of a branch, that with the weight, and what the scan's body carries"
    x = np.zeros((64, 8), np.float32)
    found.run({"x": x, "start": x[0], "flag": np.array(True)})
    assert found.memory()["arena"] == planned["arena"] and found.memory()["weights"] == 32


def test_a_call_that_is_profiled() -> None:
    x = np.zeros((3, 8), np.float32)
    (item,) = session(running().json).profile({"x": x, "start": x[0], "flag": np.array(True)})
    assert item["control"] == "scan" and item["ns"] > 0 and item["out"][1] == ("float32", [3, 8])


# ------------------------------------------------------------------------------------------------------------ refusals
def _call(program: Json) -> Json:
    return program["calls"][0]


def _inner(*path: Any, value: Any) -> Change:
    """Sets a member of the call's bodies: 0, "program", … ."""

    def change(program: Json) -> None:
        place = _call(program)["bodies"]
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


def _own(value: Json) -> Change:
    return lambda program: _call(program).update(value)


def _params(value: Json) -> Change:
    return lambda program: _call(program)["params"].update(value)


def _append(*path: Any, value: Any) -> Change:
    def change(program: Json) -> None:
        place = _call(program)["bodies"]
        for key in path:
            place = place[key]
        place.append(value)

    return change


HOST = {"host": "pick", "version": 1, "in": [0], "out": [2], "params": {}}
STATE = {"kind": "state", "name": "kv", "dtype": "float32", "state": {"type": "kv_cache", "heads": 1, "head_dim": 16}}
LOOP: dict[str, tuple[Change, str]] = {
    "an unknown kind": (_own({"control": "goto"}), "the control 'goto' is unknown"),
    "no bodies": (_own({"bodies": []}), "it has 0 bodies, and needs 2"),
    "three bodies": (_append(value={}), "bodies"),
    "a body that is no object": (_inner(0, value=[]), "calls[0]"),
    "a body with a version": (_inner(0, "program", "version", value=1), "'version' is unknown"),
    "an unknown key": (_inner(0, "program", "extra", value=1), "'extra' is unknown"),
    "a body with a host call": (_inner(1, "program", "calls", 0, value=HOST), "a body has no host calls"),
    "a body with a state": (_append(1, "program", "buffers", value=STATE), "a body has no states"),
    "a size that is missing": (_inner(1, "sizes", value={}), "sizes: 'T' is missing"),
    "a size of no symbol": (_inner(1, "sizes", "Z", value=1), "the body has no symbol 'Z'"),
    "a size out of nothing": (_inner(1, "sizes", "T", value="Z"), "'Z' is not declared"),
    "a size that is bound by the call itself": (_inner(1, "sizes", "T", value="n"), "sizes that are not bound yet"),
    "a limit of 0": (_params({"limit": 0}), "limit"),
    "a limit of 2^62": (_params({"limit": 2**62}), "limit"),
    "too much carried": (_params({"carried": 4}), "carries more"),
    "a negative number carried": (_params({"carried": -1}), "carried"),
    "an unknown parameter": (_params({"speed": 1}), "'speed' is unknown"),
    "nothing bound": (_own({"binds": []}), "it must bind one symbol"),
    "an input less": (lambda p: _call(p)["in"].pop(), "carries or scans more|has 2 inputs for 1"),
    "a result less": (lambda p: _call(p)["out"].pop(), "it has nothing to bind"),
    "a condition of two results": (_append(0, "program", "outputs", value={"name": "b", "buffer": 2}), "one bool[]"),
    "a condition that is a float": (_inner(0, "program", "buffers", 2, "dtype", value="float32"), "one bool[]"),
    "a condition that is an input": (_inner(0, "program", "outputs", 0, "buffer", value=0), "no temp"),
    "an output that is an input": (_inner(1, "program", "outputs", 1, "buffer", value=1), "no temp"),
    "an output that nothing writes": (_inner(1, "program", "calls", value=[]), "before any call wrote it"),
    "an output of another type": (_inner(1, "program", "outputs", 0, "buffer", value=3), "differ in type or rank"),
    "an input of another type": (_inner(1, "program", "buffers", 1, "dtype", value="int64"), "differ in type or rank"),
    "a kernel that is not here": (_inner(1, "program", "calls", 0, "kernel", value="run_shell"), "run_shell"),
    "a buffer out of range": (_inner(1, "program", "calls", 0, "in", value=[99]), "99"),
}


@pytest.mark.parametrize("name", LOOP)
def test_what_the_verifier_refuses(name: str) -> None:
    change, why = LOOP[name]
    program = copy.deepcopy(count_down().json)
    change(program)
    with pytest.raises(_native.Error) as e:
        session(program)
    assert e.value.code in ("program", "kernel_refused")
    assert any(part in str(e.value) for part in why.split("|")), str(e.value)


SCAN: dict[str, tuple[Change, str]] = {
    "another length": (_params({"length": ["+", "T", 1]}), "does not fit the body's"),
    "a negative length": (_params({"length": -1}), "its length would be -1"),
    "another size": (_inner(0, "sizes", "C", value=["+", "C", 1]), "does not fit the body's|broadcast"),
    "a size in another place": (_inner(0, "program", "buffers", 1, "shape", value=[3]), "does not fit the body's"),
    "a size above the body's": (_inner(0, "program", "symbols", 0, "max", value=2), "C=8 is not in 0 … 2"),
    "a body as large as nothing can be": (
        _inner(0, "program", "buffers", 3, "shape", value=[2**40]), "TiB|does not fit|elements"),
}  # fmt: skip


@pytest.mark.parametrize("name", SCAN)
def test_what_the_planner_refuses(name: str) -> None:
    change, why = SCAN[name]
    program = copy.deepcopy(running().json)
    change(program)
    found = session(program)
    x = np.zeros((3, 8), np.float32)
    with pytest.raises(_native.Error) as e:
        found.run({"x": x, "start": x[0], "flag": np.array(True)})
    assert e.value.code in ("input", "memory", "kernel_refused", "program")
    assert any(part in str(e.value) for part in why.split("|")), str(e.value)


def test_nesting() -> None:
    inner: Program = Program()
    inner.input("a", [])
    inner.output("a", inner.binary("add", 0, 0, []))
    for depth in range(1, 30):
        outer = Program()
        a = outer.input("a", [])
        b = outer.temp([])
        rounds = 2 if depth < 6 else 1
        outer.control("scan", [a], [b], [({}, inner)], carried=1, scanned=0, length=rounds, reverse=False)
        outer.output("a", b)
        inner = outer
        if depth <= 8:
            got = session(outer.json).run({"a": np.array(1, np.float32)})["a"]
            assert got == 2.0 ** (2 ** min(depth, 5))
    with pytest.raises(_native.Error, match="deep") as e:
        session(inner.json)
    assert e.value.code in ("program", "engine_file")


def test_rounds_of_all_loops_together() -> None:
    """Scans of nothing: no bytes, and no end but for the number of their rounds."""
    body = Program()
    body.input("x", [0])
    body.output("y", body.binary("add", 0, 0, [0]))
    p = Program(symbol("T"))
    p.input("x", ["T", 0])
    y = p.temp(["T", 0])
    p.control("scan", [0], [y], [({}, body)], carried=0, scanned=1, length="T", reverse=False)
    p.output("y", y)
    few = _native.Session(opened(p.json), "main", 1, rounds=50)
    for t in (50, 50):  # each run counts anew
        assert few.run({"x": np.zeros((t, 0), np.float32)})["y"].shape == (t, 0)
    with pytest.raises(_native.Error, match="scan.call: scan: the loops of this run take more than 50 rounds") as e:
        few.run({"x": np.zeros((51, 0), np.float32)})
    assert e.value.code == "value"


def test_rounds_of_loops_in_loops_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the core and in the interpreter: 4 rounds, of 3 and 2 and 1 and 0 rounds inside."""
    network, _ = recorded("a loop in a loop")
    program = build_network(network, {})
    feeds = {"x": np.ones((2, 1, 5), np.float32), "n": np.array(4, np.int32)}
    for rounds in (10, 9):
        few = _native.Session(program._native, "main", 1, rounds=rounds)
        monkeypatch.setattr(sys.modules[interpret.__module__], "MAX_ROUNDS", rounds)
        if rounds == 10:
            few.run(feeds), interpret(network, feeds)
            continue
        why = rf"while.*: the loops of this run take more than {rounds} rounds together"
        with pytest.raises(_native.Error, match=why):
            few.run(feeds)
        with pytest.raises(ValueFault, match=why):
            interpret(network, feeds)


# ----------------------------------------------------------------------------------------------------------- C program
@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """run_engine.c"""
    return compiled("run_engine", tmp_path_factory.mktemp("c"))


@pytest.mark.parametrize("name", ["a loop of ONNX", "an LSTM", "a scan that carries nothing", "a choice"])
def test_from_c(program: Path, tmp_path: Path, name: str) -> None:
    """What users of C run: no host call is left, and the numbers are NumPy's."""
    from_numpy = NETS[name].numpy
    network, weights = recorded(name, more=4)
    engine = build_network(network, weights)
    path = tmp_path / "net.ingot"
    engine.save(path)
    ran = subprocess.run([program, path, "2"], capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr
    x = (np.arange(2 * 2 * 5) % 3).astype(np.float32).reshape(2, 2, 5)
    want = from_numpy(x, np.array(4, np.int32), *weights.values())
    lines = dict(line.split(" =") for line in ran.stdout.splitlines() if " =" in line)
    for i, wanted in enumerate(want if isinstance(want, tuple) else (want,)):
        if wanted.dtype == np.float32:
            got = np.array([float(v) for v in lines[f"y{i}"].split()])
            np.testing.assert_allclose(got, wanted.reshape(-1)[:8], rtol=1e-4, atol=1e-5)


def test_sizes_that_are_data_from_c(program: Path, tmp_path: Path) -> None:
    """A range, a reshape, a slice and a padding by numbers that a net computes of its data."""
    network = Network()
    n = F.cast(F.sum(network.input("x", Spec((Dim("T"),), "float32")), 0), "int32")
    row = F.cast(F.arange(0, n * 2, "int32"), "float32")
    network.output("range", row)
    network.output("view", F.view(row, F.stack([n, F.constant(np.array(2, np.int32))])))
    network.output("slice", F.slice(row, F.unsqueeze(n - 1, 0), F.unsqueeze(n, 0)))
    network.output("pad", F.pad(row, F.stack([n, F.constant(np.array(1, np.int32))]), value=9.0))
    path = tmp_path / "net.ingot"
    build_network(network, {}).save(path)
    ran = subprocess.run([program, path, "3"], capture_output=True, text=True, check=False, timeout=60)  # x = 0, 1, 2
    assert ran.returncode == 0, ran.stderr
    assert "range = 0 1 2 3 4 5\nview = 0 1 2 3 4 5\nslice = 2 3 4\npad = 9 9 9 0 1 2 3 4\n" in ran.stdout
