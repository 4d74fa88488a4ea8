"""Phi 1, 1.5 and 2: attention and MLP side by side behind one norm; part of every head turns; biases throughout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ingot import functional
from ingot.dtypes import DType
from ingot.frontends.fields import Fields
from ingot.models import rope
from ingot.models.blocks import CALLS, GptConfig, Heads, LanguageModel, OutputHead, Parts, sizes
from ingot.models.weights import DECODER
from ingot.nn import Embedding, LayerNorm, Linear, Module, ModuleList, PagedStep

ARCHITECTURE = "PhiForCausalLM"
MODEL_TYPE = "phi"
NAMING = DECODER


def config(fields: Fields) -> GptConfig:
    """Reads config.json."""
    shared = sizes(
        fields, ARCHITECTURE, hidden="hidden_size", heads="num_attention_heads", layers="num_hidden_layers",
        positions="max_position_embeddings", inner="intermediate_size", eps="layer_norm_eps", activation="hidden_act",
        tied=False,
    )  # fmt: skip
    if fields.flag("qk_layernorm", False):
        fields.fault("qk_layernorm", "no published Phi has it, and it is not supported")
    embedding = rope.parse(fields, shared["head_dim"], shared["context_length"], share=0.5)
    shared["context_length"] = embedding.positions
    heads = fields.integer("num_key_value_heads", 1, 1 << 16, shared["num_heads"])
    if heads > shared["num_heads"] or shared["num_heads"] % heads:
        fields.fault("num_key_value_heads", f"must divide num_attention_heads {shared['num_heads']}, but is {heads}")
    return replace(GptConfig(**shared, rope=embedding), num_kv_heads=heads)


class Attention(Module):
    """dense(attention(q_proj(x), k_proj(x), v_proj(x)))"""

    def __init__(self, config: GptConfig, index: int, dtype: DType) -> None:
        super().__init__()
        narrow = config.num_kv_heads * config.head_dim
        self.q_proj = Linear(config.hidden_size, config.hidden_size, True, dtype)
        self.k_proj = Linear(config.hidden_size, narrow, True, dtype)
        self.v_proj = Linear(config.hidden_size, narrow, True, dtype)
        self.dense = Linear(config.hidden_size, config.hidden_size, True, dtype)
        self.heads = Heads(config, index, dtype)

    def forward(self, x: Any, step: PagedStep) -> Any:
        """[T, hidden] → the same"""
        return self.dense(self.heads(self.q_proj(x), self.k_proj(x), self.v_proj(x), step))


class Mlp(Module):
    """fc2(act(fc1(x)))"""

    def __init__(self, config: GptConfig, dtype: DType) -> None:
        super().__init__()
        self.fc1 = Linear(config.hidden_size, config.intermediate_size, True, dtype)
        self.fc2 = Linear(config.intermediate_size, config.hidden_size, True, dtype)
        self.activation = CALLS[config.activation]

    def forward(self, x: Any) -> Any:
        """[T, hidden] → the same"""
        return self.fc2(self.activation(self.fc1(x)))


class Layer(Module):
    """x + attention(norm(x)) + mlp(norm(x))"""

    def __init__(self, config: GptConfig, index: int, dtype: DType) -> None:
        super().__init__()
        self.input_layernorm = LayerNorm(config.hidden_size, config.norm_eps, dtype=dtype)
        self.self_attn = Attention(config, index, dtype)
        self.mlp = Mlp(config, dtype)

    def forward(self, x: Any, step: PagedStep) -> Any:
        """[T, hidden] → the same"""
        normed = self.input_layernorm(x)
        return functional.add(functional.add(self.self_attn(normed, step), self.mlp(normed)), x)


class Body(Module):
    """Table, layers and the last norm, under the names of the checkpoint."""

    def __init__(self, config: GptConfig, dtype: DType) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, dtype)
        self.layers = ModuleList(Layer(config, i, dtype) for i in range(config.num_layers))
        self.final_layernorm = LayerNorm(config.hidden_size, config.norm_eps, dtype=dtype)


class Phi(LanguageModel):
    """The whole model; its head has a bias."""

    def __init__(self, config: GptConfig, dtype: DType, tied: bool) -> None:
        super().__init__(config)
        self.model = Body(config, dtype)
        self.lm_head = OutputHead(config, dtype, self.model.embed_tokens if tied else None, bias=True)

    def parts(self) -> Parts:
        """By their names."""
        body = self.model
        return Parts(body.embed_tokens, body.layers, body.final_layernorm, self.lm_head)


model = Phi
