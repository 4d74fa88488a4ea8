"""Calls of a language model by kernels of our own: products, mixtures of experts, attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ingot.backends.cuda.launch import Launcher
from ingot.backends.cuda.launch_shapes import MOST_INPUTS, TILE_ROWS
from ingot.backends.cuda.operands import Form, Mixture, Norm, Rows
from ingot.backends.cuda.program import FLOATS, Attention, Call, Experts, Product
from ingot.backends.cuda.weights import Arranged
from ingot.ir import Node, Value
from ingot.ir.spec import axis_of
from ingot.ops.attention import RopeTable
from ingot.ops.conversion import Dequantize
from ingot.ops.indexing import Embedding, Take
from ingot.ops.norm import LayerNorm


@dataclass(frozen=True)
class Prompts:
    """What attention of several rows a request is told. tiles: what its programs do, on the device, by how many query
    heads share keys. rows: those that are somebody's, the first ones; 0 where only the device knows.
    """

    tiles: Mapping[int, Any]
    rows: int = 0


@dataclass(frozen=True)
class KernelCalls:
    """The calls of a network that kernels of our own run, on one device."""

    torch: Any
    device: Any
    made: Arranged
    launcher: Launcher

    def run(self, number: int, found: Call, tensors: dict[Value, Any], prompts: Prompts | None) -> str:
        """Runs a call by a kernel, if one takes it and the sizes of this run; its name."""
        if isinstance(found, Product):
            return "product" if self._product(number, found, tensors) else ""
        if isinstance(found, Experts):
            return "experts" if self._experts(found, self.made.mixtures[number], tensors) else ""
        if isinstance(found, Attention):
            name = "decode_attention" if prompts is None else "prefill_attention"
            return name if self._attention(found, tensors, prompts) else ""
        (node,) = found.nodes
        runs = {RopeTable: self._angles, Embedding: self._lookup, Take: self._lookup, Dequantize: self._widened,
                LayerNorm: self._normed}  # fmt: skip
        run = runs.get(type(node.op))
        return node.op.name if run is not None and run(node, tensors) else ""

    def _normed(self, node: Node, tensors: dict[Value, Any]) -> bool:
        x = tensors[node.inputs[0]]
        if isinstance(x, Rows) or x.ndim != 2 or x.stride(1) != 1 or not 0 < x.shape[1] <= MOST_INPUTS:
            return False
        norm = self._norm(node, tensors)
        if any(v is not None and not v.is_contiguous() for v in (norm.gain, norm.beta)):
            return False
        out = self.torch.empty(x.shape, dtype=x.dtype, device=self.device)
        if len(x):
            self.launcher.norm(x, norm, out)
        tensors[node.output] = out
        return True

    @staticmethod
    def _norm(node: Node, tensors: Mapping[Value, Any]) -> Norm:
        op: Any = node.op
        gains = [tensors[v] for v in node.inputs[1:]]
        if isinstance(op, LayerNorm):
            gain, beta = [*gains, None, None][:2]
            return Norm(gain, op.eps, 0.0, beta, True)
        return Norm(gains[0], op.eps, op.shift)

    def _widened(self, node: Node, tensors: dict[Value, Any]) -> bool:
        """Rows of a table that is stored as integers."""
        op: Any = node.op
        if op.group or len(node.inputs) != 2 or op.dtype not in FLOATS:
            return False
        rows, scales = (tensors[v] for v in node.inputs)
        kinds = (self.torch.int8, self.torch.float8_e4m3fn)
        if rows.dtype not in kinds or rows.ndim != 2 or not rows.numel() or scales.shape != (len(rows), 1):
            return False
        if not rows.is_contiguous() or not scales.is_contiguous() or scales.dtype != self.torch.float32:
            return False
        tensors[node.output] = self.launcher.floats_of(rows, scales, 0, getattr(self.torch, op.dtype.name))
        return True

    def _angles(self, node: Node, tensors: dict[Value, Any]) -> bool:
        op: Any = node.op
        positions, frequencies = (tensors[v] for v in node.inputs)
        if not len(positions) or not len(frequencies) or not positions.is_contiguous():
            return False
        found = self.launcher.angles(positions, frequencies, op.scale)
        tensors |= dict(zip(node.outputs, found, strict=True))
        return True

    def _lookup(self, node: Node, tensors: dict[Value, Any]) -> bool:
        """Rows of a table, or of what a step computes."""
        op: Any = node.op
        if op.from_end or node.inputs[1] in self.made.groups:
            return False
        operands = [tensors[v] for v in node.inputs]
        index, table = operands if isinstance(op, Embedding) else operands[::-1]
        if isinstance(table, Rows) or table.ndim != 2 or index.ndim != 1 or not len(index) or not len(table):
            return False
        if isinstance(op, Take) and axis_of(op.axis, 2):
            return False
        lines = [n * table.element_size() % 4 for n in (table.shape[1], table.stride(0), table.storage_offset())]
        if any(lines) or not table.shape[1] or table.stride(1) != 1 or not index.is_contiguous():
            return False
        tensors[node.output] = self.launcher.rows_of(table, index, isinstance(op, Take))
        return True

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
        narrow = dtype != x.dtype and not self.launcher.widens(x, weight, dtype)
        if x.stride(1) != 1 or (rows > TILE_ROWS and narrow):
            return False
        norm = None if found.norm is None else self._norm(found.norm, tensors)
        if found.before_rounding and found.rounds and self.launcher.by_library(weight, rows, dtype):
            given = self.launcher.blank_rows(rows, weight.outputs, dtype, self.device)
            self.launcher.product(x, weight, given, norm, rounds=True)
            tensors[found.outs[0]] = given
            return True
        extra: Any = self.made.biases.get(number) if found.extra is None else tensors[found.extra]
        bias = None if found.bias is None else tensors[found.bias]
        if any(v is not None and v.stride(-1) != 1 for v in (bias, extra)):
            return False
        out = extra
        if number not in self.made.over or extra.dtype != dtype or not self.launcher.adds_in_place(weight, x, extra):
            out = self.torch.empty((rows, weight.outputs), dtype=dtype, device=self.device)
        self.launcher.product(x, weight, out, norm, extra, found.rounds, bias)
        for value, result in zip(found.outs, out.split([v.shape[1] for v in found.outs], 1), strict=True):
            tensors[value] = result
        return True
