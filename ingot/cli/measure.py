"""What `ingot bench` measures: the cases, the bytes they read, and the memory's bandwidth."""

from __future__ import annotations

import argparse
import itertools
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from time import perf_counter
from typing import Any

import numpy as np

from ingot import _native, dtypes
from ingot.backends.cost import Attended
from ingot.backends.device import program_of
from ingot.cli.feed import feeds_of
from ingot.cli.profiling import Roofs, peak
from ingot.engine.session import Engine
from ingot.errors import UserError
from ingot.llm.assembly import assemble
from ingot.llm.config import model_config
from ingot.llm.jobs import GenerationJob, Job
from ingot.llm.sampling import SamplingParams, sampler_of

BANDWIDTH_BYTES = 256 << 20  # read by each thread; well beyond any cache

Calls = list[dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """Something to measure: one run of it, one run with the time of every call, and what a run reads and makes."""

    name: str
    run: Callable[[], object]
    profile: Callable[[], Calls]
    bytes: int
    tokens: int | None
    attended: Attended | None = None  # of the profiled run


def case_of(engine: Engine, args: argparse.Namespace, note: Callable[[str], None]) -> Case:
    """What the command line asks for. Raises UserError for lengths and sizes that the engine does not have."""
    return _llm_case(engine, args) if engine.kind == "llm" else _network_case(engine, args, note)


# ------------------------------------------------------------------------------------------------------ language models


def _llm_case(engine: Engine, args: argparse.Namespace) -> Case:
    config = model_config(engine)
    if not config.generates:
        raise UserError("this model has no head: it generates nothing that could be timed")
    context = config.context_length
    if args.length >= context:
        raise UserError(f"--length {args.length} leaves no room in a context of {context}")
    scheduler, runner = assemble(engine, config, args.threads, context, args.kv_memory, args.batch, prefix_cache=False)
    numbers = itertools.count()

    def start(count: int) -> list[Job]:
        jobs = [_job(engine, args.length) for _ in range(count)]
        for job in jobs:
            job.id = next(numbers)
            scheduler.add(job)
        return jobs

    def step() -> None:
        plan = scheduler.plan()
        scheduler.advance(plan)
        for chunk, result in zip(plan.chunks, runner.run(plan), strict=True):
            scheduler.accept(chunk, result.tokens)

    def prefill() -> None:
        (job,) = start(1)
        while job.computed < args.length:
            step()
        scheduler.remove(job)

    def profile_prefill() -> Calls:
        (job,) = start(1)
        calls = runner.profile(scheduler.plan())
        scheduler.remove(job)
        return calls

    if args.what == "prefill":
        chunk = min(args.length, scheduler.max_step_tokens)
        seen = Attended(chunk * (chunk + 1) // 2, chunk)
        return Case("prefill", prefill, profile_prefill, weight_bytes(engine, args.length), args.length, seen)
    jobs = start(args.batch)
    while any(job.computed < args.length for job in jobs):
        step()
    read = weight_bytes(engine, args.batch) + args.batch * (args.length + 1) * config.state_bytes
    # The tokens chosen are not recorded, so every run is the same step.
    keys = args.batch * (args.length + 1)
    return Case(
        "decode", lambda: runner.run(scheduler.plan()), lambda: runner.profile(scheduler.plan()), read, args.batch,
        Attended(keys, keys),
    )  # fmt: skip


def _job(engine: Engine, length: int) -> Job:
    vocabulary, params = engine.config["vocab_size"], SamplingParams(seed=0)
    prompt = np.random.default_rng(0).integers(0, vocabulary, length).tolist()
    sampler = sampler_of(params, prompt, vocabulary)
    return GenerationJob(prompt, length + 2, params, sampler, frozenset(), SimpleQueue(), False)


# ------------------------------------------------------------------------------------------------------------- networks


def _network_case(engine: Engine, args: argparse.Namespace, note: Callable[[str], None]) -> Case:
    args.random = True
    feeds = feeds_of(engine, args, args.source, note)
    session = engine.session(args.threads)
    read = weight_bytes(engine, 1) + sum(array.nbytes for array in feeds.values())
    return Case("run", lambda: session.run(feeds), lambda: session.profile(feeds), read, None)


# -------------------------------------------------------------------------------------------------------------- figures


def weight_bytes(engine: Engine, rows: int) -> int:
    """The bytes of weights that a run over `rows` tokens reads: a table that is only looked up counts by its rows."""
    whole: dict[str, int] = {}
    looked_up: dict[str, int] = {}
    for program, call in _calls(program_of(engine.header)):
        for buffer in (program["buffers"][index] for index in call["in"]):
            while buffer["kind"] == "view":
                buffer = program["buffers"][buffer["of"]]
            if buffer["kind"] == "weight":
                itemsize = dtypes.get(buffer["dtype"]).bits // 8
                if call.get("kernel") == "embedding":
                    params = call["params"]
                    width = params["k"] if params["packed"] else math.prod(buffer["shape"][1:])
                    looked_up[buffer["tensor"]] = rows * width * itemsize
                else:
                    whole[buffer["tensor"]] = math.prod(buffer["shape"]) * itemsize
    return sum((looked_up | whole).values())


def _calls(program: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Every call, also those of programs in programs, with the program that has its buffers."""
    for call in program["calls"]:
        yield program, call
        for body in call.get("bodies", ()):
            yield from _calls(body["program"])


def bandwidth(threads: int | None) -> float:
    """Bytes a second that this many threads read from memory; a quick measurement, a little below the true roof."""
    count = threads or _native.default_threads()
    arrays = [np.zeros(BANDWIDTH_BYTES // 4, np.float32) for _ in range(count)]
    for array in arrays:
        array.fill(1)  # untouched pages would all be the same one
    best = math.inf
    for _ in range(5):
        workers = [threading.Thread(target=array.max) for array in arrays]
        begin = perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        best = min(best, perf_counter() - begin)
    return count * BANDWIDTH_BYTES / best


def roofs(threads: int | None, read: float) -> Roofs:
    """What this machine does at most on this many threads; `read`: its bandwidth, measured or given."""
    return Roofs(read, {dtype: peak(dtype, threads) for dtype in ("float32", "bfloat16")})
