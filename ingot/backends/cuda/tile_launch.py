"""Launches products by the matrix units, tile by tile: rows as integers, as float16, or as the floats that they are.

launcher: the `Launcher` of their device. Up to TILE_ROWS rows are one tile, of which several programs may have a part
each (split-K).
"""

from __future__ import annotations

from typing import Any

from ingot.backends.cuda.launch_shapes import STEP, TILE_ROWS, Tile, power, step_of
from ingot.backends.cuda.operands import Norm, Weight, norm_of, operands_of, or_else, stride_of


def planes(launcher: Any, x: Any, weight: Weight, out: Any, norm: Norm | None, bias: Any, extra: Any) -> None:
    """By weights of integers, as integers: a row is three planes of int8."""
    torch, rows, n, k = launcher.torch, int(x.shape[0]), weight.outputs, weight.inputs
    found = torch.empty((3, rows, k), dtype=torch.int8, device=x.device)
    back = torch.empty(rows, dtype=torch.float32, device=x.device)
    gain, beta, eps, shift, form = norm_of(norm, x)
    launcher.plane_kernels.planes[(rows,)](
        x, gain, beta, found, back, rows, k, eps, shift, x.stride(0), BK=power(k), NORM=form, num_warps=8,
        **launcher.options,
    )  # fmt: skip
    tile, high = launcher.shapes.integer_tile(weight, rows), _high(rows)
    blocks = -(-n // tile.outputs)
    launcher.plane_kernels.product_planes[(blocks, tile.splits)](
        found, back, *operands_of(x, weight, weight.first, weight.second, bias, extra), out,
        _partial(launcher, tile, blocks, high, found), launcher.zeros(blocks, x.device), rows, n, stride_of(extra),
        out.stride(0), K=k, BM=high, BN=tile.outputs, BK=step_of(weight), SPLITS=tile.splits, HALF=weight.group // 2,
        **_flags(weight, extra), NATIVE=launcher.native, STAGES=tile.stages, num_warps=tile.warps, **launcher.options,
    )  # fmt: skip


def groups(launcher: Any, x: Any, weight: Weight, out: Any, norm: Norm | None, bias: Any, extra: Any) -> None:
    """By weights of int4, as float16: a row of 16 bits times a power of two."""
    rows, n = int(x.shape[0]), weight.outputs
    halves = launcher.as_rows(x, norm, launcher.torch.float16)
    tile, high = launcher.shapes.group_tile(weight, rows), _high(rows)
    blocks = -(-n // tile.outputs)
    launcher.group_kernels.product_groups[(blocks, tile.splits)](
        halves.numbers, halves.scales, *operands_of(x, weight, weight.first, weight.second, bias, extra), out,
        _partial(launcher, tile, blocks, high, halves.scales), launcher.zeros(blocks, x.device), rows, n,
        stride_of(extra), out.stride(0), K=weight.inputs, BM=high, BN=tile.outputs, SPLITS=tile.splits,
        HALF=weight.group // 2, **_flags(weight, extra), NATIVE=launcher.native, STAGES=tile.stages,
        num_warps=tile.warps, **launcher.options,
    )  # fmt: skip


def tiles(launcher: Any, x: Any, weight: Weight, out: Any, bias: Any, extra: Any, back: Any = None) -> None:
    """As floats. back: the scales of rows that have some, of float8 or float16."""
    rows, n, k = int(x.shape[0]), weight.outputs, weight.inputs
    tensors = (*operands_of(x, weight, weight.first, weight.second, bias, extra), out)
    numbers = (rows, n, k, x.stride(0), stride_of(extra), out.stride(0))
    few = rows <= TILE_ROWS
    high, step = (_high(rows), STEP) if few else (128, STEP // 2)
    tile = Tile(32, 4, 1, 4) if few else Tile(64 if weight.second is not None else 128, 8, 1, 3)
    if few and weight.float8:
        tile = launcher.shapes.float8_tile(weight, rows)
    blocks = -(-n // tile.outputs)
    if weight.group:
        launcher.dequantize_kernels.group_tiles[(-(-rows // high), blocks)](
            x, *tensors, *numbers, BM=high, BN=tile.outputs, HALF=weight.group // 2, STAGES=tile.stages,
            **_flags(weight, extra), num_warps=tile.warps, **launcher.options,
        )  # fmt: skip
        return
    launcher.float_kernels.product_tiles[(-(-rows // high), blocks, tile.splits)](
        x, *or_else(x, back), *tensors, _partial(launcher, tile, blocks, high, x), launcher.zeros(blocks, x.device),
        *numbers, BM=high, BN=tile.outputs, BK=step, SPLITS=tile.splits, SCALED=weight.scales is not None,
        ROUNDED=back is not None, STAGES=tile.stages, **_flags(weight, extra), num_warps=tile.warps, **launcher.options,
    )  # fmt: skip


def _flags(weight: Weight, extra: Any) -> dict[str, Any]:
    return {"PAIR": weight.second is not None, "EXTRA": extra is not None, "ACTIVATION": weight.acts}


def _high(rows: int) -> int:
    """Rows of a tile, as many as the matrix units take at least."""
    return max(16, power(rows))


def _partial(launcher: Any, tile: Tile, blocks: int, high: int, instead: Any) -> Any:
    """Memory for the parts of sums, where several programs have some of a tile; otherwise what is not read."""
    if tile.splits == 1:
        return instead
    size = (blocks, tile.splits, 2, tile.outputs, high)
    return launcher.torch.empty(size, dtype=launcher.torch.float32, device=instead.device)
