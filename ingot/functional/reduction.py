"""Reductions. Floats accumulate in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ingot.errors import OpError
from ingot.functional.tensor import Tensor, axes_of, axis_of
from ingot.ir import F

Dims = int | Sequence[int] | None  # None: all

_REDUCE = ("sum", "mean", "max", "min", "prod")


def reduce(input: Tensor, op: str, dim: Dims, keepdim: bool = False) -> Tensor:
    """sum, mean, max, min or prod over `dim`; with `keepdim` reduced dimensions stay with size 1.

    Raises:
        OpError: another name, a dimension out of range or named twice.
    """
    if op not in _REDUCE:
        raise OpError(f"reduce: there is no reduction {op!r}; known are {', '.join(_REDUCE)}")
    function: Callable[..., Any] = getattr(F, f"reduce_{op}")
    return function(input, axes=axes_of(input, dim), keepdims=keepdim)


def sum(input: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """The sum over `dim`."""
    return reduce(input, "sum", dim, keepdim)


def mean(input: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """The mean over `dim`, floats."""
    return reduce(input, "mean", dim, keepdim)


def max(input: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """The largest element over `dim`; NaN if any is."""
    return reduce(input, "max", dim, keepdim)


def min(input: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """The smallest element over `dim`; NaN if any is."""
    return reduce(input, "min", dim, keepdim)


def prod(input: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """The product over `dim`."""
    return reduce(input, "prod", dim, keepdim)


def argmax(input: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    """The index (int64) of the largest element along `dim`, the first of equals."""
    return F.argmax(input, axis=axis_of(input, dim), keepdims=keepdim)


def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """The `k` largest (or smallest) elements along `dim`, in order, and their indices (int64).

    Of equal elements the first come first; NaN counts as the largest.
    """
    values, indices = F.top_k(input, axis=axis_of(input, dim), k=k, largest=largest)
    return values, indices


def sort(input: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    """The elements along `dim` in order, and where they were (int64). Equal ones keep theirs; NaN is the largest."""
    values, indices = F.sort(input, axis=axis_of(input, dim), descending=descending)
    return values, indices


def argsort(input: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    """The indices (int64) that sort the elements along `dim`."""
    return sort(input, dim, descending)[1]


def cumsum(input: Tensor, dim: int) -> Tensor:
    """The sum of all elements up to each along `dim`."""
    return F.cumsum(input, axis=axis_of(input, dim))
