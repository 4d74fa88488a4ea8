"""Tree specs: how tuples, lists and dicts nest in what a function took or returned, as torch's pytree writes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ingot import strict_json
from ingot.frontends.torch_export.decode import Convert, Malformed, anything, optional, record, text


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


def with_fields(spec: Tree, named: dict[str, tuple[str, ...]]) -> Tree:
    """The tree with the fields of named tuples as keys."""
    children = tuple(with_fields(child, named) for child in spec.children)
    fields = named.get(spec.kind or "", ())
    keys = fields if len(fields) == len(children) and not spec.keys else spec.keys
    return Tree(spec.kind, keys, children)
