"""What a Hugging Face directory holds, in plain data: the model's family and sizes, its weights, its texts."""

from __future__ import annotations

import math
import os
from collections import Counter
from pathlib import Path
from typing import Any

from ingot import models
from ingot.frontends.checkpoint import Checkpoint, read_config, resolve_directory
from ingot.frontends.quantized.config import is_quantized
from ingot.models.tokens import parse_file
from ingot.models.weights import parameter_specs


def describe(source: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The facts of a directory, and the files that an engine carries.

    Of the weights only the headers are read.

    The facts are `family`, `architecture`, sizes, `parameters` (how many numbers), `stored` (bytes of weights by
    dtype), `quantized`, `tokenizer` (None without one; else `model`, `tokens`, `added`, and the ids of tokens that
    begin and end a text) and `left_out` (parts that a build does not use, in words).

    Raises CheckpointError for whatever a build would refuse to read of them.
    """
    path = resolve_directory(source)
    values = read_config(path)
    config = models.parse_config(values, path)
    quantized = is_quantized(values)  # of which only the headers of the weights tell all
    model = models.load(path) if quantized else models.load_config_only(path)
    stored: Counter[str] = Counter()
    if any(path.glob("*.safetensors")):
        checkpoint = Checkpoint(path)
        for name in checkpoint:
            info = checkpoint.info(name)
            stored[info.dtype.name] += info.end - info.begin
        checkpoint.close()
    facts = {
        "family": config.model_type,
        "architecture": config.architecture,
        "layers": config.num_layers,
        "width": config.hidden_size,
        "heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "vocabulary": config.vocab_size,
        "context_length": config.context_length,
        "parameters": sum(math.prod(spec.evaluate({})) for spec in parameter_specs(model.module).values()),
        "stored": dict(stored),
        "quantized": quantized,
        "tokenizer": _tokenizer(path, model),
        "left_out": list(config.left_out),
    }
    return facts, model.files


def _tokenizer(path: Path, model: models.LoadedModel) -> dict[str, Any] | None:
    if "tokenizer.json" not in model.files:
        return None
    content = parse_file(path, model.files, "tokenizer.json")
    kind, added = content.get("model"), content.get("added_tokens")
    kind = kind if isinstance(kind, dict) else {}
    vocabulary = kind.get("vocab")
    return {
        "model": str(kind.get("type", "unknown")),
        "tokens": len(vocabulary) if isinstance(vocabulary, dict | list) else 0,
        "added": len(added) if isinstance(added, list) else 0,
        "begins_with": model.config.get("bos_token_id") if model.config.get("add_bos") else None,
        "ends_with": list(model.config.get("eos_token_ids") or ()),
    }
