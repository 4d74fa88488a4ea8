"""Operands that are absent though others stand behind them: in networks, programs, kernels and host calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ingot.backends.cpu import CPU
from ingot.builder.network import build_network
from ingot.dims import Dim
from ingot.errors import IngotError, NetworkError, OpError, ProgramError
from ingot.ir import Eager, F, Network, Spec, verify
from ingot.ir.interpret import interpret
from ingot.ir.text import from_json, parse, to_json
from ingot.ops.host import HostCalls
from ingot.ops.norm import GroupNorm
from ingot.passes.clone import clone

Array = np.ndarray[Any, Any]
X = np.random.default_rng(0).standard_normal((3, 4, 6)).astype(np.float32)
BIAS = np.arange(6, dtype=np.float32)


def network_of(name: str, **attributes: Any) -> Network:
    """An op on x with a bias and without the weight that stands before it."""
    network = Network()
    x = network.input("x", Spec((Dim("B"), 4, 6), "float32"))
    bias = network.parameter("bias", Spec((6 if name == "layer_norm" else 4,), "float32"))
    network.output("y", getattr(F, name)(x, None, bias, **attributes))
    return verify(network)


OPS = {"layer_norm": {}, "group_norm": {"groups": 2}}


def wanted(name: str, x: Array, bias: Array) -> Array:
    wide = x.astype(np.float64)
    if name == "layer_norm":
        return (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5) + bias
    groups = wide.reshape(len(x), 2, 12)
    y = (groups - groups.mean(-1, keepdims=True)) / np.sqrt(groups.var(-1, keepdims=True) + 1e-5)
    return y.reshape(x.shape) + bias[:, None]


@pytest.mark.parametrize("name", OPS)
def test_an_operand_in_the_middle(name: str) -> None:
    network = network_of(name, **OPS[name])
    (node,) = network.nodes
    assert node.inputs[1] is network.absent and [v.name for v in node.given] == ["x", "bias"]
    assert f"{name}(%x, none, %bias)" in str(network) and to_json(network)["nodes"][0]["in"] == ["x", None, "bias"]
    bias = BIAS[: network.parameters[0].shape[0]]
    engine = build_network(network, {"bias": bias})
    assert engine._native.host_calls("main") == []
    copies = (network, clone(network), parse(str(network)), from_json(to_json(network)))
    for rows in (3, 1, 0):  # of a batch
        x = X[:rows]
        want = wanted(name, x, bias)
        for got in (engine.run({"x": x}), *(interpret(n, {"x": x}, {"bias": bias}) for n in copies)):
            np.testing.assert_allclose(got["y"], want, rtol=1e-5, atol=1e-5)
    eager, want = Eager(), wanted(name, X, bias)
    np.testing.assert_allclose(getattr(F, name)(X, None, bias, **OPS[name]), want, rtol=1e-5, atol=1e-5)
    value = getattr(F, name)(eager.feed("x", X), None, eager.feed("b", bias), **OPS[name])
    np.testing.assert_allclose(value.array, want, rtol=1e-5, atol=1e-5)


def test_an_engine_with_a_host_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupNorm, "decompose", None)
    engine = build_network(network_of("group_norm", groups=2), {"bias": BIAS[:4]})
    assert engine._native.host_calls("main") == ["group_norm"]
    np.testing.assert_allclose(engine.run({"x": X})["y"], wanted("group_norm", X, BIAS[:4]), rtol=1e-5, atol=1e-5)


def test_in_a_host_call() -> None:
    program = {
        "symbols": [],
        "buffers": [
            {"kind": "input", "name": "x", "dtype": "float32", "shape": [4, 6]},
            {"kind": "input", "name": "b", "dtype": "float32", "shape": [6]},
            {"kind": "temp", "dtype": "float32", "shape": [4, 6]},
        ],
        "calls": [
            {"host": "layer_norm", "version": 1, "in": [0, 1], "out": [2], "params": {"eps": 1e-5, "absent": [1]}},
        ],
    }
    (got,) = HostCalls(program)(0, [X[0], BIAS], [("float32", [4, 6])], [])
    np.testing.assert_allclose(got, wanted("layer_norm", X[:1], BIAS)[0], rtol=1e-5, atol=1e-5)
    for absent, message in (([0], "x must be given"), ([1, 1], "no places"), ([3], "no places"), ("1", "no list"),
                            ([True], "no list"), ([1, 2], "bias|takes|weight|x")):  # fmt: skip
        program["calls"][0]["params"] = {"eps": 1e-5, "absent": absent}  # type: ignore[index]
        with pytest.raises(ProgramError, match=message):
            HostCalls(program)


def test_what_has_to_be_there() -> None:
    network = Network()
    x = network.input("x", Spec((3,), "float32"))
    with pytest.raises(OpError, match="a must be given"):
        F.add(None, x)
    with pytest.raises(OpError, match="x must be given"):
        F.layer_norm(None, x)
    text = to_json(network_of("layer_norm"))
    text["nodes"][0]["in"] = [None, "x", "bias"]
    with pytest.raises(IngotError, match="x must be given"):
        from_json(text)
    text["nodes"][0]["in"] = ["x", 1, "bias"]
    with pytest.raises(NetworkError, match="lists of names"):
        from_json(text)


def test_a_kernel_that_could_not_say_so_declines() -> None:
    network = network_of("group_norm", groups=2)
    assert "group_norm" in str(CPU.refuses(network.nodes[0]))
