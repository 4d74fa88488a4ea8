"""What target cuda makes of a lowered net: calls in order, each for one node or for several that run together.

Elementwise trees are chains (chains.py). The convolution or product whose result a chain reads leaves its bias to it;
a group norm gives it factors; a layer norm takes the chain before it along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from ingot import dtypes
from ingot.backends.cuda.program import Single, ordered
from ingot.backends.cuda.step_text import line_of
from ingot.ir import ExprBuilder, Network, Node, Scalar, Value
from ingot.ir.expr import MAX_INPUTS, NoExpression, class_of
from ingot.ops.binary import Add
from ingot.ops.contraction import Einsum, parse
from ingot.ops.conversion import Dequantize, Float8Rows, QuantizeRows
from ingot.ops.dense_attention import ScaledDotProductAttention
from ingot.ops.elementwise import Relu
from ingot.ops.movement import Reshape
from ingot.ops.norm import GroupNorm, LayerNorm
from ingot.ops.pool import AvgPool, MaxPool
from ingot.ops.product import Matmul
from ingot.ops.spatial import Conv
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


def net_program(network: Network) -> tuple[Call, ...]:
    """The calls of a lowered net, each behind those whose results it needs."""
    made = _Maker(network)
    return tuple(ordered(network, made.calls()))


class _Maker:
    def __init__(self, network: Network) -> None:
        self.network = network
        self.sums = {node: found for node in network.nodes if (found := _sums(network, node)) is not None}
        inside = {node for found in self.sums.values() for node in found.nodes}
        # What others read as floats too has to be there as integers: no chain goes on across it.
        both = {made for node in self.sums for v in node.inputs[:2] if (made := v.node) is not None} - inside
        self.group_of: dict[Node, list[Node]] = {node: [node] for node in both}
        for nodes in fuse.groups(network, lambda node: node not in inside | both and _is_step(node)):
            self.group_of |= dict.fromkeys(nodes, nodes)
        self.taken: set[Node] = set()
        self.found: list[Call] = []
        self.eights = _eights(network)
        self.rows = {node.inputs[0].node for node in self.eights}  # that become float8 once
        for node in self.eights:
            self.taken.add(node.inputs[1].node)
        for node in both:
            self._place(node)

    def _place(self, node: Node) -> None:
        """Floats of integers that sums read as such: they are made where others read them, or nowhere."""
        readers = [user for user in node.output.uses if user not in self.sums]
        if self.network.is_output(node.output) or not isinstance(node.op, Dequantize):
            return
        if not readers:
            del self.group_of[node]
            self.taken.add(node)
            return
        group = self.group_of.get(readers[0], [])
        if any(reader not in group for reader in readers) or group[-1].output.shape != node.output.shape:
            return
        if len(Chain((node, *group), {}, frozenset()).reads) <= MAX_INPUTS - 2:
            group.insert(0, node)
            self.group_of[node] = group

    def calls(self) -> list[Call]:
        """Of all nodes, in no order."""
        self._join()
        groups = {id(nodes): nodes for nodes in self.group_of.values()}
        for nodes in groups.values():
            if self.taken.isdisjoint(nodes):
                self._chain(nodes)
        for found in self.sums.values():
            if found.node not in self.taken:
                self._take(found)
        for node in self.network.nodes:
            if node not in self.taken:
                self._take(self._alone(node))
        return self.found

    def _take(self, call: Call) -> None:
        self.taken.update(call.nodes)
        self.found.append(call)

    def _join(self) -> None:
        """Products of one x whose biases are all that is added at once."""
        families: dict[tuple[Any, ...], list[tuple[Node, Node]]] = {}
        for node in self.network.nodes:
            reader = self._bias_alone(node) if _is_linear(node) and node not in self.sums else None
            if reader is not None and (node in self.eights or self._stays(node.inputs[1])):
                families.setdefault((node.inputs[0], node.inputs[1].shape[1]), []).append((node, reader))
        for family in families.values():
            if len(family) > 1:
                biases = tuple(_other(add, node.output) for node, add in family)
                self._take(Joined(
                    tuple(n for pair in family for n in pair), tuple(n for n, _ in family), biases,
                    tuple(add.output for _, add in family),
                    tuple(self.eights[node] for node, _ in family if node in self.eights),
                ))  # fmt: skip

    def _stays(self, weight: Value) -> bool:
        """Whether a weight is there before any run: a parameter, or floats that are made of one at the opening."""
        made = weight.node
        if made is None:
            return weight.kind == "parameter"
        return made not in self.taken and self.group_of.get(made, [made]) == [made]

    def _bias_alone(self, node: Node) -> Node | None:
        """The addition of a bias that is the only reader of a product, and no part of a longer chain."""
        (reader, *more) = (*node.output.uses, None)
        if reader is None or more != [None] or self.group_of.get(reader) != [reader]:
            return None
        if not isinstance(reader.op, Add) or self.network.is_output(node.output):
            return None
        return reader if _is_bias(_other(reader, node.output), node.output) else None

    def _chain(self, nodes: list[Node]) -> None:
        """A group, with what it takes along before and behind."""
        inside = set(nodes)
        chain = Chain(tuple(nodes), {}, frozenset())
        biases: dict[Value, Value] = {}
        weighted: list[Node] = []
        summed: list[Node] = []
        normed: set[Value] = set()
        room = MAX_INPUTS - len(chain.reads)
        for value in chain.reads:
            maker = value.node
            if maker is None or maker in self.taken or not set(value.uses) <= inside or room < 2:
                continue
            if self.network.is_output(value) or value.shape != chain.out.shape:
                continue
            if maker in self.sums:
                summed.append(maker)
            elif value.dtype not in HALVES:
                continue
            elif _is_convolution(maker) or _is_linear(maker):
                weighted.append(maker)
                if len(maker.inputs) > 2:
                    biases[value] = maker.inputs[2]
                    room -= 1
            elif isinstance(maker.op, GroupNorm) and not maker.op.channels_last:
                normed.add(value)
                room -= 2
                self._take(self._group_norm(maker))
        chain = Chain(tuple(nodes), biases, frozenset(normed))
        place = {node: i for i, node in enumerate(self.network.nodes)}
        weighted.sort(key=place.__getitem__)
        reader = self._rows_behind(chain)
        if summed and not weighted and reader is None:
            last = self.sums[max(summed, key=place.__getitem__)]
            self._take(replace(last, nodes=(*last.nodes, *nodes), chain=chain))
            return
        for maker in weighted[:-1] if reader is None else weighted:
            self._take(Weighted((maker,), bare=maker.output in biases, eight=self.eights.get(maker)))
        if reader is not None:
            self._take(self._rows((*nodes, reader), chain, reader))
        elif weighted:
            (ending, beside), eight = _ending(weighted[-1], chain), self.eights.get(weighted[-1])
            self._take(Weighted((weighted[-1], *nodes), chain, ending=ending, beside=beside, eight=eight))
        else:
            self._take(chain)

    def _rows(self, nodes: tuple[Node, ...], chain: Chain | None, norm: Node) -> Rowwise:
        """A layer norm, with the rounding of its rows that reads it; or the rounding of a chain's rows."""
        if norm in self.rows:
            return Rowwise(nodes, chain, None, norm, False)
        uses = [user for user in norm.output.uses if self._is_rounding(user) and user not in self.taken]
        if not uses:
            return Rowwise(nodes, chain, norm)
        kept = len(set(norm.output.uses)) > 1 or self.network.is_output(norm.output)
        return Rowwise((*nodes, uses[0]), chain, norm, uses[0], kept)

    def _group_norm(self, node: Node) -> GroupNormed:
        x = node.inputs[0]
        maker = x.node
        alone = set(x.uses) == {node} and not self.network.is_output(x)
        if maker is None or maker in self.taken or maker in self.sums or not alone:
            return GroupNormed((node,), None)
        if not _is_convolution(maker) or len(maker.inputs) < 3:
            return GroupNormed((node,), None)
        self._take(Weighted((maker,), bare=True))
        return GroupNormed((node,), maker.inputs[2])

    def _is_rounding(self, node: Node) -> bool:
        return isinstance(node.op, QuantizeRows) or node in self.rows

    def _rows_behind(self, chain: Chain) -> Node | None:
        uses = list(chain.out.uses)
        if len(uses) != 1 or self.network.is_output(chain.out) or chain.normed or chain.out.dtype not in HALVES:
            return None
        (reader,) = uses
        by_rows = isinstance(reader.op, LayerNorm) or reader in self.rows
        return reader if by_rows and reader not in self.taken else None

    def _alone(self, node: Node) -> Call:
        op: Any = node.op
        if node in self.sums:
            return self.sums[node]
        if _is_convolution(node) or _is_linear(node):
            return Weighted((node,), eight=self.eights.get(node))
        if isinstance(op, LayerNorm) and node.inputs[0].dtype in HALVES:
            return self._rows((node,), None, node)
        if self._is_rounding(node):
            return Rowwise((node,), quantised=node, kept=False)
        if isinstance(op, AvgPool | MaxPool) and _is_pool(op) and node.output.dtype in HALVES:
            return Pooled((node,))
        if isinstance(op, ScaledDotProductAttention) and node.output.dtype in HALVES:
            return Attention((node,))
        return GraphSum((node,)) if _is_graph_sum(node) else Single((node,))


