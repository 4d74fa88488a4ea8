"""Every op, on every case that it promises, through the whole compile path: the native core against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot import dtypes
from ingot.builder.build import build_network
from ingot.ir import OPS, Case, F, Network, Op, Spec, StateSpec, Value
from ingot.ir.interpret import interpret
from tests.ops.check import assert_close, make_network, sample, sizes_for
from tests.ops.draw import Draw

# What a program cannot hold: element types that the core does not store, and sizes that only attributes know.
NOT_STORED = {d for d in dtypes.ALL if d.safetensors is None or d.kind == "complex" or d.name.startswith("float8")}
CASES = [
    (cls, case)
    for _, cls in sorted(OPS.items())
    for case in cls.cases
    if case.error is None and not any(isinstance(s, StateSpec) for s in case.specs)
]
DRAWN = [cls for _, cls in sorted(OPS.items()) if cls.draw is not None]


def compare(cls: type[Op], case: Case, seed: int = 0) -> None:
    """The outputs of the engine of a network of this one call, and those of the interpreter."""
    network, _ = make_network(cls, case)
    if not network.outputs or any(v.dtype in NOT_STORED for v in network.values.values()):
        return
    sizes = sizes_for(case)
    arrays = sample(network.nodes[-1].op, case.specs, sizes, seed)
    named = [v for v in network.inputs if not v.name.startswith("shows_")]
    feeds = {v.name: a for v, a in zip(named, arrays, strict=True)}
    feeds |= {v.name: np.zeros(v.spec.evaluate(sizes), np.bool_) for v in network.inputs if v.name not in feeds}
    want = interpret(network, feeds)
    got = build_network(network, {}).run(feeds)
    assert got.keys() == want.keys()
    for name, array in want.items():
        assert_close(got[name], array, f"{cls.name}: {case.why}", 2 * cls.tolerance)


@pytest.mark.parametrize(("cls", "case"), CASES, ids=[f"{cls.name}-{case.why}" for cls, case in CASES])
def test_case(cls: type[Op], case: Case) -> None:
    compare(cls, case)


@pytest.mark.parametrize("cls", DRAWN, ids=[cls.name for cls in DRAWN])
@settings(max_examples=max(25, settings.default.max_examples // 4))
@given(data=st.data())
def test_random(cls: type[Op], data: st.DataObject) -> None:
    compare(cls, cls.draw(Draw(data)), data.draw(st.integers(0, 9)))


def test_a_network_of_many_kinds_of_calls() -> None:
    """Views of views, a product of computed operands, a host call whose size is bound at run time."""
    net = Network("mixed")
    x = net.input("x", Spec("float32", ("T", 12)))
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
