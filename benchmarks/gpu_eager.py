"""A cheap peer on a GPU: one decoding step of a Llama's shape in plain torch, eager, captured as one CUDA graph.

bfloat16, cuBLAS for every product, scaled_dot_product_attention over a cache of fixed length, the token by argmax.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from benchmarks.gpu_decode import Shape, graphed, sampled
from benchmarks.harness import Result, Sample


class Eager:
    """One step for `rows` sequences whose caches hold `context` tokens."""

    def __init__(self, shape: Shape, rows: int, context: int) -> None:
        self.shape, self.rows, self.context = shape, rows, context
        s = shape
        self.qkv, self.output, self.gate_up, self.down = (
            [self._random(*size) for _ in range(s.layers)]
            for size in (((s.heads + 2 * s.kv) * s.width, s.hidden), (s.hidden, s.heads * s.width),
                         (2 * s.inner, s.hidden), (s.hidden, s.inner))
        )  # fmt: skip
        self.table, self.gain = self._random(s.vocabulary, s.hidden), self._random(s.hidden)
        self.cache = [self._random(2, rows, s.kv, context, s.width) for _ in range(s.layers)]
        self.token = torch.zeros(rows, dtype=torch.int64, device="cuda")
        angle = torch.rand(s.width // 2, device="cuda")
        self.cos, self.sin = angle.cos().bfloat16(), angle.sin().bfloat16()

    @staticmethod
    def _random(*size: int) -> Any:
        return torch.empty(size, dtype=torch.bfloat16, device="cuda").normal_(0, 0.02)

    def _norm(self, x: Any) -> Any:
        return functional.rms_norm(x, x.shape[-1:], self.gain, 1e-5)

    def _turned(self, x: Any) -> Any:
        a, b = x.chunk(2, -1)
        return torch.cat([a * self.cos - b * self.sin, b * self.cos + a * self.sin], -1)

    def step(self) -> None:
        s = self.shape
        x = self.table[self.token]
        for i in range(s.layers):
            rows = functional.linear(self._norm(x), self.qkv[i]).view(self.rows, -1, s.width)
            q, k, v = rows.split([s.heads, s.kv, s.kv], 1)
            self.cache[i][0, :, :, -1], self.cache[i][1, :, :, -1] = self._turned(k), v
            keys, values = self.cache[i]
            query = self._turned(q)[:, :, None]
            found = functional.scaled_dot_product_attention(query, keys, values, enable_gqa=True)
            x = x + functional.linear(found.reshape(self.rows, -1), self.output[i])
            gate, up = functional.linear(self._norm(x), self.gate_up[i]).chunk(2, -1)
            x = x + functional.linear(functional.silu(gate) * up, self.down[i])
        self.token.copy_(functional.linear(self._norm(x), self.table).argmax(-1))


def eager_step(shape: Shape, rows: int, context: int, times: int = 5) -> float:
    """Seconds of a step."""
    with torch.no_grad():
        return sampled(graphed(Eager(shape, rows, context).step, 3), times).median


def beside_eager(result: Result, shape: Shape, rows: int, context: int) -> None:
    """Tokens a second of such steps one after another: decodes alone, no prompts."""
    took = Sample.of([rows / eager_step(shape, rows, context)])
    result.measured(f"{shape.name} bfloat16, plain torch in a CUDA graph, {rows} rows", took, "tok/s")
    torch.cuda.empty_cache()
