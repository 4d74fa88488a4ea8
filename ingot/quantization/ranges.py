"""From the magnitudes of values to the largest that int8 is to tell apart: what is beyond becomes 127.

    min-max     the largest magnitude that was seen
    percentile  the magnitude that so many percent of the values do not exceed
    entropy     the one that makes the integers tell most of the distribution (Kullback-Leibler divergence, as TensorRT)
    mse         the one that leaves the smallest mean squared error of rounding and cutting off
    l3          the same of the cube of the error's magnitude: it cuts off less (of the Lp norms of Nahshan et al. 2019)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot.errors import UserError
from ingot.quantization.observers import BINS, Observer

Array = np.ndarray[Any, Any]

PERCENTILE, USUAL = "percentile", 99.99
METHODS = ("min-max", PERCENTILE, "entropy", "mse", "l3")
AUTO = "auto"  # mse or l3, by the error of the outputs
LEVELS = 128  # magnitudes that int8 tells apart: 0 … 127
STEP = 16  # bins between two of the ranges that entropy tries
TRIED = 128  # ranges that mse and l3 try, evenly spread up to the largest magnitude
POWERS = {"mse": 2, "l3": 3}  # of the error of a value


def check_method(method: str, percentile: float) -> None:
    """Raises UserError for a method or percentile that is none."""
    if method not in (AUTO, *METHODS):
        raise UserError(f"method must be one of {', '.join((AUTO, *METHODS))}, not {method!r:.60}")
    if not 50 <= percentile <= 100:
        raise UserError(f"percentile must be a number from 50 to 100, not {percentile!r:.60}")


def range_of(seen: Observer, method: str, percentile: float) -> float:
    """The largest magnitude that is told apart; 0 where all values were 0."""
    if method == "min-max" or not seen.largest:
        return seen.largest
    if method == PERCENTILE:
        return _percentile(seen, percentile)
    return _entropy(seen) if method == "entropy" else _least(seen, POWERS[method])


def _percentile(seen: Observer, percentile: float) -> float:
    """Within its bin by how many of the bin's values are below: they are taken to be spread evenly."""
    wanted = percentile / 100 * (seen.zeros + int(seen.counts.sum()))
    below = seen.zeros + np.cumsum(seen.counts)
    at = int(np.searchsorted(below, wanted))
    if at >= BINS:
        return seen.largest
    inside = (wanted - (below[at] - seen.counts[at])) / max(int(seen.counts[at]), 1)
    return float(min(max(at + inside, 1.0) * seen.width, seen.largest))


def _entropy(seen: Observer) -> float:
    """The end of the bins before which a distribution of LEVELS magnitudes is nearest to the one that was seen.

    What is cut off is counted in the last bin. Zeros are left out: every range tells them.
    """
    last = int(np.flatnonzero(seen.counts)[-1]) + 1
    ends = [*range(LEVELS, last, STEP), last]
    if last <= LEVELS:
        return seen.largest
    divergences = [_divergence(seen.counts[:last], end) for end in ends]
    best = ends[int(np.argmin(divergences))]
    return float(min(best * seen.width, seen.largest))


def _divergence(counts: Array, end: int) -> float:
    """Of the first `end` bins, the rest counted in the last, from what LEVELS levels tell of them: a level's count is
    spread evenly over those of its bins that are not empty."""
    told = counts[:end].astype(np.float64)
    p = told.copy()
    p[-1] += counts[end:].sum()
    level = np.arange(end) * LEVELS // end
    filled = p > 0
    each = np.bincount(level, told, LEVELS) / np.maximum(np.bincount(level, filled, LEVELS), 1)
    q = np.where(filled, each[level], 0.0)
    if (q[filled] == 0).any():  # a level that holds nothing but what was cut off
        return float("inf")
    p, q = p / p.sum(), q / q.sum()
    return float(np.sum(p[filled] * np.log(p[filled] / q[filled])))


def _least(seen: Observer, power: int) -> float:
    """The range with the smallest mean of this power of the error's magnitude. Bins are taken for their centres."""
    centres = (np.arange(BINS) + 0.5) * seen.width
    some = np.flatnonzero(seen.counts)
    centres, counts = centres[some], seen.counts[some].astype(np.float64)
    tried = seen.largest * np.arange(1, TRIED + 1) / TRIED
    scales = tried[:, None] / (LEVELS - 1)
    away = centres / scales
    np.rint(away, out=away)
    np.minimum(away, LEVELS - 1, out=away)
    away *= scales
    away -= centres
    np.abs(away, out=away)
    raised = away * away
    for _ in range(power - 2):
        raised *= away
    return float(tried[int(np.argmin(raised @ counts))])
