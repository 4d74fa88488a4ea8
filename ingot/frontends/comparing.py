"""What comparisons of an imported network with its source share: the inputs that both are tried on, and the outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ingot import dims, dtypes
from ingot.ir import Network, Value
from ingot.passes.masks import shows
from ingot.seeded import bools

Array = np.ndarray[Any, Any]

SEEDED = 4  # the size of a dim that nothing else fixes


@dataclass(frozen=True)
class Comparison:
    """How far the outputs were apart, relative to the largest, and on which inputs; or why nothing was compared.

    nan: elements of the outputs that are NaN on both sides.
    """

    largest: float = 0.0
    inputs: str = ""
    source: str = ""
    missing: str = ""
    nan: int = 0

    def __str__(self) -> str:
        if self.missing:
            return f"not compared with its source: {self.missing}"
        both = f"; NaN in the same {self.nan} elements of both" if self.nan else ""
        return f"against {self.source}, {self.inputs} inputs: within {self.largest:.1e} of the largest output{both}"


class Inputs(NamedTuple):
    """Arrays by name, and the word for where they come from."""

    word: str
    arrays: Mapping[str, Array]


def seeded_inputs(network: Network, seed: int) -> Inputs:
    """Seeded inputs of a usual size."""
    known = network.dims.items()
    sizes = {name: d.opt or max(d.min, min(SEEDED, SEEDED if d.max is None else d.max)) for name, d in known}
    return Inputs("seeded", seeded(network, sizes, seed))


def cases(network: Network, examples: Mapping[str, Array], seed: int) -> list[dict[str, Array]]:
    """Inputs to compare on: the ones there are, and with dynamic dims a second set of other sizes."""
    known = {name: d for name, d in network.dims.items() if not d.unbacked}
    pairs = [zip(value.shape, examples[value.name].shape, strict=True) for value in network.inputs]
    sizes = dims.values_of(pair for shapes in pairs for pair in shapes)
    found = [dict(examples)]
    if known:
        found.append(seeded(network, {name: _other(d, sizes[name]) for name, d in known.items()}, seed + 1))
    return found


def _other(d: dims.Dim, size: int) -> int:
    """Another size of a dim, a smaller one if possible."""
    smaller = max(size // 2, d.min, 1)
    larger = size + 1
    return smaller if smaller < size else larger if d.max is None or larger <= d.max else max(size - 1, d.min)


def seeded(network: Network, sizes: Mapping[str, int], seed: int) -> dict[str, Array]:
    """Normal numbers; integers that every embedding and comparison of the network takes; masks hiding no row whole."""
    rng = np.random.default_rng(seed)
    return {v.name: _random(rng, network, v, v.spec.evaluate(sizes)) for v in network.inputs}


def _random(rng: np.random.Generator, network: Network, value: Value, shape: tuple[int, ...]) -> Array:
    if value.dtype.is_float:
        return rng.standard_normal(shape).astype(value.dtype.numpy)
    if value.dtype is dtypes.bool_:
        return bools(rng, shape, shows(network, value))
    return rng.integers(0, _rows(network, value), shape).astype(value.dtype.numpy)


def _rows(network: Network, value: Any) -> int:
    """How many rows the smallest table has that an integer input chooses from; 2 when it chooses from none."""
    found, todo, seen = [], [value], {value}
    while todo:
        for node in network.users(todo.pop()):
            if node.op.name == "embedding":
                found.append(node.inputs[1].shape[0])
            elif node.op.is_view or node.op.name in ("cast", "concat"):
                todo += [v for v in node.outputs if v not in seen]
                seen.update(node.outputs)
    known = [n for n in found if isinstance(n, int)]
    return min(known, default=2)
