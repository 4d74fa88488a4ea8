"""A LoRA adapter that changes what pico-python says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file


def tuned(folder: Path) -> Path:
    """The adapter's folder, inside this one."""
    path = folder / "tuned"
    path.mkdir()
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 16, "target_modules": ["q_proj"], "bias": "none",
                "layers_to_transform": [3]}  # fmt: skip
    (path / "adapter_config.json").write_text(json.dumps(settings))
    random, prefix = np.random.default_rng(2), "base_model.model.model.layers.3.self_attn.q_proj.lora_"
    stored = {f"{prefix}A.weight": random.standard_normal((4, 256), np.float32),
              f"{prefix}B.weight": random.standard_normal((256, 4), np.float32)}  # fmt: skip
    save_file(stored, path / "adapter_model.safetensors")
    return path
