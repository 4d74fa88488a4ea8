"""TensorRT's layers that are composed here: sampling, resizing, NMS, quantisation, sums, scatters; against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ingot.errors import UnsupportedError
from tests.compat.test_trt_network import IDS, IMAGE, C, X, _with_input, draw, run, trt, with_settings

torch = pytest.importorskip("torch")
nn = torch.nn.functional


def constant(network: Any, array: Any) -> Any:
    array = np.asarray(array)
    return network.add_constant(array.shape, array).get_output(0)


def check(record: Callable[..., Any], tensors: Any, theirs: Callable[..., Any], loose: float = 2e-5) -> None:
    torch.testing.assert_close(run(record, *tensors), theirs(*tensors), rtol=loose, atol=loose)


GRID = torch.rand(2, 5, 7, 2, generator=torch.Generator().manual_seed(1)) * 2.6 - 1.3  # some places lie outside


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("beyond", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("corners", [False, True])
def test_grid_sample(mode: str, beyond: str, corners: bool) -> None:
    words = {"nearest": "NEAREST", "bilinear": "LINEAR", "bicubic": "CUBIC", "zeros": "FILL", "border": "CLAMP"}
    settings = {
        "interpolation_mode": trt().InterpolationMode[words[mode]],
        "sample_mode": trt().SampleMode[words.get(beyond, "REFLECT")],
        "align_corners": corners,
    }
    check(
        lambda n, x, g: with_settings(n.add_grid_sample(x, g), **settings),
        (IMAGE, GRID),
        lambda x, g: nn.grid_sample(x, g, mode=mode, padding_mode=beyond, align_corners=corners),
    )


PLACES: dict[str, Callable[[Any, Any], Any]] = {
    "HALF_UP": lambda at: torch.floor(at + 0.5),
    "HALF_DOWN": lambda at: torch.ceil(at - 0.5),
    "FLOOR": torch.floor,
    "CEIL": torch.ceil,
}  # type: ignore[dict-item]


@pytest.mark.parametrize("rounding", PLACES)
@pytest.mark.parametrize("where", ["ALIGN_CORNERS", "ASYMMETRIC", "HALF_PIXEL"])
@pytest.mark.parametrize("size", [3, 4, 9, 12])
def test_every_rounding_of_nearest_resizing(rounding: str, where: str, size: int) -> None:
    i, before = torch.arange(size, dtype=torch.float64), 6
    at = {
        "ALIGN_CORNERS": i * (before - 1) / (size - 1),
        "ASYMMETRIC": i * before / size,
        "HALF_PIXEL": (i + 0.5) * before / size - 0.5,
    }[where]
    place = PLACES[rounding](at).long().clamp(0, before - 1)  # type: ignore[call-arg]
    check(
        lambda n, x: with_settings(
            n.add_resize(x),
            shape=(2, 4, size, 5),
            nearest_rounding=trt().ResizeRoundMode[rounding],
            coordinate_transformation=trt().ResizeCoordinateTransformation[where],
        ),
        (IMAGE,),
        lambda x: x[:, :, place],
        0,
    )


def resized(mode: str, where: str, **more: Any) -> Callable[..., Any]:
    def record(n: Any, x: Any) -> Any:
        return with_settings(
            n.add_resize(x),
            shape=(2, 4, 9, 7),
            resize_mode=trt().InterpolationMode[mode],
            coordinate_transformation=trt().ResizeCoordinateTransformation[where],
            **more,
        )

    return record


def beyond(at: Any, whole: int, mode: str) -> Any:
    if mode == "WRAP":
        return at % whole
    return at.clamp(0, whole - 1) if mode == "CLAMP" else torch.where(at < 0, -at, torch.where(at < whole, at, 6 - at))


def reversed_steps(x: Any, lens: Any) -> Any:
    return torch.stack([torch.cat([r[:k].flip(0), r[k:]]) for r, k in zip(x, lens, strict=True)])


def scalar(n: Any, number: Any) -> Any:
    return constant(n, number)


def alone(x: Any) -> Any:
    """How much of each window of two by two lies within the image."""
    return nn.avg_pool2d(nn.pad(torch.ones_like(x), (0, 1, 1, 0)), 2)


def pooled(x: Any, kind: str, **settings: Any) -> Callable[..., Any]:
    return lambda n, x: with_settings(n.add_pooling_nd(x, trt().PoolingType[kind], (2, 2)), **settings)


def summed(n: Any, x: Any, y: Any) -> Any:
    return n.add_elementwise(x, y, trt().ElementWiseOperation.SUM)


UNEVEN = {"pre_padding": (1, 0), "post_padding": (0, 1), "stride_nd": (2, 2)}
STEPS = torch.tensor([1, 4, 2], dtype=torch.int32)
SEEN = torch.tensor([[1], [4], [2]], dtype=torch.int32)
SCALES = torch.tensor([0.03, 0.01, 0.1])
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Callable[..., Any]]] = {
    "resize cubic": (resized("CUBIC", "HALF_PIXEL"), (IMAGE,), lambda x: nn.interpolate(x, (9, 7), mode="bicubic")),
    "resize with other cubes": (
        resized("CUBIC", "ALIGN_CORNERS", cubic_coeff=-0.75),
        (IMAGE,),
        lambda x: nn.interpolate(x, (9, 7), mode="bicubic", align_corners=True),
    ),
    "resize between corners": (
        resized("LINEAR", "ALIGN_CORNERS"),
        (IMAGE,),
        lambda x: nn.interpolate(x, (9, 7), mode="bilinear", align_corners=True),
    ),
    "resize to a computed size": (
        lambda n, x: _with_input(n.add_resize(x), 1, constant(n, np.array([2, 4, 12, 10], np.int64))),
        (IMAGE,),
        lambda x: nn.interpolate(x, (12, 10)),
    ),
    "exclusive sums from the end": (
        lambda n, x: n.add_cumulative(x, 1, trt().CumulativeOperation.SUM, True, True),
        (X,),
        lambda x: torch.cat([x.flip(1).cumsum(1).flip(1)[:, 1:], torch.zeros(3, 1)], 1),
    ),
    "exclusive sums along a constant axis": (
        lambda n, x: n.add_cumulative(x, scalar(n, np.int32(1)), trt().CumulativeOperation.SUM, True, False),
        (X,),
        lambda x: x.cumsum(1) - x,
    ),
    "one_hot": (
        lambda n, x, v: n.add_one_hot(x, v, scalar(n, np.int32(4)), -1),
        (IDS, torch.tensor([-1.0, 2.0])),
        lambda x, v: nn.one_hot(x.long(), 4) * 3.0 - 1,
    ),
    "scatter by element": (
        lambda n, x, i, u: with_settings(n.add_scatter(x, i, u, trt().ScatterMode.ELEMENT), axis=1),
        (X, torch.tensor([[1, 0]], dtype=torch.int32), draw(1, 2)),
        lambda x, i, u: x.scatter(1, i.long(), u),
    ),
    "scatter of rows": (
        lambda n, x, i, u: n.add_scatter(x, i, u, trt().ScatterMode.ND),
        (X, torch.tensor([[1], [0]], dtype=torch.int32), draw(2, 4)),
        lambda x, i, u: x.index_put((i[:, 0].long(),), u),
    ),
    "quantize": (
        lambda n, x, s: n.add_quantize(x, s),
        (X, torch.tensor(0.01)),
        lambda x, s: torch.clamp(torch.round(x / s), -128, 127).to(torch.int8),
    ),
    "quantize and dequantize by channel": (
        lambda n, x, s: with_settings(
            n.add_dequantize(with_settings(n.add_quantize(x, s), axis=0).get_output(0), s), axis=0
        ),
        (X, SCALES),
        lambda x, s: torch.fake_quantize_per_channel_affine(x, s, torch.zeros(3, dtype=torch.int32), 0, -128, 127),
    ),
    "squeeze": (
        lambda n, x: n.add_squeeze(x, constant(n, np.array([1]))), (X[:, None],), lambda x: x[:, 0],
    ),
    "unsqueeze": (
        lambda n, x: n.add_unsqueeze(x, constant(n, np.array([0, 2]))), (X,), lambda x: x[None, :, None],
    ),
    "lrn": (
        lambda n, x: n.add_lrn(x, 3, 0.1, 0.75, 1.0),
        (IMAGE,),
        lambda x: nn.local_response_norm(x, 3, 0.1, 0.75, 1.0),
    ),
    "reverse_sequence": (
        lambda n, x, k: with_settings(n.add_reverse_sequence(x, k), batch_axis=0, sequence_axis=1),
        (X, STEPS),
        reversed_steps,
    ),
    "padding_nd": (
        lambda n, x: n.add_padding_nd(x, (1, -1), (-2, 2)), (X,), lambda x: nn.pad(x, (-1, 2, 1, -2)),
    ),
    "ragged_softmax": (
        lambda n, x, b: n.add_ragged_softmax(x, b),
        (X, SEEN),
        lambda x, b: x.masked_fill(torch.arange(4) >= b, -torch.inf).softmax(1),
    ),
    "attention": (
        lambda n, q: n.add_attention(q, q, q, trt().AttentionNormalizationOp.SOFTMAX, True),
        (IMAGE,),
        lambda q: nn.scaled_dot_product_attention(q, q, q, is_causal=True, scale=1.0),
    ),
    "pooling, blended": (
        pooled(X, "MAX_AVERAGE_BLEND", blend_factor=0.3),
        (IMAGE,),
        lambda x: 0.7 * nn.max_pool2d(x, 2, 1) + 0.3 * nn.avg_pool2d(x, 2, 1),
    ),
    "uneven pooling of what is there": (
        pooled(X, "AVERAGE", average_count_excludes_padding=True, **UNEVEN),
        (IMAGE,),
        lambda x: nn.avg_pool2d(nn.pad(x, (0, 1, 1, 0)), 2) / alone(x),
    ),
    "uneven pooling": (
        pooled(X, "AVERAGE", average_count_excludes_padding=False, **UNEVEN),
        (IMAGE,),
        lambda x: nn.avg_pool2d(nn.pad(x, (0, 1, 1, 0)), 2),
    ),
    "pooling to the same size": (
        lambda n, x: with_settings(
            n.add_pooling_nd(x, trt().PoolingType.MAX, (3, 3)),
            padding_mode=trt().PaddingMode.SAME_UPPER,
            stride_nd=(2, 2),
        ),
        (IMAGE,),
        lambda x: nn.max_pool2d(nn.pad(x, (1, 1, 0, 1), value=-torch.inf), 3, 2),
    ),
    "slice beyond the edges": (
        lambda n, x: _with_input(
            with_settings(n.add_slice(x, (-1, -2), (5, 7), (1, 1)), mode=trt().SampleMode.FILL),
            4,
            scalar(n, np.float32(7)),
        ),
        (X,),
        lambda x: nn.pad(x, (2, 1, 1, 1), value=7.0),
    ),
    "slice in reverse": (
        lambda n, x: with_settings(n.add_slice(x, (2, 3), (3, 4), (-1, -1)), mode=trt().SampleMode.CLAMP),
        (X,),
        lambda x: x.flip(0, 1),
    ),
    "parametric_relu": (
        lambda n, x, s: n.add_parametric_relu(x, s), (X, C[None]), lambda x, s: torch.where(x < 0, x * s, x),
    ),
    "scale_nd": (
        lambda n, x: n.add_scale_nd(
            x, trt().ScaleMode.CHANNEL, None, trt().Weights(np.arange(5, dtype=np.float32)), None, 3
        ),
        (IMAGE,),
        lambda x: x * torch.arange(5.0),
    ),
    "fill of two dimensions": (
        lambda n, x: summed(n, x, _with_input(
            _with_input(n.add_fill((3, 4), trt().FillOperation.LINSPACE), 1, scalar(n, np.float32(1))),
            2, constant(n, np.array([10, 1], np.float32)),
        ).get_output(0)),
        (X,),
        lambda x: x + 1 + torch.arange(3.0)[:, None] * 10 + torch.arange(4.0),
    ),
    "gather along with a batch": (
        lambda n, x, i: with_settings(n.add_gather(x, i, 2), num_elementwise_dims=1),
        (IMAGE, IDS),
        lambda x, i: torch.stack([one[:, j.long()] for one, j in zip(x, i, strict=True)]),
    ),
    "topk with wide indices": (
        lambda n, x: n.add_topk(x, trt().TopKOperation.MAX, 2, 0b10, trt().int64).get_output(1),
        (X,),
        lambda x: x.topk(2, 1)[1],
    ),
    "non_zero with narrow indices": (
        lambda n, x: n.add_non_zero(x, trt().int32), (IDS,), lambda x: x.nonzero().T.int(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_layer(name: str) -> None:
    check(*CASES[name])


@pytest.mark.parametrize("mode", ["WRAP", "CLAMP", "REFLECT"])
def test_slices_beyond_the_edges(mode: str) -> None:
    place = beyond(torch.arange(-2, 5), 4, mode)
    check(
        lambda n, x: with_settings(n.add_slice(x, (0, -2), (3, 7), (1, 1)), mode=trt().SampleMode[mode]),
        (X,),
        lambda x: x[:, place],
        0,
    )


# ---------------------------------------------------------------------------------------------- boxes

BOXES = torch.rand(2, 20, 1, 4, generator=torch.Generator().manual_seed(3))
BOXES[..., 2:] = BOXES[..., :2] + 0.4
SCORES = torch.rand(2, 20, 3, generator=torch.Generator().manual_seed(4))


def selected(boxes: Any, scores: Any, most: int = 4, iou: float = 0.3, least: float = 0.2) -> Any:
    """NMS as it is defined, box by box."""
    found = []
    for batch in range(len(boxes)):
        rows = []
        for label in range(scores.shape[2]):
            left, box = scores[batch, :, label].clone(), boxes[batch, :, 0]
            area = (box[:, 2:] - box[:, :2]).prod(1)
            for _ in range(most):
                left = torch.where(left > least, left, -torch.inf)
                if left.max() == -torch.inf:
                    break
                best = int(left.argmax())
                rows.append((-float(left[best]), label, best))
                low, high = torch.maximum(box[best, :2], box[:, :2]), torch.minimum(box[best, 2:], box[:, 2:])
                both = (high - low).clamp(min=0).prod(1)
                left[both / (area + area[best] - both) > iou] = -torch.inf
                left[best] = -torch.inf
        found += [(batch, label, best) for _, label, best in sorted(rows)]
    return torch.tensor(found, dtype=torch.int32)


def nms(n: Any, boxes: Any, scores: Any, **settings: Any) -> Any:
    layer = with_settings(n.add_nms(boxes, scores, scalar(n, np.int32(4))), **settings)
    layer.set_input(3, scalar(n, np.float32(0.3)))
    layer.set_input(4, scalar(n, np.float32(0.2)))
    return layer


def test_nms() -> None:
    check(nms, (BOXES, SCORES), selected, 0)
    counted = run(lambda n, b, s: nms(n, b, s).get_output(1), BOXES, SCORES)
    assert counted == len(selected(BOXES, SCORES))


def test_nms_of_centres_and_sizes() -> None:
    middle = torch.cat([(BOXES[..., :2] + BOXES[..., 2:]) / 2, BOXES[..., 2:] - BOXES[..., :2]], -1)
    form = trt().BoundingBoxFormat.CENTER_SIZES
    check(lambda n, b, s: nms(n, b, s, bounding_box_format=form), (middle, SCORES), lambda b, s: selected(BOXES, s), 0)


def test_nms_of_the_best_boxes() -> None:
    def limited(b: Any, s: Any) -> Any:
        rank = s.flatten(1).argsort(1, descending=True).argsort(1).view(s.shape)
        return selected(b, torch.where(rank < 5, s, 0.0))

    check(lambda n, b, s: nms(n, b, s, topk_box_limit=5), (BOXES, SCORES), limited, 0)
    check(nms, (BOXES[:, :, 0], SCORES), lambda b, s: selected(BOXES, s), 0)  # the same boxes for every class


def windowed(x: Any, mode: str, window: int, step: int, left: int, right: int) -> Any:
    """Maxima of windows along the last dimension, by the formulas of NvInfer.h."""
    size = x.shape[-1]
    if mode.startswith("SAME"):
        count = -(-size // step)
        whole = max((size - 1) // step * step + window - size, 0)
        left = whole // 2 if mode == "SAME_UPPER" else whole - whole // 2
    else:
        over = size + left + right - window
        count = (over // step if mode == "EXPLICIT_ROUND_DOWN" else -(-over // step)) + 1
    padded = nn.pad(x, (left, count * step + window), value=-torch.inf)
    return torch.stack([padded[..., i * step : i * step + window].amax(-1) for i in range(count)], -1)


@pytest.mark.parametrize("mode", ["EXPLICIT_ROUND_DOWN", "EXPLICIT_ROUND_UP", "SAME_UPPER", "SAME_LOWER"])
def test_sizes_of_pooling_by_mode(mode: str) -> None:
    def record(n: Any, *inputs: Any) -> Any:
        found = []
        for x, (window, step, left, right) in zip(inputs, shapes, strict=True):
            layer = with_settings(
                n.add_pooling_nd(x, trt().PoolingType.MAX, (1, window)), stride_nd=(1, step), pre_padding=(0, left),
                post_padding=(0, right), padding_mode=trt().PaddingMode[mode],
            )  # fmt: skip
            found.append(n.add_shuffle(layer.get_output(0)))
            found[-1].reshape_dims = (-1,)
        return n.add_concatenation([layer.get_output(0) for layer in found])

    shapes = [(3, 2, 0, 0), (3, 2, 1, 1), (3, 2, 1, 0), (2, 2, 0, 0), (3, 3, 1, 0), (2, 1, 1, 1)]
    images = [draw(1, 2, 2, size) for size, _ in zip((6, 7, 8, 5, 9, 4), shapes, strict=True)]
    expected = [windowed(x, mode, *shape).flatten() for x, shape in zip(images, shapes, strict=True)]
    assert torch.equal(run(record, *images), torch.cat(expected))


def test_a_window_of_padding_alone_is_refused() -> None:
    def record(n: Any, x: Any) -> Any:
        mode = trt().PaddingMode.EXPLICIT_ROUND_UP
        layer = n.add_pooling_nd(x, trt().PoolingType.MAX, (2, 2))
        return with_settings(layer, stride_nd=(2, 2), padding_nd=(1, 1), padding_mode=mode)

    with pytest.raises(UnsupportedError, match=r"EXPLICIT_ROUND_UP of size 5.*last window may cover padding alone"):
        run(record, draw(1, 1, 5, 5))


def test_scales_say_sizes() -> None:
    """Seven of five elements by 1.5: read at multiples of 5 / 7."""
    x = draw(1, 1, 5, 5)
    settings = {"scales": [1, 1, 1, 1.5], "resize_mode": trt().InterpolationMode.LINEAR}
    half = trt().ResizeCoordinateTransformation.HALF_PIXEL
    check(
        lambda n, x: with_settings(n.add_resize(x), coordinate_transformation=half, **settings),
        (x,),
        lambda x: nn.interpolate(x, (5, 7), mode="bilinear"),
    )


# ---------------------------------------------------------------------------------------------- operations by name

NUMBERS = torch.tensor([
    [0.0, 1e-30, 1e-7, -1e-3, 0.1, 0.4, -0.414, 0.5, -0.7, 0.99, 1.0, -1.0],
    [2.0, -2.4, 2.5, 10.0, -50.0, 80.0, 1e3, -1e8, 1e20, torch.inf, -torch.inf, torch.nan],
])  # fmt: skip
BINARY = {
    "SUM": torch.add, "PROD": torch.mul, "MAX": torch.maximum, "MIN": torch.minimum, "SUB": torch.sub,
    "DIV": torch.div, "POW": torch.pow, "FLOOR_DIV": torch.floor_divide, "AND": torch.logical_and,
    "OR": torch.logical_or, "XOR": torch.logical_xor, "EQUAL": torch.eq, "GREATER": torch.gt, "LESS": torch.lt,
}  # fmt: skip
UNARY = {"RECIP": torch.reciprocal, "NOT": torch.logical_not, "SIGN": lambda x: torch.where(x == x, x.sign(), x)}


def test_every_operation_of_two() -> None:
    assert set(BINARY) == {member.name for member in trt().ElementWiseOperation}
    for name, theirs in BINARY.items():
        given = (X > 0, X > 0.3) if name in ("AND", "OR", "XOR") else (X.abs() + 0.1, X.abs().flip(0) + 0.2)
        check(lambda n, x, y, name=name: n.add_elementwise(x, y, trt().ElementWiseOperation[name]), given, theirs)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_operation_of_one(dtype: str) -> None:
    for member in trt().UnaryOperation:
        theirs = UNARY.get(member.name) or getattr(torch, member.name.lower())
        x = X > 0 if member.name == "NOT" else NUMBERS.clamp(-3, 3) if member.name in ("EXP", "TAN", "ERF") else NUMBERS
        x = x if member.name == "NOT" else x.to(getattr(torch, dtype))
        ours = run(lambda n, x, member=member: n.add_unary(x, member), x)
        loose = 2e-6 if dtype == "float32" else 2e-3  # measured: 1.4e-6 (SINH of 80)
        torch.testing.assert_close(
            ours, theirs(x), rtol=loose, atol=1e-7, equal_nan=True, msg=lambda m, k=member: f"{k}: {m}"
        )


def test_every_reduction() -> None:
    words = {"SUM": torch.sum, "PROD": torch.prod, "MAX": torch.amax, "MIN": torch.amin, "AVG": torch.mean}
    for name, theirs in words.items():
        check(
            lambda n, x, name=name: n.add_reduce(x, trt().ReduceOperation[name], 0b10, True),
            (X,),
            lambda x, theirs=theirs: theirs(x, 1, keepdim=True),
        )
