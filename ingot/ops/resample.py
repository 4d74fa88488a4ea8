"""Images, signals and volumes read at other places: at another size, and wherever a grid says.

Tensors are [N, C, *S], or [N, *S, C] with `channels_last`. Places, and sums of floats, are float32 (float64 of
float64, but for the nearest ones of a resize), as torch computes them; a result rounds once.
"""
from __future__ import annotations

import math
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from ingot import dtypes
from ingot.ir import Case, Op, Spec, op, require
from ingot.ir.spec import Shape
from ingot.ops.common import (
    Array,
    bf16,
    f16,
    f32,
    f64,
    i32,
    product_steps,
    require_float,
    rounded,
    torch_wide,
    widen,
)
from ingot.ops.spatial import as_given, channels_first, require_result_sizes, shape_of, sizes_of, working_padded

MODES = ("nearest", "nearest_exact", "linear", "cubic")
BEYOND = ("zeros", "border", "reflection")
CUBIC = -0.75  # the parameter of the cubic kernel that torch uses
_TORCH_NAMES = {"linear": ("linear", "bilinear", "trilinear"), "cubic": ("", "bicubic", "")}


class Tap(NamedTuple):
    """What counts towards each place along an axis: whole numbers of pixels, and their weights."""

    places: Array
    weight: Array


def _cubic(t: Array) -> list[Array]:
    """The weights of the four pixels around a place that lies t behind the second."""

    def polynomial(d: Array, *coefficients: float) -> Array:
        total = np.zeros_like(d)
        for coefficient in coefficients:
            total = total * d + d.dtype.type(coefficient)
        return total

    near, far = (CUBIC + 2, -(CUBIC + 3), 0.0, 1.0), (CUBIC, -5 * CUBIC, 8 * CUBIC, -4 * CUBIC)
    return [polynomial(t + 1, *far), polynomial(t, *near), polynomial(1 - t, *near), polynomial(2 - t, *far)]


def _torch_mode(mode: str, rank: int) -> str:
    return _TORCH_NAMES[mode][rank - 1] if mode in _TORCH_NAMES else mode.replace("_", "-")


# ---------------------------------------------------------------------------------------------- another size


