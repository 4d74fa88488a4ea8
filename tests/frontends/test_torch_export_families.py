"""Small nets of the families that people have, in plain torch: exported, built, run, and compared with torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import ingot

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:torch", "ignore::DeprecationWarning:torch")
Tensor = torch.Tensor


def conv_norm(inputs: int, outputs: int, kernel: int, stride: int, act: type[nn.Module], groups: int = 1) -> nn.Module:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), act())


class Squeeze(nn.Module):
    """Squeeze and excitation: every channel times a gate that the mean of all decides."""

    def __init__(self, width: int, act: type[nn.Module], gate: type[nn.Module]) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(width, width // 4, 1), nn.Conv2d(width // 4, width, 1)
        self.pool, self.act, self.gate = nn.AdaptiveAvgPool2d(1), act(), gate()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.fc2(self.act(self.fc1(self.pool(x)))))  # type: ignore[no-any-return]


class Inverted(nn.Module):
    """MobileNet's and EfficientNet's block: widen, filter every channel, squeeze, narrow."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, act: type[nn.Module],
                 gate: type[nn.Module]) -> None:  # fmt: skip
        super().__init__()
        wide = 4 * inputs
        self.body = nn.Sequential(
            conv_norm(inputs, wide, 1, 1, act), conv_norm(wide, wide, kernel, stride, act, wide),
            Squeeze(wide, nn.ReLU, gate), conv_norm(wide, outputs, 1, 1, nn.Identity),
        )  # fmt: skip
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.residual else self.body(x)  # type: ignore[no-any-return]


def mobilenet(act: type[nn.Module] = nn.Hardswish, gate: type[nn.Module] = nn.Hardsigmoid) -> nn.Module:
    return nn.Sequential(
        conv_norm(3, 8, 3, 2, act), Inverted(8, 8, 3, 1, act, gate), Inverted(8, 16, 5, 2, act, gate),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 12), act(), nn.Dropout(0.2), nn.Linear(12, 10),
    )  # fmt: skip


def efficientnet() -> nn.Module:
    return mobilenet(nn.SiLU, nn.Sigmoid)


class ConvNext(nn.Module):
    """A stem, a block with a layer norm over channels last, GELU and a scale, and a norm over channels first."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 4, 4)
        self.depthwise = nn.Conv2d(16, 16, 7, padding=3, groups=16)
        self.norm, self.last = nn.LayerNorm(16, eps=1e-6), nn.LayerNorm(16, eps=1e-6)
        self.wide, self.narrow = nn.Linear(16, 64), nn.Linear(64, 16)
        self.scale = nn.Parameter(torch.full((16,), 0.5))
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        mean = x.mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt((x - mean).pow(2).mean(1, keepdim=True) + 1e-6)
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.narrow(functional.gelu(self.wide(y)))
        x = x + y.permute(0, 3, 1, 2)
        return self.head(self.last(x.mean([-2, -1])))  # type: ignore[no-any-return]


class DenseNet(nn.Module):
    """Every layer sees all before it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
                                  nn.MaxPool2d(3, 2, 1))  # fmt: skip
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(n), nn.ReLU(inplace=True), nn.Conv2d(n, 4, 3, padding=1, bias=False))
            for n in (8, 12, 16)
        )
        self.transition = nn.Sequential(nn.BatchNorm2d(20), nn.ReLU(), nn.Conv2d(20, 10, 1), nn.AvgPool2d(2))
        self.head = nn.Linear(10, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return self.head(functional.adaptive_avg_pool2d(self.transition(x), (1, 1)).flatten(1))  # type: ignore[no-any-return]


class DeepLab(nn.Module):
    """Dilated convolutions side by side, the mean of the image among them, joined with an early layer at its size."""

    def __init__(self) -> None:
        super().__init__()
        self.early, self.late = conv_norm(3, 8, 3, 2, nn.ReLU), conv_norm(8, 16, 3, 2, nn.ReLU)
        self.branches = nn.ModuleList(nn.Conv2d(16, 8, 3, padding=d, dilation=d) for d in (1, 2, 4))
        self.pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 8, 1), nn.ReLU())
        self.join, self.head = conv_norm(40, 8, 3, 1, nn.ReLU), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        early = self.early(x)
        late = self.late(early)
        parts = [branch(late) for branch in self.branches]
        parts.append(functional.interpolate(self.pooled(late), late.shape[-2:], mode="bilinear", align_corners=False))
        y = functional.interpolate(torch.cat(parts, 1), early.shape[-2:], mode="bilinear", align_corners=False)
        y = self.head(self.join(torch.cat([y, early], 1)))
        return functional.interpolate(y, x.shape[-2:], mode="bilinear", align_corners=True)


