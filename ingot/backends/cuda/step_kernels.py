"""What stands at the ends of a language model's step, in Triton: its inputs out of the host's memory, rows of a table,
angles of positions.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ingot.backends.cuda.dependent_launch import after_others


@triton.jit(do_not_specialize=["token_ids", "behind", "rows"])
def take_inputs(
    ring, memory, turn, chosen, tokens, words, token_ids, behind, rows, SLOTS: tl.constexpr, BR: tl.constexpr,
    BN: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Copies `words` words of a ring's slot, which is page-locked memory of the host, and goes on to the next slot.

    tokens[i] = chosen[behind[i]], or token_ids[i] where behind is below 0; both by where they begin in the slot. One
    program: it alone counts turns.
    """
    after_others(DEPENDENT)
    given = ring + (tl.atomic_add(turn, 1) & (SLOTS - 1)) * words
    row = tl.arange(0, BR)
    there = row < rows
    before = tl.load(given + behind + row, mask=there, other=-1, cache_modifier=".cv")
    token = tl.load(given + token_ids + row, mask=there, other=0, cache_modifier=".cv")
    for start in range(0, words, BN):
        at = start + tl.arange(0, BN)
        tl.store(memory + at, tl.load(given + at, mask=at < words, cache_modifier=".cv"), mask=at < words)
    taken = tl.load(chosen + before, mask=there & (before >= 0), other=0)
    tl.store(tokens + row, tl.where(before >= 0, taken, token), mask=there)


@triton.jit(do_not_specialize=["count"])
def table_rows(table, index, out, count, words, stride, ZEROS: tl.constexpr, BN: tl.constexpr, DEPENDENT: tl.constexpr):
    """out[i] = table[index[i]] of rows of 32-bit words. An index outside is the nearest one that is inside; with ZEROS
    one below 0 gives zeros.
    """
    after_others(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BN + tl.arange(0, BN)
    chosen = tl.load(index + row)
    line = table + tl.minimum(tl.maximum(chosen, 0), count - 1).to(tl.int64) * stride
    inside = at < words
    read = inside & (chosen >= 0) if ZEROS else inside
    tl.store(out + row * words + at, tl.load(line + at, mask=read, other=0), mask=inside)


@triton.jit
def angles(positions, frequencies, cos, sin, width, scale, BN: tl.constexpr, DEPENDENT: tl.constexpr):
    """cos and sin of position · frequency, times `scale`: float32 [T, width]."""
    after_others(DEPENDENT)
    row = tl.program_id(0)
    at = tl.arange(0, BN)
    inside = at < width
    angle = tl.load(positions + row).to(tl.float32) * tl.load(frequencies + at, mask=inside, other=0.0)
    place = row.to(tl.int64) * width + at
    tl.store(cos + place, tl.cos(angle) * scale, mask=inside)
    tl.store(sin + place, tl.sin(angle) * scale, mask=inside)
