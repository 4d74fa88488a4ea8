"""Activations, arithmetic, comparisons and casts: one element at a time, shapes broadcast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ingot import dtypes
from ingot.dtypes import DType
from ingot.errors import OpError
from ingot.functional.tensor import Tensor, axis_of
from ingot.ir import F

# ---------------------------------------------------------------------------------------------- one operand


def relu(input: Tensor) -> Tensor:
    """max(x, 0), numbers."""
    return F.relu(input)


def tanh(input: Tensor) -> Tensor:
    """Hyperbolic tangent, floats."""
    return F.tanh(input)


def sigmoid(input: Tensor) -> Tensor:
    """1 / (1 + exp(−x)), floats."""
    return F.sigmoid(input)


def silu(input: Tensor) -> Tensor:
    """x · sigmoid(x), floats."""
    return F.silu(input)


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


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta · x)) / beta, and x itself where beta · x exceeds the threshold; floats."""
    return F.softplus(input, beta=beta, threshold=threshold)


def mish(x: Tensor) -> Tensor:
    """x · tanh(softplus(x)), floats."""
    return F.mish(x)


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
    """An integer tensor held in lower..upper."""
    return F.clip(input, minimum=float(lower), maximum=float(upper))


def cast(input: Tensor, dtype: DType | str, scale: float | None = None) -> Tensor:
    """Another dtype; the same one costs nothing.

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
    return input if source is target else F.cast(input, target)


_UNARY = (
    "neg", "abs", "exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh", "sigmoid", "erf", "floor", "ceil", "round",
    "reciprocal", "relu", "silu", "logical_not",
)  # fmt: skip


def unary(input: Tensor, op: str) -> Tensor:
    """The op of that name: neg, abs, exp, log, sqrt, sin, …

    Raises:
        OpError: a name that is no op of one operand.
    """
    return _named(op, _UNARY)(input)


def _named(op: str, known: tuple[str, ...]) -> Callable[..., Any]:
    if op not in known:
        raise OpError(f"there is no op {op!r} here; known are {', '.join(known)}")
    found: Callable[..., Any] = getattr(F, op)
    return found


def neg(input: Tensor) -> Tensor:
    """−x, numbers."""
    return F.neg(input)


def abs(input: Tensor) -> Tensor:
    """|x|, numbers."""
    return F.abs(input)


def exp(input: Tensor) -> Tensor:
    """eˣ, floats."""
    return F.exp(input)


def log(input: Tensor) -> Tensor:
    """Natural logarithm, floats."""
    return F.log(input)


def sqrt(input: Tensor) -> Tensor:
    """Square root, floats."""
    return F.sqrt(input)


def rsqrt(input: Tensor) -> Tensor:
    """1 / √x, floats."""
    return F.rsqrt(input)


def sin(input: Tensor) -> Tensor:
    """Sine, floats."""
    return F.sin(input)


def cos(input: Tensor) -> Tensor:
    """Cosine, floats."""
    return F.cos(input)


def erf(input: Tensor) -> Tensor:
    """The error function, floats."""
    return F.erf(input)


def floor(input: Tensor) -> Tensor:
    """The largest whole number not above x, floats."""
    return F.floor(input)


def ceil(input: Tensor) -> Tensor:
    """The smallest whole number not below x, floats."""
    return F.ceil(input)


def round(input: Tensor) -> Tensor:
    """The nearest whole number, halves to even; floats."""
    return F.round(input)


def reciprocal(input: Tensor) -> Tensor:
    """1 / x, floats."""
    return F.reciprocal(input)


def not_op(input: Tensor) -> Tensor:
    """Logical not of a bool tensor."""
    return F.logical_not(input)


# ---------------------------------------------------------------------------------------------- two operands
# A Python number takes the dtype of the tensor beside it; two tensors of different dtype are an OpError.

_BINARY = (
    "add", "sub", "mul", "div", "floordiv", "mod", "pow", "maximum", "minimum", "equal", "not_equal", "less",
    "less_equal", "greater", "greater_equal", "logical_and", "logical_or", "logical_xor",
)  # fmt: skip


def elementwise_binary(left: Tensor, right: Tensor, op: str) -> Tensor:
    """The op of that name: add, sub, mul, div, pow, less, …

    Raises:
        OpError: a name that is no op of two operands.
    """
    return _named(op, _BINARY)(left, right)


def add(left: Tensor, right: Tensor) -> Tensor:
    """left + right, numbers."""
    return F.add(left, right)


def sub(left: Tensor, right: Tensor) -> Tensor:
    """left − right, numbers."""
    return F.sub(left, right)


def mul(left: Tensor, right: Tensor) -> Tensor:
    """left · right, numbers."""
    return F.mul(left, right)


def div(left: Tensor, right: Tensor) -> Tensor:
    """left / right, floats."""
    return F.div(left, right)


def floordiv(left: Tensor, right: Tensor) -> Tensor:
    """⌊left / right⌋, numbers."""
    return F.floordiv(left, right)


def modulo(x: Tensor, y: Tensor) -> Tensor:
    """x − y · ⌊x / y⌋: of the divisor's sign, as in Python."""
    return F.mod(x, y)


def pow(left: Tensor, right: Tensor) -> Tensor:
    """left to the power right."""
    return F.pow(left, right)


def maximum(left: Tensor, right: Tensor) -> Tensor:
    """The larger one; NaN if either is."""
    return F.maximum(left, right)


def minimum(left: Tensor, right: Tensor) -> Tensor:
    """The smaller one; NaN if either is."""
    return F.minimum(left, right)


def eq(left: Tensor, right: Tensor) -> Tensor:
    """left = right, as bool."""
    return F.equal(left, right)


def ne(left: Tensor, right: Tensor) -> Tensor:
    """left ≠ right, as bool."""
    return F.not_equal(left, right)


def gt(left: Tensor, right: Tensor) -> Tensor:
    """left > right, as bool."""
    return F.greater(left, right)


def ge(left: Tensor, right: Tensor) -> Tensor:
    """left ≥ right, as bool."""
    return F.greater_equal(left, right)


def lt(left: Tensor, right: Tensor) -> Tensor:
    """left < right, as bool."""
    return F.less(left, right)


def le(left: Tensor, right: Tensor) -> Tensor:
    """left ≤ right, as bool."""
    return F.less_equal(left, right)


def op_and(left: Tensor, right: Tensor) -> Tensor:
    """Logical and of bools, bitwise and of integers."""
    return F.logical_and(left, right)


def op_or(left: Tensor, right: Tensor) -> Tensor:
    """Logical or of bools, bitwise or of integers."""
    return F.logical_or(left, right)


def op_xor(left: Tensor, right: Tensor) -> Tensor:
    """Logical exclusive or of bools, bitwise exclusive or of integers."""
    return F.logical_xor(left, right)


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
    "relu": relu,
    "tanh": tanh,
    "sigmoid": sigmoid,
    "gelu": gelu,
    "gelu_new": gelu,
    "gelu_fast": gelu,
    "gelu_pytorch_tanh": gelu,
    "openai-gelu": gelu,
    "quick_gelu": quick_gelu,
    "geglu": geglu,
    "gegelu": gegelu,
    "identity": identity,
    "silu": silu,
    "softplus": softplus,
    "relu2": squared_relu,
    "squared-relu": squared_relu,
    "swiglu": swiglu,
    "fast-swiglu": swiglu,
    "mish": mish,
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
