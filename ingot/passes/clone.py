"""A copy of a network that passes may change. Ops, specs, recipes and arrays are immutable and shared."""

from __future__ import annotations

from ingot.ir import Network, Node, Value


def clone(network: Network) -> Network:
    """The same network again: same names, places and order, nothing inferred anew."""
    new = Network(network.name)
    new.dims = dict(network.dims)
    copies = {network.absent: new.absent}

    def copy(value: Value) -> Value:
        made = Value(new, value.name, value.spec, value.kind, array=value.array, recipe=value.recipe)
        copies[value] = new.values[value.name] = made
        return made

    new.inputs = [copy(v) for v in network.inputs]
    new.parameters = [copy(v) for v in network.parameters]
    new.constants = [copy(v) for v in network.constants]
    new.states = [copy(v) for v in network.states]
    for node in network.nodes:
        inputs = tuple([copies[v] for v in node.inputs])
        made = Node(node.op, inputs, tuple([copy(v) for v in node.outputs]), node.where, node.line)
        for value in inputs:
            value.uses[made] = None
        for value in made.outputs:
            value.node = made
        new.nodes.append(made)
    new.outputs = {name: copies[value] for name, value in network.outputs.items()}
    return new
