"""rearrange: reshape, permute and reshape again, said in one expression of named dimensions, as in einops."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ingot import dims
from ingot.dims import Dimension
from ingot.errors import OpError
from ingot.functional.shape import Size, permute, stack
from ingot.functional.tensor import Tensor
from ingot.ir import F, spec
from ingot.ir.sizes import as_size

ELLIPSIS = "…"
_TOKEN = re.compile(r"\s*(\.\.\.|[A-Za-z_]\w*|1|[()])\s*")
Groups = list[tuple[str, ...]]  # a dimension each: the names that it joins, none for a dimension of size 1


def rearrange(inputs: Tensor | Sequence[Tensor], expression: str, **kwargs: Size) -> Tensor:
    """The dimensions of a tensor in another order, joined and taken apart: `rearrange(x, "b (h d) s -> b h s d", h=8)`.

    Args:
        inputs: a tensor, or several of one shape, which are stacked along a new first dimension.
        expression: names of dimensions; those in parentheses are one dimension; `...` stands for any number of them,
            `1` or `()` for one of size 1.
        kwargs: sizes of names, where they do not follow: ints, dims or tensors of one integer.

    Raises:
        OpError: an expression that is none, names on one side only or twice, sizes that do not fit.
    """
    x: Tensor = stack(list(inputs), 0) if isinstance(inputs, list | tuple) else inputs
    sides = expression.split("->")
    if len(sides) != 2:
        raise OpError(f"rearrange: {expression!r} must have one ->")
    left, right = (_groups(side, expression) for side in sides)
    left, right = _without_ellipsis(left, right, len(x.shape), expression)
    before, after = ([name for group in side for name in group] for side in (left, right))
    if sorted(before) != sorted(after) or len(set(before)) != len(before):
        odd = sorted(set(before) ^ set(after)) or sorted({n for n in before if before.count(n) > 1})
        raise OpError(f"rearrange: in {expression!r} every name stands once on each side; {', '.join(odd)} does not")
    if unknown := sorted(kwargs.keys() - set(before)):
        raise OpError(f"rearrange: {', '.join(unknown)} is no name in {expression!r}")
    sizes = _sizes(tuple(x.shape), left, {name: as_size(size) for name, size in kwargs.items()}, expression)
    apart = F.reshape(x, tuple(sizes[name] for name in before))
    moved = permute(apart, [before.index(name) for name in after]) if before != after else apart
    return F.reshape(moved, tuple(spec.elements(sizes[name] for name in group) for group in right))


def _groups(side: str, expression: str) -> Groups:
    found: Groups = []
    inside: list[str] | None = None
    at = 0
    for token in _TOKEN.finditer(side):
        word = token[1]
        if token.start() != at or (word == "(") is (inside is not None) and word in "()":
            break
        at = token.end()
        if word == "(":
            inside = []
        elif word == ")":
            found.append(tuple(inside or ()))
            inside = None
        else:
            names = () if word == "1" else (ELLIPSIS if word == "..." else word,)
            if inside is None:
                found.append(names)
            else:
                inside.extend(names)
    if at != len(side) and side.strip() or inside is not None:
        raise OpError(f"rearrange: {expression!r} is no expression: {side[at:].strip()[:20] or 'a ( without )'!r}")
    return found


def _without_ellipsis(left: Groups, right: Groups, rank: int, expression: str) -> tuple[Groups, Groups]:
    """Both sides with the dimensions that ... stands for."""
    counts = [sum(group.count(ELLIPSIS) for group in side) for side in (left, right)]
    if counts[0] != counts[1] or counts[0] > 1 or (counts[0] and (ELLIPSIS,) not in left):
        raise OpError(f"rearrange: {expression!r} may have one ... on each side, on the left outside of parentheses")
    missing = rank - len(left) + counts[0]
    if missing < 0 or missing and not counts[0]:
        raise OpError(f"rearrange: {expression!r} has {len(left)} dimensions on the left, the tensor {rank}")
    names = tuple(f"{ELLIPSIS}{i}" for i in range(missing))

    def filled(side: Groups) -> Groups:
        out: Groups = []
        for group in side:
            if group == (ELLIPSIS,):
                out += [(name,) for name in names]
            else:
                out.append(tuple(n for name in group for n in (names if name == ELLIPSIS else (name,))))
        return out

    return filled(left), filled(right)


def _sizes(
    shape: tuple[Dimension, ...], left: Groups, given: dict[str, Dimension], expression: str
) -> dict[str, Dimension]:
    """The size of every name."""
    sizes = dict(given)
    for i, (whole, group) in enumerate(zip(shape, left, strict=True)):
        open_ = [name for name in group if name not in sizes]
        if len(open_) > 1:
            raise OpError(f"rearrange: {expression!r}: give the size of all but one of {', '.join(open_)}")
        known = spec.elements(sizes[name] for name in group if name in sizes)
        if open_ and known != 0:
            sizes[open_[0]] = dims.floordiv(whole, known)
        if (open_ and known == 0) or spec.elements(sizes[name] for name in group) != whole:
            says = f"({' '.join(group)})" if len(group) != 1 else group[0]
            raise OpError(
                f"rearrange: {expression!r}: dimension {i} has size {whole}, which {says} with "
                f"{', '.join(f'{n}={sizes[n]}' for n in group if n in given) or 'no names'} does not make"
            )
    return sizes
