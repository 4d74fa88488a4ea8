"""Activations, normalisations and embeddings that a network writes out in simpler ops become those ops: what exporters
of ONNX make of them, and what people write by hand. Numbers move by rounding alone.

An activation is found by what it computes: around an erf, tanh or sigmoid of a polynomial in x stands a polynomial in x
and that, whatever the order of its factors. A norm is found by what it divides by: the root of a mean of squares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

from ingot import dtypes
from ingot.ir import F, Hole, Network, Node, Value
from ingot.ops.binary import Add, Div, Mul, Pow, Sub
from ingot.ops.conversion import Cast
from ingot.ops.elementwise import Erf, Neg, Reciprocal, Rsqrt, Sigmoid, Sqrt, Tanh
from ingot.ops.movement import Reshape
from ingot.ops.norm import GroupNorm, LayerNorm, RmsNorm
from ingot.ops.reduce import ReduceMean, ReduceSum
from ingot.passes.rewrite import Log, Rule, alike, apply, detach, note, number_of, read_outside
from ingot.passes.weights import FIXED, derive, is_uniform, stored_alike

CLOSE = 1e-6  # how far a number may be from what it stands for, relative: float32 rounds to 6e-8


class Found(NamedTuple):
    """What a node becomes, and the nodes of what stood there; nobody else may read those."""

    name: str
    inside: set[Node]
    make: Callable[[], Value]


def written_out(network: Network, log: Log) -> None:
    """Activations and norms that stand there in pieces become one op each, with the weights behind a norm."""
    apply(network, (*RULES, ROWS), log)
    _each(network, log, _activation)
    _each(network, log, _norm)
    _each(network, log, _group_norm)
    apply(network, NARROW, log)
    _each(network, log, _with_weight)
    apply(network, NARROW, log)


def _each(network: Network, log: Log, find: Callable[[Node], Found | None]) -> None:
    """Replaces at every node what is found there."""
    dead: set[Node] = set()
    for node in list(network.nodes):
        if node in dead or len(node.outputs) != 1:
            continue
        found = find(node)
        if found is None:
            continue
        if why := read_outside(network, node.output, tuple(found.inside)):
            note(log, found.name, node, why)
            continue
        with network.insert_before(node):
            new = found.make()
        note(log, found.name, node, "rewritten")
        network.replace(node.output, new)
        dead.update(detach(network, node, tuple(found.inside)))
    network.remove(dead)


# --------------------------------------------------------------------------------------------------------- activations

Polynomial = dict[tuple[int, int], float]  # the coefficient of x^i · t^j, by (i, j)
MAX_TERMS = 24  # ops of an activation
MAX_POWER = 4
_LINE = math.sqrt(2 / math.pi)
_GATED: Polynomial = {(1, 0): 0.5, (1, 1): 0.5}  # x (1 + t) / 2

# t of a polynomial in x, the polynomial in x and t around it, and what both are together.
ACTIVATIONS: tuple[tuple[str, type, Polynomial, Polynomial, Callable[[Value], Value]], ...] = (
    ("gelu", Erf, {(1, 0): math.sqrt(0.5)}, _GATED, lambda x: F.gelu(x, approximate=False)),
    ("gelu by tanh", Tanh, {(1, 0): _LINE, (3, 0): _LINE * 0.044715}, _GATED, lambda x: F.gelu(x, approximate=True)),
    ("silu", Sigmoid, {(1, 0): 1.0}, {(1, 1): 1.0}, lambda x: F.silu(x)),
    ("silu by tanh", Tanh, {(1, 0): 0.5}, _GATED, lambda x: F.silu(x)),
)


def _activation(node: Node) -> Found | None:
    """The activation whose result a node is."""
    if not isinstance(node.op, Mul | Add | Div) or node.output.dtype not in dtypes.PRECISIONS:
        return None
    for t in _curves(node.output):
        for x in _operands(t.node.inputs[0]):
            if x.shape != node.output.shape or x.dtype is not node.output.dtype:
                continue
            inside: set[Node] = {t.node}
            around = _polynomial(node.output, {x: {(1, 0): 1.0}, t: {(0, 1): 1.0}}, inside)
            argument = _polynomial(t.node.inputs[0], {x: {(1, 0): 1.0}}, inside) if around else None
            for name, kind, of_x, of_both, make in ACTIVATIONS:
                if isinstance(t.node.op, kind) and _close(argument, of_x) and _close(around, of_both):
                    return Found(name, inside, lambda make=make, x=x: make(x))  # type: ignore[misc]
    return None


def _curves(value: Value) -> Iterator[Value]:
    """The erfs, tanhs and sigmoids among what a few sums and products are made of."""
    for part in _operands(value):
        if isinstance(part.node and part.node.op, Erf | Tanh | Sigmoid):
            yield part


def _operands(value: Value) -> Iterator[Value]:
    """A value, and what sums, products and powers make it of, nearest first."""
    todo, seen = [value], {value}
    for one in todo:
        yield one
        if one.node is None or not isinstance(one.node.op, Mul | Add | Sub | Div | Neg | Pow):
            continue
        new = [v for v in dict.fromkeys(one.node.inputs) if v not in seen and number_of(v) is None]
        seen.update(new)
        todo += new[: MAX_TERMS - len(todo)]


def _polynomial(value: Value, known: dict[Value, Polynomial | None], inside: set[Node]) -> Polynomial | None:
    """A value as a polynomial like the known ones, or None. `inside` gets the nodes that it is made of, `known` what
    was found: a value that is read twice is followed once.
    """
    if value in known:
        return known[value]
    number, node = number_of(value), value.node
    if number is not None:
        return {(0, 0): number}
    if node is None or not isinstance(node.op, Mul | Add | Sub | Div | Neg | Pow) or len(inside) > MAX_TERMS:
        return None
    inside.add(node)
    parts = [_polynomial(v, known, inside) for v in node.inputs]
    found = [p for p in parts if p is not None]
    known[value] = _combined(node, *found) if len(found) == len(parts) else None
    return known[value]


def _combined(node: Node, a: Polynomial, b: Polynomial | None = None) -> Polynomial | None:
    if b is None:
        return _times(a, {(0, 0): -1.0})
    if isinstance(node.op, Mul):
        return _times(a, b)
    if isinstance(node.op, Add | Sub):
        sign = -1.0 if isinstance(node.op, Sub) else 1.0
        return {power: a.get(power, 0.0) + sign * b.get(power, 0.0) for power in {**a, **b}}
    number = b.get((0, 0), 0.0)
    if set(b) != {(0, 0)} or not number:
        return None
    if isinstance(node.op, Div):
        return _times(a, {(0, 0): 1 / number})
    if number not in range(1, MAX_POWER):
        return None
    result: Polynomial | None = a
    for _ in range(int(number) - 1):
        result = None if result is None else _times(result, a)
    return result


def _times(a: Polynomial, b: Polynomial) -> Polynomial | None:
    result: Polynomial = {}
    for (i, j), p in a.items():
        for (k, m), q in b.items():
            result[i + k, j + m] = result.get((i + k, j + m), 0.0) + p * q
    return result if all(max(power) <= MAX_POWER for power in result) else None


def _close(found: Polynomial | None, want: Polynomial) -> bool:
    if found is None or not all(map(math.isfinite, found.values())):
        return False
    return all(math.isclose(found.get(p, 0.0), want.get(p, 0.0), rel_tol=CLOSE) for p in {**found, **want})


def _is_float(x: Value, root: Value) -> bool:
    return x.dtype in dtypes.PRECISIONS and x.spec == root.spec


def _never_in_the_way(x: Value, root: Value, beta: float, threshold: float) -> bool:
    """Whether a softplus is log(1 + exp(x)) as far as its tanh shows."""
    return beta == 1 and threshold >= 20 and _is_float(x, root)


def _is_softplus(x: Value, edge: Value, root: Value) -> bool:
    threshold = number_of(edge)
    return threshold is not None and math.isfinite(threshold) and _is_float(x, root)


RULES = (
    Rule("softplus with a threshold",
         lambda x, edge: F.where(F.greater(x, edge), x, F.softplus(x, beta=1.0, threshold=math.inf)),
         lambda x, edge: F.softplus(x, threshold=number_of(edge)), _is_softplus),
    Rule("sigmoid", lambda x: F.div(1.0, F.add(F.exp(F.neg(x)), 1.0)), lambda x: F.sigmoid(x), _is_float),
    Rule("sigmoid by a reciprocal", lambda x: F.reciprocal(F.add(F.exp(F.neg(x)), 1.0)), lambda x: F.sigmoid(x),
         _is_float),
    Rule("silu by a quotient", lambda x: F.div(x, F.add(F.exp(F.neg(x)), 1.0)), lambda x: F.silu(x), _is_float),
    Rule("mish", lambda x: F.mul(x, F.tanh(F.softplus(x, beta=Hole("beta"), threshold=Hole("threshold")))),
         lambda x: F.mish(x), _never_in_the_way),
    Rule("mish by a logarithm", lambda x: F.mul(x, F.tanh(F.log(F.add(F.exp(x), 1.0)))), lambda x: F.mish(x),
         _is_float),
)  # fmt: skip


ROWS = Rule(
    "rows of a table", lambda x, index: F.take(x, index, axis=0, from_end=True),
    lambda x, index: F.embedding(index, x, from_end=True), lambda x: x.kind == "parameter" and len(x.shape) == 2,
)  # fmt: skip


# --------------------------------------------------------------------------------------------------------------- norms


def _norm(node: Node) -> Found | None:
    """x / root(mean(x²) + eps) is an RMS norm, and of x without its mean a layer norm; perhaps times a weight."""
    root = node.output
    if not isinstance(node.op, Mul | Div) or root.dtype not in dtypes.PRECISIONS or not root.shape:
        return None
    sides = [node.inputs] if isinstance(node.op, Div) else [node.inputs, node.inputs[::-1]]
    for above, below in sides:
        inside = {node}
        spread = _under_a_root(below, inside, inverse=isinstance(node.op, Mul))
        if spread is None or spread.node is None or not isinstance(spread.node.op, Add):
            continue
        inside.add(spread.node)
        for variance, small in (spread.node.inputs, spread.node.inputs[::-1]):
            eps, more = number_of(small), set(inside)
            x = None if eps is None or not 0 <= eps < math.inf else _square_mean(variance, more)
            if x is not None and eps is not None and x.dtype is root.dtype:
                found = _normalised(above, x, eps, more)
                if found is not None and found[0].shape == root.shape:
                    _, name, make = found
                    return Found(name, more, make)
    return None


def _normalised(above: Value, c: Value, eps: float, inside: set[Node]) -> tuple[Value, str, Callable[[], Value]] | None:
    """What is normalised, its op's name, and what makes it, from what stands above the root of mean(c²) + eps."""
    weight = None
    if not _same_centred(above, c):
        if above.node is None or not isinstance(above.node.op, Mul):
            return None
        inside.add(above.node)
        for w, rest in (above.node.inputs, above.node.inputs[::-1]):
            if _same_centred(rest, c):
                weight, above = w, rest
                break
        else:
            return None
    x, op = _without_mean(c, set()), F.layer_norm
    if x is None:
        x, op = c, F.rms_norm
    else:
        for centred in (c, above):
            _without_mean(centred, inside)

    def make() -> Value:
        y = op(x, eps=eps)
        return y if weight is None else F.mul(y, weight)  # type: ignore[no-any-return]

    return x, "rms norm" if x is c else "layer norm", make


