"""Changes in place: under every name that shares the memory a program sees what torch's own memory shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ingot
from ingot.errors import UnsupportedError

Function = Callable[[Any], Any]
CASES: dict[str, tuple[Function, tuple[int, ...]]] = {}


def case(*shape: int) -> Callable[[Function], Function]:
    def enter(function: Function) -> Function:
        CASES[function.__name__] = function, shape
        return function

    return enter


class Calls(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x.clone())


@case(3, 4)
def view_of_a_view(y: Any) -> Any:
    row = y[1]
    part = row[1:3]
    y += 1
    part *= 2
    row[0] = 9
    return y, row, part


@case(3, 4)
def transposed(y: Any) -> Any:
    t = y.t()
    t[1:3, ::2] = 5
    y[0] = 1
    return y, t


@case(2, 3, 4)
def permuted_and_seen_in_another_shape(y: Any) -> Any:
    z = y.movedim(0, 2)
    z[0, 1:, :1] -= 3
    w = y.view(6, 4)
    w[4] = 0
    return y, z, w


@case(3, 4)
def reshape_that_copies(y: Any) -> Any:
    copy = y.t().reshape(-1)
    copy[2:] = 0
    y += 1
    return y, copy


@case(3, 4)
def reshape_that_does_not(y: Any) -> Any:
    same = y.reshape(2, 6)
    same[1] = 0
    flat = y.flatten()
    flat[3] = 7
    y[0, 0] = 8
    return y, same, flat


@case(4, 6)
def reshape_of_every_other_row(y: Any) -> Any:
    """Rows of a part lie apart, and columns within a row do not: the one is a copy, the other is not."""
    rows = y[::2]
    apart, within = rows.reshape(12), rows.reshape(2, 3, 2)
    y *= 2
    return apart, within, y


@case(3, 4)
def contiguous(y: Any) -> Any:
    same, copy = y.contiguous(), y.t().contiguous()
    y[:, 0] = 3
    return same, copy


@case(3, 4)
def conversions(y: Any) -> Any:
    same, copy, other = y.to(torch.float32), y.to(torch.float32, copy=True), y.to(torch.float64)
    y[1] = 3
    return same, copy, other


@case(3, 1)
def expanded(y: Any) -> Any:
    wide = y.expand(3, 4)
    y += 1
    return wide, wide.sum()


@case(4, 4)
def boxes(y: Any) -> Any:
    y[1:3, 1:3][0] = 7
    y[-2:, :-1] *= y[:2, 1:]
    y[3::-1] if False else y[::3, 1::2].add_(1)
    return y


@case(3, 4)
def pieces(y: Any) -> Any:
    a, b = y.chunk(2, 1)
    first, *_ = y.unbind(0)
    a.mul_(b)
    first.neg_()
    return a, b, y


@case(3, 4)
def swapped_in_place(y: Any) -> Any:
    y.add_(1)
    z = y.t_().unsqueeze_(0)
    z[0, 1] = 4
    return z


@case(3, 4)
def out_forms(y: Any) -> Any:
    z = y * 0
    torch.mul(y, 2, out=z)
    torch.sum(y, 1, out=z[:, 0].clone())
    return z


@case(3, 4)
def broadcast_and_converted(y: Any) -> Any:
    y[1:] = torch.arange(4)
    y[:, 1:3] = y[0, 0]
    y[y > 1] -= 1
    return y


@pytest.mark.parametrize("name", CASES)
def test_memory(name: str) -> None:
    function, shape = CASES[name]
    net, x = Calls(function), torch.randn(shape)
    engine = ingot.build(net, (x,), report=False)
    found = list(engine.run({"x": x}).values())
    want = net(x)
    for ours, theirs in zip(found, want if isinstance(want, tuple) else (want,), strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-6)


def test_parts_of_dynamic_sizes() -> None:
    def change(y: Any) -> Any:
        last = y[-1]
        y[1:, ::2] = 0
        y.t()[1] += 5
        return y, last

    net = Calls(change)
    engine = ingot.build(net, (torch.randn(4, 6),), dynamic={"x": {0: ingot.Dim("N", 2), 1: ingot.Dim("M", 2)}})
    for sizes in ((2, 2), (5, 7)):
        x = torch.randn(sizes)
        for ours, theirs in zip(engine.run({"x": x}).values(), net(x), strict=True):
            np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-6)


def expanded_written(y: Any) -> Any:
    y[:, :1].expand(3, 4).mul_(2)
    return y


def part_of_what_may_be_a_copy(y: Any) -> Any:
    y.t().reshape(-1, 2)[0] = 1  # a copy, for rows of y.t() lie apart
    return y


def test_elements_that_are_one_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="changes an expanded tensor in place"):
        ingot.build(Calls(expanded_written), (torch.randn(3, 4),), report=False)


def test_whether_it_is_a_copy_depends_on_sizes() -> None:
    with pytest.raises(UnsupportedError, match="may share the memory of"):
        ingot.build(Calls(part_of_what_may_be_a_copy), (torch.randn(4, 6),), dynamic={"x": {0: "N"}}, report=False)
