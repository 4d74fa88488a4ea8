"""resize, grid_sample and adaptive_pool against torch: every mode, sizes up and down, places that are no numbers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as nn

from ingot import _native
from tests.kernels.support import FLOATS, ROUNDING, Array, run, same_bits

NAMES = {"linear": ("linear", "bilinear", "trilinear"), "cubic": ("", "bicubic", "")}
SIZES = {1: ((7,), (3,)), 2: ((5, 6), (8, 3)), 3: ((3, 4, 5), (5, 2, 9))}


def numbers(dtype: Any, *shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def first(x: Array) -> torch.Tensor:
    """[N, *S, C] as torch has it, in float32."""
    return torch.tensor(np.ascontiguousarray(np.moveaxis(x.astype(np.float32), -1, 1)))


def last(y: torch.Tensor) -> Array:
    return np.moveaxis(y.numpy(), 1, -1)


def close(got: Array, want: Array) -> None:
    """Within two roundings to the type, beside a few of float32, whose order torch has otherwise."""
    allowed = 2 * ROUNDING[got.dtype] * np.maximum(np.abs(want), 1) + 1e-5
    assert got.shape == want.shape and (np.abs(got.astype(np.float64) - want) <= allowed).all()


def call(kernel: str, operands: list[Array], sizes: Any, threads: int = 1, **params: Any) -> Array:
    x = operands[0]
    (y,) = run(kernel, operands, [(x.dtype, (x.shape[0], *sizes, x.shape[-1]))], threads, **params)
    return y


# ---------------------------------------------------------------------------------------------- resize


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("mode", ["nearest", "nearest_exact", "linear", "cubic"])
def test_resize(mode: str, rank: int, dtype: Any) -> None:
    if mode == "cubic" and rank != 2:
        return  # torch has none; test_a_volume_by_cubics
    for corners, channels in itertools.product((False, True), (1, 35, 64)):
        sizes, wanted = SIZES[rank]
        for size, to in ((sizes, wanted), (wanted, sizes), (sizes, (1,) * rank), ((1,) * rank, wanted)):
            x = numbers(dtype, 2, *size, channels)
            word = NAMES[mode][rank - 1] if mode in NAMES else mode.replace("_", "-")
            how = {} if mode.startswith("nearest") else {"align_corners": corners}
            want = last(nn.interpolate(first(x), size=to, mode=word, **how))
            got = call("resize", [x], to, mode=mode, align_corners=corners)
            if mode.startswith("nearest"):
                assert same_bits(got, np.ascontiguousarray(want.astype(dtype)))
            else:
                close(got, want)
            assert same_bits(got, call("resize", [x], to, 3, mode=mode, align_corners=corners))


def test_a_volume_by_cubics() -> None:
    """One axis after the other, each as an image's."""
    x = numbers(np.float32, 1, 3, 4, 5, 2)
    want = x.astype(np.float32)
    for axis, size in ((1, 6), (2, 3), (3, 7)):
        moved = np.moveaxis(want, axis, -1)
        image = torch.tensor(np.ascontiguousarray(moved.reshape(1, 1, -1, moved.shape[-1])))
        grown = nn.interpolate(image, size=(image.shape[2], size), mode="bicubic")[0, 0].numpy()
        want = np.moveaxis(grown.reshape(*moved.shape[:-1], size), -1, axis)
    close(call("resize", [x], (6, 3, 7), mode="cubic", align_corners=False), want)


def test_zeros_keep_their_sign_and_nan_stays() -> None:
    x = np.array([-0.0, np.nan, np.inf], np.float32).reshape(1, 3, 1)
    got = call("resize", [x], (6,), mode="nearest", align_corners=False)
    assert same_bits(got, np.repeat(x, 2, 1))


