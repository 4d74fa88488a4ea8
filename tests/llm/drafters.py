"""Drafters for tests: they know what is going to be said."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ingot.llm.jobs import Job


class Scripted:
    """Proposes how known texts go on, right or wrong by a script that is gone through again and again.

    Args:
        texts: token ids; a job is asked about by what it begins with.
        script: of drafts, whether they are right.
        vocabulary: how many tokens there are.
        count: of drafts at a time.
    """

    def __init__(
        self, texts: Sequence[Sequence[int]], script: Sequence[bool], vocabulary: int, count: int = 7
    ) -> None:
        self.texts = [list(text) for text in texts]
        self.script = itertools.cycle(script)
        self.vocabulary = vocabulary
        self.count = count
        self.asked: set[int] = set()
        self.forgotten: list[int] = []

    def propose(self, jobs: Sequence[Job]) -> list[list[int]]:
        """One list for each job; none for a job of no known text."""
        assert all(job.finish_reason is None and job.id not in self.forgotten for job in jobs)
        self.asked |= {job.id for job in jobs}
        return [self._drafts(job.tokens) for job in jobs]

    def forget(self, job: Job) -> None:
        """Notes it."""
        self.forgotten.append(job.id)

    def _drafts(self, tokens: list[int]) -> list[int]:
        known = next((text for text in self.texts if text[: len(tokens)] == tokens), tokens)
        rest = known[len(tokens) : len(tokens) + self.count]
        return [t if right else (t + 1) % self.vocabulary for t, right in zip(rest, self.script, strict=False)]
