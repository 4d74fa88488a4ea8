"""Plain torch forms of the families that transformers only runs with code from the checkpoint, in their tensors' names.

Written from the published descriptions, one function a family: tokens of one sequence in, logits out, all in the
tensors' type.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save_file

Tensors = dict[str, Any]


class Case(NamedTuple):
    """config.json of a tiny model, its tensors' shapes, and its forward (torch, config, tensors, ids) → logits."""

    config: dict[str, Any]
    shapes: Callable[[dict[str, Any]], dict[str, tuple[int, ...]]]
    forward: Callable[[Any, dict[str, Any], Tensors, Any], Any]


def make(torch: Any, case: Case, folder: Path) -> Tensors:
    """Seeded random tensors, saved to `folder` with the config; norms near 1, biases near 0."""
    generator = np.random.default_rng(5)
    arrays = {}
    for name, shape in case.shapes(case.config).items():
        noise = generator.standard_normal(shape)
        one = 1.0 if len(shape) == 1 and name.endswith("weight") else 0.0
        arrays[name] = (one + 0.2 * noise if len(shape) == 1 else 0.15 * noise).astype(np.float32)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(case.config))
    save_file(arrays, folder / "model.safetensors")
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


# --------------------------------------------------------------------------------------------------------------- parts


def rms(torch: Any, x: Any, weight: Any, eps: float) -> Any:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def angles(torch: Any, count: int, width: int, theta: float, ratio: float = 1) -> tuple[Any, Any]:
    """cos, sin [count, 1, width / 2] of the positions 0…count−1, each divided by the ratio."""
    frequency = theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = ((torch.arange(count, dtype=torch.float64) / ratio)[:, None] * frequency)[:, None].float()
    return angle.cos(), angle.sin()


def turn_halves(torch: Any, x: Any, cos: Any, sin: Any) -> Any:
    """x [T, H, D], element i paired with i + D/2"""
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def turn_pairs(torch: Any, x: Any, cos: Any, sin: Any) -> Any:
    """x [T, H, D], element 2i paired with 2i + 1, of the first 2 · cos' width elements"""
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    turned, rest = x[..., : 2 * cos.shape[-1]], x[..., 2 * cos.shape[-1] :]
    a, b = turned[..., 0::2], turned[..., 1::2]
    return torch.cat([torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2), rest], -1)


def attend(torch: Any, query: Any, key: Any, value: Any, slopes: Any = None) -> Any:
    """Causal attention: [T, H, D], [T, KV, D] twice → [T, H · D]; query head h reads key head h // (H / KV)."""
    count, heads, size = query.shape
    key, value = (x.repeat_interleave(heads // x.shape[1], 1) for x in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, key) / math.sqrt(size)
    if slopes is not None:
        at = torch.arange(count)
        scores = scores + slopes[:, None, None] * (at[None, :] - at[:, None])
    scores = scores.masked_fill(torch.ones(count, count).triu(1).bool(), -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1).to(value.dtype), value).flatten(1)


def linear(torch: Any, tensors: Tensors, name: str, x: Any) -> Any:
    return torch.nn.functional.linear(x, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))


def swiglu(torch: Any, gate: Any, up: Any) -> Any:
    return torch.nn.functional.silu(gate) * up


def with_bias(shapes: dict[str, tuple[int, ...]], *names: str) -> dict[str, tuple[int, ...]]:
    """The shapes, and a bias for every weight whose name contains one of the names."""
    biases = {k.removesuffix("weight") + "bias": v[:1] for k, v in shapes.items() if any(n in k for n in names)}
    return shapes | biases


# ------------------------------------------------------------------------------------------------------------ InternLM

