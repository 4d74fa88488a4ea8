"""Weights made of weights: a pass that wants a parameter in another form adds steps to its recipe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ingot.dims import all_fixed
from ingot.ir import Network, Node, Op, Spec, Value
from ingot.ir.evaluation import evaluate
from ingot.ir.recipe import Recipe, combine, source
from ingot.ir.spec import axis_of
from ingot.ops.conversion import Dequantize
from ingot.ops.indexing import Embedding, Take
from ingot.ops.movement import Concat, Permute, Reshape, Slice
from ingot.passes.rewrite import Log, detach, note

FIXED = ("parameter", "constant")  # kinds of values that can be stored in any order
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
    return stored(network, recipe, Spec(shape, dtype), name)


def stored(network: Network, recipe: Recipe, spec: Spec, name: str) -> Value:
    """The parameter that a recipe makes; the same one when it was made before."""
    unique, count = name, 0
    while (known := network.values.get(unique)) is not None:
        if known.kind == "parameter" and known.recipe == recipe:
            return known
        count += 1
        unique = f"{name}.{count}"
    return network.parameter(unique, spec, recipe)


def stored_alike(*values: Value) -> bool:
    """Whether values are all parameters, or all constants: what one more step can be made of."""
    return len({v.kind for v in values}) == 1 and values[0].kind in FIXED


def is_uniform(value: Value, number: float) -> bool:
    """Whether a constant has this number everywhere."""
    return value.kind == "constant" and bool((value.array == number).all())


def sizes(weight: Value) -> tuple[Any, ...]:
    """The sizes of a parameter, which are always known."""
    return weight.spec.evaluate({})  # type: ignore[no-any-return]


MAX_LOOKED_UP = 1 << 14  # rows that a recipe lists: its text is part of the file


def lookups(network: Network, log: Log, kinds: tuple[type[Op], ...] = (Embedding, Take)) -> None:
    """Rows of a table by indices that are known (positions, token types) become a parameter of their own."""
    dead: list[Node] = []
    for node in list(network.nodes):
        if not isinstance(node.op, kinds):
            continue
        table, index, axis = _lookup(node)
        if table.kind != "parameter" or index.kind != "constant":
            continue
        if why := _not_looked_up(table, index.array, axis):
            note(log, "lookups", node, why)
            continue
        rows = derive(network, "take", [table], f"{table.name}.rows", axis=axis,
                      indices=tuple(index.array.reshape(-1).tolist()))  # fmt: skip
        if rows.shape != node.output.shape:
            rows = derive(network, "reshape", [rows], f"{rows.name}.reshaped", shape=sizes(node.output))
        network.replace(node.output, rows)
        dead.extend(detach(network, node))
    network.remove(dead)


def _lookup(node: Node) -> tuple[Value, Value, int]:
    """Of an embedding or take the table, the indices, and the dimension of the table that they name."""
    op: Any = node.op
    if isinstance(op, Embedding):
        index, table = node.inputs
        return table, index, 0
    table, index = node.inputs
    return table, index, axis_of(op.axis, len(table.shape))


def _not_looked_up(table: Value, index: np.ndarray[Any, Any], axis: int) -> str:
    """Why a lookup is left to the run, or nothing."""
    if index.size > MAX_LOOKED_UP or not index.size:
        return f"it has {index.size} indices"
    if index.min() < 0 or index.max() >= sizes(table)[axis]:
        return "an index is outside of the table, which the run will say or take for zeros"
    alone = len(table.uses) == 1 or sum(_read(user, table) for user in table.uses) <= 1
    return "" if alone else "the table is read elsewhere too"


def _read(node: Node, table: Value) -> float:
    """Which part of a table is stored again for a node that reads rows of it by known indices; of others all."""
    if not isinstance(node.op, Embedding | Take):
        return math.inf
    source, index, axis = _lookup(node)
    known = source is table and index.kind == "constant"
    return index.array.size / max(sizes(table)[axis], 1) if known else math.inf


def moved(network: Network, log: Log) -> None:
    """Weights that are cut, reshaped or joined become parameters of their own: the gates of a recurrent layer in
    another order, the directions of one that are stored together. Nothing is stored twice for it.
    """
    dead: list[Node] = []
    for node in list(network.nodes):
        if isinstance(node.op, _MOVES) and all(v.kind == "parameter" for v in node.inputs) and _alone(node):
            network.replace(node.output, _moved(network, node))
            dead.extend(detach(network, node))
    network.remove(dead)


_MOVES = (Slice, Reshape, Permute, Concat)


def _alone(node: Node) -> bool:
    """Whether all that is read of a node's weights are parts like this one, which together are no more than they."""
    several = [user for v in node.inputs for user in v.uses]
    cuts = [user for user in several if isinstance(user.op, Slice)]
    if not all(all_fixed((*user.op.starts, *user.output.shape)) for user in cuts):
        return False  # the first T rows of a table
    if isinstance(node.op, Slice) and any(step != 1 for step in node.op.strides):
        return False
    if isinstance(node.op, Permute):  # products take a weight turned as it is
        moves = all(isinstance(user.op, (*_MOVES, Dequantize)) for user in node.output.uses)
        return moves and len(node.inputs[0].uses) == 1
    if not isinstance(node.op, Slice):
        return all(len(v.uses) == 1 for v in node.inputs)
    weight = node.inputs[0]
    parts = sum(math.prod(sizes(user.output)) for user in weight.uses if isinstance(user.op, Slice))
    return all(isinstance(user.op, Slice) for user in weight.uses) and parts <= math.prod(sizes(weight))


def _moved(network: Network, node: Node) -> Value:
    op: Any = node.op
    first, shape = node.inputs[0], sizes(node.output)
    if isinstance(op, Concat):
        axis = axis_of(op.dim, len(shape))
        return derive(network, "concat", node.inputs, joined_name([v.name for v in node.inputs]), axis=axis)
    if isinstance(op, Slice):
        return derive(network, "slice", [first], f"{first.name}.part", starts=op.starts, sizes=shape)
    if isinstance(op, Permute):
        return derive(network, "transpose", [first], f"{first.name}.transposed", axes=op.order(len(shape)))
    return derive(network, "reshape", [first], f"{first.name}.reshaped", shape=shape)


def joined_name(names: Sequence[str]) -> str:
    """`a.q.weight` and `a.k.weight` together: `a.q_k.weight`."""
    if sum(map(len, names)) > MAX_JOINED:
        return f"{names[0]}_and_{len(names) - 1}_more"
    parts = [name.split(".") for name in names]
    if len({len(p) for p in parts}) != 1:
        return "_".join(names)
    return ".".join(same[0] if len(set(same)) == 1 else "_".join(same) for same in zip(*parts, strict=True))
