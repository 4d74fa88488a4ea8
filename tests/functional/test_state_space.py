"""Mamba's selective scan and causal convolution: against torch, step by step as at once, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ingot import functional as F
from ingot.builder.network import build_network
from ingot.dims import Dim
from ingot.errors import OpError
from ingot.ir import Network, Spec

Array = np.ndarray[Any, Any]
rng = np.random.default_rng(0)
N, D, T, S = 2, 36, 21, 16


def normal(*shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def operands(groups: int) -> dict[str, Array]:
    b = (N, groups, S, T) if groups else (N, S, T)
    return {"u": normal(N, D, T), "delta": normal(N, D, T), "A": -np.exp(normal(D, S)), "B": normal(*b),
            "C": normal(*b), "D": normal(D), "z": normal(N, D, T), "delta_bias": normal(D)}  # fmt: skip


def scanned(given: dict[str, Array]) -> tuple[Array, Array]:
    """The recurrence in float64, as Mamba's own reference has it."""
    t = {k: torch.from_numpy(v).double() for k, v in given.items()}
    delta = torch.nn.functional.softplus(t["delta"] + t["delta_bias"][:, None])
    b, c = (m[:, None] if m.ndim == 3 else m for m in (t["B"], t["C"]))
    b, c = (m.repeat_interleave(D // m.shape[1], 1) for m in (b, c))
    h, out = torch.zeros(N, D, S, dtype=torch.float64), []
    for i in range(t["u"].shape[2]):
        step = delta[:, :, i, None]
        h = torch.exp(step * t["A"]) * h + step * b[..., i] * t["u"][:, :, i, None]
        out.append((c[..., i] * h).sum(-1) + t["D"] * t["u"][:, :, i])
    y = torch.stack(out, 2) * torch.nn.functional.silu(t["z"])
    return y.numpy(), h.numpy()


@pytest.mark.parametrize("groups", [0, 1, 3])
def test_scan(groups: int) -> None:
    given = operands(groups)
    network, steps = Network(), Dim("T", 0, 64)
    values = {k: network.input(k, Spec((*v.shape[:-1], steps) if v.shape[-1] == T else v.shape, "float32"))
              for k, v in given.items()}  # fmt: skip
    y, state = F.selective_scan(**values, delta_softplus=True)
    network.output("y", y)
    network.output("state", state)
    engine = build_network(network, {})
    assert engine._native.host_calls("main") == []
    want = scanned(given)
    eager = F.selective_scan(**given, delta_softplus=True)
    for got in (engine.run(given).values(), eager):
        for a, b in zip(got, want, strict=True):  # the greatest error seen: 4e-6 of the greatest value
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5 * np.abs(b).max())


def test_steps_one_by_one_have_the_bits_of_all_at_once() -> None:
    """States in float32 are all that a step leaves to the next: the scan's and the convolution's."""
    weight, bias = normal(D, 4), normal(D)
    given = operands(1)
    network, steps = Network(), Dim("T", 0, 64)
    values = {k: network.input(k, Spec((*v.shape[:-1], steps) if v.shape[-1] == T else v.shape, "float32"))
              for k, v in given.items()}  # fmt: skip
    h0, w0 = network.input("h0", Spec((N, D, S), "float32")), network.input("w0", Spec((N, D, 3), "float32"))
    u, window = F.causal_conv1d(values.pop("u"), network.constant(weight), network.constant(bias), w0, "silu")
    y, state = F.selective_scan(u, **values, delta_softplus=True, initial_state=h0)
    for name, value in (("y", y), ("h0", state), ("w0", window)):
        network.output(f"{name}_out" if name != "y" else name, value)
    engine = build_network(network, {})
    assert engine._native.host_calls("main") == []
    zeros = {"h0": np.zeros((N, D, S), np.float32), "w0": np.zeros((N, D, 3), np.float32)}
    whole = engine.run({**given, **zeros})
    states, parts = zeros, []
    for t in range(T):
        one = {k: np.ascontiguousarray(v[..., t : t + 1]) if v.shape[-1] == T else v for k, v in given.items()}
        found = engine.run({**one, **states})
        states = {"h0": found["h0_out"], "w0": found["w0_out"]}
        parts.append(found["y"])
    np.testing.assert_array_equal(np.concatenate(parts, 2), whole["y"])
    for name in states:
        np.testing.assert_array_equal(states[name], whole[f"{name}_out"])


def test_causal_convolution() -> None:
    x, weight, bias, before = normal(N, D, T), normal(D, 4), normal(D), normal(N, D, 3)
    for state in (None, before):
        padded = np.concatenate([np.zeros((N, D, 3), np.float32) if state is None else state, x], 2)
        want = torch.nn.functional.conv1d(*map(torch.from_numpy, (padded, weight[:, None], bias)), groups=D).numpy()
        y, after = F.causal_conv1d(x, weight, bias, state)
        np.testing.assert_allclose(y, want, rtol=2e-6, atol=2e-6)
        np.testing.assert_array_equal(after, padded[:, :, -3:])


def test_refusals() -> None:
    x = normal(N, D, T)
    for call, message in (
        (lambda: F.selective_scan(x[0], x[0], normal(D, S), x, x), r"u must be \[N, D, T\] and A \[D, S\]"),
        (lambda: F.causal_conv1d(x, normal(D)), r"weight \[D, K\], not \[2, 36, 21\] and \[36\]"),
        (lambda: F.causal_conv1d(x, normal(D, 4), activation="gelu"), "activation must be None, silu or swish"),
    ):
        with pytest.raises(OpError, match=message):
            call()
