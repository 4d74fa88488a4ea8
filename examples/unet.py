"""A U-Net in ingot.nn: takes the weights of the same net in torch, is built, runs, and is compared with it.

    python examples/unet.py [--size 256] [--batch 1] [--width 32]

With torch installed it prints the largest difference of the two, else it runs with random weights.
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


def double(inputs: int, outputs: int) -> nn.Sequential:
    """Two 3×3 convolutions, each normalised and followed by Mish."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.Mish(),
        nn.Conv2d(outputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.Mish(),
    )  # fmt: skip


def up(inputs: int, outputs: int) -> nn.ConvTranspose2d:
    return nn.ConvTranspose2d(inputs, outputs, 3, 2, 1, output_padding=1)


class UNet(nn.Module):
    """Four scales: x [N, 3, H, W] → [N, 2, H, W]; H and W are multiples of 8."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        w = width
        self.down1, self.down2 = double(3, w), double(w, 2 * w)
        self.down3, self.down4 = double(2 * w, 4 * w), double(4 * w, 8 * w)
        self.up3, self.join3 = up(8 * w, 4 * w), double(8 * w, 4 * w)
        self.up2, self.join2 = up(4 * w, 2 * w), double(4 * w, 2 * w)
        self.up1, self.join1 = up(2 * w, w), double(2 * w, w)
        self.head = nn.Conv2d(w, 2, 1)

    def forward(self, x: Any) -> Any:
        a = self.down1(x)
        b = self.down2(functional.avg_pool2d(a, 2))
        c = self.down3(functional.avg_pool2d(b, 2))
        x = self.down4(functional.avg_pool2d(c, 2))
        x = self.join3(functional.concat([self.up3(x), c], 1))
        x = self.join2(functional.concat([self.up2(x), b], 1))
        return self.head(self.join1(functional.concat([self.up1(x), a], 1)))


def in_torch(width: int) -> Any:
    """The same net in torch, with random weights."""
    import torch
    from torch import nn

    def double(i: int, o: int) -> Any:
        first = [nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(8, o), nn.Mish()]
        return nn.Sequential(*first, nn.Conv2d(o, o, 3, padding=1), nn.GroupNorm(8, o), nn.Mish())

    class Twin(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for i, name in enumerate(("down1", "down2", "down3", "down4")):
                setattr(self, name, double(width << i - 1 if i else 3, width << i))
            for i in (3, 2, 1):
                setattr(self, f"up{i}", nn.ConvTranspose2d(width << i, width << i - 1, 3, 2, 1, output_padding=1))
                setattr(self, f"join{i}", double(width << i, width << i - 1))
            self.head = nn.Conv2d(width, 2, 1)

        def forward(self, x: Any) -> Any:
            pool = nn.functional.avg_pool2d
            a = self.down1(x)
            b = self.down2(pool(a, 2))
            c = self.down3(pool(b, 2))
            x = self.join3(torch.cat([self.up3(self.down4(pool(c, 2))), c], 1))
            x = self.join2(torch.cat([self.up2(x), b], 1))
            return self.head(self.join1(torch.cat([self.up1(x), a], 1)))

    torch.manual_seed(0)
    return Twin().eval()


def main(arguments: Sequence[str] | None = None) -> float | None:
    """Builds, runs, compares; the largest difference to torch relative to its largest output, or None without torch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("size", 256), ("batch", 1), ("width", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args(arguments)

    net = UNet(options.width)
    twin = in_torch(options.width) if importlib.util.find_spec("torch") else None
    if twin is not None:
        net.load_state_dict(twin.state_dict())
    spec = ingot.Spec(("N", 3, options.size, options.size), "float32")
    engine = ingot.build(net, {"x": spec}, report=False, weights_from=None if twin is not None else "random")

    x = np.random.default_rng(0).standard_normal((options.batch, 3, options.size, options.size)).astype(np.float32)
    (y,) = engine.run({"x": x}).values()
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        engine.run({"x": x})
        times.append(time.perf_counter() - begin)
    print(f"U-Net {list(x.shape)} → {list(y.shape)}: {1000 * statistics.median(times):.1f} ms")
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
