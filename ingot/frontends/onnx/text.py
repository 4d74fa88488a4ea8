"""Text as tensors: a tensor of strings is carried as code points in int32 [..., length], zeros behind the last one.

That is how NumPy stores arrays of str too, so neither way copies character by character. No program and no kernel knows
of text: what is done with it are ordinary ops.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ingot import dtypes
from ingot.errors import InputError
from ingot.frontends.table import Unsupported
from ingot.ir import F, Value

Array = np.ndarray[Any, Any]

MAX_TEXT = 1 << 20  # code points of a table of words
LAST_CODE = 0x10FFFF


class Text(NamedTuple):
    """A tensor of strings, and the code points that carry it."""

    value: Value

    @property
    def shape(self) -> Any:
        return self.value.shape[:-1]

    @property
    def length(self) -> Any:
        """The most code points that one has room for."""
        return self.value.shape[-1]


def is_text(array: Any) -> bool:
    """Whether an array holds strings."""
    return isinstance(array, np.ndarray) and array.dtype.kind in "UO"


def codes(array: Any, what: str = "the text") -> Array:
    """The code points of an array of str, int32 [..., length]. Raises InputError for what is no str or has a NUL."""
    given = np.asarray(array)
    if given.dtype.kind == "O":
        words = [w.decode() if isinstance(w, bytes) else w for w in given.reshape(-1).tolist()]
        if not all(isinstance(w, str) for w in words):
            raise InputError(f"{what} has elements that are no str")
        if any("\0" in w for w in words):
            raise InputError(f"{what} has a NUL in it, which ends a text here")
        given = np.array(words, np.str_).reshape(given.shape)
    if given.dtype.kind != "U":
        raise InputError(f"{what} must be an array of str, not of {given.dtype}")
    length = given.dtype.itemsize // 4
    return np.ascontiguousarray(given).reshape(-1).view(np.int32).reshape(*given.shape, length)


def words(found: Array) -> Array:
    """The strings that code points [..., length] stand for, as an array of str objects."""
    length = found.shape[-1]
    if not length or not found.size:
        return np.full(found.shape[:-1], "", object)
    known = np.where((found < 0) | (found > LAST_CODE), 0xFFFD, found).astype(np.int32)
    return np.ascontiguousarray(known).view(f"<U{length}")[..., 0].astype(object)


def table_of(network: Any, several: Any) -> Text:
    """Known strings as a constant."""
    found = codes(np.array(several, object) if not is_text(several) else several)
    if found.size > MAX_TEXT:
        raise Unsupported(f"a table of text has at most {MAX_TEXT:,} characters, and this one {found.size:,}")
    return Text(network.constant(found))


def longer(text: Text, more: Any) -> Value:
    """The code points with room for so many more."""
    rank = len(text.value.shape)
    return F.pad(text.value, before=(0,) * rank, after=(*[0] * (rank - 1), more))  # type: ignore[no-any-return]


def same(a: Text, b: Text) -> Value:
    """Whether two texts, of shapes that broadcast, are the same: bool."""
    equal = F.equal(longer(a, b.length), longer(b, a.length))
    rank = len(equal.shape)
    return F.equal(F.reduce_min(F.cast(equal, dtypes.int32), axes=(rank - 1,), keepdims=False), np.int32(1))  # type: ignore[no-any-return]


def lengths(text: Text) -> Value:
    """How many code points each has: int32 [..., 1]."""
    there = F.cast(F.not_equal(text.value, np.int32(0)), dtypes.int32)
    return F.reduce_sum(there, axes=(len(text.value.shape) - 1,), keepdims=True)  # type: ignore[no-any-return]
