"""Engines that many tests take, each made once in a process."""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import tempfile
from pathlib import Path

import ingot

PICO = Path(__file__).parents[1] / "models" / "pico-python"


def folder() -> Path:
    """A new one, which goes with this process."""
    path = tempfile.mkdtemp(prefix="ingot-tests-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return Path(path)


@functools.cache
def pico() -> Path:
    """The engine of pico-python in bfloat16: a command starts several times as fast with it as with the directory."""
    path = folder() / "pico-python.ingot"
    ingot.build(PICO, report=False).save(path)
    return path


@functools.cache
def endless() -> Path:
    """A model that is still writing when a test ends, so that what happens meanwhile can take as long as it likes.

    It is called as pico-python is, and has its tokenizer; its longest answer takes many minutes. Nobody understands
    what it writes: its weights are random.
    """
    config = json.loads((PICO / "config.json").read_text()) | {
        "hidden_size": 128, "intermediate_size": 64 << 10, "num_hidden_layers": 2, "num_attention_heads": 1,
        "num_key_value_heads": 1, "max_position_embeddings": 1 << 18,
    }  # fmt: skip
    source = folder()
    (source / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(PICO / name, source)
    path = folder() / "pico-python.ingot"
    ingot.build(source, weights_from="random", seed=0, report=False).save(path)
    return path