SMALL: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def internlm_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    h, i, v = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    shapes = {"model.embed_tokens.weight": (v, h), "model.norm.weight": (h,), "lm_head.weight": (v, h)}
    for n in range(config["num_hidden_layers"]):
        at = f"model.layers.{n}."
        shapes |= {f"{at}self_attn.{p}_proj.weight": (h, h) for p in "qkvo"}
        shapes |= {f"{at}mlp.gate_proj.weight": (i, h), f"{at}mlp.up_proj.weight": (i, h)}
        shapes |= {f"{at}mlp.down_proj.weight": (h, i), f"{at}self_attn.rotary_emb.inv_freq": (4,)}
        shapes |= {f"{at}{norm}_layernorm.weight": (h,) for norm in ("input", "post_attention")}
    return with_bias(shapes, *[f"self_attn.{p}_proj" for p in "qkvo"])


def internlm(torch: Any, config: dict[str, Any], t: Tensors, ids: Any) -> Any:
    heads, eps = config["num_attention_heads"], config["rms_norm_eps"]
    size = config["hidden_size"] // heads
    cos, sin = angles(torch, len(ids), size, config.get("rotary", {}).get("base", 10000.0))
    x = t["model.embed_tokens.weight"][ids]
    for n in range(config["num_hidden_layers"]):
        at = f"model.layers.{n}."
        y = rms(torch, x, t[f"{at}input_layernorm.weight"], eps)
        q, k, v = (linear(torch, t, f"{at}self_attn.{p}_proj", y).unflatten(1, (heads, size)) for p in "qkv")
        q, k = (turn_halves(torch, z, cos, sin) for z in (q, k))
        x = x + linear(torch, t, f"{at}self_attn.o_proj", attend(torch, q, k, v))
        y = rms(torch, x, t[f"{at}post_attention_layernorm.weight"], eps)
        gate, up = (linear(torch, t, f"{at}mlp.{p}_proj", y) for p in ("gate", "up"))
        x = x + linear(torch, t, f"{at}mlp.down_proj", swiglu(torch, gate, up))
    return linear(torch, t, "lm_head", rms(torch, x, t["model.norm.weight"], eps))


def internlm2_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    h, i, v = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    size = h // config["num_attention_heads"]
    rows = (config["num_attention_heads"] + 2 * config["num_key_value_heads"]) * size
    shapes = {"model.tok_embeddings.weight": (v, h), "model.norm.weight": (h,)}
    if not config["tie_word_embeddings"]:
        shapes["output.weight"] = (v, h)
    for n in range(config["num_hidden_layers"]):
        at = f"model.layers.{n}."
        shapes |= {f"{at}attention.wqkv.weight": (rows, h), f"{at}attention.wo.weight": (h, h)}
        shapes |= {f"{at}feed_forward.w1.weight": (i, h), f"{at}feed_forward.w3.weight": (i, h)}
        shapes |= {f"{at}feed_forward.w2.weight": (h, i)}
        shapes |= {f"{at}{norm}_norm.weight": (h,) for norm in ("attention", "ffn")}
    return with_bias(shapes, "attention.w") if config["bias"] else shapes


def internlm2(torch: Any, config: dict[str, Any], t: Tensors, ids: Any) -> Any:
    heads, kv_heads, eps = config["num_attention_heads"], config["num_key_value_heads"], config["rms_norm_eps"]
    size, readers = config["hidden_size"] // heads, heads // kv_heads
    cos, sin = angles(torch, len(ids), size, config["rope_theta"])
    x = t["model.tok_embeddings.weight"][ids]
    for n in range(config["num_hidden_layers"]):
        at = f"model.layers.{n}."
        y = rms(torch, x, t[f"{at}attention_norm.weight"], eps)
        groups = linear(torch, t, f"{at}attention.wqkv", y).unflatten(1, (kv_heads, readers + 2, size))
        q, k, v = groups[:, :, :readers].flatten(1, 2), groups[:, :, -2], groups[:, :, -1]
        q, k = (turn_halves(torch, z, cos, sin) for z in (q, k))
        x = x + linear(torch, t, f"{at}attention.wo", attend(torch, q, k, v))
        y = rms(torch, x, t[f"{at}ffn_norm.weight"], eps)
        gate, up = (linear(torch, t, f"{at}feed_forward.{p}", y) for p in ("w1", "w3"))
        x = x + linear(torch, t, f"{at}feed_forward.w2", swiglu(torch, gate, up))
    head = t.get("output.weight", t["model.tok_embeddings.weight"])
    return rms(torch, x, t["model.norm.weight"], eps) @ head.T


