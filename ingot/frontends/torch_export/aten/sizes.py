"""Arithmetic on sizes: what exported programs compute with their inputs' shapes, in whole numbers and in floats."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

from ingot import dims
from ingot.dims import Dimension, Expr
from ingot.frontends.torch_export.aten.table import Unsupported
from ingot.frontends.torch_export.reals import Real, rounded
from ingot.ir import Value
from ingot.ir.spec import axis_of, elements


class Unknown:
    """A condition whose truth depends on sizes that only a run shows."""

    def __repr__(self) -> str:
        return "a condition on sizes"


UNKNOWN = Unknown()


def _difference(a: Dimension, b: Dimension) -> tuple[float, float]:
    return dims.bounds(dims.add(a, dims.mul(b, -1)))


def _certain(yes: bool, no: bool) -> Any:
    return True if yes else False if no else UNKNOWN


def _less(a: Dimension, b: Dimension) -> Any:
    low, high = _difference(a, b)
    return _certain(high < 0, low >= 0)


def _not(a: Any) -> Any:
    return a if a is UNKNOWN else not a


def _equal(a: Dimension, b: Dimension) -> Any:
    low, high = _difference(a, b)
    return _certain(low == high == 0, high < 0 or low > 0)


def _and(a: Any, b: Any) -> Any:
    return False if a is False or b is False else _certain(a is True and b is True, False)


def _or(a: Any, b: Any) -> Any:
    return True if a is True or b is True else _certain(False, a is False and b is False)


def _power(a: Dimension, b: Dimension) -> Any:
    if isinstance(b, int) and -16 <= b < 0:
        return _in_floats("**", operator.pow, a, b)
    if not isinstance(b, int) or not 0 <= b <= 16:
        raise Unsupported("a size to the power of a size, or beyond 16, is not supported")
    return dims.mul(1, *[a] * b)


# ---------------------------------------------------------------------------------------------------- in floats


def _in_floats(op: str, compute: Callable[..., Any], *args: Any) -> Any:
    """The op on numbers of which one is a float, or becomes one: of numbers known at export a number."""
    if any(isinstance(a, Expr | Real) for a in args):
        return Real(op, *args)
    try:
        return compute(*map(float, args)) if op != "/" else compute(*args)
    except (ArithmeticError, ValueError) as e:
        raise Unsupported(f"a number that it computes is none: {e}") from None


def _floor_of_quotient(a: Any, b: Any) -> Any:
    quotient = _in_floats("/", operator.truediv, a, b)
    return _in_floats("floor", math.floor, quotient)


def _round(x: Any, digits: Any = None) -> Any:
    if digits is not None:
        raise Unsupported("a number that is computed of sizes is rounded to whole numbers only: round(x)")
    return rounded(x, "round")


_REAL: dict[str, Callable[..., Any]] = {
    "_operator.add": partial(_in_floats, "+", operator.add),
    "_operator.sub": partial(_in_floats, "-", operator.sub),
    "_operator.mul": partial(_in_floats, "*", operator.mul),
    "_operator.floordiv": _floor_of_quotient,
    "_operator.neg": partial(_in_floats, "neg", operator.neg),
    "_operator.pos": lambda a: a,
    "_operator.pow": partial(_in_floats, "**", operator.pow),
    "torch.sym_max": partial(_in_floats, "max", max),
    "torch.sym_min": partial(_in_floats, "min", min),
    **{f"_operator.{word}": lambda a, b: UNKNOWN for word in ("eq", "ne", "lt", "le", "gt", "ge")},
}
_FLOATS: dict[str, Callable[..., Any]] = {  # of sizes, too
    "torch.sym_float": partial(_in_floats, "float", float),
    "_operator.truediv": partial(_in_floats, "/", operator.truediv),
    "torch.sym_sqrt": partial(_in_floats, "sqrt", math.sqrt),
    "torch._sym_sqrt": partial(_in_floats, "sqrt", math.sqrt),
    "torch.sym_int": lambda x: rounded(x, "trunc"),
    "math.trunc": lambda x: rounded(x, "trunc"),
    "math.floor": lambda x: rounded(x, "floor"),
    "math.ceil": lambda x: rounded(x, "ceil"),
    "builtins.round": _round,
}


_SIZES: dict[str, Callable[..., Any]] = {
    "_operator.add": dims.add,
    "_operator.sub": lambda a, b: dims.add(a, dims.mul(b, -1)),
    "_operator.mul": dims.mul,
    "_operator.floordiv": dims.floordiv,
    "_operator.mod": dims.mod,
    "_operator.neg": lambda a: dims.mul(a, -1),
    "_operator.pos": lambda a: a,
    "_operator.pow": _power,
    "_operator.eq": _equal,
    "_operator.ne": lambda a, b: _not(_equal(a, b)),
    "_operator.lt": _less,
    "_operator.ge": lambda a, b: _not(_less(a, b)),
    "_operator.gt": lambda a, b: _less(b, a),
    "_operator.le": lambda a, b: _not(_less(b, a)),
    "torch.sym_max": dims.maximum,
    "torch.sym_min": dims.minimum,
}
_TRUTHS: dict[str, Callable[..., Any]] = {"_operator.and_": _and, "_operator.or_": _or, "torch.sym_not": _not}
_SHAPES: dict[str, Callable[..., Any]] = {
    "aten.sym_size.int": lambda x, dim: x.shape[axis_of(dim, x.ndim(), "dim")],
    "aten.sym_size.default": lambda x: x.shape,
    "aten.sym_numel.default": lambda x: elements(x.shape),
}
NAMES = {*_SIZES, *_TRUTHS, *_SHAPES, *_FLOATS}
ROUNDS = {"torch.sym_int", "math.trunc", "math.floor", "math.ceil", "builtins.round"}  # floats to sizes


def compute(op: str, arguments: tuple[Any, ...]) -> Any:
    """The result of an op on sizes. Raises Unsupported for operands that it does not take."""
    if op in _SHAPES:
        if not arguments or not isinstance(arguments[0], Value) or any(type(a) is not int for a in arguments[1:]):
            raise Unsupported("it takes a tensor and a dimension")
        wanted: tuple[type, ...] = (Value, int)
    elif op in _FLOATS or op in _REAL and any(isinstance(a, float | Real) for a in arguments):
        wanted = (int, float, Expr, Real, type(None))
    else:
        wanted = (bool, Unknown) if op in _TRUTHS else (int, Expr)
    if not all(isinstance(a, wanted) for a in arguments):
        raise Unsupported(f"it is supported on sizes only, not on {', '.join(map(_kind, arguments))}")
    table = _FLOATS if op in _FLOATS else _REAL if float in wanted else _TRUTHS if op in _TRUTHS else (
        _SHAPES if op in _SHAPES else _SIZES)  # fmt: skip
    try:
        return table[op](*arguments)
    except TypeError:
        raise Unsupported(f"it does not take {len(arguments)} operands") from None


def _kind(x: Any) -> str:
    """What an operand is, in a user's words."""
    words = {Value: "a tensor", bool: "true or false", float: "a float", Real: "a float", type(None): "nothing"}
    return "a size" if isinstance(x, Expr) or type(x) is int else words.get(type(x), "something else")
