"""Weights of integers: which weights become some, what stays and why, and that products read them as they are."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from ingot import dtypes, functional
from ingot.backends.cpu import CPU
from ingot.builder.network import build_network
from ingot.dims import Dim
from ingot.ir import F, Network, Spec, Value
from ingot.ir.evaluation import evaluate
from ingot.ir.interpret import interpret
from ingot.ir.recipe import source
from ingot.ir.verify import verify
from ingot.ir.weight_format import FORMATS, weight_format
from ingot.passes import pipeline
from ingot.passes.quantize import quantized
from ingot.passes.rewrite import Log
from ingot.passes.weights import recipe_of
from tests import nets

Array = np.ndarray[Any, Any]
SHAPES = {"table": (9, 64), "up": (8, 64), "down": (64, 8), "bias": (8,), "norm": (64,)}


def network() -> tuple[Network, dict[str, Array]]:
    """A row of a table, normed, by a matrix [outputs, inputs], and back by one [inputs, outputs]."""
    net = Network("net")
    of = {name: net.parameter(name, Spec(shape, "float32")) for name, shape in SHAPES.items()}
    rows = F.embedding(net.input("ids", Spec((Dim("T"),), "int32")), of["table"])
    wide = F.matmul(F.rms_norm(rows, of["norm"], eps=1e-6), of["up"], transpose_b=True) + of["bias"]
    net.outputs["y"] = F.matmul(F.matmul(rows, of["down"]), of["up"]) + F.matmul(wide, of["up"])
    rng = np.random.default_rng(0)
    return net, {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


def run(net: Network, weights: dict[str, Array]) -> Array:
    feeds = {"ids": np.array([8, 0, 3], np.int32)}
    return interpret(net, feeds, {v.name: evaluate(recipe_of(v), weights) for v in net.parameters})["y"]


def by_scales(weight: Array, limit: int, group: int) -> Array:
    """The values that integers from -limit and a scale for each group of a row stand for; scales of int4 are fitted,
    and float16."""
    rows = weight.reshape(len(weight), -1, group or weight.shape[1])
    scale, most = np.abs(rows).max(-1, keepdims=True) / np.float32(limit), limit
    if limit == 8:
        fitted = source("w").then("fitted_scales", group=group, limit=limit).then("float16_scales")
        scale, most = evaluate(fitted, {"w": weight})[..., None].astype(np.float32), 7
    return (np.clip(np.rint(rows / scale), -limit, most) * scale).reshape(weight.shape).astype(np.float32)


@pytest.mark.parametrize(("word", "limit", "group"), [("int8", 127, 0), ("int4-g32", 8, 32)])
def test_tables_and_matrices_become_integers(word: str, limit: int, group: int) -> None:
    """A table by its rows, in int8. A matrix [inputs, outputs] is turned first; groups that do not fit are left out."""
    net, weights = network()
    log: Log = []
    new = verify(quantized(net, FORMATS[word], log))
    said = {"up becomes int8, not int4-g32: groups of 32 do not divide its 8 inputs"} if group else set()
    assert {event.verdict for event in log} == said, "of vectors nothing is said"
    rounded = dict(weights, table=by_scales(weights["table"], 127, 0))
    product = {"up": by_scales(weights["up"], limit, group), "down": by_scales(weights["down"].T, limit, group).T}
    # `up` is also read as [inputs, outputs]: that reader has scales of its own, of 8 inputs and 64 outputs
    turned = by_scales(weights["up"].T, 127, 0).T
    rows = rounded["table"][[8, 0, 3]]
    normed = rows / np.sqrt(np.mean(rows**2, -1, keepdims=True) + 1e-6) * weights["norm"]
    wide = normed @ product["up"].T + weights["bias"]
    want = rows @ product["down"] @ turned + wide @ turned
    found = run(new, weights)
    np.testing.assert_allclose(found, want, rtol=0, atol=2e-5 * np.abs(want).max())
    low = pipeline.lower(new, CPU)
    assert [nets.op_name(n) for n in low.nodes].count("matmul_packed") == 4
    np.testing.assert_allclose(run(low, weights), want, rtol=0, atol=2e-5 * np.abs(want).max())


def test_rows_that_several_products_read_are_rounded_once() -> None:
    """Whatever the order of the weights: `common` keeps one of what each product asks for."""
    net = Network("net")
    a, b = (net.parameter(name, Spec((8, 64), "float32")) for name in "ab")
    x = net.input("x", Spec((Dim("T"), 64), "float32"))
    net.outputs["y"] = F.exp(F.matmul(x, b, transpose_b=True)) + F.matmul(x, a, transpose_b=True)
    low = pipeline.lower(verify(quantized(net, weight_format("int8", "int8"))), CPU)
    assert [nets.op_name(n) for n in low.nodes].count("quantize_rows") == 1


def test_what_stays_says_why() -> None:
    def said(build: Any) -> list[str]:
        net = Network("net")
        w = net.parameter("w", Spec((16, 16), "float32"))
        net.outputs["y"] = build(net.input("x", Spec((16, 16), "float32")), w)
        log: Log = []
        new = quantized(net, FORMATS["int8"], log)
        assert bool(log) == any(v.dtype is dtypes.float32 for v in new.parameters if v.name == "w")
        return [event.verdict for event in log]

    assert said(lambda x, w: F.matmul(x, w)) == []
    assert said(lambda x, w: F.matmul(x, w) + F.exp(w)[0]) == ["w stays float32: exp reads it"]
    assert said(lambda x, w: F.matmul(w, w)) == ["w stays float32: matmul reads it"]
    assert "no matrix" in said(lambda x, w: F.matmul(x, w, transpose_a=True))[0]
    table = said(lambda x, w: F.add(x, F.embedding(x.network.constant(np.int32([3])), w)))
    assert table == ["w stays float32: the rows that are read of it are known"]


@pytest.mark.parametrize(
    ("dtype", "group", "why"),
    [("int8", 8, "a weight of int8 in groups of 8"), ("int4", 0, "a weight of int4 in groups of 0"),
     ("int4", 4, "a weight of int4 in groups of 4")],
)  # fmt: skip
def test_integers_without_a_packed_product(dtype: str, group: int, why: str) -> None:
    """They are dequantised first, and the numbers are right."""
    net = Network("net")
    q = net.parameter("q", Spec((8, 16), dtype))
    scales = net.parameter("s", Spec((8, 16 // group if group else 1), "float32"))
    made: Value = F.dequantize(q, scales, dtype=dtypes.float32, group=group)
    net.outputs["y"] = F.matmul(net.input("x", Spec((3, 16), "float32")), made, transpose_b=True)
    rng = np.random.default_rng(1)
    whole = rng.integers(-7, 8, (8, 16))
    weights = {"q": whole.astype(dtypes.get(dtype).numpy), "s": rng.uniform(0.5, 2, scales.shape).astype(np.float32)}
    x = rng.standard_normal((3, 16)).astype(np.float32)
    log: Log = []
    low = pipeline.lower(net, CPU, log=log)
    found = interpret(low, {"x": x}, {v.name: evaluate(recipe_of(v), weights) for v in low.parameters})["y"]
    want = x @ (whole * np.repeat(weights["s"], group or 16, -1)).astype(np.float32).T
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-5 * np.abs(want).max())
    assert any(why in event.verdict for event in log)


# ---------------------------------------------------------------------------------------- branches and loop bodies
def loops() -> tuple[Network, dict[str, Array]]:
    """A scan and a loop that read the matrix u, and a choice in the loop that reads a table."""
    net = Network("net")
    x, n = net.input("x", Spec((Dim("T"), 3, 64), "float32")), net.input("n", Spec((), "int32"))
    shapes = {"w": (64, 64), "u": (64, 64), "table": (9, 64)}
    w, u, table = (net.parameter(name, Spec(shape, "float32")) for name, shape in shapes.items())

    def step(h: Any, x: Any, w: Any, u: Any) -> Any:
        h = functional.tanh(functional.matmul(x, w, transb=True) + functional.matmul(h, u, transb=True))
        return h, h

    def body(i: Any, n: Any, h: Any, u: Any, table: Any) -> Any:
        h = functional.tanh(functional.matmul(h, u, transb=True))
        row = lambda h, i, t: h + functional.embedding(functional.unsqueeze(i, 0), t)  # noqa: E731
        h = functional.cond(functional.lt(i, 3), row, lambda h, i, t: h, [h, i, table])
        return i + 1, n, h, u, table

    h, all_ = functional.scan(step, [functional.sum(x, 0) * 0.0], [x], [w, u])
    found = functional.while_loop(lambda i, n, *_: functional.lt(i, n), body, [n * 0, n, h, u, table])
    net.output("h", found[2])
    net.output("all", all_)
    rng = np.random.default_rng(1)
    return net, {name: (rng.standard_normal(shape) * 0.2).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize(("word", "limit", "group"), [("int8", 127, 0), ("int4-g32", 8, 32)])
def test_weights_that_bodies_read(word: str, limit: int, group: int) -> None:
    net, weights = loops()
    log: Log = []
    new = verify(quantized(net, FORMATS[word], log))
    of_groups = {"int4", "float16"} if group else set()
    assert log == [] and {v.dtype.name for v in new.parameters} == {"int8", "float32"} | of_groups
    rounded = {name: by_scales(w, *((127, 0) if name == "table" else (limit, group))) for name, w in weights.items()}
    feeds = {"x": np.random.default_rng(2).standard_normal((4, 3, 64)).astype(np.float32), "n": np.array(5, np.int32)}
    want = interpret(net, feeds, rounded)
    got = interpret(new, feeds, {v.name: evaluate(recipe_of(v), weights) for v in new.parameters})
    engine = build_network(net, weights, format=weight_format(word))
    assert engine._native.host_calls("main") == []
    stored = [name.split(".")[0] for name in engine.header["weights"]]
    assert sorted(stored) == sorted([*weights, *weights]), "integers and scales, each once"
    for name, wanted in want.items():
        np.testing.assert_allclose(got[name], wanted, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(engine.run(feeds)[name], wanted, rtol=1e-4, atol=1e-4)  # sums in another order


def changed(w: Any, n: Any) -> Any:
    return functional.while_loop(lambda i, n, w: functional.lt(i, n), lambda i, n, w: (i + 1, n, w * 2.0),
                                 [n * 0, n, w])[2]  # fmt: skip


def given(w: Any, n: Any) -> Any:
    one = functional.lt(n, 3)
    return functional.cond(one, lambda h, w: (functional.matmul(h, w), w), lambda h, w: (h, w), [w[:1] * 1.0, w])[1]


def handed_on(w: Any, n: Any) -> Any:
    row = functional.cast(functional.expand(n, (1, 64)), "float32")
    body = lambda i, n, h, w: (i + 1, n, functional.matmul(h, w), w)  # noqa: E731
    return functional.while_loop(lambda i, n, h, w: functional.lt(i, n), body, [n * 0, n, row, w])[3]


@pytest.mark.parametrize(("net", "why"), [
    (changed, "while_loop changes it from round to round"), (given, "slice reads it|cond gives it"),
    (handed_on, "it is a result"),
    (lambda w, n: functional.cond(functional.lt(n, 3), lambda w: w * 2.0, lambda w: w * 3.0, [w]), "mul reads it"),
    (lambda w, n: functional.scan(lambda row: row * 2.0, [], [w]), "scan changes it"),
])  # fmt: skip
def test_weights_of_bodies_that_stay(net: Any, why: str) -> None:
    network, log = Network("net"), Log()
    w = network.parameter("w", Spec((64, 64), "float32"))
    network.output("y", net(w, network.input("n", Spec((), "int32"))))
    new = quantized(network, FORMATS["int8"], log)
    assert [v.name for v in new.parameters] == ["w"]
    assert len(log) == 1 and re.search(f"w stays float32: {why}", str(log[0]))
