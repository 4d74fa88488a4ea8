"""Gemma 3, text: Gemma 2's layers with an RmsNorm of every query and key head; layers with a window rotate by a base of
their own."""

from __future__ import annotations

from ingot.frontends.fields import Fields
from ingot.models import gemma, gemma2, rope
from ingot.models.config import DecoderConfig, typed_windows
from ingot.models.weights import DECODER

ARCHITECTURE = "Gemma3ForCausalLM"
MODEL_TYPE = "gemma3_text"
NAMING = DECODER
model = gemma2.model


def config(fields: Fields) -> DecoderConfig:
    """Reads config.json. transformers takes no notice of a cap of scores here, so one is refused."""
    ropes: list[rope.Rope] = []

    def rotary(fields: Fields, head_dim: int, positions: int) -> rope.Rope:
        ropes.extend(rope.parse_local_global(fields, head_dim, positions))
        return ropes[0]

    found = gemma.shared(fields.called(gemma2.NAMES), ARCHITECTURE, rotary=rotary)
    window = fields.integer("sliding_window", 1, rope.MAX_POSITIONS, 4096)
    every = fields.integer("sliding_window_pattern", 1, 1_000, 6)
    found["windows"] = typed_windows(fields, found["num_layers"], window, lambda i: (i + 1) % every > 0)
    if fields.has("attn_logit_softcapping"):
        fields.fault("attn_logit_softcapping", "scores of Gemma 3 are not capped; set it to null")
    return DecoderConfig(**found, **gemma2.caps(fields, None, None), local_rope=ropes[1], qk_norm=True)
