"""conv_packed with taps along one axis by Winograd's F(4, 5) and F(2, 3) against NumPy in float64, and against the
direct product.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ingot import _native
from tests.kernels.one_call import Array, Operand, View, Weight, run
from tests.kernels.test_matmul import IDENTITY, pack
from tests.kernels.test_winograd import (
    BIAS_RELU,
    BIAS_RESIDUAL_RELU,
    NO_CHAIN,
    PAIRS,
    draw,
    in_pairs,
    inputs_of_2,
    outputs_of_2,
    weights_of_2,
)

AXES = {"down": 1, "across": 2}  # of x along which the taps lie
WINOGRAD, TWO, DIRECT = "winograd_4", "winograd_2", "direct"
TILES = pytest.mark.parametrize("tile", [WINOGRAD, TWO])  # of 4 outputs, and of 2


def outputs_along(size: int, taps: int, stride: int, pads: tuple[int, int]) -> int:
    return (size + sum(pads) - taps) // stride + 1


def conv(
    x: Operand,
    weight: Array,
    axis: str,
    stride: int = 1,
    pads: tuple[int, int] = (4, 4),
    other: tuple[int, int] = (0, 0),
    epilogue: dict[str, Any] = IDENTITY,
    extras: tuple[Operand, ...] = (),
    threads: int = 1,
    out: str = "float32",
    algorithm: str | None = None,
) -> Array:
    """x [N, H, W, C] and weight [O, taps, C]. pads: in front and behind along the taps; other: along the other axis."""
    outputs, taps, channels = weight.shape
    shape = list(x.shape[:3])  # type: ignore[union-attr]
    along, across = AXES[axis], 3 - AXES[axis]
    shape[along] = outputs_along(shape[along], taps, stride, pads)
    shape[across] += sum(other)
    lists = {"kernel": [1, 1], "stride": [1, 1], "pre_padding": [0, 0], "dilation": [1, 1]}
    for name, value in (("kernel", taps), ("stride", stride), ("pre_padding", pads[0])):
        lists[name][along - 1] = value
    lists["pre_padding"][across - 1] = other[0]
    params = {"outputs": outputs, "channels": channels, "groups": 1, "epilogue": epilogue, **lists}
    params |= {} if algorithm is None else {"algorithm": algorithm}
    panels = Weight(pack([weight.reshape(outputs, -1)]))
    return run("conv_packed", params, [x, panels, *extras], [(out, (*shape, outputs))], threads)[0]


def exact_conv(
    x: Array, weight: Array, axis: str, stride: int = 1, pads: tuple[int, int] = (4, 4), other: tuple[int, int] = (0, 0)
) -> Array:
    along, taps = AXES[axis], weight.shape[1]
    widths = [(0, 0), other, other, (0, 0)]
    widths[along] = pads
    wide = np.moveaxis(np.pad(x.astype(np.float64), widths), along, 1)
    count = outputs_along(x.shape[along], taps, stride, pads)
    terms = (
        wide[:, i : i + stride * count : stride][:, :count] @ weight[:, i].T.astype(np.float64) for i in range(taps)
    )
    return np.moveaxis(sum(terms, np.zeros((len(x), count, wide.shape[2], len(weight)))), 1, along)


def draw_weight(rng: np.random.Generator, outputs: int, taps: int, channels: int) -> Array:
    return draw(rng, outputs, taps, channels) / np.float32((taps * channels) ** 0.5)


def close(found: Array, exact: Array) -> None:
    """Outputs are about 1, and so is the scale of the sums."""
    assert found.shape == exact.shape
    assert np.all(np.abs(found - exact) <= 3e-5), np.abs(found - exact).max()


def both(image: tuple[int, int], axis: str) -> tuple[int, int]:
    """Sizes along and beside the taps as height and width."""
    return image if axis == "down" else (image[1], image[0])


@TILES
@pytest.mark.sampled(6)
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("taps", [3, 4, 5, 6, 7, 9, 10, 11, 13, 21])
@pytest.mark.parametrize(("channels", "outputs"), [(1, 1), (3, 8), (16, 32), (17, 33), (64, 64), (65, 31), (40, 100)])
@pytest.mark.parametrize("image", [(21, 1), (22, 2), (23, 18), (24, 35)])
def test_sizes(
    image: tuple[int, int], channels: int, outputs: int, taps: int, stride: int, axis: str, tile: str
) -> None:
    """Also with pads in front only or behind only, with two threads, and an image without the other."""
    rng = np.random.default_rng(channels * taps)
    x, weight = draw(rng, 2, *both(image, axis), channels), draw_weight(rng, outputs, taps, channels)
    for pads in ((taps // 2, taps // 2), (taps - 1, 0), (0, 0), (2, taps + 3)):
        found = conv(x, weight, axis, stride, pads, algorithm=tile)
        close(found, exact_conv(x, weight, axis, stride, pads))
        assert np.array_equal(conv(x, weight, axis, stride, pads, threads=2, algorithm=tile), found)
        assert np.array_equal(conv(x[1:], weight, axis, stride, pads, algorithm=tile), found[1:])


@TILES
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("images", [0, 1, 3])
@pytest.mark.parametrize("other", [(0, 0), (1, 2), (5, 0)])
def test_padding_beside_the_taps(other: tuple[int, int], images: int, axis: str, tile: str) -> None:
    rng = np.random.default_rng(images)
    x, weight = draw(rng, images, 11, 12, 24), draw_weight(rng, 40, 7, 24)
    found = conv(x, weight, axis, other=other, algorithm=tile)
    close(found, exact_conv(x, weight, axis, other=other))


@TILES
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("image", [(1, 1), (3, 2), (9, 0), (0, 9)])
def test_small_images(image: tuple[int, int], axis: str, tile: str) -> None:
    rng = np.random.default_rng(1)
    x, weight = draw(rng, 2, *both(image, axis), 20), draw_weight(rng, 33, 9, 20)
    close(conv(x, weight, axis, algorithm=tile), exact_conv(x, weight, axis))


def test_error_of_many_channels() -> None:
    """Below three times the error of the direct sum; other tiles or points make it seven times and more."""
    rng = np.random.default_rng(1)
    for channels, most in ((64, 1.2e-6), (256, 2.4e-6)):
        x, weight = np.maximum(draw(rng, 1, 40, 18, channels), 0), draw_weight(rng, 32, 9, channels)
        exact = exact_conv(x, weight, "down")
        error = conv(x, weight, "down") - exact
        assert np.sqrt((error**2).mean() / (exact**2).mean()) < most
        assert np.abs(error).max() < 6e-6 * np.abs(exact).max()


@TILES
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize(("channels", "outputs"), [(5, 33), (70, 40)])
def test_sixteen_bits(dtype: Any, channels: int, outputs: int, axis: str, tile: str) -> None:
    """What is stored is rounded, the sums are float32: as exact as those of float32, and a result is rounded once."""
    rng = np.random.default_rng(channels)
    x, weight = draw(rng, 3, 12, 13, channels).astype(dtype), draw_weight(rng, outputs, 9, channels).astype(dtype)
    sums = conv(x, weight, axis, threads=2, algorithm=tile)
    if not (PAIRS and dtype is ml_dtypes.bfloat16 and tile == TWO):
        close(sums, exact_conv(x.astype(np.float32), weight.astype(np.float32), axis))
    stored = conv(x, weight, axis, out=np.dtype(dtype).name, algorithm=tile)
    assert np.array_equal(stored, sums.astype(dtype))


def conv_in_pairs(x: Array, weight: Array, axis: str, stride: int, before: int, count: int) -> Array:
    """What products of bfloat16 make of tiles of 2 outputs, of blocks of 3 taps; `count` outputs along the axis."""
    along, taps = AXES[axis], weight.shape[1]
    lines = np.moveaxis(x, along, 1).astype(np.float32)
    wide = np.pad(lines, ((0, 0), (before, 4 * taps * stride), (0, 0), (0, 0)))
    tiles = np.arange(0, count, 2)
    sums = np.zeros((len(x), len(tiles), lines.shape[2], 4, len(weight)))
    for block in range(taps):
        first = block // stride * 3 * stride + block % stride
        own = np.zeros((3, len(weight), x.shape[-1]))
        for i, tap in enumerate(range(first, min(first + 3 * stride, taps), stride)):
            own[i] = weight[:, tap]
        patch = np.stack([wide[:, tiles * stride + first + i * stride] for i in range(4)])
        sums += in_pairs(np.moveaxis(inputs_of_2(patch), 0, -2), weights_of_2(own))
    both_outputs = outputs_of_2(np.moveaxis(sums, -2, 0))
    found = np.moveaxis(both_outputs, 0, 2).reshape(len(x), 2 * len(tiles), lines.shape[2], len(weight))
    return np.moveaxis(found[:, :count], 1, along)


@pytest.mark.skipif(not PAIRS, reason="this level has no products of bfloat16")
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("taps", [3, 4, 9])
@pytest.mark.parametrize(("channels", "outputs"), [(1, 1), (17, 33), (64, 40), (150, 70)])
def test_products_of_bfloat16(channels: int, outputs: int, taps: int, stride: int, axis: str) -> None:
    """Transformed inputs and weights are rounded to bfloat16, sums and transforms of outputs are float32."""
    rng = np.random.default_rng(channels + taps)
    image, pads = both((23, 18), axis), (taps // 2, taps // 2)
    x = draw(rng, 2, *image, channels).astype(ml_dtypes.bfloat16)
    weight = draw_weight(rng, outputs, taps, channels).astype(ml_dtypes.bfloat16)
    found = conv(x, weight, axis, stride, pads, algorithm=TWO)
    close(found, conv_in_pairs(x, weight, axis, stride, pads[0], found.shape[AXES[axis]]))
    assert np.array_equal(conv(x, weight, axis, stride, pads, threads=3, algorithm=TWO), found)
    assert np.array_equal(conv(x[1:], weight, axis, stride, pads, threads=2, algorithm=TWO), found[1:])


def test_error_of_products_of_bfloat16() -> None:
    """1.3 times what rounding an output to bfloat16 loses."""
    rng = np.random.default_rng(1)
    x = np.maximum(draw(rng, 1, 40, 18, 64), 0).astype(ml_dtypes.bfloat16)
    weight = draw_weight(rng, 32, 9, 64).astype(ml_dtypes.bfloat16)
    exact = exact_conv(x.astype(np.float32), weight.astype(np.float32), "down")
    error, rounding = conv(x, weight, "down", algorithm=TWO) - exact, exact.astype(ml_dtypes.bfloat16) - exact
    assert np.sqrt((error**2).mean()) < 1.5 * np.sqrt((rounding**2).mean())


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("stride", [1, 2])
def test_the_rules(stride: int, axis: str, dtype: Any) -> None:
    """Where it pays it is taken, and the others have other bits."""
    rng = np.random.default_rng(2)
    x, weight = draw(rng, 1, 20, 20, 64).astype(dtype), draw_weight(rng, 64, 9, 64).astype(dtype)
    found = {word: conv(x, weight, axis, stride, algorithm=word) for word in (WINOGRAD, DIRECT, None, TWO)}
    if not (PAIRS and dtype is ml_dtypes.bfloat16):
        taken = WINOGRAD
    else:
        taken = DIRECT if _native.level() == "amx" else TWO
    assert [word for word in (WINOGRAD, DIRECT, TWO) if np.array_equal(found[None], found[word])] == [taken]
    if taken == TWO and stride == 1:
        four = weight[:, :4]  # 7 products of 8 are left
        assert np.array_equal(conv(x, four, axis, stride), conv(x, four, axis, stride, algorithm=DIRECT))
    few, taps = x[..., :3], weight[..., :3]
    assert np.array_equal(conv(few, taps, axis, stride), conv(few, taps, axis, stride, algorithm=DIRECT))


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation"),
    [([9, 1], [3, 1], [1, 1]), ([9, 1], [1, 1], [2, 1]), ([9, 1], [1, 2], [1, 1]), ([5, 3], [1, 1], [1, 1]),
     ([1, 2], [1, 1], [1, 1]), ([65, 1], [1, 1], [1, 1])],
)  # fmt: skip
def test_windows_that_it_cannot_take(kernel: list[int], stride: list[int], dilation: list[int]) -> None:
    rng = np.random.default_rng(3)
    taps, pads = kernel[0] * kernel[1], [k // 2 for k in kernel]
    x, weight = draw(rng, 1, 70, 20, 16), Weight(pack([draw_weight(rng, 32, taps, 16).reshape(32, -1)]))
    sizes = [
        (size + 2 * pad - apart * (k - 1) - 1) // step + 1
        for size, pad, apart, k, step in zip((70, 20), pads, dilation, kernel, stride, strict=True)
    ]
    params = {"outputs": 32, "channels": 16, "groups": 1, "epilogue": IDENTITY, "kernel": kernel, "stride": stride,
              "dilation": dilation, "pre_padding": pads}  # fmt: skip
    found = [
        run("conv_packed", {**params, **more}, [x, weight], [("float32", (1, *sizes, 32))])[0]
        for more in ({}, {"algorithm": WINOGRAD}, {"algorithm": DIRECT})
    ]
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])


@pytest.mark.parametrize("algorithm", [WINOGRAD, None])
@pytest.mark.parametrize("stride", [1, 2])
def test_one_axis(stride: int, algorithm: str | None) -> None:
    """[N, L, C] is a line of [N, 1, L, C]."""
    rng = np.random.default_rng(4)
    x, weight = draw(rng, 3, 75, 40), draw_weight(rng, 40, 5, 40)
    bias, count = draw(rng, 40), outputs_along(75, 5, stride, (2, 2))
    params = {"outputs": 40, "channels": 40, "groups": 1, "epilogue": BIAS_RELU, "kernel": [5], "stride": [stride],
              "dilation": [1], "pre_padding": [2]}  # fmt: skip
    params |= {} if algorithm is None else {"algorithm": algorithm}
    operands: list[Operand] = [x, Weight(pack([weight.reshape(40, -1)])), Weight(bias)]
    found = run("conv_packed", params, operands, [("float32", (3, count, 40))], 2)[0]
    extras = (Weight(bias),)
    wide = conv(x[:, None], weight, "across", stride, (2, 2), epilogue=BIAS_RELU, extras=extras, algorithm=algorithm)
    assert np.array_equal(found, wide[:, 0])
    close(wide, np.maximum(exact_conv(x[:, None], weight, "across", stride, (2, 2)) + bias, 0))


@TILES
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize(("channels", "outputs"), [(20, 150), (130, 40)])
def test_an_images_bits_do_not_depend_on_its_company(channels: int, outputs: int, axis: str, tile: str) -> None:
    rng = np.random.default_rng(channels)
    x, weight = draw(rng, 9, 13, 10, channels), draw_weight(rng, outputs, 9, channels)
    whole = conv(x, weight, axis, algorithm=tile)
    for threads in (1, 2, 3, 4):
        assert np.array_equal(conv(x, weight, axis, threads=threads, algorithm=tile), whole)
        assert np.array_equal(conv(x[4:5], weight, axis, threads=threads, algorithm=tile), whole[4:5])
        assert np.array_equal(conv(x[:3], weight, axis, threads=threads, algorithm=tile), whole[:3])


@TILES
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("outputs", [30, 64, 100])
def test_epilogue(threads: int, outputs: int, axis: str, tile: str) -> None:
    rng = np.random.default_rng(outputs)
    x, weight, bias = draw(rng, 2, 19, 21, 16), draw_weight(rng, outputs, 9, 16), draw(rng, outputs)
    residual, sums = draw(rng, 2, 19, 21, outputs), exact_conv(x, weight, axis)

    def with_epilogue(epilogue: dict[str, Any], *extras: Operand) -> Array:
        return conv(x, weight, axis, epilogue=epilogue, extras=extras, threads=threads, algorithm=tile)

    close(with_epilogue(BIAS_RELU, Weight(bias)), np.maximum(sums + bias, 0))
    close(with_epilogue(BIAS_RESIDUAL_RELU, Weight(bias), residual), np.maximum(sums + bias + residual, 0))
    close(with_epilogue(NO_CHAIN) / 8, (sums * sums + sums) / 8)


@TILES
def test_strided_input(tile: str) -> None:
    rng = np.random.default_rng(5)
    wide, weight = draw(rng, 3, 24, 20, 48), draw_weight(rng, 32, 9, 24)
    stride = (24 * 20 * 48, 20 * 48, 48, 1)
    x = View(wide, (2, 19, 11, 24), stride, offset=2 * 20 * 48 + 3 * 48 + 8)
    dense = np.ascontiguousarray(wide[:2, 2:21, 3:14, 8:32])
    for axis in AXES:
        found = conv(x, weight, axis, algorithm=tile)
        assert np.array_equal(found, conv(dense, weight, axis, algorithm=tile))


@TILES
@pytest.mark.sampled(6)
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 1, 2, 3, 4, 5, 6, 7, 8, 17, 21])
def test_values_that_are_not_finite(place: int, value: float, stride: int, axis: str, tile: str) -> None:
    """They stay in the outputs that read them; tiles that they touch have the bits of the direct product."""
    rng = np.random.default_rng(6)
    x, weight = draw(rng, 2, 22, 22, 20), draw_weight(rng, 40, 9, 20)
    clean = conv(x, weight, axis, stride, algorithm=tile)
    at = (place, 5) if axis == "down" else (5, place)
    x[1, at[0], at[1], 7] = value
    found = conv(x, weight, axis, stride, threads=2, algorithm=tile)
    direct = conv(x, weight, axis, stride, algorithm=DIRECT)
    near = np.zeros(clean.shape, bool)
    reading = [o for o in range(clean.shape[AXES[axis]]) if abs(o * stride - place) <= 4]
    near[(1, reading, 5) if axis == "down" else (1, 5, reading)] = True
    assert np.array_equal(found[near], direct[near], equal_nan=True)
    assert not np.any(np.isfinite(found[near]))
    assert np.allclose(found[~near], clean[~near], rtol=0, atol=1.5e-5)
    assert np.array_equal(found[0], clean[0])


@TILES
@pytest.mark.parametrize("axis", AXES)
def test_a_weight_that_is_not_finite(axis: str, tile: str) -> None:
    rng = np.random.default_rng(7)
    x, weight = draw(rng, 1, 14, 15, 16), draw_weight(rng, 40, 9, 16)
    weight[3, 4, 5], weight[36, 0, 0], weight[39, 8, 1] = np.inf, np.nan, -np.inf
    found = conv(x, weight, axis, algorithm=tile)
    assert np.array_equal(found, conv(x, weight, axis, algorithm=DIRECT), equal_nan=True)
    few = np.delete(np.arange(40), [3, 36, 39])
    assert np.all(np.isfinite(found[..., few]))
