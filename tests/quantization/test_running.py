"""Engines of a calibration: what several of them store alike is made once, and a plan's engine is that of a build."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import ingot
from ingot.builder.compile import compile_network, make_tensors
from ingot.builder.switches import Debug
from ingot.ir import F, Network, Spec
from ingot.ir.evaluation import evaluate
from ingot.ir.recipe import STEPS, source
from ingot.passes.calibrated import Choice, Plan
from ingot.passes.weights import recipe_of
from ingot.quantization import running
from ingot.quantization.running import Feeds, Made, Maker, Taps, Tried

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


def test_arrays_that_are_shared_stay_while_others_are_made() -> None:
    """An engine that alone holds one may go in the middle."""

    class Kept:
        itself: Kept
        array: Array

    class Weights(dict[str, Array]):
        def __getitem__(self, name: str) -> Array:
            gc.collect()
            return super().__getitem__(name)

    network, weights = net()
    recipes = {name: source("a").then("cast", dtype=name) for name in ("bfloat16", "float16")}
    recipes["bfloat16"] = recipes["bfloat16"].then("transpose", axes=(1, 0))
    stored = {name: network.parameter(name, Spec((64, 64), name), recipe) for name, recipe in recipes.items()}
    shared: weakref.WeakValueDictionary[Any, Array] = weakref.WeakValueDictionary()
    kept = Kept()
    kept.itself, kept.array = kept, evaluate(recipes["float16"], weights)
    shared[recipes["float16"]] = kept.array
    del kept
    tensors = make_tensors(stored, Weights(weights), shared=shared)
    assert [str(array.dtype) for array in tensors.values()] == ["bfloat16", "float16"]


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


def test_a_weights_scales_are_made_once_and_no_tensor_shares_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    network, weights = net()
    stored = compile_network(network, plan=plan(0.1)).stored
    recipes = {name: recipe_of(v) for name, v in stored.items() if v.kind == "parameter"}
    apart = {name: evaluate(recipe, weights) for name, recipe in recipes.items()}
    step, made = STEPS["scales"], []

    def counted(arrays: Any, **args: Any) -> Array:
        made.append(1)
        return step.apply(arrays, **args)  # type: ignore[no-any-return]

    monkeypatch.setitem(STEPS, "scales", dataclasses.replace(step, apply=counted))
    tensors = make_tensors(stored, weights)
    assert sum(any(call.name == "scales" for call in recipe.steps) for recipe in recipes.values()) > len(weights)
    assert len(made) == len(weights)
    assert list(tensors) == list(stored)
    for name, array in apart.items():
        np.testing.assert_array_equal(tensors[name], array, strict=True)
    pairs = itertools.combinations([tensors[name] for name in recipes], 2)
    assert not any(np.may_share_memory(a, b) for a, b in pairs)


def test_a_batch_that_is_asked_for_twice_at_once_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    network, weights = net()
    feeds: list[Feeds] = [{"x": np.full((3, 64), i, np.float32)} for i in range(2)]
    runs = []

    def counted(session: Any, feeds: Feeds, number: int) -> dict[str, Array]:
        runs.append(number)
        return session.run(feeds)  # type: ignore[no-any-return]

    monkeypatch.setattr(running, "run", counted)
    engine = Maker(weights)(network).engine
    with ThreadPoolExecutor(1) as behind:
        tried = Tried(engine, behind)
        tried.begin([*feeds, feeds[0]])
        found = tried.on(feeds)
    assert runs == [0, 1]
    for one, outputs in zip(feeds, found, strict=True):
        np.testing.assert_array_equal(outputs["y"], engine.run(one)["y"])


def test_an_engine_that_gave_values_inside_goes_with_its_taps() -> None:
    network, weights = net()
    engines = []

    class Noted(Maker):
        def __call__(self, network: Network, plan: Plan | None = None) -> Made:
            made = super().__call__(network, plan)
            engines.append(weakref.ref(made.engine))
            return made

    taps = Taps(network, Noted(weights), list(network.outputs.values()))
    feeds = {"x": np.ones((2, 64), np.float32)}
    gc.collect()
    gc.disable()
    try:
        assert [list(found) for found in taps.run(feeds, 0)] == [[v.name for v in network.outputs.values()]]
        assert [one() is not None for one in engines] == [True]
        del taps
        assert [one() is not None for one in engines] == [False]
    finally:
        gc.enable()
