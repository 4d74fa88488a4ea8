"""Discrete Fourier transforms of one and more dimensions, under the names and arguments of torch.fft.

Complex numbers are pairs (real, imaginary) in the last dimension, as torch.view_as_real gives them; `dim` counts the
dimensions beside it. What has to be complex is given as pairs (`complex` makes some of real numbers). Floats only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ingot import dims
from ingot.dims import Dimension
from ingot.errors import OpError
from ingot.functional.shape import Size, concat
from ingot.functional.tensor import Tensor
from ingot.ir import F, spec
from ingot.ir.sizes import as_size

Array = np.ndarray[Any, Any]
BACKWARD = "backward"
MAX_LENGTH = 1 << 26  # of a table of frequencies or a window


def _axis(input: Tensor, dim: int, complex: bool) -> int:
    return spec.axis_of(dim, len(input.shape) - complex, "dim")


def sized(input: Tensor, axis: int, n: Size | None) -> Tensor:
    """The first n elements along an axis, or zeros behind those there are."""
    if n is None or (wanted := as_size(n)) == input.shape[axis]:
        return input
    if dims.bounds(wanted)[1] < 1:
        raise OpError(f"a transform needs at least 1 element, not {wanted}")
    none, size = (0,) * len(input.shape), input.shape[axis]
    if dims.bounds(dims.add(wanted, dims.mul(size, -1)))[1] > 0:  # there may be too few
        known = isinstance(wanted, int) and isinstance(size, int)
        behind = wanted - size if known else wanted
        input = F.pad(input, before=none, after=tuple(behind if i == axis else 0 for i in range(len(none))))
    sizes = tuple(wanted if i == axis else d for i, d in enumerate(input.shape))
    return F.slice(input, none, sizes, (1,) * len(none))


def fft(input: Tensor, n: Size | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """Complex numbers along `dim` into as many: pairs [..., 2] → pairs.

    Args:
        n: the first n numbers are transformed, with zeros behind those there are; None: all.
        norm: "backward" (None) divides the way back by n, "forward" the way there, "ortho" both by √n.

    Raises:
        OpError: no pairs, a dimension out of range, a size of 0, another norm; no floats.
    """
    axis = _axis(input, dim, True)
    return F.fft(sized(input, axis, n), axis=axis, norm=norm or BACKWARD)


def ifft(input: Tensor, n: Size | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The way back from `fft`."""
    axis = _axis(input, dim, True)
    return F.fft(sized(input, axis, n), axis=axis, norm=norm or BACKWARD, inverse=True)


