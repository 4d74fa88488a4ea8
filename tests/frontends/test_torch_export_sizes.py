"""What modules compute with sizes, at sizes that the export did not see: halves, padding up to multiples, windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import ingot
from ingot.errors import IngotError, InputError, UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:torch", "ignore::DeprecationWarning:torch")


class Net(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def built(function: Callable[[torch.Tensor], Any], example: Sequence[int], dynamic: dict[int, Any]) -> Any:
    return ingot.build(Net(function), (torch.randn(*example),), dynamic={"x": dynamic}, report=False)


def agrees(function: Callable[[torch.Tensor], Any], engine: Any, *sizes: Sequence[int]) -> None:
    for size in sizes:
        x = torch.randn(*size)
        wanted = function(x)
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        for found, want in zip(engine.run({"x": x}).values(), wanted, strict=True):
            np.testing.assert_allclose(found, want.numpy(), rtol=1e-5, atol=1e-5, err_msg=str(size))


def parts(x: torch.Tensor) -> Any:
    n = x.shape[1]
    first, second = x.chunk(2, 1)
    padded = functional.pad(x, (0, 0, 0, -n % 8))
    return (
        x[:, : n // 2] + x[:, n - n // 2 :], x[:, -(n // 3) :], x[:, n // 4 : n // 4 + n // 2], first, second,
        x[:, 1:] - x[:, :-1], padded.view(2, -(-n // 8), 8, 4).sum(2), torch.roll(x, (n // 2, 1), (1, 2)), x.flip(1),
        torch.ones(n, n).tril(-(n // 2)), x * x.cumsum(1)[:, -n:], torch.eye(n, n + 1), torch.eye(n) @ x,
    )  # fmt: skip


def test_parts_of_a_sequence() -> None:
    agrees(parts, built(parts, (2, 16, 4), {1: "T"}), (2, 7, 4), (2, 24, 4), (2, 31, 4))


def windows(x: torch.Tensor, size: int = 4, shift: int = 2) -> torch.Tensor:
    """Softmax attention within windows of an image that is padded up to a multiple, shifted and back."""
    b, h, w, c = x.shape
    x = functional.pad(x, (0, 0, 0, (size - w % size) % size, 0, (size - h % size) % size))
    _, high, wide, _ = x.shape
    x = torch.roll(x, (-shift, -shift), (1, 2))
    y = x.view(b, high // size, size, wide // size, size, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, size * size, c)
    y = torch.softmax(y @ y.transpose(1, 2), -1) @ y
    y = y.view(b, high // size, wide // size, size, size, c).permute(0, 1, 3, 2, 4, 5).reshape(b, high, wide, c)
    return torch.roll(y, (shift, shift), (1, 2))[:, :h, :w].contiguous()


@pytest.mark.parametrize("free", [{1: "H"}, pytest.param({0: "B", 1: "H", 2: "W"}, marks=pytest.mark.slow)])
def test_shifted_windows(free: dict[int, str]) -> None:
    def net(x: torch.Tensor) -> torch.Tensor:
        return x + windows(x)

    example = (2, 16, 20, 6)
    sizes = [[n if d in free else example[d] for d, n in enumerate(size)] for size in (
        (2, 7, 9, 6), (1, 12, 8, 6), (3, 31, 22, 6))]  # fmt: skip
    agrees(net, built(net, example, free), *sizes)


def padded_up(x: torch.Tensor) -> torch.Tensor:
    """As decoders meet what they skipped: padded by the rows that are missing."""
    a = functional.max_pool2d(x, 2)
    b = functional.interpolate(functional.max_pool2d(a, 2), scale_factor=2.0)
    dy, dx = a.shape[2] - b.shape[2], a.shape[3] - b.shape[3]
    return torch.cat([a, functional.pad(b, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])], 1)


def test_what_went_down_is_padded_up() -> None:
    agrees(padded_up, built(padded_up, (1, 3, 32, 48), {2: "H", 3: "W"}), (1, 3, 9, 12), (1, 3, 13, 31), (1, 3, 7, 6))


def scaled(x: torch.Tensor) -> Any:
    up = functional.interpolate(x, scale_factor=1.7)
    return up, functional.interpolate(x, scale_factor=(0.3, 1.1), mode="bilinear"), functional.adaptive_avg_pool2d(x, 3)


def test_scales_that_are_no_whole_numbers() -> None:
    """1.7 · 10 is 17 in float64, and 1.7 as it is stored is below 17 / 10."""
    sizes = (1, 2, 10, 30), (1, 2, 13, 7), (1, 2, 31, 33)  # 7 · 1.1 is 7 again, for which torch copies
    agrees(scaled, built(scaled, (1, 2, 16, 20), {2: "H", 3: "W"}), *sizes)


def smoothed(x: torch.Tensor) -> Any:
    half = functional.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True)
    return half, functional.interpolate(x, size=(9, 24), mode="bicubic", antialias=True)


def test_antialiased_at_any_size() -> None:
    engine = built(smoothed, (1, 2, 16, 20), {2: "H", 3: "W"})
    agrees(smoothed, engine, (1, 2, 16, 20), (1, 2, 13, 7), (1, 2, 31, 58))


def met(x: torch.Tensor) -> Any:
    """What torch takes for equal, as it was for the example, and is so for some sizes only."""
    a = functional.max_pool2d(x, 2, ceil_mode=True)
    b = functional.interpolate(functional.max_pool2d(a, 2, ceil_mode=True), scale_factor=2.0)
    n, c, h, w = x.shape
    return torch.cat([a, b], 1), a * b, x.view(n, c, h // 2, 2, w // 2, 2).sum((3, 5)) + b


def test_numbers_that_torch_fixes() -> None:
    """int() of a fraction of a size is the example's number in the program, right for some sizes: a run checks them."""

    def root(x: torch.Tensor) -> torch.Tensor:
        return x.sum(1) * int(x.shape[1] ** 0.5)

    engine = built(root, (2, 17, 4), {1: "T"})
    agrees(root, engine, (2, 16, 4), (2, 24, 4))
    for size in (15, 25):
        with pytest.raises(InputError, match=r"not in 16 … 24"):
            engine.run({"x": torch.randn(2, size, 4)})

    def mixed(x: torch.Tensor) -> torch.Tensor:
        return x * int((x.shape[0] + x.shape[1]) ** 0.5)

    with pytest.raises(UnsupportedError, match="in whole numbers"):
        built(mixed, (5, 16), {0: "B", 1: "T"})


