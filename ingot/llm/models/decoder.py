"""The decoder that all Llama-like families share: norm, attention, norm, gated MLP, with residuals.

Parameter names are those of the Hugging Face checkpoints. What differs between families is in their DecoderConfig.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ingot import functional
from ingot.dims import Dim
from ingot.dtypes import DType
from ingot.ir import Spec
from ingot.llm.models.config import DecoderConfig, LanguageConfig
from ingot.nn import Attention, Embedding, Linear, Module, ModuleList, PagedStep, RmsNorm, RotaryEmbedding

MAX_STEP_TOKENS = 8192

_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "silu": functional.silu,
    "gelu": partial(functional.gelu, approximate="none"),
    "gelu_tanh": functional.gelu,
    "relu": functional.relu,
}


class DecoderMLP(Module):
    """down_proj(act(gate_proj(x)) · up_proj(x))"""

    def __init__(self, config: DecoderConfig, dtype: DType) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.activation = _ACTIVATIONS[config.activation]
        self.gate_proj = Linear(hidden, inner, bias, dtype)
        self.up_proj = Linear(hidden, inner, bias, dtype)
        self.down_proj = Linear(inner, hidden, bias, dtype)

    def forward(self, x: Any) -> Any:
        """[T, hidden] → the same"""
        return self.down_proj(functional.mul(self.activation(self.gate_proj(x)), self.up_proj(x)))


class DecoderLayer(Module):
    """Attention and MLP, each behind its norm and added to what came in."""

    def __init__(self, config: DecoderConfig, index: int, dtype: DType) -> None:
        super().__init__()
        self.self_attn = Attention(
            config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim,
            config.qkv_bias, config.output_bias, dtype, window=config.windows[index],
            qk_norm_eps=config.norm_eps if config.qk_norm else None, state_name=f"kv.{index}",
        )  # fmt: skip
        self.mlp = DecoderMLP(config, dtype)
        self.input_layernorm = RmsNorm(config.hidden_size, config.norm_eps, dtype=dtype)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.norm_eps, dtype=dtype)

    def forward(self, x: Any, step: PagedStep) -> Any:
        """[T, hidden] → the same"""
        x = functional.add(x, self.self_attn(self.input_layernorm(x), step))
        return functional.add(x, self.mlp(self.post_attention_layernorm(x)))


class Decoder(Module):
    """Token ids to hidden states, before the last norm."""

    def __init__(self, config: DecoderConfig, dtype: DType) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, dtype)
        self.layers = ModuleList(DecoderLayer(config, i, dtype) for i in range(config.num_layers))
        self.norm = RmsNorm(config.hidden_size, config.norm_eps, dtype=dtype)
        self.rotary_emb = RotaryEmbedding(config.rope.inv_freq, scale=config.rope.scale)

    def forward(self, token_ids: Any, positions: Any, paging: tuple[Any, Any, Any, Any]) -> Any:
        """int32 [T], int32 [T] and (query_start, context_len, block_table, slot) → [T, hidden]"""
        cos, sin = self.rotary_emb(positions)
        step = PagedStep(cos, sin, *paging)
        x = self.embed_tokens(token_ids)
        for layer in self.layers:
            x = layer(x, step)
        return x


class CausalLM(Module):
    """A decoder with a head: logits of the rows that are asked for.

    Args:
        config: the model.
        dtype: of weights, activations and cache. Logits are float32, straight from the accumulator.
        tied: whether the head is the embedding table.
    """

    def __init__(self, config: DecoderConfig, dtype: DType, tied: bool) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config, dtype)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, False, dtype, output_dtype="float32")
        if tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(
        self,
        token_ids: Any,
        positions: Any,
        query_start: Any,
        context_len: Any,
        block_table: Any,
        slot: Any,
        logit_rows: Any,
    ) -> dict[str, Any]:
        """One step; see input_specs. Returns logits float32 [R, vocabulary]; a row of −1 gives zeros."""
        hidden = self.model(token_ids, positions, (query_start, context_len, block_table, slot))
        rows = functional.index_select(hidden, 0, logit_rows)
        return {"logits": self.lm_head(self.model.norm(rows))}


def input_specs(config: LanguageConfig) -> dict[str, Spec]:
    """The step's inputs: T tokens of B requests, N cache blocks at most per request, R rows whose logits are wanted."""
    tokens = Dim("T", 1, 1, MAX_STEP_TOKENS)
    requests = Dim("B", 1, 1, MAX_STEP_TOKENS)
    blocks = Dim("N", 1, None, config.context_length)
    rows = Dim("R", 0, 1, MAX_STEP_TOKENS)
    return {
        "token_ids": Spec("int32", (tokens,)),
        "positions": Spec("int32", (tokens,)),
        "query_start": Spec("int32", (requests + 1,)),
        "context_len": Spec("int32", (requests,)),
        "block_table": Spec("int32", (requests, blocks)),
        "slot": Spec("int32", (tokens,)),
        "logit_rows": Spec("int32", (rows,)),
    }
