"""Channels last: spatial ops compute on [N, *S, C], and the permutes that this takes sink until they meet and cancel.

One walk over the network. Every value is either as it was, or *placed*: another value holds its elements with the
dimensions in another order. A permute (a view) is emitted only where the first order is needed. Permutes of the network
itself are deferred in the same way. What goes through: elementwise ops, concat, pad, slice, expand, reductions,
softmax, take, reshapes that split or merge dimensions which lie together, and einsum. Elementwise ops before the first
image op turn their operands instead.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ingot import dims
from ingot.dims import Dimension
from ingot.ir import F, Network, Node, Value
from ingot.ir.spec import Shape, axes_of, axis_of
from ingot.ops import contraction, indexing, movement, norm, pool, reduce, resample, spatial
from ingot.passes.rewrite import Log, note
from ingot.passes.weights import derive

Order = tuple[int, ...]  # dimension i of a placed value is dimension order[i] of what holds its elements
Placed = tuple[Value, Order]

SPATIAL = (
    spatial.Conv, spatial.ConvTranspose, pool.AvgPool, pool.MaxPool, pool.AdaptivePool, resample.Resize,
    resample.GridSample, norm.GroupNorm,
)  # fmt: skip


def channels_last(network: Network, log: Log) -> None:
    """Spatial ops get channels-last operands; a network without any stays as it is."""
    if any(isinstance(node.op, SPATIAL) and not node.op.channels_last for node in network.nodes):
        _Walk(network, log).run()


def last(rank: int) -> Order:
    """The order of [N, C, *S] that is held as [N, *S, C]."""
    return (0, rank - 1, *range(1, rank - 1))


def inverse(order: Order) -> Order:
    """The order in which the holder has a placed value's dimensions."""
    return tuple(order.index(i) for i in range(len(order)))


class _Walk:
    def __init__(self, network: Network, log: Log) -> None:
        self.network = network
        self.log = log
        self.placed: dict[Value, Placed] = {}
        self.plain: dict[Value, Value] = {}  # placed values in their own order, where somebody needed that

    def run(self) -> None:
        done: list[Node] = []
        for node in list(self.network.nodes):
            with self.network.insert_before(node):
                made = self._place(node)
                if made is None:
                    self.network.rewire(node, tuple(map(self.logical, node.inputs)))
                    continue
            done.append(node)
            value, order = made
            if order == tuple(range(len(order))):
                self.network.replace(node.output, value)
            else:
                self.placed[node.output] = made
        for value in dict.fromkeys(self.network.outputs.values()):
            if value in self.placed:
                with self.network.scope(value.node.where):
                    self.network.replace(value, self.logical(value))
        self.network.remove(done)
        self.network.remove_dead()

    # ------------------------------------------------------------------------------------------------------ operands
    def logical(self, value: Value) -> Value:
        """A value in its own order."""
        if value not in self.placed:
            return value
        if value not in self.plain:
            self.plain[value] = F.permute(*self.placed[value])
        return self.plain[value]

    def physical(self, value: Value, order: Order) -> Value:
        """What holds a value's elements in this order."""
        node = value.node
        if value not in self.placed and node is not None and node.op.expr is not None and self._only_here(value):
            made = self.network.emit(node.op, tuple(self.operand(v, order) for v in node.inputs))
            return self.reshaped(made, tuple(value.shape[i] for i in inverse(order)))  # with leading dimensions of 1
        held, own = self.placed.get(value, (value, tuple(range(len(order)))))
        return held if own == order else self.permuted(held, tuple(own[i] for i in inverse(order)))

    def _only_here(self, value: Value) -> bool:
        """Whether nobody else reads what an elementwise op makes, which may then be made in another order."""
        return len(value.uses) == 1 and not self.network.is_output(value)

    def operand(self, value: Value, order: Order) -> Value:
        """A value that broadcasts against placed ones, for those that hold them."""
        if len(value.shape) == len(order) and (value in self.placed or sum(n != 1 for n in value.shape) > 1):
            return self.physical(value, order)
        x = self.logical(value)
        shape: Shape = (*[1] * (len(order) - len(x.shape)), *x.shape)
        turned = inverse(order)
        moved = [i for i in turned if shape[i] != 1]
        if moved != sorted(moved):
            x = self.permuted(self.reshaped(x, shape), turned)
        kept = [shape[i] for i in turned]
        while kept and kept[0] == 1:  # leading dimensions of size 1 come back by broadcasting
            kept.pop(0)
        return self.reshaped(x, tuple(kept))

    def permuted(self, x: Value, order: Order) -> Value:
        if order == tuple(range(len(order))):
            return x
        if x.kind == "constant":
            return self.network.constant(np.ascontiguousarray(x.array.transpose(order)))
        if x.kind == "parameter":
            return derive(self.network, "transpose", [x], f"{x.name}.transposed", axes=order)
        return F.permute(x, order)  # type: ignore[no-any-return]

    def reshaped(self, x: Value, shape: Shape) -> Value:
        if x.shape == shape:
            return x
        if x.kind == "constant":
            return self.network.constant(x.array.reshape(shape))
        node = x.node
        if node is not None and isinstance(node.op, movement.Reshape):
            return self.reshaped(node.inputs[0], shape)
        if x.kind == "parameter":
            return derive(self.network, "reshape", [x], f"{x.name}.reshaped", shape=shape)
        return F.reshape(x, shape)  # type: ignore[no-any-return]

    def first(self, values: Sequence[Value], rank: int) -> Order | None:
        """The order of the first operand of this rank that has one of its own."""
        for value in values:
            if value in self.placed and len(value.shape) == rank:
                return self.placed[value][1]
        return None

    # ------------------------------------------------------------------------------------------------------ ops
    def _place(self, node: Node) -> Placed | None:
        """What holds the result of a node, or None when it stays as it is."""
        if isinstance(node.op, SPATIAL):
            return self._spatial(node)
        handler = HANDLERS.get(type(node.op)) or (_elementwise if node.op.expr is not None else None)
        if handler is None or any(v.is_state for v in node.inputs):
            return None
        if not isinstance(node.op, movement.Permute) and not any(v in self.placed for v in node.inputs):
            return None
        return handler(self, node)

    def _spatial(self, node: Node) -> Placed | None:
        op: Any = node.op
        rank = len(node.output.shape)
        if op.channels_last:
            return None
        held = self.physical(node.inputs[0], last(rank))
        operands = (held, *map(self.logical, node.inputs[1:]))
        return self.network.emit(dataclasses.replace(op, channels_last=True), operands), last(rank)

    def emit(self, node: Node, *operands: Value, **changed: Any) -> Value:
        """The node's op with other attributes on other operands."""
        op = dataclasses.replace(node.op, **changed) if changed else node.op
        return self.network.emit(op, operands)  # type: ignore[no-any-return]

    def stays(self, node: Node, why: str) -> None:
        note(self.log, "channels last", node, why)


