"""The nets of the benchmarks, imported: small in every run, at their own size in the long one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import ingot
from benchmarks import torch_nets

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:torch", "ignore::DeprecationWarning:torch")


def small_bert() -> torch.torch.nn.Module:
    config = transformers.BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=500
    )
    return torch_nets.Field(transformers.BertModel(config), "last_hidden_state")


def small_resnet() -> torch.torch.nn.Module:
    config = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32, 64, 64], depths=[1, 2, 1, 1], num_labels=10
    )
    return torch_nets.Field(transformers.ResNetForImageClassification(config), "logits")


class SmallStGcn(torch_nets.StGcn):
    """Its four kinds of blocks: without a residual, with x itself, with one that changes channels and length."""

    CHANNELS = ((3, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1))


SMALL: dict[str, tuple[Any, tuple[int, ...], dict[int, Any]]] = {
    "stgcn": (SmallStGcn, (3, 20, 18), {0: "N", 2: "T"}),
    "unet": (lambda: torch_nets.UNet(8), (3, 32, 32), {0: "N"}),
    "resnet": (small_resnet, (3, 64, 64), {0: "N", 2: "H", 3: "W"}),
    "bert": (small_bert, (16,), {0: "N", 1: ingot.Dim("T", 1, 16, 64)}),
}


def batch(name: str, shape: tuple[int, ...], count: int) -> torch.Tensor:
    return torch.randint(0, 500, (count, *shape)) if name == "bert" else torch.randn(count, *shape)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SMALL)
def test_small(name: str, tmp_path: Path) -> None:
    make, shape, dynamic = SMALL[name]
    net = make().eval()
    engine = ingot.build(net, (batch(name, shape, 1),), dynamic={"x": dynamic})
    assert engine.report.source.startswith("against torch"), engine.report.source
    assert engine._native.host_calls("main") == []
    engine.save(tmp_path / "net.ingot")
    engine = ingot.load(tmp_path / "net.ingot")
    larger = tuple(n + 8 * (axis in dynamic) for axis, n in enumerate(shape, 1))
    for count, sizes in ((1, shape), (3, shape), (2, larger)):
        x = batch(name, sizes, count)
        with torch.no_grad():
            wanted = net(x).numpy()
        found = engine.run({"x": x})["output_0"]
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SMALL)
def test_small_in_bfloat16(name: str) -> None:
    make, shape, _ = SMALL[name]
    net = make().eval()
    x = batch(name, shape, 2)
    engine = ingot.build(net, {"x": x}, precision="bfloat16")
    with torch.no_grad():
        wanted = net(x).numpy()
    found = engine.run({"x": x})["output_0"]
    assert np.abs(found - wanted).max() <= 0.05 * np.abs(wanted).max()


class Squares(torch.nn.Module):
    """The sums of squares, of a scaled x."""

    def __init__(self, scale: torch.Tensor | None) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((x if self.scale is None else x * self.scale) ** 2).sum(-1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scaled", [False, True])
def test_narrow_inputs_of_a_net_in_float32(scaled: bool, dtype: torch.dtype) -> None:
    """Compared in float32, as torch's module is not: with the tolerance of what computes in half precision."""
    x = torch.randn(3, 40).to(dtype)
    net = Squares(torch.ones(40, dtype=dtype) if scaled else None).eval()
    engine = ingot.build(net, (x,), dynamic={"x": {0: "n"}}, precision="float32")
    assert engine.report.source.startswith("the network in float32 against torch"), engine.report.source
    found = np.asarray(engine.run({"x": x})["output_0"]).astype(np.float32)
    np.testing.assert_allclose(found, net(x).float().numpy(), rtol=0.02)


def test_an_output_of_transformers_keeps_its_names() -> None:
    model = small_bert().model.eval()  # type: ignore[union-attr]
    ids, mask = torch.randint(0, 500, (2, 9)), torch.ones(2, 9, dtype=torch.int64)
    mask[0, 5:] = 0
    engine = ingot.build(model, {"attention_mask": mask, "input_ids": ids}, dynamic={
        "input_ids": {0: "N", 1: "T"}, "attention_mask": {0: "N", 1: "T"}})  # fmt: skip
    assert [p.name for p in engine.inputs] == ["input_ids", "attention_mask"]
    assert [p.name for p in engine.outputs] == ["last_hidden_state", "pooler_output"]
    ids, mask = torch.randint(0, 500, (3, 12)), torch.ones(3, 12, dtype=torch.int64)
    mask[1, 3:] = 0
    with torch.no_grad():
        wanted = model(ids, attention_mask=mask)
    found = engine.run({"input_ids": ids, "attention_mask": mask})
    for name in found:
        np.testing.assert_allclose(found[name], getattr(wanted, name), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", torch_nets.NETS)
def test_full_size(name: str, tmp_path: Path) -> None:
    net = torch_nets.make(name)
    x = torch_nets.NETS[name].inputs(1)
    with torch.no_grad():
        program = torch.export.export(net, (x,), strict=False)
        torch.export.save(program, tmp_path / "net.pt2")
        wanted = net(x).numpy()
    engine = ingot.build(tmp_path / "net.pt2")
    assert engine.report.source.startswith("against torch"), engine.report.source
    found = engine.run({"x": x})["output_0"]
    assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()
