"""Comparisons of positions are constants where every size decides them alike, and stay where one does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ingot import dtypes
from ingot.backends.cpu import CPU
from ingot.dims import Dim
from ingot.ir import F, Network, Spec
from ingot.ir.interpret import interpret
from ingot.passes import known, pipeline, simplify

T = Dim("T")
SIZES = (0, 1, 2, 7)
Build = Callable[[Any, Any], Any]


def network(build: Build) -> Network:
    """build(x, i) of x: f32[T, 4] and a counter i: i64[T]."""
    net = Network("net")
    x = net.input("x", Spec((T, 4), "float32"))
    i = F.add(F.iota(size=T, dtype=dtypes.int64), net.constant(np.array(0)))
    net.outputs["y"] = F.logical_or(build(x, i), F.reshape(F.greater(x, 9.0), (T, 4)))
    return net


def later(i: Any) -> Any:
    """A counter of the other dimension."""
    return F.reshape(i, (T, 1))


ALWAYS: dict[str, Build] = {
    "positions and 0": lambda x, i: F.greater_equal(later(i), 0),
    "positions and their number": lambda x, i: F.less(later(i), F.reshape(F.iota(
        size=1, start=T, dtype=dtypes.int64), ())),
    "never below": lambda x, i: F.logical_not(F.less(later(i), 0)),
    "a counter and itself, shifted": lambda x, i: F.less(later(i), F.add(later(i), 2)),
    "a counter and its slice": lambda x, i: F.equal(F.slice(later(i), (0, 0), (T, 1), (1, 1)), later(i)),
    "expanded, turned": lambda x, i: F.not_equal(F.permute(F.expand(F.reshape(i, (1, T)), (4, T)), (1, 0)), -1),
    "a constant that counts": lambda x, i: F.less_equal(np.arange(4), F.add(later(i), 3)),
    "counting down": lambda x, i: F.greater(F.sub(later(F.neg(i)), -1), F.sub(later(F.neg(i)), 0)),
    "int32 within bounds": lambda x, i: F.less(F.cast(x.network.constant(np.arange(1, 5)), dtypes.int32), 5),
}  # fmt: skip
SOMETIMES: dict[str, Build] = {
    "positions and 1": lambda x, i: F.greater_equal(later(i), 1),
    "causal": lambda x, i: F.less_equal(np.arange(4), later(i)),
    "positions and one less than their number": lambda x, i: F.less(later(i), F.reshape(F.iota(
        size=1, start=T - 1, dtype=dtypes.int64), ())),
    "a constant that does not count": lambda x, i: F.less_equal(np.array([0, 1, 2, 9]), F.add(later(i), 3)),
    "reshaped otherwise": lambda x, i: F.less(F.reshape(np.arange(8), (4, 2))[:, 0], F.add(later(i), 6)),
    "int32 that may wrap": lambda x, i: F.greater_equal(F.cast(later(i), dtypes.int32), 0),
    "floats": lambda x, i: F.greater_equal(F.cast(later(i), dtypes.float32), 0.0),
    "data": lambda x, i: F.greater_equal(F.cast(x, dtypes.int64), 0),
    "every second, and each": lambda x, i: F.greater_equal(F.add(later(i), later(i)), F.add(later(i), 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", [*ALWAYS, *SOMETIMES])
def test_comparisons(name: str) -> None:
    net = network({**ALWAYS, **SOMETIMES}[name])
    want = {size: interpret(net, feeds(size))["y"] for size in SIZES}
    before = compared(net)
    known.comparisons(net, [])
    assert compared(net) == (before - 1 if name in ALWAYS else before)
    for size, array in want.items():
        np.testing.assert_array_equal(interpret(net, feeds(size))["y"], array)


def feeds(size: int) -> dict[str, Any]:
    return {"x": 5 * np.random.default_rng(size).standard_normal((size, 4)).astype(np.float32)}


def compared(net: Network) -> int:
    return sum(n.op.name in ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal") for n in net.nodes)


def test_a_value_read_twice_at_every_step_is_followed_once() -> None:
    def build(x: Any, i: Any) -> Any:
        y = later(i)
        for _ in range(30):
            y = F.add(y, y)
        return F.greater_equal(y, 0)

    net = network(build)
    known.comparisons(net, [])
    assert compared(net) == 1


@pytest.mark.parametrize("hidden", [False, True])
def test_a_mask_that_hides_nothing_is_none(hidden: bool) -> None:
    """As transformers and torch.onnx write the mask of an encoder: positions of 0 and more, 0 and the least float."""
    net = Network("net")
    q, k, v = (net.input(name, Spec(("N", 2, T, 8), "float32")) for name in "qkv")
    seen = F.greater_equal(F.reshape(F.iota(size=T, dtype=dtypes.int64), (1, 1, 1, T)), int(hidden))
    low = np.array(np.finfo(np.float32).min)
    mask = F.where(F.logical_and(np.array(True), F.expand(seen, (q.shape[0], 1, T, T))), np.array(0, np.float32), low)
    net.outputs["y"] = F.matmul(F.softmax(F.add(F.matmul(q, k, transpose_b=True), mask), axis=-1), v)
    lowered = pipeline.lower(net, CPU)
    (attention,) = [n for n in lowered.nodes if "attention" in n.op.name]
    assert len(attention.inputs) == (4 if hidden else 3)
    rng = np.random.default_rng(0)
    x = {name: rng.standard_normal((1, 2, 3, 8)).astype(np.float32) for name in "qkv"}
    np.testing.assert_allclose(interpret(lowered, x)["y"], interpret(net, x)["y"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", ["logical_and", "logical_or"])
def test_what_a_constant_of_bools_does_not_change(op: str) -> None:
    net = Network("net")
    x = net.input("x", Spec((T, 1), "bool"))
    same = F.expand(net.constant(np.array(op == "logical_and")), (1, 3))
    net.outputs["y"] = getattr(F, op)(F.logical_not(F.logical_not(x)), same)
    given = {"x": np.array([[True], [False]])}
    want = interpret(net, given)["y"]
    simplify.algebra(net, [])
    assert [n.op.name for n in net.nodes] == ["expand"]
    np.testing.assert_array_equal(interpret(net, given)["y"], want)
