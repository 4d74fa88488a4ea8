"""What the functions here take, and how they read axes and sizes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import ingot.ops  # noqa: F401  registers the ops that F finds by name
from ingot import dtypes
from ingot.dims import Dimension
from ingot.errors import OpError
from ingot.ir import F, spec

Tensor = Any  # a symbolic tensor while a network is being recorded, a NumPy array when computing at once


def axis_of(input: Tensor, dim: int, what: str = "dim") -> int:
    """The dimension counted from the front.

    Raises:
        OpError: out of range.
    """
    return spec.axis_of(dim, len(input.shape), what)


def axes_of(input: Tensor, dim: int | Sequence[int] | None) -> tuple[int, ...]:
    """Dimensions counted from the front, sorted; None is all of them."""
    return spec.axes_of(dim if dim is None or isinstance(dim, Iterable) else (dim,), len(input.shape))


def known_size(input: Tensor, dim: int, function: str) -> int:
    """The size of a dimension that a function can only take when it is a number.

    Raises:
        OpError: the size is known only at run time.
    """
    size: Dimension = input.shape[dim]
    if not isinstance(size, int):
        raise OpError(f"{function}: dimension {dim} of {list(input.shape)} must be known when the network is recorded")
    return size


def size_tensor(size: Dimension) -> Tensor:
    """A size as an int64 tensor without dimensions."""
    return F.reshape(F.iota(size=1, start=size, dtype=dtypes.int64), ())
