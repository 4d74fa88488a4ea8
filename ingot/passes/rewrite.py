"""Rewrites are data: `Rule(name, pattern, when, replace)`, written in ordinary op code.

    Rule("silu of a product",
         pattern=lambda gate: F.mul(gate, F.sigmoid(gate)),
         when=lambda gate: gate.dtype.is_float or f"{gate.dtype} is no float",
         replace=lambda gate: F.silu(gate))

The pattern's parameters match any value; an attribute left open with `Hole("eps")` matches any value too. `when` and
`replace` name what they want of those, and `root` for the value that is replaced. `when` returns True, or the reason
why not, which `ingot inspect --why` prints (False: not even worth a line). Operands of commutative ops match in either
order. Values inside a match must have no other reader, unless the rule says `shared=True`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ingot.errors import NetworkError
from ingot.ir import Hole, Network, Node, Op, Value
from ingot.ir.pattern import Pattern

COMMUTATIVE = frozenset(
    {"add", "mul", "maximum", "minimum", "equal", "not_equal", "logical_and", "logical_or", "logical_xor"}
)
MAX_ROUNDS = 16


class Event(NamedTuple):
    """What a rule decided about one match: `verdict` is "rewritten" or the reason why not."""

    rule: str
    where: str
    node: str
    verdict: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.node}{f' in {self.where}' if self.where else ''}: {self.verdict}"


Log = list[Event]


def note(log: Log, rule: str, node: Node, verdict: str) -> None:
    """Writes down a decision."""
    log.append(Event(rule, node.where, f"%{', %'.join(v.name for v in node.outputs)} = {node.op.name}", verdict))


Found = dict[str, Any]


@dataclass(frozen=True)
class Rule:
    """A rewrite. Raises nothing by itself: a `replace` whose ops refuse raises their OpError."""

    name: str
    pattern: Callable[..., Any]
    replace: Callable[..., Any]
    when: Callable[..., bool | str] = lambda: True
    shared: bool = False

    @cached_property
    def _recorded(self) -> Pattern:
        return Pattern.record(self.pattern)

    @cached_property
    def _root(self) -> Value:
        root, *_ = self._recorded.roots
        return root

    @cached_property
    def _holes(self) -> dict[Value, str]:
        return {value: name for name, value in self._recorded.holes.items()}

    @cached_property
    def _read_by_when(self) -> tuple[str, ...]:
        return _names(self.when)

    @cached_property
    def _read_by_replace(self) -> tuple[str, ...]:
        return _names(self.replace)

    @property
    def root(self) -> type[Op]:
        """The op whose result is replaced."""
        return type(self._root.node.op)

    def match(self, value: Value) -> Iterator[tuple[Found, tuple[Node, ...]]]:
        """The ways in which `value` matches: what each name stands for, and the nodes inside."""
        yield from self._match(self._root, value, {}, ())

    def _match(
        self, pattern: Value, value: Value, found: Found, nodes: tuple[Node, ...]
    ) -> Iterator[tuple[Found, tuple[Node, ...]]]:
        name = self._holes.get(pattern)
        if name is not None:
            if found.get(name, value) is value:
                yield {**found, name: value}, nodes
            return
        if pattern.kind == "constant":
            array = value.array if value.kind == "constant" else None
            if array is not None and array.shape == () and array == pattern.array:
                yield found, nodes
            return
        want, node = pattern.node, value.node
        if node is None or type(node.op) is not type(want.op) or len(node.inputs) != len(want.inputs):
            return
        if [v is value for v in node.outputs] != [v is pattern for v in want.outputs]:
            return
        bound = _bind(want.op, node.op, found)
        if bound is None:
            return
        orders = [node.inputs]
        if node.op.name in COMMUTATIVE:
            orders.append(node.inputs[::-1])
        for inputs in orders:
            yield from self._match_all(want.inputs, inputs, bound, (*nodes, node))

    def _match_all(
        self, patterns: Sequence[Value], values: Sequence[Value], found: Found, nodes: tuple[Node, ...]
    ) -> Iterator[tuple[Found, tuple[Node, ...]]]:
        if not patterns:
            yield found, nodes
            return
        for bound, inside in self._match(patterns[0], values[0], found, nodes):
            yield from self._match_all(patterns[1:], values[1:], bound, inside)


def _bind(want: Op, got: Op, found: Found) -> Found | None:
    """What is found once the attributes of two ops of one kind agree, or None."""
    bound = found
    for name, value in want.attrs().items():
        actual = getattr(got, name)
        if isinstance(value, Hole):
            if value.name in bound and bound[value.name] != actual:
                return None
            bound = {**bound, value.name: actual}
        elif value != actual:
            return None
    return bound


def _names(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def _call(function: Callable[..., Any], names: tuple[str, ...], found: Found) -> Any:
    return function(**{name: found[name] for name in names})


def apply(network: Network, rules: Sequence[Rule], log: Log) -> int:
    """Rewrites every match, until none is left; returns how many. The network stays valid throughout.

    Raises NetworkError when the rules never come to rest.
    """
    by_root: dict[type[Op], list[Rule]] = {}
    for rule in rules:
        by_root.setdefault(rule.root, []).append(rule)
    total = 0
    refused: set[tuple[str, Node]] = set()
    for _ in range(MAX_ROUNDS):
        dead: set[Node] = set()
        count = 0
        for node in list(network.nodes):
            for rule in by_root.get(type(node.op), ()):
                if node in dead:
                    break
                gone = _rewrite(network, rule, node, log, refused)
                dead.update(gone)
                count += bool(gone)
        network.remove(dead)
        total += count
        if not count:
            return total
    raise NetworkError(f"rules {', '.join(r.name for r in rules)} were still rewriting after {MAX_ROUNDS} rounds")


def _rewrite(network: Network, rule: Rule, node: Node, log: Log, refused: set[tuple[str, Node]]) -> tuple[Node, ...]:
    """Applies one rule at one node; returns the nodes that are dead now (detached, not yet removed)."""
    for value in node.outputs:
        for found, nodes in rule.match(value):
            found["root"] = value
            verdict = _call(rule.when, rule._read_by_when, found)
            outside = "" if rule.shared else read_outside(network, value, nodes)
            if verdict is True and outside:
                verdict = outside
            if verdict is not True:
                if verdict is not False and (rule.name, node) not in refused:
                    refused.add((rule.name, node))
                    note(log, rule.name, node, str(verdict))
                continue
            with network.insert_before(node):
                new = _call(rule.replace, rule._read_by_replace, found)
            note(log, rule.name, node, "rewritten")
            network.replace(value, new)
            return detach(network, node, nodes)
    return ()


def read_outside(network: Network, root: Value, nodes: Sequence[Node]) -> str:
    """Why nodes cannot all go when another value takes the root's place, or nothing."""
    inside = set(nodes)
    for node in nodes:
        for value in node.outputs:
            if value is not root and (network.is_output(value) or not inside.issuperset(value.uses)):
                return f"%{value.name} inside the pattern is read elsewhere too"
    return ""


