"""Branches that forward takes by sizes: an engine has the example's side, and refuses sizes that take the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ingot
from ingot.errors import InputError, UnsupportedError, ValueFault

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:torch", "ignore::DeprecationWarning:torch")
TRIED = ((6, 20), (6, 21), (3, 5), (2, 9), (30, 7), (4, 12), (4, 11), (21, 13))


class Net(nn.Module):
    def __init__(self, asks: Callable[[int, int], Any]) -> None:
        super().__init__()
        self.asks = asks

    def forward(self, x: torch.Tensor) -> Any:
        b, n = x.shape
        if self.asks(b, n):
            return x * 2
        return -x


CASES: dict[str, Callable[[int, int], Any]] = {
    "odd": lambda b, n: n % 2 == 1,
    "even": lambda b, n: n % 2 == 0,
    "a remainder": lambda b, n: n % 5 != 2,
    "longer than wide": lambda b, n: n > b,
    "a product": lambda b, n: b * n > 30,
    "but for one": lambda b, n: n != 7,
    "a quotient": lambda b, n: n / 4 > 2.5,
    "a ratio": lambda b, n: n / b > 1.5,
    "rounded": lambda b, n: n // 4 >= 3,
}
MESSAGE = r"forward takes another way for .*branches.py:\d+: .*n|has n=\d+, which is not in|multiple of 2"


@pytest.mark.parametrize(("name", "length"), [*((name, 20) for name in CASES), ("odd", 21), ("even", 21)])
def test_the_side_of_the_example(name: str, length: int) -> None:
    """What runs agrees; every size that torch's own module refuses, for its guard is false, is refused."""
    asks, example = CASES[name], (6, length)
    net = Net(asks)
    engine = ingot.build(net, (torch.randn(*example),), dynamic={"x": {0: "b", 1: "n"}}, report=False)
    side = bool(asks(*example))
    for shape in TRIED:
        x = torch.randn(*shape)
        if bool(asks(*shape)) is side:
            np.testing.assert_array_equal(engine.run({"x": x})["output_0"], net(x).numpy())
        else:
            with pytest.raises((ValueFault, InputError), match=MESSAGE):
                engine.run({"x": x})


@pytest.mark.parametrize("name", ["odd", "a remainder", "longer than wide", "a product", "a quotient"])
def test_the_side_of_the_example_in_a_file(name: str, tmp_path: Path) -> None:
    net, dynamic = Net(CASES[name]), torch.export.Dim.DYNAMIC
    path = tmp_path / "net.pt2"
    program = torch.export.export(net, (torch.randn(6, 20),), dynamic_shapes=({0: dynamic, 1: dynamic},), strict=False)
    torch.export.save(program, path)
    engine = ingot.build(path, report=False)
    for shape in TRIED:
        x = torch.randn(*shape)
        if bool(CASES[name](*shape)) is bool(CASES[name](6, 20)):
            np.testing.assert_array_equal(engine.run({"x": x})["output_0"], net(x).numpy())
        else:
            with pytest.raises((ValueFault, InputError), match="another way|which is not in"):
                engine.run({"x": x})


def test_the_build_says_so_once() -> None:
    def built(asks: Callable[[int, int], Any]) -> str:
        engine = ingot.build(Net(asks), (torch.randn(6, 20),), dynamic={"x": {1: "n"}}, report=False)
        return "\n".join(engine.summary.notes)

    said = built(CASES["odd"])
    assert said.startswith("sizes are an error for which forward takes another way than for the example's: test_torch")
    said = built(CASES["a quotient"])
    assert said.startswith("n is 11 or more: forward takes a branch by it, test_torch_export_branches.py:")
    said = built(lambda b, n: (torch.ones(int(n**0.5)) + torch.ones(4)).shape)
    assert said.startswith("n is 16 … 24: forward makes a number of it, test_torch_export_branches.py:")
    assert "in whole numbers" in said
    assert built(lambda b, n: n > 0) == ""


def test_what_no_run_can_check() -> None:
    net = Net(lambda b, n: (b * n) ** 0.5 > 3)
    with pytest.raises(UnsupportedError, match=r"forward takes a branch, test_.*_branches.py:\d+: .*which no"):
        ingot.build(net, (torch.randn(6, 20),), dynamic={"x": {0: "b", 1: "n"}}, report=False)