class Pyramid(nn.Module):
    """A feature pyramid: coarse maps enlarged onto finer ones, with nn.Upsample and by nearest elements."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2, self.c3 = (nn.Conv2d(a, 8, 3, 2, 1) for a in (3, 8, 8))
        self.smooth, self.up = nn.Conv2d(8, 8, 3, padding=1), nn.Upsample(scale_factor=2, mode="bilinear")

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        a = self.c1(x)
        b = self.c2(functional.leaky_relu(a, 0.1))
        c = self.c3(functional.elu(b))
        b = b + functional.interpolate(c, scale_factor=2, mode="nearest")
        return {"fine": self.smooth(a + self.up(b)), "coarse": c}


class Vit(nn.Module):
    """Patches and a class token, position embeddings, one encoder layer of its own and one of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 32, 8, 8)
        self.token, self.place = nn.Parameter(torch.randn(1, 1, 32)), nn.Parameter(torch.randn(1, 17, 32))
        self.norm1, self.norm2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.place
        n, t, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(n, t, 3, 4, width // 4).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, width))
        y = self.norm2(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return self.head(x[:, 0])  # type: ignore[no-any-return]


class Swin(nn.Module):
    """Attention in windows that are shifted by a roll, with a table of relative positions and a mask."""

    def __init__(self, size: int = 8, window: int = 4, heads: int = 2, width: int = 16) -> None:
        super().__init__()
        self.size, self.window, self.heads = size, window, heads
        self.patch, self.norm = nn.Conv2d(3, width, 4, 4), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.merge, self.head = nn.Linear(4 * width, 2 * width, bias=False), nn.Linear(2 * width, 5)
        self.table = nn.Parameter(torch.randn((2 * window - 1) ** 2, heads))
        at = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        apart = (at[:, :, None] - at[:, None, :]).permute(1, 2, 0) + window - 1
        self.register_buffer("index", apart[..., 0] * (2 * window - 1) + apart[..., 1])
        region = torch.zeros(size, size)
        for i, a in enumerate((slice(0, -window), slice(-window, -window // 2), slice(-window // 2, None))):
            for j, b in enumerate((slice(0, -window), slice(-window, -window // 2), slice(-window // 2, None))):
                region[a, b] = 3 * i + j
        rows = self.windows(region[None, :, :, None]).squeeze(-1)
        self.register_buffer("mask", (rows[:, None] - rows[:, :, None]).ne(0).float() * -100)

    def windows(self, x: Tensor) -> Tensor:
        n, h, w, c = x.shape
        k = self.window
        return x.view(n, h // k, k, w // k, k, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, k * k, c)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).permute(0, 2, 3, 1)
        n, h, w, c = x.shape
        k, shift = self.window, self.window // 2
        y = self.windows(torch.roll(self.norm(x), shifts=(-shift, -shift), dims=(1, 2)))
        q, key, v = self.qkv(y).view(-1, k * k, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        scores = (q * (c // self.heads) ** -0.5) @ key.transpose(-2, -1)
        bias = self.table[self.index.view(-1)].view(k * k, k * k, -1).permute(2, 0, 1).contiguous()
        scores = (scores + bias).view(n, -1, self.heads, k * k, k * k) + self.mask[None, :, None]
        y = scores.view(-1, self.heads, k * k, k * k).softmax(-1) @ v
        y = self.out(y.transpose(1, 2).reshape(-1, k * k, c)).view(n, h // k, w // k, k, k, c)
        y = y.permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, c)
        x = x + torch.roll(y, shifts=(shift, shift), dims=(1, 2))
        x = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1)
        return self.head(self.merge(x).mean((1, 2)))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """nn.TransformerEncoder on embedded tokens."""

    def __init__(self, first: bool, causal: bool = False) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, activation="gelu", batch_first=True, norm_first=first)
        self.embed = nn.Embedding(50, 32)
        self.body = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(32), enable_nested_tensor=False)
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1]) if self.causal else None
        return self.body(self.embed(x), mask=mask, is_causal=self.causal)  # type: ignore[no-any-return]


class Wavenet(nn.Module):
    """Causal convolutions of growing dilation, gated, with skips."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv1d(1, 8, 1)
        self.gates = nn.ModuleList(nn.Conv1d(8, 16, 2, dilation=d) for d in (1, 2, 4))
        self.skips = nn.ModuleList(nn.Conv1d(8, 8, 1) for _ in range(3))
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(8, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        x, total = self.inner(x), torch.zeros(())
        for gate, skip, d in zip(self.gates, self.skips, (1, 2, 4), strict=True):
            a, b = gate(functional.pad(x, (d, 0))).chunk(2, 1)
            y = skip(torch.tanh(a) * torch.sigmoid(b))
            x, total = x + y, total + y
        return self.head(total)  # type: ignore[no-any-return]


def volume() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(4, 8, 3, padding=1),
        nn.InstanceNorm3d(8, affine=True), nn.LeakyReLU(0.1), nn.ConvTranspose3d(8, 4, 2, 2), nn.Conv3d(4, 2, 1),
        nn.Softmax(1),
    )  # fmt: skip


class Shuffle(nn.Module):
    """ShuffleNet's channel shuffle, super-resolution's pixel shuffle, reflection padding, PReLU, global maxima."""

    def __init__(self) -> None:
        super().__init__()
        self.grouped, self.act = nn.Conv2d(4, 8, 3, padding=1, groups=2), nn.PReLU(8)
        self.up, self.pad, self.last = nn.PixelShuffle(2), nn.ReflectionPad2d(1), nn.Conv2d(2, 3, 3)

    def forward(self, x: Tensor) -> Any:
        y = self.act(self.grouped(x))
        n, c, h, w = y.shape
        y = y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        y = self.last(self.pad(self.up(y)))
        return torch.clamp(y, 0, 1), y.amax((2, 3)), functional.normalize(y.mean((2, 3)), dim=1)


def image(*sizes: int) -> Callable[[int], Tensor]:
    return lambda batch: torch.randn(batch, *sizes)


def tokens(batch: int) -> Tensor:
    return torch.randint(0, 50, (batch, 11))


NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "mobilenet": (mobilenet, image(3, 32, 32)),
    "efficientnet": (efficientnet, image(3, 33, 40)),
    "convnext": (ConvNext, image(3, 32, 32)),
    "densenet": (DenseNet, image(3, 37, 40)),
    "deeplab": (DeepLab, image(3, 37, 45)),
    "pyramid": (Pyramid, image(3, 32, 48)),
    "vit": (Vit, image(3, 32, 32)),
    "swin": (Swin, image(3, 32, 32)),
    "encoder, norm last": (lambda: Encoder(False), tokens),
    "encoder, norm first": (lambda: Encoder(True), tokens),
    "encoder, causal": (lambda: Encoder(True, True), tokens),
    "wavenet": (Wavenet, image(1, 40)),
    "volume": (volume, image(1, 8, 8, 6)),
    "shuffle": (Shuffle, image(4, 7, 9)),
}


def warmed(net: nn.Module) -> nn.Module:
    """The net in evaluation mode with batch norms that are not the identity."""
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d | nn.BatchNorm3d):
            nn.init.normal_(part.running_mean, 0.0, 0.1)
            nn.init.uniform_(part.running_var, 0.5, 1.5)
    return net.eval()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NETS)
def test_family(name: str) -> None:
    torch.manual_seed(0)
    make, inputs = NETS[name]
    net = warmed(make())
    argument = "input" if isinstance(net, nn.Sequential) else "x"
    engine = ingot.build(net, (inputs(2),), dynamic={argument: {0: "N"}})
    assert engine.report.source.startswith("against torch"), engine.report.source
    assert engine._native.host_calls("main") == []
    for batch in (1, 3):
        x = inputs(batch)
        with torch.no_grad():
            wanted = net(x)
        wanted = wanted.values() if isinstance(wanted, dict) else wanted if isinstance(wanted, tuple) else [wanted]
        found = engine.run({argument: x})
        for array, want in zip(found.values(), wanted, strict=True):
            np.testing.assert_allclose(array, want, rtol=1e-4, atol=1e-4 * float(want.abs().max()))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "sizes"),
    [("deeplab", ("H", "W")), ("densenet", ("H", "W")), ("pyramid", (8 * ingot.Dim("h"), 8 * ingot.Dim("w")))],
)
def test_fully_convolutional_at_any_size(name: str, sizes: Any) -> None:
    torch.manual_seed(0)
    make, inputs = NETS[name]
    net = warmed(make())
    engine = ingot.build(net, (inputs(1),), dynamic={"x": dict(enumerate(sizes, 2))})
    for size in ((32, 40), (48, 24)):
        x = torch.randn(1, 3, *size)
        with torch.no_grad():
            wanted = net(x)
        wanted = wanted.values() if isinstance(wanted, dict) else [wanted]
        for array, want in zip(engine.run({"x": x}).values(), wanted, strict=True):
            np.testing.assert_allclose(array, want, rtol=1e-4, atol=1e-4 * float(want.abs().max()))
