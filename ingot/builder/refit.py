"""`Engine.refit`: new values of parameters in an engine that is there, through the recipes of its weights.

Only the weights that are made of given parameters are made again; everything else is shared with the old engine. The
result is what a build from a source with these values would give, bit for bit. A weight that was made of several
parameters takes those that are not given from what is stored. Where it does not show them, they have to be given too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

import numpy as np

from ingot import dtypes, models
from ingot.backends.stored import Shown
from ingot.builder.compile import Borrowed
from ingot.builder.layers import network_of
from ingot.builder.stored import Remake, remade, remake, shown_by
from ingot.engine.session import Engine, as_array
from ingot.errors import IngotError, InputError, RecipeError
from ingot.ir import Network
from ingot.ir.recipe import ADAPTER, Known
from ingot.models.weights import Naming, prepared

Array = np.ndarray[Any, Any]

MAX_LISTED = 40
MAX_GUESSED = 8  # unknown names for which a near one is looked up


class _Given(NamedTuple):
    """An array of the caller's, and the name that it had there."""

    label: str
    array: Array


def refit(engine: Engine, parameters: Mapping[str, Any]) -> Engine:
    """The engine with new values of some parameters; see `Engine.refit`."""
    if not isinstance(parameters, Mapping):
        raise InputError(f"refit takes a dict of arrays by name, not a {type(parameters).__name__}")
    network = network_of(engine)
    shown = shown_by(engine, network)
    given = _Reader(engine, network, shown).read(parameters)
    remakes = _concerned(shown, given)
    if any(one.derivation.lacking for one in remakes):
        raise RecipeError(_together(shown, given))
    return remade(engine, shown, remakes, _Sources(given, engine, shown.parameters))


def _concerned(shown: Shown, given: Collection[str]) -> list[Remake]:
    """The tensors that are made again when these sources are new."""
    names = set(given)
    return [remake(shown, n, r, given) for n, r in shown.recipes.items() if not names.isdisjoint(r.sources)]


class _Sources(Borrowed):
    """Given arrays as the recipes take them, rounded as in a build: a language model's when they are read, a network's
    of float64 to float32, which is the widest that its recipes know.
    """

    def __init__(self, given: Mapping[str, _Given], engine: Engine, known: Mapping[str, Known]) -> None:
        super().__init__({name: one.array for name, one in given.items()})
        self._known, self._is_network = known, engine.kind == "network"
        rows = engine.config.get("unit_rows")
        self._unit_rows = rows if isinstance(rows, list) else []

    def __getitem__(self, name: str) -> Array:
        array = self.arrays[name]
        if name not in self._known:
            return array
        dtype = self._known[name][0]
        if self._is_network:
            if dtypes.get(array.dtype) is not dtypes.float64 or dtype is dtypes.float64:
                return array
            dtype = dtypes.float32
        return prepared(array, dtype, name, name in self._unit_rows)


# --------------------------------------------------------------------------------------------------- what was given


class _Reader:
    """What a caller may give for an engine: its parameters, and the tensors of adapters that were merged into it."""

    def __init__(self, engine: Engine, network: Network, shown: Shown) -> None:
        self.parameters = shown.parameters
        self.constants = {v.name: v.array for v in network.constants}
        adapters = (name for recipe in shown.recipes.values() for name in recipe.sources)
        self.adapters = {name for name in adapters if name.startswith(ADAPTER)}
        self.aliases, self.naming = _aliases(engine, network)

    def read(self, given: Mapping[str, Any]) -> dict[str, _Given]:
        """The arrays by parameter. Raises InputError with all that is wrong."""
        found: dict[str, _Given] = {}
        faults: list[str] = []
        unknown: list[str] = []
        for label in given:
            name = self._owner(label)
            if name is None:
                continue
            try:
                if name in self.parameters or name in self.adapters:
                    one = _Given(label, as_array(given[label], label, "parameter"))
                    fault = self._misfit(name, one.array) or _differs(found.get(name), one)
                    found.setdefault(name, one)
                elif name in self.constants:
                    fault = self._changed(name, as_array(given[label], label, "parameter"))
                else:
                    unknown.append(str(label))
                    continue
            except IngotError as e:
                fault = str(e)
            if fault:
                faults.append(fault if label in fault else f"{label}: {fault}")
        if unknown or faults:
            raise InputError(self._message(unknown, faults))
        return found

    def _owner(self, label: Any) -> str | None:
        """The parameter that a name of the source's state dict means; None where the network reads no such tensor."""
        if not isinstance(label, str):
            return ""
        if label in self.parameters or label in self.adapters:
            return label
        if label in self.aliases:
            return self.aliases[label]
        return None if self.naming is not None and self.naming.is_ignored(label) else label

    def _misfit(self, name: str, array: Array) -> str:
        """Why an array cannot be this parameter, or nothing."""
        dtype = dtypes.get(array.dtype)
        known = self.parameters.get(name)
        if known is None:  # an adapter's, whose shape its recipe knows
            return "" if dtype in dtypes.FLOATS else f"dtype {dtype.name}, and an adapter's tensors are floats"
        return misfit(array, *known)

    def _changed(self, name: str, array: Array) -> str:
        """Why an integer buffer that became part of the network cannot have this value, or nothing."""
        old = self.constants[name]
        if array.dtype == old.dtype and np.array_equal(array, old):
            return ""
        return "its numbers are a part of the network, which was simplified by them: build the engine again"

    def _message(self, unknown: list[str], faults: list[str]) -> str:
        lines = ["the given parameters do not fit this engine; nothing was changed:"]
        for i, label in enumerate(unknown[:MAX_LISTED]):
            near = get_close_matches(label, self.parameters, 1, 0.8) if i < MAX_GUESSED and len(label) < 200 else ()
            lines.append(f"{label[:200]!r} is no parameter of it" + (f"; is it {near[0]}?" if near else ""))
        lines += faults[:MAX_LISTED]
        if more := len(unknown[MAX_LISTED:]) + len(faults[MAX_LISTED:]):
            lines.append(f"… and {more:,} more")
        text = "\n  ".join(lines)
        return f"{text}\nIt has {_listing([*self.parameters, *sorted(self.adapters)])}" if unknown else text


