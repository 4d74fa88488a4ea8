"""The network: an SSA graph of ops over named dims, in an order that can be run.

Nodes stand in topological order. All changes go through methods here, which keep every value's `uses` true.
"""
from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType
from typing import Any

import numpy as np

from ingot import dims
from ingot.dims import Dim
from ingot.dtypes import DType
from ingot.errors import OpError
from ingot.ir.attribute import Kind, add_kind, same
from ingot.ir.op import Op, infer, scalar_array
from ingot.ir.printer import to_text
from ingot.ir.sizes import follow
from ingot.ir.spec import Spec, StateSpec
from ingot.ir.value import Value

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_is_ours: dict[CodeType, bool] = {}


def user_line() -> tuple[str, int] | None:
    """File and line of the innermost frame outside ingot."""
    frame: Any = sys._getframe()
    while frame is not None:
        code = frame.f_code
        ours = _is_ours.get(code)
        if ours is None:
            ours = _is_ours[code] = code.co_filename.startswith(_OURS) or code.co_filename.startswith("<")
        if not ours:
            return code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


class Node:
    """One application of an op. `where` is the module path, `line` the user's (file, line)."""

    __slots__ = ("inputs", "line", "op", "outputs", "where")

    def __init__(self, op: Op, inputs: tuple[Value, ...], outputs: tuple[Value, ...] = (), where: str = "",
                 line: tuple[str, int] | None = None) -> None:
        self.op, self.inputs, self.outputs, self.where, self.line = op, inputs, outputs, where, line

    @property
    def output(self) -> Value:
        """The only result."""
        (value,) = self.outputs
        return value

    def dims(self) -> set[str]:
        """The named dims in its attributes and in the shapes of its results."""
        sizes = (d for v in self.outputs if not v.is_state for d in v.shape)
        return set(dims.dims_of([*self.op.dimensions(), *sizes]))

    @property
    def given(self) -> tuple[Value, ...]:
        """The operands that are not absent."""
        return tuple([v for v in self.inputs if v.spec is not None])

    @property
    def source(self) -> str:
        """`model.py:12`, the line of user code that made it; empty when unknown."""
        return f"{os.path.basename(self.line[0])}:{self.line[1]}" if self.line else ""

    def describe(self) -> str:
        """Op, operands and place, for messages."""
        return f"{self.op.describe(tuple(v.spec for v in self.inputs))}{f' in {self.where}' if self.where else ''}"

    def __repr__(self) -> str:
        outs = ", ".join(f"%{v.name}" for v in self.outputs)
        return f"{outs} = {self.op}({', '.join(f'%{v.name}' for v in self.inputs)})"


