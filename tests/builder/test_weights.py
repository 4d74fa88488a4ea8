"""`weights=`: integers and scales in the place of floats, from the recipe to the tokens, at every level."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ingot import _native, models, nn
from ingot.builder.build import build
from ingot.builder.compile import decisions
from ingot.builder.diff import diff
from ingot.builder.layers import computed_network, network_of
from ingot.builder.network import build_network
from ingot.builder.outline import outline
from ingot.builder.refit import shown_by
from ingot.builder.report import seeded
from ingot.builder.switches import Debug
from ingot.dims import Dim
from ingot.engine import file
from ingot.engine.session import Engine, load
from ingot.errors import EngineFileError, ProgramError, RecipeError, UserError
from ingot.functional import cond
from ingot.ir import F, Network, Spec, interpret
from ingot.ir.evaluation import evaluate
from ingot.ir.recipe import Recipe
from ingot.ir.weight_format import FORMATS, INT8, WeightFormat, format_of, weight_format
from ingot.nn import trace
from ingot.passes.quantize import quantized
from ingot.words import WEIGHTS
from tests import nets
from tests.kept import PICO
from tests.models.model_zoo import EngineRunner, Runner, make

Array = np.ndarray[Any, Any]
HELDOUT = PICO / "heldout.txt"
# Nats per token in float32, of transformers and of ours: of the first characters of the held-out text, and of all.
REFERENCE = {16_000: 1.9740, 152_812: 1.9522}
BEGINNING, WHOLE = REFERENCE
INTEGERS = [f for f in FORMATS.values() if f.dtype is not None and (f.group == 32 or not f.zeros)]


@pytest.fixture(scope="module")
def pico8() -> Engine:
    """pico-python with weights in int8, computed in its own bfloat16."""
    return build(PICO, weights="int8", report=False)


def weight_bytes(engine: Engine) -> int:
    files = set(engine.header["files"].values())
    return sum(engine.tensor(name).nbytes for name in engine.header["weights"] if name not in files)


def test_words() -> None:
    narrow = ingot.dtypes.float16
    assert weight_format("int4-g64") == WeightFormat("int4-g64", ingot.dtypes.int4, 8, 64, scales=narrow)
    asymmetric = WeightFormat("int4-g32-asym", ingot.dtypes.int4, 8, 32, zeros=True, scales=narrow)
    assert weight_format("int4-g32-asym") == asymmetric
    assert tuple(FORMATS) == WEIGHTS and weight_format(None).word == "same"
    assert weight_format("fp8", "fp8") == WeightFormat("fp8", ingot.dtypes.float8_e4m3fn, 448, activations="fp8")
    for bad in ("int3", "int8-g32", "fp4", "INT8"):
        with pytest.raises(UserError, match="weights must be one of same, int8, int4-g32, .*-asym, fp8, not"):
            weight_format(bad)
        with pytest.raises(UserError, match="weights must be one of"):
            build(PICO, weights=bad)


# ------------------------------------------------------------------------------------------------- pico-python


def test_half_the_bytes_with_the_tied_table(pico8: Engine) -> None:
    """Measured: 7,463,552 of 14,688,896, 0.508. No matrix is stored as floats, nor twice."""
    floats = build(PICO, precision="bfloat16", report=False)
    assert weight_bytes(pico8) <= 0.53 * weight_bytes(floats)
    stored = {name: pico8.tensor(name) for name in pico8.header["weights"]}
    tables = [name for name in stored if "embed_tokens" in name and stored[name].ndim > 2]
    assert tables == ["model.embed_tokens.weight.int8.packed"] and stored[tables[0]].dtype == np.int8
    assert all(array.dtype == np.int8 or array.ndim < 3 for array in stored.values())
    assert pico8.config["weights"] == "int8" and pico8.config["precision"] == "bfloat16"
    assert not any("host" in call for call in pico8.header["programs"]["cpu"]["entries"]["main"]["calls"])


SCORES = [
    ("int8", "bfloat16", 0.002), ("int8", "float16", 0.002), ("int4-g32", "bfloat16", 0.03),
    ("int4-g128", "float32", 0.035), ("int8", "float32", 0.002), ("int4-g32-asym", "float32", 0.02),
    ("int4-g128-asym", "float32", 0.035),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("weights", "precision", "within"), SCORES)
def test_score(weights: str, precision: str, within: float) -> None:
    """Measured: int8 +0.0007 in bfloat16, +0.0006 in float32; int4-g32 +0.0211, int4-g128 +0.0275; with zero
    points +0.0173 and +0.0320. No calibration."""
    check_score(weights, precision, WHOLE, within)


@pytest.mark.parametrize(("weights", "precision", "within"), [
    SCORES[0], pytest.param(*SCORES[1], marks=pytest.mark.slow), SCORES[2], ("int4-g128", "float32", 0.045),
])  # fmt: skip
def test_score_of_the_beginning(weights: str, precision: str, within: float) -> None:
    """Measured: int8 +0.0006, int4-g32 +0.0239, int4-g128 +0.0394."""
    check_score(weights, precision, BEGINNING, within)


def check_score(weights: str, precision: str, characters: int, within: float) -> None:
    found = score(characters, weights=weights, precision=precision)
    assert found == pytest.approx(REFERENCE[characters], abs=within)


@functools.cache
def score(characters: int, **words: str) -> float:
    """Nats per token of the beginning of the held-out text."""
    with ingot.LLM(PICO, **words, threads=1, prefix_cache=False) as llm:
        return llm.score(HELDOUT.read_text()[:characters], window=512).nats_per_token


@pytest.mark.parametrize(("precision", "weights"), [
    ("bfloat16", "int8"), pytest.param("float32", "int8", marks=pytest.mark.slow), ("float32", "int4-g128"),
    *(pytest.param("float32", other, marks=pytest.mark.slow) for other in ("int4-g32", "int4-g128-asym")),
])  # fmt: skip
def test_score_with_activations(precision: str, weights: str) -> None:
    """Measured: +0.0023 in bfloat16, +0.0018 in float32; the goal is 0.01."""
    found = score(BEGINNING, weights=weights, activations="int8", precision=precision)
    assert found == pytest.approx(score(BEGINNING, weights=weights, precision=precision), abs=0.01)


@pytest.mark.parametrize(("weights", "each", "zeros"), [("int8", 4, 0), ("int4-g128", 4, 0), ("int4-g64-asym", 6, 4)])
def test_rows_of_int8_are_what_runs(weights: str, each: int, zeros: int) -> None:
    """A layer has products of qkv, o, gate with up, and down, all of rows of int8; no call stays with the host. Zero
    points have small ones of floats; then q, k and v take theirs along and stay three.
    """
    engine = build(PICO, weights=weights, activations="int8", report=False)
    assert engine.config["activations"] == "int8"
    program = engine.header["programs"]["cpu"]["entries"]["main"]
    types = [b.get("dtype") for b in program["buffers"]]
    products = [call for call in program["calls"] if call.get("kernel") == "matmul_packed"]
    assert products and not any("host" in call for call in program["calls"])

    def dtype(buffer: int) -> str:
        while types[buffer] is None:
            buffer = program["buffers"][buffer]["of"]
        return str(types[buffer])

    read = [dtype(call["in"][0]) for call in products]
    assert (read.count("int8"), len(read) - read.count("int8")) == (8 * each + 1, 8 * zeros)


def test_words_for_rows_of_int8_are_checked() -> None:
    for words, told in (
        ({"activations": "int8"}, "give both"),
        ({"activations": "int8"}, r"ingot\.quantize\(source, data=…\) with samples of its inputs"),
        ({"weights": "same", "activations": "int8"}, "give both"),
        ({"activations": "int8"}, "integers already is built as it is, without activations"),
        ({"weights": "int8", "activations": "int4"}, "activations must be one of same, int8, fp8, not"),
        ({"weights": "fp8", "activations": "int8"}, "the build makes int8 or int4, not 'fp8'"),
        ({"weights": "int8", "activations": "fp8"}, "with weights of fp8, not 'int8'"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=told):
            build(PICO, **words, report=False)
    with pytest.raises(UserError, match="activations 'int8' conflicts with"):
        ingot.LLM(build(PICO, weights="int8", report=False), weights="int8", activations="int8")
    report = build(PICO, weights="int8", activations="int8").report
    assert report is not None and max(row.relative for row in report.outputs) < 0.2


def test_float8(tmp_path: Path) -> None:
    """The file holds bytes of 8 bits and scales, each the nearest float8; the table is int8; what is saved is what was
    built. Rows of float8 run on the CPU too."""
    floats = build(PICO, report=False)
    made = build(PICO, weights="fp8")
    kinds = [made.tensor(name).dtype.name for name in made.header["weights"]]
    assert (kinds.count("float8_e4m3fn"), kinds.count("int8")) == (8 * 4, 1) and made.config["weights"] == "fp8"
    assert made.report is not None and max(row.relative for row in made.report.outputs) < 0.2
    made.save(tmp_path / "fp8.ingot")
    floats.save(tmp_path / "floats.ingot")
    assert (tmp_path / "fp8.ingot").stat().st_size < 0.6 * (tmp_path / "floats.ingot").stat().st_size
    rows = build(PICO, weights="fp8", activations="fp8", report=False)
    text = HELDOUT.read_text()[:1500]
    scores = []
    for engine in (floats, made, ingot.load(tmp_path / "fp8.ingot"), rows):
        with ingot.LLM(engine, threads=1) as llm:
            scores.append(llm.score(text, window=128).nats_per_token)
    assert scores[1] == scores[2] != scores[3]
    assert scores[1:] == pytest.approx([scores[0]] * 3, abs=0.05)
    assert ingot.load(tmp_path / "fp8.ingot").config["weights"] == "fp8" and rows.config["activations"] == "fp8"


LEVEL = """
import json, sys
import numpy as np
import ingot
from ingot import _native
from tests.models.model_zoo import EngineRunner

