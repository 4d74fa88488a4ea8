"""Several rows on a GPU at the shape of Llama-3-8B: products of 4, 16 and 64 rows in every format, and attention of a
prompt's chunk beside cuDNN's. Weights are random, and every product reads those of one layer after another.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.gpu_decode import BLOCK, SHAPES, WEIGHTS, Model, copy_bandwidth, graphed, in_layers, sampled
from benchmarks.harness import Options, Result
from ingot.backends.cuda.launch import Form, Launcher, tiles_of

ROWS = (4, 16, 64)
CHUNK = 2048


def _random(*size: int) -> Any:
    return torch.randn(size, dtype=torch.bfloat16, device="cuda")


def _add(result: Result, what: str, run: Callable[[int], None], count: int, pairs: int, done: float, unit: str) -> None:
    """The time of one of `count` calls, and how much of something it does in a second."""
    took = sampled(graphed(partial(in_layers, run, count), 3), pairs).median / count
    note = f"{done / took / 1e12:.2f} {unit}"
    result.add(what, took * 1e6, "µs", note=note)
    print(f"{what}: {took * 1e6:.1f} µs, {note}", file=sys.stderr, flush=True)


def _products(result: Result, weights: str, rows: int, model: Model, pairs: int) -> None:
    s = model.shape
    cases = (
        ("qkv", model.qkv, s.hidden, model.norm, False),
        ("output", model.output, s.heads * s.width, None, True),
        ("gate and up", model.gate_up, s.hidden, model.norm, False),
        ("down", model.down, s.inner, None, True),
    )
    for name, layers, inputs, norm, residual in cases:
        outputs = layers[0].outputs
        x, out, extra = _random(rows, inputs), _random(rows, outputs), _random(rows, outputs) if residual else None

        def run(i: int, layers: Any = layers, x: Any = x, out: Any = out, norm: Any = norm, extra: Any = extra) -> None:
            model.launcher.product(x, layers[i], out, norm, extra)

        _add(result, f"{weights}, {rows} rows: {name}", run, s.layers, pairs, model.bytes(layers[0]), "TB/s")


def _prompts(result: Result, pairs: int) -> None:
    """A chunk of a prompt over what is cached, its own tokens included."""
    s, launcher = SHAPES[0], Launcher(torch, dependent=True)
    ints: Any = {"dtype": torch.int32, "device": "cuda"}
    for context in (CHUNK, 2 * CHUNK):
        blocks = context // BLOCK
        table = torch.randperm(blocks, device="cuda").int()
        state = _random(blocks, BLOCK, 2, s.kv, s.width)
        q, key, value = (_random(CHUNK, heads, s.width) for heads in (s.heads, s.kv, s.kv))
        position = torch.arange(context - CHUNK, context, device="cuda")
        slot = (table[position // BLOCK] * BLOCK + position % BLOCK).int()
        start, length = torch.tensor([0, CHUNK], **ints), torch.tensor([context], **ints)
        tiles = torch.from_numpy(tiles_of(start.cpu().numpy(), s.heads // s.kv)).cuda()
        out, form = torch.empty_like(q), Form(s.width**-0.5)
        words = (q, key, value, slot, state, tiles, start, length, table[None], out, form)

        def ours(_: int, words: Any = words) -> None:
            launcher.prefill(*words)

        x = _random(1, s.heads, CHUNK, s.width)
        y, z = _random(2, 1, s.heads, context, s.width)

        def theirs(_: int, x: Any = x, y: Any = y, z: Any = z, causal: bool = context == CHUNK) -> None:
            torch.ops.aten._cudnn_attention_forward(
                x, y, z, None, None, None, CHUNK, y.shape[2], True, 0.0, causal, False
            )

        operations = 4 * CHUNK * (context - CHUNK / 2) * s.heads * s.width
        for name, run in (("ours", ours), ("cuDNN, keys side by side", theirs)):
            _add(result, f"attention, {CHUNK} of {context}, {name}", run, 4, pairs, operations, "TFLOP/s")


def gpu_rows(options: Options) -> Result:
    """Products and attention of several rows."""
    result = Result("gpu-rows", machine=torch.cuda.get_device_name())
    bandwidth = copy_bandwidth()
    torch.cuda.empty_cache()
    result.notes.append(f"{torch.cuda.get_device_name()}, copy {bandwidth / 1e12:.2f} TB/s; torch {torch.__version__}")
    _prompts(result, options.pairs)
    for weights in WEIGHTS:
        model = Model(SHAPES[0], weights, Launcher(torch, dependent=True))
        for rows in ROWS:
            _products(result, weights, rows, model, options.pairs)
        del model
        torch.cuda.empty_cache()
    return result
