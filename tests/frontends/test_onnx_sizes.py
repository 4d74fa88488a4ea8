"""ONNX models that declare more sizes than they take: one engine for all of them, and a run says which do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

onnx = pytest.importorskip("onnx")

from ingot.errors import IngotError, InputError, UnsupportedError  # noqa: E402
from tests.frontends.onnx_nets import BOOL, FLOAT, INT64, RNG, branch, engine, floats, node  # noqa: E402


def pyramid(join: str, **words: Any) -> Any:
    """Half the size, and a quarter of it twice as large, together: odd halves do not fit."""
    half = {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}
    return engine(
        [node("MaxPool", ["x"], ["a"], **half), node("MaxPool", ["a"], ["b"], **half),
         node("Resize", ["b", "", "scales"], ["c"], mode="nearest", coordinate_transformation_mode="asymmetric",
              nearest_mode="floor"), node(join, ["a", "c"], ["y"], **words)],
        {"x": ["N", 3, "H", "W"]}, {"scales": np.array([1, 1, 2, 2], np.float32)},
    )  # fmt: skip


def pooled(x: Any) -> Any:
    n, c, h, w = x.shape
    x = np.pad(x, ((0, 0), (0, 0), (0, h % 2), (0, w % 2)), constant_values=-np.inf)
    return x.reshape(n, c, -(-h // 2), 2, -(-w // 2), 2).max((3, 5))


@pytest.mark.parametrize(("join", "words"), [("Add", {}), ("Concat", {"axis": 1})])
def test_what_went_up_meets_what_went_down(join: str, words: Any) -> None:
    net = pyramid(join, **words)
    for size in ((1, 3, 8, 12), (2, 3, 16, 3)):  # 3 → 2 → 1 → 2
        x = floats(*size)
        a = pooled(x)
        c = pooled(a).repeat(2, 2).repeat(2, 3)
        np.testing.assert_array_equal(net.run({"x": x})["y"], a + c if join == "Add" else np.concatenate([a, c], 1))
    with pytest.raises(InputError, match=r"together: 2\*\(\(H \+ 3\) // 4\) must be \(H \+ 1\) // 2; here 6 and 5"):
        net.run({"x": floats(1, 3, 10, 8)})


def test_names_that_mean_one_size() -> None:
    net = engine([node("Add", ["x", "z"], ["s"]), node("MatMul", ["s", "w"], ["y"])],
                 {"x": ["A", "B"], "z": ["C", "B"], "w": ["D", 5]})  # fmt: skip
    x, z, w = floats(4, 3), floats(4, 3), floats(3, 5)
    np.testing.assert_allclose(net.run({"x": x, "z": z, "w": w})["y"], (x + z) @ w, rtol=1e-5)
    np.testing.assert_allclose(net.run({"x": x, "z": z[:1], "w": w})["y"], (x + z[:1]) @ w, rtol=1e-5)
    with pytest.raises(InputError, match="C or 1 must be A"):
        net.run({"x": x, "z": floats(2, 3), "w": w})
    with pytest.raises(InputError, match="D must be B; here 4 and 3|B must be D; here 3 and 4"):
        net.run({"x": x, "z": z, "w": floats(4, 5)})


def test_sizes_that_never_fit_are_refused_at_once() -> None:
    with pytest.raises(UnsupportedError, match="do not broadcast"):
        engine([node("Concat", ["x", "x"], ["two"], axis=0), node("Add", ["x", "two"], ["y"])], {"x": [3, 4]})
    with pytest.raises(UnsupportedError, match=r"A\b.*do not broadcast|size"):
        engine([node("Concat", ["x", "one"], ["more"], axis=0), node("Concat", ["x", "more"], ["y"], axis=1)],
               {"x": ["A", 4]}, {"one": floats(1, 4)})  # fmt: skip


def test_a_squeezed_size_is_checked() -> None:
    net = engine([node("Squeeze", ["x", "axes"], ["y"])], {"x": ["A", "B", 3]}, {"axes": np.array([1])})
    x = floats(2, 1, 3)
    np.testing.assert_array_equal(net.run({"x": x})["y"], x[:, 0])
    with pytest.raises(InputError, match="dimension 1 is B and must be 1; here 2 and 1"):
        net.run({"x": floats(2, 2, 3)})


def test_a_reshape_that_fits_at_some_sizes() -> None:
    """As recognisers of text read lines of one height, which their files do not say."""
    net = engine([node("Reshape", ["x", "shape"], ["y"])], {"x": ["N", 4, "H"]}, {"shape": np.array([0, 4])})
    x = floats(3, 4, 1)
    np.testing.assert_array_equal(net.run({"x": x})["y"], x[..., 0])
    with pytest.raises(IngotError, match="elements for"):
        net.run({"x": floats(3, 4, 2)})


def test_question_marks_are_no_names() -> None:
    net = engine([node("Relu", ["x"], ["y"])], {"x": ["?", 2, "?"]})
    assert net.run({"x": floats(3, 2, 5)})["y"].shape == (3, 2, 5)


def squeezed_if_one(axis: int) -> list[Any]:
    """What torch's older exporter made of x.squeeze(axis): the branches have different ranks."""
    then = branch("then", [node("Squeeze", ["x", "axes"], ["a"])], "a")
    other = branch("other", [node("Identity", ["x"], ["b"])], "b")
    return [node("Shape", ["x"], ["shape"]), node("Gather", ["shape", "at"], ["size"]),
            node("Equal", ["size", "one"], ["is_one"]),
            node("If", ["is_one"], ["s"], then_branch=then, else_branch=other),
            node("Transpose", ["s"], ["y"], perm=[1, 0])]  # fmt: skip