# ---------------------------------------------------------------------------------------------- grid_sample


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("beyond", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_grid_sample(mode: str, beyond: str, dtype: Any) -> None:
    for rank, corners, channels in itertools.product((2, 3), (False, True), (1, 35, 64)):
        if mode == "cubic" and rank == 3:
            continue
        for size in (SIZES[rank][0], (1,) * rank):
            x = numbers(dtype, 2, *size, channels)
            places = np.random.default_rng(1).integers(-300, 301, (2, *SIZES[rank][1], rank)) / 128 + 1 / 512
            grid = places.astype(np.float32)
            word = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
            want = last(nn.grid_sample(first(x), torch.tensor(grid), word, beyond, corners))
            how = {"mode": mode, "beyond": beyond, "align_corners": corners}
            got = call("grid_sample", [x, grid], SIZES[rank][1], **how)
            if mode == "nearest":
                assert same_bits(got, np.ascontiguousarray(want.astype(dtype)))
            else:
                close(got, want)
            assert same_bits(got, call("grid_sample", [x, grid], SIZES[rank][1], 3, **how))


@pytest.mark.parametrize("beyond", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_places_that_are_no_numbers(mode: str, beyond: str) -> None:
    """As in torch: nothing is read outside of x, what is far away is zero or a blend, what lies nowhere NaN."""
    x = np.ones((1, 3, 4, 2), np.float32)
    grid = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e20, 0], np.float32)
    pairs = np.array(list(itertools.product(grid, grid)), np.float32).reshape(1, 7, 7, 2)
    got = call("grid_sample", [x, pairs], (7, 7), mode=mode, beyond=beyond, align_corners=False)
    word = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    want = last(nn.grid_sample(first(x), torch.tensor(pairs), word, beyond, False))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert np.isnan(got[0, 0]).all() == (mode == "cubic" or (mode, beyond) == ("linear", "zeros"))
    volume = call("grid_sample", [x[None], np.dstack([pairs[0], pairs[0, ..., :1]])[None, None]], (1, 7, 7),
                  mode=mode, beyond=beyond, align_corners=False) if mode != "cubic" else np.zeros(1)  # fmt: skip
    assert ((volume >= 0) & (volume <= 1 + 1e-6)).all()


# ---------------------------------------------------------------------------------------------- adaptive_pool


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("kind", ["average", "greatest"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_adaptive_pool(rank: int, kind: str, dtype: Any) -> None:
    pool = getattr(nn, f"adaptive_{'avg' if kind == 'average' else 'max'}_pool{rank}d")
    for size, to in itertools.permutations((*SIZES[rank], (1,) * rank), 2):
        for channels in (1, 35, 64):
            x = numbers(dtype, 2, *size, channels)
            got = call("adaptive_pool", [x], to, kind=kind)
            close(got, last(pool(first(x), to)))
            assert same_bits(got, call("adaptive_pool", [x], to, 3, kind=kind))


def test_the_largest_of_a_window_with_nan_is_nan() -> None:
    x = np.array([1, np.nan, 3, 4, 5], np.float32).reshape(1, 5, 1)
    assert np.isnan(call("adaptive_pool", [x], (2,), kind="greatest")).ravel().tolist() == [True, False]


# ---------------------------------------------------------------------------------------------- refusals

IMAGE, GRID = np.ones((1, 3, 4, 2), np.float32), np.zeros((1, 5, 6, 2), np.float32)
LINEAR = {"mode": "linear", "align_corners": False}
SAMPLE = {**LINEAR, "beyond": "zeros"}
REFUSED: dict[str, tuple[str, list[Array], tuple[int, ...], dict[str, Any], str]] = {
    "no such mode": ("resize", [IMAGE], (1, 5, 6, 2), {**LINEAR, "mode": "area"}, "mode"),
    "other channels": ("resize", [IMAGE], (1, 5, 6, 3), LINEAR, "x and y must be"),
    "another batch": ("adaptive_pool", [IMAGE], (2, 5, 6, 2), {"kind": "average"}, "x and y must be"),
    "another rank": ("adaptive_pool", [IMAGE], (1, 5, 2), {"kind": "average"}, "rank"),
    "nothing to pool": ("adaptive_pool", [IMAGE[:, :0]], (1, 5, 6, 2), {"kind": "average"}, "x has no positions"),
    "nothing to read": ("resize", [IMAGE[:, :0]], (1, 5, 6, 2), LINEAR, "x has no pixels"),
    "a grid of other sizes": ("grid_sample", [IMAGE, GRID], (1, 5, 5, 2), SAMPLE, r"grid must be \[N, \*S', axes\]"),
    "a coordinate too few": ("grid_sample", [IMAGE, GRID[..., :1]], (1, 5, 6, 2), SAMPLE, "a coordinate for each"),
    "a narrow grid": ("grid_sample", [IMAGE, GRID.astype(np.float16)], (1, 5, 6, 2), SAMPLE, "grid"),
    "a signal": ("grid_sample", [IMAGE[0], GRID[0]], (3, 6, 2), SAMPLE, "at most 3 spatial axes"),
    "cubic in a volume": (
        "grid_sample", [IMAGE[None], np.zeros((1, 1, 5, 6, 3), np.float32)], (1, 1, 5, 6, 2),
        {**SAMPLE, "mode": "cubic"}, "cubic takes two",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    kernel, operands, shape, params, message = REFUSED[name]
    with pytest.raises(_native.Error, match=message):
        run(kernel, [np.ascontiguousarray(a) for a in operands], [(np.float32, shape)], **params)
