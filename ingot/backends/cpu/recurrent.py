"""Recurrent layers: all steps of one layer in one direction."""

from __future__ import annotations

from typing import Any

from ingot import dtypes
from ingot.backends.cost import Call, size
from ingot.backends.cpu.types import FLOAT32, FLOATS, INDICES
from ingot.backends.kernel import Kernel, Operand, Reads, Use, layout, present, sizes_of
from ingot.ir import Node

INNER = Reads.INNER
GATES = Operand("gates", FLOATS, INNER)
SCALED = "scaled panels of gates"
WEIGHT = Operand("weight", ("gates", dtypes.int8), INNER, ("panels of gates", SCALED, "plain"))
SCALES = Operand("scales?", FLOAT32, INNER, (SCALED,))
H0, C0, BIAS = (Operand(name, ("gates",), INNER) for name in ("h0", "c0", "bias"))
LENGTHS = Operand("lengths?", INDICES, Reads.ANY)
PROJECTION = Operand("projection?", ("gates",), INNER, ("panels", "plain"))
Y, H, C = (Operand(name, ("gates",), INNER) for name in ("y", "h", "c"))


def _steps(at: int, *more: str) -> Any:
    """The parameters of a call whose lengths are operand `at` of the op; the attributes `more` are parameters too."""

    def use(op: Any, node: Node) -> Use:
        scales = layout(node, 1) == SCALED
        lengths = present(node, at + scales)
        params: dict[str, Any] = {name: getattr(op, name) for name in more}
        params |= {"reverse": op.reverse, "packed": bool(sizes_of(node, 1)), "lengths": lengths}
        params |= {"scales": True} if scales else {}
        counts = {"scales": int(scales), "lengths": int(lengths)}
        if len(op.weights) == 1:
            return Use(params, counts)
        projection = present(node, at + scales + 1)
        return Use({**params, "projection": projection}, {**counts, "projection": int(projection)})

    return use


def _gru(op: Any, node: Node) -> Use:
    use: Use = _steps(4)(op, node)
    return use if op.reset_after else use._replace(params={**use.params, "reset_after": False})


def _flops(call: Call) -> int:
    """The products with the state; those of gates are few beside them."""
    return 2 * size(call.x) * call.inputs[3 if call.params.get("scales") else 2][1][-1]


HOW = "reverse: flag, packed: flag, scales?: flag, lengths: flag"
KERNELS = (
    Kernel(
        "lstm",
        params=f"{HOW}, projection: flag",
        operands=(GATES, WEIGHT, SCALES, H0, C0, BIAS, LENGTHS, PROJECTION),
        results=(Y, H, C),
        runs={"lstm": _steps(5)},
        flops=_flops,
    ),
    Kernel(
        "gru",
        params=f"{HOW}, reset_after?: flag",
        operands=(GATES, WEIGHT, SCALES, H0, BIAS, LENGTHS),
        results=(Y, H),
        runs={"gru": _gru},
        flops=_flops,
    ),
    Kernel(
        "rnn",
        params=f"activation: tanh | relu, {HOW}",
        operands=(GATES, WEIGHT, SCALES, H0, BIAS, LENGTHS),
        results=(Y, H),
        runs={"rnn": _steps(4, "activation")},
        flops=_flops,
    ),
)
