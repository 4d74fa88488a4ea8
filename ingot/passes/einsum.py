"""einsum becomes matrix products that read their operands as they lie in memory."""

from __future__ import annotations

from typing import Any

from ingot.dims import Dimension
from ingot.ir import F, Network, Node, Value
from ingot.ir.window import Window, dense_strides, view
from ingot.ops.contraction import Einsum, Views, contract
from ingot.passes.rewrite import Log, detach, note
from ingot.passes.weights import derive


def einsum(network: Network, log: Log) -> None:
    """Every einsum becomes views and products; the order of their dimensions follows the strides of the operands."""
    dead: list[Node] = []
    for node in list(network.nodes):
        op: Any = node.op
        if not isinstance(op, Einsum):
            continue
        strides = [window_of(v).stride for v in node.inputs]
        before = set(network.nodes)
        with network.insert_before(node):
            new = contract(op.equation, node.inputs, strides, _views(network))
        made = [n.op.name for n in network.nodes if n not in before]
        note(log, "einsum", node, f"{op.equation} as {', '.join(made) or 'a view'}")
        network.replace(node.output, new)
        dead.extend(detach(network, node))
    network.remove(dead)


def window_of(value: Value) -> Window:
    """How a value will lie in memory: results of views in their operand's, others dense."""
    node = value.node
    if node is not None and node.op.is_view:
        (shown,) = node.inputs
        found = view(window_of(shown), node)
        if found is not None:
            return found
    return Window(0, value.shape, dense_strides(value.shape))


def _views(network: Network) -> Views:
    """Views of parameters are parameters, stored in that order; others are views."""

    def permute(x: Value, order: tuple[int, ...]) -> Value:
        if x.kind != "parameter":
            return F.permute(x, order)  # type: ignore[no-any-return]
        return derive(network, "transpose", [x], f"{x.name}.transposed", axes=order)

    def reshape(x: Value, shape: tuple[Dimension, ...]) -> Value:
        if x.kind != "parameter":
            return F.reshape(x, shape)  # type: ignore[no-any-return]
        return derive(network, "reshape", [x], f"{x.name}.reshaped", shape=shape)

    return Views(permute, reshape)
