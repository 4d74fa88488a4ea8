"""ONNX's convolutions and pools."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ingot import dims, dtypes
from ingot.dims import Dimension
from ingot.frontends.onnx.ops.common import cast, number, size_value, wide
from ingot.frontends.onnx.table import Call, onnx
from ingot.frontends.table import Ints, MaybeInts, MaybeTensor, Result, Tensor, Unsupported
from ingot.frontends.windows import places_of_largest
from ingot.functional import columns
from ingot.ir import F, Value
from ingot.ir.spec import elements


class Window(NamedTuple):
    """How a window slides over the spatial dimensions. The padding of auto_pad may be sizes."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[Any, ...]
    after: tuple[Any, ...]

    @property
    def extents(self) -> tuple[int, ...]:
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True))


def window(
    x: Value, kernel: Sequence[Any], strides: Ints | None, dilations: Ints | None, pads: Ints | None, auto_pad: str
) -> Window:
    """The window of a node's attributes over x [N, C, *S]."""
    rank = len(x.shape) - 2
    if rank < 1 or len(kernel) != rank or not all(isinstance(k, int) and k > 0 for k in kernel):
        raise Unsupported(f"the kernel {list(kernel)} does not fit {x.spec}, [N, C, ...], or is not known")
    ones = (1,) * rank
    steps, spread = strides or ones, dilations or ones
    around = pads or (0,) * (2 * rank)
    if len(steps) != rank or len(spread) != rank or len(around) != 2 * rank or min(*steps, *spread) < 1:
        raise Unsupported(f"strides {list(steps)}, dilations {list(spread)} or pads {list(around)} do not fit")
    found = Window(tuple(kernel), tuple(steps), tuple(spread), tuple(around[:rank]), tuple(around[rank:]))
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        rows = zip(x.shape[2:], found.extents, found.stride, strict=True)
        sides = [_same(n, e, s, auto_pad == "SAME_UPPER") for n, e, s in rows]
        return found._replace(before=tuple(a for a, _ in sides), after=tuple(b for _, b in sides))
    if auto_pad == "VALID":
        return found._replace(before=(0,) * rank, after=(0,) * rank)
    if auto_pad != "NOTSET":
        raise Unsupported(f"auto_pad {auto_pad:.40} is not known")
    return found


def _same(size: Dimension, extent: int, stride: int, upper: bool) -> tuple[Dimension, Dimension]:
    """The padding before and after, with which ⌈size / stride⌉ windows fit."""
    if extent == 1:
        return 0, 0
    windows = dims.ceil_div(size, stride)
    total = dims.add(dims.mul(dims.add(windows, -1), stride), extent, dims.mul(size, -1))
    if extent < stride:
        if not isinstance(total, int):
            raise Unsupported(f"auto_pad of a window of {extent} that steps by {stride} needs sizes that are known; "
                              "export with explicit pads")  # fmt: skip
        total = max(total, 0)
    if stride == 2 and not isinstance(size, int):  # (extent - 2 + size % 2) // 2 without a quotient of a remainder
        odd, half = extent % 2 == (1 if upper else 0), (extent - (2 if upper else 1)) // 2
        low = dims.add(half, dims.add(dims.mul(windows, 2), dims.mul(size, -1)) if odd else 0)
    else:
        low = dims.floordiv(dims.add(total, 0 if upper else 1), 2)
    return low, dims.add(total, dims.mul(low, -1))


def _fits(over: Window) -> bool:
    """Whether its padding is of numbers, none of which is below 0, as kernels take it."""
    return all(isinstance(n, int) and n >= 0 for n in (*over.before, *over.after))


def _spread(x: Any, over: Window, fill: float) -> tuple[Any, Window]:
    """x with its padding around it where kernels do not take it, and the window over that."""
    if _fits(over):
        return x, over
    none = (0,) * len(over.kernel)
    found = F.pad(x, before=(0, 0, *over.before), after=(0, 0, *over.after), value=fill)
    return found, over._replace(before=none, after=none)


# ------------------------------------------------------------------------------------------------ convolution


def conv(x: Any, weight: Any, bias: Any, over: Window, groups: int) -> Any:
    """A convolution. More than three spatial dimensions, and integers, are beyond the kernels."""
    x, over = _spread(x, over, 0)
    operands = [x, weight] + ([] if bias is None else [bias])
    return F.conv(*operands, stride=over.stride, pre_padding=over.before, post_padding=over.after,
                  dilation=over.dilation, groups=groups)  # fmt: skip


