"""What a call of a program has to do at least, as the declaration of its kernel says: arithmetic, and bytes moved."""

from __future__ import annotations

from typing import Any

from ingot import _lazy
from ingot.backends.cost import Call


def _declared(call: Call) -> Any:
    """The declaration of its kernel; None for a host call."""
    return _lazy.load("ingot.backends.cpu:CPU").by_name.get(call.kernel)


def flops(call: Call) -> int:
    """Its operations on numbers, beside the expression that a product may end in."""
    kernel = _declared(call)
    return kernel.flops(call) if kernel and kernel.flops else 0


def moved(call: Call) -> int:
    """The bytes that it has to read and write."""
    kernel = _declared(call)
    return kernel.moved(call) if kernel and kernel.moved else call.bytes


def compute(call: Call) -> str:
    """The number format whose peak bounds it: bfloat16 where products of bfloat16 are summed, else float32."""
    kernel = _declared(call)
    return "bfloat16" if kernel and kernel.products and call.inputs[0][0] == "bfloat16" else "float32"
