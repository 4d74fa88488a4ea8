"""How a stored weight is made from the parameters of its network.

A recipe is data: the names of its sources and a list of pure, named, versioned steps in single-assignment form. Values
are numbered, the sources first and then one per step; the last value is the stored tensor. In JSON:

    {"sources": ["mlp.gate_proj.weight", "mlp.up_proj.weight"],
     "steps": [["cast", 1, {"dtype": "bfloat16", "in": [0]}], ["cast", 1, {"dtype": "bfloat16", "in": [1]}],
               ["pack_panels", 1, {"in": [2, 3]}]]}

What evaluates them (ir/evaluation.py) therefore serves building, refit, adapter merging and re-specialising. Steps age
as ops do (ir/versions.py): one whose arguments or their meaning change gets a new version, which can do all that the
old one did, bit for bit. What a file says of the old one is read as the new one. Layout steps (`transpose`, `reshape`,
`pad`, the panels of a target) have an exact inverse, so that the portable form can be recovered from a stored tensor
bit for bit. The steps of all targets are in ir/steps/; a target's own stand beside its lowered ops, as ops/panels.py
does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from reprlib import repr as brief
from typing import Any

import numpy as np

from ingot.dtypes import DType
from ingot.errors import RecipeError
from ingot.ir import versions

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
Known = tuple[DType, Shape]  # what is known of a value before it exists

ADAPTER = "lora."  # begins the names of sources that are an adapter's: `lora.<adapter>.<module>.A`
MAX_STEPS = 1 << 12  # that a recipe in a file may have: several for each expert of a layer
MAX_CASTS = 4  # of a parameter, one after the other, that are followed; ingot writes two
MAX_RANK = 64  # NumPy's
MAX_BYTES = 1 << 62  # of one value: what follows is counted in 64 bits


class ScalesError(RecipeError):
    """float16 does not hold the scales of weights; `sources` are what they were to be made of."""

    def __init__(self, message: str, sources: Collection[str] = ()) -> None:
        super().__init__(message)
        self.sources = frozenset(sources)


def require(ok: bool, why: str) -> None:
    if not ok:
        raise RecipeError(why)


def known_as(sources: Mapping[str, Any], name: str) -> Any:
    """What is known of a source. Raises RecipeError for one without a value."""
    try:
        return sources[name]
    except KeyError:
        raise RecipeError(f"parameter {name!r} has no value, and a recipe needs it") from None


@dataclass(frozen=True)
class Step:
    """One kind of step: `infer(known, **args)` gives dtype and shape, `apply(arrays, **args)` the array.

    `inverse(array, known, **args)` gives back the operands, whose dtypes and shapes are `known`; None: the step loses
    bits. `fields` maps each argument to the check that its JSON value must pass. `defaults`: of arguments that older
    files lack. `upgrade(version, args)` gives the arguments of this version for those of an older one, as JSON has
    them.
    """

    name: str
    version: int
    infer: Callable[..., Known]
    apply: Callable[..., Array]
    fields: Mapping[str, Callable[[Any], bool]]
    inverse: Callable[..., list[Array]] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    upgrade: versions.Upgrade = lambda version, args: args


STEPS: dict[str, Step] = {}


def register(step: Step) -> None:
    """Makes a step one that recipes may name."""
    STEPS[step.name] = step


def step_of(name: str) -> Step:
    """The step of that name. Raises RecipeError when there is none."""
    if name not in STEPS:
        raise RecipeError(f"there is no recipe step {brief(name)}; the steps are {', '.join(sorted(STEPS))}")
    return STEPS[name]


@dataclass(frozen=True)
class StepCall:
    """A step of one recipe: operands by number, arguments as sorted pairs, so that equal calls are equal."""

    name: str
    inputs: tuple[int, ...]
    args: tuple[tuple[str, Any], ...] = ()

    @property
    def step(self) -> Step:
        return step_of(self.name)


@dataclass(frozen=True)
class Recipe:
    """Sources (parameter names) and steps; without steps it is the one source as it is."""

    sources: tuple[str, ...]
    steps: tuple[StepCall, ...] = ()

    def then(self, name: str, /, **args: Any) -> Recipe:
        """This recipe and one more step on its result."""
        return combine(name, [self], **args)

    def infer(self, sources: Mapping[str, Known]) -> Known:
        """dtype and shape of the result. Raises RecipeError for operands that a step refuses."""
        values = self.infer_all(sources)
        return values[-1]

    def infer_all(self, sources: Mapping[str, Known]) -> list[Known]:
        """The same of every value, the sources first."""
        # No network lists an adapter's tensors: None, where nobody says what they are.
        values: list[Any] = [sources.get(n) if n.startswith(ADAPTER) else known_as(sources, n) for n in self.sources]
        for i, call in enumerate(self.steps):
            try:
                operands = [values[j] for j in call.inputs]
                require(None not in operands or call.name == "lora_merge", "an adapter's tensor is no operand")
                values.append(_possible(call.step.infer(operands, **dict(call.args))))
            except RecipeError as e:
                raise self.fault(i, e) from None
        return values

    def fault(self, number: int, why: RecipeError) -> RecipeError:
        """What a step refuses, with its place."""
        name, sources = self.steps[number].name, ", ".join(self.sources)
        message = f"step {number} ({name}) of the recipe from {sources}: {why}"
        return ScalesError(message, self.sources) if isinstance(why, ScalesError) else RecipeError(message)

    def json(self) -> dict[str, Any]:
        """Plain data; steps with the versions of this release."""
        args = [{**{k: _to_json(v) for k, v in c.args}, "in": list(c.inputs)} for c in self.steps]
        steps = [[c.name, c.step.version, a] for c, a in zip(self.steps, args, strict=True)]
        return {"sources": list(self.sources), "steps": steps}

    @classmethod
    def from_json(cls, obj: Any) -> Recipe:
        """Of a file, whose steps may be of older versions.

        Strict: unknown keys, steps, arguments and wrong types raise RecipeError, newer versions EngineVersionError.
        """
        require(
            isinstance(obj, dict) and set(obj) == {"sources", "steps"},
            "a recipe has exactly the keys sources and steps",
        )
        sources, steps = obj["sources"], obj["steps"]
        require(
            isinstance(sources, list) and all(isinstance(s, str) for s in sources), "sources must be a list of names"
        )
        require(isinstance(steps, list) and len(steps) <= MAX_STEPS, f"steps must be a list of at most {MAX_STEPS:,}")
        calls = [_call_from_json(step, len(sources) + i) for i, step in enumerate(steps)]
        require(bool(calls) or len(sources) == 1, "a recipe without steps has exactly one source")
        return cls(tuple(sources), tuple(calls))


def _call_from_json(obj: Any, values: int) -> StepCall:
    require(isinstance(obj, list) and len(obj) == 3, "a step is a list of name, version and arguments")
    name, version, args = obj
    require(isinstance(name, str) and isinstance(args, dict), "a step is [name, version, {arguments}]")
    step = step_of(name)
    inputs = args.get("in")
    require(
        isinstance(inputs, list) and bool(inputs) and all(type(i) is int and 0 <= i < values for i in inputs),
        f"step {name}: 'in' must list numbers of earlier values (below {values}), not {brief(inputs)}",
    )
    given = {k: v for k, v in args.items() if k != "in"}
    found = versions.current(
        f"step {name}",
        version,
        given,
        step.version,
        step.fields,
        step.defaults,
        step.upgrade,
        RecipeError,
        "arguments",
    )
    return _call(step, tuple(inputs), {k: _from_json(v) for k, v in found.items()})


def _call(step: Step, inputs: tuple[int, ...], given: Mapping[str, Any]) -> StepCall:
    """A call with checked arguments, defaults in the place of those that are not given."""
    args = {**step.defaults, **given}
    require(
        set(args) == set(step.fields), f"step {step.name} takes the arguments {sorted(step.fields)}, not {sorted(args)}"
    )
    for key, valid in step.fields.items():
        require(valid(args[key]), f"step {step.name}: {key} = {brief(args[key])} is not a legal value")
    return StepCall(step.name, inputs, tuple(sorted(args.items())))


def _to_json(value: Any) -> Any:
    return [_to_json(v) for v in value] if isinstance(value, tuple) else value


def _from_json(value: Any) -> Any:
    return tuple(_from_json(v) for v in value) if isinstance(value, list) else value


def source(name: str) -> Recipe:
    """The parameter itself."""
    return Recipe((name,))


def combine(step_name: str, recipes: Sequence[Recipe], /, **args: Any) -> Recipe:
    """One step on the results of several recipes, merged into one: equal sources and equal steps are kept once."""
    sources = tuple(dict.fromkeys(name for r in recipes for name in r.sources))
    steps: list[StepCall] = []
    number: dict[StepCall, int] = {}

    def add(call: StepCall) -> int:
        if call not in number:
            number[call] = len(sources) + len(steps)
            steps.append(call)
        return number[call]

    results = []
    for recipe in recipes:
        here = [sources.index(name) for name in recipe.sources]
        for call in recipe.steps:
            here.append(add(StepCall(call.name, tuple(here[i] for i in call.inputs), call.args)))
        results.append(here[-1])
    add(_call(step_of(step_name), tuple(results), args))
    return Recipe(sources, tuple(steps))


def _possible(known: Known) -> Known:
    """A value that an array can be, however large."""
    dtype, shape = known
    if len(shape) > MAX_RANK:
        raise RecipeError(f"{len(shape)} dimensions are more than an array has")
    if math.prod(shape) * dtype.numpy.itemsize > MAX_BYTES:
        raise RecipeError(f"{brief(list(shape))} is larger than any memory")
    return known


def casts_at(recipe: Recipe) -> list[tuple[str, tuple[str, ...]] | None]:
    """Which of a recipe's values are parameters as the network sees them, and with adapters merged in: the name, and
    the dtypes that it was cast to since. None for all others."""
    found: list[tuple[str, tuple[str, ...]] | None] = [
        None if name.startswith(ADAPTER) else (name, ()) for name in recipe.sources
    ]
    for call in recipe.steps:
        base = found[call.inputs[0]]
        if base is None or call.name not in ("cast", "lora_merge"):
            found.append(None)
        elif call.name == "lora_merge":
            found.append((base[0], ()))
        else:
            dtype = dict(call.args)["dtype"]
            casts = base[1] if base[1][-1:] == (dtype,) else (*base[1], dtype)
            found.append((base[0], casts) if len(casts) <= MAX_CASTS else None)
    return found
