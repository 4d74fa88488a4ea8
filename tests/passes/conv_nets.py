"""Small networks of convolutions, as importers give them: portable ops, channels first."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot.dims import Dim
from ingot.ir import F, Network, Spec, Value

Array = np.ndarray[Any, Any]


class Builder:
    """A network under way, its parameters named by module path."""

    def __init__(self, name: str, dtype: str = "float32") -> None:
        self.net = Network(name)
        self.dtype = dtype

    def param(self, name: str, *shape: int) -> Value:
        return self.net.parameter(name, Spec(shape, self.dtype))

    def conv(
        self, name: str, x: Value, outputs: int, kernel: Any = 3, *, stride: Any = 1, padding: Any = None,
        groups: int = 1, bias: bool = True,
    ) -> Value:  # fmt: skip
        rank = len(x.shape) - 2
        k, s = ((n,) * rank if isinstance(n, int) else n for n in (kernel, stride))
        p = tuple(n // 2 for n in k) if padding is None else padding
        weight = self.param(f"{name}.weight", outputs, x.shape[1] // groups, *k)  # type: ignore[operator]
        with self.net.scope(name):
            return F.conv(  # type: ignore[no-any-return]
                x, weight, *[self.param(f"{name}.bias", outputs)] * bias, stride=s, pre_padding=p, post_padding=p,
                dilation=(1,) * rank, groups=groups,
            )  # fmt: skip

    def up(self, name: str, x: Value, outputs: int, *, kernel: int = 3, groups: int = 1) -> Value:
        """A transposed convolution that doubles the size."""
        weight = self.param(f"{name}.weight", x.shape[1], outputs // groups, kernel, kernel)  # type: ignore[arg-type]
        pad = (kernel - 1) // 2
        post = kernel - 2 - pad
        with self.net.scope(name):
            return F.conv_transpose(  # type: ignore[no-any-return]
                x, weight, self.param(f"{name}.bias", outputs), stride=(2, 2), pre_padding=(pad, pad),
                post_padding=(post, post), dilation=(1, 1), groups=groups,
            )  # fmt: skip

    def batch_norm(self, name: str, x: Value, *, affine: bool = True) -> Value:
        names = ("running_mean", "running_var", *["weight", "bias"] * affine)
        with self.net.scope(name):
            vectors = [self.param(f"{name}.{n}", x.shape[1]) for n in names]  # type: ignore[arg-type]
            return F.batch_norm(x, *vectors)  # type: ignore[no-any-return]

    def group_norm(self, name: str, x: Value, groups: int) -> Value:
        with self.net.scope(name):
            vectors = [self.param(f"{name}.{n}", x.shape[1]) for n in ("weight", "bias")]  # type: ignore[arg-type]
            return F.group_norm(x, *vectors, groups=groups)  # type: ignore[no-any-return]


def mish(x: Value) -> Value:
    return F.mul(x, F.tanh(F.softplus(x)))  # type: ignore[no-any-return]


def pool(x: Value, kind: str = "avg_pool", **more: Any) -> Value:
    attrs: dict[str, Any] = {"kernel": (2, 2), "stride": (2, 2), "pre_padding": (0, 0), "post_padding": (0, 0)} | more
    if kind == "max_pool":
        attrs = {"dilation": (1, 1)} | attrs
    return getattr(F, kind)(x, **attrs)  # type: ignore[no-any-return]


def resnet(dtype: str = "float32", *, channels: int = 8, blocks: int = 2) -> Network:
    """A stem, bottleneck blocks (the first with a strided shortcut), pooling and a classifier."""
    b = Builder("resnet", dtype)
    x = b.net.input("pixels", Spec((Dim("N", 1), 3, 32, 32), dtype))
    y = F.relu(b.batch_norm("stem.bn", b.conv("stem.conv", x, channels, 7, stride=2, bias=False)))
    y = pool(y, "max_pool", kernel=(3, 3), pre_padding=(1, 1), post_padding=(1, 1))
    for i in range(blocks):
        y = _bottleneck(b, f"blocks.{i}", y, 2 * channels, 1 if i else 2)
    y = F.reduce_mean(y, (2, 3), True)
    y = F.reshape(y, (x.shape[0], 2 * channels))
    y = F.matmul(y, b.param("head.weight", 10, 2 * channels), transpose_b=True) + b.param("head.bias", 10)
    b.net.outputs["logits"] = y
    return b.net


def _bottleneck(b: Builder, name: str, x: Value, outputs: int, stride: int) -> Value:
    def layer(i: int, v: Value, n: int, kernel: int, s: int = 1) -> Value:
        return b.batch_norm(f"{name}.bn{i}", b.conv(f"{name}.conv{i}", v, n, kernel, stride=s, bias=False))

    short = x if x.shape[1] == outputs and stride == 1 else layer(0, x, outputs, 1, stride)
    y = F.relu(layer(1, x, outputs // 4, 1))
    y = F.relu(layer(2, y, outputs // 4, 3, stride))
    return F.relu(layer(3, y, outputs, 1) + short)  # type: ignore[no-any-return]


def unet(dtype: str = "float32", *, channels: int = 8) -> Network:
    """One level down and up: convolution, group norm and mish; average pooling, a transposed convolution, concat."""
    b = Builder("unet", dtype)
    x = b.net.input("pixels", Spec((Dim("N", 1), 3, 16, 16), dtype))

    def block(name: str, v: Value, outputs: int) -> Value:
        for i in range(2):
            v = mish(b.group_norm(f"{name}.norm{i}", b.conv(f"{name}.conv{i}", v, outputs), 4))
        return v

    skip = block("down", x, channels)
    y = block("deep", pool(skip), 2 * channels)
    y = F.concat([b.up("up.conv", y, channels), skip], 1)
    b.net.outputs["mask"] = b.conv("out", block("up.block", y, channels), 2, 1)
    return b.net


def stgcn(dtype: str = "float32", *, channels: int = 8) -> Network:
    """Two blocks of graph convolution and convolution over time; the second changes width and stride."""
    b = Builder("stgcn", dtype)
    x = b.net.input("poses", Spec((Dim("N", 1), 3, 12, 5), dtype))
    adjacency = b.param("A", 3, 5, 5)
    y = _graph_block(b, "blocks.0", x, adjacency, channels, 1, None)
    y = _graph_block(b, "blocks.1", y, adjacency, channels, 1, y)
    short = b.batch_norm("blocks.2.res.1", b.conv("blocks.2.res.0", y, 2 * channels, 1, stride=(2, 1)))
    y = _graph_block(b, "blocks.2", y, adjacency, 2 * channels, 2, short)
    y = b.conv("fc", F.reduce_mean(y, (2, 3), True), 7, 1)
    b.net.outputs["classes"] = F.reshape(y, (x.shape[0], 7))
    return b.net


def _graph_block(b: Builder, name: str, x: Value, a: Value, n: int, stride: int, residual: Value | None) -> Value:
    y = b.conv(f"{name}.conv", x, 3 * n, 1)
    y = F.reshape(y, (y.shape[0], 3, n, y.shape[2], y.shape[3]))
    y = F.einsum(y, a, equation="nkctv,kvw->nctw")
    y = F.relu(b.batch_norm(f"{name}.tcn.0", y))
    y = b.conv(f"{name}.tcn.2", y, n, (9, 1), stride=(stride, 1), padding=(4, 0))
    y = b.batch_norm(f"{name}.tcn.3", y)
    return F.relu(y if residual is None else y + residual)  # type: ignore[no-any-return]


NETS = {"resnet": resnet, "unet": unet, "stgcn": stgcn}


def weights(net: Network, seed: int = 0) -> dict[str, Array]:
    """Parameters of a sensible size; variances are positive."""
    rng = np.random.default_rng(seed)
    found = {}
    for value in net.parameters:
        shape = value.spec.evaluate({})
        array = rng.standard_normal(shape) / np.sqrt(max(np.prod(shape[1:]), 1))
        if value.name.endswith("running_var"):
            array = rng.uniform(0.5, 1.5, shape)
        elif len(shape) == 1:
            array = array * 0.1 + (1.0 if value.name.endswith("weight") else 0.0)
        found[value.name] = array.astype(np.float32)
    return found


def feeds(net: Network, batch: int = 2, seed: int = 1) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        v.name: rng.standard_normal(v.spec.evaluate({"N": batch})).astype(v.dtype.numpy) for v in net.inputs
    }  # fmt: skip
