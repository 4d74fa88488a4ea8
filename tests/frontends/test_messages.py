"""What people read when a network cannot be taken: their words and their line, and nothing of how torch or ONNX write
sizes, values and graphs inside.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import ingot
from ingot.errors import IngotError, UserError

onnx = pytest.importorskip("onnx")
h, T = onnx.helper, onnx.TensorProto
X = torch.ones(6, 4)
INSIDE = re.compile(
    r"TruncToInt|FloorToInt|CeilToInt|FloorDiv|PythonMod|(Mul|Add|Float|Integer|Symbol|Pow|Eq|Max)\(|sympy|"  # sympy
    r"(?<!\w)%\d+|\b[su]\d+\b|\bzuf\d|\bL\['|FakeTensor|SymInt|Proxy|GraphModule|<eval|<class|<function|0x[0-9a-f]{6}|"
    r"Traceback|\{['\"]|dtype=torch|_OpNamespace|node \{|elem_type|guard"
)


class _Net(torch.nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


MODULES: dict[str, tuple[Callable[[Any], Any], bool, str]] = {  # forward, whether dimension 0 is dynamic, what is said
    "a branch": (lambda x: x if x.sum() > 0 else -x, False, "torch.where or torch.cond"),
    "a size of data": (lambda x: torch.zeros(int(x.sum())), False, "depends on values"),
    "an end of data": (lambda x: x[: x.argmax().item()], False, "end must be a size"),
    "a factor": (lambda x: functional.interpolate(x[None, None], scale_factor=1.7371), True, "a factor of 1.7371"),
    "a logarithm of a size": (lambda x: x * int(math.log(x.shape[0])), True, "Leave it out of dynamic"),
    "a size that is fixed": (lambda x: x + torch.zeros(6, 4), True, "dimension 0 of x has to be 6"),
    "a step of a size": (lambda x: x[:: x.shape[0] // 2], True, "leave the size that it is computed of out of dynamic"),
    "a range of floats": (lambda x: torch.arange(0, x.shape[0] * 0.3333, 0.77), True, "end must be a number"),
    "no such op": (lambda x: torch.special.bessel_j0(x), False, "there is no such op"),
    "random numbers": (lambda x: torch.rand_like(x) * x, False, "draws no random numbers"),
    "text": (lambda x: {"a": "text", "b": x}, False, "a is no tensor"),
    "NumPy": (lambda x: torch.from_numpy(x.numpy() * 2), False, "write it in torch's ops"),
    "branches of two shapes": (lambda x: torch.cond(x.sum() > 0, lambda v: v + 1, lambda v: v[:2] + 1, (x,)), False,
                               "then_branch gives"),
    "shapes that do not fit": (lambda x: x @ torch.zeros(7, 7), False, "7, 7"),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str) -> None:
    function, dynamic, said = MODULES[name]
    with pytest.raises(UserError) as e:
        ingot.build(_Net(function), inputs=(X,), dynamic={"x": {0: "N"}} if dynamic else None, report=False)
    assert said in str(e.value)
    assert not (found := INSIDE.search(str(e.value))), (found, str(e.value))


OWN: dict[str, Callable[[Any], Any]] = {  # what a Module of ours does with a tensor that has no name of its own
    "its truth": lambda y: y if y > 0 else -y,
    "its length": len,
    "a loop": list,
    "NumPy": np.asarray,
    "a squeeze": lambda y: y.squeeze(1),
    "pieces": lambda y: y.split([1, 2], 1),
    "an index": lambda y: y[0, 0, 0],
    "an index of text": lambda y: y["a"],
    "a step": lambda y: y[::0],
    "shapes": lambda y: ingot.ops.matmul(y, np.zeros((7, 7), np.float32)),
    "types": lambda y: y + ingot.ops.cast(y, "int32"),
    "an axis": lambda y: ingot.ops.softmax(y, axis=5),
}


@pytest.mark.parametrize("name", OWN)
def test_modules_of_ours(name: str) -> None:
    class Net(ingot.nn.Module):  # type: ignore[misc]
        def forward(self, x: ingot.Tensor) -> Any:
            return OWN[name](ingot.ops.relu(x))

    with pytest.raises((IngotError, TypeError)) as e:
        ingot.build(Net(), {"x": ingot.Spec(("N", 4), "float32")}, report=False)
    assert not (found := INSIDE.search(str(e.value))), (found, str(e.value))


@pytest.mark.parametrize(("inputs", "said"), [
    ({"z": X}, "missing a required argument: 'x'"), ({"x": X, "y": X}, "unexpected keyword argument 'y'"),
    ((X, X), "too many positional arguments"), ((), "missing a required argument: 'x'"),
    ((2, 3), "; for an input of these sizes give (torch.zeros(2, 3),)"),
])  # fmt: skip
def test_example_inputs_that_do_not_fit(inputs: Any, said: str) -> None:
    with pytest.raises(UserError) as e:
        ingot.build(_Net(torch.relu), inputs, report=False)
    assert str(e.value).startswith("the example inputs do not fit _Net.forward(x): ") and said in str(e.value)


def test_a_spec_in_the_place_of_an_example() -> None:
    """As a module of ours takes it."""
    with pytest.raises(UserError) as e:
        ingot.build(_Net(torch.relu), {"x": ingot.Spec(("N", 3, 8), "float32")}, report=False)
    assert "x is an ingot.Spec, and a torch module is built with example inputs: give a tensor such as " in str(e.value)
    found = re.search(r"such as (torch.*), and dynamic=(.*) for the sizes", str(e.value))
    assert found is not None
    example, dynamic = found.groups()
    words = {"dynamic": ast.literal_eval(dynamic), "report": False}
    built = ingot.build(_Net(torch.relu), {"x": eval(example, {"torch": torch})}, **words)
    assert str(built.inputs[0]) == "x: f32[N, 3, 8]"


def node(op: str, *, inputs: tuple[str, ...] = ("x",), **attributes: Any) -> Any:
    return h.make_node(op, list(inputs), ["y"], **attributes)


NODES: dict[str, tuple[Any, dict[str, Any], str]] = {  # the node, its constants, what is said
    "no such op": (node("Nothing"), {}, "there is no such op"),
    "a domain": (node("Relu", domain="org.other"), {}, "there is no such op"),
    "an axis": (node("Flatten", axis=7), {}, "axis 7 is out of range"),
    "an attribute": (node("Relu", alpha=2.0), {}, "alpha = 2.0 is not supported"),
    "a factor": (node("Resize", inputs=("x", "", "s")), {"s": np.float32([-1.7371, 1])}, "a scale of -1.7371;"),
    "a kernel": (node("Conv", inputs=("x", "w")), {"w": np.ones((2, 3, 3), np.float32)}, "Conv"),
    "a shape": (node("Reshape", inputs=("x", "s")), {"s": np.int64([5, 7])}, "Reshape"),
    "a type": (node("And", inputs=("x", "x")), {}, "And"),
    "a name": (node("Relu", inputs=("none",)), {}, "none"),
    "an equation": (node("Einsum", equation="ij,jk"), {}, "Einsum"),
    "a pattern": (node("RegexFullMatch", pattern="("), {}, "RegexFullMatch"),
    "a mode": (node("Resize", inputs=("x", "", "s"), mode="lanczos"), {"s": np.float32([1, 2])}, "lanczos"),
    "shapes that do not fit": (node("MatMul", inputs=("x", "w")), {"w": np.ones((7, 7), np.float32)}, "MatMul"),
}  # fmt: skip


@pytest.mark.parametrize("name", NODES)
def test_onnx_files(name: str, tmp_path: Path) -> None:
    made, constants, said = NODES[name]
    held = [onnx.numpy_helper.from_array(array, key) for key, array in constants.items()]
    graph = h.make_graph([made], "g", [h.make_tensor_value_info("x", T.FLOAT, ["N", 4])],
                         [h.make_tensor_value_info("y", T.FLOAT, None)], held)  # fmt: skip
    opsets = [h.make_opsetid("", 20), h.make_opsetid("org.other", 1)]
    onnx.save(h.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "net.onnx")
    with pytest.raises(IngotError) as e:
        ingot.build(tmp_path / "net.onnx", report=False)
    assert said in str(e.value)
    assert not (found := INSIDE.search(str(e.value))), (found, str(e.value))
