"""SmoothQuant: channels that are large in the rows of a product become smaller there, and larger in its weights.

    norm(x, g) · Wᵀ  =  norm(x, g / s) · (W · s)ᵀ

Rows that become int8 by their largest magnitude then lose less of their other channels. The factors s, one for each
channel, are a parameter of the portable network, which has both products with them. Each is a power of two: in floats
no number changes, unless it leaves its type's range. What makes the rows is a norm with a weight, or the product of
something with rows of a linear layer (up_proj), whose outputs then take 1 / s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ingot import dtypes
from ingot.ir import F, Network, Node, Spec, Value
from ingot.ops.binary import Add, Mul
from ingot.ops.elementwise import Reciprocal
from ingot.ops.movement import Reshape
from ingot.ops.norm import LayerNorm, RmsNorm
from ingot.ops.product import Matmul
from ingot.passes.clone import clone
from ingot.passes.rewrite import Log, detach, note
from ingot.passes.weights import derive, sizes

Array = np.ndarray[Any, Any]

LIMIT = 12  # of the exponents: 2^±12 keeps weights of usual sizes within float16's range


class Place(NamedTuple):
    """Rows that may be smoothed: what they are, what makes them, and the products that take them.

    makers: operands (node, number, axis) that take 1 / s along an axis. products: whose weights take s.
    """

    name: str
    rows: Value
    makers: tuple[tuple[Node, int, int], ...]
    products: tuple[Node, ...]


def places(network: Network, log: Log) -> list[Place]:
    """The rows of a network in floats that may be smoothed, in order; the log says of other norms why not."""
    found = []
    for node in network.nodes:
        if len(node.outputs) != 1 or node.output.dtype not in dtypes.PRECISIONS:
            continue
        makers = _makers(node)
        if makers is None:
            continue
        if why := _unfit(network, node, makers):
            if isinstance(node.op, RmsNorm | LayerNorm):
                note(log, "smooth", node, why)
            continue
        (maker, number, _) = makers[0]
        name = f"{maker.inputs[number].name.removesuffix('.weight')}.smooth"
        found.append(Place(name, node.output, makers, tuple(node.output.uses)))
    return found


def smoothed(network: Network, exponents: Mapping[str, Array]) -> tuple[Network, dict[str, Array]]:
    """A copy whose places of these names are smoothed by powers of two, and the values of its new parameters."""
    new = clone(network)
    values: dict[str, Array] = {}
    for place in places(new, []):
        if place.name not in exponents:
            continue
        factors = np.exp2(exponents[place.name].astype(np.float32)).astype(place.rows.dtype.numpy)
        values[place.name] = factors
        factor = new.parameter(place.name, Spec(factors.shape, place.rows.dtype))
        for node, number, axis in place.makers:
            _multiply(new, node, number, axis, factor, inverse=True)
        for node in place.products:
            _multiply(new, node, 1, _inputs(node), factor)
    return new, values


def factors(network: Network) -> list[Value]:
    """The factors of a smoothed network. Weights of integers show them no more, and are made of them again in a refit,
    so that they are kept beside those."""
    found = (scaled for node in network.nodes if (scaled := _scaled(node)) is not None)
    return list(dict.fromkeys(factor for _, factor, _, _ in found))


def scaled_weights(network: Network, log: Log) -> None:
    """Weights times a vector along one of their axes, or times its reciprocals, become weights of their own."""
    dead: list[Node] = []
    for node in list(network.nodes):
        found = _scaled(node)
        if found is None:
            continue
        weight, factor, axis, inverse = found
        if inverse:
            factor = derive(network, "reciprocal", [factor], f"{factor.name}.reciprocal")
        new = derive(network, "scale", [weight, factor], f"{weight.name}.smoothed", axis=axis)
        note(log, "scaled weights", node, f"{weight.name} times {factor.name}")
        network.replace(node.output, new)
        dead.extend(detach(network, node))
    network.remove(dead)


def _makers(node: Node) -> tuple[tuple[Node, int, int], ...] | None:
    """The operands that may take 1 / s for rows that a node gives; none: nothing may. None: it gives no such rows."""
    op = node.op
    if isinstance(op, RmsNorm | LayerNorm):
        given = [i for i in range(1, len(node.inputs)) if node.inputs[i].spec is not None]
        held = bool(given) and all(node.inputs[i].kind == "parameter" for i in given)
        return tuple((node, i, 0) for i in given) if held and not getattr(op, "shift", 0) else ()
    if not isinstance(op, Mul) or node.inputs[0].shape != node.inputs[1].shape:
        return None
    return next((found for v in reversed(node.inputs) if (found := _linear(v))), None)


def _linear(value: Value) -> tuple[tuple[Node, int, int], ...]:
    """The weight of a linear layer that only this value is made with, and its bias."""
    found: list[tuple[Node, int, int]] = []
    node = value.node
    if node is None or len(value.uses) != 1:
        return ()
    if isinstance(node.op, Add) and node.inputs[1].kind == "parameter" and len(node.inputs[1].shape) == 1:
        found.append((node, 1, 0))
        value, node = node.inputs[0], node.inputs[0].node
    if node is None or len(value.uses) != 1 or _no_matrix(node):
        return ()
    return ((node, 1, 1 - _inputs(node)), *found)


def _no_matrix(node: Node) -> str:
    """Why a node is no product of rows with a matrix that only it reads, or nothing."""
    op: Any = node.op
    if not isinstance(op, Matmul) or op.transpose_a:
        return f"{op.name} reads its rows"
    weight = node.inputs[1]
    if weight.kind != "parameter" or len(weight.shape) != 2 or weight.dtype is not node.inputs[0].dtype:
        return "a product's weight is no stored matrix"
    return "" if len(weight.uses) == 1 else f"{weight.name} is read elsewhere too"


def _inputs(product: Node) -> int:
    """The axis of a product's weight that its rows are summed over."""
    return 1 if product.op.transpose_b else 0  # type: ignore[attr-defined]


