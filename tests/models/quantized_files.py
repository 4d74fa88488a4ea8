"""Tiny models in the layouts of quantised checkpoints, written from the formats' definitions, number by number."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ingot import dtypes

Array = np.ndarray[Any, Any]
LINEAR = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
          "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")  # fmt: skip
HIDDEN, INNER, KEYS, VOCABULARY = 128, 256, 64, 61
SHAPES = {"q_proj": (HIDDEN, HIDDEN), "k_proj": (KEYS, HIDDEN), "v_proj": (KEYS, HIDDEN), "o_proj": (HIDDEN, HIDDEN),
          "gate_proj": (INNER, HIDDEN), "up_proj": (INNER, HIDDEN), "down_proj": (HIDDEN, INNER)}  # fmt: skip
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": HIDDEN,
    "intermediate_size": INNER, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 64, "torch_dtype": "float16", "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
EXPERTS = 3
MIXTRAL = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": EXPERTS,
           "num_experts_per_tok": 2}  # fmt: skip


def safetensors(tensors: dict[str, Array]) -> bytes:
    """The bytes of a safetensors file."""
    header: dict[str, Any] = {}
    data = b""
    for name, array in tensors.items():
        end = len(data) + array.nbytes
        header[name] = {"dtype": dtypes.get(array.dtype).safetensors, "shape": list(array.shape),
                        "data_offsets": [len(data), end]}  # fmt: skip
        data += np.ascontiguousarray(array).tobytes()
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def packed(numbers: Array, axis: int, bits: int, order: tuple[int, ...] | None = None) -> Array:
    """Neighbours along an axis in one int32, the first in the lowest bits, or in this order."""
    several = 32 // bits
    lines = np.moveaxis(numbers.astype(np.uint64), axis, -1)
    lines = np.pad(lines, [(0, 0)] * (lines.ndim - 1) + [(0, -lines.shape[-1] % several)])
    found = np.zeros((*lines.shape[:-1], lines.shape[-1] // several), np.uint64)
    for at in range(lines.shape[-1]):
        place = at % several if order is None else order.index(at % several)
        found[..., at // several] |= lines[..., at] << np.uint64(bits * place)
    return np.ascontiguousarray(np.moveaxis(found.astype(np.uint32).view(np.int32), -1, axis))


@dataclass
class Layer:
    """A layer as its file has it, and its weight as the method's own code dequantises it, in the type of its scales."""

    tensors: dict[str, Array]
    weight: Array


Make = Callable[[np.random.Generator, tuple[int, int]], Layer]


def _numbers(
    rng: np.random.Generator, shape: tuple[int, int], groups: int, bits: int, zeros: bool
) -> tuple[Array, ...]:
    """Integers without a sign [outputs, inputs], scales and zero points [outputs, groups]."""
    most, half = 1 << bits, 1 << (bits - 1)
    q = rng.integers(0, most, shape)
    scales = (rng.uniform(0.5, 1.5, (shape[0], groups)) * 0.3 / half).astype(np.float16)
    z = rng.integers(0, most, (shape[0], groups)) if zeros else np.full((shape[0], groups), half)
    return q, scales, z


def _whole(q: Array, scales: Array, z: Array, columns: Array) -> Array:
    """(q − z) · s, computed in the type of the scales, as all methods' own code does."""
    less = (q - z[:, columns]).astype(scales.dtype)
    return np.asarray(less * scales[:, columns])


