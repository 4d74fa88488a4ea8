"""The ways to store a language model's weights, on TinyLlama's shape: decoding, prompts, and many requests at once."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import ingot
from benchmarks import genai
from benchmarks.harness import CACHE, ROOT, Options, Result, Share, paired, repeated, seconds
from benchmarks.machine import peak, roofs
from benchmarks.pico import rate
from benchmarks.tinyllama import LAYER_WEIGHTS, directory, weight_bytes

PROMPTS = (512, 2047)  # tokens; the model has room for one more than the longer one
TOGETHER, TOKENS = 16, 33
Run: TypeAlias = Callable[[list[list[int]], int], object]  # prompts, and tokens for each


class Format(NamedTuple):
    """Words of `ingot.build`, and what OpenVINO GenAI's converter calls the like; None: it has nothing of the kind."""

    name: str
    weights: str
    activations: str | None
    peer: str | None
    share: float  # the goal: of the read bandwidth while decoding


FORMATS = (
    Format("bfloat16", "same", None, None, 0.9),
    Format("int8", "int8", None, "int8", 0.9),
    Format("int8, rows of int8", "int8", "int8", "int8", 0.9),
    Format("int4-g32", "int4-g32", None, None, 0.8),
    Format("int4-g128", "int4-g128", None, "int4", 0.8),
    Format("int4-g128, rows of int8", "int4-g128", "int8", "int4", 0.8),
)


def engine(format: Format) -> Path:
    """The model's engine in that format, built once per version of the package's sources."""
    path = CACHE / f"tinyllama-{format.weights}-{format.activations}.ingot"
    sources = max(p.stat().st_mtime for p in (ROOT / "ingot").rglob("*.py"))
    if not path.exists() or path.stat().st_mtime < sources:
        built = ingot.build(directory(), precision="bfloat16", weights=format.weights, activations=format.activations,
                            report=False)  # fmt: skip
        built.save(path)
    return path


def llm_formats(options: Options) -> Result:
    """Each format by itself; the bandwidth is read again before each, since neighbours change it."""
    result = Result("llm-formats")
    random.seed(0)
    drawn = {n: [random.randrange(5, 4000) for _ in range(n)] for n in PROMPTS}
    many = [[random.randrange(5, 4000) for _ in range(32)] for _ in range(TOGETHER)]
    for format in FORMATS:
        path = engine(format)
        roofs.cache_clear()
        with (
            ingot.LLM(path, threads=options.threads, prefix_cache=False, max_running=TOGETHER) as llm,
            genai.peer(directory(), options.threads, format.peer) as peer,
        ):
            if format.peer is not None and peer is None and genai.ABSENT not in result.notes:
                result.notes.append(genai.ABSENT)

            def ours(prompts: list[list[int]], tokens: int, llm: ingot.LLM = llm) -> object:
                return llm.generate(prompts, max_tokens=tokens, ignore_end=True)

            def theirs(prompts: list[list[int]], tokens: int, peer: genai.GenAI | None = peer) -> object:
                assert peer is not None
                return peer.generate(prompts, tokens)

            def add(what: str, measure: Callable[[Run], float], bytes_read: int = 0, limit: float = 0.0,
                    format: Format = format, peer: genai.GenAI | None = peer) -> None:  # fmt: skip
                bandwidth = roofs(options.threads)["read_bandwidth"] if bytes_read else 0.0
                both = None if peer is None else paired(lambda: measure(ours), lambda: measure(theirs), options.pairs)
                found = repeated(lambda: measure(ours), options.pairs) if both is None else both.ours
                result.add(f"{format.name}: {what}", found.median, "tok/s", quartiles=found.quartiles)
                rates = {"ingot": found.median, **({} if both is None else {"OpenVINO": both.peer.median})}
                most = bandwidth * 1e9 / bytes_read if bytes_read else limit
                bound = "read bandwidth" if bytes_read else "arithmetic"
                if most:
                    work = f"TinyLlama-1.1B, {format.name}, {what}"
                    result.shares += [Share(work, w, rate / most, bound, rate, "tok/s") for w, rate in rates.items()]
                if bytes_read:
                    share = found.median * bytes_read / 1e9 / bandwidth
                    result.add(f"{format.name}: share of {bandwidth:.1f} GB/s", share, "", at_least=format.share)
                if both is not None:
                    result.add(f"{format.name}: {what}, × OpenVINO GenAI", both.ratio.median, "×",
                               quartiles=both.ratio.quartiles)  # fmt: skip

            add("decode", partial(_decode, many[:1]), weight_bytes(path))
            for n in PROMPTS:
                summed = peak("int8" if format.activations else "bfloat16", options.threads)
                add(f"prompt of {n}", partial(_prompt, drawn[n]), limit=summed / (2 * LAYER_WEIGHTS))
            add(f"{TOGETHER} at once", partial(_decode, many))
    return result


def _prompt(ids: list[int], run: Run) -> float:
    return len(ids) / seconds(lambda: run([ids], 1))


def _decode(prompts: list[list[int]], run: Run) -> float:
    return len(prompts) * rate(lambda n: run(prompts, n), TOKENS)
