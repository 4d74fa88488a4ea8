"""What torch's export leaves out for us: nothing that we read is lost by it, and torch has it again afterwards."""

from __future__ import annotations

import importlib
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from ingot.errors import ModuleError
from ingot.frontends.torch_export.quick import quick

export = importlib.import_module("ingot.frontends.torch_export.export")  # the package has a function of this name


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Any) -> Any:
        y = self.norm(x)
        return halved(y.relu())


class Outer(nn.Module):
    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.first, self.inner, self.fails = nn.Linear(8, 8), Inner(), fails

    def forward(self, x: Any) -> Any:
        if self.fails:
            raise ZeroDivisionError("as forward may")
        return self.inner(self.first(x)).reshape(-1, 4) + 1


def halved(x: Any) -> Any:
    return x / 2


def _exported() -> Any:
    return export.export(Outer(), (torch.randn(3, 8),), {"x": {0: "N"}}).program


def test_the_program_has_the_same_nodes_places_and_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = _exported()
    monkeypatch.setattr(export, "quick", lambda torch: nullcontext())
    theirs = _exported()
    nodes, known = list(ours.graph.nodes), list(theirs.graph.nodes)
    assert len(nodes) > 4
    assert [(n.op, n.arguments, n.outputs, n.line) for n in nodes] == [
        (n.op, n.arguments, n.outputs, n.line) for n in known
    ]
    for name in ("nn_module_stack", "source_fn_stack"):
        assert [n.metadata.get(name) for n in nodes] == [n.metadata.get(name) for n in known]
    assert all(n.line is not None and n.line[0] == __file__ for n in nodes if n.op.startswith("aten."))
    assert ours.graph.tensors == theirs.graph.tensors and ours.ranges == theirs.ranges
    assert ours.guards == theirs.guards and ours.branches == theirs.branches


@pytest.mark.parametrize("fails", [False, True])
def test_torch_is_afterwards_what_it_was(fails: bool) -> None:
    def names() -> list[Any]:
        lazy = torch.fx._lazy_graph_module
        return [torch.fx.proxy.CapturedTraceback, lazy._use_lazy_graph_module_flag]

    before = names()
    with quick(torch):
        assert all(a is not b for a, b in zip(names(), before, strict=True))
    assert all(a is b for a, b in zip(names(), before, strict=True))
    with pytest.raises(ModuleError) if fails else nullcontext():
        export.export(Outer(fails), (torch.randn(3, 8),))
    assert all(a is b for a, b in zip(names(), before, strict=True))
