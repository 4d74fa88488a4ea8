"""What the commands make of SOURCE: an engine file is opened, anything else is built in memory first."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from ingot import _lazy
from ingot.cli.output import Output
from ingot.errors import UserError

Progress = Callable[[str, int, int], None]

BUILT = (".pt2",)  # files that are built, as folders are


def open_engine(
    args: argparse.Namespace, source: str, out: Output, *, check: bool = True
) -> tuple[Any, dict[str, float]]:
    """The engine of a source with the number formats and the adapter of the command line, and the seconds by phase.

    Raises UserError when an engine was built with other formats than those asked for; not without `check`.
    """
    words = {name: value for name in ("precision", "weights") if (value := getattr(args, name, None)) is not None}
    adapter = {name: getattr(args, name, None) for name in ("lora", "lora_scale")}
    if adapter["lora"] is None and adapter["lora_scale"] is not None:
        raise UserError("--lora-scale is the scale of an adapter: give its folder as --lora")
    device = getattr(args, "device", "cpu")
    begin = perf_counter()
    if Path(source).is_file() and not source.endswith(BUILT):
        engine = _lazy.load("ingot.engine.session:load")(source)
        if check:
            check_words(engine, source, words, device)
        if adapter["lora"] is not None:
            engine = _lazy.load("ingot.builder.adapter:merge")(engine, adapter["lora"], adapter["lora_scale"])
        return engine, {"load": perf_counter() - begin}
    with progress_bar(out) as progress:
        build = _lazy.load("ingot.builder.build:build")
        engine = build(source, device=device, report=False, progress=progress, **words, **adapter)
    return engine, {"build": perf_counter() - begin}


def check_words(engine: Any, source: str, words: dict[str, str], device: str) -> None:
    """Raises UserError for number formats that an engine does not have."""
    if device != "cpu":
        raise UserError(f"device {device!r} is not available: this version runs on the CPU")
    for name, word in words.items():
        built = engine.config.get(name, "same" if name == "weights" else None)
        if word != built:
            raise UserError(
                f"--{name} {word} conflicts with {source}, which was built with {built}: leave it out, or build again"
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
    return f"{path.stem if path.suffix in BUILT else path.name}.ingot"


def check_output(path: str, source: str) -> None:
    """Raises UserError when an engine would be written over its source."""
    if Path(path).resolve() == Path(source).resolve():
        raise UserError(f"-o {path} is the source itself")


@contextmanager
def progress_bar(out: Output) -> Iterator[Progress | None]:
    """A progress bar for a terminal that is being watched; nothing otherwise."""
    if out.quiet or not sys.stderr.isatty():
        yield None
        return
    rich = _lazy.load("rich.progress")
    console = _lazy.load("rich.console:Console")(stderr=True)
    with rich.Progress(console=console, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def progress(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = bars.add_task(phase, total=total)
            bars.update(tasks[phase], completed=done, total=total)

        yield progress
