"""How tests are divided among processes, which part of them is a share, and what they took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

# Tests that start processes and look at what comes when: they are one unit, so that none runs beside another. It comes
# first, for it is the longest one and waits more than it computes.
PROCESSES = "processes"
THEIRS = ("tests/serve/", "tests/test_failures.py")


def unit(name: str) -> str:
    """What one worker runs as a whole: the file of a test, so that its fixtures are made once, or PROCESSES."""
    return PROCESSES if name.startswith(THEIRS) else name.partition("::")[0]


def scheduler(config: pytest.Config, log: Any) -> Any:
    """Gives the workers of pytest-xdist one unit after the other, in the order of collection."""
    from xdist.scheduler import LoadScopeScheduling  # whoever runs one file by hand needs no xdist

    class Units(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit(nodeid)

    config.option.loadscopereorder = False  # by the number of tests, which says little about their time
    return Units(config, log)


def shared(names: Sequence[str], share: int, of: int) -> set[str]:
    """Of the cases of each test those whose number is `share` modulo `of`; one of a test that has fewer cases."""
    cases: dict[str, list[str]] = {}
    for name in names:
        cases.setdefault(name.partition("[")[0], []).append(name)
    return {name for found in cases.values() for name in found[share % min(of, len(found)) :: of]}


def seconds_per_folder(durations: Iterable[tuple[str, float]]) -> list[str]:
    """A line per folder of tests, the longest first, and their sum; nothing for one folder."""
    seconds: Counter[str] = Counter()
    for name, duration in durations:
        parts = Path(name.partition("::")[0]).parts
        seconds["/".join(parts[:2]) if len(parts) > 2 else parts[0]] += duration
    if len(seconds) < 2:
        return []
    return [f"{spent:8.1f}  {folder}" for folder, spent in [*seconds.most_common(), ("together", seconds.total())]]
