"""LoRA and DoRA beside products, as functions and in layers, padded and packed, against torch."""

from __future__ import annotations

from typing import Any

import pytest

from ingot.errors import UnsupportedError
from tests.compat.retired import create_session, run_session

torch = pytest.importorskip("torch")
IN, OUT, RANK = 6, (4, 3), 3
LENGTHS = (4, 1)  # a prompt, and one more token
DRAW = torch.Generator().manual_seed(13)


def draw(*sizes: int) -> Any:
    return torch.randn(*sizes, generator=DRAW)


TEXTS = [draw(n, IN) for n in LENGTHS]
RANKS = torch.tensor([[3, 1], [0, 2]], dtype=torch.int32)  # of two modules
TYPES, PROMPTS = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([4, 9], dtype=torch.int32)


def run(record: Any, packed: bool, **tensors: Any) -> dict[str, Any]:
    import tensorrt_llm
    from tensorrt_llm import Tensor, torch_dtype_to_trt

    builder = tensorrt_llm.Builder()
    network = builder.create_network()
    network.plugin_config.remove_input_padding = packed
    with tensorrt_llm.net_guard(network):
        given = {name: Tensor(name, torch_dtype_to_trt(t.dtype), list(t.shape)) for name, t in tensors.items()}
        made = record(**given)
        for i, out in enumerate(made if isinstance(made, list) else [made]):
            out.mark_output(f"out{i}")
    return run_session(create_session(builder, network), tensors)


def rows(texts: list[Any], packed: bool) -> Any:
    return torch.cat(texts) if packed else torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)


def apart(out: Any, packed: bool) -> list[Any]:
    return list(out.split(LENGTHS)) if packed else [row[:n] for row, n in zip(out, LENGTHS, strict=True)]


FIRST, SECOND = [draw(2, RANK, IN) for _ in OUT], [draw(2, n, RANK) for n in OUT]


