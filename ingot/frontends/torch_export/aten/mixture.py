"""Products of rows in groups, each with a matrix of its own: what transformers makes of mixtures of experts."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot import functional as fn
from ingot.frontends.torch_export.aten.making import counting
from ingot.frontends.torch_export.aten.promotion import cast
from ingot.frontends.torch_export.aten.table import MaybeDType, MaybeTensor, Result, Tensor, Unsupported, aten
from ingot.ir import F

MAX_GATHERED = 1 << 24  # numbers of the rows' matrices that are gathered at once; beyond, row after row is computed


def _grouped(x: Tensor, weight: Tensor, ends: Tensor) -> Any:
    """x [S, K] by the matrices [E, K, N] of its rows' groups: [S, N]. Group e ends before row ends[e]; rows behind all
    groups become 0.
    """
    if (x.ndim(), weight.ndim(), ends.ndim()) != (2, 3, 1) or ends.shape != weight.shape[:1]:
        raise Unsupported(f"rows {x.spec}, matrices {weight.spec}, and groups that end at {ends.spec}")
    if not isinstance(weight.shape[0], int) or not weight.shape[0] or x.shape[1] != weight.shape[1]:
        raise Unsupported(f"rows {x.spec} and matrices {weight.spec}")
    (rows, inner), (groups, _, outer) = x.shape, weight.shape
    places = counting(x.network, rows)
    own = fn.bucketize(places, cast(ends, dtypes.int64), right=True)
    chosen = F.minimum(own, np.array(groups - 1))
    gathered = dims.mul(rows, inner, outer)

    def one(row: Any, group: Any, weight: Any) -> Any:
        matrix = F.reshape(F.take(weight, F.reshape(group, (1,)), axis=0), (inner, outer))
        return F.reshape(F.matmul(F.reshape(row, (1, inner)), matrix), (outer,))

    if isinstance(gathered, int) and gathered <= MAX_GATHERED:
        found = F.matmul(F.reshape(x, (rows, 1, inner)), F.take(weight, chosen, axis=0))
        found = F.reshape(found, (rows, outer))
    else:
        found = fn.scan(one, [], [x, chosen], [weight])
    inside = F.reshape(F.less(own, np.array(groups)), (rows, 1))
    return F.where(inside, found, np.zeros((), x.dtype.numpy))


@aten("aten._grouped_mm.default")
def grouped_mm(
    self: Tensor, mat2: Tensor, offs: MaybeTensor = None, bias: MaybeTensor = None, out_dtype: MaybeDType = None
) -> Result:
    ranks = (self.ndim(), mat2.ndim())
    if bias is not None:
        raise Unsupported("it has a bias, which torch itself does not support yet")
    if ranks == (3, 3) and offs is None:
        found = F.matmul(self, mat2)
    elif ranks == (2, 3) and offs is not None:
        found = _grouped(self, mat2, offs)
    elif ranks == (3, 2) and offs is not None:  # columns in groups
        found = F.permute(_grouped(F.permute(mat2, (1, 0)), F.permute(self, (0, 2, 1)), offs), (1, 0))
    else:
        raise Unsupported("groups of what is summed over belong to gradients: engines are not trained")
    return found if out_dtype is None else cast(found, out_dtype)


@aten("transformers.grouped_mm_fallback.default")
def grouped_mm_fallback(input: Tensor, weight: Tensor, offs: Tensor) -> Result:
    return _grouped(input, weight, offs)
