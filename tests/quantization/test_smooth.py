"""SmoothQuant: floats keep their bits, int8 is better where channels are large, and only the text is seen."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import ingot
from ingot import nn
from ingot.builder.build import build
from ingot.builder.compile import Beside
from ingot.builder.layers import BLOCK, network_of
from ingot.builder.network import build_network
from ingot.cli.main import main
from ingot.dims import Dim
from ingot.errors import FileError, UserError
from ingot.ir import F, Network, Spec, interpret
from ingot.ir.evaluation import evaluate
from ingot.ir.recipe import Recipe
from ingot.ir.verify import verify
from ingot.ir.weight_format import weight_format
from ingot.nn import trace
from ingot.passes.rewrite import Log
from ingot.passes.smooth import LIMIT, places, smoothed
from ingot.quantization.smooth import CHARACTERS, choose
from tests import nets
from tests.kept import PICO

Array = np.ndarray[Any, Any]
W8A8 = weight_format("int8", "int8")
TEXT = "\n".join(Path(module.__file__ or "").read_text() for module in (nets, json))[:4000]


def exponents_for(network: Network) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {p.name: rng.integers(-6, 7, p.rows.shape[-1]).astype(np.int8) for p in places(network, [])}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_floats_keep_their_bits(dtype: str) -> None:
    """The norms of a llama and its gated products are found, and factors of powers of two change no float."""
    net = nets.llama(dtype=dtype)
    weights, feeds = nets.weights(net), nets.step()
    found = [place.name for place in places(net, [])]
    assert len(found) == 6 and found[2].endswith("up_proj.smooth"), found
    new, values = smoothed(net, exponents_for(net))
    verify(new)
    assert {v.name for v in new.parameters} == {v.name for v in net.parameters} | values.keys()
    plain, other = (
        build_network(n, w).session(threads=1, kv_blocks=8).run(dict(feeds))["logits"]
        for n, w in ((net, weights), (new, Beside(weights, values)))
    )
    assert plain.tobytes() == other.tobytes()
    told = interpret(new, feeds, {**weights, **values}, states=nets.caches(new))["logits"]
    assert told.tobytes() == interpret(net, feeds, weights, states=nets.caches(net))["logits"].tobytes()


def test_integers_are_of_the_smoothed_weights() -> None:
    """Stored bytes follow from the recipes, no product is left of parameters alone, and a refit keeps the factors."""
    net = nets.llama()
    new, values = smoothed(net, exponents_for(net))
    weights = {**nets.weights(net), **values}
    engine = build_network(new, weights, format=W8A8)
    for name, entry in engine.header["weights"].items():
        if entry["recipe"] is not None:
            assert evaluate(Recipe.from_json(entry["recipe"]), weights).tobytes() == engine.tensor(name).tobytes(), name
    assert values.keys() <= engine.header["weights"].keys()
    name = "model.layers.0.self_attn.q_proj.weight"
    other = {**weights, name: weights[name] * 2 + 1}
    again, fresh = engine.refit({name: other[name]}), build_network(new, other, format=W8A8)
    for tensor in fresh.header["weights"]:
        assert again.tensor(tensor).tobytes() == fresh.tensor(tensor).tobytes(), tensor
    assert {v.name for v in network_of(engine).parameters} == {v.name for v in new.parameters}


class Block(nn.Module):
    """A norm with a bias before a product [inputs, outputs] and linear layers; a gate of linear layers with biases."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(24)
        self.gate, self.up, self.down = nn.Linear(24, 40), nn.Linear(24, 40), nn.Linear(40, 24)
        self.turned = nn.Parameter(shape=(24, 8), dtype="float32")
        self.tied = nn.Parameter(shape=(24, 24), dtype="float32")
        self.alone = nn.LayerNorm(24)

    def forward(self, x: Any) -> Any:
        y = self.norm(x)
        z = self.down(F.mul(F.gelu(self.gate(y)), self.up(y)))
        both = F.matmul(F.matmul(self.alone(z), self.tied), self.tied)
        return F.concat([both, F.matmul(y, self.turned)], dim=1)


