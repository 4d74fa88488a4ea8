"""The peers on an NVIDIA GPU that compile for minutes, measured once and kept: the other gpu benchmarks read these.

`python -m benchmarks gpu-peers-NAME --keep` adds each to a file of benchmarks/measured/ for that GPU, with the date,
the versions and its copy bandwidth.

gpt-fast is read from the folder that INGOT_BENCH_GPT_FAST names, as it is; random weights of the true shapes.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from importlib import import_module
from time import perf_counter
from typing import Any

import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks import torch_nets
from benchmarks.gpu_decode import SHAPES, Shape, started
from benchmarks.gpu_nets import BATCHES, half, peer
from benchmarks.harness import Options, Result, Sample, repeated
from ingot.errors import UserError

GPT_FAST = "INGOT_BENCH_GPT_FAST"
PROMPT, TOKENS, MANY, LONG = 128, 200, 64, 4096
CLIENTS, SERVED_PROMPT, SERVED_ANSWER = 128, 512, 128  # as gpu-serve has them
CONTINUOUS = (
    f"transformers continuous batching, {SHAPES[0].name} bfloat16, {CLIENTS} x ({SERVED_PROMPT} + {SERVED_ANSWER})"
)  # the row
GPT_FAST_CASES = ((SHAPES[0], "bfloat16"), (SHAPES[0], "int8"), (SHAPES[1], "bfloat16"))
WAVES = 4  # of that many requests each
VERSION = f"transformers {transformers.__version__}"


def emptied() -> None:
    """Gives memory and compiled code back, so that the next peer finds the GPU as a first one would."""
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()


def gpu_peers_gpt_fast(shape: Shape, weights: str) -> Callable[[Options], Result]:
    """The benchmark of gpt-fast at one shape, one sequence. It raises UserError where gpt-fast is missing."""

    def run(options: Options) -> Result:
        folder = os.environ.get(GPT_FAST)
        if folder is None:
            raise UserError(f"gpt-fast is missing: {GPT_FAST} names no folder that has it (benchmarks/README.md)")
        result, _ = started(f"gpu-peers-{_gpt_fast_name(shape, weights)}", VERSION)
        sys.path.insert(0, folder)
        _gpt_fast(result, shape, weights, options.pairs)
        return result

    return run


def _gpt_fast_name(shape: Shape, weights: str) -> str:
    return f"gpt-fast-{shape.name.rpartition('-')[2].lower()}-{weights}"


def gpu_peers_transformers(options: Options) -> Result:
    """transformers at the shape of Llama-3-8B: its generate, and its continuous batching."""
    result, _ = started("gpu-peers-transformers", VERSION)
    _transformers(result, SHAPES[0], options.pairs)
    return result


def _gpt_fast(result: Result, shape: Shape, weights: str, pairs: int) -> None:
    """Decoding of one sequence, as its generate.py compiles it, with its sampler (temperature 0.8, top 200)."""
    models, generating, quantizing = (import_module(name) for name in ("model", "generate", "quantize"))
    arguments = models.ModelArgs(
        block_size=8192, vocab_size=shape.vocabulary, n_layer=shape.layers, n_head=shape.heads,
        n_local_heads=shape.kv, dim=shape.hidden, intermediate_size=shape.inner, rope_base=5e5,
    )  # fmt: skip
    with torch.device("cuda"):
        model = models.Transformer(arguments).to(torch.bfloat16)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.02)
    if weights == "int8":
        quantizing.replace_linear_weight_only_int8_per_channel(model)
        for module in model.modules():
            if isinstance(module, quantizing.WeightOnlyInt8Linear):
                module.weight.random_(-127, 127)
                module.scales.fill_(2e-4)
        model = model.to("cuda")
    model.eval()
    with torch.device("cuda"):
        model.setup_caches(1, 1024)
    step = torch.compile(generating.decode_one_token, mode="reduce-overhead", fullgraph=True)
    token = torch.randint(0, 1000, (1, 1), device="cuda")
    position = torch.tensor([PROMPT], device="cuda", dtype=torch.int)

    def decoded(count: int) -> float:
        """Tokens a second. gpt-fast's own loop copies the token and moves the position so."""
        nonlocal token
        position.fill_(PROMPT)
        torch.cuda.synchronize()
        begin = perf_counter()
        for _ in range(count):
            found, _ = step(model, token, position, temperature=0.8, top_k=200)
            token = found.clone()
            position.add_(1)
        torch.cuda.synchronize()
        return count / (perf_counter() - begin)

    with torch.no_grad(), sdpa_kernel([SDPBackend.MATH]):  # its own choice: the compiler makes better code of it
        begin = perf_counter()
        decoded(5)
        ready = perf_counter() - begin
        sample = repeated(lambda: decoded(TOKENS), pairs)
    result.measured(f"gpt-fast, {shape.name} {weights}", sample, "tok/s", f"ready in {ready:.0f} s")


