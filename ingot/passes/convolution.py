"""Convolutions and normalisations of channels-last tensors, as the ops that kernels run: weights as they read them, and
an expression on the float32 results.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from ingot.ir import F, Network, Node, Spec, Value
from ingot.ir.recipe import Recipe, evaluate, source
from ingot.ops.fused import IDENTITY, PLUS, WEIGHTS
from ingot.ops.fused_transpose import Phase, phases
from ingot.ops.movement import Pad
from ingot.ops.norm import GroupNorm
from ingot.ops.spatial import Conv, ConvTranspose
from ingot.passes.layout import FIXED, packed_groups
from ingot.passes.rewrite import Log, detach, note
from ingot.passes.weights import derive, recipe_of, sizes, stored


def paddings(network: Network, log: Log) -> None:
    """Zeros around the input of a convolution become its own padding."""
    dead: list[Node] = []
    for node in list(network.nodes):
        op: Any = node.op
        x = node.inputs[0] if node.inputs else None
        if not isinstance(op, Conv) or x is None or x.node is None or not isinstance(x.node.op, Pad):
            continue
        pad: Any = x.node.op
        rank = len(op.stride)
        at = 1 if op.channels_last else 2
        outside = [n for ns in (pad.before, pad.after) for n in (*ns[:at], *ns[at + rank :])]
        if pad.value != 0 or any(outside) or min(*pad.before, *pad.after) < 0:
            note(log, "paddings", node, "what is around its input are not zeros in spatial dimensions alone")
            continue
        more: Any = {name: tuple(a + b for a, b in zip(getattr(op, name), extra[at : at + rank], strict=True))
                for name, extra in (("pre_padding", pad.before), ("post_padding", pad.after))}  # fmt: skip
        with network.insert_before(node):
            new = network.emit(dataclasses.replace(op, **more), (x.node.inputs[0], *node.inputs[1:]))
        note(log, "paddings", node, "the zeros around its input are its own padding")
        network.replace(node.output, new)
        dead.extend(detach(network, node))
    network.remove(dict.fromkeys(dead))


def convolutions(network: Network, log: Log) -> None:
    """Convolutions by parameters get weights [outputs, taps × channels]: those of 1×1 become products, those of every
    channel by itself depthwise_conv. Transposed ones are packed by phases. Group norms take an expression too."""
    dead: list[Node] = []
    for node in list(network.nodes):
        lower = _LOWERINGS.get(type(node.op))
        if lower is None:
            continue
        if why := _refused(node):
            note(log, "convolutions", node, why)
            continue
        with network.insert_before(node):
            new = lower(network, node)
        note(log, "convolutions", node, f"as {new.node.op.name}")
        network.replace(node.output, new)
        dead.extend(detach(network, node))
    network.remove(dict.fromkeys(dead))


def _refused(node: Node) -> str:
    op: Any = node.op
    x, *rest = node.inputs
    if not op.channels_last:
        return "its channels are not last"
    if x.dtype not in WEIGHTS:
        return f"its kernel takes no {x.dtype.name}"
    if isinstance(op, GroupNorm):
        return "" if isinstance(x.shape[-1], int) else "its number of channels is not known"
    if rest[0].kind not in FIXED:
        return "its weight is computed"
    return "a weight without elements" if 0 in rest[0].shape else ""


def _body(bias: list[Value]) -> Any:
    return PLUS if bias else IDENTITY


def _conv(network: Network, node: Node) -> Value:
    op: Any = node.op
    x, weight, *bias = node.inputs
    outputs, channels, *kernel = sizes(weight)
    rank, taps = len(kernel), math.prod(kernel)
    common: dict[str, Any] = {"body": _body(bias), "dtype": x.dtype}
    if op.groups == outputs == x.shape[-1] and channels == 1 < outputs:
        flat = derive(network, "reshape", [weight], f"{weight.name}.taps", shape=(outputs, taps))
        flat = derive(network, "transpose", [flat], f"{weight.name}.depthwise", axes=(1, 0))
        return F.depthwise_conv(x, flat, *bias, **common, kernel=kernel, **_geometry(op))  # type: ignore[no-any-return]
    if taps > 1:
        axes = (0, *range(2, rank + 2), 1)
        weight = derive(network, "transpose", [weight], f"{weight.name}.channels_last", axes=axes)
    flat = derive(network, "reshape", [weight], f"{node.inputs[1].name}.flat", shape=(outputs, taps * channels))
    one_by_one = taps == 1 and {*op.stride} == {1} and {*op.pre_padding, *op.post_padding} == {0}
    if one_by_one and op.groups == 1:
        return F.fused_linear(x, flat, *bias, **common)  # type: ignore[no-any-return]
    return F.fused_conv(x, flat, *bias, **common, kernel=kernel, groups=op.groups, **_geometry(op))  # type: ignore[no-any-return]


def _geometry(op: Any) -> dict[str, Any]:
    return {name: getattr(op, name) for name in ("stride", "pre_padding", "post_padding", "dilation")}


def _conv_transpose(network: Network, node: Node) -> Value:
    op: Any = node.op
    x, weight, *bias = node.inputs
    channels, each, *kernel = sizes(weight)
    groups: int = op.groups
    made = [p for p in phases(kernel, op.stride, op.pre_padding, op.dilation) if p.size]
    panels = []
    for number, phase in enumerate(made):
        name = f"{weight.name}.phase{number}"
        flat = _phase_weight(network, weight, phase, groups, name)
        panels.append(packed_groups(network, flat, groups, f"{name}.packed"))
    return F.packed_conv_transpose(  # type: ignore[no-any-return]
        x, *panels, *bias, body=_body(bias), dtype=x.dtype, kernel=kernel, groups=groups, n=groups * each,
        **_geometry(op),
    )  # fmt: skip


def _phase_weight(network: Network, weight: Value, phase: Phase, groups: int, name: str) -> Value:
    """[C, O/g, *K] → [outputs, taps of the phase × channels of the group]."""
    channels, each, *_ = sizes(weight)
    recipe = phase_recipe(source("w") if weight.kind == "constant" else recipe_of(weight), phase, groups, sizes(weight))
    if weight.kind == "constant":
        return network.constant(evaluate(recipe, {"w": weight.array}))
    shape = (groups * each, phase.size * (channels // groups))
    return stored(network, recipe, Spec(weight.dtype, shape), name)


def phase_recipe(recipe: Recipe, phase: Phase, groups: int, shape: tuple[int, ...]) -> Recipe:
    """The steps from a weight of this shape to that of a phase."""
    channels, each, *kernel = shape
    rank, inner = len(kernel), channels // groups
    recipe = recipe.then("reshape", shape=(groups, inner, each, *kernel))
    recipe = recipe.then("transpose", axes=(0, 2, *range(3, rank + 3), 1))
    for axis, taps in enumerate(phase.taps):
        if taps != tuple(range(kernel[axis])):
            recipe = recipe.then("take", axis=axis + 2, indices=taps)
    return recipe.then("reshape", shape=(groups * each, phase.size * inner))


def _group_norm(network: Network, node: Node) -> Value:
    op: Any = node.op
    x, *vectors = node.inputs
    return F.fused_group_norm(  # type: ignore[no-any-return]
        x, *vectors, body=IDENTITY, dtype=x.dtype, groups=op.groups, eps=op.eps, vectors=len(vectors)
    )


_LOWERINGS = {Conv: _conv, ConvTranspose: _conv_transpose, GroupNorm: _group_norm}
