"""The verifier of programs: each rule refuses what breaks it, and says where."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from ingot import _native
from tests.native.engines import WEIGHTS, Program, attend, chain, header, normalise, select, symbol

Change = Callable[[dict[str, Any]], object]


def opened(program: dict[str, Any]) -> _native.Engine:
    return _native.Engine.from_memory(json.dumps(header(main=program)).encode(), WEIGHTS)


@pytest.mark.parametrize("make", [chain, normalise, attend, select])
def test_good_programs(make: Callable[[], Program]) -> None:
    assert opened(make().json).entries() == ["main"]


def _set(*path: Any) -> Change:
    """Sets the member at a path; the last item is the value."""

    def change(program: dict[str, Any]) -> None:
        *keys, last, value = path
        place: Any = program
        for key in keys:
            place = place[key]
        place[last] = value

    return change


def _drop(*path: Any) -> Change:
    def change(program: dict[str, Any]) -> None:
        place: Any = program
        for key in path[:-1]:
            place = place[key]
        del place[path[-1]]

    return change


def _deep(depth: int) -> Any:
    dim: Any = "T"
    for _ in range(depth):
        dim = ["+", dim, 1]
    return dim


# In `normalise`: buffers 0 x, 1 ids, 2 w, 3 table, 4 y, 5 view of y, 6 dense, 7 rows; calls rms_norm, copy, take.
BAD: dict[str, tuple[Change, str]] = {
    "unknown key": (_set("extra", 1), "program[0]: the key 'extra' is unknown"),
    "missing key": (_drop("outputs"), "the key 'outputs' is missing"),
    "wrong type": (_set("calls", {}), "calls: an array is needed"),
    "version": (_set("version", "1"), "version: an integer is needed"),
    "symbol twice": (lambda p: p["symbols"].append(symbol("T")), "symbols[1]: the name 'T' occurs twice"),
    "symbol that nothing binds": (lambda p: p["symbols"].append(symbol("U")), "symbols[1]: no input has 'U'"),
    "unbacked, never bound": (lambda p: p["symbols"].append(symbol("n", unbacked=True)), "no call binds it"),
    "symbol with a bad name": (_set("symbols", 0, "name", "a b"), "'a b' is no identifier"),
    "max below min": (_set("symbols", 0, "max", 0), "max: 0 is not in 1"),
    "unknown kind": (_set("buffers", 0, "kind", "pointer"), "buffers[0]: the kind 'pointer' is unknown"),
    "unknown dtype": (_set("buffers", 4, "dtype", "float8"), "buffers[4]: the dtype 'float8' is unknown"),
    "a key of another kind": (_set("buffers", 4, "tensor", "w"), "buffers[4]: the key 'tensor' is unknown"),
    "undeclared symbol": (_set("buffers", 4, "shape", ["U", 8]), "buffers[4]: the symbol 'U' is not declared"),
    "negative dimension": (_set("buffers", 4, "shape", [-1, 8]), "buffers[4]: shape: the dimension -1 is negative"),
    "rank 9": (_set("buffers", 4, "shape", [1] * 9), "9 entries; at most 8"),
    "a float dimension": (_set("buffers", 4, "shape", [1.5]), "a dimension is an integer"),
    "unknown operator": (_set("buffers", 4, "shape", [["**", "T", 2]]), "the dimension operator '**' is unknown"),
    "deep dimension": (_set("buffers", 4, "shape", [_deep(100)]), "nested deeper than 64"),
    "input name twice": (_set("buffers", 1, "name", "x"), "buffers[1]: the name 'x' occurs twice"),
    "view of a later buffer": (_set("buffers", 5, "of", 6), "of: 6 is not in 0 … 4"),
    "view of a view": (lambda p: p["buffers"].append(p["buffers"][5] | {"of": 5}), "only inputs, weights and temps"),
    "view of another rank": (_set("buffers", 5, "stride", [1]), "shape and stride have different lengths"),
    "operand out of range": (_set("calls", 0, "in", [0, 99]), "calls[0]: in: 99 is not the number of a buffer"),
    "operand negative": (_set("calls", 0, "in", [0, -1]), "calls[0]: in: -1 is not"),
    "operand no number": (_set("calls", 0, "in", [0, True]), "calls[0]: in: true is not"),
    "read before written": (_set("calls", 0, "in", [7, 2]), "calls[0]: buffer 7 is read before any call wrote it"),
    "written twice": (_set("calls", 2, "out", [6]), "calls[2]: out: buffer 6 is written twice"),
    "written after read": (_set("calls", 2, "out", [4]), "calls[2]: out: buffer 4 is written after it was read"),
    "input written": (_set("calls", 2, "out", [0]), "calls[2]: out: buffer 0 is no temp"),
    "weight written": (_set("calls", 2, "out", [2]), "calls[2]: out: buffer 2 is no temp"),
    "cycle": (_set("calls", 0, "in", [4, 2]), "calls[0]: buffer 4 is read before any call wrote it"),
    "params no object": (_set("calls", 0, "params", []), "calls[0]: params: an object is needed"),
    "a kernel that binds": (_set("calls", 0, "binds", ["T"]),
                            "calls[0]: binds: its only result must be a temp int64[1]"),
    "output never written": (_set("calls", 2, "out", []), "outputs[1]: buffer 7 is read before any call wrote it"),
    "output name twice": (_set("outputs", 1, "name", "turned"), "outputs[1]: the name 'turned' occurs twice"),
    "output out of range": (_set("outputs", 1, "buffer", 8), "buffer: 8 is not in 0 … 7"),
    "weight of a dynamic shape": (_set("buffers", 3, "shape", ["T", 8]), "buffers[3]: the shape of a weight"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_rule(case: str) -> None:
    change, message = BAD[case]
    program = normalise().json
    change(program)
    with pytest.raises(_native.Error) as caught:
        opened(program)
    assert caught.value.code in ("program", "engine_file")
    assert message in str(caught.value)


def test_states_are_for_kernels() -> None:
    program = attend()
    program.output("state", 7)
    with pytest.raises(_native.Error, match="buffer 7 is a state, which only kernels use"):
        opened(program.json)
    program = attend()
    program.json["calls"][0]["out"] = [7]
    with pytest.raises(_native.Error, match="buffer 7 is no temp"):
        opened(program.json)
    program = attend()
    program.json["buffers"][7]["state"]["heads"] = 0
    with pytest.raises(_native.Error, match="heads: 0 is not in"):
        opened(program.json)


def test_unbacked_rules() -> None:
    program = select()
    program.json["calls"].reverse()
    with pytest.raises(_native.Error, match="is used before the symbols in its shape are bound|read before any call"):
        opened(program.json)
    program = select()
    del program.json["calls"][0]["binds"]
    with pytest.raises(_native.Error, match=r"symbols\[1\]: it is unbacked"):
        opened(program.json)
    program = select()
    program.json["calls"][0]["binds"] = ["T"]
    with pytest.raises(_native.Error, match="binds: 'T' is bound elsewhere"):
        opened(program.json)
    program = select()
    program.json["buffers"][1]["shape"] = [["+", "n", 1]]
    with pytest.raises(_native.Error, match="binds: no result has 'n'"):
        opened(program.json)


def test_weights_must_be_the_files() -> None:
    for tensors, message in (
        ({"w": WEIGHTS["w"]}, "the weight 'table' is not in the file"),
        (WEIGHTS | {"w": WEIGHTS["w"][:4]}, "the weight 'w' is float32.8. in the program and has another"),
        (WEIGHTS | {"w": WEIGHTS["w"].view("int32")}, "the weight 'w' is float32.8. in the program and has another"),
    ):
        engine = _native.Engine.from_memory(json.dumps(header(main=normalise().json)).encode(), tensors)
        with pytest.raises(_native.Error, match=message) as caught:
            _native.Session(engine)
        assert caught.value.code == "program"


def test_kernels_that_are_not_here_are_all_named() -> None:
    program = normalise()
    program.json["calls"][0]["kernel"] = "magic"
    program.json["calls"][1]["version"] = 9
    program.json["calls"][2]["params"] = {"axis": "x"}
    with pytest.raises(_native.Error) as caught:
        _native.Session(opened(program.json))
    assert caught.value.code == "engine_version", "one kernel is of a version that is not here"
    message = str(caught.value)
    assert "magic in 'norm': this ingot has no kernel 'magic';" in message
    assert "no kernel 'copy' of version 9, only of version 1" in message
    assert "take in 'rows':" in message
    program.json["calls"][1]["version"] = 1
    with pytest.raises(_native.Error, match="'magic'") as caught:
        _native.Session(opened(program.json))
    assert caught.value.code == "kernel_refused"
