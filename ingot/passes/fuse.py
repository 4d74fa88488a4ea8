"""Fusion: fewer, longer loops. Elementwise groups become one expression; products take their epilogue, their pair or
their siblings along; rotary embedding and cache write become one walk.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ingot import dtypes
from ingot.ir import ExprBuilder, F, Hole, Network, Node, Op, Scalar, Value
from ingot.ir.expr import MAX_INPUTS, MAX_STEPS, NoExpression, class_of
from ingot.ir.rounding import is_needless_rounding, steps_looked_at, without_needless_rounding
from ingot.ops.binary import Add
from ingot.ops.conversion import Dequantize, Quantize
from ingot.ops.fused import IDENTITY, SCALED, TIMES, FusedElementwise, expr_tuple
from ingot.ops.lowering import BYTES, FINISHED, SUMS, Lowered, plain
from ingot.passes.layout import is_product
from ingot.passes.rewrite import Log, Rule, apply, detach, note
from ingot.passes.weights import FIXED, derive, joined_name

# ---------------------------------------------------------------------------------------------------------- elementwise


@dataclass(eq=False)
class Group:
    """Nodes that become one loop, the last first; `reads` is what they need from outside."""

    nodes: list[Node] = field(default_factory=list)
    reads: set[Value] = field(default_factory=set)
    steps: int = 0

    @property
    def last(self) -> Node:
        return self.nodes[0]

    def take(self, node: Node) -> bool:
        """Adds a node that only this group reads, if the expression stays within its limits."""
        reads = (self.reads - {node.output}) | set(node.inputs)
        steps = self.steps + _steps(node)
        if self.nodes and (len(reads) > MAX_INPUTS or steps > MAX_STEPS):
            return False
        self.nodes.append(node)
        self.reads, self.steps = reads, steps
        return True


def elementwise(network: Network, log: Log) -> None:
    """Each maximal tree of elementwise ops becomes one fused_elementwise.

    A producer joins the group of its readers when it has no other reader and the group's shape. Nothing is computed
    twice, and since the group stands where its last op stood, no order changes. Where the sums of a product or
    convolution are quantised, that ends a group: they stay there in a byte each until they are read.
    """
    dead: list[Node] = []
    for nodes in groups(network, _has_expression):
        last = nodes[-1]
        with network.insert_before(last):
            new = _fused_group(network, nodes)
        if len(nodes) > 1:
            note(log, "elementwise", last, f"one loop for {', '.join(n.op.name for n in nodes)}")
        network.replace(last.output, new)
        dead.extend(detach(network, last))
    network.remove(dead)


def groups(network: Network, takes: Callable[[Node], bool]) -> list[list[Node]]:
    """The trees of elementwise nodes that one loop computes, in order. `takes`: which nodes."""
    home: dict[Node, Group] = {}
    for node in reversed(network.nodes):
        if not takes(node):
            continue
        group = _group_of_readers(network, node, home)
        if group is None or not group.take(node):
            group = Group()
            group.take(node)
        home[node] = group
    return [home[n].nodes[::-1] for n in network.nodes if n in home and home[n].last is n]


def _has_expression(node: Node) -> bool:
    if node.op.expr is None:
        return False
    try:
        for value in (*node.inputs, *node.outputs):
            class_of(value.dtype)
    except NoExpression:
        return False
    return True


def _group_of_readers(network: Network, node: Node, home: Mapping[Node, Group]) -> Group | None:
    """The one group that all readers of a node belong to, when the node has its shape."""
    value = node.output
    groups = {home.get(user) for user in value.uses}
    if len(groups) != 1 or network.is_output(value) or (isinstance(node.op, Quantize) and _is_of_sums(node.inputs[0])):
        return None
    (group,) = groups
    return group if group is not None and group.last.output.shape == value.shape else None


def _is_of_sums(value: Value) -> bool:
    """Whether the epilogue of a product or convolution can make a value: nothing else reads what lies between."""
    front = [value]
    while front:
        value = front.pop()
        node = value.node
        if node is None or len(value.uses) > 1:
            continue
        if isinstance(node.op, Lowered) and isinstance(node.op.inner, SUMS):
            return True
        if _has_expression(node) and not isinstance(node.op, Dequantize):
            front += [v for v in node.inputs if v.kind not in FIXED]
    return False


def _steps(node: Node) -> int:
    builder = ExprBuilder()
    op: Any = node.op
    op.expr(builder, *(builder.input(i, v.dtype) for i, v in enumerate(node.inputs)))
    return len(builder.steps)


def _fused_group(network: Network, nodes: Sequence[Node]) -> Value:
    """One fused_elementwise for nodes in order, the last of which gives the result."""
    builder = ExprBuilder()
    operands: list[Value] = []
    last = nodes[-1]

    def read(value: Value) -> Scalar:
        operands.append(value)
        return builder.input(len(operands) - 1, value.dtype)

    builder.output(joined(builder, nodes, read))
    if not operands:  # a constant that folding left alone: the loop needs one operand to take its shape from
        operands.append(nodes[0].inputs[0])
    op = FusedElementwise(expression=expr_tuple(builder.json()), dtypes=(last.output.dtype.name,))
    return network.emit(op, tuple(operands))  # type: ignore[no-any-return]


def joined(builder: ExprBuilder, nodes: Sequence[Node], read: Callable[[Value], Scalar]) -> Scalar:
    """What the last of elementwise nodes gives. `read`: makes an element of a value from outside, once for each."""
    scalars: dict[Value, Scalar] = {}

    def scalar(value: Value) -> Scalar:
        if value not in scalars:
            number = value.kind == "constant" and value.array.shape == ()
            scalars[value] = builder.const(value.array.item(), value.dtype) if number else read(value)
        return scalars[value]

    for node in nodes:
        op: Any = node.op
        scalars[node.output] = op.expr(builder, *map(scalar, node.inputs))
    return scalars[nodes[-1].output]


# -------------------------------------------------------------------------------------------------- products take along


PLAIN_SUMS = (IDENTITY, TIMES, SCALED)


def biases(network: Network, log: Log) -> None:
    """A second bias (of a calibrated layer, what rounding took from its mean) joins the epilogue of its product or
    convolution at once: behind it may lie a sum of two such results, of which only one can take the other along."""
    dead: list[Node] = []
    for node in list(network.nodes):
        if not isinstance(node.op, Add):
            continue
        pairs = (node.inputs, node.inputs[::-1])
        made = [v for v, w in pairs if w.kind in FIXED and _takes_bias(network, v, w, node)]
        if not made:
            continue
        with network.insert_before(node):
            group = _fused_group(network, [node])
            extras = [v for v in group.node.inputs if v is not made[0]]
            if _foreign_operand(group.node, made, extras):
                continue
            new = _with_epilogue(group.node, made, extras)
        note(log, "biases", node, f"part of the {made[0].node.op.inner.name} of {_weight(made[0])}")
        network.replace(node.output, new)
        dead.extend((*detach(network, node), *detach(network, group.node)))
    network.remove(dead)
    network.remove_dead()


def _takes_bias(network: Network, value: Value, bias: Value, add: Node) -> bool:
    """Whether `value` is a product or convolution that only `add` reads, and `bias` a row of its outputs."""
    op: Any = value.node.op if value.node is not None else None
    if not isinstance(op, Lowered) or not isinstance(op.inner, SUMS) or len(value.uses) > 1 or network.is_output(value):
        return False
    if is_product(op) and op.epilogue in PLAIN_SUMS:  # it may still find its pair
        return False
    return value.shape == add.output.shape and bias.shape == value.shape[-1:] and add.output.dtype in dtypes.PRECISIONS


def epilogues(network: Network, log: Log) -> None:
    """An elementwise group moves into the product, convolution or normalisation that only it reads; two products of
    one x become one."""
    dead: list[Node] = []
    for node in list(network.nodes):
        if not isinstance(node.op, FusedElementwise) or len(node.outputs) != 1:
            continue
        makers = [v for v in dict.fromkeys(node.inputs) if v.node is not None and _has_epilogue(v.node.op)]
        taken = [v for v in makers if not _keeps_result(network, v, node, log)]
        taken = _pair(taken) or taken[-1:]
        extras = [v for v in dict.fromkeys(node.inputs) if not any(v is t for t in taken)]
        if not taken or (why := _foreign_operand(node, taken, extras)):
            if taken:
                note(log, "epilogues", node, why)
            continue
        with network.insert_before(node):
            network.where = taken[0].node.where or node.where  # what computes most of it
            new = _with_epilogue(node, taken, extras)
        note(log, "epilogues", node, f"part of the {taken[0].node.op.inner.name} of {', '.join(map(_weight, taken))}")
        network.replace(node.output, new)
        dead.extend(detach(network, node))
    network.remove(dead)
    for node in network.nodes:
        if isinstance(node.op, FusedElementwise):
            steps, outputs = node.op.expression
            types = ([v.dtype for v in values] for values in (node.inputs, node.outputs))
            steps, outputs = without_needless_rounding(steps, outputs, *types)
            if len(outputs) == 1 and node.output.dtype in BYTES and any(v.kind in FIXED for v in node.inputs):
                steps, result = _by_products(steps, *outputs)
                steps, outputs = tuple(steps), (result,)
            node.op = dataclasses.replace(node.op, expression=(steps, outputs))


def _has_epilogue(op: Op) -> bool:
    return isinstance(op, Lowered) and op.epilogue is not None


def _weight(value: Value) -> str:
    """The name of the weight that a result was made with, or the result's own."""
    weights = [v for v in value.node.inputs if v.kind == "parameter"]
    return weights[0].name if weights else f"%{value.name}"


