"""fft, rfft, irfft against NumPy in double precision: lengths 1 to 70 and long ones, types, rows in any company."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ingot import _native
from tests.kernels.support import FLOATS, ROUNDING, Array, run, same_bits

# Powers of two, products of small factors, primes (1009, 4099) and twice one, 37 · 53, and one past 2^16.
LONG = (100, 127, 360, 400, 512, 1000, 1009, 1961, 2018, 4096, 4099, 65540)
NORMS = ("backward", "ortho", "forward")


def numbers(dtype: Any, *shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def pairs(x: Array) -> Array:
    return np.stack((x.real, x.imag), -1)


def complex_of(x: Array) -> Array:
    wide = x.astype(np.float64)
    return np.asarray(wide[..., 0] + 1j * wide[..., 1])


def fft(x: Array, axis: int = 0, threads: int = 1, inverse: bool = False, norm: str = "backward") -> Array:
    return run("fft", [x], [(x.dtype, x.shape)], threads, axis=axis, inverse=inverse, norm=norm)[0]


def rfft(x: Array, axis: int = 0, threads: int = 1, onesided: bool = True, norm: str = "backward") -> Array:
    size = x.shape[axis] // 2 + 1 if onesided else x.shape[axis]
    y = (x.dtype, (*x.shape[:axis], size, *x.shape[axis + 1 :], 2))
    return run("rfft", [x], [y], threads, axis=axis, onesided=onesided, norm=norm)[0]


def irfft(x: Array, n: int, axis: int = 0, threads: int = 1, norm: str = "backward") -> Array:
    y = (x.dtype, (*x.shape[:axis], n, *x.shape[axis + 1 : -1]))
    return run("irfft", [x], [y], threads, axis=axis, norm=norm)[0]


def close(got: Array, want: Array) -> None:
    """4e-7 of the largest number was the greatest error seen in float32; narrower types are rounded once."""
    wide = got.astype(np.float64)
    largest = np.abs(want).max(initial=1e-30)
    allowed = 8e-7 * largest + (2 * ROUNDING[got.dtype] * np.abs(want) if got.dtype.itemsize == 2 else 0)
    assert got.shape == want.shape
    # float16 has no numbers between its smallest and 0
    assert (np.abs(wide - want) <= allowed + (2.0**-24 if got.dtype == np.float16 else 0)).all()


@pytest.mark.parametrize("n", [*range(1, 71), *LONG])
def test_lengths(n: int) -> None:
    x, z = numbers(np.float32, 3, n), numbers(np.float32, 3, n, 2, seed=1)
    norm = NORMS[n % 3]
    for inverse, of in ((False, np.fft.fft), (True, np.fft.ifft)):
        close(fft(z, 1, inverse=inverse, norm=norm), pairs(of(complex_of(z), norm=norm)))  # type: ignore[arg-type]
    wide = x.astype(np.float64)
    whole = rfft(x, 1, norm=norm)
    close(whole, pairs(np.fft.rfft(wide, norm=norm)))  # type: ignore[arg-type]
    assert (whole[:, 0, 1] == 0).all() and (n % 2 or (whole[:, -1, 1] == 0).all()), "real whatever is rounded"
    close(rfft(x, 1, onesided=False, norm=norm), pairs(np.fft.fft(wide, norm=norm)))  # type: ignore[arg-type]
    for bins in {n // 2 + 1, 1, n}:  # fewer and more than are read
        want = np.fft.irfft(complex_of(z[:, :bins]), n, norm=norm)  # type: ignore[arg-type]
        close(irfft(z[:, :bins].copy(), n, 1, norm=norm), want)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(20, 3, 5), (37, 5, 4), (0, 8, 3), (16, 1, 9)])
def test_axes(shape: tuple[int, ...], dtype: Any) -> None:
    x, z = numbers(dtype, *shape), numbers(dtype, *shape, 2, seed=1)
    for axis in range(3):
        if not shape[axis]:
            continue
        close(fft(z, axis), pairs(np.fft.fft(complex_of(z), axis=axis)))
        close(rfft(x, axis), pairs(np.fft.rfft(x.astype(np.float64), axis=axis)))
        close(irfft(z, 14, axis), np.fft.irfft(complex_of(z), 14, axis=axis))


@pytest.mark.parametrize("n", [16, 15, 74, 37])
def test_a_row_does_not_depend_on_its_company(n: int) -> None:
    x, z = numbers(np.float32, 200, n), numbers(np.float32, 200, n, 2, seed=1)
    alone = [np.concatenate([f(a[i : i + 1]) for i in range(17)]) for f, a in _calls(x, z, 1)]
    for rows in (2, 5, 16, 200):
        for threads in (1, 3):
            for want, (f, a) in zip(alone, _calls(x, z, threads), strict=True):
                assert same_bits(f(a[:rows])[:17], want[:rows])


def _calls(x: Array, z: Array, threads: int) -> list[tuple[Any, Array]]:
    n = x.shape[1]
    return [
        (lambda a: fft(a, 1, threads), z),
        (lambda a: rfft(a, 1, threads), x),
        (lambda a: irfft(a, n, 1, threads), z),
    ]


def test_what_is_no_number_stays_in_its_row() -> None:
    x = numbers(np.float32, 4, 24)
    x[1, 3], x[2, 5] = np.nan, np.inf
    y = rfft(x, 1)
    assert np.isfinite(y[[0, 3]]).all() and not np.isfinite(y[[1, 2]]).any(-1).any()
    close(y[[0, 3]], pairs(np.fft.rfft(x[[0, 3]].astype(np.float64))))


@pytest.mark.parametrize(("x", "y", "params", "message"), [
    ((3, 8), (3, 5, 2), {"axis": 2}, "axis"),
    ((3, 8), (3, 4, 2), {"axis": 1}, "size along the axis that x transforms into"),
    ((3, 8), (3, 8, 2), {"axis": 1}, "size along the axis that x transforms into"),
    ((3, 8), (3, 5, 3), {"axis": 1}, "y must end in pairs"),
    ((3, 8), (4, 5, 2), {"axis": 1}, "the same sizes but along the axis"),
    ((3, 0), (3, 1, 2), {"axis": 1}, "nothing to transform"),
    ((1, (1 << 21) + 2), (1, (1 << 20) + 2, 2), {"axis": 1}, "longer than"),
])  # fmt: skip
def test_refusals(x: tuple[int, ...], y: tuple[int, ...], params: dict[str, Any], message: str) -> None:
    how = {"onesided": True, "norm": "backward", **params}
    with pytest.raises(_native.Error, match=message):
        run("rfft", [np.zeros(x, np.float32)], [(np.float32, y)], **how)
