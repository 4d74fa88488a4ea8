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
