"""How far arrays are apart: a share of the largest number, or words where no number says it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ingot.ir.difference import difference

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("ours", "theirs", "relative"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0), ([1.0, 2.5], [1.0, 2.0], 0.25), ([-4.0, 2.0], [-4.0, 1.0], 0.25),
        ([-3.0], [1.0], 4.0), ([0.5], [0.0], 0.5), ([], [], 0.0), ([NAN, 1.0], [NAN, 1.0], 0.0),
        ([0.5], [0.25], 1.0), ([INF, 3.0], [INF, 2.0], 0.5), ([-INF, NAN, 3.0], [-INF, NAN, 2.0], 0.5),
        ([NAN], [NAN], 0.0), (3, 4, 0.25),
    ],
)  # fmt: skip
def test_numbers(ours: Any, theirs: Any, relative: float) -> None:
    found = difference(np.asarray(ours, np.float32), np.asarray(theirs, np.float32))
    assert (found.relative, found.odd) == (relative, "")
    assert str(found) == f"is off by {relative:.2g} of its largest element"


@pytest.mark.parametrize(
    ("ours", "theirs", "odd"),
    [
        ([1.0, NAN], [1.0, 2.0], "is NaN in 1 of 2 elements where it should not be, the first at [1]"),
        ([1.0, 2.0], [NAN, NAN], "is not NaN in 2 of 2 elements where it should be, the first at [0]"),
        ([[1.0, INF]], [[1.0, 2.0]], "is infinite in 1 of 2 elements where it should not be, the first at [0, 1]"),
        ([1.0, 2.0], [1.0, -INF], "is not infinite in 1 of 2 elements where it should be, the first at [1]"),
        ([INF, -INF], [INF, INF], "is the other infinity in 1 of 2 elements, the first at [1]"),
        ([INF], [NAN], "is not NaN in 1 of 1 elements where it should be, the first at [0]; "
         "is infinite in 1 of 1 elements where it should not be, the first at [0]"),
        ([1.0], [[1.0]], "has the shape [1] instead of [1, 1]"),
    ],
)  # fmt: skip
def test_what_no_number_says(ours: Any, theirs: Any, odd: str) -> None:
    found = difference(np.asarray(ours, np.float32), np.asarray(theirs, np.float32))
    assert (found.relative, str(found)) == (INF, odd)
