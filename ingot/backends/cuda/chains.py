"""Elementwise expressions as Triton kernels, generated: one loop over a whole tensor, one row a program with a layer
norm behind the expression, or the expression behind a convolution or product of integers.

Their source holds steps of known names, numbers, and strides; nothing of an engine's texts.
"""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any

import triton
import triton.language as tl
from triton import knobs

from ingot.backends.cuda.launch_shapes import power
from ingot.backends.cuda.row_kernels import as_float8
from ingot.backends.cuda.step_text import apart, lines_of

BLOCK = 1024  # elements of a program
MOST_ELEMENTS = 2**31 - BLOCK  # offsets are 32 bits
MOST_COLUMNS = 16384  # of a normalised row
LEAST_ROW = 2.0**-100  # the largest number of a row of float8 counts as no less


@lru_cache(maxsize=4096)
def jitted(name: str, text: str, general: tuple[str, ...] = ()) -> Any:
    """The Triton function of a source text that defines `name`; general: integers that it is not compiled anew for."""
    place = f"<ingot {name} {sha256(text.encode()).hexdigest()[:16]}>"
    linecache.cache[place] = (len(text), None, text.splitlines(True), place)  # where Triton looks for it
    space: dict[str, Any] = {"tl": tl, "as_float8": as_float8, "__name__": __name__}
    exec(compile(text, place, "exec"), space)
    return triton.jit(space[name], do_not_specialize=general)


def _lines(steps: tuple[Any, ...], output: int, loads: Sequence[str]) -> list[str]:
    return lines_of(steps, output, loads, not knobs.runtime.interpret)


def _names(letter: str, count: int) -> str:
    """Arguments of a kernel's head, each with its comma."""
    return "".join(f"{letter}{i}, " for i in range(count))


# ---------------------------------------------------------------------------------------------------- a whole tensor


@lru_cache(maxsize=4096)
def whole(steps: tuple[Any, ...], output: int, numbers: int, modes: tuple[Any, ...], rank: int) -> Any:
    """The kernel of an expression over a tensor of `rank` dimensions in memory's order. numbers: how many it is given.

    modes: how each operand lies: "linear" as the result does, "scalar", or the dimensions along which it moves.
    """
    used = sorted({d for mode in modes if isinstance(mode, tuple) for d in mode})
    sizes = [f"s{d}" for d in range(1, rank)] if used else []
    strides = [f"t{i}_{d}" for i, mode in enumerate(modes) if isinstance(mode, tuple) for d in mode]
    head = [f"def chain(out, {_names('a', len(modes))}{_names('c', numbers)}"
            f"n, {''.join(f'{name}, ' for name in (*sizes, *strides))}BLOCK: tl.constexpr):",
            "    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)", "    ok = at < n"]  # fmt: skip
    if used:
        head.append("    rest = at")
        for d in range(rank - 1, 0, -1):
            head += [f"    x{d} = rest % s{d}", f"    rest = rest // s{d}"]
        head.append("    x0 = rest")
    loads = []
    for i, mode in enumerate(modes):
        if mode == "scalar":
            loads.append(f"tl.load(a{i})")
        elif mode == "linear":
            loads.append(f"tl.load(a{i} + at, mask=ok)")
        else:
            where = " + ".join(f"x{d} * t{i}_{d}" for d in mode)
            loads.append(f"tl.load(a{i} + {where}, mask=ok)")
    text = "\n".join([*head, *_lines(steps, output, loads), f"    tl.store(out + at, r{output}, mask=ok)"])
    return jitted("chain", text + "\n")


def arranged(
    shape: Sequence[int], strides: Sequence[int], operands: Sequence[Sequence[int]]
) -> tuple[list[int], list[tuple[int, ...]]]:
    """Dimensions in memory's order, neighbours merged where every tensor allows: sizes, and of each a stride for the
    result and every operand. operands: strides in the result's dimensions, 0 where one is broadcast."""
    order = sorted((d for d, n in enumerate(shape) if n != 1), key=lambda d: -strides[d])
    sizes: list[int] = []
    steps: list[tuple[int, ...]] = []
    for d in order:
        here = (strides[d], *(o[d] for o in operands))
        if sizes and all(a == b * shape[d] for a, b in zip(steps[-1], here, strict=True)):
            sizes[-1] *= shape[d]
            steps[-1] = here
        else:
            sizes.append(shape[d])
            steps.append(here)
    return sizes, steps


