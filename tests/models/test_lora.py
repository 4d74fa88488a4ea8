"""LoRA adapters: merged weights against PEFT's own and against base + adapter, into folders and into engines."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ingot import dtypes, models
from ingot.builder.adapter import merge
from ingot.builder.build import build
from ingot.builder.diff import diff
from ingot.builder.layers import network_of
from ingot.builder.stored import Recovered, shown_by
from ingot.engine.session import Engine
from ingot.errors import CheckpointError, RecipeError, UserError
from ingot.ir import recipe as R
from ingot.ir.steps import lora as lora_step
from ingot.llm.llm import LLM
from ingot.safetensors_file import SafetensorsFile
from tests.models import model_zoo, reference_models, test_models_gpt
from tests.models.model_zoo import Runner, make

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")

FAMILIES = {"llama": ("Llama", {}), "qwen2": ("Qwen2", {}), "mistral": ("Mistral", {"sliding_window": 5})}
INNER = {"q_proj": (32, 32), "v_proj": (32, 16), "down_proj": (48, 32), "up_proj": (32, 48), "gate_proj": (32, 48)}
IDS = [3, 14, 15, 9, 26, 5, 35, 8]


def config(**values: Any) -> dict[str, Any]:
    return {
        "peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "bias": "none",
        "fan_in_fan_out": False, "task_type": "CAUSAL_LM", "base_model_name_or_path": "somebody/base",
    } | values  # fmt: skip


def path_of(layer: int, name: str) -> str:
    return f"model.layers.{layer}.{'self_attn' if name in ('q_proj', 'k_proj', 'v_proj', 'o_proj') else 'mlp'}.{name}"


def tensors(rank: int | dict[str, int] = 4, names: tuple[str, ...] = ("q_proj", "v_proj")) -> dict[str, Any]:
    """Seeded A and B of both layers, by the names of PEFT."""
    generator = torch.Generator().manual_seed(11)
    found = {}
    for layer in range(2):
        for name in names:
            inputs, outputs = INNER[name]
            r = rank if isinstance(rank, int) else rank[name]
            prefix = f"base_model.model.{path_of(layer, name)}"
            found[f"{prefix}.lora_A.weight"] = torch.randn((r, inputs), generator=generator)
            found[f"{prefix}.lora_B.weight"] = torch.randn((outputs, r), generator=generator) * 0.1
    return found


def write(folder: Path, settings: dict[str, Any] | str, stored: dict[str, Any] | None) -> Path:
    folder.mkdir()
    text = settings if isinstance(settings, str) else json.dumps(settings)
    (folder / "adapter_config.json").write_text(text)
    if stored is not None:
        safetensors_torch.save_file(
            {k: v.clone() for k, v in stored.items()}, str(folder / "adapter_model.safetensors")
        )
    return folder


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny model of each family, float32."""
    folder = tmp_path_factory.mktemp("bases")
    for name, (family, settings) in FAMILIES.items():
        make(transformers, torch, family, settings, folder / name)
    make(transformers, torch, "Llama", {"tie_word_embeddings": True}, folder / "tied")
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("adapters") / "good", config(), tensors())


def parameters(engine: Engine) -> dict[str, np.ndarray]:
    """The weights that an engine's stored tensors show, in float32."""
    found = Recovered(shown_by(engine, network_of(engine)))
    return {name: found[name].astype(np.float32) for name in found}


def base_of(folder: Path) -> dict[str, np.ndarray]:
    file = SafetensorsFile(folder / "model.safetensors")
    return {name: file[name].astype(np.float32) for name in file}


# ------------------------------------------------------------------------------------------------------- the merge


@pytest.mark.parametrize("family", FAMILIES)
def test_merged_weights_are_base_plus_adapter(family: str, bases: dict[str, Path], good: Path) -> None:
    """Computed here in torch's float64; weights that the adapter does not name keep their bits."""
    found = parameters(build(bases[family], lora=good, report=False))
    base, adapter = base_of(bases[family]), tensors()
    assert found.keys() == base.keys()
    for name, array in found.items():
        prefix = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{prefix}.lora_A.weight" in adapter:
            a, b = (adapter[f"{prefix}.lora_{x}.weight"].double().numpy() for x in "AB")
            np.testing.assert_allclose(array, base[name] + 2.0 * (b @ a), rtol=1e-6, atol=1e-7)
            assert np.abs(array - base[name]).max() > 0.1
        else:
            assert np.array_equal(array, base[name])


