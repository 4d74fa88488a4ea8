"""Matrix products, embeddings and normalisation. All accumulate in float32."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase, ascii_uppercase
from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot.dims import Dimension
from ingot.dtypes import DType
from ingot.errors import OpError
from ingot.functional.tensor import Tensor
from ingot.ir import F, spec

LETTERS = ascii_uppercase + ascii_lowercase  # in the order in which an equation without a result sorts its labels


def matmul(
    input: Tensor, mat2: Tensor, transa: bool = False, transb: bool = False, use_fp32_acc: bool = True
) -> Tensor:
    """[…, M, K] · […, K, N] → […, M, N]; leading dimensions broadcast, floats of one dtype.

    Args:
        transa, transb: exchange the last two dimensions of an operand first.
        use_fp32_acc: accepted for old code; accumulation is always in float32.
    """
    return F.matmul(input, mat2, transpose_a=transa, transpose_b=transb)


def linear(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, *, output_dtype: DType | str | None = None
) -> Tensor:
    """[…, K] · weight[N, K]ᵀ + bias[N] → […, N].

    Args:
        output_dtype: of the result and the bias, default that of the input.
    """
    out = None if output_dtype is None else dtypes.get(output_dtype)
    product = F.matmul(input, weight, transpose_b=True, out_dtype=None if out is dtypes.get(input.dtype) else out)
    return product if bias is None else F.add(product, bias)


def einsum(einsum_eq: str | Tensor, *inputs: Any) -> Tensor:
    """Sums of products by an equation such as `nkctv,kvw->nctw`: everything that torch.einsum takes.

    Operands follow one by one, or as one list. Without an equation each operand is followed by the list of its
    dimensions' numbers, 0 to 51 or `...`; a last list is the result's: `einsum(x, [0, 1], y, [1, 2], [0, 2])`.
    Computed as matrix products, never as the outer product of all.

    Raises OpError for what is no equation, and where shapes or dtypes do not fit it.
    """
    if not isinstance(einsum_eq, str):
        tensors, equation = _from_lists(einsum_eq, *inputs)
        return F.einsum(*tensors, equation=equation)
    operands = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], list | tuple) else inputs
    return F.einsum(*operands, equation=einsum_eq)


def _from_lists(*arguments: Any) -> tuple[tuple[Any, ...], str]:
    """Operands and an equation of einsum's form with lists."""
    pairs = len(arguments) // 2
    lists = [*arguments[1 : 2 * pairs : 2], *arguments[2 * pairs :]]
    terms = []
    for numbers in lists:
        if not isinstance(numbers, list | tuple):
            kind = type(numbers).__name__
            raise OpError(f"einsum: without an equation an operand is followed by a list of dimensions, not a {kind}")
        if wrong := [n for n in numbers if n is not ... and not (type(n) is int and 0 <= n < len(LETTERS))]:
            raise OpError(f"einsum: dimensions are numbers from 0 to {len(LETTERS) - 1} or ..., not {wrong[0]!r}")
        terms.append("".join("..." if n is ... else LETTERS[n] for n in numbers))
    arrow = f"->{terms.pop()}" if len(arguments) % 2 else ""
    return arguments[: 2 * pairs : 2], ",".join(terms) + arrow


def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """[M], [N] → [M, N] of all products."""
    if len(input.shape) != 1 or len(vec2.shape) != 1:
        raise OpError(f"outer: takes two vectors, got {list(input.shape)} and {list(vec2.shape)}")
    return F.mul(F.reshape(input, (input.shape[0], 1)), F.reshape(vec2, (1, vec2.shape[0])))


