"""Families of models on target cuda whose layers are not Llama's: what their products take in, and the CPU's text."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from tests.backends.cuda.interpreted import WITHOUT, one_of_each

torch: Any = pytest.importorskip("torch", reason="target cuda runs on torch's memory")
pytest.importorskip("triton", reason=WITHOUT)

from ingot.backends.cuda.examine import calls_of  # noqa: E402
from ingot.backends.cuda.program import Product  # noqa: E402
from tests.backends.cuda.llama import LLAMA, step  # noqa: E402

pytestmark = [pytest.mark.usefixtures("cuda_here"), pytest.mark.filterwarnings("ignore:overflow encountered")]

COMMON = {"vocab_size": 128, "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "float32", "initializer_range": 0.2}
FAMILIES: dict[str, dict[str, Any]] = {
    "gemma": LLAMA | {"architectures": ["GemmaForCausalLM"], "model_type": "gemma", "hidden_act": "gelu_pytorch_tanh"},
    "gpt2": COMMON | {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 1,
        "n_positions": 256, "n_inner": 96, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5},
    "phi": COMMON | {
        "architectures": ["PhiForCausalLM"], "model_type": "phi", "hidden_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 4, "intermediate_size": 96, "max_position_embeddings": 256, "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-5, "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    "opt": COMMON | {
        "architectures": ["OPTForCausalLM"], "model_type": "opt", "hidden_size": 64, "word_embed_proj_dim": 64,
        "num_hidden_layers": 1, "num_attention_heads": 4, "ffn_dim": 96, "max_position_embeddings": 256,
        "activation_function": "relu", "init_std": 0.2},
    "falcon": COMMON | {
        "architectures": ["FalconForCausalLM"], "model_type": "falcon", "hidden_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 4, "multi_query": True, "parallel_attn": True, "bias": False, "alibi": False,
        "new_decoder_architecture": False},
    "qwen2": LLAMA | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_attention_heads": 4,
                      "num_key_value_heads": 2},
}  # fmt: skip
FAMILIES |= {  # heads of 80, of which a part turns, and of 96
    "phi-2": FAMILIES["phi"] | {"hidden_size": 160, "num_attention_heads": 2, "partial_rotary_factor": 0.4},
    "phi-3": COMMON | {
        "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "hidden_size": 192, "intermediate_size": 64,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 256,
        "original_max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "hidden_act": "silu",
        "pad_token_id": 0, "tie_word_embeddings": False},
    "neox": COMMON | {
        "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "hidden_size": 160,
        "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 2, "rotary_pct": 0.25,
        "max_position_embeddings": 256, "hidden_act": "gelu", "layer_norm_eps": 1e-5, "rotary_emb_base": 10000,
        "use_parallel_residual": True, "tie_word_embeddings": False},
}  # fmt: skip
# Calls that stand by themselves by torch forms: what is left of a step, none of it in a layer but views and, of Phi and
# GPT-NeoX, whose halves are both added, the sum of one of them; of Phi-3, whose gate and up are one weight, the gate.
FORMS = {
    "gemma": {"mul": 1, "reshape": 4, "rms_norm": 1},
    "gpt2": {"add": 1, "slice": 3, "reshape": 5, "greater_equal": 1, "where": 1},
    "phi": {"add": 1, "reshape": 5, "greater_equal": 1, "where": 1},
    "opt": {"add": 2, "reshape": 5, "greater_equal": 1, "where": 1},
    "falcon": {"add": 1, "slice": 3, "reshape": 6, "greater_equal": 1, "where": 1},
    "qwen2": {"reshape": 4, "rms_norm": 1},
    "phi-2": {"add": 1, "reshape": 5, "greater_equal": 1, "where": 1},
    "phi-3": {"slice": 5, "reshape": 4, "rms_norm": 1, "silu": 1, "mul": 1},
    "neox": {"add": 1, "slice": 3, "reshape": 3, "greater_equal": 1, "where": 1},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Builds a small model of a family with random weights, once in every form."""

    @cache
    def engine(family: str, weights: str = "same", precision: str = "float32") -> Any:
        folder: Path = tmp_path_factory.mktemp(family)
        (folder / "config.json").write_text(json.dumps(FAMILIES[family]))
        words = {"precision": precision, "weights": weights}
        return ingot.build(folder, weights_from="random", seed=1, report=False, **words)

    return engine


