"""Dimension expressions: the normal form agrees with evaluation, and reads back from text and JSON."""
from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot import dims, dims_parsing
from ingot.dims import Dim, ceil_div, maximum, minimum
from ingot.errors import DimError

NAMES = ("A", "B", "T")
T, H = Dim("T"), Dim("H")

# A tree is an int, a name, or (operator, left, right); it is evaluated directly and by building an expression.
leaves = st.one_of(st.integers(-9, 9), st.sampled_from(NAMES))
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["+", "-", "*", "min", "max"]), inner, inner),
        st.tuples(st.sampled_from(["//", "%"]), inner, st.integers(1, 12)),
    ),
    max_leaves=8,
)
DIRECT: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "//": lambda a, b: a // b,
    "%": lambda a, b: a % b, "min": min, "max": max}
BUILT: dict[str, Callable[[Any, Any], Any]] = {**DIRECT, "min": minimum, "max": maximum}


def fold(tree: Any, leaf: Callable[[Any], Any], table: dict[str, Callable[[Any, Any], Any]]) -> Any:
    return table[tree[0]](*(fold(t, leaf, table) for t in tree[1:])) if isinstance(tree, tuple) else leaf(tree)


def build(tree: Any) -> Any:
    return fold(tree, lambda x: Dim(x, 1, max=50) if isinstance(x, str) else x, BUILT)


values = st.fixed_dictionaries({name: st.integers(1, 50) for name in NAMES})


@given(trees, values)
def test_normal_form_agrees_with_evaluation(tree: Any, sizes: dict[str, int]) -> None:
    expected = fold(tree, lambda x: sizes[x] if isinstance(x, str) else x, DIRECT)
    built = build(tree)
    assert (built if isinstance(built, int) else built.evaluate(sizes)) == expected
    low, high = dims.bounds(built)
    assert low <= expected <= high
    assert dims.substitute(built, dict(sizes)) == expected


