"""ChatGLM 2 and 3: one product for queries, keys and values; half of every head is rotated, by neighbouring pairs."""

from __future__ import annotations

from typing import Any

from ingot import functional
from ingot.dtypes import DType
from ingot.llm.models import rope
from ingot.llm.models.config import DecoderConfig, common
from ingot.llm.models.decoder import Body, FusedAttention, LanguageModel, norm, output_head
from ingot.llm.models.fields import Fields
from ingot.llm.models.weights import Ignored, Naming
from ingot.nn import Embedding, Linear, Module, ModuleList, PagedStep

ARCHITECTURE = "ChatGLMModel"
ALSO = ("ChatGLMForConditionalGeneration",)
MODEL_TYPE = "chatglm"
NAMING = Naming(
    embedding="transformer.embedding.word_embeddings.weight",
    head="transformer.output_layer.weight",
    base="transformer.",
    ignored=(Ignored(r"(transformer\.)?rotary_pos_emb\.inv_freq", "follows from config.json"),),
)
NAMES = {
    "num_hidden_layers": "num_layers",
    "num_key_value_heads": "multi_query_group_num",
    "head_dim": "kv_channels",
    "intermediate_size": "ffn_hidden_size",
    "vocab_size": "padded_vocab_size",
    "max_position_embeddings": "seq_length",
}
# What the published code can do otherwise, but no published model does.
FIXED = {
    "multi_query_attention": True,
    "rmsnorm": True,
    "apply_residual_connection_post_layernorm": False,
    "post_layer_norm": True,
}


def config(fields: Fields) -> DecoderConfig:
    """Reads config.json.

    A rope_ratio is refused: ChatGLM 2 divides positions by it and ChatGLM 3 multiplies the base, and config.json does
    not say which of them it describes.
    """
    for key, value in FIXED.items():
        if fields.flag(key, value) is not value:
            fields.fault(key, f"is {str(not value).lower()}, which no ChatGLM 2 or 3 is")
    if fields.number("rope_ratio", 0.0, 1e9, 1.0) != 1.0:
        fields.fault("rope_ratio", "must be 1: its meaning differs between ChatGLM 2 and 3, and nothing tells which")
    shared = common(fields.called(NAMES), ARCHITECTURE, norm_eps="layernorm_epsilon", rotary=_rotary)
    bias = fields.flag("add_bias_linear", False)
    qkv_bias = fields.flag("add_qkv_bias", False) or bias
    return DecoderConfig(**shared, qkv_bias=qkv_bias, output_bias=bias, mlp_bias=bias)


def _rotary(fields: Fields, head_dim: int, positions: int) -> rope.Rope:
    """Of the first half of a head."""
    if head_dim % 4:
        fields.fault("head_dim", f"must be a multiple of 4, as pairs of half of it are rotated, but is {head_dim}")
        head_dim = 4
    return rope.plain(head_dim // 2, positions)


class Mlp(Module):
    """dense_4h_to_h(silu(first half) · second half) of dense_h_to_4h(x)"""

    def __init__(self, config: DecoderConfig, dtype: DType) -> None:
        super().__init__()
        self.dense_h_to_4h = Linear(config.hidden_size, 2 * config.intermediate_size, config.mlp_bias, dtype)
        self.dense_4h_to_h = Linear(config.intermediate_size, config.hidden_size, config.mlp_bias, dtype)

    def forward(self, x: Any) -> Any:
        """[T, hidden] → the same"""
        gate, up = functional.chunk(self.dense_h_to_4h(x), 2, 1)
        return self.dense_4h_to_h(functional.mul(functional.silu(gate), up))


class Layer(Module):
    """Attention and MLP, each behind its norm and added to what came in."""

    def __init__(self, config: DecoderConfig, index: int, dtype: DType) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = norm(config, dtype), norm(config, dtype)
        self.self_attention = FusedAttention(config, index, dtype, ("query_key_value", "dense"), style="interleaved")
        self.mlp = Mlp(config, dtype)

    def forward(self, x: Any, step: PagedStep) -> Any:
        """[T, hidden] → the same"""
        x = functional.add(x, self.self_attention(self.input_layernorm(x), step))
        return functional.add(x, self.mlp(self.post_attention_layernorm(x)))


class ChatGlm(LanguageModel):
    """The tree of modules that the checkpoints name."""

    def __init__(self, config: DecoderConfig, dtype: DType, tied: bool) -> None:
        super().__init__()
        self.config = config
        table = Embedding(config.vocab_size, config.hidden_size, dtype)
        layers = ModuleList(Layer(config, i, dtype) for i in range(config.num_layers))
        self.transformer = Body(
            embedding=Body(word_embeddings=table),
            encoder=Body(layers=layers, final_layernorm=norm(config, dtype)),
            output_layer=output_head(config, dtype, table if tied else None),
        )

    def parts(self) -> tuple[Module, ModuleList, Module, Module]:
        """By their names."""
        body = self.transformer
        encoder = body.encoder
        return body.embedding.word_embeddings, encoder.layers, encoder.final_layernorm, body.output_layer


model = ChatGlm
