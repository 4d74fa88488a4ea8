"""ONNX models that declare more sizes than they take: one engine for all of them, and a run says which do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

onnx = pytest.importorskip("onnx")

from ingot.builder.build import build_network  # noqa: E402
from ingot.dims import Dim  # noqa: E402
from ingot.errors import IngotError, InputError, UnsupportedError  # noqa: E402
from ingot.frontends.onnx import Model, float_sizes  # noqa: E402
from ingot.frontends.onnx import build_network as import_network  # noqa: E402
from ingot.frontends.table import Unsupported  # noqa: E402

helper, FLOAT, INT64, BOOL = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL
node, value = helper.make_node, helper.make_tensor_value_info
RNG = np.random.default_rng(0)


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape, np.float32)


def engine(nodes: list[Any], inputs: dict[str, Any], constants: dict[str, Any] | None = None) -> Any:
    """Of nodes that end in `y`; an input is given by its dims, floats unless a type stands before them."""
    kinds = {n: (d[0], d[1]) if isinstance(d, tuple) else (FLOAT, d) for n, d in inputs.items()}
    graph = helper.make_graph(
        nodes, "net", [value(n, kind, shape) for n, (kind, shape) in kinds.items()], [value("y", FLOAT, None)],
        [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()],
    )  # fmt: skip
    graph.output[0].type.tensor_type.elem_type = 0
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    imported = import_network(Model(proto, "net")).imported
    return build_network(imported.network, imported.weights, report=False)


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


def branch(name: str, nodes: list[Any], *outputs: str) -> Any:
    return helper.make_graph(nodes, name, [], [value(o, FLOAT, None) for o in outputs])


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


@pytest.mark.parametrize("factor", [1.7, 0.37, 2.5, 1.1])
def test_sizes_computed_in_floats(factor: float) -> None:
    """⌊factor · height⌋ as exporters write it, by Floor and by a cast alone; divisions, and sizes rounded up."""
    number = {"factor": np.float32(factor), "inverse": np.float32(4), "nc": np.array([2, 3])}
    tail = [node("Cast", ["v"], ["whole"], to=onnx.TensorProto.INT64), node("Concat", ["nc", "whole"], ["to"], axis=0),
            node("Resize", ["x", "", "", "to"], ["y"], mode="nearest", coordinate_transformation_mode="asymmetric",
                 nearest_mode="floor")]  # fmt: skip
    head = [node("Shape", ["x"], ["n"], start=2), node("Cast", ["n"], ["f"], to=FLOAT),
            node("Mul", ["f", "factor"], ["m"])]  # fmt: skip
    ways = {"Floor": np.floor, "Ceil": np.ceil, "Identity": np.floor}
    for op, rounded in ways.items():
        net = engine([*head, node(op, ["m"], ["v"]), *tail], {"x": [2, 3, "H", "W"]}, number)
        for shape in ((2, 3, 10, 7), (2, 3, 31, 20)):
            want = tuple(int(rounded(np.float32(n) * np.float32(factor))) for n in shape[2:])
            assert net.run({"x": floats(*shape)})["y"].shape == (2, 3, *want), op
    divided = [*head[:2], node("Div", ["f", "inverse"], ["v"])]
    net = engine([*divided, *tail], {"x": [2, 3, "H", "W"]}, number)
    assert net.run({"x": floats(2, 3, 10, 7)})["y"].shape[2:] == (2, 1)


@pytest.mark.parametrize(("kind", "first", "ops", "n"), [
    (np.float32, "Mul", (0.5, 0.3), 9), (np.float64, "Div", (0.25, 4 / 0.29), 100),
    (np.float16, "Mul", (1.0, 1.0), 2051),
])  # fmt: skip
def test_every_step_of_a_size_is_rounded(kind: Any, first: str, ops: tuple[float, float], n: int) -> None:
    """⌊n · 0.5 / 0.3⌋ is not ⌊n · (0.5 / 0.3)⌋, and doubles and halves round otherwise than float32."""
    a, b = kind(ops[0]), kind(ops[1])
    to = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    nodes = [node("Shape", ["x"], ["n"]), node("Cast", ["n"], ["f"], to=to), node(first, ["f", "a"], ["g"]),
             node("Div", ["g", "b"], ["h"]), node("Floor", ["h"], ["v"]),
             node("Cast", ["v"], ["to"], to=onnx.TensorProto.INT64), node("ConstantOfShape", ["to"], ["y"])]
    net = engine(nodes, {"x": ["N"]}, {"a": np.array(a), "b": np.array(b)})
    for size in (n, n + 1, 13):
        begun = kind(size) * a if first == "Mul" else kind(size) / a
        assert net.run({"x": floats(size)})["y"].shape == (int(np.floor(begun / b)),)


def test_an_axis_whose_factor_leaves_its_size() -> None:
    """⌊1.1 · 2⌋ is 2, read between its elements; ONNX Runtime and the standard's own evaluator agree on that."""
    words = {"mode": "linear", "coordinate_transformation_mode": "asymmetric"}
    net = engine([node("Resize", ["x", "", "s"], ["y"], **words)], {"x": [1, 2, 2, 5]},
                 {"s": np.array([1, 1, 1.1, 2], np.float32)})  # fmt: skip
    x = floats(1, 2, 2, 5)
    rows = np.stack([x[:, :, 0], x[:, :, 0] + (x[:, :, 1] - x[:, :, 0]) / np.float32(1.1)], axis=2)
    wide = np.concatenate([rows, rows[..., -1:]], axis=-1)
    want = np.stack([rows, (wide[..., :-1] + wide[..., 1:]) / 2], axis=-1).reshape(1, 2, 2, 10)
    np.testing.assert_allclose(net.run({"x": x})["y"], want, atol=1e-6)


