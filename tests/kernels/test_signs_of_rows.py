"""Rows of int8 without a negative value, which are read in place, with some (lines are copied), and by their range."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ingot import _native
from ingot.ops.fused import expr_json
from tests.kernels.one_call import View, Weight, run
from tests.kernels.support import session
from tests.kernels.test_conv import Sizes, Window, conv, packed, reference, square
from tests.kernels.test_matmul import IDENTITY, exact_int8, pack, wholes
from tests.kernels.test_quantised import EPILOGUES, finished, operands

WINDOWS: list[tuple[str, int, Sizes, int, int, Window]] = [
    ("3x3", 2, (9, 15), 20, 40, square(3, 1, 1)),
    ("3x3, lines of 7", 5, (7, 7), 64, 65, square(3, 1, 1)),
    ("3x3, lines of 6", 2, (7, 6), 12, 33, square(3, 1, 1)),
    ("3x3, long lines", 2, (4, 57), 64, 64, square(3, 1, 1)),
    ("3x3, no padding", 2, (12, 14), 8, 32, square(3)),
    ("3x3, stride 2", 2, (17, 30), 16, 70, square(3, 2, 1)),
    ("3x3, stride 2, even", 2, (14, 28), 16, 32, square(3, 2, 1)),
    ("3x3, lines dilated", 1, (15, 19), 4, 32, Window((3, 3), (1, 1), (3, 1), (3, 1), (3, 1))),
    ("3x3, taps dilated", 2, (9, 29), 24, 32, Window((3, 3), (1, 2), (1, 2), (1, 2), (1, 2))),
    ("5x5", 1, (9, 21), 8, 32, square(5, 1, 2)),
    ("two taps", 2, (9, 12), 12, 40, Window((2, 2), (1, 1), (1, 1), (0, 0), (1, 1))),
    ("padding behind", 1, (9, 9), 8, 32, Window((3, 3), (1, 1), (0, 0), (2, 1), (1, 1))),
    ("cropped", 1, (12, 23), 8, 33, Window((3, 3), (1, 1), (1, 1), (-2, -3), (1, 1))),
    ("far lines", 1, (5, 9), 8, 32, Window((2, 3), (1, 1), (5, 1), (4, 1), (1, 1))),
    ("projection, stride 2", 2, (28, 29), 32, 64, square(1, 2)),
    ("one dimension", 3, (101,), 12, 35, square(3, 1, 1, rank=1)),
    ("one dimension, long", 1, (5001,), 8, 32, square(3, 1, 1, rank=1)),
    ("longer lines", 1, (2, 1900), 8, 32, square(3, 1, 1)),
    ("along one axis", 2, (31, 18), 64, 64, Window((9, 1), (2, 1), (4, 0), (4, 0), (1, 1))),
    ("joined lines", 2, (31, 18), 64, 64, Window((9, 1), (1, 1), (4, 0), (4, 0), (1, 1))),
    ("joined lines, fewer than taps", 3, (5, 18), 8, 32, Window((9, 1), (1, 1), (4, 0), (4, 0), (1, 1))),
    ("joined lines, several passes", 1, (150, 9), 16, 32, Window((4, 1), (1, 1), (0, 0), (3, 0), (1, 1))),
    ("joined lines, cropped", 1, (40, 7), 8, 33, Window((3, 1), (1, 1), (1, 0), (-3, 0), (1, 1))),
    ("lines dilated, not joined", 1, (31, 18), 8, 32, Window((3, 1), (1, 1), (2, 0), (2, 0), (2, 1))),
    ("groups", 2, (9, 16), 24, 66, square(3, 1, 1, groups=3)),
    ("three dimensions", 1, (3, 4, 9), 4, 9, square(3, 1, 1, rank=3)),
    ("three channels", 1, (9, 11), 3, 32, square(3, 1, 1)),
    ("lines of several passes", 1, (31, 301), 12, 33, square(3, 1, 1)),
    ("lines of several passes, stride 2", 2, (61, 201), 20, 32, square(3, 2, 1)),
    ("images of several passes", 40, (11, 13), 64, 32, square(3, 1, 1)),
    ("most of a window outside", 1, (3, 12), 8, 32, square(7, 1, 5)),
]


@pytest.mark.parametrize(
    ("n", "sizes", "channels", "outputs", "over"), [c[1:] for c in WINDOWS], ids=[c[0] for c in WINDOWS]
)
@pytest.mark.parametrize("negative", ["no", "the last", "the first", "half"])
def test_windows(n: int, sizes: Sizes, channels: int, outputs: int, over: Window, negative: str) -> None:
    """Without a negative value, with one, whose place decides how many passes are read in place, and with many."""
    rng = np.random.default_rng(outputs)
    x = rng.integers(-128 if negative == "half" else 0, 128, (n, *sizes, channels), np.int8)
    w = wholes(rng, (outputs, *over.kernel, channels // over.groups))
    if negative.startswith("the"):
        x.reshape(-1)[-1 if negative == "the last" else 0] = -128
    exact = reference(x, w, over)[0].astype(np.float32)
    for threads in (1, 2, 3):
        np.testing.assert_array_equal(conv(x, w, over, threads=threads), exact)


@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (1, 2), (1, 5), (2, 3), (3, 2), (2, 2), (6, 3), (4, 1)])
def test_a_negative_value_in_any_line(stride: int, dilation: int) -> None:
    """Each line of x is looked at, also where windows of other output lines left it out and went on behind it."""
    rng = np.random.default_rng(dilation)
    over = Window((3, 3), (stride, 1), (1, 1), (1, 1), (dilation, 1))
    x, w = rng.integers(0, 128, (1, 17, 15, 8), np.int8), wholes(rng, (32, 3, 3, 8))
    for line in range(17):
        x[0, line, 7, 3] = -128
        np.testing.assert_array_equal(conv(x, w, over), reference(x, w, over)[0].astype(np.float32))
        x[0, line, 7, 3] = 1


@pytest.mark.parametrize("taps", [1, 4, 9])
def test_a_negative_value_in_any_joined_line(taps: int) -> None:
    rng = np.random.default_rng(taps)
    over = Window((taps, 1), (1, 1), (taps // 2, 0), ((taps - 1) // 2, 0), (1, 1))
    x, w = rng.integers(0, 128, (1, 75, 18, 16), np.int8), wholes(rng, (32, taps, 1, 16))
    for line in range(75):
        x[0, line, 7, 3] = -128
        np.testing.assert_array_equal(conv(x, w, over), reference(x, w, over)[0].astype(np.float32))
        x[0, line, 7, 3] = 1


@pytest.mark.skipif("vnni" not in _native.level() and _native.level() != "avx512_bf16", reason="no lines are copied")
def test_there_is_room_for_the_lines_that_are_copied() -> None:
    """Whichever level's table names the products. Four lines of these outputs read more than what else is packed."""
    over, channels, shape = square(3, 1, 1), 256, (16, 320)
    w = packed(np.zeros((32, 3, 3, channels), np.int8), 1).array
    operands = {"x": (1, *shape, channels), "w": w.shape}
    buffers = [{"kind": "input", "name": n, "dtype": "int8", "shape": list(s)} for n, s in operands.items()]
    buffers.append({"kind": "temp", "dtype": "float32", "shape": [1, *shape, 32]})
    params = over.params(32, channels, IDENTITY)
    call = {"kernel": "conv_packed", "in": [0, 1], "out": [2], "params": params}
    opened = session(buffers, [call], {"y": 2}, threads=1)
    assert opened.planned({})["working"] >= 6 * (320 + 2) * channels


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["int8", "a residual", "relu", "beyond its zero point", "twice"])
@pytest.mark.parametrize("case", [0, 1, 3, 5, 14], ids=lambda at: WINDOWS[at][0])
@pytest.mark.parametrize("outside", [0, 5])
@pytest.mark.parametrize("least", [0, -128])
def test_ends(name: str, case: int, outside: int, least: int) -> None:
    """What ends such rows, beside a number around x too, which lets no tap be left out."""
    _, n, sizes, channels, outputs, over = WINDOWS[case]
    rng = np.random.default_rng(case)
    x = rng.integers(least, 128, (n, *sizes, channels), np.int8)
    w = wholes(rng, (outputs, *over.kernel, channels))
    sums = reference(x.astype(np.float64) - outside, w, over)[0]
    sums += outside * w.reshape(outputs, -1).sum(1, dtype=np.int64)
    extras = operands(rng, name, sums.shape)
    kind, want = finished(sums, name, extras)
    params = over.params(outputs, channels, expr_json(EPILOGUES[name])) | {"outside": outside}
    for threads in (1, 2):
        found = run("conv_packed", params, [x, packed(w, 1), *extras], [(kind, sums.shape)], threads)[0]
        np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("offset", [4, 5])
