"""What a program's guards say about its symbolic sizes. While exporting, torch may find out that a size has to be a
multiple of 8, or is computed from another. It then keeps the symbol and writes an equation beside the graph.

`applied` puts the equations into the sizes: `s0`, of which a guard says that it is `8*(s0 // 8)`, becomes
`8*s0.over.8`. Guards of other kinds are about torch's own choices, or say what the shape rules of ops say anyhow.
"""

from __future__ import annotations

import ast
import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ingot import dims
from ingot.dims import Call, Dim, Dimension, Expr
from ingot.errors import DimError
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
    found = _solutions(program.guards[:MAX_GUARDS], _input_sizes(program), ranges)
    if not found:
        return program

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
    if inner is None or inner.offset or inner.dim != symbol or not isinstance(divisor, int):
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
