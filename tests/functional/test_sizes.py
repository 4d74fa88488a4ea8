"""Sizes that are data: nets that compute shapes as integer tensors, against NumPy, at three sizes, none included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from ingot import functional as F
from ingot import nn, ops
from ingot.builder.network import build_network
from ingot.dims import Dim
from ingot.errors import IngotError, OpError
from ingot.ir import Eager, Network, Spec
from ingot.ir.interpret import interpret
from ingot.ir.text import from_json, parse, to_json
from ingot.passes import bodies

Array = np.ndarray[Any, Any]
B, L = Dim("B", 0, 2, 16), Dim("L", 0, 3, 64)
X = Spec((B, L, 8), "float32")
LENGTH = Spec((), "int64")
TABLE = np.arange(64 * 8, dtype=np.float32).reshape(64, 8)
SIZES = ((2, 3), (1, 7), (0, 0))  # of batch and length


def count(end: int | np.integer, *shape: int) -> Array:
    return np.arange(int(end), dtype=np.int64)


class Net(NamedTuple):
    """A net of x [B, L, 8], and of a number that is data where `length` says so; and what it means in NumPy."""

    net: Callable[..., Any]
    numpy: Callable[..., Any]
    length: bool = False


def heads(x: Any) -> Any:
    """The way of the retired models: [B, L, 8] to [B, 4, L, 2], by sizes computed as tensors."""
    sizes = F.concat([F.shape(x, 0), F.shape(x, 1), 4, F.shape(x, 2) // 4])
    return F.permute(F.view(x, sizes), (0, 2, 1, 3))


def causal(x: Any) -> Any:
    """A mask by comparing two ranges that go up to a computed length."""
    total = F.shape(x, 1) + 1
    rows = F.unsqueeze(F.arange(1, total, "int32"), 1)
    return F.unsqueeze(F.arange(0, F.shape(x, 1), "int32"), 0) < rows


NETS: dict[str, Net] = {
    "reshape to a concat of shapes": Net(heads, lambda x: x.reshape(*x.shape[:2], 4, 2).transpose(0, 2, 1, 3)),
    "view with one size to work out": Net(
        lambda x: F.view(x, F.concat([F.shape(x, 0) * F.shape(x, 1), -1])), lambda x: x.reshape(-1, 8)
    ),
    "view with a placeholder": Net(
        lambda x: F.view(x, F.concat([0, F.shape(x, 1) * 2, 4])), lambda x: x.reshape(x.shape[0], x.shape[1] * 2, 4)
    ),
    "a shape of a shape's parts": Net(
        lambda x: F.view(x, F.concat([F.prod(F.slice(F.shape(x), [0], [2]), 0, keepdim=True), 8])),
        lambda x: x.reshape(-1, 8),
    ),
    "gathered sizes": Net(
        lambda x: F.view(x, F.index_select(F.shape(x), 0, np.array([1, 0, 2]))),
        lambda x: x.reshape(x.shape[1], x.shape[0], 8),
    ),
    "sizes as int32": Net(
        lambda x: F.view(x, F.cast(F.stack([F.shape(x, 0, "int32"), F.shape(x, 1, "int32") * 8]), "int64")),
        lambda x: x.reshape(x.shape[0], x.shape[1] * 8),
    ),
    "unknown sizes replaced, as ONNX's Expand does": Net(
        lambda x: F.expand(
            F.slice(x, [0, 0, 0], F.concat([F.shape(x, 0), F.shape(x, 1), 1])),
            F.where(F.eq(np.array([-1, -1, 5]), -1), F.shape(x), np.array([0, 0, 5])),
        ),
        lambda x: np.broadcast_to(x[..., :1], (*x.shape[:2], 5)),
    ),
    "arange up to a computed size": Net(
        lambda x: F.arange(0, F.shape(x, 1) * 2 + 1, "int64"), lambda x: count(x.shape[1] * 2 + 1)
    ),
    "arange from a computed start": Net(
        lambda x: F.arange(F.shape(x, 0) - 3, F.shape(x, 1), "int32"),
        lambda x: np.arange(x.shape[0] - 3, x.shape[1], dtype=np.int32),
    ),
    "a causal mask": Net(causal, lambda x: np.tri(x.shape[1], dtype=bool)),
    "slice by half the length": Net(
        lambda x: F.slice(x, [0, F.shape(x, 1) // 2, 0], [F.shape(x, 0), F.shape(x, 1) - F.shape(x, 1) // 2, 8]),
        lambda x: x[:, x.shape[1] // 2 :],
    ),
    "an index with tensors in it": Net(lambda x: x[:, : F.shape(x, 1) // 2], lambda x: x[:, : x.shape[1] // 2]),
    "a size that is the larger of two": Net(
        lambda x: F.arange(0, F.maximum(F.shape(x, 0), F.shape(x, 1)), "int32"),
        lambda x: np.arange(max(x.shape[:2]), dtype=np.int32),
    ),
    "the remainder of a size": Net(
        lambda x: F.arange(0, F.modulo(F.shape(x, 1), 4), "int64"), lambda x: count(x.shape[1] % 4)
    ),
    "expand by computed sizes": Net(
        lambda x: F.expand(F.unsqueeze(x, 0), F.concat([F.shape(x, 0) + 1, F.shape(x)])),
        lambda x: np.broadcast_to(x, (x.shape[0] + 1, *x.shape)),
    ),
    "pad up to a multiple of 4": Net(
        lambda x: F.pad(x, [0, 0, 0, F.modulo(0 - F.shape(x, 1), 4)]),
        lambda x: np.pad(x, [(0, 0), (0, -x.shape[1] % 4), (0, 0)]),
    ),
    "pad or cut off to 5": Net(
        lambda x: F.pad(x, F.concat([0, 0, 0, 5 - F.shape(x, 1)]), value=2.0),
        lambda x: np.pad(x, [(0, 0), (0, 5), (0, 0)], constant_values=2)[:, :5] if x.shape[1] < 5 else x[:, :5],
    ),
    "repeat by a computed count": Net(
        lambda x: F.repeat(x, [1, F.shape(x, 0), 1]), lambda x: np.tile(x, (1, x.shape[0], 1))
    ),
    "a size beside tensors": Net(
        lambda x: F.concat([F.shape(x, 0), x.shape[1], 7]), lambda x: np.array([x.shape[0], x.shape[1], 7])
    ),
    "arithmetic of tensors and dims": Net(
        lambda x: F.arange(0, F.shape(x, 0) * x.shape[1] + x.shape[0], "int32") - x.shape[1],
        lambda x: np.arange(x.shape[0] * x.shape[1] + x.shape[0], dtype=np.int32) - x.shape[1],
    ),
    "fixed numbers expanded to sizes": Net(
        lambda x: F.concat([F.expand(TABLE[:1], F.concat([F.shape(x, 0), 1, 8])), x], 1),
        lambda x: np.concatenate([np.broadcast_to(TABLE[:1], (len(x), 1, 8)), x], 1),
    ),
    "the part of a table that the length needs": Net(
        lambda x: x + F.slice(TABLE, [0, 0], [x.shape[1], 8]), lambda x: x + TABLE[: x.shape[1]]
    ),
    "fixed numbers alone, repeated and padded": Net(
        lambda x: F.pad(F.repeat(TABLE[0], [F.shape(x, 0)]), [1, x.shape[1]]),
        lambda x: np.pad(np.tile(TABLE[0], len(x)), (1, x.shape[1])),
    ),
    "fixed numbers over a size that is data": Net(
        lambda x, n: (
            F.sum(x, [0, 1, 2])
            * F.expand(F.cast(F.one_hot(np.array([2, 0]), n + 3), "float32"), F.stack([n, 2, n + 3]))
        ),
        lambda x, n: x.sum() * np.broadcast_to(np.eye(int(n) + 3, dtype=np.float32)[[2, 0]], (int(n), 2, int(n) + 3)),
        True,
    ),
    "a range whose length is data": Net(lambda x, n: F.arange(0, n, "int64"), lambda x, n: count(n), True),
    "a range beside it, computed of the same data": Net(
        lambda x, n: F.arange(0, n * 2 + 1, "int32") + F.arange(0, 2 * n + 1, "int32"),
        lambda x, n: np.arange(2 * n + 1, dtype=np.int32) * 2,
        True,
    ),
    "expand to a length that is data": Net(
        lambda x, n: F.expand(F.unsqueeze(F.sum(x, [1, 2]), 1), F.stack([F.shape(x, 0), n])) * 1.0,
        lambda x, n: np.broadcast_to(x.sum((1, 2))[:, None], (len(x), int(n))),
        True,
    ),
    "padded by a length that is data, from a vector": Net(
        lambda x, n: F.pad(x, F.concat([0, 0, 0, n])), lambda x, n: np.pad(x, [(0, 0), (0, int(n)), (0, 0)]), True
    ),
    "a length that a net computes": Net(
        lambda x, n: F.arange(0, F.cast(F.sum(F.cast(F.expand(n, (3,)), "float32"), 0), "int64"), "int64"),
        lambda x, n: count(3 * n),
        True,
    ),
    "a view that only a run shows to fit": Net(
        lambda x, n: F.view(x, [n - F.shape(x, 1), F.shape(x, 1) * 8]),
        lambda x, n: x.reshape(len(x), x.shape[1] * 8),
        True,
    ),
    "a view of what lies elsewhere": Net(
        lambda x, n: F.view(F.transpose(x, 0, 2), [8, n - F.shape(x, 0), F.shape(x, 0)]) * 2.0,
        lambda x, n: x.transpose(2, 1, 0) * 2,
        True,
    ),
    "a flat view": Net(
        lambda x, n: F.view(x[:, :, 0], F.shape(x, 0) * n - F.shape(x, 0) * F.shape(x, 0)),
        lambda x, n: x[:, :, 0].ravel(),
        True,
    ),
    "a size that is the one given": Net(
        lambda x, n: F.expand(x, [2, n - F.shape(x, 1), -1, 8]) * 1.0,
        lambda x, n: np.broadcast_to(x, (2, *x.shape)),
        True,
    ),
    "a size that is 1": Net(
        lambda x, n: F.expand(F.sum(x[:, : F.minimum(F.shape(x, 1), 1)], 0), [n - F.shape(x, 0), 8]) * 1.0,
        lambda x, n: np.broadcast_to(x[:, :1].sum(0), (int(n) - len(x), 8)),
        True,
    ),
    "a size of what nobody reads": Net(
        lambda x, n: F.arange(0, F.nonzero(x).shape[1], "int64"), lambda x, n: count((x != 0).sum()), True
    ),
}


def record(net: Callable[..., Any], length: bool = False) -> Network:
    network = Network()
    values = [network.input("x", X), *([network.input("n", LENGTH)] if length else [])]
    network.output("y", net(*values))
    return network


def feeds_of(network: Network, batch: int, length: int) -> dict[str, Array]:
    x = np.random.default_rng(1).standard_normal((batch, length, 8)).astype(np.float32)
    feeds = {"x": x, "n": np.array(length + batch, np.int64)}
    return {v.name: feeds[v.name] for v in network.inputs}


@pytest.mark.parametrize("name", NETS)
def test_agrees_with_numpy(name: str) -> None:
    net, numpy, length = NETS[name]
    network = record(net, length)
    engine = build_network(network, {})
    assert engine._native.host_calls("main") == []
    copies = (network, from_json(to_json(network)), parse(str(network)))
    for batch, size in SIZES:
        feeds = feeds_of(network, batch, size)
        want = np.asarray(numpy(*feeds.values()))
        for got in (engine.run(feeds)["y"], *(interpret(n, feeds)["y"] for n in copies)):
            assert got.dtype == want.dtype and got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)  # sums of 8·L numbers in another order


@pytest.mark.parametrize("name", NETS)
def test_computed_at_once(name: str) -> None:
    """On arrays, and in a network that computes while it is recorded."""
    net, numpy, length = NETS[name]
    feeds = feeds_of(record(net, length), 2, 3)
    eager = Eager()
    want = np.asarray(numpy(*feeds.values()))
    recorded = net(*(eager.feed(k, v) for k, v in feeds.items()))
    for got in (net(*feeds.values()), getattr(recorded, "array", recorded)):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


# ------------------------------------------------------------------------------------------------------------ methods


def test_methods_take_tensors_of_sizes() -> None:
    network = Network()
    x = network.input("x", X)
    sizes = F.concat([F.shape(x, 0), F.shape(x, 1) * 4, 2])
    assert x.view(sizes).shape == x.reshape(sizes).shape == x.view(*(sizes[i] for i in range(3))).shape
    assert str(x.view(F.shape(x, 0), -1).spec) == "f32[B, 8*L]"
    assert str(x.expand(2, -1, F.shape(x, 1), 8).spec) == "f32[2, B, L, 8]"
    assert str(x[:, F.shape(x, 1) // 2 :].shape[1]) == "L - (L // 2)"
    assert str(F.split(x, F.concat([1, F.shape(x, 1) - 1]), 1)[1].spec) == "f32[B, L - 1, 8]"
    assert str(F.repeat_interleave(x, F.shape(x, 0), 2).spec) == "f32[B, L, 8*B]"
    assert str(F.slice(x, [0, 0, 0], np.array([1, 1, 4])).spec) == "f32[1, 1, 4]"


class Decoder(nn.Module):
    """A module of the retired style: it asks for sizes as tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24, bias=False)

    def forward(self, x: Any) -> Any:
        batch, length = F.shape(x, 0), F.shape(x, 1)
        qkv = self.qkv(x).view(F.concat([batch, length, 3, 2, 4]))
        q, k, v = (F.permute(F.select(qkv, 2, i), (0, 2, 1, 3)) for i in range(3))
        seen = F.arange(0, length, "int32").view(F.concat([1, length])) <= F.unsqueeze(F.arange(0, length, "int32"), 1)
        scores = F.where(seen, F.matmul(q, F.transpose(k, 2, 3)), -1e9)
        context = F.permute(F.matmul(F.softmax(scores, -1), v), (0, 2, 1, 3))
        return F.view(context, F.concat([batch, length, 8]))


