"""Clients in processes of their own: `python -m benchmarks.clients` reads as JSON what they do, and writes its outcome.

They wait for the measuring process no more than it does for them, and have processors of their own where the caller
gives them some. Times are of the system's monotonic clock, which all processes share.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from os import sched_setaffinity
from typing import Any

from benchmarks import flood_clients
from benchmarks.harness import ROOT

HEAD = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@dataclass(frozen=True)
class Outcome:
    """What came of one request. Seconds; `late` is behind its schedule, `per_token` of the tokens after the first."""

    kind: str  # whole; refused: with a status and Retry-After; expired: not whole at its deadline; failed
    at: float
    late: float
    took: float
    first: float
    per_token: float
    tokens: int
    retry_after: int


def request(ids: Sequence[int], draw: random.Random) -> dict[str, Any]:
    """A prompt of 32 to 512 tokens and an answer of 32 to 128."""
    length = draw.randint(32, 512)
    start = draw.randrange(len(ids) - length)
    answer = {"max_tokens": draw.randint(32, 128), "temperature": 0.8, "seed": draw.randrange(2**31)}
    return {"prompt": list(ids[start : start + length]), "logit_bias": {"0": -100}} | answer


async def ask(port: int, body: dict[str, Any], scheduled: float, deadline: float) -> Outcome:
    """One streamed request on a connection of its own, which is dropped at the deadline."""
    begin = time.monotonic()
    times: list[float] = []
    tail, status, retry, kind = b"", 0, 0, "failed"
    data = json.dumps({"model": "m", "stream": True, "stream_options": {"include_usage": True}} | body).encode()
    writer = None
    try:
        async with asyncio.timeout(deadline):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"{HEAD}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
            status = int((await reader.readline()).split()[1])
            while (line := await reader.readline()) not in (b"\r\n", b""):
                if line.lower().startswith(b"retry-after:"):
                    retry = int(line.split(b":")[1])
            while part := await reader.read(1 << 16):
                if b"data: " in part:
                    times.append(time.monotonic())
                tail = (tail + part)[-4096:]
    except TimeoutError:
        kind = "expired"
    except (OSError, IndexError):  # no connection, or no answer on it
        pass
    finally:
        if writer is not None:
            writer.transport.abort()
    took = time.monotonic() - begin
    tokens = 0
    if status == 200 and b"data: [DONE]" in tail:
        kind = "whole"
        tokens = json.loads([line[6:] for line in tail.split(b"\n") if line.startswith(b"data: {")][-1])["usage"][
            "completion_tokens"
        ]
    elif status in (429, 503) and retry:
        kind = "refused"
    first = times[0] - begin if times else 0.0
    per_token = (times[-1] - times[0]) / (tokens - 1) if tokens > 1 and len(times) > 1 else 0.0
    return Outcome(kind, begin, begin - scheduled, took, first, per_token, tokens, retry)


async def closed(port: int, ids: list[int], seed: int, clients: int, begin: float, until: float) -> list[Outcome]:
    """Clients that ask again as soon as they have their answer."""
    draw = random.Random(seed)
    return await _never_idle(port, lambda: request(ids, draw), clients, begin, until)


async def steady(
    port: int, seed: int, clients: int, begin: float, until: float, prompt: int, answer: int
) -> list[Outcome]:
    """The same with prompts of one length, all different, and answers of one length (few end before), greedily."""
    draw = random.Random(seed)

    def asked() -> dict[str, Any]:
        ids = [draw.randrange(2, 4000) for _ in range(prompt)]
        return {"prompt": ids, "max_tokens": answer, "temperature": 0}

    return await _never_idle(port, asked, clients, begin, until)


async def _never_idle(
    port: int, asked: Callable[[], dict[str, Any]], clients: int, begin: float, until: float
) -> list[Outcome]:
    found = []

    async def client() -> None:
        await asyncio.sleep(begin - time.monotonic())
        while (now := time.monotonic()) < until:
            found.append(await ask(port, asked(), now, 600.0))

    await asyncio.gather(*(client() for _ in range(clients)))
    return found


async def arriving(
    port: int, ids: list[int], seed: int, rate: float, begin: float, until: float, deadline: float
) -> list[Outcome]:
    """Requests that come when they come (Poisson), whatever becomes of those before."""
    draw = random.Random(seed)
    tasks = []
    at = begin + draw.expovariate(rate)
    while at < until:
        await asyncio.sleep(at - time.monotonic())
        tasks.append(asyncio.create_task(ask(port, request(ids, draw), at, deadline)))
        at += draw.expovariate(rate)
    return list(await asyncio.gather(*tasks))


WORK: dict[str, Callable[..., Coroutine[Any, Any, list[Any]]]] = {
    "closed": closed, "steady": steady, "arriving": arriving,
    "flood": flood_clients.flood, "probe": flood_clients.probe,
}  # fmt: skip


class Clients:
    """Processes of clients, each on one of the processors given, or all where none is."""

    def __init__(self, cpus: Sequence[int], jobs: Sequence[dict[str, Any]]) -> None:
        self._processes = []
        for i, job in enumerate(jobs):
            pinned = partial(sched_setaffinity, 0, {cpus[i % len(cpus)]}) if cpus else None
            command = [sys.executable, "-m", "benchmarks.clients"]
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, preexec_fn=pinned
            )
            assert process.stdin is not None
            process.stdin.write(json.dumps(job).encode())
            process.stdin.close()
            self._processes.append(process)

    def results(self) -> list[Any]:
        """What each of them wrote; waits for them."""
        found = []
        for process in self._processes:
            assert process.stdout is not None
            text = process.stdout.read()
            process.stdout.close()
            if process.wait():
                raise SystemExit("a process of clients failed")
            found.append(json.loads(text))
        return found

    def outcomes(self) -> list[Outcome]:
        """The outcomes of all of them."""
        return [Outcome(*one) for some in self.results() for one in some]


def main() -> None:
    words = json.load(sys.stdin)
    found = asyncio.run(WORK[words.pop("kind")](**words))
    json.dump([astuple(one) if isinstance(one, Outcome) else one for one in found], sys.stdout)


if __name__ == "__main__":
    main()
