"""The exported program that a .pt2 archive describes: strict, typed, and checked as a graph.

Mirrors the schema of torch._export.serde (major version 8) as far as ingot reads it. What an op's arguments mean is
the business of the table in `aten`; here they become plain Python values.
"""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from ingot import dtypes, strict_json
from ingot.dims import Dimension, Expr
from ingot.dtypes import DType
from ingot.frontends.torch_export import symbols
from ingot.frontends.torch_export.decode import (
    Convert,
    Malformed,
    anything,
    boolean,
    dict_of,
    inside,
    integer,
    number,
    optional,
    record,
    text,
    tuple_of,
    union,
)
from ingot.frontends.torch_export.reals import Real

SCHEMA_MAJOR = 8
STRIDED = 7
MAX_NODES = 1_000_000
# Checks that torch makes while running. What they state about shapes our own rules check when the network is built.
CHECKS = {
    "aten._assert_scalar.default", "aten._assert_tensor_metadata.default", "aten._assert_async.msg",
    "aten.sym_constrain_range.default", "aten.sym_constrain_range_for_size.default", "aten._assert_async.default",
}  # fmt: skip


# -------------------------------------------------------------------------------------------------- arguments


class Ref(NamedTuple):
    """A tensor by its name in the graph."""

    name: str


class SizeRef(NamedTuple):
    """A number that depends on the inputs' sizes, by its name in the graph."""

    name: str


class Opaque(NamedTuple):
    """An argument of a kind that no op of the table takes: an object, for one."""

    kind: str


class Body(NamedTuple):
    """A graph that an op runs: a branch, or the body of a loop."""

    name: str
    graph: Any  # Graph


class Setting(NamedTuple):
    """A device, layout or memory format: where and how torch would keep a result, which changes no number."""

    kind: str


_DTYPES: dict[int, DType] = {
    1: dtypes.uint8, 2: dtypes.int8, 3: dtypes.int16, 4: dtypes.int32, 5: dtypes.int64, 6: dtypes.float16,
    7: dtypes.float32, 8: dtypes.float64, 10: dtypes.complex64, 11: dtypes.complex128, 12: dtypes.bool_,
    13: dtypes.bfloat16, 28: dtypes.uint16, 29: dtypes.float8_e4m3fn, 30: dtypes.float8_e5m2,
    31: dtypes.float8_e4m3fnuz, 32: dtypes.float8_e5m2fnuz, 33: dtypes.float8_e8m0fnu, 34: dtypes.uint32,
    35: dtypes.uint64,
}  # fmt: skip


def _dtype(value: Any) -> DType:
    code = integer(value)
    if code not in _DTYPES:
        raise Malformed(f"unknown element type {code}")
    return _DTYPES[code]


def _always(make: Any) -> Any:
    return lambda value: make


_ref = record(Ref, {"name": text})
_sized = union({"as_name": lambda v: SizeRef(text(v)), "as_int": integer}, "size")
_sized_float = union({"as_name": lambda v: SizeRef(text(v)), "as_float": number}, "number")
_sized_bool = union({"as_name": lambda v: SizeRef(text(v)), "as_bool": boolean}, "condition")
_maybe_ref = union({"as_tensor": _ref, "as_none": _always(None)}, "optional tensor")

_ARGUMENTS = {
    "as_none": _always(None),
    "as_tensor": _ref,
    "as_tensors": tuple_of(_ref),
    "as_optional_tensor": _maybe_ref,
    "as_optional_tensors": tuple_of(_maybe_ref),
    "as_int": integer,
    "as_ints": tuple_of(integer),
    "as_float": number,
    "as_floats": tuple_of(number),
    "as_complex": record(complex, {"real": number, "imag": number}),
    "as_bool": boolean,
    "as_bools": tuple_of(boolean),
    "as_string": text,
    "as_strings": tuple_of(text),
    "as_sym_int": _sized,
    "as_sym_ints": tuple_of(_sized),
    "as_sym_float": _sized_float,
    "as_sym_floats": tuple_of(_sized_float),
    "as_sym_bool": _sized_bool,
    "as_sym_bools": tuple_of(_sized_bool),
    "as_scalar_type": _dtype,
    "as_memory_format": lambda value: Setting(f"memory format {integer(value)}"),
    "as_layout": lambda value: Setting(f"layout {integer(value)}"),
    "as_device": _always(Setting("device")),
    "as_graph": record(Body, {"name": text, "graph": lambda value: _GRAPH(value)}),
    **{
        kind: _always(Opaque(kind))
        for kind in ("as_custom_obj", "as_operator", "as_nested_tensors", "as_int_lists",
                     "as_string_to_argument", "as_float_lists")
    },
}  # fmt: skip
_argument = union(_ARGUMENTS, "argument")


