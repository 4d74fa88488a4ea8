"""The graph of an exported program: nodes, their arguments, and what the file says about the values between them.

Mirrors the schema of torch._export.serde (major version 8) as far as ingot reads it. What an op's arguments mean is
the business of the table in `aten`; here they become plain Python values.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from ingot import dtypes
from ingot.dims import Dimension
from ingot.dtypes import DType
from ingot.frontends.torch_export import symbols
from ingot.frontends.torch_export.decode import (
    Convert,
    Malformed,
    always,
    anything,
    boolean,
    dict_of,
    integer,
    number,
    record,
    text,
    tuple_of,
    union,
)

STRIDED = 7
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


reference = record(Ref, {"name": text})
_sized = union({"as_name": lambda v: SizeRef(text(v)), "as_int": integer}, "size")
_sized_float = union({"as_name": lambda v: SizeRef(text(v)), "as_float": number}, "number")
_sized_bool = union({"as_name": lambda v: SizeRef(text(v)), "as_bool": boolean}, "condition")
_maybe_ref = union({"as_tensor": reference, "as_none": always(None)}, "optional tensor")

_ARGUMENTS = {
    "as_none": always(None),
    "as_tensor": reference,
    "as_tensors": tuple_of(reference),
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
    "as_device": always(Setting("device")),
    "as_graph": record(Body, {"name": text, "graph": lambda value: GRAPH(value)}),
    **{
        kind: always(Opaque(kind))
        for kind in ("as_custom_obj", "as_operator", "as_nested_tensors", "as_int_lists",
                     "as_string_to_argument", "as_float_lists")
    },
}  # fmt: skip
argument = union(_ARGUMENTS, "argument")


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
        "inputs": tuple_of(record(lambda name, arg, kind: Argument(name, arg), {"name": text, "arg": argument},
                                  kind=(anything, None))),
        "outputs": tuple_of(argument),
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


GRAPH: Convert[Graph] = record(
    _graph,
    {
        "inputs": tuple_of(argument),
        "outputs": tuple_of(argument),
        "nodes": tuple_of(_graph_node),
        "tensor_values": dict_of(tensor_meta),
        "sym_int_values": dict_of(_size),
        "sym_bool_values": anything,
    },
    is_single_tensor_return=(anything, False),
    custom_obj_values=(anything, None),
    sym_float_values=(anything, None),
)


def refs(values: Iterable[Any], sizes: bool = False) -> Iterator[str]:
    """The names of all tensors in arguments, with `sizes` of all numbers too."""
    for value in values:
        if type(value) is Ref or (sizes and type(value) is SizeRef):
            yield value.name
        elif type(value) is tuple:
            yield from refs(value, sizes)
