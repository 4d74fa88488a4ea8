"""config.json that must be refused, each with what is wrong; names, shapes and tokens around the weights."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from ingot import LLM, build, models
from ingot.errors import CheckpointError, UserError
from ingot.models.tokens import beginning
from ingot.models.weights import parameter_specs

GOOD: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def write(
    folder: Path, config: dict[str, Any] | None = None, change: Callable[[dict[str, Any]], Any] | None = None
) -> Path:
    """A whole model directory with random weights; `change` alters the tensors before they are saved."""
    config = GOOD if config is None else config
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name: np.asarray(array) for name, array in models.load_config_only(folder).weights.items()}
    if change is not None:
        change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


def parse(**changes: Any) -> Any:
    values = {key: value for key, value in (GOOD | changes).items() if value is not ...}
    return models.parse_config(values, Path("here"))


LONG = {"type": "su", "short_factor": [1.0, 1.5], "long_factor": [1.0, 2.5], "original_max_position_embeddings": 16}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"num_attention_heads": 0}, r"num_attention_heads: must lie in 1\.\.65,536, not 0"),
    ({"num_attention_heads": -4}, "num_attention_heads: must lie in"),
    ({"num_attention_heads": 3, "num_key_value_heads": 3}, "hidden_size: must be a multiple of num_attention_heads 3"),
    ({"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 8}, "hidden_size: must be a multiple"),
    ({"num_key_value_heads": 8}, "num_key_value_heads: must divide num_attention_heads 4, but is 8"),
    ({"num_key_value_heads": 3}, "num_key_value_heads: must divide"),
    ({"num_key_value_heads": 0}, "num_key_value_heads: must lie in"),
    ({"head_dim": 5}, "head_dim: must be even"),
    ({"head_dim": 10**6}, "head_dim: must lie in"),
    ({"num_hidden_layers": 10**9}, r"num_hidden_layers: must lie in 1\.\.1,000, not 1,000,000,000"),
    ({"num_hidden_layers": 0}, "num_hidden_layers: must lie in"),
    ({"vocab_size": 0}, "vocab_size: must lie in"),
    ({"vocab_size": 2**40}, "vocab_size: must lie in"),
    ({"hidden_size": "16"}, "hidden_size: must be an integer, not '16'"),
    ({"hidden_size": 16.5}, "hidden_size: must be an integer, not 16.5"),
    ({"hidden_size": True}, "hidden_size: must be an integer, not True"),
    ({"hidden_size": ...}, "hidden_size: is missing"),
    ({"intermediate_size": -1}, "intermediate_size: must lie in"),
    ({"max_position_embeddings": 2**40}, "max_position_embeddings: must lie in"),
    ({"rms_norm_eps": 0}, "rms_norm_eps: must be greater than 0"),
    ({"rms_norm_eps": "small"}, "rms_norm_eps: must be a number"),
    ({"rms_norm_eps": float("nan")}, "rms_norm_eps: must be greater than 0 and at most 1, not nan"),
    ({"rope_theta": 0}, "rope_theta: must be greater than 1"),
    ({"rope_theta": -1.0}, "rope_theta: must be greater than 1"),
    ({"rope_theta": float("nan")}, "rope_theta: must be greater than 1"),
    ({"rope_scaling": {"type": "magic", "factor": 2.0}}, "rope_scaling.type: 'magic' is not supported; supported are"),
    ({"rope_scaling": {"rope_type": "longrope"}}, "rope_scaling.original_max_position_embeddings: is missing"),
    ({"rope_scaling": LONG | {"long_factor": [1.0]}}, "rope_scaling.long_factor: must be a list of 2 positive numbers"),
    ({"rope_scaling": LONG | {"short_factor": [1.0, 0.0]}}, "rope_scaling.short_factor: must be a list of 2 positive"),
    ({"rope_scaling": LONG | {"short_factor": [1.0, float("nan")]}}, "short_factor: must be a list of 2 positive"),
    ({"rope_scaling": LONG | {"long_factor": 3}}, "rope_scaling.long_factor: must be a list of 2 positive"),
    ({"rope_scaling": LONG, "original_max_position_embeddings": 1}, "original_max_position_embeddings: must lie in 2"),
    ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor: is missing"),
    ({"rope_scaling": {"type": "linear", "factor": 0}}, "rope_scaling.factor: must be greater than 0"),
    ({"rope_scaling": "linear"}, "rope_scaling: must be an object"),
    (
        {"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1}},
        "rope_scaling.high_freq_factor: must be greater than low_freq_factor 4",
    ),
    (
        {"rope_parameters": {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 0}},
        "rope_parameters.original_max_position_embeddings: must lie in",
    ),
    ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ({"hidden_act": "swigloo"}, "hidden_act: 'swigloo' is not supported; supported are gelu"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings: must be true or false"),
    ({"torch_dtype": "int8"}, "torch_dtype: 'int8' is not one of"),
    ({"eos_token_id": [2, "x"]}, "eos_token_id: must be token ids"),
    ({"bos_token_id": -1}, "bos_token_id: must be token ids"),
    (
        {"architectures": ["EvilForCausalLM"], "auto_map": {"AutoModel": "evil.py"}},
        r"EvilForCausalLM.*auto_map.*supported are",
    ),
    ({"architectures": []}, "is not supported"),
    ({"architectures": "LlamaForCausalLM"}, "is not supported"),
    ({"architectures": None, "model_type": "t5"}, "'t5' is not supported"),
    ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, r"weights are quantised \(gptq\)"),
    ({"quantization_config": {"quant_method": "nonsense"}}, r"weights are quantised \(nonsense\)"),
    ({"quantization_config": 3}, "weights are quantised"),
]


@pytest.mark.parametrize(("changes", "message"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        parse(**changes)


def test_all_faults_at_once() -> None:
    with pytest.raises(CheckpointError) as caught:
        parse(num_attention_heads=0, vocab_size=-1, rope_theta=0, hidden_act="?")
    for name in ("num_attention_heads", "vocab_size", "rope_theta", "hidden_act"):
        assert f"\n  {name}: " in str(caught.value)


CHATGLM = {"num_layers": 2, "multi_query_group_num": 2, "kv_channels": 8, "ffn_hidden_size": 24,
           "padded_vocab_size": 40, "seq_length": 32, "layernorm_epsilon": 1e-5}  # fmt: skip
GLM = CHATGLM | {"rope_theta": ...}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8}
QWEN = {"kv_channels": 8, "seq_length": 32, "layer_norm_epsilon": 1e-6, "num_key_value_heads": ...}
FAMILY_BAD: list[tuple[str, dict[str, Any], str]] = [
    ("Gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention: is true, but only causal"),
    ("Gemma", {"hidden_activation": "x"}, "hidden_activation: 'x' is not supported"),
    ("Gemma2", {"attn_logit_softcapping": 0}, "attn_logit_softcapping: must be greater than 0"),
    ("Gemma2", {"final_logit_softcapping": -1.0}, "final_logit_softcapping: must be greater than 0"),
    ("Gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar: must be greater than 0"),
    ("Gemma2", {"sliding_window": 10**12}, "sliding_window: must lie in"),
    ("Gemma2", {"layer_types": ["full_attention", "odd"]}, "layer_types: must name one of full_attention, sliding"),
    ("Gemma3", {"layer_types": ["full_attention"] * 10**4}, "layer_types: must name"),
    ("Gemma3", {"sliding_window_pattern": 0}, "sliding_window_pattern: must lie in"),
    ("Gemma3", {"attn_logit_softcapping": 30.0}, "attn_logit_softcapping: scores of Gemma 3 are not capped"),
    ("Gemma3", {"rope_local_base_freq": float("nan")}, "rope_local_base_freq: must be greater than 1"),
    ("Gemma3", {"rope_parameters": {"full_attention": {"rope_type": "longrope"}}},
     "rope_parameters.full_attention.rope_type: 'longrope' is not supported beside"),
    ("Gemma3", {"rope_parameters": {"full_attention": "default"}}, "rope_parameters.full_attention: must be an object"),
    ("Phi3", {"rope_scaling": {"type": "longrope", "long_factor": [1.0]}}, "rope_scaling.short_factor: must be a list"),
    ("Phi3", {"partial_rotary_factor": 0.01}, "partial_rotary_factor: 0 of 4 elements"),
    ("Phi3", {"sliding_window": -3}, "sliding_window: must lie in"),
    ("InternLM", {"rotary": {"type": "magic", "base": 1e4}}, "rotary.type: 'magic' is not supported"),
    ("InternLM", {"rotary": {"type": "dynamic", "base": 0}}, "rotary.base: must be greater than 1"),
    ("InternLM", {"bias": "yes"}, "bias: must be true or false"),
    ("InternLM2", {"num_key_value_heads": 3}, "num_key_value_heads: must divide"),
    ("QWen", QWEN | {"seq_length": ...}, "seq_length: is missing"),
    ("QWen", QWEN | {"kv_channels": 7}, "kv_channels: must be even"),
    ("QWen", QWEN | {"intermediate_size": 25}, "intermediate_size: counts both halves of the MLP"),
    ("QWen", QWEN | {"rotary_pct": 0.5}, "rotary_pct: these families rotate whole heads"),
    ("Baichuan", {"max_position_embeddings": ...}, "model_max_length: is missing"),
    ("Baichuan", {"z_loss_weight": 0, "tie_word_embeddings": True}, "tie_word_embeddings: is true, but Baichuan 2"),
    ("ChatGLM", GLM | {"rope_ratio": 50}, 'rope_ratio: 50 with 32 positions.*"factor": 50} or rope_theta 500000'),
    ("ChatGLM", GLM | {"rope_ratio": 0}, "rope_ratio: must be greater than 0"),
    ("ChatGLM", CHATGLM | {"rope_ratio": 4, "rope_theta": 1e5}, "rope_ratio: is 4 beside rope_theta"),
    ("ChatGLM", CHATGLM | {"multi_query_attention": False}, "multi_query_attention: is false, which no ChatGLM"),
    ("ChatGLM", CHATGLM | {"rmsnorm": 1}, "rmsnorm: must be true or false"),
    ("ChatGLM", CHATGLM | {"kv_channels": 6}, "kv_channels: must be a multiple of 4"),
    ("ChatGLM", CHATGLM | {"multi_query_group_num": 0}, "multi_query_group_num: must lie in"),
    ("Mixtral", {"num_local_experts": 0}, "num_local_experts: must lie in"),
    ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 5}, "num_experts_per_tok: must be at most num_local"),
    ("Qwen2Moe", MOE | {"num_experts": 10**9}, "num_experts: must lie in"),
    ("Qwen2Moe", MOE | {"shared_expert_intermediate_size": ...}, "shared_expert_intermediate_size: is missing"),
    ("Qwen2Moe", MOE | {"mlp_only_layers": [7]}, "mlp_only_layers: must list layers below 2"),
    ("Qwen3Moe", MOE | {"mlp_only_layers": "none"}, "mlp_only_layers: must list"),
    ("Qwen3Moe", MOE | {"decoder_sparse_step": 0}, "decoder_sparse_step: must lie in"),
    ("Qwen3Moe", MOE | {"moe_intermediate_size": -1}, "moe_intermediate_size: must lie in"),
    ("ChatGLM", {"num_layers": ...}, "num_layers: is missing"),
]  # fmt: skip
SUFFIX = {"QWen": "LMHeadModel", "ChatGLM": "Model"}


@pytest.mark.parametrize(("family", "changes", "message"), FAMILY_BAD, ids=map(str, range(len(FAMILY_BAD))))
def test_family_refused(family: str, changes: dict[str, Any], message: str) -> None:
    """Faults of one family's own fields, under the names that its config.json has."""
    with pytest.raises(CheckpointError, match=message):
        parse(architectures=[family + SUFFIX.get(family, "ForCausalLM")], **changes)


