"""pico-python against Hugging Face transformers: identical tokens, the held-out loss, cold start, decoding."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

import ingot
from benchmarks.harness import CACHE, PICO, ROOT, Options, Result, Sample, paired, repeated, seconds

HELDOUT = PICO / "heldout.txt"
REFERENCE = 1.9522  # nats per token by transformers in float32, models/pico-python/README.md
W8A8 = {"weights": "int8", "activations": "int8"}
LOSSES: tuple[tuple[str, dict[str, str], float], ...] = (  # precision, formats, how far off they may be
    ("float32", {}, 0.0005), ("bfloat16", {}, 0.01), ("float32", {"weights": "int8"}, 0.002),
    ("bfloat16", {"weights": "int8"}, 0.002), ("float32", {"kv": "int8"}, 0.002), ("bfloat16", {"kv": "int8"}, 0.002),
    ("float32", W8A8, 0.01), ("bfloat16", W8A8, 0.01), ("float32", {"weights": "int4-g32"}, 0.03),
    ("bfloat16", {"weights": "int4-g32"}, 0.03), ("float32", {"weights": "int4-g128"}, 0.035),
    ("bfloat16", {"weights": "int4-g128"}, 0.035),
)  # fmt: skip
PROMPTS = (
    "import os", "def quicksort(items):", "class Stack:\n", "for i in range(10):\n    ", "with open(path) as f:\n",
    "try:\n    import json\nexcept", "def __init__(self, name", "return [x for x in", "# Test that ",
    '"""Utilities for',
    "if __name__ ==", "from collections import", "@property\ndef ", "async def main():\n", "raise ValueError(",
    "self.assertEqual(", "lambda x: x", "while True:\n    line =", "print(f'{", "def fibonacci(n: int) -> int:\n",
)  # fmt: skip


def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(PICO / "tokenizer.json"))


def peer(directory: Path, dtype: torch.dtype, threads: int) -> Any:
    """The model in transformers."""
    import transformers

    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()


@torch.inference_mode()
def peer_tokens(model: Any, ids: list[int], count: int, past_end: bool = False) -> list[int]:
    """Greedy continuation; `past_end` generates exactly `count` tokens."""
    given = torch.tensor([ids])
    settings = {"max_new_tokens": count, "do_sample": False, "pad_token_id": 0}
    if past_end:
        settings["min_new_tokens"] = count
    out = model.generate(given, attention_mask=torch.ones_like(given), **settings)
    return [int(i) for i in out[0, len(ids) :]]


def greedy(options: Options) -> Result:
    """20 prompts of 64 tokens: the same tokens as transformers in float32."""
    encoder, model = tokenizer(), peer(PICO, torch.float32, options.threads)
    with ingot.LLM(PICO, precision="float32", threads=options.threads, prefix_cache=False) as llm:
        same = 0
        for prompt in PROMPTS:
            ids = [0, *encoder.encode(prompt).ids]
            wanted = peer_tokens(model, ids, 64)
            wanted = wanted[: wanted.index(0)] if 0 in wanted else wanted  # ours ends before the end token
            same += list(llm.generate(ids, max_tokens=64).token_ids) == wanted
    result = Result("greedy")
    result.add(
        "prompts with tokens identical to transformers float32", same, f"of {len(PROMPTS)}", at_least=len(PROMPTS)
    )
    return result


@torch.inference_mode()
def peer_score(model: Any, ids: list[int], window: int) -> float:
    """Nats per token by the rule of `ingot score`."""
    windows = (len(ids) - 1) // window
    given = torch.tensor(ids[: windows * window]).view(windows, window)
    target = torch.tensor(ids[1 : windows * window + 1]).view(windows, window)
    total = 0.0
    for x, y in zip(given, target, strict=True):
        logits = model(input_ids=x[None]).logits[0].float()
        total += torch.nn.functional.cross_entropy(logits, y, reduction="sum").item()
    return total / (windows * window)


