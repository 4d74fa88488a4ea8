"""What an engine's tensors show: values of recipes, recovered from what was stored of them.

Another target wants weights in another layout. A refit makes some of them again and takes the rest from what is stored.
A comparison runs layers by themselves. A value is recovered where only steps with an inverse, layouts, stand between it
and a stored tensor. It can also be put together from stored parts, each with its place along some axes: a transposed
convolution is stored by phases. No step that loses bits is inverted. What is not shown itself is made of what is.

A file may come from anybody. Its recipes are checked before anything else, only few steps are inverted in a row, and
the bytes that are made of a file are counted against those that it has.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from threading import Lock
from typing import Any

import numpy as np

from ingot import dtypes
from ingot.errors import RecipeError
from ingot.ir import Network
from ingot.ir.numbering import Numbering
from ingot.ir.recipe import Known, Recipe, StepCall, casts_at
from ingot.release import reading

Array = np.ndarray[Any, Any]
Where = dict[int, Array]  # the place of a part: its indices along axes that it has not whole

KEPT = 4  # steps whose operands a Reader keeps, for they are asked for one after the other
MAX_WAY = 64  # steps to invert one after the other: a few in what ingot writes, thousands in what a stranger may
GROWTH = 64  # how many times as many bytes as there are may be made of them: 1 to 8 in what ingot writes
SMALL = 64 << 20  # bytes that may be made in any case
OPERAND = 1 << 8  # bytes that an operand of a step counts for in any case, which takes time too


def recipes_of(header: Mapping[str, Any]) -> dict[str, Recipe]:
    """The recipes of an engine's stored tensors, by these. Raises EngineVersionError for those of a newer ingot."""
    with reading(header):
        entries = header["weights"].items()
        return {name: Recipe.from_json(e["recipe"]) for name, e in entries if e["recipe"] is not None}


@dataclass(frozen=True)
class Derivation:
    """How a value is made.

    recipe: the steps that are left to do, from given sources and shown values.
    shown: which of its sources are such values, and their numbers.
    lacking: which are neither → the step that hides it, or "" where a tensor shows it rounded only.
    """

    recipe: Recipe
    shown: Mapping[str, int]
    lacking: Mapping[str, str]


