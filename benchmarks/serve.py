"""`ingot serve` on pico-python: streamed tokens a second with many clients, and a mixed load in random arrivals."""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import ingot
from benchmarks import tinyllama
from benchmarks.clients import request
from benchmarks.harness import PICO, ROOT, Options, Result, Sample
from benchmarks.pico import HELDOUT, pico_engine
from ingot.llm.jobs import Job

GOAL_TOKENS = 5000
GOAL_SHARE = 0.95
LOAD_SECONDS = float(os.environ.get("INGOT_BENCH_LOAD_SECONDS", "60"))  # the goal is meant for 600
SHARE_OF_CAPACITY = 0.7


class Served:
    """A server in a process of its own, on the processors that `options` gives it, and plain requests to it: clients
    must cost little beside it.

    Args:
        words: more of the command line.
        files: how many it may have open.
    """

    def __init__(self, source: Path, options: Options, words: Sequence[str] = (), files: int | None = None) -> None:
        def prepared() -> None:
            if options.server_cpus:
                os.sched_setaffinity(0, options.server_cpus)
            if files is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

        command = [sys.executable, "-m", "ingot", "serve", str(source), "--port", "0", "--model-name", "m"]
        threads = () if "--device" in words else ("--threads", str(options.threads))
        self._log = tempfile.NamedTemporaryFile("r")  # noqa: SIM115  (for as long as the server runs)
        with open(self._log.name, "w") as log:
            self.process = subprocess.Popen(
                [*command, *threads, *words], stderr=log, cwd=ROOT, preexec_fn=prepared
            )
        while not (line := self._log.readline()).startswith("serving "):
            if self.process.poll() is not None:
                raise SystemExit(f"ingot serve does not start: {line}{self._log.read()}")
            time.sleep(0.05)
        self.port = int(line.rpartition(":")[2])

    async def stream(self, body: dict[str, Any]) -> tuple[float, list[float], int, bool]:
        """A streamed completion: seconds to its first piece, when pieces came, tokens, and whether it ended well."""
        begin = time.perf_counter()
        status, times, last = await self._ask(body, begin)
        usage = json.loads(last)["usage"] if status and last else None
        tokens = usage["completion_tokens"] if usage else 0
        return (times[0] - begin if times else 0.0), times, tokens, bool(status and usage)

    async def _ask(self, body: dict[str, Any], begin: float) -> tuple[bool, list[float], bytes]:
        data = json.dumps({"model": "m", "stream": True, "stream_options": {"include_usage": True}} | body).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
        times, tail = [], b""
        line = await reader.readline()
        status = line.startswith(b"HTTP/1.1 200 ")
        while part := await reader.read(1 << 16):
            if b"data: " in part:
                times.append(time.perf_counter())
            tail = (tail + part)[-4096:]
        writer.close()
        events = [line[6:] for line in tail.split(b"\n") if line.startswith(b"data: {")]
        return status and b"data: [DONE]" in tail, times, events[-1] if events else b""

    async def metrics(self) -> dict[str, float]:
        """The server's own numbers."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        text = (await reader.read()).decode().partition("\r\n\r\n")[2]
        writer.close()
        rows = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in rows if name}

    def memory(self) -> list[int]:
        """Resident bytes of the HTTP process and of the engine process."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in (self.process.pid, *children)]
        return [count * os.sysconf("SC_PAGE_SIZE") for count in pages]

    def log_bytes(self) -> int:
        """What it has written to standard error."""
        return os.stat(self._log.name).st_size

    def close(self) -> None:
        """Ends it."""
        self.process.terminate()
        if self.process.wait():
            raise SystemExit(f"ingot serve ended badly: {self._log.read()[-2000:]}")
        self._log.close()


@contextmanager
def served(engine: Path, options: Options, words: Sequence[str] = (), files: int | None = None) -> Iterator[Served]:
    """A server of that engine; see `Served`."""
    found = Served(engine, options, words, files)
    try:
        yield found
    finally:
        found.close()


def prompts(count: int, length: int) -> list[list[int]]:
    """Different beginnings, so that nothing is shared."""
    return [[0, *(100 + (17 * i + 31 * j) % 3900 for j in range(length - 1))] for i in range(count)]


def serve(options: Options) -> Result:
    """pico-python, 64 clients: streamed tokens a second, beside the same work in the process."""
    return _compared("serve", pico_engine("bfloat16"), options, 64, 16, 128, GOAL_TOKENS, None)


def serve_tinyllama(options: Options) -> Result:
    """The shape of TinyLlama, 16 clients: the share of the in-process throughput that is left over HTTP."""
    return _compared("serve-tinyllama", tinyllama.engine(), options, 16, 32, 64, None, GOAL_SHARE)


def _compared(
    name: str, engine: Path, options: Options, clients: int, prompt: int, tokens: int, least: float | None,
    share_of: float | None,
) -> Result:  # fmt: skip
    result = Result(name)
    with served(engine, options) as server, ingot.LLM(engine, threads=options.threads) as llm:
        work = prompts(clients, prompt)
        pairs = [_pair(server, llm, work, tokens) for _ in range(options.pairs + 1)][1:]
        spread = Sample.of([a for a, _ in pairs])
        result.add(f"{clients} clients, streamed", spread.median, "tok/s", at_least=least, quartiles=spread.quartiles)
        inside = Sample.of([b for _, b in pairs])
        result.add("the same in the process, text and all", inside.median, "tok/s", quartiles=inside.quartiles)
        share = Sample.of([a / b for a, b in pairs])
        result.add("share", share.median, "×", at_least=share_of, quartiles=share.quartiles)
    return result


