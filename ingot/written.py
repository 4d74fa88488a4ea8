"""Files that are there whole or not at all: written beside their place, then renamed."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ingot.errors import FileError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def beside(target: Path, needed: int | None = None) -> Iterator[Path]:
    """The path to write to. At the end of the block what was written becomes `target`; an exception removes it.

    A target that is there and no regular file, such as /dev/stdout, is written to as it is.

    Args:
        needed: bytes that the file takes, where that is known: a full disk is an error that says so.

    Raises:
        FileError: the OSError of the block or of the renaming.
    """
    path = target
    if target.is_file() or not target.exists():
        path = target.with_name(f".{target.name[:200]}.{os.getpid()}.{secrets.token_hex(4)}.part")
    done = 0
    try:
        try:  # here already: Ctrl-C may strike when the file is there and the call has not returned
            yield path
            if path != target:
                os.replace(path, target)
        except BaseException:
            if path != target:
                with contextlib.suppress(OSError):
                    done = path.stat().st_size
                    path.unlink()
            raise
    except OSError as e:
        why = e.strerror or str(e)
        if e.errno in _FULL:
            why += f"; it ended after {done:,} bytes" if needed is None else f"; {needed:,} bytes are needed"
        raise FileError(f"{target} cannot be written: {why}") from None


def write_whole(target: Path, content: bytes | Callable[[Any], object]) -> None:
    """Writes a file: these bytes, or what the function writes to the binary stream that it is given. Raises FileError.
    """
    with beside(target, None if callable(content) else len(content)) as path, path.open("wb") as stream:
        if callable(content):
            content(stream)
        else:
            stream.write(content)
