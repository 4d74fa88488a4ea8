"""The faults that can be put into a module: comparisons, conditions, arithmetic, constants, statements left out.

Texts are left alone: strings, what is interpolated into them, and the arguments of exceptions. So are annotations,
decorators, assertions and declarations (a module's or a class's own statements lose none of them, but their numbers
change).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitAnd,
}  # fmt: skip
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
SHOWN = 70  # characters of an expression


@dataclass(frozen=True)
class Fault:
    """One fault: its number among those of the module, the lines of the statement it is in, the first of these as it is
    written, what it changes, and whether the statement runs when the module is imported, and so before any test.
    """

    number: int
    lines: tuple[int, int]
    text: str
    what: str
    at_import: bool


Change = tuple[ast.AST, Callable[[], ast.AST | None]]


def faults(source: str) -> list[Fault]:
    """All faults of a module in order."""
    found, written, tree = [], source.splitlines(), ast.parse(source)
    functions = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {line for one in functions for line in range(one.lineno + 1, (one.end_lineno or one.lineno) + 1)}
    for number, (lines, node, change) in enumerate(_changes(tree)):
        before, text = _shown(node), written[lines[0] - 1].strip()
        found.append(Fault(number, lines, text, f"`{before}` → `{_shown(change())}`", lines[0] not in inside))
    return found


def mutated(source: str, number: int) -> ast.Module:
    """The module with one fault in it."""
    tree = ast.parse(source)
    _, node, change = list(_changes(tree))[number]
    new = change()
    _Replace(node, ast.copy_location(new, node)).visit(tree)
    return ast.fix_missing_locations(tree)


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> Any:
        return self.new if node is self.old else self.generic_visit(node)


def _shown(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"


# ---------------------------------------------------------------------------------------------- where faults can be

Found = Iterator[tuple[tuple[int, int], Any, Callable[[], ast.AST]]]


def _changes(tree: ast.Module) -> Found:
    yield from _body(tree.body, function=False)


# Functions that make texts for people and nothing else. So does note(), which logs what a pass decided; SHOWN is how
# much of something a text shows.
OF_TEXTS = re.compile(r"describe|__repr__|_shown?|_brief")


def _body(statements: list[ast.stmt], function: bool, nested: bool = False) -> Found:
    for i, statement in enumerate(statements):
        if i == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # a docstring
        yield from _statement(statement, function, nested)


def _statement(statement: ast.stmt, function: bool, nested: bool) -> Found:
    """Faults of a statement; `nested`: in the body of a condition or loop."""
    if isinstance(statement, ast.Import | ast.ImportFrom | ast.Assert | ast.Global | ast.Nonlocal):
        return
    if isinstance(statement, ast.FunctionDef) and OF_TEXTS.fullmatch(statement.name):
        return
    if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "SHOWN":
        return
    if isinstance(statement, ast.Expr) and ast.unparse(statement).startswith("note("):
        return
    if function and _can_go(statement, nested):
        yield (statement.lineno, statement.end_lineno or statement.lineno), statement, ast.Pass
    inner = [name for name in ("body", "orelse", "handlers", "finalbody", "cases") if hasattr(statement, name)]
    first = min((part.lineno for name in inner for part in getattr(statement, name) if hasattr(part, "lineno")),
                default=None)
    last = statement.end_lineno or statement.lineno
    lines = (statement.lineno, last if first is None else max(statement.lineno, first - 1))
    for part in _expressions(statement):
        for node, change in _expression(part):
            yield lines, node, change
    inside = function or isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
    deeper = isinstance(statement, ast.If | ast.For | ast.While | ast.Try)
    for name in inner:
        for part in getattr(statement, name):
            if isinstance(part, ast.ExceptHandler | ast.match_case):
                yield from _body(part.body, inside, nested=True)
        if name in ("body", "orelse", "finalbody"):
            yield from _body(getattr(statement, name), inside and not isinstance(statement, ast.ClassDef), deeper)


def _can_go(statement: ast.stmt, nested: bool) -> bool:
    """Whether the statement does something that a run could miss: a new name would be missed at once."""
    if isinstance(statement, ast.Assign):
        return all(isinstance(t, ast.Attribute | ast.Subscript) for t in statement.targets)
    if isinstance(statement, ast.Return):
        return nested
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Call)
    return isinstance(statement, ast.AugAssign | ast.Raise | ast.Continue | ast.Break | ast.Delete)


def _expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    """The parts of a statement's own that may hold faults."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from statement.args.defaults
        yield from (d for d in statement.args.kw_defaults if d is not None)
    elif isinstance(statement, ast.If | ast.While):
        yield _Condition(statement.test)
    elif isinstance(statement, ast.For):
        yield statement.iter
    elif isinstance(statement, ast.AnnAssign):
        yield from [statement.value] if statement.value else []
    elif isinstance(statement, ast.AugAssign):
        yield _Operator(statement)
        yield statement.value
    elif isinstance(statement, ast.With):
        yield from (item.context_expr for item in statement.items)
    elif isinstance(statement, ast.Match):
        yield statement.subject
    elif isinstance(statement, ast.Assign | ast.Return | ast.Expr | ast.Delete):
        yield from ast.iter_child_nodes(statement)


