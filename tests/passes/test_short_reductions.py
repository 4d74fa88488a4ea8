"""Reductions of a few neighbours: which become slices, and that the numbers stay what they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ingot import dtypes
from ingot.builder.network import build_network
from ingot.cli.inspect import kernel_counts
from ingot.dims import Dim
from ingot.ir import F, Network, Spec
from ingot.ir.interpret import interpret
from ingot.ir.verify import verify
from ingot.passes.rewrite import Log
from ingot.passes.short_reductions import LONGEST, short_reductions

HOW = ("sum", "mean", "prod", "max", "min")
UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-9, "float16": 2.0**-12}


def network(how: str, shape: tuple[Any, ...], dtype: str, **attributes: Any) -> Network:
    net = Network("net")
    x = net.input("x", Spec(shape, dtype))
    net.output("y", getattr(F, f"reduce_{how}")(x, **attributes))
    return net


def numbers(shape: tuple[int, ...], dtype: str) -> Any:
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    array.flat[3:40:7] = [np.nan, np.inf, -np.inf, 0, -0.0, 1e38][: len(range(3, 40, 7))]
    with np.errstate(over="ignore"):
        return array.astype(dtypes.get(dtype).numpy)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("count", [2, 3, LONGEST])
def test_slices_give_the_numbers_of_the_reduction(how: str, dtype: str, count: int) -> None:
    for keep in (False, True):
        net = network(how, (Dim("T"), 9, count), dtype, axes=(-1,), keepdims=keep)
        feeds = {"x": numbers((5, 9, count), dtype)}
        with np.errstate(all="ignore"):
            wanted = interpret(net, feeds)["y"]
            log: Log = []
            short_reductions(net, log)
            verify(net)
            found = interpret(net, feeds)["y"]
        assert not [n for n in net.nodes if n.op.name.startswith("reduce")] and f"{count} elements" in str(log)
        assert found.shape == wanted.shape and found.dtype == wanted.dtype
        unit = UNIT[dtype] if count > 3 or dtype.endswith(("32", "64")) else 0.0  # rounded once: the same bits
        np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=2 * unit, atol=8 * unit)


@pytest.mark.parametrize(("shape", "dtype", "axes"), [
    ((4, 9), "float32", (1,)), ((4, 1), "float32", (1,)), ((4, 0), "float32", (1,)), ((4, 2, 2), "float32", (1, 2)),
    ((2, 40), "float32", (0,)), ((4, 2), "int32", (1,)), ((4, "T"), "float32", (1,)), ((2, 2), "float32", None),
])  # fmt: skip
def test_what_stays_a_reduction(shape: tuple[Any, ...], dtype: str, axes: Any) -> None:
    net = network("sum", shape, dtype, axes=axes)
    short_reductions(net, [])
    assert [n.op.name for n in net.nodes] == ["reduce_sum"]


def test_a_last_dimension_that_lies_elsewhere_stays() -> None:
    """Its neighbours are far apart, and the kernel reads along those that are not."""
    net = Network("net")
    x = net.input("x", Spec((3, 40), "float32"))
    net.output("y", F.reduce_max(F.permute(x, (1, 0)), axes=(1,)))
    short_reductions(net, [])
    assert [n.op.name for n in net.nodes] == ["permute", "reduce_max"]


def test_the_power_of_a_spectrum_runs_without_a_reduction() -> None:
    net = Network("net")
    x = net.input("x", Spec((Dim("T"), 64), "float32"))
    spectrum = F.rfft(x, axis=-1, norm="backward", onesided=True)
    net.output("power", F.reduce_sum(F.mul(spectrum, spectrum), axes=(2,)))
    engine = build_network(net, {})
    (program,) = engine.header["programs"].values()
    assert set(kernel_counts(program)[0]) == {"rfft", "elementwise"}
    feed = np.random.default_rng(1).standard_normal((7, 64)).astype(np.float32)
    np.testing.assert_allclose(engine.run({"x": feed})["power"], np.abs(np.fft.rfft(feed)) ** 2, rtol=1e-4, atol=1e-4)
