"""Mixtures of experts as transformers exports them, by products of rows in groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ingot
from ingot.frontends.torch_export.aten import Unsupported, mixture
from ingot.ir import Network, Spec

transformers = pytest.importorskip("transformers")
pytest.importorskip("transformers.integrations.moe")


class Grouped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 6, 5, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return torch.ops.transformers.grouped_mm_fallback(x, self.weight, ends)


@pytest.mark.parametrize("gathered", [1 << 24, 0])
@pytest.mark.parametrize("dynamic", [None, {"x": {0: "S"}}])
def test_rows_in_groups(gathered: int, dynamic: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices that are gathered at once, and row after row, as for many large ones and of unknown sizes. A group may
    be empty, and rows behind all groups become 0.
    """
    monkeypatch.setattr(mixture, "MAX_GATHERED", gathered)
    net, ends = Grouped(), torch.tensor([2, 2, 5, 7], dtype=torch.int32)
    engine = ingot.build(net, (torch.randn(9, 6), ends), dynamic=dynamic)
    assert engine._native.host_calls("main") == []
    assert engine.report is not None and engine.report.source.startswith("against torch")
    for rows, last in ((9, 7), (9, 9), (7, 7)) if dynamic else ((9, 7), (9, 9)):
        x, bounds = torch.randn(rows, 6), torch.tensor([1, 4, 4, last], dtype=torch.int32)
        wanted = net(x, bounds).detach().numpy()
        np.testing.assert_allclose(engine.run({"x": x, "ends": bounds})["output_0"], wanted, rtol=1e-5, atol=1e-6)


def test_a_mixture_by_its_default_implementation() -> None:
    config = transformers.MixtralConfig(
        vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, num_local_experts=4, num_experts_per_tok=2, use_cache=False,
    )  # fmt: skip
    config._experts_implementation = "grouped_mm"
    torch.manual_seed(0)
    net = transformers.MixtralModel(config).eval()
    tokens = torch.randint(0, 50, (2, 5))
    engine = ingot.build(net, {"input_ids": tokens}, dynamic={"input_ids": {0: "N", 1: "T"}}, report=False)
    assert engine._native.host_calls("main") == []
    for size in ((2, 5), (1, 9)):
        tokens = torch.randint(0, 50, size)
        with torch.no_grad():
            wanted = net(tokens).last_hidden_state.numpy()
        found = next(iter(engine.run({"input_ids": tokens}).values()))
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_groups_that_do_not_fit_their_matrices() -> None:
    network = Network("main")
    shapes = {"x": (9, 6), "weight": (4, 6, 5), "ends": (4,)}
    for name, shape in (("x", (9,)), ("x", (9, 7)), ("weight", (6, 5)), ("ends", (3,)), ("weight", (0, 6, 5))):
        given = {n: Spec(s, "int32" if n == "ends" else "float32") for n, s in {**shapes, name: shape}.items()}
        values = [network.input(f"{name}.{shape}.{n}", spec) for n, spec in given.items()]
        with pytest.raises(Unsupported, match="rows"):
            mixture.grouped_mm_fallback(*values)