@given(trees, trees, values)
def test_a_product_is_divided_by_its_factor(a: Any, b: Any, sizes: dict[str, int]) -> None:
    left, right = build(a), build(b)
    if dims.bounds(right)[0] > 0:
        found = dims.substitute((left * right) // right, dict(sizes))
        assert found == dims.substitute(left, dict(sizes))


GRID = [{"A": a, "B": b, "T": t} for a in (1, 2, 7, 50) for b in (1, 5, 48) for t in (1, 3, 16, 25, 49)]


@given(trees, trees)
def test_equal_is_never_said_of_what_is_not(a: Any, b: Any) -> None:
    """Neither by the normal form nor by bounds of the difference."""
    x, y = build(a), build(b)
    low, high = dims.bounds(dims.add(x, dims.mul(y, -1)))
    for sizes in GRID:
        gap = dims.add(dims.substitute(x, dict(sizes)), dims.mul(dims.substitute(y, dict(sizes)), -1))
        assert low <= gap <= high  # type: ignore[operator]
        assert x != y or gap == 0


@given(trees)
def test_text_and_json_read_back(tree: Any) -> None:
    built = build(tree)
    assert dims_parsing.parse(str(built)) == built
    assert dims_parsing.from_json(dims.to_json(built)) == built
    assert str(dims_parsing.from_json(dims.to_json(built))) == str(built)
    assert copy.deepcopy(built) == built and pickle.loads(pickle.dumps(built)) == built


@given(trees, trees)
def test_order_does_not_matter(a: Any, b: Any) -> None:
    x, y = build(a), build(b)
    assert x + y == y + x and hash(x + y) == hash(y + x)
    assert x * y == y * x
    assert maximum(x, y) == maximum(y, x)
    assert x + y - y == x


@pytest.mark.parametrize(("left", "right"), [
    (4 * T // 4, T),
    ((4 * T + 8) // 4, T + 2),
    ((4 * T + 3) // 4, T),
    ((2 * T + 1) // 4, T // 2),
    ((6 * T + 5) // 8, (3 * T + 2) // 4),
    (5 * T // 4, T + T // 4),
    (T * H // H, T),
    ((T - 1) * (T + 1), T * T - 1),
    ((T * T - 1) // (T - 1), T + 1),
    ((32 * (T // 40) * H - 32 * H) // (8 * (T // 40) * H - 8 * H), 4),
    ((T * H - H) // (T - 1), H),
    (T % 4 + 4 * (T // 4), T),
    (ceil_div(8 * T, 4), 2 * T),
    (T + (-T) % 8, 8 * ceil_div(T, 8)),
    (T + (8 - T % 8) % 8, (T + 7) // 8 * 8),
    ((7 * T + 7 * H) // 8, T + H - ceil_div(T + H, 8)),
    (maximum((-T) % 8, 0), (-T) % 8),
    (minimum(T, T // 2), T // 2),
    (minimum(10**9, Dim("N", max=64)), Dim("N")),
    (maximum(0, Dim("N", 1) - 1), Dim("N") - 1),
    (5 // (T + 6), 0),
    ((T % 8) // 8, 0),
    ((32 * (T // 10) - 32) // (8 * (T // 10) - 8), 4),
    (maximum(T, T + 1, T - 3), T + 1),
    (minimum(T, maximum(H, T)) - minimum(maximum(T, H), T), 0),
    (T - T, 0),
    (0 * T, 0),
])
def test_equal_expressions_are_equal(left: Any, right: Any) -> None:
    assert left == right
    assert hash(left) == hash(right)
    assert isinstance(right, int) is isinstance(left, int)


def test_printed_form() -> None:
    assert str(2 * T + 1) == "2*T + 1"
    assert str(T - 4 * (T // 4)) == "T - 4*(T // 4)"
    assert str(maximum(T, 3)) == "max(3, T)"
    assert (2 * T + 1).json() == ["+", ["*", 2, "T"], 1]
    assert (T * H).json() == ["*", "H", "T"]
    assert dims_parsing.from_json(["%", "T", 4]) == T % 4


def test_two_dims_of_a_name_are_one() -> None:
    assert Dim("T", 1, max=64) == T
    merged = dims.merge(T, Dim("T", 1, 8, 64))
    assert merged.claims() == "T in 1..64 opt 8"
    with pytest.raises(DimError, match="declared twice with different bounds: T in 1..64 and T in 1..32"):
        dims.merge(Dim("T", 1, max=64), Dim("T", 1, max=32))


@pytest.mark.parametrize(("make", "message"), [
    (lambda: Dim("3x"), "cannot name a dim"),
    (lambda: Dim("max"), "cannot name a dim"),
    (lambda: Dim("T", -1), "min must be an int from 0"),
    (lambda: Dim("T", 5, max=3), "need min <= opt <= max"),
    (lambda: Dim("T", 1, 80, 64), "need min <= opt <= max"),
    (lambda: T // 0, "divisors must be positive"),
    (lambda: T // -2, "divisors must be positive"),
    (lambda: (5 // T).evaluate({"T": 0}), "the divisor is 0"),
    (lambda: T.evaluate({"S": 1}), r"T has no value yet; known are \['S'\]"),
    (lambda: bool(T), "known only at run time"),
    (lambda: range(T), "is not a number yet"),
    (lambda: dims.as_dim(2.5), "2.5 is not a dimension"),
    (lambda: dims.as_dim(True), "True is not a dimension"),
    (lambda: dims_parsing.from_json(["/", 1, 2]), "not a dimension"),
    (lambda: dims_parsing.from_json(["//", 1]), "too many or too few arguments"),
    (lambda: dims_parsing.from_json(2**70), "not a dimension"),
    (lambda: dims_parsing.from_json(1.0), "not a dimension"),
    (lambda: dims_parsing.parse("T.__class__()"), "not a dimension"),
    (lambda: dims_parsing.parse("T +"), "not a dimension"),
    (lambda: dims_parsing.parse("(" * 5000), "not a dimension"),
])
def test_refusals(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(DimError, match=message):
        make()


def test_hostile_expressions_end_quickly() -> None:
    deep: Any = "T"
    for _ in range(100_000):
        deep = ["+", deep, 1]
    with pytest.raises(DimError, match="too deep"):
        dims_parsing.from_json(deep)
    wide: Any = 1
    factor = ["+", *(f"d{i}" for i in range(20))]
    for _ in range(10):
        wide = ["*", wide, factor]
    with pytest.raises(DimError, match="grew beyond"):
        dims_parsing.from_json(wide)
    with pytest.raises(DimError, match="64-bit"):
        dims_parsing.from_json(["*", 2**62, ["*", 4, "T"]])


@pytest.mark.parametrize(
    ("size", "wanted"),
    [(T, ("T", 1, 0)), (8 * T, ("T", 8, 0)), (2 * T + 3, ("T", 2, 3)), (T - 1, ("T", 1, -1)), (5, None),
     (-T, None), (T * T, None), (T + H, None), (T // 2, None), (2 * (T // 2), None), (T * H + 1, None)])  # fmt: skip
def test_sizes_that_give_a_dim_its_value(size: dims.Dimension, wanted: tuple[str, int, int] | None) -> None:
    found = dims.affine(size)
    assert (None if found is None else (found.dim.name, found.factor, found.offset)) == wanted
    if found is not None:
        sizes = [found.factor * n + found.offset for n in range(5)]
        assert [found.value(n) for n in sizes] == list(range(5))
        assert found.value(found.offset - found.factor) is None
        assert found.factor == 1 or found.value(sizes[1] + 1) is None


def test_values_of_sizes() -> None:
    assert dims.values_of([(2 * T, 16), (5, 5), (T, 9), (H * T, 3), (3 * H, 4), (H, 2)]) == {"T": 8, "H": 2}


def test_expressions_that_hold_each_other_twice_end() -> None:
    """As slices of slices write them: their bounds are looked for once, and their text does not double for ever."""

    def halved(size: dims.Dimension, times: int) -> dims.Dimension:
        for _ in range(times):
            at = dims.floordiv(dims.add(size, -7), 2)
            size = dims.add(size, dims.mul(dims.maximum(at, 0), -1), dims.minimum(at, size))
        return size

    with pytest.raises(DimError, match="grew beyond .* characters"):
        halved(Dim("H"), 64)
