"""Torch modules and .pt2 files as sources of a build: names, dims, ties, outputs, and errors that list everything."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ingot
from ingot import _lazy
from ingot.builder.build import build
from ingot.errors import InputError, MismatchError, ModuleError, UnsupportedError, UserError
from ingot.frontends.torch_export import build_network, export, open_archive
from ingot.frontends.torch_export.aten.table import TABLE
from ingot.frontends.torch_export.export import _serializer
from ingot.ir import interpret

THIS = Path(__file__).name


def saved(module: nn.Module, inputs: tuple[Any, ...], path: Path, **how: Any) -> Path:
    with torch.no_grad():
        torch.export.save(torch.export.export(module, inputs, strict=False, **how), path)
    return path


def outputs_of(engine: Any, **feeds: torch.Tensor) -> dict[str, np.ndarray[Any, Any]]:
    return engine.session(threads=1).run({name: x.numpy() for name, x in feeds.items()})  # type: ignore[no-any-return]


class Small(nn.Module):
    """A bit of everything that a convolutional net has."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean((2, 3)))  # type: ignore[no-any-return]


def warmed(module: nn.Module, *inputs: torch.Tensor) -> nn.Module:
    """With running statistics that are not the ones of the start."""
    with torch.no_grad():
        module.train()(*inputs)
    return module


# --------------------------------------------------------------------------------------------- modules and files


@pytest.mark.parametrize("way", ["module", "file"])
def test_a_net_in_either_way(way: str, tmp_path: Path) -> None:
    net = warmed(Small(), torch.randn(4, 3, 6, 6))
    x = torch.randn(2, 3, 6, 6)
    if way == "module":
        engine = build(net, (x,), dynamic={"x": {0: "N"}})
        assert net.training and net.body.training, "the module's own mode is restored"
        assert [d for port in engine.inputs for d in port.dims] == ["N", 3, 6, 6]
    else:
        N = torch.export.Dim("N", min=2, max=9)  # noqa: N806
        engine = build(saved(net.eval(), (x,), tmp_path / "net.pt2", dynamic_shapes=({0: N},)))
        assert [d for port in engine.inputs for d in port.dims] == ["dim_0", 3, 6, 6]
        with pytest.raises(InputError, match="dim_0"):
            outputs_of(engine, x=torch.randn(10, 3, 6, 6))
    assert engine.report.source.startswith("against torch")
    assert {"import", "lower", "pack", "compare"} <= engine.seconds.keys()
    net.eval()
    for count in (1, 2, 7):
        x = torch.randn(count, 3, 6, 6)
        np.testing.assert_allclose(outputs_of(engine, x=x)["output_0"], net(x).detach(), rtol=1e-4, atol=1e-5)
    assert {name for name in engine.header["weights"] if "num_batches" in name} == set()


def test_an_example_of_one_row_may_have_a_dynamic_batch() -> None:
    engine = build(Small(), {"x": torch.randn(1, 3, 6, 6)}, dynamic={"x": {0: ingot.Dim("N", 1, 4, 8), 2: "H"}})
    assert engine.inputs[0].dims == ("N", 3, "H", 6)
    assert outputs_of(engine, x=torch.randn(8, 3, 9, 6))["output_0"].shape == (8, 5)
    with pytest.raises(InputError, match="N"):
        outputs_of(engine, x=torch.randn(9, 3, 9, 6))


def test_an_engine_does_not_change_with_its_module() -> None:
    net = Small().eval()
    x = torch.randn(1, 3, 6, 6)
    engine = build(net, (x,), report=False)
    before = outputs_of(engine, x=x)["output_0"]
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
    np.testing.assert_array_equal(outputs_of(engine, x=x)["output_0"], before)


