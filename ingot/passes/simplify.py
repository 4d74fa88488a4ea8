"""Simplification: what nobody reads, what is computed twice, what is known already, and what changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot.dims import Expr
from ingot.dtypes import DType
from ingot.errors import IngotError
from ingot.ir import F, Hole, Network, Node, Op, Value
from ingot.ir.spec import broadcast, elements
from ingot.ops.control import WhileLoop
from ingot.ops.conversion import Dequantize
from ingot.ops.indexing import Iota
from ingot.ops.movement import Slice
from ingot.passes.rewrite import Log, Rule, apply, detach, note, viewed

# A constant may be computed only up to this size: `expand(1, (10**12,))` in a small file must not become 4 TB.
MAX_FOLDED_ELEMENTS = 1 << 20
MAX_FOLDED_STEPS = 1 << 31  # of Op.steps, all together: seconds, for a network that may come with a stranger's engine
MAX_FOLDED_WORKING = 1 << 28  # bytes of Op.working
MAX_FOLDED_BYTES = 1 << 27  # of results, all together


def remove_dead(network: Network, log: Log) -> None:
    """Nodes, parameters and constants that no output and no state depends on."""
    network.remove_dead()


def share(network: Network, log: Log) -> None:
    """Equal ops on equal operands are computed once, and equal constants stored once."""
    constants: dict[Any, Value] = {}
    for value in list(network.constants):
        network.replace(value, constants.setdefault((value.spec, value.array.tobytes()), value))
    made: dict[Any, Node] = {}
    dead: list[Node] = []
    for node in network.nodes:
        if node.op.binds or _touches_state(node):
            continue
        key = (node.op, *map(id, node.inputs))
        first = made.setdefault(key, node)
        if first is not node:
            for old, new in zip(node.outputs, first.outputs, strict=True):
                network.replace(old, new)
            note(log, "share", node, f"the same as %{first.outputs[0].name}")
            dead.extend(detach(network, node))
    network.remove(dead)


def fold(network: Network, log: Log) -> None:
    """Ops on constants alone become constants, as far as the result stays small and takes no time to speak of."""
    dead: list[Node] = []
    budget = Budget()
    for node in network.nodes:
        kept = bool(node.op.bound_dims()) or node.op.external or _touches_state(node)
        if kept or any(v.kind != "constant" for v in node.inputs) or _is_weight(node):
            continue
        if why := budget.refuses(node):
            note(log, "fold", node, why)
            continue
        budget.spend(node)
        try:
            found = node.op.reference(*(v.array for v in node.inputs))
        except (IngotError, ArithmeticError, LookupError, ValueError) as e:
            note(log, "fold", node, f"it takes no such values, as the run will say: {str(e)[:100]}")
            continue
        for old, array in zip(node.outputs, found if isinstance(found, tuple) else (found,), strict=True):
            network.replace(old, network.constant(np.asarray(array, order="C")))
        dead.extend(detach(network, node))
    network.remove(dead)


def _is_weight(node: Node) -> bool:
    """Whether a node turns a small weight of 8 bits into floats: sums of integers take it as it is."""
    q = node.inputs[0] if node.inputs else None
    return isinstance(node.op, Dequantize) and q is not None and q.dtype.bits == 8 and len(q.shape) > 1


@dataclass
class Budget:
    """What computing constants may still take, all together."""

    steps: int = field(default_factory=lambda: MAX_FOLDED_STEPS)
    bytes: int = field(default_factory=lambda: MAX_FOLDED_BYTES)

    def refuses(self, node: Node) -> str:
        """Why a node on constants is kept, or nothing."""
        sizes = [elements(v.shape) for v in node.outputs]
        if node.op.has_dims() or not dims.all_fixed(sizes):
            return "its size is known only at run time"
        rows = [elements(tuple(d for d in v.shape if d != 0)) for v in node.outputs]  # NumPy has none of 2⁶² · 0 either
        if any(isinstance(n, int) and n > MAX_FOLDED_ELEMENTS for n in rows):
            return f"its result would have more than {MAX_FOLDED_ELEMENTS:,} elements"
        if _loops(node.op):
            return "how often it turns only a run shows"
        if _steps(node) > self.steps or node.op.working(*(v.spec for v in node.inputs)) > MAX_FOLDED_WORKING:
            return "it takes long, or much memory"
        if _bytes(node) > self.bytes:
            return f"the constants made so far have {MAX_FOLDED_BYTES - self.bytes:,} bytes"
        return ""

    def spend(self, node: Node) -> None:
        """Takes off what a node takes that was not refused."""
        self.steps -= _steps(node)
        self.bytes -= _bytes(node)


def _bytes(node: Node) -> int:
    """The bytes of a node's results, whose sizes are known."""
    return sum(int(elements(v.shape)) * v.dtype.numpy.itemsize for v in node.outputs)


