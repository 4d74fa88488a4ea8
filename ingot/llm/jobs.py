"""What the engine loop carries out: jobs that generate, that score, and that turn a text into a vector.

A job says of each of its chunks which rows of the network's results it wants (`rows`), and is then given what was made
of them (`take`). Neither the loop nor what runs a step knows kinds of jobs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np

from ingot import _native
from ingot.errors import IngotError
from ingot.llm.sampling import SamplingParams
from ingot.llm.scheduler import Chunk, Request
from ingot.llm.vectors import Pooler

Array = np.ndarray[Any, Any]


class Rows(NamedTuple):
    """What a job wants of a chunk's rows. A row is the network's result at one position of the chunk.

    sampler: chooses the token behind the chunk; where that has drafts, the token at each draft, as long as those before
        were what was chosen, and the one behind them all. None: no token is chosen.
    targets: of the last rows, as many as there are, the log probability of these tokens.
    states: of so many last rows the hidden states.
    """

    sampler: _native.Sampler | None = None
    targets: Sequence[int] = ()
    states: int = 0


@dataclass(slots=True)
class Result:
    """What came of a chunk, as its job's Rows asked.

    tokens, logprobs, tops: the tokens chosen, their log probabilities and, where the sampler reports them, the
        likeliest ones. scores: the log probabilities of the targets. states: float32 [n, hidden]. sampling: seconds
        that the whole step spent on choosing tokens.
    """

    tokens: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    tops: Sequence[dict[int, float]] = ()
    scores: Sequence[float] = ()
    states: Array | None = None
    sampling: float = 0.0


class Wakeups(Protocol):
    """Where a job tells its caller that there is something to read."""

    def put(self, job: Job, /) -> None:
        """Called in the engine's thread."""


class Job(Request, ABC):
    """A request as the runtime carries it: what came of it, and whom to wake.

    The engine loop writes, the caller's thread reads: results only grow, and `finish_reason` or `error` is set before
    the last wake-up, which is the job itself put into `wakeups`. `eager`: wake the caller at every step that brings
    tokens, not only at the end.
    """

    __slots__ = ("eager", "ended_at", "error", "finish_reason", "started_at", "wakeups")

    def __init__(
        self, prompt: list[int], max_length: int, wakeups: Wakeups, *, generates: bool, row_bytes: int = 0
    ) -> None:
        super().__init__(-1, prompt, max_length, generates=generates, row_bytes=row_bytes)  # the loop gives the number
        self.started_at = 0.0  # when the first step with it began
        self.ended_at = 0.0
        self.finish_reason: str | None = None
        self.error: IngotError | None = None
        self.wakeups = wakeups
        self.eager = False

    @abstractmethod
    def rows(self, chunk: Chunk[Any]) -> Rows:
        """What it wants of one of its chunks."""

    @abstractmethod
    def take(self, chunk: Chunk[Any], result: Result) -> tuple[Sequence[int], str | None]:
        """Notes what came of a chunk. Returns the tokens that the request goes on with, and why it ends, if it does.

        After a preemption chunks come again.
        """

    def usable(self, drafts: Sequence[int]) -> Sequence[int]:
        """Those of a drafter's guesses, the first ones, that are worth computing."""
        return drafts


_NOTHING = Rows()


