"""Functions of torch where their results end: infinities, NaN, the largest and the smallest numbers, zero's sign."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import ingot

FUNCTIONS: dict[str, Any] = {
    **{name: getattr(functional, name) for name in (
        "silu", "mish", "softplus", "logsigmoid", "elu", "softsign", "softmax")},
    **{name: getattr(torch, name) for name in (
        "tanh", "exp2", "expm1", "log1p", "log2", "sinh", "cosh", "asinh", "acosh", "erf")},
    "gelu by tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "hardswish": lambda x: functional.hardswish(x * 0.1),  # six times x is infinite in torch's
    "threshold": lambda x: functional.threshold(x, 0.5, -2.0),
    "silu, gated": lambda x: functional.silu(x) * x,
}  # fmt: skip


class _All(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {name: of(x) if name != "softmax" else of(x[:, :1], dim=1) for name, of in FUNCTIONS.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_edges(dtype: torch.dtype) -> None:
    """As torch has them; gelu by erf at infinity is infinity, where torch's own kernel on CPUs gives NaN."""
    inf = float("inf")
    x = torch.tensor([0.0, 1.5, inf, 1e-40, 1e30, 100.0, 89.0, 3.4e38, 30.0]).to(dtype)
    x = torch.cat([x, -x, torch.tensor([float("nan")], dtype=dtype)])[:, None]
    net = ingot.build(_All(), inputs={"x": x}, report=False)
    found, want = net.run({"x": x}), _All()(x)
    exact = 1e-5 if dtype is torch.float32 else 2**-7
    for name, of in want.items():
        ours, theirs = np.asarray(found[name]).astype(np.float64), of.double().numpy()
        np.testing.assert_allclose(ours, theirs, rtol=exact, atol=1e-34, err_msg=name)
    assert np.signbit(np.asarray(found["tanh"]).astype(np.float32)[9, 0])
