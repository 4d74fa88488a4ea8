"""A LLaMA layer in the retired style, packed and padded: prompts and one decoding step against transformers."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest

from ingot.errors import UnsupportedError
from tests.compat.retired import create_session, run_session

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
HIDDEN, HEADS, KV, SIZE, CACHE = 32, 4, 2, 8, 12
LENGTHS = (5, 3)


def reference() -> Any:
    """transformers' layer, rotary embedding, and config."""
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=HIDDEN, intermediate_size=48, num_attention_heads=HEADS, num_key_value_heads=KV, head_dim=SIZE,
        rms_norm_eps=1e-5, attn_implementation="eager",
    )  # fmt: skip
    return LlamaDecoderLayer(config, 0).eval(), LlamaRotaryEmbedding(config)


def theirs(x: Any) -> Any:
    """What transformers' layer gives for the tokens [S, hidden] of one request."""
    layer, rotary = reference()
    positions = torch.arange(len(x))[None]
    mask = torch.full((len(x), len(x)), float("-inf")).triu(1)[None, None]
    with torch.no_grad():
        out = layer(
            x[None], attention_mask=mask, position_ids=positions, position_embeddings=rotary(x[None], positions)
        )
    return (out[0] if isinstance(out, tuple) else out).reshape(x.shape)


