"""Positions that are planned before their tokens are known: drafts, and steps under way."""

from __future__ import annotations

import pytest

from ingot.errors import IngotError
from ingot.llm.kv_cache import KVCache
from ingot.llm.scheduler import Request, Scheduler, Status
from tests.llm.fake_model import FakeModel, expected, guess, make


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


def test_a_chunk_without_tokens_is_computed_again() -> None:
    scheduler = make(blocks=20)
    request = Request(0, [1, 2, 3], 6)
    scheduler.add(request)
    step = scheduler.plan()
    scheduler.advance(step)
    scheduler.accept(step.chunks[0])
    scheduler.check_integrity()
    assert [(c.start, c.count, c.ends) for c in scheduler.plan().chunks] == [(2, 1, True)]