class Argument(NamedTuple):
    """An op's argument by the name of its schema."""

    name: str
    value: Any


# ------------------------------------------------------------------------------------------------------ values


_expression = record(lambda expr_str, hint: symbols.parse(expr_str), {"expr_str": text}, hint=(anything, None))
_size = union({"as_int": integer, "as_expr": _expression}, "size")


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """What the file says about a tensor."""

    dtype: DType
    sizes: tuple[Dimension, ...]
    strides: tuple[Dimension, ...]
    storage_offset: Dimension
    layout: int


def _meta(dtype: DType, sizes: Any, strides: Any, storage_offset: Any, layout: int, **_: Any) -> TensorMeta:
    if len(sizes) != len(strides):
        raise Malformed(f"{len(sizes)} sizes and {len(strides)} strides")
    if any(isinstance(d, int) and d < 0 for d in sizes):
        raise Malformed(f"a size is negative: {list(sizes)}")
    return TensorMeta(dtype, sizes, strides, storage_offset, layout)


tensor_meta = record(
    _meta,
    {"dtype": _dtype, "sizes": tuple_of(_size), "strides": tuple_of(_size), "storage_offset": _size, "layout": integer},
    requires_grad=(boolean, False),
    device=(anything, None),
)


# ------------------------------------------------------------------------------------------------------- nodes

_FRAME = re.compile(r'File "([^"\n]+)", line (\d+)')
_TORCH = f"{os.sep}torch{os.sep}"


@dataclass(frozen=True)
class GraphNode:
    """One call of an op."""

    target: str
    arguments: tuple[Argument, ...]
    outputs: tuple[Any, ...]  # Ref, SizeRef, tuples of Refs, or None
    metadata: dict[str, str]

    @property
    def op(self) -> str:
        """`aten.conv2d.default`, or `_operator.mul` for arithmetic on sizes."""
        return self.target.removeprefix("torch.ops.")

    @cached_property
    def line(self) -> tuple[str, int] | None:
        """File and line of the user's code: of the innermost frame outside torch."""
        frames = _FRAME.findall(self.metadata.get("stack_trace", ""))
        outside = [f for f in frames if _TORCH not in f[0] and not f[0].startswith(("torch/", "<"))]  # <eval_with_key>
        return (outside[-1][0], int(outside[-1][1][:9])) if outside else None

    @cached_property
    def where(self) -> str:
        """The path of the innermost module that was running."""
        last = self.metadata.get("nn_module_stack", "").rpartition(";")[2].split(",")
        path = last[1] if len(last) > 2 else ""
        return re.sub(r"^(L__self__|L\['self'\])\.?", "", path) if path.isprintable() and len(path) < 500 else ""

    def results(self) -> Iterator[Ref | SizeRef]:
        """Every value that the node makes."""
        for output in self.outputs:
            yield from (one for one in (output if type(output) is tuple else (output,)) if one is not None)


def _node(target: str, inputs: Any, outputs: Any, metadata: Any, **_: Any) -> GraphNode:
    names = [argument.name for argument in inputs]
    if not any(names) and len(names) > 1:  # a higher-order op, whose arguments have places only
        inputs = tuple([Argument(str(i), argument.value) for i, argument in enumerate(inputs)])
    elif len(set(names)) != len(names):
        raise Malformed(f"{target[:80]} has two arguments of one name: {', '.join(names)[:200]}")
    for output in outputs:
        several = type(output) is tuple and all(type(one) is Ref for one in output)
        if not several and type(output) not in (Ref, SizeRef, type(None), Opaque):
            raise Malformed(f"{target[:80]} makes {output!r:.80}, which is no tensor and no size")
    return GraphNode(target, inputs, outputs, metadata)