def run(steps: tuple[Any, ...], output: int, operands: Sequence[Any], out: Any) -> None:
    """Computes an expression over operands that broadcast to `out`, which is dense in some order of its dimensions."""
    n = out.numel()
    if not n:
        return
    wide = [x.expand(out.shape) for x in operands]
    sizes, strides = arranged(out.shape, out.stride(), [x.stride() for x in wide])
    modes: list[Any] = []
    moves: list[int] = []
    for i in range(len(operands)):
        own = [s[1 + i] for s in strides]
        if not any(own):
            modes.append("scalar")
        elif own == [s[0] for s in strides]:
            modes.append("linear")
        else:
            moved = tuple(d for d, s in enumerate(own) if s)
            modes.append(moved)
            moves += [own[d] for d in moved]
    inner = sizes[1:] if any(isinstance(mode, tuple) for mode in modes) else []
    steps, given = apart(steps)
    kernel = whole(steps, output, len(given), tuple(modes), len(sizes))
    kernel[(triton.cdiv(n, BLOCK),)](out, *wide, *given, n, *inner, *moves, BLOCK=BLOCK, num_warps=4)


def is_dense(tensor: Any) -> bool:
    """Whether elements fill their memory, in any order of the dimensions."""
    span = 1
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n != 1):
        if stride != span:
            return False
        span *= size
    return True


# ----------------------------------------------------------------------------------------------- rows, normalised


@lru_cache(maxsize=4096)
def rows(
    steps: tuple[Any, ...], output: int, numbers: int, modes: tuple[str, ...], norm: tuple[bool, bool] | None,
    kept: bool, quantised: str,
) -> Any:  # fmt: skip
    """The kernel of rows of an expression. modes: "rows", "row" (one for all) or "scalar". norm: of a layer norm behind
    it, whether it has a gain and a shift. kept: whether it stores the rows; quantised: whether it stores them in "int8"
    or "float8" too, with a scale for each.
    """
    loads = {"rows": "tl.load(a{0} + row * k + at, mask=ok, other=0)", "row": "tl.load(a{0} + at, mask=ok, other=0)",
             "scalar": "tl.load(a{0})"}  # fmt: skip
    text = [
        f"def rows(out, whole, scales, {_names('a', len(modes))}{_names('c', numbers)}gain, shift, k, eps,"
        " BK: tl.constexpr):",
        "    row = tl.program_id(0).to(tl.int64)", "    at = tl.arange(0, BK)", "    ok = at < k",
        *_lines(steps, output, [loads[mode].format(i) for i, mode in enumerate(modes)]),
        # what the expression alone would have rounded
        f"    y = tl.where(ok, r{output}, 0.0).to(out.dtype.element_ty).to(tl.float32)",
    ]  # fmt: skip
    if norm is not None:
        text += ["    mean = tl.sum(y, axis=0) / k", "    y = tl.where(ok, y - mean, 0.0)",
                 "    y = y / tl.sqrt_rn(tl.sum(y * y, axis=0) / k + eps)"]  # fmt: skip
        if norm[0]:
            text.append("    y = y * tl.load(gain + at, mask=ok, other=0).to(tl.float32)")
        if norm[1]:
            text.append("    y = y + tl.load(shift + at, mask=ok, other=0).to(tl.float32)")
        text.append("    y = y.to(out.dtype.element_ty).to(tl.float32)")
    if kept:
        text.append("    tl.store(out + row * k + at, y, mask=ok)")
    if quantised:
        text += [
            # as integers magnitudes are ordered as they are, and NaNs are the largest
            "    largest = tl.max(tl.where(ok, y.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0), axis=0)",
            "    largest = largest.to(tl.float32, bitcast=True)",
        ]  # fmt: skip
    if quantised == "float8":
        text += [
            f"    largest = tl.maximum(largest, {LEAST_ROW!r}, propagate_nan=tl.PropagateNan.ALL)",
            f"    z = as_float8(y * tl.div_rn(448.0, largest), {not knobs.runtime.interpret})",
            "    tl.store(whole + row * k + at, z, mask=ok)", "    tl.store(scales + row, tl.div_rn(largest, 448.0))",
        ]  # fmt: skip
    elif quantised:
        text += [
            "    z = y * tl.div_rn(127.0, largest)",
            "    z = tl.minimum(tl.maximum(tl.where(z == z, z, 0.0), -127.0), 127.0) + 12582912.0",
            "    tl.store(whole + row * k + at, z.to(tl.int32, bitcast=True) - 0x4B400000, mask=ok)",
            "    tl.store(scales + row, tl.div_rn(largest, 127.0))",
        ]  # fmt: skip
    return jitted("rows", "\n".join(text) + "\n")


