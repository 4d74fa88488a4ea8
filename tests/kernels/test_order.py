"""sort, top_k, bucketize and scans against NumPy and torch: over dtypes, axes, strides and numbers of threads."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from ingot import _native, dtypes
from ingot.ops.order import CumMax, CumMin, CumProd, LogCumSumExp, order_of
from tests.kernels.support import FLOATS, Array, run, same_bits

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
EVERY = [*FLOATS, *(np.dtype(name) for name in ("float64", *INTEGERS, "bool"))]


def numbers(dtype: Any, *shape: int, seed: int = 0) -> Array:
    """Numbers of every size with ties; of floats both zeros, infinities, subnormals and NaN of both signs."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    bits = rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8).view(f"u{dtype.itemsize}")[..., 0]
    if dtype == np.bool_:
        return np.asarray(bits % 2 == 0)
    x = bits.view(dtype).copy()
    few = rng.random(shape) < 0.5
    x[few] = rng.integers(0, 5, shape)[few].astype(dtype)
    if dtypes.get(dtype).is_float:
        for special in (0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf):
            x[rng.random(shape) < 0.05] = special
    return x


def as_torch(x: Array) -> Any:
    return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if x.dtype == FLOATS[1] else torch.from_numpy(x)


def as_numpy(x: Any) -> Array:
    return x.view(torch.int16).numpy().view(FLOATS[1]) if x.dtype == torch.bfloat16 else x.numpy()


def layouts(x: Array) -> list[Array]:
    """The same elements dense, turned in memory, with gaps and backwards."""
    gaps = np.zeros((*x.shape[:-1], 2 * x.shape[-1] + 1), x.dtype)
    gaps[..., 1::2] = x[..., ::-1]
    return [x, np.ascontiguousarray(x.T).T, gaps[..., 1::2][..., ::-1]]


def sort(x: Array, axis: int, descending: bool, threads: int = 1) -> list[Array]:
    results = [(x.dtype, x.shape), (np.int64, x.shape)]
    return run("sort", [x], results, threads, axis=axis, descending=descending)


def top_k(x: Array, axis: int, k: int, largest: bool, threads: int = 1) -> list[Array]:
    shape = [k if i == axis % x.ndim else n for i, n in enumerate(x.shape)]
    return run("top_k", [x], [(x.dtype, shape), (np.int64, shape)], threads, axis=axis, largest=largest)


def expected(x: Array, axis: int, descending: bool) -> list[Array]:
    places = order_of(x, axis, descending)
    return [np.take_along_axis(x, places, axis), places]


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_sort(dtype: Any) -> None:
    """Of rows that are compared and rows that are sorted by digits; the bits of an element, a NaN's too, stay."""
    for shape, descending in itertools.product(((3, 41, 2), (2, 3, 700), (1, 1, 1), (2, 0, 3)), (False, True)):
        x = numbers(dtype, *shape)
        for axis, layout in itertools.product(range(3), layouts(x)):
            got = sort(layout, axis, descending, threads=1 + axis)
            assert all(map(same_bits, got, expected(x, axis, descending)))


