"""conv_transpose_packed, whose phases of two taps go by Winograd's F(4x4, 2x2) and F(4, 2), against NumPy in float64,
and against the direct product: that of weights which are no constants.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ingot import _native
from tests.kernels.one_call import Array, Operand, View, run
from tests.kernels.test_conv import Sizes, Window, square
from tests.kernels.test_conv_transposed import phase_weights, transposed_reference
from tests.kernels.test_matmul import DTYPES, IDENTITY
from tests.kernels.test_winograd import BIAS_RELU, BIAS_RESIDUAL_RELU, NO_CHAIN, PAIRS
from tests.kernels.test_winograd import draw as draw_floats

UP = Window((3, 3), (2, 2), (1, 1), (0, 0), (1, 1))  # as decoders double their images
WINDOWS = {
    "doubled": UP,
    "without padding": square(3, 2),
    "cut": Window((3, 3), (2, 2), (3, 0), (-4, 3), (1, 1)),
    "more in front": Window((3, 3), (2, 2), (-3, -8), (1, 1), (1, 1)),
    "four taps": square(4, 2, 1),
    "thirds": Window((5, 4), (3, 3), (1, 2), (0, 0), (1, 1)),
    "down": Window((3, 2), (2, 2), (1, 0), (0, 0), (1, 1)),
    "across": Window((1, 3), (1, 2), (0, 1), (0, 0), (1, 1)),
    "dilated": Window((3, 3), (2, 2), (2, 2), (0, 0), (1, 3)),
}


def draw(rng: np.random.Generator, shape: Sizes, window: Window, outputs: int) -> tuple[Array, Array]:
    """x, and a weight [O, *K, C] with which outputs are about 1."""
    w = draw_floats(rng, outputs, *window.kernel, shape[-1])
    return draw_floats(rng, *shape), w / np.float32((4 * shape[-1]) ** 0.5)


def transposed(
    x: Operand,
    w: Array,
    window: Window,
    epilogue: dict[str, Any] = IDENTITY,
    extras: tuple[Operand, ...] = (),
    threads: int = 1,
    out: str = "float32",
    direct: bool = False,
) -> Array:
    shape: Sizes = x.shape  # type: ignore[union-attr]
    weights = [each.array if direct else each for each in phase_weights(w, window)]
    described = [(out, (shape[0], *window.transposed_out(shape[1:-1]), w.shape[0]))]
    params = window.params(w.shape[0], shape[-1], epilogue)
    return run("conv_transpose_packed", params, [x, *weights, *extras], described, threads)[0]


def close(found: Array, exact: Array) -> None:
    """Outputs are about 1, and so is the scale of the sums."""
    assert found.shape == exact.shape
    assert np.all(np.abs(found - exact) <= 3e-5), np.abs(found - exact).max()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize(("channels", "outputs"), [(16, 32), (17, 33), (64, 64), (65, 31), (40, 100)])
@pytest.mark.parametrize("image", [(6, 6), (8, 12), (9, 7), (4, 21)])
def test_sizes(image: Sizes, channels: int, outputs: int, window: Window) -> None:
    """Also with two threads, and an image without the other."""
    x, w = draw(np.random.default_rng(channels), (2, *image, channels), window, outputs)
    found = transposed(x, w, window)
    close(found, transposed_reference(x, w, window)[0])
    assert np.array_equal(transposed(x, w, window, threads=2), found)
    assert np.array_equal(transposed(x[1:], w, window), found[1:])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_rules(dtype: str) -> None:
    """Phases of two taps have other bits than by the direct product where they gain; others have its bits."""
    x, w = (each.astype(dtype) for each in draw(np.random.default_rng(2), (1, 12, 12, 32), UP, 32))
    found, direct = transposed(x, w, UP), transposed(x, w, UP, direct=True)
    if not (PAIRS and dtype == "bfloat16"):
        taken = [(0, 1), (1, 0), (1, 1)]
    else:
        taken = [] if _native.level() == "amx" else [(1, 1)]
    for phase in ((0, 0), (0, 1), (1, 0), (1, 1)):
        down, across = (slice(first, None, 2) for first in phase)
        assert np.array_equal(found[:, down, across], direct[:, down, across]) == (phase not in taken)
    for few, taps in ((x[..., :3], w[..., :3]), (x[:, :5, :5], w)):
        few = np.ascontiguousarray(few)
        assert np.array_equal(transposed(few, taps, UP), transposed(few, taps, UP, direct=True))


def test_error_of_many_channels() -> None:
    """Root mean square, of the outputs': about three times the direct sum's."""
    x, w = draw(np.random.default_rng(3), (1, 16, 16, 256), UP, 32)
    exact = transposed_reference(x, w, UP)[0]
    scale = np.sqrt(np.mean(exact**2))
    assert np.sqrt(np.mean((transposed(x, w, UP) - exact) ** 2)) / scale <= 2.5e-6


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [UP, WINDOWS["four taps"]], ids=["three", "four"])
def test_sixteen_bits(window: Window, dtype: str) -> None:
    """Only what was stored is rounded."""
    x, w = (each.astype(dtype) for each in draw(np.random.default_rng(4), (1, 9, 11, 40), window, 36))
    close(transposed(x, w, window), transposed_reference(x, w, window)[0])


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("outputs", [31, 40, 64])
def test_epilogue(threads: int, outputs: int) -> None:
    """A bias, and residuals whose pixels lie as y's do."""
    rng = np.random.default_rng(5)
    x, w = draw(rng, (2, 7, 9, 20), UP, outputs)
    exact = transposed_reference(x, w, UP)[0]
    bias, residual = draw_floats(rng, outputs), draw_floats(rng, *exact.shape)
    found = transposed(x, w, UP, BIAS_RELU, (bias,), threads)
    close(found, np.maximum(exact + bias, 0))
    found = transposed(x, w, UP, BIAS_RESIDUAL_RELU, (bias, residual), threads)
    close(found, np.maximum(exact + bias + residual, 0))
    found = transposed(x, w, UP, NO_CHAIN, (), threads)
    assert np.allclose(found, exact**2 + exact, rtol=3e-5, atol=3e-4)