_graph_node = record(
    _node,
    {
        "target": text,
        "inputs": tuple_of(record(lambda name, arg, kind: Argument(name, arg), {"name": text, "arg": _argument},
                                  kind=(anything, None))),
        "outputs": tuple_of(_argument),
        "metadata": dict_of(text),
    },
    is_hop_single_tensor_return=(anything, None),
    name=(anything, None),
)  # fmt: skip


@dataclass(frozen=True)
class Graph:
    """Nodes in an order that can be run, and what is known about the values between them."""

    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    nodes: tuple[GraphNode, ...]
    tensors: dict[str, TensorMeta]
    sizes: dict[str, Any]

    @cached_property
    def _read(self) -> frozenset[str]:
        """The values that an output reads, or a node that is not idle and does more than check."""
        read = set(refs(self.outputs, sizes=True))
        for node in reversed(self.nodes):
            if node.op not in CHECKS and not _idle(node, read):
                read.update(refs((a.value for a in node.arguments), sizes=True))
        return frozenset(read)

    def idle(self, node: GraphNode) -> bool:
        """Whether it only makes values that nobody reads, such as random numbers that training alone looks at, or
        numbers for a check.
        """
        return _idle(node, self._read)


def _idle(node: GraphNode, read: Collection[str]) -> bool:
    made = list(node.results())
    name, _, overload = node.op.rpartition(".")
    changes = name.endswith("_") or overload.endswith("out")
    return bool(made) and not changes and all(type(m) in (Ref, SizeRef) and m.name not in read for m in made)


def _graph(inputs: Any, outputs: Any, nodes: Any, tensor_values: Any, sym_int_values: Any, **_: Any) -> Graph:
    return Graph(inputs, outputs, nodes, tensor_values, sym_int_values)


_GRAPH: Convert[Graph] = record(
    _graph,
    {
        "inputs": tuple_of(_argument),
        "outputs": tuple_of(_argument),
        "nodes": tuple_of(_graph_node),
        "tensor_values": dict_of(tensor_meta),
        "sym_int_values": dict_of(_size),
        "sym_bool_values": anything,
    },
    is_single_tensor_return=(anything, False),
    custom_obj_values=(anything, None),
    sym_float_values=(anything, None),
)


# --------------------------------------------------------------------------------------------------- signature


class Input(NamedTuple):
    """What one input of the graph is: a user's input, a stored tensor, or a constant of the export.

    kind: "user", "parameter", "buffer", "constant", "value", or another word of the schema that ingot refuses.
    """

    kind: str
    argument: Any  # Ref, SizeRef, or what an exported constant was
    name: str = ""  # of the stored tensor, or of forward's parameter


class Output(NamedTuple):
    """What one output of the graph is; every kind but "user_output" changes something outside the graph."""

    kind: str
    argument: Any
    name: str = ""


_constant_value = union(
    {"as_none": _always(None), "as_int": integer, "as_float": number, "as_string": text, "as_bool": boolean}, "constant"
)


def _stored(kind: str, name: str) -> Any:
    return record(lambda **f: Input(kind, f["arg"], f[name]), {"arg": _ref, name: text}, persistent=(boolean, True))


_input = union(
    {
        "user_input": record(lambda arg: Input("user", arg), {"arg": _argument}),
        "parameter": _stored("parameter", "parameter_name"),
        "buffer": _stored("buffer", "buffer_name"),
        "tensor_constant": _stored("constant", "tensor_constant_name"),
        "constant_input": record(lambda name, value: Input("value", value, name),
                                 {"name": text, "value": _constant_value}),
        "custom_obj": _always(Input("custom object", None)),
        "token": _always(Input("token", None)),
    },
    "input",
)  # fmt: skip