def test_torch_is_left_as_it_was_found() -> None:
    """What a program is written with is changed meanwhile, and only where it is there."""
    serialize: Any = torch._export.serde.serialize
    before, known = serialize.canonicalize, set(serialize._SYM_OPS)
    with _serializer(torch):
        assert serialize.canonicalize is not before and math.ceil in serialize._SYM_OPS
    assert serialize.canonicalize is before and known == serialize._SYM_OPS
    other = SimpleNamespace()
    with _serializer(SimpleNamespace(_export=SimpleNamespace(serde=SimpleNamespace(serialize=other)))):
        assert not vars(other)
    assert not vars(other)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_precision_and_report(precision: str) -> None:
    engine = build(Small(), (torch.randn(2, 3, 6, 6),), precision=precision)
    assert engine.config["precision"] == precision
    assert engine.inputs[0].dtype == engine.outputs[0].dtype == "float32"
    shown = str(engine.report)
    assert "against float32" in shown and "against torch" in shown
    assert engine.report.json()["source"] == engine.report.source


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_module_in_half_precision_stays_there(dtype: torch.dtype) -> None:
    engine = build(Small().to(dtype), (torch.randn(2, 3, 6, 6, dtype=dtype),))
    assert engine.config["precision"] == engine.inputs[0].dtype == str(dtype).removeprefix("torch.")
    assert engine.report.source.startswith("the network in float32 against torch")


def test_without_torch_nothing_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(Small().eval(), (torch.randn(2, 3, 6, 6),), tmp_path / "net.pt2")

    def missing(module: str, needed_for: str, install: str) -> None:
        raise UserError(f"{needed_for} needs the package {module!r}: pip install {install!r}")

    monkeypatch.setattr(_lazy, "optional", missing)
    engine = build(path)
    assert engine.report.source == (
        "not compared with its source: comparing with the source needs the package 'torch': pip install 'ingot[torch]'"
    )
    with pytest.raises(UserError, match=r"pip install 'ingot\[torch\]'"):
        build(Small(), (torch.randn(2, 3, 6, 6),))


# -------------------------------------------------------------------------------------------- what is in a module


class Everything(nn.Module):
    """Ties, buffers of both kinds, a constant, keyword arguments, nested inputs and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(4, 4), nn.Linear(4, 4)
        self.decode.weight = self.encode.weight
        self.register_buffer("kept", torch.randn(4))
        self.register_buffer("own", torch.arange(4.0), persistent=False)
        self.register_buffer("order", torch.tensor([2, 0, 3, 1]))
        self.constant = torch.full((2, 4), 3.0)
        self.unread = nn.Linear(99, 99)
        self.x = nn.Parameter(torch.randn(4))  # as the input is called

    def forward(self, x: torch.Tensor, pair: Any, *, scale: torch.Tensor, flag: bool = True, absent: Any = None) -> Any:
        y = self.decode(self.encode(x)) * scale + self.kept + self.own + self.x
        first, second = y[:, self.order].split(2, 1)
        return {"y": y if flag else -y, "parts": (first, [second]), "sum": pair[0] + pair[1]["b"],
                "constant": self.constant * 2, "rows": x.shape[0], "same": x, "nothing": None}  # fmt: skip


def test_names_ties_buffers_and_outputs() -> None:
    net = Everything()
    feeds = {"x": torch.randn(3, 4), "scale": torch.tensor(2.0), "pair_0": torch.randn(2), "pair_1_b": torch.randn(2)}
    pair = (feeds["pair_0"], {"b": feeds["pair_1_b"]})
    given = {"scale": feeds["scale"], "x": feeds["x"], "pair": pair, "flag": False}
    engine = build(net, given, dynamic={"x": {0: "N"}})
    assert {p.name for p in engine.inputs} == set(feeds)
    found = outputs_of(engine, **feeds)
    wanted = net(feeds["x"], pair, scale=feeds["scale"], flag=False)
    assert list(found) == ["y", "parts_0", "parts_1_0", "sum", "constant", "rows", "same"]
    np.testing.assert_allclose(found["y"], wanted["y"].detach(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["parts_1_0"], wanted["parts"][1][0].detach(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found["constant"], wanted["constant"])
    np.testing.assert_array_equal(found["same"], feeds["x"])
    assert found["rows"] == 3 and found["sum"].shape == (2,)
    assert sum(array.size for array in map(engine.tensor, engine.header["weights"])) < 200, "stored once, unread: never"
    assert any("flag is fixed at False" in line for line in engine.log)
    assert any("nothing is None" in line for line in engine.log)


def test_tied_weights_of_a_file_are_one_value(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("a", torch.randn(3, 4))
            self.register_buffer("b", self.a)
            self.register_buffer("c", self.a.T)  # the same storage under other strides

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.a + x @ self.b + (self.c @ x.T).T  # type: ignore[no-any-return]

    net = Tied()
    x = torch.randn(2, 3)
    program, source = open_archive(saved(net, (x,), tmp_path / "tied.pt2"))
    imported = build_network(program, source, "tied")
    assert len(imported.network.parameters) == 2, "a and b are one"
    found = interpret(imported.network, {"x": x.numpy()}, imported.weights)["output_0"]
    np.testing.assert_allclose(found, net(x), rtol=1e-5, atol=1e-5)


def test_nodes_carry_the_users_lines_and_modules() -> None:
    exported = export(Small(), (torch.randn(2, 3, 6, 6),))
    network = build_network(exported.program, exported.source, "Small").network
    places = {node.op.name: (node.where, Path(node.line[0]).name if node.line else "") for node in network.nodes}
    assert places["conv"] == ("body.0", THIS) and places["matmul"] == ("head", THIS)


class Encoder(nn.Module):
    """Attention, norms and a softmax, in parts that decompositions take apart."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(3, 8, 3, padding=1), nn.BatchNorm1d(8), nn.GELU())
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.norm = nn.GroupNorm(2, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(self.conv(x).transpose(1, 2))
        return F.log_softmax(self.norm(x.transpose(1, 2)), 1)


@pytest.mark.filterwarnings("ignore:.isinstance:FutureWarning")  # torch about itself
@pytest.mark.parametrize("decomposed", [False, True])
def test_decomposed_programs(decomposed: bool, tmp_path: Path) -> None:
    net = warmed(Encoder(), torch.randn(4, 3, 9)).eval()
    x = torch.randn(2, 3, 9)
    with torch.no_grad():
        program = torch.export.export(net, (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},), strict=False)
    if decomposed:
        program = program.run_decompositions()
    torch.export.save(program, tmp_path / "net.pt2")
    engine = build(tmp_path / "net.pt2")
    assert engine.report.source.startswith("against torch"), engine.report.source
    x = torch.randn(5, 3, 9)
    np.testing.assert_allclose(outputs_of(engine, x=x)["output_0"], net(x).detach(), rtol=1e-4, atol=1e-5)


