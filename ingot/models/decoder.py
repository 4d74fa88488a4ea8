"""The decoder that all Llama-like families share: norm, attention, norm, gated MLP, with residuals.

Parameter names are those of the Hugging Face checkpoints. What differs between families in numbers is in their
DecoderConfig; a family whose layers differ in more brings a layer of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ingot import functional
from ingot.dims import Dim
from ingot.dtypes import DType
from ingot.ir import Network, Spec
from ingot.ir.interpret import bind
from ingot.models.blocks import CALLS, Heads, LanguageModel, OutputHead, Parts, angles
from ingot.models.config import DecoderConfig, LanguageConfig
from ingot.nn import Attention, Embedding, Linear, Module, ModuleList, PagedStep, RmsNorm

Array = np.ndarray[Any, Any]

MAX_STEP_TOKENS = 8192


def norm(config: DecoderConfig, dtype: DType, width: int | None = None) -> RmsNorm:
    """A norm of this model, of the hidden size unless another is given."""
    return RmsNorm(width or config.hidden_size, config.norm_eps, dtype=dtype, shift=config.norm_shift)


def attention(config: DecoderConfig, index: int, dtype: DType) -> Attention:
    """Attention with a product each for queries, keys and values."""
    scale = 1.0 if config.score_scale is None else 1.0 / (config.score_scale * config.head_dim**0.5)
    made = Attention(
        config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim,
        config.qkv_bias, config.output_bias, dtype, q_scaling=scale, window=config.windows[index],
        softcap=config.score_cap, state_name=f"kv.{index}",
    )  # fmt: skip
    if config.qk_norm:
        made.q_norm, made.k_norm = (norm(config, dtype, config.head_dim) for _ in range(2))
    return made


class FusedAttention(Module):
    """Attention with one product for queries, keys and values.

    Args:
        names: what the checkpoint calls that product and the one behind attention.
        split: the product's result [T, (heads + 2 · kv_heads) · head_dim] as queries, keys and values; default: one
            after the other.
        style: which elements are a rotary pair (functional.rope).
        slopes: float32 [heads], by which scores fall with distance (ALiBi).
    """

    def __init__(
        self, config: DecoderConfig, index: int, dtype: DType, names: tuple[str, str], *,
        split: Callable[[DecoderConfig, Any], tuple[Any, Any, Any]] | None = None, style: str = "half",
        slopes: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.config, self.names, self.split = config, names, split or consecutive
        inner, keys = (count * config.head_dim for count in (config.num_heads, config.num_kv_heads))
        setattr(self, names[0], Linear(config.hidden_size, inner + 2 * keys, config.qkv_bias, dtype))
        setattr(self, names[1], Linear(inner, config.hidden_size, config.output_bias, dtype))
        self.heads = Heads(config, index, dtype, style, slopes=slopes)

    def forward(self, x: Any, step: PagedStep) -> Any:
        """[T, hidden] → the same; the cache gains this step's keys and values."""
        product, output = (getattr(self, name) for name in self.names)
        return output(self.heads(*self.split(self.config, product(x)), step))


def consecutive(config: DecoderConfig, fused: Any) -> tuple[Any, Any, Any]:
    """All queries, then all keys, then all values."""
    width = config.num_kv_heads * config.head_dim
    query, key, value = functional.split(fused, [config.num_heads * config.head_dim, width, width], 1)
    return query, key, value


class DecoderMLP(Module):
    """down_proj(act(gate_proj(x)) · up_proj(x)); `inner` is the width between, by default the model's."""

    def __init__(self, config: DecoderConfig, dtype: DType, inner: int | None = None) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, inner or config.intermediate_size, config.mlp_bias
        self.activation = CALLS[config.activation]
        self.gate_proj = Linear(hidden, inner, bias, dtype)
        self.up_proj = Linear(hidden, inner, bias, dtype)
        self.down_proj = Linear(inner, hidden, bias, dtype)

    def forward(self, x: Any) -> Any:
        """[T, hidden] → the same"""
        return self.down_proj(functional.mul(self.activation(self.gate_proj(x)), self.up_proj(x)))


class DecoderLayer(Module):
    """Attention and MLP, each behind its norm and added to what came in.

    Args:
        attend: makes the attention from (config, index, dtype).
        mlp: makes the MLP from (config, dtype).
    """

    def __init__(
        self, config: DecoderConfig, index: int, dtype: DType,
        attend: Callable[[Any, int, DType], Module] = attention, mlp: Callable[[Any, DType], Module] = DecoderMLP,
    ) -> None:  # fmt: skip
        super().__init__()
        self.self_attn = attend(config, index, dtype)
        self.mlp = mlp(config, dtype)
        self.input_layernorm = norm(config, dtype)
        self.post_attention_layernorm = norm(config, dtype)

    def forward(self, x: Any, step: PagedStep) -> Any:
        """[T, hidden] → the same"""
        x = functional.add(x, self.self_attn(self.input_layernorm(x), step))
        return functional.add(x, self.mlp(self.post_attention_layernorm(x)))


