"""A network cut into the layers that its module paths show, each a network of its own that can be built and run
alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from ingot.dims import Dim, affine, dims_of
from ingot.dtypes import uint8
from ingot.ir import Network, Node, Spec, Value

_LAYER = re.compile(r"(?:^|.*?\.)\d+(?=\.|$)")
BETWEEN = "between layers"  # what belongs to no layer and stands between two; there may be several
AFTER = "after the layers"


@dataclass(frozen=True)
class Section:
    """One layer: its network, and which values of the whole network its inputs and outputs are.

    sizes: inputs that nobody reads, [dim] each, for the dims that its other inputs have only in expressions.
    """

    name: str
    network: Network
    reads: dict[str, Value]
    writes: dict[str, Value]
    sizes: dict[str, Dim]


def layer_of(where: str) -> str:
    """`model.layers.3` of `model.layers.3.mlp.up_proj`; empty outside any numbered module."""
    found = _LAYER.match(where)
    return found.group() if found else ""


def module_of(where: str) -> str:
    """`features` of `features.conv`: the part of the network that a module path begins with."""
    return where.partition(".")[0]


def cut(network: Network) -> list[Section]:
    """The sections in order. A network whose states cross sections, or that binds dims as it runs, stays in one."""
    return [section(network, name, nodes) for name, nodes in runs_of(network)]


def runs_of(network: Network, layer: Callable[[str], str] = layer_of) -> list[tuple[str, list[Node]]]:
    """The name and the nodes of each section. layer: what layer a module path belongs to; empty: none."""
    runs: list[tuple[str, list[Node]]] = []
    for node in network.nodes:
        name = layer(node.where)
        if not runs or runs[-1][0] != name:
            runs.append((name, []))
        runs[-1][1].append(node)
    home = {node: i for i, (_, nodes) in enumerate(runs) for node in nodes}
    states = [(node, v) for node in network.nodes for v in node.outputs if v.is_state]
    crossing = any(home[user] != home[node] for node, v in states for user in v.uses)
    layers = [name for name, _ in runs if name]
    if crossing or len(set(layers)) < len(layers) or any(node.op.bound_dims() for node in network.nodes):
        runs = [("", list(network.nodes))]
    return [(_title(name, i, len(runs)), nodes) for i, (name, nodes) in enumerate(runs)]


def _title(name: str, index: int, count: int) -> str:
    if name or count == 1:
        return name or "network"
    return "before the layers" if index == 0 else AFTER if index == count - 1 else BETWEEN


def section(network: Network, name: str, nodes: list[Node]) -> Section:
    """These nodes, which follow each other in the network, as a network of their own."""
    new = Network(network.name)
    inside = set(nodes)
    copies = {network.absent: new.absent}
    reads: dict[str, Value] = {}

    def copy(value: Value) -> Value:
        if value not in copies:
            if value.kind == "parameter":
                copies[value] = new.parameter(value.name, value.spec, value.recipe)
            elif value.kind == "constant":
                copies[value] = new.constant(value.array, value.name)
            elif value.kind == "state":
                copies[value] = new.state(value.name, value.spec)
            else:
                label = value.name if value.kind == "input" else f"from.{value.name}"  # results are renumbered
                copies[value] = new.input(label, value.spec)
                reads[label] = value
        return copies[value]

    for node in nodes:
        with new.scope(node.where):
            made = new.emit(node.op, tuple(copy(v) for v in node.inputs))
        for old, result in zip(node.outputs, made if isinstance(made, tuple) else (made,), strict=True):
            copies[old] = result
    writes: dict[str, Value] = {}
    for node in nodes:
        for value in node.outputs:
            if not value.is_state and (network.is_output(value) or not inside.issuperset(value.uses)):
                writes[f"to.{value.name}"] = value
    for label, value in writes.items():
        new.outputs[label] = copies[value]
    values = [v for v in new.values.values() if not v.is_state]
    used = {n: d for v in values for n, d in dims_of(v.spec.shape).items()}
    plain = {found.dim.name for v in new.inputs for d in v.spec.shape if (found := affine(d))}
    sizes = {f"size.{n}": d for n, d in used.items() if n not in plain and not d.unbacked}
    for label, d in sizes.items():
        new.input(label, Spec((d,), uint8))
    return Section(name, new, reads, writes, sizes)
