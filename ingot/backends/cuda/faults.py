"""Whether the integers of a step lie where they may: what the ops' torch_fault says, by NumPy, in less time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ingot.errors import ValueFault
from ingot.ir import Op
from ingot.ir.spec import axis_of
from ingot.ops.attention import KvWrite, PagedAttention, check_step
from ingot.ops.indexing import Embedding, Take

Array = np.ndarray[Any, Any]

# Ops whose faults follow from their integers and the shapes of the rest.
BY_INTEGERS = (Embedding, Take, KvWrite, PagedAttention)


def faulty(op: Op, operands: Sequence[Any]) -> bool:
    """Of an op of BY_INTEGERS. operands: arrays of integers, and the shapes of the others."""
    if isinstance(op, Embedding):
        ids, table = operands
        return _outside(ids, -table[0] if op.from_end else 0, table[0])
    if isinstance(op, Take):
        x, index = operands
        count = x[axis_of(op.axis, len(x))]
        return _outside(index, -count if op.from_end else -1, count)
    if isinstance(op, KvWrite):
        return _outside(operands[3], -1, operands[0][0] * operands[0][1])
    q, cache, query_start, context_len, block_table, *_ = operands
    try:
        check_step(q[0], cache, query_start, context_len, block_table)
    except ValueFault:
        return True
    return False


def _outside(index: Array, least: int, end: int) -> bool:
    return bool(index.size) and bool(index.min() < least or index.max() >= end)
