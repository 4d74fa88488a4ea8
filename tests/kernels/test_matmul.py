"""matmul_packed and matmul against NumPy in float64, and the promise that a row's bits do not depend on its company."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ingot import _native
from tests.kernels.one_call import Array, Operand, View, Weight, run
from tests.kernels.test_elementwise import GELU, MISH

DTYPES = ["float32", "bfloat16", "float16"]
NUMPY = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}
IDENTITY = {"steps": [["input", "float32", 0]], "outputs": [0]}


def pack(parts: list[Array]) -> Array:
    """Panels of 32 outputs; bfloat16 by pairs of k, int8 by fours. The parts' panels alternate."""
    n, k = parts[0].shape
    panels, depth = -(-n // 32), {"bfloat16": 2, "int8": 4}.get(parts[0].dtype.name, 1)
    packed = []
    for w in parts:
        wide = np.zeros((panels * 32, -(-k // depth) * depth), w.dtype)
        wide[:n, :k] = w
        panel = wide.reshape(panels, 32, -1)
        if depth > 1:
            packed.append(panel.reshape(panels, 32, -1, depth).transpose(0, 2, 1, 3))
        else:
            packed.append(panel.transpose(0, 2, 1))
    stacked = np.stack(packed, axis=1)
    return np.ascontiguousarray(stacked.reshape(panels * len(parts), *stacked.shape[2:]))


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    return rng.standard_normal(shape).astype(NUMPY[dtype])


def product(
    x: Operand,
    weights: list[Array],
    out: str = "float32",
    epilogue: dict[str, Any] | None = None,
    extras: tuple[Operand, ...] = (),
    threads: int = 1,
) -> Array:
    n, k = weights[0].shape
    lead = (x.shape if isinstance(x, View) else x.shape)[:-1]  # type: ignore[union-attr]
    params = {"n": n, "k": k, "parts": len(weights), "epilogue": epilogue or IDENTITY}
    return run("matmul_packed", params, [x, Weight(pack(weights)), *extras], [(out, (*lead, n))], threads)[0]


def close(found: Array, exact: Array, scale: Array, dtype: str) -> None:
    """Within rounding: of the sums in float32 (scale: the sum of absolute products), and of the stored dtype."""
    step = {"float32": 2.0**-23, "bfloat16": 2.0**-8, "float16": 2.0**-11}[dtype]
    error = np.abs(found.astype(np.float64) - exact)
    assert np.all(error <= scale * 2.0**-20 + np.abs(exact) * step + 1e-7), error.max()


def exact_product(x: Array, w: Array) -> tuple[Array, Array]:
    a, b = x.astype(np.float64), w.astype(np.float64).T
    return a @ b, np.abs(a) @ np.abs(b)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 31, 32, 33, 96, 299])
@pytest.mark.parametrize("k", [1, 2, 33, 128, 257, 517])
@pytest.mark.parametrize("rows", [1, 3, 17, 40])
def test_product(dtype: str, n: int, k: int, rows: int) -> None:
    rng = np.random.default_rng(n * 1000 + k * 10 + rows)
    x, w = draw(rng, (rows, k), dtype), draw(rng, (n, k), dtype)
    exact, scale = exact_product(x, w)
    close(product(x, [w]), exact, scale, "float32")
    close(product(x, [w], dtype, threads=2), exact, scale, dtype)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [0, 1, 2, 7, 14, 15, 16, 29, 128, 129, 300])
def test_rows(dtype: str, rows: int) -> None:
    rng = np.random.default_rng(rows)
    x, w = draw(rng, (rows, 300), dtype), draw(rng, (70, 300), dtype)
    exact, scale = exact_product(x, w)
    close(product(x, [w], threads=2), exact, scale, "float32")


def test_nothing_to_sum() -> None:
    x, w = np.zeros((3, 0), np.float32), np.zeros((40, 0), np.float32)
    assert np.array_equal(product(x, [w]), np.zeros((3, 40), np.float32))


@pytest.mark.parametrize("dtype", DTYPES)
def test_leading_dimensions_and_strided_rows(dtype: str) -> None:
    rng = np.random.default_rng(5)
    base, w = draw(rng, (2, 5, 100), dtype), draw(rng, (50, 60), dtype)
    x = base[:, :, 20:80]
    exact, scale = exact_product(x.reshape(10, 60), w)
    found = product(View(base, (2, 5, 60), (500, 100, 1), 20), [w])
    close(found.reshape(10, 50), exact, scale, "float32")
    assert np.array_equal(found, product(np.ascontiguousarray(x), [w]))
    vector = product(np.ascontiguousarray(x[0, 0]), [w])
    assert np.array_equal(vector, found[0, 0])


GATE = [["input", "float32", 0], ["input", "float32", 1], ["silu", "float32", 0], ["mul", "float32", 2, 1]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 4, 50])
def test_two_parts(dtype: str, rows: int) -> None:
    rng = np.random.default_rng(rows)
    x = draw(rng, (rows, 64), dtype)
    gate, up = draw(rng, (100, 64), dtype), draw(rng, (100, 64), dtype)
    a, scale_a = exact_product(x, gate)
    b, scale_b = exact_product(x, up)
    found = product(x, [gate, up], epilogue={"steps": GATE, "outputs": [3]}, threads=2)
    exact = a / (1 + np.exp(-a)) * b
    close(found, exact, 2 * np.abs(b) * scale_a + 2 * np.abs(a) * scale_b + 4 * np.abs(exact), "float32")


