"""Engines of a calibration: what several of them store alike is made once, and a plan's engine is that of a build."""

from __future__ import annotations

from typing import Any

import numpy as np

import ingot
from ingot.builder.build import Debug
from ingot.builder.compile import compile_network, make_tensors
from ingot.ir import F, Network, Spec
from ingot.passes.calibrated import Choice, Plan
from ingot.quantization.running import Maker

Array = np.ndarray[Any, Any]


def net() -> tuple[Network, dict[str, Array]]:
    """Two products."""
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((64, 64)).astype(np.float32) for name in "ab"}
    n = Network("net")
    y = n.input("x", Spec(("N", 64), "float32"))
    for name in weights:
        with n.scope(name):
            y = F.relu(F.matmul(y, n.parameter(name, Spec((64, 64), "float32"))))
    n.output("y", y)
    return n, weights


def plan(scale: float) -> Plan:
    return Plan(tuple(Choice(name, "matmul", scale) for name in "ab"), {})


def large(tensors: dict[str, Array]) -> dict[str, Array]:
    return {name: array for name, array in tensors.items() if array.nbytes >= 64 * 64}


def test_engines_whose_scales_alone_differ_share_their_integers() -> None:
    network, weights = net()
    make = Maker(weights)
    one, two = make(network, plan(0.1)), make(network, plan(0.2))
    assert large(one.tensors)
    assert all(two.tensors[name] is array for name, array in large(one.tensors).items())
    apart = make_tensors(compile_network(network, plan=plan(0.2)).stored, weights)
    assert apart.keys() == two.tensors.keys()
    for name, array in apart.items():
        np.testing.assert_array_equal(two.tensors[name], array)
    x = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    assert not np.array_equal(one.engine.run(x)["y"], two.engine.run(x)["y"])


def test_what_no_engine_reads_any_more_is_made_again() -> None:
    network, weights = net()
    make = Maker(weights)
    before = {name: array.copy() for name, array in large(make(network).tensors).items()}
    for array in weights.values():
        array *= 2
    after = make(network).tensors
    assert before
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], 2 * array)


def test_a_plans_engine_is_that_of_a_build_that_lowers_again(tmp_path: Any) -> None:
    network, weights = net()
    data = [np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)]
    files = [tmp_path / "taken.ingot", tmp_path / "again.ingot"]
    ingot.quantize(network, data, weights=weights).save(files[0])
    ingot.quantize(network, data, weights=weights, debug=Debug(dump=tmp_path / "passes")).save(files[1])
    assert list((tmp_path / "passes").iterdir())
    assert files[0].read_bytes() == files[1].read_bytes()
