"""Module, Parameter and trace: torch's habits, and what a recorded network looks like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from ingot import build
from ingot import functional as F
from ingot.dims import Dim
from ingot.errors import DTypeError, ModuleError, OpError, ValueFault
from ingot.ir import Spec, StateSpec
from ingot.ir.interpret import interpret
from ingot.nn import (
    MLP,
    Attention,
    Cast,
    Embedding,
    FusedGatedMLP,
    GatedMLP,
    LayerNorm,
    Linear,
    Mish,
    Module,
    ModuleList,
    PagedStep,
    Parameter,
    PromptTuningEmbedding,
    RmsNorm,
    RotaryEmbedding,
    State,
    trace,
)


class Block(Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Linear(4, 8)
        self.second = Linear(8, 4, bias=False)
        self.scale = Parameter(shape=(4,))

    def forward(self, x: Any) -> Any:
        return F.mul(self.second(F.relu(self.first(x))), self.scale)


def filled(module: Module, seed: int = 0) -> Module:
    rng = np.random.default_rng(seed)
    for parameter in module.parameters():
        parameter.value = rng.standard_normal(parameter.shape).astype(parameter.dtype.numpy)
    return module


# ------------------------------------------------------------------------------------------------ the tree


def test_attributes_make_the_tree() -> None:
    block = Block()
    assert [name for name, _ in block.named_parameters()] == ["scale", "first.weight", "first.bias", "second.weight"]
    assert [name for name, _ in block.named_modules()] == ["", "first", "second"]
    assert [name for name, _ in block.named_children()] == ["first", "second"]
    assert list(block.children()) == [block.first, block.second]
    assert [name for name, _ in block.named_parameters("net", recurse=False)] == ["net.scale"]
    assert block.second.bias is None
    assert "first" in dir(block)
    assert repr(block).splitlines()[1] == "  (first): Linear(weight=f32[8, 4], bias=f32[8])"


def test_assigning_before_init_is_an_error() -> None:
    for value in (Parameter(shape=(1,)), Linear(1, 1), State(StateSpec("float32", heads=1, head_dim=2))):

        class Early(Module):
            def __init__(self, value: Any = value) -> None:
                self.part = value

        with pytest.raises(ModuleError, match=r"Early.part: call super\(\).__init__\(\) before assigning"):
            Early()


def test_reassigning_removes_the_old_entry() -> None:
    block = Block()
    block.scale = Linear(4, 4)
    assert isinstance(block.scale, Linear) and [n for n, _ in block.named_children()] == ["first", "second", "scale"]
    assert "scale" not in dict(block.named_parameters())
    block.first = 3
    assert block.first == 3 and "first.weight" not in dict(block.named_parameters())
    block.first = Parameter(shape=(2,))
    assert [name for name, _ in block.named_parameters(recurse=False)] == ["first"]
    del block.second
    with pytest.raises(AttributeError, match="Block has no attribute 'second'"):
        _ = block.second


def test_optional_parameters() -> None:
    module = Module()
    module.register_parameter("bias", None)
    assert module.bias is None and list(module.parameters()) == []
    module.bias = Parameter(shape=(2,))
    assert len(list(module.parameters())) == 1
    module.bias = None
    assert module.bias is None and list(module.parameters()) == []
    module.other = 1
    with pytest.raises(ModuleError, match="already has an attribute 'other'"):
        module.register_parameter("other", Parameter(shape=(1,)))
    with pytest.raises(ModuleError, match="dots separate"):
        module.register_parameter("a.b", None)
    with pytest.raises(ModuleError, match="takes a Parameter or None"):
        module.register_parameter("c", 3)  # type: ignore[arg-type]


def test_apply_visits_children_first() -> None:
    seen: list[str] = []
    block = Block()
    assert block.apply(lambda module: seen.append(type(module).__name__)) is block
    assert seen == ["Linear", "Linear", "Block"]


def test_module_list() -> None:
    layers = ModuleList([Linear(2, 2), Linear(2, 3)])
    layers.append(Linear(3, 3)).extend([Linear(3, 1)])
    assert len(layers) == 4 and layers[-1].out_features == 1 and len(layers[1:3]) == 2
    layers[0] = Linear(2, 2, bias=False)
    layers.insert(1, Linear(2, 2))
    del layers[4]
    assert [name for name, _ in layers.named_parameters()][:2] == ["0.weight", "1.weight"]
    assert [layer.out_features for layer in layers] == [2, 2, 3, 3]
    with pytest.raises(ModuleError, match="holds Modules, not int"):
        layers.append(3)  # type: ignore[arg-type]
    with pytest.raises(ModuleError, match="is not called itself"):
        layers(np.zeros(2, np.float32))


# ------------------------------------------------------------------------------------------------ parameters


def test_a_parameter_allocates_nothing() -> None:
    huge = Parameter(shape=(1 << 20, 1 << 20), dtype="bfloat16")
    assert huge.value is None and str(huge.spec) == "bf16[1048576, 1048576]"


def test_parameter_values() -> None:
    parameter = Parameter(np.ones((2, 3), np.float32))
    assert str(parameter.spec) == "f32[2, 3]"
    with pytest.raises(ModuleError, match=r"shape \[3, 2\], expected \[2, 3\]"):
        parameter.value = np.ones((3, 2), np.float32)
    with pytest.raises(ModuleError, match="dtype float64, expected float32"):
        parameter.value = np.ones((2, 3))
    with pytest.raises(ModuleError, match="needs a shape"):
        Parameter()
    with pytest.raises(ModuleError, match="every size must be a positive int"):
        Parameter(shape=(0, 2))
    with pytest.raises(ModuleError, match="every size must be a positive int"):
        Parameter(shape=("T", 2))


def test_torch_values() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    parameter = Parameter(shape=(2,), dtype="bfloat16")
    parameter.value = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    assert parameter.value is not None and parameter.value.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(parameter.value.astype(np.float32), [1.5, -2.0])


def test_load_state_dict(tmp_path: Path) -> None:
    source, target = filled(Block()), Block()
    assert target.load_state_dict(source.state_dict()) == ([], [])
    for name, array in source.state_dict().items():
        np.testing.assert_array_equal(target.state_dict()[name], array)
    save_file({k: v.copy() for k, v in source.state_dict().items()}, tmp_path / "net.safetensors")
    again = Block()
    again.load_state_dict(tmp_path / "net.safetensors")
    np.testing.assert_array_equal(again.scale.value, source.scale.value)


def test_load_state_dict_lists_everything_and_changes_nothing() -> None:
    block = Block()
    state = filled(Block()).state_dict()
    state |= {"first.weight": np.zeros((8, 5), np.float32), "scale": np.zeros(4), "ghost": np.zeros(1)}
    del state["second.weight"]
    with pytest.raises(ModuleError) as caught:
        block.load_state_dict(state)
    message = str(caught.value)
    assert "first.weight: shape [8, 5], expected [8, 4]" in message and "scale: dtype float64" in message
    assert "missing: \n    second.weight" in message and "unexpected: \n    ghost" in message
    assert block.state_dict() == {}
    del state["first.weight"], state["scale"]
    assert block.load_state_dict(state, strict=False) == (["scale", "first.weight", "second.weight"], ["ghost"])
    assert list(block.state_dict()) == ["first.bias"]


class Tied(Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = Embedding(5, 4)
        self.head = Linear(4, 5, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: Any) -> Any:
        return self.head(self.table(ids))


def test_ids_of_virtual_tokens_are_rows_of_a_task() -> None:
    """Ids from 5 on are those of a task's own table; one beyond it is a fault."""
    layer, rng = PromptTuningEmbedding(5, 4), np.random.default_rng(0)
    table, prompts = (rng.standard_normal((n, 4)).astype(np.float32) for n in (5, 6))
    layer.load_state_dict({"weight": table})
    kinds = {"ids": ("T",), "prompt_table": (6, 4), "tasks": ("T",), "task_vocab_size": (1,)}
    specs = {name: Spec(shape, "float32" if name == "prompt_table" else "int32") for name, shape in kinds.items()}
    engine = build(layer, specs, report=False)
    feeds = {"ids": [0, 5, 7, 4, 6], "tasks": [0, 0, 1, 1, 1], "task_vocab_size": [3]}
    given = {name: np.array(x, np.int32) for name, x in feeds.items()} | {"prompt_table": prompts}
    (found,) = engine.run(given).values()
    np.testing.assert_array_equal(found, [table[0], prompts[0], prompts[5], table[4], prompts[4]])
    with pytest.raises(ValueFault, match="id out of range .6 at element 2"):
        engine.run(given | {"ids": np.array([0, 5, 8, 4, 6], np.int32)})


