"""What the engine loop carries out: jobs that generate, that score, and that turn a text into a vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ingot import _native
from ingot.errors import IngotError
from ingot.llm.sampling import SamplingParams
from ingot.llm.scheduler import Request
from ingot.llm.vectors import Pool

Array = np.ndarray[Any, Any]


class Wakeups(Protocol):
    """Where a job tells its caller that there is something to read."""

    def put(self, job: Job, /) -> None:
        """Called in the engine's thread."""


class Job(Request):
    """A request as the runtime carries it: what came of it, and whom to wake.

    The engine loop writes, the caller's thread reads: results only grow, and `finish_reason` or `error` is set before
    the last wake-up, which is the job itself put into `wakeups`.
    """

    __slots__ = ("ended_at", "error", "finish_reason", "started_at", "wakeups")

    def __init__(
        self, prompt: list[int], max_length: int, wakeups: Wakeups, *, generates: bool, row_bytes: int = 0
    ) -> None:
        super().__init__(-1, prompt, max_length, generates=generates, row_bytes=row_bytes)  # the loop gives the number
        self.started_at = 0.0  # when the first step with it began
        self.ended_at = 0.0
        self.finish_reason: str | None = None
        self.error: IngotError | None = None
        self.wakeups = wakeups


class Generation(Job):
    """A job that chooses tokens: `tokens`, `logprobs` and `top_logprobs` grow by one at a time.

    `eager`: wake the caller at every token, not only at the end.
    """

    __slots__ = ("eager", "first_token_at", "logprobs", "params", "sampler", "sampling", "stop_ids", "top_logprobs")

    def __init__(
        self,
        prompt: list[int],
        max_length: int,
        params: SamplingParams,
        stop_ids: frozenset[int],
        wakeups: Wakeups,
        eager: bool,
        sampler: _native.Sampler | None = None,
    ) -> None:
        super().__init__(prompt, max_length, wakeups, generates=True)
        self.params = params
        self.sampler = sampler
        self.stop_ids = stop_ids
        self.eager = eager
        self.logprobs: list[float] = []
        self.top_logprobs: list[dict[int, float]] = []  # by place: the likeliest tokens, as many as were asked for
        self.first_token_at = 0.0
        self.sampling = 0.0  # seconds that its steps spent on choosing tokens


class Scoring(Job):
    """A job that finds the log probability of `targets[i]` after `tokens[: i + 1]`, for all i.

    `vocabulary`: columns of the logits.
    """

    __slots__ = ("logprobs", "targets")

    def __init__(self, tokens: list[int], targets: list[int], wakeups: Wakeups, vocabulary: int) -> None:
        super().__init__(tokens, len(tokens), wakeups, generates=False, row_bytes=4 * vocabulary)
        self.targets = targets
        self.logprobs: list[float] = []

    def take(self, start: int, logprobs: Sequence[float]) -> None:
        """Those of the targets from `start` on. Computed again after a preemption they are the same numbers."""
        self.logprobs[start:] = logprobs


class Embedding(Job):
    """A job that pools the last hidden states of a text's tokens to one vector.

    `width`: columns of the hidden states.
    """

    __slots__ = ("_how", "_pool")

    def __init__(self, tokens: list[int], how: str, wakeups: Wakeups, width: int) -> None:
        if how == "cls":  # the first token sees itself only, so it is the last one of a text that is cut behind it
            tokens, how = tokens[:1], "last"
        row_bytes = 0 if how == "last" else 4 * width
        super().__init__(tokens, len(tokens), wakeups, generates=False, row_bytes=row_bytes)
        self._how = how
        self._pool = Pool(how)

    def rows(self, count: int, ends: bool) -> int:
        """How many hidden states are wanted of a chunk of `count` tokens, the last ones."""
        return count if self.row_bytes else int(ends)

    def take(self, start: int, states: Array) -> None:
        """The hidden states of a chunk that begins at `start`."""
        if not start:  # for the first time, or again after a preemption
            self._pool = Pool(self._how)
        self._pool.add(states)

    def vector(self) -> Array:
        """float32 [hidden], once the job has ended."""
        return self._pool.vector()
