"""Tests of which `make test` runs some cases, and `make conformance` all: those marked `sampled`."""

from __future__ import annotations

from collections import Counter

import pytest

SEEN = pytest.StashKey[Counter[str]]()
KINDS = pytest.StashKey[set[tuple[str, object]]]()


def leave_out(item: pytest.Item) -> None:
    """Makes a case of a test that is marked `sampled(one_in, by=...)` a slow one, unless it is the first of each
    `one_in` or the first of its kind: `by` tells that of the test's arguments, a dict. A test without arguments is
    its only case."""
    mark = item.get_closest_marker("sampled")
    if mark is None:
        return
    seen = item.session.stash.setdefault(SEEN, Counter())
    kinds = item.session.stash.setdefault(KINDS, set())
    test = item.nodeid.partition("[")[0]
    by = mark.kwargs.get("by", lambda arguments: None)
    kind = test, by(item.callspec.params if hasattr(item, "callspec") else {})
    if seen[test] % mark.args[0] and kind in kinds:
        item.add_marker(pytest.mark.slow)
    seen[test] += 1
    kinds.add(kind)
