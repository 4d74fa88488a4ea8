"""avg_pool and max_pool against NumPy and torch: windows of every kind, borders, special values, strides, refusals."""

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


def numbers(dtype: Any, *shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def positions(size: int, out: int, kernel: int, stride: int, before: int, dilation: int = 1) -> list[range]:
    """What each output's window reads along one axis, inside or not."""
    return [range(o * stride - before, o * stride - before + kernel * dilation, dilation) for o in range(out)]


def windows(x: Array, out: Sequence[int], kernel: Any, stride: Any, before: Any, dilation: Any) -> Any:
    """Each output's place and the values that its window finds, [found, N, C]."""
    axes = [positions(*a) for a in zip(x.shape[1:-1], out, kernel, stride, before, dilation, strict=True)]
    for place in itertools.product(*(range(n) for n in out)):
        ranges = [axis[o] for axis, o in zip(axes, place, strict=True)]
        inside = [[i for i in r if 0 <= i < n] for r, n in zip(ranges, x.shape[1:-1], strict=True)]
        found: list[Any] = list(itertools.product(*inside))
        yield place, ranges, np.array([x[:, *at] for at in found])


def average(x: Array, out: Sequence[int], window: dict[str, Any]) -> Array:
    y = np.zeros((x.shape[0], *out, x.shape[-1]))
    dilation = [1] * len(out)
    for place, ranges, found in windows(x, out, window["kernel"], window["stride"], window["pre_padding"], dilation):
        if not found.size:
            continue
        divisor = window["divisor"] or len(found)
        if not window["divisor"] and window["count_include_pad"]:
            ends = [n + after for n, after in zip(x.shape[1:-1], window["post_padding"], strict=True)]
            divisor = np.prod([min(r.stop, end) - r.start for r, end in zip(ranges, ends, strict=True)])
        y[(slice(None), *place)] = found.astype(np.float64).sum(0) / divisor
    return y


def greatest(x: Array, out: Sequence[int], window: dict[str, Any]) -> Array:
    y = np.full((x.shape[0], *out, x.shape[-1]), -np.inf, x.dtype)
    names = ("kernel", "stride", "pre_padding", "dilation")
    for place, _, found in windows(x, out, *(window[name] for name in names)):
        if found.size:
            y[(slice(None), *place)] = found.max(0)
    return y


def outputs(x: Array, window: dict[str, Any], ceil: bool = False) -> tuple[int, ...]:
    """torch's rule for the number of outputs."""
    sizes = []
    for i, n in enumerate(x.shape[1:-1]):
        before, stride = window["pre_padding"][i], window["stride"][i]
        after = window.get("post_padding", window["pre_padding"])[i]
        reach = n + before + after - window.get("dilation", [1] * 9)[i] * (window["kernel"][i] - 1) - 1
        size = (reach + (stride - 1 if ceil else 0)) // stride + 1
        sizes.append(size - 1 if ceil and (size - 1) * stride >= n + before else size)
    return tuple(sizes)


def pool(kernel: str, x: Array, out: Sequence[int], window: dict[str, Any], threads: int = 1) -> Array:
    dtype = np.float32 if kernel == "avg_pool" and x.dtype == np.int8 else x.dtype
    (y,) = run(kernel, [x], [(dtype, (x.shape[0], *out, x.shape[-1]))], threads, **window)
    return y


def plain(kernel: Sequence[int], stride: Sequence[int] | None = None, **more: Any) -> dict[str, Any]:
    zeros = [0] * len(kernel)
    window = {"kernel": list(kernel), "stride": list(stride or kernel), "pre_padding": zeros, "post_padding": zeros}
    return {**window, "count_include_pad": True, "divisor": 0, **more}


def greatest_window(kernel: Sequence[int], stride: Sequence[int] | None = None, **more: Any) -> dict[str, Any]:
    window = {"kernel": list(kernel), "stride": list(stride or kernel), "pre_padding": [0] * len(kernel)}
    return {**window, "dilation": [1] * len(kernel), **more}


@st.composite
def cases(draw: st.DrawFn) -> tuple[Array, dict[str, Any], bool]:
    axes = draw(st.integers(1, 3))

    def each(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=axes, max_size=axes))

    kernel, size = each(1, 4), each(1, 9)
    before = [draw(st.integers(0, k // 2)) for k in kernel]
    after = [draw(st.integers(0, k // 2)) for k in kernel]
    size = [max(n, k - b - a) for n, k, b, a in zip(size, kernel, before, after, strict=True)]
    channels = draw(st.sampled_from([1, 3, 16, 20, 64, 67, 130]))
    x = numbers(draw(st.sampled_from(FLOATS)), draw(st.integers(0, 3)), *size, channels, seed=channels)
    window = {"kernel": kernel, "stride": each(1, 3), "pre_padding": before, "post_padding": after}
    return x, window, draw(st.booleans())


@given(case=cases(), count=st.booleans(), divisor=st.sampled_from([0, 0, 3, 4]), threads=st.sampled_from([1, 2]))
def test_avg_pool(case: Any, count: bool, divisor: int, threads: int) -> None:
    x, window, ceil = case
    window = {**window, "count_include_pad": count, "divisor": divisor}
    out = outputs(x, window, ceil)
    close(pool("avg_pool", x, out, window, threads), average(x, out, window), 16)


@given(case=cases(), count=st.booleans(), divisor=st.sampled_from([0, 3, 4]), threads=st.sampled_from([1, 2]))
def test_avg_pool_of_int8(case: Any, count: bool, divisor: int, threads: int) -> None:
    """Sums are exact: all that is rounded is the quotient, in strided x too."""
    x, window, ceil = case
    x = np.random.default_rng(x.shape[-1]).integers(-128, 128, (*x.shape[:-1], x.shape[-1] + 7), np.int8)
    x = x[..., 3:-4]
    window = {**window, "count_include_pad": count, "divisor": divisor}
    out = outputs(x, window, ceil)
    want = average(x, out, window).astype(np.float32)
    np.testing.assert_array_almost_equal_nulp(pool("avg_pool", x, out, window, threads), want, 1)


@given(case=cases(), dilation=st.integers(1, 3), threads=st.sampled_from([1, 2]))
def test_max_pool(case: Any, dilation: int, threads: int) -> None:
    x, window, ceil = case
    del window["post_padding"]
    window["dilation"] = [dilation] * len(window["kernel"])
    out = tuple(max(n, 1) for n in outputs(x, window, ceil))  # a window larger than x is legal here
    assert same_bits(pool("max_pool", x, out, window, threads), greatest(x, out, window))


@given(case=cases(), count=st.booleans(), divisor=st.sampled_from([0, 0, 5]), dilation=st.integers(1, 2))
def test_as_torch_does(case: Any, count: bool, divisor: int, dilation: int) -> None:
    torch = pytest.importorskip("torch")
    x, window, ceil = case
    x = x.astype(np.float32)
    axes = x.ndim - 2
    before = window["pre_padding"]
    window["post_padding"] = before
    if not x.size or (axes == 1 and divisor):
        return
    first = torch.from_numpy(np.moveaxis(x, -1, 1).copy())
    options: dict[str, Any] = {"ceil_mode": ceil, "count_include_pad": count}
    if axes > 1:
        options["divisor_override"] = divisor or None
    fits = all(k <= n for k, n in zip(window["kernel"], x.shape[1:-1], strict=True))
    if min(outputs(x, window, ceil)) > 0 and (fits or axes < 3):  # avg_pool3d takes no padding for more of x
        average_pool = getattr(torch.nn.functional, f"avg_pool{axes}d")
        y = average_pool(first, window["kernel"], window["stride"], before, **options).numpy()
        expected = np.moveaxis(y, 1, -1)
        shape = expected.shape[1:-1]
        assert shape == outputs(x, window, ceil)
        window |= {"count_include_pad": count, "divisor": divisor}
        close(pool("avg_pool", x, shape, window), expected.astype(np.float64), 16)
    max_window = greatest_window(window["kernel"], window["stride"], pre_padding=before, dilation=[dilation] * axes)
    if min(outputs(x, max_window, ceil)) > 0:
        max_pool = getattr(torch.nn.functional, f"max_pool{axes}d")
        y = max_pool(first, window["kernel"], window["stride"], before, [dilation] * axes, ceil).numpy()
        expected = np.moveaxis(y, 1, -1)
        assert same_bits(pool("max_pool", x, expected.shape[1:-1], max_window), np.ascontiguousarray(expected))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_large_windows(dtype: Any) -> None:
    """Global averages, batch 1: channels are shared out; the sums are of float32 and lose nothing by their length."""
    for shape in ((1, 70, 18, 20), (1, 7, 7, 2048), (3, 5000, 5), (1, 40, 40, 16), (1, 4, 9, 11, 33)):
        x = numbers(dtype, *shape, seed=1) + dtype.type(1)
        window = plain(shape[1:-1])
        y = pool("avg_pool", x, [1] * (len(shape) - 2), window)
        close(y, average(x, [1] * (len(shape) - 2), window), 32)
        assert same_bits(y, pool("avg_pool", x, [1] * (len(shape) - 2), window, threads=2))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_special_values(dtype: Any) -> None:
    inf, nan = np.inf, np.nan
    x = np.array([[1, nan, 3, 4], [-inf, -inf, -1, -inf], [inf, 1, -inf, inf], [-0.0, 0.0, 0.0, -0.0]]).astype(dtype)
    for order in (x, x[:, ::-1].copy()):  # a NaN before and behind the greatest value
        rows = np.repeat(order[:, :, None], 21, -1)
        y = pool("max_pool", rows, [1], greatest_window([4]))
        assert np.isnan(y[0].astype(np.float32)).all()
        assert (y[1] == -1).all() and (y[2] == inf).all() and (y[3] == 0).all()
        y = pool("avg_pool", rows, [1], plain([4]))
        assert np.isnan(y[[0, 2]].astype(np.float32)).all() and (y[1] == -inf).all()
    y = pool("max_pool", rows, [2], greatest_window([2], [9], pre_padding=[2]))  # both windows find nothing
    assert (y == -inf).all()
    assert (pool("avg_pool", rows, [2], plain([2], [9], pre_padding=[2])) == 0).all()


@pytest.mark.parametrize("dtype", [*FLOATS, np.dtype(np.int8)], ids=str)
def test_batch_threads_and_strides_change_no_bit(dtype: Any) -> None:
    whole = (numbers(np.float32, 3, 12, 11, 100) * 30).astype(dtype)
    part = whole[:, 1:, ::2, 5:95]
    for kernel, window in (("avg_pool", plain([3, 3], [2, 1])), ("max_pool", greatest_window([3, 3], [2, 1]))):
        out = (5, 4)
        expected = pool(kernel, np.ascontiguousarray(part), out, window)
        for threads in (1, 2):
            assert same_bits(pool(kernel, part, out, window, threads), expected)
            for image in range(3):
                alone = pool(kernel, part[image : image + 1].copy(), out, window, threads)
                assert same_bits(alone, expected[image : image + 1])


def test_empty() -> None:
    for shape, out in (((0, 4, 4, 8), (2, 2)), ((2, 4, 4, 0), (2, 2)), ((2, 4, 4, 8), (0, 2))):
        x = np.zeros(shape, np.float32)
        for threads in (1, 2):
            assert pool("avg_pool", x, out, plain([2, 2]), threads).shape == (shape[0], *out, shape[3])
            assert pool("max_pool", x, out, greatest_window([2, 2]), threads).shape == (shape[0], *out, shape[3])


X = np.zeros((1, 4, 4, 8), np.float32)
BIG = 2**31


@pytest.mark.parametrize(
    ("kernel", "x", "out", "window", "message"),
    [
        ("avg_pool", X, (1, 2, 2, 8), {"kernel": [2, 2]}, "parameter stride is missing"),
        ("avg_pool", X, (1, 2, 2, 8), plain([2, 2, 2]), "parameter kernel has 3 entries, must have 2"),
        ("avg_pool", X, (1, 2, 2, 8), plain([2, 2], ceil_mode=True), "unknown parameter 'ceil_mode'"),
        ("avg_pool", X, (1, 2, 2, 8), plain([2, 0]), "parameter kernel is 0, must be an integer in"),
        ("avg_pool", X, (1, 2, 2, 8), plain([2, 2], [0, 1]), "parameter stride is 0, must be"),
        ("avg_pool", X, (1, 2, 2, 8), plain([2, 2], pre_padding=[-1, 0]), "parameter pre_padding is -1"),
        ("avg_pool", X, (1, 2, 2, 8), plain([2, 2], divisor=-1), "parameter divisor is -1"),
        ("avg_pool", X, (1, 2, 2, 8), plain([2, 2], count_include_pad=1), "parameter count_include_pad is 1"),
        ("avg_pool", X, (2, 2, 2, 8), plain([2, 2]), r"x and y must be \[N, \*S, C\]"),
        ("avg_pool", X, (1, 2, 2, 9), plain([2, 2]), r"x and y must be \[N, \*S, C\]"),
        ("avg_pool", X, (1, 2, 8), plain([2, 2]), "x has rank 4 and y 3"),
        ("avg_pool", X[0, 0], (4, 8), plain([2]), "x has rank 2"),
        ("avg_pool", np.zeros((1,) * 6, np.float32), (1,) * 6, plain([2]), "x has rank 6"),
        ("avg_pool", X.astype(np.int32), (1, 2, 2, 8), plain([2, 2]), "x is int32"),
        ("avg_pool", X.transpose(0, 1, 3, 2), (1, 2, 4, 4), plain([2, 2]), "last dimension of x has stride 8"),
        ("avg_pool", X[None], (1, 1, 2, 2, 8), plain([BIG, BIG, BIG]), "more positions than 64 bits"),
        ("max_pool", X, (1, 2, 2, 8), greatest_window([2, 2], post_padding=[0, 0]), "unknown parameter 'post_padding'"),
        ("max_pool", X, (1, 2, 2, 8), greatest_window([2, 2], dilation=[0, 1]), "parameter dilation is 0"),
        ("max_pool", X, (1, 2, 2, 8), greatest_window([BIG, 1], dilation=[BIG, 1]), "beyond 64 bits"),
    ],
)
def test_refusals(kernel: str, x: Array, out: tuple[int, ...], window: dict[str, Any], message: str) -> None:
    with pytest.raises(_native.Error, match=message) as caught:
        run(kernel, [x], [(x.dtype, out)], **window)
    assert caught.value.code == "kernel_refused"


def test_refused_dtype_of_y() -> None:
    with pytest.raises(_native.Error, match="y is float32, must be float16"):
        run("max_pool", [X.astype(np.float16)], [(np.float32, (1, 2, 2, 8))], **greatest_window([2, 2]))
