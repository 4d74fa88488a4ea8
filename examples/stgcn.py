"""ST-GCN in ingot.nn: takes the weights of the same net in torch, is built, runs, and is compared with it.

    python examples/stgcn.py [--frames 150] [--batch 1]

Spatial-temporal graph convolution for recognising actions by skeletons (Yan et al. 2018). With torch installed it
prints the largest difference of the two, else it runs with random weights.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import ingot
from ingot import functional, nn

JOINTS, GRAPHS, CLASSES = 18, 3, 400
CHANNELS = (
    (3, 64, 1), (64, 64, 1), (64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 128, 1), (128, 256, 2),
    (256, 256, 1), (256, 256, 1),
)  # fmt: skip


class Block(nn.Module):
    """Graph convolution over several adjacency matrices, a 9 × 1 convolution over time, and a residual."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1, residual: bool = True) -> None:
        super().__init__()
        self.spatial = nn.Conv2d(inputs, outputs * GRAPHS, 1)
        self.temporal = nn.Sequential(
            nn.BatchNorm2d(outputs), nn.ReLU(), nn.Conv2d(outputs, outputs, (9, 1), (stride, 1), (4, 0)),
            nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.residual: Any = None
        if residual and inputs == outputs and stride == 1:
            self.residual = nn.Identity()
        elif residual:
            self.residual = nn.Sequential(nn.Conv2d(inputs, outputs, 1, (stride, 1)), nn.BatchNorm2d(outputs))

    def forward(self, x: Any, adjacency: Any) -> Any:
        y = self.spatial(x)
        n, channels, frames, joints = y.shape
        y = y.view(n, GRAPHS, channels // GRAPHS, frames, joints)
        y = self.temporal(functional.einsum("nkctv,kvw->nctw", y, adjacency))
        return functional.relu(y if self.residual is None else y + self.residual(x))


class StGcn(nn.Module):
    """x [N, 3, frames, joints] → classes [N, 400]"""

    def __init__(self) -> None:
        super().__init__()
        self.adjacency = nn.Parameter(shape=(GRAPHS, JOINTS, JOINTS))
        self.blocks = nn.ModuleList([Block(a, b, stride, i > 0) for i, (a, b, stride) in enumerate(CHANNELS)])
        self.head = nn.Conv2d(CHANNELS[-1][1], CLASSES, 1)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x, self.adjacency)
        return functional.flatten(self.head(functional.mean(x, (2, 3), keepdim=True)), 1)


def in_torch() -> Any:
    """The same net in torch, with random weights and statistics."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, i: int, o: int, stride: int, residual: bool) -> None:
            super().__init__()
            self.spatial = nn.Conv2d(i, o * GRAPHS, 1)
            norm, conv = nn.BatchNorm2d(o), nn.Conv2d(o, o, (9, 1), (stride, 1), (4, 0))
            self.temporal = nn.Sequential(norm, nn.ReLU(), conv, nn.BatchNorm2d(o))
            same = i == o and stride == 1
            other = None if same else nn.Sequential(nn.Conv2d(i, o, 1, (stride, 1)), nn.BatchNorm2d(o))
            self.residual = (nn.Identity() if same else other) if residual else None

        def forward(self, x: Any, adjacency: Any) -> Any:
            y = self.spatial(x).unflatten(1, (GRAPHS, -1))
            y = self.temporal(torch.einsum("nkctv,kvw->nctw", y, adjacency))
            return torch.relu(y if self.residual is None else y + self.residual(x))

    class Twin(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("adjacency", torch.rand(GRAPHS, JOINTS, JOINTS) / JOINTS)
            self.blocks = nn.ModuleList([Block(*sizes, residual=i > 0) for i, sizes in enumerate(CHANNELS)])
            self.head = nn.Conv2d(CHANNELS[-1][1], CLASSES, 1)

        def forward(self, x: Any) -> Any:
            for block in self.blocks:
                x = block(x, self.adjacency)
            return self.head(x.mean((2, 3), keepdim=True)).flatten(1)

    torch.manual_seed(0)
    net = Twin().eval()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, 0.0, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return net


def main(arguments: Sequence[str] | None = None) -> float | None:
    """Builds, runs, compares; the largest difference to torch relative to its largest output, or None without torch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("frames", 150), ("batch", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args(arguments)

    net = StGcn()
    twin = in_torch() if importlib.util.find_spec("torch") else None
    if twin is not None:
        net.load_state_dict(twin.state_dict())
    spec = ingot.Spec(("N", 3, "T", JOINTS), "float32")
    engine = ingot.build(net, {"x": spec}, report=False, weights_from=None if twin is not None else "random")

    x = np.random.default_rng(0).standard_normal((options.batch, 3, options.frames, JOINTS)).astype(np.float32)
    (y,) = engine.run({"x": x}).values()
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        engine.run({"x": x})
        times.append(time.perf_counter() - begin)
    print(f"ST-GCN {list(x.shape)} → {list(y.shape)}: {1000 * statistics.median(times):.1f} ms")
    if twin is None:
        print("torch is not installed: nothing to compare with")
        return None
    import torch

    with torch.inference_mode():
        want = twin(torch.from_numpy(x)).numpy()
    difference = float(np.abs(y - want).max() / np.abs(want).max())
    print(f"largest difference to torch: {difference:.1e} of the largest output")
    return difference


if __name__ == "__main__":
    main()