def test_a_module_of_the_retired_style() -> None:
    network = nn.trace(Decoder(), {"x": X})
    weights = {v.name: np.random.default_rng(2).standard_normal(v.shape).astype(np.float32) for v in network.parameters}
    engine = build_network(network, weights)
    (w,) = weights.values()
    for batch, length in SIZES:
        x = feeds_of(network, batch, length)["x"]
        q, k, v = (x @ w.T).reshape(batch, length, 3, 2, 4).transpose(2, 0, 3, 1, 4)
        scores = np.where(np.tri(length, dtype=bool), q @ k.transpose(0, 1, 3, 2), -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True, initial=-1e30))
        want = (shares / shares.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3).reshape(batch, length, 8)
        got = next(iter(engine.run({"x": x}).values()))
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)


# ------------------------------------------------------------------------------------------------------------ bad sizes


NO_SIZE = "the size size0 would be out of range; it is "
BAD: dict[str, tuple[Callable[..., Any], int, str]] = {
    "a negative length": (lambda x, n: F.arange(0, n, "int64"), -3, NO_SIZE + "n"),
    "a negative length that was computed": (
        lambda x, n: F.arange(0, F.cast(F.cast(n, "float32") * 2.0, "int64"), "int64"),
        -2,
        NO_SIZE + r"cast\(mul\(cast\(n\), 2\.0\)\)",
    ),
    "a shape with a size below zero": (
        lambda x, n: F.expand(F.sum(x), F.concat([n - 5, 2])) * 1.0,
        3,
        r"size0 - 5.* -2|\(size0 \+ -5\).* -2",
    ),
    "an absurd length": (lambda x, n: F.arange(0, n, "int64"), 2**60, NO_SIZE + "n"),
    "a view that does not fit": (
        lambda x, n: F.view(x, [n, 24]) + 1.0,
        3,
        r"view of \[B, L, 8\] as \[size0, 24\]: 8\*B\*L elements for 24\*size0; here 48 and 72",
    ),
    "an expansion of 2": (
        lambda x, n: F.expand(x, [n, -1, -1]) + 1.0,
        5,
        r"expand of \[B, L, 8\] to \[size0, -1, -1\]: dimension 0 is B and must be size0 or 1; here 2 and 5",
    ),
    "a size to work out of what does not divide": (
        lambda x, n: F.view(x, [-1, n]) + 1.0,
        5,
        r"8\*B\*L elements for .*; here 48 and 45",
    ),
    "more memory than there is": (lambda x, n: F.arange(0, n * 4096, "int64"), 2**40, r"4096.*size0.*(TiB|GiB|memory)"),
}


