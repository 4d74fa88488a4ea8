"""A planned step becomes the arrays of the network's inputs, one run of the session, and what its jobs asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from ingot import _native
from ingot.engine.session import Memory, Session
from ingot.errors import ValueFault
from ingot.llm.jobs import Job, Result, Rows
from ingot.llm.kv_cache import KVCache
from ingot.llm.scheduler import Chunk, StepPlan

Array = np.ndarray[Any, Any]


@dataclass(slots=True)
class Wanted:
    """What is to be made of a step's results.

    Its rows of logits are one of each sampler, then those of drafts, then those of targets, each in the order of the
    chunks. `positions`: of the token that each sampler chooses first, in its sequence. `drafts`: of each sampler that
    has some, its number, they, and where their rows begin.
    """

    positions: Array
    rows: list[Rows] = field(default_factory=list)  # by chunk
    samplers: list[_native.Sampler] = field(default_factory=list)
    drafts: list[tuple[int, Sequence[int], int]] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)


class Runner:
    """Computes the engine loop's steps. Owns the input arrays, which are filled again at every step, and the session.

    Args:
        session: of an engine whose program has the inputs of a step (docs/format.md).
        cache: the block pool that the steps' requests have their tables in.
        max_step_tokens, max_running: as the scheduler's.
        max_length: the most tokens a request can have; with the cache, which none can outgrow, it fixes the width of
            the block table.
        short_length: as the scheduler's.
        embeds: whether hidden_rows is among the inputs; engines of earlier versions have none.
        check: whether a step whose logits are no numbers is run once more, to say where they come from.
    """

    lag = 0  # a step is computed when its results are asked for

    def __init__(
        self, session: Session, cache: KVCache, max_step_tokens: int, max_running: int, max_length: int,
        short_length: int | None = None, embeds: bool = True, check: bool = False,
    ) -> None:  # fmt: skip
        self._session = session
        self._check = check
        self._number = 0  # of the last step
        self._narrow_tables = session.device.limits.narrow_tables
        self._embeds = embeds
        self._cache = cache
        self._token_ids = np.zeros(max_step_tokens, np.int32)
        self._positions = np.zeros(max_step_tokens, np.int32)
        self._slot = np.zeros(max_step_tokens, np.int32)
        self._logit_rows = np.zeros(2 * max_step_tokens, np.int32)  # to choose tokens, and for targets
        self._chosen_positions = np.zeros(max_running, np.int64)
        self._long_rope = np.zeros(max_step_tokens, np.int32)
        self._short_length = short_length
        self._hidden_rows = np.zeros(max_step_tokens, np.int32)
        self._query_start = np.zeros(max_running + 1, np.int32)
        self._context_len = np.zeros(max_running, np.int32)
        self._block_table = np.zeros((max_running, min(cache.blocks_for(max_length), cache.num_blocks)), np.int32)
        # Which table each row shows, and how many of its blocks: a row is written only where it has changed.
        self._shown: list[tuple[list[int] | None, int]] = [(None, 0)] * max_running

    def launch(self, step: StepPlan[Job]) -> Callable[[], list[Result]]:
        """What computes a step, when its results are asked for."""
        return partial(self.run, step)

    def run(self, step: StepPlan[Job]) -> list[Result]:
        """Computes a step: for each of its chunks what its job asked for. Raises what the session raises; then nothing
        has been recorded of it."""
        feeds, wanted = self.prepare(step)
        found = self._session.run(feeds)
        with self._located(feeds):
            return self._by_chunk(wanted, self._choose(found["logits"], wanted) if wanted.samplers else [], found)

    @contextmanager
    def _located(self, feeds: Mapping[str, Array]) -> Iterator[None]:
        """Adds to a fault of a step's logits where their numbers were lost, if somebody wants to know."""
        try:
            yield
        except ValueFault as e:
            where = self._session.first_bad(feeds) if self._check else ""
            if not where:
                raise
            raise ValueFault(f"{e}; in step {self._number} the first numbers that are none come from {where}") from None

    def _by_chunk(self, wanted: Wanted, chosen: Sequence[Result], found: Mapping[str, Array]) -> list[Result]:
        """The results of each chunk: of those of its sampler, of log probabilities by the last rows of logits, and of
        the hidden states that were found.
        """
        choices = iter(chosen)
        scores: list[float] = []
        if wanted.targets:
            logits = found["logits"]
            logits = logits[len(logits) - len(wanted.targets) :]
            scores = self._session.log_probs(logits, np.array(wanted.targets, np.int64)).tolist()
        scored = seen = 0
        results: list[Result] = []
        for rows in wanted.rows:
            result = Result() if rows.sampler is None else next(choices)
            if rows.targets:
                result.scores = scores[scored : scored + len(rows.targets)]
                scored += len(rows.targets)
            if rows.states:
                result.states = found["hidden"][seen : seen + rows.states]
                seen += rows.states
            results.append(result)
        return results

    def memory(self) -> Memory:
        """What the session holds."""
        return self._session.memory()

    def profile(self, step: StepPlan[Job]) -> list[dict[str, Any]]:
        """One run of a step with the time of every call, as Session.profile gives it."""
        return self._session.profile(self.prepare(step)[0])

    def prepare(self, step: StepPlan[Job]) -> tuple[dict[str, Array], Wanted]:
        """The step's inputs, and what is to be made of its results."""
        at = 0
        self._number += 1
        wanted = Wanted(self._chosen_positions)
        drafted: list[int] = []  # rows, counted over the whole step
        scored: list[int] = []
        hidden: list[int] = []
        for number, chunk in enumerate(step.chunks):
            job, count, drafts = chunk.request, chunk.count, chunk.drafts
            self._show_table(number, self._cache.table(job.id))
            self._fill_tokens(at, number, chunk)
            if self._short_length is not None:
                self._long_rope[at : at + count] = len(job.tokens) > self._short_length
            at += count
            self._query_start[number + 1] = at
            self._context_len[number] = chunk.start + count
            rows = job.rows(chunk)
            wanted.rows.append(rows)
            if rows.sampler is not None:
                sampled = len(wanted.samplers)
                self._logit_rows[sampled] = at - len(drafts) - 1
                wanted.positions[sampled] = chunk.start + count - len(drafts)
                if drafts:
                    wanted.drafts.append((sampled, drafts, len(drafted)))
                    drafted += range(at - len(drafts), at)
                wanted.samplers.append(rows.sampler)
            if rows.targets:
                scored += range(at - len(rows.targets), at)
                wanted.targets += rows.targets
            if rows.states:
                hidden += range(at - rows.states, at)
        requests = len(step.chunks)
        feeds = {
            "token_ids": self._token_ids[:at],
            "positions": self._positions[:at],
            "query_start": self._query_start[: requests + 1],
            "context_len": self._context_len[:requests],
            "block_table": self._block_table[:requests, : self._columns(step)],
            "slot": self._slot[:at],
            "logit_rows": _filled(self._logit_rows, len(wanted.samplers), drafted + scored),
        }
        if self._short_length is not None:
            feeds["long_rope"] = self._long_rope[:at]
        if self._embeds:
            feeds["hidden_rows"] = _filled(self._hidden_rows, 0, hidden)
        return feeds, wanted

    def _columns(self, step: StepPlan[Job]) -> int | None:
        """How wide the block table of a step is; None: whole."""
        if not self._narrow_tables:
            return None
        longest = max(chunk.start + chunk.count for chunk in step.chunks)
        return 1 << (self._cache.blocks_for(longest) - 1).bit_length()  # few widths, for every one is planned

    def _show_table(self, row: int, table: list[int]) -> None:
        shown, length = self._shown[row]
        if shown is not table:
            length = 0
        if length != len(table) or shown is not table:
            self._block_table[row, length : len(table)] = table[length:]
            self._shown[row] = (table, len(table))

    def _fill_tokens(self, at: int, row: int, chunk: Chunk[Job]) -> None:
        size, start = self._cache.block_size, chunk.start
        if chunk.count == 1:  # the many decodes: plain numbers are faster than arrays of one
            self._token_ids[at] = chunk.request.tokens[start]
            self._positions[at] = start
            self._slot[at] = self._block_table[row, start // size] * size + start % size
            return
        end = at + chunk.count
        positions = np.arange(start, start + chunk.count, dtype=np.int32)
        self._token_ids[at:end] = chunk.tokens
        self._positions[at:end] = positions
        self._slot[at:end] = self._block_table[row, positions // size] * size + positions % size

    def _choose(self, logits: Array, wanted: Wanted) -> list[Result]:
        """The tokens that each sampler chooses.

        A row behind a draft is looked at only when the draft is what was chosen. A sampler remembers what it chose, and
        what nobody asked for may have no token left to choose.
        """
        begin = perf_counter()
        count = len(wanted.samplers)
        results = self._sample(logits[:count], wanted.samplers, wanted.positions[:count])
        depth, live = 0, wanted.drafts
        while live := [d for d in live if depth < len(d[1]) and d[1][depth] == results[d[0]].tokens[depth]]:
            rows = logits[[count + first + depth for _, _, first in live]]
            depth += 1
            numbers = [number for number, _, _ in live]
            samplers = [wanted.samplers[number] for number in numbers]
            more = self._sample(rows, samplers, wanted.positions[numbers] + depth)
            for number, new in zip(numbers, more, strict=True):
                old = results[number]
                results[number] = Result(
                    [*old.tokens, *new.tokens], [*old.logprobs, *new.logprobs], [*old.tops, *new.tops]
                )
        took = perf_counter() - begin
        for result in results:
            result.sampling = took
        return results

    def _sample(self, logits: Array, samplers: list[_native.Sampler], positions: Array) -> list[Result]:
        """One token of each."""
        tokens, logprobs, ids, values = self._session.sample(logits, samplers, positions)
        results = list(map(_one, tokens.tolist(), logprobs.tolist()))
        if ids.shape[1]:
            for result, row_ids, row_values in zip(results, ids.tolist(), values.tolist(), strict=True):
                likeliest = zip(row_ids, row_values, strict=True)
                result.tops = [{token: value for token, value in likeliest if token >= 0}]
        return results


def _one(token: int, logprob: float) -> Result:
    return Result([token], [logprob])


def _filled(memory: Array, count: int, values: list[int]) -> Array:
    """The beginning of an array: so many elements as they are, then these values."""
    if values:
        memory[count : count + len(values)] = values
    return memory[: count + len(values)]