@pytest.mark.parametrize("rows", [1, 4, 50])
def test_extras(rows: int) -> None:
    """A bias, a residual of another dtype that is a window, a value per row, and a scalar."""
    rng = np.random.default_rng(rows)
    x, w = draw(rng, (rows, 40), "bfloat16"), draw(rng, (77, 40), "bfloat16")
    bias, wide = draw(rng, (77,), "float32"), draw(rng, (rows, 100), "bfloat16")
    column, one = draw(rng, (rows, 1), "float16"), draw(rng, (), "float32")
    steps = [["input", "float32", i] for i in range(5)]
    steps += [["add", "float32", 0, 1], ["add", "float32", 5, 2], ["mul", "float32", 6, 3], ["sub", "float32", 7, 4]]
    residual = View(wide, (rows, 77), (100, 1), 9)
    found = product(x, [w], "bfloat16", {"steps": steps, "outputs": [8]}, (bias, residual, column, one), threads=2)
    exact, scale = exact_product(x, w)
    b, r, c, o = (v.astype(np.float64) for v in (bias, wide[:, 9:86], column, one))
    close(found, (exact + b + r) * c - o, (scale + np.abs(b) + np.abs(r)) * np.abs(c) + np.abs(o), "bfloat16")


def wholes(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.integers(-128, 128, shape, np.int8)


def exact_int8(x: Array, w: Array) -> Array:
    """The sums as whole numbers, rounded to float32 once."""
    return (x.astype(np.int64) @ w.astype(np.int64).T).astype(np.float32)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("n", [1, 32, 33, 299])
@pytest.mark.parametrize("k", [1, 2, 3, 4, 63, 64, 65, 511, 513, 1100, 1280])
def test_int8(n: int, k: int) -> None:
    """Sums of int8 are exact, for any number of rows."""
    rng = np.random.default_rng(n * 1000 + k)
    w = wholes(rng, (n, k))
    for rows in (0, 1, 2, 3, 4, 5, 6, 7, 15, 17, 40, 300):
        x = wholes(rng, (rows, k))
        for threads in (1, 2):
            assert np.array_equal(product(x, [w], threads=threads), exact_int8(x, w))
        x &= 127  # rows without a negative value have a way of their own at some levels, which the last value ends
        assert np.array_equal(product(x, [w]), exact_int8(x, w))
        x[-1:, -1:] = -1
        assert np.array_equal(product(x, [w]), exact_int8(x, w))


@pytest.mark.parametrize("dtype", ["int8", *DTYPES])
@pytest.mark.parametrize("panels", range(1, 8))
def test_few_rows_by_any_number_of_panels(dtype: str, panels: int) -> None:
    """A row may take several panels at once, and those that are left over by fewer; with the bits of many rows."""
    rng = np.random.default_rng(panels)
    n, k = 32 * panels - 3, 1100
    w, x = wholes(rng, (n, k)), wholes(rng, (20, k))
    if dtype != "int8":
        w, x = draw(rng, w.shape, dtype), draw(rng, x.shape, dtype)
    together = product(x, [w])
    assert dtype != "int8" or np.array_equal(together, exact_int8(x, w))
    both = {"steps": [*(["input", "float32", i] for i in range(2)), ["add", "float32", 0, 1]], "outputs": [2]}
    for rows in (1, 2, 3, 6, 7, 14, 15):
        for threads in (1, 2):
            assert same_bits(product(x[:rows], [w], threads=threads), together[:rows])
            summed = product(x[:rows], [w, w[::-1].copy()], epilogue=both, threads=threads)
            assert same_bits(summed, together[:rows] + together[:rows, ::-1])


def test_int8_at_its_bounds() -> None:
    """Sums that just fit into int32, and no longer into the exact numbers of float32."""
    k = 131071
    for one, other in ((-128, -128), (-128, 127), (127, -128), (127, 127)):
        x, w = np.full((3, k), one, np.int8), np.full((33, k), other, np.int8)
        assert np.array_equal(product(x, [w]), exact_int8(x, w))
    x, w = np.zeros((1, k + 1), np.int8), np.zeros((1, k + 1), np.int8)
    with pytest.raises(_native.Error, match="up to k = 131071"):
        product(x, [w])
    with pytest.raises(_native.Error, match="the weight"):
        product(x[:, :8], [np.zeros((1, 8), np.float32)])


@pytest.mark.parametrize("rows", [1, 5, 130, 600])
def test_int8_with_scales(rows: int) -> None:
    """As quantised layers use it: a scale for each row and output, a bias, two parts; more rows than a pass has."""
    rng = np.random.default_rng(rows)
    x, gate, up = wholes(rng, (rows, 700)), wholes(rng, (77, 700)), wholes(rng, (77, 700))
    per_row, per_output, bias = (rng.random(shape, np.float32) for shape in [(rows, 1), (77,), (77,)])
    steps = [["input", "float32", i] for i in range(4)]
    steps += [["mul", "float32", 0, 1], ["mul", "float32", 4, 2], ["add", "float32", 5, 3]]
    want = exact_int8(x, gate) * per_row * per_output + bias
    for threads in (1, 2):
        found = product(x, [gate], "float32", {"steps": steps, "outputs": [6]}, (per_row, per_output, bias), threads)
        assert np.array_equal(found, want)
    half = product(x, [gate], "bfloat16", {"steps": steps, "outputs": [6]}, (per_row, per_output, bias), 2)
    assert same_bits(half, want.astype(NUMPY["bfloat16"]))
    both = [["input", "float32", 0], ["input", "float32", 1], ["mul", "float32", 0, 1]]
    found = product(x, [gate, up], "float32", {"steps": both, "outputs": [2]}, threads=2)
    assert np.array_equal(found, exact_int8(x, gate) * exact_int8(x, up))


def same_bits(a: Array, b: Array) -> bool:
    """Bit for bit, but for which NaN it is."""
    nan = np.isnan(a)
    words = (np.where(nan, 0, v).astype(a.dtype).view(np.uint8) for v in (a, b))
    return np.array_equal(nan, np.isnan(b)) and np.array_equal(*words)


SPECIAL = [0.0, -0.0, 1.0, -1.5, 1.00390625, 3e38, -3e38, 1e-20, -1e-20, 1e-39, -1e-39, np.inf, -np.inf, np.nan]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wide", [False, True], ids=["bias as x", "bias in float32"])
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("k", [1, 2, 600, 640])
def test_every_way_to_end_rows(dtype: str, wide: bool, with_residual: bool, k: int) -> None:
    """The same bits from sums in registers, from sums in memory, and step by step: zeros, denormals, NaN, overflow."""
    rng = np.random.default_rng(k)

    def pick(shape: tuple[int, ...], to: str) -> Array:
        with np.errstate(over="ignore"):
            return rng.choice(SPECIAL, shape, p=[0.2, 0.2, *[0.05] * 12]).astype(NUMPY[to])

    x, w = pick((29, k), dtype), pick((75, k), dtype)  # 75: the last panel is narrow
    if k > 2:
        x[:, 2:] = 0
    extras = [pick((75,), "float32" if wide else dtype)]
    steps: list[list[Any]] = [["input", "float32", 0], ["input", "float32", 1], ["add", "float32", 0, 1]]
    if with_residual:
        extras.append(pick((29, 75), dtype))
        steps += [["input", "float32", 2], ["add", "float32", 3, 2]]
    last = len(steps) - 1
    steps += [["const", "float32", 0.0], ["max", "float32", last, last + 1]]
    chain = [*steps, ["const", "float32", "inf"], ["min", "float32", last + 2, last + 3]]
    apart = [*steps, ["neg", "float32", last + 2], ["neg", "float32", last + 3]]
    for count in (1, 3, 29):
        given = (x[:count].copy(), [w], dtype)
        rows = tuple(e if e.ndim == 1 else e[:count].copy() for e in extras)
        found = product(*given, {"steps": steps, "outputs": [last + 2]}, rows)
        assert same_bits(found, product(*given, {"steps": chain, "outputs": [last + 4]}, rows))
        assert same_bits(found, product(*given, {"steps": apart, "outputs": [last + 4]}, rows))


@pytest.mark.parametrize("dtype", DTYPES)
def test_activations_in_chains_and_in_tiles(dtype: str) -> None:
    """The same bits in registers behind a product as by a step of the expression over its results."""
    rng = np.random.default_rng(8)
    x, w = draw(rng, (45, 70), dtype), draw(rng, (75, 70), dtype)
    sums = product(x, [w])
    for steps in (MISH, GELU):
        epilogue = {"steps": steps, "outputs": [len(steps) - 1]}
        (want,) = run("elementwise", {"expression": epilogue}, [sums], [("float32", sums.shape)], 1)
        assert same_bits(product(x, [w], "float32", epilogue), want)
        assert same_bits(product(x, [w], dtype, epilogue), want.astype(NUMPY[dtype]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wide", [False, True], ids=["bias as x", "bias in float32"])
def test_a_bias_and_gelu(dtype: str, wide: bool) -> None:
    """The same bits from the loop for just these as by a step of the expression: NaN, overflow and denormals too."""
    rng = np.random.default_rng(9)
    x, w = draw(rng, (45, 70), dtype), draw(rng, (75, 70), dtype)
    bias = draw(rng, (75,), "float32" if wide else dtype)
    with np.errstate(over="ignore"):
        bias[:14] = bias[40:54] = np.array(SPECIAL).astype(bias.dtype)
    x[5] = 0  # the bias alone
    with np.errstate(over="ignore", invalid="ignore"):
        sums = product(x, [w]) + bias.astype(np.float32)
    moved = [[name, kind, *(rest if name == "const" else [a + 2 for a in rest])] for name, kind, *rest in GELU[1:]]
    steps = [["input", "float32", 0], ["input", "float32", 1], ["add", "float32", 0, 1], *moved]
    (want,) = run("elementwise", {"expression": {"steps": GELU, "outputs": [8]}}, [sums], [("float32", sums.shape)], 1)
    epilogue = {"steps": steps, "outputs": [10]}
    for rows in (1, 3, 4, 7, 45):
        few = x[:rows].copy()
        assert same_bits(product(few, [w], "float32", epilogue, (bias,)), want[:rows])
        with np.errstate(over="ignore"):
            assert same_bits(product(few, [w], dtype, epilogue, (bias,)), want[:rows].astype(NUMPY[dtype]))


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_a_denormal_limit(dtype: str) -> None:
    """Sums held to at least a denormal number: the same bits for a row alone, in company and in the last panel."""
    stored = np.int8 if dtype == "int8" else NUMPY[dtype]
    x, w = np.full((20, 8), -1, stored), np.ones((72, 8), stored)
    steps = [["input", "float32", 0], ["input", "float32", 1], ["mul", "float32", 0, 1], ["const", "float32", 1e-39],
             ["max", "float32", 2, 3]]  # fmt: skip
    scale = np.ones(72, np.float32)
    want = np.float32(1e-39).astype(NUMPY["bfloat16"])
    for rows in (1, 2, 6, 7, 20):
        y = product(x[:rows].copy(), [w], "bfloat16", {"steps": steps, "outputs": [4]}, (scale,))
        assert set(y.ravel().view(np.uint16).tolist()) == {int(want.view(np.uint16))}


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize(("n", "k"), [(1056, 64), (1056, 96), (1000, 64), (544, 1280)])
def test_results_beyond_the_caches(dtype: str, n: int, k: int) -> None:
    """More than 4 MiB of results: the same bits as of a few of its rows. Some lie in whole lines, some do not."""
    rng = np.random.default_rng(n + k)
    rows = 4300 if n < 1000 else 2151
    integers = dtype == "int8"
    x = rng.integers(-127, 128, (rows, k), np.int8) if integers else draw(rng, (rows, k), dtype)
    w = rng.integers(-127, 128, (n, k), np.int8) if integers else draw(rng, (n, k), dtype)
    scale, bias, more = (rng.standard_normal(n).astype(np.float32) for _ in range(3))
    for out in ("bfloat16", "float32"):
        residual = draw(rng, (rows, n), out)
        rowwise = (scale, bias, more) if integers else (bias,)
        steps: list[list[Any]] = [["input", "float32", 0]]
        for operand in range(1, len(rowwise) + 2):
            step = "mul" if integers and operand == 1 else "add"
            steps += [["input", "float32", operand], [step, "float32", len(steps) - 1, len(steps)]]
        epilogue = {"steps": steps, "outputs": [len(steps) - 1]}
        found = product(x, [w], out, epilogue, (*rowwise, residual), threads=2)
        for part in (slice(0, 40), slice(1070, 1111), slice(rows - 33, rows)):
            few = product(x[part].copy(), [w], out, epilogue, (*rowwise, residual[part].copy()))
            assert same_bits(found[part], few)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), [(100, 333), (256, 1024), (33, 31)])
def test_rows_do_not_depend_on_their_company(dtype: str, n: int, k: int) -> None:
    """Bit for bit: any number of rows, any place among them, one or two threads."""
    rng = np.random.default_rng(n)
    x, w = draw(rng, (200, k), dtype), draw(rng, (n, k), dtype)
    whole = product(x, [w])
    assert np.array_equal(whole, product(x, [w], threads=2))
    assert np.array_equal(whole, product(x, [w], threads=3))
    for count in (1, 2, 5, 6, 7, 12, 13, 14, 15, 16, 17, 28, 29, 33, 129):
        for start in (0, 1, 37, 200 - count):
            part = np.ascontiguousarray(x[start : start + count])
            assert np.array_equal(product(part, [w]), whole[start : start + count]), (count, start)
    both = product(x[:20].copy(), [w, w], epilogue={"steps": [["input", "float32", 1]], "outputs": [0]})
    assert np.array_equal(both, whole[:20])


@pytest.mark.parametrize("dtype", DTYPES)
def test_infinities_and_nan_stay_in_their_row(dtype: str) -> None:
    rng = np.random.default_rng(0)
    x, w = draw(rng, (20, 45), dtype), draw(rng, (40, 45), dtype)
    clean = product(x, [w])
    x[3, 44], x[4, 0] = np.inf, np.nan
    found = product(x, [w])
    assert not np.any(np.isfinite(found[3:5]))
    keep = [i for i in range(20) if i not in (3, 4)]
    assert np.array_equal(found[keep], clean[keep])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("out", ["float32", "same"])
@pytest.mark.parametrize("threads", [1, 2])
def test_batched(dtype: str, out: str, threads: int) -> None:
    rng = np.random.default_rng(3)
    name = dtype if out == "same" else out
    for a_shape, b_shape in [
        ((5, 7), (7, 9)),
        ((2, 3, 5, 65), (3, 65, 100)),
        ((4, 1, 1, 33), (1, 6, 33, 31)),
        ((150, 64), (2, 64, 300)),
        ((3, 0), (0, 4)),
        ((2, 3, 4), (2, 4, 0)),
    ]:
        a, b = draw(rng, a_shape, dtype), draw(rng, b_shape, dtype)
        exact = a.astype(np.float64) @ b.astype(np.float64)
        scale = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
        found = run("matmul", {}, [a, b], [(name, exact.shape)], threads)[0]
        close(found, exact, scale, name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("out", ["float32", "same"])
@pytest.mark.parametrize(
    ("rows", "k", "n"), [(1, 54, 64), (16, 1, 32), (18, 54, 96), (31, 65, 64), (32, 256, 32), (9, 32, 256)]
)
def test_small_matrices(dtype: str, out: str, rows: int, k: int, n: int) -> None:
    """A graph's adjacency times its nodes: one a for all b. Rows have the bits that they have among more rows."""
    rng = np.random.default_rng(5)
    name = dtype if out == "same" else out
    b = draw(rng, (2, 3, k, n), dtype)
    for a in (draw(rng, (40, k), dtype), draw(rng, (3, 40, k), dtype)):
        exact = a.astype(np.float64) @ b.astype(np.float64)
        scale = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
        whole = run("matmul", {}, [a, b], [(name, exact.shape)])[0]
        close(whole, exact, scale, name)
        few = np.ascontiguousarray(a[..., :rows, :])
        for threads in (1, 2):
            found = run("matmul", {}, [few, b], [(name, (2, 3, rows, n))], threads)[0]
            assert np.array_equal(found, whole[..., :rows, :])


@pytest.mark.parametrize("dtype", DTYPES)
def test_batched_strides(dtype: str) -> None:
    """Transposed operands, as of q and k in attention: the same bits as dense ones."""
    rng = np.random.default_rng(4)
    a, b = draw(rng, (70, 4, 40), dtype), draw(rng, (50, 4, 70), dtype)
    dense = run("matmul", {}, [a.transpose(1, 2, 0).copy(), b.transpose(1, 2, 0).copy()], [("float32", (4, 40, 50))])[0]
    views = [View(a, (4, 40, 70), (40, 1, 160)), View(b, (4, 70, 50), (70, 1, 280))]
    found = run("matmul", {}, views, [("float32", (4, 40, 50))], threads=2)[0]
    assert np.array_equal(found, dense)
    exact = a.transpose(1, 2, 0).astype(np.float64) @ b.transpose(1, 2, 0).astype(np.float64)
    close(found, exact, np.full(exact.shape, 70.0), "float32")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("m", "outer", "inner", "n"),
    [(150, 3, 18, 18), (300, 2, 33, 300), (5, 7, 1, 40), (70, 1, 40, 9), (9, 5, 5, 32)],
)
def test_k_of_two_dimensions(dtype: str, m: int, outer: int, inner: int, n: int) -> None:
    """Sums over two labels that lie apart, in a, b or both, rows dense or not: the same bits as of dense copies."""
    rng = np.random.default_rng(6)
    a = draw(rng, (3, outer, m, inner), dtype)  # k: dimensions 1 and 3
    b = draw(rng, (outer, 2, inner, n), dtype)  # 0 and 2
    turned = [np.ascontiguousarray(a.transpose(0, 1, 3, 2)), np.ascontiguousarray(b.transpose(0, 1, 3, 2))]
    whole = [np.ascontiguousarray(a.transpose(0, 2, 1, 3)).reshape(3, 1, m, -1),
             np.ascontiguousarray(b.transpose(1, 0, 2, 3)).reshape(2, -1, n)]  # fmt: skip
    want = run("matmul", {}, whole, [("float32", (3, 2, m, n))])[0]
    a_shape, b_shape = (3, 1, m, outer, inner), (2, outer, inner, n)
    size = outer * m * inner
    views = [
        (View(a, a_shape, (size, 0, inner, m * inner, 1)), View(b, b_shape, (inner * n, 2 * inner * n, n, 1))),
        (View(turned[0], a_shape, (size, 0, 1, m * inner, m)),
         View(turned[1], b_shape, (inner * n, 2 * inner * n, 1, inner))),
    ]  # fmt: skip
    for (split_a, split_b), threads in itertools.product(views, (1, 2)):
        for one, two, names in [(split_a, split_b, "ab"), (split_a, whole[1], "a"), (whole[0], split_b, "b")]:
            params = {f"{name}_split": True for name in names}
            found = run("matmul", params, [one, two], [("float32", (3, 2, m, n))], threads)[0]
            assert np.array_equal(found, want)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"n": 0}, "parameter n is 0"),
        ({"parts": 3}, "parameter parts is 3"),
        ({"k": 65}, "the weight"),
        ({"more": 1}, "unknown parameter 'more'"),
        ({"epilogue": {"steps": [["input", "float32", 1]], "outputs": [0]}}, "input must be the index of an operand"),
        ({"epilogue": {"steps": [], "outputs": []}}, "the expression has 0 steps"),
    ],
)
def test_refusals(params: dict[str, Any], message: str) -> None:
    w = Weight(pack([np.zeros((32, 64), np.float32)]))
    good = {"n": 32, "k": 64, "parts": 1, "epilogue": IDENTITY}
    with pytest.raises(_native.Error, match=message):
        run("matmul_packed", good | params, [np.zeros((2, 64), np.float32), w], [("float32", (2, 32))])