def _transformers(result: Result, shape: Shape, pairs: int) -> None:
    config = transformers.LlamaConfig(
        vocab_size=shape.vocabulary, hidden_size=shape.hidden, intermediate_size=shape.inner,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.kv,
        max_position_embeddings=8192, bos_token_id=0, eos_token_id=1, dtype=torch.bfloat16,
    )  # fmt: skip
    with torch.device("cuda"):
        model: Any = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()

    def generated(rows: int, prompt: int, tokens: int) -> float:
        """Seconds."""
        ids = torch.randint(2, 32000, (rows, prompt), device="cuda")
        words = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None, "attention_mask": torch.ones_like(ids)}
        torch.cuda.synchronize()
        begin = perf_counter()
        model.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, **words)
        torch.cuda.synchronize()
        return perf_counter() - begin

    sample = repeated(lambda: MANY * PROMPT / generated(MANY, PROMPT, PROMPT), min(pairs, 3))
    result.measured(f"transformers, {shape.name} bfloat16, {MANY} x ({PROMPT} + {PROMPT})", sample, "tok/s")
    sample = repeated(lambda: 1e3 * generated(1, LONG, 1), pairs)
    result.measured(f"transformers, {shape.name} bfloat16, first token of {LONG}", sample, "ms")
    _continuous(result, model)


def _continuous(result: Result, model: Any) -> None:
    """Tokens a second of WAVES * CLIENTS requests, at most CLIENTS of them at a time."""
    prompts = torch.randint(2, 32000, (WAVES * CLIENTS, SERVED_PROMPT)).tolist()
    words = transformers.GenerationConfig(
        max_new_tokens=SERVED_ANSWER, min_new_tokens=SERVED_ANSWER, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    batching = transformers.generation.ContinuousBatchingConfig(max_requests_per_batch=CLIENTS)
    model.generate_batch(prompts[:CLIENTS], generation_config=words, continuous_batching_config=batching)
    begin = perf_counter()
    found = model.generate_batch(prompts, generation_config=words, continuous_batching_config=batching)
    took = perf_counter() - begin
    tokens = sum(len(answer.generated_tokens) for answer in found.values())
    result.measured(CONTINUOUS, Sample.of([tokens / took]), "tok/s", f"{len(found)} requests")


def gpu_peers_net(name: str) -> Callable[[Options], Result]:
    """The benchmark of one net: torch.compile with max-autotune, float16, channels last."""

    def run(options: Options) -> Result:
        del options
        result, _ = started(f"gpu-peers-{name}", VERSION)
        spec, module = torch_nets.NETS[name], torch_nets.in_range(name, torch_nets.make(name)).cuda()
        for batch in BATCHES:
            emptied()
            compiled = torch.compile(half(module), mode="max-autotune")
            peer(result, f"{name}, batch {batch}", "torch.compile", compiled, spec.inputs, batch)
        return result

    return run


# By name: each ends within minutes, and is kept by itself.
BENCHMARKS: dict[str, Callable[[Options], Result]] = {
    "gpu-peers-transformers": gpu_peers_transformers,
    **{f"gpu-peers-{_gpt_fast_name(*case)}": gpu_peers_gpt_fast(*case) for case in GPT_FAST_CASES},
    **{f"gpu-peers-{name}": gpu_peers_net(name) for name in torch_nets.NETS},
}