class Decoder(LanguageModel):
    """A Llama-like decoder, whatever its tensors are called."""

    config: DecoderConfig

    def embed(self, token_ids: Any, positions: Any) -> Any:
        """Of tokens, scaled."""
        x, scale = super().embed(token_ids, positions), self.config.embedding_scale
        if scale == 1.0:
            return x
        # In the model's dtype, as in training: 55.5 for sqrt(3072) in bfloat16.
        return functional.mul(x, float(np.asarray(scale).astype(x.dtype.numpy)))

    def hidden(self, token_ids: Any, positions: Any, step: PagedStep) -> Any:
        """Embeddings through the layers; those with a window may have a rotary embedding of their own."""
        windowed, local = step, self.config.local_rope
        if local is not None:
            windowed = PagedStep(*angles(local, positions), *step[2:])
        x = self.embed(token_ids, positions)
        for layer, window in zip(self.parts().layers, self.config.windows, strict=True):
            x = layer(x, step if window is None else windowed)
        return x


class Names(NamedTuple):
    """What a family's checkpoints call the parts of a model."""

    body: str = "model"
    table: str = "embed_tokens"
    layers: str = "layers"
    norm: str = "norm"
    head: str = "lm_head"


LLAMA = Names()


class Body(Module):
    """Whatever stands in a checkpoint under one name."""

    def __init__(self, **parts: Module) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


class CausalLM(Decoder):
    """A decoder with a head.

    Args:
        config: the model.
        dtype: of weights, activations and cache.
        tied: whether the head is the embedding table.
        layer: makes a layer from (config, index, dtype).
        names: of the parts.
    """

    def __init__(
        self, config: DecoderConfig, dtype: DType, tied: bool,
        layer: Callable[[Any, int, DType], Module] = DecoderLayer, names: Names = LLAMA,
    ) -> None:  # fmt: skip
        super().__init__(config)
        self.names = names
        table = Embedding(config.vocab_size, config.hidden_size, dtype)
        layers = ModuleList(layer(config, i, dtype) for i in range(config.num_layers))
        setattr(self, names.body, Body(**{names.table: table, names.layers: layers, names.norm: norm(config, dtype)}))
        head = None
        if not config.headless:
            head = OutputHead(config, dtype, table if tied else None, cap=config.logit_cap)
        setattr(self, names.head, head)

    def parts(self) -> Parts:
        """By their names."""
        names, body = self.names, getattr(self, self.names.body)
        table, layers, last = (getattr(body, name) for name in (names.table, names.layers, names.norm))
        return Parts(table, layers, last, getattr(self, names.head))


def input_specs(config: LanguageConfig) -> dict[str, Spec]:
    """The step's inputs: T tokens of B requests, N cache blocks at most per request, R rows whose logits are wanted and
    E whose hidden states are.

    `long_rope` is there for models with two rotary tables: not 0 for the tokens of requests that outgrew the first.
    """
    tokens = Dim("T", 1, 1, MAX_STEP_TOKENS)
    requests = Dim("B", 1, 1, MAX_STEP_TOKENS)
    blocks = Dim("N", 1, None, config.context_length)
    rows, states = Dim("R", 0, 1, MAX_STEP_TOKENS), Dim("E", 0, 1, MAX_STEP_TOKENS)
    choice = {"long_rope": Spec((tokens,), "int32")} if config.short_length is not None else {}
    return {
        "token_ids": Spec((tokens,), "int32"),
        "positions": Spec((tokens,), "int32"),
        "query_start": Spec((requests + 1,), "int32"),
        "context_len": Spec((requests,), "int32"),
        "block_table": Spec((requests, blocks), "int32"),
        "slot": Spec((tokens,), "int32"),
        "logit_rows": Spec((rows,), "int32"),
        "hidden_rows": Spec((states,), "int32"),
        **choice,
    }


def example_step(network: Network, rng: np.random.Generator, tokens: int, block: int) -> dict[str, Array]:
    """A step of one request: so many tokens from an empty context, in cache blocks of that size.

    Raises InputError for a network of fewer tokens.
    """
    table = next((n.inputs[1] for n in network.nodes if n.op.name == "embedding"), None)
    vocabulary: Any = table.shape[0] if table is not None else 2
    rows = np.arange(tokens)
    step = {
        "token_ids": rng.integers(0, vocabulary, tokens),
        "positions": rows,
        "query_start": np.array([0, tokens]),
        "context_len": np.array([tokens]),
        "block_table": np.arange(-(-tokens // block))[None],
        "slot": rows,
        "logit_rows": rows,
        "hidden_rows": rows,
        "long_rope": np.zeros(tokens),
    }
    names = {v.name for v in network.inputs}
    arrays = {name: a.astype(np.int32) for name, a in step.items() if name in names}
    bind(network, {name: a.shape for name, a in arrays.items()})  # a network of fewer tokens says so here
    return arrays
