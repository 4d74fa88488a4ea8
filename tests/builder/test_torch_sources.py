"""What of torch is handed to a build: an ExportedProgram as it is, all else is refused with what to do."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ingot
from ingot.cli.main import main
from ingot.errors import UserError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return {"largest": torch.max(self.linear(x), 1)}


def scripted(net: Net) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(net.linear, (torch.randn(2, 4),))


def test_an_exported_program_as_it_is() -> None:
    net, x = Net().eval(), torch.randn(2, 4)
    program = torch.export.export(net, (x,), dynamic_shapes=({0: torch.export.Dim("N")},))
    engine = ingot.build(program)
    assert engine.report.source.startswith("against torch"), engine.report.source
    x = torch.randn(5, 4)
    found, want = engine.run({"x": x}), net(x)["largest"]
    assert list(found) == ["largest_values", "largest_indices"]
    np.testing.assert_allclose(found["largest_values"], want.values.detach(), rtol=1e-5)
    assert torch.equal(program.module()(x)["largest"].values, want.values)  # the program has its weights still


def test_an_exported_program_has_its_own_inputs() -> None:
    x = torch.randn(2, 4)
    with pytest.raises(UserError, match="an ExportedProgram has its own"):
        ingot.build(torch.export.export(Net(), (x,)), (x,))


WRONG: dict[str, tuple[Callable[[Net], Any], str]] = {
    "traced": (scripted, "scripted or traced module.*before torch.jit.script or torch.jit.trace"),
    "compiled": (
        lambda net: torch.compile(net, backend="eager"),
        "result of torch.compile: build the module inside, model._orig_mod",
    ),
    "parallel": (nn.DataParallel, "DataParallel.*build the module inside, model.module"),
    "state_dict": (lambda net: net.state_dict(), "a state_dict has weights and no network, so load it into its module"),
    "optimizer": (lambda net: torch.optim.SGD(net.parameters()), "not the optimizer SGD: build the module"),
    "class": (lambda net: Net, r"an instance, not the class Net: build\(Net\(…\), …\)"),
    "tensor": (lambda net: torch.zeros(3), "give the tensor as its example input"),
    "function": (lambda net: torch.sin, "call it in the forward of a torch.nn.Module"),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_way_out(name: str) -> None:
    make, why = WRONG[name]
    with pytest.raises(UserError, match=why):
        ingot.build(make(Net()), (torch.zeros(2, 4),))


class Plain(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def exported(path: Path) -> None:
    with path.open("wb") as file:
        torch.export.save(torch.export.export(Plain(), (torch.zeros(2, 4),)), file)


FILES: dict[str, tuple[Callable[[Net, Path], Any], str]] = {
    "net.pt": (lambda net, path: scripted(net).save(path), "is a TorchScript file.*export the Python module"),
    "script.pt2": (lambda net, path: scripted(net).save(path), "is a TorchScript file.*export the Python module"),
    "state.pth": (lambda net, path: torch.save(net.state_dict(), path), "is a file of torch.save, a pickle"),
    "state.pt2": (lambda net, path: torch.save(net.state_dict(), path), "is a file of torch.save, a pickle"),
    "old.pt": (
        lambda net, path: torch.save(net.state_dict(), path, _use_new_zipfile_serialization=False),
        "is a file of torch.save, a pickle",
    ),
    "exported.pt": (
        lambda net, path: exported(path),
        "is a file of torch.export.save: give it a name ending in .pt2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_the_way_out_of_a_file(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, why = FILES[name]
    path = tmp_path / name
    make(Net(), path)
    with pytest.raises(UserError, match=why):
        ingot.build(path)
    for command in (["build", str(path), "-o", str(tmp_path / "out.ingot")], ["run", str(path), "--random"]):
        assert main(command) == 2
        assert "torch" in capsys.readouterr().err
