"""Fusion: fewer, longer loops. Elementwise groups become one expression; products take their epilogue, their pair or
their siblings along; rotary embedding and cache write become one walk.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ingot.ir import ExprBuilder, F, Hole, Network, Node, Scalar, Value
from ingot.ir.expr import MAX_INPUTS, MAX_STEPS, NoExpression, class_of
from ingot.ops.fused import IDENTITY, WEIGHTS, Bodied, FusedElementwise, FusedLinear, expr_tuple
from ingot.ops.product import Matmul
from ingot.passes.rewrite import Log, Rule, apply, detach, note
from ingot.passes.weights import derive, joined_name

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

    A producer joins the group of its readers when it has no other reader and the group's shape; nothing is computed
    twice, and since the group stands where its last op stood, no order changes.
    """
    home: dict[Node, Group] = {}
    for node in reversed(network.nodes):
        if not _has_expression(node):
            continue
        group = _group_of_readers(network, node, home)
        if group is None or not group.take(node):
            group = Group()
            group.take(node)
        home[node] = group
    dead: list[Node] = []
    for last in [n for n in network.nodes if n in home and home[n].last is n]:
        nodes = home[last].nodes[::-1]
        with network.insert_before(last):
            new = _fused_group(network, nodes)
        if len(nodes) > 1:
            note(log, "elementwise", last, f"one loop for {', '.join(n.op.name for n in nodes)}")
        network.replace(last.output, new)
        dead.extend(detach(network, last))
    network.remove(dict.fromkeys(dead))


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
    if len(groups) != 1 or network.is_output(value):
        return None
    (group,) = groups
    return group if group is not None and group.last.output.shape == value.shape else None


def _steps(node: Node) -> int:
    builder = ExprBuilder()
    op: Any = node.op
    op.expr(builder, *(builder.input(i, v.dtype) for i, v in enumerate(node.inputs)))
    return len(builder.steps)


def _fused_group(network: Network, nodes: Sequence[Node]) -> Value:
    """One fused_elementwise for nodes in order, the last of which gives the result."""
    builder = ExprBuilder()
    operands: list[Value] = []
    scalars: dict[Value, Scalar] = {}
    last = nodes[-1]

    def scalar(value: Value) -> Scalar:
        if value not in scalars:
            if value.kind == "constant" and value.array.shape == ():
                scalars[value] = builder.const(value.array.item(), value.dtype)
            else:
                scalars[value] = builder.input(len(operands), value.dtype)
                operands.append(value)
        return scalars[value]

    for node in nodes:
        op: Any = node.op
        scalars[node.output] = op.expr(builder, *map(scalar, node.inputs))
    builder.output(scalars[last.output])
    if not operands:  # a constant that folding left alone: the loop needs one operand to take its shape from
        operands.append(nodes[0].inputs[0])
    op = FusedElementwise(body=expr_tuple(builder.json()), dtypes=(last.output.dtype.name,))
    return network.emit(op, tuple(operands))  # type: ignore[no-any-return]


# ------------------------------------------------------------------------------------------------------------ products


def products(network: Network, log: Log) -> None:
    """A matmul with a parameter of rank 2 becomes a fused_linear, its weight as [N, K]; others stay as they are."""
    dead: list[Node] = []
    for node in list(network.nodes):
        if not isinstance(node.op, Matmul):
            continue
        if why := _no_linear(node):
            note(log, "products", node, why)
            continue
        x, weight = node.inputs
        if not node.op.transpose_b:
            weight = derive(network, "transpose", [weight], f"{weight.name}.transposed", axes=(1, 0))
        with network.insert_before(node):
            new = F.fused_linear(x, weight, body=IDENTITY, dtype=node.output.dtype)
        network.replace(node.output, new)
        dead.extend(detach(network, node))
    network.remove(dict.fromkeys(dead))


def _no_linear(node: Node) -> str:
    op: Any = node.op
    x, weight = node.inputs
    if weight.kind != "parameter" or len(weight.shape) != 2:
        return "the second operand is no parameter of rank 2, so the general product is used"
    if op.transpose_a:
        return "its first operand is transposed"
    if x.dtype not in WEIGHTS or node.output.dtype not in WEIGHTS:
        return f"there are no packed products of {x.dtype.name} with a {node.output.dtype.name} result"
    return "a weight without elements" if 0 in weight.shape else ""


def epilogues(network: Network, log: Log) -> None:
    """An elementwise group moves into the product, convolution or normalisation that only it reads; two products of
    one x become one."""
    dead: list[Node] = []
    for node in list(network.nodes):
        if not isinstance(node.op, FusedElementwise) or len(node.outputs) != 1:
            continue
        makers = [v for v in dict.fromkeys(node.inputs) if v.node is not None and isinstance(v.node.op, Bodied)]
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
        note(log, "epilogues", node, f"part of the {taken[0].node.op.name} of {', '.join(map(_weight, taken))}")
        network.replace(node.output, new)
        dead.extend(detach(network, node))
    network.remove(dict.fromkeys(dead))


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
    elif reader.output.dtype not in WEIGHTS:
        why = f"the result is {reader.output.dtype.name}"
    if why:
        note(log, "epilogues", reader, why)
    return why


