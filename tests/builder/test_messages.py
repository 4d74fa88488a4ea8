"""What a user reads when something goes wrong, over what people bring: no message shows our insides, or torch's."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import ingot
from ingot.errors import IngotError

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:torch", "ignore::DeprecationWarning:torch")

# what is inside: torch's names of inputs and symbols, sympy, values by number, Python's objects, folders for a moment
FORBIDDEN = re.compile(
    r"L\[|flat_args|\b[su]\d+\b|Symbol\(|Float\(|Integer\(|Mul\(|ToInt|ToFloat|IntTrueDiv|Eq\(|%\d+|%unknown|\{'|<class|"
    r"<function|<built-in|object at|0x[0-9a-f]{6}|FakeTensor|SymInt|TORCH|Traceback|/tmp/ingot-|NoneType|unwritten\.|"
    r"getattr_|num_users|dtype\(|array\(|ValueError|KeyError"
)
MAX_MESSAGE = 2000


class Net(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


class Two(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


X = torch.randn(4, 20)
N = {"x": {1: "n"}}


def of(function: Callable[..., Any], dynamic: Any = None, inputs: Any = None) -> Any:
    return ingot.build(Net(function), (X,) if inputs is None else inputs, dynamic=dynamic, report=False)


def run(function: Callable[..., Any], feeds: Any, dynamic: Any = None) -> Any:
    return of(function, dynamic).run(feeds)


# each: what is done, the words that say what, where and what to do
TORCH: dict[str, tuple[Callable[[], Any], str]] = {
    "a root": (lambda: of(lambda x: x.new_zeros(math.trunc(x.shape[1] ** 0.5)), N), "test_mess.*whole"),
    "a logarithm of a size": (lambda: of(lambda x: x * math.log2(x.shape[1]), N), "dimension 1 of x.*test_messages.py"),
    "a size of a layer": (lambda: of(nn.Linear(20, 3), N), "dimension 1 of x has to be 20"),
    "two sizes that meet": (
        lambda: ingot.build(Two(), (X, X), dynamic={"x": {1: "n"}, "y": {1: "m"}}, report=False),
        "n and m have to be equal",
    ),
    "a size that meets a fixed one": (
        lambda: ingot.build(Two(), (X, X), dynamic={"x": {1: "n"}}, report=False), "dimension 1 of x has to be 20",
    ),
    "a branch on values": (lambda: of(lambda x: x if x.sum() > 0 else -x), "test_messages.py.*torch.where"),
    "a size of values": (lambda: of(lambda x: x[: int(x.sum().item())]), "test_messages.py.*"),
    "numpy": (lambda: of(lambda x: torch.from_numpy(x.numpy() + 1)), "test_messages.py.*write it in torch's ops"),
    "a truth of values": (lambda: of(lambda x: x if torch.equal(x, x + 1) else -x), "test_messages.py.*torch.where"),
    "shapes that do not fit": (lambda: of(lambda x: x @ x), "test_messages.py"),
    "an attribute": (lambda: of(lambda x: x.no_such_thing), "test_messages.py.*no_such_thing"),
    "ops that are not there": (
        lambda: of(lambda x: torch.special.bessel_j0(x[:, :4]) + torch.linalg.inv(x[:, :4])),
        "aten.*test_messages.*what to do",
    ),
    "random numbers": (lambda: of(lambda x: x + torch.randn(4, 20)), "give them as an input"),
    "a fraction of arange": (lambda: of(lambda x: torch.arange(0, 1, 1 / x.shape[1]), N), "arange.*test_messages.py"),
    "an input of a run that is not there": (lambda: run(lambda x: x * 2, {"y": X}), "'y'|x"),
    "an input of another size": (lambda: run(lambda x: x * 2, {"x": torch.randn(4, 21)}), "20"),
    "an input of another type": (lambda: run(lambda x: x * 2, {"x": np.ones((4, 20), np.int32)}), "float32"),
    "an input of no array": (lambda: run(lambda x: x * 2, {"x": "picture.png"}), "x"),
    "sizes of another branch": (
        lambda: run(lambda x: x if x.shape[1] > x.shape[0] else -x, {"x": torch.randn(9, 8)}, {"x": {0: "b", 1: "n"}}),
        "test_messages.py:.*torch.where",
    ),
    "no inputs": (lambda: ingot.build(Net(torch.sin)), r"inputs=\(x,\)"),
    "inputs of no tensors": (lambda: of(torch.sin, None, ("picture.png",)), "x"),
    "dynamic of no names": (lambda: of(torch.sin, {"x": {0: 3.5}}), "names or ingot.Dim"),
    "dynamic of another input": (lambda: of(torch.sin, {"y": {0: "N"}}), "y"),
    "dynamic of no such dimension": (lambda: of(torch.sin, {"x": {5: "N"}}), "5"),
    "a number format of torch's": (lambda: ingot.build(Net(torch.sin), (X,), precision="int3"), "float32, bfloat16"),
    "complex numbers where none are": (lambda: of(lambda x: torch.fft.fft(x).sort()[0]), "complex"),
    "a buffer that changes": (lambda: ingot.build(Counts(), (X,), report=False), "return the new value"),
}  # fmt: skip


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return x * self.seen


# -------------------------------------------------------------------------------------------------------- ONNX

helper, FLOAT, INT64 = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def proto(nodes: list[Any], **inputs: Any) -> Any:
    """A model of these nodes, whose inputs are types and shapes by name; its output is y."""
    made = [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()]
    graph = helper.make_graph(nodes, "net", made, [helper.make_tensor_value_info("y", FLOAT, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def node(op: str, *inputs: str, name: str = "", **more: Any) -> Any:
    return helper.make_node(op, inputs, ["y"], name=name or f"/encoder/{op}", **more)


def graph(op: str, *inputs: str, before: Any = (), kinds: Any = None, **more: Any) -> Any:
    kinds = {"x": (FLOAT, ["N", 3, "H", "W"])} if kinds is None else kinds
    return proto([*before, node(op, *inputs, **more)], **kinds)


WITH_N = {"x": (FLOAT, ["N", 3]), "n": (INT64, [2])}
WITH_PADS = {"x": (FLOAT, ["N", 3]), "n": (INT64, [4])}
WITH_SIZES = {"x": (FLOAT, ["N", 3]), "m": (INT64, ["K"])}
WITH_FLOATS = {"x": (FLOAT, ["N", 3, "H", "W"]), "n": (FLOAT, [4])}
ONNX: dict[str, tuple[Callable[[], Any], str]] = {
    "axes that are data": (lambda: graph("Slice", "x", "n", "n", "n", kinds=WITH_N), "axes.*input n.*what to do"),
    "pads that are data of another mode": (lambda: graph("Pad", "x", "n", kinds=WITH_PADS, mode="reflect"), "constant"),
    "more sizes that are data than a tensor has": (
        lambda: graph("Tile", "x", "m", kinds=WITH_SIZES), "Tile.*encoder.*at most 8 numbers.*what to do"),
    "an op that is not there": (lambda: graph("Frobnicate", "x"), "Frobnicate.*encoder.*what to do"),
    "an attribute that is not there": (lambda: graph("Relu", "x", alpha=3.0), "Relu"),
    "an attribute of another type": (lambda: graph("LeakyRelu", "x", alpha="much"), "LeakyRelu"),
    "shapes that do not fit": (
        lambda: graph("MatMul", "x", "w", kinds={"x": (FLOAT, [2, 3]), "w": (FLOAT, [4, 5])}), "MatMul"),
    "a tensor that nothing makes": (lambda: graph("Add", "x", "no_such_tensor"), "no_such_tensor"),
    "a kernel that is data": (
        lambda: graph("TopK", "x", "n", kinds={"x": (FLOAT, ["N", 3]), "n": (FLOAT, [1])}), "TopK"),
    "pads of floats": (lambda: graph("Pad", "x", "n", kinds=WITH_FLOATS), "Pad"),
    "two operands too few": (lambda: graph("Where", "x"), "Where"),
    "another mode": (lambda: graph("Resize", "x", "", "n", kinds=WITH_FLOATS, mode="lanczos"), "lanczos|Resize"),
    "another axis": (lambda: graph("Softmax", "x", axis=9), "Softmax"),
}  # fmt: skip


def message(make: Callable[[], Any]) -> str:
    with pytest.raises(IngotError) as error:
        make()
    return str(error.value)


def checked(text: str, words: str) -> None:
    found = FORBIDDEN.search(re.sub(r"(inputs|dynamic)=\{'x': (x|\{1: 'N'\})\}", "", text))
    assert found is None, f"{found[0]!r} in: {text}"
    assert re.search(words, text, re.DOTALL), text
    assert len(text) < MAX_MESSAGE, text


@pytest.mark.parametrize("name", TORCH)
def test_of_torch(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    make, words = TORCH[name]
    checked(message(make), words)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ONNX)
def test_of_onnx(name: str, tmp_path: Path) -> None:
    make, words = ONNX[name]
    path = tmp_path / "net.onnx"
    path.write_bytes(make().SerializeToString())
    checked(message(lambda: ingot.build(path, report=False)), words)
