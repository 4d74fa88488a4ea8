"""The compile path pass by pass: every stage means the same as the network it came from, and says what it did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ingot.backends.cpu import CPU
from ingot.backends.program import ProgramBuilder
from ingot.dims import Dim
from ingot.errors import NetworkError
from ingot.ir import F, Network, Spec, Value
from ingot.ir.interpret import interpret
from ingot.ir.text import parse
from ingot.ir.verify import verify
from ingot.passes import fuse, layout, pipeline, simplify
from ingot.passes.masks import shows
from ingot.passes.rewrite import Log
from tests import nets
from tests.passes.small import F32, ops_of, vector

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


@pytest.mark.parametrize("each", [True, False])
def test_a_pass_that_breaks_the_network_is_named(monkeypatch: pytest.MonkeyPatch, each: bool) -> None:
    monkeypatch.setattr(pipeline, "each", each)
    monkeypatch.setattr(simplify, "fold", lambda network, log: network.nodes.reverse())
    with pytest.raises(NetworkError, match="after pass 'fold'"):
        pipeline.lower(nets.llama(layers=1), CPU)


def test_a_network_is_verified_once_and_its_log_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[str, Log]] = []
    counts: list[int] = []

    def counted(network: Network, *known: Any) -> Network:
        counts[-1] += 1
        return verify(network, *known)

    monkeypatch.setattr(pipeline, "verify", counted)
    for each in (True, False):
        monkeypatch.setattr(pipeline, "each", each)
        counts.append(0)
        log: Log = []
        found.append((str(pipeline.lower(nets.llama(layers=1), CPU, log=log)), log))
    assert found[0] == found[1]
    assert counts[0] > counts[1] == 1


def test_bodies_in_bodies_are_not_lowered_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that each of them would look for by itself costs 2 to the power of how deep they nest."""
    monkeypatch.setattr(pipeline, "each", False)
    seen: list[str] = []

    def fails(network: Network, log: Log) -> None:
        seen.append(network.name)
        if network.name == "deepest":
            raise ZeroDivisionError

    monkeypatch.setattr(simplify, "fold", fails)
    net = nested(6)
    with pytest.raises(ZeroDivisionError):
        pipeline.lower(net, CPU)
    assert seen.count("deepest") == 2


def nested(depth: int) -> Network:
    """Branches in branches, the innermost named "deepest"."""
    inner: Network | None = None
    for name in ("deepest", *(f"around {i}" for i in range(depth))):
        net, other = Network(name), Network("other")
        predicate, x = _operands(net)
        other.outputs["y"] = _operands(other)[1]
        y = F.exp(x) if inner is None else F.cond(predicate, predicate, x, then_branch=inner, else_branch=other)
        net.outputs["y"] = y
        inner = net
    return net


def _operands(net: Network) -> tuple[Value, Value]:
    return net.input("predicate", Spec((), "bool")), net.input("x", Spec((4,), F32))


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


def test_layout_is_reached_only_through_parameters() -> None:
    """pack leaves nothing but packed products, and settle gives every parameter its recipe."""
    net = pipeline.lower(nets.llama(), CPU)
    assert "lowered" not in ops_of(net) and all(v.recipe is not None for v in net.parameters)
    log: Log = []
    layout.settle(net, log)
    assert not log