def _keeps_result(network: Network, value: Value, reader: Node, log: Log) -> str:
    """Why an op cannot take its reader along, or nothing."""
    why = ""
    if len(value.uses) > 1 or network.is_output(value):
        why = f"%{value.name} has other readers"
    elif value.shape != reader.output.shape:
        why = f"%{value.name} is broadcast"
    elif reader.output.dtype not in FINISHED:
        why = f"the result is {reader.output.dtype.name}"
    if why:
        note(log, "epilogues", reader, why)
    return why


def _pair(values: Sequence[Value]) -> list[Value]:
    """The last two products that are of one x by weights of one shape, with scales of one type."""
    found = [v for v in values if is_product(v.node.op) and v.node.op.parts == 1 and v.node.op.epilogue in PLAIN_SUMS]
    for i, b in reversed(list(enumerate(found))):
        for a in reversed(found[:i]):
            one, other = a.node, b.node
            stored = ([v.spec for v in node.inputs[1 : node.op.held]] for node in (one, other))
            same = one.inputs[0] is other.inputs[0] and operator.eq(*stored)
            if same and one.op.group == other.op.group:
                return [a, b]
    return []


def _foreign_operand(node: Node, taken: Sequence[Value], extras: Sequence[Value]) -> str:
    shape = node.output.shape
    fits = taken[0].node.op.epilogue_shapes(shape)
    odd = [v for v in extras if v.shape not in fits]
    if odd:
        return f"operand %{odd[0].name} is {odd[0].spec}, which the epilogue cannot spread over the result"
    expressions = [node.op.expression, *(v.node.op.epilogue for v in taken)]  # type: ignore[attr-defined]
    steps = sum(len(steps) for steps, _ in expressions)
    inputs = len(extras) + sum(len(v.node.inputs) for v in taken)
    return "the expression would be too long" if steps > MAX_STEPS or inputs > MAX_INPUTS else ""


