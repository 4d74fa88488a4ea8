"""From a portable Network to an engine in memory: lowering, planning, and making the stored weights by their
recipes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ingot.backends.base import Target
from ingot.backends.cpu import CPU
from ingot.backends.program import HostCall, ProgramBuilder
from ingot.dtypes import DType
from ingot.engine import file
from ingot.engine.session import Engine
from ingot.errors import RecipeError, UserError
from ingot.ir import Network, Value
from ingot.ir.evaluation import Together, alike
from ingot.ir.recipe import Recipe, ScalesError
from ingot.ir.text import to_json
from ingot.ir.weight_format import AS_IS, COMPACT, WeightFormat, format_of
from ingot.ops.external import external_ops
from ingot.passes.calibrated import IS_QUANTISED, Plan, is_quantised, multiplied_scales, placed
from ingot.passes.pipeline import Check, lower
from ingot.passes.quantize import quantized
from ingot.passes.rewrite import Event, Log
from ingot.passes.smooth import factors
from ingot.passes.weights import recipe_of
from ingot.passes.zero_points import stored_zeros
from ingot.version import __version__

Array = np.ndarray[Any, Any]

PRODUCER = f"ingot {__version__}"
DEFAULT = CPU  # what an engine is built for
FILE = "file."  # before the name of a file that an engine carries


@dataclass(frozen=True)
class Compiled:
    """A lowered network and its program; `stored` are the tensors that it reads, parameters and constants, and those
    that other targets need beside them."""

    target: Target
    network: Network
    program: dict[str, Any]
    stored: dict[str, Value]
    host_calls: list[HostCall]
    log: Log


def compile_network(
    network: Network, target: Target = DEFAULT, *, weights: WeightFormat = AS_IS, plan: Plan | None = None,
    ready: Network | None = None, dump: Callable[[str, str], None] | None = None, check: Check | None = None,
) -> Compiled:  # fmt: skip
    """The network as a program for a target, its weights in that format or its layers by a plan. ready: the network
    `prepared` for plans, where that is there. Raises NetworkError for what cannot be expressed."""
    log: Log = []
    made = quantized(network, weights, log) if plan is None else placed(network, plan, ready)
    lowered = lower(made, target, log=log, dump=dump, check=check)
    builder = ProgramBuilder(lowered, target)
    program = builder.build()
    scales = multiplied_scales(made, builder.weights.values())
    beside = (*stored_zeros(made), *factors(network), *scales)
    kept = {v.name: v for v in beside}
    return Compiled(target, lowered, program, {**kept, **builder.weights}, builder.host_calls, log)


def decisions(network: Network, config: Mapping[str, Any]) -> Log:
    """Why layers of an engine with this config stay float, where it was calibrated; what its weights became, where they
    are stored in a format; and what the passes rewrote of the network as it is computed, and what not."""
    plan = Plan.of(config)
    floats = [choice for choice in plan.layers if choice.scale is None] if plan is not None else []
    stay = [Event("int8", choice.name, choice.op, f"stays float: {choice.why}") for choice in floats]
    return [*stay, *compile_network(network, weights=format_of(config), plan=plan).log]


def _is_compact(parameter: Value) -> bool:
    """Whether it is stored as a format says; panels of int4 are bytes, and their recipe says what is in them."""
    made = {dict(step.args).get("dtype") for step in recipe_of(parameter).steps}
    return parameter.dtype in COMPACT or any(dtype.name in made for dtype in COMPACT)


def check_format(format: WeightFormat, compiled: Compiled, network: Network) -> None:
    """Raises UserError when no weight of a network is stored in the format."""
    if not any(_is_compact(v) for v in compiled.stored.values() if v.kind == "parameter"):
        whys = "; ".join(event.verdict for event in compiled.log if event.rule == "weights")
        if not whys and is_quantised(network):
            raise UserError(f"no weight of this network can be stored as {format.word}: the network {IS_QUANTISED}")
        calibrated = ", or calibrate: ingot.quantize(source, data=…) with samples of its inputs"
        raise UserError(
            f"no weight of this network can be stored as {format.word} ({whys[:300] or 'it has no matrix'}): "
            f"leave weights out{calibrated if format.word == 'int8' else ''}"
        )


class Borrowed(Mapping[str, Array]):
    """Arrays of somebody who may change them later: what an engine takes over of them as they are, it copies."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self.arrays = arrays

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)


