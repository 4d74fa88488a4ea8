"""Many requests at once, and requests that begin alike, on a model of TinyLlama-1.1B's shape in bfloat16."""

from __future__ import annotations

import random
import statistics
import time
from queue import SimpleQueue
from typing import NamedTuple

import ingot
from benchmarks import genai
from benchmarks.harness import Options, Result, Sample, ratios
from benchmarks.machine import roofs
from benchmarks.peer import Event, Generate
from benchmarks.tinyllama import directory, engine, weight_bytes
from ingot.llm.jobs import Job

REQUESTS, PROMPT, TOKENS = 16, 128, 64
SHARED, WHOLE = 922, 1024
POLL = 0.002  # seconds


class Rates(NamedTuple):
    """Tokens a second: decoded ones from the last request's first one on, all of them from the start, and those of the
    prompts until the last first one."""

    decoded: float
    whole: float
    prompt: float


class Work(NamedTuple):
    """Requests at once, of so many tokens in and out each, and the rate that they are for."""

    what: str
    requests: int
    prompt: int
    tokens: int
    rates: tuple[str, ...]


WORKS = (
    Work(f"{REQUESTS} requests, {PROMPT} in, {TOKENS} out", REQUESTS, PROMPT, TOKENS, ("decoded", "whole")),
    Work("1 request, 32 in, 33 out", 1, 32, 33, ("decoded",)),
    Work("1 request, 512 in, 1 out", 1, 512, 1, ("prompt",)),
)


def batching(options: Options) -> Result:
    """16 requests of 128 tokens that answer with 64, and single ones, beside OpenVINO GenAI's continuous batching."""
    path = engine()
    bandwidth, read = roofs(options.threads)["read_bandwidth"], weight_bytes(path) / 1e9
    result = Result("batching")
    result.add("read bandwidth", bandwidth, "GB/s")
    result.add("weights that a step reads", read, "GB")
    one = 0.8 * bandwidth / read
    with (
        genai.peer(directory(), options.threads) as peer,
        ingot.LLM(path, threads=options.threads, prefix_cache=False) as llm,
    ):
        result.notes.append(genai.ABSENT if peer is None else f"{genai.NAME} {peer.version}")
        contestants: dict[str, Generate] = {"ingot": lambda prompts, tokens: _generate(llm, prompts, tokens)}
        if peer is not None:
            contestants[genai.NAME] = peer.generate
        for work in WORKS:
            found = _alternate(contestants, work, options.pairs)
            for rate in work.rates:
                _report(result, f"{work.what}: {rate}", {who: [getattr(r, rate) for r in found[who]] for who in found})
            if work is WORKS[0]:
                times = Sample.of([rates.decoded / one for rates in found["ingot"]])
                what = "… decoded, over one request at 0.8 of the bandwidth"
                result.add(what, times.median, "×", at_least=8, quartiles=times.quartiles)
    return result


def _alternate(contestants: dict[str, Generate], work: Work, pairs: int) -> dict[str, list[Rates]]:
    """Rates of each in turn, after a round to warm up. Both get the same prompts, new ones in every round."""
    draw = random.Random(0)
    found: dict[str, list[Rates]] = {who: [] for who in contestants}
    for turn in range(pairs + 1):
        prompts = [[draw.randrange(5, 32000) for _ in range(work.prompt)] for _ in range(work.requests)]
        for who, generate in contestants.items():
            events = generate(prompts, work.tokens)
            if turn:
                found[who].append(_rates(events, work))
    return found


def _rates(events: list[Event], work: Work) -> Rates:
    total = sum(count for *_, count in events)
    if total != work.requests * work.tokens:
        raise SystemExit(f"{total} tokens came, not {work.requests * work.tokens}")
    first: dict[int, float] = {}
    for seconds, request, _ in events:
        first.setdefault(request, seconds)
    start, end = max(first.values()), events[-1][0]
    decoded = sum(count for seconds, _, count in events if seconds > start)  # some came beside the prompts' last steps
    return Rates(decoded / (end - start) if decoded else 0.0, total / end, work.requests * work.prompt / start)


def _report(result: Result, what: str, rates: dict[str, list[float]]) -> None:
    for who, values in rates.items():
        sample = Sample.of(values)
        result.add(f"{what}, {who}", sample.median, "tok/s", quartiles=sample.quartiles)
        if who != "ingot":
            ahead = ratios(rates["ingot"], values)
            goal = 1.0 if what.startswith(WORKS[0].what) else None
            result.add(f"{what}, ingot / {who}", ahead.median, "×", at_least=goal, quartiles=ahead.quartiles)


def _generate(llm: ingot.LLM, prompts: list[list[int]], tokens: int) -> list[Event]:
    """All prompts at once: which tokens came when. They are looked at from outside, for throughput: answers that are
    read as they come would keep prompts to small shares of the steps."""
    wakeups: SimpleQueue[Job] = SimpleQueue()
    begin = time.perf_counter()
    readers = [llm.submit(ids, wakeups, eager=False, max_tokens=tokens, ignore_end=True)[0] for ids in prompts]
    events: list[Event] = []
    while any(reader.finish_reason is None for reader in readers):
        time.sleep(POLL)
        now = time.perf_counter() - begin
        for number, reader in enumerate(readers):
            seen = len(reader.token_ids)
            if reader.finish_reason is None:
                reader.read()
            if len(reader.token_ids) > seen:
                events.append((now, number, len(reader.token_ids) - seen))
    llm.end(readers)
    return events


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
    gain = ratios(times[False][1:], times[True][1:])
    result = Result("prefix")
    for on, name in ((False, "without"), (True, "with")):
        result.add(f"first token of {WHOLE}, {SHARED} shared, {name} the cache", statistics.median(times[on][1:]), "s")
    result.add("without / with", gain.median, "×", at_least=4, quartiles=gain.quartiles)
    return result