@pytest.mark.parametrize("scale", [1.7, 0.6, 1.3, 2.0])
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic", "aligned"])
def test_scales_of_sizes_that_only_a_run_knows(mode: str, scale: float) -> None:
    """As torch resizes by a factor; the nearest element by the factor also where torch goes by the sizes."""
    kind, places = {"nearest": ("nearest", "asymmetric"), "bilinear": ("linear", "half_pixel"),
                    "bicubic": ("cubic", "half_pixel"), "aligned": ("linear", "align_corners")}[mode]  # fmt: skip
    words = {"mode": kind, "coordinate_transformation_mode": places, "nearest_mode": "floor"}
    resize = node("Resize", ["x", "", "s"], ["y"], **words)
    net = engine([resize], {"x": [1, 2, "H", "W"]}, {"s": np.array([1, 1, scale, scale], np.float32)})
    how: Any = {"mode": "bilinear", "align_corners": True} if mode == "aligned" else {"mode": mode}
    for shape in ((1, 2, 5, 10), (1, 2, 17, 4)):
        x = floats(*shape)
        if mode == "nearest":
            rows, columns = (np.floor(np.arange(int(n * scale), dtype=np.float32) / np.float32(scale)).astype(int)
                             for n in shape[2:])
            want = x[:, :, rows][..., columns]
        else:
            want = torch.nn.functional.interpolate(torch.from_numpy(x), scale_factor=scale, **how).numpy()
        np.testing.assert_allclose(net.run({"x": x})["y"], want, atol=2e-5)
    assert not net._native.host_calls("main")


@pytest.mark.parametrize(("mode", "places"), [("nearest", "asymmetric"), ("linear", "half_pixel"),
                                               ("cubic", "half_pixel"), ("linear", "align_corners")])  # fmt: skip
