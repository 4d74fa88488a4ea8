"""Falcon in its three forms. 7B has one key and value head, and attention and MLP side by side behind one norm. 40B and
later have grouped key and value heads, and a norm for each side or one for both. RW-1B has ALiBi, biases, and one half
after the other.

The published code of the models with ALiBi rounds positions, slopes and their products to bfloat16, whatever precision
the rest is in, and so does this. From position 256 on neighbours share a bias, in the steepest heads up to eight of
them. Since a rounded bias belongs to the key's position and not to the distance, it goes into the cache with the key.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ingot import functional
from ingot.dtypes import DType
from ingot.frontends.fields import Fields
from ingot.ir import StateSpec
from ingot.models import rope
from ingot.models.blocks import GptConfig, Heads, LanguageModel, OutputHead, Parts, sizes
from ingot.models.gpt_neox import Mlp
from ingot.models.weights import ROTARY, Naming
from ingot.nn import Embedding, LayerNorm, Linear, Module, ModuleList, PagedStep, State

ARCHITECTURE = "FalconForCausalLM"
MODEL_TYPE = "falcon"
NAMING = Naming("transformer.word_embeddings.weight", "lm_head.weight", "transformer.", (ROTARY,))


@dataclass(frozen=True, kw_only=True)
class Config(GptConfig):
    """`norms`: of a layer's input where the halves stand side by side (`parallel`). `alibi`: it has ALiBi."""

    parallel: bool
    norms: int
    bias: bool
    alibi: bool

    @property
    def biases(self) -> int:
        """Elements of a cached key that are biases: one for each query head that reads it, in an even number."""
        group = self.num_heads // self.num_kv_heads
        return group + group % 2 if self.alibi else 0

    @property
    def cache_width(self) -> int:
        return self.head_dim + self.biases


def config(fields: Fields) -> Config:
    """Reads config.json."""
    shared = sizes(
        fields, ARCHITECTURE, hidden="hidden_size", heads="num_attention_heads", layers="num_hidden_layers",
        positions="max_position_embeddings", inner="ffn_hidden_size", eps="layer_norm_epsilon", activation="activation",
        tied=True, default_activation="gelu", default_positions=2048,
    )  # fmt: skip
    heads, grouped = shared["num_heads"], fields.flag("new_decoder_architecture", False)
    parallel = fields.flag("parallel_attn", True)
    norms = fields.integer("num_ln_in_parallel_attn", 1, 2, 2 if grouped else 1)
    if grouped and not parallel:
        fields.fault("parallel_attn", "the new decoder architecture only has true")
    if not grouped and norms != 1:
        fields.fault("num_ln_in_parallel_attn", "only the new decoder architecture has two")
    kv_heads = fields.integer("num_kv_heads", 1, heads, heads)
    if heads % kv_heads:
        fields.fault("num_kv_heads", f"must divide num_attention_heads {heads}, but is {kv_heads}")
    one = not grouped and fields.flag("multi_query", True)
    if not grouped and not one and kv_heads != heads:
        fields.fault("num_kv_heads", f"must be {heads} where multi_query and new_decoder_architecture are false")
    alibi = fields.flag("alibi", False)
    embedding = None if alibi else _rotary(fields, shared)
    found = Config(
        **shared, rope=embedding, parallel=parallel, norms=norms, bias=fields.flag("bias", False), alibi=alibi
    )
    reach = shared["context_length"] if embedding is None else embedding.positions
    return replace(found, num_kv_heads=1 if one else kv_heads, context_length=reach)


