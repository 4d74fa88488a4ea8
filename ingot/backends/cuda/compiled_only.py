"""Whether a thread does without the compiler: a launch that needs it is left, and all that its step lacks is compiled.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


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
