"""What runs beside steps, in a thread of its own: whom it lets pass, and what steps do not wait for."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SWITCH = 2e-4  # seconds that a thread in the background keeps the interpreter, while another one wants it

log = logging.getLogger("ingot.cuda")

_captures = threading.RLock()  # a signal handler may run a session too


@contextmanager
def capturing() -> Iterator[None]:
    """Around a capture on a GPU. One at a time: torch's generator of random numbers belongs to one, and CUDA ends
    captures in all threads where one waits for the device, with an error for that one too. And without Python's
    collector: a graph that nobody has any more would be destroyed in between, which ends the capture as well.
    """
    with _captures:
        collects = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collects:
                gc.enable()


_working: set[Background] = set()  # whose threads are there
os.register_at_fork(after_in_child=_working.clear)


@atexit.register
def _end() -> None:
    """Before the interpreter does: a thread that comes back to it then, out of a compiler's C++, would end the process
    with std::terminate."""
    left = list(_working)
    for background in left:
        background._closed = True
    for background in left:
        background.close()


class Background:
    """A thread that does what it is asked, one after the other. It is there while there is something to do."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._changed = threading.Condition()
        self._asked: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        self._closed = False

    def ask(self, work: Callable[[], None]) -> None:
        """For work behind all that was asked for before; what it raises is logged. Nothing comes of it after `close`.
        """
        with self._changed:
            if self._closed:
                return
            self._asked.append(work)
            if self._thread is None or not self._thread.is_alive():  # a forked child has no thread
                thread = threading.Thread(target=self._run, name=self.name, daemon=True)
                try:
                    thread.start()
                except RuntimeError as e:  # the system has none left
                    self._asked.clear()
                    log.warning("%s: nothing is done beside steps, for %s", self.name, e)
                    return
                self._thread = thread
                _working.add(self)

    def wait(self) -> None:
        """Until all that was asked for is done."""
        with self._changed:
            self._changed.wait_for(lambda: self._thread is None)

    @property
    def closed(self) -> bool:
        """Whether `close` was called: what has begun may leave out the rest of what it does."""
        return self._closed

    def close(self) -> None:
        """Until what has begun is done; the rest is not. Harmless when done twice, and in the thread itself."""
        with self._changed:
            self._closed = True
            self._asked.clear()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._asked:
                    self._thread = None
                    _working.discard(self)
                    self._changed.notify_all()
                    return
                work = self._asked.popleft()
            try:
                work()
            except Exception:
                log.exception("%s: what was to be done beside steps has failed", self.name)
            del work  # it may hold whoever asked


class NotCompiled(Exception):
    """A kernel would have to be compiled, in a thread that does not wait for one."""


_here = threading.local()


@contextmanager
def compiled_only() -> Iterator[None]:
    """What this thread launches inside is compiled, or NotCompiled is raised."""
    _here.compiled_only = True
    try:
        yield
    finally:
        _here.compiled_only = False


def is_compiled_only() -> bool:
    """Whether this thread is inside of `compiled_only`."""
    return bool(getattr(_here, "compiled_only", False))


class _Ways:
    """How many threads give way, and what Python's interval was before the first of them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.threads = 0
        self.before = 0.0


_ways = _Ways()


@contextmanager
def gives_way() -> Iterator[None]:
    """While Python works beside steps: a step lets go of the interpreter at every launch, and would wait for it as
    long as Python lets the other thread run on, 5 ms, some hundreds of times. The interval is one of the process: it is
    what it was when the last of several threads is done."""
    with _ways.lock:
        if not _ways.threads:
            _ways.before = sys.getswitchinterval()
            sys.setswitchinterval(min(_ways.before, SWITCH))
        _ways.threads += 1
    try:
        yield
    finally:
        with _ways.lock:
            _ways.threads -= 1
            if not _ways.threads:
                sys.setswitchinterval(_ways.before)
