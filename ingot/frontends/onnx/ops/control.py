"""If, Loop and Scan: natively, and written out where what they decide on is known."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot.dims import Dimension, Expr
from ingot.frontends.onnx.ops.common import axes_at, cast, number, size_value
from ingot.frontends.onnx.ops.shape import part
from ingot.frontends.onnx.table import Anything, Body, Call, Graph, Sequence, Unknown, onnx
from ingot.frontends.table import Ints, MaybeInts, MaybeTensor, Results, Tensor, Unsupported
from ingot.ir import F, Network, Spec, Value
from ingot.ir.checked import may_be
from ingot.ir.sizes import as_size
from ingot.ops.control import MAX_ROUNDS

ONE_SIZE = (
    "let it carry tensors of one type and size, such as a buffer of all rounds that each writes a row of, or give what "
    "a round makes as one of its scan outputs; or make the number of rounds a constant of the model"
)
MAX_WRITTEN_OUT = 64  # rounds of a loop that become nodes, where a loop of ours cannot hold them


@onnx("If", folds=False)
def if_(call: Call, condition: Tensor, *, then_branch: Graph, else_branch: Graph) -> Results:
    known = call.contents(condition)
    if known is not None:
        return tuple(call.inline(then_branch if known.reshape(()) else else_branch, []))
    if _squeezes(then_branch, else_branch) and _may_hold(condition):
        return tuple(call.inline(then_branch, []))
    try:
        bodies = [call.body(then_branch, []), call.body(else_branch, [])]
    except Unsupported as e:
        raise Unknown(condition, f"{e}; so the condition") from None
    operands = list(dict.fromkeys(v for body in bodies for v in body.captured))
    for body in bodies:
        _with_operands(body, operands, 0)
    predicate = condition if not condition.shape else F.reshape(condition, ())
    then, other = (body.network for body in bodies)
    shapes = {n: _padded(call.network, then, other, n) for n in list(then.outputs) if n in other.outputs}
    found = F.cond(predicate, *operands, then_branch=then, else_branch=other)
    results = found if isinstance(found, tuple) else (found,)
    return tuple(_cut(predicate, y, shapes.get(name)) for name, y in zip(then.outputs, results, strict=True))


Shapes = tuple[tuple[Dimension, ...], tuple[Dimension, ...]]


def _padded(outside: Network, then: Network, other: Network, name: str) -> Shapes | None:
    """Lets both branches give an output of one shape, where theirs differ in sizes that are known outside: padded to
    the larger ones. Gives the two shapes, of which a run cuts out one; None where there is nothing to do."""
    a, b = then.outputs[name], other.outputs[name]
    known = {d for shape in (a.shape, b.shape) for size in shape if isinstance(size, Expr) for d in size.dims()}
    if a.shape == b.shape or len(a.shape) != len(b.shape) or a.dtype is not b.dtype or not known <= outside.dims.keys():
        return None
    whole = [n if n == m else dims.maximum(n, m) for n, m in zip(a.shape, b.shape, strict=True)]
    shapes = a.shape, b.shape
    for network, value in ((then, a), (other, b)):
        more = tuple(dims.add(n, dims.mul(own, -1)) for n, own in zip(whole, value.shape, strict=True))
        made = F.pad(value, before=(0,) * len(whole), after=more, value=0.0)
        network.outputs[name] = made
    return shapes


def _cut(predicate: Value, y: Any, shapes: Shapes | None) -> Any:
    if shapes is None:
        return y
    sizes = [
        n if n == m else as_size(F.where(predicate, size_value(predicate, n), size_value(predicate, m)))
        for n, m in zip(*shapes, strict=True)
    ]
    return F.slice(y, (0,) * len(sizes), tuple(sizes), (1,) * len(sizes))


def _squeezes(then: Any, other: Any) -> bool:
    """Whether it is what torch's older exporter makes of `x.squeeze(dim)`: without the dimension if its size is 1, else
    as it is. What follows takes the rank that it had when it was exported, without; a run checks the size.
    """
    ops = [node.op_type for node in then.node if node.op_type != "Constant"]
    return ops == ["Squeeze"] and [node.op_type for node in other.node] == ["Identity"]


def _may_hold(condition: Value) -> bool:
    """Whether it asks if a size is 1, and none of its sizes says no."""
    node = condition.node
    if node is None or node.op.name != "equal":
        return False
    sides = [v.known if v.array is None else v.array for v in node.inputs]
    return all(x is not None and x.size == 1 for x in sides) and may_be(*(_size(x) for x in sides))


def _size(x: Any) -> Dimension:
    found = x.reshape(-1)[0]
    return found if isinstance(found, Expr) else int(found)


def _with_operands(body: Body, operands: list[Value], first: int) -> None:
    """Lets a body take, behind its first inputs, these operands; it has captured some of them."""
    network = body.network
    own = dict(zip(body.captured, network.inputs[first:], strict=True))
    kept = network.inputs[:first]
    for i, value in enumerate(operands):
        if value not in own:
            own[value] = network.input(f"unread{i}", value.spec)
    network.inputs[:] = [*kept, *(own[value] for value in operands)]


def _truth(network: Network, value: Any) -> bool | None:
    """Whether a condition that a body gives is the same in every round: always true, always false, or unknown."""
    if value.array is not None:
        return bool(np.asarray(value.array).reshape(()))
    return None


@onnx("Loop", folds=False)
def loop(call: Call, most: MaybeTensor, go: MaybeTensor, *initial: Anything, body: Graph) -> Results:
    """A scan where only the count ends it, else a loop on the condition; unrolled where sizes or sequences change."""
    rounds = None if most is None else call.contents(most)
    start = None if go is None else call.contents(go)
    if any(x is None or isinstance(x, Sequence) for x in initial):
        return _unrolled(call, most, rounds, start, go, list(initial), body, "it carries sequences")
    try:
        return _as_loop(call, most, go, start, list(initial), body)
    except (Unsupported, ValueError) as e:
        if rounds is None or int(rounds.reshape(())) > MAX_WRITTEN_OUT:
            if most is not None and rounds is None:
                raise Unknown(most, f"{e}; so the number of rounds", ONE_SIZE) from None
            raise
        return _unrolled(call, most, rounds, start, go, list(initial), body, str(e))


def _as_loop(call: Call, most: Any, go: Any, start: Any, initial: list[Value], graph: Any) -> Results:
    specs = [Spec((), dtypes.int64), Spec((), dtypes.bool_), *(x.spec for x in initial)]
    made = call.body(graph, specs)
    network, count = made.network, len(initial)
    results = list(network.outputs.values())
    going, carried, kept = results[0], results[1 : 1 + count], results[1 + count :]
    if [v.spec for v in carried] != [x.spec for x in initial]:
        raise Unsupported("what it carries changes its type or size from round to round")
    forever = going is network.inputs[1] or _truth(network, going) is True
    outer = made.captured
    begins = go is None or start is not None and bool(start.reshape(()))
    if forever and begins and most is not None:
        return _as_scan(call, network, most, initial, carried, kept, outer)
    return _as_while(call, network, most, go, initial, going, carried, kept, outer)


def _outputs(network: Network, values: list[Value]) -> None:
    network.outputs.clear()
    for i, value in enumerate(values):
        network.output(f"y{i}", value)


def _as_scan(
    call: Call, network: Network, most: Value, initial: list[Value], carried: list[Value], kept: list[Value],
    outer: list[Value],
) -> Results:  # fmt: skip
    """The count goes along as one more carried number; the condition, which holds, is a constant."""
    i, condition = network.inputs[:2]
    true = network.constant(np.array(True))
    network.replace(condition, true)
    network.inputs[:] = [v for v in network.inputs if v is not condition]
    del network.values[condition.name]
    _outputs(network, [F.add(i, number(i, 1)), *carried, *kept])
    known = call.contents(most)
    length = _rounds(most) if known is None else max(int(known.reshape(())), 0)
    zero = call.network.constant(np.array(0, np.int64))
    found = F.scan(zero, *initial, *outer, body=network, length=length, carried=1 + len(initial), scanned=0)
    return tuple((found if isinstance(found, tuple) else (found,))[1:])


def _rounds(most: Any) -> Dimension:
    """As many as a count says that only a run knows; none of one below 0."""
    none = number(most, 0)
    return as_size(F.where(F.less(most, none), none, most) if most.known is None else F.maximum(most, none))


def _as_while(
    call: Call, network: Network, most: Any, go: Any, initial: list[Value], going: Value, carried: list[Value],
    kept: list[Value], outer: list[Value],
) -> Results:  # fmt: skip
    i, condition = network.inputs[:2]
    own = network.inputs[2 + len(initial) :]
    limit = None if most is None else network.input("limit", Spec((), dtypes.int64))
    network.inputs[:] = [i, condition, *network.inputs[2 : 2 + len(initial)], *own, *([] if limit is None else [limit])]
    passed = network.inputs[2 + len(initial) :]
    _outputs(network, [F.add(i, number(i, 1)), going, *carried, *passed, *kept])
    test = Network("condition")
    inputs = [test.input(f"x{n}", v.spec) for n, v in enumerate(network.inputs)]
    holds = inputs[1] if limit is None else F.logical_and(inputs[1], F.less(inputs[0], inputs[-1]))
    test.output("y0", holds)
    zero = call.network.constant(np.array(0, np.int64))
    first = call.network.constant(np.array(True)) if go is None else F.reshape(go, ())
    operands = [zero, first, *initial, *outer, *([] if most is None else [F.reshape(cast(most, dtypes.int64), ())])]
    found = F.while_loop(*operands, condition=test, body=network, limit=MAX_ROUNDS)
    return (*found[2 : 2 + len(initial)], *found[len(operands) :])


def _unrolled(
    call: Call, most: Any, rounds: Any, start: Any, go: Any, values: list[Any], graph: Any, reason: str
) -> Results:
    """The rounds as nodes, one after the other; how many there are has to be known."""
    limit = MAX_WRITTEN_OUT + 1 if most is None else None if rounds is None else int(rounds.reshape(()))
    if limit is None:
        raise Unknown(most, "the number of rounds")
    if go is not None and start is None:
        raise Unknown(go, "the condition")
    kept: list[list[Any]] = [[] for _ in range(len(graph.output) - 1 - len(values))]
    holds = start is None or bool(start.reshape(()))
    done = 0
    while holds and done < limit:
        if done == MAX_WRITTEN_OUT:
            raise Unsupported(f"more than {MAX_WRITTEN_OUT} rounds written out")
        index = call.network.constant(np.array(done, np.int64))
        results = call.inline(graph, [index, call.network.constant(np.array(True)), *values])
        found = call.contents(results[0])
        if found is None:
            raise Unsupported("its condition is data, and what it carries changes its size")
        holds = bool(found.reshape(()))
        values = results[1 : 1 + len(values)]
        for several, one in zip(kept, results[1 + len(values) :], strict=True):
            several.append(one)
        done += 1
    call.unrolled(done, reason)
    stacked = []
    for several in kept:
        if not several:
            raise Unsupported("no round is run, and what it would keep has no size")
        stacked.append(_stacked(several))
    return (*values, *stacked)


def _stacked(parts: list[Any]) -> Any:
    """Tensors of one shape along a new first dimension."""
    if not all(isinstance(v, Value) for v in parts):
        raise Unsupported("what it would stack is no tensor")
    return F.concat(*(F.reshape(v, (1, *v.shape)) for v in parts), dim=0)


@onnx("Scan", until=8, folds=False)
def scan_8(
    call: Call, lengths: MaybeTensor, *xs: Tensor, body: Graph, num_scan_inputs: int, directions: MaybeInts = None
) -> Results:
    """With a batch in front, each of whose rows is scanned by itself."""
    if lengths is not None:
        raise Unsupported("lengths of sequences are not supported")
    carried = _carried(xs, num_scan_inputs)
    rows = xs[0].shape[0]
    if not isinstance(rows, int) or rows > MAX_WRITTEN_OUT:
        raise Unsupported(f"the batch must be known and at most {MAX_WRITTEN_OUT}")
    found = []
    for row in range(rows):
        own = [F.reshape(part(x, 0, row, 1), x.shape[1:]) for x in xs]
        found.append(_scanned(call, own, carried, body, directions or (0,) * num_scan_inputs, None, None, None))
    return tuple(_stacked(list(several)) for several in zip(*found, strict=True))


@onnx("Scan", since=9, folds=False)
def scan(
    call: Call, *xs: Tensor, body: Graph, num_scan_inputs: int, scan_input_axes: MaybeInts = None,
    scan_input_directions: MaybeInts = None, scan_output_axes: MaybeInts = None,
    scan_output_directions: MaybeInts = None,
) -> Results:  # fmt: skip
    carried = _carried(xs, num_scan_inputs)
    ways = scan_input_directions or (0,) * num_scan_inputs
    return _scanned(call, list(xs), carried, body, ways, scan_input_axes, scan_output_axes, scan_output_directions)


def _carried(xs: tuple[Any, ...], scanned: int) -> int:
    """How many of a scan's operands go from step to step."""
    if not 1 <= scanned <= len(xs):
        raise Unsupported(f"it scans {scanned} of its {len(xs)} operands")
    return len(xs) - scanned


