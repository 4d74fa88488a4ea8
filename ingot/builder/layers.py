"""Running a network layer by layer on what an engine has stored: the mechanism that the accuracy report and
`ingot diff` share.

A network is cut into sections (passes/sections.py). Each is compiled by itself and takes the engine's tensors where
they have the recipe that it needs. What it lacks is made from values that they show (backends/stored.py), and from the
sources of the build where there are any.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot.backends.stored import Derivation, Operands, Reader
from ingot.builder.compile import Compiled, compile_network, header_of, make_tensors
from ingot.builder.stored import shown_by
from ingot.dims import values_of
from ingot.engine.session import Engine
from ingot.errors import RecipeError, UserError
from ingot.ir import Network, Node, StateSpec, Value
from ingot.ir.difference import difference
from ingot.ir.evaluation import Together, alike
from ingot.ir.text import from_json
from ingot.ops.external import external_ops
from ingot.passes.calibrated import computed
from ingot.passes.sections import BETWEEN, Section, runs_of, section
from ingot.passes.weights import recipe_of
from ingot.release import reading

Array = np.ndarray[Any, Any]

JOIN = " to "  # between the names of the first and the last of joined layers
BLOCK = 16  # tokens in a block of the caches that sections use
AT_ONCE = 1 << 15  # elements that are compared at a time


@dataclass(frozen=True)
class Row:
    """How far two arrays are apart: the largest difference, and the differences' root mean square over the values'.

    odd: where NaN or infinities stand in one of both only, which makes either number infinite.
    """

    name: str
    relative: float
    largest: float
    odd: str = ""


def row(name: str, a: Array, b: Array) -> Row:
    """`a` against `b`. NaN or one infinity in the same place of both is no difference; in one only, an infinite one."""
    apart, whole, largest = _sums(a, b)
    odd = "" if math.isfinite(apart) else difference(a, b).odd
    scale, relative = (math.sqrt(total / max(b.size, 1)) for total in (whole, apart))
    return Row(name, relative / scale if scale else relative, largest, odd)


def _sums(a: Array, b: Array) -> tuple[float, float, float]:
    """The sums of the squares of differences and of `b`, and the largest difference, in pieces that stay in the caches.
    NaN and infinities count nothing where they are in the same place of both, and are an infinite difference in one.
    """
    apart = whole = largest = 0.0
    ours, theirs = a.reshape(-1), b.reshape(-1)
    with np.errstate(invalid="ignore", over="ignore"):
        for begin in range(0, ours.size, AT_ONCE):
            x, y = (flat[begin : begin + AT_ONCE].astype(np.float64) for flat in (ours, theirs))
            away = x - y
            square = float(away @ away)
            if not math.isfinite(square):
                same = (x == y) | (np.isnan(x) & np.isnan(y))
                away = np.where(np.isfinite(away), away, np.where(same, 0.0, np.inf))
                square, y = float(away @ away), np.where(np.isfinite(y), y, 0.0)
            apart, whole = apart + square, whole + float(y @ y)
            largest = max(largest, float(away.max()), -float(away.min()))
    return apart, whole, largest


class Sources:
    """The parameters of a build, by name: what a section makes its tensors from when there is no engine to ask."""

    def __init__(self, sources: Mapping[str, Array]) -> None:
        self.sources = sources

    def lacking(self, value: Value) -> list[str]:
        """The parameters that a tensor needs and that nobody has."""
        return [name for name in recipe_of(value).sources if name not in self.sources]

    def make(self, tensors: Mapping[str, Value]) -> dict[str, Array]:
        """The tensors of a program, parameters and constants."""
        return make_tensors(tensors, self.sources)


class Stored(Sources):
    """What an engine has stored and shows, and the parameters beside it where they are given."""

    def __init__(self, engine: Engine, network: Network, sources: Mapping[str, Array] | None = None) -> None:
        super().__init__(sources or {})
        self._shown = shown_by(engine, network)

    def lacking(self, value: Value) -> list[str]:
        return list(self._derivation(value).lacking)

    def make(self, tensors: Mapping[str, Value]) -> dict[str, Array]:
        derivations = {name: self._derivation(value) for name, value in tensors.items() if value.kind == "parameter"}

        def made(names: Sequence[str]) -> dict[str, Array]:
            several = [derivations[name] for name in names]
            for name, (dtype, shape) in zip(names, self._shown.check(several, None, 0), strict=True):
                if (dtype, shape) != (tensors[name].dtype, tensors[name].shape):
                    raise RecipeError(f"tensor {name} should be {tensors[name].spec} and its recipe gives {dtype.name}"
                                      f"{list(shape)}")  # fmt: skip
            together = Together([one.recipe for one in several], Operands(Reader(self._shown), several, self.sources))
            return {name: together.evaluate(derivations[name].recipe) for name in names}

        found = {n: np.asarray(v.array, order="C") for n, v in tensors.items() if n not in derivations}
        with ThreadPoolExecutor(min(4, len(os.sched_getaffinity(0)))) as pool:
            for part in pool.map(made, alike((name, one.recipe) for name, one in derivations.items())):
                found |= part
        return {name: found[name] for name in tensors}

    def _derivation(self, value: Value) -> Derivation:
        return self._shown.derivation(recipe_of(value), self.sources)


def network_of(engine: Engine) -> Network:
    """The portable network of an engine. Raises EngineVersionError for one that a newer ingot made."""
    with reading(engine.header):
        return from_json(engine.header["networks"]["main"], engine.external)


def computed_network(engine: Engine) -> Network:
    """The same with its weights as the engine stores them: `dequantize` stands where they are integers, and where
    layers compute in int8 by a calibration, `quantize` too."""
    return computed(network_of(engine), engine.config)


def sections(network: Network, layer: Callable[[str], str], weights: Stored) -> list[Section]:
    """The sections of `runs_of`; those that a weight is folded across, so that neither can be made alone, are one."""
    made: list[tuple[str, list[Node]]] = []
    found: list[Section] = []
    for name, nodes in runs_of(network, layer):
        if found and not _whole(found[-1], weights):
            before, earlier = made.pop()
            found.pop()
            name, nodes = _joined(before, name), earlier + nodes
        made.append((name, nodes))
        found.append(section(network, name, nodes))
    while len(found) > 1 and not _whole(found[-1], weights):
        (before, earlier), (name, nodes) = made[-2:]
        made[-2:] = [(_joined(before, name), earlier + nodes)]
        found[-2:] = [section(network, *made[-1])]
    return found


def _whole(section: Section, weights: Stored) -> bool:
    """Whether a section can be made from what is stored."""
    return not any(map(weights.lacking, section.network.parameters)) or not _lacking(section.network, weights)[1]


def _joined(one: str, other: str) -> str:
    if BETWEEN in (one, other):
        return other if one == BETWEEN else one
    return f"{one.partition(JOIN)[0]}{JOIN}{other.rpartition(JOIN)[2]}"


# ---------------------------------------------------------------------------------------------------------------- runs


def run(section: Section, arrays: dict[Value, Array], weights: Sources) -> None:
    """Runs a section on what came before it, and adds what it writes to `arrays`."""
    results = _results(section, _compiled(section.network, weights), arrays, weights)
    for label, value in section.writes.items():
        arrays[value] = results[label]


def run_values(
    section: Section, arrays: dict[Value, Array], weights: Sources
) -> tuple[dict[int, list[Array]], list[Node]]:
    """The same, and the results of its nodes by their number. Nodes whose result cannot be had are listed: an operand
    is stored only as folded into what comes after them.
    """
    network = section.network
    kept = dict(network.outputs)
    states = {node for node in network.nodes if any(v.is_state for v in node.outputs)}
    hidden: set[Node] = set()

    def compiled_without(nodes: set[Node]) -> tuple[Compiled, list[str]]:
        taps = [(i, node) for i, node in enumerate(network.nodes) if node not in states | nodes]
        network.outputs = kept | {f"tap.{i}.{j}": v for i, node in taps for j, v in enumerate(node.outputs)}
        return _lacking(network, weights)

    compiled, lacking = compiled_without(hidden)
    while lacking:
        for more in _folded(network, lacking):
            compiled, left = compiled_without(hidden | more)
            if len(left) < len(lacking):
                hidden |= more
                lacking = left
                break
        else:
            raise _unmakeable(section.name, lacking)
    results = _results(section, compiled, arrays, weights)
    network.outputs = kept
    for label, value in section.writes.items():
        arrays[value] = results[label]
    found = {
        i: [results[f"tap.{i}.{j}"] for j in range(len(node.outputs))]
        for i, node in enumerate(network.nodes)
        if node not in states | hidden
    }
    return found, [node for node in network.nodes if node in hidden]


def _folded(network: Network, lacking: list[str]) -> Iterator[set[Node]]:
    """Nodes whose results may be what keeps a fold of lacking parameters from being whole, the likeliest first. They
    are those that read these, but not those that read their results; then those before them; then some behind them too.
    """
    readers = {user for name in lacking if name in network.values for user in network.values[name].uses}
    first = {node for node in readers if not any(v.node in readers for v in node.inputs)}
    yield first
    yield {v.node for node in first for v in node.inputs if v.node is not None}
    front, behind = first, set(first)
    while front := {user for node in front for v in node.outputs for user in v.uses} - behind:
        behind |= front
        yield set(behind)


def _compiled(network: Network, weights: Sources) -> Compiled:
    compiled, lacking = _lacking(network, weights)
    if lacking:
        raise _unmakeable(network.name, lacking)
    return compiled


def _lacking(network: Network, weights: Sources) -> tuple[Compiled, list[str]]:
    """The compiled network, and the parameters that it needs and that nobody has."""
    compiled = compile_network(network)
    needed = [v for v in compiled.stored.values() if v.kind == "parameter"]
    return compiled, list(dict.fromkeys(name for v in needed for name in weights.lacking(v)))


def _unmakeable(where: str, names: list[str]) -> UserError:
    shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
    return UserError(
        f"{where}: the values of {shown} are stored only in a form that cannot be undone (folded into another weight): "
        "build the engine again from its source"
    )


def _results(section: Section, compiled: Compiled, arrays: dict[Value, Array], weights: Sources) -> dict[str, Array]:
    header = header_of("network", {}, section.network, compiled)
    engine = Engine.from_memory(header, weights.make(compiled.stored), external_ops(section.network))
    feeds = {label: arrays[value] for label, value in section.reads.items()}
    blocks = cache_blocks(section.network, feeds) if section.network.states else 0
    session = engine.session(kv_blocks=blocks, kv_block_size=BLOCK)
    if section.sizes:
        inputs = [(v.spec.shape, array.shape) for v, array in arrays.items() if v.kind == "input"]
        values = values_of(pair for shapes in inputs for pair in zip(*shapes, strict=True))
        feeds |= {label: np.zeros(values[dim.name], np.uint8) for label, dim in section.sizes.items()}
    return session.run(feeds)


def cache_blocks(network: Network, feeds: Mapping[str, Array]) -> int:
    """How many cache blocks these inputs name: those that attention reads, and those of the slots that are written."""
    named = [0]
    for node in network.nodes:
        for operand, value in zip(node.op.operands, node.inputs, strict=False):
            if operand.name in ("block_table", "slot") and value.name in feeds:
                named.append(int(feeds[value.name].max(initial=0)) // (BLOCK if operand.name == "slot" else 1))
    return 1 + max(named)


def empty_cache(network: Network, spec: StateSpec, feeds: Mapping[str, Array]) -> Array:
    """A state for the interpreter, large enough for these inputs."""
    return np.zeros((cache_blocks(network, feeds), BLOCK, 2, spec.heads, spec.width), spec.dtype.numpy)
