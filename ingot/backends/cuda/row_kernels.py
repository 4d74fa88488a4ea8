"""Kernels that take rows one by one, in Triton: norms, what follows products of the library, and rows rounded to
float8 or brought to float16.

NORM: 1 is an RMS norm, 2 a layer norm, whose `gain` and `beta` may be None; 0 is none.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ingot.backends.cuda.dependent_launch import after_others
from ingot.backends.cuda.epilogue import activated, finish


@triton.jit
def row_of(x, gain, beta, row, stride, k, eps, shift, BK: tl.constexpr, NORM: tl.constexpr):
    """A row of x in float32, normalised if asked: rounded then, as the op alone would round it."""
    at = tl.arange(0, BK)
    found = tl.load(x + row * stride + at, mask=at < k, other=0.0)
    wide = found.to(tl.float32)
    if NORM == 2:
        wide = tl.where(at < k, wide - tl.sum(wide, axis=0) / k, 0.0)
        wide = wide * (1.0 / tl.sqrt(tl.sum(wide * wide, axis=0) / k + eps))
        if gain is not None:
            wide = wide * tl.load(gain + at, mask=at < k, other=0.0).to(tl.float32)
        if beta is not None:
            wide = wide + tl.load(beta + at, mask=at < k, other=0.0).to(tl.float32)
        wide = wide.to(x.dtype.element_ty).to(tl.float32)
    elif NORM:
        scale = 1.0 / tl.sqrt(tl.sum(wide * wide, axis=0) / k + eps)
        weight = tl.load(gain + at, mask=at < k, other=0.0).to(tl.float32) + shift
        wide = (wide * scale * weight).to(x.dtype.element_ty).to(tl.float32)
    return wide


@triton.jit
def _scale_of(values):
    """What a row of float8 is multiplied with: its largest magnitude / 448, and as if that were at least 2⁻¹⁰⁰."""
    # As integers magnitudes are ordered as they are, and infinities and NaNs are the largest.
    top = tl.max(values.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=0)
    return tl.maximum(top, 0x0D800000).to(tl.float32, bitcast=True) / 448.0


@triton.jit
def as_float8(values, NATIVE: tl.constexpr):
    """float32 as float8 (e4m3), nearest even; beyond its largest number that. NATIVE: on a GPU, not interpreted."""
    if not NATIVE:  # the interpreter cuts off what is no float8 yet
        power = (values.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
        unit = tl.maximum(power, 0.015625) * 1572864.0  # 1.5 · 2²³ of the last place
        values = tl.minimum(tl.maximum(values + unit - unit, -448.0), 448.0)
    return values.to(tl.float8e4nv)


@triton.jit
def rounded_row(
    x, gain, beta, row, stride, k, eps, shift, BK: tl.constexpr, NORM: tl.constexpr, ROUNDS: tl.constexpr,
    NATIVE: tl.constexpr,
):  # fmt: skip
    """A row of x, normalised if asked, and as it is once it has been float8, if asked."""
    values = row_of(x, gain, beta, row, stride, k, eps, shift, BK, NORM)
    if ROUNDS:
        scale = _scale_of(values)
        values = as_float8(values * (1.0 / scale), NATIVE).to(tl.float32) * scale
    return values


@triton.jit
def float8_rows(
    x, gain, beta, out, scales, k, eps, shift, x_stride, BK: tl.constexpr, NORM: tl.constexpr, NATIVE: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """out[rows, k] float8: the rows of x, normalised if NORM, each over its scale, which scales[rows] gets. A program
    has one row.
    """
    after_others(DEPENDENT)
    row = tl.program_id(0)
    at = tl.arange(0, BK)
    values = row_of(x, gain, beta, row.to(tl.int64), x_stride, k, eps, shift, BK, NORM)
    scale = _scale_of(values)
    tl.store(out + row.to(tl.int64) * k + at, as_float8(values * (1.0 / scale), NATIVE), mask=at < k)
    tl.store(scales + row, scale)


@triton.jit
def half_rows(
    x, gain, beta, out, scales, k, eps, shift, x_stride, BK: tl.constexpr, NORM: tl.constexpr, DEPENDENT: tl.constexpr
):
    """As `float8_rows`, but float16, by a power of two, the largest number 2¹² or more: bfloat16 loses nothing by that
    down to 2⁻²⁶ of a row's largest. float8 becomes float16 in one instruction for two numbers, bfloat16 in three.
    """
    after_others(DEPENDENT)
    row = tl.program_id(0)
    at = tl.arange(0, BK)
    values = row_of(x, gain, beta, row.to(tl.int64), x_stride, k, eps, shift, BK, NORM)
    power = tl.max(values.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=0) & 0x7F800000
    power = tl.maximum(power, 0x0D800000).to(tl.float32, bitcast=True)  # 2⁻¹⁰⁰ of zeros
    tl.store(out + row.to(tl.int64) * k + at, (values * (4096.0 / power)).to(tl.float16), mask=at < k)
    tl.store(scales + row, tl.where(power < float("inf"), power * 0.000244140625, float("nan")))


@triton.jit
def rms_norm(x, gain, out, k, eps, shift, x_stride, out_stride, BK: tl.constexpr, DEPENDENT: tl.constexpr):
    """Each row of x, normalised; a program has one row."""
    after_others(DEPENDENT)
    row = tl.program_id(0)
    at = tl.arange(0, BK)
    values = row_of(x, gain, None, row, x_stride, k, eps, shift, BK, 1)
    tl.store(out + row * out_stride + at, values.to(out.dtype.element_ty), mask=at < k)


@triton.jit
def layer_norm(x, gain, beta, out, k, eps, x_stride, out_stride, BK: tl.constexpr, DEPENDENT: tl.constexpr):
    """Each row of x, less its mean, over its deviation, times the gain and plus beta; a program has one row."""
    after_others(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BK)
    values = row_of(x, gain, beta, row, x_stride, k, eps, 0.0, BK, 2)
    tl.store(out + row * out_stride + at, values.to(out.dtype.element_ty), mask=at < k)


@triton.jit
def _gated_row(a, b, row, at, n, a_stride, b_stride, ACTIVATION: tl.constexpr):
    """act(a) · b of the elements `at` of a row, in float32."""
    gate = tl.load(a + row * a_stride + at, mask=at < n, other=0.0).to(tl.float32)
    up = tl.load(b + row * b_stride + at, mask=at < n, other=0.0).to(tl.float32)
    return activated(gate, ACTIVATION) * up


@triton.jit
def gated_float8(
    a, b, out, scales, n, a_stride, b_stride, BN: tl.constexpr, ACTIVATION: tl.constexpr, NATIVE: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """out[rows, n] float8: act(a) · b, each row over its scale, which scales[rows] gets. A program has one row."""
    after_others(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BN)
    values = _gated_row(a, b, row, at, n, a_stride, b_stride, ACTIVATION).to(a.dtype.element_ty).to(tl.float32)
    scale = _scale_of(values)
    tl.store(out + row * n + at, as_float8(values * (1.0 / scale), NATIVE), mask=at < n)
    tl.store(scales + row, scale)


@triton.jit
def gated(
    a, b, out, n, a_stride, b_stride, out_stride, BN: tl.constexpr, ACTIVATION: tl.constexpr, DEPENDENT: tl.constexpr
):
    """act(a) · b of rows of n."""
    after_others(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BN + tl.arange(0, BN)
    values = _gated_row(a, b, row, at, n, a_stride, b_stride, ACTIVATION)
    tl.store(out + row * out_stride + at, values.to(out.dtype.element_ty), mask=at < n)


@triton.jit
def finished(
    a, bias, extra, out, n, a_stride, extra_stride, out_stride, BN: tl.constexpr, EXTRA: tl.constexpr,
    ACTIVATION: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """act(a + bias) + extra of rows of n."""
    after_others(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BN + tl.arange(0, BN)
    sums = tl.load(a + row * a_stride + at, mask=at < n, other=0.0).to(tl.float32)
    finish(sums, sums, bias, extra, out, row, at, at < n, extra_stride, out_stride, False, EXTRA, ACTIVATION)
