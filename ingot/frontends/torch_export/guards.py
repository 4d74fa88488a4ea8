"""What a program's guards say about its symbolic sizes. While exporting, torch may find out that a size has to be a
multiple of 8, or is computed from another. It then keeps the symbol and writes an equation beside the graph.

`applied` puts the equations into the sizes: `s0`, of which a guard says that it is `8*(s0 // 8)`, becomes
`8*s0.over.8`. Guards of other kinds are about torch's own choices, or say what the shape rules of ops say anyhow.
"""

from __future__ import annotations

import ast
import dataclasses
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from ingot import dims
from ingot.dims import Call, Dim, Dimension, Expr
from ingot.errors import DimError, UnsupportedError
from ingot.frontends.torch_export.decode import Malformed
from ingot.frontends.torch_export.graph import Graph, Program, Range, Ref, TensorMeta

MAX_GUARDS = 5_000
MAX_TEXT = 500  # of one guard; with MAX_SOLVED it bounds what a hostile file can ask for
MAX_SOLVED = 256  # symbols that guards say something about
MAX_FACTOR = 1 << 20

_OPERATORS: dict[type[ast.operator], Callable[..., Dimension]] = {
    ast.Add: dims.add, ast.Sub: lambda a, b: dims.add(a, dims.mul(b, -1)), ast.Mult: dims.mul,
    ast.FloorDiv: dims.floordiv, ast.Mod: dims.mod,
}  # fmt: skip


def applied(program: Program) -> Program:
    """The program with sizes that its guards' equations are put into."""
    ranges = dict(program.ranges)
    sizes_of = _input_sizes(program)
    bounded = _fixed(program.guards[:MAX_GUARDS], sizes_of, ranges)
    found = _solutions(program.guards[:MAX_GUARDS], sizes_of, ranges)
    for symbol, text in bounded.items():
        whole = dims.affine(found.get(symbol, 0))
        if symbol in found and (whole is None or not whole.dim.name.startswith(f"{symbol}.over.")):
            raise UnsupportedError(_FIXED % text)
    if not found:
        return dataclasses.replace(program, ranges=ranges)

    def change(size: Any) -> Any:
        return dims.substitute(size, found) if isinstance(size, Expr) else size

    def changed(meta: TensorMeta) -> TensorMeta:
        sizes, strides = (tuple(map(change, shape)) for shape in (meta.sizes, meta.strides))
        return dataclasses.replace(meta, sizes=sizes, strides=strides, storage_offset=change(meta.storage_offset))

    graph: Graph = program.graph
    try:
        tensors = {name: changed(meta) for name, meta in graph.tensors.items()}
        sizes = {name: change(size) for name, size in graph.sizes.items()}
    except DimError as e:
        raise Malformed(f"its sizes and what its guards say of them do not fit together: {e}") from None
    return dataclasses.replace(program, graph=dataclasses.replace(graph, tensors=tensors, sizes=sizes), ranges=ranges)


# --------------------------------------------------------------------------------------------- reading a guard


def _input_sizes(program: Program) -> dict[tuple[str, ...], tuple[Dimension, ...]]:
    """The sizes of the inputs by what guards call them: ("x",), or ("pair", "0") for a nested one."""
    users = [
        argument
        for argument, spec in zip(program.graph.inputs, program.inputs, strict=True)
        if spec.kind in ("user", "value")
    ]
    paths = program.input_paths()
    if len(paths) != len(users):
        return {}
    pairs = zip(paths, users, strict=True)
    return {path: program.graph.tensors[user.name].sizes for path, user in pairs if type(user) is Ref}


class _Other(Exception):
    """A guard of a kind that says nothing here."""


def _equation(text: str, sizes: Mapping[tuple[str, ...], tuple[Dimension, ...]]) -> Dimension:
    """What the guard says is 0; _Other when it is no equation of sizes."""
    if len(text) > MAX_TEXT:
        raise _Other
    try:
        match ast.parse(text, mode="eval").body:
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
                return dims.add(_side(left, sizes), dims.mul(_side(right, sizes), -1))
    except (SyntaxError, ValueError, RecursionError, MemoryError, DimError):
        raise _Other from None
    raise _Other


def _side(node: ast.expr, sizes: Mapping[tuple[str, ...], tuple[Dimension, ...]]) -> Dimension:
    match node:
        case ast.Constant(value=int(value)) if type(value) is int:
            return value
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
            return _OPERATORS[type(operator)](_side(left, sizes), _side(right, sizes))
        case ast.Subscript(
            value=ast.Call(func=ast.Attribute(value=tensor, attr="size"), args=[], keywords=[]),
            slice=ast.Constant(value=int(axis)),
        ):
            shape = sizes.get(_path(tensor), ())
            if 0 <= axis < len(shape):
                return shape[axis]
    raise _Other


def _path(node: ast.expr) -> tuple[str, ...]:
    """("pair", "0") of `L['pair'][0]`."""
    keys: list[str] = []
    while isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        keys.insert(0, str(node.slice.value))
        node = node.value
    if not isinstance(node, ast.Name) or node.id != "L":
        raise _Other
    return tuple(keys)


# ---------------------------------------------------------------------------------- numbers that torch fixed
# `int(n * 0.75)` of a size becomes the example's number in the program, and the guard says for which sizes it is right.

_FIXED = (
    "torch.export fixed a number that the module computes of a size by fractions, as the guard %s says, so that the "
    "program is right for other sizes no longer: compute it in whole numbers, as in 3 * n // 4, or leave the size fixed"
)
_SEARCHED = 1 << 16  # sizes that are tried
_ROUNDED = {"trunc": np.trunc, "floor": np.floor, "ceil": np.ceil}
_REAL: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip


