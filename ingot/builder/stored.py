"""An engine's weights by their recipes: which values they still show, and how to make them again when sources change.

Refit, LoRA merging and the comparison of layers all stand on this. A recipe's value is shown when the steps above it
have inverses: following them backwards from the stored tensor gives its bits. A weight is made again from new sources
and from shown values; where it needs a source that nobody shows, that source has to be given.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot import dtypes
from ingot.backends.stored import recipes_of
from ingot.builder.compile import Borrowed, owned
from ingot.engine.session import Engine
from ingot.errors import IngotError, RecipeError
from ingot.ir import Network
from ingot.ir.recipe import Known, Recipe, StepCall, parameter_at

Array = np.ndarray[Any, Any]
Place = tuple[str, int]  # a stored tensor, and one of the values of its recipe

MAX_LISTED = 20
GROWTH = 64  # how many times larger than its sources or its result a value of a recipe may be


class Values:
    """Numbers for what recipes compute: equal steps on equal sources are one value, in whatever tensor."""

    def __init__(self) -> None:
        self._made: list[str | StepCall] = []  # by number: a source, or a step whose inputs are numbers
        self._numbers: dict[str | StepCall, int] = {}

    def of(self, recipe: Recipe, known: Mapping[str, int] | None = None) -> list[int]:
        """The numbers of a recipe's values: its sources, then its steps. `known`: sources that are values already."""
        known = known or {}
        found = [known[name] if name in known else self._number(name) for name in recipe.sources]
        for call in recipe.steps:
            found.append(self.step(call, found))
        return found

    def step(self, call: StepCall, values: Sequence[int]) -> int:
        """The number of what a recipe's step makes, whose values have these numbers."""
        return self._number(StepCall(call.name, tuple(values[i] for i in call.inputs), call.args))

    def recipe(self, number: int) -> Recipe:
        """The recipe of a value, its parts in the order of `combine`: each operand's before those of the next."""
        made = self._made
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
        found = self._numbers.setdefault(what, len(self._made))
        if found == len(self._made):
            self._made.append(what)
        return found


@dataclass(frozen=True)
class Remake:
    """How one tensor is made again.

    recipe: the steps that are left to do, from new sources and shown values.
    shown: which of its sources are such values, and where.
    lacking: which are neither → the step that hides it, or "" where a tensor shows it rounded only.
    """

    tensor: str
    recipe: Recipe
    shown: Mapping[str, Place]
    lacking: Mapping[str, str]