def layer_in_the_retired_style() -> Any:
    """A LLaMA layer as models wrote it, with transformers' weights."""
    from tensorrt_llm.layers import Attention, AttentionMaskType, GatedMLP, PositionEmbeddingType, RmsNorm
    from tensorrt_llm.module import Module

    class LLaMADecoderLayer(Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.input_layernorm = RmsNorm(normalized_shape=HIDDEN, eps=1e-5, dtype="float32")
            self.attention = Attention(
                HIDDEN, HEADS, num_kv_heads=KV, max_position_embeddings=64, dtype="float32",
                attention_mask_type=AttentionMaskType.causal, bias=False,
                position_embedding_type=PositionEmbeddingType.rope_gpt_neox, tp_group=None, tp_size=1,
            )  # fmt: skip
            self.post_layernorm = RmsNorm(normalized_shape=HIDDEN, eps=1e-5, dtype="float32")
            self.mlp = GatedMLP(HIDDEN, 48, "silu", bias=False, dtype="float32")

        def forward(
            self, hidden_states: Any, use_cache: bool = False, kv_cache_params: Any = None, attention_params: Any = None
        ) -> Any:
            residual = hidden_states
            hidden_states = self.input_layernorm(hidden_states)
            attention_output = self.attention(
                hidden_states, use_cache=use_cache, kv_cache_params=kv_cache_params, attention_params=attention_params
            )
            if use_cache:
                attention_output, presents = attention_output
            hidden_states = residual + attention_output
            residual = hidden_states
            hidden_states = residual + self.mlp(self.post_layernorm(hidden_states))
            return (hidden_states, presents) if use_cache else hidden_states

    made, (layer, _) = LLaMADecoderLayer(), reference()
    w = {name: value.detach() for name, value in layer.named_parameters()}
    made.attention.qkv.weight.value = torch.cat([w[f"self_attn.{n}_proj.weight"] for n in "qkv"])
    made.attention.dense.weight.value = w["self_attn.o_proj.weight"]
    made.mlp.fc.weight.value, made.mlp.gate.weight.value = w["mlp.gate_proj.weight"], w["mlp.up_proj.weight"]
    made.mlp.proj.weight.value = w["mlp.down_proj.weight"]
    made.input_layernorm.weight.value = w["input_layernorm.weight"]
    made.post_layernorm.weight.value = w["post_attention_layernorm.weight"]
    return made


def session_of(packed: bool) -> Any:
    import tensorrt_llm
    from tensorrt_llm import Tensor
    from tensorrt_llm.layers import AttentionParams, KeyValueCacheParams

    layer = layer_in_the_retired_style()
    builder = tensorrt_llm.Builder()
    network = builder.create_network()
    network.plugin_config.set_gpt_attention_plugin(dtype="float32")
    network.plugin_config.remove_input_padding = packed
    rows = ("tokens", [(1, 8, 64)])
    batch = ("batch", [(1, 2, 4)])
    with tensorrt_llm.net_guard(network):
        network.set_named_parameters(layer.named_parameters())
        sizes = [rows] if packed else [batch, ("length", [(1, 5, 12)])]
        x = Tensor("x", "float32", [-1] * len(sizes) + [HIDDEN], OrderedDict([*sizes, ("hidden", [HIDDEN])]))
        past = Tensor(
            "past", "float32", [-1, 2, KV, -1, SIZE],
            OrderedDict([batch, ("kv", [2]), ("heads", [KV]), ("cache", [(1, 12, 64)]), ("size", [SIZE])]),
        )  # fmt: skip
        names = ("sequence_length", "context_lengths", "host_request_types")
        told = {name: Tensor(name, "int32", [-1], OrderedDict([batch])) for name in names}
        out, present = layer(
            x, use_cache=True, kv_cache_params=KeyValueCacheParams(past_key_value=[past]),
            attention_params=AttentionParams(**told),
        )  # fmt: skip
        out.mark_output("out", "float32")
        present.mark_output("present", "float32")
    return create_session(builder, network)


def step(session: Any, x: Any, past: Any, totals: Any, prompts: Any, types: Any) -> dict[str, Any]:
    told = {"sequence_length": totals, "context_lengths": prompts, "host_request_types": types}
    told = {name: torch.tensor(value, dtype=torch.int32) for name, value in told.items()}
    return run_session(session, {"x": x, "past": past, **told})


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
def test_prompt_and_one_step_equal_transformers(packed: bool) -> None:
    session = session_of(packed)
    texts = [torch.randn(n + 1, HIDDEN, generator=torch.Generator().manual_seed(n)) for n in LENGTHS]
    wanted = [theirs(text) for text in texts]
    prompts = [text[:-1] for text in texts]
    x = torch.cat(prompts) if packed else torch.nn.utils.rnn.pad_sequence(prompts, batch_first=True)
    past = torch.full((2, 2, KV, CACHE, SIZE), 7.0)  # whatever was there before
    first = step(session, x, past, LENGTHS, LENGTHS, (0, 0))
    out = first["out"].split(LENGTHS) if packed else [row[:n] for row, n in zip(first["out"], LENGTHS, strict=True)]
    for ours, text in zip(out, wanted, strict=True):
        torch.testing.assert_close(ours, text[:-1], rtol=2e-5, atol=2e-5)
    assert (first["present"][1, :, :, 3:] == 7).all()  # what no token has
    last = torch.stack([text[-1] for text in texts])
    second = step(
        session, last if packed else last[:, None], first["present"], [n + 1 for n in LENGTHS], LENGTHS, (1, 1)
    )
    for ours, text in zip(second["out"].reshape(2, HIDDEN), wanted, strict=True):
        torch.testing.assert_close(ours, text[-1], rtol=2e-5, atol=2e-5)


def test_a_prompt_beside_a_step_packed() -> None:
    session = session_of(packed=True)
    first, second = (torch.randn(n, HIDDEN) for n in (4, 3))
    before = step(session, first[:3], torch.zeros(1, 2, KV, CACHE, SIZE), [3], [3], [0])["present"]
    past = torch.cat([torch.zeros_like(before), before])  # the prompt is the first request
    found = step(session, torch.cat([second, first[3:]]), past, [3, 4], [3, 3], [0, 1])
    torch.testing.assert_close(found["out"][:3], theirs(second), rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(found["out"][3], theirs(first)[3], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("order", ["0.5", "0.7", "names"])
def test_arguments_by_position_are_known_by_where_num_heads_stands(order: str) -> None:
    import tensorrt_llm
    from tensorrt_llm import Tensor
    from tensorrt_llm.functional import PositionEmbeddingType, gpt_attention

    builder = tensorrt_llm.Builder()
    network = builder.create_network()
    with tensorrt_llm.net_guard(network):
        qkv = Tensor("x", "float32", [1, 3, 3 * HIDDEN])
        past = Tensor("past", "float32", [1, 2, HEADS, 6, SIZE])
        total, prompt, types = (Tensor(n, "int32", [1]) for n in ("total", "prompt", "types"))
        numbers = (HEADS, HEADS, SIZE, 1.0, 0)
        if order == "0.5":
            made = gpt_attention(qkv, past, total, None, prompt, None, types, *numbers)
        elif order == "0.7":
            made = gpt_attention(qkv, past, total, None, None, None, prompt, None, types, *numbers)
        else:
            made = gpt_attention(
                qkv=qkv, past_key_value=past, sequence_length=total, context_lengths=prompt, host_request_types=types,
                num_heads=HEADS, num_kv_heads=HEADS, hidden_size_per_head=SIZE, layer_idx=3,
                position_embedding_type=PositionEmbeddingType.learned_absolute,
            )  # fmt: skip
        made[0].mark_output("out")
    x = torch.randn(1, 3, 3 * HIDDEN)
    told = {
        name: torch.tensor([value], dtype=torch.int32) for name, value in (("total", 3), ("prompt", 3), ("types", 0))
    }
    session = create_session(builder, network)
    found = run_session(session, {"x": x, "past": torch.zeros(1, 2, HEADS, 6, SIZE), **told})
    q, k, v = (part.view(1, 3, HEADS, SIZE).transpose(1, 2) for part in x.split(HIDDEN, -1))
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(found["out"], wanted.transpose(1, 2).reshape(1, 3, HIDDEN), rtol=2e-5, atol=2e-5)


def test_bert_attention() -> None:
    import tensorrt_llm
    from tensorrt_llm import Tensor
    from tensorrt_llm.layers import BertAttention

    layer = BertAttention(HIDDEN, HEADS, dtype="float32")
    builder = tensorrt_llm.Builder()
    network = builder.create_network()
    with tensorrt_llm.net_guard(network):
        x, lengths = Tensor("x", "float32", [2, 5, HIDDEN]), Tensor("lengths", "int32", [2])
        layer(x, input_lengths=lengths).mark_output("out")
    x_data = torch.randn(2, 5, HIDDEN)
    found = run_session(create_session(builder, network), {"x": x_data, "lengths": torch.tensor(LENGTHS).int()})["out"]
    w = {name: torch.from_numpy(p.raw_value) for name, p in layer.named_parameters()}
    for row, ours, n in zip(x_data, found, LENGTHS, strict=True):
        q, k, v = (row[:n] @ w["qkv.weight"].T + w["qkv.bias"]).view(n, 3, HEADS, SIZE).permute(1, 2, 0, 3)
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(0, 1).reshape(n, HIDDEN)
        torch.testing.assert_close(ours[:n], out @ w["dense.weight"].T + w["dense.bias"], rtol=2e-5, atol=2e-5)


def test_refusals() -> None:
    import tensorrt_llm
    from tensorrt_llm import Tensor
    from tensorrt_llm.layers import Attention
    from tensorrt_llm.quantization import QuantMode

    with pytest.raises(UnsupportedError, match=r"test_attention.py:\d+: .*relative_attention.*leave it out"):
        Attention(HIDDEN, HEADS, relative_attention=True)
    with pytest.raises(UnsupportedError, match=r'weights="int8"'):
        Attention(HIDDEN, HEADS, quant_mode=QuantMode.use_weight_only())
    layer = Attention(HIDDEN, HEADS)
    with tensorrt_llm.net_guard(tensorrt_llm.Builder().create_network()):
        x = Tensor("x", "float32", [1, 3, HIDDEN])
        with pytest.raises(UnsupportedError, match=r"Attention without a cache.*KeyValueCacheParams"):
            layer(x)
        with pytest.raises(UnsupportedError, match=r"with kv_cache_block_offsets: ingot.LLM pages its caches"):
            tensorrt_llm.functional.gpt_attention(
                qkv=x, sequence_length=x, context_lengths=x, host_request_types=x, num_heads=1, hidden_size_per_head=1,
                kv_cache_block_offsets=x,
            )  # fmt: skip
