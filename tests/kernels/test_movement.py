"""copy, bitcast, concat, embedding, take, gather and iota against NumPy, for every element size."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from ingot import _native, dtypes
from tests.kernels.support import FLOATS, Array, run

EVERY = [dtypes.get(n).numpy for n in ("bool", "uint8", "int16", "bfloat16", "float32", "int64", "float64")]


def numbers(dtype: Any, *shape: int) -> Array:
    return np.random.default_rng(0).integers(0, 100, shape).astype(dtype)


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_copy_of_short_rows_and_of_planes(dtype: Any) -> None:
    """Rows of 32 and 64 bytes with gaps between them, and others; pixels whose channels become planes."""
    for size in (24, 32, 40, 64, 96):
        columns = size // dtype.itemsize
        x = numbers(dtype, 3, 37, columns + 2)[:, :, 1 : columns + 1]
        for threads in (1, 2):
            (y,) = run("copy", [x], [(dtype, x.shape)], threads=threads)
            np.testing.assert_array_equal(y, x)
    for channels in (1, 2, 3, 5, 17):
        x = numbers(dtype, 2, 531, channels).transpose(0, 2, 1)
        for window in (x, x[:, :, ::-1], x[:, ::-1]):
            for threads in (1, 2):
                (y,) = run("copy", [window], [(dtype, x.shape)], threads=threads)
                np.testing.assert_array_equal(y, window)


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_copy_of_any_strides(dtype: Any) -> None:
    x = numbers(dtype, 5, 67, 40)
    windows = [x.transpose(order) for order in itertools.permutations(range(3))]
    windows += [x[:, 3:60:2, ::3], x[1:4, :, 5:], np.broadcast_to(x[:, :1], x.shape), x[2:3, 4:5, 6:7], x[:0]]
    for window, threads in itertools.product(windows, (1, 3)):
        (y,) = run("copy", [window], [(dtype, window.shape)], threads=threads)
        np.testing.assert_array_equal(y, window)


@pytest.mark.parametrize(
    ("dtype", "other"),
    [("float32", "int32"), ("int64", "float64"), ("uint16", "bfloat16"), ("float16", "int16"), ("int8", "uint8")],
)
def test_bitcast(dtype: str, other: str) -> None:
    """All bits stay, those of NaN too."""
    kind, target = (dtypes.get(n).numpy for n in (dtype, other))
    bits = np.random.default_rng(1).integers(0, 256, (5, 67, 8 * np.dtype(kind).itemsize), np.uint8)
    x = bits.view(kind).copy()
    for window, threads in itertools.product((x, x.transpose(1, 2, 0), x[:, ::-2]), (1, 3)):
        (y,) = run("bitcast", [window], [(target, window.shape)], threads=threads)
        assert y.tobytes() == np.ascontiguousarray(window).tobytes()


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_concat(dtype: Any) -> None:
    x = numbers(dtype, 4, 6, 8)
    for axis in (0, 1, -1):
        parts = [x, np.take(x, [], axis), x[:, ::-1].copy(), np.take(x, [1], axis)]
        expected = np.concatenate(parts, axis)
        (y,) = run("concat", parts, [(dtype, expected.shape)], threads=2, axis=axis)
        np.testing.assert_array_equal(y, expected)


def packed(table: Array) -> Array:
    """The layout of packed matmul weights, written down once more: panels of 32 rows, bfloat16 by pairs of columns."""
    rows, width = table.shape
    pair = 2 if table.dtype == FLOATS[1] else 1
    full = np.zeros((-(-rows // 32) * 32, -(-width // pair) * pair), table.dtype)
    full[:rows, :width] = table
    panels = full.reshape(-1, 32, full.shape[1] // pair, pair).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(panels if pair == 2 else panels[..., 0])


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_embedding(index: Any) -> None:
    ids = np.array([[3, 0, 6], [2, 6, 1]], index)
    for dtype, (rows, width) in itertools.product(EVERY, ((7, 10), (100, 33))):
        table = numbers(dtype, rows, width)
        (y,) = run("embedding", [ids, table], [(dtype, (2, 3, width))], threads=2, packed=False)
        np.testing.assert_array_equal(y, table[ids])
        if dtype not in FLOATS:
            continue
        operands = [ids, packed(table)]
        (y,) = run("embedding", operands, [(dtype, (2, 3, width))], threads=2, packed=True, n=rows, k=width)
        np.testing.assert_array_equal(y, table[ids])


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_take(dtype: Any) -> None:
    x = numbers(dtype, 4, 6, 8)
    for axis, index in itertools.product((0, 1, -1), (np.array([[1, -1], [3, 0]]), np.array([2, -1, 2]), np.array(1))):
        expected = np.where(
            np.expand_dims(index < 0, tuple(range(axis % 3)) + tuple(range(index.ndim + axis % 3, index.ndim + 2))),
            np.zeros((), dtype),
            np.take(x, index, axis),
        )
        for kind, source in itertools.product((np.int32, np.int64), (x, np.asfortranarray(x.T).T)):
            (y,) = run("take", [source, index.astype(kind)], [(dtype, expected.shape)], threads=2, axis=axis)
            np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_gather(dtype: Any) -> None:
    x = numbers(dtype, 4, 6, 8)
    rng = np.random.default_rng(1)
    for axis, shape in ((0, (9, 6, 8)), (1, (3, 2, 8)), (-1, (4, 1, 1)), (1, (0, 2, 8))):
        size = x.shape[axis]
        index = rng.integers(-size, size, shape)
        box = x[tuple(slice(None) if i == axis % 3 else slice(n) for i, n in enumerate(shape))]
        expected = np.take_along_axis(box, index % size, axis)
        for kind in (np.int32, np.int64):
            (y,) = run("gather", [x, index.astype(kind)], [(dtype, shape)], threads=2, axis=axis)
            np.testing.assert_array_equal(y, expected)


def test_iota() -> None:
    for dtype, start, step in (("int32", -3, 2), ("int64", 2**40, -1), ("float32", 0.5, 0.25), ("float64", -1, 3)):
        (y,) = run("iota", [], [(dtype, (57,))], threads=2, start=start, step=step)
        np.testing.assert_array_equal(y, (start + step * np.arange(57)).astype(dtype))


@pytest.mark.parametrize(
    ("kernel", "source", "index", "params", "bad"),
    [
        ("embedding", (7, 4), (3,), {"packed": False}, (-1, 7, 2**31 - 1, -(2**31))),
        ("take", (7, 4), (3,), {"axis": 0}, (-2, 7, 2**31 - 1)),
        ("gather", (7, 4), (3, 4), {"axis": 0}, (-8, 7, -(2**31))),
    ],
)
def test_an_index_out_of_range_is_a_typed_error(
    kernel: str, source: tuple[int, ...], index: tuple[int, ...], params: dict[str, Any], bad: tuple[int, ...]
) -> None:
    x = numbers(np.float32, *source)
    shape = index if kernel == "gather" else (*index, 4)
    for value in bad:
        indices = np.zeros(index, np.int32)
        indices.flat[-1] = value
        operands = [indices, x] if kernel == "embedding" else [x, indices]
        message = f"{kernel}.*out of range .{value} at element {indices.size - 1},"
        with pytest.raises(_native.Error, match=message) as caught:
            run(kernel, operands, [("float32", shape)], **params)
        assert caught.value.code == "value"


def test_refusals() -> None:
    x, index = numbers(np.float32, 4, 6), np.zeros(3, np.int32)
    for kernel, operands, output, params, message in (
        ("copy", [x], ("int32", (4, 6)), {}, "the output is int32, must be float32"),
        ("copy", [x], ("float32", (6, 4)), {}, r"shape \(6, 4\), must be \(4, 6\)"),
        ("bitcast", [x], ("int64", (4, 6)), {}, "must have the size of the operand's"),
        ("bitcast", [x], ("int32", (4, 5)), {}, "shape"),
        ("bitcast", [x > 3], ("uint8", (4, 6)), {}, "a bool has no bits of its own"),
        ("concat", [x, x], ("float32", (9, 6)), {"axis": 0}, "do not add up"),
        ("take", [x, index.astype(np.float32)], ("float32", (3, 6)), {"axis": 0}, "the index is float32"),
        ("take", [x, index], ("float32", (6, 3)), {"axis": 0}, "the output's shape"),
        ("gather", [x, np.zeros((2, 7), np.int32)], ("float32", (2, 7)), {"axis": 0}, "larger than x"),
        ("embedding", [index, x], ("float32", (3, 6)), {"packed": True, "n": 4, "k": 6}, "packed table"),
        ("iota", [], ("int32", (3,)), {"start": 0.5, "step": 1}, "must be whole"),
    ):
        with pytest.raises(_native.Error, match=message):
            run(kernel, operands, [output], **params)
