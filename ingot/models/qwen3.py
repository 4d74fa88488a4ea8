"""Qwen3, dense: an RmsNorm of every query and key head before it is rotated, and a head size of its own."""

from __future__ import annotations

from ingot.frontends.fields import Fields
from ingot.models.config import DecoderConfig, common, layer_windows
from ingot.models.decoder import CausalLM
from ingot.models.weights import DECODER

ARCHITECTURE = "Qwen3ForCausalLM"
BODY = "Qwen3Model"
MODEL_TYPE = "qwen3"
NAMING = DECODER
model = CausalLM


def config(fields: Fields) -> DecoderConfig:
    """Reads config.json."""
    shared = common(fields, ARCHITECTURE, default_head_dim=128)
    shared["windows"] = layer_windows(fields, shared["num_layers"])
    bias = fields.flag("attention_bias", False)
    return DecoderConfig(**shared, qkv_bias=bias, output_bias=bias, qk_norm=True)
