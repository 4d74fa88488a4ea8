"""Views to sizes that cannot be proven to fit: the run checks them, and says what was asked for where they do not."""
from __future__ import annotations

import functools
import math
import operator
from collections import Counter
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


def _with_shape(x: Any, shape: Shape, text: str, broadcast: bool = False) -> Any:
    text = text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."
    return _emit("with_shape", x, shape=shape, broadcast=broadcast, text=text)


def _emit(name: str, x: Any, **attributes: Any) -> Any:
    return x.network.emit(OPS[name](**attributes), (x,))


def _text(shape: Shape) -> str:
    return f"[{', '.join(map(str, shape))}]"

