"""GPT-NeoX and Pythia: attention and MLP side by side, each behind its own norm; part of every head turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ingot import functional
from ingot.dtypes import DType
from ingot.frontends.fields import Fields
from ingot.models import rope
from ingot.models.blocks import CALLS, GptConfig, Heads, LanguageModel, OutputHead, Parts, sizes
from ingot.models.weights import ROTARY, Ignored, Naming
from ingot.nn import Embedding, LayerNorm, Linear, Module, ModuleList, PagedStep

ARCHITECTURE = "GPTNeoXForCausalLM"
MODEL_TYPE = "gpt_neox"
MASKS = Ignored(r"(.*\.)?attention\.(masked_)?bias", "the causal mask, which is not a weight")
NAMING = Naming("gpt_neox.embed_in.weight", "embed_out.weight", "gpt_neox.", (MASKS, ROTARY))


@dataclass(frozen=True, kw_only=True)
class Config(GptConfig):
    """`parallel`: whether attention and MLP read the same x."""

    parallel: bool
    bias: bool


def config(fields: Fields) -> Config:
    """Reads config.json."""
    shared = sizes(
        fields, ARCHITECTURE, hidden="hidden_size", heads="num_attention_heads", layers="num_hidden_layers",
        positions="max_position_embeddings", inner="intermediate_size", eps="layer_norm_eps", activation="hidden_act",
        tied=False,
    )  # fmt: skip
    embedding = rope.parse(fields, shared["head_dim"], shared["context_length"], share=0.25)
    shared["context_length"] = embedding.positions
    parallel, bias = fields.flag("use_parallel_residual", True), fields.flag("attention_bias", True)
    return Config(**shared, rope=embedding, parallel=parallel, bias=bias)


class Attention(Module):
    """dense(attention(query_key_value(x))); the joint product's outputs are grouped by head."""

    def __init__(self, config: Config, index: int, dtype: DType) -> None:
        super().__init__()
        self.query_key_value = Linear(config.hidden_size, 3 * config.hidden_size, config.bias, dtype)
        self.dense = Linear(config.hidden_size, config.hidden_size, config.bias, dtype)
        self.heads = Heads(config, index, dtype)

    def forward(self, x: Any, step: PagedStep) -> Any:
        """[T, hidden] → the same"""
        heads = self.heads
        joint = functional.view(self.query_key_value(x), (x.shape[0], heads.heads, 3 * heads.head_dim))
        return self.dense(heads(*functional.chunk(joint, 3, -1), step))


class Mlp(Module):
    """dense_4h_to_h(act(dense_h_to_4h(x)))"""

    def __init__(self, config: GptConfig, dtype: DType, bias: bool = True) -> None:
        super().__init__()
        self.dense_h_to_4h = Linear(config.hidden_size, config.intermediate_size, bias, dtype)
        self.dense_4h_to_h = Linear(config.intermediate_size, config.hidden_size, bias, dtype)
        self.activation = CALLS[config.activation]

    def forward(self, x: Any) -> Any:
        """[T, hidden] → the same"""
        return self.dense_4h_to_h(self.activation(self.dense_h_to_4h(x)))


class Layer(Module):
    """Attention and MLP, side by side or one after the other."""

    def __init__(self, config: Config, index: int, dtype: DType) -> None:
        super().__init__()
        self.parallel = config.parallel
        self.input_layernorm = LayerNorm(config.hidden_size, config.norm_eps, dtype=dtype)
        self.post_attention_layernorm = LayerNorm(config.hidden_size, config.norm_eps, dtype=dtype)
        self.attention = Attention(config, index, dtype)
        self.mlp = Mlp(config, dtype)

    def forward(self, x: Any, step: PagedStep) -> Any:
        """[T, hidden] → the same"""
        attended = self.attention(self.input_layernorm(x), step)
        if self.parallel:
            return functional.add(functional.add(self.mlp(self.post_attention_layernorm(x)), attended), x)
        x = functional.add(attended, x)
        return functional.add(self.mlp(self.post_attention_layernorm(x)), x)


class Body(Module):
    """Table, layers and the last norm, under the names of the checkpoint."""

    def __init__(self, config: Config, dtype: DType) -> None:
        super().__init__()
        self.embed_in = Embedding(config.vocab_size, config.hidden_size, dtype)
        self.layers = ModuleList(Layer(config, i, dtype) for i in range(config.num_layers))
        self.final_layer_norm = LayerNorm(config.hidden_size, config.norm_eps, dtype=dtype)


class GptNeoX(LanguageModel):
    """The whole model."""

    def __init__(self, config: Config, dtype: DType, tied: bool) -> None:
        super().__init__(config)
        self.gpt_neox = Body(config, dtype)
        self.embed_out = OutputHead(config, dtype, self.gpt_neox.embed_in if tied else None)

    def parts(self) -> Parts:
        """By their names."""
        body = self.gpt_neox
        return Parts(body.embed_in, body.layers, body.final_layer_norm, self.embed_out)


model = GptNeoX