@pytest.mark.parametrize("name", BAD)
def test_sizes_that_cannot_be(name: str) -> None:
    net, number, message = BAD[name]
    network = Network()
    network.output("y", net(network.input("x", X), network.input("n", LENGTH)))
    feeds = {"x": np.zeros((2, 3, 8), np.float32), "n": np.array(number, np.int64)}
    with pytest.raises(IngotError, match=message):
        build_network(network, {}).run(feeds)


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "floats": (lambda x, n: F.view(x, F.cast(F.shape(x), "float32")), "sizes are integers; cast it first"),
    "floats of NumPy": (lambda x, n: F.view(x, np.array([2.0, 3.0])), "an array of float64 gives no sizes"),
    "a mask": (lambda x, n: F.view(x, F.shape(x) > 3), "sizes are integers; cast it first"),
    "two numbers for one": (lambda x, n: F.arange(0, F.slice(F.shape(x), [0], [2])), "one size is wanted"),
    "too many data": (lambda x, n: F.view(x, F.expand(n, (9,)) + F.arange(0, 9)), "at most 8 numbers"),
    "an expansion that certainly does not fit": (
        lambda x, n: F.expand(x, F.concat([F.shape(x, 0), F.shape(x, 1), 7])),
        "size 8 at dimension 2 cannot become 7",
    ),
    "sizes that certainly do not fit": (lambda x, n: F.view(x, F.concat([F.shape(x, 0), 7])), "elements"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    call, message = REFUSED[name]
    network = Network()
    with pytest.raises(OpError, match=message):
        call(network.input("x", X), network.input("n", LENGTH))


def test_integers_that_wrap_are_not_followed() -> None:
    """127 + 1 in int8 is −128: what a tensor of sizes cannot hold is not taken for known."""
    network = Network()
    x = network.input("x", X)
    assert (network.constant(np.array(127, np.int8)) + np.array(1, np.int8)).known is None
    assert F.cast(F.shape(x, 2) * 100, "int8").known is None
    assert F.cast(F.shape(x, 2), "int8").known.item() == 8


def test_what_only_a_run_shows_is_bound_once() -> None:
    network = Network()
    n = network.input("n", LENGTH)
    a, b = F.arange(0, n * 2), F.arange(0, n + n)
    assert a.shape == b.shape and [node.op.name for node in network.nodes].count("sizes_of") == 1
    chosen = F.where(n > 3, n, 4)
    assert F.arange(0, ops.maximum(chosen, 1)).shape[0].dims().keys() == {"size1"}


def test_bodies_make_sizes_of_their_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Natively: rounds and a branch have ranges of lengths of their own. What the host would run has no bound."""

    def step(n: Any) -> Any:
        total = F.sum(F.cast(F.arange(0, n), "float32"), 0)
        more = lambda a, t: t + F.sum(F.cast(F.arange(0, a * 2), "float32"), 0)  # noqa: E731
        return F.cond(n > 2, more, lambda a, t: t, [n, total])

    network = Network()
    counts = network.input("n", Spec((L,), "int64"))
    network.output("y", F.scan(step, [], [counts]))
    engine = build_network(network, {})
    assert engine._native.host_calls("main") == []
    for numbers in ([3, 0, 40, 1, 3], [], [2]):
        n = np.array(numbers, np.int64)
        want = np.array([sum(range(i)) + (sum(range(2 * i)) if i > 2 else 0) for i in numbers], np.float32)
        for run in (engine.run, engine.session(device="torch:cpu").run, lambda feeds: interpret(network, feeds)):
            np.testing.assert_array_equal(run({"n": n})["y"], want)
    with pytest.raises(IngotError, match="the size size0 would be out of range"):
        engine.run({"n": np.array([1, -1], np.int64)})
    monkeypatch.setattr(bodies, "_refusal", lambda networks, target: "there is no kernel")
    with pytest.raises(IngotError, match="nothing bounds what the reference would take"):
        build_network(network, {}).run({"n": np.array([1], np.int64)})
