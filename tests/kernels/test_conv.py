"""conv_packed against NumPy and torch, and an image's bits, whatever its company; what both convolutions refuse."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot import _native
from tests.kernels.one_call import Array, Operand, View, Weight, run
from tests.kernels.test_matmul import DTYPES, IDENTITY, close, draw, pack, wholes

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Window:
    """What conv_packed is called with beside its operands; post is the padding behind, or less than none."""

    kernel: Sizes
    stride: Sizes
    pre: Sizes
    post: Sizes
    dilation: Sizes
    groups: int = 1

    def params(self, outputs: int, channels: int, epilogue: dict[str, Any]) -> dict[str, Any]:
        sizes = {"kernel": self.kernel, "stride": self.stride, "pre_padding": self.pre, "dilation": self.dilation}
        lists = {name: list(value) for name, value in sizes.items()}
        return {"outputs": outputs, "channels": channels, "groups": self.groups, "epilogue": epilogue} | lists

    def out(self, sizes: Sizes) -> Sizes:
        spans = zip(sizes, self.kernel, self.stride, self.pre, self.post, self.dilation, strict=True)
        return tuple((i + p + q - d * (k - 1) - 1) // s + 1 for i, k, s, p, q, d in spans)

    def transposed_out(self, sizes: Sizes) -> Sizes:
        spans = zip(sizes, self.kernel, self.stride, self.pre, self.post, self.dilation, strict=True)
        return tuple((i - 1) * s + d * (k - 1) + 1 - p - q for i, k, s, p, q, d in spans)


def square(size: int, stride: int = 1, pad: int = 0, dilation: int = 1, groups: int = 1, rank: int = 2) -> Window:
    kernel, steps, padding, dilations = ((v,) * rank for v in (size, stride, pad, dilation))
    return Window(kernel, steps, padding, padding, dilations, groups)


def zipped(*lists: Sizes) -> Iterator[Sizes]:
    return zip(*lists, strict=True)


def groups_of(x: Array, w: Array, window: Window) -> Iterator[tuple[slice, slice]]:
    """The channels and the outputs of each group."""
    channels, outputs = x.shape[-1] // window.groups, w.shape[0] // window.groups
    for g in range(window.groups):
        yield slice(g * channels, (g + 1) * channels), slice(g * outputs, (g + 1) * outputs)


def reference(x: Array, w: Array, window: Window) -> tuple[Array, Array]:
    """The sums over x [N, *S, C] and w [O, *K, C / groups] in float64, and those of the absolute products."""
    out, w = window.out(x.shape[1:-1]), w.astype(np.float64)
    reach = [(o - 1) * s + d * (k - 1) + 1 for o, s, d, k in zipped(out, window.stride, window.dilation, window.kernel)]
    wide = [p + max(i, r) for p, i, r in zipped(window.pre, x.shape[1:-1], tuple(reach))]
    padded = np.zeros((x.shape[0], *wide, x.shape[-1]))
    middle: tuple[Any, ...] = (slice(None), *(slice(p, p + i) for p, i in zipped(window.pre, x.shape[1:-1])))
    padded[middle] = x
    sums, scale = np.zeros((2, x.shape[0], *out, w.shape[0]))
    for tap in itertools.product(*map(range, window.kernel)):
        spans = zipped(tap, out, window.stride, window.dilation)
        seen: tuple[Any, ...] = (slice(None), *(slice(t * d, t * d + (o - 1) * s + 1, s) for t, o, s, d in spans))
        for channels, outputs in groups_of(x, w, window):
            rows: tuple[Any, ...] = (outputs, *tap)
            a, b = padded[seen][..., channels], w[rows].T
            sums[..., outputs] += a @ b
            scale[..., outputs] += np.abs(a) @ np.abs(b)
    return sums, scale


def packed(w: Array, groups: int) -> Weight:
    """Panels of each group of w [O, *K, C / groups], one after the other."""
    rows = w.reshape(groups, w.shape[0] // groups, -1)
    return Weight(np.concatenate([pack([group]) for group in rows]))


def conv(
    x: Operand,
    w: Array,
    window: Window,
    out: str = "float32",
    epilogue: dict[str, Any] | None = None,
    extras: tuple[Operand, ...] = (),
    threads: int = 1,
    algorithm: str | None = None,
) -> Array:
    shape: Sizes = x.shape  # type: ignore[union-attr]
    params = window.params(w.shape[0], shape[-1], epilogue or IDENTITY)
    params |= {} if algorithm is None else {"algorithm": algorithm}
    described = [(out, (shape[0], *window.out(shape[1:-1]), w.shape[0]))]
    return run("conv_packed", params, [x, packed(w, window.groups), *extras], described, threads)[0]


def operands(
    rng: np.random.Generator, n: int, sizes: Sizes, channels: int, outputs: int, window: Window, dtype: str
) -> tuple[Array, Array]:
    x = draw(rng, (n, *sizes, channels), dtype)
    w = draw(rng, (outputs, *window.kernel, channels // window.groups), dtype)
    return x, w


FIXED = [
    ("first layer", 2, (23, 19), 3, 40, square(7, 2, 3)),
    ("three by three", 2, (9, 11), 64, 33, square(3, 1, 1)),
    ("many channels", 1, (7, 7), 130, 20, square(3, 1, 1)),
    ("strided projection", 2, (9, 8), 40, 70, square(1, 2)),
    ("dilated", 1, (17, 15), 20, 8, square(3, 1, 4, 4)),
    ("groups", 2, (8, 9), 24, 60, square(3, 1, 1, groups=6)),
    ("one channel a group", 1, (6, 5), 10, 10, square(3, 2, 1, groups=10)),
    ("along one axis", 2, (31, 18), 64, 64, Window((9, 1), (2, 1), (4, 0), (4, 0), (1, 1))),
    ("one dimension", 3, (40,), 12, 35, square(5, 2, 2, rank=1)),
    ("three dimensions", 1, (5, 6, 7), 5, 9, square(3, 2, 1, rank=3)),
    ("larger than x", 1, (2, 3), 4, 5, square(5, 1, 4)),
    ("padding wider than the window", 1, (3, 3), 4, 5, square(2, 1, 5)),
    ("uneven padding", 1, (6, 7), 4, 5, Window((3, 2), (1, 2), (2, 0), (0, 3), (1, 1))),
    ("no images", 0, (6, 7), 4, 5, square(3, 1, 1)),
    ("many rows", 1, (40, 41), 16, 40, square(3, 1, 1)),
    # Channels that fill whole steps of tiles, and such that nearly do: an image (level/image.h) of several shapes.
    ("image, several chunks", 2, (40, 301), 64, 40, square(3, 1, 1)),
    ("image, strided", 3, (23, 21), 96, 70, square(3, 2, 1)),
    ("image, strided projection", 3, (9, 14), 128, 64, square(1, 2)),
    ("image, dilated", 2, (17, 15), 64, 33, square(3, 1, 4, 4)),
    ("image, three phases", 2, (19, 23), 32, 32, square(5, 3, 2)),
    ("image, uneven padding", 2, (6, 7), 64, 40, Window((3, 2), (1, 2), (2, 0), (0, 3), (1, 1))),
    ("image, cropped", 1, (12, 13), 64, 33, Window((3, 3), (1, 1), (1, 1), (-2, -3), (1, 1))),
    ("image, far padding", 1, (5, 6), 64, 33, Window((2, 3), (1, 1), (5, 6), (4, 7), (1, 1))),
    ("image, one column", 3, (31, 1), 64, 64, Window((9, 1), (1, 1), (4, 0), (4, 0), (1, 1))),
    ("image, one line", 3, (61,), 64, 40, square(5, 1, 2, rank=1)),
    ("image, small ones", 9, (7, 7), 128, 64, square(3, 1, 1)),
    ("image, groups", 2, (9, 8), 192, 96, square(3, 1, 1, groups=3)),
    ("image, parts of a block", 2, (9, 11), 36, 40, square(3, 1, 1)),
    ("image, five blocks", 2, (9, 8), 300, 40, square(3, 1, 1)),
    ("image, six blocks", 1, (14, 14), 328, 70, square(3, 1, 1)),
    ("few channels, several chunks", 1, (90, 700), 5, 33, square(3, 1, 1)),
    ("few channels, strides", 3, (23, 31), 3, 40, Window((5, 7), (3, 2), (2, 3), (2, 3), (2, 1))),
    ("few channels, stride beyond the window", 2, (19, 17), 3, 40, Window((2, 2), (3, 4), (0, 0), (0, 0), (1, 1))),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("n", "sizes", "channels", "outputs", "window"), [case[1:] for case in FIXED], ids=[case[0] for case in FIXED]
)
def test_fixed(dtype: str, n: int, sizes: Sizes, channels: int, outputs: int, window: Window) -> None:
    rng = np.random.default_rng(outputs)
    x, w = operands(rng, n, sizes, channels, outputs, window, dtype)
    exact, scale = reference(x, w, window)
    scale = 2 * scale  # Winograd's sums are about twice as far off as direct ones
    # There it may be tiles by products of bfloat16, which test_winograd.py has.
    how = "direct" if _native.level() == "avx512_bf16" and dtype == "bfloat16" and channels >= 64 else None
    one = conv(x, w, window, algorithm=how)
    close(one, exact, scale, "float32")
    for threads in (2, 3):
        assert np.array_equal(conv(x, w, window, threads=threads, algorithm=how), one)
    close(conv(x, w, window, dtype, threads=2, algorithm=how), exact, scale, dtype)


@pytest.mark.parametrize(
    ("n", "sizes", "channels", "outputs", "window"), [case[1:] for case in FIXED], ids=[case[0] for case in FIXED]
)
def test_int8(n: int, sizes: Sizes, channels: int, outputs: int, window: Window) -> None:
    """Sums of int8 are whole numbers: exact here, in any company."""
    rng = np.random.default_rng(outputs)
    x, w = wholes(rng, (n, *sizes, channels)), wholes(rng, (outputs, *window.kernel, channels // window.groups))
    exact = reference(x, w, window)[0].astype(np.float32)
    for threads in (1, 2):
        assert np.array_equal(conv(x, w, window, threads=threads), exact)


@st.composite
def windows(draw_value: st.DrawFn) -> Window:
    rank = draw_value(st.integers(1, 3))

    def sizes(low: int, high: int) -> Sizes:
        return tuple(draw_value(st.integers(low, high)) for _ in range(rank))

    groups = draw_value(st.sampled_from([1, 1, 2, 3]))
    return Window(sizes(1, 4), sizes(1, 3), sizes(0, 3), sizes(0, 3), sizes(1, 3), groups)


def drawn(data: st.DataObject, window: Window, transposed: bool) -> tuple[int, Sizes, int, int, str] | None:
    sizes = tuple(data.draw(st.integers(1, 8)) for _ in window.kernel)
    per = [data.draw(st.sampled_from([1, 2, 3, 8, 17, 40])) * window.groups for _ in range(2)]
    out = window.transposed_out(sizes) if transposed else window.out(sizes)
    return (data.draw(st.integers(0, 3)), sizes, *per, data.draw(st.sampled_from(DTYPES))) if min(out) > 0 else None  # type: ignore[return-value]


@settings(max_examples=settings.default.max_examples * 3 // 5)
@given(windows(), st.data())
def test_random(window: Window, data: st.DataObject) -> None:
    case = drawn(data, window, False)
    if case is None:
        return
    n, sizes, channels, outputs, dtype = case
    x, w = operands(np.random.default_rng(n), n, sizes, channels, outputs, window, dtype)
    exact, scale = reference(x, w, window)
    found = conv(x, w, window, threads=2)
    close(found, exact, scale, "float32")
    for i in range(n):
        assert np.array_equal(conv(x[i : i + 1].copy(), w, window)[0], found[i])


def test_torch_agrees() -> None:
    """The reference above, and with it the kernel, against torch on a case that has everything."""
    window = Window((3, 2), (2, 1), (1, 1), (1, 1), (1, 2), 2)
    x, w = operands(np.random.default_rng(7), 2, (9, 8), 6, 10, window, "float32")
    theirs = torch.nn.functional.conv2d(
        torch.from_numpy(x).permute(0, 3, 1, 2),
        torch.from_numpy(w).permute(0, 3, 1, 2),
        None,
        window.stride,
        window.pre,
        window.dilation,
        2,
    )
    expected = theirs.permute(0, 2, 3, 1).double().numpy()
    close(conv(x, w, window), expected, np.full(expected.shape, 10.0), "float32")


NARROW = [  # groups, channels and outputs of one
    (32, 8, 8),
    (3, 4, 4),
    (5, 16, 16),
    (7, 4, 8),
    (9, 8, 2),
    (6, 3, 8),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("groups", "channels", "outputs"), NARROW)
@pytest.mark.parametrize(
    "window",
    [
        square(3, 1, 1),
        Window((3, 2), (2, 3), (1, 0), (0, 2), (1, 2)),
        Window((3,), (1,), (2,), (2,), (1,)),
        square(2, 1, 1, rank=3),
    ],
)
def test_groups_of_few_channels(dtype: str, groups: int, channels: int, outputs: int, window: Window) -> None:
    """Vectors hold several groups, of which none sees another's channels."""
    rng = np.random.default_rng(groups)
    window = replace(window, groups=groups)
    sizes = {1: (50,), 2: (6, 31), 3: (3, 4, 17)}[len(window.kernel)]
    x, w = operands(rng, 2, sizes, groups * channels, groups * outputs, window, dtype)
    exact, scale = reference(x, w, window)
    one = conv(x, w, window)
    close(one, exact, scale, "float32")
    assert np.array_equal(conv(x, w, window, threads=3), one)
    assert np.array_equal(conv(x[1:], w, window), one[1:])
    close(conv(x, w, window, dtype), exact, scale, dtype)
    x[..., channels] = np.inf  # of the second group
    found = conv(x, w, window)
    others = np.delete(np.arange(groups * outputs), np.arange(outputs, 2 * outputs))
    assert np.array_equal(found[..., others], one[..., others])


