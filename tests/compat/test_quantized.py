"""tensorrt_llm.quantization: its functions and layers against the same in torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ingot.errors import UnsupportedError
from tests.compat.retired import create_session, run_session

torch = pytest.importorskip("torch")
nn = torch.nn.functional
X = torch.randn(3, 8, generator=torch.Generator().manual_seed(5))
WEIGHT = torch.randint(-127, 128, (6, 8), generator=torch.Generator().manual_seed(6)).to(torch.int8)


def run(record: Any, *tensors: Any) -> list[Any]:
    """What record(*inputs) gives, one output or several."""
    import tensorrt_llm
    from tensorrt_llm import Tensor, torch_dtype_to_trt

    builder = tensorrt_llm.Builder()
    network = builder.create_network()
    with tensorrt_llm.net_guard(network):
        inputs = [Tensor(f"x{i}", torch_dtype_to_trt(t.dtype), list(t.shape)) for i, t in enumerate(tensors)]
        made = record(*inputs)
        made = made if isinstance(made, tuple) else (made,)
        for index, tensor in enumerate(made):
            tensor.mark_output(f"y{index}")
    found = run_session(create_session(builder, network), {f"x{i}": t for i, t in enumerate(tensors)})
    return [found[f"y{index}"] for index in range(len(made))]


def per_token(x: Any) -> tuple[Any, Any]:
    scale = x.abs().amax(-1, keepdim=True) / 127
    return torch.round(x / scale).clamp(-128, 127).to(torch.int8), scale


def test_functions() -> None:
    import tensorrt_llm.quantization.functional as q

    scale = torch.tensor(0.02)
    (ours,) = run(lambda x, s: q.quantize(x, s, "int8"), X, scale)
    assert torch.equal(ours, torch.round(X / scale).clamp(-128, 127).to(torch.int8))
    (back,) = run(lambda x, s: q.dequantize(x, s, output_type="float32"), ours, scale)
    torch.testing.assert_close(back, ours.float() * scale)
    rows = torch.tensor([0.1, 0.02, 0.03])
    (ours,) = run(lambda x, s: q.quantize(x, s, "int8", axis=0), X, rows)
    assert torch.equal(ours, torch.round(X / rows[:, None]).clamp(-128, 127).to(torch.int8))
    ours, found = run(q.quantize_per_token, X)
    assert torch.equal(ours, per_token(X)[0])
    torch.testing.assert_close(found, per_token(X)[1])
    assert not run(q.quantize_per_token, X * 0)[0].any()
    (ours,) = run(lambda x, s: q.quantize_tensor(x, s), X, torch.tensor([40.0]))
    assert torch.equal(ours, torch.round(X * 40).clamp(-128, 127).to(torch.int8))


def test_products() -> None:
    import tensorrt_llm.quantization.functional as q

    x, by_row = per_token(X)
    by_channel = torch.rand(1, 6)
    (ours,) = run(lambda x, w, a, b: q.smooth_quant_gemm(x, w, a, b, True, True), x, WEIGHT, by_row, by_channel)
    torch.testing.assert_close(ours, (x.int() @ WEIGHT.T.int()).float() * by_row * by_channel)
    column = torch.rand(6)
    (ours,) = run(
        lambda x, w, s: q.weight_only_quant_matmul(x, w, s, 1, "float32"), X, WEIGHT.T.contiguous(), column
    )
    torch.testing.assert_close(ours, X @ (WEIGHT.T.float() * column))


@pytest.mark.parametrize("dynamic", [True, False])
def test_norms(dynamic: bool) -> None:
    from tensorrt_llm.quantization import QuantMode
    from tensorrt_llm.quantization.layers import SmoothQuantLayerNorm, SmoothQuantLinear, SmoothQuantRmsNorm

    mode = QuantMode.use_smooth_quant(per_token=dynamic, per_channel=True)
    for layer, theirs in (
        (SmoothQuantLayerNorm(8, dtype="float32", quant_mode=mode), lambda w: nn.layer_norm(X, (8,), w[0], w[1])),
        (SmoothQuantRmsNorm(8, dtype="float32", quant_mode=mode), lambda w: nn.rms_norm(X, (8,), w[0], 1e-6)),
    ):
        named = {name: torch.from_numpy(p.raw_value) for name, p in layer.named_parameters()}
        if not dynamic:
            layer.scale_to_int.value = np.array([60.0], np.float32)
        wide = theirs([named["weight"], named.get("bias")])
        quantised = per_token(wide) if dynamic else (torch.round(wide * 60).clamp(-128, 127).to(torch.int8),)
        ours = run(layer, X)
        assert (ours[0].int() - quantised[0].int()).abs().max() <= 1  # a sum may lie on the other side of a half
        product = SmoothQuantLinear(8, 6, dtype="float32", quant_mode=mode)
        p = {name: torch.from_numpy(q.raw_value) for name, q in product.named_parameters()}
        (found,) = run(lambda x, layer=layer, product=product: product(layer(x)), X)
        scale = ours[1] if dynamic else p["act_scale"]
        wanted = (ours[0].int() @ p["weight"].T.int()).float() * scale * p["per_channel_scale"] + p["bias"]
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_layers() -> None:
    from tensorrt_llm.quantization.layers import Dequantize, Quantize, QuantizePerToken, WeightOnlyQuantLinear

    one, other = Quantize(), Dequantize()
    for layer in (one, other):
        layer.scaling_factor.value = np.array(0.02, np.float32)
    (ours,) = run(lambda x: other(one(x)), X)
    torch.testing.assert_close(ours, torch.fake_quantize_per_tensor_affine(X, 0.02, 0, -128, 127))
    assert torch.equal(run(QuantizePerToken(), X)[0], per_token(X)[0])
    layer = WeightOnlyQuantLinear(8, 6, dtype="float32")
    w = {name: torch.from_numpy(p.raw_value) for name, p in layer.named_parameters()}
    (ours,) = run(layer, X)
    torch.testing.assert_close(ours, X @ (w["weight"].float() * w["per_channel_scale"]) + w["bias"])


def test_refusals() -> None:
    import tensorrt_llm.quantization.functional as q
    from tensorrt_llm.quantization import QuantMode
    from tensorrt_llm.quantization.layers import SmoothQuantLinear, WeightOnlyQuantLinear

    with pytest.raises(UnsupportedError, match=r"test_quantized.py:\d+: .*weightTypeId=2: int8 weights"):
        run(lambda x: q.weight_only_quant_matmul(x, x, x, 2), X)
    with pytest.raises(UnsupportedError, match="give QuantMode.use_smooth_quant"):
        SmoothQuantLinear(8, 6)
    with pytest.raises(UnsupportedError, match="int4-g128"):
        WeightOnlyQuantLinear(8, 6, quant_mode=QuantMode.use_weight_only(use_int4_weights=True))
    with pytest.raises(UnsupportedError, match="2 scales and per_token_scaling=False|3 scales"):
        run(lambda x, w, s: q.smooth_quant_gemm(x, w, s, s, False, False), X.to(torch.int8), WEIGHT, torch.ones(3, 1))
    with pytest.raises(UnsupportedError, match=r"has no 'fp8_rowwise_gemm'; instead: float weights"):
        _ = q.fp8_rowwise_gemm