def test_biases_and_turned_weights() -> None:
    module = Block()
    net = trace(module, {"x": Spec((Dim("N", 0, None, 100), 24), "float32")})
    log: Log = []
    assert [p.name for p in places(net, log)] == ["norm.smooth", "up.smooth"]
    assert any("tied is read elsewhere too" in event.verdict for event in log)
    rng = np.random.default_rng(0)
    weights = {v.name: rng.standard_normal(v.spec.evaluate({})).astype(np.float32) for v in net.parameters}
    new, values = smoothed(verify(net), exponents_for(net))
    x = {"x": rng.standard_normal((5, 24)).astype(np.float32)}
    before, after = (build_network(n, w).run(x) for n, w in ((net, weights), (new, {**weights, **values})))
    assert before["output_0"].tobytes() == after["output_0"].tobytes()


def test_factors_are_those_of_the_paper() -> None:
    """largest ** alpha / most ** (1 - alpha), to the next power of two and about 1; channels of nothing stay."""
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((64, 48)) * 2.0 ** rng.integers(-5, 6, 48)).astype(np.float32)
    weights = [rng.standard_normal((n, 48)).astype(np.float32) for n in (32, 7)]
    rows[:, 3], weights[0][:, 4], weights[1][:, 4] = 0, 0, 0
    largest, most = np.abs(rows).max(0), np.abs(np.concatenate(weights)).max(0)
    for alpha in (0.25, 0.5, 1.0):
        found = choose(rows, largest, weights, alpha).exponents
        with np.errstate(divide="ignore"):
            wanted = np.log2(largest.astype(np.float64) ** alpha / most.astype(np.float64) ** (1 - alpha))
        held = ~np.isin(np.arange(48), (3, 4))
        np.testing.assert_allclose(found[held], (wanted - np.median(wanted[held]))[held], atol=0.501)
        assert found[3] == found[4] == 0 and np.abs(found).max() <= LIMIT
    assert not choose(rows, largest, weights, 0.0).exponents.any()
    best = choose(rows, largest, weights)
    assert best.alpha > 0 and best.exponents.any(), "these rows gain by it"
    even = rng.standard_normal((64, 48)).astype(np.float32)
    assert choose(even, np.abs(even).max(0), [np.eye(48, dtype=np.float32)]).alpha == 0, "and these lose"


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """pico-python with a few large channels behind every norm: the same model, to the last bit of its floats. Without
    heldout.txt."""
    folder = tmp_path_factory.mktemp("models") / "uneven"
    shutil.copytree(PICO, folder, ignore=shutil.ignore_patterns("*.txt", "*.md"))
    weights = load_file(PICO / "model.safetensors")
    large = np.ones(len(weights["model.norm.weight"]), ml_dtypes.bfloat16)
    large[[3, 50, 117, 200]] = 64
    for name, weight in weights.items():
        if name.endswith("layernorm.weight"):
            weights[name] = weight * large
        elif name.split(".")[-2] in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"):
            weights[name] = weight / large
    save_file(weights, folder / "model.safetensors")
    return folder


def test_large_channels_cost_int8_little(uneven: Path) -> None:
    """Measured: 0.21 of the logits' size without, 0.018 with, as much as of the even model. In nats per token on
    heldout.txt +0.1903 and +0.0018."""
    plain = build(uneven, precision="float32", weights="int8", activations="int8").report
    engine = ingot.quantize(uneven, [TEXT], precision="float32")
    assert engine.report is not None and plain is not None
    assert plain.outputs[0].relative > 0.1 and engine.report.outputs[0].relative < 0.04
    assert (engine.config["weights"], engine.config["activations"]) == ("int8", "int8")
    facts = engine.config["smooth"]
    assert 512 <= facts["tokens"] <= 1024 and len(facts["alpha"]) == 24
    with ingot.LLM(engine, threads=1) as llm:
        assert llm.generate("import", max_tokens=4).token_ids
    factors = engine.tensor("model.layers.0.input_layernorm.smooth").astype(np.float32)
    assert set(np.argsort(factors)[-4:]) == {3, 50, 117, 200}


def test_only_the_text_is_seen(uneven: Path, tmp_path: Path) -> None:
    """Two folders, of which one has heldout.txt, give equal engines, by file or by strings; another text another."""
    other = tmp_path / "uneven"
    shutil.copytree(uneven, other)
    shutil.copy(PICO / "heldout.txt", other)
    (tmp_path / "calib.txt").write_text(TEXT)
    words: dict[str, Any] = {"precision": "float32", "report": False, "smooth": 0.5}
    one = ingot.quantize(uneven, [TEXT], **words)
    two = ingot.quantize(other, tmp_path / "calib.txt", **words)
    three = ingot.quantize(other, [TEXT[1000:2000]], **words)
    same = [{name: e.tensor(name).tobytes() for name in e.header["weights"]} for e in (one, two, three)]
    assert same[0] == same[1] != same[2]
    lines = {line.strip() for line in (PICO / "heldout.txt").read_text().splitlines() if len(line.strip()) > 40}
    assert not lines & {line.strip() for line in TEXT.splitlines()}


