"""BLOOM: ALiBi for positions, a norm behind the embedding table, one product for queries, keys and values by head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ingot import functional
from ingot.dtypes import DType
from ingot.frontends.fields import Fields
from ingot.models.blocks import GptConfig, Heads, LanguageModel, OutputHead, Parts, sizes
from ingot.models.gpt_neox import Mlp
from ingot.models.weights import Naming
from ingot.nn import Embedding, LayerNorm, Linear, Module, ModuleList, PagedStep

ARCHITECTURE = "BloomForCausalLM"
MODEL_TYPE = "bloom"
NAMING = Naming("transformer.word_embeddings.weight", "lm_head.weight", "transformer.")
TRAINED_LENGTH = 2048  # ALiBi has no last position; this is what the published models saw


@dataclass(frozen=True, kw_only=True)
class Config(GptConfig):
    """`norm_residual`: what is added behind each half is the normed input, not the input."""

    norm_residual: bool


def config(fields: Fields) -> Config:
    """Reads config.json, whose spelling has changed over the years."""

    def spelled(*names: str) -> str:
        return next((name for name in names if fields.has(name)), names[0])

    shared = sizes(
        fields, ARCHITECTURE, hidden=spelled("hidden_size", "n_embed"), heads=spelled("n_head", "num_attention_heads"),
        layers=spelled("n_layer", "num_hidden_layers"), positions="seq_length", inner="n_inner",
        eps="layer_norm_epsilon", activation="hidden_act", tied=True, default_activation="gelu_new",
        default_positions=TRAINED_LENGTH,
    )  # fmt: skip
    return Config(**shared, norm_residual=fields.flag("apply_residual_connection_post_layernorm", False))


class Attention(Module):
    """dense(attention(query_key_value(x))); the joint product's outputs are grouped by head."""

    def __init__(self, config: Config, index: int, dtype: DType) -> None:
        super().__init__()
        self.query_key_value = Linear(config.hidden_size, 3 * config.hidden_size, True, dtype)
        self.dense = Linear(config.hidden_size, config.hidden_size, True, dtype)
        self.heads = Heads(config, index, dtype, slopes=functional.generate_alibi_slopes(config.num_heads))

    def forward(self, x: Any, step: PagedStep) -> Any:
        """[T, hidden] → the same"""
        heads = self.heads
        joint = functional.view(self.query_key_value(x), (x.shape[0], heads.heads, 3 * heads.head_dim))
        return self.dense(heads(*functional.chunk(joint, 3, -1), step))


class Layer(Module):
    """Attention and MLP, each behind its norm."""

    def __init__(self, config: Config, index: int, dtype: DType) -> None:
        super().__init__()
        self.norm_residual = config.norm_residual
        self.input_layernorm = LayerNorm(config.hidden_size, config.norm_eps, dtype=dtype)
        self.self_attention = Attention(config, index, dtype)
        self.post_attention_layernorm = LayerNorm(config.hidden_size, config.norm_eps, dtype=dtype)
        self.mlp = Mlp(config, dtype)

    def forward(self, x: Any, step: PagedStep) -> Any:
        """[T, hidden] → the same"""
        normed = self.input_layernorm(x)
        x = functional.add(self.self_attention(normed, step), normed if self.norm_residual else x)
        normed = self.post_attention_layernorm(x)
        return functional.add(self.mlp(normed), normed if self.norm_residual else x)


class Transformer(Module):
    """Table, norms and layers, under the names of the checkpoint."""

    def __init__(self, config: Config, dtype: DType) -> None:
        super().__init__()
        self.word_embeddings = Embedding(config.vocab_size, config.hidden_size, dtype)
        self.word_embeddings_layernorm = LayerNorm(config.hidden_size, config.norm_eps, dtype=dtype)
        self.h = ModuleList(Layer(config, i, dtype) for i in range(config.num_layers))
        self.ln_f = LayerNorm(config.hidden_size, config.norm_eps, dtype=dtype)


class Bloom(LanguageModel):
    """The whole model."""

    def __init__(self, config: Config, dtype: DType, tied: bool) -> None:
        super().__init__(config)
        self.transformer = Transformer(config, dtype)
        self.lm_head = OutputHead(config, dtype, self.transformer.word_embeddings if tied else None)

    def parts(self) -> Parts:
        """By their names."""
        body = self.transformer
        return Parts(body.word_embeddings, body.h, body.ln_f, self.lm_head)

    def embed(self, token_ids: Any, positions: Any) -> Any:
        """Of tokens, normed."""
        return self.transformer.word_embeddings_layernorm(self.transformer.word_embeddings(token_ids))


model = Bloom
