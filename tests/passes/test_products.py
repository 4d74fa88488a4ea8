"""Products and the lookups of weights: what they take with them, which become one, and what is stored."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ingot import dtypes
from ingot.backends.cpu import CPU
from ingot.dims import Dim
from ingot.ir import F, Network, Spec, Value
from ingot.passes import pipeline
from ingot.passes.weights import joined_name
from tests import nets
from tests.passes.small import F32, ops_of, vector


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


@pytest.mark.parametrize("scaled", [False, True])
def test_integers_and_scales_may_be_constants_too(scaled: bool) -> None:
    """A product reads constant int8 as it is; a constant of floats is no weight, and goes to the general kernel."""
    rng = np.random.default_rng(5)
    net = Network("net")
    x, whole = net.input("x", Spec((4, 9), F32)), rng.integers(-127, 128, (3, 9))
    if scaled:
        weight = F.dequantize(net.constant(whole.astype(np.int8)), net.constant(rng.random((3, 1), np.float32)))
    else:
        weight = net.constant(whole.astype(np.float32))
    net.outputs["y"] = F.matmul(x, weight, transpose_b=True)
    feeds = {"x": rng.standard_normal((4, 9)).astype(np.float32)}
    lowered = pipeline.lower(net, CPU, check=pipeline.Check(feeds, {}, tolerance=1e-5))
    assert ops_of(lowered) == (["matmul_packed"] if scaled else ["permute", "matmul"])
    assert sorted(v.dtype.name for v in lowered.constants) == (["float32", "int8"] if scaled else ["float32"])


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
