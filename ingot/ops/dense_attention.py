"""Attention over whole tensors: queries, keys and values of a batch of heads side by side, no cache."""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot.dims import Dimension
from ingot.ir import Case, F, Op, Spec, op, require
from ingot.ir.spec import Shape, broadcast
from ingot.ops.common import (
    PYTHON_STEPS,
    Array,
    bf16,
    boolean,
    f16,
    f32,
    f64,
    i32,
    product_steps,
    require_float,
    rounded,
    same_dtype,
    show,
    widen,
)

EMPTY_ROWS = ("zero", "nan")


def _leading(q: Shape, kv: Shape) -> Shape:
    """The leading dimensions of the scores: both broadcast; of the heads, q's may be a multiple."""
    if q and kv and q[-1] != kv[-1] and q[-1] != 1 and kv[-1] != 1:
        grouped = isinstance(q[-1], int) and isinstance(kv[-1], int) and kv[-1] > 0 and q[-1] % kv[-1] == 0
        require(grouped, f"q has {q[-1]} heads, which is not a multiple of the {kv[-1]} of k and v")
        return (*broadcast(q[:-1], kv[:-1]), q[-1])
    return broadcast(q, kv)


def _group(q: Shape, kv: Shape) -> int:
    """How many heads of q share one of k or v that does not simply broadcast."""
    if len(q) < 3 or len(kv) < 3 or q[-3] == kv[-3] or 1 in (q[-3], kv[-3]):
        return 1
    heads, shared = q[-3], kv[-3]
    return heads // shared if isinstance(heads, int) and isinstance(shared, int) else 1


def _attend(q: Array, k: Array, v: Array, bias: Array, scale: float, empty_nan: bool) -> Array:
    scores = np.matmul(q, k.swapaxes(-1, -2)) * q.dtype.type(scale) + bias
    best = scores.max(-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(best == -np.inf, 0, best).astype(q.dtype))
    total = weights.sum(-1, keepdims=True)
    keep = empty_nan and k.shape[-2] > 0
    return np.asarray(np.matmul(weights, v) / (total if keep else np.where(total == 0, 1, total).astype(q.dtype)))


