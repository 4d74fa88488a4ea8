"""TensorRT's layers that are composed of several functions: NMS, one-hot, quantisation, attention, and the like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot import functional as f
from ingot.compat.datatype import as_dtype
from ingot.compat.refusal import refused
from ingot.compat.trt_enums import (
    AttentionNormalizationOp,
    BoundingBoxFormat,
    FillOperation,
    GatherMode,
    ScatterMode,
)  # fmt: skip
from ingot.compat.trt_windows import Given
from ingot.ir import F
from ingot.ir.sizes import as_shape, as_size


def integers(x: Any, what: str) -> tuple[int, ...]:
    """Integers that have to be known when the network is recorded, of numbers or of a constant tensor."""
    found = as_shape(list(x) if isinstance(x, Sequence) else x)
    if not dims.all_fixed(found):
        raise refused(what, "it has to be a constant")
    return tuple(int(n) for n in found)


# ---------------------------------------------------------------------------------------------- indices


def gather(g: Given) -> Any:
    """What add_gather and add_gather_v2 compute: ONNX's Gather, GatherElements and GatherND, by the mode (NvInfer.h of
    TensorRT 10, GatherMode)."""
    x, indices, axis, mode = g["input"], g["indices"], g["axis"], g["mode"]
    alike = g["num_elementwise_dims"]
    if mode is GatherMode.ELEMENT:
        return f.gather(x, axis, indices)
    if mode is GatherMode.ND:
        return f.gather_nd(x, indices, alike)
    at = axis % len(x.shape)
    if not alike:
        rows = f.index_select(x, axis, f.flatten(indices))
        return f.view(rows, (*x.shape[:at], *indices.shape, *x.shape[at + 1 :]), False)
    if alike != 1 or at < 1 or len(indices.shape) != 2:
        raise refused(
            f"add_gather with num_elementwise_dims={alike}, axis {axis} and indices of {len(indices.shape)} dimensions",
            "only one elementwise dimension and indices [N, K] are known; use mode ELEMENT or ND",
        )
    # Rows along `axis` of each batch, by that batch's indices.
    shape = (*x.shape[:at], indices.shape[1], *x.shape[at + 1 :])
    column = f.view(indices, (indices.shape[0], *[1] * (at - 1), indices.shape[1], *[1] * (len(shape) - at - 1)), False)
    return f.gather(x, at, f.expand(column, shape))


def scatter(g: Given) -> Any:
    """What add_scatter computes."""
    if g["mode"] is ScatterMode.ELEMENT:
        return f.scatter(g["data"], g["axis"], g["indices"], g["updates"])
    return f.scatter_nd(g["data"], g["indices"], g["updates"])


def one_hot(g: Given) -> Any:
    """What add_one_hot computes: values [2] are what stands elsewhere, and at the index."""
    depth, indices = as_size(g["depth"]), g["indices"]
    rank = len(indices.shape) + 1
    axis = g["axis"] % rank
    classes = f.view(f.arange(0, depth, "int32"), (depth, *[1] * (rank - axis - 1)), False)
    index = f.unsqueeze(f.cast(indices, "int32"), axis)
    off, on = (f.select(g["values"], 0, i) for i in (0, 1))
    return f.where(f.eq(index, classes), on, off)


def top_k(g: Given, largest: bool, axis: int) -> Any:
    """What add_topk computes: values, the best first, and their places, of `indices_type`.

    TensorRT's documentation leaves the order of equal values open; here the lower place comes first, as in ONNX.
    """
    k = g["k"] if g.get("input_1") is None else g["input_1"]
    values, indices = f.topk(g["input"], k, axis, largest=largest)
    return values, f.cast(indices, indices_kind(g))


def indices_kind(g: Given) -> Any:
    """The element type of indices: int32 unless indices_type says int64."""
    kind = as_dtype("int32" if g["indices_type"] is None else g["indices_type"])
    if kind not in (dtypes.int32, dtypes.int64):
        raise refused(f"indices_type {kind.name}", "int32 or int64")
    return kind


def reverse_sequence(g: Given) -> Any:
    """What add_reverse_sequence computes: the first sequence_lens[b] steps of each sequence in reverse."""
    x, batch, steps = g["input"], g["batch_axis"], g["sequence_axis"]
    if sorted((batch, steps)) != [0, 1]:
        raise refused(f"add_reverse_sequence over axes {batch} and {steps}", "put batch and sequence first")
    lens = f.unsqueeze(f.cast(g["sequence_lens"], "int32"), 1)
    step = f.arange(0, x.shape[steps], "int32")
    place = f.where(f.lt(step, lens), f.sub(f.sub(lens, 1), step), step)  # [batch, steps]
    place = place if batch == 0 else f.transpose(place, 0, 1)
    index = f.view(place, (*x.shape[:2], *[1] * (len(x.shape) - 2)), False)
    return f.gather(x, steps, f.expand(index, x.shape))


def cumulative(g: Given) -> Any:
    """What add_cumulative computes. `axis` is a number or a constant tensor."""
    x, (axis,) = g["input"], integers(g["axis"], "the axis of add_cumulative")
    if g["operation"] not in ("sum", "SUM"):
        raise refused(f"add_cumulative {g['operation']!r}", "CumulativeOperation.SUM, the only one there is")
    axis %= len(x.shape)
    x = f.flip(x, [axis]) if g["reverse"] else x
    out = f.cumsum(x, axis)
    if g["exclusive"]:  # each sum one place later, and 0 first
        starts, before = [0] * len(x.shape), [0] * (2 * len(x.shape))
        before[2 * (len(x.shape) - 1 - axis)] = 1
        out = f.slice(f.pad(out, before), starts, x.shape)
    return f.flip(out, [axis]) if g["reverse"] else out


def fill(g: Given) -> Any:
    """What add_fill computes: LINSPACE, alpha + beta[0] · i + beta[1] · j + …, one beta for one dimension (NvInfer.h of
    TensorRT 10, FillOperation); or RANDOM_UNIFORM from alpha to beta, which is the same in every run."""
    sizes = as_shape(tuple(g["shape"]) if g.get("input_0") is None else g["input_0"])
    kind = as_dtype("float32" if g["output_type"] is None else g["output_type"])
    start = g.get("input_1") if g.get("input_1") is not None else g["alpha"]
    step = g.get("input_2") if g.get("input_2") is not None else g["beta"]
    if g["op"] is FillOperation.RANDOM_UNIFORM:
        if not isinstance(start, float | int | None) or not isinstance(step, float | int | None):
            raise refused("add_fill RANDOM_UNIFORM between tensors", "set alpha and beta to numbers")
        return f.rand(sizes, 0.0 if start is None else start, 1.0 if step is None else step, kind)
    if g["op"] is not FillOperation.LINSPACE:
        raise refused(f"add_fill {g['op'].name}", "give the random numbers as an input, or use RANDOM_UNIFORM")
    start, step = 0.0 if start is None else start, 1.0 if step is None else step
    count = len(sizes)
    if count != 1 and not (hasattr(step, "shape") and len(step.shape) == 1):
        raise refused(f"add_fill LINSPACE of {count} dimensions", "give alpha (a scalar) and beta [rank] as tensors")
    wide = kind if kind.is_integer else dtypes.float32
    out: Any = f.cast(start, wide) if hasattr(start, "shape") else np.asarray(start, wide.numpy)
    for axis, size in enumerate(sizes):
        apart = f.select(step, 0, axis) if hasattr(step, "shape") and len(step.shape) == 1 else step
        apart = f.cast(apart, wide) if hasattr(apart, "shape") else np.asarray(apart, wide.numpy)
        at = f.view(f.arange(0, size, "int32"), (size, *[1] * (count - axis - 1)), False)
        out = f.add(f.mul(f.cast(at, wide), apart), out)
    return f.cast(out, kind)


# ---------------------------------------------------------------------------------------------- quantisation


def _scales(x: Any, numbers: Any, axis: int | None, what: str) -> Any:
    """A scale (or zero point) as it broadcasts to x: one for the tensor, or one for each place along `axis`."""
    if not len(numbers.shape) or numbers.shape == (1,):
        return f.view(numbers, (), False)
    if len(numbers.shape) > 1:
        if len(numbers.shape) != len(x.shape) or any(n not in (1, d) for n, d in zip(numbers.shape, x.shape)):  # noqa: B905
            raise refused(f"{what} with scales {list(numbers.shape)} for blocks", "one scale, or one for each channel")
        return numbers
    if axis is None:
        raise refused(f"{what} with {numbers.shape[0]} scales", "set the layer's axis, along which they stand")
    rank = len(x.shape)
    return f.view(numbers, (numbers.shape[0], *[1] * (rank - axis % rank - 1)), False)


def quantize(g: Given) -> Any:
    """What add_quantize computes: round(x / scale) + zero point, halves to even, within -128..127."""
    kind = as_dtype("int8" if g["output_type"] is None else g["output_type"])
    if kind is not dtypes.int8:
        raise refused(f"add_quantize to {kind.name}", 'int8; for weights ingot.build(…, weights="int4-g128")')
    x = g["input"]
    scale = _scales(x, f.cast(g["scale"], "float32"), g["axis"], "add_quantize")
    zero = [] if g.get("input_2") is None else [_scales(x, g["input_2"], g["axis"], "add_quantize")]
    return F.quantize(x, scale, *zero, minimum=-128)


def dequantize(g: Given) -> Any:
    """What add_dequantize computes: (x - zero point) · scale."""
    kind = as_dtype("float32" if g["output_type"] is None else g["output_type"])
    x = g["input"]
    scale = _scales(x, f.cast(g["scale"], "float32"), g["axis"], "add_dequantize")
    zero = [] if g.get("input_2") is None else [_scales(x, g["input_2"], g["axis"], "add_dequantize")]
    return F.dequantize(x, scale, *zero, dtype=kind)


# ---------------------------------------------------------------------------------------------- norms and attention


def lrn(g: Given) -> Any:
    """What add_lrn computes: x / (k + alpha / window · the sum of squares of neighbouring channels) ** beta."""
    x, window = g["input"], int(g["window"])
    if window % 2 == 0 or len(x.shape) < 3:
        raise refused(f"add_lrn with a window of {window}", "an odd window over [N, C, …]")
    half, sides = window // 2, [0] * (2 * len(x.shape))
    sides[-4:-2] = [half, half]  # of dimension 1
    wide = f.cast(x, "float32")
    around = f.pad(f.mul(wide, wide), sides)
    total: Any = None
    for shift in range(window):
        part = f.slice(around, [0, shift, *[0] * (len(x.shape) - 2)], x.shape)
        total = part if total is None else f.add(total, part)
    return f.cast(f.div(wide, f.pow(f.add(f.mul(total, g["alpha"] / window), g["k"]), g["beta"])), x.dtype)


def attention(g: Given) -> Any:
    """What add_attention computes: [B, H, S, D], scores as they are; `mask` of bools, or of numbers to add."""
    if g["norm_op"] is not AttentionNormalizationOp.SOFTMAX:
        raise refused(f"add_attention with {g['norm_op'].name}", "SOFTMAX, or two add_matrix_multiply")
    if g["normalization_quantize_scale"] is not None or g["normalization_quantize_to_type"] is not None:
        raise refused("add_attention with quantised scores", "leave normalization_quantize_… out")
    mask = g["mask"]
    if mask is not None and g["causal"]:
        raise refused("add_attention with a mask and causal", "put the causal mask into the mask")
    grouped = g["query"].shape[1] != g["key"].shape[1]
    return f.scaled_dot_product_attention(
        g["query"], g["key"], g["value"], mask, is_causal=g["causal"], scale=1.0, enable_gqa=grouped
    )


def ragged_softmax(g: Given) -> Any:
    """What add_ragged_softmax computes: rows [Z, S], each over its first bounds[z] elements; 0 behind them."""
    x = g["input"]
    seen = f.lt(f.arange(0, x.shape[-1], "int32"), f.cast(g["bounds"], "int32"))
    least = np.asarray(-np.inf, dtypes.get(x.dtype).numpy)
    return f.where(seen, f.softmax(f.where(seen, x, least), -1), np.zeros((), dtypes.get(x.dtype).numpy))


# ---------------------------------------------------------------------------------------------- boxes


def nms(g: Given) -> Any:
    """What add_nms computes: selected [M, 3] of batch, class and box, best first in each batch, and M.

    Boxes are [N, boxes, classes or 1, 4] or [N, boxes, 4], scores [N, boxes, classes]. In each batch and class the best
    box is taken and boxes that overlap it by more than the IoU threshold leave, up to max_output_boxes_per_class times.
    Of each batch only the topk_box_limit best are looked at, whatever their class; scores have to exceed the threshold
    (NvInfer.h of TensorRT 10, INMSLayer). Of equal scores, whose order is open there, the lower class and box is first.
    """
    scores = f.permute(f.cast(g["scores"], "float32"), (0, 2, 1))  # [N, C, B]
    batch, classes, count = scores.shape
    boxes = g["boxes"] if len(g["boxes"].shape) == 4 else f.unsqueeze(g["boxes"], 2)
    edges = _edges(boxes, g["bounding_box_format"])
    edges = [f.expand(f.permute(edge, (0, 2, 1)), (batch, classes, count)) for edge in edges]
    most = as_size(g["max_output_boxes_per_class"])
    if not isinstance(most, int):
        raise refused("add_nms with a computed max_output_boxes_per_class", "it has to be a constant")
    limit = int(g["topk_box_limit"])
    rounds = min(most, limit, *([count] if isinstance(count, int) else []))
    iou, least = (np.float32(0) if g.get(f"input_{i}") is None else g[f"input_{i}"] for i in (3, 4))
    iou, least = (f.view(f.cast(t, "float32"), (), False) for t in (iou, least))
    low = np.float32(-np.inf)
    left = f.where(f.gt(scores, least), scores, low)
    if not isinstance(count, int) or not isinstance(classes, int) or count * classes > limit:
        rank = f.argsort(f.argsort(f.flatten(left, 1), 1, True), 1)
        left = f.where(f.lt(f.view(rank, left.shape, False), limit), left, low)

    def more(i: Any, *_: Any) -> Any:
        return f.lt(i, rounds)

    def take_best(i: Any, left: Any, iou: Any, box: Any, score: Any, *edges: Any) -> Any:
        best = f.unsqueeze(f.argmax(left, 2), 2)  # [N, C, 1]
        found = f.gather(left, 2, best)
        at = f.eq(f.arange(0, rounds, "int32"), i)
        box = f.where(at, f.cast(best, "int32"), box)
        score = f.where(at, found, score)
        mine = [f.gather(edge, 2, best) for edge in edges]
        gone = f.gt(_overlap(mine, edges), iou)
        itself = f.eq(f.arange(0, left.shape[2], "int64"), best)
        left = f.where(f.op_or(gone, itself), low, left)
        return f.add(i, 1), left, iou, box, score, *edges

    empty = (batch, classes, rounds)
    start = (f.expand(np.zeros((1, 1, 1), np.int32), empty), f.expand(np.full((1, 1, 1), low), empty))
    loop = f.while_loop(more, take_best, (_counter(scores), left, iou, *start, *edges))
    return _listed(loop[3], loop[4], indices_kind(g))


def _counter(like: Any) -> Any:
    """A zero, int32, in the network of a tensor."""
    return f.mul(f.cast(f.shape(like, 0), "int32"), 0)


def _edges(boxes: Any, form: BoundingBoxFormat) -> list[Any]:
    """Least and greatest of both coordinates, each [N, boxes, classes]."""
    a, b, c, d = (f.select(f.cast(boxes, "float32"), 3, i) for i in range(4))
    if form is BoundingBoxFormat.CENTER_SIZES:
        width, height = f.mul(c, 0.5), f.mul(d, 0.5)
        return [f.sub(a, width), f.sub(b, height), f.add(a, width), f.add(b, height)]
    return [f.minimum(a, c), f.minimum(b, d), f.maximum(a, c), f.maximum(b, d)]


def _overlap(one: Sequence[Any], others: Sequence[Any]) -> Any:
    """The intersection over the union of one box with others."""
    sides = [f.maximum(f.sub(f.minimum(one[i + 2], others[i + 2]), f.maximum(one[i], others[i])), 0.0) for i in (0, 1)]
    both = f.mul(*sides)
    areas = [f.mul(f.sub(box[2], box[0]), f.sub(box[3], box[1])) for box in (one, others)]
    whole = f.sub(f.add(areas[0], areas[1]), both)
    return f.where(f.gt(whole, 0.0), f.div(both, f.maximum(whole, np.float32(1e-38))), f.mul(both, 0.0))


def _listed(box: Any, score: Any, kind: Any) -> Any:
    """What was taken, [N, C, rounds], as a list: by batch, and in it by score."""
    batch, classes, rounds = score.shape
    names = f.expand(f.view(f.arange(0, classes, "int32"), (1, classes, 1), False), (batch, classes, rounds))
    flat, label, index = (f.flatten(t, 1) for t in (score, names, box))
    order = f.argsort(flat, 1, True)
    flat, label, index = (f.gather(t, 1, order) for t in (flat, label, index))
    taken = f.gt(flat, np.float32(-np.inf))
    owner = f.expand(f.unsqueeze(f.arange(0, batch, "int32"), 1), flat.shape)
    table = f.stack([f.flatten(part) for part in (owner, label, index)], 1)
    rows = f.index_select(table, 0, f.select(f.nonzero(f.flatten(taken)), 0, 0))
    return f.cast(rows, kind), f.cast(f.sum(f.cast(f.flatten(taken), "int32"), 0), kind)