@pytest.mark.parametrize("family", FAMILIES)
def test_what_stands_by_itself(made: Any, family: str) -> None:
    """No norm of a layer, bias or activation: as `inspect` tells it."""
    engine = made(family)
    found = calls_of(engine.header, engine.external, engine.entries[0])
    assert not any(call["runs"].startswith("host") for call in found)
    assert Counter(call["call"] for call in found if call["runs"] == "torch form") == FORMS[family]


def test_calls_of_a_gpt2(made: Any) -> None:
    """A layer is four products and one attention; its weights are stored as [inputs, outputs]."""
    products = [c for c in _calls(made("gpt2")) if isinstance(c, Product)]
    assert [c.norm is not None for c in products] == [True, False, True, False, True]
    assert [c.factors[0].turned for c in products] == [True] * 4 + [False]
    qkv, output, up, down, head = products
    assert qkv.extra is not None and qkv.bias is None and up.extra is None and up.bias is not None
    assert up.activation == "gelu_tanh" and down.activation == ""
    for call in (output, down):
        assert call.bias is not None and call.extra is not None and len(call.extra.shape) == 2
    assert head.extra is None and head.bias is None


@pytest.mark.parametrize(("family", "weights"), [("qwen2", "same"), ("qwen2", "int8"), ("phi", "fp8")])
def test_query_key_and_value_with_biases_are_one_product(made: Any, family: str, weights: str) -> None:
    """Their biases lie one behind the other, and the parameters are views of them."""
    arranged = made(family, weights).on("cuda").session(kv_blocks=4)._executor._made
    number, call = next((n, c) for n, c in enumerate(arranged.calls) if isinstance(c, Product))
    assert [len(call.factors), len(call.biases), len(call.outs)] == [3, 3, 3] and call.extra is None
    kept = [arranged.loaded.tensors[v] for v in call.biases]
    assert torch.equal(arranged.biases[number], torch.cat(kept))
    assert {t.untyped_storage().data_ptr() for t in kept} == {arranged.biases[number].data_ptr()}
    assert (call.norm is not None) == (family == "qwen2")  # Phi's norm has more readers


def test_a_bias_of_logits_is_read_as_it_is_stored(made: Any) -> None:
    """Nothing makes float32 of it in a step."""
    head = [c for c in _calls(made("phi", precision="bfloat16")) if isinstance(c, Product)][-1]
    assert head.extra.kind == "parameter" and head.extra.dtype.name == "bfloat16"
    assert head.outs[0].dtype.name == "float32" and "cast" in {node.op.name for node in head.nodes}


def _calls(built: Any) -> Any:
    return built.on("cuda").session(kv_blocks=4)._executor._made.calls


@one_of_each(lambda a: a["family"] == "gpt2")
@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_step(made: Any, family: str, rows: int) -> None:
    """The logits of a step as torch's."""
    feeds = step(rows, 17, 2)
    found, expected = (made(family).on(d).session(kv_blocks=2 * rows).run(feeds)["logits"] for d in ("cuda", "torch"))
    assert np.abs(found - expected).max() <= 2e-5 * np.abs(expected).max()


@one_of_each(lambda a: a["family"] == "gpt2")
@pytest.mark.parametrize(("family", "weights"), [
    ("gemma", "same"), ("gpt2", "same"), ("opt", "fp8"), ("qwen2", "int8"), ("phi-2", "same"), ("phi-3", "int8"),
    ("neox", "same"),
])  # fmt: skip
def test_text(made: Any, family: str, weights: str) -> None:
    """Greedy text as on the CPU."""
    built = made(family, weights)
    prompt, words = [5, 9, 77, 3, 12], {"max_tokens": 3, "ignore_end": True}
    expected = ingot.LLM(built).generate(prompt, **words)
    with ingot.LLM(built, device="cuda") as llm:
        assert llm.generate(prompt, **words).token_ids == expected.token_ids
