"""How often Python looks for cycles while a build makes objects, and that this is as before afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from ingot.builder.garbage import SELDOM, seldom_collected


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize("before", [(700, 10, 10), (50, 3, 4)])
def test_it_is_seldom_inside_and_as_before_after(before: tuple[int, int, int]) -> None:
    gc.set_threshold(*before)
    with seldom_collected():
        assert gc.get_threshold() == SELDOM
        with seldom_collected():
            assert gc.get_threshold() == SELDOM
        assert gc.get_threshold() == SELDOM
    assert gc.get_threshold() == before
    with pytest.raises(ZeroDivisionError), seldom_collected():
        _ = 1 / 0
    assert gc.get_threshold() == before


@pytest.mark.parametrize("own", [(0, 10, 10), (SELDOM[0] * 2, 1, 1)])
def test_who_looks_more_seldom_or_never_is_left_alone(own: tuple[int, int, int]) -> None:
    gc.set_threshold(*own)
    with seldom_collected():
        assert gc.get_threshold() == own
    assert gc.get_threshold() == own
