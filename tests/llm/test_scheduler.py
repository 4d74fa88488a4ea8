"""The scheduler as a state machine over a fake model, and by itself."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from ingot.errors import IngotError, RequestError, TooLongError
from ingot.llm.kv_cache import RELEASED, KVCache
from ingot.llm.scheduler import HEAD_START, Request, Scheduler, Status
from tests.llm.fake_model import FakeModel, expected, guess, make, urgency


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
            with pytest.raises(TooLongError, match="whole KV cache"):
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
        ([30, 30, 30], 12, [6, 3, 3]),
        ([30, 30, 30], 13, [7, 3, 3]),
        ([30, 2, 30], 12, [7, 2, 3]),
        ([2, 30, 30], 12, [2, 7, 3]),
        ([2, 3, 4], 12, [2, 3, 4]),
        ([30], 12, [12]),
        ([30, 30], 2, [1, 1]),
    ):
        scheduler = make(blocks=100, budget=budget, running=min(4, budget))
        for number, length in enumerate(lengths):
            scheduler.add(Request(number, [number] * length, length + 1))
        step = scheduler.plan()
        assert [c.count for c in step.chunks] == counts
        assert [c.ends for c in step.chunks] == [n == m for n, m in zip(counts, lengths, strict=True)]
        assert step.tokens == sum(counts)


def test_short_prompts_do_not_wait_for_a_long_one_where_there_is_not_a_token_for_each() -> None:
    """Beside an answer that is read four tokens of prompts fit: two are the long one's, which came first, and two the
    shortest's. A prompt as long that came later is not the next before those."""
    scheduler = make(blocks=1000, budget=32, running=16)
    for number, length in enumerate([1000, 900, *[6] * 10]):
        scheduler.add(Request(number, [number] * length, length + 1))
    scheduler.max_mixed_tokens = 4
    streamed = Request(99, [99], 1000, arrival=-1.0)
    streamed.streamed = True
    scheduler.add(streamed)
    ended = {}
    for at in range(100):
        step = scheduler.plan()
        assert step.prompt_tokens in (0, 4)
        scheduler.advance(step)
        for chunk in step.chunks:
            scheduler.accept(chunk, [7] if chunk.ends else [])
            if chunk.ends and chunk.request is not streamed:
                ended[chunk.request.id] = at
                scheduler.remove(chunk.request)
        scheduler.check_integrity()
    assert list(ended) == list(range(2, 12)) and max(ended.values()) <= 32
    assert next(r for r in scheduler.running if r.id == 0).computed >= 190


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
