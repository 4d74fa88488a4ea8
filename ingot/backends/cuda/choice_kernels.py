"""The kernels that choose tokens on the device, in Triton. Imported only where Triton is; `choice` launches them."""

from __future__ import annotations

import triton
import triton.language as tl

from ingot.backends.cuda.dependent_launch import after_others


@triton.jit(do_not_specialize=["count"])
def follow(token_ids, behind, chosen, out, count, BN: tl.constexpr, DEPENDENT: tl.constexpr):
    """out[i] = chosen[behind[i]], or token_ids[i] where behind is below 0."""
    after_others(DEPENDENT)
    at = tl.program_id(0) * BN + tl.arange(0, BN)
    there = at < count
    before = tl.load(behind + at, mask=there, other=-1)
    token = tl.load(token_ids + at, mask=there, other=0)
    taken = tl.load(chosen + before, mask=there & (before >= 0), other=0)
    tl.store(out + at, tl.where(before >= 0, taken, token), mask=there)


@triton.jit
def greatest_parts(logits, tops, places, n, stride, BN: tl.constexpr, DEPENDENT: tl.constexpr):
    """The greatest of each part of BN logits of a row, and where it stands first; +infinity where one is NaN."""
    after_others(DEPENDENT)
    row = tl.program_id(0)
    part = tl.program_id(1)
    at = part * BN + tl.arange(0, BN)
    found = tl.load(logits + row.to(tl.int64) * stride + at, mask=at < n, other=float("-inf"))
    top = tl.max(found, axis=0)
    lost = tl.sum((found != found).to(tl.int32), axis=0)
    line = row * tl.num_programs(1) + part
    tl.store(tops + line, tl.where(lost > 0, float("inf"), top))
    tl.store(places + line, tl.min(tl.where(found == top, at, n), axis=0))


@triton.jit
def _whole_top(tops, row, parts, BP: tl.constexpr):
    """The greatest of each part, that of the row, whether it is a number, and what stands for it if not."""
    at = tl.arange(0, BP)
    found = tl.load(tops + row * parts + at, mask=at < parts, other=float("-inf"))
    top = tl.max(found, axis=0)
    good = (top > float("-inf")) & (top < float("inf"))
    return found, top, good, tl.where(good, top, 0.0)


@triton.jit
def _divisor(temperature, row):
    """A row's temperature; one so small that the greatest logit is all that counts becomes one to divide by."""
    return tl.maximum(tl.load(temperature + row), 1e-30)


@triton.jit
def weigh_parts(logits, tops, temperature, sums, drawn_sums, n, stride, parts,
                BN: tl.constexpr, BP: tl.constexpr, DRAWN: tl.constexpr, DEPENDENT: tl.constexpr):  # fmt: skip
    """Of each part the sum of exp(logit - greatest), and of exp((logit - greatest) / temperature) if DRAWN."""
    after_others(DEPENDENT)
    row = tl.program_id(0)
    part = tl.program_id(1)
    _, _, _, base = _whole_top(tops, row, parts, BP)
    at = part * BN + tl.arange(0, BN)
    away = tl.load(logits + row.to(tl.int64) * stride + at, mask=at < n, other=float("-inf")) - base
    tl.store(sums + row * parts + part, tl.sum(tl.exp(away).to(tl.float64), axis=0))
    if DRAWN:
        weights = tl.exp(away / _divisor(temperature, row))
        tl.store(drawn_sums + row * parts + part, tl.sum(weights.to(tl.float64), axis=0))


@triton.jit(do_not_specialize=["rows"])
def choose(
    logits, tops, places, sums, drawn_sums, temperature, uniform, ranked, chosen, found, n, stride, parts, rows,
    BN: tl.constexpr, BP: tl.constexpr, DRAWN: tl.constexpr, RANKED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A token for each row of logits: the first greatest where the temperature is 0; what `ranked` says, unless that
    is below 0; else the first at which the running sum of the weights passes `uniform` of the total.

    found: int32 [2, rows], the tokens (-1 where no logit is finite, or one is NaN or infinite), and the bits of their
    log probabilities. chosen: the tokens, 0 for -1.
    """
    after_others(DEPENDENT)
    row = tl.program_id(0)
    at = tl.arange(0, BP)
    inside = at < parts
    part_tops, top, good, base = _whole_top(tops, row, parts, BP)
    place = tl.load(places + row * parts + at, mask=inside, other=n)
    token = tl.min(tl.where(part_tops == top, place, n), axis=0)
    line = logits + row.to(tl.int64) * stride
    if DRAWN:
        part_sums = tl.load(drawn_sums + row * parts + at, mask=inside, other=0.0)
        target = tl.load(uniform + row) * tl.sum(part_sums, axis=0)
        passed = (tl.cumsum(part_sums, axis=0) <= target) & inside
        part = tl.minimum(tl.sum(passed.to(tl.int32), axis=0), parts - 1)
        before = tl.sum(tl.where(at < part, part_sums, 0.0), axis=0)
        where = part * BN + tl.arange(0, BN)
        away = tl.load(line + where, mask=where < n, other=float("-inf")) - base
        weights = tl.exp(away / _divisor(temperature, row))
        running = before + tl.cumsum(weights.to(tl.float64), axis=0)
        some = weights > 0
        first = tl.min(tl.where(some & (running > target), where, n), axis=0)
        last = tl.max(tl.where(some, where, -1), axis=0)  # a part's sum may differ from that of its elements
        drawn = tl.where(first < n, first, last)
        token = tl.where((tl.load(temperature + row) > 0) & (drawn >= 0), drawn, token)
    if RANKED:
        by_rank = tl.load(ranked + row)
        token = tl.where(by_rank >= 0, by_rank, token)
    total = tl.sum(tl.load(sums + row * parts + at, mask=inside, other=0.0), axis=0)
    token = tl.where(good, token, 0).to(tl.int32)
    logprob = tl.load(line + token) - base - tl.log(tl.where(good, total, 1.0)).to(tl.float32)
    tl.store(chosen + row, token)
    tl.store(found + row, tl.where(good, token, -1))
    tl.store(found + rows + row, logprob.to(tl.int32, bitcast=True))
