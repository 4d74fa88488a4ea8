"""conv_transpose_packed against NumPy and torch, and an image's bits, whatever its company."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot import _native
from tests.kernels.one_call import Array, Operand, Weight, run
from tests.kernels.test_conv import (
    EPILOGUE,
    ZEROS,
    Sizes,
    Window,
    drawn,
    groups_of,
    operands,
    packed,
    square,
    wholes,
    windows,
    zipped,
)  # fmt: skip
from tests.kernels.test_matmul import DTYPES, IDENTITY, close, draw


def transposed_reference(x: Array, w: Array, window: Window) -> tuple[Array, Array]:
    """Like reference(): every input pixel adds to the outputs that it reaches."""
    x, w, sizes = x.astype(np.float64), w.astype(np.float64), x.shape[1:-1]
    out = window.transposed_out(sizes)
    sums, scale = np.zeros((2, x.shape[0], *out, w.shape[0]))
    for tap, at in itertools.product(*(itertools.product(*map(range, each)) for each in (window.kernel, sizes))):
        spans = zipped(at, window.stride, window.pre, tap, window.dilation)
        to = tuple(i * s - p + t * d for i, s, p, t, d in spans)
        if any(not 0 <= t < o for t, o in zipped(to, out)):
            continue
        for channels, outputs in groups_of(x, w, window):
            pixel: tuple[Any, ...] = (slice(None), *at, channels)
            rows: tuple[Any, ...] = (outputs, *tap)
            a, b = x[pixel], w[rows].T
            sums[(slice(None), *to, outputs)] += a @ b
            scale[(slice(None), *to, outputs)] += np.abs(a) @ np.abs(b)
    return sums, scale


def phase_weights(w: Array, window: Window) -> list[Weight]:
    """The panels of each phase that has taps, these in ascending order of the input pixel; w is [O, *K, C / groups]."""
    weights = []
    for phase in itertools.product(*map(range, window.stride)):
        spans = zip(phase, window.kernel, window.stride, window.pre, window.dilation, strict=True)
        taps = [[k for k in reversed(range(size)) if (k * d - p - ph) % s == 0] for ph, size, s, p, d in spans]
        if all(taps):
            weights.append(
                packed(np.ascontiguousarray(w[np.ix_(range(w.shape[0]), *taps, range(w.shape[-1]))]), window.groups)
            )
    return weights


def transposed(
    x: Array,
    w: Array,
    window: Window,
    out: str = "float32",
    epilogue: dict[str, Any] | None = None,
    extras: tuple[Operand, ...] = (),
    threads: int = 1,
) -> Array:
    params = window.params(w.shape[0], x.shape[-1], epilogue or IDENTITY)
    described = [(out, (x.shape[0], *window.transposed_out(x.shape[1:-1]), w.shape[0]))]
    return run("conv_transpose_packed", params, [x, *phase_weights(w, window), *extras], described, threads)[0]


TRANSPOSED = [
    ("doubling", 2, (5, 6), 20, 40, square(2, 2)),
    ("overlapping", 2, (5, 6), 20, 70, square(4, 2, 1)),
    ("three by three", 1, (4, 5), 7, 9, Window((3, 3), (2, 2), (1, 1), (0, 0), (1, 1))),
    ("gaps between the taps", 1, (4, 3), 6, 33, square(2, 3)),
    ("behind every tap", 1, (3, 3), 6, 5, Window((2, 2), (2, 2), (0, 0), (-3, -1), (1, 1))),
    ("dilated", 1, (5, 4), 6, 5, square(3, 2, 1, 2)),
    ("groups", 2, (4, 4), 12, 44, square(3, 2, 1, groups=4)),
    ("one dimension", 2, (9,), 5, 6, square(5, 3, 2, rank=1)),
    ("three dimensions", 1, (2, 3, 2), 4, 5, square(3, 2, 1, rank=3)),
    ("no images", 0, (4, 4), 4, 5, square(2, 2)),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("n", "sizes", "channels", "outputs", "window"),
    [case[1:] for case in TRANSPOSED],
    ids=[case[0] for case in TRANSPOSED],
)
def test_transposed(dtype: str, n: int, sizes: Sizes, channels: int, outputs: int, window: Window) -> None:
    x, w = operands(np.random.default_rng(outputs), n, sizes, channels, outputs, window, dtype)
    exact, scale = transposed_reference(x, w, window)
    one = transposed(x, w, window)
    close(one, exact, scale, "float32")
    assert np.array_equal(transposed(x, w, window, threads=3), one)
    close(transposed(x, w, window, dtype, threads=2), exact, scale, dtype)
    for i in range(n):
        assert np.array_equal(transposed(x[i : i + 1].copy(), w, window)[0], one[i])


@pytest.mark.parametrize(
    ("n", "sizes", "channels", "outputs", "window"),
    [case[1:] for case in TRANSPOSED],
    ids=[case[0] for case in TRANSPOSED],
)
def test_transposed_int8(n: int, sizes: Sizes, channels: int, outputs: int, window: Window) -> None:
    """Sums of int8 are whole numbers: exact here, in any company."""
    rng = np.random.default_rng(outputs)
    x, w = wholes(rng, (n, *sizes, channels)), wholes(rng, (outputs, *window.kernel, channels // window.groups))
    exact = transposed_reference(x, w, window)[0].astype(np.float32)
    for threads in (1, 2):
        assert np.array_equal(transposed(x, w, window, threads=threads), exact)
    for i in range(n):
        assert np.array_equal(transposed(x[i : i + 1].copy(), w, window)[0], exact[i])


@settings(max_examples=settings.default.max_examples * 3 // 5)
@given(windows(), st.data())
def test_transposed_random(window: Window, data: st.DataObject) -> None:
    case = drawn(data, window, True)
    if case is None or math.prod(case[1]) > 60:
        return
    n, sizes, channels, outputs, dtype = case
    x, w = operands(np.random.default_rng(n), n, sizes, channels, outputs, window, dtype)
    exact, scale = transposed_reference(x, w, window)
    close(transposed(x, w, window, threads=2), exact, scale, "float32")


def test_transposed_extras() -> None:
    """The bias also where no tap reaches, and a residual of y's shape."""
    rng = np.random.default_rng(2)
    window = Window((2, 2), (3, 3), (0, 0), (-2, -2), (1, 1))
    x, w = operands(rng, 2, (4, 3), 8, 40, window, "float32")
    bias, one = draw(rng, (40,), "float32"), draw(rng, (), "float32")
    exact, scale = transposed_reference(x, w, window)
    residual = draw(rng, exact.shape, "bfloat16")
    found = transposed(x, w, window, "float32", EPILOGUE, (bias, residual, one), threads=2)
    inner = (exact + bias + residual.astype(np.float64)) * one.astype(np.float64)
    close(found, 1 / (1 + np.exp(-inner)), scale * np.abs(one) + 1, "float32")