def embedding(
    input: Tensor, weight: Tensor, tp_size: int = 1, tp_group: Any = None, sharding_dim: int = 0, tp_rank: Any = None,
    per_token_scale: Tensor | None = None, padding: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Rows of weight [V, H] by int ids […] → […, H]. An id outside 0..V−1 is an error at run time.

    Args:
        tp_size: only 1, a whole table; tp_group, sharding_dim and tp_rank say what its parts are, and change nothing.
        per_token_scale: [V], multiplies each row, which takes its dtype.
        padding: further rows [P, H] behind the table.

    Raises:
        OpError: a part of a table.
    """
    if tp_size != 1:
        raise OpError(f"embedding: tp_size {tp_size}: an engine runs on one device, with the whole table")
    rows = F.embedding(input, weight if padding is None else F.concat(weight, padding, dim=0))
    if per_token_scale is None:
        return rows
    scale = F.embedding(input, F.reshape(per_token_scale, (per_token_scale.shape[0], 1)))
    return F.mul(F.cast(rows, per_token_scale.dtype), scale)


def _rows(input: Tensor, normalized_shape: int | Sequence[Any], name: str) -> tuple[Tensor, tuple[Dimension, ...]]:
    """The input with the dimensions to normalise as one, and those dimensions."""
    sizes = (normalized_shape,) if isinstance(normalized_shape, int | dims.Expr) else tuple(normalized_shape)
    count = len(sizes)
    if not sizes or tuple(input.shape[-count:]) != sizes:
        raise OpError(f"{name}: normalized_shape {list(sizes)} is not the end of the input's shape {list(input.shape)}")
    if count == 1:
        return input, sizes
    return F.reshape(input, (*input.shape[:-count], spec.elements(sizes))), sizes


def _vector(weight: Tensor | None, sizes: tuple[Dimension, ...]) -> Tensor | None:
    return weight if weight is None or len(sizes) == 1 else F.reshape(weight, (spec.elements(sizes),))


def layer_norm(
    input: Tensor,
    normalized_shape: int | Sequence[Any],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    use_diff_of_squares: bool = True,
) -> Tensor:
    """(x − mean) / sqrt(variance + eps) · weight + bias over the last dimensions; a missing weight means ones.

    Args:
        normalized_shape: the sizes of those dimensions, and the shape of weight and bias.
        use_diff_of_squares: accepted for old code and ignored: the variance is always computed in two passes.
    """
    rows, sizes = _rows(input, normalized_shape, "layer_norm")
    weight, bias = _vector(weight, sizes), _vector(bias, sizes)
    if weight is None and bias is not None:
        out = F.add(F.layer_norm(rows, eps=eps), bias)
    else:
        out = F.layer_norm(rows, *[part for part in (weight, bias) if part is not None], eps=eps)
    return out if len(sizes) == 1 else F.reshape(out, tuple(input.shape))


def moe(
    input: Tensor, router: Tensor, gates: Sequence[Tensor], ups: Sequence[Tensor], downs: Sequence[Tensor], *,
    top_k: int, normalize: bool = True, activation: str = "silu",
) -> Tensor:  # fmt: skip
    """The weighted sum of each row's `top_k` best experts, gated MLPs down(act(gate(x)) · up(x)): [T, H] → the same.

    Args:
        router: float32 [T, E], a score of every expert; their softmax gives the weights.
        gates, ups, downs: the experts' weights, [I, H] twice and [H, I].
        normalize: whether the weights of a row's experts are divided by their sum.
        activation: silu, gelu, gelu_tanh or relu.
    """
    return F.moe(
        input, router, *gates, *ups, *downs, top_k=top_k, normalize=normalize, activation=activation
    )


def rms_norm(
    input: Tensor, normalized_shape: int | Sequence[Any], weight: Tensor | None = None, eps: float = 1e-6,
    shift: float = 0.0, num_groups: int = 1,
) -> Tensor:  # fmt: skip
    """x / sqrt(mean(x²) + eps) · (weight + shift) over the last dimensions; without weight, no factor.

    Args:
        num_groups: of the last dimension, each normalised by itself. It stands last, for the weight is third here as
            in the retired API up to 0.20; give it by name.

    Raises:
        OpError: sizes that are not the end of the input's shape, groups that are not equal.
    """
    rows, sizes = _rows(input, normalized_shape, "rms_norm")
    if num_groups != 1:
        return _rms_norm_in_groups(rows, num_groups, _vector(weight, sizes), eps, shift, tuple(input.shape))
    weight = _vector(weight, sizes)
    out = F.rms_norm(rows, eps=eps) if weight is None else F.rms_norm(rows, weight, eps=eps, shift=shift)
    return out if len(sizes) == 1 else F.reshape(out, tuple(input.shape))


def _rms_norm_in_groups(
    rows: Tensor, groups: int, weight: Tensor | None, eps: float, shift: float, shape: tuple[Dimension, ...]
) -> Tensor:
    width = rows.shape[-1]
    if type(groups) is not int or groups < 1 or not isinstance(width, int) or width % groups:
        raise OpError(f"rms_norm: {width} elements do not make {groups} equal groups")
    apart = F.reshape(rows, (*rows.shape[:-1], groups, width // groups))
    whole = F.reshape(F.rms_norm(apart, eps=eps), shape)
    if weight is None:
        return whole
    factor = F.reshape(weight, shape[len(rows.shape) - 1 :])
    return F.mul(whole, F.add(factor, np.array(shift, dtypes.get(factor.dtype).numpy)) if shift else factor)


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Each of `num_groups` groups of channels normalised over its channels and all further dimensions.

    Args:
        input: [B, C, …]; batch and further dimensions may be dynamic.
        weight, bias: [C]; missing ones mean ones and zeros.

    Raises:
        OpError: fewer than two dimensions, channels that are not a multiple of the groups.
    """
    if weight is None and bias is not None:
        return _shifted(F.group_norm(input, groups=num_groups, eps=eps), bias)
    return F.group_norm(input, *[part for part in (weight, bias) if part is not None], groups=num_groups, eps=eps)


def batch_norm(
    input: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """(x − running_mean) / sqrt(running_var + eps) · weight + bias per channel of [N, C, …].

    Args:
        training, momentum: accepted for torch's calls; statistics of a batch are not computed.

    Raises:
        OpError: training=True; shapes or dtypes that do not fit.
    """
    if training:
        raise OpError("batch_norm: training=True would take the batch's own statistics; only given ones are supported")
    if weight is None and bias is not None:
        return _shifted(F.batch_norm(input, running_mean, running_var, eps=eps), bias)
    parts = [part for part in (weight, bias) if part is not None]
    return F.batch_norm(input, running_mean, running_var, *parts, eps=eps)


def _shifted(input: Tensor, bias: Tensor) -> Tensor:
    """[N, C, …] + bias [C]"""
    return F.add(input, F.reshape(bias, (*bias.shape, *[1] * (len(input.shape) - 2))))