def test_checkpoints_without_the_base_prefix(tmp_path: Path) -> None:
    """Saved from the model without its head, as transformers' AutoModel does; the head is then the table."""
    config = GOOD | {"architectures": ["GemmaForCausalLM"], "tie_word_embeddings": True, "head_dim": 4}

    def bare(tensors: dict[str, np.ndarray]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("model.")] = tensors.pop(name)

    whole, short = models.load(write(tmp_path / "whole", config)), models.load(write(tmp_path / "short", config, bare))
    assert list(whole.weights) == list(short.weights)
    for name in whole.weights:
        np.testing.assert_array_equal(whole.weights[name], short.weights[name])


def test_normalised_heads(tmp_path: Path) -> None:
    """Baichuan 2's head: rows of length 1, whatever the file holds; a row of zeros stays one."""

    def zero(tensors: dict[str, np.ndarray]) -> None:
        tensors["lm_head.weight"][5] = 0

    config = GOOD | {"architectures": ["BaichuanForCausalLM"], "num_key_value_heads": 4}
    plain = models.load(write(tmp_path / "one", config, zero)).weights["lm_head.weight"]
    unit = models.load(write(tmp_path / "two", config | {"z_loss_weight": 0}, zero)).weights["lm_head.weight"]
    lengths = np.linalg.norm(plain, axis=1, keepdims=True)
    np.testing.assert_allclose(unit * lengths, plain, rtol=1e-6)
    np.testing.assert_allclose(np.delete(np.linalg.norm(unit, axis=1), 5), 1, rtol=1e-6)


