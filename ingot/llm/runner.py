"""A planned step becomes the arrays of the network's inputs, one run of the session, and one choice of tokens."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from ingot import _native
from ingot.engine.session import Memory, Session
from ingot.errors import RequestError
from ingot.llm.jobs import Embedding, Generation, Job, Scoring
from ingot.llm.kv_cache import KVCache
from ingot.llm.sampling import SamplingParams
from ingot.llm.scheduler import StepPlan

Array = np.ndarray[Any, Any]


_NOTHING = np.zeros((0, 0), np.float32)


@dataclass(slots=True)
class StepResult:
    """What a step computed: for each chunk that ends a generating request, in order, its next token and log
    probability, and the likeliest tokens where a request asked for them; for the tokens of scored requests, in order,
    the log probabilities of their targets; for the tokens of embedded texts that want it, in order, their hidden
    states, float32 [E, hidden]. `sampling`: seconds of choosing tokens."""

    tokens: list[int]
    logprobs: list[float]
    tops: list[dict[int, float]]
    scores: list[float]
    hidden: Array
    sampling: float = 0.0


class Runner:
    """Owns the input arrays, which are filled again at every step, and the session.

    Args:
        session: of an engine whose program has the inputs of a step (docs/format.md).
        cache: the block pool that the steps' requests have their tables in.
        vocabulary: columns of the logits.
        max_step_tokens, max_running: as the scheduler's.
        max_length: the most tokens a request can have; fixes the width of the block table.
        short_length: as the scheduler's.
        embeds: whether hidden_rows is among the inputs; engines of earlier versions have none.
    """

    def __init__(
        self, session: Session, cache: KVCache, vocabulary: int, max_step_tokens: int, max_running: int,
        max_length: int, short_length: int | None = None, embeds: bool = True,
    ) -> None:  # fmt: skip
        self._session = session
        self._embeds = embeds
        self._vocabulary = vocabulary
        self._cache = cache
        self._token_ids = np.zeros(max_step_tokens, np.int32)
        self._positions = np.zeros(max_step_tokens, np.int32)
        self._slot = np.zeros(max_step_tokens, np.int32)
        self._logit_rows = np.zeros(max_step_tokens, np.int32)
        self._long_rope = np.zeros(max_step_tokens, np.int32)
        self._short_length = short_length
        self._hidden_rows = np.zeros(max_step_tokens, np.int32)
        self._query_start = np.zeros(max_running + 1, np.int32)
        self._context_len = np.zeros(max_running, np.int32)
        self._block_table = np.zeros((max_running, cache.blocks_for(max_length)), np.int32)
        # Which table each row shows, and how many of its blocks: a row is written only where it has changed.
        self._shown: list[tuple[list[int] | None, int]] = [(None, 0)] * max_running
        # The place in the sequence, so that a request computed again after a preemption draws what it drew before.
        self._position = np.zeros(max_running, np.int64)

    def run(self, step: StepPlan[Job]) -> StepResult:
        """Computes a step. Raises what the session raises; then nothing has been recorded of it."""
        feeds, samplers, targets = self.prepare(step)
        sampled = len(samplers)
        found = self._session.run(feeds)
        logits = found.get("logits", _NOTHING)
        begin = perf_counter()
        tokens, logprobs, tops = self._sample(logits[:sampled], samplers) if sampled else ([], [], [])
        took = perf_counter() - begin
        scores = self._session.log_probs(logits[sampled:], np.array(targets, np.int64)).tolist() if targets else []
        return StepResult(tokens, logprobs, tops, scores, found.get("hidden", _NOTHING), took)

    def memory(self) -> Memory:
        """What the session holds."""
        return self._session.memory()

    def profile(self, step: StepPlan[Job]) -> list[dict[str, Any]]:
        """One run of a step with the time of every call, as Session.profile gives it."""
        return self._session.profile(self.prepare(step)[0])

    def prepare(self, step: StepPlan[Job]) -> tuple[dict[str, Array], list[_native.Sampler], list[int]]:
        """The step's inputs, the samplers of the first rows of logits, and the targets of the rows after those."""
        at = 0
        samplers: list[_native.Sampler] = []
        scored_rows: list[int] = []
        hidden_rows: list[int] = []
        targets: list[int] = []
        for row, chunk in enumerate(step.chunks):
            job, start, count = chunk.request, chunk.start, chunk.count
            stop = start + count
            self._show_table(row, self._cache.table(job.id))
            self._fill_tokens(at, row, job.tokens, start, stop)
            if self._short_length is not None:
                self._long_rope[at : at + count] = len(job.tokens) > self._short_length
            at += count
            self._query_start[row + 1] = at
            self._context_len[row] = stop
            if isinstance(job, Generation):
                if chunk.ends:
                    sampled = len(samplers)
                    self._logit_rows[sampled] = at - 1
                    self._position[sampled] = len(job.tokens)
                    if job.sampler is None:
                        job.sampler = sampler_of(job.params, job.tokens, self._vocabulary)
                    samplers.append(job.sampler)
            elif isinstance(job, Scoring):
                scored_rows += range(at - count, at)
                targets += job.targets[start:stop]
            elif isinstance(job, Embedding):
                hidden_rows += range(at - job.rows(count, chunk.ends), at)
        sampled = len(samplers)
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
        if self._short_length is not None:
            feeds["long_rope"] = self._long_rope[:at]
        if self._embeds:
            if hidden_rows:
                self._hidden_rows[: len(hidden_rows)] = hidden_rows
            feeds["hidden_rows"] = self._hidden_rows[: len(hidden_rows)]
        return feeds, samplers, targets

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

    def _sample(
        self, logits: Array, samplers: list[_native.Sampler]
    ) -> tuple[list[int], list[float], list[dict[int, float]]]:
        tokens, logprobs, ids, values = self._session.sample(logits, samplers, self._position[: len(samplers)])
        tops: list[dict[int, float]] = []
        if ids.shape[1]:
            tops = [
                {token: value for token, value in zip(*row, strict=True) if token >= 0}
                for row in zip(ids.tolist(), values.tolist(), strict=True)
            ]
        return tokens.tolist(), logprobs.tolist(), tops


def sampler_of(
    params: SamplingParams, prompt: Sequence[int], vocabulary: int, index: int = 0,
    bad_words: Sequence[Sequence[int]] = (),
) -> _native.Sampler:  # fmt: skip
    """The sampler of a request's answer `index`. Raises RequestError for token ids that the model does not have."""
    seed = secrets.randbits(64) if params.seed is None else (params.seed + index) % 2**64
    remembers = params.repetition_penalty != 1 or bool(bad_words)
    try:
        return _native.Sampler(
            vocabulary, np.array(prompt if remembers else (), np.int64), temperature=params.temperature,
            top_k=params.top_k, top_p=params.top_p, min_p=params.min_p, seed=seed,
            repetition=params.repetition_penalty, presence=params.presence_penalty, frequency=params.frequency_penalty,
            bias=list(params.logit_bias.items()), bad_words=[list(word) for word in bad_words],
            top_logprobs=min(params.logprobs, vocabulary),
        )  # fmt: skip
    except _native.Error as e:
        raise RequestError(f"sampling: {e}; the model has tokens 0 to {vocabulary - 1}") from None
