"""A runner that is one step ahead of what it tells, as a device that works by itself is."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from ingot.llm.jobs import Job, Result
from ingot.llm.runner import Runner
from ingot.llm.scheduler import Chunk, StepPlan


class Ahead(Runner):
    """Like a device that works by itself: a step runs when it is launched, and tells its results later."""

    lag = 1

    def __init__(self, *words: Any, **more: Any) -> None:
        super().__init__(*words, **more)
        self.chosen: dict[int, int] = {}

    def launch(self, step: StepPlan[Job]) -> Callable[[], list[Result]]:
        results = self.run(step)
        for chunk, result in zip(step.chunks, results, strict=True):
            if result.tokens:
                self.chosen[chunk.request.id] = result.tokens[-1]
        return lambda: results

    def _fill_tokens(self, at: int, row: int, chunk: Chunk[Job]) -> None:
        if not chunk.tokens:  # what the step before has chosen, which the loop does not know yet
            known: Any = SimpleNamespace(tokens=[*chunk.request.tokens, self.chosen[chunk.request.id]])
            chunk = Chunk(known, chunk.start, 1, True)
        super()._fill_tokens(at, row, chunk)
