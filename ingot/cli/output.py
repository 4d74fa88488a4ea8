"""What the command line prints and where: results to standard output, everything else to standard error."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ingot.errors import FileError
from ingot.strict_json import finite

SCHEMA = 1
OTHER = "other"  # of a command's time: what is in no phase, the loading of code most of all


def remark(text: str, end: str = "\n") -> None:
    """Prints to standard error. What cannot be written there is lost, and the work goes on: a server outlives the disk
    that its log is on."""
    with contextlib.suppress(OSError):
        print(text, end=end, file=sys.stderr, flush=True)


def answer(text: str, end: str = "\n") -> None:
    """Prints to standard output. Raises FileError for a full disk, and BrokenPipeError."""
    try:
        print(text, end=end, flush=True)
    except BrokenPipeError:
        raise
    except OSError as e:
        raise FileError(f"standard output cannot be written: {e.strerror or e}") from None


class Output:
    """Where one command writes. `as_json`: standard output gets one JSON object and nothing else."""

    def __init__(self, as_json: bool, quiet: bool, debug: bool) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self.debug = debug
        self.answered = False  # the one object of --json is out

    def note(self, text: str) -> None:
        """A remark about what is going on, on standard error; not with --quiet."""
        if not self.quiet:
            remark(text)

    def left_out(self, parts: Iterable[str]) -> None:
        """Says which parts of a model's source are not used."""
        for part in parts:
            self.note(f"left out: {part}")

    def detail(self, text: str) -> None:
        """A remark that only --debug shows."""
        if self.debug:
            remark(text)

    def text(self, text: str, end: str = "\n") -> None:
        """A result for people, on standard output; with --json only the object goes there."""
        if not self.as_json:
            answer(text, end)

    def result(self, value: dict[str, Any]) -> None:
        """The one object of --json; nothing without it. JSON has no NaN and no infinity: they become null."""
        if self.as_json:
            self.answered = True
            answer(json.dumps(finite({"schema": SCHEMA, **value}), allow_nan=False))

    def error(self, error: dict[str, Any]) -> None:
        """With --json, what went wrong as the one object, unless a result was shown before it."""
        if not self.answered:
            self.result({"error": error})


def table(rows: Sequence[Sequence[object]], head: Sequence[str]) -> str:
    """Rows under their headings as plain text; numbers are aligned to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(head), *cells]) for i in range(len(head))]
    right = [
        bool(rows) and all(isinstance(row[i], int | float) or row[i] is None for row in rows) for i in range(len(head))
    ]
    return "\n".join(
        "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)).rstrip()
        for row in [list(head), *cells]
    )


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    return printable(str(value))


def printable(text: str) -> str:
    """Text of a file: what a terminal would obey is shown escaped."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def in_words(value: Any) -> str:
    """A value of an engine's config for people, without the signs of JSON or Python: yes, `0, 2`, `pooling last`."""
    if value is None or value in ("", [], {}):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{printable(str(key))} {in_words(v)}" for key, v in value.items())
    if isinstance(value, list | tuple):
        return ("; " if any(isinstance(v, str) for v in value) else ", ").join(map(in_words, value))
    return printable(str(value))


def size(count: float) -> str:
    """A number of bytes for people: 14.7 MB."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def phases(seconds: Mapping[str, float], scale: float = 1.0, unit: str = "s", digits: int = 2) -> str:
    """The time of each phase, a line each, in two columns."""
    width = max(map(len, seconds), default=0)
    return "\n".join(f"{name:{width}} {value * scale:{digits + 6}.{digits}f} {unit}" for name, value in seconds.items())


def since_start() -> float:
    """Seconds since this process began (to the clock tick, 0.01 s), its interpreter's start included."""
    try:
        with open("/proc/self/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
    except OSError:
        return time.process_time()
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started
