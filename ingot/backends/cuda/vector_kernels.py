"""Vectors of a paged cache, in Triton: tiles of them, what they are made into and what is made of them.

Tiles have P elements of a vector of D, for Triton's have powers of two. Those behind D are zeros, and neither read nor
written.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ingot.backends.cuda.row_kernels import as_float8


@triton.jit
def inside(lines, at, D: tl.constexpr):
    """Where a tile has lines, [N, 1], and these the elements `at` of a head."""
    found = lines
    if at.shape[0] > D:
        found = lines & (at < D)[None, :]
    return found


@triton.jit
def vector(place, at, D: tl.constexpr):
    """The elements `at` of a head."""
    if at.shape[0] > D:
        found = tl.load(place + at, mask=at < D, other=0.0)
    else:
        found = tl.load(place + at)
    return found


@triton.jit
def lines_at(place, at, lines, D: tl.constexpr):
    """The elements `at` of heads at [N] places; zeros where `lines` is not, if it is not None."""
    tile = place[:, None] + at[None, :]
    if lines is not None:
        found = tl.load(tile, mask=inside(lines[:, None], at, D), other=0.0)
    elif at.shape[0] > D:
        found = tl.load(tile, mask=(at < D)[None, :], other=0.0)
    else:
        found = tl.load(tile)
    return found


@triton.jit
def whole_in_cache(x, other):
    """Vectors along the last dimension, float32, as a cache of int8 holds them: whole numbers, nearest even, and their
    scale. It is none where an element of them, or of `other`, is none.
    """
    last: tl.constexpr = len(x.shape) - 1
    top = tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=last)
    beside = tl.max(other.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=last)
    finite = tl.maximum(top, beside) < 0x7F800000
    scale = tl.where(finite, top.to(tl.float32, bitcast=True) / 127.0, float("nan"))
    by = tl.where(scale == 0, 1.0, scale)
    if last == 1:
        by = by[:, None]
    return ((x / by + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000).to(tl.int8), scale


@triton.jit
def float_in_cache(x, kind: tl.constexpr, NATIVE: tl.constexpr):
    """As a cache of floats holds them."""
    if kind == tl.float8e4nv:
        found = as_float8(x.to(tl.float32), NATIVE)
    else:
        found = x.to(kind)
    return found


@triton.jit
def floats_of(words, kind: tl.constexpr, FLOATS: tl.constexpr, NATIVE: tl.constexpr):
    """Vectors of words, each of four int8, or float8 if FLOATS, as floats.

    Triton would hold every byte in a register of its own from one turn of a loop to the next. An int8 becomes a float
    by being its last byte, of which the rest is subtracted.
    """
    if not NATIVE:
        a, b, c, d = ((words << 24) >> 24), ((words << 16) >> 24), ((words << 8) >> 24), (words >> 24)
        if FLOATS:
            a = a.to(tl.int8).to(tl.float8e4nv, bitcast=True)
            b = b.to(tl.int8).to(tl.float8e4nv, bitcast=True)
            c = c.to(tl.int8).to(tl.float8e4nv, bitcast=True)
            d = d.to(tl.int8).to(tl.float8e4nv, bitcast=True)
    elif FLOATS:
        a, b, c, d = tl.inline_asm_elementwise(
            """{
            .reg .b16 x, y;
            .reg .b32 v, w;
            mov.b32 {x, y}, $4;
            cvt.rn.f16x2.e4m3x2 v, x;
            cvt.rn.f16x2.e4m3x2 w, y;
            mov.b32 {$0, $1}, v;
            mov.b32 {$2, $3}, w;
            }""",
            "=h,=h,=h,=h,r", [words], (tl.float16, tl.float16, tl.float16, tl.float16), True, 1,
        )  # fmt: skip
    elif kind == tl.bfloat16:  # 128 + (x & 127), less 256 if x < 0, else 128
        a, b, c, d = tl.inline_asm_elementwise(
            """{
            .reg .b32 x, y, v, w, one;
            mov.b32 one, 0x3F803F80;
            prmt.b32 x, $4, 0x43434343, 0x4140;
            prmt.b32 y, $4, 0x43434343, 0x4342;
            and.b32 v, x, 0xFF7FFF7F;
            lop3.b32 x, x, 0xFF80FF80, 0x80008000, 0xEA;
            fma.rn.bf16x2 v, v, one, x;
            and.b32 w, y, 0xFF7FFF7F;
            lop3.b32 y, y, 0xFF80FF80, 0x80008000, 0xEA;
            fma.rn.bf16x2 w, w, one, y;
            mov.b32 {$0, $1}, v;
            mov.b32 {$2, $3}, w;
            }""",
            "=h,=h,=h,=h,r", [words], (tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16), True, 1,
        )  # fmt: skip
    else:  # 1,024 + (x + 128), less 1,152
        a, b, c, d = tl.inline_asm_elementwise(
            """{
            .reg .b32 x, v, w, by;
            xor.b32 x, $4, 0x80808080;
            mov.b32 by, 0x64806480;
            prmt.b32 v, x, 0x64646464, 0x4140;
            prmt.b32 w, x, 0x64646464, 0x4342;
            sub.f16x2 v, v, by;
            sub.f16x2 w, w, by;
            mov.b32 {$0, $1}, v;
            mov.b32 {$2, $3}, w;
            }""",
            "=h,=h,=h,=h,r", [words], (tl.float16, tl.float16, tl.float16, tl.float16), True, 1,
        )  # fmt: skip
    found = tl.join(tl.join(a, c), tl.join(b, d))
    return tl.reshape(found, (words.shape[0], 4 * words.shape[1])).to(kind)


@triton.jit
def halves(x):
    """Rows as float16, by a power of two, the largest number 2¹² or more, and what they are multiplied with then.

    bfloat16 loses nothing by that down to 2⁻²⁶ of a row's largest, and 8 bits become float16 in fewer instructions.
    """
    wide = x.to(tl.float32)
    power = tl.max(wide.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1) & 0x7F800000
    power = tl.maximum(power, 0x0D800000).to(tl.float32, bitcast=True)  # 2⁻¹⁰⁰ of zeros
    return (wide * (4096.0 / power)[:, None]).to(tl.float16), power * 0.000244140625
