"""The verifier: the rules that every pass may rely on, and has to keep. Reports all offenders at once."""
from __future__ import annotations

import operator

from ingot import dims
from ingot.dims import Dim
from ingot.errors import DimError, IngotError, NetworkError, OpError
from ingot.ir.attribute import AttributeRefused, accept
from ingot.ir.network import Network, Node
from ingot.ir.op import OPS, infer
from ingot.ir.spec import Spec
from ingot.ir.value import Value

MAX_NESTING = 16
SHOWN = 20


Sound = dict[Node, list[object]]  # what the attributes and results of nodes were checked on, as the objects themselves


def verify(network: Network, sound: Sound | None = None) -> Network:
    """The network itself when it keeps every rule, else a NetworkError that lists what does not.

    sound: what earlier calls found of its nodes. Of one that still is on the `same` neither attributes nor shape rule
    are asked again, which are most of the work. Nodes that are sound are added.
    """
    found = problems(network, sound=sound)
    if found:
        more = f"\n… and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        listed = "".join(f"\n- {p}" for p in found[:SHOWN])
        raise NetworkError(f"network {network.name} breaks {len(found)} rule(s):{listed}{more}")
    return network


def held(network: Network) -> list[object]:
    """All that `verify` reads, as the objects themselves: where it `same` as before, the network is as sound as before.
    """
    found: list[object] = []
    for name, value in network.values.items():
        found += (name, value, value.name, value.spec, value.kind, value.network, value.node, value.array, *value.uses)
    for values in (network.inputs, network.parameters, network.constants, network.states):
        found += (None, *values)
    for node in network.nodes:
        found += (node, node.op, node.inputs, node.outputs, node.where)
        for name in node.op.attributes:
            found.append(attribute := getattr(node.op, name))
            if isinstance(attribute, Network):
                found += held(attribute)
    for named in (network.outputs, network.dims):
        found += (None, *named, *named.values())
    return found


def same(before: list[object], after: list[object]) -> bool:
    """Whether two lists hold the same objects."""
    return len(before) == len(after) and all(map(operator.is_, before, after))


def problems(network: Network, depth: int = 0, sound: Sound | None = None) -> list[str]:
    """One sentence per broken rule; empty when the network is sound. sound: see `verify`."""
    if depth > MAX_NESTING:
        return [f"networks nest deeper than {MAX_NESTING}"]
    found: list[str] = []
    known = _leaves(network, found)
    position = {id(v): i for i, node in enumerate(network.nodes) for v in node.outputs}
    bound = {name for v in network.inputs if not v.is_state for name in dims.dims_of(v.spec.shape)}
    consumed: dict[int, str] = {}
    for i, node in enumerate(network.nodes):
        place = f"{_show(node)}{f' in {node.where}' if node.where else ''}"
        if not node.op.external and OPS.get(node.op.name) is not type(node.op):
            found.append(f"{place}: there is no op {node.op.name!r}")
            continue
        found += _operands(node, i, place, known, position, network.absent)
        found += _made_elsewhere(node, place, known)
        facts = None if sound is None else _facts(node)
        if facts is None or not same(sound.get(node, []), facts):  # type: ignore[union-attr]
            wrong = _attributes(node, place, depth) or _results(node, place)  # a rule may rely on attributes' types
            found += wrong
            if sound is not None and facts is not None and not wrong:
                sound[node] = facts
        found += _states(node, place, consumed)
        for dim in node.op.bound_dims():
            if dim.name in bound:
                found.append(f"{place}: binds {dim.name}, which is bound already")
            bound.add(dim.name)
        found += [f"{place}: needs {d}, which no input has and no op before it binds" for d in _needs(node) - bound]
        for value in node.outputs:
            known[id(value)] = value
    found += _outputs(network, known)
    found += [f"%{name} is the name of %{value.name}" for name, value in network.values.items() if value.name != name]
    for value in known.values():
        stale = [n for n in value.uses if not any(v is value for v in n.inputs)]
        found += [f"%{value.name} lists {_show(n)} as a user, which does not read it" for n in stale]
    return found


