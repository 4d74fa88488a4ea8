"""A cast shows what its operand's element type holds: fusion keeps that rounding, in every kernel that fuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ingot import functional as F
from ingot.builder.network import build_network
from ingot.ir import Network, Spec

rng = np.random.default_rng(4)
X = rng.standard_normal((9, 40)).astype(np.float32) * 3
W = rng.standard_normal((24, 40)).astype(np.float32)
IMAGE = rng.standard_normal((2, 3, 7, 6)).astype(np.float32)


def weight(x: Any, array: Any) -> Any:
    """A parameter of the network, in the type of x; its name says its numbers."""
    name = f"w{array.shape}{array.flat[0]}"
    known = {v.name: v for v in x.network.parameters}
    return known[name] if name in known else x.network.parameter(name, Spec(array.shape, x.dtype))


WEIGHTS = {f"w{a.shape}{a.flat[0]}": a for a in (W, -W, W[:5, :27].reshape(5, 3, 3, 3))}


# What a narrow type computes on x, which a network casts to it and the result back.
COMPUTED: dict[str, tuple[Callable[..., Any], Any]] = {
    "a function": (F.exp, X),
    "several": (lambda x: F.mul(F.silu(x), F.add(x, 0.1)), X),
    "overflow": (lambda x: F.exp(F.mul(x, 40.0)), X),
    "a softmax": (lambda x: F.softmax(x, -1), X),
    "a norm": (lambda x: F.rms_norm(x, 40), X),
    "a norm of channels": (lambda x: F.group_norm(x, 3), IMAGE),
    "a product": (lambda x: F.linear(x, weight(x, W)), X),
    "a product and more": (lambda x: F.silu(F.add(F.linear(x, weight(x, W)), 0.1)), X),
    "two products": (lambda x: F.mul(F.silu(F.linear(x, weight(x, W))), F.linear(x, weight(x, -W))), X),
    "a product of computed operands": (lambda x: F.matmul(x, x, transb=True), X),
    "a convolution": (lambda x: F.conv2d(x, weight(x, W[:5, :27].reshape(5, 3, 3, 3))), IMAGE),
    "a sum": (lambda x: F.sum(x, -1), X),
}


# What then shows the result, and what that makes of one that was rounded.
SHOWN: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "itself": (lambda y: F.cast(y, "float32"), lambda y: y),
    "more": (lambda y: F.mul(F.cast(y, "float32"), np.float32(1.7)), lambda y: y * np.float32(1.7)),
    "a comparison": (lambda y: F.gt(y, 0.5), lambda y: y > 0.5),
}


@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", COMPUTED)
def test_a_cast_rounds_what_it_widens(name: str, narrow: str) -> None:
    call, array = COMPUTED[name]
    kind = Spec((), narrow).dtype.numpy
    for show in (lambda y: y, *(ours for ours, _ in SHOWN.values())):
        network = Network()
        network.output("y", show(call(F.cast(network.input("x", Spec(array.shape, "float32")), narrow))))
        weights = {v.name: WEIGHTS[v.name] for v in network.parameters}
        found = build_network(network, weights).run({"x": array})["y"]
        if found.dtype == kind:
            held = found.astype(np.float32)
            continue
        theirs = next(theirs for ours, theirs in SHOWN.values() if ours is show)
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(found, theirs(held))
