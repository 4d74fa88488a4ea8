"""ONNX models whose operands say sizes when they run: ends of slices, paddings, counts, and branches that differ."""

from __future__ import annotations

import numpy as np
import pytest

from ingot.errors import IngotError, UnsupportedError
from tests.frontends.onnx_nets import BOOL, FLOAT, INT64, branch, engine, floats, helper, node, value


def test_pieces_of_known_sizes_of_what_a_run_knows() -> None:
    """The sizes add up, or a run says that they do not; sizes that cannot add up are refused at once."""
    constants = {"sizes": np.array([2, 3, 1]), "at": np.array(1)}
    nodes = [node("SplitToSequence", ["x", "sizes"], ["parts"]), node("SequenceAt", ["parts", "at"], ["y"])]
    net = engine(nodes, {"x": ["n", 2]}, constants)
    x = floats(6, 2)
    assert np.array_equal(net.run({"x": x})["y"], x[2:5])
    for n in (0, 5, 7):
        with pytest.raises(IngotError):
            net.run({"x": floats(n, 2)})
    with pytest.raises(UnsupportedError, match="do not add up to 7"):
        engine(nodes, {"x": [7, 2]}, constants)


@pytest.mark.parametrize(("allowzero", "shape"), [(0, (0, -1, 2)), (0, (4, 0, 1, -1)), (1, (0, 7)), (0, (12,))])
def test_a_reshape_to_sizes_that_a_run_knows(allowzero: int, shape: tuple[int, ...]) -> None:
    net = engine([node("Reshape", ["x", "to"], ["y"], allowzero=allowzero)],
                 {"x": ["n", 3, "w"], "to": (INT64, [len(shape)])})  # fmt: skip
    x = floats(*((0, 3, 2) if allowzero else (2, 3, 2)))
    if shape == (4, 0, 1, -1):
        x = floats(8, 3, 2)
    own = tuple(x.shape[i] if n == 0 and not allowzero else n for i, n in enumerate(shape))
    assert np.array_equal(net.run({"x": x, "to": np.array(shape)})["y"], x.reshape(own))
    with pytest.raises(IngotError, match="elements for"):
        net.run({"x": x, "to": np.array([5] * len(shape))})


def test_dropout_in_training_mode_is_that_of_its_seed() -> None:
    """One engine for any ratio, and for training and not."""
    drop = helper.make_node("Dropout", ["x", "ratio", "trains"], ["y"], seed=3)
    net = engine([drop], {"x": [4, 50], "ratio": [], "trains": (BOOL, [])})
    x, even = floats(4, 50), np.random.RandomState(3).uniform(size=(4, 50))
    for ratio in (0.0, 0.25, 0.9):
        found = net.run({"x": x, "ratio": np.float32(ratio), "trains": np.array(True)})["y"]
        np.testing.assert_allclose(found, x * (even >= np.float32(ratio)) / (1 - np.float32(ratio)), rtol=1e-5)
        assert np.array_equal(net.run({"x": x, "ratio": np.float32(ratio), "trains": np.array(False)})["y"], x)
    trains = {"trains": np.array(True), "ratio": np.float32(0.5)}
    with pytest.raises(UnsupportedError, match=r"give the node a seed from 0 to 2\^32 - 1"):
        engine([helper.make_node("Dropout", ["x", "ratio", "trains"], ["y"])], {"x": [4]}, trains)
    with pytest.raises(UnsupportedError, match="in training mode it needs sizes that are known"):
        engine([drop], {"x": ["n"]}, trains)


def test_a_number_of_boxes_that_a_run_says() -> None:
    inputs = {"boxes": [1, 3, 4], "x": [1, 1, 3], "most": (INT64, [1])}
    found = node("NonMaxSuppression", ["boxes", "x", "most", "overlap"], ["y"])
    net = engine([found], inputs, {"overlap": np.float32([0.5])})
    boxes = np.float32([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [3, 3, 4, 4]]])
    scores = np.float32([[[0.9, 0.8, 0.7]]])
    for most, kept in ((0, []), (1, [0]), (5, [0, 2])):
        found = net.run({"boxes": boxes, "x": scores, "most": np.array([most])})["y"]
        assert found[:, 2].tolist() == kept


def test_a_slice_whose_ends_a_run_says() -> None:
    """From the last element below 0, and clamped, as NumPy does."""
    net = engine([node("Slice", ["x", "from", "to", "axes", "steps"], ["y"])],
                 {"x": ["n", 7], "from": (INT64, [2]), "to": (INT64, [2])},
                 {"axes": np.array([0, 1]), "steps": np.array([1, 2])})  # fmt: skip
    x = floats(9, 7)
    for start, end in (((0, 1), (4, 7)), ((-5, -4), (-1, 99)), ((3, -99), (2, -1)), ((9, 6), (99, 7))):
        found = net.run({"x": x, "from": np.array(start), "to": np.array(end)})["y"]
        assert np.array_equal(found, x[start[0] : end[0], start[1] : end[1] : 2])


