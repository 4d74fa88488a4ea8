"""Products: by a weight in panels, of computed matrices, and of the experts of a mixture."""

from __future__ import annotations

from typing import Any

from ingot import dims, dtypes
from ingot.backends.cost import size
from ingot.backends.cpu.samples import SamplesIn
from ingot.backends.cpu.types import FINISHED, FLOAT32, FLOATS, STORED, SUMMED
from ingot.backends.kernel import Kernel, Operand, Reads, Refusal, Use, inner, layout, sizes_of
from ingot.ir import Network, Node
from ingot.ops.conversion import SCALES_OF_GROUPS
from ingot.ops.fused import expr_json
from ingot.ops.lowering import INT4_GROUPS, PRODUCT
from ingot.ops.mixture import gated_expression
from ingot.ops.panels import PANEL

FLOAT64 = (dtypes.float64,)
# Of a product's loops, and what is dealt to threads, where a build has measured; else by the kernel's own rules.
ORDERS, SPLITS = ("rows", "weights", "packed"), ("rows", "outputs")
DIRECT, STRASSEN = "direct", "strassen"  # algorithms of matmul_packed; the first one is of convolutions too
# Strassen's step pairs the rows of a sample (native/kernels/strassen.h). A build knows no level: one with dot products
# of bfloat16, and portable code, go direct by it all the same. From so many rows, inputs and outputs on, the step takes
# 0.91 of the direct time; beside the panels a weight takes as many floats as it has values.
PAIRED_ROWS, PAIRED_SIZE = 64, 512
PAIRED = ("float32", "float16", "bfloat16")
MEASURED = f"order?: {' | '.join(ORDERS)}, split?: {' | '.join(SPLITS)}"
NARROWER = ("x", dtypes.int8, dtypes.uint8, dtypes.float8_e4m3fn)  # what rows of x are multiplied with
EXPERTS = ("panels of experts", "scaled panels of experts", "shifted panels of experts")
SIGNED = (dtypes.int8, dtypes.int32, dtypes.int64)


def _matmul(op: Any, node: Node) -> dict[str, Any] | Refusal:
    if op.transpose_a or op.transpose_b:
        return Refusal("it reads strides instead of transposing")
    return {}


def _packed(op: Any, node: Node) -> Use | Refusal:
    lowered: Any = node.op
    sizes = sizes_of(node, 1)
    if not sizes:
        return Refusal("its weight is not in panels")
    if op != PRODUCT:
        return Refusal("its weight is [outputs, inputs], and its sums are float32")
    params = {"n": sizes[0], "k": sizes[1], "parts": lowered.parts}
    if not lowered.group:
        return Use(params, {"scales": 0})
    if node.inputs[1].dtype is not dtypes.uint8 or lowered.group not in INT4_GROUPS:
        return Refusal("its groups are 32, 64 or 128 of 4 bits")
    return Use({**params, "group": lowered.group}, {"scales": 1})


def _algorithms(network: Network) -> dict[Node, dict[str, Any]]:
    """Strassen's step for the products that it pays for and whose pairs of rows are of one sample each."""
    samples = SamplesIn(network)
    paired = [node for node in network.nodes if _pays_by_pairs(node) and samples.of_one(node.inputs[0], -2)]
    return dict.fromkeys(paired, {"algorithm": STRASSEN})


def _pays_by_pairs(node: Node) -> bool:
    """Whether Strassen's step pays for a product: one of many rows that always come together, of one size in all runs.

    A weight that several calls read would have sums for each of them, which no longer stay in the caches. What bodies
    are given may have samples anywhere: their weights are among it.
    """
    lowered: Any = node.op
    sizes = sizes_of(node, 1)
    if not sizes or inner(lowered) != PRODUCT or lowered.parts != 1:
        return False
    n, k = sizes
    x, weight = node.inputs[:2]
    rows = x.shape[-2] if len(x.shape) > 2 else None
    if not isinstance(rows, int) or rows < PAIRED_ROWS or min(n, k) < PAIRED_SIZE:
        return False
    beside = 2 if x.dtype is dtypes.bfloat16 else 1  # values of k in a panel
    # As native/kernels/strassen.h takes them.
    pairs = rows % 2 == 0 and k % (2 * beside) == 0 and dims.ceil_div(n, PANEL) % 2 == 0
    alone = weight.kind != "input" and len(weight.uses) == 1
    return pairs and alone and x.dtype is weight.dtype and x.dtype.name in PAIRED


