"""The verifier: each rule broken once, and all offenders at once."""
from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ingot import ops
from ingot.dims import Dim
from ingot.errors import NetworkError
from ingot.ir import Network, Node, Spec, StateSpec, Value, verify
from ingot.ir.op import infer
from ingot.ir.verify import MAX_NESTING, SHOWN, Sound, held, problems, same
from ingot.ops.control import branch
from ingot.ops.elementwise import Neg
from ingot.ops.indexing import Iota
from ingot.ops.reduce import Softmax


def sound() -> Network:
    """A network that keeps every rule: a state, a nested network, a constant, an unbacked dim."""
    net = Network()
    x = net.input("x", Spec(("T", 4), "f32"))
    w = net.parameter("w", Spec((4,), "f32"))
    cache = net.state("kv", StateSpec("f32", heads=1, head_dim=4))
    k = x.view(0, 1, 4)
    after = ops.kv_write(cache, k, k, net.input("slot", Spec(("T",), "i32")))
    step = [net.input(n, Spec(s, "i32")) for n, s in (("start", (2,)), ("context", (1,)), ("table", (1, 8)))]
    net.output("attended", ops.paged_attention(k, after, *step, scale=0.5))
    net.output("y", ops.rms_norm(x * 2, w))
    net.output("hits", ops.nonzero(x > 0))
    flip = branch(lambda y: -y, x)
    net.output("chosen", ops.cond(np.array(True), x, then_branch=flip, else_branch=flip))
    return net


def first(net: Network, name: str) -> Node:
    return next(n for n in net.nodes if n.op.name == name)


def swap(net: Network, a: str, b: str) -> None:
    i, j = net.nodes.index(first(net, a)), net.nodes.index(first(net, b))
    net.nodes[i], net.nodes[j] = net.nodes[j], net.nodes[i]


def set_inputs(net: Network, name: str, *inputs: Value) -> None:
    net.rewire(first(net, name), inputs)


def cycle(net: Network) -> None:
    norm = first(net, "rms_norm")
    net.rewire(norm, (norm.output, norm.inputs[1]))


def foreign(net: Network) -> None:
    other = Network("other").input("z", Spec(("T", 4), "f32"))
    set_inputs(net, "greater", other, net.constants[0])


def second_consumer(net: Network) -> None:
    attention = first(net, "paged_attention")
    net.emit(attention.op, attention.inputs)


def set_attribute(net: Network, name: str, attribute: str, value: Any) -> None:
    object.__setattr__(first(net, name).op, attribute, value)


def unregistered(net: Network) -> None:
    class Unknown(Neg):  # type: ignore[misc]
        name = "unknown"
    node = first(net, "greater")
    net.nodes.insert(net.nodes.index(node), Node(Unknown(), (net.inputs[0],), ()))


def nested(net: Network) -> None:
    inner: Any = first(net, "cond").op
    inner.then_branch.nodes[0].op = Softmax(axis=7)


def nothing_binds(net: Network) -> None:
    net.add_node(Iota(size="N"), (), "")


def nest_deep(net: Network) -> None:
    nest(net, MAX_NESTING + 1)


def nest(net: Network, levels: int) -> None:
    """Adds a network in a network, so many levels of them."""
    x = net.inputs[0]
    plain = inner = branch(lambda y: -y, x)
    for _ in range(levels - 1):
        held = inner
        inner = branch(lambda y, held=held: ops.cond(np.array(True), y, then_branch=held, else_branch=plain), x)
    ops.cond(np.array(True), x, then_branch=inner, else_branch=plain)


