"""Experts: the weights of a mixture as its kernel reads them, all gates and ups together and all downs together.

A set of weights is of floats, or all of it of int8 or float8 with a scale for each output, or of int4 with those of
groups; integers may have zero points. Where it is neither, it becomes floats before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ingot import dtypes
from ingot.ir import Network, Node, Spec, Value
from ingot.ir.recipe import combine
from ingot.ops.conversion import Dequantize
from ingot.ops.lowering import INT4_GROUPS, Lowered, plain
from ingot.ops.mixture import Moe
from ingot.ops.panels import packed_dtype, packed_shape
from ingot.passes.integers import factors
from ingot.passes.rewrite import Log, detach, note
from ingot.passes.weights import derive, joined_name, recipe_of, sizes, stored

NARROW = (dtypes.int8, dtypes.float8_e4m3fn)


def experts(network: Network, log: Log) -> None:
    """The weights of mixtures in panels of 32 outputs, those of integers beside their scales."""
    dead: list[Node] = []
    for node in list(network.nodes):
        if not isinstance(node.op, Moe):
            continue
        if why := _kept(node):
            note(log, "experts", node, why)
            continue
        with network.insert_before(node):
            result = _packed(network, node)
        network.replace(node.output, result)
        dead.extend(detach(network, node))
    network.remove(dead)
    network.remove_dead()


UNREAD = "its weights are not stored, or as integers with other scales than its kernel reads"
UNLIKE = "its experts are stored in several forms"


def no_integers(node: Node, weight: Value) -> str:
    """Why a mixture does not read the integers that a weight is dequantised of, or nothing."""
    form = _form(weight)
    if form is None:
        return UNREAD
    first = next(weights[0] for weights in weight_sets(node) if any(v is weight for v in weights))
    return "" if form == _form(first) else UNLIKE


def _kept(node: Node) -> str:
    """Why a mixture is left as it is, or nothing."""
    for weights in weight_sets(node):
        found = {_form(v) for v in weights}
        if None in found:
            return UNREAD
        if len(found) > 1:
            return UNLIKE
    return ""


def weight_sets(node: Node) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """Gates and ups, and downs."""
    count = 2 * (len(node.inputs) - 2) // 3
    return node.inputs[2 : 2 + count], node.inputs[2 + count :]


def _form(weight: Value) -> tuple[Any, ...] | None:
    """How a weight is stored: its type, the group and type of its scales, and whether it has zero points; None where no
    kernel reads it."""
    made = weight.node
    if weight.kind == "parameter":
        return (weight.dtype,)
    if made is None or not isinstance(made.op, Dequantize) or len(made.given) < 2:
        return None
    (numbers, scales, *zeros), group = made.inputs, made.op.group
    if any(v.kind != "parameter" for v in made.inputs) or len(numbers.shape) != 2:
        return None
    outputs, inputs = sizes(numbers)
    each = (outputs, inputs // group if group else 1)
    if any(z.dtype is not dtypes.int8 or not sizes(z) == sizes(scales) == each for z in zeros):
        return None
    if numbers.dtype is dtypes.int4 and group in INT4_GROUPS:
        return numbers.dtype, group, scales.dtype, bool(zeros)
    one_each = sizes(scales) in ((outputs, 1), (1, 1), (1,), ())
    kinds = (dtypes.int8,) if zeros else NARROW
    read = numbers.dtype in kinds and not group and one_each
    return (numbers.dtype, inputs, scales.dtype, bool(zeros)) if read else None


def _packed(network: Network, node: Node) -> Value:
    """The panels of all experts one after the other: gates and ups alternating, and downs."""
    x, router, *_ = node.inputs
    operands, layouts, first = [x, router], [*plain(2)], 2
    stem = _stem(node)
    for name, weights in zip(("gate_up", "down"), weight_sets(node), strict=True):
        made, layout = _stored(network, f"{stem}.{name}", weights, tuple(range(first, first + len(weights))), name)
        operands += made
        layouts.append(layout)
        first += len(weights)
    return network.emit(Lowered(inner=node.op, layouts=tuple(layouts)), tuple(operands))  # type: ignore[no-any-return]


def _stem(node: Node) -> str:
    gates = node.inputs[2 : 2 + (len(node.inputs) - 2) // 3]
    names = [(v if v.node is None else v.node.inputs[0]).name for v in (gates[0], gates[-1])]
    return joined_name(names)


def _stored(
    network: Network, name: str, weights: Sequence[Value], places: tuple[int, ...], which: str
) -> tuple[list[Value], tuple[Any, ...]]:
    """What a set is stored as, and its layout."""
    parts = 2 if which == "gate_up" else 1
    count = len(weights) // parts
    order = [weights[e + part * count] for e in range(count) for part in range(parts)]
    shape = (*sizes(weights[0]), count)
    if weights[0].kind == "parameter":
        return [_panels(network, order, parts, f"{name}.packed")], ("panels of experts", places, *shape)
    made: Any = weights[0].node
    numbers = [v.node.inputs[0] for v in order]
    panels = _panels(network, numbers, parts, f"{name}.packed")
    if made.op.group:
        scales = _panels(network, [v.node.inputs[1] for v in order], parts, f"{name}.scales.packed")
    else:
        each = [factors(network, v, 0).scales for v in order]
        recipe = combine("concat", [recipe_of(v) for v in each], axis=0)
        scales = stored(network, recipe, Spec((len(each) * shape[0],), dtypes.float32), f"{name}.scales")
    layout = (places, *shape, made.op.group or shape[1])
    if len(made.given) == 2:
        return [panels, scales], ("scaled panels of experts", *layout)
    added = [derive(network, "zero_products", v.node.inputs[1:], f"{v.node.inputs[2].name}.products") for v in order]
    zeros = _panels(network, added, 1, f"{name}.zeros.packed")
    return [panels, scales, zeros], ("shifted panels of experts", *layout)


def _panels(network: Network, weights: Sequence[Value], parts: int, name: str) -> Value:
    """The panels of weights, of each expert's together."""
    dtype, (n, k) = weights[0].dtype, sizes(weights[0])
    each = [weights[i : i + parts] for i in range(0, len(weights), parts)]
    panels = [combine("pack_panels", [recipe_of(v) for v in group]) for group in each]
    first, *rest = packed_shape(dtype, n, k, parts)
    spec = Spec((len(each) * first, *rest), packed_dtype(dtype))
    return stored(network, combine("concat", panels, axis=0), spec, name)