def test_a_squeeze_that_depends_on_the_size() -> None:
    constants = {"axes": np.array([1]), "at": np.array(1), "one": np.array(1)}
    net = engine(squeezed_if_one(1), {"x": ["A", "B", 3]}, constants)
    x = floats(4, 1, 3)
    np.testing.assert_array_equal(net.run({"x": x})["y"], x[:, 0].T)
    with pytest.raises(InputError, match="dimension 1 is B and must be 1"):
        net.run({"x": floats(4, 2, 3)})


def test_a_branch_that_does_not_run_may_have_sizes_that_do_not_fit() -> None:
    """A model of two rates: each of its branches takes chunks of one length."""

    def half(name: str, size: int) -> Any:
        constant = onnx.numpy_helper.from_array(np.array([0, size], np.int64), "to")
        return branch(name, [node("Constant", [], [f"{name}_to"], value=constant),
                             node("Reshape", ["x", f"{name}_to"], [f"{name}_r"]),
                             node("ReduceSum", [f"{name}_r"], [name], keepdims=0)], name)  # fmt: skip

    choose = node("If", ["long"], ["y"], then_branch=half("a", 8), else_branch=half("b", 4))
    net = engine([choose], {"x": ["N", "L"], "long": (BOOL, [])})
    for length, long in ((8, True), (4, False)):
        x = floats(3, length)
        np.testing.assert_allclose(net.run({"x": x, "long": np.array(long)})["y"], x.sum(), rtol=1e-5)
        with pytest.raises(IngotError, match="body . *.*elements for"):
            net.run({"x": x, "long": np.array(not long)})


def test_what_is_counted_by_sizes() -> None:
    """The largest of as many as there are, padding up to a size, and steps as floats."""
    shape = [node("Shape", ["x"], ["n"], start=1)]
    net = engine([*shape, node("TopK", ["x", "n"], ["y", "_"], axis=1)], {"x": ["A", "B"]})
    x = floats(3, 7)
    np.testing.assert_array_equal(net.run({"x": x})["y"], -np.sort(-x, 1))

    pads = [node("Sub", ["whole", "n"], ["left"]), node("Concat", ["zeros", "left"], ["pads"], axis=0)]
    net = engine([*shape, *pads, node("Pad", ["x", "pads"], ["y"])], {"x": ["A", "B"]},
                 {"whole": np.array([5]), "zeros": np.zeros(3, np.int64)})  # fmt: skip
    np.testing.assert_array_equal(net.run({"x": x[:, :2]})["y"], np.pad(x[:, :2], ((0, 0), (0, 3))))
    np.testing.assert_array_equal(net.run({"x": x})["y"], x[:, :5])  # or cut off down to it

    steps = [node("Squeeze", ["n"], ["m"]), node("Cast", ["m"], ["end"], to=FLOAT)]
    net = engine([*shape, *steps, node("Range", ["first", "end", "step"], ["r"]), node("Add", ["x", "r"], ["y"])],
                 {"x": ["A", "B"]}, {"first": np.float32(0), "step": np.float32(1)})  # fmt: skip
    np.testing.assert_array_equal(net.run({"x": x})["y"], x + np.arange(7, dtype=np.float32))