@op("resize")
class Resize(Op):
    """x [N, C, *S] at other sizes of its spatial dimensions, [N, C, *sizes].

    mode: "nearest", "nearest_exact", "linear" in each dimension, or "cubic". align_corners: whether the corner
    elements' centres fall on each other; else their outer edges do. (The nearest modes know no corners.) A dimension
    that keeps its size is not touched.
    """

    sizes: Shape
    mode: str = "nearest"
    align_corners: bool = False
    channels_last: bool = False
    in_scope = "moves"
    cases = (
        Case("twice as large", (f32(2, 3, 4, 5),), {"sizes": (8, 10), "mode": "linear"}),
        Case("the same, channels last", (f32(2, 4, 5, 35),),
             {"sizes": (8, 10), "mode": "linear", "channels_last": True}),
        Case("corners on each other", (f32(1, 3, 4, 5),), {"sizes": (7, 3), "mode": "linear", "align_corners": True}),
        Case("to one element, corners on each other", (f32(1, 3, 4),),
             {"sizes": (1,), "mode": "linear", "align_corners": True}),
        Case("nearest", (f32(1, 3, 4, 5),), {"sizes": (7, 3)}),
        Case("nearest by centres", (f32(1, 3, 4, 5),), {"sizes": (7, 3), "mode": "nearest_exact"}),
        Case("cubic", (f32(1, 3, 4, 5),), {"sizes": (7, 3), "mode": "cubic"}),
        Case("cubic, corners on each other", (f32(1, 3, 4, 5),),
             {"sizes": (7, 9), "mode": "cubic", "align_corners": True}),
        Case("a signal", (f32(2, 3, 7),), {"sizes": (5,), "mode": "linear"}),
        Case("a volume, one size kept", (f32(1, 2, 3, 4, 5),), {"sizes": (5, 4, 3), "mode": "linear"}),
        Case("batch and sizes unknown", (f32("N", 3, "H", "W"),), {"sizes": ("H", 9), "mode": "linear"}),
        Case("bfloat16 rounds once", (bf16(1, 3, 4, 5),), {"sizes": (8, 10), "mode": "linear"}),
        Case("float16 rounds once", (f16(1, 3, 4, 5),), {"sizes": (8, 10), "mode": "cubic"}),
        Case("float64 has no kernel", (f64(1, 3, 4, 5),), {"sizes": (8, 10), "mode": "linear"},
             host="the kernel takes no float64"),
        Case("no samples", (f32(0, 3, 4),), {"sizes": (8,)}),
        Case("no size", (f32(1, 3, 4),), {"sizes": (0,)}, error=r"sizes must be at least 1, got \[0\]"),
        Case("too few sizes", (f32(1, 3, 4, 4),), {"sizes": (8,)}, error="sizes needs one entry for each of the"),
        Case("no such mode", (f32(1, 3, 4),), {"sizes": (8,), "mode": "area"}, error="mode must be one of nearest, "),
        Case("cubic in one dimension", (f32(1, 3, 4),), {"sizes": (8,), "mode": "cubic"},
             error="cubic takes two spatial dimensions"),
        Case("nothing to read", (f32(1, 3, 0),), {"sizes": (8,)}, error="x has no elements in a spatial dimension"),
        Case("integers", (i32(1, 3, 4),), {"sizes": (8,)}, error="x must be float32"),
    )

    def infer(self, x: Spec) -> Spec:
        require_float(x=x)
        batch, sizes, channels = sizes_of(x, self.channels_last)
        require(self.mode in MODES, f"mode must be one of {', '.join(MODES)}, not {self.mode!r}")
        require(self.mode != "cubic" or len(sizes) == 2, "cubic takes two spatial dimensions")
        require_result_sizes(self.sizes, len(sizes))
        return Spec(shape_of(batch, self.sizes, channels, self.channels_last), x.dtype)

    def working(self, x: Spec) -> int:
        _, given, channels = sizes_of(x, self.channels_last)
        largest = [max(int(a), int(b)) for a, b in zip(given, self.sizes, strict=True)]
        return 3 * working_padded(x, largest, channels, self.channels_last)

    def steps(self, x: Spec) -> int:
        return product_steps(12 * int(self.infer(x).elements), x.dtype)

    def taps(self, size: int, wanted: int, wide: Any) -> list[Tap]:
        """What counts towards each of `wanted` elements along an axis of this size, in a wide type."""
        real = np.float32 if self.mode.startswith("nearest") else wide
        at, one = np.arange(wanted).astype(real), np.ones(wanted, real)
        corners = self.align_corners and not self.mode.startswith("nearest")
        step = real(((size - 1) / (wanted - 1) if wanted > 1 else 0) if corners else size / wanted)
        half = real(0.5)
        last = real(size - 1)
        if self.mode.startswith("nearest"):
            where = np.floor((at + half if self.mode == "nearest_exact" else at) * step)
            return [Tap(np.minimum(where, last).astype(np.int64), one)]
        where = at * step if corners else (at + half) * step - half
        if self.mode == "linear":
            where = np.maximum(where, 0)
            low = np.minimum(np.floor(where), last)
            t = where - low
            return [Tap(low.astype(np.int64), 1 - t), Tap(np.minimum(low + 1, last).astype(np.int64), t)]
        low = np.floor(where)
        return [Tap(np.clip(low + shift, 0, last).astype(np.int64), weight)
                for shift, weight in zip((-1, 0, 1, 2), _cubic(where - low), strict=True)]

    def reference(self, x: Array) -> Array:
        wide = channels_first(widen(x), self.channels_last)
        for axis, wanted in enumerate(map(int, self.sizes), 2):
            size = wide.shape[axis]
            require(size > 0, "x has no elements in a spatial dimension")
            if size == wanted:
                continue
            column = (wanted, *[1] * (wide.ndim - axis - 1))
            with np.errstate(all="ignore"):
                parts = [np.take(wide, index, axis) * weight.reshape(column)
                         for index, weight in self.taps(size, wanted, wide.dtype.type)]
                wide = sum(parts[1:], parts[0]).astype(wide.dtype)
        return rounded(as_given(wide, self.channels_last), x)

    def torch(self, torch: Any, x: Any) -> Any:
        wide = torch_wide(channels_first(x, self.channels_last))
        corners = None if self.mode.startswith("nearest") else self.align_corners
        sizes = [int(n) for n in self.sizes]
        if 0 in wide.shape:  # torch wants elements
            y = wide.new_zeros((*wide.shape[:2], *sizes))
        else:
            mode = _torch_mode(self.mode, len(sizes))
            y = torch.nn.functional.interpolate(wide, size=sizes, mode=mode, align_corners=corners)
        return as_given(y, self.channels_last).to(x.dtype)

    @classmethod
    def draw(cls, draw: Any) -> Case:
        rank, last = draw.choice([1, 2, 2, 3]), draw.boolean()
        mode = draw.choice([m for m in MODES if m != "cubic" or rank == 2])
        attrs = {"sizes": tuple(draw.choice([1, 2, 3, 5, 8]) for _ in range(rank)), "mode": mode,
                 "align_corners": draw.boolean(), "channels_last": last}  # fmt: skip
        shape = shape_of(draw.choice([0, 1, 2]), [draw.choice([1, 2, 3, 6]) for _ in range(rank)],
                         draw.choice([1, 3, 17]), last)  # fmt: skip
        return Case("random", (Spec(shape, draw.choice([dtypes.float32, dtypes.bfloat16])),), attrs)


