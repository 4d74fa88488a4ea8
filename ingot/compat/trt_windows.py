"""What TensorRT's layers over windows and places of images compute: convolution, pooling, resizing, slices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot import functional as f
from ingot.compat.refusal import refused
from ingot.compat.trt_enums import (
    ResizeCoordinateTransformation,
    ResizeRoundMode,
    ResizeSelector,
    SampleMode,
)  # fmt: skip
from ingot.dims import Dimension
from ingot.ir import F
from ingot.ir.sizes import as_shape

Given = dict[str, Any]  # arguments and settings by name; tensors are ingot's values, members that name ops its words


def numbers(weights: Any) -> Any:
    """The array of a Weights, or the value that stands in its place; None for none."""
    array = getattr(weights, "array", weights)
    return None if array is None or (isinstance(array, np.ndarray) and not array.size) else array


def _sides(g: Given, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The paddings before and behind; `padding_nd` is for both."""
    both = tuple(g["padding_nd"] or (0,) * rank)
    before, after = (tuple(both if g[side] is None else g[side]) for side in ("pre_padding", "post_padding"))
    return before, after


# ---------------------------------------------------------------------------------------------- convolution, pooling


def convolution(transposed: bool) -> Callable[[Given], Any]:
    """What add_convolution_nd or add_deconvolution_nd computes; a second and third input are weight and bias.

    Sizes and paddings by mode are those of NvInfer.h of TensorRT 10, PaddingMode; a SAME mode takes precedence over
    explicit paddings.
    """

    def make(g: Given) -> Any:
        x, rank, groups = g["input"], len(g["kernel_shape"]), g["num_groups"]
        weight, bias = (g.get(f"input_{i}") for i in (1, 2))
        if weight is None:
            kernel, channels, outputs = tuple(g["kernel_shape"]), x.shape[1], g["num_output_maps"]
            outer = (channels, outputs // groups) if transposed else (outputs, channels // groups)
            weight = np.asarray(numbers(g["kernel"])).reshape(*outer, *kernel)
        bias = numbers(g["bias"]) if bias is None else bias
        before, after = _sides(g, rank)
        mode = g["padding_mode"]
        same = mode.startswith("same")  # TensorRT then takes no explicit padding into account
        sides = {} if same else {"pre_padding": before, "post_padding": after}
        call = getattr(f, f"conv_transpose{rank}d" if transposed else f"conv{rank}d")
        return call(
            x, weight, bias, stride=tuple(g["stride_nd"] or (1,) * rank), groups=groups,
            dilation=tuple(g["dilation_nd"] or (1,) * rank), padding_mode=mode, **sides,
        )  # fmt: skip

    return make


def pooling(g: Given) -> Any:
    """What add_pooling_nd computes. Sizes and paddings by mode are those of NvInfer.h of TensorRT 10, PaddingMode:
    ⌊(M - F) / S⌋ + 1 windows, ⌈(M - F) / S⌉ + 1 for EXPLICIT_ROUND_UP, ⌈I / S⌉ for the SAME modes."""
    if g["type"] != "max_average_blend":
        return _pooled(g, g["type"])
    share = float(g["blend_factor"])
    return f.add(f.mul(_pooled(g, "max_pool"), 1.0 - share), f.mul(_pooled(g, "avg_pool"), share))


def _pooled(g: Given, kind: str) -> Any:
    x, window, mode = g["input"], tuple(g["window_size"]), g["padding_mode"]
    rank = len(window)
    stride, (before, after) = tuple(g["stride_nd"] or (1,) * rank), _sides(g, rank)
    if mode.startswith("same"):
        before, after = _same(x, window, stride, mode)
    ceil = mode == "explicit_round_up"
    if ceil:
        _some_in_each(x.shape[-rank:], window, stride, before, after)
    alone = bool(g["average_count_excludes_padding"])
    pool = getattr(f, f"{kind}{rank}d")
    if before == after and all(2 * side <= size for side, size in zip(before, window, strict=True)):
        more = {"count_include_pad": not alone} if kind == "avg_pool" else {}
        return pool(x, window, stride, before, ceil_mode=ceil, **more)
    counts = [n for pair in reversed(list(zip(before, after, strict=True))) for n in pair]
    if kind == "max_pool":
        return pool(f.pad(x, counts, value=float("-inf")), window, stride, 0, ceil_mode=ceil)
    out = pool(f.pad(x, counts), window, stride, 0, ceil_mode=ceil)
    if not alone:
        return out
    ones = f.pad(f.expand(np.ones((1,) * len(x.shape), dtypes.get(x.dtype).numpy), x.shape), counts)
    return f.div(out, pool(ones, window, stride, 0, ceil_mode=ceil))


def _some_in_each(sizes: Any, window: Any, stride: Any, before: Any, after: Any) -> None:
    """Refuses a last window that TensorRT counts and that covers no element, only padding: nothing says its value."""
    for size, width, step, left, right in zip(sizes, window, stride, before, after, strict=True):
        if step + right <= width:
            continue  # a window reaches back to the last element
        last = -(-(size + left + right - width) // step) * step if isinstance(size, int) else None
        if last is None or last >= size + left:
            raise refused(
                f"add_pooling_nd EXPLICIT_ROUND_UP of size {size} with window {width}, stride {step} and padding "
                f"{left}, {right}", "its last window may cover padding alone; use EXPLICIT_ROUND_DOWN or less padding",
            )  # fmt: skip


def _same(x: Any, window: Any, stride: Any, mode: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Paddings with which there are ⌈size / stride⌉ windows, at least 0; an odd one more lies behind, or before for
    SAME_LOWER."""
    totals = []
    for size, width, step in zip(x.shape[-len(window) :], window, stride, strict=True):
        if not isinstance(size, int):
            raise refused(f"add_pooling_nd {mode} of a size that only a run knows", "give pre_padding and post_padding")
        totals.append(max((-(-size // step) - 1) * step + width - size, 0))
    less, more = tuple(n // 2 for n in totals), tuple(n - n // 2 for n in totals)
    return (less, more) if mode == "same_upper" else (more, less)


# ---------------------------------------------------------------------------------------------- another size


def resize(g: Given) -> Any:
    """What add_resize computes: ingot's resize where it has the mode, else every dimension whose size changes, one
    after the other.

    Scales say only the sizes: where an element is read follows from both, x · (I - 1) / (O - 1) for ALIGN_CORNERS,
    x · I / O for ASYMMETRIC, (x + 0.5) · I / O - 0.5 for HALF_PIXEL (TensorRT's operators documentation, Resize;
    NvInfer.h of TensorRT 10, ResizeCoordinateTransformation).
    """
    x, wanted = g["input"], g["shape"] if g.get("input_1") is None else g["input_1"]
    if (wanted is None) == (g["scales"] is None):
        raise refused("add_resize", "set either shape (or its second input) or scales")
    scales = [None] * len(x.shape) if g["scales"] is None else [float(s) for s in g["scales"]]
    sizes = list(as_shape(wanted)) if wanted is not None else [
        _scaled(size, scale) for size, scale in zip(x.shape, scales, strict=True)
    ]  # fmt: skip
    word = _word(g, x, sizes)
    if word is not None:
        corners = g["coordinate_transformation"] is ResizeCoordinateTransformation.ALIGN_CORNERS
        return F.resize(x, sizes=tuple(sizes[2:]), mode=word, align_corners=corners and g["resize_mode"] != "nearest")
    kind = dtypes.get(x.dtype)
    narrow = g["resize_mode"] != "nearest" and kind.bits < 32
    out = f.cast(x, "float32") if narrow else x
    for axis, size in enumerate(sizes):
        if size != x.shape[axis]:
            out = _resized(out, axis, size, g)
    return f.cast(out, kind) if narrow else out


_NEAREST = {
    (ResizeCoordinateTransformation.ASYMMETRIC, ResizeRoundMode.FLOOR): "nearest",
    (ResizeCoordinateTransformation.HALF_PIXEL, ResizeRoundMode.HALF_UP): "nearest_exact",
}
_CUBIC = -0.75  # the coefficient of the cubic kernel in ingot's resize


def _word(g: Given, x: Any, sizes: Sequence[Dimension]) -> str | None:
    """The mode of ingot's resize that is meant, or None where it has none."""
    where, mode, rank = g["coordinate_transformation"], g["resize_mode"], len(x.shape)
    if rank < 3 or tuple(sizes[:2]) != tuple(x.shape[:2]) or dtypes.get(x.dtype) not in _RESIZED:
        return None
    if g["selector_for_single_pixel"] is ResizeSelector.UPPER and 1 in sizes[2:]:
        return None
    if mode == "nearest":
        return _NEAREST.get((where, g["nearest_rounding"]))
    if where is ResizeCoordinateTransformation.ASYMMETRIC:
        return None
    if mode == "linear":
        return "linear"
    return "cubic" if rank == 4 and float(g["cubic_coeff"]) == _CUBIC and not g["exclude_outside"] else None


_RESIZED = (dtypes.float32, dtypes.bfloat16, dtypes.float16)


def _scaled(size: Dimension, scale: Any) -> Dimension:
    """⌊size · scale⌋"""
    over, under = float(scale).as_integer_ratio()
    if isinstance(size, int):
        return int(size * scale)
    if under > 1 << 10:
        raise refused(f"add_resize of a size that only a run knows by {scale}", "set shape, which may be computed")
    return dims.floordiv(dims.mul(size, over), under)


def _resized(x: Any, axis: int, size: Dimension, g: Given) -> Any:
    """One dimension at its new size."""
    at = _places(x, axis, size, g)
    last: Any = _number(x, axis, -1)
    total: Any = None
    taps = _taps(at, last, g)
    for index, weight in taps:
        part = f.index_select(x, axis, f.cast(f.minimum(f.maximum(index, 0.0), last), "int32"))
        if weight is not None:
            part = f.mul(part, f.view(weight, (size, *[1] * (len(x.shape) - axis - 1)), False))
        total = part if total is None else f.add(total, part)
    return total


def _number(x: Any, axis: int, more: int = 0) -> Any:
    """A size, and so much more, as a float32 operand."""
    size = x.shape[axis]
    return np.float32(size + more) if isinstance(size, int) else f.cast(f.add(f.shape(x, axis), more), "float32")


def _places(x: Any, axis: int, size: Dimension, g: Given) -> Any:
    """Where in the input each element of the result lies, float32 [size]."""
    where, i = g["coordinate_transformation"], f.arange(0, size, "float32")
    before, after = _number(x, axis), size if isinstance(size, int) else f.cast(f.shape(i, 0), "float32")
    after = np.float32(after) if isinstance(after, int) else after
    alone, upper = size == 1, g["selector_for_single_pixel"] is ResizeSelector.UPPER
    if alone and upper:
        return f.mul(i, 0.0)
    if where is ResizeCoordinateTransformation.ALIGN_CORNERS:
        return f.mul(i, 0.0) if alone else f.div(f.mul(i, f.sub(before, 1.0)), f.maximum(f.sub(after, 1.0), 1.0))
    half = where is ResizeCoordinateTransformation.HALF_PIXEL
    centre = f.add(i, 0.5) if half else i
    at = f.div(f.mul(centre, before), after)
    return f.sub(at, 0.5) if half else at


def _taps(at: Any, last: Any, g: Given) -> list[tuple[Any, Any]]:
    """Pairs of places and weights whose sum is the result; places outside mean the edge."""
    mode = g["resize_mode"]
    if mode == "nearest":
        rounding = g["nearest_rounding"]
        return [({
            ResizeRoundMode.HALF_UP: lambda: f.floor(f.add(at, 0.5)),
            ResizeRoundMode.HALF_DOWN: lambda: f.ceil(f.sub(at, 0.5)),
            ResizeRoundMode.FLOOR: lambda: f.floor(at), ResizeRoundMode.CEIL: lambda: f.ceil(at),
        }[rounding](), None)]  # fmt: skip
    if mode == "linear":
        at = f.minimum(f.maximum(at, 0.0), last)
        low = f.floor(at)
        t = f.sub(at, low)
        return [(low, f.sub(1.0, t)), (f.add(low, 1.0), t)]
    low, a = f.floor(at), float(g["cubic_coeff"])
    t = f.sub(at, low)
    found = [(f.add(low, shift), _cubic(f.abs(f.sub(t, shift)), shift in (0.0, 1.0), a)) for shift in _SHIFTS]
    if not g["exclude_outside"]:
        return found
    inside = [f.mul(w, f.cast(f.op_and(f.ge(p, 0.0), f.le(p, last)), "float32")) for p, w in found]
    whole = f.add(f.add(inside[0], inside[1]), f.add(inside[2], inside[3]))
    return [(p, f.div(w, whole)) for (p, _), w in zip(found, inside, strict=True)]


_SHIFTS = (-1.0, 0.0, 1.0, 2.0)


def _cubic(d: Any, near: bool, a: float) -> Any:
    """The cubic kernel at a distance of at most 1 (near), or of 1 to 2."""
    terms = (a + 2, -(a + 3), 0.0, 1.0) if near else (a, -5 * a, 8 * a, -4 * a)
    total: Any = f.mul(d, 0.0)
    for term in terms:
        total = f.add(f.mul(total, d), term)
    return total


# ---------------------------------------------------------------------------------------------- grid sample


_BEYOND = {SampleMode.FILL: "zeros", SampleMode.CLAMP: "border", SampleMode.REFLECT: "reflection"}


def grid_sample(g: Given) -> Any:
    """What add_grid_sample computes: [N, C, H, W] at the places grid [N, Ho, Wo, 2], x and y from -1 to 1."""
    x, grid, mode, beyond = g["input"], g["grid"], g["interpolation_mode"], g["sample_mode"]
    if len(x.shape) != 4:
        raise refused(f"add_grid_sample of {len(x.shape)} dimensions", "give [N, C, H, W]")
    if beyond not in _BEYOND:
        raise refused(f"add_grid_sample with mode {beyond.name}", "FILL, CLAMP or REFLECT")
    found = f.grid_sample(
        f.cast(x, "float32"), f.cast(grid, "float32"), "bilinear" if mode == "linear" else mode, _BEYOND[beyond],
        bool(g["align_corners"]),
    )  # fmt: skip
    return f.cast(found, x.dtype)


# ---------------------------------------------------------------------------------------------- padding


def padded(g: Given) -> Any:
    """What add_padding_nd computes: zeros around the two innermost dimensions; a negative count takes away."""
    x, before, after = g["input"], tuple(g["pre_padding"]), tuple(g["post_padding"])
    if len(before) != 2 or len(after) != 2:
        raise refused("add_padding_nd", "give two counts before and two behind: for the two innermost dimensions")
    rank = len(x.shape)
    lost = [(0, 0)] * (rank - 2) + [(max(-b, 0), max(-a, 0)) for b, a in zip(before, after, strict=True)]
    if any(any(pair) for pair in lost):
        sizes = [dims.add(size, -b - a) for size, (b, a) in zip(x.shape, lost, strict=True)]
        x = f.slice(x, [b for b, _ in lost], sizes)
    return f.pad(x, [max(n, 0) for pair in reversed(list(zip(before, after, strict=True))) for n in pair])
