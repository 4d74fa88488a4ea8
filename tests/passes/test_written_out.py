"""Activations and norms written out in every way that exporters and people write them become one op, and what is nearly
one stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ingot import dtypes
from ingot.builder.network import build_network
from ingot.ir import F, Network, Spec
from ingot.ir.interpret import interpret
from ingot.ir.weight_format import weight_format
from ingot.passes import simplify, weights, written_out
from ingot.passes.rewrite import Log
from ingot.passes.weights import recipe_of

EPS = 1e-5
LINE = math.sqrt(2 / math.pi)
Build = Callable[..., Any]


def network(build: Build, shape: tuple[Any, ...] = ("N", 3, 8), dtype: str = "float32") -> Network:
    """build(x, w, b) as a network; w and b are parameters with an element for each of the last dimension."""
    net = Network("net")
    x = net.input("x", Spec(shape, dtype))
    w, b = (net.parameter(name, Spec(shape[-1:], dtype)) for name in ("w", "b"))
    made = build(x, w, b)
    for number, value in enumerate(made if isinstance(made, tuple) else (made,)):
        net.outputs[f"y{number}"] = value
    net.remove_dead()
    return net


def numbers(net: Network) -> tuple[dict[str, Any], dict[str, Any]]:
    rng = np.random.default_rng(0)
    x = {v.name: (2 * rng.standard_normal(v.spec.evaluate({"N": 2}))).astype(v.dtype.numpy) for v in net.inputs}
    return x, {v.name: rng.uniform(0.5, 2, v.spec.evaluate({})).astype(v.dtype.numpy) for v in net.parameters}


def after(net: Network, tolerance: float = 5e-6) -> tuple[list[str], Log]:
    """The ops that the pass leaves. Their numbers are those of before, in the engine too."""
    x, p = numbers(net)
    want = interpret(net, x, p)
    made = build_network(net, p).run(x)
    log: Log = []
    for change in (simplify.fold, simplify.algebra, written_out.written_out):
        change(net, log)
    stored = {v.name: weights.evaluate(recipe_of(v), p) for v in net.parameters}
    for found in (interpret(net, x, stored), made):
        for name, array in want.items():
            close = {"rtol": tolerance, "atol": tolerance * 4}
            np.testing.assert_allclose(found[name].astype(np.float32), array.astype(np.float32), **close)
    return [n.op.name for n in net.nodes if not n.op.is_view], log


def mean(x: Any) -> Any:
    return F.reduce_mean(x, axes=(-1,), keepdims=True)


def centred(x: Any) -> Any:
    return F.sub(x, mean(x))


def spread(c: Any, eps: float = EPS) -> Any:
    return F.add(mean(F.mul(c, c)), eps)


def summed(x: Any) -> Any:
    """A mean as torch.export has a variance: the sum, divided by the number."""
    return F.div(F.reshape(F.reduce_sum(x, axes=(2,)), (*x.shape[:-1], 1)), float(x.shape[-1]))


ACTIVATIONS: dict[str, tuple[str, Build]] = {
    "gelu": ("gelu", lambda x, w, b: F.mul(F.mul(x, 0.5), F.add(F.erf(F.div(x, math.sqrt(2))), 1.0))),
    "gelu, halved last": ("gelu", lambda x, w, b: F.mul(F.mul(x, F.add(1.0, F.erf(F.mul(x, 2**-0.5)))), 0.5)),
    "gelu, halved inside": ("gelu", lambda x, w, b: F.mul(F.add(F.mul(F.erf(F.div(x, 2**0.5)), 0.5), 0.5), x)),
    "gelu of a scaled x": ("mul gelu", lambda x, w, b: _gelu(F.mul(x, 3.0))),
    "gelu of a product": ("mul gelu mul", lambda x, w, b: F.mul(_gelu(F.mul(x, w)), b)),
    "gelu by tanh": ("gelu", lambda x, w, b: _by_tanh(x, F.pow(x, 3.0))),
    "gelu by tanh, x·x·x": ("gelu", lambda x, w, b: _by_tanh(x, F.mul(F.mul(x, x), x))),
    "gelu by tanh, x outside": ("gelu", lambda x, w, b: F.mul(F.mul(x, 0.5), F.add(1.0, F.tanh(
        F.mul(F.mul(x, 0.7978845608), F.add(F.mul(F.mul(x, 0.044715), x), 1.0)))))),
    "silu": ("silu", lambda x, w, b: F.mul(F.sigmoid(x), x)),
    "silu by tanh": ("silu", lambda x, w, b: F.mul(F.mul(x, 0.5), F.add(F.tanh(F.mul(x, 0.5)), 1.0))),
    "silu, a quotient": ("silu", lambda x, w, b: F.div(x, F.add(F.exp(F.neg(x)), 1.0))),
    "silu, sigmoid written out": ("silu", lambda x, w, b: F.mul(x, F.div(1.0, F.add(1.0, F.exp(F.neg(x)))))),
    "sigmoid": ("sigmoid", lambda x, w, b: F.reciprocal(F.add(1.0, F.exp(F.neg(x))))),
    "mish": ("mish", lambda x, w, b: F.mul(x, F.tanh(F.softplus(x)))),
    "mish as ONNX has it": ("mish", lambda x, w, b: F.mul(F.tanh(F.softplus(x, threshold=math.inf)), x)),
    "mish, a threshold beside": ("mish", lambda x, w, b: F.mul(x, F.tanh(_with_threshold(x, 20.0)))),
    "softplus, a threshold beside": ("softplus", lambda x, w, b: _with_threshold(x, 1.5)),
    "mish by a logarithm": ("mish", lambda x, w, b: F.mul(x, F.tanh(F.log(F.add(1.0, F.exp(x)))))),
}  # fmt: skip


def _with_threshold(x: Any, edge: Any) -> Any:
    return F.where(F.greater(x, edge), x, F.softplus(x, threshold=math.inf))


def _gelu(x: Any) -> Any:
    return F.mul(F.mul(x, 0.5), F.add(F.erf(F.div(x, math.sqrt(2))), 1.0))


def _by_tanh(x: Any, cube: Any) -> Any:
    return F.mul(F.mul(x, 0.5), F.add(1.0, F.tanh(F.mul(F.add(x, F.mul(cube, 0.044715)), LINE))))


NORMS: dict[str, tuple[str, Build]] = {
    "layer norm": ("layer_norm", lambda x, w, b: F.add(F.mul(F.div(centred(x), F.sqrt(spread(centred(x)))), w), b)),
    "rsqrt, weight first": ("layer_norm", lambda x, w, b: F.add(b, F.mul(w, F.mul(F.rsqrt(spread(centred(x))),
                                                                                centred(x))))),
    "weight before the quotient": ("layer_norm", lambda x, w, b: F.add(F.div(F.mul(w, centred(x)),
                                                                            F.sqrt(spread(centred(x)))), b)),
    "reciprocal": ("layer_norm", lambda x, w, b: F.mul(centred(x), F.reciprocal(F.sqrt(spread(centred(x)))))),
    "one over the root": ("layer_norm", lambda x, w, b: F.mul(centred(x), F.div(1.0, F.sqrt(spread(centred(x)))))),
    "powers": ("layer_norm", lambda x, w, b: F.div(centred(x), F.pow(F.add(mean(F.pow(centred(x), 2.0)), EPS), 0.5))),
    "sums": ("layer_norm", lambda x, w, b: F.div(centred(x), F.sqrt(F.add(summed(F.mul(*[centred(x)] * 2)), EPS)))),
    "a mean and a sum": ("layer_norm", lambda x, w, b: F.div(F.sub(x, summed(x)), F.sqrt(spread(centred(x))))),
    "a weight of three dims": ("layer_norm", lambda x, w, b: F.mul(F.div(centred(x), F.sqrt(spread(centred(x)))),
                                                                   F.reshape(w, (1, 1, 8)))),
    "bias without a weight": ("layer_norm add", lambda x, w, b: F.add(
        F.div(centred(x), F.sqrt(spread(centred(x)))), b)),
    "rms norm": ("rms_norm", lambda x, w, b: F.mul(w, F.mul(x, F.rsqrt(spread(x))))),
    "rms norm, a power": ("rms_norm", lambda x, w, b: F.mul(x, F.pow(spread(x), -0.5))),
    "rms norm around 0": ("rms_norm", lambda x, w, b: F.mul(F.div(x, F.sqrt(spread(x))), F.add(1.0, w))),
    "rms norm of a sum": ("add rms_norm", lambda x, w, b: F.mul(F.add(x, b), F.rsqrt(spread(F.add(x, b))))),
    "without eps": ("rms_norm", lambda x, w, b: F.mul(x, F.rsqrt(spread(x, 0.0)))),
}  # fmt: skip


@pytest.mark.parametrize("name", [*ACTIVATIONS, *NORMS])
def test_it_becomes_one_op(name: str) -> None:
    want, build = {**ACTIVATIONS, **NORMS}[name]
    found, _ = after(network(build))
    assert found == want.split()


# Each is one step from what is found above.
NEARLY: dict[str, Build] = {
    "gelu, another root": lambda x, w, b: F.mul(F.mul(x, 0.5), F.add(F.erf(F.div(x, 1.4141)), 1.0)),
    "gelu, not halved": lambda x, w, b: F.mul(x, F.add(F.erf(F.div(x, math.sqrt(2))), 1.0)),
    "gelu, minus 1": lambda x, w, b: F.mul(F.mul(x, 0.5), F.sub(F.erf(F.div(x, math.sqrt(2))), 1.0)),
    "gelu of another": lambda x, w, b: F.mul(F.mul(F.add(x, w), 0.5), F.add(F.erf(F.div(x, math.sqrt(2))), 1.0)),
    "gelu by tanh, a square": lambda x, w, b: _by_tanh(x, F.pow(x, 2.0)),
    "gelu by tanh, a fourth power": lambda x, w, b: _by_tanh(x, F.pow(x, 4.0)),
    "silu of another": lambda x, w, b: F.mul(F.add(x, w), F.sigmoid(x)),
    "silu, steeper": lambda x, w, b: F.mul(x, F.sigmoid(F.mul(x, 1.702))),
    "silu, shifted": lambda x, w, b: F.mul(x, F.sigmoid(F.add(x, 1e-3))),
    "silu, a sum": lambda x, w, b: F.add(x, F.sigmoid(x)),
    "silu that is read inside": lambda x, w, b: (F.mul(x, (s := F.sigmoid(x))), s),
    "gelu that is read inside": lambda x, w, b: (F.mul(F.mul(x, 0.5), (s := F.add(F.erf(F.div(x, 2**0.5)), 1.0))), s),
    "sigmoid, exp of x": lambda x, w, b: F.div(1.0, F.add(1.0, F.exp(x))),
    "mish, an early threshold": lambda x, w, b: F.mul(x, F.tanh(F.softplus(x, threshold=1.0))),
    "softplus, a threshold for each element": lambda x, w, b: _with_threshold(x, F.expand(w, x.shape)),
    "softplus, another behind": lambda x, w, b: F.where(F.greater(x, 2.0), F.add(x, w), F.softplus(
        x, threshold=math.inf)),
    "mish, a slope": lambda x, w, b: F.mul(x, F.tanh(F.softplus(x, beta=2.0))),
    "norm along another axis": lambda x, w, b: F.mul(x, F.rsqrt(F.add(
        F.reduce_mean(F.mul(x, x), axes=(1,), keepdims=True), EPS))),
    "norm along two axes": lambda x, w, b: F.mul(x, F.rsqrt(F.add(
        F.reduce_mean(F.mul(x, x), axes=(1, 2), keepdims=True), EPS))),
    "the mean along another axis": lambda x, w, b: F.div((c := F.sub(x, F.reduce_mean(x, axes=(1,), keepdims=True))),
                                                         F.sqrt(F.add(F.reduce_mean(F.mul(c, c), (1,), True), EPS))),
    "eps for each element": lambda x, w, b: F.mul(x, F.rsqrt(F.add(mean(F.mul(x, x)), w))),
    "eps outside of the root": lambda x, w, b: F.div(x, F.add(F.sqrt(mean(F.mul(x, x))), EPS)),
    "an eps below 0": lambda x, w, b: F.mul(x, F.rsqrt(F.add(mean(F.mul(x, x)), -1e-5))),
    "Bessel's correction": lambda x, w, b: F.div(centred(x), F.sqrt(F.add(
        F.div(F.reduce_sum(F.mul(*[centred(x)] * 2), (-1,), True), 7.0), EPS))),
    "a product of two": lambda x, w, b: F.mul(x, F.rsqrt(F.add(mean(F.mul(x, F.add(x, 1.0))), 1e3))),
    "a cube": lambda x, w, b: F.mul(x, F.rsqrt(F.add(mean(F.pow(x, 3.0)), 1e3))),
    "another above the root": lambda x, w, b: F.mul(F.add(x, b), F.rsqrt(spread(x))),
    "no root": lambda x, w, b: F.div(x, spread(x)),
    "a quotient where a product stands": lambda x, w, b: F.div(x, F.rsqrt(spread(x))),
    "a sum that is no mean": lambda x, w, b: F.mul(x, F.rsqrt(F.add(F.reduce_sum(F.mul(x, x), (-1,), True), EPS))),
    "a variance that is read": lambda x, w, b: (F.mul(x, F.rsqrt(v := spread(x))), v),
    "a mean that is read": lambda x, w, b: (F.div((c := F.sub(x, (m := mean(x)))), F.sqrt(spread(c))), m),
}  # fmt: skip


@pytest.mark.parametrize("name", NEARLY)
def test_what_is_nearly_one_stays(name: str) -> None:
    net = network(NEARLY[name])
    before = [n.op.name for n in net.nodes if not n.op.is_view]
    found, log = after(net)
    assert found == before
    assert bool(log) == ("read" in name), "a refusal says who reads what"


@pytest.mark.parametrize("build", [F.add, F.mul, F.sub])
def test_a_value_read_twice_at_every_step_is_followed_once(build: Build) -> None:
    """2⁶⁰ paths lead from the last of these to the sigmoid."""
    net = Network("net")
    y = x = net.input("x", Spec((4,), "float32"))
    for number in range(60):
        y = build(y, y) if number else F.mul(F.add(y, 1.0), F.sigmoid(x))
    net.outputs["y"] = F.mul(y, F.rsqrt(F.add(F.reduce_mean(F.mul(y, y), (-1,), True), EPS)))
    before = len(net.nodes)
    written_out.written_out(net, [])
    assert len(net.nodes) == before - 4, "an RMS norm alone"


@pytest.mark.parametrize("dtype", ["float64", "int32"])
def test_dtypes_that_the_ops_do_not_take(dtype: str) -> None:
    net = Network("net")
    x = net.input("x", Spec((3, 8), dtype))
    if dtype == "int32":
        net.outputs["y"] = F.mul(x, F.add(x, 1))
    else:
        net.outputs["y"] = F.mul(F.mul(x, 0.5), F.add(F.erf(F.mul(x, math.sqrt(0.5))), F.mul(x, F.rsqrt(spread(x)))))
    before = [n.op.name for n in net.nodes]
    written_out.written_out(net, [])
    assert [n.op.name for n in net.nodes] == before


# ---------------------------------------------------------------------------------------------------------- group norms


def images(build: Build, **parameters: tuple[int, ...]) -> Network:
    """build(x, parameters…) of x [N, 6, 4, 5] as a network."""
    net = Network("net")
    x = net.input("x", Spec(("N", 6, 4, 5), "float32"))
    net.outputs["y"] = build(x, *(net.parameter(n, Spec(shape, "float32")) for n, shape in parameters.items()))
    return net


def exported(x: Any, *vectors: Any, eps: float = EPS, shape: tuple[Any, ...] | None = None) -> Any:
    """A group norm of 3 groups as exporters to ONNX write it, with a weight and a bias for each group."""
    apart = F.reshape(x, (x.shape[0], 3, 40) if shape is None else shape)
    return F.reshape(F.group_norm(apart, *vectors, groups=3, eps=eps), x.shape)


ONE, EACH = {"v": (3,), "u": (3,)}, {"w": (6, 1, 1), "b": (6, 1, 1)}
GROUPS: dict[str, tuple[str, Network]] = {
    "plain": ("group_norm", images(lambda x: exported(x))),
    "a pixel for itself": ("group_norm", images(lambda x: exported(x, shape=(x.shape[0], 3, 2, 20)))),
    "weights of groups": ("group_norm", images(exported, **ONE)),
    "weights of groups, then of channels": (
        "group_norm", images(lambda x, v, u, w, b: F.add(F.mul(exported(x, v, u), w), b), **ONE, **EACH)),
    "ones and zeros, then weights of channels": (
        "group_norm", images(lambda x, w, b: F.add(b, F.mul(exported(
            x, np.ones(3, np.float32), np.zeros(3, np.float32)), w)), **EACH)),
    "weights of channels alone": ("group_norm", images(lambda x, w, b: F.add(F.mul(exported(x), w), b), **EACH)),
    "by a layer norm": ("group_norm", images(lambda x: F.reshape(F.layer_norm(
        F.reshape(x, (x.shape[0], 3, 40))), x.shape))),
    "constants, then weights": ("group_norm mul", images(lambda x, w: F.mul(exported(
        x, np.array([1, 2, 3], np.float32)), w), w=(6, 1, 1))),
    "a bias alone": ("group_norm add", images(lambda x, b: F.add(exported(x), b), b=(6, 1, 1))),
    "an instance norm with a weight": ("group_norm", images(
        lambda x, w: F.mul(F.group_norm(x, groups=6), w), w=(6, 1, 1))),
    "groups across samples": ("group_norm", images(lambda x: F.reshape(F.group_norm(
        F.reshape(x, (3, x.shape[0], 40)), groups=1), x.shape))),
    "another shape behind": ("group_norm", images(lambda x: F.reshape(F.group_norm(
        F.reshape(x, (x.shape[0], 3, 40)), groups=3), (x.shape[0], 6, 5, 4)))),
    "a weight of pixels": ("group_norm mul", images(lambda x, w: F.mul(exported(x), w), w=(4, 1))),
    "groups that no channel ends": ("layer_norm", images(lambda x: F.reshape(F.layer_norm(
        F.reshape(x, (x.shape[0], 4, 30))), x.shape))),
}  # fmt: skip
STAY = ("groups across samples", "another shape behind", "groups that no channel ends")


@pytest.mark.parametrize("name", GROUPS)
def test_group_norms(name: str) -> None:
    want, net = GROUPS[name]
    reshapes = sum(n.op.name == "reshape" for n in net.nodes)
    found, _ = after(net)
    assert found == want.split()
    assert sum(n.op.name == "reshape" for n in net.nodes) == (reshapes if name in STAY else 0)


# --------------------------------------------------------------------------------------------------- narrower numbers


def _wide(x: Any) -> Any:
    return F.cast(x, dtypes.float32)


NARROW: dict[str, tuple[str, Build]] = {
    "rms norm": ("rms_norm", lambda x, w, b: F.cast(F.mul(_wide(x), F.rsqrt(spread(_wide(x)))), x.dtype)),
    "rms norm, weight behind": ("rms_norm", lambda x, w, b: F.mul(w, F.cast(
        F.mul(_wide(x), F.rsqrt(spread(_wide(x)))), x.dtype))),
    "rms norm, weight inside": ("rms_norm", lambda x, w, b: F.cast(
        F.mul(F.mul(_wide(x), F.rsqrt(spread(_wide(x)))), _wide(w)), x.dtype)),
    "layer norm": ("layer_norm", lambda x, w, b: F.cast(F.mul(centred(_wide(x)), F.rsqrt(spread(centred(_wide(x))))),
                                                        x.dtype)),
    "the result stays wide": ("cast rms_norm", lambda x, w, b: F.mul(_wide(x), F.rsqrt(spread(_wide(x))))),
}  # fmt: skip


@pytest.mark.parametrize("name", NARROW)
def test_norms_in_float32_of_narrower_numbers(name: str) -> None:
    want, build = NARROW[name]
    net = network(build, dtype="bfloat16")
    found, _ = after(net, tolerance=2**-8)
    assert found == want.split()


# -------------------------------------------------------------------------------------------------------------- tables

TABLES: dict[str, tuple[str, Build]] = {
    "rows of a table": ("embedding", lambda i, w: F.take(w, i, axis=0, from_end=True)),
    "-1 gives zeros": ("take", lambda i, w: F.take(w, i, axis=0)),
    "columns": ("take", lambda i, w: F.take(w, i, axis=1, from_end=True)),
    "a table that is computed": ("add take", lambda i, w: F.take(F.add(w, 1.0), i, axis=0, from_end=True)),
    "a vector": ("take", lambda i, w: F.take(F.reshape(w, (24,)), i, axis=0, from_end=True)),
}


@pytest.mark.parametrize("name", TABLES)
def test_rows_of_a_table(name: str) -> None:
    want, build = TABLES[name]
    net = Network("net")
    net.outputs["y"] = build(net.input("i", Spec(("N", 2), "int64")), net.parameter("w", Spec((4, 6), "float32")))
    x, p = {"i": np.array([[-1, 3], [0, 2]])}, {"w": np.arange(24, dtype=np.float32).reshape(4, 6)}
    found = build_network(net, p).run(x)["y"]
    np.testing.assert_array_equal(found, interpret(net, x, p)["y"])
    written_out.written_out(net, [])
    assert [n.op.name for n in net.nodes if not n.op.is_view] == want.split()


def test_a_table_that_is_taken_from_is_stored_as_integers() -> None:
    net = Network("net")
    ids, table = net.input("i", Spec(("N",), "int64")), net.parameter("w", Spec((4, 32), "float32"))
    net.outputs["y"] = F.take(table, ids, axis=0, from_end=True)
    p = {"w": np.random.default_rng(0).standard_normal((4, 32)).astype(np.float32)}
    engine = build_network(net, p, format=weight_format("int8"))
    assert "int8" in {engine.tensor(name).dtype.name for name in engine.header["weights"]}
    np.testing.assert_allclose(engine.run({"i": np.array([-1, 2])})["y"], p["w"][[-1, 2]], atol=0.02)
