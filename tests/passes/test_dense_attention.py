"""Attention written out in every way that models write it becomes one call, with the same numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ingot import dtypes
from ingot.backends.cpu import CPU
from ingot.backends.program import ProgramBuilder
from ingot.builder.network import build_network
from ingot.ir import F, Network, Spec, Value
from ingot.ir.interpret import interpret
from ingot.passes import dense_attention, pipeline, rewrite
from ingot.passes.rewrite import Log

LOWEST = float(np.finfo(np.float32).min)
SHAPES = {"q": ("B", 3, "T", 8), "k": ("B", 3, "S", 8), "v": ("B", 3, "S", 8), "mask": ("B", 1, 1, "S")}
SIZES = {"B": 2, "T": 5, "S": 7}


def network(build: Callable[..., Any], dtype: str = "float32", mask: str = "bool", **shapes: Any) -> Network:
    """build(q, k, v, mask) as a network."""
    net = Network("net")
    kinds = {"q": dtype, "k": dtype, "v": dtype, "mask": mask}
    net.outputs["y"] = build(*(net.input(n, Spec(shapes.get(n, SHAPES[n]), kinds[n])) for n in SHAPES))
    return net


def feeds(net: Network, hidden: bool = False) -> dict[str, Any]:
    """hidden: the tokens of the first batch see nothing at all; else they see one key."""
    rng = np.random.default_rng(0)
    found = {}
    for value in net.inputs:
        x = rng.standard_normal(value.spec.evaluate(SIZES))
        found[value.name] = x > -0.5 if value.dtype is dtypes.bool_ else x.astype(value.dtype.numpy)
        if value.dtype is dtypes.bool_:
            found[value.name][0] = False
            found[value.name][0, ..., -1:] = not hidden
    return found


def check(net: Network, tolerance: float = 2e-6, hidden: bool = False) -> tuple[list[str], Log]:
    """The kernels of the program, whose numbers are those of the network."""
    log: Log = []
    data = feeds(net, hidden)
    stages = pipeline.Check(data, {}, tolerance=1e-4 if tolerance < 1e-4 else 0.05)
    lowered = pipeline.lower(net, CPU, log=log, check=stages)
    want, got = interpret(net, data)["y"], build_network(net, {}).run(data)["y"]
    np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=0, atol=4 * tolerance)
    return [c["kernel"] for c in ProgramBuilder(lowered, CPU).build()["calls"]], log


def transposed(x: Value) -> Any:
    return F.permute(x, (0, 1, 3, 2))


def through_batches(q: Value, k: Value, v: Value) -> Any:
    """As torch's decomposition does: products of three dimensions."""

    def flat(x: Any) -> Any:
        return F.reshape(x, (-1, *x.shape[-2:]))

    shape = (*q.shape[:-1], k.shape[-2])
    weights = F.softmax(F.reshape(F.matmul(flat(q), flat(transposed(k))), shape))
    return F.reshape(F.matmul(flat(weights), flat(v)), q.shape)


SCORES: dict[str, Callable[..., Any]] = {
    "plain": lambda q, k, v, m: F.matmul(q, k, transpose_b=True),
    "keys permuted, scaled": lambda q, k, v, m: F.mul(F.matmul(q, transposed(k)), 0.3),
    "divided": lambda q, k, v, m: F.div(F.matmul(q, k, transpose_b=True), np.full((1, 1, 1, 1), 2.8, np.float32)),
    "queries scaled": lambda q, k, v, m: F.matmul(F.mul(q, 0.35), transposed(k)),
    "both scaled, as torch decomposes": lambda q, k, v, m: F.matmul(F.mul(q, 0.6), F.mul(transposed(k), 0.6)),
    "keys scaled, then permuted": lambda q, k, v, m: F.matmul(q, transposed(F.div(k, 3.0))),
    "mask added": lambda q, k, v, m: F.add(
        F.mul(F.matmul(q, k, transpose_b=True), 0.3), F.where(m, np.float32(0), np.float32(LOWEST))),
    "mask first": lambda q, k, v, m: F.add(
        F.where(m, np.float32(0), np.float32(-1e9)), F.matmul(q, k, transpose_b=True)),
    "filled with -inf": lambda q, k, v, m: F.where(m, F.matmul(q, k, transpose_b=True), np.float32(-math.inf)),
    "filled where not, with the least": lambda q, k, v, m: F.where(
        F.logical_not(m), np.float32(LOWEST), F.div(F.matmul(q, transposed(k)), 2.0)),
    "filled with -1e4": lambda q, k, v, m: F.where(m, F.matmul(q, transposed(k)), np.float32(-1e4)),
}  # fmt: skip


