"""Normalisation over the last dimension or over groups of channels, and by given statistics.

Accumulates in float32, two passes for the variance, rounds once.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot.ir import Case, F, Op, Spec, op, require
from ingot.ir.spec import elements
from ingot.ops.common import Array, bf16, f16, f32, i32, require_float, rounded, same_dtype, show, torch_wide, widen


def _check(x: Spec, **vectors: Spec | None) -> Spec:
    require_float(x=x)
    require(len(x.shape) >= 1, "x needs at least one dimension")
    for name, vector in vectors.items():
        if vector is not None:
            require(vector.shape == x.shape[-1:],
                    f"{name} must have shape {show(x.shape[-1:])}, the last dimension of x")
            same_dtype(x=x, **{name: vector})
    return x


def _mean(x: Array) -> Array:
    """Over the last dimension, which a run may find empty."""
    return np.asarray(np.sum(x, -1, keepdims=True) / x.dtype.type(max(x.shape[-1], 1)))


@op("rms_norm")
class RmsNorm(Op):
    """x / sqrt(mean(x², last) + eps) · (weight + shift); without weight, ones. Accumulates in float32, rounds once.

    `shift`: for weights that are stored around 0. The sum with it is not rounded.
    """

    eps: float = 1e-6
    shift: float = 0.0
    version = 2  # 1 had no shift
    cases = (
        Case("one decode row", (f32(1, 64), f32(64))),
        Case("odd width: misses the vector path", (f32(3, 7), f32(7))),
        Case("bfloat16 rounds once", (bf16("T", 64), bf16(64))),
        Case("no weight", (f32(2, 3, 16),)),
        Case("per head", (bf16("T", 4, 16), bf16(16)), {"eps": 1e-5}),
        Case("a weight around 0", (f32(1, 64), f32(64)), {"shift": 1.0}),
        Case("a shift of bfloat16: the sum is not rounded", (bf16("T", 16), bf16(16)), {"shift": 1.0}),
        Case("a negative shift, per head", (bf16("T", 4, 16), bf16(16)), {"eps": 1e-5, "shift": -0.5}),
        Case("eps below 0: simpler ops", (f32(3, 64), f32(64)), {"eps": -0.25}),
        Case("a shift of nothing", (f32(2, 8),), {"shift": 1.0}, error="a shift needs a weight"),
        Case("wrong weight", (f32("T", 8), f32(4)), error=r"rms_norm\(x=f32\[T, 8\], weight=f32\[4\]\).*last dim"),
        Case("mixed dtypes", (bf16(2, 8), f32(8)), error="x is bfloat16 and weight is float32"),
        Case("integers", (i32(2, 8), i32(8)), error="x must be float32"),
        Case("eps is text", (f32(2, 8), f32(8)), {"eps": "small"}, error="attribute eps must be a float, not 'small'"),
    )

    def infer(self, x: Spec, weight: Spec | None = None) -> Spec:
        require(weight is not None or self.shift == 0, "a shift needs a weight")
        return _check(x, weight=weight)

    def reference(self, x: Array, weight: Array | None = None) -> Array:
        wide = widen(x)
        y = wide / np.sqrt(_mean(wide * wide) + wide.dtype.type(self.eps))
        return rounded(y if weight is None else y * (widen(weight) + wide.dtype.type(self.shift)), x)

    def decompose(self, x: Any, weight: Any = None) -> Any:
        narrow = dtypes.get(x.dtype).bits < 32
        wide = F.cast(x, dtypes.float32) if narrow else x
        y = F.mul(wide, F.rsqrt(F.add(F.reduce_mean(F.mul(wide, wide), (-1,), True), self.eps)))
        if weight is not None:
            factor = F.cast(weight, dtypes.float32) if narrow else weight
            y = F.mul(y, F.add(factor, self.shift) if self.shift else factor)
        return F.cast(y, x.dtype) if narrow else y

    def torch(self, torch: Any, x: Any, weight: Any = None) -> Any:
        w = None if weight is None else torch_wide(weight) + self.shift
        return torch.nn.functional.rms_norm(torch_wide(x), x.shape[-1:], w, self.eps).to(x.dtype)

    @classmethod
    def draw(cls, draw: Any) -> Case:
        shape = draw.shape(least=1, min_rank=1)
        dtype = draw.choice([dtypes.float32, dtypes.bfloat16])
        specs = (Spec(shape, dtype), Spec(shape[-1:], dtype))[: draw.choice([1, 2])]
        return Case("random", specs, {"shift": draw.choice([0.0, 1.0])} if len(specs) == 2 else {})


@op("layer_norm")
class LayerNorm(Op):
    """(x − mean) / sqrt(variance + eps) · weight + bias over the last dimension; missing ones and zeros.

    A bias needs a weight before it.
    """

    eps: float = 1e-5
    cases = (
        Case("one row", (f32(1, 64), f32(64), f32(64))),
        Case("no bias, odd width", (f32(3, 7), f32(7))),
        Case("neither", (f32("T", 16),)),
        Case("bfloat16 rounds once", (bf16("T", 64), bf16(64), bf16(64))),
        Case("eps below 0: simpler ops", (f32(3, 64), f32(64), f32(64)), {"eps": -0.25}),
        Case("wrong bias", (f32(2, 8), f32(8), f32(4)), error="bias must have shape"),
    )

    def infer(self, x: Spec, weight: Spec | None = None, bias: Spec | None = None) -> Spec:
        return _check(x, weight=weight, bias=bias)

    def reference(self, x: Array, weight: Array | None = None, bias: Array | None = None) -> Array:
        wide = widen(x)
        centred = wide - _mean(wide)
        y = centred / np.sqrt(_mean(centred * centred) + wide.dtype.type(self.eps))
        y = y if weight is None else y * widen(weight)
        return rounded(y if bias is None else y + widen(bias), x)

    def decompose(self, x: Any, weight: Any = None, bias: Any = None) -> Any:
        def widened(v: Any) -> Any:
            return F.cast(v, dtypes.float32) if dtypes.get(v.dtype).bits < 32 else v

        wide = widened(x)
        centred = F.sub(wide, F.reduce_mean(wide, (-1,), True))
        y = F.mul(centred, F.rsqrt(F.add(F.reduce_mean(F.mul(centred, centred), (-1,), True), self.eps)))
        y = y if weight is None else F.mul(y, widened(weight))
        return F.cast(y if bias is None else F.add(y, widened(bias)), x.dtype)

    def torch(self, torch: Any, x: Any, weight: Any = None, bias: Any = None) -> Any:
        w, b = (None if v is None else torch_wide(v) for v in (weight, bias))
        return torch.nn.functional.layer_norm(torch_wide(x), x.shape[-1:], w, b, self.eps).to(x.dtype)

    @classmethod
    def draw(cls, draw: Any) -> Case:
        shape = draw.shape(least=2, min_rank=1)
        dtype = draw.choice([dtypes.float32, dtypes.bfloat16])
        vector = Spec(shape[-1:], dtype)
        return Case("random", (Spec(shape, dtype), vector, vector)[: draw.choice([1, 2, 3])])


def _channels(x: Spec, channels_last: bool, **vectors: Spec | None) -> Any:
    """x's number of channels, after checking x and vectors of one entry per channel."""
    require_float(x=x)
    require(len(x.shape) >= 2, f"x must be {'[N, …, C]' if channels_last else '[N, C, …]'}, got {show(x.shape)}")
    channels = x.shape[-1 if channels_last else 1]
    for name, vector in vectors.items():
        if vector is not None:
            require(vector.shape == (channels,), f"{name} must have shape {show((channels,))}, x's channels")
            same_dtype(x=x, **{name: vector})
    return channels


