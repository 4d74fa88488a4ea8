"""LoRA adapters of tiny models, and what engines make of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingot.builder.build import build
from ingot.builder.layers import network_of
from ingot.builder.stored import Recovered, shown_by
from ingot.engine.session import Engine
from ingot.safetensors_file import SafetensorsFile

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
    torch = pytest.importorskip("torch")
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
        file = str(folder / "adapter_model.safetensors")
        pytest.importorskip("safetensors.torch").save_file({k: v.clone() for k, v in stored.items()}, file)
    return folder


def parameters(engine: Engine) -> dict[str, np.ndarray]:
    """The weights that an engine's stored tensors show, in float32."""
    found = Recovered(shown_by(engine, network_of(engine)))
    return {name: found[name].astype(np.float32) for name in found}


def base_of(folder: Path) -> dict[str, np.ndarray]:
    file = SafetensorsFile(folder / "model.safetensors")
    return {name: file[name].astype(np.float32) for name in file}


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
