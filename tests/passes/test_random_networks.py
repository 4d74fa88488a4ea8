"""Random networks through the compile path: the engine's outputs are the interpreter's, whatever was fused on the
way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ingot.builder.network import build_network
from ingot.dims import Dim
from ingot.errors import OpError
from ingot.ir import F, Network, Spec, Value
from ingot.ir.interpret import interpret
from ingot.ir.text import parse
from ingot.ir.verify import verify

WIDTH = 8
ROWS = Dim("T", 0, None, 50)


class Maker:
    """Grows a network by calls that Hypothesis chooses; a call that an op refuses is left out."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.net = Network("random")
        self.values: list[Value] = [
            self.net.input("x", Spec((ROWS, WIDTH), "float32")),
            self.net.input("y", Spec((ROWS, WIDTH), "float32")),
            self.net.input("i", Spec((ROWS, WIDTH), "int32")),
        ]
        self.weights: dict[str, Any] = {}

    def pick(self) -> Value:
        return self.values[-1 - self.draw(st.integers(0, min(5, len(self.values) - 1)))]

    def number(self) -> int:
        return int(self.draw(st.integers(0, 3)))

    def weight(self, *shape: int) -> Value:
        """A parameter: a new one, or one that is there already."""
        same = [v for v in self.net.parameters if v.shape == shape]
        if same and self.draw(st.booleans()):
            return same[0]
        name = f"w{len(self.weights)}"
        rng = np.random.default_rng(len(self.weights))
        self.weights[name] = (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
        return self.net.parameter(name, Spec(shape, "float32"))

    def call(self) -> None:
        kinds = [name for name in sorted(dir(self)) if name.startswith("make_")]
        try:
            made = getattr(self, self.draw(st.sampled_from(kinds)))()
        except (OpError, IndexError):  # a rank that the call did not expect
            return
        self.values.extend(made if isinstance(made, tuple) else (made,))

    def make_unary(self) -> Any:
        names = ("tanh", "sigmoid", "silu", "relu", "neg", "abs", "gelu", "round")
        return getattr(F, self.draw(st.sampled_from(names)))(self.pick())

    def make_binary(self) -> Any:
        names = ("add", "sub", "mul", "maximum", "minimum")
        return getattr(F, self.draw(st.sampled_from(names)))(self.pick(), self.pick())

    def make_scalar(self) -> Any:
        return F.add(F.mul(self.pick(), 1 + self.number()), self.number() - 1)

    def make_choice(self) -> Any:
        a, b = self.pick(), self.pick()
        return F.where(F.greater(a, b), a, b)

    def make_cast(self) -> Any:
        return F.cast(self.pick(), self.draw(st.sampled_from(("float32", "int32", "int8"))))

    def make_linear(self) -> Any:
        x = self.pick()
        return F.matmul(x, self.weight(WIDTH, WIDTH), transpose_b=self.draw(st.booleans()))

    def make_bias(self) -> Any:
        return F.add(self.pick(), self.weight(WIDTH))

    def make_siblings(self) -> Any:
        x = self.pick()
        return tuple(F.matmul(x, self.weight(n, WIDTH), transpose_b=True) for n in (WIDTH, 3, WIDTH))

    def make_gated(self) -> Any:
        x = self.pick()
        gate, up = (F.matmul(x, self.weight(WIDTH, WIDTH), transpose_b=True) for _ in range(2))
        return F.mul(F.silu(gate), up)

    def make_product(self) -> Any:
        x = self.pick()
        return F.matmul(F.softmax(F.matmul(x, self.pick(), transpose_b=True)), x)

    def make_norm(self) -> Any:
        return F.rms_norm(self.pick(), self.weight(WIDTH), eps=1e-2)

    def make_layer_norm(self) -> Any:
        return F.layer_norm(self.pick(), eps=1e-2)

    def make_reduce(self) -> Any:
        return F.reduce_mean(self.pick(), (-1,), self.draw(st.booleans()))

    def make_heads(self) -> Any:
        x = self.pick()
        return F.permute(F.reshape(x, (x.shape[0], 2, 4)), (1, 0, 2))

    def make_flat(self) -> Any:
        x = F.permute(self.pick(), (1, 0, 2))
        return F.reshape(x, (x.shape[0], WIDTH))

    def make_part(self) -> Any:
        x = self.pick()
        return F.slice(x, (0, self.number()), (x.shape[0], 4), (1, 1))

    def make_concat(self) -> Any:
        return F.concat([self.pick(), self.pick()], -1)

    def make_backwards(self) -> Any:
        x = self.pick()
        return F.slice(x, (0, x.shape[1] - 1), x.shape, (1, -1))


@given(st.data())
def test_random_networks(data: st.DataObject) -> None:
    maker = Maker(data.draw)
    for _ in range(data.draw(st.integers(1, 14))):
        maker.call()
    net = maker.net
    for k in range(data.draw(st.integers(1, 3))):
        net.outputs[f"out{k}"] = maker.pick()
    verify(net)
    assert str(parse(str(net))) == str(net)
    rows = data.draw(st.sampled_from([0, 1, 5, 33]))
    rng = np.random.default_rng(data.draw(st.integers(0, 3)))
    feeds = {n: rng.standard_normal((rows, WIDTH)).astype(np.float32) for n in "xy"}
    feeds["i"] = rng.integers(-9, 9, (rows, WIDTH)).astype(np.int32)
    want = interpret(net, feeds, maker.weights)
    got = build_network(net, maker.weights).run(feeds)
    for name, array in want.items():
        found = got[name]
        assert (found.shape, found.dtype) == (array.shape, array.dtype)
        if array.dtype == np.float32:
            scale = float(np.abs(np.nan_to_num(array)).max(initial=1.0))  # what cancels to about 0 is noise
            np.testing.assert_allclose(found, array, atol=1e-4 * scale, rtol=1e-4)
        elif array.size:  # rounding of a number beside a boundary may differ by one step
            assert np.mean(found != array) < 0.1
