"""Which tokens of which requests go into the next step: continuous batching over one token budget, in plain Python.

A step mixes decodes (one token each) and prefill chunks. Decodes go first, so that a long prompt delays nobody by more
than a step. Half of what is left of the budget goes to the most urgent prompt. The other half goes to the others
alike, or to the shortest where they are many, so that short prompts need not wait for long ones. Beside an answer that
is streamed prompts get less (`max_mixed_tokens`). A step then takes little longer than one of decodes alone, and the
answer keeps its pace while others come, unless more come than go (`step_times.py`).

*Urgency* is the time of arrival, earlier by `HEAD_START` for every unit of priority. A request of high priority goes
first. One of low priority is overtaken only by what came within its handicap, so that nobody starves. A request is
admitted in that order when the cache has room for all its tokens so far, if need be in the place of less urgent ones.
From then on only decoding asks for blocks, one at a time. When none is left the least urgent request is preempted: it
gives all its blocks back and waits again. Its tokens are kept, and those no longer in the cache are computed again. So
the most urgent request always advances and nothing is lost.

A step goes through three calls. `plan` says what it computes. `advance` tells that it was handed to whatever runs it:
from then on its positions count as computed, and the next step may be planned although no result is known. `accept`
brings the results of one of its chunks: the tokens that the request goes on with, none to several. A decode may carry
*drafts*, tokens that are guessed to come next (speculative decoding). The step computes them behind the last token, and
those that turn out to be what is chosen are accepted all at once. The positions of the others are computed again with
the right tokens, and the blocks taken for them alone are given back. The cache never finds a block by tokens that were
not accepted.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable, Mapping, Sequence
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
    `max_length` is the prompt's. `row_bytes`: of the result of each token, where all are wanted. 0: only the last one's
    is, so that tokens found in the cache need not be computed again. `priority`: greater goes first. `arrival`: seconds
    on any clock. `salt`: only requests of an equal one share cached tokens. `found`: prompt tokens that were in the
    cache when it was first admitted. `after`: an earlier request with the same prompt; this one waits until that has
    been computed, and finds it in the cache. `streamed`: somebody reads its tokens as they come.

    `tokens` holds the prompt and what was accepted. `computed` counts the leading positions whose keys and values are
    in the cache, or will be when the chunks `under_way` have run. Those of the first `settled` are known to be.
    """

    __slots__ = (
        "after", "arrival", "computed", "found", "generates", "id", "max_length", "priority", "prompt_length",
        "row_bytes", "salt", "settled", "status", "streamed", "tokens", "under_way", "urgency", "verifying",
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
        self.computed = 0
        self.settled = 0
        self.under_way = 0  # chunks that `advance` has seen and `accept` has not
        self.verifying = False  # one of those has drafts: where the request goes on is not known
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

_NONE: Mapping[int, Sequence[int]] = {}


@dataclass(slots=True)
class Chunk(Generic[R]):
    """The positions `start … start+count-1` of a request, to be computed in this step.

    They hold the request's tokens, and behind its last one `drafts`. A position just behind the last known token and
    no draft holds what the step before chooses: only steps that are planned before its results are known have such.
    """

    request: R
    start: int
    count: int
    ends: bool  # it reaches the request's last token, whose logits choose the next one
    drafts: Sequence[int] = ()

    @property
    def tokens(self) -> Sequence[int]:
        """Those of its positions that are known."""
        known = self.request.tokens[self.start : self.start + self.count]
        return [*known, *self.drafts] if self.drafts else known


@dataclass(slots=True)
class StepPlan(Generic[R]):
    """What one step computes. Of its tokens, so many belong to prompts, and it leaves something of so many prompts."""

    chunks: list[Chunk[R]]
    tokens: int
    prompt_tokens: int = 0
    prompts_left: int = 0

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
        max_mixed_tokens: of the budget, how many may belong to prompts beside the decodes of streamed requests. The
            engine loop changes it by the times that steps take. None: all that decodes leave.
        draft_bytes: what each draft leaves as a result; `max_row_bytes` is for them too.
    """

    def __init__(
        self, cache: KVCache, max_step_tokens: int, max_running: int, max_row_bytes: int,
        window: int | None = None, short_length: int | None = None, max_mixed_tokens: int | None = None,
        draft_bytes: int = 0,
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
        self.draft_bytes = draft_bytes
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
                f"and the whole KV cache holds {capacity}: ask for fewer tokens, or give the cache more memory "
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

    def decoding(self) -> list[R]:
        """The requests, most urgent first, that have one token left to compute and whose drafts `plan` would take."""
        return [r for r in self.running if r.generates and r.computed == len(r.tokens) - 1]

    def plan(self, drafts: Mapping[int, Sequence[int]] = _NONE) -> StepPlan[R]:
        """The next step; empty when there is nothing to do before results of steps under way are known.

        Every chunk's blocks are allocated.

        Args:
            drafts: by request, what may come after its tokens. As many are taken, from the first on, as the request
                may still have, and as the other chunks leave of tokens, result bytes and blocks.
        """
        step: StepPlan[R] = StepPlan([], 0)
        if self.waiting:
            self._admit()
        self._plan_decodes(step)
        if len(step.chunks) < len(self.running):
            self._plan_prompts(step)
        if drafts:
            self._plan_drafts(step, drafts)
        return step

    def advance(self, step: StepPlan[R]) -> None:
        """Records that a step is on its way: the next plan goes on behind it. Steps must be run in that order."""
        for chunk in step.chunks:
            request = chunk.request
            request.computed += chunk.count
            request.under_way += 1
            if chunk.drafts:
                request.verifying = True

    def accept(self, chunk: Chunk[R], tokens: Sequence[int] = ()) -> None:
        """Records that a chunk was computed, and the tokens that its request goes on with.

        A chunk that does not end its request has none. One that does may have up to one more than its drafts: those
        before the last must be the first drafts. With none the last position is computed again. A request that was
        removed meanwhile is left alone; one that was preempted keeps the tokens.
        """
        request = chunk.request
        request.under_way -= 1
        if request.status is Status.FINISHED:
            return
        if chunk.drafts:
            request.verifying = False
        before = len(request.tokens)
        if before + len(tokens) > request.max_length:
            raise IngotError(f"request {request.id} may have {request.max_length} tokens, not {before + len(tokens)}")
        right = len(tokens) < 2 or list(tokens[:-1]) == list(chunk.drafts[: len(tokens) - 1])
        if tokens and not (chunk.ends and right):
            raise IngotError(f"request {request.id} accepts {list(tokens)}, its drafts were {list(chunk.drafts)}")
        request.tokens += tokens
        if request.status is Status.RUNNING:
            self._settle(chunk)
            short = self.short_length
            if short is not None and before <= short < len(request.tokens) < request.max_length:
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
            if request.status is not Status.WAITING or request.computed or request.settled:
                raise IngotError(f"request {request.id} waits as {request.status}, {request.computed} tokens computed")
        for request in self.running:
            self._check_running(request)
        if self.cache.owners() != {r.id for r in self.running}:
            raise IngotError(
                f"blocks are owned by {sorted(self.cache.owners())}, running are {[r.id for r in self.running]}"
            )

    def _check_running(self, request: R) -> None:
        """Positions are named, settled, computed and given room in that order; with no chunk under way nothing is
        computed behind what was accepted.
        """
        settled, computed, length = request.settled, request.computed, len(request.tokens)
        table, size = self.cache.table(request.id), self.cache.block_size
        fits = self.cache.named(request.id) * size <= settled <= computed <= len(table) * size
        if not request.under_way:
            fits = fits and settled == computed <= length - request.generates and not request.verifying
        if request.status is not Status.RUNNING or not fits or request.under_way < 0:
            raise IngotError(
                f"request {request.id} of {length} tokens runs as {request.status}: {settled} settled, {computed} "
                f"computed, {request.under_way} chunks under way, in {len(table)} blocks"
            )

    def _settle(self, chunk: Chunk[R]) -> None:
        """Names the blocks that a running request has filled for good, and takes back what was computed in vain."""
        request, cache, start = chunk.request, self.cache, chunk.start
        end = settled = start + chunk.count
        if chunk.ends and request.generates and settled >= len(request.tokens):
            settled = len(request.tokens) - 1  # the last token is still to be computed
            request.computed -= end - settled
        request.settled = settled
        if settled // cache.block_size > start // cache.block_size:
            cache.record(request.id, request.tokens, settled)
            if self.window is not None and settled >= self.window:
                cache.release(request.id, settled - self.window + 1)  # the next token sees itself and window - 1
        if chunk.drafts:
            cache.trim(request.id, len(request.tokens))

    def _plan_decodes(self, step: StepPlan[R]) -> None:
        """One token for each running request that goes on with one, most urgent first.

        It may be the token that a step under way chooses, unless that can make the request another one: by drafts, or
        by outgrowing `short_length`.
        """
        running, append, chunks, short = self.running, self.cache.append, step.chunks, self.short_length
        at = 0
        while at < len(running):  # preemption shortens the list, at its end
            request = running[at]
            start, known = request.computed, len(request.tokens)
            if (
                known - 1 <= start < request.max_length - 1
                and request.generates
                and not request.verifying
                and (short is None or not known <= short <= start)
                and (append(request.id, start + 1) or self._make_room(request, start + 1))
            ):
                chunks.append(Chunk(request, start, 1, True))
            at += 1
        step.tokens = len(chunks)

    def _plan_drafts(self, step: StepPlan[R], drafts: Mapping[int, Sequence[int]]) -> None:
        """Puts drafts behind decodes, most urgent first, as far as there is room without taking it from anybody."""
        cache, left = self.cache, self.max_step_tokens - step.tokens
        if self.draft_bytes:
            results = sum(chunk.count * chunk.request.row_bytes for chunk in step.chunks)
            left = min(left, (self.max_row_bytes - results) // self.draft_bytes)
        for chunk in step.chunks:
            request = chunk.request
            proposed, length = drafts.get(request.id, ()), len(request.tokens)
            if not proposed or not request.generates or chunk.start != length - 1:
                continue
            longest = request.max_length - 1  # one more token is chosen behind the drafts
            if not self.is_long(request) and self.short_length is not None:
                longest = min(longest, self.short_length)
            room = (len(cache.table(request.id)) + cache.num_free) * cache.block_size
            count = min(len(proposed), left, longest - length, room - length)
            if count > 0 and cache.append(request.id, length + count):
                chunk.drafts = proposed[:count]
                chunk.count += count
                step.tokens += count
                left -= count

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
        request.computed = request.settled = 0
        request.status = Status.WAITING
        insort(self.waiting, request, key=_urgency)

    def _plan_prompts(self, step: StepPlan[R]) -> None:
        """What the budget leaves: half to the most urgent prompt, half to the others alike, or to the shortest of them
        where that is not a token for each; the rest in order.
        """
        planned = {chunk.request.id for chunk in step.chunks}
        todo = [r for r in self.running if r.id not in planned and r.computed < len(r.tokens)]
        if not todo:
            return
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

        others = range(1, len(todo))
        share = left // 2 // max(1, len(others))
        if others and not share:  # not a token for each
            give(0, left - left // 2)
            for i in sorted(others, key=most.__getitem__):
                give(i, left)
        else:
            give(0, left - share * len(others))
            for i in others:
                give(i, share)
        for i in range(len(todo)):
            give(i, left)
        for request, count, whole in zip(todo, counts, most, strict=True):
            if count:
                step.chunks.append(Chunk(request, request.computed, count, count == whole))
                step.tokens += count
                step.prompt_tokens += count
            step.prompts_left += count < whole

    def _admit(self) -> None:
        """Starts waiting requests, most urgent first, while there is room and a step has a token for each."""
        held = 0  # requests passed over: they wait for another's prompt, or for results from before a preemption
        while held < len(self.waiting):
            request = self.waiting[held]
            if request.under_way or (request.after is not None and _is_computing(request.after)):
                held += 1
                continue
            found = self._place(request)
            if found is None:
                return
            self.waiting.remove(request)
            request.status = Status.RUNNING
            request.computed = request.settled = found
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
    return request.settled < request.prompt_length and request.status in (Status.WAITING, Status.RUNNING)
