"""ChatGLM 2, 3, GLM-4: one product for queries, keys and values; half of a head is rotated, by neighbouring pairs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ingot import functional
from ingot.dtypes import DType
from ingot.frontends.fields import Fields
from ingot.models import rope
from ingot.models.blocks import OutputHead, Parts
from ingot.models.config import DecoderConfig, common
from ingot.models.decoder import Body, Decoder, FusedAttention, norm
from ingot.models.weights import Ignored, Naming
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


# rope_ratio and seq_length of ChatGLM2-6B-32K, the only published model whose ratio divides positions …
INTERPOLATED = (16.0, 32_768)
# … and of those whose ratio multiplies the base, which GLM-4 (known by its vocabulary) does with any.
STRETCHED = ((50.0, 32_768), (500.0, 131_072))  # ChatGLM3-6B-32K and -128K
GLM4_VOCABULARY = 151_552


def config(fields: Fields) -> DecoderConfig:
    """Reads config.json."""
    for key, value in FIXED.items():
        if fields.flag(key, value) is not value:
            fields.fault(key, f"is {str(not value).lower()}, which no ChatGLM 2 or 3 is")
    shared = common(fields.called(NAMES), ARCHITECTURE, norm_eps="layernorm_epsilon", rotary=_rotary)
    bias = fields.flag("add_bias_linear", False)
    qkv_bias = fields.flag("add_qkv_bias", False) or bias
    return DecoderConfig(**shared, qkv_bias=qkv_bias, output_bias=bias, mlp_bias=bias)


def _rotary(fields: Fields, head_dim: int, positions: int) -> rope.Rope:
    """Of the first half of a head; settings in the usual names count as well.

    What a rope_ratio does is not in config.json but in the code published beside it. That of ChatGLM 2 divides
    positions by it; that of ChatGLM 3 and GLM-4 multiplies the base. So the published models are known by their
    numbers, and any other ratio is refused. (ChatGLM 2's code also rounds positions to float16, from 2,048 on; here
    they are exact.)
    """
    if head_dim % 4:
        fields.fault("head_dim", f"must be a multiple of 4, as pairs of half of it are rotated, but is {head_dim}")
        head_dim = 4
    ratio = fields.number("rope_ratio", 0.0, 1e9, 1.0)
    if ratio == 1.0:
        return rope.parse(fields, head_dim // 2, positions)
    usual = next((name for name in ("rope_theta", "rope_scaling", "rope_parameters") if fields.has(name)), None)
    if usual is not None:
        fields.fault("rope_ratio", f"is {ratio:g} beside {usual}; one of them says it all")
    elif (ratio, positions) == INTERPOLATED:
        plain = rope.plain(head_dim // 2, positions)
        return replace(plain, type="linear", inv_freq=plain.inv_freq / np.float32(ratio))
    elif (ratio, positions) not in STRETCHED and fields.integer("vocab_size", 1, 1 << 24, 1) != GLM4_VOCABULARY:
        fields.fault(
            "rope_ratio",
            f"{ratio:g} with {positions:,} positions is no published model's: ChatGLM 2 divides positions by it, "
            "ChatGLM 3 and GLM-4 multiply the base, and nothing here tells which; write instead of it rope_scaling "
            f'{{"type": "linear", "factor": {ratio:g}}} or rope_theta {rope.DEFAULT_THETA * ratio:g}',
        )
    return rope.plain(head_dim // 2, positions, rope.DEFAULT_THETA * ratio)


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


class ChatGlm(Decoder):
    """The tree of modules that the checkpoints name."""

    def __init__(self, config: DecoderConfig, dtype: DType, tied: bool) -> None:
        super().__init__(config)
        table = Embedding(config.vocab_size, config.hidden_size, dtype)
        layers = ModuleList(Layer(config, i, dtype) for i in range(config.num_layers))
        self.transformer = Body(
            embedding=Body(word_embeddings=table),
            encoder=Body(layers=layers, final_layernorm=norm(config, dtype)),
            output_layer=OutputHead(config, dtype, table if tied else None),
        )

    def parts(self) -> Parts:
        """By their names."""
        body = self.transformer
        encoder = body.encoder
        return Parts(body.embedding.word_embeddings, encoder.layers, encoder.final_layernorm, body.output_layer)


model = ChatGlm
