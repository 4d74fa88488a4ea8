"""Which tensors of a program are scales and the like, whose numbers an entry needs to know, and which are quantised."""

from __future__ import annotations

from ingot.frontends.torch_export.graph import Graph, Ref

SPACE = "quantized_decomposed."
NAMES = frozenset(("scale", "scales", "zero_point", "zero_points", "quant_min", "quant_max"))


def dequantised(graph: Graph) -> frozenset[str]:
    """The tensors that are dequantised. Those that the program stores are weights, however small: what else is stored
    as integers may become constants, which belong to the network.
    """
    return frozenset(
        a.value.name for node in graph.nodes if node.op.startswith(f"{SPACE}dequantize")
        for a in node.arguments if a.name == "input" and type(a.value) is Ref
    )  # fmt: skip
