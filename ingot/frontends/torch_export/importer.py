"""From an exported program to a Network: the same ops, under the user's names, with the user's lines and modules."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ingot import dims, dtypes
from ingot.dims import Dim, Dimension, Expr
from ingot.dtypes import DType
from ingot.errors import CheckpointError, DimError, DTypeError, OpError, UnsupportedError
from ingot.frontends.narrow import Narrow, carried, carried_spec, is_narrow
from ingot.frontends.recording import Done, Faults, Imported, Recorder, Renamed, checked
from ingot.frontends.table import NO_SUCH_OP, carried_out
from ingot.frontends.torch_export import branches, eight_bits, higher_order, quantities
from ingot.frontends.torch_export.agreement import agreeing
from ingot.frontends.torch_export.aten import COMPLEX_TABLE, TABLE, Complex, Known, Unsupported, call, entry_for
from ingot.frontends.torch_export.aten import sizes as size_ops
from ingot.frontends.torch_export.aten.complex import PARTS
from ingot.frontends.torch_export.aten.promotion import cast, size_tensor
from ingot.frontends.torch_export.graph import CHECKS, Body, Graph, GraphNode, Opaque, Ref, SizeRef, refs
from ingot.frontends.torch_export.memory import Memory, shares
from ingot.frontends.torch_export.plain_forms import in_place
from ingot.frontends.torch_export.program import Program
from ingot.frontends.torch_export.reals import Real
from ingot.frontends.torch_export.symbol_dims import SymbolDims, same_sizes
from ingot.frontends.torch_export.ways_out import way_out
from ingot.frontends.widened import Widened, widened
from ingot.ir import F, Network, Spec, Value
from ingot.ir.checked import to_shape
from ingot.ir.sizes import as_size

Array = np.ndarray[Any, Any]

AnyValue = Value | Complex | Narrow
NUMBERS = {"aten.item.default", "aten._local_scalar_dense.default"}  # Python numbers of values
MAX_ROUNDED = 1_000
MAX_CONSTANT = 64 << 10  # bytes of an integer buffer that becomes a constant of the network, for folding


class Source(NamedTuple):
    """Where an exported program's tensors are: what is known of each by name, the arrays, and the state dict."""

    spec: Callable[[str], tuple[Any, Spec]]  # a key that tied tensors share, and the Spec
    arrays: Mapping[str, Array]
    state: Mapping[str, Any]  # name → that key


def build_network(
    program: Program, source: Source, name: str, dim_names: Mapping[str, Dimension] | None = None,
    done: Done | None = None,
) -> Imported:  # fmt: skip
    """The network of a program.

    Args:
        name: of the file or module, for messages.
        dim_names: what symbols of the program become, dims or expressions of them; others are called dim_0, dim_1, …
            as inputs name them.
        done: called after every node.

    Raises:
        UnsupportedError: ops that ingot has no counterpart for, all at once, with the user's lines.
        CheckpointError: a program that contradicts itself or its weights.
    """
    return _Importer(program, source, name, dim_names or {}).run(done)