@onnx("Conv")
def conv_(
    x: Tensor, weight: Tensor, bias: MaybeTensor = None, *, auto_pad: str = "NOTSET", dilations: MaybeInts = None,
    group: int = 1, kernel_shape: MaybeInts = None, pads: MaybeInts = None, strides: MaybeInts = None,
) -> Result:  # fmt: skip
    over = window(x, kernel_shape or weight.shape[2:], strides, dilations, pads, auto_pad)
    if kernel_shape is not None and kernel_shape != weight.shape[2:]:
        raise Unsupported(f"kernel_shape {list(kernel_shape)} is not that of the weight, {weight.spec}")
    return conv(x, weight, bias, over, group)


@onnx("ConvTranspose")
def conv_transpose(
    x: Tensor, weight: Tensor, bias: MaybeTensor = None, *, auto_pad: str = "NOTSET", dilations: MaybeInts = None,
    group: int = 1, kernel_shape: MaybeInts = None, output_padding: MaybeInts = None, output_shape: MaybeInts = None,
    pads: MaybeInts = None, strides: MaybeInts = None,
) -> Result:  # fmt: skip
    rank = len(x.shape) - 2
    over = window(x, kernel_shape or weight.shape[2:], strides, dilations, pads, "NOTSET")
    more = output_padding or (0,) * rank
    if any(not 0 <= m < max(s, d) for m, s, d in zip(more, over.stride, over.dilation, strict=True)):
        raise Unsupported(f"output_padding {list(more)} must be less than a step or a dilation")
    before, after = list(over.before), list(over.after)
    if output_shape is not None or auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        wanted = output_shape[-rank:] if output_shape is not None else tuple(
            dims.mul(n, s) for n, s in zip(x.shape[2:], over.stride, strict=True))  # fmt: skip
        for i, (n, out) in enumerate(zip(x.shape[2:], wanted, strict=True)):
            whole = dims.add(dims.mul(dims.add(n, -1), over.stride[i]), over.extents[i] + more[i])
            extra = dims.add(whole, dims.mul(out, -1))
            if not isinstance(extra, int):
                raise Unsupported("output_shape needs sizes that are known")
            extra = max(extra, 0) if output_shape is None else extra
            half = extra // 2
            before[i], after[i] = (half, extra - half) if auto_pad == "SAME_UPPER" else (extra - half, half)
    operands = [x, weight] + ([] if bias is None else [bias])
    return F.conv_transpose(
        *operands, stride=over.stride, pre_padding=tuple(before),
        post_padding=tuple(a - o for a, o in zip(after, more, strict=True)), dilation=over.dilation, groups=group,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------- pools


def _real(x: Any) -> Any:
    """Integers of few bits as floats, which hold them all: pools take floats."""
    return x if x.dtype.is_float else cast(x, dtypes.float32)


MAX_WINDOWS = 1 << 22  # elements of all windows of a channel


class Windows(NamedTuple):
    """Every window of a padded x written out: [N, C, *out, positions], and where its elements stand in x."""

    values: Any
    shape: tuple[int, ...]
    places: Any  # int64 [*out, positions]: the index among the spatial elements of x, −1 in the padding


def _pools(over: Window) -> bool:
    """Whether a pool of ours takes the window: of up to three dimensions, with some element of x in every one."""
    ends = zip((*over.before, *over.after), over.extents * 2, strict=True)
    return len(over.kernel) <= 3 and all(p < e for p, e in ends)


def _counts(x: Value, over: Window, ceil_mode: bool) -> tuple[int, ...]:
    found = []
    rows = zip(x.shape[2:], over.stride, over.extents, over.before, over.after, strict=True)
    for n, s, e, a, b in rows:
        if not isinstance(n, int):
            raise Unsupported("windows written out need sizes that are known")
        free = n + a + b - e
        count = (-(-free // s) if ceil_mode else free // s) + 1
        if ceil_mode and (count - 1) * s >= n + a:
            count -= 1
        found.append(count)
    return tuple(found)


def written_out(x: Any, over: Window, fill: Any, ceil_mode: bool = False, columns_first: bool = False) -> Windows:
    """The windows of x by indices: for what no pool of ours does."""
    counts = _counts(x, over, ceil_mode)
    rank = len(counts)
    if math.prod([max(n, 1) for n in (*counts, *over.kernel)]) > MAX_WINDOWS or min(*counts, *over.kernel) < 0:
        raise Unsupported(f"windows written out would be too large: {list(counts)} of {list(over.kernel)}")
    inside = np.ones((), bool)
    places = np.zeros((), np.int64)
    padded = x
    sizes = [n for n in x.shape[2:] if isinstance(n, int)]
    for i, (n, count) in enumerate(zip(x.shape[2:], counts, strict=True)):
        at = np.arange(count)[:, None] * over.stride[i] - over.before[i] + np.arange(over.kernel[i]) * over.dilation[i]
        ok = (at >= 0) & (at < n)
        inside = inside[..., None, None] & ok
        apart = math.prod(sizes[:i] if columns_first else sizes[i + 1 :])
        places = places[..., None, None] + np.clip(at, 0, n - 1) * apart
        padded = F.take(padded, x.network.constant(np.clip(at, 0, n - 1)), axis=2 + 2 * i)
    order = (0, 1, *range(2, 2 + 2 * rank, 2), *range(3, 3 + 2 * rank, 2))
    values = F.reshape(F.permute(padded, order), (*x.shape[:2], *counts, math.prod(over.kernel)))
    turn = (*range(0, 2 * rank, 2), *range(1, 2 * rank, 2))
    mask = inside.transpose(turn).reshape(*counts, -1)
    where = np.where(mask, places.transpose(turn).reshape(*counts, -1), -1)
    if not mask.all():
        values = F.where(x.network.constant(mask), values, number(x, fill))
    return Windows(values, counts, where)


@onnx("MaxPool")
def max_pool(
    call: Call, x: Tensor, *, kernel_shape: Ints, auto_pad: str = "NOTSET", ceil_mode: bool = False,
    dilations: MaybeInts = None, pads: MaybeInts = None, storage_order: int = 0, strides: MaybeInts = None,
) -> Result:  # fmt: skip
    over = window(x, kernel_shape, strides, dilations, pads, auto_pad)
    indices = call.outputs > 1 and call.wanted[1]
    least = -np.inf if x.dtype.is_float else np.iinfo(x.dtype.numpy).min
    if not indices:
        x, over = _spread(x, over, least)
        if _pools(over) and (x.dtype.is_float or x.dtype.bits <= 16):
            best = F.max_pool(_real(x), kernel=over.kernel, stride=over.stride, pre_padding=over.before,
                              post_padding=over.after, dilation=over.dilation, ceil_mode=ceil_mode)  # fmt: skip
            return cast(best, x.dtype)
    known = dims.all_fixed(x.shape[2:])
    if indices and not known and storage_order == 0 and x.dtype.is_float and _fits(over) and _pools(over):
        best = F.max_pool(x, kernel=over.kernel, stride=over.stride, pre_padding=over.before,
                          post_padding=over.after, dilation=over.dilation, ceil_mode=ceil_mode)  # fmt: skip
        own = places_of_largest(x, best.shape[2:], over.kernel, over.stride, over.before, over.dilation)
        return best, F.add(own, _first_of_each(call, x))
    found = written_out(x, over, least, ceil_mode, storage_order == 1)
    last = len(found.shape) + 2
    best = F.reduce_max(found.values, axes=(last,), keepdims=False)
    if not indices:
        return best
    at = F.argmax(found.values, axis=last, keepdims=True)
    whole = F.expand(x.network.constant(found.places), found.values.shape)
    place = F.reshape(F.gather(whole, at, axis=last), best.shape)
    return best, F.add(place, _first_of_each(call, x))


def _first_of_each(call: Call, x: Any) -> Any:
    """Where each image of x [N, C, *S] begins among all elements: [N, C, 1, …]."""
    n, c = x.shape[:2]
    row = F.iota(size=dims.mul(n, c), dtype=dtypes.int64)
    row = row if isinstance(row, Value) else call.network.constant(row)
    size = size_value(row, elements(x.shape[2:]))
    return F.reshape(F.mul(row, size), (n, c, *[1] * (len(x.shape) - 2)))


@onnx("AveragePool")
def average_pool(
    x: Tensor, *, kernel_shape: Ints, auto_pad: str = "NOTSET", ceil_mode: bool = False,
    count_include_pad: bool = False, dilations: MaybeInts = None, pads: MaybeInts = None, strides: MaybeInts = None,
) -> Result:  # fmt: skip
    over = window(x, kernel_shape, strides, dilations, pads, auto_pad)
    if max(over.dilation) == 1 and not _fits(over):
        return _mean_of_same(x, over, ceil_mode, count_include_pad)
    if max(over.dilation) == 1 and _pools(over):
        return _mean(x, over, ceil_mode, count_include_pad)
    found = written_out(x, over, 0, ceil_mode)
    inside = _counted(x, over, found.shape) if count_include_pad else found.places >= 0
    counts = np.maximum(inside.sum(-1), 1).astype(np.float32)
    total = F.reduce_sum(wide(found.values), axes=(len(found.shape) + 2,), keepdims=False)
    return cast(F.div(total, cast(x.network.constant(counts), total.dtype)), x.dtype)


def _mean(x: Any, over: Window, ceil_mode: bool, padding_counts: bool) -> Any:
    return F.avg_pool(x, kernel=over.kernel, stride=over.stride, pre_padding=over.before, post_padding=over.after,
                      ceil_mode=ceil_mode, count_include_pad=padding_counts)  # fmt: skip


def _mean_of_same(x: Any, over: Window, ceil_mode: bool, padding_counts: bool) -> Any:
    """Of x with a padding of sizes: the mean over all of a window, divided by the share of it that is no padding."""
    whole, plain = _spread(x, over, 0)
    found = _mean(whole, plain, ceil_mode, False)
    if padding_counts:
        return found
    inside, _ = _spread(F.expand(number(x, 1), (1, 1, *x.shape[2:])), over, 0)
    return F.div(found, _mean(inside, plain, ceil_mode, False))


def _counted(x: Value, over: Window, counts: tuple[int, ...]) -> Any:
    """Which elements of each window lie in x or in its padding, [*out, positions]."""
    inside = np.ones((), bool)
    for i, (n, count) in enumerate(zip(x.shape[2:], counts, strict=True)):
        assert isinstance(n, int)
        at = np.arange(count)[:, None] * over.stride[i] + np.arange(over.kernel[i]) * over.dilation[i]
        inside = inside[..., None, None] & (at < n + over.before[i] + over.after[i])
    rank = len(counts)
    return inside.transpose((*range(0, 2 * rank, 2), *range(1, 2 * rank, 2))).reshape(*counts, -1)


@onnx("LpPool")
def lp_pool(
    x: Tensor, *, kernel_shape: Ints, p: int = 2, auto_pad: str = "NOTSET", ceil_mode: bool = False,
    dilations: MaybeInts = None, pads: MaybeInts = None, strides: MaybeInts = None,
) -> Result:  # fmt: skip
    over = window(x, kernel_shape, strides, dilations, pads, auto_pad)
    if p < 1:
        raise Unsupported(f"p must be 1 or more, not {p}")
    power = F.pow(F.abs(x), float(p)) if p != 1 else F.abs(x)
    power, over = _spread(power, over, 0)
    if max(over.dilation) == 1 and _pools(over) and not ceil_mode:
        total = F.mul(_mean(power, over, False, True), float(math.prod(over.kernel)))
    else:
        found = written_out(power, over, 0, ceil_mode)
        total = F.reduce_sum(found.values, axes=(len(found.shape) + 2,), keepdims=False)
    return total if p == 1 else F.pow(total, 1.0 / p)


def _whole(name: str, compute: Callable[..., Any]) -> None:
    @onnx(name)
    def of(x: Tensor) -> Result:
        return compute(x, axes=tuple(range(2, len(x.shape))), keepdims=True)


_whole("GlobalAveragePool", F.reduce_mean)
_whole("GlobalMaxPool", F.reduce_max)


@onnx("GlobalLpPool")
def global_lp_pool(x: Tensor, *, p: int = 2) -> Result:
    if p < 1:
        raise Unsupported(f"p must be 1 or more, not {p}")
    total = F.reduce_sum(F.pow(F.abs(x), float(p)), axes=tuple(range(2, len(x.shape))), keepdims=True)
    return F.pow(total, 1.0 / p)


@onnx("MaxUnpool")
def max_unpool(
    x: Tensor, index: Tensor, shape: MaybeInts = None, *, kernel_shape: Ints, pads: MaybeInts = None,
    strides: MaybeInts = None,
) -> Result:  # fmt: skip
    rank = len(kernel_shape)
    steps, around = strides or (1,) * rank, pads or (0,) * 2 * rank
    plain = tuple(
        dims.add(dims.mul(dims.add(n, -1), s), k - a - b)
        for n, s, k, a, b in zip(x.shape[2:], steps, kernel_shape, around[:rank], around[rank:], strict=True)
    )
    sizes = (*x.shape[:2], *plain)
    count = elements(sizes)
    zeros = F.expand(number(x, 0), (count,))
    flat = elements(x.shape)
    found = F.reshape(F.scatter(zeros, F.reshape(index, (flat,)), F.reshape(x, (flat,)), axis=0), sizes)
    if shape is not None and tuple(shape) != sizes:
        after = tuple(s - n for s, n in zip(shape, sizes, strict=True) if isinstance(n, int))
        found = F.pad(found, before=(0,) * len(sizes), after=after, value=0.0)
    return found


@onnx("Col2Im")
def col2im(
    x: Tensor, image: Ints, block: Ints, *, dilations: MaybeInts = None, pads: MaybeInts = None,
    strides: MaybeInts = None,
) -> Result:  # fmt: skip
    rank = len(image)
    ones, around = (1,) * rank, pads or (0,) * 2 * rank
    return columns.col2im(x, image, block, dilations or ones, around[:rank], around[rank:], strides or ones)