folder, weights, precision = sys.argv[1:]
ids = np.random.default_rng(0).integers(0, 4096, 200)
engine = ingot.build(folder, precision=precision, weights=weights, report=False)
run = lambda chunks: EngineRunner(engine, blocks=16).run(ids, chunks)
whole = run([200])
same = [bool(np.array_equal(run(c), whole)) for c in ([1] * 20 + [2, 5, 16, 157], [5] * 40, [16] * 12 + [8], [199, 1])]
text = open(f"{folder}/heldout.txt").read()[:6000]
with ingot.LLM(engine, threads=2, prefix_cache=False) as llm:
    nats = llm.score(text, window=256).nats_per_token
print(json.dumps({"level": _native.level(), "same": same, "nats": nats}))
"""


@pytest.fixture(scope="module")
def wide() -> float:
    """Nats per token of the text of LEVEL in float32, at this machine's own level."""
    with ingot.LLM(PICO, precision="float32", threads=2, prefix_cache=False) as llm:
        return llm.score(HELDOUT.read_text()[:6000], window=256).nats_per_token


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("weights", "precision", "level"),
    [
        *[("int8", "bfloat16", level) for level in (_native.levels()[0], _native.levels()[-1])],
        *[pytest.param("int8", "bfloat16", level, marks=pytest.mark.slow) for level in _native.levels()[1:-1]],
        pytest.param("int8", "float32", _native.levels()[-1], marks=pytest.mark.slow),
        ("int4-g32", "bfloat16", _native.levels()[-1]),
    ],
)
def test_every_level_and_any_company(weights: str, precision: str, level: str, wide: float) -> None:
    """Logits with ==: 200 rows at once and in chunks of 1, 2, 5, 16 and others; and the score by native products."""
    command = [sys.executable, "-c", LEVEL, str(PICO), weights, precision]
    environment = {**os.environ, "INGOT_ISA": level}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=PICO.parents[1])
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["level"] == level and found["same"] == [True] * 4
    assert abs(found["nats"] - wide) <= (0.005 if weights == "int8" else 0.06)  # few tokens


