"""Networks written as Modules, and `trace`, which turns one into a Network."""

from __future__ import annotations

from ingot.nn.layers import (
    MLP,
    Attention,
    Cast,
    ColumnLinear,
    Embedding,
    FusedGatedMLP,
    GatedMLP,
    LayerNorm,
    Linear,
    Mish,
    PagedStep,
    RmsNorm,
    RotaryEmbedding,
    RowLinear,
)  # fmt: skip
from ingot.nn.module import Module, ModuleList
from ingot.nn.parameter import Parameter, State
from ingot.nn.trace import trace

__all__ = [
    "MLP", "Attention", "Cast", "ColumnLinear", "Embedding", "FusedGatedMLP", "GatedMLP", "LayerNorm", "Linear", "Mish",
    "Module", "ModuleList", "PagedStep", "Parameter", "RmsNorm", "RotaryEmbedding", "RowLinear", "State", "trace",
]  # fmt: skip