def _rotary(fields: Fields, shared: dict[str, Any]) -> rope.Rope:
    return rope.parse(fields, shared["head_dim"] // 2 * 2 or 2, shared["context_length"])


def _biases(config: Config, positions: Any, dtype: DType) -> tuple[Any, Any]:
    """What is appended to the queries and keys of a step's tokens, of positions int32 [T]. To queries: [T, heads,
    biases], 1 where a query's own bias is. To keys: [T, kv_heads, biases], slope · position, padded with 0."""
    slopes = np.zeros((config.num_kv_heads, config.biases), np.float32)
    group = config.num_heads // config.num_kv_heads
    slopes[:, :group] = functional.generate_alibi_slopes(config.num_heads).reshape(-1, group)
    at = functional.view(functional.cast(positions, "bfloat16"), (positions.shape[0], 1, 1))
    product = functional.mul(*(functional.cast(x, "float32") for x in (at, functional.cast(slopes, "bfloat16"))))
    own = np.tile(np.eye(group, config.biases, dtype=dtype.numpy), (config.num_kv_heads, 1))[None]
    none = functional.mul(functional.cast(at, dtype), 0.0)
    return functional.add(none, own), functional.cast(functional.cast(product, "bfloat16"), dtype)


class BiasedHeads(Module):
    """Attention where each key has the biases of its query heads behind it, of which each query takes its own.

    score = (query · key + bias) / √head_dim. The values are as wide, and what stands behind them is dropped.
    """

    def __init__(self, config: Config, index: int, dtype: DType) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        self.biases = config.biases
        self.cache = State(StateSpec(dtype, heads=config.num_kv_heads, head_dim=config.cache_width), f"kv.{index}")

    def forward(self, query: Any, key: Any, value: Any, step: PagedStep, own: Any, biases: Any) -> Any:
        """As blocks.Heads, with what _biases gives."""
        tokens = query.shape[0]
        query = functional.view(query, (tokens, self.heads, self.head_dim))
        key, value = (functional.view(x, (tokens, self.kv_heads, self.head_dim)) for x in (key, value))
        query = functional.concat([query, own], 2)
        key, value = (functional.concat([x, biases], 2) for x in (key, value))
        cache = functional.kv_write(self.cache, key, value, step.slot)
        context = functional.paged_attention(
            query, cache, step.query_start, step.context_len, step.block_table, scale=self.head_dim**-0.5
        )
        context, _ = functional.split(context, [self.head_dim, self.biases], 2)
        return functional.view(context, (tokens, self.heads * self.head_dim))


class Attention(Module):
    """dense(attention(query_key_value(x)))"""

    def __init__(self, config: Config, index: int, dtype: DType) -> None:
        super().__init__()
        width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        self.query_key_value = Linear(config.hidden_size, width, config.bias, dtype)
        self.dense = Linear(config.hidden_size, config.hidden_size, config.bias, dtype)
        self.heads = BiasedHeads(config, index, dtype) if config.alibi else Heads(config, index, dtype)

    def forward(self, x: Any, step: PagedStep, *biases: Any) -> Any:
        """[T, hidden] → the same; each key and value head's outputs stand behind those of its queries"""
        heads = self.heads
        group = heads.heads // heads.kv_heads
        joint = functional.view(self.query_key_value(x), (x.shape[0], heads.kv_heads, group + 2, heads.head_dim))
        return self.dense(heads(*functional.split(joint, [group, 1, 1], 2), step, *biases))


class Layer(Module):
    """Attention and MLP, side by side or one after the other."""

    def __init__(self, config: Config, index: int, dtype: DType) -> None:
        super().__init__()
        self.parallel, self.norms = config.parallel, config.norms

        def norm() -> LayerNorm:
            return LayerNorm(config.hidden_size, config.norm_eps, dtype=dtype)

        self.input_layernorm = norm() if config.norms == 1 else None
        self.ln_attn = norm() if config.norms == 2 else None
        self.ln_mlp = norm() if config.norms == 2 else None
        self.post_attention_layernorm = None if config.parallel else norm()
        self.self_attention = Attention(config, index, dtype)
        self.mlp = Mlp(config, dtype, config.bias)

    def forward(self, x: Any, step: PagedStep, *biases: Any) -> Any:
        """[T, hidden] → the same"""
        if self.ln_attn is not None and self.ln_mlp is not None:
            attended, after = self.self_attention(self.ln_attn(x), step, *biases), self.ln_mlp(x)
            return functional.add(functional.add(self.mlp(after), attended), x)
        assert self.input_layernorm is not None
        normed = self.input_layernorm(x)
        attended = self.self_attention(normed, step, *biases)
        if self.post_attention_layernorm is None:
            return functional.add(functional.add(self.mlp(normed), attended), x)
        x = functional.add(attended, x)
        return functional.add(self.mlp(self.post_attention_layernorm(x)), x)


class Transformer(Module):
    """Table, layers and the last norm, under the names of the checkpoint."""

    def __init__(self, config: Config, dtype: DType) -> None:
        super().__init__()
        self.word_embeddings = Embedding(config.vocab_size, config.hidden_size, dtype)
        self.h = ModuleList(Layer(config, i, dtype) for i in range(config.num_layers))
        self.ln_f = LayerNorm(config.hidden_size, config.norm_eps, dtype=dtype)


class Falcon(LanguageModel):
    """The whole model."""

    def __init__(self, config: Config, dtype: DType, tied: bool) -> None:
        super().__init__(config)
        self.dtype = dtype
        self.transformer = Transformer(config, dtype)
        self.lm_head = OutputHead(config, dtype, self.transformer.word_embeddings if tied else None)

    def parts(self) -> Parts:
        """By their names."""
        body = self.transformer
        return Parts(body.word_embeddings, body.h, body.ln_f, self.lm_head)

    def hidden(self, token_ids: Any, positions: Any, step: PagedStep) -> Any:
        """Embeddings through the layers; with ALiBi, all of these take the same biases."""
        x = self.embed(token_ids, positions)
        biases = _biases(self.config, positions, self.dtype) if self.config.alibi else ()
        for layer in self.transformer.h:
            x = layer(x, step, *biases)
        return x


model = Falcon
