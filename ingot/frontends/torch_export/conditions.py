"""What holds of the sizes of an exported program: the bounds of its symbols, and the branches that forward took."""

from __future__ import annotations

import linecache
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ingot.dims import Dimension, Expr
from ingot.frontends.torch_export.decode import integer, optional, record
from ingot.frontends.torch_export.reals import Real


@dataclass(frozen=True)
class Range:
    """The bounds of a symbol; None is open."""

    low: int | None
    high: int | None


class Branch(NamedTuple):
    """What is true of sizes where forward goes as it did for the example."""

    left: Any  # an int, a float, a size or a Real
    op: str
    right: Any
    line: tuple[str, int] | None = None  # of the user's code

    def __str__(self) -> str:
        return f"{self.left} {self.op} {self.right}"

    @property
    def where(self) -> str:
        """`net.py:12: if n % 2 == 1:`, or what is true where no line is known."""
        if self.line is None:
            return str(self)
        code = linecache.getline(*self.line).strip()
        return f"{os.path.basename(self.line[0])}:{self.line[1]}: {code[:60] or self}"

    @property
    def fixes(self) -> bool:
        """Whether it says that a number, rounded from floats, is the example's."""
        return self.op == "==" and isinstance(self.left, Real) and self.left.rounds and isinstance(self.right, int)

    def sizes(self) -> set[Expr]:
        """The sizes in it."""
        sides = (self.left, self.right)
        return {x for x in sides if isinstance(x, Expr)}.union(*(x.sizes() for x in sides if isinstance(x, Real)))

    def of(self, change: Callable[[Expr], Dimension]) -> Branch:
        """The same of other sizes."""
        left, right = (
            x.of(change) if isinstance(x, Real) else change(x) if isinstance(x, Expr) else x
            for x in (self.left, self.right)
        )
        return self._replace(left=left, right=right)


class Narrowed(NamedTuple):
    """A symbol that has its bounds because of a branch."""

    symbol: str
    branch: Branch


symbol_range = record(
    lambda min_val, max_val: Range(min_val, max_val), {"min_val": optional(integer), "max_val": optional(integer)}
)