SCALED = {  # sums · a number for each output + another
    "steps": [["input", "float32", 0], ["input", "float32", 1], ["mul", "float32", 0, 1], ["input", "float32", 2],
              ["add", "float32", 2, 3]], "outputs": [4]}  # fmt: skip
FEW = [  # sizes of x, channels, outputs
    ("one output", (9, 41), 32, 1, square(5, 1, 2)),
    ("two, dilated", (13, 15), 33, 2, square(5, 1, 4, 2)),
    ("three, strided", (11, 64), 48, 3, Window((3, 5), (2, 3), (1, 0), (0, 7), (1, 1))),
    ("seven", (8, 9), 64, 7, square(5, 1, 2)),
    ("eight", (7, 70), 64, 8, square(3, 1, 1)),
    ("a long line", (300,), 3, 1, Window((129,), (1,), (64,), (60,), (1,))),
    ("in space", (4, 5, 19), 40, 2, square(3, 1, 1, rank=3)),
    ("larger than x", (2, 3), 40, 4, square(5, 1, 4)),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("sizes", "channels", "outputs", "window"), [case[1:] for case in FEW], ids=[case[0] for case in FEW]
)
def test_few_outputs(dtype: str, sizes: Sizes, channels: int, outputs: int, window: Window) -> None:
    """Vectors lie along the patches: the same bits in any company, of all channels or some of a wider tensor's."""
    rng = np.random.default_rng(outputs)
    x, w = operands(rng, 2, sizes, channels, outputs, window, dtype)
    exact, scale = reference(x, w, window)
    one = conv(x, w, window)
    close(one, exact, scale, "float32")
    for threads in (2, 3):
        assert np.array_equal(conv(x, w, window, threads=threads), one)
    assert np.array_equal(conv(x[1:], w, window), one[1:])
    close(conv(x, w, window, dtype), exact, scale, dtype)
    wide = draw(rng, (*x.shape[:-1], channels + 3), dtype)
    wide[..., 2:-1] = x
    apart = View(wide, x.shape, tuple(s // wide.itemsize for s in wide.strides), 2)
    assert np.array_equal(conv(apart, w, window), one)
    x[0] = np.nan
    assert np.array_equal(conv(x, w, window)[1:], one[1:])


@pytest.mark.parametrize(("channels", "outputs"), [(32, 1), (32, 2), (33, 2), (7, 1), (200, 4), (1024, 8), (1028, 8)])
@pytest.mark.parametrize(
    ("sizes", "window"),
    [((9, 41), square(1)), ((7, 300), square(1, 2)), ((5, 6), square(1, 1, 2)), ((61,), square(1, rank=1))],
)
@pytest.mark.parametrize("outside", [0, 3])
def test_few_outputs_of_int8(channels: int, outputs: int, sizes: Sizes, window: Window, outside: int) -> None:
    """Exact sums, scales and biases of each output, in lines that fill rows of 32 of them and such that do not."""
    rng = np.random.default_rng(channels)
    x, w = wholes(rng, (2, *sizes, channels)), wholes(rng, (outputs, *window.kernel, channels))
    x[0] = w[:] = -128  # the largest sums
    scale, bias = rng.standard_normal((2, outputs)).astype(np.float32)
    sums = reference(x.astype(np.float64) - outside, w, window)[0]
    sums += outside * w.sum((*range(1, w.ndim),), dtype=np.int64)
    exact = sums.astype(np.float32) * scale + bias
    params = window.params(outputs, channels, SCALED) | {"outside": outside}
    for threads in (1, 2, 3):
        given = [x, packed(w, 1), scale, bias]
        found = run("conv_packed", params, given, [("float32", exact.shape)], threads)[0]
        np.testing.assert_array_equal(found, exact)
        alone = [x[1:].copy(), packed(w, 1), scale, bias]
        alone = run("conv_packed", params, alone, [("float32", (1, *exact.shape[1:]))], threads)[0]
        np.testing.assert_array_equal(alone, exact[1:])


@pytest.mark.parametrize("outputs", [1, 2, 4, 5])
def test_extras_of_few_outputs(outputs: int) -> None:
    rng = np.random.default_rng(outputs)
    window = square(5, 1, 2)
    x, w = operands(rng, 2, (9, 21), 40, outputs, window, "float32")
    bias, one = draw(rng, (outputs,), "float32"), draw(rng, (), "float32")
    wide = draw(rng, (2, 9, 21, outputs + 4), "bfloat16")
    residual = View(wide, (2, 9, 21, outputs), tuple(s // 2 for s in wide.strides), 3)
    found = conv(x, w, window, "float32", EPILOGUE, (bias, residual, one), threads=2)
    exact, scale = reference(x, w, window)
    inner = (exact + bias + wide[..., 3 : outputs + 3].astype(np.float64)) * one.astype(np.float64)
    close(found, 1 / (1 + np.exp(-inner)), scale * np.abs(one) + 1, "float32")


@pytest.mark.parametrize(
    ("groups", "channels", "outputs"),
    [(32, 8, 8), (3, 4, 4), (5, 16, 16), (7, 16, 4), (1, 64, 40), (2, 36, 33), (1, 3, 40)],
)
@pytest.mark.parametrize("outside", [0, -7])
def test_groups_of_int8(groups: int, channels: int, outputs: int, outside: int) -> None:
    rng = np.random.default_rng(groups)
    window = Window((3, 2), (1, 2), (1, 2), (1, 1), (1, 1), groups)
    x, w = wholes(rng, (2, 5, 27, groups * channels)), wholes(rng, (groups * outputs, 3, 2, channels))
    around = np.pad(x, ((0, 0), (1, 1), (2, 1), (0, 0)), constant_values=outside)
    exact = reference(around, w, replace(window, pre=(0, 0), post=(0, 0)))[0].astype(np.float32)
    params = window.params(len(w), x.shape[-1], IDENTITY) | {"outside": outside}
    for threads in (1, 2):
        found = run("conv_packed", params, [x, packed(w, groups)], [("float32", exact.shape)], threads)[0]
        assert np.array_equal(found, exact)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [16, 64])
def test_strided_x(dtype: str, channels: int) -> None:
    """Some channels of a wider tensor, every other line of it: the same bits as a dense copy."""
    rng = np.random.default_rng(3)
    all_channels, window = channels + 24, square(3, 1, 1)
    wide = draw(rng, (2, 12, 9, all_channels), dtype)
    w = draw(rng, (20, 3, 3, channels), dtype)
    x = View(wide, (2, 6, 9, channels), (12 * 9 * all_channels, 2 * 9 * all_channels, all_channels, 1), 5)
    assert np.array_equal(conv(x, w, window), conv(np.ascontiguousarray(wide[:, ::2, :, 5 : 5 + channels]), w, window))


EPILOGUE = {
    "steps": [["input", "float32", i] for i in range(4)]
    + [["add", "float32", 0, 1], ["add", "float32", 4, 2], ["mul", "float32", 5, 3], ["sigmoid", "float32", 6]],
    "outputs": [7],
}


@pytest.mark.parametrize("groups", [1, 2])
def test_extras(groups: int) -> None:
    """A bias, a residual that is a window on a wider tensor, and a scalar."""
    rng = np.random.default_rng(11)
    window = square(3, 2, 1, groups=groups)
    x, w = operands(rng, 2, (9, 10), 8, 80, window, "bfloat16")
    bias, wide, one = draw(rng, (80,), "float32"), draw(rng, (2, 5, 5, 100), "bfloat16"), draw(rng, (), "float32")
    residual = View(wide, (2, 5, 5, 80), (2500, 500, 100, 1), 9)
    found = conv(x, w, window, "float32", EPILOGUE, (bias, residual, one), threads=2)
    exact, scale = reference(x, w, window)
    inner = (exact + bias + wide[..., 9:89].astype(np.float64)) * one.astype(np.float64)
    close(found, 1 / (1 + np.exp(-inner)), scale * np.abs(one) + 1, "float32")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("sizes", "channels", "outputs", "window"),
    [((14, 14), 40, 100, square(5, 1, 2)), ((30, 18), 8, 40, square(5, 2, 2)), ((14, 15), 64, 100, square(3, 2, 1))],
)
def test_images_do_not_depend_on_their_company(
    dtype: str, sizes: Sizes, channels: int, outputs: int, window: Window
) -> None:
    """Bit for bit: alone and in a batch, for any number of threads, and for part of an image's lines."""
    x, w = operands(np.random.default_rng(1), 5, sizes, channels, outputs, window, dtype)
    whole = conv(x, w, window)
    for threads in (2, 3, 4):
        assert np.array_equal(whole, conv(x, w, window, threads=threads))
    for i in range(5):
        assert np.array_equal(conv(x[i : i + 1].copy(), w, window, threads=2)[0], whole[i])
    size, stride, pad = window.kernel[0], window.stride[0], window.pre[0]
    below = replace(window, pre=(0, window.pre[1]))
    for first in (2, 3):  # output lines, and the input lines that they need
        part = conv(np.ascontiguousarray(x[:, first * stride - pad :]), w, below)
        assert size > pad and np.array_equal(part, whole[:, first:])


@pytest.mark.parametrize(("dtype", "channels"), [*((dtype, 3) for dtype in DTYPES), ("bfloat16", 64)])
def test_infinities_and_nan_stay_in_their_windows(dtype: str, channels: int) -> None:
    window = Window((3, 5), (1, 1), (1, 2), (1, 2), (1, 1))  # never by Winograd
    x, w = operands(np.random.default_rng(0), 2, (12, 12), channels, 40, window, dtype)
    clean = conv(x, w, window)
    x[0, 3, 4, 2], x[1, 11, 11, 0] = np.inf, np.nan
    found = conv(x, w, window)
    reached = np.zeros(found.shape, bool)
    reached[0, 2:5, 2:7] = reached[1, 10:, 9:] = True
    assert not np.any(np.isfinite(found[reached])) and np.array_equal(found[~reached], clean[~reached])


NAN_WEIGHTS = [
    ("winograd", 8, 40, square(3, pad=1)),
    ("patches", 8, 40, square(5, pad=1)),
    ("strided", 64, 64, square(3, 2, 1)),
    ("one axis", 32, 32, Window((9, 1), (1, 1), (4, 0), (4, 0), (1, 1))),
    ("few outputs", 64, 2, square(3, pad=1)),
    ("groups", 64, 64, square(3, pad=1, groups=8)),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("channels", "outputs", "window"), [c[1:] for c in NAN_WEIGHTS], ids=[c[0] for c in NAN_WEIGHTS]
)
def test_a_weight_that_is_nan(dtype: str, channels: int, outputs: int, window: Window) -> None:
    """It reaches its own output where its tap is inside x; elsewhere it does or does not (docs/importing.md)."""
    x, w = operands(np.random.default_rng(0), 1, (12, 12), channels, outputs, window, dtype)
    w[1, 0, 0, 0] = 0
    without = conv(x, w, window)
    w[1, 0, 0, 0] = np.nan
    found = conv(x, w, window)
    rows, columns = (-(-p // s) for p, s in zipped(window.pre, window.stride))
    inside = np.zeros(found.shape, bool)
    inside[:, rows:, columns:, 1] = True
    # A tile of Winograd's with a NaN is a direct product, of other roundings.
    left_out = np.isclose(found, without, rtol=0, atol=2.0**-7 * np.abs(without).max())
    assert np.isnan(found[inside]).all() and (np.isnan(found) | left_out).all()
    assert np.delete(left_out, 1, -1).all()


BAD = [
    ({"outputs": 0}, "parameter outputs is 0"),
    ({"channels": 9}, "groups must divide channels and outputs"),
    ({"groups": 3}, "groups must divide channels and outputs"),
    ({"channels": 16}, "x must be .N, sizes..., channels. and y"),
    ({"outputs": 34}, "x must be .N, sizes..., channels. and y"),
    ({"kernel": [3]}, "parameter kernel has 1 entries, must have 2"),
    ({"kernel": [3, 0]}, "parameter kernel"),
    ({"kernel": [3, 4]}, "the weight has shape"),
    ({"kernel": [65536, 65536]}, "at most 2.31"),
    ({"stride": [0, 1]}, "parameter stride"),
    ({"stride": [1 << 17, 1]}, "parameter stride"),
    ({"dilation": [0, 1]}, "parameter dilation"),
    ({"pre_padding": [-1, 1]}, "parameter pre_padding"),
    ({"pre_padding": 1}, "must be a list"),
    ({"post_padding": [1, 1]}, "unknown parameter"),
    ({"epilogue": {"steps": [["input", "float32", 1]], "outputs": [0]}}, "input must be the index of an operand"),
]


@pytest.mark.parametrize(("params", "message"), BAD)
def test_refusals(params: dict[str, Any], message: str) -> None:
    x, w = np.zeros((1, 5, 5, 8), np.float32), np.zeros((32, 3, 3, 4), np.float32)
    good = square(3, 1, 1, groups=2).params(32, 8, IDENTITY)
    with pytest.raises(_native.Error, match=message):
        run("conv_packed", good | params, [x, packed(w, 2)], [("float32", (1, 5, 5, 32))])


@pytest.mark.parametrize(
    "name", ["outputs", "channels", "kernel", "stride", "pre_padding", "dilation", "groups", "epilogue"]
)
@pytest.mark.parametrize("kernel", ["conv_packed", "conv_transpose_packed"])
def test_missing_parameters(kernel: str, name: str) -> None:
    good = square(1).params(32, 8, IDENTITY)
    del good[name]
    operands: list[Operand] = [np.zeros((1, 5, 5, 8), np.float32), packed(np.zeros((32, 1, 1, 8), np.float32), 1)]
    with pytest.raises(_native.Error, match=f"parameter {name} is missing"):
        run(kernel, good, operands, [("float32", (1, 5, 5, 32))])


ZEROS = np.zeros((1, 5, 5, 8), np.float32)
PANELS = np.zeros((1, 8, 32), np.float32)


@pytest.mark.parametrize("kernel", ["conv_packed", "conv_transpose_packed"])
@pytest.mark.parametrize(
    ("inputs", "out", "message"),
    [
        ([np.zeros((5, 8), np.float32), PANELS], ("float32", (5, 32)), "1 to 3 spatial axes"),
        ([np.zeros((1,) * 5 + (8,), np.float32), PANELS], ("float32", (1,) * 5 + (32,)), "1 to 3 spatial axes"),
        ([ZEROS, PANELS.astype(np.float16)], ("float32", (1, 5, 5, 32)), "the weight is float16, must be float32"),
        ([ZEROS.astype(np.int32), PANELS], ("float32", (1, 5, 5, 32)), "x is int32"),
        ([ZEROS, PANELS], ("int32", (1, 5, 5, 32)), "y is int32"),
        ([ZEROS, PANELS], ("float32", (2, 5, 5, 32)), "same number of images"),
        ([ZEROS, PANELS], ("float32", (1, 5, 32)), "must both be .N, .S, C."),
        ([ZEROS, PANELS, np.zeros((31,), np.float32)], ("float32", (1, 5, 5, 32)), "broadcast to .rows, n."),
        (
            [View(np.zeros((1, 5, 5, 16), np.float32), (1, 5, 5, 8), (400, 80, 16, 2)), PANELS],
            ("float32", (1, 5, 5, 32)),
            "last dimension of x",
        ),
        (
            [ZEROS, View(np.zeros((1, 16, 32), np.float32), (1, 8, 32), (512, 64, 1))],
            ("float32", (1, 5, 5, 32)),
            "the weight has gaps",
        ),
        ([ZEROS], ("float32", (1, 5, 5, 32)), "operands, must be"),
    ],
)
def test_refused_operands(kernel: str, inputs: list[Operand], out: tuple[str, Sizes], message: str) -> None:
    rank = len(inputs[0].shape) - 2  # type: ignore[union-attr]
    params = square(1, rank=rank).params(32, 8, IDENTITY)
    with pytest.raises(_native.Error, match=message):
        run(kernel, params, inputs, [out])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("channels", "outputs", "window"),
    [
        (32, 32, square(3, 1, 1, groups=8)),
        (64, 3, square(3, 1, 1)),
        (48, 2, square(7, 1, 3)),
        (20, 33, square(3, 2, 1)),
    ],
)
def test_the_direct_product_in_the_place_of_others(
    channels: int, outputs: int, window: Window, threads: int, dtype: str
) -> None:
    """Groups of few channels and few outputs have ways of their own, which a build may have found to be slower."""
    rng = np.random.default_rng(channels)
    x, w = operands(rng, 2, (9, 11), channels, outputs, window, dtype)
    sums, scale = reference(x, w, window)
    found = conv(x, w, window, threads=threads, algorithm="direct")
    assert found.shape == sums.shape and np.all(np.abs(found - sums) <= 1e-5 * scale + 1e-6)
    for word in ("winograd_2", "winograd_4"):
        if window.groups > 1 or window.kernel != (3, 3) or window.stride != (1, 1):
            assert np.array_equal(conv(x, w, window, algorithm=word), conv(x, w, window)), "it cannot take it"
