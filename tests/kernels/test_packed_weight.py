"""Products with weights of 8 and 4 bits: of 8, the same bits as with the floats that they stand for."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ingot import _native
from tests.kernels.one_call import Array, Operand, Weight, run
from tests.kernels.test_matmul import GATE, IDENTITY, product

DTYPES = ["float32", "bfloat16", "float16"]
NUMPY = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}
SCALED = {"steps": [["input", "float32", 0], ["input", "float32", 1], ["mul", "float32", 0, 1]], "outputs": [2]}


def panels(q: Array, depth: int) -> Array:
    """[N, K] of small integers as [panels, ceil(K / depth), 32, depth], zero padded."""
    n, k = q.shape
    whole = np.zeros((-(-n // 32) * 32, -(-k // depth) * depth), q.dtype)
    whole[:n, :k] = q
    return whole.reshape(-1, 32, whole.shape[1] // depth, depth).transpose(0, 2, 1, 3)


def alternating(parts: list[Array]) -> Array:
    stacked = np.stack(parts, 1)
    return np.ascontiguousarray(stacked.reshape(-1, *stacked.shape[2:]))


def pack8(parts: list[Array]) -> Array:
    return alternating([panels(q, 4) for q in parts])


def pack4(parts: list[Array]) -> Array:
    """Two values a byte, the first in the lower half."""
    halves = alternating([panels(q, 8) for q in parts]).view(np.uint8) & 15
    return np.ascontiguousarray(halves[..., ::2] | halves[..., 1::2] << 4)


def pack_scales(parts: list[Array]) -> Array:
    """Scales [N, groups] of each part as [panels, groups, 32]."""
    padded = []
    for scale in parts:
        whole = np.zeros((-(-len(scale) // 32) * 32, scale.shape[1]), scale.dtype)
        whole[: len(scale)] = scale
        padded.append(whole.reshape(-1, 32, scale.shape[1]).transpose(0, 2, 1))
    return alternating(padded)


def product8(x: Array, parts: list[Array], out: str = "float32", epilogue: Any = None, extras: tuple[Operand, ...] = (),
             threads: int = 1) -> Array:  # fmt: skip
    n, k = parts[0].shape
    params = {"n": n, "k": k, "parts": len(parts), "epilogue": epilogue or IDENTITY}
    operands = [x, Weight(pack8(parts)), *extras]
    return run("matmul_packed", params, operands, [(out, (*x.shape[:-1], n))], threads)[0]


def product4(x: Array, parts: list[Array], scales: list[Array], group: int, out: str = "float32", epilogue: Any = None,
             extras: tuple[Operand, ...] = (), threads: int = 1) -> Array:  # fmt: skip
    n, k = parts[0].shape
    params = {"n": n, "k": k, "parts": len(parts), "group": group, "epilogue": epilogue or IDENTITY}
    operands = [x, Weight(pack4(parts)), Weight(pack_scales(scales)), *extras]
    return run("matmul_packed", params, operands, [(out, (*x.shape[:-1], n))], threads)[0]


def draw(rows: int, n: int, k: int, dtype: str, bits: int = 8) -> tuple[Array, Array]:
    rng = np.random.default_rng(n * 1000 + k + rows)
    most = 2 ** (bits - 1) - 1
    return rng.standard_normal((rows, k)).astype(NUMPY[dtype]), rng.integers(-most, most + 1, (n, k)).astype(np.int8)


def draw_scales(seed: int, n: int, groups: int) -> Array:
    """float16, so that float32 has the same numbers; some are denormal."""
    scale = np.random.default_rng(seed).uniform(0.001, 0.02, (n, groups)).astype(np.float16)
    scale[::7, ::3] = np.float16(2.0**-24) * (1 + np.arange(scale[::7, ::3].size).reshape(scale[::7, ::3].shape) % 999)
    return scale


def widened(scales: list[Array]) -> list[Array]:
    return [scale.astype(np.float32) for scale in scales]


def as_met(x: Array) -> Array:
    """Rows as weights of 4 bits meet them: at the level amx those of bfloat16 are whole multiples of 2^-16 of the power
    of two at or below the greatest of each 32."""
    if x.dtype != NUMPY["bfloat16"] or _native.level() != "amx":
        return x
    exact = x.astype(np.float64)
    steps = np.pad(exact, ((0, 0), (0, -x.shape[1] % 32))).reshape(len(x), -1, 32)
    unit = np.exp2(np.frexp(np.abs(steps).max(2, keepdims=True))[1] - 17.0)
    return (np.rint(steps / unit) * unit).reshape(len(x), -1)[:, : x.shape[1]]


def check_int4(found: Array, x: Array, q: Array, scale: Array, group: int) -> None:
    """Against float64: sums of a group are of whole numbers, and scaled then."""
    met = as_met(x)
    assert (np.abs(met - x.astype(np.float64)) <= np.abs(x.astype(np.float64)).max(1, keepdims=True) * 2.0**-17).all()
    x = met
    weight = q * np.repeat(scale.astype(np.float64), group, 1)[:, : q.shape[1]]
    exact, most = (a.astype(np.float64) @ b.T for a, b in ((x, weight), (np.abs(x), np.abs(weight))))
    assert (np.abs(found - exact) <= most * 2.0**-20).all()


@pytest.mark.sampled(7)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 32, 33, 299])
@pytest.mark.parametrize("k", [1, 2, 3, 5, 128, 257, 517])
@pytest.mark.parametrize("rows", [1, 3, 17, 40])
def test_int8_is_its_whole_numbers(dtype: str, n: int, k: int, rows: int) -> None:
    """Every int8 is a bfloat16, so the product is that of a weight of x's type bit for bit."""
    x, q = draw(rows, n, k, dtype)
    q[0, 0] = -128
    expected = product(x, [q.astype(NUMPY[dtype])])
    assert np.array_equal(product8(x, [q]), expected)
    assert np.array_equal(product8(x, [q], threads=2), expected)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 33, 299])
