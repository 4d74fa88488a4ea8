"""The scheduler and the block cache alone: what planning a step costs while 64 requests run, without any model."""

from __future__ import annotations

import time

from benchmarks.harness import Options, Result, Sample
from ingot.llm.kv_cache import KVCache
from ingot.llm.scheduler import Request, Scheduler

REQUESTS = 64
PROMPT, TOKENS = 512, 400
GOAL_MS = 0.3


def scheduler(options: Options) -> Result:
    """64 requests that decode, with the prefix cache on: milliseconds of plan, advance and accept a step."""
    costs = [_cost() for _ in range(options.pairs + 1)][1:]
    result = Result("scheduler")
    for what, name in (("median", 0), ("99th percentile", 1)):
        sample = Sample.of([cost[name] for cost in costs])
        goal = GOAL_MS if what == "median" else None
        label = f"a step of {REQUESTS} decodes, {what}"
        result.add(label, sample.median, "ms", at_most=goal, quartiles=sample.quartiles)
    sample = Sample.of([cost[2] for cost in costs])
    result.add(f"a step that admits {REQUESTS} prompts", sample.median, "ms", quartiles=sample.quartiles)
    return result


def _cost() -> tuple[float, float, float]:
    """Median and 99th percentile of the decoding steps, and the first step, in milliseconds."""
    cache = KVCache(REQUESTS * (PROMPT + TOKENS) // 16 + REQUESTS, 16)
    ours: Scheduler[Request] = Scheduler(cache, 512, REQUESTS, 512)
    for number in range(REQUESTS):
        ours.add(Request(number, [number, *range(PROMPT - 1)], PROMPT + TOKENS, arrival=float(number)))
    first, decodes = 0.0, []
    while ours:
        begin = time.perf_counter()
        step = ours.plan()
        ours.advance(step)
        for chunk in step.chunks:
            ours.accept(chunk, (1,) if chunk.ends else ())
        took = (time.perf_counter() - begin) * 1e3
        first = first or took
        if len(step.chunks) == step.tokens == REQUESTS:
            decodes.append(took)
        for request in [r for r in ours.running if len(r.tokens) == r.max_length]:
            ours.remove(request)
    decodes.sort()
    return decodes[len(decodes) // 2], decodes[len(decodes) * 99 // 100], first