def _unfit(network: Network, node: Node, makers: tuple[tuple[Node, int, int], ...]) -> str:
    """Why rows are not smoothed, or nothing."""
    rows = node.output
    if not makers:
        return "it has no weight that could take the factors"
    if network.is_output(rows) or not rows.uses:
        return "its rows are a result"
    for maker, number, axis in makers:
        if sizes(maker.inputs[number])[axis] != rows.shape[-1]:
            return "its weight is not that of all channels"
    for reader in rows.uses:
        if why := _no_matrix(reader):
            return why
        if reader.inputs[0] is not rows or reader.inputs[1] is rows:
            return "a product takes its rows as weights"
    return ""


def _multiply(network: Network, node: Node, number: int, axis: int, factor: Value, inverse: bool = False) -> None:
    """Puts an operand times the factor along an axis, or times its reciprocals, in the operand's place."""
    with network.insert_before(node):
        old = node.inputs[number]
        by = F.reciprocal(factor) if inverse else factor
        by = F.reshape(by, (old.shape[0], 1)) if len(old.shape) == 2 and axis == 0 else by
        new = F.mul(old, by)
    network.rewire(node, tuple(new if i == number else v for i, v in enumerate(node.inputs)))


def _scaled(node: Node) -> tuple[Value, Value, int, bool] | None:
    """A weight, the vector that it is multiplied with, along which axis, and whether by its reciprocals."""
    if not isinstance(node.op, Mul) or node.inputs[0].kind != "parameter" or len(node.inputs[0].uses) != 1:
        return None
    weight, by = node.inputs
    axis = len(weight.shape) - 1
    if by.node is not None and isinstance(by.node.op, Reshape) and by.shape == (*weight.shape[:1], 1):
        by, axis = by.node.inputs[0], 0
    inverse = by.node is not None and isinstance(by.node.op, Reciprocal)
    by = by.node.inputs[0] if inverse and by.node is not None else by
    if by.kind != "parameter" or len(weight.shape) not in (1, 2) or by.shape != (weight.shape[axis],):
        return None
    return (weight, by, axis, inverse) if by.dtype is weight.dtype else None
