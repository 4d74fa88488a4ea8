"""Quantised tensors as integers: what convolutions and products sum, and what only moves them.

The portable form is that of `quantize` and `dequantize` around an op on floats:

    conv(dequantize(x, scale, zero), dequantize(w, scales)) + bias, …, quantize(y, scale, zero)

x is int8 or uint8 with one constant scale, and maybe one constant zero point; w is a stored int8 (or uint8 whose zero
point is 128) with one scale for all or one for each output. So sums are of int8 with int8. Here uint8 becomes int8,
what moves elements moves int8, and weights that nothing sums as integers become floats when the engine is built.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ingot import dtypes
from ingot.ir import F, Network, Node, Spec, Value
from ingot.ops.conversion import Dequantize, Quantize
from ingot.ops.lowering import MOST_INT8
from ingot.ops.movement import Concat, Permute, Reshape, Slice
from ingot.ops.pool import AvgPool, MaxPool
from ingot.passes.rewrite import Log, detach, note
from ingot.passes.weights import FIXED, derive, is_uniform, recipe_of, sizes, stored

HALF = 128  # uint8 − 128 is int8


UNPADDED = (Reshape, Permute, Slice, Concat)  # ops that move elements of any type
MOVES = (*UNPADDED, MaxPool)


class Numbers(NamedTuple):
    """What float values are made of: (integers − zero) · scale. Either may be computed: one number in a tensor."""

    integers: Value
    scale: float | Value
    zero: int | Value


class Factors(NamedTuple):
    """What a weight is made of: int8, and a scale for each output [O]."""

    integers: Value
    scales: Value


def numbers(x: Value) -> Numbers | str:
    """The int8 numbers of one scale that x is made of, or why there are none."""
    found = _one_scale(x)
    if found is None:
        return "its x is not dequantised by one scale and zero point"
    return found if found.integers.dtype is dtypes.int8 else f"its x is {found.integers.dtype.name}"


def quantised_rows(x: Value) -> tuple[Value, Value] | None:
    """The int8 numbers that x is made of, and their scales, one for each row; None where it is made otherwise."""
    made: Any = x.node
    if made is None or not isinstance(made.op, Dequantize) or made.op.group or len(made.inputs) != 2:
        return None
    numbers, scales = made.inputs
    by_rows = scales.shape == (*x.shape[:-1], 1)
    return (numbers, scales) if numbers.dtype is dtypes.int8 and by_rows and x.dtype is not dtypes.float64 else None


def _one_scale(x: Value) -> Numbers | None:
    """The integers of one scale and zero point that x is made of."""
    node = x.node
    if node is None or not isinstance(node.op, Dequantize) or node.op.group or x.dtype not in dtypes.PRECISIONS:
        return None
    integers, scale, *zero = node.inputs
    if any(v.spec.elements != 1 for v in (scale, *zero)):
        return None
    known: float | Value = float(scale.array.item()) if scale.kind == "constant" else scale
    if not isinstance(known, Value) and not (math.isfinite(known) and known > 0):
        return None
    if not zero:
        return Numbers(integers, known, 0)
    return Numbers(integers, known, int(zero[0].array.item()) if zero[0].kind == "constant" else zero[0])


def _dequantized(x: Value) -> Numbers | None:
    """The integers of one known scale and zero point that x is made of."""
    found = _one_scale(x)
    return None if found is None or isinstance(found.scale, Value) or isinstance(found.zero, Value) else found


def factors(network: Network, weight: Value, outputs: int, groups: int = 1) -> Factors:
    """What a weight is made of that has factors; its outputs are dimension `outputs`, of each of the groups."""
    node = whole_weight(weight, groups).node
    assert node is not None
    integers, scales = node.inputs[0], _source(node.inputs[1])
    parted = len(integers.shape) > len(weight.shape)
    padded = _padded(node.inputs[1].shape, len(integers.shape))
    at = outputs + parted
    each = (groups, sizes(weight)[outputs])
    numbers = np.arange(scales.spec.elements).reshape(padded[0] if parted else 1, padded[at])
    indices = np.broadcast_to(numbers, each).reshape(-1)  # of the scale of each output
    if parted:
        integers = derive(network, "reshape", [integers], f"{integers.name}.whole", shape=sizes(weight))
    if scales.kind == "constant":
        return Factors(integers, network.constant(scales.array.reshape(-1)[indices]))
    flat = derive(network, "reshape", [scales], f"{scales.name}.flat", shape=(numbers.size,))
    if numbers.size != indices.size:
        flat = derive(network, "take", [flat], f"{scales.name}.each", axis=0, indices=tuple(indices.tolist()))
    return Factors(integers, flat)


def whole_weight(weight: Value, groups: int) -> Value:
    """What a weight of a transposed convolution [C, O/groups, *K] is a reshape of, where that has the groups as a
    dimension of its own: [groups, C/groups, O/groups, *K]. So every output can have a scale. Else the weight itself."""
    node = weight.node
    if groups == 1 or node is None or not isinstance(node.op, Reshape):
        return weight
    channels, *rest = weight.shape
    return node.inputs[0] if node.inputs[0].shape == (groups, int(channels) // groups, *rest) else weight


def _padded(shape: Sequence[Any], rank: int) -> tuple[int, ...]:
    """A shape that broadcasts to one of that rank, with as many dimensions."""
    return (*(1,) * (rank - len(shape)), *map(int, shape))


def _source(scales: Value) -> Value:
    """What scales are a reshape of: with one dimension that counts, in the same order."""
    while scales.node is not None and isinstance(scales.node.op, Reshape):
        scales = scales.node.inputs[0]
    return scales


def no_factors(weight: Value, outputs: int, groups: int = 1) -> str:
    """Why a weight is not made of stored int8 with a scale for each output, or nothing. groups: of a transposed
    convolution, each of which has outputs of its own."""
    node = whole_weight(weight, groups).node
    if node is None or not isinstance(node.op, Dequantize) or node.op.group or weight.dtype not in dtypes.PRECISIONS:
        return "its weight is not dequantised"
    integers, scales, *zero = node.inputs
    if integers.dtype is not dtypes.int8 or integers.kind not in FIXED or _source(scales).kind not in FIXED:
        return "its weight is no stored int8 with stored scales"
    if any(not is_uniform(v, 0) for v in zero):
        return "its weight has a zero point"
    parted = len(integers.shape) > len(weight.shape)
    of_outputs = {0, outputs + 1} if parted else {outputs}
    if any(n != 1 for i, n in enumerate(_padded(scales.shape, len(integers.shape))) if i not in of_outputs):
        return "its weight has scales of more than its outputs"
    shape = sizes(weight)
    summed = math.prod(shape) // max(shape[outputs] * groups, 1)
    return "" if 0 < summed <= MOST_INT8 else f"sums of {summed} products of int8 do not fit into int32"


def no_recurrent_integers(node: Node) -> str:
    """Why a recurrent layer does not read the integers that its weight is dequantised of, or nothing."""
    if node.inputs[0].dtype not in dtypes.PRECISIONS:
        return f"there are no recurrent layers of {node.inputs[0].dtype.name} with them"
    return no_factors(node.inputs[1], 0)


class Sums(NamedTuple):
    """Sums of int8 with int8, and the epilogue that makes of them what sums of floats would be."""

    x: Value
    weight: Value
    extras: tuple[Value, ...]
    epilogue: tuple[Any, Any]
    outside: int


def sums(network: Network, x: Numbers, weight: Factors, outputs: int, bias: Value | None) -> Sums:
    """(Σ x·w − zero · Σ w) · (scale of x · scales of w) + bias. A convolution whose zero point is computed has no
    padding."""
    steps: list[tuple[Any, ...]] = [("input", "float32", 0)]
    extras: list[Value] = []

    def read(operand: Value) -> int:
        extras.append(operand)
        steps.append(("input", "float32", len(extras)))
        return len(steps) - 1

    def then(name: str, operand: Value) -> None:
        last = len(steps) - 1
        steps.append((name, "float32", last, read(operand)))

    zero = x.zero
    if isinstance(zero, Value) or zero:
        turned = weight.integers
        if outputs:
            axes = (outputs, *(i for i in range(len(turned.shape)) if i != outputs))
            turned = derive(network, "transpose", [turned], f"{turned.name}.outputs", axes=axes)
        factor = -1 if isinstance(zero, Value) else -zero
        total = derive(network, "row_sums", [turned], f"{weight.integers.name}.sums", factor=factor)
        if isinstance(zero, Value):
            first, second = read(total), read(_number(zero))
            steps.extend([("mul", "float32", first, second), ("add", "float32", 0, second + 1)])
        else:
            then("add", total)
    known = x.scale if not isinstance(x.scale, Value) else 1.0
    if not (known == 1 and is_uniform(weight.scales, 1)):
        then("mul", _times(network, weight.scales, known))
    if isinstance(x.scale, Value):
        then("mul", _number(x.scale))
    if bias is not None:
        then("add", bias)
    around = 0 if isinstance(zero, Value) else zero
    return Sums(x.integers, weight.integers, tuple(extras), (tuple(steps), (len(steps) - 1,)), around)


def _number(value: Value) -> Value:
    """One computed number as float32 of no dimension."""
    value = value if value.shape == () else F.reshape(value, ())
    return F.cast(value, dtypes.float32)  # type: ignore[no-any-return]


def _times(network: Network, scales: Value, number: float) -> Value:
    if scales.kind == "constant":
        return network.constant((scales.array * np.float32(number)).astype(np.float32))
    return derive(network, "times", [scales], f"{scales.name}.times", number=number)


# ------------------------------------------------------------------------------------------------------------- passes


def signed(network: Network, log: Log) -> None:
    """uint8 that is quantised or stored, and dequantised, becomes int8: 128 less, as its zero point."""
    dead: list[Node] = []
    made: dict[Value, Value] = {}
    for node in list(network.nodes):
        if not isinstance(node.op, Dequantize) or node.op.group or node.inputs[0].dtype is not dtypes.uint8:
            continue
        q, scale, *zero = node.inputs
        found = _as_signed(network, q, made)
        if found is None:
            note(log, "signed", node, "its uint8 is neither quantised nor stored")
            continue
        with network.insert_before(node):
            new = network.emit(node.op, (found, scale, *_signed_zero(network, zero)))
        network.replace(node.output, new)
        dead.extend(detach(network, node))
    network.remove(dead)


def _as_signed(network: Network, q: Value, made: dict[Value, Value]) -> Value | None:
    """uint8 less 128 as int8, where that is made at once."""
    if q not in made:
        found = _made_signed(network, q, made)
        if found is None:
            return None
        made[q] = found
    return made[q]


def _made_signed(network: Network, q: Value, made: dict[Value, Value]) -> Value | None:
    if q.kind in FIXED:
        return derive(network, "signed", [q], f"{q.name}.signed")
    node = q.node
    if node is not None and isinstance(node.op, UNPADDED):
        moved = [found for v in node.inputs if (found := _as_signed(network, v, made)) is not None]
        if len(moved) < len(node.inputs):
            return None
        with network.insert_before(node):
            return network.emit(node.op, tuple(moved))  # type: ignore[no-any-return]
    if node is None or not isinstance(node.op, Quantize):
        return None
    op = dataclasses.replace(node.op, dtype=dtypes.int8, minimum=node.op.minimum - HALF, maximum=node.op.maximum - HALF)
    with network.insert_before(node):
        x, scale, *zero = node.inputs
        return network.emit(op, (x, scale, *_signed_zero(network, zero)))  # type: ignore[no-any-return]


def is_quantised(q: Value) -> bool:
    """Whether int8 comes of one or more `quantize`, or uint8 that `signed` turns into int8."""
    node = q.node
    if node is not None and isinstance(node.op, UNPADDED):
        return all(map(is_quantised, node.inputs))
    return node is not None and isinstance(node.op, Quantize) and q.dtype in (dtypes.int8, dtypes.uint8)


def _signed_zero(network: Network, zero: list[Value]) -> tuple[Value, ...]:
    """The zero point of what is 128 less; none was 0, and none is where that is all."""
    if not zero:
        return (network.constant(np.array(-HALF, np.int8)),)
    (given,) = zero
    if given.kind == "constant":
        found = (given.array.astype(np.int16) - HALF).astype(np.int8)
        return () if not found.any() else (network.constant(found),)
    wide = F.sub(F.cast(given, dtypes.int32), network.constant(np.array(HALF, np.int32)))
    return (F.cast(wide, dtypes.int8),)


def integers(network: Network, log: Log) -> None:
    """What moves, compares or averages dequantised numbers does so with the integers, and what is quantised as it was
    before is left as it was."""
    dead: list[Node] = []
    for node in list(network.nodes):
        if isinstance(node.op, AvgPool):
            new = _averaged(network, node)
        else:
            new = _moved(network, node) if isinstance(node.op, MOVES) else _again(node)
        if new is None:
            continue
        note(log, "integers", node, "on the integers")
        network.replace(node.output, new)
        dead.extend(detach(network, node))
    network.remove(dead)


def _moved(network: Network, node: Node) -> Value | None:
    """A move of dequantised numbers as a move of integers, dequantised then."""
    found = [_dequantized(v) for v in node.inputs]
    first = found[0] if found else None
    if first is None or first.integers.kind in FIXED or any(f is None or f[1:] != first[1:] for f in found):
        return None
    if any(f.integers.dtype is not first.integers.dtype for f in found if f is not None):
        return None
    if isinstance(node.op, MaxPool) and first.integers.dtype is not dtypes.int8:
        return None
    maker: Any = node.inputs[0].node
    scalars = tuple(network.constant(v.array.reshape(())) for v in maker.inputs[1:])
    with network.insert_before(node):
        moved = network.emit(node.op, tuple(f.integers for f in found if f is not None))
        return network.emit(maker.op, (moved, *scalars))  # type: ignore[no-any-return]


def _averaged(network: Network, node: Node) -> Value | None:
    """The means of dequantised int8 as those of the integers, less the zero point, times the scale. Zeros around x are
    no zero points, and neither is what a divisor of its own leaves out."""
    op: Any = node.op
    found = _one_scale(node.inputs[0])
    if found is None or isinstance(found.scale, Value) or isinstance(found.zero, Value):
        return None
    if found.integers.kind in FIXED or found.integers.dtype is not dtypes.int8:
        return None
    if found.zero and (op.divisor is not None or any((*op.pre_padding, *op.post_padding))):
        return None
    with network.insert_before(node):
        means = network.emit(op, (found.integers,))
        if found.zero:
            means = F.sub(means, np.float32(found.zero))
        return F.cast(F.mul(means, np.float32(found.scale)), node.output.dtype)  # type: ignore[no-any-return]


def _again(node: Node) -> Value | None:
    """The integers that a `quantize` gives back, as they were made by the same scale, zero point and range."""
    if not isinstance(node.op, Quantize):
        return None
    x, scale, *zero = node.inputs
    found = _dequantized(x)
    if found is None or found.integers.dtype is not node.op.dtype or x.dtype is not dtypes.float32:
        return None
    known = [v.kind == "constant" and v.array.size == 1 for v in (scale, *zero)]
    if not all(known) or scale.array.item() != found.scale or (zero[0].array.item() if zero else 0) != found.zero:
        return None
    low, high = _range(found.integers)
    return found.integers if node.op.minimum <= low and high <= node.op.maximum else None


def _range(q: Value) -> tuple[int, int]:
    """The smallest and largest number that may occur."""
    node = q.node
    if node is not None and isinstance(node.op, Quantize):
        return node.op.minimum, node.op.maximum
    if node is not None and isinstance(node.op, MOVES):
        ranges = [_range(v) for v in node.inputs]
        return min(low for low, _ in ranges), max(high for _, high in ranges)
    return (0, 255) if q.dtype is dtypes.uint8 else (-HALF, HALF - 1)


def weights(declines: Callable[[Node, Value], str]) -> Callable[[Network, Log], None]:
    """A pass that turns stored integers into stored floats where no reader takes the integers; `declines` says why one
    does not, or nothing."""

    def run(network: Network, log: Log) -> None:
        for node in list(network.nodes):
            if not isinstance(node.op, Dequantize) or _not_stored(node):
                continue
            readers = {user: why for user in node.output.uses if (why := declines(user, node.output))}
            if not readers or network.is_output(node.output):
                continue
            reader, why = next(iter(readers.items()))
            name, dtype = node.inputs[0].name, node.op.dtype.name
            note(log, "weights as floats", reader, f"{name} becomes {dtype} in the engine: {why}")
            with network.insert_before(node):
                made = _floats(network, node)
            for user in readers:
                network.rewire(user, tuple(made if v is node.output else v for v in user.inputs))
        network.remove_dead()

    return run


def _not_stored(node: Node) -> bool:
    """Whether a `dequantize` is not that of a parameter with a scale that a recipe can take."""
    q, scale, *zero = node.inputs
    op: Any = node.op
    if all(v.kind == "constant" for v in node.inputs):
        return False
    if op.group or q.kind != "parameter" or q.dtype.bits < 8 or any(v.kind != "constant" for v in zero):
        return True
    uniform = not zero or bool((zero[0].array == zero[0].array.reshape(-1)[0]).all())
    scale = _source(scale)
    one = scale.kind == "constant" and scale.array.size == 1
    return not uniform or not (scale.kind == "parameter" or one)


def _floats(network: Network, node: Node) -> Value:
    q, scale, *zero = node.inputs
    op: Any = node.op
    if all(v.kind == "constant" for v in node.inputs):
        return network.constant(op.reference(*(v.array for v in node.inputs)))
    shape, scale = sizes(scale), _source(scale)
    shift = int(zero[0].array.reshape(-1)[0]) if zero else 0
    args = {"dtype": op.dtype.name, "zero": shift}
    name = f"{q.name}.{op.dtype.name}"
    if scale.kind == "parameter":
        scale = scale if scale.shape == shape else derive(
            network, "reshape", [scale], f"{scale.name}.reshaped", shape=shape)  # fmt: skip
        return derive(network, "dequantize", [q, scale], name, **args, scale=1.0)
    recipe = recipe_of(q).then("dequantize", **args, scale=float(scale.array.item()))
    return stored(network, recipe, Spec(q.shape, op.dtype), name)
