"""Llama 1 to 3 and everything published under their architecture: biases are optional, attention sees all tokens."""

from __future__ import annotations

from ingot.frontends.fields import Fields
from ingot.models.config import DecoderConfig, common
from ingot.models.decoder import CausalLM
from ingot.models.weights import DECODER

ARCHITECTURE = "LlamaForCausalLM"
BODY = "LlamaModel"
MODEL_TYPE = "llama"
NAMING = DECODER
model = CausalLM


def config(fields: Fields) -> DecoderConfig:
    """Reads config.json; transformers too wants whole heads here even when head_dim is given."""
    shared = common(fields, ARCHITECTURE)
    if shared["hidden_size"] % shared["num_heads"] and fields.has("head_dim"):
        fields.fault("hidden_size", f"must be a multiple of num_attention_heads {shared['num_heads']}")
    bias = fields.flag("attention_bias", False)
    return DecoderConfig(**shared, qkv_bias=bias, output_bias=bias, mlp_bias=fields.flag("mlp_bias", False))
