"""The interpreter: what it checks, how it carries states, and what taps see. Patterns and expressions beside it."""
from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

from ingot import dims, dtypes, ops
from ingot.dims import Dim
from ingot.errors import InputError, NetworkError, OpError, ValueFault
from ingot.ir import ExprBuilder, F, Hole, Network, Node, Pattern, Spec, StateSpec, interpret
from ingot.ir.expr import NoExpression, check, evaluate
from ingot.ir.interpret import learn


def net() -> Network:
    network = Network()
    x = network.input("x", Spec((Dim("T", 1, max=4), 3), "f32"))
    y = network.input("y", Spec(("T", 3), "f32"))
    network.output("z", ops.rms_norm(x + y, network.parameter("w", Spec((3,), "f32"))))
    return network


def ones(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.ones(shape, dtype)


@pytest.mark.parametrize(("feeds", "message"), [
    ({"x": ones(2, 3)}, r"missing \['y'\]"),
    ({"x": ones(2, 3), "y": ones(2, 3), "q": ones(1)}, r"unknown \['q'\]"),
    ({"x": ones(2, 3), "y": ones(2, 3, dtype=np.float64)}, "input y is float64, the network takes float32"),
    ({"x": ones(2, 3), "y": ones(3, 3)}, "input y has size 3 at dimension 0, but T is 2"),
    ({"x": ones(2, 3), "y": ones(2)}, r"input y has shape \[2\], the network takes f32\[T, 3\]"),
    ({"x": ones(2, 4), "y": ones(2, 3)}, r"input x has shape \[2, 4\]"),
    ({"x": ones(5, 3), "y": ones(5, 3)}, "T is 5, outside its bounds: T in 1..4"),
])
def test_feeds_are_checked(feeds: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        interpret(net(), feeds, {"w": ones(3)})


def test_parameters_are_checked() -> None:
    feeds = {"x": ones(2, 3), "y": ones(2, 3)}
    with pytest.raises(InputError, match=r"parameters of the network: missing \['w'\]"):
        interpret(net(), feeds)
    with pytest.raises(InputError, match=r"parameter w has shape \[4\]"):
        interpret(net(), feeds, {"w": ones(4)})


def test_taps_see_every_node() -> None:
    seen = []
    interpret(net(), {"x": ones(2, 3), "y": ones(2, 3)}, {"w": ones(3), "unused": ones(1)},
              taps=lambda node, results: seen.append((node.op.name, results[0].shape)))
    assert seen == [("add", (2, 3)), ("rms_norm", (2, 3))]


def test_states_are_replaced_by_their_last_version() -> None:
    network = Network()
    cache = network.state("kv.0", StateSpec("f32", heads=1, head_dim=2))
    k = network.input("k", Spec(("T", 1, 2), "f32"))
    slot = network.input("slot", Spec(("T",), "i32"))
    ops.kv_write(ops.kv_write(cache, k, k, slot), k * 2, k, slot + 1)
    before = np.zeros((1, 4, 2, 1, 2), np.float32)
    states = {"kv.0": before}
    interpret(network, {"k": ones(2, 1, 2), "slot": np.array([0, -1], np.int32)}, states=states)
    assert before.max() == 0, "the caller's array is not written"
    np.testing.assert_array_equal(states["kv.0"][0, :, 0, 0, 0], [2, 2, 0, 0])  # slots 0, then 1 and (−1 + 1 =) 0
    with pytest.raises(InputError, match=r"state kv.0 has shape .*\[num_blocks, block_size, 2, 1, 2\]"):
        interpret(network, {"k": ones(2, 1, 2), "slot": np.zeros(2, np.int32)}, states={"kv.0": ones(3)})


@pytest.mark.parametrize(("call", "message"), [
    (lambda: ops.embedding(np.array([7], np.int32), ones(7, 2)), "embedding: index 7 is out of range 0..6"),
    (lambda: ops.embedding(np.array([-1], np.int32), ones(7, 2)), "index -1 is out of range"),
    (lambda: ops.take(ones(3, 2), np.array([1, -2], np.int32)), "take: index -2 is out of range -1..2, at element 1"),
    (lambda: ops.gather(ones(3), np.array([3], np.int32)), "gather: index 3 is out of range -3..2"),
])
def test_values_out_of_range_are_faults(call: Any, message: str) -> None:
    with pytest.raises(ValueFault, match=message):
        call()


def attention(**changed: Any) -> Any:
    """One step of two requests: three rows and one, of which the last is padding; blocks of 2."""
    arrays = {"q": ones(4, 2, 4), "query_start": np.array([0, 2, 3], np.int32),
              "context_len": np.array([3, 1], np.int32), "block_table": np.array([[0, 1], [2, 0]], np.int32)} | changed
    network = Network()
    values = {k: network.input(k, Spec.of(a)) for k, a in arrays.items()}
    cache = network.state("kv", StateSpec("f32", heads=1, head_dim=4))
    network.output("y", ops.paged_attention(values["q"], cache, values["query_start"], values["context_len"],
                                            values["block_table"], scale=0.5))
    state = np.random.default_rng(0).standard_normal((3, 2, 2, 1, 4)).astype(np.float32)
    return interpret(network, arrays, states={"kv": state})["y"]


def test_padding_rows_are_zero_and_others_are_not() -> None:
    out = attention()
    assert not out[3].any() and out[:3].any(axis=(1, 2)).all()
    assert not attention(query_start=np.zeros(3, np.int32), context_len=np.zeros(2, np.int32)).any()


@pytest.mark.parametrize(("changed", "message"), [
    ({"query_start": np.array([0, 2, 5], np.int32)}, "must rise from 0 to at most 4"),
    ({"query_start": np.array([0, 3, 2], np.int32)}, "must rise from 0"),
    ({"query_start": np.array([1, 2, 3], np.int32)}, "must rise from 0"),
    ({"context_len": np.array([1, 1], np.int32)}, r"context_len \[1, 1\] must hold the \[2, 1\] rows"),
    ({"context_len": np.array([5, 1], np.int32)}, "fit the 2 blocks of 2"),
    ({"block_table": np.array([[0, 3], [2, 0]], np.int32)}, r"block_table\[0\] names a block outside the cache of 3"),
    ({"block_table": np.array([[0, -1], [2, 0]], np.int32)}, "names a block outside"),
])
def test_bad_metadata_are_faults(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueFault, match=message):
        attention(**changed)


def test_a_slot_outside_the_cache_is_a_fault() -> None:
    network = Network()
    k = network.input("k", Spec((1, 1, 2), "f32"))
    cache = network.state("kv", StateSpec("f32", heads=1, head_dim=2))
    ops.kv_write(cache, k, k, network.input("s", Spec((1,), "i32")))
    with pytest.raises(ValueFault, match=r"kv_write\(cache=.*slot 8 of token 0 is outside the cache of 8 slots"):
        interpret(network, {"k": ones(1, 1, 2), "s": np.array([8], np.int32)},
                  states={"kv": np.zeros((2, 4, 2, 1, 2), np.float32)})


def test_a_loop_that_does_not_end_ends() -> None:
    forever = ops.control.branch(lambda i: F.equal(i, i), Spec((), "i32"))
    count = ops.control.branch(lambda i: i + 1, Spec((), "i32"))
    with pytest.raises(ValueFault, match="still holds after 10 rounds"):
        ops.while_loop(np.array(0, np.int32), condition=forever, body=count, limit=10)


# ------------------------------------------------------------------------------------------------ patterns
def test_a_pattern_records_calls() -> None:
    pattern = Pattern.record(lambda gate, up: ops.mul(ops.silu(gate), up) * 0.5)
    assert [n.op.name for n in pattern.nodes] == ["silu", "mul", "mul"]
    assert list(pattern.holes) == ["gate", "up"] and pattern.roots[0].node is pattern.nodes[-1]
    assert [c.array for c in pattern.constants] == [0.5]


def test_a_pattern_leaves_attributes_open() -> None:
    pattern = Pattern.record(lambda x, w: ops.rms_norm(x, w, eps=Hole("eps")))
    assert pattern.nodes[0].op.eps == Hole("eps")  # type: ignore[attr-defined]
    both = Pattern.record(lambda p, f: ops.rope_table(p, f))
    assert len(both.roots) == 2


def test_a_pattern_knows_no_shapes() -> None:
    with pytest.raises(OpError, match="a pattern's values have no shape.*`when`"):
        Pattern.record(lambda x: ops.reshape(x, x.shape))
    with pytest.raises(OpError, match="must return results of ops"):
        Pattern.record(lambda x: (ops.exp(x), x))
    with pytest.raises(OpError, match="must return results of ops"):
        Pattern.record(lambda x: x)


# ------------------------------------------------------------------------------------------------ expressions
def test_integer_steps_wrap_and_equal_steps_are_shared() -> None:
    e = ExprBuilder()
    x = e.input(0, dtypes.int8)
    e.output(x * x + x * x)
    assert e.json()["steps"] == [["input", "int64", 0], ["mul", "int64", 0, 0], ["wrap", "int64", 1, "int8"],
                                 ["add", "int64", 2, 2], ["wrap", "int64", 3, "int8"]]
    (got,) = evaluate(e.json(), [np.array([100], np.int8)], [dtypes.int8])
    assert got == np.array([100], np.int8) * np.int8(100) * np.int8(2)


@pytest.mark.parametrize("dtype", [dtypes.complex64, dtypes.int4, dtypes.float8_e5m2])
def test_types_without_expressions_say_so(dtype: dtypes.DType) -> None:
    with pytest.raises(NoExpression):
        ExprBuilder().input(0, dtype)


GOOD = ["input", "float32", 0]


@pytest.mark.parametrize(("expr", "message"), [
    ([], "an object of steps and outputs"),
    ({"steps": [], "outputs": [0]}, "1 to 256 steps"),
    ({"steps": [GOOD] * 257, "outputs": [0]}, "1 to 256 steps"),
    ({"steps": [GOOD], "outputs": [1]}, "the index of a step"),
    ({"steps": [GOOD], "outputs": []}, "1 to 16 outputs"),
    ({"steps": [["input", "float32", 64]], "outputs": [0]}, "number of an operand below 64"),
    ({"steps": [["input", "float16", 0]], "outputs": [0]}, "step 0.*a step is"),
    ({"steps": [GOOD, ["exp", "float32", 1]], "outputs": [0]}, "step 1.*indices of earlier steps"),
    ({"steps": [GOOD, ["expo", "float32", 0]], "outputs": [0]}, "no operation 'expo' of class float32"),
    ({"steps": [GOOD, ["and", "float32", 0, 0]], "outputs": [0]}, "no operation 'and'"),
    ({"steps": [GOOD, ["add", "float32", 0]], "outputs": [0]}, "add of class float32 does not take"),
    ({"steps": [GOOD, ["add", "int64", 0, 0]], "outputs": [0]}, "add of class int64 does not take"),
    ({"steps": [GOOD, ["lt", "float32", 0, 0]], "outputs": [0]}, "lt of class float32"),
    ({"steps": [GOOD, ["where", "float32", 0, 0, 0]], "outputs": [0]}, "where of class float32"),
    ({"steps": [GOOD, ["round", "float32", 0, "int8"]], "outputs": [0]}, "round of class float32"),
    ({"steps": [["const", "int64", 1.5]], "outputs": [0]}, "not a int64 number"),
    ({"steps": [["const", "bool", 1]], "outputs": [0]}, "not a bool number"),
])
def test_malformed_expressions_are_refused(expr: Any, message: str) -> None:
    with pytest.raises(NetworkError, match=message):
        check(expr)


def test_a_result_lives_as_long_as_it_is_needed() -> None:
    net = Network()
    first = net.input("x", Spec((4,), "f32")).exp()
    second = F.neg(first)
    net.outputs["y"] = F.add(F.sqrt(F.abs(second)), second)
    made: dict[str, Any] = {}
    alive: list[list[str]] = []

    def note(node: Node, results: Any) -> None:
        made[node.op.name] = weakref.ref(results[0])
        alive.append([name for name, result in made.items() if result() is not None])

    interpret(net, {"x": np.ones(4, np.float32)}, taps=note)
    assert alive == [["exp"], ["exp", "neg"], ["neg", "abs"], ["neg", "abs", "sqrt"], ["neg", "sqrt", "add"]]


def test_a_size_below_zero_names_the_input() -> None:
    net = Network()
    x = net.input("x", Spec(("N",), "f32"))
    rest = net.input("rest", Spec((dims.add(x.shape[0], -5),), "f32"))
    net.outputs["y"] = F.neg(rest)
    with pytest.raises(InputError, match=r"rest"):
        interpret(net, {"x": np.ones(3, np.float32), "rest": np.ones(0, np.float32)})


def test_a_size_that_a_run_shows_is_held_to_its_bound() -> None:
    net = Network()
    net.outputs["y"] = y = F.nonzero(net.input("x", Spec((4,), "f32")))
    node = net.nodes[0]
    (bound,) = (d for d in y.shape if isinstance(d, Dim))
    assert bound.max == 4
    sizes: dict[str, int] = {}
    learn(node, y.spec, (1, 4), (bound,), sizes)
    assert sizes == {bound.name: 4}
    with pytest.raises(ValueFault, match="is 5, above its bound 4"):
        learn(node, y.spec, (1, 5), (bound,), {})
