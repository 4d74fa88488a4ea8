"""Gemma 1: norms with 1 + weight, embeddings times sqrt(hidden size), tanh GELU, a head that is the embedding table."""

from __future__ import annotations

from typing import Any

from ingot.frontends.fields import Fields
from ingot.models.config import DecoderConfig, common
from ingot.models.decoder import CausalLM
from ingot.models.weights import DECODER

ARCHITECTURE = "GemmaForCausalLM"
BODY = "GemmaModel"
MODEL_TYPE = "gemma"
NAMING = DECODER
model = CausalLM


def config(fields: Fields) -> DecoderConfig:
    """Reads config.json. Where it says hidden_activation beside an older hidden_act, that was the training's."""
    names = {"hidden_act": "hidden_activation"} if fields.has("hidden_activation") else {}
    return DecoderConfig(**shared(fields.called(names), ARCHITECTURE))


def shared(fields: Fields, architecture: str, **settings: Any) -> dict[str, Any]:
    """What all Gemmas read alike. Attention to tokens to come, which encoders made of Gemma have, is refused."""
    if fields.flag("use_bidirectional_attention", False):
        fields.fault("use_bidirectional_attention", "is true, but only causal attention is supported")
    found = common(
        fields, architecture, default_head_dim=256, activation="gelu_pytorch_tanh", tied=True, **settings
    )  # fmt: skip
    bias = fields.flag("attention_bias", False)
    scale = found["hidden_size"] ** 0.5
    return found | {"norm_shift": 1.0, "embedding_scale": scale, "qkv_bias": bias, "output_bias": bias}
