"""A calibrated net or a language model repeats a run of its build on another machine, and says where numbers differ."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import ingot
from ingot.cli.main import main
from ingot.engine import self_test
from ingot.engine.self_test import KEY, check, made_of_tokens
from ingot.engine.session import Engine, load
from ingot.errors import EngineFileError, MismatchError, UserError
from tests.quantization.test_quantize import batches, net

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="module")
def engine() -> Engine:
    network, weights = net()
    found: Engine = ingot.quantize(network, batches(), weights=weights, errors=False)
    return found


def test_it_is_repeated_at_another_level(engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.ingot"
    engine.save(path)
    assert check(engine).difference == 0.0
    assert main(["inspect", str(path), "--check"]) == 0
    assert "computes what its build did" in capsys.readouterr().out
    command = [sys.executable, "-m", "ingot", "inspect", str(path), "--check"]
    done = subprocess.run(command, env={**os.environ, "INGOT_ISA": "portable"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_other_numbers_are_told(engine: Engine) -> None:
    tensors = {n: engine.tensor(n) for n in engine.header["weights"]}
    changed = {n: a * np.float32(1.5) if a.dtype == np.float32 else a for n, a in tensors.items()}
    with pytest.raises(MismatchError, match="of its root mean square"):
        check(engine.with_tensors(engine.header, changed))


def test_new_weights_have_no_old_self_test(engine: Engine) -> None:
    _, weights = net(seed=3)
    with pytest.raises(UserError, match="has no self-test"):
        check(engine.refit(weights))


CHANGES: dict[str, Any] = {
    "no outputs": lambda test: test.update(outputs={}),
    "another output": lambda test: test.update(outputs={"z": test["outputs"]["y"]}),
    "no base64": lambda test: test["outputs"]["y"].update(sample="?"),
    "rms": lambda test: test["outputs"]["y"].update(rms=-1),
    "tolerance": lambda test: test.update(tolerance="x"),
    "sizes": lambda test: test.update(sizes={"N": -1}),
    "no size": lambda test: test.update(sizes={}),
    "too large": lambda test: test.update(sizes={"N": 1 << 40}),
    "a list": lambda test: test.update(sizes=[]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_damaged_ones_are_refused(engine: Engine, change: Any) -> None:
    header = copy.deepcopy(engine.header)
    change(header["config"][KEY])
    other = engine.with_tensors(header, {n: engine.tensor(n) for n in header["weights"]})
    with pytest.raises(EngineFileError, match="damaged"):
        check(other)


# ------------------------------------------------------------------------------------------------------ language models

FORMATS: dict[str, dict[str, str]] = {
    "float32": {"precision": "float32"},
    "bfloat16": {"precision": "bfloat16"},
    "int8": {"precision": "bfloat16", "weights": "int8"},
    "int8 rows": {"precision": "float32", "weights": "int8", "activations": "int8", "kv": "int8"},
    "fp8 rows": {"precision": "float32", "weights": "fp8", "activations": "fp8", "kv": "int8"},
    "int4": {"precision": "bfloat16", "weights": "int4-g32"},
}


@pytest.fixture(scope="module", params=FORMATS.values(), ids=[*FORMATS])
def model(request: pytest.FixtureRequest, pico: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("self_test") / "pico.ingot"
    ingot.build(pico, progress=False, **request.param).save(path)
    return path


def test_a_language_model_is_checked_at_other_levels(model: Path) -> None:
    found = load(model).config[KEY]
    assert len(found["tokens"]) == 8 and set(found["outputs"]) == {
        f"{name} of step {step}" for name in ("logits", "hidden") for step in (0, 1)
    }
    assert check(load(model)).difference == 0.0, "this is the machine of its build"
    for level in ("portable", "avx2"):
        command = [sys.executable, "-m", "ingot", "inspect", str(model), "--check"]
        done = subprocess.run(command, env={**os.environ, "INGOT_ISA": level}, capture_output=True, text=True)
        assert done.returncode == 0 and "computes what its build did" in done.stdout, done.stderr


def test_any_corrupted_matrix_of_a_language_model_is_told(model: Path) -> None:
    """A quarter of its bytes are those of other places, which are numbers too; where rows are float8, half of them."""
    engine = load(model)
    parts = 2 if engine.config.get("activations") == "fp8" else 4
    tensors = {n: engine.tensor(n) for n in engine.header["weights"]}
    files = set(engine.header["files"].values())
    matrices = [n for n, a in tensors.items() if n not in files and a.ndim > 1 and a.size > 1 << 14]
    assert len(matrices) > 10
    for name in matrices:
        damaged = tensors[name].copy().reshape(-1)
        damaged[: damaged.size // parts] = damaged[: damaged.size // parts][::-1]
        changed = {**tensors, name: damaged.reshape(tensors[name].shape)}
        with pytest.raises(MismatchError, match="of its root mean square"):
            check(engine.with_tensors(engine.header, changed))


def test_what_is_rounded_makes_the_bound() -> None:
    """Rows and 8-bit caches each add to that of floats. What a checkpoint itself rounds stands in the network alone."""
    plain: dict[str, Any] = {"networks": {"main": {"nodes": [{"op": "matmul"}]}}}
    bounds = [
        self_test._apart_at_most(cast(Any, SimpleNamespace(config={"precision": precision, **words}, header=plain)))
        for precision in ("float32", "bfloat16")
        for words in ({}, {"kv_cache": "int8"}, {"activations": "int8"}, {"activations": "fp8", "kv_cache": "fp8"})
    ]
    assert bounds == pytest.approx([0.001, 0.021, 0.051, 0.101, 0.05, 0.07, 0.1, 0.15])
    rounded = {"networks": {"main": {"nodes": [{"op": "quantize_rows"}]}}}
    engine: Any = SimpleNamespace(config={"precision": "float32"}, header=rounded)
    assert self_test._apart_at_most(engine) == pytest.approx(0.051)


def test_a_self_test_stays_with_its_file(model: Path, tmp_path: Path) -> None:
    load(model).save(tmp_path / "again.ingot")
    assert (tmp_path / "again.ingot").read_bytes() == model.read_bytes()


def test_no_self_test_without_a_report_or_with_new_weights(model: Path, pico: Path, tmp_path: Path) -> None:
    new = load(model).refit({"model.norm.weight": np.full(256, 0.5, np.float32)})
    for engine in (new, ingot.build(pico, report=False, progress=False)):
        engine.save(tmp_path / "other.ingot")
        with pytest.raises(UserError, match="has no self-test"):
            check(load(tmp_path / "other.ingot"))


TOKEN_CHANGES: dict[str, Any] = {
    "one token": lambda test: test.update(tokens=[1]),
    "many tokens": lambda test: test.update(tokens=[1] * 9),
    "words": lambda test: test.update(tokens=["a"] * 8),
    "top": lambda test: test["outputs"]["logits of step 0"].update(top=[-1]),
    "no top": lambda test: test["outputs"]["logits of step 0"].update(top=""),
    "many top": lambda test: test["outputs"]["logits of step 0"].update(top=[0] * 9),
    "another output": lambda test: test["outputs"].pop("hidden of step 1"),
}


@pytest.mark.parametrize("change", TOKEN_CHANGES.values(), ids=TOKEN_CHANGES)
def test_damaged_ones_of_tokens_are_refused(change: Any) -> None:
    engine = load(GOLDEN / "llama-float32.ingot")
    header = copy.deepcopy(engine.header)
    header["config"][KEY] = made_of_tokens(engine)
    change(header["config"][KEY])
    other = engine.with_tensors(header, {n: engine.tensor(n) for n in header["weights"]})
    with pytest.raises(EngineFileError, match="damaged"):
        check(other)
