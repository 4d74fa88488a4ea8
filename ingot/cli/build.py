"""Build an engine: one file that holds the network, its programs and its weights.

examples:
  ingot build models/pico-python -o pico.ingot
  ingot build models/pico-python -o pico.ingot --precision bfloat16 --json
  ingot build CONFIG_DIR --weights-from random --seed 0      true shapes from config.json alone, for measuring

The report says how far each layer is from float32; --no-report leaves it out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from ingot import _lazy
from ingot.cli import options
from ingot.cli.output import Output, size

Progress = Callable[[str, int, int], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ingot build`."""
    parser.add_argument("source", metavar="SOURCE", help="a Hugging Face directory")
    parser.add_argument("-o", "--output", metavar="FILE", help="default: the source's name with .ingot, here")
    options.add_formats(parser)
    parser.add_argument("--weights-from", choices=("random",), help="seeded random weights: config.json alone will do")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="for --weights-from random (default: 0)")
    parser.add_argument("--no-report", action="store_true", help="do not compare with float32")
    parser.add_argument("--dump-stages", metavar="FOLDER", help="write the network's text after every step there")
    parser.add_argument("--check-stages", action="store_true", help="stop at the step that changes the numbers (slow)")


def run(args: argparse.Namespace, out: Output) -> None:
    """Carries out `ingot build`."""
    path = args.output or f"{Path(args.source).resolve().name}.ingot"
    with _progress(out) as progress:
        engine = _lazy.load("ingot.engine.build:build")(
            args.source,
            precision=args.precision,
            weights=args.weights or "same",
            device=args.device,
            report=not args.no_report,
            weights_from=args.weights_from,
            seed=args.seed,
            progress=progress,
            debug=_lazy.load("ingot.engine.build:Debug")(args.dump_stages, args.check_stages),
        )
    begin = perf_counter()
    written = engine.save(path)
    seconds = {**engine.seconds, "write": perf_counter() - begin}
    for phase, value in seconds.items():
        out.note(f"{phase:8} {value:7.2f} s")
    if engine.report is not None:
        out.text(str(engine.report) + "\n")
    out.text(f"{path}: {size(written)} in {sum(seconds.values()):.2f} s")
    out.result(
        {
            "path": path,
            "bytes": written,
            "seconds": {phase: round(value, 4) for phase, value in seconds.items()},
            "accuracy": engine.report.json() if engine.report is not None else None,
        }
    )


@contextmanager
def _progress(out: Output) -> Iterator[Progress | None]:
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
