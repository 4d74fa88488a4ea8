"""Branches and bodies are lowered as the network around them is, with the stored weights that they read.

A weight comes into a body as an operand. While the body is lowered it stands there as a parameter, so that it gets the
layout in which kernels read it. Afterwards the body reads what was made of it as an operand again, and that is a
parameter of the network around it. So a weight that several bodies read, or the network too, is stored once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from ingot.ir import Network, Node, Op, Value
from ingot.ir.recipe import Recipe
from ingot.ops.control import CONTROL, Cond, Scan, WhileLoop, bodies, body_operands
from ingot.passes.clone import clone
from ingot.passes.pipeline import Lowers, lower
from ingot.passes.rewrite import Log, detach, note
from ingot.passes.weights import FIXED, recipe_of, stored


def lower_bodies(target: Lowers) -> Callable[[Network, Log], None]:
    """Lowers what ops of control flow hold. One that holds a node without a kernel stays as it is."""

    def run(network: Network, log: Log) -> None:
        dead: list[Node] = []
        for node in [n for n in network.nodes if isinstance(n.op, CONTROL)]:
            made = {name: lower(body, target, log=log) for name, body in opened(node).items()}
            if why := _refusal(made.values(), target):
                note(log, "bodies", node, f"is left to the host: {why}")
                continue
            dead.extend(closed(network, node, made))
        network.remove(dead)
        network.remove_dead()

    return run


def opened(node: Node) -> dict[str, Network]:
    """Copies of the networks that a node holds, by attribute. Stored operands are parameters and constants there."""
    fixed = stored_operands(node)
    return {name: _opened(node, name, fixed) for name in bodies(node.op)}


def closed(network: Network, node: Node, made: dict[str, Network]) -> tuple[Node, ...]:
    """Puts a node with these networks in the place of one whose `opened` networks they were made of. Their parameters
    become operands. What is dead then is given back.
    """
    with network.insert_before(node):
        results = _emit(network, node, stored_operands(node), made)
    for old, new in zip(node.outputs, results, strict=True):
        network.replace(old, new)
    return detach(network, node)


def unchanged(op: Op, operands: int) -> list[bool]:
    """Of every operand that an op's bodies take, whether it is the same in all rounds."""
    if isinstance(op, WhileLoop):
        results = list(op.body.outputs.values())
        return [results[i] is value for i, value in enumerate(op.body.inputs)]
    changing = op.carried + op.scanned if isinstance(op, Scan) else 0
    return [i >= changing for i in range(operands)]


def refusal(op: Op, target: Lowers) -> str:
    """Why an op of control flow, whose bodies are lowered, cannot run on the target; or nothing."""
    return _refusal(bodies(op).values(), target)


def _refusal(networks: Any, target: Lowers) -> str:
    for node in (node for network in networks for node in network.nodes):
        held = isinstance(node.op, CONTROL)
        why = refusal(node.op, target) if held else "" if node.op.is_view else target.refuses(node)
        if why:
            return why if held else f"{node.describe()}: {why}"
    return ""


def stored_operands(node: Node) -> list[bool]:
    """Which of the operands that the bodies take are stored weights or constants there."""
    operands = body_operands(node.op, node.inputs)
    return [one and v.kind in FIXED for one, v in zip(read_alike(node), operands, strict=True)]


def read_alike(node: Node) -> list[bool]:
    """Which of the operands that the bodies take every round reads as they are."""
    operands = body_operands(node.op, node.inputs)
    same = unchanged(node.op, len(operands))
    specs = [[body.inputs[i].spec for body in bodies(node.op).values()] for i in range(len(operands))]
    return [one and all(spec == v.spec for spec in inner) for one, v, inner in zip(same, operands, specs, strict=True)]


def _opened(node: Node, name: str, fixed: Sequence[bool]) -> Network:
    """One body, with the fixed operands among its parameters and constants."""
    body = clone(getattr(node.op, name))
    inputs, body.inputs = body.inputs, []
    for value, operand, is_fixed in zip(inputs, body_operands(node.op, node.inputs), fixed, strict=True):
        if not is_fixed:
            body.inputs.append(value)
        elif operand.kind == "constant":
            value.kind, value.array = "constant", operand.array
            body.constants.append(value)
        else:
            value.kind, value.recipe = "parameter", recipe_of(operand)
            body.parameters.append(value)
            _rename(body, value, operand.name)
    if isinstance(node.op, WhileLoop) and name == "body":  # what all rounds read is no result
        results = list(body.outputs.items())
        body.outputs = dict(item for i, item in enumerate(results) if i >= len(fixed) or not fixed[i])
    return body


def _rename(network: Network, value: Value, name: str) -> None:
    if name not in network.values:
        del network.values[value.name]
        value.name = name
        network.values[name] = value


def _emit(network: Network, node: Node, fixed: Sequence[bool], made: dict[str, Network]) -> list[Value]:
    """The node with lowered bodies. What these made of weights become operands behind all others."""
    weights: dict[Recipe, Value] = {}
    for body in made.values():
        for value in body.parameters:
            recipe = recipe_of(value)
            weights.setdefault(recipe, stored(network, recipe, value.spec, value.name))
    for name, body in made.items():
        read = _as_inputs(body, weights)
        if isinstance(node.op, WhileLoop) and name == "body":
            outputs, changing = list(body.outputs.items()), fixed.count(False)
            passed = [(f"weight{i}", value) for i, value in enumerate(read)]
            body.outputs = dict([*outputs[:changing], *passed, *outputs[changing:]])
    operands = body_operands(node.op, node.inputs)
    left = [v for v, is_fixed in zip(operands, fixed, strict=True) if not is_fixed]
    first = node.inputs[:1] if isinstance(node.op, Cond) else ()
    op = dataclasses.replace(node.op, **made)
    found = network.emit(op, (*first, *left, *weights.values()))
    results = list(found if isinstance(found, tuple) else (found,))
    if not isinstance(node.op, WhileLoop):
        return results
    carried, kept = iter(results[: len(left)]), results[len(left) + len(weights) :]
    return [*(v if is_fixed else next(carried) for v, is_fixed in zip(operands, fixed, strict=True)), *kept]


def _as_inputs(body: Network, weights: dict[Recipe, Value]) -> list[Value]:
    """The body's inputs that are these weights, behind its others; it has no parameters any more."""
    own: dict[Recipe, Value] = {}
    for given in body.parameters:
        if (first := own.setdefault(recipe_of(given), given)) is not given:  # a weight that is given twice
            body.replace(given, first)
            del body.values[given.name]
    body.parameters = []
    found = []
    for i, (recipe, weight) in enumerate(weights.items()):
        value = own.get(recipe)
        if value is None:
            name = f"unused{i}"
            while name in body.values:
                name += "_"
            value = body.input(name, weight.spec)
        else:
            value.kind, value.recipe = "input", None
            body.inputs.append(value)
        found.append(value)
    return found
