"""Branches that forward took by sizes while it was exported: `if n % 2 == 1: pad`. The program has the one side that
the example took, so it is right for sizes only that take the same.

Where the sizes that do are all of an interval, they become bounds of the dim. Else every run checks them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ingot import dims
from ingot.dims import Dim, Dimension, Expr
from ingot.errors import DimError, UnsupportedError
from ingot.frontends.torch_export.conditions import Branch, Narrowed, Range
from ingot.frontends.torch_export.reals import Real, as_fraction, at
from ingot.ir import F

SEARCHED = 1 << 16  # sizes that are tried
TESTS: dict[str, Callable[..., Any]] = {  # of a difference and 0
    "==": F.equal, "!=": F.not_equal, "<": F.less, "<=": F.less_equal, ">": F.greater, ">=": F.greater_equal,
}  # fmt: skip
_HOLDS: dict[str, Callable[..., Any]] = {
    "==": np.equal, "!=": np.not_equal, "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal,
}  # fmt: skip
FIXED = (
    "forward makes a number of sizes in floats, {said}, and torch.export fixed it as it is for the example, so that "
    "the program is right for few other sizes: compute it in whole numbers, as in 3 * n // 4, or leave the size fixed"
)
OTHER_WAY = "forward takes another way for these sizes than for the example's"
REFUSED = "sizes are an error for which forward takes another way than for the example's"
CHOOSE = "choose with torch.where or torch.cond, or leave the size fixed"


class Settled(NamedTuple):
    """What became of branches: bounds of symbols, why each has them, and what a run has to check."""

    ranges: dict[str, Range]
    narrowed: tuple[Narrowed, ...]
    checks: tuple[Branch, ...]


def settled(branches: Iterable[Branch], ranges: dict[str, Range], solved: dict[str, Dimension]) -> Settled:
    """Bounds of symbols where they say what a branch does, else a check.

    Args:
        solved: symbols that equations say something about, by what they are of others.

    Raises:
        UnsupportedError: a number that torch fixed, for which neither does.
    """
    found = dict(ranges)
    narrowed: list[Narrowed] = []
    checks: list[Branch] = []
    for branch in branches:
        branch = branch.of(lambda size: dims.substitute(size, solved))
        names = sorted({name for size in branch.sizes() for name in size.dims()})
        known = {name: _known(found, name) for name in names}
        if certain(branch, partial(dims.bounds, known=known)):
            continue
        span = _interval(branch, names[0]) if len(names) == 1 else None
        if span is not None:
            low, high = span
            before = found.get(names[0], Range(None, None))
            highs = [n for n in (high, before.high) if n is not None]
            now = Range(max(low, before.low or 0), min(highs, default=None))
            if now.high is None or max(low, before.low or 0) <= now.high:
                if now != before:
                    narrowed.append(Narrowed(names[0], branch))
                found[names[0]] = now
                continue
        if branch.fixes:
            raise UnsupportedError(FIXED.format(said=branch.where))
        if as_integers(branch) is None:
            raise UnsupportedError(f"forward takes a branch, {branch.where}, which no run can check: {CHOOSE}")
        checks.append(branch)
    return Settled(found, tuple(narrowed), tuple(checks))


def _known(ranges: dict[str, Range], name: str) -> Dim:
    """A symbol with the bounds that its dim gets; torch's 1 and 2 claim nothing."""
    low, high = ranges.get(name, Range(None, None)).low or 0, ranges.get(name, Range(None, None)).high
    high = None if high is None or high >= dims.MAX_VALUE else high
    return Dim(name) if high is not None and low > high else Dim(name, low if low > 2 else 0, None, high)


def certain(branch: Branch, bounds: Callable[[Dimension], tuple[float, float]]) -> bool:
    """Whether it is true for all sizes within the bounds."""
    pair = as_integers(branch)
    if pair is None:
        return False
    low, high = bounds(dims.add(pair[0], dims.mul(pair[1], -1)))
    holds = {"==": low == high == 0, "!=": low > 0 or high < 0, "<": high < 0, "<=": high <= 0, ">": low > 0}
    return holds.get(branch.op, low >= 0)


def as_integers(branch: Branch) -> tuple[Dimension, Dimension] | None:
    """Two sizes that compare as both sides do; None where their numbers are not fractions of sizes."""
    try:
        left, right = as_fraction(branch.left), as_fraction(branch.right)
        if left is None or right is None:
            return None
        return dims.mul(left[0], right[1]), dims.mul(right[0], left[1])
    except DimError:
        return None


def _interval(branch: Branch, name: str) -> tuple[int, int | None] | None:
    """The bounds of the one dim that say what the branch says; None where no bounds do."""
    tried = np.arange(SEARCHED)

    def value(x: Any) -> Any:
        if isinstance(x, Real):
            return x.value(lambda size: at(size, {name: tried}))
        return at(x, {name: tried}) if isinstance(x, Expr) else x

    try:
        with np.errstate(all="ignore"):
            holds = np.broadcast_to(_HOLDS[branch.op](value(branch.left), value(branch.right)), tried.shape)
    except (ArithmeticError, TypeError, ValueError):
        return None
    places = np.flatnonzero(holds)
    if not len(places):
        return None
    low, high = int(places[0]), int(places[-1])
    low = low if low == 0 or low > 2 else 3 if branch.fixes else low  # as bounds of 1 and 2 claim nothing
    if high < low or not holds[low : high + 1].all():
        return None
    return low, None if high == SEARCHED - 1 else high


def words(narrowed: Sequence[Narrowed], dimension: Callable[[Dimension], Dimension]) -> list[str]:
    """What a build says about bounds that branches gave."""
    found = []
    for symbol, branch in narrowed:
        d = dimension(Dim(symbol))
        shown = branch.of(dimension)
        if not isinstance(d, Dim):
            continue
        bounds = f"{d.min} or more" if d.max is None else f"{d.min} … {d.max}"
        why = "makes a number of it" if branch.fixes else "takes a branch by it"
        todo = "compute it in whole numbers, as in 3 * n // 4" if branch.fixes else CHOOSE
        found.append(f"{d.name} is {bounds}: forward {why}, {shown.where}. For other sizes {todo}")
    return found
