"""Results that lie where an operand of their call did: a residual that nobody needs after a product by tiles."""

from __future__ import annotations

import functools
import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ingot import _native
from tests.native.engines import WEIGHTS, Program, header, symbol

Array = Any

PANEL = 32
LINES, CHANNELS = 9, 64  # of an image, square
DTYPES = {"bfloat16": ml_dtypes.bfloat16, "int8": np.int8, "float32": np.float32}


def session_of(program: Program, threads: int) -> _native.Session:
    engine = _native.Engine.from_memory(json.dumps(header(main=program.json)).encode(), WEIGHTS)
    return _native.Session(engine, threads=threads)


def epilogue(dtype: str, residuals: int) -> Any:
    """Whole numbers stay what they are: sum + residuals, at least 0."""
    steps: list[Any] = [["input", "float32", 0]]
    value = 0
    for i in range(residuals):
        steps.append(["input", "int64" if dtype == "int8" else "float32", 1 + i])
        if dtype == "int8":
            steps.append(["to_float", "float32", len(steps) - 1])
        steps.append(["add", "float32", value, len(steps) - 1])
        value = len(steps) - 1
    steps += [["const", "float32", 0], ["max", "float32", value, len(steps)]]
    if dtype == "int8":
        steps += [["const", "float32", 127], ["min", "float32", len(steps) - 1, len(steps)]]
        steps += [["to_int", "int64", len(steps) - 1, "int32"], ["wrap", "int64", len(steps), "int8"]]
    return {"steps": steps, "outputs": [len(steps) - 1]}


