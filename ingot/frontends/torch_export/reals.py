"""Numbers that a program computes of sizes in floats: `math.ceil(n / 8)`, `x * n**-0.5`.

Where one is rounded, it becomes an expression of whole numbers that says the same for all sizes. Where one meets a
tensor, float64 ops compute it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot.dims import Dim, Dimension, Expr
from ingot.errors import DimError
from ingot.frontends.table import Unsupported
from ingot.functional.tensor import size_tensor
from ingot.ir import F, Value

Array = np.ndarray[Any, Any]

MAX_UNDER = 1 << 12  # the denominator of a factor
MAX_OVER = 1 << 20  # the numerator
MAX_NESTED = 32
TRIED = 1 << 20  # sizes below it, for which it is known that float64 arithmetic says what the expression says
_EXACT = 1 << 10  # denominators of powers of 2 up to which no product or sum is rounded


class Real:
    """A number that is computed of sizes in floats.

    Attributes:
        op: "float" of a size, an operator, "neg", "sqrt", "min", "max", "floor", or another rounding.
        args: what it is of: sizes, floats and Reals.
        text: how a user would write it.
    """

    __slots__ = ("args", "depth", "op", "text")
    depth: int

    def __init__(self, op: str, *args: int | float | Expr | Real) -> None:
        self.op, self.args = op, args
        self.depth = 1 + max((x.depth for x in args if isinstance(x, Real)), default=0)
        if self.depth > MAX_NESTED:
            raise Unsupported(f"a number is computed of sizes by more than {MAX_NESTED} operations on floats")
        shown = [_shown(x) for x in args]
        self.text = shown[0] if op == "float" else f" {op} ".join(shown) if op in _ARITHMETIC else (
            f"-{shown[0]}" if op == "neg" else f"{op}({', '.join(map(str, args))})")  # fmt: skip

    def __repr__(self) -> str:
        return self.text

    def sizes(self) -> set[Expr]:
        """The sizes in it."""
        found = {x for x in self.args if isinstance(x, Expr)}
        return found.union(*(x.sizes() for x in self.args if isinstance(x, Real)))

    def value(self, at: Callable[[Expr], Any]) -> Any:
        """The number in float64, given the value of every size."""
        args = [x.value(at) if isinstance(x, Real) else at(x) if isinstance(x, Expr) else x for x in self.args]
        return _ON_FLOATS[self.op](*(np.asarray(x, np.float64) for x in args))

    @property
    def rounds(self) -> bool:
        """Whether it is a whole number for its rounding."""
        return self.op in _ROUNDINGS

    def of(self, change: Callable[[Expr], Dimension]) -> Real:
        """The same of other sizes."""
        return Real(self.op, *(x.of(change) if isinstance(x, Real) else change(x) if isinstance(x, Expr) else x
                               for x in self.args))  # fmt: skip

    def tensor(self) -> Value:
        """The number as a float64 tensor without dimensions, computed by the run."""
        return _tensor(self)  # type: ignore[no-any-return]


Number = int | float | Expr | Real


def _shown(x: Number) -> str:
    compound = isinstance(x, Real) and (x.op in _ARITHMETIC or x.op == "float" and not isinstance(x.args[0], Dim))
    return f"({x})" if compound or isinstance(x, Expr) and not isinstance(x, Dim) else f"{x}"


_ARITHMETIC = {"+", "-", "*", "/", "**"}
_ON_FLOATS: dict[str, Callable[..., Any]] = {
    "float": lambda x: x, "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "**": np.power, "neg": operator.neg, "sqrt": np.sqrt, "floor": np.floor, "min": np.minimum, "max": np.maximum,
}  # fmt: skip
_ROUNDINGS = {"floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint}
_ON_FLOATS |= _ROUNDINGS


def _tensor(x: Number) -> Any:
    if isinstance(x, Expr):
        return F.cast(size_tensor(x), dtypes.float64)
    if not isinstance(x, Real):
        return np.array(x, np.float64)
    args = [_tensor(arg) for arg in x.args]
    ops: dict[str, Callable[..., Any]] = {
        "float": lambda a: a, "+": F.add, "-": F.sub, "*": F.mul, "/": F.div, "**": F.pow, "neg": F.neg,
        "sqrt": F.sqrt, "floor": F.floor, "min": F.minimum, "max": F.maximum,
    }  # fmt: skip
    return ops[x.op](*args)


# ------------------------------------------------------------------------------------------------------- rounding


def rounded(x: Number, how: str) -> Dimension:
    """A number rounded by floor, ceil, trunc or round (half to even), as an expression of whole numbers.

    Raises:
        Unsupported: no such expression says the same for all sizes below 2^20.
    """
    if isinstance(x, int | Expr):
        return x
    if isinstance(x, float):
        if not math.isfinite(x) or abs(x) > dims.MAX_VALUE:
            raise Unsupported(f"{x} is no size")
        return int(_ROUNDINGS[how](x))
    if x.op == "float" and isinstance(x.args[0], int | Expr):
        return x.args[0]
    if x.op in ("min", "max"):  # rounding keeps the order
        return (dims.minimum if x.op == "min" else dims.maximum)(*(rounded(arg, how) for arg in x.args))
    try:
        fraction = as_fraction(x)
    except DimError:
        fraction = None
    if fraction is None or not _proven(x, how):
        why = f"a size is {how}({x}), in floats, for which no whole numbers are known to say the same at all sizes"
        raise Unsupported(why, WRITE_WHOLE)
    return whole(how, *fraction)


WRITE_WHOLE = "compute it in whole numbers, n // 8, -(-n // 8) to round up, 17 * n // 10 for int(1.7 * n)"


def as_fraction(x: Number) -> tuple[Dimension, Dimension] | None:
    """Numerator and denominator of what the number would be without errors of floats; None where it is no fraction of
    sizes and small numbers.
    """
    if isinstance(x, int | Expr):
        return x, 1
    if isinstance(x, float):
        return _small(x)
    parts = [as_fraction(arg) for arg in x.args]
    if any(part is None for part in parts):
        return None
    (a, b), (c, d) = parts[0] or (0, 1), (parts[-1] or (0, 1))
    match x.op:
        case "float":
            return a, b
        case "neg":
            return dims.mul(a, -1), b
        case "+" | "-":
            return _lowest(dims.add(dims.mul(a, d), dims.mul(c, b, 1 if x.op == "+" else -1)), dims.mul(b, d))
        case "*":
            return _lowest(dims.mul(a, c), dims.mul(b, d))
        case "/" if isinstance(c, Expr) or c != 0:
            sign = -1 if isinstance(c, int) and c < 0 else 1
            return _lowest(dims.mul(a, d, sign), dims.mul(b, c, sign))
        case "**" if isinstance(c, int) and d == 1 and 0 <= c <= 4:
            return _lowest(dims.mul(1, *[a] * c), dims.mul(1, *[b] * c))
        case "floor" | "ceil" | "trunc" | "round":
            return whole(x.op, a, b), 1
    return None


def _small(x: float) -> tuple[int, int] | None:
    """The fraction of small numbers that a float stands for: 17/10 for 1.7."""
    if not math.isfinite(x) or abs(x) >= MAX_OVER:
        return None
    over, under = Fraction(x).limit_denominator(MAX_UNDER).as_integer_ratio()
    return (over, under) if over / under == x and abs(over) < MAX_OVER else None


def _lowest(over: Dimension, under: Dimension) -> tuple[Dimension, Dimension] | None:
    if isinstance(under, Expr):
        return over, under
    shared = math.gcd(under, *(k for _, k in over.terms)) if isinstance(over, Expr) else math.gcd(under, over)
    over, under = dims.floordiv(over, shared), under // shared
    return (over, under) if under < MAX_OVER else None


def whole(how: str, a: Dimension, b: Dimension) -> Dimension:
    """a / b rounded, for a positive b."""
    if b == 1:
        return a
    if how == "round":
        twice = dims.add(dims.mul(2, a), b)  # of ⌊a/b + 1/2⌋, less 1 where that is exact and odd
        if isinstance(b, int) and b % 2:
            return dims.floordiv(twice, 2 * b)
        quarter = dims.mul(4, b)
        up = dims.floordiv(dims.mod(twice, quarter), dims.add(dims.mul(2, b), 1))
        return dims.add(dims.mul(2, dims.floordiv(twice, quarter)), up)
    if how == "ceil":
        return dims.ceil_div(a, b)
    down = dims.floordiv(a, b)
    if how == "floor" or dims.bounds(a)[0] >= 0:
        return down
    return dims.add(dims.maximum(down, 0), dims.minimum(dims.ceil_div(a, b), 0))


def _proven(x: Real, how: str) -> bool:
    """Whether float64 arithmetic rounds as the fraction does: exactly computed, or tried for all sizes below TRIED."""
    if x.op == "/" and all(isinstance(arg, int | Expr) for arg in x.args) or _exact(x):
        return True
    sizes = x.sizes()
    return len(sizes) == 1 and _agrees(_key(x), how)


def _exact(x: Number) -> bool:
    """Whether no operation rounds its result, for sizes below 2^31."""
    if isinstance(x, float):
        found = _small(x)
        return found is not None and found[1] <= _EXACT and found[1] & (found[1] - 1) == 0
    if not isinstance(x, Real):
        return True
    if x.op == "/":
        by = _small(float(x.args[1])) if isinstance(x.args[1], int | float) else None
        return by is not None and by[1] == 1 and 0 < by[0] <= _EXACT and by[0] & (by[0] - 1) == 0 and _exact(x.args[0])
    return x.op not in ("**", "sqrt") and x.depth <= 8 and all(map(_exact, x.args))


_Key = tuple[str, tuple[Any, ...]]


def _key(x: Number) -> Any:
    """The operations, with None for the one size."""
    return (x.op, tuple(map(_key, x.args))) if isinstance(x, Real) else None if isinstance(x, Expr) else x


@lru_cache(256)
def _agrees(key: _Key, how: str) -> bool:
    t = Dim("t")
    x = _of_key(key, t)
    fraction = as_fraction(x)
    if fraction is None:
        return False
    size = whole(how, *fraction)
    first = 1 if isinstance(fraction[1], Expr) else 0
    tried = np.arange(first, TRIED)
    with np.errstate(all="ignore"):
        wanted = _ROUNDINGS[how](x.value(lambda _: tried))
        found = at(size, {"t": tried})
    return bool(np.array_equal(wanted, np.broadcast_to(found, tried.shape)))


def _of_key(key: Any, size: Dim) -> Any:
    return Real(key[0], *(_of_key(part, size) for part in key[1])) if isinstance(key, tuple) else (
        size if key is None else key)  # fmt: skip


def at(size: Dimension, values: dict[str, Array]) -> Any:
    """A size for arrays of values of its dims."""
    if isinstance(size, int):
        return size
    if isinstance(size, dims.Call):
        args = [at(arg, values) for arg in size.args]
        if size.kind == "//":
            return np.floor_divide(*args)
        fold = np.minimum if size.kind == "min" else np.maximum
        found = args[0]
        for arg in args[1:]:
            found = fold(found, arg)
        return found
    if isinstance(size, Dim):
        return values[size.name]
    return sum(k * math.prod(at(atom, values) for atom in atoms) for atoms, k in size.terms)
