"""layers.MOE and its kin against transformers' Mixtral and a loop in torch."""

from __future__ import annotations

from typing import Any

import pytest

from ingot.errors import UnsupportedError
from tests.compat.retired import create_session, hosted, run_session

torch = pytest.importorskip("torch")
nn = torch.nn.functional
HIDDEN, INNER, EXPERTS = 8, 6, 4
X = torch.randn(2, 5, HIDDEN, generator=torch.Generator().manual_seed(2))


def run(layer: Any, x: Any) -> tuple[Any, Any]:
    """What a layer gives, and the session; the batch is a size that only a run knows."""
    import tensorrt_llm
    from tensorrt_llm import Tensor, torch_dtype_to_trt

    builder = tensorrt_llm.Builder()
    network = builder.create_network()
    with tensorrt_llm.net_guard(network):
        network.set_named_parameters(layer.named_parameters())
        ranges = {"batch": [(1, 2, 4)], "length": [x.shape[1]], "hidden": [HIDDEN]}
        given = Tensor("x", torch_dtype_to_trt(x.dtype), [-1, *x.shape[1:]], ranges)
        layer(given).mark_output("out")
    session = create_session(builder, network)
    return run_session(session, {"x": x})["out"], session


def numbers(layer: Any) -> dict[str, Any]:
    """The layer's weights as tensors of torch."""
    return {name: torch.from_numpy(p.raw_value.astype("float32")) for name, p in layer.named_parameters()}


def mixed(x: Any, w: dict[str, Any], act: Any, top_k: int, normalize: bool) -> Any:
    """Row by row, expert by expert."""
    share, chosen = (x @ w["router.weight"].T).softmax(-1).topk(top_k)
    share = share / share.sum(-1, keepdim=True) if normalize else share
    out = torch.zeros_like(x)
    for place in torch.cartesian_prod(torch.arange(len(x)), torch.arange(x.shape[1])):
        for k in range(top_k):
            e, row = chosen[*place, k], x[*place]
            inner = act(row @ w["fc.weight"][e].T + w.get("fc.bias", torch.zeros(EXPERTS, 1))[e])
            made = inner @ w["proj.weight"][e].T + w.get("proj.bias", torch.zeros(EXPERTS, 1))[e]
            out[*place] += share[*place, k] * made
    return out


def test_a_mixture_equals_transformers() -> None:
    pytest.importorskip("transformers")
    from tensorrt_llm.layers import MOE, MoeConfig
    from transformers.models.mixtral import modeling_mixtral

    config = modeling_mixtral.MixtralConfig(
        hidden_size=HIDDEN, intermediate_size=INNER, num_local_experts=EXPERTS, num_experts_per_tok=2
    )
    module = modeling_mixtral.MixtralSparseMoeBlock(config).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)) * 0.4)
        theirs = module(X)
    layer = MOE(MoeConfig(num_experts=EXPERTS, top_k=2), HIDDEN, INNER, "swiglu", bias=False, dtype="float32")
    gate, up = module.experts.gate_up_proj.detach().chunk(2, 1)
    layer.router.weight.value = module.gate.weight.detach()
    layer.fc.weight.value, layer.proj.weight.value = torch.cat([up, gate], 1), module.experts.down_proj.detach()
    ours, session = run(layer, X)
    torch.testing.assert_close(ours, theirs[0] if isinstance(theirs, tuple) else theirs, rtol=2e-5, atol=2e-5)
    assert hosted(session) == [], "experts of a parameter are stored weights, as the kernel wants them"


