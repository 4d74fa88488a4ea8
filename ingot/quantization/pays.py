"""Whether int8 pays where it is timed: runs of a net in float and in int8, in turn, and what they tell.

A choice by a measurement must not change with a machine's mood. So int8 stays unless it takes clearly longer in nearly
all pairs of runs, and where runs are too short to tell.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import perf_counter

CLEARLY = 1.05  # times as long as in float: what is nearer may be either on another day
SHORT = 1e-3  # seconds of a run, below which nothing is told
SHORT_CALL = 1e-6  # the same of a layer, whose calls are timed by themselves
MOST, SECONDS = 15, 0.4  # pairs of runs, and seconds after which no pair begins, where the first ones do not tell

Pairs = list[tuple[float, float]]  # seconds of a run in float and of the next in int8


def run_in_turn(plain: Callable[[], float], int8: Callable[[], float], least: int, warm: bool = False) -> Pairs:
    """Runs both, `least` pairs, and more of them unless int8 is faster in all. Each function gives a run's seconds.

    warm: once more before that, which does not count.
    """
    if warm:
        plain(), int8()
    begin, pairs = perf_counter(), Pairs()

    def wanted() -> bool:
        if len(pairs) < least:
            return True
        return len(pairs) < MOST and perf_counter() - begin < SECONDS and not is_faster(pairs)

    while wanted():
        pairs.append((plain(), int8()))
    return pairs


def is_faster(pairs: Pairs) -> bool:
    """Whether int8 is clearly faster in all of them."""
    return all(b < a / CLEARLY for a, b in pairs)


def is_slower(pairs: Pairs, short: float = SHORT) -> bool:
    """Whether int8 takes clearly longer: by the fastest runs, by the median, and in three of four pairs.

    short: seconds in float below which nothing is told.
    """
    fastest, of_int8 = (min(times) for times in zip(*pairs, strict=True))
    if fastest < short or of_int8 <= CLEARLY * fastest:
        return False
    ratios = sorted(b / a for a, b in pairs)
    return statistics.median(ratios) > CLEARLY and ratios[len(ratios) // 4] > 1
