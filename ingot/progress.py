"""How far a build is, for people: a bar on a terminal while it works, and its phases in a line when it is done."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from ingot import _lazy

Progress = Callable[[str, int, int], None]  # phase, done, total
Asked = Progress | Literal[False] | None  # what `build` takes: None is a bar on a terminal, False nothing

log = logging.getLogger("ingot.build")


def watched() -> bool:
    """Whether standard error is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def bar() -> Iterator[Progress]:
    """A bar for each phase on standard error, gone at the end."""
    rich = _lazy.load("rich.progress")
    console = _lazy.load("rich.console:Console")(stderr=True)
    with rich.Progress(console=console, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def progress(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = bars.add_task(phase, total=total)
            bars.update(tasks[phase], completed=done, total=total)

        yield progress


@contextmanager
def told(asked: Asked) -> Iterator[Progress]:
    """What a build tells its progress to, as the caller asked."""
    if asked is None and watched():
        with bar() as progress:
            yield progress
    else:
        yield asked or (lambda phase, done, total: None)


def phase_line(seconds: Mapping[str, float]) -> str:
    """`built in 8.1 s: read 0.5, lower 1.2, pack 6.4`."""
    return f"built in {sum(seconds.values()):.1f} s: " + ", ".join(f"{name} {s:.1f}" for name, s in seconds.items())
