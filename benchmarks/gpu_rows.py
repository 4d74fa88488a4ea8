"""Several rows on a GPU at the shape of Llama-3-8B: products of 4, 16 and 64 rows in every format, and of the rows of
prompts; attention of a prompt's chunk beside cuDNN's, and of 64 requests, over each kind of cache; experts at the shape
of Mixtral-8x7B in every format. Weights are random, and every product reads those of one layer after another.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.gpu_decode import BLOCK, CACHES, SHAPES, WEIGHTS, Model, graphed, in_layers, sampled, started
from benchmarks.harness import Options, Result
from ingot.backends.cuda.launch import Launcher
from ingot.backends.cuda.launch_shapes import tiles_of
from ingot.backends.cuda.operands import Form, Mixture, Weight
from ingot.ops.mixture import Moe

ROWS = (4, 16, 64)
EXPERTS = ("bfloat16", "int8", "int4-g128", "int4-g128-asym", "fp8")
GROUP = 128
CHUNK = 2048
PROMPTS = {"bfloat16": (4096,), "fp8, rows of fp8": (128, 512, 4096)}  # rows of products that arithmetic limits
REQUESTS, CONTEXT = 64, 4096


def _random(*size: int) -> Any:
    return torch.randn(size, dtype=torch.bfloat16, device="cuda")


def timed(
    result: Result, what: str, run: Callable[[int], None], count: int, pairs: int, done: float, unit: str
) -> None:
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
            model.product(x, layers[i], out, norm, extra)

        what = f"{weights}, {rows} rows: {name}"
        if rows in ROWS:
            timed(result, what, run, s.layers, pairs, model.bytes(layers[0]), "TB/s")
        else:
            operations = 2 * rows * outputs * inputs * (2 if layers[0].second is not None else 1)
            timed(result, what, run, 4, pairs, operations, "TFLOP/s")


def _cache(kind: str, blocks: int) -> Any:
    """A cache of keys and values of that kind."""
    s = SHAPES[0]
    if kind == "int8":
        state = torch.randint(-127, 128, (blocks, BLOCK, 2, s.kv, s.width + 4), dtype=torch.int8, device="cuda")
        state.view(torch.float32)[..., -1] = 0.01
        return state
    state = _random(blocks, BLOCK, 2, s.kv, s.width)
    return state.to(torch.float8_e4m3fn) if kind == "fp8" else state


def _stacked(weights: str, outputs: int, inputs: int) -> tuple[Any, Any, Any]:
    """Random weights of all experts in that format, their scales and zero points."""
    if weights == "bfloat16":
        return _random(outputs, inputs) / inputs**0.5, None, None
    if weights == "fp8":
        return _random(outputs, inputs).to(torch.float8_e4m3fn), torch.rand(outputs, device="cuda") / inputs**0.5, None
    if weights == "int8":
        numbers = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8, device="cuda")
        return numbers, torch.rand(outputs, device="cuda") / 74 / inputs**0.5, None
    numbers = torch.randint(0, 256, (outputs, inputs // 2), dtype=torch.uint8, device="cuda")
    scales = (torch.rand((outputs, inputs // GROUP), device="cuda") / 4 / inputs**0.5).half()
    zeros = torch.randint(-8, 8, scales.shape, dtype=torch.int8, device="cuda") if "asym" in weights else None
    return numbers, scales, zeros


def _mixture(weights: str, hidden: int, inner: int, count: int, top: int) -> Mixture:
    gate, up, down = (_stacked(weights, count * n, k) for n, k in ((inner, hidden), (inner, hidden), (hidden, inner)))
    group = GROUP if weights.startswith("int4") else 0
    gated = Weight(gate[0], gate[1], up[0], up[1], group, "silu", gate[2], up[2])
    return Mixture(gated, Weight(*down[:2], group=group, zeros=down[2]), count, top, True)


def _bytes(of: Mixture) -> int:
    """Of one expert."""
    parts = ((w.first, w.second, w.scales, w.second_scales, w.zeros, w.second_zeros) for w in of.weights)
    return sum(int(t.nbytes) for part in parts for t in part if t is not None) // of.experts


def _experts(result: Result, pairs: int, bandwidth: float) -> None:
    """A layer's experts at Mixtral-8x7B's shape, in every format: as many as the rows choose are read, and the floor is
    the time of copying that; and torch's form for one row.
    """
    hidden, inner, count, top, layers = 4096, 14336, 8, 2, 3
    launcher = Launcher(torch, dependent=True)
    for weights in EXPERTS:
        each = [_mixture(weights, hidden, inner, count, top) for _ in range(layers)]
        for rows in (1, 4, 16, 64, 2048):
            x, router = _random(rows, hidden), torch.randn((rows, count), device="cuda")
            out = torch.empty_like(x)
            used = len(router.topk(top).indices.unique())

            def run(i: int, x: Any = x, router: Any = router, out: Any = out, each: Any = each) -> None:
                launcher.experts(x, router, each[i], out)

            read = used * _bytes(each[0])
            floor = f"floor {read / bandwidth * 1e6:.1f} µs"
            timed(result, f"experts, {weights}, {rows} rows, {used} of {count} read, {floor}", run, layers, pairs, read,
                  "TB/s")  # fmt: skip
            if rows > max(ROWS):
                done = 2 * rows * top * 3 * hidden * inner
                timed(result, f"experts, {weights}, {rows} rows", run, layers, pairs, done, "TFLOP/s")
        of = each[0]
        del each, run
        if weights == "bfloat16":
            _experts_by_torch(result, pairs, of, hidden, inner)
        del of
        torch.cuda.empty_cache()


def _experts_by_torch(result: Result, pairs: int, of: Mixture, hidden: int, inner: int) -> None:
    count, gated = of.experts, of.gated
    weights = [*gated.first.view(count, inner, hidden), *gated.second.view(count, inner, hidden),
               *of.downs.first.view(count, hidden, inner)]  # fmt: skip
    x, router = _random(1, hidden), torch.randn((1, count), device="cuda")
    op = Moe(top_k=of.top)
    timed(result, "experts, bfloat16, 1 row, torch's form", lambda _: op.torch(torch, x, router, *weights), 1, pairs,
         of.top * _bytes(of), "TB/s")  # fmt: skip


def _requests(result: Result, pairs: int) -> None:
    """One row each of many requests."""
    s, launcher = SHAPES[0], Launcher(torch, dependent=True)
    ints: Any = {"dtype": torch.int32, "device": "cuda"}
    each = CONTEXT // BLOCK
    table = torch.randperm(REQUESTS * each, device="cuda").int().view(REQUESTS, each)
    q, key, value = (_random(REQUESTS, heads, s.width) for heads in (s.heads, s.kv, s.kv))
    slot, length = table[:, -1] * BLOCK + BLOCK - 1, torch.full((REQUESTS,), CONTEXT, **ints)
    out, form = _random(REQUESTS, s.heads * s.width), Form(s.width**-0.5)
    for kind in CACHES:
        states = [_cache(kind, REQUESTS * each) for _ in range(2)]

        def run(i: int, states: Any = states) -> None:
            launcher.decode(q, key, value, slot, states[i], length, table, out, form)

        read = states[0].nbytes
        timed(result, f"attention, {REQUESTS} of {CONTEXT} each, cache of {kind}", run, 2, pairs, read, "TB/s")
        del states, run


def _prompts(result: Result, pairs: int) -> None:
    """A chunk of a prompt over what is cached, its own tokens included."""
    s, launcher = SHAPES[0], Launcher(torch, dependent=True)
    ints: Any = {"dtype": torch.int32, "device": "cuda"}
    for context in (CHUNK, 2 * CHUNK):
        blocks = context // BLOCK
        table = torch.randperm(blocks, device="cuda").int()
        q, key, value = (_random(CHUNK, heads, s.width) for heads in (s.heads, s.kv, s.kv))
        position = torch.arange(context - CHUNK, context, device="cuda")
        slot = (table[position // BLOCK] * BLOCK + position % BLOCK).int()
        start, length = torch.tensor([0, CHUNK], **ints), torch.tensor([context], **ints)
        tiles = torch.from_numpy(tiles_of(start.cpu().numpy(), s.heads // s.kv)).cuda()
        out, form = torch.empty_like(q), Form(s.width**-0.5)
        ours = {}
        for kind in CACHES:
            words = (q, key, value, slot, _cache(kind, blocks), tiles, start, length, table[None], out, form)
            ours[f"cache of {kind}"] = lambda _, words=words: launcher.prefill(*words)
        x = _random(1, s.heads, CHUNK, s.width)
        y, z = _random(2, 1, s.heads, context, s.width)

        def theirs(_: int, x: Any = x, y: Any = y, z: Any = z, causal: bool = context == CHUNK) -> None:
            torch.ops.aten._cudnn_attention_forward(
                x, y, z, None, None, None, CHUNK, y.shape[2], True, 0.0, causal, False
            )

        operations = 4 * CHUNK * (context - CHUNK / 2) * s.heads * s.width
        for name, run in (*ours.items(), ("cuDNN, keys side by side", theirs)):
            timed(result, f"attention, {CHUNK} of {context}, {name}", run, 4, pairs, operations, "TFLOP/s")


def gpu_rows(options: Options) -> Result:
    """Products and attention of several rows."""
    result, bandwidth = started("gpu-rows")
    _prompts(result, options.pairs)
    _requests(result, options.pairs)
    _experts(result, options.pairs, bandwidth)
    torch.cuda.empty_cache()
    for weights in WEIGHTS:
        model = Model(SHAPES[0], weights, Launcher(torch, dependent=True))
        for rows in (*ROWS, *PROMPTS.get(weights, ())):
            _products(result, weights, rows, model, options.pairs)
        del model
        torch.cuda.empty_cache()
    return result
