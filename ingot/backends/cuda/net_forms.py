"""How target cuda computes the calls of a net: libraries through torch in 16 bits, and the generated kernels.

Images of 16 bits lie with their channels last. Where several ways compute one call, the first eager run of a size
times them on the device, and the fastest is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from ingot import _lazy
from ingot.backends.cuda.capturing import capturing
from ingot.backends.cuda.devices import FLOAT8
from ingot.backends.cuda.launch_shapes import power
from ingot.backends.cuda.net_calls import (
    HALVES,
    Attention,
    Call,
    Chain,
    GraphSum,
    GroupNormed,
    Joined,
    Operand,
    Pooled,
    Rowwise,
    Sums,
    Weighted,
)
from ingot.backends.cuda.net_weights import PIXEL, NetMade
from ingot.dtypes import int8
from ingot.ir import Node, Op, Value
from ingot.ir.spec import axes_of
from ingot.ops.conversion import Dequantize, Float8Rows
from ingot.ops.in_torch import first_line, known, of_device, out_of_memory
from ingot.ops.norm import LayerNorm
from ingot.ops.pool import AvgPool, MaxPool
from ingot.ops.product import Matmul
from ingot.ops.reduce import ReduceMean, ReduceSum, Softmax
from ingot.ops.spatial import Conv, ConvTranspose, torch_padded

LIBRARY_UNIT = 16  # of which the library wants multiples of float8
POOLED = 1024  # elements of which a program is the pool
TILE = 8192  # elements of which a program takes the moments
REPEATS = 8  # of a way, in the graph that times it


@dataclass(frozen=True)
class Factors:
    """A group norm's result that is not computed yet: x · scale + shift, [N, C, 1, 1] in float32."""

    x: Any
    scale: Any
    shift: Any


@dataclass(frozen=True)
class Float8:
    """Rows of float8: numbers [..., K], and a scale each, [..., 1]. dtype: of the floats that they stand for."""

    numbers: Any
    scales: Any
    dtype: Any

    def floats(self) -> Any:
        """What they stand for, as the op gives it."""
        return (self.numbers.float() * self.scales).to(self.dtype)

    def by_library(self, torch: Any, weight: Any, scales: Any, bias: Any) -> Any:
        """Their product with a weight of float8, [outputs, K], with sums in float32."""
        flat = self.numbers.reshape(-1, self.numbers.shape[-1])
        found = torch._scaled_mm(
            flat, weight.T, scale_a=self.scales.reshape(-1, 1), scale_b=scales.reshape(1, -1), bias=bias,
            out_dtype=self.dtype, use_fast_accum=True,
        )  # fmt: skip
        return found.view(*self.numbers.shape[:-1], -1)

    def by_floats(self, torch: Any, weight: Any, scales: Any, bias: Any) -> Any:
        """The same in floats of 16 bits."""
        wide = (weight.float() * scales.reshape(-1, 1)).to(self.dtype)
        return torch.nn.functional.linear(self.floats(), wide, bias)