def test_only_tokens_that_are_run_are_counted(uneven: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each piece no more than there is memory for."""
    monkeypatch.setattr("ingot.quantization.smooth.TAPPED", 1)
    engine = ingot.quantize(uneven, [TEXT], smooth=0.5, report=False)
    pieces = -(-len(TEXT) // CHARACTERS)
    assert engine.config["smooth"]["tokens"] == pieces * BLOCK


def test_a_short_text_is_said(uneven: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = ingot.quantize(uneven, ["import os"], smooth=0.5, report=False)
    assert engine.config["smooth"]["tokens"] < 10
    assert "follows from only" in caplog.text and "token(s) of text" in caplog.text


def test_command_line(uneven: Path, tmp_path: Path, capsys: Any) -> None:
    text, to = tmp_path / "calib.txt", tmp_path / "out.ingot"
    text.write_text(TEXT)
    words = ["--activations", "int8", "--data", str(text), "--smooth", "0.5", "--kv", "int8"]
    assert main(["build", str(uneven), "-o", str(to), "--no-report", *words]) == 0
    engine = ingot.load(to)
    assert engine.config["kv_cache"] == "int8" and set(engine.config["smooth"]["alpha"].values()) == {0.5}
    capsys.readouterr()
    for more, told in ((["--budget", "0.1"], "budget is for nets"), (["--smooth", "2"], "from 0 to 1")):
        with pytest.raises(SystemExit) if "--smooth" in more else pytest.MonkeyPatch.context():
            assert main(["build", str(uneven), "-o", str(to), *words, *more]) == 2
        assert told in capsys.readouterr().err


def test_what_is_refused(uneven: Path, tmp_path: Path) -> None:
    (tmp_path / "bytes.txt").write_bytes(b"good\xff")
    (tmp_path / "empty.txt").write_text(" \n")
    with (tmp_path / "large.txt").open("wb") as large:
        large.truncate(1 << 40)  # nothing of it is read
    os.mkfifo(tmp_path / "pipe.txt")
    for data, error, told in (
        (tmp_path / "calib.npz", UserError, "with a text, not with arrays"), (7, UserError, "not a int"),
        (tmp_path / "bytes.txt", FileError, r"not UTF-8 text \(byte 4\)"), ([b"x"], UserError, "number 0 of data"),
        (tmp_path / "none.txt", FileError, "cannot be opened"), (tmp_path / "empty.txt", UserError, "no text"),
        (tmp_path / "large.txt", FileError, "such a file has at most 268,435,456"), ("\0", FileError, "null byte"),
        (tmp_path / "pipe.txt", FileError, "not a regular file"), (tmp_path, FileError, "not a regular file"),
    ):  # fmt: skip
        with pytest.raises(error, match=told):
            ingot.quantize(uneven, data)
    with pytest.raises(UserError, match="smooth must be a number from 0 to 1, not 1.5"):
        ingot.quantize(uneven, [TEXT], smooth=1.5)
    of_nets: list[dict[str, Any]] = [
        {"keep": "first"}, {"errors": False}, {"bias_correction": False}, {"samples": 8}, {"batches": None},
    ]  # fmt: skip
    for words in of_nets:
        with pytest.raises(UserError, match=f"{next(iter(words))} is for nets"):
            ingot.quantize(uneven, [TEXT], **words)
    with pytest.raises(UserError, match="^budget, keep are for nets, not for a language model: leave them out$"):
        ingot.quantize(uneven, [TEXT], budget=0.1, keep="first")
    with pytest.raises(UserError, match="a file of the report was asked for, and no report"):
        ingot.quantize(uneven, [TEXT], report=False, report_file=str(tmp_path / "q.svg"))
    module = nn.Linear(8, 8)
    for parameter in module.parameters():
        parameter.value = np.ones(parameter.spec.evaluate({}), np.float32)
    with pytest.raises(UserError, match="smooth and kv are for language models"):
        ingot.quantize(module, [np.ones((2, 8), np.float32)], {"x": Spec((2, 8), "float32")}, smooth=0.5)
    with pytest.raises(UserError, match="from its folder, with a text as data"):
        ingot.quantize(build(PICO, report=False), [TEXT])