def _elementwise(walk: _Walk, node: Node) -> Placed | None:
    order = walk.first(node.inputs, len(node.output.shape))
    if order is None:
        return None
    return walk.emit(node, *(walk.operand(v, order) for v in node.inputs)), order


def _permute(walk: _Walk, node: Node) -> Placed | None:
    op: Any = node.op
    x = node.inputs[0]
    then = op.order(len(x.shape))
    if x not in walk.placed:
        return (x, then) if x.kind == "result" or x.kind == "input" else None
    held, order = walk.placed[x]
    return held, tuple(order[d] for d in then)


def _concat(walk: _Walk, node: Node) -> Placed | None:
    op: Any = node.op
    rank = len(node.output.shape)
    order = walk.first(node.inputs, rank)
    assert order is not None  # one of them is placed, and all have the rank of the result
    return walk.emit(node, *(walk.physical(v, order) for v in node.inputs), dim=order[axis_of(op.dim, rank)]), order


def _by_dim(*names: str) -> Callable[[_Walk, Node], Placed | None]:
    """An op with attributes of one entry per dimension."""

    def place(walk: _Walk, node: Node) -> Placed | None:
        held, order = walk.placed[node.inputs[0]]
        changed = {name: tuple(getattr(node.op, name)[i] for i in inverse(order)) for name in names}
        return walk.emit(node, held, **changed), order

    return place


def _expand(walk: _Walk, node: Node) -> Placed | None:
    held, order = walk.placed[node.inputs[0]]
    shape = node.output.shape
    new = len(shape) - len(order)
    whole = (*range(new), *(new + i for i in order))
    return walk.emit(node, held, shape=tuple(shape[i] for i in inverse(whole))), whole


def _along(walk: _Walk, node: Node) -> Placed | None:
    op: Any = node.op
    held, order = walk.placed[node.inputs[0]]
    return walk.emit(node, held, axis=order[axis_of(op.axis, len(order))]), order


def _reduce(walk: _Walk, node: Node) -> Placed | None:
    op: Any = node.op
    held, order = walk.placed[node.inputs[0]]
    single = isinstance(op, reduce.ArgMax)
    gone = (axis_of(op.axis, len(order)),) if single else axes_of(op.axes, len(order))
    moved = tuple(order[i] for i in gone)
    value = walk.emit(node, held, axis=moved[0]) if single else walk.emit(node, held, axes=moved)
    if op.keepdims:
        return value, order
    left = [j for j in range(len(order)) if j not in moved]
    return value, tuple(left.index(order[i]) for i in range(len(order)) if i not in gone)


