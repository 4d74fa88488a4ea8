"""Serve a language model over HTTP, as OpenAI's clients expect it, with a chat page at /.

examples:
  ingot serve pico.ingot --port 8000
  ingot serve models/pico-python --chat-template plain --threads 2
  ingot serve model.ingot --host 0.0.0.0 --api-key-file key.txt --max-queue 100

Needs pip install 'ingot[serve]'. SIGTERM or Ctrl-C lets running answers end, for --drain seconds; a second one does
not. docs/serving.md has the routes, the limits and the metrics."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import queue
import resource
import signal
import stat
import threading
from pathlib import Path

from ingot import _lazy
from ingot.cli import options
from ingot.cli.output import Output
from ingot.cli.template import add_chat_template, chat_template
from ingot.errors import FileError, UserError

STANDARD_ERROR = 2
MIN_KEY, MAX_KEY = 16, 1024  # characters
PACKAGES = ("starlette", "uvicorn", "httptools", "msgspec")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ingot serve`."""
    options.add_model(parser)
    group = parser.add_argument_group("server")
    group.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1)")
    group.add_argument("--port", type=options.port, default=8000, help="0 takes a free one (default: 8000)")
    group.add_argument("--api-key-file", metavar="FILE", help="a file with the key: all but /health and /ready need it")
    group.add_argument("--model-name", metavar="NAME", help="what requests call the model (default: SOURCE's name)")
    group.add_argument("--any-model", action="store_true", help="take requests that call the model anything")
    add_chat_template(group)
    group.add_argument(
        "--max-running", type=options.positive, default=64, metavar="N", help="answers computed at once (default: 64)"
    )
    group.add_argument(
        "--max-queue", type=options.natural, default=256, metavar="N", help="answers that may wait (default: 256)"
    )
    group.add_argument(
        "--max-wait", type=options.tolerance, default=60.0, metavar="SECONDS",
        help="refuse requests that would wait longer, by the pace of the answers so far (default: 60; 0: never)",
    )  # fmt: skip
    group.add_argument("--no-prefix-cache", action="store_true", help="compute prompts whole, however they begin")
    group.add_argument(
        "--drain",
        type=options.tolerance,
        default=30.0,
        metavar="SECONDS",
        help="how long running answers may go on when the server is told to end (default: 30)",
    )
    group.add_argument(
        "--step-timeout", type=options.tolerance, default=300.0, metavar="SECONDS",
        help="restart the model's process when it is silent, or one step of it takes, so long (default: 300; 0: never)",
    )  # fmt: skip
    group.add_argument("--trace", action="store_true", help="tell clients where their answer's time went")


def run(args: argparse.Namespace, out: Output) -> int:
    """Carries out `ingot serve`."""
    for package in PACKAGES:
        _lazy.optional(package, "ingot serve", "ingot[serve]")
    server, frames = _lazy.load("ingot.serve.server"), _lazy.load("ingot.serve.frames")
    words = options.model_words(args)
    template, stop = chat_template(args.chat_template)
    start = frames.Start(
        source=os.fspath(args.source), **words, max_running=args.max_running,
        prefix_cache=not args.no_prefix_cache, chat_template=template,
    )  # fmt: skip
    key = None if args.api_key_file is None else read_key(Path(args.api_key_file), out)
    if key is None and args.host not in ("127.0.0.1", "::1", "localhost"):
        out.note(f"warning: listening on {args.host} without --api-key-file: whoever reaches it may use it")
    log = _log_to_stderr(out)
    told = server.Options(
        start, args.host, args.port, args.model_name or Path(args.source).resolve().stem, key, args.max_queue,
        args.max_wait, args.drain, args.step_timeout, stop, args.trace, args.any_model,
    )  # fmt: skip

    def announce(address: str, left_out: list[str]) -> None:
        out.left_out(left_out)
        out.note(f"serving {told.model} at {address}")

    core, hard = resource.getrlimit(resource.RLIMIT_CORE)
    if core:  # memory holds the key and what is asked; a limit of 1 is what programs that collect dumps heed too
        resource.setrlimit(resource.RLIMIT_CORE, (1, hard))
    try:
        done = server.Server(told, announce).run()
    finally:
        for number in server.SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # it has ended, and its exit code says why
        log.settle()
    interrupted = done.pop("interrupted")
    out.result(done)
    return 130 if interrupted else 0


def read_key(path: Path, out: Output) -> bytes:
    """The key in a file: one line of printable ASCII, in a regular file that others cannot write to."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise FileError(f"{path} is no regular file")
            data = file.read(MAX_KEY + 3)
    except OSError as e:
        raise FileError(f"{path} cannot be read: {e.strerror}") from None
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UserError(f"{path} can be written by others: chmod 600 {path}")
    if mode & stat.S_IROTH:
        out.note(f"warning: {path} can be read by everybody on this machine: chmod 600 {path}")
    key = data.removesuffix(b"\n").removesuffix(b"\r")
    if not MIN_KEY <= len(key) <= MAX_KEY or not all(33 <= byte <= 126 for byte in key):
        raise UserError(f"{path} must hold one key of {MIN_KEY} to {MAX_KEY} printable characters, and nothing else")
    return key


class Log(logging.Handler):
    """Lines to a descriptor, written by a thread of its own: a reader that does not read holds up nobody.

    A line that finds `waiting` lines before it is lost, and so is one that cannot be written (a full disk). The next
    line that goes out is preceded by how many were lost.
    """

    def __init__(self, descriptor: int, waiting: int = 1000) -> None:
        super().__init__()
        self._descriptor, self._lost = descriptor, 0
        self._lines: queue.Queue[str] = queue.Queue(waiting)
        threading.Thread(target=self._write, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self._lost += 1  # under the handler's lock

    def settle(self, seconds: float = 1.0) -> None:
        """Waits until all lines are out, so long at most."""
        with self._lines.all_tasks_done:
            self._lines.all_tasks_done.wait_for(lambda: not self._lines.unfinished_tasks, seconds)

    def _write(self) -> None:
        while True:
            line = self._lines.get()
            self.acquire()
            lost, self._lost = self._lost, 0
            self.release()
            text = f"{lost:,} lines of the log were lost here\n{line}\n" if lost else f"{line}\n"
            left = text.encode(errors="backslashreplace")
            with contextlib.suppress(OSError):
                while left:  # past Python's stream, whose lock a blocked thread would hold when the process ends
                    left = left[os.write(self._descriptor, left) :]
            self._lines.task_done()


def _log_to_stderr(out: Output) -> Log:
    handler = Log(STANDARD_ERROR)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger = logging.getLogger("ingot.serve")
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR if out.quiet else logging.INFO)
    logger.propagate = False
    return handler