def test_one_engine_for_all_sizes_resizes_as_one_for_each(mode: str, places: str) -> None:
    """Where the factor leaves all sizes as they are the image stays; where it leaves one, that one is read between."""
    words = {"mode": mode, "coordinate_transformation_mode": places, "nearest_mode": "floor"}
    resize, scales = node("Resize", ["x", "", "s"], ["y"], **words), {"s": np.array([1, 1, 1.1, 1.1], np.float32)}
    net = engine([resize], {"x": [1, 2, "H", "W"]}, scales)
    for shape in ((1, 2, 5, 9), (1, 2, 9, 11), (1, 2, 12, 10)):
        x = floats(*shape)
        found, alone = net.run({"x": x})["y"], engine([resize], {"x": list(shape)}, scales).run({"x": x})["y"]
        np.testing.assert_allclose(found, alone, atol=2e-5)
        assert shape[3] != 9 or np.array_equal(found, x)
        if places == "align_corners":
            how: Any = {"scale_factor": 1.1, "mode": "bilinear", "align_corners": True}
            np.testing.assert_allclose(alone, torch.nn.functional.interpolate(torch.from_numpy(x), **how), atol=2e-5)


def test_shares_are_those_of_float32() -> None:
    size = Dim("N")
    for factor in (1.7, 0.1, 0.7, 1 / 3, 2.5, 1.99):
        share: Any = float_sizes.share(size, float(np.float32(factor)))
        for n in (*range(50), 999, 4096, 16383):
            assert share.evaluate({"N": n}) == float_sizes.share(n, factor), (factor, n)
    with pytest.raises(Unsupported, match="no fraction"):
        float_sizes.share(size, 0.1234567)


def test_whole_numbers_are_divided_towards_zero() -> None:
    """(n − 1) / 4 + 1 and −(−n / 16), where torch has floors: ONNX's Div drops the fraction."""
    shape = [node("Shape", ["x"], ["n"], start=1)]
    forms = {
        lambda n: (n - 1) // 4 + 1: [node("Sub", ["n", "one"], ["a"]), node("Div", ["a", "four"], ["b"]),
                                     node("Add", ["b", "one"], ["m"])],
        lambda n: n // 4: [node("Neg", ["n"], ["a"]), node("Div", ["a", "four"], ["b"]), node("Neg", ["b"], ["m"])],
    }  # fmt: skip
    for size, steps in forms.items():
        resize = node("Resize", ["x3", "", "", "to"], ["y"], mode="nearest", nearest_mode="floor",
                      coordinate_transformation_mode="asymmetric")  # fmt: skip
        constants = {"one": [1], "four": [4], "first": [0], "kept": [1, 2]}
        net = engine([*shape, *steps, node("Unsqueeze", ["x", "first"], ["x3"]),
                      node("Concat", ["kept", "m"], ["to"], axis=0), resize], {"x": [2, "W"]},
                     {name: np.array(a) for name, a in constants.items()})  # fmt: skip
        for n in (4, 5, 15, 16, 17):
            x = floats(2, n)
            at = np.floor(np.arange(size(n), dtype=np.float32) / np.float32(np.float32(size(n)) / np.float32(n)))
            np.testing.assert_array_equal(net.run({"x": x})["y"][0], x[:, at.astype(int)])


def test_the_first_of_a_length_meets_all() -> None:
    """x[:, :1] has min(1, T) elements, which broadcast."""
    cut = node("Slice", ["x", "start", "end", "axis"], ["first"])
    net = engine([cut, node("Mul", ["first", "x"], ["y"])], {"x": [2, "T", 3]},
                 {"start": np.array([0]), "end": np.array([1]), "axis": np.array([1])})  # fmt: skip
    for n in (1, 5):
        x = floats(2, n, 3)
        np.testing.assert_array_equal(net.run({"x": x})["y"], x[:, :1] * x)


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


