"""ATen's discrete Fourier transforms, and windows on signals."""

from __future__ import annotations

from typing import Any

from ingot import functional as fn
from ingot.frontends.torch_export.aten.complex import as_complex, conj
from ingot.frontends.torch_export.aten.promotion import floating
from ingot.frontends.torch_export.aten.table import (
    AnyTensor,
    Complex,
    Ints,
    MaybeBool,
    MaybeDType,
    MaybeInt,
    MaybeInts,
    MaybeSize,
    MaybeSizes,
    MaybeStr,
    MaybeTensor,
    Result,
    Size,
    Tensor,
    Unsupported,
    aten,
)
from ingot.ir import F, Network
from ingot.ir.spec import axes_of, axis_of

_NORMS = ("backward", "ortho", "forward")
_OTHER = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


@aten("aten.unfold.default", views=True)
def unfold(self: Tensor, dimension: int, size: int, step: int) -> Result:
    return F.unfold(self, axis=axis_of(dimension, self.ndim(), "dimension"), size=size, step=step)


# ------------------------------------------------------------------------------------------------------ transforms


def _norm(norm: str | None) -> str:
    if norm is not None and norm not in _NORMS:
        raise Unsupported(f"norm {norm!r:.40} is not one of {', '.join(_NORMS)}")
    return norm or "backward"


def _transformed(x: AnyTensor, places: list[tuple[int, Any]], norm: str, inverse: bool) -> Result:
    """A complex transform along axes with their sizes; the first one that real numbers meet makes them complex."""
    for axis, n in reversed(places):
        if isinstance(x, Complex):
            x = Complex((fn.ifft if inverse else fn.fft)(x.pairs, n, axis, norm))
        elif inverse:
            x = Complex(fn.ifft(as_complex(x).pairs, n, axis, norm))
        else:  # numbers that all are conjugates of others
            x = Complex(F.rfft(fn.fourier.sized(floating(x), axis, n), axis=axis, norm=norm, onesided=False))
    return x


def _real(x: AnyTensor) -> Any:
    if isinstance(x, Complex):
        raise Unsupported("it takes real numbers")
    return floating(x)


def _complex_to_complex(word: str, inverse: bool) -> None:
    @aten(f"aten.fft_{word}.default", complex=True)
    def of_one(self: AnyTensor, n: MaybeSize = None, dim: int = -1, norm: MaybeStr = None) -> Result:
        return _transformed(self, [(axis_of(dim, len(self.shape), "dim"), n)], _norm(norm), inverse)

    @aten(f"aten.fft_{word}n.default", complex=True)
    def of_several(self: AnyTensor, s: MaybeSizes = None, dim: MaybeInts = None, norm: MaybeStr = None) -> Result:
        return _transformed(self, fn.fourier.places(len(self.shape), s, dim), _norm(norm), inverse)

    @aten(f"aten.fft_{word}2.default", complex=True)
    def of_two(self: AnyTensor, s: MaybeSizes = None, dim: Ints = (-2, -1), norm: MaybeStr = None) -> Result:
        return of_several(self, s, dim, norm)


_complex_to_complex("fft", False)
_complex_to_complex("ifft", True)


@aten("aten.fft_rfft.default", complex=True)
def rfft(self: AnyTensor, n: MaybeSize = None, dim: int = -1, norm: MaybeStr = None) -> Result:
    return Complex(fn.rfft(_real(self), n, dim, _norm(norm)))


@aten("aten.fft_rfftn.default", complex=True)
def rfftn(self: AnyTensor, s: MaybeSizes = None, dim: MaybeInts = None, norm: MaybeStr = None) -> Result:
    return Complex(fn.rfftn(_real(self), s, dim, _norm(norm)))


@aten("aten.fft_rfft2.default", complex=True)
def rfft2(self: AnyTensor, s: MaybeSizes = None, dim: Ints = (-2, -1), norm: MaybeStr = None) -> Result:
    return rfftn(self, s, dim, norm)


@aten("aten.fft_irfft.default", complex=True)
def irfft(self: AnyTensor, n: MaybeSize = None, dim: int = -1, norm: MaybeStr = None) -> Result:
    return fn.irfft(as_complex(self).pairs, n, dim, _norm(norm))


@aten("aten.fft_irfftn.default", complex=True)
def irfftn(self: AnyTensor, s: MaybeSizes = None, dim: MaybeInts = None, norm: MaybeStr = None) -> Result:
    return fn.irfftn(as_complex(self).pairs, s, dim, _norm(norm))


