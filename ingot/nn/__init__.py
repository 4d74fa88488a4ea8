"""Networks written as Modules, and `trace`, which turns one into a Network."""

from __future__ import annotations

from ingot.nn.layers import (
    GELU,
    MLP,
    AdaptiveAvgPool2d,
    Attention,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    Cast,
    ColumnLinear,
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    Dropout,
    Embedding,
    Flatten,
    FusedGatedMLP,
    GatedMLP,
    GroupNorm,
    Identity,
    LayerNorm,
    Linear,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    Mish,
    PagedStep,
    ReLU,
    RmsNorm,
    RotaryEmbedding,
    RowLinear,
    Sigmoid,
    SiLU,
    Tanh,
)  # fmt: skip
from ingot.nn.module import Module, ModuleList, Sequential
from ingot.nn.parameter import Parameter, State
from ingot.nn.trace import trace

__all__ = [
    "GELU", "MLP", "AdaptiveAvgPool2d", "Attention", "AvgPool1d", "AvgPool2d", "AvgPool3d", "BatchNorm1d",
    "BatchNorm2d", "BatchNorm3d", "Cast", "ColumnLinear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d",
    "ConvTranspose2d", "ConvTranspose3d", "Dropout", "Embedding", "Flatten", "FusedGatedMLP", "GatedMLP", "GroupNorm",
    "Identity", "LayerNorm", "Linear", "MaxPool1d", "MaxPool2d", "MaxPool3d", "Mish", "Module", "ModuleList",
    "PagedStep", "Parameter", "ReLU", "RmsNorm", "RotaryEmbedding", "RowLinear", "Sequential", "SiLU", "Sigmoid",
    "State", "Tanh", "trace",
]  # fmt: skip
