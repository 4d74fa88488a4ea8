"""What target cuda makes of a lowered network: calls in order, each a kernel for several nodes or one's torch form.

A call keeps the nodes that it stands for. Where its kernel declines the sizes of a run, they run by their torch forms;
so every network runs, and the kernels are for the steps that count: few rows, and one row a request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, TypeVar

from ingot import dtypes
from ingot.backends.cuda.launch_shapes import LEAST_GROUP, MOST_GROUP, MOST_INPUTS, power
from ingot.ir import Network, Node, Value
from ingot.ops.attention import KvWrite, PagedAttention, Rope, RopeTable
from ingot.ops.binary import Add, Mul
from ingot.ops.conversion import Cast, Dequantize, Float8Rows
from ingot.ops.elementwise import Gelu, Relu, Silu
from ingot.ops.indexing import Embedding, Take
from ingot.ops.mixture import ACTIVATIONS, Moe
from ingot.ops.norm import LayerNorm, RmsNorm
from ingot.ops.product import Matmul

FLOATS = (dtypes.float32, dtypes.bfloat16, dtypes.float16)
SINGLES = (RopeTable, Embedding, Take, Dequantize, LayerNorm)  # that have a kernel by themselves
MOST_PADDED = 256  # elements of a head whose width is no power of two
MOST_EXPERTS = 1024  # of a mixture: a program looks at all of them


@dataclass(frozen=True)
class Single:
    """One node, by its torch form, or of SINGLES by a kernel that may decline it."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Factor:
    """A weight [n, k] as it is stored, and the scales that integers or floats of 8 bits have: one an output, or one a
    group. turned: whether floats are stored as [k, n]. zeros: the zero points of groups, of experts alone."""

    weight: Value
    scales: Value | None = None
    group: int = 0
    turned: bool = False
    zeros: Value | None = None

    @property
    def parameters(self) -> tuple[Value, ...]:
        """All of them."""
        return tuple(v for v in (self.weight, self.scales, self.zeros) if v is not None)

    @property
    def form(self) -> tuple[object, ...]:
        """What weights have in common that one kernel takes together."""
        return (*(v.spec for v in self.parameters), self.group, self.turned)


@dataclass(frozen=True)
class Product:
    """Rows of x, normalised if there is a `norm`, by weights: one, several of one x, or a gate and what it gates.

    outs: a result each; of a pair one. activation: what sums go through, of a pair those of the gate, by its name in
    `ops.mixture`; bias: a row that is added before, or before `extra`. extra: what is added last, rows of the result's
    shape or one row for all. biases: of several weights a row for the results of each, in place of these. rounds:
    whether the rows, normalised, become floats of 8 bits with a scale each. before_rounding: whether a product that
    does so is all that reads the result of a pair.
    """

    nodes: tuple[Node, ...]
    x: Value
    factors: tuple[Factor, ...]
    outs: tuple[Value, ...]
    pair: bool = False
    norm: Node | None = None
    extra: Value | None = None
    rounds: bool = False
    before_rounding: bool = False
    activation: str = ""
    bias: Value | None = None
    biases: tuple[Value, ...] = ()


