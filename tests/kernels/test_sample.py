"""Token choice: distributions by chi-square, the random generator, determinism, faults; log probabilities."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from ingot import _native
from ingot.backends.native import log_probs
from ingot.errors import ValueFault
from tests.kernels.support import Array, same_bits

NONE = np.zeros(0, np.int64)


def sample(
    logits: Array,
    temperature: Any = 1.0,
    top_k: Any = 0,
    top_p: Any = 1.0,
    min_p: Any = 0.0,
    seed: Any = 0,
    position: Any = 0,
) -> tuple[Array, Array]:
    def per_row(value: Any, dtype: Any) -> list[Any]:
        return np.broadcast_to(np.asarray(value, dtype), len(logits)).tolist()

    columns = (
        per_row(temperature, np.float32), per_row(top_k, np.int32), per_row(top_p, np.float32),
        per_row(min_p, np.float32), per_row(seed, np.uint64),
    )  # fmt: skip
    samplers = [
        _native.Sampler(logits.shape[1], NONE, temperature=t, top_k=k, top_p=p, min_p=m, seed=s)
        for t, k, p, m, s in zip(*columns, strict=True)
    ]
    positions = np.array(per_row(position, np.int64), np.int64)
    tokens, logprobs, *_ = _native.sample(np.ascontiguousarray(logits, np.float32), samplers, positions)
    return tokens, logprobs


def distribution(logits: Array, temperature: float, top_k: int, top_p: float, min_p: float) -> Array:
    """Temperature, then top-k, top-p and min-p, by a full sort; equal logits rank by token."""
    order = np.lexsort((np.arange(len(logits)), -logits))
    wide = logits.astype(np.float64)
    weights = np.exp((wide - wide.max()) / temperature)[order]
    weights[len(wide) if top_k <= 0 else top_k :] = 0
    kept = len(wide) if top_p >= 1 else int(np.searchsorted(np.cumsum(weights) / weights.sum(), top_p)) + 1
    kept = max(1, min(kept, int((weights >= min_p).sum())))
    weights[kept:] = 0
    result = np.zeros(len(wide))
    result[order] = weights / weights.sum()
    return result


def logits_of(count: int) -> Array:
    logits = (np.random.default_rng(count).standard_normal(count) * 2).astype(np.float32)
    logits[count // 2] = logits[min(1, count - 1)]  # a tie
    return logits


SETTINGS = [
    (1.0, 0, 1.0, 0.0),
    (0.7, 5, 1.0, 0.0),
    (1.5, 0, 0.8, 0.0),
    (1.0, 0, 1.0, 0.1),
    (0.8, 40, 0.95, 0.02),
    (2.0, 3, 0.5, 0.0),
    (1.0, 0, 0.0, 0.0),
    (0.3, 1, 1.0, 0.0),
    (5.0, 2000, 0.999, 0.0),
]


@pytest.mark.parametrize("count", [1, 3, 50, 700])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_tokens_follow_the_distribution(count: int, settings: tuple[float, int, float, float]) -> None:
    draws = 20_000
    logits = logits_of(count)
    tokens, logprobs = sample(np.broadcast_to(logits, (draws, count)), *settings, seed=np.arange(draws), position=3)
    expected = distribution(logits, *settings) * draws
    found = np.bincount(tokens, minlength=count)
    assert not found[expected == 0].any()
    usual = expected >= 5
    freedom = int(usual.sum()) - 1
    chi_square = float((((found - expected) ** 2)[usual] / expected[usual]).sum())
    assert chi_square < freedom + 5 * np.sqrt(2 * freedom) + 5, (chi_square, freedom)
    wide = logits.astype(np.float64)
    exact = wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())
    np.testing.assert_allclose(logprobs, exact[tokens], rtol=1e-6, atol=2e-6)


def test_positions_are_independent_draws() -> None:
    logits = np.zeros((40_000, 10), np.float32)
    tokens, _ = sample(logits, seed=5, position=np.arange(40_000))
    pairs = np.bincount(tokens[:-1] * 10 + tokens[1:], minlength=100)
    assert ((pairs - 400) ** 2 / 400).sum() < 99 + 5 * np.sqrt(2 * 99)


def test_the_generator_is_philox() -> None:
    """Against NumPy's, which raises its counter before it draws; equal weights: the token is floor(uniform * count)."""
    for seed, position in itertools.product((0, 7, 2**64 - 1), (1, 2, 12_345, 2**40)):
        uniform = (int(np.random.Philox(key=seed, counter=position - 1).random_raw()) >> 11) * 2.0**-53
        tokens, _ = sample(np.zeros((1, 1000), np.float32), seed=np.uint64(seed), position=position)
        assert tokens[0] == int(uniform * 1000)


