"""Cases of which `make test` runs a sample, and `make conformance` all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def sampled(cases: Iterable[Any], one_in: int, kind: Callable[[Any], object] = lambda case: None) -> list[Any]:
    """Cases for pytest's parametrize, tuples of arguments or one argument each: one of `one_in`, and the first of each
    kind, always run; the others are slow ones."""
    kinds: set[object] = set()
    found: list[Any] = []
    for i, case in enumerate(cases):
        often = i % one_in == 0 or kind(case) not in kinds
        kinds.add(kind(case))
        arguments = case if isinstance(case, tuple) else (case,)
        found.append(case if often else pytest.param(*arguments, marks=pytest.mark.slow))
    return found
