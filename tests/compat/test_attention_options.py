"""Every option of gpt_attention that is honoured, packed and padded, prompt and one step, against torch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ingot.errors import IngotError, UnsupportedError
from tests.compat.retired import create_session, run_session

torch = pytest.importorskip("torch")
HEADS, KV, SIZE, LENGTH = 4, 2, 8, 7
WIDTH = (HEADS + 2 * KV) * SIZE
PROMPTS = (5, 3)
FREQUENCIES = np.linspace(1.0, 0.01, SIZE // 2, dtype=np.float32)
DRAW = torch.Generator().manual_seed(7)
TOKENS = [torch.randn(LENGTH, WIDTH, generator=DRAW) for _ in PROMPTS]
LOGN = torch.linspace(1, 2, LENGTH)
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
MASK = torch.rand(LENGTH, LENGTH, generator=DRAW) < 0.6
MASK |= torch.eye(LENGTH).bool()


def turned(x: Any, frequencies: Any, interleaved: bool) -> Any:
    """Rows [S, heads, size] turned by their place."""
    angle = torch.arange(len(x))[:, None, None] * torch.as_tensor(frequencies)
    cos, sin = angle.cos(), angle.sin()
    if interleaved:
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def theirs(x: Any, option: str) -> Any:
    """What attention gives for the tokens [S, width] of one request, [S, heads · size]."""
    q, k, v = x.view(len(x), HEADS + 2 * KV, SIZE).split([HEADS, KV, KV], 1)
    if "rope" in option or option in ("inv_freq", "cos_sin", "linear"):
        base = 1 / 10000.0 ** (torch.arange(0, SIZE, 2) / SIZE) / (4 if option == "linear" else 1)
        own = FREQUENCIES if option in ("inv_freq", "cos_sin") else base
        q, k = (turned(t, own, option == "rope gptj") for t in (q, k))
    if option == "logn":
        q = q * LOGN[: len(x), None, None]
    if option == "int8":
        k, v = ((t / 0.02).round().clamp(-128, 127) * 0.02 for t in (k, v))
    k, v = (t.repeat_interleave(HEADS // KV, 1) for t in (k, v))
    scale = 1 / (math.sqrt(SIZE) * (2.0 if option == "q_scaling" else 1.0))
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    at, place = torch.arange(len(x))[:, None], torch.arange(len(x))[None]
    if option.startswith("alibi"):
        bias = SLOPES[:, None, None] * (place - at)
        scores = scores + (bias * scale if option == "alibi with scale" else bias)
    if option == "softcap":
        scores = torch.tanh(scores / 0.7) * 0.7
    seen = place <= at
    if option in ("padding", "bidirectional"):
        seen = seen | True
    if option == "window":
        seen = seen & (at - place < 3)
    if option == "sink":
        seen = seen & ((at - place < 3 - 1) | (place < 1))
    if option == "custom":
        seen = MASK[: len(x), : len(x)]
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v).reshape(len(x), HEADS * SIZE)


OPTIONS = (
    "plain", "q_scaling", "rope neox", "rope gptj", "linear", "inv_freq", "cos_sin", "alibi", "alibi with scale",
    "logn", "softcap", "padding", "bidirectional", "window", "sink", "custom", "int8",
)  # fmt: skip


def given(option: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an option; `inputs` holds the tensors of those that a run gives."""
    from tensorrt_llm.functional import AttentionMaskType, PositionEmbeddingType, RotaryScalingType, constant
    from tensorrt_llm.quantization import QuantMode

    angle = np.arange(LENGTH)[:, None] * FREQUENCIES
    rope = {"rotary_embedding_dim": SIZE, "position_embedding_type": PositionEmbeddingType.rope_gpt_neox}
    slopes = {"alibi_slopes": constant(SLOPES.numpy())} if option.startswith("alibi") else {}
    window = {"host_max_attention_window_sizes": constant(np.array([9, 3], np.int32)), "layer_idx": 1}
    found: dict[str, dict[str, Any]] = {
        "plain": {}, "q_scaling": {"q_scaling": 2.0}, "rope neox": rope,
        "rope gptj": rope | {"position_embedding_type": PositionEmbeddingType.rope_gptj},
        "linear": rope | {"rotary_embedding_scale_type": RotaryScalingType.linear, "rotary_embedding_scale": 4.0},
        "inv_freq": rope | {
            "rotary_inv_freq": constant(FREQUENCIES), "rotary_embedding_scale_type": RotaryScalingType.llama3
        },
        "cos_sin": rope | {
            "rotary_cos_sin": constant(np.stack([np.cos(angle), np.sin(angle)], 2).reshape(1, -1).astype(np.float32))
        },
        "alibi": slopes | {"position_embedding_type": PositionEmbeddingType.alibi},
        "alibi with scale": slopes | {"position_embedding_type": PositionEmbeddingType.alibi_with_scale},
        "logn": {"logn_scaling": constant(LOGN.numpy())},
        "softcap": {"attn_logit_softcapping_scale": 0.7},
        "padding": {"mask_type": AttentionMaskType.padding},
        "bidirectional": {"mask_type": AttentionMaskType.bidirectional},
        "window": window | {"mask_type": AttentionMaskType.sliding_window_causal},
        "sink": window | {"host_sink_token_length": constant(np.array([1], np.int32))},
        "custom": {"mask_type": AttentionMaskType.custom_mask, "attention_mask": inputs.get("mask")},
        "int8": {
            "kv_cache_quant_mode": QuantMode(0).set_int8_kv_cache(),
            "kv_orig_quant_scale": constant(np.array([50.0], np.float32)),
            "kv_quant_orig_scale": constant(np.array([0.02], np.float32)),
        },
    }  # fmt: skip
    return found[option]