class GenerationJob(Job):
    """A job that chooses tokens: `tokens`, `logprobs` and `top_logprobs` grow."""

    __slots__ = ("_rows", "first_token_at", "logprobs", "params", "sampling", "stop_ids", "top_logprobs")

    def __init__(
        self,
        prompt: list[int],
        max_length: int,
        params: SamplingParams,
        sampler: _native.Sampler,
        stop_ids: frozenset[int],
        wakeups: Wakeups,
        eager: bool,
    ) -> None:
        super().__init__(prompt, max_length, wakeups, generates=True)
        self.params = params
        self._rows = Rows(sampler)
        self.stop_ids = stop_ids
        self.eager = eager
        self.logprobs: list[float] = []
        self.top_logprobs: list[dict[int, float]] = []  # by place: the likeliest tokens, as many as were asked for
        self.first_token_at = 0.0
        self.sampling = 0.0  # seconds that its steps spent on choosing tokens

    def rows(self, chunk: Chunk[Any]) -> Rows:
        """The one that chooses the next token, and those of drafts."""
        return self._rows if chunk.ends else _NOTHING

    def take(self, chunk: Chunk[Any], result: Result) -> tuple[Sequence[int], str | None]:
        """The tokens chosen, one after the other: what comes behind one that ends the text does not count."""
        if not chunk.ends:
            return (), None
        self.sampling += result.sampling
        self.first_token_at = self.first_token_at or perf_counter()
        tokens, logprobs, tops, reason = result.tokens, result.logprobs, result.tops, None
        if not self.stop_ids.isdisjoint(tokens):
            tokens, reason = list(takewhile(self._goes_on, tokens)), "stop"
            logprobs, tops = logprobs[: len(tokens)], tops[: len(tokens)]
        elif len(self.tokens) + len(tokens) == self.max_length:
            reason = "length"
        self.logprobs += logprobs  # before the tokens: who reads those finds these
        if self.params.logprobs:
            self.top_logprobs += tops
        return tokens, reason

    def usable(self, drafts: Sequence[int]) -> Sequence[int]:
        """Those before one that would end the text, for nothing is wanted behind that."""
        return drafts if self.stop_ids.isdisjoint(drafts) else list(takewhile(self._goes_on, drafts))

    def _goes_on(self, token: int) -> bool:
        return token not in self.stop_ids


class ScoringJob(Job):
    """A job that finds the log probability of `targets[i]` after `tokens[: i + 1]`, for all i.

    `vocabulary`: columns of the logits.
    """

    __slots__ = ("logprobs", "targets")

    def __init__(self, tokens: list[int], targets: list[int], wakeups: Wakeups, vocabulary: int) -> None:
        super().__init__(tokens, len(tokens), wakeups, generates=False, row_bytes=4 * vocabulary)
        self.targets = targets
        self.logprobs: list[float] = []

    def rows(self, chunk: Chunk[Any]) -> Rows:
        """All."""
        return Rows(targets=self.targets[chunk.start : chunk.start + chunk.count])

    def take(self, chunk: Chunk[Any], result: Result) -> tuple[Sequence[int], str | None]:
        """The log probabilities of the chunk's targets. After a preemption the same numbers come again."""
        self.logprobs[chunk.start :] = result.scores
        return (), "done" if chunk.ends else None


class EmbeddingJob(Job):
    """A job that pools the last hidden states of a text's tokens to one vector.

    `width`: columns of the hidden states.
    """

    __slots__ = ("_how", "_pooler")

    def __init__(self, tokens: list[int], how: str, wakeups: Wakeups, width: int) -> None:
        if how == "cls":  # the first token sees itself only, so it is the last one of a text that is cut behind it
            tokens, how = tokens[:1], "last"
        row_bytes = 0 if how == "last" else 4 * width
        super().__init__(tokens, len(tokens), wakeups, generates=False, row_bytes=row_bytes)
        self._how = how
        self._pooler = Pooler(how)

    def rows(self, chunk: Chunk[Any]) -> Rows:
        """All, or the text's last one, as the pooling needs."""
        return Rows(states=chunk.count if self.row_bytes else int(chunk.ends))

    def take(self, chunk: Chunk[Any], result: Result) -> tuple[Sequence[int], str | None]:
        """The hidden states of a chunk."""
        if not chunk.start:  # for the first time, or again after a preemption
            self._pooler = Pooler(self._how)
        if result.states is not None:
            self._pooler.add(result.states)
        return (), "done" if chunk.ends else None

    def vector(self) -> Array:
        """float32 [hidden], once the job has ended."""
        return self._pooler.vector()


class Drafter(Protocol):
    """Guesses what comes next, so that a step can check several tokens at once. What comes out is the same bits
    whatever it guesses; good guesses save steps.

    The engine loop calls it, in its thread. A model that drafts keeps what it computed by job, and finds in a job's
    `tokens` what was accepted since: they only grow.
    """

    def propose(self, jobs: Sequence[Job]) -> Sequence[Sequence[int]]:
        """For each job the token ids, of the model's vocabulary, that may come after its `tokens`; none is fine."""

    def forget(self, job: Job) -> None:
        """A job has ended, whether it was ever asked about or not."""