class _Importer:
    def __init__(self, program: Program, source: Source, name: str, dim_names: Mapping[str, Dimension]) -> None:
        self.program, self.source, self.name = program, source, name
        self.graph: Graph = program.graph  # the one whose nodes are being imported
        self.network = Recorder("main")
        self.values: dict[str, Any] = {}  # Values of tensors, Dimensions (or truths) of sizes
        self.sizes = SymbolDims(name, program.ranges, dim_names)
        self.faults = Faults("change the line as the reason says, or compute it outside of the module")
        self.notes: list[str] = []
        self.placeholders: dict[str, str] = {}
        self.sources: dict[str, str] = {}  # a parameter's name in the network → in the source
        self.buffers: set[str] = set()
        self.tied: dict[Any, Value] = {}
        self.eight_bits: set[str] = set()  # parameters that are floats of 8 bits
        self.memory = Memory(self.values)
        self.mistold: set[str] = set()  # tensors that torch makes otherwise than the file says
        self.made: dict[str, Any] = {}  # what every tensor was when it was made
        self.rounded = 0  # sizes from floats, each of which is compared with its whole numbers
        self.changed: set[str] = set()  # the user's inputs that the program changes

    def run(self, done: Done | None) -> Imported:
        self._inputs()
        for index, node in enumerate(self.graph.nodes):
            self._node(node)
            if done:
                done(index + 1, len(self.graph.nodes))
        self._checks()
        self._outputs()
        self.faults.report(self.name)
        computed = widened(self.network, self.eight_bits)
        self.notes += self.network.sweep()
        values = {n: _in_network(v) for n, v in self.made.items()}
        kept = {name: v for name, v in values.items() if isinstance(v, Value) and v.name in self.network.values}
        weights = Widened(_InPairs(self.source.arrays, self.sources), computed)
        buffers = frozenset(self.buffers)
        return Imported(self.network, weights, self.notes, self.placeholders, kept, buffers, self._aliases())

    def _aliases(self) -> dict[str, str | None]:
        found: dict[str, str | None] = {}
        for name, key in self.source.state.items():
            value = self.tied.get(key)
            if value is None or self.network.values.get(value.name) is not value:
                found[name] = None
            elif value.name != name:
                found[name] = value.name
        return found

    def error(self, why: str) -> CheckpointError:
        return CheckpointError(f"{self.name}: {why}")

    # -------------------------------------------------------------------------------------------------- inputs

    def _inputs(self) -> None:
        graph = self.program.graph
        names = iter(self._input_names())
        users: list[tuple[str, str]] = []
        for argument, spec in zip(graph.inputs, self.program.inputs, strict=True):
            if spec.kind == "user":
                if type(argument) is not Ref:
                    what = f"the symbolic number {argument.name}" if type(argument) is SizeRef else repr(argument)[:80]
                    raise self.error(f"input {next(names)} is {what}; inputs must be tensors")
                users.append((argument.name, next(names)))
            elif spec.kind == "value":
                self.notes.append(f"the argument {next(names)} is fixed at {spec.argument!r:.80}, as exported")
            elif spec.kind not in ("parameter", "buffer", "constant"):
                raise self.error(f"the program takes a {spec.kind}, which ingot does not know")
        for placeholder, name in users:
            try:
                stated = self._stated(placeholder)
            except Unsupported as e:
                raise UnsupportedError(f"{self.name}: input {name}: {e}") from None
            value = self.network.input(name, checked(_in_pairs(stated), name, self.name))
            self.placeholders[name] = placeholder
            self._define(placeholder, _of_type(value, stated.dtype))
            if is_narrow(stated.dtype):
                self.notes.append(f"input {name} is {stated.dtype.name}, taken as its bits in {value.dtype.name}")
        self.sizes.check_inputs(self.network.inputs)
        dequantised = quantities.dequantised(graph)
        read = {name for node in graph.nodes for name in refs(a.value for a in node.arguments)} | {*refs(graph.outputs)}
        for argument, spec in zip(graph.inputs, self.program.inputs, strict=True):
            if spec.kind in ("parameter", "buffer", "constant") and argument.name in read:
                fixed = f"it changes the {spec.kind} {spec.name} in place, and {_STATELESS}"
                kind = "integers" if argument.name in dequantised else spec.kind
                self._define(argument.name, self._stored(argument.name, spec.name, kind), fixed)

    def _input_names(self) -> list[str]:
        """The name of every user's input: forward's parameter, and below it the path of a nested one."""
        program = self.program
        plain = [
            spec.name or getattr(argument, "name", f"input_{i}")
            for i, (argument, spec) in enumerate(zip(program.graph.inputs, program.inputs, strict=True))
            if spec.kind in ("user", "value")
        ]
        found = ["_".join(path) for path in program.input_paths()]
        good = len(found) == len(plain) and len(set(found)) == len(found) and all(n.isidentifier() for n in found)
        return found if good else plain

    def _checks(self) -> None:
        """What a run checks of sizes: that forward goes as it did for the example."""
        self.network.where, self.network.line = "", None
        self.notes += branches.words(self.program.narrowed, self.sizes.size)
        for branch in self.program.branches:
            shown = branch.of(self.sizes.size)
            if (sides := branches.as_integers(shown)) is None or branches.certain(shown, dims.bounds):
                continue
            difference = dims.add(sides[0], dims.mul(sides[1], -1))
            holds = branches.TESTS[shown.op](difference, self.network.scalar(0, dtypes.int64))
            F.assertion(holds, message=f"{branches.OTHER_WAY}, {shown.where}: {branches.CHOOSE}")
            self.notes.append(f"{branches.REFUSED}: {shown.where}")

    def _stored(self, placeholder: str, name: str, kind: str) -> Value | Complex | Narrow:
        """The value of a parameter, buffer or constant, or of integers to dequantise; tied tensors are one value."""
        key, spec = self.source.spec(name)
        meta = self.graph.tensors[placeholder]
        if meta.dtype is not spec.dtype or meta.sizes != spec.shape:
            stated = f"{meta.dtype.short}{list(meta.sizes)}"
            raise self.error(f"{name} is {spec} where it is stored and {stated} in the program")
        whole = checked(_in_pairs(spec), name, self.name)
        if key not in self.tied:
            self.tied[key] = self._parameter(name, kind, whole)
        if is_narrow(spec.dtype):
            self.eight_bits.add(self.tied[key].name)
        return _of_type(self.tied[key], spec.dtype)

    def _parameter(self, name: str, kind: str, spec: Spec) -> Value:
        small = isinstance(spec.elements, int) and spec.elements * spec.dtype.bits // 8 <= MAX_CONSTANT
        free = self.network.free_name(name)
        known = kind in ("buffer", "constant") and not spec.dtype.is_float and small
        if known:  # indices, masks: folding wants to see them
            return self.network.constant(np.array(carried(self.source.arrays[name])), free)
        self.sources[free] = name
        if kind != "parameter":
            self.buffers.add(free)
        return self.network.parameter(free, spec)

    def _define(self, name: str, value: Any, fixed: str = "") -> None:
        """Gives a tensor of the program its value. fixed: why it must not change."""
        self.memory.own(name, value, fixed)
        self.made[name] = value

    # --------------------------------------------------------------------------------------------------- nodes

    def _node(self, node: GraphNode) -> None:
        self.network.where, self.network.line = node.where, node.line
        try:
            self._import(node)
        except OpError as e:
            self._fail(node, e, "")  # says the place by itself
        except (Unsupported, DimError, DTypeError) as e:
            place = f"{os.path.basename(node.line[0])}:{node.line[1]}" if node.line else ""
            self._fail(node, e, f"{place} in {node.where}" if place and node.where else place or node.where)

    def _import(self, node: GraphNode) -> None:
        op = node.op
        if op in CHECKS or self.graph.idle(node):
            return
        if op in size_ops.NAMES:
            self.rounded += op in size_ops.ROUNDS
            if self.rounded > MAX_ROUNDED:
                raise Unsupported(f"more than {MAX_ROUNDED:,} sizes are rounded from floats")
            found = size_ops.compute(op, tuple(self._resolved(a.value) for a in node.arguments))
            self._results(node, found if isinstance(found, tuple) else (found,))
            return
        if (block := higher_order.TABLE.get(op)) is not None:
            self._results(node, carried_out(block, self, *(self._resolved(a.value) for a in node.arguments)))
            return
        if op in NUMBERS:
            self._number(node)
            return
        arguments = {a.name: self._resolved(a.value) for a in node.arguments}
        target = None
        if op not in TABLE and op not in COMPLEX_TABLE and (plain := in_place(op, arguments)) is not None:
            written = "out" if plain[0].rpartition(".")[0] == op.rpartition(".")[0] else "self"
            target = next((a.value.name for a in node.arguments if a.name == written and type(a.value) is Ref), None)
            op, arguments = plain
        if op.startswith(quantities.SPACE):
            arguments = {k: self._known(v) if k in quantities.NAMES else v for k, v in arguments.items()}
        if any(map(eight_bits.concerns, arguments.values())):
            self._results(node, _several(eight_bits.call(op, TABLE.get(op), self.network, arguments, call)))
            return
        entry = entry_for(op, arguments)
        if entry is None:
            raise Unsupported(NO_SUCH_OP, way_out(op))
        if target is not None and "self" in arguments and "self" not in entry.kinds:
            arguments["input"] = arguments.pop("self")
        found = call(entry, self.network, agreeing(op, arguments))
        results = _several(found)
        if target is None:
            self._results(node, results, entry.views)
        elif entry.views:  # y.t_(): the same memory, seen in another shape
            self._results(node, results, True)
            self.memory.lose(target, f"it reads {target}, which has another shape since {node.op}; use the op's result")
        else:
            self._change(node, target, results[0])

    def _number(self, node: GraphNode) -> None:
        """A Python number of a tensor: a size where torch knows that it is none below 0, else a tensor without
        dimensions, for operands are all that it can be.
        """
        given, made = [self._resolved(a.value) for a in node.arguments], list(node.results())
        x, output = (given[0], made[0]) if len(given) == len(made) == 1 else (None, None)
        if not isinstance(x, Value) or type(output) is not SizeRef or x.spec.elements != 1:
            raise Unsupported("it is supported for real tensors of one element")
        x = F.reshape(x, ()) if x.shape else x
        symbol = self.graph.sizes.get(output.name)
        bounds = self.program.ranges.get(symbol.name) if isinstance(symbol, Dim) else None
        if bounds is None or bounds.low is None or bounds.low < 0 or not x.dtype.is_integer:
            self.values[output.name] = x
            return
        size = as_size(x)
        if isinstance(symbol, Dim):
            self.sizes.bind(symbol, size)
        self.values[output.name] = size

    def _resolved(self, value: Any) -> Any:
        if type(value) in (Ref, SizeRef):
            found = self.values.get(value.name)
            if found is None:
                raise Unsupported(f"it reads {value.name}, a result that ingot does not compute")
            return self.memory.read(value.name) if type(value) is Ref else found
        if type(value) is tuple:
            return tuple([self._resolved(item) for item in value])
        if type(value) is Opaque:
            raise Unsupported(f"an argument of the kind {value.kind} is not supported")
        return value

    def _known(self, value: Any) -> Any:
        """A constant or a stored tensor with its numbers; other values as they are."""
        if isinstance(value, Value) and value.kind == "constant":
            return Known(value, value.array)
        stored = self.sources.get(value.name) if isinstance(value, Value) and value.kind == "parameter" else None
        return value if stored is None else Known(value, np.asarray(self.source.arrays[stored]))

    def _results(self, node: GraphNode, results: tuple[Any, ...], views: bool = False) -> None:
        """Names what a node made, and compares it with what the file says about it. views: of the first operand."""
        whole = next((a.value.name for a in node.arguments if type(a.value) is Ref), None) if views else None
        outputs = list(node.outputs)
        if len(outputs) == 1 and type(outputs[0]) is tuple:
            outputs = list(outputs[0])
        if len(outputs) != len(results):
            raise Unsupported(f"it has {len(outputs)} results here, and {len(results)} in ingot's table")
        for output, result in zip(outputs, results, strict=False):
            if not isinstance(output, Ref | SizeRef) or result is None:
                continue
            if isinstance(output, Ref):
                if not isinstance(result, Value | Complex | Narrow):
                    raise Unsupported("its result is not a tensor")
                result = self._settled(node, output.name, result)
                tensors = self.graph.tensors
                has = None if whole is None else shares(node, tensors[whole], tensors[output.name])
                if whole is None or has is False:
                    self._define(output.name, result)
                else:
                    self.memory.view(output.name, whole, result, has is True)
                    self.made[output.name] = result
            else:
                self.values[output.name] = result

    def _settled(self, node: GraphNode, name: str, value: AnyValue) -> Any:
        """A result of the shape that the file says, which the run checks where it depends on data."""
        self.sizes.learn(self.graph.tensors[name].sizes, value.shape)
        stated = self._stated(name)
        if isinstance(value, Value) and value.spec != stated:
            if any(d.unbacked for d in dims.dims_of((*value.shape, *stated.shape)).values()):
                value = to_shape(value, stated.shape)
            if self._mistold(node, stated, value.spec):
                self.mistold.add(name)
                return value
        self._check_meta(name, value)
        return value

    def _mistold(self, node: GraphNode, stated: Spec, found: Spec) -> bool:
        """Whether torch 2.11 is known to write something else about a result than it computes: the last states of an
        LSTM with a dimension of 1 more, places and counts of `unique` in the type of its operand, weighted counts as
        integers. It goes on so with all that is made of them.
        """
        if node.op == "aten.lstm.input":
            sizes = stated.shape
            return sizes[1:2] == (1,) and Spec((sizes[0], *sizes[2:]), stated.dtype) == found
        if node.op in ("aten._unique2.default", "aten.bincount.default"):
            return stated.shape == found.shape
        return any(name in self.mistold for name in refs(a.value for a in node.arguments))

    def _check_meta(self, name: str, value: AnyValue) -> None:
        """The file's own word about a result. A difference is a fault of the file, or of our table."""
        self.sizes.learn(self.graph.tensors[name].sizes, value.shape)
        stated = self._stated(name)
        if value.dtype is not stated.dtype or not same_sizes(stated.shape, value.shape):
            raise Unsupported(f"it makes {value.spec} of its operands, and the file says {stated}")

    def _stated(self, name: str, stands_in: bool = False) -> Spec:
        """What the file says about a tensor, for one that `stands_in` for a fault with any dim for sizes unsaid."""
        meta, size = self.graph.tensors[name], self.sizes.standing_in if stands_in else self.sizes.size
        try:
            return Spec(tuple(map(size, meta.sizes)), meta.dtype)
        except OpError as e:
            raise self.error(f"{name[:80]}: {e}") from None

    def _fail(self, node: GraphNode, why: Exception, place: str) -> None:
        """Remembers a fault and goes on with unknown results of the right kind, so that all faults are found."""
        self.faults.add(node.op, why, place)
        for result in node.results():
            if type(result) is Ref and result.name:
                stated = self._stated(result.name, stands_in=True)
                stand_in = Value(self.network, f"unknown.{result.name}", _in_pairs(stated), "input")
                self._define(result.name, _of_type(stand_in, stated.dtype))
            elif type(result) is SizeRef and result.name:
                self.values[result.name] = self.sizes.standing_in(self.graph.sizes.get(result.name, 1))

    def _change(self, node: GraphNode, name: str, result: Any) -> None:
        """Changes a tensor in place; the node's result is another name of it."""
        old = self.values[name]
        if type(result) is type(old) is Complex:
            new: Any = Complex(cast(result.pairs, old.pairs.dtype))
        elif type(result) is type(old):
            new = to_shape(cast(result, old.dtype), old.shape)
        else:
            raise Unsupported(f"a change in place cannot make {result.spec} of {old.spec}")
        if new.shape != old.shape:
            raise Unsupported(f"a change in place cannot make {new.spec} of {old.spec}")
        self.memory.write(name, new)
        root = self.memory.root(name)
        if root in self.placeholders.values():
            self.changed.add(root)
        for output in node.results():
            if type(output) is Ref and output.name:
                self._check_meta(output.name, new)
                self.memory.view(output.name, name, new)
                self.made[output.name] = new

    # ------------------------------------------------------------------------------------------- graphs inside

    def inline(self, graph: Body, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The results of a graph inside of the program, with its ops recorded in this network."""
        inner: Graph = graph.graph
        if len(inner.inputs) != len(arguments):
            raise Unsupported(f"its graph takes {len(inner.inputs)} arguments, not {len(arguments)}")
        outside = self.graph, self.values, self.memory
        self.graph, self.values = inner, {}
        self.memory = Memory(self.values)
        try:
            for argument, value in zip(inner.inputs, arguments, strict=True):
                if type(argument) is Ref:
                    self._check_meta(argument.name, value)
                    self.memory.own(argument.name, value, _OUTSIDE)
                elif type(argument) is SizeRef:
                    self.values[argument.name] = value
            for node in inner.nodes:
                self._node(node)
            return tuple([self._resolved(output) for output in inner.outputs])
        finally:
            self.graph, self.values, self.memory = outside

    def network_of(self, graph: Body, arguments: tuple[Any, ...], specs: list[Spec]) -> Network:
        """A network of a graph inside of the program. Its inputs stand for the tensors among the arguments."""
        outside = self.network
        self.network = Recorder(graph.name)
        self.network.dims.update(outside.dims)
        try:
            inputs = iter([self.network.input(f"x{i}", spec) for i, spec in enumerate(specs)])
            given = tuple([next(inputs) if isinstance(x, Value) else x for x in arguments])
            for i, value in enumerate(self.inline(graph, given)):
                if not isinstance(value, Value):
                    raise Unsupported(f"result {i} of its graph {graph.name} is no tensor")
                self.network.output(f"y{i}", value)
            self.network.remove_dead()
            return self.network
        finally:
            self.network = outside

    # ------------------------------------------------------------------------------------------------- outputs

    def _outputs(self) -> None:
        self.network.where, self.network.line = "", None
        program = self.program
        for name, argument, spec in zip(self._output_names(), program.graph.outputs, program.outputs, strict=True):
            if spec.kind == "user_input_mutation":
                self.changed.add(spec.name)
            elif spec.kind != "user_output":
                what = spec.kind.replace("_", " ") + (f" of {spec.name:.100}" if spec.name else "")
                why = f"the program changes something outside itself ({what}). In training mode batch norm does: "
                self.faults.add("output", why + "call module.eval() before torch.export.export", "")
            elif argument is None:
                self.notes.append(f"{name} is None and was left out")
            elif (value := self._output(argument)) is None:
                self.faults.add("output", f"{name} is no tensor: {argument!r:.80}", "")
            else:
                self.network.output(name, value)
        for name, placeholder in self.placeholders.items():
            if placeholder in self.changed:
                self.notes.append(f"the program changes its input {name} in place; an engine leaves the caller's alone")
        if not self.network.outputs and not self.faults.found:
            raise self.error("the program returns no tensor")

    def _output(self, argument: Any) -> Value | None:
        """A tensor, or a number as a tensor without dimensions."""
        found = self.values.get(argument.name) if type(argument) in (Ref, SizeRef) else argument
        if type(argument) is Ref and found is not None:
            found = self.memory.read(argument.name)
        if isinstance(found, Value | Complex | Narrow):
            return _in_network(found)  # type: ignore[no-any-return]
        if isinstance(found, Expr):
            return size_tensor(found, dtypes.int64)
        if isinstance(found, Real):
            return cast(found.tensor(), dtypes.float32)
        kind = {bool: dtypes.bool_, int: dtypes.int64, float: dtypes.float32}.get(type(found))
        return None if kind is None else self.network.constant(np.array(found, kind.numpy))

    def _output_names(self) -> list[str]:
        """The keys of the dict that forward returns, else output_0, …"""
        count = len(self.program.outputs)
        changes = sum(spec.kind != "user_output" for spec in self.program.outputs)
        tree = self.program.out_tree
        plain = [f"output_{i - changes}" if i >= changes else "" for i in range(count)]
        if tree is None or not tree.keys or tree.leaves() != count - changes:
            return plain
        named = ["_".join(path) for path in tree.paths()]
        good = len(set(named)) == len(named) and all(n and n.isprintable() and len(n) < 200 for n in named)
        return [""] * changes + named if good else plain


class _InPairs(Renamed):
    """With complex numbers as pairs, and floats of 8 bits as their bits."""

    def __getitem__(self, name: str) -> Array:
        return in_pairs(super().__getitem__(name))


def in_pairs(array: Array) -> Array:
    """Complex numbers as pairs (real, imaginary) in one dimension more, floats of 8 bits as their bits in uint8; other
    arrays as they are.
    """
    return np.stack((array.real, array.imag), -1) if np.iscomplexobj(array) else carried(array)


def _of_type(value: Value, dtype: DType) -> Value | Complex | Narrow:
    """A tensor of the file's type, of the value that the network has for it."""
    return Complex(value) if dtype in PARTS else Narrow(value, dtype) if is_narrow(dtype) else value


def _in_network(value: Any) -> Any:
    """What the network has for a tensor."""
    return value.pairs if isinstance(value, Complex) else value.value if isinstance(value, Narrow) else value


def _several(found: Any) -> tuple[Any, ...]:
    return found if type(found) is tuple else (found,)


def _in_pairs(spec: Spec) -> Spec:
    part = PARTS.get(spec.dtype)
    return carried_spec(spec) if part is None else Spec((*spec.shape, 2), part)


_STATELESS = (
    "an engine keeps nothing from run to run: return the new value and give it as an input of the next run, or clone "
    "it first"
)


_OUTSIDE = "it changes a tensor from outside in place inside of a branch, a loop or a block: clone it first"