class Beside(Mapping[str, Array]):
    """Weights, and a few more beside them."""

    def __init__(self, weights: Mapping[str, Array], more: Mapping[str, Array]) -> None:
        self._weights, self._more = weights, more

    def __getitem__(self, name: str) -> Array:
        return self._more[name] if name in self._more else self._weights[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._weights
        yield from self._more

    def __len__(self) -> int:
        return len(self._weights) + len(self._more)


class _Lent(Borrowed):
    """Borrowed arrays, and which of them were asked for."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        super().__init__(arrays)
        self.seen: list[Array] = []

    def __getitem__(self, name: str) -> Array:
        self.seen.append(self.arrays[name])
        return self.seen[-1]


class Owned(Together):
    """The same, in memory that no borrower's array shares."""

    def __init__(self, recipes: Sequence[Recipe], weights: Mapping[str, Array]) -> None:
        self._lent = _Lent(weights if isinstance(weights, Borrowed) else {})
        super().__init__(recipes, self._lent if isinstance(weights, Borrowed) else weights)

    def evaluate(self, recipe: Recipe) -> Array:
        array = super().evaluate(recipe)
        return array.copy() if any(np.may_share_memory(array, one) for one in self._lent.seen) else array


def make_tensors(
    stored: Mapping[str, Value], weights: Mapping[str, Array], done: Callable[[int, int], None] | None = None,
    shared: MutableMapping[Recipe, Array] | None = None,
) -> dict[str, Array]:  # fmt: skip
    """The stored tensors by name, in the program's order. Few sources are held at a time, whatever the model's size.

    shared: arrays that were made of the same weights. Those of equal recipes are taken from it, and new ones added.

    Raises RecipeError when a source has no value or the wrong shape, ScalesError with all the sources of scales that
    float16 does not hold.
    """
    faults: list[ScalesError] = []
    tensors = {n: np.asarray(v.array, order="C") for n, v in stored.items() if v.kind == "constant"}
    recipes = {name: recipe_of(value) for name, value in stored.items() if name not in tensors}

    def made(names: Sequence[str]) -> dict[str, Array]:
        found: dict[str, Array] = {}
        there = {} if shared is None else {recipes[name]: shared.get(recipes[name]) for name in names}
        known = {recipe: array for recipe, array in there.items() if array is not None}  # held: `shared` may lose them
        several = Owned([recipes[name] for name in names if recipes[name] not in known], weights)
        for name in names:
            recipe = recipes[name]
            try:
                array = known[recipe] if recipe in known else several.evaluate(recipe)
            except ScalesError as e:
                faults.append(e)
                continue
            if shared is not None:
                shared[recipe] = array
            found[name] = _checked(name, stored[name], array)
        return found

    count, groups = len(tensors), alike(recipes.items())
    with ThreadPoolExecutor(min(4, len(os.sched_getaffinity(0)))) as pool:
        for names, found in zip(groups, pool.map(made, groups), strict=True):
            tensors |= found
            count += len(names)
            if done:
                done(count, len(stored))
    if faults:
        raise ScalesError(str(faults[0]), frozenset().union(*(e.sources for e in faults)))
    return {name: tensors[name] for name in stored}


def _checked(name: str, value: Value, array: Array) -> Array:
    kind: DType = value.dtype
    if array.shape != value.shape or array.dtype != kind.numpy:
        found = f"{array.dtype}{list(array.shape)}"
        raise RecipeError(
            f"tensor {name} should be {value.spec} and its recipe gives {found}: check the sources' shapes"
        )
    return array


def header_of(
    kind: str, config: Mapping[str, Any], network: Network, compiled: Compiled, files: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The engine's own JSON, as yet without digests: those are made when the engine is saved."""
    recipes = {n: None if v.kind == "constant" else recipe_of(v).json() for n, v in compiled.stored.items()}
    names = dict(files or {})
    recipes |= dict.fromkeys(names.values())
    own = [dict(cls.declaration) for cls in external_ops(network).values()]
    return {
        **({"external_ops": own} if own else {}),
        "format": file.FORMAT,
        "producer": PRODUCER,
        "kind": kind,
        "config": dict(config),
        "networks": {"main": to_json(network)},
        "weights": {name: {"recipe": recipe, "hash": []} for name, recipe in recipes.items()},
        "programs": {compiled.target.name: {"entries": {"main": compiled.program}}},
        "files": names,
    }


def engine_of(
    network: Network, compiled: Compiled, tensors: dict[str, Array], config: Mapping[str, Any], kind: str,
    files: Mapping[str, bytes], program: dict[str, Any],
) -> Engine:  # fmt: skip
    """The engine of a program that these tensors are for: that of `compiled`, or one with other parameters."""
    names = {name: FILE + name for name in files}
    header = header_of(kind, config, network, replace(compiled, program=program), names)
    carried = {names[name]: np.frombuffer(data, np.uint8) for name, data in files.items()}
    return Engine.from_memory(header, tensors | carried, external_ops(network))