def _reversed(x: Any, axis: int = 0) -> Any:
    size = x.shape[axis]
    return part(x, axis, size + -1, size, -1)


def _scanned(
    call: Call, xs: list[Any], carried: int, graph: Any, ways: Ints, axes: Ints | None, out_axes: Ints | None,
    out_ways: Ints | None,
) -> Results:  # fmt: skip
    scanned = []
    for i, x in enumerate(xs[carried:]):
        axis = axes_at((axes[i],), len(x.shape))[0] if axes else 0
        if axis:
            x = F.permute(x, (axis, *(a for a in range(len(x.shape)) if a != axis)))
        scanned.append(_reversed(x) if ways[i] else x)
    specs = [*(x.spec for x in xs[:carried]), *(Spec(x.shape[1:], x.dtype) for x in scanned)]
    made = call.body(graph, specs)
    if not scanned:
        raise Unsupported("it scans nothing")
    found = F.scan(*xs[:carried], *scanned, *made.captured, body=made.network, length=scanned[0].shape[0],
                   carried=carried, scanned=len(scanned))  # fmt: skip
    results = list(found if isinstance(found, tuple) else (found,))
    for i in range(carried, len(results)):
        y = results[i]
        if out_ways and out_ways[i - carried]:
            y = _reversed(y)
        if out_axes and (to := axes_at((out_axes[i - carried],), len(y.shape))[0]):
            rest = list(range(1, len(y.shape)))
            y = F.permute(y, (*rest[:to], 0, *rest[to:]))
        results[i] = y
    return tuple(results)


@onnx("SequenceMap", folds=False)
def sequence_map(call: Call, *xs: Anything, body: Graph) -> Results:
    if not xs or not isinstance(xs[0], Sequence):
        raise Unsupported("its first operand must be a sequence")
    found: list[list[Any]] = [[] for _ in body.output]
    for i in range(len(xs[0])):
        results = call.inline(body, [x[i] if isinstance(x, Sequence) else x for x in xs])
        for several, one in zip(found, results, strict=True):
            several.append(one)
    return tuple(Sequence(several) for several in found)
