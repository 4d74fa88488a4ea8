"""Scans of state spaces."""

from __future__ import annotations

from ingot import dtypes
from ingot.backends.cost import size
from ingot.backends.cpu.types import FLOATS
from ingot.backends.kernel import Kernel, Operand, Reads

ANY = Reads.ANY
SAME, WIDE = ("x",), ("x", dtypes.float32)

KERNELS = (
    Kernel(
        "selective_scan",
        operands=(
            Operand("x", FLOATS, ANY),
            *(Operand(name, WIDE if name == "a" else SAME, ANY) for name in ("delta", "a", "b", "c")),
            Operand("skip", WIDE, ANY),
            Operand("h0", WIDE, ANY),
        ),
        results=(Operand("y", SAME, ANY), Operand("h", WIDE, ANY)),
        runs={"selective_scan": lambda op, node: {}},
        flops=lambda c: 7 * size(c.x) * c.inputs[2][1][1],
    ),
)
