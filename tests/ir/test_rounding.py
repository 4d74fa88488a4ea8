"""What may be computed without rounding to a narrow type of floats: what is rounded again, what bytes do not show."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ingot import dtypes
from ingot.dtypes import DType
from ingot.ir import ExprBuilder, Scalar
from ingot.ir.expr import evaluate
from ingot.ir.rounding import without_needless_rounding


def test_what_lies_in_memory_needs_no_rounding() -> None:
    """An operand in the type that a step rounds to; not one of another type, and not what was computed."""
    e = ExprBuilder()
    x, y = e.input(0, dtypes.bfloat16), e.input(1, dtypes.float32)
    first = e.cast(x, dtypes.float32)
    e.output(e.cast(e.cast(y, dtypes.bfloat16), dtypes.float32))
    e.output(first + e.settled(e.exp(x)))
    steps, outputs = [tuple(step) for step in e.steps], e.outputs
    found, ends = without_needless_rounding(
        steps, outputs, [dtypes.bfloat16, dtypes.float32], [dtypes.float32] * 2)
    assert [step[0] for step in found] == ["input", "input", "round", "exp", "round", "add"]
    rounded = [("round", "float32", step, "bfloat16") for step in (1, 3)]
    assert found[2:] == (rounded[0], ("exp", "float32", 0), rounded[1], ("add", "float32", 0, 4))
    assert ends == (2, 5)
    other = [dtypes.float16, dtypes.float32]
    assert without_needless_rounding(steps, outputs, other, [dtypes.float32] * 2)[0] == tuple(steps)


@pytest.mark.parametrize("kind", [dtypes.bfloat16, dtypes.float16])
def test_limits_and_rounding_change_places_to_the_sign_of_zero(kind: Any) -> None:
    """Where maximum and minimum order zeros by their signs; what rounds to a zero is among the numbers."""
    least = float(np.finfo(kind.numpy).smallest_subnormal) if kind is dtypes.float16 else 2.0**-133
    tiny = np.array([0.0, least / 4, least / 2, least * 0.75, least, 0.1, 1.0], np.float32)
    numbers = np.concatenate([tiny, -tiny])
    limits = np.concatenate([tiny[[0, 4, 6]], -tiny[[0, 4, 6]]])

    def limited(name: str, x: np.ndarray[Any, Any], limit: np.float32) -> np.ndarray[Any, Any]:
        below = (x < limit) | ((x == limit) & np.signbit(x) & ~np.signbit(limit))
        return np.where(below == (name == "max"), limit, x)

    def rounded(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return x.astype(kind.numpy).astype(np.float32)

    for name in ("max", "min"):
        for limit in limits:
            behind, before = rounded(limited(name, numbers, limit)), limited(name, rounded(numbers), limit)
            assert behind.tobytes() == before.tobytes(), (name, limit)


def test_what_is_stored_is_rounded_once() -> None:
    """Behind the step that rounds may come limits of the result's type: 0, not 0.1; and nothing else that reads it."""
    def kept(end: Any, limit: float, twice: bool = False) -> list[str]:
        e = ExprBuilder()
        total = e.cast(e.input(0, dtypes.float32) + e.input(1, dtypes.float32), dtypes.bfloat16)
        e.output(e.max(total, e.const(limit, dtypes.bfloat16)))
        if twice:
            e.output(total)
        ends = [end] * len(e.outputs)
        steps = [("const", "float32", limit) if step[0] == "const" else tuple(step) for step in e.steps]
        found, outputs = without_needless_rounding(steps, e.outputs, [dtypes.float32] * 2, ends)
        assert outputs[0] == len(found) - 1 or twice
        return [step[0] for step in found]

    every = ["input", "input", "add", "round", "const", "max"]
    assert kept(dtypes.bfloat16, 0.0) == [name for name in every if name != "round"]
    assert kept(dtypes.bfloat16, 0.1) == kept(dtypes.float32, 0.0) == kept(dtypes.bfloat16, 0.0, twice=True) == every


# ------------------------------------------------------------------------------------------------------------ to bytes


def quantised(e: ExprBuilder, x: Scalar, scale: float, end: DType = dtypes.int8) -> None:
    """Makes x / scale as bytes an output, as the op quantize does."""
    found = e.round(e.cast(e.settled(x), dtypes.float32) / scale)
    found = e.where(e.eq(found, found), found, 0.0)
    low, high = (-127.0, 127.0) if end is dtypes.int8 else (0.0, 255.0)
    e.output(e.cast(e.min(e.max(found, low), high), end))


def narrow(e: ExprBuilder, x: Scalar, kind: DType = dtypes.bfloat16) -> Scalar:
    return e.cast(e.cast(x, kind), dtypes.float32)


