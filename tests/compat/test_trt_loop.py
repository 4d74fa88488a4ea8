"""TensorRT's loops: recurrences, iterators, outputs, by count and by condition, nested; against Python's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ingot.errors import UnsupportedError
from tests.compat.test_trt_layers import constant, summed
from tests.compat.test_trt_network import X, run, trt

torch = pytest.importorskip("torch")


def times(n: Any, x: Any, y: Any) -> Any:
    return n.add_elementwise(x, y, trt().ElementWiseOperation.PROD).get_output(0)


def running(n: Any, x: Any, kind: str, reverse: bool = False, axis: int = 0) -> Any:
    """h = h / 2 + x[i], round by round."""
    loop = n.add_loop()
    loop.add_trip_limit(constant(n, np.int32(3)), trt().TripLimit.COUNT)
    row = loop.add_iterator(x, 0, reverse).get_output(0)
    state = loop.add_recurrence(constant(n, np.zeros(4, np.float32)))
    h = state.get_output(0)
    following = summed(n, times(n, h, constant(n, np.array([0.5], np.float32))), row).get_output(0)
    state.set_input(1, following)
    last = kind == "LAST_VALUE"
    output = loop.add_loop_output(h if last else following, trt().LoopOutput[kind], axis)
    if not last:
        output.set_input(1, constant(n, np.int32(3)))
    return output


def states(x: Any) -> Any:
    found, h = [], torch.zeros(4)
    for row in x:
        h = h * 0.5 + row
        found.append(h)
    return torch.stack(found)


def test_outputs() -> None:
    assert torch.equal(run(lambda n, x: running(n, x, "LAST_VALUE"), X), states(X)[-1])
    assert torch.equal(run(lambda n, x: running(n, x, "CONCATENATE", axis=1), X), states(X).T)
    assert torch.equal(run(lambda n, x: running(n, x, "REVERSE", reverse=True), X), states(X.flip(0)).flip(0))


def test_a_condition() -> None:
    def record(n: Any, x: Any) -> Any:
        loop = n.add_loop()
        state = loop.add_recurrence(x)
        h = state.get_output(0)
        total = n.add_reduce(h, trt().ReduceOperation.SUM, 0b11, False).get_output(0)
        below = n.add_elementwise(total, constant(n, np.float32(100)), trt().ElementWiseOperation.LESS).get_output(0)
        loop.add_trip_limit(below, trt().TripLimit.WHILE)
        state.set_input(1, times(n, h, constant(n, np.array([[2]], np.float32))))
        return loop.add_loop_output(h, trt().LoopOutput.LAST_VALUE)

    for x in (X.abs(), X.abs() + 100):
        expected = x
        while expected.sum() < 100:
            expected = expected * 2
        assert torch.equal(run(record, x), expected)


@pytest.mark.parametrize("kind", ["CONCATENATE", "REVERSE"])
@pytest.mark.parametrize("counted", [False, True])
def test_rounds_of_a_condition_in_their_room(kind: str, counted: bool) -> None:
    """Sums of rows until one is above 1, in a room of five: zeros behind what there is."""

    def record(n: Any, x: Any) -> Any:
        loop = n.add_loop()
        row = loop.add_iterator(x).get_output(0)
        total = loop.add_recurrence(constant(n, np.float32(0)))
        h = total.get_output(0)
        small = n.add_elementwise(h, constant(n, np.float32(1)), trt().ElementWiseOperation.LESS).get_output(0)
        loop.add_trip_limit(small, trt().TripLimit.WHILE)
        if counted:
            loop.add_trip_limit(constant(n, np.int32(3)), trt().TripLimit.COUNT)
        here = n.add_reduce(row, trt().ReduceOperation.SUM, 0b1, False).get_output(0)
        following = summed(n, h, here).get_output(0)
        total.set_input(1, following)
        output = loop.add_loop_output(following, trt().LoopOutput[kind])
        output.set_input(1, constant(n, np.int32(5)))
        return output

    for x in (torch.full((3, 4), 0.2), torch.full((3, 4), 0.1), torch.full((3, 4), 2.0)):
        sums = x.sum(1).cumsum(0)
        sums = sums[: int((sums < 1).sum()) + 1]
        if len(x) < len(sums) or not counted and len(sums) == len(x) and sums[-1] < 1:
            continue  # the iterator ends before the condition does
        sums = sums.flip(0) if kind == "REVERSE" else sums
        torch.testing.assert_close(run(record, x), torch.nn.functional.pad(sums, (0, 5 - len(sums))))


def test_a_loop_in_a_loop() -> None:
    def record(n: Any, x: Any) -> Any:
        loop = n.add_loop()
        loop.add_trip_limit(constant(n, np.int32(3)), trt().TripLimit.COUNT)
        row = loop.add_iterator(x).get_output(0)
        inner = n.add_loop()
        inner.add_trip_limit(constant(n, np.int64(2)), trt().TripLimit.COUNT)
        power = inner.add_recurrence(row)
        power.set_input(1, times(n, power.get_output(0), row))
        cube = inner.add_loop_output(power.get_output(0), trt().LoopOutput.LAST_VALUE).get_output(0)
        output = loop.add_loop_output(cube, trt().LoopOutput.CONCATENATE)
        output.set_input(1, constant(n, np.int32(3)))
        return output

    torch.testing.assert_close(run(record, X), X**3)


def test_refusals() -> None:
    def endless(n: Any, x: Any) -> Any:
        loop = n.add_loop()
        state = loop.add_recurrence(x)
        state.set_input(1, state.get_output(0))
        return loop.add_loop_output(state.get_output(0), trt().LoopOutput.LAST_VALUE)

    def other(n: Any, x: Any) -> Any:
        loop = n.add_loop()
        loop.add_trip_limit(constant(n, np.int32(3)), trt().TripLimit.COUNT)
        state = loop.add_recurrence(x)
        state.set_input(1, state.get_output(0))
        return loop.add_loop_output(times(n, x, x), trt().LoopOutput.LAST_VALUE)

    def half(n: Any, x: Any) -> Any:
        loop = n.add_loop()
        loop.add_trip_limit(constant(n, np.int32(3)), trt().TripLimit.COUNT)
        return loop.add_loop_output(loop.add_recurrence(x).get_output(0), trt().LoopOutput.LAST_VALUE)

    with pytest.raises(UnsupportedError, match=r"test_trt_network.py:\d+.*without an end: call add_trip_limit"):
        run(endless, X)
    with pytest.raises(UnsupportedError, match="LAST_VALUE of another tensor than a recurrence's"):
        run(other, X)
    with pytest.raises(UnsupportedError, match="without a second input: call set_input"):
        run(half, X)


@pytest.mark.parametrize("reads_all", [False, True])
def test_as_many_rounds_as_there_are_rows(reads_all: bool) -> None:
    """A network of TensorRT's own builder, over rows whose number a run shows; a body that reads all of them too."""
    import tensorrt_llm

    builder = trt().Builder(trt().Logger())
    network, config = builder.create_network(0b10), builder.create_builder_config()
    x = network.add_input("x", trt().float32, (-1, 4))
    profile = builder.create_optimization_profile()
    profile.set_shape("x", (1, 4), (2, 4), (9, 4))
    config.add_optimization_profile(profile)
    sizes = network.add_shape(x).get_output(0)
    rows = network.add_gather(sizes, constant(network, np.array(0, np.int32)), 0).get_output(0)
    loop = network.add_loop()
    loop.add_trip_limit(rows, trt().TripLimit.COUNT)
    row = loop.add_iterator(x).get_output(0)
    state = loop.add_recurrence(constant(network, np.zeros(4, np.float32)))
    half = times(network, state.get_output(0), constant(network, np.array([0.5], np.float32)))
    following = summed(network, half, row).get_output(0)
    if reads_all:
        wide = network.add_unsqueeze(following, constant(network, np.array([0]))).get_output(0)
        following = network.add_reduce(times(network, x, wide), trt().ReduceOperation.SUM, 1, False).get_output(0)
    state.set_input(1, following)
    last = loop.add_loop_output(state.get_output(0), trt().LoopOutput.LAST_VALUE)
    every = loop.add_loop_output(following, trt().LoopOutput.CONCATENATE)
    every.set_input(1, rows)
    for name, layer in (("last", last), ("every", every)):
        tensor = layer.get_output(0)
        tensor.name = name
        network.mark_output(tensor)
    data = builder.build_serialized_network(network, config)
    session = tensorrt_llm.runtime.Session.from_serialized_engine(data)
    for count in (1, 2, 9):
        given = torch.randn(count, 4) * 0.3
        h, expected = torch.zeros(4), []
        for one in given:
            h = h * 0.5 + one
            h = (given * h).sum(0) if reads_all else h
            expected.append(h)
        found = session._debug_run({"x": given})
        torch.testing.assert_close(found["last"], h, rtol=2e-5, atol=2e-5)
        torch.testing.assert_close(found["every"], torch.stack(expected), rtol=2e-5, atol=2e-5)
