"""Networks in another precision: weights and caches, inputs and outputs, and what stays as it is."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import dtypes
from ingot.backends.cpu import CPU
from ingot.backends.program import ProgramBuilder
from ingot.dims import Dim
from ingot.errors import OpError
from ingot.ir import F, Network, Spec, Value
from ingot.ir.evaluation import evaluate
from ingot.ir.interpret import interpret
from ingot.ir.verify import verify
from ingot.passes import pipeline
from ingot.passes.precision import in_precision
from ingot.passes.weights import recipe_of
from ingot.passes.widen import widen, without_float64
from tests import nets
from tests.passes.small import F32, Array, vector


def outputs(net: Network, weights: dict[str, Array], feeds: dict[str, Array]) -> dict[str, Array]:
    stored = {v.name: evaluate(recipe_of(v), weights) for v in net.parameters}
    return interpret(net, feeds, stored, states=nets.caches(net))


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


def scales_in_blocks(net: Network, scales: Value) -> Value:
    """Scales [3, 4] for a matrix [24, 4], as ONNX's block_size has them."""
    return F.reshape(F.expand(F.reshape(scales, (3, 1, 4)), (3, 8, 4)), (24, 4))  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["a parameter", "an input", "a sum"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_scales_stay_float32_however_they_reach_their_integers(dtype: str, kind: str) -> None:
    net = Network("net")
    x, q = net.input("x", Spec((5, 24), "float32")), net.parameter("q", Spec((24, 4), "int8"))
    make = net.input if kind == "an input" else net.parameter
    ws = make("ws", Spec((3, 4), "float32"))
    scales = scales_in_blocks(net, F.add(ws, ws) if kind == "a sum" else ws)
    net.outputs["y"] = F.mul(F.matmul(x, F.dequantize(q, scales)), F.slice(ws, (0, 0), (1, 4), (1, 1)))
    narrow = verify(in_precision(net, dtypes.get(dtype)))
    (dequantize,) = (node for node in narrow.nodes if node.op.name == "dequantize")
    assert dequantize.inputs[1].dtype is F32
    assert {node.output.dtype.name for node in narrow.nodes if node.op.name in ("matmul", "mul")} == {dtype}
    rng = np.random.default_rng(0)
    given = {"ws": rng.uniform(0.01, 0.02, (3, 4)).astype(np.float32)}
    feeds = {"x": rng.standard_normal((5, 24), np.float32), **(given if kind == "an input" else {})}
    weights = {"q": rng.integers(-128, 128, (24, 4)).astype(np.int8), **({} if kind == "an input" else given)}
    want, got = outputs(net, weights, feeds)["y"], outputs(narrow, weights, feeds)["y"]
    assert np.abs(got - want).max() < 0.02 * np.abs(want).max()
    if kind != "a sum":  # what is not computed is not rounded
        stored = narrow.inputs[-1] if kind == "an input" else narrow.parameters[-1]
        assert stored.name == "ws" and stored.dtype is F32


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