def _same_centred(a: Value, b: Value) -> bool:
    """Whether two values are the same, or one value without its mean, however that is computed."""
    if alike(a, b):
        return True
    x, y = _without_mean(a, set()), _without_mean(b, set())
    return x is not None and y is not None and alike(x, y)


def _under_a_root(value: Value, inside: set[Node], inverse: bool) -> Value | None:
    """e of √e, or of 1/√e."""
    node = value.node
    if node is None:
        return None
    inside.add(node)
    if isinstance(node.op, Rsqrt if inverse else Sqrt):
        return node.inputs[0]  # type: ignore[no-any-return]
    if isinstance(node.op, Pow):
        return node.inputs[0] if number_of(node.inputs[1]) == (-0.5 if inverse else 0.5) else None
    if not inverse:
        return None
    if isinstance(node.op, Reciprocal):
        return _under_a_root(node.inputs[0], inside, inverse=False)
    if isinstance(node.op, Div) and number_of(node.inputs[0]) == 1:
        return _under_a_root(node.inputs[1], inside, inverse=False)
    return None


def _square_mean(value: Value, inside: set[Node]) -> Value | None:
    """c of the mean of c² along the last dimension, which stays with size 1."""
    square = _mean(value, inside)
    node = None if square is None else square.node
    if node is None:
        return None
    inside.add(node)
    if isinstance(node.op, Mul) and alike(*node.inputs):
        a, b = node.inputs
        if a is not b and _without_mean(a, set()) is not None:
            _without_mean(b, inside)
        return a  # type: ignore[no-any-return]
    return node.inputs[0] if isinstance(node.op, Pow) and number_of(node.inputs[1]) == 2 else None


