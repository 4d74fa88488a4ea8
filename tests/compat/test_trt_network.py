"""TensorRT's network: every layer that `add_…` makes, against torch; how outputs are named, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ingot.errors import UnsupportedError
from tests.compat.retired import create_session, run_session

torch = pytest.importorskip("torch")
nn = torch.nn.functional


def trt() -> Any:
    import tensorrt

    return tensorrt


def draw(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def run(record: Callable[..., Any], *tensors: Any) -> Any:
    """What a network gives that `record(network, *inputs)` makes; its result is a layer or a tensor."""
    import tensorrt_llm

    builder = tensorrt_llm.Builder()
    net = builder.create_network()
    with tensorrt_llm.net_guard(net):
        network = tensorrt_llm.default_trtnet()
        kinds = [tensorrt_llm.torch_dtype_to_trt(t.dtype) for t in tensors]
        inputs = [
            network.add_input(f"x{i}", kind, t.shape) for i, (kind, t) in enumerate(zip(kinds, tensors, strict=True))
        ]
        made = record(network, *inputs)
        output = made.get_output(0) if hasattr(made, "get_output") else made
        output.name = "output"
        network.mark_output(output)
    return run_session(create_session(builder, net), {f"x{i}": t for i, t in enumerate(tensors)})["output"]


def with_settings(layer: Any, **settings: Any) -> Any:
    for name, value in settings.items():
        setattr(layer, name, value)
    return layer


X, IMAGE, KERNEL, DECONVOLVED = draw(3, 4), draw(2, 4, 6, 5), draw(6, 2, 3, 3), draw(4, 3, 3, 3)
IDS = torch.tensor([[2, 0], [1, 1]], dtype=torch.int32)
W, C = draw(4), draw(4, 1)[:, 0]

CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Callable[..., Any]]] = {
    "cast": (lambda n, x: n.add_cast(x, trt().DataType.HALF), (X,), lambda x: x.half()),
    "shuffle": (
        lambda n, x: with_settings(
            n.add_shuffle(x), first_transpose=(1, 0), reshape_dims=(0, -1, 1), second_transpose=(2, 0, 1)
        ),
        (X,),
        lambda x: x.T[..., None].permute(2, 0, 1),
    ),
    "concatenation": (
        lambda n, x, y: with_settings(n.add_concatenation([x, y]), axis=1),
        (X, X),
        lambda x, y: torch.cat([x, y], 1),
    ),
    "gather": (lambda n, x, i: n.add_gather(x, i, 1), (X, IDS), lambda x, i: x[:, i.long()]),
    "gather element": (
        lambda n, x, i: with_settings(n.add_gather_v2(x, i, trt().GatherMode.ELEMENT), axis=1),
        (X, IDS),
        lambda x, i: x[:2].gather(1, i.long()),
    ),
    "normalization": (
        lambda n, x, w, b: with_settings(n.add_normalization(x, w, b, 1 << 1), epsilon=1e-3),
        (X, W[None], C[None]),
        lambda x, w, b: nn.layer_norm(x, (4,), w[0], b[0], 1e-3),
    ),
    "normalization of channels": (
        lambda n, x, w, b: with_settings(n.add_normalization(x, w, b, 0b1100), num_groups=2),
        (IMAGE, W.view(1, 4, 1, 1), C.view(1, 4, 1, 1)),
        lambda x, w, b: nn.group_norm(x, 2, w.flatten(), b.flatten()),
    ),
    "convolution_nd": (
        lambda n, x: with_settings(
            n.add_convolution_nd(x, 6, (3, 3), trt().Weights(KERNEL.numpy()), trt().Weights(np.ones(6, np.float32))),
            stride_nd=(2, 1),
            padding_nd=(1, 1),
            num_groups=2,
        ),
        (IMAGE,),
        lambda x: nn.conv2d(x, KERNEL, torch.ones(6), (2, 1), 1, 1, 2),
    ),
    "convolution of a tensor": (
        lambda n, x, w: _with_input(n.add_convolution_nd(x, 6, (3, 3), None), 1, w),
        (IMAGE, draw(6, 4, 3, 3)),
        lambda x, w: nn.conv2d(x, w),
    ),
    "deconvolution_nd": (
        lambda n, x: with_settings(
            n.add_deconvolution_nd(x, 6, (3, 3), DECONVOLVED.numpy()),
            stride_nd=(2, 2),
            num_groups=2,
            pre_padding=(1, 1),
            post_padding=(0, 0),
        ),
        (IMAGE,),
        lambda x: nn.conv_transpose2d(x, DECONVOLVED, None, 2, 1, 1, 2),
    ),
    "pooling_nd": (
        lambda n, x: with_settings(
            n.add_pooling_nd(x, trt().PoolingType.AVERAGE, (2, 2)), stride_nd=(2, 2), padding_nd=(1, 1)
        ),
        (IMAGE,),
        lambda x: nn.avg_pool2d(x, 2, 2, 1, count_include_pad=False),
    ),
    "pooling_nd max": (
        lambda n, x: n.add_pooling_nd(x, trt().PoolingType.MAX, trt().DimsHW(2, 3)),
        (IMAGE,),
        lambda x: nn.max_pool2d(x, (2, 3), 1),
    ),
    "elementwise": (
        lambda n, x, y: n.add_elementwise(x, y, trt().ElementWiseOperation.SUM),
        (X, X[:1]),
        lambda x, y: x + y,
    ),
    "reduce": (lambda n, x: n.add_reduce(x, trt().ReduceOperation.MAX, 0b01, False), (X,), lambda x: x.amax(0)),
    "softmax": (lambda n, x: with_settings(n.add_softmax(x), axes=0b10), (X,), lambda x: x.softmax(1)),
    "slice": (lambda n, x: n.add_slice(x, (1, 0), (2, 2), (1, 2)), (X,), lambda x: x[1:, ::2]),
    "select": (lambda n, c, x, y: n.add_select(c, x, y), (X > 0, X, -X), lambda c, x, y: x.abs()),
    "fill": (
        lambda n, x: n.add_elementwise(
            x,
            with_settings(n.add_fill((4,), trt().FillOperation.LINSPACE), alpha=1.0, beta=2.0).get_output(0),
            trt().ElementWiseOperation.PROD,
        ),
        (X,),
        lambda x: x * torch.tensor([1.0, 3, 5, 7]),
    ),
    "topk": (lambda n, x: n.add_topk(x, trt().TopKOperation.MIN, 2, 0b10), (X,), lambda x: x.topk(2, 1, False)[0]),
    "topk indices": (
        lambda n, x: n.add_topk(x, trt().TopKOperation.MAX, 2, 0b10).get_output(1),
        (X,),
        lambda x: x.topk(2, 1)[1].int(),
    ),
    "einsum": (lambda n, x, y: n.add_einsum([x, y], "ij,kj->ik"), (X, X), lambda x, y: x @ y.T),
    "matrix_multiply": (
        lambda n, x, y: n.add_matrix_multiply(x, trt().MatrixOperation.NONE, y, trt().MatrixOperation.TRANSPOSE),
        (X, X),
        lambda x, y: x @ y.T,
    ),
    "matrix by vector": (
        lambda n, x, y: n.add_matrix_multiply(x, trt().MatrixOperation.NONE, y, trt().MatrixOperation.VECTOR),
        (X, W),
        lambda x, y: x @ y,
    ),
    "constant": (
        lambda n, x: n.add_elementwise(
            x, n.add_constant((1, 4), trt().Weights(W.numpy())).get_output(0), trt().ElementWiseOperation.SUM
        ),
        (X,),
        lambda x: x + W,
    ),
    "identity": (lambda n, x: n.add_identity(x), (X,), lambda x: x),
    "shape": (lambda n, x: n.add_shape(x), (X,), lambda x: torch.tensor(x.shape)),
    "unary": (lambda n, x: n.add_unary(x, trt().UnaryOperation.ERF), (X,), torch.erf),
    "non_zero": (lambda n, x: n.add_non_zero(x), (IDS,), lambda x: x.nonzero().T),
    "cumulative": (lambda n, x: n.add_cumulative(x, 1, "SUM", False, False), (X,), lambda x: x.cumsum(1)),
    "scale": (
        lambda n, x: n.add_scale(x, trt().ScaleMode.CHANNEL, trt().Weights(C.numpy()), trt().Weights(W.numpy()), None),
        (IMAGE,),
        lambda x: x * W.view(4, 1, 1) + C.view(4, 1, 1),
    ),
    "resize": (
        lambda n, x: with_settings(
            n.add_resize(x),
            shape=(2, 4, 9, 7),
            resize_mode=trt().InterpolationMode.LINEAR,
            coordinate_transformation=trt().ResizeCoordinateTransformation.HALF_PIXEL,
        ),
        (IMAGE,),
        lambda x: nn.interpolate(x, (9, 7), mode="bilinear"),
    ),
    "resize nearest": (
        lambda n, x: with_settings(n.add_resize(x), scales=[1, 1, 2, 2]),
        (IMAGE,),
        lambda x: nn.interpolate(x, scale_factor=2),
    ),
    "if_conditional": (lambda n, c, x: _chosen(n, c, x), (torch.tensor(True), X), lambda c, x: x.exp()),
    "set_output_type": (
        lambda n, x: _typed(n.add_identity(x)),
        (X,),
        lambda x: x.half(),
    ),
}
ACTIVATIONS: dict[str, tuple[float, float, Callable[..., Any]]] = {
    "RELU": (0, 0, torch.relu),
    "SIGMOID": (0, 0, torch.sigmoid),
    "TANH": (0, 0, torch.tanh),
    "LEAKY_RELU": (0.2, 0, lambda x: nn.leaky_relu(x, 0.2)),
    "ELU": (0.7, 0, lambda x: nn.elu(x, 0.7)),
    "SELU": (0, 0, nn.selu),
    "SOFTSIGN": (0, 0, nn.softsign),
    "SOFTPLUS": (2.0, 0.5, lambda x: 2 * torch.log(torch.exp(0.5 * x) + 1)),
    "CLIP": (-0.5, 0.5, lambda x: x.clamp(-0.5, 0.5)),
    "HARD_SIGMOID": (0.2, 0.5, lambda x: (0.2 * x + 0.5).clamp(0, 1)),
    "SCALED_TANH": (1.5, 0.5, lambda x: 1.5 * torch.tanh(0.5 * x)),
    "THRESHOLDED_RELU": (0.3, 0, lambda x: torch.where(x > 0.3, x, 0)),
    "GELU_ERF": (0, 0, nn.gelu),
    "GELU_TANH": (0, 0, lambda x: nn.gelu(x, approximate="tanh")),
}


def _with_input(layer: Any, index: int, tensor: Any) -> Any:
    layer.set_input(index, tensor)
    return layer


def _typed(layer: Any) -> Any:
    layer.set_output_type(0, trt().float16)
    return layer


def _chosen(network: Any, condition: Any, x: Any) -> Any:
    choice = network.add_if_conditional()
    choice.set_condition(condition)
    inside = choice.add_input(x).get_output(0)
    yes = network.add_unary(inside, trt().UnaryOperation.EXP).get_output(0)
    return choice.add_output(yes, inside)


@pytest.mark.parametrize("name", CASES)
def test_layer(name: str) -> None:
    record, tensors, theirs = CASES[name]
    torch.testing.assert_close(run(record, *tensors), theirs(*tensors), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(name: str) -> None:
    alpha, beta, theirs = ACTIVATIONS[name]
    kind = getattr(trt().ActivationType, name)
    found = run(lambda n, x: with_settings(n.add_activation(x, kind), alpha=alpha, beta=beta), X)
    torch.testing.assert_close(found, theirs(X), rtol=2e-5, atol=2e-5)


def test_a_network_of_tensorrts_own_builder() -> None:
    import tensorrt as trt
    import tensorrt_llm

    builder = trt.Builder(trt.Logger(trt.Logger.WARNING))
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH))
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, 1 << 20)
    x = network.add_input("x", trt.float32, (-1, 4))
    profile = builder.create_optimization_profile()
    profile.set_shape("x", (1, 4), (2, 4), (3, 4))
    config.add_optimization_profile(profile)
    layer = network.add_activation(x, trt.ActivationType.RELU)
    layer.get_output(0).name = "y"
    network.mark_output(layer.get_output(0))
    assert (network.num_inputs, network.num_outputs, network.get_output(0).name) == (1, 1, "y")
    session = tensorrt_llm.runtime.Session.from_serialized_engine(builder.build_serialized_network(network, config))
    assert torch.equal(run_session(session, {"x": X})["y"], torch.relu(X))


@pytest.mark.parametrize(
    ("flag", "instead"),
    [("FP16", 'precision="float16"'), ("BF16", 'precision="bfloat16"'), ("INT8", "ingot.quantize("), ("TF32", None)],
)
def test_flags_that_would_change_types_warn(flag: str, instead: str | None, caplog: pytest.LogCaptureFixture) -> None:
    trt_ = trt()
    config = trt_.Builder(trt_.Logger()).create_builder_config()
    config.set_flag(trt_.BuilderFlag[flag])
    assert config.get_flag(trt_.BuilderFlag[flag])
    assert [instead in said and "test_trt_network.py:" in said for said in caplog.messages] == [True] * bool(instead)


def test_refusals() -> None:
    with pytest.raises(AttributeError, match=r"test_trt_network.py:\d+.*no add_plugin_v2; instead: functions"):
        run(lambda n, x: n.add_plugin_v2([x], None), X)
    with pytest.raises(AttributeError, match=r"no add_rnn_v2; instead: add_loop"):
        run(lambda n, x: n.add_rnn_v2(), X)
    with pytest.raises(
        UnsupportedError, match=r"test_trt_network.py:\d+: add_shuffle: it has no axis; it has .*reshape"
    ):
        run(lambda n, x: with_settings(n.add_shuffle(x), axis=1), X)
    with pytest.raises(UnsupportedError, match=r"add_softmax\(input\): it was called otherwise"):
        run(lambda n, x: n.add_softmax(x, 1), X)
    with pytest.raises(UnsupportedError, match=r"set_input\(3, …\) of add_softmax"):
        run(lambda n, x: _with_input(n.add_softmax(x), 3, x), X)
    with pytest.raises(UnsupportedError, match=r"precision of add_softmax: the network is strongly typed"):
        run(lambda n, x: with_settings(n.add_softmax(x), precision=trt().float16), X)

    def late(n: Any, x: Any) -> Any:
        layer = n.add_softmax(x)
        layer.get_output(0)
        layer.axes = 1

    with pytest.raises(UnsupportedError, match="set it before get_output"):
        run(late, X)