def _number(value: Value) -> bool:
    return value.kind == "constant" and value.array.shape == ()


def _is_step(node: Node) -> bool:
    """Whether chains compute a node."""
    if node.op.expr is None:
        return False
    builder = ExprBuilder()
    op: Any = node.op
    try:
        for value in (*node.inputs, *node.outputs):
            if value.spec is None or class_of(value.dtype) not in ("float32", "int64", "bool"):
                return False
            if value.dtype.name in ("uint16", "uint32"):  # torch's tensors of these are rare guests
                return False
        op.expr(builder, *(builder.input(i, v.dtype) for i, v in enumerate(node.inputs)))
    except NoExpression:
        return False
    return all(step[0] == "input" or line_of(step) is not None for step in builder.steps)


def _is_convolution(node: Node) -> bool:
    """Of images of 16 bits, with a stored weight."""
    op: Any = node.op
    if not isinstance(op, Conv) or op.channels_last or len(op.stride) != 2 or node.output.dtype not in HALVES:
        return False
    return _is_stored(node.inputs[1]) and all(v.dtype is node.output.dtype for v in node.given)


def _is_stored(weight: Value) -> bool:
    """Whether a weight is a parameter, or dequantised of some."""
    made = weight.node
    if made is None or not isinstance(made.op, Dequantize):
        return weight.kind == "parameter"
    return all(v.kind in ("parameter", "constant") for v in made.given)