# -------------------------------------------------------------------------------------------------- changes in place


class InPlace(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> Any:
        y = x * 2
        if self.how == "fresh":
            y += x
            y.relu_().mul_(3)
            return y
        if self.how == "whole view":
            z = y.view(2, -1)
            z.add_(1)
            return z
        if self.how == "view":
            y[:, 0] += 1
            return y
        if self.how == "parts":
            y[0, 1:3] = x[1, 2:]
            y[:, -1:] *= 5
            y[1] = 7
            return y
        if self.how == "parts of parts":
            y[1:][:, 1:].mul_(2)[:, :2].add_(1)
            return y + 1
        if self.how == "every other":
            y[:, ::2] = 0
            return y
        if self.how == "of view":
            z = y[:, 0]
            y += 1
            return z
        if self.how == "input":
            x += 1
            return x
        self.count += 1
        return y + self.count


@pytest.mark.parametrize("how", ["fresh", "whole view", "view", "parts", "parts of parts", "every other", "of view"])
def test_changes_in_place(how: str) -> None:
    net, x = InPlace(how), torch.randn(2, 4)
    np.testing.assert_allclose(outputs_of(build(net, (x,)), x=x)["output_0"], net(x), rtol=1e-6)


def test_a_changed_input_is_the_callers_own() -> None:
    x = torch.randn(2, 4)
    kept = x.clone()
    engine = build(InPlace("input"), (x,))
    assert engine.log[0] == "the program changes its input x in place; an engine leaves the caller's alone"
    np.testing.assert_allclose(outputs_of(engine, x=x)["output_0"], kept + 1, rtol=1e-6)
    assert torch.equal(x, kept)


def test_a_changed_buffer_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"changes the buffer count in place.*return the new value") as caught:
        build(InPlace("buffer"), (torch.randn(2, 4),))
    assert THIS in str(caught.value)


# ------------------------------------------------------------------------------------------------------------ errors


