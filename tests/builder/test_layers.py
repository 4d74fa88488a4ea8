"""How far two arrays are apart, by sums over pieces of them."""

from __future__ import annotations

import numpy as np
import pytest

from ingot.builder.layers import AT_ONCE, row


@pytest.mark.parametrize("size", [1, 7, AT_ONCE, 2 * AT_ONCE + 5])
def test_sums_over_pieces_are_those_of_the_whole(size: int) -> None:
    rng = np.random.default_rng(size)
    a, b = (rng.standard_normal(size).astype(np.float32) for _ in range(2))
    found = row("y", a, b)
    x, y = a.astype(np.float64), b.astype(np.float64)
    assert found.relative == pytest.approx(np.sqrt(np.sum((x - y) ** 2) / np.sum(y**2)))
    assert found.largest == np.abs(x - y).max()
    assert not found.odd


def test_nan_and_infinities_in_the_same_place_are_no_difference() -> None:
    b = np.ones(AT_ONCE + 4, np.float32)
    b[[1, AT_ONCE, AT_ONCE + 1]] = np.nan, np.inf, -np.inf
    a = b.copy()
    a[0] += 0.5
    found = row("y", a, b)
    assert found.relative == pytest.approx(0.5 / np.sqrt(AT_ONCE + 1))
    assert (found.largest, found.odd) == (0.5, "")


@pytest.mark.parametrize(("one", "other"), [(np.nan, 1), (1, np.nan), (np.inf, 1), (1, -np.inf), (np.inf, -np.inf)])
def test_nan_or_infinity_in_one_is_an_infinite_difference(one: float, other: float) -> None:
    a, b = np.ones((2, AT_ONCE + 4), np.float32)
    a[AT_ONCE + 2], b[AT_ONCE + 2] = one, other
    found = row("y", a, b)
    assert found.relative == found.largest == np.inf
    assert found.odd