def row_mode(operand: Any, shape: Sequence[int]) -> str | None:
    """How rows of an expression of this shape read an operand; None where they cannot."""
    if operand.numel() == 1:
        return "scalar"
    if operand.shape == shape and operand.is_contiguous():
        return "rows"
    if operand.numel() == shape[-1] == operand.shape[-1] and operand.is_contiguous():
        return "row"
    return None


def run_rows(
    steps: tuple[Any, ...], output: int, operands: Sequence[Any], modes: Sequence[str],
    norm: tuple[Any, Any, float] | None, out: Any, kept: bool, quantised: tuple[Any, Any] | None,
) -> None:  # fmt: skip
    """An expression over the rows of `out`, which is contiguous. norm: gain, shift and epsilon of a layer norm behind
    it. kept: whether rows are written into `out`; quantised: where they go in int8 or float8, and their scales.
    """
    k = out.shape[-1]
    count = out.numel() // k if k else 0
    if not count:
        return
    steps, given = apart(steps)
    gain, shift, eps = (None, None, 0.0) if norm is None else norm
    said = None if norm is None else (gain is not None, shift is not None)
    kind = "" if quantised is None else "float8" if quantised[0].is_floating_point() else "int8"
    kernel = rows(steps, output, len(given), tuple(modes), said, kept, kind)
    wide = power(k)
    kernel[(count,)](
        out, *((out, out) if quantised is None else quantised), *operands, *given, out if gain is None else gain,
        out if shift is None else shift, k, eps, BK=wide, num_warps=min(8, max(1, wide // 256)),
    )  # fmt: skip


# ----------------------------------------------------------------------------------------- behind sums of integers

GEOMETRY = ("H", "W", "HO", "WO", "KW", "SH", "SW", "PH", "PW", "DH", "DW")


@dataclass(frozen=True)
class Geometry:
    """A convolution of images [N, H, W, C] in int8; a product of rows is one of 1×1 images. taps: of its kernel.
    pixel: C, where a tap reads more than a pixel's channels: those of its neighbours, one behind the other."""

    size: tuple[int, int]
    out: tuple[int, int]
    taps: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    pixel: int = 0


@dataclass(frozen=True)
class SumTile:
    """What a program computes: so many places and outputs, of so many channels at a time."""

    places: int
    outputs: int
    channels: int
    warps: int = 4
    stages: int = 3


# From the largest on. Of 24 shapes of nets on an H100, one of the three that sum_tiles gives is within a seventh of the
# best of 60, and 3 % slower than it in the mean. 256 outputs gain another percent, and take four times as long to
# compile.
TILES = (
    SumTile(128, 128, 128), SumTile(128, 64, 64), SumTile(64, 128, 128), SumTile(64, 64, 256), SumTile(64, 32, 128),
    SumTile(16, 32, 256),
)  # fmt: skip


def sum_tiles(places: int, outputs: int, channels: int, multiprocessors: int) -> list[SumTile]:
    """Tiles for a size: the largest of which most multiprocessors have one, and the two below."""
    deep, wide = max(32, power(channels)), max(16, power(outputs))
    found = []
    for tile in TILES:
        if tile.places == 128 and (tile.outputs > 64) != (wide > 64):  # of the two largest one
            continue
        tile = SumTile(max(16, min(tile.places, power(places))), min(tile.outputs, wide), min(tile.channels, deep))
        if tile not in found:
            found.append(tile)
    programs = [-(-places // t.places) * -(-outputs // t.outputs) for t in found]
    first = next((i for i, n in enumerate(programs) if n >= 0.7 * multiprocessors), len(found) - 1)
    return found[first : first + 3] if first + 1 < len(found) else found[-2:][::-1]


@lru_cache(maxsize=4096)
def sums(steps: tuple[Any, ...], output: int, numbers: int, modes: tuple[str, ...], biased: bool) -> Any:
    """The kernel of an expression over sums of products of int8, times a scale of x (XS: one a row) and one of each
    output. modes: "sums", "rows" (laid as the result), "row" (one of each output) or "scalar". PIXEL: as Geometry's.
    """
    loads = {"sums": "total", "rows": "tl.load(a{0} + place, mask=ok, other=0)",
             "row": "tl.load(a{0} + column, mask=some, other=0)[None, :]", "scalar": "tl.load(a{0})"}  # fmt: skip
    names = "".join(f"a{i}, " for i, mode in enumerate(modes) if mode != "sums")
    text = [
        f"def sums(out, x, weight, scale, factors, bias, {names}{_names('c', numbers)}n, O, C,",
        f"    {''.join(f'{g}, ' for g in GEOMETRY)}steps, XS: tl.constexpr, PIXEL: tl.constexpr, BM: tl.constexpr,",
        "    BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr):",
        "    row = tl.program_id(0) * BM + tl.arange(0, BM)", "    column = tl.program_id(1) * BN + tl.arange(0, BN)",
        "    inside = row < n", "    some = column < O", "    left = row // WO", "    x0 = row % WO * SW - PW",
        "    y0 = left % HO * SH - PH", "    image = (left // HO).to(tl.int64) * H",
        "    at = tl.arange(0, BK)", "    parts = tl.cdiv(C, BK)",
        "    found = tl.zeros((BM, BN), tl.int32)",
        "    for step in tl.range(0, steps, num_stages=STAGES):",
        "        tap = step // parts", "        channel = step % parts * BK + at", "        used = channel < C",
        "        y = y0 + tap // KW * DH", "        z = x0 + tap % KW * DW",
        "        there = inside & (y >= 0) & (y < H) & (z >= 0) & (z < W)",
        "        line = x + ((image + y) * W + z) * (PIXEL if PIXEL else C)",
        "        a = tl.load(line[:, None] + channel[None, :], mask=there[:, None] & used[None, :], other=0)",
        "        b = weight + column.to(tl.int64)[None, :] * (steps // parts * C) + (tap * C + channel)[:, None]",
        "        b = tl.load(b, mask=some[None, :] & used[:, None], other=0)",
        "        found = tl.dot(a, b, found, out_dtype=tl.int32)",
        "    by = tl.load(factors + column, mask=some, other=0)",
        "    if XS:",
        "        total = found.to(tl.float32) * by[None, :]",
        "        total = total * tl.load(scale + row * XS, mask=inside, other=0)[:, None]",
        "    else:",
        "        total = found.to(tl.float32) * (by * tl.load(scale))[None, :]",
    ]  # fmt: skip
    if biased:
        text.append("    total = total + tl.load(bias + column, mask=some, other=0).to(tl.float32)[None, :]")
    text += [
        "    place = row.to(tl.int64)[:, None] * O + column[None, :]", "    ok = inside[:, None] & some[None, :]",
        *_lines(steps, output, [loads[mode].format(i) for i, mode in enumerate(modes)]),
        f"    tl.store(out + place, r{output}, mask=ok)",
    ]  # fmt: skip
    return jitted("sums", "\n".join(text) + "\n", ("n", *GEOMETRY, "steps"))


def sum_mode(operand: Any, out: Any) -> str | None:
    """How a kernel of sums reads an operand of its expression; None where it cannot. out: channels last, or rows."""
    if operand.numel() == 1:
        return "scalar"
    if operand.shape == out.shape and operand.stride() == out.stride():
        return "rows"
    channel = 1 if out.dim() == 4 else out.dim() - 1
    behind = out.dim() - 1 - channel
    shape = (out.shape[channel], *[1] * behind)
    lone = operand.shape[operand.dim() - len(shape) :] == shape and operand.numel() == shape[0]
    return "row" if lone and operand.is_contiguous() else None


def run_sums(
    steps: tuple[Any, ...], output: int, operands: Sequence[Any], modes: Sequence[str], x: Any, weight: Any, scale: Any,
    factors: Any, bias: Any, geometry: Geometry, tile: SumTile, out: Any,
) -> None:  # fmt: skip
    """An expression over sums of x [places, C] and weight [O, taps · C], in int8, into `out` [places, O] in memory's
    order. operands: None for the sums."""
    outputs, channels = weight.shape[0], weight.numel() // (weight.shape[0] * geometry.taps[0] * geometry.taps[1])
    places = out.numel() // outputs
    steps, numbers = apart(steps)
    kernel = sums(steps, output, len(numbers), tuple(modes), bias is not None)
    several = [t for t in operands if t is not None]
    count = geometry.taps[0] * geometry.taps[1] * -(-channels // tile.channels)
    kernel[(-(-places // tile.places), -(-outputs // tile.outputs))](
        out, x, weight, scale, factors, x if bias is None else bias, *several, *numbers, places, outputs, channels,
        *geometry.size, *geometry.out, geometry.taps[1], *geometry.stride, *geometry.padding, *geometry.dilation, count,
        XS=scale.stride(0) if scale.numel() > 1 else 0, PIXEL=geometry.pixel, BM=tile.places, BN=tile.outputs,
        BK=tile.channels, STAGES=tile.stages, num_warps=tile.warps,
    )  # fmt: skip