@pytest.mark.parametrize("threads", [1, 2])
def test_float64(threads: int) -> None:
    """Any strides and batches, in float64 throughout; a row's bits do not depend on its company."""
    rng = np.random.default_rng(5)
    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((1, 1), (1, 1)), ((70, 130), (130, 65)), ((4, 0), (0, 3))]
    for shape_a, shape_b in [*shapes, ((3, 1, 17, 5), (2, 5, 64)), ((2, 9, 70), (70, 3))]:
        a, b = rng.standard_normal(shape_a), rng.standard_normal(shape_b)
        exact = a.astype(np.longdouble) @ b.astype(np.longdouble)
        scale = np.abs(a) @ np.abs(b)
        for turned in (False, True):
            left, right = ([View(np.ascontiguousarray(x.swapaxes(-1, -2)), x.shape, _turned(x)) for x in (a, b)]
                           if turned and a.size else [a, b])  # fmt: skip
            (found,) = run("matmul_float64", {}, [left, right], [("float64", exact.shape)], threads)
            assert (np.abs(found - exact) <= 2.0**-52 * shape_a[-1] * scale).all()
    a, b = rng.standard_normal((40, 300)), rng.standard_normal((300, 70))
    (whole,) = run("matmul_float64", {}, [a, b], [("float64", (40, 70))], threads)
    for row in (0, 17, 39):
        (one,) = run("matmul_float64", {}, [a[row : row + 1], b], [("float64", (1, 70))], threads)
        assert same_bits(one[0], whole[row])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("given", ["int8", "int32", "int64"])
