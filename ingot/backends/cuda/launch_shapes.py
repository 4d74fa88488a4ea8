"""Launch shapes of the kernels of target cuda: how much of a call one program has, and by which size of a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ingot.backends.cuda.operands import Weight

ROWS = 4  # up to so many, weights stay in registers and rows pass by; with more the matrix units pay
INTEGER_ROWS = 2  # the same of integers, if the matrix units take the sizes, and of float8
UNIT = 16  # inputs of a product of integers by few rows are a multiple of this
STEP = 128  # inputs that the matrix units take at a time of up to TILE_ROWS rows
TILE_ROWS = 64  # with more, a program of the matrix units' kernel has more rows than these
EXPANDED_ROWS = 512  # with more, weights of integers become floats for the library's product, one product at a time
MOST_INPUTS = 32768  # of a product whose weight rows are held whole
SPLITS = 16  # of a request's context, at most
KEYS = 32  # that prefill attention takes at a time, of floats of 32 bits and of int8
LINES = 128  # of queries that prefill attention takes at a time
LEAST_GROUP = 32  # of integers of 4 bits: 16 bytes are of one group
MOST_GROUP = 256  # of those of experts: the matrix units take a group at once
PROGRAMS = 512  # of decode attention: with more, the context of a request is not divided
IN_THREAD = 64  # elements of a weight of floats that a thread holds
FEW_OUTPUTS = 8192  # of a product of floats whose programs stay
SHARED = 232448  # bytes, of a program's threads, on the GPUs of compute capability 9.0


def power(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


@dataclass(frozen=True)
class Block:
    """What a program of a product of integers by few rows has at a time: `rows` of the weight, of these `chunks` of 16
    bytes each (a power of two, and 1 only where a row has no more: of several parts of one chunk Triton 3.6 sums wrong
    zero points). resident: programs for each multiprocessor. registers: of a thread, at most; 0: as many as the
    compiler wants.
    """

    warps: int
    rows: int
    chunks: int
    resident: int
    registers: int = 0


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
class Part:
    """What a program of decode attention has: one of `splits` parts of a request's context, so many keys at a time."""

    keys: int
    warps: int
    splits: int


# By a product's (outputs, inputs, parts, "int4" or the weight's dtype), and for tiles rows.
Blocks = Mapping[tuple[int, int, int, str], Block]
Tiles = Mapping[tuple[int, int, int, str, int], Tile]


