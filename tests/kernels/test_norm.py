"""rms_norm, layer_norm, softmax and group_norm against float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot import _native
from ingot.ops.fused import expr_json, quantising
from tests.kernels.support import FLOATS, Array, close, run, same_bits
from tests.kernels.test_elementwise import MISH, mish

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
    (y,) = run("rms_norm", [x, weight], [(dtype, x.shape)], threads=2, eps=1e-5, shift=1.0)
    close(y, expected * (1.0 + weight.astype(np.float64)), 8)


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
    assert np.isnan(y[2:]).all(), "NaN and +inf pass to the whole row, and nothing but -inf is NaN"


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_softmax_of_special_values_is_torch_s(dtype: Any, log: bool) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    least = float(ml_dtypes.finfo(dtype).min)
    for width in (1, 3, 16, 33, 64, 100):
        x = rng.standard_normal((60, width)).astype(np.float32)
        special = rng.choice([np.nan, np.inf, -np.inf, least], (60, width))
        x = np.where(rng.random((60, width)) < np.linspace(0, 0.2, 60)[:, None], special, x)
        x[0], x[1], x[2] = -np.inf, least, np.inf
        x[3, 1:], x[4, :-1] = -np.inf, -np.inf
        x = x.astype(dtype)
        wide = torch.from_numpy(x.astype(np.float32))
        want = (torch.log_softmax if log else torch.softmax)(wide, -1).numpy()
        for axis in (0, 1):
            (y,) = run("softmax", [x if axis else x.T], [(dtype, x.shape if axis else x.T.shape)], axis=axis, log=log)
            got = (y if axis else y.T).astype(np.float32)
            np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
            np.testing.assert_allclose(got, want, rtol=0.01, atol=0.01)


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
        ("rms_norm", [x], {"eps": 1e-5, "axis": 1}, "unknown parameter 'axis'"),
        ("rms_norm", [x, x[0, :4].copy()], {"eps": 1e-5}, r"the weight has shape \(4\), must be \(8\)"),
        ("rms_norm", [x.astype(np.int32)], {"eps": 1e-5}, "an operand is int32"),
        ("layer_norm", [x, x[0]], {"eps": 1e-5, "weight": False, "bias": False}, "operands must be x and what"),
        ("softmax", [x], {"axis": 2}, "parameter axis is 2"),
        ("softmax", [x.astype(np.float64)], {"axis": 0}, "is float64"),
    ):
        with pytest.raises(_native.Error, match=message) as caught:
            run(kernel, operands, [(operands[0].dtype, x.shape)], **params)
        assert caught.value.code == "kernel_refused"


PLAIN = {"steps": [["input", "float32", 0]], "outputs": [0]}
# tanh(x) * (input 1) + (input 2)
MANY = {
    "steps": [
        *(["input", "float32", i] for i in range(3)),
        ["tanh", "float32", 0],
        ["mul", "float32", 3, 1],
        ["add", "float32", 4, 2],
    ],
    "outputs": [5],
}


def group_norm(
    x: Array, *more: Array, groups: int = 1, threads: int = 1, vectors: int = 0, epilogue: Any = PLAIN,
    dtype: Any = None,
) -> Array:
    """The first `vectors` of `more` are weight and bias, the rest operands of the epilogue."""
    params = {"groups": groups, "eps": 1e-5, "weight": vectors > 0, "bias": vectors > 1, "epilogue": epilogue}
    (y,) = run("group_norm", [x, *more], [(dtype or x.dtype, x.shape)], threads, **params)
    return y


def exact_group_norm(x: Array, groups: int) -> Array:
    wide = x.astype(np.float64).reshape(x.shape[0], -1, groups, x.shape[-1] // groups)
    centred = wide - wide.mean((1, 3), keepdims=True)
    y: Array = centred / np.sqrt((centred**2).mean((1, 3), keepdims=True) + 1e-5)
    return y.reshape(x.shape)


@given(data=st.data(), dtype=st.sampled_from(FLOATS), threads=st.sampled_from([1, 2]))
def test_group_norm(data: st.DataObject, dtype: Any, threads: int) -> None:
    groups, each = data.draw(st.sampled_from([1, 2, 3, 8])), data.draw(st.sampled_from([1, 2, 4, 7, 16, 33, 200]))
    size = data.draw(st.lists(st.integers(1, 12), max_size=3))
    x = rows(dtype, data.draw(st.integers(0, 3)), *size, groups * each) + dtype.type(1)
    if not x.size:
        assert group_norm(x, groups=groups).shape == x.shape
        return
    weight, bias = rows(dtype, groups * each, seed=1), rows(dtype, groups * each, seed=2)
    expected = exact_group_norm(x, groups)
    # A group of equal values is a difference of zero times a large factor: allow for its rounding.
    close(group_norm(x, groups=groups, threads=threads), expected, 100)
    weighted = expected * weight.astype(np.float64)
    close(group_norm(x, weight, groups=groups, vectors=1, threads=threads), weighted, 100)
    biased = weighted + bias.astype(np.float64)
    close(group_norm(x, weight, bias, groups=groups, vectors=2, threads=threads), biased, 100)
    steps = [["input", "float32", 0], ["const", "float32", 0.0], ["max", "float32", 0, 1]]
    epilogue = {"steps": steps, "outputs": [2]}
    y = group_norm(x, weight, bias, groups=groups, vectors=2, epilogue=epilogue, threads=threads)
    close(y, np.maximum(biased, 0), 100)
    operands = [rows(dtype, *x.shape, seed=3), rows(np.float32, x.shape[0], *[1] * len(size), x.shape[-1], seed=4)]
    settings: Any = {"groups": groups, "vectors": 2, "threads": threads}
    y = group_norm(x, weight, bias, *operands, epilogue=MANY, dtype=np.float32, **settings)
    close(y, np.tanh(biased) * operands[0].astype(np.float64) + operands[1], 200)


ACTIVATIONS: dict[str, tuple[Any, Any]] = {
    "none": ((("input", "float32", 0),), lambda v: v),
    "silu": ((("input", "float32", 0), ("silu", "float32", 0)), lambda v: v / (1 + np.exp(-v))),
    "mish": (tuple(map(tuple, MISH)), mish),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("channels", [8, 24, 72, 600])
def test_group_norm_with_an_activation(name: str, dtype: Any, channels: int) -> None:
    """In registers, to floats and to bytes, and where the expression goes on."""
    steps, exact = ACTIVATIONS[name]
    x, weight, bias = rows(dtype, 2, 5, 7, channels), rows(dtype, channels, seed=1), rows(dtype, channels, seed=2)
    settings: Any = {"groups": 4, "vectors": 2, "threads": 2}
    want = exact(exact_group_norm(x, 4) * weight.astype(np.float64) + bias.astype(np.float64))
    last = len(steps) - 1
    plain = {"steps": list(map(list, steps)), "outputs": [last]}
    close(group_norm(x, weight, bias, epilogue=plain, **settings), want, 100)
    longer = {"steps": [*plain["steps"], ["abs", "float32", last]], "outputs": [last + 1]}
    close(group_norm(x, weight, bias, epilogue=longer, dtype=np.float32, **settings), np.abs(want), 100)
    for kind, low, high, zero in (("int8", -128.0, 127.0, -3.0), ("uint8", 5.0, 200.0, 7.0), ("int8", -9.0, 9.0, 0.0)):
        ended = expr_json(quantising(steps, 20.0, zero, low, high, kind))
        quantised: Any = {"epilogue": ended, "dtype": np.dtype(kind)}
        found = group_norm(x, weight, bias, **quantised, **settings)
        assert np.abs(found - np.clip(20 * want + zero, low, high)).max() <= 0.51
        alone = group_norm(x[1:2].copy(), weight, bias, **quantised, groups=4, vectors=2)
        assert np.array_equal(alone, found[1:2])


def test_group_norm_of_no_numbers_to_bytes() -> None:
    """A NaN is the zero point, an infinity of the expression the nearest bound."""
    x, weight = rows(np.dtype(np.float32), 1, 6, 8), np.full(8, np.inf, np.float32)
    weight[0] = np.nan
    for name in ACTIVATIONS:
        ended = expr_json(quantising(ACTIVATIONS[name][0], 20.0, 4.0, -100.0, 99.0, "int8"))
        y = group_norm(x, weight, groups=1, vectors=1, epilogue=ended, dtype=np.dtype(np.int8))
        assert np.all(y[..., 0] == 4) and set(np.unique(y[..., 1:])) <= {-100, 4, 99} and 99 in y


@pytest.mark.parametrize("channels", [8, 72])
def test_nothing_is_left_of_mish_far_below_zero(channels: int) -> None:
    """The zero point in bytes too."""
    x, none = rows(np.dtype(np.float32), 1, 6, channels), np.zeros(channels, np.float32)
    ended = expr_json(quantising(ACTIVATIONS["mish"][0], 20.0, 4.0, -100.0, 99.0, "int8"))
    for far in (-100.0, -1e34, -3e38, -np.inf):
        y = group_norm(x, none, none + np.float32(far), groups=1, vectors=2, epilogue=ended, dtype=np.dtype(np.int8))
        assert np.all(y == 4)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(1, 64, 64, 32), (2, 700, 24), (1, 3, 3, 1024), (2, 5, 9, 7, 48)], ids=str)
def test_group_norm_as_torch_does(dtype: Any, shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    x, weight, bias = rows(dtype, *shape), rows(dtype, shape[-1], seed=1), rows(dtype, shape[-1], seed=2)
    wide = [torch.from_numpy(a.astype(np.float64)) for a in (np.moveaxis(x, -1, 1), weight, bias)]
    expected = np.moveaxis(torch.nn.functional.group_norm(wide[0], 8, wide[1], wide[2], 1e-5).numpy(), 1, -1)
    close(group_norm(x, weight, bias, groups=8, vectors=2), expected, 32)


def test_group_norm_of_a_large_mean() -> None:
    """Statistics lose nothing to the mean, nor does centring: x itself is what limits them."""
    for mean in (1e3, 1e5, -3e6):
        x = (rows(np.float32, 1, 100, 90, 32) + np.float32(mean)).astype(np.float32)
        close(group_norm(x, groups=4), exact_group_norm(x, 4), 40)
    x = np.full((1, 40, 40, 16), 1234.567, np.float32)  # no variance at all
    assert np.abs(group_norm(x, groups=2)).max() < 1e-2


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("channels", [32, 56, 1040])
def test_group_norm_batch_threads_and_strides_change_no_bit(dtype: Any, channels: int) -> None:
    x = rows(dtype, 3, 37, 29, channels)
    extra = rows(dtype, 3, 1, 1, channels, seed=1)
    one = rows(np.float32, 37, 29, 1, seed=2)
    expected = group_norm(x, extra, one, groups=8, epilogue=MANY)
    for threads in (1, 2):
        assert same_bits(group_norm(x, extra, one, groups=8, epilogue=MANY, threads=threads), expected)
        for image in range(3):
            part = slice(image, image + 1)
            alone = group_norm(x[part].copy(), extra[part].copy(), one, groups=8, epilogue=MANY, threads=threads)
            assert same_bits(alone, expected[part])
    wide = rows(dtype, 3, 37, 29, channels + 9)[..., 3 : channels + 3]
    assert same_bits(group_norm(wide, groups=8, threads=2), group_norm(wide.copy(), groups=8))


def test_group_norm_of_special_values() -> None:
    x = rows(np.float32, 3, 20, 32)
    x[0, 3, 5], x[1, 2, 20] = np.nan, np.inf
    y = group_norm(x, groups=2)
    assert np.isnan(y[0, :, :16]).all() and np.isfinite(y[0, :, 16:]).all()
    assert np.isnan(y[1, :, 16:]).all() and np.isfinite(y[1, :, :16]).all()
    assert same_bits(y[2:], group_norm(x[2:].copy(), groups=2))
    for shape in ((0, 4, 8), (2, 0, 8), (2, 4, 0)):
        assert group_norm(np.zeros(shape, np.float32), groups=2, threads=2).shape == shape


def test_group_norm_refusals() -> None:
    x, c = rows(np.float32, 2, 3, 4, 8), rows(np.float32, 8)
    good: dict[str, Any] = {"groups": 2, "eps": 1e-5, "weight": False, "bias": False, "epilogue": PLAIN}
    two = {"steps": [["input", "float32", 1]], "outputs": [0]}
    for operands, out, params, message in (
        ([x], x.shape, {**good, "groups": 3}, "groups must divide the channels"),
        ([x], x.shape, {**good, "groups": 0}, "parameter groups is 0, must be an integer"),
        ([x], x.shape, {**good, "eps": -1.0}, "parameter eps is -1.0, must be a number"),
        ([x], x.shape, {**good, "weight": 1}, "parameter weight is 1, must be true or false"),
        ([x], x.shape, {**good, "axis": 1}, "unknown parameter 'axis'"),
        ([x], x.shape, {"groups": 2, "eps": 0.1, "weight": False, "bias": False}, "parameter epilogue is missing"),
        ([x], x.shape, {**good, "epilogue": two}, "input must be the index of an operand: there are 1"),
        ([x], x.shape, {**good, "weight": True}, "the operands must be x, what the parameters"),
        ([x, c[:4].copy()], x.shape, {**good, "weight": True}, r"the weight has shape \(4\), must be \(8\)"),
        ([x, c[:4].copy()], x.shape, {**good, "bias": True}, r"the bias has shape \(4\), must be \(8\)"),
        ([x, c.astype(np.float16)], x.shape, {**good, "bias": True}, "the weight or bias is float16, must be float32"),
        ([x, c[::2]], (2, 3, 4, 4), good, "y has shape"),
        ([x.transpose(0, 3, 1, 2)], (2, 8, 3, 4), good, "last dimension of x has stride 8"),
        ([x[:, :, 1:]], (2, 3, 3, 8), good, "rows of an image must be equally far apart"),
        ([x, x[:, :, 1:]], x.shape, good, "an operand of the epilogue does not broadcast to y"),
        ([x, rows(np.float32, 3, 5, 8)[:, 1:]], x.shape, good,
         "rows of an operand of the epilogue must be equally far apart"),
        ([x.astype(np.int32)], x.shape, good, "x is int32"),
        ([c], c.shape, good, r"x must be \[N, ..., C\]"),
    ):
        with pytest.raises(_native.Error, match=message) as caught:
            run("group_norm", list(operands), [(np.float32, out)], **params)
        assert caught.value.code == "kernel_refused"
    with pytest.raises(_native.Error, match="y is int32"):
        run("group_norm", [x], [(np.int32, x.shape)], **good)