def test_pads_that_a_run_says() -> None:
    """Those below 0 cut; a constant among them leaves its dimension as it is known."""
    net = engine([node("Concat", ["none", "low", "none", "high"], ["pads"], axis=0),
                  node("Pad", ["x", "pads", "value"], ["y"])],
                 {"x": ["n", 3, "w"], "low": (INT64, [1]), "high": (INT64, [1])},
                 {"none": np.array([0, 0]), "value": np.float32(2)})  # fmt: skip
    assert str(net.outputs[0]).startswith("y: f32[n, 3, ")
    x = floats(2, 3, 5)
    for low, high in ((1, 3), (0, 0), (-2, 4), (2, -1), (-1, -4)):
        wide = np.pad(x, ((0, 0), (0, 0), (max(low, 0), max(high, 0))), constant_values=2)
        wanted = wide[:, :, max(-low, 0) : wide.shape[2] - max(-high, 0)]
        assert np.array_equal(net.run({"x": x, "low": np.array([low]), "high": np.array([high])})["y"], wanted)
    with pytest.raises(IngotError, match="pads below 0 cut more than there is"):
        net.run({"x": x, "low": np.array([-7]), "high": np.array([0])})


def test_a_range_of_floats_whose_ends_a_run_says() -> None:
    net = engine([node("Range", ["x", "to", "by"], ["y"])], {"x": [], "to": [], "by": []})
    for start, end, step in ((0, 5, 1), (0.5, 3, 0.25), (4, 0, -1.5), (1, 1, 1), (2, 0, 1)):
        given = {"x": np.float32(start), "to": np.float32(end), "by": np.float32(step)}
        np.testing.assert_allclose(net.run(given)["y"], np.arange(start, end, step, np.float32))


@pytest.mark.parametrize("kind", ["input", "size"])
def test_branches_of_two_sizes(kind: str) -> None:
    """The result has the size of the branch that runs."""
    then = branch("then", [node("Slice", ["x", "zero", "two"], ["a"])], "a")
    other = branch("other", [node("Concat", ["x", "x"], ["b"], axis=0)], "b")
    choose = [node("If", ["c"], ["s"], then_branch=then, else_branch=other), node("Relu", ["s"], ["y"])]
    constants = {"zero": np.array([0]), "two": np.array([2]), "at": np.array(0), "four": np.array(4)}
    if kind == "input":
        net = engine(choose, {"x": ["A", 3], "c": (BOOL, [])}, constants)
    else:
        count = [node("Shape", ["x"], ["n"]), node("Gather", ["n", "at"], ["a_"])]
        net = engine([*count, node("Greater", ["a_", "four"], ["c"]), *choose], {"x": ["A", 3]}, constants)
    for size in (1, 5, 7):
        for first in (True, False) if kind == "input" else (size > 4,):
            x = floats(size, 3)
            feeds = {"x": x, "c": np.array(first)} if kind == "input" else {"x": x}
            wanted = x[:2] if first else np.concatenate([x, x])
            np.testing.assert_array_equal(net.run(feeds)["y"], np.maximum(wanted, 0))


def test_branches_of_two_ranks_are_refused() -> None:
    then, other = branch("then", [node("ReduceSum", ["x"], ["a"], keepdims=0)], "a"), branch(
        "other", [node("Identity", ["x"], ["b"])], "b")  # fmt: skip
    with pytest.raises(UnsupportedError, match="then_branch gives"):
        engine([node("If", ["c"], ["y"], then_branch=then, else_branch=other)], {"x": ["A", 3], "c": (BOOL, [])})


def test_a_count_of_rounds_below_0_is_none() -> None:
    nodes = [node("Add", ["s", "x"], ["t"]), node("Identity", ["c"], ["d"]), node("Identity", ["t"], ["k"])]
    info = [value("i", INT64, []), value("c", BOOL, []), value("s", FLOAT, [2])]
    made = [value("d", BOOL, []), value("t", FLOAT, [2]), value("k", FLOAT, [2])]
    body = helper.make_graph(nodes, "body", info, made)
    net = engine([node("Loop", ["m", "", "x"], ["", "y"], body=body)], {"x": [2], "m": (INT64, [])})
    x = floats(2)
    for count in (-3, 0, 2):
        wanted = np.array([x * (k + 2) for k in range(max(count, 0))], np.float32).reshape(-1, 2)
        np.testing.assert_allclose(net.run({"x": x, "m": np.array(count)})["y"], wanted, rtol=1e-6)


def test_a_mask_that_is_asked_twice() -> None:
    """As exporters write `x[mask] *= 2`: the places, and as many elements."""
    nodes = [node("Less", ["x", "zero"], ["m"]), node("NonZero", ["m"], ["at"]), node("Transpose", ["at"], ["places"]),
             node("GatherND", ["x", "places"], ["v"]), node("Mul", ["v", "half"], ["w"]),
             node("NonZero", ["m"], ["again"]),
             node("Transpose", ["again"], ["to"]), node("ScatterND", ["x", "to", "w"], ["y"])]  # fmt: skip
    net = engine(nodes, {"x": ["A", "B"]}, {"zero": np.float32(0), "half": np.float32(0.5)})
    for size in ((3, 4), (1, 1), (5, 2)):
        x = floats(*size)
        np.testing.assert_array_equal(net.run({"x": x})["y"], np.where(x < 0, x * np.float32(0.5), x))
