"""mamba_conv1d and selective_scan, prompts and steps, padded and packed, against loops in torch."""

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


def test_refusals() -> None:
    import tensorrt_llm
    from tensorrt_llm import Tensor

    with tensorrt_llm.net_guard(tensorrt_llm.Builder().create_network()):
        x, i = Tensor("x", "float32", [2, 5, DIM]), Tensor("i", "int64", [1])
        with pytest.raises(UnsupportedError, match=r"test_recurrent.py:\d+: .*states by address"):
            tensorrt_llm.functional.mamba_conv1d(x, i, x, x, x, x, DIM, TAPS, "float32")
        with pytest.raises(UnsupportedError, match=r"selective_scan of Mamba2"):
            tensorrt_llm.functional.selective_scan(
                x, x, x, x, x, x, x, x, x, DIM, 1, 1, True, "float32", mamba_version="Mamba2"
            )
        with pytest.raises(UnsupportedError, match=r"mamba_conv1d of 6 channels.*say 9"):
            tensorrt_llm.functional.mamba_conv1d(x, x, x, x, x, x, DIM, TAPS, "float32", 1, 2)
