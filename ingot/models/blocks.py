"""What language models share: the frame of a step, attention through the cache, the head, and numbers of GPT-like ones.

Parameter names are those of the Hugging Face checkpoints, so every family writes its own layers, with these inside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ingot import dtypes, functional
from ingot.dtypes import DType
from ingot.frontends.fields import Fields
from ingot.ir import F, StateSpec
from ingot.models import rope
from ingot.models.config import ACTIVATIONS, LanguageConfig, token_id, token_ids, weights_dtype
from ingot.nn import Embedding, Linear, Module, ModuleList, PagedStep, Parameter, RmsNorm, State

Layer = Callable[[Any], Any]
CALLS: dict[str, Layer] = {
    "silu": functional.silu,
    "gelu": partial(functional.gelu, approximate="none"),
    "gelu_tanh": functional.gelu,
    "relu": functional.relu,
}


@dataclass(frozen=True, kw_only=True)
class GptConfig(LanguageConfig):
    """What GPT-like families have in common."""

    intermediate_size: int
    norm_eps: float
    activation: str


def sizes(
    fields: Fields, architecture: str, *, hidden: str, heads: str, layers: str, positions: str, inner: str,
    eps: str, activation: str, tied: bool, default_activation: str | None = None, default_positions: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The arguments of GptConfig but `rope`, from fields of these names. Without a default a field is required."""
    call = [] if default_activation is None else [default_activation]
    reach = [] if default_positions is None else [default_positions]
    width = fields.integer(hidden, 1, 1 << 20)
    head_count = fields.integer(heads, 1, 1 << 16)
    layer_count = fields.integer(layers, 1, 1_000)
    if width % head_count:
        fields.fault(hidden, f"must be a multiple of {heads} {head_count}")
    elif width // head_count % 2:
        fields.fault(hidden, f"gives heads of {width // head_count} elements, and only even numbers are supported")
    return {
        "architecture": architecture,
        "model_type": str(fields.values.get("model_type") or ""),
        "vocab_size": fields.integer("vocab_size", 1, 1 << 24),
        "hidden_size": width,
        "intermediate_size": fields.integer(inner, 1, 1 << 24, 4 * width),
        "num_layers": layer_count,
        "num_heads": head_count,
        "num_kv_heads": head_count,
        "head_dim": max(width // head_count, 1),
        "context_length": fields.integer(positions, 1, rope.MAX_POSITIONS, *reach),
        "norm_eps": fields.number(eps, 0.0, 1.0, 1e-5),
        "activation": ACTIVATIONS[fields.choice(activation, ACTIVATIONS, *call)],
        "dtype": weights_dtype(fields),
        "tied": fields.flag("tie_word_embeddings", tied),
        "windows": (None,) * layer_count,
        "bos_token_id": token_id(fields, "bos_token_id"),
        "eos_token_ids": token_ids(fields, "eos_token_id"),
    }


def angles(embedding: rope.Rope | None, positions: Any, long_rope: Any = None) -> tuple[Any, Any]:
    """cos and sin of a step's tokens. long_rope: int32 [T], not 0 for tokens that turn by the long frequencies."""
    if embedding is None:
        return None, None
    cos, sin = functional.rope_table(positions, embedding.inv_freq, scale=embedding.scale)
    if embedding.long_inv_freq is None:
        return cos, sin
    long = functional.ne(functional.unsqueeze(long_rope, 1), 0)
    others = functional.rope_table(positions, embedding.long_inv_freq, scale=embedding.scale)
    return functional.where(long, others[0], cos), functional.where(long, others[1], sin)


def as_float32(x: Any) -> Any:
    """x in float32: no cast where it is, for a model's precision is final when it is recorded."""
    return x if x.dtype is dtypes.float32 else functional.cast(x, "float32")


def results(states: Any, logit_rows: Any, hidden_rows: Any, last: Layer, head: Layer | None) -> dict[str, Any]:
    """What a step gives of its tokens' states [T, hidden]; a row of −1 is one of zeros, and goes the same way.

    Args:
        last: the last norm, and whatever else stands before the head.

    Returns logits float32 [R, vocabulary] if there is a head, and hidden float32 [E, hidden], what it would get of
    those rows.
    """
    hidden = as_float32(last(F.take(states, hidden_rows, axis=0)))
    if head is None:
        return {"hidden": hidden}
    return {"logits": head(last(F.take(states, logit_rows, axis=0))), "hidden": hidden}


class Parts(NamedTuple):
    """What a model consists of, by whatever names the checkpoint has for it.

    table: the embedding of tokens. last: the last norm, and whatever else stands before the head. head: gives float32
    [R, vocabulary]; None for a model of hidden states only.
    """

    table: Layer
    layers: ModuleList
    last: Layer
    head: Layer | None


class LanguageModel(Module):
    """What all language models do with a step; a family makes the modules, and says in `parts` which they are."""

    def __init__(self, config: LanguageConfig) -> None:
        super().__init__()
        self.config: Any = config

    def forward(
        self, token_ids: Any, positions: Any, query_start: Any, context_len: Any, block_table: Any, slot: Any,
        logit_rows: Any, hidden_rows: Any, long_rope: Any = None,
    ) -> dict[str, Any]:  # fmt: skip
        """One step; see decoder.input_specs and results. A row of −1 gives zeros."""
        turned = angles(self.config.rope, positions, long_rope)
        states = self.hidden(token_ids, positions, PagedStep(*turned, query_start, context_len, block_table, slot))
        last, head = self.parts()[2:]
        found = results(states, logit_rows, hidden_rows, last, head)
        if isinstance(last, RmsNorm):
            return found
        wanted = functional.unsqueeze(functional.ge(hidden_rows, 0), 1)  # of zeros, a LayerNorm makes its bias
        return found | {"hidden": functional.where(wanted, found["hidden"], 0.0)}

    def parts(self) -> Parts:
        """The modules of this family."""
        raise NotImplementedError

    def embed(self, token_ids: Any, positions: Any) -> Any:
        """int32 [T], int32 [T] → [T, hidden], what the first layer reads"""
        return self.parts().table(token_ids)

    def hidden(self, token_ids: Any, positions: Any, step: PagedStep) -> Any:
        """int32 [T], int32 [T] → [T, hidden], before the last norm"""
        x = self.embed(token_ids, positions)
        for layer in self.parts().layers:
            x = layer(x, step)
        return x


class Conv1D(Module):
    """GPT-2's linear layer: its weight is [in, out]."""

    def __init__(self, in_features: int, out_features: int, dtype: DType) -> None:
        super().__init__()
        self.weight = Parameter(shape=(in_features, out_features), dtype=dtype)
        self.bias = Parameter(shape=(out_features,), dtype=dtype)

    def forward(self, x: Any) -> Any:
        """[T, in] → [T, out]"""
        return functional.add(functional.matmul(x, self.weight), self.bias)


class Heads(Module):
    """Attention between the projections: queries, keys and values of a step's tokens, through the cache.

    Args:
        index: of the layer; names the cache.
        style: which elements are a rotary pair (functional.rope).
        slopes: of ALiBi, one for each query head.
        scale: of the scores; default 1 / √head_dim.
    """

    def __init__(
        self, config: LanguageConfig, index: int, dtype: DType, style: str = "half", *,
        slopes: np.ndarray | None = None, scale: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        self.scale = config.head_dim**-0.5 if scale is None else scale
        self.window, self.style, self.slopes = config.windows[index], style, slopes
        self.cache = State(StateSpec(dtype, heads=config.num_kv_heads, head_dim=config.head_dim), f"kv.{index}")

    def forward(self, query: Any, key: Any, value: Any, step: PagedStep) -> Any:
        """[T, heads · D], [T, kv_heads · D] twice, or the same split into heads → [T, heads · D]"""
        tokens = query.shape[0]
        query = functional.view(query, (tokens, self.heads, self.head_dim))
        key, value = (functional.view(x, (tokens, self.kv_heads, self.head_dim)) for x in (key, value))
        if step.cos is not None:
            query = functional.rope(query, step.cos, step.sin, style=self.style)
            key = functional.rope(key, step.cos, step.sin, style=self.style)
        cache = functional.kv_write(self.cache, key, value, step.slot)
        context = functional.paged_attention(
            query, cache, step.query_start, step.context_len, step.block_table, self.slopes,
            scale=self.scale, window=self.window,
        )  # fmt: skip
        return functional.view(context, (tokens, self.heads * self.head_dim))


class OutputHead(Linear):
    """The last layer: logits in float32, straight from the accumulator; a bias is added to those.

    Args:
        tied_to: the embedding table, where its weight is the head's too.
        width: of what comes in; default the hidden size.
        cap: logits are bent to cap · tanh(logits / cap).
    """

    def __init__(
        self, config: LanguageConfig, dtype: DType, tied_to: Embedding | None, *, bias: bool = False,
        width: int | None = None, cap: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(width or config.hidden_size, config.vocab_size, bias, dtype, output_dtype="float32")
        self.cap = cap
        if tied_to is not None:
            self.weight = tied_to.weight

    def forward(self, x: Any) -> Any:
        """[R, hidden] → float32 [R, vocabulary]"""
        logits = functional.linear(x, self.weight, output_dtype="float32")
        logits = logits if self.bias is None else functional.add(logits, as_float32(self.bias))
        if self.cap is None:
            return logits
        return functional.mul(functional.tanh(functional.mul(logits, 1.0 / self.cap)), self.cap)
