"""The examples, small: built, run, and within 1e-4 of torch; by their references too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from examples import own_op, stgcn, unet
from ingot import Spec
from ingot.ir.interpret import interpret
from ingot.nn import trace


@pytest.mark.parametrize(
    ("example", "arguments"),
    [(unet, ["--size", "32", "--width", "16", "--batch", "2"]), (stgcn, ["--frames", "20", "--batch", "2"])],
    ids=["unet", "stgcn"],
)
def test_example(example: Any, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
    difference = example.main(arguments)
    assert difference is not None and difference < 1e-4
    assert "largest difference to torch" in capsys.readouterr().out


def test_own_op(capsys: pytest.CaptureFixture[str]) -> None:
    assert own_op.main() < 1e-6
    assert "without the op: " in (out := capsys.readouterr().out) and "examples.hardshrink version 1" in out


@pytest.mark.parametrize(
    ("net", "twin", "shape"),
    [
        (lambda: unet.UNet(16), lambda: unet.in_torch(16), (1, 3, 16, 24)),
        (stgcn.StGcn, stgcn.in_torch, (1, 3, 9, 18)),
    ],
    ids=["unet", "stgcn"],
)
def test_reference(net: Any, twin: Any, shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
    ours, theirs = net(), twin()
    ours.load_state_dict(theirs.state_dict())
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    network = trace(ours, {"x": Spec(("N", *shape[1:]), "float32")})
    (got,) = interpret(network, {"x": x}, ours.state_dict()).values()
    with torch.inference_mode():
        want = theirs(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * float(np.abs(want).max()))
