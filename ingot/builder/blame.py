"""What is at fault where a network's ops are right one by one and its engine is not: a compiler pass, or a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ingot.builder.compile import compile_network
from ingot.builder.layers import Sources, run_values
from ingot.errors import NetworkError
from ingot.ir import Network, Node, Value, interpret
from ingot.ir.difference import difference
from ingot.passes.pipeline import Check
from ingot.passes.sections import cut

Array = np.ndarray[Any, Any]


def blame(network: Network, feeds: Mapping[str, Array], weights: Mapping[str, Array], tolerance: float) -> str:
    """A sentence that names the first pass that moves an output, or else the first value that a kernel gets wrong.

    network: without states. weights: of the network's own types. Slow: each pass's network runs on the ops' references.
    """
    try:
        compile_network(network, check=Check(feeds, weights, tolerance=tolerance))
    except NetworkError as e:
        return f"A compiler pass is at fault: {e}"
    results: dict[Node, tuple[Array, ...]] = {}
    interpret(network, feeds, weights, taps=lambda node, made: results.update({node: made}))
    arrays: dict[Value, Array] = {v: feeds[v.name] for v in network.inputs}
    begin = 0
    for section in cut(network):
        nodes = network.nodes[begin : begin + len(section.network.nodes)]
        begin += len(nodes)
        found, _ = run_values(section, arrays, Sources(weights))
        for i, made in sorted(found.items()):
            for value, ours, theirs in zip(nodes[i].outputs, made, results[nodes[i]], strict=True):
                apart = difference(ours, theirs)
                if not apart.relative <= tolerance:
                    where = f" in {nodes[i].where}" if nodes[i].where else ""
                    return f"A kernel is at fault: %{value.name} = {nodes[i].op.name}{where} {apart}, by its reference"
    return (
        "No compiler pass changes an output, and every value by itself is right: what is at fault shows in the "
        "whole program only, in what is fused there or shares memory"
    )