@pytest.mark.parametrize(("act", "bias", "normalize", "top_k"), [
    ("gelu", True, True, 2), ("relu", False, False, 1), ("swiglu", True, False, 3), ("geglu", False, True, 2),
])  # fmt: skip
def test_activations_biases_and_normalisation(act: str, bias: bool, normalize: bool, top_k: int) -> None:
    from tensorrt_llm.layers import MOE, MoeConfig, MoeOOTB

    modes = MoeConfig.ExpertScaleNormalizationMode
    config = MoeConfig(EXPERTS, top_k=top_k, normalization_mode=modes.RENORMALIZE if normalize else modes.NONE)
    plain = {"gelu": lambda v: nn.gelu(v, approximate="tanh"), "relu": nn.relu}
    inner = {"swiglu": nn.silu, "geglu": plain["gelu"]}
    theirs = plain.get(act, lambda v: v.chunk(2, -1)[0] * inner[act](v.chunk(2, -1)[1]))
    layer = MOE(config, HIDDEN, INNER, act, bias=bias, dtype="float32")
    for name, parameter in layer.named_parameters():
        drawn = torch.randn(parameter.spec.shape, generator=torch.Generator().manual_seed(len(name))) * 0.5
        parameter.value = drawn
    w = numbers(layer)
    torch.testing.assert_close(run(layer, X)[0], mixed(X, w, theirs, top_k, normalize), rtol=2e-5, atol=2e-5)
    apart = MoeOOTB(config, HIDDEN, INNER, act, bias=bias, dtype="float32")
    apart.router.weight.value = w["router.weight"]
    for e, expert in enumerate(apart.experts):
        for part in ("weight", "bias") if bias else ("weight",):
            whole = w[f"fc.{part}"][e]
            if act in inner:
                getattr(expert.gate, part).value, whole = whole[:INNER], whole[INNER:]
            getattr(expert.fc, part).value = whole
            getattr(expert.proj, part).value = w[f"proj.{part}"][e]
    torch.testing.assert_close(run(apart, X)[0], mixed(X, w, theirs, top_k, normalize), rtol=2e-5, atol=2e-5)


def test_a_mixture_in_float16_and_one_beside_a_shared_expert() -> None:
    from tensorrt_llm.layers import MOE, MoeConfig, SharedMoE

    config = MoeConfig(EXPERTS, shared_expert_intermediate_size=5, top_k=2)
    layer = MOE(config, HIDDEN, INNER, "swiglu", False, "float16")  # as before 0.8: bias after the activation
    assert layer.fc.bias is None and layer.fc.weight.spec.dtype.name == "float16"

    def gated(v: Any) -> Any:
        return v.chunk(2, -1)[0] * nn.silu(v.chunk(2, -1)[1])

    expected = mixed(X.half().float(), numbers(layer), gated, 2, True)
    torch.testing.assert_close(run(layer, X.half())[0].float(), expected, rtol=4e-3, atol=4e-3)
    shared = SharedMoE(config, HIDDEN, INNER, "swiglu", bias=False, dtype="float32", use_shared_gate=True)
    w = numbers(shared)
    beside = gated(X @ w["shared_expert.fc.weight"].T) @ w["shared_expert.proj.weight"].T
    beside = beside * torch.sigmoid(X @ w["shared_expert_gate.weight"].T)
    torch.testing.assert_close(run(shared, X)[0], mixed(X, w, gated, 2, True) + beside, rtol=2e-5, atol=2e-5)


def test_refusals() -> None:
    from tensorrt_llm.layers import MOE, MoeConfig

    config = MoeConfig.from_dict({"num_experts": 2, "top_k": 1})
    assert config.has_moe() and MoeConfig(**config.to_dict()) == config
    modes = MoeConfig.ExpertScaleNormalizationMode
    for message, call in {
        r"MoeConfig\(num_experts=2, top_k=0\): set both": lambda: MoeConfig(num_experts=2).validate(),
        "3 of 2 experts: give top_k from 1": lambda: MOE(MoeConfig(2, top_k=3), 4, 4, "gelu"),
        "SPARSE_MIXER: RENORMALIZE or NONE": lambda: MOE(
            MoeConfig(2, top_k=1, normalization_mode=modes.SPARSE_MIXER), 4, 4, "gelu"
        ),
        "tp_size=2": lambda: MOE(config, 4, 4, "gelu", tp_size=2),
        "experts with 'no'": lambda: MOE(config, 4, 4, "no"),
        "of quantised weights: leave it out": lambda: MOE(config, 4, 4, "gelu", use_w4a8_awq=True),
        "called with finished: leave them out": lambda: run_with(MOE(config, HIDDEN, 4, "gelu"), finished=1),
    }.items():
        with pytest.raises(UnsupportedError, match=rf"test_mixture.py:\d+: .*{message}"):
            call()


def run_with(layer: Any, **more: Any) -> Any:
    import tensorrt_llm

    with tensorrt_llm.net_guard(tensorrt_llm.Builder().create_network()):
        return layer(tensorrt_llm.Tensor("x", "float32", [2, HIDDEN]), **more)
