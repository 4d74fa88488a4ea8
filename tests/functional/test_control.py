"""Choices, loops and scans: in the C++ core and by torch, against plain NumPy; no host call, in every precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from ingot import dtypes
from ingot import functional as F
from ingot.builder.network import build_network
from ingot.dims import Dim
from ingot.errors import OpError, ValueFault
from ingot.ir import Network, Spec
from ingot.ir.interpret import interpret
from ingot.ir.text import from_json, parse, to_json
from ingot.ops.control import CONTROL
from ingot.passes import bodies
from ingot.passes.precision import in_precision

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(3)
T, B = Dim("T", 0), Dim("B", 0)
HIDDEN, WIDE = 12, 5
SIZES = ((5, 3), (1, 1), (0, 2), (4, 0), (0, 0))  # T and B


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def zero(like: Any) -> Any:
    """An int32 scalar 0 in a tensor's network."""
    return like.network.constant(np.array(0, np.int32))


class Net(NamedTuple):
    """A net of x f32[T, B, 5] and n i32[] (and of weights); and what it means in NumPy."""

    net: Callable[..., Any]
    numpy: Callable[..., Any]
    weights: tuple[tuple[int, ...], ...] = ()


# ------------------------------------------------------------------------------------------------------------ the nets
def lstm(x: Any, n: Any, wi: Any, wh: Any, b: Any) -> Any:
    start = F.expand(x.network.constant(np.zeros((1, HIDDEN), np.float32)), (B, HIDDEN))

    def step(h: Any, c: Any, x: Any, wi: Any, wh: Any, b: Any) -> Any:
        gates = F.matmul(x, wi, transb=True) + F.matmul(h, wh, transb=True) + b
        i, f, o, u = F.split(gates, HIDDEN, 1)
        c = F.sigmoid(f) * c + F.sigmoid(i) * F.tanh(u)
        h = F.sigmoid(o) * F.tanh(c)
        return h, c, h

    return F.scan(step, [start, start], [x], [wi, wh, b])