class _Condition(ast.AST):
    """A condition: beside the faults inside, the opposite."""

    def __init__(self, test: ast.expr) -> None:
        super().__init__()
        self.test = test


class _Operator(ast.AST):
    """`x += y`, whose operator is no expression."""

    def __init__(self, statement: ast.AugAssign) -> None:
        super().__init__()
        self.statement = statement


# --------------------------------------------------------------------------------------------------- what they are

Changes = Iterator[tuple[Any, Callable[[], ast.AST]]]


def _expression(node: ast.AST) -> Changes:
    if isinstance(node, ast.JoinedStr):
        return
    if isinstance(node, _Condition):
        yield from _opposite(node.test)
        yield from _expression(node.test)
        return
    if isinstance(node, _Operator):
        yield from _operator(node.statement)
        return
    if isinstance(node, ast.BinOp) and (value := _number(node)) is not None:
        yield from _constant(node, value)
        return
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            ops = [*node.ops[:i], COMPARISONS[type(op)](), *node.ops[i + 1 :]]
            yield node, lambda ops=ops: ast.Compare(node.left, ops, node.comparators)  # type: ignore[misc]
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield node, lambda: ast.BoolOp(other, node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node, lambda: node.operand
        if isinstance(node.operand, ast.Constant):
            return  # −1 as it is and as 1 says enough
    elif isinstance(node, ast.BinOp) and not _is_text(node):
        yield from _operator(node)
    elif isinstance(node, ast.IfExp):
        yield from _opposite(node.test)
    elif isinstance(node, ast.Constant):
        yield from _constant(node, node.value)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
        name = ast.Name(CALLS[node.func.id], ast.Load())
        yield node, lambda: ast.Call(name, node.args, node.keywords)
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.keyword) and child.arg == "strict":
            continue  # of zip: an assertion
        if isinstance(node, ast.comprehension) and child in node.ifs:
            yield from _opposite(child)
        yield from _expression(child)


def _operator(node: ast.BinOp | ast.AugAssign) -> Changes:
    other = ARITHMETIC.get(type(node.op))
    if other is None:
        return
    if isinstance(node, ast.AugAssign):
        yield node, lambda: ast.AugAssign(node.target, other(), node.value)
    else:
        yield node, lambda: ast.BinOp(node.left, other(), node.right)


def _opposite(test: ast.AST) -> Changes:
    """The opposite of a condition, unless another fault of it is just that."""
    single = isinstance(test, ast.Compare) and len(test.ops) == 1
    if single and not isinstance(test.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE):  # type: ignore[attr-defined]
        return
    if not isinstance(test, ast.Constant) and not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)):
        yield test, lambda: ast.UnaryOp(ast.Not(), test)  # type: ignore[arg-type]


def _constant(node: ast.expr, value: object) -> Changes:
    if isinstance(value, bool):
        yield node, lambda: ast.Constant(not value)
    elif isinstance(value, int):
        yield node, lambda: ast.Constant(value + 1)
        yield node, lambda: ast.Constant(value - 1)
    elif isinstance(value, float):
        yield node, lambda: ast.Constant(value * 2 if value else 1.0)


def _number(node: ast.AST) -> int | None:
    """The value of what is written as arithmetic of integers, such as 2**31 - 1."""
    if all(isinstance(n, ast.BinOp | ast.operator) or isinstance(n, ast.Constant) and type(n.value) is int
           for n in ast.walk(node)):
        return int(eval(compile(ast.Expression(node), "number", "eval")))  # type: ignore[arg-type]
    return None


def _is_text(node: ast.BinOp) -> bool:
    return any(isinstance(side, ast.JoinedStr) or isinstance(side, ast.Constant) and isinstance(side.value, str)
               for side in (node.left, node.right))
