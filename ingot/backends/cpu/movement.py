"""Elements that move unchanged: copies, concatenations, rows of tables; and numbers that count up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ingot import dtypes
from ingot.backends.cost import Call, nbytes, size
from ingot.backends.cpu.types import INDICES, STORED
from ingot.backends.kernel import Kernel, Operand, Reads, Refusal, Use, sizes_of
from ingot.ir import Node
from ingot.ir.spec import axis_of
from ingot.ops.layouts import PLAIN

ANY = Reads.ANY
LIKE_X = ("x",)
BITS = tuple(dtype for dtype in STORED if dtype is not dtypes.bool_)


def _concat(op: Any, node: Node) -> dict[str, Any]:
    return {"axis": axis_of(op.dim, len(node.output.shape))}


def _embedding(op: Any, node: Node) -> Mapping[str, Any] | Use | Refusal:
    sizes = sizes_of(node, 1)
    counted = {"from_end": True} if op.from_end else {}
    if not sizes:
        return {"packed": False, **counted}
    return Use({"packed": True, "n": sizes[0], "k": sizes[1], **counted}, reads={"table": Reads.DENSE})


def _along(op: Any, node: Node) -> dict[str, Any]:
    return {"axis": axis_of(op.axis, len(node.inputs[0].shape))}


def _scatter(op: Any, node: Node) -> dict[str, Any]:
    return {**_along(op, node), "mode": op.mode} | ({} if op.from_end else {"from_end": False})


def _iota(op: Any, node: Node) -> dict[str, Any] | Refusal:
    if not isinstance(op.start, int):
        return Refusal("its start is a number, and this one is known only at run time")
    return {"start": op.start, "step": op.step}


def _picked(c: Call) -> int:
    """As many elements as it writes, and the indices."""
    return 2 * nbytes(c.outputs[0]) + nbytes(c.inputs[1])


def _put(c: Call) -> int:
    """A copy of x, and each update read, met with what is there and written."""
    return 2 * nbytes(c.outputs[0]) + nbytes(c.inputs[1]) + 3 * nbytes(c.inputs[2])


_MODES = "replace | add | mul | min | max"
_SCATTERED = (Operand("x", STORED, ANY), Operand("index", INDICES, ANY), Operand("updates", LIKE_X, ANY))


KERNELS = (
    Kernel(  # added to a program where a kernel cannot read the strides of an operand
        "copy",
        operands=(Operand("x", STORED, ANY),),
        results=(Operand("y", LIKE_X, ANY),),
        runs={},
        flops=None,
    ),
    Kernel(
        "bitcast",
        operands=(Operand("x", BITS, ANY),),
        results=(Operand("y", BITS, ANY),),
        runs={"bitcast": lambda op, node: {}},
        flops=None,
    ),
    Kernel(
        "concat",
        params="axis: integer",
        operands=(Operand("*xs", STORED, ANY),),
        results=(Operand("y", ("xs",)),),
        runs={"concat": _concat},
        flops=None,
    ),
    Kernel(
        "embedding",
        params="packed?: flag, n?: integer, k?: integer, from_end?: flag",
        operands=(Operand("ids", INDICES, ANY), Operand("table", STORED, Reads.ROWS, (PLAIN, "panels"))),
        results=(Operand("y", ("table",)),),
        runs={"embedding": _embedding},
        flops=None,
        moved=lambda c: 2 * nbytes(c.outputs[0]) + nbytes(c.inputs[0]),  # as many rows of the table as it writes
    ),
    Kernel(
        "take",
        params="axis: integer, from_end?: flag",
        operands=(Operand("x", STORED, ANY), Operand("index", INDICES, ANY)),
        results=(Operand("y", LIKE_X),),
        runs={"take": lambda op, node: _along(op, node) | ({"from_end": True} if op.from_end else {})},
        flops=None,
        moved=_picked,
    ),
    Kernel(
        "gather",
        params="axis: integer",
        operands=(Operand("x", STORED, ANY), Operand("index", INDICES, ANY)),
        results=(Operand("y", LIKE_X),),
        runs={"gather": _along},
        flops=None,
        moved=_picked,
    ),
    Kernel(
        "scatter",
        params=f"axis: integer, mode: {_MODES}, from_end?: flag",
        operands=_SCATTERED,
        results=(Operand("y", LIKE_X, ANY),),
        runs={"scatter": _scatter},
        flops=lambda c: size(c.inputs[2][1]),
        moved=_put,
    ),
    Kernel(
        "scatter_nd",
        params=f"mode: {_MODES}",
        operands=_SCATTERED,
        results=(Operand("y", LIKE_X, ANY),),
        runs={"scatter_nd": lambda op, node: {"mode": op.mode}},
        flops=lambda c: size(c.inputs[2][1]),
        moved=_put,
    ),
    Kernel(
        "gather_nd",
        params="batch_dims: integer",
        operands=(Operand("x", STORED, ANY), Operand("index", INDICES, ANY)),
        results=(Operand("y", LIKE_X, ANY),),
        runs={"gather_nd": lambda op, node: {"batch_dims": op.batch_dims}},
        flops=None,
        moved=_picked,
    ),
    Kernel(
        "masked_scatter",
        operands=(Operand("x", STORED, ANY), Operand("mask", (dtypes.bool_,), ANY), Operand("source", LIKE_X, ANY)),
        results=(Operand("y", LIKE_X, ANY),),
        runs={"masked_scatter": lambda op, node: {}},
        flops=None,
    ),
    Kernel(
        "iota",
        params="start: number, step: number",
        operands=(),
        results=(Operand("y", (dtypes.float32, dtypes.float64, *INDICES)),),
        runs={"iota": _iota},
        flops=None,
    ),
)