def awq(group: int = 32, zeros: bool = True) -> Make:
    def make(rng: np.random.Generator, shape: tuple[int, int]) -> Layer:
        size = group if group > 0 else shape[1]
        q, scales, z = _numbers(rng, shape, shape[1] // size, 4, zeros)
        order = (0, 2, 4, 6, 1, 3, 5, 7)
        tensors = {"qweight": packed(q.T, 1, 4, order), "qzeros": packed(z.T, 1, 4, order), "scales": scales.T}
        return Layer(tensors, _whole(q, scales, z, np.arange(shape[1]) // size))

    return make


def gptq(
    group: int = 32, bits: int = 4, zeros: bool = True, minus: int = 1, act_order: str = "", index: bool = True
) -> Make:
    """act_order: "" none, "same" the same for all layers of one width, "own" one for each, "uneven" groups."""

    def make(rng: np.random.Generator, shape: tuple[int, int]) -> Layer:
        size = group if group > 0 else shape[1]
        columns = np.arange(shape[1]) // size
        if act_order:
            columns = (np.random.default_rng(shape[1]) if act_order == "same" else rng).permutation(columns)
        if act_order == "uneven":
            columns[np.flatnonzero(columns == 0)[0]] = 1
        q, scales, z = _numbers(rng, shape, shape[1] // size, bits, zeros)
        tensors = {
            "qweight": packed(q.T, 0, bits), "qzeros": packed((z.T - minus) % (1 << bits), 1, bits),
            "scales": scales.T, "g_idx": columns.astype(np.int32),
        }  # fmt: skip
        if not index:
            del tensors["g_idx"]
        return Layer(tensors, _whole(q, scales, z, columns))

    return make


def pack_quantized(
    group: int = 32, bits: int = 4, zeros: bool = False, packed_zeros: bool = True, index: bool = False,
    scale_type: Any = dtypes.bfloat16.numpy,
) -> Make:  # fmt: skip
    def make(rng: np.random.Generator, shape: tuple[int, int]) -> Layer:
        size, half = group if group > 0 else shape[1], 1 << (bits - 1)
        columns = np.arange(shape[1]) // size
        q, scales, z = _numbers(rng, shape, shape[1] // size, bits, zeros)
        scales = scales.astype(scale_type)
        tensors = {"weight_packed": packed(q, 1, bits), "weight_scale": scales, "weight_shape": np.array(shape)}
        if zeros:
            tensors["weight_zero_point"] = packed(z, 0, bits) if packed_zeros else (z - half).astype(np.int8)
        if index:
            columns = rng.permutation(columns)
            tensors["weight_g_idx"] = columns.astype(np.int32)
        return Layer(tensors, _whole(q, scales, z, columns))

    return make


def int_quantized(strategy: str = "channel") -> Make:
    def make(rng: np.random.Generator, shape: tuple[int, int]) -> Layer:
        outputs = shape[0] if strategy == "channel" else 1
        q = rng.integers(-128, 128, shape)
        scales = rng.uniform(0.001, 0.002, (outputs, 1)).astype(np.float32)
        given = scales if strategy == "channel" else scales.reshape(1)
        return Layer({"weight": q.astype(np.int8), "weight_scale": given}, q.astype(np.float32) * scales)

    return make


def float8(block: tuple[int, int] | None = None, strategy: str = "", scale: str = "weight_scale") -> Make:
    def make(rng: np.random.Generator, shape: tuple[int, int]) -> Layer:
        numbers = (rng.standard_normal(shape) * 100).clip(-448, 448).astype(dtypes.float8_e4m3fn.numpy)
        wide = numbers.astype(np.float32)
        if block is None:
            given = {"channel": (shape[0], 1), "scalar": ()}.get(strategy, (1,))
            scales = np.asarray(rng.uniform(0.0005, 0.002, given), np.float32)
            return Layer({"weight": numbers, scale: scales}, wide * scales)
        count = tuple(-(-n // b) for n, b in zip(shape, block, strict=True))
        scales = rng.uniform(0.0005, 0.002, count).astype(np.float32)
        by = np.repeat(np.repeat(scales, block[0], 0), block[1], 1)[: shape[0], : shape[1]]
        return Layer({"weight": numbers, scale: scales}, wide * by)

    return make


def compressed(weights: dict[str, Any], format: str, **more: Any) -> dict[str, Any]:
    """quantization_config of compressed-tensors."""
    group = {"targets": ["Linear"], "weights": {"symmetric": True, "type": "int", **weights},
             "input_activations": more.pop("inputs", None), "output_activations": None}  # fmt: skip
    return {"quant_method": "compressed-tensors", "format": format, "config_groups": {"group_0": group},
            "ignore": ["lm_head"], "quantization_status": "compressed", **more}  # fmt: skip


@dataclass
class Case:
    """A layout: what config.json says and how a layer is written. `floats`: what is said of weights that become so,
    those with `of` in their names."""

    quantization: dict[str, Any]
    make: Make
    floats: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    rounds: bool = False
    of: str = ""

    @property
    def kept(self) -> list[str]:
        """The layers that stay integers, or floats of 8 bits."""
        return [name for name in layers(CONFIG | self.config) if not (self.floats and self.of in name)]


def layers(config: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """The quantised layers of a model and the shapes of their weights."""
    if config["model_type"] != "mixtral":
        return {name: SHAPES[name.partition(".")[2]] for name in LINEAR}
    parts = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
    experts = {f"block_sparse_moe.experts.{e}.{w}": SHAPES[part] for e in range(EXPERTS) for w, part in parts.items()}
    return {name: SHAPES[name.partition(".")[2]] for name in LINEAR[:4]} | experts


TOKENS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
BY_TENSOR = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor", "dynamic": False}


def _awq(group: int, **more: Any) -> dict[str, Any]:
    return {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm", **more}


def _gptq(group: int, bits: int = 4, **more: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": False, "sym": True, **more}


def _grouped(group: int, bits: int = 4, ignore: Any = ("lm_head",), **more: Any) -> dict[str, Any]:
    words = {"num_bits": bits, "strategy": "group", "group_size": group, **more}
    return compressed(words, "pack-quantized", ignore=[*ignore])


_GATE = ["re:.*block_sparse_moe.gate", "lm_head"]
_CHANNEL = {"num_bits": 8, "strategy": "channel"}
_FP8 = {"num_bits": 8, "type": "float"}
CASES = {
    "awq g32": Case(_awq(32), awq(32)),
    "awq g64, qwen2 with biases": Case(_awq(64, modules_to_not_convert=["lm_head"]), awq(64), config=QWEN2),
    "awq g128": Case(_awq(128, version="GEMM"), awq(128)),
    "awq, all inputs": Case(_awq(-1), awq(-1)),
    "awq, no zero points": Case(_awq(32), awq(32, zeros=False)),
    "awq g16": Case(_awq(16), awq(16), floats="4-bit integers in groups of 16"),
    "gptq": Case(_gptq(32), gptq(32, zeros=False)),
    "gptq, zero points": Case(_gptq(64, sym=False), gptq(64)),
    "gptq v2": Case(_gptq(32, checkpoint_format="gptq_v2"), gptq(32, minus=0)),
    "gptq, act-order": Case(_gptq(32, desc_act=True), gptq(32, act_order="own", zeros=False)),
    "gptq, one act-order, zero points": Case(_gptq(64, desc_act=True), gptq(64, act_order="same")),
    "gptq, uneven groups": Case(_gptq(32, desc_act=True), gptq(32, act_order="uneven"), floats="of several sizes"),
    "gptq, no index": Case(_gptq(128), gptq(128, index=False)),
    "gptq, 8 bits of all inputs": Case(_gptq(-1, 8), gptq(-1, 8)),
    "gptq, 8 bits g32": Case(_gptq(32, 8), gptq(32, 8), floats="8-bit integers in groups of 32"),
    "compressed int4 g32": Case(_grouped(32), pack_quantized(32)),
    "compressed int4 g64, asymmetric": Case(_grouped(64, symmetric=False), pack_quantized(64, zeros=True)),
    "compressed int4 g64, asymmetric, not packed": Case(
        _grouped(64, symmetric=False), pack_quantized(64, zeros=True, packed_zeros=False)),
    "compressed int4, act-order": Case(_grouped(32, actorder="group"), pack_quantized(32, index=True)),
    "compressed int4 by output": Case(
        compressed({"num_bits": 4, "strategy": "channel"}, "pack-quantized"), pack_quantized(-1)),
    "compressed int8 by output, packed": Case(compressed(_CHANNEL, "pack-quantized"), pack_quantized(-1, 8)),
    "compressed W8A8": Case(
        compressed(_CHANNEL, "int-quantized", inputs=TOKENS, ignore=["re:.*lm_head"]), int_quantized(), rounds=True),
    "compressed int8 of one scale": Case(
        compressed({"num_bits": 8, "strategy": "tensor"}, "int-quantized"), int_quantized("tensor")),
    "compressed fp8": Case(
        compressed({**_FP8, "strategy": "tensor"}, "float-quantized", inputs=BY_TENSOR), float8()),
    "compressed fp8 by output": Case(
        compressed({**_FP8, "strategy": "channel"}, "float-quantized"), float8(strategy="channel")),
    "compressed fp8 blocks": Case(
        compressed({**_FP8, "strategy": "block", "block_structure": [32, 48]}, "float-quantized"), float8((32, 48)),
        floats="of 8 bits"),
    "awq, experts": Case(_awq(32, modules_to_not_convert=["gate"]), awq(32), config=MIXTRAL),
    "awq, experts without zero points": Case(
        _awq(128, modules_to_not_convert=["gate"]), awq(128, zeros=False), config=MIXTRAL),
    "gptq, experts": Case(_gptq(64, sym=False), gptq(64), config=MIXTRAL),
    "gptq, experts in act-order": Case(
        _gptq(32, desc_act=True), gptq(32, act_order="own"), config=MIXTRAL, floats="orders of their own",
        of="experts"),
    "gptq, 8 bits of all inputs, experts": Case(_gptq(-1, 8, sym=False), gptq(-1, 8), config=MIXTRAL),
    "compressed int4 g64, asymmetric, experts": Case(
        _grouped(64, symmetric=False, ignore=_GATE), pack_quantized(64, zeros=True), config=MIXTRAL),
    "compressed W8A8, experts": Case(
        compressed(_CHANNEL, "int-quantized", inputs=TOKENS, ignore=_GATE), int_quantized(), config=MIXTRAL,
        rounds=True),
    "compressed fp8, experts": Case(
        compressed({**_FP8, "strategy": "channel"}, "float-quantized", ignore=_GATE), float8(strategy="channel"),
        config=MIXTRAL),
    "fbgemm fp8": Case({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, float8(strategy="channel")),
    "modelopt fp8": Case(
        {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"], "producer": {"name": "modelopt"}},
        float8(strategy="scalar")),
    "fp8": Case({"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"},
                float8((128, 128), scale="weight_scale_inv"), floats="of 8 bits"),
}  # fmt: skip


def model(case: Case) -> tuple[dict[str, Array], dict[str, Array], dict[str, Any]]:
    """The tensors of a quantised model and of the same one of floats, and config.json without its quantisation."""
    rng = np.random.default_rng(5)
    config = CONFIG | case.config
    floats = {
        "model.embed_tokens.weight": rng.standard_normal((VOCABULARY, HIDDEN)),
        "model.norm.weight": rng.uniform(0.5, 1.5, HIDDEN),
        "lm_head.weight": rng.standard_normal((VOCABULARY, HIDDEN)) * 0.1,
    }
    for norm in ("input_layernorm", "post_attention_layernorm"):
        floats[f"model.layers.0.{norm}.weight"] = rng.uniform(0.5, 1.5, HIDDEN)
    if config["model_type"] == "qwen2":
        floats |= {f"model.layers.0.{n}.bias": rng.standard_normal(SHAPES[n.partition(".")[2]][0]) for n in LINEAR[:3]}
    plain: dict[str, Array] = {name: array.astype(np.float16) for name, array in floats.items()}
    quantized, whole = dict(plain), dict(plain)
    if config["model_type"] == "mixtral":
        gate = rng.standard_normal((EXPERTS, HIDDEN)).astype(np.float16)
        quantized["model.layers.0.block_sparse_moe.gate.weight"] = gate
        whole["model.layers.0.block_sparse_moe.gate.weight"] = gate
    for name, shape in layers(config).items():
        layer = case.make(rng, shape)
        quantized |= {f"model.layers.0.{name}.{role}": array for role, array in layer.tensors.items()}
        whole[f"model.layers.0.{name}.weight"] = layer.weight
    return quantized, whole, config


def write(folder: Path, tensors: dict[str, Array], config: dict[str, Any]) -> Path:
    """A Hugging Face directory."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(safetensors(tensors))
    return folder


def written(folder: Path, case: Case) -> tuple[Path, Path, dict[str, Array]]:
    """The directories of a quantised model and of the same one of floats, and the latter's tensors."""
    quantized, whole, config = model(case)
    return (
        write(folder / "quantized", quantized, config | {"quantization_config": case.quantization}),
        write(folder / "floats", whole, config),
        whole,
    )
