"""The layers users know, one Module each."""

from __future__ import annotations

from ingot.nn.layers.activation import GELU, Cast, Dropout, Flatten, Identity, Mish, ReLU, Sigmoid, SiLU, Tanh
from ingot.nn.layers.attention import Attention, BertAttention, PagedStep, RotaryEmbedding
from ingot.nn.layers.convolution import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)  # fmt: skip
from ingot.nn.layers.experts import MoE
from ingot.nn.layers.linear import ColumnLinear, Embedding, Linear, LoRA, PromptTuningEmbedding, RowLinear
from ingot.nn.layers.mlp import MLP, FusedGatedMLP, GatedMLP
from ingot.nn.layers.normalization import BatchNorm1d, BatchNorm2d, BatchNorm3d, GroupNorm, LayerNorm, RmsNorm
from ingot.nn.layers.pooling import (
    AdaptiveAvgPool2d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
)  # fmt: skip
from ingot.nn.layers.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell

__all__ = [
    "GELU",
    "GRU",
    "LSTM",
    "MLP",
    "RNN",
    "AdaptiveAvgPool2d",
    "Attention",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "BertAttention",
    "Cast",
    "ColumnLinear",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Dropout",
    "Embedding",
    "Flatten",
    "FusedGatedMLP",
    "GRUCell",
    "GatedMLP",
    "GroupNorm",
    "Identity",
    "LSTMCell",
    "LayerNorm",
    "Linear",
    "LoRA",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "Mish",
    "MoE",
    "PagedStep",
    "PromptTuningEmbedding",
    "RNNCell",
    "ReLU",
    "RmsNorm",
    "RotaryEmbedding",
    "RowLinear",
    "SiLU",
    "Sigmoid",
    "Tanh",
]  # fmt: skip