# ---------------------------------------------------------------------------------------------- where a grid says


@op("grid_sample")
class GridSample(Op):
    """x [N, C, *S] at the places that grid [N, *S', axes] says → [N, C, *S'].

    A place is one number for each spatial dimension, the last dimension's first, from −1 to 1: with `align_corners`
    these are the centres of the first and last elements, else their outer edges. mode: "nearest" (halves to even),
    "linear", or "cubic" (two dimensions). beyond: what lies outside of x, "zeros", the "border" elements, or x turned
    back at its edges ("reflection"). As in torch, a place in an image that is no finite number gives NaN ("linear"
    beyond the "border" and "reflection" make it finite first); "nearest", and volumes, read nothing there.
    """

    mode: str = "linear"
    beyond: str = "zeros"
    align_corners: bool = False
    channels_last: bool = False
    in_scope = "keeps"
    cases = (
        Case("between the elements", (f32(2, 3, 5, 6), f32(2, 4, 7, 2))),
        Case("the same, channels last", (f32(2, 5, 6, 35), f32(2, 4, 7, 2)), {"channels_last": True}),
        *(Case(f"{mode}, {beyond}{', corners' if corners else ''}", (f32(1, 3, 5, 6), f32(1, 4, 7, 2)),
               {"mode": mode, "beyond": beyond, "align_corners": corners})
          for mode, beyond, corners in product(("nearest", "linear", "cubic"), BEYOND, (False, True))),
        *(Case(f"a volume, {mode}, {beyond}", (f32(2, 3, 4, 5, 6), f32(2, 2, 3, 4, 3)),
               {"mode": mode, "beyond": beyond})
          for mode, beyond in product(("nearest", "linear"), BEYOND)),
        Case("one element, corners, turned back", (f32(1, 3, 1, 1), f32(1, 2, 2, 2)),
             {"beyond": "reflection", "align_corners": True}),
        Case("batch and sizes unknown", (f32("N", 3, "H", "W"), f32("N", "P", 7, 2))),
        Case("bfloat16 rounds once", (bf16(1, 3, 5, 6), f32(1, 4, 7, 2))),
        Case("float16 rounds once", (f16(1, 3, 5, 6), f32(1, 4, 7, 2)), {"mode": "cubic"}),
        Case("float64 has no kernel", (f64(1, 3, 5, 6), f32(1, 4, 7, 2)), host="the kernel takes no float64"),
        Case("no samples", (f32(0, 3, 5, 6), f32(0, 4, 7, 2))),
        Case("no places", (f32(2, 3, 5, 6), f32(2, 0, 7, 2))),
        Case("another batch", (f32(2, 3, 5, 6), f32(1, 4, 7, 2)), error=r"grid must be \[2, sizes…, 2\]"),
        Case("three coordinates of an image", (f32(2, 3, 5, 6), f32(2, 4, 7, 3)), error=r"grid must be \[2, sizes…, 2"),
        Case("a grid of another rank", (f32(2, 3, 5, 6), f32(2, 4, 2)), error=r"grid must be \[2, sizes…, 2\]"),
        Case("a narrow grid", (bf16(2, 3, 5, 6), bf16(2, 4, 7, 2)), error="grid must be float32; cast it first"),
        Case("a signal", (f32(2, 3, 5), f32(2, 4, 1)), error="x must have two or three spatial dimensions"),
        Case("no such mode", (f32(2, 3, 5, 6), f32(2, 4, 7, 2)), {"mode": "area"}, error="mode must be one of"),
        Case("no such surroundings", (f32(2, 3, 5, 6), f32(2, 4, 7, 2)), {"beyond": "wrap"}, error="beyond must be"),
        Case("cubic in a volume", (f32(1, 3, 4, 5, 6), f32(1, 2, 3, 4, 3)), {"mode": "cubic"},
             error="cubic takes two spatial dimensions"),
        Case("nothing to read", (f32(1, 3, 0, 6), f32(1, 4, 7, 2)), error="x has no elements in a spatial dimension"),
        Case("integers", (i32(1, 3, 5, 6), f32(1, 4, 7, 2)), error="x must be float32"),
    )

    def infer(self, x: Spec, grid: Spec) -> Spec:
        require_float(x=x)
        batch, sizes, channels = sizes_of(x, self.channels_last)
        rank, modes = len(sizes), ("nearest", "linear", "cubic")
        require(rank > 1, "x must have two or three spatial dimensions")
        require(self.mode in modes, f"mode must be one of {', '.join(modes)}, not {self.mode!r}")
        require(self.beyond in BEYOND, f"beyond must be one of {', '.join(BEYOND)}, not {self.beyond!r}")
        require(self.mode != "cubic" or rank == 2, "cubic takes two spatial dimensions")
        require(grid.dtype is dtypes.float32, "grid must be float32; cast it first")
        require(len(grid.shape) == rank + 2 and grid.shape[0] == batch and grid.shape[-1] == rank,
                f"grid must be [{batch}, sizes…, {rank}], got {list(grid.shape)}")
        return Spec(shape_of(batch, grid.shape[1:-1], channels, self.channels_last), x.dtype)

    def working(self, x: Spec, grid: Spec) -> int:
        _, _, channels = sizes_of(x, self.channels_last)
        return 3 * working_padded(x, list(map(int, grid.shape[1:-1])), channels, self.channels_last) + 256 * int(
            grid.elements)  # fmt: skip

    def steps(self, x: Spec, grid: Spec) -> int:
        return product_steps(20 * int(self.infer(x, grid).elements) + 100 * int(grid.elements), x.dtype)

    def _bounded(self, at: Array, size: int) -> Array:
        """Places as what `beyond` makes of them; what is no number becomes the first."""
        if self.beyond == "zeros":
            return at
        real = at.dtype.type
        last = real(size - 1)
        if self.beyond == "reflection":
            low, span = (real(0), last) if self.align_corners else (real(-0.5), real(size))
            away = np.abs(at - low)
            rest, odd = np.fmod(away, span), np.fmod(np.floor(away / span), 2) != 0
            at = np.where(odd, span - rest, rest) + low if span > 0 else np.zeros_like(at)
        held: Array = np.where(at > 0, np.minimum(at, last), real(0))
        return held

    def place(self, coordinate: Array, size: int) -> Array:
        """Where a coordinate lies along an axis, as far as it is bounded before its neighbours are found."""
        real = coordinate.dtype.type
        whole, one = real(size), real(1)
        at = (coordinate + one) * ((whole - one) / 2) if self.align_corners else ((coordinate + one) * whole - one) / 2
        return at if self.mode == "cubic" else self._bounded(at, size)

    def taps(self, at: Array, size: int) -> list[Tap]:
        """What counts along an axis of this size; an index of −1 lies outside."""
        real, one = at.dtype.type, at.dtype.type(1)
        low = np.floor(at)
        t = at - low
        if self.mode == "nearest":
            found = [(np.rint(at), np.ones_like(at))]
        elif self.mode == "linear":
            found = [(low, low + one - at), (low + one, t)]
        else:
            found = [(self._bounded(low + real(shift), size), weight)
                     for shift, weight in zip((-1, 0, 1, 2), _cubic(t), strict=True)]
        inside = [(index >= 0) & (index <= size - 1) & np.isfinite(at) for index, _ in found]
        return [Tap(np.where(ok, index, -1).astype(np.int64), weight)
                for ok, (index, weight) in zip(inside, found, strict=True)]

    def reference(self, x: Array, grid: Array) -> Array:
        wide = channels_first(widen(x), self.channels_last)
        sizes = wide.shape[2:]
        require(min(sizes) > 0, "x has no elements in a spatial dimension")
        total = np.zeros((*grid.shape[:-1], wide.shape[1]), wide.dtype)
        batch = np.arange(len(wide)).reshape(-1, *[1] * len(sizes))
        with np.errstate(all="ignore"):
            places = grid.astype(wide.dtype)
            at = [self.place(places[..., len(sizes) - 1 - i], size) for i, size in enumerate(sizes)]
            axes = [self.taps(one, size) for one, size in zip(at, sizes, strict=True)]
            for taps in product(*axes):
                outside = np.any([tap.places < 0 for tap in taps], axis=0)
                picked = wide[(batch, slice(None), *(tap.places for tap in taps))]  # [N, *S', C]
                weight = math.prod((tap.weight for tap in taps[1:]), start=taps[0].weight)
                total += np.where(outside[..., None], 0, picked * weight[..., None])
        if len(sizes) == 2 and self.mode != "nearest":
            total[~np.all(np.isfinite(at), axis=0)] = np.nan
        return rounded(as_given(np.moveaxis(total, -1, 1), self.channels_last), x)

    def torch(self, torch: Any, x: Any, grid: Any) -> Any:
        wide = torch_wide(channels_first(x, self.channels_last))
        mode = {"linear": "bilinear", "cubic": "bicubic"}.get(self.mode, self.mode)
        if 0 in wide.shape or 0 in grid.shape:  # torch wants elements
            y = wide.new_zeros((*wide.shape[:2], *grid.shape[1:-1]))
        else:
            y = torch.nn.functional.grid_sample(wide, grid.to(wide.dtype), mode, self.beyond, self.align_corners)
        return as_given(y, self.channels_last).to(x.dtype)

    def sample(self, rng: np.random.Generator, x: Spec, grid: Spec) -> tuple[Array, ...]:
        """Places inside and somewhat outside; multiples of 1/64, so that few lie where rounding decides."""
        places = rng.integers(-100, 101, grid.evaluate({})) / 64 + 1 / 256
        return rng.standard_normal(x.evaluate({})).astype(x.dtype.numpy), places.astype(np.float32)

    @classmethod
    def draw(cls, draw: Any) -> Case:
        rank, last = draw.choice([2, 3]), draw.boolean()
        attrs = {"mode": draw.choice(["nearest", "linear", "cubic"][: 3 if rank == 2 else 2]),
                 "beyond": draw.choice(BEYOND), "align_corners": draw.boolean(), "channels_last": last}  # fmt: skip
        batch = draw.choice([0, 1, 2])
        x = shape_of(batch, [draw.choice([1, 2, 3, 6]) for _ in range(rank)], draw.choice([1, 3, 17]), last)
        places = (batch, *(draw.choice([0, 1, 2, 5]) for _ in range(rank)), rank)
        return Case("random", (Spec(x, draw.choice([dtypes.float32, dtypes.bfloat16])), Spec(places, "float32")), attrs)
