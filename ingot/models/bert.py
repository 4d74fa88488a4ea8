"""BERT: an encoder that reads a whole text at once, for embeddings. Every half of a layer has its norm behind it."""

from __future__ import annotations

from typing import Any

from ingot import functional
from ingot.dtypes import DType
from ingot.frontends.fields import Fields
from ingot.models.blocks import CALLS, as_float32, sizes
from ingot.models.encoder import EncoderConfig
from ingot.models.weights import Ignored, Naming
from ingot.nn import Embedding, LayerNorm, Linear, Module, ModuleList

ARCHITECTURE = "BertModel"
ALSO = ("BertForMaskedLM", "BertForPreTraining")
MODEL_TYPE = "bert"
UNUSED = (
    Ignored(r"(.*\.)?embeddings\.position_ids", "0, 1, 2 …, which older transformers saved"),
    Ignored(r"(.*\.)?pooler\..*", "learned for telling whether one sentence follows another; embeddings do without"),
)
HEADS = Ignored(r"cls\..*", "the heads of pretraining")
NAMING = Naming("bert.embeddings.word_embeddings.weight", "", "bert.", (*UNUSED, HEADS))


def config(fields: Fields) -> EncoderConfig:
    """Reads config.json."""
    return encoder_config(fields, ARCHITECTURE, 0, 2)


def encoder_config(fields: Fields, architecture: str, first_position: int, types: int) -> EncoderConfig:
    """What BERT and RoBERTa read alike. `types`: of tokens, unless config.json says otherwise."""
    shared = sizes(
        fields, architecture, hidden="hidden_size", heads="num_attention_heads", layers="num_hidden_layers",
        positions="max_position_embeddings", inner="intermediate_size", eps="layer_norm_eps", activation="hidden_act",
        tied=False, default_activation="gelu",
    )  # fmt: skip
    shared |= {"tied": False, "context_length": shared["context_length"] - first_position}
    if shared["context_length"] < 1:
        fields.fault("max_position_embeddings", f"must be more than {first_position}, which no token takes")
        shared["context_length"] = 1
    fields.choice("position_embedding_type", ("absolute",), "absolute")
    for name in ("is_decoder", "add_cross_attention"):
        if fields.flag(name, False):
            fields.fault(name, "only encoders give embeddings")
    types = fields.integer("type_vocab_size", 1, 1 << 16, types)
    return EncoderConfig(**shared, types=types, first_position=first_position)


class Table(Module):
    """The sum of what the token, its position and its type say, normed. All tokens are of type 0."""

    def __init__(self, config: EncoderConfig, dtype: DType) -> None:
        super().__init__()
        self.first = config.first_position
        self.word_embeddings = Embedding(config.vocab_size, config.hidden_size, dtype)
        self.position_embeddings = Embedding(config.context_length + self.first, config.hidden_size, dtype)
        self.token_type_embeddings = Embedding(config.types, config.hidden_size, dtype)
        self.LayerNorm = LayerNorm(config.hidden_size, config.norm_eps, dtype=dtype)

    def forward(self, token_ids: Any, positions: Any) -> Any:
        """int32 [B, T] twice → [B, T, hidden]"""
        kind = functional.slice(self.token_type_embeddings.weight, (0, 0), (1, self.LayerNorm.normalized_shape[0]))
        at = self.position_embeddings(functional.add(positions, self.first) if self.first else positions)
        return self.LayerNorm(functional.add(functional.add(self.word_embeddings(token_ids), kind), at))


