"""Weights that the bodies of loops and branches read: given twice, and saved, loaded, saved again, refitted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ingot import functional as F
from ingot import ops
from ingot.builder.network import build_network
from ingot.dims import Dim
from ingot.ir import Network, Spec
from ingot.ir.interpret import interpret

Array = np.ndarray[Any, Any]


def network() -> Network:
    """s = s · w + part over x's parts, where a branch halves s by h."""
    net = Network()
    x = net.input("x", Spec((Dim("T"), 2, 3), "float32"))
    w, h = net.parameter("w", Spec((3, 3), "float32")), net.parameter("h", Spec((3,), "float32"))
    s = F.sum(x, 0)

    def step(s: Any, part: Any, w: Any, h: Any) -> Any:
        halved = F.cond(F.gt(F.sum(s), 0.0), lambda s, h: s * h, lambda s, h: s, [s, h])
        return F.matmul(halved, w) + part

    net.output("y", F.scan(step, [s], [x], [w, h]))
    return net


@pytest.fixture
def weights() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {"w": rng.standard_normal((3, 3)).astype(np.float32), "h": np.array([0.5, 0.25, 2], np.float32)}


def result(x: Array, weights: dict[str, Array]) -> Array:
    s = x.sum(0)
    for part in x:
        s = (s * weights["h"] if s.sum() > 0 else s) @ weights["w"] + part
    return s


def test_a_loaded_engine_is_saved_and_refitted(tmp_path: Path, weights: dict[str, Array]) -> None:
    x = np.random.default_rng(1).standard_normal((4, 2, 3)).astype(np.float32)
    want = result(x, weights)
    engine = build_network(network(), weights)
    stored = {name: engine.tensor(name) for name in engine.header["weights"]}
    assert len(stored) == 2
    for i in range(3):
        path = tmp_path / f"{i}.ingot"
        engine.save(path)
        engine = ingot.load(path)
        for name, array in stored.items():
            np.testing.assert_array_equal(engine.tensor(name), array, strict=True)
        np.testing.assert_allclose(engine.run({"x": x})["y"], want, rtol=1e-5, atol=1e-5)
    changed = {name: (2 * array).astype(np.float32) for name, array in weights.items()}
    refitted = engine.refit(changed)
    refitted.save(tmp_path / "refitted.ingot")
    for one in (refitted, ingot.load(tmp_path / "refitted.ingot")):
        np.testing.assert_allclose(one.run({"x": x})["y"], result(x, changed), rtol=1e-5, atol=1e-4)


def twice(op: str) -> Callable[[Any, Any, Any], Any]:
    """A network that gives w and the constant c twice to an op."""

    def net(x: Any, w: Any, c: Any) -> Any:
        s = F.sum(x, 0)
        if op == "scan":
            return F.scan(lambda s, part, a, b, c, d: (s * a + b * c, d + part), [s], [x], [w, w, c, c])
        if op == "while_loop":
            zero = F.cast(F.sum(x) * 0.0, "int32")
            return F.while_loop(
                lambda i, s, *_: F.lt(i, 3), lambda i, s, a, b, c, d: (i + 1, s * a - b, a, b, c, d, b, d),
                [zero, s, w, w, c, c],
            )[1:]  # fmt: skip
        yes, no = (lambda a, b, c, d: (a * b, b, c)), (lambda a, b, c, d: (b + d, a, d))
        return F.cond(F.gt(F.sum(s), 0.0), yes, no, [w, w, c, c])

    return net


@pytest.mark.parametrize("op", ["cond", "while_loop", "scan"])
def test_a_weight_that_is_given_twice(op: str, tmp_path: Path) -> None:
    net = Network()
    x, w = net.input("x", Spec((Dim("T"), 3), "float32")), net.parameter("w", Spec((3,), "float32"))
    for i, value in enumerate(twice(op)(x, w, net.constant(np.array([1, 2, 3], np.float32)))):
        net.output(f"y{i}", value)
    weights = {"w": np.array([0.5, -1, 2], np.float32)}
    engine = build_network(net, weights)
    engine.save(tmp_path / "net.ingot")
    for x in (np.ones((2, 3), np.float32), -np.ones((4, 3), np.float32), np.ones((0, 3), np.float32)):
        want = interpret(net, {"x": x}, weights)
        for one in (engine, ingot.load(tmp_path / "net.ingot")):
            got = one.run({"x": x})
            for name, array in want.items():
                np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-6)


def test_a_constant_of_a_body_that_is_used_twice_is_stored_once() -> None:
    inner = Network("inner")
    a = inner.input("a", Spec((64,), "float32"))
    inner.output("r", F.mul(a, inner.constant(np.arange(64, dtype=np.float32))))
    net = Network()
    x = net.input("x", Spec((64,), "float32"))
    for i, limit in enumerate((0.0, 1.0)):
        net.output(f"y{i}", ops.cond(F.gt(F.sum(x), limit), x, then_branch=inner, else_branch=inner))
    engine = build_network(net, {})
    assert [engine.tensor(name).shape for name in engine.header["weights"]].count((64,)) == 1
