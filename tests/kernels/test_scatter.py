"""scatter, scatter_nd, gather_nd and masked_scatter against NumPy: duplicates, modes, faults, threads."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from ingot import _native
from ingot.ops.scattering import MODES, GatherND, Scatter, ScatterND
from tests.kernels.support import Array, run, same_bits
from tests.kernels.test_order import EVERY, as_numpy, as_torch, layouts, numbers

COMPUTED = [d for d in EVERY if d.itemsize >= 4 or d.name in ("int8", "int16", "uint8", "uint16")]
CALLS = [*itertools.product(EVERY, ["replace"]), *itertools.product(COMPUTED, list(MODES)[1:])]
CALLS = [(d, mode) for d, mode in CALLS if mode == "replace" or d.name not in ("bfloat16", "float16")]
rng = np.random.default_rng(5)


def same(got: Array, want: Array, mode: str) -> bool:
    """Bit for bit; what is computed up to which NaN and which zero it is."""
    if mode == "replace":
        return same_bits(got, want)
    return got.dtype == want.dtype and np.array_equal(got, want, equal_nan=True)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("dtype", "mode"), CALLS, ids=str)
def test_scatter(dtype: Any, mode: str) -> None:
    """More updates than places, so that most meet others; long axes and one line only are shared among workers."""
    for shape, count in (((6, 5, 4), 9), ((1, 40, 1), 300), ((3, 0, 2), 0), ((2, 3, 70), 90)):
        x = numbers(dtype, *shape, seed=1)
        for axis in range(3):
            n = shape[axis]
            size = [count if i == axis else s - (s > 4) for i, s in enumerate(shape)]
            index = rng.integers(-n, max(n, 1), size) if n else np.zeros([0] * 3, np.int64)
            updates = numbers(dtype, *index.shape, seed=2)
            want = Scatter(axis=axis, mode=mode).reference(x, index, updates)
            for i, (layout, threads) in enumerate(itertools.product(layouts(x), (1, 3, 7))):
                chosen, put = layouts(index)[i % 3], layouts(updates)[i % 2]
                (y,) = run("scatter", [layout, chosen, put], [(dtype, shape)], threads, axis=axis, mode=mode)
                assert same(y, want, mode)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("dtype", "mode"), CALLS, ids=str)
def test_scatter_nd(dtype: Any, mode: str) -> None:
    for shape, depth in (((6, 5, 4), 1), ((6, 5, 4), 2), ((6, 5, 4), 3), ((50,), 1), ((2, 900), 1), ((0, 3), 1)):
        x = numbers(dtype, *shape, seed=1)
        most = np.array(shape[:depth])
        index = rng.integers(-most, np.maximum(most, 1 - most), (5 if most.all() else 0, 8, depth)).astype(np.int32)
        updates = numbers(dtype, *index.shape[:-1], *shape[depth:], seed=2)
        want = ScatterND(mode=mode).reference(x, index, updates)
        for threads in (1, 3):
            for layout, put in zip(layouts(x), layouts(updates), strict=True):
                (y,) = run("scatter_nd", [layout, index, put], [(dtype, shape)], threads, mode=mode)
                assert same(y, want, mode)


@pytest.mark.parametrize("mode", list(MODES)[1:])
def test_the_modes_are_torchs(mode: str) -> None:
    """NaN and infinities too; sums of float32 in the order of the updates."""
    x, updates = numbers(np.float32, 9, 4, seed=3), numbers(np.float32, 60, 4, seed=4)
    index = rng.integers(0, 9, (60, 4))
    want = torch.scatter_reduce(as_torch(x), 0, torch.from_numpy(index), as_torch(updates), MODES[mode][1]).numpy()
    (y,) = run("scatter", [x, index, updates], [(x.dtype, x.shape)], 2, axis=0, mode=mode)
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_gather_nd(dtype: Any) -> None:
    for batch_dims, depth, rows in ((0, 1, (7,)), (0, 3, (2, 4)), (1, 1, (6, 3)), (2, 1, (6, 5)), (1, 2, (6, 0))):
        x = numbers(dtype, 6, 5, 4)
        most = np.array(x.shape[batch_dims : batch_dims + depth])
        index = rng.integers(-most, most, (*rows, depth))
        want = GatherND(batch_dims=batch_dims).reference(x, index)
        for layout, threads in itertools.product(layouts(x), (1, 3)):
            (y,) = run("gather_nd", [layout, index], [(dtype, want.shape)], threads, batch_dims=batch_dims)
            assert same_bits(y, want)


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_masked_scatter(dtype: Any) -> None:
    """In torch's order, with masks of every broadcast shape."""
    x, source = numbers(dtype, 6, 5, 9), numbers(dtype, 10, 27, seed=2)
    for shape in ((6, 5, 9), (5, 1), (9,), (6, 1, 1), ()):
        mask = np.asarray(rng.random(shape) < 0.5)
        want = x.copy()
        whole = np.broadcast_to(mask, x.shape)
        want[whole] = source.ravel()[: whole.sum()]
        for layout, threads in itertools.product(layouts(x), (1, 4)):
            (y,) = run("masked_scatter", [layout, mask, layouts(source)[1]], [(dtype, x.shape)], threads)
            assert same_bits(y, want)
    if dtype.name not in ("uint16", "uint32", "uint64"):
        found = as_torch(x).masked_scatter(torch.from_numpy(mask), as_torch(source))
        assert same_bits(y, np.ascontiguousarray(as_numpy(found)))