def session_of(option: str, packed: bool, rows: list[int]) -> Any:
    import tensorrt_llm
    from tensorrt_llm import Tensor

    builder = tensorrt_llm.Builder()
    network = builder.create_network()
    network.plugin_config.remove_input_padding = packed
    names = ("sequence_length", "context_lengths", "host_request_types")
    with tensorrt_llm.net_guard(network):
        x = Tensor("x", "float32", [*rows, WIDTH])
        past = Tensor("past", "int8" if option == "int8" else "float32", [2, 2, KV, LENGTH, SIZE])
        told = {name: Tensor(name, "int32", [2]) for name in names}
        mask = {"mask": Tensor("mask", "bool", [*rows, LENGTH])} if option == "custom" else {}
        beams = Tensor("beams", "int32", [2, 1, LENGTH])
        out, present = tensorrt_llm.functional.gpt_attention(
            qkv=x, past_key_value=past, num_heads=HEADS, num_kv_heads=KV, hidden_size_per_head=SIZE,
            cache_indirection=beams, **told, **given(option, mask),
        )  # fmt: skip
        out.mark_output("out")
        present.mark_output("present")
    return create_session(builder, network)


def step(session: Any, option: str, x: Any, past: Any, totals: Any, types: Any, mask: Any = None) -> dict[str, Any]:
    told = {"sequence_length": totals, "context_lengths": PROMPTS, "host_request_types": types}
    told = {name: torch.tensor(value, dtype=torch.int32) for name, value in told.items()}
    more = {"mask": mask} if option == "custom" else {}
    beams = torch.zeros(2, 1, LENGTH, dtype=torch.int32)
    return run_session(session, {"x": x, "past": past, "beams": beams, **told, **more})


def rows_of(parts: list[Any], packed: bool) -> Any:
    return torch.cat(parts) if packed else torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)


def texts_of(out: Any, packed: bool) -> list[Any]:
    """The rows of each request."""
    return list(out.split(list(PROMPTS))) if packed else [row[:n] for row, n in zip(out, PROMPTS, strict=True)]


SAMPLE = ("plain", "rope neox", "window", "int8", "custom")  # of padded rows; the others wait for the slow tests
RUNS = [
    pytest.param(option, packed, id=f"{option}-{'packed' if packed else 'padded'}",
                 marks=() if packed or option in SAMPLE else pytest.mark.slow)
    for option in OPTIONS for packed in (True, False)
]  # fmt: skip