class Shown:
    """The values that stored tensors show, by numbers.

    Args:
        recipes: of the stored tensors, by their names.
        tensor: a stored tensor by name.
        parameters: dtype and shape of every parameter of the network.

    Raises RecipeError for a recipe that does not give its tensor.
    """

    def __init__(
        self, recipes: Mapping[str, Recipe], tensor: Callable[[str], Array], parameters: Mapping[str, Known]
    ) -> None:
        self.recipes, self.tensor, self.parameters = recipes, tensor, parameters
        self.numbers = Numbering()
        self.specs: dict[int, Known] = {}
        self.tensors: dict[int, str] = {}
        self._left = SMALL  # bytes that may still be made
        self._lock = Lock()
        forms: dict[str, dict[tuple[str, ...], list[int]]] = {}
        for name, recipe in recipes.items():
            numbers = self._add(name, recipe)
            for number, at in zip(numbers, casts_at(recipe), strict=True):
                if at is not None:
                    casts = at[1] or (self.specs[number][0].name,)
                    forms.setdefault(at[0], {}).setdefault(casts, []).append(number)
        self.ways = _Search(self.numbers.made, self.specs, self.tensors).ways
        # An adapter is a part of its parameter: what comes last is what the network sees. First what can be had.
        self._forms = {
            name: {casts: max(reversed(found), key=self.has) for casts, found in of_one.items()}
            for name, of_one in forms.items()
        }

    @classmethod
    def of(cls, header: Mapping[str, Any], tensor: Callable[[str], Array], network: Network) -> Shown:
        """What an engine's tensors show. Raises RecipeError, or EngineVersionError for a newer ingot's recipes."""
        parameters = {v.name: (v.dtype, v.spec.evaluate({})) for v in network.parameters}
        with reading(header):
            return cls(recipes_of(header), tensor, parameters)

    def _add(self, name: str, recipe: Recipe) -> list[int]:
        try:
            specs: Sequence[Known | None] = recipe.infer_all(self.parameters)
        except RecipeError as e:
            raise RecipeError(f"tensor {name}: {e}") from None
        last = specs[-1]
        array = as_known(self.tensor(name), last)
        if last is None or (array.dtype, array.shape) != (last[0].numpy, last[1]):
            raise unfit(name, array, last)
        self._left += GROWTH * array.nbytes
        numbers = self.numbers.of(recipe)
        self.specs |= {n: spec for n, spec in zip(numbers, specs, strict=True) if spec is not None}
        self.tensors.setdefault(numbers[-1], name)
        return numbers

    # ----------------------------------------------------------------------------------------------- what there is
    def has(self, number: int) -> bool:
        """Whether a value can be recovered."""
        return self.ways.get(number) is not None

    def form(self, name: str) -> int | None:
        """The number of the stored form of a parameter that has most of its bits; None where none can be recovered.

        A cast is left as it is: where the parameter is cast again, it changes nothing.
        """
        widths: dict[int, int] = {}
        for casts, number in self._forms.get(name, {}).items():
            kinds = {dtypes.get(cast) for cast in casts}
            own = self.parameters[name][0]
            if self.has(number) and (kinds == {own} or (own.is_float and all(kind.is_float for kind in kinds))):
                widths[number] = min(kind.bits for kind in kinds)
        return max(widths, key=lambda number: widths[number], default=None)

    def names(self) -> list[str]:
        """The parameters that can be recovered, as they were or with fewer bits than before a cast."""
        return [name for name in self._forms if self.form(name) is not None]

    def seen(self, recipe: Recipe) -> list[int]:
        """The numbers of a recipe's values as the network sees them, to which adapters are parts of parameters."""
        known: dict[int, int] = {}
        for i, at in enumerate(casts_at(recipe)):
            if at is not None and at[0] in self._forms:
                number = self._forms[at[0]].get(at[1] or (self.parameters[at[0]][0].name,))
                if number is not None:
                    known[i] = number
        return self.numbers.of(recipe, known)

    # ------------------------------------------------------------------------------------------- how values are made
    def derivation(self, recipe: Recipe, given: Collection[str] = ()) -> Derivation:
        """How what a recipe of the network gives is made of shown values, of sources that are `given`, and of stored
        forms of parameters."""
        return self._derivation(recipe, self.seen(recipe), given, [False] * (len(recipe.sources) + len(recipe.steps)))

    def derivation_anew(self, recipe: Recipe, given: Collection[str]) -> Derivation:
        """How a stored tensor is made when these sources get other values: by its recipe, or one that goes on from its
        values. The other sources are needed with all their bits."""
        new = [name in given for name in recipe.sources]
        for call in recipe.steps:
            new.append(any(new[i] for i in call.inputs))
        return self._derivation(recipe, self.numbers.of(recipe), given, new, exact=True)

    def _derivation(
        self, recipe: Recipe, numbers: Sequence[int], given: Collection[str], new: Sequence[bool], exact: bool = False
    ) -> Derivation:
        self.spend(OPERAND * len(numbers))
        count = len(recipe.sources)
        hidden_by = {len(numbers) - 1: ""}  # values that are needed, and the last step above them without an inverse
        labels: dict[int, str] = {}
        shown: dict[str, int] = {}
        lacking: dict[str, str] = {}
        for i in reversed(range(len(numbers))):
            if i not in hidden_by:
                continue
            number = None if new[i] or not self.has(numbers[i]) else numbers[i]
            if number is None and i >= count:
                call, by = recipe.steps[i - count], hidden_by[i]
                if call.step.inverse is None and call.name != "cast" and not (by and call.name == "lora_merge"):
                    by = call.name  # what an adapter is merged into is hidden by what came of it, if by anything
                for j in call.inputs:
                    hidden_by[j] = hidden_by.get(j) or by
                continue
            if number is None and recipe.sources[i] not in given and not exact:
                number = self.form(recipe.sources[i])
            if number is not None:
                labels[i] = _unlike(f"value {number}", self.parameters)  # the same in all derivations
                shown[labels[i]] = number
            else:
                labels[i] = recipe.sources[i]
                if labels[i] not in given:
                    lacking[labels[i]] = hidden_by[i]
        return Derivation(_left(recipe, hidden_by, labels), shown, lacking)

    def check(self, derivations: Sequence[Derivation], known: Mapping[str, Known] | None, there: int) -> list[Known]:
        """dtypes and shapes of what derivations make together, before any of it exists. What several of them make
        counts once, as it is made once (ir/evaluation.py).

        known: of their given sources, where they are no parameters as the network has them. there: bytes of the tensors
        that they replace. Raises RecipeError for what cannot be made, or only out of all proportion to what there is.
        """
        numbering = Numbering()
        given: dict[int, int] = {}
        made: dict[int, int] = {}
        results: list[Known] = []
        for derivation in derivations:
            shown = {label: self.specs[number] for label, number in derivation.shown.items()}
            specs: list[Any] = derivation.recipe.infer_all({**self.parameters, **(known or {}), **shown})
            count = len(derivation.recipe.sources)
            for i, (number, spec) in enumerate(zip(numbering.of(derivation.recipe), specs, strict=True)):
                if spec is not None:
                    (given if i < count else made)[number] = _bytes(spec)
            results.append(specs[-1])
        of, to = sum(given.values()), sum(made.values())
        if to > GROWTH * (of + there) + SMALL:
            raise RecipeError(f"its recipe makes {to:,} bytes of {of:,}: the file is damaged")
        self.spend(to)
        return results

    def spend(self, count: int) -> None:
        """Counts bytes that are made. Raises RecipeError where they are out of all proportion to what is stored."""
        with self._lock:
            self._left -= count
        if self._left < 0:
            raise RecipeError(
                "the recipes of these weights make many times the bytes that are stored: the file is damaged"
            )

    def allow(self, given: Iterable[Known]) -> None:
        """Such arrays are there too, to make others of."""
        count = sum(map(_bytes, given))
        with self._lock:
            self._left += GROWTH * count


