"""Weights of integers, or of floats of 8 bits, that a model turns into floats before it uses them: computed once, when
an engine is built.

A product that takes integers with their scales takes them as they are. All other readers would turn the whole weight
into floats in every run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ingot import dtypes
from ingot.frontends.recording import Recorder
from ingot.ir import Node, Op, Value
from ingot.ops.conversion import Cast, Dequantize
from ingot.ops.product import Matmul
from ingot.ops.recurrent import Recurrent
from ingot.ops.spatial import Conv, ConvTranspose

Array = np.ndarray[Any, Any]

MAX_BYTES = 1 << 28  # of one weight as floats
OPS = frozenset(
    ("cast", "concat", "dequantize", "floordiv", "mod", "mul", "permute", "reshape", "slice", "sub", "take")
)


class Made(NamedTuple):
    """What computes a weight: an op on weights by name, arrays, and what is made of these."""

    op: Op
    operands: tuple[Any, ...]


class Widened(Mapping[str, Array]):
    """Weights by name, those that are computed among them."""

    def __init__(self, weights: Mapping[str, Array], made: Mapping[str, Made]) -> None:
        self._weights, self._made = weights, made

    def __getitem__(self, name: str) -> Array:
        found = self._made.get(name)
        return self._weights[name] if found is None else self._array(found)

    def _array(self, x: Any) -> Array:
        if isinstance(x, Made):
            return np.ascontiguousarray(x.op.reference(*map(self._array, x.operands)))
        return self._weights[x] if isinstance(x, str) else x

    def __iter__(self) -> Iterator[str]:
        yield from (name for name in self._weights if name not in self._made)
        yield from self._made

    def __len__(self) -> int:
        return sum(1 for _ in self)


def sources(how: Made) -> Iterator[str]:
    """The names of the weights that one is computed of."""
    for x in how.operands:
        yield from sources(x) if isinstance(x, Made) else (x,) if isinstance(x, str) else ()


def widened(network: Recorder, integers: Collection[str] | None = None) -> dict[str, Made]:
    """Puts parameters in the place of floats that are computed of integer parameters alone; what computes each.
    integers: the names of those that are meant, else all.
    """
    integers = {v.name for v in network.parameters if v.dtype.is_integer} if integers is None else set(integers)
    made: dict[str, Made] = {}
    found: dict[Value, Made] = {}
    for node in list(network.nodes):
        if _is_computed(node, found):
            found[node.output] = Made(node.op, tuple(_operand(v, found) for v in node.inputs))
    for value, how in found.items():
        readers = [user for user in value.uses if not any(v in found for v in user.outputs)]
        if value.dtype.is_float and any(_reads(user, value) for user in readers) and integers & set(sources(how)):
            name = network.free_name(f"{value.name}.computed")
            made[name] = how
            network.replace(value, network.parameter(name, value.spec))
    for node in [n for n in network.nodes if _is_grouped(n) and n.output in found and n.output.uses]:
        network.rewire(node, tuple(_as_parameter(network, v, found, made) for v in node.inputs))
    return made


def _as_parameter(network: Recorder, value: Value, found: Mapping[Value, Made], made: dict[str, Made]) -> Value:
    """An operand of a weight in groups, computed when an engine is built; all of them are parameters then."""
    if value.kind == "parameter":
        return value
    name = network.free_name(f"{value.name}.computed")
    made[name] = found[value] if value in found else Made(Cast(dtype=value.dtype), (value.array,))
    return network.parameter(name, value.spec)


def _is_grouped(node: Node) -> bool:
    """Whether a node is a weight of int4 in groups, as products take it."""
    return isinstance(node.op, Dequantize) and node.op.group > 0 and node.inputs[0].dtype is dtypes.int4


def _is_computed(node: Node, found: Mapping[Value, Made]) -> bool:
    """Whether a node computes of stored values alone."""
    if node.op.name not in OPS or any(v.kind not in ("parameter", "constant") and v not in found for v in node.inputs):
        return False
    sizes = [v.spec.elements for v in (node.output, *node.inputs)]
    known = [n for n in sizes if isinstance(n, int)]
    grows = node.op.name != "concat" and len(known) == len(sizes) and known[0] > max(known[1:])
    if len(known) < len(sizes) or grows:  # two that broadcast may make any number of elements
        return False
    return known[0] * node.output.dtype.bits <= 8 * MAX_BYTES


def _operand(value: Value, found: Mapping[Value, Made]) -> Any:
    if value in found:
        return found[value]
    return value.name if value.kind == "parameter" else value.array


def _is_symmetric(node: Node) -> bool:
    """Whether integers have no zero point, or as good as none: uint8 less 128 is int8."""
    middle = 128 if node.inputs[0].dtype is dtypes.uint8 else 0
    if len(node.given) == 2:
        return True
    zero = node.inputs[2]
    return zero.kind == "constant" and bool((zero.array == middle).all())


def _reads(user: Node, value: Value) -> bool:
    """Whether a reader wants it as floats: products and recurrent layers take rows of integers with their scales, and
    sums of integers those of x and of the weight."""
    node = value.node
    if node is None or node.op.name != "dequantize" or len(user.inputs) < 2 or user.inputs[1] is not value:
        return True
    if isinstance(user.op, Matmul) and user.op.transpose_b and (_is_symmetric(node) or _is_grouped(node)):
        return False
    if isinstance(user.op, Recurrent) and _is_symmetric(node):
        return False
    x = user.inputs[0].node
    return not (isinstance(user.op, Conv | ConvTranspose | Matmul) and x is not None and x.op.name == "dequantize")