def _changes(kind: str, name: str) -> Any:
    return record(lambda **f: Output(kind, f["arg"], f[name]), {"arg": _ref, name: text})


_output = union(
    {
        "user_output": record(lambda arg: Output("user_output", arg), {"arg": _argument}),
        "loss_output": _always(Output("loss_output", None)),
        "token": _always(Output("token", None)),
        "buffer_mutation": _changes("buffer_mutation", "buffer_name"),
        "parameter_mutation": _changes("parameter_mutation", "parameter_name"),
        "user_input_mutation": _changes("user_input_mutation", "user_input_name"),
        "gradient_to_parameter": _changes("gradient_to_parameter", "parameter_name"),
        "gradient_to_user_input": _changes("gradient_to_user_input", "user_input_name"),
    },
    "output",
)


# -------------------------------------------------------------------------------------------------- tree specs


@dataclass(frozen=True)
class Tree:
    """The nesting of tuples, lists and dicts that a function took or returned; a leaf has no kind."""

    kind: str | None = None
    keys: tuple[str, ...] = ()  # of a dict, or the fields of a named tuple
    children: tuple[Tree, ...] = field(default=())

    def leaves(self) -> int:
        return 1 if self.kind is None else sum(child.leaves() for child in self.children)

    def paths(self) -> Iterator[tuple[str, ...]]:
        """For every leaf the keys and indices that lead to it."""
        if self.kind is None:
            yield ()
        for i, child in enumerate(self.children):
            step = self.keys[i] if self.keys else str(i)
            yield from ((step, *path) for path in child.paths())


_tree_node: Convert[dict[str, Any]] = record(
    dict, {"type": optional(text), "context": anything, "children_spec": anything}
)


def tree(spec: str) -> Tree:
    """The tree that torch's pytree wrote; Malformed for node types beyond tuples, lists and dicts."""
    try:
        value = strict_json.parse(spec.encode(errors="surrogatepass"))
    except strict_json.JsonError as e:
        raise Malformed(str(e)) from None
    if type(value) is not list or len(value) != 2 or value[0] != 1:
        raise Malformed("is no tree of protocol 1")
    return _tree(value[1])


def _tree(value: Any) -> Tree:
    node = _tree_node(value)
    kind, children = node["type"], node["children_spec"]
    if type(children) is not list:
        raise Malformed("children_spec must be a list")
    below = tuple([_tree(child) for child in children])
    if kind is None:
        if below:
            raise Malformed("a leaf has children")
        return Tree()
    return Tree(kind, _keys(kind, node["context"], len(below)), below)


def _keys(kind: str, context: Any, count: int) -> tuple[str, ...]:
    """The keys of a dict, or of a class of the user's that names its parts as a dict does."""
    try:
        found = strict_json.parse(context.encode()) if isinstance(context, str) else context
    except (strict_json.JsonError, UnicodeEncodeError) as e:
        raise Malformed(str(e)) from None
    if type(found) is list and len(found) == count and all(type(k) in (str, int) for k in found):
        return tuple(map(str, found))
    if kind in ("builtins.dict", "collections.OrderedDict"):
        raise Malformed(f"the keys of a dict must be strings, one for each of its {count} values")
    return ()


# ----------------------------------------------------------------------------------------------------- program


@dataclass(frozen=True)
class Range:
    """The bounds of a symbol; None is open."""

    low: int | None
    high: int | None


