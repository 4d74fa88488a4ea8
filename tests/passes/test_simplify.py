"""Simplification at its edges: which ops a pass leaves, and that their numbers are bit by bit those of before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ingot import dims
from ingot.dims import Dim
from ingot.ir import F, Network, Spec, Value
from ingot.ir.interpret import interpret
from ingot.ir.verify import verify
from ingot.ops.control import branch
from ingot.passes import simplify
from ingot.passes.rewrite import Log

T = Dim("T")
Build = Callable[[Value, Value], Any]
FEEDS = {
    "x": np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32),
    "i": np.random.default_rng(1).integers(-90, 90, (4, 6)).astype(np.int32),
}


def network(build: Build) -> Network:
    """Outputs of x: f32[T, 6] and i: i32[T, 6]."""
    net = Network("net")
    x, i = net.input("x", Spec((T, 6), "float32")), net.input("i", Spec((T, 6), "int32"))
    made = build(x, i)
    for number, value in enumerate(made if isinstance(made, tuple) else (made,)):
        net.outputs[f"y{number}"] = value
    return net


def after(one: Callable[[Network, Log], None], build: Build, log: Log | None = None) -> list[str]:
    """The ops that a pass leaves; what they compute is what was computed before it."""
    net = network(build)
    want = interpret(net, FEEDS)
    one(net, [] if log is None else log)
    verify(net)
    for name, array in interpret(net, FEEDS).items():
        assert array.dtype == want[name].dtype and array.shape == want[name].shape
        assert array.tobytes() == want[name].tobytes()
    return [node.op.name for node in net.nodes]


def constant(x: Value, array: Any, dtype: str = "float32") -> Value:
    return x.network.constant(np.asarray(array, dtype))  # type: ignore[no-any-return]


# ---------------------------------------------------------------------------------------------------------------- share


@pytest.mark.parametrize(
    ("build", "left"),
    [
        (lambda x, i: (F.exp(x), F.exp(x)), ["exp"]),
        (lambda x, i: F.exp(x) + F.exp(x), ["exp", "add"]),
        (lambda x, i: (x - F.exp(x), F.exp(x) - x), ["exp", "sub", "sub"]),
        (lambda x, i: (F.cast(x, "float16"), F.cast(x, "bfloat16")), ["cast", "cast"]),
        (lambda x, i: (*F.sort(x), *F.sort(x)), ["sort"]),
        (lambda x, i: (*F.sort(x), *F.sort(x, axis=0)), ["sort", "sort"]),
        (lambda x, i: (x * constant(x, [1, 2, 3, 4, 5, 6]), x * constant(x, [1, 2, 3, 4, 5, 6])), ["mul"]),
        # the same bytes, and another number
        (lambda x, i: (x * constant(x, 2.0), i * constant(x, 2**30, "int32")), ["mul", "mul"]),
        (lambda x, i: (F.reduce_sum(F.nonzero(x)), F.reduce_sum(F.nonzero(x))), ["nonzero", "reduce_sum"] * 2),
    ],
)
def test_what_is_computed_once(build: Build, left: list[str]) -> None:
    assert after(simplify.share, build) == left


def test_equal_constants_are_stored_once() -> None:
    net = network(lambda x, i: (x * constant(x, [2.0] * 6), x + constant(x, [2.0] * 6), x - constant(x, [2.0])))
    simplify.share(net, [])
    net.remove_dead()
    assert sorted(c.shape for c in net.constants) == [(1,), (6,)]


# ----------------------------------------------------------------------------------------------------------------- fold


@pytest.mark.parametrize(
    ("build", "left"),
    [
        (lambda x, i: x + F.exp(F.exp(constant(x, 1.0))), ["add"]),
        (lambda x, i: tuple(F.sort(constant(x, [3, 1, 2]))), []),
        (lambda x, i: F.add(x, F.permute(constant(x, np.arange(6).reshape(6, 1)), (1, 0))), ["add"]),
        (lambda x, i: F.nonzero(constant(x, [3, 0, 2])), ["nonzero"]),
        (lambda x, i: F.expand(constant(x, 1.0), (2**20,)), []),
        (lambda x, i: F.expand(constant(x, 1.0), (2**20 + 1,)), ["expand"]),
        (lambda x, i: F.expand(constant(x, 1.0), (T, 6)) + x, ["expand", "add"]),
        # a result of one known and one unknown size, and a known size at an unknown place
        (lambda x, i: F.slice(constant(x, np.arange(9)), (T,), (2,), (1,)), ["slice"]),
        (lambda x, i: F.slice(constant(x, np.arange(18).reshape(9, 2)), (1, 0), (2, 2), (3, 1)), []),
    ],
)  # fmt: skip
def test_what_is_known_already(build: Build, left: list[str]) -> None:
    assert after(simplify.fold, build) == left


def test_why_something_is_not_folded() -> None:
    log: Log = []
    after(simplify.fold, lambda x, i: F.expand(constant(x, 1.0), (T, 6)) + x, log)
    after(simplify.fold, lambda x, i: F.expand(constant(x, 1.0), (2**20 + 1,)), log)
    assert ["run time" in log[0].verdict, "more than 1,048,576 elements" in log[1].verdict, len(log)] == [True, True, 2]


def long(x: Value, count: int) -> Value:
    """Products of square constants, one after the other."""
    y = F.expand(constant(x, np.full((1, 1), 1 / 256)), (256, 256))
    for _ in range(count):
        y = F.matmul(y, y)
    return y


def zero(x: Value) -> Value:
    return constant(x, 0, "int32")


def test_what_would_take_long_is_left_to_the_run() -> None:
    """A stranger's network is lowered too, before anybody runs it: no loops, and seconds of other work in all."""
    turns = branch(lambda i: F.not_equal(i, 0), Spec((), "int32"), name="turns")
    same = branch(lambda i: F.add(i, 0), Spec((), "int32"), name="same")
    loop: dict[str, Any] = {"condition": turns, "body": same}
    inside = branch(lambda i: F.while_loop(i, **loop), Spec((), "int32"), name="inside")
    log: Log = []
    assert after(simplify.fold, lambda x, i: F.while_loop(zero(x), **loop), log) == ["while_loop"]
    either: Build = lambda x, i: F.cond(  # noqa: E731
        constant(x, True, "bool"), zero(x), then_branch=inside, else_branch=same
    )
    assert after(simplify.fold, either, log) == ["cond"]
    assert all("how often it turns" in event.verdict for event in log) and len(log) == 2
    assert after(simplify.fold, lambda x, i: long(x, 3)) == []
    (event,) = kept(lambda x, i: F.conv(
        F.expand(constant(x, np.ones((1, 1, 1, 1))), (1, 1, 1024, 1024)),
        F.expand(constant(x, np.ones((1, 1, 1, 1))), (1, 1, 512, 512)),
        stride=(1, 1), pre_padding=(0, 0), post_padding=(0, 0), dilation=(1, 1),
    ))  # fmt: skip
    assert "it takes long" in event.verdict


