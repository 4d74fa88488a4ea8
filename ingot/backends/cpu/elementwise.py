"""elementwise: a scalar expression over operands that broadcast."""

from __future__ import annotations

from ingot.backends.cost import size, steps
from ingot.backends.cpu.types import STORED
from ingot.backends.kernel import Kernel, Operand, Reads
from ingot.ops.fused import expr_json

KERNELS = (
    Kernel(
        "elementwise",
        params="expression: expression",
        operands=(Operand("*xs", STORED, Reads.ANY),),
        results=(Operand("*ys", STORED),),
        runs={"fused_elementwise": lambda op, node: {"expression": expr_json(op.expression)}},
        flops=lambda c: size(c.y) * steps(c),
    ),
)
