"""Files that are there whole or not at all: written beside their place, then renamed."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ingot.errors import FileError

_STREAMS = ("/dev", "/dev/fd", "/proc/self/fd")  # /dev/stdout may be a file, which the shell has open
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_folder(path: str | os.PathLike[str]) -> None:
    """Raises FileError where the folder of a file takes none: before the work and not after it."""
    try:
        folder = Path(path).resolve().parent
        is_there = folder.is_dir()
    except (OSError, RuntimeError, ValueError) as e:  # a name too long, links in a circle, a NUL
        raise FileError(f"{path} cannot be written: {getattr(e, 'strerror', None) or e}") from None
    if not is_there:
        raise FileError(f"{path} cannot be written: there is no folder {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise FileError(f"{path} cannot be written: no permission to write in {folder}")


@contextlib.contextmanager
def beside(target: Path, needed: int | None = None) -> Iterator[Path]:
    """The path to write to. At the end of the block what was written becomes `target`; an exception removes it.

    A file that is there keeps its permissions, and a link its place: what it leads to is written. A target that is
    there and no regular file, such as /dev/stdout, is written to as it is.

    Args:
        needed: bytes that the file takes, where that is known: a full disk is an error that says so.

    Raises:
        FileError: the OSError of the block or of the renaming.
    """
    place = path = target
    mode = None
    if (target.is_file() or not target.exists()) and os.path.dirname(os.path.abspath(target)) not in _STREAMS:
        place = Path(os.path.realpath(target))
        if place.is_symlink():  # still, when all links were followed
            raise FileError(f"{target} cannot be written: {os.strerror(errno.ELOOP)}")
        mode = stat.S_IMODE(place.stat().st_mode) if place.exists() else None
        name = os.fsencode(place.name)[:200].decode(errors="ignore")  # 255 bytes are the most that file systems take
        path = place.with_name(f".{name}.{os.getpid()}.{secrets.token_hex(4)}.part")
    done = 0
    try:
        try:  # here already: Ctrl-C may strike when the file is there and the call has not returned
            if mode is not None:  # nobody else reads it while it is written
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            yield path
            if mode is not None:
                path.chmod(mode)
            if path != place:
                os.replace(path, place)
        except BaseException:
            if path != place:
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
    """Writes a file: these bytes, or what the function writes to the binary stream it is given. Raises FileError."""
    with beside(target, None if callable(content) else len(content)) as path, path.open("wb") as stream:
        if callable(content):
            content(stream)
        else:
            stream.write(content)