def roundings_left(e: ExprBuilder, kinds: Sequence[DType], ends: Sequence[DType] = (dtypes.int8,)) -> int:
    steps, _ = without_needless_rounding(e.steps, e.outputs, kinds, ends)
    return sum(step[0] == "round" and len(step) == 4 for step in steps)


def test_what_becomes_bytes_is_not_rounded_to_floats_before() -> None:
    """A product and its root, held within the range of bytes behind rounding or before; not of another result."""
    for limited_before in (False, True):
        e = ExprBuilder()
        total = narrow(e, e.input(0, dtypes.float32) + e.input(1, dtypes.float32)) * e.input(0, dtypes.float32)
        if limited_before:
            e.output(e.cast(e.round(e.min(e.max(total / 3.0, -127.0), 127.0)), dtypes.int8))
        else:
            quantised(e, total, 3.0)
        assert roundings_left(e, [dtypes.float32] * 2) == 0
        e.output(total)
        assert roundings_left(e, [dtypes.float32] * 2, [dtypes.int8, dtypes.float32]) == 1


def test_residuals_of_bytes_are_not_rounded_to_floats_before_a_sum() -> None:
    """Rounding moves bytes times a scale by half a step of these bytes at most: by less than one of the result, where
    its steps are as large or not much smaller."""
    def left(of: float, to: float, kind: DType = dtypes.bfloat16) -> int:
        e = ExprBuilder()
        residual = narrow(e, e.cast(e.input(1, dtypes.int8), dtypes.float32) * of, kind)
        quantised(e, e.max(e.input(0, dtypes.float32) + residual, 0.0), to)
        return roundings_left(e, [dtypes.float32, dtypes.int8])

    assert left(0.5, 0.5) == left(0.5, 0.3) == left(3000.0, 2000.0) == 0
    assert left(0.5, 0.2) == 1 and left(0.5, 0.2, dtypes.float16) == 0
    assert left(600.0, 600.0, dtypes.float16) == 1  # 128 of them are infinite in float16


def test_a_sum_is_bound_by_both_of_its_parts() -> None:
    """Its rounding is left out where both bytes times their scales move what is made of it by less than one."""
    def left(first: float, second: float, to: float) -> int:
        e = ExprBuilder()
        one, two = (e.cast(e.input(i, dtypes.int8), dtypes.float32) * of for i, of in ((1, first), (2, second)))
        quantised(e, e.input(0, dtypes.float32) + narrow(e, one + two), to)
        return roundings_left(e, [dtypes.float32, dtypes.int8, dtypes.int8])

    assert left(0.5, 0.01, 0.3) == left(0.01, 0.5, 0.3) == left(0.25, 0.25, 0.3) == 0
    assert left(0.5, 0.01, 0.2) == left(0.01, 0.5, 0.2) == left(0.5, 0.5, 0.3) == 1


def test_what_is_divided_by_a_number_has_a_bound_and_what_divides_one_has_none() -> None:
    """An error of x is half as large in x / 2, and of any size in 2 / x."""
    def left(turned: bool, kind: DType) -> int:
        e = ExprBuilder()
        two = e.const(2.0, dtypes.float32)
        rounded = narrow(e, e.cast(e.input(1, dtypes.int8), dtypes.float32) * 0.5, kind)
        quantised(e, e.input(0, dtypes.float32) + (two / rounded if turned else rounded / two), 0.15)
        return roundings_left(e, [dtypes.float32, dtypes.int8])

    for kind in (dtypes.bfloat16, dtypes.float16):
        assert (left(False, kind), left(True, kind)) == (0, 1)


@pytest.mark.parametrize(("low", "high", "zero", "left"), [
    (0.0, 200.0, 50.0, 0), (-50.0, 150.0, 50.0, 0), (-51.0, 150.0, 50.0, 1), (0.0, 206.0, 50.0, 1),
])  # fmt: skip
def test_limits_before_a_zero_point_are_those_of_the_bytes_without_it(
    low: float, high: float, zero: float, left: int
) -> None:
    e = ExprBuilder()
    whole = e.round(narrow(e, e.input(0, dtypes.float32), dtypes.float16))
    e.output(e.cast(e.min(e.max(whole, low), high) + zero, dtypes.uint8))
    assert roundings_left(e, [dtypes.float32], [dtypes.uint8]) == left


@pytest.mark.parametrize(("zero", "left"), [(0.0, 0), (-127.0, 1)])
def test_bytes_reach_as_far_as_from_their_zero_point(zero: float, left: int) -> None:
    """Of 127 whole numbers two roundings move half a one each, of 254 each moves one."""
    e = ExprBuilder()
    x = narrow(e, e.abs(narrow(e, e.input(0, dtypes.float32))) * 1.1)
    e.output(e.cast(e.min(e.max(e.round(x) + zero, -127.0), 127.0), dtypes.int8))
    assert roundings_left(e, [dtypes.float32]) == left


