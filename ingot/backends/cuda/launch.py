"""Launches the kernels of target cuda: block shapes by the sizes of a call, and what it takes beside its tensors.

Tensors are torch's, on one device; the functions run whatever has been launched before on torch's current stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ingot import _lazy

ROWS = 4  # up to so many, weights stay in registers and rows pass by; with more the matrix units pay
INTEGER_ROWS = 2  # the same of integers, if the matrix units take the sizes, and of float8
STEP = 128  # inputs that the matrix units take at a time of up to TILE_ROWS rows
TILE_ROWS = 64  # with more, a program of the matrix units' kernel has more rows than these
EXPANDED_ROWS = 512  # with more, weights of integers become floats for the library's product, one product at a time
MOST_INPUTS = 32768  # of a product whose weight rows are held whole
SPLITS = 16  # of a request's context, at most
KEYS = 32  # that attention takes at a time
LINES = 128  # of queries that prefill attention takes at a time
LEAST_GROUP = 32  # of integers of 4 bits: 16 bytes are of one group
PROGRAMS = 2048  # of decode attention: with more, the context of a request is not divided
IN_THREAD = 64  # elements of a weight of floats that a thread holds
FEW_OUTPUTS = 8192  # of a product of floats whose programs stay
SHARED = 232448  # bytes, of a program's threads, on the GPUs of compute capability 9.0
LIBRARY_UNIT = 16  # outputs and inputs of the library's products of float8 are multiples of this
UNIT = 16  # inputs of a product of integers by few rows are a multiple of this


def power(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


@dataclass(frozen=True)
class Norm:
    """An RMS norm of a product's rows: x / sqrt(mean(x²) + eps) · (gain + shift)."""

    gain: Any
    eps: float
    shift: float


@dataclass(frozen=True)
class Rows:
    """Rows of float8 [T, k], each with a scale: what a product gives another that rounds its rows. dtype: of the rows
    that they stand for."""

    numbers: Any
    scales: Any
    dtype: Any

    def __len__(self) -> int:
        return len(self.numbers)

    def stride(self, dim: int) -> int:
        """As a tensor has it."""
        return int(self.numbers.stride(dim))

    def wide(self) -> Any:
        """The rows that they stand for."""
        return (self.numbers.float() * self.scales[:, None]).to(self.dtype)


@dataclass(frozen=True)
class Weight:
    """What a product multiplies rows with, [n, k]; `second` makes it silu(x · wᵀ) · (x · secondᵀ).

    scales: of int8 and float8_e4m3fn, one an output; with `group`, of 4 bits in bytes [n, k / 2] (`packed`), one a
    group.
    """

    first: Any
    scales: Any = None
    second: Any = None
    second_scales: Any = None
    group: int = 0

    @property
    def integers(self) -> bool:
        """Whether it holds integers."""
        return self.scales is not None and not self.first.is_floating_point()

    @property
    def float8(self) -> bool:
        """Whether it holds floats of 8 bits."""
        return self.scales is not None and not self.integers

    @property
    def outputs(self) -> int:
        """n."""
        return int(self.first.shape[0])

    @property
    def inputs(self) -> int:
        """k."""
        return int(self.first.shape[1]) * (2 if self.group else 1)


@dataclass(frozen=True)
class Mixture:
    """The experts of a mixture, one behind the other: gates and ups [experts · inner, hidden], downs [experts · hidden,
    inner]. top: experts of a row; normalize: whether their shares sum to 1.
    """

    gates: Any
    ups: Any
    downs: Any
    experts: int
    top: int
    normalize: bool


@dataclass(frozen=True)
class Block:
    """What a program of a product of integers by few rows has at a time: `rows` of the weight, of these `chunks` (a
    power of two) of 16 bytes each. resident: programs for each multiprocessor.
    """

    warps: int
    rows: int
    chunks: int
    resident: int


@dataclass(frozen=True)
class Tile:
    """What a program of a product of up to TILE_ROWS rows by the matrix units has: so many outputs (of a pair, twice),
    and one of `splits` parts of the inputs. stages: steps that are under way at once.
    """

    outputs: int
    warps: int
    splits: int
    stages: int


