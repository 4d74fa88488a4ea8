"""A prompt's last layer, behind its attention, for the rows of the logits alone: as torch computes it for all rows."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ingot.backends.device import Choice
from tests.backends.cuda.interpreted import LONG, WITHOUT, one_of_each

torch: Any = pytest.importorskip("torch", reason="target cuda runs on torch's memory")
pytest.importorskip("triton", reason=WITHOUT)

from ingot.backends.cuda.executor import CudaExecutor  # noqa: E402
from ingot.backends.cuda.launch import Launcher  # noqa: E402

pytestmark = [pytest.mark.usefixtures("cuda_here"), one_of_each()]

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 128,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": False,
    "hidden_act": "silu", "initializer_range": 0.2, "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "float32",
}  # fmt: skip
MIXTRAL = LLAMA | {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip
GEMMA = LLAMA | {
    "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 16, "sliding_window": 64, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    "tie_word_embeddings": True,
}  # fmt: skip
TOKENS = 8


def engine(folder: Path, config: dict[str, Any], **words: Any) -> Any:
    (folder / "config.json").write_text(json.dumps(config))
    return ingot.build(folder, weights_from="random", seed=1, report=False, precision="float32", **words)


def prompts(logits: list[int], hidden: tuple[int, ...] = ()) -> dict[str, Any]:
    """Two prompts of 5 and 3 tokens."""
    i32 = partial(np.array, dtype=np.int32)
    return {
        "token_ids": i32(range(5, 13)), "positions": i32([0, 1, 2, 3, 4, 0, 1, 2]), "query_start": i32([0, 5, 8]),
        "context_len": i32([5, 3]), "block_table": i32([[0], [1]]), "slot": i32([0, 1, 2, 3, 4, 16, 17, 18]),
        "logit_rows": i32(logits), "hidden_rows": i32(hidden),
    }  # fmt: skip


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each product takes, of steps that are not padded, as those that are captured are on a GPU."""
    rows: list[int] = []
    product = Launcher.product

    def noted(self: Launcher, x: Any, *args: Any, **kwargs: Any) -> None:
        if x.device.type != "meta":  # where kernels are foreseen
            rows.append(len(x))
        product(self, x, *args, **kwargs)

    monkeypatch.setattr(Launcher, "product", noted)
    monkeypatch.setattr(CudaExecutor, "_size", lambda self, feeds: None)
    return rows


@pytest.mark.parametrize(("logits", "hidden", "rows"), [
    ([4, 7], (), 2), ([7], (), 1), ([7, 4, 7], (), 3), ([], (), 0),
    ([4, 7], (0, 3), TOKENS), ([-1, 7], (), TOKENS), ([0, 1, 2, 4, 7], (), TOKENS),
])  # fmt: skip
def test_a_llama(tmp_path: Path, seen: list[int], logits: list[int], hidden: tuple[int, ...], rows: int) -> None:
    """Few rows of the logits, in any order, twice or none; all rows where others are asked for, or zeros, or most."""
    built, feeds = engine(tmp_path, LLAMA), prompts(logits, hidden)
    found, expected = (built.on(d).session(kv_blocks=2).run(feeds) for d in ("cuda", "torch"))
    ends = [len(logits)] if logits else []  # the head, if there is any
    assert seen == [TOKENS] * 5 + ([rows] * 3 if rows else []) + ends
    for name, wanted in expected.items():
        assert found[name].shape == wanted.shape
        assert np.abs(found[name] - wanted).max(initial=0) <= 2e-5 * np.abs(wanted).max(initial=0)


@pytest.mark.parametrize(("weights", "activations", "near"), [
    ("int8", "same", 2e-3), ("int4-g32", "same", 2e-3),
    ("fp8", "fp8", 2e-2),  # a sum that lies elsewhere by 1e-7 can be rounded to the next float of 8 bits: 0.005
])  # fmt: skip
@LONG
def test_narrow_weights(tmp_path: Path, seen: list[int], weights: str, activations: str, near: float) -> None:
    built, feeds = engine(tmp_path, LLAMA, weights=weights, activations=activations), prompts([7])
    found, expected = (built.on(d).session(kv_blocks=2).run(feeds)["logits"] for d in ("cuda", "torch"))
    assert seen == [TOKENS] * 5 + [1] * 4
    assert np.abs(found - expected).max() <= near * np.abs(expected).max()


@LONG
def test_a_mixture_of_experts(tmp_path: Path, seen: list[int]) -> None:
    """Its rows pass one by one too."""
    built, feeds = engine(tmp_path, MIXTRAL), prompts([7, 4])
    session = built.on("cuda").session(kv_blocks=2)
    assert session._executor._last_rows is not None
    found, expected = session.run(feeds)["logits"], built.on("torch").session(kv_blocks=2).run(feeds)["logits"]
    assert seen == [TOKENS] * 4 + [2] * (len(seen) - 4)
    assert np.abs(found - expected).max() <= 2e-5 * np.abs(expected).max()


@LONG
def test_norms_behind_products(tmp_path: Path) -> None:
    """A family that has more between its last attention and its head."""
    built, feeds = engine(tmp_path, GEMMA), prompts([7, 4])
    sessions = [built.on(d).session(kv_blocks=2) for d in ("cuda", "torch")]
    found, expected = (session.run(feeds)["logits"] for session in sessions)
    assert np.abs(found - expected).max() <= 2e-5 * np.abs(expected).max()


@LONG
def test_rows_that_there_are_not(tmp_path: Path) -> None:
    session = engine(tmp_path, LLAMA).on("cuda").session(kv_blocks=2)
    with pytest.raises(ingot.errors.ValueFault, match="take"):
        session.run(prompts([TOKENS]))
    session.run(prompts([7]))


@LONG
def test_a_launched_prompt(tmp_path: Path, seen: list[int]) -> None:
    """Its tokens are chosen of those rows, and the cache holds what it would."""
    built, feeds = engine(tmp_path, LLAMA), prompts([4, 7])
    session, plain = (built.on("cuda").session(kv_blocks=2) for _ in range(2))
    plain._executor._last_rows = None
    expected = plain.run(feeds)["logits"]
    assert seen == [TOKENS] * 8 + [2]
    full = partial(np.full, 2)
    choice = Choice(np.full(TOKENS, -1, np.int32), full(0.0, np.float32), full(128, np.int32), full(1.0, np.float32),
                    full(0.0, np.float32), full(0.5, np.float64), [0, 1])  # fmt: skip
    found = session.launch(feeds, choice)()
    assert seen[-9:] == [TOKENS] * 5 + [2] * 4  # on a GPU what lacks a kernel is launched again
    assert found.tokens.tolist() == expected.argmax(1).tolist()
    assert np.abs(found.outputs["logits"] - expected).max() <= 2e-5 * np.abs(expected).max()
    states = [next(iter(one._executor._states.values())) for one in (session, plain)]
    assert bool((states[0] == states[1]).all())
