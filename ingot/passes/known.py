"""Comparisons of integers that every run decides alike: of positions with 0, or with the number of positions.

An integer tensor is a line when its element at [i, j, …] is a number plus a step along each dimension: what counts up,
views of that, and their sums.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ingot import dims, dtypes
from ingot.dims import Dimension
from ingot.ir import F, Network, Node, Value
from ingot.ops.binary import Add, Equal, Greater, GreaterEqual, Less, LessEqual, NotEqual, Sub
from ingot.ops.conversion import Cast
from ingot.ops.elementwise import Neg
from ingot.ops.indexing import Iota
from ingot.ops.movement import Expand, Permute, Reshape, Slice
from ingot.passes.rewrite import Log, detach, note

INDICES = (dtypes.int32, dtypes.int64)
MAX_DEPTH = 32  # ops that a line is followed through
MAX_ELEMENTS = 1 << 16  # of a constant that is looked at


class Line(NamedTuple):
    """Elements that are `start` plus a step along each dimension."""

    start: Dimension
    steps: tuple[int, ...]


Lines = dict[Value, Line | None]


def comparisons(network: Network, log: Log) -> None:
    """A comparison that has one outcome whatever the sizes is that constant."""
    dead: list[Node] = []
    lines: Lines = {}
    for node in list(network.nodes):
        outcome = _outcome(node, lines)
        if outcome is None:
            continue
        note(log, "comparisons", node, f"{'holds' if outcome else 'never holds'}, whatever the sizes")
        with network.insert_before(node):
            new = F.expand(network.constant(np.array(outcome)), node.output.shape)
        network.replace(node.output, new)
        dead.extend(detach(network, node))
    network.remove(dead)


def _outcome(node: Node, lines: Lines) -> bool | None:
    """What a comparison gives at every place, or None."""
    if not isinstance(node.op, Less | LessEqual | Greater | GreaterEqual | Equal | NotEqual):
        return None
    a, b = (_line(v, lines) for v in node.inputs)
    if a is None or b is None:
        return None
    shape = node.output.shape
    a, b = (_wide(x, v.shape, shape) for x, v in zip((a, b), node.inputs, strict=True))
    low, high = _range(_joined(a, b, -1), shape)
    found = {
        Less: (high < 0, low >= 0), LessEqual: (high <= 0, low > 0), Greater: (low > 0, high <= 0),
        GreaterEqual: (low >= 0, high < 0), Equal: (low == high == 0, low > 0 or high < 0),
        NotEqual: (low > 0 or high < 0, low == high == 0),
    }  # fmt: skip
    always, never = found[type(node.op)]
    return True if always else False if never else None


def _range(line: Line, shape: tuple[Dimension, ...]) -> tuple[float, float]:
    """The least and the greatest element of a line, or numbers outside of these."""
    low = high = line.start
    for step, size in zip(line.steps, shape, strict=True):
        last = dims.mul(dims.add(size, -1), step)
        low, high = (dims.add(low, last), high) if step < 0 else (low, dims.add(high, last))
    return dims.bounds(low)[0], dims.bounds(high)[1]


def _line(value: Value, lines: Lines, depth: int = 0) -> Line | None:
    """The line that an integer tensor is, as far as its dtype holds it."""
    if value in lines:
        return lines[value]
    if value.dtype not in INDICES or depth > MAX_DEPTH:
        return None
    found = _of_constant(value.array) if value.kind == "constant" else _of_node(value, lines, depth + 1)
    if found is not None and value.dtype is not dtypes.int64:
        low, high = _range(found, value.shape)
        found = found if low >= -(2**31) and high < 2**31 else None
    lines[value] = found
    return found


def _of_constant(array: np.ndarray[Any, Any]) -> Line | None:
    if not 0 < array.size <= MAX_ELEMENTS:
        return None
    start = int(array.flat[0])
    steps = [int(array[tuple(int(i == d) for i in range(array.ndim))]) - start if n > 1 else 0
             for d, n in enumerate(array.shape)]  # fmt: skip
    grid = np.full(array.shape, start, object)
    for d, step in enumerate(steps):
        grid = grid + (np.arange(array.shape[d]) * step).reshape([-1 if i == d else 1 for i in range(array.ndim)])
    return Line(start, tuple(steps)) if (grid == array).all() else None


def _of_node(value: Value, lines: Lines, depth: int) -> Line | None:
    node: Any = value.node
    if node is None:
        return None
    op, rank = node.op, len(value.shape)
    if isinstance(op, Iota):
        return Line(op.start, (op.step,))
    if not isinstance(op, Add | Sub | Neg | Cast | Reshape | Expand | Permute | Slice):
        return None
    found = [_line(v, lines, depth) for v in node.inputs]
    line, *more = [x for x in found if x is not None] or [Line(0, ())]
    if None in found:
        return None
    x = node.inputs[0]
    if isinstance(op, Add | Sub):
        a, b = (_wide(one, v.shape, value.shape) for one, v in zip((line, *more), node.inputs, strict=True))
        return _joined(a, b, 1 if isinstance(op, Add) else -1)
    if isinstance(op, Neg):
        return _joined(Line(0, (0,) * rank), line, -1)
    if isinstance(op, Cast):
        return line
    if isinstance(op, Expand):
        return _wide(line, x.shape, value.shape)
    if isinstance(op, Permute):
        return Line(line.start, tuple(line.steps[d] for d in op.order(rank)))
    if isinstance(op, Slice):
        start = dims.add(line.start, *(dims.mul(n, step) for n, step in zip(op.starts, line.steps, strict=True)))
        return Line(start, tuple(step * stride for step, stride in zip(line.steps, op.strides, strict=True)))
    kept = [step for step, n in zip(line.steps, x.shape, strict=True) if n != 1]
    if tuple(n for n in x.shape if n != 1) != tuple(n for n in value.shape if n != 1):
        return None
    steps = iter(kept)
    return Line(line.start, tuple(0 if n == 1 else next(steps) for n in value.shape))


def _wide(line: Line, shape: tuple[Dimension, ...], wide: tuple[Dimension, ...]) -> Line:
    """A line of one shape in the shape that it is broadcast to."""
    missing = len(wide) - len(shape)
    kept = (0 if n == 1 else step for step, n in zip(line.steps, shape, strict=True))
    return Line(line.start, (*[0] * missing, *kept))


def _joined(a: Line, b: Line, sign: int) -> Line:
    """a + sign · b."""
    steps = tuple(x + sign * y for x, y in zip(a.steps, b.steps, strict=True))
    return Line(dims.add(a.start, dims.mul(b.start, sign)), steps)
