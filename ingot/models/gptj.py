"""GPT-J: one norm before attention and MLP, which stand side by side; rotary pairs are neighbours."""

from __future__ import annotations

from typing import Any

from ingot import functional
from ingot.dtypes import DType
from ingot.frontends.fields import Fields
from ingot.models import rope
from ingot.models.blocks import CALLS, GptConfig, Heads, LanguageModel, OutputHead, Parts, sizes
from ingot.models.gpt2 import MASKS
from ingot.models.weights import Ignored, Naming
from ingot.nn import Embedding, LayerNorm, Linear, Module, ModuleList, PagedStep

ARCHITECTURE = "GPTJForCausalLM"
MODEL_TYPE = "gptj"
TABLES = Ignored(r"(.*\.)?attn\.embed_positions", "the rotary table, which follows from config.json")
NAMING = Naming("transformer.wte.weight", "lm_head.weight", "transformer.", (MASKS, TABLES))


def config(fields: Fields) -> GptConfig:
    """Reads config.json."""
    shared = sizes(
        fields, ARCHITECTURE, hidden="n_embd", heads="n_head", layers="n_layer", positions="n_positions",
        inner="n_inner", eps="layer_norm_epsilon", activation="activation_function", tied=False,
    )  # fmt: skip
    whole = shared["head_dim"]
    turned = whole  # what null says
    if fields.has("rotary_dim") or "rotary_dim" not in fields.values:
        turned = fields.integer("rotary_dim", 2, whole, 64)
    if turned % 2 or turned > whole:
        fields.fault("rotary_dim", f"must be even and at most a head's {whole} elements, but is {turned}")
        turned = 2
    return GptConfig(**shared, rope=rope.plain(turned, shared["context_length"]))


class Attention(Module):
    """out_proj(attention(q_proj(x), k_proj(x), v_proj(x)))"""

    def __init__(self, config: GptConfig, index: int, dtype: DType) -> None:
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            setattr(self, name, Linear(config.hidden_size, config.hidden_size, False, dtype))
        self.heads = Heads(config, index, dtype, style="interleaved")

    def forward(self, x: Any, step: PagedStep) -> Any:
        """[T, hidden] → the same"""
        return self.out_proj(self.heads(self.q_proj(x), self.k_proj(x), self.v_proj(x), step))


class Mlp(Module):
    """fc_out(act(fc_in(x)))"""

    def __init__(self, config: GptConfig, dtype: DType) -> None:
        super().__init__()
        self.fc_in = Linear(config.hidden_size, config.intermediate_size, True, dtype)
        self.fc_out = Linear(config.intermediate_size, config.hidden_size, True, dtype)
        self.activation = CALLS[config.activation]

    def forward(self, x: Any) -> Any:
        """[T, hidden] → the same"""
        return self.fc_out(self.activation(self.fc_in(x)))


class Layer(Module):
    """x + attention(norm(x)) + mlp(norm(x))"""

    def __init__(self, config: GptConfig, index: int, dtype: DType) -> None:
        super().__init__()
        self.ln_1 = LayerNorm(config.hidden_size, config.norm_eps, dtype=dtype)
        self.attn = Attention(config, index, dtype)
        self.mlp = Mlp(config, dtype)

    def forward(self, x: Any, step: PagedStep) -> Any:
        """[T, hidden] → the same"""
        normed = self.ln_1(x)
        return functional.add(functional.add(self.attn(normed, step), self.mlp(normed)), x)


class Transformer(Module):
    """Table, layers and the last norm, under the names of the checkpoint."""

    def __init__(self, config: GptConfig, dtype: DType) -> None:
        super().__init__()
        self.wte = Embedding(config.vocab_size, config.hidden_size, dtype)
        self.h = ModuleList(Layer(config, i, dtype) for i in range(config.num_layers))
        self.ln_f = LayerNorm(config.hidden_size, config.norm_eps, dtype=dtype)


class GptJ(LanguageModel):
    """The whole model; its head has a bias."""

    def __init__(self, config: GptConfig, dtype: DType, tied: bool) -> None:
        super().__init__(config)
        self.transformer = Transformer(config, dtype)
        self.lm_head = OutputHead(config, dtype, self.transformer.wte if tied else None, bias=True)

    def parts(self) -> Parts:
        """By their names."""
        body = self.transformer
        return Parts(body.wte, body.h, body.ln_f, self.lm_head)


model = GptJ