def _pair(server: Served, llm: ingot.LLM, work: list[list[int]], tokens: int) -> tuple[float, float]:
    """Tokens a second over HTTP, and in this process."""
    words: dict[str, Any] = {"max_tokens": tokens, "temperature": 0, "logit_bias": {"0": -100}}

    async def many() -> float:
        begin = time.perf_counter()
        found = await asyncio.gather(*(server.stream(words | {"prompt": ids}) for ids in work))
        if not all(good for *_, good in found):
            raise SystemExit("a stream failed")
        return sum(count for _, _, count, _ in found) / (time.perf_counter() - begin)

    return asyncio.run(many()), _inside(llm, work, words | {"logit_bias": {0: -100}})


def _inside(llm: ingot.LLM, work: list[list[int]], words: dict[str, Any]) -> float:
    """All answers read as they come, as text."""
    wakeups: SimpleQueue[Job] = SimpleQueue()
    begin = time.perf_counter()
    readers = [llm.submit(ids, wakeups, **words)[0] for ids in work]
    by_job = {id(reader.job): reader for reader in readers}
    left = len(readers)
    while left:
        reader = by_job[id(wakeups.get())]
        if reader.finish_reason is None:
            reader.read()
            left -= reader.finish_reason is not None
    return sum(len(reader.token_ids) for reader in readers) / (time.perf_counter() - begin)


def serve_load(options: Options) -> Result:
    """Requests in Poisson arrivals at 70 % of capacity, prompts of 32 to 512 tokens."""
    ids = heldout_ids()
    with served(pico_engine("bfloat16"), options) as server:
        return asyncio.run(_load(server, ids))


def heldout_ids() -> list[int]:
    """Tokens of pico-python's held-out text."""
    with ingot.LLM(PICO) as llm:
        ids: list[int] = llm.tokenizer.encode_plain(HELDOUT.read_text())
    return ids


async def _capacity(server: Served, ids: list[int]) -> float:
    """Requests a second with 32 clients that are never idle."""
    draw = random.Random(1)
    ended = 0
    until = time.perf_counter() + 8

    async def client() -> None:
        nonlocal ended
        while time.perf_counter() < until:
            await server.stream(request(ids, draw))
            ended += 1

    begin = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(32)))
    return ended / (time.perf_counter() - begin)


async def _load(server: Served, ids: list[int]) -> Result:
    rate = SHARE_OF_CAPACITY * await _capacity(server, ids)
    draw = random.Random(2)
    tasks: list[asyncio.Task[tuple[float, list[float], int, bool]]] = []
    begin = time.perf_counter()
    memory: list[tuple[float, int]] = []
    next_at = 0.0
    while (now := time.perf_counter() - begin) < LOAD_SECONDS:
        if not memory or now - memory[-1][0] >= LOAD_SECONDS / 60:
            memory.append((now, sum(server.memory())))
        if now < next_at:
            await asyncio.sleep(min(next_at - now, 0.25))
            continue
        tasks.append(asyncio.create_task(server.stream(request(ids, draw))))
        next_at += draw.expovariate(rate)
    found = await asyncio.gather(*tasks)
    metrics = await _idle(server.metrics)
    return _report(rate, found, memory, metrics)


async def _idle(metrics: Callable[[], Coroutine[Any, Any, dict[str, float]]]) -> dict[str, float]:
    await asyncio.sleep(1)  # two reports of the engine
    return await metrics()


def _report(
    rate: float, found: list[tuple[float, list[float], int, bool]], memory: list[tuple[float, int]],
    metrics: dict[str, float],
) -> Result:  # fmt: skip
    result = Result("serve-load")
    result.add("arrivals", rate, "requests/s", note=f"{SHARE_OF_CAPACITY:.0%} of capacity, {LOAD_SECONDS:.0f} s")
    result.add("requests", len(found), "")
    result.add("requests that failed", sum(not good for *_, good in found), "", at_most=0)
    result.add("blocks not given back", metrics["ingot_kv_blocks_used"], "", at_most=0)
    result.add("restarts of the engine", metrics["ingot_engine_restarts_total"], "", at_most=0)
    firsts = sorted(first for first, *_ in found)
    result.add("first piece, median", statistics.median(firsts) * 1e3, "ms")
    result.add("first piece, 99th percentile", firsts[len(firsts) * 99 // 100] * 1e3, "ms")
    per_token = sorted((t[-1] - t[0]) / (count - 1) for _, t, count, _ in found if count > 1 and len(t) > 1)
    half, most = statistics.median(per_token), per_token[len(per_token) * 99 // 100]
    result.add("time per token of a request, median", half * 1e3, "ms")
    result.add("99th percentile of it, beside the median", most / half, "×", at_most=3)
    settled = [size for at, size in memory if at >= min(120.0, LOAD_SECONDS / 5)]
    result.add("memory", settled[-1] / 1e6, "MB")
    result.add("memory: largest beside smallest since it settled", max(settled) / min(settled), "×", at_most=1.02)
    return result