@pytest.mark.parametrize(("option", "packed"), RUNS)
def test_prompt_and_step(option: str, packed: bool) -> None:
    past = torch.zeros(2, 2, KV, LENGTH, SIZE, dtype=torch.int8 if option == "int8" else torch.float32)
    prompts = [x[:n] for x, n in zip(TOKENS, PROMPTS, strict=True)]
    x, mask = rows_of(prompts, packed), rows_of([MASK[:n] for n in PROMPTS], packed)
    session = session_of(option, packed, list(x.shape[:-1]))
    found = step(session, option, x, past, PROMPTS, [0, 0], mask)
    for ours, prompt in zip(texts_of(found["out"], packed), prompts, strict=True):
        torch.testing.assert_close(ours, theirs(prompt, option), rtol=3e-5, atol=3e-5)
    longer = [x[: n + 1] for x, n in zip(TOKENS, PROMPTS, strict=True)]
    x, mask = (rows_of([t[-1:] for t in given], packed) for given in (longer, [MASK[: n + 1] for n in PROMPTS]))
    session = session_of(option, packed, list(x.shape[:-1]))
    found = step(session, option, x, found["present"], [n + 1 for n in PROMPTS], [1, 1], mask)
    for ours, text in zip(found["out"].reshape(2, -1), longer, strict=True):
        torch.testing.assert_close(ours, theirs(text, option)[-1], rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
def test_without_a_cache(packed: bool) -> None:
    import tensorrt_llm
    from tensorrt_llm import Tensor

    x = rows_of([x[:n] for x, n in zip(TOKENS, PROMPTS, strict=True)], packed)
    builder = tensorrt_llm.Builder()
    network = builder.create_network()
    network.plugin_config.remove_input_padding = packed
    with tensorrt_llm.net_guard(network):
        names = ("sequence_length", "context_lengths", "host_request_types")
        told = {name: Tensor(name, "int32", [2]) for name in names}
        out, present = tensorrt_llm.functional.gpt_attention(
            qkv=Tensor("x", "float32", list(x.shape)), use_cache=False, num_heads=HEADS, num_kv_heads=KV,
            hidden_size_per_head=SIZE, **told,
        )  # fmt: skip
        out.mark_output("out")
    assert present is None
    told = {"sequence_length": PROMPTS, "context_lengths": PROMPTS, "host_request_types": (0, 0)}
    numbers = {name: torch.tensor(value, dtype=torch.int32) for name, value in told.items()}
    found = run_session(create_session(builder, network), {"x": x, **numbers})["out"]
    for ours, text, n in zip(texts_of(found, packed), TOKENS, PROMPTS, strict=True):
        torch.testing.assert_close(ours, theirs(text[:n], "plain"), rtol=3e-5, atol=3e-5)


def test_a_text_longer_than_its_cache_and_other_beams_are_errors() -> None:
    session = session_of("plain", True, [2])
    past, x = torch.zeros(2, 2, KV, LENGTH, SIZE), torch.randn(2, WIDTH)
    with pytest.raises(IngotError, match=rf"out of range \({LENGTH + 1} at element 0"):
        step(session, "plain", x, past, [LENGTH + 1, 3], [1, 1])
    told = {"sequence_length": [3, 3], "context_lengths": [2, 2], "host_request_types": [1, 1]}
    numbers = {name: torch.tensor(value, dtype=torch.int32) for name, value in told.items()}
    beams = torch.ones(2, 1, LENGTH, dtype=torch.int32)
    with pytest.raises(IngotError, match=r"out of range"):
        run_session(session, {"x": x, "past": past, "beams": beams, **numbers})


REFUSED: dict[str, dict[str, Any]] = {
    "rotary scaling dynamic": {"rotary_embedding_scale_type": 2},
    "llama3": {"rotary_embedding_scale_type": 4},
    "positions of type chatglm": {"position_embedding_type": 7},
    "positions of type long_rope": {"position_embedding_type": 3},
    "alibi_slopes and a position_embedding_type": {"position_embedding_type": 4},
    "bidirectionalglm": {"mask_type": 4},
    "attention_mask is read with": {"attention_mask": "x"},
    "tp_size=2": {"tp_size": 2},
    "cp_size=2|tp_size=2": {"cp_size": 2},
    "tp_rank=1": {"tp_rank": 1},
    "short_m_scale": {"rotary_embedding_short_m_scale": 1.2},
    "num_kv_heads_origin": {"num_kv_heads_origin": 1},
    "long_rope_rotary_inv_freq": {"long_rope_rotary_inv_freq": "x"},
    "do_cross_attention": {"do_cross_attention": True},
    "enable_pos_shift": {"enable_pos_shift": True},
    "pages its caches": {"host_kv_cache_pool_pointers": "x"},
    "no version had it": {"attention_masks": None},
    "cache of": {"kv_cache_quant_mode": 128},
    "give kv_orig_quant_scale": {"kv_cache_quant_mode": 64},
    "leave past_key_value out": {"use_cache": False},
}


@pytest.mark.parametrize("message", REFUSED)
def test_refusals(message: str) -> None:
    import tensorrt_llm
    from tensorrt_llm import Tensor

    with tensorrt_llm.net_guard(tensorrt_llm.Builder().create_network()):
        x = Tensor("x", "float32", [1, 3, WIDTH])
        past = Tensor("past", "float32", [1, 2, KV, LENGTH, SIZE])
        told = {n: Tensor(n, "int32", [1]) for n in ("sequence_length", "context_lengths", "host_request_types")}
        more = {name: x if value == "x" else value for name, value in REFUSED[message].items()}
        with pytest.raises(UnsupportedError, match=rf"test_attention_options.py:\d+: gpt_attention.*{message}"):
            tensorrt_llm.functional.gpt_attention(
                qkv=x, past_key_value=past, num_heads=HEADS, num_kv_heads=KV, hidden_size_per_head=SIZE, **told, **more
            )
