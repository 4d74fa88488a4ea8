"""The process that compiles kernels beside the steps of another one: `python -m ingot.backends.cuda.beside_process`.

Lines of JSON come in: first the network, and on which GPU it runs; then sizes of padded steps whose kernels are wanted
(beside.py). What they launch is found here too, on a GPU that is not there (imagined.py). The first sizes come first,
but kernels of several are compiled at once.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from ingot import _lazy
from ingot.backends.cuda.beside import MESSAGE
from ingot.backends.cuda.choice import Kind
from ingot.backends.cuda.kernel_files import Source, prepare, taken
from ingot.backends.cuda.steps import Size
from ingot.backends.cuda.steps_ahead import StepsAhead, compiled

COMPILERS = 4  # threads at most, and no more than half of the processors
MOST_SAID = 300  # characters of an error: a pipe takes 4 KiB in one piece, whatever else is printed meanwhile


class Work:
    """What is found and compiled, in threads. say: tells the other process something."""

    def __init__(self, ahead: StepsAhead, say: Callable[..., None]) -> None:
        self._ahead = ahead
        self._say = say
        self._finder = ThreadPoolExecutor(1)
        self._compilers = ThreadPoolExecutor(max(1, min(COMPILERS, len(os.sched_getaffinity(0)) // 2)))
        for pool in (self._finder, self._compilers):
            pool.submit(int)  # so it has a thread, or this process ends: without, what it is given is never done
        self._lock = threading.Lock()
        self._messages = 0
        self._left = 0  # of what was asked for, and of what came of it
        self._compiled = 0
        self._begun: set[str] = set()  # keys of kernels, of those too that the other process compiles

    def take(self, message: Mapping[str, Any]) -> None:
        """Begins what a message asks for."""
        self._begun.update(message["own"])
        kinds = [Kind[name] for name in message["kinds"]]
        sizes = [Size(*size) for size in message["steps"]]
        with self._lock:
            self._messages += 1
            self._left += 1 + len(sizes)
        for size in sizes:
            self._finder.submit(self._done, partial(self._find, size, kinds))
        self._finder.submit(self._done, lambda: None)  # a message may ask for nothing

    def end(self) -> None:
        """When what has begun is done."""
        self._finder.shutdown(cancel_futures=True)
        self._compilers.shutdown(cancel_futures=True)

    def _find(self, size: Size, kinds: Sequence[Kind]) -> None:
        for source in self._ahead.missing(size, kinds):
            key = source.key
            if key not in self._begun:
                self._begun.add(key)
                with self._lock:
                    self._left += 1
                with suppress(RuntimeError):  # no thread more can be started: it is in the queue of those there
                    self._compilers.submit(self._done, partial(self._compile, key, source))

    def _compile(self, key: str, source: Source) -> None:
        if not taken(source):
            compiled(source)
            with self._lock:
                self._compiled += 1

    def _done(self, work: Callable[[], None]) -> None:
        """Does a piece of work; with the last one, all is done."""
        try:
            work()
        except Exception as e:  # whatever it is, the others are done
            self._say(failed=f"{type(e).__name__}: {e}"[:MOST_SAID])
        with self._lock:
            self._left -= 1
            if not self._left:
                self._say(messages=self._messages, compiled=self._compiled)


def _say(descriptor: int, **message: Any) -> None:
    with suppress(BrokenPipeError):  # nobody is there any more: standard input has ended too
        os.write(descriptor, MESSAGE + json.dumps(message).encode() + b"\n")


def main() -> None:
    """Until standard input ends."""
    logging.basicConfig(format="%(message)s")
    said = json.loads(sys.stdin.buffer.readline())
    prepare(said["architecture"][0])
    work = Work(StepsAhead.of(_lazy.load("torch"), said), partial(_say, sys.stdout.fileno()))
    for line in sys.stdin.buffer:
        work.take(json.loads(line))
    work.end()


if __name__ == "__main__":
    main()
