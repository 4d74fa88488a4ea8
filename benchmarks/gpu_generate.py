"""LLM on a GPU, host included, at the shapes of Llama with random weights: decoding of one request and of 64, and the
time to the first token of a long prompt; pico-python's text beside the CPU's.

Every run measures the copy bandwidth and a cheap peer first: a step of plain torch in one CUDA graph (gpu_eager).
Parameters of equal shapes hold equal numbers (alike): an engine of 8B is built in 1 to 24 s on 16 cores, int4 longest.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch

import ingot
from benchmarks.alike import alike
from benchmarks.gpu_decode import SHAPES, Shape, started
from benchmarks.gpu_eager import beside_eager
from benchmarks.gpu_kept import kept
from benchmarks.harness import PICO, Options, Result, Sample

PROMPTS = ("def add(a, b):\n", "import os\n", "class Point:\n    def __init__(self")
TOKENS, PROMPT, MANY, LONG = 200, 128, 64, 4096
SETTLED = 12.0  # seconds after the opening: what is compiled beside steps took 7 to 10 of 1B on an H200
# The shape, and how weights, activations and the cache are stored.
CASES: tuple[tuple[int, dict[str, str]], ...] = (
    (1, {}), (0, {}), (0, {"weights": "int8"}), (0, {"weights": "int4-g128"}),
)  # fmt: skip
FLOATS_OF_8: tuple[tuple[int, dict[str, str]], ...] = (
    (0, {"weights": "fp8", "activations": "fp8"}), (0, {"weights": "fp8"}),
    (0, {"weights": "fp8", "activations": "fp8", "kv": "fp8"}), (0, {"kv": "int8"}),
)  # fmt: skip


def config(shape: Shape) -> dict[str, object]:
    """What config.json says of a Llama of that shape."""
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": shape.hidden,
        "intermediate_size": shape.inner, "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv, "head_dim": shape.width, "vocab_size": shape.vocabulary,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 5e5, "tie_word_embeddings": shape.tied,
        "hidden_act": "silu", "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "bfloat16",
    }  # fmt: skip


def build(shape: Shape, **formats: str) -> Any:
    """An engine of that shape with random weights."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config(shape)))
        return ingot.build(folder, weights_from="random", seed=0, report=False, **formats)


def lookup(shape: Shape, weights: str) -> int:
    """Bytes of a table of which a step reads one row alone: a table that is the head too is read whole."""
    if shape.tied:
        return 0
    return shape.vocabulary * (2 * shape.hidden if weights == "same" else shape.hidden + 4)


def prompt(number: int, length: int = PROMPT) -> list[int]:
    """Token ids, different ones for each number."""
    return [(1000 * number + 7 * i) % 100_000 + 2 for i in range(length)]


def decoding(llm: ingot.LLM, number: int) -> float:
    """Tokens per second of one request, from its first token on."""
    done: Any = llm.generate(prompt(number), max_tokens=TOKENS, ignore_end=True)
    return float((TOKENS - 1) / (done.seconds["total"] - done.seconds["first_token"]))


def together(llm: ingot.LLM, number: int) -> float:
    """Tokens per second of many requests, prompts included."""
    begin = perf_counter()
    llm.generate([prompt(MANY * number + i) for i in range(MANY)], max_tokens=PROMPT, ignore_end=True)
    return MANY * PROMPT / (perf_counter() - begin)


def first_token(llm: ingot.LLM, number: int) -> float:
    """Seconds to the first token of a long prompt."""
    done: Any = llm.generate(prompt(number, LONG), max_tokens=1, ignore_end=True)
    return float(done.seconds["first_token"])


def _beside(result: Result, what: str, ratio: Callable[[float], float]) -> None:
    """How many times as fast as a kept peer, where a GPU of this kind has one."""
    peer = kept(what)
    if peer is not None:
        result.add(f"beside {what}", ratio(peer), "×", note=f"kept: {peer:.4g}")


def _case(result: Result, shape: Shape, formats: dict[str, str], bandwidth: float, pairs: int) -> None:
    said = [formats.get("weights", "bfloat16"), *(f"{k} {v}" for k, v in formats.items() if k != "weights")]
    of = f"{shape.name} {', '.join(said)}"
    begin = perf_counter()
    engine = build(shape, **formats)
    built = perf_counter()
    with ingot.LLM(engine, device="cuda", context_length=LONG + 16, max_running=MANY) as llm:
        opened = perf_counter()
        decoding(llm, 0)
        read = engine.on("cuda").session(kv_blocks=1).memory().weights
        stored = read / 1e9
        warm = perf_counter()
        note = f"built in {built - begin:.0f} s, opened in {opened - built:.0f}, warm after {warm - opened:.1f}"
        result.notes.append(f"{of}: {note}; weights {stored:.2f} GB")
        early = Sample.of([decoding(llm, i) for i in range(1, pairs + 1)])
        result.measured(f"{of}, prompt {PROMPT}, kernels being compiled beside it", early, "tok/s", note)
        number = pairs
        while perf_counter() < opened + SETTLED:
            decoding(llm, number := number + 1)
        rates = Sample.of([decoding(llm, number + i) for i in range(1, pairs + 1)])
        read -= lookup(shape, formats.get("weights", "same"))
        share = read * rates.median / bandwidth
        rate = result.measured(f"{of}, prompt {PROMPT}", rates, "tok/s", f"{share:.0%} of copy")
        _beside(result, f"gpt-fast, {of}", lambda peer: rate / peer)
        first_token(llm, 0)
        found = [first_token(llm, i) * 1e3 for i in range(1, pairs + 1)]
        first = result.measured(f"{of}, first token of {LONG}", Sample.of(found), "ms")
        _beside(result, f"transformers, {of}, first token of {LONG}", lambda peer: peer / first)
        together(llm, 0)
        found = [together(llm, i) for i in range(1, min(pairs, 3) + 1)]
        many = result.measured(f"{of}, {MANY} x ({PROMPT} + {PROMPT})", Sample.of(found), "tok/s")
        _beside(result, f"transformers, {of}, {MANY} x ({PROMPT} + {PROMPT})", lambda peer: many / peer)
    del llm, engine
    torch.cuda.empty_cache()


def _texts(result: Result) -> None:
    engine = ingot.build(PICO, report=False)
    with ingot.LLM(engine) as cpu, ingot.LLM(engine, device="cuda") as gpu:
        answers: list[Any] = [[llm.generate(p, max_tokens=48).token_ids for p in PROMPTS] for llm in (cpu, gpu)]
    same = sum(a == b for a, b in zip(*answers, strict=True))
    result.add("pico-python: answers as the CPU's", same, f"of {len(PROMPTS)}", at_least=len(PROMPTS))


def gpu_generate(options: Options) -> Result:
    """pico-python's text, then every case."""
    result, bandwidth = started("gpu-generate")
    _texts(result)
    for shape in (SHAPES[1], SHAPES[0]):
        for rows in (1, MANY):
            beside_eager(result, shape, rows, PROMPT + TOKENS // 2)
    for number, formats in CASES:
        with alike():
            _case(result, SHAPES[number], formats, bandwidth, options.pairs)
    return result


def gpu_generate_fp8(options: Options) -> Result:
    """Weights, activations and caches of 8 bits."""
    result, bandwidth = started("gpu-generate-fp8")
    with alike():
        for number, formats in FLOATS_OF_8:
            _case(result, SHAPES[number], formats, bandwidth, options.pairs)
    return result
