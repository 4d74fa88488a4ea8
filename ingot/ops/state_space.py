"""State spaces whose parameters follow from the data."""
from __future__ import annotations

from typing import Any

import numpy as np

from ingot import dtypes
from ingot.ir import Case, Op, Spec, op, require
from ingot.ops.common import (
    PYTHON_STEPS,
    Array,
    bf16,
    f16,
    f32,
    f64,
    i32,
    require_float,
    rounded,
    same_dtype,
    show,
    torch_wide,
    widen,
)

WIDE = ("a", "skip", "h0")  # what may be float32 beside narrower floats


@op("selective_scan")
class SelectiveScan(Op):
    """h_s = exp(delta·a_s)·h_s + delta·x·b_s and y = Σ_s c_s·h_s + skip·x, step after step, for every channel (Mamba).

    x, delta [N, T, D], a [D, S], b, c [N, T, G, S] shared by D/G neighbouring channels, skip [D], h0 [N, D, S] → y
    [N, T, D] and the last states [N, D, S] of h0's dtype. a, skip and h0 may be float32 beside narrower floats. The
    states stay in float32 (float64 of float64) from the first step to the last; results are rounded once.
    """

    cases = (
        Case("a sequence",
             (*[f32("N", "T", 20)] * 2, f32(20, 5), *[f32("N", "T", 1, 5)] * 2, f32(20), f32("N", 20, 5))),
        Case("groups", (*[f32(2, 9, 36)] * 2, f32(36, 3), *[f32(2, 9, 2, 3)] * 2, f32(36), f32(2, 36, 3))),
        Case("one step in bfloat16, states in float32",
             (*[bf16(3, 1, 7)] * 2, f32(7, 4), *[bf16(3, 1, 1, 4)] * 2, f32(7), f32(3, 7, 4))),
        Case("all of float16", (*[f16(1, 4, 5)] * 2, f16(5, 4), *[f16(1, 4, 1, 4)] * 2, f16(5), f16(1, 5, 4))),
        Case("float64", (*[f64(2, 3, 4)] * 2, f64(4, 2), *[f64(2, 3, 1, 2)] * 2, f64(4), f64(2, 4, 2)),
             host="float64 sums are the interpreter's"),
        Case("no steps", (*[f32(2, 0, 4)] * 2, f32(4, 2), *[f32(2, 0, 1, 2)] * 2, f32(4), f32(2, 4, 2))),
        Case("groups that do not divide",
             (*[f32(2, 3, 4)] * 2, f32(4, 2), *[f32(2, 3, 3, 2)] * 2, f32(4), f32(2, 4, 2)),
             error="4 channels do not split into 3 groups"),
        Case("another delta", (f32(2, 3, 4), f32(2, 3, 1), f32(4, 2), *[f32(2, 3, 1, 2)] * 2, f32(4), f32(2, 4, 2)),
             error=r"delta must be \(2, 3, 4\), not \(2, 3, 1\)"),
        Case("other states", (*[f32(2, 3, 4)] * 2, f32(4, 2), *[f32(2, 3, 1, 2)] * 2, f32(4), f32(2, 4, 3)),
             error=r"h0 must be \(2, 4, 2\)"),
        Case("integers", (*[i32(2, 3, 4)] * 2, f32(4, 2), *[f32(2, 3, 1, 2)] * 2, f32(4), f32(2, 4, 2)),
             error="x must be float32"),
        Case("a narrow a", (*[f32(2, 3, 4)] * 2, bf16(4, 2), *[f32(2, 3, 1, 2)] * 2, f32(4), f32(2, 4, 2)),
             error="a is bfloat16 beside float32"),
    )  # fmt: skip

    def infer(
        self, x: Spec, delta: Spec, a: Spec, b: Spec, c: Spec, skip: Spec, h0: Spec
    ) -> tuple[Spec, Spec]:
        require_float(x=x)
        same_dtype(x=x, delta=delta, b=b, c=c)
        wide = dtypes.float32 if x.dtype.bits < 32 else x.dtype
        for name, spec in zip(WIDE, (a, skip, h0), strict=True):
            require(spec.dtype in (x.dtype, wide),
                    f"{name} is {spec.dtype.name} beside {x.dtype.name}: cast one of them")
        require(len(x.shape) == 3, f"x must be [N, T, D], not {show(x.shape)}")
        require(len(b.shape) == 4, f"b must be [N, T, G, S], not {show(b.shape)}")
        rows, steps, channels = x.shape
        groups, states = b.shape[2:]
        require(isinstance(channels, int) and isinstance(groups, int) and groups > 0 and channels % groups == 0,
                f"{channels} channels do not split into {groups} groups")
        wanted = {"delta": (delta, (rows, steps, channels)), "a": (a, (channels, states)),
                  "b": (b, (rows, steps, groups, states)), "c": (c, (rows, steps, groups, states)),
                  "skip": (skip, (channels,)), "h0": (h0, (rows, channels, states))}  # fmt: skip
        for name, (spec, shape) in wanted.items():
            require(spec.shape == shape, f"{name} must be {show(shape)}, not {show(spec.shape)}")
        return x, h0

    def working(self, *specs: Spec) -> int:
        """Operands in float32, and a few arrays of the states."""
        return 8 * sum(int(s.elements) for s in specs) + 40 * int(specs[6].elements)

    def steps(self, *specs: Spec) -> int:
        """A few calls for each step."""
        return int(specs[0].shape[1]) * (20 * int(specs[6].elements) + 12 * PYTHON_STEPS)

    def reference(
        self, x: Array, delta: Array, a: Array, b: Array, c: Array, skip: Array, h0: Array
    ) -> tuple[Array, Array]:
        each = x.shape[2] // b.shape[2]
        u, step, rates, into, out = map(widen, (x, delta, a, b, c))
        h = widen(h0).astype(u.dtype)
        y = widen(skip).astype(u.dtype) * u
        with np.errstate(all="ignore"):
            for t in range(x.shape[1]):
                b_t, c_t = (np.repeat(v[:, t], each, 1) for v in (into, out))
                h = np.exp(step[:, t, :, None] * rates) * h + (step[:, t] * u[:, t])[:, :, None] * b_t
                y[:, t] += (c_t * h).sum(-1)
        return rounded(y, x), rounded(h, h0)

    def torch(self, torch: Any, x: Any, delta: Any, a: Any, b: Any, c: Any, skip: Any, h0: Any) -> Any:
        each = x.shape[2] // b.shape[2]
        u, step, rates, h = map(torch_wide, (x, delta, a, h0))
        into, out = (torch_wide(v).repeat_interleave(each, 2) for v in (b, c))
        results = []
        for t in range(x.shape[1]):
            h = torch.exp(step[:, t, :, None] * rates) * h + (step[:, t] * u[:, t])[:, :, None] * into[:, t]
            results.append((out[:, t] * h).sum(-1))
        y = torch.stack(results, 1) if results else torch.zeros_like(u)
        return (y + torch_wide(skip) * u).to(x.dtype), h.to(h0.dtype)

    def sample(self, rng: np.random.Generator, *specs: Spec) -> tuple[Array, ...]:
        """Steps above 0 and rates below it, as nets have them."""
        arrays = [rng.standard_normal(s.evaluate({})) for s in specs]
        arrays[1], arrays[2] = np.abs(arrays[1]) / 4, -np.abs(arrays[2]) - 0.5
        return tuple(np.asarray(a.astype(s.dtype.numpy)) for a, s in zip(arrays, specs, strict=True))

    @classmethod
    def draw(cls, draw: Any) -> Case:
        rows, steps, groups, each, states = draw.size(), draw.size(), draw.choice([1, 2, 3]), draw.size(1), draw.size()
        dtype, channels = draw.choice([dtypes.float32, dtypes.bfloat16]), groups * each
        wide = draw.choice([dtype, dtypes.float32])
        x, b = Spec((rows, steps, channels), dtype), Spec((rows, steps, groups, states), dtype)
        return Case("random", (x, x, Spec((channels, states), wide), b, b, Spec((channels,), wide),
                               Spec((rows, channels, states), wide)))  # fmt: skip
