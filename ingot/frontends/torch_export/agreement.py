"""Operands of ATen ops whose sizes have to agree, where only a run shows that they do: the run checks it.

torch.export assumes so where the example's sizes agree, and its programs do not say under which condition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ingot.ir import Value
from ingot.ir.checked import to_broadcast, to_concat, to_matmul, to_stack

_BROADCASTING = frozenset((
    "add", "addcdiv", "addcmul", "atan2", "bitwise_and", "bitwise_or", "bitwise_xor", "copysign", "div", "divide", "eq",
    "floor_divide", "fmax", "fmin", "fmod", "ge", "greater", "greater_equal", "gt", "hypot", "le", "lerp", "less",
    "less_equal", "logaddexp", "logical_and", "logical_or", "logical_xor", "lt", "masked_fill", "maximum", "minimum",
    "mul", "multiply", "ne", "not_equal", "pow", "prelu", "remainder", "rsub", "sub", "subtract", "true_divide",
    "where", "xlogy",
))  # fmt: skip
_PRODUCTS = frozenset(("bmm", "matmul", "mm"))
_JOINED = frozenset(("cat", "concat", "concatenate"))


def agreeing(op: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call, whose tensors have the sizes that they need to have in common."""
    space, _, rest = op.partition(".")
    name = rest.partition(".")[0]
    if space != "aten":
        return arguments
    if name in _BROADCASTING or name in _PRODUCTS:
        return _those_of(arguments, to_broadcast if name in _BROADCASTING else to_matmul)
    tensors = arguments.get("tensors")
    if type(tensors) is tuple and tensors and all(isinstance(x, Value) for x in tensors):
        kept = tuple([x for x in tensors if x.shape != (0,)])  # torch skips these whatever the others' rank
        dim = arguments.get("dim", 0)
        if name in _JOINED and kept and isinstance(dim, int):
            return {**arguments, "tensors": to_concat(*kept, dim=dim)}
        if name == "stack":
            return {**arguments, "tensors": to_stack(*tensors)}
    return arguments


def _those_of(arguments: dict[str, Any], change: Callable[..., tuple[Any, ...]]) -> dict[str, Any]:
    names = [name for name, x in arguments.items() if isinstance(x, Value)]
    if len(names) < 2 or change is to_matmul and len(names) != 2:
        return arguments
    return {**arguments, **dict(zip(names, change(*(arguments[n] for n in names)), strict=True))}
