"""Elementwise expressions as Triton kernels, generated: one loop over a whole tensor, or one row a program with a layer
norm behind the expression.

Their source holds steps of known names, numbers, and strides; nothing of an engine's texts.
"""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any

import triton
import triton.language as tl

from ingot.backends.cuda.launch import power
from ingot.backends.cuda.step_text import lines_of

BLOCK = 1024  # elements of a program
MOST_ELEMENTS = 2**31 - BLOCK  # offsets are 32 bits
MOST_COLUMNS = 16384  # of a normalised row


@lru_cache(maxsize=4096)
def jitted(name: str, text: str) -> Any:
    """The Triton function of a source text that defines `name`."""
    place = f"<ingot {name} {sha256(text.encode()).hexdigest()[:16]}>"
    linecache.cache[place] = (len(text), None, text.splitlines(True), place)  # where Triton looks for it
    space: dict[str, Any] = {"tl": tl, "__name__": __name__}
    exec(compile(text, place, "exec"), space)
    return triton.jit(space[name])


# ---------------------------------------------------------------------------------------------------- a whole tensor


@lru_cache(maxsize=4096)
def whole(steps: tuple[Any, ...], output: int, modes: tuple[Any, ...], rank: int) -> Any:
    """The kernel of an expression over a tensor of `rank` dimensions in memory's order.

    modes: how each operand lies: "linear" as the result does, "scalar", or the dimensions along which it moves.
    """
    used = sorted({d for mode in modes if isinstance(mode, tuple) for d in mode})
    sizes = [f"s{d}" for d in range(1, rank)] if used else []
    strides = [f"t{i}_{d}" for i, mode in enumerate(modes) if isinstance(mode, tuple) for d in mode]
    head = [f"def chain(out, {''.join(f'a{i}, ' for i in range(len(modes)))}"
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
    text = "\n".join([*head, *lines_of(steps, loads), f"    tl.store(out + at, r{output}, mask=ok)"])
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
    numbers: list[int] = []
    for i in range(len(operands)):
        own = [s[1 + i] for s in strides]
        if not any(own):
            modes.append("scalar")
        elif own == [s[0] for s in strides]:
            modes.append("linear")
        else:
            moved = tuple(d for d, s in enumerate(own) if s)
            modes.append(moved)
            numbers += [own[d] for d in moved]
    inner = sizes[1:] if any(isinstance(mode, tuple) for mode in modes) else []
    kernel = whole(steps, output, tuple(modes), len(sizes))
    kernel[(triton.cdiv(n, BLOCK),)](out, *wide, n, *inner, *numbers, BLOCK=BLOCK, num_warps=4)


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
def rows(steps: tuple[Any, ...], output: int, modes: tuple[str, ...], scaled: bool, shifted: bool) -> Any:
    """The kernel of a layer norm over rows of an expression. modes: "rows", "row" (one for all) or "scalar"."""
    names = "".join(f"a{i}, " for i in range(len(modes)))
    loads = {"rows": "tl.load(a{0} + row * k + at, mask=ok, other=0)", "row": "tl.load(a{0} + at, mask=ok, other=0)",
             "scalar": "tl.load(a{0})"}  # fmt: skip
    text = [
        f"def normed(out, {names}gain, shift, k, eps, BK: tl.constexpr):",
        "    row = tl.program_id(0).to(tl.int64)", "    at = tl.arange(0, BK)", "    ok = at < k",
        *lines_of(steps, [loads[mode].format(i) for i, mode in enumerate(modes)]),
        # what the expression alone would have rounded
        f"    x = tl.where(ok, r{output}, 0.0).to(out.dtype.element_ty).to(tl.float32)",
        "    mean = tl.sum(x, axis=0) / k", "    x = tl.where(ok, x - mean, 0.0)",
        "    y = x / tl.sqrt_rn(tl.sum(x * x, axis=0) / k + eps)",
    ]  # fmt: skip
    if scaled:
        text.append("    y = y * tl.load(gain + at, mask=ok, other=0).to(tl.float32)")
    if shifted:
        text.append("    y = y + tl.load(shift + at, mask=ok, other=0).to(tl.float32)")
    text.append("    tl.store(out + row * k + at, y, mask=ok)")
    return jitted("normed", "\n".join(text) + "\n")


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
    steps: tuple[Any, ...], output: int, operands: Sequence[Any], modes: Sequence[str], gain: Any, shift: Any,
    eps: float, out: Any,
) -> None:  # fmt: skip
    """layer_norm(expression) · gain + shift over the last dimension, into `out`, which is contiguous."""
    k = out.shape[-1]
    count = out.numel() // k if k else 0
    if not count:
        return
    kernel = rows(steps, output, tuple(modes), gain is not None, shift is not None)
    wide = power(k)
    kernel[(count,)](
        out, *operands, out if gain is None else gain, out if shift is None else shift, k, eps, BK=wide,
        num_warps=min(8, max(1, wide // 256)),
    )  # fmt: skip
