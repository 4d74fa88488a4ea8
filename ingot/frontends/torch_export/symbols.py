"""Symbolic sizes: what torch writes about them (sympy's constructor notation) as dimension expressions."""

from __future__ import annotations

import ast
import zlib
from collections.abc import Callable
from typing import Any

from ingot import dims
from ingot.dims import Dim, Dimension, Expr
from ingot.errors import DimError
from ingot.frontends.table import Unsupported
from ingot.frontends.torch_export.decode import Malformed
from ingot.frontends.torch_export.reals import WRITE_WHOLE, Real, as_fraction, whole

MAX_TEXT = 20_000


class Unwritten(Dim):
    """A size that torch writes in a way that no expression of whole numbers says. What makes it is refused."""

    __slots__ = ("why",)

    def __init__(self, text: str, why: Unsupported) -> None:
        super().__init__(f"unwritten.{zlib.crc32(text.encode(errors='replace')):08x}")
        self.why = why


def _power(base: Dimension, exponent: Dimension) -> Dimension:
    if not isinstance(exponent, int) or not 0 <= exponent <= 16:
        raise Malformed(f"the power {exponent} of a size is not supported")
    return dims.mul(1, *[base] * exponent)


def _quotient(a: Dimension, b: Dimension) -> Dimension:
    """torch counts the elements of an arange downwards by quotients of two numbers below 0."""
    return dims.floordiv(dims.mul(a, -1), -b) if isinstance(b, int) and b < 0 else dims.floordiv(a, b)


def _modulus(a: Dimension, b: Dimension, c: Dimension) -> Dimension:
    return dims.mod(dims.floordiv(a, b), c)


# sympy's functions and torch's own, each for non-negative sizes and positive divisors
_FUNCTIONS: dict[str, tuple[int, Callable[..., Dimension]]] = {
    "Add": (0, dims.add),
    "Mul": (0, dims.mul),
    "Max": (0, dims.maximum),
    "Min": (0, dims.minimum),
    "Pow": (2, _power),
    "PowByNatural": (2, _power),
    "FloorDiv": (2, _quotient),
    "CleanDiv": (2, _quotient),
    "CeilDiv": (2, dims.ceil_div),
    "Mod": (2, dims.mod),
    "PythonMod": (2, dims.mod),
    "ModularIndexing": (3, _modulus),
}


# torch's functions that make floats, and those that make sizes of floats
_FLOATS: dict[str, tuple[int, str]] = {
    "ToFloat": (1, "float"), "IntTrueDiv": (2, "/"), "FloatTrueDiv": (2, "/"), "FloatPow": (2, "**"), "Add": (0, "+"),
    "Mul": (0, "*"), "Max": (0, "max"), "Min": (0, "min"), "OpaqueUnaryFn_sqrt": (1, "sqrt"), "Pow": (2, "**"),
}  # fmt: skip
_ROUNDED = {"TruncToInt": "trunc", "FloorToInt": "floor", "CeilToInt": "ceil", "RoundToInt": "round"}


def parse(text: str) -> Dimension:
    """The dimension of, say, `Add(Symbol('s0', integer=True), Integer(-1))`; Unwritten where no whole numbers say it.

    What is rounded from floats is taken without their errors: the ops that make it say what it is in truth.

    Raises:
        Malformed: anything else.
    """
    if len(text) > MAX_TEXT:
        raise Malformed(f"a symbolic size of {len(text):,} characters")
    try:
        return _dimension(ast.parse(text, mode="eval").body, 0)
    except Unsupported as e:
        return Unwritten(text, e)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        if isinstance(e, Malformed):
            raise
        if not isinstance(e, DimError):
            raise Malformed("a symbolic size is none that torch writes") from None
        raise Malformed(f"a symbolic size: {e}") from None


