"""The exported program that a .pt2 archive describes: graph, signature, tree specs and conditions, strict and typed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ingot.frontends.torch_export.conditions import Branch, Narrowed, Range, symbol_range
from ingot.frontends.torch_export.consistency import check
from ingot.frontends.torch_export.decode import (
    Convert,
    Malformed,
    anything,
    dict_of,
    inside,
    integer,
    optional,
    record,
    text,
    tuple_of,
)
from ingot.frontends.torch_export.graph import GRAPH, Graph
from ingot.frontends.torch_export.signature import Input, Output, input_spec, output_spec
from ingot.frontends.torch_export.tree_spec import Tree, tree, with_fields

SCHEMA_MAJOR = 8


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
        "graph": GRAPH,
        "signature": record(dict, {"input_specs": tuple_of(input_spec), "output_specs": tuple_of(output_spec)}),
        "module_call_graph": tuple_of(_module),
    },
    metadata=(anything, None),
    treespec_namedtuple_fields=(dict_of(record(lambda field_names: field_names, {"field_names": tuple_of(text)})), {}),
)
_program: Convert[dict[str, Any]] = record(
    dict,
    {
        "graph_module": _graph_module,
        "range_constraints": dict_of(symbol_range),
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
        None if trees[1] is None else with_fields(trees[1], named),
        None if root is None else root["forward_arg_names"],
        found["range_constraints"],
        found["torch_version"][:40],
        found["guards_code"] or (),
    )
    check(made.graph, made.inputs, made.outputs)
    return made
