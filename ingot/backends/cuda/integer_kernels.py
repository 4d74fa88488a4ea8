"""Products of a few rows by weights of integers, in Triton: what decoding in int8 and int4 spends its time in.

A row of x becomes integers of 22 bits and a sign by a power of two, its largest number 2²¹ or more: bfloat16 loses
nothing down to 2⁻¹⁴ of the largest. Their three signed bytes, packed four elements a word, meet the bytes of the weight
in an instruction of four products (dp4a), and these sums are exact. Chunks of 16 bytes of the weight are the first
dimension of all tensors, for Triton lays the lanes of a warp along it then, of the weight as of x, and no number has to
change its thread.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ingot.backends.cuda.dependent_launch import after_others
from ingot.backends.cuda.epilogue import finish


@triton.jit
def dot_bytes(sums, word, other, SIGNED: tl.constexpr, NATIVE: tl.constexpr):
    """sums plus the products of the four bytes of two words; those of `word` have a sign if SIGNED, the others have."""
    if NATIVE:
        if SIGNED:
            found = tl.inline_asm_elementwise(
                "dp4a.s32.s32 $0, $1, $2, $3;", "=r,r,r,r", [word, other, sums], tl.int32, True, 1
            )
        else:
            found = tl.inline_asm_elementwise(
                "dp4a.u32.s32 $0, $1, $2, $3;", "=r,r,r,r", [word, other, sums], tl.int32, True, 1
            )
    else:
        found = sums
        for i in tl.static_range(4):
            a = (word << (24 - 8 * i)) >> 24
            if not SIGNED:
                a = a & 255
            found += a * ((other << (24 - 8 * i)) >> 24)
    return found


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
    """What the sums of a block of rows are multiplied with, or the zero points of groups: [BN, 1], or of groups
    [CHUNKS, BN, 1], as it is stored: widening it here would wait for it."""
    if HALF:
        groups: tl.constexpr = K // (2 * HALF)
        column = block * BN + tl.arange(0, BN)[None, :, None]
        group = (part * CHUNKS + tl.arange(0, CHUNKS)[:, None, None]) // (HALF // 16)
        found = tl.load(scales + column * groups + group, mask=(group < groups) & (column < n), other=0)
    else:
        column = block * BN + tl.arange(0, BN)[:, None]
        found = tl.load(scales + column, mask=column < n, other=0.0)
    return found


@triton.jit
def _places(piece: tl.constexpr, CHUNKS: tl.constexpr, HALF: tl.constexpr):
    """Elements of a row that belong to each chunk, eight of them: [CHUNKS, 1, 8].

    Two pieces make the sixteen of a chunk of bytes; of nibbles four do, the first two in the low halves of bytes.
    """
    if HALF:
        chunk = piece // 4 * CHUNKS + tl.arange(0, CHUNKS)
        first = chunk // (HALF // 16) * (2 * HALF) + chunk % (HALF // 16) * 16 + piece % 4 // 2 * HALF
    else:
        first = (piece // 2 * CHUNKS + tl.arange(0, CHUNKS)) * 16
    return (first + piece % 2 * 8)[:, None, None] + tl.arange(0, 8)[None, None, :]


@triton.jit
def _wide(v, NATIVE: tl.constexpr):
    """Floats in float32; of bfloat16 two are a register, and each takes one instruction."""
    if NATIVE and v.dtype == tl.bfloat16:
        found = tl.inline_asm_elementwise(
            "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xFFFF0000;", "=r,=r,r", [v], tl.float32, True, 2
        )
    else:
        found = v.to(tl.float32)
    return found


@triton.jit
def _rounded(v, like: tl.constexpr, NATIVE: tl.constexpr):
    """float32 as a shorter float holds it. One by one, numbers become bfloat16 at a quarter of the rate of two."""
    if NATIVE and like == tl.bfloat16:
        found = tl.inline_asm_elementwise(
            "{ .reg .b32 t; cvt.rn.bf16x2.f32 t, $3, $2; shl.b32 $0, t, 16; and.b32 $1, t, 0xFFFF0000; }",
            "=r,=r,r,r", [v], tl.float32, True, 2,
        )  # fmt: skip
    else:
        found = v.to(like).to(tl.float32)
    return found


@triton.jit
def _lines(x, stride, at, K: tl.constexpr, ROWS: tl.constexpr, R: tl.constexpr, NATIVE: tl.constexpr):
    """Elements `at` of each row of x, in float32: [CHUNKS, R, 8]."""
    row = tl.arange(0, R)[None, :, None]
    return _wide(tl.load(x + row * stride + at, mask=(at < K) & (row < ROWS), other=0.0), NATIVE)


@triton.jit
def _gains(
    gain, shift, K: tl.constexpr, PIECES: tl.constexpr, CHUNKS: tl.constexpr, HALF: tl.constexpr, NATIVE: tl.constexpr
):
    """Of each piece what its elements are multiplied with once they are normalised."""
    found = (_gain(gain, _places(0, CHUNKS, HALF), shift, K, NATIVE),)
    for i in tl.static_range(1, PIECES):
        found = found + (_gain(gain, _places(i, CHUNKS, HALF), shift, K, NATIVE),)
    return found


@triton.jit
def _gain(gain, at, shift, K: tl.constexpr, NATIVE: tl.constexpr):
    return _wide(tl.load(gain + at, mask=at < K, other=0.0), NATIVE) + shift


@triton.jit
def _four(v):
    """Of [A, B, C, 2, 2] the four of [A, B, C]. Dimensions are never added to a tensor: that would move its numbers."""
    even, odd = tl.split(v)
    a, c = tl.split(even)
    b, d = tl.split(odd)
    return a, b, c, d


@triton.jit
def _packed(a, b, c, d, NATIVE: tl.constexpr):
    """Bytes 0, 1 and 2 of four integers less 128 each, a word each: ten instructions."""
    if NATIVE:
        low, middle, high = tl.inline_asm_elementwise(
            "{ .reg .b32 s, t, u, v; prmt.b32 s, $3, $4, 0x5140; prmt.b32 t, $5, $6, 0x5140; "
            "prmt.b32 u, $3, $4, 0x0062; prmt.b32 v, $5, $6, 0x0062; prmt.b32 $0, s, t, 0x5410; "
            "prmt.b32 $1, s, t, 0x7632; prmt.b32 $2, u, v, 0x5410; xor.b32 $0, $0, 0x80808080; "
            "xor.b32 $1, $1, 0x80808080; xor.b32 $2, $2, 0x80808080; }",
            "=&r,=&r,=&r,r,r,r,r", [a, b, c, d], (tl.int32, tl.int32, tl.int32), True, 1,
        )  # fmt: skip
    else:
        low = (a & 0xFF) | ((b & 0xFF) << 8) | ((c & 0xFF) << 16) | (d << 24)
        middle = ((a >> 8) & 0xFF) | (b & 0xFF00) | ((c & 0xFF00) << 8) | ((d & 0xFF00) << 16)
        high = ((a >> 16) & 0xFF) | ((b >> 8) & 0xFF00) | (c & 0xFF0000) | ((d & 0xFF0000) << 8)
        low, middle, high = low ^ -0x7F7F7F80, middle ^ -0x7F7F7F80, high ^ -0x7F7F7F80  # 0x80808080
    return low, middle, high


@triton.jit
def _bytes(values, factor, NATIVE: tl.constexpr):
    """Values [CHUNKS, R, 8] times a factor a row, rounded, as three words of signed bytes for each four: six of
    [CHUNKS, 1, R]."""
    # Less 0x4B400000 the bits are the integer; plus 128 each, its bytes have no sign, and borrow nothing.
    digits = (values * factor[None, :, None] + 12582912.0).to(tl.int32, bitcast=True) - (0x4B400000 - 0x808080)
    even, odd = tl.split(tl.reshape(digits, [values.shape[0], 1, values.shape[1], 2, 2, 2]))
    a, c, e, g = _four(even)
    b, d, f, h = _four(odd)
    return _packed(a, b, c, d, NATIVE) + _packed(e, f, g, h, NATIVE)


@triton.jit
def _rows_of(
    x, gains, eps, x_stride, K: tl.constexpr, PIECES: tl.constexpr, CHUNKS: tl.constexpr, HALF: tl.constexpr,
    ROWS: tl.constexpr, R: tl.constexpr, NORM: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """The rows of x as words of bytes, six for each piece, and what a sum of products with them is multiplied with.

    Normalised with these gains if NORM: rounded then, as the op alone would round it.
    """
    values = (_lines(x, x_stride, _places(0, CHUNKS, HALF), K, ROWS, R, NATIVE),)
    for i in tl.static_range(1, PIECES):
        values = values + (_lines(x, x_stride, _places(i, CHUNKS, HALF), K, ROWS, R, NATIVE),)
    if NORM:
        squares = values[0] * values[0]
        for i in tl.static_range(1, PIECES):
            squares += values[i] * values[i]
        scale = (1.0 / tl.sqrt(tl.sum(tl.sum(squares, axis=2), axis=0) / K + eps))[None, :, None]
        normed = (_rounded(values[0] * scale * gains[0], x.dtype.element_ty, NATIVE),)
        for i in tl.static_range(1, PIECES):
            normed = normed + (_rounded(values[i] * scale * gains[i], x.dtype.element_ty, NATIVE),)
        values = normed
    # As integers magnitudes are ordered as they are, and infinities and NaNs are the largest.
    top = values[0].to(tl.int32, bitcast=True) & 0x7FFFFFFF
    for i in tl.static_range(1, PIECES):
        top = tl.maximum(top, values[i].to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    power = tl.max(tl.max(top, axis=2), axis=0) & 0x7F800000
    power = tl.maximum(power, 0x0D800000).to(tl.float32, bitcast=True)  # 2⁻¹⁰⁰ of zeros
    factor = 2097152.0 / power  # 2²¹; without a number, 0 times infinity is none either
    words = _bytes(values[0], factor, NATIVE)
    for i in tl.static_range(1, PIECES):
        words = words + _bytes(values[i], factor, NATIVE)
    return words, power * 4.76837158203125e-07


@triton.jit
def _add8(low, middle, high, words, x, AT: tl.constexpr, NATIVE: tl.constexpr):
    """Sums of products of words [CHUNKS, BN, 4] of bytes with x, by which of its bytes it was."""
    four = _four(tl.reshape(words, [words.shape[0], words.shape[1], 1, 2, 2]))
    for i in tl.static_range(4):
        low = dot_bytes(low, four[i], x[AT + 3 * i], True, NATIVE)
        middle = dot_bytes(middle, four[i], x[AT + 3 * i + 1], True, NATIVE)
        high = dot_bytes(high, four[i], x[AT + 3 * i + 2], True, NATIVE)
    return low, middle, high


@triton.jit
def _add4(low, middle, high, words, x, AT: tl.constexpr, NATIVE: tl.constexpr):
    """As _add8, of nibbles q + 8: the low ones of bytes are multiplied with the first two pieces of x."""
    four = _four(tl.reshape(words, [words.shape[0], words.shape[1], 1, 2, 2]))
    for i in tl.static_range(8):
        word = (four[i % 4] >> (i // 4 * 4)) & 0x0F0F0F0F
        low = dot_bytes(low, word, x[AT + 3 * i], False, NATIVE)
        middle = dot_bytes(middle, word, x[AT + 3 * i + 1], False, NATIVE)
        high = dot_bytes(high, word, x[AT + 3 * i + 2], False, NATIVE)
    return low, middle, high


@triton.jit
def _less8(x, PARTS: tl.constexpr, NATIVE: tl.constexpr):
    """What sums of nibbles q + 8 begin with, so that they end as those of q: three for each part."""
    begin = _less8_of(x, 0, NATIVE)
    for part in tl.static_range(1, PARTS):
        begin = begin + _less8_of(x, part, NATIVE)
    return begin


@triton.jit
def _less8_of(x, part: tl.constexpr, NATIVE: tl.constexpr):
    low = x[0] * 0
    middle = low
    high = low
    eights = low - 0x07070708  # four bytes of −8
    for i in tl.static_range(8):
        low = dot_bytes(low, eights, x[24 * part + 3 * i], True, NATIVE)
        middle = dot_bytes(middle, eights, x[24 * part + 3 * i + 1], True, NATIVE)
        high = dot_bytes(high, eights, x[24 * part + 3 * i + 2], True, NATIVE)
    return low, middle, high


@triton.jit
def _group(low, middle, high, begin, zero, AT: tl.constexpr, ZEROS: tl.constexpr):
    """The sums of chunks of a group in float32; less `zero` times the sum of x, of which `begin` has −8 times."""
    found = (low + (middle << 8) + (high << 16)).to(tl.float32)
    if ZEROS:
        eight = begin[AT] + (begin[AT + 1] << 8) + (begin[AT + 2] << 16)
        found += zero.to(tl.float32) * (eight.to(tl.float32) * 0.125)
    return found


@triton.jit
def _total(sums, low, middle, high, s, back, HALF: tl.constexpr):
    """Sums of all chunks [BN, R]: of groups as they are, of int8 out of those by bytes."""
    if not HALF:
        sums = (low + (middle << 8)).to(tl.float32) + high.to(tl.float32) * 65536.0
    total = tl.sum(sums, axis=0) * back[None, :]
    if not HALF:
        total *= s
    return total


@triton.jit
def _block(
    weight, scales, zeros, s, z, block, part, n, K: tl.constexpr, WORDS: tl.constexpr, BN: tl.constexpr,
    CHUNKS: tl.constexpr, HALF: tl.constexpr, ANEW: tl.constexpr,
):  # fmt: skip
    """Words of a block of rows, and of its scales and zero points what `_scales` gives: s and z, if not read ANEW."""
    if ANEW:
        s = _scales(scales, block, part, n, K, BN, CHUNKS, HALF)
        z = s
        if zeros is not None:
            z = _scales(zeros, block, part, n, K, BN, CHUNKS, HALF)
    return _words(weight, block, part, n, WORDS, BN, CHUNKS), s, z


@triton.jit
def product_integers(
    x, gain, chosen, zeros, second_zeros, weight, second, scales, second_scales, bias, extra, out, n, eps, shift,
    x_stride, extra_stride, out_stride, ROWS: tl.constexpr, R: tl.constexpr, K: tl.constexpr, BN: tl.constexpr,
    CHUNKS: tl.constexpr, PARTS: tl.constexpr, HALF: tl.constexpr, TOP: tl.constexpr, NORM: tl.constexpr,
    PAIR: tl.constexpr, EXTRA: tl.constexpr, ACTIVATION: tl.constexpr, NATIVE: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """out[ROWS, n] = norm(x)[ROWS, K] · weight[n, K]ᵀ and what follows it, for few rows.

    weight: int32 words of int8 [n, K], with a scale an output; or, where HALF is not 0, of nibbles as `operands.packed`
    lays them, in groups of 2 · HALF with a scale each, of 16 or 32 bits. R is the power of two from ROWS on. A program
    holds x, and has every so manieth block of BN rows of the weight, in PARTS of CHUNKS times 16 bytes of a row: it
    loads the next part while it sums one, the first one before it waits for x. NATIVE: on a GPU, not interpreted.

    TOP, if not 0: weights of many experts of n outputs each lie one behind the other, and out[pairs, n] has a row for
    each pair of a row of x and its expert, `chosen`; pair p is of row p // TOP. Groups may have zero points then, int8.
    """
    WORDS: tl.constexpr = K // 8 if HALF else K // 4
    PIECES: tl.constexpr = PARTS * (4 if HALF else 2)
    first = tl.program_id(0)
    step = tl.num_programs(0)
    if TOP:
        after_others(DEPENDENT)
        pair = tl.program_id(1)
        GROUPS: tl.constexpr = K // (2 * HALF) if HALF else 1
        line = tl.load(chosen + pair).to(tl.int64) * n
        weight, second = weight + line * WORDS, second + line * WORDS
        scales, second_scales = scales + line * GROUPS, second_scales + line * GROUPS
        if zeros is not None:
            zeros += line * GROUPS
            if PAIR:
                second_zeros += line * GROUPS
        x += (pair // TOP).to(tl.int64) * x_stride
        out += pair.to(tl.int64) * out_stride
    w, s, z = _block(weight, scales, zeros, None, None, first, 0, n, K, WORDS, BN, CHUNKS, HALF, True)
    if PAIR:
        v, t, y = _block(second, second_scales, second_zeros, None, None, first, 0, n, K, WORDS, BN, CHUNKS, HALF, True)
    gains = x
    if NORM:
        gains = _gains(gain, shift, K, PIECES, CHUNKS, HALF, NATIVE)
    if not TOP:
        after_others(DEPENDENT)
    lines, back = _rows_of(x, gains, eps, x_stride, K, PIECES, CHUNKS, HALF, ROWS, R, NORM, NATIVE)
    if HALF:
        begin = _less8(lines, PARTS, NATIVE)
    for block in range(first, tl.cdiv(n, BN), step):
        zero = tl.zeros((CHUNKS, BN, R), tl.int32)
        low, middle, high = zero, zero, zero
        low2, middle2, high2 = zero, zero, zero
        sums = tl.zeros((CHUNKS, BN, R), tl.float32)
        others = sums
        for part in tl.static_range(PARTS):
            last = part + 1 == PARTS
            later, then = block + (step if last else 0), (part + 1) % PARTS
            w_next, s_next, z_next = _block(weight, scales, zeros, s, z, later, then, n, K, WORDS, BN, CHUNKS, HALF,
                                            HALF or last)  # fmt: skip
            if PAIR:
                v_next, t_next, y_next = _block(second, second_scales, second_zeros, t, y, later, then, n, K, WORDS, BN,
                                                CHUNKS, HALF, HALF or last)  # fmt: skip
            if HALF:
                a, b, c = begin[3 * part] + zero, begin[3 * part + 1] + zero, begin[3 * part + 2] + zero
                low, middle, high = _add4(a, b, c, w, lines, 24 * part, NATIVE)
                sums += _group(low, middle, high, begin, z, 3 * part, zeros is not None) * s.to(tl.float32)
                if PAIR:
                    low, middle, high = _add4(a, b, c, v, lines, 24 * part, NATIVE)
                    others += _group(low, middle, high, begin, y, 3 * part, zeros is not None) * t.to(tl.float32)
            else:
                low, middle, high = _add8(low, middle, high, w, lines, 12 * part, NATIVE)
                if PAIR:
                    low2, middle2, high2 = _add8(low2, middle2, high2, v, lines, 12 * part, NATIVE)
            if last:
                total = _total(sums, low, middle, high, s, back, HALF)
                rest = total
                if PAIR:
                    rest = _total(others, low2, middle2, high2, t, back, HALF)
                column = (block * BN + tl.arange(0, BN))[:, None]
                row = tl.arange(0, R)[None, :]
                finish(total, rest, bias, extra, out, row, column, (column < n) & (row < ROWS), extra_stride,
                       out_stride, PAIR, EXTRA, ACTIVATION)  # fmt: skip
            w, s, z = w_next, s_next, z_next
            if PAIR:
                v, t, y = v_next, t_next, y_next
