"""Which size of a net is a batch: rows along it have nothing to do with each other, so a run may be padded with more.

It is derived from the network, op by op: where the batch lies in each value. An op that is not known to keep rows
apart, or that reads the size itself, leaves the net without a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ingot import dims
from ingot.dims import Dim, Dimension
from ingot.ir import Network, Node, Value
from ingot.ir.expr import NoExpression
from ingot.ir.spec import axes_of, axis_of, elements
from ingot.ops.contraction import Einsum, parse
from ingot.ops.conversion import Float8Rows, QuantizeRows
from ingot.ops.dense_attention import ScaledDotProductAttention
from ingot.ops.indexing import Embedding, Gather, Take
from ingot.ops.movement import Concat, Expand, Pad, Permute, Reshape, Slice, WithShape
from ingot.ops.norm import BatchNorm, GroupNorm, LayerNorm, RmsNorm
from ingot.ops.order import Ordered, Scan
from ingot.ops.pool import AdaptivePool, Pool
from ingot.ops.product import Matmul
from ingot.ops.reduce import ArgMax, Normalised, Reduce
from ingot.ops.resample import Resize
from ingot.ops.spatial import Conv, ConvInteger, ConvTranspose

EXACT = 16  # up to so many rows the next of two sizes to each power of two is taken


def padded(rows: int) -> int:
    """Rows to which a run is padded: 1, 2, 3, 4, 6, 8, 12, 16, then eight sizes to each power of two.

    Few rows take a GPU little longer than fewer, and less than the host needs to launch a run call by call. Many rows
    take their time, of which an eighth is wasted at most.
    """
    power = 1 << max(0, rows - 1).bit_length()
    step = max(1, power // (4 if power <= EXACT else 16))
    return -(-rows // step) * step


@dataclass(frozen=True)
class Place:
    """Where the rows of a batch lie in a value: along an axis, `inner` neighbours each."""

    axis: int
    inner: Dimension = 1


@dataclass(frozen=True)
class Batch:
    """A dim that is a batch. inputs, outputs: the places of those that have rows, by name."""

    dim: Dim
    inputs: Mapping[str, int]
    outputs: Mapping[str, Place]


class _Mixed(Exception):
    """Rows meet, or nobody knows that they do not."""


def batch_of(network: Network) -> Batch | None:
    """The first dim of the inputs that is a batch."""
    if network.states:
        return None
    for name in dims.dims_of(size for value in network.inputs for size in value.shape):
        try:
            return _batch(network, network.dims[name])
        except _Mixed:
            continue
    return None


def _batch(network: Network, dim: Dim) -> Batch:
    places: dict[Value, Place] = {}
    for value in network.inputs:
        axes = [i for i, size in enumerate(value.shape) if size == dim]
        if axes:
            places[value] = Place(axes[0])
        _check(value, dim, places.get(value))
    for node in network.nodes:
        found = _places(node, dim, [places.get(v) for v in node.inputs])
        for value in node.outputs:
            if found is not None:
                places[value] = found
            _check(value, dim, found)
    inputs = {v.name: places[v].axis for v in network.inputs if v in places}
    return Batch(dim, inputs, {name: places[v] for name, v in network.outputs.items() if v in places})


def _has(sizes: Sequence[Dimension], dim: Dim) -> bool:
    return dim.name in dims.dims_of(sizes)


def _check(value: Value, dim: Dim, place: Place | None) -> None:
    """A value has its rows where they are said to be, and nowhere else."""
    sizes = list(value.shape)
    if place is not None and sizes.pop(place.axis) != dims.mul(dim, place.inner):
        raise _Mixed
    if _has(sizes, dim):
        raise _Mixed


def _places(node: Node, dim: Dim, at: Sequence[Place | None]) -> Place | None:
    """Where the results of a node have their rows; None where they have none."""
    op: Any = node.op
    if isinstance(op, Expand) and at[0] is None and _has(op.shape, dim):  # the same for every row
        return Place(next(i for i, size in enumerate(node.output.shape) if _has([size], dim)))
    if isinstance(op, Slice) and _has(op.starts, dim):  # of any axis: from another element in each padded size
        raise _Mixed
    shaped = isinstance(op, Reshape | Expand | WithShape | Slice)  # whose sizes are looked at
    if not shaped and any(_has([d], dim) for d in op.dimensions() if d is not None):
        raise _Mixed
    if not any(at):
        if op.acts or shaped and _has([d for d in op.dimensions() if d is not None], dim):
            raise _Mixed
        return None
    for kinds, rule in _RULES:
        if isinstance(op, kinds):
            return rule(node, at)
    if not _by_elements(node):
        raise _Mixed
    return _broadcast(node, at)


def _by_elements(node: Node) -> bool:
    try:
        return node.op.expr is not None
    except NoExpression:
        return False


def _the(at: Sequence[Place | None]) -> Place:
    """Of a node whose first operand alone has rows."""
    if at[0] is None or any(at[1:]):
        raise _Mixed
    return at[0]


def _apart(place: Place, axis: int) -> Place:
    """A place that is not the axis along which an op computes."""
    if place.axis == axis:
        raise _Mixed
    return place


def _together(node: Node, at: Sequence[Place | None]) -> tuple[int, Dimension]:
    """What all places of a node's operands agree in: their distance from the end, and the neighbours."""
    found = {(len(v.shape) - p.axis, p.inner) for v, p in zip(node.inputs, at, strict=True) if p is not None}
    if len(found) != 1:
        raise _Mixed
    return found.pop()


def _broadcast(node: Node, at: Sequence[Place | None]) -> Place:
    back, inner = _together(node, at)
    return Place(len(node.output.shape) - back, inner)


def _rank(node: Node) -> int:
    return len(node.inputs[0].shape)


