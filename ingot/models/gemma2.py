"""Gemma 2: caps of scores and logits, norms before and behind attention and MLP, a window in every other layer."""

from __future__ import annotations

from functools import partial
from typing import Any

from ingot import functional
from ingot.dtypes import DType
from ingot.frontends.fields import Fields
from ingot.models import gemma, rope
from ingot.models.config import DecoderConfig, typed_windows
from ingot.models.decoder import CausalLM, DecoderLayer, norm
from ingot.models.weights import DECODER
from ingot.nn import PagedStep

ARCHITECTURE = "Gemma2ForCausalLM"
BODY = "Gemma2Model"
MODEL_TYPE = "gemma2"
NAMING = DECODER
NAMES = {"hidden_act": "hidden_activation"}


def config(fields: Fields) -> DecoderConfig:
    """Reads config.json."""
    found = gemma.shared(fields.called(NAMES), ARCHITECTURE)
    window = fields.integer("sliding_window", 1, rope.MAX_POSITIONS, 4096)
    found["windows"] = typed_windows(fields, found["num_layers"], window, lambda i: i % 2 == 0)
    return DecoderConfig(**found, **caps(fields, scores=50.0, logits=30.0))


def caps(fields: Fields, scores: float | None, logits: float | None) -> dict[str, Any]:
    """How scores are scaled and bent, and logits; a cap that is null is none, one that is not mentioned the default."""
    score_cap, logit_cap = (
        fields.number(key, 0.0, 1e6, None if key in fields.values else default)
        for key, default in (("attn_logit_softcapping", scores), ("final_logit_softcapping", logits))
    )
    scale = fields.number("query_pre_attn_scalar", 0.0, 1e9, 256.0) ** -0.5
    return {"score_scale": scale, "score_cap": score_cap, "logit_cap": logit_cap}


class Layer(DecoderLayer):
    """A norm on both sides of attention and of the MLP; the MLP's first is called pre_feedforward_layernorm here."""

    def __init__(self, config: DecoderConfig, index: int, dtype: DType) -> None:
        super().__init__(config, index, dtype)
        self.pre_feedforward_layernorm = norm(config, dtype)
        self.post_feedforward_layernorm = norm(config, dtype)

    def forward(self, x: Any, step: PagedStep) -> Any:
        """[T, hidden] → the same"""
        attended = self.self_attn(self.input_layernorm(x), step)
        x = functional.add(x, self.post_attention_layernorm(attended))
        return functional.add(x, self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x))))


model = partial(CausalLM, layer=Layer)