class Weights:
    """The weights of an engine with recipes.

    Attributes:
        known: dtype and shape of the network's parameters.
        recipes: stored tensor → recipe.
        values: numbers for the values of these recipes, and of others that are made of them.
    """

    def __init__(self, engine: Engine, network: Network) -> None:
        self.engine = engine
        self.known: dict[str, Known] = {v.name: (v.dtype, v.spec.evaluate({})) for v in network.parameters}
        self.recipes = recipes_of(engine.header)
        self.values = Values()
        self._shown: dict[int, Place] = {}
        self._stored: dict[int, str] = {}
        for name, recipe in self.recipes.items():
            numbers = self.values.of(recipe)
            self._stored.setdefault(numbers[-1], name)
            for i in _reached(recipe):
                self._shown.setdefault(numbers[i], (name, i))

    def holding(self, recipe: Recipe) -> str | None:
        """The stored tensor that this recipe makes."""
        return self._stored.get(self.values.of(recipe)[-1])

    def value(self, recipe: Recipe) -> Array | None:
        """What this recipe makes, where a stored tensor shows it."""
        place = self._shown.get(self.values.of(recipe)[-1])
        return None if place is None else self.shown(place[0], [place[1]])[place[1]]

    def shown(self, tensor: str, wanted: Collection[int], casts: bool = False) -> dict[int, Array]:
        """Values of a tensor's own recipe, by its steps backwards. `casts`: what was cast is given as it is after that.

        Raises RecipeError where the recipe does not give such a tensor.
        """
        recipe, stored = self.recipes[tensor], self.engine.tensor(tensor)
        specs = self._checked(tensor, recipe, self.known)
        count = len(recipe.sources)
        needed = set(wanted)  # those, and what they are part of
        for i, call in enumerate(recipe.steps):
            if not needed.isdisjoint(call.inputs):
                needed.add(count + i)
        arrays = {len(specs) - 1: stored}
        for i in [j for j in _reached(recipe, casts) if j >= count and j in needed]:
            call = recipe.steps[i - count]
            if _goes_back(call, casts):
                whole = arrays[i] if i in wanted else arrays.pop(i)
                operands = _undone(call, whole, [specs[j] for j in call.inputs])
                arrays |= {j: array for j, array in zip(call.inputs, operands, strict=True) if j in needed}
        return {i: arrays[i] for i in wanted}

    def remake(self, tensor: str, recipe: Recipe, given: Collection[str]) -> Remake:
        """How `tensor` is made by `recipe`, its own or one that goes on from its values, when these sources are new."""
        numbers, count = self.values.of(recipe), len(recipe.sources)
        new = [name in given for name in recipe.sources]
        for call in recipe.steps:
            new.append(any(new[i] for i in call.inputs))
        hidden_by = {len(numbers) - 1: ""}  # values that are needed, and the last step above them without an inverse
        labels: dict[int, str] = {}
        shown: dict[str, Place] = {}
        lacking: dict[str, str] = {}
        for i in reversed(range(len(numbers))):
            if i not in hidden_by:
                continue
            if not new[i] and numbers[i] in self._shown:
                labels[i] = _unlike(f"value {i}", recipe.sources)
                shown[labels[i]] = self._shown[numbers[i]]
            elif i >= count:
                call = recipe.steps[i - count]
                by = hidden_by[i]
                if call.step.inverse is None and call.name != "cast" and not (by and call.name == "lora_merge"):
                    by = call.name  # what an adapter is merged into is hidden by what came of it, if by anything
                for j in call.inputs:
                    hidden_by[j] = hidden_by.get(j) or by
            else:
                labels[i] = recipe.sources[i]
                if not new[i]:
                    lacking[labels[i]] = hidden_by[i]
        return Remake(tensor, _left(recipe, hidden_by, labels), shown, lacking)

    def remade(
        self, remakes: Collection[Remake], recipes: Mapping[str, Recipe], sources: Mapping[str, Array],
        config: Mapping[str, Any] | None = None,
    ) -> Engine:  # fmt: skip
        """The engine with some tensors made again. What is not is shared with this one, not copied.

        Args:
            recipes: of all tensors that are made again.
            sources: the given arrays, by the sources' names.
            config: the new engine's; default this one's.

        Raises RecipeError with all that cannot be made.
        """
        new = {n: sources[n] for n in sources if n not in self.known}  # an adapter's
        known = self.known | {n: (dtypes.get(array.dtype), array.shape) for n, array in new.items()}

        def made(remake: Remake) -> Array | str:
            try:
                self._checked(remake.tensor, recipes[remake.tensor], known)
                return self._made(remake, sources)
            except IngotError as e:
                return str(e)

        with ThreadPoolExecutor(min(4, len(os.sched_getaffinity(0)))) as pool:
            found = {r.tensor: array for r, array in zip(remakes, pool.map(made, remakes), strict=True)}
        if faults := dict.fromkeys(array for array in found.values() if isinstance(array, str)):
            rest = [f"… and {len(faults) - MAX_LISTED:,} more"] if len(faults) > MAX_LISTED else []
            raise RecipeError("\n  ".join(["these weights cannot be made:", *[*faults][:MAX_LISTED], *rest]))
        header = self.engine.header
        weights = {name: {**entry, "hash": []} for name, entry in header["weights"].items()}
        weights |= {name: {"recipe": recipe.json(), "hash": []} for name, recipe in recipes.items()}
        tensors: dict[str, Any] = {n: found[n] if n in found else self.engine.tensor(n) for n in weights}
        config = header["config"] if config is None else config
        return self.engine.with_tensors({**header, "weights": weights, "config": config}, tensors)

    def _made(self, remake: Remake, sources: Mapping[str, Array]) -> Array:
        made = owned(remake.recipe, _Operands(self, remake, sources))
        stored = self.engine.tensor(remake.tensor)
        if (made.dtype, made.shape) != (stored.dtype, stored.shape):
            raise _unfit(remake.tensor, stored, f"{made.dtype}{list(made.shape)}")
        return made

    def _checked(self, tensor: str, recipe: Recipe, known: Mapping[str, Known]) -> list[Known]:
        """What is known of a recipe's values, before any of them exists."""
        specs: list[Any] = recipe.infer_all(known)  # None for an adapter's tensor that nobody gave
        stored = self.engine.tensor(tensor)
        dtype, shape = specs[-1]
        if (dtype.numpy, shape) != (stored.dtype, stored.shape):
            raise _unfit(tensor, stored, f"{dtype.name}{list(shape)}")
        sizes = [0 if spec is None else _bytes(spec) for spec in specs]
        most = GROWTH * max(*sizes[: len(recipe.sources)], stored.nbytes, 64)
        if max(sizes) > most:
            raise RecipeError(
                f"tensor {tensor}: a step of its recipe makes {max(sizes):,} bytes on the way: the file is damaged"
            )
        return specs


