"""Mamba's and RecurrentGemma's recurrences and layers, prompts and steps, padded and packed, against torch."""

from __future__ import annotations

from typing import Any

import pytest

from ingot.errors import UnsupportedError
from tests.compat.retired import create_session, run_session

torch = pytest.importorskip("torch")
nn = torch.nn.functional
DIM, TAPS, STATES, LENGTHS = 6, 4, 3, (5, 2)
DRAW = torch.Generator().manual_seed(11)
TEXTS = [torch.randn(7, 1 + DIM + 2, generator=DRAW) for _ in LENGTHS]
WEIGHT, BIAS = torch.randn(TAPS, DIM, generator=DRAW), torch.randn(DIM, generator=DRAW)


def session_of(record: Any, tensors: dict[str, Any], packed: bool) -> Any:
    import tensorrt_llm
    from tensorrt_llm import Tensor, torch_dtype_to_trt

    builder = tensorrt_llm.Builder()
    network = builder.create_network()
    network.plugin_config.remove_input_padding = packed
    with tensorrt_llm.net_guard(network):
        given = {name: Tensor(name, torch_dtype_to_trt(t.dtype), list(t.shape)) for name, t in tensors.items()}
        out, state = record(tensorrt_llm.functional, **given)
        out.mark_output("out")
        state.mark_output("after")
    return create_session(builder, network)


def run(record: Any, packed: bool, **tensors: Any) -> dict[str, Any]:
    return run_session(session_of(record, tensors, packed), tensors)


def padded(parts: list[Any], packed: bool) -> Any:
    return torch.cat(parts) if packed else torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)


def apart(out: Any, counts: Any, packed: bool) -> list[Any]:
    return list(out.split(list(counts))) if packed else [row[:n] for row, n in zip(out, counts, strict=True)]


def ends(counts: Any, packed: bool) -> Any:
    found = torch.tensor(counts, dtype=torch.int32)
    return found.cumsum(0).int() if packed else found


def convolved(text: Any) -> Any:
    """[S, dim]: every channel with the tokens before it."""
    x = nn.pad(text[:, 1 : 1 + DIM].T, (TAPS - 1, 0))
    return nn.silu(nn.conv1d(x[None], WEIGHT.T[:, None], BIAS, groups=DIM)[0].T)


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
def test_mamba_conv1d(packed: bool) -> None:
    def record(g: Any, x: Any, state: Any, weight: Any, bias: Any, types: Any, last: Any) -> Any:
        return g.mamba_conv1d(x, state, weight, bias, types, last, DIM, TAPS, "float32", 1, 2)

    fixed = {"weight": WEIGHT[None], "bias": BIAS}
    x = padded([text[:n] for text, n in zip(TEXTS, LENGTHS, strict=True)], packed)
    types, state = torch.zeros(2, dtype=torch.int32), torch.full((2, TAPS - 1, DIM), 9.0)
    found = run(record, packed, x=x, state=state, types=types, last=ends(LENGTHS, packed), **fixed)
    for ours, text, n in zip(apart(found["out"], LENGTHS, packed), TEXTS, LENGTHS, strict=True):
        torch.testing.assert_close(ours, convolved(text[:n]), rtol=2e-5, atol=2e-5)
    x = padded([text[n : n + 1] for text, n in zip(TEXTS, LENGTHS, strict=True)], packed)
    found = run(record, packed, x=x, state=found["after"], types=types + 1, last=ends((1, 1), packed), **fixed)
    for ours, text, n in zip(found["out"].reshape(2, DIM), TEXTS, LENGTHS, strict=True):
        torch.testing.assert_close(ours, convolved(text[: n + 1])[-1], rtol=2e-5, atol=2e-5)
    for ours, text, n in zip(found["after"], TEXTS, LENGTHS, strict=True):
        past = nn.pad(text[: n + 1, 1 : 1 + DIM], (0, 0, TAPS, 0))
        torch.testing.assert_close(ours, past[-TAPS + 1 :])


A = -torch.rand(STATES, DIM, generator=DRAW)
SKIP = torch.randn(DIM, generator=DRAW)
STEPS = [torch.randn(7, 3 * DIM + 2 * STATES + 4, generator=DRAW) for _ in LENGTHS]
PARTS = [DIM, DIM, DIM, 4 + 2 * STATES]


