"""GGUF files, written from what they should hold: seeds of the fuzzer, and what tests read."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from ingot.frontends.gguf.blocks import KINDS

TYPES: dict[str, tuple[int, str]] = {"u32": (4, "<I"), "f32": (6, "<f"), "bool": (7, "<?")}
NUMBER = {kind.name: number for number, kind in KINDS.items()}


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def typed(value: Any) -> bytes:
    """A value of the metadata, behind its type."""
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    if isinstance(value, list):
        inner = typed(value[0])[:4] if value else struct.pack("<I", 4)
        return struct.pack("<I", 9) + inner + struct.pack("<Q", len(value)) + b"".join(typed(v)[4:] for v in value)
    kind = "bool" if isinstance(value, bool) else "f32" if isinstance(value, float) else "u32"
    return struct.pack("<I", TYPES[kind][0]) + struct.pack(TYPES[kind][1], value)


def written(metadata: Mapping[str, Any], tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> bytes:
    """A file of version 3: tensors by name as kind, shape and bytes."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(text(name) + typed(value) for name, value in metadata.items())
    data = b""
    for name, (kind, shape, content) in tensors.items():
        dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        head += text(name) + dims + struct.pack("<IQ", NUMBER[kind], len(data))
        data += content + bytes(-len(content) % 32)
    return head + bytes(-len(head) % 32) + data


SEEDS = [
    written({}, {"w": ("Q8_0", (2, 32), bytes(68)), "v": ("F32", (4,), bytes(16))}),
    written(
        {
            "general.architecture": "llama", "llama.context_length": 64, "llama.embedding_length": 32,
            "llama.block_count": 1, "llama.feed_forward_length": 32, "llama.attention.head_count": 2,
            "llama.attention.layer_norm_rms_epsilon": 1e-5, "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": ["<unk>", "a", "b", "ab"], "tokenizer.ggml.scores": [0.0, -1.0, -2.0, -0.5],
            "tokenizer.ggml.token_type": [2, 1, 1, 1], "tokenizer.ggml.bos_token_id": 2,
            "tokenizer.ggml.eos_token_id": 1,
        },
        {
            "token_embd.weight": ("Q4_0", (4, 32), bytes(72)),
            "rope_freqs.weight": ("F32", (8,), struct.pack("<8f", *[1.0] * 8)),
        },
    ),
]  # fmt: skip
