"""Mixtral: Mistral with a mixture of experts in every layer."""

from __future__ import annotations

from functools import partial
from typing import Any

from ingot import functional
from ingot.dtypes import DType
from ingot.frontends.fields import Fields
from ingot.models import rope
from ingot.models.config import common
from ingot.models.decoder import CausalLM, attention, norm
from ingot.models.experts import Experts, ExpertsConfig, counts
from ingot.models.weights import DECODER
from ingot.nn import Module, PagedStep

ARCHITECTURE = "MixtralForCausalLM"
MODEL_TYPE = "mixtral"
NAMING = DECODER


def config(fields: Fields) -> ExpertsConfig:
    """Reads config.json."""
    shared = common(fields, ARCHITECTURE)
    layers = shared["num_layers"]
    window = fields.integer("sliding_window", 1, rope.MAX_POSITIONS, None)
    shared["windows"] = (window,) * layers
    return ExpertsConfig(
        **shared, **counts(fields, "num_local_experts", 2), expert_size=shared["intermediate_size"], normalize=True,
        sparse=(True,) * layers,
    )  # fmt: skip


class Layer(Module):
    """Attention and experts, each behind its norm and added to what came in."""

    def __init__(self, config: ExpertsConfig, index: int, dtype: DType) -> None:
        super().__init__()
        self.self_attn = attention(config, index, dtype)
        self.block_sparse_moe = Experts(config, dtype, ("w1", "w3", "w2"))
        self.input_layernorm, self.post_attention_layernorm = norm(config, dtype), norm(config, dtype)

    def forward(self, x: Any, step: PagedStep) -> Any:
        """[T, hidden] → the same"""
        x = functional.add(x, self.self_attn(self.input_layernorm(x), step))
        return functional.add(x, self.block_sparse_moe(self.post_attention_layernorm(x)))


model = partial(CausalLM, layer=Layer)
