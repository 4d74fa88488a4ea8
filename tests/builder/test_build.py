"""`ingot.build`: what it takes, what it refuses, and the report that comes with an engine."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ingot import nn
from ingot.backends.cpu import CPU
from ingot.builder import report as accuracy
from ingot.builder.build import build
from ingot.builder.network import build_network
from ingot.builder.switches import Debug
from ingot.dims import Dim
from ingot.engine.session import load
from ingot.errors import CheckpointError, IngotError, ModuleError, NetworkError, RecipeError, UserError
from ingot.ir import F, Network, Spec
from ingot.ir.text import from_json
from ingot.passes import simplify
from tests import nets
from tests.kept import PICO


class Mlp(nn.Module):
    def __init__(self, dtype: str = "float32") -> None:
        super().__init__()
        self.up = nn.Linear(8, 40, dtype=dtype)
        self.down = nn.Linear(40, 8, dtype=dtype)

    def forward(self, x: Any) -> Any:
        return x + self.down(F.gelu(self.up(x)))


def filled(dtype: str = "float32") -> Mlp:
    module = Mlp(dtype)
    rng = np.random.default_rng(0)
    for parameter in module.parameters():
        parameter.value = rng.standard_normal(parameter.spec.evaluate({})).astype(parameter.dtype.numpy)
    return module


def spec(dtype: str = "float32") -> dict[str, Spec]:
    return {"x": Spec((Dim("N", 0, None, 100), 8), dtype)}


def test_a_module_becomes_an_engine() -> None:
    module = filled()
    engine = build(module, spec())
    x = np.random.default_rng(1).standard_normal((5, 8)).astype(np.float32)
    np.testing.assert_allclose(engine.run({"x": x})["output_0"], module(x), rtol=1e-4, atol=1e-4)
    assert engine.config == {"precision": "float32", "report": True}
    assert "no loss of precision to report" in str(engine.report)
    assert set(engine.seconds) == {"trace", "lower", "pack", "report"}


def test_a_module_in_bfloat16_is_compared_with_float32() -> None:
    engine = build(filled("bfloat16"), spec("bfloat16"))
    found = engine.report.json()
    assert found["reference"] == "float32" and found["inputs"] == "seeded" and found["same_top"] is None
    assert 0 < found["outputs"][0]["relative"] < 0.02
    assert build(filled("bfloat16"), spec("bfloat16"), report=False).report is None


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_module_in_another_precision_keeps_its_inputs_and_outputs(precision: str) -> None:
    exact, narrow = build(filled(), spec()), build(filled(), spec(), precision=precision)
    assert narrow.config["precision"] == precision
    assert narrow.inputs == exact.inputs and narrow.outputs == exact.outputs
    assert all(narrow.tensor(n).dtype.name == precision for n in narrow.header["weights"])
    x = {"x": np.random.default_rng(1).standard_normal((5, 8)).astype(np.float32)}
    want, got = exact.run(x)["output_0"], narrow.run(x)["output_0"]
    assert got.dtype == np.float32 and 0 < np.abs(want - got).max() < 0.03 * np.abs(want).max()
    assert 0 < narrow.report.outputs[0].relative < 0.02


def test_float32_from_a_narrow_module() -> None:
    engine = build(filled("bfloat16"), spec("bfloat16"), precision="float32")
    assert engine.inputs[0].dtype == "bfloat16"
    assert all(engine.tensor(n).dtype == np.float32 for n in engine.header["weights"])


def test_given_inputs_are_used_by_the_report() -> None:
    x = np.full((3, 8), 2, np.float32).astype("bfloat16")
    engine = build(filled("bfloat16"), spec("bfloat16"), report={"x": x})
    assert engine.report.inputs == "given"


def test_parameters_without_a_value_are_one_error() -> None:
    with pytest.raises(
        ModuleError, match=r"(?s)4 parameter\(s\) have no value: up.weight, up.bias, down.weight, down.bias"
    ):
        build(Mlp(), spec())
    one, two = (build(Mlp(), spec(), weights_from="random", seed=s) for s in (0, 1))
    x = {"x": np.ones((1, 8), np.float32)}
    assert not np.array_equal(one.run(x)["output_0"], two.run(x)["output_0"])


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"precision": "int8"}, "precision must be one of"),
        ({"weights": "int5"}, "weights must be one of same, int8"),
        ({"device": "cuda"}, "device 'cuda:0'.* is not there"),
        ({"weights_from": "zeros"}, "weights_from must be"),
        ({"dynamic": {"x": {0: "N"}}}, "dynamic is for sources with example inputs"),
    ],
)
def test_words_that_cannot_be_kept(words: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        build(filled(), spec(), **words)


def test_a_module_needs_specs() -> None:
    for inputs in (None, {}, {"x": np.zeros(3)}):
        with pytest.raises(UserError, match="one Spec per parameter"):
            build(filled(), inputs)


def test_sources_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="torch module"):
        build(torch.nn.Linear(2, 2))
    with pytest.raises(UserError, match="a Module, a torch module or a path, not a int"):
        build(3)
    with pytest.raises(CheckpointError, match="hf download HuggingFaceTB/SmolLM2-135M --local-dir SmolLM2-135M"):
        build("HuggingFaceTB/SmolLM2-135M")
    (tmp_path / "net.gguf").write_bytes(b"")
    with pytest.raises(CheckpointError, match="at byte 0: the file ends inside the magic"):
        build(tmp_path / "net.gguf")
    (tmp_path / "x.ingot").write_bytes(b"")
    with pytest.raises(IngotError, match="empty"):
        build(tmp_path / "x.ingot")


def test_an_engine_file_is_opened_and_keeps_its_word(tmp_path: Path) -> None:
    path = tmp_path / "net.ingot"
    build(filled(), spec(), report=False).save(path)
    assert build(path, precision="float32").path == path
    with pytest.raises(UserError, match="precision 'bfloat16' conflicts with .*, which was built with 'float32'"):
        build(path, precision="bfloat16")
    with pytest.raises(UserError, match="has its weights"):
        build(path, weights_from="random")
    with pytest.raises(UserError, match="inputs and dynamic are for Modules"):
        build(path, spec())


def test_debug_switches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = nets.llama(layers=1, dtype="bfloat16")
    build_network(net, nets.weights(net), debug=Debug(dump=tmp_path / "stages", check=True))
    texts = sorted((tmp_path / "stages").iterdir())
    assert texts[0].name == "00-start.txt" and len(texts) == 1 + len(CPU.passes)
    assert "lowered(" in texts[-1].read_text()

    def bad(network: Network, log: Any) -> None:
        network.outputs["logits"] = network.outputs["logits"] * 2.0

    monkeypatch.setattr(simplify, "share", bad)
    with pytest.raises(NetworkError, match="pass 'share' changed output 'logits'"):
        build_network(net, nets.weights(net), debug=Debug(check=True))


def test_missing_and_ill_shaped_weights() -> None:
    net = nets.llama(layers=1)
    weights = nets.weights(net)
    with pytest.raises(RecipeError, match=r"parameter 'model.norm.weight' has no value"):
        build_network(net, {k: v for k, v in weights.items() if k != "model.norm.weight"})
    with pytest.raises(RecipeError, match="should be"):
        build_network(net, {**weights, "model.norm.weight": np.ones(3, np.float32)})


# ------------------------------------------------------------------------------------------------------- a model folder


@pytest.fixture(scope="module")
def pico() -> Any:
    return build(PICO)


def test_a_folder_becomes_an_engine(pico: Any) -> None:
    assert pico.kind == "llm" and pico.config["precision"] == "bfloat16"
    assert {"tokenizer.json", "tokenizer_config.json"} <= set(pico.files())
    assert pico.files()["tokenizer.json"] == (PICO / "tokenizer.json").read_bytes()
    assert [p.name for p in pico.inputs] == [
        "token_ids", "positions", "query_start", "context_len", "block_table", "slot", "logit_rows", "hidden_rows",
    ]  # fmt: skip
    calls = pico.header["programs"]["cpu"]["entries"]["main"]["calls"]
    assert len(calls) == 8 * 8 + 8 and all("kernel" in c for c in calls)


def test_the_report_goes_layer_by_layer(pico: Any) -> None:
    names = [r.name for r in pico.report.layers]
    assert names == ["before the layers", *(f"model.layers.{i}" for i in range(8))]
    assert all(r.relative < 0.05 for r in pico.report.layers) and pico.report.outputs[0].relative < 0.05
    assert pico.report.same_top >= 0.9 and "most likely token" in str(pico.report)
    worse = dataclasses.replace(pico.report, same_top=0.62)
    assert "in 62% of the rows, whose tokens are random: " in str(worse) and "ingot score SOURCE --text" in str(worse)
    assert "random" not in str(dataclasses.replace(worse, inputs="given"))


def test_precisions_of_a_folder(pico: Any) -> None:
    step = accuracy.seeded(_network(pico), 3)
    exact = build(PICO, precision="float32", report=False)
    half = build(PICO, precision="float16", report=False)
    logits = [e.session(kv_blocks=4).run(step)["logits"] for e in (exact, pico, half)]
    scale = float(np.abs(logits[0]).max())
    assert all(a.dtype == np.float32 for a in logits)
    assert np.abs(logits[1] - logits[0]).max() < 0.05 * scale and np.abs(logits[2] - logits[0]).max() < 0.01 * scale


def _network(engine: Any) -> Network:
    return from_json(engine.header["networks"]["main"])


def test_random_weights_of_true_shapes() -> None:
    one, two = (build(PICO, weights_from="random", seed=5, report=False) for _ in range(2))
    assert all(one.tensor(n).tobytes() == two.tensor(n).tobytes() for n in one.header["weights"])


def test_progress_is_told() -> None:
    told: list[tuple[str, int, int]] = []
    build(PICO, progress=lambda *args: told.append(args))
    phases = list(dict.fromkeys(phase for phase, _, _ in told))
    assert phases == ["read", "trace", "lower", "pack", "report"]
    assert all(0 <= done <= total for _, done, total in told)


def test_an_interrupted_build_leaves_no_file(tmp_path: Path) -> None:
    """Ctrl-C at the first weight that is made."""
    code = f"""
