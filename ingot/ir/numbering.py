"""Numbers for what recipes compute: equal steps on equal sources are one value, in whatever recipes they stand.

A value's number is greater than those of what it is made of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ingot.ir.recipe import Recipe, StepCall


class Numbering:
    """Value numbers, given out as recipes are met."""

    def __init__(self) -> None:
        self.made: list[str | StepCall] = []  # by number: a source's name, or a step whose inputs are numbers
        self._numbers: dict[str, int] = {}

    def of(self, recipe: Recipe, known: Mapping[int, int] | None = None) -> list[int]:
        """The numbers of a recipe's values: its sources, then its steps. `known`: of some of them, by their place."""
        known = known or {}
        found = [known[i] if i in known else self._number(name) for i, name in enumerate(recipe.sources)]
        for i, call in enumerate(recipe.steps, len(found)):
            found.append(known[i] if i in known else self.step(call, found))
        return found

    def step(self, call: StepCall, values: Sequence[int]) -> int:
        """The number of what a recipe's step makes, whose values have these numbers."""
        return self._number(StepCall(call.name, tuple(values[i] for i in call.inputs), call.args))

    def recipe(self, number: int) -> Recipe:
        """The recipe of a value, its parts in the order of `combine`: each operand's before those of the next."""
        made = self.made
        sources: dict[int, int] = {}
        steps: dict[int, int] = {}
        waiting = [number]
        while waiting:
            what = made[waiting[-1]]
            if isinstance(what, str):
                sources.setdefault(waiting.pop(), len(sources))
            elif left := [i for i in what.inputs if i not in sources and i not in steps]:
                waiting += reversed(left)
            else:
                steps.setdefault(waiting.pop(), len(steps))
        place = sources | {at: len(sources) + i for at, i in steps.items()}
        calls = [call for at in steps if isinstance(call := made[at], StepCall)]
        return Recipe(
            tuple(str(made[at]) for at in sources),
            tuple(StepCall(c.name, tuple(place[i] for i in c.inputs), c.args) for c in calls),
        )

    def _number(self, what: str | StepCall) -> int:
        # A text as key: Python's hash of it is seeded, that of numbers is not, and a file may hold many that collide.
        found = self._numbers.setdefault(repr(what), len(self.made))
        if found == len(self.made):
            self.made.append(what)
        return found
