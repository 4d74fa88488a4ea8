"""Sizes and numbers that modules compute of sizes in floats: rounded, divided, taken the root of."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import ingot
from ingot.dims import Dim
from ingot.errors import InputError, ModuleError, UnsupportedError
from ingot.frontends.table import Unsupported
from ingot.frontends.torch_export import symbols
from ingot.frontends.torch_export.decode import Malformed
from ingot.frontends.torch_export.reals import MAX_NESTED, Real, rounded

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:torch", "ignore::DeprecationWarning:torch")


class Net(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def built(function: Callable[[torch.Tensor], Any]) -> Any:
    return ingot.build(Net(function), (torch.randn(2, 20),), dynamic={"x": {1: "n"}}, report=False)


def agrees(function: Callable[[torch.Tensor], Any], engine: Any, *sizes: int) -> None:
    for size in sizes:
        x = torch.randn(2, size)
        found = list(engine.run({"x": x}).values())
        for i, (one, want) in enumerate(zip(found, function(x), strict=True)):
            np.testing.assert_allclose(one, want.numpy(), 1e-5, 1e-5, err_msg=f"result {i} at {size}")


def of_sizes(x: torch.Tensor) -> Any:
    n = x.shape[1]
    return (
        x.new_zeros(math.ceil(n / 8)), x.new_zeros(math.floor(n / 8)), x.new_zeros(math.trunc(n / 8)),
        x.new_zeros(round(n / 8)), x.new_zeros(round(n * 0.3)), x.new_zeros(math.ceil(n * 0.5 + 1)),
        functional.pad(x, (0, math.ceil(n / 4) * 4 - n)), x / n**0.5, x * (1 / n), x * n**-1, torch.full((3,), n * 0.5),
        x * torch.tensor(n * 0.5), x * (n / 3 - 1.5),
        functional.interpolate(x[:, None], scale_factor=1.7, recompute_scale_factor=True),
        functional.interpolate(x[:, None], scale_factor=0.6, recompute_scale_factor=True, mode="linear"),
    )  # fmt: skip


def test_sizes_that_are_rounded() -> None:
    engine = built(of_sizes)
    agrees(of_sizes, engine, 16, 23, 41, 100)  # torch wants trunc(n / 8) to be 2 or more
    assert [port.dims for port in engine.outputs][0] == (["//", ["+", "n", 7], 8],)
    assert not engine.summary.host


def numbers(x: torch.Tensor) -> Any:
    """What is the example's number where forward only runs: torch follows the code itself then."""
    n = x.shape[1]
    return (
        x.new_zeros(int(n * 1.7)), x * float(n), x / math.sqrt(n), x[:, : int(n / 2)], x[:, : max(1, int(n * 0.25))],
        x[:, : int(n * 0.3 + 0.5)], x.new_zeros(int(n // 1.5)), x * min(1.0, 8 / n),
        functional.interpolate(x[:, None], size=int(n * 1.5), mode="linear"),
    )  # fmt: skip


def test_numbers_of_sizes() -> None:
    agrees(numbers, built(numbers), 5, 12, 23, 100)


def test_a_product_that_floats_round_otherwise() -> None:
    """int(90 * 0.7) is 62: an engine that has 7 * n // 10 would be wrong there, so this one stays where it is right."""

    def net(x: torch.Tensor) -> Any:
        return (x[:, : int(x.shape[1] * 0.7)],)

    engine = built(net)
    agrees(net, engine, 20, 21)
    with pytest.raises(InputError, match="n=90, which is not in 20 … 21"):
        engine.run({"x": torch.randn(2, 90)})


N = Dim("n")


@pytest.mark.parametrize(
    ("compute", "made"),
    [
        (lambda n: n / 8, Real("/", N, 8)),
        (lambda n: n * 1.7, Real("*", Real("float", N), 1.7)),
        (lambda n: 0.3 * n + 0.5, Real("+", Real("*", 0.3, Real("float", N)), 0.5)),
        (lambda n: n / 4 - 3, Real("-", Real("/", N, 4), 3.0)),
        (lambda n: n // 1.5, Real("floor", Real("/", Real("float", N), 1.5))),
        (lambda n: -(n / 6), Real("neg", Real("/", N, 6))),
        (lambda n: (n / 4) ** 2, Real("**", Real("/", N, 4), 2)),
        (lambda n: 100 / (n + 1), Real("/", 100, N + 1)),
        (lambda n: max(n / 3, 7.5), Real("max", Real("/", N, 3), 7.5)),
    ],
)
def test_rounding_in_whole_numbers(compute: Callable[[int], float], made: Real) -> None:
    for how, exact in (("floor", math.floor), ("ceil", math.ceil), ("trunc", math.trunc), ("round", round)):
        size = rounded(made, how)
        found = [size if isinstance(size, int) else size.evaluate({"n": n}) for n in range(300)]
        assert found == [exact(compute(n)) for n in range(300)], f"{how}({made})"


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (Real("**", Real("float", N), 0.5), r"trunc\(n \*\* 0.5\), in floats"),
        (Real("*", Real("float", N), math.pi), "no whole numbers are known to say the same"),
        (Real("*", Real("float", N), 0.7), "no whole numbers are known to say the same"),
        (Real("+", Real("*", Real("float", N), 0.3), Real("*", Real("float", Dim("m")), 0.3)), "no whole numbers"),
        (Real("*", Real("float", N), math.inf), "no whole numbers"),
        (math.inf, "is no size"),
        (math.nan, "is no size"),
    ],
)
def test_what_no_whole_numbers_say(number: Any, why: str) -> None:
    with pytest.raises(Unsupported, match=why):
        rounded(number, "trunc")


def test_floats_in_floats_without_end() -> None:
    number = Real("float", N)
    for _ in range(MAX_NESTED - 1):
        number = Real("*", number, 0.5)
    with pytest.raises(Unsupported, match=f"more than {MAX_NESTED}"):
        Real("*", number, 0.5)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("CeilToInt(IntTrueDiv(Symbol('s0'), Integer(8)))", "(s0 + 7) // 8"),
        ("TruncToInt(Mul(Float('1.7', precision=53), ToFloat(Symbol('s0'))))", "-((3*s0 + 9) // 10) + 2*s0"),
        ("FloorToInt(FloatTrueDiv(ToFloat(Symbol('s0')), Float('1.5', precision=53)))", "-((s0 + 2) // 3) + s0"),
        ("Max(Integer(1), TruncToInt(Mul(Float('0.25'), ToFloat(Symbol('s0')))))", "max(1, s0 // 4)"),
        ("TruncToInt(Max(Float('1.0'), IntTrueDiv(Symbol('s0'), Integer(4))))", "max(1, s0 // 4)"),
    ],
)
def test_how_torch_writes_them(text: str, size: str) -> None:
    found = symbols.parse(text)
    for n in (0, 1, 7, 64, 1001):
        assert found.evaluate({"s0": n}) == eval(size, {"s0": n, "max": max}), (found, n)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "text",
    [
        "TruncToInt(FloatPow(ToFloat(Symbol('s0')), Float('0.5')))", "TruncToInt(OpaqueUnaryFn_log2(Symbol('s0')))",
        "CeilToInt(FloatTrueDiv(Float('1.0'), Float('0.0')))", "TruncToInt(Float('inf'))", "Where(Symbol('s0'))",
    ],
)  # fmt: skip
def test_what_torch_writes_otherwise(text: str) -> None:
    """It is known to be a size, and refused where it is met, in words."""
    found = symbols.parse(text)
    assert isinstance(found, symbols.Unwritten)
    assert "whole numbers" in found.why.remedy
    assert "Symbol" not in str(found.why)


@pytest.mark.parametrize("text", ["TruncToInt(" * 40 + "Symbol('s0')" + ")" * 40, "CeilToInt(x)", "Symbol(1)"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(Malformed, match=r"a symbolic size (is none that torch writes|is nested too deeply)"):
        symbols.parse(text)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: x * math.log2(x.shape[1]), r"dimension 1 of x has to be 20, as in the example \(test_torch_exp"),
        (lambda x: x @ torch.ones(20, 3), "dimension 1 of x has to be 20, as in the example"),
    ],
)
def test_sizes_that_cannot_change(function: Any, why: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ModuleError, match=why) as error:
        built(function)
    assert "L[" not in str(error.value) and "TORCH_LOGS" not in str(error.value)
    assert capfd.readouterr() == ("", "")


def test_a_root_of_a_size_in_the_graph() -> None:
    def net(x: torch.Tensor) -> Any:
        return x.new_zeros(math.trunc(x.shape[1] ** 0.5))

    with pytest.raises(UnsupportedError, match=r"(?s)math.trunc +1 +test_.*trunc\(n \*\* 0.5\), in floats"):
        built(net)