def test_other_families_refuse_too() -> None:
    with pytest.raises(CheckpointError, match="sliding_window: must lie in"):
        parse(architectures=["MistralForCausalLM"], sliding_window=0)
    with pytest.raises(CheckpointError, match="layer_types: must name"):
        parse(architectures=["Qwen2ForCausalLM"], use_sliding_window=True, layer_types=["full_attention"])
    with pytest.raises(CheckpointError, match="layer_types: must name one of full_attention for"):
        parse(architectures=["Qwen2ForCausalLM"], layer_types=["full_attention", "sliding_attention"])
    with pytest.raises(CheckpointError, match="use_sliding_window: must be true or false"):
        parse(architectures=["Qwen3ForCausalLM"], use_sliding_window=1)


def test_defaults_that_families_do_not_share() -> None:
    assert parse(architectures=["MistralForCausalLM"]).windows == (4096, 4096)
    assert parse(architectures=["MistralForCausalLM"], sliding_window=None).windows == (None, None)
    assert parse(architectures=["Qwen3ForCausalLM"]).head_dim == 128
    assert parse(architectures=None, model_type="qwen2").qkv_bias
    assert parse(num_key_value_heads=...).num_kv_heads == 4
    assert (
        parse(rope_scaling={"type": "yarn", "factor": 4, "original_max_position_embeddings": 32}).context_length == 128
    )