def _fixed(
    guards: Iterable[str], sizes: Mapping[tuple[str, ...], tuple[Dimension, ...]], ranges: dict[str, Range]
) -> dict[str, str]:
    """The symbols that such guards are about, with the guard. Puts the bounds that follow into `ranges`.

    Raises:
        UnsupportedError: no bounds of one symbol say the same as the guard.
    """
    found: dict[str, str] = {}
    for text in guards:
        if "math." not in text or len(text) > MAX_TEXT:
            continue
        try:
            match ast.parse(text, mode="eval").body:
                case ast.Compare(left=left, ops=[ast.Eq()], comparators=[ast.Constant(value=int(wanted))]):
                    symbol, holds = _where(left, wanted, sizes)
                case _:
                    continue
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        except (_Other, DimError):
            raise UnsupportedError(_FIXED % text) from None
        places = np.flatnonzero(holds)
        if len(places) == _SEARCHED:
            continue
        low, high = (int(places[0]), int(places[-1])) if len(places) else (0, 0)
        low = low if low == 0 or low > 2 else 3  # as bounds of 1 and 2 claim nothing
        if high < low or not holds[low : high + 1].all():
            raise UnsupportedError(_FIXED % text)
        before = ranges.get(symbol, Range(None, None))
        lows, highs = [low, before.low or 0], [high] if before.high is None else [high, before.high]
        if max(lows) > min(highs):
            raise UnsupportedError(_FIXED % text)
        ranges[symbol] = Range(max(lows), min(highs) if high < _SEARCHED - 1 else before.high)
        found[symbol] = text
    return found


def _where(left: ast.expr, wanted: int, sizes: Mapping[tuple[str, ...], tuple[Dimension, ...]]) -> tuple[str, Any]:
    """The one symbol in an expression, and for which of its values from 0 the expression is the number wanted."""
    symbols: set[str] = set()
    tried = np.arange(_SEARCHED)

    def value(node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=int(number) | float(number)) if abs(number) <= dims.MAX_VALUE:
                return number
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return -value(inner)
            case ast.BinOp(left=a, op=operation, right=b) if type(operation) in _REAL:
                return _REAL[type(operation)](*(np.asarray(value(x)) * 1.0 for x in (a, b)))
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="sym_float"), args=[inner], keywords=[]):
                return value(inner)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="math"), attr=word), args=[inner], keywords=[]) if (
                word in _ROUNDED
            ):
                return _ROUNDED[word](value(inner))
        size = _side(node, sizes)
        names = dims.dims_of((size,))
        symbols.update(names)
        return size if isinstance(size, int) else size.evaluate(dict.fromkeys(names, tried))  # type: ignore[arg-type]

    with np.errstate(all="ignore"):
        holds = np.broadcast_to(np.asarray(value(left)) == wanted, tried.shape)
    if len(symbols) != 1:
        raise _Other
    return symbols.pop(), holds


# ------------------------------------------------------------------------------------------- solving equations


def _solutions(
    guards: Iterable[str], sizes: Mapping[tuple[str, ...], tuple[Dimension, ...]], ranges: dict[str, Range]
) -> dict[str, Dimension]:
    """What symbols have to be. Puts the ranges of new symbols into `ranges`."""
    found: dict[str, Dimension] = {}
    for text in guards:
        try:
            zero = dims.substitute(_equation(text, sizes), found)
            solved = _multiple(zero, ranges) or _computed(zero)
            if solved is not None:
                found = {name: dims.substitute(size, dict([solved])) for name, size in found.items()} | dict([solved])
        except (_Other, DimError):
            continue
        if len(found) == MAX_SOLVED:
            break
    return found


def _multiple(zero: Dimension, ranges: dict[str, Range]) -> tuple[str, Dimension] | None:
    """s as a multiple of k, when `zero` says that m·s is a multiple of n: m·s - n*((m·s) // n), or a multiple of it."""
    if not isinstance(zero, Expr) or len(zero.terms) != 2:
        return None
    parts = {isinstance(atoms[0], Call): (atoms[0], k) for atoms, k in zero.terms if len(atoms) == 1}
    if len(parts) != 2:
        return None
    (symbol, times), (quotient, back) = parts[False], parts[True]
    if not isinstance(symbol, Dim) or not isinstance(quotient, Call) or quotient.kind != "//":
        return None
    inner, divisor = dims.affine(quotient.args[0]), quotient.args[1]
    if inner is None or inner.dim != symbol or not isinstance(divisor, int):
        return None
    if inner.offset not in (0, divisor - 1):  # rounded down, or up
        return None
    if times * divisor != -back * inner.factor:
        return None
    factor = divisor // math.gcd(divisor, inner.factor)
    if not 1 < factor <= MAX_FACTOR:
        return None
    finer = Dim(f"{symbol.name}.over.{factor}")
    bounds = ranges.get(symbol.name, Range(None, None))
    ranges[finer.name] = Range(
        None if bounds.low is None else -(-bounds.low // factor),
        None if bounds.high is None else bounds.high // factor,
    )
    return symbol.name, dims.mul(finer, factor)


def _computed(zero: Dimension) -> tuple[str, Dimension] | None:
    """A symbol that `zero` says is computed from others."""
    if not isinstance(zero, Expr):
        return None
    for atoms, k in zero.terms:
        if len(atoms) != 1 or abs(k) != 1 or not isinstance(atoms[0], Dim):
            continue
        symbol = atoms[0]
        rest = dims.mul(dims.add(zero, dims.mul(symbol, -k)), -k)
        if isinstance(rest, Expr) and symbol.name not in rest.dims():
            return symbol.name, rest
    return None