def test_tied_parameters_are_one_value() -> None:
    net = filled(Tied())
    assert [name for name, _ in net.named_parameters()] == ["table.weight"]
    network = trace(net, {"ids": Spec(("T",), "int32")})
    assert [value.name for value in network.parameters] == ["table.weight"]
    state = net.state_dict()
    assert list(state) == ["table.weight", "head.weight"]
    Tied().load_state_dict(state)
    Tied().load_state_dict({"head.weight": state["head.weight"]})
    with pytest.raises(ModuleError, match="head.weight: differs from table.weight"):
        Tied().load_state_dict(state | {"head.weight": state["head.weight"] + 1})


# ------------------------------------------------------------------------------------------------ tracing


def test_trace() -> None:
    net = filled(Block())
    network = trace(net, {"x": Spec((Dim("N", 1, 2, 64), 4), "float32")})
    assert [v.name for v in network.inputs] == ["x"] and list(network.outputs) == ["output_0"]
    assert [v.name for v in network.parameters] == ["first.weight", "first.bias", "second.weight", "scale"]
    assert [node.where for node in network.nodes] == ["first", "first", "", "second", ""]
    assert all(node.source.startswith("test_module.py:") for node in network.nodes)
    x = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)
    (got,) = interpret(network, {"x": x}, net.state_dict()).values()
    w = net.state_dict()
    want = (np.maximum(x @ w["first.weight"].T + w["first.bias"], 0) @ w["second.weight"].T) * w["scale"]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(net(x), got, rtol=1e-6, atol=1e-6)


