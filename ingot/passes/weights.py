"""Weights made of weights: a pass that wants a parameter in another form adds steps to its recipe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ingot.ir import Network, Node, Spec, Value
from ingot.ir.recipe import Recipe, combine, evaluate, source
from ingot.ir.spec import axis_of
from ingot.ops.indexing import Embedding, Take
from ingot.passes.rewrite import Log, detach, note

MAX_JOINED = 400  # characters of names that are joined to one: names in a file are limited


def recipe_of(value: Value) -> Recipe:
    """A parameter's recipe: its own, or the source of its name in its dtype."""
    return value.recipe or source(value.name).then("cast", dtype=value.dtype.name)


def unrounded(value: Value) -> Recipe:
    """A parameter in float32, as it was before it was rounded to its dtype."""
    recipe = recipe_of(value)
    last = recipe.steps[-1] if recipe.steps else None
    if last is not None and last.name == "cast" and last.inputs == (len(recipe.sources) + len(recipe.steps) - 2,):
        recipe = Recipe(recipe.sources, recipe.steps[:-1])
    return recipe.then("cast", dtype="float32")


def derive(network: Network, step: str, values: Sequence[Value], name: str, **args: Any) -> Value:
    """The parameter that one more recipe step makes of parameters; the same one when it was made before. Of constants
    it makes a constant."""
    if all(v.kind == "constant" for v in values):
        made = combine(step, [source(str(i)) for i in range(len(values))], **args)
        return network.constant(evaluate(made, {str(i): v.array for i, v in enumerate(values)}))
    recipe = combine(step, [recipe_of(v) for v in values], **args)
    dtype, shape = recipe.steps[-1].step.infer([(v.dtype, v.shape) for v in values], **args)
    return stored(network, recipe, Spec(dtype, shape), name)


def stored(network: Network, recipe: Recipe, spec: Spec, name: str) -> Value:
    """The parameter that a recipe makes; the same one when it was made before."""
    unique, count = name, 0
    while (known := network.values.get(unique)) is not None:
        if known.kind == "parameter" and known.recipe == recipe:
            return known
        count += 1
        unique = f"{name}.{count}"
    return network.parameter(unique, spec, recipe)


def sizes(weight: Value) -> tuple[Any, ...]:
    """The sizes of a parameter, which are always known."""
    return weight.spec.evaluate({})  # type: ignore[no-any-return]


MAX_LOOKED_UP = 1 << 14  # rows that a recipe lists: its text is part of the file


def lookups(network: Network, log: Log) -> None:
    """Rows of a table by indices that are known (positions, token types) become a parameter of their own."""
    dead: list[Node] = []
    for node in list(network.nodes):
        if not isinstance(node.op, Embedding | Take):
            continue
        index, table = node.inputs if isinstance(node.op, Embedding) else node.inputs[::-1]
        if table.kind != "parameter" or index.kind != "constant":
            continue
        if why := _not_looked_up(node, table, index.array):
            note(log, "lookups", node, why)
            continue
        axis = 0 if isinstance(node.op, Embedding) else axis_of(node.op.axis, len(table.shape))
        rows = derive(network, "take", [table], f"{table.name}.rows", axis=axis,
                      indices=tuple(index.array.reshape(-1).tolist()))  # fmt: skip
        if rows.shape != node.output.shape:
            rows = derive(network, "reshape", [rows], f"{rows.name}.reshaped", shape=sizes(node.output))
        network.replace(node.output, rows)
        dead.extend(detach(network, node))
    network.remove(dict.fromkeys(dead))


def _not_looked_up(node: Node, table: Value, index: np.ndarray[Any, Any]) -> str:
    """Why a lookup is left to the run, or nothing."""
    axis = 0 if isinstance(node.op, Embedding) else axis_of(node.op.axis, len(table.shape))  # type: ignore[attr-defined]
    if index.size > MAX_LOOKED_UP or not index.size:
        return f"it has {index.size} indices"
    if index.min() < 0 or index.max() >= sizes(table)[axis]:
        return "an index is outside of the table, which the run will say or take for zeros"
    alone = len(table.uses) == 1 or sum(_read(user, table) for user in table.uses) <= 1
    return "" if alone else "the table is read elsewhere too"


def _read(node: Node, table: Value) -> float:
    """Which part of a table is stored again for a node that reads rows of it by known indices; of others all."""
    op: Any = node.op
    if not isinstance(op, Embedding | Take):
        return math.inf
    index, source = node.inputs if isinstance(op, Embedding) else node.inputs[::-1]
    axis = 0 if isinstance(op, Embedding) else axis_of(op.axis, len(source.shape))
    known = source is table and index.kind == "constant"
    return index.array.size / max(sizes(table)[axis], 1) if known else math.inf


def joined_name(names: Sequence[str]) -> str:
    """`a.q.weight` and `a.k.weight` together: `a.q_k.weight`."""
    if sum(map(len, names)) > MAX_JOINED:
        return f"{names[0]}_and_{len(names) - 1}_more"
    parts = [name.split(".") for name in names]
    if len({len(p) for p in parts}) != 1:
        return "_".join(names)
    return ".".join(same[0] if len(set(same)) == 1 else "_".join(same) for same in zip(*parts, strict=True))
