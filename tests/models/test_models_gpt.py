"""GPT-like families against transformers, in float32: log-probabilities, greedy tokens, chunks that change no bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingot import models
from ingot.errors import CheckpointError
from tests.models.model_zoo import LONGROPE, EngineRunner, Runner, log_softmax

torch: Any = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed: nothing to compare with")

# transformers compiles parts of StarCoder with what torch has deprecated
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")

TOLERANCE = 1e-4
LENGTH = 40
CHUNKS = ([LENGTH], [7, 1, 16, 3, *[1] * (LENGTH - 27)])

GPT: dict[str, Any] = {"vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
LONG: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
NEOX, PHI, STAR = (LONG | {"num_attention_heads": 2},) * 3
OPT = {k: v for k, v in LONG.items() if k != "intermediate_size"} | {"ffn_dim": 48}
BLOOM = {"vocab_size": 61, "hidden_size": 32, "n_layer": 2, "n_head": 4}
MPT = {"vocab_size": 61, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64}
FALCON = {k: v for k, v in LONG.items() if k != "intermediate_size"}
RW = FALCON | {"alibi": True, "bias": True, "multi_query": False, "parallel_attn": False}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", GPT),
    "gpt2, own inner size, head of its own": (
        "GPT2LMHeadModel",
        GPT | {"n_inner": 56, "tie_word_embeddings": False, "activation_function": "relu", "layer_norm_epsilon": 1e-3},
    ),
    "gpt2, three heads of ten": ("GPT2LMHeadModel", GPT | {"n_embd": 30, "n_head": 3}),
    "starcoder, three heads of 18": ("GPTBigCodeForCausalLM", GPT | {"n_embd": 54, "n_head": 3}),
    "starcoder, multi-head, five heads of six": (
        "GPTBigCodeForCausalLM", GPT | {"n_embd": 30, "n_head": 5, "multi_query": False},
    ),
    "starcoder, multi-query": ("GPTBigCodeForCausalLM", GPT),
    "starcoder, multi-head": ("GPTBigCodeForCausalLM", GPT | {"multi_query": False, "tie_word_embeddings": False}),
    "gptj": ("GPTJForCausalLM", GPT | {"n_head": 2, "rotary_dim": 8, "n_inner": 48}),
    "gptj, whole heads": ("GPTJForCausalLM", GPT | {"rotary_dim": 8, "tie_word_embeddings": True}),
    "gpt-neox": ("GPTNeoXForCausalLM", NEOX),
    "gpt-neox, one after the other": (
        "GPTNeoXForCausalLM",
        NEOX
        | {"use_parallel_residual": False, "tie_word_embeddings": True, "hidden_act": "gelu_fast"}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 1.0}},
    ),
    "gpt-neox, no attention biases": (
        "GPTNeoXForCausalLM",
        NEOX
        | {"attention_bias": False}
        | {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5, "rope_theta": 1e4}},
    ),
    "opt": ("OPTForCausalLM", OPT | {"word_embed_proj_dim": 32}),
    "opt, as 350m": (
        "OPTForCausalLM",
        OPT | {"word_embed_proj_dim": 16, "do_layer_norm_before": False, "tie_word_embeddings": True},
    ),
    "opt, no biases": (
        "OPTForCausalLM",
        OPT | {"word_embed_proj_dim": 32, "enable_bias": False, "layer_norm_elementwise_affine": False}
        | {"tie_word_embeddings": False},
    ),
    "phi": ("PhiForCausalLM", PHI),
    "phi, grouped queries": (
        "PhiForCausalLM",
        LONG | {"num_key_value_heads": 2, "hidden_act": "gelu"}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}},
    ),
    "phi, longrope": (
        "PhiForCausalLM",
        PHI | {"rope_parameters": LONGROPE | {"original_max_position_embeddings": 16, "partial_rotary_factor": 0.5}},
    ),
    "starcoder2": ("Starcoder2ForCausalLM", STAR | {"num_key_value_heads": 1, "sliding_window": None}),
    "starcoder2, window, no biases": (
        "Starcoder2ForCausalLM",
        LONG | {"num_key_value_heads": 2, "sliding_window": 6, "use_bias": False, "tie_word_embeddings": False},
    ),
    "bloom": ("BloomForCausalLM", BLOOM),
    "bloom, heads that are no power of two, normed residuals": (
        "BloomForCausalLM",
        BLOOM | {"hidden_size": 48, "n_head": 6, "apply_residual_connection_post_layernorm": True}
        | {"tie_word_embeddings": False},
    ),
    "mpt": ("MptForCausalLM", MPT),
    "mpt, clipped, heads that are no power of two": (
        "MptForCausalLM",
        MPT | {"d_model": 48, "n_heads": 6, "tie_word_embeddings": False}
        | {"attn_config": {"clip_qkv": 0.8, "softmax_scale": 0.3}},
    ),
    "falcon, as 7b": ("FalconForCausalLM", FALCON),
    "falcon, as 40b": ("FalconForCausalLM", FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon, as 11b": (
        "FalconForCausalLM",
        FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1}
        | {"ffn_hidden_size": 80, "tie_word_embeddings": False, "activation": "gelu_new"}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 500042.0}},
    ),
    "falcon, as rw-1b": ("FalconForCausalLM", RW),
    "falcon, ALiBi for one key head, side by side": ("FalconForCausalLM", FALCON | {"alibi": True}),
    "falcon, multi-head, rotary, one after the other": (
        "FalconForCausalLM", FALCON | {"multi_query": False, "parallel_attn": False},
    ),
}  # fmt: skip


def make(architecture: str, settings: dict[str, Any], folder: Path, **save: Any) -> Any:
    """A seeded transformers model in float32, saved to `folder`; norm weights and biases are random too."""
    kind = getattr(transformers, architecture)
    torch.manual_seed(7)
    model = kind(kind.config_class(**{**ENDS, **settings})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.normal_(1.0 if name.endswith("weight") else 0.0, 0.2)
            elif "position" in name or "wpe" in name:
                parameter.normal_(0.0, 0.3)
            else:
                parameter.normal_(0.0, 0.25)
    model.save_pretrained(folder, **save)
    return model


def prompt() -> list[int]:
    return [int(i) for i in np.random.default_rng(11).integers(3, 61, LENGTH)]


def expected(model: Any, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        return log_softmax(model(torch.tensor([ids])).logits[0].numpy())


def greedy(runner: Runner, ids: list[int], count: int) -> list[int]:
    """The tokens that follow, each the most probable one."""
    logits = runner.step(ids)[-1]
    found = []
    for _ in range(count):
        found.append(int(logits.argmax()))
        logits = runner.step(found[-1:])[-1]
    return found


def largest_difference(name: str, folder: Path) -> float:
    """Of log-probabilities, of the network and of its engine; asserts whatever is exact on the way."""
    architecture, settings = CASES[name]
    model = make(architecture, settings, folder)
    ids = prompt()
    want = expected(model, ids)
    assert want.std() > 0.5, "log-probabilities that hardly differ show no mistake"
    loaded = models.load(folder)
    assert loaded.config["precision"] == "float32"
    differences = [np.abs(log_softmax(Runner(loaded).run(ids, chunks)) - want).max() for chunks in CHUNKS]
    whole, *parts = [EngineRunner(folder).run(ids, chunks) for chunks in CHUNKS]
    differences.append(np.abs(log_softmax(whole) - want).max())
    for part in parts:  # a row's result does not depend on its company
        np.testing.assert_array_equal(part, whole)
    with torch.no_grad():
        tokens = model.generate(
            torch.tensor([ids[:20]]), attention_mask=torch.ones(1, 20), max_new_tokens=20, do_sample=False,
            eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
    assert greedy(EngineRunner(folder), ids[:20], 20) == tokens[0, 20:].tolist()
    return float(max(differences))


@pytest.mark.sampled(2, by=lambda given: given["name"].split(",")[0])
@pytest.mark.parametrize("name", CASES)
def test_same_log_probabilities_and_greedy_tokens(name: str, tmp_path: Path) -> None:
    difference = largest_difference(name, tmp_path)
    print(f"{name}: {difference:.2g}")
    assert difference < TOLERANCE


REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "gpt2 with unscaled scores": ("GPT2LMHeadModel", GPT, {"scale_attn_weights": False}, "scale_attn_weights: only"),
    "gpt2 scaled by layer": (
        "GPT2LMHeadModel", GPT, {"scale_attn_by_inverse_layer_idx": True}, "by_inverse_layer_idx: only false",
    ),
    "gptj with half a pair": ("GPTJForCausalLM", GPT | {"rotary_dim": 8}, {"rotary_dim": 5}, "must be even"),
    "gptj wider than a head": ("GPTJForCausalLM", GPT | {"rotary_dim": 8}, {"rotary_dim": 10}, "rotary_dim"),
    "heads that do not divide": ("GPT2LMHeadModel", GPT, {"n_head": 5}, "n_embd: must be a multiple of n_head 5"),
    "odd heads": ("GPT2LMHeadModel", GPT, {"n_head": 4, "n_embd": 28}, "gives heads of 7 elements, and only even"),
    "phi with norms of queries": ("PhiForCausalLM", PHI, {"qk_layernorm": True}, "qk_layernorm"),
    "neox with an odd share": (
        "GPTNeoXForCausalLM", NEOX, {"rope_parameters": {"partial_rotary_factor": 0.2, "rope_type": "default"}},
        "it must be even",
    ),
    "opt without its last norm": ("OPTForCausalLM", OPT, {"_remove_final_layer_norm": True}, "final_layer_norm: only"),
    "mpt without ALiBi": ("MptForCausalLM", MPT, {"attn_config": {"alibi": False}}, "attn_config.alibi: only true"),
    "mpt with norms of queries": ("MptForCausalLM", MPT, {"attn_config": {"qk_ln": True}}, "qk_ln: only false"),
    "mpt, one key head": (
        "MptForCausalLM", MPT, {"attn_config": {"attn_type": "multiquery_attention"}}, 'only "multihead_attention"',
    ),
    "mpt, flatter": ("MptForCausalLM", MPT, {"attn_config": {"alibi_bias_max": 4}}, "alibi_bias_max: only 8"),
    "mpt with biases": ("MptForCausalLM", MPT, {"no_bias": False}, "no_bias: only true"),
    "mpt with scaled logits": ("MptForCausalLM", MPT, {"logit_scale": 0.5}, "logit_scale: only null"),
    "falcon, new but not parallel": (
        "FalconForCausalLM", FALCON | {"new_decoder_architecture": True}, {"parallel_attn": False}, "parallel_attn",
    ),
    "falcon, grouped but old": (
        "FalconForCausalLM", RW, {"num_kv_heads": 2}, "num_kv_heads: must be 4 where multi_query",
    ),
    "falcon, two norms but old": ("FalconForCausalLM", FALCON, {"num_ln_in_parallel_attn": 2}, "has two"),
    "an unknown activation": ("OPTForCausalLM", OPT, {"activation_function": "quick_gelu"}, "activation_function"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_supported_is_refused(name: str, tmp_path: Path) -> None:
    architecture, settings, changed, message = REFUSED[name]
    make(architecture, settings, tmp_path)
    models.load(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    with pytest.raises(CheckpointError, match=message):
        models.load(tmp_path)


def test_the_publishers_name_of_mpt(tmp_path: Path) -> None:
    make("MptForCausalLM", MPT, tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": ["MPTForCausalLM"]}))
    assert models.load(tmp_path).config["architecture"] == "MptForCausalLM"


def test_older_spellings_of_bloom(tmp_path: Path) -> None:
    make("BloomForCausalLM", BLOOM, tmp_path)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    values |= {"n_embed": values.pop("hidden_size"), "num_attention_heads": values.pop("n_head"), "seq_length": 33}
    path.write_text(json.dumps(values))
    assert models.load(tmp_path).config["context_length"] == 33
