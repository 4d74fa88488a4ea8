"""Products of integers as ONNX writes them: those that floats read sum int8, and give the very numbers of int32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ingot.backends.cpu import CPU
from ingot.builder.network import build_network
from ingot.cli.inspect import kernel_counts
from ingot.ir import F, Network, Spec, Value
from ingot.ir.interpret import interpret
from ingot.passes import pipeline

Array = np.ndarray[Any, Any]


class Net:
    """A network of one input x, and what quantises it as DynamicQuantizeLinear does."""

    def __init__(self, *shape: int) -> None:
        self.network = Network("net")
        self.rng = np.random.default_rng(0)
        self.weights: dict[str, Array] = {}
        self.feeds = {"x": (self.rng.standard_normal(shape) * 3 + 0.5).astype(np.float32)}
        self.x = self.network.input("x", Spec(shape, "float32"))

    def rounded(self, x: Value, kind: str) -> tuple[Value, Value, Value]:
        """Integers, their scale and their zero point, both computed."""
        axes = tuple(range(len(x.shape)))
        low, high = (f(x, axes=axes, keepdims=False) for f in (F.reduce_min, F.reduce_max))
        scale = F.div(F.sub(high, low), 255.0)
        least, most = (0, 255) if kind == "uint8" else (-128, 127)
        zero = F.cast(F.add(F.round(F.div(F.neg(low), scale)), float(least)), kind)
        return F.quantize(x, scale, zero, dtype=kind, minimum=least, maximum=most), scale, zero

    def stored(self, array: Array, known: bool) -> Value:
        if known:
            return self.network.constant(array)
        name = f"w{len(self.weights)}"
        self.weights[name] = array
        return self.network.parameter(name, Spec(array.shape, str(array.dtype)))

    def weight(self, kind: str, shape: tuple[int, ...], known: bool = False) -> Value:
        low, high = (0, 255) if kind == "uint8" else (-128, 127)
        return self.stored(self.rng.integers(low, high, shape, endpoint=True).astype(kind), known)

    def less(self, x: Value, zero: Value | Array | int | None) -> Value:
        """int32 less a zero point."""
        wide = F.cast(x, "int32")
        if isinstance(zero, int | np.ndarray):
            zero = self.network.constant(np.asarray(zero, np.int32))
        return wide if zero is None else F.sub(wide, F.cast(zero, "int32"))  # type: ignore[no-any-return]

    def check(self, y: Value, apart: float = 0, **calls: int) -> None:
        """That the engine gives what the network says, in these calls beside those that move, map or reduce."""
        self.network.outputs["y"] = y
        want = interpret(self.network, self.feeds, self.weights)["y"]
        engine = build_network(self.network, self.weights)
        found = engine.session().run(self.feeds)["y"]
        assert found.dtype == want.dtype and np.abs(found.astype(float) - want).max() <= apart
        native, hosted = kernel_counts(engine.header["programs"]["cpu"])
        assert not hosted
        quiet = ("copy", "concat", "elementwise", "reduce")
        assert {name: n for name, n in native.items() if name not in quiet} == calls


EACH = np.arange(-20, 17).astype(np.int32)


@pytest.mark.parametrize(("kind", "of", "zero", "known", "inputs", "calls"), [
    ("uint8", "int8", None, False, 45, 1), ("uint8", "int8", 0, True, 45, 1), ("int8", "int8", None, False, 45, 1),
    ("uint8", "uint8", 128, False, 45, 1), ("uint8", "uint8", 121, False, 45, 2), ("int8", "uint8", 121, True, 45, 2),
    ("uint8", "int8", 7, False, 2, 2), ("uint8", "int8", EACH, False, 45, 2),
    ("uint8", "uint8", EACH + 90, False, 45, 2),
])  # fmt: skip
def test_products(kind: str, of: str, zero: Any, known: bool, inputs: int, calls: int) -> None:
    """By stored weights of every kind of zero point, which may take sums of x's rows. Where nothing is rounded behind
    the sums they are equal."""
    net = Net(2, 3, inputs)
    q, _, at = net.rounded(net.x, kind)
    y = F.matmul(net.less(q, at), net.less(net.weight(of, (inputs, 37), known), zero))
    net.check(F.cast(y, "float32"), matmul_packed=calls)


def test_a_linear_layer() -> None:
    """A bias of integers, the scales, a bias and gelu are one epilogue; uint8 is made once for two products."""
    net = Net(5, 45)
    q, scale, zero = net.rounded(net.x, "uint8")
    parts = []
    for _ in range(2):
        y = F.matmul(net.less(q, zero), net.less(net.weight("uint8", (45, 37)), 128))
        y = F.cast(F.add(y, net.network.constant(np.arange(37, dtype=np.int32))), "float32")
        y = F.mul(y, F.mul(scale, 0.01))
        parts.append(F.gelu(F.add(y, net.stored(net.rng.standard_normal(37).astype(np.float32), False))))
    net.check(F.add(*parts), 1e-4, matmul_packed=2)
    quantised = [n for n in pipeline.lower(net.network, CPU).nodes if n.output.dtype.name == "int8" and n.output.shape]
    assert len(quantised) == 1


def around(rank: int = 2, stride: int = 1, pad: int = 1, dilation: int = 1, groups: int = 1) -> dict[str, Any]:
    return {"stride": (stride,) * rank, "pre_padding": (pad,) * rank, "post_padding": (pad,) * rank,
            "dilation": (dilation,) * rank, "groups": groups}  # fmt: skip


@pytest.mark.parametrize(("shape", "weight", "zero", "attrs", "calls"), [
    ((2, 5, 7, 6), (9, 5, 3, 3), None, around(), {"conv_packed": 1}),
    ((2, 5, 7, 6), (9, 5, 3, 3), 7, around(stride=2), {"conv_packed": 2, "matmul_packed": 1}),
    ((1, 5, 9), (3, 5, 3), np.arange(3).reshape(3, 1, 1), around(1, dilation=2, pad=3),
     {"conv_packed": 2, "matmul_packed": 1}),
    ((2, 40, 4, 5), (33, 40, 1, 1), 121, around(pad=0), {"conv_packed": 1, "matmul_packed": 1}),
    ((2, 6, 7, 6), (8, 3, 3, 3), None, around(groups=2), {"conv_packed": 1}),
    ((2, 6, 7, 6), (6, 1, 3, 3), None, around(groups=6, stride=2), {"conv_depthwise": 1}),
])  # fmt: skip
@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_convolutions(
    shape: Any, weight: Any, zero: Any, attrs: dict[str, Any], calls: dict[str, int], kind: str
) -> None:
    """Around x lies its zero point, which only a run shows; a bias of integers behind the sums."""
    net = Net(*shape)
    q, _, at = net.rounded(net.x, kind)
    of = "uint8" if isinstance(zero, int) and zero > 100 else "int8"
    y = F.conv_integer(net.less(q, at), net.less(net.weight(of, weight), zero), **attrs)
    bias = net.network.constant(np.arange(weight[0], dtype=np.int32).reshape(-1, *[1] * (len(shape) - 2)))
    net.check(F.cast(F.add(y, bias), "float32"), **calls)


def test_a_known_zero_point_is_around_x() -> None:
    """Nothing is padded: it is the convolution's own."""
    net = Net(2, 5, 7, 6)
    of = (net.network.constant(np.float32(0.03)), net.network.constant(np.array(130, np.uint8)))
    q = F.quantize(net.x, *of, dtype="uint8", minimum=0, maximum=255)
    y = F.conv_integer(net.less(q, 130), net.less(net.weight("int8", (9, 5, 3, 3)), None), **around())
    net.check(F.cast(y, "float32"), conv_packed=1)
    assert not any(node.op.name == "pad" for node in pipeline.lower(net.network, CPU).nodes)