import os, signal
from ingot.builder.build import build
def progress(phase, done, total):
    if phase == "pack" and done == 1:
        os.kill(os.getpid(), signal.SIGINT)
build({str(PICO)!r}, progress=progress).save({str(tmp_path / "x.ingot")!r})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode != 0 and "KeyboardInterrupt" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_loaded_engine_runs_as_the_built_one(pico: Any, tmp_path: Path) -> None:
    pico.save(tmp_path / "pico.ingot")
    loaded = load(tmp_path / "pico.ingot")
    step = accuracy.seeded(_network(pico), 4)
    a, b = (e.session(kv_blocks=4).run(step)["logits"] for e in (pico, loaded))
    np.testing.assert_array_equal(a, b)


def test_the_same_bytes_from_any_process(tmp_path: Path) -> None:
    """Neither the order of Python's hashes nor the machine's instruction set reaches the file."""
    code = "import sys; from ingot.builder.build import build; build(sys.argv[1], report=False).save(sys.argv[2])"
    files = []
    for i, level in enumerate(("portable", "")):
        path = tmp_path / f"{i}.ingot"
        environment = {**os.environ, "PYTHONHASHSEED": str(i + 1), **({"INGOT_ISA": level} if level else {})}
        subprocess.run([sys.executable, "-c", code, str(PICO), str(path)], check=True, timeout=120, env=environment)
        files.append(path.read_bytes())
    assert files[0] == files[1]
