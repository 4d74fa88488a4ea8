"""Products of a few rows by weights of integers, in Triton: what decoding in int8 and int4 spends its time in.

A thread has chunks of 16 bytes of several rows of the weight. It takes words of four bytes or eight nibbles apart by
masks, which leave each number where it lies in the mantissa of 2²³, and multiplies it with an element of x that has
been divided by its place: a mask, a subtraction and a product for each. Chunks are the first dimension of all tensors,
for Triton lays the lanes of a warp along it then, of the weight as of x, and no number has to change its thread.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ingot.backends.cuda.kernels import after_others, finish


@triton.jit
def _words(weight, block, part, n, WORDS: tl.constexpr, BN: tl.constexpr, CHUNKS: tl.constexpr):
    """Words [CHUNKS, BN, 4] of a block of rows: a thread has 16 bytes of each."""
    column = block * BN + tl.arange(0, BN)
    place = (part * CHUNKS + tl.arange(0, CHUNKS))[:, None, None] * 4 + tl.arange(0, 4)[None, None, :]
    at = column.to(tl.int64)[None, :, None] * WORDS + place
    mask = (column < n)[None, :, None] & (place < WORDS)
    return tl.load(weight + at, mask=mask, other=0, eviction_policy="evict_first")


@triton.jit
def _scales(scales, block, part, n, K: tl.constexpr, BN: tl.constexpr, CHUNKS: tl.constexpr, HALF: tl.constexpr):
    """What the sums of a block of rows are multiplied with: [BN, 1], or of groups [CHUNKS, BN, 1]."""
    if HALF:
        groups: tl.constexpr = K // (2 * HALF)
        column = block * BN + tl.arange(0, BN)[None, :, None]
        group = (part * CHUNKS + tl.arange(0, CHUNKS)[:, None, None]) // (HALF // 16)
        found = tl.load(scales + column * groups + group, mask=(group < groups) & (column < n), other=0.0)
    else:
        column = block * BN + tl.arange(0, BN)[:, None]
        found = tl.load(scales + column, mask=column < n, other=0.0)
    return found


@triton.jit
def _place(part, CHUNKS: tl.constexpr, HALF: tl.constexpr):
    """The first element of a row that belongs to each chunk; of nibbles the first in the low halves."""
    chunk = part * CHUNKS + tl.arange(0, CHUNKS)
    if HALF:
        chunk = chunk // (HALF // 16) * (2 * HALF) + chunk % (HALF // 16) * 16
    else:
        chunk *= 16
    return chunk[:, None, None] + tl.arange(0, 8)[None, None, :]


@triton.jit
def _lines(x, stride, at, K: tl.constexpr, ROWS: tl.constexpr, R: tl.constexpr):
    """Elements `at` of each row of x, in float32: [CHUNKS, R, 8]."""
    row = tl.arange(0, R)[None, :, None]
    return tl.load(x + row * stride + at, mask=(at < K) & (row < ROWS), other=0.0).to(tl.float32)


@triton.jit
def _gains(gain, at, shift, K: tl.constexpr):
    return tl.load(gain + at, mask=at < K, other=0.0).to(tl.float32) + shift


@triton.jit
def _normed(values, gains, factor, like):
    """Values, normalised: rounded as the op alone would round them."""
    return (values * factor[None, :, None] * gains).to(like.dtype.element_ty).to(tl.float32)


@triton.jit
def _fours(v):
    """Of [A, B, C, 2, 2] the four of [A, B, C]. Dimensions are never added to a tensor: that would move its numbers."""
    even, odd = tl.split(v)
    a, c = tl.split(even)
    b, d = tl.split(odd)
    return a, b, c, d


@triton.jit
def _eights(v):
    """Of [CHUNKS, R, 8] the eight of [CHUNKS, 1, R]."""
    even, odd = tl.split(tl.reshape(v, [v.shape[0], 1, v.shape[1], 2, 2, 2]))
    a, c, e, g = _fours(even)
    b, d, f, h = _fours(odd)
    return a, b, c, d, e, f, g, h


@triton.jit
def _add(sums, word, MASK: tl.constexpr, base, MIDDLE: tl.constexpr, element, place: tl.constexpr):
    """sums [CHUNKS, BN, R] plus what words [CHUNKS, BN, 1] hold at MASK (over `base`, less MIDDLE) times an
    element of each chunk and row, [CHUNKS, 1, R], by its place."""
    number = ((word & MASK) ^ base).to(tl.float32, bitcast=True) - (8388608.0 + MIDDLE)
    return sums + number * (element * place)


@triton.jit
def dot8(sums, words, x, y, base):
    """Plus signed bytes of words [CHUNKS, BN, 4] times the elements of a chunk, sixteen in order."""
    elements = x + y
    fours = _fours(tl.reshape(words, [words.shape[0], words.shape[1], 1, 2, 2]))
    for i in tl.static_range(4):
        word = fours[i] ^ -0x7F7F7F80  # a byte is q + 128 now
        high = word >> 16
        sums = _add(sums, word, 0xFF, base, 128, elements[4 * i], 1.0)
        sums = _add(sums, word, 0xFF00, base, 32768, elements[4 * i + 1], 0.00390625)
        sums = _add(sums, high, 0xFF, base, 128, elements[4 * i + 2], 1.0)
        sums = _add(sums, high, 0xFF00, base, 32768, elements[4 * i + 3], 0.00390625)
    return sums


@triton.jit
def dot4(sums, words, x, y, more_x, more_y, base):
    """As dot8, of nibbles q + 8: low ones of bytes belong to the first sixteen elements, high ones to the others."""
    low = x + y
    up = more_x + more_y
    fours = _fours(tl.reshape(words, [words.shape[0], words.shape[1], 1, 2, 2]))
    for i in tl.static_range(8):
        word = fours[i // 2] >> (i % 2 * 16)
        sums = _add(sums, word, 0xF, base, 8, low[2 * i], 1.0)
        sums = _add(sums, word, 0xF0, base, 128, up[2 * i], 0.0625)
        sums = _add(sums, word, 0xF00, base, 2048, low[2 * i + 1], 0.00390625)
        sums = _add(sums, word, 0xF000, base, 32768, up[2 * i + 1], 0.000244140625)
    return sums


@triton.jit
def product_integers(
    x, gain, weight, second, scales, second_scales, extra, out, n, base, eps, shift, x_stride, extra_stride, out_stride,
    ROWS: tl.constexpr, R: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, CHUNKS: tl.constexpr, PARTS: tl.constexpr,
    HALF: tl.constexpr, FULL: tl.constexpr, NORM: tl.constexpr, PAIR: tl.constexpr, EXTRA: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """out[ROWS, n] = norm(x)[ROWS, K] · weight[n, K]ᵀ and what follows it, for few rows.

    weight: int32 words of int8 [n, K], with a scale an output; or, where HALF is not 0, of nibbles as `launch.packed`
    lays them, in groups of 2 · HALF with a scale each. base: the bits of 2²³; were it known when compiling, a mask
    would take two instructions. R and FULL are the powers of two from ROWS and K on. A program has every so manieth
    block of BN rows of the weight, in PARTS of CHUNKS times 16 bytes of a row: it loads the next part while it sums
    one, the first one before it waits for x. Where all of K is one part, it holds x.
    """
    WORDS: tl.constexpr = K // 8 if HALF else K // 4
    first = tl.program_id(0)
    step = tl.num_programs(0)
    blocks = tl.cdiv(n, BN)
    w = _words(weight, first, 0, n, WORDS, BN, CHUNKS)
    s = _scales(scales, first, 0, n, K, BN, CHUNKS, HALF)
    if PAIR:
        v = _words(second, first, 0, n, WORDS, BN, CHUNKS)
        t = _scales(second_scales, first, 0, n, K, BN, CHUNKS, HALF)
    if PARTS == 1:
        at = _place(0, CHUNKS, HALF)
        if NORM:
            gain_a = _gains(gain, at, shift, K)
            gain_b = _gains(gain, at + 8, shift, K)
            if HALF:
                gain_c = _gains(gain, at + HALF, shift, K)
                gain_d = _gains(gain, at + HALF + 8, shift, K)
        after_others(DEPENDENT)
        a = _lines(x, x_stride, at, K, ROWS, R)
        b = _lines(x, x_stride, at + 8, K, ROWS, R)
        if HALF:
            c = _lines(x, x_stride, at + HALF, K, ROWS, R)
            d = _lines(x, x_stride, at + HALF + 8, K, ROWS, R)
        if NORM:
            squares = a * a + b * b
            if HALF:
                squares += c * c + d * d
            factor = 1.0 / tl.sqrt(tl.sum(tl.sum(squares, axis=2), axis=0) / K + eps)
            a = _normed(a, gain_a, factor, x)
            b = _normed(b, gain_b, factor, x)
            if HALF:
                c = _normed(c, gain_c, factor, x)
                d = _normed(d, gain_d, factor, x)
        xa = _eights(a)
        xb = _eights(b)
        if HALF:
            xc = _eights(c)
            xd = _eights(d)
    else:
        after_others(DEPENDENT)
        if NORM:
            whole = tl.arange(0, FULL)[:, None]
            line = tl.arange(0, R)[None, :]
            found = tl.load(x + line * x_stride + whole, mask=(whole < K) & (line < ROWS), other=0.0).to(tl.float32)
            factor = 1.0 / tl.sqrt(tl.sum(found * found, axis=0) / K + eps)
    for block in range(first, blocks, step):
        sums = tl.zeros((CHUNKS, BN, R), tl.float32)
        others = tl.zeros((CHUNKS, BN, R), tl.float32)
        for part in tl.static_range(PARTS):
            later = block + (step if part + 1 == PARTS else 0)
            w_next = _words(weight, later, (part + 1) % PARTS, n, WORDS, BN, CHUNKS)
            s_next = s
            if HALF or part + 1 == PARTS:
                s_next = _scales(scales, later, (part + 1) % PARTS, n, K, BN, CHUNKS, HALF)
            if PAIR:
                v_next = _words(second, later, (part + 1) % PARTS, n, WORDS, BN, CHUNKS)
                t_next = t
                if HALF or part + 1 == PARTS:
                    t_next = _scales(second_scales, later, (part + 1) % PARTS, n, K, BN, CHUNKS, HALF)
            if PARTS > 1:
                place = _place(part, CHUNKS, HALF)
                part_a = _lines(x, x_stride, place, K, ROWS, R)
                part_b = _lines(x, x_stride, place + 8, K, ROWS, R)
                if NORM:
                    part_a = _normed(part_a, _gains(gain, place, shift, K), factor, x)
                    part_b = _normed(part_b, _gains(gain, place + 8, shift, K), factor, x)
                xa = _eights(part_a)
                xb = _eights(part_b)
                if HALF:
                    part_c = _lines(x, x_stride, place + HALF, K, ROWS, R)
                    part_d = _lines(x, x_stride, place + HALF + 8, K, ROWS, R)
                    if NORM:
                        part_c = _normed(part_c, _gains(gain, place + HALF, shift, K), factor, x)
                        part_d = _normed(part_d, _gains(gain, place + HALF + 8, shift, K), factor, x)
                    xc = _eights(part_c)
                    xd = _eights(part_d)
            if HALF:
                zero = tl.zeros((CHUNKS, BN, R), tl.float32)
                sums += dot4(zero, w, xa, xb, xc, xd, base) * s
                if PAIR:
                    others += dot4(zero, v, xa, xb, xc, xd, base) * t
            else:
                sums = dot8(sums, w, xa, xb, base)
                if PAIR:
                    others = dot8(others, v, xa, xb, base)
            if part + 1 == PARTS:
                total = tl.sum(sums, axis=0)
                if not HALF:
                    total *= s
                rest = total
                if PAIR:
                    rest = tl.sum(others, axis=0)
                    if not HALF:
                        rest *= t
                column = (block * BN + tl.arange(0, BN))[:, None]
                row = tl.arange(0, R)[None, :]
                finish(total, rest, extra, out, row, column, (column < n) & (row < ROWS), extra_stride, out_stride,
                       PAIR, EXTRA)  # fmt: skip
            w = w_next
            s = s_next
            if PAIR:
                v = v_next
                t = t_next
