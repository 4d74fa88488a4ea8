"""count_nonzero and nonzero against NumPy, and programs whose kernels bind sizes as they run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from ingot import _native
from tests.kernels.support import Array, run, same_bits
from tests.kernels.test_order import EVERY, layouts, numbers

SHAPES = ((7,), (1, 1), (5, 9, 2), (2, 0, 3), (3, 2, 2, 4, 3))


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_where_elements_are_not_zero(dtype: Any) -> None:
    """Both zeros are zero, NaN and the smallest numbers are not; any strides and number of threads."""
    for shape in SHAPES:
        x = numbers(dtype, *shape)
        x[np.random.default_rng(1).random(shape) < 0.4] = 0
        want = np.stack(np.nonzero(x)).astype(np.int64)
        for layout in layouts(x):
            for threads in (1, 3):
                (size,) = run("count_nonzero", [layout], [("int64", (1,))], threads)
                assert size == [want.shape[1]]
                (places,) = run("nonzero", [layout], [("int64", want.shape)], threads)
                assert same_bits(places, want)


def test_another_size_than_there_are_elements_is_an_error() -> None:
    x = np.array([[1, 0, 2], [0, 0, 3]], np.float32)
    for threads, size in ((1, 2), (3, 4), (2, 7)):
        with pytest.raises(_native.Error, match=f"nonzero: the output has another size .*3, limit {size}") as caught:
            run("nonzero", [x], [("int64", (2, size))], threads)
        assert caught.value.code == "value"
    for kernel, shape, message in (
        ("nonzero", (3, 3), "the output has shape"),
        ("nonzero", (6,), "the output has rank 1"),
        ("count_nonzero", (2,), "the output has shape"),
    ):
        with pytest.raises(_native.Error, match=message) as caught:
            run(kernel, [x], [("int64", shape)])
        assert caught.value.code == "kernel_refused"
    with pytest.raises(_native.Error, match="at least one dimension"):
        run("count_nonzero", [np.array(1, np.float32)], [("int64", (1,))])


# ---- sizes that kernels give


def program(**changes: Any) -> dict[str, Any]:
    """Places of the non-zero elements of x, and the sum of one for each: what follows a size that a kernel gives."""
    symbols = [{"name": "N", "min": 0, "max": 1000}, {"name": "n", "min": 0, "max": 50, "unbacked": True}]
    buffers = [
        {"kind": "input", "name": "x", "dtype": "float32", "shape": ["N", 3]},
        {"kind": "temp", "dtype": "int64", "shape": [1]},
        {"kind": "temp", "dtype": "int64", "shape": [2, "n"]},
        {"kind": "temp", "dtype": "int64", "shape": [2]},
        {"kind": "temp", "dtype": "float32", "shape": ["N", 3]},
    ]
    calls = [
        {"kernel": "copy", "in": [0], "out": [4]},
        {"kernel": "count_nonzero", "in": [4], "out": [1], "binds": ["n"], "where": "mask"},
        {"kernel": "nonzero", "in": [4], "out": [2]},
        {"kernel": "reduce", "in": [2], "out": [3], "params": {"op": "sum", "axes": [1], "keepdims": False}},
    ]
    made = {"symbols": symbols, "buffers": buffers, "calls": calls, "outputs": {"places": 2, "sums": 3, "size": 1}}
    return {**made, **changes}


def opened(made: Mapping[str, Any], threads: int = 1) -> Any:
    whole = {
        "version": 1, "symbols": made["symbols"], "buffers": made["buffers"],
        "calls": [{"version": 1, "params": {}, "where": "", **call} for call in made["calls"]],
        "outputs": [{"name": name, "buffer": buffer} for name, buffer in made["outputs"].items()],
    }  # fmt: skip
    header = {"format": 1, "programs": {"cpu": {"entries": {"main": whole}}}}
    return _native.Session(_native.Engine.from_memory(json.dumps(header).encode(), {}), threads=threads)


def sample(rows: int, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    return np.where(rng.random((rows, 3)) < 0.4, rng.standard_normal((rows, 3)), 0).astype(np.float32)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_kernel_binds_a_size(threads: int) -> None:
    """The same session at many sizes, none and all included."""
    session = opened(program(), threads)
    for seed, rows in enumerate((5, 0, 9, 5, 16, 1, 30)):
        x = sample(rows, seed)
        found = session.run({"x": x})
        want = np.stack(np.nonzero(x)).astype(np.int64)
        assert same_bits(found["places"], want) and same_bits(found["sums"], want.sum(1))
        assert found["size"] == [want.shape[1]]
    assert session.run({"x": np.zeros((4, 3), np.float32)})["places"].shape == (2, 0)
    assert session.run({"x": np.ones((4, 3), np.float32)})["places"].shape == (2, 12)
    profile = session.profile({"x": np.ones((4, 3), np.float32)})
    assert [call["kernel"] for call in profile] == ["copy", "count_nonzero", "nonzero", "reduce"]


def test_a_size_outside_its_bounds_is_an_error() -> None:
    """And the session goes on."""
    session = opened(program())
    with pytest.raises(_native.Error, match=r"mask: count_nonzero.* has n=60, which is not in 0 … 50") as caught:
        session.run({"x": np.ones((20, 3), np.float32)})
    assert caught.value.code == "value"
    assert session.run({"x": np.ones((2, 3), np.float32)})["size"] == [6]


def changed(where: str, index: int, **changes: Any) -> dict[str, Any]:
    made = program()
    made[where][index] = {**made[where][index], **changes}
    return made


@pytest.mark.parametrize(("made", "message"), [
    (changed("buffers", 1, shape=[2]), r"binds: its only result must be a temp int64\[1\]"),
    (changed("buffers", 1, shape=["N"]), r"must be a temp int64\[1\]"),
    (changed("buffers", 1, shape=[]), r"must be a temp int64\[1\]"),
    (changed("buffers", 1, dtype="int32"), r"must be a temp int64\[1\]"),
    (changed("calls", 1, out=[1, 3]), r"must be a temp int64\[1\]"),
    (changed("calls", 1, binds=["n", "n"]), r"must be a temp int64\[2\]"),
    (changed("calls", 1, binds=["N"]), "is bound elsewhere"),
    (changed("calls", 1, binds=["m"]), "only names of declared symbols"),
    (changed("calls", 1, binds=[]), "it is unbacked and no call binds it"),
    (changed("calls", 0, binds=["n"]), r"must be a temp int64\[1\]"),
    (changed("buffers", 4, shape=["N", "n"]), "is used before the symbols in its shape are bound"),
])  # fmt: skip
def test_programs_that_bind_sizes_wrongly(made: dict[str, Any], message: str) -> None:
    with pytest.raises(_native.Error, match=message) as caught:
        opened(made)
    assert caught.value.code == "program"