@aten("aten.fft_irfft2.default", complex=True)
def irfft2(self: AnyTensor, s: MaybeSizes = None, dim: Ints = (-2, -1), norm: MaybeStr = None) -> Result:
    return irfftn(self, s, dim, norm)


@aten("aten.fft_hfft.default", complex=True)
def hfft(self: AnyTensor, n: MaybeSize = None, dim: int = -1, norm: MaybeStr = None) -> Result:
    """Of half of a signal that is its own conjugate turned back: real numbers."""
    return irfft(conj(self), n, dim, _OTHER[_norm(norm)])


@aten("aten.fft_ihfft.default", complex=True)
def ihfft(self: AnyTensor, n: MaybeSize = None, dim: int = -1, norm: MaybeStr = None) -> Result:
    return conj(rfft(self, n, dim, _OTHER[_norm(norm)]))


def _code(normalization: int, forward: bool) -> str:
    """The norm of ATen's own transforms, which say by what they divide: nothing, √n, or n."""
    if not 0 <= normalization <= 2:
        raise Unsupported(f"normalization {normalization} is not one of 0, 1 and 2")
    return ("backward" if forward else "forward", "ortho", "forward" if forward else "backward")[normalization]


@aten("aten._fft_r2c.default", complex=True)
def real_to_complex(self: Tensor, dim: Ints, normalization: int, onesided: bool) -> Result:
    norm, rank = _code(normalization, True), self.ndim()
    *others, last = (axis_of(d, rank, "dim") for d in dim)
    first = Complex(F.rfft(_real(self), axis=last, norm=norm, onesided=onesided))
    return _transformed(first, [(axis, None) for axis in others], norm, False)


@aten("aten._fft_c2r.default", complex=True)
def complex_to_real(self: Complex, dim: Ints, normalization: int, last_dim_size: Size) -> Result:
    norm, rank = _code(normalization, False), len(self.shape)
    *others, last = (axis_of(d, rank, "dim") for d in dim)
    found = _transformed(self, [(axis, None) for axis in others], norm, True)
    return fn.irfft(found.pairs, last_dim_size, last, norm)


@aten("aten._fft_c2c.default", complex=True)
def complex_to_complex(self: Complex, dim: Ints, normalization: int, forward: bool) -> Result:
    places = [(axis_of(d, len(self.shape), "dim"), None) for d in dim]
    return _transformed(self, places, _code(normalization, forward), not forward)


def _shift(word: str) -> None:
    move = getattr(fn, word)

    @aten(f"aten.fft_{word}.default", complex=True)
    def shift(self: AnyTensor, dim: MaybeInts = None) -> Result:
        axes = axes_of(dim, len(self.shape))
        return Complex(move(self.pairs, axes, pairs=True)) if isinstance(self, Complex) else move(self, axes)


_shift("fftshift")
_shift("ifftshift")


@aten("aten.fft_fftfreq.default")
def fftfreq(network: Network, n: int, d: float = 1.0, dtype: MaybeDType = None) -> Result:
    found = network.constant(fn.fftfreq(n, d))
    return found if dtype is None else F.cast(found, dtype)


@aten("aten.fft_rfftfreq.default")
def rfftfreq(network: Network, n: int, d: float = 1.0, dtype: MaybeDType = None) -> Result:
    found = network.constant(fn.rfftfreq(n, d))
    return found if dtype is None else F.cast(found, dtype)


# -------------------------------------------------------------------------------------------------------- windows


@aten("aten.stft.default", "aten.stft.center", complex=True)
def stft(
    self: AnyTensor, n_fft: int, hop_length: MaybeInt = None, win_length: MaybeInt = None, window: MaybeTensor = None,
    center: bool = False, pad_mode: str = "reflect", normalized: bool = False, onesided: MaybeBool = None,
    return_complex: MaybeBool = None,
) -> Result:  # fmt: skip
    x = _real(self)
    found = fn.stft(x, n_fft, hop_length, win_length, window, center, pad_mode, normalized, onesided is not False)
    return Complex(found) if return_complex else found


@aten("aten.istft.default", complex=True)
def istft(
    self: AnyTensor, n_fft: int, hop_length: MaybeInt = None, win_length: MaybeInt = None, window: MaybeTensor = None,
    center: bool = True, normalized: bool = False, onesided: MaybeBool = None, length: MaybeSize = None,
    return_complex: bool = False,
) -> Result:  # fmt: skip
    if return_complex:
        raise Unsupported("a complex signal is not supported")
    x = as_complex(self)
    half = n_fft != x.shape[-2] if onesided is None else onesided
    return fn.istft(x.pairs, n_fft, hop_length, win_length, window, center, normalized, half, length)
