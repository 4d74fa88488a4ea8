"""float64: a network of it is refused by name, or converted when asked; inside a float32 network it runs natively."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn as tnn

import ingot
from ingot import dtypes, nn
from ingot.builder.network import build_network
from ingot.cli.main import main
from ingot.errors import DTypeError, OpError
from ingot.ir import OPS, Case, Op, Spec
from tests.ops.check import assert_close, make_network, sample, sizes_for

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)

# Without a kernel for float64, and without simpler ops that have one: pooling, convolution, resampling, recurrent
# layers by their references.
HOST = ("adaptive_pool", "avg_pool", "conv", "conv_transpose", "fft", "grid_sample", "gru", "irfft", "lstm", "max_pool",
        "resize", "rfft", "rnn", "selective_scan")  # fmt: skip
STORED = (*dtypes.FLOATS, *dtypes.INTEGERS, dtypes.bool_)


# ----------------------------------------------------------------------------------------- every op, in float64
def in_float64(case: Case) -> Case:
    return case._replace(
        specs=tuple(
            s.like(dtype=dtypes.float64) if isinstance(s, Spec) and s.dtype is dtypes.float32 else s for s in case.specs
        )
    )


def candidates() -> list[tuple[type[Op], Case]]:
    found = []
    for _, cls in sorted(OPS.items()):
        for case in cls.cases:
            floats = [s for s in case.specs if isinstance(s, Spec) and s.dtype is dtypes.float32]
            if case.error is None and floats and all(isinstance(s, Spec) for s in case.specs):
                found.append((cls, in_float64(case)))
    return found


@pytest.mark.sampled(6, by=lambda given: given["cls"])
@pytest.mark.parametrize(("cls", "case"), candidates(), ids=[f"{cls.name}-{case.why}" for cls, case in candidates()])
def test_every_op(cls: type[Op], case: Case) -> None:
    """What takes float64 gives its reference's numbers, to float64's precision, natively but for the ops above.

    Where simpler ops or an expression leave the last digits open, float32's cases say how many.
    """
    try:
        network, _ = make_network(cls, case)
    except OpError:
        pytest.skip("takes no float64")
    if not network.nodes or any(v.dtype not in STORED for v in network.outputs.values()):
        pytest.skip("nothing is left to run, or the core does not store its result")
    node, sizes = network.nodes[-1], sizes_for(case)
    arrays = sample(node.op, case.specs, sizes, 0)
    engine = build_network(network, {})
    assert engine._native.host_calls("main") == [cls.name] * (cls.name in HOST)
    feeds = {v.name: a for v, a in zip(node.inputs, arrays, strict=True)}
    feeds |= {v.name: np.zeros(v.spec.evaluate(sizes), np.bool_) for v in network.inputs if v.name not in feeds}
    found = engine.run(feeds)
    wanted = (node.op if node.op.binds else node.op.evaluate(sizes)).reference(*arrays)
    for got, want in zip(found.values(), wanted if isinstance(wanted, tuple) else (wanted,), strict=False):
        assert_close(got, want, f"{node.op} in float64", cls.tolerance)


# ------------------------------------------------------------------------------ float64 inside a float32 network
class Inside(tnn.Module):
    """What float32 networks do in float64: positions and tables, sums, statistics, masks and comparisons."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = tnn.Linear(8, 8)
        self.register_buffer("inv_freq", 1.0 / 10000.0 ** (torch.arange(0, 8, 2, dtype=torch.float64) / 8))
        self.register_buffer("table", torch.randn(40, 8, dtype=torch.float64))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> dict[str, torch.Tensor]:
        wide = x.double()
        angles = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * self.inv_freq
        rope = torch.cat([angles.cos(), angles.sin()], -1)
        centred = wide - wide.mean(-1, keepdim=True)
        return {
            "mean": wide.mean().float(),
            "rope": (self.linear(x) * rope.float()),
            "angles": torch.outer(at.double(), self.inv_freq),
            "sums": wide.cumsum(1),
            "running": torch.cumsum(x, 1, dtype=torch.float64),
            "variance": (centred * centred).sum(-1),
            "norm": torch.nn.functional.layer_norm(wide, (8,)),
            "softmax": torch.softmax(x, -1, dtype=torch.float64),
            "rows": self.table[at],
            "product": wide @ wide.mT,
            "extremes": torch.stack([wide.amax(-1), wide.amin(-1), wide.prod(-1)]),
            "where": torch.where(wide > 0.1, wide, -1e300),
            "greatest": wide.argmax(-1),
            "scaled": x * torch.tensor(1 / 3, dtype=torch.float64),
            "mixed": wide + x,
            "equal": wide == x * 1.0000001,
            "moved": torch.nn.functional.pad(wide.permute(0, 2, 1).flip(1), (1, 2), value=0.1),
            "functions": torch.stack([wide.exp(), wide.erf(), wide.tanh(), torch.log1p(wide * wide), wide.pow(3)]),
        }


