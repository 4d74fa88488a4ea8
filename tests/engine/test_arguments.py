"""Whatever an engine and its sessions are given that makes no sense ends in an error of ours that names it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ingot.builder.network import build_network
from ingot.dims import Dim
from ingot.engine.session import Engine
from ingot.errors import IngotError
from ingot.ir import F, Network, Spec

Array = np.ndarray[Any, Any]
X = np.ones((2, 4), np.float32)


@cache
def engine() -> Engine:
    """y = 2x of x [N, 4]."""
    net = Network("double")
    x = net.input("x", Spec((Dim("N", 0, None, 8), 4), "float32"))
    net.outputs["y"] = F.add(x, x)
    return build_network(net, {})


def overlapping() -> Array:
    return np.lib.stride_tricks.as_strided(np.zeros(4, np.float32), (2, 4), (0, 4))


def read_only() -> Array:
    array = np.zeros((2, 4), np.float32)
    array.flags.writeable = False
    return array


class Strange:
    """Neither an array nor a number, though it says so."""

    def __dlpack__(self) -> None:
        raise RuntimeError("no")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


WRONG: dict[str, tuple[str, Callable[[], object]]] = {
    "entry of another name": ("argument", lambda: engine().session(entry="nope")),
    "entry of no name": ("argument", lambda: engine().session(entry="")),
    "entry that is no text": ("argument", lambda: engine().session(entry=3)),  # type: ignore[arg-type]
    "entry that is an array": ("argument", lambda: engine().session(entry=X)),  # type: ignore[arg-type]
    "entry with half a character": ("argument", lambda: engine().session(entry="\ud800")),
    "threads as text": ("argument", lambda: engine().session("x")),  # type: ignore[arg-type]
    "threads as a fraction": ("argument", lambda: engine().session(1.5)),  # type: ignore[arg-type]
    "threads as a bool": ("argument", lambda: engine().session(True)),
    "threads as an array": ("argument", lambda: engine().session(X)),  # type: ignore[arg-type]
    "threads below 0": ("argument", lambda: engine().session(-1)),
    "threads beyond all processors": ("argument", lambda: engine().session(10**6)),
    "threads beyond 32 bits": ("argument", lambda: engine().session(2**31)),
    "threads beyond 64 bits": ("argument", lambda: engine().session(2**70)),
    "kv_blocks below 0": ("argument", lambda: engine().session(kv_blocks=-1)),
    "kv_blocks as text": ("argument", lambda: engine().session(kv_blocks="x")),  # type: ignore[arg-type]
    "kv_blocks as nothing": ("argument", lambda: engine().session(kv_blocks=None)),  # type: ignore[arg-type]
    "kv_blocks beyond 64 bits": ("argument", lambda: engine().session(kv_blocks=2**64)),
    "kv_block_size of 0": ("argument", lambda: engine().session(kv_block_size=0)),
    "kv_block_size as a fraction": ("argument", lambda: engine().session(kv_block_size=16.0)),  # type: ignore[arg-type]
    "no inputs": ("input", lambda: engine().run({})),
    "inputs as nothing": ("input", lambda: engine().run(None)),  # type: ignore[arg-type]
    "an array too many": ("input", lambda: engine()(X, X)),
    "an array given twice": ("input", lambda: engine()(X, x=X)),
    "inputs as pairs": ("input", lambda: engine().run([("x", X)])),  # type: ignore[arg-type]
    "an input by number": ("input", lambda: engine().run({1: X})),  # type: ignore[dict-item]
    "an input too many": ("input", lambda: engine().run({"x": X, "\ud800": X})),
    "an input as a list": ("input", lambda: engine().run({"x": [[1.0]]})),
    "an input of objects": ("input", lambda: engine().run({"x": np.array([object()])})),
    "an input of records": ("input", lambda: engine().run({"x": np.zeros(2, [("a", "f4")])})),
    "an input of another type": ("input", lambda: engine().run({"x": X.astype(np.float64)})),
    "an input of another byte order": ("input", lambda: engine().run({"x": X.astype(">f4")})),
    "an input of another rank": ("input", lambda: engine().run({"x": X[0]})),
    "an input of 30 dimensions": ("input", lambda: engine().run({"x": np.zeros((1,) * 30, np.float32)})),
    "an input beyond its bounds": ("input", lambda: engine().run({"x": np.zeros((9, 4), np.float32)})),
    "an input that strange": ("input", lambda: engine().run({"x": Strange()})),
    "out as an array": ("input", lambda: engine().run({"x": X}, X)),  # type: ignore[arg-type]
    "out as a list": ("input", lambda: engine().run({"x": X}, [])),  # type: ignore[arg-type]
    "out as 0": ("input", lambda: engine().run({"x": X}, 0)),  # type: ignore[arg-type]
    "out by another name": ("input", lambda: engine().run({"x": X}, {"z": X})),
    "out by number": ("input", lambda: engine().run({"x": X}, {1: X})),  # type: ignore[dict-item]
    "out of another type": ("input", lambda: engine().run({"x": X}, {"y": np.zeros((2, 4), np.int32)})),
    "out of another shape": ("input", lambda: engine().run({"x": X}, {"y": np.zeros((3, 4), np.float32)})),
    "out as nothing": ("input", lambda: engine().run({"x": X}, {"y": None})),  # type: ignore[dict-item]
    "out that is read-only": ("input", lambda: engine().run({"x": X}, {"y": read_only()})),
    "out that overlaps itself": ("input", lambda: engine().run({"x": X}, {"y": overlapping()})),
    "a profile of no inputs": ("input", lambda: engine().session().profile(None)),  # type: ignore[arg-type]
    "a plan without sizes": ("argument", lambda: engine().session().planned({})),
    "a plan of nothing": ("argument", lambda: engine().session().planned(None)),  # type: ignore[arg-type]
    "a plan of text": ("argument", lambda: engine().session().planned({"N": "x"})),  # type: ignore[dict-item]
    "a plan of an array": ("argument", lambda: engine().session().planned({"N": X})),  # type: ignore[dict-item]
    "a plan beyond 64 bits": ("argument", lambda: engine().session().planned({"N": 2**64})),
    "a plan of fewer than nothing": ("argument", lambda: engine().session().planned({"N": -1})),
    "a plan by number": ("argument", lambda: engine().session().planned({1: 1})),  # type: ignore[dict-item]
    "a plan by half a character": ("argument", lambda: engine().session().planned({"N": 1, "\ud800": 1})),
    "a tensor that is not there": ("usage", lambda: engine().tensor("nope")),
    "a tensor by number": ("usage", lambda: engine().tensor(3)),  # type: ignore[arg-type]
    "a tensor by a list": ("usage", lambda: engine().tensor([])),  # type: ignore[arg-type]
    "a tensor by half a character": ("usage", lambda: engine().tensor("\ud800")),
    "a load of nothing": ("io", lambda: ingot.load("")),
    "a load of a number": ("io", lambda: ingot.load(3)),  # type: ignore[arg-type]
    "a load of a zero byte": ("io", lambda: ingot.load("a\0b")),
    "a load of half a character": ("io", lambda: ingot.load("\ud800")),
    "a load of no file": ("io", lambda: ingot.load(b"/nowhere/x.ingot")),  # type: ignore[arg-type]
    "a save to nothing": ("io", lambda: engine().save("")),
    "a save to a folder": ("io", lambda: engine().save("/")),
    "a save to a zero byte": ("io", lambda: engine().save("/tmp/a\0b")),
    "a save to a number": ("io", lambda: engine().save(3)),  # type: ignore[arg-type]
    "a save to half a character": ("io", lambda: engine().save("/tmp/\ud800")),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_makes_no_sense_is_refused(name: str) -> None:
    code, call = WRONG[name]
    with pytest.raises(IngotError) as raised:
        call()
    assert raised.value.code == code, raised.value
    assert 10 < len(str(raised.value)) < 500


def test_what_makes_sense_is_taken(tmp_path: Path) -> None:
    """Ints of NumPy, paths as bytes, and an empty `out`."""
    path = str(tmp_path / "é.ingot").encode()
    engine().save(path)  # type: ignore[arg-type]
    session = ingot.load(path).session(np.int64(1), kv_block_size=np.int32(16))  # type: ignore[arg-type]
    assert session.threads == 1 and session.planned({"N": np.int64(2)}).arena > 0  # type: ignore[dict-item]
    np.testing.assert_array_equal(session.run({"x": X}, {})["y"], 2 * X)
