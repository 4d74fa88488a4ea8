"""The error of each layer alone: how far the network's outputs move when one layer is int8 and all others are float.

Layers that follow each other share an engine of the network from the first of them on, fed with what a run in float
gives before it. An input of bools says which layer rounds as int8 does: its input, and an output that waits for a sum.
A layer's weight is exchanged for the rounded one. So nothing is compiled anew for a layer, and sums are those of
floats.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ingot.ir import F, Network, Spec
from ingot.ir.evaluation import evaluate
from ingot.ir.precision import unscoped
from ingot.passes.calibrated import Choice, Layer, as_rounded, layers_of, weight_as_stored
from ingot.passes.clone import clone
from ingot.passes.sections import Section, section
from ingot.passes.weights import recipe_of
from ingot.quantization.running import Feeds, Made, Maker, Taps, apart, run, sizes_of

Array = np.ndarray[Any, Any]

PARTS, LEAST = 5, 4  # engines at most, and layers of each at least: each is compiled, and runs what rounds its layers


class Part(NamedTuple):
    """The network from a layer on, and the layers that it is for: their numbers in the whole, themselves, choices."""

    section: Section
    layers: list[tuple[int, Layer, Choice]]


def sensitivity(
    network: Network,
    weights: Mapping[str, Array],
    choices: Sequence[Choice],
    batches: Sequence[Feeds],
    done: Callable[[int, int], None],
) -> list[float | None]:
    """The error of every layer of a prepared network, None for those that stay float.

    Args:
        weights: the values of its parameters by their names.
        choices: of the layers.
        batches: what the errors are measured on.
    """
    new = clone(network)
    for value in new.parameters:
        value.recipe = None
    make, parts = Maker(weights), list(_parts(new, choices))
    read = {v.name: v for part in parts for v in part.section.reads.values()}
    taps = Taps(new, make, list(read.values()))
    before = [
        {name: array for found in taps.run(feeds, at) for name, array in found.items()}
        for at, feeds in enumerate(batches)
    ]
    found: list[float | None] = [None] * len(choices)
    for part in parts:
        switch = _switched(part)
        made = make(part.section.network)
        fed = [_fed(new, part.section, *both) for both in zip(batches, before, strict=True)]
        flags = np.eye(len(part.layers), dtype=bool)

        def outputs(engine: Any, flag: Array, fed: Any = fed, switch: str = switch) -> list[dict[str, Array]]:
            session = engine.session()
            return [run(session, {**feeds, switch: flag}, at) for at, feeds in enumerate(fed)]

        wanted = outputs(made.engine, np.zeros(len(part.layers), bool))
        for (i, layer, _), flag in zip(part.layers, flags, strict=True):
            done(i, len(choices))
            found[i] = apart(outputs(_rounded(made, layer, weights), flag), wanted)
    done(len(choices), len(choices))
    return found


def _parts(network: Network, choices: Sequence[Choice]) -> Iterator[Part]:
    """The network from several of its layers on. One that binds dims as it runs stays whole."""
    layers = layers_of(network)
    able = [i for i, choice in enumerate(choices) if choice.scale is not None]
    whole = any(node.op.bound_dims() for node in network.nodes)
    each = len(able) if whole else max(-(-len(able) // PARTS), LEAST)
    order = {node: i for i, node in enumerate(network.nodes)}
    for begin in range(0, len(able), each):
        some = able[begin : begin + each]
        made = section(network, network.name, network.nodes[order[layers[some[0]].node] if begin else 0 :])
        last = layers_of(made.network)[-(len(layers) - some[0]) :]  # the same layers, from the first of these on
        yield Part(made, [(i, last[i - some[0]], choices[i]) for i in some])


def _fed(network: Network, part: Section, feeds: Feeds, before: Mapping[str, Array]) -> dict[str, Array]:
    """What a section reads, of a run of the whole."""
    sizes = sizes_of(network, feeds)
    given = {label: np.ascontiguousarray(before[value.name]) for label, value in part.reads.items()}
    return given | {label: np.zeros(sizes[dim.name], np.uint8) for label, dim in part.sizes.items()}


def _rounded(made: Made, layer: Layer, weights: Mapping[str, Array]) -> Any:
    """The engine with the layer's weight as int8 leaves it."""
    if layer.weight.kind != "parameter":
        return made.engine
    name = layer.weight.name
    rounded = weight_as_stored(weights[name], layer.node).astype(weights[name].dtype)
    sources = ChainMap({name: rounded}, weights)  # type: ignore[arg-type]
    stored = {n: v for n, v in made.compiled.stored.items() if v.kind == "parameter"}
    again = [n for n, v in stored.items() if name in recipe_of(v).sources]
    changed = {**made.tensors, **{n: evaluate(recipe_of(stored[n]), sources) for n in again}}
    return made.engine.with_tensors(made.engine.header, changed)


def _switched(part: Part) -> str:
    """Makes layers round their inputs where an element of a new input of bools says so; its name."""
    network = part.section.network
    name = "rounded"
    while name in network.values:
        name += "'"
    flags = network.input(name, Spec((len(part.layers),), "bool"))
    with unscoped():
        for i, (_, layer, choice) in enumerate(part.layers):
            assert choice.scale is not None
            node = layer.node
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
