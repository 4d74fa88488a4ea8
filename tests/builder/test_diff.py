"""Two engines compared layer by layer and value by value, on what they have stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ingot
from ingot.builder.diff import Diff, diff
from ingot.builder.layers import AT_ONCE, Stored, network_of, row
from ingot.builder.network import build_network
from ingot.builder.report import seeded
from ingot.builder.stored import Recovered, shown_by
from ingot.engine.inputs import sizes_that_run
from ingot.engine.session import Engine
from ingot.errors import InputError, UserError
from ingot.ir import F, Network, Spec
from ingot.ir.interpret import interpret
from ingot.passes.weights import recipe_of
from tests import nets
from tests.builder.test_refit import twice

Array = np.ndarray[Any, Any]


def llama(dtype: str, scale: float = 1.0, **words: Any) -> Engine:
    """The Llama-like network; `scale` multiplies one weight in its second layer."""
    net = nets.llama(dtype=dtype, **words)
    weights = nets.weights(nets.llama(**words))
    weights["model.layers.1.mlp.up_proj.weight"] = weights["model.layers.1.mlp.up_proj.weight"] * np.float32(scale)
    return build_network(net, weights)


def compared(a: Engine, b: Engine, **words: Any) -> Diff:
    return diff(a, b, seeded(network_of(a), 0), **words)


def test_an_engine_is_itself() -> None:
    engine = llama("float32")
    for values in (False, True):
        found = compared(engine, engine, values=values)
        assert {p.relative for p in (*found.places, *found.outputs)} == {0.0}
        assert found.hidden == ()
        assert found.beyond(0.0) is None


def test_layers_of_two_precisions() -> None:
    found = compared(llama("bfloat16"), llama("float32"))
    assert [p.name for p in found.places] == ["before the layers", "model.layers.0", "model.layers.1"]
    assert [p.name for p in found.outputs] == ["logits"]
    assert all(1e-5 < p.relative < 0.05 for p in found.places)
    assert found.beyond(0.05) is None
    beyond = found.beyond(1e-6)
    assert beyond is found.places[0]


def test_the_layer_that_differs_is_found() -> None:
    a, b = llama("float32"), llama("float32", scale=1.01)
    layers = compared(a, b)
    assert [p.relative > 0 for p in layers.places] == [False, False, True]
    values = compared(a, b, values=True)
    first = values.beyond(0.0)
    assert first is not None
    assert first.op == "matmul"
    assert first.relative == pytest.approx(0.01, rel=0.02)


def test_values_are_those_of_the_interpreter() -> None:
    net = Network("net")
    x = net.input("x", Spec((5, 8), "float32"))
    h = F.relu(F.matmul(x, net.parameter("w", Spec((8, 6), "float32"))))
    net.outputs["y"] = F.softmax(h) + h
    weights = {"w": np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)}
    engine = build_network(net, weights)
    feeds = {"x": np.random.default_rng(1).standard_normal((5, 8)).astype(np.float32)}
    taps: list[float] = []
    interpret(net, feeds, weights, taps=lambda node, results: taps.append(float(np.abs(results[0]).max())))
    found = diff(engine, engine, feeds, values=True)
    assert [p.op for p in found.places] == ["matmul", "relu", "softmax", "add"]
    np.testing.assert_allclose([p.largest_value for p in found.places], taps, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_parameters_are_had_back_from_what_is_stored(dtype: str) -> None:
    net = nets.llama(dtype=dtype, tied=False, bias=True)
    weights = nets.weights(net)
    found = Recovered(shown_by(build_network(net, weights), net))
    assert set(found) == set(weights) and len(found) == len(weights)
    for name, array in weights.items():
        assert found[name].tobytes() == array.tobytes(), name
    with pytest.raises(KeyError):
        found["nobody"]


def test_modules_at_the_top_are_layers_where_none_are_numbered() -> None:
    class Net(ingot.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = ingot.nn.Linear(8, 16)
            self.down = ingot.nn.Linear(16, 4)

        def forward(self, x: Any) -> Any:
            return self.down(ingot.functional.relu(self.up(x)))

    engines = [
        ingot.build(Net(), {"x": Spec((3, 8), "float32")}, weights_from="random", precision=p, report=False)
        for p in ("bfloat16", "float32")
    ]
    feeds = {"x": np.ones((3, 8), np.float32)}
    assert [p.name for p in diff(engines[0], engines[1], feeds).places] == ["up", "down"]
    values = diff(engines[0], engines[1], feeds, values=True)
    assert [p.op for p in values.places] == ["matmul", "add", "relu", "matmul", "add"]  # casts stand in one only


def test_a_value_that_is_stored_only_folded_is_left_out_by_name() -> None:
    class Net(ingot.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = ingot.nn.Conv2d(3, 8, 3), ingot.nn.BatchNorm2d(8)
            self.head = ingot.nn.Conv2d(8, 4, 1)

        def forward(self, x: Any) -> Any:
            return self.head(ingot.functional.relu(self.norm(self.conv(x))))

    engines = [
        ingot.build(Net(), {"x": Spec((1, 3, 9, 9), "float32")}, weights_from="random", precision=p, report=False)
        for p in ("bfloat16", "float32")
    ]
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 3, 9, 9)).astype(np.float32)}
    values = diff(engines[0], engines[1], feeds, values=True)
    assert values.hidden == ("conv in conv",)
    assert [p.op for p in values.places] == ["batch_norm", "relu", "conv"]
    assert values.beyond(0.05) is None
    layers = diff(engines[0], engines[1], feeds)  # the fold crosses modules: the layers are cut where it is whole
    assert [p.name for p in layers.places] == ["conv to norm", "head"]
    assert layers.outputs[0].relative < 0.05


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_weight_that_is_stored_in_parts(precision: str) -> None:
    """By the phases of a transposed convolution, which make it up: in whatever layout a layer needs it, it is there."""
    engine, state = twice(0, precision)
    network = network_of(engine)
    found = Recovered(shown_by(engine, network))
    assert list(found) == ["up.weight"]
    weight = network.values["up.weight"]
    wanted = state["up.weight"].astype(weight.dtype.numpy)
    assert found["up.weight"].tobytes() == wanted.tobytes()
    weight.recipe = recipe_of(weight).then("transpose", axes=(3, 2, 1, 0))
    weight.spec = Spec(weight.shape[::-1], weight.dtype)
    stored = Stored(engine, network_of(engine))
    assert stored.lacking(weight) == []
    np.testing.assert_array_equal(stored.make({"w": weight})["w"], wanted.T)


def test_a_fold_whose_convolution_is_known_by_itself() -> None:
    """Its weight is stored plain too, and those of the norm nowhere: the convolution's own result is left out."""
    engine, _ = twice(0)
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 4, 8, 8)).astype(np.float32)}
    found = diff(engine, engine, feeds, values=True)
    assert len(found.hidden) == 1 and found.hidden[0].startswith("conv_transpose in ")
    assert [p.op for p in found.places] == ["conv_transpose", "reduce_mean", "batch_norm", "reduce_mean", "add"]


