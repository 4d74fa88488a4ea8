"""The block pool and the scheduler as state machines, over a fake model that reads its context back through the cache.
"""

from __future__ import annotations

from collections import deque
from itertools import chain, takewhile
from typing import Any

import pytest
from hypothesis import given
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

from ingot.errors import IngotError, RequestError, TooLongError
from ingot.llm.kv_cache import RELEASED, KVCache
from ingot.llm.scheduler import HEAD_START, Chunk, Request, Scheduler, Status, StepPlan


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
        """Its table is another list when it has become shorter, which is how a copy of it is known to be out of date.
        """
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


def next_token(tokens: list[int]) -> int:
    """The fake model: what comes after these tokens."""
    value = 7
    for token in tokens:
        value = (value * 31 + token + 1) % 1009
    return value


class FakeModel:
    """Remembers tokens by slot, and computes from what it finds there.

    Steps are computed when they are launched, and their results told when they are finished, so that several may be
    under way. A token of `stops` ends its request.
    """

    def __init__(self, scheduler: Scheduler[Request], stops: frozenset[int] = frozenset()) -> None:
        self.scheduler = scheduler
        self.stops = stops
        self.memory: dict[int, tuple[int, bool]] = {}  # by slot: the token, and whether its request was long
        self.tokens: dict[int, list[int]] = {}  # by request, with what was chosen in steps under way
        self.under_way: deque[tuple[StepPlan[Request], list[list[int]]]] = deque()

    def run(self, step: StepPlan[Request]) -> None:
        """Launches a step and finishes it."""
        self.launch(step)
        self.finish()

    def launch(self, step: StepPlan[Request]) -> None:
        """Writes every chunk, then reads each context back through its block table."""
        scheduler, cache = self.scheduler, self.scheduler.cache
        seen = [c.request.id for c in step.chunks]
        assert len(seen) == len(set(seen)), "a request is in a step twice"
        assert step.tokens == sum(c.count for c in step.chunks) <= scheduler.max_step_tokens
        results = sum(c.count * c.request.row_bytes for c in step.chunks)
        drafts = sum(len(c.drafts) for c in step.chunks)
        assert results + drafts * scheduler.draft_bytes <= scheduler.max_row_bytes
        slots = [self._write(chunk) for chunk in step.chunks]
        assert len(set(chain(*slots))) == step.tokens, "two chunks write one slot"
        self.under_way.append((step, [self._read(chunk) for chunk in step.chunks]))
        scheduler.advance(step)
        for block, (_, tokens) in cache._name_of.items():
            held = [self.memory[block * cache.block_size + i][0] for i in range(cache.block_size)]
            assert held == list(tokens), "a block is not what it is found by"

    def finish(self) -> None:
        """Hands over the results of the step that has been under way for longest."""
        step, results = self.under_way.popleft()
        for chunk, tokens in zip(step.chunks, results, strict=True):
            request = chunk.request
            taken = list(takewhile(lambda token: token not in self.stops, tokens))
            self.scheduler.accept(chunk, taken)
            if request.status is Status.FINISHED:
                continue
            whole = len(request.tokens) == request.max_length
            if len(taken) < len(tokens) or (whole and (request.generates or chunk.ends)):
                self.scheduler.remove(request)

    def _write(self, chunk: Chunk[Request]) -> list[int]:
        request, cache = chunk.request, self.scheduler.cache
        assert request.status is Status.RUNNING
        assert chunk.start == request.computed
        mine = self.tokens.setdefault(request.id, list(request.tokens))
        known = chunk.count - len(chunk.drafts)
        fed = [*mine[chunk.start : chunk.start + known], *chunk.drafts]
        assert len(fed) == chunk.count
        assert fed[: len(chunk.tokens)] == chunk.tokens  # a token that is not known yet is the last one
        assert chunk.start + len(chunk.tokens) >= min(chunk.start + chunk.count, len(request.tokens))
        assert chunk.ends == (chunk.start + known >= len(request.tokens))
        assert not chunk.drafts or chunk.start + known == len(request.tokens)
        slots = []
        for at, token in enumerate(fed, chunk.start):
            block = cache.table(request.id)[at // cache.block_size]
            assert cache._owners_of[block] == 1, "a shared block is written"
            assert block not in cache._name_of, "a block that can be found by its tokens is written"
            slots.append(block * cache.block_size + at % cache.block_size)
            self.memory[slots[-1]] = token, self.scheduler.is_long(request)
        return slots

    def _read(self, chunk: Chunk[Request]) -> list[int]:
        """The tokens chosen: one, and one more after each draft that is what was chosen."""
        request, cache = chunk.request, self.scheduler.cache
        table, size, window = cache.table(request.id), cache.block_size, self.scheduler.window
        mine, long = self.tokens[request.id], self.scheduler.is_long(request)
        if not (chunk.ends and request.generates):
            return []
        chosen: list[int] = []
        for place, draft in enumerate([*chunk.drafts, None], chunk.start + chunk.count - len(chunk.drafts)):
            seen = range(0 if window is None else max(0, place - window), place)
            context = [self.memory[table[at // size] * size + at % size] for at in seen]
            assert context == [(token, long) for token in mine[seen.start : place]]
            short = self.scheduler.short_length
            assert short is None or long == (place > short), "computed in the other form"
            mine.append(next_token(mine[:place]))
            chosen.append(mine[-1])
            if mine[-1] != draft:
                break
        return chosen


def expected(prompt: list[int], length: int, stops: frozenset[int] = frozenset()) -> list[int]:
    tokens = list(prompt)
    while len(tokens) < length:
        token = next_token(tokens)
        if token in stops:
            break
        tokens.append(token)
    return tokens


def guess(request: Request, rights: list[bool]) -> list[int]:
    """Drafts for a request, each right or wrong as asked."""
    tokens = list(request.tokens)
    for right in rights:
        tokens.append((next_token(tokens) + (not right)) % 1009)
    return tokens[len(request.tokens) :]


class SchedulerMachine(RuleBasedStateMachine):
    """Requests arrive, are aborted at any moment and finish; every one ends with the tokens it would have had alone."""

    @initialize(
        blocks=st.integers(2, 10),
        size=st.sampled_from([2, 4, 16]),
        budget=st.integers(3, 20),
        running=st.integers(1, 3),
        reuse=st.booleans(),
        window=st.sampled_from([None, None, 3, 9]),
        short=st.sampled_from([None, None, 5, 16, 20]),
        mixed=st.sampled_from([None, 1, 2, 3]),
        draft_bytes=st.integers(0, 3),
        stops=st.frozensets(st.integers(0, 1008), min_size=0, max_size=60),
        habit=st.lists(st.booleans(), max_size=7),
    )
    def start(
        self, blocks: int, size: int, budget: int, running: int, reuse: bool, window: int | None, short: int | None,
        mixed: int | None, draft_bytes: int, stops: frozenset[int], habit: list[bool],
    ) -> None:  # fmt: skip
        self.habit = habit  # which drafts are right in the end, when there is nothing to do but to finish
        cache = KVCache(blocks, size, reuse)
        self.scheduler: Scheduler[Request] = Scheduler(
            cache, budget, running, max(3, budget // 2), window, short, mixed, draft_bytes
        )
        self.model = FakeModel(self.scheduler, stops)
        self.requests: list[Request] = []
        self.aborted: set[int] = set()

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=30),
        more=st.integers(0, 12),
        row_bytes=st.integers(0, 3),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        salt=st.sampled_from([None, None, "adapter"]),
        streamed=st.booleans(),
    )
    def arrive(
        self, prompt: list[int], more: int, row_bytes: int, priority: int, salt: str | None, streamed: bool
    ) -> None:  # fmt: skip
        number = len(self.requests)
        request = Request(
            number, prompt, len(prompt) + more, generates=more > 0, row_bytes=0 if more else row_bytes,
            priority=priority, arrival=float(number), salt=salt,
        )  # fmt: skip
        request.streamed = streamed
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

    @rule(rights=st.lists(st.booleans(), max_size=7), lag=st.sampled_from([0, 0, 1, 2]))
    def step(self, rights: list[bool], lag: int) -> None:
        """One more step, with drafts, after which so many may stay under way."""
        alone = not self.model.under_way
        oldest = min((r for r in self.requests if r.status is not Status.FINISHED), key=urgency, default=None)
        before = (len(oldest.tokens), oldest.computed) if oldest else None
        decoding = self.scheduler.decoding()
        assert all(r.status is Status.RUNNING and r.computed == len(r.tokens) - 1 for r in decoding)
        step = self.scheduler.plan({r.id: guess(r, rights) for r in decoding})
        if alone:
            assert bool(step) == bool(self.scheduler)
        self.scheduler.check_integrity()
        if step:
            self.model.launch(step)
            self.scheduler.check_integrity()
        while len(self.model.under_way) > (lag if step else 0):
            self.model.finish()
            self.scheduler.check_integrity()
        if alone and not lag and oldest and oldest.status is not Status.FINISHED:
            assert (len(oldest.tokens), oldest.computed) > before, "the most urgent request did not advance"

    @rule()
    def weights_change(self) -> None:
        if not self.model.under_way:
            self.scheduler.cache.forget()

    @rule(which=st.integers(0, 1000))
    def abort_between_plan_and_result(self, which: int) -> None:
        step = self.scheduler.plan()
        if step:
            victim = step.chunks[which % len(step.chunks)].request
            self.aborted.add(victim.id)
            self.scheduler.remove(victim)
            step.chunks = [c for c in step.chunks if c.request is not victim]
            step.tokens = sum(c.count for c in step.chunks)
        self.model.launch(step)
        while self.model.under_way:
            self.model.finish()

    @invariant()
    def whole(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check_integrity()
            for request in self.scheduler.running:
                held = len(self.scheduler.cache.table(request.id))
                assert request.under_way or held <= self.scheduler.cache.blocks_for(len(request.tokens))

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        limit = sum(r.max_length for r in self.requests) * 4 + 10
        while self.model.under_way:
            self.model.finish()
        while self.scheduler:
            self.model.run(self.scheduler.plan({r.id: guess(r, self.habit) for r in self.scheduler.decoding()}))
            self.scheduler.check_integrity()
            limit -= 1
            assert limit, "requests never end"
        assert self.scheduler.cache.num_free == self.scheduler.cache.num_blocks
        for request in self.requests:
            assert request.status is Status.FINISHED
            if request.id not in self.aborted:
                prompt = request.tokens[: request.prompt_length]
                assert request.tokens == expected(prompt, request.max_length, self.model.stops)


TestScheduler = SchedulerMachine.TestCase


def urgency(request: Request) -> tuple[float, int]:
    return request.urgency


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


@pytest.mark.parametrize(("streamed", "count"), [(True, 2), (False, 7)])
def test_prompts_take_little_beside_an_answer_that_is_read(streamed: bool, count: int) -> None:
    scheduler: Scheduler[Request] = Scheduler(KVCache(20, 4), 8, 4, 8, max_mixed_tokens=2)
    model = FakeModel(scheduler)
    first, second = Request(0, [1, 2], 4), Request(1, list(range(20)), 22)
    first.streamed = streamed
    scheduler.add(first)
    model.run(scheduler.plan())
    scheduler.add(second)
    step = scheduler.plan()
    assert [(c.request.id, c.start, c.count) for c in step.chunks] == [(0, 2, 1), (1, 0, count)]
    model.run(step)
    assert first.status is Status.FINISHED
    assert [(c.start, c.count) for c in scheduler.plan().chunks] == [(count, 8)]  # nobody's pace is at stake


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    scheduler = make(blocks=40, budget=8)
    model = FakeModel(scheduler)
    scheduler.add(Request(0, list(range(80)), 81))
    model.run(scheduler.plan())
    scheduler.add(Request(1, [5, 6, 7], 5))
    step = scheduler.plan()
    assert [(c.request.id, c.count, c.ends) for c in step.chunks] == [(0, 5, False), (1, 3, True)]


def test_a_prefix_is_computed_once() -> None:
    scheduler = make(blocks=20, size=4, budget=16)
    model = FakeModel(scheduler)
    shared = list(range(50, 61))  # two blocks and three tokens
    first, second = Request(0, [*shared, 1], 14), Request(1, [*shared, 2], 14)
    third, other = Request(2, shared[:9], 12), Request(3, [*shared, 1], 14, salt="adapter")
    for request in (first, second, third, other):
        scheduler.add(request)
        while scheduler:
            model.run(scheduler.plan())
            scheduler.check_integrity()
    assert [r.found for r in (first, second, third, other)] == [0, 8, 8, 0]
    assert [r.tokens for r in (first, second)] == [expected([*shared, 1], 14), expected([*shared, 2], 14)]
    assert scheduler.cache.tokens_found == 16
    assert scheduler.cache.num_free == 20


def test_whole_blocks_alone_leave_a_token_to_compute() -> None:
    scheduler = make(blocks=20, size=4, budget=16)
    model = FakeModel(scheduler)
    for number in range(2):
        scheduler.add(Request(number, list(range(8)), 9))
        step = scheduler.plan()
        assert [(c.start, c.count) for c in step.chunks] == [((0, 8), (4, 4))[number]]
        model.run(step)


def test_what_was_used_last_is_kept_longest() -> None:
    cache = KVCache(4, 2)
    for owner, tokens in ((1, [1, 2, 3, 4]), (2, [5, 6, 7, 8])):
        assert cache.allocate(owner, 4, tokens) == 0
        cache.record(owner, tokens, 4)
        cache.free(owner)
    assert cache.num_idle == cache.num_free == 4
    assert cache.allocate(3, 5, [1, 2, 3, 4, 9]) == 4  # found; its third block takes the end of the other sequence
    cache.check_integrity()
    cache.free(3)
    assert cache.allocate(4, 5, [5, 6, 7, 8, 9]) == 2
    cache.check_integrity()


def test_a_sliding_window_gives_blocks_back() -> None:
    cache = KVCache(4, 4)
    scheduler: Scheduler[Request] = Scheduler(cache, 4, 1, 1, window=6)
    model = FakeModel(scheduler)
    request = Request(0, [1, 2, 3], 14)
    scheduler.add(request)
    while scheduler:
        model.run(scheduler.plan())
        scheduler.check_integrity()
        if request.status is Status.RUNNING:
            held = [block for block in cache.table(0) if block != RELEASED]
            assert len(held) <= 3
    assert request.tokens == expected([1, 2, 3], 14)


def test_a_request_that_outgrows_its_short_form_is_computed_again() -> None:
    scheduler: Scheduler[Request] = Scheduler(KVCache(8, 4), 8, 2, 8, short_length=9)
    model = FakeModel(scheduler)
    request, again = Request(0, [1, 2, 3, 4, 5], 13), Request(1, [1, 2, 3, 4, 5], 10)
    scheduler.add(request)
    seen: list[tuple[int, int]] = []
    while scheduler:
        step = scheduler.plan()
        seen += [(c.start, c.count) for c in step.chunks]
        model.run(step)
        scheduler.check_integrity()
    assert seen == [(0, 5), (5, 1), (6, 1), (7, 1), (8, 1), (0, 8), (8, 2), (10, 1), (11, 1)]
    assert request.tokens == expected([1, 2, 3, 4, 5], 13) and scheduler.preemptions == 0
    scheduler.add(again)  # finds the short form; its tenth token is its last, which nothing has to be computed for
    assert [(c.start, c.count) for c in scheduler.plan().chunks] == [(4, 1)]
    scheduler.remove(again)
    longer = Request(2, request.tokens[:12], 13)
    scheduler.add(longer)  # finds the long form
    assert [(c.start, c.count) for c in scheduler.plan().chunks] == [(8, 4)]


def test_named_blocks_are_not_trimmed() -> None:
    cache = KVCache(4, 4)
    cache.allocate(1, 10)
    cache.record(1, list(range(10)), 8)
    cache.trim(1, 5)
    assert len(cache.table(1)) == 2
    with pytest.raises(ValueError, match="2 blocks that can be found"):
        cache.trim(1, 4)


def test_drafts_take_what_others_leave() -> None:
    """Of the budget, of the bytes of results, of the blocks: decodes and prompts first, then the most urgent."""
    cache = KVCache(20, 4)
    scheduler: Scheduler[Request] = Scheduler(cache, 16, 4, 12, draft_bytes=2)
    model = FakeModel(scheduler)
    for number in range(2):
        scheduler.add(Request(number, [number], 30))
    model.run(scheduler.plan())
    guesses = {r.id: guess(r, [True] * 7) for r in scheduler.decoding()}

    def planned() -> list[tuple[int, int, int, int]]:
        step = scheduler.plan(guesses)
        for request in scheduler.running:
            cache.trim(request.id, len(request.tokens))
        return [(c.request.id, c.start, c.count, len(c.drafts)) for c in step.chunks]

    assert planned() == [(0, 1, 7, 6), (1, 1, 1, 0)]  # 12 bytes are six drafts
    scheduler.draft_bytes = 1
    assert planned() == [(0, 1, 8, 7), (1, 1, 6, 5)]
    scheduler.draft_bytes = 0
    assert planned() == [(0, 1, 8, 7), (1, 1, 8, 7)]
    scheduler.max_step_tokens = 11
    assert planned() == [(0, 1, 8, 7), (1, 1, 3, 2)]
    scored = Request(2, [1] * 5, 5, generates=False, row_bytes=2)
    scheduler.add(scored)
    assert planned() == [(0, 1, 5, 4), (1, 1, 1, 0), (2, 0, 5, 0)]
    scheduler.draft_bytes = 1
    assert planned() == [(0, 1, 3, 2), (1, 1, 1, 0), (2, 0, 5, 0)]  # of 12 bytes the scores take ten
    scheduler.remove(scored)
    scheduler.draft_bytes, scheduler.max_step_tokens = 0, 16
    cache.allocate(100, 4 * 17)
    assert cache.num_free == 1
    assert planned() == [(0, 1, 7, 6), (1, 1, 3, 2)]
    assert cache.num_free == 1 and not scheduler.preemptions
    cache.free(100)
    scheduler.check_integrity()


@pytest.mark.parametrize(("words", "length", "drafts"), [({}, 6, 3), ({"short_length": 4}, 30, 2), ({}, 3, 0)])
def test_drafts_end_where_the_request_does(words: dict[str, int], length: int, drafts: int) -> None:
    """One token less than may still come, for one is chosen behind them; and none beyond the short form."""
    scheduler: Scheduler[Request] = Scheduler(KVCache(20, 4), 16, 4, 16, **words)
    model = FakeModel(scheduler)
    request = Request(0, [5], length)
    scheduler.add(request)
    model.run(scheduler.plan())
    step = scheduler.plan({0: guess(request, [True] * 7)})
    assert [len(chunk.drafts) for chunk in step.chunks] == [drafts]
    model.run(step)
    assert request.tokens == expected([5], 2 + drafts + 1)
    assert request.status is (Status.WAITING if words else Status.FINISHED)


def test_a_decode_may_be_planned_before_its_token_is_known() -> None:
    scheduler = make(blocks=20)
    model = FakeModel(scheduler)
    request = Request(0, [1, 2], 6)
    scheduler.add(request)
    seen = []
    for _ in range(4):
        step = scheduler.plan()
        seen += [(c.start, c.count, c.ends, list(c.tokens)) for c in step.chunks]
        model.launch(step)
    assert seen == [(0, 2, True, [1, 2]), (2, 1, True, []), (3, 1, True, []), (4, 1, True, [])]
    assert not scheduler.plan()  # the sixth token is its last
    assert (request.tokens, request.computed, request.settled) == ([1, 2], 5, 0)
    for _ in range(4):
        model.finish()
    assert (request.tokens, request.status) == (expected([1, 2], 6), Status.FINISHED)


def test_who_waits_for_results_takes_no_share() -> None:
    """Of the budget, which two prompts halve."""
    scheduler = make(blocks=40)
    model = FakeModel(scheduler)
    scheduler.add(Request(0, [1] * 5, 5, generates=False))
    model.launch(scheduler.plan())
    for number in (1, 2):
        scheduler.add(Request(number, [number] * 20, 21))
    assert [(c.request.id, c.count) for c in scheduler.plan().chunks] == [(1, 4), (2, 4)]


def test_a_second_answer_waits_until_the_prompt_can_be_found() -> None:
    scheduler = make(blocks=20, size=4, budget=16)
    model = FakeModel(scheduler)
    first, second = (Request(i, list(range(9)), 12) for i in range(2))
    second.after = first
    scheduler.add(first)
    scheduler.add(second)
    for wanted in ([0], [0], [0, 1]):
        step = scheduler.plan()
        assert [c.request.id for c in step.chunks] == wanted
        model.launch(step)
        if len(model.under_way) > 1:
            model.finish()
    assert second.found == 8


def test_nothing_is_accepted_that_was_not_computed() -> None:
    scheduler = make(blocks=20)
    request, more = Request(0, [1, 2, 3], 6), Request(1, [1] * 9, 12)
    scheduler.add(request)
    scheduler.add(more)
    step = scheduler.plan()
    scheduler.advance(step)
    first, second = step.chunks
    assert not second.ends
    for chunk, tokens, match in (
        (first, [4, 5], r"accepts \[4, 5\], its drafts were \[\]"),
        (second, [4], "request 1 accepts"),
        (first, [4], "may have 3 tokens, not 4"),
    ):
        if "may" in match:
            request.max_length = 3
        with pytest.raises(IngotError, match=match):
            scheduler.accept(chunk, tokens)


def test_accepted_drafts_are_those_that_were_computed() -> None:
    scheduler = make(blocks=20)
    request = Request(0, [1], 9)
    scheduler.add(request)
    step = scheduler.plan({0: [5, 6, 7]})
    scheduler.advance(step)
    for wrong in ([6, 5], [5, 7, 6], [5, 6, 7, 8, 9]):
        with pytest.raises(IngotError, match=r"its drafts were \[5, 6, 7\]"):
            scheduler.accept(step.chunks[0], wrong)
    request.under_way = 1
    scheduler.accept(step.chunks[0], [5, 6, 9])
    assert (request.tokens, request.settled, request.computed) == ([1, 5, 6, 9], 3, 3)
    scheduler.check_integrity()


def test_nothing_follows_drafts_before_they_are_known() -> None:
    scheduler = make(blocks=20)
    model = FakeModel(scheduler)
    request = Request(0, [1], 9)
    scheduler.add(request)
    model.launch(scheduler.plan({0: guess(request, [False])}))
    assert not scheduler.plan() and not scheduler.decoding()
    model.finish()
    assert [c.start for c in scheduler.plan().chunks] == [1]


def test_no_token_is_computed_in_the_form_that_it_outgrows() -> None:
    """Not even ahead of the token with which the request becomes a long one."""
    scheduler: Scheduler[Request] = Scheduler(KVCache(8, 4), 8, 2, 8, short_length=4)
    model = FakeModel(scheduler)
    request = Request(0, [1, 2, 3], 8)
    scheduler.add(request)
    seen = []
    while scheduler:
        step = scheduler.plan()
        seen.append([(c.start, c.count) for c in step.chunks])
        if step:
            model.launch(step)
        while len(model.under_way) > bool(step):
            model.finish()
            scheduler.check_integrity()
    assert seen == [[(0, 3)], [(3, 1)], [], [(0, 5)], [(5, 1)], [(6, 1)], []]
    assert request.tokens == expected([1, 2, 3], 8)


def test_a_whole_request_is_not_computed_in_its_long_form() -> None:
    scheduler: Scheduler[Request] = Scheduler(KVCache(8, 4), 8, 2, 8, short_length=3)
    request = Request(0, [1, 2, 3], 4)
    scheduler.add(request)
    step = scheduler.plan()
    scheduler.advance(step)
    scheduler.accept(step.chunks[0], [4])
    assert request.status is Status.RUNNING


def test_a_chunk_without_tokens_is_computed_again() -> None:
    scheduler = make(blocks=20)
    request = Request(0, [1, 2, 3], 6)
    scheduler.add(request)
    step = scheduler.plan()
    scheduler.advance(step)
    scheduler.accept(step.chunks[0])
    scheduler.check_integrity()
    assert [(c.start, c.count, c.ends) for c in scheduler.plan().chunks] == [(2, 1, True)]


def test_priority_goes_first_and_nobody_starves() -> None:
    scheduler = make(blocks=4, size=4, budget=8, running=1)
    model = FakeModel(scheduler)
    low = Request(0, [1, 2, 3, 4, 5], 9, priority=0, arrival=0.0)
    scheduler.add(low)
    model.run(scheduler.plan())
    high = Request(1, [1, 2, 3], 5, priority=1, arrival=1.0)
    late = Request(2, [1, 2, 3], 5, priority=1, arrival=HEAD_START + 1.0)
    for request in (late, high):
        scheduler.add(request)
    order: list[int] = []
    while scheduler:
        step = scheduler.plan()
        scheduler.check_integrity()
        order += [c.request.id for c in step.chunks]
        model.run(step)
    assert list(dict.fromkeys(order)) == [1, 0, 2]
    assert scheduler.preemptions == 1
    assert [r.tokens for r in (low, high)] == [expected([1, 2, 3, 4, 5], 9), expected([1, 2, 3], 5)]


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


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.integers(1, 20), st.integers(4, 9))
def test_first_come_first_served(lengths: list[int], prompt: int, budget: int) -> None:
    """Requests of one length that all fit at once get their first token in the order in which they came."""
    scheduler: Scheduler[Request] = Scheduler(KVCache(100, 4), budget, 4, budget)
    model = FakeModel(scheduler)
    for id, more in enumerate(lengths):
        scheduler.add(Request(id, [id] * prompt, prompt + more))
    order: list[int] = []
    while scheduler:
        step = scheduler.plan()
        model.run(step)
        order += [c.request.id for c in step.chunks if c.ends and c.request.id not in order]
    assert order == sorted(order)


def test_a_block_is_found_after_its_own_beginning_alone() -> None:
    """Equal tokens behind other ones are another content, however many contents there were before."""
    cache = KVCache(12, 2)
    for owner, tokens in enumerate(([1, 2, 3, 4], [5, 6, 7, 8], [9, 9, 9, 9])):
        assert cache.allocate(owner, 4, tokens) == 0
        cache.record(owner, tokens, 4)
    for owner, (tokens, found) in enumerate((
        ([1, 2, 3, 4, 0], 4), ([5, 6, 7, 8, 0], 4), ([5, 6, 3, 4, 0], 2), ([1, 2, 7, 8, 0], 2), ([3, 4, 0], 0),
        ([9, 9, 9, 9, 9, 9, 0], 4),
    ), 3):
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


def test_a_pool_and_steps_of_at_least_one() -> None:
    KVCache(1, 1)
    for blocks, size in ((0, 1), (1, 0), (-1, 1)):
        with pytest.raises(ValueError, match="at least one block of one token"):
            KVCache(blocks, size)
    cache = KVCache(1, 1)
    for running, mixed in ((1, 1), (4, 4), (4, None)):
        assert Scheduler(cache, 4, running, 1, max_mixed_tokens=mixed).max_mixed_tokens == (mixed or 4)
    for running, mixed in ((0, 1), (5, 1), (1, 0), (1, 5)):
        with pytest.raises(ValueError, match="max_running, max_mixed_tokens"):
            Scheduler(cache, 4, running, 1, max_mixed_tokens=mixed)


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


def filled() -> Scheduler[Request]:
    """Two requests that run and two that wait, of five tokens each in blocks of four; nothing has been computed."""
    scheduler = make(blocks=8, size=4, running=2)
    for number in range(4):
        scheduler.add(Request(number, [1] * 5, 7))
    assert [c.request.id for c in scheduler.plan().chunks] == [0, 1]
    return scheduler


def change(request: Request, **words: Any) -> None:
    for name, value in words.items():
        setattr(request, name, value)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda s: s.running.reverse(), "running requests are out of order"),
        (lambda s: s.waiting.reverse(), "waiting requests are out of order"),
        (lambda s: s.waiting.append(s.waiting[-1]), "waiting requests are out of order"),
        (lambda s: setattr(s, "max_running", 1), "2 requests run, more than 1"),
        (lambda s: change(s.waiting[0], computed=1), "request 2 waits as"),
        (lambda s: change(s.waiting[1], settled=1), "request 3 waits as"),
        (lambda s: change(s.waiting[0], status=Status.RUNNING), "request 2 waits as"),
        (lambda s: change(s.running[1], status=Status.WAITING), "request 1 of 5 tokens runs as"),
        (lambda s: change(s.running[0], computed=1), "0 settled, 1 computed"),
        (lambda s: change(s.running[0], settled=1), "1 settled, 0 computed"),
        (lambda s: change(s.running[0], computed=1, settled=2, under_way=1), "2 settled, 1 computed"),
        (lambda s: change(s.running[0], computed=5, settled=5), "5 settled, 5 computed"),
        (lambda s: change(s.running[0], computed=9, under_way=1), "9 computed, 1 chunks under way, in 2 blocks"),
        (lambda s: change(s.running[0], under_way=-1), "-1 chunks under way"),
        (lambda s: change(s.running[0], verifying=True), "request 0 of 5 tokens runs as"),
        (lambda s: s.cache.record(0, [1] * 5, 4), "0 settled, 0 computed"),  # a block named before it is settled
        (lambda s: s.running.pop(), "blocks are owned by"),
    ],
)  # fmt: skip
def test_a_corrupt_scheduler_is_noticed(harm: Any, words: str) -> None:
    scheduler = filled()
    harm(scheduler)
    with pytest.raises(IngotError, match=words):
        scheduler.check_integrity()