@pytest.mark.parametrize("result", ["int8", "int16", "int32", "int64"])
def test_integers(given: str, result: str, threads: int) -> None:
    """Any strides and batches: the low bits of the exact sums, also where they wrap."""
    rng = np.random.default_rng(6)
    low, high = np.iinfo(given).min, np.iinfo(given).max
    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((1, 1), (1, 1)), ((35, 130), (130, 65)), ((4, 0), (0, 3))]
    for shape_a, shape_b in [*shapes, ((3, 1, 17, 5), (2, 5, 64)), ((2, 9, 70), (70, 3))]:
        a, b = (rng.integers(low, high, shape, given, endpoint=True) for shape in (shape_a, shape_b))
        exact = np.matmul(a.astype(object), b.astype(object)) if shape_a[-1] else np.zeros((4, 3), object)
        bits = np.iinfo(result).bits
        wrapped = ((exact + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)).astype(result)
        for turned in (False, True):
            left, right = ([View(np.ascontiguousarray(x.swapaxes(-1, -2)), x.shape, _turned(x)) for x in (a, b)]
                           if turned and a.size else [a, b])  # fmt: skip
            (found,) = run("matmul_integer", {}, [left, right], [(result, exact.shape)], threads)
            assert found.dtype == result and np.array_equal(found, wrapped)


