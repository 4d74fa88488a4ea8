"""elementwise: every step against NumPy, broadcasting and strides, random expressions, refusals."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot import _native
from tests.kernels.one_call import Array, Operand, View, Weight, run

EDGES = [0.0, 1.0, math.inf, 1e-40, 3.4e38, 88.8, 104.0, 0.5, 1.5, 2.5]


def compute(
    steps: list[Any], outputs: list[int], operands: list[Operand], out: list[Any], threads: int = 1
) -> list[Array]:
    return run("elementwise", {"expression": {"steps": steps, "outputs": outputs}}, operands, out, threads)


def unary(name: str, x: Array, *more: Any) -> Array:
    return compute([["input", "float32", 0], [name, "float32", 0, *more]], [1], [x], [("float32", x.shape)])[0]


def values(count: int = 3000) -> Array:
    rng = np.random.default_rng(1)
    wide = rng.standard_normal(count) * 10.0 ** rng.uniform(-12, 12, count)
    return np.concatenate([EDGES, np.negative(EDGES), [math.nan], wide, rng.uniform(-20, 20, count)]).astype(np.float32)


def ulps(found: Array, exact: Array) -> float:
    """The greatest distance in units in the last place of the float32 result; NaN and infinities must agree."""
    expected = exact.astype(np.float32)
    finite = np.isfinite(expected)
    assert np.array_equal(found[~finite], expected[~finite], equal_nan=True)
    unit = np.spacing(np.maximum(np.abs(expected[finite]), np.float32(2.0**-126))).astype(np.float64)
    return float(np.max(np.abs(found[finite].astype(np.float64) - exact[finite]) / unit, initial=0))


def sigmoid(x: Array) -> Array:
    return np.where(x < 0, np.exp(np.minimum(x, 0)), 1) / (1 + np.exp(-np.abs(x)))


def silu(x: Array) -> Array:
    return x * sigmoid(x)  # NaN at -infinity, as in torch


UNARY: list[tuple[str, Callable[[Array], Array], float]] = [
    ("neg", np.negative, 0),
    ("abs", np.abs, 0),
    ("floor", np.floor, 0),
    ("ceil", np.ceil, 0),
    ("round", np.rint, 0),
    ("sqrt", np.sqrt, 0.51),
    ("rsqrt", lambda x: 1 / np.sqrt(x), 1.6),
    ("recip", lambda x: 1 / x, 0.51),
    ("exp", np.exp, 1.1),
    ("log", np.log, 1.0),
    ("tanh", np.tanh, 1.5),
    ("sigmoid", sigmoid, 2.5),
    ("silu", silu, 3.0),
    ("erf", np.vectorize(math.erf, otypes=[float]), 1.3),
]


@pytest.mark.parametrize(("name", "exact", "limit"), UNARY, ids=[case[0] for case in UNARY])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_unary(name: str, exact: Callable[[Array], Array], limit: float) -> None:
    x = values()
    if name == "silu":  # x times a denormal sigmoid: right to the denormal's own unit only
        x = x[~((x < -86) & np.isfinite(x))]
    assert ulps(unary(name, x), exact(x.astype(np.float64))) <= limit


MISH = [
    ["input", "float32", 0], ["const", "float32", 20.0], ["min", "float32", 0, 1], ["exp", "float32", 2],
    ["const", "float32", 2.0], ["add", "float32", 3, 4], ["mul", "float32", 3, 5], ["add", "float32", 6, 4],
    ["div", "float32", 6, 7], ["mul", "float32", 0, 8],
]  # fmt: skip
GELU = [
    ["input", "float32", 0], ["const", "float32", 0.5], ["mul", "float32", 1, 0],
    ["const", "float32", 0.7071067811865476], ["mul", "float32", 0, 3], ["erf", "float32", 4],
    ["const", "float32", 1.0], ["add", "float32", 6, 5], ["mul", "float32", 2, 7],
]  # fmt: skip


def changed(steps: list[list[Any]], at: int, step: list[Any]) -> list[list[Any]]:
    return [*steps[:at], step, *steps[at + 1 :]]


def mish(x: Array) -> Array:
    n = np.exp(np.minimum(x, 20))
    return x * (n * (n + 2) / (n * (n + 2) + 2))


def gelu(x: Array) -> Array:
    return 0.5 * x * np.vectorize(math.erfc, otypes=[float])(-x * math.sqrt(0.5))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_activations_that_are_written_out() -> None:
    """They are found in either order of their operands."""
    x = values()
    x = x[~((x < -80) & np.isfinite(x))]  # behind are denormals
    turned = changed(changed(MISH, 9, ["mul", "float32", 8, 0]), 6, ["mul", "float32", 5, 3])
    for steps in (MISH, turned):
        assert ulps(compute(steps, [9], [x], [("float32", x.shape)])[0], mish(x.astype(np.float64))) <= 4.5
    last_places = np.spacing(np.maximum(np.abs(x), np.float32(2.0**-126)))
    turned = changed(changed(GELU, 8, ["mul", "float32", 7, 2]), 2, ["mul", "float32", 0, 1])
    for steps in (GELU, turned):
        found = compute(steps, [8], [x], [("float32", x.shape)])[0]
        finite = np.isfinite(x)
        assert np.array_equal(found[~finite], gelu(x[~finite]), equal_nan=True)
        assert np.max(np.abs(found[finite] - gelu(x[finite].astype(np.float64))) / last_places[finite]) <= 2.0  # of x


@pytest.mark.parametrize(("at", "step"), [
    (1, ["const", "float32", 19.0]), (4, ["const", "float32", 3.0]), (7, ["add", "float32", 3, 4]),
    (9, ["mul", "float32", 2, 8]), (8, ["div", "float32", 7, 6]), (3, ["sigmoid", "float32", 2]),
])  # fmt: skip
def test_what_is_nearly_mish_is_not(at: int, step: list[Any]) -> None:
    x = values()[:60]
    steps = changed(MISH, at, step)
    longer = [*steps, ["neg", "float32", 8], ["neg", "float32", 10], ["mul", "float32", step[2] if at == 9 else 0, 11]]
    with np.errstate(all="ignore"):
        found, apart = (compute(s, [len(s) - 1], [x], [("float32", x.shape)])[0] for s in (steps, longer))
    assert np.array_equal(found, apart, equal_nan=True)


@pytest.mark.parametrize(("name", "exact"), [("sin", np.sin), ("cos", np.cos)])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_waves(name: str, exact: Callable[[Array], Array]) -> None:
    x = values()
    assert ulps(unary(name, x), exact(x.astype(np.float64))) <= 1.7


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_binary() -> None:
    x, y = values(), np.roll(values(), 7)
    for name, exact in [("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("div", np.divide)]:
        steps = [["input", "float32", 0], ["input", "float32", 1], [name, "float32", 0, 1]]
        assert np.array_equal(compute(steps, [2], [x, y], [("float32", x.shape)])[0], exact(x, y), equal_nan=True)
    for name, exact in [("max", np.maximum), ("min", np.minimum)]:
        steps = [["input", "float32", 0], ["input", "float32", 1], [name, "float32", 0, 1]]
        assert np.array_equal(compute(steps, [2], [x, y], [("float32", x.shape)])[0], exact(x, y), equal_nan=True)
    steps = [["input", "float32", 0], ["input", "float32", 1], ["pow", "float32", 0, 1]]
    found = compute(steps, [2], [x, y], [("float32", x.shape)])[0]
    assert ulps(found, np.power(x.astype(np.float64), y.astype(np.float64))) <= 1.0


@pytest.mark.parametrize("size", [1, 15, 16, 17, 511, 512, 513, 1000, 5000])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16, np.float64])
def test_stored_floats(size: int, dtype: Any) -> None:
    """Loaded exactly, computed in float32 or float64, rounded once to nearest even when stored."""
    rng = np.random.default_rng(size)
    with np.errstate(over="ignore"):
        x = (rng.standard_normal(size) * 10.0 ** rng.uniform(-8, 5, size)).astype(dtype)
    wide = np.dtype(np.float64 if dtype == np.float64 else np.float32)
    steps = [["input", wide.name, 0], ["const", wide.name, 3.0], ["mul", wide.name, 0, 1]]
    expected = x.astype(wide) * wide.type(3)
    name = np.dtype(dtype).name
    for threads in (1, 2):
        with np.errstate(over="ignore"):
            found = compute(steps, [2, 2], [x], [(name, (size,)), (wide.name, (size,))], threads)
            assert np.array_equal(found[0], expected.astype(dtype), equal_nan=True)
        assert np.array_equal(found[1], expected)


@pytest.mark.parametrize("name", [case[0] for case in UNARY] + ["sin", "cos"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_unary_of_float64(name: str) -> None:
    """Against 80-bit floats, on what float32 does not hold too: within a unit or two in the last place."""
    x = values(300).astype(np.float64) * (1 + 2.0**-40)
    x = np.concatenate([EDGES, np.negative(EDGES), x, [1e-310, 700.5, -745.0]])
    x = x[~np.isnan(x) & ((name != "silu") | (x > -700) | np.isinf(x))]  # x times a denormal sigmoid: see test_unary
    steps = [["input", "float64", 0], [name, "float64", 0]]
    found = compute(steps, [1], [x], [("float64", x.shape)])[0]
    exact = {case[0]: case[1] for case in UNARY} | {"sin": np.sin, "cos": np.cos}
    want = exact[name](x if name == "erf" else x.astype(np.longdouble))
    finite = np.isfinite(want.astype(np.float64))
    assert np.array_equal(found[~finite], want[~finite].astype(np.float64), equal_nan=True)
    unit = np.spacing(np.maximum(np.abs(want[finite]), 2.0**-1022).astype(np.float64))
    errors = np.abs(found[finite] - want[finite]) / unit
    assert errors.max() <= {"tanh": 2, "sigmoid": 3, "silu": 3, "rsqrt": 2}.get(name, 1)
    assert np.isnan(compute(steps, [1], [np.array([np.nan])], [("float64", (1,))])[0]).all()


def test_binary_of_float64_and_uint64() -> None:
    """IEEE float64, NaN from either side of max and min; integers of 64 bits without a sign."""
    x = np.concatenate([values(300).astype(np.float64) * (1 + 2.0**-40), [np.nan, 1, 0.0]])
    y = np.roll(x, 5)
    with np.errstate(all="ignore"):
        for name, exact in [("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("div", np.divide),
                            ("max", np.maximum), ("min", np.minimum), ("lt", np.less), ("ge", np.greater_equal)]:
            cls = "bool" if name in ("lt", "ge") else "float64"
            steps = [["input", "float64", 0], ["input", "float64", 1], [name, cls, 0, 1]]
            found = compute(steps, [2], [x, y], [(cls, x.shape)])[0]
            assert np.array_equal(found, exact(x, y), equal_nan=cls != "bool"), name
        steps = [["input", "float64", 0], ["input", "float64", 1], ["pow", "float64", 0, 1]]
        power = compute(steps, [2], [np.abs(x), y / 10], [("float64", x.shape)])[0]
        np.testing.assert_allclose(power, np.power(np.abs(x), y / 10), rtol=1e-13)
    rng = np.random.default_rng(3)
    a, b = (rng.integers(0, 2**64, 700, np.uint64) >> rng.integers(0, 63, 700).astype(np.uint64) for _ in range(2))
    b[:9] = 0
    quotient, rest = (np.where(b == 0, 0, f(a, np.maximum(b, 1))) for f in (np.floor_divide, np.mod))
    expected = {"add": a + b, "sub": a - b, "mul": a * b, "max": np.maximum(a, b), "min": np.minimum(a, b),
                "xor": a ^ b, "le": a <= b, "eq": a == b, "floordiv": quotient, "mod": rest, "fmod": rest}
    for name, whole in expected.items():
        cls = "bool" if name in ("le", "eq") else "uint64"
        steps = [["input", "uint64", 0], ["input", "uint64", 1], [name, cls, 0, 1]]
        assert np.array_equal(compute(steps, [2], [a, b], [(cls, a.shape)])[0], whole), name
    steps = [["input", "uint64", 0], ["const", "uint64", 2**64 - 1], ["lt", "bool", 0, 1], ["where", "uint64", 2, 1, 0]]
    assert np.all(compute(steps, [3], [a], [("uint64", a.shape)])[0] == 2**64 - 1)


def test_rounding_steps() -> None:
    x = values()
    with np.errstate(over="ignore", invalid="ignore"):
        for name, dtype in [("bfloat16", ml_dtypes.bfloat16), ("float16", np.float16)]:
            assert np.array_equal(unary("round", x, name), x.astype(dtype).astype(np.float32), equal_nan=True)


INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"]


@pytest.mark.parametrize("dtype", INTS)
def test_integers(dtype: str) -> None:
    rng = np.random.default_rng(2)
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max, 700, dtype, endpoint=True)
    y = rng.integers(max(info.min, -5), 5, 700, dtype, endpoint=True)
    a, b = x.astype(object), y.astype(object)

    def wrapped(values: Any) -> Array:
        return np.array([(int(v) - int(info.min)) % (1 << info.bits) + int(info.min) for v in values]).astype(dtype)

    expected = {
        "add": wrapped(a + b),
        "sub": wrapped(a - b),
        "mul": wrapped(a * b),
        "floordiv": wrapped([p // q if q else 0 for p, q in zip(a, b, strict=True)]),
        "mod": wrapped([p % q if q else 0 for p, q in zip(a, b, strict=True)]),
        "max": np.maximum(x, y),
        "min": np.minimum(x, y),
        "and": x & y,
        "or": x | y,
        "xor": x ^ y,
    }
    for name, result in expected.items():
        steps = [["input", "int64", 0], ["input", "int64", 1], [name, "int64", 0, 1], ["wrap", "int64", 2, dtype]]
        assert np.array_equal(compute(steps, [3], [x, y], [(dtype, x.shape)])[0], result), name
    for name, result in [("neg", wrapped(-a)), ("abs", wrapped([abs(v) for v in a]))]:
        steps = [["input", "int64", 0], [name, "int64", 0], ["wrap", "int64", 1, dtype]]
        assert np.array_equal(compute(steps, [2], [x], [(dtype, x.shape)])[0], result), name


def test_comparisons_and_booleans() -> None:
    rng = np.random.default_rng(3)
    x = rng.integers(-2, 3, 600)
    y = rng.integers(-2, 3, 600)
    ops = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal}
    ops |= {"gt": np.greater, "ge": np.greater_equal}
    floats = x.astype(np.float32), np.where(y == 2, np.nan, y).astype(np.float32)
    for cls, p, q in [("int64", x, y), ("float32", *floats)]:
        for name, exact in ops.items():
            steps = [["input", cls, 0], ["input", cls, 1], [name, "bool", 0, 1]]
            assert np.array_equal(compute(steps, [2], [p, q], [("bool", x.shape)])[0], exact(p, q)), (cls, name)
    a, b = x > 0, y > 0
    for name, exact in [("and", a & b), ("or", a | b), ("xor", a ^ b), ("eq", a == b), ("lt", a < b)]:
        steps = [["input", "bool", 0], ["input", "bool", 1], [name, "bool", 0, 1]]
        assert np.array_equal(compute(steps, [2], [a, b], [("bool", x.shape)])[0], exact), name
    assert np.array_equal(compute([["input", "bool", 0], ["not", "bool", 0]], [1], [a], [("bool", x.shape)])[0], ~a)


@pytest.mark.parametrize("cls", ["float32", "float64"])
def test_where_and_conversions(cls: str) -> None:
    x = np.array([1.9, -1.9, np.nan, np.inf, -np.inf, 1e30, 0.0, 7.0], cls)
    low, low32 = -(2**63), -(2**31)
    steps: list[Any] = [["input", cls, 0], ["to_int", "int64", 0, "int64"], ["to_bool", "bool", 0]]
    steps += [["to_float", cls, 2], ["where", cls, 2, 3, 0], ["to_int", "int64", 2]]
    steps += [["where", "int64", 2, 1, 5], ["where", "bool", 2, 2, 2], ["to_int", "int64", 0, "int32"]]
    out = [(kind, x.shape) for kind in ("int64", "bool", cls, "int64", "bool", "int64")]
    found = compute(steps, [1, 2, 4, 6, 7, 8], [x], out)
    assert found[0].tolist() == [1, -1, low, low, low, low, 0, 7]
    assert found[1].tolist() == [True, True, True, True, True, True, False, True]
    assert found[2].tolist() == [1, 1, 1, 1, 1, 1, 0, 1]
    assert found[3].tolist() == [1, -1, low, low, low, low, 0, 7]
    assert np.array_equal(found[4], found[1])
    assert found[5].tolist() == [1, -1, low32, low32, low32, low32, 0, 7]


def test_constants() -> None:
    steps = [["const", "float32", "-inf"], ["const", "int64", -(2**63)], ["const", "bool", True]]
    steps += [["const", "float32", "nan"]]
    out = [("float32", (600,)), ("int64", (3, 5)), ("bool", (3, 5)), ("bfloat16", (3, 5))]
    found = compute([*steps, ["const", "float32", 1]], [0], [], out[:1])
    assert np.all(found[0] == -np.inf)
    found = compute(steps, [1, 2, 3], [], out[1:])
    assert np.all(found[0] == -(2**63))
    assert np.all(found[1])
    assert np.all(np.isnan(found[2].astype(np.float32)))


CHAIN = [
    ["input", "float32", 0], ["input", "float32", 1], ["mul", "float32", 0, 1], ["input", "float32", 2],
    ["add", "float32", 2, 3], ["const", "float32", 0.0], ["max", "float32", 4, 5],
]  # fmt: skip
QUANTISED = [
    ["const", "float32", 12.5], ["mul", "float32", 6, 7], ["round", "float32", 8], ["eq", "bool", 9, 9],
    ["where", "float32", 10, 9, 5], ["const", "float32", -128.0], ["max", "float32", 11, 12],
    ["const", "float32", 127.0], ["min", "float32", 13, 14], ["to_int", "int64", 15, "int32"],
    ["wrap", "int64", 16, "int8"],
]  # fmt: skip


def of_integers(steps: list[list[Any]]) -> list[list[Any]]:
    """The same on a first operand of integers, which become floats in one step more."""
    later = [[name, kind, *(a + 1 if isinstance(a, int) and name not in ("input", "const") else a for a in args)]
             for name, kind, *args in steps[1:]]  # fmt: skip
    return [["input", "int64", 0], ["to_float", "float32", 0], *later]


def chain_of(x: Array, scale: Array, shift: Array) -> Array:
    return np.maximum(x.astype(np.float32) * scale.astype(np.float32) + shift.astype(np.float32), np.float32(0))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8", "uint8"])
@pytest.mark.parametrize("shape", [(7, 150, 64), (1, 301, 35), (3, 32), (2, 20001), (9000,), (5, 31), (4, 1)])
def test_chains(dtype: str, shape: tuple[int, ...]) -> None:
    """Steps on one value after the other are computed in registers: with rows that all share, with numbers, with a
    second dense operand; results of each type; with NaN; the same bits as NumPy's."""
    rng = np.random.default_rng(5)
    types = {"bfloat16": ml_dtypes.bfloat16}
    x = (rng.standard_normal(shape) * 40).astype(np.float32)
    integers = dtype in ("int8", "uint8")
    if integers:
        x = np.abs(np.round(x)).clip(0, 120)
    else:
        x.reshape(-1)[:: x.size // 3 + 1] = math.nan
    x = x.astype(types.get(dtype, dtype))
    short, long = (of_integers(s) if integers else s for s in (CHAIN, CHAIN + QUANTISED))
    row, number, same = ((rng.standard_normal(s)).astype(np.float32) for s in (shape[-1:], (), shape))
    for scale, shift in ((row, row[::-1].copy()), (number, row), (row, same), (same, number), (number, number)):
        exact = chain_of(x, scale, shift)
        for threads, out in ((1, "float32"), (2, "bfloat16"), (3, "float16")):
            (found,) = compute(short, [len(short) - 1], [x, scale, shift], [(out, shape)], threads)
            assert np.array_equal(found, exact.astype(types.get(out, out)), equal_nan=True)
        with np.errstate(invalid="ignore"):
            rounded = np.nan_to_num(np.rint(exact * np.float32(12.5)), nan=0.0).clip(-128, 127).astype(np.int8)
        (found,) = compute(long, [len(long) - 1], [x, scale, shift], [("int8", shape)], 2)
        assert np.array_equal(found, rounded)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("colours", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [(16, 10), (19, 23), (3, 5), (1, 700)])
def test_colours_become_the_inner_dimension(dtype: str, colours: int, size: tuple[int, int]) -> None:
    """Planes are read as they lie, whole vectors of them and what is left."""
    height, width = size
    planes = np.random.default_rng(7).standard_normal((2, colours, *size)).astype(dtype)
    pixels = height * width
    x = View(planes, (2, height, width, colours), (colours * pixels, width, 1, pixels))
    steps = [["input", "float32", 0], ["const", "float32", 0.3], ["div", "float32", 0, 1]]
    for threads in (1, 3):
        (found,) = compute(steps, [2], [x], [("float32", x.shape)], threads)
        assert np.array_equal(found, planes.transpose(0, 2, 3, 1).astype(np.float32) / np.float32(0.3))


def test_chain_of_a_window() -> None:
    """Rows that lie apart, and a first operand whose values do."""
    rng = np.random.default_rng(6)
    x, row = rng.standard_normal((50, 100)).astype(np.float32), rng.standard_normal(40).astype(np.float32)
    apart = View(x, (50, 40), (100, 1), offset=7)
    (found,) = compute(CHAIN, [6], [apart, row, row], [("float32", (50, 40))])
    assert np.array_equal(found, chain_of(x[:, 7:47], row, row))
    strided = View(x, (50, 40), (100, 2), offset=7)
    (found,) = compute(CHAIN, [6], [strided, row, row], [("float32", (50, 40))])
    assert np.array_equal(found, chain_of(x[:, 7:87:2], row, row))


@pytest.mark.parametrize("threads", [1, 2])
def test_broadcasting_and_strides(threads: int) -> None:
    rng = np.random.default_rng(4)
    steps = [["input", "float32", 0], ["input", "float32", 1], ["mul", "float32", 0, 1]]
    cases = [
        ((7, 33), (33,)),
        ((7, 33), (7, 1)),
        ((4, 1, 70), (5, 1)),
        ((3, 4, 5, 6), (3, 1, 5, 1)),
        ((2, 600), (2, 1)),
        ((1000, 3), (3,)),
        ((5, 0), (1, 1)),
        ((6, 2, 130), (6, 1, 130)),
        ((), (40, 2)),
    ]
    for a_shape, b_shape in cases:
        a = rng.standard_normal(a_shape).astype(np.float32)
        b = rng.standard_normal(b_shape).astype(ml_dtypes.bfloat16)
        expected = np.asarray(a * b.astype(np.float32))
        found = compute(steps, [2], [a, b], [("float32", expected.shape)], threads)[0]
        assert np.array_equal(found, expected), (a_shape, b_shape)
    base = rng.standard_normal((50, 60)).astype(np.float32)
    turned = View(base, (60, 50), (1, 60))
    window = View(base, (60, 50), (10, 1), 3)
    expected = base.T * np.lib.stride_tricks.as_strided(base.reshape(-1)[3:], (60, 50), (40, 4))
    assert np.array_equal(compute(steps, [2], [turned, window], [("float32", (60, 50))], threads)[0], expected)


EXACT: dict[str, tuple[str, int, Callable[..., Array]]] = {
    "add": ("float32", 2, np.add),
    "sub": ("float32", 2, np.subtract),
    "mul": ("float32", 2, np.multiply),
    "max": ("float32", 2, np.maximum),
    "neg": ("float32", 1, np.negative),
    "abs": ("float32", 1, np.abs),
    "lt": ("bool", 2, np.less),
    "not": ("bool", 1, np.logical_not),
    "xor": ("bool", 2, np.logical_xor),
    "where": ("float32", 3, np.where),
}


@given(data=st.data(), size=st.sampled_from([5, 512, 700]), threads=st.sampled_from([1, 2]))
def test_random_expressions(data: st.DataObject, size: int, threads: int) -> None:
    """IEEE operations are exact: the same float32 results as NumPy, whatever is alive, dead or shared."""
    rng = np.random.default_rng(size)
    shapes = [(size,), (2, size), (1,), (2, 1)]
    operands = [rng.integers(-8, 9, shape).astype(np.float32) for shape in shapes]
    steps: list[Any] = [["input", "float32", i] for i in range(4)] + [["const", "float32", 2.5]]
    results: list[Array] = [*operands, np.float32(2.5)]
    kinds = ["float32"] * 5
    for _ in range(data.draw(st.integers(1, 25))):
        name = data.draw(st.sampled_from(sorted(EXACT)))
        cls, count, exact = EXACT[name]
        floats = [i for i, kind in enumerate(kinds) if kind == "float32"][-6:]
        bools = [i for i, kind in enumerate(kinds) if kind == "bool"][-6:]
        wanted = [bools if name in ("not", "xor") or (name == "where" and i == 0) else floats for i in range(count)]
        if not all(wanted):
            continue
        picked = [data.draw(st.sampled_from(choices)) for choices in wanted]
        steps.append([name, cls, *picked])
        with np.errstate(over="ignore", invalid="ignore"):
            results.append(exact(*(results[i] for i in picked)))
        kinds.append(cls)
    chosen = data.draw(st.lists(st.integers(0, len(steps) - 1), min_size=1, max_size=4))
    out = [(kinds[i], (2, size)) for i in chosen]
    found = compute(steps, chosen, list(operands), out, threads)
    for array, i in zip(found, chosen, strict=True):
        assert np.array_equal(array, np.broadcast_to(results[i], (2, size)), equal_nan=kinds[i] == "float32")


F = ["input", "float32", 0]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ({}, "an expression must be"),
        ({"steps": [F], "outputs": [0], "more": 1}, "an expression must be"),
        ({"steps": [F] * 257, "outputs": [0]}, "257 steps"),
        ({"steps": [F], "outputs": [1]}, "output 0 must be the index of a step"),
        ({"steps": [F], "outputs": [0, 0]}, "the expression has 2 outputs, the call has 1"),
        ({"steps": [["input", "float32", 1]], "outputs": [0]}, "there are 1"),
        ({"steps": [["input", "float8", 0]], "outputs": [0]}, "class float8"),
        ({"steps": [["input", "float64", 0]], "outputs": [0]}, "is float32, whose class is float32, not float64"),
        ({"steps": [["input", "int64", 0]], "outputs": [0]}, "is float32, whose class is float32, not int64"),
        ({"steps": [F, ["to_int", "int64", 0]], "outputs": [0]}, "cannot take an argument of that class"),
        ({"steps": [F, ["to_int", "int64", 0, "int8"]], "outputs": [0]}, "must name int32 or int64"),
        ({"steps": [["const", "int64", 0], ["to_int", "int64", 0, "int32"]], "outputs": [0]}, "takes a float32"),
        ({"steps": [["const", "uint64", -1]], "outputs": [0]}, "natural number"),
        ({"steps": [["const", "float64", 1.0]], "outputs": [0]}, "cannot be stored as float32"),
        ({"steps": [["const", "int64", 1], ["wrap", "int64", 0, "uint64"]], "outputs": [0]}, "other than uint64"),
        ({"steps": [["exp", "float32", 0]], "outputs": [0]}, "earlier step"),
        ({"steps": [F, ["exp", "float32", -1]], "outputs": [0]}, "earlier step"),
        ({"steps": [F, ["exp", "float32", 18446744073709551615]], "outputs": [0]}, "earlier step"),
        ({"steps": [F, ["system", "float32", 0]], "outputs": [0]}, "there is no step system"),
        ({"steps": [F, ["exp", "float32", 0, 0]], "outputs": [0]}, "exp takes 1"),
        ({"steps": [F, ["exp", "int64", 0]], "outputs": [0]}, "no step exp of class int64"),
        ({"steps": [F, ["neg", "int64", 0]], "outputs": [0]}, "is float32, must be int64"),
        ({"steps": [F, ["to_float", "float32", 0]], "outputs": [0]}, "cannot take"),
        ({"steps": [F, ["round", "float32", 0, "int8"]], "outputs": [0]}, "bfloat16 or float16"),
        ({"steps": [["const", "float32", "one"]], "outputs": [0]}, "const must be"),
        ({"steps": [["const", "bool", 1]], "outputs": [0]}, "const must be"),
        ({"steps": [["const", "int64", 1.5]], "outputs": [0]}, "const must be"),
        ({"steps": [["const", "int64", 0]], "outputs": [0]}, "cannot be stored as float32"),
        ({"steps": [["input", "float32"]], "outputs": [0]}, "must be"),
        ({"steps": [3], "outputs": [0]}, "must be"),
    ],
)
def test_refusals(expression: dict[str, Any], message: str) -> None:
    with pytest.raises(_native.Error, match=message):
        run("elementwise", {"expression": expression}, [np.zeros(4, np.float32)], [("float32", (4,))])


