"""Decoding at batch 1 on a GPU, by the kernels of target cuda at the shapes of Llama: each kernel, and a whole step.

Weights are random and made on the device. Every kernel reads those of one layer after another, so that no cache holds
them; the step is one CUDA graph. Shares are of the copy bandwidth that is measured in the same run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import torch

from benchmarks.harness import Options, Result, Sample
from ingot.backends.cuda.choice import Chooser, Kind
from ingot.backends.cuda.launch import Launcher
from ingot.backends.cuda.operands import Form, Norm, Weight

CONTEXT = 501
BLOCK = 64


@dataclass(frozen=True)
class Shape:
    """A Llama's. tied: whether its head is its table."""

    name: str
    hidden: int
    inner: int
    heads: int
    kv: int
    width: int
    layers: int
    vocabulary: int
    tied: bool


SHAPES = (
    Shape("Llama-3-8B", 4096, 14336, 32, 8, 128, 32, 128256, False),
    Shape("Llama-3.2-1B", 2048, 8192, 32, 8, 64, 16, 128256, True),
)
WEIGHTS = ("bfloat16", "int8", "int4-g128", "fp8", "fp8, rows of fp8")
CACHES = ("bfloat16", "int8", "fp8")


def graphed(work: Callable[[], object], repeats: int) -> Callable[[], float]:
    """What replays `work`, captured, so often, and gives the seconds that the device took for one."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def measure() -> float:
        begin.record()
        for _ in range(repeats):
            graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / repeats

    return measure


def sampled(measure: Callable[[], float], times: int) -> Sample:
    """After a warm-up."""
    measure()
    return Sample.of([measure() for _ in range(times)])


def copy_bandwidth() -> float:
    """Bytes read and written in a second, by a large copy. Launched, not captured: a graph leaves copies to the copy
    engine, which is slower than the memory (2.71 for 4.16 TB/s on an H200)."""
    source = torch.randint(0, 255, (1 << 31,), dtype=torch.uint8, device="cuda")
    to = torch.empty_like(source)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def measure() -> float:
        begin.record()
        for _ in range(4):
            to.copy_(source)
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / 4

    return float(2 * source.numel() / sampled(measure, 5).median)


def started(name: str, *notes: str) -> tuple[Result, float]:
    """A result of this GPU, which says its copy bandwidth and torch's version; and that, in bytes a second."""
    machine = torch.cuda.get_device_name()
    result, bandwidth = Result(name, machine=machine), copy_bandwidth()
    torch.cuda.empty_cache()
    said = (f"{machine}, copy {bandwidth / 1e12:.2f} TB/s", f"torch {torch.__version__}", *notes)
    result.notes.append("; ".join(said))
    return result, bandwidth


