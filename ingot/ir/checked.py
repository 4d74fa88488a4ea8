"""Views to sizes that cannot be proven to fit: the run checks them, and says what was asked for where they do not."""
from __future__ import annotations

import functools
import math
import operator
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ingot import dims
from ingot.dims import Dimension
from ingot.ir.op import OPS
from ingot.ir.sizes import Tensor
from ingot.ir.spec import Shape, elements

MAX_TEXT = 300  # characters of what is said of a view: programs hold it


def may_be(a: Dimension, b: Dimension) -> bool:
    """Whether two dimensions may be the same, where they are not both 0: 8*B*L and 7*B never are."""
    difference = dims.add(a, dims.mul(b, -1))
    if isinstance(difference, int):
        return difference == 0
    low, high = dims.bounds(difference)
    common = functools.reduce(operator.and_, (Counter(atoms) for atoms, _ in difference.terms))
    constant = sum(k for atoms, k in difference.terms if Counter(atoms) == common)
    rest = math.gcd(*(k for atoms, k in difference.terms if Counter(atoms) != common))
    return low <= 0 <= high and (constant % rest == 0 if rest else constant == 0)


def to_reshape(x: Any, shape: Shape) -> tuple[Any, Shape]:
    """x and the shape as `reshape` takes them: where only a run shows whether the numbers of elements agree, x flat, of
    as many elements as the shape has. What certainly does not fit is left for `reshape` to refuse.
    """
    unknown = [i for i, d in enumerate(shape) if d == -1]
    if not isinstance(x, Tensor) or len(unknown) > 1 or any(dims.bounds(d)[1] < 0 for d in shape if d != -1):
        return x, shape
    total: Dimension = x.spec.elements  # type: ignore[attr-defined]
    wanted, sizes = elements(d for d in shape if d != -1), shape
    if unknown:
        if dims.bounds(wanted)[1] < 1:
            return x, shape
        size = dims.floordiv(total, wanted)
        sizes = (*shape[: unknown[0]], size, *shape[unknown[0] + 1 :])
        wanted = dims.mul(size, wanted)
    if wanted == total or not may_be(wanted, total):
        return x, shape
    text = f"view of {_text(x.spec.shape)} as {_text(shape)}: {total} elements for {wanted}"  # type: ignore[attr-defined]
    return _with_shape(_emit("reshape", x, shape=(total,)), (wanted,), text), sizes


def to_expand(x: Any, shape: Shape) -> tuple[Any, Shape]:
    """x and the shape as `expand` takes them: a size that may be 1 or the one given, as only a run shows, is so
    already. What certainly does not fit is left for `expand` to refuse.
    """
    if not isinstance(x, Tensor):
        return x, shape
    own: Shape = x.spec.shape  # type: ignore[attr-defined]
    new = len(shape) - len(own)
    if new < 0:
        return x, shape
    pairs = list(zip(own, shape[new:], strict=True))
    open_ = [i for i, (n, d) in enumerate(pairs) if d not in (-1, n) and n != 1]
    if not open_ or not all(may_be(pairs[i][0], 1) or may_be(*pairs[i]) for i in open_):
        return x, shape
    sizes = tuple(d if i in open_ else n for i, (n, d) in enumerate(pairs))
    rule = " or 1" if any(may_be(pairs[i][0], 1) for i in open_) else ""
    said = ", ".join(f"dimension {i} is {pairs[i][0]} and must be {pairs[i][1]}{rule}" for i in open_)
    return _with_shape(x, sizes, f"expand of {_text(own)} to {_text(shape)}: {said}", bool(rule)), shape


def to_broadcast(*xs: Any) -> tuple[Any, ...]:
    """Operands as an elementwise op takes them: where only a run shows whether two sizes are the same, those of all
    operands are the simplest of them. A size that has nothing to do with it may also be 1. What certainly does not fit
    is left for the op to refuse.
    """
    rank = max((len(x.shape) for x in xs), default=0)
    return _together(xs, [[(i, axis) for i, x in enumerate(xs) if -axis <= len(x.shape)] for axis in range(-rank, 0)])


def to_concat(*xs: Any, dim: int) -> tuple[Any, ...]:
    """Operands as `concat` takes them: likewise, in all dimensions but `dim`."""
    ranks = {len(x.shape) for x in xs}
    if len(ranks) != 1 or not -(rank := ranks.pop()) <= dim < rank:
        return xs
    others = [axis for axis in range(rank) if axis != dim % rank]
    return _together(xs, [[(i, axis) for i in range(len(xs))] for axis in others], ones=False)


def to_stack(*xs: Any) -> tuple[Any, ...]:
    """Operands as `stack` takes them: likewise, in all dimensions."""
    if len({len(x.shape) for x in xs}) != 1:
        return xs
    return _together(xs, [[(i, axis) for i in range(len(xs))] for axis in range(len(xs[0].shape))], ones=False)


def to_matmul(a: Any, b: Any) -> tuple[Any, ...]:
    """Operands as `matmul` takes them: likewise, the dimension that is summed over and those of the batch."""
    ranks = (len(a.shape), len(b.shape))
    if min(ranks) < 2:
        return a, b
    a, b = _together((a, b), [[(0, -1), (1, -2)]], ones=False)
    batch = range(-min(ranks), -2)
    return _together((a, b), [[(0, axis), (1, axis)] for axis in batch])


def to_shape(x: Any, shape: Shape) -> Any:
    """x under a shape that only a run shows to be its own. What certainly does not fit stays for an op to refuse."""
    if len(shape) != len(x.shape) or x.shape == shape or not all(map(may_be, x.shape, shape)):
        return x
    pairs = enumerate(zip(x.shape, shape, strict=True))
    said = [f"dimension {i} is {d} and must be {n}" for i, (d, n) in pairs if d != n]
    return _with_shape(x, shape, f"{_text(x.shape)} as {_text(shape)}: {', '.join(said)}")


def _together(xs: Sequence[Any], groups: Sequence[Sequence[tuple[int, int]]], ones: bool = True) -> tuple[Any, ...]:
    """Operands whose dimensions of one group (operand, axis) are one size. `ones`: those that are 1 may stay it."""
    found = list(xs)
    for group in groups:
        sizes = {xs[i].shape[axis] for i, axis in group} - ({1} if ones else set())
        if len(sizes) < 2 or dims.all_fixed(sizes):
            continue
        least = {d for d in sizes if ones and dims.bounds(d)[1] <= 1}  # as x[:1] has: 0 or 1
        wanted = min(sizes - least or sizes, key=lambda d: (not isinstance(d, int), len(str(d)), str(d)))
        if not all(d in least or may_be(d, wanted) for d in sizes):
            continue
        said = f"{' and '.join(_text(x.shape) for x in xs)} together: %s must be {wanted}"
        for i, axis in group:
            size = found[i].shape[axis]
            if size != wanted and not (ones and size == 1):
                own = dims.dims_of((size,)).keys() & dims.dims_of((wanted,)).keys()
                one = ones and (size in least or not own)
                shape = list(found[i].shape)
                shape[axis] = wanted
                found[i] = _with_shape(found[i], tuple(shape), said % f"{size}{' or 1' * one}", one)
    return tuple(found)


def _with_shape(x: Any, shape: Shape, text: str, broadcast: bool = False) -> Any:
    text = text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."
    return _emit("with_shape", x, shape=shape, broadcast=broadcast, text=text)


def _emit(name: str, x: Any, **attributes: Any) -> Any:
    return x.network.emit(OPS[name](**attributes), (x,))


def _text(shape: Shape) -> str:
    return f"[{', '.join(map(str, shape))}]"

