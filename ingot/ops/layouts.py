"""Layouts: the orders in which kernels read operands of an op, and how these are packed and unpacked.

The op that has operands in layouts is in lowering.py; panels of 32 outputs are in panels.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from ingot import dtypes
from ingot.dtypes import DType
from ingot.ir import Op, Spec, require
from ingot.ir.call import UNLIMITED
from ingot.ir.spec import Shape
from ingot.ir.weight_format import COMPACT, INTEGERS
from ingot.ops.common import Array
from ingot.ops.conversion import SCALES_OF_GROUPS
from ingot.ops.indexing import Embedding
from ingot.ops.mixture import Moe
from ingot.ops.panels import PANEL, pack_panels, packed_dtype, packed_shape, unpack_panels, unpacked_dtype
from ingot.ops.product import Matmul
from ingot.ops.recurrent import Lstm, Recurrent
from ingot.ops.spatial import Conv, ConvTranspose, require_entries

PLAIN = "plain"
MAX_PHASE_WORK = 1 << 22  # phases times taps of a dimension, which are walked one by one
Sizes = Sequence[int]


class Layout(NamedTuple):
    """An order in which operands of one dtype and shape are stored.

    ops: whose operands these are. sizes: how many numbers say what is stored; the first `rank` of them (None: all) are
    an operand's shape. most: how many operands it holds. shapes: those of what is stored, from the op, the dtype, the
    number of operands and the sizes. pack, unpack: between operands and what is stored, by the op and the sizes.
    scaled: the second array are scales of the first, which is of one of these types; the operands are float32 that
    both make, and a third one.
    """

    ops: tuple[type[Op], ...]
    sizes: Sequence[int]
    rank: int | None
    most: int
    shapes: Callable[[Any, DType, int, Sizes], list[Shape]]
    pack: Callable[[Any, Sequence[Array], Sizes], list[Array]]
    unpack: Callable[[Any, Sequence[Array], int, Sizes], Sequence[Array]]
    scaled: tuple[DType, ...] = ()


# -------------------------------------------------------------------------------------------------- panels of experts


def _expert_shapes(op: Moe, dtype: DType, count: int, sizes: Sizes) -> list[Shape]:
    n, k, experts = sizes
    require(count % experts == 0, f"{count} weights are not those of {experts} experts")
    panels, *rest = packed_shape(dtype, n, k, count // experts)
    return [(experts * panels, *rest)]


def _pack_experts(op: Moe, weights: Sequence[Array], sizes: Sizes) -> list[Array]:
    experts = sizes[2]
    return [np.concatenate([pack_panels(weights[e::experts]) for e in range(experts)])]


def _unpack_experts(op: Moe, stored: Sequence[Array], count: int, sizes: Sizes) -> list[Array]:
    n, k, experts = sizes
    each = [unpack_panels(part, n, k, count // experts) for part in np.split(stored[0], experts)]
    return [weights[part] for part in range(count // experts) for weights in each]


def _scaled_expert_shapes(op: Moe, dtype: DType, count: int, sizes: Sizes) -> list[Shape]:
    n, k, experts, group = sizes
    panels = _expert_shapes(op, dtype, count, sizes[:3])
    if dtype is dtypes.int4:
        return [*panels, *_expert_shapes(op, dtypes.float32, count, (n, -(-k // group), experts))]
    require(group == k or dtype not in COMPACT, f"{dtype.name} has one scale for each output, not groups of {group}")
    return [*panels, (count * n,)]


def _pack_scaled_experts(op: Moe, weights: Sequence[Array], sizes: Sizes) -> list[Array]:
    """Rounded to what int8 with a scale for each output holds, or int4 with those of groups."""
    n, k, experts, group = sizes
    most, dtype = (127, dtypes.int8) if group == k else (7, dtypes.int4)
    numbers, scales = [], []
    for weight in weights:
        groups = np.pad(weight, ((0, 0), (0, -k % group))).reshape(n, -1, group)
        largest = np.abs(groups).max(2)
        scales.append((np.where(largest > 0, largest, 1) / most).astype(np.float32))
        whole = np.rint(groups / scales[-1][:, :, None]).reshape(n, -1)[:, :k]
        numbers.append(whole.astype(np.int8).astype(dtype.numpy))
    panels = _pack_experts(op, numbers, sizes[:3])
    if dtype is dtypes.int4:
        return [*panels, *_pack_experts(op, scales, (n, -(-k // group), experts))]
    return [*panels, np.concatenate([s.reshape(-1) for e in range(experts) for s in scales[e::experts]])]


def _unpack_scaled_experts(op: Moe, stored: Sequence[Array], count: int, sizes: Sizes) -> list[Array]:
    n, k, experts, group = sizes
    numbers = _unpack_experts(op, stored[:1], count, sizes[:3])
    if unpacked_dtype(dtypes.get(stored[0].dtype)) is dtypes.int4:
        scales = _unpack_experts(op, stored[1:], count, (n, -(-k // group), experts))
    else:
        each = stored[1].reshape(experts, count // experts, n, 1)
        scales = [each[e, part] for part in range(count // experts) for e in range(experts)]
    return [w.astype(np.float32) * _spread(s, group, k) for w, s in zip(numbers, scales, strict=True)]


def _shifted_expert_shapes(op: Moe, dtype: DType, count: int, sizes: Sizes) -> list[Shape]:
    n, k, experts, group = sizes
    addends = _expert_shapes(op, dtypes.float32, count, (n, -(-k // group), count))
    return [*_scaled_expert_shapes(op, dtype, count, sizes), *addends]


def _pack_shifted_experts(op: Moe, weights: Sequence[Array], sizes: Sizes) -> list[Array]:
    """The same of each group less its middle, which is a whole number of scales."""
    n, k, _, group = sizes
    most = 127 if group == k else 7
    moved, added = [], []
    for weight in weights:
        groups = np.pad(weight, ((0, 0), (0, -k % group)), mode="edge").reshape(n, -1, group).astype(np.float32)
        low, high = groups.min(2), groups.max(2)
        scales = np.where(high > low, high - low, 1) / (2 * most)
        added.append((np.rint((low + high) / 2 / scales) * scales).astype(np.float32))
        moved.append(weight.astype(np.float32) - _spread(added[-1], group, k))
    return [*_pack_scaled_experts(op, moved, sizes), _pack_addends(op, added, sizes)]


def _unpack_shifted_experts(op: Moe, stored: Sequence[Array], count: int, sizes: Sizes) -> list[Array]:
    n, k, _, group = sizes
    whole = _unpack_scaled_experts(op, stored[:2], count, sizes)
    added = _unpack_addends(op, stored[2], count, sizes)
    return [w + _spread(a, group, k) for w, a in zip(whole, added, strict=True)]


def _pack_addends(op: Moe, added: Sequence[Array], sizes: Sizes) -> Array:
    """Those of an expert one after the other, where the panels of its weights alternate."""
    experts = sizes[2]
    return np.concatenate([pack_panels([a]) for e in range(experts) for a in added[e::experts]])


def _unpack_addends(op: Moe, panels: Array, count: int, sizes: Sizes) -> list[Array]:
    n, k, experts, group = sizes
    each = [unpack_panels(part, n, -(-k // group), 1)[0] for part in np.split(panels, count)]
    return [each[e * (count // experts) + part] for part in range(count // experts) for e in range(experts)]


def _spread(by_group: Array, group: int, k: int) -> Array:
    return np.repeat(by_group.astype(np.float32), group, 1)[:, :k]


# --------------------------------------------------------------------------------------------------- panels of groups


def panel_shape(dtype: DType, groups: int, outputs: int, k: int) -> Shape:
    """Shape of the panels of a grouped weight: every group begins a panel."""
    return packed_shape(dtype, groups * _padded(outputs // groups), k, 1)


def _padded(outputs: int) -> int:
    return -(-outputs // PANEL) * PANEL


def pack_groups(weight: Array, groups: int) -> Array:
    """Panels of a weight [O, K] whose outputs are those of `groups` groups, one after the other."""
    outputs, k = weight.shape
    each = outputs // groups
    padded = np.zeros((groups, _padded(each), k), weight.dtype)
    padded[:, :each] = weight.reshape(groups, each, k)
    return pack_panels([padded.reshape(-1, k)])


def unpack_groups(panels: Array, groups: int, outputs: int, k: int) -> Array:
    """The weight [O, K] of `pack_groups`."""
    each = _padded(outputs // groups)
    (weight,) = unpack_panels(panels, groups * each, k, 1)
    return weight.reshape(groups, each, k)[:, : outputs // groups].reshape(outputs, k)


def _require_groups(op: Any, channels: int) -> None:
    require(op.groups > 0 and channels % op.groups == 0, f"{channels} channels do not split into {op.groups} groups")


def _group_shapes(op: Conv, dtype: DType, count: int, sizes: Sizes) -> list[Shape]:
    _require_groups(op, sizes[0])
    return [panel_shape(dtype, op.groups, sizes[0], math.prod(sizes[1:]))]


def _pack_conv(op: Conv, weights: Sequence[Array], sizes: Sizes) -> list[Array]:
    return [pack_groups(np.moveaxis(weights[0], 1, -1).reshape(sizes[0], -1), op.groups)]


def _unpack_conv(op: Conv, stored: Sequence[Array], count: int, sizes: Sizes) -> list[Array]:
    outputs, channels, *kernel = sizes
    rows = unpack_groups(stored[0], op.groups, outputs, math.prod(sizes[1:]))
    return [np.moveaxis(rows.reshape(outputs, *kernel, channels), -1, 1)]


# ---------------------------------------------------------------------------------------------------- panels of int8


def _scaled_shapes(op: Recurrent, dtype: DType, count: int, sizes: Sizes) -> list[Shape]:
    return [panel_shape(dtypes.int8, op.gates_each, sizes[0], sizes[1]), (sizes[0],)]


def _pack_scaled(op: Recurrent, weights: Sequence[Array], sizes: Sizes) -> list[Array]:
    """Rounded to what int8 with a scale for each output holds."""
    most = np.abs(weights[0]).max(1)
    scales = (np.where(most > 0, most, 1) / 127).astype(np.float32)
    return [pack_groups(np.rint(weights[0] / scales[:, None]).astype(np.int8), op.gates_each), scales]


def _unpack_scaled(op: Recurrent, stored: Sequence[Array], count: int, sizes: Sizes) -> list[Array]:
    integers = unpack_groups(stored[0], op.gates_each, sizes[0], sizes[1])
    return [integers.astype(np.float32) * stored[1][:, None]]


# --------------------------------------------------------------------------------------------------------------- taps


def _tap_shapes(op: Conv, dtype: DType, count: int, sizes: Sizes) -> list[Shape]:
    require(sizes[1] == 1, f"every channel is a group by itself, not {sizes[1]} of them")
    return [(math.prod(sizes[2:]), sizes[0])]


def _pack_taps(op: Conv, weights: Sequence[Array], sizes: Sizes) -> list[Array]:
    return [np.ascontiguousarray(weights[0].reshape(sizes[0], -1).T)]


def _unpack_taps(op: Conv, stored: Sequence[Array], count: int, sizes: Sizes) -> list[Array]:
    return [stored[0].T.reshape(sizes)]


# ------------------------------------------------------------------------------------------------------------- phases


class Phase(NamedTuple):
    """The outputs ≡ `place` modulo the stride, and which kernel positions reach them in each spatial dimension, in the
    order of the input that they read."""

    place: tuple[int, ...]
    taps: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        """How many taps it has."""
        return math.prod(map(len, self.taps))


def phases(op: ConvTranspose, kernel: Sizes) -> list[Phase]:
    """The phases that have taps, in row-major order of their places.

    Output o of a transposed convolution reads input (o + pad − k·dilation) / stride where that is whole, so that the
    outputs of one remainder form an ordinary convolution.
    """
    rank = len(kernel)
    require_entries(rank, 1, stride=op.stride, dilation=op.dilation)
    require_entries(rank, None, pre_padding=op.pre_padding)
    work = math.prod(op.stride) * sum(kernel)
    require(work <= MAX_PHASE_WORK, f"stride {op.stride} and kernel {tuple(kernel)} are too large for phases")
    found = []
    for place in product(*map(range, op.stride)):
        reach = [
            sorted(((p + pad - k * d) // s, k) for k in range(n) if (p + pad - k * d) % s == 0)
            for p, n, s, pad, d in zip(place, kernel, op.stride, op.pre_padding, op.dilation, strict=True)
        ]
        if all(reach):
            found.append(Phase(place, tuple(tuple(k for _, k in dim) for dim in reach)))
    return found


def _phase_shapes(op: ConvTranspose, dtype: DType, count: int, sizes: Sizes) -> list[Shape]:
    channels, each, *kernel = sizes
    _require_groups(op, channels)
    k = channels // op.groups
    return [panel_shape(dtype, op.groups, op.groups * each, phase.size * k) for phase in phases(op, kernel)]


def _at(phase: Phase) -> Any:
    """The index of a phase's taps in [groups, outputs of one, *kernel, …]."""
    return (slice(None), slice(None), *np.ix_(*phase.taps))