def _with_epilogue(node: Node, taken: Sequence[Value], extras: Sequence[Value]) -> Value:
    """The op that makes `taken` (or the pair of products), with the group's expression after its own."""
    first, *_ = taken
    op = first.node.op
    own = list(dict.fromkeys(v for t in taken for v in t.node.inputs[t.node.op.held :]))
    added = [v for v in extras if not any(v is w for w in own)]
    order = [*own, *added]  # what the new expression reads beside the op's results
    results = sum(v.node.op.parts for v in taken)
    steps: list[tuple[Any, ...]] = []

    def appended(expression: Any, inputs: Sequence[Value | int], known: Mapping[int, int]) -> int:
        """The number of its result's step. An input is an operand, or the number of one of the op's results."""
        number: list[int] = []
        own_steps, outputs = expression
        lying = [None if not isinstance(v, Value) or id(v) in known else v.dtype for v in inputs]
        for step in own_steps:
            name, kind, *args = step
            if is_needless_rounding(own_steps, step, lying):
                number.append(number[args[0]])
                continue
            if name == "input":
                read = inputs[args[0]]
                if isinstance(read, Value) and id(read) in known:
                    number.append(known[id(read)])
                    continue
                at = next(i for i, v in enumerate(order) if v is read) + results if isinstance(read, Value) else read
                args = [at]
            elif name != "const":
                args = [number[a] if type(a) is int else a for a in args]
            number.append(len(steps))
            steps.append((name, kind, *args))
        last: int = number[outputs[0]]
        return last

    known: dict[int, int] = {}
    start = 0
    for v in taken:
        numbers = range(start, start + v.node.op.parts)
        known[id(v)] = appended(v.node.op.epilogue, [*numbers, *v.node.inputs[v.node.op.held :]], {})
        start = numbers.stop
    result = appended(node.op.expression, node.inputs, known)  # type: ignore[attr-defined]
    held = (*taken[0].node.inputs[: op.held], *(w for v in taken[1:] for w in v.node.inputs[1 : v.node.op.held]))
    changed: dict[str, Any] = {"parts": 2, "layouts": plain(len(held))} if len(taken) > 1 else {}
    if to_bytes := node.output.dtype in BYTES:
        kinds = [*[dtypes.float32] * results, *(v.dtype for v in order)]
        steps, (result,) = without_needless_rounding(steps, (result,), kinds, [node.output.dtype])
    if to_bytes or first.node.inputs[0].dtype is dtypes.int8:
        steps, result = _by_products(steps, result)
    made = dataclasses.replace(op, epilogue=(tuple(steps), (result,)), dtype=node.output.dtype, **changed)
    return node.output.network.emit(made, (*held, *order))  # type: ignore[no-any-return]


