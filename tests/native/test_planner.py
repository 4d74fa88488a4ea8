"""Dimension expressions and the arena: checked arithmetic, and no two live buffers in one place."""

from __future__ import annotations

import itertools
import json
import math
import resource
from collections import Counter
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ingot import _native
from tests.native.engines import Program, symbol

BINARY = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "min": min,
    "max": max,
}
MOST = (1 << 46) - 1


def evaluate(dim: Any, symbols: dict[str, int]) -> int | None:
    """The value; None where a step divides by less than 1 or leaves 64 bits."""
    if isinstance(dim, int):
        return dim
    if isinstance(dim, str):
        return symbols[dim]
    values = [evaluate(part, symbols) for part in dim[1:]]
    result = values[0]
    for value in values[1:]:
        if result is None or value is None or (dim[0] in ("//", "%") and value < 1):
            return None
        result = BINARY[dim[0]](result, value)
        if not -(1 << 63) <= result < 1 << 63:
            return None
    return result


def operations(dims: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    two = st.tuples(st.sampled_from(["-", "//", "%"]), dims, dims)
    more = st.tuples(st.sampled_from(["+", "*", "min", "max"]), dims, dims, dims)
    return (two | more).map(list)


numbers = st.integers(-100, 100) | st.sampled_from([0, 1, 1 << 40, (1 << 63) - 1, -(1 << 63)])
dims = st.recursive(numbers | st.sampled_from(["T", "B"]), operations, max_leaves=8)


def two_symbols() -> Program:
    p = Program(symbol("T", 0, 1 << 40), symbol("B", 0, 1 << 40))
    p.input("x", ["T", "B"])
    return p


@given(dim=dims, t=st.integers(0, 1 << 40) | st.integers(0, 9), b=st.integers(0, 9))
def test_dims_are_what_python_says(dim: Any, t: int, b: int) -> None:
    # The value is seen as the size of a buffer of bytes: max(value, -1) + 1.
    p = two_symbols()
    p.json["buffers"][0]["shape"] = ["T", "B", 0]
    shown = ["max", ["min", dim, 1 << 30], 0]
    p.call("copy", [0], [p.temp([shown], "uint8")])
    expected = evaluate(shown, {"T": t, "B": b})
    if isinstance(dim, int) or expected is not None:
        layout = _native.plan_layout(json.dumps(p.json), {"T": t, "B": b})
        assert [item["bytes"] for item in layout["buffers"] if item["buffer"] == 1] == [expected]
    else:
        with pytest.raises(_native.Error, match="overflows or divides by less than 1 with") as caught:
            _native.plan_layout(json.dumps(p.json), {"T": t, "B": b})
        assert caught.value.code == "input"


@pytest.mark.parametrize(
    ("shape", "code", "message"),
    [
        ([["-", "T", 5]], "input", r"buffers\[1\] float32\[\(T - 5\)\]: its dimension 0 would be -3 \(with T=2, B=3\)"),
        ([["*", "T", 1 << 62], 4], "input", r"\(T \* 4611686018427387904\) overflows"),
        (["T", 1 << 45], "memory", "more than 64 TiB"),
        ([1 << 40, 1 << 40], "memory", "more than 64 TiB"),
        ([["//", "T", ["-", "B", 3]]], "input", r"\(T // \(B - 3\)\) overflows or divides by less than 1 with T=2 B=3"),
    ],
)
def test_sizes_that_cannot_be(shape: list[Any], code: str, message: str) -> None:
    p = two_symbols()
    p.call("copy", [0], [p.temp(shape)])
    with pytest.raises(_native.Error, match=message) as caught:
        _native.plan_layout(json.dumps(p.json), {"T": 2, "B": 3})
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("shape", "stride", "offset", "inside"),
    [
        ([2, 3], [3, 1], 0, True),
        ([3, 2], [1, 3], 0, True),
        ([2, 3], [3, 1], 1, False),
        ([2, 3], [3, 1], -1, False),
        ([6], [-1], 5, True),
        ([6], [-1], 4, False),
        ([100], [0], 5, True),
        ([100], [0], 6, False),
        ([0, 9], [99, 99], 6, True),
        ([0, 9], [99, 99], 999, True),
        ([2], [1 << 62], 0, False),
        ([1 << 40], [1 << 40], 0, False),
    ],
)
def test_views_stay_inside(shape: list[int], stride: list[int], offset: int, inside: bool) -> None:
    p = two_symbols()
    view = p.view(0, shape, stride, offset)
    p.output("y", view)
    if inside:
        _native.plan_layout(json.dumps(p.json), {"T": 2, "B": 3})
        return
    with pytest.raises(
        _native.Error, match=r"buffers\[1\].*: the view reaches outside buffer 0 of 6 elements"
    ) as caught:
        _native.plan_layout(json.dumps(p.json), {"T": 2, "B": 3})
    assert caught.value.code == "input"  # other sizes of inputs may fit
    fixed = Program()
    fixed.output("y", fixed.view(fixed.input("x", [2, 3]), shape, stride, offset))
    with pytest.raises(_native.Error, match=r"buffers\[1\].*: the view reaches outside") as caught:
        _native.plan_layout(json.dumps(fixed.json), {})
    assert caught.value.code == "program"


