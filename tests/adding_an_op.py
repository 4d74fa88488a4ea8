"""Carries out docs/adding-an-op.md: `python tests/adding_an_op.py FOLDER`. Says what it has done, one word each."""

from __future__ import annotations
import __future__

import importlib
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ingot
from ingot.backends.cpu import CPU
from ingot.backends.kernel import Kernel
from ingot.builder.compile import compile_network
from ingot.builder.network import build_network
from ingot.engine.session import Engine
from ingot.frontends.torch_export.aten import derived
from ingot.ir import OPS, F, Network, Op, Spec
from tests.engine import test_ops_run
from tests.ops.check import check_case
from tests.test_docs import ROOT

PAGE = ROOT / "docs" / "adding-an-op.md"


def blocks() -> Iterator[tuple[Any, str]]:
    """The page's Python, each block with the module that its first line names."""
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S):
        first = block.splitlines()[0]
        yield importlib.import_module(first.removeprefix("# ").removesuffix(".py").replace("/", ".")), block


def added() -> tuple[list[type[Op]], Kernel]:
    """The ops, registered, and the kernel's declaration."""
    before = set(OPS)
    kernel = None
    for module, block in blocks():
        names = dict(vars(module))
        if block.splitlines()[1].startswith("Kernel("):
            kernel = eval(compile(block, str(PAGE), "eval"), names)
        else:
            exec(compile(block, str(PAGE), "exec", __future__.annotations.compiler_flag), names)
    assert isinstance(kernel, Kernel)
    return [OPS[name] for name in OPS if name not in before], kernel


def check_op(cls: type[Op]) -> None:
    """All that tests/ops and tests/engine ask of every op."""
    for case in cls.cases:
        check_case(cls, case)
        if case.error is None and cls.name != "unit_rms":
            test_ops_run.compare(cls, case)
    print(cls.name)


def check_functions() -> None:
    """They are there without another line."""
    functional = importlib.import_module("ingot.functional")
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_allclose(functional.frac(input=2 * x), np.fmod(2 * x, 1), atol=1e-6)
    squares = x * x
    np.testing.assert_allclose(functional.sum_of_squares(x, -1, keepdim=True), squares.sum(-1, keepdims=True), 1e-6)
    unit = x / np.sqrt(squares.mean(-1, keepdims=True) + 0.5)
    np.testing.assert_allclose(functional.unit_rms(x, eps=0.5), unit, 1e-6)
    print("functions")


def check_import(folder: Path) -> None:
    """torch's op imports, and runs natively in one loop with its neighbour."""
    derived.enter(OPS["frac"])  # as the importer does with all ops when it is loaded

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.frac(x) * 2

    x = torch.linspace(-2, 2, 15).reshape(3, 5)
    path = folder / "net.pt2"
    torch.export.save(torch.export.export(Net(), (x,)), path)
    engine = ingot.build(path, report=False)
    calls = engine.header["programs"]["cpu"]["entries"]["main"]["calls"]
    assert [call.get("kernel") for call in calls] == ["elementwise"], calls
    (found,) = engine.run({"x": x.numpy()}).values()
    np.testing.assert_allclose(found, Net()(x).numpy(), atol=1e-6)
    print("import")


def check_kernel(kernel: Kernel) -> None:
    """The declaration chooses calls; rms_norm, which has its parameters and operands, stands in for the kernel."""
    net = Network("one")
    x = net.input("x", Spec((5, 8), "float32"))
    net.outputs["y"] = getattr(F, "unit_rms")(x, eps=0.25)  # noqa: B009
    assert compile_network(net).program["calls"][0]["host"] == "unit_rms"
    target = replace(CPU, kernels=(*CPU.kernels, replace(kernel, name="rms_norm")))
    engine = build_network(net, {})
    engine.header["programs"]["cpu"]["entries"]["main"] = compile_network(net, target).program
    calls = engine.header["programs"]["cpu"]["entries"]["main"]["calls"]
    assert [(call["kernel"], call["params"]) for call in calls] == [("rms_norm", {"eps": 0.25})]
    value = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
    found = Engine.from_memory(engine.header, {}).run({"x": value})["y"]
    np.testing.assert_allclose(found, value / np.sqrt((value**2).mean(-1, keepdims=True) + 0.25), rtol=1e-5)
    wide = Network("wide")
    wide.outputs["y"] = getattr(F, "unit_rms")(wide.input("x", Spec((5, 8), "float64")))  # noqa: B009
    assert (
        compile_network(wide, target)
        .host_calls[0]
        .why.endswith("rms_norm: its x may be float32 or bfloat16 or float16, not float64")
    )
    print("kernel")


if __name__ == "__main__":
    OPS_ADDED, KERNEL = added()
    for one in OPS_ADDED:
        check_op(one)
    check_functions()
    check_import(Path(sys.argv[1]))
    check_kernel(KERNEL)
