"""torchvision's own ops: those that are installed, else their schemas and what they compute, in NumPy.

`define()` loads torchvision where it is installed for this torch. Beside a torch that cannot load its wheels it enters
schemas and NumPy's results with torch.library, so that torch.export writes the same ops into a program.
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ingot import _lazy

Array = np.ndarray[Any, Any]

SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align": "(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
                 "int sampling_ratio, bool aligned) -> Tensor",
    "roi_pool": "(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width) "
                "-> (Tensor, Tensor)",
    "ps_roi_align": "(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
                    "int sampling_ratio) -> (Tensor, Tensor)",
    "ps_roi_pool": "(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width) "
                   "-> (Tensor, Tensor)",
    "deform_conv2d": "(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, "
                     "SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, "
                     "SymInt groups, SymInt offset_groups, bool use_mask) -> Tensor",
}  # fmt: skip


def nms(boxes: Array, scores: Array, iou_threshold: float) -> Array:
    """Which boxes [N, 4] are kept, best score first: those that no better one covers by more than the threshold."""
    order = np.argsort(-scores, kind="stable")
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    kept: list[int] = []
    while len(order):
        best, order = order[0], order[1:]
        kept.append(best)
        low, high = np.maximum(boxes[best, :2], boxes[order, :2]), np.minimum(boxes[best, 2:], boxes[order, 2:])
        inside = np.maximum(high - low, 0).prod(1)
        with np.errstate(invalid="ignore", divide="ignore"):
            covered = inside / (areas[best] + areas[order] - inside) > iou_threshold
        order = order[~covered]
    return np.array(kept, np.int64)


def bilinear(image: Array, y: float, x: float) -> Array:
    """image [C, H, W] at a place between its elements: nothing further than one from the edge, the edge before that."""
    height, width = image.shape[1:]
    if not (-1 <= y <= height and -1 <= x <= width):
        return np.zeros(image.shape[0])
    y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
    top, left = int(y), int(x)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    v, u = y - top, x - left
    found: Array = ((1 - v) * (1 - u) * image[:, top, left] + (1 - v) * u * image[:, top, right]
                    + v * (1 - u) * image[:, bottom, left] + v * u * image[:, bottom, right])  # fmt: skip
    return found


def _samples(image: Array, low: Array, size: Array, bins: tuple[int, int], ratio: int) -> Array:
    """The mean of a grid of places in each of a region's bins: [C, *bins]."""
    grid = [ratio if ratio > 0 else max(math.ceil(s / n), 0) for s, n in zip(size, bins, strict=True)]
    found = np.zeros((len(image), *bins))
    for i, j in np.ndindex(*bins):
        for a, b in np.ndindex(*grid):
            y, x = (low[k] + size[k] / bins[k] * (at + (step + 0.5) / grid[k])
                    for k, at, step in ((0, i, a), (1, j, b)))  # fmt: skip
            found[:, i, j] += bilinear(image, y, x)
    return found / max(math.prod(grid), 1)


def roi_align(x: Array, rois: Array, scale: float, height: int, width: int, ratio: int, aligned: bool) -> Array:
    """[K, C, height, width] of x [N, C, H, W] in the regions [K, 5] (image, x, y, x, y)."""
    found = np.zeros((len(rois), x.shape[1], height, width))
    for k, roi in enumerate(rois.astype(np.float64)):
        low, high = roi[[2, 1]] * scale - 0.5 * aligned, roi[[4, 3]] * scale - 0.5 * aligned
        size = high - low if aligned else np.maximum(high - low, 1)
        found[k] = _samples(x[int(roi[0])], low, size, (height, width), ratio)
    return found.astype(x.dtype)


def ps_roi_align(x: Array, rois: Array, scale: float, height: int, width: int, ratio: int) -> tuple[Array, Array]:
    """As roi_align, but each bin has channels of its own; and which channels these are."""
    count, channels = len(rois), x.shape[1] // (height * width)
    whole = np.zeros((count, x.shape[1], height, width))
    for k, roi in enumerate(rois.astype(np.float64)):
        low, high = roi[[2, 1]] * scale - 0.5, roi[[4, 3]] * scale - 0.5
        whole[k] = _samples(x[int(roi[0])], low, high - low, (height, width), ratio)
    i, j = np.indices((height, width))
    own = np.arange(channels)[:, None, None] * height * width + i * width + j
    found = whole[:, own, i, j]
    return found.astype(x.dtype), np.broadcast_to(own, found.shape).astype(np.int32).copy()


def _bins_of(roi: Array, scale: float, bins: tuple[int, int], more: int, most: tuple[int, int]) -> Iterator[Any]:
    """Each bin of a region, and the slices of its rows and columns: the region is `more` elements longer than its
    corners are apart, and ends before `most`.
    """
    product = roi[1:].astype(np.float32) * np.float32(scale)
    edges = (np.sign(product) * np.floor(np.abs(product) + np.float32(0.5))).astype(np.int64)
    for each in np.ndindex(*bins):
        ranges = []
        for axis, at in enumerate(each):
            start = edges[1 - axis]
            step = np.float32(max(edges[3 - axis] - start + more, 1)) / np.float32(bins[axis])
            ends = math.floor(np.float32(at) * step) + start, math.ceil(np.float32(at + 1) * step) + start
            ranges.append(slice(*(min(max(e, 0), most[axis]) for e in ends)))
        yield each, ranges


