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
from ingot import dtypes
from ingot.engine.adapter import merge
from ingot.engine.build import build
from ingot.engine.compile import make_tensors
from ingot.engine.diff import diff
from ingot.engine.layers import Recovered, network_of
from ingot.engine.session import Engine
from ingot.errors import CheckpointError, RecipeError, UserError
from ingot.ir import recipe as R
from ingot.llm import models
from ingot.llm.llm import LLM
from ingot.safetensors_file import SafetensorsFile
from tests.llm.model_zoo import Runner, make

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
        safetensors_torch.save_file(stored, str(folder / "adapter_model.safetensors"))
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
    found = Recovered(engine, network_of(engine))
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
    """Logits of IDS by an engine."""
    engine = build(directory, lora=lora, precision=precision, report=False)
    session = engine.session(1, kv_blocks=1)
    count = len(IDS)
    rows = np.arange(count, dtype=np.int32)
    feeds = {
        "token_ids": np.array(IDS, np.int32), "positions": rows, "query_start": np.array([0, count], np.int32),
        "context_len": np.array([count], np.int32), "block_table": np.zeros((1, 1), np.int32), "slot": rows,
        "logit_rows": rows,
    }  # fmt: skip
    return session.run(feeds)["logits"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rslora", [False, True])
def test_logits_are_those_of_peft(family: str, rslora: bool, bases: dict[str, Path], tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model = transformers.AutoModelForCausalLM.from_pretrained(bases[family], dtype=torch.float32).eval()
    torch.manual_seed(5)
    settings = peft.LoraConfig(
        r=4, lora_alpha=6, target_modules="all-linear", task_type="CAUSAL_LM", use_rslora=rslora,
        rank_pattern={"q_proj": 2, r"layers\.1\.mlp\.(up|down)_proj": 3}, alpha_pattern={"v_proj": 3, "^model.layers.0.self_attn.q_proj": 5},
        init_lora_weights=False,
    )  # fmt: skip
    adapted = peft.get_peft_model(model, settings)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_(0.0, 0.15)
    adapted.save_pretrained(tmp_path / "peft")
    with torch.no_grad():
        wanted = adapted(torch.tensor([IDS])).logits[0].numpy()
        plain = model.base_model(torch.tensor([IDS])) if False else None
    assert plain is None
    found = numbers(bases[family], tmp_path / "peft", "float32")
    assert np.abs(numbers(bases[family], None, "float32") - wanted).max() > 0.05, "the adapter does something"
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    near = numbers(bases[family], tmp_path / "peft", "bfloat16")
    assert np.linalg.norm(near - wanted) < 0.05 * np.linalg.norm(wanted)
