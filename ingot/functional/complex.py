"""Complex numbers as pairs (real, imaginary) in the last dimension: their parts, and arithmetic on them.

Everything but the dimension of the pairs broadcasts. Floats only.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot import dtypes
from ingot.errors import OpError
from ingot.functional.shape import expand, select, stack
from ingot.functional.tensor import Tensor
from ingot.ir import F, Value
from ingot.ir.spec import broadcast


def _parts(input: Tensor, function: str) -> tuple[Tensor, Tensor]:
    view_as_complex(input, function)
    return select(input, -1, 0), select(input, -1, 1)


def _zeros_like(x: Tensor) -> Tensor:
    zero = np.zeros((1,) * len(x.shape), dtypes.get(x.dtype).numpy)
    return expand(x.network.constant(zero) if isinstance(x, Value) else zero, tuple(x.shape))


def view_as_complex(input: Tensor, function: str = "view_as_complex") -> Tensor:
    """The pairs themselves: the form that complex numbers have here.

    Raises:
        OpError: the last dimension is not of 2 elements.
    """
    if not len(input.shape) or input.shape[-1] != 2:
        raise OpError(f"{function}: takes pairs (real, imaginary) in the last dimension, not {list(input.shape)}")
    return input


def view_as_real(input: Tensor) -> Tensor:
    """The pairs themselves: they are real numbers already."""
    return view_as_complex(input, "view_as_real")


def complex(real: Tensor, imag: Tensor | None = None) -> Tensor:
    """Pairs of real and imaginary parts, which broadcast; without imaginary parts these are zero."""
    imag = _zeros_like(real) if imag is None else imag
    shape = broadcast(tuple(real.shape), tuple(imag.shape))
    return stack([x if tuple(x.shape) == shape else expand(x, shape) for x in (real, imag)], -1)


def real(input: Tensor) -> Tensor:
    """The real parts, [..., 2] → [...]."""
    return _parts(input, "real")[0]


def imag(input: Tensor) -> Tensor:
    """The imaginary parts, [..., 2] → [...]."""
    return _parts(input, "imag")[1]


def conj(input: Tensor) -> Tensor:
    """The conjugates: imaginary parts with the other sign."""
    re, im = _parts(input, "conj")
    return complex(re, F.neg(im))


def complex_mul(left: Tensor, right: Tensor) -> Tensor:
    """Products of complex numbers."""
    (a, b), (c, d) = _parts(left, "complex_mul"), _parts(right, "complex_mul")
    return complex(F.sub(F.mul(a, c), F.mul(b, d)), F.add(F.mul(a, d), F.mul(b, c)))


def complex_div(left: Tensor, right: Tensor) -> Tensor:
    """Quotients of complex numbers."""
    (a, b), (c, d) = _parts(left, "complex_div"), _parts(right, "complex_div")
    most = F.maximum(F.abs(c), F.abs(d))  # divided first, so that no square is beyond the largest number
    e, f = F.div(c, most), F.div(d, most)
    square = F.mul(most, F.add(F.mul(e, e), F.mul(f, f)))
    re, im = F.add(F.mul(a, e), F.mul(b, f)), F.sub(F.mul(b, e), F.mul(a, f))
    return complex(F.div(re, square), F.div(im, square))


def complex_abs(input: Tensor) -> Tensor:
    """Absolute values, [..., 2] → [...]; no square on the way is beyond the largest number."""
    a, b = (F.abs(x) for x in _parts(input, "complex_abs"))
    high, low = F.maximum(a, b), F.minimum(a, b)
    zero = np.zeros((), dtypes.get(high.dtype).numpy)
    ratio = F.where(F.equal(high, low), F.where(F.equal(high, zero), zero, _one(zero)), F.div(low, high))
    return F.mul(high, F.sqrt(F.add(F.mul(ratio, ratio), 1.0)))


def _one(zero: Any) -> Any:
    return np.ones((), zero.dtype)


def angle(input: Tensor) -> Tensor:
    """Angles from −π to π, [..., 2] → [...]."""
    re, im = _parts(input, "angle")
    return F.atan2(im, re)


def complex_exp(input: Tensor) -> Tensor:
    """e to the power of complex numbers."""
    re, im = _parts(input, "complex_exp")
    return polar(F.exp(re), im)


def polar(abs: Tensor, angle: Tensor) -> Tensor:
    """Complex numbers of absolute values and angles: [...] → [..., 2]."""
    return complex(F.mul(abs, F.cos(angle)), F.mul(abs, F.sin(angle)))