@pytest.mark.parametrize("k", [1, 3, 128, 517])
@pytest.mark.parametrize("rows", [1, 3, 17, 40])
def test_float8_is_its_numbers(dtype: str, n: int, k: int, rows: int) -> None:
    """Every float8 (e4m3) is a bfloat16 and a float16, down to the smallest: the same bits as of a weight of these."""
    x, _ = draw(rows, n, k, dtype)
    bits = np.arange(n * k, dtype=np.int64).reshape(n, k) * 37 % 254  # all but NaN
    w = (bits + bits // 127).astype(np.uint8).view(ml_dtypes.float8_e4m3fn)
    assert np.isfinite(w.astype(np.float32)).all()
    expected = product(x, [w.astype(NUMPY[dtype])])
    assert np.array_equal(product8(x, [w]), expected)
    assert np.array_equal(product8(x, [w], threads=2), expected)


def test_float8_in_two_parts() -> None:
    x, gate = draw(5, 100, 70, "bfloat16")
    parts = [q.astype(ml_dtypes.float8_e4m3fn) for q in (gate, gate[::-1])]
    epilogue = {"steps": GATE, "outputs": [3]}
    floats = [q.astype(NUMPY["bfloat16"]) for q in parts]
    assert np.array_equal(product8(x / 99, parts, epilogue=epilogue), product(x / 99, floats, epilogue=epilogue))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 4, 50, 200])
def test_scale_of_each_output(dtype: str, rows: int) -> None:
    """The scale is an operand of the expression; against NumPy in float64."""
    x, q = draw(rows, 77, 300, dtype)
    scale = np.random.default_rng(1).uniform(0.001, 0.02, 77).astype(np.float32)
    found = product8(x, [q], "float32", SCALED, (Weight(scale),), threads=2)
    exact = x.astype(np.float64) @ (q * scale.astype(np.float64)[:, None]).T
    limit = np.abs(x.astype(np.float64)) @ np.abs(q * scale.astype(np.float64)[:, None]).T
    assert (np.abs(found - exact) <= limit * 2.0**-20).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 4, 50])