def lstm_in_numpy(x: Array, n: Array, wi: Array, wh: Array, b: Array) -> Any:
    h = c = np.zeros((x.shape[1], HIDDEN), np.float32)
    rows = []
    for one in x:
        i, f, o, u = np.split(one @ wi.T + h @ wh.T + b, 4, 1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(u)
        h = sigmoid(o) * np.tanh(c)
        rows.append(h)
    return h, c, np.stack(rows) if rows else np.empty((0, *h.shape), np.float32)


def onnx_loop(x: Any, n: Any) -> Any:
    """As ONNX has it: a trip count that is data, a condition that the body computes, and outputs of every round."""
    row = F.sum(x, [0, 1])

    def body(i: Any, n: Any, go: Any, sum_: Any, row: Any) -> Any:
        sum_ = sum_ + row
        return i + 1, n, F.lt(F.max(sum_, 0), 1000.0), sum_, row, sum_ * 2.0, i

    go = F.eq(zero(x), 0)
    return F.while_loop(
        lambda i, n, go, *_: F.op_and(F.lt(i, n), go), body, [zero(x), n, go, row * 0.0, row]
    )[3:]  # fmt: skip


def onnx_loop_in_numpy(x: Array, n: Array) -> Any:
    row = x.sum((0, 1))
    total = [np.zeros(WIDE, np.float32)]
    while len(total) <= n and total[-1].max() < 1000:
        total.append(total[-1] + row)
    rounds = len(total) - 1
    kept = np.stack(total[1:]) * 2 if rounds else np.empty((0, WIDE), np.float32)
    return total[-1], row, kept, np.arange(rounds, dtype=np.int32)


def bubble(x: Any, n: Any) -> Any:
    """A loop in a loop, and a choice in that: the rows whose number is even are added, the others taken away."""

    def inner(j: Any, i: Any, a: Any, row: Any) -> Any:
        even = F.eq(F.modulo(i + j, 2), 0)
        return j + 1, i, F.cond(even, lambda a, r: a + r, lambda a, r: a - r, [a, row]), row

    def outer(i: Any, n: Any, a: Any, row: Any) -> Any:
        found = F.while_loop(lambda j, i, a, r: F.lt(j, i), inner, [zero(a), i, a, row])
        return i + 1, n, found[2], row

    row = F.sum(x, 0)
    return F.while_loop(lambda i, n, a, r: F.lt(i, n), outer, [zero(x), n, row * 0.0, row])[2]


def bubble_in_numpy(x: Array, n: Array) -> Array:
    row = x.sum(0)
    return row * np.float32(sum(1 if (i + j) % 2 == 0 else -1 for i in range(int(n)) for j in range(i)))


def fibonacci(x: Any, n: Any) -> Any:
    """Carried values that change places: what the body gives is one of its operands."""
    one = x.network.constant(np.array(1, np.int32))
    return F.while_loop(
        lambda i, n, a, b: F.lt(i, n), lambda i, n, a, b: (i + 1, n, b, a + b), [zero(x), n, zero(x), one]
    )  # fmt: skip


def fibonacci_in_numpy(x: Array, n: Array) -> Any:
    a, b = 0, 1
    for _ in range(int(n)):
        a, b = b, a + b
    return tuple(np.array(v, np.int32) for v in (max(int(n), 0), n, a, b))


def layers(x: Any, n: Any, w: Any) -> Any:
    """A weight that the network reads too, and a loop of a count that is data over it."""
    h = F.matmul(F.sum(x, 0), w, transb=True)
    return F.while_loop(
        lambda i, n, h, w: F.lt(i, n), lambda i, n, h, w: (i + 1, n, F.tanh(F.matmul(h, w, transb=True)), w),
        [zero(x), n, h, w],
    )[2:]  # fmt: skip


def layers_in_numpy(x: Array, n: Array, w: Array) -> Any:
    h = x.sum(0) @ w.T
    for _ in range(int(n)):
        h = np.tanh(h @ w.T)
    return h, w


def odd(x: Any, n: Any) -> Any:
    return F.eq(F.modulo(n, 2), 1)


def picked(x: Array, n: Array, *ways: Array) -> Any:
    return ways[0] if n % 2 == 1 else ways[1]


NETS: dict[str, Net] = {
    "an LSTM": Net(lstm, lstm_in_numpy, ((4 * HIDDEN, WIDE), (4 * HIDDEN, HIDDEN), (4 * HIDDEN,))),
    "a loop of ONNX": Net(onnx_loop, onnx_loop_in_numpy),
    "a loop in a loop": Net(bubble, bubble_in_numpy),
    "values that change places": Net(fibonacci, fibonacci_in_numpy),
    "a weight in and outside of a loop": Net(layers, layers_in_numpy, ((WIDE, WIDE),)),
    "a choice": Net(
        lambda x, n: F.cond(odd(x, n), lambda a: (F.exp(a), a * 2.0), lambda a: (a - 1.0, F.neg(a)), [x]),
        lambda x, n: (picked(x, n, np.exp(x), x - 1), picked(x, n, x * 2, -x)),
    ),
    "branches that give views, operands and constants": Net(
        lambda x, n: F.cond(
            odd(x, n),
            lambda a: (F.permute(a, (1, 0, 2)), a[:, :, 0], np.ones(2, np.float32)),
            lambda a: (F.permute(a * 2.0, (1, 0, 2)), a[:, :, 1], np.zeros(2, np.float32)),
            [x],
        ),
        lambda x, n: (
            picked(x, n, x, x * 2).transpose(1, 0, 2), x[:, :, 0 if n % 2 == 1 else 1],
            picked(x, n, np.ones(2, np.float32), np.zeros(2, np.float32)),
        ),
    ),
    "branches without operands": Net(
        lambda x, n: F.cond(odd(x, n), lambda: np.float32(1.5), lambda: np.float32(2.5)),
        lambda x, n: picked(x, n, np.array(1.5, np.float32), np.array(2.5, np.float32)),
    ),
    "branches with weights of their own": Net(
        lambda x, n, a, b: F.cond(
            odd(x, n), lambda x, a, b: F.matmul(x, a, transb=True), lambda x, a, b: F.matmul(x, b), [x, a, b]
        ),
        lambda x, n, a, b: picked(x, n, x @ a.T, x @ b),
        ((WIDE, WIDE), (WIDE, WIDE)),
    ),
    "a weight that a branch gives": Net(
        lambda x, n, w: F.cond(odd(x, n), lambda w: w, lambda w: w * 2.0, [w]),
        lambda x, n, w: picked(x, n, w, w * 2),
        ((3, 2),),
    ),
    "a scan from the end": Net(
        lambda x, n: F.scan(lambda s, x, y: (s + x * y, s), [F.sum(x, 0) * 0.0], [x, x], reverse=True),
        lambda x, n: (
            (x * x).sum(0),
            np.stack([(x * x)[i + 1 :].sum(0) for i in range(len(x))]) if len(x) else x,
        ),
    ),
    "a scan that carries nothing": Net(
        lambda x, n: F.scan(lambda x, n: (F.sum(x, 0), F.cast(n, "float32") + F.max(x, 1)), [], [x], [n]),
        lambda x, n: (x.sum(1), (n + x.max(2)).astype(np.float32)),
    ),
    "a scan over nothing, as long as the data": Net(
        lambda x, n: F.scan(lambda s, n: (s + n, s), [zero(x)], (), [n], length=F.shape(x, 0)),
        lambda x, n: (np.array(len(x) * n, np.int32), np.arange(len(x), dtype=np.int32) * n),
    ),
    "sizes of parts that follow from one outside": Net(
        lambda x, n: F.scan(lambda s, part: (s + part, s), [F.sum(x[:, :2], 0) * 0.0], [x[:, :2]]),
        lambda x, n: (
            x[:, :2].sum(0), np.stack([x[:i, :2].sum(0) for i in range(len(x))]) if len(x) else x[:, :2],
        ),
    ),
    "sizes that a body finds": Net(
        lambda x, n: F.scan(
            lambda c, row: (c + F.cast(F.sum(F.nonzero(F.gt(row, 0.0)), 1)[0], "int32"), row), [zero(x)], [x]
        ),
        lambda x, n: (
            np.array(sum(np.nonzero(row > 0)[0].sum() for row in x), np.int32), x,
        ),
    ),
}  # fmt: skip


def recorded(name: str, more: int = 0) -> tuple[Network, dict[str, Array]]:
    """The network, for a number n to which `more` is added, and its weights."""
    net = NETS[name]
    network = Network()
    x, n = network.input("x", Spec((T, B, WIDE), "float32")), network.input("n", Spec((), "int32")) + more
    weights = {f"w{i}": (RNG.standard_normal(shape) * 0.4).astype(np.float32) for i, shape in enumerate(net.weights)}
    made = net.net(x, n, *(network.parameter(k, Spec.of(w)) for k, w in weights.items()))
    for i, value in enumerate(made if isinstance(made, tuple) else (made,)):
        network.output(f"y{i}", value)
    return network, weights


def feeds_of(t: int, b: int, n: int) -> dict[str, Array]:
    return {"x": RNG.standard_normal((t, b, WIDE)).astype(np.float32), "n": np.array(n, np.int32)}


def compare(got: dict[str, Array], want: Any, tolerance: float = 2e-5) -> None:
    for array, wanted in zip(got.values(), want if isinstance(want, tuple) else (want,), strict=True):
        assert array.shape == wanted.shape and array.dtype == wanted.dtype
        np.testing.assert_allclose(array, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", NETS)
def test_agrees_with_numpy(name: str) -> None:
    network, weights = recorded(name)
    engine = build_network(network, weights)
    assert engine._native.host_calls("main") == []
    sessions = (engine.session(), engine.session(threads=2), engine.session(device="torch:cpu"))
    copies = (network, from_json(to_json(network)), parse(str(network)))
    for i, (t, b) in enumerate(SIZES):
        if "max" in name and 0 in (t, b):
            continue
        feeds = feeds_of(t, b, (3, 4, 0, 1, 7)[i])
        want = NETS[name].numpy(*feeds.values(), *weights.values())
        for session in sessions:
            compare(session.run(feeds), want)
        for copy in copies:
            compare(interpret(copy, feeds, weights), want)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", NETS)
def test_in_every_precision(name: str, precision: str) -> None:
    network, weights = recorded(name)
    engine = build_network(in_precision(network, dtypes.get(precision)), weights)
    assert engine._native.host_calls("main") == []
    feeds = feeds_of(5, 3, 3)
    want = NETS[name].numpy(*feeds.values(), *weights.values())
    # 2⁻⁸ a rounding, of which a round takes a few: measured up to 0.05 where a number is taken away from its like
    compare(engine.run(feeds), want, 0.1)
    compare(engine.session(device="torch:cpu").run(feeds), want, 0.1)


@pytest.mark.parametrize("name", ["an LSTM", "a loop of ONNX", "a loop in a loop", "a choice", "a scan from the end"])
def test_left_to_the_host(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a body holds an op without a kernel: the references run it whole."""
    monkeypatch.setattr(bodies, "_refusal", lambda networks, target: "there is no kernel")
    network, weights = recorded(name)
    engine = build_network(network, weights)
    assert engine._native.host_calls("main") == [next(n.op.name for n in network.nodes if isinstance(n.op, CONTROL))]
    feeds = feeds_of(4, 3, 3)
    compare(engine.run(feeds), NETS[name].numpy(*feeds.values(), *weights.values()))


def test_weights_are_stored_once() -> None:
    network, weights = recorded("a weight in and outside of a loop")
    engine = build_network(network, weights)
    assert sorted(engine.header["weights"]) == ["constant.c0", "w0", "w0.packed"]  # w0 is a result too
    assert engine.session().memory().weights == sum(engine._native.tensor(n).nbytes for n in engine.header["weights"])


def test_what_is_the_same_in_all_rounds() -> None:
    """Of a scan what is neither carried nor cut into rounds, of a branch all."""
    net = Network("net")
    x, w = net.input("x", Spec((3, 4), "f32")), net.input("w", Spec((4,), "f32"))
    F.scan(lambda s, x, w: (s + x * w, s), [w], [x], [w])
    F.cond(F.sum(w, 0) > 0, lambda x, w: x + w, lambda x, w: x - w, [x, w])
    scan, cond = (node.op for node in net.nodes if bodies.bodies(node.op))
    assert bodies.unchanged(scan, 3) == [False, False, True] and bodies.unchanged(cond, 2) == [True, True]


def test_branches_that_agree_keep_their_type() -> None:
    """Counts stay counts in a network of bfloat16."""
    net = Network("net")
    x = net.input("x", Spec((3,), "f32"))
    net.outputs["y"] = F.cond(F.sum(x, 0) > 0, lambda x: F.argmax(x, 0), lambda x: F.argmax(-x, 0), [x])
    (made,) = in_precision(net, "bfloat16").outputs.values()
    assert made.dtype is net.outputs["y"].dtype


def test_memory_is_planned_with_the_bodies() -> None:
    """A body that holds 4 MiB has them in the arena of the program around it."""
    network = Network()
    x = network.input("x", Spec((B, 1024), "float32"))
    wide = lambda s, x: (s + F.sum(F.matmul(F.unsqueeze(x, 1), F.unsqueeze(s, 0)), 0), s)  # noqa: E731  [1024, 1024]
    network.output("y", F.scan(wide, [F.sum(x, 0)], [x])[0])
    session = build_network(network, {}).session()
    planned = session.planned({"B": 3})
    assert planned.arena > 4 << 20
    session.run({"x": np.zeros((3, 1024), np.float32)})
    assert planned.arena == session.memory().arena


# -------------------------------------------------------------------------------------------------------------- faults
def test_a_loop_that_does_not_end() -> None:
    network = Network()
    n = network.input("n", Spec((), "int32"))
    with network.scope("model"):
        y = F.while_loop(lambda i, n: F.lt(i, n), lambda i, n: (i + 1, n), [n * 0, n], limit=10)[0]
    network.output("y", y)
    engine = build_network(network, {})
    for run in (engine.run, engine.session(device="torch:cpu").run, lambda feeds: interpret(network, feeds)):
        assert run({"n": np.array(10, np.int32)})["y"] == 10, "as many rounds as the limit says are allowed"
        with pytest.raises(ValueFault, match="still holds after 10 rounds"):
            run({"n": np.array(11, np.int32)})
    with pytest.raises(ValueFault, match="model: while"):
        engine.run({"n": np.array(11, np.int32)})
    assert engine.run({"n": np.array(3, np.int32)})["y"] == 3, "the session goes on"


def test_a_fault_inside() -> None:
    network = Network()
    table, i = network.input("t", Spec((4, 2), "float32")), network.input("i", Spec((T,), "int32"))
    network.output("y", F.scan(lambda i, t: F.embedding(i, t), [], [i], [table]))
    engine = build_network(network, {})
    feeds = {"t": np.ones((4, 2), np.float32), "i": np.array([0, 3, 9], np.int32)}
    with pytest.raises(ValueFault, match="9"):
        engine.run(feeds)
    feeds["i"][2] = 1
    assert engine.run(feeds)["y"].shape == (3, 2)


def test_what_is_refused() -> None:
    network = Network()
    x, n = network.input("x", Spec((T, B, WIDE), "float32")), network.input("n", Spec((), "int32"))
    with pytest.raises(OpError, match="length must be given"):
        F.scan(lambda s: s, [n])
    with pytest.raises(OpError, match="has to be T long"):
        F.scan(lambda a, b: a, [], [x, F.sum(x, 0)])
    with pytest.raises(OpError, match="must have a dimension"):
        F.scan(lambda a: a, [], [n])
    with pytest.raises(OpError, match="body gives"):
        F.scan(lambda s, x: F.sum(x, 0), [n], [x])
    with pytest.raises(OpError, match="whose sizes only a run of it shows"):
        F.scan(lambda x: F.nonzero(x), [], [x])
    with pytest.raises(OpError, match="belong to two networks"):
        F.scan(lambda x: x + n, [], [x])
    with pytest.raises(OpError, match="it must give what it takes"):
        F.while_loop(lambda n: F.lt(n, 3), lambda n: F.cast(n, "float32"), [n])
