"""Convolutions and normalisations of channels-last tensors as kernels run them: their weights in layouts, and with an
epilogue.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot.dtypes import DType
from ingot.ir import F, Network, Node, Op, Spec, Value
from ingot.ir.evaluation import evaluate
from ingot.ir.recipe import Recipe, source
from ingot.ops.fused import IDENTITY, PLUS
from ingot.ops.layouts import Phase, phases
from ingot.ops.lowering import MOST_INT8, MOST_TAPS, PRODUCT, Lowered, plain
from ingot.ops.movement import Pad
from ingot.ops.norm import GroupNorm
from ingot.ops.panels import DEPTH, PANEL
from ingot.ops.spatial import Conv, ConvTranspose
from ingot.passes.integers import Sums, factors, no_factors, numbers, sums
from ingot.passes.layout import packed_groups
from ingot.passes.rewrite import Log, detach, note
from ingot.passes.weights import FIXED, derive, recipe_of, sizes, stored

MOST_PHASES = 1000  # a call has at most 1,024 operands, of which x and those of its epilogue are some
BESIDE = 12  # steps of int8 products that the gathering and the results of a panel are worth: measured 12 to 34


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
        if not dims.all_fixed((*pad.before, *pad.after)):
            note(log, "paddings", node, "only a run shows how many zeros are around its input")
            continue
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
    network.remove(dead)


def convolutions(network: Network, log: Log) -> None:
    """Convolutions are lowered: those of 1×1 by parameters become products, but for a few outputs, those of every
    channel by itself get their weight by taps, transposed ones by phases, others in panels. A weight that is computed
    is laid out so in each run. Group norms take an epilogue too."""
    _many_phases(network, log)
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
        op: Any = new.node.op
        as_what = f"its weight in {op.layouts[1][0]}" if op.packed else "with an epilogue"
        note(log, "convolutions", node, f"as {op.inner.name}, {as_what}")
        network.replace(node.output, new)
        dead.extend(detach(network, node))
    network.remove(dead)


def _refused(node: Node) -> str:
    op: Any = node.op
    x, *rest = node.inputs
    if not op.channels_last:
        return "its channels are not last"
    if x.dtype not in dtypes.PRECISIONS:
        return f"its kernel takes no {x.dtype.name}"
    if isinstance(op, GroupNorm) and len(node.given) < len(node.inputs):
        return "it has a bias and no weight"
    if isinstance(op, GroupNorm):
        return "" if isinstance(x.shape[-1], int) else "its number of channels is not known"
    if not rest[0].is_fixed:
        return "its weight has sizes that only a run knows"
    if 0 in rest[0].shape:
        return "a weight without elements"
    return f"it has more than {MOST_PHASES:,} phases" if _has_many_phases(node) else ""


def _has_many_phases(node: Node) -> bool:
    """Whether a transposed convolution has more phases than a call takes weights."""
    op: Any = node.op
    if not isinstance(op, ConvTranspose) or not node.inputs[1].is_fixed:
        return False
    return bool(math.prod(map(min, op.stride, sizes(node.inputs[1])[2:])) > MOST_PHASES)


def _is_whole_phases(node: Node) -> bool:
    """Whether all phases have equally many taps, and outputs from a whole step on: together they are a convolution."""
    op: Any = node.op
    kernel = sizes(node.inputs[1])[2:]
    whole = all(k and k % s == 0 for k, s in zip(kernel, op.stride, strict=True))
    stored = all(v.kind in FIXED for v in node.inputs[1:])
    within = {*op.dilation} == {1} and min(*op.pre_padding, *op.post_padding) >= 0
    return bool(op.channels_last and whole and stored and within)


def _lowered(node: Node, of: Sums, layout: str, stored: Sequence[Value], inner: Op | None = None) -> Value:
    """The node's convolution, or `inner` in its place, with its weight stored in a layout, and its bias in the
    epilogue."""
    op = Lowered(inner=inner or node.op, layouts=(*plain(1), (layout, (1,), *sizes(of.weight))), epilogue=of.epilogue,
                 dtype=node.output.dtype, outside=of.outside)  # fmt: skip
    return node.output.network.emit(op, (of.x, *stored, *of.extras))  # type: ignore[no-any-return]


def _sums(network: Network, node: Node) -> Sums:
    """What the node sums, integers where x and the weight are made of int8."""
    x, weight, *bias = node.inputs
    found = numbers(x)
    if no_integers(node) or isinstance(found, str):
        return Sums(x, weight, tuple(bias), PLUS if bias else IDENTITY, 0)
    outputs, groups = _outputs(node.op)
    return sums(network, found, factors(network, weight, outputs, groups), outputs, bias[0] if bias else None)


def _outputs(op: Any) -> tuple[int, int]:
    """Which dimension of a weight has its outputs, and those of how many groups lie outside it."""
    return (1, op.groups) if isinstance(op, ConvTranspose) else (0, 1)


def no_integers(node: Node) -> str:
    """Why the sums of a convolution are not those of int8 with int8, or nothing."""
    op: Any = node.op
    outputs, groups = _outputs(op)
    found = numbers(node.inputs[0])
    if isinstance(found, str):
        return found
    if _has_many_phases(node):
        return f"it has more than {MOST_PHASES:,} phases"
    if isinstance(found.zero, Value) and any((*op.pre_padding, *op.post_padding)):
        return "only a run shows the zero point that is to lie around its x"
    if outputs and (isinstance(found.zero, Value) or found.zero):
        return "outputs of a transposed convolution are sums of different weights: x has no zero point"
    return no_factors(node.inputs[1], outputs, groups)


def _conv(network: Network, node: Node) -> Value:
    op: Any = node.op
    of = _sums(network, node)
    x, weight = of.x, of.weight
    if weight.kind not in FIXED:
        return _computed_conv(node)
    outputs, channels, *kernel = sizes(weight)
    rank, taps = len(kernel), math.prod(kernel)
    if _is_depthwise(op, x, weight):
        flat = derive(network, "reshape", [weight], f"{weight.name}.taps", shape=(outputs, taps))
        return _lowered(node, of, "taps", [
            derive(network, "transpose", [flat], f"{weight.name}.depthwise", axes=(1, 0))])  # fmt: skip
    last = weight
    if taps > 1:
        axes = (0, *range(2, rank + 2), 1)
        last = derive(network, "transpose", [weight], f"{weight.name}.channels_last", axes=axes)
    flat = derive(network, "reshape", [last], f"{weight.name}.flat", shape=(outputs, taps * channels))
    one_by_one = taps == 1 and {*op.stride} == {1} and {*op.pre_padding, *op.post_padding} == {0}
    if one_by_one and op.groups == 1 and (of.outside or not _is_narrow(outputs, channels, x.dtype)):
        product = Lowered(inner=PRODUCT, layouts=plain(2), epilogue=of.epilogue, dtype=node.output.dtype)
        return network.emit(product, (x, flat, *of.extras))  # type: ignore[no-any-return]
    return _lowered(node, of, "panels of groups", [packed_groups(network, flat, op.groups, f"{flat.name}.packed")])


def _is_narrow(outputs: int, channels: int, dtype: DType) -> bool:
    """Whether a 1×1 convolution has so few outputs that a panel stays nearly empty: conv_packed then has vectors along
    the channels (Narrow::suits in native/kernels/narrow.cpp, for products at float32's speed)."""
    product = channels // 4 + 20 if dtype is dtypes.int8 else channels
    few = outputs <= 8 and ((channels + 15) // 16 + 12) * outputs <= product + channels // 8
    return few and (dtype in (dtypes.float32, dtypes.float16) or (dtype is dtypes.int8 and channels <= MOST_TAPS))


def _is_depthwise(op: Conv, x: Value, weight: Value) -> bool:
    """Whether every channel is convolved by itself, to one output."""
    outputs, channels = sizes(weight)[:2]
    exact = weight.dtype is not dtypes.int8 or math.prod(sizes(weight)[2:]) <= MOST_TAPS
    return bool(op.groups == outputs == x.shape[-1] and channels == 1 < outputs and exact)


def _conv_transpose(network: Network, node: Node) -> Value:
    op: Any = node.op
    of = _sums(network, node)
    if of.weight.kind not in FIXED:
        return _lowered(node, of, "phases", _computed_phases(op, of.weight))
    if of.x.dtype is dtypes.int8:
        op, of = _with_fewer_groups(network, op, of)
    weight, stored = of.weight, []
    for number, phase in enumerate(phases(op, sizes(weight)[2:])):
        name = f"{weight.name}.phase{number}"
        flat = _phase_weight(network, weight, phase, op.groups, name)
        stored.append(packed_groups(network, flat, op.groups, f"{name}.packed"))
    return _lowered(node, of, "phases", stored, op)


def _many_phases(network: Network, log: Log) -> None:
    """Transposed convolutions of more phases than a call takes weights become convolutions, where they can."""
    dead: list[Node] = []
    for node in list(network.nodes):
        if _has_many_phases(node) and _is_whole_phases(node):
            with network.insert_before(node):
                new = _with_outputs_of_phases(network, node)
            note(log, "convolutions", node, "as a convolution with the outputs of all of its phases")
            network.replace(node.output, new)
            dead.extend(detach(network, node))
    network.remove(dead)


def _with_outputs_of_phases(network: Network, node: Node) -> Value:
    """The node as one convolution whose outputs are those of all phases, which are then put where they belong."""
    op: Any = node.op
    x, weight, *bias = node.inputs
    channels, each, *kernel = sizes(weight)
    rank, strides, name = len(kernel), op.stride, f"{weight.name}.phases"
    inner, count = channels // op.groups, math.prod(strides)
    taps = tuple(k // s for k, s in zip(kernel, strides, strict=True))

    parts = [n for pair in zip(taps, strides, strict=True) for n in pair]
    part = derive(network, "reshape", [weight], f"{name}.parts", shape=(op.groups, inner, each, *parts))
    at_taps, at_strides = range(3, 3 + 2 * rank, 2), range(4, 4 + 2 * rank, 2)
    for axis, n in zip(at_taps, taps, strict=True):
        if n > 1:  # the last tap reads what comes first
            part = derive(network, "take", [part], f"{part.name}.{axis}", axis=axis, indices=tuple(reversed(range(n))))
    turned = derive(network, "transpose", [part], f"{name}.turned", axes=(0, *at_strides, 2, 1, *at_taps))
    flat = derive(network, "reshape", [turned], name, shape=(op.groups * count * each, inner, *taps))
    for i, vector in enumerate(bias):
        split = derive(network, "reshape", [vector], f"{vector.name}.groups", shape=(op.groups, 1, each))
        tiled = derive(network, "concat", [split] * count, f"{vector.name}.tiled", axis=1)
        bias[i] = derive(network, "reshape", [tiled], f"{vector.name}.phases", shape=(op.groups * count * each,))

    ones, around = (1,) * rank, tuple(n - 1 for n in taps)
    conv = Conv(
        stride=ones, pre_padding=around, post_padding=around, dilation=ones, groups=op.groups, channels_last=True
    )
    y = network.emit(conv, (x, flat, *bias))
    batch, *reached, _ = y.shape
    lines = dims.mul(batch, reached[0])  # as one dimension: a program's tensors have at most 8
    apart = F.reshape(y, (lines, *reached[1:], op.groups, *strides, each))
    places = [axis for i in range(rank) for axis in (i, 1 + rank + i)]
    placed = F.permute(apart, (*places, rank, 1 + 2 * rank))
    full = (batch, *(dims.mul(n, s) for n, s in zip(reached, strides, strict=True)), op.groups * each)
    whole, shape = F.reshape(placed, full), node.output.shape
    return whole if full == shape else F.slice(whole, (0, *op.pre_padding, 0), shape, (1,) * len(shape))  # type: ignore[no-any-return]


def _with_fewer_groups(network: Network, op: ConvTranspose, of: Sums) -> tuple[ConvTranspose, Sums]:
    """Groups of few outputs side by side, as one whose weight has zeros where an input is another group's. Each would
    have a panel of its own, mostly empty: so the products are hardly more, and the panels fewer. Of floats a NaN or
    infinity would reach the outputs of other groups."""
    channels, each, *kernel = sizes(of.weight)
    apart, strides = int(op.groups), int(math.prod(op.stride))
    inner, taps = channels // apart, math.prod(kernel)
    depth = DEPTH[dtypes.int8]

    def steps(joined: int) -> Any:
        """Of all panels of a pixel and phase, and what each takes beside."""
        of_phase = -(-joined * inner * taps // strides)
        panels = apart // joined * -(-joined * each // PANEL)
        return panels * (-(-of_phase // depth) + BESIDE)

    most = min(apart, MOST_INT8 // (inner * taps))
    joined = min((n for n in range(1, most + 1) if apart % n == 0), key=steps)
    if joined == 1:
        return op, of
    groups, name = apart // joined, f"{of.weight.name}.joined"
    parted = derive(network, "reshape", [of.weight], f"{name}.parts", shape=(groups, joined, inner, each, *kernel))
    square = derive(network, "diagonal", [parted], f"{name}.square")
    axes = (0, 1, 3, 2, *range(4, 5 + len(kernel)))
    turned = derive(network, "transpose", [square], f"{name}.turned", axes=axes)
    whole = derive(network, "reshape", [turned], name, shape=(channels, joined * each, *kernel))
    return dataclasses.replace(op, groups=groups), of._replace(weight=whole)


def _phase_weight(network: Network, weight: Value, phase: Phase, groups: int, name: str) -> Value:
    """[C, O/g, *K] → [outputs, taps of the phase × channels of the group]."""
    channels, each, *_ = sizes(weight)
    recipe = phase_recipe(source("w") if weight.kind == "constant" else recipe_of(weight), phase, groups, sizes(weight))
    if weight.kind == "constant":
        return network.constant(evaluate(recipe, {"w": weight.array}))
    shape = (groups * each, phase.size * (channels // groups))
    return stored(network, recipe, Spec(shape, weight.dtype), name)


# ---------------------------------------------------------------------------------------- weights that a run computes


def computed_panels(weight: Value, groups: int) -> Value:
    """The panels (ops/panels.py) of a computed weight [outputs, K], where every group of outputs begins one: padded,
    and moved."""
    outputs, k = sizes(weight)
    each, depth = outputs // groups, DEPTH[weight.dtype]
    split = F.reshape(weight, (groups, each, k))
    after = (0, -each % PANEL, -k % depth)
    padded = F.pad(split, before=(0, 0, 0), after=after) if any(after) else split
    panels, steps = groups * ((each + after[1]) // PANEL), (k + after[2]) // depth
    if depth == 1:
        return F.permute(F.reshape(padded, (panels, PANEL, steps)), (0, 2, 1))  # type: ignore[no-any-return]
    return F.permute(F.reshape(padded, (panels, PANEL, steps, depth)), (0, 2, 1, 3))  # type: ignore[no-any-return]


def _computed_conv(node: Node) -> Value:
    """The node by its computed weight [O, C/groups, *K]."""
    op: Any = node.op
    x, weight, *bias = node.inputs
    of = Sums(x, weight, tuple(bias), PLUS if bias else IDENTITY, 0)
    outputs, channels, *kernel = sizes(weight)
    taps = math.prod(kernel)
    if _is_depthwise(op, x, weight):
        return _lowered(node, of, "taps", [F.permute(F.reshape(weight, (outputs, taps)), (1, 0))])
    last = F.permute(F.reshape(weight, (outputs, channels, taps)), (0, 2, 1))
    flat = F.reshape(last, (outputs, taps * channels))
    return _lowered(node, of, "panels of groups", [computed_panels(flat, op.groups)])


def _computed_phases(op: ConvTranspose, weight: Value) -> list[Value]:
    """The panels of each phase of a computed weight [C, O/groups, *K]."""
    channels, each, *kernel = sizes(weight)
    rank, inner = len(kernel), channels // op.groups
    split = F.reshape(weight, (op.groups, inner, each, *kernel))
    last = F.permute(split, (0, 2, *range(3, rank + 3), 1))
    found = []
    for phase in phases(op, kernel):
        part = last
        for axis, chosen in enumerate(phase.taps, 2):
            if chosen != tuple(range(kernel[axis - 2])):
                part = F.take(part, np.array(chosen, np.int64), axis=axis)
        flat = F.reshape(part, (op.groups * each, phase.size * inner))
        found.append(computed_panels(flat, op.groups))
    return found


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
    x = node.inputs[0]
    op = Lowered(inner=node.op, layouts=plain(len(node.inputs)), epilogue=IDENTITY, dtype=x.dtype)
    return network.emit(op, node.inputs)  # type: ignore[no-any-return]


_LOWERINGS = {Conv: _conv, ConvTranspose: _conv_transpose, GroupNorm: _group_norm}
