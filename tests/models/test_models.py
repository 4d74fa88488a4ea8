"""Every family and rotary scaling against transformers, in float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingot import models
from ingot.builder.build import build
from ingot.ir.interpret import interpret
from tests.models import reference_models
from tests.models.model_zoo import CASES, EngineRunner, Runner, log_softmax, make

torch: Any = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed: nothing to compare with")

TOLERANCE = 1e-4
LENGTH = 40
CHUNKS = ([LENGTH], [7, 1, 16, 3, *[1] * (LENGTH - 27)])


def prompt() -> list[int]:
    return [int(i) for i in np.random.default_rng(11).integers(0, 61, LENGTH)]


def expected(model: Any, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        return log_softmax(model(torch.tensor([ids])).logits[0].numpy())


@pytest.mark.sampled(2, by=lambda given: given["name"].split(",")[0])
@pytest.mark.parametrize("name", CASES)
def test_same_log_probabilities(name: str, tmp_path: Path) -> None:
    family, settings = CASES[name]
    model = make(transformers, torch, family, settings, tmp_path)
    compare(tmp_path, expected(model, prompt()))


@pytest.mark.parametrize("name", reference_models.CASES)
def test_same_log_probabilities_as_the_plain_form(name: str, tmp_path: Path) -> None:
    """Families that transformers does not run without code from the checkpoint."""
    case = reference_models.CASES[name]
    tensors = reference_models.make(torch, case, tmp_path)
    compare(tmp_path, log_softmax(case.forward(torch, case.config, tensors, torch.tensor(prompt())).numpy()))


def compare(folder: Path, want: np.ndarray) -> None:
    """The model's log-probabilities of the prompt: interpreted and on an engine, at once and in chunks."""
    ids = prompt()
    loaded = models.load(folder)
    assert loaded.config["precision"] == "float32"
    for chunks in CHUNKS:
        got = log_softmax(Runner(loaded).run(ids, chunks))
        np.testing.assert_allclose(got, want, atol=TOLERANCE, rtol=0)
    whole, *parts = [EngineRunner(folder).run(ids, chunks) for chunks in CHUNKS]
    np.testing.assert_allclose(log_softmax(whole), want, atol=TOLERANCE, rtol=0)
    np.testing.assert_array_equal(whole.argmax(-1), want.argmax(-1))
    for part in parts:  # a row's result does not depend on its company
        np.testing.assert_array_equal(part, whole)


