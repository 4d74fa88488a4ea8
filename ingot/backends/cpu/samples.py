"""Along which dimension of a value the samples of a batch lie, as far as the ops that made it say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from ingot import dims
from ingot.errors import DimError
from ingot.ir import Network, Node, Value
from ingot.ops.binary import Binary
from ingot.ops.conversion import Cast
from ingot.ops.dense_attention import ScaledDotProductAttention
from ingot.ops.elementwise import LogicalNot, Unary, Where
from ingot.ops.fused import FusedElementwise
from ingot.ops.indexing import Embedding
from ingot.ops.lowering import Lowered
from ingot.ops.movement import Concat, Expand, Permute, Reshape, Slice
from ingot.ops.norm import BatchNorm, GroupNorm, LayerNorm, RmsNorm
from ingot.ops.pool import AdaptivePool, Pool
from ingot.ops.product import Matmul
from ingot.ops.reduce import Normalised, Reduce
from ingot.ops.resample import Resize
from ingot.ops.spatial import Conv, ConvTranspose

BROADCAST = (Unary, Binary, Where, Cast, LogicalNot, FusedElementwise, Expand)
OF_IMAGES = (Conv, ConvTranspose, BatchNorm, GroupNorm, Pool, AdaptivePool, Resize)
OF_ROWS = (LayerNorm, RmsNorm, Embedding)  # Embedding: its result has one dimension more, the last


class Samples(NamedTuple):
    """Place i along `axis` is of sample i // `inner` % `count`."""

    axis: int
    count: Any  # a size, as `inner` is
    inner: Any = 1


Led = Sequence[tuple[int, Value, Samples]]  # operands whose samples are known, with their places among all


class _Mixed(Exception):
    """Samples may meet, or where they lie is not known."""


class SamplesIn:
    """Where samples lie in the values of a network, which is followed once, at the first question.

    Samples lie along the first dimension of each input whose first size is not 1, and inputs of other counts have
    other samples. What a network is given that may have them elsewhere is not known.
    """

    def __init__(self, network: Network) -> None:
        self._network = network

    def of_one(self, value: Value, axis: int) -> bool:
        """Whether what lies along `axis` of a value, all else equal, is known to be of one sample in each place."""
        where = self._found.get(value)
        return where is None or isinstance(where, Samples) and where.axis != axis % len(value.shape)

    @cached_property
    def _found(self) -> dict[Value, Samples | None | type[_Mixed]]:
        found: dict[Value, Samples | None | type[_Mixed]] = {}
        for given in self._network.inputs:
            shape = given.shape
            if _has_them_elsewhere(given):
                found[given] = _Mixed
            else:
                found[given] = Samples(0, shape[0]) if shape and shape[0] != 1 else None
        for node in self._network.nodes:
            for result in node.outputs:
                try:
                    found[result] = _through(node, result, found)
                except (_Mixed, DimError):  # sizes that are too long to be told apart
                    found[result] = _Mixed
        return found


def _has_them_elsewhere(given: Value) -> bool:
    """Whether a later dimension of an input may count the samples of another input, as states of recurrent layers
    have them second, behind one that does not.
    """
    shape = given.shape
    counts = [other.shape[0] for other in given.network.inputs if other is not given and other.shape]
    if not shape or shape[0] in counts and shape[0] != 1:
        return False
    return any(_may_count(size, count) for size in shape[1:] for count in counts if count != 1)


def _may_count(size: Any, count: Any) -> bool:
    return bool(size == count or dims.dims_of([size]).keys() & dims.dims_of([count]).keys())


def _through(node: Node, result: Value, found: Mapping[Value, Any]) -> Samples | None:
    led: list[Any] = [(i, x, where) for i, x in enumerate(node.inputs) if (where := found.get(x)) is not None]
    _require(not any(value.is_state for value in (result, *node.given)))
    _require(not any(where is _Mixed for _, _, where in led))
    if not led:
        return None
    _, x, first = led[0]
    _require(all(where[1:] == first[1:] for _, _, where in led))
    op = node.op.inner if isinstance(node.op, Lowered) else node.op
    if isinstance(op, Reshape):
        return _reshaped(first, x.shape, result.shape)
    return Samples(_axis(op, node, led, result.shape), first.count, first.inner)


def _reshaped(where: Samples, before: Sequence[Any], after: Sequence[Any]) -> Samples:
    """The order of all elements stays, so what is the same distance apart does."""
    distance = dims.mul(where.inner, *before[where.axis + 1 :])
    for axis in range(len(after)):
        step = dims.mul(*after[axis + 1 :])
        if 0 not in (step, distance) and dims.mod(distance, step) == 0:
            _require(dims.mod(dims.mul(step, after[axis]), dims.mul(distance, where.count)) == 0)
            return Samples(axis, where.count, dims.floordiv(distance, step))
    raise _Mixed


def _axis(op: Any, node: Node, led: Led, shape: Sequence[Any]) -> int:
    place, x, (axis, *_) = led[0]
    rank = len(x.shape)
    if isinstance(op, BROADCAST):
        return _aligned(led, shape)
    if isinstance(op, Matmul):
        return _of_product(op, node, led, shape)
    if isinstance(op, ScaledDotProductAttention):
        return _below(_aligned(led, (*shape[:-3], None, None, None)), len(shape) - 3)
    if isinstance(op, OF_IMAGES):
        _require(place == 0 and axis == 0 and x.shape[0] == shape[0])
        _require(all(i >= _own(node) and where.axis == 0 and len(y.shape) == rank for i, y, where in led[1:]))
        return 0
    if isinstance(op, Concat):
        _require(op.dim % rank != axis and all(where.axis == axis for _, _, where in led))
        return axis
    _require(place == 0 and len(led) == 1)
    if isinstance(op, OF_ROWS):
        return _below(axis, len(shape) - 1)
    if isinstance(op, Permute):
        return op.order(rank).index(axis)
    if isinstance(op, Slice):
        _require(op.strides[axis] == 1 and op.starts[axis] == 0 and shape[axis] == x.shape[axis])
        return axis
    if isinstance(op, Normalised):
        _require(op.axis % rank != axis)
        return axis
    if isinstance(op, Reduce):
        gone = set(range(rank)) if op.axes is None else {a % rank for a in op.axes}
        _require(axis not in gone)
        return axis if op.keepdims else axis - sum(a < axis for a in gone)
    raise _Mixed


def _of_product(op: Matmul, node: Node, led: Led, shape: Sequence[Any]) -> int:
    """Rows of the first operand, or leading dimensions of both; what an epilogue reads is like the result."""
    for i, operand, where in led:
        is_added = i >= _own(node)
        _require(not is_added or len(operand.shape) == len(shape))
        has_rows = is_added or i == 0 and not op.transpose_a
        _below(where.axis, len(operand.shape) - (1 if has_rows else 2))
    return _below(_aligned(led, (*shape[:-1], None)), len(shape) - 1)


def _own(node: Node) -> int:
    """How many operands are the op's own: an epilogue reads those behind them."""
    return node.op.held if isinstance(node.op, Lowered) else len(node.inputs)


def _aligned(led: Led, shape: Sequence[Any]) -> int:
    """The one axis of `shape` along which samples lie where operands broadcast to it."""
    axes = {len(shape) - len(operand.shape) + where.axis for _, operand, where in led}
    _require(len(axes) == 1)
    (axis,) = axes
    _require(axis >= 0 and all(operand.shape[where.axis] == shape[axis] for _, operand, where in led))
    return axis


def _below(axis: int, end: int) -> int:
    _require(axis < end)
    return axis


def _require(holds: bool) -> None:
    if not holds:
        raise _Mixed
