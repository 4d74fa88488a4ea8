"""Programs with complex numbers: transforms, spectra, rotations; each op against torch, by native engines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ingot
from ingot.errors import UnsupportedError
from ingot.frontends.torch_export.aten import COMPLEX_TABLE
from ingot.frontends.torch_export.export import export
from ingot.frontends.torch_export.plain_forms import in_place

Function = Callable[..., Any]
ops = torch.ops.aten
rng = torch.Generator().manual_seed(0)


def f(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=rng)


def c(*shape: int) -> torch.Tensor:
    return torch.view_as_complex(f(*shape, 2))


class Calls(nn.Module):
    """Several functions of the same tensors."""

    def __init__(self, functions: list[Function]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, x: torch.Tensor, z: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        return [function(x, z, w) for function in self.functions]


def engine_of(module: nn.Module, inputs: tuple[torch.Tensor, ...], dynamic: Any = None) -> ingot.Engine:
    """An engine that agrees with torch, as the build itself compares, and takes no host call."""
    engine = ingot.build(module.eval(), inputs, dynamic=dynamic)
    assert engine.report.source.startswith("against torch"), engine.report.source
    assert engine._native.host_calls("main") == []
    return engine


FAMILIES: dict[str, list[Function]] = {
    "transforms": [
        lambda x, z, w: torch.fft.fft(z), lambda x, z, w: torch.fft.fft(x, 9, 0, "ortho"),
        lambda x, z, w: torch.fft.ifft(x, dim=1), lambda x, z, w: torch.fft.rfft(x, norm="forward"),
        lambda x, z, w: torch.fft.irfft(z, 7), lambda x, z, w: torch.fft.fft2(x),
        lambda x, z, w: torch.fft.ifft2(z, (3, 5)), lambda x, z, w: torch.fft.rfft2(x),
        lambda x, z, w: torch.fft.irfft2(z),
        lambda x, z, w: torch.fft.fftn(x), lambda x, z, w: torch.fft.rfftn(x, dim=(0, 2)),
        lambda x, z, w: torch.fft.irfftn(z, (4, 6), norm="ortho"), lambda x, z, w: torch.fft.ifftn(x, (4, 6)),
        lambda x, z, w: torch.fft.hfft(z, norm="ortho"), lambda x, z, w: torch.fft.ihfft(x),
        lambda x, z, w: torch.fft.fftshift(z), lambda x, z, w: torch.fft.ifftshift(x, dim=(1,)),
        lambda x, z, w: x[..., :5] * torch.fft.fftfreq(5) + torch.fft.rfftfreq(8), lambda x, z, w: x.unfold(1, 2, 1),
        lambda x, z, w: torch.fft.irfft(x), lambda x, z, w: torch.fft.fft((x * 3).int()),
        lambda x, z, w: torch.ops.aten._fft_r2c(x, [1, 2], 0, True),
        lambda x, z, w: torch.ops.aten._fft_c2r(z[..., :5], [0, 2], 2, 9),
        lambda x, z, w: torch.ops.aten._fft_c2c(z, [1], 1, False),
    ],
    "arithmetic": [
        lambda x, z, w: z + w, lambda x, z, w: z - w, lambda x, z, w: z * w, lambda x, z, w: z / w,
        lambda x, z, w: x + z, lambda x, z, w: x - z, lambda x, z, w: z * x, lambda x, z, w: x * z,
        lambda x, z, w: z / x, lambda x, z, w: x / z, lambda x, z, w: z + 2, lambda x, z, w: 2 - z,
        lambda x, z, w: z * 0.5, lambda x, z, w: 3 / z, lambda x, z, w: torch.sub(z, w, alpha=2),
        lambda x, z, w: torch.exp(1j * x), lambda x, z, w: z + (2 - 3j), lambda x, z, w: x - 1j,
        lambda x, z, w: 2j / z, lambda x, z, w: z * 1j, lambda x, z, w: x / (1 + 2j),
        lambda x, z, w: -z, lambda x, z, w: z.square(), lambda x, z, w: z.exp(), lambda x, z, w: z.abs(),
        lambda x, z, w: z.angle(), lambda x, z, w: x.angle(), lambda x, z, w: z.conj(), lambda x, z, w: z.real + z.imag,
        lambda x, z, w: torch.polar(x.abs(), x), lambda x, z, w: torch.complex(x, x + 1), lambda x, z, w: 1 / z,
        lambda x, z, w: z.reciprocal(), lambda x, z, w: z.conj().imag, lambda x, z, w: torch.view_as_real(z),
    ],
    "products": [
        lambda x, z, w: z @ w.transpose(1, 2), lambda x, z, w: z @ x.to(z.dtype).mT,
        lambda x, z, w: z[0] @ w[0].mH, lambda x, z, w: torch.einsum("bij,bkj->bik", z, w),
        lambda x, z, w: torch.einsum("bij->jb", z), lambda x, z, w: torch.einsum("bij,bij->b", w, z),
        lambda x, z, w: torch.bmm(z, w.mT), lambda x, z, w: z.sum(), lambda x, z, w: z.mean(-1),
        lambda x, z, w: z.sum((0, 1), keepdim=True),
    ],
    "moved": [
        lambda x, z, w: z.reshape(-1, 6), lambda x, z, w: z.flatten(1), lambda x, z, w: z.permute(-1, 0, 1),
        lambda x, z, w: z.transpose(-1, 0), lambda x, z, w: z[:, 1:, ::2], lambda x, z, w: z[..., -1],
        lambda x, z, w: z.unsqueeze(-1), lambda x, z, w: z[:1].squeeze(0), lambda x, z, w: z[:1].squeeze(),
        lambda x, z, w: z[:, :1].expand(-1, 4, -1), lambda x, z, w: torch.cat([z, w, x], -1),
        lambda x, z, w: torch.stack([z, w], -1), lambda x, z, w: torch.cat(z.chunk(2, -1), 0),
        lambda x, z, w: torch.stack(z.unbind(-1)), lambda x, z, w: torch.cat(z.split(4, -1)[:1], 0),
        lambda x, z, w: z.flip(-1), lambda x, z, w: z.roll(2, -1), lambda x, z, w: z.repeat(2, 1, 1),
        lambda x, z, w: nn.functional.pad(z, (1, 2)), lambda x, z, w: z[torch.tensor([1, 0, 1])],
        lambda x, z, w: z.index_select(-1, torch.tensor([3, 1])), lambda x, z, w: z.narrow(-1, 2, 3).clone(),
        lambda x, z, w: z.to(torch.complex64), lambda x, z, w: x.to(torch.complex64).contiguous(),
        lambda x, z, w: torch.zeros_like(z) + torch.ones(3, 6, dtype=torch.complex64), lambda x, z, w: z.movedim(-1, 0),
        lambda x, z, w: z.unflatten(-1, (2, 3)), lambda x, z, w: z.new_zeros(2, 3, 6) + z,
    ],
    "other names": [
        lambda x, z, w: ops.conj_physical(z), lambda x, z, w: ops._conj_physical(z),
        lambda x, z, w: ops.conj(z).clone(),
        lambda x, z, w: ops._to_copy(z, dtype=torch.complex64), lambda x, z, w: ops._unsafe_view(z, [6, -1]),
        lambda x, z, w: ops.absolute(z), lambda x, z, w: ops.add.Scalar(z, 1j), lambda x, z, w: ops.adjoint(z),
        lambda x, z, w: ops.alias(z), lambda x, z, w: ops.alias_copy(z),
        lambda x, z, w: ops.broadcast_to(z[:1], [2, 3, 6]),
        lambda x, z, w: ops.concat([z, w], 1), lambda x, z, w: ops.concatenate([z, w], 1),
        lambda x, z, w: ops.constant_pad_nd(z, [0, 1, 2, 0]), lambda x, z, w: ops.contiguous(z),
        lambda x, z, w: ops.detach_copy(z), lambda x, z, w: ops.div.Scalar(z, 2 + 1j),
        lambda x, z, w: ops.mean.default(z), lambda x, z, w: ops.mm(z[0], w[0].mT),
        lambda x, z, w: ops.movedim.intlist(z, [0, -1], [1, 0]), lambda x, z, w: ops.mul.Scalar(z, 1j),
        lambda x, z, w: ops.multiply.Scalar(z, 3.0), lambda x, z, w: ops.multiply.Tensor(z, w),
        lambda x, z, w: ops.negative(z), lambda x, z, w: ops.new_ones(z, [3]), lambda x, z, w: ops.ones_like(z),
        lambda x, z, w: ops.resolve_conj(z), lambda x, z, w: ops.resolve_neg(z), lambda x, z, w: ops.rsub.Tensor(z, w),
        lambda x, z, w: ops.split_with_sizes(z, [2, 4], -1)[1].clone(),
        lambda x, z, w: ops.squeeze.dims(z[:1], [0, -1]),
        lambda x, z, w: ops.stft.center(x[0], 4, 2, 4, None, True, "reflect", False, None, True),
        lambda x, z, w: ops.sub.Scalar(z, 1.5, 2), lambda x, z, w: ops.subtract.Scalar(z, 1j),
        lambda x, z, w: ops.subtract.Tensor(x, w), lambda x, z, w: ops.swapaxes(z, 0, -1),
        lambda x, z, w: ops.swapdims(z, 0, -1), lambda x, z, w: ops.t(z[0]), lambda x, z, w: ops.to.device(
            z, torch.device("cpu"), torch.complex64), lambda x, z, w: ops.to.dtype_layout(z, dtype=torch.complex64),
        lambda x, z, w: ops.true_divide.Scalar(z, 2), lambda x, z, w: ops.true_divide.Tensor(x, z),
        lambda x, z, w: ops.view_as_real_copy(z), lambda x, z, w: z.to(torch.float32),
    ],
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_ops(family: str) -> None:
    """Complex inputs are pairs, and so are complex outputs."""
    x, z, w = f(2, 3, 6), c(2, 3, 6), c(2, 3, 6)
    engine = engine_of(Calls(FAMILIES[family]), (x, z, w))
    got = engine.run({"x": x.numpy(), "z": torch.view_as_real(z).numpy(), "w": torch.view_as_real(w).numpy()})
    for function, y in zip(FAMILIES[family], got.values(), strict=True):
        want = function(x, z, w)
        want = torch.view_as_real(want.resolve_conj()) if want.is_complex() else want.resolve_neg()
        largest = want.abs().max().item()
        np.testing.assert_allclose(y, want.numpy(), rtol=0, atol=4e-6 * largest)  # 6e-7 was the greatest seen


@pytest.mark.slow
def test_every_entry_has_a_case() -> None:
    inputs = f(2, 3, 6), c(2, 3, 6), c(2, 3, 6)
    programs = [export(Calls(functions), inputs).program for functions in FAMILIES.values()]
    programs += [export(make(), given).program for make, given, _ in NETS.values()]
    found = {node.op for program in programs for node in program.graph.nodes}
    folded = {"aten.lift_fresh.default"}  # by torch, when it exports
    assert COMPLEX_TABLE.keys() <= found | folded | {plain[0] for op in found if (plain := in_place(op, {}))}


class Spectrogram(nn.Module):
    """Sound to classes: spectra, mel bands, a convolution; and the sound again from its spectra."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(64))
        self.register_buffer("bank", torch.rand(33, 8))
        self.conv = nn.Conv1d(8, 5, 3, padding=1)

    def forward(self, sound: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        spectra = torch.stft(sound, 64, 16, window=self.window, return_complex=True)
        power = spectra.abs().pow(2)
        bands = torch.log(power.transpose(1, 2) @ self.bank + 1e-6)
        again = torch.istft(spectra, 64, 16, window=self.window)
        return self.conv(bands.transpose(1, 2)).mean(-1), again


class FNet(nn.Module):
    """An encoder layer whose tokens mix by the real part of a transform in two dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(24), nn.Linear(24, 48), nn.Linear(48, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x + torch.fft.fft2(x).real)
        return x + self.down(nn.functional.gelu(self.up(x)))


class Spectral(nn.Module):
    """A layer of a Fourier neural operator, as its authors wrote it: low frequencies times complex weights."""

    def __init__(self, channels: int = 3, modes: int = 4) -> None:
        super().__init__()
        self.modes = modes
        self.low = nn.Parameter(torch.rand(channels, channels, modes, modes, dtype=torch.cfloat))
        self.high = nn.Parameter(torch.rand(channels, channels, modes, modes, dtype=torch.cfloat))
        self.skip = nn.Conv2d(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        m = self.modes
        spectrum = torch.fft.rfft2(x)
        out = torch.zeros(*spectrum.shape, dtype=torch.cfloat)
        out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :m, :m], self.low)
        out[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -m:, :m], self.high)
        return nn.functional.gelu(torch.fft.irfft2(out, s=x.shape[-2:]) + self.skip(x))


class Rotary(nn.Module):
    """Rotary embeddings as LLaMA's first code has them, by complex numbers."""

    def __init__(self, width: int = 8, most: int = 32) -> None:
        super().__init__()
        freqs = 1.0 / (10000.0 ** (torch.arange(0, width, 2).float() / width))
        angles = torch.outer(torch.arange(most).float(), freqs)
        self.register_buffer("table", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        turn = self.table[: q.shape[1]][None, :, None]
        found = []
        for x in (q, k):
            pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
            found.append(torch.view_as_real(pairs * turn).flatten(3).type_as(x))
        return found[0], found[1]


NETS: dict[str, tuple[type[nn.Module], tuple[torch.Tensor, ...], Any]] = {
    "spectrogram": (Spectrogram, (f(2, 400),), {"sound": {0: "N", 1: ingot.Dim("T", 64, 1000)}}),
    "fnet": (FNet, (f(2, 10, 24),), {"x": {0: "N", 1: ingot.Dim("T", 2, 64)}}),
    "spectral": (Spectral, (f(2, 3, 16, 16),), {"x": {0: "N"}}),
    "rotary": (Rotary, (f(2, 7, 3, 8), f(2, 7, 3, 8)), {n: {0: "N", 1: ingot.Dim("T", 1, 32)} for n in "qk"}),
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NETS)
def test_nets(name: str, tmp_path: Path) -> None:
    make, inputs, dynamic = NETS[name]
    torch.manual_seed(0)
    net = make().eval()
    engine = engine_of(net, inputs, dynamic)
    engine.save(tmp_path / "net.ingot")
    session = ingot.load(tmp_path / "net.ingot").session(2)
    got = session.run({k: v.numpy() for k, v in zip(dynamic, inputs, strict=True)})
    with torch.no_grad():
        want = net(*inputs)
    for a, b in zip(got.values(), want if isinstance(want, tuple) else (want,), strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=0, atol=1e-5 * b.abs().max().item())


def test_a_file(tmp_path: Path) -> None:
    """Complex weights of a .pt2 file."""
    net = Spectral().eval()
    torch.export.save(torch.export.export(net, (f(1, 3, 16, 16),), strict=False), tmp_path / "net.pt2")
    engine = ingot.build(tmp_path / "net.pt2")
    x = f(1, 3, 16, 16)
    with torch.no_grad():
        want = net(x)
    np.testing.assert_allclose(engine.run({"x": x.numpy()})["output_0"], want.numpy(), atol=1e-5)


def test_refusals() -> None:
    for function, message in (
        (lambda x, z, w: z.tanh(), r"(?s)aten.tanh.default .*computes with complex numbers, and ingot has no such op"),
        (lambda x, z, w: torch.stft(x[0].flatten(), 8, return_complex=True).sqrt(), "no such op of them"),
        (lambda x, z, w: torch.istft(z[0], 3, 1, window=torch.ones(3) + 0j, onesided=False, return_complex=True),
         "window must be a tensor"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            ingot.build(Calls([function]).eval(), (f(2, 3, 6), c(2, 3, 6), c(2, 3, 6)))