def _steps(node: Node) -> int:
    """About how many nanoseconds a node on constants takes."""
    specs = [v.spec for v in node.inputs]
    return int(node.op.steps(*specs) + sum(elements(v.shape) for v in (*node.inputs, *node.outputs)))


def _loops(op: Op) -> bool:
    """Whether an op is a loop, or has one inside."""
    inner = [value for name in op.attributes if isinstance(value := getattr(op, name), Network)]
    return isinstance(op, WhileLoop) or any(_loops(node.op) for network in inner for node in network.nodes)


def _touches_state(node: Node) -> bool:
    return any(v.is_state for v in (*node.inputs, *node.outputs))


# ------------------------------------------------------------------------------------------------------------- algebra


def _same(x: Value, root: Value) -> bool:
    return bool(x.spec == root.spec)


def _full(x: Value, root: Value, starts: tuple[Any, ...], strides: tuple[int, ...]) -> bool:
    return x.spec == root.spec and all(s == 0 for s in starts) and all(s == 1 for s in strides)


def _widened(x: Value, root: Value, wide: DType) -> bool:
    back = x.dtype is root.dtype and x.dtype.is_float
    return bool(back and wide.is_float and wide.bits > x.dtype.bits)


def _holds(mask: Value, truth: bool) -> bool:
    """Whether a constant of bools, or a view of one, is the same everywhere."""
    mask = viewed(mask)
    return mask.kind == "constant" and mask.array.dtype == np.bool_ and bool((mask.array == truth).all())


def _as_wide(x: Value, root: Value) -> Any:
    return x if x.shape == root.shape else F.expand(x, root.shape)


def _permuted(x: Value, root: Value, first: tuple[int, ...], then: tuple[int, ...]) -> Any:
    a, b = (tuple(d % len(x.shape) for d in order) for order in (first, then))
    return F.permute(x, tuple(a[d] for d in b))


def _sliced(x: Value, starts: Any, strides: Any, more: Any, steps: Any, sizes: Any) -> Any:
    at = tuple(dims.add(a, dims.mul(b, s)) for a, b, s in zip(starts, more, strides, strict=True))
    return F.slice(x, at, sizes, tuple(a * b for a, b in zip(strides, steps, strict=True)))


# Only what is exact in every float: x + 0 is missing, since −0 + 0 is 0. Pairs stay for others that read the first.
ALGEBRA = (
    Rule("times 1", lambda x: F.mul(x, 1), lambda x: x, _same),
    Rule("divided by 1", lambda x: F.div(x, 1), lambda x: x, _same),
    Rule("minus 0", lambda x: F.sub(x, 0), lambda x: x, _same),
    Rule("negated twice", lambda x: F.neg(F.neg(x)), lambda x: x, shared=True),
    Rule("cast to its own dtype", lambda x: F.cast(x, Hole("dtype")), lambda x: x, _same),
    Rule("widened and back", lambda x: F.cast(F.cast(x, Hole("wide")), Hole("dtype")), lambda x: x, _widened,
         shared=True),
    Rule("reshape to its own shape", lambda x: F.reshape(x, Hole("shape")), lambda x: x, _same),
    Rule("reshape twice", lambda x: F.reshape(F.reshape(x, Hole("first")), Hole("shape")),
         lambda x, root: F.reshape(x, root.shape), shared=True),
    Rule("expand to its own shape", lambda x: F.expand(x, Hole("shape")), lambda x: x, _same),
    Rule("permute twice", lambda x: F.permute(F.permute(x, Hole("first")), Hole("then")),
         lambda x, root, first, then: _permuted(x, root, first, then), shared=True),
    Rule("permute that moves nothing", lambda x: F.permute(x, Hole("order")), lambda x: x,
         lambda x, order: tuple(d % len(order) for d in order) == tuple(range(len(order)))),
    Rule("whole slice", lambda x: F.slice(x, Hole("starts"), Hole("sizes"), Hole("strides")), lambda x: x, _full),
    Rule("slice of a slice",
         lambda x: F.slice(F.slice(x, Hole("starts"), Hole("inner"), Hole("strides")),
                           Hole("more"), Hole("sizes"), Hole("steps")),
         _sliced, shared=True),
    Rule("chosen by True", lambda c, a, b: F.where(c, a, b), lambda a, root: _as_wide(a, root),
         lambda c: _holds(c, True)),
    Rule("chosen by False", lambda c, a, b: F.where(c, a, b), lambda b, root: _as_wide(b, root),
         lambda c: _holds(c, False)),
    Rule("and True", lambda c, x: F.logical_and(c, x), lambda x, root: _as_wide(x, root),
         lambda c, x: x.dtype is dtypes.bool_ and _holds(c, True)),
    Rule("or False", lambda c, x: F.logical_or(c, x), lambda x, root: _as_wide(x, root),
         lambda c, x: x.dtype is dtypes.bool_ and _holds(c, False)),
    Rule("not twice", lambda x: F.logical_not(F.logical_not(x)), lambda x: x, shared=True),
    Rule("concat of one", lambda x: F.concat([x], Hole("dim")), lambda x: x),
)  # fmt: skip