def _images(node: Node, at: Sequence[Place | None]) -> Place:
    place = _the(at)
    if place.axis != 0:
        raise _Mixed
    return place


def _last(node: Node, at: Sequence[Place | None]) -> Place:
    return _apart(_the(at), _rank(node) - 1)


def _along(node: Node, at: Sequence[Place | None]) -> Place:
    op: Any = node.op
    return _apart(_the(at), axis_of(op.axis, _rank(node)))


def _reduced(node: Node, at: Sequence[Place | None]) -> Place:
    op: Any = node.op
    place = _the(at)
    axes = axes_of(op.axes, _rank(node)) if isinstance(op, Reduce) else (axis_of(op.axis, _rank(node)),)
    if place.axis in axes:
        raise _Mixed
    return place if op.keepdims else Place(place.axis - sum(a < place.axis for a in axes), place.inner)


def _reshaped(node: Node, at: Sequence[Place | None]) -> Place:
    """As many elements before the rows, and behind each, as there were."""
    place = _the(at)
    given, made = node.inputs[0].shape, node.output.shape
    before = elements(given[: place.axis])
    behind = dims.mul(place.inner, elements(given[place.axis + 1 :]))
    rows = elements([*given[: place.axis], *given[place.axis + 1 :]])
    size = given[place.axis]
    for axis in range(len(made)):
        rest = elements(made[axis + 1 :])
        if elements(made[:axis]) != before or 0 in (rest, rows):
            continue
        inner = dims.floordiv(behind, rest)
        if dims.mul(inner, rest) == behind and dims.mul(made[axis], place.inner) == dims.mul(size, inner):
            return Place(axis, inner)
    raise _Mixed


def _permuted(node: Node, at: Sequence[Place | None]) -> Place:
    op: Any = node.op
    place = _the(at)
    return Place(op.order(_rank(node)).index(place.axis), place.inner)


def _windowed(node: Node, at: Sequence[Place | None]) -> Place:
    """All rows, in their order."""
    op: Any = node.op
    place = _the(at)
    axis, size = place.axis, node.inputs[0].shape[place.axis]
    if isinstance(op, Slice) and (op.starts[axis], op.sizes[axis], op.strides[axis]) != (0, size, 1):
        raise _Mixed
    if isinstance(op, Pad) and (op.before[axis], op.after[axis]) != (0, 0):
        raise _Mixed
    return place


def _joined(node: Node, at: Sequence[Place | None]) -> Place:
    op: Any = node.op
    if None in at or len({*at}) != 1:
        raise _Mixed
    place = at[0]
    assert place is not None
    return _apart(place, axis_of(op.dim, _rank(node)))


def _product(node: Node, at: Sequence[Place | None]) -> Place:
    """Rows of either operand, or matrices of both; never what is summed."""
    op: Any = node.op
    rank, found = len(node.output.shape), set()
    for i, (value, place) in enumerate(zip(node.inputs, at, strict=True)):
        if place is None:
            continue
        back = len(value.shape) - place.axis
        if back > 2:
            found.add(Place(rank - back, place.inner))
        elif i == 0 and (back == 2) != op.transpose_a and at[1] is None:
            found.add(Place(rank - 2, place.inner))
        elif i == 1 and (back == 1) != op.transpose_b and at[0] is None:
            found.add(Place(rank - 1, place.inner))
        else:
            raise _Mixed
    if len(found) != 1:
        raise _Mixed
    return found.pop()


def _contracted(node: Node, at: Sequence[Place | None]) -> Place:
    op: Any = node.op
    equation = parse(op.equation, [len(v.shape) for v in node.inputs])
    pairs = list(zip(equation.operands, at, strict=True))
    found = {(labels[p.axis], p.inner) for labels, p in pairs if p is not None}
    if len(found) != 1:
        raise _Mixed
    label, inner = found.pop()
    if label not in equation.output or any(labels.count(label) != (p is not None) for labels, p in pairs):
        raise _Mixed
    return Place(equation.output.index(label), inner)


def _attended(node: Node, at: Sequence[Place | None]) -> Place:
    """Leading dimensions in front of the heads."""
    back, inner = _together(node, at)
    if back < 4 or at[0] is None:
        raise _Mixed
    return Place(len(node.output.shape) - back, inner)


def _looked_up(node: Node, at: Sequence[Place | None]) -> Place:
    op: Any = node.op
    if isinstance(op, Embedding):
        return _the(at)
    axis = axis_of(op.axis, _rank(node))
    x, index = at
    if isinstance(op, Gather):
        if x is None or x != index:
            raise _Mixed
        return _apart(x, axis)
    if x is None:  # of every row's own slices, one behind the other
        assert index is not None
        return Place(axis + index.axis, index.inner)
    place = _apart(_the(at), axis)
    return place if place.axis < axis else Place(place.axis + len(node.inputs[1].shape) - 1, place.inner)


_Rule = Callable[[Node, Sequence[Place | None]], Place]
_RULES: tuple[tuple[tuple[type, ...], _Rule], ...] = (
    ((Conv, ConvInteger, ConvTranspose, Pool, AdaptivePool, GroupNorm, BatchNorm, Resize), _images),
    ((LayerNorm, RmsNorm, QuantizeRows, Float8Rows), _last),
    ((Normalised, Ordered, Scan), _along),
    ((Reduce, ArgMax), _reduced),
    ((Reshape,), _reshaped), ((Permute,), _permuted), ((Slice, Pad), _windowed), ((Concat,), _joined),
    ((Expand, WithShape), _broadcast), ((Matmul,), _product), ((Einsum,), _contracted),
    ((ScaledDotProductAttention,), _attended), ((Embedding, Take, Gather), _looked_up),
)  # fmt: skip
