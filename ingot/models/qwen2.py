"""Qwen2 and Qwen2.5, dense: queries, keys and values have biases; layers may have a sliding window."""

from __future__ import annotations

from ingot.frontends.fields import Fields
from ingot.models.config import DecoderConfig, common, layer_windows
from ingot.models.decoder import CausalLM
from ingot.models.weights import DECODER

ARCHITECTURE = "Qwen2ForCausalLM"
BODY = "Qwen2Model"
MODEL_TYPE = "qwen2"
NAMING = DECODER
model = CausalLM


def config(fields: Fields) -> DecoderConfig:
    """Reads config.json."""
    shared = common(fields, ARCHITECTURE)
    shared["windows"] = layer_windows(fields, shared["num_layers"])
    return DecoderConfig(**shared, qkv_bias=True)