def test_outputs_are_named() -> None:
    class Several(Module):
        def __init__(self, form: str) -> None:
            super().__init__()
            self.form = form

        def forward(self, x: Any) -> Any:
            parts = F.split(x, 1, 1)
            return {"left": parts[0], "right": parts[1]} if self.form == "dict" else parts

    spec = {"x": Spec(("N", 2), "float32")}
    assert list(trace(Several("dict"), spec).outputs) == ["left", "right"]
    assert list(trace(Several("tuple"), spec).outputs) == ["output_0", "output_1"]
    x = np.arange(4, dtype=np.float32).reshape(2, 2)
    np.testing.assert_array_equal(Several("dict")(x)["right"], x[:, 1:])


def test_inputs_must_fit_forward() -> None:
    with pytest.raises(ModuleError, match=r"Block.forward\(x\): unknown inputs: y; inputs without a Spec: x"):
        trace(Block(), {"y": Spec((2, 4), "float32")})
    with pytest.raises(ModuleError, match="not a Spec: x"):
        trace(Block(), {"x": (2, 4)})  # type: ignore[dict-item]


def test_results_must_be_tensors() -> None:
    class Bad(Module):
        def forward(self, x: Any) -> Any:
            return {"x": x, "n": 3}

    with pytest.raises(ModuleError, match="'n' is a int"):
        trace(Bad(), {"x": Spec((1,), "float32")})