def number_of(value: Value) -> float | None:
    """The value of a constant that has one element."""
    if value.kind != "constant" or value.array.size != 1 or value.array.dtype == np.bool_:
        return None
    return float(value.array.reshape(()))


MAX_ALIKE = 64  # pairs of nodes that are compared


def alike(a: Value, b: Value) -> bool:
    """Whether two values are one, or made in the same way of the same, in a few steps."""
    todo = [(a, b)]
    for count, (x, y) in enumerate(todo):
        if x is y:
            continue
        same = x.node is not None and y.node is not None and x.node.op == y.node.op and len(x.node.outputs) == 1
        if not same and not _same_number(x, y) or count >= MAX_ALIKE:
            return False
        if same:
            if x.node.op.acts or len(x.node.inputs) != len(y.node.inputs):
                return False
            todo += zip(x.node.inputs, y.node.inputs, strict=True)
    return True


def _same_number(a: Value, b: Value) -> bool:
    return a.kind == b.kind == "constant" and a.spec == b.spec and number_of(a) == number_of(b) is not None


def viewed(value: Value) -> Value:
    """The value whose elements a chain of views shows."""
    while value.node is not None and value.node.op.is_view:
        (value,) = value.node.inputs
    return value


def detach(network: Network, node: Node, replaced: Sequence[Node] = ()) -> tuple[Node, ...]:
    """Cuts a node that nobody reads off its operands, and then what only it read. They still stand in the list.

    A node that acts by itself (writes a state, binds a dim, asserts) goes only when it is `node` itself or among
    `replaced`: its effect lives on elsewhere.
    """
    gone: dict[Node, None] = {}
    todo = [node]
    while todo:
        one = todo.pop()
        if one in gone or any(v.uses or network.is_output(v) for v in one.outputs):
            continue
        acts = one.op.acts or bool(one.op.bound_dims()) or any(v.is_state for v in one.outputs)
        if acts and one is not node and one not in replaced:
            continue
        makers = [v.node for v in one.inputs if v.node is not None]
        network.rewire(one, ())
        gone[one] = None
        todo.extend(makers)
    return tuple(gone)
