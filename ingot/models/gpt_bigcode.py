"""SantaCoder and StarCoder 1: GPT-2 with plain linear layers and one key and value head for all queries."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from ingot import functional
from ingot.dtypes import DType
from ingot.frontends.fields import Fields
from ingot.models import gpt2
from ingot.models.blocks import CALLS, GptConfig, Heads, sizes
from ingot.nn import Linear, Module, PagedStep

ARCHITECTURE = "GPTBigCodeForCausalLM"
MODEL_TYPE = "gpt_bigcode"
NAMING = gpt2.NAMING


def config(fields: Fields) -> GptConfig:
    """Reads config.json."""
    shared = sizes(
        fields, ARCHITECTURE, hidden="n_embd", heads="n_head", layers="n_layer", positions="n_positions",
        inner="n_inner", eps="layer_norm_epsilon", activation="activation_function", tied=True,
    )  # fmt: skip
    if not fields.flag("scale_attn_weights", True):
        fields.fault("scale_attn_weights", "only true is supported")
    found = GptConfig(**shared)
    return replace(found, num_kv_heads=1) if fields.flag("multi_query", True) else found


class Attention(Module):
    """c_proj(attention(c_attn(x))); with several key heads the outputs of c_attn are grouped by head."""

    def __init__(self, config: GptConfig, index: int, dtype: DType) -> None:
        super().__init__()
        self.config = config
        width = config.hidden_size + 2 * config.num_kv_heads * config.head_dim
        self.c_attn = Linear(config.hidden_size, width, True, dtype)
        self.c_proj = Linear(config.hidden_size, config.hidden_size, True, dtype)
        self.heads = Heads(config, index, dtype)

    def forward(self, x: Any, step: PagedStep) -> Any:
        """[T, hidden] → the same"""
        hidden, head = self.config.hidden_size, self.config.head_dim
        joint = self.c_attn(x)
        if self.config.num_kv_heads == 1:
            parts = functional.split(joint, [hidden, head, head], -1)
        else:
            by_head = functional.view(joint, (x.shape[0], self.config.num_heads, 3 * head))
            parts = functional.chunk(by_head, 3, -1)
        return self.c_proj(self.heads(*parts, step))


class Mlp(Module):
    """c_proj(act(c_fc(x)))"""

    def __init__(self, config: GptConfig, dtype: DType) -> None:
        super().__init__()
        self.c_fc = Linear(config.hidden_size, config.intermediate_size, True, dtype)
        self.c_proj = Linear(config.intermediate_size, config.hidden_size, True, dtype)
        self.activation = CALLS[config.activation]

    def forward(self, x: Any) -> Any:
        """[T, hidden] → the same"""
        return self.c_proj(self.activation(self.c_fc(x)))


def _layer(config: GptConfig, index: int, dtype: DType) -> gpt2.Layer:
    return gpt2.Layer(config, dtype, Attention(config, index, dtype), Mlp(config, dtype))


model = partial(gpt2.Gpt2, layer=_layer)