class _Operands(Borrowed):
    """What the recipe of a Remake is evaluated on. Shown values are made when they are asked for, once."""

    def __init__(self, weights: Weights, remake: Remake, sources: Mapping[str, Array]) -> None:
        super().__init__(sources)
        self._weights, self._remake = weights, remake
        self._read: dict[Place, Array] = {}

    def __getitem__(self, label: str) -> Array:
        place = self._remake.shown.get(label)
        if place is None:
            return self.arrays[label]
        if place not in self._read:
            tensor = place[0]
            wanted = {i for other, i in self._remake.shown.values() if other == tensor}
            self._read |= {(tensor, i): array for i, array in self._weights.shown(tensor, wanted).items()}
        return self._read.pop(place)

    def __iter__(self) -> Iterator[str]:
        return iter(self._remake.recipe.sources)

    def __len__(self) -> int:
        return len(self._remake.recipe.sources)


class Recovered(Mapping[str, Array]):
    """The parameters whose values an engine's tensors still show: those stored through casts and layouts only.

    Each is made when it is asked for. A cast is left as it is: it is made again with the recipe, and changes nothing.
    What an adapter was merged into is given as it is with it.
    """

    def __init__(self, engine: Engine, network: Network, weights: Weights | None = None) -> None:
        self._weights = Weights(engine, network) if weights is None else weights
        self._found: dict[str, Place] = {}
        for tensor, recipe in self._weights.recipes.items():
            for i in _reached(recipe, casts=True):
                name = parameter_at(recipe, i)
                if name in self._weights.known:
                    self._found[name] = (tensor, i)

    def __getitem__(self, name: str) -> Array:
        tensor, i = self._found[name]
        return self._weights.shown(tensor, [i], casts=True)[i]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def _reached(recipe: Recipe, casts: bool = False) -> list[int]:
    """The values of a recipe that its tensor shows, the last first.

    casts: down to parameters as the network has them, through casts on the way there.
    """
    count = len(recipe.sources)
    reached = {count + len(recipe.steps) - 1}
    found = []
    for i in reversed(range(count + len(recipe.steps))):
        if i not in reached:
            continue
        found.append(i)
        if i >= count and not (casts and parameter_at(recipe, i) is not None):
            call = recipe.steps[i - count]
            if _goes_back(call, casts):
                reached |= set(call.inputs)
    return found


def _goes_back(call: StepCall, casts: bool) -> bool:
    return call.step.inverse is not None or (casts and call.name == "cast")


def _undone(call: StepCall, array: Array, known: Sequence[Known]) -> list[Array]:
    if call.step.inverse is None:  # a cast
        return [array]
    return call.step.inverse(array, known, **dict(call.args))


def _left(recipe: Recipe, needed: Collection[int], labels: Mapping[int, str]) -> Recipe:
    """The steps from the values that have labels, the sources of this recipe, to the result."""
    count = len(recipe.sources)
    begin, rest = sorted(labels), [i for i in sorted(needed) if i not in labels]
    place = {i: at for at, i in enumerate([*begin, *rest])}
    calls = [recipe.steps[i - count] for i in rest]
    steps = [StepCall(c.name, tuple(place[j] for j in c.inputs), c.args) for c in calls]
    return Recipe(tuple(labels[i] for i in begin), tuple(steps))


def _unlike(name: str, others: Collection[str]) -> str:
    while name in others:
        name += "'"
    return name


def _bytes(spec: Known) -> int:
    dtype, shape = spec
    return math.prod(shape) * dtype.numpy.itemsize


def _unfit(tensor: str, stored: Array, made: str) -> RecipeError:
    return RecipeError(f"tensor {tensor} is stored as {stored.dtype}{list(stored.shape)}, and its recipe gives {made}")
