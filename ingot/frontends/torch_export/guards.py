"""What a program's guards say about its symbolic sizes. While exporting, torch may find out that a size has to be a
multiple of 8, or is computed from another. It then keeps the symbol and writes an equation beside the graph.

`applied` puts the equations into the sizes: `s0`, of which a guard says that it is `8*(s0 // 8)`, becomes
`8*s0.over.8`. What forward asked of sizes is kept as a branch. Guards of other kinds are about torch's own choices, or
say what the shape rules of ops say anyhow.
"""

from __future__ import annotations

import ast
import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ingot import dims
from ingot.dims import Call, Dim, Dimension, Expr
from ingot.errors import DimError, UnsupportedError
from ingot.frontends.table import Unsupported
from ingot.frontends.torch_export.branches import FIXED, settled
from ingot.frontends.torch_export.conditions import Branch, Range
from ingot.frontends.torch_export.decode import Malformed
from ingot.frontends.torch_export.graph import Graph, Ref, TensorMeta
from ingot.frontends.torch_export.program import Program
from ingot.frontends.torch_export.reals import Real
from ingot.frontends.torch_export.refusals import said

MAX_GUARDS = 5_000
MAX_TEXT = 500  # of one guard; with MAX_SOLVED it bounds what a hostile file can ask for
MAX_SOLVED = 256  # symbols that guards say something about
MAX_FACTOR = 1 << 20

_OPERATORS: dict[type[ast.operator], Callable[..., Dimension]] = {
    ast.Add: dims.add, ast.Sub: lambda a, b: dims.add(a, dims.mul(b, -1)), ast.Mult: dims.mul,
    ast.FloorDiv: dims.floordiv, ast.Mod: dims.mod,
}  # fmt: skip


def applied(program: Program, branches: Sequence[Branch] | None = None) -> Program:
    """The program with sizes that its guards' equations are put into.

    Args:
        branches: that forward took, where torch in this process knows them; else those that guards tell of.
    """
    ranges = dict(program.ranges)
    sizes_of = _input_sizes(program)
    found = _solutions(program.guards[:MAX_GUARDS], sizes_of, ranges)
    if branches is None:
        branches = list(_branches(program.guards[:MAX_GUARDS], sizes_of))
    ranges, narrowed, checks = settled(branches[:MAX_GUARDS], ranges, found)
    program = dataclasses.replace(program, ranges=ranges, narrowed=narrowed, branches=checks)
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
    return dataclasses.replace(program, graph=dataclasses.replace(graph, tensors=tensors, sizes=sizes))


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
    pairs = [(path, user) for path, user in zip(paths, users, strict=True) if type(user) is Ref]
    named = {path: program.graph.tensors[user.name].sizes for path, user in pairs}
    # torch says so of programs that it made of Python code itself, strict=True: the inputs in a row
    flat = {("flat_args", str(i)): user for i, user in enumerate(users) if type(user) is Ref}
    return {place: program.graph.tensors[user.name].sizes for place, user in flat.items()} | named


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


# ------------------------------------------------------------------------------------------ branches of forward
# A guard does not say whether forward asked, or torch for itself: torch's own are about slices that reach the end,
# sizes of 1, memory in one piece. Remainders, strict inequalities, and numbers rounded from floats are forward's.

_FIXES = re.compile(r"(math\.|round\().* == \d+$|specialized it to be a constant")
_COMPARED: dict[type[ast.cmpop], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
_FLOAT_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**",
}  # fmt: skip
_CALLS = {
    ("math", "trunc"): "trunc", ("math", "floor"): "floor", ("math", "ceil"): "ceil", ("torch", "sym_float"): "float",
    ("math", "sqrt"): "sqrt",
}  # fmt: skip


def any_fixed(texts: Iterable[str]) -> bool:
    """Whether torch took a number that is computed of a size for the example's, as guards or its error say."""
    return any(_FIXES.search(text) for text in texts)


def is_choice(text: str, branch: Branch) -> bool:
    """Whether a guard is one by which somebody chooses: a remainder, or which of two sizes is larger."""
    larger = branch.op in ("<", ">") and not {0, 1} & {x for x in (branch.left, branch.right) if type(x) is int}
    return larger or branch.op != "==" and ("%" in text or "Mod(" in text)


def _branches(guards: Iterable[str], sizes: Mapping[tuple[str, ...], tuple[Dimension, ...]]) -> Iterator[Branch]:
    """The guards that are forward's.

    Raises:
        UnsupportedError: a number that torch fixed, of which nothing is known.
    """
    for text in guards:
        if len(text) > MAX_TEXT:
            continue
        try:
            match ast.parse(text, mode="eval").body:
                case ast.Compare(left=left, ops=[operation], comparators=[right]) if type(operation) in _COMPARED:
                    branch = Branch(_number(left, sizes), _COMPARED[type(operation)], _number(right, sizes))
                    if branch.fixes or is_choice(text, branch):
                        yield branch
        except (_Other, DimError, Unsupported, SyntaxError, ValueError, RecursionError, MemoryError):
            if _FIXES.search(text):
                raise UnsupportedError(FIXED.format(said=f"as in {said(text)}")) from None


def _number(node: ast.expr, sizes: Mapping[tuple[str, ...], tuple[Dimension, ...]]) -> Any:
    """A side of a comparison: a size, or a number that is computed of sizes in floats."""
    match node:
        case ast.Constant(value=float(value)):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return _joined(ast.Mult(), -1, _number(inner, sizes))
        case ast.Call(func=ast.Attribute(value=ast.Name(id=space), attr=word), args=[inner]) if (space, word) in _CALLS:
            return Real(_CALLS[space, word], _number(inner, sizes))
        case ast.Call(func=ast.Name(id="round"), args=[inner]):
            return Real("round", _number(inner, sizes))
        case ast.BinOp(left=left, op=operation, right=right):
            return _joined(operation, _number(left, sizes), _number(right, sizes))
    return _side(node, sizes)


def _joined(operation: ast.operator, left: Any, right: Any) -> Any:
    exact = _OPERATORS.get(type(operation))
    if exact is not None and not any(isinstance(x, float | Real) for x in (left, right)):
        return exact(left, right)
    if type(operation) in _FLOAT_OPERATORS and any(isinstance(x, Expr | Real) for x in (left, right)):
        return Real(_FLOAT_OPERATORS[type(operation)], left, right)
    raise _Other


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
