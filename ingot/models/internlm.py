"""InternLM 1: Llama with biases on all four products of attention."""

from __future__ import annotations

from ingot.frontends.fields import Fields
from ingot.models import rope
from ingot.models.config import DecoderConfig, common
from ingot.models.decoder import CausalLM
from ingot.models.weights import DECODER

ARCHITECTURE = "InternLMForCausalLM"
MODEL_TYPE = "internlm"
NAMING = DECODER
model = CausalLM


def config(fields: Fields) -> DecoderConfig:
    """Reads config.json."""
    bias = fields.flag("bias", True)
    return DecoderConfig(**common(fields, ARCHITECTURE, rotary=_rotary), qkv_bias=bias, output_bias=bias)


def _rotary(fields: Fields, head_dim: int, positions: int) -> rope.Rope:
    """`rotary`: {"type": "origin" or "dynamic", "base"}; dynamic stretches only behind the end of the context."""
    inner = fields.nested("rotary")
    if inner is None:
        return rope.plain(head_dim, positions)
    inner.choice("type", ("origin", "dynamic"), "dynamic")
    return rope.plain(head_dim, positions, inner.number("base", 1.0, 1e15, rope.DEFAULT_THETA))