def test_float64_inside_a_float32_network_runs_natively() -> None:
    module = Inside().eval()
    x, at = torch.randn(2, 7, 8), torch.tensor([3, 39, 0])
    engine = ingot.build(module, (x, at))
    assert engine.config["precision"] == "float32"
    assert "converted" not in engine.config
    assert engine._native.host_calls("main") == []
    found, wanted = engine.run({"x": x.numpy(), "at": at.numpy()}), module(x, at)
    for name, want in wanted.items():
        got = found[name]
        assert got.dtype.name == str(want.dtype).removeprefix("torch."), name
        tolerance = 1e-13 if want.dtype == torch.float64 else 2e-6
        np.testing.assert_allclose(got, want.detach().numpy(), rtol=tolerance, atol=tolerance, err_msg=name)


def test_what_float32_does_not_hold_is_kept() -> None:
    """1 + 2⁻⁴⁰ survives a cast, a sum, a product, a table, a comparison and a constant."""

    class Small(tnn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            wide = x.double() + 2.0**-40
            return {"sum": wide.sum(0), "mean": wide.mean(0), "larger": wide > x, "product": wide[None] @ wide[:, None],
                    "back": (wide - x.double()).float(), "greatest": wide.max(0).values}  # fmt: skip

    x = torch.ones(5)
    found = ingot.build(Small(), (x,)).run({"x": x.numpy()})
    assert found["sum"] == 5 + 5 * 2.0**-40
    assert found["mean"] == 1 + 2.0**-40
    assert found["larger"].all()
    assert found["product"].item() == 5 * (1 + 2.0**-40) ** 2
    assert found["back"].tolist() == [2.0**-40] * 5
    assert found["greatest"] == 1 + 2.0**-40


# ----------------------------------------------------------------------------------------- networks of float64
WORDS = r'computes in float64 \({}.*precision="float32".*--precision float32'


def torch_net() -> tuple[tnn.Module, torch.Tensor]:
    torch.manual_seed(0)
    net = tnn.Sequential(tnn.Conv1d(3, 6, 3), tnn.BatchNorm1d(6), tnn.ReLU(), tnn.Flatten(), tnn.Linear(30, 4))
    return net.double().eval(), torch.randn(2, 3, 7, dtype=torch.float64)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_torch_module_of_float64(precision: str) -> None:
    net, x = torch_net()
    with pytest.raises(DTypeError, match=WORDS.format("parameter 0.weight and 6 more")):
        ingot.build(net, (x,))
    engine = ingot.build(net, (x,), precision=precision)
    assert engine.config["precision"] == precision
    assert engine.config["converted"] == [
        f"parameter 0.weight and 6 more: float64 became {precision}, inside and in what is stored"
    ]
    assert engine._native.host_calls("main") == []
    buffers = engine.header["programs"]["cpu"]["entries"]["main"]["buffers"]
    assert "float64" not in {b["dtype"] for b in buffers if b["kind"] == "weight"}
    assert "within" in engine.report.source
    (found,) = engine.run({"input": x.numpy()}).values()
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, net(x).detach().numpy(), atol=1e-5 if precision == "float32" else 5e-2)


def test_an_input_of_float64_makes_a_network_of_float64() -> None:
    class Double(tnn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    x = torch.ones(3, dtype=torch.float64)
    with pytest.raises(DTypeError, match=WORDS.format("input x")):
        ingot.build(Double(), (x,))
    (found,) = ingot.build(Double(), (x,), precision="float32").run({"x": x.numpy() / 3}).values()
    assert found.dtype == np.float64
    assert found.tolist() == [float(np.float32(1 / 3) * 2)] * 3


def test_a_module_of_float64() -> None:
    class Double(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(shape=(4, 3), dtype="float64")
            self.weight.value = RNG.standard_normal((4, 3))

        def forward(self, x: Any) -> Any:
            return ingot.functional.matmul(x, self.weight, transb=True)

    inputs = {"x": Spec(("N", 3), "float64")}
    module = Double()
    with pytest.raises(DTypeError, match=WORDS.format("parameter weight and 1 more")):
        ingot.build(module, inputs)
    x = RNG.standard_normal((2, 3))
    engine = ingot.build(module, inputs, precision="float32")
    (found,) = engine.run({"x": x}).values()
    np.testing.assert_allclose(found, x @ module.weight.value.T, rtol=1e-5)
    assert engine._native.host_calls("main") == []


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net, x = torch_net()
    path = tmp_path / "double.pt2"
    torch.export.save(torch.export.export(net, (x,)), path)
    target = tmp_path / "double.ingot"
    assert main(["build", str(path), "-o", str(target)]) == 2
    error = capsys.readouterr().err
    assert "computes in float64" in error
    assert "--precision float32" in error
    assert not target.exists()
    assert main(["build", str(path), "-o", str(target), "--precision", "float32"]) == 0
    assert "float64 became float32" in capsys.readouterr().err
    (found,) = ingot.load(target).run({"input": x.numpy()}).values()
    np.testing.assert_allclose(found, net(x).detach().numpy(), atol=1e-5)