def roi_pool(x: Array, rois: Array, scale: float, height: int, width: int) -> tuple[Array, Array]:
    """The largest elements of each region's bins, and where they stand in their image's channel; 0 and −1 in none."""
    rows, columns = x.shape[2:]
    found = np.zeros((len(rois), x.shape[1], height, width), x.dtype)
    where = np.full(found.shape, -1, np.int32)
    for k, roi in enumerate(rois):
        for (i, j), ranges in _bins_of(roi, scale, (height, width), 1, (rows, columns)):
            part = x[int(roi[0]), :, ranges[0], ranges[1]]
            if part.size:
                flat = part.reshape(len(part), -1)
                best = flat.argmax(1)
                found[k, :, i, j] = flat.max(1)
                down, across = np.divmod(best, part.shape[2])
                where[k, :, i, j] = (ranges[0].start + down) * columns + ranges[1].start + across
    return found, where


def ps_roi_pool(x: Array, rois: Array, scale: float, height: int, width: int) -> tuple[Array, Array]:
    """The means of each region's bins, of channels of their own, and which channels these are. The image's last row and
    column are in none, and 0 is the mean of nothing.
    """
    rows, columns = x.shape[2:]
    own = np.arange(x.shape[1], dtype=np.int32).reshape(-1, height, width)
    found = np.zeros((len(rois), *own.shape), x.dtype)
    for k, roi in enumerate(rois):
        for (i, j), ranges in _bins_of(roi, scale, (height, width), 0, (rows - 1, columns - 1)):
            part = x[int(roi[0]), own[:, i, j], ranges[0], ranges[1]]
            if part.size:
                found[k, :, i, j] = part.mean((1, 2))
    return found, np.broadcast_to(own, found.shape).copy()


def deform_conv2d(
    x: Array, weight: Array, offset: Array, mask: Array, bias: Array, stride_h: int, stride_w: int, pad_h: int,
    pad_w: int, dilation_h: int, dilation_w: int, groups: int, offset_groups: int, use_mask: bool,
) -> Array:  # fmt: skip
    """A convolution whose taps are read where the offsets move them, each scaled by the mask."""
    n, channels = x.shape[:2]
    outputs, own, kh, kw = weight.shape
    rows, columns = offset.shape[2:]
    moved = offset.reshape(n, offset_groups, kh * kw, 2, rows, columns)
    shares = mask.reshape(n, offset_groups, kh * kw, rows, columns) if use_mask else None
    each, padded = channels // offset_groups, np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    read = np.zeros((n, channels, kh * kw, rows, columns))
    for b, g, t, i, j in np.ndindex(n, offset_groups, kh * kw, rows, columns):
        y = i * stride_h - pad_h + t // kw * dilation_h + float(moved[b, g, t, 0, i, j])
        z = j * stride_w - pad_w + t % kw * dilation_w + float(moved[b, g, t, 1, i, j])
        if -1 < y < x.shape[2] and -1 < z < x.shape[3]:
            part = slice(g * each, (g + 1) * each)  # in the frame of zeros one is never near the edge
            value = bilinear(padded[b, part], y + 1, z + 1)
            read[b, part, t, i, j] = value if shares is None else value * shares[b, g, t, i, j]
    apart = read.reshape(n, groups, own * kh * kw, rows * columns)
    found: Array = np.einsum("goi,ngip->ngop", weight.reshape(groups, outputs // groups, -1).astype(np.float64), apart)
    found = found.reshape(n, outputs, rows, columns) + bias.reshape(-1, 1, 1)
    return found.astype(x.dtype)


def _fake(name: str, torch: Any) -> Callable[..., Any]:
    """The sizes of an op's results."""

    def kept(dets: Any, scores: Any, iou_threshold: float) -> Any:
        return dets.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.int64)

    def bins(input: Any, rois: Any, scale: float, height: int, width: int, *rest: Any) -> Any:
        channels = input.shape[1] // (height * width if name.startswith("ps_") else 1)
        found = input.new_empty((rois.shape[0], channels, height, width))
        return found if name == "roi_align" else (found, found.new_empty(found.shape, dtype=torch.int32))

    def convolved(input: Any, weight: Any, offset: Any, *rest: Any) -> Any:
        return input.new_empty((input.shape[0], weight.shape[0], *offset.shape[-2:]))

    own: dict[str, Callable[..., Any]] = {"nms": kept, "deform_conv2d": convolved}
    return own.get(name, bins)


def _on_cpu(name: str, torch: Any) -> Callable[..., Any]:
    compute = globals()[name]

    def run(*args: Any) -> Any:
        found = compute(*(a.detach().numpy() if isinstance(a, torch.Tensor) else a for a in args))
        return tuple(map(torch.from_numpy, found)) if isinstance(found, tuple) else torch.from_numpy(found)

    return run


@cache
def installed() -> bool:
    """Whether torchvision is there with ops of its own, made for this torch; they are then loaded."""
    spec = importlib.util.find_spec("torchvision")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    libraries = [path for folder in folders for path in Path(folder).glob("_C*.so")]
    if not libraries:
        return False
    try:
        _lazy.load("torch").ops.load_library(str(libraries[0]))
    except OSError:  # it was made for another torch
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torchvision about itself
        _lazy.load("torchvision")
    return True


def define(before_torchvision: bool = False) -> None:
    """Enters the ops that torch does not have yet, unless torchvision's own are there. before_torchvision: its Python
    code is imported next, and says by itself of what size the result of nms is.
    """
    if installed():
        return
    torch = _lazy.load("torch")
    for name, schema in SCHEMAS.items():
        if hasattr(torch.ops.torchvision, name):
            continue
        full = f"torchvision::{name}"
        torch.library.define(full, schema)
        torch.library.impl(full, "CPU", _on_cpu(name, torch))
        if name != "nms" or not before_torchvision:
            torch.library.register_fake(full, _fake(name, torch))