@op("scaled_dot_product_attention")
class ScaledDotProductAttention(Op):
    """softmax(scale · q kᵀ + mask) v: q[…, H, T, D], k[…, H, S, D], v[…, H, S, V] → […, H, T, V].

    Leading dimensions broadcast, and q may have a multiple of the heads of k and v (grouped queries). The mask
    broadcasts to […, H, T, S]: a bool one says what is attended to, a float one (q's dtype or float32) is added to the
    scores. `causal`: row t sees the tokens 0 .. t, the others take no part. `scale`: 1/√D when None. `heads_inside`:
    the result is […, T, H, V]. `empty_rows`: what a row gives whose scores are all −inf: "zero", as torch's function
    of this name since 2.5, or "nan", as a softmax written out. A row that has no keys at all gives zeros either way.
    NaN in a masked score or value passes. Computes in float32, rounds once.
    """

    scale: float | None = None
    causal: bool = False
    heads_inside: bool = False
    empty_rows: str = "zero"
    cases = (
        Case("an encoder", (f32("B", 3, 7, 16),) * 3),
        Case("bfloat16 rounds once", (bf16(2, 2, 5, 8),) * 3),
        Case("float16, causal", (f16(2, 5, 8),) * 3, {"causal": True}),
        Case("float64: simpler ops in float64", (f64(2, 5, 8),) * 3),
        Case("a padding mask", (*(f32("B", 2, "T", 8),) * 3, boolean("B", 1, 1, "T"))),
        Case("a relative position bias", (*(bf16("B", 2, 4, 8),) * 3, f32(2, 4, 4)), {"scale": 1.0}),
        Case("a mask of q's dtype", (*(bf16(2, 4, 8),) * 3, bf16(4, 4))),
        Case("a softmax written out: rows that see nothing are NaN", (*(f32("B", 6, 8),) * 3, boolean("B", 6, 1)),
             {"empty_rows": "nan"}),
        Case("NaN rows, bfloat16, causal with a float mask", (*(bf16(2, 9, 4),) * 3, f32(9, 9)),
             {"causal": True, "empty_rows": "nan"}),
        Case("causal, fewer queries than keys: row 0 sees key 0", (f32(3, 4), f32(5, 4), f32(5, 4)), {"causal": True}),
        Case("causal, more queries than keys", (f32(7, 4), f32(3, 4), f32(3, 4)), {"causal": True}),
        Case("causal with a mask", (*(f32(2, 6, 4),) * 3, boolean(6, 6)), {"causal": True}),
        Case("another width of values", (f32(2, 3, 5, 4), f32(2, 3, 6, 4), f32(2, 3, 6, 9))),
        Case("grouped queries", (f32(2, 6, 5, 4), f32(2, 2, 7, 4), f32(2, 2, 7, 4), f32(6, 5, 7))),
        Case("one head of keys for all", (f32("B", 4, 5, 4), f32("B", 1, 7, 4), f32("B", 1, 7, 4))),
        Case("batches broadcast", (f32(2, 1, 2, 5, 4), f32(3, 2, 7, 4), f32(7, 4))),
        Case("as the projection behind it reads it", (f32("B", 3, "T", 8),) * 3, {"heads_inside": True}),
        Case("no keys: zeros", (f32(2, 3, 4), f32(2, 0, 4), f32(2, 0, 4))),
        Case("no keys: zeros, whatever rows of -inf give", (f32(2, 3, 4), f32(2, 0, 4), f32(2, 0, 4)),
             {"empty_rows": "nan"}),
        Case("no queries", (f32(2, 0, 4), f32(2, 3, 4), f32(2, 3, 4)), {"causal": True}),
        Case("an empty batch", (f32(0, 2, 3, 4),) * 3),
        Case("widths differ", (f32(3, 4), f32(3, 8), f32(3, 8)), error="q has width 4 and k has width 8"),
        Case("token counts differ", (f32(3, 4), f32(5, 4), f32(6, 4)), error="k has 5 tokens and v has 6"),
        Case("heads that do not group", (f32(3, 2, 4), f32(2, 2, 4), f32(2, 2, 4)), error="q has 3 heads"),
        Case("integers", (i32(3, 4),) * 3, error="q must be float32"),
        Case("dtypes differ", (f32(3, 4), bf16(3, 4), f32(3, 4)), error="q is float32 and k is bfloat16"),
        Case("an integer mask", (*(f32(3, 4),) * 3, i32(3, 3)), error="mask must be bool, float32"),
        Case("a mask too large", (*(f32(3, 4),) * 3, f32(2, 3, 3)), error="mask of shape .2, 3, 3. does not broadcast"),
        Case("a mask of other tokens", (*(f32(3, 4),) * 3, f32(3, 5)), error="do not broadcast"),
        Case("a vector", (f32(4),) * 3, error="q must have at least two dimensions"),
        Case("no width", (f32(3, 0),) * 3, error="width 0"),
        Case("no heads to put inside", (f32(3, 4),) * 3, {"heads_inside": True}, error="heads_inside needs"),
        Case("rows of another kind", (f32(3, 4),) * 3, {"empty_rows": "mean"}, error="empty_rows must be one of zero"),
        Case("an infinite scale", (f32(3, 4),) * 3, {"scale": float("inf")}, error="scale must be finite"),
    )

    def infer(self, q: Spec, k: Spec, v: Spec, mask: Spec | None = None) -> Spec:
        require_float(q=q)
        same_dtype(q=q, k=k, v=v)
        for name, spec in (("q", q), ("k", k), ("v", v)):
            require(len(spec.shape) >= 2, f"{name} must have at least two dimensions: tokens and width")
        require(q.shape[-1] == k.shape[-1], f"q has width {q.shape[-1]} and k has width {k.shape[-1]}")
        require(q.shape[-1] != 0, "q and k of width 0 have no scores")
        require(k.shape[-2] == v.shape[-2], f"k has {k.shape[-2]} tokens and v has {v.shape[-2]}")
        require(self.scale is None or math.isfinite(self.scale), f"scale must be finite, not {self.scale}")
        require(self.empty_rows in EMPTY_ROWS,
                f"empty_rows must be one of {', '.join(EMPTY_ROWS)}, not {self.empty_rows!r:.40}")
        leading = _leading(q.shape[:-2], broadcast(k.shape[:-2], v.shape[:-2]))
        tokens, width = q.shape[-2], v.shape[-1]
        if mask is not None:
            allowed = (dtypes.bool_, dtypes.float32, q.dtype)
            require(mask.dtype in allowed, f"mask must be {', '.join(dict.fromkeys(d.name for d in allowed))}; cast it")
            scores = (*leading, tokens, k.shape[-2])
            require(broadcast(mask.shape, scores) == scores,
                    f"a mask of shape {show(mask.shape)} does not broadcast to the scores {show(scores)}")
        if not self.heads_inside:
            return Spec((*leading, tokens, width), q.dtype)
        require(len(leading) >= 1, "heads_inside needs a dimension of heads before the tokens")
        return Spec((*leading[:-1], tokens, leading[-1], width), q.dtype)

    def scale_of(self, q: Any) -> float:
        """What multiplies the scores, for queries of a known width."""
        return 1 / math.sqrt(max(int(q.shape[-1]), 1)) if self.scale is None else self.scale

    def working(self, q: Spec, k: Spec, v: Spec, mask: Spec | None = None) -> int:
        """Keys and values for every head, and a few arrays of scores."""
        leading = math.prod(map(int, _leading(q.shape[:-2], broadcast(k.shape[:-2], v.shape[:-2]))))
        rows = 1 if self.causal else int(q.shape[-2])
        each = int(k.shape[-2]) * (int(q.shape[-1]) + int(v.shape[-1]) + 4 * rows)
        return leading * each * max(q.dtype.numpy.itemsize, 4)

    def steps(self, q: Spec, k: Spec, v: Spec, mask: Spec | None = None) -> int:
        """Two products, row by row where it is causal."""
        leading = math.prod(map(int, _leading(q.shape[:-2], broadcast(k.shape[:-2], v.shape[:-2]))))
        rows, keys, width = int(q.shape[-2]), int(k.shape[-2]), int(q.shape[-1]) + int(v.shape[-1])
        return product_steps(leading * rows * keys * width, q.dtype) + rows * self.causal * 8 * PYTHON_STEPS

    def reference(self, q: Array, k: Array, v: Array, mask: Array | None = None) -> Array:
        wide = widen(q)
        keys, values = (np.repeat(x, _group(q.shape, x.shape), -3) if x.ndim > 2 else x for x in (widen(k), widen(v)))
        leading = np.broadcast_shapes(q.shape[:-2], keys.shape[:-2], values.shape[:-2])
        bias: Array = np.zeros((), wide.dtype)
        if mask is not None:
            bias = np.where(mask, 0, -np.inf) if mask.dtype == np.bool_ else widen(mask)
        bias = np.broadcast_to(bias.astype(wide.dtype), (*leading, q.shape[-2], k.shape[-2]))
        out = np.empty((*leading, q.shape[-2], v.shape[-1]), wide.dtype)
        with np.errstate(all="ignore"):
            if not self.causal:
                out[...] = _attend(wide, keys, values, bias, self.scale_of(q), self.empty_rows == "nan")
            for t in range(q.shape[-2] if self.causal else 0):
                row, seen = slice(t, t + 1), slice(0, t + 1)
                out[..., row, :] = _attend(wide[..., row, :], keys[..., seen, :], values[..., seen, :],
                                           bias[..., row, seen], self.scale_of(q), self.empty_rows == "nan")
        return rounded(np.moveaxis(out, -3, -2) if self.heads_inside else out, q)

    def decompose(self, q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        narrow = dtypes.get(q.dtype).bits < 32
        wide = dtypes.float32 if narrow else dtypes.get(q.dtype)
        keys, values = (_repeated(x, _group(q.shape, x.shape)) for x in (k, v))
        scores = F.mul(F.matmul(q, keys, transpose_b=True, out_dtype=wide), self.scale_of(q))
        if mask is not None:
            boolean = dtypes.get(mask.dtype) is dtypes.bool_
            bias = F.where(mask, np.zeros((), wide.numpy), -math.inf) if boolean else F.cast(mask, wide)
            scores = F.add(scores, bias)
        tokens, seen = q.shape[-2], k.shape[-2]
        if self.causal:
            row = F.reshape(F.iota(size=tokens, dtype=dtypes.int32), (tokens, 1))
            scores = F.where(F.less_equal(F.iota(size=seen, dtype=dtypes.int32), row), scores, -math.inf)
        weights = scores
        if seen != 0:
            weights = F.softmax(scores)
            if self.empty_rows == "zero":
                nothing = F.equal(F.reduce_max(scores, (-1,), True), -math.inf)
                weights = F.where(nothing, np.zeros((), wide.numpy), weights)
        out = F.matmul(weights, F.cast(values, wide) if narrow else values)
        if self.heads_inside:
            rank = len(out.shape)
            out = F.permute(out, (*range(rank - 3), rank - 2, rank - 3, rank - 1))
        return F.cast(out, q.dtype) if narrow else out

    def torch(self, torch: Any, q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        narrow, wide = q.dtype, q.dtype if q.dtype == torch.float64 else torch.float32
        if mask is not None and mask.dtype != torch.bool:
            mask = mask.to(wide)
        if self.causal:  # torch takes either a mask or is_causal
            seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
            if mask is None or mask.dtype == torch.bool:
                mask = seen if mask is None else mask & seen
            else:
                mask = mask.masked_fill(~seen, -math.inf)
        k, v = (x.repeat_interleave(_group(q.shape, x.shape), -3) if x.ndim > 2 else x for x in (k, v))
        leading = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
        q, k, v = (x.expand(*leading, *x.shape[-2:]) for x in (q, k, v))
        q, k, v = (x.to(wide) for x in (q, k, v))
        scores = q @ k.transpose(-2, -1) * self.scale_of(q)
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
        weights = torch.softmax(scores, -1)
        if self.empty_rows == "zero" and mask is not None:
            weights = weights.masked_fill((scores == -math.inf).all(-1, keepdim=True), 0)
        out = weights @ v
        return (out.transpose(-3, -2) if self.heads_inside else out).to(narrow)

    def sample(self, rng: np.random.Generator, *specs: Spec) -> tuple[Array, ...]:
        """Of a float mask a third is −inf, so that some rows see little or nothing."""
        arrays = []
        for i, spec in enumerate(specs):
            shape = spec.evaluate({})
            if spec.dtype is dtypes.bool_:
                arrays.append(rng.random(shape) < 0.7)
                continue
            x = rng.standard_normal(shape)
            arrays.append((np.where(rng.random(shape) < 0.3, -np.inf, x) if i == 3 else x).astype(spec.dtype.numpy))
        return tuple(np.asarray(a) for a in arrays)

    @classmethod
    def draw(cls, draw: Any) -> Case:
        tokens, seen = draw.size(), draw.size()
        width, values = draw.size(1), draw.size()
        leading = draw.broadcastable(3, rank=2)
        dtype = draw.choice([dtypes.float32, dtypes.bfloat16])
        shapes = (tokens, width), (seen, width), (seen, values)
        specs = [Spec((*a, *b), dtype) for a, b in zip(leading, shapes, strict=True)]
        if draw.boolean():
            scores = (*broadcast(*leading), tokens, seen)
            kept = tuple(1 if draw.boolean() else d for d in scores)
            specs.append(Spec(kept[draw.choice(range(len(kept) + 1)):], draw.choice([dtypes.bool_, dtypes.float32])))
        inside = bool(broadcast(*leading)) and draw.boolean()
        return Case("random", tuple(specs), {"causal": draw.boolean(), "heads_inside": inside,
                                             "empty_rows": draw.choice(EMPTY_ROWS)})


def _repeated(x: Any, times: int) -> Any:
    """Each head `times` times: [..., H, S, D] → [..., H·times, S, D]."""
    if times == 1:
        return x
    *leading, heads, tokens, width = x.shape
    wide: tuple[Dimension, ...] = (*leading, heads, times, tokens, width)
    x = F.expand(F.reshape(x, (*leading, heads, 1, tokens, width)), wide)
    return F.reshape(x, (*leading, dims.mul(heads, times), tokens, width))
