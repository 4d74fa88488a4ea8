"""The compile path pass by pass: every stage means the same as the network it came from, and says what it did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ingot import dtypes
from ingot.backends.cpu import CPU
from ingot.backends.program import ProgramBuilder
from ingot.dims import Dim
from ingot.errors import NetworkError, OpError
from ingot.ir import F, Hole, Network, Spec, StateSpec, Value
from ingot.ir.interpret import interpret
from ingot.ir.recipe import evaluate
from ingot.ir.text import parse
from ingot.ir.verify import verify
from ingot.passes import fuse, layout, pipeline, simplify
from ingot.passes.clone import clone
from ingot.passes.masks import shows
from ingot.passes.precision import in_precision
from ingot.passes.rewrite import Log, Rule, apply
from ingot.passes.sections import cut, layer_of, module_of
from ingot.passes.weights import joined_name, recipe_of
from ingot.passes.widen import widen, without_float64
from tests import nets

Array = np.ndarray[Any, Any]
F32 = dtypes.float32


def outputs(net: Network, weights: dict[str, Array], feeds: dict[str, Array]) -> dict[str, Array]:
    stored = {v.name: evaluate(recipe_of(v), weights) for v in net.parameters}
    return interpret(net, feeds, stored, states=nets.caches(net))


def ops_of(net: Network) -> list[str]:
    return [nets.op_name(n) for n in net.nodes]


def vector(build: Callable[[Value], Any], *, size: int = 6) -> Network:
    """A network of one input x [T, size] with the one output y."""
    net = Network("net")
    x = net.input("x", Spec((Dim("T"), size), F32))
    net.outputs["y"] = build(x)
    return net


X = {"x": np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)}


# ------------------------------------------------------------------------------------------------------- the whole path


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_every_stage_gives_the_numbers_of_the_first(dtype: str, bias: bool, tied: bool) -> None:
    net = nets.llama(dtype=dtype, bias=bias, tied=tied)
    weights, feeds = nets.weights(net), nets.step()
    stages: list[tuple[str, str]] = []
    check = pipeline.Check(feeds, weights, nets.caches(net), tolerance=1e-5 if dtype == "float32" else 0.03)
    lowered = pipeline.lower(net, CPU, dump=lambda name, text: stages.append((name, text)), check=check)
    assert [name for name, _ in stages] == ["start", *(s.name for s in CPU.passes)]
    assert str(parse(stages[-1][1])) == stages[-1][1] == str(lowered)


def test_a_decoder_layer_is_eight_calls() -> None:
    net = nets.llama(layers=3)
    before = str(net)
    lowered = pipeline.lower(net, CPU)
    program = ProgramBuilder(lowered, CPU).build()
    assert str(net) == before, "the network itself is not changed"
    layer = [c["kernel"] for c in program["calls"] if c.get("where") == "model.layers.1"]
    assert layer == [
        "rms_norm", "matmul_packed", "rope_kv_write", "paged_attention", "matmul_packed",
        "rms_norm", "matmul_packed", "matmul_packed",
    ]  # fmt: skip
    assert len(program["calls"]) == 5 + 3 * 8
    down = [c for c in program["calls"] if c["kernel"] == "matmul_packed"][-2]
    assert down["params"]["epilogue"]["steps"][-1][0] == "add", "the residual is in the epilogue"
    tables = [b["tensor"] for b in program["buffers"] if b.get("tensor", "").startswith("model.embed_tokens")]
    assert tables == ["model.embed_tokens.weight.packed"], "a tied table is stored once"


def test_rope_and_cache_write_are_one_walk_with_slopes_too() -> None:
    net = nets.llama(layers=2, slopes=np.array([0.5, 0.25, 0.125, 0.0625], np.float32))
    weights, feeds = nets.weights(net), nets.step()
    check = pipeline.Check(feeds, weights, nets.caches(net), tolerance=1e-5)
    lowered = pipeline.lower(net, CPU, check=check)
    names = [node.op.name for node in lowered.nodes]
    assert names.count("rope_kv_write") == names.count("paged_attention") == 2 and "rope" not in names
    assert all(len(node.inputs) == 6 for node in lowered.nodes if node.op.name == "paged_attention")


def test_qkv_with_bias_is_one_product_of_joined_weights() -> None:
    lowered = pipeline.lower(nets.llama(layers=1, bias=True), CPU)
    qkv = next(n for n in lowered.nodes if nets.op_name(n) == "matmul_packed")
    assert [v.name.rsplit(".", 3)[-3:] for v in qkv.inputs[1:]] == [
        ["q_proj_k_proj_v_proj", "weight", "packed"],
        ["self_attn", "q_proj_k_proj_v_proj", "bias"],
    ]
    recipe = qkv.inputs[1].recipe
    assert [s.split(".")[-2] for s in recipe.sources] == ["q_proj", "k_proj", "v_proj"]
    assert [c.name for c in recipe.steps] == ["cast", "cast", "cast", "concat", "pack_panels"]


def test_compiling_twice_gives_the_same_program() -> None:
    one, two = (ProgramBuilder(pipeline.lower(nets.llama(), CPU), CPU).build() for _ in range(2))
    assert one == two


def test_a_pass_that_changes_numbers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nets.llama(layers=1)
    good = fuse.elementwise

    def bad(network: Network, log: Log) -> None:
        good(network, log)
        net_out = network.outputs["logits"]
        with network.scope("oops"):
            network.outputs["logits"] = net_out * 1.5

    monkeypatch.setattr(fuse, "elementwise", bad)
    check = pipeline.Check(nets.step(), nets.weights(net), nets.caches(net), tolerance=0.02)
    with pytest.raises(NetworkError, match="pass 'elementwise' changed output 'logits': it is off by 0.5"):
        pipeline.lower(net, CPU, check=check)


def test_a_pass_that_breaks_the_network_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simplify, "fold", lambda network, log: network.nodes.reverse())
    with pytest.raises(NetworkError, match="after pass 'fold'"):
        pipeline.lower(nets.llama(layers=1), CPU)


def test_the_log_says_what_was_refused_and_why() -> None:
    net = Network("net")
    x = net.input("x", Spec((Dim("T"), 6), F32))
    y = F.matmul(x, net.parameter("w", Spec((4, 6), F32)), transpose_b=True)
    net.outputs["a"], net.outputs["b"] = F.silu(y), y
    log: Log = []
    pipeline.lower(net, CPU, log=log)
    assert any("epilogues" in str(e) and "has other readers" in str(e) for e in log)


# --------------------------------------------------------------------------------------------------------------- passes


def test_dead_code_and_shared_code() -> None:
    net = vector(lambda x: F.exp(x) + F.exp(x))
    F.log(net.inputs[0])
    simplify.remove_dead(net, [])
    simplify.share(net, [])
    assert ops_of(verify(net)) == ["exp", "add"]


def test_constants_are_folded_up_to_a_size() -> None:
    log: Log = []
    net = vector(lambda x: x + F.exp(F.expand(net_constant(x, 1.0), (6,))))
    simplify.fold(net, log)
    assert ops_of(verify(net)) == ["add"]
    bomb = vector(lambda x: F.reduce_sum(F.expand(net_constant(x, 1.0), (10**6, 10**6))))
    simplify.fold(bomb, log)
    assert ops_of(bomb) == ["expand", "reduce_sum"] and "more than" in log[-1].verdict
    lowered = pipeline.lower(bomb, CPU)  # nothing of that size is ever made
    assert ops_of(lowered) == ["expand", "reduce_sum"]


def net_constant(x: Value, number: float) -> Value:
    return x.network.constant(np.array(number, np.float32))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "build",
    [
        lambda x: x * 1,
        lambda x: 1 * x,
        lambda x: x / 1,
        lambda x: x - 0,
        lambda x: F.neg(F.neg(x)),
        lambda x: F.cast(x, "float32"),
        lambda x: F.cast(F.cast(x, "float64"), "float32"),
        lambda x: F.reshape(F.reshape(x, (-1,)), x.shape),
        lambda x: F.permute(F.permute(x, (1, 0)), (1, 0)),
        lambda x: F.expand(x, x.shape),
        lambda x: F.slice(x, (0, 0), x.shape, (1, 1)),
        lambda x: F.concat([x], 0),
    ],
)
def test_what_changes_nothing_goes(build: Callable[[Value], Value]) -> None:
    net = vector(lambda x: F.exp(build(x)))
    simplify.algebra(net, [])
    assert ops_of(verify(net)) == ["exp"]


@pytest.mark.parametrize(
    "build",
    [
        lambda x: x + 0,  # −0 + 0 is 0
        lambda x: x * 2,
        lambda x: F.cast(F.cast(x, "bfloat16"), "float32"),
        lambda x: F.permute(x, (1, 0)),
        lambda x: F.slice(x, (0, 1), (x.shape[0], 5), (1, 1)),
    ],
)
def test_what_changes_something_stays(build: Callable[[Value], Value]) -> None:
    net = vector(build)
    before = ops_of(net)
    simplify.algebra(net, [])
    assert ops_of(net) == before


def test_a_constant_of_equal_elements_is_a_number() -> None:
    ones = np.ones((3, 1), np.float32)
    net = vector(lambda x: F.exp(x * x.network.constant(np.ones(6, np.float32)) + x.network.constant(ones[:1])))
    want, log = interpret(net, X), []
    simplify.algebra(net, log)
    assert ops_of(verify(net)) == ["add", "exp"] and [v.shape for v in net.nodes[0].inputs] == [(Dim("T"), 6), ()]
    np.testing.assert_array_equal(interpret(net, X)["y"], want["y"])
    grows = vector(lambda x: F.slice(x, (0, 0), (1, 6), (1, 1)) * x.network.constant(ones))
    simplify.algebra(grows, log)
    assert ops_of(grows) == ["slice", "mul"], "here the constant says how many rows there are"


@pytest.mark.parametrize(
    ("build", "ops"),
    [
        (lambda x, mask: F.where(mask(True), x, 0.0), ["exp"]),
        (lambda x, mask: F.where(F.logical_not(mask(True)), x, F.exp(x)), ["exp", "exp"]),
        (lambda x, mask: F.where(mask(True), F.slice(x, (0, 0), (1, 6), (1, 1)), x), ["slice", "expand", "exp"]),
        (lambda x, mask: F.where(F.logical_and(F.greater(x, 0.0), mask(True)), x, 0.0), ["greater", "where", "exp"]),
        (lambda x, mask: F.where(F.logical_or(mask(False), F.greater(x, 0.0)), x, 0.0), ["greater", "where", "exp"]),
    ],
)  # fmt: skip
def test_masks_that_hide_nothing_go(build: Any, ops: list[str]) -> None:
    def mask(x: Value, truth: bool) -> Value:
        return x.network.constant(np.full(6, truth))  # type: ignore[no-any-return]

    net = vector(lambda x: F.exp(build(x, lambda *args: mask(x, *args))))
    want = interpret(net, X)
    simplify.fold(net, [])
    simplify.algebra(net, [])
    net.remove_dead()
    assert ops_of(verify(net)) == ops
    np.testing.assert_array_equal(interpret(net, X)["y"], want["y"])


def test_pairs_of_views_become_one() -> None:
    net = vector(lambda x: F.slice(F.slice(x, (0, 1), (x.shape[0], 5), (1, 1)), (0, 1), (x.shape[0], 2), (1, 2)))
    want = interpret(net, X)
    simplify.algebra(net, [])
    assert ops_of(verify(net)) == ["slice"]
    np.testing.assert_array_equal(interpret(net, X)["y"], want["y"])


def test_an_elementwise_group_ends_where_a_value_is_read_twice() -> None:
    net = vector(lambda x: F.silu(x * 2 + 1))
    fuse.elementwise(net, [])
    assert ops_of(verify(net)) == ["fused_elementwise"]
    net = vector(lambda x: F.exp(x * 2))
    shared = net.nodes[0].output
    net.outputs["z"] = F.reduce_sum(shared, (1,))
    want = interpret(net, X)
    fuse.elementwise(net, [])
    assert ops_of(verify(net)) == ["fused_elementwise", "fused_elementwise", "reduce_sum"]
    np.testing.assert_allclose(interpret(net, X)["y"], want["y"], rtol=1e-6)


def test_a_value_read_twice_inside_its_group_joins_it() -> None:
    net = vector(lambda x: F.exp(x) * F.sigmoid(F.exp(x)))
    simplify.share(net, [])
    fuse.elementwise(net, [])
    assert ops_of(verify(net)) == ["fused_elementwise"]


def test_float64_is_a_part_of_the_loop_that_reads_it() -> None:
    net = vector(lambda x: F.cast(F.exp(F.cast(x, "float64")) * 2.0, "float32"))
    lowered = pipeline.lower(net, CPU)
    assert ops_of(lowered) == ["fused_elementwise"]
    builder = ProgramBuilder(lowered, CPU)
    builder.build()
    assert builder.host_calls == []


def test_a_group_stays_within_the_limits_of_an_expression() -> None:
    def long(x: Value) -> Value:
        for i in range(300):
            x = x * (1.0 + i / 1000) + 0.5
        return x

    net = vector(long)
    want = interpret(net, X)
    fuse.elementwise(net, [])
    assert 2 < len(verify(net).nodes) < 20
    np.testing.assert_allclose(interpret(net, X)["y"], want["y"], rtol=1e-4)


def linear_net(epilogue: Callable[..., Value], *, weights: int = 1, transpose: bool = True) -> Network:
    net = Network("net")
    x = net.input("x", Spec((Dim("T"), 6), F32))
    params = [net.parameter(f"w{i}", Spec((4, 6) if transpose else (6, 4), F32)) for i in range(weights)]
    products = [F.matmul(x, w, transpose_b=transpose) for w in params]
    net.outputs["y"] = epilogue(net, x, *products)
    return net


def lowered_ops(net: Network) -> list[str]:
    """Lowers, checking the numbers of every stage on the way."""
    names = {v.name: v.spec.evaluate({"T": 3}) for v in [*net.inputs, *net.parameters]}
    rng = np.random.default_rng(1)
    values = {n: rng.standard_normal(shape).astype(np.float32) for n, shape in names.items()}
    feeds = {v.name: values[v.name] for v in net.inputs}
    return ops_of(pipeline.lower(net, CPU, check=pipeline.Check(feeds, values, tolerance=1e-5)))


def test_products_take_their_epilogue() -> None:
    assert lowered_ops(linear_net(lambda net, x, y: F.gelu(y + net.parameter("b", Spec((4,), F32))))) == [
        "matmul_packed"
    ]
    assert lowered_ops(linear_net(lambda net, x, y: F.cast(y * 2, "bfloat16"))) == ["matmul_packed"]
    assert lowered_ops(linear_net(lambda net, x, y: F.relu(y), transpose=False)) == ["matmul_packed"]
    column = linear_net(lambda net, x, y: y * F.slice(x, (0, 0), (x.shape[0], 1), (1, 1)))
    assert lowered_ops(column) == ["slice", "matmul_packed"]


def test_two_products_of_one_x_become_one() -> None:
    assert lowered_ops(linear_net(lambda net, x, a, b: F.silu(a) * b, weights=2)) == ["matmul_packed"]
    assert lowered_ops(linear_net(lambda net, x, a, b: a + b, weights=2)) == ["matmul_packed"]


def test_what_a_product_cannot_take_stays_outside() -> None:
    assert lowered_ops(linear_net(lambda net, x, y: F.greater(y, 0.0))) == ["matmul_packed", "fused_elementwise"]
    row = linear_net(lambda net, x, y: y * F.slice(x, (0, 0), (1, 4), (1, 1)))
    assert lowered_ops(row) == ["matmul_packed", "slice", "fused_elementwise"]


def test_siblings_with_constant_weights_and_with_rows_of_integers() -> None:
    """Convolutions of 1×1 whose weights are constants, of other widths; and products of the same rows of int8."""
    rng = np.random.default_rng(0)
    net = Network("net")
    x = net.input("x", Spec((1, 6, 5, 5), F32))
    for i, n in enumerate((3, 40, 7)):
        weight = net.constant(rng.standard_normal((n, 6, 1, 1)).astype(np.float32))
        one = {"stride": (1, 1), "pre_padding": (0, 0), "post_padding": (0, 0), "dilation": (1, 1), "groups": 1}
        net.outputs[f"y{i}"] = F.softmax(F.conv(x, weight, net.parameter(f"b{i}", Spec((n,), F32)), **one), axis=1)
    values = {v.name: rng.standard_normal(v.spec.evaluate({})).astype(np.float32) for v in net.parameters}
    feeds = {"x": rng.standard_normal((1, 6, 5, 5)).astype(np.float32)}
    lowered = pipeline.lower(net, CPU, check=pipeline.Check(feeds, values, tolerance=1e-5))
    assert ops_of(lowered).count("matmul_packed") == 1
    net = Network("net")
    rows = F.quantize_rows(net.input("x", Spec((4, 9), F32)))
    for i, n in enumerate((3, 40)):
        weight, scales = net.parameter(f"w{i}", Spec((n, 9), "int8")), net.parameter(f"s{i}", Spec((n, 1), F32))
        product = F.matmul(F.dequantize(*rows), F.dequantize(weight, scales), transpose_b=True)
        net.outputs[f"y{i}"] = F.softmax(product)
    values = {f"w{i}": rng.integers(-127, 128, (n, 9)).astype(np.int8) for i, n in enumerate((3, 40))}
    values |= {f"s{i}": rng.random((n, 1), np.float32) for i, n in enumerate((3, 40))}
    feeds = {"x": rng.standard_normal((4, 9)).astype(np.float32)}
    lowered = pipeline.lower(net, CPU, check=pipeline.Check(feeds, values, tolerance=1e-5))
    assert ops_of(lowered).count("matmul_packed") == 1


@pytest.mark.parametrize("zeros", [False, True])
def test_rows_of_integers_by_groups_of_int4(zeros: bool) -> None:
    """Products of the same rows are one; zero points have a second one of sums of the whole numbers of groups."""
    rng = np.random.default_rng(3)
    net, values = Network("net"), {}
    rows = F.quantize_rows(net.input("x", Spec((4, 64), F32)))
    for i, n in enumerate((3, 40)):
        weight, scales = net.parameter(f"w{i}", Spec((n, 64), "int4")), net.parameter(f"s{i}", Spec((n, 2), F32))
        zero = [net.parameter(f"z{i}", Spec((n, 2), "int8"))] if zeros else []
        product = F.matmul(F.dequantize(*rows), F.dequantize(weight, scales, *zero, group=32), transpose_b=True)
        net.outputs[f"y{i}"] = F.softmax(product)
        values[f"w{i}"] = rng.integers(-8, 8, (n, 64)).astype(dtypes.int4.numpy)
        values[f"s{i}"] = rng.random((n, 2), np.float32)
        values |= {v.name: rng.integers(-99, 99, (n, 2)).astype(np.int8) for v in zero}
    feeds = {"x": rng.standard_normal((4, 64)).astype(np.float32)}
    lowered = pipeline.lower(net, CPU, check=pipeline.Check(feeds, values, tolerance=2e-5))
    read = [n.inputs[0].dtype.name for n in lowered.nodes if nets.op_name(n) == "matmul_packed"]
    assert sorted(read) == (["float32", "int8", "int8"] if zeros else ["int8"])


@pytest.mark.parametrize("kinds", [("float16", "float16"), ("float16", "float32")])
def test_products_are_one_where_their_scales_have_one_type(kinds: tuple[str, str]) -> None:
    """Two weights of a gated layer, and two products of the same rows."""
    rng = np.random.default_rng(4)
    net, values, products = Network("net"), {}, []
    x = net.input("x", Spec((4, 64), F32))
    for i, kind in enumerate((*kinds, *kinds)):
        weight, scales = net.parameter(f"w{i}", Spec((40, 64), "int4")), net.parameter(f"s{i}", Spec((40, 2), kind))
        products.append(F.matmul(x, F.dequantize(weight, scales, group=32), transpose_b=True))
        values[f"w{i}"] = rng.integers(-8, 8, (40, 64)).astype(dtypes.int4.numpy)
        values[f"s{i}"] = rng.random((40, 2), np.float32).astype(kind) / 9
    net.outputs["y"] = F.silu(products[0]) * products[1]
    net.outputs["a"], net.outputs["b"] = (F.softmax(p) for p in products[2:])
    feeds = {"x": rng.standard_normal((4, 64)).astype(np.float32)}
    lowered = pipeline.lower(net, CPU, check=pipeline.Check(feeds, values, tolerance=2e-5))
    assert ops_of(lowered).count("matmul_packed") == (2 if len(set(kinds)) == 1 else 3)


def test_products_of_computed_operands_use_the_general_kernel() -> None:
    net = vector(lambda x: F.matmul(x, x, transpose_b=True))
    lowered = pipeline.lower(net, CPU)
    assert ops_of(lowered) == ["permute", "matmul"]


def test_rows_that_are_known_are_stored() -> None:
    net = Network("net")
    x = net.input("x", Spec((2, 5), "int32"))
    words, places, bias = (net.parameter(n, Spec((9, 6) if n != "bias" else (3, 4), F32)) for n in ("w", "p", "bias"))
    ids = net.constant(np.arange(5, dtype=np.int64)[None])
    index = net.constant(np.array([[2, 0], [1, 1]], np.int32))
    net.outputs["y"] = F.embedding(x, words) + F.embedding(ids, places)
    net.outputs["z"] = F.exp(F.take(bias, index, 1))
    rng = np.random.default_rng(0)
    values = {v.name: rng.standard_normal(v.spec.evaluate({})).astype(np.float32) for v in net.parameters}
    check = pipeline.Check({"x": rng.integers(0, 9, (2, 5)).astype(np.int32)}, values, tolerance=1e-6)
    lowered = pipeline.lower(net, CPU, check=check)
    assert ops_of(lowered) == ["embedding", "fused_elementwise", "fused_elementwise"]
    assert {v.name for v in lowered.parameters} == {"w", "p.rows.reshaped", "bias.rows.reshaped"}


@pytest.mark.parametrize("index", [[0, 9], [-1, 2], []])
def test_rows_that_are_not_there_are_left_to_the_run(index: list[int]) -> None:
    net, log = Network("net"), []
    net.outputs["y"] = F.embedding(net.constant(np.array(index, np.int32)), net.parameter("w", Spec((9, 6), F32)))
    pipeline.lower(net, CPU, log=log)
    assert any(e.rule == "lookups" for e in log)


def test_one_weight_in_two_places_is_packed_once() -> None:
    net = Network("net")
    x = net.input("x", Spec((Dim("T"), 6), F32))
    w = net.parameter("w", Spec((6, 6), F32))
    net.outputs["y"] = F.matmul(F.tanh(F.matmul(x, w, transpose_b=True)), w, transpose_b=True)
    lowered = pipeline.lower(net, CPU)
    assert [v.name for v in lowered.parameters] == ["w.packed"]


def test_joined_names_read_well() -> None:
    assert joined_name(["a.q.weight", "a.k.weight"]) == "a.q_k.weight"
    assert joined_name(["a.b", "c"]) == "a.b_c"
    assert joined_name(["w"]) == "w"
    assert joined_name([f"experts.{i}.weight" for i in range(64)]) == "experts.0.weight_and_63_more"


# ----------------------------------------------------------------------------------------------------------- rewriting


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


@pytest.mark.parametrize(("use", "meaning"), [
    (lambda m, x: F.where(m, x, -np.inf), True), (lambda m, x: F.where(m, -np.inf, x), False),
    (lambda m, x: F.where(F.logical_not(m), x, -1e30), False), (lambda m, x: F.where(m, x, 0.0), None),
    (lambda m, x: F.where(x > 0, m, m), None),
])
def test_what_a_mask_means(use: Callable[[Value, Value], Value], meaning: bool | None) -> None:
    net = Network()
    mask, x = net.input("mask", Spec((4,), "bool")), net.input("x", Spec((4,), "f32"))
    net.outputs["y"] = use(mask, x)
    assert shows(net, mask) is meaning


# --------------------------------------------------------------------------------------------- copies, layers,
# precision


def test_a_clone_is_the_same_and_apart() -> None:
    net = nets.llama()
    copy = clone(net)
    assert str(verify(copy)) == str(net)
    copy.outputs.clear()
    copy.remove_dead()
    assert "logits" in net.outputs and net.nodes


def test_layers_are_found_by_module_path() -> None:
    assert layer_of("model.layers.12.mlp.up_proj") == "model.layers.12"
    assert layer_of("blocks.0") == "blocks.0" and layer_of("model.norm") == "" and layer_of("v2.x") == ""
    assert module_of("features.conv.1") == "features" == module_of("features")
    net = nets.llama(layers=3)
    assert [s.name for s in cut(net)] == [
        "before the layers", "model.layers.0", "model.layers.1", "model.layers.2", "after the layers",
    ]  # fmt: skip


def test_a_state_that_crosses_layers_keeps_the_network_whole() -> None:
    """One state does, and one does not."""
    net = Network("net")
    x, slot = net.input("x", Spec((3, 2, 8), F32)), net.input("slot", Spec((3,), "int32"))
    for name, layers in (("a", (0, 0)), ("b", (1, 2))):
        state = net.state(name, StateSpec("f32", heads=2, head_dim=8))
        for layer in layers:
            with net.scope(f"layers.{layer}"):
                state = F.kv_write(state, F.exp(x), x, slot)
    assert [s.name for s in cut(net)] == ["network"]


def test_layers_chained_are_the_network() -> None:
    net = nets.llama()
    weights, feeds = nets.weights(net), nets.step()
    want = interpret(net, feeds, weights, states=nets.caches(net))
    arrays: dict[Value, Array] = {v: feeds[v.name] for v in net.inputs}
    for section in cut(net):
        verify(section.network)
        given = {label: arrays[v] for label, v in section.reads.items()}
        parameters = {v.name: weights[v.name] for v in section.network.parameters}
        found = interpret(section.network, given, parameters, states=nets.caches(section.network))
        arrays |= {v: found[label] for label, v in section.writes.items()}
    np.testing.assert_array_equal(arrays[net.outputs["logits"]], want["logits"])


def test_widened_networks_are_float32_throughout() -> None:
    net = nets.llama(dtype="bfloat16")
    wide = verify(widen(net))
    assert all(v.dtype not in (dtypes.bfloat16, dtypes.float16) for v in wide.values.values())
    weights = {n: w.astype(np.float32) for n, w in nets.weights(net).items()}
    plain = nets.llama()
    got = interpret(wide, nets.step(), weights, states=nets.caches(wide))
    want = interpret(plain, nets.step(), weights, states=nets.caches(plain))
    np.testing.assert_array_equal(got["logits"], want["logits"])


def test_an_input_that_nothing_reads_is_not_cast() -> None:
    net = Network("net")
    net.input("unread", Spec((3,), "float32"))
    net.outputs["y"] = F.exp(net.input("x", Spec((3,), "float32")))
    narrow = in_precision(net, dtypes.bfloat16)
    assert [node.op.name for node in narrow.nodes] == ["cast", "exp", "cast"]
    assert [value.name for value in narrow.inputs] == ["unread", "x"]


def test_a_node_that_one_rule_took_is_gone_for_the_next() -> None:
    net = Network("net")
    net.outputs["y"] = F.neg(F.exp(net.input("x", Spec((3,), "float32"))))
    rules = [Rule(name, lambda x: F.neg(F.exp(x)), made) for name, made in (
        ("first", lambda x: F.sqrt(x)), ("second", lambda x: F.abs(x)))]  # fmt: skip
    log: Log = []
    assert apply(net, rules, log) == 1
    assert [node.op.name for node in net.nodes] == ["sqrt"] and [event.rule for event in log] == ["first"]


def test_a_widened_network_has_wide_inputs_and_outputs() -> None:
    """float64 becomes float32 inside alone: what is given and what comes out keep it."""
    net = Network("net")
    net.outputs["y"] = F.exp(net.input("x", Spec((3,), "bfloat16")))
    wide = widen(net)
    assert wide.inputs[0].dtype is F32 and wide.outputs["y"].dtype is F32
    double = Network("net")
    double.outputs["y"] = F.exp(double.input("x", Spec((3,), "float64")))
    single = without_float64(double)
    assert single.inputs[0].dtype.name == single.outputs["y"].dtype.name == "float64"
    assert [node.op.name for node in single.nodes] == ["cast", "exp", "cast"]


def test_layout_is_reached_only_through_parameters() -> None:
    """pack leaves nothing but packed products, and settle gives every parameter its recipe."""
    net = pipeline.lower(nets.llama(), CPU)
    assert "lowered" not in ops_of(net) and all(v.recipe is not None for v in net.parameters)
    log: Log = []
    layout.settle(net, log)
    assert not log


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_another_precision_reaches_weights_and_caches(dtype: str) -> None:
    net = nets.llama()
    narrow = verify(in_precision(net, dtypes.get(dtype)))
    assert {v.dtype.name for v in (*narrow.parameters, *narrow.states)} == {dtype}
    assert narrow.outputs["logits"].dtype is F32
    weights, feeds = nets.weights(net), nets.step()
    want = outputs(net, weights, feeds)["logits"]
    got = outputs(narrow, weights, feeds)["logits"]
    assert 0 < np.abs(got - want).max() < 0.05 * np.abs(want).max()
    assert len(ProgramBuilder(pipeline.lower(narrow, CPU), CPU).build()["calls"]) == 5 + 2 * 8


def test_what_a_network_casts_itself_stays() -> None:
    net = vector(lambda x: F.cast(F.exp(F.cast(x, "float32")), "float16"))
    narrow = in_precision(net, dtypes.bfloat16)
    assert [n.op.dtype.name for n in narrow.nodes if n.op.name == "cast"] == ["bfloat16", "float32", "float16"]  # type: ignore[attr-defined]


def test_what_no_precision_can_be_given_to_is_an_error() -> None:
    """An op that takes float32 alone is not given it silently: only floats that do not fit together are cast."""
    net = Network("net")
    positions = net.input("positions", Spec((Dim("T"),), "int32"))
    net.outputs["cos"], net.outputs["sin"] = F.rope_table(positions, net.parameter("inv_freq", Spec((4,), F32)))
    with pytest.raises(OpError, match="rope_table"):
        in_precision(net, dtypes.bfloat16)