def test_strided_input() -> None:
    """Channels of x that lie among others."""
    x, w = draw(np.random.default_rng(6), (2, 8, 9, 48), UP, 40)
    view = View(x, (2, 8, 9, 24), (8 * 9 * 48, 9 * 48, 48, 1), 24)
    weight = np.ascontiguousarray(w[..., :24])
    assert np.array_equal(transposed(view, weight, UP), transposed(x[..., 24:].copy(), weight, UP))


def test_one_axis() -> None:
    """[N, L, C] is a line of [N, 1, L, C]."""
    window, wide = Window((3,), (2,), (1,), (0,), (1,)), WINDOWS["across"]
    x, w = draw(np.random.default_rng(7), (3, 75, 40), window, 40)
    found = transposed(x, w, window, threads=2)
    close(found, transposed_reference(x, w, window)[0])
    assert np.array_equal(found, transposed(x[:, None], w[:, None], wide)[:, 0])
    assert not np.array_equal(found, transposed(x, w, window, direct=True))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [(0, 0), (3, 4), (4, 3), (5, 8), (9, 7), (10, 0), (7, 11)])
@pytest.mark.parametrize("window", [UP, WINDOWS["four taps"]], ids=["three", "four"])
def test_values_that_are_not_finite(window: Window, value: float, place: Sizes) -> None:
    """They stay in the outputs that read them; tiles that they touch have the bits of the direct product."""
    x, w = draw(np.random.default_rng(8), (2, 11, 12, 20), window, 40)
    clean = transposed(x, w, window)
    x[1, place[0], place[1], 7] = value
    found, direct = transposed(x, w, window, threads=2), transposed(x, w, window, direct=True)
    near = np.zeros(clean.shape, bool)
    down, across = (slice(max(2 * at - 1, 0), 2 * at - 1 + n) for at, n in zip(place, window.kernel, strict=True))
    near[1, down, across] = True
    assert np.array_equal(found[near], direct[near], equal_nan=True)
    assert not np.any(np.isfinite(found[near]))
    assert np.allclose(found[~near], clean[~near], rtol=0, atol=1.5e-5)
    assert np.array_equal(found[0], clean[0])


def test_a_weight_that_is_not_finite() -> None:
    x, w = draw(np.random.default_rng(9), (1, 9, 10, 16), UP, 40)
    w[3, 0, 2, 5], w[36, 2, 1, 0] = np.inf, np.nan
    found, direct = transposed(x, w, UP), transposed(x, w, UP, direct=True)
    assert np.array_equal(np.isfinite(found), np.isfinite(direct))
    assert np.allclose(found, direct, rtol=0, atol=3e-5, equal_nan=True)
    assert np.all(np.isfinite(np.delete(found, [3, 36], axis=-1)))
