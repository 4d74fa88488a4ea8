"""What an engine's tensors show: values of recipes, had back from what was stored of them.

Another target wants weights in another layout, and reports want parameters. A value of a recipe can be had back where
only steps with an inverse, layouts, stand between it and a stored tensor; or where stored parts of it, each with its
place along some axes, make up the whole (a transposed convolution is stored by phases). No step that loses bits is
undone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from ingot.errors import RecipeError
from ingot.ir.recipe import Known, Recipe, StepCall, parameter_at
from ingot.release import reading

Array = np.ndarray[Any, Any]
Key = int  # of a value: equal for equal steps on equal values, and greater than those of what it is made of
Where = dict[int, Array]  # the place of a part: its indices along axes that it has not whole

KEPT = 4  # operands of inverted steps that are kept, for they are asked for one after the other
MAX_WAY = 64  # steps to invert one after the other: a few in what ingot writes, thousands in what a stranger may


def recipes_of(header: Mapping[str, Any]) -> dict[str, Recipe]:
    """The recipes of an engine's stored tensors, by these. Raises EngineVersionError for those of a newer ingot."""
    with reading(header):
        entries = header["weights"].items()
        return {name: Recipe.from_json(e["recipe"]) for name, e in entries if e["recipe"] is not None}


@dataclass
class _Known:
    """A value of recipes: what it is, the tensor that is it, and the steps that take it, by their results and its place
    among their operands: each step with the specs of all operands."""

    spec: Known
    tensor: str | None = None
    users: dict[tuple[Key, int], tuple[StepCall, list[Known]]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Way:
    """How a value is had back: as the tensor that it is, by inverting one of its users, or from parts of it."""

    steps: int  # how many are inverted one after the other
    undo: tuple[Key, int] | None = None
    parts: list[tuple[Key, Where]] = field(default_factory=list)


class Shown:
    """The values that stored tensors show.

    Args:
        recipes: of the stored tensors, by their names.
        tensor: a stored tensor by name.
        parameters: dtype and shape of every parameter of the network.

    Raises RecipeError for a recipe that does not give its tensor.
    """

    def __init__(
        self, recipes: Mapping[str, Recipe], tensor: Callable[[str], Array], parameters: Mapping[str, Known]
    ) -> None:
        self._tensor = tensor
        self._parameters = parameters
        self._keys: dict[tuple[Any, ...], Key] = {}  # by what makes a value of others
        self._values: dict[Key, _Known] = {}
        self._forms: dict[str, dict[Key, None]] = {}  # of each parameter
        self._recent: OrderedDict[tuple[Key, tuple[Known, ...]], list[Array]] = OrderedDict()
        for name, recipe in recipes.items():
            self._add(name, recipe)
        self._ways: dict[Key, _Way | None] = {}
        for key in sorted(self._values, reverse=True):  # what is made of a value has a greater key
            self._ways[key] = self._way(self._values[key])

    def _add(self, name: str, recipe: Recipe) -> None:
        specs = recipe.infer_all(self._parameters)
        array = self._tensor(name)
        if (array.dtype, array.shape) != (specs[-1][0].numpy, specs[-1][1]):
            raise RecipeError(
                f"tensor {name} is stored as {array.dtype}{list(array.shape)}, and its recipe gives "
                f"{specs[-1][0].name}{list(specs[-1][1])}"
            )
        keys = self._keys_of(recipe, specs)
        for number, call in enumerate(recipe.steps, len(recipe.sources)):
            taken = [specs[i] for i in call.inputs]
            for place, i in enumerate(call.inputs):
                if specs[i] is not None and keys[i] != keys[number]:  # no adapter's; nor a cast that changes nothing
                    found = self._values.setdefault(keys[i], _Known(specs[i]))
                    found.users.setdefault((keys[number], place), (call, taken))
        self._values.setdefault(keys[-1], _Known(specs[-1])).tensor = name

    def _keys_of(self, recipe: Recipe, specs: list[Known]) -> list[Key]:
        """The key of every value of a recipe. A parameter's is its name and dtype, an adapter merged into it or not."""
        keys: list[Key] = []
        for number, spec in enumerate(specs):
            name = parameter_at(recipe, number)
            if name is not None and spec is not None:
                keys.append(self._key("parameter", name, spec[0].name))
                self._forms.setdefault(name, {})[keys[-1]] = None
            elif number < len(recipe.sources):
                keys.append(self._key("adapter", recipe.sources[number]))
            else:
                call = recipe.steps[number - len(recipe.sources)]
                keys.append(self._key(call.name, call.args, *(keys[i] for i in call.inputs)))
        return keys

    def _key(self, *made: Any) -> Key:
        return self._keys.setdefault(made, len(self._keys))

    def key(self, recipe: Recipe) -> Key:
        """What a recipe's result is known by."""
        return self._keys_of(recipe, recipe.infer_all(self._parameters))[-1]

    def parameters(self) -> list[str]:
        """The names of the parameters that can be had back, as they were or with fewer bits than before a cast."""
        return [name for name, forms in self._forms.items() if any(map(self.has, forms))]

    def parameter(self, name: str) -> Array:
        """The value of a parameter, in the widest form that is stored. Raises KeyError for one without."""
        forms = [key for key in self._forms.get(name, ()) if self.has(key)]
        if not forms:
            raise KeyError(name)
        return self.value(max(forms, key=lambda key: self._values[key].spec[0].bits))

    def has(self, key: Key) -> bool:
        """Whether a value can be had back."""
        return self._ways.get(key) is not None

    def _way(self, known: _Known) -> _Way | None:
        """The way to a value, where those of what is made of it are known."""
        if known.tensor is not None:
            return _Way(0)
        found = [
            _Way(way.steps + 1, (user, place))
            for (user, place), (call, _) in known.users.items()
            if call.step.inverse is not None and (way := self._ways.get(user)) is not None
        ]
        if not found:
            parts = self._parts(known)
            if _whole(known.spec[1], parts):
                behind = (way.steps for key, _ in parts if (way := self._ways[key]) is not None)
                found = [_Way(max(behind) + 1, None, parts)]
        way = min(found, key=lambda way: way.steps, default=None)
        return way if way is not None and way.steps <= MAX_WAY else None

    def value(self, key: Key) -> Array:
        """A value, as an array that is not to be written to. Raises KeyError for one that cannot be had back."""
        way, known = self._ways[key], self._values[key]
        if way is None:
            raise KeyError(key)
        if known.tensor is not None:
            return self._tensor(known.tensor)
        if way.undo is not None:
            (user, place), (call, specs) = way.undo, known.users[way.undo]
            return self._undone(user, call, specs)[place]
        dtype, shape = known.spec
        out = np.empty(shape, dtype.numpy)
        for part, where in way.parts:
            out[_box(shape, where)] = self.value(part)
        return out

    def _undone(self, key: Key, call: StepCall, specs: list[Known]) -> list[Array]:
        inverse = call.step.inverse
        assert inverse is not None
        at = (key, tuple(specs))
        if at not in self._recent:
            self._recent[at] = inverse(self.value(key), specs, **dict(call.args))
            while len(self._recent) > KEPT:
                self._recent.popitem(last=False)
        return self._recent[at]

    def _parts(self, known: _Known) -> list[tuple[Key, Where]]:
        """The parts of a value that can be had, each with its place."""
        found: list[tuple[Key, Where]] = []
        left: list[tuple[Key, StepCall, Where]] = [(user, call, {}) for (user, _), (call, _) in known.users.items()]
        for _ in range(MAX_WAY):
            behind: list[tuple[Key, StepCall, Where]] = []
            for key, call, where in left:
                if call.name != "take":
                    continue
                args = dict(call.args)
                axis, indices = args["axis"], np.array(args["indices"], np.int64)
                where = where | {axis: where[axis][indices] if axis in where else indices}
                if self.has(key):
                    found.append((key, where))
                elif key in self._values:
                    behind += [(user, more, where) for (user, _), (more, _) in self._values[key].users.items()]
            left = behind
        return found


def _whole(shape: tuple[int, ...], parts: list[tuple[Key, Where]]) -> bool:
    """Whether parts make up a value. Parts that are there are as large as the file, and no value is larger."""
    counts = (prod(len(w[d]) if d in w else n for d, n in enumerate(shape)) for _, w in parts)
    if not parts or sum(counts) < prod(shape):
        return False
    seen = np.zeros(shape, np.bool_)
    for _, where in parts:
        seen[_box(shape, where)] = True
    return bool(seen.all())


def _box(shape: tuple[int, ...], where: Where) -> Any:
    return np.ix_(*(where[d] if d in where else np.arange(n) for d, n in enumerate(shape)))
