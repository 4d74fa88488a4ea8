"""The matrix product."""
from __future__ import annotations

from typing import Any

import numpy as np

from ingot import dtypes
from ingot.dtypes import DType
from ingot.ir import Case, Op, Spec, op, require
from ingot.ir.expr import integer_range
from ingot.ir.spec import broadcast
from ingot.ops.common import Array, bf16, f32, f64, i8, i32, i64, product_steps, rounded, same_dtype, show


@op("matmul")
class Matmul(Op):
    """a[…, M, K] · b[…, K, N] → […, M, N]; leading dimensions broadcast. `transpose_*` exchange an operand's last two.

    Floats accumulate in float32 (float64 in float64) and round once to `out_dtype`, by default the operands' dtype.
    int8 accumulates in int32, which is then the default.
    """

    transpose_a: bool = False
    transpose_b: bool = False
    out_dtype: DType | None = None
    cases = (
        Case("one row", (f32(1, 40), f32(40, 33))),
        Case("a weight as checkpoints store it", (bf16("T", 40), bf16(33, 40)), {"transpose_b": True}, stored=("b",)),
        Case("the same, computed", (bf16("T", 40), bf16(33, 40)), {"transpose_b": True}),
        Case("float32 result of bfloat16", (bf16(3, 16), bf16(8, 16)), {"transpose_b": True, "out_dtype": "float32"}),
        Case("batches broadcast", (f32(2, 1, 3, 5), f32(4, 5, 6))),
        Case("both transposed", (f32(2, 5, 3), f32(2, 6, 5)), {"transpose_a": True, "transpose_b": True}),
        Case("int8 accumulates in int32", (i8(4, 70), i8(70, 3))),
        Case("int32 wraps", (i32(2, 3, 5), i32(7, 5)), {"transpose_b": True}),
        Case("int64 wraps", (i64(3, 300), i64(300, 2))),
        Case("int64 of int32", (i32(3, 30), i32(30, 2)), {"out_dtype": "int64"}),
        Case("int16 of int8", (i8(3, 300), i8(300, 70)), {"out_dtype": "int16"}),
        Case("float64 accumulates in float64", (f64(2, 1, 5, 40), f64(3, 70, 40)), {"transpose_b": True}),
        Case("nothing to sum", (f32(2, 0), f32(0, 3))),
        Case("no rows", (f32(0, 4), f32(4, 3))),
        Case("inner sizes differ", (f32(2, 3), f32(4, 5)), error="a has 3 columns and b has 4 rows"),
        Case("the transposed weight was meant", (f32("T", 8), f32(4, 8)), error="transpose_b=True"),
        Case("a vector", (f32(3), f32(3, 4)), error="at least two dimensions"),
        Case("dtypes differ", (f32(2, 3), bf16(3, 4)), error="a is float32 and b is bfloat16"),
        Case("integer result of floats", (f32(2, 3), f32(3, 4)), {"out_dtype": "int32"}, error="out_dtype"),
    )

    def infer(self, a: Spec, b: Spec) -> Spec:
        dtype = same_dtype(a=a, b=b)
        require(dtype.is_float and dtype in dtypes.FLOATS or dtype in (dtypes.int8, dtypes.int32, dtypes.int64),
                f"no product of {dtype.name} matrices; cast them first")
        require(len(a.shape) >= 2 and len(b.shape) >= 2,
                "each operand needs at least two dimensions; unsqueeze a vector first")
        m, k = a.shape[-2:][:: -1 if self.transpose_a else 1]
        rows, n = b.shape[-2:][:: -1 if self.transpose_b else 1]
        hint = ""
        if k == n and k != rows:
            hint = f"; b looks like a weight stored as [outputs, inputs]: give transpose_b={not self.transpose_b}"
        require(k == rows, f"a has {k} columns and b has {rows} rows{hint}")
        out = self.out_dtype or (dtypes.int32 if dtype is dtypes.int8 else dtype)
        require(out.kind == dtype.kind and out.bits >= min(dtype.bits, 32) or out is dtype or dtype.is_float
                and out in dtypes.FLOATS, f"out_dtype {out.name} cannot hold products of {dtype.name}")
        if len(a.shape) == len(b.shape) == 2:
            return Spec((m, n), out)
        return Spec((*broadcast(a.shape[:-2], b.shape[:-2]), m, n), out)

    def steps(self, a: Spec, b: Spec) -> int:
        return product_steps(int(self.infer(a, b).elements) * int(a.shape[-2 if self.transpose_a else -1]), a.dtype)

    def reference(self, a: Array, b: Array) -> Array:
        out = self.infer(Spec.of(a), Spec.of(b)).dtype
        wide = np.int64 if a.dtype.kind == "i" else np.float64 if a.dtype == np.float64 else np.float32
        x, y = a.astype(wide), b.astype(wide)
        x = x.swapaxes(-1, -2) if self.transpose_a else x
        y = y.swapaxes(-1, -2) if self.transpose_b else y
        return rounded(np.matmul(x, y), out)

    def torch(self, torch: Any, a: Any, b: Any) -> Any:
        out = torch.int32 if a.dtype == torch.int8 else a.dtype
        if self.out_dtype:
            out = getattr(torch, self.out_dtype.name)
        x, y = a.mT if self.transpose_a else a, b.mT if self.transpose_b else b
        if not a.is_floating_point():
            return integer_product(torch, x, y, out)
        wide = a.dtype if a.dtype == torch.float64 else torch.float32
        return torch.matmul(x.to(wide), y.to(wide)).to(out)

    def sample(self, rng: np.random.Generator, *specs: Spec) -> tuple[Array, ...]:
        if specs[0].dtype.is_float:
            return tuple(rng.standard_normal(s.shape).astype(s.dtype.numpy) for s in specs)
        low, high = integer_range(specs[0].dtype)
        return tuple(rng.integers(low, high, s.shape, s.dtype.numpy, endpoint=True) for s in specs)

    @classmethod
    def draw(cls, draw: Any) -> Case:
        m, k, n = (draw.size() for _ in range(3))
        left, right = draw.broadcastable(2, rank=2)
        ta, tb = draw.boolean(), draw.boolean()
        dtype = draw.choice([dtypes.float32, dtypes.bfloat16, dtypes.int8])
        a, b = (k, m) if ta else (m, k), (n, k) if tb else (k, n)
        return Case(f"random {show(left)}", (Spec((*left, *a), dtype), Spec((*right, *b), dtype)),
                    {"transpose_a": ta, "transpose_b": tb})


