"""What the commands make of SOURCE: an engine file is opened, anything else is built in memory first."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from ingot import _lazy
from ingot.cli.output import Output
from ingot.errors import UserError
from ingot.progress import Progress, bar, watched
from ingot.written import check_folder

PAUSE = 15.0  # seconds between two lines of progress


def open_engine(
    args: argparse.Namespace, source: str, out: Output, *, check: bool = True
) -> tuple[Any, dict[str, float]]:
    """The engine of a source with the number formats and the adapter of the command line, and the seconds by phase.

    Raises UserError when an engine was built with other formats than those asked for; not without `check`.
    """
    names = ("precision", "weights", "activations", "kv", "device", "lora", "lora_scale")
    words = {name: getattr(args, name, None) for name in names}
    sources = _lazy.load("ingot.source")
    begin = perf_counter()
    phase = "load" if sources.is_engine(source) else "build"
    with progress_bar(out) as progress:
        engine = sources.open_engine(source, **words, check=check, progress=progress)
    return engine, {phase: perf_counter() - begin}


def check_target(device: str | None, what: str) -> None:
    """Raises UserError for a device that engines are not built for: `what` is for those that are."""
    target = _lazy.load("ingot.backends.device:DEFAULT")
    if device not in (None, target):
        raise UserError(
            f"--device {device}: {what} for {target}; give the device to what runs the engine: run, generate, chat, "
            "score, serve, bench"
        )


def open_network(args: argparse.Namespace, source: str, out: Output) -> tuple[Any, dict[str, float]]:
    """The same for a plain network; a language model is refused, for its inputs and states are made by its runtime."""
    engine, seconds = open_engine(args, source, out)
    if engine.kind == "llm":
        raise UserError(f"{source} is a language model: `ingot generate` and `ingot score` run it")
    return engine, seconds


def default_name(source: str) -> str:
    """The engine file of a source when none is named: its name with .ingot, in the working directory."""
    path = Path(source).resolve()
    return f"{path.stem if path.suffix in _lazy.load('ingot.source:BUILT') else path.name}.ingot"


def check_output(path: str, source: str) -> None:
    """Raises UserError when an engine would be written over its source, and FileError when its folder takes no files,
    before the work and not after it."""
    if Path(path).resolve() == Path(source).resolve():
        raise UserError(f"-o {path} is the source itself")
    check_folder(path)


class _Lines:
    """Progress for a log: a line after each PAUSE seconds."""

    def __init__(self, out: Output) -> None:
        self._out, self._last = out, perf_counter()

    def __call__(self, phase: str, done: int, total: int) -> None:
        now = perf_counter()
        if done < total and now - self._last >= PAUSE:
            self._last = now
            self._out.note(f"{phase}: {done:,} of {total:,}")


@contextmanager
def progress_bar(out: Output) -> Iterator[Progress]:
    """A progress bar for a terminal that is being watched, else a line now and then; nothing with --quiet."""
    if out.quiet:
        yield lambda phase, done, total: None
    elif watched():
        with bar() as progress:
            yield progress
    else:
        yield _Lines(out)