@pytest.mark.parametrize("name", SCORES)
def test_forms(name: str) -> None:
    net = network(lambda q, k, v, m: F.matmul(F.softmax(SCORES[name](q, k, v, m)), v))
    kernels, _ = check(net)
    assert kernels.count("attention") == 1
    assert "softmax" not in kernels and "matmul" not in kernels
    assert len(kernels) <= (2 if "mask" in name or "filled" in name else 1)


# What a row gives that the mask hides whole, in each form with a mask.
HIDDEN = {"mask added": "mean", "mask first": "mean", "filled with -inf": "nan",
          "filled where not, with the least": "mean", "filled with -1e4": "mean"}  # fmt: skip


@pytest.mark.parametrize("name", HIDDEN)
@pytest.mark.parametrize("inside", [False, True])
def test_rows_that_see_nothing_stay_what_the_softmax_makes_of_them(name: str, inside: bool) -> None:
    def build(q: Value, k: Value, v: Value, m: Value) -> Any:
        y = F.matmul(F.softmax(SCORES[name](q, k, v, m)), v)
        return F.permute(y, (0, 2, 1, 3)) if inside else y

    net = network(build)
    kernels, _ = check(net, hidden=True)
    assert kernels.count("attention") == 1 and "softmax" not in kernels
    data = feeds(net, hidden=True)
    blind = build_network(net, {}).run(data)["y"][0]
    blind = blind.swapaxes(0, 1) if inside else blind
    if HIDDEN[name] == "nan":
        assert np.isnan(blind).all()
    else:
        np.testing.assert_allclose(blind, np.repeat(data["v"][0].mean(1, keepdims=True), 5, 1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("empty", ["zero", "nan"])
def test_heads_and_permutations_taken_in_keep_what_hidden_rows_give(empty: str) -> None:
    def build(q: Value, k: Value, v: Value, m: Value) -> Any:
        b, heads, s, d = k.shape
        apart = [F.expand(F.reshape(x, (b, heads, 1, s, d)), (b, heads, 3, s, d)) for x in (k, v)]
        repeated = [F.reshape(x, (b, 6, s, d)) for x in apart]
        y = F.scaled_dot_product_attention(q, *repeated, m, empty_rows=empty)
        return F.permute(y, (0, 2, 1, 3))

    net = network(build, q=("B", 6, "T", 8), k=("B", 2, "S", 8), v=("B", 2, "S", 8))
    assert check(net, hidden=True)[0] == ["attention"]
    blind = build_network(net, {}).run(feeds(net, hidden=True))["y"][0]
    assert np.isnan(blind).all() if empty == "nan" else not blind.any()


def test_the_result_is_written_where_the_projection_reads_it() -> None:
    for masked in (False, True):

        def build(q: Value, k: Value, v: Value, mask: Value, masked: bool = masked) -> Any:
            y = F.scaled_dot_product_attention(q, k, v, *([mask] if masked else []))
            return F.reshape(F.permute(y, (0, 2, 1, 3)), (q.shape[0], q.shape[2], 24))

        assert check(network(build))[0] == ["attention"]


def test_products_of_three_dimensions() -> None:
    assert check(network(lambda q, k, v, m: through_batches(q, k, v)))[0] == ["attention"]


def test_products_of_three_dimensions_between_those_of_five() -> None:
    """Leading dimensions that a reshape joins and parts again around one product."""
    net = Network("net")
    a, b = (net.input(name, Spec(shape, "f32")) for name, shape in (("a", (2, 3, 4, 5, 6)), ("b", (2, 3, 4, 6, 7))))
    flat = [F.reshape(x, (24, *x.shape[3:])) for x in (a, b)]
    net.outputs["y"] = F.reshape(F.matmul(*flat), (2, 3, 4, 5, 7))
    rewrite.apply(net, [dense_attention.JOINED], [])
    net.remove_dead()
    assert [n.op.name for n in net.nodes] == ["matmul"] and net.nodes[0].inputs == (a, b)


def test_as_torch_decomposes_its_own() -> None:
    """Queries and keys scaled, rows that see nothing turned to zeros."""

    def build(q: Value, k: Value, v: Value, mask: Value) -> Any:
        scores = F.matmul(F.mul(q, 0.6), F.mul(transposed(k), 0.6))
        scores = F.add(scores, F.where(mask, np.float32(0), np.float32(-math.inf)))
        return F.matmul(safe(scores), v)

    for hidden in (False, True):
        kernels, _ = check(network(build), hidden=hidden)
        assert kernels == ["attention"]
    net = network(build)
    assert not build_network(net, {}).run(feeds(net, hidden=True))["y"][0].any(), "zeros"


def test_einsum_written_attention() -> None:
    def build(q: Value, k: Value, v: Value, mask: Value) -> Any:
        weights = F.softmax(F.mul(F.einsum(q, k, equation="bhqd,bhkd->bhqk"), 0.3))
        return F.einsum(weights, v, equation="bhqk,bhkd->bqhd")

    kernels, _ = check(network(build))
    assert kernels == ["attention"]


def test_parts_of_one_projection_are_read_in_place() -> None:
    net = Network("net")
    x = net.input("x", Spec(("B", "T", 3, 4, 8), "float32"))
    parts = [F.slice(x, (0, 0, i, 0, 0), ("B", "T", 1, 4, 8), (1,) * 5) for i in range(3)]
    q, k, v = (F.permute(F.reshape(part, ("B", "T", 4, 8)), (0, 2, 1, 3)) for part in parts)
    y = F.matmul(F.softmax(F.mul(F.matmul(q, k, transpose_b=True), 0.35)), v)
    net.outputs["y"] = F.reshape(F.permute(y, (0, 2, 1, 3)), ("B", "T", 32))
    assert check(net)[0] == ["attention"]


def test_a_softmax_in_float32() -> None:
    def build(q: Value, k: Value, v: Value, mask: Value) -> Any:
        scores = F.mul(F.matmul(q, k, transpose_b=True), 0.35)
        return F.matmul(F.cast(F.softmax(F.cast(scores, "float32")), "bfloat16"), v)

    assert check(network(build, "bfloat16"), 2e-2)[0] == ["attention"]


def test_repeated_heads_are_read_once() -> None:
    def build(q: Value, k: Value, v: Value, mask: Value) -> Any:
        def repeated(x: Value) -> Any:
            b, heads, s, d = x.shape
            wide = F.expand(F.reshape(x, (b, heads, 1, s, d)), (b, heads, 3, s, d))
            return F.reshape(wide, (b, 6, s, d))

        return F.matmul(F.softmax(F.matmul(q, repeated(k), transpose_b=True)), repeated(v))

    shapes = {"q": ("B", 6, "T", 8), "k": ("B", 2, "S", 8), "v": ("B", 2, "S", 8)}
    assert check(network(build, **shapes))[0] == ["attention"]


@pytest.mark.parametrize("mask", [np.ones((1, 1, 1, 1), np.bool_), np.zeros((1, 1, 1, 1), np.float32)])
def test_a_mask_that_masks_nothing_is_dropped(mask: Any) -> None:
    def build(q: Value, k: Value, v: Value, _: Value) -> Any:
        everywhere = F.expand(q.network.constant(mask), (q.shape[0], 1, q.shape[2], k.shape[2]))
        return F.scaled_dot_product_attention(q, k, v, everywhere)

    net = network(build)
    lowered = pipeline.lower(net, CPU)
    assert [len(n.inputs) for n in lowered.nodes if n.op.name == "scaled_dot_product_attention"] == [3]
    check(net)


def test_what_the_kernel_cannot_take_is_decomposed_again() -> None:
    wide = {"q": ("B", 1, "T", 600), "k": ("B", 1, "S", 600), "v": ("B", 1, "S", 600)}
    net = network(lambda q, k, v, m: F.matmul(F.softmax(F.matmul(q, k, transpose_b=True)), v), **wide)
    kernels, log = check(net, 1e-5)
    assert "attention" not in kernels
    assert any("a known head width up to 512" in event.verdict for event in log)


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda q, k, v, m: F.matmul(F.softmax(F.matmul(q, k, transpose_b=True), axis=1), v), "along the last dim"),
        (lambda q, k, v, m: F.matmul(F.softmax(F.matmul(q, np.ones((8, 7), np.float32))), v), "are a weight"),
        (lambda q, k, v, m: F.matmul(F.softmax(F.mul(F.matmul(q, k, transpose_b=True), math.inf)), v), "scale is inf"),
        (lambda q, k, v, m: F.matmul(F.softmax(F.matmul(q, k, transpose_b=True)), F.cast(v, "bfloat16")), None),
        (lambda q, k, v, m: F.matmul(F.softmax(F.div(F.matmul(q, k, transpose_b=True), m)), v), None),
    ],
)
def test_what_stays(build: Callable[..., Any], why: str | None) -> None:
    if why is None:  # a mask that is no number, and operands of other dtypes
        with pytest.raises(Exception, match="cast one of them|must be"):
            network(build)
        return
    net = network(build, v=("B", 3, 7, 8), k=("B", 3, 7, 8))
    _, log = check(net)
    assert any(why in event.verdict for event in log)


