"""Opening what must be a regular file: a path may name a FIFO or a device, which would block or never end."""

from __future__ import annotations

import os
import stat


class IrregularError(OSError):
    """What has the name of a file is none."""


def descriptor_of(path: str | os.PathLike[str]) -> int:
    """A read-only descriptor of a regular file. Raises IrregularError before anything is read, and OSError, also for a
    path with a NUL.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as e:
        raise OSError(str(e)) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise IrregularError("it is not a regular file")
    return descriptor
