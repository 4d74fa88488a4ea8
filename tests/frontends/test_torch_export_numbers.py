"""Python numbers of values (`item()`) as operands and as sizes, and what the file says of results' sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ingot
from ingot import dtypes
from ingot.builder.network import build_network
from ingot.errors import UnsupportedError, ValueFault
from ingot.frontends.torch_export.export import export
from ingot.frontends.torch_export.graph import refs
from ingot.frontends.torch_export.importer import build_network as import_network

X = torch.randn(6, generator=torch.Generator().manual_seed(0))
K = torch.tensor(3)


class _Of(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, k: torch.Tensor) -> Any:
        return self.function(x, k)


def _first(x: Any, k: Any) -> Any:
    n = k.item()
    torch._check(n >= 0)
    torch._check(n <= x.shape[0])
    return x[:n]


def _only_checked(x: Any, k: Any) -> Any:
    torch._check(k.max().item() < 7)
    torch.zeros(k.item() * 2, 3).reshape(k.item(), 6)  # nobody reads it
    return x * 2


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "times a float": lambda x, k: x * x.max().item(), "a bound": lambda x, k: x.clamp(max=x.mean().item()),
    "plus an integer": lambda x, k: x + k.item(), "returned": lambda x, k: x.max().item(),
    "a range": lambda x, k: torch.arange(k.item()) * 2, "a size": lambda x, k: torch.zeros(k.item(), 2) + x[:2],
    "a slice": _first, "only checked": _only_checked, "a value everywhere": lambda x, k: torch.full((2, 3), k.item()),
    "a size that folds": lambda x, k: _first(x, torch.arange(4).max()) + 1,
    "counts of few": lambda x, k: torch.bincount(k.reshape(1)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_agrees_with_torch(name: str) -> None:
    module = _Of(FUNCTIONS[name])
    engine = ingot.build(module, (X, K))
    assert engine.report is not None and engine.report.source.startswith("against torch")
    assert engine._native.host_calls("main") == []
    for x, k in ((X, K), (X.flip(0) * 3, torch.tensor(5))):
        (found,) = engine.run({"x": x, "k": k}).values()
        wanted = torch.as_tensor(module(x, k)).numpy()
        assert found.shape == wanted.shape and found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_a_number_below_0_is_none_as_a_size() -> None:
    below = torch.tensor(-3)
    plus = ingot.build(_Of(FUNCTIONS["plus an integer"]), (X, K), report=False)
    np.testing.assert_allclose(plus.run({"x": X, "k": below})["output_0"], (X - 3).numpy(), rtol=1e-6)
    sized = ingot.build(_Of(FUNCTIONS["a range"]), (X, K), report=False)
    with pytest.raises(ValueFault, match="-3"):
        sized.run({"x": X, "k": below})


def test_a_slice_beyond_its_tensor_is_a_fault() -> None:
    """torch exports a check that the number is at most the size."""
    engine = ingot.build(_Of(_first), (X, K), report=False)
    with pytest.raises(ValueFault, match="must be"):
        engine.run({"x": X, "k": torch.tensor(7)})


@pytest.mark.parametrize("wrong", [True, False])
def test_last_states_of_an_lstm_that_the_file_has_with_a_dimension_more(wrong: bool) -> None:
    """As torch before 2.13 writes them, and all that is made of them."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = nn.LSTM(4, 6, bidirectional=True), nn.Linear(12, 3)

        def forward(self, x: torch.Tensor) -> Any:
            y, (h, c) = self.layer(x)
            return y * 2, self.head(torch.cat([h[-2], h[-1]], -1)), c * 2

    torch.manual_seed(0)
    net, x = Net().eval(), torch.randn(5, 2, 4)
    exported = export(net, (x,))
    graph, tensors = exported.program.graph, dict(exported.program.graph.tensors)
    lstm = next(node for node in graph.nodes if node.op == "aten.lstm.input")
    whole, hidden, cell = (result.name for result in lstm.results())
    already = len(tensors[hidden].sizes) == 4  # torch before 2.13 has written it
    heirs = {hidden, cell} if wrong and not already else set()
    for node in graph.nodes:
        read = set(refs(a.value for a in node.arguments))
        if heirs & read or (not wrong and whole in read):
            heirs |= {result.name for result in node.results()}
    for name in heirs:
        meta, at = tensors[name], 1 if len(tensors[name].sizes) == 3 else 0
        sizes, strides = ((*d[:at], 1, *d[at:]) for d in (meta.sizes, meta.strides))
        tensors[name] = dataclasses.replace(meta, sizes=sizes, strides=strides)
    program = dataclasses.replace(exported.program, graph=dataclasses.replace(graph, tensors=tensors))
    if not wrong:  # sizes of anything else that are not those of its operands are a fault of the file
        with pytest.raises(UnsupportedError, match="and the file says"):
            import_network(program, exported.source, "net", exported.dims)
        return
    imported = import_network(program, exported.source, "net", exported.dims)
    found = build_network(imported.network, imported.weights).run({"x": x})
    for ours, theirs in zip(found.values(), net(x), strict=True):
        assert ours.shape == tuple(theirs.shape)
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["_unique2", "bincount"])
def test_element_types_that_the_file_has_wrong(name: str) -> None:
    """As torch 2.11 writes places among the different elements, and weighted counts."""

    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            if name == "_unique2":
                values, places, counts = torch.unique(x, return_inverse=True, return_counts=True)
                return values, places + 1, counts * 2
            return torch.bincount(x.abs().long(), x) * 2

    x = torch.tensor([1.0, 5.0, 1.0, 2.0, 5.0, 0.0])
    exported = export(Net(), (x,))
    graph, tensors = exported.program.graph, dict(exported.program.graph.tensors)
    made = [result.name for node in graph.nodes if name in node.op for result in node.results()]
    heirs = set(made[1:] if name == "_unique2" else made)
    for one in graph.nodes:
        if heirs & set(refs(a.value for a in one.arguments)):
            heirs |= {result.name for result in one.results() if result.name in tensors}
    for heir in heirs:
        wrong = dtypes.float32 if tensors[heir].dtype is dtypes.int64 else dtypes.int64
        tensors[heir] = dataclasses.replace(tensors[heir], dtype=wrong)
    program = dataclasses.replace(exported.program, graph=dataclasses.replace(graph, tensors=tensors))
    imported = import_network(program, exported.source, "net", exported.dims)
    found, wanted = build_network(imported.network, imported.weights).run({"x": x}), Net()(x)
    for ours, theirs in zip(found.values(), wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert ours.dtype == theirs.numpy().dtype
        np.testing.assert_array_equal(ours, theirs.numpy())


@pytest.mark.parametrize("arguments", [0, 2])
def test_a_number_of_nothing_and_of_two_tensors(arguments: int) -> None:
    """As only a file that is made by hand has it."""
    exported = export(_Of(FUNCTIONS["plus an integer"]), (X, K))
    graph = exported.program.graph
    nodes = [
        dataclasses.replace(n, arguments=n.arguments * arguments) if n.op == "aten.item.default" else n
        for n in graph.nodes
    ]
    program = dataclasses.replace(exported.program, graph=dataclasses.replace(graph, nodes=tuple(nodes)))
    with pytest.raises(UnsupportedError, match="supported for real tensors of one element"):
        import_network(program, exported.source, "net", exported.dims)
