"""conv_packed by Winograd's F(4x4, 3x3) and (images of up to 99 pixels) F(2x2, 3x3) against NumPy in float64, and
against the direct product. The same convolution takes that with a third dimension of size 1."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ingot import _native
from tests.kernels.one_call import Array, Operand, View, Weight, run
from tests.kernels.test_matmul import IDENTITY, pack

BIAS_RELU = {
    "steps": [
        ["input", "float32", 0],
        ["input", "float32", 1],
        ["add", "float32", 0, 1],
        ["const", "float32", 0.0],
        ["max", "float32", 2, 3],
    ],
    "outputs": [4],
}
BIAS_RESIDUAL_RELU = {
    "steps": [
        ["input", "float32", 0],
        ["input", "float32", 1],
        ["add", "float32", 0, 1],
        ["input", "float32", 2],
        ["add", "float32", 2, 3],
        ["const", "float32", 0.0],
        ["max", "float32", 4, 5],
    ],
    "outputs": [6],
}
NO_CHAIN = {  # sum² + sum: a value used twice
    "steps": [["input", "float32", 0], ["mul", "float32", 0, 0], ["add", "float32", 0, 1]],
    "outputs": [2],
}
Pads = tuple[int, int, int, int]  # top, bottom, left, right
PAIRS = _native.level() in ("avx512_bf16", "amx")  # products of bfloat16, which tiles of 2 outputs take


def inputs_of_2(d: Array) -> Array:
    """Four inputs, along the first axis, of a tile of 2 outputs at its positions."""
    return np.stack([d[0] - d[2], d[1] + d[2], d[2] - d[1], d[3] - d[1]])


def weights_of_2(g: Array) -> Array:
    """Three taps, along the first axis, at the positions."""
    return np.stack([g[0], (g[0] + g[1] + g[2]) / 2, (g[0] - g[1] + g[2]) / 2, g[2]])


def outputs_of_2(m: Array) -> Array:
    return np.stack([m[0] + m[1] + m[2], m[1] - m[2] + m[3]])


def in_pairs(v: Array, u: Array) -> Array:
    """Products of transformed inputs [..., positions, C] and weights [positions, O, C], both rounded to bfloat16."""
    narrow = [array.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64) for array in (v, u)]
    return np.einsum("...pc,poc->...po", *narrow)


def out_sizes(x: Operand, pads: Pads) -> tuple[int, int]:
    _, height, width, _ = x.shape  # type: ignore[union-attr]
    return height + pads[0] + pads[1] - 2, width + pads[2] + pads[3] - 2


def conv(
    x: Operand,
    weight: Array,
    pads: Pads = (1, 1, 1, 1),
    epilogue: dict[str, Any] = IDENTITY,
    extras: tuple[Operand, ...] = (),
    threads: int = 1,
    out: str = "float32",
    direct: bool = False,
    algorithm: str | None = None,
) -> Array:
    """x [N, H, W, C] and weight [O, 3, 3, C]. direct: as [N, 1, H, W, C], which never takes Winograd."""
    outputs, _, _, channels = weight.shape
    height, width = out_sizes(x, pads)
    shape: tuple[int, ...] = (x.shape[0], height, width, outputs)  # type: ignore[union-attr]
    lists = {"kernel": [3, 3], "stride": [1, 1], "pre_padding": [pads[0], pads[2]], "dilation": [1, 1]}
    if direct:
        assert isinstance(x, np.ndarray)
        x, shape = x[:, None], (shape[0], 1, *shape[1:])
        extras = tuple(e[:, None] if isinstance(e, np.ndarray) and e.ndim == 4 else e for e in extras)
        lists = {name: [0 if name == "pre_padding" else 1, *list_] for name, list_ in lists.items()}
    params = {"outputs": outputs, "channels": channels, "groups": 1, "epilogue": epilogue, **lists}
    params |= {} if algorithm is None else {"algorithm": algorithm}
    panels = Weight(pack([weight.reshape(outputs, -1)]))
    y = run("conv_packed", params, [x, panels, *extras], [(out, shape)], threads)[0]
    return y[:, 0] if direct else y


def exact_conv(x: Array, weight: Array, pads: Pads = (1, 1, 1, 1)) -> Array:
    height, width = out_sizes(x, pads)
    wide = np.pad(x.astype(np.float64), ((0, 0), pads[:2], pads[2:], (0, 0)))
    taps = (
        wide[:, i : i + height, j : j + width] @ weight[:, i, j].T.astype(np.float64)
        for i in range(3)
        for j in range(3)
    )
    return sum(taps, np.zeros((len(x), height, width, len(weight))))


def draw(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def draw_weight(rng: np.random.Generator, outputs: int, channels: int) -> Array:
    return draw(rng, outputs, 3, 3, channels) / np.float32(3 * channels**0.5)


def close(found: Array, exact: Array) -> None:
    """Outputs are about 1, and so is the scale of the sums."""
    assert found.shape == exact.shape
    assert np.all(np.abs(found - exact) <= 1.5e-5), np.abs(found - exact).max()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("channels", "outputs"), [(4, 1), (16, 32), (17, 33), (64, 64), (65, 31), (128, 70), (100, 96)]
)
@pytest.mark.parametrize(("height", "width"), [(6, 6), (7, 7), (9, 11), (9, 23), (13, 10)])
def test_sizes(channels: int, outputs: int, height: int, width: int) -> None:
    rng = np.random.default_rng(channels * height)
    x, weight = draw(rng, 2, height, width, channels), draw_weight(rng, outputs, channels)
    close(conv(x, weight, threads=2), exact_conv(x, weight))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "pads", [(0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (0, 1, 2, 1), (2, 0, 0, 2), (1, 0, 0, 0), (6, 5, 7, 9)]
)
@pytest.mark.parametrize("images", [0, 1, 3])
@pytest.mark.parametrize("width", [9, 15])
def test_padding(pads: Pads, images: int, width: int) -> None:
    rng = np.random.default_rng(images)
    x, weight = draw(rng, images, 10, width, 24), draw_weight(rng, 40, 24)
    close(conv(x, weight, pads), exact_conv(x, weight, pads))


def test_error_of_many_channels() -> None:
    """Twice the error of the direct sum, not the five times of the usual interpolation points."""
    rng = np.random.default_rng(1)
    x, weight = np.maximum(draw(rng, 1, 14, 14, 512), 0), draw_weight(rng, 32, 512)
    exact = exact_conv(x, weight)
    error = conv(x, weight) - exact
    assert np.sqrt((error**2).mean() / (exact**2).mean()) < 3e-6
    assert np.abs(error).max() < 1e-5 * np.abs(exact).max()


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize(("height", "width"), [(8, 9), (13, 10)])
@pytest.mark.parametrize(("channels", "outputs"), [(5, 33), (70, 40)])
def test_sixteen_bits(dtype: Any, height: int, width: int, channels: int, outputs: int) -> None:
    """What is stored is rounded, the sums are float32: as exact as those of float32, and a result is rounded once."""
    rng = np.random.default_rng(channels)
    x, weight = draw(rng, 3, height, width, channels), draw_weight(rng, outputs, channels)
    x, weight = x.astype(dtype), weight.astype(dtype)
    sums = conv(x, weight, threads=2)
    close(sums, exact_conv(x.astype(np.float32), weight.astype(np.float32)))
    stored = conv(x, weight, out=np.dtype(dtype).name)
    assert np.array_equal(stored, sums.astype(dtype))
    assert np.array_equal(conv(x[1:2], weight), sums[1:2])
    x[0, 4, 5, 2] = np.inf
    found = conv(x, weight)
    near = np.zeros(found.shape, bool)
    near[0, 3:6, 4:7] = True
    assert not np.any(np.isfinite(found[near]))
    assert np.allclose(found[~near], sums[~near], rtol=0, atol=1.5e-5)


@pytest.mark.parametrize("size", [9, 12])
def test_this_is_not_the_direct_product(size: int) -> None:
    rng = np.random.default_rng(2)
    x, weight = draw(rng, 1, size, size, 32), draw_weight(rng, 32, 32)
    found, direct = conv(x, weight), conv(x, weight, direct=True)
    close(found, direct)
    assert np.any(found != direct)


@pytest.mark.parametrize(("channels", "outputs"), [(5, 32), (20, 150), (130, 40)])
@pytest.mark.parametrize("width", [8, 14])
def test_an_images_bits_do_not_depend_on_its_company(channels: int, outputs: int, width: int) -> None:
    rng = np.random.default_rng(channels)
    x, weight = draw(rng, 9, 9, width, channels), draw_weight(rng, outputs, channels)
    whole = conv(x, weight)
    for threads in (1, 2, 3, 4):
        assert np.array_equal(conv(x, weight, threads=threads), whole)
        assert np.array_equal(conv(x[4:5], weight, threads=threads), whole[4:5])
        assert np.array_equal(conv(x[:3], weight, threads=threads), whole[:3])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("outputs", [30, 64, 100])
@pytest.mark.parametrize("width", [7, 13])
def test_epilogue(threads: int, outputs: int, width: int) -> None:
    rng = np.random.default_rng(outputs)
    x, weight, bias = draw(rng, 2, 9, width, 16), draw_weight(rng, outputs, 16), draw(rng, outputs)
    residual = draw(rng, 2, 9, width, outputs)
    sums = exact_conv(x, weight)
    close(conv(x, weight, epilogue=BIAS_RELU, extras=(Weight(bias),), threads=threads), np.maximum(sums + bias, 0))
    found = conv(x, weight, epilogue=BIAS_RESIDUAL_RELU, extras=(Weight(bias), residual), threads=threads)
    close(found, np.maximum(sums + bias + residual, 0))
    close(conv(x, weight, epilogue=NO_CHAIN, threads=threads) / 4, (sums * sums + sums) / 4)
    scalar = np.array(0.25, np.float32)
    close(conv(x, weight, epilogue=BIAS_RELU, extras=(scalar,), threads=threads), np.maximum(sums + 0.25, 0))


@pytest.mark.parametrize("out", ["bfloat16", "float16"])
@pytest.mark.parametrize("outputs", [30, 64])
def test_epilogue_into_a_narrower_dtype(out: str, outputs: int) -> None:
    rng = np.random.default_rng(3)
    x, weight, bias = draw(rng, 1, 9, 13, 16), draw_weight(rng, outputs, 16), draw(rng, outputs)
    whole = conv(x, weight, epilogue=BIAS_RELU, extras=(Weight(bias),))
    found = conv(x, weight, epilogue=BIAS_RELU, extras=(Weight(bias),), out=out)
    assert np.array_equal(found, whole.astype(found.dtype))


def test_chains_and_tiles_agree() -> None:
    """An expression that is computed in registers, and one that is not for steps that change nothing."""
    rng = np.random.default_rng(4)
    x, weight, bias = draw(rng, 1, 8, 9, 16), draw_weight(rng, 40, 16), draw(rng, 40)
    for step in ("silu", "sigmoid", "tanh", "abs"):
        chain = [["input", "float32", 0], ["input", "float32", 1], ["sub", "float32", 0, 1], [step, "float32", 2]]
        longer = [*chain, *[["neg", "float32", i] for i in range(3, 5)]]
        found = [
            conv(x, weight, epilogue={"steps": steps, "outputs": [len(steps) - 1]}, extras=(Weight(bias),))
            for steps in (chain, longer)
        ]
        assert np.array_equal(found[0], found[1])


def test_strided_input() -> None:
    rng = np.random.default_rng(5)
    wide, weight = draw(rng, 3, 12, 20, 48), draw_weight(rng, 32, 24)
    stride = (12 * 20 * 48, 20 * 48, 48, 1)
    x = View(wide, (2, 9, 11, 24), stride, offset=2 * 20 * 48 + 3 * 48 + 8)
    dense = np.ascontiguousarray(wide[:2, 2:11, 3:14, 8:32])
    assert np.array_equal(conv(x, weight), conv(dense, weight))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [(0, 0), (3, 4), (4, 3), (5, 8), (9, 7), (10, 0)])
@pytest.mark.parametrize("width", [9, 12])
def test_values_that_are_not_finite(value: float, place: tuple[int, int], width: int) -> None:
    """They stay in the 3x3 outputs that read them; tiles that they touch have the bits of the direct product."""
    rng = np.random.default_rng(6)
    x, weight = draw(rng, 2, 11, width, 20), draw_weight(rng, 40, 20)
    clean = conv(x, weight)
    x[1, place[0], place[1], 7] = value
    found, direct = conv(x, weight, threads=2), conv(x, weight, direct=True)
    near = np.zeros(clean.shape, bool)
    near[1, max(place[0] - 1, 0) : place[0] + 2, max(place[1] - 1, 0) : place[1] + 2] = True
    assert np.array_equal(found[near], direct[near], equal_nan=True)
    assert not np.any(np.isfinite(found[near]))
    assert np.allclose(found[~near], clean[~near], rtol=0, atol=1.5e-5)
    assert np.array_equal(found[0], clean[0])


@pytest.mark.parametrize("width", [9, 14])
def test_a_weight_that_is_not_finite(width: int) -> None:
    rng = np.random.default_rng(7)
    x, weight = draw(rng, 1, 9, width, 16), draw_weight(rng, 40, 16)
    weight[3, 1, 2, 5], weight[36, 0, 0, 0] = np.inf, np.nan
    found, direct = conv(x, weight), conv(x, weight, direct=True)
    assert np.array_equal(found, direct, equal_nan=True)
    assert not np.any(np.isfinite(found[..., [3, 36]]))
    assert np.all(np.isfinite(np.delete(found, [3, 36], axis=-1)))


# ------------------------------------------------------------------------------------------------- a chosen algorithm


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("algorithm", ["direct", "winograd_2", "winograd_4"])
@pytest.mark.parametrize(("channels", "outputs"), [(1, 1), (2, 33), (3, 8), (20, 5), (70, 40)])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (2, 5), (3, 3), (9, 11), (13, 10)])
def test_each_algorithm_at_any_size(
    algorithm: str, channels: int, outputs: int, height: int, width: int, dtype: Any
) -> None:
    """Also where the rules take another one: small images, few channels, few outputs, fast direct products."""
    rng = np.random.default_rng(channels * height)
    x, weight = draw(rng, 2, height, width, channels).astype(dtype), draw_weight(rng, outputs, channels).astype(dtype)
    exact = exact_conv(x.astype(np.float32), weight.astype(np.float32))
    found = [conv(x, weight, threads=threads, algorithm=algorithm) for threads in (1, 2)]
    assert np.array_equal(*found)
    assert np.array_equal(conv(x[1:], weight, algorithm=algorithm), found[0][1:])
    if not (PAIRS and dtype is ml_dtypes.bfloat16 and algorithm == "winograd_2"):
        close(found[0], exact)


def conv_in_pairs(x: Array, weight: Array) -> Array:
    """What products of bfloat16 make of tiles of 2x2 outputs, with a border of one pixel."""
    _, height, width, channels = x.shape
    down, across = (height + 1) // 2, (width + 1) // 2
    wide = np.pad(x.astype(np.float32), ((0, 0), (1, 3), (1, 3), (0, 0)))
    rows = np.stack([wide[:, i : i + 2 * down : 2] for i in range(4)])
    patch = np.stack([rows[:, :, :, j : j + 2 * across : 2] for j in range(4)], 1)  # [4, 4, N, down, across, C]
    half = inputs_of_2(patch)
    v = np.stack([inputs_of_2(row) for row in half]).reshape(16, len(x), down, across, channels)
    g = np.moveaxis(weight.astype(np.float64), (1, 2), (0, 1))
    u = np.stack([weights_of_2(row) for row in weights_of_2(g)]).reshape(16, len(weight), channels)
    m = np.moveaxis(in_pairs(np.moveaxis(v, 0, -2), u), -2, 0).reshape(4, 4, len(x), down, across, len(weight))
    y = np.stack([outputs_of_2(row) for row in outputs_of_2(m)])  # [2, 2, N, down, across, O]
    found = np.transpose(y, (2, 3, 0, 4, 1, 5)).reshape(len(x), 2 * down, 2 * across, len(weight))
    return found[:, :height, :width]


@pytest.mark.skipif(not PAIRS, reason="this level has no products of bfloat16")
@pytest.mark.parametrize(("channels", "outputs"), [(1, 1), (3, 8), (17, 33), (64, 40), (150, 70)])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 5), (13, 10), (24, 9)])
def test_products_of_bfloat16(channels: int, outputs: int, height: int, width: int) -> None:
    """Transformed inputs and weights are rounded to bfloat16, sums and transforms of outputs are float32."""
    rng = np.random.default_rng(channels * height)
    x = draw(rng, 2, height, width, channels).astype(ml_dtypes.bfloat16)
    weight = draw_weight(rng, outputs, channels).astype(ml_dtypes.bfloat16)
    close(conv(x, weight, threads=2, algorithm="winograd_2"), conv_in_pairs(x, weight))


def test_error_of_products_of_bfloat16() -> None:
    """1.7 times what rounding an output to bfloat16 loses."""
    rng = np.random.default_rng(1)
    x = np.maximum(draw(rng, 1, 14, 14, 128), 0).astype(ml_dtypes.bfloat16)
    weight = draw_weight(rng, 32, 128).astype(ml_dtypes.bfloat16)
    exact = exact_conv(x.astype(np.float32), weight.astype(np.float32))
    error, rounding = conv(x, weight, algorithm="winograd_2") - exact, exact.astype(ml_dtypes.bfloat16) - exact
    assert np.sqrt((error**2).mean()) < 2 * np.sqrt((rounding**2).mean())


@pytest.mark.parametrize(("channels", "taken"), [(64, "winograd_4"), (128, "winograd_2")])
def test_bfloat16_by_the_rules(channels: int, taken: str) -> None:
    """Where a level has products of it, many channels take tiles of 2x2 outputs, small images the direct product."""
    rng = np.random.default_rng(4)
    x = draw(rng, 1, 12, 12, channels).astype(ml_dtypes.bfloat16)
    weight = draw_weight(rng, 33, channels).astype(ml_dtypes.bfloat16)
    taken = "direct" if _native.level() == "amx" else taken if PAIRS else "winograd_4"
    found = {word: conv(x, weight, algorithm=word) for word in ("direct", "winograd_2", "winograd_4")}
    assert np.array_equal(conv(x, weight), found[taken])
    assert len({array.tobytes() for array in found.values()}) == 3
    small = x[:, :9, :9]
    if PAIRS:
        assert np.array_equal(conv(small, weight), conv(small, weight, algorithm="direct"))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [(0, 0), (3, 4), (4, 3), (5, 8), (9, 7)])
def test_values_of_bfloat16_that_are_not_finite(value: float, place: tuple[int, int]) -> None:
    rng = np.random.default_rng(6)
    x = draw(rng, 1, 11, 12, 20).astype(ml_dtypes.bfloat16)
    weight = draw_weight(rng, 40, 20).astype(ml_dtypes.bfloat16)
    clean = conv(x, weight, algorithm="winograd_2")
    x[0, place[0], place[1], 7] = value
    found = conv(x, weight, threads=2, algorithm="winograd_2")
    near = np.zeros(clean.shape, bool)
    near[0, max(place[0] - 1, 0) : place[0] + 2, max(place[1] - 1, 0) : place[1] + 2] = True
    assert not np.any(np.isfinite(found[near]))
    most = 3e-2 if PAIRS else 1.5e-5  # tiles that it touches are computed in float32
    assert np.allclose(found[~near], clean[~near], rtol=0, atol=most)


@pytest.mark.parametrize("shape", [(0, 5, 5, 4), (1, 0, 0, 4)])
@pytest.mark.parametrize("algorithm", ["direct", "winograd_2", "winograd_4"])
def test_no_images_and_no_pixels(algorithm: str, shape: tuple[int, ...]) -> None:
    x, weight = np.zeros(shape, np.float32), np.ones((3, 3, 3, 4), np.float32)
    found = conv(x, weight, (1, 1, 1, 1) if shape[0] == 0 else (1, 1, 2, 1), algorithm=algorithm)
    assert found.size == 0


@pytest.mark.parametrize("size", [9, 12])
def test_an_algorithm_is_the_one_that_runs(size: int) -> None:
    rng = np.random.default_rng(2)
    x, weight = draw(rng, 1, size, size, 32), draw_weight(rng, 32, 32)
    found = {word: conv(x, weight, algorithm=word) for word in ("direct", "winograd_2", "winograd_4")}
    assert len({array.tobytes() for array in found.values()}) == 3
    assert np.array_equal(found["winograd_2" if size == 9 else "winograd_4"], conv(x, weight))


def test_an_algorithm_that_a_convolution_cannot_take_is_as_none() -> None:
    """Integers, and a weight that is computed."""
    rng = np.random.default_rng(3)
    x, weight = rng.integers(-128, 128, (1, 9, 9, 4), np.int8), rng.integers(-127, 128, (8, 36), np.int8)
    params = {"outputs": 8, "channels": 4, "groups": 1, "epilogue": IDENTITY, "kernel": [3, 3], "stride": [1, 1],
              "pre_padding": [1, 1], "dilation": [1, 1]}  # fmt: skip
    for some in (params, {**params, "algorithm": "winograd_4"}):
        found = run("conv_packed", some, [x, Weight(pack([weight]))], [("float32", (1, 9, 9, 8))])[0]
        assert np.array_equal(found, exact_conv(x, weight.reshape(8, 3, 3, 4)))
    floats, panels = draw(rng, 1, 9, 9, 4), pack([draw_weight(rng, 8, 4).reshape(8, -1)])
    computed = [
        run("conv_packed", some, [floats, panels], [("float32", (1, 9, 9, 8))])[0]
        for some in (params, {**params, "algorithm": "winograd_4"})
    ]
    assert np.array_equal(*computed)


def test_an_algorithm_has_a_name() -> None:
    x, weight = np.zeros((1, 8, 8, 4), np.float32), np.zeros((8, 3, 3, 4), np.float32)
    with pytest.raises(_native.Error, match="algorithm"):
        conv(x, weight, algorithm="winograd_3")