@pytest.mark.parametrize("dtype", [d for d in EVERY if d.name not in ("uint16", "uint32", "uint64")], ids=str)
def test_the_order_is_torchs(dtype: Any) -> None:
    for axis, descending in itertools.product((0, 1), (False, True)):
        x = numbers(dtype, 40, 301, seed=1)
        values, places = torch.sort(as_torch(x), dim=axis, descending=descending, stable=True)
        got = sort(x, axis, descending)
        assert same_bits(got[0], as_numpy(values)) and same_bits(got[1], places.numpy())


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_top_k(dtype: Any) -> None:
    """Of every k: few are selected, many are of a whole sort."""
    for shape, largest in itertools.product(((3, 41, 2), (2, 3, 3000)), (False, True)):
        x = numbers(dtype, *shape)
        for axis, layout in itertools.product(range(3), layouts(x)):
            whole = expected(x, axis, largest)
            size = x.shape[axis]
            for k in {0, 1, size // 16, size // 16 + 1, size // 2, size} - {size + 1}:
                got = top_k(layout, axis, k, largest, threads=1 + axis)
                assert all(same_bits(a, b.take(range(k), axis)) for a, b in zip(got, whole, strict=True))


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_one_long_row_among_several_workers(dtype: str) -> None:
    """They share it; what comes out is the same with any number of them."""
    for rows, size in ((1, 70_001), (2, 16_384)):
        x = numbers(dtype, rows, size, seed=2)
        for threads, descending in itertools.product((1, 2, 3, 5), (False, True)):
            whole = expected(x, 1, descending)
            assert all(map(same_bits, sort(x, 1, descending, threads), whole))
            for k in (1, 50, size // 16, size // 2):
                got = top_k(x, 1, k, descending, threads)
                assert all(same_bits(a, b[:, :k]) for a, b in zip(got, whole, strict=True))


def test_rows_in_order_already() -> None:
    """Every digit the same, all equal, ascending and descending: no pass is skipped that is needed."""
    for row in (np.zeros(999), np.arange(999), -np.arange(999), np.arange(999) % 7 + 2**20, np.full(999, np.nan)):
        for dtype in (np.float32, np.float64) if np.isnan(row[0]) else (np.int32, np.int64, np.float32, np.float64):
            x = row.astype(dtype)[None]
            for descending in (False, True):
                assert all(map(same_bits, sort(x, 1, descending), expected(x, 1, descending)))


def test_a_single_element_and_refusals() -> None:
    x = np.zeros((4, 6), np.float32)
    good, places = ("float32", (4, 6)), ("int64", (4, 6))
    best = {"axis": 1, "largest": True}
    for kernel, outputs, params, message in (
        ("sort", [good, places], {"axis": 2, "descending": True}, r"axis is 2, must be an integer in \[-2, 1\]"),
        ("sort", [good, ("int32", (4, 6))], {"axis": 1, "descending": True}, "places is int32, must be int64"),
        ("sort", [("float64", (4, 6)), places], {"axis": 1, "descending": True}, "the output is float64"),
        ("sort", [("float32", (4, 5)), ("int64", (4, 5))], {"axis": 1, "descending": True}, r"must be \(4, 6\)"),
        ("top_k", [("float32", (4, 7)), ("int64", (4, 7))], best, "7 elements are wanted of an axis that has 6"),
        ("top_k", [("float32", (3, 6)), ("int64", (3, 6))], best, r"must be \(4, 6\)"),
        ("top_k", [good, ("int64", (4, 5))], best, "places has shape"),
        ("cumsum", [("float32", (4, 5))], {"axis": 1}, "the output has shape"),
        ("cumsum", [("float64", (4, 6))], {"axis": 1}, "the output is float64, must be float32"),
    ):  # fmt: skip
        with pytest.raises(_native.Error, match=message) as caught:
            run(kernel, [x], outputs, **params)
        assert caught.value.code == "kernel_refused"
    with pytest.raises(_native.Error, match="x is bool"):
        run("cumsum", [np.zeros(3, bool)], [("bool", (3,))], axis=0)


# ---- bucketize ----


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_bucketize(dtype: Any) -> None:
    """On every boundary and between them; both zeros are equal, NaN is above all."""
    marks = np.unique(numbers(dtype, 30, seed=5).astype(dtype))
    marks = marks[marks == marks]
    x = np.concatenate([marks, numbers(dtype, 98 - len(marks), seed=6)]).reshape(2, 49)
    for side, right in (("left", False), ("right", True)):
        wide: Any = np.float32 if dtype in FLOATS[1:] else dtype
        want = np.searchsorted(marks.astype(wide), x.astype(wide), side).astype(np.int64)
        for layout, few, threads in itertools.product(layouts(x), (marks, marks[::-1].copy()[::-1]), (1, 3)):
            (y,) = run("bucketize", [layout, few], [("int64", x.shape)], threads, right=right)
            assert same_bits(y, want)
        rows = np.stack([marks, np.sort(marks[::-1])])[:, :-1]
        for layout, threads in itertools.product(layouts(rows), (1, 3)):
            (y,) = run("bucketize", [x, layout], [("int64", x.shape)], threads, right=right)
            found = [np.searchsorted(r.astype(wide), v.astype(wide), side) for r, v in zip(rows, x, strict=True)]
            assert same_bits(y, np.stack(found))
    with pytest.raises(_native.Error, match="leading dimensions must be those of x"):
        run("bucketize", [x, np.stack([marks] * 3)], [("int64", x.shape)], right=False)
    (y,) = run("bucketize", [x, marks[:0]], [("int64", x.shape)], right=False)
    assert not y.any()
    if dtype.name not in ("uint16", "uint32", "uint64", "bool"):
        found = torch.bucketize(as_torch(x), as_torch(np.sort(marks)), right=True)
        assert same_bits(run("bucketize", [x, marks], [("int64", x.shape)], right=True)[0], found.numpy())


# ---- cumsum ----


@pytest.mark.parametrize("dtype", EVERY[:-1], ids=str)
def test_cumsum(dtype: Any) -> None:
    """Along rows and down columns, over the ends of blocks; the same bits with any strides and number of threads."""
    rng = np.random.default_rng(3)
    for shape in ((3, 5, 700), (2, 600, 3), (1, 4, 300), (0, 3, 2), (4, 0, 2)):
        x = (300 * rng.standard_normal(shape)).astype(np.int64).astype(dtype)
        if dtypes.get(dtype).is_float:
            x = (x / dtype.type(7)).astype(dtype)
        wide: Any = {"float32": "float64", "float16": "float32", "bfloat16": "float32"}.get(dtype.name, dtype)
        for axis in range(3):
            with np.errstate(over="ignore"):
                whole = np.cumsum(x.astype(wide), axis, dtype=wide).astype(dtype)
            for layout, threads in itertools.product(layouts(x), (1, 3)):
                (y,) = run("cumsum", [layout], [(dtype, shape)], threads, axis=axis)
                assert same_bits(y, whole)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int64"])
def test_cumsum_is_torchs(dtype: str) -> None:
    """Special values too, which stay in the sum."""
    x = np.random.default_rng(4).standard_normal((5, 400)).astype(dtypes.get(dtype).numpy)
    if dtype != "int64":
        x[1, 30], x[2, 40], x[2, 50], x[3, :9] = np.nan, np.inf, -np.inf, -0.0
    for axis in (0, 1):
        (y,) = run("cumsum", [x], [(x.dtype, x.shape)], axis=axis)
        want = as_numpy(torch.cumsum(as_torch(x), axis))
        np.testing.assert_array_equal(y.astype(np.float64), want.astype(np.float64))


# ---- other scans ----

REFERENCES = {"cumprod": CumProd, "logcumsumexp": LogCumSumExp, "cummax": CumMax, "cummin": CumMin}


SCANS = [
    (kernel, dtype)
    for kernel, dtype in itertools.product(REFERENCES, EVERY)
    if kernel in ("cummax", "cummin")
    or (dtype.name != "bool" and (kernel == "cumprod" or dtypes.get(dtype).is_float))
]


@pytest.mark.parametrize(("kernel", "dtype"), SCANS, ids=str)
def test_scans(kernel: str, dtype: Any) -> None:
    """Bit for bit with the reference, along rows (some abreast, some alone) and down columns; NaN stays."""
    extreme, floats = kernel in ("cummax", "cummin"), dtypes.get(dtype).is_float
    for shape in ((3, 5, 300), (2, 300, 3), (1, 19, 4), (0, 3, 2), (4, 0, 2)):
        x = numbers(dtype, *shape, seed=7) if extreme else numbers(np.int8, *shape, seed=8).astype(dtype)
        if floats and not extreme:
            x = (x / dtype.type(64)).astype(dtype)
            x.reshape(-1)[3::97] = np.inf
            x.reshape(-1)[5::397] = np.nan
        for axis in range(3):
            want = REFERENCES[kernel](axis=axis).reference(x)
            results = [(dtype, shape), (np.int64, shape)] if extreme else [(dtype, shape)]
            for layout, threads in itertools.product(layouts(x), (1, 3)):
                got = run(kernel, [layout], results, threads, axis=axis)
                for a, b in zip(got, want if extreme else [want], strict=True):
                    assert a.dtype == b.dtype
                    with np.errstate(invalid="ignore"):  # a signalling NaN
                        np.testing.assert_array_equal(a.astype(np.float64), b.astype(np.float64))


@pytest.mark.parametrize("kernel", REFERENCES)
def test_scans_are_torchs(kernel: str) -> None:
    """NaN, ties, zeros and infinities: the last place of equal ones, and NaN wins in both directions."""
    for dtype in (np.float32, np.float64, np.int64):
        x = numbers(dtype, 8, 200, seed=9)
        if dtype is np.int64 and kernel == "logcumsumexp":
            continue
        for axis in (0, 1):
            found = getattr(torch, kernel)(as_torch(x), axis)
            extreme = kernel in ("cummax", "cummin")
            want = [y.numpy() for y in (found if extreme else [found])]
            got = run(kernel, [x], [(x.dtype, x.shape), (np.int64, x.shape)][: len(want)], axis=axis)
            for a, b in zip(got, want, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-6)  # one rounding of float32, and logarithms of two libraries