def heldout(options: Options) -> Result:
    """Nats per token over heldout.txt in windows of 512."""
    text = HELDOUT.read_text()
    result = Result("heldout")
    measured = peer_score(peer(PICO, torch.float32, options.threads), tokenizer().encode(text).ids, 512)
    result.add("transformers float32", measured, "nats/token", note="the peer, here")
    for precision, formats, tolerance in LOSSES:
        words = {"precision": precision, **formats}
        with ingot.LLM(PICO, threads=options.threads, prefix_cache=False, **words) as llm:
            found = llm.score(text, window=512)
        bounds = {"at_least": REFERENCE - tolerance, "at_most": REFERENCE + tolerance}
        name = ", ".join([precision, *(f"{what} {word}" for what, word in formats.items())])
        result.add(f"ingot {name}", found.nats_per_token, "nats/token", **bounds)
        result.add(f"… tokens scored in {name}", found.tokens, "tokens")
    return result


def run(*arguments: str) -> subprocess.Popen[bytes]:
    """A fresh `python -m ingot`."""
    return subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT)


def first_byte(source: Path) -> Callable[[], float]:
    """Seconds from the start of a process to the first token that `ingot generate` prints."""

    def measure() -> float:
        start = time.perf_counter()
        process = run("-m", "ingot", "generate", str(source), "--prompt", "import os", "--max-tokens", "8")
        assert process.stdout is not None
        got = os.read(process.stdout.fileno(), 1)
        elapsed = time.perf_counter() - start
        process.stdout.read()
        if process.wait() or not got:
            raise SystemExit(f"ingot generate {source} failed; run it by hand")
        return elapsed

    return measure


def whole(*arguments: str) -> Callable[[], float]:
    """Seconds of a whole process."""

    def measure() -> float:
        def work() -> None:
            process = run(*arguments)
            process.communicate()
            if process.returncode:
                raise SystemExit(f"python {' '.join(arguments)} failed; run it by hand")

        return seconds(work)

    return measure


def pico_engine(precision: str) -> Path:
    """The engine of pico-python, built afresh."""
    CACHE.mkdir(parents=True, exist_ok=True)
    path = CACHE / f"pico-{precision}.ingot"
    ingot.build(PICO, precision=precision, report=False).save(path)
    return path


def coldstart(options: Options) -> Result:
    """Process start to first token, build with its report, import; warm page cache, `pairs` fresh processes each."""
    engine = pico_engine("bfloat16")
    result = Result("coldstart")

    def add(what: str, sample: Sample, at_most: float | None = None) -> None:
        result.add(what, sample.median, "s", at_most=at_most, quartiles=sample.quartiles)

    add("process start → first token, from an engine", repeated(first_byte(engine), options.pairs), 0.5)
    add("process start → first token, from the directory", repeated(first_byte(PICO), options.pairs), 1.0)
    target = str(CACHE / "pico-built.ingot")
    build = whole("-m", "ingot", "build", str(PICO), "-o", target, "--precision", "bfloat16")
    add("ingot build with its report", repeated(build, options.pairs), 2.0)
    nothing = repeated(whole("-c", "pass"), options.pairs)
    add("python -c pass", nothing)
    for code in ("import ingot", "import ingot; ingot.LLM, ingot.load", "import ingot; ingot.build, ingot.nn"):
        imported = repeated(whole("-c", code), options.pairs)
        goal = 0.15 if code == "import ingot" else None  # its names load on first use
        result.add(f"… {code}, beyond that", imported.median - nothing.median, "s", at_most=goal)
    return result


def rate(generate: Callable[[int], object], tokens: int) -> float:
    """Tokens per second after the first: what `tokens` cost beyond one."""
    return (tokens - 1) / (seconds(lambda: generate(tokens)) - seconds(lambda: generate(1)))


def decode(options: Options) -> Result:
    """Decoding one request in bfloat16, transformers beside it."""
    ids, tokens = [0, *tokenizer().encode("def quicksort(items):").ids], 256
    model = peer(PICO, torch.bfloat16, options.threads)
    with ingot.LLM(pico_engine("bfloat16"), threads=options.threads, prefix_cache=False) as llm:
        both = paired(
            lambda: rate(lambda n: llm.generate(ids, max_tokens=n, ignore_end=True), tokens),
            lambda: rate(lambda n: peer_tokens(model, ids, n, past_end=True), 64),
            options.pairs,
        )
    result = Result("decode-pico")
    result.add("ingot bfloat16", both.ours.median, "tok/s", at_least=1500, quartiles=both.ours.quartiles)
    result.add("transformers bfloat16", both.peer.median, "tok/s", quartiles=both.peer.quartiles)
    result.add("ratio", both.ratio.median, "×", quartiles=both.ratio.quartiles)
    return result
