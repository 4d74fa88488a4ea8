"""rms_norm, layer_norm and softmax against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ingot import _native
from tests.kernels.one_call import rerun_at
from tests.kernels.support import FLOATS, close, run, same_bits

WIDTHS = (1, 7, 16, 31, 64, 100, 129, 2048)


def rows(dtype: Any, *shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rms_norm(dtype: Any, width: int) -> None:
    x, weight = rows(dtype, 3, 2, width), rows(dtype, width, seed=1)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + 1e-5)
    (y,) = run("rms_norm", [x], [(dtype, x.shape)], eps=1e-5)
    close(y, expected, 8)
    (y,) = run("rms_norm", [x, weight], [(dtype, x.shape)], threads=2, eps=1e-5)
    close(y, expected * weight.astype(np.float64), 8)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_layer_norm(dtype: Any, width: int) -> None:
    x, weight, bias = rows(dtype, 5, width) + dtype.type(3), rows(dtype, width, seed=1), rows(dtype, width, seed=2)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    for operands in ([], [weight], [weight, bias]):
        y64 = expected * (operands[0].astype(np.float64) if operands else 1)
        y64 = y64 + (operands[1].astype(np.float64) if len(operands) > 1 else 0)
        flags = {"weight": len(operands) > 0, "bias": len(operands) > 1}
        (y,) = run("layer_norm", [x, *operands], [(dtype, x.shape)], eps=1e-5, **flags)
        close(y, y64, 32)


def test_layer_norm_of_a_large_mean_keeps_the_variance() -> None:
    x = (rows(np.float32, 2, 512) + np.float32(1000)).astype(np.float32)
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    (y,) = run("layer_norm", [x], [("float32", x.shape)], eps=1e-5, weight=False, bias=False)
    close(y, expected, 4000)  # the mean itself is rounded to 2^-15


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_softmax(dtype: Any, log: bool) -> None:
    shapes = (((4, 1), -1), ((3, 50), 1), ((3, 17, 5), 1), ((40, 3), 0), ((2, 1000), -1), ((3, 0), 1), ((0, 3), 1))
    for shape, axis in shapes:
        x = (rows(np.float32, *shape) * 4).astype(dtype)
        wide = x.astype(np.float64)
        shifted = wide - wide.max(axis, keepdims=True, initial=-np.inf)
        expected = shifted - np.log(np.maximum(np.exp(shifted).sum(axis, keepdims=True), 1))
        (y,) = run("softmax", [x], [(dtype, shape)], threads=2, axis=axis, log=log)
        close(y, expected if log else np.exp(expected), 8, around=1.0 if log else 0.01)


def test_softmax_of_special_values() -> None:
    inf, nan = np.inf, np.nan
    x = np.array([[0, -inf, -inf], [1e30, 0, -1e30], [nan, 0, 0], [-inf, -inf, -inf], [inf, 0, 0]], np.float32)
    (y,) = run("softmax", [x], [("float32", x.shape)], axis=-1)
    np.testing.assert_array_equal(y[:2], [[1, 0, 0], [1, 0, 0]])
    assert np.isnan(y[2]).all() and np.isnan(y[3]).all() and np.isnan(y[4, 0])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_strides_rows_and_threads_change_no_bit(dtype: Any) -> None:
    whole = rows(dtype, 37, 3, 100)
    weight = rows(dtype, 90, seed=1)
    part = whole[:, 1, 5:95]
    (expected,) = run("rms_norm", [np.ascontiguousarray(part), weight], [(dtype, part.shape)], eps=1e-6)
    for threads in (1, 2):
        (y,) = run("rms_norm", [part, weight], [(dtype, part.shape)], threads=threads, eps=1e-6)
        assert same_bits(y, expected)
    for row in (0, 36):
        (y,) = run("rms_norm", [part[row : row + 1].copy(), weight], [(dtype, (1, 90))], eps=1e-6)
        assert same_bits(y, expected[row : row + 1])


def test_refusals() -> None:
    x = rows(np.float32, 3, 8)
    for kernel, operands, params, message in (
        ("rms_norm", [x], {}, "parameter eps is missing"),
        ("rms_norm", [x], {"eps": -1}, "parameter eps is -1, must be a number"),
        ("rms_norm", [x], {"eps": 1e-5, "axis": 1}, 'unknown parameter "axis"'),
        ("rms_norm", [x, x[0, :4].copy()], {"eps": 1e-5}, r"the weight has shape \(4\), must be \(8\)"),
        ("rms_norm", [x.astype(np.int32)], {"eps": 1e-5}, "an operand is int32"),
        ("layer_norm", [x, x[0]], {"eps": 1e-5, "weight": False, "bias": False}, "operands must be x and what"),
        ("softmax", [x], {"axis": 2}, "parameter axis is 2"),
        ("softmax", [x.astype(np.float64)], {"axis": 0}, "is float64"),
    ):
        with pytest.raises(_native.Error, match=message) as caught:
            run(kernel, operands, [(operands[0].dtype, x.shape)], **params)
        assert caught.value.code == "kernel_refused"


@pytest.mark.parametrize("level", [level for level in _native.levels() if level != _native.level()])
def test_every_level(level: str) -> None:
    rerun_at(level, __file__)
