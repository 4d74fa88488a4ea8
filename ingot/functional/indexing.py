"""Elements put to or taken from places that indices or masks name, beside the functions that are derived."""

from __future__ import annotations

from ingot.functional.tensor import Tensor, axis_of
from ingot.ir import F


def gather_nd(input: Tensor, indices: Tensor, batch_dims: int = 1) -> Tensor:
    """What stands at the coordinates indices[…, :], behind the first `batch_dims` dimensions (ONNX GatherND).

    Args:
        indices: int32 or int64 [batch…, …, k]: k coordinates each, those below 0 counted from the end.

    Raises:
        OpError: batch dimensions that differ, more coordinates than there are dimensions.
    """
    return F.gather_nd(input, indices, batch_dims=batch_dims)


def scatter(input: Tensor, dim: int, indices: Tensor, updates: Tensor) -> Tensor:
    """The input, where updates[i, j, …] stands at the place that indices[i, j, …] says along `dim` (ONNX
    ScatterElements). Of two updates for one place the later one stays.
    """
    return F.scatter(input, indices, updates, axis=axis_of(input, dim))