def test_convolutions_that_are_left_to_integers() -> None:
    """Groups whose weight has a zero point, and x whose integers were moved before a zero point of a run lies around
    them."""
    net = Net(1, 6, 7, 6)
    q, _, zero = net.rounded(net.x, "uint8")
    w = net.less(net.weight("int8", (6, 3, 3, 3)), 3)
    moved = F.permute(q, (0, 1, 3, 2))
    pairs = ((q, w, 2), (moved, net.less(net.weight("int8", (6, 6, 3, 3)), None), 1))
    every = [F.conv_integer(net.less(x, zero), v, **around(groups=n)) for x, v, n in pairs]
    every[1] = F.permute(every[1], (0, 1, 3, 2))
    net.check(F.concat(*(F.cast(v, "float32") for v in every), dim=1), matmul_integer=2)


def test_what_is_left_to_integers() -> None:
    """Sums that are read as integers too, weights that are computed, x that comes as integers, zero points by rows."""
    net = Net(4, 9)
    q, _, zero = net.rounded(net.x, "uint8")
    w = net.less(net.weight("int8", (9, 6)), None)
    y = F.matmul(net.less(q, zero), w)
    z = F.matmul(net.less(q, zero), F.cast(F.reshape(F.slice(q, (0, 0), (3, 9), (1, 1)), (9, 3)), "int32"))
    rows = F.matmul(net.less(q, np.arange(4).reshape(4, 1)), w)
    every = [F.cast(v, "float32") for v in (y, F.add(y, 1), z, rows)]
    net.check(F.concat(*every, dim=1), matmul_integer=3)