def numbers(directory: Path, lora: Path | None, precision: str) -> np.ndarray:
    """Logits of IDS by an engine built with an adapter."""
    return logits(build(directory, lora=lora, precision=precision, report=False))


def logits(engine: Engine) -> np.ndarray:
    session = engine.session(1, kv_blocks=1)
    count = len(IDS)
    rows = np.arange(count, dtype=np.int32)
    feeds = {
        "token_ids": np.array(IDS, np.int32), "positions": rows, "query_start": np.array([0, count], np.int32),
        "context_len": np.array([count], np.int32), "block_table": np.zeros((1, 1), np.int32), "slot": rows,
        "logit_rows": rows, "hidden_rows": rows[:0],
    }  # fmt: skip
    return session.run(feeds)["logits"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rslora", [False, True])
def test_logits_are_those_of_peft(family: str, rslora: bool, bases: dict[str, Path], tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model = transformers.AutoModelForCausalLM.from_pretrained(bases[family], dtype=torch.float32).eval()
    torch.manual_seed(5)
    settings = peft.LoraConfig(
        r=4, lora_alpha=6, target_modules="all-linear", task_type="CAUSAL_LM", use_rslora=rslora,
        rank_pattern={"q_proj": 2, r"layers\.1\.mlp\.(up|down)_proj": 3},
        alpha_pattern={"v_proj": 3, "^model.layers.0.self_attn.q_proj": 5}, init_lora_weights=False,
    )  # fmt: skip
    adapted = peft.get_peft_model(model, settings)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_(0.0, 0.15)
    adapted.save_pretrained(tmp_path / "peft")
    with torch.no_grad():
        wanted = adapted(torch.tensor([IDS])).logits[0].numpy()
    found = numbers(bases[family], tmp_path / "peft", "float32")
    assert np.abs(numbers(bases[family], None, "float32") - wanted).max() > 0.05, "the adapter does something"
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    near = numbers(bases[family], tmp_path / "peft", "bfloat16")
    assert np.linalg.norm(near - wanted) < 0.05 * np.linalg.norm(wanted)


OTHERS = (
    "gemma2", "phi3", "gpt2", "starcoder, multi-query", "gptj", "gpt-neox", "opt, as 350m", "phi", "bloom", "mpt",
    "falcon, as 40b",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning", "ignore:fan_in_fan_out:UserWarning")
@pytest.mark.parametrize("case", OTHERS)
def test_families_with_weights_of_their_own_layout(case: str, tmp_path: Path) -> None:
    """Fused ones, those stored [inputs, outputs]: against PEFT, and engine against build."""
    peft = pytest.importorskip("peft")
    if case in model_zoo.CASES:
        family, settings = model_zoo.CASES[case]
        model = model_zoo.make(transformers, torch, family, settings, tmp_path / "base")
    else:
        model = test_models_gpt.make(*test_models_gpt.CASES[case], tmp_path / "base")
    torch.manual_seed(1)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=6, target_modules="all-linear"))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_(0.0, 0.1)
        wanted = adapted(torch.tensor([IDS])).logits[0].numpy()
    adapted.save_pretrained(tmp_path / "peft")
    base = build(tmp_path / "base", precision="float32", report=False)
    built = build(tmp_path / "base", precision="float32", report=False, lora=tmp_path / "peft")
    assert np.abs(logits(base) - wanted).max() > 0.5, "the adapter does something"
    np.testing.assert_allclose(logits(built), wanted, rtol=1e-5, atol=1e-5)
    merged = merge(base, tmp_path / "peft")
    assert merged.header == built.header
    assert all(np.array_equal(merged.tensor(name), built.tensor(name)) for name in built.header["weights"])


def test_adapted_embedding_and_head(bases: dict[str, Path], tmp_path: Path) -> None:
    """PEFT stores the base's own tables beside such an adapter; another base is told from them."""
    peft = pytest.importorskip("peft")
    model = transformers.AutoModelForCausalLM.from_pretrained(bases["llama"], dtype=torch.float32).eval()
    torch.manual_seed(6)
    settings = peft.LoraConfig(r=3, target_modules=["embed_tokens", "lm_head", "o_proj"], task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(model, settings)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_(0.0, 0.3)
        wanted = adapted(torch.tensor([IDS])).logits[0].numpy()
    adapted.save_pretrained(tmp_path / "peft", save_embedding_layers=True)
    np.testing.assert_allclose(numbers(bases["llama"], tmp_path / "peft", "float32"), wanted, rtol=1e-5, atol=1e-5)
    file = tmp_path / "peft" / "adapter_model.safetensors"
    stored = safetensors_torch.load_file(str(file))
    stored["base_model.model.lm_head.base_layer.weight"][3, 4] += 0.5
    safetensors_torch.save_file(stored, str(file))
    with pytest.raises(CheckpointError, match="its own lm_head.weight, with other numbers"):
        build(bases["llama"], lora=tmp_path / "peft", report=False)
    with pytest.raises(CheckpointError, match="its own lm_head.weight, with other numbers"):
        merge(build(bases["llama"], report=False), tmp_path / "peft")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_merging_into_an_engine_gives_the_file_of_a_build(
    family: str, precision: str, bases: dict[str, Path], good: Path, tmp_path: Path
) -> None:
    base = build(bases[family], precision=precision, report=False)
    base.save(tmp_path / "base.ingot")
    build(bases[family], precision=precision, report=False, lora=good, lora_scale=0.7).save(tmp_path / "built.ingot")
    merge(ingot.load(tmp_path / "base.ingot"), good, 0.7).save(tmp_path / "merged.ingot")
    assert (tmp_path / "built.ingot").read_bytes() == (tmp_path / "merged.ingot").read_bytes()
    base.save(tmp_path / "again.ingot")
    assert (tmp_path / "base.ingot").read_bytes() == (tmp_path / "again.ingot").read_bytes(), "the base stays as it is"


def test_recipes_name_the_adapter_and_give_the_stored_bytes(bases: dict[str, Path], good: Path) -> None:
    engine = build(bases["qwen2"], lora=good, precision="bfloat16", report=False)
    sources: dict[str, np.ndarray] = base_of(bases["qwen2"])
    for name, tensor in tensors().items():
        module, _, which = name.removeprefix("base_model.model.").removesuffix(".weight").rpartition(".lora_")
        sources[f"lora.good.{module}.{which}"] = tensor.numpy()
    named = set()
    for name, entry in engine.header["weights"].items():
        if entry["recipe"] is not None:
            recipe = R.Recipe.from_json(json.loads(json.dumps(entry["recipe"])))
            named |= set(recipe.sources)
            assert R.evaluate(recipe, sources).tobytes() == engine.tensor(name).tobytes()
    assert named == set(sources)
    assert engine.config["lora"] == [{"name": "good", "scale": 1.0}]


def test_nothing_changes_without_an_adapter(bases: dict[str, Path], tmp_path: Path) -> None:
    engine = build(bases["llama"], report=False)
    assert "lora" not in json.dumps(engine.header)
    with pytest.raises(UserError, match="give its folder as lora"):
        build(bases["llama"], report=False, lora_scale=2.0)
    with pytest.raises(UserError, match="give its folder as lora"):
        LLM(engine, lora_scale=2.0)


def test_scale(bases: dict[str, Path], good: Path) -> None:
    base = build(bases["llama"], report=False)
    plain, none, twice = parameters(base), parameters(merge(base, good, 0)), parameters(merge(base, good, 2))
    once = parameters(merge(base, good))
    name = "model.layers.0.self_attn.q_proj.weight"
    assert np.array_equal(plain[name], none[name])
    np.testing.assert_allclose(twice[name] - plain[name], 2 * (once[name] - plain[name]), rtol=1e-5, atol=1e-6)
    for bad in (float("nan"), float("inf"), 1e9, "1", True):
        with pytest.raises(UserError, match="lora_scale must be a number"):
            merge(base, good, bad)  # type: ignore[arg-type]


def test_a_second_adapter(bases: dict[str, Path], good: Path, tmp_path: Path) -> None:
    other = write(
        tmp_path / "other", config(target_modules=["down_proj", "q_proj"]), tensors(4, ("down_proj", "q_proj"))
    )
    one = merge(build(bases["llama"], report=False), good)
    both = parameters(merge(one, other))
    plain, first = base_of(bases["llama"]), parameters(one)
    alone = parameters(build(bases["llama"], lora=other, report=False))
    for name, array in both.items():
        np.testing.assert_allclose(array, first[name] + (alone[name] - plain[name]), rtol=1e-5, atol=1e-6)
    with pytest.raises(UserError, match="called good is in this engine already"):
        merge(one, good)


def test_layers_are_compared_with_the_base(bases: dict[str, Path], good: Path) -> None:
    """`ingot diff` sees the merged weights, and the report of a build compares with merged float32 weights."""
    base = build(bases["llama"], report=False)
    changed = merge(base, good)
    ids = np.array(IDS, np.int32)
    rows = np.arange(len(IDS), dtype=np.int32)
    feeds = {
        "token_ids": ids, "positions": rows, "query_start": np.array([0, len(IDS)], np.int32), "slot": rows,
        "context_len": np.array([len(IDS)], np.int32), "block_table": np.zeros((1, 1), np.int32), "logit_rows": rows,
        "hidden_rows": rows,
    }  # fmt: skip
    assert "logits" in str(diff(base, changed, feeds))
    report = build(bases["llama"], lora=good, precision="bfloat16").report
    assert all(row.relative < 0.05 for row in (*report.layers, *report.outputs))


def test_layers_of_merged_integers_are_compared(bases: dict[str, Path], good: Path) -> None:
    """The floats that an adapter was merged into are gone: the integers that were made of them are found by name."""
    engine = build(bases["llama"], lora=good, weights="int8", report=False)
    base = build(bases["llama"], weights="int8", report=False)
    rows = np.arange(len(IDS), dtype=np.int32)
    feeds = {
        "token_ids": np.array(IDS, np.int32), "positions": rows, "query_start": np.array([0, len(IDS)], np.int32),
        "slot": rows, "context_len": np.array([len(IDS)], np.int32), "block_table": np.zeros((1, 1), np.int32),
        "logit_rows": rows, "hidden_rows": rows,
    }  # fmt: skip
    assert diff(engine, engine, feeds).beyond(0.0) is None
    assert diff(engine, base, feeds).beyond(0.05) is not None


# --------------------------------------------------------------------------------------------------------------- LLM


def greedy(directory: Path, prompt: list[int], count: int) -> list[int]:
    """By the traced network, interpreted in float32 on merged weights computed here."""
    loaded = models.load(directory, "float32")
    merged = dict(loaded.weights)
    adapter = tensors()
    for name in merged:
        prefix = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{prefix}.lora_A.weight" in adapter:
            a, b = (adapter[f"{prefix}.lora_{x}.weight"].double().numpy() for x in "AB")
            merged[name] = (merged[name] + 2.0 * (b @ a)).astype(np.float32)
    runner = Runner(loaded)
    runner.weights = merged
    logits, found = runner.step(prompt), []
    for _ in range(count):
        found.append(int(logits[-1].argmax()))
        logits = runner.step(found[-1:])
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_generation(family: str, bases: dict[str, Path], good: Path, tmp_path: Path) -> None:
    wanted = greedy(bases[family], IDS, 12)
    build(bases[family], report=False).save(tmp_path / "base.ingot")
    words = {"max_tokens": 12, "ignore_end": True}
    for source in (bases[family], tmp_path / "base.ingot", ingot.load(tmp_path / "base.ingot")):
        with LLM(source, lora=good, threads=1) as llm:
            assert llm.generate(IDS, **words).token_ids == wanted
    with LLM(tmp_path / "base.ingot", threads=1) as llm:
        assert llm.generate(IDS, **words).token_ids != wanted


def test_command_line(pico: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ingot.cli.main import main

    rng = np.random.default_rng(2)
    prefix = "base_model.model.model.layers.3.self_attn.q_proj.lora_"
    stored = {
        f"{prefix}A.weight": torch.tensor(rng.standard_normal((4, 256)), dtype=torch.float32),
        f"{prefix}B.weight": torch.tensor(rng.standard_normal((256, 4)), dtype=torch.float32),
    }
    settings = config(target_modules=["q_proj"], layers_to_transform=[3], lora_alpha=16)
    adapter = str(write(tmp_path / "tuned", settings, stored))
    out = str(tmp_path / "x.ingot")
    assert (
        main(["build", str(pico), "-o", out, "--no-report", "--lora", adapter, "--lora-scale", "0.5", "--quiet"]) == 0
    )
    engine = ingot.load(out)
    assert engine.config["lora"] == [{"name": "tuned", "scale": 0.5}]
    capsys.readouterr()
    texts = []
    for words in ([out], [str(pico), "--lora", adapter, "--lora-scale", "0.5"], [str(pico)]):
        assert main(["generate", *words, "--prompt", "def main(", "--max-tokens", "16", "--json"]) == 0
        texts.append(json.loads(capsys.readouterr().out)["text"])
    assert texts[0] == texts[1] != texts[2]
    assert main(["generate", str(pico), "--lora-scale", "0.5", "--prompt", "x"]) == 2
    assert "give its folder too, --lora FOLDER" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------- other ways to be stored


class Untransposed(ingot.Module):
    """A product with a weight [inputs, outputs], as GPT-2 stores them."""

    def __init__(self, weight: np.ndarray) -> None:
        super().__init__()
        self.weight = ingot.Parameter(weight)

    def forward(self, x: ingot.Tensor) -> ingot.Tensor:
        return ingot.functional.matmul(x, self.weight)


@pytest.mark.parametrize("said", [True, False])
def test_a_weight_stored_the_other_way_round(said: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    weight = rng.standard_normal((6, 10)).astype(np.float32)
    module = ingot.nn.Sequential({"c_fc": Untransposed(weight)})
    engine = build(module, {"x": ingot.Spec((ingot.Dim("N"), 6), "float32")}, report=False)
    a, b = rng.standard_normal((4, 6)).astype(np.float32), rng.standard_normal((10, 4)).astype(np.float32)
    stored = {f"base_model.model.c_fc.lora_{x}.weight": torch.tensor(v) for x, v in (("A", a), ("B", b))}
    adapter = write(tmp_path / "conv", config(target_modules=["c_fc"], fan_in_fan_out=said), stored)
    x = rng.standard_normal((3, 6)).astype(np.float32)
    (found,) = merge(engine, adapter).run({"x": x}).values()
    np.testing.assert_allclose(found, x @ weight + 2.0 * (x @ a.T @ b.T), rtol=1e-5, atol=1e-5)


def test_an_engine_whose_recipe_loses_bits_says_so(bases: dict[str, Path], good: Path) -> None:
    engine = build(bases["llama"], report=False)
    header = json.loads(json.dumps(engine.header))
    name = next(n for n in header["weights"] if "0.self_attn.q_proj" in n)
    recipe = header["weights"][name]["recipe"]
    (cast, _, args), *steps = recipe["steps"]
    later = [[n, v, {**a, "in": [i + (i > 2) for i in a["in"]]}] for n, v, a in steps]
    recipe["sources"].append("model.layers.0.input_layernorm.weight")
    recipe["steps"] = [["scale", 1, {"axis": 1, "in": [0, 3]}], *later]
    assert (cast, args["in"]) == ("cast", [0])
    broken = Engine.from_memory(header, {n: engine.tensor(n) for n in header["weights"]})
    with pytest.raises(
        RecipeError, match=r"(?s)a step scale, which cannot be undone.*Build from the model's directory"
    ):
        merge(broken, good)


def test_weights_of_integers(bases: dict[str, Path], good: Path) -> None:
    """A build merges and then quantises, so it is near the merged floats. Integers are no base to merge into."""
    built = build(bases["llama"], lora=good, precision="float32", weights="int8")
    assert built.report.outputs[0].relative < 0.03
    merged = logits(build(bases["llama"], lora=good, precision="float32", report=False))
    apart = np.abs(logits(built) - merged).max()
    assert apart < 0.1 * np.abs(merged - numbers(bases["llama"], None, "float32")).max()
    base = build(bases["llama"], precision="float32", weights="int8", report=False)
    with pytest.raises(RecipeError, match="(?s)by a step quantize, which cannot be undone.*Build from the model"):
        merge(base, good)


def test_the_merge_step() -> None:
    rng = np.random.default_rng(0)
    base = rng.standard_normal((7, 5)).astype(np.float32)
    a, b = rng.standard_normal((3, 5)).astype(np.float32), rng.standard_normal((7, 3)).astype(np.float32)
    wanted = (base + 0.25 * (b.astype(np.float64) @ a)).astype(np.float32)
    for transposed in (False, True):
        recipe = R.combine("lora_merge", [R.source(x) for x in "wab"], scale=0.25, transposed=transposed)
        w = base.T if transposed else base
        again = R.Recipe.from_json(json.loads(json.dumps(recipe.json())))
        found = R.evaluate(again, {"w": w, "a": a, "b": b})
        assert np.array_equal(found.T if transposed else found, wanted)
        known = {n: (dtypes.float32, x.shape) for n, x in (("w", w), ("a", a), ("b", b))}
        assert recipe.infer(known) == (dtypes.float32, w.shape)
        with pytest.raises(RecipeError, match="do not fit a base of 7 outputs and 5 inputs"):
            R.evaluate(recipe, {"w": w, "a": b, "b": a})
    with pytest.raises(RecipeError, match="no longer finite"):
        R.evaluate(recipe, {"w": base.T, "a": a * np.float32(1e30), "b": b * np.float32(1e30)})
    with pytest.raises(RecipeError, match="scale = nan is not a legal value"):
        R.combine("lora_merge", [R.source(x) for x in "wab"], scale=float("nan"), transposed=False)


def test_a_large_weight_is_merged_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((50, 9), (2, 9), (50, 2))]
    whole = R.STEPS["lora_merge"].apply(arrays, scale=1.5, transposed=False)
    monkeypatch.setattr(lora_step, "MERGED_AT_ONCE", 40)
    np.testing.assert_array_equal(R.STEPS["lora_merge"].apply(arrays, scale=1.5, transposed=False), whole)


# ------------------------------------------------------------------------------------------------ what it is made for


TARGETS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "ends of names": ({"target_modules": ["q_proj", "v_proj"]}, []),
    "a whole path": (
        {"target_modules": [path_of(i, n) for i in range(2) for n in ("q_proj", "v_proj")]}, [],
    ),
    "a pattern": ({"target_modules": r".*\.self_attn\.(q|v)_proj"}, []),
    "a pattern of the end only": ({"target_modules": r"(q|v)_proj"}, ["matches no layer"]),
    "one layer of two": ({"layers_to_transform": [1]}, ["layers.0.self_attn.q_proj: left over"]),
    "one layer of two, its list named": (
        {"layers_to_transform": 1, "layers_pattern": "layers"}, ["layers.0.self_attn.q_proj: left over"],
    ),
    "another list named": ({"layers_to_transform": 1, "layers_pattern": ["h"]}, ["left over"]),
    "some excluded": ({"exclude_modules": ["0.self_attn.v_proj"]}, ["layers.0.self_attn.v_proj: left over"]),
    "some excluded by a pattern": ({"exclude_modules": r".*\.0\..*"}, ["layers.0.self_attn.v_proj: left over"]),
    "all-linear": ({"target_modules": "all-linear"}, ["mlp.down_proj: lora_A.weight and lora_B.weight missing"]),
}  # fmt: skip


@pytest.mark.parametrize("case", TARGETS)
def test_targets_are_matched_as_peft_does(case: str, bases: dict[str, Path], tmp_path: Path) -> None:
    changed, faults = TARGETS[case]
    adapter = write(tmp_path / "a", config(**changed), tensors())
    if not faults:
        build(bases["llama"], lora=adapter, report=False)
        return
    with pytest.raises(CheckpointError) as caught:
        build(bases["llama"], lora=adapter, report=False)
    assert all(fault in str(caught.value) for fault in faults), str(caught.value)


A0 = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
B0 = A0.replace("lora_A", "lora_B")
Change = Callable[[dict[str, Any]], object]

SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "rank 0": ({"r": 0}, r"r: must lie in 1\.\.16,384, not 0"),
    "rank 10^6": ({"r": 10**6}, r"r: must lie in 1\.\.16,384, not 1,000,000"),
    "no rank": ({"r": None}, "r: is missing"),
    "another rank": ({"r": 8}, r"q_proj: lora_A: shape \[4, 32\] in the file, \[8, 32\] by the base and the rank"),
    "rank 0 by pattern": ({"rank_pattern": {"q_proj": 0}}, "rank_pattern.q_proj: must be an integer from 1"),
    "alpha of text": ({"lora_alpha": "8"}, "lora_alpha: must be a number"),
    "no alpha": ({"lora_alpha": None}, "lora_alpha: must be a number .* is missing"),
    "alpha by pattern": ({"alpha_pattern": {"q_proj": []}}, "alpha_pattern.q_proj: must be a number"),
    "unknown target": ({"target_modules": ["q_proj", "v_proj", "c_attn"]}, "target_modules: 'c_attn' is no layer"),
    "no target": ({"target_modules": []}, "target_modules: must be a list of names"),
    "targets of numbers": ({"target_modules": [1]}, "target_modules: must be a list of names"),
    "a norm as target": ({"target_modules": ["q_proj", "v_proj", "norm"]}, "'norm' is no layer of this model"),
    "no pattern": ({"target_modules": "(q_proj"}, "is no regular expression: missing"),
    "pattern of a reference": ({"target_modules": r"(q)\1"}, "groupref is not supported in a pattern"),
    "long pattern": ({"rank_pattern": {"(a)" * 500: 2}}, "a pattern has at most 1,000 characters"),
    "many patterns": ({"rank_pattern": {f"(a{i})": 2 for i in range(99)}}, "the file has more than 64 patterns"),
    "bias": ({"bias": "all"}, "bias: 'all' is not supported; supported are none"),
    "dora": ({"use_dora": True}, "use_dora: DoRA scales every row"),
    "loftq": ({"loftq_config": {"loftq_bits": 4}}, "loftq_config: LoftQ adapters belong to the quantised base"),
    "pissa": ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights: 'pissa_niter_4' changes the base"),
    "saved modules": ({"modules_to_save": ["lm_head"]}, "modules_to_save: whole weights beside the adapter"),
    "parameters": ({"target_parameters": ["x"]}, "target_parameters: adapters of parameters"),
    "replication": ({"layer_replication": [[0, 1]]}, "layer_replication: a base with repeated layers"),
    "invocation": ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens: an adapter that only begins to act"),
    "something new": ({"use_sparkle": True}, "use_sparkle: is not supported"),
    "another method": ({"peft_type": "LOHA"}, "peft_type: 'LOHA' is not supported; supported are LORA"),
    "no method": ({"peft_type": None}, "peft_type: is missing"),
}  # fmt: skip


@pytest.mark.parametrize("case", SETTINGS)
def test_faults_of_the_settings(case: str, bases: dict[str, Path], tmp_path: Path) -> None:
    changed, why = SETTINGS[case]
    adapter = write(tmp_path / "a", config(**changed), tensors())
    engine = build(bases["llama"], report=False)
    for attempt in (lambda: build(bases["llama"], lora=adapter, report=False), lambda: merge(engine, adapter)):
        with pytest.raises(CheckpointError, match=why):
            attempt()


def _set(name: str, value: Any) -> Change:
    return lambda stored: stored.update({name: value})


FILES: dict[str, tuple[Change, str]] = {
    "no A": (lambda stored: stored.pop(A0), r"layers\.0\.self_attn\.q_proj: lora_A\.weight missing"),
    "no B": (lambda stored: stored.pop(B0), r"layers\.0\.self_attn\.q_proj: lora_B\.weight missing"),
    "A of other inputs": (_set(A0, torch.zeros(4, 31)), r"lora_A: shape \[4, 31\] in the file, \[4, 32\]"),
    "B of other outputs": (_set(B0, torch.zeros(33, 4)), r"lora_B: shape \[33, 4\] in the file, \[32, 4\]"),
    "B of another rank": (_set(B0, torch.zeros(32, 5)), r"lora_B: shape \[32, 5\] in the file, \[32, 4\]"),
    "A of rank 3": (_set(A0, torch.zeros(4, 32, 1)), r"lora_A: shape \[4, 32, 1\]"),
    "integers": (_set(A0, torch.zeros(4, 32, dtype=torch.int8)), "lora_A: stored as int8, which is no plain float"),
    "NaN": (_set(A0, torch.full((4, 32), float("nan"))), "lora_A: holds NaN or infinity"),
    "infinity": (_set(B0, torch.full((32, 4), float("inf"), dtype=torch.bfloat16)), "lora_B: holds NaN or infinity"),
    "a layer of another base": (
        lambda stored: stored.update({A0.replace("s.0", "s.7"): stored[A0], B0.replace("s.0", "s.7"): stored[B0]}),
        r"model\.layers\.7\.self_attn\.q_proj: this model has no such layer",
    ),
    "a layer that is not named": (
        lambda stored: stored.update({A0.replace("q_proj", "o_proj"): stored[A0]}),
        "self_attn.o_proj: left over: target_modules does not name it",
    ),
    "an odd name": (_set("model.x", torch.zeros(2)), r"model\.x: left over: no A or B of a layer"),
    "a magnitude": (_set(A0.replace("lora_A.weight", "lora_magnitude_vector"), torch.zeros(32)), "left over"),
    "halves of two kinds": (_set(A0.replace("lora_A.weight", "lora_embedding_A"), torch.zeros(4, 32)), "left over"),
}  # fmt: skip


@pytest.mark.parametrize("case", FILES)
def test_faults_of_the_tensors(case: str, bases: dict[str, Path], tmp_path: Path) -> None:
    change, why = FILES[case]
    stored = tensors()
    change(stored)
    adapter = write(tmp_path / "a", config(), stored)
    with pytest.raises(CheckpointError, match=why):
        build(bases["llama"], lora=adapter, report=False)


def test_all_faults_are_in_one_error(bases: dict[str, Path], tmp_path: Path) -> None:
    stored = tensors()
    del stored[B0]
    stored["extra"] = torch.zeros(1)
    settings = config(use_dora=True, bias="all", target_modules=["q_proj", "v_proj", "nothing"])
    adapter = write(tmp_path / "a", settings, stored)
    with pytest.raises(CheckpointError) as caught:
        build(bases["llama"], lora=adapter, report=False)
    text = str(caught.value)
    assert all(part in text for part in ("DoRA", "bias", "'nothing'", "lora_B.weight missing", "extra: left over"))
    assert "made for 'somebody/base'" in text


def test_many_faults_stay_readable(bases: dict[str, Path], tmp_path: Path) -> None:
    stored = {f"base_model.model.{'x' * 200}.{i}.lora_A.weight": torch.zeros(1) for i in range(500)}
    adapter = write(tmp_path / "a", config(), stored)
    with pytest.raises(CheckpointError, match="… and 484 more") as caught:
        build(bases["llama"], lora=adapter, report=False)
    assert len(str(caught.value)) < 6000


def test_a_tied_table_is_not_adapted(bases: dict[str, Path], tmp_path: Path) -> None:
    for i, name in enumerate(("lm_head", "embed_tokens")):
        adapter = write(tmp_path / str(i), config(target_modules=["q_proj", "v_proj", name]), tensors())
        with pytest.raises(CheckpointError, match=f"{name}: embedding and head are one weight in this model"):
            build(bases["tied"], lora=adapter, report=False)
    build(bases["tied"], lora=write(tmp_path / "fine", config(), tensors()), report=False)


def test_a_head_with_rows_of_length_one_is_not_adapted(tmp_path: Path) -> None:
    """Baichuan 2: an adapter would be added behind the division, where PEFT adds it before."""
    for number, name in enumerate(("baichuan 2, 7B", "baichuan, first 7B")):
        reference_models.make(torch, reference_models.CASES[name], tmp_path / f"base{number}")
    stored = {f"base_model.model.lm_head.lora_{k}.weight": torch.ones(s) for k, s in (("A", (4, 32)), ("B", (61, 4)))}
    adapter = write(tmp_path / "head", config(target_modules=["lm_head"]), stored)
    plain = build(tmp_path / "base0", report=False)
    for source in (tmp_path / "base0", plain):
        with pytest.raises(CheckpointError, match="lm_head: this model's rows are brought to length 1"):
            LLM(source, lora=adapter)
    assert LLM(tmp_path / "base1", lora=adapter).engine.config["lora"]
    name = "model.layers.0.self_attn.W_pack"
    stored = {f"base_model.model.{name}.lora_{k}.weight": torch.ones(s) for k, s in (("A", (4, 32)), ("B", (96, 4)))}
    pack = write(tmp_path / "pack", config(target_modules="all-linear", exclude_modules=r".*(1|mlp|o_proj).*"), stored)
    merged = parameters(build(tmp_path / "base0", report=False, lora=pack))
    np.testing.assert_array_equal(merged["lm_head.weight"], parameters(plain)["lm_head.weight"])
    np.testing.assert_allclose(merged[f"{name}.weight"], parameters(plain)[f"{name}.weight"] + 8.0, atol=1e-5)


def test_folders_that_are_no_adapter(bases: dict[str, Path], tmp_path: Path) -> None:
    pickled = write(tmp_path / "pickled", config(), None)
    (pickled / "adapter_model.bin").write_bytes(b"\x80\x04cos\nsystem\n")
    empty = write(tmp_path / "empty", config(), None)
    bare = tmp_path / "bare"
    bare.mkdir()
    cases = (
        (pickled, r"only as pickle \(adapter_model.bin\)"), (empty, "has no adapter_model.safetensors"),
        (bare, "has no adapter_config.json"), (bases["llama"], "is a model and no adapter"),
        (tmp_path / "gone", "no such folder"), (empty / "adapter_config.json", "is a file; give the folder"),
    )  # fmt: skip
    for folder, why in cases:
        with pytest.raises(CheckpointError, match=why):
            build(bases["llama"], lora=folder, report=False)
    nan = write(tmp_path / "nan", json.dumps(config(lora_alpha=float("nan"))), tensors())
    with pytest.raises(CheckpointError, match="NaN is not JSON"):
        build(bases["llama"], lora=nan, report=False)
    huge = write(tmp_path / "huge", json.dumps(config(lora_alpha=8)).replace("8", "1e999", 1), tensors())
    with pytest.raises(CheckpointError, match="too large"):
        build(bases["llama"], lora=huge, report=False)


def test_sources_that_take_no_adapter(good: Path) -> None:
    module = ingot.nn.Linear(4, 4)
    with pytest.raises(UserError, match="lora is for the folder of a Hugging Face model"):
        build(module, {"x": ingot.Spec((2, 4), "float32")}, lora=good, weights_from="random")
    assert re.search(r"lora", build.__doc__ or "")
