"""TensorRT's activations and unary operations, one element at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ingot import dtypes
from ingot import functional as f
from ingot.compat.trt_windows import Given

_SELU = (1.6732632423543772, 1.0507009873554805)
_ACTIVATIONS: dict[str, Callable[[Any, float, float], Any]] = {
    "leaky_relu": lambda x, a, b: f.add(f.relu(x), f.mul(f.minimum(x, 0.0), a)),
    "elu": lambda x, a, b: f.add(f.relu(x), f.mul(f.sub(f.exp(f.minimum(x, 0.0)), 1.0), a)),
    "selu": lambda x, a, b: f.mul(
        f.add(f.relu(x), f.mul(f.sub(f.exp(f.minimum(x, 0.0)), 1.0), a or _SELU[0])), b or _SELU[1]
    ),
    "softsign": lambda x, a, b: f.div(x, f.add(f.abs(x), 1.0)),
    "softplus": lambda x, a, b: f.mul(f.softplus(x, b or 1.0), (a or 1.0) * (b or 1.0)),
    "clip": lambda x, a, b: f.clip(x, a, b),
    "hard_sigmoid": lambda x, a, b: f.clip(f.add(f.mul(x, a), b), 0.0, 1.0),
    "scaled_tanh": lambda x, a, b: f.mul(f.tanh(f.mul(x, b)), a),
    "thresholded_relu": lambda x, a, b: f.where(f.gt(x, a), x, f.mul(x, 0.0)),
    "gelu_erf": lambda x, a, b: f.gelu(x, "none"),
}


def activation(g: Given) -> Any:
    """What add_activation computes."""
    own = _ACTIVATIONS.get(g["type"])
    return f.activation(g["input"], g["type"]) if own is None else own(g["input"], g["alpha"], g["beta"])


# ---------------------------------------------------------------------------------------------- unary operations


def unary(x: Any, op: str) -> Any:
    """What add_unary computes; in float32 where ingot has no op of that name."""
    own = _UNARY.get(op)
    if own is None:
        return f.unary(x, op)
    kind = dtypes.get(x.dtype)
    if not kind.is_float or kind.bits >= 32 or op in _BOOLS:
        return own(x)
    return f.cast(own(f.cast(x, "float32")), kind)


def _sinh(x: Any) -> Any:
    return f.mul(f.tanh(x), _cosh(x))  # no difference of nearly equal numbers near 0


def _cosh(x: Any) -> Any:
    half = f.exp(f.sub(f.abs(x), math.log(2.0)))  # of e^|x|, which overflows one step later
    return f.add(half, f.div(0.25, half))


def _log1p(u: Any) -> Any:
    whole = f.add(u, 1.0)
    lost = f.sub(whole, 1.0)  # what of u is left in 1 + u
    exact = f.mul(f.log(whole), f.div(u, f.where(f.eq(lost, 0.0), 1.0, lost)))
    return f.where(f.eq(lost, 0.0), u, f.where(f.eq(whole, np.float32(np.inf)), whole, exact))


def _signed(x: Any, of_absolute: Callable[[Any], Any]) -> Any:
    """An odd function by its values at |x|."""
    found = of_absolute(f.abs(x))
    return f.where(f.lt(x, 0.0), f.neg(found), found)


def _asinh(x: Any) -> Any:
    def positive(a: Any) -> Any:
        near = f.minimum(a, 1e9)  # its square is finite
        square = f.mul(near, near)
        small = _log1p(f.add(near, f.div(square, f.add(f.sqrt(f.add(square, 1.0)), 1.0))))
        return f.where(f.gt(a, 1e9), f.add(f.log(a), math.log(2.0)), small)

    return _signed(x, positive)


def _acosh(x: Any) -> Any:
    more = f.sub(x, 1.0)
    small = _log1p(f.add(more, f.mul(f.sqrt(more), f.sqrt(f.add(more, 2.0)))))
    return f.where(f.gt(x, 1e9), f.add(f.log(x), math.log(2.0)), small)


def _atanh(x: Any) -> Any:
    return _signed(x, lambda a: f.mul(_log1p(f.div(f.mul(a, 2.0), f.sub(1.0, a))), 0.5))


# A polynomial for atan(x) / x - 1 in x², by least squares on Chebyshev points of |x| <= tan(π / 8); error 1e-8.
_SPAN = math.tan(math.pi / 8)


def _fitted() -> list[float]:
    at = _SPAN * np.cos(np.pi * (np.arange(200) + 0.5) / 400)
    powers = np.stack([at ** (2 * i) for i in range(1, 6)], 1)
    return [float(c) for c in np.linalg.lstsq(powers, np.arctan(at) / at - 1, rcond=None)[0]]


_ARCTAN = _fitted()


def _atan(x: Any) -> Any:
    def positive(a: Any) -> Any:
        large, middle = f.gt(a, 1 / _SPAN), f.gt(a, _SPAN)
        turned = f.div(f.sub(f.minimum(a, 1e9), 1.0), f.add(f.minimum(a, 1e9), 1.0))
        near = f.where(large, f.div(-1.0, f.maximum(a, 1.0)), f.where(middle, turned, a))
        base = f.where(large, math.pi / 2, f.where(middle, f.add(f.mul(a, 0.0), math.pi / 4), f.mul(near, 0.0)))
        square = f.mul(near, near)
        total: Any = f.mul(square, 0.0)
        for coefficient in reversed(_ARCTAN):
            total = f.mul(f.add(total, coefficient), square)
        return f.add(base, f.add(near, f.mul(near, total)))

    return _signed(x, positive)


def _asin(x: Any) -> Any:
    return _atan(f.div(x, f.sqrt(f.mul(f.sub(1.0, x), f.add(x, 1.0)))))


def _acos(x: Any) -> Any:
    return f.mul(_atan(f.sqrt(f.div(f.sub(1.0, x), f.add(x, 1.0)))), 2.0)


def _sign(x: Any) -> Any:
    kind = x.dtype
    found = f.sub(f.cast(f.gt(x, 0), "int32"), f.cast(f.lt(x, 0), "int32"))
    return f.where(f.eq(x, x), f.cast(found, "float32" if dtypes.get(kind).is_float else kind), x)


_BOOLS = ("isinf", "isnan")
_UNARY: dict[str, Callable[[Any], Any]] = {
    "tan": lambda x: f.div(f.sin(x), f.cos(x)), "sinh": _sinh, "cosh": _cosh, "asin": _asin, "acos": _acos,
    "atan": _atan, "asinh": _asinh, "acosh": _acosh, "atanh": _atanh, "sign": _sign,
    "isinf": lambda x: f.eq(f.abs(x), np.asarray(np.inf, dtypes.get(x.dtype).numpy)), "isnan": lambda x: f.ne(x, x),
}  # fmt: skip
