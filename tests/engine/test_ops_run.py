"""Every op, on every case that it promises, through the whole compile path: the native core against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot.builder.network import build_network
from ingot.errors import IngotError
from ingot.ir import OPS, Case, F, Network, Op, Spec, Value
from ingot.ir.interpret import interpret
from tests.ops.check import assert_close, make_network, sample, sizes_for
from tests.ops.draw import Draw

F32 = Spec((3,), "float32")
CASES = [(cls, case) for _, cls in sorted(OPS.items()) for case in cls.cases if case.error is None]
DRAWN = [cls for _, cls in sorted(OPS.items()) if cls.draw is not None]


def network_of(cls: type[Op], case: Case) -> Network:
    """A network of this one call, whose engine stores what the case says."""
    network, result = make_network(cls, case, cls.stored if case.stored is None else case.stored)
    if not network.nodes:  # all was known, and computed at once: here it is a call nevertheless
        network.output("y0", network.emit(cls(**case.attrs), ()))
    assert network.nodes and (network.outputs or network.states), f"{result} leaves nothing to build"
    return network


def compare(cls: type[Op], case: Case, seed: int = 0) -> None:
    """The engine of a network of this one call: natively or with host calls as declared, and its outputs are those of
    the interpreter. States are the language models' own; their kernels are compared in tests/kernels.
    """
    network = network_of(cls, case)
    if case.no_engine is not None:
        with pytest.raises(IngotError, match=case.no_engine):
            build_network(network, {})
        return
    sizes = sizes_for(case)
    arrays = sample(network.nodes[-1].op, case.specs, sizes, seed)
    given = {v.name: a for v, a in zip(network.nodes[-1].inputs, arrays, strict=True)}
    weights = {v.name: given[v.name] for v in network.parameters}
    engine = build_network(network, weights)
    host = cls.host if case.host is None else case.host
    calls = engine._native.host_calls("main")
    assert bool(calls) == bool(host), f"host calls: {calls}; {f'declared: {host}' if host else 'none is declared'}"
    if network.states:
        return
    feeds = {
        v.name: given[v.name] if v.name in given else np.zeros(v.spec.evaluate(sizes), np.bool_) for v in network.inputs
    }
    want, got = interpret(network, feeds, weights), engine.run(feeds)
    assert got.keys() == want.keys()
    for name, array in want.items():
        assert_close(got[name], array, f"{cls.name}: {case.why}", 2 * cls.tolerance)


@pytest.mark.sampled(4, by=lambda given: given["cls"])
@pytest.mark.parametrize(("cls", "case"), CASES, ids=[f"{cls.name}-{case.why}" for cls, case in CASES])
def test_case(cls: type[Op], case: Case) -> None:
    compare(cls, case)


@pytest.mark.parametrize("cls", DRAWN, ids=[cls.name for cls in DRAWN])
@settings(max_examples=max(25, settings.default.max_examples // 4))
@given(data=st.data())
def test_random(cls: type[Op], data: st.DataObject) -> None:
    compare(cls, cls.draw(Draw(data)), data.draw(st.integers(0, 9)))


def test_a_fallback_is_seen() -> None:
    """What is declared otherwise than it runs fails, both ways."""
    wide = next(case for case in OPS["conv"].cases if case.why == "float64 has no kernel")
    native, host = Case("x", (F32,)), Case("x", (F32,), host="said so")
    compare(OPS["relu"], native)
    compare(OPS["conv"], wide)
    with pytest.raises(AssertionError, match=r"host calls: \[\]; declared: said so"):
        compare(OPS["relu"], host)
    with pytest.raises(AssertionError, match=r"host calls: \['conv'\]; none is declared"):
        compare(OPS["conv"], wide._replace(host=""))


def test_a_network_of_many_kinds_of_calls() -> None:
    """Views of views, a product of computed operands, a host call whose size is bound at run time."""
    net = Network("mixed")
    x = net.input("x", Spec(("T", 12), "float32"))
    heads: Value = F.permute(F.reshape(x, ("T", 3, 4)), (1, 0, 2))
    scores = F.softmax(F.matmul(heads, heads, transpose_b=True) * 0.5)
    mixed = F.reshape(F.permute(F.matmul(scores, heads), (1, 0, 2)), ("T", 12))
    net.outputs["mixed"] = mixed + F.slice(x, (0, 0), ("T", 1), (1, 1))
    net.outputs["where"] = F.nonzero(F.greater(mixed, 0.1))
    net.outputs["same"] = x
    net.outputs["part"] = F.slice(x, (0, 2), ("T", 3), (1, 3))
    net.outputs["backwards"] = F.slice(x, (0, 11), ("T", 12), (1, -1))
    net.outputs["bytes"] = F.mul(F.iota(9, dtype="uint8", start=1), net.constant(np.array(3, np.uint8)))
    feeds: dict[str, Any] = {"x": np.random.default_rng(0).standard_normal((7, 12)).astype(np.float32)}
    want, got = interpret(net, feeds), build_network(net, {}).run(feeds)
    for name, array in want.items():
        assert_close(got[name], array, name)
