"""Products with stored weights: a matmul with a parameter, or with integers and scales, becomes a packed product."""

from __future__ import annotations

from typing import Any, NamedTuple

from ingot import dtypes
from ingot.ir import Network, Node, Value
from ingot.ir.weight_format import INTEGERS
from ingot.ops.conversion import Dequantize
from ingot.ops.fused import IDENTITY, SCALED, TIMES
from ingot.ops.lowering import INT4_GROUPS, MOST_INT8, PRODUCT, Lowered, plain
from ingot.ops.product import Matmul
from ingot.passes.integers import factors, no_factors, numbers, quantised_rows, sums
from ingot.passes.rewrite import Log, detach, note
from ingot.passes.weights import FIXED, derive, sizes


class Factor(NamedTuple):
    """What a product multiplies rows with: a weight, and the scales that make it of integers, of groups of inputs.
    `rows`: the integers and the scales that the rows themselves are made of, where sums of integers will do."""

    weight: Value
    scales: Value | None = None
    group: int = 0
    rows: tuple[Value, Value] | None = None


def products(network: Network, log: Log) -> None:
    """A matmul with a parameter of rank 2, or with a dequantised one, is lowered, its weight as [N, K]; others stay as
    they are. One scale for each output is a factor of the sums."""
    dead: list[Node] = []
    for node in list(network.nodes):
        if not isinstance(node.op, Matmul):
            continue
        found = "" if sums_integers(node) else factor(node)
        if isinstance(found, str) and found:
            note(log, "products", node, found)
            continue
        with network.insert_before(node):
            new = _integer_product(network, node) if isinstance(found, str) else _linear(network, node, found)
        network.replace(node.output, new)
        dead.extend(detach(network, node))
    network.remove(dead)


def no_integers(node: Node) -> str:
    """Why a matmul does not take the integers and the scales that its second operand is dequantised of, or nothing."""
    found = "" if sums_integers(node) else factor(node)
    return found if isinstance(found, str) else ""


def sums_integers(node: Node) -> bool:
    """Whether a matmul's sums are those of int8 with a stored int8, of one scale and zero point for all of its x."""
    op: Any = node.op
    x, weight = node.inputs
    fits = not op.transpose_a and len(weight.shape) == 2 and node.output.dtype in dtypes.PRECISIONS
    return fits and not isinstance(numbers(x), str) and not no_factors(weight, 0 if op.transpose_b else 1)


def _integer_product(network: Network, node: Node) -> Value:
    op: Any = node.op
    outputs = 0 if op.transpose_b else 1
    found = numbers(node.inputs[0])
    assert not isinstance(found, str)
    of = sums(network, found, factors(network, node.inputs[1], outputs), outputs, None)
    weight = of.weight
    if outputs:
        weight = derive(network, "transpose", [weight], f"{weight.name}.transposed", axes=(1, 0))
    made = Lowered(inner=PRODUCT, layouts=plain(2), epilogue=of.epilogue, dtype=node.output.dtype)
    return network.emit(made, (of.x, weight, *of.extras))  # type: ignore[no-any-return]


def _linear(network: Network, node: Node, of: Factor) -> Value:
    op: Any = node.op
    x, (weight, scales, group, rows) = node.inputs[0], of
    if not op.transpose_b:
        weight = derive(network, "transpose", [weight], f"{weight.name}.transposed", axes=(1, 0))
    operands = [x, weight]
    epilogue: Any = IDENTITY
    if group and scales is not None:
        operands.append(scales)
    layouts = plain(len(operands))
    if scales is not None and not group:
        operands.append(factors(network, node.inputs[1], 0).scales)
        epilogue = TIMES
    if rows is not None:
        operands[0], per_row = rows
        operands.append(per_row)
        epilogue = TIMES if group else SCALED
    made = Lowered(inner=PRODUCT, layouts=layouts, epilogue=epilogue, dtype=node.output.dtype, group=group)
    return network.emit(made, tuple(operands))  # type: ignore[no-any-return]


def factor(node: Node) -> Factor | str:
    """What a matmul's second operand is made of, or why the general product is used."""
    op: Any = node.op
    x, weight = node.inputs
    if op.transpose_a:
        return "its first operand is transposed"
    if x.dtype not in dtypes.PRECISIONS or node.output.dtype not in dtypes.PRECISIONS:
        return f"there are no packed products of {x.dtype.name} with a {node.output.dtype.name} result"
    found = _integers(node) if weight.node is not None and isinstance(weight.node.op, Dequantize) else Factor(weight)
    if isinstance(found, str):
        return found
    kinds = ("parameter",) if found.scales is None else FIXED
    if found.weight.kind not in kinds or len(found.weight.shape) != 2:
        return "the second operand is no parameter of rank 2, so the general product is used"
    if 0 in found.weight.shape:
        return "a weight without elements"
    summed = found.weight.dtype in INTEGERS and sizes(found.weight)[1] <= MOST_INT8
    return found._replace(rows=quantised_rows(x) if summed else None)


def _integers(node: Node) -> Factor | str:
    """The integers and scales of a dequantised weight as a product reads them: scales for [outputs, groups]."""
    op: Any = node.op
    made: Any = node.inputs[1].node
    weight, scales, *zero = made.inputs
    if zero or scales.kind not in FIXED or len(weight.shape) != 2:
        return "its weight is dequantised by more than scales that are known"
    kinds = (dtypes.int4,) if made.op.group else (dtypes.int8, dtypes.float8_e4m3fn)
    if weight.dtype not in kinds or made.op.group not in (0, *INT4_GROUPS):
        return f"a weight of {weight.dtype.name} in groups of {made.op.group} has no packed product"
    outputs = (weight.shape[0], weight.shape[1] // made.op.group if made.op.group else 1)
    one = not made.op.group and scales.spec.elements == 1
    if not op.transpose_b or not one and scales.shape != outputs:
        return "its weight is [outputs, inputs] with a scale for all or each output, or it is dequantised first"
    return Factor(weight, scales, made.op.group)