# ------------------------------------------------------------------------------------------------ weights


def test_all_wrong_weights_in_one_error(tmp_path: Path) -> None:
    def spoil(tensors: dict[str, np.ndarray]) -> None:
        del tensors["model.norm.weight"], tensors["lm_head.weight"]
        tensors["model.layers.0.self_attn.q_proj.bias"] = np.zeros(16, np.float32)
        tensors["model.embed_tokens.weight"] = np.zeros((41, 16), np.float32)
        tensors["model.layers.1.mlp.up_proj.weight"] = np.zeros((24, 16), np.int8)

    with pytest.raises(CheckpointError) as caught:
        models.load(write(tmp_path, change=spoil))
    message = str(caught.value)
    assert "2 missing, 1 unexpected, 2 mismatched" in message
    assert "\n  model.norm.weight" in message and "\n  lm_head.weight" in message
    assert "\n  model.layers.0.self_attn.q_proj.bias" in message
    assert "model.embed_tokens.weight: shape [41, 16] in the file, [40, 16] by config.json" in message
    assert "model.layers.1.mlp.up_proj.weight: stored as int8" in message


def test_ignored_names(tmp_path: Path) -> None:
    def older(tensors: dict[str, np.ndarray]) -> None:
        for i in range(2):
            tensors[f"model.layers.{i}.self_attn.rotary_emb.inv_freq"] = np.ones(2, np.float32)

    assert len(models.load(write(tmp_path, change=older)).weights) == len(parameter_specs(models.load(tmp_path).module))


def test_code_in_the_folder_is_never_run(tmp_path: Path) -> None:
    folder = write(tmp_path, GOOD | {"auto_map": {"AutoModelForCausalLM": "bait.Bait"}, "trust_remote_code": True})
    (folder / "bait.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    assert models.load(folder).config["architecture"] == "LlamaForCausalLM"
    assert not (tmp_path / "executed").exists() and "bait" not in sys.modules


def test_tied(tmp_path: Path) -> None:
    config = GOOD | {"tie_word_embeddings": True}

    def head(array: Callable[[np.ndarray], np.ndarray]) -> Callable[[dict[str, np.ndarray]], None]:
        return lambda t: t.update({"lm_head.weight": array(t["model.embed_tokens.weight"])})

    plain = models.load(write(tmp_path / "plain", config))
    assert plain.module.lm_head.weight is plain.module.model.embed_tokens.weight
    assert "lm_head.weight" not in plain.weights
    same = models.load(write(tmp_path / "same", config, head(np.copy)))
    assert "lm_head.weight" not in same.weights
    other = models.load(write(tmp_path / "other", config, head(lambda a: a + 1)))
    np.testing.assert_array_equal(other.weights["lm_head.weight"], other.weights["model.embed_tokens.weight"] + 1)

    def only_head(tensors: dict[str, np.ndarray]) -> None:
        tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")

    swapped = models.load(write(tmp_path / "swapped", config, only_head))
    np.testing.assert_array_equal(
        swapped.weights["model.embed_tokens.weight"], plain.weights["model.embed_tokens.weight"]
    )
    with pytest.raises(CheckpointError, match=r"1 missing.*\n missing:\n  model.embed_tokens.weight"):
        models.load(write(tmp_path / "none", config, lambda t: t.pop("model.embed_tokens.weight")))


def test_precision(tmp_path: Path) -> None:
    def large(tensors: dict[str, np.ndarray]) -> None:
        tensors["model.norm.weight"][3] = 1e6

    folder = write(tmp_path, change=large)
    assert models.load(folder).config["precision"] == "float32"
    assert models.load(folder, "bfloat16").weights["model.norm.weight"].dtype == ml_dtypes.bfloat16
    with pytest.raises(UserError, match="precision must be one of float32, bfloat16, float16, not 'int8'"):
        models.load(folder, "int8")
    with pytest.raises(CheckpointError, match="model.norm.weight: 1 numbers are too large for float16"):
        models.load(folder, "float16").weights["model.norm.weight"]


def test_random_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GOOD | {"hidden_size": 256, "torch_dtype": "bfloat16"}))
    one, again, other = (models.load_config_only(tmp_path, seed) for seed in (0, 0, 1))
    assert one.config["precision"] == "bfloat16"
    for name, parameter in one.module.named_parameters():
        array = one.weights[name]
        assert array.shape == parameter.shape and array.dtype == parameter.dtype.numpy
        np.testing.assert_array_equal(array, again.weights[name])
        if array.ndim == 2:
            assert (array != other.weights[name]).mean() > 0.9
            assert abs(float(array.astype(np.float32).std()) - 0.02) < 0.002
        else:
            assert (array == 1).all()
    with pytest.raises(UserError, match="seed must be an int"):
        models.load_config_only(tmp_path, -1)


