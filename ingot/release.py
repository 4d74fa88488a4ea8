"""Which ingot wrote a file, and what its errors say of that."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from ingot import _native
from ingot.errors import (
    DimError,
    DTypeError,
    EngineFileError,
    EngineVersionError,
    KernelRefused,
    NetworkError,
    OpError,
    RecipeError,
)

_OF_CONTENT = (EngineFileError, NetworkError, OpError, DimError, DTypeError, RecipeError, KernelRefused)


@contextlib.contextmanager
def reading(header: Mapping[str, Any]) -> Iterator[None]:
    """Around whatever reads an engine's header or what is in it: says which ingot reads a file that this one does not.

    What a newer ingot wrote is of another version, not malformed: errors about its content are EngineVersionErrors.
    """
    producer = header.get("producer")
    producer = producer if isinstance(producer, str) else ""
    try:
        yield
    except _OF_CONTENT as e:
        if isinstance(e, EngineVersionError) or _native.is_newer(producer):
            raise EngineVersionError(f"{e}; {_native.who_reads(producer)}") from None
        raise
