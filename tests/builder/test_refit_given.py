"""What Engine.refit is given: arrays of all kinds, mistakes, and engines whose recipes lie."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ingot import dtypes
from ingot.engine.session import Engine
from ingot.errors import IngotError, InputError, RecipeError
from tests.builder.test_refit import assert_same, image_in_memory
from tests.models import quantized_files

torch = pytest.importorskip("torch")


# ---------------------------------------------------------------------------------------------- arrays that are given


def linear(dtype: str = "float32", seed: int = 0) -> tuple[Engine, dict[str, np.ndarray]]:
    module, rng = ingot.nn.Linear(6, 5, dtype=dtype), np.random.default_rng(seed)
    for parameter in module.parameters():
        parameter.value = rng.standard_normal(parameter.shape).astype(parameter.dtype.numpy)
    return ingot.build(module, {"x": ingot.Spec((3, 6), dtype)}, report=False), module.state_dict()


class Lent:
    """An array that only DLPack shows."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **words: Any) -> Any:
        return self.array.__dlpack__(**words)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def forms(array: np.ndarray) -> Iterator[Any]:
    yield array
    yield torch.from_numpy(array).requires_grad_()
    yield Lent(array)
    yield np.asfortranarray(array)
    yield array[::-1].copy()[::-1]
    yield array.astype(np.float64)
    yield torch.from_numpy(array).double()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_arrays_of_any_kind_are_rounded_as_in_a_build(dtype: str, tmp_path: Path) -> None:
    engine, _ = linear(dtype)
    rng = np.random.default_rng(5)
    weight, bias = rng.standard_normal((5, 6)).astype(np.float32), rng.standard_normal(5).astype(np.float32)
    module = ingot.nn.Linear(6, 5, dtype=dtype)
    kind = dtypes.get(dtype).numpy
    module.load_state_dict({"weight": weight.astype(kind), "bias": bias.astype(kind)})
    wanted = ingot.build(module, {"x": ingot.Spec((3, 6), dtype)}, report=False)
    for form in forms(weight):
        assert_same(engine.refit({"weight": form, "bias": torch.from_numpy(bias)}), wanted, tmp_path)
    narrow = torch.from_numpy(weight).to(torch.bfloat16)
    assert_same(engine.refit({"weight": narrow}), engine.refit({"weight": narrow.float()}), tmp_path)


def test_numbers_that_are_none_are_weights_too(tmp_path: Path) -> None:
    engine, _ = linear()
    bits = np.array([0x7FC12345, 0xFF800000, 0x80000000, 0x00000001, 0x7F800000], np.uint32).view(np.float32)
    new = engine.refit({"bias": bits})
    assert next(new.tensor(n) for n in new.header["weights"] if "bias" in n).tobytes() == bits.tobytes()
    zero = new.refit({"weight": np.zeros((5, 6))})
    assert_same(zero.refit({"bias": bits.copy()}), zero, tmp_path)


def test_later_changes_of_given_arrays_change_nothing() -> None:
    """An optimizer writes into the parameters that refit was given."""
    engine, state = linear()
    x = {engine.inputs[0].name: np.ones((3, 6), np.float32)}
    bias, weight = torch.zeros(5), torch.ones(5, 6)
    new = engine.refit({"weight": weight, "bias": bias})
    before = new.run(x)
    bias += 7
    weight *= 3
    for name in state:
        state[name] *= 100  # what the first engine was built from
    assert np.array_equal(new.run(x)["output_0"], before["output_0"])
    assert np.abs(engine.run(x)["output_0"]).max() < 30


def test_everything_that_is_wrong_is_said_at_once() -> None:
    engine, state = linear()
    before = image_in_memory(engine)
    given: dict[Any, Any] = {
        "weight": np.zeros((6, 5), np.float32), "bias": np.zeros(5, np.int32), "wieght": state["weight"], 3: 1.0,
        "x" * 500: state["bias"],
    }  # fmt: skip
    with pytest.raises(InputError) as caught:
        engine.refit(given)
    for said in (
        "nothing was changed", "'wieght' is no parameter of it", "'3' is no parameter",
        "weight: shape [6, 5], and the engine's is [5, 6]", "bias: dtype int32, and floats are needed",
        "It has weight, bias",
    ):  # fmt: skip
        assert said in str(caught.value), said
    with pytest.raises(InputError, match="'weighs' is no parameter of it; is it weight"):
        engine.refit({"weighs": state["weight"]})
    for odd in ([0.0] * 5, 1.0, None, "weight", np.ma.MaskedArray(np.zeros(5)), np.zeros(5, "O"), np.zeros(5, ">f4"),
                np.zeros(5, "f4,f4"), torch.zeros(5).to_sparse(), torch.zeros(5, dtype=torch.complex64)):  # fmt: skip
        with pytest.raises(InputError, match="bias"):
            engine.refit({"bias": odd})
    for none in (None, [("bias", np.zeros(5))], "bias"):
        with pytest.raises(InputError, match="refit takes a dict of arrays by name"):
            engine.refit(none)  # type: ignore[arg-type]
    assert image_in_memory(engine) == before
    assert image_in_memory(engine.refit({})) == before


