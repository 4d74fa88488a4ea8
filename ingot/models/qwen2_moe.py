"""Qwen2-MoE: Qwen2 with experts in some layers, beside one that every token goes through behind a gate of its own."""

from __future__ import annotations

from functools import partial
from typing import Any

from ingot import functional
from ingot.dtypes import DType
from ingot.frontends.fields import Fields
from ingot.models import rope
from ingot.models.config import common, typed_windows
from ingot.models.decoder import CausalLM, DecoderLayer, DecoderMLP
from ingot.models.experts import Experts, ExpertsConfig, counts, sparse_layers
from ingot.models.weights import DECODER
from ingot.nn import Linear

ARCHITECTURE = "Qwen2MoeForCausalLM"
MODEL_TYPE = "qwen2_moe"
NAMING = DECODER


def config(fields: Fields) -> ExpertsConfig:
    """Reads config.json. Where windows are on, every other layer before max_window_layers has one."""
    shared = common(fields, ARCHITECTURE)
    layers = shared["num_layers"]
    slides = fields.flag("use_sliding_window", False)
    window = fields.integer("sliding_window", 1, rope.MAX_POSITIONS, 4096) if slides else None
    first = fields.integer("max_window_layers", 0, 1_000_000, 28)
    shared["windows"] = typed_windows(fields, layers, window, lambda i: i % 2 == 0 and i < first)
    return ExpertsConfig(
        **shared, **counts(fields, "num_experts"), sparse=sparse_layers(fields, layers),
        expert_size=fields.integer("moe_intermediate_size", 1, 1 << 24),
        shared_size=fields.integer("shared_expert_intermediate_size", 1, 1 << 24),
        normalize=fields.flag("norm_topk_prob", False), qkv_bias=fields.flag("qkv_bias", True),
    )  # fmt: skip


class SharedExperts(Experts):
    """experts(x) + sigmoid(shared_expert_gate(x)) · shared_expert(x)"""

    def __init__(self, config: ExpertsConfig, dtype: DType) -> None:
        super().__init__(config, dtype)
        self.shared_expert = DecoderMLP(config, dtype, config.shared_size)
        self.shared_expert_gate = Linear(config.hidden_size, 1, False, dtype)

    def forward(self, x: Any) -> Any:
        """[T, hidden] → the same"""
        share = functional.sigmoid(self.shared_expert_gate(x))
        return functional.add(super().forward(x), functional.mul(share, self.shared_expert(x)))


def layer(config: ExpertsConfig, index: int, dtype: DType) -> DecoderLayer:
    """A layer with experts, or a dense one."""
    return DecoderLayer(config, index, dtype, mlp=SharedExperts if config.sparse[index] else DecoderMLP)


model = partial(CausalLM, layer=layer)
