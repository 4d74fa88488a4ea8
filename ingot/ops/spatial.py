"""Convolution and transposed convolution over one, two or three spatial dimensions, and what pooling shares with them.

Tensors are [N, C, *S]; with `channels_last` they are [N, *S, C], while a weight keeps its layout. Paddings are given
per side. Floats accumulate in float32 (float64 in float64) and round once.
"""
from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot.dims import Dimension
from ingot.ir import Case, F, Op, Spec, op, require
from ingot.ir.expr import integer_range
from ingot.ir.spec import Shape, elements
from ingot.ops.common import (
    PYTHON_STEPS,
    Array,
    bf16,
    f16,
    f32,
    f64,
    i32,
    minus,
    product_steps,
    require_float,
    rounded,
    same_dtype,
    show,
    torch_wide,
    widen,
)
from ingot.ops.in_torch import by_simpler_ops

# ---------------------------------------------------------------------------------------------- shapes


def sizes_of(x: Spec, channels_last: bool) -> tuple[Dimension, Shape, Dimension]:
    """Batch, spatial sizes and channels of x."""
    require(3 <= len(x.shape) <= 5,
            f"x must be {'[N, *S, C]' if channels_last else '[N, C, *S]'} with one to three spatial dimensions, got "
            f"{show(x.shape)}; unsqueeze the batch dimension of a single sample")
    batch, *rest = x.shape
    sizes, channels = (tuple(rest[:-1]), rest[-1]) if channels_last else (tuple(rest[1:]), rest[0])
    require(all(n != 0 for n in sizes), f"x has no elements in a spatial dimension: {show(sizes)}")
    return batch, sizes, channels


def shape_of(batch: Dimension, sizes: Sequence[Dimension], channels: Dimension, channels_last: bool) -> Shape:
    return (batch, *sizes, channels) if channels_last else (batch, channels, *sizes)


def require_result_sizes(sizes: Shape, rank: int) -> None:
    """Sizes that an op's attribute gives its result: one per spatial dimension, none below 1."""
    require(len(sizes) == rank,
            f"sizes needs one entry for each of the {rank} spatial dimensions, got {list(sizes)}")
    require(all(dims.bounds(n)[1] >= 1 for n in sizes), f"sizes must be at least 1, got {list(sizes)}")


MAX_ENTRY = 2**31 - 1  # of a stride, padding, …: their sums and products stay far inside 64 bits


def require_entries(rank: int, least: int | None, **attributes: tuple[int, ...]) -> None:
    """One entry per spatial dimension, none below `least`."""
    for name, values in attributes.items():
        require(len(values) == rank, f"{name} needs one entry for each of the {rank} spatial dimensions, got {values}")
        require(least is None or all(v >= least for v in values), f"{name} must be at least {least}, got {values}")
        require(all(abs(v) <= MAX_ENTRY for v in values), f"{name} must be at most {MAX_ENTRY}, got {values}")


def extent(kernel: int, dilation: int) -> int:
    """How many elements of a dimension a kernel spans."""
    return dilation * (kernel - 1) + 1


def require_sizes(sizes: Sequence[Dimension], rule: Callable[[int], str], channels_last: bool) -> None:
    """Every spatial size of a result is at least 1 (or may be: an unknown one is checked when it is known).

    rule: how size i came about, for the message.
    """
    for i, size in enumerate(sizes):
        if dims.bounds(size)[1] < 1:
            require(False, f"dimension {i + (1 if channels_last else 2)} of the result would have size {size} = "
                    f"{rule(i)}; it must be at least 1")


# ---------------------------------------------------------------------------------------------- arrays


def known_sizes(sizes: Sequence[Dimension], given: Sequence[int]) -> list[int]:
    """The spatial sizes of a result of an x with those `given`, which only this run may have shown to be impossible."""
    found = [int(n) for n in sizes]
    require(min(found) >= 0, f"x has spatial sizes {show(given)}: the result would have {show(found)}")
    return found


def channels_first(x: Any, channels_last: bool) -> Any:
    """An array or torch tensor as [N, C, *S]."""
    if not channels_last:
        return x
    return np.moveaxis(x, -1, 1) if isinstance(x, np.ndarray) else x.movedim(-1, 1)


def as_given(y: Any, channels_last: bool) -> Any:
    """[N, C, *S] in the layout that was asked for."""
    if not channels_last:
        return y
    return np.ascontiguousarray(np.moveaxis(y, 1, -1)) if isinstance(y, np.ndarray) else y.movedim(1, -1)


def padded(x: Array, before: Sequence[int], after: Sequence[int], value: float = 0.0) -> Array:
    """x [N, C, *S] with `value` around the spatial dimensions; negative counts cut off, after the others have added."""
    widths = [(max(a, 0), max(b, 0)) for a, b in zip(before, after, strict=True)]
    wide = np.pad(x, [(0, 0), (0, 0), *widths], constant_values=value)
    cut = [slice(max(-a, 0), n - max(-b, 0)) for n, a, b in zip(wide.shape[2:], before, after, strict=True)]
    return wide[(slice(None), slice(None), *cut)]


