"""Merging a LoRA adapter: while an engine is built, and into one that is there.

Both go through the recipes. A build gives the adapted parameters a recipe with the step `lora_merge`, and whatever is
made of them follows. An engine holds weights that layout steps have rearranged: they are followed backwards to the
parameters, the adapter is added, and the same steps are applied again. Its programs stay as they are. For steps that
have no inverse (what was folded into a weight and rounded) only a build from the source will do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ingot.builder.layers import network_of
from ingot.builder.stored import Recovered, Remake, remade, remake, shown_by
from ingot.dtypes import DType
from ingot.engine.session import Engine
from ingot.errors import RecipeError, UserError
from ingot.frontends.lora.adapter import Adapter, check_scale, read_adapter
from ingot.ir import Network
from ingot.ir.numbering import Numbering
from ingot.ir.recipe import ADAPTER, Recipe, casts_at, source
from ingot.passes.clone import clone
from ingot.passes.weights import recipe_of

Array = np.ndarray[Any, Any]

MAX_LISTED = 20
BASE = ""  # in the recipe of an adapter: what it is merged into


def adapted(network: Network, adapter: Adapter) -> Network:
    """The same network, its parameters made by recipes that merge the adapter."""
    new = clone(network)
    for value in new.parameters:
        if value.name in adapter.updates:
            value.recipe = adapter.recipe(value.name, recipe_of(value))
    return new


class WithAdapter(Mapping[str, Array]):
    """The parameters of a base, and the adapter's tensors under their own names."""

    def __init__(self, base: Mapping[str, Array], adapter: Adapter) -> None:
        self._base, self._adapter = base, adapter

    def __getitem__(self, name: str) -> Array:
        return self._adapter[name] if name in self._adapter else self._base[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._base
        yield from self._adapter

    def __len__(self) -> int:
        return len(self._base) + len(self._adapter)


class Merged(Mapping[str, Array]):
    """The parameters of a base with the adapter merged in; `dtype`: what those are in, default their weight's."""

    def __init__(self, base: Mapping[str, Array], adapter: Adapter, dtype: DType | None = None) -> None:
        self._base, self._adapter, self._dtype = base, adapter, dtype

    def __getitem__(self, name: str) -> Array:
        update = self._adapter.updates.get(name)
        if update is None:
            return self._base[name]
        return self._adapter.merged(name, self._base[name], self._dtype or update.layer.dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self._base)

    def __len__(self) -> int:
        return len(self._base)


def described(config: Mapping[str, Any], adapter: Adapter) -> dict[str, Any]:
    """An engine's config with the adapter in it."""
    return {**config, "lora": [*config.get("lora", []), {"name": adapter.name, "scale": adapter.scale}]}


def merge(engine: Engine, directory: str | os.PathLike[str], scale: float | None = None) -> Engine:
    """The engine with an adapter in its weights, in memory. The given one stays as it is.

    Raises:
        CheckpointError: the adapter is bad, or none for this model.
        RecipeError: weights that it changes cannot be recovered from what is stored.
        UserError: an adapter of this name is in the engine already, or the scale is no number.
    """
    factor = check_scale(scale)
    network = network_of(engine)
    unit_rows = engine.config.get("unit_rows")
    adapter = read_adapter(directory, network, factor, unit_rows if isinstance(unit_rows, list) else ())
    shown = shown_by(engine, network)
    if any(s.startswith(f"{ADAPTER}{adapter.name}.") for recipe in shown.recipes.values() for s in recipe.sources):
        raise UserError(f"an adapter called {adapter.name} is in this engine already: rename the folder of the other")
    concerned = {n: r for n, r in shown.recipes.items() if not adapter.updates.keys().isdisjoint(r.sources)}
    remakes = [remake(shown, n, _with(r, adapter, shown.numbers), set(adapter)) for n, r in concerned.items()]
    if faults := [fault for one in remakes if (fault := _hidden(one, concerned[one.tensor]))]:
        rest = [f"… and {len(faults) - MAX_LISTED} more"] if len(faults) > MAX_LISTED else []
        raise RecipeError(
            "\n  ".join(["the adapter cannot be merged into this engine:", *faults[:MAX_LISTED], *rest])
            + "\nBuild from the model's directory with this adapter instead"
        )
    adapter.check_base(Recovered(shown))
    return remade(engine, shown, remakes, adapter, described(engine.header["config"], adapter))


def _hidden(one: Remake, recipe: Recipe) -> str:
    """Why a stored weight cannot be had with the adapter, or nothing."""
    if not one.derivation.lacking:
        return ""
    step = next(filter(None, one.derivation.lacking.values()), "cast")
    return f"{one.tensor}: made of {', '.join(recipe.sources[:4])} by a step {step}, which cannot be undone"


def _with(recipe: Recipe, adapter: Adapter, numbers: Numbering) -> Recipe:
    """The recipe with the adapter merged into its parameters."""
    made: list[int] = []
    for i, (number, at) in enumerate(zip(numbers.of(recipe), casts_at(recipe), strict=True)):
        if at is None and i >= len(recipe.sources):
            number = numbers.step(recipe.steps[i - len(recipe.sources)], made)
        elif at is not None and at[0] in adapter.updates:
            number = numbers.of(adapter.recipe(at[0], source(BASE)), {0: number})[-1]
        made.append(number)
    return numbers.recipe(made[-1])