BREAKS: list[tuple[Callable[[Network], Any], str]] = [
    (cycle, r"reads %\d+ before it is made \(a cycle, or nodes out of order\)"),
    (lambda n: swap(n, "mul", "rms_norm"), r"a cycle, or nodes out of order"),
    (foreign, "reads %z before it is made: nothing here makes it .it belongs to network other"),
    (second_consumer, r"state %\d+ is consumed a second time, after %\d+ = paged_attention; read the state"),
    (lambda n: set_attribute(n, "rms_norm", "eps", "small"), "attribute eps must be a float, not 'small'"),
    (lambda n: set_attribute(n, "reshape", "shape", [1, 4]), "attribute shape is not stored in its normal form"),
    (lambda n: set_attribute(n, "cond", "then_branch", None), "then_branch must be a Network"),
    (unregistered, "there is no op 'unknown'"),
    (lambda n: setattr(first(n, "mul").output, "spec", Spec((3,), "f32")), r"gives f32\[T, 4\], but its values are"),
    (lambda n: setattr(n.inputs[0], "spec", n.states[0].spec), r"input %x is state"),
    (lambda n: setattr(n.inputs[0], "spec", Spec(("T", 4), "i32")), "operands are|x must be|differ|is int32"),
    (lambda n: setattr(first(n, "mul").output, "name", "x"), "two values are named %x"),
    (lambda n: n.values.update(old=n.inputs[0]), "%old is the name of %x"),
    (lambda n: n.values.pop("x"), "%x is not in the network's table of values"),
    (lambda n: n.nodes.append(first(n, "mul")), r"makes %\d+ a second time"),
    (lambda n: setattr(first(n, "mul"), "inputs", (n.inputs[0], n.inputs[0])), r"%c\d+ lists %\d+ = mul as a user"),
    (lambda n: n.outputs.update(kv=first(n, "kv_write").output), "output kv: .* is a state; states persist"),
    (lambda n: n.outputs.update(z=Network("o").input("z", Spec((), "f32"))), "output z: %z is not a value of this"),
    (lambda n: setattr(n.constants[0], "array", np.zeros(3)), "constant %c0 is declared f32.., its data differ"),
    (lambda n: setattr(n.parameters[0], "spec", Spec(("T",), "f32")), "a weight's shape is known when it is built"),
    (lambda n: setattr(n.parameters[0], "kind", "input"), "%w is listed as parameter, but is a input"),
    (lambda n: n.dims.update(S=Dim("T")), "dim T is filed under S"),
    (lambda n: n.nodes.append(first(n, "nonzero")), "binds nonzero0, which is bound already"),
    (nothing_binds, "needs N, which no input has and no op before it binds"),
    (nested, r"then_branch: .*axis 7 is out of range"),
    (nest_deep, "networks nest deeper than"),
]


def test_a_sound_network_passes() -> None:
    net = sound()
    assert verify(net) is net
    nest(net, MAX_NESTING)
    assert verify(net) is net


@pytest.mark.parametrize(("damage", "message"), BREAKS)
def test_each_rule(damage: Callable[[Network], Any], message: str) -> None:
    net = sound()
    before = held(net)
    assert same(before, held(net))
    damage(net)
    assert not same(before, held(net))
    with pytest.raises(NetworkError, match=message) as raised:
        verify(net)
    assert raised.value.code == "network"


@pytest.mark.parametrize(("damage", "message"), BREAKS)
def test_what_was_sound_before_hides_no_rule(damage: Callable[[Network], Any], message: str) -> None:
    known: Sound = {}
    net = sound()
    verify(net, known)
    assert known
    damage(net)
    assert problems(net, sound=known) == problems(net)


def test_sound_nodes_are_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    net, known, asked = sound(), Sound(), list[str]()
    verify(net, known)

    def counted(op: Any, *rest: Any) -> Any:
        asked.append(op.name)
        return infer(op, *rest)

    monkeypatch.setattr(sys.modules[problems.__module__], "infer", counted)
    net.rewire(first(net, "rms_norm"), (net.inputs[0], net.parameters[0]))
    verify(net, known)
    assert asked.count("rms_norm") == 0  # its operands have the same shapes
    first(net, "rms_norm").op = dataclasses.replace(first(net, "rms_norm").op, eps=0.5)
    verify(net, known)
    assert asked.count("rms_norm") == 1


@pytest.mark.parametrize(("faults", "more"), [(SHOWN, ""), (SHOWN + 2, "2 more")])
def test_the_first_offenders_are_named(faults: int, more: str) -> None:
    net = Network("net")
    x = net.input("x", Spec((4,), "f32"))
    for i in range(faults):
        net.outputs[f"y{i}"] = ops.softmax(x, 0)
        object.__setattr__(net.nodes[-1].op, "axis", None)
    with pytest.raises(NetworkError) as raised:
        verify(net)
    assert str(raised.value).count("\n- ") == SHOWN and str(raised.value).endswith(more)
    assert ("… and" in str(raised.value)) == bool(more)


def test_all_offenders_at_once() -> None:
    net = sound()
    second_consumer(net)
    set_attribute(net, "rms_norm", "eps", "small")
    set_attribute(net, "paged_attention", "scale", None)
    assert len(problems(net)) >= 3
    with pytest.raises(NetworkError) as raised:
        verify(net)
    assert str(raised.value).count("\n- ") == len(problems(net))