class Reader:
    """Makes shown values, for one thread. What it keeps goes with it."""

    def __init__(self, shown: Shown) -> None:
        self.shown = shown
        self._recent: OrderedDict[int, list[Array]] = OrderedDict()  # by the result of a step, its operands

    def value(self, number: int) -> Array:
        """A value, as an array that is not to be written to. Raises KeyError for one that cannot be recovered."""
        shown = self.shown
        way = shown.ways[number]
        if number in shown.tensors:
            return as_known(shown.tensor(shown.tensors[number]), shown.specs[number])
        if way.user is not None:
            return self._operands(way.user)[_call(shown.numbers.made, way.user).inputs.index(number)]
        dtype, shape = shown.specs[number]
        shown.spend(_bytes((dtype, shape)))
        out = np.empty(shape, dtype.numpy)
        for part in way.parts:
            out[_box(shape, part.where)] = self.value(part.number)
        return out

    def _operands(self, number: int) -> list[Array]:
        if number not in self._recent:
            shown = self.shown
            call, array = _call(shown.numbers.made, number), self.value(number)
            assert call.step.inverse is not None
            found = call.step.inverse(array, [shown.specs[i] for i in call.inputs], **dict(call.args))
            copied = [operand.nbytes for operand in found if not np.may_share_memory(operand, array)]
            shown.spend(sum(copied) + OPERAND * len(found))
            self._recent[number] = found
            while len(self._recent) > KEPT:
                self._recent.popitem(last=False)
        self._recent.move_to_end(number)
        return self._recent[number]


class Operands(Mapping[str, Array]):
    """What derivations are evaluated on: shown values, each made when it is asked for, and given sources."""

    def __init__(
        self, reader: Reader, derivations: Sequence[Derivation], given: Mapping[str, Array] | None = None
    ) -> None:
        self._reader, self._given = reader, given or {}
        self._shown = {label: number for one in derivations for label, number in one.shown.items()}
        self._sources = dict.fromkeys(label for one in derivations for label in one.recipe.sources)

    def __getitem__(self, label: str) -> Array:
        number = self._shown.get(label)
        return self._given[label] if number is None else self._reader.value(number)

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)


