"""Qwen3-MoE: Qwen3 with experts in some layers."""

from __future__ import annotations

from functools import partial

from ingot.dtypes import DType
from ingot.frontends.fields import Fields
from ingot.models import rope
from ingot.models.config import common
from ingot.models.decoder import CausalLM, DecoderLayer, DecoderMLP
from ingot.models.experts import Experts, ExpertsConfig, counts, sparse_layers
from ingot.models.weights import DECODER

ARCHITECTURE = "Qwen3MoeForCausalLM"
MODEL_TYPE = "qwen3_moe"
NAMING = DECODER


def config(fields: Fields) -> ExpertsConfig:
    """Reads config.json. A sliding window, where it is on, is that of all layers."""
    shared = common(fields, ARCHITECTURE)
    layers = shared["num_layers"]
    if fields.flag("use_sliding_window", False):
        shared["windows"] = (fields.integer("sliding_window", 1, rope.MAX_POSITIONS, 4096),) * layers
    bias = fields.flag("attention_bias", False)
    name = "num_experts" if fields.has("num_experts") else "num_local_experts"
    return ExpertsConfig(
        **shared, **counts(fields, name), sparse=sparse_layers(fields, layers),
        expert_size=fields.integer("moe_intermediate_size", 1, 1 << 24),
        normalize=fields.flag("norm_topk_prob", False), qkv_bias=bias, output_bias=bias, qk_norm=True,
    )  # fmt: skip


def layer(config: ExpertsConfig, index: int, dtype: DType) -> DecoderLayer:
    """A layer with experts, or a dense one."""
    return DecoderLayer(config, index, dtype, mlp=Experts if config.sparse[index] else DecoderMLP)


model = partial(CausalLM, layer=layer)