@pytest.mark.parametrize("more", [8, 7])
@pytest.mark.parametrize("least", [0, -128])
def test_strided_windows(offset: int, more: int, least: int) -> None:
    """Some channels of a wider tensor, every other line of it, at whole quads and between them."""
    rng = np.random.default_rng(more)
    channels, over = 16, square(3, 1, 1)
    every = channels + more
    wide, w = rng.integers(least, 128, (2, 12, 19, every), np.int8), wholes(rng, (40, 3, 3, channels))
    x = View(wide, (2, 6, 19, channels), (12 * 19 * every, 2 * 19 * every, every, 1), offset % (more + 1))
    first = offset % (more + 1)
    exact = reference(wide[:, ::2, :, first : first + channels], w, over)[0].astype(np.float32)
    np.testing.assert_array_equal(conv(x, w, over), exact)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("k", [4, 6, 64, 516, 1100])
@pytest.mark.parametrize("n", [7, 32, 75])
def test_products(k: int, n: int) -> None:
    """Rows without a negative value, for any number of them; and where one in the middle has one."""
    rng = np.random.default_rng(k + n)
    w = wholes(rng, (n, k))
    for rows in (1, 6, 7, 8, 15, 57, 600):
        x = rng.integers(0, 128, (rows, k), np.int8)
        for place in (None, rows - 1, rows // 2):
            if place is not None:
                x[place, -1] = -1
            params: dict[str, Any] = {"n": n, "k": k, "parts": 1, "epilogue": IDENTITY}
            for threads in (1, 2):
                found = run("matmul_packed", params, [x, Weight(pack([w]))], [("float32", (rows, n))], threads)[0]
                np.testing.assert_array_equal(found, exact_int8(x, w))


def test_products_of_wider_rows() -> None:
    rng = np.random.default_rng(3)
    wide, w = rng.integers(0, 128, (40, 101), np.int8), wholes(rng, (33, 64))
    params: dict[str, Any] = {"n": 33, "k": 64, "parts": 1, "epilogue": IDENTITY}
    for first in (0, 1, 8):
        x = View(wide, (40, 64), (101, 1), first)
        found = run("matmul_packed", params, [x, Weight(pack([w]))], [("float32", (40, 33))], 1)[0]
        np.testing.assert_array_equal(found, exact_int8(wide[:, first : first + 64], w))


RANGES = [(-1, 127), (-65, 127), (-66, 127), (-100, 60), (-128, 32), (-128, 127), (-5, -2), (-128, -128)]


@pytest.mark.parametrize(("low", "high"), RANGES)
@pytest.mark.parametrize("largest", [1, 85, 86, 128])
def test_ranges(low: int, high: int, largest: int) -> None:
    """By the range of rows and the size of weights: the largest products of pairs, with either sign."""
    rng = np.random.default_rng(largest)
    for rows, k, n in ((1, 8, 1), (13, 60, 33), (70, 300, 64), (5, 1030, 40)):
        x = rng.integers(low, high + 1, (rows, k)).astype(np.int8)
        w = rng.integers(-largest, min(largest, 127) + 1, (n, k)).astype(np.int8)
        x[::2], w[: (n + 1) // 2] = high, -largest
        x[0, 0], w[-1] = low, min(largest, 127)
        params: dict[str, Any] = {"n": n, "k": k, "parts": 1, "epilogue": IDENTITY}
        for threads in (1, 2):
            found = run("matmul_packed", params, [x, Weight(pack([w]))], [("float32", (rows, n))], threads)[0]
            np.testing.assert_array_equal(found, exact_int8(x, w))


def test_ranges_beside_weights_of_several_sizes() -> None:
    """Blocks of k and panels whose weights are small, or too large for pairs."""
    rng = np.random.default_rng(9)
    x, w = rng.integers(-20, 128, (50, 1300)).astype(np.int8), rng.integers(-60, 61, (130, 1300)).astype(np.int8)
    w[40, 700:702] = -128
    w[100, 3:7] = 127
    x[7], x[8] = 127, -20
    params: dict[str, Any] = {"n": 130, "k": 1300, "parts": 1, "epilogue": IDENTITY}
    for first, last in ((0, 50), (7, 8), (7, 20)):
        rows = x[first:last].copy()
        found = run("matmul_packed", params, [rows, Weight(pack([w]))], [("float32", (len(rows), 130))], 2)[0]
        np.testing.assert_array_equal(found, exact_int8(rows, w))
