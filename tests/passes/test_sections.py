"""Copies of a network, and the sections that it is cut into."""

from __future__ import annotations

import numpy as np

from ingot.ir import F, Network, Spec, StateSpec, Value
from ingot.ir.interpret import interpret
from ingot.ir.verify import verify
from ingot.passes.clone import clone
from ingot.passes.sections import cut, layer_of, module_of
from tests import nets
from tests.passes.small import F32, Array


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
