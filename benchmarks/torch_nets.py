"""Four nets in plain torch, with random weights: what the benchmarks build, and what they compare with."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional


class GraphBlock(nn.Module):
    """Graph convolution over K adjacency matrices, a 9 × 1 convolution over time, and a residual (Yan et al. 2018)."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1, residual: bool = True, graphs: int = 3) -> None:
        super().__init__()
        self.graphs = graphs
        self.spatial = nn.Conv2d(inputs, outputs * graphs, 1)
        self.temporal = nn.Sequential(
            nn.BatchNorm2d(outputs), nn.ReLU(), nn.Conv2d(outputs, outputs, (9, 1), (stride, 1), (4, 0)),
            nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.residual: nn.Module | None = None
        if residual and inputs == outputs and stride == 1:
            self.residual = nn.Identity()
        elif residual:
            self.residual = nn.Sequential(nn.Conv2d(inputs, outputs, 1, (stride, 1)), nn.BatchNorm2d(outputs))

    def forward(self, x: Any, adjacency: Any) -> Any:
        kept = 0 if self.residual is None else self.residual(x)
        x = self.spatial(x)
        n, channels, time, joints = x.shape
        x = x.view(n, self.graphs, channels // self.graphs, time, joints)
        x = torch.einsum("nkctv,kvw->nctw", x, adjacency).contiguous()
        return functional.relu(self.temporal(x) + kept)


class StGcn(nn.Module):
    """ST-GCN on 18 joints: x [N, 3, T, 18] → classes [N, 400]."""

    CHANNELS = (
        (3, 64, 1), (64, 64, 1), (64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 128, 1), (128, 256, 2),
        (256, 256, 1), (256, 256, 1),
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("adjacency", torch.rand(3, 18, 18))
        self.blocks = nn.ModuleList(
            GraphBlock(a, b, stride, residual=i > 0) for i, (a, b, stride) in enumerate(self.CHANNELS)
        )
        self.head = nn.Conv2d(self.CHANNELS[-1][1], 400, 1)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x, self.adjacency)
        return self.head(x.mean((2, 3), keepdim=True)).flatten(1)


def _double(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.Mish(),
        nn.Conv2d(outputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.Mish(),
    )  # fmt: skip


def _up(inputs: int, outputs: int) -> nn.Module:
    return nn.ConvTranspose2d(inputs, outputs, 3, 2, 1, output_padding=1)


class UNet(nn.Module):
    """A U-Net of four scales: x [N, 3, H, W] → [N, 2, H, W]; H and W are multiples of 8."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        w = width
        self.down1, self.down2 = _double(3, w), _double(w, 2 * w)
        self.down3, self.down4 = _double(2 * w, 4 * w), _double(4 * w, 8 * w)
        self.up3, self.join3 = _up(8 * w, 4 * w), _double(8 * w, 4 * w)
        self.up2, self.join2 = _up(4 * w, 2 * w), _double(4 * w, 2 * w)
        self.up1, self.join1 = _up(2 * w, w), _double(2 * w, w)
        self.head = nn.Conv2d(w, 2, 1)

    def forward(self, x: Any) -> Any:
        a = self.down1(x)
        b = self.down2(functional.avg_pool2d(a, 2))
        c = self.down3(functional.avg_pool2d(b, 2))
        x = self.down4(functional.avg_pool2d(c, 2))
        x = self.join3(torch.cat([self.up3(x), c], 1))
        x = self.join2(torch.cat([self.up2(x), b], 1))
        return self.head(self.join1(torch.cat([self.up1(x), a], 1)))


class Field(nn.Module):
    """One field of a transformers model's output as a plain tensor."""

    def __init__(self, model: Any, field: str) -> None:
        super().__init__()
        self.model, self.field = model, field

    def forward(self, x: Any) -> Any:
        return getattr(self.model(x), self.field)


def _resnet50() -> nn.Module:
    import transformers

    config = transformers.ResNetConfig(num_labels=1000)
    return Field(transformers.ResNetForImageClassification(config), "logits")


def _bert() -> nn.Module:
    import transformers

    return Field(transformers.BertModel(transformers.BertConfig()), "last_hidden_state")


class Net(NamedTuple):
    """How to make a net and a batch of inputs for it; `dynamic` names what of the input a run decides."""

    title: str
    make: Callable[[], Any]
    inputs: Callable[[int], Any]
    dynamic: dict[int, str]


NETS = {
    "stgcn": Net("ST-GCN 150 × 18", StGcn, lambda batch: torch.randn(batch, 3, 150, 18), {0: "N"}),
    "unet": Net("U-Net 256²", UNet, lambda batch: torch.randn(batch, 3, 256, 256), {0: "N"}),
    "resnet50": Net("ResNet-50", _resnet50, lambda batch: torch.randn(batch, 3, 224, 224), {0: "N"}),
    "bert": Net("BERT-base, 128 tokens", _bert, lambda batch: torch.randint(0, 30000, (batch, 128)), {0: "N"}),
}

# The four, and what only the benchmark of nets on a CPU runs.
ALL = {**NETS, "bert-384": NETS["bert"]._replace(
    title="BERT-base, 384 tokens", inputs=lambda batch: torch.randint(0, 30000, (batch, 384))
)}  # fmt: skip


def make(name: str) -> Any:
    """The net in evaluation mode, weights from a fixed seed, batch norms that are not the identity."""
    torch.manual_seed(0)
    net = ALL[name].make().eval()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, 0.0, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0.0, 0.1)
    return net


def in_range(name: str, module: Any) -> Any:
    """The module with an adjacency that stays in float16: ten blocks of sums of 54 numbers would leave it."""
    if name == "stgcn":
        module.adjacency /= 27
    return module


EXPORTERS = {"dynamo": True, "older exporter": False}  # of torch.onnx, and what it calls them


def export_onnx(module: Any, x: Any, dynamic: Mapping[int, str], path: Path, dynamo: bool) -> None:
    """Writes a net of one input, "x", as one ONNX file without a word of the exporter; a run decides the `dynamic`
    dimensions.
    """
    dims: dict[str, Any] = {"dynamic_axes": {"x": dict(dynamic)}}
    if dynamo:
        dims = {"dynamic_shapes": ({i: torch.export.Dim(name) for i, name in dynamic.items()},)}
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, (x,), str(path), input_names=["x"], dynamo=dynamo, verbose=False, external_data=False, **dims
        )