@pytest.mark.parametrize(
    "words",
    [
        {}, {"computed": 4, "settled": 4}, {"computed": 8, "under_way": 1},
        {"computed": 8, "settled": 8, "under_way": 2},
        {"under_way": 1, "verifying": True}, {"generates": False, "computed": 5, "settled": 5},
    ],
)  # fmt: skip
def test_a_sound_scheduler_is_none(words: dict[str, Any]) -> None:
    scheduler = filled()
    change(scheduler.running[0], **words)
    scheduler.check_integrity()


def test_who_waits_for_anothers_prompt() -> None:
    """It is passed over until the prompt has been computed, and those behind it are not."""
    scheduler = make(blocks=20, size=2, budget=4, running=3)
    model = FakeModel(scheduler)
    first, second, third = (Request(i, [1, 2, 3, 4, 5, 6 + (i == 2)], 9) for i in range(3))
    second.after = first
    for request in (first, second, third):
        scheduler.add(request)
    ids: list[list[int]] = []
    while scheduler:
        step = scheduler.plan()
        ids.append([c.request.id for c in step.chunks])
        model.run(step)
        scheduler.check_integrity()
    assert ids[:3] == [[0, 2]] * 3 and 1 in ids[3]  # two tokens a step for each of the two prompts of six
    assert (first.found, second.found, third.found) == (0, 4, 0)
    gone = Request(3, [9, 9, 9], 5)
    late = Request(4, [9, 9, 9], 5)
    late.after = gone
    scheduler.add(gone)
    scheduler.add(late)
    scheduler.remove(gone)  # nobody computes what it waited for
    assert [c.request.id for c in scheduler.plan().chunks] == [4]