# ------------------------------------------------------------------------------------------------ tokens

TEMPLATE = {
    "type": "Sequence",
    "processors": [
        {"type": "ByteLevel"},
        {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        },
    ],
}
TOKENIZER = {"added_tokens": [{"id": 7, "content": "<s>"}], "model": {"vocab": {"<other>": 9}}}


@pytest.mark.parametrize(
    ("tokenizer", "settings", "expected"),
    [
        ({}, {}, (False, 1)),
        (TOKENIZER | {"post_processor": TEMPLATE}, {}, (True, 7)),
        (TOKENIZER | {"post_processor": TEMPLATE}, {"add_bos_token": False, "bos_token": "<s>"}, (False, 7)),
        (TOKENIZER | {"post_processor": None}, {"add_bos_token": True, "bos_token": "<s>"}, (True, 7)),
        (TOKENIZER, {"add_bos_token": True, "bos_token": {"content": "<other>"}}, (True, 9)),
        (TOKENIZER, {"add_bos_token": True}, (True, 1)),
        ({"post_processor": {"type": "TemplateProcessing", "single": "A"}}, {"add_bos_token": None}, (False, 1)),
    ],
)
def test_beginning(tokenizer: dict[str, Any], settings: dict[str, Any], expected: tuple[bool, int | None]) -> None:
    assert beginning(tokenizer, settings, 1) == expected


def test_marks_outside_of_the_vocabulary(tmp_path: Path) -> None:
    """Those that no text has are left out, as in transformers, and the engine opens; a beginning of all is refused."""
    folder = write(tmp_path / "m", GOOD | {"bos_token_id": 50256, "eos_token_id": [2, 50256]})
    loaded = models.load(folder)
    assert (loaded.config["bos_token_id"], loaded.config["eos_token_ids"]) == (None, [2])
    assert loaded.config["left_out"] == [
        "bos_token_id 50256, outside of its vocabulary of 40", "eos_token_id 50256, outside of its vocabulary of 40",
    ]  # fmt: skip
    built = build(folder, report=False, progress=False)
    assert LLM(built).left_out == tuple(loaded.config["left_out"])
    (folder / "tokenizer_config.json").write_text('{"add_bos_token": true}')
    with pytest.raises(CheckpointError, match=r"config\.json: bos_token_id: 50256 is outside of its vocabulary of 40"):
        models.load(folder)


def test_ends_come_from_generation_config(tmp_path: Path) -> None:
    folder = write(tmp_path)
    assert models.load(folder).config["eos_token_ids"] == [2]
    (folder / "generation_config.json").write_text('{"eos_token_id": [3, 4]}')
    loaded = models.load(folder)
    assert loaded.config["eos_token_ids"] == [3, 4]
    assert loaded.files == {"generation_config.json": b'{"eos_token_id": [3, 4]}'}
    (folder / "generation_config.json").write_text('{"eos_token_id": "x"}')
    with pytest.raises(CheckpointError, match="generation_config.json"):
        models.load(folder)
