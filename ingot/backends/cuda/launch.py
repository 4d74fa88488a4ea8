"""Launches the kernels of target cuda: which of them a call takes, and what it takes beside its tensors.

Tensors are torch's, on one device; the functions run whatever has been launched before on torch's current stream.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ingot import _lazy
from ingot.backends.cuda import expert_launch, tile_launch
from ingot.backends.cuda.launch_shapes import (
    EXPANDED_ROWS,
    INTEGER_ROWS,
    ROWS,
    TILE_ROWS,
    UNIT,
    Blocks,
    Shapes,
    Tiles,
    lines_of,
    power,
    step_of,
)
from ingot.backends.cuda.operands import (
    Form,
    Mixture,
    Norm,
    Rows,
    Weight,
    norm_of,
    operands_of,
    or_else,
    stride_of,
)
from ingot.backends.cuda.transfer import Inputs

LIBRARY_UNIT = 16  # outputs and inputs of the library's products of float8 are multiples of this


@dataclass
class Launcher:
    """The kernels on one device. `dependent`: whether each is started while the one before it still runs.

    blocks, tiles: launch shapes in place of those that `Shapes` gives.
    """

    torch: Any
    dependent: bool = False
    blocks: Blocks = field(default_factory=dict)
    tiles: Tiles = field(default_factory=dict)
    _zeros: dict[int, Any] = field(default_factory=dict)
    _apart: bool = False  # whether the next launch begins when the last one has ended

    @cached_property
    def native(self) -> bool:
        """Whether kernels are compiled; Triton's interpreter takes no instructions of a GPU."""
        return not _lazy.load("triton").knobs.runtime.interpret

    @cached_property
    def step_kernels(self) -> Any:
        """The module of what stands at the ends of a step."""
        return _lazy.load("ingot.backends.cuda.step_kernels")

    @cached_property
    def row_kernels(self) -> Any:
        """The module of kernels that take rows one by one."""
        return _lazy.load("ingot.backends.cuda.row_kernels")

    @cached_property
    def float_kernels(self) -> Any:
        """The module of products with weights of floats."""
        return _lazy.load("ingot.backends.cuda.float_kernels")

    @cached_property
    def integer_kernels(self) -> Any:
        """The module of products of few rows with weights of integers."""
        return _lazy.load("ingot.backends.cuda.integer_kernels")

    @cached_property
    def plane_kernels(self) -> Any:
        """The module of those of more rows."""
        return _lazy.load("ingot.backends.cuda.plane_kernels")

    @cached_property
    def group_kernels(self) -> Any:
        """The module of those of int4, where rows are floats of 16 bits."""
        return _lazy.load("ingot.backends.cuda.group_kernels")

    @cached_property
    def dequantize_kernels(self) -> Any:
        """The module of kernels that make floats of stored weights."""
        return _lazy.load("ingot.backends.cuda.dequantize_kernels")

    @cached_property
    def expert_kernels(self) -> Any:
        """The module of those for mixtures of experts."""
        return _lazy.load("ingot.backends.cuda.expert_kernels")

    @cached_property
    def attention_kernels(self) -> Any:
        """The module of attention."""
        return _lazy.load("ingot.backends.cuda.attention_kernels")

    def zeros(self, count: int, device: Any) -> Any:
        """Counters of programs, int32, at the same address in every run. Kernels leave them as zeros."""
        size = power(count)
        if size not in self._zeros:
            self._zeros[size] = self.torch.zeros(size, dtype=self.torch.int32, device=device)
        return self._zeros[size]

    @cached_property
    def shapes(self) -> Shapes:
        """The launch shapes of torch's current GPU."""
        return Shapes.of(self.torch, self.blocks, self.tiles)

    @property
    def options(self) -> dict[str, Any]:
        """What every launch is told; asked for once at each. The one behind `take_inputs` begins when these are there,
        and so do all later ones: some read inputs before they wait for others.
        """
        apart, self._apart = self._apart, False
        early = {"launch_pdl": True} if self.dependent and not apart else {}
        return {"DEPENDENT": self.dependent, **early}

    def product(
        self, x: Any, weight: Weight, out: Any, norm: Norm | None = None, extra: Any = None, rounds: bool = False,
        bias: Any = None,
    ) -> None:  # fmt: skip
        """out[T, n] = act(norm(x)[T, k] · weightᵀ + bias [n]), plus `extra` [T, n] or [n]. Rows may lie apart in x,
        extra and out.

        rounds: whether rows, normalised, are rounded to float8 before a weight of float8, each with a scale. x, and out
        of a pair, may be `Rows` where the library multiplies them (`by_library`).
        """
        assert bias is None or weight.second is None  # a gate has none: `program.py` makes no such product
        rows = len(x)
        few = INTEGER_ROWS if weight.float8 else ROWS
        if rounds and rows > few:
            self._rounded(x, weight, out, norm, bias, extra)
            return
        integers = weight.integers
        if integers and INTEGER_ROWS < rows <= TILE_ROWS and step_of(weight):
            grouped = weight.group and x.dtype != self.torch.float32  # which float16 would round
            (tile_launch.groups if grouped else tile_launch.planes)(self, x, weight, out, norm, bias, extra)
            return
        if weight.float8 and few < rows <= EXPANDED_ROWS and x.dtype == self.torch.bfloat16:
            halves = self.as_rows(x, norm, self.torch.float16)
            tile_launch.tiles(self, halves.numbers, weight, out, bias, extra, halves.scales)
            return
        many = rows > few or (integers and weight.inputs % UNIT)
        if norm is not None and (many or (integers and norm.centred)):
            normed = self.torch.empty((rows, weight.inputs), dtype=x.dtype, device=x.device)
            self.norm(x, norm, normed)
            x, norm = normed, None
        if many:
            if weight.scales is not None and rows > EXPANDED_ROWS:
                weight = self._expanded(weight, x.dtype)
            whole = weight.scales is None and (x.dtype == out.dtype or self.widens(x, weight, out.dtype))
            if whole:
                self._whole(x, weight, out, bias, extra)
            else:
                tile_launch.tiles(self, x, weight, out, bias, extra)
            return
        n, k = weight.outputs, weight.inputs
        gain, beta, eps, shift, form = norm_of(norm, x)
        flags = {"NORM": form, "PAIR": weight.second is not None, "EXTRA": extra is not None,
                 "ACTIVATION": weight.acts}  # fmt: skip
        numbers = (eps, shift, x.stride(0), stride_of(extra), out.stride(0))
        if not integers:
            shape = self.shapes.floats(weight, rows)
            whole = -(-n // shape.rows)
            stays = shape.resident > 0 and rows == 1 and weight.second is None
            programs = min(whole, self.shapes.multiprocessors * shape.resident) if stays else whole
            self.float_kernels.product_rows[(programs,)](
                x, gain, beta, *operands_of(x, weight, weight.first, weight.second, bias, extra), out, n, k, *numbers,
                ROWS=rows, BN=shape.rows, BK=power(k), SCALED=weight.scales is not None, ROUNDS=rounds,
                NATIVE=self.native, STAYS=stays, num_warps=shape.warps, maxnreg=shape.registers or None, **flags,
                **self.options,
            )  # fmt: skip
            return
        block = self.shapes.integers(weight, rows)
        programs = min(-(-n // block.rows), self.shapes.multiprocessors * block.resident)
        words = [None if w is None else w.view(self.torch.int32) for w in (weight.first, weight.second)]
        line = weight.first.shape[1] // 16
        self.integer_kernels.product_integers[(programs,)](
            x, gain, None, None, None, *operands_of(x, weight, words[0], words[1], bias, extra), out, n, *numbers,
            ROWS=rows, R=power(rows), K=k, BN=block.rows, CHUNKS=block.chunks, PARTS=-(-line // block.chunks),
            HALF=weight.group // 2, TOP=0, NATIVE=self.native, num_warps=block.warps,
            maxnreg=block.registers or None, **flags, **self.options,
        )  # fmt: skip

    def by_library(self, weight: Weight, rows: int, dtype: Any) -> bool:
        """Whether the library multiplies so many rows of float8 with a weight of float8."""
        fits = weight.outputs % LIBRARY_UNIT == weight.inputs % LIBRARY_UNIT == 0 and dtype == self.torch.bfloat16
        return weight.float8 and rows > TILE_ROWS and fits

    def blank_rows(self, rows: int, width: int, dtype: Any, device: Any, kind: Any = None) -> Rows:
        """Memory for rows of float8, or of another kind."""
        numbers = self.torch.empty((rows, width), dtype=kind or self.torch.float8_e4m3fn, device=device)
        return Rows(numbers, self.torch.empty(rows, dtype=self.torch.float32, device=device), dtype)

    def as_rows(self, x: Any, norm: Norm | None, kind: Any = None) -> Rows:
        """Rows as float8, or as float16 with scales, normalised before."""
        if isinstance(x, Rows):
            return x
        rows, k = x.shape
        found = self.blank_rows(rows, k, x.dtype, x.device, kind)
        gain, beta, eps, shift, form = norm_of(norm, x)
        kernel, flags = self.row_kernels.float8_rows, {"NATIVE": self.native}
        if kind is not None:
            kernel, flags = self.row_kernels.half_rows, {}
        kernel[(rows,)](
            x, gain, beta, found.numbers, found.scales, k, eps, shift, x.stride(0), BK=power(k), NORM=form,
            num_warps=8, **flags, **self.options,
        )  # fmt: skip
        return found

    def _rounded(self, x: Any, weight: Weight, out: Any, norm: Norm | None, bias: Any, extra: Any) -> None:
        """Rows of float8 by weights of float8: many by the library."""
        torch, rows = self.torch, self.as_rows(x, norm)
        found, back = rows.numbers, rows.scales
        if not self.by_library(weight, len(x), out.dtype):
            tile_launch.tiles(self, found, weight, out, bias, extra, back)
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
            self.row_kernels.gated_float8[(len(x),)](
                *sums, out.numbers, out.scales, n, sums[0].stride(0), sums[1].stride(0), BN=power(n),
                ACTIVATION=weight.acts, NATIVE=self.native, num_warps=16 if n > 8192 else 8, **self.options,
            )  # fmt: skip
            return
        if len(sums) == 1 and (bias is not None or weight.acts):
            self.finished(sums[0], bias, weight.acts, extra, out)
            return
        if len(sums) == 2:
            self.gated(sums[0], sums[1], out, weight.acts)
        if extra is not None:
            torch.add(out if len(sums) == 2 else sums[0], extra, out=out)
        elif len(sums) == 1:
            out.copy_(sums[0])

    def _expanded(self, weight: Weight, dtype: Any) -> Weight:
        """The numbers that integers or floats of 8 bits and scales stand for, for as long as one product takes."""
        parts = ((weight.first, weight.scales), (weight.second, weight.second_scales))
        made = [self.floats_of(stored, scales, weight.group, dtype) for stored, scales in parts if stored is not None]
        return Weight(made[0], second=made[1] if len(made) > 1 else None, activation=weight.activation)

    def floats_of(self, stored: Any, scales: Any, group: int, dtype: Any) -> Any:
        """Rows of integers or float8 as floats: a scale a row, or one a group of integers of 4 bits (`packed`)."""
        n, k = stored.shape[0], stored.shape[1] * (2 if group else 1)
        out = self.torch.empty((n, k), dtype=dtype, device=stored.device)
        if group:
            self.dequantize_kernels.expand_groups[(-(-n // 32), k // group)](
                stored, scales, out, n, k, BN=32, HALF=group // 2, num_warps=4, **self.options
            )
        else:
            wide = min(512, power(k))
            self.dequantize_kernels.expand_rows[(-(-n // 8), -(-k // wide))](
                stored, scales, out, n, k, BN=8, BK=wide, FLOATS=stored.dtype != self.torch.int8, num_warps=4,
                **self.options,
            )
        return out

    def adds_in_place(self, weight: Weight, x: Any, extra: Any) -> bool:
        """Whether `product` may write over what it adds: the library does, and copies it first where it may not."""
        one = weight.scales is None and weight.second is None
        return one and len(x) > ROWS and tuple(extra.shape) == (len(x), weight.outputs) and extra.dtype == x.dtype

    def widens(self, x: Any, weight: Weight, dtype: Any) -> bool:
        """Whether the library's product gives its sums as float32, as logits are wanted, of shorter floats."""
        return x.device.type != "cpu" and weight.second is None and dtype == self.torch.float32 != x.dtype

    def _whole(self, x: Any, weight: Weight, out: Any, bias: Any, extra: Any) -> None:
        """By the library's product of whole matrices."""
        torch = self.torch
        if weight.second is None and (bias is not None or weight.acts):
            sums = torch.empty(out.shape, dtype=out.dtype, device=out.device)
            self._whole(x, Weight(weight.first), sums, None, None)
            self.finished(sums, bias, weight.acts, extra, out)
            return
        if weight.second is None and extra is not None and extra.dtype == x.dtype == out.dtype:
            torch.addmm(extra, x, weight.first.T, out=out)
            return
        if weight.second is not None:
            a, b = (torch.mm(x, w.T) for w in (weight.first, weight.second))
            self.gated(a, b, out, weight.acts)
        elif x.dtype == out.dtype:
            torch.mm(x, weight.first.T, out=out)
        else:
            torch.mm(x, weight.first.T, out_dtype=out.dtype, out=out)
        if extra is not None:
            out += extra

    def experts(self, x: Any, router: Any, of: Mixture, out: Any) -> None:
        """out[T, hidden]: each row of x through the experts that its scores choose, router [T, experts] of float32."""
        expert_launch.run(self, x, router, of, out)

    def gated(self, a: Any, b: Any, out: Any, activation: str) -> None:
        """out = act(a) · b; rows may lie apart in all of them."""
        rows, n = a.shape
        size = min(2048, power(n))
        self.row_kernels.gated[(rows, -(-n // size))](
            a, b, out, n, a.stride(0), b.stride(0), out.stride(0), BN=size, ACTIVATION=activation,
            num_warps=4, **self.options,
        )  # fmt: skip

    def finished(self, a: Any, bias: Any, activation: str, extra: Any, out: Any) -> None:
        """out = act(a + bias) + extra; rows may lie apart in a, extra and out, and a and extra be out."""
        rows, n = a.shape
        size = min(2048, power(n))
        self.row_kernels.finished[(rows, -(-n // size))](
            a, bias, *or_else(a, extra), out, n, a.stride(0), stride_of(extra), out.stride(0), BN=size,
            EXTRA=extra is not None, ACTIVATION=activation, num_warps=4, **self.options,
        )  # fmt: skip

    def norm(self, x: Any, norm: Norm, out: Any) -> None:
        """out[T, k], the normalised rows of x."""
        k = int(x.shape[1])
        if norm.centred:
            self.row_kernels.layer_norm[(x.shape[0],)](
                x, norm.gain, norm.beta, out, k, norm.eps, x.stride(0), out.stride(0), BK=power(k),
                num_warps=4, **self.options,
            )  # fmt: skip
            return
        self.row_kernels.rms_norm[(x.shape[0],)](
            x, norm.gain, out, k, norm.eps, norm.shift, x.stride(0), out.stride(0), BK=power(k),
            num_warps=4, **self.options,
        )  # fmt: skip

    def take_inputs(self, inputs: Inputs, chosen: Any) -> None:
        """The next slot of a ring, and its tokens with those that were chosen by the step before."""
        places, rows = inputs.layout.places, len(inputs.tokens)
        self.step_kernels.take_inputs[(1,)](
            inputs.ring, inputs.memory, inputs.turn, chosen, inputs.tokens, inputs.layout.words,
            places["token_ids"].begin, places["behind"].begin, rows, SLOTS=len(inputs.ring), BR=power(rows), BN=1024,
            num_warps=8, **self.options,
        )  # fmt: skip
        self._apart = True

    def rows_of(self, table: Any, index: Any, zeros: bool) -> Any:
        """table[index], rows of a whole number of 32-bit words; with `zeros` an index below 0 gives a row of these."""
        words, out = table.view(self.torch.int32), self.torch.empty(
            (len(index), table.shape[1]), dtype=table.dtype, device=table.device
        )
        count, width = words.shape
        size = min(1024, power(width))
        self.step_kernels.table_rows[(len(index), -(-width // size))](
            words, index, out.view(self.torch.int32), count, width, words.stride(0), ZEROS=zeros, BN=size,
            num_warps=4, **self.options,
        )  # fmt: skip
        return out

    def angles(self, positions: Any, frequencies: Any, scale: float) -> tuple[Any, Any]:
        """cos and sin of positions [T] · frequencies [R], times `scale`: float32 [T, R] each."""
        rows, width = len(positions), len(frequencies)
        cos, sin = self.torch.empty((2, rows, width), dtype=self.torch.float32, device=positions.device)
        self.step_kernels.angles[(rows,)](
            positions, frequencies, cos, sin, width, scale, BN=power(width), num_warps=1, **self.options,
        )  # fmt: skip
        return cos, sin

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
        room = block_table.shape[1] * size
        narrow = state.element_size() == 1
        part = self.shapes.decode(requests * kv, heads // kv, room, power(width), q.element_size(), narrow)
        parts = torch.empty((requests, heads, part.splits, width), dtype=torch.float32, device=q.device)
        maxima, weights = torch.empty((2, requests, heads, part.splits), dtype=torch.float32, device=q.device)
        cos, sin, slopes = or_else(q, form.cos, form.sin, form.slopes)
        self.attention_kernels.decode_attention[(requests, kv, part.splits)](
            q, key, value, cos, sin, slot, state, _scales_in(torch, state), context_len, block_table, slopes, parts,
            maxima, weights, self.zeros(requests * kv, q.device), out, form.scale, form.softcap, form.window,
            q.stride(0), key.stride(0), value.stride(0), out.stride(0), block_table.stride(0), blocks * size,
            state.stride(0),
            HEADS=heads, KV=kv, D=width, P=power(width), W=stored, **self._rotation(form, width), BLOCK=size,
            BT=part.keys, GM=max(16, power(heads // kv)), GP=power(heads // kv), SPLITS=part.splits, **form.flags,
            NATIVE=self.native, num_warps=part.warps, **self.options,
        )  # fmt: skip

    def prefill(
        self, q: Any, key: Any, value: Any, slot: Any, state: Any, tiles: Any, query_start: Any, context_len: Any,
        block_table: Any, out: Any, form: Form,
    ) -> None:  # fmt: skip
        """As `decode`, of any number of rows a request: q [T, H, D]. tiles: `tiles_of` these rows, on the device."""
        tokens, heads, width = q.shape
        blocks, size, _, kv, stored = state.shape
        scales = _scales_in(self.torch, state)
        cos, sin, slopes = or_else(q, form.cos, form.sin, form.slopes)
        turned = q if form.cos is None else self.torch.empty((tokens, heads, width), dtype=q.dtype, device=q.device)
        self.attention_kernels.rotate_write[(tokens,)](
            q, key, value, cos, sin, slot, state, scales, turned, q.stride(0), key.stride(0), value.stride(0),
            blocks * size, HEADS=heads, HB=power(heads), KV=kv, KB=power(kv), D=width,
            P=power(width), W=stored, **self._rotation(form, width), NATIVE=self.native, num_warps=4, **self.options,
        )  # fmt: skip
        lines = lines_of(heads // kv)
        keys, stages, warps = self.shapes.prefill(power(width), q.element_size(), lines, stored > width)
        self.attention_kernels.prefill_attention[(len(tiles), kv)](
            turned, state, scales, tiles, query_start, context_len, block_table, slopes, out, tokens, form.scale,
            form.softcap, form.window, turned.stride(0), block_table.stride(0), blocks, state.stride(0), HEADS=heads,
            KV=kv, D=width, P=power(width), W=stored, BLOCK=size, BM=lines, BN=keys, STAGES=stages, **form.flags,
            num_warps=warps, **self.options,
        )  # fmt: skip

    @staticmethod
    def _rotation(form: Form, width: int) -> dict[str, Any]:
        rotated = width // 2 if form.cos is None else int(form.cos.shape[1])
        return {"R": rotated, "ROPE": form.cos is not None, "HALVES": form.halves}


def _scales_in(torch: Any, state: Any) -> Any:
    """A cache's memory as float32, where it holds scales beside int8; of another one itself."""
    return state.view(torch.float32) if state.dtype == torch.int8 else state