def test_numbers_too_large_for_float16() -> None:
    engine, _ = linear("float16")
    with pytest.raises(RecipeError) as caught:
        engine.refit({"weight": np.full((5, 6), 1e6), "bias": np.full(5, -7e4)})
    assert "largest magnitude 1e+06" in str(caught.value) and "largest magnitude 70000" in str(caught.value)
    assert "weight" in str(caught.value) and "bias" in str(caught.value)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_float64_is_rounded_as_in_a_build_and_never_to_infinity(precision: str) -> None:
    engine, _ = linear(precision)
    wide = np.random.default_rng(0).standard_normal((5, 6))
    once = engine.refit({"weight": wide})
    assert image_in_memory(once) == image_in_memory(engine.refit({"weight": wide.astype(np.float32)}))
    wide[2, 3] = 1e300
    with pytest.raises(RecipeError, match=r"weight: 1 numbers are too large for float32 \(the first is 1e\+300\)$"):
        engine.refit({"weight": wide})
    wide[2, 3] = np.inf
    x = np.ones((3, 6), ingot.dtypes.get(precision).numpy)
    assert np.isinf(engine.refit({"weight": wide}).run({"x": x})["output_0"][:, 2].astype(np.float32)).all()


# -------------------------------------------------------------------------------------------- files of strangers


def altered(engine: Engine, change: Callable[[dict[str, Any], str], None]) -> Engine:
    header = json.loads(json.dumps(engine.header))
    name = next(n for n, e in header["weights"].items() if e["recipe"] and "weight" in e["recipe"]["sources"][0])
    change(header["weights"][name]["recipe"], name)
    return Engine.from_memory(header, {n: engine.tensor(n) for n in engine.header["weights"]})


def doubled(recipe: dict[str, Any], name: str) -> None:
    """2^40 times the weight on the way, of which the last step takes a part."""
    steps = [["cast", 1, {"dtype": "float32", "in": [0]}]]
    steps += [["concat", 1, {"axis": 0, "in": [i, i]}] for i in range(1, 41)]
    steps += [["slice", 1, {"starts": [0, 0], "sizes": [5, 6], "in": [41]}]]
    recipe["steps"] = [*steps, ["pack_panels", 1, {"in": [42]}]]


def deep(recipe: dict[str, Any], name: str) -> None:
    recipe["steps"] = [["transpose", 1, {"axes": [1, 0], "in": [i]}] for i in range(4000)]
    recipe["steps"] += [["pack_panels", 1, {"in": [4000]}]]


def endless(recipe: dict[str, Any], name: str) -> None:
    recipe["steps"] = [["transpose", 1, {"axes": [1, 0], "in": [0]}]] * 20_000 + [["pack_panels", 1, {"in": [0]}]]


def another_shape(recipe: dict[str, Any], name: str) -> None:
    recipe["steps"] = [["slice", 1, {"starts": [0, 0], "sizes": [5, 4], "in": [0]}], ["pack_panels", 1, {"in": [1]}]]


def foreign(recipe: dict[str, Any], name: str) -> None:
    recipe["sources"] += ["nobody"]
    recipe["steps"] = [["concat", 1, {"axis": 0, "in": [0, 1]}]]


def of_an_adapter(recipe: dict[str, Any], name: str) -> None:
    recipe["sources"] += ["lora.x.A"]
    recipe["steps"] = [["concat", 1, {"axis": 0, "in": [0, 1]}]]


@pytest.mark.parametrize("change", [doubled, endless, another_shape, foreign, of_an_adapter])
def test_recipes_that_lie(change: Callable[[dict[str, Any], str], None]) -> None:
    engine, state = linear()
    bad = altered(engine, change)
    with pytest.raises(IngotError) as caught:
        bad.refit({"weight": state["weight"], "lora.x.A": state["weight"]} if change is of_an_adapter else state)
    print(caught.value)
    assert isinstance(caught.value, RecipeError | InputError)


def test_a_deep_recipe_is_followed() -> None:
    engine, state = linear()
    new = altered(engine, deep).refit({"weight": state["weight"] + 1})
    wanted = engine.refit({"weight": state["weight"] + 1})
    assert image_in_memory(new) == image_in_memory(wanted)


def test_aliases_that_lie() -> None:
    engine, state = linear()
    for aliases in (["bias"], {"b": "nobody"}, {"b": 3}, {"b": ["bias"]}, "b"):
        header = {**engine.header, "config": {**engine.config, "aliases": aliases}}
        bad = Engine.from_memory(header, {n: engine.tensor(n) for n in engine.header["weights"]})
        with pytest.raises(InputError, match="'b' is no parameter of it"):
            bad.refit({"b": state["bias"]})


def test_weights_that_came_as_floats_of_8_bits(tmp_path: Path) -> None:
    """They are taken as they are. Others are refused, not rounded: what is too large for them would be NaN."""
    tensors, _, config = quantized_files.model(quantized_files.CASES["compressed fp8"])
    config |= {"quantization_config": quantized_files.CASES["compressed fp8"].quantization}
    old = ingot.build(quantized_files.write(tmp_path / "old", tensors, config), report=False)
    name = "model.layers.0.self_attn.o_proj.weight"
    changed = tensors[name][::-1].copy()
    new = ingot.build(quantized_files.write(tmp_path / "new", tensors | {name: changed}, config), report=False)
    assert_same(old.refit({f"{name}.float8_e4m3fn": changed}), new, tmp_path)
    with pytest.raises(InputError, match=r"dtype float32, and the engine's is float8_e4m3fn"):
        old.refit({f"{name}.float8_e4m3fn": np.full(changed.shape, 1000, np.float32)})
