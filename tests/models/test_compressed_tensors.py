"""Checkpoints that the package compressed-tensors writes: each weight, bit for bit, what that package makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingot import models
from tests.models.quantized_files import CASES, CONFIG, LINEAR, SHAPES
from tests.models.quantized_files import model as floats_of

pytest.importorskip("torch")
pytest.importorskip("compressed_tensors")

import torch
from compressed_tensors.compressors.base import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import save_file

INT4, INT8, FP8 = ({"num_bits": bits, "type": kind} for bits, kind in ((4, "int"), (8, "int"), (8, "float")))
TOKENS = {"num_bits": 8, "strategy": "token", "dynamic": True}
# The format, the words of the weights, and those of what rows become.
WRITTEN: dict[str, tuple[str, dict[str, Any], dict[str, Any] | None]] = {
    "int4 g32": ("pack-quantized", {**INT4, "strategy": "group", "group_size": 32}, None),
    "int4 g64 asymmetric": (
        "pack-quantized", {**INT4, "strategy": "group", "group_size": 64, "symmetric": False}, None),
    "int4 g128, act-order of weights": (
        "pack-quantized", {**INT4, "strategy": "group", "group_size": 128, "actorder": "weight"}, None),
    "int4 by output asymmetric": ("pack-quantized", {**INT4, "strategy": "channel", "symmetric": False}, None),
    "int8 by output, packed": ("pack-quantized", {**INT8, "strategy": "channel"}, None),
    "W8A8": ("int-quantized", {**INT8, "strategy": "channel"}, {**TOKENS, "type": "int"}),
    "W8A8 asymmetric": (
        "int-quantized", {**INT8, "strategy": "channel", "symmetric": False}, {**TOKENS, "type": "int"}),
    "int8 of one scale": ("int-quantized", {**INT8, "strategy": "tensor"}, None),
    "fp8": ("float-quantized", {**FP8, "strategy": "tensor"}, {**FP8, "strategy": "tensor", "dynamic": False}),
    "fp8 by output": ("float-quantized", {**FP8, "strategy": "channel"}, {**TOKENS, "type": "float"}),
    "fp8 blocks": ("float-quantized", {**FP8, "strategy": "block", "block_structure": [64, 128]}, None),
    "fp8, naive": ("naive-quantized", {**FP8, "strategy": "channel"}, None),
}  # fmt: skip


def _limits(weight: Any, words: dict[str, Any]) -> tuple[Any, Any]:
    """The smallest and the largest weight of all that share a scale."""
    outputs, inputs = weight.shape
    if words["strategy"] == "tensor":
        return weight.min().reshape(1), weight.max().reshape(1)
    if words["strategy"] == "block":
        high, wide = words["block_structure"]
        shared = weight.reshape(outputs // high, high, inputs // wide, wide)
        return shared.amin((1, 3)), shared.amax((1, 3))
    shared = weight.reshape(outputs, -1, words.get("group_size", inputs))
    return shared.amin(-1), shared.amax(-1)


@pytest.mark.parametrize("name", WRITTEN)
def test_bit_for_bit_what_the_package_reads(name: str, tmp_path: Path) -> None:
    form, words, rows = WRITTEN[name]
    scheme = QuantizationScheme(
        targets=["Linear"], format=form, weights=QuantizationArgs(**words),
        input_activations=QuantizationArgs(**rows) if rows else None,
    )  # fmt: skip
    compressor = BaseCompressor.get_value_from_registry(form)
    random = torch.Generator().manual_seed(0)
    plain = floats_of(CASES["awq g32"])[1]
    tensors = {n: torch.from_numpy(a) for n, a in plain.items() if "_proj" not in n}
    wanted = {}
    for layer in LINEAR:
        weight = (torch.randn(SHAPES[layer.partition(".")[2]], generator=random) * 0.1).bfloat16()
        scales, zeros = calculate_qparams(*_limits(weight, words), scheme.weights)
        state = {"weight": weight, "weight_scale": scales, "weight_zero_point": zeros}
        written = compressor.compress(state, scheme)
        wanted[f"model.layers.0.{layer}.weight"] = compressor.decompress(written, scheme)["weight"]
        tensors |= {f"model.layers.0.{layer}.{role}": tensor.contiguous() for role, tensor in written.items()}
    said = QuantizationConfig(
        config_groups={"group_0": scheme}, ignore=["lm_head"], format=form, quantization_status="compressed"
    )
    method = {**json.loads(said.model_dump_json()), "quant_method": "compressed-tensors"}
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": method}))
    save_file(tensors, str(tmp_path / "model.safetensors"))
    loaded = models.load(tmp_path, "float32")
    for weight_name, weight in wanted.items():
        found = torch.from_numpy(np.array(loaded.weights[weight_name])).to(weight.dtype)
        assert torch.equal(found, weight), weight_name
