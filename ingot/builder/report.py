"""How far an engine's numbers are from float32, layer by layer.

The network is cut into its layers. Each runs twice, in the engine's precision and in float32 on our own kernels, and
each chain is fed by its own previous layer. So only one layer's float32 weights exist at a time. Without given inputs
seeded ones are used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot import dtypes
from ingot.builder.compile import compile_network, header_of, make_tensors
from ingot.builder.layers import BLOCK, Row, Sources, Stored, row, run
from ingot.builder.text_loss import TextLoss
from ingot.engine.session import Engine
from ingot.frontends.comparing import Comparison
from ingot.ir import Network, Spec
from ingot.ir.weight_format import AS_IS, WeightFormat
from ingot.models.decoder import example_step
from ingot.ops.conversion import Quantize
from ingot.ops.external import external_ops
from ingot.passes.masks import shows
from ingot.passes.quantize import quantized
from ingot.passes.sections import cut
from ingot.passes.widen import NARROW, widen, widened
from ingot.seeded import bools

Array = np.ndarray[Any, Any]

SEEDED_TOKENS = 16  # rows of a seeded language model step, and the size of a dim that nothing else fixes …
SEEDED_ELEMENTS = 1 << 19  # … unless the inputs would have more elements than this: images come in smaller batches
NOTHING = "nothing is narrower than float32: no loss of precision to report"
AS_ROUNDED = "the source rounds to integers itself: it is computed as it says, and nothing is lost beyond that"
OF_RANDOM_TOKENS = (
    ", whose tokens are random: nothing is likely to follow those, so that small differences decide. What a format "
    "costs on text, `ingot score SOURCE --text FILE` says, with it and without"
)


@dataclass(frozen=True)
class Report:
    """Differences from float32 after each layer and of the outputs. `same_top`: the rows of one largest logit.

    comparison: for imported networks, how far the float32 outputs are from those of what was imported. text: of a
    language model, what its formats cost on a text.
    """

    inputs: str
    layers: tuple[Row, ...]
    outputs: tuple[Row, ...]
    same_top: float | None = None
    note: str = ""
    comparison: Comparison | None = None
    text: TextLoss | None = None

    @property
    def source(self) -> str:
        """The comparison in words."""
        return "" if self.comparison is None else str(self.comparison)

    def json(self) -> dict[str, Any]:
        rows = {"layers": [r.__dict__ for r in self.layers], "outputs": [r.__dict__ for r in self.outputs]}
        return {"reference": "float32", "inputs": self.inputs, **rows, "same_top": self.same_top, "note": self.note,
                "source": self.source, "comparison": self.comparison and self.comparison.json(),
                "text": self.text and self.text.json()}  # fmt: skip

    def __str__(self) -> str:
        on_text = "" if self.text is None else str(self.text)
        if self.note:
            return "\n".join(filter(None, (self.note, self.source, on_text)))
        width = max(len(r.name) for r in (*self.layers, *self.outputs))
        lines = [f"{'against float32, ' + self.inputs + ' inputs':{max(width, 8)}}  relative   largest"]
        lines += [
            f"{r.name:{len(lines[0]) - 20}}  {r.relative:8.1e}  {r.largest:8.1e}{f'  {r.odd}' if r.odd else ''}"
            for r in (*self.layers, *self.outputs)
        ]
        if self.same_top is not None:
            where = OF_RANDOM_TOKENS if self.inputs == "seeded" and self.same_top < 1 else ""
            lines.append(f"the same most likely token in {self.same_top:.0%} of the rows{where}")
        return "\n".join(filter(None, (*lines, self.source, on_text)))


def report(
    network: Network, engine: Engine, narrow: Mapping[str, Array], wide: Mapping[str, Array],
    format: WeightFormat = AS_IS, *, feeds: Mapping[str, Array] | None = None, seed: int = 0,
    done: Callable[[int, int], None] | None = None,
) -> Report:  # fmt: skip
    """Compares an engine with float32. `narrow` and `wide` are the source weights for either precision, `format` is
    what the engine stores them in."""
    reference = widen(network)
    tensors = (*network.inputs, *network.parameters, *(v for node in network.nodes for v in node.outputs))
    narrower = any(v.dtype in NARROW for v in tensors)
    narrower |= any(v.spec.dtype is not dtypes.float32 for v in network.states)
    if format == AS_IS and not narrower:
        rounded = any(isinstance(node.op, Quantize) for node in network.nodes)
        return Report("no", (), (), note=AS_ROUNDED if rounded else NOTHING)
    arrays = dict(feeds) if feeds is not None else seeded(network, seed)
    portable, network = network, quantized(network, format)
    ours = {v: arrays[v.name] for v in network.inputs}
    theirs = {v: _as(arrays[v.name], v.dtype) for v in reference.inputs}
    rows: list[Row] = []
    stored, sources = Stored(engine, portable, narrow), Sources(wide)
    sections = list(zip(cut(network), cut(reference), strict=True))
    for i, (low, high) in enumerate(sections):
        run(low, ours, stored)
        run(high, theirs, sources)
        if i < len(sections) - 1:
            pairs = [(ours[a], theirs[b]) for a, b in zip(low.writes.values(), high.writes.values(), strict=True)]
            rows += [row(low.name, *pair) for pair in pairs[-1:]]
        if done:
            done(i + 1, len(sections))
    outputs = tuple(row(name, ours[v], theirs[reference.outputs[name]]) for name, v in network.outputs.items())
    logits = network.outputs.get("logits")
    same = None if logits is None else _same_top(ours[logits], theirs[reference.outputs["logits"]])
    return Report("seeded" if feeds is None else "given", tuple(rows), outputs, same)


def whole(network: Network, engine: Engine, other: Engine, feeds: Mapping[str, Array]) -> Report:
    """Compares the outputs of a calibrated engine with those of `other`, the network in float32, on inputs of the
    calibration. Its layers are in its config, each with the error that it makes alone."""
    ours = engine.run(feeds)
    theirs = other.session().run({v.name: _as(feeds[v.name], widened(v.dtype)) for v in network.inputs})
    return Report("calibration", (), tuple(row(name, ours[name], theirs[name]) for name in ours))


def in_float32(network: Network, weights: Mapping[str, Array]) -> Engine:
    """The engine of a network in which every narrow float is float32."""
    network = widen(network)
    compiled = compile_network(network)
    header = header_of("network", {}, network, compiled)
    return Engine.from_memory(header, make_tensors(compiled.stored, weights), external_ops(network))


def _as(array: Array, dtype: dtypes.DType) -> Array:
    return array.astype(dtype.numpy) if array.dtype != dtype.numpy else array


def _same_top(low: Array, high: Array) -> float:
    return float(np.mean(low.argmax(-1) == high.argmax(-1))) if low.size else 1.0


# --------------------------------------------------------------------------------------------------------------- inputs


def seeded(network: Network, seed: int) -> dict[str, Array]:
    """Inputs from a seed: one request's tokens for a language model, else normal numbers, zeros for integers, and masks
    that hide no row whole for bools.
    """
    rng = np.random.default_rng(seed)
    if network.states:
        return example_step(network, rng, SEEDED_TOKENS, BLOCK)
    for usual in (SEEDED_TOKENS, 8, 4, 2):
        sizes = {d.name: d.opt or min(max(usual, d.min), d.max or usual) for d in network.dims.values()}
        if sum(math.prod(v.spec.evaluate(sizes)) for v in network.inputs) <= SEEDED_ELEMENTS:
            break
    return {v.name: _random(rng, v.spec, sizes, shows(network, v)) for v in network.inputs}


def _random(rng: np.random.Generator, spec: Spec, sizes: Mapping[str, int], shown: bool | None) -> Array:
    shape = spec.evaluate(sizes)
    if spec.dtype is dtypes.bool_:
        return bools(rng, shape, shown)
    if spec.dtype.is_float:
        return rng.standard_normal(shape).astype(spec.dtype.numpy)
    return np.zeros(shape, spec.dtype.numpy)
