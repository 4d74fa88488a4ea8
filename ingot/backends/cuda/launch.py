"""Launches the kernels of target cuda: block shapes by the sizes of a call, and what it takes beside its tensors.

Tensors are torch's, on one device; the functions run whatever has been launched before on torch's current stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ingot import _lazy

ROWS = 4  # up to so many, weights stay in registers and rows pass by; with more the matrix units pay
TILE_ROWS = 64  # of the matrix units' kernel at most
MOST_INPUTS = 32768  # of a product whose weight rows are held whole
SPLITS = 16  # of a request's context, at most
KEYS = 32  # that attention takes at a time
IN_THREAD = 64  # elements of a weight that a thread holds; twice as many of integers where few threads are enough


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
class Weight:
    """What a product multiplies rows with, [n, k]; `second` makes it silu(x · wᵀ) · (x · secondᵀ).

    scales: of int8, one an output; with `group`, of 4 bits in bytes [n, k / 2] (`packed`), one a group.
    """

    first: Any
    scales: Any = None
    second: Any = None
    second_scales: Any = None
    group: int = 0

    @property
    def outputs(self) -> int:
        """n."""
        return int(self.first.shape[0])

    @property
    def inputs(self) -> int:
        """k."""
        return int(self.first.shape[1]) * (2 if self.group else 1)


def packed(torch: Any, weight: Any, group: int) -> Any:
    """Integers of 4 bits, int8 [n, k], as product_groups reads them: uint8 [n, k / 2]."""
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

    shapes: warps of a program and the weight rows that it holds, for products of (outputs, inputs, parts, bits), where
    others than `shape` gives are wanted.
    """

    torch: Any
    dependent: bool = False
    shapes: dict[tuple[int, int, int, int], tuple[int, int]] = field(default_factory=dict)

    @cached_property
    def kernels(self) -> Any:
        """The module of kernels."""
        return _lazy.load("ingot.backends.cuda.kernels")

    @cached_property
    def options(self) -> dict[str, Any]:
        """What every launch is told."""
        return {"launch_pdl": True} if self.dependent else {}

    def product(self, x: Any, weight: Weight, out: Any, norm: Norm | None = None, extra: Any = None) -> None:
        """out[T, n] = norm(x)[T, k] · weightᵀ, plus `extra` [T, n] or [n]. Rows may lie apart in x, extra and out."""
        rows = int(x.shape[0])
        if rows > ROWS and not weight.group:
            self._tiles(x, weight, out, norm, extra)
            return
        n, k = weight.outputs, weight.inputs
        stride = extra.stride(0) if extra is not None and extra.dim() == 2 else 0
        gain, eps, shift = (norm.gain, norm.eps, norm.shift) if norm else (x, 0.0, 0.0)
        tensors = (x, gain, weight.first, *_or(x, weight.second, weight.scales, weight.second_scales, extra), out)
        numbers = (n, k, eps, shift, x.stride(0), stride, out.stride(0))
        flags = {"NORM": norm is not None, "PAIR": weight.second is not None, "EXTRA": extra is not None,
                 "DEPENDENT": self.dependent}  # fmt: skip
        wide = power(k)
        warps, held = self.shape(weight)
        for at in range(0, rows, ROWS):
            count = min(ROWS, rows - at)
            cut = [_from(t, at) for t in (x, extra if stride else None, out)]
            given = (cut[0], *tensors[1:6], cut[1] if stride else tensors[6], cut[2])
            grid = (-(-n // held),)
            if weight.group:
                self.kernels.product_groups[grid](
                    *given, *numbers, ROWS=count, BN=held, GROUPS=power(k // weight.group), HALF=weight.group // 2,
                    num_warps=warps, **flags, **self.options,
                )  # fmt: skip
            else:
                self.kernels.product_rows[grid](
                    *given, *numbers, ROWS=count, BN=held, BK=wide, SCALED=weight.scales is not None,
                    num_warps=warps, **flags, **self.options,
                )  # fmt: skip

    def shape(self, weight: Weight) -> tuple[int, int]:
        """Warps of a program, and the weight rows that it holds in registers."""
        n, k, parts = weight.outputs, weight.inputs, 2 if weight.second is not None else 1
        bits = 4 if weight.group else 8 * weight.first.element_size()
        if (n, k, parts, bits) in self.shapes:
            return self.shapes[n, k, parts, bits]
        wide = power(k)
        warps = 4 if wide <= 8192 or (bits == 4 and wide <= 16384) else min(16, wide // 2048)
        elements = IN_THREAD if bits > 8 or warps > 4 else 2 * IN_THREAD
        return warps, min(max(1, elements * 32 * warps // wide // (parts if bits > 8 else 1)), power(n))

    def _tiles(self, x: Any, weight: Weight, out: Any, norm: Norm | None, extra: Any) -> None:
        rows, n, k = int(x.shape[0]), weight.outputs, weight.inputs
        if norm is not None:
            normed = self.torch.empty((rows, k), dtype=x.dtype, device=x.device)
            self.norm(x, norm, normed)
            x = normed
        stride = extra.stride(0) if extra is not None and extra.dim() == 2 else 0
        second, scales, second_scales, given = _or(x, weight.second, weight.scales, weight.second_scales, extra)
        self.kernels.product_tiles[(-(-n // 32),)](
            x, weight.first, second, scales, second_scales, given, out, rows, n, k, x.stride(0), stride, out.stride(0),
            BM=max(16, power(rows)), BN=32, BK=128, PAIR=weight.second is not None, SCALED=weight.scales is not None,
            EXTRA=extra is not None, STAGES=4, DEPENDENT=self.dependent, num_warps=4, **self.options,
        )  # fmt: skip

    def norm(self, x: Any, norm: Norm, out: Any) -> None:
        """out[T, k], the normalised rows of x."""
        k = int(x.shape[1])
        self.kernels.rms_norm[(x.shape[0],)](
            x, norm.gain, out, k, norm.eps, norm.shift, x.stride(0), out.stride(0), BK=power(k),
            DEPENDENT=self.dependent, num_warps=4, **self.options,
        )  # fmt: skip

    def decode(
        self, q: Any, key: Any, value: Any, cos: Any, sin: Any, slot: Any, state: Any, context_len: Any,
        block_table: Any, out: Any, *, scale: float, halves: bool,
    ) -> None:  # fmt: skip
        """Attention of one row a request, q [B, H, D], over its cached tokens and its own, into out [B, H · D].

        Rotates q and key by cos, sin [B, R], and writes key and value [B, KV, D] to the slots of the state
        [blocks, size, 2, KV, D]. Rows may lie apart in q, key, value and out.
        """
        torch = self.torch
        requests, heads, width = q.shape
        blocks, size, _, kv, _ = state.shape
        splits = min(SPLITS, power(block_table.shape[1] * size // KEYS))
        parts = torch.empty((requests, heads, splits, width), dtype=torch.float32, device=q.device)
        maxima, weights = torch.empty((2, requests, heads, splits), dtype=torch.float32, device=q.device)
        self.kernels.decode_attention[(requests, kv, splits)](
            q, key, value, cos, sin, slot, state, context_len, block_table, parts, maxima, weights,
            scale, q.stride(0), key.stride(0), value.stride(0), block_table.stride(0), blocks * size, state.stride(0),
            HEADS=heads, KV=kv, D=width, R=cos.shape[1], HALVES=halves, BLOCK=size, BT=KEYS,
            GM=max(16, power(heads // kv)), SPLITS=splits, DEPENDENT=self.dependent, num_warps=4, **self.options,
        )  # fmt: skip
        self.kernels.combine[(requests, heads)](
            parts, maxima, weights, out, out.stride(0), HEADS=heads, D=width, SPLITS=splits,
            DEPENDENT=self.dependent, num_warps=2, **self.options,
        )  # fmt: skip


def _or(instead: Any, *tensors: Any) -> Sequence[Any]:
    """Tensors, and another one in place of those that a kernel is told not to read."""
    return [instead if t is None else t for t in tensors]


def _from(tensor: Any, row: int) -> Any:
    return None if tensor is None else tensor[row:]