def _moe(op: Any, node: Node) -> Use | Refusal:
    sizes = sizes_of(node, 2)
    if not sizes:
        return Refusal("its weights are not in panels")
    inner, hidden, experts, *_ = sizes
    params: dict[str, Any] = {}
    counts: dict[str, int] = {}
    at = 2
    for name in ("gate_up", "down"):
        kind = EXPERTS.index(layout(node, at))  # how many operands the weights have beside them
        counts |= {f"{name}_scales": int(kind > 0), f"{name}_zeros": int(kind > 1)}
        if kind > 1:
            params[f"{name}_zeros"] = True
        if node.inputs[at].dtype is dtypes.uint8:
            params[f"{name}_group"] = sizes_of(node, at)[3]
            if params[f"{name}_group"] not in INT4_GROUPS:
                return Refusal("its groups are 32, 64 or 128 of 4 bits")
        at += 1 + kind
    by_outputs = bool(counts["gate_up_scales"]) and "gate_up_group" not in params  # whose scales the expression reads
    expression = gated_expression(op.activation, by_outputs, "gate_up_zeros" in params)
    params |= {"experts": experts, "hidden": hidden, "inner": inner, "top_k": op.top_k, "normalize": op.normalize,
               "expression": expr_json(expression)}  # fmt: skip
    return Use(params, counts)


KERNELS = (
    Kernel(
        "matmul_packed",
        params="n: integer, k: integer, parts: integer, group?: integer, "
        f"algorithm?: {DIRECT} | {STRASSEN}, {MEASURED}, epilogue: expression",
        operands=(
            Operand("x", SUMMED, Reads.ROWS),
            Operand("weight", NARROWER, layouts=("panels",)),
            Operand("scales?", SCALES_OF_GROUPS, layouts=("panels",)),
            Operand("*extras", STORED, Reads.ROWS),
        ),
        results=(Operand("y", FINISHED, Reads.ROWS),),
        runs={"matmul": _packed},
        of_network=_algorithms,
        flops=lambda c: 2 * size(c.x) * c.params["n"] * c.params["parts"],
        products=True,
    ),
    Kernel(
        "matmul",
        params="a_split?: flag, b_split?: flag",
        operands=(Operand("a", FLOATS, Reads.ANY, split=-1), Operand("b", ("a",), Reads.ANY, split=-2)),
        results=(Operand("y", ("a", dtypes.float32), Reads.INNER),),
        runs={"matmul": _matmul},
        flops=lambda c: 2 * size(c.y) * c.x[-1] * (c.x[-2] if c.params.get("a_split") else 1),
        products=True,
    ),
    Kernel(
        "matmul_float64",
        operands=(Operand("a", FLOAT64, Reads.ANY), Operand("b", FLOAT64, Reads.ANY)),
        results=(Operand("y", FLOAT64),),
        runs={"matmul": _matmul},
        flops=lambda c: 2 * size(c.y) * c.x[-1],
    ),
    Kernel(
        "matmul_integer",
        operands=(Operand("a", SIGNED, Reads.ANY), Operand("b", ("a",), Reads.ANY)),
        results=(Operand("y", (*SIGNED, dtypes.int16)),),
        runs={"matmul": _matmul},
        flops=lambda c: 2 * size(c.y) * c.x[-1],
    ),
    Kernel(
        "moe",
        params="experts: integer, hidden: integer, inner: integer, top_k: integer, normalize: flag, "
        "gate_up_group?: integer, down_group?: integer, gate_up_zeros?: flag, down_zeros?: flag, "
        "expression: expression",
        operands=(
            Operand("x", FLOATS, Reads.INNER),
            Operand("router", FLOAT32, Reads.INNER),
            Operand("gate_up", NARROWER, layouts=EXPERTS),
            Operand("gate_up_scales?", SCALES_OF_GROUPS, layouts=EXPERTS[1:]),
            Operand("gate_up_zeros?", FLOAT32, layouts=EXPERTS[2:]),
            Operand("down", NARROWER, layouts=EXPERTS),
            Operand("down_scales?", SCALES_OF_GROUPS, layouts=EXPERTS[1:]),
            Operand("down_zeros?", FLOAT32, layouts=EXPERTS[2:]),
        ),
        results=(Operand("y", ("x",)),),
        runs={"moe": _moe},
        flops=lambda c: 6 * size(c.x) * c.params["inner"] * c.params["top_k"],
        products=True,
    ),
)
