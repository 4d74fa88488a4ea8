"""A net by way of ONNX becomes what it becomes by way of torch.export: the same ops after the passes, as often."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ingot
from ingot.backends.cpu import CPU
from ingot.frontends import onnx, torch_export
from ingot.ir import Network
from ingot.passes.pipeline import lower
from tests.nets import op_name


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
        q, k, v = (part(h).view(2, 5, 4, 4).transpose(1, 2) for part in (self.q, self.k, self.v))
        a = nn.functional.scaled_dot_product_attention(q, k, v, self.mask)
        x = x + self.o(a.transpose(1, 2).reshape(2, 5, 16))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class Images(nn.Module):
    """Convolutions with batch norm, ReLU and SiLU."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.SiLU(), nn.AvgPool2d(2)
        )

    def forward(self, x: Any) -> Any:
        return self.body(x).mean((2, 3))


NETS = {"attention": (Attention, (2, 5, 16)), "images": (Images, (2, 3, 8, 8))}


def ops(network: Network) -> Counter[str]:
    return Counter(op_name(node) for node in lower(network, CPU).nodes)


@pytest.mark.parametrize("dynamo", [True, False], ids=["dynamo", "older exporter"])
@pytest.mark.parametrize("name", NETS)
def test_same_ops(name: str, dynamo: bool, tmp_path: Path) -> None:
    if dynamo:
        pytest.importorskip("onnxscript")
    make, shape = NETS[name]
    torch.manual_seed(0)
    net, x, path = make().eval(), torch.randn(shape), tmp_path / "net.onnx"
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(net, (x,), str(path), dynamo=dynamo, verbose=False, external_data=False)
    exported = torch_export.export(net, (x,))
    direct = torch_export.build_network(exported.program, exported.source, name, exported.dims).network
    assert ops(onnx.build_network(onnx.open_model(path)).imported.network) == ops(direct)
    engine = ingot.build(path, report=False)
    (found,) = engine.run({engine.inputs[0].name: x}).values()
    np.testing.assert_allclose(found, net(x).detach(), rtol=1e-4, atol=1e-5)