def working_padded(x: Spec, sizes: Sequence[int], channels: Dimension, channels_last: bool) -> int:
    """The bytes of an array of x's batch with these spatial sizes and channels, as it is computed on."""
    batch = sizes_of(x, channels_last)[0]
    return 2 * math.prod(map(int, (batch, *sizes, channels))) * max(x.dtype.numpy.itemsize, 4)


def tap_steps(kernel: Sequence[int], products: int, x: Spec) -> int:
    """Op.steps of a walk over the positions of a kernel, with so many multiplications."""
    return math.prod(kernel) * PYTHON_STEPS + product_steps(products, x.dtype)


def torch_padded(torch: Any, x: Any, before: Sequence[int], after: Sequence[int], value: float = 0.0) -> Any:
    """The same of a torch tensor: adds first, then cuts, as a negative count may exceed the size."""
    for part in (max, min):
        pairs = [(part(a, 0), part(b, 0)) for a, b in zip(before, after, strict=True)]
        x = torch.nn.functional.pad(x, [n for pair in reversed(pairs) for n in pair], value=value)
    return x


def taps(kernel: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every position of a kernel, in row-major order."""
    return itertools.product(*map(range, kernel))


def at_tap(tap: Sequence[int]) -> tuple[Any, ...]:
    """The index of one kernel position in a weight."""
    return (..., *tap)


def window(x: Array, tap: Sequence[int], sizes: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Array:
    """The elements of padded x [N, C, *S] that one kernel position meets, one for each of `sizes` outputs."""
    at = [slice(k * d, k * d + (n - 1) * s + 1, s) for k, n, s, d in zip(tap, sizes, stride, dilation, strict=True)]
    return x[(slice(None), slice(None), *at)]


def at(rank: int, *, pre: Any = 0, post: Any = None, stride: Any = 1, dilation: Any = 1, **more: Any) -> dict[str, Any]:
    """The attributes of a case: an int stands for one in each dimension, and post_padding is pre_padding by default."""
    every = {"stride": stride, "pre_padding": pre, "post_padding": pre if post is None else post, "dilation": dilation}
    return {name: (v,) * rank if isinstance(v, int) else v for name, v in every.items()} | more


# ---------------------------------------------------------------------------------------------- the ops


def _check_bias(bias: Spec | None, outputs: Dimension, x: Spec) -> None:
    if bias is not None:
        require(bias.shape == (outputs,), f"bias must have shape {show((outputs,))}, one entry per output channel")
        same_dtype(x=x, bias=bias)


def _kernel_of(weight: Spec, rank: int, layout: str) -> tuple[int, ...]:
    require(len(weight.shape) == rank + 2, f"weight must have rank {rank + 2}: {layout}, got {show(weight.shape)}")
    kernel = weight.shape[2:]
    require(all(isinstance(k, int) and k >= 1 for k in kernel),
            f"the kernel's sizes must be known and at least 1, got {show(kernel)}")
    return tuple(k for k in kernel if isinstance(k, int))


def _grouped(x: Array, groups: int) -> Array:
    """[N, C, *S] → [N, G, C/G, elements]"""
    return x.reshape(x.shape[0], groups, x.shape[1] // groups, int(np.prod(x.shape[2:])))


def _add_bias(y: Array, bias: Array | None) -> Array:
    return y if bias is None else y + widen(bias).reshape(-1, *[1] * (y.ndim - 2))


@op("conv")
class Conv(Op):
    """Convolution of x [N, C, *S] with weight [O, C/groups, *K], plus bias [O] → [N, O, *S'].

    y[n, o, p] = Σ x[n, c, p·stride − pre_padding + k·dilation] · weight[o, c, k] over kernel positions k and the
    channels c of o's group; zero outside of x. S' = ⌊(S + pre + post − dilation·(K − 1) − 1) / stride⌋ + 1.
    """

    stride: tuple[int, ...]
    pre_padding: tuple[int, ...]
    post_padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    channels_last: bool = False
    stored = ("weight", "bias")
    cases = (
        Case("3×3 with padding, a bias", (f32(2, 3, 8, 7), f32(5, 3, 3, 3), f32(5)), at(2, pre=1)),
        Case("the same, its weight computed", (f32(2, 3, 8, 7), f32(5, 3, 3, 3), f32(5)), at(2, pre=1), stored=()),
        Case("a computed weight of groups, bfloat16, an odd number of products",
             (bf16(2, 9, 8, 7), bf16(6, 3, 3, 3), bf16(6)), at(2, pre=1, stride=2, groups=3), stored=()),
        Case("a computed weight of every channel by itself", (f32(2, 35, 6, 6), f32(35, 1, 3, 3)),
             at(2, pre=1, groups=35), stored=()),
        Case("a computed weight of 1×1", (f16(2, 5, 6, 40), f16(33, 40, 1, 1), f16(33)), at(2, channels_last=True),
             stored=()),
        Case("a computed weight, sizes unknown", (f32("N", 3, "L"), f32(4, 3, 3)), at(1, pre=(2,), post=(0,)),
             stored=()),
        Case("1×1 is a matrix product", (f32(2, 40, 5, 6), f32(33, 40, 1, 1)), at(2)),
        Case("the same, channels last", (f32(2, 5, 6, 40), f32(33, 40, 1, 1), f32(33)), at(2, channels_last=True)),
        Case("1×1 with a stride leaves elements out", (f32(1, 8, 7, 6), f32(4, 8, 1, 1)), at(2, stride=(2, 3))),
        Case("1-D, stride and dilation", (f32(2, 4, 19), f32(6, 4, 3), f32(6)), at(1, stride=2, dilation=2, pre=2)),
        Case("3-D", (f32(1, 3, 4, 5, 6), f32(4, 3, 2, 3, 1)), at(3, stride=(1, 2, 1), pre=(1, 1, 0))),
        Case("9×1 over time, channels last", (f32(2, 12, 18, 8), f32(8, 8, 9, 1), f32(8)),
             at(2, stride=(2, 1), pre=(4, 0), channels_last=True)),
        Case("padding of one side only", (f32(1, 2, 6, 6), f32(3, 2, 3, 3)), at(2, pre=(0, 2), post=(1, 0))),
        Case("padding beyond the kernel: whole windows of zeros", (f32(1, 2, 3), f32(3, 2, 2), f32(3)),
             at(1, pre=4, post=5)),
        Case("groups", (f32(2, 6, 5, 5), f32(9, 2, 3, 3), f32(9)), at(2, pre=1, groups=3)),
        Case("groups, channels last", (f32(2, 5, 5, 6), f32(9, 2, 3, 3)), at(2, pre=1, groups=3, channels_last=True)),
        Case("a channel is a group: depthwise", (f32(2, 35, 6, 6), f32(35, 1, 3, 3), f32(35)),
             at(2, pre=1, groups=35)),
        Case("depthwise with two outputs a channel", (f32(1, 4, 6), f32(8, 1, 3)), at(1, pre=1, groups=4)),
        Case("batch and sizes unknown", (f32("N", 3, "H", "W"), f32(4, 3, 3, 3), f32(4)),
             at(2, stride=(2, 1), pre=1)),
        Case("bfloat16 rounds once", (bf16(1, 24, 6, 6), bf16(33, 24, 3, 3), bf16(33)), at(2, pre=1)),
        Case("float16 rounds once, an odd number of products", (f16(1, 3, 9), f16(5, 3, 3), f16(5)), at(1, pre=1)),
        Case("float64 has no kernel", (f64(1, 3, 9), f64(5, 3, 3)), at(1, pre=1), host="the kernels take no float64"),
        Case("no samples", (f32(0, 3, 8), f32(4, 3, 3)), at(1)),
        Case("nothing to convolve", (f32(1, 3, 0), f32(4, 3, 1)), at(1, pre=1), error="x has no elements in a spatial"),
        Case("the kernel is larger than x", (f32(1, 3, 8, 2), f32(4, 3, 3, 3)), at(2),
             error=r"dimension 3 of the result would have size 0 = \(2 \+ 0 \+ 0 - 3\) // 1 \+ 1; it must be at le"),
        Case("other channels", (f32(1, 4, 8), f32(4, 3, 3)), at(1),
             error="x has 4 channels; weight and groups want 3 · 1 = 3"),
        Case("outputs that do not divide", (f32(1, 4, 8), f32(5, 2, 3)), at(1, groups=2),
             error="5 output channels are not a multiple of 2 groups"),
        Case("no groups", (f32(1, 4, 8), f32(4, 4, 3)), at(1, groups=0), error="groups must be at least 1, got 0"),
        Case("a stride of 0", (f32(1, 4, 8), f32(4, 4, 3)), at(1, stride=0),
             error=r"stride must be at least 1, got \(0,\)"),
        Case("a dilation of 0", (f32(1, 4, 8), f32(4, 4, 3)), at(1, dilation=0), error="dilation must be at least 1"),
        Case("a padding beyond 32 bits", (f32(1, 4, 8), f32(4, 4, 3)), at(1, pre=2**31), error="at most 2147483647"),
        Case("a negative padding", (f32(1, 4, 8), f32(4, 4, 3)), at(1, post=-1),
             error="post_padding must be at least 0"),
        Case("too few entries", (f32(1, 4, 8, 8), f32(4, 4, 3, 3)), at(2, stride=(1,)),
             error="stride needs one entry for each of the 2 spatial dimensions"),
        Case("a weight of another rank", (f32(1, 4, 8, 8), f32(4, 4, 3)), at(2),
             error=r"weight must have rank 4: \[O, C/groups, \*K\]"),
        Case("a kernel of unknown size", (f32(1, 4, 8), f32(4, 4, "K")), at(1), error="kernel's sizes must be known"),
        Case("a kernel of nothing", (f32(1, 4, 8), f32(4, 4, 0)), at(1),
             error="kernel's sizes must be known and at least 1"),
        Case("no batch dimension", (f32(4, 8), f32(4, 4, 3)), at(1), error="unsqueeze the batch dimension"),
        Case("a bias of another size", (f32(1, 4, 8), f32(5, 4, 3), f32(4)), at(1),
             error=r"bias must have shape \(5,\)"),
        Case("dtypes differ", (bf16(1, 4, 8), f32(5, 4, 3)), at(1), error="x is bfloat16 and weight is float32"),
        Case("a bias of another dtype", (bf16(1, 4, 8), bf16(5, 4, 3), f32(5)), at(1),
             error="x is bfloat16 and bias is float32"),
        Case("integers", (i32(1, 4, 8), i32(5, 4, 3)), at(1), error="x must be float32"),
        Case("a result beyond every memory", (f32(1 << 30, 3, 1 << 30), f32(5, 3, 3)), at(1, pre=1), error="too large"),
    )

    def infer(self, x: Spec, weight: Spec, bias: Spec | None = None) -> Spec:
        require_float(x=x)
        same_dtype(x=x, weight=weight)
        batch, sizes, channels = sizes_of(x, self.channels_last)
        rank = len(sizes)
        require_entries(rank, 1, stride=self.stride, dilation=self.dilation)
        require_entries(rank, 0, pre_padding=self.pre_padding, post_padding=self.post_padding)
        require(self.groups >= 1, f"groups must be at least 1, got {self.groups}")
        kernel = _kernel_of(weight, rank, "[O, C/groups, *K]")
        outputs, inner = weight.shape[:2]
        wanted = dims.mul(inner, self.groups)
        require(channels == wanted,
                f"x has {channels} channels; weight and groups want {inner} · {self.groups} = {wanted}")
        require(dims.mod(outputs, self.groups) == 0,
                f"{outputs} output channels are not a multiple of {self.groups} groups")
        _check_bias(bias, outputs, x)
        out = self.windows(sizes, kernel)

        def rule(i: int) -> str:
            span = extent(kernel[i], self.dilation[i])
            return f"({sizes[i]} + {self.pre_padding[i]} + {self.post_padding[i]} - {span}) // {self.stride[i]} + 1"

        require_sizes(out, rule, self.channels_last)
        return Spec(shape_of(batch, out, outputs, self.channels_last), x.dtype)

    def windows(self, sizes: Sequence[Dimension], kernel: Sequence[int]) -> list[Dimension]:
        """How often the kernel fits into each dimension."""
        each = zip(sizes, kernel, self.stride, self.pre_padding, self.post_padding, self.dilation, strict=True)
        return [dims.add(dims.floordiv(dims.add(n, a, b, -extent(k, d)), s), 1) for n, k, s, a, b, d in each]

    def working(self, x: Spec, weight: Spec, bias: Spec | None = None) -> int:
        _, sizes, channels = sizes_of(x, self.channels_last)
        around = map(sum, zip(x.like(shape=sizes).evaluate({}), self.pre_padding, self.post_padding, strict=True))
        return working_padded(x, list(around), channels, self.channels_last)

    def steps(self, x: Spec, weight: Spec, bias: Spec | None = None) -> int:
        each = math.prod(weight.evaluate({})[1:])  # multiplications for an element of the result
        return tap_steps(weight.evaluate({})[2:], each * int(self.infer(x, weight).elements), x)

    def reference(self, x: Array, weight: Array, bias: Array | None = None) -> Array:
        wide = channels_first(widen(x), self.channels_last)
        sizes = known_sizes(self.windows(wide.shape[2:], weight.shape[2:]), wide.shape[2:])
        wide = padded(wide, self.pre_padding, self.post_padding)
        w = widen(weight).reshape(self.groups, len(weight) // self.groups, *weight.shape[1:])
        y = np.zeros((len(x), self.groups, w.shape[1], int(np.prod(sizes))), wide.dtype)
        with np.errstate(all="ignore"):
            for tap in taps(weight.shape[2:]) if weight.size else ():  # of no channels a kernel may have any size
                y += w[at_tap(tap)] @ _grouped(window(wide, tap, sizes, self.stride, self.dilation), self.groups)
            y = _add_bias(y.reshape(len(x), len(weight), *sizes), bias)
        return rounded(as_given(y, self.channels_last), x)

    def torch(self, torch: Any, x: Any, weight: Any, bias: Any = None) -> Any:
        wide = torch_padded(torch, torch_wide(channels_first(x, self.channels_last)), self.pre_padding,
                            self.post_padding)
        conv = getattr(torch.nn.functional, f"conv{len(self.stride)}d")
        y = conv(wide, torch_wide(weight), torch_wide(bias), self.stride, 0, self.dilation, self.groups)
        return as_given(y, self.channels_last).to(x.dtype)

    def sample(self, rng: np.random.Generator, *specs: Spec) -> tuple[Array, ...]:
        return sample_weighted(rng, specs)

    @classmethod
    def draw(cls, draw: Any) -> Case:
        rank, groups, last = draw.choice([1, 2, 3]), draw.choice([1, 1, 2, 3]), draw.boolean()
        kernel = tuple(draw.choice([1, 2, 3]) for _ in range(rank))
        attrs = draw_geometry(draw, rank) | {"groups": groups, "channels_last": last}
        attrs |= {name: tuple(draw.choice([0, 1, 2, 3]) for _ in range(rank)) for name in PADDING}
        least = [max(extent(k, d) - a - b, 1) for k, d, a, b in zip(
            kernel, attrs["dilation"], attrs["pre_padding"], attrs["post_padding"], strict=True)]
        sizes = [n + draw.choice([0, 1, 2, 5]) for n in least]
        inner, outputs = draw.choice([1, 2, 3, 8]), groups * draw.choice([1, 2, 5])
        dtype = draw.choice([dtypes.float32, dtypes.bfloat16, dtypes.float16])
        x = Spec(shape_of(draw.choice([0, 1, 2]), sizes, inner * groups, last), dtype)
        specs = (x, Spec((outputs, inner, *kernel), dtype), Spec((outputs,), dtype))
        return Case("random", specs[: draw.choice([2, 3])], attrs)


PADDING = ("pre_padding", "post_padding")


def sample_weighted(rng: np.random.Generator, specs: tuple[Spec, ...]) -> tuple[Array, ...]:
    """Normal numbers, so that a sum of products stays in float16's range."""
    return tuple(rng.standard_normal(s.evaluate({})).astype(s.dtype.numpy) for s in specs)


def draw_geometry(draw: Any, rank: int) -> dict[str, Any]:
    return {name: tuple(draw.choice([1, 1, 2, 3]) for _ in range(rank)) for name in ("stride", "dilation")}


@op("conv_integer")
class ConvInteger(Op):
    """Convolution of integers: x [N, C, *S] int32 with weight [O, C/groups, *K] int32 → [N, O, *S'] int32; sums wrap.

    Its sizes are those of conv. Where floats alone read what it sums of int8, it becomes a convolution of int8.
    """

    stride: tuple[int, ...]
    pre_padding: tuple[int, ...]
    post_padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    stored = ("weight",)
    cases = (
        Case("3×3 with padding", (i32(2, 3, 8, 7), i32(5, 3, 3, 3)), at(2, pre=1)),
        Case("its weight computed", (i32(2, 3, 8, 7), i32(5, 3, 3, 3)), at(2, pre=1), stored=()),
        Case("groups, stride and dilation", (i32(2, 6, 19), i32(4, 3, 3)),
             at(1, stride=2, dilation=2, pre=2, groups=2)),
        Case("3-D, sizes unknown", (i32("N", 2, "D", 5, 6), i32(4, 2, 2, 3, 1)),
             at(3, stride=(1, 2, 1), pre=(1, 1, 0))),
        Case("padding of one side only", (i32(1, 2, 6, 6), i32(3, 2, 3, 3)), at(2, pre=(0, 2), post=(1, 0))),
        Case("floats", (f32(1, 4, 8), f32(5, 4, 3)), at(1), error="x and weight must be int32, not float32"),
        Case("other channels", (i32(1, 4, 8), i32(4, 3, 3)), at(1), error="x has 4 channels; weight and groups want 3"),
    )

    @property
    def floats(self) -> Conv:
        """The same convolution of floats."""
        return Conv(self.stride, self.pre_padding, self.post_padding, self.dilation, self.groups)

    def infer(self, x: Spec, weight: Spec) -> Spec:
        require(x.dtype is weight.dtype is dtypes.int32,
                f"x and weight must be int32, not {x.dtype.name} and {weight.dtype.name}")
        found = self.floats.infer(x.like(dtype=dtypes.float64), weight.like(dtype=dtypes.float64))
        return found.like(dtype=dtypes.int32)

    def working(self, x: Spec, weight: Spec) -> int:
        return self.floats.working(x, weight) * math.prod(weight.evaluate({})[2:])

    def steps(self, x: Spec, weight: Spec) -> int:
        each = math.prod(weight.evaluate({})[1:])
        return tap_steps(weight.evaluate({})[2:], each * int(self.infer(x, weight).elements), x)

    def reference(self, x: Array, weight: Array) -> Array:
        sizes = known_sizes(self.floats.windows(x.shape[2:], weight.shape[2:]), x.shape[2:])
        wide = padded(x.astype(np.int64), self.pre_padding, self.post_padding)
        w = weight.astype(np.int64).reshape(self.groups, len(weight) // self.groups, *weight.shape[1:])
        y = np.zeros((len(x), self.groups, w.shape[1], int(np.prod(sizes))), np.int64)
        for tap in taps(weight.shape[2:]) if weight.size else ():
            y += w[at_tap(tap)] @ _grouped(window(wide, tap, sizes, self.stride, self.dilation), self.groups)
        return y.reshape(len(x), len(weight), *sizes).astype(np.int32)

    def decompose(self, x: Any, weight: Any) -> Any:
        """A product over its windows: axis by axis their places become channels, so no rank grows by more than one."""
        rank, kernel = len(self.stride), weight.shape[2:]
        counts = self.floats.windows(x.shape[2:], kernel)
        y = F.pad(x, (0, 0, *self.pre_padding), (0, 0, *self.post_padding), 0.0)
        for i, (taken, step, spread) in enumerate(zip(kernel, self.stride, self.dilation, strict=True)):
            y = F.unfold(y, axis=2 + i, size=extent(taken, spread), step=step)
            if spread > 1:
                last = len(y.shape) - 1
                y = F.slice(y, (0,) * (last + 1), (*y.shape[:last], taken), (*(1,) * last, spread))
            y = F.permute(y, (0, 1, 2 + rank, *range(2, 2 + rank)))
            y = F.reshape(y, (y.shape[0], y.shape[1] * taken, *y.shape[3:]))
        n, outputs, each = x.shape[0], weight.shape[0] // self.groups, math.prod(weight.shape[1:])
        y = F.reshape(y, (n, self.groups, each, elements(counts)))
        found = F.matmul(F.reshape(weight, (1, self.groups, outputs, each)), y)
        return F.reshape(found, (n, weight.shape[0], *counts))

    def torch(self, torch: Any, x: Any, weight: Any) -> Any:
        return by_simpler_ops(torch, self, (x, weight))

    def sample(self, rng: np.random.Generator, *specs: Spec) -> tuple[Array, ...]:
        low, high = integer_range(dtypes.int32)
        return tuple(rng.integers(low, high, s.shape, np.int32, endpoint=True) for s in specs)

    @classmethod
    def draw(cls, draw: Any) -> Case:
        case = Conv.draw(draw)
        x, weight = (s.like(dtype=dtypes.int32) for s in case.specs[:2])
        attrs = {name: v for name, v in case.attrs.items() if name != "channels_last"}
        if case.attrs["channels_last"]:
            x = x.like(shape=(x.shape[0], x.shape[-1], *x.shape[1:-1]))
        return Case("random", (x, weight), attrs)


@op("conv_transpose")
class ConvTranspose(Op):
    """Transposed convolution of x [N, C, *S] with weight [C, O/groups, *K], plus bias [O] → [N, O, *S'].

    Every x[n, c, i] adds x · weight[c, o, k] to y[n, o, i·stride − pre_padding + k·dilation]; what falls outside is
    dropped. S' = (S − 1)·stride + dilation·(K − 1) + 1 − (pre + post); a negative padding makes y larger. torch's
    output_padding is a post_padding that is smaller by as much.
    """

    stride: tuple[int, ...]
    pre_padding: tuple[int, ...]
    post_padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    channels_last: bool = False
    stored = ("weight", "bias")
    cases = (
        Case("doubles the size, as decoders do", (f32(2, 6, 4, 5), f32(6, 4, 3, 3), f32(4)),
             at(2, stride=2, pre=1, post=0)),
        Case("the same, its weight computed", (f32(2, 6, 4, 5), f32(6, 4, 3, 3), f32(4)),
             at(2, stride=2, pre=1, post=0), stored=()),
        Case("a computed weight of groups, bfloat16", (bf16(2, 6, 4, 5), bf16(6, 4, 3, 2), bf16(8)),
             at(2, stride=(2, 3), pre=1, post=0, dilation=(1, 2), groups=2), stored=()),
        Case("a computed weight of a volume", (f16("N", 3, 2, 3, "L"), f16(3, 2, 2, 3, 3)),
             at(3, stride=(1, 2, 2), pre=(0, 1, 0)), stored=()),
        Case("the same, channels last", (f32(2, 4, 5, 6), f32(6, 4, 3, 3), f32(4)),
             at(2, stride=2, pre=1, post=0, channels_last=True)),
        Case("stride 1 is a convolution", (f32(1, 3, 5, 5), f32(3, 4, 3, 3)), at(2)),
        Case("1-D", (f32(1, 1, 3), f32(1, 1, 2)), at(1, stride=2, pre=1, post=0)),
        Case("3-D", (f32(1, 3, 2, 3, 4), f32(3, 2, 2, 3, 1), f32(2)), at(3, stride=(2, 1, 3), pre=(0, 1, 0))),
        Case("a stride beyond the kernel: outputs that nothing reaches are the bias",
             (f32(1, 3, 4), f32(3, 2, 2), f32(2)), at(1, stride=5)),
        Case("the same without a bias: zeros", (f32(1, 4, 4, 3), f32(3, 2, 1, 2)),
             at(2, stride=(3, 5), channels_last=True)),
        Case("dilation and stride that share a factor", (f32(1, 3, 5), f32(3, 2, 3)),
             at(1, stride=2, dilation=2, pre=1)),
        Case("dilation and stride that share none", (f32(1, 3, 5), f32(3, 2, 3)),
             at(1, stride=3, dilation=2, pre=1, post=2)),
        Case("groups", (f32(2, 6, 4, 4), f32(6, 3, 3, 3), f32(9)), at(2, stride=2, pre=1, groups=3)),
        Case("groups, channels last", (f32(2, 4, 4, 6), f32(6, 3, 3, 3)),
             at(2, stride=2, pre=1, groups=3, channels_last=True)),
        Case("a channel is a group", (f32(1, 5, 6), f32(5, 1, 4), f32(5)), at(1, stride=2, pre=1, groups=5)),
        Case("negative padding on both sides", (f32(1, 2, 3), f32(2, 3, 2), f32(3)),
             at(1, stride=2, pre=-2, post=-3)),
        Case("a padding that cuts all but what the other side adds", (f32(1, 2, 3), f32(2, 3, 2), f32(3)),
             at(1, pre=6, post=-4)),
        Case("batch and sizes unknown", (f32("N", 4, "H", "W"), f32(4, 3, 2, 2), f32(3)), at(2, stride=2)),
        Case("bfloat16 rounds once", (bf16(1, 24, 4, 4), bf16(24, 33, 3, 3), bf16(33)), at(2, stride=2, pre=1)),
        Case("float16 rounds once", (f16(1, 3, 5), f16(3, 5, 3)), at(1, stride=2, pre=1)),
        Case("no samples", (f32(0, 3, 8), f32(3, 4, 3)), at(1, stride=2)),
        Case("nothing to convolve", (f32(1, 3, 0), f32(3, 4, 1)), at(1, pre=-1), error="x has no elements"),
        Case("padding that leaves nothing", (f32(1, 3, 2), f32(3, 4, 3)), at(1, pre=2),
             error=r"dimension 2 of the result would have size 0 = \(2 - 1\) \* 1 \+ 3 - 2 - 2; it must be at least 1"),
        Case("other channels", (f32(1, 4, 8), f32(3, 4, 3)), at(1),
             error=r"x has 4 channels and weight, \[C, O/groups, \*K\], takes 3"),
        Case("channels that do not divide", (f32(1, 3, 8), f32(3, 4, 3)), at(1, groups=2),
             error="3 channels are not a multiple of 2 groups"),
        Case("no groups", (f32(1, 4, 8), f32(4, 4, 3)), at(1, groups=-1), error="groups must be at least 1, got -1"),
        Case("a stride of 0", (f32(1, 4, 8), f32(4, 4, 3)), at(1, stride=0), error="stride must be at least 1"),
        Case("too few entries", (f32(1, 4, 8, 8), f32(4, 4, 3, 3)), at(2, post=(0,)),
             error="post_padding needs one entry for each of the 2 spatial dimensions"),
        Case("a weight of another rank", (f32(1, 4, 8, 8), f32(4, 4, 3)), at(2),
             error=r"weight must have rank 4: \[C, O/groups, \*K\]"),
        Case("a bias of another size", (f32(1, 4, 8), f32(4, 5, 3), f32(4)), at(1),
             error=r"bias must have shape \(5,\)"),
        Case("dtypes differ", (bf16(1, 4, 8), f32(4, 5, 3)), at(1), error="x is bfloat16 and weight is float32"),
        Case("integers", (i32(1, 4, 8), i32(4, 5, 3)), at(1), error="x must be float32"),
        Case("a result beyond every memory", (f32(1 << 30, 3, 1 << 30), f32(3, 4, 3)),
             at(1, stride=9, pre=1), error="too large"),
    )

    def infer(self, x: Spec, weight: Spec, bias: Spec | None = None) -> Spec:
        require_float(x=x)
        same_dtype(x=x, weight=weight)
        batch, sizes, channels = sizes_of(x, self.channels_last)
        rank = len(sizes)
        require_entries(rank, 1, stride=self.stride, dilation=self.dilation)
        require_entries(rank, None, pre_padding=self.pre_padding, post_padding=self.post_padding)
        require(self.groups >= 1, f"groups must be at least 1, got {self.groups}")
        kernel = _kernel_of(weight, rank, "[C, O/groups, *K]")
        require(channels == weight.shape[0],
                f"x has {channels} channels and weight, [C, O/groups, *K], takes {weight.shape[0]}")
        require(dims.mod(channels, self.groups) == 0, f"{channels} channels are not a multiple of {self.groups} groups")
        outputs = dims.mul(weight.shape[1], self.groups)
        _check_bias(bias, outputs, x)
        out = self.reached(sizes, kernel)

        def rule(i: int) -> str:
            span = extent(kernel[i], self.dilation[i])
            return f"({sizes[i]} - 1) * {self.stride[i]} + {span} - {self.pre_padding[i]} - {self.post_padding[i]}"

        require_sizes(out, rule, self.channels_last)
        return Spec(shape_of(batch, out, outputs, self.channels_last), x.dtype)

    def reached(self, sizes: Sequence[Dimension], kernel: Sequence[int]) -> list[Dimension]:
        """How far the kernel reaches in each dimension, without the padding."""
        each = zip(sizes, kernel, self.stride, self.pre_padding, self.post_padding, self.dilation, strict=True)
        return [dims.add(dims.mul(minus(n, 1), s), extent(k, d) - a - b) for n, k, s, a, b, d in each]

    def working(self, x: Spec, weight: Spec, bias: Spec | None = None) -> int:
        _, sizes, _ = sizes_of(x, self.channels_last)
        plain = dataclasses.replace(self, pre_padding=(0,) * len(sizes), post_padding=(0,) * len(sizes))
        full = x.like(shape=plain.reached(sizes, weight.evaluate({})[2:])).evaluate({})
        return working_padded(x, full, dims.mul(weight.shape[1], self.groups), self.channels_last)

    def steps(self, x: Spec, weight: Spec, bias: Spec | None = None) -> int:
        each = math.prod(weight.evaluate({})[1:])  # multiplications for an element of x
        return tap_steps(weight.evaluate({})[2:], each * int(x.elements), x)

    def reference(self, x: Array, weight: Array, bias: Array | None = None) -> Array:
        wide = channels_first(widen(x), self.channels_last)
        kernel, sizes = weight.shape[2:], wide.shape[2:]
        known_sizes(self.reached(sizes, kernel), sizes)
        w = widen(weight).reshape(self.groups, len(weight) // self.groups, *weight.shape[1:])
        outputs = weight.shape[1] * self.groups
        full = [max((n - 1) * s + extent(k, d), 0)  # a run may find no elements in x: then it ends before it begins
                for n, k, s, d in zip(sizes, kernel, self.stride, self.dilation, strict=True)]
        y = np.zeros((len(x), outputs, *full), wide.dtype)
        with np.errstate(all="ignore"):
            for tap in taps(kernel) if weight.size else ():
                part = np.swapaxes(w[at_tap(tap)], -1, -2) @ _grouped(wide, self.groups)
                at = window(y, tap, sizes, self.stride, self.dilation)  # a view: adding to it adds to y
                at += part.reshape(len(x), outputs, *sizes)
            cut = [p + n - (i - 1) * s - extent(k, d) for p, n, i, k, s, d in zip(
                self.post_padding, full, sizes, kernel, self.stride, self.dilation, strict=True)]
            y = padded(y, [-p for p in self.pre_padding], [-p for p in cut])
            return rounded(as_given(_add_bias(y, bias), self.channels_last), x)

    def torch(self, torch: Any, x: Any, weight: Any, bias: Any = None) -> Any:
        wide, w = torch_wide(channels_first(x, self.channels_last)), torch_wide(weight)
        conv = getattr(torch.nn.functional, f"conv_transpose{len(self.stride)}d")
        full = conv(wide, w, None, self.stride, 0, 0, self.groups, self.dilation)
        y = torch_padded(torch, full, [-p for p in self.pre_padding], [-p for p in self.post_padding])
        y = y if bias is None else y + torch_wide(bias).reshape(-1, *[1] * len(self.stride))
        return as_given(y, self.channels_last).to(x.dtype)

    def sample(self, rng: np.random.Generator, *specs: Spec) -> tuple[Array, ...]:
        return sample_weighted(rng, specs)

    @classmethod
    def draw(cls, draw: Any) -> Case:
        rank, groups, last = draw.choice([1, 2, 3]), draw.choice([1, 1, 2, 3]), draw.boolean()
        kernel = tuple(draw.choice([1, 2, 3]) for _ in range(rank))
        attrs = draw_geometry(draw, rank) | {"groups": groups, "channels_last": last}
        attrs |= {name: tuple(draw.choice([-2, -1, 0, 0, 1, 2]) for _ in range(rank)) for name in PADDING}
        sizes = []
        for i, k in enumerate(kernel):
            rest = attrs["pre_padding"][i] + attrs["post_padding"][i] + 1 - extent(k, attrs["dilation"][i])
            sizes.append(max(-(-rest // attrs["stride"][i]) + 1, 1) + draw.choice([0, 1, 2, 4]))
        inner, outputs = draw.choice([1, 2, 3, 8]), draw.choice([1, 2, 5])
        dtype = draw.choice([dtypes.float32, dtypes.bfloat16, dtypes.float16])
        x = Spec(shape_of(draw.choice([0, 1, 2]), sizes, inner * groups, last), dtype)
        specs = (x, Spec((inner * groups, outputs, *kernel), dtype), Spec((outputs * groups,), dtype))
        return Case("random", specs[: draw.choice([2, 3])], attrs)
