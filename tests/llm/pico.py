"""pico-python in LLM, and questions about one that runs."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from ingot.backends.device import CPU, Device
from ingot.engine.session import Engine
from ingot.llm.llm import LLM
from tests.kept import PICO

HELDOUT = PICO / "heldout.txt"


def tiny(engine: Engine, monkeypatch: pytest.MonkeyPatch, **words: Any) -> LLM:
    """An LLM whose steps hold few tokens, so that prompts come in chunks."""
    monkeypatch.setattr(Device, "limits", replace(CPU.limits, max_step_tokens=24))
    return LLM(engine, threads=1, **words)


def block_bytes(engine: Engine) -> int:
    """Of one block of the cache: 16 tokens, keys and values, 8 layers, 2 heads of 64."""
    return 16 * 2 * 8 * 2 * 64 * (4 if engine.config["precision"] == "float32" else 2)


def idle(model: LLM) -> bool:
    """Whether every block is free, once the loop has had time to see what was asked of it."""
    scheduler = model._loop._scheduler
    for _ in range(12_000):  # a minute, on a busy machine
        if not scheduler and scheduler.cache.num_free == scheduler.cache.num_blocks:
            scheduler.check_integrity()
            return True
        time.sleep(0.005)
    return False
