"""Elements in order along an axis, running sums and extremes, and where elements are that are not zero."""

from __future__ import annotations

from typing import Any

from ingot import dtypes
from ingot.backends.cost import size
from ingot.backends.cpu.types import FLOATS, STORED
from ingot.backends.kernel import Kernel, Operand, Reads
from ingot.ir import Node
from ingot.ir.spec import axis_of

ANY = Reads.ANY
_ADDED = (*FLOATS, *dtypes.INTEGERS, dtypes.float64)
ORDERED = (Operand("y", ("x",), ANY), Operand("places", (dtypes.int64,), ANY))


def _axis(op: Any, node: Node) -> int:
    x, *_ = node.inputs
    return axis_of(op.axis, len(x.shape))


def _named(op: Any) -> dict[str, Any]:
    """What a size that is none is called, and what was computed."""
    return {"names": [d.name for d in op.bound_dims()], **({"text": op.text} if op.text else {})}


KERNELS = (
    Kernel(
        "sort",
        params="axis: integer, descending: flag",
        operands=(Operand("x", STORED, ANY),),
        results=ORDERED,
        runs={"sort": lambda op, node: {"axis": _axis(op, node), "descending": op.descending}},
        flops=lambda c: size(c.x),
    ),
    Kernel(
        "top_k",
        params="axis: integer, largest: flag",
        operands=(Operand("x", STORED, ANY),),
        results=ORDERED,
        runs={"top_k": lambda op, node: {"axis": _axis(op, node), "largest": op.largest}},
        flops=lambda c: size(c.x),
    ),
    Kernel(
        "bucketize",
        params="right: flag",
        operands=(Operand("x", STORED, ANY), Operand("boundaries", ("x",), ANY)),
        results=(Operand("y", (dtypes.int64,), ANY),),
        runs={"bucketize": lambda op, node: {"right": op.right}},
        flops=lambda c: size(c.x),
    ),
    *(
        Kernel(
            name,
            params="axis: integer",
            operands=(Operand("x", types, ANY),),
            results=(Operand("y", ("x",), ANY),),
            runs={name: lambda op, node: {"axis": _axis(op, node)}},
            flops=lambda c: size(c.x),
        )
        for name, types in (("cumsum", _ADDED), ("cumprod", _ADDED), ("logcumsumexp", (*FLOATS, dtypes.float64)))
    ),
    *(
        Kernel(
            name,
            params="axis: integer",
            operands=(Operand("x", STORED, ANY),),
            results=ORDERED,
            runs={name: lambda op, node: {"axis": _axis(op, node)}},
            flops=lambda c: size(c.x),
        )
        for name in ("cummax", "cummin")
    ),
    Kernel(
        "count_nonzero",
        operands=(Operand("x", STORED, ANY),),
        results=(Operand("size", (dtypes.int64,)),),
        runs={},
        flops=lambda c: size(c.x),
    ),
    Kernel(
        "nonzero",
        operands=(Operand("x", STORED, ANY),),
        results=(Operand("places", (dtypes.int64,), ANY),),
        runs={"nonzero": lambda op, node: {}},
        flops=lambda c: size(c.x),
        sizes="count_nonzero",
    ),
    Kernel(
        "read_sizes",
        params="names: texts, text?: text",
        operands=(Operand("x", dtypes.INTEGERS, ANY),),
        results=(Operand("sizes", (dtypes.int64,)),),
        runs={},
        flops=None,
    ),
    Kernel(
        "assertion",
        params="message: text",
        operands=(Operand("condition", (dtypes.bool_,), ANY),),
        results=(Operand("y", (dtypes.bool_,)),),
        runs={"assertion": lambda op, node: {"message": op.message}},
        flops=None,
    ),
    Kernel(
        "sizes_of",
        operands=(Operand("x", dtypes.INTEGERS, ANY),),
        results=(Operand("*made", (dtypes.bool_,), ANY),),
        runs={"sizes_of": lambda op, node: {}},
        flops=None,
        sizes="read_sizes",
        sizes_params=_named,
    ),
)