def test_a_convolution_of_integers_is_exact() -> None:
    """Products of floats would leave its sums beside integers, by Winograd's transforms and beyond 2²⁴."""
    w, bytes_ = RNG.integers(-127, 128, (32, 24, 3, 3), np.int8), onnx.TensorProto.UINT8
    conv = node("ConvInteger", ["x", "w", "zero"], ["y"], pads=[1, 1, 1, 1])
    net = engine([conv], {"x": (bytes_, ["N", 24, "H", "W"])}, {"w": w, "zero": np.uint8(130)})
    x = RNG.integers(0, 256, (1, 24, 20, 18), np.uint8)
    inside = np.pad(x.astype(np.int64) - 130, ((0, 0), (0, 0), (1, 1), (1, 1)))
    seen = np.lib.stride_tricks.sliding_window_view(inside, (3, 3), (2, 3))
    np.testing.assert_array_equal(net.run({"x": x})["y"], np.einsum("ncijhw,ochw->noij", seen, w.astype(np.int64)))


def test_states_of_unnamed_batches() -> None:
    """A state's batch is that of the input, though the file names neither."""
    weights = {"w": floats(1, 8, 3), "r": floats(1, 8, 2)}
    lstm = node("LSTM", ["x", "w", "r", "", "", "h", "c"], ["y"], hidden_size=2)
    net = engine([lstm], {"x": [None, None, 3], "h": [1, None, 2], "c": [1, None, 2]}, weights)
    feeds = {"x": floats(4, 5, 3), "h": floats(1, 5, 2), "c": floats(1, 5, 2)}
    assert net.run(feeds)["y"].shape == (4, 1, 5, 2)
    with pytest.raises(InputError, match="must be x_1"):
        net.run({**feeds, "h": floats(1, 4, 2)})


def test_the_first_of_a_length_meets_all() -> None:
    """x[:, :1] has min(1, T) elements, which broadcast."""
    cut = node("Slice", ["x", "start", "end", "axis"], ["first"])
    net = engine([cut, node("Mul", ["first", "x"], ["y"])], {"x": [2, "T", 3]},
                 {"start": np.array([0]), "end": np.array([1]), "axis": np.array([1])})  # fmt: skip
    for n in (1, 5):
        x = floats(2, n, 3)
        np.testing.assert_array_equal(net.run({"x": x})["y"], x[:, :1] * x)


def test_a_size_of_at_most_1_meets_a_number() -> None:
    net = engine([node("Slice", ["x", "zero", "one", "zero"], ["first"]), node("Add", ["first", "row"], ["y"])],
                 {"x": ["w"]}, {"zero": np.array([0]), "one": np.array([1]), "row": floats(18)})  # fmt: skip
    x = floats(5)
    assert net.run({"x": x})["y"].shape == (18,)
    with pytest.raises(InputError, match="or 1 must be 18; here 0"):
        net.run({"x": x[:0]})


def test_a_squeeze_without_axes() -> None:
    """What reads axes by their place would take another one where a size that was kept is 1."""
    squeeze = node("Squeeze", ["x"], ["s"])
    plain = engine([squeeze, node("Sigmoid", ["s"], ["y"])], {"x": ["A", 1, 3]})
    x = floats(1, 1, 3)
    np.testing.assert_allclose(plain.run({"x": x})["y"], 1 / (1 + np.exp(-x[:, 0])), rtol=1e-5)

    axes = {"from": np.array([0]), "to": np.array([2]), "axis": np.array([0])}
    net = engine([squeeze, node("Slice", ["s", "from", "to", "axis"], ["y"])], {"x": ["A", 1, 3]}, axes)
    x = floats(4, 1, 3)
    np.testing.assert_array_equal(net.run({"x": x})["y"], x[:2, 0])
    with pytest.raises(IngotError, match="Squeeze names no axes, and drops A where it is 1"):
        net.run({"x": floats(1, 1, 3)})

    state = [node("GRU", ["x", "w", "r", "", "", "h"], ["", "last"], hidden_size=2), node("Squeeze", ["last"], ["s"]),
             node("Slice", ["s", "from", "to", "axis"], ["y"])]  # fmt: skip
    weights = {"w": floats(1, 6, 3), "r": floats(1, 6, 2), **axes, "from": np.array([1])}
    net = engine(state, {"x": ["T", "N", 3], "h": [1, 1, 2]}, weights)  # a state of one row: so N is 1
    feeds = {"x": floats(3, 1, 3), "h": floats(1, 1, 2)}
    assert net.run(feeds)["y"].shape == (1,)
    with pytest.raises(InputError, match="must be N"):
        net.run({**feeds, "x": floats(3, 2, 3)})


