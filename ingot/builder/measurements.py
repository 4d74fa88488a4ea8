"""What a build measures on this machine, `--tune`: the seconds for it, and the file by which the next build decides.

A file has a part for each thing that is measured, with a key of its own. What is in a part is for those who measure.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from ingot.errors import FileError, UserError
from ingot.regular import descriptor_of
from ingot.strict_json import JsonError, parse_object
from ingot.written import check_folder, write_whole

SCHEMA = 2
PARTS = ("int8", "algorithms")
GAIN = 0.02  # of a run's time, which a choice must save: differences below it are the machine's mood
ROUNDS, RUNS = 5, 3  # turns of a comparison, each the least of some runs
MOST_BYTES = 16 << 20  # of a file of measurements
NUMBER = (int, float)  # for `part_of`: a time


def check_tune(seconds: Any, file: Any) -> None:
    """Raises UserError for words that do not go together, FileError where the file's folder takes no files: before
    anything is measured, not after."""
    if seconds is not None:
        number = isinstance(seconds, NUMBER) and not isinstance(seconds, bool)
        if not (number and 0 < seconds < math.inf):
            raise UserError(f"tune must be a number of seconds above 0, not {seconds!r:.60}")
        if file is not None and not isinstance(file, str | os.PathLike):
            raise UserError(f"tune_file must be the path of a file, not {file!r:.60}")
        if file is not None and not os.path.exists(file):  # one that is there may suffice, and need not be written
            check_folder(file)
    elif file is not None:
        raise UserError("tune_file keeps what tune measures: give tune=SECONDS with it")


@dataclass
class Clock:
    """The seconds that may be spent, and a word to a progress bar."""

    seconds: float
    tell: Callable[[int, int], None]
    begin: float = field(default_factory=perf_counter)

    def left(self, kept: float = 0.0) -> bool:
        """Whether there is time for one measurement more. kept: seconds for what is measured at last."""
        spent = perf_counter() - self.begin
        self.tell(min(int(spent * 10), math.ceil(self.seconds * 10)), math.ceil(self.seconds * 10))
        return spent + kept < self.seconds

    def spent(self) -> float:
        """The share of the seconds that are gone."""
        return (perf_counter() - self.begin) / self.seconds


@dataclass
class Budget:
    """The seconds of a build for all that it measures, and where it keeps that."""

    seconds: float
    file: str | os.PathLike[str] | None = None
    spent: float = 0.0

    @contextmanager
    def clock(self, tell: Callable[[int, int], None], share: float = 1.0) -> Iterator[Clock]:
        """For a share of what is left of them."""
        clock = Clock((self.seconds - self.spent) * share, tell)
        yield clock
        self.spent += perf_counter() - clock.begin


def least(timed: Callable[[], float]) -> float:
    """The fastest of some runs; `timed` gives the seconds of one."""
    return min(timed() for _ in range(RUNS))


def in_turn(one: Callable[[], float], two: Callable[[], float]) -> tuple[float, float]:
    """Seconds of a run of each at its best, in turn."""
    best = [math.inf, math.inf]
    for _ in range(ROUNDS):
        best = [min(b, least(timed)) for b, timed in zip(best, (one, two), strict=True)]
    return best[0], best[1]


# --------------------------------------------------------------------------------------------------------- the file


def part_of(path: str | os.PathLike[str], part: str, kinds: Mapping[str, Any]) -> dict[str, Any] | None:
    """A part of a file, its fields as `kinds` says; None where there is none. Raises FileError for a damaged file."""
    file = Path(path)
    if (found := _parts(file).get(part)) is None:
        return None
    if not isinstance(found, dict) or found.keys() != kinds.keys():
        raise FileError(f"{file}: {part} must have the keys {', '.join(kinds)}: it is damaged; remove it")
    for name, kind in kinds.items():
        if not isinstance(found[name], kind) or isinstance(found[name], bool):
            raise damaged(file, name)
        if kind is NUMBER and not is_time(found[name]):
            raise damaged(file, name)
    return found


def keep(path: str | os.PathLike[str], part: str, found: Mapping[str, Any]) -> None:
    """Writes a part; the others stay. Raises FileError."""
    file = Path(path)
    parts = {**_parts(file), part: dict(found)}
    text = json.dumps({"schema": SCHEMA, **parts}, indent=1, allow_nan=False)
    write_whole(file, f"{text}\n".encode())


def damaged(file: str | os.PathLike[str], what: str) -> FileError:
    """The error for a field that is none."""
    return FileError(f"{file}: {what} is damaged; remove the file")


def is_time(value: Any) -> bool:
    """Whether it is a number from 0 on."""
    return isinstance(value, NUMBER) and not isinstance(value, bool) and 0 <= value < math.inf


def _parts(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    try:
        with open(descriptor_of(file), "rb") as opened:
            text = opened.read(MOST_BYTES + 1)
    except OSError as e:
        raise FileError(f"{file} cannot be read: {e.strerror or e}") from None
    if len(text) > MOST_BYTES:
        raise FileError(f"{file} is no file of measurements: it is larger than {MOST_BYTES >> 20} MiB; remove it")
    try:
        found = parse_object(text)
    except JsonError as e:
        raise FileError(f"{file} is no file of measurements: {e}; remove it") from None
    if found.pop("schema", None) != SCHEMA:
        raise FileError(f"{file} is no file of measurements of schema {SCHEMA}: remove it")
    if unknown := sorted(found.keys() - {*PARTS}):
        raise FileError(f"{file} has {unknown[0]!r:.80} beside {' and '.join(PARTS)}: it is damaged; remove it")
    return found
