"""What follows the last attention takes rows one by one, and a step reads few of them: those that logits are made of.

The last layer's products of a prompt are as large as any other's, for one row that somebody wants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ingot.backends.cuda.program import Call, Experts, Product, Single
from ingot.ir import Network, Value
from ingot.ops.binary import Add, Mul
from ingot.ops.elementwise import Gelu, Relu, Silu
from ingot.ops.indexing import Take
from ingot.ops.norm import LayerNorm, RmsNorm

ROW_BY_ROW = (RmsNorm, LayerNorm, Add, Mul, Silu, Gelu, Relu)  # that stand by themselves in some families


@dataclass(frozen=True)
class LastRows:
    """Calls whose results are read by nobody but `picks`, which take rows of them by number.

    first: the number of the first of them. given: what they read of the calls before, a row a token each. picks: the
    numbers of those that take rows: of the logits, and of hidden states.
    """

    first: int
    given: tuple[Value, ...]
    picks: frozenset[int]


def last_rows(network: Network, calls: Sequence[Call]) -> LastRows | None:
    """None where nothing stands between the last attention and the rows of the logits that takes rows one by one."""
    picks = frozenset(n for n, call in enumerate(calls) if _picks(call))
    picked = {calls[n].nodes[0].inputs[0] for n in picks}
    if len(picked) != 1 or not any(calls[n].nodes[0].inputs[1].name == "logit_rows" for n in picks):
        return None
    (states,) = picked
    if len(states.shape) != 2:
        return None
    readers: dict[Value, set[int]] = {}
    for number, call in enumerate(calls):
        for value in (v for node in call.nodes for v in node.given):
            readers.setdefault(value, set()).add(number)
    inside: set[int] = set()
    for number in reversed(range(len(calls))):
        made = [v for node in calls[number].nodes for v in node.outputs]
        read = set().union(*(readers.get(v, set()) for v in made)) - {number}
        alone = read and read <= inside | picks and not any(network.is_output(v) for v in made)
        rows = _rows(calls[number])
        if alone and rows and all(len(v.shape) == 2 and v.shape[0] == states.shape[0] for v in rows):
            inside.add(number)
    made_inside = {v for n in inside for node in calls[n].nodes for v in node.outputs}
    if states not in made_inside:
        return None
    first = min(inside)
    given = dict.fromkeys(v for n in sorted(inside) for v in _rows(calls[n]) if v not in made_inside)
    later = any(n > first and n not in inside for v in given for n in readers[v])
    return None if later else LastRows(first, tuple(given), picks)


def _picks(call: Call) -> bool:
    """Whether it takes rows, by numbers that a step is given."""
    if not isinstance(call, Single) or not isinstance(call.nodes[0].op, Take):
        return False
    (node,) = call.nodes
    op, index = node.op, node.inputs[1]
    chosen = index.kind == "input" and index.name in ("logit_rows", "hidden_rows")
    return chosen and isinstance(op, Take) and op.axis == 0 and not op.from_end


def _rows(call: Call) -> tuple[Value, ...]:
    """What a call reads a row a token of; nothing for one that does not take rows one by one."""
    if isinstance(call, Product):
        return (call.x,) if call.extra is None or len(call.extra.shape) == 1 else (call.x, call.extra)
    if isinstance(call, Experts):
        return (call.x,)
    if isinstance(call, Single) and isinstance(call.nodes[0].op, ROW_BY_ROW):
        given = call.nodes[0].given
        return tuple(v for v in given if v.kind not in ("parameter", "constant") or len(v.shape) > 1)
    return ()
