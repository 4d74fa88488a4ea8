"""Element types: strong typing, casts that are put in without it, precision scopes, and the helpers of _utils."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ingot.errors import DTypeError, IngotError
from tests.compat.retired import create_session, run_session

torch = pytest.importorskip("torch")


def build(record: Any, inputs: dict[str, Any], strongly_typed: bool) -> tuple[Any, dict[str, Any]]:
    """The network that `record` makes of inputs, and what it gives for them."""
    import tensorrt_llm
    from tensorrt_llm import Tensor

    builder = tensorrt_llm.Builder()
    builder.strongly_typed = strongly_typed
    network = builder.create_network()
    with tensorrt_llm.net_guard(network):
        tensors = [
            Tensor(name=name, shape=tensor.shape, dtype=tensorrt_llm.torch_dtype_to_trt(tensor.dtype))
            for name, tensor in inputs.items()
        ]
        record(*tensors).mark_output("output")
    return network, run_session(create_session(builder, network), inputs)


@pytest.mark.parametrize(
    ("left", "right", "meet"),
    [
        ("float16", "float32", "float32"),
        ("float16", "bfloat16", "float32"),
        ("int32", "int64", "int64"),
        ("int64", "float16", "float16"),
        ("float32", "float32", "float32"),
    ],
)
def test_weak_typing_casts_and_says_so(left: str, right: str, meet: str) -> None:
    inputs = {
        name: torch.tensor([[1.5, 2.0], [3.0, -4.0]]).to(getattr(torch, kind))
        for name, kind in (("x", left), ("y", right))
    }
    network, outputs = build(lambda x, y: x + y, inputs, strongly_typed=False)
    kind = getattr(torch, meet)
    assert outputs["output"].dtype == kind
    assert torch.equal(outputs["output"], inputs["x"].to(kind) + inputs["y"].to(kind))
    why = "the type in which the operands of add meet"
    asked = [f"from {one} to {meet}, {why}" for one in (left, right) if one != meet]
    assert len(network.casts) == len(asked)
    assert all(words in cast and "test_types.py:" in cast for words, cast in zip(asked, network.casts, strict=True))


def test_strong_typing_refuses_and_names_the_line() -> None:
    inputs = {"x": torch.ones(2, dtype=torch.float16), "y": torch.ones(2)}
    with pytest.raises(IngotError, match=r"test_types.py:\d+: add: .*f16.*f32"):
        build(lambda x, y: x + y, inputs, strongly_typed=True)


@pytest.mark.parametrize("strongly_typed", [True, False])
def test_precision_computes_in_another_type(strongly_typed: bool) -> None:
    import tensorrt_llm

    x = (torch.arange(8) + 100).to(torch.float16).reshape(1, 8)

    def record(x: Any) -> Any:
        with tensorrt_llm.precision("float32"):
            return x * x / 3.0

    network, outputs = build(record, {"x": x}, strongly_typed)
    wide = x.float() ** 2 / 3
    if strongly_typed:  # types stay what they are without the scope
        torch.testing.assert_close(outputs["output"], wide.half(), rtol=1e-3, atol=0)
    else:
        torch.testing.assert_close(outputs["output"], wide, rtol=1e-6, atol=0)
    assert any("the precision scope of float32" in cast for cast in network.casts)


def test_mark_output_casts() -> None:
    network, outputs = build(lambda x: Marked(x * 2.0), {"x": torch.ones(3)}, strongly_typed=True)
    assert outputs["output"].dtype == torch.float16 and "as mark_output asks" in network.casts[0]


class Marked:
    """A tensor that is marked as float16, whatever it is."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def mark_output(self, name: str) -> None:
        self.tensor.mark_output(name, "float16")


def test_helpers() -> None:
    import tensorrt as trt
    from tensorrt_llm import _utils as u

    for name in ("float32", "float16", "bfloat16", "int8", "int32", "int64", "bool"):
        member = u.str_dtype_to_trt(name)
        assert member is getattr(trt, name) and u.trt_dtype_to_str(member) == name
        assert u.trt_dtype_to_torch(member) is u.str_dtype_to_torch(name) is getattr(torch, name)
        assert u.torch_dtype_to_trt(getattr(torch, name)) is member
        assert u.np_dtype_to_trt(u.trt_dtype_to_np(member)) is member
        assert u.str_dtype_to_np(name) == trt.nptype(member) == u.torch_dtype_to_np(getattr(torch, name))
    with pytest.raises(DTypeError, match="float64"):
        u.str_dtype_to_trt("float64")
    with pytest.raises(TypeError, match="float31"):
        u.str_dtype_to_trt("float31")
    assert u.dim_resolve_negative(-1, 3) == (2,) and u.dim_to_trt_axes((0, 2)) == 5
    assert [f([1]).dtype.name for f in (u.int32_array, u.int64_array, u.fp16_array, u.fp32_array, u.bf16_array)] == [
        "int32", "int64", "float16", "float32", "bfloat16"
    ]  # fmt: skip
    assert np.array_equal(u.torch_to_numpy(torch.ones(2, dtype=torch.bfloat16)), u.bf16_array([1, 1]))


def test_plugin_settings_are_recorded() -> None:
    import tensorrt_llm

    network = tensorrt_llm.Builder().create_network()
    config = network.plugin_config
    config.identity_plugin = "float16"
    config.set_gemm_plugin(dtype="float32").enable_remove_input_padding()
    with tensorrt_llm.net_guard(network):
        tensorrt_llm.default_net().plugin_config.set_context_fmha(
            tensorrt_llm.plugin.ContextFMHAType.enabled_with_fp32_acc
        )
    assert config.gemm_plugin == "float32" and config.remove_input_padding and config.context_fmha_type == 2
    assert ("identity_plugin", "float16") in config.recorded
    with pytest.raises(AttributeError, match="flux_plugin.*leave it out"):
        config.flux_plugin = True
