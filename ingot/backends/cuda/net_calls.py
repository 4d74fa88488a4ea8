"""The calls of target cuda for a net: each runs one node, or several together.

Elementwise trees are chains (chains.py). The convolution or product whose result a chain reads leaves its bias to it;
a group norm gives it factors; a layer norm takes the chain before it along. Which nodes become which call:
net_program.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from ingot import dtypes
from ingot.backends.cuda.program import Single
from ingot.ir import ExprBuilder, Node, Scalar, Value
from ingot.passes import fuse

HALVES = (dtypes.float16, dtypes.bfloat16)


@dataclass(frozen=True)
class Operand:
    """Of a chain: a value, or what belongs to one: its "bias" (one of each channel), or the "scale" or "shift" with
    which it is normalised."""

    value: Value
    part: str = ""


@dataclass(frozen=True)
class Chain:
    """Elementwise nodes as one expression. biases: of values that come without them; normed: values that come with
    factors."""

    nodes: tuple[Node, ...]
    biases: Mapping[Value, Value]
    normed: frozenset[Value]
    kernel = "chain"

    @property
    def out(self) -> Value:
        """Its result."""
        return self.nodes[-1].output

    @cached_property
    def reads(self) -> tuple[Value, ...]:
        """Values from outside."""
        made = {node.output for node in self.nodes}
        return tuple(dict.fromkeys(v for node in self.nodes for v in node.inputs if v not in made and not _number(v)))

    @cached_property
    def expression(self) -> tuple[tuple[Any, ...], int, tuple[Operand, ...]]:
        """Steps, which of them is the result, and the operands."""
        builder = ExprBuilder()
        operands: list[Operand] = []

        def element(operand: Operand, dtype: Any) -> Scalar:
            operands.append(operand)
            return builder.input(len(operands) - 1, dtype)

        def read(value: Value) -> Scalar:
            found = element(Operand(value), value.dtype)
            if value in self.normed:
                found = found * element(Operand(value, "scale"), dtypes.float32)
                return found + element(Operand(value, "shift"), dtypes.float32)
            return found + element(Operand(value, "bias"), value.dtype) if value in self.biases else found

        last = fuse.joined(builder, self.nodes, read).index
        return tuple(map(tuple, builder.steps)), last, tuple(operands)


class Eight(NamedTuple):
    """A weight of float8, [outputs, inputs], and the scales of its outputs."""

    weight: Value
    scales: Value


@dataclass(frozen=True)
class Rowwise:
    """Rows that a chain makes or that are there, normalised, quantised (to int8 or float8) with a scale for each, or
    both. kept: whether they are also read as floats."""

    nodes: tuple[Node, ...]
    chain: Chain | None = None
    norm: Node | None = None
    quantised: Node | None = None
    kept: bool = True

    @property
    def kernel(self) -> str:
        """How the profile calls it."""
        return "normed_rows" if self.norm else "quantised_rows"

    @property
    def x(self) -> Value:
        """The rows, where no chain makes them."""
        return self.nodes[0].inputs[0]


@dataclass(frozen=True)
class GroupNormed:
    """A group norm whose factors a chain applies. bias: of its operand, which comes without it."""

    nodes: tuple[Node, ...]
    bias: Value | None
    kernel = "group_norm"


@dataclass(frozen=True)
class Weighted:
    """A convolution or a product with a weight. chain: what reads its result, with its bias; bare: whether another
    call adds its bias. ending: what library functions know of the chain: "", "bias", "relu", "add_relu"."""

    nodes: tuple[Node, ...]
    chain: Chain | None = None
    bare: bool = False
    ending: str = ""
    beside: Value | None = None  # what "add_relu" adds
    eight: Eight | None = None  # of a product of rows of float8

    @property
    def held(self) -> tuple[Value, ...]:
        """What it reads and none of its nodes does."""
        return () if self.eight is None else self.eight

    @property
    def unread(self) -> frozenset[Value]:
        """The floats that these stand for."""
        return frozenset() if self.eight is None else frozenset(self.node.inputs[1:])

    @property
    def node(self) -> Node:
        """The convolution or product."""
        return self.nodes[0]

    @property
    def kernel(self) -> str:
        """How the profile calls it."""
        name = self.node.op.name if self.eight is None else f"float8_{self.node.op.name}"
        return f"{name}+chain" if self.chain else name


@dataclass(frozen=True)
class Sums:
    """A convolution or product of int8 with a stored weight of int8, which scales make floats. chain: what reads it."""

    nodes: tuple[Node, ...]
    node: Node
    x: Value
    scale: Value
    weight: Value
    factors: Value
    chain: Chain | None = None

    @property
    def kernel(self) -> str:
        """How the profile calls it."""
        return f"int8_{self.node.op.name}{'+chain' if self.chain else ''}"

    @property
    def unread(self) -> frozenset[Value]:
        """The floats that its operands stand for."""
        return frozenset(self.node.inputs[:2])

    @property
    def held(self) -> tuple[Value, ...]:
        """What it reads and none of its nodes does."""
        given = {v for node in self.nodes for v in node.given}
        return tuple(v for v in (self.x, self.scale, self.weight, self.factors) if v not in given)


@dataclass(frozen=True)
class Joined:
    """Products of one x with several weights, and the additions of their biases: one product."""

    nodes: tuple[Node, ...]
    products: tuple[Node, ...]
    biases: tuple[Value, ...]
    outs: tuple[Value, ...]
    eights: tuple[Eight, ...] = ()  # of products of rows of float8
    kernel = "joined_products"

    @property
    def weights(self) -> tuple[Value, ...]:
        """As they are stored."""
        return tuple(e.weight for e in self.eights) or tuple(node.inputs[1] for node in self.products)

    @property
    def scales(self) -> tuple[Value, ...]:
        """Of the outputs of weights of float8."""
        return tuple(e.scales for e in self.eights)

    @property
    def held(self) -> tuple[Value, ...]:
        """What it reads and none of its nodes does."""
        return tuple(v for e in self.eights for v in e)

    @property
    def unread(self) -> frozenset[Value]:
        """The floats that these stand for."""
        return frozenset(node.inputs[1] for node in self.products) if self.eights else frozenset()


@dataclass(frozen=True)
class GraphSum:
    """x[n, k, c, t, v] · a[k, v, w] → [n, c, t, w] for a parameter a: a product for each n and t."""

    nodes: tuple[Node, ...]
    kernel = "graph_sum"


@dataclass(frozen=True)
class Pooled:
    """A pool of images of 16 bits."""

    nodes: tuple[Node, ...]
    kernel = "pool"


@dataclass(frozen=True)
class Attention:
    """Scaled dot product attention by torch's own."""

    nodes: tuple[Node, ...]
    kernel = "attention"


Call = Single | Chain | Rowwise | GroupNormed | Weighted | Sums | Joined | GraphSum | Pooled | Attention


def _number(value: Value) -> bool:
    return value.kind == "constant" and value.array.shape == ()
