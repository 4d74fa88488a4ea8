"""Engines of large shapes in seconds: parameters of equal shapes hold equal numbers; what is made of them is made once.

A GPU's memory holds them apart, so what a step reads is what it would read of other numbers. With 32 layers of
Llama-3-8B's shape one layer is made in place of 32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from ingot.backends import torch_executor
from ingot.builder.compile import Owned
from ingot.models.weights import RandomWeights
from ingot.passes.weights import recipe_of


@contextmanager
def alike() -> Iterator[None]:
    """While this is open, random weights are built so, and sessions on a torch device read them so."""
    drawn: dict[Any, Any] = {}
    made: dict[Any, Any] = {}
    read: dict[Any, Any] = {}
    draw, make, stored = RandomWeights.__getitem__, Owned.evaluate, torch_executor.stored

    def draws(weights: Any, name: str) -> Any:
        spec = weights._specs[name]
        key = (spec.evaluate({}), spec.dtype, name.endswith("bias"))
        if key not in drawn:
            drawn[key] = draw(weights, name)
        return drawn[key]

    def makes(several: Any, recipe: Any) -> Any:
        key = (recipe.steps, tuple(id(several._parameters[source]) for source in recipe.sources))
        if key not in made:
            made[key] = make(several, recipe)
        return made[key]

    def reads(reader: Any, value: Any) -> Any:
        recipe = recipe_of(value)
        sources = tuple(str(reader.shown.parameters.get(source)) for source in recipe.sources)
        key = (id(reader.shown), recipe.steps, str(value.spec), sources)
        if key not in read:
            read[key] = stored(reader, value)
        return read[key]

    with (
        patch.object(RandomWeights, "__getitem__", draws), patch.object(Owned, "evaluate", makes),
        patch.object(torch_executor, "stored", reads),
    ):  # fmt: skip
        yield