def test_work_is_counted_over_the_whole_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simplify, "MAX_FOLDED_STEPS", 3 * 256**2 * 2)
    log = kept(lambda x, i: long(x, 40))
    assert len(log) == 1 and "it takes long" in log[0].verdict


@pytest.mark.parametrize(
    ("bound", "why", "used"),
    [
        ("MAX_FOLDED_ELEMENTS", "its result would have more", lambda node: 9),
        ("MAX_FOLDED_STEPS", "it takes long", lambda node: simplify._steps(node)),
        ("MAX_FOLDED_WORKING", "it takes long", lambda node: node.op.working(*(v.spec for v in node.inputs))),
    ],
)
def test_what_just_fits_is_folded(
    bound: str, why: str, used: Callable[[Any], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(x: Value, i: Value) -> Any:
        return F.conv(
            constant(x, np.ones((1, 1, 5, 5))), constant(x, np.ones((1, 1, 3, 3))),
            stride=(1, 1), pre_padding=(0, 0), post_padding=(0, 0), dilation=(1, 1),
        )  # fmt: skip

    (node,) = network(build).nodes
    assert used(node) > 0
    monkeypatch.setattr(simplify, bound, used(node))
    assert kept(build) == []
    monkeypatch.setattr(simplify, bound, used(node) - 1)
    (event,) = kept(build)
    assert why in event.verdict


def kept(build: Build) -> Log:
    """What fold says of what it leaves, which nobody computes here."""
    log: Log = []
    net = network(build)
    simplify.fold(net, log)
    verify(net)
    return log


def test_values_that_an_op_does_not_take_are_left_to_the_run() -> None:
    (event,) = kept(lambda x, i: F.embedding(constant(x, [5, -7], "int32"), constant(x, np.ones((3, 2)))))
    assert "it takes no such values" in event.verdict


# -------------------------------------------------------------------------------------------------------------- algebra


@pytest.mark.parametrize(
    "build",
    [
        lambda x, i: F.mul(x, 1), lambda x, i: F.mul(i, 1), lambda x, i: F.div(x, 1), lambda x, i: F.sub(x, 0),
        lambda x, i: F.neg(F.neg(i)), lambda x, i: F.cast(i, "int32"), lambda x, i: F.concat([i], 1),
        lambda x, i: F.permute(x, (0, -1)), lambda x, i: F.permute(F.permute(x, (1, 0)), (-1, -2)),
        lambda x, i: F.slice(i, (0, 0), (T, 6), (1, 1)),
    ],
)  # fmt: skip
def test_what_changes_nothing(build: Build) -> None:
    assert after(simplify.algebra, build) == []


@pytest.mark.parametrize(
    ("build", "left"),
    [
        (lambda x, i: F.div(1, x), ["div"]),
        (lambda x, i: F.sub(0, x), ["sub"]),
        (lambda x, i: F.sub(x, 1), ["sub"]),
        (lambda x, i: F.div(x, 2), ["div"]),
        (lambda x, i: F.mul(x, -1), ["mul"]),
        (lambda x, i: F.neg(F.exp(F.neg(x))), ["neg", "exp", "neg"]),
        # through a dtype of as many bits, of fewer, or of another kind
        (lambda x, i: F.cast(F.cast(F.cast(x, "float16"), "bfloat16"), "float16"), ["cast"] * 3),
        (lambda x, i: F.cast(F.cast(F.cast(x, "float16"), "float32"), "float16"), ["cast"]),
        (lambda x, i: F.cast(F.cast(x, "float16"), "float32"), ["cast"] * 2),
        (lambda x, i: F.cast(F.cast(x, "int64"), "float32"), ["cast"] * 2),
        (lambda x, i: F.cast(F.cast(i, "float64"), "int32"), ["cast"] * 2),
        (lambda x, i: F.cast(F.cast(x, "float64"), "float16"), ["cast"] * 2),
        # as large as x, in another order
        (lambda x, i: F.slice(x, (0, 5), (T, 6), (1, -1)), ["slice"]),
        (lambda x, i: F.slice(x, (dims.add(T, -1), 0), (T, 6), (-1, 1)), ["slice"]),
        (lambda x, i: F.slice(x, (0, 1), (T, 5), (1, 1)), ["slice"]),
        (lambda x, i: F.permute(F.permute(F.reshape(x, (T, 2, 3)), (1, 2, 0)), (1, 2, 0)), ["reshape", "permute"]),
        (lambda x, i: F.permute(F.permute(F.reshape(x, (T, 2, 3)), (-1, 0, 1)), (0, -1, 1)), ["reshape", "permute"]),
        (lambda x, i: F.concat([x, x], 1), ["concat"]),
        (lambda x, i: F.reshape(F.reshape(x, (T, 2, 3)), (T, 3, 2)), ["reshape"]),
    ],
)
def test_what_changes_something(build: Build, left: list[str]) -> None:
    assert after(simplify.algebra, build) == left


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (((1, 4, 1)), ((1, 2, 2))), (((1, 3, 2)), ((2, 2, -1))), (((5, 5, -1)), ((1, 2, 2))),
        (((5, 3, -2)), ((2, 3, -1))), (((0, 6, 1)), ((5, 6, -1))), (((2, 1, 3)), ((0, 1, 1))),
    ],
)  # fmt: skip
def test_a_slice_of_a_slice(first: tuple[int, int, int], then: tuple[int, int, int]) -> None:
    """Start, size and step along the second dim, forward and backward."""
    def build(x: Value, i: Value) -> Value:
        for start, size, step in (first, then):
            x = F.slice(x, (0, start), (T, size), (1, step))
        return x

    assert after(simplify.algebra, build) == ["slice"]


