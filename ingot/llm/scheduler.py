"""Which tokens of which requests go into the next step: continuous batching over one token budget, in plain Python.

A step mixes decodes (one token each) and prefill chunks. Decodes go first, so that a long prompt delays nobody by
more than a step; what is left of the budget goes to prompts, oldest first. A request is admitted in order of arrival,
when the cache has room for all its tokens so far; from then on only decoding asks for blocks, one at a time. When
there is none left the request that came last gives all its blocks back and waits at the head of the queue: its tokens
are kept and recomputed later, so the oldest request always advances and nothing is lost.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from ingot.errors import IngotError, RequestError, TooLongError
from ingot.llm.kv_cache import KVCache


class Status(Enum):
    """Where a request is."""

    NEW = "new"
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Request:
    """One sequence of tokens, from a prompt to its end.

    `max_length` bounds prompt and generated tokens together. `scored`: the logits of every token are wanted and
    nothing is generated, so `max_length` is the prompt's.
    """

    __slots__ = ("computed", "id", "max_length", "prompt_length", "scored", "status", "tokens")

    def __init__(self, id: int, prompt: list[int], max_length: int, scored: bool = False) -> None:
        self.id = id
        self.tokens = list(prompt)
        self.prompt_length = len(prompt)
        self.max_length = max_length
        self.scored = scored
        self.computed = 0  # leading tokens whose keys and values are in the cache
        self.status = Status.NEW

    @property
    def cached_length(self) -> int:
        """Positions the cache must hold before the request can end: a last generated token is never fed back."""
        return self.max_length if self.scored else self.max_length - 1


R = TypeVar("R", bound=Request)


@dataclass(slots=True)
class Chunk(Generic[R]):
    """The tokens `start … start+count-1` of a request, to be computed in this step."""

    request: R
    start: int
    count: int
    ends: bool  # it reaches the request's last token, whose logits choose the next one


@dataclass(slots=True)
class StepPlan(Generic[R]):
    """What one step computes."""

    chunks: list[Chunk[R]]
    tokens: int

    def __bool__(self) -> bool:
        return bool(self.chunks)


class Scheduler(Generic[R]):
    """Waiting and running requests over one cache. Not safe from several threads: the engine loop owns it.

    Args:
        cache: the block pool.
        max_step_tokens: token budget of a step.
        max_running: requests in flight at once, at most `max_step_tokens`, so that every decode fits a step.
        max_scored_tokens: of the budget, how many may belong to scored requests (each needs a row of logits).
    """

    def __init__(self, cache: KVCache, max_step_tokens: int, max_running: int, max_scored_tokens: int) -> None:
        if not 1 <= max_running <= max_step_tokens or not 1 <= max_scored_tokens <= max_step_tokens:
            raise ValueError("need 1 <= max_running, max_scored_tokens <= max_step_tokens")
        self.cache = cache
        self.max_step_tokens = max_step_tokens
        self.max_running = max_running
        self.max_scored_tokens = max_scored_tokens
        self.waiting: deque[R] = deque()  # in order of arrival, all later than those running
        self.running: list[R] = []  # in order of arrival
        self.preemptions = 0

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.running or self.waiting)

    def check(self, request: Request) -> None:
        """Refuses a request that could never be carried out. Reads constants only: safe from any thread.

        Raises RequestError for an empty prompt, TooLongError when even the empty cache is too small.
        """
        if not request.tokens:
            raise RequestError("the prompt is empty: there is no token to go on from")
        capacity = self.cache.num_blocks * self.cache.block_size
        if self.cache.blocks_for(request.cached_length) > self.cache.num_blocks:
            raise TooLongError(
                f"the request needs room for {request.cached_length} tokens ({request.prompt_length} of the prompt) "
                f"and the whole key-value cache holds {capacity}: ask for fewer tokens, or give the cache more memory "
                "(kv_memory)"
            )

    def add(self, request: R) -> None:
        """Puts a request at the end of the queue. Raises like `check`."""
        self.check(request)
        request.status = Status.WAITING
        self.waiting.append(request)

    def remove(self, request: R) -> None:
        """Ends a request wherever it is and takes its blocks back; one that has ended already is left alone."""
        if request.status is Status.RUNNING:
            self.running.remove(request)
            self.cache.free(request.id)
        elif request.status is Status.WAITING:
            self.waiting.remove(request)
        request.status = Status.FINISHED

    def plan(self) -> StepPlan[R]:
        """The next step; empty only when there is nothing to do. Every chunk's blocks are allocated."""
        step: StepPlan[R] = StepPlan([], 0)
        preemptions = self.preemptions
        self._plan_decodes(step)
        scored_left = self.max_scored_tokens
        for request in self.running:
            if not _decodes(request):
                scored_left -= self._plan_chunk(step, request, scored_left)
        if self.preemptions == preemptions:
            # After a preemption the freed blocks belong to the older requests: admitting now would take them back.
            self._admit(step, scored_left)
        return step

    def advance(self, chunk: Chunk[R], token: int | None) -> None:
        """Records that a chunk was computed, and the token chosen after it when it `ends` a request that generates.

        A request removed since the step was planned is left alone.
        """
        request = chunk.request
        if request.status is not Status.RUNNING:
            return
        request.computed += chunk.count
        if token is not None:
            if len(request.tokens) >= request.max_length:
                raise IngotError(f"request {request.id} has its {request.max_length} tokens already")
            request.tokens.append(token)

    def check_integrity(self) -> None:
        """Raises IngotError unless queue, running requests and cache agree."""
        self.cache.check_integrity()
        order = [*self.running, *self.waiting]
        if any(a.id >= b.id for a, b in zip(order, order[1:], strict=False)):
            raise IngotError(f"requests are out of order: {[r.id for r in order]}")
        if len(self.running) > self.max_running:
            raise IngotError(f"{len(self.running)} requests run, more than {self.max_running}")
        for request in self.waiting:
            if request.status is not Status.WAITING or request.computed:
                raise IngotError(f"request {request.id} waits as {request.status}, {request.computed} tokens computed")
        for request in self.running:
            room = len(self.cache.table(request.id)) * self.cache.block_size
            if request.status is not Status.RUNNING or not request.computed <= min(room, len(request.tokens)):
                raise IngotError(
                    f"request {request.id} runs as {request.status}, {request.computed} tokens in room for {room}"
                )
        if self.cache.owners() != {r.id for r in self.running}:
            raise IngotError(
                f"blocks are owned by {sorted(self.cache.owners())}, running are {[r.id for r in self.running]}"
            )

    def _plan_decodes(self, step: StepPlan[R]) -> None:
        """One token for each running request that has one left to compute, oldest first."""
        running = self.running
        at = 0
        while at < len(running):  # preemption shortens the list, at its end
            request = running[at]
            length = len(request.tokens)
            if _decodes(request) and self._reserve(request, length):
                step.chunks.append(Chunk(request, length - 1, 1, True))
                step.tokens += 1
            at += 1

    def _reserve(self, request: R, length: int) -> bool:
        """Grows the table to `length` tokens, if need be by preempting younger ones; False if it had to go itself."""
        while not self.cache.append(request.id, length):
            youngest = self.running.pop()
            self.cache.free(youngest.id)
            youngest.computed = 0
            youngest.status = Status.WAITING
            self.waiting.appendleft(youngest)
            self.preemptions += 1
            if youngest is request:
                return False
        return True

    def _plan_chunk(self, step: StepPlan[R], request: R, scored_left: int) -> int:
        """As much of a prompt as the budget allows. Returns how many rows of logits for scoring that takes."""
        remaining = len(request.tokens) - request.computed
        count = min(remaining, self.max_step_tokens - step.tokens)
        if request.scored:
            count = min(count, scored_left)
        if count:
            step.chunks.append(Chunk(request, request.computed, count, count == remaining))
            step.tokens += count
        return count if request.scored else 0

    def _admit(self, step: StepPlan[R], scored_left: int) -> None:
        """Starts waiting requests, in order, while the step has budget and the cache room for all their tokens."""
        while self.waiting and len(self.running) < self.max_running and step.tokens < self.max_step_tokens:
            request = self.waiting[0]
            if not self.cache.allocate(request.id, len(request.tokens)):
                return
            self.waiting.popleft()
            request.status = Status.RUNNING
            self.running.append(request)
            scored_left -= self._plan_chunk(step, request, scored_left)


def _decodes(request: Request) -> bool:
    return request.computed == len(request.tokens) - 1 and not request.scored
