"""Attacks by programs in programs (classes 26 to 37): the bodies of a loop, which the native core verifies."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from attacks.image import Image, engine

Program = dict[str, Any]

_ADD = {"steps": [["input", "float32", 0], ["input", "float32", 1], ["add", "float32", 0, 1]], "outputs": [2]}
_BELOW = {"steps": [["input", "float32", 0], ["const", "float32", 1e30], ["lt", "bool", 0, 1]], "outputs": [2]}


def _body(expression: Any, dtype: str = "float32") -> Program:
    """One number in, one out."""
    return {
        "symbols": [],
        "buffers": [{"kind": "input", "name": "a", "dtype": "float32", "shape": []},
                    {"kind": "temp", "dtype": dtype, "shape": []}],
        "calls": [{"kernel": "elementwise", "version": 1, "in": [0, 0][: 2 if expression is _ADD else 1], "out": [1],
                   "params": {"expression": expression}}],
        "outputs": [{"name": "b", "buffer": 1}],
    }  # fmt: skip


def _loop() -> Program:
    """a + a while a < 1e30."""
    bodies = [{"sizes": {}, "program": _body(_BELOW, "bool")}, {"sizes": {}, "program": _body(_ADD)}]
    return {"control": "while", "in": [], "out": [], "params": {"carried": 1, "limit": 300}, "bodies": bodies}


def add_loop(image: Image) -> Program:
    """Puts the loop that these attacks start from into an engine: of the last element of w, its result an output."""
    buffers, call = image.program["buffers"], copy.deepcopy(_loop())
    call["in"], call["out"] = [len(buffers)], [len(buffers) + 1]
    buffers.append({"kind": "view", "of": 2, "shape": [], "stride": [], "offset": 31})
    buffers.append({"kind": "temp", "dtype": "float32", "shape": []})
    image.program["outputs"].append({"name": "loop", "buffer": call["out"][0]})
    image.program["calls"].append(call)
    return call


def control(number: int, name: str, change: Callable[[Program], object], why: str, code: str = "program") -> None:
    """An engine with a loop that `change` alters in place."""

    def content(image: Image) -> None:
        change(add_loop(image))

    engine(number, name, content, native=(code, why))


def _inner(*path: Any, value: Any) -> Callable[[Program], None]:
    def change(call: Program) -> None:
        at: Any = call["bodies"]
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value

    return change


def _deep(call: Program) -> None:
    for _ in range(20):
        inner = copy.deepcopy(call)
        call["bodies"][1]["program"]["calls"] = [inner | {"in": [0], "out": [1]}]


control(33, "a loop of 2^62 rounds", lambda c: c["params"].update(limit=2**62), "limit")
control(33, "a loop of -1 rounds", lambda c: c["params"].update(limit=-1), "limit")
control(33, "loops 20 deep", _deep, "deep", "program|engine_file")
control(28, "an unknown way of control", lambda c: c.update(control="exec"), "exec")
control(29, "a loop without bodies", lambda c: c.update(bodies=[]), "bodies")
control(29, "a loop that carries more than it has", lambda c: c["params"].update(carried=9), "carries")
control(29, "a body that is a path", lambda c: c.update(bodies=["../../etc/passwd", 1]), "calls")
control(27, "a body that reads what is outside", _inner(1, "program", "calls", 0, "in", value=[0, 3]), "3")
control(27, "a body that writes its input", _inner(1, "program", "calls", 0, "out", value=[0]), "temp")
control(27, "a body that gives its input", _inner(1, "program", "outputs", 0, "buffer", value=0), "temp")
control(27, "a body that gives what nothing writes", _inner(1, "program", "calls", value=[]), "before")
control(16, "a body of other sizes", _inner(1, "program", "buffers", 0, "shape", value=[4]), "rank")
control(28, "a body with a host call", _inner(1, "program", "calls", 0, value={
    "host": "nonzero", "version": 1, "in": [0], "out": [1], "params": {}}), "host")  # fmt: skip
control(28, "a body with an unknown kernel", _inner(1, "program", "calls", 0, "kernel", value="run_shell"), "run_shell",
        "program|kernel_refused")  # fmt: skip
control(27, "a size out of nothing", _inner(1, "sizes", value={"T": "N"}), "no symbol")