def _leaves(network: Network, found: list[str]) -> dict[int, Value]:
    known: dict[int, Value] = {}
    names: set[str] = set()
    for kind, values in (("input", network.inputs), ("parameter", network.parameters),
                         ("constant", network.constants), ("state", network.states)):
        for value in values:
            if value.kind != kind or value.network is not network:
                found.append(f"%{value.name} is listed as {kind}, but is a {value.kind} of network "
                             f"{value.network.name}")
            if value.is_state is not (kind == "state"):
                found.append(f"{kind} %{value.name} is {value.spec}")
            elif kind == "constant" and (value.array is None or Spec.of(value.array) != value.spec):
                found.append(f"constant %{value.name} is declared {value.spec}, its data differ")
            known[id(value)] = value
    for value in [*known.values(), *(v for n in network.nodes for v in n.outputs)]:
        if value.name in names:
            found.append(f"two values are named %{value.name}")
        elif network.values.get(value.name) is not value:
            found.append(f"%{value.name} is not in the network's table of values")
        names.add(value.name)
    for value in network.parameters:
        if not (value.is_state or value.is_fixed):
            found.append(f"parameter %{value.name} is {value.spec}: a weight's shape is known when it is built")
    return known


def _operands(node: Node, index: int, place: str, known: dict[int, Value], position: dict[int, int], absent: Value
              ) -> list[str]:
    found = []
    for value in node.inputs:
        if value is absent:
            continue
        if id(value) not in known:
            at = position.get(id(value))
            found.append(f"{place}: reads %{value.name} before it is made" + (
                " (a cycle, or nodes out of order)" if at is not None and at >= index
                else f": nothing here makes it (it belongs to network {value.network.name})"))
        elif node not in value.uses:
            found.append(f"{place}: reads %{value.name}, which does not list it as a user; change operands by rewire()")
    return found


def _attributes(node: Node, place: str, depth: int) -> list[str]:
    found = []
    for name, kind in node.op.attributes.items():
        value = getattr(node.op, name)
        try:
            if accept(kind, value, node.op.name, name) != value:
                found.append(f"{place}: attribute {name} is not stored in its normal form: {value!r}")
        except AttributeRefused as e:
            found.append(f"{place}: {e}")
        if isinstance(value, Network):
            found += [f"{place}: {name}: {p}" for p in problems(value, depth + 1)]
    return found


def _facts(node: Node) -> list[object] | None:
    """All that `_attributes` and `_results` read of a node; None where it holds networks, which may change inside."""
    attributes = [getattr(node.op, name) for name in node.op.attributes]
    if any(isinstance(value, Network) for value in attributes):
        return None
    return [node.op, *attributes, len(node.inputs), *(v.spec for v in (*node.inputs, *node.outputs))]


def _made_elsewhere(node: Node, place: str, known: dict[int, Value]) -> list[str]:
    found = [f"{place}: makes %{v.name} a second time" for v in node.outputs if id(v) in known]
    return found + [f"{place}: %{v.name} names another maker" for v in node.outputs if v.node is not node]


def _results(node: Node, place: str) -> list[str]:
    try:
        specs = infer(node.op, tuple(v.spec for v in node.inputs), node.where or "network", node.source)
    except OpError as e:
        return [str(e)]
    except (IngotError, ArithmeticError, LookupError, TypeError, ValueError) as e:
        return [f"{place}: its shape rule failed: {type(e).__name__}: {e}"]
    got = tuple(v.spec for v in node.outputs)
    if specs != got:
        return [f"{place}: gives {', '.join(map(str, specs))}, but its values are {', '.join(map(str, got))}"]
    return []


def _states(node: Node, place: str, consumed: dict[int, str]) -> list[str]:
    found = []
    for value in node.inputs:
        if value.is_state:
            if id(value) in consumed:
                found.append(f"{place}: state %{value.name} is consumed a second time, after {consumed[id(value)]}; "
                             "read the state that the first consumer returns")
            consumed[id(value)] = _show(node)
    return found


def _needs(node: Node) -> set[str]:
    """The named dims that the node's attributes use, other than those it binds."""
    return dims.dims_of(node.op.dimensions()).keys() - {d.name for d in node.op.bound_dims()}


def _outputs(network: Network, known: dict[int, Value]) -> list[str]:
    found = []
    for name, value in network.outputs.items():
        if id(value) not in known:
            found.append(f"output {name}: %{value.name} is not a value of this network")
        if value.is_state:
            found.append(f"output {name}: %{value.name} is a state; states persist by themselves")
    for name, dim in network.dims.items():
        try:
            Dim(dim.name, dim.min, dim.opt, dim.max)
        except DimError as e:
            found.append(str(e))
        if name != dim.name:
            found.append(f"dim {dim.name} is filed under {name}")
    return found


def _show(node: Node) -> str:
    return f"%{', %'.join(v.name for v in node.outputs)} = {node.op.name}"
