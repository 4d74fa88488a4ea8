"""OPT: learned positions that begin at 2, ReLU; in small models a narrower embedding, or norms after each half."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ingot import functional
from ingot.dtypes import DType
from ingot.frontends.fields import Fields
from ingot.models.blocks import CALLS, GptConfig, Heads, LanguageModel, OutputHead, Parts, sizes
from ingot.models.weights import Naming
from ingot.nn import Embedding, LayerNorm, Linear, Module, ModuleList, PagedStep

ARCHITECTURE = "OPTForCausalLM"
MODEL_TYPE = "opt"
NAMING = Naming("model.decoder.embed_tokens.weight", "lm_head.weight", "model.")
FIRST_POSITION = 2  # rows of the table before that of position 0, for padding


@dataclass(frozen=True, kw_only=True)
class Config(GptConfig):
    """`embedding_size`: of the table, where narrower than the layers. `norm_first`: before each half, not after it."""

    embedding_size: int
    norm_first: bool
    bias: bool
    affine: bool


def config(fields: Fields) -> Config:
    """Reads config.json."""
    shared = sizes(
        fields, ARCHITECTURE, hidden="hidden_size", heads="num_attention_heads", layers="num_hidden_layers",
        positions="max_position_embeddings", inner="ffn_dim", eps="layer_norm_eps", activation="activation_function",
        tied=True,
    )  # fmt: skip
    if fields.flag("_remove_final_layer_norm", False):
        fields.fault("_remove_final_layer_norm", "only false is supported")
    return Config(
        **shared, embedding_size=fields.integer("word_embed_proj_dim", 1, 1 << 20, shared["hidden_size"]),
        norm_first=fields.flag("do_layer_norm_before", True), bias=fields.flag("enable_bias", True),
        affine=fields.flag("layer_norm_elementwise_affine", True),
    )  # fmt: skip


class Attention(Module):
    """out_proj(attention(q_proj(x), k_proj(x), v_proj(x)))"""

    def __init__(self, config: Config, index: int, dtype: DType) -> None:
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            setattr(self, name, Linear(config.hidden_size, config.hidden_size, config.bias, dtype))
        self.heads = Heads(config, index, dtype)

    def forward(self, x: Any, step: PagedStep) -> Any:
        """[T, hidden] → the same"""
        return self.out_proj(self.heads(self.q_proj(x), self.k_proj(x), self.v_proj(x), step))


class Layer(Module):
    """Attention and MLP, each with its norm before or after it, added to what came in."""

    def __init__(self, config: Config, index: int, dtype: DType) -> None:
        super().__init__()
        self.norm_first = config.norm_first
        self.self_attn = Attention(config, index, dtype)
        self.self_attn_layer_norm = _norm(config, dtype)
        self.fc1 = Linear(config.hidden_size, config.intermediate_size, config.bias, dtype)
        self.fc2 = Linear(config.intermediate_size, config.hidden_size, config.bias, dtype)
        self.final_layer_norm = _norm(config, dtype)
        self.activation = CALLS[config.activation]

    def forward(self, x: Any, step: PagedStep) -> Any:
        """[T, hidden] → the same"""
        if self.norm_first:
            x = functional.add(x, self.self_attn(self.self_attn_layer_norm(x), step))
            return functional.add(x, self._mlp(self.final_layer_norm(x)))
        x = self.self_attn_layer_norm(functional.add(x, self.self_attn(x, step)))
        return self.final_layer_norm(functional.add(x, self._mlp(x)))

    def _mlp(self, x: Any) -> Any:
        return self.fc2(self.activation(self.fc1(x)))


def _norm(config: Config, dtype: DType) -> LayerNorm:
    return LayerNorm(config.hidden_size, config.norm_eps, config.affine, dtype=dtype)


class Stack(Module):
    """Tables, layers and the last norm, under the names of the checkpoint."""

    def __init__(self, config: Config, dtype: DType) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.embedding_size, dtype)
        self.embed_positions = Embedding(config.context_length + FIRST_POSITION, config.hidden_size, dtype)
        self.project_in: Module | None = None
        self.project_out: Module | None = None
        if config.embedding_size != config.hidden_size:
            self.project_in = Linear(config.embedding_size, config.hidden_size, False, dtype)
            self.project_out = Linear(config.hidden_size, config.embedding_size, False, dtype)
        self.layers = ModuleList(Layer(config, i, dtype) for i in range(config.num_layers))
        self.final_layer_norm = _norm(config, dtype) if config.norm_first else None


class Body(Module):
    """The decoder under its name."""

    def __init__(self, config: Config, dtype: DType) -> None:
        super().__init__()
        self.decoder = Stack(config, dtype)


class Opt(LanguageModel):
    """The whole model."""

    def __init__(self, config: Config, dtype: DType, tied: bool) -> None:
        super().__init__(config)
        self.model = Body(config, dtype)
        table = self.model.decoder.embed_tokens
        self.lm_head = OutputHead(config, dtype, table if tied else None, width=config.embedding_size)

    def parts(self) -> Parts:
        """By their names."""
        stack = self.model.decoder
        return Parts(stack.embed_tokens, stack.layers, self._last, self.lm_head)

    def embed(self, token_ids: Any, positions: Any) -> Any:
        """Of tokens and positions."""
        stack = self.model.decoder
        x = stack.embed_tokens(token_ids)
        x = x if stack.project_in is None else stack.project_in(x)
        return functional.add(x, stack.embed_positions(functional.add(positions, FIRST_POSITION)))

    def _last(self, rows: Any) -> Any:
        """The last norm and the way back to the embedding's size, where there are such."""
        stack = self.model.decoder
        rows = rows if stack.final_layer_norm is None else stack.final_layer_norm(rows)
        return rows if stack.project_out is None else stack.project_out(rows)


model = Opt
