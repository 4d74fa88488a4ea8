"""Pooling: the mean or the largest element of windows that move over the spatial dimensions, or share them evenly.

Tensors are [N, C, *S] with one to three spatial dimensions, or [N, *S, C] with `channels_last`. Paddings are given per
side and are smaller than the kernel's extent. With `ceil_mode` the last window may reach beyond the padding, as long as
it begins inside x or its pre_padding.
"""
from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from ingot import dims, dtypes
from ingot.dims import Dimension
from ingot.ir import Case, Op, Spec, op, require
from ingot.ir.spec import Shape
from ingot.ops.common import (
    PYTHON_STEPS,
    Array,
    bf16,
    f16,
    f32,
    f64,
    i8,
    i32,
    product_steps,
    require_float,
    rounded,
    torch_wide,
    widen,
)
from ingot.ops.spatial import (
    as_given,
    at,
    channels_first,
    extent,
    known_sizes,
    padded,
    require_entries,
    require_result_sizes,
    require_sizes,
    shape_of,
    sizes_of,
    torch_padded,
    window,
    working_padded,
)

BYTES_OF_A_TAP = 256  # a generous account of walking over one position of a kernel


class Geometry(NamedTuple):
    """Where windows lie, as both pools have it."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    dilation: tuple[int, ...]
    ceil_mode: bool
    channels_last: bool

    def windows(self, sizes: Sequence[Dimension]) -> list[Dimension]:
        """How many windows each dimension has."""
        found = []
        for n, k, s, a, b, d in zip(sizes, *self[:5], strict=True):
            free = dims.add(n, a, b, -extent(k, d))
            count = dims.add((dims.ceil_div if self.ceil_mode else dims.floordiv)(free, s), 1)
            if self.ceil_mode and s > extent(k, d) - b:  # one more may begin behind x: it is dropped
                count = dims.minimum(count, dims.ceil_div(dims.add(n, a), s))
            found.append(count)
        return found

    def place(self, sizes: Sequence[Any]) -> tuple[list[int], list[int]]:
        """The number of windows of an x with these spatial sizes, and the padding behind it that they reach."""
        count = known_sizes(self.windows(sizes), sizes)
        reached = [(m - 1) * s + extent(k, d) - a - n
                   for m, n, k, s, a, d in zip(count, sizes, self.kernel, self.stride, self.before, self.dilation,
                                               strict=True)]
        return count, [max(b, r) for b, r in zip(self.after, reached, strict=True)]

    def taps(self, sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """The positions of the kernel at which some window meets an element of an x with these spatial sizes."""
        each = zip(self.place(sizes)[0], sizes, self.kernel, self.stride, self.before, self.dilation, strict=True)
        return product(*(_met(*dimension) for dimension in each))


def _met(count: int, size: int, kernel: int, stride: int, before: int, dilation: int) -> Sequence[int]:
    """The same of one dimension; all of a kernel that has fewer positions than windows have elements to meet."""
    if kernel <= count * size:
        return range(kernel)
    starts = (before - window * stride for window in range(count))  # of x, counted from the window's
    spans = (range(max(-(-at // dilation), 0), min((at + size - 1) // dilation + 1, kernel)) for at in starts)
    return sorted({position for span in spans for position in span})


class Pool(Op):
    """What the two share."""

    @property
    def geometry(self) -> Geometry:
        raise NotImplementedError

    def infer(self, x: Spec) -> Spec:
        g = self.geometry
        require_float(x=x)
        batch, sizes, channels = sizes_of(x, g.channels_last)
        require_entries(len(sizes), 1, kernel=g.kernel, stride=g.stride, dilation=g.dilation)
        require_entries(len(sizes), 0, pre_padding=g.before, post_padding=g.after)
        each = list(zip(sizes, *g[:5], strict=True))
        for _, k, _, a, b, d in each:
            require(max(a, b) < extent(k, d),
                    f"paddings ({a} and {b}) must be smaller than the kernel's extent, {extent(k, d)}: a window would "
                    "meet nothing else")

        def rule(i: int) -> str:
            n, k, s, a, b, d = each[i]
            return f"({n} + {a} + {b} - {extent(k, d)}) / {s} + 1, rounded {'up' if g.ceil_mode else 'down'}"

        out = g.windows(sizes)
        require_sizes(out, rule, g.channels_last)
        return Spec(shape_of(batch, out, channels, g.channels_last), x.dtype)

    def working(self, x: Spec) -> int:
        g = self.geometry
        _, sizes, channels = sizes_of(x, g.channels_last)
        known = x.like(shape=sizes).evaluate({})
        count, after = g.place(known)
        reached = map(sum, zip(known, g.before, after, strict=True))
        most = max(min(k, m * n) for k, m, n in zip(g.kernel, count, known, strict=True))
        return working_padded(x, list(reached), channels, g.channels_last) + most * BYTES_OF_A_TAP

    def steps(self, x: Spec) -> int:
        g = self.geometry
        known = x.like(shape=sizes_of(x, g.channels_last)[1]).evaluate({})
        count = g.place(known)[0]
        taps = math.prod(min(k, m * n) for k, m, n in zip(g.kernel, count, known, strict=True))
        return taps * (PYTHON_STEPS + int(self.infer(x).elements))

    def torch_windows(self, torch: Any, x: Any, value: float) -> Any:
        """Every window of x [N, C, *S], its elements along a last dimension: [N, C, *S', elements]."""
        g = self.geometry
        count, after = g.place(x.shape[2:])
        x = torch_padded(torch, torch_wide(x), g.before, after, value)
        for i, (m, k, s, d) in enumerate(zip(count, g.kernel, g.stride, g.dilation, strict=True)):
            x = x.unfold(2 + i, extent(k, d), s)[..., ::d].narrow(2 + i, 0, m)
        return x.flatten(2 + len(g.kernel))

    def torch_takes(self, x: Any) -> bool:
        """Whether torch's own function takes x [N, C, *S] and these paddings. In 3-D it wants x as large as the kernel,
        rounding up or not.
        """
        g = self.geometry
        fits = len(g.kernel) < 3 or all(n >= k for n, k in zip(x.shape[2:], g.kernel, strict=True))
        return fits and g.before == g.after and all(2 * p <= k for p, k in zip(g.before, g.kernel, strict=True))

    @classmethod
    def draw(cls, draw: Any) -> Case:
        rank, last = draw.choice([1, 2, 3]), draw.boolean()
        attrs: dict[str, Any] = {
            "kernel": tuple(draw.choice([1, 2, 3]) for _ in range(rank)),
            "stride": tuple(draw.choice([1, 2, 3]) for _ in range(rank)),
            "ceil_mode": draw.boolean(), "channels_last": last}
        dilation = tuple(draw.choice([1, 1, 2]) for _ in range(rank))
        if "dilation" in cls.attributes:
            attrs["dilation"] = dilation
        else:
            dilation = (1,) * rank
            attrs |= {"count_include_pad": draw.boolean(), "divisor": draw.choice([None, None, 5])}
        spans = [extent(k, d) for k, d in zip(attrs["kernel"], dilation, strict=True)]
        for name in ("pre_padding", "post_padding"):
            attrs[name] = tuple(draw.choice([0, 0, 1, 2]) % n for n in spans)
        if draw.boolean():
            attrs["post_padding"] = attrs["pre_padding"]
        sizes = [max(n - a - b, 1) + draw.choice([0, 1, 2, 5])
                 for n, a, b in zip(spans, attrs["pre_padding"], attrs["post_padding"], strict=True)]
        dtype = draw.choice([dtypes.float32, dtypes.bfloat16])
        x = Spec(shape_of(draw.choice([0, 1, 2]), sizes, draw.choice([1, 3, 8]), last), dtype)
        return Case("random", (x,), attrs)


def _over(rank: int, kernel: Any, **more: Any) -> dict[str, Any]:
    """The attributes of a case of avg_pool, an int for one in each dimension."""
    attrs = at(rank, **more) | {"kernel": (kernel,) * rank if isinstance(kernel, int) else kernel}
    return {name: v for name, v in attrs.items() if name != "dilation"}


@op("avg_pool")
class AvgPool(Pool):
    """The mean of each window, accumulated in float32, rounded once; of int8 it is float32.

    A window's sum is divided by `divisor` if there is one, else by the window's size: padding counts with
    `count_include_pad`, elements beyond the padding (with ceil_mode) never do.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    pre_padding: tuple[int, ...]
    post_padding: tuple[int, ...]
    ceil_mode: bool = False
    count_include_pad: bool = True
    divisor: int | None = None
    channels_last: bool = False
    cases = (
        Case("halves the size", (f32(2, 3, 8, 6),), _over(2, kernel=2, stride=2)),
        Case("the same, channels last", (f32(2, 8, 6, 35),), _over(2, kernel=2, stride=2, channels_last=True)),
        Case("padding counts", (f32(1, 2, 5, 5),), _over(2, kernel=3, stride=(2, 1), pre=1)),
        Case("padding does not count", (f32(1, 2, 5, 5),),
             _over(2, kernel=3, stride=(2, 1), pre=1, count_include_pad=False)),
        Case("rounded up: what is beyond the padding never counts", (f32(1, 2, 6, 7),),
             _over(2, kernel=3, stride=2, pre=(1, 0), ceil_mode=True)),
        Case("rounded up, a last window that would begin in the padding is dropped", (f32(1, 1, 5),),
             _over(1, kernel=2, stride=3, pre=1, ceil_mode=True)),
        Case("rounded up, padding does not count", (f32(1, 7, 4, 2),),
             _over(2, (3, 2), stride=(3, 2), pre=1, ceil_mode=True, count_include_pad=False, channels_last=True)),
        Case("a divisor", (f32(1, 2, 5, 5),), _over(2, kernel=2, stride=1, divisor=3)),
        Case("1-D, padding of one side", (f32(1, 2, 7),),
             _over(1, kernel=3, stride=2, pre=2, post=0, count_include_pad=False)),
        Case("3-D", (f32(1, 2, 4, 5, 3),), _over(3, kernel=(2, 2, 3), stride=(2, 1, 1), pre=(0, 1, 1))),
        Case("the whole of each channel", (f32(2, 5, 7, 7),), _over(2, kernel=7, stride=1)),
        Case("batch and sizes unknown", (f32("N", 3, "H", "W"),), _over(2, kernel=2, stride=2)),
        Case("sizes unknown, rounded up", (f32("N", "H", "W", 3),),
             _over(2, kernel=(3, 2), stride=2, pre=1, ceil_mode=True, channels_last=True)),
        Case("bfloat16 rounds once", (bf16(1, 3, 6, 6),), _over(2, kernel=3, stride=3)),
        Case("float16 rounds once", (f16(1, 6, 3),), _over(1, kernel=3, stride=1, channels_last=True)),
        Case("int8 becomes float32", (i8(2, 8, 6, 37),), _over(2, kernel=2, stride=2, channels_last=True)),
        Case("int8, padding does not count", (i8(1, 2, 5, 5),),
             _over(2, kernel=3, stride=(2, 1), pre=1, count_include_pad=False)),
        Case("no samples", (f32(0, 3, 8),), _over(1, kernel=2, stride=2)),
        Case("the kernel is larger than x", (f32(1, 3, 2),), _over(1, kernel=3, stride=2),
             error=r"dimension 2 of the result would have size 0 = \(2 \+ 0 \+ 0 - 3\) / 2 \+ 1, rounded down"),
        Case("padding as large as the kernel", (f32(1, 3, 8),), _over(1, kernel=2, stride=2, pre=2, post=0),
             error=r"paddings \(2 and 0\) must be smaller than the kernel's extent, 2"),
        Case("a negative padding", (f32(1, 3, 8),), _over(1, kernel=2, stride=2, post=-1),
             error="post_padding must be at least 0"),
        Case("a stride of 0", (f32(1, 3, 8),), _over(1, kernel=2, stride=0), error="stride must be at least 1"),
        Case("a kernel of nothing", (f32(1, 3, 8),), _over(1, kernel=0, stride=1), error="kernel must be at least 1"),
        Case("too few entries", (f32(1, 3, 8, 8),), _over(2, kernel=(2,), stride=2),
             error="kernel needs one entry for each of the 2 spatial dimensions"),
        Case("a divisor of 0", (f32(1, 3, 8),), _over(1, kernel=2, stride=2, divisor=0),
             error="divisor must be at least 1, or None, got 0"),
        Case("nothing to pool", (f32(1, 3, 0),), _over(1, kernel=2, stride=2, pre=1), error="x has no elements"),
        Case("no batch dimension", (f32(3, 8),), _over(1, kernel=2, stride=2), error="unsqueeze the batch dimension"),
        Case("integers", (i32(1, 3, 8),), _over(1, kernel=2, stride=2), error="x must be float32"),
    )

    @property
    def geometry(self) -> Geometry:
        return Geometry(self.kernel, self.stride, self.pre_padding, self.post_padding, (1,) * len(self.kernel),
                        self.ceil_mode, self.channels_last)

    def infer(self, x: Spec) -> Spec:
        require(self.divisor is None or self.divisor >= 1, f"divisor must be at least 1, or None, got {self.divisor}")
        return super().infer(x.like(dtype=dtypes.float32) if x.dtype is dtypes.int8 else x)

    def divisors(self, sizes: Sequence[int], count: Sequence[int]) -> Array:
        """What each window's sum is divided by."""
        found = np.ones((), np.float64)
        for n, m, k, s, a, b in zip(sizes, count, self.kernel, self.stride, self.pre_padding, self.post_padding,
                                    strict=True):
            first = np.arange(m) * s - a
            start = first if self.count_include_pad else np.maximum(first, 0)
            found = found[..., None] * (np.minimum(first + k, n + b * self.count_include_pad) - start)
        return found if self.divisor is None else np.full(found.shape, self.divisor, np.float64)

    def reference(self, x: Array) -> Array:
        x = x.astype(np.float32) if x.dtype == np.int8 else x
        wide = channels_first(widen(x), self.channels_last)
        count, after = self.geometry.place(wide.shape[2:])
        whole = padded(wide, self.pre_padding, after)
        total = np.zeros((*wide.shape[:2], *count), wide.dtype)
        with np.errstate(all="ignore"):
            for tap in self.geometry.taps(wide.shape[2:]):
                total += window(whole, tap, count, self.stride, (1,) * len(tap))
            y = total / self.divisors(wide.shape[2:], count).astype(wide.dtype)
        return rounded(as_given(y, self.channels_last), x)

    def torch(self, torch: Any, x: Any) -> Any:
        x = x.float() if x.dtype == torch.int8 else x
        rank, wide = len(self.kernel), torch_wide(channels_first(x, self.channels_last))
        if self.torch_takes(wide) and (rank > 1 or self.divisor is None):
            rest = (self.divisor,) if rank > 1 else ()
            y = getattr(torch.nn.functional, f"avg_pool{rank}d")(
                wide, self.kernel, self.stride, self.pre_padding, self.ceil_mode, self.count_include_pad, *rest)
        else:
            ones, op = torch.ones_like(wide), self
            if self.count_include_pad:  # the padding becomes part of what is pooled
                ones = torch_padded(torch, ones, self.pre_padding, self.post_padding, 1.0)
                op = AvgPool(self.kernel, self.stride, (0,) * rank, (0,) * rank, self.ceil_mode)
            total, ones = self.torch_windows(torch, wide, 0.0).sum(-1), op.torch_windows(torch, ones, 0.0).sum(-1)
            counts = ones[(..., *(slice(n) for n in total.shape[2:]))]  # fewer may begin in x than in its padding
            y = total / (self.divisor or counts)
        return as_given(y, self.channels_last).to(x.dtype)


@op("max_pool")
class MaxPool(Pool):
    """The largest element of each window; NaN if any is. Padding never wins. int8 is taken too, whose smallest number
    stands where a window meets padding alone."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    pre_padding: tuple[int, ...]
    post_padding: tuple[int, ...]
    dilation: tuple[int, ...]
    ceil_mode: bool = False
    channels_last: bool = False
    cases = (
        Case("3×3 with stride 2, as ResNets begin", (f32(2, 3, 9, 8),), at(2, kernel=(3, 3), stride=2, pre=1)),
        Case("the same, channels last", (f32(2, 9, 8, 35),), at(2, kernel=(3, 3), stride=2, pre=1, channels_last=True)),
        Case("rounded up", (f32(1, 2, 6, 7),), at(2, kernel=(3, 2), stride=2, pre=(0, 1), ceil_mode=True)),
        Case("dilation: a window may meet padding alone", (f32(1, 2, 1),),
             at(1, kernel=(2,), dilation=3, pre=1, post=2)),
        Case("1-D, padding of one side", (f32(1, 2, 7),), at(1, kernel=(3,), stride=2, pre=2, post=0)),
        Case("3-D, dilation", (f32(1, 2, 5, 5, 3),),
             at(3, kernel=(2, 2, 3), stride=(2, 1, 1), dilation=(2, 1, 1), pre=(0, 1, 1))),
        Case("batch and sizes unknown", (f32("N", 3, "H", "W"),), at(2, kernel=(2, 2), stride=2)),
        Case("sizes unknown, rounded up", (f32("N", "H", "W", 3),),
             at(2, kernel=(3, 2), stride=2, pre=1, ceil_mode=True, channels_last=True)),
        Case("bfloat16", (bf16(1, 3, 6, 6),), at(2, kernel=(3, 3), stride=3)),
        Case("float16", (f16(1, 6, 3),), at(1, kernel=(3,), pre=1, channels_last=True)),
        Case("int8", (i8(2, 9, 8, 37),), at(2, kernel=(3, 3), stride=2, pre=1, channels_last=True)),
        Case("int8, dilation: a window may meet padding alone", (i8(1, 2, 1),),
             at(1, kernel=(2,), dilation=3, pre=1, post=2)),
        Case("no samples", (f32(0, 3, 8),), at(1, kernel=(2,), stride=2)),
        Case("the kernel is larger than x", (f32(1, 3, 4),), at(1, kernel=(3,), dilation=2),
             error=r"dimension 2 of the result would have size 0 = \(4 \+ 0 \+ 0 - 5\) / 1 \+ 1, rounded down"),
        Case("padding as large as the kernel", (f32(1, 3, 8),), at(1, kernel=(2,), stride=2, post=2),
             error=r"paddings \(0 and 2\) must be smaller than the kernel's extent, 2"),
        Case("a dilation of 0", (f32(1, 3, 8),), at(1, kernel=(2,), stride=2, dilation=0),
             error="dilation must be at least 1"),
        Case("too many entries", (f32(1, 3, 8),), at(1, kernel=(2, 2), stride=2),
             error="kernel needs one entry for each of the 1 spatial dimensions"),
        Case("nothing to pool", (f32(1, 3, 0),), at(1, kernel=(2,), stride=2, pre=1), error="x has no elements"),
        Case("integers", (i32(1, 3, 8),), at(1, kernel=(2,), stride=2), error="x must be float32"),
    )

    @property
    def geometry(self) -> Geometry:
        return Geometry(self.kernel, self.stride, self.pre_padding, self.post_padding, self.dilation, self.ceil_mode,
                        self.channels_last)

    def infer(self, x: Spec) -> Spec:
        known = super().infer(x.like(dtype=dtypes.float32) if x.dtype is dtypes.int8 else x)
        return known.like(dtype=x.dtype)

    def reference(self, x: Array) -> Array:
        wide = channels_first(widen(x), self.channels_last)
        count, after = self.geometry.place(wide.shape[2:])
        least = -128 if x.dtype == np.int8 else -np.inf
        whole = padded(wide, self.pre_padding, after, least)
        y = np.full((*wide.shape[:2], *count), least, wide.dtype)
        with np.errstate(all="ignore"):
            for tap in self.geometry.taps(wide.shape[2:]):
                y = np.maximum(y, window(whole, tap, count, self.stride, self.dilation))
        return rounded(as_given(y, self.channels_last), x)

    def torch(self, torch: Any, x: Any) -> Any:
        wide = torch_wide(channels_first(x, self.channels_last))
        if x.dtype == torch.int8:
            wide = wide.float()
        if self.torch_takes(wide):
            y = getattr(torch.nn.functional, f"max_pool{len(self.kernel)}d")(
                wide, self.kernel, self.stride, self.pre_padding, self.dilation, self.ceil_mode)
        else:
            y = self.torch_windows(torch, wide, -float("inf")).amax(-1)
        y = y.clamp(min=-128) if x.dtype == torch.int8 else y
        return as_given(y, self.channels_last).to(x.dtype)


@op("adaptive_pool")
class AdaptivePool(Op):
    """As many windows as `sizes` says in each spatial dimension, as even as whole elements allow: from ⌊i·S/O⌋ to
    ⌈(i+1)·S/O⌉.

    kind: "average", the mean of each window, accumulated in float32 and rounded once; "greatest", its largest element,
    NaN if any is.
    """

    sizes: Shape
    kind: str = "average"
    channels_last: bool = False
    cases = (
        Case("windows of two sizes", (f32(2, 3, 7, 5),), {"sizes": (3, 2)}),
        Case("the same, channels last", (f32(2, 7, 5, 35),), {"sizes": (3, 2), "channels_last": True}),
        Case("the largest elements", (f32(2, 3, 7, 5),), {"sizes": (3, 2), "kind": "greatest"}),
        Case("the whole of each channel", (f32(2, 3, 7, 5),), {"sizes": (1, 1)}),
        Case("more windows than elements", (f32(1, 3, 4),), {"sizes": (7,)}),
        Case("a volume", (f32(1, 2, 4, 5, 3),), {"sizes": (3, 5, 2)}),
        Case("batch and sizes unknown", (f32("N", 3, "H", "W"),), {"sizes": (3, "W")}),
        Case("bfloat16 rounds once", (bf16(1, 3, 7, 5),), {"sizes": (3, 2)}),
        Case("float16", (f16(1, 3, 7),), {"sizes": (3,), "kind": "greatest"}),
        Case("float64 has no kernel", (f64(1, 3, 7),), {"sizes": (3,)}, host="the kernel takes no float64"),
        Case("no samples", (f32(0, 3, 7),), {"sizes": (3,)}),
        Case("no windows", (f32(1, 3, 7),), {"sizes": (0,)}, error=r"sizes must be at least 1, got \[0\]"),
        Case("too few sizes", (f32(1, 3, 7, 7),), {"sizes": (3,)}, error="sizes needs one entry for each of the"),
        Case("no such kind", (f32(1, 3, 7),), {"sizes": (3,), "kind": "sum"}, error="kind must be average or greatest"),
        Case("nothing to pool", (f32(1, 3, 0),), {"sizes": (3,)}, error="x has no elements in a spatial dimension"),
        Case("integers", (i32(1, 3, 7),), {"sizes": (3,)}, error="x must be float32"),
    )

    def infer(self, x: Spec) -> Spec:
        require_float(x=x)
        batch, sizes, channels = sizes_of(x, self.channels_last)
        require(self.kind in ("average", "greatest"), f"kind must be average or greatest, not {self.kind!r}")
        require_result_sizes(self.sizes, len(sizes))
        return Spec(shape_of(batch, self.sizes, channels, self.channels_last), x.dtype)

    def working(self, x: Spec) -> int:
        _, given, channels = sizes_of(x, self.channels_last)
        return 2 * working_padded(x, [max(int(a), int(b)) for a, b in zip(given, self.sizes, strict=True)], channels,
                                  self.channels_last)

    def steps(self, x: Spec) -> int:
        sizes = zip(sizes_of(x, self.channels_last)[1], self.sizes, strict=True)
        windows = math.prod(int(n) for n in self.sizes)
        each = math.prod(int(n) // int(wanted) + 2 for n, wanted in sizes)
        return windows * PYTHON_STEPS + product_steps(int(self.infer(x).elements) * each, x.dtype)

    def reference(self, x: Array) -> Array:
        wide = channels_first(widen(x), self.channels_last)
        require(min(wide.shape[2:]) > 0, "x has no elements in a spatial dimension")
        wanted = [int(n) for n in self.sizes]
        axes = [[slice(i * n // m, -(-(i + 1) * n // m)) for i in range(m)]
                for n, m in zip(wide.shape[2:], wanted, strict=True)]
        y = np.empty((*wide.shape[:2], *wanted), wide.dtype)
        inner = tuple(range(2, wide.ndim))
        with np.errstate(all="ignore"):
            for place in product(*map(range, wanted)):
                window_of = [axis[i] for axis, i in zip(axes, place, strict=True)]
                part = wide[(slice(None), slice(None), *window_of)]
                target: tuple[Any, ...] = (slice(None), slice(None), *place)
                y[target] = part.mean(inner) if self.kind == "average" else part.max(inner)
        return rounded(as_given(y, self.channels_last), x)

    def torch(self, torch: Any, x: Any) -> Any:
        wide = torch_wide(channels_first(x, self.channels_last))
        word = "avg" if self.kind == "average" else "max"
        pool = getattr(torch.nn.functional, f"adaptive_{word}_pool{len(self.sizes)}d")
        y = pool(wide, [int(n) for n in self.sizes])
        return as_given(y, self.channels_last).to(x.dtype)

    @classmethod
    def draw(cls, draw: Any) -> Case:
        rank, last = draw.choice([1, 2, 3]), draw.boolean()
        attrs = {"sizes": tuple(draw.choice([1, 2, 3, 5]) for _ in range(rank)),
                 "kind": draw.choice(["average", "greatest"]), "channels_last": last}
        shape = shape_of(draw.choice([0, 1, 2]), [draw.choice([1, 2, 4, 7]) for _ in range(rank)],
                         draw.choice([1, 3, 17]), last)
        return Case("random", (Spec(shape, draw.choice([dtypes.float32, dtypes.bfloat16])),), attrs)
