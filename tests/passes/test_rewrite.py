"""Rules: what a pattern matches, when it is refused, and what is left of the network."""

from __future__ import annotations

from typing import Any

import pytest

from ingot import dtypes
from ingot.errors import NetworkError
from ingot.ir import F, Hole, Network, Spec
from ingot.ir.verify import verify
from ingot.passes.rewrite import Log, Rule, apply
from tests.passes.small import ops_of, vector


def silu_rule(**more: Any) -> Rule:
    return Rule("silu", lambda x: F.mul(x, F.sigmoid(x)), lambda x: F.silu(x), **more)


def test_a_rule_matches_in_either_order() -> None:
    for build in (lambda x: F.mul(x, F.sigmoid(x)), lambda x: F.mul(F.sigmoid(x), x)):
        net, log = vector(build), []
        assert apply(net, [silu_rule()], log) == 1
        assert ops_of(verify(net)) == ["silu"] and log[-1].verdict == "rewritten"


def test_a_rule_that_refuses_says_why_once() -> None:
    net, log = vector(lambda x: F.mul(x, F.sigmoid(x))), []
    rule = silu_rule(when=lambda x: x.dtype is dtypes.bfloat16 or f"{x.dtype} is not bf16")
    assert apply(net, [rule], log) == 0
    assert [str(e) for e in log] == ["silu: %1 = mul: f32 is not bf16"]


def test_a_rule_that_does_not_hold_says_nothing() -> None:
    net, log = vector(lambda x: F.mul(x, F.sigmoid(x))), []
    assert apply(net, [silu_rule(when=lambda x: False)], log) == 0 and log == []


def test_what_is_read_elsewhere_is_not_taken() -> None:
    net, log = vector(lambda x: F.mul(x, F.sigmoid(x))), []
    net.outputs["z"] = F.exp(net.nodes[0].output)
    assert apply(net, [silu_rule()], log) == 0 and "is read elsewhere" in log[-1].verdict
    assert apply(net, [silu_rule(shared=True)], log) == 1
    assert sorted(ops_of(verify(net))) == ["exp", "sigmoid", "silu"]


def test_holes_stand_for_attributes() -> None:
    rule = Rule(
        "norm twice",
        lambda x: F.rms_norm(F.rms_norm(x, eps=Hole("inner")), eps=Hole("outer")),
        lambda x, inner, outer: F.rms_norm(x, eps=inner + outer),
    )
    net = vector(lambda x: F.rms_norm(F.rms_norm(x, eps=1.0), eps=2.0))
    apply(net, [rule], [])
    assert [n.op.eps for n in verify(net).nodes] == [3.0]  # type: ignore[attr-defined]
    same = Rule("equal", lambda x: F.rms_norm(F.rms_norm(x, eps=Hole("e")), eps=Hole("e")), lambda x: x)
    assert apply(vector(lambda x: F.rms_norm(F.rms_norm(x, eps=1.0), eps=2.0)), [same], []) == 0


def test_constants_in_a_pattern_match_numbers() -> None:
    rule = Rule("double", lambda x: F.mul(x, 2), lambda x: F.add(x, x))
    assert apply(vector(lambda x: x * 2), [rule], []) == 1
    assert apply(vector(lambda x: x * 3), [rule], []) == 0


def test_what_a_rule_replaced_is_given_to_no_other() -> None:
    rules = [Rule(name, lambda x: F.mul(x, 2), lambda x: F.add(x, x)) for name in ("first", "second")]
    assert apply(vector(lambda x: x * 2), rules, []) == 1


def test_rules_that_never_rest_are_an_error() -> None:
    rules = [
        Rule("there", lambda a, b: F.sub(a, b), lambda a, b: F.add(a, F.neg(b))),
        Rule("back", lambda a, b: F.add(a, F.neg(b)), lambda a, b: F.sub(a, b)),
    ]
    with pytest.raises(NetworkError, match="still rewriting"):
        apply(vector(lambda x: x - x), rules, [])


def test_a_node_that_one_rule_took_is_gone_for_the_next() -> None:
    net = Network("net")
    net.outputs["y"] = F.neg(F.exp(net.input("x", Spec((3,), "float32"))))
    rules = [Rule(name, lambda x: F.neg(F.exp(x)), made) for name, made in (
        ("first", lambda x: F.sqrt(x)), ("second", lambda x: F.abs(x)))]  # fmt: skip
    log: Log = []
    assert apply(net, rules, log) == 1
    assert [node.op.name for node in net.nodes] == ["sqrt"] and [event.rule for event in log] == ["first"]
