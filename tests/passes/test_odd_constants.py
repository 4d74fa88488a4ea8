"""Constants that are no finite numbers, or far from usual, in what passes make one op of: the network still builds, and
its numbers are those of before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ingot.builder.network import build_network
from ingot.ir import F, Network, Spec
from ingot.ir.interpret import interpret
from ingot.passes import simplify, written_out
from ingot.passes.rewrite import Log

Array = np.ndarray[Any, Any]
HALF, ONE = np.float32(0.5), np.float32(1)


def _spread(x: Any) -> Any:
    return F.reduce_mean(F.mul(x, x), axes=(-1,), keepdims=True)


def _attended(x: Any, change: Callable[[Any], Any], before: Callable[[Any], Any] = lambda q: q) -> Any:
    q = F.reshape(x, (1, 1, 3, 8))
    return F.matmul(F.softmax(change(F.matmul(before(q), q, transpose_b=True)), axis=-1), q)


BUILDS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "the shift of a weight": lambda x, w, c: F.mul(F.div(x, F.sqrt(F.add(_spread(x), 1e-6))), F.add(w, c)),
    "eps": lambda x, w, c: F.div(x, F.sqrt(F.add(_spread(x), c))),
    "a threshold": lambda x, w, c: F.where(F.greater(x, c), x, F.softplus(x, beta=1.0, threshold=math.inf)),
    "a factor of gelu": lambda x, w, c: F.mul(F.mul(x, c), F.add(F.erf(F.div(x, np.float32(math.sqrt(2)))), ONE)),
    "a power": lambda x, w, c: F.mul(F.mul(x, HALF), F.add(F.tanh(F.pow(x, c)), ONE)),
    "a sigmoid": lambda x, w, c: F.div(c, F.add(F.exp(F.neg(x)), c)),
    "mish": lambda x, w, c: F.mul(x, F.tanh(F.log(F.add(F.exp(x), c)))),
    "a count": lambda x, w, c: F.div(x, F.sqrt(F.add(F.div(F.reduce_sum(x * x, axes=(-1,), keepdims=True), c), 1e-6))),
    "a scale": lambda x, w, c: _attended(x, lambda s: F.mul(s, c)),
    "a divisor": lambda x, w, c: _attended(x, lambda s: F.div(s, c)),
    "a query's scale": lambda x, w, c: _attended(x, lambda s: s, lambda q: F.mul(q, c)),
    "two scales": lambda x, w, c: _attended(x, lambda s: F.mul(s, c), lambda q: F.mul(q, c)),
    "a mask": lambda x, w, c: _attended(x, lambda s: F.add(F.mul(s, HALF), c)),
    "a shift of rms_norm": lambda x, w, c: F.rms_norm(x, w, shift=float(c)) if np.isfinite(c) else F.mul(x, c),
}  # fmt: skip
CONSTANTS = (math.nan, math.inf, -math.inf, 1e38, 1e15, 1e-45)


@pytest.mark.parametrize("constant", CONSTANTS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_networks_stay_as_they_are(constant: float) -> None:
    net = Network("net")
    x, w = net.input("x", Spec((3, 8), "float32")), net.parameter("w", Spec((8,), "float32"))
    for name, build in BUILDS.items():
        net.outputs[name] = build(x, w, np.float32(constant))
    rng = np.random.default_rng(0)
    feeds, weights = {"x": rng.standard_normal((3, 8), np.float32)}, {"w": rng.uniform(0.5, 2, 8).astype(np.float32)}
    want, found = interpret(net, feeds, weights), build_network(net, weights, report=False).run(feeds)
    for name in BUILDS:
        np.testing.assert_allclose(found[name], want[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(("channels", "one"), [(1 << 16, True), (1 << 17, False)])
def test_the_weights_of_very_many_channels_are_not_repeated(channels: int, one: bool) -> None:
    """An element for each group becomes one for each channel, by an index each in the engine's header."""
    net = Network("net")
    x, groups = net.input("x", Spec((1, channels, 2), "float32")), 4
    w, b = (net.parameter(name, Spec((groups,), "float32")) for name in "wb")
    inner = F.group_norm(F.reshape(x, (1, groups, channels // groups, 2)), w, b, groups=groups)
    net.outputs["y"] = F.reshape(inner, x.shape)
    log: Log = []
    for change in (simplify.fold, written_out.written_out):
        change(net, log)
    assert ([n.op.name for n in net.nodes if not n.op.is_view] == ["group_norm"]) and (len(net.nodes) == 1) is one