def test_an_engine_file_keeps_its_format(pico8: Engine, tmp_path: Path) -> None:
    path = tmp_path / "pico8.ingot"
    pico8.save(path)
    again = load(path)
    assert again.config["weights"] == "int8"
    assert build(path, weights="int8").config == again.config
    with pytest.raises(UserError, match="weights 'int4-g32' conflicts with .* built with 'int8'"):
        build(path, weights="int4-g32")
    with ingot.LLM(path, weights="int8", threads=1) as llm:
        assert llm.generate("import", max_tokens=4).token_ids
    with pytest.raises(UserError, match="weights 'same' conflicts with .* built with 'int8'"):
        ingot.LLM(path, weights="same", threads=1)
    assert build(path.parent / "pico8.ingot").tensor("model.embed_tokens.weight.int8.packed").dtype == np.int8


def test_the_outline_has_the_bytes_of_the_engine(pico8: Engine) -> None:
    engine, _ = outline(PICO, weights="int8")
    assert weight_bytes(engine) == weight_bytes(pico8) and engine.config["weights"] == "int8"


def test_recipes_give_the_stored_bytes(pico8: Engine) -> None:
    weights = models.load(PICO).weights
    for name, entry in pico8.header["weights"].items():
        if entry["recipe"] is not None:
            recipe = Recipe.from_json(entry["recipe"])
            assert evaluate(recipe, weights).tobytes() == pico8.tensor(name).tobytes(), name