def scanned(text: Any) -> Any:
    x, delta, z, both = text.split(PARTS, 1)
    into, out_of = both[:, 4:].split(STATES, 1)
    state, found = torch.zeros(STATES, DIM), []
    for t in range(len(text)):
        step = nn.softplus(delta[t] + BIAS)
        state = torch.exp(step * A) * state + into[t][:, None] * (step * x[t])
        found.append((out_of[t] @ state + SKIP * x[t]) * nn.silu(z[t]))
    return torch.stack(found), state


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
def test_selective_scan(packed: bool) -> None:
    def record(g: Any, x: Any, delta: Any, z: Any, both: Any, state: Any, types: Any, last: Any, **fixed: Any) -> Any:
        return g.selective_scan(
            x, state, delta, fixed["bias"], fixed["A"], both, fixed["D"], types, last, DIM, STATES, 4, True, "float32",
            z=z,
        )

    def told(parts: list[Any], counts: Any) -> dict[str, Any]:
        names = dict(zip(("x", "delta", "z", "both"), padded(parts, packed).split(PARTS, -1), strict=True))
        return {name: t.contiguous() for name, t in names.items()} | {"last": ends(counts, packed)}

    fixed = {"bias": BIAS, "A": A, "D": SKIP}
    types, state = torch.zeros(2, dtype=torch.int32), torch.full((2, STATES, DIM), 9.0)
    given = told([text[:n] for text, n in zip(STEPS, LENGTHS, strict=True)], LENGTHS)
    found = run(record, packed, **given, state=state, types=types, **fixed)
    for ours, text, n in zip(apart(found["out"], LENGTHS, packed), STEPS, LENGTHS, strict=True):
        torch.testing.assert_close(ours, scanned(text[:n])[0], rtol=2e-5, atol=2e-5)
    given = told([text[n : n + 1] for text, n in zip(STEPS, LENGTHS, strict=True)], (1, 1))
    found = run(record, packed, **given, state=found["after"], types=types + 1, **fixed)
    for ours, after, text, n in zip(found["out"].reshape(2, DIM), found["after"], STEPS, LENGTHS, strict=True):
        torch.testing.assert_close(ours, scanned(text[: n + 1])[0][-1], rtol=2e-5, atol=2e-5)
        torch.testing.assert_close(after, scanned(text[: n + 1])[1], rtol=2e-5, atol=2e-5)


HEADS, GROUPS, EACH = 4, 2, 3
INNER, BOTH = HEADS * EACH, 2 * GROUPS * STATES
WIDTH2 = 2 * INNER + BOTH + HEADS  # z, x, B and C, delta: what Mamba2's one product gives
TEXTS2 = [torch.randn(7, WIDTH2, generator=DRAW) for _ in LENGTHS]
RATES, SKIPS, SHIFT = -torch.rand(HEADS, generator=DRAW), *(torch.randn(HEADS, generator=DRAW) for _ in range(2))