def rfft(input: Tensor, n: Size | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """Real numbers along `dim` into the first n/2 + 1 complex ones, as pairs; the others are their conjugates."""
    axis = _axis(input, dim, False)
    return F.rfft(sized(input, axis, n), axis=axis, norm=norm or BACKWARD)


def irfft(input: Tensor, n: Size | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The way back from `rfft` to n real numbers (None: an even number, 2·(size − 1))."""
    size = None if n is None else as_size(n)
    return F.irfft(input, n=size, axis=_axis(input, dim, True), norm=norm or BACKWARD)


def places(rank: int, s: Sequence[Size] | None, dim: Sequence[int] | None) -> list[tuple[int, Size | None]]:
    """The axes of a transform of several dimensions, each with its size; the last `s` of all when none are named."""
    axes = list(dim) if dim is not None else list(range(rank))[-len(s) if s is not None else 0 :]
    if s is not None and len(s) != len(axes):
        raise OpError(f"s has {len(s)} sizes for {len(axes)} dimensions")
    found = [spec.axis_of(axis, rank, "dim") for axis in axes]
    if len(set(found)) != len(found) or not found:
        raise OpError(f"a transform needs dimensions, each once, not {axes}")
    sizes = [None] * len(found) if s is None else [None if type(n) is int and n == -1 else n for n in s]
    return list(zip(found, sizes, strict=True))


def fftn(
    input: Tensor, s: Sequence[Size] | None = None, dim: Sequence[int] | None = None, norm: str | None = None
) -> Tensor:
    """`fft` along several dimensions, all of them when none are named; `s` has the n of each (−1: all numbers)."""
    for axis, n in places(len(input.shape) - 1, s, dim):
        input = fft(input, n, axis, norm)
    return input


def ifftn(
    input: Tensor, s: Sequence[Size] | None = None, dim: Sequence[int] | None = None, norm: str | None = None
) -> Tensor:
    """The way back from `fftn`."""
    for axis, n in places(len(input.shape) - 1, s, dim):
        input = ifft(input, n, axis, norm)
    return input


def rfftn(
    input: Tensor, s: Sequence[Size] | None = None, dim: Sequence[int] | None = None, norm: str | None = None
) -> Tensor:
    """`rfft` along the last of several dimensions, and `fft` along the others."""
    *others, (last, n) = places(len(input.shape), s, dim)
    found = rfft(input, n, last, norm)
    for axis, size in others:
        found = fft(found, size, axis, norm)
    return found


def irfftn(
    input: Tensor, s: Sequence[Size] | None = None, dim: Sequence[int] | None = None, norm: str | None = None
) -> Tensor:
    """The way back from `rfftn`."""
    *others, (last, n) = places(len(input.shape) - 1, s, dim)
    for axis, size in others:
        input = ifft(input, size, axis, norm)
    return irfft(input, n, last, norm)


def fft2(
    input: Tensor, s: Sequence[Size] | None = None, dim: Sequence[int] = (-2, -1), norm: str | None = None
) -> Tensor:
    """`fftn` along two dimensions."""
    return fftn(input, s, dim, norm)


def ifft2(
    input: Tensor, s: Sequence[Size] | None = None, dim: Sequence[int] = (-2, -1), norm: str | None = None
) -> Tensor:
    """`ifftn` along two dimensions."""
    return ifftn(input, s, dim, norm)


def rfft2(
    input: Tensor, s: Sequence[Size] | None = None, dim: Sequence[int] = (-2, -1), norm: str | None = None
) -> Tensor:
    """`rfftn` along two dimensions."""
    return rfftn(input, s, dim, norm)


def irfft2(
    input: Tensor, s: Sequence[Size] | None = None, dim: Sequence[int] = (-2, -1), norm: str | None = None
) -> Tensor:
    """`irfftn` along two dimensions."""
    return irfftn(input, s, dim, norm)


# ------------------------------------------------------------------------------------------- order and frequencies


def _rolled(x: Tensor, axis: int, back: Dimension) -> Tensor:
    """The last `back` elements along an axis in front of the others."""
    size = x.shape[axis]
    front = dims.add(size, dims.mul(back, -1))

    def part(start: Dimension, count: Dimension) -> Tensor:
        starts = tuple(start if i == axis else 0 for i in range(len(x.shape)))
        sizes = tuple(count if i == axis else d for i, d in enumerate(x.shape))
        return F.slice(x, starts, sizes, (1,) * len(sizes))

    return concat([part(front, back), part(0, front)], axis)


def _shifted(input: Tensor, dim: int | Sequence[int] | None, complex: bool, extra: int) -> Tensor:
    rank = len(input.shape) - complex
    for axis in spec.axes_of((dim,) if isinstance(dim, int) else dim, rank):
        input = _rolled(input, axis, dims.floordiv(dims.add(input.shape[axis], extra), 2))
    return input


def fftshift(input: Tensor, dim: int | Sequence[int] | None = None, pairs: bool = False) -> Tensor:
    """The frequency 0 in the middle of the dimensions given, or of all.

    Args:
        pairs: whether the last dimension is that of complex numbers: it stays, and `dim` does not count it.
    """
    return _shifted(input, dim, pairs, 0)


def ifftshift(input: Tensor, dim: int | Sequence[int] | None = None, pairs: bool = False) -> Tensor:
    """The way back from `fftshift`."""
    return _shifted(input, dim, pairs, 1)


def _count(function: str, n: int, least: int) -> int:
    if type(n) is not int or not least <= n <= MAX_LENGTH:
        raise OpError(f"{function}: the length must be an int from {least} to {MAX_LENGTH:,}, not {n!r:.40}")
    return n


def fftfreq(n: int, d: float = 1.0) -> Array:
    """The frequencies of the n numbers of `fft`, of elements that are d apart: float32 [n].

    Raises:
        OpError: a length that is not a positive int.
    """
    return np.fft.fftfreq(_count("fftfreq", n, 1), d).astype(np.float32)


def rfftfreq(n: int, d: float = 1.0) -> Array:
    """The frequencies of the n/2 + 1 numbers of `rfft`: float32 [n/2 + 1]."""
    return np.fft.rfftfreq(_count("rfftfreq", n, 1), d).astype(np.float32)


# ------------------------------------------------------------------------------------------------------- windows


def hamming_window(window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46) -> Array:
    """alpha − beta · cos(2π·k / N) for k below the length: float32.

    Args:
        periodic: N is the length, as transforms want it; else the length − 1, so that both ends are equal.

    Raises:
        OpError: a length that is not a non-negative int.
    """
    count = _count("a window", window_length, 0)
    steps = count if periodic else count - 1
    if count <= 1:
        return np.ones(count, np.float32)
    return np.asarray(alpha - beta * np.cos(2 * np.pi / steps * np.arange(count)), np.float32)


def hann_window(window_length: int, periodic: bool = True) -> Array:
    """(1 − cos(2π·k / N)) / 2 for k below the length: float32. `periodic`: as in `hamming_window`."""
    return hamming_window(window_length, periodic, 0.5, 0.5)
