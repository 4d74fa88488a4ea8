"""Engines in use: whatever is given to them gives the right numbers or an error that says what is wanted.

The nets are small ones of both kinds that people run: convolutional, and encoders.
"""

from __future__ import annotations

import gc
import math
import sys
import threading
import weakref
from collections.abc import Callable
from functools import cache
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

from ingot import functional
from ingot.builder.network import build_network
from ingot.dims import Dim
from ingot.engine.session import IDLE_SESSIONS, Engine, Session
from ingot.errors import BusyError, IngotError, InputError, ValueFault
from ingot.ir import F, Network, Spec, Value
from ingot.ops.host import HostCalls
from tests.kernels.support import same_bits

Array = np.ndarray[Any, Any]
BATCH = Dim("B", 0, None, 64)


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Net:
    """A network in the making: weights by name, seeded by their number."""

    def __init__(self) -> None:
        self.network = Network("net")
        self.weights: dict[str, Array] = {}

    def weight(self, *shape: int) -> Value:
        name = f"w{len(self.weights)}"
        scale = 1 / math.sqrt(max(math.prod(shape[1:]), 1))
        self.weights[name] = random(*shape, seed=len(self.weights)) * np.float32(scale)
        return self.network.parameter(name, Spec(shape, "float32"))

    def build(self) -> Engine:
        return build_network(self.network, self.weights)


@cache
def convolutional() -> Engine:
    """Every spatial kernel in a row: x [B, 3, 12, 12] → y [B, 5]."""
    net = Net()
    x = net.network.input("x", Spec((BATCH, 3, 12, 12), "float32"))
    x = functional.relu(functional.conv2d(x, net.weight(8, 3, 3, 3), net.weight(8), padding=1))
    x = functional.conv2d(x, net.weight(8, 1, 3, 3), padding=1, groups=8)
    x = functional.group_norm(x, 2, net.weight(8), net.weight(8))
    x = functional.max_pool2d(x, 2)
    x = functional.conv_transpose2d(x, net.weight(8, 6, 2, 2), stride=2)
    x = functional.avg_pool2d(x, 2)
    x = functional.conv2d(x, net.weight(16, 6, 1, 1), stride=2)
    x = functional.adaptive_avg_pool2d(x, 1)
    net.network.outputs["y"] = functional.linear(functional.flatten(x, 1), net.weight(5, 16))
    return net.build()


@cache
def encoder(dtype: str = "float32") -> Engine:
    """An encoder layer: x [B, T, 32] and mask [B, T] → y [B, T, 32]."""
    net = Net()
    tokens = Dim("T", 0, None, 256)
    x = net.network.input("x", Spec((BATCH, tokens, 32), "float32"))
    mask = net.network.input("mask", Spec((BATCH, tokens), "bool"))

    def heads(weight: Value) -> Any:
        return functional.permute(F.reshape(functional.linear(x, weight), (BATCH, tokens, 4, 8)), (0, 2, 1, 3))

    q, k, v = (heads(net.weight(32, 32)) for _ in range(3))
    y = functional.scaled_dot_product_attention(q, k, v, F.reshape(mask, (BATCH, 1, 1, tokens)))
    y = functional.linear(F.reshape(functional.permute(y, (0, 2, 1, 3)), (BATCH, tokens, 32)), net.weight(32, 32))
    x = functional.layer_norm(x + y, 32, net.weight(32), net.weight(32))
    inside = functional.gelu(functional.linear(x, net.weight(64, 32)))
    net.network.outputs["y"] = x + functional.linear(inside, net.weight(32, 64))
    return net.build()


def images(batch: int = 3) -> dict[str, Array]:
    return {"x": random(batch, 3, 12, 12, seed=9)}


def sentences(batch: int = 3, tokens: int = 7) -> dict[str, Array]:
    return {"x": random(batch, tokens, 32, seed=9), "mask": random(batch, tokens, seed=8) > -1}


NETS = {"convolutional": (convolutional, images), "encoder": (encoder, sentences)}


@pytest.fixture(params=NETS)
def net(request: pytest.FixtureRequest) -> tuple[Engine, dict[str, Array]]:
    make, feeds = NETS[request.param]
    return make(), feeds()


