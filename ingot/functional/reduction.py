"""Reductions beside those that are derived, and orders along a dimension. Floats accumulate in float32."""

from __future__ import annotations

from collections.abc import Sequence

from ingot.errors import OpError
from ingot.functional import derived
from ingot.functional.shape import Size
from ingot.functional.tensor import Tensor, axis_of
from ingot.ir import F
from ingot.ir.sizes import as_size
from ingot.ops.reduce import Reduce

Dims = int | Sequence[int] | None  # None: all


def reduce(input: Tensor, op: str, dim: Dims, keepdim: bool = False) -> Tensor:
    """sum, mean, max, min or prod over `dim`; with `keepdim` reduced dimensions stay with size 1.

    Raises:
        OpError: another name, a dimension out of range or named twice.
    """
    known = [name for name, cls in derived.names().items() if issubclass(cls, Reduce)]
    if op not in known:
        raise OpError(f"reduce: there is no reduction {op!r}; known are {', '.join(known)}")
    return derived.find(op)(input, dim, keepdim)


def argmax(input: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    """The index (int64) of the largest element along `dim`, the first of equals."""
    return F.argmax(input, axis=axis_of(input, dim), keepdims=keepdim)


def topk(
    input: Tensor, k: Size, dim: int = -1, largest: bool = True, prefer_plugin: bool = True
) -> tuple[Tensor, Tensor]:
    """The `k` largest (or smallest) elements along `dim`, in order, and their indices (int64).

    Of equal elements the first come first; NaN counts as the largest. `prefer_plugin` changes nothing: there is one
    kernel. A `k` that only a run knows is a tensor of one integer, or a size; all elements are sorted then.
    """
    axis, count = axis_of(input, dim), as_size(k)
    if isinstance(count, int):
        values, indices = F.top_k(input, axis=axis, k=count, largest=largest)
        return values, indices
    both = F.sort(input, axis=axis, descending=largest)
    rank = len(input.shape)
    sizes = tuple(count if d == axis else size for d, size in enumerate(input.shape))
    values, indices = (F.slice(x, starts=(0,) * rank, sizes=sizes, strides=(1,) * rank) for x in both)
    return values, indices


def sort(input: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    """The elements along `dim` in order, and where they were (int64). Equal ones keep theirs; NaN is the largest."""
    values, indices = F.sort(input, axis=axis_of(input, dim), descending=descending)
    return values, indices


def argsort(input: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    """The indices (int64) that sort the elements along `dim`."""
    return sort(input, dim, descending)[1]


def cumsum(input: Tensor, dim: int, prefer_plugin: bool = True) -> Tensor:
    """The sum of all elements up to each along `dim`. `prefer_plugin` changes nothing: there is one kernel."""
    return F.cumsum(input, axis=axis_of(input, dim))


def cumprod(input: Tensor, dim: int) -> Tensor:
    """The product of all elements up to each along `dim`."""
    return F.cumprod(input, axis=axis_of(input, dim))


def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """The logarithm of the sum of exp of all elements up to each along `dim`."""
    return F.logcumsumexp(input, axis=axis_of(input, dim))


def cummax(input: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The greatest element up to each along `dim`, and its index (int64), of equal ones the last. NaN stays."""
    values, indices = F.cummax(input, axis=axis_of(input, dim))
    return values, indices


def cummin(input: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The smallest element up to each along `dim`, and its index (int64), of equal ones the last. NaN stays."""
    values, indices = F.cummin(input, axis=axis_of(input, dim))
    return values, indices