def test_how_a_step_is_shared_out() -> None:
    """Half for the most urgent prompt, half for the others alike, and what they leave in order."""
    for lengths, budget, counts in (
        ([30, 30, 30], 12, [6, 3, 3]), ([30, 30, 30], 13, [7, 3, 3]), ([30, 2, 30], 12, [7, 2, 3]),
        ([2, 30, 30], 12, [2, 7, 3]), ([2, 3, 4], 12, [2, 3, 4]), ([30], 12, [12]), ([30, 30], 2, [1, 1]),
    ):
        scheduler = make(blocks=100, budget=budget, running=min(4, budget))
        for number, length in enumerate(lengths):
            scheduler.add(Request(number, [number] * length, length + 1))
        step = scheduler.plan()
        assert [c.count for c in step.chunks] == counts
        assert [c.ends for c in step.chunks] == [n == m for n, m in zip(counts, lengths, strict=True)]
        assert step.tokens == sum(counts)


def test_rows_are_wanted_within_their_bytes() -> None:
    scheduler: Scheduler[Request] = Scheduler(KVCache(100, 4), 40, 4, 10)
    with pytest.raises(RequestError, match="a token's result takes 11 bytes, a step has 10"):
        scheduler.add(Request(0, [1], 1, generates=False, row_bytes=11))
    for number, size in enumerate((3, 10, 0)):
        scheduler.add(Request(number, [number] * 9, 9, generates=False, row_bytes=size))
    assert [(c.request.id, c.count) for c in scheduler.plan().chunks] == [(0, 3), (2, 9)]


