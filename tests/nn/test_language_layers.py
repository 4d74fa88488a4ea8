"""Layers of language models that hold no cache, against torch: experts, attention of encoders, adapters."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ingot import nn
from ingot.builder.network import build_network
from ingot.errors import ModuleError
from ingot.ir import Spec

torch = pytest.importorskip("torch", reason="torch is not installed")
functional = torch.nn.functional
RNG = np.random.default_rng(11)


def filled(layer: nn.Module) -> dict[str, Any]:
    """Gives a layer numbers; returns them as tensors of torch."""
    values = {name: RNG.normal(0, 0.3, p.shape).astype(np.float32) for name, p in layer.named_parameters()}
    layer.load_state_dict(values)
    return {name: torch.tensor(value) for name, value in values.items()}


def check(layer: nn.Module, specs: dict[str, Spec], feeds: dict[str, Any], want: Any) -> None:
    """At once and in an engine without host calls. Measured: 4e-7 of the largest number at most."""
    engine = build_network(nn.trace(layer, specs), {n: np.asarray(p.value) for n, p in layer.named_parameters()})
    assert not engine._native.host_calls("main")
    (built,) = engine.run(feeds).values()
    for found in (layer(*feeds.values()), built):
        np.testing.assert_allclose(found, want.numpy(), rtol=0, atol=2e-6 * float(want.abs().max()))


@pytest.mark.parametrize("shape", [(7, 12), (2, 3, 12)])
@pytest.mark.parametrize(
    ("top_k", "normalize", "activation"), [(2, True, "silu"), (1, False, "gelu"), (4, True, "relu")]
)
def test_experts(shape: tuple[int, ...], top_k: int, normalize: bool, activation: str) -> None:
    layer = nn.MoE(12, 20, 4, top_k, normalize=normalize, activation=activation)
    held, x = filled(layer), RNG.standard_normal(shape).astype(np.float32)
    rows = torch.tensor(x).reshape(-1, 12)
    weights, chosen = torch.softmax(rows @ held["gate.weight"].T, 1).topk(top_k)
    weights = weights / weights.sum(1, keepdim=True) if normalize else weights
    want = torch.zeros_like(rows)
    for t, row in enumerate(rows):
        for share, e in zip(weights[t], chosen[t], strict=True):
            gate, up, down = (held[f"experts.{e}.{name}.weight"] for name in ("gate_proj", "up_proj", "down_proj"))
            want[t] += share * (down @ (getattr(functional, activation)(gate @ row) * (up @ row)))
    dims = ("N", *shape[1:])
    check(layer, {"x": Spec(dims, "float32")}, {"x": x}, want.reshape(shape))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("head", "scaling"), [(None, 1.0), (5, 2.0)])
def test_attention_of_an_encoder(masked: bool, head: int | None, scaling: float) -> None:
    layer = nn.BertAttention(12, 3, head, q_scaling=scaling)
    held, x = filled(layer), RNG.standard_normal((2, 6, 12)).astype(np.float32)
    mask = np.array([[True] * 6, [True] * 4 + [False] * 2])
    size = head or 4
    qkv = functional.linear(torch.tensor(x), held["qkv.weight"], held["qkv.bias"])
    q, k, v = qkv.reshape(2, 6, 3, 3, size).unbind(2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / (scaling * math.sqrt(size))
    scores = scores.masked_fill(~torch.tensor(mask)[:, None, None], -math.inf) if masked else scores
    y = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).reshape(2, 6, 3 * size)
    want = functional.linear(y, held["dense.weight"], held["dense.bias"])
    specs = {"x": Spec(("B", "S", 12), "float32")} | ({"attention_mask": Spec(("B", "S"), "bool")} if masked else {})
    check(layer, specs, {"x": x} | ({"attention_mask": mask} if masked else {}), want)


@pytest.mark.parametrize("alpha", [None, 16.0])
def test_an_adapter(alpha: float | None) -> None:
    layer = nn.LoRA(12, 9, 4, alpha)
    held, x = filled(layer), RNG.standard_normal((2, 3, 12)).astype(np.float32)
    want = torch.tensor(x) @ held["lora_A.weight"].T @ held["lora_B.weight"].T * ((alpha or 4) / 4)
    check(layer, {"x": Spec(("N", 3, 12), "float32")}, {"x": x}, want)


@pytest.mark.parametrize(("build", "why"), [
    (lambda: nn.MoE(12, 0, 4), "ffn_hidden_size=0"), (lambda: nn.MoE(12, 20, 4, 5), "top_k is 5, of 4 experts"),
    (lambda: nn.BertAttention(12, 5), "hidden_size 12 is not a multiple of 5 heads"),
    (lambda: nn.BertAttention(12, 0), "num_attention_heads=0"), (lambda: nn.LoRA(12, 9, -1), "rank=-1"),
])  # fmt: skip
def test_sizes_that_no_layer_has(build: Any, why: str) -> None:
    with pytest.raises(ModuleError, match=why):
        build()
