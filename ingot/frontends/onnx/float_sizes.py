"""Sizes that a model computes in floats: ⌊1.7 · height⌋, as exporters write a resize by a factor.

A float that is a size times a number stays both, through the ops that exporters put between; where it is rounded, it is
an expression of the size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from ingot import dims
from ingot.dims import Dimension, Expr
from ingot.frontends.table import Unsupported
from ingot.ir import Value

Array = np.ndarray[Any, Any]

MAX_UNDER = 1 << 10  # the denominator of a factor
MAX_SIZE = 1 << 14  # up to which the fraction says what float32 arithmetic says
MAX_NUMBERS, MAX_DEPTH = 64, 24


class Scaled(NamedTuple):
    """A size times a factor. `steps`: what the model's arithmetic does, one by one, to reach it."""

    size: Expr
    factor: float = 1.0
    steps: tuple[Callable[[Array], Array], ...] = ()


Parts = list[float | Scaled]


def share(
    size: Dimension, factor: float, up: bool = False, steps: Sequence[Callable[[Array], Array]] | None = None
) -> Dimension:
    """⌊size · factor⌋, or ⌈…⌉, as float32 arithmetic has it: 1.7 · size is 17 · size // 10.

    Args:
        steps: what the arithmetic does, where it is not one product in float32. ⌊size · 0.5 / 0.3⌋ is 14 of 9, not 15.

    Raises:
        Unsupported: no fraction of small numbers says the same for all sizes up to 2^14.
    """
    product = np.ceil if up else np.floor
    if isinstance(size, int):
        return int(product(np.float32(size) * np.float32(factor)))
    found = Fraction(float(factor)).limit_denominator(MAX_UNDER)
    over, under = found.as_integer_ratio()
    sizes = np.arange(MAX_SIZE)
    whole = -(-sizes * over // under) if up else sizes * over // under
    made = sizes
    with np.errstate(all="ignore"):
        for step in (_in(np.float32), _multiplied(np.float32(factor))) if steps is None else steps:
            made = step(made)
    if over < 0 or not np.array_equal(product(made.astype(np.float64)), whole):
        raise Unsupported(f"a factor of {factor:g} of a size that only a run knows: no fraction rounds as it does")
    more = under - 1 if up else 0
    return dims.floordiv(dims.add(dims.mul(size, over), more), under)


def rounded(x: Value) -> list[Dimension] | None:
    """The elements of a float tensor, towards zero, where they are sizes times numbers; None where they are known, or
    anything else."""
    try:
        found = _followed(x, 0)
        if found is None or not any(isinstance(one, Scaled) for one in found):
            return None
        return [share(one.size, one.factor, steps=one.steps) if isinstance(one, Scaled) else int(one) for one in found]
    except Unsupported:
        return None  # a run counts them


def _followed(x: Value, depth: int) -> Parts | None:
    """The elements in their order; None where one is something else."""
    count = x.spec.elements
    if depth > MAX_DEPTH or not isinstance(count, int) or count > MAX_NUMBERS:
        return None
    if x.array is not None:
        return _finite([float(n) for n in np.asarray(x.array).reshape(-1).astype(np.float64)])
    if x.dtype.is_integer:
        known = x.known
        return None if known is None else [Scaled(n) if isinstance(n, Expr) else float(n) for n in known.reshape(-1)]
    node = x.node
    rule = None if node is None else _RULES.get(node.op.name)
    if node is None or rule is None:
        return None
    operands = [_followed(v, depth + 1) for v in node.inputs]
    with np.errstate(all="ignore"):
        return None if any(o is None for o in operands) else _finite(rule(node, operands))


def _finite(parts: Parts | None) -> Parts | None:
    """These, unless one is no number."""
    numbers = (one.factor if isinstance(one, Scaled) else one for one in parts or ())
    return parts if all(map(np.isfinite, numbers)) else None


def _in(dtype: Any) -> Callable[[Array], Array]:
    return lambda n: n.astype(dtype)


def _multiplied(by: Any) -> Callable[[Array], Array]:
    return lambda n: n * by


def _divided(by: Any) -> Callable[[Array], Array]:
    return lambda n: n / by


def _product(node: Any, operands: Any) -> Parts | None:
    """By one rounding after the other, in the type of the model."""
    divides, dtype = node.op.name == "div", node.output.dtype.numpy
    a, b = (list(o) * (max(map(len, operands)) if len(o) == 1 else 1) for o in operands)
    if len(a) != len(b):
        return None
    found: Parts = []
    for one, other in zip(a, b, strict=True):
        if not divides and isinstance(other, Scaled):
            one, other = other, one
        if isinstance(other, Scaled) or divides and other == 0:
            return None
        by: Any = np.asarray(other).astype(dtype)
        step = _divided(by) if divides else _multiplied(by)
        if isinstance(one, Scaled):
            factor = one.factor / float(by) if divides else one.factor * float(by)
            found.append(Scaled(one.size, factor, (*one.steps, step)))
        else:
            found.append(float(step(np.asarray(one).astype(dtype))))
    return found


def _whole(up: bool) -> Callable[[Any, Any], Parts]:
    def rule(node: Any, operands: Any) -> Parts:
        made = _in(node.output.dtype.numpy)
        return [Scaled(size, 1.0, (made,)) if isinstance(size := _rounded(one, up), Expr) else float(size)
                for one in operands[0]]  # fmt: skip

    return rule


def _rounded(one: float | Scaled, up: bool) -> Dimension:
    if isinstance(one, Scaled):
        return share(one.size, one.factor, up, one.steps)
    return int((np.ceil if up else np.floor)(one))


def _cast(node: Any, operands: Any) -> Parts:
    made = _in(node.output.dtype.numpy)
    return [one._replace(steps=(*one.steps, made)) if isinstance(one, Scaled) else float(made(np.asarray(one)))
            for one in operands[0]]  # fmt: skip


def _joined(node: Any, operands: Any) -> Parts | None:
    return sum(operands, []) if len(node.output.shape) == 1 else None


def _same(node: Any, operands: Any) -> Parts:
    return list(operands[0])


_RULES: dict[str, Callable[[Any, Any], Parts | None]] = {
    "mul": _product, "div": _product, "floor": _whole(False), "ceil": _whole(True), "concat": _joined, "reshape": _same,
    "cast": _cast,
}  # fmt: skip