DIGIT = 8  # bits
MOST = 1 << 24  # the largest number up to which float32 holds every integer


def integer_product(torch: Any, a: Any, b: Any, out: Any) -> Any:
    """a[…, M, K] · b[…, K, N] of integers of one dtype, the low bits of the exact sums as `out`.

    Few devices multiply matrices of integers, and all those of float32: it is made of products of digits of eight bits,
    over so many k that float32 holds every sum of them.
    """
    digits = a.itemsize
    step = MOST // 4**7 if digits == 1 else MOST // 4**8  # the last digit is signed, the others go up to 255
    leading = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    total = torch.zeros(*leading, a.shape[-2], b.shape[-1], dtype=torch.int64, device=a.device)
    for begin in range(0, a.shape[-1], step):
        x, y = a[..., begin : begin + step], b[..., begin : begin + step, :]
        rows = [_digit(x, i, digits).float() for i in range(digits)]
        for j in range(digits):
            columns = _digit(y, j, digits).float()
            for i in range(min(digits, out.itemsize - j)):  # beyond, nothing is left of the product
                total += torch.matmul(rows[i], columns).long() << DIGIT * (i + j)
    return total.to(out)


def _digit(x: Any, i: int, digits: int) -> Any:
    """Digit i of integers, from 0 to 255; the last one is signed, so that the digits make up the number."""
    shifted = x >> DIGIT * i if i else x
    return shifted if i == digits - 1 else shifted & (1 << DIGIT) - 1
