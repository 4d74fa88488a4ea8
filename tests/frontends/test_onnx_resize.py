"""ONNX models that compute sizes in floats, and resize: one engine for all sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

onnx = pytest.importorskip("onnx")

from ingot.dims import Dim  # noqa: E402
from ingot.errors import IngotError  # noqa: E402
from ingot.frontends.onnx import float_sizes  # noqa: E402
from ingot.frontends.table import Unsupported  # noqa: E402
from tests.frontends.onnx_nets import FLOAT, INT64, engine, floats, helper, node  # noqa: E402


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