def test_masks() -> None:
    """Only constants of bools that are the same everywhere decide; the result has the shape that it had."""
    def chosen(mask: Any) -> list[str]:
        return after(simplify.algebra, lambda x, i: F.where(constant(x, mask, "bool"), x, constant(x, 0.0)))

    assert chosen([True] * 6) == chosen([[True]]) == []
    assert chosen([True] * 5 + [False]) == chosen([False] * 5 + [True]) == ["where"]
    assert chosen([False] * 6) == ["expand"]
    row = ["slice", "expand"]
    assert after(simplify.algebra, lambda x, i: F.where(
        constant(x, [True], "bool"), F.slice(x, (0, 0), (1, 6), (1, 1)), x)) == row
    assert after(simplify.algebra, lambda x, i: F.where(F.greater(x, 0), x, 0.0)) == ["greater", "where"]
    for op, truth, left in (
        (F.logical_and, True, 0), (F.logical_and, False, 1), (F.logical_or, False, 0), (F.logical_or, True, 1)
    ):  # fmt: skip
        for mask in ([truth], [truth] * 6, [[truth]]):
            net = network(lambda x, i, op=op, mask=mask: op(constant(x, mask, "bool"), F.greater(x, 0)))
            simplify.algebra(net, [])
            assert [node.op.name for node in net.nodes[1:]] == [op.op.name] * left