def test_transposed_torch_agrees() -> None:
    window = Window((3, 3), (2, 2), (1, 1), (0, 0), (1, 1), 2)  # output_padding 1
    x, w = operands(np.random.default_rng(7), 2, (5, 6), 6, 10, window, "float32")
    theirs = torch.from_numpy(np.concatenate(np.split(w, 2), axis=-1)).permute(3, 0, 1, 2)
    y = torch.nn.functional.conv_transpose2d(torch.from_numpy(x).permute(0, 3, 1, 2), theirs, None, 2, 1, 1, groups=2)
    expected = y.permute(0, 2, 3, 1).double().numpy()
    close(transposed(x, w, window), expected, np.full(expected.shape, 10.0), "float32")


def test_transposed_refuses() -> None:
    window = square(2, 2)
    weights = phase_weights(np.zeros((32, 2, 2, 8), np.float32), window)
    for inputs, stride, message in [
        (weights[:3], [2, 2], "operands, must be"),
        ([*weights[:3], Weight(np.zeros((1, 9, 32), np.float32))], [2, 2], "the weight has shape"),
        (weights, [65537, 2], "stride.*65536"),
    ]:
        params = window.params(32, 8, IDENTITY) | {"stride": stride}
        with pytest.raises(_native.Error, match=message):
            run("conv_transpose_packed", params, [ZEROS, *inputs], [("float32", (1, 10, 10, 32))])