def test_the_report_measures_what_is_stored() -> None:
    """In float32 too: what the weights lost shows, layer by layer. int4 loses more."""
    lost = {}
    for weights in ("int8", "int4-g32"):
        report = build(PICO, precision="float32", weights=weights).report
        assert len(report.layers) == 9 and not report.note
        lost[weights] = report.outputs[0].relative
    assert 0.001 < lost["int8"] < 0.03 and 5 * lost["int8"] < lost["int4-g32"] < 0.5
    same = build(PICO, precision="float32").report
    assert "nothing is narrower" in same.note


def test_stages_are_checked_against_the_quantised_network(tmp_path: Path) -> None:
    """The debug switches see dequantize from the start, and no step moves the numbers."""
    net = nets.llama()
    build_network(net, nets.weights(net), format=INT8, debug=Debug(tmp_path, check=True))
    stages = [path.read_text() for path in sorted(tmp_path.iterdir())]
    first, last = stages[0], stages[-1]
    assert "dequantize(" in first and "lowered(" in last


# ------------------------------------------------------------------------------------------------- any network


def ran(engine: Engine, feeds: Mapping[str, Array]) -> dict[str, Array]:
    return engine.session(threads=1, kv_blocks=8).run(dict(feeds))


@pytest.mark.parametrize("format", INTEGERS, ids=lambda f: f.word)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("tied", [False, True])
def test_engine_is_the_interpreted_network(format: WeightFormat, precision: str, tied: bool) -> None:
    """A small llama whose sizes are no multiples of anything; against the quantised network's references."""
    net = nets.llama(tied=tied, dtype=precision)
    weights = nets.weights(net)
    engine = build_network(net, weights, format=format)
    network = quantized(net, format)
    stored = {v.name: evaluate(v.recipe, weights) if v.recipe else weights[v.name] for v in network.parameters}
    feeds = nets.step()
    want = interpret(network, feeds, stored, states=nets.caches(network))["logits"]
    found = ran(engine, feeds)["logits"]
    limit = 2e-5 if precision == "float32" else 0.03
    np.testing.assert_allclose(found[0], want[0], atol=limit * np.abs(want).max(), rtol=0)


