"""Zero points of stored weights: products take integers without them, and a small second product takes what they are.

    x · ((q − z) s)ᵀ  =  x · (q s)ᵀ + G(x) · (−z s)ᵀ

G(x) are the sums of x over each group of inputs, in float32: for groups of 128 the second product is one of a 128th of
the inputs. Of rows of int8 they are sums of whole numbers, which are exact, times a row's scale. Both are added in
float32 and rounded once.
"""

from __future__ import annotations

from typing import Any

from ingot import dtypes
from ingot.ir import F, Network, Node, Value
from ingot.ops.conversion import Dequantize
from ingot.ops.product import Matmul
from ingot.passes.integers import quantised_rows
from ingot.passes.rewrite import Log, detach, note
from ingot.passes.weights import derive, sizes

INTEGERS = (dtypes.int8, dtypes.int4)


def zero_points(network: Network, log: Log) -> None:
    """Products of stored integers with stored zero points become two products."""
    dead: list[Node] = []
    sums: dict[tuple[Value, int], Value] = {}
    for node in list(network.nodes):
        if not isinstance(node.op, Matmul) or not _has_zeros(node.inputs[1]):
            continue
        if why := _kept(node):
            note(log, "zero points", node, why)
            continue
        with network.insert_before(node):
            new = _two_products(network, node, sums)
        note(log, "zero points", node, "a second product")
        network.replace(node.output, new)
        dead.extend(detach(network, node))
    network.remove(dead)


def stored_zeros(network: Network) -> list[Value]:
    """The zero points of stored weights. A target that computes with −z · s has them in no other tensor, so that they
    are kept beside that for those that do not."""
    found = (n.inputs[2] for n in network.nodes if isinstance(n.op, Dequantize) and _has_zeros(n.output))
    return list(dict.fromkeys(found))


def _has_zeros(weight: Value) -> bool:
    """Whether a weight is dequantised of parameters, its zero points among them."""
    node = weight.node
    return (
        node is not None and isinstance(node.op, Dequantize) and len(node.given) == 3
        and all(v.kind == "parameter" for v in node.inputs)
    )  # fmt: skip


def _kept(node: Node) -> str:
    """Why a product is left as it is, or nothing."""
    op: Any = node.op
    x, weight = node.inputs
    made: Any = weight.node
    integers, scales, zeros = made.inputs
    if op.transpose_a or not op.transpose_b or len(integers.shape) != 2 or not x.shape:
        return "its weight is not [outputs, inputs]"
    if integers.dtype not in INTEGERS or zeros.dtype is not dtypes.int8:
        return f"its weight is {integers.dtype.name}, with zero points of {zeros.dtype.name}"
    groups = sizes(integers)[1] // made.op.group if made.op.group else 1
    if sizes(scales) != (sizes(integers)[0], groups) or scales.shape != zeros.shape:
        return "its scales are not those of outputs and groups"
    if x.dtype not in dtypes.PRECISIONS or node.output.dtype not in dtypes.PRECISIONS:
        return f"there are no packed products of {x.dtype.name}"
    return ""


def _two_products(network: Network, node: Node, sums: dict[tuple[Value, int], Value]) -> Value:
    x, weight = node.inputs
    made: Any = weight.node
    integers, scales, zeros = made.inputs
    group = made.op.group or sizes(integers)[1]
    if (x, group) not in sums:
        sums[x, group] = _sums_of_groups(x, sizes(integers)[1] // group, group)
    less = derive(network, "zero_products", [scales, zeros], f"{zeros.name}.products")
    whole = F.matmul(x, network.emit(made.op, (integers, scales)), transpose_b=True, out_dtype=dtypes.float32)
    # The larger product last: fusion lets that take the epilogue, and then the small ones of q, k and v become one.
    found = F.add(F.matmul(sums[x, group], less, transpose_b=True), whole)
    return found if node.output.dtype is dtypes.float32 else F.cast(found, node.output.dtype)  # type: ignore[no-any-return]


def _sums_of_groups(x: Value, count: int, group: int) -> Value:
    rows = quantised_rows(x)
    wide = x if rows is None else rows[0]
    wide = wide if wide.dtype is dtypes.float32 else F.cast(wide, dtypes.float32)
    found = F.reduce_sum(F.reshape(wide, shape=(*x.shape[:-1], count, group)), axes=(-1,))
    return found if rows is None else F.mul(found, rows[1])  # type: ignore[no-any-return]