class Branch(NamedTuple):
    """What is true of sizes where forward goes as it did for the example."""

    left: Any  # an int, a float, a size or a Real
    op: str
    right: Any
    line: tuple[str, int] | None = None  # of the user's code

    def __str__(self) -> str:
        return f"{self.left} {self.op} {self.right}"

    @property
    def where(self) -> str:
        """`net.py:12: if n % 2 == 1:`, or what is true where no line is known."""
        if self.line is None:
            return str(self)
        code = linecache.getline(*self.line).strip()
        return f"{os.path.basename(self.line[0])}:{self.line[1]}: {code[:60] or self}"

    @property
    def fixes(self) -> bool:
        """Whether it says that a number, rounded from floats, is the example's."""
        return self.op == "==" and isinstance(self.left, Real) and self.left.rounds and isinstance(self.right, int)

    def sizes(self) -> set[Expr]:
        """The sizes in it."""
        sides = (self.left, self.right)
        return {x for x in sides if isinstance(x, Expr)}.union(*(x.sizes() for x in sides if isinstance(x, Real)))

    def of(self, change: Callable[[Expr], Dimension]) -> Branch:
        """The same of other sizes."""
        left, right = (
            x.of(change) if isinstance(x, Real) else change(x) if isinstance(x, Expr) else x
            for x in (self.left, self.right)
        )
        return self._replace(left=left, right=right)


class Narrowed(NamedTuple):
    """A symbol that has its bounds because of a branch."""

    symbol: str
    branch: Branch


@dataclass(frozen=True)
class Program:
    """An exported program without its weights.

    guards: what torch found to be true of the inputs' sizes, as Python expressions.
    branches: what a run has to check about them.
    narrowed: why symbols have their bounds.
    """

    graph: Graph
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    in_tree: Tree | None
    out_tree: Tree | None
    argument_names: tuple[str, ...] | None
    ranges: dict[str, Range]
    torch: str
    guards: tuple[str, ...] = ()
    branches: tuple[Branch, ...] = ()
    narrowed: tuple[Narrowed, ...] = ()

    def input_paths(self) -> list[tuple[str, ...]]:
        """Where every user's input stands among forward's arguments: its parameter, then the keys and indices below."""
        if self.in_tree is None or self.argument_names is None:
            return []
        found: list[tuple[str, ...]] = []
        for path in self.in_tree.paths():
            kind, head, *rest = (*path, "", "")[: max(len(path), 2)]
            place = int(head) if kind == "0" and head.isdecimal() else None
            named = place is not None and place < len(self.argument_names)
            found.append((self.argument_names[place] if named and place is not None else head, *rest))
        return found


_range = record(
    lambda min_val, max_val: Range(min_val, max_val), {"min_val": optional(integer), "max_val": optional(integer)}
)
_call: Convert[dict[str, Any]] = record(
    dict,
    {"in_spec": text, "out_spec": text},
    inputs=(anything, None),
    outputs=(anything, None),
    forward_arg_names=(optional(tuple_of(text)), None),
)
_module: Convert[dict[str, Any]] = record(dict, {"fqn": text}, signature=(optional(_call), None))
_graph_module: Convert[dict[str, Any]] = record(
    dict,
    {
        "graph": _GRAPH,
        "signature": record(dict, {"input_specs": tuple_of(_input), "output_specs": tuple_of(_output)}),
        "module_call_graph": tuple_of(_module),
    },
    metadata=(anything, None),
    treespec_namedtuple_fields=(dict_of(record(lambda field_names: field_names, {"field_names": tuple_of(text)})), {}),
)
_program: Convert[dict[str, Any]] = record(
    dict,
    {
        "graph_module": _graph_module,
        "range_constraints": dict_of(_range),
        "schema_version": record(dict, {"major": integer, "minor": integer}),
    },
    opset_version=(anything, None),
    verifiers=(anything, None),
    torch_version=(text, ""),
    guards_code=(optional(tuple_of(text)), None),
)


def program(value: Any) -> Program:
    """The program of models/MODEL.json. Raises Malformed, which names the place."""
    version = value.get("schema_version") if type(value) is dict else None
    major = version.get("major") if type(version) is dict else None
    if major != SCHEMA_MAJOR:
        made = value.get("torch_version") if type(value) is dict else None
        raise Malformed(
            f"its schema has version {major!r:.20} (torch {made!r:.30}) and ingot reads version {SCHEMA_MAJOR}: "
            "save it again with torch 2.11 to 2.15"
        )
    found = _program(value)
    module = found["graph_module"]
    root = next((m["signature"] for m in module["module_call_graph"] if m["fqn"] == "" and m["signature"]), None)
    named = module["treespec_namedtuple_fields"]
    trees = [None if root is None else inside(key, tree, root[key]) for key in ("in_spec", "out_spec")]
    made = Program(
        module["graph"],
        module["signature"]["input_specs"],
        module["signature"]["output_specs"],
        trees[0],
        None if trees[1] is None else _with_fields(trees[1], named),
        None if root is None else root["forward_arg_names"],
        found["range_constraints"],
        found["torch_version"][:40],
        found["guards_code"] or (),
    )
    check(made)
    return made


