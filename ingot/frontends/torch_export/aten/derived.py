"""ATen ops that mean just what an op of ingot means: the op's declaration names them (`imported_as`).

The operands get the types that torch computes in: those of one operand, floats where the op takes no integers; those of
two, one type for both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ingot.frontends.torch_export.aten.promotion import category, floating, promoted
from ingot.frontends.torch_export.aten.table import Operand, Result, Tensor, aten
from ingot.ir import OPS, Op, functions
from ingot.ops.binary import Binary
from ingot.ops.elementwise import Jump, Unary


def enter(cls: type[Op]) -> None:
    """Enters an op into the table under the names of ATen ops that it has."""
    names = [name for name in cls.imported_as if name.startswith("aten.")]
    if names:
        aten(*names)(_entry(cls))


def _entry(cls: type[Op]) -> Callable[..., Any]:
    compute = functions[cls.name]

    def of_one(self: Tensor) -> Result:
        if issubclass(cls, Jump) and category(self.dtype) < 2:
            return self  # whole numbers already
        return compute(self if issubclass(cls, Unary) and cls.integers else floating(self))

    def of_two(self: Operand, other: Operand) -> Result:
        return compute(*promoted(self, other))

    return of_two if issubclass(cls, Binary) else of_one


for _op in list(OPS.values()):
    enter(_op)
