"""Attacks by an engine that claims to be a language model, and whose description lies (class 41)."""

from __future__ import annotations

from typing import Any

from attacks.image import Image, engine

CONFIG: dict[str, Any] = {
    "model_type": "llama", "architecture": "LlamaForCausalLM", "vocab_size": 64, "context_length": 64,
    "hidden_size": 32, "num_layers": 1, "precision": "float32", "weights": "same", "kv": [],
    "bos_token_id": 0, "eos_token_ids": [0], "add_bos": True, "limits": {"max_step_tokens": 64},
}  # fmt: skip


def attack(name: str, why: str, **changes: Any) -> None:
    def content(image: Image) -> None:
        image.ours.update(kind="llm", config=CONFIG | changes)

    engine(41, f"model: {name}", content, llm=why)


engine(41, "model: no description", lambda image: image.ours.update(kind="llm"), llm="vocab_size")
attack("a program without a cache", "KV cache")
_VALUES: dict[str, list[Any]] = {
    "context_length": [-1, 0, "x", None, 2**62, True],
    "vocab_size": [0, 2**62, 1.5],
    "eos_token_ids": [["x"], [-1], 3, None, [10**12]],
    "bos_token_id": ["0", -1, 10**9],
    "add_bos": [1, None],
}
for _key, _values in _VALUES.items():
    for _value in _values:
        attack(f"{_key} = {_value!r}", _key, **{_key: _value})
attack("limits that are a list", "max_step_tokens", limits=[])
attack("steps of 2**62 tokens", "max_step_tokens", limits={"max_step_tokens": 2**62})
_CACHES: list[Any] = [
    3,
    [{}],
    [{"state": "nowhere", "heads": 1, "head_dim": 2}],
    [{"state": "kv", "heads": -1, "head_dim": 2**62}],
]
for _cache in _CACHES:
    attack(f"the caches {_cache}", "cache", kv=_cache)
