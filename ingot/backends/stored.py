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
Key = tuple[Any, ...]  # of a value: what makes it, down to parameters
Where = dict[int, Array]  # the place of a part: its indices along axes that it has not whole

KEPT = 4  # operands of inverted steps that are kept, for they are asked for one after the other


def recipes_of(header: Mapping[str, Any]) -> dict[str, Recipe]:
    """The recipes of an engine's stored tensors, by these. Raises EngineVersionError for those of a newer ingot."""
    with reading(header):
        entries = header["weights"].items()
        return {name: Recipe.from_json(e["recipe"]) for name, e in entries if e["recipe"] is not None}


@dataclass
class _Known:
    """A value of recipes: what it is, the tensor that is it, and the steps that take it: result, call, operand's
    place and the specs of all operands."""

    spec: Known
    tensor: str | None = None
    users: list[tuple[Key, StepCall, int, list[Known]]] = field(default_factory=list)


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
        self._values: dict[Key, _Known] = {}
        self._ways: dict[Key, bool] = {}
        self._forms: dict[str, dict[Key, None]] = {}  # of each parameter
        self._recent: OrderedDict[Key, list[Array]] = OrderedDict()
        for name, recipe in recipes.items():
            self._add(name, recipe)

    def _add(self, name: str, recipe: Recipe) -> None:
        specs = recipe.infer_all(self._parameters)
        array = self._tensor(name)
        if (array.dtype, array.shape) != (specs[-1][0].numpy, specs[-1][1]):
            raise RecipeError(
                f"tensor {name} is stored as {array.dtype}{list(array.shape)}, and its recipe gives "
                f"{specs[-1][0].name}{list(specs[-1][1])}"
            )
        keys = keys_of(recipe, specs)
        for number, call in enumerate(recipe.steps, len(recipe.sources)):
            taken = [specs[i] for i in call.inputs]
            for place, i in enumerate(call.inputs):
                if specs[i] is not None and keys[i] != keys[number]:  # no adapter's; nor a cast that changes nothing
                    found = self._values.setdefault(keys[i], _Known(specs[i]))
                    found.users.append((keys[number], call, place, taken))
        self._values.setdefault(keys[-1], _Known(specs[-1])).tensor = name
        for key in keys:
            if key[0] == PARAMETER and key[2]:
                self._forms.setdefault(key[1], {})[key] = None

    def key(self, recipe: Recipe) -> Key:
        """What a recipe's result is known by."""
        return keys_of(recipe, recipe.infer_all(self._parameters))[-1]

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
        if key not in self._ways:
            known = self._values.get(key)
            self._ways[key] = known is not None and (
                known.tensor is not None
                or any(call.step.inverse is not None and self.has(user) for user, call, *_ in known.users)
                or self._whole(known)
            )
        return self._ways[key]

    def value(self, key: Key) -> Array:
        """A value, as an array that is not to be written to. Raises KeyError for one that cannot be had back."""
        known = self._values[key]
        if known.tensor is not None:
            return self._tensor(known.tensor)
        for user, call, place, specs in known.users:
            if call.step.inverse is not None and self.has(user):
                return self._undone(user, call, specs)[place]
        if not self.has(key):
            raise KeyError(key)
        dtype, shape = known.spec
        out = np.empty(shape, dtype.numpy)
        for part, where in self._parts(known):
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
        left: list[tuple[Key, StepCall, Where]] = [(user, call, {}) for user, call, *_ in known.users]
        while left:
            key, call, where = left.pop()
            if call.name != "take":
                continue
            args = dict(call.args)
            axis, indices = args["axis"], np.array(args["indices"], np.int64)
            where = where | {axis: where[axis][indices] if axis in where else indices}
            if self.has(key):
                found.append((key, where))
            else:
                left += [(user, more, where) for user, more, *_ in self._values[key].users]
        return found

    def _whole(self, known: _Known) -> bool:
        """Whether parts make up a value. Parts that are there are as large as the file, and no value is larger."""
        shape, parts = known.spec[1], self._parts(known)
        counts = (prod(len(w[d]) if d in w else n for d, n in enumerate(shape)) for _, w in parts)
        if sum(counts) < prod(shape):
            return False
        seen = np.zeros(shape, np.bool_)
        for _, where in parts:
            seen[_box(shape, where)] = True
        return bool(parts) and bool(seen.all())


def _box(shape: tuple[int, ...], where: Where) -> Any:
    return np.ix_(*(where[d] if d in where else np.arange(n) for d, n in enumerate(shape)))


PARAMETER = "parameter"


def keys_of(recipe: Recipe, specs: list[Known]) -> list[Key]:
    """The key of every value of a recipe. A parameter's is its name and dtype, an adapter merged into it or not."""
    keys: list[Key] = []
    for number, spec in enumerate(specs):
        name = parameter_at(recipe, number)
        if name is not None and spec is not None:
            keys.append((PARAMETER, name, spec[0].name))
        elif number < len(recipe.sources):
            keys.append((PARAMETER, recipe.sources[number], ""))  # an adapter's
        else:
            call = recipe.steps[number - len(recipe.sources)]
            keys.append((call.name, call.args, tuple(keys[i] for i in call.inputs)))
    return keys