def _widened(v: Any) -> Any:
    """A symbolic or eager operand in the dtype it is computed in."""
    return F.cast(v, dtypes.float32) if dtypes.get(v.dtype).bits < 32 else v


def _per_channel(v: Any, rank: int, channels_last: bool) -> Any:
    """A vector [C] that broadcasts to x."""
    return v if channels_last else F.reshape(v, (*v.shape, *[1] * (rank - 2)))


@op("group_norm")
class GroupNorm(Op):
    """Each of `groups` groups of channels of x [N, C, …] normalised over its channels and all further dimensions:
    (x − mean) / sqrt(variance + eps) · weight[C] + bias[C]; missing ones and zeros. A bias needs a weight before it.
    """

    groups: int
    eps: float = 1e-5
    channels_last: bool = False
    cases = (
        Case("as U-Nets have it", (f32(2, 16, 5, 7), f32(16), f32(16)), {"groups": 8}),
        Case("the same, channels last", (f32(2, 5, 7, 16), f32(16), f32(16)), {"groups": 8, "channels_last": True}),
        Case("one group, 3-D", (f32(2, 6, 3, 2, 4), f32(6), f32(6)), {"groups": 1}),
        Case("a channel is a group: instance norm", (f32(2, 5, 9),), {"groups": 5}),
        Case("groups of 5 channels, channels last: no vector holds one", (f32(2, 9, 15), f32(15)),
             {"groups": 3, "channels_last": True}),
        Case("[N, C]", (f32(3, 6), f32(6), f32(6)), {"groups": 2}),
        Case("batch and sizes unknown", (f32("N", 8, "H", "W"), f32(8), f32(8)), {"groups": 4, "eps": 1e-3}),
        Case("sizes unknown, channels last", (f32("N", "H", "W", 8), f32(8)), {"groups": 4, "channels_last": True}),
        Case("bfloat16 rounds once", (bf16(2, 8, 30), bf16(8), bf16(8)), {"groups": 2}),
        Case("float16 rounds once, channels last", (f16(2, 30, 8), f16(8), f16(8)),
             {"groups": 2, "channels_last": True}),
        Case("no samples", (f32(0, 4, 3), f32(4), f32(4)), {"groups": 2}),
        Case("channels that do not divide", (f32(2, 8, 3),), {"groups": 3}, error="8 channels are not a multiple of 3"),
        Case("no groups", (f32(2, 8, 3),), {"groups": 0}, error="groups must be at least 1, got 0"),
        Case("no channels", (f32(8),), {"groups": 2}, error=r"x must be \[N, C, …\], got \(8,\)"),
        Case("nothing to normalise", (f32(2, 8, 0),), {"groups": 2}, error="x has no elements"),
        Case("a weight of another size", (f32(2, 8, 3), f32(3)), {"groups": 2}, error=r"weight must have shape \(8,\)"),
        Case("a bias of another dtype", (bf16(2, 8, 3), bf16(8), f32(8)), {"groups": 2},
             error="x is bfloat16 and bias is float32"),
        Case("integers", (i32(2, 8, 3),), {"groups": 2}, error="x must be float32"),
    )

    def infer(self, x: Spec, weight: Spec | None = None, bias: Spec | None = None) -> Spec:
        require(self.groups >= 1, f"groups must be at least 1, got {self.groups}")
        channels = _channels(x, self.channels_last, weight=weight, bias=bias)
        require(dims.mod(channels, self.groups) == 0, f"{channels} channels are not a multiple of {self.groups} groups")
        require(all(n != 0 for n in x.shape[1:]), "x has no elements in a sample, of which nothing is normalised")
        return x

    def reference(self, x: Array, weight: Array | None = None, bias: Array | None = None) -> Array:
        wide = np.moveaxis(widen(x), -1, 1) if self.channels_last else widen(x)
        groups = wide.reshape(len(x), self.groups, wide[:1].size // self.groups if len(x) else 1)
        with np.errstate(all="ignore"):
            centred = groups - _mean(groups)
            y = (centred / np.sqrt(_mean(centred * centred) + wide.dtype.type(self.eps))).reshape(wide.shape)
            y = np.moveaxis(y, 1, -1)
            y = y if weight is None else y * widen(weight)
            y = y if bias is None else y + widen(bias)
        return rounded(np.ascontiguousarray(y if self.channels_last else np.moveaxis(y, -1, 1)), x)

    def decompose(self, x: Any, weight: Any = None, bias: Any = None) -> Any:
        wide, rank, last = _widened(x), len(x.shape), self.channels_last
        inner = dims.floordiv(x.shape[-1 if last else 1], self.groups)
        area = elements(x.shape[1:-1] if last else x.shape[2:])
        shape, axes = ((area, self.groups, inner), (1, 3)) if last else ((self.groups, dims.mul(inner, area)), (2,))
        groups = F.reshape(wide, (x.shape[0], *shape))
        centred = F.sub(groups, F.reduce_mean(groups, axes, True))
        variance = F.reduce_mean(F.mul(centred, centred), axes, True)
        y = F.reshape(F.mul(centred, F.rsqrt(F.add(variance, self.eps))), tuple(x.shape))
        y = y if weight is None else F.mul(y, _per_channel(_widened(weight), rank, last))
        return F.cast(y if bias is None else F.add(y, _per_channel(_widened(bias), rank, last)), x.dtype)

    def torch(self, torch: Any, x: Any, weight: Any = None, bias: Any = None) -> Any:
        wide = torch_wide(x).movedim(-1, 1) if self.channels_last else torch_wide(x)
        w, b = (None if v is None else torch_wide(v) for v in (weight, bias))
        y = torch.nn.functional.group_norm(wide, self.groups, w, b, self.eps)
        return (y.movedim(1, -1) if self.channels_last else y).to(x.dtype)

    @classmethod
    def draw(cls, draw: Any) -> Case:
        groups, last = draw.choice([1, 2, 3, 8]), draw.boolean()
        vector = (groups * draw.choice([1, 2, 4, 5]),)
        sizes = tuple(draw.choice([2, 3, 5, 7]) for _ in range(draw.choice([1, 2, 3])))
        dtype = draw.choice([dtypes.float32, dtypes.bfloat16])
        sample = (*sizes, *vector) if last else (*vector, *sizes)
        specs = (Spec((draw.choice([0, 1, 2]), *sample), dtype), Spec(vector, dtype), Spec(vector, dtype))
        return Case("random", specs[: draw.choice([1, 2, 3])], {"groups": groups, "channels_last": last})


@op("batch_norm")
class BatchNorm(Op):
    """(x − mean[C]) / sqrt(variance[C] + eps) · weight[C] + bias[C] of x [N, C, …], with statistics that are given.

    A bias needs a weight before it. Computed in float32, rounded once.
    """

    eps: float = 1e-5
    cases = (
        Case("images", (f32(2, 3, 4, 5), f32(3), f32(3), f32(3), f32(3))),
        Case("no weight", (f32(2, 3, 4), f32(3), f32(3)), {"eps": 1e-3}),
        Case("no bias, volumes", (f32(1, 3, 2, 2, 2), f32(3), f32(3), f32(3))),
        Case("[N, C]", (f32(4, 3), f32(3), f32(3), f32(3), f32(3))),
        Case("batch and sizes unknown", (f32("N", 3, "H", "W"), f32(3), f32(3), f32(3), f32(3))),
        Case("bfloat16 rounds once", (bf16(2, 5, 7), bf16(5), bf16(5), bf16(5), bf16(5))),
        Case("float16 rounds once", (f16(2, 5, 7), f16(5), f16(5), f16(5), f16(5))),
        Case("no samples", (f32(0, 3, 4), f32(3), f32(3))),
        Case("a variance of another size", (f32(2, 3, 4), f32(3), f32(4)), error=r"variance must have shape \(3,\)"),
        Case("a vector", (f32(3), f32(3), f32(3)), error=r"x must be \[N, C, …\]"),
        Case("dtypes differ", (bf16(2, 3), f32(3), f32(3)), error="x is bfloat16 and mean is float32"),
        Case("integers", (i32(2, 3), i32(3), i32(3)), error="x must be float32"),
    )

    def infer(self, x: Spec, mean: Spec, variance: Spec, weight: Spec | None = None, bias: Spec | None = None) -> Spec:
        _channels(x, False, mean=mean, variance=variance, weight=weight, bias=bias)
        return x

    def reference(self, x: Array, mean: Array, variance: Array, weight: Array | None = None,
                  bias: Array | None = None) -> Array:
        wide = np.moveaxis(widen(x), 1, -1)
        with np.errstate(all="ignore"):
            y = (wide - widen(mean)) / np.sqrt(widen(variance) + wide.dtype.type(self.eps))
            y = y if weight is None else y * widen(weight)
            y = y if bias is None else y + widen(bias)
        return rounded(np.ascontiguousarray(np.moveaxis(y, -1, 1)), x)

    def decompose(self, x: Any, mean: Any, variance: Any, weight: Any = None, bias: Any = None) -> Any:
        def vector(v: Any) -> Any:
            return _per_channel(v, len(x.shape), False)

        scale = F.rsqrt(F.add(_widened(variance), self.eps))
        scale = scale if weight is None else F.mul(scale, _widened(weight))
        y = F.mul(F.sub(_widened(x), vector(_widened(mean))), vector(scale))
        return F.cast(y if bias is None else F.add(y, vector(_widened(bias))), x.dtype)

    def torch(self, torch: Any, x: Any, mean: Any, variance: Any, weight: Any = None, bias: Any = None) -> Any:
        w, b = (None if v is None else torch_wide(v) for v in (weight, bias))
        return torch.nn.functional.batch_norm(
            torch_wide(x), torch_wide(mean), torch_wide(variance), w, b, eps=self.eps).to(x.dtype)

    def sample(self, rng: np.random.Generator, *specs: Spec) -> tuple[Array, ...]:
        """A variance is not negative."""
        arrays = [rng.standard_normal(s.evaluate({})).astype(s.dtype.numpy) for s in specs]
        arrays[2] = np.abs(arrays[2]) + arrays[2].dtype.type(0.5)
        return tuple(arrays)

    @classmethod
    def draw(cls, draw: Any) -> Case:
        channels = (draw.choice([1, 3, 8]),)
        sizes = tuple(draw.choice([1, 2, 5]) for _ in range(draw.choice([0, 1, 2, 3])))
        dtype = draw.choice([dtypes.float32, dtypes.bfloat16])
        x, vector = Spec((draw.choice([0, 1, 2]), *channels, *sizes), dtype), Spec(channels, dtype)
        return Case("random", (x, vector, vector, vector, vector)[: draw.choice([3, 4, 5])])
