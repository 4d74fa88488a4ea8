"""A model that reads its context back through the cache, and what drives a scheduler in tests."""

from __future__ import annotations

from collections import deque
from itertools import chain, takewhile

from ingot.llm.kv_cache import KVCache
from ingot.llm.scheduler import Chunk, Request, Scheduler, Status, StepPlan


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


def urgency(request: Request) -> tuple[float, int]:
    return request.urgency


def make(blocks: int = 8, size: int = 4, budget: int = 8, running: int = 4) -> Scheduler[Request]:
    return Scheduler(KVCache(blocks, size), budget, running, budget)