@pytest.mark.parametrize(
    ("given", "result", "message"),
    [
        (("uint8", "uint8"), "int32", "a is uint8, must be one of int8"),
        (("int8", "int32"), "int32", "b is int32, must be int8"),
        (("int8", "int8"), "float32", "y is float32, must be one of int8"),
    ],
)
def test_integers_take_nothing_else(given: tuple[str, str], result: str, message: str) -> None:
    with pytest.raises(_native.Error, match=message):
        run("matmul_integer", {}, [np.zeros((2, 2), dtype) for dtype in given], [(result, (2, 2))])


def _turned(x: Array) -> tuple[int, ...]:
    """The strides of x in memory that holds its matrices transposed."""
    rows, columns = x.shape[-2:]
    outer = [int(np.prod(x.shape[i + 1 :])) for i in range(x.ndim - 2)]
    return (*outer, 1, rows)


@pytest.mark.parametrize(
    ("operands", "out", "message"),
    [
        ([(3, 4), (5, 6)], (3, 6), "a, b and y must be"),
        ([(2, 3, 4), (5, 4, 6)], (2, 3, 6), "must broadcast"),
        ([(2, 3, 4), (2, 4, 6)], (1, 3, 6), "must broadcast"),
        ([(4,), (4, 6)], (1, 6), "a, b and y must be"),
    ],
)
def test_refusals_of_float64(operands: list[tuple[int, ...]], out: tuple[int, ...], message: str) -> None:
    with pytest.raises(_native.Error, match=message):
        run("matmul_float64", {}, [np.zeros(shape) for shape in operands], [("float64", out)])


def test_float64_takes_nothing_else() -> None:
    with pytest.raises(_native.Error, match="is float32, must be float64"):
        run("matmul_float64", {}, [np.zeros((2, 2), np.float32)] * 2, [("float64", (2, 2))])
