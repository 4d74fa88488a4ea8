"""Dimensions read back from the two forms in which they are written: JSON in files, and the printed one.

Strangers write both: whatever is accepted is in normal form and within the limits of `dims`; all else is a DimError.
"""
from __future__ import annotations

import ast
from reprlib import repr as brief
from typing import Any

from ingot.dims import MAX_DEPTH, MAX_TERMS, MAX_VALUE, OPERATORS, Dim, Dimension, mul
from ingot.errors import DimError


def from_json(obj: Any, _depth: int = 0) -> Dimension:
    """The dimension of a JSON form; anything else is a DimError."""
    if type(obj) is int and abs(obj) <= MAX_VALUE:
        return obj
    if isinstance(obj, str):
        return Dim(obj)
    if not isinstance(obj, list) or not obj or not isinstance(obj[0], str) or obj[0] not in OPERATORS:
        raise DimError(f"not a dimension: {brief(obj)}")
    binary = obj[0] not in ("+", "*")
    if _depth >= MAX_DEPTH or not 2 <= len(obj) - 1 <= (2 if binary else MAX_TERMS):
        raise DimError(f"a dimension expression has too many or too few arguments, or is too deep: {brief(obj)}")
    return OPERATORS[obj[0]](*(from_json(x, _depth + 1) for x in obj[1:]))


_AST_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%"}


def from_ast(node: ast.expr) -> Dimension:
    """The dimension written as a Python expression (the printed form)."""
    match node:
        case ast.Constant(value=int(value)) if type(value) is int:
            return value
        case ast.Name(id=name):
            return Dim(name)
        case ast.Attribute():
            return Dim(ast.unparse(node))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return mul(from_ast(operand), -1)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _AST_OPERATORS:
            return OPERATORS[_AST_OPERATORS[type(operator)]](from_ast(left), from_ast(right))
        case ast.Call(func=ast.Name(id=("min" | "max") as kind), args=args, keywords=[]) if len(args) > 1:
            return OPERATORS[kind](*map(from_ast, args))
    raise DimError(f"not a dimension: {ast.unparse(node)[:80]}")


def parse(text: str) -> Dimension:
    """The dimension that prints as `text`."""
    if len(text) > 10_000:
        raise DimError("a dimension of more than 10000 characters")
    try:
        return from_ast(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        if isinstance(e, DimError):
            raise
        raise DimError(f"not a dimension: {text[:80]!r}") from None
