"""A net by way of ONNX becomes what it becomes by way of torch.export: the same kernels, as often, at no more work."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import transformers
from torch import nn

import ingot
from benchmarks import torch_nets
from benchmarks.torch_nets import EXPORTERS, Field
from ingot.cli.inspect import all_calls, name_of


class Attention(nn.Module):
    """Attention with a mask, layer norms, GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(16), nn.LayerNorm(16)
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.register_buffer("mask", torch.zeros(5, 5).masked_fill(torch.ones(5, 5).triu(1) > 0, float("-inf")))

    def forward(self, x: Any) -> Any:
        h = self.first(x)
        q, k, v = (part(h).view(-1, 5, 4, 4).transpose(1, 2) for part in (self.q, self.k, self.v))
        a = nn.functional.scaled_dot_product_attention(q, k, v, self.mask)
        x = x + self.o(a.transpose(1, 2).reshape(-1, 5, 16))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class ByHand(nn.Module):
    """A layer norm, an RMS norm, attention and activations as people write them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias, self.scale = (nn.Parameter(torch.rand(16)) for _ in range(3))
        self.qkv, self.o = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        mean = x.mean(-1, keepdim=True)
        h = (x - mean) / torch.sqrt(((x - mean) ** 2).mean(-1, keepdim=True) + 1e-6) * self.weight + self.bias
        q, k, v = (part.view(-1, 5, 4, 4).transpose(1, 2) for part in self.qkv(h).chunk(3, -1))
        a = (q @ k.transpose(-2, -1) / math.sqrt(4)).softmax(-1) @ v
        x = x + self.o(a.transpose(1, 2).reshape(-1, 5, 16))
        h = self.scale * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))
        a, b, c, d = self.qkv(h)[..., :16].chunk(4, -1)
        a = 0.5 * a * (1 + torch.erf(a / math.sqrt(2)))
        b = 0.5 * b * (1 + torch.tanh(math.sqrt(2 / math.pi) * (b + 0.044715 * b.pow(3))))
        return torch.cat([a, b, c * torch.sigmoid(c), d * torch.tanh(nn.functional.softplus(d))], -1)


class Images(nn.Module):
    """Convolutions with batch norm, group norm, ReLU, SiLU and squeeze-and-excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.SiLU(), nn.AvgPool2d(2),
            nn.Conv2d(8, 8, 1), nn.GroupNorm(2, 8), nn.Mish(),
        )  # fmt: skip
        nn.init.normal_(self.body[7].weight)
        nn.init.normal_(self.body[7].bias)
        self.less, self.more = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1)

    def forward(self, x: Any) -> Any:
        x = self.body(x)
        gate = self.more(nn.functional.silu(self.less(x.mean((2, 3), keepdim=True))))
        return (x * torch.sigmoid(gate)).mean((2, 3))


class Graphs(torch_nets.StGcn):
    """ST-GCN of three blocks."""

    CHANNELS = ((3, 16, 1), (16, 16, 1), (16, 32, 2))


def resnet() -> nn.Module:
    config = transformers.ResNetConfig(num_labels=10, embedding_size=8, hidden_sizes=[16, 32], depths=[1, 2])
    return Field(transformers.ResNetForImageClassification(config), "logits")


SMALL = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}


def bert() -> nn.Module:
    config = transformers.BertConfig(**SMALL, max_position_embeddings=16)
    return Field(transformers.BertModel(config), "last_hidden_state")


ACCURACY = {"float32": 1e-5, "bfloat16": 3e-2}  # of the largest; measured: 1.4e-6 and 1.2e-2


class Net(NamedTuple):
    make: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    dynamic: Mapping[int, str]


BATCH = {0: "N"}
NETS = {
    "attention": Net(Attention, lambda: torch.randn(2, 5, 16), BATCH),
    "by hand": Net(ByHand, lambda: torch.randn(2, 5, 16), BATCH),
    "images": Net(Images, lambda: torch.randn(2, 3, 8, 8), BATCH),
    "stgcn": Net(Graphs, lambda: torch.randn(2, 3, 12, 18), BATCH),
    "unet": Net(lambda: torch_nets.UNet(8), lambda: torch.randn(2, 3, 16, 16), BATCH),
    "resnet50": Net(resnet, lambda: torch.randn(2, 3, 32, 32), BATCH),
    "bert": Net(bert, lambda: torch.randint(0, 50, (2, 8)), {0: "N", 1: "T"}),
}


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    net = NETS[name].make().eval()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, 0.0, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return net


def work(engine: Any) -> tuple[Counter[str], int]:
    """How often each kernel is called, and the steps of all their expressions."""
    calls = [c for body in engine.header["programs"]["cpu"]["entries"].values() for c in all_calls(body)]
    expressions = [v for c in calls for v in c.get("params", {}).values() if isinstance(v, dict) and "steps" in v]
    return Counter(map(name_of, calls)), sum(len(v["steps"]) for v in expressions)


def same_kernels(name: str, exporter: str, folder: Path, precision: str) -> None:
    net, module = NETS[name], made(name)
    x, path = net.inputs(), folder / "net.onnx"
    engine = ingot.build(module, (x,), dynamic={"x": net.dynamic}, report=False, precision=precision)
    torch_nets.export_onnx(module, x, net.dynamic, path, EXPORTERS[exporter])
    other = ingot.build(path, report=False, precision=precision)
    (found,) = other.run({other.inputs[0].name: x.numpy()}).values()
    want = module(x).detach().numpy()
    assert np.abs(found - want).max() <= ACCURACY[precision] * np.abs(want).max()
    (calls, steps), (want_calls, want_steps) = work(other), work(engine)
    assert calls == want_calls
    assert steps <= want_steps


def test_same_kernels(tmp_path: Path) -> None:
    same_kernels("by hand", "older exporter", tmp_path, "float32")


@pytest.mark.slow
@pytest.mark.parametrize("precision", ACCURACY)
@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", NETS)
def test_same_kernels_of_all(name: str, exporter: str, precision: str, tmp_path: Path) -> None:
    if EXPORTERS[exporter]:
        pytest.importorskip("onnxscript")
    same_kernels(name, exporter, tmp_path, precision)
