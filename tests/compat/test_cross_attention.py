"""Cross attention in gpt_attention and layers.Attention, prompts and steps, padded and packed, against torch."""

from __future__ import annotations

from typing import Any

import pytest

from ingot.errors import IngotError, UnsupportedError
from tests.compat.retired import create_session, run_session

torch = pytest.importorskip("torch")
HIDDEN, HEADS, SIZE = 16, 2, 8
LENGTHS, ENCODED, ROOM = (4, 2), (3, 5), 6
DRAW = torch.Generator().manual_seed(17)
TEXTS = [torch.randn(n + 1, HIDDEN, generator=DRAW) for n in LENGTHS]
SEEN = [torch.randn(n, HIDDEN, generator=DRAW) for n in ENCODED]


def layer_of(**more: Any) -> Any:
    from tensorrt_llm.layers import Attention, AttentionMaskType

    mask = AttentionMaskType.bidirectional
    return Attention(HIDDEN, HEADS, dtype="float32", attention_mask_type=mask, cross_attention=True, **more)


def theirs(layer: Any, text: Any, seen: Any) -> Any:
    w = {name: torch.from_numpy(p.raw_value) for name, p in layer.named_parameters()}
    split = [HEADS * SIZE] * 3
    (q, _, _), (_, k, v) = ((t @ w["qkv.weight"].T + w["qkv.bias"]).split(split, -1) for t in (text, seen))
    q, k, v = (t.view(len(t), HEADS, SIZE).transpose(0, 1) for t in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(0, 1).reshape(len(text), HEADS * SIZE)
    return out @ w["dense.weight"].T + w["dense.bias"]


def session_of(layer: Any, packed: bool, sizes: tuple[Any, Any], skip: bool = False) -> Any:
    """An engine of one attention over inputs of these shapes."""
    import tensorrt_llm
    from tensorrt_llm import Tensor
    from tensorrt_llm.layers import AttentionParams, KeyValueCacheParams

    builder = tensorrt_llm.Builder()
    network = builder.create_network()
    network.plugin_config.remove_input_padding = packed
    with tensorrt_llm.net_guard(network):
        network.set_named_parameters(layer.named_parameters())
        x, encoder = (Tensor(n, "float32", list(size)) for n, size in zip(("x", "encoder"), sizes, strict=True))
        past = Tensor("past", "float32", [2, 2, HEADS, ROOM, SIZE])
        names = ("sequence_length", "context_lengths", "host_request_types", "encoder_input_lengths")
        told = {name: Tensor(name, "int32", [2]) for name in names}
        more = {}
        if skip:
            reuse = Tensor("reuse", "float32", [*sizes[1][:-1], 2 * HEADS * SIZE])
            more = {"cross_kv_cache_gen": Tensor("gen", "bool", [1]), "cross_kv_reuse": reuse}
        own = Tensor("own", "float32", [2, 2, HEADS, 8, SIZE])
        made = layer(
            x, use_cache=True, encoder_output=encoder, attention_params=AttentionParams(**told),
            kv_cache_params=KeyValueCacheParams(past_key_value=[own, past]), **more,
        )  # fmt: skip
        for name, tensor in zip(("out", "present"), made, strict=True):
            tensor.mark_output(name)
    return create_session(builder, network)


def told(totals: Any, prompts: Any, types: Any) -> dict[str, Any]:
    given = {"sequence_length": totals, "context_lengths": prompts, "host_request_types": types,
             "encoder_input_lengths": ENCODED}  # fmt: skip
    return {name: torch.tensor(value, dtype=torch.int32) for name, value in given.items()}


def rows(texts: list[Any], packed: bool) -> Any:
    return torch.cat(texts) if packed else torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
def test_prompt_and_one_step(packed: bool) -> None:
    layer, skip = layer_of(skip_cross_kv=not packed), not packed
    own = {"own": torch.zeros(2, 2, HEADS, 8, SIZE)}
    x, encoder = rows([text[:-1] for text in TEXTS], packed), rows(SEEN, packed)
    reuse = torch.full((*encoder.shape[:-1], 2 * HEADS * SIZE), torch.nan)
    given = {"x": x, "encoder": encoder, "past": torch.full((2, 2, HEADS, ROOM, SIZE), 7.0), **own}
    given |= {"gen": torch.tensor([True]), "reuse": reuse} if skip else {}
    session = session_of(layer, packed, (x.shape, encoder.shape), skip)
    first = run_session(session, given | told(LENGTHS, LENGTHS, (0, 0)))
    outs = first["out"].split(LENGTHS) if packed else [row[:n] for row, n in zip(first["out"], LENGTHS, strict=True)]
    for ours, text, seen in zip(outs, TEXTS, SEEN, strict=True):
        torch.testing.assert_close(ours, theirs(layer, text[:-1], seen), rtol=2e-5, atol=2e-5)
    assert (first["present"][0, :, :, 3:] == 7).all()  # what the encoder has no token for
    x = rows([text[-1:] for text in TEXTS], packed)
    session = session_of(layer, packed, (x.shape, encoder.shape), skip)
    given = {"x": x, "encoder": encoder * torch.nan, "past": first["present"], **own}  # later steps read the cache
    given |= {"gen": torch.tensor([False]), "reuse": torch.zeros_like(reuse)} if skip else {}
    second = run_session(session, given | told([n + 1 for n in LENGTHS], LENGTHS, (1, 1)))
    for ours, text, seen in zip(second["out"].reshape(2, HIDDEN), TEXTS, SEEN, strict=True):
        torch.testing.assert_close(ours, theirs(layer, text[-1:], seen)[0], rtol=2e-5, atol=2e-5)
    assert torch.equal(second["present"], first["present"])


@pytest.mark.parametrize("cross", [True, False])
def test_without_a_cache_and_for_any_batch(cross: bool) -> None:
    import tensorrt_llm
    from tensorrt_llm import Tensor
    from tensorrt_llm.functional import gpt_attention

    builder = tensorrt_llm.Builder()
    network = builder.create_network()
    with tensorrt_llm.net_guard(network):
        batch, width = ("batch", [(1, 2, 4)]), HEADS * SIZE
        qkv = Tensor("qkv", "float32", [-1, 4, 3 * width], {"batch": batch[1], "length": [4], "width": [3 * width]})
        kv = Tensor("kv", "float32", [-1, 5, 2 * width], {"batch": batch[1], "encoded": [5], "both": [2 * width]})
        names = ("sequence_length", "context_lengths", "host_request_types", "encoder_input_lengths")
        told = {name: Tensor(name, "int32", [-1], {"batch": batch[1]}) for name in names}
        seen = told.pop("encoder_input_lengths")
        more = {"do_cross_attention": True, "cross_kv": kv, "encoder_input_lengths": seen} if cross else {}
        out, none = gpt_attention(
            qkv=qkv, num_heads=HEADS, hidden_size_per_head=SIZE, use_cache=False, **told, **more
        )  # fmt: skip
        (out if cross else out + kv.mean(1, keepdim=True).split(width, 2)[0] * 0.0).mark_output("out")
        assert none is None
    session = create_session(builder, network)
    for count in (1, 3):
        qkv, kv = (torch.randn(count, *size, generator=DRAW) for size in ((4, 3 * width), (5, 2 * width)))
        lengths, encoded = torch.tensor([4, 2, 3])[:count].int(), torch.tensor([5, 1, 3])[:count].int()
        told = {"sequence_length": lengths, "context_lengths": lengths, "host_request_types": lengths * 0}
        found = run_session(session, {"qkv": qkv, "kv": kv, **told, "encoder_input_lengths": encoded})["out"]
        for ours, row, both, n, e in zip(found, qkv, kv, lengths, encoded, strict=True):
            parts = [row[:n, :width], *both[:e].split(width, 1)] if cross else row[:n].split(width, 1)
            q, k, v = (t.reshape(len(t), HEADS, SIZE).transpose(0, 1) for t in parts)
            expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=not cross)
            torch.testing.assert_close(ours[:n], expected.transpose(0, 1).reshape(n, width), rtol=2e-5, atol=2e-5)


