"""Axes that an operand names when the network runs: reductions over them, and results along one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ingot import dtypes
from ingot.frontends.onnx.ops.common import cast, from_end, size_tensor
from ingot.frontends.onnx.table import Call, Unknown, whole_numbers
from ingot.frontends.table import Unsupported
from ingot.ir import F, Value
from ingot.ir.checked import to_reshape
from ingot.ir.sizes import MAX_BOUND, as_shape


class ChosenAxes:
    """The axes of x that `operand` [k] names when the network runs.

    Every axis is reduced in turn, and the result taken or left: as much work as a reduction for each dimension of x.

    Raises:
        Unknown: how many axes there are has to be known, x must have no dimension of size 0 and at most 8 of them.
        Unsupported: more axes than dimensions, or axes that are no integers.
    """

    def __init__(self, call: Call, operand: Value, x: Value) -> None:
        self.call, self.operand, self.rank = call, operand, len(x.shape)
        if len(operand.shape) != 1 or not isinstance(operand.shape[0], int) or self.rank > MAX_BOUND or 0 in x.shape:
            raise Unknown(operand, "axes")
        self.count = operand.shape[0]
        if not operand.dtype.is_integer or self.count > self.rank:
            raise Unsupported(f"axes must be at most {self.rank} integers, not {operand.spec}")
        places = call.network.constant(np.arange(self.rank).reshape(1, self.rank))
        axes = from_end(F.reshape(cast(operand, dtypes.int64), (self.count, 1)), self.rank)
        self.named = F.reduce_sum(cast(F.equal(axes, places), dtypes.int64), axes=(0,), keepdims=False)  # [rank]
        once = F.equal(F.reduce_sum(F.minimum(self.named, 1), axes=(0,), keepdims=False), self.count)
        F.assertion(once, message=f"{call.op}: axes must be different dimensions of an operand that has {self.rank}")

    def reduce(self, op: Callable[..., Any], x: Any, keepdims: bool) -> Any:
        """op over these axes; `op(x, axes=…, keepdims=…)` over several is op over one after the other."""
        found = x
        for i in range(self.rank):
            chosen = F.equal(F.reshape(F.slice(self.named, (i,), (1,), (1,)), ()), 1)
            found = F.where(chosen, F.expand(op(found, axes=(i,), keepdims=True), found.shape), found)
        own = size_tensor(self.call, x.shape)
        sizes = F.where(F.equal(self.named, 1), self.call.network.constant(np.int64(1)), own)
        kept = F.slice(found, (0,) * self.rank, as_shape(sizes), (1,) * self.rank)
        if keepdims:
            return kept
        if self.count == self.rank:
            return F.reshape(*to_reshape(kept, ()))
        places = self.call.network.constant(np.arange(self.rank))
        _, order = F.sort(F.add(F.mul(self.named, self.rank), places), axis=0, descending=False)
        left = F.slice(order, (0,), (self.rank - self.count,), (1,))
        return F.reshape(*to_reshape(kept, as_shape(F.take(own, left, axis=0))))


def along_chosen(call: Call, x: Value, axis: Value, compute: Callable[[int], Any]) -> Any:
    """What compute(axis) makes, of x's shape, along an axis that may be data: then along each, and one taken."""
    if call.contents(axis) is not None:
        found = whole_numbers(call, axis, "axis")
        if len(found) != 1:
            raise Unsupported(f"axis must be one number, not {len(found)}")
        return compute(found[0])
    rank = len(x.shape)
    if axis.spec.elements != 1 or not axis.dtype.is_integer or not 1 <= rank <= MAX_BOUND:
        raise Unknown(axis, "axis")
    at = from_end(F.reshape(cast(axis, dtypes.int64), ()), rank)
    F.assertion(F.equal(F.minimum(F.maximum(at, 0), rank - 1), at),
                message=f"{call.op}: axis must be a dimension of an operand that has {rank}")  # fmt: skip
    result = compute(0)
    for i in range(1, rank):
        result = F.where(F.equal(at, i), compute(i), result)
    return result