def test_bytes_without_limits_may_wrap() -> None:
    """Bytes times 1.5 are 190 at most, which is -66: a rounding that moves 127.6 to 128 moves that by 255."""
    e = ExprBuilder()
    e.output(e.cast(e.round(narrow(e, e.cast(e.input(0, dtypes.int8), dtypes.float32) * 1.5)), dtypes.int8))
    assert roundings_left(e, [dtypes.int8]) == 1


def test_roundings_together_move_a_byte_by_one_at_most() -> None:
    """Each of these moves what becomes int8 by half a step: two are left out, of uint8 one, and the last ones."""
    for end, most in ((dtypes.int8, 2), (dtypes.uint8, 1)):
        e = ExprBuilder()
        x = e.input(0, dtypes.float32)
        for _ in range(4):
            x = narrow(e, x * x if end is dtypes.uint8 else e.abs(x) * 1.1)
        quantised(e, x, 0.1, end)
        assert roundings_left(e, [dtypes.float32], [end]) == 4 - most


def test_whole_numbers_may_be_larger_than_what_was_rounded_to_them() -> None:
    """127 of 0.004 are 0.508, which becomes 1; times 258.9, rounded to bfloat16 that is 258, which a sum shows."""
    e = ExprBuilder()
    whole = e.round(e.cast(e.input(1, dtypes.int8), dtypes.float32) * 0.004)
    quantised(e, e.input(0, dtypes.float32) + narrow(e, whole * 258.9), 0.53)
    assert roundings_left(e, [dtypes.float32, dtypes.int8]) == 1


def test_nothing_is_left_out_before_a_rounding_that_is_kept() -> None:
    """A rounding is a step function: without the float16 before it, one to bfloat16 turns a tie the other way."""
    e = ExprBuilder()
    x = narrow(e, e.input(0, dtypes.float32) * 3.0, dtypes.float16)
    x = narrow(e, e.abs(narrow(e, x)), dtypes.float16)
    quantised(e, x, 0.1, dtypes.uint8)
    assert roundings_left(e, [dtypes.float32], [dtypes.uint8]) == 2


@pytest.mark.parametrize("what", [
    "left over", "compared", "whole before", "truncated", "stored too", "cancelled", "cancelled by a number", "grows",
    "wraps", "times a whole", "chosen by", "too many steps", "float16",
])  # fmt: skip
def test_what_tells_of_rounding_is_rounded_before_it_becomes_bytes(what: str) -> None:
    """What rounding took away, what is rounded compared with, what cancels, and what else jumps."""
    e = ExprBuilder()
    x, y = e.input(0, dtypes.float32), e.input(1, dtypes.float32)
    rounded = narrow(e, x * x, dtypes.float16 if what == "float16" else dtypes.bfloat16)
    if what == "left over":
        quantised(e, x * x - rounded, 1e-4)
    elif what == "compared":
        quantised(e, e.where(e.lt(rounded, 1.0), y, 2.0), 0.1)
    elif what == "whole before":
        quantised(e, e.floor(rounded), 0.1)
    elif what == "truncated":
        e.output(e.cast(rounded, dtypes.int8))
    elif what == "stored too":
        quantised(e, rounded, 0.1)
        e.output(e.cast(rounded, dtypes.uint8))
    elif what == "cancelled":
        quantised(e, rounded - y, 2e-4)
    elif what == "cancelled by a number":
        quantised(e, e.max(rounded, 0.5) + -1.0, 2e-4)
    elif what == "grows":
        quantised(e, e.exp(rounded), 1e9)
    elif what == "wraps":
        e.output(e.cast(e.round(rounded * 1000.0), dtypes.int8))
    elif what == "times a whole":
        e.output(e.cast(e.min(e.max(e.round(rounded) * 50.0, -127.0), 127.0), dtypes.int8))
    elif what == "chosen by":
        whole = e.round(rounded)
        e.output(e.cast(e.where(e.eq(whole, 3.0), e.min(e.max(y, 0.0), 9.0), 7.0), dtypes.int8))
    elif what == "too many steps":
        e.output(e.cast(e.min(e.max(e.round(rounded), -1000.0), 1000.0), dtypes.int8))
    else:  # beyond its range numbers are infinite: 1 / 70000 is 0 there
        quantised(e, e.recip(rounded), 1e-9)
    ends = [dtypes.int8, dtypes.uint8][: len(e.outputs)]
    assert roundings_left(e, [dtypes.float32] * 2, ends) == 1


