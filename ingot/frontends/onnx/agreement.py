"""Operands whose sizes have to agree, where only a run shows that they do: the run checks it.

A model that declares any height may still run at multiples of 32 alone, as it adds what went up by 2 to what went down
by 2. Nothing in the file says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ingot.frontends.onnx.table import MICROSOFT
from ingot.ir import Value
from ingot.ir.checked import to_broadcast, to_concat, to_matmul

_BROADCASTING = frozenset((
    "Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater", "GreaterOrEqual",
    "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "PRelu", "Pow", "Sub", "Sum", "Where", "Xor",
))  # fmt: skip


def agreeing(domain: str, op: str, operands: list[Any], attributes: Mapping[str, Any]) -> list[Any]:
    """The operands of a node under the sizes that they have to have in common."""
    if domain not in ("", MICROSOFT) or len(operands) < 2 or not all(isinstance(x, Value) for x in operands):
        return operands
    if op in _BROADCASTING:
        return list(to_broadcast(*operands))
    if op == "Concat" and isinstance(attributes.get("axis"), int):
        return list(to_concat(*operands, dim=attributes["axis"]))
    if op == "MatMul":
        return list(to_matmul(*operands)) if len(operands) == 2 else operands
    return operands