class SelfAttention(Module):
    """Every token attends to every token of its text."""

    def __init__(self, config: EncoderConfig, dtype: DType) -> None:
        super().__init__()
        self.heads, self.head_dim = config.num_heads, config.head_dim
        self.query = Linear(config.hidden_size, config.hidden_size, True, dtype)
        self.key = Linear(config.hidden_size, config.hidden_size, True, dtype)
        self.value = Linear(config.hidden_size, config.hidden_size, True, dtype)

    def forward(self, x: Any, mask: Any) -> Any:
        """[B, T, hidden], bool [B, 1, 1, T] → [B, T, hidden]"""
        batch, tokens, hidden = x.shape

        def by_head(y: Any) -> Any:
            return functional.transpose(functional.view(y, (batch, tokens, self.heads, self.head_dim)), 1, 2)

        context = functional.scaled_dot_product_attention(
            by_head(self.query(x)), by_head(self.key(x)), by_head(self.value(x)), mask
        )
        return functional.view(functional.transpose(context, 1, 2), (batch, tokens, hidden))


class Output(Module):
    """LayerNorm(dense(x) + residual)"""

    def __init__(self, width: int, config: EncoderConfig, dtype: DType) -> None:
        super().__init__()
        self.dense = Linear(width, config.hidden_size, True, dtype)
        self.LayerNorm = LayerNorm(config.hidden_size, config.norm_eps, dtype=dtype)

    def forward(self, x: Any, residual: Any) -> Any:
        """[B, T, width], [B, T, hidden] → [B, T, hidden]"""
        return self.LayerNorm(functional.add(self.dense(x), residual))


class Attention(Module):
    """output(self(x), x)"""

    def __init__(self, config: EncoderConfig, dtype: DType) -> None:
        super().__init__()
        self.self = SelfAttention(config, dtype)
        self.output = Output(config.hidden_size, config, dtype)

    def forward(self, x: Any, mask: Any) -> Any:
        """[B, T, hidden] → the same"""
        return self.output(self.self(x, mask), x)


class Intermediate(Module):
    """act(dense(x))"""

    def __init__(self, config: EncoderConfig, dtype: DType) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.intermediate_size, True, dtype)
        self.activation = CALLS[config.activation]

    def forward(self, x: Any) -> Any:
        """[B, T, hidden] → [B, T, inner]"""
        return self.activation(self.dense(x))


class Layer(Module):
    """Attention and MLP."""

    def __init__(self, config: EncoderConfig, dtype: DType) -> None:
        super().__init__()
        self.attention = Attention(config, dtype)
        self.intermediate = Intermediate(config, dtype)
        self.output = Output(config.intermediate_size, config, dtype)

    def forward(self, x: Any, mask: Any) -> Any:
        """[B, T, hidden] → the same"""
        x = self.attention(x, mask)
        return self.output(self.intermediate(x), x)


class Stack(Module):
    """The layers under the name of the checkpoint."""

    def __init__(self, config: EncoderConfig, dtype: DType) -> None:
        super().__init__()
        self.layer = ModuleList(Layer(config, dtype) for _ in range(config.num_layers))


class Body(Module):
    """Table and layers."""

    def __init__(self, config: EncoderConfig, dtype: DType) -> None:
        super().__init__()
        self.embeddings = Table(config, dtype)
        self.encoder = Stack(config, dtype)

    def forward(self, token_ids: Any, positions: Any, mask: Any) -> dict[str, Any]:
        """A batch; see encoder.input_specs. Returns the hidden states of the last layer, float32 [B, T, hidden]."""
        x = self.embeddings(token_ids, positions)
        batch, tokens = token_ids.shape
        attended = functional.view(mask, (batch, 1, 1, tokens))
        for layer in self.encoder.layer:
            x = layer(x, attended)
        return {"hidden": as_float32(x)}


class Bert(Module):
    """The whole model, under the name that checkpoints with a head have."""

    def __init__(self, config: EncoderConfig, dtype: DType, tied: bool) -> None:
        super().__init__()
        self.bert = Body(config, dtype)

    def forward(self, token_ids: Any, positions: Any, mask: Any) -> dict[str, Any]:
        """As Body."""
        return self.bert(token_ids, positions, mask)  # type: ignore[no-any-return]


model = Bert