@pytest.mark.parametrize(("scale", "left"), [(0.1, 0), (500.0, 0), (600.0, 1), (1e-6, 0), (1e-8, 1)])
def test_float16_may_be_left_out_where_its_range_is_that_of_the_bytes(scale: float, left: int) -> None:
    """Infinity is 127, as 65504 is with a scale of up to 515; and steps of the least numbers, 2⁻²⁴, are not seen."""
    e = ExprBuilder()
    quantised(e, narrow(e, e.input(0, dtypes.float32), dtypes.float16), scale)
    assert roundings_left(e, [dtypes.float32]) == left


class Drawn:
    """An expression of random steps that ends in bytes, and operands for it. Some were stored as what one of its steps
    rounds: then a sum may cancel to nothing, a comparison find two alike."""

    def __init__(self, seed: int) -> None:
        self.random, self.rng, self.e = random.Random(seed), np.random.default_rng(seed), ExprBuilder()
        self.kinds: list[DType] = []
        self.arrays: list[Any] = []
        self.scalars = [self.input(self.pick([dtypes.float32, dtypes.bfloat16, dtypes.int8])) for _ in range(3)]
        for _ in range(self.random.randint(1, 8)):
            self.scalars.append(self.step(self.scalars[-1], self.pick(self.scalars[:3])))
        self.end = self.pick([dtypes.int8, dtypes.int8, dtypes.uint8])
        quantised(self.e, self.scalars[-1], self.scale(self.scalars[-1]), self.end)

    def pick(self, choices: Sequence[Any]) -> Any:
        return self.random.choice(choices)

    def operand(self, array: Any, kind: DType) -> Scalar:
        self.kinds.append(kind)
        with np.errstate(over="ignore"):
            self.arrays.append(array.astype(kind.numpy))
        return self.e.cast(self.e.input(len(self.kinds) - 1, kind), dtypes.float32)

    def input(self, kind: DType) -> Scalar:
        numbers = self.rng.standard_normal(300) * 10.0 ** self.rng.uniform(-3, 2, 300)
        return self.operand(self.rng.integers(-128, 128, 300) if kind is dtypes.int8 else numbers, kind)

    def values(self, x: Scalar) -> Any:
        (found,) = evaluate({"steps": self.e.steps, "outputs": [x.index]}, self.arrays, [dtypes.float32])
        return found

    def scale(self, x: Scalar) -> float:
        """One with which most numbers are in range, or few of them, or all are small."""
        found = np.abs(self.values(x))
        usual = float(np.quantile(found[np.isfinite(found)], 0.8)) if np.isfinite(found).any() else 1.0
        return max(usual, 1e-20) / 127 * self.pick([0.01, 1.0, 1.0, 40.0])

    def step(self, a: Scalar, b: Scalar) -> Scalar:
        e, name = self.e, self.pick([
            "narrow", "narrow", "narrow", "stored", "stored", "stored", "number", "add", "sub", "mul", "mul", "div",
            "max", "min", "abs", "sqrt", "recip", "tanh", "erf", "exp", "floor", "round", "where", "neg", "sigmoid",
        ])  # fmt: skip
        if name == "narrow":
            return narrow(e, a, self.pick([dtypes.bfloat16, dtypes.float16]))
        if name == "stored":
            kind = self.pick([dtypes.bfloat16, dtypes.float16])
            rounded, y = narrow(e, a, kind), self.operand(self.values(a), kind)
            return self.pick([rounded - y, y - rounded, a / y, e.where(e.eq(rounded, y), a, b), rounded + -y])
        if name == "number":
            number = self.pick([0.5, -1.0, 3.0, 250.0, 1e-3])
            return self.pick([a * number, a + number, a - number, a / number, e.max(a, number)])
        if name == "where":
            return e.where(e.lt(a, b), a, b)
        return getattr(e, name)(a, b) if name in ("add", "sub", "mul", "div", "max", "min") else getattr(e, name)(a)


@given(seed=st.integers(0, 2**32 - 1))
@example(seed=1010419)  # float16 before a bfloat16 that is kept: a tie would turn the other way, and move a byte by two
def test_a_byte_differs_by_one_at_most_without_roundings(seed: int) -> None:
    """Random expressions, with all their roundings and as they are computed."""
    for part in range(8):
        drawn = Drawn(seed + part)
        steps, outputs = without_needless_rounding(drawn.e.steps, drawn.e.outputs, drawn.kinds, [drawn.end])
        want, found = (
            evaluate({"steps": s, "outputs": o}, drawn.arrays, [drawn.end])[0].astype(int)
            for s, o in ((drawn.e.steps, drawn.e.outputs), (steps, outputs))
        )
        assert np.abs(want - found).max() <= 1, f"seed {seed + part}"