def misfit(array: Array, wanted: dtypes.DType, shape: tuple[int, ...], whose: str = "the engine's") -> str:
    """Why an array cannot be a parameter of this dtype and shape, or nothing. Floats are converted, as in a build;
    nothing else is. Raises DTypeError for an array of what is no element type."""
    dtype = dtypes.get(array.dtype)
    if array.shape != shape:
        return f"shape {list(array.shape)}, and {whose} is {list(shape)}"
    if wanted in dtypes.FLOATS and dtype not in dtypes.FLOATS:
        return f"dtype {dtype.name}, and floats are needed ({', '.join(d.name for d in dtypes.FLOATS)})"
    if wanted not in dtypes.FLOATS and dtype is not wanted:  # a float of 8 bits has no infinity: too large is NaN
        return f"dtype {dtype.name}, and {whose} is {wanted.name}"
    return ""


def _differs(earlier: _Given | None, one: _Given) -> str:
    if earlier is None or (earlier.array.dtype == one.array.dtype and _equal(earlier.array, one.array)):
        return ""
    return f"differs from {earlier.label}, but both are one tied parameter"


def _equal(a: Array, b: Array) -> bool:
    """Bit by bit, for NaN is a legal weight."""
    return a is b or np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


def _aliases(engine: Engine, network: Network) -> tuple[dict[str, str | None], Naming | None]:
    """What the source's state dict calls parameters beside their names, and how a model's family names them."""
    config = engine.config
    if engine.kind == "network":
        found = config.get("aliases")
        pairs = found.items() if isinstance(found, dict) else ()
        return {name: of for name, of in pairs if of is None or isinstance(of, str)}, None
    family = models.FAMILIES.get(str(config.get("architecture")))
    if family is None:
        return {}, None
    naming: Naming = family.NAMING
    return {**naming.readers([v.name for v in network.parameters], "logits" in network.outputs)}, naming


# -------------------------------------------------------------------------------------------- what has to come together


def _together(shown: Shown, given: Collection[str]) -> str:
    """Which parameters are stored as one with given ones, as far as that goes: each may be part of other weights."""
    asked = set(given)
    lines: dict[str, str] = {}
    while True:
        remakes = [one for one in _concerned(shown, asked) if one.derivation.lacking]
        if not remakes:
            break
        lines |= {one.tensor: _why(one, [n for n in one.recipe.sources if n in asked]) for one in remakes}
        asked |= {name for one in remakes for name in one.derivation.lacking}
    listed = list(lines.values())[:MAX_LISTED]
    if more := len(lines) - len(listed):
        listed.append(f"… and {more:,} more")
    head = "some parameters are stored as one with others, and must be given together; nothing was changed:"
    every = dict.fromkeys(name for recipe in shown.recipes.values() for name in recipe.sources)
    needed = _listing([name for name in every if name in asked and name not in given])
    return "\n  ".join([head, *listed]) + f"\nGive also {needed}; or build the engine again from its source"


def _why(one: Remake, given: Iterable[str]) -> str:
    lacking = one.derivation.lacking
    steps = " and ".join(dict.fromkeys(step or "cast" for step in lacking.values()))
    return (
        f"{one.tensor} is made of {_listing(list(given), 8)} and {_listing(list(lacking), 8)} by the step {steps}, "
        "which cannot be undone"
    )


def _listing(names: list[str], limit: int = MAX_LISTED) -> str:
    rest = f", … and {len(names) - limit:,} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest
