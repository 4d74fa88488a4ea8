"""Choices and loops of torch (cond, while_loop, scan, map), and blocks that only say how torch runs what is in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ingot
from ingot.errors import UnsupportedError

higher = torch._higher_order_ops


class Control(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.linear = how, nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return getattr(self, self.how)(x)

    def choice(self, x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda a: (self.linear(a), a * 1), lambda a: (a.cos(), -a), (x,))

    def choice_of_an_operand(self, x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda a: (self.linear(a), a), lambda a: (a.cos(), -a), (x,))

    def choice_in_a_choice(self, x: Any) -> Any:
        def inner(a: Any) -> Any:
            return torch.cond(a.amax() > 1, lambda b: b * 2, lambda b: b - 1, (a,))

        return torch.cond(x.sum() > 0, inner, lambda a: a.cos(), (x,))

    def loop(self, x: Any) -> Any:
        return higher.while_loop(lambda i, a: i < 5, lambda i, a: (i + 1, self.linear(a) * 0.5), (torch.tensor(0), x))

    def scan(self, x: Any) -> Any:
        return higher.scan(lambda s, row: (s + row, self.linear(s * row)), torch.zeros(4), x)

    def map(self, x: Any) -> Any:
        return higher.map(lambda row: self.linear(row).cumsum(0), x)

    def gradients(self, x: Any) -> Any:
        with torch.enable_grad():
            y = self.linear(x)
        return y * 2

    def checkpoint(self, x: Any) -> Any:
        return torch.utils.checkpoint.checkpoint(self.linear, x, use_reentrant=False)

    def outside(self, x: Any) -> Any:
        y = x * 1
        with torch.enable_grad():
            y += 1
        return y


OF_AN_OPERAND = pytest.param("choice_of_an_operand", marks=pytest.mark.skipif(
    torch.__version__ < "2.13", reason="torch exports no branch that returns its operand as it is"))  # fmt: skip
WAYS = ["choice", OF_AN_OPERAND, "choice_in_a_choice", "loop", "scan", "map", "gradients", "checkpoint"]


@pytest.mark.parametrize("how", WAYS)
def test_agrees_with_torch(how: str) -> None:
    """By the comparison of the build at two sizes, which runs the program on torch's ops, and with the module."""
    net = Control(how).eval()
    engine = ingot.build(net, (torch.randn(3, 4),), dynamic={"x": {0: ingot.Dim("N", 2)}})
    assert engine.report.source.startswith("against torch"), engine.report.source
    for x in (torch.rand(5, 4), -torch.rand(2, 4), torch.rand(4, 4) * 2):
        with torch.no_grad():
            want = net(x)
        found = engine.run({"x": x}).values()
        for ours, theirs in zip(found, want if isinstance(want, tuple) else (want,), strict=True):
            np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-4, atol=1e-5)


def test_a_file(tmp_path: Path) -> None:
    net, x = Control("choice").eval(), torch.rand(3, 4)
    with torch.no_grad():
        torch.export.save(torch.export.export(net, (x,), strict=False), tmp_path / "net.pt2")
        want = net(x)
    engine = ingot.build(tmp_path / "net.pt2")
    for ours, theirs in zip(engine.run({"x": x}).values(), want, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-4, atol=1e-5)


def test_a_tensor_from_outside_must_not_change() -> None:
    with pytest.raises(UnsupportedError, match="a tensor from outside in place inside of a branch, a loop or a block"):
        ingot.build(Control("outside"), (torch.randn(3, 4),), report=False)
