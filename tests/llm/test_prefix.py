"""The prefix cache changes what is computed, and no bit of what comes out."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot.llm.kv_cache import RELEASED
from tests.kept import PICO
from tests.models.model_zoo import make

SHARED = [int(i) for i in np.random.default_rng(4).integers(5, 4000, 150)]
TAILS = [[17], [17, 18], [300, 4, 99], SHARED[:40], []]


def run(llm: ingot.LLM) -> list[tuple[list[int], list[float]]]:
    done = [llm.generate([*SHARED, *tail], max_tokens=12, ignore_end=True) for tail in TAILS]
    return [(c.token_ids, c.logprobs) for c in done]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_same_bits_with_and_without(precision: str) -> None:
    with ingot.LLM(PICO, precision=precision, prefix_cache=False) as llm:
        plain = run(llm)
        assert llm._loop._scheduler.cache.tokens_found == 0
    with ingot.LLM(PICO, precision=precision) as llm:
        assert run(llm) == plain
        cache = llm._loop._scheduler.cache
        assert cache.tokens_found >= 4 * 144
        assert run(llm) == plain
        cache.check_integrity()
        assert cache.num_free == cache.num_blocks


def test_shared_while_running_preempted_and_evicted() -> None:
    """Many threads over a cache too small for them all."""
    with ingot.LLM(PICO, precision="float32", prefix_cache=False) as llm:
        plain = run(llm)
        block = 2 * sum(s["heads"] * s["head_dim"] for s in llm.engine.config["kv"]) * 4 * 16
    with ingot.LLM(PICO, precision="float32", kv_memory=block * 16, context_length=256) as llm:
        found: dict[int, list[tuple[list[int], list[float]]]] = {}
        threads = [threading.Thread(target=lambda i=i: found.update({i: run(llm)})) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        scheduler = llm._loop._scheduler
        assert scheduler.preemptions or scheduler.cache.tokens_found
        scheduler.check_integrity()
        assert scheduler.cache.num_free == scheduler.cache.num_blocks
    assert all(found[i] == plain for i in range(4))


def test_scoring_computes_every_token() -> None:
    text = "def add(a, b):\n    return a + b\n" * 12
    with ingot.LLM(PICO, precision="float32") as llm:
        first = llm.score(text, window=64)
        assert llm.score(text, window=64) == first
        llm.generate(text, max_tokens=2)
        assert llm.score(text, window=64) == first


def test_a_sliding_window_frees_what_nobody_sees(tmp_path: Path) -> None:
    """A model whose layers all look back 12 tokens holds two or three blocks of 16, and says what it said with all."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    make(transformers, torch, "Mistral", {"sliding_window": 12, "max_position_embeddings": 256}, tmp_path)
    prompt = [int(i) for i in np.random.default_rng(1).integers(0, 61, 100)]
    with ingot.LLM(tmp_path) as llm:
        scheduler = llm._loop._scheduler
        assert scheduler.window == 12
        with llm.stream(prompt, max_tokens=60, ignore_end=True) as stream:
            next(stream)
            held = [b for owner in scheduler.cache.owners() for b in scheduler.cache.table(owner) if b != RELEASED]
            assert len(held) <= 3
            found = [token for piece in stream for token in piece.token_ids]
        scheduler.window = None
        plain = llm.generate(prompt, max_tokens=60, ignore_end=True)
        assert plain.token_ids[-len(found) :] == found
        assert plain.cached_tokens >= 96
