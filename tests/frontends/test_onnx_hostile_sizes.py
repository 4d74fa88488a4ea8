"""Sizes that a run counts, and that do not fit: an error that says so, and never numbers of something else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ingot.errors import IngotError
from tests.frontends.onnx_nets import INT64, engine, floats, node


def test_a_slice_of_rows_reads_no_row_beside_it() -> None:
    """Padding by what a row has needs a row as long: before the first element lies the end of the row before."""
    rows = node("Slice", ["x", "two", "four", "zero"], ["z"])
    net = engine([rows, node("Pad", ["z", "pads"], ["y"], mode="reflect")], {"x": [6, "n"]},
                 {"two": np.array([2]), "four": np.array([4]), "zero": np.array([0]),
                  "pads": np.array([0, 2, 0, 3])})  # fmt: skip
    for n in (4, 7):
        x = floats(6, n)
        np.testing.assert_array_equal(net.run({"x": x})["y"], np.pad(x[2:4], ((0, 0), (2, 3)), mode="reflect"))
    for n in (0, 1, 2, 3):  # three more than three have would begin again: an index of -1, which takes a zero
        with pytest.raises(IngotError, match="slice along dimension 1 from .*(before the first|there are n)"):
            net.run({"x": floats(6, n)})


@pytest.mark.parametrize("count", [4, 2**40])
def test_the_first_of_a_row_are_in_it(count: int) -> None:
    """So many of each sorted row, of two rows in the midst of others."""
    rows = node("Slice", ["x", "two", "four", "zero"], ["z"])
    net = engine([rows, node("TopK", ["z", "k"], ["y", "_"], axis=1)], {"x": [6, "n"], "k": (INT64, [1])},
                 {"two": np.array([2]), "four": np.array([4]), "zero": np.array([0])})  # fmt: skip
    x = floats(6, 3)
    np.testing.assert_array_equal(net.run({"x": x, "k": np.array([2])})["y"], -np.sort(-x[2:4], 1)[:, :2])
    with pytest.raises(IngotError, match="slice along dimension 1 from 0 to size0: there are n elements"):
        net.run({"x": x, "k": np.array([count])})


def test_a_size_that_is_large_takes_no_time() -> None:
    """Not that of counting to it: 2⁴⁰ of them would be minutes."""
    net = engine([node("Range", ["from", "to", "by"], ["y"])], {"from": (INT64, []), "to": (INT64, [])},
                 {"by": np.array(1)})  # fmt: skip
    assert net.run({"from": np.array(2**40), "to": np.array(5)})["y"].shape == (0,)
    found = net.run({"from": np.array(2**40), "to": np.array(2**40 + 3)})["y"]
    assert found.tolist() == [2**40, 2**40 + 1, 2**40 + 2]


@pytest.mark.parametrize(("dims", "shapes"), [(["a", "b"], ((1, 3), (5, 1), (1, 1), (0, 3))), ([1, 3], ((1, 3),))])
def test_expand_broadcasts_what_only_a_run_knows(dims: Any, shapes: Any) -> None:
    net = engine([node("Expand", ["x", "to"], ["y"])], {"x": dims, "to": (INT64, [2])})
    for shape in shapes:
        x = floats(*shape)
        for to in ((1, 1), (5, 1), (1, 3), (5, 3), (0, 3), (1, 7)):
            try:
                wanted = np.broadcast_shapes(shape, to)
            except ValueError:
                with pytest.raises(IngotError, match="does not broadcast|expand of"):
                    net.run({"x": x, "to": np.array(to)})
            else:
                found = net.run({"x": x, "to": np.array(to)})["y"]
                np.testing.assert_array_equal(found, np.broadcast_to(x, wanted))
    with pytest.raises(IngotError, match="out of range"):
        net.run({"x": floats(1, 3), "to": np.array([1, -1])})


def test_expand_of_sizes_that_inputs_name() -> None:
    """Of which either may be 1."""
    shape = node("Shape", ["like"], ["to"])
    net = engine([shape, node("Expand", ["x", "to"], ["y"])], {"x": ["a", "b"], "like": ["c", "d"]})
    for own, other in (((1, 3), (5, 3)), ((5, 1), (1, 4)), ((2, 3), (1, 1)), ((1, 1), (0, 2))):
        x = floats(*own)
        wanted = np.broadcast_to(x, np.broadcast_shapes(own, other))
        np.testing.assert_array_equal(net.run({"x": x, "like": floats(*other)})["y"], wanted)
    with pytest.raises(IngotError, match="does not broadcast|expand of"):
        net.run({"x": floats(3, 2), "like": floats(2, 2)})


@pytest.mark.parametrize("allowzero", [0, 1])
def test_a_reshape_leaves_one_size_open(allowzero: int) -> None:
    net = engine([node("Reshape", ["x", "to"], ["y"], allowzero=allowzero)], {"x": ["a", "b"], "to": (INT64, [2])})
    assert net.run({"x": floats(2, 3), "to": np.array([-1, 2])})["y"].shape == (3, 2)
    assert net.run({"x": floats(0, 3), "to": np.array([-1, 3])})["y"].shape == (0, 3)
    for shape, to in (((1, 1), (-1, -1)), ((0, 3), (0, -1)), ((0, 3), (-1, -1))):
        with pytest.raises(IngotError, match="one may be -1, and none 0 beside it"):
            net.run({"x": floats(*shape), "to": np.array(to)})
    for wrong in ((2**32, 2**32), (2**62, -1), (4, -1), (-2, -3), (7, 1)):
        with pytest.raises(IngotError, match=r"out of range|elements for|overflow|64 TiB"):
            net.run({"x": floats(2, 3), "to": np.array(wrong)})


def test_ranges_of_floats_are_counted_in_doubles() -> None:
    """As runtimes do: ten steps of -0.7 in float32 do not reach -7, and one more does."""
    net = engine([node("Range", ["x", "to", "by"], ["y"])], {"x": [], "to": [], "by": []})

    def run(*values: float) -> Any:
        return net.run(dict(zip(("x", "to", "by"), map(np.float32, values), strict=True)))["y"]

    assert run(0, -7, -0.7).shape == (11,)
    for values in ((0, -7, 0), (0, 0, 0), (0, np.nan, 1), (-np.inf, 3, 1), (0, 1, np.nan), (0, -np.inf, 1)):
        with pytest.raises(IngotError, match="Range: start, limit and delta must be numbers, and delta not 0"):
            run(*values)
    with pytest.raises(IngotError, match="out of range"):
        run(0, 1e30, 1)


def test_scales_that_are_none() -> None:
    net = engine([node("Resize", ["x", "", "s"], ["y"], mode="linear")], {"x": ["n"], "s": [1]})
    assert net.run({"x": floats(4), "s": np.float32([1.5])})["y"].shape == (6,)
    for scale in (0, -0.0, -1, np.nan, np.inf):
        with pytest.raises(IngotError, match="Resize: a scale must be greater than 0 and finite"):
            net.run({"x": floats(4), "s": np.float32([scale])})


@pytest.mark.parametrize("shape", [(2**40, 2**40, 0), (0, 2**62, 0)])
def test_nothing_of_a_size_that_no_array_has(shape: tuple[int, ...]) -> None:
    with pytest.raises(IngotError, match="64 TiB|too large"):
        engine([node("ConstantOfShape", ["to"], ["y"])], {}, {"to": np.array(shape)}).run({})
