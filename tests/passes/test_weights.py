"""Weights made of weights: names, recipes that are there already, and rows that are known while an engine is built."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ingot.ir import F, Network, Spec, Value
from ingot.ir.evaluation import evaluate
from ingot.ir.interpret import interpret
from ingot.ir.recipe import source
from ingot.ir.verify import verify
from ingot.passes import weights
from ingot.passes.rewrite import Log
from ingot.passes.weights import MAX_JOINED, MAX_LOOKED_UP, derive, joined_name, recipe_of, stored, unrounded


def parameter(net: Network, name: str, *shape: int, dtype: str = "float32") -> Value:
    return net.parameter(name, Spec(shape, dtype))


def test_a_recipe_is_made_once() -> None:
    """Of one name or another; another recipe, or a value that is no parameter, gets a number."""
    net = Network("net")
    a, b = parameter(net, "a", 2, 3), parameter(net, "b", 2, 3)
    first = derive(net, "transpose", [a], "t", axes=(1, 0))
    assert (first.name, first.spec) == ("t", Spec((3, 2), "float32"))
    assert derive(net, "transpose", [a], "t", axes=(1, 0)) is first
    second = derive(net, "transpose", [b], "t", axes=(1, 0))
    third = derive(net, "concat", [a, b], "t", axis=0)
    assert (second.name, third.name, third.shape) == ("t.1", "t.2", (4, 3))
    assert derive(net, "transpose", [b], "t", axes=(1, 0)) is second
    taken = net.input("x", Spec((1,), "float32"))
    assert stored(net, recipe_of(a), a.spec, "x").name == "x.1" and net.values["x"] is taken


def test_constants_are_computed_at_once() -> None:
    net = Network("net")
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = derive(net, "transpose", [net.constant(array)], "t", axes=(1, 0))
    assert found.kind == "constant" and found.array.tolist() == array.T.tolist()
    both = derive(net, "concat", [net.constant(array), net.constant(array + 9)], "t", axis=0)
    assert both.array.tolist() == [*array.tolist(), *(array + 9).tolist()]


def test_the_recipe_before_it_was_rounded() -> None:
    """The last cast goes where it is the last step of all; steps before it stay."""
    array = np.float64([1 + 2.0**-20, -3.0])
    net = Network("net")
    value = parameter(net, "w", 2, dtype="bfloat16")
    assert evaluate(recipe_of(value), {"w": array}).astype(np.float32).tolist() == [1.0, -3.0]
    assert evaluate(unrounded(value), {"w": array}).tolist() == np.float32(array).tolist()
    value.recipe = source("w").then("cast", dtype="bfloat16").then("reshape", shape=(2, 1))
    rounded = evaluate(unrounded(value), {"w": array})
    assert (rounded.dtype, rounded.tolist()) == (np.float32, [[1.0], [-3.0]])
    value.recipe = source("w")
    assert evaluate(unrounded(value), {"w": array}).dtype == np.float32


@pytest.mark.parametrize(("length", "wanted"), [(MAX_JOINED // 2, None), (MAX_JOINED // 2 + 1, "_and_1_more")])
def test_joined_names_have_a_limit(length: int, wanted: str | None) -> None:
    names = ["a" * length, "b" * (MAX_JOINED // 2)]
    assert joined_name(names) == ("_".join(names) if wanted is None else names[0] + wanted)


def looked_up(table: tuple[int, ...], index: Any, axis: int | None = None, more: bool = False) -> tuple[list[str], str]:
    """The ops that are left of one lookup (of an embedding, or along an axis), and what was noted."""
    net = Network("net")
    log: Log = []
    weight = parameter(net, "w", *table)
    indices = net.constant(np.asarray(index, np.int32))
    net.outputs["y"] = F.embedding(indices, weight) if axis is None else F.take(weight, indices, axis)
    if more:
        net.outputs["z"] = F.exp(weight)
    array = np.random.default_rng(0).standard_normal(table).astype(np.float32)

    def run() -> dict[str, Any]:
        return interpret(net, {}, {v.name: evaluate(recipe_of(v), {"w": array}) for v in net.parameters})

    want = run()["y"]
    weights.lookups(net, log)
    assert run()["y"].tobytes() == want.tobytes()
    return [node.op.name for node in verify(net).nodes], log[-1].verdict if log else ""


def test_rows_that_are_known() -> None:
    for table, index, axis in (
        ((9, 4), [0, 8, 3], None), ((9, 4), [[1, 2], [3, 4]], None), ((9, 4), [3], 1), ((9, 4), [[0, 3]], -1),
        ((9, 4), 5, None), ((9, 2, 3), [[1, 0], [0, 1]], 1), ((9, 1), [7] * MAX_LOOKED_UP, None),
    ):  # fmt: skip
        assert looked_up(table, index, axis) == ([], "")


@pytest.mark.parametrize("last", [2, 3])
def test_a_table_in_parts(last: int) -> None:
    """Directions of a layer that lie in one tensor are stored one by one; not where more than all of it is read."""
    net = Network("net")
    weight = parameter(net, "w", 2, 6, 4)
    for i in range(last):
        one = F.take(weight, net.constant(np.array(i % 2)), axis=0)
        net.outputs[f"y{i}"] = F.exp(F.take(one, net.constant(np.array([4, 5, 2, 3, 0, 1])), axis=0))
    array = np.random.default_rng(0).standard_normal((2, 6, 4)).astype(np.float32)

    def run() -> dict[str, Any]:
        return interpret(net, {}, {v.name: evaluate(recipe_of(v), {"w": array}) for v in net.parameters})

    want = run()
    weights.lookups(net, [])
    found = run()
    assert all(found[name].tobytes() == want[name].tobytes() for name in want)
    takes = sum(node.op.name == "take" for node in verify(net).nodes)
    assert takes == (0 if last == 2 else 6)


def test_rows_that_are_left_to_a_run() -> None:
    assert looked_up((9, 1), [7] * (MAX_LOOKED_UP + 1)) == (["embedding"], f"it has {MAX_LOOKED_UP + 1} indices")
    assert looked_up((9, 4), np.zeros(0)) == (["embedding"], "it has 0 indices")
    assert looked_up((9, 4), [1], more=True) == (["embedding", "exp"], "the table is read elsewhere too")
    assert "outside of the table" in looked_up((9, 4), [-1], 1)[1]
    for computed in (True, False):
        net = Network("net")
        table = net.input("t", Spec((9, 4), "float32")) if computed else parameter(net, "w", 9, 4)
        index = net.constant(np.zeros(2, np.int32)) if computed else net.input("i", Spec((2,), "int32"))
        net.outputs["y"] = F.embedding(index, table)
        weights.lookups(net, [])
        assert [node.op.name for node in net.nodes] == ["embedding"]
