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
def _divisor(temperature, row):
    """A row's temperature; one so small that the greatest logit is all that counts becomes one to divide by."""
    return tl.maximum(tl.load(temperature + row), 1e-30)


@triton.jit
def _number(top):
    """What is taken from logits before exp: the greatest of them, 0 where that is no number."""
    return tl.where((top > float("-inf")) & (top < float("inf")), top, 0.0)


@triton.jit
def _leave_part(
    logits, tops, places, sums, drawn_sums, temperature, arrived, n, row, part, parts, BN: tl.constexpr,
    DRAWN: tl.constexpr,
):  # fmt: skip
    """Of a part of BN logits of a row the greatest, +infinity where one is NaN, where it stands first, and the sum of
    exp(logit - greatest); if DRAWN that of exp((logit - greatest) / temperature) too. Whether it is the last part.
    """
    at = part * BN + tl.arange(0, BN)
    found = tl.load(logits + at, mask=at < n, other=float("-inf"))
    top = tl.max(found, axis=0)
    lost = tl.sum((found != found).to(tl.int32), axis=0)
    top = tl.where(lost > 0, float("inf"), top)
    away = found - _number(top)
    line = row * parts + part
    tl.store(tops + line, top)
    tl.store(places + line, tl.min(tl.where(found == top, at, n), axis=0))
    tl.store(sums + line, tl.sum(tl.exp(away).to(tl.float64), axis=0))
    if DRAWN:
        tl.store(drawn_sums + line, tl.sum(tl.exp(away / _divisor(temperature, row)).to(tl.float64), axis=0))
    tl.debug_barrier()  # all threads have written before one counts
    last = tl.atomic_add(arrived + row, 1, sem="acq_rel") == parts - 1
    if last:
        tl.store(arrived + row, 0)
    return last


@triton.jit(do_not_specialize=["rows"])
def choose(
    logits, tops, places, sums, drawn_sums, temperature, uniform, ranked, arrived, chosen, found, n, stride, parts,
    rows, BN: tl.constexpr, BP: tl.constexpr, DRAWN: tl.constexpr, RANKED: tl.constexpr, AWAY: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A token for each row of logits: the first greatest where the temperature is 0; what `ranked` says, unless that
    is below 0; else the first at which the running sum of the weights passes `uniform` of the total.

    A program has a part of a row; the last one of a row to end chooses: `arrived`, int32 [rows], counts them, and is
    zeros before and after. found: int32 [2, rows], the tokens (-1 where no logit is finite, or one is NaN or infinite),
    and the bits of their log probabilities. AWAY: `found` holds the address of that memory, one of the host; 0: nobody
    wants it. chosen: the tokens, 0 for -1.
    """
    after_others(DEPENDENT)
    row = tl.program_id(0)
    line = logits + row.to(tl.int64) * stride
    if _leave_part(
        line, tops, places, sums, drawn_sums, temperature, arrived, n, row, tl.program_id(1), parts, BN, DRAWN
    ):
        at = tl.arange(0, BP)
        inside = at < parts
        there = row * parts + at
        part_tops = tl.load(tops + there, mask=inside, other=float("-inf"), cache_modifier=".cg")
        top = tl.max(part_tops, axis=0)
        good = (top > float("-inf")) & (top < float("inf"))
        base = _number(top)
        behind = tl.where(part_tops > float("-inf"), part_tops, base) - base  # of each part, whose sum is 0 if -inf
        place = tl.load(places + there, mask=inside, other=n, cache_modifier=".cg")
        token = tl.min(tl.where(part_tops == top, place, n), axis=0)
        if DRAWN:
            part_sums = tl.load(drawn_sums + there, mask=inside, other=0.0, cache_modifier=".cg")
            part_sums *= tl.exp(behind / _divisor(temperature, row)).to(tl.float64)
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
        part_sums = tl.load(sums + there, mask=inside, other=0.0, cache_modifier=".cg")
        total = tl.sum(part_sums * tl.exp(behind).to(tl.float64), axis=0)
        token = tl.where(good, token, 0).to(tl.int32)
        logprob = tl.load(line + token) - base - tl.log(tl.where(good, total, 1.0)).to(tl.float32)
        tl.store(chosen + row, token)
        if AWAY:
            address = tl.load(found)
            host = address.to(tl.pointer_type(tl.int32))
            tl.store(host + row, tl.where(good, token, -1), mask=address != 0)
            tl.store(host + rows + row, logprob.to(tl.int32, bitcast=True), mask=address != 0)
        else:
            tl.store(found + row, tl.where(good, token, -1))
            tl.store(found + rows + row, logprob.to(tl.int32, bitcast=True))
