"""The dimensions that a user lets change, by the names they give them: what torch.export is told, and what it finds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ingot import dims
from ingot.dims import Affine, Dim, Dimension, Expr
from ingot.errors import ModuleError, UserError
from ingot.frontends.torch_export.conditions import Range
from ingot.frontends.torch_export.graph import Ref
from ingot.frontends.torch_export.program import Program

UNBOUNDED = 2**62  # and above: what torch writes for "no bound"


@dataclass
class Leaf:
    """One example input and what its dimensions are called: dims, or sizes like 8·h that give one its value."""

    name: str
    value: Any
    dims: dict[int, Affine]

    def marks(self, torch: Any) -> Any:
        """What torch.export wants to know about its dimensions."""
        dynamic = torch.export.Dim.DYNAMIC
        found = {}
        for axis, size in self.dims.items():
            low, high = (None if n is None else n * size.factor + size.offset for n in (size.dim.min, size.dim.max))
            found[axis] = dynamic(min=low or None, max=high)
        return found or None


def size_named(what: Any) -> Affine | None:
    """What a user calls a dimension: "T", ingot.Dim("T", 1, 8, 64), or 8*ingot.Dim("h"). None for anything else."""
    what = Dim(what) if isinstance(what, str) else what
    return dims.affine(what) if isinstance(what, Expr) else None


def grow(torch: Any, leaves: Sequence[Leaf]) -> None:
    """Repeats examples along dynamic dimensions of one element, which torch would take for fixed."""
    named: dict[str, Dim] = {}
    values: dict[str, int] = {}
    for leaf in leaves:
        for axis, size in leaf.dims.items():
            d, have = size.dim, int(leaf.value.shape[axis])
            named[d.name] = dims.merge(named.get(d.name, d), d)
            value = size.value(have)
            if value is None:
                raise UserError(f"the example input {leaf.name} has {have} at dimension {axis}: not {size.rule()}")
            if values.setdefault(d.name, value) != value:
                raise UserError(f"{d.name} is {values[d.name]} in one example input and {value} in {leaf.name}")
    wanted: dict[str, int] = {}
    for name, d in named.items():
        value = min(max(values[name], d.min, 2 + len(wanted)), d.max if d.max is not None else 2**31)
        wanted[name] = values[name] if values[name] > 1 and d.min <= values[name] <= (d.max or 2**31) else value
        if wanted[name] < 2:
            raise UserError(f"dynamic dim {d.claims()} must be able to be 2 or more")
    for leaf in leaves:
        leaf.dims = {axis: size._replace(dim=named[size.dim.name]) for axis, size in leaf.dims.items()}
        for axis, size in leaf.dims.items():
            have, want = int(leaf.value.shape[axis]), wanted[size.dim.name] * size.factor + size.offset
            if have != want:
                if not have:
                    raise UserError(f"the example input {leaf.name} is empty")
                leaf.value = leaf.value.index_select(axis, torch.arange(want) % have)


# --------------------------------------------------------------------------------------- symbols to users' dims


class _Named(NamedTuple):
    """One dynamic dimension: what the user calls it, and what the program says about its size."""

    place: str
    user: Affine
    size: Any


def symbols(program: Program, leaves: Sequence[Leaf]) -> dict[str, Dimension]:
    """What the program's symbols are in the user's dims, with what torch found out about their bounds.

    A dim H that has to be a multiple of 8 becomes 8·H_over_8, whose dim a run can take any value of.

    Raises:
        ModuleError: a dimension that is not free in this module.
    """
    named = list(_named(program, leaves))
    finer = _finer(named)
    found: dict[str, Dimension] = {}
    for place, user, size in named:
        symbol = dims.affine(size) if isinstance(size, Expr) else None
        if symbol is None:
            told = f"is computed as {size}" if isinstance(size, Expr) else f"has to be {size}"
            raise ModuleError(f"{place} is not free: in this module it {told}")
        called = dims.substitute(dims.add(dims.mul(user.dim, user.factor), user.offset), finer)
        exact = dims.affine(called)
        assert exact is not None
        value = _quotient(dims.add(called, -symbol.offset), symbol.factor)
        if value is None:
            raise ModuleError(f"{place} is not free: in this module it is {symbol.rule()}, and {called} is not always")
        value = dims.substitute(value, {exact.dim.name: _bounded(exact, symbol, program.ranges)})
        before = found.setdefault(symbol.dim.name, value)
        if before != value:
            if isinstance(before, Dim) and isinstance(value, Dim):
                raise ModuleError(f"{before.name} and {value.name} have to be equal in this module: give them one name")
            raise ModuleError(f"{place} is not free: in this module {before} and {value} have to be equal")
    return found


def _named(program: Program, leaves: Sequence[Leaf]) -> Iterator[_Named]:
    users = [
        argument
        for argument, spec in zip(program.graph.inputs, program.inputs, strict=True)
        if spec.kind in ("user", "value")
    ]
    for leaf, argument in zip(leaves, users, strict=True):
        for axis, user in leaf.dims.items():
            size = program.graph.tensors[argument.name].sizes[axis] if type(argument) is Ref else 1
            yield _Named(f"dimension {axis} of {leaf.name}", user, size)


def _finer(named: Sequence[_Named]) -> dict[str, Dimension]:
    """Plain dims that the program takes multiples of only, as these multiples."""
    factors: dict[str, tuple[Dim, int, int]] = {}
    for _, user, size in named:
        symbol = dims.affine(size) if isinstance(size, Expr) else None
        if symbol is not None and user.factor == 1 and not user.offset:
            _, factor, offset = factors.get(user.dim.name, (user.dim, 1, symbol.offset))
            shift = symbol.offset if offset == symbol.offset else 0  # two different ones: refused where they meet
            factors[user.dim.name] = (user.dim, math.lcm(factor, symbol.factor), shift)
    found: dict[str, Dimension] = {}
    for name, (d, factor, offset) in factors.items():
        if factor > 1:
            base = Dim(f"{name}_over_{factor}", max(-((offset - d.min) // factor), 0),
                       None if d.opt is None else (d.opt - offset) // factor,
                       None if d.max is None else (d.max - offset) // factor)  # fmt: skip
            found[name] = dims.add(dims.mul(base, factor), offset)
    return found


def _quotient(x: Dimension, factor: int) -> Dimension | None:
    """x / factor where that is whole for every value of its dim."""
    found = dims.floordiv(x, factor)
    return found if dims.mul(found, factor) == x else None


def _bounded(user: Affine, symbol: Affine, ranges: dict[str, Range]) -> Dim:
    """The user's dim with the bounds that torch found for the symbol. torch assumes 2 or more of every one."""
    d, bounds = user.dim, ranges.get(symbol.dim.name, Range(None, None))

    def inverse(value: int) -> int:  # the size that the symbol's value makes, as a multiple of the user's dim
        return value * symbol.factor + symbol.offset - user.offset

    low, highs = d.min, [] if d.max is None else [d.max]
    if bounds.low is not None and bounds.low > 2:
        low = max(low, -(-inverse(bounds.low) // user.factor))
    if bounds.high is not None and bounds.high < UNBOUNDED:
        highs.append(inverse(bounds.high) // user.factor)
    high = min(highs, default=None)
    opt = d.opt if d.opt is not None and low <= d.opt <= (d.opt if high is None else high) else None
    return Dim(d.name, low, opt, high)