class Forms:
    """Computes calls, into `tensors` by value. Each method says whether it did; otherwise the nodes have to run."""

    def __init__(self, torch: Any, device: Any, made: NetMade) -> None:
        self.torch = torch
        self.device = device
        self.made = made
        self.chains = _lazy.load("ingot.backends.cuda.chains")
        self.kernels = _lazy.load("ingot.backends.cuda.net_kernels")
        self.times = False  # whether ways may be timed in this run
        self.into: dict[Value, Any] = {}  # where results of chains go that are a caller's
        self.traces = False  # whether all ways are gone, for somebody who looks at what they launch

    def run(self, call: Call, tensors: dict[Value, Any], sizes: Mapping[str, int]) -> bool:
        """One call."""
        if isinstance(call, Chain):
            return self._chain(call, tensors, sizes)
        if isinstance(call, Weighted):
            return self._weighted(call, tensors, sizes)
        if isinstance(call, Sums):
            return self._sums(call, tensors, sizes)
        if isinstance(call, Rowwise):
            return self._rowwise(call, tensors, sizes)
        if isinstance(call, Pooled):
            return self._pooled(call, tensors, sizes)
        if isinstance(call, GroupNormed):
            return self._group_norm(call, tensors)
        if isinstance(call, Joined):
            weights, biases, scales = self.made.ready[call.nodes[0]]
            x = tensors[call.products[0].inputs[0]]
            if scales is None:
                whole = self.torch.nn.functional.linear(x, weights, biases)
            elif isinstance(x, Float8):
                whole = self._fastest(*self._of_float8(x, weights, scales, biases))()
            else:
                return False
            widths = [node.inputs[1].shape[0] for node in call.products]
            tensors.update(zip(call.outs, whole.split(widths, -1), strict=True))
            return True
        if isinstance(call, GraphSum):
            return self._graph_sum(call, tensors)
        return isinstance(call, Attention) and self._attention(call, tensors)

    # ------------------------------------------------------------------------------------------------------- chains
    def _operand(self, chain: Chain, operand: Operand, tensors: Mapping[Value, Any]) -> Any:
        value = operand.value
        if operand.part == "bias":
            bias = tensors[chain.biases[value]]
            return bias.view(-1, *[1] * (len(value.shape) - 2))
        found = tensors[value]
        if operand.part:
            return getattr(found, operand.part)
        return found.x if isinstance(found, Factors) else found

    def _operands(self, chain: Chain, tensors: Mapping[Value, Any]) -> Sequence[Any] | None:
        """Of its expression; None where a group norm gave no factors."""
        if any(not isinstance(tensors[value], Factors) for value in chain.normed):
            return None
        return [self._operand(chain, operand, tensors) for operand in chain.expression[2]]

    def _chain(self, chain: Chain, tensors: dict[Value, Any], sizes: Mapping[str, int]) -> bool:
        given = self._operands(chain, tensors)
        shape = tuple(chain.out.spec.evaluate(sizes))
        if given is None or _count(shape) > self.chains.MOST_ELEMENTS:
            return False
        out = self._empty(chain, given, shape)
        steps, last, _ = chain.expression
        self.chains.run(steps, last, given, out)
        tensors[chain.out] = out
        return True

    def _empty(self, chain: Chain, given: Sequence[Any], shape: Sequence[int]) -> Any:
        """Where a chain's result goes: in the order of an operand's memory, images' channels last."""
        if chain.out in self.into:
            return self.into[chain.out]
        torch = self.torch
        dtype = getattr(torch, chain.out.dtype.name)
        whole = [x for x in given if x.shape == shape and self.chains.is_dense(x)]
        if len(shape) == 4 and chain.out.dtype in (*HALVES, int8):
            last = any(x.is_contiguous(memory_format=torch.channels_last) for x in whole)
            if last or any(isinstance(user.op, Conv | Dequantize) for user in chain.out.uses):
                return torch.empty(shape, dtype=dtype, device=self.device, memory_format=torch.channels_last)
        if whole:
            return torch.empty_like(whole[0], dtype=dtype)
        return torch.empty(shape, dtype=dtype, device=self.device)

    def complete(self, call: Call, tensors: dict[Value, Any]) -> None:
        """Gives the operands of a call what it alone would have added, before its nodes run one by one."""
        chain = call if isinstance(call, Chain) else getattr(call, "chain", None)
        if chain is not None:
            for value, bias in chain.biases.items():
                if value in tensors and value.node not in call.nodes:
                    tensors[value] = tensors[value] + tensors[bias].view(-1, *[1] * (len(value.shape) - 2))
            for value in chain.normed:
                if isinstance(found := tensors[value], Factors):
                    tensors[value] = (found.x * found.scale + found.shift).to(found.x.dtype)
        for value in {v for node in call.nodes for v in node.given}:
            if isinstance(found := tensors.get(value), Float8):
                tensors[value] = found.floats()
        if isinstance(call, GroupNormed) and call.bias is not None:
            value = call.nodes[0].inputs[0]
            tensors[value] = tensors[value] + tensors[call.bias].view(-1, *[1] * (len(value.shape) - 2))

    # ----------------------------------------------------------------------------------------- convolutions, products
    def _weighted(self, call: Weighted, tensors: dict[Value, Any], sizes: Mapping[str, int]) -> bool:
        if isinstance(call.node.op, Conv):
            ways, key = self._convolution(call, tensors, sizes)
        else:
            ways, key = self._linear(call, tensors, sizes)
        out = self._fastest(key, ways)()
        if out is None:
            return False
        tensors[call.node.output if call.chain is None else call.chain.out] = out
        return True

    def _behind(self, call: Weighted, tensors: dict[Value, Any], sizes: Mapping[str, int], made: Any) -> Any:
        """The chain behind a sum; the sum itself where there is none. None where the chain declines."""
        if call.chain is None:
            return made
        inner = tensors | {call.node.output: made}
        return inner[call.chain.out] if self._chain(call.chain, inner, sizes) else None

    def _convolution(self, call: Weighted, tensors: dict[Value, Any], sizes: Mapping[str, int]) -> Any:
        torch, node = self.torch, call.node
        op: Any = known(node.op, sizes)
        x, weight, *rest = (tensors[v] for v in node.given)
        bias = rest[0] if rest else None
        own = bias if call.chain is None and not call.bare else None
        padding = op.pre_padding
        if op.pre_padding != op.post_padding or min(padding) < 0:
            x, padding = torch_padded(torch, x, op.pre_padding, op.post_padding), (0, 0)
        geometry = (op.stride, padding, op.dilation, op.groups)
        ways: dict[str, Callable[[], Any]] = {
            "cudnn": lambda: self._behind(call, tensors, sizes, torch.nn.functional.conv2d(x, weight, own, *geometry))
        }
        if self.device.type == "cuda":
            if call.ending == "relu":
                ways["fused"] = lambda: torch.cudnn_convolution_relu(x, weight, bias, *geometry)
            elif call.ending == "add_relu" and call.beside is not None:
                beside = tensors[call.beside]
                ways["fused"] = lambda: torch.cudnn_convolution_add_relu(x, weight, beside, 1.0, bias, *geometry)
        pointwise = tuple(weight.shape[2:]) == (1, 1) == tuple(op.stride) and padding == (0, 0) and op.groups == 1
        if pointwise and x.is_contiguous(memory_format=torch.channels_last):
            n, channels, height, width = x.shape
            flat, factors = x.permute(0, 2, 3, 1).reshape(-1, channels), weight.flatten(1).T

            def image(y: Any) -> Any:
                return y.view(n, height, width, -1).permute(0, 3, 1, 2)

            def product() -> Any:
                y = torch.mm(flat, factors) if own is None else torch.addmm(own, flat, factors)
                return self._behind(call, tensors, sizes, image(y))

            ways["product"] = product
            if call.ending == "relu":
                ways["product, relu"] = lambda: image(torch._addmm_activation(bias, flat, factors))
        said = (call.ending, call.chain is None, own is None)
        return ways, ("conv", x.shape, x.stride(), weight.shape, *geometry, *said)

    def _linear(self, call: Weighted, tensors: dict[Value, Any], sizes: Mapping[str, int]) -> Any:
        torch, node = self.torch, call.node
        x = tensors[node.inputs[0]]
        if call.eight is not None:
            return self._float8(call, x, tensors, sizes)
        weight = tensors[node.inputs[1]]
        ways: dict[str, Callable[[], Any]] = {
            "product": lambda: self._behind(call, tensors, sizes, torch.nn.functional.linear(x, weight))
        }
        if call.chain is not None and call.ending:
            (bias,) = (tensors[v] for v in call.chain.nodes[0].inputs if v is not node.output)
            if call.ending == "bias":
                ways = {"product, bias": lambda: torch.nn.functional.linear(x, weight, bias)}
            else:
                flat = x.reshape(-1, x.shape[-1])
                ways["product, relu"] = lambda: torch._addmm_activation(bias, flat, weight.T).view(*x.shape[:-1], -1)
        return ways, ("linear", x.shape, x.stride(), weight.shape, call.ending)

    def _float8(self, call: Weighted, x: Any, tensors: dict[Value, Any], sizes: Mapping[str, int]) -> Any:
        """A product of rows of float8, if rows are there as such."""
        if call.eight is None or not isinstance(x, Float8):
            return {"none": lambda: None}, None
        weight, scales = (tensors[v] for v in call.eight)
        if call.chain is None or call.ending != "bias":
            key, ways = self._of_float8(x, weight, scales, None)
            return {n: partial(self._follow, call, tensors, sizes, way) for n, way in ways.items()}, (key, call.ending)
        (bias,) = (tensors[v] for v in call.chain.nodes[0].inputs if v is not call.node.output)
        key, ways = self._of_float8(x, weight, scales, bias)
        return ways, key

    def _follow(self, call: Weighted, tensors: dict[Value, Any], sizes: Mapping[str, int], way: Any) -> Any:
        return self._behind(call, tensors, sizes, way())

    def _of_float8(self, x: Float8, weight: Any, scales: Any, bias: Any) -> tuple[Any, dict[str, Callable[[], Any]]]:
        """Ways to multiply rows of float8 by a weight of float8. The library takes multiples of 16, on a GPU."""
        torch = self.torch
        ways: dict[str, Callable[[], Any]] = {"floats": lambda: x.by_floats(torch, weight, scales, bias)}
        if self.device.type == "cuda" and not any(n % LIBRARY_UNIT for n in weight.shape):
            ways = {"library": lambda: x.by_library(torch, weight, scales, bias)} | ways
        return ("float8", x.numbers.shape, weight.shape, bias is None), ways

    def _images(self, op: Conv, x: Any, weight: Any, shape: tuple[int, ...]) -> tuple[Any, Any]:
        """Images of int8 as the kernel of sums reads them, and how; shape: of the result."""
        torch, before, after = self.torch, op.pre_padding, op.post_padding
        if weight.dim() == 3:  # by lines of pixels, which padding ends
            n, channels, height, width = x.shape
            high = height + before[0] + after[0]
            wide = max(width + before[1] + after[1], (shape[3] - 1) * op.stride[1] + weight.shape[2] // PIXEL)
            lines = torch.zeros((n, high, wide, PIXEL), dtype=torch.int8, device=self.device)
            inside = lines[:, before[0] : before[0] + height, before[1] : before[1] + width, :channels]
            inside.copy_(x.permute(0, 2, 3, 1))
            return lines, self.chains.Geometry(
                (high, wide), shape[2:], (weight.shape[1], 1), op.stride, (0, 0), op.dilation, PIXEL
            )
        if before != after or min(before) < 0:
            x, before = torch_padded(torch, x, before, after), (0, 0)
        x = x.contiguous(memory_format=torch.channels_last)
        return x, self.chains.Geometry(
            tuple(x.shape[2:]), shape[2:], tuple(weight.shape[2:]), op.stride, before, op.dilation
        )

    def _sums(self, call: Sums, tensors: dict[Value, Any], sizes: Mapping[str, int]) -> bool:
        torch, node, chains = self.torch, call.node, self.chains
        op: Any = known(node.op, sizes)
        x, scale = tensors[call.x], tensors[call.scale]
        weight, factors = self.made.ready[node]
        bias = tensors[node.inputs[2]] if len(node.given) > 2 else None
        shape = tuple(node.output.spec.evaluate(sizes))
        if not _count(shape) or _count(shape) > chains.MOST_ELEMENTS:
            return False
        if isinstance(op, Conv):
            x, geometry = self._images(op, x, weight, shape)
        else:
            x, geometry = x.contiguous(), chains.Geometry((1, 1), (1, 1))
        form = torch.channels_last if len(shape) == 4 and isinstance(op, Conv) else torch.contiguous_format
        scale = scale.reshape(-1)

        def computed(value: Value, steps: Any, last: int, operands: Sequence[Any], tile: Any) -> Any:
            dtype = getattr(torch, value.dtype.name)
            out = torch.empty(shape, dtype=dtype, device=self.device, memory_format=form)
            modes = ["sums" if t is None else chains.sum_mode(t, out) for t in operands]
            if None in modes:
                return None
            chains.run_sums(steps, last, operands, modes, x, weight, scale, factors, bias, geometry, tile, out)
            return out

        plain = ((("input", "float32", 0),), 0, [None])
        if call.chain is not None:
            steps, last, operands = call.chain.expression
            given = [None if o.value is node.output else self._operand(call.chain, o, tensors) for o in operands]

        def way(tile: Any) -> Any:
            if call.chain is None:
                return computed(node.output, *plain, tile)
            if (found := computed(call.chain.out, steps, last, given, tile)) is not None:
                return found
            inner = tensors | {node.output: computed(node.output, *plain, tile)}
            return inner[call.chain.out] if self._chain(call.chain, inner, sizes) else None

        outputs = weight.shape[0]
        channels = weight.shape[1 if weight.dim() == 4 else -1]
        tiles = chains.sum_tiles(_count(shape) // outputs, outputs, channels, self.multiprocessors)
        ways: dict[str, Callable[[], Any]] = {f"{t.places} × {t.outputs}": partial(way, t) for t in tiles}
        out = self._fastest(("sums", x.shape, weight.shape, geometry, call.chain is None), ways)()
        if out is None:
            return False
        tensors[node.output if call.chain is None else call.chain.out] = out
        return True

    @cached_property
    def has_float8(self) -> bool:
        """Whether matrix units multiply float8, or kernels are interpreted."""
        cuda = self.torch.cuda
        return not cuda.is_available() or tuple(cuda.get_device_capability(self.device)) >= FLOAT8

    @cached_property
    def multiprocessors(self) -> int:
        """Of the device; 1 where kernels are interpreted."""
        cuda = self.torch.cuda
        there = cuda.is_available()
        return int(cuda.get_device_properties(cuda.current_device()).multi_processor_count) if there else 1

    def _fastest(self, key: Any, ways: Mapping[str, Callable[[], Any]]) -> Callable[[], Any]:
        """The way that takes the least time on the device; the first where nobody has timed them."""
        every = list(ways.values())
        if self.traces:
            for way in every[1:]:
                with suppress(RuntimeError, NotImplementedError, AssertionError):  # what a library does not compute
                    way()
        chosen = self.made.choices.get(key, 0)
        if len(every) > 1 and self.times and key not in self.made.choices:
            took = [self._time(name, way) for name, way in ways.items()]
            chosen = self.made.choices[key] = took.index(min(took))
        return every[chosen]

    def _time(self, name: str, way: Callable[[], Any]) -> float:
        """Milliseconds of REPEATS runs; infinite for what a library does not compute."""
        torch = self.torch
        try:
            if way() is None:
                return float("inf")
            graph = torch.cuda.CUDAGraph()
            with capturing():
                torch.cuda.synchronize()
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    for _ in range(REPEATS):
                        way()
        except RuntimeError as e:
            if out_of_memory(e) or of_device(e):
                raise
            self.made.refused[name] = first_line(e)
            return float("inf")
        took = []
        for _ in range(4):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            took.append(begin.elapsed_time(end))
        return float(min(took[1:]))

    # -------------------------------------------------------------------------------------------------------- norms
    def _rowwise(self, call: Rowwise, tensors: dict[Value, Any], sizes: Mapping[str, int]) -> bool:
        torch, chains, chain = self.torch, self.chains, call.chain
        value = call.x if chain is None else chain.out
        shape = tuple(value.spec.evaluate(sizes))
        steps, last, given = (("input", "float32", 0),), 0, []
        if chain is not None:
            steps, last, operands = chain.expression
            given = [self._operand(chain, operand, tensors) for operand in operands]
        modes = [chains.row_mode(x, shape) for x in given]
        if chain is None or None in modes:
            if chain is not None and not self._chain(chain, tensors, sizes):
                return False
            steps, last, given = (("input", "float32", 0),), 0, [tensors[value].contiguous()]
            modes = [chains.row_mode(x, shape) for x in given]
        if None in modes or not 0 < shape[-1] <= chains.MOST_COLUMNS or "rows" not in modes:
            return False
        dtype, norm = getattr(torch, value.dtype.name), None
        if call.norm is not None:
            op: Any = call.norm.op
            norm = (*_given(call.norm, tensors), op.eps)
        out, whole, eight = torch.empty(shape, dtype=dtype, device=self.device), None, False
        if call.quantised is not None:
            eight = isinstance(call.quantised.op, Float8Rows)
            if eight and not self.has_float8:
                return False
            whole = (torch.empty(shape, dtype=torch.float8_e4m3fn if eight else torch.int8, device=self.device),
                     torch.empty((*shape[:-1], 1), dtype=torch.float32, device=self.device))  # fmt: skip
            made = (Float8(*whole, dtype),) if eight else whole
            tensors.update(zip(call.quantised.outputs, made, strict=True))
        chains.run_rows(steps, last, given, modes, norm, out, call.kept, whole)
        if call.norm is not None and call.kept:
            tensors[call.norm.output] = out
        return True

    def _pooled(self, call: Pooled, tensors: dict[Value, Any], sizes: Mapping[str, int]) -> bool:
        torch, node = self.torch, call.nodes[0]
        op: Any = known(node.op, sizes)
        x = tensors[node.inputs[0]]
        shape = tuple(node.output.spec.evaluate(sizes))
        last = torch.channels_last
        if not _count(shape) or not x.is_contiguous(memory_format=last) or max(_count(shape), x.numel()) >= 2**30:
            return False
        out = torch.empty(shape, dtype=x.dtype, device=self.device, memory_format=last)
        largest = isinstance(op, MaxPool)
        dilation = op.dilation if largest else (1, 1)
        self.kernels.pool[(-(-_count(shape) // POOLED),)](
            x, out, _count(shape), x.shape[1], *x.shape[2:], *shape[2:], *op.stride, *op.pre_padding, *dilation,
            KH=op.kernel[0], KW=op.kernel[1], LARGEST=largest, BLOCK=POOLED, num_warps=4,
        )  # fmt: skip
        tensors[node.output] = out
        return True

    def _group_norm(self, call: GroupNormed, tensors: dict[Value, Any]) -> bool:
        torch, node = self.torch, call.nodes[0]
        op: Any = node.op
        x = tensors[node.inputs[0]]
        if x.dim() != 4 or not x.is_contiguous(memory_format=torch.channels_last) or not x.numel():
            return False
        n, channels, height, width = x.shape
        wide, area, inner = power(channels), height * width, channels // op.groups
        if wide > TILE or inner > 1024 or area * channels >= 2**31:
            return False
        rows = TILE // wide
        tiles = -(-area // rows)
        means, squares = torch.empty((2, n, tiles, channels), dtype=torch.float32, device=self.device)
        scale, shift = torch.empty((2, n, channels, 1, 1), dtype=torch.float32, device=self.device)
        self.kernels.channel_moments[(tiles, n)](x, means, squares, area, channels, ROWS=rows, BC=wide, num_warps=8)
        gain, offset = _given(node, tensors)
        bias = None if call.bias is None else tensors[call.bias]
        block = power(inner)
        together = min(power(tiles), max(1, 4096 // block))
        self.kernels.group_factors[(op.groups, n)](
            means, squares, *(x if t is None else t for t in (bias, gain, offset)), scale, shift, area, channels,
            tiles, op.eps, ROWS=rows, INNER=inner, BI=block, BT=together, TURNS=-(-tiles // together),
            BIASED=bias is not None, GAIN=gain is not None, OFFSET=offset is not None, num_warps=4,
        )  # fmt: skip
        tensors[node.output] = Factors(x, scale, shift)
        return True

    # ---------------------------------------------------------------------------------------------------------- others
    def _graph_sum(self, call: GraphSum, tensors: dict[Value, Any]) -> bool:
        node = call.nodes[0]
        x = tensors[node.inputs[0]]
        n, k, c, t, v = x.shape
        rows = x.permute(0, 3, 4, 1, 2)
        if not rows.is_contiguous() or not x.numel():
            return False
        graph = self.made.ready[node]
        sums = self.torch.bmm(graph.expand(n * t, *graph.shape), rows.reshape(n * t, v * k, c))
        tensors[node.output] = sums.view(n, t, -1, c).permute(0, 3, 1, 2)
        return True

    def _attention(self, call: Attention, tensors: dict[Value, Any]) -> bool:
        node = call.nodes[0]
        op: Any = node.op
        q, k, v, *rest = (tensors[x] for x in node.given)
        mask = rest[0] if rest else None
        if mask is not None and (op.causal or op.empty_rows != "zero"):
            return False
        if mask is not None and mask.dtype not in (self.torch.bool, q.dtype):
            return False
        if q.dim() != 4 or not q.shape[0] == k.shape[0] == v.shape[0] or q.shape[1] % k.shape[1] or not k.shape[2]:
            return False
        if k.shape[1] != v.shape[1] or (op.causal and q.shape[2] != k.shape[2]):
            return False
        out = self.torch.nn.functional.scaled_dot_product_attention(
            q, k, v, mask, is_causal=op.causal, scale=op.scale, enable_gqa=q.shape[1] != k.shape[1]
        )
        tensors[node.output] = out.transpose(-3, -2) if op.heads_inside else out
        return True


def narrow(torch: Any, op: Op, operands: Sequence[Any]) -> Any:
    """A node's result in 16 bits, where torch then accumulates in float32 too and widens nothing; None for others."""
    x = operands[0] if operands else None
    if x is None or x.dtype not in (torch.float16, torch.bfloat16) or not x.numel():
        return None
    made: Any = op
    functional = torch.nn.functional
    if isinstance(op, Matmul) and op.out_dtype is None and operands[1].dtype == x.dtype:
        a, b = x.mT if op.transpose_a else x, operands[1].mT if op.transpose_b else operands[1]
        return torch.matmul(a, b)
    if isinstance(op, AvgPool | MaxPool) and not made.channels_last and len(made.kernel) == 2 and made.torch_takes(x):
        if isinstance(op, MaxPool):
            return functional.max_pool2d(x, op.kernel, op.stride, op.pre_padding, op.dilation, op.ceil_mode)
        return functional.avg_pool2d(x, op.kernel, op.stride, op.pre_padding, op.ceil_mode, op.count_include_pad,
                                     op.divisor)  # fmt: skip
    if isinstance(op, ReduceMean | ReduceSum) and (axes := axes_of(made.axes, x.ndim)):
        return getattr(torch, made.torch_name)(x, dim=axes, keepdim=made.keepdims)
    if isinstance(op, Softmax):
        return torch.softmax(x, made.axis)
    alike = all(o is None or o.dtype == x.dtype for o in operands)
    if isinstance(op, LayerNorm) and alike:
        return functional.layer_norm(x, x.shape[-1:], *operands[1:], *[None] * (3 - len(operands)), eps=op.eps)
    if isinstance(op, ConvTranspose) and not op.channels_last and alike:
        more = [a - b for a, b in zip(op.pre_padding, op.post_padding, strict=True)]
        fits = all(0 <= m < s for m, s in zip(more, op.stride, strict=True)) and min(op.post_padding) >= 0
        if fits and len(op.stride) == 2:
            bias = operands[2] if len(operands) > 2 else None
            return functional.conv_transpose2d(
                x, operands[1], bias, op.stride, op.pre_padding, more, op.groups, op.dilation
            )
    return None


def _given(node: Node, tensors: Mapping[Value, Any]) -> list[Any]:
    """A norm's weight and bias, None for each that it lacks."""
    found = [None if v.spec is None else tensors[v] for v in node.inputs[1:]]
    return [*found, None, None][:2]


def _count(shape: Sequence[int]) -> int:
    found = 1
    for n in shape:
        found *= n
    return found
