"""How long the phases of a build take, and who is told of them."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import Any

from ingot.progress import Progress


class Phases:
    """The seconds of each phase, and a callback (phase, done, total) for progress bars."""

    def __init__(self, progress: Progress | None) -> None:
        self.seconds: dict[str, float] = {}
        self._progress = progress

    @contextmanager
    def phase(self, name: str) -> Any:
        """Times what happens inside."""
        self.tell(name, 0, 1)
        begin = time.perf_counter()
        yield lambda done, total: self.tell(name, done, total)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin
        self.tell(name, 1, 1)

    def tell(self, name: str, done: int, total: int) -> None:
        if self._progress:
            self._progress(name, done, total)
