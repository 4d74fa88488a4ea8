"""The transposed convolution on channels-last tensors, lowered to one convolution per phase of its outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from ingot import dims, dtypes
from ingot.dims import Dimension
from ingot.ir import Case, Spec, op, require
from ingot.ops.common import Array, bf16, certainly_negative, f32, show, widen
from ingot.ops.fused import Bodied
from ingot.ops.fused_spatial import (
    RELU_PLUS,
    TWICE,
    Sliding,
    drawn_geometry,
    from_torch,
    geometry,
    grouped,
    normal,
    pack_groups,
    panel_shape,
    require_panels,
    torch_body,
    unpack_groups,
)
from ingot.ops.spatial import MAX_ENTRY, torch_padded

MAX_PHASE_WORK = 1 << 22  # phases times taps of a dimension, which are walked one by one


class Phase(NamedTuple):
    """The outputs ≡ `place` modulo the stride. Per spatial dim: which kernel positions reach them, in the order of the
    input they read, which is `offsets` further on than the place of the output among its phase."""

    place: tuple[int, ...]
    taps: tuple[tuple[int, ...], ...]
    offsets: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        """How many taps it has."""
        return math.prod(map(len, self.taps))


def phases(
    kernel: Sequence[int], stride: Sequence[int], pre_padding: Sequence[int], dilation: Sequence[int]
) -> list[Phase]:
    """Output o of a transposed convolution reads input (o + pad − k·dilation) / stride where that is whole, so that the
    outputs of one remainder form an ordinary convolution; in row-major order of the remainders."""
    found = []
    for place in product(*map(range, stride)):
        reach = [
            sorted(((p + pad - k * d) // s, k) for k in range(n) if (p + pad - k * d) % s == 0)
            for p, n, s, pad, d in zip(place, kernel, stride, pre_padding, dilation, strict=True)
        ]
        taps = tuple(tuple(k for _, k in dim) for dim in reach)
        found.append(Phase(place, taps, tuple(tuple(at for at, _ in dim) for dim in reach)))
    return found


def _phase_sums(x: Array, weight: Array, phase: Phase, counts: Sequence[int]) -> Array:
    """The sums of one phase: x [N, *S, C] times weights [g, o, taps, c] at the offsets of each tap."""
    before = [max(0, -min(at)) for at in phase.offsets]
    after = [max(0, max(at) + n - size)
             for at, n, size in zip(phase.offsets, counts, x.shape[1:-1], strict=True)]  # fmt: skip
    padded = np.pad(widen(x), [(0, 0), *zip(before, after, strict=True), (0, 0)])
    total: Any = np.zeros((len(x), *counts, weight.shape[0] * weight.shape[1]), np.float32)
    for t, at in enumerate(product(*phase.offsets)):
        starts = [a + b for a, b in zip(at, before, strict=True)]
        cut = [slice(a, a + n) for a, n in zip(starts, counts, strict=True)]
        total = total + grouped(padded[(slice(None), *cut)], weight[:, :, t])
    return np.asarray(total)


@op("packed_conv_transpose")
class PackedConvTranspose(Sliding):
    """`body` of a transposed convolution, as one convolution per remainder of the output position by the stride.

    After x come the panels of each phase that has taps: [n, K], K = (taps in the order of their inputs, channel).
    A phase without taps is `body` of 0. Paddings may be negative: more outputs in front or behind.
    """

    groups: int
    n: int
    cases = (
        Case("3×3 by 2, one more output", (f32("T", 3, 4, 4), *(f32(1, 4 * n, 32) for n in (1, 2, 2, 4))),
             geometry(stride=2, post_padding=0, groups=1, n=5)),
        Case("2×2 by 2, bias and relu", (bf16(2, 3, 3, 3), *[bf16(1, 2, 32, 2)] * 4, bf16(8)),
             geometry(kernel=2, stride=2, pre_padding=0, post_padding=0, groups=1, n=8, body=RELU_PLUS,
                       dtype="bfloat16")),
        Case("phases without taps", (f32(1, 4, 2), f32(1, 2, 32)),
             geometry(1, kernel=1, stride=3, pre_padding=0, post_padding=-1, groups=1, n=3, body=TWICE)),
        Case("more outputs than anything reaches, on both sides", (f32(1, 4, 2), *[f32(1, 2, 32)] * 2),
             geometry(1, kernel=2, stride=2, pre_padding=-3, post_padding=-5, groups=1, n=3)),
        Case("groups, dilated", (f32(2, 5, 6), f32(2, 9, 32)), geometry(1, dilation=2, groups=2, n=4)),
        Case("a phase is missing", (f32(1, 4, 2), f32(1, 2, 32)), geometry(1, stride=2, groups=1, n=3),
             error="2 packed weights"),
        Case("padding that takes all", (f32(1, 1, 2), f32(1, 6, 32)),
             geometry(1, pre_padding=2, post_padding=2, groups=1, n=3), error="does not fit"),
    )  # fmt: skip

    def phases(self) -> list[Phase]:
        return phases(self.kernel, self.stride, self.pre_padding, self.dilation)

    @property
    def fixed(self) -> int:
        return 1 + sum(phase.size > 0 for phase in self.phases())

    def sizes(self, x: Sequence[Dimension]) -> tuple[Dimension, ...]:
        found = tuple(
            dims.add(dims.mul(dims.add(n, -1), s), d * (k - 1) + 1 - a - b)
            for n, k, s, d, a, b in zip(x, self.kernel, self.stride, self.dilation, self.pre_padding,
                                        self.post_padding, strict=True))  # fmt: skip
        require(not any(map(certainly_negative, found)) and 0 not in found,
                f"the padding does not fit: nothing is left of {show(tuple(x))}")  # fmt: skip
        return found

    def infer(self, x: Spec, *panels_and_extras: Spec) -> Spec:
        self.check_geometry(x, least_padding=-MAX_ENTRY)
        work = math.prod(self.stride) * sum(self.kernel)
        require(work <= MAX_PHASE_WORK, f"stride {show(self.stride)} and kernel {show(self.kernel)} are too large")
        count = self.fixed - 1
        channels: Any = x.shape[-1]
        require(len(panels_and_extras) >= count, f"needs {count} packed weights, one per phase with taps")
        require(self.groups > 0 and isinstance(channels, int) and channels % self.groups == 0 < channels,
                f"the channels of x must be a known multiple of {self.groups} groups, not {channels}")  # fmt: skip
        require(self.n > 0 and self.n % self.groups == 0,
                f"{self.n} outputs do not split into {self.groups} groups")  # fmt: skip
        shape = (x.shape[0], *self.sizes(x.shape[1:-1]), self.n)
        found = self.check_body(Spec(x.dtype, shape), panels_and_extras[count:])
        for panels, phase in zip(panels_and_extras, self._with_taps(), strict=False):
            require_panels(x, panels, self.groups, self.n, phase.size * (channels // self.groups))
        return found

    def _with_taps(self) -> list[Phase]:
        return [phase for phase in self.phases() if phase.size]

    def _weights(self, channels: int, panels: Sequence[Array]) -> list[Array]:
        """[g, o, taps, c] of each phase with taps."""
        each = channels // self.groups
        return [
            widen(unpack_groups(p, self.groups, self.n, phase.size * each)).reshape(
                self.groups, self.n // self.groups, phase.size, each)
            for p, phase in zip(panels, self._with_taps(), strict=True)
        ]  # fmt: skip

    def working(self, *specs: Any) -> int:
        """The x of each phase, padded for its taps, and what the expression needs."""
        batch, *sizes, channels = specs[0].shape
        reach = [0] * self.rank
        counts = [-(-n // s) for n, s in zip(self.sizes(sizes), self.stride, strict=True)]
        for phase in self._with_taps():
            for i, at in enumerate(phase.offsets):
                reach[i] = max(reach[i], max(0, -min(at)) + max(sizes[i], max(at) + counts[i]))
        return Bodied.working(self, *specs) + 4 * int(math.prod((batch, *reach, channels)))

    def reference(self, x: Array, *panels_and_extras: Array) -> Array:
        count = self.fixed - 1
        sizes: Any = self.sizes(x.shape[1:-1])
        sums = np.zeros((len(x), *sizes, self.n), np.float32)
        weights = self._weights(x.shape[-1], panels_and_extras[:count])
        for phase, weight in zip(self._with_taps(), weights, strict=True):
            counts = [max(0, -(-(n - p) // s)) for n, p, s in zip(sizes, phase.place, self.stride, strict=True)]
            cut = [slice(p, None, s) for p, s in zip(phase.place, self.stride, strict=True)]
            sums[(slice(None), *cut)] = _phase_sums(x, weight, phase, counts)
        return self.finish(sums, panels_and_extras[count:])

    def torch(self, torch: Any, x: Any, *panels_and_extras: Any) -> Any:
        count, channels = self.fixed - 1, x.shape[-1]
        weights = self._weights(channels, [from_torch(torch, p) for p in panels_and_extras[:count]])
        whole = np.zeros((self.groups, self.n // self.groups, *self.kernel, channels // self.groups), np.float32)
        for phase, weight in zip(self._with_taps(), weights, strict=True):
            for t, tap in enumerate(product(*phase.taps)):
                index: Any = (slice(None), slice(None), *tap)
                whole[index] = weight[:, :, t]
        dense = np.moveaxis(whole, -1, 1).reshape(channels, self.n // self.groups, *self.kernel)
        conv = getattr(torch.nn.functional, f"conv_transpose{self.rank}d")
        y = conv(x.float().movedim(-1, 1), torch.from_numpy(dense.copy()), None, self.stride, 0, 0, self.groups,
                 self.dilation)  # fmt: skip
        y = torch_padded(torch, y, [-p for p in self.pre_padding], [-p for p in self.post_padding])
        return torch_body(torch, self, y.movedim(1, -1), panels_and_extras[count:])

    def sample(self, rng: np.random.Generator, x: Spec, *panels_and_extras: Spec) -> tuple[Array, ...]:
        each = x.shape[-1] // self.groups
        packed = [pack_groups(normal(rng, Spec(x.dtype, (self.n, phase.size * each))), self.groups)
                  for phase in self._with_taps()]  # fmt: skip
        return (normal(rng, x), *packed, *(normal(rng, e) for e in panels_and_extras[len(packed) :]))

    @classmethod
    def draw(cls, draw: Any) -> Case:
        groups, c, each = draw.choice([1, 1, 2]), draw.choice([1, 2, 5]), draw.choice([1, 3, 33])
        sizes, attrs = drawn_geometry(draw, groups=groups, n=groups * each)
        attrs |= {"pre_padding": tuple(min(n, 1) for n in attrs["pre_padding"]), "post_padding": (0,) * len(sizes)}
        made = phases(attrs["kernel"], attrs["stride"], attrs["pre_padding"], attrs["dilation"])
        panels = [f32(*panel_shape(dtypes.float32, groups, groups * each, p.size * c)) for p in made if p.size]
        return Case("random", (f32(draw.choice([0, 1, 2]), *(n + 1 for n in sizes), groups * c), *panels), attrs)
