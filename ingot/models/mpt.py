"""MPT: ALiBi for positions, no bias anywhere; queries, keys and values may be held within a bound."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ingot import functional
from ingot.dtypes import DType
from ingot.frontends.fields import Fields
from ingot.models.blocks import CALLS, GptConfig, Heads, LanguageModel, OutputHead, Parts, sizes
from ingot.models.weights import Naming
from ingot.nn import Embedding, LayerNorm, Linear, Module, ModuleList, PagedStep

ARCHITECTURE = "MptForCausalLM"
ALSO = ("MPTForCausalLM",)  # as the publisher's own code names it, which has the same tensors
MODEL_TYPE = "mpt"
NAMING = Naming("transformer.wte.weight", "lm_head.weight", "transformer.")
# What training had switches for, and only published models' settings are supported.
_ONLY: dict[str, Any] = {"no_bias": True, "expansion_ratio": 4, "logit_scale": None}
_ONLY_IN_ATTENTION: dict[str, Any] = {
    "alibi": True,
    "alibi_bias_max": 8,  # of another value the publisher's code and transformers make different slopes
    "attn_type": "multihead_attention",
    "prefix_lm": False,
    "qk_ln": False,
    "rope": False,
    "sliding_window_size": -1,
}


@dataclass(frozen=True, kw_only=True)
class Config(GptConfig):
    """`clip`: queries, keys and values are held in −clip..clip. `scale`: of the scores, where not 1 / √head_dim."""

    clip: float | None
    scale: float | None


def config(fields: Fields) -> Config:
    """Reads config.json."""
    shared = sizes(
        fields, ARCHITECTURE, hidden="d_model", heads="n_heads", layers="n_layers", positions="max_seq_len",
        inner="", eps="layer_norm_epsilon", activation="", tied=True, default_activation="gelu",
    )  # fmt: skip  # MPT names no inner size and no activation
    attention = fields.nested("attn_config") or Fields({}, "attn_config.", fields.faults)
    _require(fields, _ONLY)
    fields.choice("norm_type", ("low_precision_layernorm", "layernorm"), "low_precision_layernorm")
    _require(attention, _ONLY_IN_ATTENTION)
    clip, scale = (attention.number(name, 0.0, 1e6, None) for name in ("clip_qkv", "softmax_scale"))
    return Config(**shared, clip=clip, scale=scale)


def _require(fields: Fields, only: dict[str, Any]) -> None:
    for name, value in only.items():
        if fields.has(name) and fields.values[name] != value:
            fields.fault(name, f"only {json.dumps(value)} is supported, not {str(fields.values[name])[:40]}")


class Attention(Module):
    """out_proj(attention(clip(Wqkv(x))))"""

    def __init__(self, config: Config, index: int, dtype: DType) -> None:
        super().__init__()
        self.clip = config.clip
        self.Wqkv = Linear(config.hidden_size, 3 * config.hidden_size, False, dtype)
        self.out_proj = Linear(config.hidden_size, config.hidden_size, False, dtype)
        slopes = functional.generate_alibi_slopes(config.num_heads)
        self.heads = Heads(config, index, dtype, slopes=slopes, scale=config.scale)

    def forward(self, x: Any, step: PagedStep) -> Any:
        """[T, hidden] → the same"""
        joint = self.Wqkv(x)
        if self.clip is not None:
            joint = functional.clip(joint, -self.clip, self.clip)
        return self.out_proj(self.heads(*functional.chunk(joint, 3, -1), step))


class Mlp(Module):
    """down_proj(act(up_proj(x)))"""

    def __init__(self, config: Config, dtype: DType) -> None:
        super().__init__()
        self.up_proj = Linear(config.hidden_size, config.intermediate_size, False, dtype)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, False, dtype)
        self.activation = CALLS[config.activation]

    def forward(self, x: Any) -> Any:
        """[T, hidden] → the same"""
        return self.down_proj(self.activation(self.up_proj(x)))


class Block(Module):
    """Attention and MLP, each behind its norm and added to what came in."""

    def __init__(self, config: Config, index: int, dtype: DType) -> None:
        super().__init__()
        self.norm_1 = _norm(config, dtype)
        self.attn = Attention(config, index, dtype)
        self.norm_2 = _norm(config, dtype)
        self.ffn = Mlp(config, dtype)

    def forward(self, x: Any, step: PagedStep) -> Any:
        """[T, hidden] → the same"""
        x = functional.add(x, self.attn(self.norm_1(x), step))
        return functional.add(x, self.ffn(self.norm_2(x)))


def _norm(config: Config, dtype: DType) -> LayerNorm:
    return LayerNorm(config.hidden_size, config.norm_eps, bias=False, dtype=dtype)


class Transformer(Module):
    """Table, blocks and the last norm, under the names of the checkpoint."""

    def __init__(self, config: Config, dtype: DType) -> None:
        super().__init__()
        self.wte = Embedding(config.vocab_size, config.hidden_size, dtype)
        self.blocks = ModuleList(Block(config, i, dtype) for i in range(config.num_layers))
        self.norm_f = _norm(config, dtype)


class Mpt(LanguageModel):
    """The whole model."""

    def __init__(self, config: Config, dtype: DType, tied: bool) -> None:
        super().__init__(config)
        self.transformer = Transformer(config, dtype)
        self.lm_head = OutputHead(config, dtype, self.transformer.wte if tied else None)

    def parts(self) -> Parts:
        """By their names."""
        body = self.transformer
        return Parts(body.wte, body.blocks, body.norm_f, self.lm_head)


model = Mpt
