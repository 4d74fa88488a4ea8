"""Small nets with random weights, built once each, and graphs where there is no GPU to capture them."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

import ingot

torch: Any = pytest.importorskip("torch", reason="target cuda runs on torch's memory")

from torch import nn  # noqa: E402

GPU = torch.cuda.is_available()


class Images(nn.Module):
    """Convolutions of every kind of ending, group norms and pools."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.b, self.c = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, (3, 1), padding=(1, 0))
        self.batch = nn.BatchNorm2d(8)
        self.up = nn.ConvTranspose2d(8, 4, 3, 2, 1, output_padding=1)
        self.plain = nn.GroupNorm(2, 4, affine=False)
        self.head = nn.Linear(4, 5)

    def forward(self, x: Any) -> Any:
        x = nn.functional.mish(self.norm(self.a(x)))
        x = nn.functional.relu(self.batch(self.c(nn.functional.relu(self.b(x)))) + x)
        x = self.up(nn.functional.max_pool2d(self.b(x) + self.c(x), 2))
        x = nn.functional.avg_pool2d(self.plain(x), 2)
        return nn.functional.relu(self.head(x.mean((2, 3))))


class Words(nn.Module):
    """A layer of attention, its residuals normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))
        self.first, self.second = nn.LayerNorm(16), nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 24), nn.Linear(24, 16)

    def forward(self, x: Any) -> Any:
        x = self.table(x)
        q, k, v = (f(x).view(*x.shape[:2], 2, 8).transpose(1, 2) for f in (self.q, self.k, self.v))
        found = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.first(x + self.o(found))
        return self.second(x + self.down(nn.functional.gelu(self.up(x))))


class Graphs(nn.Module):
    """A graph convolution, as ST-GCN has it."""

    def __init__(self) -> None:
        super().__init__()
        self.spatial, self.batch = nn.Conv2d(3, 12, 1), nn.BatchNorm2d(4)
        self.register_buffer("graph", torch.rand(3, 6, 6))

    def forward(self, x: Any) -> Any:
        x = self.spatial(x)
        x = x.view(x.shape[0], 3, 4, *x.shape[2:])
        return nn.functional.relu(self.batch(torch.einsum("nkctv,kvw->nctw", x, self.graph)))


SEED = torch.Generator().manual_seed(0)
IMAGES, GRAPHS = (torch.randn(2, 3, *size, generator=SEED) for size in ((4, 6), (5, 6)))
WORDS = torch.randint(0, 50, (2, 5), generator=SEED)
NETS = {
    "images": (Images, IMAGES, {"conv+chain", "group_norm", "chain", "matmul+chain", "pool"}),
    "words": (Words, WORDS, {"joined_products", "attention", "normed_rows", "matmul+chain"}),
    "graphs": (Graphs, GRAPHS, {"graph_sum", "chain", "conv"}),
}


@cache
def built(name: str, precision: str = "float16") -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    make, x, _ = NETS[name]
    module = make().eval()
    engine = ingot.build(module, (x,), precision=precision, dynamic={"x": {0: "N"}}, report=False)
    return engine, module, x


def replays(executor: Any) -> None:
    """Lets an executor on the CPU capture: a graph that computes everything again, where it lies."""

    def captured(work: Any) -> Any:
        found = work()

        def again() -> None:
            new = work()
            for name, tensor in new.outputs.items():
                found.outputs[name].copy_(tensor)
            if found.flags is not None:
                found.flags.copy_(new.flags)

        return again, found

    if not GPU:
        executor._captures, executor._captured = True, captured


def on_the_device(executor: Any) -> None:
    """Lets an executor on the CPU take tensors there as those of its device, as one on a GPU does."""
    if not GPU:
        executor._here = (1, 0)
