"""InternLM 2: Llama with one product for queries, keys and values, grouped by key head, and names of its own."""

from __future__ import annotations

from functools import partial
from typing import Any

from ingot import functional
from ingot.dtypes import DType
from ingot.frontends.fields import Fields
from ingot.models.blocks import CALLS
from ingot.models.config import DecoderConfig, common
from ingot.models.decoder import CausalLM, FusedAttention, Names, norm
from ingot.models.weights import ROTARY, Naming
from ingot.nn import Linear, Module, PagedStep

ARCHITECTURE = "InternLM2ForCausalLM"
MODEL_TYPE = "internlm2"
NAMING = Naming(embedding="model.tok_embeddings.weight", head="output.weight", ignored=(ROTARY,))


def config(fields: Fields) -> DecoderConfig:
    """Reads config.json."""
    bias = fields.flag("bias", True)
    return DecoderConfig(**common(fields, ARCHITECTURE), qkv_bias=bias, output_bias=bias)


def grouped(config: DecoderConfig, fused: Any) -> tuple[Any, Any, Any]:
    """Per key head: the queries that read it, the key, the value."""
    heads, size = config.num_kv_heads, config.head_dim
    readers = config.num_heads // heads
    groups = functional.view(fused, (fused.shape[0], heads, (readers + 2) * size))
    query, key, value = functional.split(groups, [readers * size, size, size], 2)
    return query, key, value


class FeedForward(Module):
    """w2(act(w1(x)) · w3(x))"""

    def __init__(self, config: DecoderConfig, dtype: DType) -> None:
        super().__init__()
        self.activation = CALLS[config.activation]
        self.w1 = Linear(config.hidden_size, config.intermediate_size, False, dtype)
        self.w3 = Linear(config.hidden_size, config.intermediate_size, False, dtype)
        self.w2 = Linear(config.intermediate_size, config.hidden_size, False, dtype)

    def forward(self, x: Any) -> Any:
        """[T, hidden] → the same"""
        return self.w2(functional.mul(self.activation(self.w1(x)), self.w3(x)))


class Layer(Module):
    """Attention and MLP, each behind its norm and added to what came in."""

    def __init__(self, config: DecoderConfig, index: int, dtype: DType) -> None:
        super().__init__()
        self.attention = FusedAttention(config, index, dtype, ("wqkv", "wo"), split=grouped)
        self.feed_forward = FeedForward(config, dtype)
        self.attention_norm, self.ffn_norm = norm(config, dtype), norm(config, dtype)

    def forward(self, x: Any, step: PagedStep) -> Any:
        """[T, hidden] → the same"""
        x = functional.add(x, self.attention(self.attention_norm(x), step))
        return functional.add(x, self.feed_forward(self.ffn_norm(x)))


model = partial(CausalLM, layer=Layer, names=Names(table="tok_embeddings", head="output"))