class Mlp(nn.Module):
    """Linear layers as torch has them, and one as GPT-2 has it."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(24, 40)
        self.turned = nn.Parameter(shape=(40, 24), dtype="float32")

    def forward(self, x: Any) -> Any:
        return x + F.matmul(F.relu(self.up(x)), self.turned)


def filled(module: nn.Module) -> nn.Module:
    rng = np.random.default_rng(0)
    for parameter in module.parameters():
        parameter.value = rng.standard_normal(parameter.spec.evaluate({})).astype(parameter.dtype.numpy)
    return module


class Layers(nn.Module):
    """Three matrices, and two that are one product."""

    def __init__(self) -> None:
        super().__init__()
        self.plain, self.small, self.large = (nn.Linear(64, 64, bias=False) for _ in range(3))
        self.gate, self.up = (nn.Linear(64, 64, bias=False) for _ in range(2))

    def forward(self, x: Any) -> Any:
        y = self.large(self.small(self.plain(x)))
        return F.silu(self.gate(y)) * self.up(y)


def test_scales_that_float16_does_not_hold(tmp_path: Path) -> None:
    """Weights of numbers too small or too large keep float32 scales, and what is packed with such: `gate` with `up`.
    The file says which, so that every reader finds the integers that are stored."""
    module = filled(Layers())
    for name, by in (("small", 1e-9), ("large", 1e7), ("gate", 1e-4), ("up", 1e-9)):
        getattr(module, name).weight.value *= np.float32(by)
    inputs = {"x": Spec((Dim("N", 0, None, 100), 64), "float32")}
    build(module, inputs=inputs, weights="int4-g32", report=False).save(tmp_path / "scales.ingot")
    engine = load(tmp_path / "scales.ingot")
    kept = ["gate.weight", "large.weight", "small.weight", "up.weight"]
    assert engine.config["float32_scales"] == kept and format_of(engine.config).wide == frozenset(kept)
    kinds = {name: engine.tensor(name).dtype.name for name in engine.header["weights"] if ".scales" in name}
    assert sorted(kinds.values()) == ["float16", *["float32"] * 3] and len(kinds) == 4
    network = computed_network(engine)
    weights = {name: parameter.value for name, parameter in module.named_parameters()}
    stored = {v.name: evaluate(v.recipe, weights) for v in network.parameters}
    feeds = {"x": np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)}
    (want,), (found,) = (list(run.values()) for run in (interpret(network, feeds, stored), engine.run(feeds)))
    np.testing.assert_allclose(found, want, rtol=1e-3, atol=1e-4 * np.abs(want).max())
    assert np.abs(want).max() > 0 and np.isfinite(want).all()
    shown = shown_by(engine, network_of(engine))
    assert all(not shown.derivation(v.recipe).lacking for v in network.parameters)
    engine.refit({"small.weight": weights["small.weight"] * 2})
    with pytest.raises(RecipeError, match="float16 does not hold scales of these weights, .*build the engine"):
        engine.refit({"plain.weight": weights["small.weight"]})


@pytest.mark.parametrize("stored", ["bfloat16", "int16", "float32", "turned"])
def test_a_tensor_is_what_the_file_says(stored: str, tmp_path: Path) -> None:
    """Scales of another type or shape than the program says: every target refuses them, and none takes bits of one type
    for numbers of another."""
    pytest.importorskip("torch")
    path = tmp_path / "scales.ingot"
    build(filled(Layers()), inputs={"x": Spec((2, 64), "float32")}, weights="int4-g32", report=False).save(path)
    good = load(path)
    tensors = {name: good.tensor(name) for name in good.header["weights"]}
    name, scales = next((n, a) for n, a in tensors.items() if a.dtype == np.float16)
    changed = scales.swapaxes(1, 2) if stored == "turned" else scales.astype(ingot.dtypes.get(stored).numpy)
    weights = {**good.header["weights"], name: {**good.header["weights"][name], "hash": file.digests(changed)}}
    file.write(path, {**good.header, "weights": weights}, {**tensors, name: changed})
    engine, x = load(path), np.ones((2, 64), np.float32)
    assert (engine.tensor(name).dtype, engine.tensor(name).shape) == (changed.dtype, changed.shape)
    with pytest.raises(ProgramError, match="has another dtype or shape in the file"):
        engine.run(x)
    for use in (lambda: engine.on("torch:cpu").run(x), lambda: engine.refit({"plain.weight": np.ones((64, 64), "f4")})):
        with pytest.raises(RecipeError, match=rf"tensor {name} is stored as .*, and its recipe gives float16"):
            use()


def test_scales_in_files_from_before_float16() -> None:
    assert format_of({"weights": "int4-g32"}) == replace(FORMATS["int4-g32"], scales=ingot.dtypes.float32)
    assert format_of({"weights": "int4-g32", "float32_scales": []}) == FORMATS["int4-g32"]
    assert format_of({"weights": "int8", "float32_scales": 3}) == FORMATS["int8"]
    for bad in (3, "w", {"w": 1}, [1]):
        with pytest.raises(EngineFileError, match="config float32_scales must be a list of parameters"):
            format_of({"weights": "int4-g32", "float32_scales": bad})


SPECS = {"x": Spec((Dim("N", 0, None, 100), 24), "float32")}


@pytest.mark.parametrize("weights", ["int8", "int4-g32"])
def test_module(weights: str) -> None:
    """A scale for each output, also where the weight is [inputs, outputs]; where groups do not fit it is int8."""
    module = filled(Mlp())
    engine = build(module, SPECS, weights=weights, report=False)
    assert engine.config["weights"] == weights
    assert {n: a.dtype for n in engine.header["weights"] if (a := engine.tensor(n)).ndim > 2} == {
        "up.weight.int8.packed": np.int8, "turned.transposed.int8.packed": np.int8
    }  # fmt: skip
    x = np.random.default_rng(1).standard_normal((5, 24)).astype(np.float32)

    def rounded(w: Array) -> Array:
        scale = np.abs(w).max(1, keepdims=True) / 127
        return np.asarray(np.rint(w / scale) * scale)

    values = {name: p.value for name, p in module.named_parameters()}
    hidden = np.maximum(x @ rounded(values["up.weight"]).T + values["up.bias"], 0)
    want = x + hidden @ rounded(values["turned"].T).T
    np.testing.assert_allclose(engine.run({"x": x})["output_0"], want, rtol=1e-5, atol=1e-4)
    engine.run({"x": x[:0]})


class Net(nn.Module):
    def __init__(self, head: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, (3, 3))
        self.head = nn.Linear(8, 5) if head else None

    def forward(self, x: Any) -> Any:
        y = F.reduce_mean(self.conv(x), (2, 3))
        return y if self.head is None else self.head(y)


def test_what_stays_as_it_is_is_said() -> None:
    specs = {"x": Spec((1, 3, 6, 6), "float32")}
    engine = build(filled(Net(head=True)), specs, weights="int8", report=False)
    assert any("conv.weight stays float32: conv reads it" in line for line in engine.log), engine.log
    with pytest.raises(UserError, match=r"stored as int8 \(conv.weight stays.*ingot\.quantize\(source, data=…\)"):
        build(filled(Net(head=False)), specs, weights="int8", report=False)


def test_groups_that_do_not_divide_the_inputs_are_said() -> None:
    """Such a matrix is int8, however it lies, and the build says which and why; tables are int8 in any case."""
    specs = {"x": Spec((2, 100), "float32")}
    net = filled(nn.Sequential(nn.Linear(100, 64), nn.Linear(64, 100), nn.Linear(100, 8)))
    engine = build(net, specs, weights="int4-g32", report=False)
    (remark,) = engine.summary.remarks
    assert (remark.kind, remark.where, remark.calls) == ("weights as int8", ("0.weight", "2.weight"), 2)
    assert remark.why == "not int4-g32: groups of 32 do not divide its 100 inputs"
    said = "0.weight becomes int8, not int4-g32: groups of 32 do not divide its 100 inputs"
    assert any(said in line for line in engine.log)
    log = decisions(network_of(engine), engine.config)
    assert any(said == event.verdict for event in log)
    assert build(net, specs, weights="int8", report=False).summary.remarks == ()
    assert build(PICO, weights="int4-g32", report=False).summary.remarks == ()

    network = Network("net")
    x, w = network.input("x", Spec((2, 64), "float32")), network.parameter("w", Spec((64, 100), "float32"))
    network.output("y", F.matmul(F.matmul(x, w), w, transpose_b=True))
    weights = {"w": np.ones((64, 100), np.float32)}
    (remark,) = build_network(network, weights, format=weight_format("int4-g64"), report=False).summary.remarks
    assert remark.where == ("w",) and "groups of 64 do not divide its 100 inputs" in remark.why


@pytest.mark.parametrize("word", ["int8", "int4-g32", "int4-g32-asym", "fp8"])
@pytest.mark.parametrize("inside", [False, True], ids=["", "in a branch"])
def test_products_around_a_softmax(word: str, inside: bool) -> None:
    """Weights are no keys and values of an attention; and there need be no other weights than these."""
    net = Network("net")
    x = net.input("x", Spec(("N", 3, 64), "float32"))
    w, v = (net.parameter(name, Spec((64, 64), "float32")) for name in "wv")

    def mixed(x: Any, w: Any, v: Any) -> Any:
        return F.matmul(F.softmax(F.matmul(x, w, transpose_b=True)), v, transpose_b=True)

    positive = F.reduce_sum(x, (0, 1, 2)) > 0
    net.output("y", cond(positive, mixed, lambda x, w, v: x, [x, w, v]) if inside else mixed(x, w, v))
    weights = {name: 0.5 * np.eye(64, dtype=np.float32) for name in "wv"}
    engine = build_network(net, weights, format=weight_format(word))
    assert inside or any("keys or values are a weight" in line for line in engine.log), engine.log
    rows = np.random.default_rng(1).random((2, 3, 64), np.float32)
    raised = np.exp(0.5 * rows)
    want = 0.5 * raised / raised.sum(-1, keepdims=True)
    np.testing.assert_allclose(engine.run({"x": rows})["y"], want, rtol=0.03)


def test_weights_read_otherwise_stay() -> None:
    """A matrix that something else reads too, one that is multiplied from the left, one without elements."""
    net = Network("net")
    x = net.input("x", Spec(("T", 6), "float32"))
    both, left, none = (net.parameter(n, Spec(s, "float32")) for n, s in (("a", (6, 6)), ("b", (4, 6)), ("c", (0, 6))))
    y = F.matmul(x, both, transpose_b=True) + F.reduce_sum(both, (0, 1))
    net.output("y", y)
    net.output("z", F.matmul(left, y, transpose_b=True))
    net.output("none", F.matmul(y, none, transpose_b=True))
    log: Any = []
    made = quantized(net, INT8, log)
    assert {v.name for v in made.parameters} == {"a", "b", "c"}
    verdicts = " ".join(event.verdict for event in log)
    assert "a stays float32: reduce_sum reads it" in verdicts and "b stays float32: matmul reads it" in verdicts
    assert "c stays float32: it has no elements" in verdicts


def test_a_table_is_looked_up_as_integers() -> None:
    """The rows are dequantised after they are taken: exactly what the references give."""
    net = Network("net")
    ids = net.input("ids", Spec(("T",), "int32"))
    table = net.parameter("table", Spec((70, 12), "bfloat16"))
    net.output("rows", F.embedding(ids, table))
    w = {"table": np.random.default_rng(0).standard_normal((70, 12)).astype(table.dtype.numpy)}
    engine = build_network(net, w, format=INT8)
    assert engine.tensor("table.int8").dtype == np.int8
    at = np.array([0, 69, 5, 31, 32], np.int32)
    wide = w["table"].astype(np.float32)
    scale = np.abs(wide).max(1, keepdims=True) / np.float32(127)
    want = (np.rint(wide / scale) * scale).astype(table.dtype.numpy)[at]
    assert np.array_equal(engine.run({"ids": at})["rows"], want)


def test_numbers_that_are_not_finite_are_named() -> None:
    module = filled(Mlp())
    module.up.weight.value[3, 4] = np.nan
    with pytest.raises(RecipeError, match=r"recipe from up\.weight: weights that are not finite"):
        build(module, SPECS, weights="int8", report=False)


def test_a_network_with_its_own_dequantize() -> None:
    """What an importer or a user writes: integers and scales as parameters. Scales that fit go to the product, others
    are applied at the build."""
    for scale_shape, stored in (((40, 1), "int8"), ((), "int8"), ((1, 24), "float32")):
        net = Network("net")
        x = net.input("x", Spec(("T", 24), "float32"))
        q = net.parameter("q", Spec((40, 24), "int8"))
        scale = net.parameter("scale", Spec(scale_shape, "float32"))
        net.output("y", F.matmul(x, F.dequantize(q, scale), transpose_b=True))
        rng = np.random.default_rng(0)
        values = {"q": rng.integers(-128, 128, (40, 24)).astype(np.int8),
                  "scale": np.asarray(rng.uniform(0.1, 1, scale_shape)).astype(np.float32)}  # fmt: skip
        engine = build_network(net, values)
        kernels = [call.get("kernel") for call in engine.header["programs"]["cpu"]["entries"]["main"]["calls"]]
        assert kernels == ["matmul_packed"]
        assert [str(engine.tensor(n).dtype) for n in engine.header["weights"] if n.startswith("q.")] == [stored]
        rows = rng.standard_normal((3, 24)).astype(np.float32)
        want = rows.astype(np.float64) @ (values["q"] * values["scale"].astype(np.float64)).T
        np.testing.assert_allclose(engine.run({"x": rows})["y"], want, rtol=1e-4, atol=1e-2)


def test_the_portable_network_stays_that_of_floats(pico8: Engine) -> None:
    """What an engine says it computes is the model; how its weights are stored, the config and the recipes say."""
    names = {p["name"] for p in pico8.header["networks"]["main"]["parameters"]}
    model = models.load(PICO)
    assert names == {v.name for v in trace(model.module, model.input_specs).parameters}


# ------------------------------------------------------------------------------------------------- other ways to run


@pytest.mark.parametrize("format", [FORMATS["int8"], FORMATS["int4-g32"]], ids=lambda f: f.word)
def test_a_torch_device_computes_the_same(format: WeightFormat) -> None:
    """From what is stored for the CPU: its panels are undone, its integers are not."""
    net = nets.llama()
    engine = build_network(net, nets.weights(net), format=format)
    want = ran(engine, nets.step())["logits"]
    found = engine.session(device="torch", kv_blocks=8).run(nets.step())["logits"]
    assert np.abs(found[0] - want[0]).max() <= 1e-5 * np.abs(want).max()


def test_layers_are_compared(pico8: Engine) -> None:
    """Section by section, though no parameter can be recovered: a table alone is shown by its panels."""
    floats = build(PICO, report=False)
    found = diff(pico8, floats, seeded(network_of(floats), 0))
    assert [place.name for place in found.places] == ["before the layers", *(f"model.layers.{i}" for i in range(8))]
    assert all(0.003 < place.relative < 0.03 for place in found.places)
    same = diff(pico8, pico8, seeded(network_of(floats), 0))
    assert all(place.relative == 0 for place in (*same.places, *same.outputs))


def test_refit_quantises_again(pico8: Engine) -> None:
    """The same as a build from the new values, bit for bit; the rest is shared."""
    weights = models.load(PICO).weights
    name = "model.layers.3.mlp.down_proj.weight"
    changed = np.ascontiguousarray(weights[name][::-1])
    new = pico8.refit({name: changed})
    key = f"{name}.int8.packed"
    assert not np.array_equal(new.tensor(key), pico8.tensor(key))
    recipe = Recipe.from_json(pico8.header["weights"][key]["recipe"])
    assert evaluate(recipe, {name: changed}).tobytes() == new.tensor(key).tobytes()
    other = "model.layers.2.mlp.down_proj.weight.int8.packed"
    assert np.shares_memory(new.tensor(other), pico8.tensor(other))


EXPERTS = {
    "Mixtral": {"num_local_experts": 5},
    "Qwen3Moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96},
}
WIDE = {"hidden_size": 64, "intermediate_size": 128}
IDS = list(range(2, 40))


@pytest.fixture(scope="module", params=EXPERTS)
def mixture(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small mixture of experts."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp(request.param)
    make(transformers, torch, request.param, WIDE | EXPERTS[request.param], folder)
    return folder


class _Quantised(models.LoadedModel):
    """A model whose network has the weights that a word says."""

    word = ""

    def network(self) -> Any:
        network, remarks = super().network()
        return quantized(network, weight_format(self.word)), remarks


@pytest.mark.parametrize("word", ["int8", "int4-g32", "int4-g32-asym", "int4-g64-asym", "fp8"])
def test_experts(mixture: Path, word: str) -> None:
    """Logits are those of the network with the dequantised weights, and a row does not depend on its company. Experts
    are stored in that format, with zero points where it has them."""
    loaded = models.load(mixture, "float32")
    reference = _Quantised(loaded.module, loaded.input_specs, loaded.config, loaded.weights, loaded.files)
    reference.word = word
    runner = Runner(reference)
    runner.weights = {
        v.name: evaluate(v.recipe, loaded.weights) if v.recipe else loaded.weights[v.name]
        for v in runner.network.parameters
    }
    want = runner.run(IDS, [len(IDS)])
    engine = build(mixture, weights=word, precision="float32", report=False)
    found = EngineRunner(engine).run(IDS, [len(IDS)])
    assert np.abs(found - want).max() < 2e-5 * np.abs(want).max()
    assert np.array_equal(EngineRunner(engine).run(IDS, [1, 30, 7]), found)
    names = [name for name in engine.header["weights"] if "experts" in name]
    kinds = {engine.tensor(n).dtype.name for n in names if "scales" not in n and "zeros" not in n}
    packed = {"int8": {"int8"}, "fp8": {"float8_e4m3fn"}}.get(word, {"uint8", "int8"})
    assert names and kinds <= packed
    assert any(name.endswith("gate_up.zeros.packed") for name in names) == word.endswith("asym")
    calls = [call for entry in engine.header["programs"]["cpu"]["entries"].values() for call in entry["calls"]]
    assert [call for call in calls if call.get("kernel") == "moe"] and not [call for call in calls if "host" in call]
    said = [line for line in engine.log if "experts" in line and (" stays " in line or " becomes " in line)]
    assert all(line.endswith("int4-g64-asym: groups of 64 do not divide its 96 inputs") for line in said)
    sizes = (sum(e.tensor(n).nbytes for n in e.header["weights"] if "experts" in n)
             for e in (engine, build(mixture, precision="float32", report=False)))  # fmt: skip
    stored, floats = sizes
    most = {"int4-g32": 0.2, "int4-g32-asym": 0.27, "int4-g64-asym": 0.21}
    assert stored < floats * most.get(word, 0.28)


def test_experts_of_a_narrow_type(mixture: Path) -> None:
    """Rows of experts stay floats where those of products are int8; other products are the same."""
    engine = build(mixture, weights="int8", activations="int8", precision="bfloat16", report=False)
    calls = [call for entry in engine.header["programs"]["cpu"]["entries"].values() for call in entry["calls"]]
    kinds = {call["kernel"] for call in calls if "kernel" in call}
    assert {"moe", "matmul_packed", "quantize_rows"} <= kinds
    assert np.isfinite(EngineRunner(engine).run(IDS, [len(IDS)])).all()


def test_experts_are_refitted(mixture: Path) -> None:
    """The same as a build of the new values, bit for bit."""
    weights = dict(models.load(mixture, "float32").weights)
    names = [name for name in weights if "experts" in name]
    changed = {name: np.ascontiguousarray(weights[name][::-1]) for name in names}
    for word in ("int8", "int4-g32", "int4-g32-asym"):
        engine = build(mixture, weights=word, precision="float32", report=False).refit(changed)
        for name in (n for n in engine.header["weights"] if "experts" in n):
            recipe = Recipe.from_json(engine.header["weights"][name]["recipe"])
            assert np.array_equal(engine.tensor(name), evaluate(recipe, weights | changed)), name
