"""Convolution, pooling and resampling by name: SPEC's worked examples, and everything else against torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ingot import functional as F
from ingot.builder.network import build_network
from ingot.dims import Dim
from ingot.errors import OpError
from ingot.ir import Network, Spec
from ingot.ir.interpret import interpret

Array = np.ndarray
rng = np.random.default_rng(0)


def normal(*shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def row(*numbers: float) -> Array:
    """[1, 1, n]"""
    return np.array(numbers, np.float32).reshape(1, 1, -1)


def close(got: Any, want: Any) -> None:
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape and got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-5)


# ---------------------------------------------------------------------------------------------- worked examples


def test_transposed_with_output_padding() -> None:
    x, kernel = row(1, 2, 3), row(1, 1)
    close(F.conv_transpose1d(x, kernel, stride=2, padding=1), row(1, 2, 2, 3))
    close(F.conv_transpose1d(x, kernel, stride=2, padding=1, output_padding=1), row(1, 2, 2, 3, 3))


def test_transposed_sum_of_shifts() -> None:
    x = np.array([[-3, -2, -1], [0, 1, 2], [2, 5, 6]], np.float32)[None, None]
    want = [[-3, -5, -6, -3, -1], [-3, -4, -3, 0, 1], [-1, 3, 10, 11, 7], [2, 8, 16, 14, 8], [2, 7, 13, 11, 6]]
    close(F.conv_transpose2d(x, np.ones((1, 1, 3, 3), np.float32)), np.array(want, np.float32)[None, None])


def test_transposed_padding_modes() -> None:
    """O, B and A of each mode, on the whole result 1 3 6 9 12 9 5 … of a kernel of ones."""
    x, kernel = row(1, 2, 3), row(1, 1, 1)
    whole = F.conv_transpose1d(x, kernel)  # stride 1: 1 3 6 5 3
    close(whole, row(1, 3, 6, 5, 3))
    for mode in ("EXPLICIT_ROUND_DOWN", "explicit_round_up"):
        close(F.conv_transpose1d(x, kernel, pre_padding=1, post_padding=2, padding_mode=mode), row(3, 6))
        close(F.conv_transpose1d(x, kernel, pre_padding=-1, post_padding=3, padding_mode=mode), row(0, 1, 3))
    close(F.conv_transpose1d(x, kernel, padding_mode="same_upper"), row(3, 6, 5))
    even = row(1, 1, 1, 1)  # whole: 1 3 6 6 5 3, of which 3 stay: an odd one is cut behind, or in front
    close(F.conv_transpose1d(x, even, padding_mode="same_upper"), row(3, 6, 6))
    close(F.conv_transpose1d(x, even, padding_mode="same_lower"), row(6, 6, 5))
    for mode in ("same_upper", "same_lower"):  # a stride beyond the kernel: nothing to cut, O = (I - 1) * S + DK
        close(F.conv_transpose1d(x, row(1, 1), stride=4, padding_mode=mode), row(1, 1, 0, 0, 2, 2, 0, 0, 3, 3))


@pytest.mark.parametrize("mode", ["same_upper", "same_lower"])
@pytest.mark.parametrize("sizes", list(itertools.product((3, 4), (1, 2, 3), (1, 2, 3), (1, 2))))
def test_transposed_same_sizes(mode: str, sizes: tuple[int, int, int, int]) -> None:
    size, kernel, stride, dilation = sizes
    x, weight = normal(1, 2, size), normal(2, 3, kernel)
    y = F.conv_transpose1d(x, weight, stride=stride, dilation=dilation, padding_mode=mode)
    span = dilation * (kernel - 1) + 1
    total = max(span - stride, 0)
    before = total - total // 2 if mode == "same_lower" else total // 2
    assert y.shape[2] == min(size * stride, (size - 1) * stride + span)
    whole = F.conv_transpose1d(x, weight, stride=stride, dilation=dilation)
    close(y, whole[:, :, before : before + y.shape[2]])


def test_padding_modes_of_convolution() -> None:
    x, ones = row(1, 2, 3, 4, 5), row(1, 1)
    close(F.conv1d(x, ones, stride=2), row(3, 7))
    close(F.conv1d(x, ones, stride=2, padding_mode="explicit_round_up"), row(3, 7, 5))
    close(F.conv1d(x, ones, stride=2, padding_mode="same_upper"), row(3, 7, 5))
    close(F.conv1d(x, ones, stride=2, padding_mode="same_lower"), row(1, 5, 9))
    close(F.conv1d(x, ones, padding="same"), row(3, 5, 7, 9, 5))
    close(F.conv1d(x, ones, padding="valid"), row(3, 5, 7, 9))
    close(F.conv1d(x, ones, pre_padding=2, post_padding=0), row(0, 1, 3, 5, 7, 9))
    close(F.conv1d(x, ones, padding=1, post_padding=0), row(1, 3, 5, 7, 9))


# ---------------------------------------------------------------------------------------------- against torch


def nn(torch: Any) -> Any:
    return torch.nn.functional


CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Array, ...]]] = {
    "conv1d": (
        lambda x, w, b: F.conv1d(x, w, b, 2, 3, 2),
        lambda t, x, w, b: nn(t).conv1d(x, w, b, 2, 3, 2),
        (normal(2, 4, 15), normal(6, 4, 3), normal(6)),
    ),
    "conv1d, old weight": (
        lambda x, w: F.conv1d(x, w), lambda t, x, w: nn(t).conv1d(x, w[..., 0]), (normal(2, 4, 9), normal(6, 4, 3, 1)),
    ),
    "conv2d": (
        lambda x, w, b: F.conv2d(x, w, b, (2, 1), (1, 2), 1, 2),
        lambda t, x, w, b: nn(t).conv2d(x, w, b, (2, 1), (1, 2), 1, 2),
        (normal(2, 4, 7, 8), normal(6, 2, 3, 3), normal(6)),
    ),
    "conv2d same": (
        lambda x, w: F.conv2d(x, w, padding="same", dilation=(1, 2)),
        lambda t, x, w: nn(t).conv2d(t.nn.functional.pad(x, (1, 1, 0, 1)), w, dilation=(1, 2)),
        (normal(1, 3, 7, 8), normal(5, 3, 2, 2)),
    ),
    "conv2d of one sample": (
        lambda x, w: F.conv2d(x, w, padding=1), lambda t, x, w: nn(t).conv2d(x, w, padding=1),
        (normal(4, 7, 8), normal(6, 4, 3, 3)),
    ),
    "conv3d": (
        lambda x, w, b: F.conv3d(x, w, b, padding=(0, 1, 1)),
        lambda t, x, w, b: nn(t).conv3d(x, w, b, padding=(0, 1, 1)),
        (normal(1, 2, 4, 5, 6), normal(3, 2, 2, 3, 3), normal(3)),
    ),
    "conv_transpose1d": (
        lambda x, w, b: F.conv_transpose1d(x, w, b, 3, 2, 2, 2),
        lambda t, x, w, b: nn(t).conv_transpose1d(x, w, b, 3, 2, 2, 1, 2),
        (normal(2, 4, 5), normal(4, 3, 3), normal(3)),
    ),
    "conv_transpose1d, an output_padding of the dilation": (
        lambda x, w: F.conv_transpose1d(x, w, None, 1, 1, 2, dilation=3),
        lambda t, x, w: nn(t).conv_transpose1d(x, w, None, 1, 1, 2, dilation=3),
        (normal(2, 4, 5), normal(4, 3, 2)),
    ),
    "conv_transpose2d": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, (2, 3), (1, 0), (1, 2), groups=2),
        lambda t, x, w, b: nn(t).conv_transpose2d(x, w, b, (2, 3), (1, 0), (1, 2), 2),
        (normal(2, 4, 5, 3), normal(4, 3, 3, 2), normal(6)),
    ),
    "conv_transpose2d of one sample": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2), lambda t, x, w: nn(t).conv_transpose2d(x, w, stride=2),
        (normal(4, 5, 3), normal(4, 3, 2, 2)),
    ),
    "conv_transpose3d": (
        lambda x, w: F.conv_transpose3d(x, w, stride=2, padding=1, output_padding=(1, 0, 1)),
        lambda t, x, w: nn(t).conv_transpose3d(x, w, None, 2, 1, (1, 0, 1)),
        (normal(1, 2, 3, 2, 3), normal(2, 3, 3, 3, 3)),
    ),
    "avg_pool1d": (
        lambda x: F.avg_pool1d(x, 3, 2, 1, True, False), lambda t, x: nn(t).avg_pool1d(x, 3, 2, 1, True, False),
        (normal(2, 4, 8),),
    ),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), lambda t, x: nn(t).avg_pool2d(x, 2), (normal(2, 3, 7, 8),)),
    "avg_pool2d, everything": (
        lambda x: F.avg_pool2d(x, (3, 2), (2, 3), (1, 1), True, True, 5),
        lambda t, x: nn(t).avg_pool2d(x, (3, 2), (2, 3), (1, 1), True, True, 5),
        (normal(2, 3, 7, 8),),
    ),
    "avg_pool2d of [C, H, W]": (
        lambda x: F.avg_pool2d(x, 3, padding=1, count_include_pad=False),
        lambda t, x: nn(t).avg_pool2d(x, 3, padding=1, count_include_pad=False),
        (normal(3, 7, 8),),
    ),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2, 1), lambda t, x: nn(t).avg_pool3d(x, 2, 1), (normal(1, 2, 3, 4, 5),)),
    "max_pool1d": (lambda x: F.max_pool1d(x, 3), lambda t, x: nn(t).max_pool1d(x, 3), (normal(2, 4, 8),)),
    "max_pool2d": (
        lambda x: F.max_pool2d(x, 3, 2, 1, 1, True), lambda t, x: nn(t).max_pool2d(x, 3, 2, 1, 1, True),
        (normal(2, 3, 8, 7),),
    ),
    "max_pool2d of [C, H, W], dilation": (
        lambda x: F.max_pool2d(x, (2, 3), 1, 0, (2, 1)), lambda t, x: nn(t).max_pool2d(x, (2, 3), 1, 0, (2, 1)),
        (normal(3, 8, 7),),
    ),
    "max_pool3d": (lambda x: F.max_pool3d(x, 2), lambda t, x: nn(t).max_pool3d(x, 2), (normal(1, 2, 4, 4, 5),)),
    "adaptive_avg_pool2d": (
        lambda x: F.adaptive_avg_pool2d(x, (2, 4)), lambda t, x: nn(t).adaptive_avg_pool2d(x, (2, 4)),
        (normal(2, 3, 6, 4),),
    ),
    "adaptive_avg_pool2d to 1": (
        lambda x: F.adaptive_avg_pool2d(x, 1), lambda t, x: nn(t).adaptive_avg_pool2d(x, 1), (normal(2, 3, 6, 5),),
    ),
    "adaptive_avg_pool2d, one kept, one sample": (
        lambda x: F.adaptive_avg_pool2d(x, (1, None)), lambda t, x: nn(t).adaptive_avg_pool2d(x, (1, None)),
        (normal(3, 6, 5),),
    ),
    **{
        f"{kind}{rank}d": (
            lambda x, name=f"{kind}{rank}d": getattr(F, name)(x, 3),
            lambda t, x, name=f"{kind}{rank}d": getattr(nn(t), name)(x, 3), (normal(2, 3, *(7, 5, 4)[:rank]),),
        )
        for kind in ("adaptive_avg_pool", "adaptive_max_pool") for rank in (1, 2, 3)
    },
    **{
        f"lp_pool{rank}d, norm {p}": (
            lambda x, name=f"lp_pool{rank}d", p=p: getattr(F, name)(x, p, 2, 1, True),
            lambda t, x, name=f"lp_pool{rank}d", p=p: getattr(nn(t), name)(x, p, 2, 1, True),
            (np.abs(normal(2, 3, *(7, 5, 4)[:rank])),),
        )
        for rank, p in ((1, 2), (2, 3), (2, 1.5), (3, 2))
    },
    "lp_pool2d of negative numbers": (
        lambda x: F.lp_pool2d(x, 2, 3), lambda t, x: nn(t).lp_pool2d(x, 2, 3), (normal(3, 7, 6),),
    ),
    **{
        f"grid_sample {mode}, {beyond}": (
            lambda x, g, m=mode, b=beyond: F.grid_sample(x, g, m, b, True),
            lambda t, x, g, m=mode, b=beyond: nn(t).grid_sample(x, g, m, b, True),
            (normal(2, 3, 5, 6), normal(2, 4, 3, 2)),
        )
        for mode, beyond in itertools.product(("nearest", "bilinear", "bicubic"), ("zeros", "border", "reflection"))
    },
    "grid_sample of a volume": (
        lambda x, g: F.grid_sample(x, g, align_corners=False), lambda t, x, g: nn(t).grid_sample(
            x, g, align_corners=False), (normal(2, 3, 4, 5, 6), normal(2, 2, 4, 3, 3)),
    ),
    "adaptive_avg_pool2d, one divided": (
        lambda x: F.adaptive_avg_pool2d(x, (3, 1)), lambda t, x: nn(t).adaptive_avg_pool2d(x, (3, 1)),
        (normal(1, 3, 6, 5),),
    ),
}  # fmt: skip
RESIZED: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "nearest, doubled": ({"scale_factor": 2}, (2, 3, 4, 5)),
    "nearest to a size": ({"size": (7, 3)}, (2, 3, 4, 5)),
    "nearest by a fraction": ({"scale_factor": (1.7, 0.6)}, (2, 3, 4, 5)),
    "nearest by a fraction of its own size": ({"scale_factor": 1.7, "recompute_scale_factor": True}, (2, 3, 4, 5)),
    "nearest-exact": ({"size": (9, 2), "mode": "nearest-exact"}, (2, 3, 4, 5)),
    "nearest, 3-D": ({"size": (2, 6, 5), "mode": "nearest"}, (1, 2, 2, 3, 4)),
    "linear": ({"size": 11, "mode": "linear"}, (2, 3, 4)),
    "linear, corners": ({"scale_factor": 3, "mode": "linear", "align_corners": True}, (2, 3, 4)),
    "bilinear": ({"scale_factor": 2, "mode": "bilinear"}, (2, 3, 4, 5)),
    "bilinear, smaller": ({"size": (2, 3), "mode": "bilinear"}, (2, 3, 5, 7)),
    "nearest by a fraction to its own size and to twice that": ({"scale_factor": (1.1, 2.05)}, (2, 3, 7, 9)),
    "nearest signals by a fraction to twice their size": ({"scale_factor": 2.05}, (2, 3, 9)),
    "nearest volumes by a fraction to their own size": ({"scale_factor": (1.1, 2.05, 1.1)}, (2, 3, 7, 9, 5)),
    "trilinear by a fraction to its own size": (
        {"scale_factor": (1.1, 1.7, 1.1), "mode": "trilinear"},
        (2, 3, 7, 9, 5),
    ),
    "bilinear by a fraction to its own size": ({"scale_factor": (1.1, 1.7), "mode": "bilinear"}, (2, 3, 7, 9)),
    "bilinear, a fraction": ({"scale_factor": (1.5, 2.3), "mode": "bilinear"}, (2, 3, 5, 7)),
    "bilinear, corners": ({"size": (7, 1), "mode": "bilinear", "align_corners": True}, (2, 3, 4, 5)),
    "trilinear": ({"size": (3, 4, 7), "mode": "trilinear"}, (1, 2, 2, 4, 5)),
    "bicubic": ({"scale_factor": 2, "mode": "bicubic"}, (2, 3, 4, 5)),
    "bicubic, corners": ({"size": (9, 3), "mode": "bicubic", "align_corners": True}, (1, 3, 4, 5)),
    "area, 1-D": ({"size": 3, "mode": "area"}, (2, 3, 7)),
    "area by a fraction": ({"scale_factor": (0.5, 2), "mode": "area"}, (2, 3, 7, 5)),
    "area, one mean": ({"size": 1, "mode": "area"}, (2, 3, 4, 5)),
    "area, 3-D": ({"size": (2, 3, 2), "mode": "area"}, (1, 2, 5, 4, 3)),
}


def _resized(how: dict[str, Any], shape: tuple[int, ...]) -> tuple[Callable[..., Any], Callable[..., Any], Any]:
    mode = how.get("mode", "nearest")
    theirs = {"align_corners": None} if "nearest" in mode or mode == "area" else {}
    return lambda x: F.interpolate(x, **how), lambda t, x: nn(t).interpolate(x, **theirs | how), (normal(*shape),)


CASES |= {f"interpolate: {name}": _resized(*how) for name, how in RESIZED.items()}


@pytest.mark.parametrize("name", CASES)
def test_against_torch(name: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
    ours, theirs, arrays = CASES[name]
    close(ours(*arrays), theirs(torch, *map(torch.tensor, arrays)).numpy())


@pytest.mark.parametrize("name", CASES)
def test_recorded_equals_computed(name: str) -> None:
    """By the references, and by an engine that has all but the first operand as parameters."""
    ours, _, arrays = CASES[name]
    network, feeds = Network(), {"x0": arrays[0]}
    weights = {f"x{i}": array for i, array in enumerate(arrays) if i}
    values = [network.parameter(n, Spec.of(a)) for n, a in weights.items()]
    network.outputs["y"] = ours(network.input("x0", Spec.of(arrays[0])), *values)
    close(interpret(network, feeds, weights)["y"], ours(*arrays))
    close(build_network(network, weights).run(feeds)["y"], ours(*arrays))


W = normal(4, 3, 3, 3)
DYNAMIC: dict[str, tuple[Callable[[Any], Any], str]] = {
    "conv2d": (lambda x: F.conv2d(x, W, stride=2, padding=1), "f32[N, 4, (H + 1) // 2, (W + 1) // 2]"),
    "conv2d same": (lambda x: F.conv2d(x, W, padding="same"), "f32[N, 4, H, W]"),
    "conv2d rounded up": (
        lambda x: F.conv2d(x, W, stride=2, padding_mode="explicit_round_up"), "f32[N, 4, H // 2, W // 2]",
    ),
    "conv_transpose2d": (
        lambda x: F.conv_transpose2d(x, W.swapaxes(0, 1).copy(), stride=2, padding=1, output_padding=1),
        "f32[N, 4, 2*H, 2*W]",
    ),
    "conv_transpose2d same": (
        lambda x: F.conv_transpose2d(x, W.swapaxes(0, 1).copy(), stride=2, padding_mode="same_upper"),
        "f32[N, 4, 2*H, 2*W]",
    ),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), "f32[N, 3, H // 2, W // 2]"),
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), "f32[N, 3, H // 2, W // 2]"),
    "max_pool2d, windows apart": (  # one that would begin behind x is dropped
        lambda x: F.max_pool2d(x, 2, 3, ceil_mode=True),
        "f32[N, 3, (H + 2) // 3, (W + 2) // 3]",
    ),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 1), "f32[N, 3, 1, 1]"),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, (5, None)), "f32[N, 3, 5, W]"),
    "lp_pool2d": (lambda x: F.lp_pool2d(F.abs(x), 3, 2), "f32[N, 3, H // 2, W // 2]"),
    "batch_norm": (lambda x: F.batch_norm(x, *[np.ones(3, np.float32)] * 2), "f32[N, 3, H, W]"),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=(3, 2)), "f32[N, 3, 3*H, 2*W]"),
    "interpolate by a fraction": (
        lambda x: F.interpolate(x, scale_factor=(1.5, 2), mode="bilinear"), "f32[N, 3, H + (H // 2), 2*W]",
    ),
    "interpolate to a size": (lambda x: F.interpolate(x, (9, 4), mode="bilinear"), "f32[N, 3, 9, 4]"),
    "interpolate, corners": (
        lambda x: F.interpolate(x, (9, 4), mode="bicubic", align_corners=True), "f32[N, 3, 9, 4]",
    ),
    "interpolate, nearest": (lambda x: F.interpolate(x, (9, 4)), "f32[N, 3, 9, 4]"),
}  # fmt: skip


@pytest.mark.parametrize("name", DYNAMIC)
def test_dynamic_sizes(name: str) -> None:
    """Recorded once with named dims, run at several sizes."""
    run, spec = DYNAMIC[name]
    network = Network()
    sizes = ("N", 3, Dim("H", 3, None, 64), Dim("W", 3, None, 64))
    network.outputs["y"] = run(network.input("x", Spec(sizes, "float32")))
    assert str(network.outputs["y"].spec) == spec
    for n, h, w in ((1, 3, 4), (2, 7, 6), (0, 5, 5)):
        x = normal(n, 3, h, w)
        close(interpret(network, {"x": x})["y"], run(x))


X, V = normal(1, 3, 8, 8), normal(3, 4, 3, 3)
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "output_padding": (
        lambda: F.conv_transpose2d(X, V, stride=(2, 3), output_padding=(1, 3)),
        "output_padding of spatial dimension 1 is 3; it must be at least 0 and below 3, the larger of stride 3 and",
    ),
    "output_padding below 0": (lambda: F.conv_transpose2d(X, V, output_padding=-1), "dimension 0 is -1"),
    "output_padding without room": (lambda: F.conv_transpose2d(X, V, output_padding=1), "dimension 0 is 1"),
    "padding_mode": (lambda: F.conv2d(X, W, padding_mode="circular"), "padding_mode must be one of explicit_"),
    "padding_mode of another type": (lambda: F.conv2d(X, W, padding_mode=None), "not None"),  # type: ignore[arg-type]
    "padding beside SAME": (lambda: F.conv2d(X, W, padding=1, padding_mode="same_upper"), "give none beside it"),
    "pre_padding beside SAME": (
        lambda: F.conv_transpose2d(X, V, pre_padding=(0, 1), padding_mode="same_lower"), "give none beside it",
    ),
    "a word for padding": (lambda: F.conv2d(X, W, padding="full"), '"valid" or "same", not \'full\''),
    "same with a stride": (lambda: F.conv2d(X, W, stride=2, padding="same"), 'padding "same" needs stride 1'),
    "too many entries": (lambda: F.conv2d(X, W, stride=(1, 2, 3)), "stride must be an int or 2 of them"),
    "a float": (lambda: F.conv2d(X, W, dilation=1.0), "dilation must be an int or 2 of them"),  # type: ignore[arg-type]
    "a bool": (lambda: F.avg_pool2d(X, True), "kernel_size must be an int"),
    "rank": (lambda: F.conv1d(X, normal(4, 3, 3)), r"conv1d: takes \[N, C, …\] or \[C, …\] with 1 spatial"),
    "weight rank": (lambda: F.conv2d(X, normal(4, 3, 3)), "the weight must have 4 dimensions"),
    "too small": (lambda: F.conv2d(normal(1, 3, 2, 8), W), "dimension 2 of the result would have size 0"),
    "groups": (lambda: F.conv2d(X, W, groups=2), "x has 3 channels; weight and groups want 3 · 2 = 6"),
    "integers": (lambda: F.conv2d(X.astype(np.int32), W.astype(np.int32)), "x must be float32"),
    "adaptive of another rank": (lambda: F.adaptive_avg_pool2d(X, (3, 3, 3)), "None, or 2 of them, not"),
    "adaptive to 0": (lambda: F.adaptive_avg_pool2d(X, 0), "output_size must be a positive int"),
    "corners of areas": (lambda: F.interpolate(X, 3, mode="area", align_corners=True), "is not supported"),
    "interpolate twice": (lambda: F.interpolate(X, 3, 3), "either size or scale_factor"),
    "interpolate mode": (lambda: F.interpolate(X, 3, mode="linear"), "no mode 'linear' for .*; there it knows"),
    "interpolate antialias": (lambda: F.interpolate(X, 3, mode="bilinear", antialias=True), "antialias is not"),
    "interpolate corners": (lambda: F.interpolate(X, 3, align_corners=True), "align_corners with mode 'nearest'"),
    "interpolate ints": (lambda: F.interpolate(X.astype(np.int32), 3, mode="bilinear"), "needs floats"),
    "interpolate sizes": (lambda: F.interpolate(X, (3,)), "1 sizes or factors for 2 spatial"),
    "interpolate to nothing": (lambda: F.interpolate(X, 0), "cannot go from size 8 to 0"),
    "interpolate by less than nothing": (lambda: F.interpolate(X, scale_factor=-1.0), "must be above 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    call, message = REFUSED[name]
    with pytest.raises(OpError, match=message):
        call()


def test_unknown_sizes_are_refused_where_a_number_is_needed() -> None:
    x = Network().input("x", Spec(("N", 3, "H", 8), "float32"))
    with pytest.raises(OpError, match="only known at run time, H, with stride 2"):
        F.conv2d(x, W, stride=2, padding_mode="same_upper")
    with pytest.raises(OpError, match=r"a factor of 4\.35 needs sizes that are known"):
        F.interpolate(x, scale_factor=4.35)


def test_sizes_beyond_every_memory() -> None:
    """Right, or a typed error, from the shape rule alone: nothing is allocated."""
    network = Network()
    weight = network.input("w", Spec((64, 3, 3, 3), "float32"))
    x = network.input("x", Spec((1 << 20, 3, 1 << 16, 1 << 16), "float32"))
    y = F.conv2d(x, weight, padding=1)
    assert y.shape == (1 << 20, 64, 1 << 16, 1 << 16)  # 2^58 elements
    with pytest.raises(OpError, match="too large"):
        F.conv_transpose2d(y, network.input("v", Spec((64, 64, 3, 3), "float32")), stride=8)


def test_narrow_floats_resample_in_float32() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
    x = normal(1, 2, 3, 5).astype(np.float16)
    got = F.interpolate(x, scale_factor=2, mode="bilinear")
    want = torch.nn.functional.interpolate(torch.tensor(x).float(), scale_factor=2, mode="bilinear").half().numpy()
    np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), atol=2e-3)
    assert got.dtype == np.float16
