"""Observers and ranges: histograms against NumPy's, and the ranges of each method against plain ways to find them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot.errors import UserError, ValueFault
from ingot.quantization.observers import BINS, Means, Observer
from ingot.quantization.ranges import LEVELS, METHODS, STEP, TRIED, check_method, range_of

Array = np.ndarray[Any, Any]


def observed(*chunks: Array) -> Observer:
    seen = Observer()
    for chunk in chunks:
        seen.add(chunk, "x")
    return seen


def normal(seed: int, count: int, scale: float = 1.0) -> Array:
    return (np.random.default_rng(seed).standard_normal(count) * scale).astype(np.float32)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 300), st.floats(-30, 30)), min_size=1, max_size=5))
def test_counts_are_those_of_numpy_in_any_order(parts: list[tuple[int, int, float]]) -> None:
    """Bins that were merged hold what bins of that width from the start hold."""
    chunks = [normal(seed, count, float(np.exp2(power))) for seed, count, power in parts]
    seen, backwards = observed(*chunks), observed(*chunks[::-1])
    whole = np.abs(np.concatenate(chunks)).astype(np.float64)
    want, _ = np.histogram(whole[whole > 0], BINS, (0, seen.width * BINS))
    assert np.array_equal(seen.counts, want) and seen.zeros == np.count_nonzero(whole == 0)
    assert seen.largest == whole.max() and math.frexp(seen.width)[0] == 0.5
    assert np.array_equal(backwards.counts, seen.counts) and backwards.width == seen.width


def test_nothing_but_zeros_has_no_range() -> None:
    seen = observed(np.zeros((3, 4), np.float32))
    assert seen.zeros == 12 and all(range_of(seen, method, 99) == 0 for method in METHODS)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(ValueFault, match="%3 is NaN or infinite"):
        Observer().add(np.array([1, value], np.float32), "%3")


def test_the_largest_and_percentiles() -> None:
    x = normal(1, 50_000)
    seen = observed(x, np.zeros(10_000, np.float32))
    assert range_of(seen, "min-max", 99) == np.abs(x).max()
    every = np.concatenate([np.abs(x), np.zeros(10_000, np.float32)])
    for percentile in (60, 99, 99.9, 100):
        assert abs(range_of(seen, "percentile", percentile) - np.percentile(every, percentile)) <= 2 * seen.width


def entropy_by_loops(seen: Observer) -> float:
    """The same by loops over bins: the range whose LEVELS levels lose least of the distribution."""
    counts = [int(n) for n in seen.counts[: np.flatnonzero(seen.counts)[-1] + 1]]
    best, at = math.inf, len(counts)
    for end in [*range(LEVELS, len(counts), STEP), len(counts)]:
        told = [float(n) for n in counts[:end]]
        p = list(told)
        p[-1] += sum(counts[end:])
        members: list[list[int]] = [[] for _ in range(LEVELS)]
        for i in range(end):
            members[i * LEVELS // end].append(i)
        q = [0.0] * end
        for some in members:
            filled = [i for i in some if p[i] > 0]
            for i in filled:
                q[i] = sum(told[j] for j in some) / len(filled)
        if any(a > 0 and b == 0 for a, b in zip(p, q, strict=True)):
            continue
        lost = sum(a / sum(p) * math.log(a / sum(p) / (b / sum(q))) for a, b in zip(p, q, strict=True) if a > 0)
        if lost < best - 1e-12:
            best, at = lost, end
    return min(at * seen.width, seen.largest)


@pytest.mark.parametrize("outliers", [0, 3])
def test_entropy_is_that_of_plain_loops(outliers: int) -> None:
    x = np.concatenate([normal(2, 4000), np.full(outliers, 30, np.float32)])
    seen = observed(x)
    assert range_of(seen, "entropy", 99) == pytest.approx(entropy_by_loops(seen), rel=1e-12)
    if outliers:
        assert range_of(seen, "entropy", 99) < 15


@pytest.mark.parametrize(("method", "power"), [("mse", 2), ("l3", 3)])
@pytest.mark.parametrize("kind", ["normal", "heavy", "relu"])
def test_mse_and_l3_leave_nearly_the_smallest_error(kind: str, method: str, power: int) -> None:
    """Beside the best of the same ranges, on the values themselves: bins are centres, so a little is allowed."""
    x = normal(3, 20_000)
    x = {"normal": x, "heavy": x**3, "relu": np.maximum(x, 0)}[kind].astype(np.float32)
    seen = observed(x)

    def error(limit: float) -> float:
        scale = limit / (LEVELS - 1)
        return float(np.mean(np.abs(np.clip(np.rint(x / scale), -127, 127) * scale - x) ** power))

    best = min(error(seen.largest * i / TRIED) for i in range(1, TRIED + 1))
    assert error(range_of(seen, method, 99)) <= 1.05 * best


def test_the_share_beyond_a_limit() -> None:
    x = np.concatenate([normal(5, 50_000), np.zeros(9_000, np.float32)])
    seen = observed(x)
    for limit in (0.0, 0.3, 1.0, 3.0):
        assert seen.beyond(limit) == pytest.approx(np.mean(np.abs(x) > limit), abs=1e-4)
    assert seen.beyond(seen.largest) == seen.beyond(99.0) == observed(np.zeros(3, np.float32)).beyond(0.0) == 0


def test_counts_of_the_smallest_floats() -> None:
    """The reciprocal of such a bin's width is no float32."""
    x = np.arange(1, 3001, dtype=np.int32).view(np.float32)
    seen = observed(x)
    want, _ = np.histogram(x.astype(np.float64), BINS, (0, seen.width * BINS))
    assert np.array_equal(seen.counts, want) and seen.counts.sum() == 3000 and seen.zeros == 0


def test_means_of_channels() -> None:
    means, x = Means(1), normal(4, 2 * 5 * 3 * 7).reshape(2, 5, 3, 7)
    for part in (x, x + 1):
        means.add(part)
    assert np.allclose(means.mean, x.mean((0, 2, 3), dtype=np.float64) + 0.5, atol=1e-7)


def test_words() -> None:
    with pytest.raises(UserError, match="method must be one of auto, min-max, percentile, entropy, mse, l3, not 'max'"):
        check_method("max", 99)
    with pytest.raises(UserError, match="percentile must be a number from 50 to 100"):
        check_method("percentile", 12)