def test_identity_places_and_different_numbers_of_any_size() -> None:
    eye = engine([node("EyeLike", ["x"], ["y"], k=-1)], {"x": ["A", "B"]})
    last = engine([node("ArgMax", ["x"], ["y"], axis=1, keepdims=0, select_last_index=1)], {"x": (INT64, ["A", "B"])})
    different = engine([node("Unique", ["x"], ["", "first"], sorted=0), node("Identity", ["first"], ["y"])],
                       {"x": (INT64, ["A"])})  # fmt: skip
    for rows, columns in ((3, 4), (5, 2)):
        x = RNG.integers(0, 3, (rows, columns))
        np.testing.assert_array_equal(eye.run({"x": floats(rows, columns)})["y"], np.eye(rows, columns, -1))
        wanted = columns - 1 - x[:, ::-1].argmax(1)
        np.testing.assert_array_equal(last.run({"x": x})["y"], wanted)
        places = np.sort(np.unique(x[:, 0], return_index=True)[1])
        np.testing.assert_array_equal(different.run({"x": x[:, 0]})["y"], places)


def test_ends_of_slices_that_are_below_0_for_some_sizes() -> None:
    """`x[-(n // 2) :]`, and the middle 6 of x, which NumPy counts from the end where there are fewer."""
    constants = {"two": np.array([2]), "six": np.array([6]), "zero": np.array([0]), "far": np.array([2**62])}
    count = node("Shape", ["x"], ["n"], start=0, end=1)
    half = [count, node("Div", ["n", "two"], ["h"]), node("Neg", ["h"], ["a"]), node("Slice", ["x", "a", "far"], ["y"])]
    middle = [count, node("Sub", ["n", "six"], ["r"]), node("Div", ["r", "two"], ["a"]),
              node("Add", ["a", "six"], ["b"]), node("Slice", ["x", "a", "b"], ["y"])]  # fmt: skip
    last = [count, node("Sub", ["n", "two"], ["a"]), node("Slice", ["x", "zero", "a"], ["y"])]
    nets = [engine(nodes, {"x": ["A", 3]}, constants) for nodes in (half, middle, last)]
    for size in (1, 2, 3, 4, 5, 6, 7, 12):
        x = floats(size, 3)
        a = int((size - 6) / 2)  # towards zero, as ONNX divides
        wanted = x[-(size // 2) :], x[a : a + 6], x[0 : size - 2]
        for net, want in zip(nets, wanted, strict=True):
            np.testing.assert_array_equal(net.run({"x": x})["y"], want, err_msg=str(size))


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
def test_pads_that_are_sizes(mode: str) -> None:
    count = [node("Shape", ["x"], ["n"], start=0, end=1), node("Div", ["n", "two"], ["h"]),
             node("Div", ["n", "four"], ["q"]),
             node("Concat", ["h", "zero", "q", "zero"], ["pads"], axis=0)]  # fmt: skip
    constants = {"two": np.array([2]), "four": np.array([4]), "zero": np.array([0])}
    net = engine([*count, node("Pad", ["x", "pads"], ["y"], mode=mode)], {"x": ["A", 3]}, constants)
    for size in (4, 7, 12):
        x = floats(size, 3)
        np.testing.assert_array_equal(net.run({"x": x})["y"], np.pad(x, ((size // 2, size // 4), (0, 0)), mode))


def test_what_was_pooled_goes_back_to_its_place() -> None:
    pool = {"kernel_shape": [2, 2], "strides": [2, 2]}
    net = engine([node("MaxPool", ["x"], ["a", "at"], **pool), node("MaxUnpool", ["a", "at"], ["y"], **pool)],
                 {"x": ["N", 3, "H", "W"]})  # fmt: skip
    for size in ((1, 3, 8, 6), (2, 3, 4, 10)):
        x = torch.from_numpy(floats(*size))
        values, places = torch.nn.functional.max_pool2d(x, 2, return_indices=True)
        wanted = torch.nn.functional.max_unpool2d(values, places, 2)
        np.testing.assert_array_equal(net.run({"x": x.numpy()})["y"], wanted.numpy())
