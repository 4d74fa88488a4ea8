"""Python's search for cycles of objects that nobody reads, made seldom while a build makes objects that stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

SELDOM = (100_000, 50, 50)  # more objects than before, before Python looks; of a build: once or twice
_lock = Lock()


@contextmanager
def seldom_collected() -> Iterator[None]:
    """A search for every SELDOM new objects inside, unless somebody else has made it as seldom.

    A network is hundreds of thousands of objects, and so is a traced module. Python looks again and again through
    them and through all others of the process, torch's and the caller's, to find that they are in use: 0.3 to 0.8 s of
    a build. It is not put off altogether, for a build that makes one engine after the other (`tune`, a budget) drops
    networks, which are cycles.
    """
    with _lock:
        before = gc.get_threshold()
        ours = 0 < before[0] < SELDOM[0]
        if ours:
            gc.set_threshold(*SELDOM)
    try:
        yield
    finally:
        if ours:
            gc.set_threshold(*before)