@dataclass(frozen=True)
class Attention:
    """The write of keys and values to the cache, and attention over it; with cos and sin the rotation before that."""

    nodes: tuple[Node, ...]
    q: Value
    key: Value
    value: Value
    cos: Value | None
    sin: Value | None
    slot: Value
    state: Value
    query_start: Value
    context_len: Value
    block_table: Value
    slopes: Value | None
    written: Value
    out: Value
    scale: float
    halves: bool
    window: int
    softcap: float

    @property
    def group(self) -> int:
        """How many query heads share keys."""
        heads, kv = (v.spec.evaluate({"T": 1})[1] for v in (self.q, self.key))
        return int(heads // kv)


@dataclass(frozen=True)
class Experts:
    """A mixture of experts with stored weights: gates, ups and downs of all of them. Each row goes through `top`."""

    nodes: tuple[Node, ...]
    x: Value
    router: Value
    gates: tuple[Factor, ...]
    ups: tuple[Factor, ...]
    downs: tuple[Factor, ...]
    out: Value
    top: int
    normalize: bool
    activation: str

    @property
    def factors(self) -> tuple[Factor, ...]:
        """All weights."""
        return (*self.gates, *self.ups, *self.downs)


Call = Single | Product | Attention | Experts


def program(network: Network) -> tuple[Call, ...]:
    """The calls of a lowered network, each behind those whose results it needs."""
    taken: set[Node] = set()
    calls: list[Call] = []
    fused: list[Call] = [*_attentions(network), *_products(network), *_experts(network)]
    for found in fused:
        if taken.isdisjoint(found.nodes):
            taken.update(found.nodes)
            calls.append(found)
    rounded = {call.x: call for call in calls if isinstance(call, Product) and call.rounds and call.norm is None}
    for i, call in enumerate(calls):
        if isinstance(call, Product) and call.pair and (reader := rounded.get(call.outs[0])) is not None:
            (out,) = call.outs
            alone = set(out.uses) <= set(reader.nodes) and not network.is_output(out)
            if alone and reader.extra is not out and reader.outs[0].dtype is out.dtype:
                calls[i] = replace(call, before_rounding=True)
    calls += [Single((node,)) for node in network.nodes if node not in taken]
    return tuple(ordered(network, calls))


def written_over(network: Network, calls: Sequence[Call]) -> frozenset[int]:
    """Numbers of the products whose result may take the place of what they add: its last readers, after products alone,
    which keep no view of it."""
    readers: dict[Value, list[int]] = {}
    made: dict[Value, Call] = {}
    for number, call in enumerate(calls):
        for node in call.nodes:
            made |= dict.fromkeys(node.outputs, call)
            for value in node.given:
                readers.setdefault(value, []).append(number)
    kept = set(network.outputs.values())

    def alone(value: Value) -> bool:
        call = made.get(value)
        fresh = isinstance(call, Product) or (isinstance(call, Single) and isinstance(call.nodes[0].op, Embedding))
        return fresh and value not in kept and all(isinstance(calls[n], Product) for n in readers[value])

    return frozenset(
        number for number, call in enumerate(calls)
        if isinstance(call, Product) and call.extra is not None and call.extra is not call.x
        and alone(call.extra) and number == max(readers[call.extra])
    )  # fmt: skip


class Nodes(Protocol):
    """A call, by the nodes that it stands for."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """In order."""


Some = TypeVar("Some", bound=Nodes)


def ordered(network: Network, calls: Sequence[Some]) -> Iterator[Some]:
    """The calls, each behind those whose results it needs. Where no call makes these, or it reads what they are made of
    (`unread`), behind those that they need."""
    place = {node: i for i, node in enumerate(network.nodes)}
    home = {node: call for call in calls for node in call.nodes}
    done: set[int] = set()

    def makers(node: Node, unread: frozenset[Value]) -> Iterator[Some]:
        for value in node.inputs:
            if value.node in home and value not in unread:
                yield home[value.node]
            elif value.node is not None:
                yield from makers(value.node, frozenset())

    def emit(call: Some) -> Iterator[Some]:
        stack = [call]
        while stack:
            top = stack[-1]
            needs = [call for node in top.nodes for call in makers(node, getattr(top, "unread", frozenset()))]
            missing = [c for c in needs if c is not top and id(c) not in done]
            if missing:
                stack.append(missing[0])
                continue
            stack.pop()
            if id(top) not in done:
                done.add(id(top))
                yield top

    for call in sorted(calls, key=lambda c: max(place[n] for n in c.nodes)):
        yield from emit(call)


# -------------------------------------------------------------------------------------------------------- attention


def _attentions(network: Network) -> Iterator[Attention]:
    for node in network.nodes:
        if isinstance(node.op, PagedAttention) and (found := _attention(network, node)) is not None:
            yield found


def _attention(network: Network, node: Node) -> Attention | None:
    op: Any = node.op
    q, cache, query_start, context_len, block_table, *slopes = node.inputs
    write = cache.node
    if write is None or not isinstance(write.op, KvWrite) or list(cache.uses) != [node]:
        return None
    state, key, value, slot = write.inputs
    width = q.shape[2]
    if not isinstance(width, int) or width < 16 or (width != power(width) and (width % 16 or width > MOST_PADDED)):
        return None
    nodes: tuple[Node, ...] = (write, node)
    cos, sin, halves = None, None, True
    turn, other = q.node, key.node
    if turn is not None and other is not None and _rotates(network, turn, node, other, write):
        how: Any = turn.op
        (q, cos, sin), key, halves = turn.inputs, other.inputs[0], how.style == "half"
        nodes = (turn, other, *nodes)
    return Attention(
        nodes, q, key, value, cos, sin, slot, state, query_start, context_len, block_table,
        slopes[0] if slopes else None, cache, node.output, op.scale, halves, op.window or 0, op.softcap or 0.0,
    )  # fmt: skip


def _rotates(network: Network, turn: Node, node: Node, other: Node, write: Node) -> bool:
    """Whether two nodes rotate queries and keys alike, for nobody else."""
    return (
        isinstance(turn.op, Rope)
        and other.op == turn.op
        and all(a is b for a, b in zip(other.inputs[1:], turn.inputs[1:], strict=True))
        and isinstance(turn.inputs[1].shape[1], int)
        and _only(network, turn.output, node)
        and _only(network, other.output, write)
    )


def _only(network: Network, value: Value, reader: Node) -> bool:
    """Whether nobody else reads a value."""
    return set(value.uses) == {reader} and not network.is_output(value)


# ---------------------------------------------------------------------------------------------------------- experts


def _experts(network: Network) -> Iterator[Experts]:
    for node in network.nodes:
        op: Any = node.op
        if not isinstance(op, Moe) or node.inputs[0].dtype not in FLOATS:
            continue
        x, router, *weights = node.inputs
        count = len(weights) // 3
        factors = [factor for weight in weights if (factor := _of_expert(weight, x)) is not None]
        if count > MOST_EXPERTS or len(factors) < len(weights) or max(weights[0].spec.evaluate({})) > MOST_INPUTS:
            continue
        gates, ups, downs = (tuple(factors[i * count : (i + 1) * count]) for i in range(3))
        if len({f.form for f in (*gates, *ups)}) > 1 or len({f.form for f in downs}) > 1:
            continue
        made = [weight.node for weight in weights if weight.node is not None]
        yield Experts((*made, node), x, router, gates, ups, downs, node.output, op.top_k, op.normalize, op.activation)


def _of_expert(weight: Value, x: Value) -> Factor | None:
    """What an expert alone multiplies with."""
    found: Factor | None = Factor(weight)
    if weight.node is not None:
        found = _stored(weight.node)
    if found is None or len(weight.uses) > 1 or any(v.kind != "parameter" or len(v.uses) > 1 for v in found.parameters):
        return None
    fits = found.weight.dtype is x.dtype if found.scales is None else found.group <= MOST_GROUP
    return found if fits and 0 not in found.weight.shape else None


# --------------------------------------------------------------------------------------------------------- products


def _products(network: Network) -> Iterator[Product]:
    families: dict[tuple[Any, ...], list[tuple[Node, Factor]]] = {}
    taken: set[Node] = set()
    linear = {node: factor for node in network.nodes if (factor := _factor(node)) is not None}
    for node in network.nodes:
        if isinstance(node.op, Mul) and (found := _pair(network, node, linear)) is not None:
            taken.update(found.nodes)
            yield found
    ends: dict[Node, End] = {}
    for node, factor in linear.items():
        if node not in taken:
            ends[node] = end = _end(network, node, taken)
            taken.update(end.nodes)
            row = end.row
            alone = factor.turned or (bool(end.nodes) and row is None)
            kinds = node.output.dtype, factor.weight.dtype, None if row is None else row.dtype
            key = (id(node) if alone else 0, id(node.inputs[0]), factor.group, *kinds)
            families.setdefault(key, []).append((node, factor))
    for family in families.values():
        for members in [family] if all(_movable(f) for _, f in family) else [[one] for one in family]:
            yield _product(network, members, [ends[node] for node, _ in members])


def _movable(factor: Factor) -> bool:
    """Whether only one product reads a weight: it may lie beside others then."""
    return all(len(v.uses) == 1 for v in (factor.weight, factor.scales) if v is not None)


def _factor(node: Node) -> Factor | None:
    """What a product with a stored weight [outputs, inputs] multiplies with."""
    op: Any = node.op
    if not isinstance(op, Matmul) or op.transpose_a:
        return None
    x, weight = node.inputs
    if len(x.shape) != 2 or x.dtype not in FLOATS or node.output.dtype not in FLOATS:
        return None
    made = weight.node
    if not op.transpose_b:
        if len(weight.uses) > 1:  # it is laid otherwise
            return None
        found = Factor(weight, turned=True)
    elif made is not None and isinstance(made.op, Dequantize) and len(made.inputs) == 2:
        kept = _stored(made)
        # Rows of a table that is the head too are looked up as they are stored.
        if kept is None or not all(isinstance(r.op, (Dequantize, Embedding)) for r in kept.weight.uses):
            return None
        found = kept
    else:
        found = Factor(weight)
    stored = found.weight
    if stored.kind != "parameter" or len(stored.shape) != 2 or 0 in stored.shape:
        return None
    if stored.spec.evaluate({})[0 if found.turned else 1] > MOST_INPUTS:
        return None
    return found if found.scales is not None or stored.dtype is x.dtype else None


def _stored(made: Node) -> Factor | None:
    """What stands for a weight of integers or floats of 8 bits, if kernels read it."""
    op: Any = made.op
    if not isinstance(op, Dequantize):
        return None
    (stored, scales, *zeros), group = made.inputs, op.group
    kinds = (dtypes.int4,) if group else (dtypes.int8, dtypes.float8_e4m3fn)
    kinds_of_scales = (dtypes.float32, dtypes.float16) if group else (dtypes.float32,)
    if len(stored.shape) != 2 or stored.dtype not in kinds or group != (power(group) if group else 0):
        return None
    outputs = (stored.shape[0], stored.shape[1] // group if group else 1)
    fits = scales.shape == outputs and scales.kind == "parameter" and scales.dtype in kinds_of_scales
    fits &= all(group and v.dtype is dtypes.int8 for v in zeros)
    return Factor(stored, scales, group, zeros=(*zeros, None)[0]) if fits and not 0 < group < LEAST_GROUP else None


def _made(*factors: tuple[Node, Factor]) -> list[Node]:
    """The nodes of products, with those that make their weights of integers where nobody else reads these."""
    found: list[Node] = []
    for node, factor in factors:
        weight = node.inputs[1]
        if factor.scales is not None and weight.node is not None and len(weight.uses) == 1:
            found.append(weight.node)
        found.append(node)
    return found


def _pair(network: Network, node: Node, linear: dict[Node, Factor]) -> Product | None:
    """act(x · aᵀ) · (x · bᵀ) that ends in this node."""
    for gate, up in (node.inputs, node.inputs[::-1]):
        act, other = gate.node, up.node
        if act is None or not _activation(act) or other not in linear or not _only(network, gate, node):
            continue
        sums = act.inputs[0]
        maker = sums.node
        if maker not in linear or not _only(network, sums, act) or not _only(network, up, node):
            continue
        a, b = linear[maker], linear[other]
        same = a.weight.spec == b.weight.spec and a.group == b.group and not a.turned and not b.turned
        if maker is other or maker.inputs[0] is not other.inputs[0] or not same:
            continue
        nodes = [*_made((maker, a), (other, b)), act, node]
        before = _before(network, maker.inputs[0], nodes, a)
        return Product(before.nodes, before.x, (a, b), (node.output,), True, before.norm, None, before.rounds,
                       activation=_activation(act))  # fmt: skip
    return None


def _activation(node: Node) -> str:
    """The name of an activation that products end with; "" is none."""
    if not isinstance(node.op, (Silu, Gelu, Relu)) or node.output.dtype not in FLOATS:
        return ""
    return next((name for name, op in ACTIVATIONS.items() if op == node.op), "")


class End(NamedTuple):
    """What follows a product alone: nodes in order, the last of which gives its result."""

    nodes: tuple[Node, ...] = ()
    bias: Value | None = None
    activation: str = ""
    extra: Value | None = None

    @property
    def row(self) -> Value | None:
        """A stored row that is added and nothing else, which nobody else reads: it may lie beside those of others."""
        alone = self.extra is not None and not self.activation and self.bias is None
        row = self.extra if alone else None
        return row if row is not None and row.kind == "parameter" and len(row.shape) == len(row.uses) == 1 else None


def _end(network: Network, node: Node, taken: set[Node]) -> End:
    """A bias, an activation, and what is added then, as far as they are there."""
    nodes, out = [], node.output
    bias, activation, extra = None, "", None
    if (reader := _added(network, out, taken, row=True)) is not None:
        bias = _other(reader, out)
        nodes, out = [reader], reader.output
        if (widens := _widens(network, bias, reader)) is not None:
            nodes, bias = [widens, reader], widens.inputs[0]
    follower = _reader(network, out)
    if follower is not None and follower not in taken and (activation := _activation(follower)):
        nodes, out = [*nodes, follower], follower.output
    if (reader := _added(network, out, taken, row=False)) is not None:
        nodes, extra = [*nodes, reader], _other(reader, out)
    if not activation and extra is None:
        bias, extra = None, bias
    return End(tuple(nodes), bias, activation, extra)


def _widens(network: Network, row: Value, reader: Node) -> Node | None:
    """What makes float32 of a stored row for this reader alone: kernels read rows of any floats, and widen them."""
    made = row.node
    if made is None or not isinstance(made.op, Cast) or not _only(network, row, reader):
        return None
    (stored,) = made.inputs
    return made if stored.kind == "parameter" and stored.dtype in FLOATS and row.dtype is dtypes.float32 else None


def _reader(network: Network, value: Value) -> Node | None:
    """What alone reads a value."""
    reader = next(iter(value.uses), None)
    return reader if reader is not None and _only(network, value, reader) else None


def _other(node: Node, value: Value) -> Value:
    """What a node reads beside a value."""
    (other,) = (v for v in node.inputs if v is not value)
    return other


def _added(network: Network, out: Value, taken: set[Node], row: bool) -> Node | None:
    """The addition to a value, of a row or of rows, that alone reads it and belongs to no other product."""
    reader = _reader(network, out)
    if reader is None or not isinstance(reader.op, Add) or reader in taken:
        return None
    others = [v for v in reader.inputs if v is not out]
    if len(others) != 1 or reader.output.shape != out.shape or others[0].dtype not in FLOATS:
        return None
    return reader if others[0].shape == (out.shape[-1:] if row else out.shape) else None


def _product(network: Network, members: Sequence[tuple[Node, Factor]], ends: Sequence[End]) -> Product:
    first, factors = members[0][0], tuple(f for _, f in members)
    before = _before(network, first.inputs[0], _made(*members), factors[0])
    nodes = (*before.nodes, *(node for end in ends for node in end.nodes))
    outs = tuple((end.nodes or (node,))[-1].output for (node, _), end in zip(members, ends, strict=True))
    several = len(members) > 1
    end = End() if several else ends[0]
    biases = tuple(end.row for end in ends if several and end.row is not None)
    return Product(nodes, before.x, factors, outs, False, before.norm, end.extra, before.rounds,
                   activation=end.activation, bias=end.bias, biases=biases)  # fmt: skip


class Before(NamedTuple):
    """What a product does to its rows: the nodes of all of it, and the rows as they are before."""

    nodes: tuple[Node, ...]
    x: Value
    norm: Node | None
    rounds: bool


def _before(network: Network, x: Value, nodes: Sequence[Node], factor: Factor) -> Before:
    """The norm, and the rounding to floats of 8 bits before a weight of these, where only these nodes read them."""
    found, made = list(nodes), x.node
    rounds = factor.weight.dtype is dtypes.float8_e4m3fn and made is not None and isinstance(made.op, Float8Rows)
    if made is not None and rounds and set(x.uses) <= set(nodes) and not network.is_output(x):
        found, x = [made, *found], made.inputs[0]
    else:
        rounds = False
    norm = _norm_before(network, x, found)
    return Before((*([norm] if norm else []), *found), norm.inputs[0] if norm else x, norm, rounds)


def _norm_before(network: Network, x: Value, nodes: Sequence[Node]) -> Node | None:
    """The norm that makes x, where only these nodes read it."""
    norm = x.node
    if norm is None or network.is_output(x) or not set(x.uses) <= set(nodes):
        return None
    known = isinstance(norm.op, LayerNorm) or (isinstance(norm.op, RmsNorm) and len(norm.inputs) == 2)
    whole = known and all(v.spec is not None for v in norm.inputs[1:]) and len(norm.inputs[0].shape) == 2
    return norm if whole else None
