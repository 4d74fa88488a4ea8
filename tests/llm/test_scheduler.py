"""The block pool and the scheduler as state machines, over a fake model that reads its context back through the cache.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from ingot.errors import IngotError, RequestError, TooLongError
from ingot.llm.kv_cache import KVCache
from ingot.llm.scheduler import Request, Scheduler, Status, StepPlan


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
        assert self.cache.allocate(self.next, tokens) == fits
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
        (lambda c: c._free.append(c.table(1)[0]), "is held by"),
        (lambda c: c._free.pop(), "nobody holds"),
        (lambda c: c._free.append(99), "block 99"),
    ):
        cache = KVCache(4, 16)
        cache.allocate(1, 20)
        harm(cache)
        with pytest.raises(IngotError, match=words):
            cache.check_integrity()


def next_token(tokens: list[int]) -> int:
    """The fake model: what comes after these tokens."""
    value = 7
    for token in tokens:
        value = (value * 31 + token + 1) % 1009
    return value


class FakeModel:
    """Remembers tokens by slot, and computes from what it finds there."""

    def __init__(self, scheduler: Scheduler[Request]) -> None:
        self.scheduler = scheduler
        self.memory: dict[int, int] = {}

    def run(self, step: StepPlan[Request]) -> None:
        """Writes every chunk, then reads each context back through its block table, then advances."""
        cache, size = self.scheduler.cache, self.scheduler.cache.block_size
        seen = [c.request.id for c in step.chunks]
        assert len(seen) == len(set(seen)), "a request is in a step twice"
        assert step.tokens == sum(c.count for c in step.chunks) <= self.scheduler.max_step_tokens
        assert sum(c.count for c in step.chunks if c.request.scored) <= self.scheduler.max_scored_tokens
        for chunk in step.chunks:
            request, table = chunk.request, cache.table(chunk.request.id)
            assert request.status is Status.RUNNING
            assert chunk.start == request.computed
            for at in range(chunk.start, chunk.start + chunk.count):
                self.memory[table[at // size] * size + at % size] = request.tokens[at]
        for chunk in step.chunks:
            request, table = chunk.request, cache.table(chunk.request.id)
            stop = chunk.start + chunk.count
            context = [self.memory[table[at // size] * size + at % size] for at in range(stop)]
            assert context == request.tokens[:stop]
            assert chunk.ends == (stop == len(request.tokens))
            self.scheduler.advance(chunk, next_token(context) if chunk.ends and not request.scored else None)
            if chunk.ends and (request.scored or len(request.tokens) == request.max_length):
                self.scheduler.remove(request)


def expected(prompt: list[int], length: int) -> list[int]:
    tokens = list(prompt)
    while len(tokens) < length:
        tokens.append(next_token(tokens))
    return tokens


class SchedulerMachine(RuleBasedStateMachine):
    """Requests arrive, are aborted at any moment and finish; every one ends with the tokens it would have had alone."""

    @initialize(
        blocks=st.integers(2, 10),
        size=st.sampled_from([2, 4, 16]),
        budget=st.integers(3, 20),
        running=st.integers(1, 3),
    )
    def start(self, blocks: int, size: int, budget: int, running: int) -> None:
        self.scheduler: Scheduler[Request] = Scheduler(KVCache(blocks, size), budget, running, max(1, budget // 2))
        self.model = FakeModel(self.scheduler)
        self.requests: list[Request] = []
        self.aborted: set[int] = set()
        self.oldest_progress: tuple[int, int, int] | None = None

    @rule(prompt=st.lists(st.integers(0, 99), min_size=1, max_size=30), more=st.integers(0, 12))
    def arrive(self, prompt: list[int], more: int) -> None:
        request = Request(len(self.requests), prompt, len(prompt) + more, scored=more == 0)
        cache = self.scheduler.cache
        if cache.blocks_for(request.cached_length) > cache.num_blocks:
            with pytest.raises(TooLongError, match="whole key-value cache"):
                self.scheduler.add(request)
            return
        self.scheduler.add(request)
        self.requests.append(request)

    @rule(which=st.integers(0, 1000))
    def abort(self, which: int) -> None:
        if self.requests:
            request = self.requests[which % len(self.requests)]
            if request.status is not Status.FINISHED:
                self.aborted.add(request.id)
            self.scheduler.remove(request)  # one that has ended already is left alone

    @rule()
    def step(self) -> None:
        oldest = next((r for r in self.requests if r.status is not Status.FINISHED), None)
        before = (oldest.computed, len(oldest.tokens)) if oldest else None
        step = self.scheduler.plan()
        assert bool(step) == bool(self.scheduler)
        self.scheduler.check_integrity()
        self.model.run(step)
        if oldest and oldest.status is not Status.FINISHED:
            assert (oldest.computed, len(oldest.tokens)) > before, "the oldest request did not advance"

    @rule(which=st.integers(0, 1000))
    def abort_between_plan_and_result(self, which: int) -> None:
        step = self.scheduler.plan()
        if step:
            victim = step.chunks[which % len(step.chunks)].request
            self.aborted.add(victim.id)
            self.scheduler.remove(victim)
            step.chunks = [c for c in step.chunks if c.request is not victim]
            step.tokens = sum(c.count for c in step.chunks)
        self.model.run(step)

    @invariant()
    def whole(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        limit = sum(r.max_length for r in self.requests) * 4 + 10
        while self.scheduler:
            self.model.run(self.scheduler.plan())
            limit -= 1
            assert limit, "requests never end"
        assert self.scheduler.cache.num_free == self.scheduler.cache.num_blocks
        for request in self.requests:
            assert request.status is Status.FINISHED
            if request.id not in self.aborted:
                assert request.tokens == expected(request.tokens[: request.prompt_length], request.max_length)


TestScheduler = SchedulerMachine.TestCase


def make(blocks: int = 8, size: int = 4, budget: int = 8, running: int = 4) -> Scheduler[Request]:
    return Scheduler(KVCache(blocks, size), budget, running, budget)


def test_a_step_mixes_decodes_and_prompts_and_decodes_go_first() -> None:
    scheduler = make(blocks=20)
    first, second = Request(0, [1, 2], 6), Request(1, list(range(20)), 22)
    model = FakeModel(scheduler)
    scheduler.add(first)
    model.run(scheduler.plan())
    scheduler.add(second)
    step = scheduler.plan()
    assert [(c.request.id, c.start, c.count, c.ends) for c in step.chunks] == [(0, 2, 1, True), (1, 0, 7, False)]
    model.run(step)
    assert [(c.request.id, c.start, c.count) for c in scheduler.plan().chunks] == [(0, 3, 1), (1, 7, 7)]


def test_preemption_keeps_the_tokens_and_the_order() -> None:
    scheduler = make(blocks=4, size=2, budget=8)
    model = FakeModel(scheduler)
    requests = [Request(i, [i, i + 1, i + 2], 7) for i in range(3)]
    for request in requests:
        scheduler.add(request)
    while scheduler:
        model.run(scheduler.plan())
        scheduler.check_integrity()
    assert scheduler.preemptions
    assert [r.tokens for r in requests] == [expected([i, i + 1, i + 2], 7) for i in range(3)]


def test_what_can_never_fit_is_refused() -> None:
    scheduler = make(blocks=2, size=4)
    scheduler.add(Request(0, [1] * 8, 9))  # the ninth token is never fed back
    with pytest.raises(TooLongError, match="needs room for 9 tokens"):
        scheduler.add(Request(1, [1] * 8, 10))
    with pytest.raises(RequestError, match="empty"):
        scheduler.add(Request(2, [], 4))
    scheduler.check_integrity()


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 6)), min_size=1, max_size=6), st.integers(4, 9))
def test_first_come_first_served(sizes: list[tuple[int, int]], budget: int) -> None:
    """Requests that all fit at once get their first token in the order in which they came."""
    scheduler: Scheduler[Request] = Scheduler(KVCache(100, 4), budget, 4, budget)
    model = FakeModel(scheduler)
    for id, (prompt, more) in enumerate(sizes):
        scheduler.add(Request(id, [id] * prompt, prompt + more))
    order: list[int] = []
    while scheduler:
        step = scheduler.plan()
        model.run(step)
        order += [c.request.id for c in step.chunks if c.ends and c.request.id not in order]
    assert order == sorted(order)
