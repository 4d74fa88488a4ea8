"""A planned step becomes the arrays of the network's inputs, one run of the session, and one choice of tokens."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numpy as np

from ingot import _native
from ingot.engine.session import Session, typed
from ingot.errors import IngotError
from ingot.llm.kv_cache import KVCache
from ingot.llm.sampling import SamplingParams
from ingot.llm.scheduler import Request, StepPlan

Array = np.ndarray[Any, Any]


class Job(Request):
    """A request as the runtime carries it: how to choose its tokens, what came of it, and whom to wake.

    The engine loop writes, the caller's thread reads: `tokens` and `logprobs` only grow, and `finish_reason` or `error`
    is set before the last wake-up, which is the job itself put into `wakeups`. `eager`: wake the caller at every token,
    not only at the end.
    """

    __slots__ = (
        "eager", "error", "finish_reason", "first_token_at", "logprobs", "params", "seed", "stop_ids", "targets",
        "wakeups",
    )  # fmt: skip

    def __init__(
        self,
        prompt: list[int],
        max_length: int,
        params: SamplingParams,
        stop_ids: frozenset[int],
        wakeups: SimpleQueue[Job],
        eager: bool,
    ) -> None:
        super().__init__(-1, prompt, max_length)  # the loop gives it its number
        self.params = params
        self.seed = secrets.randbits(64) if params.seed is None else params.seed
        self.stop_ids = stop_ids
        self.eager = eager
        self.targets: list[int] = []
        self.logprobs: list[float] = []  # of the generated tokens, or of a scored request's targets
        self.first_token_at = 0.0
        self.finish_reason: str | None = None
        self.error: IngotError | None = None
        self.wakeups = wakeups

    @classmethod
    def scoring(cls, tokens: list[int], targets: list[int], wakeups: SimpleQueue[Job]) -> Job:
        """A job that finds the log probability of `targets[i]` after `tokens[: i + 1]`, for all i."""
        job = cls(tokens, len(tokens), _GREEDY, frozenset(), wakeups, False)
        job.scored = True
        job.targets = targets
        return job


_GREEDY = SamplingParams(seed=0)


@dataclass(slots=True)
class StepResult:
    """What a step computed: for each chunk that ends a generating request, in order, its next token and log
    probability; for the tokens of scored requests, in order, the log probabilities of their targets."""

    tokens: list[int]
    logprobs: list[float]
    scores: list[float]


class Runner:
    """Owns the input arrays, which are filled again at every step, and the session.

    Args:
        session: of an engine whose program has the inputs of a step (docs/format.md).
        cache: the block pool that the steps' requests have their tables in.
        max_step_tokens, max_running: as the scheduler's.
        max_length: the most tokens a request can have; fixes the width of the block table.
    """

    def __init__(
        self, session: Session, cache: KVCache, max_step_tokens: int, max_running: int, max_length: int
    ) -> None:
        self._session = session
        self._cache = cache
        self._token_ids = np.zeros(max_step_tokens, np.int32)
        self._positions = np.zeros(max_step_tokens, np.int32)
        self._slot = np.zeros(max_step_tokens, np.int32)
        self._logit_rows = np.zeros(max_step_tokens, np.int32)
        self._query_start = np.zeros(max_running + 1, np.int32)
        self._context_len = np.zeros(max_running, np.int32)
        self._block_table = np.zeros((max_running, cache.blocks_for(max_length)), np.int32)
        # Which table each row shows, and how many of its blocks: a row is written only where it has changed.
        self._shown: list[tuple[list[int] | None, int]] = [(None, 0)] * max_running
        self._temperature = np.zeros(max_running, np.float32)
        self._top_k = np.zeros(max_running, np.int32)
        self._top_p = np.zeros(max_running, np.float32)
        self._min_p = np.zeros(max_running, np.float32)
        self._seed = np.zeros(max_running, np.uint64)
        self._position = np.zeros(max_running, np.int64)

    def run(self, step: StepPlan[Job]) -> StepResult:
        """Computes a step. Raises what the session raises; then nothing has been recorded of it."""
        feeds, sampled, targets = self.prepare(step)
        logits = self._session.run(feeds)["logits"]
        try:
            tokens, logprobs = self._sample(logits[:sampled], sampled) if sampled else ([], [])
            scores = _native.log_probs(logits[sampled:], np.array(targets, np.int64)).tolist() if targets else []
        except _native.Error as e:
            raise typed(e) from None
        return StepResult(tokens, logprobs, scores)

    def profile(self, step: StepPlan[Job]) -> list[dict[str, Any]]:
        """One run of a step with the time of every call, as Session.profile gives it."""
        return self._session.profile(self.prepare(step)[0])

    def prepare(self, step: StepPlan[Job]) -> tuple[dict[str, Array], int, list[int]]:
        """The step's inputs, how many rows of logits choose tokens, and the targets of the rows after those."""
        at = sampled = 0
        scored_rows: list[int] = []
        targets: list[int] = []
        for row, chunk in enumerate(step.chunks):
            job, start, count = chunk.request, chunk.start, chunk.count
            stop = start + count
            self._show_table(row, self._cache.table(job.id))
            self._fill_tokens(at, row, job.tokens, start, stop)
            at += count
            self._query_start[row + 1] = at
            self._context_len[row] = stop
            if job.scored:
                scored_rows += range(at - count, at)
                targets += job.targets[start:stop]
            elif chunk.ends:
                self._logit_rows[sampled] = at - 1
                self._choose_as(sampled, job)
                sampled += 1
        rows = sampled + len(scored_rows)
        if scored_rows:
            self._logit_rows[sampled:rows] = scored_rows
        requests = len(step.chunks)
        feeds = {
            "token_ids": self._token_ids[:at],
            "positions": self._positions[:at],
            "query_start": self._query_start[: requests + 1],
            "context_len": self._context_len[:requests],
            "block_table": self._block_table[:requests],
            "slot": self._slot[:at],
            "logit_rows": self._logit_rows[:rows],
        }
        return feeds, sampled, targets

    def _show_table(self, row: int, table: list[int]) -> None:
        shown, length = self._shown[row]
        if shown is not table:
            length = 0
        if length != len(table) or shown is not table:
            self._block_table[row, length : len(table)] = table[length:]
            self._shown[row] = (table, len(table))

    def _fill_tokens(self, at: int, row: int, tokens: list[int], start: int, stop: int) -> None:
        size = self._cache.block_size
        if stop - start == 1:  # the many decodes: plain numbers are faster than arrays of one
            self._token_ids[at] = tokens[start]
            self._positions[at] = start
            self._slot[at] = self._block_table[row, start // size] * size + start % size
            return
        end = at + stop - start
        positions = np.arange(start, stop, dtype=np.int32)
        self._token_ids[at:end] = tokens[start:stop]
        self._positions[at:end] = positions
        self._slot[at:end] = self._block_table[row, positions // size] * size + positions % size

    def _choose_as(self, row: int, job: Job) -> None:
        params = job.params
        self._temperature[row] = params.temperature
        self._top_k[row] = params.top_k
        self._top_p[row] = params.top_p
        self._min_p[row] = params.min_p
        self._seed[row] = job.seed
        # The place in the sequence, so that a request computed again after a preemption draws what it drew before.
        self._position[row] = len(job.tokens)

    def _sample(self, logits: Array, n: int) -> tuple[list[int], list[float]]:
        tokens, logprobs = _native.sample(
            logits, self._temperature[:n], self._top_k[:n], self._top_p[:n], self._min_p[:n], self._seed[:n],
            self._position[:n],
        )  # fmt: skip
        return tokens.tolist(), logprobs.tolist()
