"""Every entry of the table of ATen ops against torch: each op by itself, exported, imported, run by its references and
as an engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ingot
from ingot.builder.network import build_network as build_engine
from ingot.errors import UnsupportedError
from ingot.frontends.torch_export import build_network, open_archive
from ingot.frontends.torch_export.aten import TABLE
from ingot.frontends.torch_export.aten import sizes as size_ops
from ingot.ir import interpret
from ingot.nn.parameter import as_array
from tests.frontends import aten_elements, aten_forms, aten_layers, aten_places
from tests.frontends.aten_cases import Case, f

CASES = [*aten_elements.case, *aten_forms.case, *aten_layers.case, *aten_places.case]


def op_of(name: str) -> Any:
    space, op, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, space), op), overload)


class Call(nn.Module):
    """One op; tensors among its arguments are the inputs, but for the first `inputs` ones parameters."""

    def __init__(self, one: Case, inputs: int | None = None) -> None:
        super().__init__()
        self.one = one
        flat = [x for a in (*one.args, *one.kwargs.values()) for x in (a if isinstance(a, list) else [a])]
        tensors = [x for x in flat if isinstance(x, torch.Tensor)]
        self.inputs = tuple(tensors[:inputs])
        stored = tensors[len(self.inputs) :]
        self.stored = nn.ParameterList(nn.Parameter(x, requires_grad=False) for x in stored)

    def forward(self, *inputs: torch.Tensor) -> Any:
        rest = iter((*inputs, *self.stored))

        def put(value: Any) -> Any:
            if isinstance(value, list):
                return [put(item) for item in value]
            return next(rest) if isinstance(value, torch.Tensor) else value

        args = [put(a) for a in self.one.args]
        return op_of(self.one.op)(*args, **{key: put(v) for key, v in self.one.kwargs.items()})


# Results that ingot does not compute: the places and statistics that only training reads.
PARTIAL = ("with_indices", "adaptive_max_pool", "native_dropout", "native_layer_norm", "native_group_norm",
           "_native_batch_norm", "flash_attention", "embedding_bag")  # fmt: skip


FOLDED = {"aten.lift_fresh.default", "aten.detach_.default"}  # torch leaves these out where it can


# Layers whose kernels want packed weights: these cases store all tensors but the first.
LAYERS = ("aten.conv", "aten.linear.", "aten.batch_norm", "aten.layer_norm", "aten.group_norm", "aten.rms_norm")


@pytest.mark.sampled(20, by=lambda given: given["one"].op.split(".")[1].rstrip("_"))
@pytest.mark.parametrize("one", CASES, ids=lambda one: one.op)
def test_entry(one: Case, tmp_path: Path) -> None:
    """The network that is imported, by its references and as an engine, against torch; host calls as declared."""
    check_entry(one, Call(one, 1 if one.op.startswith(LAYERS) else None), tmp_path)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("one", [c for c in CASES if c.op.startswith("aten.conv")], ids=lambda one: one.op)
def test_a_convolution_with_a_computed_weight(one: Case, tmp_path: Path) -> None:
    check_entry(one, Call(one), tmp_path)


def check_entry(one: Case, call: Call, tmp_path: Path) -> None:
    if any(word in one.op for word in PARTIAL):
        whole, call.forward = call.forward, lambda *x: whole(*x)[0]  # type: ignore[method-assign]
    with torch.no_grad():
        program = torch.export.export(call, call.inputs, strict=False)
    torch.export.save(program, tmp_path / "one.pt2")
    read, source = open_archive(tmp_path / "one.pt2")
    assert any(node.op == one.op for node in read.graph.nodes) or one.op in FOLDED, "torch exports another op"
    imported = build_network(read, source, one.op)
    feeds = dict(zip((v.name for v in imported.network.inputs), map(as_array, call.inputs), strict=True))
    theirs = call(*call.inputs)
    theirs = list(theirs) if isinstance(theirs, tuple | list) else [theirs]
    check(interpret(imported.network, feeds, imported.weights), theirs)
    engine = build_engine(imported.network, imported.weights)
    assert engine._native.host_calls("main") == [one.host] * bool(one.host)
    check(engine.run(feeds), theirs)


def check(ours: dict[str, Any], theirs: list[torch.Tensor]) -> None:
    assert len(ours) == len(theirs)
    for found, wanted in zip(ours.values(), theirs, strict=True):
        assert found.dtype == as_array(wanted).dtype and found.shape == tuple(wanted.shape)
        narrow = wanted.dtype in (torch.float16, torch.bfloat16)
        np.testing.assert_allclose(
            found.astype(np.float64), as_array(wanted).astype(np.float64), rtol=1e-2 if narrow else 2e-5, atol=2e-6
        )


SPACES = ("torchvision.", "transformers.", "quantized_decomposed.")  # of ops with tests of their own


def test_every_entry_has_a_case() -> None:
    others = {name for name in TABLE if name.startswith(SPACES)}
    assert TABLE.keys() - others == {one.op for one in CASES}


def test_random_numbers_that_nobody_reads() -> None:
    """As in layers that training skips by chance, which draw in evaluation mode too."""

    class Net(nn.Module):
        def forward(self, x: torch.Tensor, reads: bool) -> torch.Tensor:
            drawn = torch.rand(x.shape), torch.randint(9, [2])
            return x + drawn[0] if reads else 2 * x

    x = f(2, 3)
    engine = ingot.build(Net(), (x, False))
    assert engine.report is not None and engine.report.source.startswith("against torch")
    np.testing.assert_array_equal(engine.run({"x": x})["output_0"], 2 * x)
    with pytest.raises(UnsupportedError, match="(?s)aten.rand.default.*an engine draws no random numbers"):
        ingot.build(Net(), (x, True))


def test_empty_tensors_that_are_written() -> None:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.empty(2, 3, dtype=x.dtype)
            y.copy_(x)
            return y

    x = f(2, 3)
    np.testing.assert_array_equal(ingot.build(Net(), (x,)).run({"x": x})["output_0"], x)


def test_ops_on_sizes_are_no_entries() -> None:
    assert not TABLE.keys() & size_ops.NAMES
