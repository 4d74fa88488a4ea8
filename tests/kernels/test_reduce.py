"""reduce and argmax against NumPy, over every choice of axes and over strides."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from ingot import _native
from tests.kernels.support import FLOATS, Array, close, run, same_bits

SHAPE = (3, 5, 70)
AXES = [axes for count in range(4) for axes in itertools.combinations(range(3), count)]
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")


def layouts(x: Array) -> list[Array]:
    """The same elements dense, transposed in memory, and with gaps."""
    gaps = np.zeros((x.shape[0], 2 * x.shape[1], x.shape[2] + 3), x.dtype)
    gaps[:, ::2, 2:-1] = x
    return [x, np.ascontiguousarray(x.transpose(2, 0, 1)).transpose(1, 2, 0), gaps[:, ::2, 2:-1]]


@pytest.mark.parametrize("op", ["sum", "mean", "max", "min", "prod"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats(dtype: Any, op: str) -> None:
    x = np.random.default_rng(0).standard_normal(SHAPE)
    x = (np.exp(0.05 * x) if op == "prod" else x).astype(dtype)
    for axes, layout in itertools.product(AXES, layouts(x)):
        expected = np.asarray(getattr(np, op)(x.astype(np.float64), axis=axes))
        (y,) = run("reduce", [layout], [(dtype, expected.shape)], threads=2, op=op, axes=list(axes), keepdims=False)
        close(y, expected, 200 if op in ("sum", "prod") and dtype == np.float32 else 16)
        kept = getattr(np, op)(x, axis=axes, keepdims=True).shape
        (z,) = run("reduce", [layout], [(dtype, kept)], op=op, axes=list(axes), keepdims=True)
        assert same_bits(z.reshape(y.shape), y)


@pytest.mark.parametrize("op", ["sum", "mean", "max", "min", "prod"])
def test_float64(op: str) -> None:
    """In float64 throughout: within a few of its roundings of the sum in 80 bits, NaN from anywhere."""
    x = np.random.default_rng(0).standard_normal(SHAPE)
    x = np.exp(0.05 * x) if op == "prod" else x
    for axes, layout in itertools.product(AXES, layouts(x)):
        expected = np.asarray(getattr(np, op)(x.astype(np.longdouble), axis=axes))
        (y,) = run("reduce", [layout], [("float64", expected.shape)], threads=2, op=op, axes=list(axes), keepdims=False)
        assert (np.abs(y - expected) <= 1e-14 * np.maximum(1, np.abs(expected)) * (20 if op == "prod" else 2)).all()
    for at in (0, 7, 1029):
        bad = np.where(np.arange(1030) == at, np.nan, 1.0)
        assert np.isnan(run("reduce", [bad], [("float64", ())], op=op, axes=[0], keepdims=False)[0])
    with pytest.raises(_native.Error, match="float64 reduces to float64"):
        run("reduce", [x], [("float32", ())], op=op, axes=[0, 1, 2], keepdims=False)


def test_argmax_of_float64() -> None:
    x = 1 + np.random.default_rng(1).integers(0, 9, SHAPE) * 2.0**-50
    x[1, 2, 30:40:3] = np.nan
    for axis, layout in itertools.product(range(3), layouts(x)):
        (y,) = run("argmax", [layout], [("int64", np.argmax(x, axis).shape)], threads=2, axis=axis)
        np.testing.assert_array_equal(y, np.argmax(x, axis))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers(dtype: str) -> None:
    rng = np.random.default_rng(1)
    info = np.iinfo(dtype) if dtype != "bool" else None
    low, high = (int(info.min), int(info.max)) if info else (0, 1)
    x = rng.integers(low, high, SHAPE, np.uint64 if dtype == "uint64" else np.int64, endpoint=True).astype(dtype)
    wide: Any = np.uint64 if dtype.startswith("uint") else np.int64
    for op, axes, layout in itertools.product(("sum", "max", "min", "prod"), AXES, layouts(x)):
        with np.errstate(over="ignore"):
            if op in ("max", "min"):
                expected = np.asarray(getattr(x, op)(axis=axes))
            else:
                expected = np.asarray(getattr(np, op)(x.astype(wide), axis=axes, dtype=wide)).astype(dtype)
        (y,) = run("reduce", [layout], [(dtype, expected.shape)], threads=2, op=op, axes=list(axes), keepdims=False)
        np.testing.assert_array_equal(y, expected)


def test_long_sums_stay_accurate() -> None:
    x = np.random.default_rng(2).random(3_000_000).astype(np.float32)
    for shape in ((3_000_000,), (1_500_000, 2)):
        (y,) = run("reduce", [x.reshape(shape)], [("float32", shape[1:])], op="sum", axes=[0], keepdims=False)
        close(y, x.reshape(shape).astype(np.float64).sum(0), 40)


def test_nan_and_nothing() -> None:
    x = np.ones((2, 40), np.float32)
    x[1, 33] = np.nan
    for op, axis in itertools.product(("sum", "mean", "max", "min", "prod"), (0, 1)):
        (y,) = run("reduce", [x], [("float32", (x.shape[1 - axis],))], op=op, axes=[axis], keepdims=False)
        assert np.isnan(y).tolist() == np.isnan(x).any(axis).tolist(), op
    for op, expected in (("sum", 0), ("prod", 1)):
        (y,) = run("reduce", [np.ones((3, 0), np.float32)], [("float32", (3,))], op=op, axes=[1], keepdims=False)
        assert (y == expected).all()
    for dtype in (np.float32, np.float64, np.int8, np.int32, np.int64, np.uint8, np.uint64):
        nothing, of = np.ones((3, 0), dtype), np.iinfo(dtype) if np.dtype(dtype).kind in "iu" else None
        least, greatest = (of.min, of.max) if of else (-np.inf, np.inf)
        for op, edge in (("max", least), ("min", greatest)):
            (y,) = run("reduce", [nothing], [(np.dtype(dtype).name, (3,))], op=op, axes=[1], keepdims=False)
            assert y.tolist() == [edge] * 3


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_an_output_does_not_depend_on_its_company(dtype: Any) -> None:
    x = np.random.default_rng(3).standard_normal((40, 6, 333)).astype(dtype)
    for axes in ([2], [1], [1, 2]):
        shape = np.sum(x, axis=tuple(axes)).shape
        (whole,) = run("reduce", [x], [(dtype, shape)], threads=2, op="sum", axes=axes, keepdims=False)
        for row in (0, 17):
            alone, output = x[row : row + 1].copy(), (dtype, (1, *shape[1:]))
            (one,) = run("reduce", [alone], [output], op="sum", axes=axes, keepdims=False)
            assert same_bits(one, whole[row : row + 1])


@pytest.mark.parametrize("dtype", [*FLOATS, *map(np.dtype, INTEGERS)], ids=str)
def test_argmax(dtype: Any) -> None:
    x = np.random.default_rng(4).integers(0, 7, SHAPE).astype(dtype)  # many ties: the first counts
    for axis, layout in itertools.product((0, 1, 2, -1), layouts(x)):
        expected = x.argmax(axis)
        (y,) = run("argmax", [layout], [("int64", expected.shape)], threads=2, axis=axis, keepdims=False)
        np.testing.assert_array_equal(y, expected)
    if dtype in FLOATS:
        x[1, 2, 40:42] = np.nan
        x[2, 2] = -np.inf
        (y,) = run("argmax", [x], [("int64", (3, 5, 1))], axis=-1, keepdims=True)
        assert y[1, 2, 0] == 40 and y[2, 2, 0] == 0


def test_refusals() -> None:
    x = np.ones((2, 3), np.float32)
    for params, dtype, shape, message in (
        ({"op": "median", "axes": [0], "keepdims": False}, "float32", (3,), 'op is "median", must be one of sum'),
        ({"op": "sum", "axes": [2], "keepdims": False}, "float32", (3,), "parameter axes is 2"),
        ({"op": "sum", "axes": [0, -2], "keepdims": False}, "float32", (3,), "named twice"),
        ({"op": "sum", "axes": [0], "keepdims": False}, "float32", (2,), "the output's shape"),
        ({"op": "sum", "axes": [0], "keepdims": False}, "int32", (3,), "floats reduce to floats"),
        ({"op": "sum", "axes": [0], "keepdims": 1}, "float32", (3,), "must be true or false"),
    ):
        with pytest.raises(_native.Error, match=message):
            run("reduce", [x], [(dtype, shape)], **params)
    with pytest.raises(_native.Error, match="empty"):
        run("argmax", [np.ones((3, 0), np.float32)], [("int64", (3,))], axis=1, keepdims=False)