def _is_pool(op: Any) -> bool:
    """Of images whose windows all count alike."""
    if op.channels_last or len(op.kernel) != 2 or op.ceil_mode:
        return False
    whole = not any((*op.pre_padding, *op.post_padding))
    return isinstance(op, MaxPool) or (whole and op.divisor is None)


def _is_linear(node: Node) -> bool:
    """A product of rows of 16 bits with a stored [outputs, inputs]."""
    op: Any = node.op
    if not isinstance(op, Matmul) or op.transpose_a or not op.transpose_b or node.output.dtype not in HALVES:
        return False
    x, weight = node.inputs
    stored = _is_stored(weight) and len(weight.shape) == 2 and len(x.shape) >= 2
    return stored and x.dtype is weight.dtype is node.output.dtype


def _sums(network: Network, node: Node) -> Sums | None:
    """A convolution or product whose operands are int8 with scales, the second one stored."""
    op: Any = node.op
    if isinstance(op, Conv):
        fits = len(op.stride) == 2 and op.groups == 1 and not op.channels_last
    else:
        fits = isinstance(op, Matmul) and op.transpose_b and not op.transpose_a and len(node.inputs[1].shape) == 2
    if not fits or node.output.dtype not in (dtypes.float32, *HALVES):
        return None
    x, weight = (_quantised(value) for value in node.inputs[:2])
    if x is None or weight is None or weight.inputs[0].kind != "parameter" or weight.inputs[1].kind != "parameter":
        return None
    (q, scale), (stored, factors) = x.inputs, weight.inputs
    of_output = factors.shape in ((), (stored.shape[0], *[1] * (len(stored.shape) - 1)))
    of_x = all(n == 1 for n in scale.shape)
    of_rows = isinstance(op, Matmul) and scale.shape == (*q.shape[:-1], 1)
    if not of_output or not (of_x or of_rows):
        return None
    own = [made for made in (x, weight) if _only_reader(network, made.output) is node]
    return Sums((*own, node), node, q, scale, stored, factors)


