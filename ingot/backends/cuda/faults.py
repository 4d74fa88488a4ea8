"""Whether the integers of a step lie where they may: what the ops' torch_fault says, by NumPy, in less time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ingot.errors import ValueFault
from ingot.ir import Network, Node, Op
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


def checks_of(network: Network) -> tuple[list[Node], set[Node], bool]:
    """Nodes whose faults follow from integers that are inputs, one of several that ask the same of the same; the others
    of these; and whether there are no other faults."""
    found: dict[Any, Node] = {}
    repeated: set[Node] = set()
    foreseen = True
    for node in network.nodes:
        if node.op.torch_fault is None:
            continue
        if not isinstance(node.op, BY_INTEGERS):
            foreseen = False
            continue
        integers = [v for v in node.inputs if v.spec is not None and v.kind not in ("parameter", "constant")
                    and not v.is_state and v.dtype.is_integer]  # fmt: skip
        if all(v.kind == "input" for v in integers):
            asked = [id(v) if v.kind == "input" else str(v.spec) for v in node.inputs]
            if found.setdefault((node.op, *asked), node) is not node:
                repeated.add(node)
        else:
            foreseen = False
    return list(found.values()), repeated, foreseen
