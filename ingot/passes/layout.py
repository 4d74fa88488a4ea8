"""Layout: weights in the order in which the kernels of the target read them, each stored once."""

from __future__ import annotations

import dataclasses
from typing import Any

from ingot import dtypes
from ingot.ir import F, Network, Node, Op, Value
from ingot.ops.indexing import Embedding
from ingot.ops.lowering import Lowered, plain
from ingot.ops.panels import PANEL
from ingot.ops.product import Matmul
from ingot.ops.recurrent import Recurrent
from ingot.passes.integers import Factors, factors, no_recurrent_integers
from ingot.passes.rewrite import Log, detach, note
from ingot.passes.weights import FIXED, derive, joined_name, recipe_of, sizes


def pack(network: Network, log: Log) -> None:
    """The weights of products in panels of 32 outputs; an embedding whose table is such a weight reads the panels."""
    dead: list[Node] = []
    packed: dict[Value, Value] = {}  # a weight that is packed by itself → its panels
    for node in list(network.nodes):
        if not is_product(node.op) or node.inputs[1].kind not in FIXED:
            continue
        with network.insert_before(node):
            result = _packed_product(network, node, packed)
        network.replace(node.output, result)
        dead.extend(detach(network, node))
    for node in list(network.nodes):
        if isinstance(node.op, Embedding) and node.inputs[1] in packed and node.inputs[1].dtype is not dtypes.int4:
            n, k = sizes(node.inputs[1])
            with network.insert_before(node):
                op = Lowered(inner=node.op, layouts=(*plain(1), ("panels", (1,), n, k)))
                result = network.emit(op, (node.inputs[0], packed[node.inputs[1]]))
            note(log, "pack", node, "reads the panels of the tied product, so that the table is stored once")
            network.replace(node.output, result)
            dead.extend(detach(network, node))
    network.remove(dead)


def recurrent(network: Network, log: Log) -> None:
    """The weights of recurrent layers in panels, every gate beginning one, of int8 beside its scales; projections as
    those of products are."""
    dead: list[Node] = []
    for node in list(network.nodes):
        op = node.op
        if not isinstance(op, Recurrent) or node.inputs[0].dtype not in dtypes.PRECISIONS:
            continue
        weights = {i: v for i, v in enumerate(node.inputs) if i in op.weights and v.spec is not None}
        scaled = None if no_recurrent_integers(node) else factors(network, node.inputs[1], 0)
        if scaled is not None:
            weights[1] = scaled.integers
        if loose := [v for v in weights.values() if v.kind not in FIXED]:
            note(log, "recurrent", node, f"%{loose[0].name} is computed, so it is packed at every run")
            continue
        with network.insert_before(node):
            results = _packed_recurrent(network, node, op, weights, scaled)
        for old, new in zip(node.outputs, results, strict=True):
            network.replace(old, new)
        dead.extend(detach(network, node))
    network.remove(dead)


def _packed_recurrent(
    network: Network, node: Node, op: Recurrent, weights: dict[int, Value], scaled: Factors | None
) -> tuple[Value, ...]:
    layouts: list[Any] = list(plain(len(node.inputs)))
    operands = list(node.inputs)
    for i, weight in weights.items():
        first = i == op.weights[0]
        layouts[i] = ("panels of gates" if first else "panels", (i,), *sizes(weight))
        operands[i] = packed_groups(network, weight, op.gates_each if first else 1, f"{weight.name}.packed")
    if scaled is not None:
        layouts[1] = ("scaled panels of gates", *layouts[1][1:])
        operands.insert(2, scaled.scales)
    return network.emit(Lowered(inner=op, layouts=tuple(layouts)), tuple(operands))  # type: ignore[no-any-return]


def is_product(op: Op) -> bool:
    """Whether an op is a lowered product by weights that still lie as they are."""
    return isinstance(op, Lowered) and isinstance(op.inner, Matmul) and not op.packed


def _packed_product(network: Network, node: Node, packed: dict[Value, Value]) -> Value:
    op: Any = node.op
    each = 2 if op.group else 1  # operands of one weight
    layouts, stored = [], []
    for i in range(each):
        parts = node.inputs[1 + i : op.held : each]
        stored.append(derive(network, "pack_panels", parts, f"{joined_name([v.name for v in parts])}.packed"))
        layouts.append(("panels", tuple(range(1 + i, op.held, each)), *sizes(parts[0])))
    if op.parts == 1:
        packed[node.inputs[1]] = stored[0]
    made = dataclasses.replace(op, layouts=(*plain(1), *layouts))
    return network.emit(made, (node.inputs[0], *stored, *node.inputs[op.held :]))  # type: ignore[no-any-return]


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
    network.remove(dead)


def _transposed(value: Value) -> Value:
    rank = len(value.shape)
    return F.permute(value, (*range(rank - 2), rank - 1, rank - 2))  # type: ignore[no-any-return]


def settle(network: Network, log: Log) -> None:
    """Every stored weight gets its recipe, also those that are stored as they are."""
    for value in network.parameters:
        value.recipe = recipe_of(value)