F32 = [("float32", (4, 6))]
X, ONE = np.zeros((4, 6), np.float32), np.ones((1, 1), np.float32)
WRONG = {
    "scatter": (
        lambda i: run("scatter", [X, np.array([[0], [i]]), np.ones((2, 1), np.float32)], F32, axis=1, mode="add"),
        -6, 5, "at element 1, limit 6",
    ),
    "scatter, of one line": (
        lambda i: run("scatter", [X[0], np.array([0, 0, i]), X[0, :3]], [("float32", (6,))], 3, axis=0, mode="replace"),
        -6, 5, "at element 2, limit 6",
    ),
    "scatter_nd": (
        lambda i: run("scatter_nd", [X, np.array([[0, 0], [3, i]]), np.ones(2, np.float32)], F32, 3, mode="replace"),
        -6, 5, "at element 3, limit 6",
    ),
    "scatter_nd, the first coordinate": (
        lambda i: run("scatter_nd", [X, np.array([[i, 0]]), np.ones(1, np.float32)], F32, mode="max"),
        -4, 3, "at element 0, limit 4",
    ),
    "gather_nd": (
        lambda i: run("gather_nd", [X, np.array([[[0], [i]]] * 4)], [("float32", (4, 2))], batch_dims=1),
        -6, 5, "at element 1, limit 6",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_an_index_out_of_range(name: str) -> None:
    """The error names the index, where it stands and what it may not reach; the ends of the range are inside."""
    call, low, high, where = WRONG[name]
    call(low), call(high)
    for wrong in (low - 1, high + 1, -(2**63), 2**63 - 1):
        message = rf"{name.split(',')[0]}: index out of range \({wrong} {where}\)"
        with pytest.raises(_native.Error, match=message) as caught:
            call(wrong)
        assert caught.value.code == "value"


def test_a_source_that_ends() -> None:
    mask = np.ones((4, 6), bool)
    run("masked_scatter", [X, mask, X], F32)
    for threads in (1, 3):
        with pytest.raises(_native.Error, match=r"more places than the source elements \(24, limit 23\)") as caught:
            run("masked_scatter", [X, mask, X.ravel()[1:]], F32, threads)
        assert caught.value.code == "value"


def test_refusals() -> None:
    ids, pairs = np.zeros((4, 2), np.int64), np.zeros((3, 2), np.int64)
    along: dict[str, Any] = {"axis": 1, "mode": "add"}
    many = np.zeros((1,) * 8, np.int64)
    for kernel, inputs, outputs, params, message in (
        ("scatter", [X, ids, X], F32, along, r"the updates has shape \(4, 6\), must be \(4, 2\)"),
        ("scatter", [X, ids, X[:, :2]], [("float32", (4, 5))], along, "the output has shape"),
        ("scatter", [X, ids, X[:, :2]], [("float64", (4, 6))], along, "the output is float64"),
        ("scatter", [X, ids.astype(np.float32), X[:, :2]], F32, along, "the index is float32"),
        ("scatter", [X, ids, X[:, :2]], F32, {"axis": 2, "mode": "add"}, "axis is 2"),
        ("scatter", [X, ids, X[:, :2]], F32, {"axis": 1, "mode": "mean"}, "mode"),
        ("scatter", [X[:2], ids, X[:, :2]], [("float32", (2, 6))], along, "larger than x in another dimension"),
        ("scatter", [X, ids[0], X[0, :2]], F32, along, "the index has rank 1, must be 2"),
        ("scatter", [X > 0, ids, X[:, :2] > 0], [("bool", (4, 6))], along, "x is bool"),
        ("scatter_nd", [X, pairs, X[0, :4]], F32, {"mode": "add"}, "the updates has shape"),
        ("scatter_nd", [X, pairs[:, :0], X[0, :3]], F32, {"mode": "add"}, "must be a number of coordinates"),
        ("scatter_nd", [X, np.zeros((3, 3), np.int64), X[0, :3]], F32, {"mode": "add"}, "a number of coordinates"),
        ("scatter_nd", [X, pairs[0, 0], X[0, :3]], F32, {"mode": "add"}, "must have at least one dimension"),
        ("scatter_nd", [X[None], many, X], [("float32", (1, 4, 6))], {"mode": "add"}, "too many dimensions together"),
        ("gather_nd", [X, pairs], [("float32", (3,))], {"batch_dims": 1}, "the same batch dimensions"),
        ("gather_nd", [X, pairs], [("float32", (4,))], {"batch_dims": 0}, "the output has shape"),
        ("gather_nd", [X, pairs], [("float32", (3,))], {"batch_dims": 2}, "fewer dimensions than batch dimensions"),
        ("masked_scatter", [X, X, X], F32, {}, "the mask is float32"),
        ("masked_scatter", [X, np.ones((3, 6), bool), X], F32, {}, "does not broadcast"),
        ("masked_scatter", [X, np.ones((1, 4, 6), bool), X], F32, {}, "does not broadcast"),
        ("masked_scatter", [X, np.ones(6, bool), X.astype(np.float64)], F32, {}, "the source is float64"),
    ):  # fmt: skip
        with pytest.raises(_native.Error, match=message) as caught:
            run(kernel, [np.array(a, order="C") for a in inputs], outputs, **params)
        assert caught.value.code == "kernel_refused", message