RESIZES = (
    {"mode": "linear", "keep_aspect_ratio_policy": "not_larger"},
    {"mode": "cubic", "keep_aspect_ratio_policy": "not_smaller"},
    {"mode": "linear", "antialias": 1},
    {"mode": "cubic", "antialias": 1, "cubic_coeff_a": -0.5},
    {"mode": "cubic", "antialias": 1, "exclude_outside": 1},
    {"mode": "cubic", "exclude_outside": 1},
    {"mode": "nearest"},
    {"mode": "nearest", "nearest_mode": "ceil", "coordinate_transformation_mode": "tf_half_pixel_for_nn"},
    {"mode": "nearest", "nearest_mode": "round_prefer_ceil", "coordinate_transformation_mode": "align_corners"},
    {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"},
    {"mode": "cubic", "coordinate_transformation_mode": "asymmetric"},
    {"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"},
)


@pytest.mark.parametrize("words", RESIZES, ids=[" ".join(map(str, words.values())) for words in RESIZES])
def test_a_resize_of_sizes_that_a_run_knows(words: Any) -> None:
    """As the one of known sizes, which ONNX's own tests hold: also where the new sizes are data."""
    resize = [node("Resize", ["x", "", "", "to"], ["y"], **words)]
    net = engine(resize, {"x": ["n", 3, "h", "w"], "to": (INT64, [4])})
    for shape, to in (((1, 3, 7, 9), (1, 3, 12, 5)), ((2, 3, 16, 5), (2, 3, 7, 5)), ((1, 3, 1, 4), (1, 3, 1, 9))):
        x, sizes = floats(*shape), np.array(to)
        wanted = engine(resize, {"x": list(shape)}, {"to": sizes}).run({"x": x})["y"]
        np.testing.assert_allclose(net.run({"x": x, "to": sizes})["y"], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("words", [
    {"mode": "linear"}, {"mode": "cubic", "antialias": 1}, {"mode": "linear", "antialias": 1},
    {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"},
    {"mode": "cubic", "coordinate_transformation_mode": "half_pixel_symmetric"},
    {"mode": "nearest", "nearest_mode": "ceil", "coordinate_transformation_mode": "tf_half_pixel_for_nn"},
], ids=lambda words: " ".join(map(str, words.values())))  # fmt: skip
def test_a_resize_by_scales_that_a_run_knows(words: Any) -> None:
    resize = [node("Resize", ["x", "", "s"], ["y"], **words)]
    net = engine(resize, {"x": [1, 2, "h", "w"], "s": [4]})
    for shape, by in (((1, 2, 7, 9), (1.7, 0.55)), ((1, 2, 2, 8), (1.1, 1.0)), ((1, 2, 5, 3), (0.31, 2.0))):
        x, scales = floats(*shape), np.array([1, 1, *by], np.float32)
        wanted = engine(resize, {"x": list(shape)}, {"s": scales}).run({"x": x})["y"]
        np.testing.assert_allclose(net.run({"x": x, "s": scales})["y"], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_a_resize_of_a_vector_and_of_nothing(mode: str) -> None:
    resize = [node("Resize", ["x", "", "", "to"], ["y"], mode=mode)]
    net, x, to = engine(resize, {"x": ["n"], "to": (INT64, [1])}), floats(5), np.array([8])
    np.testing.assert_allclose(
        net.run({"x": x, "to": to})["y"], engine(resize, {"x": [5]}, {"to": to}).run({"x": x})["y"], rtol=1e-5
    )
    with pytest.raises(IngotError, match="out of range"):
        net.run({"x": x[:0], "to": to})


def test_a_resize_of_a_region_that_a_run_knows() -> None:
    words = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.0}
    resize = [node("Resize", ["x", "roi", "", "to"], ["y"], axes=[2, 3], **words)]
    net = engine(resize, {"x": [1, 2, "h", "w"], "roi": [4], "to": (INT64, [2])})
    for roi, to in (((0.2, -0.3, 0.9, 1.2), (5, 4)), ((0.6, 0.6, 0.1, 0.8), (1, 9))):
        x, region, sizes = floats(1, 2, 6, 8), np.array(roi, np.float32), np.array(to)
        wanted = engine(resize, {"x": [1, 2, 6, 8]}, {"roi": region, "to": sizes}).run({"x": x})["y"]
        np.testing.assert_allclose(net.run({"x": x, "roi": region, "to": sizes})["y"], wanted, rtol=1e-5, atol=1e-5)


def test_a_position_embedding_that_follows_the_image() -> None:
    """As vision transformers write it: scales of sizes in floats, and what comes of them added to patches."""
    by = {"four": np.array([4]), "little": np.float32([0.02]), "five": np.float32([5]), "ones": np.float32([1, 1]),
          "table": floats(1, 3, 5, 5), "weight": floats(3, 3, 4, 4), "two": np.array([2]),
          "end": np.array([4])}  # fmt: skip
    nodes = [
        node("Shape", ["x"], ["shape"]), node("Slice", ["shape", "two", "end"], ["sides"]),
        node("Div", ["sides", "four"], ["grid"]), node("Cast", ["grid"], ["real"], to=FLOAT),
        node("Add", ["real", "little"], ["more"]), node("Div", ["more", "five"], ["ratio"]),
        node("Concat", ["ones", "ratio"], ["scales"], axis=0),
        node("Resize", ["table", "", "scales"], ["places"], mode="cubic"),
        node("Conv", ["x", "weight"], ["patches"], strides=[4, 4]), node("Add", ["patches", "places"], ["y"]),
    ]  # fmt: skip
    net = engine(nodes, {"x": ["n", 3, "h", "w"]}, by)
    for shape in ((1, 3, 20, 32), (2, 3, 12, 40)):
        x = floats(*shape)
        np.testing.assert_allclose(
            net.run({"x": x})["y"], engine(nodes, {"x": list(shape)}, by).run({"x": x})["y"], rtol=1e-4, atol=1e-4
        )


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


def test_a_size_of_at_most_1_meets_a_number() -> None:
    net = engine([node("Slice", ["x", "zero", "one", "zero"], ["first"]), node("Add", ["first", "row"], ["y"])],
                 {"x": ["w"]}, {"zero": np.array([0]), "one": np.array([1]), "row": floats(18)})  # fmt: skip
    x = floats(5)
    assert net.run({"x": x})["y"].shape == (18,)
    with pytest.raises(InputError, match="or 1 must be 18; here 0"):
        net.run({"x": x[:0]})


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


@pytest.mark.parametrize("op", ["Round", "Sqrt", "Ceil"])
def test_sizes_that_a_run_counts_in_floats(op: str) -> None:
    """No fraction says them: the run computes them as the model does."""
    net = engine(
        [node("Shape", ["x"], ["shape"]), node("Cast", ["shape"], ["real"], to=FLOAT),
         node("Mul", ["real", "by"], ["a"]), node("Add", ["a", "half"], ["b"]), node(op, ["b"], ["c"]),
         node("Cast", ["c"], ["to"], to=INT64), node("Slice", ["x", "zero", "to"], ["y"])],
        {"x": ["n"]}, {"by": np.float32([0.7]), "half": np.float32([-0.5]), "zero": np.array([0])},
    )  # fmt: skip
    rounded = {"Round": np.round, "Sqrt": np.sqrt, "Ceil": np.ceil}[op]
    for n in (1, 10, 23, 400):
        size = int(rounded(np.float32(n) * np.float32(0.7) - np.float32(0.5)))
        assert net.run({"x": floats(n)})["y"].shape == (size,)


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


def test_what_was_pooled_goes_back_to_its_place() -> None:
    pool = {"kernel_shape": [2, 2], "strides": [2, 2]}
    net = engine([node("MaxPool", ["x"], ["a", "at"], **pool), node("MaxUnpool", ["a", "at"], ["y"], **pool)],
                 {"x": ["N", 3, "H", "W"]})  # fmt: skip
    for size in ((1, 3, 8, 6), (2, 3, 4, 10)):
        x = torch.from_numpy(floats(*size))
        values, places = torch.nn.functional.max_pool2d(x, 2, return_indices=True)
        wanted = torch.nn.functional.max_unpool2d(values, places, 2)
        np.testing.assert_array_equal(net.run({"x": x.numpy()})["y"], wanted.numpy())