class Model:
    """One step of a Llama's shape at batch 1: what it reads, and the calls that it makes."""

    def __init__(self, shape: Shape, weights: str, launcher: Launcher) -> None:
        self.shape, self.weights, self.launcher = shape, weights.split(",")[0], launcher
        self.product = partial(launcher.product, rounds="rows" in weights)
        s = shape
        rows = (s.heads + 2 * s.kv) * s.width
        self.qkv = [self._weight(rows, s.hidden) for _ in range(s.layers)]
        self.output = [self._weight(s.hidden, s.heads * s.width) for _ in range(s.layers)]
        self.gate_up = [self._weight(s.inner, s.hidden, True) for _ in range(s.layers)]
        self.down = [self._weight(s.hidden, s.inner) for _ in range(s.layers)]
        self.table = self._random(s.vocabulary, s.hidden)
        self.head = Weight(self.table) if self.weights == "bfloat16" else self._weight(s.vocabulary, s.hidden)
        self.norm = Norm(self._random(s.hidden) + 1, 1e-5, 0.0)
        blocks = -(-(CONTEXT + 1) // BLOCK)
        self.state = [self._random(blocks, BLOCK, 2, s.kv, s.width) for _ in range(s.layers)]
        ints: Any = {"dtype": torch.int32, "device": "cuda"}
        self.block_table = torch.arange(blocks, **ints)[None]
        self.slot, self.context = (torch.full((1,), n, **ints) for n in (CONTEXT - 1, CONTEXT))
        angle = torch.rand((1, s.width // 2), device="cuda")
        self.cos, self.sin = angle.cos(), angle.sin()
        self.chooser = Chooser(torch, torch.device("cuda"), launcher)
        self.h, self.after = torch.randn((2, 1, s.hidden), device="cuda").bfloat16()
        self.rows = torch.randn((1, rows), device="cuda").bfloat16()
        self.attended = torch.randn((1, s.heads * s.width), device="cuda").bfloat16()
        self.inner = torch.randn((1, s.inner), device="cuda").bfloat16()
        self.logits = torch.empty((1, s.vocabulary), dtype=torch.float32, device="cuda")

    def _random(self, *shape: int) -> Any:
        return torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_(0, 0.02)

    def _weight(self, n: int, k: int, pair: bool = False) -> Weight:
        if self.weights == "bfloat16":
            return Weight(self._random(n, k), second=self._random(n, k) if pair else None)
        made: list[Any] = []
        for _ in range(1 + pair):
            if self.weights == "int8":
                made += [torch.randint(-127, 128, (n, k), dtype=torch.int8, device="cuda"),
                         torch.full((n,), 3e-4, device="cuda")]  # fmt: skip
            elif self.weights == "fp8":
                made += [self._random(n, k).mul_(5000).to(torch.float8_e4m3fn), torch.full((n,), 2e-4, device="cuda")]
            else:
                bits = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device="cuda")
                made += [bits, torch.full((n, k // 128), 5e-3, device="cuda")]
        first, scales, second, second_scales = (*made, None, None)[:4]
        group = 128 if self.weights.startswith("int4") else 0
        return Weight(first, scales, second, second_scales, group)

    @staticmethod
    def bytes(weight: Weight) -> int:
        """What a product reads of it."""
        parts = (weight.first, weight.scales, weight.second, weight.second_scales)
        return sum(t.nbytes for t in parts if t is not None)

    def attention(self, layer: int) -> None:
        s = self.shape
        q, k, v = self.rows.split([s.heads * s.width, s.kv * s.width, s.kv * s.width], 1)
        q, k, v = (t.view(1, -1, s.width) for t in (q, k, v))
        form = Form(s.width**-0.5, self.cos, self.sin)
        self.launcher.decode(q, k, v, self.slot, self.state[layer], self.context, self.block_table, self.attended, form)

    def layer(self, i: int) -> None:
        product = self.product
        product(self.h, self.qkv[i], self.rows, self.norm)
        self.attention(i)
        product(self.attended, self.output[i], self.after, None, self.h)
        product(self.after, self.gate_up[i], self.inner, self.norm)
        product(self.inner, self.down[i], self.h, None, self.after)

    def step(self) -> None:
        torch.index_select(self.table, 0, self.chooser.chosen[:1], out=self.h)
        for i in range(self.shape.layers):
            self.layer(i)
        self.product(self.h, self.head, self.logits, self.norm)
        self.chooser.choose(self.logits, {"temperature": self.logits, "uniform": self.logits}, Kind.GREEDY)

    def kernels(self) -> Sequence[tuple[str, Callable[[int], None], int]]:
        """Each kernel of a layer: its name, its call, and the bytes that it reads."""
        product = self.product
        found: list[tuple[str, Callable[[int], None], int]] = [
            ("qkv", lambda i: product(self.h, self.qkv[i], self.rows, self.norm), self.bytes(self.qkv[0])),
            ("attention", self.attention, 2 * CONTEXT * self.shape.kv * self.shape.width * 2),
            ("output", lambda i: product(self.attended, self.output[i], self.after, None, self.h),
             self.bytes(self.output[0])),
            ("gate and up", lambda i: product(self.after, self.gate_up[i], self.inner, self.norm),
             self.bytes(self.gate_up[0])),
            ("down", lambda i: product(self.inner, self.down[i], self.h, None, self.after), self.bytes(self.down[0])),
        ]  # fmt: skip
        return found

    def read(self) -> int:
        """Bytes that a step must read."""
        layers = sum(bytes_ for _, _, bytes_ in self.kernels()) * self.shape.layers
        return layers + self.bytes(self.head)


def in_layers(run: Callable[[int], None], layers: int) -> None:
    for i in range(layers):
        run(i)


def gpu_decode(options: Options) -> Result:
    """Steps and kernels of both shapes in all formats."""
    begun = perf_counter()
    result, bandwidth = started("gpu-decode", f"context {CONTEXT}")
    for shape in SHAPES:
        for weights in WEIGHTS:
            model = Model(shape, weights, Launcher(torch, dependent=True))
            of = f"{shape.name} {weights}"
            for kernel, run, read in model.kernels():
                took = sampled(graphed(partial(in_layers, run, shape.layers), 3), options.pairs).median / shape.layers
                note = f"{read / took / 1e12:.2f} TB/s, {read / took / bandwidth:.0%} of copy"
                result.add(f"{of}: {kernel}", took * 1e6, "µs", note=note)
            took = sampled(graphed(model.step, 3), options.pairs).median
            floor = model.read() / bandwidth
            note = f"{took * 1e3:.3f} ms, {floor / took:.0%} of copy, floor {1 / floor:.0f}"
            result.add(f"{of}: step", 1 / took, "tok/s", note=note)
            last = result.rows[-1]
            said = f"{last.what}: {last.value:.0f} ({note}) after {perf_counter() - begun:.0f} s"
            print(said, file=sys.stderr, flush=True)
            del model, run  # before the next one's weights
            torch.cuda.empty_cache()
    return result
