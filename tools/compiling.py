"""Runs a command that compiles, and shows how far it is: `python tools/compiling.py COMMAND …`.

On a terminal that is one line which changes, elsewhere ten lines, with the time that is left by the pace so far. All
that the command prints goes to build/compiling.log; when it fails, what the compiler said is shown. The exit code is
the command's.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from time import monotonic
from typing import TextIO

LOG = Path(__file__).parent.parent / "build" / "compiling.log"
STEP = re.compile(r"\s*\[(\d+)/(\d+)\] (.*)")
FAULT = re.compile(r"FAILED: |CMake Error|\berror: |^ERROR\b", re.IGNORECASE)
SECONDS_PER_FILE = 3.8  # of one processor, over all files of the core: 2.2 on a Zen 5, 3.8 on a Xeon with AMX (g++ 16)
MOST_SHOWN = 200  # lines of a failure


class Progress:
    """Shows ninja's steps on a stream as they come."""

    def __init__(self, stream: TextIO, processors: int) -> None:
        self._stream, self._processors = stream, processors
        self._live = stream.isatty()
        self._tenth = 0
        self._begun = False
        self._start = 0.0

    def line(self, text: str) -> None:
        """One line of the command."""
        found = STEP.match(text)
        if found is None:
            return
        done, total, what = int(found[1]), int(found[2]), found[3]
        if not self._begun:
            self._begin(total)
        if self._live:
            name = re.search(r"\.dir/([\w/]+\.cpp)", what)
            width = shutil.get_terminal_size().columns - 1
            shown = f"  {done} of {total}{self._left(done, total)}  {name[1] if name else what}"[:width]
            print(f"\r{shown:{width}}", end="", file=self._stream, flush=True)
        elif done * 10 // total > self._tenth:
            self._tenth = done * 10 // total
            print(f"  {done} of {total}{self._left(done, total)}", file=self._stream, flush=True)

    def _begin(self, total: int) -> None:
        self._begun, self._start = True, monotonic()
        seconds = total * SECONDS_PER_FILE / min(self._processors, total)
        print(
            f"compiling the native core: {total} steps, {about(seconds)} on {self._processors} processor(s)",
            file=self._stream, flush=True,
        )  # fmt: skip

    def _left(self, done: int, total: int) -> str:
        """The time that is left by the pace so far, once that says something."""
        elapsed = monotonic() - self._start
        return f", {about(elapsed / done * (total - done))} left" if done * 10 >= total > done and elapsed > 5 else ""

    def end(self) -> None:
        """After the last line."""
        if self._live and self._begun:
            print(f"\r{'':{shutil.get_terminal_size().columns - 1}}\r", end="", file=self._stream, flush=True)


def about(seconds: float) -> str:
    """A time as somebody wants it who waits."""
    return f"about {seconds:.0f} seconds" if seconds < 90 else f"about {seconds / 60:.0f} minutes"


def failure(lines: list[str]) -> Iterable[str]:
    """What there is to see of a command that failed: from the first fault on, or its end."""
    first = next((i for i, line in enumerate(lines) if FAULT.search(line)), max(0, len(lines) - 40))
    rest = [line for line in lines[first:] if not STEP.match(line)]
    return rest[:MOST_SHOWN]


def run(command: list[str], stream: TextIO, log: Path = LOG) -> int:
    """Runs the command; returns its exit code."""
    log.parent.mkdir(parents=True, exist_ok=True)
    progress = Progress(stream, len(os.sched_getaffinity(0)))
    lines = []
    # ninja shows each step on a line of its own when nobody asks it not to; pip's colours would be in the way.
    environment = os.environ | {"NINJA_STATUS": "[%f/%t] ", "NO_COLOR": "1"}
    with (
        log.open("w", encoding="utf-8") as file,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            file.write(line)
            lines.append(line.rstrip("\n"))
            progress.line(line)
    progress.end()
    if process.returncode:
        print(*failure(lines), f"\nit failed: {' '.join(command)}", f"all it said is in {log}", sep="\n", file=stream)
    return process.returncode


if __name__ == "__main__":
    try:
        sys.exit(run(sys.argv[1:], sys.stderr))
    except KeyboardInterrupt:
        sys.exit(130)
