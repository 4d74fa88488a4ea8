"""Convolution and pooling over spatial dimensions.

Inputs are [N, C, …] or, for one sample, [C, …]. Sizes may be named dims; kernel, stride, padding and dilation are ints,
one number for every dimension or one each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ingot import dims, dtypes
from ingot.dims import Dimension
from ingot.errors import OpError
from ingot.functional.tensor import Tensor, known_size
from ingot.ir import F

Sizes = int | Sequence[int]
Sides = tuple[tuple[int, ...], tuple[int, ...]]  # pre_padding and post_padding

PADDING_MODES = ("explicit_round_down", "explicit_round_up", "same_upper", "same_lower")


def sizes_of(name: str, what: str, value: Any, rank: int) -> tuple[int, ...]:
    """One int for each spatial dimension, from one for all or one each.

    Raises:
        OpError: another number of entries, or entries that are no ints.
    """
    found = [value] if isinstance(value, int) else list(value) if isinstance(value, Sequence) else []
    if isinstance(value, str | bool) or not all(type(v) is int for v in found) or len(found) not in (1, rank):
        raise OpError(f"{name}: {what} must be an int or {rank} of them, not {value!r}")
    return tuple(found * rank if len(found) == 1 else found)


def _on_batch(name: str, rank: int, input: Tensor, run: Callable[[Tensor], Tensor]) -> Tensor:
    """`run` on [N, C, …]; a single sample [C, …] gets a batch of one and loses it again."""
    if len(input.shape) == rank + 2:
        return run(input)
    if len(input.shape) != rank + 1:
        raise OpError(f"{name}: takes [N, C, …] or [C, …] with {rank} spatial dimensions, got {list(input.shape)}")
    out = run(F.reshape(input, (1, *input.shape)))
    return F.reshape(out, tuple(out.shape[1:]))


# ---------------------------------------------------------------------------------------------- padding


def _mode(name: str, mode: Any) -> str:
    if not isinstance(mode, str) or mode.lower() not in PADDING_MODES:
        raise OpError(f"{name}: padding_mode must be one of {', '.join(PADDING_MODES)}, not {mode!r}")
    return mode.lower()


def _sides(name: str, rank: int, mode: str, padding: Any, pre_padding: Any, post_padding: Any) -> Sides:
    """The explicit paddings: `padding` on both sides unless a side is given by itself. SAME padding takes none."""
    if mode.startswith("same") and any(p is not None and p != (0,) * rank and p != 0 for p in
                                       (padding, pre_padding, post_padding)):
        raise OpError(f'{name}: padding_mode "{mode}" works the paddings out; give none beside it')
    both = sizes_of(name, "padding", padding, rank)
    return (
        both if pre_padding is None else sizes_of(name, "pre_padding", pre_padding, rank),
        both if post_padding is None else sizes_of(name, "post_padding", post_padding, rank),
    )


def _halved(total: Sequence[int], lower: bool) -> Sides:
    """SAME padding shared out; an odd element goes behind, or with `lower` in front."""
    small, large = tuple(p // 2 for p in total), tuple(p - p // 2 for p in total)
    return (large, small) if lower else (small, large)


def _same(name: str, sizes: Sequence[Dimension], extents: Sequence[int], stride: Sequence[int], lower: bool) -> Sides:
    """The paddings with which ⌈I / S⌉ outputs use every element: P = max((O − 1)·S + DK − I, 0)."""
    total = []
    for n, k, s in zip(sizes, extents, stride, strict=True):
        out = dims.ceil_div(n, s)
        needed = dims.maximum(dims.add(dims.mul(dims.add(out, -1), s), k, dims.mul(n, -1)), 0)
        if not isinstance(needed, int):
            raise OpError(
                f"{name}: SAME padding of a size that is only known at run time, {n}, with stride {s}: it would depend "
                "on that size; give pre_padding and post_padding"
            )
        total.append(needed)
    return _halved(total, lower)


def _extents(kernel: Sequence[int], dilation: Sequence[int]) -> tuple[int, ...]:
    return tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True))


def _kernel(name: str, weight: Tensor, rank: int) -> tuple[int, ...]:
    if len(weight.shape) != rank + 2:
        raise OpError(f"{name}: the weight must have {rank + 2} dimensions, got {list(weight.shape)}")
    return tuple(known_size(weight, 2 + i, name) for i in range(rank))


# ---------------------------------------------------------------------------------------------- convolution


def _conv(
    rank: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Sizes | str,
    dilation: Sizes,
    groups: int,
    pre_padding: Sizes | None,
    post_padding: Sizes | None,
    padding_mode: str,
) -> Tensor:
    name = f"conv{rank}d"
    mode = _mode(name, padding_mode)
    steps, spread = sizes_of(name, "stride", stride, rank), sizes_of(name, "dilation", dilation, rank)
    extents = _extents(_kernel(name, weight, rank), spread)
    if isinstance(padding, str):
        if padding not in ("valid", "same"):
            raise OpError(f'{name}: padding must be ints, "valid" or "same", not {padding!r}')
        if padding == "same" and any(s != 1 for s in steps):
            raise OpError(f'{name}: padding "same" needs stride 1, not {steps}')
        mode, padding = ("same_upper", 0) if padding == "same" else (mode, 0)

    sides = _sides(name, rank, mode, padding, pre_padding, post_padding)

    def run(x: Tensor) -> Tensor:
        before, after = sides
        if mode.startswith("same"):
            before, after = _same(name, x.shape[2:], extents, steps, mode == "same_lower")
        if mode == "explicit_round_up":  # ⌈n / S⌉ = ⌊(n + S − 1) / S⌋: the last output reads zeros behind x
            after = tuple(p + s - 1 for p, s in zip(after, steps, strict=True))
        return F.conv(
            x, weight, *[] if bias is None else [bias], stride=steps, pre_padding=before, post_padding=after,
            dilation=spread, groups=groups,
        )  # fmt: skip

    return _on_batch(name, rank, input, run)


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    pre_padding: Sizes | None = None,
    post_padding: Sizes | None = None,
    padding_mode: str = "explicit_round_down",
) -> Tensor:
    """Convolution over one dimension; arguments as conv2d. A weight [O, C/groups, K, 1], as old code has it, is taken.

    Raises:
        OpError: as conv2d.
    """
    if len(weight.shape) == 4 and weight.shape[3] == 1:
        weight = F.reshape(weight, tuple(weight.shape[:3]))
    return _conv(
        1, input, weight, bias, stride, padding, dilation, groups, pre_padding, post_padding, padding_mode
    )  # fmt: skip


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = (1, 1),
    padding: Sizes | str = (0, 0),
    dilation: Sizes = (1, 1),
    groups: int = 1,
    pre_padding: Sizes | None = None,
    post_padding: Sizes | None = None,
    padding_mode: str = "explicit_round_down",
) -> Tensor:
    """Convolution over two dimensions: [N, C, H, W] with weight [O, C/groups, *K] → [N, O, H', W'].

    Args:
        padding: zeros on both sides, or "valid" (none), or "same" (as many as keep the size; stride 1 only).
        pre_padding, post_padding: zeros in front and behind, instead of `padding`.
        padding_mode: "explicit_round_down" and "explicit_round_up" say what becomes of a last window that does not
            fit, O = (I + B + A − DK) / S + 1; "same_upper" and "same_lower" pad for O = ⌈I / S⌉ themselves, an odd
            zero behind or in front.

    Raises:
        OpError: shapes, dtypes or arguments that do not fit; SAME padding that depends on a size of run time.
    """
    return _conv(2, input, weight, bias, stride, padding, dilation, groups, pre_padding, post_padding, padding_mode)


def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = (1, 1, 1),
    padding: Sizes | str = (0, 0, 0),
    dilation: Sizes = (1, 1, 1),
    groups: int = 1,
    pre_padding: Sizes | None = None,
    post_padding: Sizes | None = None,
    padding_mode: str = "explicit_round_down",
) -> Tensor:
    """Convolution over three dimensions; arguments as conv2d."""
    return _conv(3, input, weight, bias, stride, padding, dilation, groups, pre_padding, post_padding, padding_mode)


# ---------------------------------------------------------------------------------------------- transposed convolution


def _transposed(
    rank: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Sizes,
    output_padding: Sizes,
    groups: int,
    dilation: Sizes,
    pre_padding: Sizes | None,
    post_padding: Sizes | None,
    padding_mode: str,
) -> Tensor:
    name = f"conv_transpose{rank}d"
    mode = _mode(name, padding_mode)
    steps, spread = sizes_of(name, "stride", stride, rank), sizes_of(name, "dilation", dilation, rank)
    more = sizes_of(name, "output_padding", output_padding, rank)
    for i, (size, s, d) in enumerate(zip(more, steps, spread, strict=True)):
        if not 0 <= size < max(s, d, 1):
            raise OpError(
                f"{name}: output_padding of spatial dimension {i} is {size}; it must be at least 0 and below "
                f"{max(s, d, 1)}, the larger of stride {s} and dilation {d}"
            )
    before, after = _sides(name, rank, mode, padding, pre_padding, post_padding)  # no division here: nothing to round
    if mode.startswith("same"):
        extents = _extents(_kernel(name, weight, rank), spread)
        before, after = _halved([max(k - s, 0) for k, s in zip(extents, steps, strict=True)], mode == "same_lower")
    return _on_batch(
        name,
        rank,
        input,
        lambda x: F.conv_transpose(
            x, weight, *[] if bias is None else [bias], stride=steps, pre_padding=before,
            post_padding=tuple(a - o for a, o in zip(after, more, strict=True)), dilation=spread, groups=groups,
        ),
    )  # fmt: skip


def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    pre_padding: Sizes | None = None,
    post_padding: Sizes | None = None,
    padding_mode: str = "explicit_round_down",
) -> Tensor:
    """Transposed convolution over one dimension; arguments as conv_transpose2d."""
    return _transposed(
        1, input, weight, bias, stride, padding, output_padding, groups, dilation, pre_padding, post_padding,
        padding_mode,
    )  # fmt: skip


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = (1, 1),
    padding: Sizes = (0, 0),
    output_padding: Sizes = (0, 0),
    dilation: Sizes = (1, 1),
    groups: int = 1,
    pre_padding: Sizes | None = None,
    post_padding: Sizes | None = None,
    padding_mode: str = "explicit_round_down",
) -> Tensor:
    """Transposed convolution over two dimensions: [N, C, H, W] with weight [C, O/groups, *K] → [N, O, H', W'].

    O = (I − 1)·S + DK − (B + A) + output_padding with DK = dilation·(K − 1) + 1. The order of the arguments is the
    retired API's; torch has groups before dilation.

    Args:
        padding: rows cut from both sides of the whole result.
        output_padding: rows that are left on at the end after all, 0 ≤ OP < max(S, D).
        pre_padding, post_padding: what is cut in front (B) and behind (A), instead of `padding`; may be negative.
        padding_mode: both explicit ones mean the same here; "same_upper" and "same_lower" cut max(DK − S, 0), an odd
            row behind or in front, so that O = min(I·S, (I − 1)·S + DK).

    Raises:
        OpError: shapes, dtypes or arguments that do not fit.
    """
    return _transposed(
        2, input, weight, bias, stride, padding, output_padding, groups, dilation, pre_padding, post_padding,
        padding_mode,
    )  # fmt: skip


def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = (1, 1, 1),
    padding: Sizes = (0, 0, 0),
    output_padding: Sizes = (0, 0, 0),
    dilation: Sizes = (1, 1, 1),
    groups: int = 1,
    pre_padding: Sizes | None = None,
    post_padding: Sizes | None = None,
    padding_mode: str = "explicit_round_down",
) -> Tensor:
    """Transposed convolution over three dimensions; arguments as conv_transpose2d."""
    return _transposed(
        3, input, weight, bias, stride, padding, output_padding, groups, dilation, pre_padding, post_padding,
        padding_mode,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------- pooling


def _avg_pool(
    rank: int,
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None,
    padding: Sizes,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    name = f"avg_pool{rank}d"
    kernel, around = sizes_of(name, "kernel_size", kernel_size, rank), sizes_of(name, "padding", padding, rank)
    steps = kernel if stride is None else sizes_of(name, "stride", stride, rank)
    return _on_batch(
        name,
        rank,
        input,
        lambda x: F.avg_pool(
            x, kernel=kernel, stride=steps, pre_padding=around, post_padding=around, ceil_mode=ceil_mode,
            count_include_pad=count_include_pad, divisor=divisor_override,
        ),
    )  # fmt: skip


def avg_pool1d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The means of windows over one dimension; arguments as avg_pool2d."""
    return _avg_pool(1, input, kernel_size, stride, padding, ceil_mode, count_include_pad, None)


