"""StarCoder 2: a Llama-like layer with LayerNorm, a plain MLP, biases and a sliding window."""

from __future__ import annotations

from typing import Any

from ingot import functional
from ingot.dtypes import DType
from ingot.frontends.fields import Fields
from ingot.models.blocks import CALLS, LanguageModel, OutputHead, Parts
from ingot.models.config import DecoderConfig, common
from ingot.models.rope import MAX_POSITIONS
from ingot.models.weights import DECODER
from ingot.nn import Attention, Embedding, LayerNorm, Linear, Module, ModuleList, PagedStep

ARCHITECTURE = "Starcoder2ForCausalLM"
MODEL_TYPE = "starcoder2"
NAMING = DECODER


def config(fields: Fields) -> DecoderConfig:
    """Reads config.json."""
    shared = common(fields, ARCHITECTURE, activation="gelu_pytorch_tanh", norm_eps="norm_epsilon", tied=True)
    window = fields.integer("sliding_window", 1, MAX_POSITIONS, None)
    shared["windows"] = (window,) * shared["num_layers"]
    bias = fields.flag("use_bias", True)
    return DecoderConfig(**shared, qkv_bias=bias, output_bias=bias, mlp_bias=bias)


class Mlp(Module):
    """c_proj(act(c_fc(x)))"""

    def __init__(self, config: DecoderConfig, dtype: DType) -> None:
        super().__init__()
        self.c_fc = Linear(config.hidden_size, config.intermediate_size, config.mlp_bias, dtype)
        self.c_proj = Linear(config.intermediate_size, config.hidden_size, config.mlp_bias, dtype)
        self.activation = CALLS[config.activation]

    def forward(self, x: Any) -> Any:
        """[T, hidden] → the same"""
        return self.c_proj(self.activation(self.c_fc(x)))


class Layer(Module):
    """Attention and MLP, each behind its norm and added to what came in."""

    def __init__(self, config: DecoderConfig, index: int, dtype: DType) -> None:
        super().__init__()
        self.self_attn = Attention(
            config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim,
            config.qkv_bias, config.output_bias, dtype, window=config.windows[index], state_name=f"kv.{index}",
        )  # fmt: skip
        self.mlp = Mlp(config, dtype)
        self.input_layernorm = LayerNorm(config.hidden_size, config.norm_eps, dtype=dtype)
        self.post_attention_layernorm = LayerNorm(config.hidden_size, config.norm_eps, dtype=dtype)

    def forward(self, x: Any, step: PagedStep) -> Any:
        """[T, hidden] → the same"""
        x = functional.add(x, self.self_attn(self.input_layernorm(x), step))
        return functional.add(x, self.mlp(self.post_attention_layernorm(x)))


class Body(Module):
    """Table, layers and the last norm, under the names of the checkpoint."""

    def __init__(self, config: DecoderConfig, dtype: DType) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, dtype)
        self.layers = ModuleList(Layer(config, i, dtype) for i in range(config.num_layers))
        self.norm = LayerNorm(config.hidden_size, config.norm_eps, dtype=dtype)


class Starcoder2(LanguageModel):
    """The whole model."""

    def __init__(self, config: DecoderConfig, dtype: DType, tied: bool) -> None:
        super().__init__(config)
        self.model = Body(config, dtype)
        self.lm_head = OutputHead(config, dtype, self.model.embed_tokens if tied else None)

    def parts(self) -> Parts:
        """By their names."""
        body = self.model
        return Parts(body.embed_tokens, body.layers, body.norm, self.lm_head)


model = Starcoder2
