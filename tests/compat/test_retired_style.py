"""Tests as they were written for TensorRT-LLM: build in a net_guard, mark outputs, serialise, run, compare."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest

from tests.compat.retired import create_session, run_session

torch = pytest.importorskip("torch")
DTYPES = ["float32", "float16", "bfloat16"]
ULPS = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}  # measured: 1e-6, 5e-4, 4e-3 (of values of about 1)


def close(ours: Any, theirs: Any, dtype: str) -> None:
    torch.testing.assert_close(ours, theirs, rtol=ULPS[dtype], atol=ULPS[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_relu(dtype: str) -> None:
    import tensorrt_llm
    from tensorrt_llm import Tensor

    x_data = torch.randn(12, 12, dtype=tensorrt_llm.str_dtype_to_torch(dtype))
    builder = tensorrt_llm.Builder()
    network = builder.create_network()
    with tensorrt_llm.net_guard(network):
        x = Tensor(name="x", shape=x_data.shape, dtype=tensorrt_llm.str_dtype_to_trt(dtype))
        output = tensorrt_llm.functional.relu(x)
        output.mark_output("output")
    session = create_session(builder, network, precision=dtype)
    outputs = run_session(session, {"x": x_data})
    assert torch.equal(outputs["output"], torch.relu(x_data))


def test_the_oldest_style_names_trt_tensors() -> None:
    import tensorrt_llm
    from tensorrt_llm import Tensor

    x_data = torch.randn(3, 4)
    builder = tensorrt_llm.Builder()
    net = builder.create_network()
    with tensorrt_llm.net_guard(net):
        network = tensorrt_llm.default_trtnet()
        x = Tensor(name="x", shape=x_data.shape, dtype=tensorrt_llm.str_dtype_to_trt("float32"))
        output = tensorrt_llm.functional.softmax(x, dim=0).trt_tensor
        output.name = "output"
        network.mark_output(output)
    outputs = run_session(create_session(builder, net), {"x": x_data})
    close(outputs["output"], x_data.softmax(0), "float32")


@pytest.mark.parametrize(("transa", "transb"), [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_matmul(dtype: str, transa: bool, transb: bool) -> None:
    import tensorrt_llm
    from tensorrt_llm import Tensor

    kind = tensorrt_llm.str_dtype_to_torch(dtype)
    x_data = torch.randn(2, *((6, 5) if transa else (5, 6)), dtype=kind)
    y_data = torch.randn(2, *((7, 6) if transb else (6, 7)), dtype=kind)
    builder = tensorrt_llm.Builder()
    network = builder.create_network()
    with tensorrt_llm.net_guard(network):
        x = Tensor(name="x", shape=x_data.shape, dtype=tensorrt_llm.torch_dtype_to_trt(kind))
        y = Tensor(name="y", shape=y_data.shape, dtype=tensorrt_llm.torch_dtype_to_trt(kind))
        tensorrt_llm.functional.matmul(x, y, transa=transa, transb=transb).mark_output("output", dtype)
    outputs = run_session(create_session(builder, network, dtype), {"x": x_data, "y": y_data})
    left, right = (x_data.mT if transa else x_data), (y_data.mT if transb else y_data)
    close(outputs["output"], (left.float() @ right.float()).to(kind), dtype)


def mlp_in_the_retired_style(hidden: int, ffn: int) -> Any:
    """A module with parameters of its own, as user code wrote them."""
    from tensorrt_llm.functional import gelu, layer_norm, matmul
    from tensorrt_llm.module import Module
    from tensorrt_llm.parameter import Parameter

    class NormedMLP(Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm_weight = Parameter(shape=(hidden,), dtype="float32")
            self.norm_bias = Parameter(shape=(hidden,), dtype="float32")
            self.up = Parameter(shape=(ffn, hidden), dtype="float32")
            self.down = Parameter(shape=(hidden, ffn), dtype="float32")

        def forward(self, x: Any) -> Any:
            y = layer_norm(x, x.shape[-1], self.norm_weight.value, self.norm_bias.value, 1e-5)
            y = gelu(matmul(y, self.up.value, transb=True))
            y = matmul(y, self.down.value, transb=True)
            self.register_network_output("mlp", y)
            return x + y

    return NormedMLP()


def test_layer_norm_mlp_with_profiles() -> None:
    import tensorrt_llm
    from tensorrt_llm import Tensor

    module = mlp_in_the_retired_style(16, 32)
    builder = tensorrt_llm.Builder()
    network = builder.create_network()
    with tensorrt_llm.net_guard(network):
        network.set_named_parameters(module.named_parameters())
        x = Tensor(
            name="x",
            dtype="float32",
            shape=[-1, -1, 16],
            dim_range=OrderedDict([("batch", [[1, 2, 4]]), ("length", [(1, 8, 16)]), ("hidden", [16])]),
        )
        module(x).mark_output("output", tensorrt_llm.str_dtype_to_trt("float32"))
    assert [name for name, _ in module.named_network_outputs()] == ["mlp"]
    session = create_session(builder, network)
    w = {name: torch.from_numpy(p.raw_value) for name, p in module.named_parameters()}
    for sizes in ((1, 1), (2, 8), (4, 16)):
        x_data = torch.randn(*sizes, 16)
        outputs = run_session(session, {"x": x_data})
        y = torch.nn.functional.layer_norm(x_data, (16,), w["norm_weight"], w["norm_bias"])
        y = torch.nn.functional.gelu(y @ w["up"].T, approximate="tanh") @ w["down"].T
        close(outputs["output"], x_data + y, "float32")
    with pytest.raises(ValueError, match=r"batch = 5 is outside of its profile, 1 … 4"):
        run_session(session, {"x": torch.randn(5, 1, 16)})


def test_profiles_of_the_builder() -> None:
    import tensorrt_llm
    from tensorrt_llm import Tensor

    builder = tensorrt_llm.Builder()
    network = builder.create_network()
    profile = builder.trt_builder.create_optimization_profile()
    profile.set_shape("x", (1, 4), (2, 4), (8, 4))
    with tensorrt_llm.net_guard(network):
        x = Tensor(name="x", shape=(-1, 4), dtype=tensorrt_llm.str_dtype_to_trt("float32"))
        (x * 2.0 + 1.0).mark_output("output")
    session = create_session(builder, network, optimization_profiles=[profile])
    x_data = torch.randn(8, 4)
    close(run_session(session, {"x": x_data})["output"], x_data * 2 + 1, "float32")
    with pytest.raises(ValueError, match="outside of its profile"):
        run_session(session, {"x": torch.randn(9, 4)})
