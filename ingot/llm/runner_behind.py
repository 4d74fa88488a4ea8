"""A runner for devices that choose tokens themselves: the results of a step are read when the next one is under way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ingot import _native
from ingot.backends.device import Choice, Chosen
from ingot.errors import ValueFault
from ingot.llm.jobs import Job, Result
from ingot.llm.runner import Runner, Wanted
from ingot.llm.scheduler import Chunk, StepPlan

Array = np.ndarray[Any, Any]

_BAD = "a logit is NaN or infinite, or none is finite"


class RunnerBehind(Runner):
    """Launches steps whose tokens stay on the device for the next one; the host reads them one step behind.

    What only the host does (penalties, biases, forbidden sequences, the likeliest tokens, drafts, scores) gets its rows
    of logits, and the loop then waits for that step's results before it plans the next one.
    """

    def __init__(self, *words: Any, **more: Any) -> None:
        super().__init__(*words, **more)
        self._behind = np.full(len(self._token_ids), -1, np.int32)
        self._places: dict[int, int] = {}  # by request: which of the tokens that the last step chose is its own
        self.lag = 0 if self._check else 1

    def launch(self, step: StepPlan[Job]) -> Callable[[], list[Result]]:
        """Starts a step. Returns what waits for its results."""
        feeds, wanted = self.prepare(step)
        wanted.positions = wanted.positions.copy()  # the next step writes its own there
        count = len(wanted.samplers)
        draws = _native.draws(wanted.samplers, wanted.positions[:count])
        alone = ~draws[-1]
        for sampled, _, _ in wanted.drafts:
            alone[sampled] = True
        hosts = np.flatnonzero(alone).tolist()
        temperature, top_k, top_p, min_p, uniform = draws[:-1] if len(hosts) < count else (d[:0] for d in draws[:-1])
        back = [*hosts, *range(count, len(feeds["logit_rows"]))]
        behind = self._behind[: len(feeds["token_ids"])]
        started = self._session.launch(feeds, Choice(behind, temperature, top_k, top_p, min_p, uniform, back))
        samplers = iter(range(count))
        self._places = {
            chunk.request.id: next(samplers)
            for chunk, rows in zip(step.chunks, wanted.rows, strict=True) if rows.sampler is not None
        }  # fmt: skip
        self.lag = 0 if back or self._check else 1  # a check needs the inputs, which the next step fills anew
        return lambda: self._results(feeds, started(), wanted, hosts)

    def _results(
        self, feeds: Mapping[str, Array], chosen: Chosen, wanted: Wanted, hosts: list[int]
    ) -> list[Result]:
        with self._located(feeds):
            return self._found(chosen, wanted, hosts)

    def _found(self, chosen: Chosen, wanted: Wanted, hosts: list[int]) -> list[Result]:
        count = len(wanted.samplers)
        device = sorted(set(range(count)).difference(hosts))
        for row in device:
            if chosen.tokens[row] < 0:
                raise ValueFault(f"row {row} of the logits: {_BAD}")
        by_sampler: list[Any] = [None] * count
        tokens, logprobs = chosen.tokens.tolist(), chosen.logprobs.tolist()
        for row in device:
            by_sampler[row] = Result([tokens[row]], [logprobs[row]])
        if hosts:
            numbers = {row: i for i, row in enumerate(hosts)}
            own = Wanted(
                wanted.positions[hosts], samplers=[wanted.samplers[row] for row in hosts],
                drafts=[(numbers[row], drafts, first) for row, drafts, first in wanted.drafts],
            )  # fmt: skip
            for row, result in zip(hosts, self._choose(chosen.outputs["logits"], own), strict=True):
                by_sampler[row] = result
        return self._by_chunk(wanted, by_sampler, chosen.outputs)

    def _fill_tokens(self, at: int, row: int, chunk: Chunk[Job]) -> None:
        if chunk.start < len(chunk.request.tokens):
            self._behind[at : at + chunk.count] = -1
            super()._fill_tokens(at, row, chunk)
            return
        # What the step before chooses, which the loop does not know yet.
        size, start = self._cache.block_size, chunk.start
        self._behind[at] = self._places[chunk.request.id]
        self._token_ids[at] = 0
        self._positions[at] = start
        self._slot[at] = self._block_table[row, start // size] * size + start % size
