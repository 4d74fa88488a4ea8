"""ATen's distances between rows, and sums of embeddings in bags."""

from __future__ import annotations

import math

import numpy as np

from ingot import dims, dtypes
from ingot import functional as fn
from ingot.frontends.torch_export.aten.making import counting
from ingot.frontends.torch_export.aten.promotion import cast
from ingot.frontends.torch_export.aten.table import MaybeInt, MaybeTensor, Result, Results, Tensor, Unsupported, aten
from ingot.ir import F

MAX_PAIRS = 1 << 22


def _distance(apart: Tensor, p: float) -> Result:
    """The norm over the last dimension."""
    size, axes = F.abs(apart), (apart.ndim() - 1,)
    if p == 0:
        return F.reduce_sum(cast(F.not_equal(size, 0.0), apart.dtype), axes=axes, keepdims=False)
    if p == 1:
        return F.reduce_sum(size, axes=axes, keepdims=False)
    if p == math.inf:
        return F.reduce_max(size, axes=axes, keepdims=False)
    if p == 2:
        return F.sqrt(F.reduce_sum(F.mul(apart, apart), axes=axes, keepdims=False))
    if not p > 0:
        raise Unsupported(f"a norm of order {p} does not exist")
    return F.pow(F.reduce_sum(F.pow(size, p), axes=axes, keepdims=False), 1 / p)


@aten("aten.cdist.default", "aten._cdist_forward.default")
def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: MaybeInt = None) -> Result:
    """By differences, which are exact where torch's products of long rows cancel."""
    left = F.reshape(x1, (*x1.shape[:-1], 1, x1.shape[-1]))
    right = F.reshape(x2, (*x2.shape[:-2], 1, *x2.shape[-2:]))
    return _distance(F.sub(left, right), p)


@aten("aten.pdist.default", "aten._pdist_forward.default")
def pdist(self: Tensor, p: float = 2.0) -> Result:
    count = self.shape[0]
    if not isinstance(count, int) or count * (count - 1) // 2 > MAX_PAIRS:
        raise Unsupported(f"the number of rows must be known at export, and their pairs at most {MAX_PAIRS:,}")
    ends = [F.take(self, self.network.constant(np.asarray(at, np.int64)), axis=0) for at in np.triu_indices(count, 1)]
    return _distance(F.sub(*ends), p)


@aten("aten.embedding_bag.padding_idx", "aten.embedding_bag.default", "aten._embedding_bag.default",
      "aten._embedding_bag_forward_only.default")  # fmt: skip
def embedding_bag(
    weight: Tensor, indices: Tensor, offsets: Tensor, mode: int = 0, per_sample_weights: MaybeTensor = None,
    include_last_offset: bool = False, padding_idx: MaybeInt = None,
) -> Results:  # fmt: skip
    """The rows of each bag as a sum, mean or maximum; zeros of an empty one."""
    if padding_idx is not None and padding_idx >= 0:
        raise Unsupported("padding_idx is not supported; leave these indices out")
    if mode not in (0, 1, 2) or indices.ndim() != 1:
        raise Unsupported("the indices must be one row, and the mode a sum, a mean or a maximum")
    count, bags = indices.shape[0], offsets.shape[0]
    rows = F.take(weight, cast(indices, dtypes.int64), axis=0)
    if per_sample_weights is not None:
        rows = F.mul(rows, F.reshape(cast(per_sample_weights, weight.dtype), (count, 1)))
    at = counting(weight.network, count)
    own = F.sub(fn.searchsorted(cast(offsets, dtypes.int64), at, right=True), 1)
    zeros = F.expand(weight.network.constant(np.zeros((), weight.dtype.numpy)), (bags, weight.shape[1]))
    where = F.expand(F.reshape(own, (count, 1)), rows.shape)
    found = fn.scatter_reduce(zeros, 0, where, rows, ("sum", "mean", "amax")[mode], include_self=False)
    if include_last_offset:  # of what stands behind the last bag
        found = F.slice(found, (0, 0), (dims.add(bags, -1), weight.shape[1]), (1, 1))
    return found, None, None, None
