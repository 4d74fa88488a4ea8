"""Weights made of weights: a pass that wants a parameter in another form adds steps to its recipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ingot.ir import Network, Spec, Value
from ingot.ir.recipe import Recipe, combine, source

MAX_JOINED = 400  # characters of names that are joined to one: names in a file are limited


def recipe_of(value: Value) -> Recipe:
    """A parameter's recipe: its own, or the source of its name in its dtype."""
    return value.recipe or source(value.name).then("cast", dtype=value.dtype.name)


def unrounded(value: Value) -> Recipe:
    """A parameter in float32, as it was before it was rounded to its dtype."""
    recipe = recipe_of(value)
    last = recipe.steps[-1] if recipe.steps else None
    if last is not None and last.name == "cast" and last.inputs == (len(recipe.sources) + len(recipe.steps) - 2,):
        recipe = Recipe(recipe.sources, recipe.steps[:-1])
    return recipe.then("cast", dtype="float32")


def derive(network: Network, step: str, values: Sequence[Value], name: str, **args: Any) -> Value:
    """The parameter that one more recipe step makes of parameters; the same one when it was made before."""
    recipe = combine(step, [recipe_of(v) for v in values], **args)
    dtype, shape = recipe.steps[-1].step.infer([(v.dtype, v.shape) for v in values], **args)
    return stored(network, recipe, Spec(dtype, shape), name)


def stored(network: Network, recipe: Recipe, spec: Spec, name: str) -> Value:
    """The parameter that a recipe makes; the same one when it was made before."""
    unique, count = name, 0
    while (known := network.values.get(unique)) is not None:
        if known.kind == "parameter" and known.recipe == recipe:
            return known
        count += 1
        unique = f"{name}.{count}"
    return network.parameter(unique, spec, recipe)


def sizes(weight: Value) -> tuple[Any, ...]:
    """The sizes of a parameter, which are always known."""
    return weight.spec.evaluate({})  # type: ignore[no-any-return]


def joined_name(names: Sequence[str]) -> str:
    """`a.q.weight` and `a.k.weight` together: `a.q_k.weight`."""
    if sum(map(len, names)) > MAX_JOINED:
        return f"{names[0]}_and_{len(names) - 1}_more"
    parts = [name.split(".") for name in names]
    if len({len(p) for p in parts}) != 1:
        return "_".join(names)
    return ".".join(same[0] if len(set(same)) == 1 else "_".join(same) for same in zip(*parts, strict=True))
