"""The error of each layer alone is that of an engine in which all others are float."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ingot
from ingot.ir import F, Network, Spec
from ingot.quantization.sensitivity import LEAST

Array = np.ndarray[Any, Any]

LAYERS = 2 * LEAST + 1  # of three engines


def net() -> tuple[Network, dict[str, Array]]:
    """Convolutions, and what is added behind every second one: it is known before all of them."""
    rng = np.random.default_rng(0)
    n = Network("net")
    y = n.input("x", Spec(("N", 8, 6, 6), "float32"))
    ones, beside = (1, 1), F.mul(y, 0.5)
    weights = {f"conv{i}": (rng.standard_normal((8, 8, 3, 3)) / 9).astype(np.float32) for i in range(LAYERS)}
    for i, name in enumerate(weights):
        with n.scope(name):
            weight = n.parameter(name, Spec((8, 8, 3, 3), "float32"))
            made = F.relu(F.conv(y, weight, stride=ones, pre_padding=ones, post_padding=ones, dilation=ones))
            y = F.add(made, beside) if i % 2 else made
    n.output("y", y)
    n.output("relu", F.relu(y))
    return n, weights


def test_errors_are_those_of_engines_with_one_layer_in_int8() -> None:
    network, weights = net()
    rng = np.random.default_rng(1)
    data = [rng.standard_normal((size, 8, 6, 6)).astype(np.float32) for size in (1, 2)]

    def plan(keep: list[str], errors: bool) -> Any:
        engine = ingot.quantize(
            network, data, weights=weights, method="mse", keep=keep, errors=errors, bias_correction=False, report=False
        )
        return engine.config["quantization"]

    alone = plan([], True)["layers"]
    assert len(alone) == LAYERS
    for layer in alone:
        others = [name for name in weights if name != layer["name"]]
        assert layer["error"] == pytest.approx(plan(others, False)["error"], rel=0.03), layer["name"]
    assert len({layer["error"] for layer in alone}) == LAYERS
