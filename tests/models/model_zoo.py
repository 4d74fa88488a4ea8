"""Tiny random models of every family, written by transformers, and runs of a traced model step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ingot import models
from ingot.builder.build import build
from ingot.engine.session import Engine
from ingot.ir.interpret import interpret

SMALL: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PAD = {"pad_token_id": 0}
QWEN_MOE: dict[str, Any] = {"num_experts": 6, "moe_intermediate_size": 20}
GEMMA = {"head_dim": 16, "num_hidden_layers": 3}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 10000.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
    "rope_theta": 500000.0,
}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.2, 1.5, 1.9],
    "long_factor": [1.1, 2.5, 6.0, 14.0],
    "rope_theta": 10000.0,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama, tied and multi-head": ("Llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "llama, multi-query with biases": (
        "Llama",
        {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1, "rms_norm_eps": 1e-3},
    ),
    "llama, own head size": ("Llama", {"head_dim": 16}),
    "llama, exact gelu": ("Llama", {"hidden_act": "gelu"}),
    "llama, tanh gelu": ("Llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "llama, rope linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}}),
    "llama, rope dynamic": (
        "Llama",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}},
    ),
    "llama, rope llama3": ("Llama", {"rope_parameters": LLAMA3}),
    "llama, rope yarn": ("Llama", {"rope_parameters": YARN}),
    "llama, rope yarn with all its settings": (
        "Llama",
        {
            "rope_parameters": YARN
            | {"beta_fast": 16.0, "beta_slow": 2.0, "mscale": 0.9, "mscale_all_dim": 0.7, "truncate": False}
        },
    ),
    "llama, rope yarn with a factor": ("Llama", {"rope_parameters": YARN | {"attention_factor": 1.3}}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral, sliding window": ("Mistral", {"sliding_window": 5}),
    "qwen2": ("Qwen2", {}),
    "qwen2, sliding in later layers": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1, "tie_word_embeddings": True},
    ),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3, yarn and biases": ("Qwen3", {"head_dim": 8, "attention_bias": True, "rope_parameters": YARN}),
    "qwen3, layer types": (
        "Qwen3",
        {
            "head_dim": 16,
            "use_sliding_window": True,
            "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "gemma": ("Gemma", {"head_dim": 16}),
    "gemma, multi-query, untied, with biases": (
        "Gemma",
        {"head_dim": 8, "num_key_value_heads": 1, "tie_word_embeddings": False, "attention_bias": True},
    ),
    "gemma2": ("Gemma2", GEMMA | {"sliding_window": 6}),
    "gemma2, low caps and its own scale": (
        "Gemma2",
        GEMMA
        | {"sliding_window": 4, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
        | {"query_pre_attn_scalar": 24, "num_key_value_heads": 4},
    ),
    "gemma2, no caps, layer types": (
        "Gemma2",
        GEMMA
        | {"attn_logit_softcapping": None, "final_logit_softcapping": None, "sliding_window": 5}
        | {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
    ),
    "gemma3": ("Gemma3Text", GEMMA | {"num_hidden_layers": 7, "sliding_window": 6}),
    "gemma3, layer types and rotary settings": (
        "Gemma3Text",
        GEMMA
        | {"sliding_window": 5, "final_logit_softcapping": 4.0, "tie_word_embeddings": False}
        | {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}
        | {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
            }
        },
    ),
    "mixtral": ("Mixtral", {"num_local_experts": 5}),
    "mixtral, window, one expert a token, gelu": (
        "Mixtral",
        {"num_local_experts": 4, "num_experts_per_tok": 1, "sliding_window": 6, "hidden_act": "gelu", "head_dim": 16},
    ),
    "qwen2_moe": ("Qwen2Moe", QWEN_MOE | {"num_experts_per_tok": 4, "shared_expert_intermediate_size": 24}),
    "qwen2_moe, windows, dense layers, normalised": (
        "Qwen2Moe",
        QWEN_MOE
        | {"shared_expert_intermediate_size": 40, "num_hidden_layers": 4, "decoder_sparse_step": 2}
        | {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 3, "mlp_only_layers": [3]}
        | {"norm_topk_prob": True, "num_experts_per_tok": 3, "qkv_bias": False},
    ),
    "qwen3_moe": ("Qwen3Moe", QWEN_MOE | {"num_experts_per_tok": 3, "norm_topk_prob": True}),
    "qwen3_moe, many experts, own head size": (
        "Qwen3Moe",
        QWEN_MOE
        | {"num_experts": 40, "num_experts_per_tok": 8, "head_dim": 16, "attention_bias": True}
        | {"use_sliding_window": True, "sliding_window": 7, "tie_word_embeddings": True, "mlp_only_layers": [0]},
    ),
    "phi3": ("Phi3", PAD),
    "phi3, window and half of a head": (
        "Phi3",
        PAD
        | {"sliding_window": 6, "num_key_value_heads": 4, "tie_word_embeddings": True}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5}},
    ),
    "phi3, longrope, short": ("Phi3", PAD | {"original_max_position_embeddings": 48, "rope_parameters": LONGROPE}),
    "phi3, longrope, long": ("Phi3", PAD | {"original_max_position_embeddings": 16, "rope_parameters": LONGROPE}),
    "phi3, longrope, given factors, half of a head": (
        "Phi3",
        PAD
        | {"original_max_position_embeddings": 39, "sliding_window": 30}
        | {
            "rope_parameters": LONGROPE
            | {"attention_factor": 1.4, "partial_rotary_factor": 0.5}
            | {"short_factor": [1.0, 1.3], "long_factor": [2.0, 9.0]}
        },
    ),
}


def make(transformers: Any, torch: Any, family: str, settings: Mapping[str, Any], folder: Path, **save: Any) -> Any:
    """A seeded transformers model in float32, saved to `folder`. Norm weights and biases are random too.

    Its attention is the plain one: torch's own leaves the cap of scores out.
    """
    config = getattr(transformers, f"{family}Config")(**{**SMALL, **settings}, attn_implementation="eager")
    torch.manual_seed(7)
    model = getattr(transformers, f"{family.removesuffix('Text')}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.normal_(1.0 if name.endswith("weight") else 0.0, 0.2)
            else:
                parameter.mul_(4.0)  # sharper attention, so that wrong positions and windows show
    model.save_pretrained(folder, **save)
    return model


class Runner:
    """One request after another through a traced network, with caches laid out in shuffled blocks."""

    def __init__(self, loaded: models.LoadedModel, block_size: int = 16, blocks: int = 8) -> None:
        self.network, _ = loaded.network()
        self.weights = loaded.weights
        self.short_length = loaded.config.get("short_length")
        self.block_size = block_size
        self.table = np.random.default_rng(3).permutation(blocks).astype(np.int32)
        self.states = {
            value.name: np.zeros((blocks, block_size, 2, value.spec.heads, value.spec.head_dim), value.spec.dtype.numpy)
            for value in self.network.states
        }
        self.done = 0

    def step(self, ids: Sequence[int], total: int = 0) -> np.ndarray:
        """Logits of all `ids`, which continue what has been fed before; `total`: of the request's tokens."""
        count = len(ids)
        positions = np.arange(self.done, self.done + count, dtype=np.int32)
        slot = self.table[positions // self.block_size] * self.block_size + positions % self.block_size
        self.done += count
        feeds = {
            "token_ids": np.array(ids, np.int32),
            "positions": positions,
            "query_start": np.array([0, count], np.int32),
            "context_len": np.array([self.done], np.int32),
            "block_table": self.table[None],
            "slot": slot.astype(np.int32),
            "logit_rows": np.arange(count, dtype=np.int32),
            "hidden_rows": np.zeros(0, np.int32),
        }
        if self.short_length is not None:
            feeds["long_rope"] = np.full(count, max(total, self.done) > self.short_length, np.int32)
        return self.execute(feeds)

    def execute(self, feeds: dict[str, np.ndarray]) -> np.ndarray:
        return interpret(self.network, feeds, self.weights, self.states)["logits"]

    def run(self, ids: Sequence[int], chunks: Sequence[int]) -> np.ndarray:
        """Logits of all `ids`, fed in chunks of the given sizes."""
        parts, start = [], 0
        for size in chunks:
            parts.append(self.step(ids[start : start + size], len(ids)))
            start += size
        assert start == len(ids)
        return np.concatenate(parts)


class EngineRunner(Runner):
    """The same steps on a built engine."""

    def __init__(self, source: Path | Engine, block_size: int = 16, blocks: int = 8, **words: Any) -> None:
        engine = source if isinstance(source, Engine) else build(source, report=False, **words)
        self.session = engine.session(threads=1, kv_blocks=blocks, kv_block_size=block_size)
        self.short_length = engine.config.get("short_length")
        self.block_size = block_size
        self.table = np.random.default_rng(3).permutation(blocks).astype(np.int32)
        self.done = 0

    def execute(self, feeds: dict[str, np.ndarray]) -> np.ndarray:
        return self.session.run(feeds)["logits"]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    wide = wide - wide.max(-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))