# ------------------------------------------------------------------------------------------------------- ways back


@dataclass(frozen=True)
class _Part:
    """A value that can be had, as a part of another one, of which so many steps take it."""

    number: int
    where: Where
    takes: int


@dataclass(frozen=True)
class _Way:
    """How a value is recovered: as the tensor that it is, from the step to one of its users, or from parts of it."""

    steps: int  # how many are undone one after the other
    user: int | None = None
    parts: tuple[_Part, ...] = ()


class _Search:
    """The ways back to values, those of the largest numbers first: what is made of a value has a larger one."""

    def __init__(self, made: Sequence[str | StepCall], specs: Mapping[int, Known], tensors: Mapping[int, str]) -> None:
        self._made, self._specs = made, specs
        self.ways: dict[int, _Way] = {}  # of values that can be had
        self._parts: dict[int, list[_Part]] = {}  # of values that cannot
        users: dict[int, list[int]] = {}
        for number in reversed(range(len(made))):
            if number in tensors:
                self.ways[number] = _Way(0)
            elif number in users:
                self._find(number, users.pop(number))
            what = made[number]
            for i in () if isinstance(what, str) else dict.fromkeys(what.inputs):
                users.setdefault(i, []).append(number)

    def _find(self, number: int, users: Sequence[int]) -> None:
        inverted = [u for u in users if u in self.ways and _call(self._made, u).step.inverse is not None]
        user = min(inverted, key=lambda u: self.ways[u].steps, default=None)
        way = None if user is None else _Way(self.ways[user].steps + 1, user)
        if user is None and (parts := self._taken(users)):
            if _whole(self._specs[number][1], parts):
                way = _Way(max(self.ways[part.number].steps for part in parts) + 1, None, tuple(parts))
            else:
                self._parts[number] = parts
        if way is not None and way.steps <= MAX_WAY:
            self.ways[number] = way

    def _taken(self, users: Sequence[int]) -> list[_Part]:
        """The parts of a value that can be had."""
        found: list[_Part] = []
        for user in users:
            call = _call(self._made, user)
            if call.name != "take":
                continue
            behind = [_Part(user, {}, 0)] if user in self.ways else self._parts.get(user, ())
            axis, indices = dict(call.args)["axis"], np.array(dict(call.args)["indices"], np.int64)
            for part in behind:
                if part.takes < MAX_WAY:
                    place = indices[part.where[axis]] if axis in part.where else indices
                    found.append(_Part(part.number, {**part.where, axis: place}, part.takes + 1))
        return found


def _whole(shape: tuple[int, ...], parts: Sequence[_Part]) -> bool:
    """Whether parts make up a value. Parts that are there are as large as the file, and no value is larger."""
    counts = (prod(len(p.where[d]) if d in p.where else n for d, n in enumerate(shape)) for p in parts)
    if sum(counts) < prod(shape):
        return False
    seen = np.zeros(shape, np.bool_)
    for part in parts:
        seen[_box(shape, part.where)] = True
    return bool(seen.all())


def _box(shape: tuple[int, ...], where: Where) -> Any:
    return np.ix_(*(where[d] if d in where else np.arange(n) for d, n in enumerate(shape)))


def _call(made: Sequence[str | StepCall], number: int) -> StepCall:
    call = made[number]
    assert isinstance(call, StepCall)
    return call


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
    return prod(shape) * dtype.numpy.itemsize


def as_known(array: Array, known: Known | None) -> Array:
    """A stored tensor as its recipe has it: one that no program reads may be plain bytes, in files that were loaded and
    saved again by an ingot that took it for such."""
    if known is None or array.dtype != np.uint8 or array.ndim != 1 or array.nbytes != _bytes(known):
        return array
    return array.view(known[0].numpy).reshape(known[1])


def unfit(tensor: str, stored: Array, made: Known | None) -> RecipeError:
    """A recipe does not give its tensor."""
    found = "an adapter's tensor" if made is None else f"{made[0].name}{list(made[1])}"
    return RecipeError(f"tensor {tensor} is stored as {stored.dtype}{list(stored.shape)}, and its recipe gives {found}")
