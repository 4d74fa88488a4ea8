"""GPT-2: learned positions, LayerNorm before each half of a layer, one product for queries, keys and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ingot import functional
from ingot.dtypes import DType
from ingot.frontends.fields import Fields
from ingot.models.blocks import CALLS, Conv1D, GptConfig, Heads, LanguageModel, OutputHead, Parts, sizes
from ingot.models.weights import Ignored, Naming
from ingot.nn import Embedding, LayerNorm, Module, ModuleList, PagedStep

ARCHITECTURE = "GPT2LMHeadModel"
MODEL_TYPE = "gpt2"
MASKS = Ignored(r"(.*\.)?attn\.(masked_)?bias", "the causal mask, which is not a weight")
NAMING = Naming("transformer.wte.weight", "lm_head.weight", "transformer.", (MASKS,))


def config(fields: Fields) -> GptConfig:
    """Reads config.json."""
    shared = sizes(
        fields, ARCHITECTURE, hidden="n_embd", heads="n_head", layers="n_layer", positions="n_positions",
        inner="n_inner", eps="layer_norm_epsilon", activation="activation_function", tied=True,
    )  # fmt: skip
    for name, only in (("scale_attn_weights", True), ("scale_attn_by_inverse_layer_idx", False)):
        if fields.flag(name, only) is not only:
            fields.fault(name, f"only {str(only).lower()} is supported")
    return GptConfig(**shared)


class Attention(Module):
    """c_proj(attention(c_attn(x)))"""

    def __init__(self, config: GptConfig, index: int, dtype: DType) -> None:
        super().__init__()
        self.c_attn = Conv1D(config.hidden_size, 3 * config.hidden_size, dtype)
        self.c_proj = Conv1D(config.hidden_size, config.hidden_size, dtype)
        self.heads = Heads(config, index, dtype)

    def forward(self, x: Any, step: PagedStep) -> Any:
        """[T, hidden] → the same"""
        return self.c_proj(self.heads(*functional.chunk(self.c_attn(x), 3, -1), step))


class Mlp(Module):
    """c_proj(act(c_fc(x)))"""

    def __init__(self, config: GptConfig, dtype: DType) -> None:
        super().__init__()
        self.c_fc = Conv1D(config.hidden_size, config.intermediate_size, dtype)
        self.c_proj = Conv1D(config.intermediate_size, config.hidden_size, dtype)
        self.activation = CALLS[config.activation]

    def forward(self, x: Any) -> Any:
        """[T, hidden] → the same"""
        return self.c_proj(self.activation(self.c_fc(x)))


class Layer(Module):
    """Attention and MLP, each behind its norm and added to what came in."""

    def __init__(self, config: GptConfig, dtype: DType, attention: Module, mlp: Module) -> None:
        super().__init__()
        self.ln_1 = LayerNorm(config.hidden_size, config.norm_eps, dtype=dtype)
        self.attn = attention
        self.ln_2 = LayerNorm(config.hidden_size, config.norm_eps, dtype=dtype)
        self.mlp = mlp

    def forward(self, x: Any, step: PagedStep) -> Any:
        """[T, hidden] → the same"""
        x = functional.add(x, self.attn(self.ln_1(x), step))
        return functional.add(x, self.mlp(self.ln_2(x)))


MakeLayer = Callable[[GptConfig, int, DType], Layer]


def _layer(config: GptConfig, index: int, dtype: DType) -> Layer:
    return Layer(config, dtype, Attention(config, index, dtype), Mlp(config, dtype))


class Transformer(Module):
    """Tables, layers and the last norm, under the names of the checkpoint."""

    def __init__(self, config: GptConfig, dtype: DType, layer: MakeLayer) -> None:
        super().__init__()
        self.wte = Embedding(config.vocab_size, config.hidden_size, dtype)
        self.wpe = Embedding(config.context_length, config.hidden_size, dtype)
        self.h = ModuleList(layer(config, i, dtype) for i in range(config.num_layers))
        self.ln_f = LayerNorm(config.hidden_size, config.norm_eps, dtype=dtype)


class Gpt2(LanguageModel):
    """The whole model; `layer` makes what StarCoder does differently."""

    def __init__(self, config: GptConfig, dtype: DType, tied: bool, layer: MakeLayer = _layer) -> None:
        super().__init__(config)
        self.transformer = Transformer(config, dtype, layer)
        self.lm_head = OutputHead(config, dtype, self.transformer.wte if tied else None)

    def parts(self) -> Parts:
        """By their names."""
        body = self.transformer
        return Parts(body.wte, body.h, body.ln_f, self.lm_head)

    def embed(self, token_ids: Any, positions: Any) -> Any:
        """Of tokens and positions."""
        return functional.add(self.transformer.wte(token_ids), self.transformer.wpe(positions))


model = Gpt2
