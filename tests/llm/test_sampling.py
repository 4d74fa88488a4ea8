"""Every sampling word is checked; what is drawn follows the distribution; greedy is the first maximum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ingot import _native
from ingot.errors import RequestError
from ingot.llm.sampling import MAX_STOP_LENGTH, MAX_STOPS, MAX_TOKENS, SamplingParams

BAD: list[tuple[str, Any]] = [
    ("max_tokens", -1), ("max_tokens", 0), ("max_tokens", 10**9), ("max_tokens", 1.5), ("max_tokens", True),
    ("max_tokens", "64"), ("max_tokens", None), ("temperature", -0.1), ("temperature", float("nan")),
    ("temperature", float("inf")), ("temperature", 101), ("temperature", "1"), ("temperature", None),
    ("temperature", True), ("temperature", 10**400), ("top_k", -1), ("top_k", 2**31), ("top_k", 1.0), ("top_p", 0),
    ("top_p", 2), ("top_p", float("nan")), ("top_p", -1), ("min_p", -0.1), ("min_p", 1.01), ("min_p", float("nan")),
    ("seed", -1), ("seed", 2**64), ("seed", 2**70), ("seed", 1.0), ("seed", "7"), ("stop", ""), ("stop", [""]),
    ("stop", ["x"] * (MAX_STOPS + 1)), ("stop", ["x"] * 100_000), ("stop", "x" * (MAX_STOP_LENGTH + 1)), ("stop", [1]),
    ("stop", 5), ("stop_ids", [-1]), ("stop_ids", [2**31]), ("stop_ids", ["a"]), ("stop_ids", "a"),
    ("stop_ids", [0] * (MAX_STOPS + 1)), ("ignore_end", 1),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD, ids=lambda v: repr(v)[:30])
def test_what_is_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=name) as caught:
        SamplingParams(**{name: value})
    assert len(str(caught.value)) < 300


def test_all_faults_come_in_one_error() -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(max_tokens=0, temperature=-1, top_p=3, seed=-1)
    assert all(name in str(caught.value) for name in ("max_tokens", "temperature", "top_p", "seed"))


def test_the_edges_are_allowed() -> None:
    for words in (
        {"max_tokens": 1}, {"max_tokens": MAX_TOKENS}, {"temperature": 0}, {"temperature": 100}, {"top_k": 0},
        {"top_k": 2**31 - 1}, {"top_p": 1}, {"top_p": 1e-9}, {"min_p": 0}, {"min_p": 1}, {"seed": 0},
        {"seed": 2**64 - 1}, {"stop": None}, {"stop": "x" * MAX_STOP_LENGTH}, {"stop": ["a", "b"]},
        {"stop_ids": [0, 5]}, {"ignore_end": True},
    ):  # fmt: skip
        SamplingParams(**words)  # type: ignore[arg-type]
    assert SamplingParams(stop="a").stop == ("a",)
    assert SamplingParams(stop=["a", "b"], stop_ids={3}).stop_ids == (3,)  # type: ignore[arg-type]
    assert isinstance(SamplingParams(temperature=1).temperature, float)


def draw(logits: np.ndarray, n: int, **words: float) -> np.ndarray:
    """n draws from one row of logits, at positions 0 … n-1 of one seed."""
    rows = np.repeat(logits[None].astype(np.float32), n, 0)

    def full(name: str, default: float, dtype: Any) -> np.ndarray:
        return np.full(n, words.get(name, default), dtype)

    tokens, _ = _native.sample(
        rows, full("temperature", 1, np.float32), full("top_k", 0, np.int32), full("top_p", 1, np.float32),
        full("min_p", 0, np.float32), full("seed", 5, np.uint64), np.arange(n, dtype=np.int64),
    )  # fmt: skip
    return np.asarray(tokens)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ({}, 8), ({"temperature": 0.5}, 8), ({"temperature": 2.0}, 8), ({"top_k": 3}, 3), ({"top_p": 0.7}, None),
        ({"min_p": 0.2}, None), ({"top_k": 5, "top_p": 0.8, "min_p": 0.1, "temperature": 1.5}, None),
    ],
    ids=str,
)  # fmt: skip
def test_draws_follow_the_distribution(words: dict[str, float], kept: int | None) -> None:
    """Chi-square over 20,000 draws, against the rule written out; the seed is fixed, so this never flickers."""
    n = 20_000
    logits = np.array([2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, -1.5])
    p = softmax(logits / words.get("temperature", 1))
    order = np.argsort(-p)
    keep = order[: int(words.get("top_k", 0)) or len(p)]
    q = p[keep] / p[keep].sum()
    keep = keep[: int(np.searchsorted(np.cumsum(q), words.get("top_p", 1.0) - 1e-9)) + 1]
    keep = keep[p[keep] >= words.get("min_p", 0) * p.max()]
    assert kept is None or len(keep) == kept
    expected = np.zeros(len(p))
    expected[keep] = p[keep] / p[keep].sum() * n
    found = np.bincount(draw(logits, n, **words), minlength=len(p))
    assert found[expected == 0].sum() == 0
    chi = ((found - expected)[expected > 0] ** 2 / expected[expected > 0]).sum()
    assert chi < 3 * len(keep) + 15, (found, expected)


def test_greedy_takes_the_first_maximum() -> None:
    logits = np.array([0.0, 3.0, 1.0, 3.0])
    assert set(draw(logits, 5, temperature=0).tolist()) == {1}


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    logits = np.random.default_rng(0).standard_normal(100)
    assert (draw(logits, 50, seed=1) == draw(logits, 200, seed=1)[:50]).all()
    assert (draw(logits, 200, seed=1) != draw(logits, 200, seed=2)).any()
