"""A language model's engine in outline: its program and the shapes of its weights, and none of their numbers.

For what can be known before anything is read or packed, such as the memory that it will take.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ingot import models
from ingot.builder.compile import compile_network, header_of
from ingot.engine.session import Engine
from ingot.frontends.checkpoint import Checkpoint, read_config, resolve_directory
from ingot.frontends.gguf.model import is_gguf
from ingot.frontends.quantized.config import is_quantized
from ingot.ir import Value
from ingot.ir.weight_format import weight_format
from ingot.passes.kv_cache import stored_as
from ingot.words import KV_KEY, PRECISIONS, SAME, check_words

Array = np.ndarray[Any, Any]


def outline(
    source: str | os.PathLike[str], precision: str | None = None, weights: str | None = None,
    activations: str | None = None, kv: str | None = None,
) -> tuple[Engine, list[str]]:
    """The engine that a directory or GGUF file would be built into, for its sessions' memory only, and what is granted.

    Only config.json and the headers of weight files are read; of a directory config.json alone will do, unless the
    weights are quantised, of which zero points and orders are read too. All weights are views of one array of zeros
    that nobody touches, so the engine takes no memory worth speaking of.

    Raises CheckpointError, UserError.
    """
    check_words(precision, weights, activations, kv)
    granted: list[str] = []
    if is_gguf(source):
        model = models.load(source, precision)
    else:
        model = _of_directory(resolve_directory(source), precision, granted)
    network, _ = model.network()
    network = stored_as(network, kv or SAME)
    compiled = compile_network(network, weights=weight_format(weights, activations))
    header = header_of(model.kind, {**model.config, "weights": weights or SAME, KV_KEY: kv or SAME}, network, compiled)
    return Engine.from_memory(header, _shapes(compiled.stored)), granted


def _of_directory(path: Path, precision: str | None, granted: list[str]) -> models.LoadedModel:
    """The model of config.json; `granted` gets what that leaves open."""
    values = read_config(path)
    config = models.parse_config(values, path)
    if precision is None and config.dtype is None:
        precision = _stored_as(path, config)
        granted.append(
            "config.json names no dtype: "
            + ("float32 is taken" if precision is None else f"the weights are {precision}")
        )
    if config.tied:
        granted.append("the head is the embedding table, as config.json says; one stored apart would come on top")
    return models.load(path, precision) if is_quantized(values) else models.load_config_only(path, precision=precision)


def _stored_as(path: Path, config: Any) -> str | None:
    """The dtype of the embedding table, which a build goes by; None without weights."""
    if not any(path.glob("*.safetensors")):
        return None
    checkpoint = Checkpoint(path)
    naming = models.FAMILIES[config.architecture].NAMING
    name = naming.find(naming.embedding, checkpoint)
    if name not in checkpoint:
        return None
    dtype = checkpoint.info(name).dtype.name
    return dtype if dtype in PRECISIONS else None


def _shapes(stored: Mapping[str, Value]) -> dict[str, Array]:
    """Arrays of the right shapes. Pages that nobody touches are never there."""
    bytes_ = {name: math.prod(v.spec.evaluate({})) * v.dtype.numpy.itemsize for name, v in stored.items()}
    zeros = np.zeros(max(bytes_.values(), default=0), np.uint8)
    return {
        name: np.asarray(v.array, order="C")
        if v.kind == "constant"
        else zeros[: bytes_[name]].view(v.dtype.numpy).reshape(v.spec.evaluate({}))
        for name, v in stored.items()
    }