def _take(walk: _Walk, node: Node) -> Placed | None:
    op: Any = node.op
    x, index = node.inputs
    if x not in walk.placed or len(index.shape) != 1:
        return None
    held, order = walk.placed[x]
    return walk.emit(node, held, walk.logical(index), axis=order[axis_of(op.axis, len(order))]), order


def _einsum(walk: _Walk, node: Node) -> Placed | None:
    """The letters of each operand as it is held; an image comes out with its channels last."""
    op: Any = node.op
    equation = contraction.parse(op.equation, [len(v.shape) for v in node.inputs])
    if any(len(label) > 1 for labels in equation.operands for label in labels):
        walk.stays(node, "an equation with an ellipsis keeps its order")
        return None
    held = [walk.placed.get(v, (v, tuple(range(len(v.shape))))) for v in node.inputs]
    terms = ["".join(labels[i] for i in inverse(order))
             for labels, (_, order) in zip(equation.operands, held, strict=True)]  # fmt: skip
    rank = len(equation.output)
    order = last(rank) if rank > 2 else tuple(range(rank))
    result = "".join(equation.output[i] for i in inverse(order))
    return walk.emit(node, *(v for v, _ in held), equation=f"{','.join(terms)}->{result}"), order


def _reshape(walk: _Walk, node: Node) -> Placed | None:
    held, order = walk.placed[node.inputs[0]]
    found = reordered(node.inputs[0].shape, node.output.shape, order)
    if found is None:
        walk.stays(node, "a size of 0 leaves open which dimensions belong together")
        return None
    turn, shape, result = found
    if turn != tuple(range(len(turn))):
        walk.stays(node, "it merges dimensions that do not lie together, which takes a copy")
    return walk.reshaped(walk.permuted(held, turn), shape), result


def reordered(old: Shape, new: Shape, order: Order) -> tuple[Order, Shape, Order] | None:
    """A reshape of a placed value as one of its holder. Returns the permutation of that before it, so that dimensions
    which become one lie together; its new shape; and the order of the result."""
    blocks = _blocks(old, new)
    if blocks is None:
        return None
    turned = inverse(order)
    place = {i: at for at, i in enumerate(turned)}
    blocks.sort(key=lambda block: max(place[i] for i in block[0]))
    mine, held = [i for dims, _ in blocks for i in dims], [i for _, dims in blocks for i in dims]
    wide = iter(mine)  # dimensions of size 1 stay where they are
    turn = tuple(place[next(wide)] if old[i] != 1 else place[i] for i in turned)
    for i in range(len(new)):  # new ones stand before what follows them
        if i not in held:
            follows = min((j for j in held if j > i), default=None)
            held.insert(len(held) if follows is None else held.index(follows), i)
    return turn, tuple(new[i] for i in held), inverse(tuple(held))


def _blocks(old: Shape, new: Shape) -> list[tuple[list[int], list[int]]] | None:
    """The smallest runs of dimensions (without those of size 1) that have as many elements before as after."""
    if 0 in old:
        return None
    mine, theirs = ([i for i, n in enumerate(shape) if n != 1] for shape in (old, new))
    ends, others = (_products(shape, kept) for shape, kept in ((old, mine), (new, theirs)))
    common = [n for n in ends if n in others]
    if not common or ends[-1] != others[-1]:
        return [] if not mine and not theirs else None
    blocks = []
    a = b = 0
    for n in common:
        i, j = ends.index(n) + 1, others.index(n) + 1
        blocks.append((mine[a:i], theirs[b:j]))
        a, b = i, j
    return blocks


def _products(shape: Shape, kept: Sequence[int]) -> list[Dimension]:
    """The number of elements up to each of these dimensions."""
    return list(itertools.accumulate((shape[i] for i in kept), dims.mul))


HANDLERS: dict[type[Any], Callable[[_Walk, Node], Placed | None]] = {
    movement.Permute: _permute,
    movement.Reshape: _reshape,
    movement.Concat: _concat,
    movement.Pad: _by_dim("before", "after"),
    movement.Slice: _by_dim("starts", "sizes", "strides"),
    movement.Expand: _expand,
    reduce.Softmax: _along,
    reduce.LogSoftmax: _along,
    reduce.ReduceSum: _reduce,
    reduce.ReduceMean: _reduce,
    reduce.ReduceMax: _reduce,
    reduce.ReduceMin: _reduce,
    reduce.ReduceProd: _reduce,
    reduce.ArgMax: _reduce,
    indexing.Take: _take,
    contraction.Einsum: _einsum,
}