def _without_mean(value: Value, inside: set[Node]) -> Value | None:
    """x of x − mean(x) along the last dimension."""
    node = value.node
    if node is None or not isinstance(node.op, Sub):
        return None
    inside.add(node)
    x, mean = node.inputs
    of = _mean(mean, inside)
    return x if of is not None and alike(of, x) else None


def _mean(value: Value, inside: set[Node]) -> Value | None:
    """x of its mean along the last dimension, which stays with size 1."""
    node, shape, count = value.node, value.shape, None
    while node is not None and isinstance(node.op, Reshape | Div):
        inside.add(node)
        if isinstance(node.op, Div):
            number = number_of(node.inputs[1])
            if count is not None or number is None:
                return None
            count = number
        node = node.inputs[0].node
    if node is None or not isinstance(node.op, ReduceMean if count is None else ReduceSum):
        return None
    inside.add(node)
    x = node.inputs[0]
    axes = None if node.op.axes is None else tuple(a % len(x.shape) for a in node.op.axes)
    last = axes == (len(x.shape) - 1,) and shape == (*x.shape[:-1], 1)
    return x if last and (count is None or count == x.shape[-1]) else None


def _group_norm(node: Node) -> Found | None:
    """A norm of [N, groups, …] between two reshapes is a group norm of [N, C, …]."""
    made = node.inputs[0].node if isinstance(node.op, Reshape) else None
    before = made.inputs[0].node if made is not None and isinstance(made.op, GroupNorm | LayerNorm) else None
    if made is None or before is None or not isinstance(before.op, Reshape):
        return None
    x, (inner, *vectors), op = before.inputs[0], made.inputs, made.op
    if x.shape != node.output.shape or len(x.shape) < 3 or x.shape[0] != inner.shape[0]:
        return None
    if isinstance(op, LayerNorm):
        groups = inner.shape[1] if len(inner.shape) == 3 and not vectors else None
    else:
        groups = None if op.channels_last else op.groups
    channels = x.shape[1]
    if not isinstance(groups, int) or not isinstance(channels, int) or not groups or channels % groups:
        return None
    each = channels // groups
    if vectors and (inner.shape[1] not in (groups, channels) or not stored_alike(*vectors)):
        return None
    if vectors and inner.shape[1] != channels and channels > MAX_REPEATED:
        return None

    def make() -> Value:
        found = vectors if inner.shape[1] == channels else [_repeated(v, each) for v in vectors]
        return F.group_norm(x, *found, groups=groups, eps=op.eps)  # type: ignore[no-any-return]

    return Found("group norm", {node, made, before}, make)


