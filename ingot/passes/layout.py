"""Layout: weights in the order in which the kernels of the target read them, each stored once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ingot import dtypes
from ingot.ir import F, Network, Node, Spec, Value
from ingot.ir.recipe import combine
from ingot.ops.fused import FusedLinear
from ingot.ops.fused_spatial import FusedConv
from ingot.ops.indexing import Embedding
from ingot.ops.layouts import PLAIN, LaidOut
from ingot.ops.mixture import Moe
from ingot.ops.panels import PANEL, packed_shape
from ingot.ops.product import Matmul
from ingot.passes.rewrite import Log, detach, note
from ingot.passes.weights import derive, joined_name, recipe_of, sizes, stored

FIXED = ("parameter", "constant")  # kinds of values that can be stored in any order


def pack(network: Network, log: Log) -> None:
    """The weights of products and convolutions in panels of 32 outputs; an embedding whose table is such a weight reads
    the panels."""
    dead: list[Node] = []
    packed: dict[Value, Value] = {}  # a weight that is packed by itself → its panels
    for node in list(network.nodes):
        if not isinstance(node.op, FusedLinear | FusedConv) or node.inputs[1].kind not in FIXED:
            continue
        with network.insert_before(node):
            result = _packed_linear(network, node, packed) if isinstance(node.op, FusedLinear) else _packed_conv(
                network, node)  # fmt: skip
        network.replace(node.output, result)
        dead.extend(detach(network, node))
    for node in list(network.nodes):
        if isinstance(node.op, Embedding) and node.inputs[1] in packed and node.inputs[1].dtype is not dtypes.int4:
            n, k = sizes(node.inputs[1])
            with network.insert_before(node):
                result = laid_out(node, [("panels", (1,), n, k)], [packed[node.inputs[1]]])
            note(log, "pack", node, "reads the panels of the tied product, so that the table is stored once")
            network.replace(node.output, result)
            dead.extend(detach(network, node))
    for node in list(network.nodes):
        if isinstance(node.op, Moe) and all(v.kind == "parameter" for v in node.inputs[2:]):
            with network.insert_before(node):
                result = _packed_moe(network, node)
            network.replace(node.output, result)
            dead.extend(detach(network, node))
    network.remove(dict.fromkeys(dead))


def _packed_moe(network: Network, node: Node) -> Value:
    """The panels of all experts one after the other: gates and ups alternating, and downs."""
    x, router, *weights = node.inputs
    count = len(weights) // 3
    gates, ups, downs = (weights[i * count : (i + 1) * count] for i in range(3))
    (inner, hidden), stem = sizes(gates[0]), joined_name([gates[0].name, gates[-1].name])
    joined = []
    for name, groups, parts in (("gate_up", zip(gates, ups, strict=True), 2), ("down", zip(downs, strict=True), 1)):
        panels = [combine("pack_panels", [recipe_of(v) for v in group]) for group in groups]
        shape = packed_shape(x.dtype, *((inner, hidden) if parts == 2 else (hidden, inner)), parts)
        spec = Spec(x.dtype, (count * shape[0], *shape[1:]))
        joined.append(stored(network, combine("concat", panels, axis=0), spec, f"{stem}.{name}.packed"))
    places = tuple(range(2, 2 + 3 * count))
    return laid_out(node, [
        (PLAIN, (1,)), ("panels of experts", places[: 2 * count], inner, hidden, count),
        ("panels of experts", places[2 * count :], hidden, inner, count),
    ], [router, *joined])  # fmt: skip


def _packed_linear(network: Network, node: Node, packed: dict[Value, Value]) -> Value:
    op: Any = node.op
    weights = node.inputs[1 : op.fixed : op.each]
    panels = derive(network, "pack_panels", weights, f"{joined_name([w.name for w in weights])}.packed")
    if op.parts == 1:
        packed[weights[0]] = panels
    stored = [panels]
    if op.group:
        scales = node.inputs[2 : op.fixed : op.each]
        stored.append(derive(network, "pack_panels", scales, f"{joined_name([s.name for s in scales])}.packed"))
    n, k = sizes(weights[0])
    places = tuple(range(1, op.fixed))
    layouts = [("panels", places[i :: op.each], n, inputs) for i, inputs in enumerate((k, k // (op.group or 1)))]
    return laid_out(node, layouts[: op.each], stored, node.inputs[op.fixed :])


def _packed_conv(network: Network, node: Node) -> Value:
    op: Any = node.op
    weight = node.inputs[1]
    panels = packed_groups(network, weight, op.groups, f"{weight.name}.packed")
    return laid_out(node, [("panels of groups", (1,), *sizes(weight), op.groups)], [panels], node.inputs[2:])


def laid_out(node: Node, layouts: Sequence[Any], stored: Sequence[Value], rest: Sequence[Value] = ()) -> Value:
    """The node's op with stored operands in the place of those after the first; `rest` follows as it is."""
    op = LaidOut(inner=node.op, layouts=((PLAIN, (0,)), *layouts))
    return node.output.network.emit(op, (node.inputs[0], *stored, *rest))  # type: ignore[no-any-return]


def packed_groups(network: Network, weight: Value, groups: int, name: str) -> Value:
    """The panels of a weight [outputs, K], where every group of outputs begins a panel."""
    outputs, k = sizes(weight)
    each = outputs // groups
    if groups > 1 and each % PANEL:
        split = derive(network, "reshape", [weight], f"{weight.name}.groups", shape=(groups, each, k))
        padded = derive(network, "pad", [split], f"{weight.name}.padded", after=(0, -each % PANEL, 0))
        rows = groups * (each + -each % PANEL)
        weight = derive(network, "reshape", [padded], f"{weight.name}.panels", shape=(rows, k))
    return derive(network, "pack_panels", [weight], name)


def strides(network: Network, log: Log) -> None:
    """Transposed operands of general products become views: the kernel reads strides."""
    dead: list[Node] = []
    for node in list(network.nodes):
        op: Any = node.op
        if not isinstance(op, Matmul) or not (op.transpose_a or op.transpose_b):
            continue
        with network.insert_before(node):
            a, b = (
                _transposed(v) if t else v for v, t in zip(node.inputs, (op.transpose_a, op.transpose_b), strict=True)
            )
            new = F.matmul(a, b, out_dtype=node.output.dtype)
        network.replace(node.output, new)
        dead.extend(detach(network, node))
    network.remove(dict.fromkeys(dead))


def _transposed(value: Value) -> Value:
    rank = len(value.shape)
    return F.permute(value, (*range(rank - 2), rank - 1, rank - 2))  # type: ignore[no-any-return]


def settle(network: Network, log: Log) -> None:
    """Every stored weight gets its recipe, also those that are stored as they are."""
    for value in network.parameters:
        value.recipe = recipe_of(value)
