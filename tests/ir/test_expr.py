"""Scalar expressions as data: which steps are well formed, at every limit, and what a builder makes of calls."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ingot import dtypes
from ingot.errors import NetworkError
from ingot.ir import ExprBuilder
from ingot.ir.expr import (
    NoExpression,
    check,
    class_of,
    evaluate,
    floor_quotient,
    integer_range,
    register_of,
)  # fmt: skip

F32 = ["input", "float32", 0]
INPUTS = [F32, ["input", "float64", 1], ["input", "int64", 2], ["input", "uint64", 3], ["input", "bool", 4]]


def expression(steps: list[Any], outputs: Any = None) -> dict[str, Any]:
    return {"steps": steps, "outputs": [len(steps) - 1] if outputs is None else outputs}


GOOD: list[list[Any]] = [
    ["input", "float32", 0], ["input", "bool", 63], ["const", "float32", 1], ["const", "float32", -1.5],
    ["const", "float64", "inf"], ["const", "float32", "-inf"], ["const", "float64", "nan"],
    ["const", "int64", -(2**63)], ["const", "int64", 2**63 - 1], ["const", "uint64", 0], ["const", "uint64", 2**64 - 1],
    ["const", "bool", False], ["add", "float32", 0, 0], ["pow", "float64", 1, 1], ["mod", "int64", 2, 2],
    ["max", "uint64", 3, 3], ["and", "bool", 4, 4], ["not", "bool", 4], ["neg", "int64", 2], ["silu", "float64", 1],
    ["round", "float32", 0], ["round", "float32", 0, "bfloat16"], ["round", "float32", 0, "float16"],
    ["eq", "bool", 0, 0], ["lt", "bool", 3, 3], ["ne", "bool", 4, 4], ["where", "float32", 4, 0, 0],
    ["where", "bool", 4, 4, 4], ["to_float", "float32", 2], ["to_float", "float64", 0], ["to_float", "float32", 1],
    ["to_float", "float64", 4], ["to_int", "int64", 0, "int32"], ["to_int", "int64", 1, "int64"],
    ["to_int", "uint64", 0], ["to_int", "uint64", 2], ["to_int", "int64", 3], ["to_int", "int64", 4],
    ["to_bool", "bool", 0], ["to_bool", "bool", 3], ["wrap", "int64", 2, "int8"], ["wrap", "int64", 2, "uint32"],
]  # fmt: skip
BAD: list[Any] = [
    "add", None, [], ["input", "float32"], ["input", "float16", 0], ["input", "float32", 64], ["input", "float32", -1],
    ["input", "float32", True], ["input", "float32", 0.0], ["input", "float32", 0, 1], ["const", "float32", True],
    ["const", "float32", "1"], ["const", "float32", None], ["const", "float32", 1, 2], ["const", "int64", -(2**63) - 1],
    ["const", "int64", 2**63], ["const", "int64", 1.0], ["const", "int64", True], ["const", "uint64", -1],
    ["const", "uint64", 2**64], ["const", "bool", 1], ["const", "int64", "inf"], ["add", "float32", 0],
    ["add", "float32", 0, 0, 0], ["add", "float32", 0, 5], ["add", "float32", 0, -1], ["add", "float32", 0, True],
    ["add", "float32", 0, 1], ["add", "float64", 0, 0], ["add", "bool", 4, 4], ["exp", "int64", 2], ["not", "int64", 2],
    ["exp", "float32", 0, 0], ["what", "float32", 0], ["eq", "float32", 0, 0], ["eq", "bool", 0, 1], ["eq", "bool", 0],
    ["where", "float32", 0, 0, 0], ["where", "float32", 4, 0, 1], ["where", "float64", 4, 0, 0],
    ["where", "float32", 4, 0], ["round", "float64", 1, "bfloat16"], ["round", "float32", 0, "float32"],
    ["round", "float32", 1, "float16"], ["to_float", "float32", 0], ["to_float", "int64", 0],
    ["to_float", "float64", 0, "int32"], ["to_float", "float32", 2, 2], ["to_int", "int64", 2],
    ["to_int", "int64", 0], ["to_int", "int64", 0, "int8"], ["to_int", "uint64", 0, "int64"],
    ["to_int", "int64", 3, "int64"], ["to_int", "float32", 2], ["to_bool", "bool", 4], ["to_bool", "int64", 0],
    ["to_bool", "bool", 0, "int32"], ["wrap", "int64", 2], ["wrap", "int64", 2, "int64"], ["wrap", "int64", 0, "int8"],
    ["wrap", "uint64", 3, "int8"], ["wrap", "int64", 2, 2, "int8"],
]  # fmt: skip


def test_floor_quotients_are_those_of_python() -> None:
    numbers = [0.0, -0.0, 0.1, 0.3, -0.3, 0.5, 1.0, -1.0, 2.0, 2.5, -2.5, 7.0, -7.0, 1e300, -5e-324]
    pairs = [(a, b) for a in numbers for b in numbers if b != 0]
    with np.errstate(all="ignore"):
        found = floor_quotient(*np.array(pairs).T)
        unknown = floor_quotient(np.array([1.0, -1.0, 0.0]), np.array([0.0, 0.0, 0.0]))
    for (a, b), got in zip(pairs, found, strict=True):
        want = a // b if abs(a / b) < 1e308 else a / b
        assert (got, math.copysign(1, got)) == (want, math.copysign(1, want)), f"{a} // {b}"
    np.testing.assert_array_equal(unknown, [math.inf, -math.inf, math.nan])


@pytest.mark.parametrize("step", GOOD, ids=str)
def test_what_a_step_may_be(step: list[Any]) -> None:
    expr = expression([*INPUTS, step])
    assert check(expr) is expr


@pytest.mark.parametrize("step", BAD, ids=str)
def test_what_a_step_may_not_be(step: Any) -> None:
    with pytest.raises(NetworkError, match="expression step 5, "):
        check(expression([*INPUTS, step]))


def test_the_limits_of_an_expression() -> None:
    long = [F32, *(["exp", "float32", i] for i in range(255))]
    check(expression(long))
    check(expression(long, [0] * 16))
    check(expression(long, [255, 0]))
    for broken in (
        expression([*long, ["exp", "float32", 255]]), expression([], [0]), expression([F32], []),
        expression([F32], [0] * 17), expression([F32], [1]), expression([F32], [-1]), expression([F32], [False]),
        expression([F32], [0.0]), {"steps": [F32]}, {**expression([F32]), "more": 1}, [F32], None,
        {"steps": 5, "outputs": [0]},
    ):  # fmt: skip
        with pytest.raises(NetworkError):
            check(broken)


def test_which_dtypes_have_a_class() -> None:
    found = {}
    for dtype in dtypes.ALL:
        try:
            found[dtype.name] = class_of(dtype)
        except NoExpression:
            found[dtype.name] = None
    assert {name for name, kind in found.items() if kind == "float32"} == {"float32", "bfloat16", "float16"}
    assert {name for name, kind in found.items() if kind == "int64"} == {
        "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"
    }  # fmt: skip
    assert [found[name] for name in ("float64", "uint64", "bool", "int4", "uint4", "complex64", "float8_e5m2")] == [
        "float64", "uint64", "bool", None, None, None, None
    ]  # fmt: skip


def test_ranges_and_registers() -> None:
    assert [integer_range(dtypes.get(name)) for name in ("int8", "uint8", "int64", "uint64")] == [
        (-128, 127), (0, 255), (-(2**63), 2**63 - 1), (0, 2**64 - 1)
    ]  # fmt: skip
    registers = {d.name: register_of(d).name for d in dtypes.INTEGERS if d is not dtypes.uint64}
    assert {name for name, register in registers.items() if register == "int64"} == {"int64", "uint8", "uint32"}
    assert set(registers.values()) == {"int32", "int64"}


def test_what_a_builder_makes() -> None:
    """Equal steps once, numbers in the class of what stands beside them, integers wrapped where they can overflow."""
    e = ExprBuilder()
    x, n, b = e.input(0, dtypes.float32), e.input(1, dtypes.int8), e.input(2, dtypes.bool_)
    e.output(1.0 - (x + 1) * (x + 1) / 2)
    e.output(n + 1)
    e.output(e.max(n, 1))
    e.output(e.where(b, 1, x))
    e.output(n < 5)
    assert e.steps == [
        ["input", "float32", 0], ["input", "int64", 1], ["input", "bool", 2], ["const", "float32", 1.0],
        ["add", "float32", 0, 3], ["mul", "float32", 4, 4], ["const", "float32", 2.0], ["div", "float32", 5, 6],
        ["sub", "float32", 3, 7], ["const", "int64", 1], ["add", "int64", 1, 9], ["wrap", "int64", 10, "int8"],
        ["max", "int64", 1, 9], ["where", "float32", 2, 3, 0], ["const", "int64", 5], ["lt", "bool", 1, 14],
    ]  # fmt: skip
    assert e.json()["outputs"] == [8, 11, 12, 13, 15]
    arrays = [np.float32([0.5, -2]), np.int8([127, -3]), np.array([True, False])]
    kinds = [dtypes.float32, dtypes.int8, dtypes.int8, dtypes.float32, dtypes.bool_]
    found = [a.tolist() for a in evaluate(e.json(), arrays, kinds)]
    assert found == [[-0.125, 0.5], [-128, -2], [127, 1], [1.0, -2.0], [False, True]]
    with pytest.raises(AttributeError, match="no operation cbrt"):
        e.cbrt(x)


@pytest.mark.parametrize(
    ("source", "target", "made"),
    [
        ("float32", "float32", []), ("bfloat16", "float32", ["round"]), ("float32", "bfloat16", ["round"]),
        ("float64", "float16", ["to_float", "round"]), ("int8", "int32", []), ("int8", "int64", []),
        ("int32", "int8", ["wrap"]), ("uint8", "int8", ["wrap"]), ("uint8", "int16", []), ("int8", "uint8", ["wrap"]),
        ("int64", "uint64", ["to_int"]), ("uint64", "int64", ["to_int"]), ("uint64", "int32", ["to_int", "wrap"]),
        ("bool", "int8", ["to_int"]), ("float32", "int32", ["to_int"]), ("float32", "int64", ["to_int"]),
        ("float32", "int8", ["to_int", "wrap"]), ("float64", "uint32", ["to_int", "wrap"]),
        ("float32", "uint64", ["to_int"]), ("int32", "bool", ["to_bool"]), ("bool", "float64", ["to_float"]),
    ],
)  # fmt: skip
def test_the_steps_of_a_conversion(source: str, target: str, made: list[str]) -> None:
    """None where the wider one holds every number; but a narrow operand may be one that is not rounded yet."""
    e = ExprBuilder()
    x = e.input(0, dtypes.get(source))
    found = e.cast(x, dtypes.get(target))
    assert found.dtype is dtypes.get(target)
    assert [step[0] for step in e.steps[1:]] == made


def test_a_computed_narrow_float_is_rounded_once() -> None:
    """Before it jumps or widens; not what is a number, or has been rounded already."""
    e = ExprBuilder()
    x = e.input(0, dtypes.bfloat16)
    assert e.settled(e.const(2, dtypes.bfloat16)).index == 1
    total = x + x
    rounded = e.settled(total)
    assert e.steps[rounded.index] == ["round", "float32", total.index, "bfloat16"]
    assert e.settled(rounded).index == rounded.index
    wide = e.input(1, dtypes.float32)
    assert e.settled(wide + wide).index == len(e.steps) - 1 and e.steps[-1][0] == "add"
