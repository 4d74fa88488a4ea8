"""Stored integers as the floats that the matrix units take, in Triton: int8, and groups of int4 with their scales."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def bytes_as(w, like: tl.constexpr, NATIVE: tl.constexpr):
    """int8, or floats, as the floats that x has. A conversion to float16 takes five instructions for four of int8."""
    if NATIVE and w.dtype == tl.int8 and like == tl.float16:
        found = tl.inline_asm_elementwise(
            "{ .reg .b32 t, u, c; xor.b32 t, $2, 0x80808080; prmt.b32 u, t, 0x64646464, 0x4140; "
            "prmt.b32 t, t, 0x64646464, 0x4342; mov.b32 c, 0x64806480; sub.f16x2 $0, u, c; sub.f16x2 $1, t, c; }",
            "=r,=r,r", [w], tl.float16, True, 4,
        )  # fmt: skip
    else:
        found = w.to(like)
    return found


@triton.jit
def nibbles_as(w, HIGH: tl.constexpr, like: tl.constexpr, NATIVE: tl.constexpr):
    """Of bytes the low or the high four bits less 8, as the floats that x has."""
    if NATIVE and like == tl.float16:
        if HIGH:
            found = tl.inline_asm_elementwise(
                "{ .reg .b32 t, u, c; shr.u32 t, $2, 4; and.b32 t, t, 0x0F0F0F0F; prmt.b32 u, t, 0x64646464, 0x4140; "
                "prmt.b32 t, t, 0x64646464, 0x4342; mov.b32 c, 0x64086408; sub.f16x2 $0, u, c; sub.f16x2 $1, t, c; }",
                "=r,=r,r", [w], tl.float16, True, 4,
            )  # fmt: skip
        else:
            found = tl.inline_asm_elementwise(
                "{ .reg .b32 t, u, c; and.b32 t, $2, 0x0F0F0F0F; prmt.b32 u, t, 0x64646464, 0x4140; "
                "prmt.b32 t, t, 0x64646464, 0x4342; mov.b32 c, 0x64086408; sub.f16x2 $0, u, c; sub.f16x2 $1, t, c; }",
                "=r,=r,r", [w], tl.float16, True, 4,
            )  # fmt: skip
    else:
        found = (((w >> 4) if HIGH else (w & 15)).to(tl.int8) - 8).to(like)
    return found


@triton.jit
def with_group(sums, w, low, high, scale, zero, ZEROS: tl.constexpr, ROUNDS: tl.constexpr, NATIVE: tl.constexpr):
    """The sums with what a group adds: of its integers, less zero points if there are some, times its scales. ROUNDS:
    these products are rounded to float16 first, so that nothing waits for the sums of a group.
    """
    a = nibbles_as(w, False, low.dtype, NATIVE)
    b = nibbles_as(w, True, low.dtype, NATIVE)
    if ZEROS:
        less = zero.to(low.dtype)[:, None]
        a -= less
        b -= less
    if ROUNDS:
        found = tl.dot(a * scale[:, None], low, sums, input_precision="ieee")
        found = tl.dot(b * scale[:, None], high, found, input_precision="ieee")
    else:
        part = tl.dot(a, low, input_precision="ieee")
        part = tl.dot(b, high, part, input_precision="ieee")
        found = sums + part * scale.to(tl.float32)[:, None]
    return found
