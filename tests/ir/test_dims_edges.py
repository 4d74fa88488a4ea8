"""Dimensions at their edges: bounds that are exact, limits that are just allowed and just refused, what prints how."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ingot import dims, dims_parsing
from ingot.dims import MAX_VALUE, Dim, maximum, minimum
from ingot.errors import DimError

T, H = Dim("T"), Dim("H")
A, B, Z = Dim("A", 2, max=5), Dim("B", 1, max=3), Dim("Z", max=0)
INF = math.inf
NAMES = [Dim(f"d{i}") for i in range(300)]
POWERS = [dims.mul(*[T] * i, *[H] * (n - i)) for n in range(11) for i in range(n + 1)]  # 66 that differ


@pytest.mark.parametrize(
    ("size", "wanted"),
    [
        (7, (7, 7)), (A, (2, 5)), (T, (0, INF)), (A + B, (3, 8)), (A - B, (-1, 4)), (-A, (-5, -2)), (A * B, (2, 15)),
        (A * A, (4, 25)), (1 - 3 * A, (-14, -5)), (A * B * B, (2, 45)), (A * B - A, (-3, 13)), (T * Z, (0, 0)),
        (T * A, (0, INF)), (-T, (-INF, 0)), (3 - T * B, (-INF, 3)),
        (A // 2, (1, 2)), (A // B, (0, 5)), (7 // A, (1, 3)), (T // 2, (0, INF)),
        (A // T, (0, 5)), ((A - 9) // T, (-7, -1)), ((A - B) // T, (-1, 4)), (T // (A + 1), (0, INF)),
        (minimum(A, B), (1, 3)), (maximum(A, B), (2, 5)), (maximum(A, 4), (4, 5)), (minimum(T, 7), (0, 7)),
        (maximum(T, 7), (7, INF)), (minimum(A, 3) + maximum(B, 2), (4, 6)),
        (T % 8, (0, 7)), ((-T) % 8, (0, 7)), (T - T // 2, (0, INF)), (T // 2 + (T + 1) // 2 - T, (0, 0)),
        (T - minimum(T, 1), (0, INF)), (T // 2 - 2 * (T // 4), (0, 1)), (maximum(T, H) - T, (0, INF)),
        (T * T - 2 * (T * T // 2), (0, 1)), (2 * ((H + 31) // 32) - (H + 15) // 16, (0, 1)),
    ],
    ids=str,
)  # fmt: skip
def test_bounds(size: dims.Dimension, wanted: tuple[float, float]) -> None:
    """As tight as they can be, where no dim stands in an expression twice."""
    assert dims.bounds(size) == wanted
    assert dims.bounds(dims.add(size, 1)) == (wanted[0] + 1, wanted[1] + 1)


def test_bounds_that_are_given() -> None:
    known = {"T": Dim("T", 3, max=9), "A": Dim("A", 4)}
    assert [dims.bounds(x, known) for x in (T, A, B, T + B, T // 2, minimum(T, A), T * B)] == [
        (3, 9), (4, INF), (1, 3), (4, 12), (1, 4), (3, 9), (3, 27)
    ]  # fmt: skip


def chained(op: Callable[[Any, Any], Any], parts: list[Any]) -> Any:
    total = parts[0]
    for part in parts[1:]:
        total = op(total, part)
    return total


def nested(depth: int) -> Any:
    found: Any = "T"
    for _ in range(depth):
        found = ["+", found, 1]
    return found


@pytest.mark.parametrize(
    ("allowed", "refused"),
    [
        (lambda: Dim("x" * 100), lambda: Dim("x" * 101)),
        (lambda: Dim("T", 0, 0, 0), lambda: Dim("T", -1)),
        (lambda: Dim("T", MAX_VALUE), lambda: Dim("T", MAX_VALUE + 1)),
        (lambda: Dim("T", max=MAX_VALUE), lambda: Dim("T", max=MAX_VALUE + 1)),
        (lambda: Dim("T", opt=MAX_VALUE), lambda: Dim("T", opt=MAX_VALUE + 1)),
        (lambda: Dim("T", opt=1), lambda: Dim("T", opt=True)),
        (lambda: Dim("T", 5, max=5), lambda: Dim("T", 5, max=4)),
        (lambda: Dim("T", 5, 5), lambda: Dim("T", 5, 4)),
        (lambda: Dim("T", 5, 9, 9), lambda: Dim("T", 5, 9, 8)),
        (lambda: Dim("T", 5, 5, 9), lambda: Dim("T", 5, 4, 9)),
        (lambda: chained(dims.add, NAMES[:256]), lambda: chained(dims.add, NAMES[:257])),
        (lambda: chained(dims.mul, [T] * 32), lambda: chained(dims.mul, [T] * 33)),
        (lambda: dims.mul(dims.add(*POWERS[:64]), dims.add(*POWERS[:64])),
         lambda: dims.mul(dims.add(*POWERS[:64]), dims.add(*POWERS[:65]))),
        (lambda: dims.mul(*[dims.add(*NAMES[i * 16 : i * 16 + 16]) for i in range(2)]),
         lambda: dims.mul(*[dims.add(*NAMES[i * 17 : i * 17 + 17]) for i in range(2)])),
        (lambda: MAX_VALUE * T, lambda: dims.mul(MAX_VALUE * T, 2)),
        (lambda: dims.mul(T, -MAX_VALUE), lambda: dims.mul(T, -MAX_VALUE - 1)),
        (lambda: dims.add(MAX_VALUE - 1, 1), lambda: dims.add(MAX_VALUE, 1)),
        (lambda: maximum(*NAMES[:32]), lambda: maximum(*NAMES[:33])),
        (lambda: dims_parsing.from_json(MAX_VALUE), lambda: dims_parsing.from_json(MAX_VALUE + 1)),
        (lambda: dims_parsing.from_json(-MAX_VALUE), lambda: dims_parsing.from_json(-MAX_VALUE - 1)),
        (lambda: dims_parsing.from_json(5), lambda: dims_parsing.from_json(True)),
        (lambda: dims_parsing.from_json(nested(32)), lambda: dims_parsing.from_json(nested(33))),
        (lambda: dims_parsing.from_json(["+", *[1] * 256]), lambda: dims_parsing.from_json(["+", *[1] * 257])),
        (lambda: dims_parsing.from_json(["*", "T", 2]), lambda: dims_parsing.from_json(["*", "T"])),
        (lambda: dims_parsing.from_json(["max", "T", 2]), lambda: dims_parsing.from_json(["max", "T", 2, 3])),
        (lambda: dims_parsing.from_json(["%", "T", 2]), lambda: dims_parsing.from_json(["%", "T"])),
        (lambda: dims_parsing.from_json(["-", "T", 2]), lambda: dims_parsing.from_json([])),
        (lambda: dims_parsing.from_json("T"), lambda: dims_parsing.from_json([["+"], 1, 2])),
        (lambda: dims_parsing.parse("T" + " " * 9999), lambda: dims_parsing.parse("T" + " " * 10_000)),
        (lambda: dims_parsing.parse("min(T, 2)"), lambda: dims_parsing.parse("min(T)")),
        (lambda: dims_parsing.parse("max(T, 2, H)"), lambda: dims_parsing.parse("max(T, 2, key=H)")),
        (lambda: dims_parsing.parse("a.b"), lambda: dims_parsing.parse("a().b")),
        (lambda: dims_parsing.parse("5"), lambda: dims_parsing.parse("True")),
        (lambda: dims_parsing.parse("-T"), lambda: dims_parsing.parse("~T")),
        (lambda: dims_parsing.parse("T // 2"), lambda: dims_parsing.parse("T / 2")),
        (lambda: dims.as_dim(np.int64(3)), lambda: dims.as_dim(np.bool_(True))),
        (lambda: dims.merge(T, Dim("T", 2)), lambda: dims.merge(T, H)),
        (lambda: dims.merge(Dim("T", 2), Dim("T", 2, max=5)), lambda: dims.merge(Dim("T", 2), Dim("T", 3))),
        (lambda: (5 // T).evaluate({"T": 1}), lambda: (5 // T).evaluate({"T": 0})),
        (lambda: T // 1, lambda: T // 0),
    ],
)  # fmt: skip
def test_the_edges(allowed: Callable[[], Any], refused: Callable[[], Any]) -> None:
    allowed()
    with pytest.raises(DimError):
        refused()


@pytest.mark.parametrize(
    ("size", "text", "values"),
    [
        (6 * T * H // (3 * T), "2*H", 14), (7 * T // (3 * T), "(7*T) // (3*T)", 2), (5 // T, "5 // T", 1),
        ((T * H + H * 3 + 2) // H, "(2) // H", None), (5 - T, "-1*T + 5", 0), (5 % T, "-1*(5 // T)*T + 5", 0),
        (2 - 3 * T - H, "-1*H - 3*T + 2", -20), (-1 * T // 4, "-T + (3*T) // 4", None), (T // 3 // 4, "T // 12", 0),
        ((T // 3 + H) // 4, "(3*H + T) // 12", 2), ((2 * (T // 3) + H) // 4, None, 2), (T // 2**31 // 2**31, None, 0),
        (T // 2**31 // 2**32, None, 0), (T * T // T, "T", 5), ((T + 7) // 4 * 4, None, 12),
        ((6 * T + 5) // 4, "T + (T + 1) // 2 + 1", None), (maximum(T, 3, H), "max(3, H, T)", 7),
        (minimum(T + 2, T, 3), "min(3, T)", 3), (maximum(minimum(T, H), 4), "max(4, min(H, T))", 5),
    ],
    ids=str,
)  # fmt: skip
def test_what_expressions_become(size: Any, text: str | None, values: int | None) -> None:
    """For T = 5 and H = 7. Where no text is given, what it prints may change; what it is worth may not."""
    if text is not None and values is not None:
        assert str(size) == text
    if values is not None:
        assert size.evaluate({"T": 5, "H": 7}) == values
    assert dims_parsing.parse(str(size)) == size
    assert dims_parsing.from_json(dims.to_json(size)) == size
    assert dims.substitute(size, {"T": H, "H": T}).evaluate({"T": 7, "H": 5}) == size.evaluate({"T": 5, "H": 7})


def test_large_divisors_stay_apart() -> None:
    """Where their product has no 64 bits."""
    size = 2**63 - 1
    assert str(T // 2**31 // 2**31) == f"T // {2**62}"
    assert str(T // 2**31 // 2**32) == f"(T // {2**31}) // {2**32}"
    assert (T // 2**31 // 2**31).evaluate({"T": size}) == 1  # type: ignore[union-attr]
    assert (T // 2**30 // 2**32).evaluate({"T": size}) == 1  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("dim", "claims"),
    [
        (T, "T"), (Dim("T", 1), "T in 1.."), (Dim("T", max=0), "T in 0..0"), (Dim("T", 2, 3, 4), "T in 2..4 opt 3"),
        (Dim("T", opt=0), "T opt 0"), (Dim("T", max=9, unbacked=True), "T in 0..9 unbacked"),
    ],
)  # fmt: skip
def test_claims(dim: Dim, claims: str) -> None:
    assert dim.claims() == claims


def test_what_two_claims_of_a_dim_make() -> None:
    for a, b, claims in (
        (Dim("T", 2), Dim("T", max=9), "T in 2..9"), (Dim("T", opt=3), Dim("T", opt=4), "T opt 3"),
        (T, Dim("T", opt=4), "T opt 4"), (Dim("T", max=9), Dim("T", 2, 3, 9), "T in 2..9 opt 3"),
        (Dim("T", unbacked=True), T, "T unbacked"), (T, Dim("T", unbacked=True), "T unbacked"),
    ):  # fmt: skip
        assert dims.merge(a, b).claims() == claims
    assert dims.merge(A, A) is A


def test_rules_for_sizes() -> None:
    rules = [found.rule() for x in (T, 8 * T, 2 * T + 3, T - 1) if (found := dims.affine(x)) is not None]
    assert rules == [
        "0 or more", "a multiple of 8", "2*T + 3 for a whole number T of 0 or more",
        "T - 1 for a whole number T of 0 or more",
    ]  # fmt: skip


def test_numbers_of_every_kind() -> None:
    assert (dims.as_dim(np.int32(3)), dims.as_dim("T"), dims.as_dim(T + 1)) == (3, T, T + 1)
    assert type(dims.as_dim(np.int32(3))) is int
    for broken in (
        lambda: T + "x", lambda: T * 1.5, lambda: "x" - T, lambda: 1.5 // T, lambda: T % "x", lambda: T - 0.5,
    ):  # fmt: skip
        with pytest.raises(TypeError):
            broken()
    assert [str(x) for x in (7 - T, 7 + T, 7 * T)] == ["-1*T + 7", "T + 7", "7*T"]
    assert dims.dims_of([3, T * H, T // 2, maximum(B, 2)]) == {"T": T, "H": H, "B": B}
