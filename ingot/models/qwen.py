"""Qwen 1: Llama with one product for queries, keys and values, which alone has a bias, and GPT-2's names."""

from __future__ import annotations

from functools import partial
from typing import Any

from ingot import functional
from ingot.dtypes import DType
from ingot.frontends.fields import Fields
from ingot.models import rope
from ingot.models.config import DecoderConfig, common
from ingot.models.decoder import CausalLM, FusedAttention, Names, norm
from ingot.models.weights import ROTARY, Ignored, Naming
from ingot.nn import Linear, Module, PagedStep

ARCHITECTURE = "QWenLMHeadModel"
MODEL_TYPE = "qwen"
NAMING = Naming(
    embedding="transformer.wte.weight",
    base="transformer.",
    ignored=(ROTARY, Ignored(r"(transformer\.)?h\.\d+\.attn\.masked_bias", "a constant, −10000")),
)
NAMES = {
    "max_position_embeddings": "seq_length",
    "head_dim": "kv_channels",
    "rope_theta": "rotary_emb_base",
    "partial_rotary_factor": "rotary_pct",
}


def config(fields: Fields) -> DecoderConfig:
    """Reads config.json.

    The context is `seq_length`: up to there use_dynamic_ntk and use_logn_attn, by which the published code goes
    further, change nothing. `intermediate_size` counts both halves of the MLP.
    """
    shared = common(fields.called(NAMES), ARCHITECTURE, norm_eps="layer_norm_epsilon", rotary=rope.parse)
    both = shared["intermediate_size"]
    if both % 2:
        fields.fault("intermediate_size", f"counts both halves of the MLP, so it must be even, not {both}")
    shared["intermediate_size"] = max(both // 2, 1)
    bias = not fields.flag("no_bias", True)
    return DecoderConfig(**shared, qkv_bias=True, output_bias=bias, mlp_bias=bias)


class Mlp(Module):
    """c_proj(w1(x) · silu(w2(x)))"""

    def __init__(self, config: DecoderConfig, dtype: DType) -> None:
        super().__init__()
        self.w1 = Linear(config.hidden_size, config.intermediate_size, config.mlp_bias, dtype)
        self.w2 = Linear(config.hidden_size, config.intermediate_size, config.mlp_bias, dtype)
        self.c_proj = Linear(config.intermediate_size, config.hidden_size, config.mlp_bias, dtype)

    def forward(self, x: Any) -> Any:
        """[T, hidden] → the same"""
        return self.c_proj(functional.mul(self.w1(x), functional.silu(self.w2(x))))


class Layer(Module):
    """Attention and MLP, each behind its norm and added to what came in."""

    def __init__(self, config: DecoderConfig, index: int, dtype: DType) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = norm(config, dtype), norm(config, dtype)
        self.attn = FusedAttention(config, index, dtype, ("c_attn", "c_proj"))
        self.mlp = Mlp(config, dtype)

    def forward(self, x: Any, step: PagedStep) -> Any:
        """[T, hidden] → the same"""
        x = functional.add(x, self.attn(self.ln_1(x), step))
        return functional.add(x, self.mlp(self.ln_2(x)))


model = partial(CausalLM, layer=Layer, names=Names(body="transformer", table="wte", layers="h", norm="ln_f"))
