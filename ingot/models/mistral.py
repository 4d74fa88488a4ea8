"""Mistral: Llama without biases; one sliding window for all layers, which null turns off."""

from __future__ import annotations

from ingot.frontends.fields import Fields
from ingot.models import rope
from ingot.models.config import DecoderConfig, common
from ingot.models.decoder import CausalLM
from ingot.models.weights import DECODER

ARCHITECTURE = "MistralForCausalLM"
BODY = "MistralModel"
MODEL_TYPE = "mistral"
NAMING = DECODER
model = CausalLM


def config(fields: Fields) -> DecoderConfig:
    """Reads config.json. A sliding_window that is not mentioned means 4096, as in the first release."""
    shared = common(fields, ARCHITECTURE)
    if "sliding_window" not in fields.values or fields.has("sliding_window"):
        window = fields.integer("sliding_window", 1, rope.MAX_POSITIONS, 4096)
        shared["windows"] = (window,) * shared["num_layers"]
    return DecoderConfig(**shared)
