"""Recipes evaluated: the stored arrays, made of the parameters.

Recipes of one weight have much in common: its scales are a tensor of their own, and each phase of a transposed
convolution begins as all the others do. What several need is made once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ingot.errors import RecipeError
from ingot.ir.numbering import Numbering
from ingot.ir.recipe import Recipe, known_as

Array = np.ndarray[Any, Any]


def evaluate(recipe: Recipe, parameters: Mapping[str, Array]) -> Array:
    """The stored array. Intermediates go after their last use: a recipe needs little more memory than its result."""
    return Together([recipe], parameters).evaluate(recipe)


def alike(recipes: Iterable[tuple[str, Recipe]]) -> list[list[str]]:
    """The names of recipes that begin with the same source, in the order in which to evaluate them: the longest makes
    on its way what the others need, and what only it needs is gone before they begin."""
    found: dict[str, list[tuple[str, Recipe]]] = {}
    for name, recipe in recipes:
        found.setdefault(recipe.sources[0], []).append((name, recipe))
    return [[name for name, _ in sorted(of_one, key=lambda one: -len(one[1].steps))] for of_one in found.values()]


class Together:
    """Recipes of the same parameters, each evaluated once, one after the other.

    No step is done twice, whichever recipes it stands in, and its result goes after the last of its uses. One thread
    uses it at a time.
    """

    def __init__(self, recipes: Sequence[Recipe], parameters: Mapping[str, Array]) -> None:
        self._parameters = parameters
        self._numbering = Numbering()
        self._values: dict[int, Array] = {}
        self._uses: dict[int, int] = {}  # that are still to come of a value: steps, and as a result
        needed: set[int] = set()
        for recipe in recipes:
            *_, result = numbers = self._numbering.of(recipe)
            self._uses[result] = self._uses.get(result, 0) + 1
            reached = {result}
            for number, call in self._steps_back(recipe, numbers):
                if number in reached:
                    operands = {numbers[i] for i in call.inputs}
                    reached |= operands
                    if number not in needed:
                        needed.add(number)
                        for i in operands:
                            self._uses[i] = self._uses.get(i, 0) + 1

    @staticmethod
    def _steps_back(recipe: Recipe, numbers: Sequence[int]) -> list[tuple[int, Any]]:
        return list(zip(numbers[len(recipe.sources) :], recipe.steps, strict=True))[::-1]

    def evaluate(self, recipe: Recipe) -> Array:
        """The stored array of one of the recipes. Raises RecipeError for sources without a value, and what a step
        refuses."""
        numbers = self._numbering.of(recipe)
        wanted = {numbers[-1]} - self._values.keys()
        for number, call in self._steps_back(recipe, numbers):
            if number in wanted:
                wanted |= {numbers[i] for i in call.inputs} - self._values.keys()
        names = dict(zip(numbers, recipe.sources, strict=False))

        def value(number: int) -> Array:
            if number in names and number not in self._values:  # a source is read when it is needed, not before
                self._values[number] = known_as(self._parameters, names[number])
            return self._values[number]

        done: set[int] = set()  # a file's recipe may hold a step more than once
        for i, call in enumerate(recipe.steps):
            number, operands = numbers[len(recipe.sources) + i], [numbers[j] for j in call.inputs]
            if number not in wanted or number in done or number in self._values:
                continue
            done.add(number)
            try:
                self._values[number] = call.step.apply([value(j) for j in operands], **dict(call.args))
            except RecipeError as e:
                raise recipe.fault(i, e) from None
            for j in set(operands):
                self._used(j)
        result = value(numbers[-1])
        self._used(numbers[-1])
        return np.asarray(result, order="C") if recipe.steps else result

    def _used(self, number: int) -> None:
        self._uses[number] -= 1
        if not self._uses[number]:
            del self._values[number]