def test_parts_make_up_their_buffer() -> None:
    def program(second: Any) -> str:
        p = two_symbols()
        whole = p.temp([4, "B"])
        for rows, offset in (([2, "B"], 0), second):
            p.call("copy", [0], [p.view(whole, rows, ["B", 1], offset)])
        p.output("y", whole)
        return json.dumps(p.json)

    layout = _native.plan_layout(program(([2, "B"], ["*", "B", 2])), {"T": 2, "B": 3})
    assert layout["arena"] == 128 + 2 * _native.RED_ZONE
    for second, why in (
        (([1, "B"], ["*", "B", 2]), "the views written leave elements unwritten"),
        (([2, "B"], ["*", "B", 1]), "two of the views written reach one element"),
        (([3, "B"], ["*", "B", 1]), "two of the views written reach one element"),
    ):
        with pytest.raises(_native.Error, match=why) as caught:
            _native.plan_layout(program(second), {"T": 2, "B": 3})
        assert caught.value.code == "program"


Part = tuple[list[int], list[int], int]  # shape, strides and offset of a view


@st.composite
def tilings(draw: st.DrawFn) -> tuple[int, list[Part]]:
    """Boxes that a box falls into when it is cut along one axis after the other, with their dimensions in any order."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    boxes = [[(0, n) for n in shape]]
    for _ in range(draw(st.integers(0, 5))):
        at, axis = draw(st.integers(0, len(boxes) - 1)), draw(st.integers(0, len(shape) - 1))
        low, high = boxes[at][axis]
        if high - low > 1:
            cut = draw(st.integers(low + 1, high - 1))
            box = boxes.pop(at)
            boxes += [[*box[:axis], part, *box[axis + 1 :]] for part in ((low, cut), (cut, high))]
    parts: list[Part] = []
    for box in boxes:
        offset = sum(low * stride for (low, _), stride in zip(box, strides, strict=True))
        dims = [(high - low, stride) for (low, high), stride in zip(box, strides, strict=True)]
        for i, (size, stride) in enumerate(dims):
            if draw(st.booleans()):
                offset, dims[i] = offset + (size - 1) * stride, (size, -stride)
        dims = draw(st.permutations(dims))
        parts.append(([size for size, _ in dims], [stride for _, stride in dims], offset))
    return math.prod(shape), parts


def reached(part: Part) -> list[int]:
    """Every element that a view reaches."""
    shape, strides, offset = part
    return [
        offset + sum(i * s for i, s in zip(index, strides, strict=True))
        for index in itertools.product(*map(range, shape))
    ]


def nested(part: Part) -> bool:
    """Whether each dimension steps over all that the smaller ones reach."""
    reach = 0
    for stride, size in sorted((abs(s), n) for n, s in zip(part[0], part[1], strict=True) if n > 1):
        if stride <= reach:
            return math.prod(part[0]) == 0
        reach += stride * (size - 1)
    return True


@given(
    tiling=tilings(),
    changes=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(-2, 2)), max_size=2),
)
def test_parts_are_compared_element_by_element(tiling: tuple[int, list[Part]], changes: Any) -> None:
    """Windows on a buffer are accepted exactly when every element lies in one of them."""
    elements, parts = tiling
    for at, axis, by in changes:
        shape, strides, offset = parts[at % len(parts)]
        change = [shape, strides, [offset]][axis % 3]
        change[axis % len(change)] += by
        parts[at % len(parts)] = (shape, strides, change[0] if axis % 3 == 2 else offset)
    assume(all(size >= 0 for shape, *_ in parts for size in shape))
    counts = Counter(place for part in parts for place in reached(part))
    assume(all(0 <= place < elements for place in counts))
    assume(all(map(nested, parts)))  # others may reach an element twice, and are refused each for itself
    p = Program()
    whole = p.temp([elements])
    for shape, strides, offset in parts:
        source = p.input(f"x{len(p.json['buffers'])}", [max(math.prod(shape), 1)])
        dense = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        p.call("copy", [p.view(source, shape, dense)], [p.view(whole, shape, strides, offset)])
    p.output("y", whole)
    if len(counts) == elements and set(counts.values()) <= {1}:
        _native.plan_layout(json.dumps(p.json), {})
    else:
        with pytest.raises(_native.Error, match="the views written leave|two of the views written"):
            _native.plan_layout(json.dumps(p.json), {})


def test_parts_that_interleave_without_end_are_refused() -> None:
    p = Program()
    x, whole = p.input("x", [1 << 18]), p.temp([(1 << 18) + (1 << 17)])
    rows = 1 << 17
    p.call("copy", [p.view(x, [rows, 2], [2, 1])], [p.view(whole, [rows, 2], [3, 1])])
    for part in range(2):
        shape, offset = [rows // 2], 2 + part * rows // 2 * 3
        p.call("copy", [p.view(x, shape, [1])], [p.view(whole, shape, [3], offset)])
    p.output("y", whole)
    with pytest.raises(_native.Error, match="interleave in too many ways"):
        _native.plan_layout(json.dumps(p.json), {})


def test_parts_that_lie_around_each_other_without_end_are_refused() -> None:
    """Each part has the element beside those of the next on both sides: every one interleaves in a way of its own."""
    p, parts = Program(), 2000
    x, whole = p.input("x", [2]), p.temp([2 * parts])
    for i in range(parts):
        p.call("copy", [x], [p.view(whole, [2], [2 * parts - 1 - 2 * i], i)])
    p.output("y", whole)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(_native.Error, match="interleave in too many ways"):
        _native.plan_layout(json.dumps(p.json), {})
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_a_written_view_reaches_each_element_once() -> None:
    p = two_symbols()
    whole = p.temp([6])
    p.call("copy", [0], [p.view(whole, [2, 3], [1, 1])])
    p.output("y", whole)
    with pytest.raises(_native.Error, match="may not reach an element twice"):
        _native.plan_layout(json.dumps(p.json), {"T": 2, "B": 3})


@st.composite
def graphs(draw: st.DrawFn) -> Program:
    """Calls that read some of what there is and write a new buffer of some size; some are outputs, some never read."""
    p = Program(symbol("T"))
    there = [p.input("x", ["T", 4]), p.input("y", ["T"])]
    for _ in range(draw(st.integers(1, 30))):
        operands = draw(st.lists(st.sampled_from(there), min_size=1, max_size=3))
        there.append(p.temp(["T", draw(st.integers(0, 40))]))
        p.call("any", operands, [there[-1]])
    for i, buffer in enumerate(draw(st.lists(st.sampled_from(there), max_size=3, unique=True))):
        p.output(f"o{i}", buffer)
    return p


@given(program=graphs(), t=st.integers(0, 64))
def test_no_two_live_buffers_overlap(program: Program, t: int) -> None:
    layout = _native.plan_layout(json.dumps(program.json), {"T": t})
    buffers = layout["buffers"]
    assert {b["buffer"] for b in buffers} == set(range(len(program.json["buffers"])))
    for b in buffers:
        assert b["offset"] % 64 == 0 and b["first"] <= b["last"]
        assert b["bytes"] == 0 or b["offset"] + b["bytes"] <= layout["arena"]
    for i, a in enumerate(buffers):
        for b in buffers[:i]:
            # The inputs are all filled before the first call, so they are there together even when never read.
            together = a["first"] <= max(b["last"], 0) and b["first"] <= max(a["last"], 0)
            if together and a["bytes"] and b["bytes"]:
                assert a["offset"] + a["bytes"] <= b["offset"] or b["offset"] + b["bytes"] <= a["offset"], (a, b)
    assert layout["lower_bound"] <= layout["arena"] <= 2 * layout["lower_bound"]


def test_lifetimes_follow_views_and_outputs() -> None:
    p = two_symbols()
    first = p.temp(["T", "B"])
    p.call("copy", [0], [first])
    second = p.temp(["B", "T"])
    p.call("copy", [p.view(first, ["B", "T"], [1, "B"])], [second])
    third = p.temp(["B", "T"])
    p.call("copy", [second], [third])
    p.output("y", p.view(second, ["B"], ["T"]))
    found = {
        b["buffer"]: (b["first"], b["last"])
        for b in _native.plan_layout(json.dumps(p.json), {"T": 2, "B": 3})["buffers"]
    }
    assert found == {0: (-1, 0), first: (0, 1), second: (1, 3), third: (2, 2)}