def test_weights_that_are_read_elsewhere_stay() -> None:
    net = Network("net")
    q, k, v = (net.input(n, Spec(SHAPES[n], "float32")) for n in "qkv")
    scores = F.matmul(q, k, transpose_b=True)
    weights = F.softmax(scores)
    net.outputs["y"], net.outputs["weights"] = F.matmul(weights, v), weights
    kernels, log = check(net)
    assert "attention" not in kernels
    assert any("is read elsewhere too" in event.verdict for event in log)


def safe(scores: Value) -> Any:
    seen = F.reduce_max(F.cast(F.logical_not(F.equal(scores, -math.inf)), "int32"), axes=(3,), keepdims=True)
    return F.where(F.logical_not(F.cast(seen, "bool")), np.float32(0), F.softmax(scores))


@pytest.mark.parametrize("softmax", [F.softmax, safe])
@pytest.mark.parametrize("masked", [False, True])
def test_scores_that_are_read_elsewhere_stay(masked: bool, softmax: Callable[[Value], Value]) -> None:
    net = Network("net")
    q, k, v, m = (net.input(n, Spec(SHAPES[n], "float32")) for n in SHAPES)
    scores = F.matmul(q, k, transpose_b=True)
    scores = scores + m if masked else scores
    net.outputs["y"] = F.matmul(softmax(scores), v)
    net.outputs["other"] = F.reduce_max(scores, axes=(0,))
    kernels, _ = check(net)
    assert "attention" not in kernels


