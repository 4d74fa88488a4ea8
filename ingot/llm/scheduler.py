"""Which tokens of which requests go into the next step: continuous batching over one token budget, in plain Python.

A step mixes decodes (one token each) and prefill chunks. Decodes go first, so that a long prompt delays nobody by
more than a step; what is left of the budget goes to prompts, half of it to the most urgent one and the other half
to the others alike, so that short prompts need not wait for long ones. Beside an answer that somebody reads as it is
written prompts get less (`max_mixed_tokens`): a step then takes little longer than one of decodes alone, and the
answer keeps its pace while others come.

*Urgency* is the time of arrival, earlier by `HEAD_START` for every step of priority: a request of high priority goes
first, and one of low priority is overtaken only by what came within its handicap, so that nobody starves. A request
is admitted in that order when the cache has room for all its tokens so far, if need be in the place of less urgent
ones; from then on only decoding asks for blocks, one at a time. When there is none left the least urgent request
gives all its blocks back and waits again: its tokens are kept, and what of them is not still in the cache is computed
again later. So the most urgent request always advances and nothing is lost.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import Generic, TypeVar

from ingot.errors import IngotError, RequestError, TooLongError
from ingot.llm.kv_cache import KVCache

HEAD_START = 10.0  # seconds of arrival that one step of priority is worth


class Status(Enum):
    """Where a request is."""

    NEW = "new"
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Request:
    """One sequence of tokens, from a prompt to its end.

    `max_length` bounds prompt and generated tokens together. `generates`: tokens are chosen after the prompt; otherwise
    `max_length` is the prompt's. `row_bytes`: what each of its tokens leaves as a result, where every one's is wanted;
    0: only the last one's, so that tokens found in the cache need not be computed again. `priority`: greater goes
    first. `arrival`: seconds on any clock. `salt`: only requests of an equal one share cached tokens. `found`: prompt
    tokens that were in the cache when it was first admitted. `after`: an earlier request with the same prompt; this one
    waits until that has been computed, and finds it in the cache. `streamed`: somebody reads its tokens as they come.
    """

    __slots__ = (
        "after", "arrival", "computed", "found", "generates", "id", "max_length", "priority", "prompt_length",
        "row_bytes", "salt", "status", "streamed", "tokens", "urgency",
    )  # fmt: skip

    def __init__(
        self, id: int, prompt: list[int], max_length: int, *, generates: bool = True, row_bytes: int = 0,
        priority: int = 0, arrival: float = 0.0, salt: Hashable = None,
    ) -> None:  # fmt: skip
        self.id = id
        self.tokens = list(prompt)
        self.prompt_length = len(prompt)
        self.max_length = max_length
        self.generates = generates
        self.row_bytes = row_bytes
        self.computed = 0  # leading tokens whose keys and values are in the cache
        self.status = Status.NEW
        self.priority = priority
        self.arrival = arrival
        self.salt = salt
        self.found: int | None = None
        self.after: Request | None = None
        self.streamed = False
        self.urgency = (arrival, id)  # set when it is added; the least goes first

    @property
    def cached_length(self) -> int:
        """Positions the cache must hold before the request can end: a last generated token is never fed back."""
        return self.max_length - 1 if self.generates else self.max_length


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
        max_row_bytes: of the results of requests that want one of every token, what a step may leave.
        window: how many tokens back, itself included, a token attends to in every layer; None: all.
        short_length: a request of more tokens is computed in another way (with other rotary frequencies) from its first
            token on, so what was computed of one that outgrows it is computed again. None: there is one way.
        max_mixed_tokens: of the budget, how many may belong to prompts beside the decodes of streamed requests. None:
            all that decodes leave.
    """

    def __init__(
        self, cache: KVCache, max_step_tokens: int, max_running: int, max_row_bytes: int,
        window: int | None = None, short_length: int | None = None, max_mixed_tokens: int | None = None,
    ) -> None:  # fmt: skip
        mixed = max_step_tokens if max_mixed_tokens is None else max_mixed_tokens
        if not all(1 <= n <= max_step_tokens for n in (max_running, mixed)):
            raise ValueError("need 1 <= max_running, max_mixed_tokens <= max_step_tokens")
        self.cache = cache
        self.max_step_tokens = max_step_tokens
        self.max_running = max_running
        self.max_row_bytes = max_row_bytes
        self.window = window
        self.short_length = short_length
        self.max_mixed_tokens = mixed
        self.waiting: list[R] = []  # both most urgent first
        self.running: list[R] = []
        self.preemptions = 0

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.running or self.waiting)

    def check(self, request: Request) -> None:
        """Refuses a request that could never be carried out. Reads constants only: safe from any thread.

        Raises RequestError for an empty prompt or results too large for a step, TooLongError when even the empty cache
        is too small.
        """
        if not request.tokens:
            raise RequestError("the prompt is empty: there is no token to go on from")
        if request.row_bytes > self.max_row_bytes:
            raise RequestError(f"a token's result takes {request.row_bytes} bytes, a step has {self.max_row_bytes}")
        capacity = self.cache.num_blocks * self.cache.block_size
        if self.cache.blocks_for(request.cached_length) > self.cache.num_blocks:
            raise TooLongError(
                f"the request needs room for {request.cached_length} tokens ({request.prompt_length} of the prompt) "
                f"and the whole key-value cache holds {capacity}: ask for fewer tokens, or give the cache more memory "
                "(kv_memory)"
            )

    def add(self, request: R) -> None:
        """Puts a request in the queue. Raises like `check`."""
        self.check(request)
        request.urgency = (request.arrival - HEAD_START * request.priority, request.id)
        request.status = Status.WAITING
        insort(self.waiting, request, key=_urgency)

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
        if self.waiting:
            self._admit()
        self._plan_decodes(step)
        if len(step.chunks) < len(self.running):
            self._plan_prompts(step)
        return step

    def advance(self, chunk: Chunk[R], token: int | None) -> None:
        """Records that a chunk was computed, and the token chosen after it when it `ends` a request that generates.

        A request removed since the step was planned is left alone.
        """
        request = chunk.request
        if request.status is not Status.RUNNING:
            return
        computed = request.computed = request.computed + chunk.count
        cache = self.cache
        if chunk.count > 1 or computed % cache.block_size == 0:
            cache.record(request.id, request.tokens, computed)
            if self.window is not None and computed >= self.window:
                cache.release(request.id, computed - self.window + 1)  # the next token sees itself and window - 1
        if token is not None:
            if len(request.tokens) >= request.max_length:
                raise IngotError(f"request {request.id} has its {request.max_length} tokens already")
            request.tokens.append(token)
            if len(request.tokens) - 1 == self.short_length and len(request.tokens) < request.max_length:
                self._requeue(request)

    def is_long(self, request: R) -> bool:
        """Whether a request has outgrown `short_length`."""
        return self.short_length is not None and len(request.tokens) > self.short_length

    def check_integrity(self) -> None:
        """Raises IngotError unless queue, running requests and cache agree."""
        self.cache.check_integrity()
        for name, requests in (("waiting", self.waiting), ("running", self.running)):
            if any(a.urgency >= b.urgency for a, b in zip(requests, requests[1:], strict=False)):
                raise IngotError(f"{name} requests are out of order: {[r.id for r in requests]}")
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
        """One token for each running request that has one left to compute, most urgent first."""
        running, append, chunks = self.running, self.cache.append, step.chunks
        at = 0
        while at < len(running):  # preemption shortens the list, at its end
            request = running[at]
            length = len(request.tokens)
            if (
                request.computed == length - 1
                and request.generates
                and (append(request.id, length) or self._make_room(request, length))
            ):
                chunks.append(Chunk(request, length - 1, 1, True))
            at += 1
        step.tokens = len(chunks)

    def _make_room(self, request: R, length: int) -> bool:
        """Grows the table to `length` tokens by preempting the less urgent; False if it had to go itself."""
        while True:
            last = self.running[-1]
            self._preempt(last)
            if last is request:
                return False
            if self.cache.append(request.id, length):
                return True

    def _preempt(self, request: R) -> None:
        self._requeue(request)
        self.preemptions += 1

    def _requeue(self, request: R) -> None:
        """Takes a running request's blocks back; all its tokens will be computed again."""
        self.running.remove(request)
        self.cache.free(request.id)
        request.computed = 0
        request.status = Status.WAITING
        insort(self.waiting, request, key=_urgency)

    def _plan_prompts(self, step: StepPlan[R]) -> None:
        """What the budget leaves: half to the most urgent prompt, half to the others alike, the rest in order."""
        planned = {chunk.request.id for chunk in step.chunks}
        todo = [r for r in self.running if r.id not in planned]
        most = [len(r.tokens) - r.computed for r in todo]
        left, bytes_left = self.max_step_tokens - step.tokens, self.max_row_bytes
        if any(chunk.request.streamed for chunk in step.chunks):
            left = min(left, self.max_mixed_tokens)
        counts = [0] * len(todo)

        def give(i: int, tokens: int) -> None:
            nonlocal left, bytes_left
            more, size = min(most[i] - counts[i], tokens, left), todo[i].row_bytes
            if size:
                more = min(more, bytes_left // size)
                bytes_left -= more * size
            counts[i] += more
            left -= more

        share = left // 2 // max(1, len(todo) - 1)
        give(0, left - share * (len(todo) - 1))
        for i in range(1, len(todo)):
            give(i, share)
        for i in range(len(todo)):
            give(i, left)
        for request, count, whole in zip(todo, counts, most, strict=True):
            if count:
                step.chunks.append(Chunk(request, request.computed, count, count == whole))
                step.tokens += count

    def _admit(self) -> None:
        """Starts waiting requests, most urgent first, while there is room and a step has a token for each."""
        held = 0  # requests passed over, for they wait for another's prompt
        while held < len(self.waiting):
            request = self.waiting[held]
            if request.after is not None and _is_computing(request.after):
                held += 1
                continue
            found = self._place(request)
            if found is None:
                return
            self.waiting.remove(request)
            request.status = Status.RUNNING
            request.computed = found
            if request.found is None:
                request.found = found
            insort(self.running, request, key=_urgency)

    def _place(self, request: R) -> int | None:
        """Room for a waiting request: how many of its tokens are cached already, or None if it has to wait.

        Less urgent requests that run give way, if that makes room enough.
        """
        cache, running = self.cache, self.running
        while True:
            if len(running) < self.max_running:
                reusable = None if request.row_bytes else request.tokens
                salt = (request.salt, "long") if self.is_long(request) else request.salt
                found = cache.allocate(request.id, len(request.tokens), reusable, salt)
                if found is not None:
                    return found
            rivals = [r for r in running if r.urgency > request.urgency]
            room = cache.num_free + sum(len(cache.table(r.id)) for r in rivals)
            if not rivals or cache.blocks_for(len(request.tokens)) > room:
                return None
            self._preempt(rivals[-1])


_urgency = attrgetter("urgency")


def _is_computing(request: Request) -> bool:
    """Whether a request's prompt is on its way into the cache, and not there yet."""
    return request.computed < request.prompt_length and request.status in (Status.WAITING, Status.RUNNING)
