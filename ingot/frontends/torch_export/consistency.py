"""The rules that parts of an exported program keep together: a value is made once, before it is read, and described."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ingot.frontends.torch_export.decode import Malformed
from ingot.frontends.torch_export.graph import Body, Graph, Opaque, Ref, SizeRef
from ingot.frontends.torch_export.signature import Input, Output

MAX_NODES = 1_000_000


def check(graph: Graph, inputs: Sequence[Input], outputs: Sequence[Output]) -> None:
    """The rules that concern the parts together: every value is made once, before it is read, and is described."""
    if len(graph.nodes) > MAX_NODES:
        raise Malformed(f"has {len(graph.nodes):,} nodes; at most {MAX_NODES:,} are read")
    if len(inputs) != len(graph.inputs):
        raise Malformed(f"the graph has {len(graph.inputs)} inputs and its signature {len(inputs)}")
    if len(outputs) != len(graph.outputs):
        raise Malformed(f"the graph has {len(graph.outputs)} outputs and its signature {len(outputs)}")
    for i, (argument, spec) in enumerate(zip(graph.inputs, inputs, strict=True)):
        both = (argument, spec.argument)
        if all(type(one) in (Ref, SizeRef) for one in both) and spec.argument != argument:
            raise Malformed(
                f"input {i} is {argument.name[:80]!r} in the graph, {spec.argument.name[:80]!r} in the signature"
            )
    known = _check_graph(graph, "")
    for i, output in enumerate(outputs):
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