def _by_products(steps: Sequence[tuple[Any, ...]], result: int) -> tuple[list[tuple[Any, ...]], int]:
    """Steps and their result with products with a reciprocal in the place of quotients by a number: of sums of int8, or
    where the result becomes bytes (of a loop by itself beside stored numbers alone: what nothing else rounds has ties).
    There that rounding decides ties at most. What jumps elsewhere, as ⌊x / 41⌋ does, takes the quotient itself."""
    exact = steps_looked_at(steps)
    made: list[tuple[Any, ...]] = []
    number: list[int] = []
    for at, (name, kind, *given) in enumerate(steps):
        args = given if name in ("input", "const") else [number[a] if type(a) is int else a for a in given]
        if name == "div" and at not in exact and made[args[1]][0] == "const":
            by = np.float32(made[args[1]][2])
            if np.isfinite(by) and np.finfo(np.float32).tiny <= abs(by) <= 1 / np.finfo(np.float32).tiny:
                name, args = "mul", [args[0], len(made)]
                made.append(("const", kind, float(np.float32(1) / by)))
        number.append(len(made))
        made.append((name, kind, *args))
    return made, number[result]


def siblings(network: Network, log: Log) -> None:
    """Products of one x with one kind of epilogue (q, k and v) become one product and slices of its result."""
    families: dict[tuple[Any, ...], list[Node]] = {}
    for node in network.nodes:
        if is_product(node.op):
            if why := _no_sibling(network, node):
                note(log, "siblings", node, why)
            else:
                x, weight = node.inputs[:2]
                op: Any = node.op
                rows = tuple(id(v) for v in node.inputs[op.held :] if len(v.shape) > 1)
                kinds = tuple((v.kind, v.spec.dtype) for v in node.inputs[1:])
                key = (id(x), op, weight.shape[1], kinds, rows)
                families.setdefault(key, []).append(node)
    dead: list[Node] = []
    for nodes in families.values():
        if len(nodes) < 2:
            continue
        with network.insert_before(nodes[0]):
            results = _joined(network, nodes)
        note(log, "siblings", nodes[0], f"one product for {', '.join(n.inputs[1].name for n in nodes)}")
        for node, new in zip(nodes, results, strict=True):
            network.replace(node.output, new)
            dead.extend(detach(network, node))
    network.remove(dead)


