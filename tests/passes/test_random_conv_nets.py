"""Random networks of convolutions through the compile path: the engine's outputs are the interpreter's."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ingot.builder.network import build_network
from ingot.dims import Dim
from ingot.errors import OpError
from ingot.ir import F, Spec, Value
from ingot.ir.interpret import interpret
from ingot.ir.text import parse
from ingot.ir.verify import verify
from tests.passes.conv_nets import Builder, mish, weights

CHANNELS, SIZE = 6, 5


class Maker:
    """Grows a network by calls that Hypothesis chooses; a call that an op refuses is left out."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.b = Builder("random")
        shape = (Dim("N", 0, None, 9), CHANNELS, SIZE, SIZE)
        self.values: list[Value] = [self.b.net.input(name, Spec(shape, "float32")) for name in "xy"]

    def one_of(self, *options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def pick(self) -> Value:
        return self.values[-1 - self.draw(st.integers(0, min(4, len(self.values) - 1)))]

    def fresh(self, kind: str) -> str:
        return f"{kind}{len(self.b.net.nodes)}"

    def call(self) -> None:
        kinds = [name for name in sorted(dir(self)) if name.startswith("make_")]
        try:
            made = getattr(self, self.draw(st.sampled_from(kinds)))()
        except (OpError, IndexError, TypeError, ZeroDivisionError):  # a rank or size that the call did not expect
            return
        self.values.extend(made if isinstance(made, tuple | list) else (made,))

    def make_conv(self) -> Any:
        x, kernel = self.pick(), self.one_of(1, 3, (3, 1), 2)
        groups = self.one_of(1, 1, 2, CHANNELS)
        padding = self.one_of(None, (1, 1), (0, 1))
        return self.b.conv(self.fresh("conv"), x, CHANNELS, kernel, stride=self.one_of(1, 1, 2), padding=padding,
                           groups=groups, bias=self.one_of(True, False))  # fmt: skip

    def make_block(self) -> Any:
        x = self.pick()
        y = self.b.batch_norm(self.fresh("bn"), self.b.conv(self.fresh("conv"), x, CHANNELS, 3, bias=False))
        return F.relu(y + x if self.one_of(True, False) else y)

    def make_up(self) -> Any:
        return self.b.up(self.fresh("up"), self.pick(), CHANNELS, kernel=self.one_of(2, 3), groups=self.one_of(1, 2))

    def make_batch_norm(self) -> Any:
        return self.b.batch_norm(self.fresh("bn"), self.pick(), affine=self.one_of(True, False))

    def make_group_norm(self) -> Any:
        return self.b.group_norm(self.fresh("gn"), self.pick(), self.one_of(1, 2, 3))

    def make_pool(self) -> Any:
        attrs: dict[str, Any] = {"kernel": (2, 3), "stride": (2, 1), "pre_padding": (0, 1), "post_padding": (1, 1)}
        if self.one_of(True, False):
            return F.max_pool(self.pick(), dilation=(1, 1), ceil_mode=self.one_of(True, False), **attrs)
        return F.avg_pool(self.pick(), count_include_pad=self.one_of(True, False), **attrs)

    def make_unary(self) -> Any:
        return self.one_of(F.relu, F.tanh, F.sigmoid, F.silu, F.neg, mish)(self.pick())

    def make_binary(self) -> Any:
        return self.one_of(F.add, F.mul, F.maximum)(self.pick(), self.pick())

    def make_scalar(self) -> Any:
        return F.add(F.mul(self.pick(), 2.0), self.one_of(0.0, -1.0))

    def make_per_channel(self) -> Any:
        x = self.pick()
        shape = (x.shape[1], *[1] * (len(x.shape) - 2))
        return self.one_of(F.add, F.mul)(x, self.b.param(self.fresh("p"), *shape))

    def make_table(self) -> Any:
        x = self.pick()
        return F.add(x, self.b.param(self.fresh("t"), *x.shape[1:]))

    def make_gate(self) -> Any:
        x = self.pick()
        return F.mul(x, F.sigmoid(self.b.conv(self.fresh("gate"), F.reduce_mean(x, (2, 3), True), CHANNELS, 1)))

    def make_mean(self) -> Any:
        return F.reduce_mean(self.pick(), self.one_of((1,), (2, 3), (-1,)), self.one_of(True, False))

    def make_softmax(self) -> Any:
        return F.softmax(self.pick(), self.one_of(1, -1, 2))

    def make_concat(self) -> Any:
        return F.concat([self.pick(), self.pick()], self.one_of(1, 2, -1))

    def make_split(self) -> Any:
        return self.pick().split([2, 1, 3], 1)

    def make_pad(self) -> Any:
        rank = len(self.pick().shape) - 2
        return F.pad(self.pick(), (0, 0, *[1] * rank), (0, 0, *[self.one_of(0, 1)] * rank), self.one_of(0.0, 1.0))

    def make_shuffle(self) -> Any:
        x = self.pick()
        split = F.reshape(x, (x.shape[0], 2, 3, *x.shape[2:]))
        return F.reshape(F.permute(split, (0, 2, 1, *range(3, len(split.shape)))), x.shape)

    def make_tokens(self) -> Any:
        x = self.pick()
        flat = F.permute(x.flatten(2), (0, 2, 1))
        return F.permute(F.layer_norm(flat, eps=1e-2), (0, 2, 1))

    def make_flat(self) -> Any:
        x = self.pick()
        return x.flatten(1)

    def make_turned(self) -> Any:
        x = self.pick()
        return F.permute(x, (0, 1, 3, 2))

    def make_graph(self) -> Any:
        x = self.pick()
        a = self.b.param(self.fresh("A"), x.shape[3], SIZE)
        return F.einsum(x, a, equation="nctv,vw->nctw")

    def make_attention(self) -> Any:
        x = self.pick()
        q = F.reshape(x, (x.shape[0], 2, 3, *x.shape[2:])).flatten(3)
        mixed: Value = F.matmul(F.softmax(F.matmul(q, q, transpose_a=True) * 0.1), q, transpose_b=True)
        return mixed.flatten(1)


@given(st.data())
def test_random_networks(data: st.DataObject) -> None:
    maker = Maker(data.draw)
    for _ in range(data.draw(st.integers(1, 12))):
        maker.call()
    net = maker.b.net
    for k in range(data.draw(st.integers(1, 2))):
        net.outputs[f"out{k}"] = maker.pick()
    verify(net)
    assert str(parse(str(net))) == str(net)
    batch = data.draw(st.sampled_from([0, 1, 3]))
    rng = np.random.default_rng(data.draw(st.integers(0, 3)))
    feeds = {n: rng.standard_normal((batch, CHANNELS, SIZE, SIZE)).astype(np.float32) for n in "xy"}
    parameters = weights(net)
    want = interpret(net, feeds, parameters)
    got = build_network(net, parameters).run(feeds)
    for name, array in want.items():
        found = got[name]
        assert (found.shape, found.dtype) == (array.shape, array.dtype)
        scale = float(np.abs(np.nan_to_num(array)).max(initial=1.0))  # what cancels to about 0 is noise
        np.testing.assert_allclose(found, array, atol=2e-4 * scale, rtol=2e-4)
