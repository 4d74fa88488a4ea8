"""Windows over sizes that only a run knows: auto_pad, pools of integers, regions; and what opsets say of one op."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

onnx = pytest.importorskip("onnx")

from ingot.builder.network import build_network  # noqa: E402
from ingot.errors import UnsupportedError  # noqa: E402
from ingot.frontends.onnx import Model  # noqa: E402
from ingot.frontends.onnx import build_network as import_network  # noqa: E402

helper, TYPES = onnx.helper, onnx.TensorProto
RNG = np.random.default_rng(0)
SIZES = ((1, 3, 8, 8), (2, 3, 7, 12), (1, 3, 13, 5), (1, 3, 1, 2))


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape, np.float32)


def engine(op: str, *inputs: Any, **words: Any) -> Any:
    """An engine of `imported`."""
    found = imported(op, *inputs, **words)
    return build_network(found.network, found.weights, report=False)


def imported(
    op: str, inputs: Mapping[str, Any], constants: Mapping[str, Any] | None = None, opset: int = 17, **words: Any
) -> Any:
    """Of one node that gives `y`; an input is given by its dims, floats unless a type stands before them."""
    constants = constants or {}
    kinds = {n: d if isinstance(d, tuple) else (TYPES.FLOAT, d) for n, d in inputs.items()}
    graph = helper.make_graph(
        [helper.make_node(op, [*inputs, *constants], ["y"], **words)], "net",
        [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in kinds.items()],
        [helper.make_tensor_value_info("y", 0, None)],
        [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return import_network(Model(proto, "net")).imported


def same(x: Any, kernel: tuple[int, int], stride: tuple[int, int], upper: bool, fill: float) -> torch.Tensor:
    """x with the padding of auto_pad, as the standard counts it."""
    sides: list[int] = []
    for n, k, s in zip(x.shape[:1:-1], kernel[::-1], stride[::-1], strict=True):
        total = max((-(-n // s) - 1) * s + k - n, 0)
        low = total // 2 if upper else total - total // 2
        sides += [low, total - low]
    return functional.pad(torch.from_numpy(x), sides, value=fill)


@pytest.mark.parametrize("upper", [True, False])
@pytest.mark.parametrize(("kernel", "stride"), [((3, 3), (2, 2)), ((1, 1), (2, 3)), ((2, 5), (2, 4)), ((4, 3), (1, 2))])
def test_auto_pad_of_any_size(kernel: tuple[int, int], stride: tuple[int, int], upper: bool) -> None:
    words: dict[str, Any] = {"auto_pad": "SAME_UPPER" if upper else "SAME_LOWER", "strides": list(stride)}
    x, weight, shape = {"x": ["N", 3, "H", "W"]}, floats(4, 3, *kernel), {**words, "kernel_shape": list(kernel)}
    conv, most = engine("Conv", x, {"w": weight}, **words), engine("MaxPool", x, **shape)
    mean, padded_mean = engine("AveragePool", x, **shape), engine("AveragePool", x, count_include_pad=1, **shape)
    for size in SIZES:
        a = floats(*size)
        zeros, ones = same(a, kernel, stride, upper, 0), same(np.ones_like(a), kernel, stride, upper, 0)
        means = functional.avg_pool2d(zeros, kernel, stride)
        wanted = {
            conv: functional.conv2d(zeros, torch.from_numpy(weight), stride=stride), padded_mean: means,
            most: functional.max_pool2d(same(a, kernel, stride, upper, -np.inf), kernel, stride),
            mean: means / functional.avg_pool2d(ones, kernel, stride),
        }  # fmt: skip
        for net, want in wanted.items():
            assert want.shape[2:] == (-(-size[2] // stride[0]), -(-size[3] // stride[1]))
            np.testing.assert_allclose(net.run({"x": a})["y"], want.numpy(), rtol=1e-4, atol=1e-5)


def test_auto_pad_counts_windows_by_one_expression() -> None:
    """⌈H / 2⌉ for every kernel, so that what went down by two ways meets without a check."""
    for kernel in ((3, 3), (1, 1), (5, 2)):
        found = imported("Conv", {"x": ["N", 3, "H", "W"]}, {"w": floats(4, 3, *kernel)}, auto_pad="SAME_UPPER",
                         strides=[2, 2])  # fmt: skip
        assert str(found.network.outputs["y"].shape[2]) == "(H + 1) // 2"


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_the_largest_of_bytes(kind: Any) -> None:
    net = engine("MaxPool", {"x": (helper.np_dtype_to_tensor_dtype(np.dtype(kind)), ["N", 2, "H", "W"])},
                 kernel_shape=[3, 2], strides=[2, 1], pads=[1, 1, 1, 0])  # fmt: skip
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    for size in ((1, 2, 6, 5), (2, 2, 9, 4)):
        x = RNG.integers(low, high + 1, size).astype(kind)
        inside = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 0)), constant_values=low)
        seen = np.lib.stride_tricks.sliding_window_view(inside, (3, 2), (2, 3))[:, :, ::2]
        found = net.run({"x": x})["y"]
        assert found.dtype == kind
        np.testing.assert_array_equal(found, seen.max((4, 5)))


def test_powers_of_windows_of_any_size() -> None:
    net = engine("LpPool", {"x": ["N", 2, "H"]}, kernel_shape=[3], strides=[2], pads=[1, 1], p=3)
    for size in (7, 4):
        x = floats(2, 2, size)
        seen = np.lib.stride_tricks.sliding_window_view(np.pad(np.abs(x), ((0, 0), (0, 0), (1, 1))), 3, 2)[:, :, ::2]
        np.testing.assert_allclose(net.run({"x": x})["y"], (seen**3).sum(-1) ** (1 / 3), rtol=1e-4)


def means_of_regions(x: Any, regions: Any, images: Any, bins: tuple[int, int], samples: int, half: bool) -> Any:
    """RoiAlign as the standard has it: places inside of bins, read between their neighbours. `half`: since opset 16."""
    found = np.zeros((len(regions), x.shape[1], *bins))
    for k, (left, top, right, bottom) in enumerate(regions * 0.5 - (0.5 if half else 0.0)):
        lengths = np.array([bottom - top, right - left])
        each = (lengths if half else np.maximum(lengths, 1)) / bins
        counts = np.full(2, samples) if samples else np.ceil(each).astype(int)
        for i, j in np.ndindex(*bins):
            for a, b in np.ndindex(*counts):
                place = np.array([top, left]) + (np.array([i, j]) + (np.array([a, b]) + 0.5) / counts) * each
                found[k, :, i, j] += _between(x[images[k]], *place) / max(counts.prod(), 1)
    return found


def _between(image: Any, y: float, x: float) -> Any:
    high, wide = image.shape[1:]
    if not (-1 <= y <= high and -1 <= x <= wide):
        return 0.0
    y, x = min(max(y, 0.0), high - 1), min(max(x, 0.0), wide - 1)
    top, left = int(y), int(x)
    below, right = min(top + 1, high - 1), min(left + 1, wide - 1)
    dy, dx = y - top, x - left
    rows = [(1 - dx) * image[:, r, left] + dx * image[:, r, right] for r in (top, below)]
    return (1 - dy) * rows[0] + dy * rows[1]


@pytest.mark.parametrize("opset", [10, 16])
@pytest.mark.parametrize("samples", [0, 2])
@pytest.mark.parametrize("known", [True, False])
def test_means_of_regions(opset: int, samples: int, known: bool) -> None:
    """Before opset 16 corners are not moved by half an element, and regions have at least one."""
    shape = [2, 3, 10, 8] if known else ["N", 3, "H", "W"]
    inputs = {"x": shape, "regions": ["K", 4], "images": (TYPES.INT64, ["K"])}
    net = engine("RoiAlign", inputs, opset=opset, output_height=3, output_width=2, sampling_ratio=samples,
                 spatial_scale=0.5)  # fmt: skip
    regions = np.array([[0, 0, 9, 12], [3.2, 1, 8, 7.5], [1, 1, 1.2, 1.3], [-4, -3, 30, 28]], np.float32)
    for size in ((2, 3, 10, 8),) if known else ((2, 3, 10, 8), (2, 3, 6, 13)):
        x, images = floats(*size), np.array([0, 1, 1, 0])
        wanted = means_of_regions(x.astype(float), regions.astype(float), images, (3, 2), samples, opset == 16)
        found = net.run({"x": x, "regions": regions, "images": images})["y"]
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_largest_of_regions_needs_a_number_of_places() -> None:
    with pytest.raises(UnsupportedError, match="mode max with sampling_ratio 0"):
        engine("RoiAlign", {"x": [1, 2, 5, 5], "r": ["K", 4], "i": (TYPES.INT64, ["K"])}, mode="max")


@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("whole", [(4, 5), (3, 4, 2)])
def test_an_affine_grid_of_a_batch_of_one(whole: tuple[int, ...], aligned: int) -> None:
    """Whose dimension the standard's own function loses on its way."""
    rank = len(whole)
    sizes = np.array([1, 3, *whole])
    net = engine("AffineGrid", {"theta": ["N", rank, rank + 1]}, {"size": sizes}, 20, align_corners=aligned)
    for count in (1, 3):
        theta = floats(count, rank, rank + 1)
        wanted = functional.affine_grid(torch.from_numpy(theta), [count, 3, *whole], align_corners=bool(aligned))
        np.testing.assert_allclose(net.run({"theta": theta})["y"], wanted.numpy(), rtol=1e-5, atol=1e-6)
    with pytest.raises(UnsupportedError, match=r"\[N, 2, 3\] or \[N, 3, 4\]"):
        engine("AffineGrid", {"theta": ["N", 3, 3]}, {"size": sizes}, 20)