def _with_fields(spec: Tree, named: dict[str, tuple[str, ...]]) -> Tree:
    """The tree with the fields of named tuples as keys."""
    children = tuple(_with_fields(child, named) for child in spec.children)
    fields = named.get(spec.kind or "", ())
    keys = fields if len(fields) == len(children) and not spec.keys else spec.keys
    return Tree(spec.kind, keys, children)


def check(made: Program) -> None:
    """The rules that concern the parts together: every value is made once, before it is read, and is described."""
    graph = made.graph
    if len(graph.nodes) > MAX_NODES:
        raise Malformed(f"has {len(graph.nodes):,} nodes; at most {MAX_NODES:,} are read")
    if len(made.inputs) != len(graph.inputs):
        raise Malformed(f"the graph has {len(graph.inputs)} inputs and its signature {len(made.inputs)}")
    if len(made.outputs) != len(graph.outputs):
        raise Malformed(f"the graph has {len(graph.outputs)} outputs and its signature {len(made.outputs)}")
    for i, (argument, spec) in enumerate(zip(graph.inputs, made.inputs, strict=True)):
        both = (argument, spec.argument)
        if all(type(one) in (Ref, SizeRef) for one in both) and spec.argument != argument:
            raise Malformed(
                f"input {i} is {argument.name[:80]!r} in the graph, {spec.argument.name[:80]!r} in the signature"
            )
    known = _check_graph(graph, "")
    for i, output in enumerate(made.outputs):
        _check_read(output.argument, known, f"output {i} of the signature")


def _check_graph(graph: Graph, where: str) -> set[str]:
    """The names of a graph's values. Raises Malformed for one that is read before it is made, in its bodies too."""
    known: set[str] = set()
    for i, argument in enumerate(graph.inputs):
        if type(argument) in (Ref, SizeRef):
            _define(argument, known, graph, f"{where}input {i}")
    for i, node in enumerate(graph.nodes):
        place = f"{where}node {i} ({node.op[:80]})"
        for argument in node.arguments:
            _check_read(argument.value, known, f"{place}, argument {argument.name[:80]}")
            if type(argument.value) is Body:
                _check_graph(argument.value.graph, f"{place}, {argument.value.name[:80]}: ")
        for result in node.results():
            _define(result, known, graph, place)
    for i, argument in enumerate(graph.outputs):
        _check_read(argument, known, f"{where}output {i}")
    return known


def _define(value: Any, known: set[str], graph: Graph, place: str) -> None:
    if type(value) is Opaque or not value.name:
        return  # a result that nobody can name
    if value.name in known:
        raise Malformed(f"{place} makes {value.name[:80]!r}, which exists already")
    if type(value) is Ref and value.name not in graph.tensors:
        raise Malformed(f"{place} makes {value.name[:80]!r}, about which tensor_values says nothing")
    known.add(value.name)


def _check_read(value: Any, known: set[str], place: str) -> None:
    if type(value) in (Ref, SizeRef):
        if value.name not in known:
            raise Malformed(f"{place} reads {value.name[:80]!r}, which nothing before it makes (a cycle, or a gap)")
    elif type(value) is tuple:
        for one in value:
            _check_read(one, known, place)


def refs(values: Iterable[Any], sizes: bool = False) -> Iterator[str]:
    """The names of all tensors in arguments, with `sizes` of all numbers too."""
    for value in values:
        if type(value) is Ref or (sizes and type(value) is SizeRef):
            yield value.name
        elif type(value) is tuple:
            yield from refs(value, sizes)