def algebra(network: Network, log: Log) -> None:
    """Ops that change nothing, and pairs of them that are one."""
    spread(network, log)
    uniform(network, log)
    apply(network, ALGEBRA, log)


def spread(network: Network, log: Log) -> None:
    """An elementwise op on numbers that were expanded is a number that is expanded."""
    dead: list[Node] = []
    for node in list(network.nodes):
        numbers = [viewed(v) for v in node.inputs]
        if node.op.expr is None or any(v.kind != "constant" or v.array.size != 1 for v in numbers) or not numbers:
            continue
        try:
            found = node.op.reference(*(v.array.reshape(()) for v in numbers))
        except (IngotError, ArithmeticError, ValueError) as e:
            note(log, "spread", node, f"it takes no such values, as the run will say: {str(e)[:100]}")
            continue
        with network.insert_before(node):
            new = F.expand(network.constant(np.asarray(found, node.output.dtype.numpy)), node.output.shape)
        note(log, "spread", node, "it computes one number")
        network.replace(node.output, new)
        dead.extend(detach(network, node))
    network.remove(dead)


def uniform(network: Network, log: Log) -> None:
    """A constant of equal elements that gives an elementwise op none of its shape is a number."""
    for node in network.nodes:
        if node.op.expr is None:
            continue
        inputs = list(node.inputs)
        for i, value in enumerate(inputs):
            others = [v.shape for j, v in enumerate(inputs) if j != i]
            if value.kind != "constant" or not value.shape or not others or broadcast(*others) != node.output.shape:
                continue
            if _is_uniform(value.array):
                inputs[i] = network.constant(value.array.reshape(-1)[:1].reshape(()))
        if any(new is not old for new, old in zip(inputs, node.inputs, strict=True)):
            note(log, "uniform", node, "a constant of equal elements is a number")
            network.rewire(node, tuple(inputs))


def _is_uniform(array: np.ndarray[Any, Any]) -> bool:
    """Whether all elements have the bits of the first. Not so for NaN, whose bits a number may lose."""
    flat = array.reshape(-1)
    return flat.size > 0 and flat.tobytes() == flat[:1].tobytes() * flat.size and bool((flat[:1] == flat[:1]).all())


def reversals(network: Network, log: Log) -> None:
    """A slice with a negative step is turned by index along that dim: views walk forward only. That it lies in its
    operand is left to the view; an index of -1 would take a zero."""
    dead: list[Node] = []
    for node in list(network.nodes):
        op: Any = node.op
        if not isinstance(op, Slice) or all(step > 0 for step in op.strides):
            continue
        x = node.inputs[0]
        with network.insert_before(node):
            ahead = [(s, n, t) if t > 0 else (dims.add(s, dims.mul(dims.add(n, -1), t)), n, -t)
                     for s, n, t in zip(op.starts, op.sizes, op.strides, strict=True)]  # fmt: skip
            new = F.slice(x, *map(tuple, zip(*ahead, strict=True)))
            for axis, (size, step) in enumerate(zip(op.sizes, op.strides, strict=True)):
                if step < 0:
                    last = dims.add(size, -1)
                    index = network.emit(Iota(size=size, start=last, step=-1, dtype=dtypes.int64), ())
                    new = F.take(new, index, axis)
        network.replace(node.output, new)
        dead.extend(detach(network, node))
    network.remove(dead)


# What an iota's kernel writes itself; other integers are cast.
COUNTED = (dtypes.float32, dtypes.float64, dtypes.int32, dtypes.int64)


def sizes(network: Network, log: Log) -> None:
    """An iota of a narrow type is cast from int64; a start that only a run knows is the sum of that many ones."""
    dead: list[Node] = []
    for node in list(network.nodes):
        op: Any = node.op
        if not isinstance(op, Iota) or (isinstance(op.start, int) and op.dtype in COUNTED):
            continue
        with network.insert_before(node):
            start = op.start if isinstance(op.start, int) else 0
            new = network.emit(Iota(size=op.size, start=start, step=op.step, dtype=dtypes.int64), ())
            if not isinstance(op.start, int):
                new = F.add(new, _counted(network, op.start))
            new = F.cast(new, op.dtype)
        network.replace(node.output, new)
        dead.extend(detach(network, node))
    network.remove(dead)


def _counted(network: Network, size: Expr) -> Value:
    """A dimension as an int64 scalar. A shape is not negative, so that the two signs are counted apart."""
    one = network.constant(np.array(1, np.int64))
    above = F.reduce_sum(F.expand(one, (dims.maximum(size, 0),)))
    if dims.bounds(size)[0] >= 0:
        return above  # type: ignore[no-any-return]
    below = F.reduce_sum(F.expand(one, (dims.maximum(dims.mul(size, -1), 0),)))
    return F.sub(above, below)  # type: ignore[no-any-return]