class Unsupported(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Fold((4, 4), 2, stride=2), nn.RReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        y = torch.linalg.inv(y[..., :4, :4])
        return torch.linalg.inv(y) + torch.fft.fft(y).tanh().real


def test_errors_name_all_ops_at_once_with_the_users_lines() -> None:
    with pytest.raises(UnsupportedError) as caught:
        build(Unsupported(), (torch.randn(1, 8, 4),))
    message = str(caught.value)
    lines = [line for line in Path(__file__).read_text().splitlines() if "torch.linalg.inv(y" in line]
    first = Path(__file__).read_text().splitlines().index(lines[0]) + 1
    (row,) = (row for row in caught.value.rows if row["op"] == "aten.linalg_inv.default")
    assert (row["calls"], len(row["where"])) == (2, 2) and row["where"][0] == f"{THIS}:{first}"
    assert row["why"] == "there is no such op in ingot's table" and "outside of the module" in row["what_to_do"]
    assert f"what to do: {row['what_to_do']}" in message
    assert f"{THIS}:{first}" in message and f"{THIS}:{first + 1}" in message
    for op in ("rrelu", "aten.tanh.default", "it computes with complex numbers"):
        assert op in message, op
    assert "inner.1" in message


def test_a_network_in_training_mode_is_refused(tmp_path: Path) -> None:
    path = saved(Small().train(), (torch.randn(2, 3, 6, 6),), tmp_path / "net.pt2")
    with pytest.raises(UnsupportedError, match=r"(?s)batch_norm.*module\.eval\(\)"):
        build(path)


class TellsTheExport(nn.Module):
    """Computes something else while it is exported, as models that build no mask of their own do."""

    def forward(self, x: Any) -> Any:
        return x * (2 if torch.compiler.is_compiling() else 3)


def test_a_difference_that_the_export_makes_is_not_put_on_the_compiler() -> None:
    with pytest.raises(MismatchError, match=r"as torch 2\S+ runs them give an output .* what was exported is not"):
        build(TellsTheExport(), (torch.ones(2, 3),))


def test_a_difference_names_the_first_node(monkeypatch: pytest.MonkeyPatch) -> None:
    right = TABLE["aten.mean.dim"]
    wrong = right._replace(function=lambda **how: right.function(**how) * 1.001)
    monkeypatch.setitem(TABLE, "aten.mean.dim", wrong)
    with pytest.raises(MismatchError, match=r"node that differs is mean = aten\.mean\.dim in the module at ") as e:
        build(Small(), (torch.randn(2, 3, 6, 6),))
    assert THIS in str(e.value)


@pytest.mark.parametrize(
    ("inputs", "dynamic", "error", "why"),
    [
        (None, None, UserError, "built with example inputs"),
        ((torch.randn(2, 3),), {"y": {0: "N"}}, UserError, "dynamic names y"),
        ({"x": torch.randn(2, 3)}, {"y": {0: "N"}}, UserError, "dynamic names y"),
        ((torch.randn(2, 3),), {"x": "N"}, UserError, "must name dimensions"),
        ((iter(()),), {"x": {0: "N"}}, UserError, "is no tensor but a tuple_iterator .of ingot.quantize, data come"),
        ((torch.randn(2, 3),), {"x": {0: 3}}, UserError, "names or ingot.Dim"),
        ((torch.randn(2, 3),), [{"x": {0: "N"}}], UserError, "dynamic names dimensions by input"),
        ((torch.randn(2, 3),), {"x": {0: "N", 1: "N"}}, UserError, "N is 2 in one example input and 3"),
        ((torch.randn(2, 3),), {"x": {1: "C"}}, ModuleError, "torch.export cannot export Linear"),
        ((torch.randn(2, 5),), None, ModuleError, "torch.export cannot export Linear"),
    ],
)
def test_inputs_that_do_not_fit(inputs: Any, dynamic: Any, error: type[Exception], why: str) -> None:
    class Linear(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)

    with pytest.raises(error, match=why):
        build(Linear(3, 4), inputs, dynamic=dynamic)


def test_words_that_do_not_fit_a_file(tmp_path: Path) -> None:
    path = saved(Small().eval(), (torch.randn(2, 3, 6, 6),), tmp_path / "net.pt2")
    with pytest.raises(UserError, match="inputs and dynamic are for Modules"):
        build(path, (torch.randn(2, 3, 6, 6),))
    with pytest.raises(UserError, match="has its weights"):
        build(path, weights_from="random")