def test_layers_whose_inputs_have_dims_only_in_expressions() -> None:
    class Net(ingot.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = ingot.nn.Conv2d(3, 8, 5), ingot.nn.Conv2d(8, 4, 3, stride=2)

        def forward(self, x: Any) -> Any:
            return self.second(ingot.functional.relu(self.first(x)))

    spec = Spec((ingot.Dim("N"), 3, ingot.Dim("H"), ingot.Dim("W")), "float32")
    narrow = ingot.build(Net(), {"x": spec}, weights_from="random", precision="bfloat16")  # its report is cut likewise
    assert narrow.report.outputs[0].relative < 0.05
    wide = ingot.build(Net(), {"x": spec}, weights_from="random", report=False)
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 3, 11, 13)).astype(np.float32)}
    for values in (False, True):
        found = diff(narrow, wide, feeds, values=values)
        assert found.places[0].shape == (2, 8, 7, 9) and found.beyond(0.05) is None
    assert sizes_that_run(wide) == {"N": 8, "H": 8, "W": 8}
    assert sizes_that_run(wide, ["N=1", "W=20"]) == {"N": 1, "H": 8, "W": 20}
    with pytest.raises(InputError, match="with --size"):
        sizes_that_run(wide, ["H=2"])


def test_other_networks_are_refused() -> None:
    a = llama("float32")
    net = Network("net")
    net.outputs["y"] = net.input("x", Spec((3,), "float32")) + 1
    with pytest.raises(UserError, match="different networks: inputs"):
        compared(a, build_network(net, {}))
    with pytest.raises(UserError, match="different networks"):
        compared(a, llama("float32", layers=3), values=True)
    with pytest.raises(UserError, match="different networks"):
        compared(a, llama("float32", bias=True), values=True)
    assert len(compared(a, llama("float32", bias=True)).places) == 3  # its layers agree by name
    with pytest.raises(UserError, match=r"logits is \[16, 80\] and \[16, 96\]"):
        compared(a, llama("float32", vocabulary=96))


def test_differences_of_more_than_a_piece() -> None:
    rng = np.random.default_rng(0)
    theirs = rng.standard_normal((3, AT_ONCE - 5)).astype(np.float32)
    ours = theirs + rng.standard_normal(theirs.shape).astype(np.float32) * np.float32(0.01)
    ours[2, 7] += 1
    for a, b in ((ours, theirs), (ours.T, theirs.T)):
        found, apart = row("x", a, b), a.astype(np.float64) - b
        assert found.largest == np.abs(apart).max()
        assert found.relative == pytest.approx(np.sqrt((apart**2).sum() / (b.astype(np.float64) ** 2).sum()), rel=1e-12)
    ours[1, 3] = np.nan
    found = row("x", ours, theirs)
    assert found.largest == np.inf
    assert found.odd == f"is NaN in 1 of {ours.size} elements where it should not be, the first at [1, 3]"


def test_differences_of_odd_numbers() -> None:
    nan, inf = np.nan, np.inf
    same = np.array([1, nan, inf, -inf], np.float32)
    assert (row("x", same, same).largest, row("x", same, same).relative) == (0, 0)
    assert row("x", same, same).odd == ""
    for other, odd in (
        ([1, 2, inf, -inf], "is not NaN in 1 of 4 elements where it should be, the first at [1]"),
        ([1, nan, -inf, -inf], "is the other infinity in 1 of 4 elements, the first at [2]"),
        ([nan, nan, inf, -inf], "is NaN in 1 of 4 elements where it should not be, the first at [0]"),
        ([1, nan, 5, inf], "is not infinite in 1 of 4 elements where it should be, the first at [2]; is the other "
                           "infinity in 1 of 4 elements, the first at [3]"),
    ):  # fmt: skip
        found = row("x", np.array(other, np.float32), same)
        assert found.largest == inf and found.odd == odd
    assert row("x", np.zeros((0, 3)), np.zeros((0, 3))).relative == 0
    assert row("x", np.array([1e-3]), np.array([0.0])).relative == pytest.approx(1e-3)