# ------------------------------------------------------------------------------------------- arrays of every kind


def odd_stride(x: Array) -> Array:
    """The field of packed records: 5 bytes from one element to the next."""
    records = np.zeros(x.shape, [("flag", "u1"), ("x", "f4")])
    records["x"] = x
    return records["x"]


def unaligned(x: Array) -> Array:
    raw = np.zeros(x.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(x.shape)
    raw[...] = x
    return raw


def read_only(x: Array) -> Array:
    x = x.copy()
    x.flags.writeable = False
    return x


class Exported:
    """Another library's array, which speaks DLPack only."""

    def __init__(self, x: Array, device: Any = (1, 0), error: Exception | None = None) -> None:
        self.x, self.device, self.error = x, device, error

    def __dlpack__(self, **_: Any) -> Any:
        if self.error is not None:
            raise self.error
        assert self.device == (1, 0), "must not be asked"
        return self.x.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self.device


# The same numbers, in memory otherwise.
LAYOUTS: dict[str, Callable[[Array], Any]] = {
    "fortran order": np.asfortranarray,
    "negative strides": lambda x: np.ascontiguousarray(x[::-1, ..., ::-1])[::-1, ..., ::-1],
    "every third": lambda x: np.repeat(x, 3, axis=-1)[..., ::3],
    "permuted": lambda x: np.ascontiguousarray(x.T).T,
    "unaligned": unaligned,
    "read-only": read_only,
    "a matrix's subclass": lambda x: x.view(type("Sub", (np.ndarray,), {})),
    "torch": torch.from_numpy,
    "a torch parameter": lambda x: torch.nn.Parameter(torch.from_numpy(x)),
    "torch, channels last": lambda x: torch.from_numpy(np.ascontiguousarray(np.moveaxis(x, 1, -1))).movedim(-1, 1),
    "DLPack": Exported,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_of_the_same_numbers(net: tuple[Engine, dict[str, Array]], layout: str) -> None:
    engine, feeds = net
    want = engine.run(feeds)["y"]
    before = feeds["x"].copy()
    assert same_bits(engine.run({**feeds, "x": LAYOUTS[layout](feeds["x"])})["y"], want)
    assert same_bits(feeds["x"], before), "inputs are read, never written"


def test_a_broadcast_array_is_read_as_it_looks(net: tuple[Engine, dict[str, Array]]) -> None:
    engine, feeds = net
    one = feeds["x"][:1]
    want = engine.run({**feeds, "x": np.repeat(one, 3, 0)})["y"]
    assert same_bits(engine.run({**feeds, "x": np.broadcast_to(one, feeds["x"].shape)})["y"], want)
    assert same_bits(engine.run({**feeds, "x": torch.from_numpy(one).expand(feeds["x"].shape)})["y"], want)


X = random(3, 7, 32)
WANTED = r"float32\[B, T, 32\] is needed"
# What is given as x, and what the message says beside the input's name.
WRONG: dict[str, tuple[Any, str]] = {
    "other dtype": (X.astype(np.float64), rf"is float64\[3, 7, 32\]; {WANTED}: pass x\.astype\('float32'\)$"),
    "integers": (np.zeros((3, 7, 32), np.int32), rf"is int32\[3, 7, 32\]; {WANTED}: pass x\.astype\('float32'\)$"),
    "half": (torch.from_numpy(X).half(), rf"is float16\[3, 7, 32\]; {WANTED}: pass x\.to\(torch\.float32\)$"),
    "other dtype and width": (X[..., :31].astype(np.float64), rf"is float64\[3, 7, 31\]; {WANTED}$"),
    "bytes swapped": (X.astype(">f4"), rf"is >f4, in the other byte order: pass .*newbyteorder.*; {WANTED}"),
    "odd stride": (odd_stride(X), rf"has a stride of 5 bytes.*: pass a copy; {WANTED}"),
    "complex": (X.astype(np.complex64), rf"is an array of complex64, which .*; {WANTED}$"),
    "objects": (X.astype(object), rf"is an array of object, which .*; {WANTED}$"),
    "text": (np.array(["x"]), "is an array of <U1"),
    "dates": (np.zeros((3, 7, 32), "M8[s]"), "is an array of datetime64"),
    "records": (np.zeros(3, [("a", "f4")]), r"is an array of \[\('a', '<f4'\)\]"),
    "0-d": (np.float32(1), rf"is float32\[\]; {WANTED}"),
    "fewer dimensions": (X[0], rf"is float32\[7, 32\]; {WANTED}"),
    "nine dimensions": (X.reshape((1,) * 6 + X.shape), "has 9 dimensions, more than 8"),
    "other width": (X[..., :31], r"is float32\[3, 7, 31\]; float32\[B, T, 32\], here float32\[3, 7, 32\], is needed"),
    "other batch": (X[:2], "'mask' has B=3, but another array has B=2"),
    "too many": (np.zeros((65, 7, 32), np.float32), "'x' has B=65, which is not in 0 … 64"),
    "a list": (X.tolist(), "is a list; pass a NumPy array, a torch tensor or another DLPack array"),
    "a number": (1.0, "is a float"),
    "nothing": (None, "is a NoneType"),
    "a buffer": (memoryview(X), "is a memoryview"),
    "masked": (np.ma.masked_array(X), "is a masked array, and the mask would be lost"),
    "meta tensor": (torch.empty(3, 7, 32, device="meta"), "is on meta; inputs are read from the host"),
    "sparse tensor": (torch.from_numpy(X).to_sparse(), "torch has no NumPy view of this tensor"),
    "mkldnn tensor": (torch.from_numpy(X).to_mkldnn(), "torch has no NumPy view of this tensor"),
    "conjugated tensor": (torch.zeros(3, dtype=torch.complex64).conj(), "torch has no NumPy view of this tensor"),
    "8-bit float tensor": (torch.zeros(3).to(torch.float8_e4m3fn), "torch has no NumPy view of this tensor"),
    "on a GPU": (Exported(X, (2, 1)), "is a Exported on device 1 of DLPack's type 2; this engine runs on the CPU"),
    "on a device of the future": (Exported(X, (99, 0)), "of DLPack's type 99"),
    "on no device": (Exported(X, None), "NumPy cannot read this Exported through DLPack"),
    "an object that fails": (Exported(X, error=KeyError("oh")), "NumPy cannot read this Exported through DLPack"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_input_is_named_with_what_is_wanted(name: str) -> None:
    value, message = WRONG[name]
    session = encoder().session(threads=1)
    feeds = sentences()
    want = session.run(feeds)["y"]
    with pytest.raises(InputError, match=f"(?s)'(x|mask)'.*{message}" if message[0] != "'" else message):
        session.run({**feeds, "x": value})
    assert same_bits(session.run(feeds)["y"], want), "nothing is left behind"


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, "the inputs are 'x', 'mask'; missing: 'x', 'mask'"),
        ({"x": X}, "missing: 'mask'"),
        ({"X": X, "mask": X}, "missing: 'x'; unknown: 'X'"),
        ({**sentences(), 3: X}, "unknown: 3"),
        (None, "missing: 'x'"),
        (X, "the inputs must be a dict of arrays by name, run.*, not a ndarray"),
        ([("x", X)], "the inputs must be a dict of arrays by name, run.*'mask': mask.*, not a list"),
    ],
)
def test_wrong_names(feeds: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        encoder().run(feeds)


# ------------------------------------------------------------------------------------------------- arrays for results


def test_results_go_into_arrays_of_any_layout(net: tuple[Engine, dict[str, Array]]) -> None:
    engine, feeds = net
    want = engine.run(feeds)["y"]
    for make in (np.empty_like, np.asfortranarray, unaligned, LAYOUTS["negative strides"], LAYOUTS["every third"]):
        given = make(want)
        given[...] = 0
        assert engine.run(feeds, out={"y": given})["y"] is given
        assert np.array_equal(given, want)
    tensor = torch.zeros(want.shape)
    assert engine.run(feeds, out={"y": tensor})["y"] is tensor and np.array_equal(tensor.numpy(), want)


def test_results_that_would_overwrite_themselves_are_refused() -> None:
    net = Network("net")
    x = net.input("x", Spec(("N", 4), "float32"))
    net.outputs["a"], net.outputs["b"] = x + x, x * x
    total = net.input("s", Spec((), "float32"))
    net.outputs["c"] = total + total
    engine = build_network(net, {})
    feeds = {"x": random(3, 4), "s": np.array(2, np.float32)}
    whole = np.zeros((3, 9), np.float32)
    for out, message in (
        ({"a": np.lib.stride_tricks.as_strided(whole, (3, 4), (4, 4))}, "out 'a': its elements overlap in memory"),
        ({"a": torch.zeros(1, 4).expand(3, 4)}, "out 'a': its elements overlap in memory"),
        ({"a": whole[:, :4], "b": whole[:, 3:7]}, "out 'b' and out 'a' share memory"),
        ({"c": np.float32(0)}, "out 'c' is a NumPy scalar"),
        ({"c": 0.0}, "out 'c' is a float"),
        ({"a": read_only(whole[:, :4])}, r"out\['a'\]: the array is read-only"),
        ({"a": whole[:, :4].astype(">f4")}, r"out\['a'\] is >f4, in the other byte order"),
        ({"a": odd_stride(whole[:, :4])}, r"out\['a'\] has a stride of 5 bytes"),
        ({"a": whole}, r"out\['a'\] is float32\[3, 9\], the result float32\[3, 4\]"),
        ({"a": torch.empty(3, 4, device="meta")}, "out 'a' is on meta"),
        ({"d": whole}, "out names 'd'; the outputs are a, b, c"),
        ([whole], "out must be a dict of arrays by name"),
    ):
        with pytest.raises(InputError, match=message):
            engine.run(feeds, out=out)  # type: ignore[arg-type]
        assert not whole.any(), "nothing is written"
    out = {"a": whole[:, :4], "b": whole[:, 4:8], "c": np.zeros((), np.float32)}
    engine.run(feeds, out=out)
    assert np.array_equal(whole[:, :4], feeds["x"] * 2) and np.array_equal(whole[:, 4:8], feeds["x"] ** 2)
    assert out["c"] == 4


# ----------------------------------------------------------------------------------------------------- empty batches


def test_empty_batches() -> None:
    engine = convolutional()
    want = engine.run(images())["y"]
    assert engine.run(images(0))["y"].shape == (0, 5)
    assert encoder().run(sentences(0))["y"].shape == (0, 7, 32)
    assert encoder().run(sentences(3, 0))["y"].shape == (3, 0, 32)
    assert same_bits(engine.run(images())["y"], want), "a run of none leaves nothing behind"


@pytest.mark.parametrize("threads", [1, 2])
def test_a_sample_has_the_same_bits_in_any_batch(net: tuple[Engine, dict[str, Array]], threads: int) -> None:
    engine, feeds = net
    session = engine.session(threads=threads)
    want = session.run(feeds)["y"]
    for i in range(3):
        assert same_bits(session.run({n: a[i : i + 1] for n, a in feeds.items()})["y"], want[i : i + 1])
    many = session.run({n: np.concatenate([a] * 5) for n, a in feeds.items()})["y"]
    assert same_bits(many, np.concatenate([want] * 5))


# --------------------------------------------------------------------------------------------------- NaN and infinity

BAD = np.array([1.5, np.nan, -2.0, np.inf, 0.0, -np.inf, -0.0, np.nan, 3.0, np.inf, -1.0, 2.0], np.float32)
T = torch.nn.functional
# Ours, torch's.
PASSING: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "relu": (functional.relu, T.relu),
    "maximum": (lambda x: functional.maximum(x, functional.flip(x, (3,))), lambda x: torch.maximum(x, x.flip(3))),
    "minimum": (lambda x: functional.minimum(x, functional.flip(x, (3,))), lambda x: torch.minimum(x, x.flip(3))),
    "clip": (lambda x: functional.clip(x, -1, 1), lambda x: x.clip(-1, 1)),
    "sigmoid": (functional.sigmoid, torch.sigmoid),
    "gelu": (functional.gelu, lambda x: T.gelu(x, approximate="tanh")),
    "softmax": (lambda x: functional.softmax(x, 3), lambda x: torch.softmax(x, 3)),
    "max": (lambda x: functional.max(x, 3), lambda x: x.amax(3)),
    "mean": (lambda x: functional.mean(x, 3), lambda x: x.mean(3)),
    "max_pool2d": (lambda x: functional.max_pool2d(x, 2), lambda x: T.max_pool2d(x, 2)),
    "max_pool2d, padded": (lambda x: functional.max_pool2d(x, 3, 2, 1), lambda x: T.max_pool2d(x, 3, 2, 1)),
    "avg_pool2d": (lambda x: functional.avg_pool2d(x, 2), lambda x: T.avg_pool2d(x, 2)),
    "layer_norm": (lambda x: functional.layer_norm(x, 6), lambda x: T.layer_norm(x, (6,))),
    "group_norm": (lambda x: functional.group_norm(x, 2), lambda x: T.group_norm(x, 2)),
    "conv2d": (
        lambda x: functional.conv2d(x, np.ones((1, 2, 1, 1), np.float32)),
        lambda x: T.conv2d(x, torch.ones(1, 2, 1, 1)),
    ),
    "attention": (
        lambda x: functional.scaled_dot_product_attention(x, x, x),
        lambda x: torch.softmax(x @ x.mT / math.sqrt(6), -1) @ x,  # its fast form turns some NaN into zeros
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PASSING)
def test_nan_and_infinity_pass_as_in_torch(name: str) -> None:
    ours, theirs = PASSING[name]
    net = Network("net")
    net.outputs["y"] = ours(net.input("x", Spec((BATCH, 2, 4, 6), "float32")))
    engine = build_network(net, {})
    rng = np.random.default_rng(0)
    fine = random(8, 2, 4, 6)
    x = np.where(rng.random(fine.shape) < 0.04, rng.choice(BAD, fine.shape), fine)
    got, want = engine.run({"x": x})["y"], theirs(torch.from_numpy(x)).numpy()
    assert not np.isfinite(want).all() or name in ("sigmoid", "clip"), "the case shows something"
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


def test_a_bad_sample_spoils_no_other(net: tuple[Engine, dict[str, Array]]) -> None:
    engine, feeds = net
    want = engine.run(feeds)["y"]
    for bad in (np.nan, np.inf, -np.inf):
        x = feeds["x"].copy()
        x[1].flat[5] = bad
        got = engine.run({**feeds, "x": x})["y"]
        assert not np.isfinite(got[1]).all()
        assert same_bits(got[[0, 2]], want[[0, 2]])
    assert same_bits(engine.run(feeds)["y"], want), "and none of a later run"


# -------------------------------------------------------------------------------------------------------------- threads


def test_eight_threads_on_eight_sessions_agree(net: tuple[Engine, dict[str, Array]]) -> None:
    engine, feeds = net
    want = engine.run(feeds)["y"]
    wrong: list[Any] = []
    start = threading.Barrier(8)

    def work(threads: int) -> None:
        session = engine.session(threads=threads)
        start.wait(60)
        for _ in range(20):
            try:
                if not same_bits(session.run(feeds)["y"], want):
                    wrong.append("other bits")
            except Exception as e:
                wrong.append(e)

    workers = [threading.Thread(target=work, args=(1 + i % 2,)) for i in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_a_second_run_on_a_busy_session_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An encoder with a host call in it: while that waits, the session is busy, and other sessions are not."""
    inside, go_on = threading.Event(), threading.Event()
    host = HostCalls.__call__

    def waiting(*args: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            assert go_on.wait(60)
        return host(*args)

    monkeypatch.setattr(HostCalls, "__call__", waiting)
    net = Net()
    x = net.network.input("x", Spec((BATCH, 3, 12, 12), "float32"))
    y = functional.relu(functional.conv2d(x, net.weight(8, 3, 3, 3)))
    net.network.outputs["y"] = y
    lines = functional.view(functional.cast(y, "float64"), (BATCH, 8, 100))
    net.network.outputs["line"] = functional.conv1d(lines, np.ones((1, 8, 1)))  # of float64: no kernel
    engine = net.build()
    session, feeds = engine.session(), images()
    results: list[dict[str, Array]] = []
    thread = threading.Thread(target=lambda: results.append(session.run(feeds)))
    thread.start()
    assert inside.wait(60)
    for _ in range(3):
        with pytest.raises(BusyError, match="another thread needs another session"):
            session.run(feeds)
    want = engine.session().run(feeds)["y"]
    go_on.set()
    thread.join()
    assert same_bits(results[0]["y"], want) and same_bits(session.run(feeds)["y"], want)


def test_an_engine_keeps_few_idle_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """32 runs at once need 32 sessions; when they have ended two are left with their arenas, which later runs take."""
    net = Net()
    x = net.network.input("x", Spec((BATCH, 8), "float32"))
    net.network.outputs["y"] = functional.linear(x, net.weight(8, 8))
    engine = net.build()
    made: weakref.WeakSet[Session] = weakref.WeakSet()
    together = threading.Barrier(32)
    run = Session.run

    def waiting(self: Session, *args: Any) -> Any:
        made.add(self)
        together.wait(60)
        return run(self, *args)

    monkeypatch.setattr(Session, "run", waiting)
    results: dict[int, Array] = {}

    def work(i: int) -> None:
        results[i] = engine.run({"x": random(4, 8, seed=i)})["y"]

    for _ in range(2):
        workers = [threading.Thread(target=work, args=(i,)) for i in range(32)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        gc.collect()
        assert len(results) == 32 and len(made) == len(engine._idle) == IDLE_SESSIONS
    monkeypatch.setattr(Session, "run", run)
    for i, found in results.items():
        assert same_bits(found, engine.run({"x": random(4, 8, seed=i)})["y"])
    assert len(engine._idle) == IDLE_SESSIONS
    assert all(0 < session.memory().arena < 1 << 20 for session in engine._idle)


def test_a_run_may_begin_at_any_line_of_another() -> None:
    """As in a signal handler or a destructor, on the same thread: neither waits for the other."""
    net = Net()
    x = net.network.input("x", Spec((BATCH, 8), "float32"))
    net.network.outputs["y"] = functional.relu(x)
    engine = net.build()
    feeds = {"x": random(4, 8)}
    want, lines = engine.run(feeds)["y"], []

    def interrupt(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is not Engine.run.__code__:
            return None
        if event == "line":
            sys.settrace(None)
            lines.append(frame.f_lineno)
            assert same_bits(engine.run(feeds)["y"], want)
            sys.settrace(interrupt)
        return interrupt

    def work() -> None:
        sys.settrace(interrupt)
        try:
            results.append(engine.run(feeds)["y"])
        finally:
            sys.settrace(None)

    results: list[Array] = []
    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(20)
    assert not worker.is_alive(), f"it waits for itself at line {lines[-1]}"
    assert same_bits(results[0], want) and len(lines) > 4


def test_a_run_that_fails_gives_its_session_back() -> None:
    """Whether inputs, values or sizes are refused: the next run is right, in the same session."""
    net = Net()
    x = net.network.input("x", Spec((BATCH, 8), "float32"))
    rows = net.network.input("rows", Spec((BATCH,), "int32"))
    chosen = F.take(functional.relu(x), rows)
    net.network.outputs["y"] = F.cumsum(chosen, 0)
    net.network.outputs["k"] = F.top_k(x, 0, 3)[0]
    engine = net.build()
    x_, rows_ = random(4, 8), np.array([3, 0, -1, 1], np.int32)
    want = engine.run({"x": x_, "rows": rows_})
    (session,) = engine._idle
    for wrong, error in (
        ({"x": x_}, InputError),
        ({"x": x_.astype(np.float64), "rows": rows_}, InputError),
        ({"x": x_[:3], "rows": rows_}, InputError),
        ({"x": x_, "rows": rows_ + 1}, ValueFault),
        ({"x": x_[:2], "rows": rows_[2:] - 1}, IngotError),  # k=3 of two
    ):
        with pytest.raises(error):
            engine.run(wrong)
        assert list(engine._idle) == [session]
        again = engine.run({"x": x_, "rows": rows_})
        assert same_bits(again["y"], want["y"]) and same_bits(again["k"], want["k"])