@pytest.mark.parametrize(
    ("numbers", "shapes"),
    [
        ([2.5] * 6, [(T, 6), ()]), ([2.5] * 5 + [2.0], [(T, 6), (6,)]), ([0.0] * 5 + [-0.0], [(T, 6), (6,)]),
        ([np.nan] * 6, [(T, 6), (6,)]), ([np.inf] * 6, [(T, 6), ()]), ([[-0.0]], [(T, 6), ()]), (2.5, [(T, 6), ()]),
    ],
)  # fmt: skip
def test_numbers_of_one_bit_pattern(numbers: Any, shapes: list[Any]) -> None:
    net = network(lambda x, i: F.add(x, constant(x, numbers)))
    want, log = interpret(net, FEEDS), []
    simplify.uniform(net, log)
    assert [v.shape for v in verify(net).nodes[0].inputs] == shapes
    assert interpret(net, FEEDS)["y0"].tobytes() == want["y0"].tobytes()
    assert len(log) == (np.shape(numbers) != () and shapes[1] == ())


def test_what_a_constant_of_equal_elements_is_needed_for() -> None:
    """The shape of the result, an op that is none of elements, the only operand; each of several is looked at."""
    for build, shapes in (
        (lambda x, i: F.add(F.slice(x, (0, 0), (1, 6), (1, 1)), constant(x, np.ones((4, 6)))), [(1, 6), (4, 6)]),
        (lambda x, i: F.concat([x, constant(x, np.ones((4, 6)))], 0), [(T, 6), (4, 6)]),
        (lambda x, i: F.exp(constant(x, [1.0, 1.0])), [(2,)]),
        (lambda x, i: F.where(F.greater(x, 0), constant(x, [2.0] * 6), constant(x, [3.0] * 6)), [(T, 6), (), ()]),
        (lambda x, i: F.add(constant(x, np.ones((0, 6))), F.slice(x, (0, 0), (0, 6), (1, 1))), [(0, 6), (0, 6)]),
    ):
        net = network(build)
        simplify.uniform(net, [])
        assert [v.shape for v in verify(net).nodes[-1].inputs] == shapes


# ------------------------------------------------------------------------------------------------- reversals and sizes


