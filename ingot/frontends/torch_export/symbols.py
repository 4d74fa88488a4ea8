"""Symbolic sizes: what torch writes about them (sympy's constructor notation) as dimension expressions."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ingot import dims
from ingot.dims import Dim, Dimension
from ingot.errors import DimError, OpError
from ingot.frontends.torch_export.decode import Malformed
from ingot.functional.resample import share

MAX_TEXT = 20_000


def _power(base: Dimension, exponent: Dimension) -> Dimension:
    if not isinstance(exponent, int) or not 0 <= exponent <= 16:
        raise Malformed(f"the power {exponent} of a size is not supported")
    return dims.mul(1, *[base] * exponent)


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
    "FloorDiv": (2, dims.floordiv),
    "CleanDiv": (2, dims.floordiv),
    "CeilDiv": (2, dims.ceil_div),
    "Mod": (2, dims.mod),
    "PythonMod": (2, dims.mod),
    "ModularIndexing": (3, _modulus),
}


def parse(text: str) -> Dimension:
    """The dimension of, say, `Add(Symbol('s0', integer=True), Integer(-1))`; Malformed for anything else."""
    if len(text) > MAX_TEXT:
        raise Malformed(f"a symbolic size of {len(text):,} characters")
    try:
        return _dimension(ast.parse(text, mode="eval").body, 0)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        if isinstance(e, Malformed):
            raise
        why = str(e) if isinstance(e, DimError) else "is no symbolic size"
        raise Malformed(f"{text[:80]!r}: {why}") from None


def _dimension(node: ast.expr, depth: int) -> Dimension:
    if depth > dims.MAX_DEPTH:
        raise Malformed("a symbolic size is nested too deeply")
    match node:
        case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str(name))]):
            return Dim(name)
        case ast.Call(func=ast.Name(id="Integer"), args=[argument], keywords=[]):
            return _integer(argument)
        case ast.Call(
            func=ast.Name(id="TruncToInt" | "FloorToInt"),
            args=[ast.Call(func=ast.Name(id="Mul"), args=[a, b], keywords=[])],
            keywords=[],
        ):
            return _scaled(a, b, depth)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            count, function = _FUNCTIONS[name]
            if (count or max(len(args), 1)) == len(args):
                return function(*(_dimension(a, depth + 1) for a in args))
    raise Malformed(f"{ast.unparse(node)[:80]!r} is not supported in a symbolic size")


def _scaled(a: ast.expr, b: ast.expr, depth: int) -> Dimension:
    """⌊factor · size⌋, of Float('1.7', precision=53) and ToFloat(size) in either order."""
    match (a, b) if isinstance(a, ast.Call) and isinstance(a.func, ast.Name) and a.func.id == "Float" else (b, a):
        case (
            ast.Call(func=ast.Name(id="Float"), args=[ast.Constant(value=str(factor))]),
            ast.Call(func=ast.Name(id="ToFloat"), args=[size], keywords=[]),
        ) if 0 < float(factor) < dims.MAX_VALUE:
            try:
                return share("a size", _dimension(size, depth + 1), float(factor))
            except OpError as e:
                raise Malformed(str(e)) from None
    raise Malformed("such a product of a size is not supported in a symbolic size")


def _integer(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(value)) if type(value) is int:
            return _limited(value)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))) if type(value) is int:
            return _limited(-value)
    raise Malformed(f"{ast.unparse(node)[:80]!r} is not an integer")


def _limited(value: int) -> int:
    if abs(value) > dims.MAX_VALUE:
        raise Malformed("an integer of a symbolic size does not fit in 64 bits")
    return value