def test_errors_name_the_module() -> None:
    class Outer(Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return self.inner(x)

    with pytest.raises(OpError, match=r"matmul\(a=f32\[N, 3\], b=f32\[4, 4\]\) in inner"):
        trace(Outer(), {"x": Spec(("N", 3), "float32")})


def test_a_module_outside_the_tree() -> None:
    stray = [Linear(4, 4)]

    class Hidden(Module):
        def forward(self, x: Any) -> Any:
            return stray[0](x)

    with pytest.raises(ModuleError, match="of a module outside the tree"):
        trace(Hidden(), {"x": Spec((1, 4), "float32")})


def test_eager_needs_values_and_arrays() -> None:
    with pytest.raises(ModuleError, match=r"first.weight: Parameter\(f32\[8, 4\]\) has no value"):
        Block()(np.zeros((1, 4), np.float32))
    network = trace(Block(), {"x": Spec((1, 4), "float32")})
    with pytest.raises(ModuleError, match="outside of a trace"):
        Block()(network.inputs[0])


def test_symbolic_methods_work_eagerly_too() -> None:
    class Views(Module):
        def forward(self, x: Any) -> Any:
            left, right = x.view(0, 2, -1).permute(0, 2, 1).split(1, 2)
            return (left - right).squeeze(2) / 2

    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    want = (x[:, :3] - x[:, 3:]) / 2
    np.testing.assert_array_equal(Views()(x), want)
    network = trace(Views(), {"x": Spec(("N", 6), "float32")})
    np.testing.assert_array_equal(interpret(network, {"x": x})["output_0"], want)


# ------------------------------------------------------------------------------------------------ layers


def check_against_torch(layer: Module, reference: Any, *shape: int) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    with torch.no_grad():
        want = reference(torch, torch.tensor(x)).numpy()
    np.testing.assert_allclose(layer(x), want, rtol=2e-5, atol=2e-6)


def test_layers_against_torch() -> None:
    norm = filled(LayerNorm((3, 4)))
    t = dict(norm.state_dict())
    check_against_torch(
        norm,
        lambda torch, x: torch.nn.functional.layer_norm(
            x, (3, 4), torch.tensor(t["weight"]), torch.tensor(t["bias"]), 1e-5
        ),
        2, 3, 4,
    )  # fmt: skip
    check_against_torch(LayerNorm(4, elementwise_affine=False), lambda torch, x: torch.layer_norm(x, (4,)), 2, 4)
    check_against_torch(
        RmsNorm(4, elementwise_affine=False), lambda torch, x: torch.nn.functional.rms_norm(x, (4,), eps=1e-6), 2, 4
    )
    check_against_torch(Mish(), lambda torch, x: torch.nn.functional.mish(x), 3, 50)


def test_mlps() -> None:
    x = np.random.default_rng(2).standard_normal((3, 4)).astype(np.float32)

    def silu(a: np.ndarray) -> np.ndarray:
        return a / (1 + np.exp(-a))

    gated = filled(GatedMLP(4, 6, "swiglu"))
    w = gated.state_dict()
    inner = silu(x @ w["fc.weight"].T + w["fc.bias"]) * (x @ w["gate.weight"].T + w["gate.bias"])
    np.testing.assert_allclose(gated(x), inner @ w["proj.weight"].T + w["proj.bias"], rtol=1e-4, atol=1e-5)
    fused = FusedGatedMLP(4, 6, "silu")
    fused.load_state_dict(w)
    np.testing.assert_array_equal(fused(x), gated(x))
    plain = filled(MLP(4, 6, "swiglu", bias=False))
    assert plain.state_dict()["fc.weight"].shape == (12, 4)
    assert plain(x).shape == (3, 4)
    with pytest.raises(OpError, match="unknown activation 'swoosh'"):
        MLP(4, 6, "swoosh")


def test_constructors_refuse() -> None:
    with pytest.raises(ModuleError, match="Linear: in_features=0, out_features=-1 must be positive ints"):
        Linear(0, -1)
    with pytest.raises(ModuleError, match="3 heads are not a multiple of num_kv_heads 2|not a multiple"):
        Attention(12, 3, 2)
    with pytest.raises(ModuleError, match="hidden_size 13 is not a multiple of 4 heads"):
        Attention(13, 4)
    with pytest.raises(TypeError, match="'float31' is not an element type"):
        Cast("float31")
    with pytest.raises(DTypeError):
        Cast("nothing")
    with pytest.raises(ModuleError, match="dim must be even"):
        RotaryEmbedding(dim=3)
    assert issubclass(ModuleError, ValueError)


@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 1}, {"window": 3}, {"softcap": 5.0}, {"interleaved": True}])
def test_attention_against_dense(options: dict[str, Any]) -> None:
    """One request in one chunk equals plain masked attention."""
    rng = np.random.default_rng(8)
    layer: Any = filled(Attention(16, 4, **options))
    kv_heads, tokens = layer.num_kv_heads, 7
    layer.cache.value = np.zeros((2, 16, 2, kv_heads, 4), np.float32)
    rotary = RotaryEmbedding(dim=4)
    positions = np.arange(tokens, dtype=np.int32)
    cos, sin = rotary(positions)
    x = rng.standard_normal((tokens, 16)).astype(np.float32)
    table = np.array([[1]], np.int32)

    class Whole(Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = layer

        def forward(self, x: Any, cos: Any, sin: Any, start: Any, length: Any, table: Any, slot: Any) -> Any:
            return self.attention(x, PagedStep(cos, sin, start, length, table, slot))

    i32 = np.int32
    got = Whole()(x, cos, sin, np.array([0, tokens], i32), np.array([tokens], i32), table, 16 + positions)
    w = layer.state_dict()

    def project(name: str, heads: int) -> np.ndarray:
        return (x @ w[f"{name}.weight"].T + w[f"{name}.bias"]).reshape(tokens, heads, 4)

    def rotate(a: np.ndarray) -> np.ndarray:
        out = a.copy()
        pairs = [(0, 1), (2, 3)] if options.get("interleaved") else [(0, 2), (1, 3)]
        for i, (low, high) in enumerate(pairs):
            c, s = cos[:, None, i], sin[:, None, i]
            out[..., low], out[..., high] = a[..., low] * c - a[..., high] * s, a[..., high] * c + a[..., low] * s
        return out

    q, k, v = rotate(project("q_proj", 4)), rotate(project("k_proj", kv_heads)), project("v_proj", kv_heads)
    k, v = np.repeat(k, 4 // kv_heads, 1), np.repeat(v, 4 // kv_heads, 1)
    scores = np.einsum("qhd,khd->hqk", q, k) * 0.5
    if "softcap" in options:
        scores = 5.0 * np.tanh(scores / 5.0)
    back = positions[:, None] - positions[None]
    scores = np.where((back >= 0) & (back < options.get("window", 99)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    context = np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v).reshape(tokens, 16)
    np.testing.assert_allclose(got, context @ w["o_proj.weight"].T + w["o_proj.bias"], rtol=1e-4, atol=1e-5)
