"""Graphs of quantize and dequantize: which ops sum and move int8, and that the numbers are those of floats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ingot.backends.cpu import CPU
from ingot.builder.compile import compile_network
from ingot.builder.network import build_network
from ingot.cli.inspect import kernel_counts
from ingot.ir import F, Network, Spec, Value
from ingot.ir.evaluation import evaluate
from ingot.ir.interpret import interpret
from ingot.ir.recipe import source
from ingot.passes import pipeline
from ingot.passes.weights import recipe_of

Array = np.ndarray[Any, Any]
RANGES = {"int8": (-128, 127), "uint8": (0, 255)}


class Net:
    """A network of float ops between `quantize` and `dequantize`, and its weights."""

    def __init__(self, *shape: int) -> None:
        self.network = Network("net")
        self.rng = np.random.default_rng(0)
        self.weights: dict[str, Array] = {}
        self.feeds = {"x": self.rng.standard_normal(shape).astype(np.float32)}
        self.x = self.network.input("x", Spec(shape, "float32"))

    def scalars(self, scale: float, zero: int, kind: str) -> tuple[Value, ...]:
        array = self.network.constant(np.float32(scale))
        return (array, self.network.constant(np.array(zero, kind))) if zero else (array,)

    def rounded(self, x: Value, scale: float, zero: int = 0, kind: str = "int8") -> Value:
        """x as it is once it has been integers."""
        low, high = RANGES[kind]
        of = self.scalars(scale, zero, kind)
        return F.dequantize(F.quantize(x, *of, dtype=kind, minimum=low, maximum=high), *of)  # type: ignore[no-any-return]

    def stored(self, name: str, array: Array) -> Value:
        self.weights[name] = array
        return self.network.parameter(name, Spec(array.shape, str(array.dtype)))

    def weight(self, *shape: int, outputs: int = 0, kind: str = "int8", one: bool = False) -> Value:
        """A stored weight of integers, with a scale for each output or one for all."""
        name = f"w{len(self.weights)}"
        low, high = RANGES[kind]
        q = self.stored(name, self.rng.integers(low, high, shape, endpoint=True).astype(kind))
        zero = [self.network.constant(np.array(128, kind))] if kind == "uint8" else []
        if one:
            return F.dequantize(q, self.network.constant(np.float32(0.002)), *zero)  # type: ignore[no-any-return]
        by = tuple(n if i == outputs else 1 for i, n in enumerate(shape))
        scales = self.rng.uniform(0.001, 0.003, by).astype(np.float32)
        return F.dequantize(q, self.stored(f"{name}.scales", scales), *zero)  # type: ignore[no-any-return]

    def bias(self, n: int) -> Value:
        return self.stored(f"b{len(self.weights)}", self.rng.standard_normal(n).astype(np.float32))

    def check(self, y: Value, apart: float, **calls: int) -> Network:
        """That the engine gives what the portable network does, `apart` at most, in these calls and copies."""
        self.network.outputs["y"] = y
        want = interpret(self.network, self.feeds, self.weights)["y"]
        low = pipeline.lower(self.network, CPU)
        stored = {v.name: evaluate(recipe_of(v), self.weights) for v in low.parameters}
        assert np.abs(interpret(low, self.feeds, stored)["y"].astype(float) - want).max() <= apart
        engine = build_network(self.network, self.weights)
        native, hosted = kernel_counts(engine.header["programs"]["cpu"])
        assert not hosted
        assert {name: n for name, n in native.items() if name != "copy"} == calls
        found = engine.session().run(self.feeds)["y"]
        assert np.abs(found.astype(float) - want).max() <= apart
        return low


def attrs(rank: int = 2, stride: int = 1, pad: int = 1, dilation: int = 1, groups: int = 1) -> dict[str, Any]:
    return {"stride": (stride,) * rank, "pre_padding": (pad,) * rank, "post_padding": (pad,) * rank,
            "dilation": (dilation,) * rank, "groups": groups}  # fmt: skip


def pool(size: int, pad: int) -> dict[str, Any]:
    return {"kernel": (size,) * 2, "stride": (2, 2), "pre_padding": (pad,) * 2, "post_padding": (pad,) * 2,
            "dilation": (1, 1)}  # fmt: skip


def test_a_net_of_convolutions() -> None:
    """uint8 and int8, with zero points: 3×3 with relu, a pool, every channel by itself, 1×1 with a residual, groups
    with a stride, and a transposed one. Between them lies int8 alone."""
    net = Net(2, 6, 9, 11)
    y = F.conv(net.rounded(net.x, 0.02, 118, "uint8"), net.weight(40, 6, 3, 3), net.bias(40), **attrs())
    y = F.max_pool(net.rounded(F.relu(y), 0.05, 0, "uint8"), **pool(3, 1))
    first = net.rounded(y, 0.05, 0, "uint8")
    y = net.rounded(F.conv(first, net.weight(40, 1, 3, 3, kind="uint8"), **attrs(groups=40)), 0.03, -5)
    y = F.add(F.conv(y, net.weight(40, 40, 1, 1, one=True), net.bias(40), **attrs(pad=0)), first)
    y = net.rounded(F.relu(y), 0.06, -128)
    y = net.rounded(F.conv(y, net.weight(24, 20, 3, 3), net.bias(24), **attrs(stride=2, groups=2)), 0.06)
    y = F.conv_transpose(y, net.weight(24, 8, 2, 2, outputs=1), net.bias(8), **attrs(stride=2, pad=0))
    low = net.check(y, 1e-5, elementwise=1, conv_packed=2, max_pool=1, conv_depthwise=1, matmul_packed=1,
                    conv_transpose_packed=1)  # fmt: skip
    made = [node.output for node in low.nodes if not node.op.is_view]
    assert [v.dtype.name for v in made] == ["int8"] * 6 + ["float32"]


def transposed_attrs(rank: int, **more: Any) -> dict[str, Any]:
    """Of a transposed convolution with an output padding of 1 where its stride is more."""
    of = attrs(rank, **more)
    return of | {"post_padding": tuple(n - (s > 1) for n, s in zip(of["post_padding"], of["stride"], strict=True))}


@pytest.mark.parametrize("parted", [True, False])
@pytest.mark.parametrize(
    ("groups", "inner", "each"),
    [(2, 5, 40), (2, 5, 17), (2, 50, 33), (3, 7, 3), (4, 3, 20), (4, 6, 9), (37, 1, 1), (68, 1, 1), (12, 3, 5)],
)
@pytest.mark.parametrize(("kernel", "more"), [
    ((4,), {"stride": 3}), ((3, 2), {"stride": 2}), ((3, 3), {"stride": 2, "dilation": 2}), ((2, 3), {"pad": 0}),
    ((2, 3, 2), {"stride": 2})])  # fmt: skip
def test_transposed_convolutions_in_groups(
    groups: int, inner: int, each: int, kernel: tuple[int, ...], more: dict[str, int], parted: bool
) -> None:
    """They sum int8, with a scale for each output where the weight has the groups as a dimension, else for each of a
    group."""
    rank, channels = len(kernel), groups * inner
    net = Net(2, channels, *(5, 3, 4)[:rank])
    if parted:
        q = net.stored("w", net.rng.integers(-128, 127, (groups, inner, each, *kernel), endpoint=True).astype(np.int8))
        scales = net.rng.uniform(0.0001, 0.003, (groups, 1, each, *[1] * rank)).astype(np.float32)
        w = F.reshape(F.dequantize(q, net.stored("s", scales)), (channels, each, *kernel))
    else:
        w = net.weight(channels, each, *kernel, outputs=1)
    y = F.conv_transpose(net.rounded(net.x, 0.03), w, net.bias(groups * each), **transposed_attrs(
        rank, **{"pad": 1, **more}, groups=groups))  # fmt: skip
    low = net.check(y, 1e-4, elementwise=1, conv_transpose_packed=1)
    (layer,) = (node for node in low.nodes if node.op.name == "lowered")
    assert layer.inputs[0].dtype.name == "int8"


@pytest.mark.parametrize(("groups", "inner", "each", "left"), [
    (2, 64, 32, 2), (4, 32, 16, 2), (64, 1, 1, 2), (37, 1, 1, 1), (5, 64, 17, 5), (8, 1, 20, 1)])  # fmt: skip
def test_groups_of_few_outputs_are_joined(groups: int, inner: int, each: int, left: int) -> None:
    net = Net(1, groups * inner, 2, 3)
    weight = net.weight(groups * inner, each, 2, 2, outputs=1)
    of = attrs(stride=2, pad=0, groups=groups)
    net.network.outputs["y"] = F.conv_transpose(net.rounded(net.x, 0.02), weight, **of)
    (layer,) = (node for node in pipeline.lower(net.network, CPU).nodes if node.op.name == "lowered")
    assert layer.op.inner.groups == left


def test_a_transposed_convolution_in_groups_with_other_scales() -> None:
    """With a scale for each input channel floats are stored, also where the groups are a dimension."""
    net = Net(1, 6, 4, 4)
    x, at = net.rounded(net.x, 0.03), attrs(stride=2, groups=3)
    y = F.conv_transpose(x, net.weight(6, 2, 3, 3), **at)
    q = net.stored("q", net.rng.integers(-128, 127, (3, 2, 2, 3, 3), endpoint=True).astype(np.int8))
    scales = net.stored("q.scales", net.rng.uniform(0.001, 0.003, (1, 2, 1, 1, 1)).astype(np.float32))
    y = F.add(y, F.conv_transpose(x, F.reshape(F.dequantize(q, scales), (6, 2, 3, 3)), **at))
    low = net.check(y, 1e-5, elementwise=1, conv_transpose_packed=2)
    layers = [node for node in low.nodes if node.op.name == "lowered"]
    assert [layer.inputs[0].dtype.name for layer in layers] == ["float32"] * 2


@pytest.mark.parametrize("zero", [0, 7])
@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_an_average(kind: str, zero: int) -> None:
    """Means of integers, which keep their zero point unless padding counts as another number."""
    net = Net(2, 6, 8, 10)
    window = {"kernel": (2, 2), "stride": (2, 2), "pre_padding": (0, 0), "post_padding": (0, 0)}
    y = F.conv(net.rounded(net.x, 0.03), net.weight(40, 6, 3, 3), **attrs())
    y = F.avg_pool(net.rounded(y, 0.05, zero, kind), **window)
    y = F.conv(net.rounded(y, 0.0213, 3), net.weight(8, 40, 3, 3), **attrs())  # with which no mean is a tie
    low = net.check(y, 1e-5, elementwise=2, conv_packed=2, avg_pool=1)
    (pooled,) = (node for node in low.nodes if node.op.name == "avg_pool")
    assert pooled.inputs[0].dtype.name == "int8"


@pytest.mark.parametrize(("zero", "more", "dtype"), [
    (0, {"pre_padding": (1, 1)}, "int8"), (7, {"pre_padding": (1, 1)}, "float32"), (0, {"divisor": 3}, "int8"),
    (7, {"divisor": 3}, "float32"), (0, {"pre_padding": (1, 1), "count_include_pad": False}, "int8")])  # fmt: skip
def test_an_average_with_borders(zero: int, more: dict[str, Any], dtype: str) -> None:
    """What lies around x is 0, and not the zero point."""
    net = Net(2, 8, 7, 6)
    window = {"kernel": (2, 3), "stride": (1, 2), "pre_padding": (0, 0), "post_padding": (0, 1), **more}
    y = F.conv(net.rounded(net.x, 0.03), net.weight(40, 8, 3, 3), **attrs())
    y = F.avg_pool(net.rounded(y, 0.05, zero), **window)
    net.network.outputs["y"] = y
    low = pipeline.lower(net.network, CPU)
    (pooled,) = (node for node in low.nodes if node.op.name == "avg_pool")
    assert pooled.inputs[0].dtype.name == dtype
    want = interpret(net.network, net.feeds, net.weights)["y"]
    found = build_network(net.network, net.weights).session().run(net.feeds)["y"]
    assert np.abs(found - want).max() <= 0.05  # a step of what is averaged is decided otherwise where it is a tie


@pytest.mark.parametrize(("outputs", "channels", "kernel"), [
    (1, 32, "conv_packed"), (2, 32, "conv_packed"), (3, 32, "matmul_packed"), (8, 1028, "matmul_packed")])  # fmt: skip
@pytest.mark.parametrize("zero", [0, 3])
def test_few_outputs_of_one_pixel_in_int8(outputs: int, channels: int, kernel: str, zero: int) -> None:
    net = Net(2, channels, 5, 7)
    y = F.conv(net.rounded(net.x, 0.03, zero), net.weight(outputs, channels, 1, 1), net.bias(outputs), **attrs(pad=0))
    net.check(y, 1e-3, elementwise=1, **{kernel if zero == 0 else "matmul_packed": 1})


@pytest.mark.parametrize("rank", [1, 3])
def test_other_ranks(rank: int) -> None:
    """A result that is int8 itself, one quantum apart at most."""
    net = Net(2, 5, *(7,) * rank)
    y = F.conv(net.rounded(net.x, 0.03, 3), net.weight(9, 5, *(3,) * rank), **attrs(rank, dilation=2))
    y = net.rounded(y, 0.05)
    net.check(y.node.inputs[0], 1, elementwise=1, conv_packed=1)


def test_floats_between() -> None:
    """A convolution of floats quantises in its epilogue; what is read as floats too is stored so."""
    net = Net(1, 6, 8, 8)
    x = F.conv(net.x, net.stored("w", net.rng.standard_normal((16, 6, 1, 1)).astype(np.float32)), **attrs(pad=0))
    y = F.conv(net.rounded(x, 0.03), net.weight(8, 16, 3, 3), **attrs())
    net.check(y, 0.2, matmul_packed=1, conv_packed=1)


def test_what_nothing_sums_as_integers_is_stored_as_floats() -> None:
    """x that is not quantised, and scales of inputs: the weight is turned into floats once, when it is stored."""
    net = Net(2, 5, 6, 6)
    y = F.conv(net.x, net.weight(9, 5, 3, 3, kind="uint8"), **attrs())
    y = F.conv(net.rounded(y, 0.05), net.weight(4, 9, 3, 3, outputs=1), **attrs())
    low = net.check(y, 1e-2, conv_packed=2)
    assert all(v.dtype.name == "float32" for v in low.parameters)


def test_moves_are_of_integers() -> None:
    """Joined, cut and turned as integers where one scale and zero point is that of all; else as floats."""
    net = Net(1, 8, 6, 6)
    x, of = net.rounded(net.x, 0.02, 9), {"starts": (0, 2, 0, 0), "sizes": (1, 8, 6, 6), "strides": (1, 1, 1, 1)}
    y = net.rounded(F.slice(F.concat(x, net.rounded(F.neg(net.x), 0.02, 9), dim=1), **of), 0.02, 9)
    low = net.check(F.conv(y, net.weight(4, 8, 3, 3), **attrs()), 1e-5, elementwise=2, concat=1, conv_packed=1)
    assert {node.output.dtype.name for node in low.nodes if node.op.name in ("concat", "slice")} == {"int8"}
    net = Net(1, 8, 6, 6)
    y = F.concat(net.rounded(net.x, 0.02, 9), net.rounded(F.neg(net.x), 0.03, 9), dim=1)
    net.check(F.conv(net.rounded(y, 0.02), net.weight(4, 16, 3, 3), **attrs()), 1e-5, elementwise=3, concat=1,
              conv_packed=1)  # fmt: skip


@pytest.mark.parametrize("transposed", [True, False])
def test_products_of_rows_of_one_scale(transposed: bool) -> None:
    """By a weight of either order, with a scale for each output, or one for all and small enough to be a constant; gelu
    in the epilogue."""
    net = Net(2, 7, 37)
    shape, outputs = ((45, 37), 0) if transposed else ((37, 45), 1)
    x = net.rounded(net.x, 0.02, 131, "uint8")
    y = F.gelu(F.add(F.matmul(x, net.weight(*shape, outputs=outputs), transpose_b=transposed), net.bias(45)))
    y = net.rounded(y, 0.03, 7)
    q = net.network.constant(net.rng.integers(-128, 128, (45, 9), np.int8, endpoint=False))
    y = F.matmul(y, F.dequantize(q, net.network.constant(np.float32(0.003))))
    low = net.check(y, 1e-5, elementwise=1, matmul_packed=2)
    assert [n.inputs[0].dtype.name for n in low.nodes if n.op.name == "lowered"] == ["int8", "int8"]


def test_products_whose_weight_has_scales_of_its_inputs_are_of_floats() -> None:
    net = Net(5, 37)
    y = F.matmul(net.rounded(net.x, 0.02), net.weight(45, 37, outputs=1), transpose_b=True)
    low = net.check(y, 1e-4, elementwise=1, matmul_packed=1)
    assert all(v.dtype.name == "float32" for v in low.parameters)


def test_multiplied_scales_are_kept_by_what_they_are_made_of() -> None:
    """Not by the name of their source, which need not be a value's."""
    net = Net(3, 37)
    whole = net.network.parameter("w", Spec((45, 37), "int8"))
    scales = net.network.parameter("s", Spec((45, 1), "float32"), source("S").then("cast", dtype="float32"))
    weight = F.dequantize(whole, scales, dtype="float32")
    net.network.outputs = {"y": F.matmul(net.rounded(net.x, 0.02), weight, transpose_b=True)}
    stored = compile_network(net.network).stored
    assert [name for name in stored if name.endswith(".times")] and stored["s"] is scales


def test_scales_of_a_group_are_kept_where_each_output_has_a_copy() -> None:
    net = Net(2, 6, 4, 4)
    weight = net.weight(6, 5, 3, 3, outputs=1)
    net.network.outputs = {"y": F.conv_transpose(net.rounded(net.x, 0.02), weight, **attrs(groups=3))}
    assert "w0.scales" in compile_network(net.network).stored