def _pack_phases(op: ConvTranspose, weights: Sequence[Array], sizes: Sizes) -> list[Array]:
    channels, each, *kernel = sizes
    split = np.moveaxis(weights[0].reshape(op.groups, channels // op.groups, each, *kernel), 1, -1)
    rows = [split[_at(phase)] for phase in phases(op, kernel)]
    return [pack_groups(part.reshape(op.groups * each, -1), op.groups) for part in rows]


def _unpack_phases(op: ConvTranspose, stored: Sequence[Array], count: int, sizes: Sizes) -> list[Array]:
    channels, each, *kernel = sizes
    inner = channels // op.groups
    whole = np.zeros((op.groups, each, *kernel, inner), stored[0].dtype)  # a tap belongs to one phase
    for panels, phase in zip(stored, phases(op, kernel), strict=True):
        rows = unpack_groups(panels, op.groups, op.groups * each, phase.size * inner)
        whole[_at(phase)] = rows.reshape(op.groups, each, *map(len, phase.taps), inner)
    return [np.moveaxis(whole, -1, 1).reshape(sizes)]


# ------------------------------------------------------------------------------------------------------------ the table


LAYOUTS = {
    "panels": Layout(  # the weights of products, alternating; a table's rows
        (Matmul, Embedding, Lstm), (2,), 2, 2,
        lambda op, dtype, count, sizes: [packed_shape(dtype, sizes[0], sizes[1], count)],
        lambda op, weights, sizes: [pack_panels(weights)],
        lambda op, stored, count, sizes: unpack_panels(stored[0], sizes[0], sizes[1], count),
    ),
    # of a recurrent layer's weight: every gate begins a panel
    "panels of gates": Layout(
        (Recurrent,), (2,), 2, 1,
        lambda op, dtype, count, sizes: [panel_shape(dtype, op.gates_each, sizes[0], sizes[1])],
        lambda op, weights, sizes: [pack_groups(weights[0], op.gates_each)],
        lambda op, stored, count, sizes: [unpack_groups(stored[0], op.gates_each, sizes[0], sizes[1])],
    ),
    # the same of int8, and a scale for each output
    "scaled panels of gates": Layout(
        (Recurrent,), (2,), 2, 1, _scaled_shapes, _pack_scaled, _unpack_scaled, (dtypes.int8,),
    ),
    # of one expert after the other; the last size is their number
    "panels of experts": Layout((Moe,), (3,), 2, UNLIMITED, _expert_shapes, _pack_experts, _unpack_experts),
    # the same of fewer bits, and their scales: of 8 bits one for each output, the fourth size being all inputs; of int4
    # one for so many neighbours of a row, in panels
    "scaled panels of experts": Layout(
        (Moe,), (4,), 2, UNLIMITED, _scaled_expert_shapes, _pack_scaled_experts, _unpack_scaled_experts, COMPACT,
    ),
    # the same and what their zero points add for each sum of a group's inputs, −zero · scale: panels of one weight
    # after the other
    "shifted panels of experts": Layout(
        (Moe,), (4,), 2, UNLIMITED, _shifted_expert_shapes, _pack_shifted_experts, _unpack_shifted_experts, INTEGERS,
    ),
    # of a convolution, its channels last: every group of outputs begins a panel
    "panels of groups": Layout((Conv,), (3, 4, 5), None, 1, _group_shapes, _pack_conv, _unpack_conv),
    # of a convolution of every channel by itself: [taps, channels]
    "taps": Layout((Conv,), (3, 4, 5), None, 1, _tap_shapes, _pack_taps, _unpack_taps),
    # of a transposed convolution: for each phase of its outputs a convolution's panels of groups
    "phases": Layout((ConvTranspose,), (3, 4, 5), None, 1, _phase_shapes, _pack_phases, _unpack_phases),
}  # fmt: skip


# -------------------------------------------------------------------------------------------------- operands in layouts


class Entry(NamedTuple):
    """Operands of `op` by their places, and how they are stored: in a layout with sizes, as so many arrays."""

    op: Op
    layout: str
    places: tuple[int, ...]
    sizes: tuple[int, ...] = ()
    arrays: int = 1

    @property
    def scaled(self) -> bool:
        """Whether its operands are made of integers and scales."""
        return self.layout != PLAIN and bool(LAYOUTS[self.layout].scaled)

    def specs(self, stored: Sequence[Spec]) -> list[Spec]:
        """The operands; OpError where what is stored is not what the layout says."""
        if self.layout == PLAIN:
            return list(stored)
        layout = LAYOUTS[self.layout]
        dtype = unpacked_dtype(stored[0].dtype)
        if layout.scaled and dtype not in layout.scaled:
            dtype = layout.scaled[0]
        known = (*dtypes.PRECISIONS, *COMPACT)
        require(dtype in known, "what lies in a layout are floats, int8, int4 or float8_e4m3fn")
        shapes = layout.shapes(self.op, dtype, len(self.places), self.sizes)
        kinds = [packed_dtype(dtype)] * len(shapes)
        if layout.scaled:
            narrow = dtype is dtypes.int4 and stored[1].dtype in SCALES_OF_GROUPS
            kinds[1:] = [stored[1].dtype if narrow else dtypes.float32, *[dtypes.float32] * (len(kinds) - 2)]
            dtype = dtypes.float32
        for spec, wanted in zip(stored, map(Spec, shapes, kinds), strict=True):
            require(spec == wanted,
                    f"what is stored in {self.layout} must be {wanted.dtype.name}{list(wanted.shape)}, not {spec}")
        return [Spec(self.sizes[: layout.rank], dtype)] * len(self.places)

    def unpack(self, stored: Sequence[Any]) -> Sequence[Any]:
        """The operands of what is stored."""
        return stored if self.layout == PLAIN else LAYOUTS[self.layout].unpack(
            self.op, stored, len(self.places), self.sizes)  # fmt: skip

    def pack(self, operands: Sequence[Array]) -> Sequence[Array]:
        """What is stored of the operands."""
        return operands if self.layout == PLAIN else LAYOUTS[self.layout].pack(self.op, operands, self.sizes)


def entry(op: Op, given: Any) -> Entry:
    """(layout, (places…), sizes…) read; OpError for what is none of the op's."""
    form = isinstance(given, tuple) and len(given) > 1 and isinstance(given[1], tuple) and len(given[1]) > 0
    require(form and all(type(i) is int for i in (*given[1], *given[2:])), "a layout is (name, (places…), sizes…)")
    name, places, *sizes = given
    if name == PLAIN:
        require(len(places) == 1 and not sizes, "a plain operand is (plain, (place,))")
        return Entry(op, name, places)
    require(name in LAYOUTS, f"there is no layout {name!r:.40}")
    layout = LAYOUTS[name]
    require(isinstance(op, layout.ops), f"{op.name} has no operands in {name}")
    require(len(sizes) in layout.sizes,
            f"the layout {name} takes {' or '.join(map(str, layout.sizes))} sizes, not {len(sizes)}")
    require(min(sizes) > 0, f"the sizes of a layout are positive, not {tuple(sizes)}")
    require(len(places) <= layout.most, f"the layout {name} holds {layout.most} operand(s), not {len(places)}")
    arrays = len(layout.shapes(op, dtypes.float32, len(places), sizes))
    return Entry(op, name, places, tuple(sizes), arrays)