# ---------------------------------------------------------------------------------------------------------------- Qwen


def qwen_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    h, i, v = config["hidden_size"], config["intermediate_size"] // 2, config["vocab_size"]
    inner = config["kv_channels"] * config["num_attention_heads"]
    shapes = {"transformer.wte.weight": (v, h), "transformer.ln_f.weight": (h,), "lm_head.weight": (v, h)}
    for n in range(config["num_hidden_layers"]):
        at = f"transformer.h.{n}."
        shapes |= {f"{at}ln_{k}.weight": (h,) for k in (1, 2)}
        shapes |= {f"{at}attn.c_attn.weight": (3 * inner, h), f"{at}attn.c_attn.bias": (3 * inner,)}
        shapes |= {f"{at}attn.c_proj.weight": (h, inner), f"{at}mlp.c_proj.weight": (h, i)}
        shapes |= {f"{at}mlp.w1.weight": (i, h), f"{at}mlp.w2.weight": (i, h)}
    return shapes


def qwen(torch: Any, config: dict[str, Any], t: Tensors, ids: Any) -> Any:
    heads, size, eps = config["num_attention_heads"], config["kv_channels"], config["layer_norm_epsilon"]
    cos, sin = angles(torch, len(ids), size, config["rotary_emb_base"])
    x = t["transformer.wte.weight"][ids]
    for n in range(config["num_hidden_layers"]):
        at = f"transformer.h.{n}."
        fused = linear(torch, t, f"{at}attn.c_attn", rms(torch, x, t[f"{at}ln_1.weight"], eps))
        q, k, v = (z.unflatten(1, (heads, size)) for z in fused.split(heads * size, 1))
        q, k = (turn_halves(torch, z, cos, sin) for z in (q, k))
        x = x + linear(torch, t, f"{at}attn.c_proj", attend(torch, q, k, v))
        y = rms(torch, x, t[f"{at}ln_2.weight"], eps)
        one, two = (linear(torch, t, f"{at}mlp.{p}", y) for p in ("w1", "w2"))
        x = x + linear(torch, t, f"{at}mlp.c_proj", swiglu(torch, two, one))
    return linear(torch, t, "lm_head", rms(torch, x, t["transformer.ln_f.weight"], eps))


# ------------------------------------------------------------------------------------------------------------ Baichuan


def baichuan_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    h, i, v = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    shapes = {"model.embed_tokens.weight": (v, h), "model.norm.weight": (h,), "lm_head.weight": (v, h)}
    for n in range(config["num_hidden_layers"]):
        at = f"model.layers.{n}."
        shapes |= {f"{at}self_attn.W_pack.weight": (3 * h, h), f"{at}self_attn.o_proj.weight": (h, h)}
        shapes |= {f"{at}mlp.gate_proj.weight": (i, h), f"{at}mlp.up_proj.weight": (i, h)}
        shapes |= {f"{at}mlp.down_proj.weight": (h, i)}
        shapes |= {f"{at}{norm}_layernorm.weight": (h,) for norm in ("input", "post_attention")}
    return shapes


def alibi(torch: Any, heads: int) -> Any:
    """The slopes as the paper's code makes them."""

    def powers(count: int) -> list[float]:
        start = 2 ** (-(2 ** -(math.log2(count) - 3)))
        return [start * start**i for i in range(count)]

    lower = 2 ** math.floor(math.log2(heads))
    return torch.tensor(powers(lower) + powers(2 * lower)[0::2][: heads - lower])


