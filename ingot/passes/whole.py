"""Sums of integers that only floats read: (x − its zero point) · (w − its zero point) in int32, then a cast.

That is how ONNX writes MatMulInteger and ConvInteger behind DynamicQuantizeLinear. They take the form of
passes/integers.py, floats around `quantize` and `dequantize`, with a scale of 1: so int8 is summed with a stored int8,
exactly, and what follows the cast becomes the epilogue. The zero point of x may be computed; what is padded is then the
floats before they are quantised, as 0 becomes the zero point. That of w costs the sums of x's rows or windows:

    Σ (x − a) · (w − b) = Σ (x − a) · w' − (b − b') · Σ (x − a), where w − b = w' − (b − b') and w' is int8
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ingot import dtypes
from ingot.dtypes import DType
from ingot.ir import F, Network, Node, Value
from ingot.ops.binary import Add, Sub
from ingot.ops.conversion import Cast, Quantize
from ingot.ops.lowering import MOST_INT8
from ingot.ops.product import Matmul
from ingot.ops.spatial import ConvInteger
from ingot.passes.integers import HALF, is_quantised
from ingot.passes.rewrite import Log, detach, note
from ingot.passes.weights import FIXED, derive, sizes

NARROW = (dtypes.int8, dtypes.uint8)
Array = np.ndarray[Any, Any]


class Whole(NamedTuple):
    """Integers less their zero point, which is one number of any integer type, or none."""

    integers: Value
    zero: Value | None


class Weight(NamedTuple):
    """A stored int8, and what is to be added to each of its numbers: nothing, one float32, or one for each output."""

    integers: Value
    more: Array | None


def whole(network: Network, log: Log) -> None:
    """A product or convolution of integers that is cast to float32, maybe after a bias of integers, sums int8."""
    dead: list[Node] = []
    for node in list(network.nodes):
        if not isinstance(node.op, Cast) or node.output.dtype is not dtypes.float32:
            continue
        found = _chain(network, node)
        if found is None:
            continue
        product, biases = found
        with network.insert_before(node):
            new = _floats(network, product)
            if isinstance(new, str):
                note(log, "whole", product, new)
                continue
            for bias in biases:
                new = F.add(new, F.cast(bias, dtypes.float32))
        note(log, "whole", product, "sums int8, for floats alone read its sums")
        network.replace(node.output, new)
        dead.extend(detach(network, node))
    network.remove(dead)
    network.remove_dead()  # what was made for sums that were left to integers after all


def _chain(network: Network, cast: Node) -> tuple[Node, list[Value]] | None:
    """The sums of int32 that a cast reads, and the biases that are added on the way."""
    biases: list[Value] = []
    value = cast.inputs[0]
    while value.node is not None and len(value.uses) == 1 and not network.is_output(value):
        node = value.node
        if value.dtype is dtypes.int32 and isinstance(node.op, Matmul | ConvInteger):
            return node, biases
        if value.dtype is not dtypes.int32 or not isinstance(node.op, Add):
            return None
        value, bias = node.inputs if node.inputs[0].shape == value.shape else node.inputs[::-1]
        if value.shape != node.output.shape:
            return None
        biases.append(bias)
    return None


def _floats(network: Network, node: Node) -> Value | str:
    """The sums of a node as float32, or why they are left to integers."""
    op: Any = node.op
    if isinstance(op, Matmul) and (op.transpose_a or len(node.inputs[1].shape) != 2):
        return "its x is transposed, or its weight is not of two dimensions"
    outputs = 1 if isinstance(op, Matmul) and not op.transpose_b else 0
    x, weight = less_zero(node.inputs[0]), _weight(network, node.inputs[1], outputs)
    if x is None:
        return "its x is no int8 or uint8 less one zero point"
    if isinstance(weight, str):
        return weight
    shape = sizes(weight.integers)
    if (summed := math.prod(shape) // max(shape[outputs], 1)) > MOST_INT8:
        return f"sums of {summed} products of int8 do not fit into int32"
    numbers = centred(network, x)
    if isinstance(numbers, str):
        return numbers
    w = F.dequantize(weight.integers, _one(network))
    return _product(node, numbers, w, weight.more) if isinstance(op, Matmul) else _conv(node, numbers, w, weight.more)


def _product(node: Node, x: Value, w: Value, more: Array | None) -> Value:
    op: Any = node.op
    y = F.matmul(x, w, transpose_b=op.transpose_b)
    if more is None:
        return y  # type: ignore[no-any-return]
    rows = F.matmul(x, _ones(y.network, x.shape[-1], 1))
    return F.add(y, F.mul(rows, y.network.constant(more)))  # type: ignore[no-any-return]


def _conv(node: Node, x: Value, w: Value, more: Array | None) -> Value | str:
    op: Any = node.op
    attrs: dict[str, Any] = {name: getattr(op, name) for name in ("stride", "pre_padding", "post_padding", "dilation")}
    made: Any = x.node
    zero = made.inputs[2] if len(made.inputs) > 2 else None
    if zero is not None and zero.kind != "constant" and any((*op.pre_padding, *op.post_padding)):
        around = _padded(made.inputs[0], op.pre_padding, op.post_padding)
        if around is None:
            return "only a run shows the zero point that is to lie around its x"
        x = F.dequantize(around, *made.inputs[1:])
        attrs["pre_padding"] = attrs["post_padding"] = (0,) * len(op.stride)
    if more is not None and op.groups > 1:
        return "its groups have weights with a zero point"
    y = F.conv(x, w, groups=op.groups, **attrs)
    if more is None:
        return y  # type: ignore[no-any-return]
    rank, kernel = len(op.stride), w.shape[2:]
    places = F.conv(x, _ones(y.network, 1, x.shape[1], *(1,) * rank), **_plain(rank))  # sums over the channels …
    if {*kernel, *op.stride} != {1} or any((*attrs["pre_padding"], *attrs["post_padding"])):  # … and over the windows
        places = F.conv(places, y.network.constant(np.ones((1, 1, *kernel), np.float32)), **attrs)
    return F.add(y, F.mul(places, y.network.constant(more.reshape(-1, *(1,) * rank))))  # type: ignore[no-any-return]


def _plain(rank: int) -> dict[str, Any]:
    """A convolution that goes over all of x, place by place."""
    return {name: (int(name in ("stride", "dilation")),) * rank
            for name in ("stride", "pre_padding", "post_padding", "dilation")}  # fmt: skip


def _padded(q: Value, before: tuple[int, ...], after: tuple[int, ...]) -> Value | None:
    """Integers around which their zero point lies: 0, which was quantised with them."""
    node: Any = q.node
    if node is None or not isinstance(node.op, Quantize) or any(v.spec.elements != 1 for v in node.inputs[1:]):
        return None
    wide = F.pad(node.inputs[0], before=(0, 0, *before), after=(0, 0, *after), value=0.0)
    return q.network.emit(node.op, (wide, *node.inputs[1:]))  # type: ignore[no-any-return]


def _ones(network: Network, *shape: Any) -> Value:
    """A weight of int8 that sums."""
    return F.dequantize(network.constant(np.ones(shape, np.int8)), _one(network))  # type: ignore[no-any-return]


def less_zero(value: Value) -> Whole | None:
    """int32 as int8 or uint8 less its zero point."""
    node, zero = value.node, None
    if node is not None and isinstance(node.op, Sub):
        value, zero = node.inputs
        if zero.spec.elements != 1 or len(zero.shape) > len(value.shape):
            return None
        node = value.node
    if node is None or not isinstance(node.op, Cast) or node.inputs[0].dtype not in NARROW:
        return None
    return Whole(node.inputs[0], zero)


def centred(network: Network, x: Whole) -> Value | str:
    """x less its zero point as `dequantize` of what was quantised."""
    if not is_quantised(x.integers):
        return "its x is no result of quantising"
    zero = [] if x.zero is None else [_narrow(network, x.zero, x.integers.dtype)]
    if zero and isinstance(zero[0], str):
        return zero[0]
    return F.dequantize(x.integers, _one(network), *zero)  # type: ignore[no-any-return]


def _narrow(network: Network, zero: Value, kind: DType) -> Value | str:
    """A zero point in the type of its integers, of no dimension."""
    if zero.kind == "constant":
        number = int(zero.array.reshape(-1)[0])
        low, high = (0, 255) if kind is dtypes.uint8 else (-HALF, HALF - 1)
        if not low <= number <= high:
            return f"its zero point is {number}, no {kind.name}"
        return network.constant(np.array(number, kind.numpy))
    node = zero.node
    if node is None or not isinstance(node.op, Cast) or node.inputs[0].dtype is not kind:
        return "its zero point is computed in another type"
    given = node.inputs[0]
    return given if given.shape == () else F.reshape(given, ())  # type: ignore[no-any-return]


def _one(network: Network) -> Value:
    return network.constant(np.array(1, np.float32))


def _weight(network: Network, value: Value, outputs: int) -> Weight | str:
    """What int8 a stored weight is, whose outputs are dimension `outputs`."""
    node, zero = value.node, None
    if node is not None and isinstance(node.op, Sub):
        value, zero = node.inputs
        node = value.node
        if zero.kind != "constant":
            return "its weight has a zero point that is computed"
        apart = (1,) * (len(value.shape) - zero.array.ndim) + zero.array.shape
        if any(n != 1 for i, n in enumerate(apart) if i != outputs):
            return "its weight has zero points of more than its outputs"
    if value.kind == "constant":
        return _split(network, value.array.astype(np.int64) - (0 if zero is None else zero.array))
    if node is None or not isinstance(node.op, Cast):
        return "its weight is computed"
    integers = node.inputs[0]
    if integers.kind not in FIXED or integers.dtype not in NARROW:
        return "its weight is no stored int8 or uint8"
    more = np.zeros(1, np.int64) if zero is None else -zero.array.reshape(-1).astype(np.int64)
    if integers.dtype is dtypes.uint8:
        integers, more = derive(network, "signed", [integers], f"{integers.name}.signed"), more + HALF
    return Weight(integers, more.astype(np.float32) if more.any() else None)


def _split(network: Network, array: Array) -> Weight | str:
    """Known integers as int8, and what is to be added to each."""
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    more = 0 if low >= -HALF and high < HALF else low + HALF
    if high - more >= HALF:
        return f"its weight goes from {low} to {high}, farther than int8"
    return Weight(network.constant((array - more).astype(np.int8)), np.array([more], np.float32) if more else None)
