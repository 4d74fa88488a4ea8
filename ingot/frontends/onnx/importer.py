"""From an ONNX model to a Network: the same ops under the model's names, functions and known branches inlined, what is
constant computed at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ingot import dtypes
from ingot.dims import Dimension, Expr
from ingot.dtypes import DType
from ingot.errors import CheckpointError, DimError, DTypeError, OpError, UnsupportedError, ValueFault
from ingot.frontends.narrow import Narrow, carried, carried_spec
from ingot.frontends.onnx import ops  # noqa: F401  fills the table
from ingot.frontends.onnx.agreement import agreeing
from ingot.frontends.onnx.inputs import Given, Inputs, marked
from ingot.frontends.onnx.model import MAX_NODES, Model
from ingot.frontends.onnx.outputs import Outputs
from ingot.frontends.onnx.paths import path_of
from ingot.frontends.onnx.regex import Work
from ingot.frontends.onnx.table import MAX_PIECES, Body, Entry, Sequence, Unknown, domain_of, find, run
from ingot.frontends.onnx.tables import tables
from ingot.frontends.onnx.text import Text, is_text, table_of
from ingot.frontends.recording import Done, Faults, Imported, Recorder, Remark, Renamed, checked
from ingot.frontends.table import NO_SUCH_OP, Unsupported, carried_out
from ingot.frontends.widened import Widened, sources, widened
from ingot.ir import Network, Spec, Value, interpret
from ingot.ops.movement import WithShape
from ingot.passes.simplify import Budget

Array = np.ndarray[Any, Any]

MAX_CONSTANT = 64 << 10  # bytes of an initializer that may become a constant of the network, for folding
PIECE = 1 << 18  # elements of a stored tensor that are looked at together
MAX_FOLDED = 1 << 22  # bytes that computing a node at once may make
MAX_STEPS = 1 << 29  # of what is computed at once, all together; the passes behind have more
MAX_DEPTH = 48  # of functions and subgraphs, one inside the other
MAX_ITEMS = 1 << 22  # tensors in all sequences together
MAX_NOTES = 64
MAX_LOOKED_AT = 1 << 10  # results behind a node, for what depends on its rank
REPLACE = "export the model with another opset, or put a function of the model in its place"
OTHERWISE = "change these nodes before or after the export, as the reason says"
# Ops whose results have the same elements whether an operand has one more dimension of 1 or not.
ALIKE = {"Identity", "Cast", "Sigmoid", "Tanh", "Relu", "Exp", "Log", "Sqrt", "Abs", "Neg", "Clip", "Round", "Erf",
         "Softplus", "Add", "Sub", "Mul", "Div", "MatMul"}  # fmt: skip


class Built(NamedTuple):
    """What came of a model. `outputs`: for each output the network's names of it: one of a tensor, a list for a
    sequence, None for what is left out. `inputs`: likewise. `narrow`: the types of outputs that others carry. `text`:
    the inputs and outputs that are strings, and code points in the network."""

    imported: Imported
    outputs: dict[str, Any]
    inputs: dict[str, Any]
    narrow: dict[str, DType]
    text: frozenset[str] = frozenset()


class NeedsValues(UnsupportedError):
    """A model whose network depends on elements of inputs. `inputs`: their names."""

    def __init__(self, message: str, inputs: set[str], rows: tuple[Mapping[str, Any], ...] = ()) -> None:
        super().__init__(message, rows)
        self.inputs = inputs


def build_network(model: Model, given: Given | None = None, done: Done | None = None) -> Built:
    """The network of a model.

    Args:
        given: inputs whose elements are known, which become constants.
        done: called after every node of the model's graph.

    Raises:
        UnsupportedError: ops that ingot has no counterpart for, all at once, with the model's names.
        NeedsValues: the network depends on elements of inputs that are not given.
        CheckpointError: a model that contradicts itself.
    """
    return _Importer(model, given or Given({}, {}), done).run()


class Scope:
    """The names of one graph or function, and the network that it is recorded in."""

    def __init__(self, network: Recorder, versions: Mapping[str, int], parent: Scope | None, path: str = "") -> None:
        self.network, self.versions, self.parent, self.path = network, versions, parent, path
        self.values: dict[str, Any] = {}
        self.captured: dict[Value, Value] = {}  # of the network outside → here
        self.attributes: Mapping[str, Any] | None = None  # of the function's call; None: outside of any

    def root(self) -> Scope:
        """The outermost scope of the same network: what it captures is captured once."""
        scope = self
        while scope.parent is not None and scope.parent.network is scope.network:
            scope = scope.parent
        return scope


class Call:
    """One node and what surrounds it, as table.Call describes it."""

    def __init__(self, importer: _Importer, scope: Scope, node: Any) -> None:
        self.importer, self.scope, self.network, self.node = importer, scope, scope.network, node
        self.domain, self.op = domain_of(node.domain), node.op_type
        self.version = scope.versions.get(self.domain, 0)
        self.wanted = tuple(bool(name) for name in node.output)
        self.outputs, self.work = len(node.output), importer.work

    def contents(self, value: Value) -> Array | None:
        return self.importer.contents(value)

    def odd_scale(self, value: Value, divisor: bool) -> Any:
        return self.importer.odd_scale(value, divisor)

    @property
    def name(self) -> str:
        return self.node.name or (self.node.output[0] if self.node.output else "")

    def noted(self, what: str) -> None:
        if len(self.importer.notes) < MAX_NOTES:
            self.importer.notes.append(f"{self.op} in node {self.name[:80]}: {what}")

    def must_be_1(self, size: Expr) -> bool:
        return size in self.importer.ones(self.network)

    def is_new_rule(self, size: Expr) -> bool:
        rules = self.importer.rules
        before = len(rules)
        rules.add((self.network, size))
        return len(rules) > before

    def same_of_any_rank(self) -> bool:
        return self.scope.values is self.importer.outermost and self.importer.is_alike(self.node.output[:1])

    def unrolled(self, rounds: int, why: str) -> None:
        todo = "keep what it carries of one type and size in all rounds"
        why = f"its {rounds} rounds are written out, one after the other: {why}"
        self.importer.remarks.append(Remark("unrolled loop", self.op, (self.name,), 1, why, todo))

    def inline(self, graph: Any, operands: list[Any]) -> list[Any]:
        return self.importer.inline(self.scope, graph, operands)

    def body(self, graph: Any, specs: list[Any]) -> Body:
        return self.importer.body(self.scope, graph, specs)


class _Importer:
    def __init__(self, model: Model, given: Given, done: Done | None) -> None:
        self.model, self.name, self.done = model, model.name, done
        self.network = Recorder("main")
        self.faults = Faults(OTHERWISE)
        self.wanted: set[str] = set()  # inputs whose elements have to be known
        self.sources: dict[str, str] = {}  # a parameter's name in the network → the initializer's
        self.stored: dict[Value, str] = {}
        self.notes: list[str] = []
        self.depth = self.recorded = self.items = 0
        self.budget, self.work = Budget(steps=MAX_STEPS), Work()
        self.remarks: list[Remark] = []
        self.origin: dict[Value, Value] = {}  # a body's input → what it captures
        self.inputs = Inputs(self.name, self.network, given, self.faults)
        self.outputs = Outputs(self.network, self.faults)
        self.tables = tables(model)
        self.checked: dict[Network, tuple[int, set[Dimension]]] = {}  # how many nodes were looked at, and sizes of 1
        self.odd: dict[tuple[Value, bool], Any] = {}  # scales that are none, by tensor and whether they divide
        self.outermost: dict[str, Any] = {}
        self.rules: set[tuple[Network, Expr]] = set()  # of sizes that may not be 1
        self.readers: dict[str, list[Any]] | None = None

    def run(self) -> Built:
        graph = self.model.graph
        scope = Scope(self.network, self.model.versions, None)
        self.outermost = scope.values
        self._inputs(scope, graph)
        self.wanted |= self.inputs.wanted
        self.notes += self.inputs.notes
        self._nodes(scope, graph)
        self._outputs(scope, graph)
        self.notes += self.outputs.notes
        try:
            self.faults.report(self.name)
        except UnsupportedError as e:
            for node in self.network.nodes:
                if node.op.name == "sizes_of":  # what did not fit may fit once these are known
                    self.wanted |= self._origins(node.inputs[0])
            if self.wanted:
                raise NeedsValues(str(e), self.wanted, e.rows) from None
            raise
        if not self.network.outputs:
            raise CheckpointError(f"{self.name}: the model gives no tensor")
        computed = widened(self.network)
        self.notes += self.network.sweep()
        kept = {n: v for n, v in scope.values.items() if isinstance(v, Value) and v.name in self.network.values}
        read = set(self.network.values) | {name for how in computed.values() for name in sources(how)}
        names = {name: source for name, source in self.sources.items() if name in read}
        placeholders = {v.name: v.name for v in self.network.inputs}
        weights = Widened(_Carried(Renamed(self.model.weights, names)), computed)
        remarks = tuple(self.remarks)
        imported = Imported(self.network, weights, self.notes, placeholders, kept, frozenset(), {}, remarks)
        text = frozenset(self.outputs.text | self.inputs.text)
        return Built(imported, self.outputs.names, self.inputs.names, self.outputs.narrow, text)

    def error(self, why: str) -> CheckpointError:
        return CheckpointError(f"{self.name}: {why}")

    # -------------------------------------------------------------------------------------- inputs and outputs

    def _inputs(self, scope: Scope, graph: Any) -> None:
        initializers = self.model.weights
        for info in graph.input:
            if info.name in scope.values:
                raise self.error(f"two inputs are called {info.name[:80]!r}")
            if info.name in initializers:
                continue  # a default that older files may override; here it is the value
            scope.values[info.name] = self.inputs.value(info.name, info.type)
        for name in initializers:
            if name in scope.values:
                raise self.error(f"{name[:80]!r} is an input and an initializer")
            scope.values[name] = self._stored(name)

    def _outputs(self, scope: Scope, graph: Any) -> None:
        self.network.where = ""
        for info in graph.output:
            try:
                value = self.lookup(scope, info.name)
            except Unsupported:
                continue
            self.outputs.give(info.name, info.type, value)

    def _stored(self, name: str) -> Any:
        """The value of an initializer: a number, a short list of integers or a table is a constant, which ops see
        through."""
        own = self.model.weights.spec(name)
        spec = checked(carried_spec(own), name, self.name)
        count = spec.elements
        assert isinstance(count, int)
        plain = spec.dtype not in dtypes.FLOATS and count * spec.dtype.bits // 8 <= MAX_CONSTANT
        if plain or count <= 1 or name in self.tables:
            array = carried(self.model.weights[name])
            return marked(self.network.constant(array, self.network.free_name(name)), own)
        free = self.network.free_name(name)
        value = self.network.parameter(free, spec)
        self.sources[free], self.stored[value] = name, name
        return marked(value, own)

    def contents(self, value: Value) -> Array | None:
        """The elements of a value that are known."""
        if not isinstance(value, Value):
            raise Unsupported("a tensor is wanted, and not a sequence, an element of few bits, or nothing")
        if value.array is not None:
            return np.asarray(value.array)
        if value in self.origin:
            return self.contents(self.origin[value])
        if value in self.stored and value.spec.elements * value.dtype.bits // 8 <= MAX_CONSTANT:
            return carried(self.model.weights[self.stored[value]])
        known = value.known
        if known is None or not all(type(n) in (int, bool) for n in known.flat):
            return None
        return known.astype(value.dtype.numpy)

    def odd_scale(self, value: Value, divisor: bool) -> Any:
        """What Call says, found once for all readers of a tensor and piece by piece: it may be a mapped file's."""
        while value in self.origin:
            value = self.origin[value]
        if (value, divisor) not in self.odd:
            self.odd[value, divisor] = next(self._odd_scales(value, divisor), None)
        return self.odd[value, divisor]

    def _odd_scales(self, value: Value, divisor: bool) -> Iterator[Any]:
        array = self.contents(value)
        if array is None and value in self.stored:
            array = carried(self.model.weights[self.stored[value]])
        flat = np.array([]) if array is None else array.reshape(-1)
        for begin in range(0, flat.size, PIECE):
            piece = flat[begin : begin + PIECE]
            fit = np.isfinite(piece)
            yield from piece[~(fit & (piece != 0) if divisor else fit)]

    def ones(self, network: Network) -> set[Dimension]:
        """The sizes of which runs check that they are 1."""
        seen, found = self.checked.get(network, (0, set()))
        for node in network.nodes[seen:]:
            if isinstance(node.op, WithShape) and not node.op.broadcast:
                for a, b in zip(node.inputs[0].shape, node.output.shape, strict=True):
                    found |= {b if a == 1 else a} if 1 in (a, b) else set()
        self.checked[network] = len(network.nodes), found
        return found

    def is_alike(self, names: Iterable[str]) -> bool:
        """Whether all that reads these results computes element by element, or along the last dimensions."""
        if self.readers is None:
            self.readers = {}
            for node in self.model.graph.node:
                for name in node.input:
                    self.readers.setdefault(name, []).append(node)
        todo, seen = list(names), set(names)
        while todo:
            for node in self.readers.get(todo.pop(), ()):
                if len(seen) > MAX_LOOKED_AT or node.op_type not in ALIKE or node.domain not in ("", "ai.onnx"):
                    return False
                todo += [name for name in node.output if name not in seen]
                seen.update(node.output)
        return True

    # --------------------------------------------------------------------------------------------------- names

    def lookup(self, scope: Scope, name: str) -> Any:
        """What a name means here: a value of this graph, or one of those around it."""
        at: Scope | None = scope
        while at is not None and name not in at.values:
            at = at.parent
        if at is None:
            raise self.error(f"{name[:80]!r} is read, and nothing before makes it (a cycle, or a gap)")
        found = at.values[name]
        if found is _UNKNOWN:
            raise Unsupported(_AFTER)
        if at.network is scope.network or found is None:
            return found
        if isinstance(found, Sequence):
            return Sequence([self._capture(scope, at, v) for v in found])
        if isinstance(found, Narrow):
            return Narrow(self._capture(scope, at, found.value), found.dtype)
        if isinstance(found, Text):
            return Text(self._capture(scope, at, found.value))
        return self._capture(scope, at, found)

    def _capture(self, scope: Scope, at: Scope, value: Value) -> Value:
        """A value of a network further out, as an input of this one and of those between."""
        root = scope.root()
        if root.parent is not None and root.parent.network is not at.network:
            value = self._capture(root.parent, at, value)
        if value not in root.captured:
            if value.kind == "constant" and value.array.nbytes <= MAX_CONSTANT:
                inner = root.network.constant(value.array)
            else:
                inner = root.network.input(f"outer{len(root.captured)}", value.spec)
                inner.known = value.known
                self.origin[inner] = value
            root.captured[value] = inner
        return root.captured[value]

    # --------------------------------------------------------------------------------------------------- nodes

    def _nodes(self, scope: Scope, graph: Any) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"functions and subgraphs are nested more than {MAX_DEPTH} deep")
        try:
            for i, node in enumerate(graph.node):
                if self.done and graph is self.model.graph:
                    self.done(i, len(graph.node))
                self.recorded += 1
                if self.recorded > MAX_NODES:
                    raise self.error(f"has more than {MAX_NODES:,} nodes, with the functions it calls")
                self._node(scope, node)
        finally:
            self.depth -= 1

    def _node(self, scope: Scope, node: Any) -> None:
        before, scope.network.where = scope.network.where, path_of(node, self.model.weights) or scope.path
        try:
            results = self._import(scope, node)
            if len(results) < len(node.output):
                raise Unsupported(f"it has {len(node.output)} results, and ingot's {len(results)}")
            for name, result in zip(node.output, results, strict=False):
                if name:
                    self._define(scope, name, result)
            return
        except Unknown as e:
            self.wanted |= self._origins(e.value)
            self._fail(scope, node, e)
        except (Unsupported, OpError, DimError, DTypeError, UnsupportedError, ValueFault) as e:
            self._fail(scope, node, e)
        finally:
            scope.network.where = before

    def _define(self, scope: Scope, name: str, result: Any) -> None:
        if name in scope.values:
            raise self.error(f"{name[:80]!r} is made twice")
        scope.values[name] = result

    def _fail(self, scope: Scope, node: Any, why: Exception) -> None:
        """Remembers a fault; what depends on it is not tried."""
        op = node.op_type if not node.domain else f"{node.domain}.{node.op_type}"
        if str(why) != _AFTER:
            self.faults.add(op, why, node.name or (node.output[0] if node.output else ""))
        for name in node.output:
            if name and name not in scope.values:
                scope.values[name] = _UNKNOWN

    def _origins(self, value: Value) -> set[str]:
        """The model's inputs that a value's elements depend on."""
        found: set[str] = set()
        todo, seen = [value], {value}
        while todo:
            one = todo.pop()
            one = self.origin.get(one, one)
            if one.kind == "input" and one.network is self.network:
                found.add(one.name)
            elif one.node is not None:
                new = [v for v in one.node.inputs if v not in seen]
                seen.update(new)
                todo += new
        return found

    def _import(self, scope: Scope, node: Any) -> tuple[Any, ...]:
        call = Call(self, scope, node)
        operands = [self.lookup(scope, name) if name else None for name in node.input]
        attributes = self._attributes(scope, node)
        function = self.model.function(call.domain, call.op, getattr(node, "overload", ""))
        if function is not None:
            return self._inlined(scope, function, operands, attributes)
        if not call.version:
            raise Unsupported(f"the model says no version of the opset {node.domain or 'ai.onnx'!r:.80}")
        entry = find(call.domain, call.op, call.version)
        if entry is not None:
            return self._run(entry, call, operands, attributes)
        standard = self.model.standard(call.op, call.domain, call.version)
        if standard is None:
            raise Unsupported(NO_SUCH_OP, REPLACE)
        return self._inlined(scope, standard.function, operands, standard.defaults | attributes)

    def _run(self, entry: Entry, call: Call, operands: list[Any], attributes: dict[str, Any]) -> tuple[Any, ...]:
        tensors = [x for x in operands if isinstance(x, Value)]
        if entry.folds and tensors and all(x.array is not None for x in tensors) and len(tensors) == sum(
            x is not None for x in operands
        ):
            found: tuple[Any, ...] | None = self._folded(entry, call, operands, attributes)
            if found is not None:
                return found
        if entry.moves and any(isinstance(x, Narrow) for x in operands):
            kind = next(x.dtype for x in operands if isinstance(x, Narrow))
            plain = [x.value if isinstance(x, Narrow) else x for x in operands]
            found = self._several(call.network, carried_out(run, entry, call, plain, attributes))
            return tuple([None if x is None else Narrow(x, kind) for x in found])
        operands = agreeing(call.domain, call.op, operands, attributes)
        results = carried_out(run, entry, call, operands, attributes)
        return self._several(call.network, results)

    def _several(self, network: Network, results: Any) -> tuple[Any, ...]:
        """The results of a node, each a tensor, a sequence or None. Arrays become constants."""
        return tuple([self._value(network, r) for r in (results if type(results) is tuple else (results,))])

    def _value(self, network: Network, result: Any) -> Any:
        if result is None:
            return None
        if isinstance(result, Value) and result.network is network:
            known = result.known if result.array is None else None
            if known is None or not all(type(n) is int for n in known.flat):
                return result
            return network.constant(known.astype(result.dtype.numpy))  # sizes of a shape that are numbers
        if isinstance(result, Sequence):
            self.items += len(result)
            if len(result) > MAX_PIECES or self.items > MAX_ITEMS:
                raise Unsupported(f"a sequence has at most {MAX_PIECES:,} tensors, all of them {MAX_ITEMS:,}")
            if not all(isinstance(r, Value | Narrow) for r in result):
                raise Unsupported("a sequence has tensors, and one of them is none")
            return Sequence([self._value(network, r) for r in result])
        if isinstance(result, Narrow):
            return Narrow(self._value(network, result.value), result.dtype)
        if isinstance(result, Text):
            return Text(self._value(network, result.value))
        if is_text(result):
            return table_of(network, result)
        if isinstance(result, Value):
            return _adopted(network, result)
        return network.constant(np.asarray(result))

    def _folded(self, entry: Entry, call: Call, operands: list[Any], attributes: dict[str, Any]) -> Any:
        """The results computed at once, when they are small. None: they are not."""
        apart = Recorder("folded")
        before, call.network = call.network, apart
        try:
            moved = [None if x is None else apart.constant(x.array) for x in operands]
            results = self._several(apart, carried_out(run, entry, call, moved, attributes))
            made = [v for node in apart.nodes for v in node.outputs]
            if any(not isinstance(r, Value | None) for r in results) or not all(_known(v.spec) for v in made):
                return None
            if sum(_bytes(v.spec) for v in made) > MAX_FOLDED:
                return None
            for one in apart.nodes:
                if self.budget.refuses(one):
                    return None
                self.budget.spend(one)
            for i, result in enumerate(results):
                if result is not None:
                    apart.output(f"y{i}", result)
            apart.remove_dead()
            arrays = interpret(apart, {}, {})
        finally:
            call.network = before
        return tuple([
            None if r is None else before.constant(np.asarray(arrays[f"y{i}"])) for i, r in enumerate(results)
        ])  # fmt: skip

    def _attributes(self, scope: Scope, node: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for attribute in node.attribute:
            if attribute.name in found:
                raise self.error(f"{node.op_type[:60]} has the attribute {attribute.name[:60]!r} twice")
            if attribute.ref_attr_name:
                if scope.attributes is None:
                    raise self.error(f"{node.op_type[:60]} refers to an attribute of a function, and is in none")
                if attribute.ref_attr_name in scope.attributes:
                    found[attribute.name] = scope.attributes[attribute.ref_attr_name]
            else:
                found[attribute.name] = self.model.attribute(attribute)
        return found

    # ------------------------------------------------------------------------------------ functions and subgraphs

    def _inlined(
        self, scope: Scope, function: Any, operands: list[Any], attributes: dict[str, Any]
    ) -> tuple[Any, ...]:
        if len(operands) > len(function.input):
            raise Unsupported(f"it has {len(operands)} operands, and the function takes {len(function.input)}")
        inner = Scope(scope.network, self.model.versions_of(function), None, scope.network.where)
        known = {a.name: self.model.attribute(a) for a in function.attribute_proto}
        inner.attributes = known | attributes
        inner.values = dict.fromkeys(function.input) | dict(zip(function.input, operands, strict=False))
        self._nodes(inner, function)
        return tuple([self.lookup(inner, name) for name in function.output])

    def inline(self, scope: Scope, graph: Any, operands: list[Any]) -> list[Any]:
        """A subgraph's outputs, recorded in the network around it."""
        inner = Scope(scope.network, scope.versions, scope, scope.network.where)
        return self._graph(inner, graph, operands)

    def body(self, scope: Scope, graph: Any, specs: list[Any]) -> Body:
        """A subgraph as a network of its own."""
        network = Recorder(graph.name if graph.name.isidentifier() else "body")
        inner = Scope(network, scope.versions, scope, scope.network.where)
        operands = [network.input(f"x{i}", spec) for i, spec in enumerate(specs)]
        before, wanted = self.faults, set(self.wanted)
        self.faults = Faults(OTHERWISE)
        try:
            results, found = self._graph(inner, graph, list(operands)), self.faults.found
        except Unsupported:
            if not (found := self.faults.found):
                raise
        finally:
            self.faults = before
        if found:
            self.wanted = wanted
            raise Unsupported("; ".join(f"{op} in its body: {why}" for op, why in list(found)[:4]))
        for i, value in enumerate(results):
            if not isinstance(value, Value):
                raise Unsupported("its body gives what is no tensor")
            network.output(f"y{i}", value)
        return Body(network, [v for v, own in inner.captured.items() if own.kind == "input"])

    def _graph(self, scope: Scope, graph: Any, operands: list[Any]) -> list[Any]:
        scope.attributes = scope.parent.attributes if scope.parent else None
        for tensor in graph.initializer:
            array = self.model.tensors.array(tensor)
            self._define(scope, tensor.name, marked(scope.network.constant(carried(array)), Spec.of(array)))
        for tensor in graph.sparse_initializer:
            self._define(scope, tensor.values.name, scope.network.constant(self.model.sparse(tensor)))
        names = [info.name for info in graph.input]
        if len(names) != len(operands):
            raise Unsupported(f"its subgraph takes {len(names)} values, not {len(operands)}")
        for name, value in zip(names, operands, strict=True):
            self._define(scope, name, value)
        self._nodes(scope, graph)
        return [self.lookup(scope, info.name) for info in graph.output]


class _Carried(Mapping[str, Array]):
    """Weights as what carries them."""

    def __init__(self, weights: Mapping[str, Array]) -> None:
        self._weights = weights

    def __getitem__(self, name: str) -> Array:
        return carried(self._weights[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


_UNKNOWN = object()
_AFTER = "it reads a result that ingot does not compute"


def _known(spec: Any) -> bool:
    return isinstance(spec, Spec) and spec.is_fixed


def _bytes(spec: Spec) -> int:
    count = spec.elements
    assert isinstance(count, int)
    return count * spec.dtype.numpy.itemsize


def _adopted(network: Network, value: Value) -> Value:
    """A value of a detached network, which an op without tensor operands made, here."""
    network.join(value.network, value.node.op)
    return value