def test_a_token_too_many_is_refused() -> None:
    scheduler = make()
    request = Request(0, [1, 2], 3)
    scheduler.add(request)
    step = scheduler.plan()
    scheduler.advance(step)
    with pytest.raises(IngotError, match="request 0 may have 3 tokens, not 4"):
        scheduler.accept(step.chunks[0], [5, 6])
    scheduler.accept(step.chunks[0], [5])
    assert request.tokens == [1, 2, 5]


def test_room_is_made_only_where_it_is_enough() -> None:
    """A waiting request takes blocks of less urgent ones, as few as it needs, and none when all would not do."""
    for length, running in ((4, [3, 0, 1]), (8, [3, 0]), (12, [3]), (13, [0, 1, 2])):
        scheduler = make(blocks=3, size=4, budget=16, running=4)
        model = FakeModel(scheduler)
        for number in range(3):
            scheduler.add(Request(number, [number] * 4, 5))
        step = scheduler.plan()
        assert len(step.chunks) == 3
        if length < 13:
            scheduler.add(Request(3, [7] * length, length + 1, priority=1))
        else:
            with pytest.raises(TooLongError):
                scheduler.add(Request(3, [7] * length, length + 1, priority=1))
        scheduler.plan()
        assert [r.id for r in scheduler.running] == running
        scheduler.check_integrity()
        while scheduler:
            model.run(scheduler.plan())


def test_a_decode_takes_no_more_room_than_it_needs() -> None:
    """The least urgent goes, and nobody else once there is a block."""
    scheduler = make(blocks=4, size=2, budget=8)
    model = FakeModel(scheduler)
    for number, length in enumerate((4, 2, 1)):
        scheduler.add(Request(number, [number] * length, length + 2))
    model.run(scheduler.plan())
    assert scheduler.cache.num_free == 0
    step = scheduler.plan()
    assert [c.request.id for c in step.chunks] == [0]  # the second one needs a block too, and there is none left
    assert ([r.id for r in scheduler.running], scheduler.preemptions) == ([0], 2)
    scheduler = make(blocks=4, size=2, budget=8)
    for number, length in enumerate((4, 1, 1)):
        scheduler.add(Request(number, [number] * length, length + 2))
    FakeModel(scheduler).run(scheduler.plan())
    assert [c.request.id for c in scheduler.plan().chunks] == [0, 1]
    assert ([r.id for r in scheduler.running], scheduler.preemptions) == ([0, 1], 1)
