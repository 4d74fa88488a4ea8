"""LoRA adapters that fit no base, or are none: each fault by what it says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ingot.builder.adapter import merge
from ingot.builder.build import build
from ingot.errors import CheckpointError, UserError
from ingot.llm.llm import LLM
from tests.models import reference_models
from tests.models.lora_adapters import config, parameters, path_of, tensors, write

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("safetensors.torch")


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