def added(module: int, request: int) -> Any:
    rank = int(RANKS[module, request])
    first, second = FIRST[module][request, :rank], SECOND[module][request][:, :rank]
    return TEXTS[request] @ first.T @ second.T


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
def test_lora_plugin(packed: bool) -> None:
    import tensorrt_llm.functional as g

    def record(x: Any, types: Any, prompts: Any, **given: Any) -> Any:
        return g.lora_plugin(
            x, IN, list(OUT), types, transb=True, host_context_lengths=prompts, max_low_rank=RANK,
            lora_ranks=[given["rank0"], given["rank1"]],
            lora_weights_pointers=[(given["first0"], given["second0"]), (given["first1"], given["second1"])],
        )  # fmt: skip

    given = {f"first{i}": t for i, t in enumerate(FIRST)} | {f"second{i}": t for i, t in enumerate(SECOND)}
    given |= {f"rank{i}": rank for i, rank in enumerate(RANKS)}
    found = run(record, packed, x=rows(TEXTS, packed), types=TYPES, prompts=PROMPTS, **given)
    for i in range(len(OUT)):
        for request, ours in enumerate(apart(found[f"out{i}"], packed)):
            torch.testing.assert_close(ours, added(i, request), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
def test_dora_plugin(packed: bool) -> None:
    import tensorrt_llm.functional as g

    def record(x: Any, types: Any, prompts: Any, one: Any, both: Any) -> Any:
        return g.dora_plugin(x, [2, 4], [one, both], types, prompts)

    one, both = draw(2, 2), draw(4)
    found = run(record, packed, x=rows(TEXTS, packed), types=TYPES, prompts=PROMPTS, one=one, both=both)["out0"]
    for request, ours in enumerate(apart(found, packed)):
        torch.testing.assert_close(ours, TEXTS[request] * torch.cat([one[request], both]))


def test_layers_with_adapters() -> None:
    """A gated block of float16: each product with its adapter, DoRA's factors on the last before its bias."""
    from tensorrt_llm.layers import GatedMLP, LoraParams

    layer = GatedMLP(IN, 5, "silu", dtype="float16")
    sizes = {"mlp_h_to_4h": (IN, 5), "mlp_gate": (IN, 5), "mlp_4h_to_h": (5, IN)}
    given = {}
    for name, (width, out) in sizes.items():
        given |= {f"{name}.a": draw(RANK, width).half() / 2, f"{name}.b": draw(out, RANK).half() / 2}
    given["factor"] = draw(2, IN).half()

    def record(x: Any, types: Any, ranks: Any, **given: Any) -> Any:
        adapters = {f"{name}_lora_weights_pointers": (given[f"{name}.a"], given[f"{name}.b"]) for name in sizes}
        adapters["mlp_4h_to_h_lora_weights_pointers"] += (given["factor"],)
        params = LoraParams([{f"{name}_lora_ranks": ranks for name in sizes}], [adapters], host_request_types=types)
        return layer(x, lora_layer_params=params.get_layer_params(0))

    x, ranks = rows(TEXTS, False).half(), torch.tensor([RANK, 0], dtype=torch.int32)
    ours = run(record, False, x=x, types=TYPES, ranks=ranks, **given)["out0"]
    w = {name: torch.from_numpy(p.raw_value).float() for name, p in layer.named_parameters()}

    def product(v: Any, name: str, module: str) -> Any:
        low = v @ given[f"{module}.a"].float().T * torch.tensor([1.0, 0.0])[:, None, None]
        return v @ w[f"{name}.weight"].T + low @ given[f"{module}.b"].float().T

    wide = x.float()
    inner = torch.nn.functional.silu(product(wide, "fc", "mlp_h_to_4h") + w["fc.bias"])
    inner = inner * (product(wide, "gate", "mlp_gate") + w["gate.bias"])
    theirs = product(inner, "proj", "mlp_4h_to_h") * given["factor"].float()[:, None] + w["proj.bias"]
    torch.testing.assert_close(ours.float(), theirs, rtol=1e-2, atol=1e-2)  # measured: 2e-3


def test_adapters_beside_attention() -> None:
    """Adapters of queries and values, none of keys, of the product behind: as weights that hold them."""
    from tensorrt_llm.layers import BertAttention, LoraParams

    layer = BertAttention(8, 2, dtype="float32")
    given = {f"{name}.{part}": draw(*size) / 3 for name in ("attn_q", "attn_v", "attn_dense")
             for part, size in (("a", (RANK, 8)), ("b", (8, RANK)))}  # fmt: skip

    def with_adapters(x: Any, lengths: Any, **given: Any) -> Any:
        names = ("attn_q", "attn_v", "attn_dense")
        weights = {f"{name}_lora_weights_pointers": (given[f"{name}.a"], given[f"{name}.b"]) for name in names}
        params = LoraParams([{f"{name}_lora_ranks": None for name in names}], [weights])
        return layer(x, input_lengths=lengths, lora_layer_params=params)

    x, lengths = draw(2, 5, 8), torch.tensor([5, 3], dtype=torch.int32)
    ours = run(with_adapters, False, x=x, lengths=lengths, **given)["out0"]
    merged = {name: given[f"{name}.b"] @ given[f"{name}.a"] for name in ("attn_q", "attn_v", "attn_dense")}
    whole = torch.cat([merged["attn_q"], torch.zeros(8, 8), merged["attn_v"]])
    layer.qkv.weight.value = torch.from_numpy(layer.qkv.weight.raw_value) + whole
    layer.dense.weight.value = torch.from_numpy(layer.dense.weight.raw_value) + merged["attn_dense"]
    theirs = run(lambda x, lengths: layer(x, input_lengths=lengths), False, x=x, lengths=lengths)["out0"]
    torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-5)


def test_refusals() -> None:
    import tensorrt_llm
    import tensorrt_llm.functional as g
    from tensorrt_llm import Tensor

    with tensorrt_llm.net_guard(tensorrt_llm.Builder().create_network()):
        x, a = Tensor("x", "float32", [2, 4, IN]), Tensor("a", "float32", [RANK, IN])
        b, address = Tensor("b", "float32", [4, RANK]), Tensor("address", "int64", [2, 3])
        for message, call in {
            "lora_plugin of weights by address: give tensors in their place": lambda: g.lora_plugin(
                x, IN, [4], lora_weights_pointers=[address]
            ),
            "in_hidden_size says 5": lambda: g.lora_plugin(x, 5, [4], transb=True, lora_weights_pointers=[(a, b)]),
            "out_hidden_sizes says 3": lambda: g.lora_plugin(x, IN, [3], transb=True, lora_weights_pointers=[(a, b)]),
            "max_low_rank says 2": lambda: g.lora_plugin(
                x, IN, [4], transb=True, max_low_rank=2, lora_weights_pointers=[(a, b)]
            ),
            "of 2 modules: give": lambda: g.lora_plugin(x, IN, [4, 4], lora_weights_pointers=[(a, b)]),
            "dora_plugin with 3 factors": lambda: g.dora_plugin(x, [IN], [Tensor("f", "float32", [3])], None),
        }.items():
            with pytest.raises(UnsupportedError, match=rf"test_lora.py:\d+: .*{message}"):
                call()
