"""Changes in place of a part of a tensor, x[:, 2:5] = y: the tensor itself, with that part replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ingot import dims
from ingot import functional as fn
from ingot.dims import Dimension
from ingot.frontends.torch_export.aten import Complex, Unsupported
from ingot.frontends.torch_export.graph import GraphNode, Ref
from ingot.ir import Value
from ingot.ir.spec import axis_of

PARTS = ("aten.slice.Tensor", "aten.select.int", "aten.narrow.default")  # the views whose tensors can be put back
SAME = ("aten.alias.default", "aten.detach.default")
MAX_DEPTH = 64


class Windows:
    """The program's tensors that are parts of others: by name, the call that took them out."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[str, GraphNode]] = {}

    def note(self, node: GraphNode, changes: bool = False) -> None:
        """Remembers the result of a view, if it is one that can be put back, or of a change in place."""
        first = next((a.value for a in node.arguments if type(a.value) is Ref), None)
        if (changes or node.op in (*PARTS, *SAME)) and first is not None:
            for result in node.results():
                if type(result) is Ref:
                    self._made[result.name] = (first.name, node)

    def around(self, name: str) -> tuple[str, ...]:
        """The tensors that this one is a part of, from the inside out."""
        found: list[str] = []
        while name in self._made and len(found) < MAX_DEPTH:
            name = self._made[name][0]
            found.append(name)
        return tuple(found)

    def put(self, name: str, whole: Any, part: Any, resolved: Callable[[Any], Any]) -> Any:
        """The tensor with its part of this name replaced."""
        node = self._made[name][1]
        if node.op not in PARTS:
            return part
        if isinstance(whole, Complex):
            return Complex(_put(whole.pairs, part.pairs, len(whole.shape), node, resolved))
        return _put(whole, part, whole.ndim(), node, resolved)


def _put(whole: Value, part: Value, rank: int, node: GraphNode, resolved: Callable[[Any], Any]) -> Any:
    given = {a.name: resolved(a.value) for a in node.arguments}
    axis = axis_of(given.get("dim", 0), rank, "dim")
    if given.get("step", 1) != 1:
        raise Unsupported("it changes every other element of a tensor in place; write it without the change in place")
    if node.op == "aten.select.int":
        part = fn.unsqueeze(part, axis)
    start = given.get("index", given.get("start"))
    size, low = whole.shape[axis], 0 if start is None else start
    if isinstance(low, int) and low < 0:
        low = dims.maximum(dims.add(size, low), 0) if node.op == "aten.slice.Tensor" else dims.add(size, low)
    if isinstance(low, int) and isinstance(size, int):
        low = min(low, size)
    high = dims.add(low, part.shape[axis])

    def rest(first: Dimension, count: Dimension) -> Any:
        shape = range(len(whole.shape))
        sizes = [count if i == axis else whole.shape[i] for i in shape]
        return fn.slice(whole, [first if i == axis else 0 for i in shape], sizes)

    behind = dims.add(size, dims.mul(high, -1))
    parts = [rest(0, low)] * (low != 0) + [part] + [rest(high, behind)] * (behind != 0)
    return fn.concat(parts, axis)
