"""What a build says at its end: the engine in short, and what makes it slow and where."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

import ingot.ops  # noqa: F401  fills F
from ingot import Spec
from ingot.builder.network import build_network
from ingot.cli import source
from ingot.cli.output import Output
from ingot.engine.session import Engine
from ingot.ir import F, Network, Value
from ingot.ir.weight_format import weight_format

WINDOW: dict[str, Any] = {"stride": (1, 1), "pre_padding": (0, 0), "post_padding": (0, 0), "dilation": (1, 1)}
RNG = np.random.default_rng(0)


def conv(x: Value, weight: Value) -> Any:
    return F.conv(x, weight, **WINDOW)


def built(network: Network, dtype: Any = np.float32) -> Engine:
    weights = {v.name: RNG.standard_normal(v.shape).astype(dtype) for v in network.parameters}
    return build_network(network, weights)


def image(network: Network, dtype: str = "float32") -> Value:
    return network.input("x", Spec(("N", 8, 6, 6), dtype))


def test_the_engine_in_short() -> None:
    network = Network("main")
    x = image(network)
    network.output("y", F.relu(conv(x, network.parameter("w", Spec((4, 8, 3, 3), "float32")))))
    found = built(network).summary
    assert (found.ops, found.host, found.remarks) == (2, 0, ())
    assert found.native > 0 and found.dims == (("N", 0, None),)
    lines = str(found).splitlines()
    assert lines[0] == f"ops     2: {found.native} kernel calls, no host calls"
    assert lines[1:] == ["input   x: f32[N, 8, 6, 6]", "output  y: f32[N, 4, 4, 4]", "dims    N (0 or more)"]


def test_weights_that_stay_floats_are_named_with_the_reason() -> None:
    network = Network("main")
    x = image(network)
    for name in ("first", "second"):
        x = conv(x, network.parameter(name, Spec((8, 8, 1, 1), "float32")))
    network.output("y", F.matmul(x, network.parameter("matrix", Spec((6, 6), "float32"))))
    weights = {v.name: RNG.standard_normal(v.shape).astype(np.float32) for v in network.parameters}
    found = build_network(network, weights, format=weight_format("int8", "same")).summary
    (remark,) = found.remarks
    assert (remark.kind, remark.where, remark.calls) == ("weights as floats", ("first", "second"), 2)
    assert remark.why == "not stored as int8: conv reads it" and "--data calib.npz" in remark.what_to_do


def test_names_with_spaces_and_colons_are_named_whole() -> None:
    network = Network("main")
    y = conv(image(network), network.parameter("block 1: conv", Spec((8, 8, 1, 1), "float32")))
    network.output("y", F.matmul(y, network.parameter("matrix", Spec((6, 6), "float32"))))
    weights = {v.name: RNG.standard_normal(v.shape).astype(np.float32) for v in network.parameters}
    (remark,) = build_network(network, weights, format=weight_format("int8", "same")).summary.remarks
    assert remark.where == ("block 1: conv",) and remark.why == "not stored as int8: conv reads it"


def test_host_calls_are_gathered_with_their_places() -> None:
    network = Network("main")
    x, k = image(network, "float64"), network.input("k", Spec((8, 8, 1, 1), "float64"))
    for place in ("up", "up", "down"):
        network.where = place
        x = conv(x, k)
    network.output("y", x)
    found = built(network).summary
    (remark,) = found.remarks
    assert found.host == 3 and (remark.kind, remark.op) == ("host call in float64", "conv")
    assert (remark.calls, remark.where) == (3, ("up", "down")) and "float64" in remark.why
    assert "slow    host call in float64: conv × 3 in up, down\n            it runs in Python, in" in str(found)
    assert found.json()["remarks"][0]["what_to_do"] == remark.what_to_do == "compute it in float32"


def test_a_loop_that_the_host_runs() -> None:
    network, body = Network("main"), Network("body")
    shapes = {"c": (1, 8, 6, 6), "k": (8, 8, 1, 1)}
    c, k = (body.input(name, Spec(shape, "float64")) for name, shape in shapes.items())
    body.output("y0", conv(c, k))
    inputs = [network.input(name, Spec(shape, "float64")) for name, shape in shapes.items()]
    network.where = "rounds"
    network.output("y", F.scan(*inputs, body=body, length=3, carried=1, scanned=0))
    (remark,) = built(network).summary.remarks
    assert (remark.kind, remark.op, remark.where) == ("host loop", "scan", ("rounds",))
    assert "conv(x=f64[1, 6, 6, 8]" in remark.why, "the op in the loop that has no kernel"


def test_a_computed_weight_of_a_convolution() -> None:
    network = Network("main")
    x, k = image(network), network.input("k", Spec((4, 8, 3, 3), "float32"))
    network.where = "hyper"
    network.output("y", conv(x, F.relu(k)))
    (remark,) = built(network).summary.remarks
    assert (remark.kind, remark.where) == ("computed convolution weight", ("hyper",))


def test_what_every_run_computes_of_weights_alone() -> None:
    network = Network("main")
    network.where = "order"
    large, _ = F.sort(network.parameter("w", Spec((64, 512), "float32")), axis=1)
    network.where = "small"
    little, _ = F.sort(network.parameter("v", Spec((3, 512), "float32")), axis=1)
    x = network.input("x", Spec(("N", 512), "float32"))
    network.output("y", F.matmul(x, F.permute(large, (1, 0))))
    network.output("z", F.matmul(x, F.permute(little, (1, 0))))
    (remark,) = built(network).summary.remarks
    assert (remark.kind, remark.where) == ("weights computed in every run", ("order",))


class NoTerminal(io.StringIO):
    def isatty(self) -> bool:
        return False


def test_progress_in_a_log_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    err, now = NoTerminal(), iter((0.0, 5.0, 16.0, 20.0, 40.0))
    monkeypatch.setattr("sys.stderr", err)
    monkeypatch.setattr(source, "perf_counter", lambda: next(now))
    with source.progress_bar(Output(False, False, False)) as progress:
        assert progress is not None
        for done in (100, 2000, 3000, 4000):
            progress("import", done, 40_000)
    assert err.getvalue().splitlines() == ["import: 2,000 of 40,000", "import: 4,000 of 40,000"]
    with source.progress_bar(Output(False, True, False)) as progress:
        progress("import", 5000, 40_000)
    assert len(err.getvalue().splitlines()) == 2
