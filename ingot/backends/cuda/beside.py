"""Kernels that are compiled beside steps: a process of its own does it, at the lowest priority (beside_process.py).

A step lets go of Python's interpreter at every launch, some hundreds of times, and would wait for a compiler in the
same interpreter each time. So nothing of it runs in this process but two threads that wait for a pipe each. The other
process is there while there is something to compile. When its standard input ends, also where this process was killed,
it does what it has begun, and ends; nobody waits for that.

What it makes lies in Triton's cache on disk, where a launch looks. A step does not wait for a kernel that has only been
begun there, but compiles it itself, maybe once more: of the lowest priority, the other may take any time on a machine
that is busy. Whoever is first writes the file, and the other writes the same one in its place.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any

from ingot.backends.cuda.choice import Kind
from ingot.backends.cuda.steps import Size

MODULE = "ingot.backends.cuda.beside_process"
MESSAGE = b"\x1e"  # begins what the process says, beside what it prints: a line of JSON (RFC 7464)
LINES = 20  # of what it printed last, for the case that it fails
NICE = 19  # the lowest priority: steps need the processors first
# Before the module, whose imports take a while. It sees the modules that this process sees. Not by PYTHONPATH, where
# Python would look before that for code to run (sitecustomize), and which may be to be left alone.
BEGIN = f"""import os, sys
os.nice({NICE})
import json, runpy
sys.path[:] = json.loads(sys.stdin.buffer.readline())
runpy.run_module(sys.argv[1], run_name="__main__", alter_sys=True)"""
# Options that keep Python from what it would look for at its start, and what sys.flags calls them.
OPTIONS = {"-E": "ignore_environment", "-s": "no_user_site", "-S": "no_site"}

log = logging.getLogger("ingot.cuda")


class Beside:
    """What one session has compiled beside its steps.

    first: what a process is told first. cache: the folder of Triton's cache. Both are asked for when one is started.
    compiled: how many kernels came of it, counted when all that was asked for is done.
    """

    def __init__(self, first: Callable[[], Mapping[str, Any]], cache: Callable[[], str]) -> None:
        self.compiled = 0
        self._first = first
        self._cache = cache
        self._changed = threading.Condition()
        self._asked: set[tuple[Size, tuple[Kind, ...]]] = set()
        self._process: _Process | None = None  # that can be asked
        self._there: set[_Process] = set()  # with those that are to end
        self._sent = 0  # messages to it
        self._closed = False
        self._failed = False
        _all.add(self)

    def ask(self, sizes: Sequence[Size], kinds: Sequence[Kind], own: Sequence[str]) -> None:
        """For the kernels of padded steps, the first ones first, behind all that was asked for before. own: keys of
        kernels that this process compiles itself. Nothing comes of it where no process can be started, which is said
        once."""
        with self._changed:
            new = [size for size in sizes if (size, tuple(kinds)) not in self._asked]
            if self._closed or (self._process is None and not new):
                return
            try:
                process = self._process or self._started()
            except (OSError, RuntimeError) as e:  # no interpreter; or no memory, process or thread is left
                self._closed = True
                log.warning("no process can be started that compiles kernels beside steps, so steps compile what they "
                            "lack: %s", e)  # fmt: skip
                return
            self._asked.update((size, tuple(kinds)) for size in new)
            self._sent += 1
            steps = [[s.tokens, s.requests, s.logits, s.columns, s.each] for s in new]
            process.send({"steps": steps, "kinds": [kind.name for kind in kinds], "own": list(own)})

    def wait(self) -> None:
        """Until all that was asked for is done, and no process is there."""
        with self._changed:
            self._changed.wait_for(lambda: not self._there)

    def close(self) -> None:
        """What has not begun is not done. Harmless when done twice."""
        with self._changed:
            self._closed = True
            self._end()

    def forget(self) -> None:
        """In a fork of this process, which has no threads: it holds nothing of the pipes."""
        there, self._there, self._process, self._closed = self._there, set(), None, True
        self._changed = threading.Condition()
        for process in there:
            process.cut()

    def _started(self) -> _Process:
        process = _Process(self._cache(), self._hear, self._ended)
        process.send(self._first())
        self._process, self._sent = process, 0
        self._there.add(process)
        return process

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None

    def _hear(self, process: _Process, said: Mapping[str, Any]) -> None:
        """What a process says: what has failed; or how many kernels it made, when all is done that it was told in so
        many messages."""
        if "failed" in said:
            tell, self._failed = log.info if self._failed else log.warning, True
            tell("a kernel was not compiled beside steps: %s", said["failed"])
            return
        with self._changed:
            if process is self._process and said["messages"] == self._sent:
                self.compiled += said["compiled"]
                self._end()

    def _ended(self, process: _Process, status: int, printed: str) -> None:
        with self._changed:
            self._there.discard(process)
            if process is self._process:
                self._process, self._closed = None, True
                log.warning("the process that compiles kernels beside steps has ended (status %d), so steps compile "
                            "what they lack: %s", status, printed)  # fmt: skip
            self._changed.notify_all()


_all: weakref.WeakSet[Beside] = weakref.WeakSet()


def _forget() -> None:
    for one in list(_all):
        one.forget()


os.register_at_fork(after_in_child=_forget)


class _Process:
    """One process. `hear` is called with what it says, and `ended`, when it is gone, with its status and the end of
    what it printed.

    Raises OSError, RuntimeError where it or a thread cannot be started.
    """

    def __init__(
        self, cache: str, hear: Callable[[_Process, Mapping[str, Any]], None],
        ended: Callable[[_Process, int, str], None],
    ) -> None:  # fmt: skip
        self._hear = hear
        self._ended = ended
        self._messages: SimpleQueue[bytes | None] = SimpleQueue()
        # It needs no GPU, nor memory of one.
        environment = {**os.environ, "TRITON_CACHE_DIR": cache, "CUDA_VISIBLE_DEVICES": ""}
        options = [option for option, flag in OPTIONS.items() if getattr(sys.flags, flag)]
        self._process: Any = subprocess.Popen(
            # What its imports warn of, those of this process have warned of.
            [_interpreter(), *options, "-P", "-W", "ignore", "-c", BEGIN, MODULE], env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            # Ctrl-C at the terminal is not for it. No session of its own: where Linux gives every session the same
            # share of the machine (autogroup), a priority counts among its processes alone.
            process_group=0,
        )  # fmt: skip
        self._input: Any = self._process.stdin
        self._output: Any = self._process.stdout
        try:
            for what, work in (("asked", self._write), ("made", self._read)):
                threading.Thread(target=work, name=f"ingot-kernels-{what}", daemon=True).start()
        except RuntimeError:
            self._process.kill()
            self._process.wait()
            self.end()
            self.cut()
            raise
        # None of the folder that it is started in. What is no text Python leaves out too.
        self.send([path for path in sys.path if path and isinstance(path, str)])

    def send(self, message: Any) -> None:
        """Does not wait until it is read."""
        self._messages.put(json.dumps(message).encode() + b"\n")

    def end(self) -> None:
        """Has it end soon."""
        self._messages.put(None)

    def cut(self) -> None:
        """Closes the pipes, also in a fork, where threads that are not there may hold the locks of these files, though
        not of what the files hold."""
        for pipe in (self._input, self._output):
            pipe.raw.close()

    def _write(self) -> None:
        try:
            for message in iter(self._messages.get, None):
                left = memoryview(message)
                while left:
                    left = left[os.write(self._input.fileno(), left) :]
        except BrokenPipeError:
            pass  # it has ended, as the other thread will say
        self._input.close()

    def _read(self) -> None:
        printed: deque[str] = deque(maxlen=LINES)
        for line in self._output:
            text, is_message, message = line.partition(MESSAGE)
            said = None
            if is_message:
                try:
                    said = json.loads(message)
                except ValueError:  # a compiler has printed into it, or something like it
                    text = line
            if text := text.decode(errors="replace").strip():
                log.debug("the process that compiles kernels beside steps: %s", text)
                printed.append(text)
            if said is not None:
                self._hear(self, said)
        self._output.close()
        self._ended(self, self._process.wait(), "\n".join(printed))
        self.end()  # for the other thread


def _interpreter() -> str:
    """Raises OSError where this program is another one, which would be started once more; RuntimeError at the end of
    this interpreter, where whoever starts a thread waits for it in vain."""
    if sys.is_finalizing():
        raise RuntimeError("the interpreter is at its end")
    path = sys.executable or ""
    if getattr(sys, "frozen", False) or "py" not in os.path.basename(path).lower():
        raise OSError(f"sys.executable is {path!r}, which is no Python interpreter")
    return path
