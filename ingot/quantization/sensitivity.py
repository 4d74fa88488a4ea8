"""The error of each layer alone: how far the network's outputs move when one layer is int8 and all others are float.

All layers share one engine. An input of bools says which layers round as int8 does: their inputs, and outputs that wait
for a sum. A layer's weight is exchanged for the rounded one. So nothing is compiled anew for a layer, and sums are
those of floats.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ingot.ir import F, Network, Spec
from ingot.ir.precision import unscoped
from ingot.ir.recipe import evaluate
from ingot.passes.calibrated import Choice, as_rounded, layers_of, weight_as_stored
from ingot.passes.clone import clone
from ingot.passes.weights import recipe_of
from ingot.quantization.running import Feeds, Maker, apart, run

Array = np.ndarray[Any, Any]


def sensitivity(
    network: Network,
    weights: Mapping[str, Array],
    choices: Sequence[Choice],
    batches: Sequence[Feeds],
    wanted: Sequence[Mapping[str, Array]],
    done: Callable[[int, int], None],
) -> list[float | None]:
    """The error of every layer of a prepared network, None for those that stay float.

    Args:
        weights: the values of its parameters by their names.
        choices: of the layers.
        batches, wanted: inputs, and the outputs of the float network on them.
    """
    new = clone(network)
    for value in new.parameters:
        value.recipe = None
    layers = layers_of(new)
    switch = _switched(new, [(layer.node, choice) for layer, choice in zip(layers, choices, strict=True)])
    compiled, tensors, engine = Maker(weights)(new)
    found: list[float | None] = []
    for i, (layer, choice) in enumerate(zip(layers, choices, strict=True)):
        done(i, len(layers))
        if choice.scale is None:
            found.append(None)
            continue
        changed = tensors
        if layer.weight.kind == "parameter":
            name = layer.weight.name
            rounded = weight_as_stored(weights[name], layer.node).astype(weights[name].dtype)
            sources = ChainMap({name: rounded}, weights)  # type: ignore[arg-type]
            stored = {n: v for n, v in compiled.stored.items() if v.kind == "parameter"}
            again = [n for n, v in stored.items() if name in recipe_of(v).sources]
            changed = {**tensors, **{n: evaluate(recipe_of(stored[n]), sources) for n in again}}
        one = engine.with_tensors(engine.header, changed)
        flags = np.arange(len(layers)) == i
        found.append(apart([run(one, {**feeds, switch: flags}, at) for at, feeds in enumerate(batches)], wanted))
    done(len(layers), len(layers))
    return found


def _switched(network: Network, layers: Sequence[tuple[Any, Choice]]) -> str:
    """Makes layers round their inputs where an element of a new input of bools says so; its name."""
    name = "rounded"
    while name in network.values:
        name += "'"
    flags = network.input(name, Spec((len(layers),), "bool"))
    with unscoped():
        for i, (node, choice) in enumerate(layers):
            if choice.scale is None:
                continue
            x = node.inputs[0]
            with network.insert_before(node):
                whole = F.dequantize(*F.quantize_rows(x), dtype=x.dtype) if choice.rows else as_rounded(x, choice.scale)
                on = F.reshape(F.slice(flags, (i,), (1,), (1,)), ())
                seen = F.where(on, whole, x)
            network.rewire(node, (seen, *node.inputs[1:]))
            if choice.output is None:
                continue
            y = node.output
            (total,) = y.uses
            with network.insert_before(total):
                waiting = F.where(on, as_rounded(y, choice.output), y)
            network.rewire(total, tuple(waiting if v is y else v for v in total.inputs))
    return name