class Network:
    """A graph of ops. Made by `nn.trace`, an importer, or by hand: `n.input(…)`, ops on the values, `n.output(…)`."""

    def __init__(self, name: str = "main", *, detached: bool = False) -> None:
        self.name = name
        self.inputs: list[Value] = []
        self.parameters: list[Value] = []
        self.constants: list[Value] = []
        self.states: list[Value] = []
        self.nodes: list[Node] = []
        self.outputs: dict[str, Value] = {}
        self.dims: dict[str, Dim] = {}  # every named dim, with its bounds
        self.values: dict[str, Value] = {}  # by name
        self.absent = Value(self, "none", None, "absent")  # stands for optional operands that a node has not
        self.detached = detached  # made by an op without tensor operands; joins its first consumer's network
        self.where = ""
        self._counter = 0
        self._scalars: dict[tuple[DType, str], Value] = {}
        self._pending: list[Node] | None = None  # inside insert_before

    # -------------------------------------------------------------------------------------------- making values
    def input(self, name: str, spec: Spec) -> Value:
        """A tensor given at every run."""
        value = self._add(Value(self, name, spec, "input"))
        self.inputs.append(value)
        return value

    def parameter(self, name: str, spec: Spec, recipe: Any = None) -> Value:
        """A weight. Its recipe says what it is made of; None: the source parameter of the same name, as it is."""
        value = self._add(Value(self, name, spec, "parameter", recipe=recipe))
        self.parameters.append(value)
        return value

    def constant(self, array: Any, name: str | None = None) -> Value:
        """Fixed numbers, kept in the network itself."""
        array = np.asarray(array)
        value = self._add(Value(self, name or self._fresh("c"), Spec.of(array), "constant", array=array))
        self.constants.append(value)
        return value

    def scalar(self, number: bool | int | float, dtype: DType) -> Value:
        """A Python number as a 0-d constant, one per dtype and value."""
        key = (dtype, repr(number))
        value = self._scalars.get(key)
        if value is None or self.values.get(value.name) is not value:
            value = self._scalars[key] = self.constant(scalar_array(number, dtype))
        return value

    def state(self, name: str, spec: StateSpec) -> Value:
        """A state that outlives runs, for example one layer's KV cache."""
        value = self._add(Value(self, name, spec, "state"))
        self.states.append(value)
        return value

    def emit(self, op: Op, inputs: tuple[Value, ...]) -> Any:
        """Adds a node; returns its value, or the tuple of them. An op that refuses raises OpError; nothing changes."""
        if op.binds:
            op = op.bind(self._fresh_dim, *(v.spec for v in inputs))
        node = self.add_node(op, inputs, self.where, user_line())
        outputs = node.outputs
        node.op = op.settled(*(v.spec for v in outputs))
        return outputs[0] if len(outputs) == 1 else outputs

    def add_node(self, op: Op, inputs: tuple[Value, ...], where: str, line: tuple[str, int] | None = None,
                 names: Sequence[str] | None = None) -> Node:
        """Adds a node at the end (or where `insert_before` says), its results named in order or by `names`."""
        source = "" if line is None else f"{os.path.basename(line[0])}:{line[1]}"
        specs = infer(op, tuple([v.spec for v in inputs]), where or self.name, source)
        if names is not None and len(names) != len(specs):
            raise OpError(f"{op.name} has {len(specs)} results, not {len(names)}")
        node = Node(op, inputs, (), where, line)
        node.outputs = tuple([
            self._add(Value(self, names[i] if names is not None else self._number(), spec, "result", node))
            for i, spec in enumerate(specs)])
        for value in inputs:
            value.uses[node] = None
        if op.on_dims is not None:
            node.outputs[0].known = follow(op, inputs, specs)
        (self.nodes if self._pending is None else self._pending).append(node)
        return node

    def _add(self, value: Value) -> Value:
        if value.name in self.values or not value.name:
            raise OpError(f"network {self.name} already has a value named {value.name!r}" if value.name else
                          f"a value of network {self.name} needs a name")
        spec = value.spec
        if type(spec) is Spec:  # a state has no shape, and in a pattern nothing is known of one
            for d in spec.shape:
                if type(d) is not int and (type(d) is not Dim or self.dims.get(d.name) is not d):
                    self._know(d)
        self.values[value.name] = value
        return value

    def _know(self, expression: Any) -> None:
        for name, dim in expression.dims().items():
            known = self.dims.get(name)
            self.dims[name] = dim if known is None else dims.merge(known, dim)

    def output(self, name: str, value: Value) -> None:
        """Makes a value an output under a name."""
        if name in self.outputs:
            raise OpError(f"network {self.name} already has an output named {name!r}")
        if not isinstance(value, Value):
            value = self.constant(value)
        elif value.network is not self and not value.network.detached:
            raise OpError(f"output {name}: %{value.name} belongs to network {value.network.name}, not {self.name}")
        elif value.network is not self:
            self._adopt(value.network)
        self.outputs[name] = value

    def _number(self) -> str:
        while (name := str(self._counter)) in self.values:
            self._counter += 1
        self._counter += 1
        return name

    def _fresh(self, prefix: str) -> str:
        number = len(self.constants)
        while f"{prefix}{number}" in self.values:
            number += 1
        return f"{prefix}{number}"

    def _fresh_dim(self, prefix: str, max: int | None = None) -> Dim:
        number = 0
        while f"{prefix}{number}" in self.dims:
            number += 1
        return Dim(f"{prefix}{number}", max=max, unbacked=True)

    @contextmanager
    def scope(self, path: str) -> Iterator[None]:
        """Everything emitted inside carries this module path, below the current one."""
        before = self.where
        self.where = f"{before}.{path}" if before and path else before or path
        try:
            yield
        finally:
            self.where = before

    def join(self, other: Network, op: Op) -> Network:
        """The one network of two values that met as operands: a detached one moves into the other."""
        if other.detached:
            self._adopt(other)
            return self
        if self.detached:
            other._adopt(self)
            return other
        raise OpError(f"{op.name}: operands belong to two networks, {self.name} and {other.name}; inside a branch or "
                      "loop body, pass outer tensors as operands")

    def _adopt(self, other: Network) -> None:
        for value in list(other.values.values()):
            value.network = self
            value.name = self._fresh("c") if value.kind == "constant" else self._number()
            self._add(value)
            if value.kind == "constant":
                self.constants.append(value)
        for node in list(other.absent.uses):
            self.rewire(node, tuple(self.absent if v is other.absent else v for v in node.inputs))
        (self.nodes if self._pending is None else self._pending).extend(other.nodes)
        other.nodes, other.values, other.constants = [], {}, []

    # -------------------------------------------------------------------------------------------- changing it
    def users(self, value: Value) -> tuple[Node, ...]:
        """The nodes that read it."""
        return tuple(value.uses)

    def is_output(self, value: Value) -> bool:
        return any(v is value for v in self.outputs.values())

    @contextmanager
    def insert_before(self, node: Node) -> Iterator[None]:
        """Everything emitted inside stands before `node` and carries its place."""
        if self._pending is not None:
            raise RuntimeError("insert_before does not nest")
        where, self.where, self._pending = self.where, node.where, []
        try:
            yield
        finally:
            at = self.nodes.index(node)
            for made in self._pending:
                made.line = node.line
            self.nodes[at:at] = self._pending
            self.where, self._pending = where, None

    def replace(self, old: Value, new: Value) -> None:
        """Every reader of `old`, and every output, gets `new` instead. `new` must stand before all readers."""
        if old is new:
            return
        for node in list(old.uses):
            if not any(v is new for v in node.outputs):
                self.rewire(node, tuple(new if v is old else v for v in node.inputs))
        for name, value in self.outputs.items():
            if value is old:
                self.outputs[name] = new

    def rewire(self, node: Node, inputs: tuple[Value, ...]) -> None:
        """Gives a node other operands."""
        for value in node.inputs:
            value.uses.pop(node, None)
        node.inputs = inputs
        for value in inputs:
            value.uses[node] = None

    def remove(self, nodes: Iterable[Node]) -> None:
        """Takes nodes out whose results nobody reads (or only each other). One may be named more than once."""
        gone = dict.fromkeys(nodes)
        for node in gone:
            for value in node.outputs:
                if self.is_output(value) or not value.uses.keys() <= gone.keys():
                    raise RuntimeError(f"{node} is still read")
        for node in gone:
            for value in node.inputs:
                value.uses.pop(node, None)
            for value in node.outputs:
                del self.values[value.name]
        self.nodes = [n for n in self.nodes if n not in gone]

    def remove_dead(self) -> int:
        """Takes out nodes, parameters and constants that no output or state depends on; returns how many nodes went.

        What acts by itself stays, and what binds a dim as long as that is needed: it may be a size of what depends on
        none of its results.
        """
        live = {id(v) for v in self.outputs.values()}
        needed = set(dims.dims_of(d for v in self.outputs.values() for d in v.shape))
        any_binds = any(node.op.binds for node in self.nodes)
        keep: set[Node] = set()
        for node in reversed(self.nodes):
            acts = node.op.acts or node.op.binds and any(d.name in needed for d in node.op.bound_dims())
            if acts or any(id(v) in live or v.is_state for v in node.outputs):
                keep.add(node)
                live.update(map(id, node.inputs))
                if any_binds:
                    needed |= node.dims()
        dead = [n for n in self.nodes if n not in keep]
        self.remove(dead)
        for values in (self.parameters, self.constants):
            for value in [v for v in values if id(v) not in live]:
                del self.values[value.name]
            values[:] = [v for v in values if id(v) in live]
        return len(dead)

    def __repr__(self) -> str:
        return (f"Network({self.name}: {len(self.inputs)} inputs, {len(self.parameters)} parameters, "
                f"{len(self.nodes)} nodes)")

    def __str__(self) -> str:
        return to_text(self)


def _network(x: Any) -> Network:
    if not isinstance(x, Network):
        raise TypeError
    return x


# An op may hold networks (branches, loop bodies). Their JSON form is in text.py, which handles this kind itself.
add_kind(Kind("Network", "a Network", _network, same, same))
