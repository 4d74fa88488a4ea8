"""Activations, choices and casts: one element at a time, shapes broadcast. Arithmetic and comparisons are derived."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ingot import dtypes
from ingot.dtypes import DType
from ingot.errors import OpError
from ingot.functional import derived
from ingot.functional.tensor import Tensor, axis_of
from ingot.ir import F
from ingot.ir.expr import integer_range
from ingot.ops.reduce import Reduce


def gelu(x: Tensor, approximate: str = "tanh") -> Tensor:
    """x · Φ(x), floats. By tanh, as the retired API always computed it; `approximate="none"` is the exact form (erf).

    Raises:
        OpError: any other word for `approximate`.
    """
    if approximate not in ("tanh", "none"):
        raise OpError(f'gelu: approximate must be "tanh" or "none", not {approximate!r}')
    return F.gelu(x, approximate=approximate == "tanh")


def quick_gelu(x: Tensor) -> Tensor:
    """x · sigmoid(1.702 · x), floats."""
    return F.mul(x, F.sigmoid(F.mul(x, 1.702)))


def squared_relu(x: Tensor) -> Tensor:
    """relu(x)², numbers."""
    positive = F.relu(x)
    return F.mul(positive, positive)


def _halves(x: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """The two halves of the last dimension."""
    rank = len(x.shape)
    width = x.shape[-1] if rank else 0
    if not isinstance(width, int) or width % 2 or not width:
        raise OpError(f"{name}: the last dimension must be known and even, got {list(x.shape)}")
    starts, sizes, strides = (0,) * rank, (*x.shape[:-1], width // 2), (1,) * rank
    return F.slice(x, starts, sizes, strides), F.slice(x, (*starts[:-1], width // 2), sizes, strides)


def swiglu(input: Tensor) -> Tensor:
    """first half · silu(second half) of the last dimension, floats: […, 2n] → […, n]."""
    first, second = _halves(input, "swiglu")
    return F.mul(first, F.silu(second))


def geglu(x: Tensor) -> Tensor:
    """first half · gelu(second half) of the last dimension, gelu by tanh, floats: […, 2n] → […, n]."""
    first, second = _halves(x, "geglu")
    return F.mul(first, gelu(second))


def gegelu(x: Tensor, limit: float | None = None) -> Tensor:
    """quick_gelu(even) · (odd + 1) over neighbours of the last dimension, floats: […, 2n] → […, n].

    With a limit, the even elements are held below it and the odd ones within ±limit first.
    """
    rank = len(x.shape)
    width = x.shape[-1] if rank else 0
    if not isinstance(width, int) or width % 2 or not width:
        raise OpError(f"gegelu: the last dimension must be known and even, got {list(x.shape)}")
    sizes, strides = (*x.shape[:-1], width // 2), (*[1] * (rank - 1), 2)
    even, odd = (F.slice(x, (*[0] * (rank - 1), start), sizes, strides) for start in (0, 1))
    if limit is not None:
        even, odd = F.clip(even, maximum=limit), F.clip(odd, minimum=-limit, maximum=limit)
    return F.mul(quick_gelu(even), F.add(odd, 1.0))


def identity(input: Tensor) -> Tensor:
    """The tensor itself."""
    return input


def clip(input: Tensor, alpha: float | None = None, beta: float | None = None) -> Tensor:
    """x held in alpha..beta; None leaves a side open."""
    return F.clip(input, minimum=alpha, maximum=beta)


def int_clip(input: Tensor, lower: int, upper: int) -> Tensor:
    """An integer tensor held in lower..upper.

    Raises:
        OpError: a tensor of another dtype, bounds that are no ints or that it cannot hold.
    """
    kind = dtypes.get(input.dtype)
    if not kind.is_integer:
        raise OpError(f"int_clip: takes integers, not {kind.name}; use clip")
    low, high = integer_range(kind)
    if not (type(lower) is type(upper) is int and lower <= upper and lower <= high and upper >= low):
        raise OpError(f"int_clip: bounds are ints in order that {kind.name} reaches, not {lower!r} and {upper!r}")
    return F.minimum(F.maximum(input, np.array(max(lower, low), kind.numpy)), np.array(min(upper, high), kind.numpy))


def cast(input: Tensor, dtype: DType | str, scale: float | None = None) -> Tensor:
    """Another dtype. The same one costs nothing, and stays when the network is built in another precision.

    Between floats and int8 it quantises with the range −127..127: round(x / scale), halves to even, saturating, and
    x · scale back; scale 1 when not given. Every other pair converts as ops.cast does (floats to integers towards zero,
    integers wrap). To convert floats to int8 without scale and range, use ops.cast or a tensor's own `cast` method.

    Raises:
        DTypeError: (a TypeError) an unknown dtype.
        OpError: a scale for any other pair of dtypes, or one that is not positive and finite.
    """
    source, target = dtypes.get(input.dtype), dtypes.get(dtype)
    quantises = source.is_float and target is dtypes.int8
    if quantises or source is dtypes.int8 and target.is_float:
        if scale is not None and not 0 < scale < float("inf"):
            raise OpError(f"cast: scale must be positive and finite, not {scale}")
        step = np.float32(1 if scale is None else scale)
        return F.quantize(input, step) if quantises else F.dequantize(input, step, dtype=target)
    if scale is not None:
        raise OpError(f"cast: scale is for casts between floats and int8, not from {source} to {target}")
    return F.cast(input, target)


def unary(input: Tensor, op: str) -> Tensor:
    """The op of that name: neg, abs, exp, log, sqrt, sin, …

    Raises:
        OpError: a name that is no op of one operand.
    """
    return _named(op, 1)(input)


def _named(op: str, operands: int) -> Callable[..., Any]:
    known = [c.name for c in derived.names().values() if len(c.arguments) == operands and not issubclass(c, Reduce)]
    if op not in known:
        raise OpError(f"there is no op {op!r} here; known are {', '.join(known)}")
    found: Callable[..., Any] = getattr(F, op)
    return found


def elementwise_binary(left: Tensor, right: Tensor, op: str) -> Tensor:
    """The op of that name: add, sub, mul, div, pow, less, …

    Raises:
        OpError: a name that is no op of two operands.
    """
    return _named(op, 2)(left, right)


def where(condition: Tensor | bool, left: Tensor, right: Tensor) -> Tensor:
    """left where the condition (bool tensor, or a Python bool) holds, else right; broadcast, one dtype."""
    return F.where(np.bool_(condition) if isinstance(condition, bool) else condition, left, right)


# ---------------------------------------------------------------------------------------------- along a dimension


def softmax(input: Tensor, dim: int | None = None) -> Tensor:
    """exp(x) / Σ exp(x) along `dim` (default the last), accumulated in float32."""
    return F.softmax(input, axis=axis_of(input, -1 if dim is None else dim))


def log_softmax(input: Tensor, dim: int) -> Tensor:
    """log(softmax(x)) along `dim`, computed without losing the small ones."""
    return F.log_softmax(input, axis=axis_of(input, dim))


ACT2FN: dict[str, Callable[..., Any]] = {
    "relu": derived.find("relu"),
    "tanh": derived.find("tanh"),
    "sigmoid": derived.find("sigmoid"),
    "gelu": gelu,
    "gelu_new": gelu,
    "gelu_fast": gelu,
    "gelu_pytorch_tanh": gelu,
    "openai-gelu": gelu,
    "quick_gelu": quick_gelu,
    "geglu": geglu,
    "gegelu": gegelu,
    "identity": identity,
    "silu": derived.find("silu"),
    "softplus": derived.find("softplus"),
    "relu2": squared_relu,
    "squared-relu": squared_relu,
    "swiglu": swiglu,
    "fast-swiglu": swiglu,
    "mish": derived.find("mish"),
}
GATED_ACT_2_ACT = {"swiglu": "silu", "fast-swiglu": "silu", "geglu": "gelu"}


def activation_function(name: str) -> Callable[..., Any]:
    """The function of an activation's name.

    Raises:
        OpError: an unknown name; the message lists the known ones.
    """
    if name not in ACT2FN:
        raise OpError(f"unknown activation {name!r}; known are {', '.join(sorted(ACT2FN))}")
    return ACT2FN[name]


def activation(input: Tensor, act_type: str) -> Tensor:
    """The activation of that name."""
    return activation_function(act_type)(input)


def is_gated_activation(activation: str) -> bool:
    """Whether it halves the last dimension."""
    return activation in GATED_ACT_2_ACT


def non_gated_version(activation: str) -> str:
    """The activation that a gated one applies to its half; another one itself."""
    return GATED_ACT_2_ACT.get(activation, activation)