def baichuan(torch: Any, config: dict[str, Any], t: Tensors, ids: Any) -> Any:
    heads, eps = config["num_attention_heads"], config["rms_norm_eps"]
    size = config["hidden_size"] // heads
    rotates = "max_position_embeddings" in config
    cos, sin = angles(torch, len(ids), size, 10000.0)
    x = t["model.embed_tokens.weight"][ids]
    for n in range(config["num_hidden_layers"]):
        at = f"model.layers.{n}."
        fused = linear(torch, t, f"{at}self_attn.W_pack", rms(torch, x, t[f"{at}input_layernorm.weight"], eps))
        q, k, v = (z.unflatten(1, (heads, size)) for z in fused.chunk(3, 1))
        if rotates:
            q, k = (turn_halves(torch, z, cos, sin) for z in (q, k))
        slopes = None if rotates else alibi(torch, heads)
        x = x + linear(torch, t, f"{at}self_attn.o_proj", attend(torch, q, k, v, slopes))
        y = rms(torch, x, t[f"{at}post_attention_layernorm.weight"], eps)
        gate, up = (linear(torch, t, f"{at}mlp.{p}_proj", y) for p in ("gate", "up"))
        x = x + linear(torch, t, f"{at}mlp.down_proj", swiglu(torch, gate, up))
    head = t["lm_head.weight"]
    if "z_loss_weight" in config:
        head = torch.nn.functional.normalize(head)
    return rms(torch, x, t["model.norm.weight"], eps) @ head.T


# ------------------------------------------------------------------------------------------------------------- ChatGLM


def chatglm_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    h, i, v = config["hidden_size"], config["ffn_hidden_size"], config["padded_vocab_size"]
    inner = config["num_attention_heads"] * config["kv_channels"]
    rows = inner + 2 * config["multi_query_group_num"] * config["kv_channels"]
    shapes = {"transformer.embedding.word_embeddings.weight": (v, h), "transformer.output_layer.weight": (v, h)}
    shapes |= {"transformer.encoder.final_layernorm.weight": (h,), "transformer.rotary_pos_emb.inv_freq": (2,)}
    for n in range(config["num_layers"]):
        at = f"transformer.encoder.layers.{n}."
        shapes |= {f"{at}{norm}_layernorm.weight": (h,) for norm in ("input", "post_attention")}
        shapes |= {
            f"{at}self_attention.query_key_value.weight": (rows, h),
            f"{at}self_attention.dense.weight": (h, inner),
        }
        shapes |= {f"{at}mlp.dense_h_to_4h.weight": (2 * i, h), f"{at}mlp.dense_4h_to_h.weight": (h, i)}
    names = ["query_key_value"] if config["add_qkv_bias"] or config["add_bias_linear"] else []
    return with_bias(shapes, *names, *(["dense"] if config["add_bias_linear"] else []))


