"""Every layer of tensorrt_llm.layers, with a torch module's parameters, static and with profiles."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from ingot.errors import IngotError, UnsupportedError
from tests.compat.retired import create_session, run_session

torch = pytest.importorskip("torch")
TOLERANCE = {"float32": 2e-5, "float16": 4e-3}  # measured: 2e-6 and 2e-3


class GatedMLP(torch.nn.Module):  # type: ignore[name-defined, misc]
    def __init__(self, dtype: Any) -> None:
        super().__init__()
        self.fc, self.gate = torch.nn.Linear(8, 16, dtype=dtype), torch.nn.Linear(8, 16, dtype=dtype)
        self.proj = torch.nn.Linear(16, 8, dtype=dtype)

    def forward(self, x: Any) -> Any:
        return self.proj(torch.nn.functional.silu(self.fc(x)) * self.gate(x))


class MLP(torch.nn.Module):  # type: ignore[name-defined, misc]
    def __init__(self, dtype: Any) -> None:
        super().__init__()
        self.fc, self.proj = torch.nn.Linear(8, 16, dtype=dtype), torch.nn.Linear(16, 8, dtype=dtype)

    def forward(self, x: Any) -> Any:
        return self.proj(torch.nn.functional.gelu(self.fc(x), approximate="tanh"))


class Case(NamedTuple):
    """ours(layers, dtype) and theirs(dtype), a torch module whose parameters ours takes.

    Inputs have a size that may change in front of those of `rest`.
    """

    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    rest: tuple[int, ...]
    ids: bool = False


t = torch.nn
CASES: dict[str, Case] = {
    "Mish": Case(lambda layers, d: layers.Mish(), lambda d: t.Mish(), (4,)),
    "AvgPool2d": Case(lambda layers, d: layers.AvgPool2d((2, 2)), lambda d: t.AvgPool2d(2), (3, 4, 6)),
    "Linear": Case(lambda layers, d: layers.Linear(8, 6, dtype=d), lambda d: t.Linear(8, 6, dtype=d), (8,)),
    "ColumnLinear": Case(
        lambda layers, d: layers.ColumnLinear(8, 6, bias=False, dtype=d, tp_group=None, tp_size=1, gather_output=False),
        lambda d: t.Linear(8, 6, bias=False, dtype=d),
        (8,),
    ),
    "RowLinear": Case(
        lambda layers, d: layers.RowLinear(8, 6, True, d, None, 1, False), lambda d: t.Linear(8, 6, dtype=d), (8,)
    ),
    "Embedding": Case(
        lambda layers, d: layers.Embedding(9, 4, dtype=d), lambda d: t.Embedding(9, 4, dtype=d), (3,), True
    ),
    "MLP": Case(lambda layers, d: layers.MLP(8, 16, "gelu", True, d), MLP, (8,)),
    "GatedMLP": Case(lambda layers, d: layers.GatedMLP(8, 16, hidden_act="silu", dtype=d), GatedMLP, (8,)),
    "FusedGatedMLP": Case(lambda layers, d: layers.FusedGatedMLP(8, 16, "silu", dtype=d), GatedMLP, (8,)),
    "LayerNorm": Case(lambda layers, d: layers.LayerNorm(8, dtype=d), lambda d: t.LayerNorm(8, dtype=d), (8,)),
    "LayerNorm, dtype fourth": Case(
        lambda layers, d: layers.LayerNorm((8,), 1e-5, True, d), lambda d: t.LayerNorm(8, dtype=d), (8,)
    ),
    "RmsNorm": Case(
        lambda layers, d: layers.RmsNorm(8, eps=1e-5, dtype=d), lambda d: t.RMSNorm(8, 1e-5, dtype=d), (8,)
    ),
    "RmsNorm, eps second": Case(
        lambda layers, d: layers.RmsNorm(8, 1e-5, True, d), lambda d: t.RMSNorm(8, 1e-5, dtype=d), (8,)
    ),
    "RmsNorm, groups second": Case(
        lambda layers, d: layers.RmsNorm(8, 1, 1e-5, True, d), lambda d: t.RMSNorm(8, 1e-5, dtype=d), (8,)
    ),
    "GroupNorm": Case(lambda layers, d: layers.GroupNorm(2, 4, dtype=d), lambda d: t.GroupNorm(2, 4, dtype=d), (4, 3)),
    "Conv2d": Case(
        lambda layers, d: layers.Conv2d(4, 6, (3, 3), (2, 2), (1, 1), dtype=d),
        lambda d: t.Conv2d(4, 6, 3, 2, 1, dtype=d),
        (4, 5, 6),
    ),
    "Conv3d": Case(
        lambda layers, d: layers.Conv3d(2, 4, (2, 2, 2), dtype=d), lambda d: t.Conv3d(2, 4, 2, dtype=d), (2, 3, 4, 3)
    ),
    "ConvTranspose2d": Case(
        lambda layers, d: layers.ConvTranspose2d(4, 6, (3, 3), (2, 2), (1, 1), (1, 1), (1, 1), 2, dtype=d),
        lambda d: t.ConvTranspose2d(4, 6, 3, 2, 1, 1, 2, dtype=d),
        (4, 3, 4),
    ),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "profile"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", CASES)
def test_layer(name: str, dtype: str, dynamic: bool) -> None:
    import tensorrt_llm
    from tensorrt_llm import Tensor

    case, kind = CASES[name], getattr(torch, dtype)
    theirs = case.theirs(kind)
    builder = tensorrt_llm.Builder()
    network = builder.create_network()
    layer = case.ours(tensorrt_llm.layers, tensorrt_llm.str_dtype_to_trt(dtype))
    layer.update_parameters(theirs)
    ranges = OrderedDict([("batch", [(1, 3, 5)]), *((f"d{i}", [n]) for i, n in enumerate(case.rest))])
    with tensorrt_llm.net_guard(network):
        x = Tensor(
            name="x", shape=(-1 if dynamic else 3, *case.rest), dtype="int32" if case.ids else dtype,
            dim_range=ranges if dynamic else None,
        )  # fmt: skip
        layer(x).mark_output("output", dtype)
    session = create_session(builder, network, dtype)
    for batch in (1, 3, 5) if dynamic else (3,):
        sizes = (batch, *case.rest)
        x_data = torch.randint(0, 9, sizes, dtype=torch.int32) if case.ids else torch.randn(sizes).to(kind)
        outputs = run_session(session, {"x": x_data})
        with torch.no_grad():
            wanted = theirs.float()(x_data if case.ids else x_data.float()).to(kind)
        theirs.to(kind)
        torch.testing.assert_close(outputs["output"], wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def run(record: Callable[..., Any], inputs: dict[str, Any], strongly_typed: bool = True) -> tuple[Any, Any]:
    """The network that `record` makes of inputs, and its result."""
    import tensorrt_llm
    from tensorrt_llm import Tensor

    builder = tensorrt_llm.Builder()
    builder.strongly_typed = strongly_typed
    network = builder.create_network()
    with tensorrt_llm.net_guard(network):
        tensors = [
            Tensor(name=n, shape=v.shape, dtype=tensorrt_llm.torch_dtype_to_trt(v.dtype)) for n, v in inputs.items()
        ]
        record(*tensors).mark_output("output")
    return network, run_session(create_session(builder, network), inputs)["output"]


def test_conv1d_has_weights_of_four_dimensions() -> None:
    from tensorrt_llm.layers import Conv1d

    theirs = torch.nn.Conv1d(4, 6, 3, padding=1)
    layer = Conv1d(4, 6, 3, padding=1)
    layer.weight.value = theirs.weight.detach().unsqueeze(-1).numpy()
    layer.bias.value = theirs.bias.detach().numpy()
    x = torch.randn(2, 4, 7)
    torch.testing.assert_close(run(layer, {"x": x})[1], theirs(x).detach(), rtol=2e-5, atol=2e-5)


def test_cast() -> None:
    from tensorrt_llm.layers import Cast

    x = torch.randn(2, 4)
    assert torch.equal(run(Cast("float16"), {"x": x})[1], x.half())
    with pytest.raises(TypeError, match=r"test_layers.py:\d+.*float17"):
        Cast("float17")


def test_prompt_tuning_embedding() -> None:
    from tensorrt_llm.layers import PromptTuningEmbedding

    layer = PromptTuningEmbedding(6, 4, dtype="float32")
    table = torch.randn(2 * 3, 4)  # two tasks of three virtual tokens
    tokens = torch.tensor([[0, 6, 7], [8, 5, 6]], dtype=torch.int32)
    tasks = torch.tensor([[0], [1]], dtype=torch.int32)
    _, found = run(layer, {"t": tokens, "p": table, "k": tasks, "v": torch.tensor([3], dtype=torch.int32)})
    weight = torch.from_numpy(layer.weight.raw_value)
    wanted = torch.stack(
        [torch.stack([weight[0], table[0], table[1]]), torch.stack([table[3 + 2], weight[5], table[3 + 0]])]
    )
    assert torch.equal(found, wanted)


def test_a_users_subclass_calls_parts_of_a_layer() -> None:
    from tensorrt_llm import functional
    from tensorrt_llm.layers import MLP, ColumnLinear
    from tensorrt_llm.module import Module, ModuleList

    class Reversed(MLP):  # type: ignore[misc]
        def forward(self, hidden_states: Any) -> Any:
            return self.proj(functional.relu(self.fc(hidden_states)))

    class Net(Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = ModuleList([Reversed(8, 16, "gelu"), Reversed(8, 16, "gelu")])

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = x + layer(x)
            return functional.matmul(x, self.layers[0].fc.weight.value, transb=True)

    net = Net()
    assert isinstance(net.layers[0].fc, ColumnLinear)
    x = torch.randn(3, 8)
    network, found = run(net, {"x": x})
    names = {"layers.0.fc.weight", "layers.1.proj.bias"}
    assert names <= {name for name, _ in network.named_parameters}
    assert any(node.where == "layers.1.fc" for node in network.graph.nodes)
    w = {name: torch.from_numpy(p.raw_value) for name, p in net.named_parameters()}
    for i in range(2):
        up = torch.relu(x @ w[f"layers.{i}.fc.weight"].T + w[f"layers.{i}.fc.bias"])
        x = x + up @ w[f"layers.{i}.proj.weight"].T + w[f"layers.{i}.proj.bias"]
    torch.testing.assert_close(found, x @ w["layers.0.fc.weight"].T, rtol=2e-5, atol=2e-5)


def test_one_weight_of_two_layers_is_one_parameter() -> None:
    from tensorrt_llm.layers import Linear

    first = Linear(4, 4, bias=False)
    second = Linear(4, 4, bias=False, share_weight=first.weight)
    x = torch.randn(2, 4)
    network, found = run(lambda x: second(first(x)), {"x": x})
    weight = torch.from_numpy(first.weight.raw_value)
    assert len(network.named_parameters) == 1
    torch.testing.assert_close(found, x @ weight.T @ weight.T, rtol=2e-5, atol=2e-5)


def test_weak_typing_and_precision_in_layers() -> None:
    import tensorrt_llm
    from tensorrt_llm.layers import LayerNorm

    layer, x = LayerNorm(8, dtype="float32"), torch.randn(2, 8).half()
    wide = torch.nn.functional.layer_norm(
        x.float(), (8,), *(torch.from_numpy(p.raw_value) for p in (layer.weight, layer.bias))
    )
    network, found = run(layer, {"x": x}, strongly_typed=False)
    assert any("the type in which LayerNorm computes" in cast for cast in network.casts)
    torch.testing.assert_close(found, wide, rtol=2e-5, atol=2e-5)
    with pytest.raises(IngotError, match="layer_norm"):
        run(layer, {"x": x})

    def scoped(x: Any) -> Any:
        with tensorrt_llm.precision("float32"):
            return layer(x)

    torch.testing.assert_close(run(scoped, {"x": x})[1], wide.half(), rtol=2e-3, atol=2e-3)


def test_refusals() -> None:
    from tensorrt_llm.layers import MLP, Conv2d, Linear
    from tensorrt_llm.quantization import QuantMode

    with pytest.raises(UnsupportedError, match=r"test_layers.py:\d+: Linear with tp_size=2.*one device"):
        Linear(4, 4, tp_size=2)
    with pytest.raises(UnsupportedError, match=r'MLP with .*weights="int8"'):
        MLP(4, 4, "relu", quant_mode=QuantMode.use_weight_only())
    with pytest.raises(UnsupportedError, match=r"padding_mode='reflect'.*functional.pad"):
        Conv2d(4, 4, (3, 3), padding_mode="reflect")
    with pytest.raises(ValueError, match="groups=0"):
        Conv2d(4, 4, (3, 3), groups=0)
    with pytest.raises(UnsupportedError, match=r"missing a required argument: 'out_features'"):
        Linear(4, outputs=4)
    module = torch.nn.Linear(4, 4, bias=False)
    module.register_parameter("other", torch.nn.Parameter(torch.zeros(1)))
    with pytest.raises(UnsupportedError, match=r"names do not match.*missing bias.*unexpected other"):
        Linear(4, 4).update_parameters(module)