def _eights(network: Network) -> dict[Node, Eight]:
    """Products of rows that have been float8 with weights of float8, each with a scale an output; nobody else reads
    either of the two as floats."""
    found = {node: eight for node in network.nodes if _is_linear(node) and (eight := _eight(node)) is not None}
    while True:
        shared = [n for n in found if not all(set(v.uses) <= found.keys() for v in n.inputs)]
        if not shared:
            return found
        for node in shared:
            del found[node]


def _eight(node: Node) -> Eight | None:
    x, made = (value.node for value in node.inputs)
    if x is None or made is None or not isinstance(x.op, Float8Rows) or not isinstance(made.op, Dequantize):
        return None
    if any(node.inputs[0].network.is_output(value) for value in node.inputs) or len(made.given) != 2 or made.op.group:
        return None
    weight, scales = made.given
    alone = weight.dtype is dtypes.float8_e4m3fn and scales.shape == (weight.shape[0], 1)
    stored = weight.kind == scales.kind == "parameter"
    return Eight(weight, scales) if alone and stored and set(made.output.uses) == {node} else None


def _quantised(value: Value) -> Node | None:
    """What makes a value of int8 and one scale or several, without zero points."""
    made = value.node
    if made is None or not isinstance(made.op, Dequantize) or len(made.inputs) != 2 or made.op.group:
        return None
    return made if made.inputs[0].dtype is dtypes.int8 and made.inputs[1].dtype is dtypes.float32 else None


def _only_reader(network: Network, value: Value) -> Node | None:
    readers = set(value.uses)
    return readers.pop() if len(readers) == 1 and not network.is_output(value) else None


def _is_bias(value: Value, out: Value) -> bool:
    return value.kind == "parameter" and value.shape == out.shape[-1:] and value.dtype is out.dtype


def _other(node: Node, value: Value) -> Value:
    a, b = node.inputs
    return b if a is value else a


def _reads(node: Node, value: Value) -> bool:
    return any(v is value for v in node.inputs)  # `in` would ask for their equality, which is an op


def _is_graph_sum(node: Node) -> bool:
    op: Any = node.op
    if not isinstance(op, Einsum) or len(node.inputs) != 2 or node.output.dtype not in HALVES:
        return False
    x, graph = node.inputs
    if graph.kind != "parameter" or graph.dtype is not x.dtype or x.node is None or not isinstance(x.node.op, Reshape):
        return False
    equation = parse(op.equation, [len(x.shape), len(graph.shape)])
    first, second = equation.operands
    if len(first) != 5 or len(second) != 3 or len(set(first)) != 5:
        return False
    n, k, c, t, v = first
    return second[:2] == (k, v) and second[2] not in first and equation.output == (n, c, t, second[2])


def _ending(node: Node, chain: Chain) -> tuple[str, Value | None]:
    """What a library function computes in place of a chain behind a weighted sum, and what that adds."""
    nodes: Sequence[Node] = chain.nodes
    out, linear = node.output, _is_linear(node)
    if linear:
        first = nodes[0]
        if not isinstance(first.op, Add) or not _reads(first, out) or not _is_bias(_other(first, out), out):
            return "", None
        out, nodes = first.output, nodes[1:]
        if not nodes:
            return "bias", None
    elif out not in chain.biases or len(chain.biases) > 1:
        return "", None
    if len(nodes) == 1 and isinstance(nodes[0].op, Relu):
        return "relu", None
    if linear or len(nodes) != 2 or not isinstance(nodes[1].op, Relu) or not isinstance(nodes[0].op, Add):
        return "", None
    other = _other(nodes[0], out)
    same = _reads(nodes[0], out) and other.shape == out.shape and other.dtype is out.dtype and other is not out
    return ("add_relu", other) if same else ("", None)
