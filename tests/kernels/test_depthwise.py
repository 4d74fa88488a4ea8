"""conv_depthwise against NumPy and torch: windows of every kind, expressions, bits, refusals."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot import _native
from tests.kernels.support import FLOATS, Array, close, run, same_bits

PLAIN = {"steps": [["input", "float32", 0]], "outputs": [0]}
# max(0, sum + bias) * (input 2)
MANY = {
    "steps": [
        *(["input", "float32", i] for i in range(3)),
        ["add", "float32", 0, 1],
        ["const", "float32", 0.0],
        ["max", "float32", 3, 4],
        ["mul", "float32", 5, 2],
    ],
    "outputs": [6],
}


def numbers(dtype: Any, *shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def window(kernel: Sequence[int], **more: Any) -> dict[str, Any]:
    ones = [1] * len(kernel)
    return {"kernel": list(kernel), "stride": ones, "pre_padding": [0] * len(kernel), "dilation": ones} | more


def exact(x: Array, weight: Array, out: Sequence[int], w: dict[str, Any]) -> Array:
    """In float64, x padded with zeros as far as the windows reach."""
    parts = list(zip(x.shape[1:-1], out, w["kernel"], w["stride"], w["pre_padding"], w["dilation"], strict=True))
    after = [max(0, (o - 1) * s + (k - 1) * d + 1 - n - p) for n, o, k, s, p, d in parts]
    pads = [(p, a) for (*_, p, _), a in zip(parts, after, strict=True)]
    wide = np.pad(x.astype(np.float64), [(0, 0), *pads, (0, 0)])
    y = np.zeros((x.shape[0], *out, x.shape[-1]))
    for tap, place in enumerate(itertools.product(*(range(k) for k in w["kernel"]))):
        at = [slice(i * d, i * d + (o - 1) * s + 1, s) for i, (_, o, _, s, _, d) in zip(place, parts, strict=True)]
        y += wide[:, *at] * weight[tap].astype(np.float64)
    return y


def convolve(
    x: Array, weight: Array, out: Sequence[int], w: dict[str, Any], *extras: Array, threads: int = 1, **more: Any
) -> Array:
    params = {"epilogue": PLAIN, **w, **more}
    dtype = params.pop("dtype", x.dtype)
    (y,) = run("conv_depthwise", [x, weight, *extras], [(dtype, (x.shape[0], *out, x.shape[-1]))], threads, **params)
    return y


@st.composite
def cases(draw: st.DrawFn) -> tuple[Array, Array, tuple[int, ...], dict[str, Any]]:
    axes = draw(st.integers(1, 3))

    def each(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=axes, max_size=axes))

    channels, dtype = draw(st.sampled_from([1, 5, 16, 33, 64, 515])), draw(st.sampled_from(FLOATS))
    size = [*each(1, 4)[1:], draw(st.integers(1, 40))]
    w = {"kernel": each(1, 4), "stride": each(1, 3), "pre_padding": each(0, 3), "dilation": each(1, 3)}
    x = numbers(dtype, draw(st.integers(0, 2)), *size, channels, seed=channels)
    weight = numbers(dtype, int(np.prod(w["kernel"])), channels, seed=1)
    most = [(n + 2 * p) // s + 2 for n, p, s in zip(size, w["pre_padding"], w["stride"], strict=True)]
    return x, weight, tuple(draw(st.integers(1, m)) for m in most), w


@given(case=cases(), threads=st.sampled_from([1, 2]))
def test_depthwise(case: Any, threads: int) -> None:
    x, weight, out, w = case
    expected = exact(x, weight, out, w)
    close(convolve(x, weight, out, w, threads=threads), expected, 64)
    shape = (x.shape[0], *out, x.shape[-1])
    bias, scale = numbers(x.dtype, shape[-1], seed=2), numbers(np.float32, *shape[:-1], 1, seed=3)
    expected = np.maximum(0, expected + bias.astype(np.float64)) * scale
    y = convolve(x, weight, out, w, bias, scale, threads=threads, epilogue=MANY)
    close(y, expected, 256)


@pytest.mark.parametrize("kernel", [(5,), (3, 3), (7, 2), (2, 3, 3)], ids=str)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dilation", [1, 2])
def test_as_torch_does(kernel: tuple[int, ...], stride: int, dilation: int) -> None:
    torch = pytest.importorskip("torch")
    axes, padding = len(kernel), [k // 2 for k in kernel]
    x, weight = numbers(np.float32, 2, *[15] * axes, 40), numbers(np.float32, int(np.prod(kernel)), 40, seed=1)
    portable = torch.from_numpy(weight.T.reshape(40, 1, *kernel).copy()).double()
    conv = getattr(torch.nn.functional, f"conv{axes}d")
    first = torch.from_numpy(np.moveaxis(x, -1, 1).copy()).double()
    expected = np.moveaxis(conv(first, portable, None, stride, padding, dilation, 40).numpy(), 1, -1)
    w = window(kernel, stride=[stride] * axes, pre_padding=padding, dilation=[dilation] * axes)
    close(convolve(x, weight, expected.shape[1:-1], w), expected, 64)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("channels", [24, 64, 700])
def test_batch_threads_and_strides_change_no_bit(dtype: Any, channels: int) -> None:
    x, weight = numbers(dtype, 3, 5, 31, channels), numbers(dtype, 9, channels, seed=1)
    bias, scale = numbers(dtype, channels, seed=2), numbers(np.float32, 3, 1, 31, 1, seed=3)
    w = window((3, 3), pre_padding=[1, 1])
    expected = convolve(x, weight, (5, 31), w, bias, scale, epilogue=MANY)
    for threads in (1, 2):
        assert same_bits(convolve(x, weight, (5, 31), w, bias, scale, threads=threads, epilogue=MANY), expected)
        for i in range(3):
            image, factor = x[i : i + 1].copy(), scale[i : i + 1].copy()
            alone = convolve(image, weight, (5, 31), w, bias, factor, threads=threads, epilogue=MANY)
            assert same_bits(alone, expected[i : i + 1])
    # An output does not depend on its block: the same windows at other columns.
    shifted = window((3, 3), pre_padding=[1, 0])
    assert same_bits(
        convolve(x[:, :, 6:].copy(), weight, (5, 20), shifted, threads=2),
        convolve(x, weight, (5, 31), w)[:, :, 7:27].copy(),
    )
    wide = numbers(dtype, 3, 5, 62, channels + 7)[:, :, ::2, 5 : channels + 5]
    assert same_bits(convolve(wide, weight, (5, 31), w, threads=2), convolve(wide.copy(), weight, (5, 31), w))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("channels", [24, 64, 700])
def test_clamps_end_in_registers(dtype: Any, channels: int) -> None:
    """Bias, at least 0, at most 6: the same bits as when a product with 1 makes it another expression."""
    x, weight, bias = numbers(dtype, 2, 6, 21, channels), numbers(dtype, 9, channels, seed=1), numbers(dtype, channels)
    x[0, 2, 3], x[0, 4, 9] = np.nan, np.inf
    steps: list[Any] = [["input", "float32", 0], ["input", "float32", 1], ["add", "float32", 0, 1]]
    steps += [["const", "float32", 0.0], ["max", "float32", 2, 3], ["const", "float32", 6.0], ["min", "float32", 4, 5]]
    steps += [["const", "float32", 1.0], ["mul", "float32", 6, 7]]
    w = window((3, 3), pre_padding=[1, 1])
    for output in (dtype, np.float32):
        for last in (2, 4, 6):
            params: dict[str, Any] = {"dtype": np.dtype(output), "threads": 2}
            part = {"steps": steps[: last + 1], "outputs": [last]}
            y = convolve(x, weight, (6, 21), w, bias, epilogue=part, **params)
            other = [*steps[: last + 1], steps[7], ["mul", "float32", last, last + 1]]
            expected = convolve(x, weight, (6, 21), w, bias, epilogue={"steps": other, "outputs": [last + 2]}, **params)
            np.testing.assert_array_equal(y.astype(np.float32), expected.astype(np.float32))


def test_other_dtype_of_y() -> None:
    x, weight = numbers(FLOATS[1], 1, 9, 9, 20), numbers(FLOATS[1], 9, 20, seed=1)
    wide = convolve(x, weight, (7, 7), window((3, 3)), dtype=np.float32)
    assert same_bits(convolve(x, weight, (7, 7), window((3, 3))), wide.astype(x.dtype))


def test_special_values_and_empty() -> None:
    x, weight = numbers(np.float32, 1, 8, 8, 20), numbers(np.float32, 9, 20, seed=1)
    x[0, 3, 4, 5], x[0, 6, 1, 7], weight[0, 9] = np.nan, np.inf, np.inf
    y = convolve(x, weight, (8, 8), window((3, 3), pre_padding=[1, 1]))
    with np.errstate(all="ignore"):
        expected = exact(x, weight, (8, 8), window((3, 3), pre_padding=[1, 1]))
    expected[0, 0, :, 9], expected[0, :, 0, 9] = y[0, 0, :, 9], y[0, :, 0, 9]  # there the weight meets only padding
    assert np.isfinite(y[0, 0, :, 9]).all() and np.isfinite(y[0, :, 0, 9]).all()
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    far = convolve(x, weight, (2, 2), window((3, 3), stride=[30, 30], pre_padding=[9, 9]))
    assert (far[:, 0] == 0).all() and (far[:, :, 0] == 0).all()
    for shape, out in (((0, 4, 4, 20), (2, 2)), ((2, 4, 4, 0), (2, 2)), ((2, 4, 4, 20), (2, 0))):
        empty = convolve(
            np.zeros(shape, np.float32), np.zeros((9, shape[3]), np.float32), out, window((3, 3)), threads=2
        )
        assert empty.shape == (shape[0], *out, shape[3])
    nothing = convolve(np.zeros((2, 0, 4, 20), np.float32), weight, (3, 3), window((3, 3), pre_padding=[2, 1]))
    assert (nothing == 0).all()


X, W = np.zeros((1, 4, 4, 8), np.float32), np.zeros((9, 8), np.float32)


@pytest.mark.parametrize(
    ("operands", "out", "params", "message"),
    [
        ([X], (1, 2, 2, 8), {}, "1 operands, must be 2 to"),
        ([X, W], (1, 2, 2, 8), {"groups": 8}, "unknown parameter 'groups'"),
        ([X, W], (1, 2, 2, 8), {"epilogue": None}, "an expression must be"),
        ([X, W], (1, 2, 2, 8), {"stride": [1]}, "parameter stride has 1 entries, must have 2"),
        ([X, W], (1, 2, 2, 8), {"pre_padding": [0, -1]}, "parameter pre_padding is -1"),
        ([X, W], (1, 2, 2, 8), {"dilation": [0, 1]}, "parameter dilation is 0"),
        ([X, W[:8]], (1, 2, 2, 8), {}, r"the weight has shape \(8, 8\), must be \(9, 8\)"),
        ([X, np.zeros((8, 9), np.float32).T], (1, 2, 2, 8), {}, "the weight has gaps or permuted"),
        ([X, W], (1, 2, 2, 16), {}, r"x and y must be \[N, \*S, C\]"),
        ([X, W.astype(np.float16)], (1, 2, 2, 8), {}, "the weight is float16, must be float32"),
        ([X.astype(np.int32), W], (1, 2, 2, 8), {}, "x is int32"),
        ([X, W, X], (1, 2, 2, 8), {}, "an operand of the epilogue does not broadcast to y"),
        ([X, W], (1, 2, 2, 8), {"kernel": [2**31, 1], "dilation": [2**31, 1]}, "beyond 64 bits"),
    ],
)
def test_refusals(operands: list[Array], out: tuple[int, ...], params: dict[str, Any], message: str) -> None:
    with pytest.raises(_native.Error, match=message) as caught:
        run("conv_depthwise", operands, [(np.float32, out)], **({"epilogue": PLAIN} | window((3, 3)) | params))
    assert caught.value.code == "kernel_refused"