@dataclass(frozen=True)
class Form:
    """How attention computes. cos, sin: float32 [T, R], by which queries and keys are rotated; None: they are not.
    halves: whether pairs are i and i + R. window: 0 is none; softcap: 0 is none; slopes: float32 [H], of ALiBi.
    """

    scale: float
    cos: Any = None
    sin: Any = None
    halves: bool = True
    window: int = 0
    softcap: float = 0.0
    slopes: Any = None

    @property
    def flags(self) -> dict[str, bool]:
        """What the kernels are compiled for."""
        return {"WINDOW": self.window > 0, "SOFTCAP": self.softcap > 0, "ALIBI": self.slopes is not None}


def _held(inputs: int, parts: int) -> tuple[int, int]:
    """Warps of a program that holds whole rows of weights of floats, of so many at once, and how many rows."""
    wide = power(inputs)
    warps = 4 if wide <= 8192 else min(16, wide // 2048)
    return warps, max(1, IN_THREAD * 32 * warps // wide // parts)


def _kind(weight: Weight) -> str:
    """What a weight holds, by name."""
    return "int4" if weight.group else str(weight.first.dtype).removeprefix("torch.")


def step_of(weight: Weight) -> int:
    """Inputs that the matrix units take of a weight of integers at a time; 0 for sizes that they do not take."""
    step = weight.group or 128
    return step if weight.inputs % step == 0 and 64 <= step <= 256 else 0


def packed(torch: Any, weight: Any, group: int) -> Any:
    """Integers of 4 bits, int8 [n, k], as the kernels read them: uint8 [n, k / 2].

    Byte j of a group holds its elements j and j + group / 2, as q + 8 each.
    """
    n, k = weight.shape
    halves = (weight + 8).to(torch.uint8).view(n, k // group, 2, group // 2)
    return (halves[:, :, 0] | (halves[:, :, 1] << 4)).reshape(n, k // 2).contiguous()


def unpacked(torch: Any, weight: Any, group: int) -> Any:
    """The int8 [n, k] of what `packed` gave."""
    n, half = weight.shape
    halves = weight.view(n, 2 * half // group, 1, group // 2)
    return (torch.cat([halves & 15, halves >> 4], 2).reshape(n, 2 * half)).to(torch.int8) - 8


@dataclass
class Launcher:
    """The kernels on one device. `dependent`: whether each is started while the one before it still runs.

    blocks, tiles: for products of (outputs, inputs, parts, "int4" or the weight's dtype), and for tiles rows,
    where others than `shape`, `block` and `tile` give are wanted.
    """

    torch: Any
    dependent: bool = False
    blocks: dict[tuple[int, int, int, str], Block] = field(default_factory=dict)
    tiles: dict[tuple[int, int, int, str, int], Tile] = field(default_factory=dict)
    _zeros: dict[int, Any] = field(default_factory=dict)

    @cached_property
    def native(self) -> bool:
        """Whether kernels are compiled; Triton's interpreter takes no instructions of a GPU."""
        return not _lazy.load("triton").knobs.runtime.interpret

    @cached_property
    def kernels(self) -> Any:
        """The module of kernels."""
        return _lazy.load("ingot.backends.cuda.kernels")

    @cached_property
    def integer_kernels(self) -> Any:
        """The module of those for integers."""
        return _lazy.load("ingot.backends.cuda.integer_kernels")

    @cached_property
    def expert_kernels(self) -> Any:
        """The module of those for mixtures of experts."""
        return _lazy.load("ingot.backends.cuda.expert_kernels")

    @cached_property
    def plane_kernels(self) -> Any:
        """The module of those for integers and more rows."""
        return _lazy.load("ingot.backends.cuda.plane_kernels")

    def zeros(self, count: int, device: Any) -> Any:
        """Counters of programs, int32, at the same address in every run. Kernels leave them as zeros."""
        size = power(count)
        if size not in self._zeros:
            self._zeros[size] = self.torch.zeros(size, dtype=self.torch.int32, device=device)
        return self._zeros[size]

    @cached_property
    def multiprocessors(self) -> int:
        """Of the device; when interpreting one, so that programs have several blocks."""
        return int(self._properties.multi_processor_count) if self.torch.cuda.is_available() else 1

    @cached_property
    def shared(self) -> int:
        """Bytes of memory that the threads of a program share, at most."""
        return int(self._properties.shared_memory_per_block_optin) if self.torch.cuda.is_available() else SHARED

    @property
    def _properties(self) -> Any:
        cuda = self.torch.cuda
        return cuda.get_device_properties(cuda.current_device())

    @cached_property
    def options(self) -> dict[str, Any]:
        """What every launch is told."""
        return {"launch_pdl": True} if self.dependent else {}

    def product(
        self, x: Any, weight: Weight, out: Any, norm: Norm | None = None, extra: Any = None, rounds: bool = False
    ) -> None:
        """out[T, n] = norm(x)[T, k] · weightᵀ, plus `extra` [T, n] or [n]. Rows may lie apart in x, extra and out.

        rounds: whether rows, normalised, are rounded to float8 before a weight of float8, each with a scale. x, and out
        of a pair, may be `Rows` where the library multiplies them (`by_library`).
        """
        rows = len(x)
        few = INTEGER_ROWS if weight.float8 else ROWS
        if rounds and rows > few:
            self._rounded(x, weight, out, norm, extra)
            return
        integers = weight.integers
        if integers and INTEGER_ROWS < rows <= TILE_ROWS and step_of(weight):
            self._planes(x, weight, out, norm, extra)
            return
        if weight.float8 and few < rows <= EXPANDED_ROWS and x.dtype == self.torch.bfloat16:
            halves = self._as_rows(x, norm, self.torch.float16)
            self._tiles(halves.numbers, weight, out, extra, halves.scales)
            return
        if rows > few or (integers and weight.inputs % UNIT):
            if norm is not None:
                normed = self.torch.empty((rows, weight.inputs), dtype=x.dtype, device=x.device)
                self.norm(x, norm, normed)
                x = normed
            if weight.scales is not None and rows > EXPANDED_ROWS:
                weight = self._expanded(weight, x.dtype)
            whole = weight.scales is None and x.dtype == out.dtype
            (self._whole if whole else self._tiles)(x, weight, out, extra)
            return
        n, k = weight.outputs, weight.inputs
        stride = extra.stride(0) if extra is not None and extra.dim() == 2 else 0
        gain, eps, shift = (norm.gain, norm.eps, norm.shift) if norm else (x, 0.0, 0.0)
        flags = {"NORM": norm is not None, "PAIR": weight.second is not None, "EXTRA": extra is not None,
                 "DEPENDENT": self.dependent}  # fmt: skip
        numbers = (eps, shift, x.stride(0), stride, out.stride(0))
        if not integers:
            shape = self.shape(weight, rows)
            whole = -(-n // shape.rows)
            stays = shape.resident > 0 and rows == 1 and weight.second is None
            programs = min(whole, self.multiprocessors * shape.resident) if stays else whole
            self.kernels.product_rows[(programs,)](
                x, gain, weight.first, *_or(x, weight.second, weight.scales, weight.second_scales, extra), out, n, k,
                *numbers, ROWS=rows, BN=shape.rows, BK=power(k), SCALED=weight.scales is not None, ROUNDS=rounds,
                NATIVE=self.native, STAYS=stays, num_warps=shape.warps, **flags, **self.options,
            )  # fmt: skip
            return
        block = self.block(weight, rows)
        words = [None if w is None else w.view(self.torch.int32) for w in (weight.first, weight.second)]
        line = weight.first.shape[1] // 16
        self.integer_kernels.product_integers[(min(-(-n // block.rows), self.multiprocessors * block.resident),)](
            x, gain, words[0], *_or(x, words[1], weight.scales, weight.second_scales, extra), out, n, *numbers,
            ROWS=rows, R=power(rows), K=k, BN=block.rows, CHUNKS=block.chunks, PARTS=-(-line // block.chunks),
            HALF=weight.group // 2, NATIVE=self.native, num_warps=block.warps,
            **flags, **self.options,
        )  # fmt: skip

    def shape(self, weight: Weight, rows: int) -> Block:
        """What a program of a product of floats has at a time: rows of the weight, whole. Where there are few outputs,
        and several blocks of them for each program, programs stay (`resident` is not 0).
        """
        n, wide = weight.outputs, power(weight.inputs)
        parts = 2 if weight.second is not None else 1
        key = (n, weight.inputs, parts, _kind(weight))
        if key in self.blocks:
            return self.blocks[key]
        if weight.float8 and rows == 1:  # the best of twelve on an H200
            warps, held = (4, 2 * IN_THREAD) if wide <= 8192 else (8, 4 * IN_THREAD)
            return Block(warps, min(max(1, held * 32 * warps // wide), power(n)), 0, 0)
        size = weight.first.element_size()
        if rows == parts == 1 and n <= FEW_OUTPUTS and size <= 2:
            warps = 8 if wide <= 8192 else 16
            held = IN_THREAD * 32 * warps // wide
            if n >= 3 * held * self.multiprocessors * 16 // warps:
                return Block(warps, held, 0, 16 // warps)
        warps = 4 if wide <= 8192 else min(16, wide // 2048)
        return Block(warps, min(max(1, IN_THREAD * 32 * warps // wide // parts), power(n)), 0, 0)

    def block(self, weight: Weight, rows: int) -> Block:
        """What a program of a product of integers has at a time: the best of some 20 each, on an H200."""
        n, k, parts = weight.outputs, weight.inputs, 2 if weight.second is not None else 1
        key = (n, k, parts, _kind(weight))
        if key in self.blocks:
            return self.blocks[key]
        line = power(k // (32 if weight.group else 16))
        chunks = min(line, 128 if weight.group else 256)
        if line > chunks:  # a thread holds much of x
            wide = rows == 2 and not weight.group
            chunks = 512 if wide else 256
            warps, held, resident = (8, 4, 2) if rows == 1 else (16, 4, 1) if wide else (8, 2, 1)
        elif rows > 1:
            warps, held, resident = 4 if weight.group else 8, 4 // parts, 3 if rows == 2 else 2
        elif parts > 1:
            warps, held, resident = (2, 2, 6) if weight.group else (4, 4, 3)
        else:
            warps, held, resident = (4, 8, 4 if n > 16384 else 2) if weight.group else (8, 4, 4)
        used = max(1, min(warps, chunks // 32))
        return Block(used, min(held, power(n)), min(chunks, line), resident * warps // used)

    def tile(self, weight: Weight, rows: int) -> Tile:
        """What a program of a product of integers by the matrix units has: near the best of some five each, on an
        H100, as far as memory that is shared by a program's threads allows.
        """
        n, k, parts = weight.outputs, weight.inputs, 2 if weight.second is not None else 1
        high = max(16, power(rows))
        key = (n, k, parts, _kind(weight), high)
        if key in self.tiles:
            return self.tiles[key]
        few = high == 16
        outputs = 64 if parts == 2 and few and not weight.group else 128
        blocks, step = -(-n // outputs), step_of(weight)
        programs = self.multiprocessors * (2 if few and weight.group and parts == 1 else 1)
        splits = max(1, min(8, programs // blocks, k // step))
        stages = (4 if few else 3) if parts == 2 else 6 if few and not weight.group else 4
        held = outputs * parts * step // (2 if weight.group else 1) + 3 * high * step
        return Tile(outputs, 8, splits, max(1, min(stages, (self.shared - 8192) // held)))

    def float8_tile(self, weight: Weight, rows: int) -> Tile:
        """What a program of a product of float8 by the matrix units has: two, or more, are on each multiprocessor."""
        n, k, parts = weight.outputs, weight.inputs, 2 if weight.second is not None else 1
        high = max(16, power(rows))
        key = (n, k, parts, _kind(weight), high)
        if key in self.tiles:
            return self.tiles[key]
        splits = max(1, min(8, 2 * self.multiprocessors // -(-n // 64), k // STEP))
        return Tile(64, 4, splits, 3 if parts == 2 and high > 32 else 4)

    def _planes(self, x: Any, weight: Weight, out: Any, norm: Norm | None, extra: Any) -> None:
        torch, rows, n, k = self.torch, int(x.shape[0]), weight.outputs, weight.inputs
        found = torch.empty((3, rows, k), dtype=torch.int8, device=x.device)
        back = torch.empty(rows, dtype=torch.float32, device=x.device)
        gain, eps, shift = (norm.gain, norm.eps, norm.shift) if norm else (x, 0.0, 0.0)
        self.plane_kernels.planes[(rows,)](
            x, gain, found, back, rows, k, eps, shift, x.stride(0), BK=power(k), NORM=norm is not None,
            DEPENDENT=self.dependent, num_warps=8, **self.options,
        )  # fmt: skip
        tile, high = self.tile(weight, rows), max(16, power(rows))
        blocks = -(-n // tile.outputs)
        partial = found
        if tile.splits > 1:
            size = (blocks, tile.splits, 2, tile.outputs, high)
            partial = torch.empty(size, dtype=torch.float32, device=x.device)
        stride = extra.stride(0) if extra is not None and extra.dim() == 2 else 0
        self.plane_kernels.product_planes[(blocks, tile.splits)](
            found, back, weight.first, *_or(x, weight.second, weight.scales, weight.second_scales, extra), out, partial,
            self.zeros(blocks, x.device), rows, n, stride, out.stride(0), K=k, BM=high, BN=tile.outputs,
            BK=step_of(weight), SPLITS=tile.splits, HALF=weight.group // 2, PAIR=weight.second is not None,
            EXTRA=extra is not None, NATIVE=self.native, STAGES=tile.stages, DEPENDENT=self.dependent,
            num_warps=tile.warps, **self.options,
        )  # fmt: skip

    def by_library(self, weight: Weight, rows: int, dtype: Any) -> bool:
        """Whether the library multiplies so many rows of float8 with a weight of float8."""
        fits = weight.outputs % LIBRARY_UNIT == weight.inputs % LIBRARY_UNIT == 0 and dtype == self.torch.bfloat16
        return weight.float8 and rows > TILE_ROWS and fits

    def blank_rows(self, rows: int, width: int, dtype: Any, device: Any, kind: Any = None) -> Rows:
        """Memory for rows of float8, or of another kind."""
        numbers = self.torch.empty((rows, width), dtype=kind or self.torch.float8_e4m3fn, device=device)
        return Rows(numbers, self.torch.empty(rows, dtype=self.torch.float32, device=device), dtype)

    def _as_rows(self, x: Any, norm: Norm | None, kind: Any = None) -> Rows:
        """Rows as float8, or as float16 with scales, normalised before."""
        if isinstance(x, Rows):
            return x
        rows, k = x.shape
        found = self.blank_rows(rows, k, x.dtype, x.device, kind)
        gain, eps, shift = (norm.gain, norm.eps, norm.shift) if norm else (x, 0.0, 0.0)
        kernel, flags = self.kernels.float8_rows, {"NATIVE": self.native}
        if kind is not None:
            kernel, flags = self.kernels.half_rows, {}
        kernel[(rows,)](
            x, gain, found.numbers, found.scales, k, eps, shift, x.stride(0), BK=power(k), NORM=norm is not None,
            DEPENDENT=self.dependent, num_warps=8, **flags, **self.options,
        )  # fmt: skip
        return found

    def _rounded(self, x: Any, weight: Weight, out: Any, norm: Norm | None, extra: Any) -> None:
        """Rows of float8 by weights of float8: many by the library."""
        torch, rows = self.torch, self._as_rows(x, norm)
        found, back = rows.numbers, rows.scales
        if not self.by_library(weight, len(x), out.dtype):
            self._tiles(found, weight, out, extra, back)
            return
        parts = [(weight.first, weight.scales), (weight.second, weight.second_scales)]
        sums = [
            torch._scaled_mm(
                found, w.T, scale_a=back[:, None], scale_b=s[None, :], out_dtype=out.dtype, use_fast_accum=True
            )
            for w, s in parts
            if w is not None
        ]
        if isinstance(out, Rows):
            n = weight.outputs
            self.kernels.gated_float8[(len(x),)](
                *sums, out.numbers, out.scales, n, sums[0].stride(0), sums[1].stride(0), BN=power(n),
                NATIVE=self.native, DEPENDENT=self.dependent, num_warps=16 if n > 8192 else 8, **self.options,
            )  # fmt: skip
            return
        if len(sums) == 2:
            self.gated(sums[0], sums[1], out)
        if extra is not None:
            torch.add(out if len(sums) == 2 else sums[0], extra, out=out)
        elif len(sums) == 1:
            out.copy_(sums[0])

    def _expanded(self, weight: Weight, dtype: Any) -> Weight:
        """The numbers that integers or floats of 8 bits and scales stand for, for as long as one product takes."""
        n, k, torch = weight.outputs, weight.inputs, self.torch
        made: list[Any] = []
        for stored, scales in ((weight.first, weight.scales), (weight.second, weight.second_scales)):
            if stored is None:
                continue
            out = torch.empty((n, k), dtype=dtype, device=stored.device)
            if weight.group:
                self.kernels.expand_groups[(-(-n // 32), k // weight.group)](
                    stored, scales, out, n, k, BN=32, HALF=weight.group // 2, DEPENDENT=self.dependent, num_warps=4,
                    **self.options,
                )  # fmt: skip
            else:
                wide = min(512, power(k))
                self.kernels.expand_rows[(-(-n // 8), -(-k // wide))](
                    stored, scales, out, n, k, BN=8, BK=wide, FLOATS=not weight.integers, DEPENDENT=self.dependent,
                    num_warps=4, **self.options,
                )  # fmt: skip
            made.append(out)
        return Weight(made[0], second=made[1] if len(made) > 1 else None)

    def adds_in_place(self, weight: Weight, x: Any, extra: Any) -> bool:
        """Whether `product` may write over what it adds: the library does, and copies it first where it may not."""
        one = weight.scales is None and weight.second is None
        return one and len(x) > ROWS and tuple(extra.shape) == (len(x), weight.outputs) and extra.dtype == x.dtype

    def _whole(self, x: Any, weight: Weight, out: Any, extra: Any) -> None:
        """By the library's product of whole matrices."""
        torch = self.torch
        if weight.second is None and extra is not None and extra.dtype == x.dtype:
            torch.addmm(extra, x, weight.first.T, out=out)
            return
        if weight.second is not None:
            a, b = (torch.mm(x, w.T) for w in (weight.first, weight.second))
            self.gated(a, b, out)
        else:
            torch.mm(x, weight.first.T, out=out)
        if extra is not None:
            out += extra

    def _tiles(self, x: Any, weight: Weight, out: Any, extra: Any, back: Any = None) -> None:
        """By the matrix units. back: the scales of rows of float8."""
        rows, n, k = int(x.shape[0]), weight.outputs, weight.inputs
        stride = extra.stride(0) if extra is not None and extra.dim() == 2 else 0
        tensors = (weight.first, *_or(x, weight.second, weight.scales, weight.second_scales, extra), out)
        numbers = (rows, n, k, x.stride(0), stride, out.stride(0))
        few = rows <= TILE_ROWS
        high, step = (max(16, power(rows)), STEP) if few else (128, STEP // 2)
        tile = Tile(32, 4, 1, 4) if few else Tile(64 if weight.second is not None else 128, 8, 1, 3)
        if few and weight.float8:
            tile = self.float8_tile(weight, rows)
        wide = tile.outputs
        flags = {"PAIR": weight.second is not None, "EXTRA": extra is not None, "DEPENDENT": self.dependent}
        blocks = -(-n // wide)
        if weight.group:
            self.kernels.group_tiles[(-(-rows // high), blocks)](
                x, *tensors, *numbers, BM=high, BN=wide, HALF=weight.group // 2, STAGES=tile.stages,
                num_warps=tile.warps, **flags, **self.options,
            )  # fmt: skip
            return
        partial = x
        if tile.splits > 1:
            size = (blocks, tile.splits, 2, wide, high)
            partial = self.torch.empty(size, dtype=self.torch.float32, device=x.device)
        self.kernels.product_tiles[(-(-rows // high), blocks, tile.splits)](
            x, *_or(x, back), *tensors, partial, self.zeros(blocks, x.device), *numbers, BM=high, BN=wide, BK=step,
            SPLITS=tile.splits, SCALED=weight.scales is not None, ROUNDED=back is not None, STAGES=tile.stages,
            num_warps=tile.warps, **flags, **self.options,
        )  # fmt: skip

    def experts(self, x: Any, router: Any, of: Mixture, out: Any) -> None:
        """out[T, hidden]: each row of x through the experts that its scores choose, router [T, experts] of float32."""
        torch, kernels, device = self.torch, self.expert_kernels, x.device
        rows, hidden = x.shape
        inner, pairs, top = of.downs.shape[1], rows * of.top, of.top
        told = {"DEPENDENT": self.dependent, **self.options}
        chosen = torch.empty((rows, top), dtype=torch.int32, device=device)
        shares = torch.empty((rows, top), dtype=torch.float32, device=device)
        kernels.route[(rows,)](
            router, chosen, shares, of.experts, router.stride(0), TOP=top, TP=power(top), BE=power(of.experts),
            NORMALIZE=of.normalize, num_warps=1, **told,
        )  # fmt: skip
        between = torch.empty((pairs, inner), dtype=x.dtype, device=device)
        if rows <= ROWS:
            (up_warps, up_rows), (down_warps, down_rows) = _held(hidden, 2), _held(inner, 1)
            kernels.gated_rows[(pairs, -(-inner // up_rows))](
                x, of.gates, of.ups, chosen, between, inner, hidden, x.stride(0), TOP=top, BN=up_rows,
                BK=power(hidden), num_warps=up_warps, **told,
            )  # fmt: skip
            kernels.mixed_rows[(rows, -(-hidden // down_rows))](
                between, of.downs, chosen, shares, out, hidden, inner, out.stride(0), TOP=top, BN=down_rows,
                BK=power(inner), num_warps=down_warps, **told,
            )  # fmt: skip
            return
        order = torch.empty(pairs, dtype=torch.int32, device=device)
        starts = torch.empty(of.experts + 1, dtype=torch.int32, device=device)
        kernels.order_pairs[(of.experts,)](chosen, order, starts, pairs, BP=1024, num_warps=4, **told)
        high = min(128, max(16, power(pairs // of.experts)))
        few = high <= TILE_ROWS
        tiles = pairs // high + min(of.experts, pairs)  # at most: each expert's last one may be short
        sizes = {"TOP": top, "BE": power(of.experts), "BM": high, "BK": STEP // 2, "STAGES": 4 if few else 3}
        kernels.expert_tiles[(-(-inner // 64), tiles)](
            x, of.gates, of.ups, order, starts, shares, between, of.experts, inner, hidden, x.stride(0), BN=64,
            GATED=True, num_warps=4 if few else 8, **sizes, **told,
        )  # fmt: skip
        parts = torch.empty((pairs, hidden), dtype=torch.float32, device=device)
        wide = 64 if few else 128
        kernels.expert_tiles[(-(-hidden // wide), tiles)](
            between, of.downs, of.downs, order, starts, shares, parts, of.experts, hidden, inner, inner, BN=wide,
            GATED=False, num_warps=4 if few else 8, **sizes, **told,
        )  # fmt: skip
        size = min(1024, power(hidden))
        kernels.sum_pairs[(rows, -(-hidden // size))](
            parts, out, hidden, out.stride(0), TOP=top, BN=size, num_warps=4, **told
        )

    def gated(self, a: Any, b: Any, out: Any) -> None:
        """out = silu(a) · b; rows may lie apart in all of them."""
        rows, n = a.shape
        size = min(2048, power(n))
        self.kernels.gated[(rows, -(-n // size))](
            a, b, out, n, a.stride(0), b.stride(0), out.stride(0), BN=size, DEPENDENT=self.dependent, num_warps=4,
            **self.options,
        )  # fmt: skip

    def norm(self, x: Any, norm: Norm, out: Any) -> None:
        """out[T, k], the normalised rows of x."""
        k = int(x.shape[1])
        self.kernels.rms_norm[(x.shape[0],)](
            x, norm.gain, out, k, norm.eps, norm.shift, x.stride(0), out.stride(0), BK=power(k),
            DEPENDENT=self.dependent, num_warps=4, **self.options,
        )  # fmt: skip

    def decode(
        self, q: Any, key: Any, value: Any, slot: Any, state: Any, context_len: Any, block_table: Any, out: Any,
        form: Form,
    ) -> None:  # fmt: skip
        """Attention of one row a request, q [B, H, D], over its cached tokens and its own, into out [B, H · D].

        Rotates q and key, and writes key and value [B, KV, D] to the slots of the state [blocks, size, 2, KV, D], which
        holds q's type or float8_e4m3fn; or int8 [blocks, size, 2, KV, D + 4], in the last four a float32 scale. Rows
        may lie apart in q, key, value and out.
        """
        torch = self.torch
        requests, heads, width = q.shape
        blocks, size, _, kv, stored = state.shape
        most = max(1, power(PROGRAMS // (requests * kv)))  # few programs have much to do: the context is divided
        splits = min(SPLITS, most, power(block_table.shape[1] * size // KEYS))
        parts = torch.empty((requests, heads, splits, width), dtype=torch.float32, device=q.device)
        maxima, weights = torch.empty((2, requests, heads, splits), dtype=torch.float32, device=q.device)
        cos, sin, slopes = _or(q, form.cos, form.sin, form.slopes)
        self.kernels.decode_attention[(requests, kv, splits)](
            q, key, value, cos, sin, slot, state, _scales_in(torch, state), context_len, block_table, slopes, parts,
            maxima, weights, self.zeros(requests * kv, q.device), out, form.scale, form.softcap, form.window,
            q.stride(0), key.stride(0), value.stride(0), out.stride(0), block_table.stride(0), blocks * size,
            state.stride(0),
            HEADS=heads, KV=kv, D=width, W=stored, **self._rotation(form, width), BLOCK=size, BT=KEYS,
            GM=max(16, power(heads // kv)), GP=power(heads // kv), SPLITS=splits, **form.flags, NATIVE=self.native,
            DEPENDENT=self.dependent, num_warps=4 if width * q.element_size() <= 256 else 8, **self.options,
        )  # fmt: skip

    def prefill(
        self, q: Any, key: Any, value: Any, slot: Any, state: Any, tiles: Any, query_start: Any, context_len: Any,
        block_table: Any, out: Any, form: Form,
    ) -> None:  # fmt: skip
        """As `decode`, of any number of rows a request: q [T, H, D]. tiles: `tiles_of` these rows, on the device."""
        tokens, heads, width = q.shape
        blocks, size, _, kv, stored = state.shape
        scales = _scales_in(self.torch, state)
        cos, sin, slopes = _or(q, form.cos, form.sin, form.slopes)
        turned = q if form.cos is None else self.torch.empty((tokens, heads, width), dtype=q.dtype, device=q.device)
        self.kernels.rotate_write[(tokens,)](
            q, key, value, cos, sin, slot, state, scales, turned, q.stride(0), key.stride(0), value.stride(0),
            blocks * size, HEADS=heads, HB=power(heads), KV=kv, KB=power(kv), D=width, W=stored,
            **self._rotation(form, width), NATIVE=self.native, DEPENDENT=self.dependent, num_warps=4, **self.options,
        )  # fmt: skip
        lines = lines_of(heads // kv)
        keys, stages, warps = self.steps(width, q.element_size(), lines, stored > width)
        self.kernels.prefill_attention[(len(tiles), kv)](
            turned, state, scales, tiles, query_start, context_len, block_table, slopes, out, tokens, form.scale,
            form.softcap, form.window, turned.stride(0), block_table.stride(0), blocks, state.stride(0), HEADS=heads,
            KV=kv, D=width, W=stored, BLOCK=size, BM=lines, BN=keys, STAGES=stages, **form.flags,
            DEPENDENT=self.dependent, num_warps=warps, **self.options,
        )  # fmt: skip

    def steps(self, width: int, size: int, lines: int, scaled: bool = False) -> tuple[int, int, int]:
        """Keys that prefill attention takes at a time, how many such steps are under way, and warps: as many as fit,
        with the queries, into the memory that a program's threads share. size: bytes of an element of the queries.
        scaled: whether the cache holds int8 with scales, which take registers until they are as wide: the best of ten.
        """
        if scaled and size == 2:
            return KEYS, 2, 4
        many = [(KEYS, 3), (KEYS, 2), (KEYS, 1)]
        if size == 2:
            many = [(128, 2), (64, 3), (64, 2), (32, 2)]
        fits = [(keys, n) for keys, n in many if (2 * n * keys + lines) * width * size <= self.shared]
        return *(fits[0] if fits else (16, 1)), 8

    @staticmethod
    def _rotation(form: Form, width: int) -> dict[str, Any]:
        rotated = width // 2 if form.cos is None else int(form.cos.shape[1])
        return {"R": rotated, "ROPE": form.cos is not None, "HALVES": form.halves}


def lines_of(group: int) -> int:
    """Queries of a program of prefill attention: rows times the query heads that share keys."""
    return max(LINES, power(group))


def tiles_of(query_start: Any, group: int) -> Any:
    """Of an array of where each request's rows begin, and the last ones end, what prefill's programs do: int32 [n, 2],
    each a request and the first of its rows.
    """
    rows = lines_of(group) // group
    found = [
        (request, first)
        for request, count in enumerate(np.diff(query_start).tolist())
        for first in range(0, count, rows)
    ]  # fmt: skip
    return np.array(found, np.int32).reshape(-1, 2)[::-1].copy()  # the last rows see most: they begin


def _or(instead: Any, *tensors: Any) -> Sequence[Any]:
    """Tensors, and another one in place of those that a kernel is told not to read."""
    return [instead if t is None else t for t in tensors]


def _scales_in(torch: Any, state: Any) -> Any:
    """A cache's memory as float32, where it holds scales beside int8; of another one itself."""
    return state.view(torch.float32) if state.dtype == torch.int8 else state