def test_group_normalization_with_numbers_for_each_group() -> None:
    scale, bias = floats(2), floats(2)
    net = engine("GroupNormalization", {"x": ["N", 6, "T"]}, {"s": scale, "b": bias}, 18, num_groups=2)
    x = floats(2, 6, 5)
    each = torch.from_numpy(scale.repeat(3)), torch.from_numpy(bias.repeat(3))
    wanted = functional.group_norm(torch.from_numpy(x), 2, *each)
    np.testing.assert_allclose(net.run({"x": x})["y"], wanted.numpy(), rtol=1e-4, atol=1e-5)
    with pytest.raises(UnsupportedError, match="cannot be divided among 4 groups"):
        engine("GroupNormalization", {"x": ["N", 6, "T"]}, {"s": floats(4), "b": floats(4)}, 18, num_groups=4)
    with pytest.raises(UnsupportedError, match=r"must be \[2\]"):
        engine("GroupNormalization", {"x": ["N", 6, "T"]}, {"s": floats(6), "b": floats(6)}, 18, num_groups=2)


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_a_sequence_of_no_steps_leaves_states_of_0(op: str) -> None:
    """As in ONNX Runtime; the standard does not say, and its first states would be an answer too."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    constants = {"w": floats(1, gates * 4, 3), "r": floats(1, gates * 4, 4)}
    last = ["h", "c"] if op == "LSTM" else ["h"]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "w", "r", "", "l", *(f"{n}0" for n in last)], ["y", *last], hidden_size=4)], "net",
        [info("x", TYPES.FLOAT, ["T", "N", 3]), info("l", TYPES.INT32, ["N"]),
         *(info(f"{n}0", TYPES.FLOAT, [1, "N", 4]) for n in last)],
        [info(n, 0, None) for n in ("y", *last)],
        [onnx.numpy_helper.from_array(a, n) for n, a in constants.items()],
    )  # fmt: skip
    made = import_network(Model(helper.make_model(graph), "net")).imported
    net = build_network(made.network, made.weights, report=False)
    states = {f"{n}0": floats(1, 3, 4) for n in last}
    x, lengths = floats(5, 3, 3), np.array([5, 0, 2], np.int32)
    found = net.run({"x": x, "l": lengths, **states})
    alone = net.run({"x": x[:2, 2:], "l": lengths[2:], **{n: s[:, 2:] for n, s in states.items()}})
    for name in last:
        assert not found[name][:, 1].any() and found[name][:, 0].all()
        np.testing.assert_allclose(found[name][:, 2:], alone[name], rtol=1e-5, atol=1e-6)
    assert not found["y"][:, :, 1].any()
