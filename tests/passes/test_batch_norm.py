"""Batch norms behind transposed convolutions are part of their weights, in groups too; torch computes alike."""

from __future__ import annotations

from typing import Any

import pytest

import ingot

torch = pytest.importorskip("torch")

CONVOLUTIONS = {1: torch.nn.ConvTranspose1d, 2: torch.nn.ConvTranspose2d, 3: torch.nn.ConvTranspose3d}
NORMS = {1: torch.nn.BatchNorm1d, 2: torch.nn.BatchNorm2d, 3: torch.nn.BatchNorm3d}


def net(groups: int, rank: int = 2, bias: bool = True, outputs: int = 6) -> Any:
    """A transposed convolution of 12 channels, and a batch norm of statistics and weights that are seeded."""
    torch.manual_seed(groups)
    up = CONVOLUTIONS[rank](12, outputs, 3, stride=2, padding=1, groups=groups, bias=bias)
    norm = NORMS[rank](outputs)
    for tensor in (norm.weight.data, norm.bias.data, norm.running_mean):
        tensor.normal_()
    norm.running_var.uniform_(0.5, 2)
    return torch.nn.Sequential(up, norm).eval()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_it_is_folded(groups: int, rank: int, bias: bool) -> None:
    module, x = net(groups, rank, bias), torch.randn(2, 12, *[5, 4, 3][:rank])
    engine = ingot.build(module, (x,), progress=False, report=False)
    assert any("batch norm" in line and "part of the weight" in line for line in engine.log)
    with torch.no_grad():
        wanted = module(x)
    (found,) = engine.run({"input": x}).values()
    torch.testing.assert_close(torch.from_numpy(found), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("groups", "outputs"), [(2, 6), (12, 12), (4, 8)])
def test_other_weights_are_folded_too(groups: int, outputs: int) -> None:
    """By the recipe, of a convolution whose groups have other numbers of inputs than of outputs as well."""
    module, x = net(groups, outputs=outputs), torch.randn(2, 12, 5, 4)
    engine = ingot.build(module, (x,), progress=False, report=False)
    other = net(groups, outputs=outputs)
    changed = {name: tensor for name, tensor in other.state_dict().items() if tensor.is_floating_point()}
    for tensor in changed.values():
        tensor.mul_(1.5)
    with torch.no_grad():
        wanted = other(x)
    (found,) = engine.refit(changed).run({"input": x}).values()
    torch.testing.assert_close(torch.from_numpy(found), wanted, rtol=1e-4, atol=1e-5)


def test_narrow_weights_are_rounded_once() -> None:
    """To bfloat16, when they have their scale."""
    module, x = net(3), torch.randn(2, 12, 5, 4)
    engine = ingot.build(module, (x,), precision="bfloat16", progress=False, report=False)
    up, norm = module
    scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    weight = up.weight.data.reshape(3, 4, 2, 3, 3) * scale.data.reshape(3, 1, 2, 1, 1)
    up.weight.data = weight.reshape(up.weight.shape).to(torch.bfloat16).float()
    up.bias.data = ((up.bias - norm.running_mean) * scale + norm.bias).data.to(torch.bfloat16).float()
    with torch.no_grad():
        wanted = up(x.to(torch.bfloat16).float())
    (found,) = engine.run({"input": x}).values()
    torch.testing.assert_close(torch.from_numpy(found), wanted, rtol=0, atol=float(wanted.abs().max()) * 2**-7)