def avg_pool2d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = (0, 0),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The means of windows: [N, C, H, W] or [C, H, W] → the same with fewer rows and columns.

    Args:
        stride: from one window to the next, default kernel_size.
        padding: zeros on both sides, fewer than the kernel has.
        ceil_mode: whether a last window that does not fit still counts (if it begins inside the input or the padding
            before it).
        count_include_pad: whether padding counts as elements.
        divisor_override: divides every sum, instead of the number of elements.
    """
    return _avg_pool(2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def avg_pool3d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = (0, 0, 0),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The means of windows over three dimensions; arguments as avg_pool2d."""
    return _avg_pool(3, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def _max_pool(
    rank: int,
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None,
    padding: Sizes,
    dilation: Sizes,
    ceil_mode: bool,
) -> Tensor:
    name = f"max_pool{rank}d"
    kernel, around = sizes_of(name, "kernel_size", kernel_size, rank), sizes_of(name, "padding", padding, rank)
    steps = kernel if stride is None else sizes_of(name, "stride", stride, rank)
    spread = sizes_of(name, "dilation", dilation, rank)
    return _on_batch(
        name,
        rank,
        input,
        lambda x: F.max_pool(
            x, kernel=kernel, stride=steps, pre_padding=around, post_padding=around, dilation=spread,
            ceil_mode=ceil_mode,
        ),
    )  # fmt: skip


def max_pool1d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """The largest elements of windows over one dimension; arguments as max_pool2d."""
    return _max_pool(1, input, kernel_size, stride, padding, dilation, ceil_mode)


def max_pool2d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """The largest elements of windows, NaN where one is: [N, C, H, W] or [C, H, W].

    Args:
        stride: from one window to the next, default kernel_size.
        padding: places on both sides that never win.
        dilation: from one element of a window to the next.
        ceil_mode: as in avg_pool2d.
    """
    return _max_pool(2, input, kernel_size, stride, padding, dilation, ceil_mode)


def max_pool3d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """The largest elements of windows over three dimensions; arguments as max_pool2d."""
    return _max_pool(3, input, kernel_size, stride, padding, dilation, ceil_mode)


def _adaptive(name: str, rank: int, input: Tensor, output_size: Any, kind: str) -> Tensor:
    single = output_size is None or not isinstance(output_size, list | tuple)
    wanted = [output_size] * rank if single else list(output_size)
    if len(wanted) != rank or not all(n is None or _is_size(n) for n in wanted):
        raise OpError(
            f"{name}: output_size must be a positive int, a dim, None, or {rank} of them, not {output_size!r}"
        )

    def run(x: Tensor) -> Tensor:
        sizes = tuple(x.shape[2 + i] if n is None else dims.as_dim(n) for i, n in enumerate(wanted))
        if sizes == x.shape[2:]:
            return x
        if all(n == 1 for n in sizes):  # of every element type, float64 too
            reduce = F.reduce_mean if kind == "average" else F.reduce_max
            return reduce(x, axes=tuple(range(2, rank + 2)), keepdims=True)
        return F.adaptive_pool(x, sizes=sizes, kind=kind)

    return _on_batch(name, rank, input, run)


def _is_size(n: Any) -> bool:
    return n >= 1 if type(n) is int else isinstance(n, dims.Expr)


def adaptive_avg_pool1d(input: Tensor, output_size: Any) -> Tensor:
    """Means of as many windows as output_size says; arguments as adaptive_avg_pool2d."""
    return _adaptive("adaptive_avg_pool1d", 1, input, output_size, "average")


def adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    """Means of windows that give `output_size` rows and columns: window i of O goes from ⌊i·S/O⌋ to ⌈(i+1)·S/O⌉.

    Args:
        output_size: a positive int, a dim, or None, which keeps a size; one for all dimensions or one each.

    Raises:
        OpError: sizes of another number, or that are none.
    """
    return _adaptive("adaptive_avg_pool2d", 2, input, output_size, "average")


def adaptive_avg_pool3d(input: Tensor, output_size: Any) -> Tensor:
    """The same over three dimensions; arguments as adaptive_avg_pool2d."""
    return _adaptive("adaptive_avg_pool3d", 3, input, output_size, "average")


def adaptive_max_pool1d(input: Tensor, output_size: Any) -> Tensor:
    """The largest elements of as many windows as output_size says; arguments as adaptive_avg_pool2d."""
    return _adaptive("adaptive_max_pool1d", 1, input, output_size, "greatest")


def adaptive_max_pool2d(input: Tensor, output_size: Any) -> Tensor:
    """The largest elements of windows, NaN where one is; arguments as adaptive_avg_pool2d."""
    return _adaptive("adaptive_max_pool2d", 2, input, output_size, "greatest")


def adaptive_max_pool3d(input: Tensor, output_size: Any) -> Tensor:
    """The same over three dimensions; arguments as adaptive_avg_pool2d."""
    return _adaptive("adaptive_max_pool3d", 3, input, output_size, "greatest")


def _lp_pool(
    rank: int, input: Tensor, norm_type: float, kernel_size: Sizes, stride: Sizes | None, ceil_mode: bool
) -> Tensor:
    """torch's: (Σ x^p)^(1/p); a sum below zero has no such root, and gives NaN."""
    name = f"lp_pool{rank}d"
    p = float(norm_type)
    if not 0 < p < float("inf"):
        raise OpError(f"{name}: norm_type must be above 0 and finite, not {norm_type!r}")
    count = math.prod(sizes_of(name, "kernel_size", kernel_size, rank))
    wide = F.cast(input, dtypes.float32) if dtypes.get(input.dtype).bits < 32 else input
    mean = _avg_pool(rank, F.pow(wide, p), kernel_size, stride, 0, ceil_mode, True, None)
    whole = F.mul(mean, float(count))  # a window beyond the edge is a mean of fewer, as torch has it
    return F.cast(F.pow(whole, 1.0 / p), input.dtype)


def lp_pool1d(
    input: Tensor, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
) -> Tensor:
    """Power means of windows; arguments as lp_pool2d."""
    return _lp_pool(1, input, norm_type, kernel_size, stride, ceil_mode)


def lp_pool2d(
    input: Tensor, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
) -> Tensor:
    """(Σ x^p)^(1/p) of windows: [N, C, H, W] or [C, H, W] → the same with fewer rows and columns.

    Args:
        norm_type: p, above 0.
        stride: from one window to the next, default kernel_size.
        ceil_mode: as in avg_pool2d; what a window lacks counts as its mean.

    Raises:
        OpError: shapes, dtypes or arguments that do not fit.
    """
    return _lp_pool(2, input, norm_type, kernel_size, stride, ceil_mode)


def lp_pool3d(
    input: Tensor, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
) -> Tensor:
    """Power means of windows over three dimensions; arguments as lp_pool2d."""
    return _lp_pool(3, input, norm_type, kernel_size, stride, ceil_mode)
