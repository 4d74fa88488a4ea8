"""What tests of LLM share: pico-python in float32, and beginnings of texts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import ingot
from ingot.engine.session import Engine
from ingot.llm.llm import LLM
from tests.llm.pico import HELDOUT, PICO


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The model in float32, built in memory."""
    return ingot.build(PICO, precision="float32", report=False)


@pytest.fixture(scope="module")
def llm(engine: Engine) -> Iterator[LLM]:
    # One thread: these tests are about what is computed, and other processes may keep a second one waiting.
    with LLM(engine, threads=1) as model:
        yield model


@pytest.fixture(scope="session")
def prompts() -> list[str]:
    """Twenty beginnings of very different lengths, out of the held-out text."""
    lines = [line for line in HELDOUT.read_text().splitlines() if len(line.strip()) > 12]
    text = HELDOUT.read_text()
    return lines[:: len(lines) // 16][:16] + [text[1000:1400], text[5000:6200], "é😀", "x"]
