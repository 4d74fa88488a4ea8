"""What stands around every capture of a CUDA graph in this process."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

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
