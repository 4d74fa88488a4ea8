"""A small Llama of random weights, and the inputs of its steps."""

from __future__ import annotations

import json
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

import ingot
from ingot.backends.device import Choice

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 128,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": True,
    "hidden_act": "silu", "initializer_range": 0.2, "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "float32",
}  # fmt: skip


def builder(folder: Path) -> Any:
    """A function that builds it, once in every form."""
    (folder / "config.json").write_text(json.dumps(LLAMA))

    @cache
    def engine(**words: Any) -> Any:
        return ingot.build(folder, weights_from="random", seed=1, report=False, **words)

    return engine


def step(rows: int, context: int, columns: int) -> dict[str, Any]:
    """The inputs of a step of one row a request."""
    i32 = partial(np.array, dtype=np.int32)
    table = np.arange(rows * columns, dtype=np.int32).reshape(rows, columns)
    return {
        "token_ids": i32(range(5, 5 + rows)), "positions": i32([context - 1] * rows),
        "query_start": np.arange(rows + 1, dtype=np.int32), "context_len": i32([context] * rows),
        "block_table": table, "slot": table[:, (context - 1) // 16] * 16 + (context - 1) % 16,
        "logit_rows": np.arange(rows, dtype=np.int32), "hidden_rows": i32([]),
    }  # fmt: skip


def mixed(counts: list[int], before: list[int], logits: list[int], columns: int) -> dict[str, Any]:
    """The inputs of a step in which each request has `counts` rows behind those `before`. logits: of which requests the
    last row's are wanted."""
    i32 = partial(np.array, dtype=np.int32)
    start = np.cumsum([0, *counts])
    positions = [b + i for b, count in zip(before, counts, strict=True) for i in range(count)]
    owner = np.repeat(np.arange(len(counts)), counts)
    table = np.arange(len(counts) * columns, dtype=np.int32).reshape(-1, columns)
    return {
        "token_ids": i32([(7 * p + 31 * o) % 120 + 5 for p, o in zip(positions, owner, strict=True)]),
        "positions": i32(positions), "query_start": i32(start), "block_table": table,
        "context_len": i32([b + c for b, c in zip(before, counts, strict=True)]),
        "slot": i32([table[o, p // 16] * 16 + p % 16 for p, o in zip(positions, owner, strict=True)]),
        "logit_rows": i32([start[r + 1] - 1 for r in logits]), "hidden_rows": i32([]),
    }  # fmt: skip


def choice(
    rows: int, behind: Any = None, back: Any = (), temperature: float = 0.0, tokens: int | None = None
) -> Choice:
    """How the tokens of so many rows are chosen, in a step of `tokens`, or one each."""
    full = partial(np.full, rows)
    return Choice(
        np.full(rows if tokens is None else tokens, -1, np.int32) if behind is None else np.array(behind, np.int32),
        full(temperature, np.float32), full(128, np.int32), full(1.0, np.float32), full(0.0, np.float32),
        full(0.5, np.float64), back,
    )  # fmt: skip
