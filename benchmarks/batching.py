"""Many requests at once, and requests that begin alike, on a model of TinyLlama-1.1B's shape in bfloat16."""

from __future__ import annotations

import random
import statistics
import time

import ingot
from benchmarks.harness import Options, Result, Sample
from benchmarks.machine import roofs
from benchmarks.tinyllama import engine, weight_bytes

REQUESTS, PROMPT, TOKENS = 16, 128, 64
SHARED, WHOLE = 922, 1024


def batching(options: Options) -> Result:
    """16 requests of 128 tokens that answer with 64: their decoded tokens over the time from the last first one."""
    path = engine()
    bandwidth, read = roofs(options.threads)["read_bandwidth"], weight_bytes(path) / 1e9
    rng = random.Random(0)
    rates = []
    with ingot.LLM(path, threads=options.threads, prefix_cache=False) as llm:
        for _ in range(options.pairs + 1):
            prompts = [[rng.randrange(5, 32000) for _ in range(PROMPT)] for _ in range(REQUESTS)]
            begin = time.perf_counter()
            done = llm.generate(prompts, max_tokens=TOKENS, ignore_end=True)
            end = time.perf_counter()
            first = max(c.seconds["first_token"] for c in done)
            rates.append(REQUESTS * (TOKENS - 1) / (end - begin - first))
    sample = Sample.of(rates[1:])
    one = 0.8 * bandwidth / read
    result = Result("batching")
    result.add("read bandwidth", bandwidth, "GB/s")
    result.add("weights that a step reads", read, "GB")
    what = f"{REQUESTS} requests, {PROMPT} tokens in, {TOKENS} out: decoded"
    result.add(what, sample.median, "tok/s", quartiles=sample.quartiles)
    result.add(
        "… over one request at 0.8 of the bandwidth", sample.median / one, "×", at_least=8,
        quartiles=(sample.quartiles[0] / one, sample.quartiles[1] / one),
    )  # fmt: skip
    return result


def prefix(options: Options) -> Result:
    """Time to the first token of prompts of 1,024 tokens, 922 of them shared, with the prefix cache and without it."""
    path = engine()
    rng = random.Random(0)
    shared = [rng.randrange(5, 32000) for _ in range(SHARED)]
    times: dict[bool, list[float]] = {True: [], False: []}
    models = {on: ingot.LLM(path, threads=options.threads, prefix_cache=on, max_running=4) for on in (True, False)}
    for _ in range(options.pairs + 1):
        for on, llm in models.items():
            tail = [rng.randrange(5, 32000) for _ in range(WHOLE - SHARED)]
            times[on].append(llm.generate([*shared, *tail], max_tokens=1, ignore_end=True).seconds["first_token"])
    for llm in models.values():
        llm.close()
    ratios = Sample.of([a / b for a, b in zip(times[False][1:], times[True][1:], strict=True)])
    result = Result("prefix")
    for on, name in ((False, "without"), (True, "with")):
        result.add(f"first token of {WHOLE}, {SHARED} shared, {name} the cache", statistics.median(times[on][1:]), "s")
    result.add("without / with", ratios.median, "×", at_least=4, quartiles=ratios.quartiles)
    return result
