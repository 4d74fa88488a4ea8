"""The numbers of a decoder-only model, read from config.json and checked before anything is built from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ingot import dtypes
from ingot.dtypes import DType
from ingot.frontends.fields import Fields
from ingot.models import rope
from ingot.models.rope import Rope
from ingot.words import PRECISIONS

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


@dataclass(frozen=True, kw_only=True)
class LanguageConfig:
    """What every language model has, and the runtime has to know."""

    architecture: str
    model_type: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int
    dtype: DType | None  # what config.json says the weights are
    tied: bool  # the output head is the embedding table
    windows: tuple[int | None, ...]  # per layer: how many tokens back attention sees; None: all
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    rope: Rope | None = None  # None where no layer rotates
    left_out: tuple[str, ...] = ()  # parts of the checkpoint that are not used, in words for the user
    headless: bool = False  # it gives hidden states only
    unit_rows: tuple[str, ...] = ()  # parameters whose rows are brought to length 1 when they are read

    @property
    def cache_width(self) -> int:
        """Elements of a key, and of a value, in the cache."""
        return self.head_dim

    @property
    def short_length(self) -> int | None:
        """The most tokens of a request that turns by its first table; longer ones by the second. None: there is one."""
        return None if self.rope is None else self.rope.short_length


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(LanguageConfig):
    """Everything the Llama-like decoder needs to know; each family fills in what it does differently.

    `local_rope`, where given, is the rotary embedding of the layers with a window.
    `norm_shift` is added to the weights of all norms. `embedding_scale` multiplies what the table gives.
    `score_scale` multiplies the scores instead of head_dim ** -0.5; `score_cap` and `logit_cap` bend scores and logits
    to cap · tanh(x / cap).
    """

    intermediate_size: int
    norm_eps: float
    activation: str
    local_rope: Rope | None = None
    norm_shift: float = 0.0
    embedding_scale: float = 1.0
    score_scale: float | None = None
    score_cap: float | None = None
    logit_cap: float | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False


def common(
    fields: Fields, architecture: str, *, default_head_dim: int | None = None, activation: str = "silu",
    norm_eps: str = "rms_norm_eps", tied: bool = False,
    rotary: Callable[[Fields, int, int], Rope] | None = rope.parse,
) -> dict[str, Any]:  # fmt: skip
    """The arguments of DecoderConfig that all families read alike, from names that transformers gives them.

    Args:
        fields: config.json; a family with names of its own passes fields.called({usual: own}).
        default_head_dim, activation, norm_eps, tied: what an absent field means; norm_eps is the field's name.
        rotary: reads the rotary embedding from (fields, head_dim, positions); None: the family has none.
    """
    hidden = fields.integer("hidden_size", 1, 1 << 20)
    heads = fields.integer("num_attention_heads", 1, 1 << 16)
    kv_heads = fields.integer("num_key_value_heads", 1, 1 << 16, heads)
    layers = fields.integer("num_hidden_layers", 1, 1_000)
    positions = fields.integer("max_position_embeddings", 1, rope.MAX_POSITIONS)
    vocab = fields.integer("vocab_size", 1, 1 << 24)
    if kv_heads > heads or heads % kv_heads:
        fields.fault("num_key_value_heads", f"must divide num_attention_heads {heads}, but is {kv_heads}")
    if not fields.has("head_dim") and default_head_dim is None and hidden % heads:
        fields.fault("hidden_size", f"must be a multiple of num_attention_heads {heads}, as there is no head_dim")
    head_dim = fields.integer("head_dim", 2, 1024, default_head_dim or max(hidden // heads, 2))
    if head_dim % 2:
        fields.fault("head_dim", f"must be even for rotary embeddings, but is {head_dim}")
        head_dim += 1
    embedding = None if rotary is None else rotary(fields, head_dim, positions)
    return {
        "architecture": architecture,
        "model_type": str(fields.values.get("model_type") or ""),
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": fields.integer("intermediate_size", 1, 1 << 24),
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "context_length": positions if embedding is None else embedding.positions,
        "norm_eps": fields.number(norm_eps, 0.0, 1.0, 1e-6 if norm_eps == "rms_norm_eps" else 1e-5),
        "activation": ACTIVATIONS[fields.choice("hidden_act", ACTIVATIONS, activation)],
        "rope": embedding,
        "dtype": weights_dtype(fields),
        "tied": fields.flag("tie_word_embeddings", tied),
        "windows": (None,) * layers,
        "bos_token_id": token_id(fields, "bos_token_id"),
        "eos_token_ids": token_ids(fields, "eos_token_id"),
    }


def typed_windows(
    fields: Fields, layers: int, window: int | None, default: Callable[[int], bool]
) -> tuple[int | None, ...]:
    """Windows by `layer_types`; without it, layer i has one where default(i) says so."""
    types = fields.values.get("layer_types")
    if types is None:
        return tuple(window if default(i) else None for i in range(layers))
    known = {"full_attention": None} | ({} if window is None else {"sliding_attention": window})
    if not isinstance(types, list) or len(types) != layers or not all(isinstance(t, str) and t in known for t in types):
        fields.fault("layer_types", f"must name one of {', '.join(known)} for each of {layers} layers")
        return (None,) * layers
    return tuple(known[t] for t in types)


def layer_windows(fields: Fields, layers: int) -> tuple[int | None, ...]:
    """Qwen's choice per layer: `layer_types` where given, else the layers from max_window_layers on slide."""
    slides = fields.flag("use_sliding_window", False)
    window = fields.integer("sliding_window", 1, rope.MAX_POSITIONS, 4096) if slides else None
    first = fields.integer("max_window_layers", 0, 1_000_000, 28)
    return typed_windows(fields, layers, window, lambda i: i >= first)


def token_ids(fields: Fields, key: str) -> tuple[int, ...]:
    """One id or a list of them; absent is none."""
    value = fields.values.get(key)
    found = [] if value is None else value if isinstance(value, list) else [value]
    for one in found:
        if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one < 1 << 31:
            fields.fault(key, f"must be token ids, not {str(value)[:60]}")
            return ()
    return tuple(found)


def token_id(fields: Fields, key: str) -> int | None:
    """One id, or None; of a list the first."""
    found = token_ids(fields, key)
    return found[0] if found else None


def weights_dtype(fields: Fields) -> DType | None:
    """`dtype`, which transformers before version 5 called `torch_dtype`."""
    key = "dtype" if fields.has("dtype") else "torch_dtype"
    if not fields.has(key) or fields.values[key] == "auto":
        return None
    value = fields.values[key]
    if isinstance(value, str) and value.startswith("torch."):
        value = value.removeprefix("torch.")
    if value not in PRECISIONS:
        fields.fault(key, f"{str(value)[:40]!r} is not one of {', '.join(PRECISIONS)}; convert the checkpoint")
        return None
    return dtypes.get(value)
