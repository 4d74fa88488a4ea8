"""Batch normalisation with given statistics is one multiplication and one addition per channel. Where a convolution or
product stands before it, they are folded into its weight and bias.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ingot import dtypes
from ingot.ir import F, Network, Node, Spec, Value
from ingot.ir.recipe import Recipe, combine
from ingot.ops.binary import Add
from ingot.ops.movement import Reshape
from ingot.ops.norm import BatchNorm
from ingot.ops.product import Matmul
from ingot.ops.spatial import Conv, ConvTranspose
from ingot.passes.rewrite import Log, detach, note
from ingot.passes.weights import stored, unrounded


def batch_norm(network: Network, log: Log) -> None:
    """A batch_norm folds into the weight and bias before it, else it becomes a scale and a shift per channel.

    Both are made from the source parameters in float32 and rounded once.
    """
    dead: list[Node] = []
    for node in list(network.nodes):
        if not isinstance(node.op, BatchNorm):
            continue
        if why := _no_recipe(node):
            note(log, "batch norm", node, why)
            continue
        why = _not_folded(network, node)
        new = _scaled(network, node) if why else _folded(network, node)
        note(log, "batch norm", node, f"{why}: a scale and a shift per channel" if why else "part of the weight")
        network.replace(node.output, new)
        dead.extend(detach(network, node))
    network.remove(dead)


def _no_recipe(node: Node) -> str:
    """Why neither form can be made ahead of time, or nothing."""
    if node.output.dtype not in dtypes.PRECISIONS:
        return f"it is computed in {node.output.dtype.name}"
    odd = [v for v in node.inputs[1:] if v.kind != "parameter"]
    return f"%{odd[0].name} is no parameter" if odd else ""


def _not_folded(network: Network, node: Node) -> str:
    """Why the op before it does not take it, or nothing."""
    x = node.inputs[0]
    made = _before(x)
    if made is None:
        return f"it follows {'no convolution or product' if x.node is None else x.node.op.name}"
    if any(w.kind != "parameter" for w in made.weights):
        return "the weight or the bias before it is no parameter"
    read = [v for v in made.chain if len(v.uses) > 1 or network.is_output(v)]
    return f"%{read[0].name} has other readers" if read else ""


class Before(NamedTuple):
    """What a batch norm follows: a convolution or product, its weight and bias, and the values from it to there."""

    maker: Node
    weights: tuple[Value, ...]
    chain: tuple[Value, ...]


def _before(x: Value) -> Before | None:
    node = x.node
    if node is None:
        return None
    if isinstance(node.op, Conv | ConvTranspose):
        return Before(node, node.inputs[1:], (x,))
    return _linear(x, (x,)) if len(x.shape) == 2 else None


def _linear(x: Value, chain: tuple[Value, ...]) -> Before | None:
    """The product that rows are, perhaps with a bias, perhaps before leading dimensions were joined."""
    node = x.node
    if node is None:
        return None
    if isinstance(node.op, Reshape):
        (whole,) = node.inputs
        return _linear(whole, (*chain, whole)) if whole.shape[-1:] == x.shape[-1:] else None
    if isinstance(node.op, Add):
        for product, bias in (node.inputs, node.inputs[::-1]):
            if _is_product(product.node) and bias.kind == "parameter" and bias.shape == x.shape[-1:]:
                return Before(product.node, (product.node.inputs[1], bias), (*chain, product))
        return None
    return Before(node, (node.inputs[1],), chain) if _is_product(node) else None


def _is_product(node: Node | None) -> bool:
    return node is not None and isinstance(node.op, Matmul) and len(node.inputs[1].shape) == 2


def _factors(node: Node, prior: Value | None = None) -> tuple[Recipe, Recipe]:
    """The recipes of scale and shift, the latter after a bias that was added before."""
    op: Any = node.op
    _, mean, variance, *rest = node.inputs
    scale = combine("norm_scale", [unrounded(v) for v in (variance, *rest[:1])], eps=op.eps)
    vectors = [v for v in (*rest[1:], prior) if v is not None]
    shift = combine("norm_shift", [unrounded(mean), scale, *map(unrounded, vectors)],
                    bias=len(rest) > 1, prior=prior is not None)  # fmt: skip
    return scale, shift


def _prefix(node: Node) -> str:
    _, mean, *_ = node.inputs
    module, _, _ = mean.name.rpartition(".")
    return module or mean.name


def _scaled(network: Network, node: Node) -> Value:
    x, mean, *_ = node.inputs
    scale, shift = _factors(node)
    channels = mean.shape
    with network.insert_before(node):
        factor, addend = (
            F.reshape(stored(network, recipe, Spec(channels, dtypes.float32), f"{_prefix(node)}.{name}"),
                      (*channels, *[1] * (len(x.shape) - 2)))
            for name, recipe in (("scale", scale), ("shift", shift))
        )  # fmt: skip
        wide = F.cast(x, dtypes.float32) if x.dtype is not dtypes.float32 else x
        y = F.add(F.mul(wide, factor), addend)
        return F.cast(y, x.dtype) if y.dtype is not x.dtype else y  # type: ignore[no-any-return]


def _folded(network: Network, node: Node) -> Value:
    x, mean, *_ = node.inputs
    made = _before(x)
    assert made is not None
    maker, (weight, *rest), _ = made
    op: Any = maker.op
    prior = rest[0] if rest else None
    scale, shift = _factors(node, prior)
    dtype = x.dtype
    scaled = _outputs_scaled(op, weight, scale).then("cast", dtype=dtype.name)
    w = stored(network, scaled, weight.spec, f"{weight.name}.folded")
    name = prior.name if prior is not None else f"{weight.name.rpartition('.')[0] or weight.name}.bias"
    b = stored(network, shift.then("cast", dtype=dtype.name), Spec(mean.shape, dtype), f"{name}.folded")
    with network.insert_before(maker):
        if not isinstance(op, Matmul):
            return network.emit(op, (maker.inputs[0], w, b))  # type: ignore[no-any-return]
        y = F.add(network.emit(op, (maker.inputs[0], w)), b)
        return y if y.shape == x.shape else F.reshape(y, x.shape)  # type: ignore[no-any-return]


def _outputs_scaled(op: Any, weight: Value, scale: Recipe) -> Recipe:
    """The weight of a convolution or product, multiplied by a scale for each output."""
    recipe = unrounded(weight)
    if not isinstance(op, ConvTranspose):
        return combine("scale", [recipe, scale], axis=int(isinstance(op, Matmul) and not op.transpose_b))
    if op.groups == 1:
        return combine("scale", [recipe, scale], axis=1)
    inputs, outputs, *window = weight.shape  # of all groups, and of each: the scale is of all
    each = int(inputs) // op.groups
    swap = (0, 2, 1, *range(3, 3 + len(window)))
    by_output = (
        recipe.then("reshape", shape=(op.groups, each, outputs, *window))
        .then("transpose", axes=swap)
        .then("reshape", shape=(op.groups * int(outputs), each, *window))
    )
    scaled = combine("scale", [by_output, scale], axis=0)
    return (
        scaled.then("reshape", shape=(op.groups, outputs, each, *window))
        .then("transpose", axes=swap)
        .then("reshape", shape=weight.shape)
    )