def _dimension(node: ast.expr, depth: int) -> Dimension:
    if depth > dims.MAX_DEPTH:
        raise Malformed("a symbolic size is nested too deeply")
    match node:
        case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str(name))]):
            return Dim(name)
        case ast.Call(func=ast.Name(id="Integer"), args=[argument], keywords=[]):
            return _integer(argument)
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in _ROUNDED:
            return _of_floats(_number(argument, depth + 1), _ROUNDED[name])
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            count, function = _FUNCTIONS[name]
            if (count or max(len(args), 1)) == len(args):
                return function(*(_dimension(a, depth + 1) for a in args))
        case ast.Call(func=ast.Name(id=name)) if name not in ("Symbol", "Integer"):
            raise Unsupported(f"a size is computed by torch's {name:.40}", WRITE_WHOLE)
    raise Malformed("a symbolic size is none that torch writes")


_RELATIONS = {
    "Equality": "==", "Unequality": "!=", "StrictLessThan": "<", "LessThan": "<=", "StrictGreaterThan": ">",
    "GreaterThan": ">=",
}  # fmt: skip


def relation(text: str) -> tuple[Any, str, Any] | None:
    """Both sides of `Unequality(Symbol('s0'), Integer(7))` and the operator between; None for what is no relation of
    numbers.
    """
    try:
        match ast.parse(text, mode="eval").body:
            case ast.Call(func=ast.Name(id=name), args=[left, right], keywords=[]) if name in _RELATIONS:
                return _number(left, 0), _RELATIONS[name], _number(right, 0)
    except (Unsupported, DimError, SyntaxError, ValueError, RecursionError, MemoryError):  # Malformed is a ValueError
        return None
    return None


def _of_floats(x: Any, how: str) -> Dimension:
    """A number rounded as floor, ceil, trunc or round do."""
    if isinstance(x, Real) and x.op in ("max", "min"):
        return (dims.maximum if x.op == "max" else dims.minimum)(*(_of_floats(arg, how) for arg in x.args))
    fraction = as_fraction(x)
    if fraction is None:
        raise Unsupported(f"a size is {how}({x}), in floats, which no whole numbers say", WRITE_WHOLE)
    return whole(how, *fraction)


def _number(node: ast.expr, depth: int) -> Any:
    """A number that is computed in floats."""
    match node:
        case ast.Call(func=ast.Name(id="Float"), args=[ast.Constant(value=str(number)), *_]):
            return float(number)
        case ast.Call(func=ast.Name(id="Rational"), args=[over, under], keywords=[]):
            return _integer(over) / max(_integer(under), 1)
        case _ if depth > dims.MAX_DEPTH:
            raise Malformed("a symbolic size is nested too deeply")
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in _ROUNDED:
            return Real(_ROUNDED[name], _number(argument, depth + 1))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FLOATS:
            count, op = _FLOATS[name]
            if (count or max(len(args), 1)) == len(args):
                return _joined(op, [_number(a, depth + 1) for a in args])
    return _dimension(node, depth)


def _joined(op: str, args: list[Any]) -> Any:
    """One operation on two or more numbers, in their order; of sizes alone a size."""
    if op == "float" and not isinstance(args[0], Expr):
        return args[0] if isinstance(args[0], Real) else float(args[0])
    if op in ("+", "*", "max", "min") and not any(isinstance(x, float | Real) for x in args):
        return {"+": dims.add, "*": dims.mul, "max": dims.maximum, "min": dims.minimum}[op](*args)
    found = Real(op, *args[:2]) if len(args) > 1 or op in ("float", "sqrt") else args[0]
    for x in args[2:]:
        found = Real(op, found, x)
    return found


def _integer(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(value)) if type(value) is int:
            return _limited(value)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))) if type(value) is int:
            return _limited(-value)
    raise Malformed("a symbolic size has something else in the place of an integer")


def _limited(value: int) -> int:
    if abs(value) > dims.MAX_VALUE:
        raise Malformed("an integer of a symbolic size does not fit in 64 bits")
    return value
