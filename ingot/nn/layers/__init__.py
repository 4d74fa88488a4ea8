"""The layers users know, one Module each."""

from __future__ import annotations

from ingot.nn.layers.activation import Cast, Mish
from ingot.nn.layers.attention import Attention, PagedStep, RotaryEmbedding
from ingot.nn.layers.linear import ColumnLinear, Embedding, Linear, RowLinear
from ingot.nn.layers.mlp import MLP, FusedGatedMLP, GatedMLP
from ingot.nn.layers.normalization import LayerNorm, RmsNorm

__all__ = [
    "MLP", "Attention", "Cast", "ColumnLinear", "Embedding", "FusedGatedMLP", "GatedMLP", "LayerNorm", "Linear", "Mish",
    "PagedStep", "RmsNorm", "RotaryEmbedding", "RowLinear",
]  # fmt: skip
