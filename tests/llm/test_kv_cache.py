"""The block pool: as a state machine, and what it finds, shares and forgets."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from ingot.errors import IngotError
from ingot.llm.kv_cache import RELEASED, KVCache


class CacheMachine(RuleBasedStateMachine):
    """Owners come, grow and go; the pool agrees with a set of counts."""

    owners = Bundle("owners")

    @initialize(blocks=st.integers(1, 12), size=st.sampled_from([1, 4, 16]))
    def start(self, blocks: int, size: int) -> None:
        self.cache = KVCache(blocks, size)
        self.tokens: dict[int, int] = {}
        self.tables: dict[int, list[int]] = {}
        self.next = 0

    def room(self, tokens: int) -> bool:
        return self.cache.blocks_for(tokens) <= self.cache.num_free

    @rule(target=owners, tokens=st.integers(0, 64))
    def allocate(self, tokens: int) -> Any:
        self.next += 1
        fits = self.room(tokens)
        assert self.cache.allocate(self.next, tokens) == (0 if fits else None)
        if not fits:
            return multiple()
        self.tokens[self.next] = tokens
        self.tables[self.next] = list(self.cache.table(self.next))
        return self.next

    @rule(owner=owners, more=st.integers(0, 40))
    def append(self, owner: int, more: int) -> None:
        wanted = self.tokens[owner] + more
        missing = self.cache.blocks_for(wanted) - len(self.cache.table(owner))
        fits = missing <= self.cache.num_free
        assert self.cache.append(owner, wanted) == fits
        table = self.cache.table(owner)
        assert table[: len(self.tables[owner])] == self.tables[owner]  # what was given stays where it is
        if fits:
            self.tokens[owner] = wanted
            self.tables[owner] = list(table)

    @rule(owner=owners, less=st.integers(-5, 40))
    def trim(self, owner: int, less: int) -> None:
        """A table that becomes shorter is another list, which is how a copy of it is known to be out of date."""
        before = self.cache.table(owner)
        kept = max(0, self.tokens[owner] - less)
        self.cache.trim(owner, kept)
        table = self.cache.table(owner)
        assert table == before[: self.cache.blocks_for(kept)] == self.tables[owner][: len(table)]
        assert (table is before) == (len(table) == len(self.tables[owner]))
        self.tokens[owner] = min(kept, self.tokens[owner])
        self.tables[owner] = list(table)

    @rule(owner=consumes(owners))
    def free(self, owner: int) -> None:
        self.cache.free(owner)
        del self.tokens[owner], self.tables[owner]

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "cache"):
            self.cache.check_integrity()
            assert self.cache.owners() == set(self.tokens)
            used = sum(self.cache.blocks_for(n) for n in self.tokens.values())
            assert self.cache.num_free == self.cache.num_blocks - used


TestCache = CacheMachine.TestCase


def test_a_corrupt_pool_is_noticed() -> None:
    for harm, words in (
        (lambda c: c._free.append(c.table(1)[0]), "is free and owned"),
        (lambda c: c._free.pop(), "nobody holds"),
        (lambda c: setattr(c._owners[1], "named", 3), "3 named blocks of 2"),
        (lambda c: c._free.append(99), "block 99"),
        (lambda c: c.table(1).append(99), "holds block 99"),
        (lambda c: c.table(1).append(c.table(1)[0]), "miscounted"),
        (lambda c: c._idle.update({c._free.pop(): None}), "have no name"),
        (lambda c: c._name_of.clear(), "names disagree"),
        (lambda c: c.table(1).__setitem__(0, RELEASED), "has released 0"),
    ):
        cache = KVCache(4, 16)
        cache.allocate(1, 20)
        cache.record(1, list(range(20)), 20)
        harm(cache)
        with pytest.raises(IngotError, match=words):
            cache.check_integrity()


def test_a_block_is_found_after_its_own_beginning_alone() -> None:
    """Equal tokens behind other ones are another content, however many contents there were before."""
    cache = KVCache(12, 2)
    for owner, tokens in enumerate(([1, 2, 3, 4], [5, 6, 7, 8], [9, 9, 9, 9])):
        assert cache.allocate(owner, 4, tokens) == 0
        cache.record(owner, tokens, 4)
    for owner, (tokens, found) in enumerate(
        (
            ([1, 2, 3, 4, 0], 4),
            ([5, 6, 7, 8, 0], 4),
            ([5, 6, 3, 4, 0], 2),
            ([1, 2, 7, 8, 0], 2),
            ([3, 4, 0], 0),
            ([9, 9, 9, 9, 9, 9, 0], 4),
        ),
        3,
    ):
        assert cache.allocate(owner, len(tokens), tokens) == found
        cache.check_integrity()
        cache.free(owner)
    assert (cache.tokens_asked, cache.tokens_found) == (12 + 30, 16)


def test_who_shares_a_block() -> None:
    """Requests of an equal salt, before their contents are forgotten, in a cache that reuses; counted per owner."""
    cache, tokens = KVCache(13, 2), [1, 2, 3, 4, 5]
    assert cache.allocate(0, 5, tokens) == 0
    assert cache.allocate(1, 5, tokens) == 0  # nothing has been computed yet
    cache.record(0, tokens, 5)
    assert cache.allocate(2, 5, tokens) == 4
    assert cache.allocate(3, 5, tokens, "other") == 0
    assert cache.allocate(4, 5) == 0  # it does not say what it holds
    assert cache.table(2)[:2] == cache.table(0)[:2]
    assert cache.table(2)[2] != cache.table(0)[2]
    cache.check_integrity()
    assert (cache.tokens_asked, cache.tokens_found) == (20, 4)
    with pytest.raises(ValueError, match="request 2 has a block table already"):
        cache.allocate(2, 1)
    for owner in range(5):
        cache.free(owner)
    assert (cache.num_free, cache.num_idle) == (13, 2)
    cache.forget()
    assert (cache.num_free, cache.num_idle) == (13, 0)
    assert cache.allocate(5, 5, tokens) == 0
    cache.check_integrity()


def test_what_is_forgotten_while_it_is_used() -> None:
    """A running owner goes on, and what it computes from then on is found by nobody: older weights made it."""
    cache, tokens = KVCache(8, 2), [1, 2, 3, 4, 5, 6, 7]
    cache.allocate(0, 7, tokens)
    cache.record(0, tokens, 2)
    cache.forget()
    cache.record(0, tokens, 7)
    cache.check_integrity()
    assert cache.allocate(1, 7, tokens) == 0
    cache.free(1)
    assert cache.allocate(2, 5, tokens[2:]) == 0
    cache.check_integrity()


def test_what_does_not_fit_changes_nothing() -> None:
    cache = KVCache(4, 2)
    assert cache.allocate(0, 4, [1, 2, 3, 4]) == 0
    cache.record(0, [1, 2, 3, 4], 4)
    cache.free(0)
    assert cache.allocate(1, 4) == 0  # takes the two that were never used
    assert (cache.num_free, cache.num_idle) == (2, 2)
    before = cache.tokens_asked
    assert cache.allocate(2, 7, [1, 2, 3, 4, 5, 6, 7]) is None  # two are found, and two more are not there
    assert (cache.owners(), cache.num_idle, cache.tokens_asked) == ({1}, 2, before)
    assert cache.allocate(2, 4, [1, 2, 3, 4]) == 2  # just fits: one found, one taken from what could be found
    assert not cache.append(2, 5)
    assert cache.append(2, 4) and cache.append(2, 0)
    assert (cache.num_free, len(cache.table(2))) == (0, 2)
    cache.check_integrity()


def test_a_window_releases_what_lies_before_it() -> None:
    """Whole blocks only; without names one may go before it is full of names."""
    for reuse in (True, False):
        cache, tokens = KVCache(6, 2, reuse), list(range(9))
        cache.allocate(0, 9, tokens)
        cache.record(0, tokens, 5)
        first = list(cache.table(0))
        for before, released in ((1, 0), (2, 1), (3, 1), (4, 2)):
            cache.release(0, before)
            assert cache.table(0) == [RELEASED] * released + first[released:]
            cache.check_integrity()
        cache.release(0, 9)
        assert cache.table(0).count(RELEASED) == (2 if reuse else 4)  # the third block has no name yet
        cache.check_integrity()
        cache.free(0)
        assert (cache.num_free, cache.num_idle) == (6, 2 if reuse else 0)