OLD_SPELLINGS: dict[str, dict[str, Any]] = {
    "linear": {"type": "linear", "factor": 2.0},
    "dynamic": {"type": "dynamic", "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "none": {},
}


@pytest.mark.parametrize("kind", OLD_SPELLINGS)
def test_rope_scaling_beside_rope_theta(kind: str, tmp_path: Path) -> None:
    """config.json as transformers wrote it before version 5, read by both."""
    make(transformers, torch, "Llama", {}, tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    del config["rope_parameters"]
    config |= {"rope_theta": 123456.0, "rope_scaling": OLD_SPELLINGS[kind] or None}
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config))
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path).eval()
    ids = prompt()
    got = log_softmax(Runner(models.load(tmp_path)).run(ids, [LENGTH]))
    np.testing.assert_allclose(got, expected(model, ids), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("theta", [10000.0, 500000.0, 1e6])
@pytest.mark.parametrize("head_dim", [16, 64, 80, 128])
def test_inverse_frequencies_equal_those_of_transformers(theta: float, head_dim: int) -> None:
    values = {"hidden_size": 2 * head_dim, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 8}
    values |= {"intermediate_size": 8, "max_position_embeddings": 131072, "head_dim": head_dim}
    scalings: list[dict[str, Any]] = [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "dynamic", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ]
    for scaling in scalings:
        parameters = scaling | {"rope_theta": theta}
        config = transformers.LlamaConfig(**values, rope_parameters=dict(parameters))
        theirs = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
        ours = models.parse_config(
            values | {"architectures": ["LlamaForCausalLM"], "rope_parameters": parameters}, Path("here")
        ).rope
        np.testing.assert_allclose(ours.inv_freq, theirs.inv_freq.numpy(), rtol=3e-7)
        assert ours.scale == pytest.approx(theirs.attention_scaling, rel=1e-12)


@pytest.mark.parametrize("tied", [False, True])
def test_sharded(tied: bool, tmp_path: Path) -> None:
    settings = {"tie_word_embeddings": tied}
    model = make(transformers, torch, "Llama", settings, tmp_path / "one")
    make(transformers, torch, "Llama", settings, tmp_path / "many", max_shard_size="8KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 3
    one, many = models.load(tmp_path / "one"), models.load(tmp_path / "many")
    assert list(one.weights) == list(many.weights)
    for name in one.weights:
        np.testing.assert_array_equal(one.weights[name], many.weights[name])
    np.testing.assert_array_equal(
        one.weights["model.layers.1.mlp.up_proj.weight"], model.model.layers[1].mlp.up_proj.weight.detach().numpy()
    )


def test_requests_and_padding_in_one_step(tmp_path: Path) -> None:
    """A prefill, a decode, an empty request and padding rows side by side give what each gives alone."""
    make(transformers, torch, "Qwen3", {"head_dim": 16}, tmp_path)
    loaded = models.load(tmp_path)
    ids = prompt()
    first, second = Runner(loaded), Runner(loaded)
    want_first = first.run(ids[:9], [9])
    want_second = second.run(ids[20:31], [10, 1])[-1]
    both = Runner(loaded, blocks=8)
    both.table = np.array([5, 2], np.int32)
    both.run(ids[20:30], [10])
    i32 = np.int32
    feeds = {
        "token_ids": np.array([ids[30], *ids[:9], 0, 0], i32),
        "positions": np.array([10, *range(9), 0, 0], i32),
        "query_start": np.array([0, 1, 10, 10], i32),
        "context_len": np.array([11, 9, 0], i32),
        "block_table": np.array([[5, 2], [7, -1], [-1, -1]], i32),
        "slot": np.array([5 * 16 + 10, *range(7 * 16, 7 * 16 + 9), -1, -1], i32),
        "logit_rows": np.array([-1, 9, 0, *range(1, 9)], i32),
        "hidden_rows": np.array([0, -1, 3], i32),
    }
    found = interpret(both.network, feeds, both.weights, both.states)
    got = found["logits"]
    head = both.weights["lm_head.weight"]
    np.testing.assert_allclose(found["hidden"] @ head.T, [want_second, want_second * 0, want_first[2]], atol=1e-4)
    np.testing.assert_array_equal(got[0], 0)
    np.testing.assert_allclose(got[1], want_first[8], atol=1e-5)
    np.testing.assert_allclose(got[2], want_second, atol=1e-5)
    np.testing.assert_allclose(got[3:], want_first[:8], atol=1e-5)


def test_experts_run_natively_from_one_tensor_each(tmp_path: Path) -> None:
    """A layer's experts become two stored tensors, which the kernel reads; nothing is left to the host."""
    make(transformers, torch, "Mixtral", {"num_local_experts": 5}, tmp_path)
    engine = build(tmp_path, report=False)
    (entry,) = engine.header["programs"]["cpu"]["entries"].values()
    kernels = [call.get("kernel") for call in entry["calls"]]
    assert kernels.count("moe") == 2 and None not in kernels and "host" not in kernels
    stored = [name for name in engine.header["weights"] if "experts" in name]
    assert len(stored) == 4, stored


def test_precision_converts_weights(tmp_path: Path) -> None:
    model = make(transformers, torch, "Qwen3", {"head_dim": 16}, tmp_path)
    loaded = models.load(tmp_path, "bfloat16")
    for name, parameter in model.named_parameters():
        want = parameter.detach().to(torch.bfloat16).float().numpy()
        np.testing.assert_array_equal(loaded.weights[name].astype(np.float32), want)
    assert {v.dtype.name for v in Runner(loaded).network.parameters} == {"bfloat16"}


def test_bfloat16_is_close(tmp_path: Path) -> None:
    model = make(transformers, torch, "Llama", {}, tmp_path)
    ids = prompt()
    got = log_softmax(Runner(models.load(tmp_path, "bfloat16")).run(ids, [LENGTH]))
    want = expected(model, ids)
    assert np.abs(got - want).mean() < 0.1
