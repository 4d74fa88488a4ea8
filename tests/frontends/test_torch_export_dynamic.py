"""Sizes that change from run to run: multiples, what guards say about them, and what a user may call them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import ingot
from attacks.exported import Package
from benchmarks import torch_nets
from ingot.dims import Dim, Dimension
from ingot.errors import CheckpointError, InputError, ModuleError, UnsupportedError, UserError
from ingot.frontends.torch_export import guards
from ingot.frontends.torch_export.conditions import Range

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:torch", "ignore::DeprecationWarning:torch")
DYNAMIC = torch.export.Dim.DYNAMIC


def close(engine: Any, net: nn.Module, *shape: int) -> None:
    """The engine and the net agree on an input of this shape."""
    x = torch.randn(shape)
    with torch.no_grad():
        wanted = net(x).numpy()
    found = engine.run({"x": x})["output_0"]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


def exported(net: nn.Module, inputs: tuple[Any, ...], path: Path, shapes: Any) -> Path:
    with torch.no_grad():
        torch.export.save(torch.export.export(net, inputs, dynamic_shapes=shapes, strict=False), path)
    return path


@pytest.fixture(scope="module")
def unet() -> nn.Module:
    torch.manual_seed(0)
    return torch_nets.UNet(8).eval()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("dynamic", "printed"),
    [
        ({0: "N", 2: "H", 3: "W"}, "x: f32[N, 3, 8*H_over_8, 8*W_over_8]"),
        ({2: 8 * Dim("h"), 3: Dim("W", 16, 64, 100)}, "x: f32[1, 3, 8*h, 8*W_over_8]"),
        ({2: 16 * Dim("h"), 3: "W"}, "x: f32[1, 3, 16*h, 8*W_over_8]"),
    ],
)
def test_a_unet_at_any_height_and_width(unet: nn.Module, dynamic: Any, printed: str) -> None:
    engine = ingot.build(unet, (torch.randn(1, 3, 32, 48),), dynamic={"x": dynamic})
    assert [str(p) for p in engine.inputs] == [printed]
    assert engine.report.source.startswith("against torch")
    close(engine, unet, 1, 3, 32, 48)
    close(engine, unet, 1, 3, 96, 16)
    with pytest.raises(InputError, match=r"its dimension 3 must be a multiple of 8, and 52 is not"):
        engine.run({"x": torch.randn(1, 3, 32, 52)})


def test_bounds_hold_for_the_size(unet: nn.Module) -> None:
    engine = ingot.build(unet, (torch.randn(1, 3, 32, 48),), dynamic={"x": {3: Dim("W", 20, 64, 100)}}, report=False)
    close(engine, unet, 1, 3, 32, 24)
    close(engine, unet, 1, 3, 32, 96)
    for width, value in ((16, 2), (104, 13)):
        with pytest.raises(InputError, match=f"W_over_8={value}, which is not in 3 … 12"):
            engine.run({"x": torch.randn(1, 3, 32, width)})


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shapes", [{2: DYNAMIC, 3: DYNAMIC}, {2: 8 * torch.export.Dim("h"), 3: DYNAMIC(max=200)}])
def test_a_unet_from_a_file(unet: nn.Module, shapes: Any, tmp_path: Path) -> None:
    path = exported(unet, (torch.randn(1, 3, 32, 48),), tmp_path / "unet.pt2", (shapes,))
    engine = ingot.build(path)
    assert [str(p) for p in engine.inputs] == ["x: f32[1, 3, 8*dim_0, 8*dim_1]"]
    engine.save(tmp_path / "unet.ingot")
    engine = ingot.load(tmp_path / "unet.ingot")
    close(engine, unet, 1, 3, 16, 64)
    close(engine, unet, 1, 3, 40, 24)


class Related(nn.Module):
    """Sizes that follow from others: a is 4·n, b is 3·n, m is 3·k."""

    def forward(self, x: torch.Tensor, pair: tuple[torch.Tensor, torch.Tensor], *, m: torch.Tensor) -> Any:
        y = functional.interpolate(functional.avg_pool2d(x, 4), scale_factor=4.0) + x
        return y, pair[0].view(2, -1, 4) + pair[1], m.reshape(3, -1)


def test_sizes_that_follow_from_others(tmp_path: Path) -> None:
    inputs = (torch.randn(2, 3, 32, 48), (torch.randn(2, 8, 3), torch.randn(2, 6, 4)))
    shapes = {"x": {2: DYNAMIC, 3: DYNAMIC}, "pair": ({1: DYNAMIC}, {1: DYNAMIC}), "m": {0: DYNAMIC}}
    path = tmp_path / "net.pt2"
    with torch.no_grad():
        program = torch.export.export(Related(), inputs, {"m": torch.randn(9)}, dynamic_shapes=shapes, strict=False)
        torch.export.save(program, path)
    engine = ingot.build(path)
    assert [str(p) for p in engine.inputs] == [
        "x: f32[2, 3, 4*dim_0, 4*dim_1]", "pair_0: f32[2, 4*dim_2, 3]", "pair_1: f32[2, 3*dim_2, 4]",
        "m: f32[3*dim_3]",
    ]  # fmt: skip
    x, pair, m = torch.randn(2, 3, 8, 12), (torch.randn(2, 12, 3), torch.randn(2, 9, 4)), torch.randn(15)
    wanted = Related()(x, pair, m=m)
    found = engine.run({"x": x, "pair_0": pair[0], "pair_1": pair[1], "m": m})
    for name, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(found[name], want, rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError, match="dimension 1 must be a multiple of 4, and 9 is not"):
        engine.run({"x": x, "pair_0": torch.randn(2, 9, 3), "pair_1": pair[1], "m": m})
    with pytest.raises(InputError, match="'pair_1' has dim_2=2, but another array has dim_2=3"):
        engine.run({"x": x, "pair_0": pair[0], "pair_1": torch.randn(2, 6, 4), "m": m})


@pytest.mark.parametrize(
    ("dynamic", "error", "why"),
    [
        ({"x": {2: 4 * Dim("h") + 2}}, UserError, "32 at dimension 2: not 4\\*h \\+ 2 for a whole number h"),
        ({"x": {2: 5 * Dim("h")}}, UserError, "32 at dimension 2: not a multiple of 5"),
        ({"x": {2: Dim("h") * Dim("h")}}, UserError, "a multiple of one as in 8"),
        ({"x": {2: 4 * Dim("h")}}, ModuleError, "dimension 2 of x is not free: .* a multiple of 8, and 4\\*h is not"),
        ({"x": {2: "H", 3: "H"}}, UserError, "H is 32 in one example input and 48"),
    ],
)
def test_names_that_do_not_fit(unet: nn.Module, dynamic: Any, error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        ingot.build(unet, (torch.randn(1, 3, 32, 48),), dynamic=dynamic)


def test_a_size_that_a_run_cannot_know(tmp_path: Path) -> None:
    package = Package()
    for name in ("x", "linear", "relu"):
        size = {"expr_str": "Mul(Symbol('s0'), Symbol('s1'))", "hint": None}
        package.value(name)["sizes"][0] = {"as_expr": size}
    path = tmp_path / "net.pt2"
    path.write_bytes(package.encode())
    with pytest.raises(UnsupportedError, match=r"input x has the size dim_0\*dim_1"):
        ingot.build(path)


# ----------------------------------------------------------------------------------- sizes that the data decides


class Chosen(nn.Module):
    """Rows by a mask, their places, the best of them in order, and running counts."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.head = nn.Linear(4, 1), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        score = self.score(x)[:, 0]
        mask = score > 0
        values, places = score.sort(descending=True)
        best = torch.topk(score, 2)
        return {
            "rows": self.head(x[mask]).relu(), "where": mask.nonzero(), "picked": torch.masked_select(x, mask[:, None]),
            "values": values, "places": places, "best": best.values, "rank": torch.argsort(score),
            "count": mask.cumsum(0), "running": x.cumsum(0),
        }  # fmt: skip