@pytest.mark.parametrize(("axis", "kernels"), [(-1, 1), (3, 1), (2, 3), (-2, 3), (0, 3), (1, 3)])
def test_the_axis_of_the_softmax(axis: int, kernels: int) -> None:
    """Over the keys, counted from either end; over anything else it is no attention, and says so."""
    found, log = check(network(lambda q, k, v, m: F.matmul(F.softmax(F.matmul(q, k, transpose_b=True), axis=axis), v)))
    assert len(found) == kernels
    assert any("not along the last dimension" in str(event) for event in log) == (kernels > 1)


def test_attention_of_matrices_alone_is_left_to_products() -> None:
    shapes = {"q": ("T", 8), "k": ("S", 8), "v": ("S", 8)}
    found, log = check(network(lambda q, k, v, m: F.matmul(F.softmax(F.matmul(q, k, transpose_b=True)), v), **shapes))
    assert len(found) == 3 and any("of a batch of matrices" in str(event) for event in log)


CHOSEN: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "hides where False": ("bool", lambda m: F.where(m, np.array(0, np.float32), np.array(-math.inf, np.float32))),
    "hides where True": ("bool", lambda m: F.where(m, np.array(-math.inf, np.float32), np.array(0, np.float32))),
    "the least float": ("float", lambda m: F.where(m, np.array(0, np.float32), np.array(LOWEST, np.float32))),
    "1 and −inf": ("float", lambda m: F.where(m, np.array(1, np.float32), np.array(-math.inf, np.float32))),
}


@pytest.mark.parametrize("name", CHOSEN)
@pytest.mark.parametrize("hidden", [False, True])
def test_masks_chosen_by_bools(name: str, hidden: bool) -> None:
    """A mask of 0 and −inf is one of bools; rows that see nothing stay what they were."""
    want, made = CHOSEN[name]
    net = network(lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, made(mask)))
    log: Log = []
    data = feeds(net, hidden)
    program = ProgramBuilder(pipeline.lower(net, CPU, log=log), CPU).build()
    (call,) = [c for c in program["calls"] if c["kernel"] == "attention"]
    assert call["params"]["mask"] == want
    got = build_network(net, {}).run(data)["y"]
    np.testing.assert_allclose(got, interpret(net, data)["y"], rtol=0, atol=1e-5)


def test_repeated_heads_that_an_exporter_turned() -> None:
    """Grouped queries as torch.onnx writes them: keys repeated, turned with their batches joined, and then scaled."""

    def build(q: Value, k: Value, v: Value, mask: Value) -> Any:
        batch, heads, keys, width = k.shape
        wide = (batch, 2 * heads, keys, width)
        k, v = (
            F.reshape(F.expand(F.reshape(x, (batch, heads, 1, keys, width)), (batch, heads, 2, keys, width)), wide)
            for x in (k, v)
        )
        turned = F.permute(F.reshape(k, (-1, keys, width)), (0, 2, 1))
        turned = F.reshape(turned, (batch, 2 * heads, width, keys))
        scores = F.matmul(F.mul(q, 0.6), F.mul(turned, 0.6))
        return F.matmul(F.softmax(F.where(mask, scores, np.float32(-math.inf)), axis=-1), v)

    assert check(network(build, q=("B", 6, "T", 8)))[0] == ["attention"]
