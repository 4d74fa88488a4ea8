"""llama.cpp as a peer: the model as a GGUF file, run by llama-cpp-python under a Python of its own."""

from __future__ import annotations

import json
import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from benchmarks.harness import CACHE
from benchmarks.peer import Peer, absent

NAME, VARIABLE = "llama.cpp", "INGOT_BENCH_LLAMA_CPP"
ABSENT = absent(NAME, VARIABLE)
REQUESTS = 16  # at once, at most, each with a cache for a whole context


def peer(directory: Path, threads: int, weights: str | None) -> AbstractContextManager[Peer | None]:
    """The model of a Hugging Face directory with such weights, BF16, Q8_0 or Q4_0.

    None where llama-cpp-python is not installed, and for no weights.
    """
    python = os.environ.get(VARIABLE)
    if not python or weights is None:
        return nullcontext()
    context = json.loads((directory / "config.json").read_text())["max_position_embeddings"]
    model = str(_converted(directory, weights))
    settings = {"model": model, "threads": threads, "requests": REQUESTS, "context": context}
    return Peer(NAME, python, "benchmarks.llama_cpp_process", settings)


def _converted(directory: Path, weights: str) -> Path:
    """The Llama as GGUF, made once: every matrix in one type, the embedding and the head too.

    llama-quantize would keep the head of a Q4_0 in Q6_K; without that the peer reads less.
    """
    path = CACHE / f"{directory.name}-{weights}.gguf"
    if path.exists():
        return path
    import gguf

    config = json.loads((directory / "config.json").read_text())
    unfinished = path.with_suffix(".part")
    writer = gguf.GGUFWriter(unfinished, "llama")
    _describe(writer, config, weights)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    with safe_open(directory / "model.safetensors", "pt") as tensors:
        for name in sorted(tensors.keys()):
            values = tensors.get_tensor(name).float().numpy()
            heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
            if heads is not None:
                values = _rotary_pairs(values, config[heads])
            form = gguf.GGMLQuantizationType[weights if values.ndim == 2 else "F32"]
            theirs = names.get_name(name, try_suffixes=(".weight",))
            assert theirs is not None, name
            writer.add_tensor(theirs, gguf.quants.quantize(values, form), raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return unfinished.rename(path)


def _describe(writer: Any, config: dict[str, int], weights: str) -> None:
    """The metadata that llama.cpp asks for. Without a tokenizer: it is given ids."""
    import gguf

    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{weights}"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")


def _rotary_pairs(values: np.ndarray, heads: int) -> np.ndarray:
    """The rows of queries or keys [heads · 2 · half, inputs] with each pair that turns together side by side, as
    llama.cpp has them; Hugging Face has all first ones of a head before the second ones."""
    return values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
