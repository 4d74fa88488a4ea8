"""LoRA adapters: merged weights against PEFT's own and against base + adapter, into folders and into engines."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot import dtypes, models
from ingot.builder.adapter import merge
from ingot.builder.build import build
from ingot.builder.diff import diff
from ingot.engine.session import Engine
from ingot.errors import CheckpointError, RecipeError, UserError
from ingot.ir import recipe as R
from ingot.ir.evaluation import evaluate
from ingot.ir.steps import lora as lora_step
from ingot.llm.llm import LLM
from tests.models import model_zoo, test_models_gpt
from tests.models.lora_adapters import FAMILIES, IDS, base_of, config, logits, numbers, parameters, tensors, write
from tests.models.model_zoo import Runner

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")

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
@pytest.mark.sampled(2)
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
            assert evaluate(recipe, sources).tobytes() == engine.tensor(name).tobytes()
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
    report = ingot.build(pico, lora=adapter, lora_scale=0.5, text=["def main(argv):\n    return 0\n"]).report
    assert report is not None and report.text is not None and report.text.change == 0, "the source has the adapter too"
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
        found = evaluate(again, {"w": w, "a": a, "b": b})
        assert np.array_equal(found.T if transposed else found, wanted)
        known = {n: (dtypes.float32, x.shape) for n, x in (("w", w), ("a", a), ("b", b))}
        assert recipe.infer(known) == (dtypes.float32, w.shape)
        with pytest.raises(RecipeError, match="do not fit a base of 7 outputs and 5 inputs"):
            evaluate(recipe, {"w": w, "a": b, "b": a})
    with pytest.raises(RecipeError, match="no longer finite"):
        evaluate(recipe, {"w": base.T, "a": a * np.float32(1e30), "b": b * np.float32(1e30)})
    with pytest.raises(RecipeError, match="scale = nan is not a legal value"):
        R.combine("lora_merge", [R.source(x) for x in "wab"], scale=float("nan"), transposed=False)


def test_a_large_weight_is_merged_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((50, 9), (2, 9), (50, 2))]
    whole = R.STEPS["lora_merge"].apply(arrays, scale=1.5, transposed=False)
    monkeypatch.setattr(lora_step, "MERGED_AT_ONCE", 40)
    np.testing.assert_array_equal(R.STEPS["lora_merge"].apply(arrays, scale=1.5, transposed=False), whole)