def chatglm(torch: Any, config: dict[str, Any], t: Tensors, ids: Any) -> Any:
    heads, groups, size = config["num_attention_heads"], config["multi_query_group_num"], config["kv_channels"]
    eps = config["layernorm_epsilon"]
    ratio, divides = config.get("rope_ratio", 1), config["seq_length"] == 32_768 and config.get("rope_ratio") == 16
    base = config.get("rope_theta", 10000.0) * (1 if divides else ratio)
    cos, sin = angles(torch, len(ids), size // 2, base, ratio if divides else 1)
    x = t["transformer.embedding.word_embeddings.weight"][ids]
    for n in range(config["num_layers"]):
        at = f"transformer.encoder.layers.{n}."
        y = rms(torch, x, t[f"{at}input_layernorm.weight"], eps)
        fused = linear(torch, t, f"{at}self_attention.query_key_value", y)
        parts = fused.split([heads * size, groups * size, groups * size], 1)
        q, k, v = (z.unflatten(1, (-1, size)) for z in parts)
        q, k = (turn_pairs(torch, z, cos, sin) for z in (q, k))
        x = x + linear(torch, t, f"{at}self_attention.dense", attend(torch, q, k, v))
        y = rms(torch, x, t[f"{at}post_attention_layernorm.weight"], eps)
        gate, up = linear(torch, t, f"{at}mlp.dense_h_to_4h", y).chunk(2, 1)
        x = x + linear(torch, t, f"{at}mlp.dense_4h_to_h", swiglu(torch, gate, up))
    last = rms(torch, x, t["transformer.encoder.final_layernorm.weight"], eps)
    return linear(torch, t, "transformer.output_layer", last)


def _named(architecture: str, model_type: str, base: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    remote = {"auto_map": {"AutoModelForCausalLM": "modeling.Model"}, "torch_dtype": "float32"}
    return {**base, **changes, **remote, "architectures": [architecture], "model_type": model_type}


INTERNLM2 = SMALL | {"num_key_value_heads": 2, "max_position_embeddings": 64, "rope_theta": 1e6}
QWEN: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "kv_channels": 8, "layer_norm_epsilon": 1e-6, "rotary_emb_base": 10000, "rotary_pct": 1.0, "seq_length": 64,
    "max_position_embeddings": 64, "no_bias": True, "use_dynamic_ntk": True, "use_logn_attn": True,
}  # fmt: skip
CHATGLM: dict[str, Any] = {
    "padded_vocab_size": 61, "hidden_size": 32, "ffn_hidden_size": 48, "num_layers": 2, "num_attention_heads": 4,
    "kv_channels": 8, "multi_query_attention": True, "multi_query_group_num": 2, "layernorm_epsilon": 1e-5,
    "rmsnorm": True, "apply_residual_connection_post_layernorm": False, "post_layer_norm": True, "seq_length": 64,
    "add_bias_linear": False, "add_qkv_bias": True, "tie_word_embeddings": False, "eos_token_id": 2,
}  # fmt: skip


def _internlm(**changes: Any) -> Case:
    base = SMALL | {"max_position_embeddings": 64, "bias": True}
    return Case(_named("InternLMForCausalLM", "internlm", base, **changes), internlm_shapes, internlm)


def _internlm2(**changes: Any) -> Case:
    return Case(_named("InternLM2ForCausalLM", "internlm2", INTERNLM2, **changes), internlm2_shapes, internlm2)


def _qwen(**changes: Any) -> Case:
    return Case(_named("QWenLMHeadModel", "qwen", QWEN, **changes), qwen_shapes, qwen)


def _baichuan(architecture: str = "BaichuanForCausalLM", **changes: Any) -> Case:
    return Case(_named(architecture, "baichuan", SMALL, **changes), baichuan_shapes, baichuan)


def _chatglm(**changes: Any) -> Case:
    return Case(_named("ChatGLMModel", "chatglm", CHATGLM, **changes), chatglm_shapes, chatglm)


CASES: dict[str, Case] = {
    "internlm": _internlm(),
    "internlm, rotary base": _internlm(rotary={"base": 5000, "type": "dynamic"}),
    "internlm2": _internlm2(bias=False),
    "internlm2, biases, tied, multi-head": _internlm2(bias=True, tie_word_embeddings=True, num_key_value_heads=4),
    "qwen": _qwen(),
    "qwen, own head size": _qwen(kv_channels=16, rotary_emb_base=5000.0),
    "baichuan, first 7B": _baichuan("BaiChuanForCausalLM", max_position_embeddings=64),
    "baichuan 2, 7B": _baichuan(max_position_embeddings=64, model_max_length=64, z_loss_weight=0),
    "baichuan, 13B": _baichuan(model_max_length=64),
    "baichuan 2, 13B, six heads": _baichuan(
        model_max_length=64, z_loss_weight=0, num_attention_heads=6, hidden_size=48
    ),
    "chatglm": _chatglm(),
    "chatglm, one group, biases everywhere": _chatglm(multi_query_group_num=1, add_bias_linear=True, kv_channels=16),
    "chatglm 2, 32k": _chatglm(rope_ratio=16, seq_length=32768),
    "chatglm 3, 32k": _chatglm(rope_ratio=50, seq_length=32768),
    "glm-4": _chatglm(rope_ratio=500, seq_length=131072, layernorm_epsilon=1.5625e-07, eos_token_id=[2, 7]),
    "chatglm, a base of its own": _chatglm(rope_theta=3e5),
}