@pytest.mark.parametrize(
    ("starts", "sizes", "strides", "left"),
    [
        ((0, 5), (T, 6), (1, -1), ["slice", "iota", "take"]),
        ((0, 5), (T, 3), (1, -2), ["slice", "iota", "take"]),
        ((3, 1), (4, 5), (-1, 1), ["slice", "iota", "take"]),
        ((3, 4), (2, 2), (-2, -3), ["slice", "iota", "take", "iota", "take"]),
        ((dims.add(T, -1), 2), (T, 2), (-1, 2), ["slice", "iota", "take"]),
        ((1, 1), (2, 2), (2, 3), ["slice"]),
    ],
)  # fmt: skip
def test_steps_below_zero(starts: Any, sizes: Any, strides: Any, left: list[str]) -> None:
    """They are indices, along their dims alone; what walks forward stays a view."""
    assert after(simplify.reversals, lambda x, i: F.slice(x, starts, sizes, strides)) == left


@pytest.mark.parametrize(
    ("attributes", "left"),
    [
        ({"dtype": "int32"}, ["iota"]), ({"dtype": "int64", "start": 7, "step": -3}, ["iota"]),
        ({"dtype": "float32", "start": 7}, ["iota"]), ({"dtype": "float64", "step": 2}, ["iota"]),
        ({"dtype": "int8", "start": 7, "step": -3}, ["iota", "cast"]),
        ({"dtype": "uint16", "start": 7, "step": 3}, ["iota", "cast"]),
        ({"dtype": "int32", "start": T, "step": -2}, ["iota", "expand", "reduce_sum", "add", "cast"]),
        ({"dtype": "float32", "start": T}, ["iota", "expand", "reduce_sum", "add", "cast"]),
        ({"dtype": "int64", "start": dims.add(T, -1)}, None),
        ({"dtype": "int64", "start": dims.add(T, -9), "step": 2}, None),
        ({"dtype": "int16", "start": dims.mul(T, -3), "step": 2}, None),
    ],
)
def test_numbers_in_order(attributes: dict[str, Any], left: list[str] | None) -> None:
    """Kernels write some dtypes from known starts; a start that only a run knows may be negative."""
    both = ["iota", "expand", "reduce_sum", "expand", "reduce_sum", "sub", "add", "cast"]
    found = after(simplify.sizes, lambda x, i: F.iota(T, **attributes) + constant(x, 0, attributes["dtype"]))
    assert found == [*(both if left is None else left), "add"]


@pytest.mark.parametrize(
    ("build", "left"),
    [
        (lambda x: (F.neg(x), lambda y: F.neg(y)), ["neg"]),
        (lambda x: (F.cast(x, "float64"), lambda y: F.cast(y, "float32")), ["cast"]),
        (lambda x: (F.reshape(x, (T, 2, 3)), lambda y: F.reshape(y, (T, 6))), ["reshape"]),
        (lambda x: (F.permute(x, (1, 0)), lambda y: F.permute(y, (1, 0))), ["permute"]),
        (lambda x: (F.slice(x, (0, 1), (T, 4), (1, 1)), lambda y: F.slice(y, (0, 1), (T, 2), (1, 2))), ["slice"] * 2),
    ],
)
def test_pairs_whose_first_is_read_elsewhere_too(build: Any, left: list[str]) -> None:
    """They cost nothing more: the second one reads what the first one read."""
    def both(x: Value, i: Value) -> Any:
        first, then = build(x)
        return F.exp(first), then(first)

    assert sorted(after(simplify.algebra, both)) == sorted([*left, "exp"])


def test_ops_on_numbers_that_are_expanded() -> None:
    """A mask of zeros in another type, and what is computed of it, is a number; what is expanded of data is not."""
    def numbers(x: Value, i: Value) -> Any:
        zeros = F.expand(x.network.constant(np.array([[0.25]], np.float32)), (T, 6))
        return F.where(F.expand(x.network.constant(np.array(True)), (T, 6)), F.cast(zeros, "bfloat16"),
                       F.cast(F.mul(zeros, 2.0), "bfloat16"))  # fmt: skip

    assert after(simplify.algebra, numbers) == ["expand"]
    columns = after(simplify.algebra, lambda x, i: F.mul(F.expand(F.slice(x, (0, 0), (T, 1), (1, 1)), (T, 6)), 2.0))
    assert columns == ["slice", "expand", "mul"]