@pytest.mark.parametrize("way", ["module", "file"])
def test_sizes_that_the_data_decides(way: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Chosen().eval()
    if way == "module":
        engine = ingot.build(net, (torch.randn(7, 4),), dynamic={"x": {0: Dim("N", 2)}})
    else:
        engine = ingot.build(exported(net, (torch.randn(7, 4),), tmp_path / "net.pt2", ({0: DYNAMIC(min=2)},)))
    assert engine.report.source.startswith("against torch"), engine.report.source
    for rows in (2, 9, 40):
        x = torch.randn(rows, 4)
        with torch.no_grad():
            wanted = net(x)
        found = engine.run({"x": x})
        assert found.keys() == wanted.keys()
        for name, want in wanted.items():
            assert found[name].dtype == want.numpy().dtype
            np.testing.assert_allclose(found[name], want, rtol=1e-5, atol=1e-5, err_msg=name)


def test_guards_that_make_sizes_too_large(tmp_path: Path) -> None:
    """A file may say what it likes, and gets an error in little time."""
    package = Package()
    power = "Mul(" + ", ".join(["Symbol('s0')"] * 30) + ")"
    for name, size in (("x", "Symbol('s0')"), ("linear", power), ("relu", power)):
        package.value(name)["sizes"][0] = {"as_expr": {"expr_str": size, "hint": None}}
    package.value("x")["sizes"][1] = {"as_expr": {"expr_str": "Symbol('s1')", "hint": None}}
    package.program["guards_code"] = ["L['x'].size()[0] == L['x'].size()[1] * L['x'].size()[1] + 1"] * 6000
    path = tmp_path / "net.pt2"
    path.write_bytes(package.encode())
    with pytest.raises(CheckpointError, match="what its guards say of them do not fit together"):
        ingot.build(path)


# ------------------------------------------------------------------------------------------------------- guards
A, B, C = Dim("a"), Dim("b"), Dim("c")
SIZES: dict[tuple[str, ...], tuple[Dimension, ...]] = {("x",): (A, B), ("y", "0"): (C,)}
X0, X1, Y = "L['x'].size()[0]", "L['x'].size()[1]", "L['y'][0].size()[0]"


@pytest.mark.parametrize(
    ("texts", "wanted"),
    [
        ((f"{X0} == 8*({X0} // 8)",), {"a": "8*a.over.8"}),
        (
            (f"(4*({X0} // 4)) == {X0}", f"{X0} == (6*({X0} // 6))"),
            {"a": "12*a.over.4.over.3", "a.over.4": "3*a.over.4.over.3"},
        ),
        ((f"((6*{X0}) % 8) == 0",), {"a": "4*a.over.4"}),
        ((f"{X0} == {Y}",), {"a": "c"}),
        ((f"{X0} == 2*{Y} + 1", f"{Y} % 3 == 0"), {"a": "6*c.over.3 + 1", "c": "3*c.over.3"}),
        ((f"{X0} == {X1}*{Y}",), {"a": "b*c"}),
        ((f"{X0} % 1 == 0", f"{X0} == {X0}", f"{X0} == 7", f"{X0} % {X1} == 0", f"({X0} + 1) % 4 == 0"), {}),
    ],
)
def test_equations_of_guards(texts: tuple[str, ...], wanted: dict[str, str]) -> None:
    ranges = {"a": Range(5, 100)}
    found = guards._solutions(texts, SIZES, ranges)
    assert {name: str(size) for name, size in found.items()} == wanted
    if texts[0] == f"{X0} == 8*({X0} // 8)":
        assert ranges["a.over.8"] == Range(1, 12)


@pytest.mark.parametrize(
    "text",
    [
        "", "1 +", f"{X0} != 8", f"{X0} == 8 == 9", "L['z'].size()[0] == 8*(L['z'].size()[0] // 8)",
        "L['x'].size()[2] % 2 == 0", "L['x'].size()[-1] % 2 == 0", "L['x'].size()['0'] % 2 == 0",
        "__import__('os').system('x') == 0", f"{X0}.__class__ == 0", "(" * 900 + "1" + ")" * 900 + " == 0",
        f"{X0} // 0 == 1", f"{X0} % 0 == 0", "-" * 1500 + f"1 == {X0}", " + ".join([X0] * 200) + " == 0",
        f"{X0} % {1 << 30} == 0", f"{X0} == 2.5", f"{X0} == True", f"{X0} * 10**40 == 0", "\0 == 0", "\ud800 == 0",
        f"{X0} % 2 == 0 " + " " * 3000,
    ],
)  # fmt: skip
def test_guards_that_say_nothing(text: str) -> None:
    assert guards._solutions([text], SIZES, {}) == {}


def test_truth_of_no_elements() -> None:
    """any and all, and the logarithm of a sum, over a dimension that a run finds empty."""

    class Net(nn.Module):
        def forward(self, x: Any) -> Any:
            return (x > 0).any(1), (x > 0).all(1), x.logsumexp(1)

    engine = ingot.build(Net(), (torch.randn(2, 3, 4),), dynamic={"x": {1: Dim("T", 0, 64)}})
    for size in (0, 1, 5):
        x = torch.randn(2, size, 4)
        for device in ("cpu", "torch:cpu"):
            for found, wanted in zip(engine.on(device).run({"x": x}).values(), Net()(x), strict=True):
                np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-6, atol=1e-6)


class Best(nn.Module):
    """The 20 best pixels: an image must have as many."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1).topk(20, dim=1).values


def test_a_size_of_our_choice_that_the_network_refuses_ends_no_build() -> None:
    """The comparison takes half the example's sizes first, 4 × 4 here, and then larger ones."""
    engine = ingot.build(Best().eval(), (torch.rand(2, 1, 8, 8),), dynamic={"x": {2: "H", 3: "W"}})
    assert engine.report.comparison.inputs == "example and seeded"
    close(engine, Best(), 2, 1, 5, 7)
