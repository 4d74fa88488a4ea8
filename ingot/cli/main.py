"""The command line: commands, exit codes (0, 2 the user's mistake, 1 ours, 130 Ctrl-C), and how errors are shown."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Any, TextIO

from ingot import _interrupt
from ingot.cli import bench, build, chat, config, diff, doctor, generate, inspect, ops, options, plan, run, score, serve
from ingot.cli.output import Output, remark
from ingot.cli.parser import Parser
from ingot.cli.typed import as_typed
from ingot.errors import FileError, IngotError, MemoryLimitError, from_code
from ingot.version import __version__

COMMANDS = (build, generate, chat, serve, score, plan, run, diff, inspect, bench, doctor, ops, config)

_EPILOG = """examples:
  ingot generate models/pico-python --prompt "def quicksort(items):"     a Hugging Face directory, no build step
  ingot build models/pico-python -o pico.ingot --precision bfloat16      one file that starts at once
  ingot generate pico.ingot --prompt "import os" --temperature 0.8 --top-p 0.95 --seed 7
  ingot chat pico.ingot --chat-template plain                            in turns, at the terminal
  ingot serve pico.ingot --port 8000 --chat-template plain               over HTTP, for OpenAI's clients and browsers
  ingot plan models/pico-python --concurrency 16 --context 512           what memory that takes, before it loads
  ingot score pico.ingot --text heldout.txt --window 512 --json
  ingot build net.pt2 -o net.ingot                                       a torch network, or net.onnx
  ingot run net.ingot --input x=image.npy -o out.npz                     a plain network, once
  ingot doctor pico.ingot                                                what runs it on this machine

`ingot COMMAND --help` explains a command."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; only --help, --version and a bad command line raise SystemExit."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    if not words:
        parser.print_help(sys.stderr)
        return 2
    if words[0] in ("help", "version"):  # as other programs have them
        words = [*words[1:2], "--help"] if words[0] == "help" else ["--version"]
    args, unknown = parser.parse_known_args(words)
    if unknown:
        args.parser.error(args.parser.none_of(unknown))
    out = Output(args.json, args.quiet, args.debug)
    # Text that the terminal's encoding lacks is shown escaped: generating must not end in an encoding error.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        return _ended(args, out)
    finally:
        for stream in (sys.stdout, sys.stderr):
            _settle(stream)


def _settle(stream: TextIO) -> None:
    """Gives up what a stream cannot write: Python would try again at exit, complain, and change the exit code."""
    try:
        stream.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def _ended(args: argparse.Namespace, out: Output) -> int:
    """Runs the command; its exit code."""
    try:
        options.use_kernels(args)
        return args.run(args, out) or 0
    except KeyboardInterrupt:
        return _interrupted(out)
    except BrokenPipeError:  # whoever read our output has enough
        return 0
    except IngotError as e:
        text = as_typed(str(e), args.parser)
        return _show(e, f"error: {text}", e.exit_code, out, e.json() | {"message": text})
    except MemoryError as e:
        return _show(e, "error: out of memory", 1, out, MemoryLimitError("out of memory").json())
    except Exception as e:
        if _interrupt.became(e):
            return _interrupted(out)
        native = sys.modules.get("ingot._native")  # commands that ask it directly, such as doctor
        if native is not None and isinstance(e, native.Error):
            typed = from_code(e.code, str(e))
            return _show(e, f"error: {typed}", typed.exit_code, out, typed.json())
        hint = "" if out.debug else "\nThis is a fault of ingot. Run it again with --debug and report what it prints."
        text = f"{type(e).__name__}: {e}"
        return _show(e, f"internal error: {text}{hint}", 1, out, IngotError(text).json())


def _interrupted(out: Output) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # once is enough: what is left are a few lines
    out.note("\ninterrupted")
    return 130


def _show(error: BaseException, text: str, code: int, out: Output, data: dict[str, Any]) -> int:
    with contextlib.suppress(OSError, FileError):  # standard output may be what cannot be written
        out.error(data)
    if out.debug:
        remark("".join(traceback.format_exception(error)))
    remark(f"ingot: {text}")
    return code


def _parser() -> Parser:
    parser = Parser(
        prog="ingot",
        description="Build neural networks into engines, and run them fast on a plain CPU.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"ingot {__version__}")
    options.add_common(parser, default=False)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in COMMANDS:
        name = module.__name__.rpartition(".")[2]
        summary, _, epilog = (module.__doc__ or "").partition("\n\n")
        command = commands.add_parser(
            name,
            help=summary,
            description=summary,
            epilog=epilog.strip(),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        # Suppressed defaults: a value given before the command's name stays.
        options.add_common(command, default=argparse.SUPPRESS)
        command.set_defaults(run=module.run, parser=command)
        command.commands = commands.choices
    return parser
