"""ONNX ops that multiply matrices and sum products."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot import dtypes
from ingot import functional as fn
from ingot.frontends.onnx.ops.common import cast, number
from ingot.frontends.onnx.table import onnx
from ingot.frontends.table import MaybeTensor, Result, Tensor, Unsupported
from ingot.ir import F
from ingot.ir.spec import elements

_PRODUCTS = (*dtypes.FLOATS, dtypes.int32, dtypes.int64)


def matmul(a: Any, b: Any) -> Any:
    """NumPy's matmul: vectors lose the dimension that they get. Integers without a kernel go by way of int64."""
    kind = a.dtype
    if kind not in _PRODUCTS:
        return cast(matmul(cast(a, dtypes.int64), cast(b, dtypes.int64)), kind)
    left, right = len(a.shape) == 1, len(b.shape) == 1
    x = F.reshape(a, (1, a.shape[0])) if left else a
    y = F.reshape(b, (b.shape[0], 1)) if right else b
    found = F.matmul(x, y)
    if not left and not right:
        return found
    shape = found.shape[: len(found.shape) - left - right]
    return F.reshape(found, (*found.shape[:-2], found.shape[-1]) if left and not right else shape)


@onnx("MatMul")
def matmul_(a: Tensor, b: Tensor) -> Result:
    return matmul(a, b)


@onnx("Gemm", until=6)
def gemm_1(
    a: Tensor, b: Tensor, c: MaybeTensor = None, *, alpha: float = 1.0, beta: float = 1.0, broadcast: bool = False,
    transA: bool = False, transB: bool = False,  # noqa: N803
) -> Result:  # fmt: skip
    return gemm(a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)


@onnx("Gemm", since=7)
def gemm(
    a: Tensor, b: Tensor, c: MaybeTensor = None, *, alpha: float = 1.0, beta: float = 1.0,
    transA: bool = False, transB: bool = False,  # noqa: N803
) -> Result:  # fmt: skip
    found = F.matmul(a, b, transpose_a=transA, transpose_b=transB)
    if alpha != 1:
        found = F.mul(found, number(found, alpha))
    if c is None or beta == 0:
        return found
    return F.add(found, c if beta == 1 else F.mul(c, number(c, beta)))


@onnx("Einsum")
def einsum(*xs: Tensor, equation: str) -> Result:
    kind = xs[0].dtype
    if kind in dtypes.FLOATS:
        return fn.einsum(equation, *xs)
    return cast(fn.einsum(equation, *(cast(x, dtypes.float64) for x in xs)), kind)


@onnx("MatMulInteger")
def matmul_integer(a: Tensor, b: Tensor, a_zero: MaybeTensor = None, b_zero: MaybeTensor = None) -> Result:
    x, y = cast(a, dtypes.int32), cast(b, dtypes.int32)
    if a_zero is not None:
        zero = cast(a_zero, dtypes.int32)
        x = F.sub(x, F.reshape(zero, (*zero.shape, 1)) if len(zero.shape) == 1 and zero.shape != (1,) else zero)
    if b_zero is not None:
        y = F.sub(y, cast(b_zero, dtypes.int32))
    return matmul(x, y)


@onnx("Det")
def det(x: Tensor) -> Result:
    """By elimination with the largest pivot, unrolled: for matrices whose size is known and small."""
    size = x.shape[-1]
    if not isinstance(size, int) or size > 8 or x.shape[-2] != size:
        raise Unsupported("the matrices must be square, of a size that is known and at most 8")
    batch = x.shape[:-2]
    m: Any = F.reshape(x, (elements(batch), size, size))
    sign: Any = None
    for n in range(size, 1, -1):
        column = F.slice(m, (0, 0, 0), (m.shape[0], n, 1), (1, 1, 1))
        best = F.argmax(F.abs(column), axis=1, keepdims=True)  # [B, 1, 1]
        pivot_row = F.gather(m, F.expand(best, (m.shape[0], 1, n)), axis=1)
        first = F.slice(m, (0, 0, 0), (m.shape[0], 1, n), (1, 1, 1))
        swapped = F.scatter(m, F.expand(best, (m.shape[0], 1, n)), first, axis=1)
        rest = F.slice(swapped, (0, 1, 0), (m.shape[0], n - 1, n), (1, 1, 1))
        pivot = F.slice(pivot_row, (0, 0, 0), (m.shape[0], 1, 1), (1, 1, 1))
        safe = F.where(F.equal(pivot, number(x, 0)), number(x, 1), pivot)
        factor = F.div(F.slice(rest, (0, 0, 0), (m.shape[0], n - 1, 1), (1, 1, 1)), safe)
        same = cast(F.equal(best, np.zeros((1, 1, 1), np.int64)), x.dtype)
        turn = F.mul(pivot, F.sub(F.mul(same, 2.0), 1.0))
        sign = turn if sign is None else F.mul(sign, turn)
        left = F.sub(rest, F.mul(factor, pivot_row))
        m = F.slice(left, (0, 0, 1), (m.shape[0], n - 1, n - 1), (1, 1, 1))
    return F.reshape(m if sign is None else F.mul(sign, m), batch)