def test_greedy_takes_the_first_greatest() -> None:
    logits = np.random.default_rng(0).integers(0, 5, (50, 77)).astype(np.float32)
    logits[3] = -np.inf
    logits[3, 40] = -1e30
    tokens, logprobs = sample(logits, 0.0, seed=np.arange(50))
    np.testing.assert_array_equal(tokens, logits.argmax(1))
    assert logprobs[3] == 0


def test_a_row_does_not_depend_on_its_company() -> None:
    rng = np.random.default_rng(1)
    logits = rng.standard_normal((60, 333)).astype(np.float32)
    chosen = [SETTINGS[i % len(SETTINGS)] for i in range(60)]
    columns = [np.array(c) for c in zip(*chosen, strict=True)]
    tokens, logprobs = sample(logits, *columns, seed=np.arange(60), position=np.arange(60) * 7)
    for i in range(60):
        token, logprob = sample(logits[i : i + 1], *chosen[i], seed=i, position=7 * i)
        assert token[0] == tokens[i] and same_bits(logprob, logprobs[i : i + 1])


def test_extreme_parameters() -> None:
    logits = logits_of(500)[None]
    top = int(logits.argmax())
    for settings in (
        (1e-30, 0, 1.0, 0.0),
        (1.0, 1, 1.0, 0.0),
        (1.0, 0, 1e-9, 0.0),
        (1.0, 0, 1.0, 1.0),
        (1e-45, 9, 0.9, 0.1),
    ):
        assert sample(logits, *settings)[0][0] == top
    tokens, _ = sample(np.repeat(logits, 3000, 0), 1e30, seed=np.arange(3000))
    assert np.bincount(tokens, minlength=500).max() < 30  # uniform
    masked = np.full((1, 100), -np.inf, np.float32)
    masked[0, [20, 90]] = 1.0
    found = {int(sample(masked, *s, seed=i)[0][0]) for i in range(30) for s in ((1.0,), (1.0, 50), (1.0, 0, 0.99))}
    assert found == {20, 90}


def test_log_probs() -> None:
    rng = np.random.default_rng(2)
    for count in (1, 2, 31, 1024, 5001):
        logits = (rng.standard_normal((9, count)) * 5).astype(np.float32)
        targets = rng.integers(0, count, 9)
        wide = logits.astype(np.float64)
        exact = wide - wide.max(1, keepdims=True)
        exact -= np.log(np.exp(exact).sum(1, keepdims=True))
        found = _native.log_probs(logits, targets)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, exact[np.arange(9), targets], rtol=1e-6, atol=2e-6)


def test_faults_are_typed_and_name_the_row() -> None:
    good = np.zeros((3, 20), np.float32)
    for bad in (np.nan, np.inf):
        logits = good.copy()
        logits[1, 19] = bad
        for call in (
            lambda x: sample(x, 0.0),
            lambda x: sample(x, 1.0),
            lambda x: _native.log_probs(x, np.zeros(3, np.int64)),
        ):
            with pytest.raises(_native.Error, match="row 1 of the logits: a logit is NaN or infinite") as caught:
                call(logits)
            assert caught.value.code == "value"
    with pytest.raises(_native.Error, match="none is finite"):
        sample(np.full((1, 5), -np.inf))
    for name, value in itertools.product(("temperature", "top_p", "min_p"), (np.nan, -0.5, np.inf)):
        with pytest.raises(_native.Error, match=name):
            sample(good, **{name: value})
    for target in (-1, 20, 2**62):
        with pytest.raises(_native.Error, match="row 2 of the logits: a target is not in the vocabulary"):
            _native.log_probs(good, np.array([0, 19, target]))
        with pytest.raises(ValueFault, match="row 2 of the logits: a target is not in the vocabulary"):
            log_probs(good, np.array([0, 19, target]))
    with pytest.raises(_native.Error, match="targets has 2 values for 3 rows") as caught:
        _native.log_probs(good, np.zeros(2, np.int64))
    assert caught.value.code == "argument"
    tokens, logprobs = sample(good[:0])
    assert tokens.shape == logprobs.shape == (0,)
