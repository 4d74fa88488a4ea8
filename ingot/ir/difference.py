"""How far numbers are from what they should be, in words where no distance says it: NaN in one of both, or shapes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Difference:
    """The largest difference relative to the largest finite element of what should be. It is infinite where `odd` says
    what differs instead: the shapes, or NaN and infinities that stand in one of both only. `absolute`: the same of one
    element, not relative to anything.
    """

    relative: float
    odd: str = ""
    absolute: float = math.inf

    def __str__(self) -> str:
        return self.odd or f"is off by {self.relative:.2g} of its largest element"


def difference(ours: Array, theirs: Array) -> Difference:
    """`ours` against what it should be. NaN, or one infinity, in the same place of both is no difference."""
    if ours.shape != theirs.shape:
        return Difference(float("inf"), f"has the shape {list(ours.shape)} instead of {list(theirs.shape)}")
    with np.errstate(invalid="ignore"):  # a NaN of few bits may be one that signals
        a, b = ours.astype(np.float64), theirs.astype(np.float64)
    finite = np.isfinite(b)
    if odd := _odd(a, b):
        return Difference(float("inf"), odd)
    scale = float(np.abs(b[finite]).max(initial=0)) or 1.0
    absolute = float(np.abs(a[finite] - b[finite]).max(initial=0))
    return Difference(absolute / scale, absolute=absolute)


def _odd(a: Array, b: Array) -> str:
    """Where NaN and infinities differ; empty where they do not."""
    found = []
    for word, test in (("NaN", np.isnan), ("infinite", np.isinf)):
        here, there = test(a), test(b)
        found.append(_places(here & ~there, f"is {word}", " where it should not be"))
        found.append(_places(there & ~here, f"is not {word}", " where it should be"))
    found.append(_places(np.isinf(a) & np.isinf(b) & (a != b), "is the other infinity", ""))
    return "; ".join(filter(None, found))


def _places(places: Array, what: str, where: str) -> str:
    if not places.any():
        return ""
    first = [int(i) for i in np.unravel_index(int(places.argmax()), places.shape)]
    return f"{what} in {np.count_nonzero(places)} of {places.size} elements{where}, the first at {first}"
