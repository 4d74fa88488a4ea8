"""An op of one's own in an engine: declared, built, saved, and given again where the engine is loaded.

    python examples/own_op.py

The op is Hardshrink: elements whose size is at most a limit become 0.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import ingot
from ingot import functional, nn


@ingot.external_op("examples.hardshrink", version=1)
class hardshrink(ingot.Op):  # noqa: N801  it becomes a function
    """x where |x| > limit, else 0."""

    limit: float = 0.5

    def infer(self, x: ingot.Spec) -> ingot.Spec:
        return x

    def reference(self, x: Any) -> Any:
        return np.where(np.abs(x) > self.limit, x, np.zeros((), x.dtype))


class Net(nn.Module):
    """A product, the op, and an activation behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        """float32 [N, 8] → the same"""
        return functional.tanh(hardshrink(self.layer(x), limit=0.25))


def main() -> float:
    """Builds and runs the net; returns its largest difference to NumPy's."""
    rng = np.random.default_rng(0)
    weight, bias, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((8, 8), (8,), (5, 8)))
    net = Net()
    net.load_state_dict({"layer.weight": weight, "layer.bias": bias})
    engine = ingot.build(net, {"x": ingot.Spec(("N", 8), "float32")})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.ingot"
        engine.save(path)
        try:
            ingot.load(path)
        except ingot.errors.ExternalOpError as e:
            print(f"without the op: {e}")
        (found,) = ingot.load(path, ops=[hardshrink]).run({"x": x}).values()
    y = x @ weight.T + bias
    difference = float(np.abs(found - np.tanh(np.where(np.abs(y) > 0.25, y, 0))).max())
    print(f"with it: largest difference to NumPy {difference:.1e}")
    return difference


if __name__ == "__main__":
    main()