def test_sizes_that_meet_for_some_inputs_only() -> None:
    engine = built(met, (1, 3, 32, 48), {2: "H", 3: "W"})
    agrees(met, engine, (1, 3, 8, 12), (1, 3, 16, 64))
    for height, width in ((10, 12), (8, 14), (9, 12), (2, 12)):
        x = torch.randn(1, 3, height, width)
        with pytest.raises((RuntimeError, ValueError)):
            met(x)
        with pytest.raises(IngotError, match=r"H|W"):
            engine.run({"x": x})
    with pytest.raises(InputError, match="here 6 and 5"):
        engine.run({"x": torch.randn(1, 3, 10, 12)})


def columns(x: torch.Tensor) -> Any:
    """Windows that overlap, and such that leave rows at the end out, added up again."""
    size, how = x.shape[2:], {"kernel_size": (2, 3), "stride": (2, 3), "dilation": (2, 1), "padding": (1, 0)}
    return tuple(functional.fold(functional.unfold(x, **w) * 2, size, **w) for w in ({"kernel_size": 3}, how))


def test_columns_are_added_into_images_of_any_size() -> None:
    agrees(columns, built(columns, (2, 3, 16, 20), {2: "H", 3: "W"}), (2, 3, 7, 9), (2, 3, 12, 8), (2, 3, 9, 31))


def diagonals(x: torch.Tensor) -> Any:
    m, n = x @ x.transpose(1, 2), x.sum(0)
    return m.diagonal(dim1=1, dim2=2), n.diagonal(1), n.diagonal(-2), torch.trace(n)


def test_diagonals_of_any_size() -> None:
    agrees(diagonals, built(diagonals, (2, 16, 8), {0: "B", 1: "T"}), (3, 7, 8), (1, 31, 8), (2, 3, 8))


@pytest.mark.parametrize(
    "words", [{"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1},
              {"kernel_size": (2, 3), "stride": (2, 1), "dilation": (2, 1), "ceil_mode": True}])  # fmt: skip
def test_places_of_the_largest(words: Any) -> None:
    def net(x: torch.Tensor) -> Any:
        values, places = functional.max_pool2d(x, **words, return_indices=True)
        return values, places, functional.max_pool2d(x[0], **words, return_indices=True)[1]

    agrees(net, built(net, (2, 3, 16, 20), {0: "B", 2: "H", 3: "W"}), (2, 3, 7, 9), (1, 3, 12, 8))
    agrees(net, built(net, (1, 2, 9, 8), {}), (1, 2, 9, 8))


def unpooled(x: torch.Tensor) -> torch.Tensor:
    values, places = functional.max_pool2d(x, 2, return_indices=True)
    return functional.max_unpool2d(values, places, 2, output_size=x.shape[-2:])


def test_what_was_pooled_goes_back_to_its_place() -> None:
    agrees(unpooled, built(unpooled, (1, 3, 16, 20), {2: "H", 3: "W"}), (1, 3, 7, 9), (1, 3, 12, 8))


def counted(x: torch.Tensor) -> Any:
    n = x.shape[1]
    bags = functional.embedding_bag((x * 2).long().clamp(0, 4), torch.arange(20.0).view(5, 4), mode="mean")
    places = (x * 50).long()
    return bags, x.topk(n // 2, 1)[0], x[:, torch.arange(n - 1, -1, -3)], places >> 2, places << 3, places % 5 >> 1


def test_steps_and_numbers_of_elements_that_are_sizes() -> None:
    agrees(counted, built(counted, (2, 16), {0: "B", 1: "T"}), (3, 7), (1, 31), (2, 4))


def test_shifts_by_more_bits_than_there_are() -> None:
    with pytest.raises(UnsupportedError, match="a shift of i64"):
        built(lambda x: x.long() >> 64, (2, 3), {})


def test_an_op_that_torch_takes_apart_by_a_remainder() -> None:
    """The pieces of 16 by 3 are one larger and two smaller ones: so are those of 13 and 7, and not those of 8 or 9."""

    def net(x: torch.Tensor) -> Any:
        return x.tensor_split(3, 1)

    engine = built(net, (2, 16), {1: "T"})
    agrees(net, engine, (2, 16), (2, 13), (2, 7))
    for size in (8, 9):
        with pytest.raises(IngotError, match="another way"):
            engine.run({"x": torch.randn(2, size)})