def scanned2(text: Any) -> Any:
    """Head by head, as Mamba2 is defined."""
    z, x, both, delta = text.split([INNER, INNER, BOTH, HEADS], 1)
    state, found = torch.zeros(HEADS, STATES, EACH), []
    for t in range(len(text)):
        step = nn.softplus(delta[t] + SHIFT)
        into, out_of = (m.view(GROUPS, STATES).repeat_interleave(HEADS // GROUPS, 0) for m in both[t].chunk(2))
        row = x[t].view(HEADS, EACH)
        state = torch.exp(step * RATES)[:, None, None] * state + into[:, :, None] * (step[:, None] * row)[:, None]
        y = torch.einsum("hn,hnp->hp", out_of, state) + SKIPS[:, None] * row
        found.append(y.flatten() * nn.silu(z[t]))
    return torch.stack(found), state


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
def test_selective_scan_of_mamba2(packed: bool) -> None:
    def record(g: Any, whole: Any, state: Any, types: Any, last: Any, **fixed: Any) -> Any:
        mixed = g.slice(whole, [0] * (whole.ndim() - 1) + [INNER], g.concat([
            *(g.shape(whole, i) for i in range(whole.ndim() - 1)), INNER + BOTH,
        ]))  # fmt: skip
        return g.selective_scan(
            mixed, state, whole, fixed["bias"], fixed["A"], mixed, fixed["D"], types, last, INNER, STATES, 0, True,
            "float32", z=whole, nheads=HEADS, ngroups=GROUPS, mamba_version="Mamba2",
        )  # fmt: skip

    fixed = {"bias": SHIFT, "A": RATES, "D": SKIPS}
    types, state = torch.zeros(2, dtype=torch.int32), torch.full((2, HEADS, STATES, EACH), 9.0)
    whole = padded([text[:n] for text, n in zip(TEXTS2, LENGTHS, strict=True)], packed)
    found = run(record, packed, whole=whole, state=state, types=types, last=ends(LENGTHS, packed), **fixed)
    for ours, text, n in zip(apart(found["out"], LENGTHS, packed), TEXTS2, LENGTHS, strict=True):
        torch.testing.assert_close(ours, scanned2(text[:n])[0], rtol=2e-5, atol=2e-5)
    whole = padded([text[n : n + 1] for text, n in zip(TEXTS2, LENGTHS, strict=True)], packed)
    last = ends((1, 1), packed)
    found = run(record, packed, whole=whole, state=found["after"], types=types + 1, last=last, **fixed)
    for ours, after, text, n in zip(found["out"].reshape(2, INNER), found["after"], TEXTS2, LENGTHS, strict=True):
        torch.testing.assert_close(ours, scanned2(text[: n + 1])[0][-1], rtol=2e-5, atol=2e-5)
        torch.testing.assert_close(after, scanned2(text[: n + 1])[1], rtol=2e-5, atol=2e-5)


# ---------------------------------------------------------------------------------------------- whole layers

BATCH, LONG, MODEL = 2, 5, 8


def continued(layer: Any, sizes: list[tuple[int, ...]], x: Any) -> Any:
    """A layer over all tokens but the last, and then over it: [B, S, width]."""
    import tensorrt_llm
    from tensorrt_llm import Tensor

    found, states, types = [], [torch.full((BATCH, *size), 9.0) for size in sizes], 0
    for part in (x[:, :-1], x[:, -1:]):
        builder = tensorrt_llm.Builder()
        network = builder.create_network()
        with tensorrt_llm.net_guard(network):
            network.set_named_parameters(layer.named_parameters())
            given = [Tensor("x", "float32", list(part.shape))]
            given += [Tensor(f"state{i}", "float32", [BATCH, *size]) for i, size in enumerate(sizes)]
            results = layer(*given, *(Tensor(name, "int32", [BATCH]) for name in ("types", "last")))
            for name, result in zip(("out", "after0", "after1"), results, strict=True):
                result.mark_output(name)
        told = {"types": types, "last": part.shape[1]}
        told = {name: torch.full((BATCH,), number, dtype=torch.int32) for name, number in told.items()}
        inputs = {"x": part.contiguous(), **{f"state{i}": s for i, s in enumerate(states)}, **told}
        results = run_session(create_session(builder, network), inputs)
        found.append(results["out"])
        states, types = [results[f"after{i}"] for i in range(len(sizes))], 1
    return torch.cat(found, 1)


def theirs(module: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    with torch.no_grad():
        out = module.eval()(x, *args, **kwargs)
    return out[0] if isinstance(out, tuple) else out


def drawn(module: Any) -> dict[str, Any]:
    """Weights of a module of transformers, drawn anew: some start as zeros or uninitialised."""
    rng = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng) * 0.3)
    return {name: parameter.detach() for name, parameter in module.named_parameters()}


def take(layer: Any, values: dict[str, Any]) -> None:
    own = dict(layer.named_parameters())
    assert own.keys() == values.keys(), own.keys() ^ values.keys()
    for name, value in values.items():
        own[name].value = value


X = torch.randn(BATCH, LONG, MODEL, generator=DRAW)


def test_a_mamba_layer_equals_transformers() -> None:
    pytest.importorskip("transformers")
    from tensorrt_llm.layers import Mamba
    from transformers.models.mamba import modeling_mamba

    config = modeling_mamba.MambaConfig(
        hidden_size=MODEL, state_size=STATES, conv_kernel=TAPS, expand=2, time_step_rank=3, num_hidden_layers=1
    )
    module = modeling_mamba.MambaMixer(config, 0)
    w = drawn(module)
    layer = Mamba(MODEL, 2 * MODEL, STATES, TAPS, 3, dtype="float32")
    first, second = w["in_proj.weight"].chunk(2)
    take(layer, {
        "A": -torch.exp(w["A_log"]).T, "D": w["D"], "dt_bias": w["dt_proj.bias"], "in_proj_x.weight": first,
        "in_proj_z.weight": second, "conv1d.weight": w["conv1d.weight"][..., None], "conv1d.bias": w["conv1d.bias"],
        "x_proj.weight": w["x_proj.weight"], "dt_proj.weight": w["dt_proj.weight"],
        "out_proj.weight": w["out_proj.weight"],
    })  # fmt: skip
    ours = continued(layer, [(TAPS - 1, 2 * MODEL), (STATES, 2 * MODEL)], X)
    torch.testing.assert_close(ours, theirs(module, X), rtol=2e-5, atol=2e-5)


def test_a_mamba2_layer_equals_transformers() -> None:
    pytest.importorskip("transformers")
    from tensorrt_llm.layers import Mamba2
    from transformers.models.mamba2 import modeling_mamba2

    config = modeling_mamba2.Mamba2Config(
        hidden_size=MODEL, state_size=STATES, conv_kernel=TAPS, expand=2, num_heads=4, head_dim=4, n_groups=1,
        num_hidden_layers=1, chunk_size=4,
    )  # fmt: skip
    module = modeling_mamba2.Mamba2Mixer(config, 0)
    w = drawn(module)
    layer = Mamba2(MODEL, 2 * MODEL, STATES, TAPS, 4, 1, dtype="float32")
    take(layer, {
        "A": -torch.exp(w["A_log"]), "D": w["D"], "dt_bias": w["dt_bias"], "in_proj.weight": w["in_proj.weight"],
        "conv1d.weight": w["conv1d.weight"][..., None], "conv1d.bias": w["conv1d.bias"],
        "norm.weight": w["norm.weight"], "out_proj.weight": w["out_proj.weight"],
    })  # fmt: skip
    ours = continued(layer, [(TAPS - 1, 2 * MODEL + 2 * STATES), (4, STATES, 4)], X)
    torch.testing.assert_close(ours, theirs(module, X), rtol=2e-5, atol=2e-5)


def recurrent_block() -> tuple[Any, dict[str, Any]]:
    """transformers' recurrent block of 8 channels in two heads, and its weights by the retired API's names."""
    from transformers.models.recurrent_gemma import modeling_recurrent_gemma

    config = modeling_recurrent_gemma.RecurrentGemmaConfig(
        hidden_size=MODEL, lru_width=MODEL, num_attention_heads=2, conv1d_width=TAPS, num_hidden_layers=1
    )
    module = modeling_recurrent_gemma.RecurrentGemmaRecurrentBlock(config, 0)
    w = drawn(module)
    named = {
        "linear_x.weight": w["linear_x.weight"], "linear_x.bias": w["linear_x.bias"],
        "linear_y.weight": w["linear_y.weight"], "y_bias": w["linear_y.bias"],
        "conv1d.weight": w["conv_1d.weight"][..., None], "conv1d.bias": w["conv_1d.bias"],
        "linear_out.weight": w["linear_out.weight"], "linear_out.bias": w["linear_out.bias"],
        "rg_lru.recurrent_param": w["rg_lru.recurrent_param"],
        **{f"rg_lru.{gate}.{part}": w[f"rg_lru.{gate}_{part}"]
           for gate in ("input_gate", "recurrent_gate") for part in ("weight", "bias")},
    }  # fmt: skip
    return module, named


@pytest.mark.parametrize("fused", [False, True])
def test_a_recurrent_block_equals_transformers(fused: bool) -> None:
    pytest.importorskip("transformers")
    from tensorrt_llm.layers import FusedRgLru, Recurrent

    module, w = recurrent_block()
    layer = Recurrent(MODEL, MODEL, TAPS, 2, dtype="float32")
    if fused:  # blocks of both gates beside each other
        layer.rg_lru = FusedRgLru(MODEL, 2, dtype="float32")
        for part in ("weight", "bias"):
            gates = [w.pop(f"rg_lru.{gate}.{part}") for gate in ("input_gate", "recurrent_gate")]
            w[f"rg_lru.gate.{part}"] = torch.cat(gates, -1)
    take(layer, w)
    ours = continued(layer, [(TAPS - 1, MODEL), (MODEL,)], X)
    expected = theirs(module, X, torch.arange(LONG)[None].expand(BATCH, -1), None, use_cache=False)
    torch.testing.assert_close(ours, expected, rtol=2e-5, atol=2e-5)


def test_packed_rg_lru_is_padded_rg_lru() -> None:
    """Gates far to both sides too: one that is all but closed is divided by."""
    texts = [torch.randn(n, 3 * DIM, generator=DRAW) * torch.tensor([1.0, 5.0, 60.0]).repeat_interleave(DIM)
             for n in LENGTHS]  # fmt: skip

    def record(g: Any, whole: Any, rates: Any, state: Any, types: Any, last: Any) -> Any:
        x, gate_x, gate_a = g.split(whole, DIM, dim=-1)
        return g.rg_lru(x, rates, state, types, last, DIM, "float32", gate_x=gate_x, gate_a=gate_a)

    rates, state = torch.randn(DIM, generator=DRAW), torch.randn(2, DIM, generator=DRAW)
    types = torch.tensor([0, 1], dtype=torch.int32)
    for packed in (True, False):
        given = {"whole": padded(texts, packed), "rates": rates, "state": state, "types": types}
        found = run(record, packed, **given, last=ends(LENGTHS, packed))
        for i, (ours, text) in enumerate(zip(apart(found["out"], LENGTHS, packed), texts, strict=True)):
            x, gate_x, gate_a = text.double().split(DIM, 1)
            h, rows = state[i].double() * i, []
            for t in range(len(text)):
                log = -8 * torch.sigmoid(gate_a[t]) * nn.softplus(rates.double())
                root = torch.sqrt(-torch.expm1(2 * log)) if i or t else 1.0
                h = torch.exp(log) * h + root * torch.sigmoid(gate_x[t]) * x[t]
                rows.append(h)
            torch.testing.assert_close(ours, torch.stack(rows).float(), rtol=2e-4, atol=2e-4)
            torch.testing.assert_close(found["after"][i], h.float(), rtol=2e-4, atol=2e-4)


def test_refusals() -> None:
    import tensorrt_llm
    from tensorrt_llm import Tensor

    with tensorrt_llm.net_guard(tensorrt_llm.Builder().create_network()):
        x, i = Tensor("x", "float32", [2, 5, DIM]), Tensor("i", "int64", [1])
        with pytest.raises(UnsupportedError, match=r"test_recurrent.py:\d+: .*states by address"):
            tensorrt_llm.functional.mamba_conv1d(x, i, x, x, x, x, DIM, TAPS, "float32")
        for more, message in (
            ({"mamba_version": "Mamba3"}, "selective_scan of Mamba3"),
            ({"nheads": 2}, "Mamba1 with 2 heads in 1 groups"),
            ({"mamba_version": "Mamba2", "nheads": 4}, "6 channels, 4 heads"),
            ({"mamba_version": "Mamba2"}, "delta of 6 channels: 1, or 15 with more"),
        ):  # fmt: skip
            with pytest.raises(UnsupportedError, match=rf"test_recurrent.py:\d+: .*{message}"):
                tensorrt_llm.functional.selective_scan(x, x, x, x, x, x, x, x, x, DIM, 1, 1, True, "float32", **more)
        with pytest.raises(UnsupportedError, match=r"rg_lru: give gate and block_size, or gate_x and gate_a"):
            tensorrt_llm.functional.rg_lru(x, x, x, x, x, DIM, "float32", gate_x=x)
        with pytest.raises(UnsupportedError, match=r"mamba_conv1d of 6 channels.*say 9"):
            tensorrt_llm.functional.mamba_conv1d(x, x, x, x, x, x, DIM, TAPS, "float32", 1, 2)
