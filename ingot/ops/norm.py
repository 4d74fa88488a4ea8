"""Normalisation over the last dimension. Accumulates in float32, two passes for the variance, rounds once."""
from __future__ import annotations

from typing import Any

import numpy as np

from ingot import dtypes
from ingot.ir import Case, F, Op, Spec, op, require
from ingot.ops.common import Array, bf16, f32, i32, require_float, rounded, same_dtype, show, widen


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
    """x / sqrt(mean(x², last) + eps) · weight; without weight, ones. Accumulates in float32, rounds once."""

    eps: float = 1e-6
    kernels = ("rms_norm",)
    cases = (
        Case("one decode row", (f32(1, 64), f32(64))),
        Case("odd width: misses the vector path", (f32(3, 7), f32(7))),
        Case("bfloat16 rounds once", (bf16("T", 64), bf16(64))),
        Case("no weight", (f32(2, 3, 16),)),
        Case("per head", (bf16("T", 4, 16), bf16(16)), {"eps": 1e-5}),
        Case("wrong weight", (f32("T", 8), f32(4)), error=r"rms_norm\(x=f32\[T, 8\], weight=f32\[4\]\).*last dim"),
        Case("mixed dtypes", (bf16(2, 8), f32(8)), error="x is bfloat16 and weight is float32"),
        Case("integers", (i32(2, 8), i32(8)), error="x must be float32"),
        Case("eps is text", (f32(2, 8), f32(8)), {"eps": "small"}, error="attribute eps must be a float, not 'small'"),
    )

    def infer(self, x: Spec, weight: Spec | None = None) -> Spec:
        return _check(x, weight=weight)

    def reference(self, x: Array, weight: Array | None = None) -> Array:
        wide = widen(x)
        y = wide / np.sqrt(_mean(wide * wide) + wide.dtype.type(self.eps))
        return rounded(y if weight is None else y * widen(weight), x)

    def decompose(self, x: Any, weight: Any = None) -> Any:
        narrow = dtypes.get(x.dtype).bits < 32
        wide = F.cast(x, dtypes.float32) if narrow else x
        y = F.mul(wide, F.rsqrt(F.add(F.reduce_mean(F.mul(wide, wide), (-1,), True), self.eps)))
        if weight is not None:
            y = F.mul(y, F.cast(weight, dtypes.float32) if narrow else weight)
        return F.cast(y, x.dtype) if narrow else y

    def torch(self, torch: Any, x: Any, weight: Any = None) -> Any:
        w = None if weight is None else weight.float()
        return torch.nn.functional.rms_norm(x.float(), x.shape[-1:], w, self.eps).to(x.dtype)

    @classmethod
    def draw(cls, draw: Any) -> Case:
        shape = draw.shape(least=1, min_rank=1)
        dtype = draw.choice([dtypes.float32, dtypes.bfloat16])
        return Case("random", (Spec(dtype, shape), Spec(dtype, shape[-1:]))[: draw.choice([1, 2])])


@op("layer_norm")
class LayerNorm(Op):
    """(x − mean) / sqrt(variance + eps) · weight + bias over the last dimension; missing ones and zeros.

    A bias needs a weight before it.
    """

    eps: float = 1e-5
    kernels = ("layer_norm",)
    cases = (
        Case("one row", (f32(1, 64), f32(64), f32(64))),
        Case("no bias, odd width", (f32(3, 7), f32(7))),
        Case("neither", (f32("T", 16),)),
        Case("bfloat16 rounds once", (bf16("T", 64), bf16(64), bf16(64))),
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
        w, b = (None if v is None else v.float() for v in (weight, bias))
        return torch.nn.functional.layer_norm(x.float(), x.shape[-1:], w, b, self.eps).to(x.dtype)

    @classmethod
    def draw(cls, draw: Any) -> Case:
        shape = draw.shape(least=2, min_rank=1)
        dtype = draw.choice([dtypes.float32, dtypes.bfloat16])
        vector = Spec(dtype, shape[-1:])
        return Case("random", (Spec(dtype, shape), vector, vector)[: draw.choice([1, 2, 3])])