def pack(w: Array, dtype: str) -> Array:
    """[k, n] as panels."""
    depth = {"float32": 1, "bfloat16": 2, "int8": 4}[dtype]
    k, n = w.shape
    padded = np.zeros((k, -(-n // PANEL) * PANEL), w.dtype)
    padded[:, :n] = w
    panels = padded.reshape(k // depth, depth, -1, PANEL).transpose(2, 0, 3, 1)
    return np.ascontiguousarray(panels[..., 0] if depth == 1 else panels)


@functools.cache
def numbers(outputs: int, batch: int) -> tuple[Array, Array, Array, Array]:
    """Images, weights, residuals, and the product of the first two: whole numbers below 128."""
    rng = np.random.default_rng(outputs * batch)
    w = rng.integers(-1, 2, (CHANNELS, outputs)) * (rng.random((CHANNELS, outputs)) < 0.2)
    images = rng.integers(0, 2, (batch, LINES, LINES, CHANNELS))
    given = rng.integers(0, 9, (batch, LINES, LINES, outputs))
    sums = images.astype(np.float32) @ w.astype(np.float32)  # exact, and not by plain loops as of integers
    return images.astype(np.int16), w.astype(np.int16), given.astype(np.int16), sums.astype(np.int16)


class Net:
    """Layers over images of whole numbers, and what NumPy makes of them. Sums stay below 128."""

    def __init__(self, dtype: str, outputs: int, batch: int) -> None:
        self.dtype, self.n = dtype, outputs
        self.program = p = Program(symbol("N", 1))
        self.shape: list[Any] = ["N", LINES, LINES, outputs]
        images, w, self.given, self.sums = numbers(outputs, batch)
        self.feeds = {"x": self.cast(images), "r": self.cast(self.given), "w": pack(self.cast(w), dtype)}
        self.inputs = {
            name: p.input(name, ["N", *a.shape[1:]] if name != "w" else list(a.shape), dtype)
            for name, a in self.feeds.items()
        }

    def cast(self, a: Array) -> Array:
        return a.astype(DTYPES[self.dtype])

    def copy(self, buffer: int) -> int:
        made = self.program.temp(self.shape, self.dtype)
        self.program.call("copy", [buffer], [made])
        return made

    def layer(self, kernel: str, *residuals: int) -> int:
        made = self.program.temp(self.shape, self.dtype)
        if kernel == "matmul_packed":
            params: dict[str, Any] = {"n": self.n, "k": CHANNELS, "parts": 1}
        else:
            pairs = {"kernel": [1, 1], "stride": [1, 1], "pre_padding": [0, 0], "dilation": [1, 1]}
            params = {"outputs": self.n, "channels": CHANNELS, "groups": 1, **pairs}
        self.program.call(kernel, [self.inputs["x"], self.inputs["w"], *residuals], [made])
        self.program.json["calls"][-1]["params"] = params | {"epilogue": epilogue(self.dtype, len(residuals))}
        return made

    def run(self, threads: int, **wanted: tuple[int, Array]) -> int:
        """Compares what it makes with that; returns the bytes of its buffers."""
        for name, (buffer, _) in wanted.items():
            self.program.output(name, self.copy(buffer))
        session = session_of(self.program, threads)
        right = {name: self.cast(value) for name, (_, value) in wanted.items()}
        for _ in range(2):
            for name, found in session.run(self.feeds).items():
                assert found.dtype == right[name].dtype and np.array_equal(found, right[name]), name
        return int(session.planned({"N": len(self.feeds["x"])})["buffers"])


def relu(a: Array) -> Array:
    return np.maximum(a, 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", ["matmul_packed", "conv_packed"])
@pytest.mark.parametrize(("outputs", "batch"), [(64, 1), (45, 3), (512, 64)])  # the last ones in micro-batches
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_residuals_that_die(dtype: str, kernel: str, outputs: int, batch: int, threads: int) -> None:
    bytes_of = {}
    for kept in (False, True):
        net = Net(dtype, outputs, batch)
        made, value = net.copy(net.inputs["r"]), net.given
        layers = []
        for _ in range(4):
            layers.append((made, value))
            made, value = net.layer(kernel, made), relu(net.sums + value)
        others = {f"layer{i}": layer for i, layer in enumerate(layers)} if kept else {}
        bytes_of[kept] = net.run(threads, last=(made, value), **others)
    assert bytes_of[False] < bytes_of[True]


@pytest.mark.skipif(_native.level() != "amx", reason="other levels end in memory of their own")
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("kernel", ["matmul_packed", "conv_packed"])
def test_two_layers_take_the_memory_of_one_result(dtype: str, kernel: str) -> None:
    """Beside inputs, of which the residual is needed to the end: its copy, which becomes both sums."""
    net = Net(dtype, 64, 3)
    made = net.layer(kernel, net.layer(kernel, net.copy(net.inputs["r"])))
    wanted = relu(net.sums + relu(net.sums + net.given))
    given = net.feeds["r"]
    rooms = [*(a.nbytes for a in net.feeds.values()), given.nbytes]
    assert net.run(1, y=(made, wanted), given=(net.inputs["r"], net.given)) == sum(
        -(-n // 64) * 64 + _native.RED_ZONE for n in rooms
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", ["matmul_packed", "conv_packed"])
@pytest.mark.parametrize("batch", [1, 64])
def test_residuals_that_others_read(dtype: str, kernel: str, batch: int) -> None:
    """One that is needed afterwards; one that is added twice; one whose rows a view shows backwards."""
    net = Net(dtype, 64, batch)
    given = net.given
    kept = net.copy(net.inputs["r"])
    y = net.layer(kernel, kept)
    after = net.layer(kernel, kept)
    twice = net.copy(net.inputs["r"])
    doubled = net.layer(kernel, twice, twice)
    flat = net.copy(net.inputs["r"])
    image = LINES * LINES * 64
    strides = [-image, -LINES * 64, -64, 1]
    turned = net.program.view(flat, net.shape, strides, ["-", ["*", "N", image], 64])
    backwards = net.layer(kernel, turned)
    wanted = {
        "y": (y, net.sums + given),
        "after": (after, net.sums + given),
        "doubled": (doubled, net.sums + 2 * given),
        "backwards": (backwards, net.sums + given.reshape(-1, 64)[::-1].reshape(given.shape)),
    }
    net.run(2, **{name: (buffer, relu(value)) for name, (buffer, value) in wanted.items()})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", ["matmul_packed", "conv_packed"])
def test_rows_that_are_their_own_residual(dtype: str, kernel: str) -> None:
    """Other columns still read a row of x when its first results are written."""
    net = Net(dtype, CHANNELS, 3)
    x = net.copy(net.inputs["x"])
    net.inputs["x"] = x
    net.run(1, y=(net.layer(kernel, x), relu(net.sums + net.feeds["x"].astype(np.int16))))