def _no_sibling(network: Network, node: Node) -> str:
    op: Any = node.op
    if op.parts != 1:
        return "it has two weights already"
    extras, rows = node.inputs[op.held :], node.output.shape[:-1]
    if any(v.shape != (*rows, 1) and (v.kind not in FIXED or len(v.shape) != 1) for v in extras):
        return "its epilogue reads more than what is stored per column, and numbers of rows"
    return "it is an output of the network" if network.is_output(node.output) else ""


def _joined(network: Network, nodes: Sequence[Node]) -> list[Value]:
    first, *_ = nodes
    x, op = first.inputs[0], first.op
    held: int = op.held  # type: ignore[attr-defined]
    columns = [list(column) for column in zip(*(n.inputs[1:] for n in nodes), strict=True)]
    joined = [
        derive(network, "concat", values, joined_name([v.name for v in values]), axis=0)
        if i < held or len(values[0].shape) == 1 else values[0]  # numbers of rows, the same for all
        for i, values in enumerate(columns, 1)
    ]
    whole = network.emit(op, (x, *joined))
    results: list[Value] = []
    at: Any = 0
    for node in nodes:
        shape = node.output.shape
        starts = (*[0] * (len(shape) - 1), at)
        results.append(F.slice(whole, starts, shape, (1,) * len(shape)))
        at += shape[-1]
    return results


# ------------------------------------------------------------------------------------------------------------ attention


def _rope_kv_write(
    q: Value, k: Value, v: Value, cos: Value, sin: Value, slot: Value, state: Value, style: str,
    start: Value, length: Value, table: Value, scale: float, window: Any, softcap: Any,
) -> Value:  # fmt: skip
    rotated, written = F.rope_kv_write(q, k, v, cos, sin, slot, state, style=style)
    return F.paged_attention(rotated, written, start, length, table, scale=scale, window=window, softcap=softcap)  # type: ignore[no-any-return]


def _sloped_rope_kv_write(
    q: Value, k: Value, v: Value, cos: Value, sin: Value, slot: Value, state: Value, style: str,
    start: Value, length: Value, table: Value, slopes: Value, scale: float, window: Any, softcap: Any,
) -> Value:  # fmt: skip
    rotated, written = F.rope_kv_write(q, k, v, cos, sin, slot, state, style=style)
    step = (start, length, table, slopes)
    return F.paged_attention(rotated, written, *step, scale=scale, window=window, softcap=softcap)  # type: ignore[no-any-return]


def _rope_kv_write_pattern(
    q: Value, k: Value, v: Value, cos: Value, sin: Value, slot: Value, state: Value, *step: Value
) -> Value:
    rotated, key = (F.rope(x, cos, sin, style=Hole("style")) for x in (q, k))
    return F.paged_attention(  # type: ignore[no-any-return]
        rotated, F.kv_write(state, key, v, slot), *step,
        scale=Hole("scale"), window=Hole("window"), softcap=Hole("softcap"),
    )  # fmt: skip


def _one_dtype(q: Value, k: Value, v: Value) -> bool | str:
    return q.dtype is k.dtype is v.dtype or "q, k and v have different dtypes"


ATTENTION = (
    Rule(
        "rope and cache write",
        pattern=lambda q, k, v, cos, sin, slot, state, start, length, table: _rope_kv_write_pattern(
            q, k, v, cos, sin, slot, state, start, length, table
        ),
        when=_one_dtype,
        replace=_rope_kv_write,
    ),
    Rule(
        "rope and cache write, with slopes",
        pattern=lambda q, k, v, cos, sin, slot, state, start, length, table, slopes: _rope_kv_write_pattern(
            q, k, v, cos, sin, slot, state, start, length, table, slopes
        ),
        when=_one_dtype,
        replace=_sloped_rope_kv_write,
    ),
)


def attention(network: Network, log: Log) -> None:
    """Rotating q and k and writing k and v to the cache become one walk."""
    apply(network, ATTENTION, log)
