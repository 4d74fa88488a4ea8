"""Merging a LoRA adapter: while an engine is built, and into one that is there.

Both go through the recipes. A build gives the adapted parameters a recipe with the step `lora_merge`, and whatever is
made of them follows. An engine holds weights that layout steps have rearranged: they are followed backwards to the
parameters, the adapter is added, and the same steps are applied again. Its programs stay as they are. For steps that
have no inverse (what was folded into a weight and rounded) only a build from the source will do.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ingot.builder.layers import Recovered, network_of, recipes_of
from ingot.dtypes import DType
from ingot.engine.session import Engine
from ingot.errors import RecipeError, UserError
from ingot.frontends.lora.adapter import Adapter, check_scale, read_adapter
from ingot.ir import Network
from ingot.ir.recipe import ADAPTER, Known, Recipe, combine, evaluate, parameter_at, source
from ingot.passes.clone import clone
from ingot.passes.weights import recipe_of

Array = np.ndarray[Any, Any]

MAX_LISTED = 20


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
        RecipeError: weights that it changes cannot be had back from what is stored.
        UserError: an adapter of this name is in the engine already, or the scale is no number.
    """
    factor = check_scale(scale)
    network = network_of(engine)
    unit_rows = engine.config.get("unit_rows")
    adapter = read_adapter(directory, network, factor, unit_rows if isinstance(unit_rows, list) else ())
    known: dict[str, Known] = {v.name: (v.dtype, v.spec.evaluate({})) for v in network.parameters}
    recipes = recipes_of(engine)
    if any(s.startswith(f"{ADAPTER}{adapter.name}.") for recipe in recipes.values() for s in recipe.sources):
        raise UserError(f"an adapter called {adapter.name} is in this engine already: rename the folder of the other")
    concerned = {n: r for n, r in recipes.items() if set(r.sources) & adapter.updates.keys()}
    if faults := [f"{n}: {why}" for n, r in concerned.items() if (why := _not_undone(r, adapter))]:
        rest = [f"… and {len(faults) - MAX_LISTED} more"] if len(faults) > MAX_LISTED else []
        raise RecipeError(
            "\n  ".join(["the adapter cannot be merged into this engine:", *faults[:MAX_LISTED], *rest])
            + "\nBuild from the model's directory with this adapter instead"
        )
    adapter.check_base(Recovered(engine, network))
    tensors = {name: engine.tensor(name) for name in engine.header["weights"]}
    header = copy.deepcopy({k: v for k, v in engine.header.items() if k != "weights"})
    header["weights"] = {name: {**entry, "hash": []} for name, entry in engine.header["weights"].items()}
    for name, recipe in concerned.items():
        tensors[name] = _Respecialised(recipe, known, adapter).tensor(tensors[name])
        header["weights"][name]["recipe"] = _rebuilt(recipe, adapter).json()
    header["config"] = described(header["config"], adapter)
    return Engine.from_memory(header, tensors)


def _depends(recipe: Recipe, adapter: Adapter) -> list[bool]:
    """For each value of a recipe, whether it is made of a parameter that the adapter changes."""
    found = [name in adapter.updates for name in recipe.sources]
    for call in recipe.steps:
        found.append(any(found[i] for i in call.inputs))
    return found


def _not_undone(recipe: Recipe, adapter: Adapter) -> str:
    """Why the adapted parameters cannot be had back from a stored weight, or nothing."""
    count, depends = len(recipe.sources), _depends(recipe, adapter)
    waiting = [count + len(recipe.steps) - 1]
    while waiting:
        i = waiting.pop()
        if not depends[i] or parameter_at(recipe, i) is not None:
            continue
        call = recipe.steps[i - count]
        if call.step.inverse is None:
            return f"made of {', '.join(recipe.sources[:4])} by a step {call.name}, which cannot be undone"
        waiting += call.inputs
    return ""


def _rebuilt(
    recipe: Recipe, adapter: Adapter, leaf: Callable[[int, str | None], Recipe | None] = lambda i, name: None
) -> Recipe:
    """The recipe with the adapter merged into its parameters. `leaf(number, parameter)` may give a value another."""
    count = len(recipe.sources)

    def made(i: int) -> Recipe:
        name = parameter_at(recipe, i)
        if (other := leaf(i, name)) is not None:
            return other
        base = source(recipe.sources[i]) if i < count else _again(i, plain if name is not None else made)
        return adapter.recipe(name, base) if name is not None else base

    def plain(i: int) -> Recipe:
        return source(recipe.sources[i]) if i < count else _again(i, plain)

    def _again(i: int, of: Callable[[int], Recipe]) -> Recipe:
        call = recipe.steps[i - count]
        return combine(call.name, [of(j) for j in call.inputs], **dict(call.args))

    return made(count + len(recipe.steps) - 1)


class _Respecialised:
    """One stored weight with the adapter: its recipe followed backwards, and again from there."""

    def __init__(self, recipe: Recipe, known: Mapping[str, Known], adapter: Adapter) -> None:
        self.recipe, self.adapter = recipe, adapter
        self.count = len(recipe.sources)
        self.known = recipe.infer_all(known)
        self.depends = _depends(recipe, adapter)
        self.leaves: dict[int, Array] = {}

    def tensor(self, stored: Array) -> Array:
        self._undo(len(self.known) - 1, stored)
        recipe = _rebuilt(self.recipe, self.adapter, lambda i, _: source(str(i)) if i in self.leaves else None)
        return evaluate(recipe, {str(i): array for i, array in self.leaves.items()})

    def _undo(self, i: int, array: Array) -> None:
        name = parameter_at(self.recipe, i)
        if not self.depends[i] or name is not None:
            kept = np.asarray(array, order="C")
            self.leaves[i] = kept if name is None else self.adapter.merged(name, kept, self.known[i][0])
            return
        call = self.recipe.steps[i - self.count]
        assert call.step.inverse is not None  # _not_undone has seen to it
        operands = call.step.inverse(array, [self.known[j] for j in call.inputs], **dict(call.args))
        for j, operand in zip(call.inputs, operands, strict=True):
            self._undo(j, operand)