def test_two_parts(dtype: str, rows: int) -> None:
    x, gate = draw(rows, 100, 70, dtype)
    up = gate[::-1].copy()
    epilogue = {"steps": GATE, "outputs": [3]}
    floats = [q.astype(NUMPY[dtype]) for q in (gate, up)]
    assert np.array_equal(product8(x / 99, [gate, up], epilogue=epilogue), product(x / 99, floats, epilogue=epilogue))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k", "group"), [(33, 64, 32), (299, 200, 64), (70, 517, 128), (32, 5, 32)])
@pytest.mark.parametrize("rows", [1, 3, 17, 40])
def test_int4_groups(dtype: str, n: int, k: int, group: int, rows: int) -> None:
    x, q = draw(rows, n, k, dtype, 4)
    q[0, 0] = -8
    scale = draw_scales(2, n, -(-k // group))
    found = product4(x, [q], [scale], group)
    check_int4(found, x, q, scale, group)
    assert np.array_equal(product4(x, [q], widened([scale]), group, threads=2), found)


def test_int4_in_two_parts() -> None:
    """The second half of the parts by itself, and the whole with a gate between them."""
    x, gate = draw(5, 100, 70, "bfloat16", 4)
    up = gate[::-1].copy()
    scales = [draw_scales(i, 100, 3) for i in range(2)]
    a, b = (product4(x, [q], [s], 32).astype(np.float64) for q, s in zip((gate, up), scales, strict=True))
    found = product4(x, [gate, up], scales, 32, epilogue={"steps": GATE, "outputs": [3]})
    wide = product4(x, [gate, up], widened(scales), 32, epilogue={"steps": GATE, "outputs": [3]})
    assert np.array_equal(found, wide)
    np.testing.assert_allclose(found, a / (1 + np.exp(-a)) * b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("k", "group"), [(77, 32), (600, 32), (320, 64), (1000, 128)])
def test_rows_of_int4_do_not_depend_on_their_company(dtype: str, k: int, group: int) -> None:
    """Few rows meet the words of 4 bits, many the floats that a block of them was made; NaN stays in its row."""
    x, q = draw(40, 130, k, dtype, 4)
    x[7, 3] = np.nan
    scale = draw_scales(5, 130, -(-k // group))
    whole = product4(x, [q], widened([scale]), group)
    assert np.isnan(whole).all(1).nonzero()[0].tolist() == [7] and np.isnan(whole).sum() == 130
    for count in (1, 2, 3, 6, 7, 15, 33):
        for start in (0, 7, 40 - count):
            part = np.ascontiguousarray(x[start : start + count])
            found = product4(part, [q], [scale], group)
            assert np.array_equal(found, whole[start : start + count], equal_nan=True), (count, start)


@pytest.mark.parametrize("group", [32, 128])
def test_steps_of_int4_with_values_of_any_size(group: int) -> None:
    """Values that are not finite, nearly too large, denormal or zero, beside others in their row and in other rows."""
    x, q = draw(40, 70, 333, "bfloat16", 4)
    scale = draw_scales(7, 70, -(-333 // group))
    x *= np.exp2(np.random.default_rng(8).integers(-20, 1, x.shape)).astype(x.dtype)  # most are rounded, or become zero
    x[3, 50], x[5, 300], x[6, 300] = np.nan, np.inf, -np.inf
    x[8, 64:96] = np.ldexp(x[8, 64:96].astype(np.float32), 123).astype(x.dtype)
    x[10, 96:160] = np.ldexp(x[10, 96:160].astype(np.float32), -125).astype(x.dtype)
    x[12, 32:64], x[13] = 0, 0
    whole = product4(x, [q], [scale], group)
    finite = np.isfinite(x.astype(np.float32)).all(1)
    assert not np.isfinite(whole[~finite]).all(1).any() and np.isfinite(whole[finite]).all()
    assert np.array_equal(product4(x, [q], widened([scale]), group), whole, equal_nan=True)
    ordinary = [r for r in range(40) if r not in (3, 5, 6, 8, 10)]
    check_int4(whole[ordinary], x[ordinary], q, scale, group)
    for count in (1, 2, 3, 4, 5, 17):
        for start in range(15 - min(count, 14)):
            part = np.ascontiguousarray(x[start : start + count])
            found = product4(part, [q], [scale], group)
            assert np.array_equal(found, whole[start : start + count], equal_nan=True), (count, start)


def draw_int8(rows: int, n: int, k: int, group: int) -> tuple[Array, Array, Array]:
    """Rows of int8, weights of 4 bits, and scales that are powers of two, so that float32 holds every sum."""
    rng = np.random.default_rng(n * 1000 + k + rows)
    x, q = rng.integers(-128, 128, (rows, k)).astype(np.int8), rng.integers(-8, 8, (n, k)).astype(np.int8)
    return x, q, np.exp2(rng.integers(-3, 3, (n, -(-k // group)))).astype(np.float16)


def exact4(x: Array, q: Array, scale: Array, group: int) -> Array:
    """Whole numbers of each group, times its scale."""
    found = np.zeros((len(x), len(q)))
    for g in range(scale.shape[1]):
        part = slice(g * group, (g + 1) * group)
        found += (x[:, part].astype(np.int64) @ q[:, part].T.astype(np.int64)) * scale[:, g].astype(np.float64)
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("n", "k", "group"), [(33, 64, 32), (299, 200, 64), (70, 517, 128), (32, 5, 32), (70, 1030, 32)]
)
@pytest.mark.parametrize("rows", [1, 2, 6, 7, 14, 15, 40])
def test_rows_of_int8_with_int4(n: int, k: int, group: int, rows: int) -> None:
    x, q, scale = draw_int8(rows, n, k, group)
    x[0], q[0] = -128, -8  # the largest sums
    want = exact4(x, q, scale, group)
    assert np.array_equal(product4(x, [q], [scale], group), want)
    assert np.array_equal(product4(x, [q], widened([scale]), group, threads=2), want)


@pytest.mark.parametrize(("count", "k"), [(40, 300), (300, 700)])
def test_rows_of_int8_with_int4_in_two_parts(count: int, k: int) -> None:
    """Both parts' sums, a scale for each row, and a gate between them; in one pass, and in two."""
    x, gate, scale = draw_int8(count, 100, k, 64)
    up, rows = gate[::-1].copy(), np.random.default_rng(8).uniform(1e-4, 3e-4, (count, 1)).astype(np.float32)
    steps = [["input", "float32", 0], ["input", "float32", 1], ["input", "float32", 2], ["mul", "float32", 0, 2],
             ["mul", "float32", 1, 2], ["silu", "float32", 3], ["mul", "float32", 5, 4]]  # fmt: skip
    found = product4(x, [gate, up], [scale, scale], 64, epilogue={"steps": steps, "outputs": [6]}, extras=(rows,))
    a, b = (exact4(x, q, scale, 64) * rows for q in (gate, up))
    np.testing.assert_allclose(found, a / (1 + np.exp(-a)) * b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("count", "n", "k", "group"),
    [(150, 130, 77, 32), (300, 130, 700, 32), (150, 130, 320, 64), (300, 130, 1500, 128), (270, 40, 6200, 128)],
)
def test_rows_of_int8_with_int4_do_not_depend_on_their_company(count: int, n: int, k: int, group: int) -> None:
    """Bit for bit with scales of any value: few rows meet the words of 4 bits, many the bytes that these were made; and
    in one pass or several, which keep what is packed of them or not."""
    x, q, scale = draw_int8(count, n, k, group)
    scale *= np.random.default_rng(9).uniform(0.5, 1, scale.shape).astype(np.float16)
    whole = product4(x, [q], widened([scale]), group)
    check_int4(whole, x.astype(np.float32), q, scale, group)
    for threads in (2, 3):
        assert np.array_equal(product4(x, [q], [scale], group, threads=threads), whole)
    for some in (1, 2, 5, 6, 7, 16, 33, 129):
        for start in (0, 7, count - some):
            part = np.ascontiguousarray(x[start : start + some])
            assert np.array_equal(product4(part, [q], [scale], group), whole[start : start + some]), (some, start)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", [4, 8])
def test_denormals_do_not_depend_on_their_company(dtype: str, bits: int) -> None:
    """Some instructions take denormals, and make them, as zeros: then all rows' do."""
    x, q = draw(40, 70, 200, dtype, bits)
    least = float(ml_dtypes.finfo(NUMPY[dtype]).smallest_normal)
    tiny = np.exp2(np.random.default_rng(6).integers(-30, 1, x.shape)) * least
    x = (x.astype(np.float64) * np.where(np.arange(200) % 3 == 0, 1e3, 1) * tiny).astype(NUMPY[dtype])
    scale = np.full((70, 2), 2.0**90, np.float32)
    each = [(lambda x: product8(x, [q])), (lambda x: product4(x, [q], [scale], 128))][bits == 4]
    whole = each(x)
    for count in (1, 2, 3):
        assert np.array_equal(each(np.ascontiguousarray(x[:count])), whole[:count]), count


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", [32, 128])
def test_results_that_scales_make_denormal_do_not_depend_on_their_company(dtype: str, group: int) -> None:
    """Of rows that are a little above the least normal float, beside ordinary ones."""
    x, q = draw(20, 70, 200, dtype, 4)
    least = float(ml_dtypes.finfo(NUMPY[dtype]).smallest_normal)
    x[1::2] = (x[1::2].astype(np.float64) * 4 * least).astype(NUMPY[dtype])
    scale = np.full((70, -(-200 // group)), 2.0**-5, np.float16)
    whole = product4(x, [q], [scale], group)
    for count in (1, 2, 3, 4, 5, 6, 16):
        for start in (0, 1, 20 - count):
            found = product4(np.ascontiguousarray(x[start : start + count]), [q], [scale], group)
            assert np.array_equal(found, whole[start : start + count]), (count, start)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), [(100, 333), (256, 1024)])
def test_rows_do_not_depend_on_their_company(dtype: str, n: int, k: int) -> None:
    """Bit for bit, with the scale and an activation behind: any number of rows, any place among them, any threads."""
    x, q = draw(200, n, k, dtype)
    scale = np.random.default_rng(3).uniform(0.001, 0.02, n).astype(np.float32)
    steps = [*SCALED["steps"], ["silu", "float32", 2]]
    settings: Any = {"out": dtype, "epilogue": {"steps": steps, "outputs": [3]}, "extras": (Weight(scale),)}
    whole = product8(x, [q], **settings)
    for threads in (2, 3):
        assert np.array_equal(whole, product8(x, [q], threads=threads, **settings))
    for count in (1, 2, 5, 7, 12, 13, 16, 33, 129):
        for start in (0, 37, 200 - count):
            part = np.ascontiguousarray(x[start : start + count])
            assert np.array_equal(product8(part, [q], **settings), whole[start : start + count]), (count, start)


def product_by(how: str, x: Array, parts: list[Array], scale: Array, epilogue: Any) -> Array:
    if how == "int4":
        return product4(x, [q // 16 for q in parts], [scale] * len(parts), 32, epilogue=epilogue)
    if how == "int8":
        return product8(x, parts, epilogue=epilogue)
    return product(x, [q.astype(x.dtype) for q in parts], epilogue=epilogue)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [*DTYPES, "int8"])
@pytest.mark.parametrize("rows", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 8, 9, 15, 21])
def test_few_rows_by_any_number_of_panels(dtype: str, rows: int, count: int) -> None:
    """Several panels of weights are read at once at some levels: the bits are those of each one by itself."""
    n, k = 32 * count, 600
    x, q = draw(rows, n, k, "float32" if dtype == "int8" else dtype)
    if dtype == "int8":
        x = (40 * x).clip(-128, 127).astype(np.int8)
    scale = draw_scales(count, n, -(-k // 32))
    both = {"steps": [["input", "float32", 0], ["input", "float32", 1], ["sub", "float32", 0, 1]], "outputs": [2]}
    for how in ("as x", "int8", "int4")[:: 2 if dtype == "int8" else 1]:
        for parts, epilogue in (([q], None), ([q, q[::-1]], both)):
            found = product_by(how, x, parts, scale, epilogue)
            for at in range(0, n, 32):
                own = slice(at, at + 32)
                assert np.array_equal(found[:, own], product_by(how, x, [p[own] for p in parts], scale[own], epilogue))


@pytest.mark.parametrize("width", [1, 3, 4, 6, 256])
def test_rows_of_a_packed_table(width: int) -> None:
    table = np.random.default_rng(width).integers(-127, 128, (70, width)).astype(np.int8)
    ids = np.array([0, 69, 31, 32, 33, 5], np.int32)
    params = {"packed": True, "n": 70, "k": width}
    found = run("embedding", params, [ids, Weight(pack8([table]))], [("int8", (6, width))])[0]
    assert np.array_equal(found, table[ids])


X, Q = np.zeros((2, 16), np.float32), np.zeros((32, 16), np.int8)
TWO_GROUPS = Weight(pack_scales([np.ones((32, 2), np.float32)]))
WRONG = [
    ("int8 of another k", {}, [X, Weight(pack8([Q[:, :12]]))], r"must be \(1, 4, 32, 4\)"),
    ("not packed", {}, [X, Weight(Q)], "the weight has shape"),
    ("int4 without scales", {}, [X, Weight(pack4([Q]))], "of 4 bits, and no other, has scales of groups"),
    ("int8 with groups", {"group": 8}, [X, Weight(pack8([Q]))], "of 4 bits, and no other, has scales of groups"),
    ("an odd group", {"group": 8}, [X, Weight(pack4([Q])), TWO_GROUPS], "32, 64 or 128"),
    ("no operand for them", {"group": 32}, [X, Weight(pack4([Q]))], "2 operands, must be 3"),
    ("scales of too many groups", {"group": 32}, [X, Weight(pack4([Q])), TWO_GROUPS],
     r"the scales has shape \(1, 2, 32\), must be \(1, 1, 32\)"),
    ("half of their outputs", {"group": 32}, [X, Weight(pack4([Q])), Weight(np.zeros((1, 1, 16), np.float16))],
     r"the scales has shape \(1, 1, 16\), must be \(1, 1, 32\)"),
    ("scales of another type", {"group": 32}, [X, Weight(pack4([Q])), Weight(np.zeros((1, 1, 32), np.float64))],
     "the scales is float64, must be one of float32, float16"),
    ("scales of bfloat16", {"group": 32}, [X, Weight(pack4([Q])), Weight(np.zeros((1, 1, 32), NUMPY["bfloat16"]))],
     "the scales is bfloat16"),
]  # fmt: skip


@pytest.mark.parametrize(("params", "operands", "why"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_what_does_not_fit_is_refused(params: dict[str, int], operands: list[Operand], why: str) -> None:
    settings = {"n": 32, "k": 16, "parts": 1, "epilogue": IDENTITY, **params}
    with pytest.raises(_native.Error, match=why):
        run("matmul_packed", settings, operands, [("float32", (2, 32))])
