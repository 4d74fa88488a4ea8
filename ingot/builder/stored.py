"""An engine's weights made again when sources change: what refit and the merging of adapters share.

What the stored tensors still show is said in backends/stored.py. A weight is made again from new sources and from shown
values; where it needs a source that nobody shows, that source has to be given.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from ingot import dtypes
from ingot.backends.stored import Derivation, Operands, Reader, Shown, as_known, unfit
from ingot.builder.compile import Borrowed, Owned
from ingot.engine.self_test import KEY as SELF_TEST
from ingot.engine.session import Engine
from ingot.errors import IngotError, RecipeError
from ingot.ir import Network
from ingot.ir.evaluation import alike
from ingot.ir.recipe import Known, Recipe

Array = np.ndarray[Any, Any]

MAX_LISTED = 20


class Remake(NamedTuple):
    """A stored tensor that is made again: by its recipe or one that goes on from its values; and how, as things are."""

    tensor: str
    recipe: Recipe
    derivation: Derivation


def shown_by(engine: Engine, network: Network) -> Shown:
    """What an engine's tensors show. Raises RecipeError, EngineVersionError."""
    return Shown.of(engine.header, engine.tensor, network)


def remake(shown: Shown, tensor: str, recipe: Recipe, given: Collection[str]) -> Remake:
    """How `tensor` is made by `recipe` when these sources are new."""
    return Remake(tensor, recipe, shown.derivation_anew(recipe, given))


def remade(
    engine: Engine, shown: Shown, remakes: Collection[Remake], sources: Mapping[str, Array],
    config: Mapping[str, Any] | None = None,
) -> Engine:  # fmt: skip
    """The engine with some tensors made again. What is not is shared with this one, not copied.

    Args:
        sources: the given arrays, by the sources' names.
        config: the new engine's; default this one's.

    Raises RecipeError with all that cannot be made.
    """
    adapters = {name: sources[name] for name in sources if name not in shown.parameters}
    known = {name: (dtypes.get(array.dtype), array.shape) for name, array in adapters.items()}
    shown.allow([known[name] if name in known else shown.parameters[name] for name in sources])

    by_name = {one.tensor: one for one in remakes}
    found: dict[str, Array] = {}

    def made(names: Sequence[str]) -> str:
        try:
            found.update(_made(shown, [by_name[name] for name in names], sources, known))
        except IngotError as e:
            return str(e)
        return ""

    groups = alike((one.tensor, one.derivation.recipe) for one in remakes)
    with ThreadPoolExecutor(min(4, len(os.sched_getaffinity(0)))) as pool:
        faults = dict.fromkeys(filter(None, pool.map(made, groups)))
    if faults:
        rest = [f"… and {len(faults) - MAX_LISTED:,} more"] if len(faults) > MAX_LISTED else []
        raise RecipeError("\n  ".join(["these weights cannot be made:", *[*faults][:MAX_LISTED], *rest]))
    header = engine.header
    weights = {name: {**entry, "hash": []} for name, entry in header["weights"].items()}
    weights |= {one.tensor: {"recipe": one.recipe.json(), "hash": []} for one in remakes}
    tensors: dict[str, Any] = {n: found[n] if n in found else engine.tensor(n) for n in weights}
    config = {k: v for k, v in (header["config"] if config is None else config).items() if k != SELF_TEST}
    return engine.with_tensors({**header, "weights": weights, "config": config}, tensors)


def _made(
    shown: Shown, remakes: Sequence[Remake], sources: Mapping[str, Array], known: Mapping[str, Known]
) -> dict[str, Array]:
    """Tensors that begin alike. What they have in common is made once."""
    derivations = [one.derivation for one in remakes]
    there = sum(shown.tensor(one.tensor).nbytes for one in remakes)
    for one, (dtype, shape) in zip(remakes, shown.check(derivations, known, there), strict=True):
        stored = as_known(shown.tensor(one.tensor), (dtype, shape))
        if (dtype.numpy, shape) != (stored.dtype, stored.shape):
            raise unfit(one.tensor, stored, (dtype, shape))
    operands = Operands(Reader(shown), derivations, sources)
    several = Owned([one.recipe for one in derivations], Borrowed(operands))
    found: dict[str, Array] = {}
    for one in remakes:
        array = found[one.tensor] = several.evaluate(one.derivation.recipe)
        result = dtypes.get(array.dtype), array.shape
        stored = as_known(shown.tensor(one.tensor), result)
        if (array.dtype, array.shape) != (stored.dtype, stored.shape):
            raise unfit(one.tensor, stored, result)
    return found


class Recovered(Mapping[str, Array]):
    """The parameters whose values an engine's tensors still show, through casts and layouts only.

    Each is made when it is asked for. A cast is left as it is: it is made again with the recipe, and changes nothing.
    What an adapter was merged into is given as it is with it.
    """

    def __init__(self, shown: Shown) -> None:
        self._shown = shown

    def __getitem__(self, name: str) -> Array:
        number = self._shown.form(name)
        if number is None:
            raise KeyError(name)
        return np.ascontiguousarray(Reader(self._shown).value(number))

    def __iter__(self) -> Iterator[str]:
        return iter(self._shown.names())

    def __len__(self) -> int:
        return len(self._shown.names())
