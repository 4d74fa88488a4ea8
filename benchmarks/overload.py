"""`ingot serve` with more requests than it can answer: what it still answers in time, how soon, and what it refuses.

First 64 clients that are never idle show the capacity: requests a second, and what one takes when all places are taken.
Then requests arrive at 1, 2 and 5 times that rate (Poisson), whatever becomes of those before. A client waits for a
deadline and leaves. *Goodput*: tokens of the requests that were answered whole before it, a second.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch

import ingot
from benchmarks.clients import Clients
from benchmarks.harness import CACHE, PICO, ROOT, Options, Result
from benchmarks.pico import pico_engine
from benchmarks.serve import Served, heldout_ids, served

OVERLOADS = (1, 2, 5)  # times capacity
SECONDS = float(os.environ.get("INGOT_BENCH_OVERLOAD_SECONDS", "60"))  # that are counted
WARM_UP = 15.0  # before that, until a queue that grows is full
PLACES = 64  # --max-running, and clients that are never idle
GOODPUT = 0.9  # of the largest of them, at the most arrivals
DEADLINE = 10.0  # seconds, and three times what a request takes when all places are taken
MAX_WAIT = 8.0  # seconds: what the server is told of the patience of its clients
PROCESSES = 4  # of clients
MIDDLE = CACHE / "middle"


def serve_overload(options: Options) -> Result:
    """pico-python: requests are cheap, so that HTTP is a good part of the work."""
    return _overloaded("serve-overload", pico_engine("bfloat16"), options)


def serve_overload_middle(options: Options) -> Result:
    """A model of 110 million random parameters: a queue that is counted in requests is a long one."""
    return _overloaded("serve-overload-middle", middle(), options)


def middle() -> Path:
    """Its engine: 12 layers of 768, pico's tokenizer; made once per version of the package's sources."""
    engine = CACHE / "middle-bfloat16.ingot"
    sources = max(p.stat().st_mtime for p in (ROOT / "ingot").rglob("*.py"))
    if engine.exists() and engine.stat().st_mtime >= sources:
        return engine
    if not (MIDDLE / "tokenizer.json").exists():
        import transformers

        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            vocab_size=4096, hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12,
            num_key_value_heads=4, max_position_embeddings=2048, bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(MIDDLE)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (MIDDLE / name).write_bytes((PICO / name).read_bytes())
    ingot.build(MIDDLE, precision="bfloat16", report=False).save(engine)
    return engine


def _overloaded(name: str, engine: Path, options: Options) -> Result:
    ids = heldout_ids()
    result = Result(name)
    with served(engine, _places(options)[0], ("--max-wait", str(MAX_WAIT))) as server:
        capacity, alone = _capacity(server, ids, options, result)
    deadline = DEADLINE + 3 * alone
    result.add("deadline", deadline, "s")
    goodput = {}
    places = _places(options)
    with ThreadPoolExecutor(len(places)) as pool:  # each only waits for processes
        jobs = [
            pool.submit(_overload, engine, ids, times, capacity, deadline, places[i % len(places)])
            for i, times in enumerate(OVERLOADS)
        ]
        for times, job in zip(OVERLOADS, jobs, strict=True):
            goodput[times], part = job.result()
            result.rows += part.rows
    kept = goodput[OVERLOADS[-1]] / max(goodput.values())
    result.add(f"goodput at {OVERLOADS[-1]} times, beside the largest", kept, "×", at_least=GOODPUT)
    return result


def _capacity(server: Served, ids: list[int], options: Options, result: Result) -> tuple[float, float]:
    """Requests a second that are answered, and the median seconds of one."""
    begin = time.monotonic() + 2.0  # for the processes to start
    until = begin + WARM_UP + SECONDS / 3
    each = {"kind": "closed", "port": server.port, "ids": ids, "clients": PLACES // PROCESSES, "begin": begin}
    found = Clients(
        options.client_cpus, [each | {"until": until, "seed": 100 + i} for i in range(PROCESSES)]
    ).outcomes()
    ended = [one for one in found if begin + WARM_UP <= one.at + one.took < until]
    if any(one.kind != "whole" for one in found) or not ended:
        raise SystemExit(f"clients that wait for each other are all answered: {Counter(one.kind for one in found)}")
    seconds = until - begin - WARM_UP
    took = statistics.median(one.took for one in ended)
    result.add("capacity", len(ended) / seconds, "requests/s", note=f"{PLACES} clients, {seconds:.0f} s")
    result.add("capacity: tokens answered", sum(one.tokens for one in ended) / seconds, "tok/s")
    result.add("capacity: a request, median", took, "s")
    return len(ended) / seconds, took


def _places(options: Options) -> list[Options]:
    """Where servers run at one time: each has as many processors as threads. One place, unless that many are given."""
    cpus, threads = options.server_cpus, options.threads
    if len(cpus) < len(OVERLOADS) * threads:
        return [options]
    return [replace(options, server_cpus=cpus[i * threads : (i + 1) * threads]) for i in range(len(OVERLOADS))]


def _overload(
    engine: Path, ids: list[int], times: int, capacity: float, deadline: float, options: Options
) -> tuple[float, Result]:
    """Goodput when so many times the capacity arrives, and all that was measured."""
    result, at = Result(""), f"{times} ×"
    with served(engine, options, ("--max-wait", str(MAX_WAIT))) as server:
        begin = time.monotonic() + 2.0
        until = begin + WARM_UP + SECONDS
        rate = times * capacity / PROCESSES
        each = {"kind": "arriving", "port": server.port, "ids": ids, "rate": rate, "begin": begin}
        jobs = [each | {"until": until, "deadline": deadline, "seed": 200 + i} for i in range(PROCESSES)]
        every = Clients(options.client_cpus, jobs).outcomes()
    found = [one for one in every if one.at >= begin + WARM_UP]
    kinds = Counter(one.kind for one in found)
    whole = [one for one in found if one.kind == "whole"]
    ends = [one for one in every if begin + WARM_UP <= one.at + one.took < until]  # of the refused no token counts
    goodput = sum(one.tokens for one in ends) / SECONDS
    result.add(f"{at} capacity: goodput", goodput, "tok/s", note=f"{len(whole):,} of {len(found):,} requests")
    result.add(f"{at} capacity: refused", kinds["refused"] / len(found), "", note=f"{kinds['refused']:,}")
    result.add(f"{at} capacity: not whole at the deadline", kinds["expired"] / len(found), "",
               note=f"{kinds['expired']:,}")  # fmt: skip
    result.add(f"{at} capacity: neither answered nor refused", kinds["failed"], "", at_most=0)
    latencies(f"{at} capacity: time to the first token", [one.first for one in whole], 1.0, "s", result)
    latencies(f"{at} capacity: time per token", [one.per_token for one in whole], 1e3, "ms", result)
    refused = [one.took for one in found if one.kind == "refused"]
    latencies(f"{at} capacity: time to a refusal", refused, 1e3, "ms", result)
    retries = [one.retry_after for one in found if one.kind == "refused"]
    if retries:
        result.add(f"{at} capacity: Retry-After, median", statistics.median(retries), "s")
    latencies(f"{at} capacity: clients behind their schedule", [one.late for one in found], 1e3, "ms", result)
    return goodput, result


def latencies(what: str, values: list[float], scale: float, unit: str, result: Result) -> None:
    """Adds the median and the 99th percentile of some seconds."""
    if values:
        ordered = sorted(values)
        result.add(f"{what}, median", statistics.median(ordered) * scale, unit)
        result.add(f"{what}, 99th percentile", ordered[len(ordered) * 99 // 100] * scale, unit)
