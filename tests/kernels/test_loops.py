"""Orders of a product's loops, and what is dealt to threads: the same bits in each, and those of the exact sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ingot import _native
from ingot.backends.cpu.product import ORDERS, SPLITS
from tests.kernels.one_call import Array, Weight, run
from tests.kernels.test_conv import Window, packed, square
from tests.kernels.test_matmul import NUMPY, exact_int8, pack

LOOPS: list[dict[str, Any]] = [
    *({"order": order} for order in ORDERS),
    *({"split": split} for split in SPLITS),
    {"order": "rows", "split": "outputs"},
    {"order": "weights", "split": "rows"},
]
ADDED = [["input", "float32", 0], ["input", "float32", 1], ["add", "float32", 0, 1]]
EPILOGUES = {
    "ends in registers": {"steps": ADDED, "outputs": [2]},
    "ends by tiles": {"steps": [*ADDED, ["sin", "float32", 2]], "outputs": [3]},
}
DTYPES = ["float32", "bfloat16", "float16", "int8"]


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, low: int = -128) -> Array:
    if dtype == "int8":
        return rng.integers(low, 128, shape, np.int8)
    return rng.standard_normal(shape).astype(NUMPY[dtype])


def with_bias(sums: Array, bias: Array, scale: Array) -> tuple[Array, Array]:
    return sums + bias, scale * 2.0**-19 + 1e-6


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("rows", [1, 7, 63, 600])
@pytest.mark.parametrize(("n", "k"), [(31, 64), (96, 576), (299, 33), (70, 1312), (1056, 128)])
def test_products(dtype: str, epilogue: str, rows: int, n: int, k: int) -> None:
    rng = np.random.default_rng(rows + n)
    x, w, bias = draw(rng, (rows, k), dtype, low=0), draw(rng, (n, k), dtype), draw(rng, (n,), "float32")

    def product(threads: int = 1, **loops: Any) -> Array:
        params = {"n": n, "k": k, "parts": 1, "epilogue": EPILOGUES[epilogue], **loops}
        return run("matmul_packed", params, [x, Weight(pack([w])), bias], [("float32", (rows, n))], threads)[0]

    wanted = product()
    if epilogue == "ends in registers":
        wide = (x.astype(np.float64), w.astype(np.float64).T)
        exact, close = with_bias(wide[0] @ wide[1], bias, abs(wide[0]) @ abs(wide[1]))
        assert np.all(abs(wanted - exact) <= close)
    for loops in LOOPS:
        for threads in (1, 2, 3):
            assert product(threads, **loops).tobytes() == wanted.tobytes(), (loops, threads)


@pytest.mark.parametrize("rows", [5, 130])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_products_with_narrow_weights(dtype: str, rows: int) -> None:
    """Weights of int8, and gates of two parts, as they come in other nets than those that are tuned."""
    rng = np.random.default_rng(rows)
    x, w = draw(rng, (rows, 200), dtype), [draw(rng, (75, 200), "int8") for _ in range(2)]
    gate = {"steps": [["input", "float32", 0], ["input", "float32", 1], ["mul", "float32", 0, 1]], "outputs": [2]}

    def product(threads: int = 1, **loops: Any) -> Array:
        params = {"n": 75, "k": 200, "parts": 2, "epilogue": gate, **loops}
        return run("matmul_packed", params, [x, Weight(pack(w))], [("float32", (rows, 75))], threads)[0]

    wanted = product()
    if dtype == "int8":
        assert np.array_equal(wanted, exact_int8(x, w[0]) * exact_int8(x, w[1]))
    for loops in LOOPS:
        for threads in (1, 2):
            assert product(threads, **loops).tobytes() == wanted.tobytes(), (loops, threads)


WINDOWS = [
    ("three by three", (23, 29), 64, 33, square(3, 1, 1)),
    ("many channels", (7, 7), 192, 70, square(3, 1, 1)),
    ("strided", (15, 13), 32, 64, square(3, 2, 1)),
    ("pixels", (24, 25), 64, 96, square(1)),
    ("strided pixels", (14, 15), 128, 40, square(1, 2)),
    ("first layer", (23, 19), 3, 40, square(7, 2, 3)),
    ("groups", (9, 8), 70, 76, square(3, 1, 1, groups=2)),
    ("along one axis", (31, 18), 64, 64, Window((9, 1), (1, 1), (4, 0), (4, 0), (1, 1))),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("case", WINDOWS, ids=[case[0] for case in WINDOWS])
def test_convolutions(case: tuple[str, tuple[int, int], int, int, Window], epilogue: str, dtype: str) -> None:
    _, sizes, channels, outputs, window = case
    rng = np.random.default_rng(channels + outputs)
    x = draw(rng, (2, *sizes, channels), dtype, low=0)
    w = draw(rng, (outputs, *window.kernel, channels // window.groups), dtype)
    bias, y = draw(rng, (outputs,), "float32"), (2, *window.out(sizes), outputs)

    def conv(threads: int = 1, **loops: Any) -> Array:
        params = window.params(outputs, channels, EPILOGUES[epilogue]) | {"algorithm": "direct"} | loops
        return run("conv_packed", params, [x, packed(w, window.groups), bias], [("float32", y)], threads)[0]

    wanted = conv()
    for loops in LOOPS:
        for threads in (1, 2):
            assert conv(threads, **loops).tobytes() == wanted.tobytes(), (loops, threads)


@pytest.mark.parametrize("kernel", ["matmul_packed", "conv_packed"])
@pytest.mark.parametrize("word", ["order", "split"])
@pytest.mark.parametrize("value", ["columns", "", 3, None])
def test_what_is_no_order(kernel: str, word: str, value: Any) -> None:
    x = np.zeros((1, 5, 4, 8), np.float32)
    params = square(1).params(8, 8, {"steps": [["input", "float32", 0]], "outputs": [0]})
    if kernel == "matmul_packed":
        params = {"n": 8, "k": 8, "parts": 1, "epilogue": params["epilogue"]}
    weight = Weight(pack([np.zeros((8, 8), np.float32)]))
    with pytest.raises(_native.Error, match=f"parameter {word} is .*must be one of rows, "):
        run(kernel, {**params, word: value}, [x, weight], [("float32", x.shape)])
