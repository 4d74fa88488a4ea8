"""What the bools of a network's inputs do to scores: whether True shows or hides."""

from __future__ import annotations

from ingot.ir import Network, Node, Value
from ingot.ops.binary import LogicalAnd, LogicalOr
from ingot.ops.conversion import Cast
from ingot.ops.dense_attention import ScaledDotProductAttention
from ingot.ops.elementwise import LogicalNot, Where
from ingot.passes.dense_attention import SMALL
from ingot.passes.rewrite import viewed


def shows(network: Network, mask: Value) -> bool | None:
    """True where it shows what it stands beside, False where it hides that; None when the network does not say."""
    todo, seen = [(mask, True)], {mask}
    while todo:
        value, kept = todo.pop()
        for node in network.users(value):
            found = _says(node, value)
            if found is not None:
                return found is kept
            if node.op.is_view or isinstance(node.op, Cast | LogicalNot | LogicalAnd | LogicalOr):
                same = kept is not isinstance(node.op, LogicalNot)
                todo += [(v, same) for v in node.outputs if v not in seen]
                seen.update(node.outputs)
    return None


def _says(node: Node, value: Value) -> bool | None:
    """Whether True shows where this node takes the value for a mask; None where it does not."""
    if isinstance(node.op, ScaledDotProductAttention):
        return True if any(v is value for v in node.inputs[3:]) else None
    if isinstance(node.op, Where) and value is node.inputs[0]:
        low = [_is_low(x) for x in node.inputs[1:]]
        return low[1] if low[0] is not low[1] else None
    return None


def _is_low(value: Value) -> bool:
    """A constant that weighs nothing beside other scores."""
    value = viewed(value)
    return value.kind == "constant" and value.array.size > 0 and bool((value.array <= SMALL).all())