def test_float8_is_no_operand_of_an_expression() -> None:
    """It is for weights; eight bytes used to be read for each of its elements."""
    weight = Weight(np.zeros(64, ml_dtypes.float8_e4m3fn))
    with pytest.raises(_native.Error, match="operand 0 is float8_e4m3fn"):
        compute([["input", "int64", 0]], [0], [weight], [("int64", (64,))])


@pytest.mark.parametrize(("dtype", "low", "high"), [("int8", -100.0, -200.0), ("uint8", 3.0, -5.0)])
def test_limits_below_what_a_byte_holds(dtype: str, low: float, high: float) -> None:
    """The result wraps as any other number does, at each level."""
    x = np.ones(40, np.float32)
    steps = [["input", "float32", 0], ["eq", "bool", 0, 0], ["const", "float32", 0.0], ["where", "float32", 1, 0, 2],
             ["const", "float32", low], ["max", "float32", 3, 4], ["const", "float32", high], ["min", "float32", 5, 6],
             ["to_int", "int64", 7, "int32"], ["wrap", "int64", 8, dtype]]  # fmt: skip
    (y,) = compute(steps, [9], [x], [(dtype, (40,))])
    assert set(y.tolist()) == {int(np.int64(high).astype(dtype))}


def test_a_zero_point_that_is_a_result_too() -> None:
    x = np.arange(40, dtype=np.uint8)
    steps = [["input", "int64", 0], ["const", "int64", 128], ["sub", "int64", 0, 1], ["to_float", "float32", 2]]
    y, zero = compute(steps, [3, 1], [x], [("float32", (40,)), ("int64", (40,))])
    assert np.array_equal(y, x.astype(np.float32) - 128) and set(zero.tolist()) == {128}


def test_the_least_integer_is_no_zero_point() -> None:
    """Its size has no int64, so differences to it are made of integers, which wrap."""
    x, least = np.arange(40, dtype=np.uint8), np.iinfo(np.int64).min
    steps = [["input", "int64", 0], ["const", "int64", int(least)], ["sub", "int64", 0, 1], ["to_float", "float32", 2]]
    (y,) = compute(steps, [3], [x], [("float32", (40,))])
    with np.errstate(over="ignore"):
        assert np.array_equal(y, (x.astype(np.int64) - least).astype(np.float32))


def test_shapes_that_do_not_broadcast() -> None:
    with pytest.raises(_native.Error, match="does not broadcast"):
        compute([F], [0], [np.zeros(3, np.float32)], [("float32", (4,))])