def test_an_encoder_longer_than_the_cache_ends_the_run() -> None:
    layer = layer_of()
    x, encoder = torch.zeros(2, 1, HIDDEN), torch.zeros(2, ROOM + 2, HIDDEN)
    session = session_of(layer, False, (x.shape, encoder.shape))
    given = {"x": x, "encoder": encoder, "past": torch.zeros(2, 2, HEADS, ROOM, SIZE),
             "own": torch.zeros(2, 2, HEADS, 8, SIZE)} | told((1, 1), (1, 1), (0, 0))  # fmt: skip
    given["encoder_input_lengths"] = torch.tensor([ROOM + 1, 1], dtype=torch.int32)
    with pytest.raises(IngotError):
        run_session(session, given)


def test_refusals() -> None:
    import tensorrt_llm
    from tensorrt_llm import Tensor
    from tensorrt_llm.functional import PositionEmbeddingType, gpt_attention
    from tensorrt_llm.layers import Attention

    with tensorrt_llm.net_guard(tensorrt_llm.Builder().create_network()):
        x = Tensor("x", "float32", [1, 3, HIDDEN])
        plain = {"qkv": x, "past_key_value": x, "sequence_length": x, "context_lengths": x, "host_request_types": x,
                 "num_heads": 1, "hidden_size_per_head": 4}  # fmt: skip
        rope = {"position_embedding_type": PositionEmbeddingType.rope_gpt_neox, "rotary_embedding_dim": 4}
        for message, more in (
            ("cross_kv: give do_cross_attention=True", {"cross_kv": x}),
            ("give encoder_input_lengths, and cross_kv", {"do_cross_attention": True, "cross_kv": x}),
            ("and positions, windows", {"do_cross_attention": True, "cross_kv": x, "encoder_input_lengths": x, **rope}),
        ):
            with pytest.raises(UnsupportedError, match=rf"test_cross_attention.py:\d+: .*{message}"):
                gpt_attention(**plain, **more)
        layer, params = Attention(HIDDEN, HEADS), tensorrt_llm.layers.AttentionParams(x, x, host_request_types=x)
        cache = tensorrt_llm.layers.KeyValueCacheParams(past_key_value=[x])
        with pytest.raises(UnsupportedError, match="cross_attention=True and encoder_output go together"):
            layer(x, encoder_output=x, attention_params=params, kv_cache_params=cache)
