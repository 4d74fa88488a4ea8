"""What a node of a net is for target cuda: a step of a chain, a product with a stored weight, sums of int8, and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ingot import dtypes
from ingot.backends.cuda.net_calls import HALVES, Chain, Eight, Sums
from ingot.backends.cuda.step_text import line_of
from ingot.ir import ExprBuilder, Network, Node, Value
from ingot.ir.expr import NoExpression, class_of
from ingot.ops.binary import Add
from ingot.ops.contraction import Einsum, parse
from ingot.ops.conversion import Dequantize, Float8Rows
from ingot.ops.elementwise import Relu
from ingot.ops.movement import Reshape
from ingot.ops.pool import MaxPool
from ingot.ops.product import Matmul
from ingot.ops.spatial import Conv


def is_step(node: Node) -> bool:
    """Whether chains compute a node."""
    if node.op.expr is None:
        return False
    builder = ExprBuilder()
    op: Any = node.op
    try:
        for value in (*node.inputs, *node.outputs):
            if value.spec is None or class_of(value.dtype) not in ("float32", "int64", "bool"):
                return False
            if value.dtype.name in ("uint16", "uint32"):  # torch's tensors of these are rare guests
                return False
        op.expr(builder, *(builder.input(i, v.dtype) for i, v in enumerate(node.inputs)))
    except NoExpression:
        return False
    return all(step[0] == "input" or line_of(step) is not None for step in builder.steps)


def is_convolution(node: Node) -> bool:
    """Of images of 16 bits, with a stored weight."""
    op: Any = node.op
    if not isinstance(op, Conv) or op.channels_last or len(op.stride) != 2 or node.output.dtype not in HALVES:
        return False
    return _is_stored(node.inputs[1]) and all(v.dtype is node.output.dtype for v in node.given)


def _is_stored(weight: Value) -> bool:
    """Whether a weight is a parameter, or dequantised of some."""
    made = weight.node
    if made is None or not isinstance(made.op, Dequantize):
        return weight.kind == "parameter"
    return all(v.kind in ("parameter", "constant") for v in made.given)


def is_pool(op: Any) -> bool:
    """Of images whose windows all count alike."""
    if op.channels_last or len(op.kernel) != 2 or op.ceil_mode:
        return False
    whole = not any((*op.pre_padding, *op.post_padding))
    return isinstance(op, MaxPool) or (whole and op.divisor is None)


def is_linear(node: Node) -> bool:
    """A product of rows of 16 bits with a stored [outputs, inputs]."""
    op: Any = node.op
    if not isinstance(op, Matmul) or op.transpose_a or not op.transpose_b or node.output.dtype not in HALVES:
        return False
    x, weight = node.inputs
    stored = _is_stored(weight) and len(weight.shape) == 2 and len(x.shape) >= 2
    return stored and x.dtype is weight.dtype is node.output.dtype


def sums_of(network: Network, node: Node) -> Sums | None:
    """A convolution or product whose operands are int8 with scales, the second one stored."""
    op: Any = node.op
    if isinstance(op, Conv):
        fits = len(op.stride) == 2 and op.groups == 1 and not op.channels_last
    else:
        fits = isinstance(op, Matmul) and op.transpose_b and not op.transpose_a and len(node.inputs[1].shape) == 2
    if not fits or node.output.dtype not in (dtypes.float32, *HALVES):
        return None
    x, weight = (_quantised(value) for value in node.inputs[:2])
    if x is None or weight is None or weight.inputs[0].kind != "parameter" or weight.inputs[1].kind != "parameter":
        return None
    (q, scale), (stored, factors) = x.inputs, weight.inputs
    of_output = factors.shape in ((), (stored.shape[0], *[1] * (len(stored.shape) - 1)))
    of_x = all(n == 1 for n in scale.shape)
    of_rows = isinstance(op, Matmul) and scale.shape == (*q.shape[:-1], 1)
    if not of_output or not (of_x or of_rows):
        return None
    own = [made for made in (x, weight) if _only_reader(network, made.output) is node]
    return Sums((*own, node), node, q, scale, stored, factors)


def eights_of(network: Network) -> dict[Node, Eight]:
    """Products of rows that have been float8 with weights of float8, each with a scale an output; nobody else reads
    either of the two as floats."""
    found = {node: eight for node in network.nodes if is_linear(node) and (eight := _eight(node)) is not None}
    while True:
        shared = [n for n in found if not all(set(v.uses) <= found.keys() for v in n.inputs)]
        if not shared:
            return found
        for node in shared:
            del found[node]


def _eight(node: Node) -> Eight | None:
    x, made = (value.node for value in node.inputs)
    if x is None or made is None or not isinstance(x.op, Float8Rows) or not isinstance(made.op, Dequantize):
        return None
    if any(node.inputs[0].network.is_output(value) for value in node.inputs) or len(made.given) != 2 or made.op.group:
        return None
    weight, scales = made.given
    alone = weight.dtype is dtypes.float8_e4m3fn and scales.shape == (weight.shape[0], 1)
    stored = weight.kind == scales.kind == "parameter"
    return Eight(weight, scales) if alone and stored and set(made.output.uses) == {node} else None


def _quantised(value: Value) -> Node | None:
    """What makes a value of int8 and one scale or several, without zero points."""
    made = value.node
    if made is None or not isinstance(made.op, Dequantize) or len(made.inputs) != 2 or made.op.group:
        return None
    return made if made.inputs[0].dtype is dtypes.int8 and made.inputs[1].dtype is dtypes.float32 else None


def _only_reader(network: Network, value: Value) -> Node | None:
    readers = set(value.uses)
    return readers.pop() if len(readers) == 1 and not network.is_output(value) else None


def is_bias(value: Value, out: Value) -> bool:
    return value.kind == "parameter" and value.shape == out.shape[-1:] and value.dtype is out.dtype


def other_of(node: Node, value: Value) -> Value:
    a, b = node.inputs
    return b if a is value else a


def _reads(node: Node, value: Value) -> bool:
    return any(v is value for v in node.inputs)  # `in` would ask for their equality, which is an op


def is_graph_sum(node: Node) -> bool:
    op: Any = node.op
    if not isinstance(op, Einsum) or len(node.inputs) != 2 or node.output.dtype not in HALVES:
        return False
    x, graph = node.inputs
    if graph.kind != "parameter" or graph.dtype is not x.dtype or x.node is None or not isinstance(x.node.op, Reshape):
        return False
    equation = parse(op.equation, [len(x.shape), len(graph.shape)])
    first, second = equation.operands
    if len(first) != 5 or len(second) != 3 or len(set(first)) != 5:
        return False
    n, k, c, t, v = first
    return second[:2] == (k, v) and second[2] not in first and equation.output == (n, c, t, second[2])


def ending_of(node: Node, chain: Chain) -> tuple[str, Value | None]:
    """What a library function computes in place of a chain behind a weighted sum, and what that adds."""
    nodes: Sequence[Node] = chain.nodes
    out, linear = node.output, is_linear(node)
    if linear:
        first = nodes[0]
        if not isinstance(first.op, Add) or not _reads(first, out) or not is_bias(other_of(first, out), out):
            return "", None
        out, nodes = first.output, nodes[1:]
        if not nodes:
            return "bias", None
    elif out not in chain.biases or len(chain.biases) > 1:
        return "", None
    if len(nodes) == 1 and isinstance(nodes[0].op, Relu):
        return "relu", None
    if linear or len(nodes) != 2 or not isinstance(nodes[1].op, Relu) or not isinstance(nodes[0].op, Add):
        return "", None
    other = other_of(nodes[0], out)
    same = _reads(nodes[0], out) and other.shape == out.shape and other.dtype is out.dtype and other is not out
    return ("add_relu", other) if same else ("", None)