MAX_REPEATED = 1 << 16  # channels: each is an index in the recipe of the weight, and so in the engine's header


def _repeated(vector: Value, times: int) -> Value:
    """Every element so many times in a row."""
    indices = tuple(i // times for i in range(vector.shape[0] * times))
    return derive(vector.network, "take", [vector], f"{vector.name}.repeated", axis=0, indices=indices)


# -------------------------------------------------------------------------------------------------- weights of norms


def _with_weight(node: Node) -> Found | None:
    """A product with a norm's result is its weight, and what is added behind that its bias."""
    if not isinstance(node.op, Mul | Add):
        return None
    for y, given in (node.inputs, node.inputs[::-1]):
        made = y.node
        if made is None or not isinstance(made.op, LayerNorm | RmsNorm | GroupNorm) or y.spec != node.output.spec:
            continue
        x, *vectors = made.given
        vector, shift = _shifted(given, made, vectors)
        if not _is_vector(vector, made, x):
            continue
        found = _multiplied(made, vectors, vector, shift) if isinstance(node.op, Mul) else _added(made, vectors, vector)
        if found is not None:
            what = "weight" if isinstance(node.op, Mul) else "bias"
            return Found(f"{what} of a {made.op.name.replace('_', ' ')}", {node, made}, found)
    return None


def _shifted(given: Value, made: Node, vectors: list[Value]) -> tuple[Value, float]:
    """The weight of an RMS norm that is stored around 0, and what is added to it."""
    if isinstance(made.op, RmsNorm) and not vectors and given.node is not None and isinstance(given.node.op, Add):
        for weight, shift in (given.node.inputs, given.node.inputs[::-1]):
            number = number_of(shift)
            if number is not None and math.isfinite(number) and weight.shape == given.shape:
                return weight, number
    return given, 0.0


def _is_vector(vector: Value, made: Node, x: Value) -> bool:
    """Whether a stored value has an element for each channel that a norm has a weight for, and broadcasts along it."""
    if not _is_stored(vector) or vector.dtype is not x.dtype:
        return False
    rank = len(x.shape)
    at = 1 if isinstance(made.op, GroupNorm) and not made.op.channels_last else rank - 1
    if len(vector.shape) > rank:
        return False
    shape = (*[1] * (rank - len(vector.shape)), *vector.shape)
    size = x.shape[at]
    return isinstance(size, int) and shape == tuple(size if i == at else 1 for i in range(rank))


def _is_stored(value: Value) -> bool:
    """Whether a value is a weight or a constant, perhaps in another shape or type."""
    while value.node is not None and isinstance(value.node.op, Reshape | Cast):
        value = value.node.inputs[0]
    return value.kind in FIXED


def _held(vector: Value) -> Value:
    """What holds the elements of a weight, which is of another shape."""
    while vector.node is not None and isinstance(vector.node.op, Reshape):
        vector = vector.node.inputs[0]
    return vector


def _flat(vector: Value) -> Value:
    """The vector that a weight of several dimensions holds."""
    size = math.prod(vector.spec.evaluate({}))
    vector = _held(vector)
    if len(vector.shape) == 1:
        return vector
    if vector.node is not None:
        return F.reshape(vector, (size,))  # type: ignore[no-any-return]
    return derive(vector.network, "reshape", [vector], f"{vector.name}.flat", shape=(size,))


def _multiplied(made: Node, vectors: list[Value], factor: Value, shift: float) -> Callable[[], Value] | None:
    x, op = made.inputs[0], cast(Any, made.op)
    ones, zeros = not vectors or is_uniform(vectors[0], 1), len(vectors) < 2 or is_uniform(vectors[1], 0)
    if ones and zeros:
        if shift:
            return lambda: F.rms_norm(x, _flat(factor), eps=op.eps, shift=shift)
        return lambda: x.network.emit(op, (x, _flat(factor)))
    if shift or isinstance(op, RmsNorm) or not stored_alike(*vectors, _held(factor)):
        return None

    def make() -> Value:
        last = _flat(factor)
        scaled = [derive(x.network, "scale", [v, last], f"{v.name}.scaled", axis=0) for v in vectors]
        return x.network.emit(op, (x, *scaled))  # type: ignore[no-any-return]

    return make


def _added(made: Node, vectors: list[Value], addend: Value) -> Callable[[], Value] | None:
    x, op = made.inputs[0], cast(Any, made.op)
    if isinstance(op, RmsNorm) or not vectors:
        return None
    weight, *bias = vectors
    if not bias or is_uniform(bias[0], 0):
        return lambda: x.network.emit(op, (x, weight, _flat(addend)))
    if not stored_alike(*bias, _held(addend)):
        return None

    def make() -> Value:
        total = derive(x.network, "add", [*bias, _flat(addend)], f"{bias[0].name}.sum")
        return x.network.emit(op, (x, weight, total))  # type: ignore[no-any-return]

    return make


# ------------------------------------------------------------------------------------------- norms between two casts

ROOT = {"eps": Hole("eps")}


def _once(x: Value, root: Value, wide: Any) -> bool:
    """Whether a norm in float32 of what is narrower is what the op does by itself."""
    return x.dtype is root.dtype and x.dtype.is_float and x.dtype.bits < 32 and wide is dtypes.float32


def _all_narrow(x: Value, w: Value, root: Value, wide: Any) -> bool:
    return _once(x, root, wide) and w.dtype is x.dtype


def _wide(v: Value) -> Any:
    return F.cast(v, Hole("wide"))


def _narrow(v: Any) -> Any:
    return F.cast(v, Hole("narrow"))


NARROW = (
    Rule("rms norm, widened", lambda x: _narrow(F.rms_norm(_wide(x), **ROOT, shift=0.0)),
         lambda x, eps: F.rms_norm(x, eps=eps), _once),
    Rule("rms norm with a weight, widened",
         lambda x, w: _narrow(F.rms_norm(_wide(x), _wide(w), **ROOT, shift=Hole("shift"))),
         lambda x, w, eps, shift: F.rms_norm(x, w, eps=eps, shift=shift), _all_narrow),
    Rule("layer norm, widened", lambda x: _narrow(F.layer_norm(_wide(x), **ROOT)),
         lambda x, eps: F.layer_norm(x, eps=eps), _once),
    Rule("layer norm with a weight and a bias, widened",
         lambda x, w, b: _narrow(F.layer_norm(_wide(x), _wide(w), _wide(b), **ROOT)),
         lambda x, w, b, eps: F.layer_norm(x, w, b, eps=eps),
         lambda x, w, b, root, wide: _all_narrow(x, w, root, wide) and b.dtype is x.dtype),
)  # fmt: skip
