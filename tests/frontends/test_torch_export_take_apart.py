"""Ops that the importer lacks and torch can take apart; what a module returns beside tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ingot
from ingot.errors import ModuleError, UnsupportedError
from ingot.frontends.torch_export import take_apart
from ingot.frontends.torch_export.aten import TABLE


class Calls(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def autocast(x: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return x @ x.T


TAKEN = {
    "rule of torch's": lambda x: torch.nn.functional.huber_loss(x, x * 2),
    "several rounds": lambda x: torch.special.logsumexp(torch.nn.functional.cosine_similarity(x, x + 1), 0),
    "autocast": autocast,
    "vmap": lambda x: torch.vmap(torch.dot)(x, x + 1),
    "in place beside it": lambda x: torch.nn.functional.huber_loss(x.clone().add_(1)[1:], x[1:]),
}


@pytest.mark.parametrize("name", TAKEN)
def test_taken_apart(name: str) -> None:
    net, x = Calls(TAKEN[name]), torch.randn(3, 4)
    engine = ingot.build(net, (x,))
    assert engine.report.source.startswith("against torch"), engine.report.source
    found, want = engine.run({"x": x})["output_0"], net(x)
    np.testing.assert_allclose(found.astype(np.float32), want.float().numpy(), rtol=1e-5, atol=1e-6)


def test_dynamic_sizes_keep_their_names() -> None:
    net, x = Calls(TAKEN["several rounds"]), torch.randn(7, 4)
    engine = ingot.build(net, (x[:3],), dynamic={"x": {0: ingot.Dim("N", 2, 64)}}, report=False)
    np.testing.assert_allclose(engine.run({"x": x})["output_0"], TAKEN["several rounds"](x), rtol=1e-5)


def test_only_what_cannot_be_taken_apart_is_named() -> None:
    def both(x: Any) -> Any:
        return torch.nn.functional.huber_loss(torch.linalg.inv(x), x)

    with pytest.raises(UnsupportedError, match=r"(?s) 1 call\(s\).*linalg_inv\.default +1 .*outside of the"):
        ingot.build(Calls(both), (torch.eye(4),))


def test_a_wrong_rule_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.13 has one for multilabel_margin_loss."""
    monkeypatch.delitem(TABLE, "aten.huber_loss.default", raising=False)
    monkeypatch.setattr(take_apart, "_rule", lambda torch, op: lambda x, *others: x.sum())
    with pytest.raises(UnsupportedError, match=r"(?s)aten\.huber_loss\.default +1 .*there is no such op"):
        ingot.build(Calls(TAKEN["rule of torch's"]), (torch.randn(3, 4),), report=False)


def test_named_results_are_outputs_of_these_names() -> None:
    x = torch.randn(3, 4)
    engine = ingot.build(Calls(lambda x: torch.max(x, 1)), (x,))
    found, want = engine.run({"x": x}), torch.max(x, 1)
    assert list(found) == ["values", "indices"]
    np.testing.assert_array_equal(found["values"], want.values)
    np.testing.assert_array_equal(found["indices"], want.indices)


def test_results_that_torch_cannot_save() -> None:
    class Own:
        def __init__(self, x: Any) -> None:
            self.x = x

    torch.utils._pytree.register_pytree_node(Own, lambda o: ([o.x], None), lambda xs, _: Own(*xs))
    with pytest.raises(ModuleError, match="tensors, tuples, lists and dicts of them"):
        ingot.build(Calls(Own), (torch.randn(3, 4),))
