"""Ctrl-C on the command line, also where a library makes an error of its own out of it."""

from __future__ import annotations

import signal
import time
from types import FrameType

SECONDS = 10.0  # between a Ctrl-C and an error that came of it: far longer than any import
_last = -SECONDS


def watch() -> None:
    """Remembers when Ctrl-C came, from now on; unless it is ignored, as under nohup."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _raise)


def _raise(number: int, frame: FrameType | None) -> None:
    global _last
    _last = time.monotonic()
    signal.default_int_handler(number, frame)


def became(error: BaseException) -> bool:
    """Whether this is a Ctrl-C, or what became of one.

    An extension in C that imports a module while it is imported itself, as NumPy's does datetime, drops the
    KeyboardInterrupt and raises an ImportError without a cause.
    """
    return isinstance(error, KeyboardInterrupt) or (
        isinstance(error, ImportError) and time.monotonic() - _last < SECONDS
    )
