"""Basic indexing of values against NumPy's, of sizes that are known and of sizes that only a run knows."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import ingot.ops  # noqa: F401  (registers every op)
from ingot.dims import Dim
from ingot.errors import OpError
from ingot.ir import Network, Spec
from ingot.ir.interpret import interpret

EDGES = (None, 0, 1, 3, 5, 6, -1, -3, -5, -6)
T = Dim("T")


def indexed(shape: tuple[Any, ...], index: Any, sizes: tuple[int, ...]) -> tuple[np.ndarray[Any, Any], Network]:
    net = Network("net")
    x = net.input("x", Spec(shape, "int64"))
    net.output("y", x[index])
    array = np.arange(np.prod(sizes)).reshape(sizes)
    return interpret(net, {"x": array})["y"], net


@pytest.mark.parametrize("rows", [5, T])
@pytest.mark.parametrize("step", [None, 1, 2, 7, -1, -2, -7])
def test_slices(rows: Any, step: int | None) -> None:
    """Every pair of edges, inside and outside; sizes of a run forward only."""
    if rows is T and step is not None and step < 0:
        with pytest.raises(OpError, match="a negative step needs a dimension that is known"):
            indexed((T, 2), slice(None, None, step), (5, 2))
        return
    for start, stop in itertools.product(EDGES, EDGES):
        index = slice(start, stop, step)
        for size in (5,) if rows == 5 else (5, 1, 0, 9):
            array = np.arange(size * 2).reshape(size, 2)
            if rows is T and start is not None and not -size <= start <= size:
                continue  # where a slice begins beyond what is there, a run says so
            found, _ = indexed((rows, 2), index, (size, 2))
            np.testing.assert_array_equal(found, array[index], err_msg=f"{index} of {size}")


@pytest.mark.parametrize(
    "index",
    [
        0, -1, 3, (0, 0), (-4, -1), (slice(1, 3), 2), (..., 1), (1, ...), (..., slice(0, 2)), (None, 0), (0, None),
        (slice(None), None, slice(1, 2)), (..., None), (None, ..., None), (slice(None, None, -1), 1), (...,), (),
        (slice(None), slice(None)), (slice(1, 1),), (None, slice(None, None, 2), None, -1),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("rows", [4, T])
def test_indices(index: Any, rows: Any) -> None:
    backward = isinstance(index, tuple) and any(isinstance(i, slice) and i.step == -1 for i in index)
    if rows is T and backward:
        return
    found, net = indexed((rows, 3), index, (4, 3))
    wanted = np.arange(12).reshape(4, 3)[index]
    assert found.shape == wanted.shape
    np.testing.assert_array_equal(found, wanted)
    assert len(net.nodes) <= 2 and (wanted.shape != (4, 3) or backward or not net.nodes), "a whole tensor is itself"


def test_a_size_that_is_known_to_lie_inside() -> None:
    """Where bounds say enough, no minimum is taken."""
    rows = Dim("R", 3, max=9)
    for index, size in (
        (slice(None, 3), 3), (slice(None, -3), rows - 3), (slice(1, None), rows - 1), (slice(1, -1), rows - 2),
        (slice(0, rows - 1), rows - 1), (slice(-3, None), 3), (slice(2, 1), 0), (slice(None, None, 2), (rows + 1) // 2),
    ):  # fmt: skip
        net = Network("net")
        assert net.input("x", Spec((rows,), "int64"))[index].shape == (size,)
    net = Network("net")
    assert str(net.input("x", Spec((rows,), "int64"))[:4].shape[0]) == "min(4, R)"
    assert str(net.input("y", Spec((rows,), "int64"))[-4:].shape[0]) == "R - max(0, R - 4)"


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ((..., ...), "an index takes one ellipsis"), ((0, 0, 0), "has 2 dimensions, the index names 3"),
        ((0, ..., 0, 0), "the index names 3"), (True, r"\[bool\]: an index may hold"), (1.0, r"\[float\]: an index"),
        ("a", r"\[str\]: an index"), (slice(None, None, 0), "must be an int other than 0"),
        (slice(None, None, True), "must be an int other than 0"), (4, "out of|does not|exceeds|beyond|index|slice"),
        (-5, "out of|does not|exceeds|beyond|index|slice|negative"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_index(index: Any, words: str) -> None:
    with pytest.raises(OpError, match=words):
        indexed((4, 3), index, (4, 3))
