"""Reductions along a last dimension of a few elements become elementwise ops on its slices."""

from __future__ import annotations

from functools import reduce
from typing import Any

from ingot import dtypes
from ingot.ir import F, Network, Node, Value
from ingot.ir.spec import axes_of
from ingot.ops.movement import Permute
from ingot.ops.reduce import Reduce, ReduceMax, ReduceMean, ReduceMin, ReduceProd, ReduceSum
from ingot.passes.rewrite import Log, detach, note

# The kernel of a reduction takes a vector for each run of neighbours, and 45 ns. Slices are read 16 results at a time.
LONGEST = 8
STEPS: dict[type[Any], Any] = {
    ReduceSum: F.add, ReduceMean: F.add, ReduceProd: F.mul, ReduceMax: F.maximum, ReduceMin: F.minimum,
}  # fmt: skip


def short_reductions(network: Network, log: Log) -> None:
    """Sums, means, products and extremes of 2 to 8 floats that lie side by side; floats of 16 bits are rounded once."""
    dead: list[Node] = []
    for node in list(network.nodes):
        count = _count(node)
        if not 2 <= count <= LONGEST:
            continue
        (x,) = node.inputs
        with network.insert_before(node):
            narrow = x.dtype.bits < 32
            wide = F.cast(x, dtypes.float32) if narrow else x
            found = reduce(STEPS[type(node.op)], [_part(wide, i, node.output) for i in range(count)])
            if isinstance(node.op, ReduceMean):
                found = F.div(found, float(count))
            if narrow:
                found = F.cast(found, x.dtype)
        note(log, "short reductions", node, f"{count} elements side by side")
        network.replace(node.output, found)
        dead.extend(detach(network, node))
    network.remove(dead)


def _count(node: Node) -> int:
    """How many neighbours a node reduces to one; 0 for what is left as it is."""
    if not isinstance(node.op, Reduce) or type(node.op) not in STEPS:
        return 0
    (x,) = node.inputs
    moved = x.node is not None and isinstance(x.node.op, Permute)  # its last dimension does not lie side by side
    if moved or x.dtype not in dtypes.FLOATS or axes_of(node.op.axes, len(x.shape)) != (len(x.shape) - 1,):
        return 0
    return x.shape[-1] if isinstance(x.shape[-1], int) else 0


def _part(x: Value, at: int, like: Value) -> Any:
    """The elements at one place of the last dimension, in the shape of the result."""
    leading = len(x.shape) - 1
    one = F.slice(x, (*[0] * leading, at), (*x.shape[:-1], 1), (1,) * (leading + 1))
    return F.reshape(one, like.shape)