@dataclass(frozen=True)
class Shapes:
    """Launch shapes on one kind of GPU. shared: bytes of memory that the threads of a program share, at most.

    blocks, tiles: those that are wanted in place of what the methods give.
    """

    multiprocessors: int
    shared: int = SHARED
    blocks: Blocks = field(default_factory=dict)
    tiles: Tiles = field(default_factory=dict)

    @classmethod
    def of(cls, torch: Any, blocks: Blocks, tiles: Tiles) -> Shapes:
        """Of torch's current GPU; without one a multiprocessor, so that programs have several blocks."""
        if not torch.cuda.is_available():
            return cls(1, SHARED, blocks, tiles)
        found = torch.cuda.get_device_properties(torch.cuda.current_device())
        return cls(int(found.multi_processor_count), int(found.shared_memory_per_block_optin), blocks, tiles)

    def floats(self, weight: Weight, rows: int) -> Block:
        """What a program of a product of floats has at a time: rows of the weight, whole. Where there are few outputs,
        and several blocks of them for each program, programs stay (`resident` is not 0).
        """
        if (key := _key(weight)) in self.blocks:
            return self.blocks[key]
        n, wide, parts = weight.outputs, power(weight.inputs), weight.parts
        if weight.float8 and rows == 1:  # the best of twelve on an H200
            warps, held = (4, 2 * IN_THREAD) if wide <= 8192 else (8, 4 * IN_THREAD)
            return Block(warps, min(max(1, held * 32 * warps // wide), power(n)), 0, 0)
        size = weight.first.element_size()
        if rows == parts == 1 and n <= FEW_OUTPUTS and size <= 2:
            warps = 8 if wide <= 8192 else 16
            held = IN_THREAD * 32 * warps // wide
            if n >= 3 * held * self.multiprocessors * 16 // warps:
                return Block(warps, held, 0, 16 // warps)
        warps, held = held_rows(weight.inputs, parts)
        if rows == 1 and wide == 4096 and size == 2 and (parts == 2 or n > FEW_OUTPUTS):
            held *= 2  # 32 KB a program
        return Block(warps, min(held, power(n)), 0, 0)

    def integers(self, weight: Weight, rows: int) -> Block:
        """What a program of a product of integers has at a time: the best of some 30 each, on an H200. What counts most
        for one row is how much of the weight is under way: 64 KB for each multiprocessor, where registers allow.
        """
        if (key := _key(weight)) in self.blocks:
            return self.blocks[key]
        n, k, parts = weight.outputs, weight.inputs, weight.parts
        line, registers = power(k // (32 if weight.group else 16)), 0
        chunks = min(line, 128 if weight.group else 256)
        if line > chunks:  # a thread holds much of x
            chunks, warps, held, resident = (256, 8, 4, 2) if rows == 1 else (256, 8, 2, 1)
            if rows == 2 and not weight.group:
                chunks, warps, held, resident = 512, 16, 4, 1
            elif rows == parts == 1 and weight.group and line == 512:
                chunks, warps, held, resident, registers = 512, 16, 2, 2, 64
            elif rows == parts == 1 and not weight.group and line > 512:
                chunks, warps, held, resident = 512, 16, 8, 1
        elif rows > 1:
            warps, held, resident = 4 if weight.group else 8, 4 // parts, 3 if rows == 2 else 2
        elif weight.group:
            warps, held, resident, registers = (4, 4, 4, 128) if parts > 1 else (4, 8, 4, 0)
        elif parts > 1:
            warps, held, resident, registers = 4, 4, 4, 128
        else:
            warps, held, resident = (4, 8, 3) if n <= 4096 else (8, 4, 4)
        used = max(1, min(warps, chunks // 32))
        return Block(used, min(held, power(n)), min(chunks, line), resident * warps // used, registers)

    def integer_tile(self, weight: Weight, rows: int) -> Tile:
        """What a program of a product of integers by the matrix units has: near the best of some five each, on an
        H100, as far as memory that is shared by a program's threads allows.
        """
        high = max(16, power(rows))
        if (key := (*_key(weight), high)) in self.tiles:
            return self.tiles[key]
        n, k, parts = weight.outputs, weight.inputs, weight.parts
        few = high == 16
        outputs = 64 if parts == 2 and few and not weight.group else 128
        blocks, step = -(-n // outputs), step_of(weight)
        programs = self.multiprocessors * (2 if few and weight.group and parts == 1 else 1)
        splits = max(1, min(8, programs // blocks, k // step))
        stages = (4 if few else 3) if parts == 2 else 6 if few and not weight.group else 4
        held = outputs * parts * step // (2 if weight.group else 1) + 3 * high * step
        return Tile(outputs, 8, splits, max(1, min(stages, (self.shared - 8192) // held)))

    def group_tile(self, weight: Weight, rows: int) -> Tile:
        """What a program of a product of int4 as float16 has: the best of six each, on an H200."""
        high = max(16, power(rows))
        if (key := (*_key(weight), high)) in self.tiles:
            return self.tiles[key]
        k, group, parts = weight.inputs, weight.group, weight.parts
        narrow = high == 16 or (high == 32 and parts == 2)
        outputs, warps, programs = (32, 2, 8) if narrow else (64, 4, 4 if high == 32 else 2)
        splits = max(1, min(8, programs * self.multiprocessors // -(-weight.outputs // outputs), k // group))
        held = outputs * parts * group // 2 + 2 * high * group
        return Tile(outputs, warps, splits, max(1, min(4, (self.shared - 8192) // held)))

    def float8_tile(self, weight: Weight, rows: int) -> Tile:
        """What a program of a product of float8 by the matrix units has: two, or more, are on each multiprocessor."""
        high = max(16, power(rows))
        if (key := (*_key(weight), high)) in self.tiles:
            return self.tiles[key]
        n, k, parts = weight.outputs, weight.inputs, weight.parts
        splits = max(1, min(8, 2 * self.multiprocessors // -(-n // 64), k // STEP))
        return Tile(64, 4, splits, 3 if parts == 2 and high > 32 else 4)

    def expert_rows(self, weight: Weight) -> Block:
        """What a program of a product of a pair has of an expert's weight of floats: rows of it, whole."""
        if weight.float8 or _key(weight) in self.blocks:
            return self.floats(weight, 1)
        warps, held = held_rows(weight.inputs, weight.parts)
        return Block(warps, min(held, power(weight.outputs)), 0, 0)

    def expert_tile(self, weight: Weight, high: int, size: int) -> tuple[Tile, int]:
        """What a program of up to `high` pairs has of an expert's weight, and how many inputs at a time: the best of
        some twelve each, on an H200, as far as memory that is shared by a program's threads allows. With few pairs and
        32 outputs a weight goes to the matrix units without that memory. size: bytes of an element of the rows.
        """
        many, narrow = high > TILE_ROWS // 2, weight.scales is not None
        few = narrow and not many
        outputs, warps = (32, 2) if few and not 0 < weight.group < 64 else (64, 4)
        step = weight.group or (2 * STEP if few else STEP // 2 if many else 2 * STEP // size)
        held = outputs * weight.parts * step * weight.first.element_size() // (2 if weight.group else 1)
        stages = min(3 if many or narrow else 4, (self.shared - 8192) // (held + high * step * size))
        tile = Tile(outputs, warps, 1, max(1, stages))
        return self.tiles.get((*_key(weight), high), tile), step

    def decode(self, lines: int, group: int, room: int, width: int, size: int, narrow: bool) -> Part:
        """What a program of decode attention has: few threads where many programs are on each multiprocessor, each with
        as many keys as its registers hold (the best of ten on an H200), more threads where there is one at most.

        lines: requests times heads of the cache. group: query heads of each of these; the sums of more than 16 take the
        registers, so two warps would spill, and leave the matrix units. room: keys that a request may have, by its
        table. width, size: elements of a head, a power of two, and bytes of one, of the queries. narrow: whether a
        cache has 8 bits.
        """
        wide = width * size > 256
        if group > 16:
            keys, warps = 32, 8 if wide else 4
        elif lines * SPLITS <= self.multiprocessors:
            keys, warps = (32, 8) if wide else (64, 4)
        elif size > 2:
            keys, warps = 32 if narrow else 16, 4 if wide else 2
        else:
            keys, warps = 64 if narrow or width <= 64 else 32, 4 if wide else 2
        few = max(1, power(PROGRAMS // lines))  # these have much to do: the context is divided
        return Part(keys, warps, min(SPLITS, few, power(-(-room // keys))))

    def prefill(self, width: int, size: int, lines: int, scaled: bool = False) -> tuple[int, int, int]:
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


def held_rows(inputs: int, parts: int) -> tuple[int, int]:
    """Warps of a program that holds whole rows of weights of floats, of so many at once, and how many rows."""
    wide = power(inputs)
    warps = 4 if wide <= 8192 else min(16, wide // 2048)
    return warps, max(1, IN_THREAD * 32 * warps // wide // parts)


def paired_rows(weight: Weight) -> int:
    """Up to so many rows read the weights of their experts pair by pair: as measured on an H200."""
    if 0 < weight.group < 64:
        return 16
    return 4 if weight.group or weight.float8 else 2


def _key(weight: Weight) -> tuple[int, int, int, str]:
    """What `Blocks` has a product by: its sizes, and what its weight holds, by name."""
    kind = "int4" if weight.group else str(weight.first.dtype).removeprefix("torch.")
    return weight.outputs, weight.inputs, weight.parts, kind


def step_of(weight: Weight) -> int:
    """Inputs that the matrix units take of a weight of integers at a time; 0 for sizes that they do not take."""
    step = weight.group or 128
    return step if weight.inputs % step == 0 and 64 <= step <= 256 else 0


def lines_of(group: int) -> int:
    """Queries of a program of prefill attention: rows times the query heads that share keys."""
    return max(LINES, power(group))


def most_tiles(tokens: int, requests: int, group: int) -> int:
    """How many programs prefill has at most, of so many rows of so many requests: the last of each may be short."""
    return requests + tokens // (lines_of(group) // group)


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
