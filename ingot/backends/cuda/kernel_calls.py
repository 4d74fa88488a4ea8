"""Calls of a language model by kernels of our own: products, mixtures of experts, attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ingot.backends.cuda.launch import Launcher
from ingot.backends.cuda.launch_shapes import TILE_ROWS
from ingot.backends.cuda.operands import Form, Mixture, Norm
from ingot.backends.cuda.program import Attention, Experts, Product
from ingot.backends.cuda.weights import Arranged
from ingot.ir import Value


@dataclass(frozen=True)
class Prompts:
    """What attention of several rows a request is told. tiles: what its programs do, on the device, by how many query
    heads share keys. rows: those that are somebody's, the first ones.
    """

    tiles: Mapping[int, Any]
    rows: int


@dataclass(frozen=True)
class KernelCalls:
    """The calls of a network that kernels of our own run, on one device."""

    torch: Any
    device: Any
    made: Arranged
    launcher: Launcher

    def run(
        self, number: int, found: Product | Attention | Experts, tensors: dict[Value, Any],
        prompts: Prompts | None,
    ) -> str:  # fmt: skip
        """Runs a call by a kernel, if one takes the sizes of this run; its name."""
        if isinstance(found, Product):
            return "product" if self._product(number, found, tensors) else ""
        if isinstance(found, Experts):
            return "experts" if self._experts(found, self.made.mixtures[number], tensors) else ""
        name = "decode_attention" if prompts is None else "prefill_attention"
        return name if self._attention(found, tensors, prompts) else ""

    def _attention(self, found: Attention, tensors: dict[Value, Any], prompts: Prompts | None) -> bool:
        q, key, value = (tensors[v] for v in (found.q, found.key, found.value))
        mine = None if prompts is None else prompts.tiles[found.group]
        if not len(q) or (mine is not None and not len(mine)):
            return False
        if any(t.stride()[1:] != (t.shape[2], 1) for t in (q, key, value)):
            return False
        state = tensors[found.state]
        cos, sin, slopes = (None if v is None else tensors[v] for v in (found.cos, found.sin, found.slopes))
        form = Form(found.scale, cos, sin, found.halves, found.window, found.softcap, slopes)
        slot, context, table = (tensors[v] for v in (found.slot, found.context_len, found.block_table))
        out = self.torch.empty_like(q, memory_format=self.torch.contiguous_format)
        if prompts is None:
            self.launcher.decode(q, key, value, slot, state, context, table, out.view(len(q), -1), form)
        else:
            out[prompts.rows :].zero_()  # rows of nobody
            start = tensors[found.query_start]
            self.launcher.prefill(q, key, value, slot, state, mine, start, context, table, out, form)
        tensors[found.out], tensors[found.written] = out, state
        return True

    def _experts(self, found: Experts, of: Mixture, tensors: dict[Value, Any]) -> bool:
        x, router = tensors[found.x], tensors[found.router]
        if not len(x) or x.stride(1) != 1 or router.stride(1) != 1:
            return False
        out = self.torch.empty(x.shape, dtype=x.dtype, device=self.device)
        self.launcher.experts(x, router, of, out)
        tensors[found.out] = out
        return True

    def _product(self, number: int, found: Product, tensors: dict[Value, Any]) -> bool:
        x, weight = tensors[found.x], self.made.weights[number]
        rows = len(x)
        dtype = getattr(self.torch, found.outs[0].dtype.name)
        if not rows:  # the head, in a step that ends no prompt
            tensors |= {v: self.torch.empty((0, v.shape[1]), dtype=dtype, device=self.device) for v in found.outs}
            return True
        if x.stride(1) != 1 or (rows > TILE_ROWS and dtype != x.dtype):
            return False
        norm = None
        if found.norm is not None:
            op: Any = found.norm.op
            norm = Norm(tensors[found.norm.inputs[1]], op.eps, op.shift)
        if found.before_rounding and found.rounds and self.launcher.by_library(weight, rows, dtype):
            given = self.launcher.blank_rows(rows, weight.outputs, dtype, self.device)
            self.launcher.product(x, weight, given, norm, rounds=True)
            tensors[found.outs[0]] = given
            return True
        extra: Any = None if found.extra is None else tensors[found.extra]
        if extra is not None and extra.stride(-1) != 1:
            return False
        out = extra
        if number not in self.made.over or extra.dtype != dtype or not self.launcher.adds_in_place(weight, x, extra):
            out = self.torch.empty((rows, weight.outputs), dtype=dtype, device=self.device)
        self.launcher.product(x, weight, out, norm, extra, found.rounds)
        for value, result in zip(found.outs, out.split([v.shape[1] for v in found.outs], 1), strict=True):
            tensors[value] = result
        return True