def _pair(values: Sequence[Value]) -> list[Value]:
    """The last two products when they are of one x by weights of one shape."""
    if len(values) < 2:
        return []
    a, b = values[-2:]
    plain = all(isinstance(v.node.op, FusedLinear) and v.node.op.body == IDENTITY for v in (a, b))
    same = plain and a.node.inputs[0] is b.node.inputs[0] and a.node.inputs[1].spec == b.node.inputs[1].spec
    return [a, b] if same else []


def _foreign_operand(node: Node, taken: Sequence[Value], extras: Sequence[Value]) -> str:
    shape = node.output.shape
    odd = [v for v in extras if v.shape not in (shape, shape[-1:])]
    if odd:
        return f"operand %{odd[0].name} is {odd[0].spec}, neither a row nor of the result's shape"
    bodies = [node.op.body, *(v.node.op.body for v in taken)]  # type: ignore[attr-defined]
    steps = sum(len(steps) for steps, _ in bodies)
    inputs = len(extras) + sum(len(v.node.inputs) for v in taken)
    return "the expression would be too long" if steps > MAX_STEPS or inputs > MAX_INPUTS else ""


def _with_epilogue(node: Node, taken: Sequence[Value], extras: Sequence[Value]) -> Value:
    """The op that makes `taken` (or the pair of products), with the group's expression after its own."""
    op = taken[0].node.op
    own = taken[0].node.inputs[op.fixed :]
    added = [v for v in extras if not any(v is w for w in own)]
    order = [*taken, *own, *added]  # the inputs of the new expression: the op's results, then what it reads besides
    steps, known = list(op.body[0]), {id(v): op.body[1][0] for v in taken[:1]}
    if len(taken) > 1:  # both bodies are identities
        steps, known = [("input", "float32", i) for i in range(2)], {id(v): i for i, v in enumerate(taken)}
    number: list[int] = []
    body, outputs = node.op.body  # type: ignore[attr-defined]
    for name, kind, *args in body:
        value = node.inputs[args[0]] if name == "input" else None
        if value is not None and id(value) in known:
            number.append(known[id(value)])
            continue
        if value is not None:
            args = [next(i for i, v in enumerate(order) if v is value)]
        elif name != "const":
            args = [number[a] if type(a) is int else a for a in args]
        number.append(len(steps))
        steps.append((name, kind, *args))
    changed = {"parts": 2} if len(taken) > 1 else {}
    made = dataclasses.replace(op, body=(tuple(steps), (number[outputs[0]],)), dtype=node.output.dtype, **changed)
    fixed = (*taken[0].node.inputs[: op.fixed], *(v.node.inputs[1] for v in taken[1:]))
    return node.output.network.emit(made, (*fixed, *own, *added))  # type: ignore[no-any-return]


def siblings(network: Network, log: Log) -> None:
    """Products of one x with one kind of epilogue (q, k and v) become one product and slices of its result."""
    families: dict[tuple[Any, ...], list[Node]] = {}
    for node in network.nodes:
        if isinstance(node.op, FusedLinear):
            if why := _no_sibling(network, node):
                note(log, "siblings", node, why)
            else:
                x, weight = node.inputs[:2]
                key = (id(x), node.op, weight.shape[1], tuple(v.spec.dtype for v in node.inputs[1:]))
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
    network.remove(dict.fromkeys(dead))


def _no_sibling(network: Network, node: Node) -> str:
    op: Any = node.op
    if op.parts != 1:
        return "it has two weights already"
    if any(v.kind != "parameter" or len(v.shape) != 1 for v in node.inputs[2:]):
        return "its epilogue reads more than parameters per column"
    return "it is an output of the network" if network.is_output(node.output) else ""


def _joined(network: Network, nodes: Sequence[Node]) -> list[Value]:
    x, op = nodes[0].inputs[0], nodes[0].op
    columns = [[n.inputs[i] for n in nodes] for i in range(1, len(nodes[0].inputs))]
    joined = [derive(network, "concat", values, joined_name([v.name for v in values]), axis=0) for values in columns]
    whole = network.emit(op, (x, *joined))
    results: list[Value] = []
    at: Any = 0
    for node in nodes:
        shape = node.output.shape
        starts = (*[0] * (len(shape) - 1), at)
        results.append(F.slice(whole, starts, shape, (1,) * len(shape)))
        at += shape[-1]
    return results


# ----------------------------------------------------------------------------------------------------------- attention


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
