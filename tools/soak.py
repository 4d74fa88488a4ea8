"""Hours of mixed load on one server, with checks that never pass silently: `make soak SECONDS=86400`.

Clients of every kind ask at once: completions, chats through a template, embeddings, whole and streamed, long prompts,
streams that are dropped, requests that are wrong, bursts beyond the queue, sockets that say nothing; now and then the
engine process is killed or stopped. Every answer is compared with the one that a quiet server gave before, bit for bit.
Every few seconds all of them rest, and what the server holds then is looked at: queue, memory, descriptors, threads.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "models" / "pico-python"
MODEL = SOURCE.name
KEY = "sk-canary-5f1d0c2b9a"  # never in what the server writes, as little as CANARY, which is in every prompt
CANARY = "canary_7c3e91"
PATIENCE = 120.0  # seconds for one answer, for a rest, and for an engine process to be there again
AROUND = 2.0  # seconds before and after the engine process is away in which 503 may come
LOG_PER_REQUEST = 500  # bytes
THREADS, DESCRIPTORS = 20, 2  # more of them than at the first rest: embedders start as they are needed
GROWTH, LEAST = 0.05, 16 << 20  # of memory over a process's time: a share, bytes
JUDGED = 8  # rests of one process that its memory is judged by; the first third is left out, while caches fill
LONG_RUN = 600.0  # seconds from which on a run whose memory could not be judged has failed
COMPLETION, CHAT, EMBEDDING = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"


@dataclass(frozen=True)
class Job:
    """A good request, and the answer of the quiet server."""

    path: str
    body: dict[str, Any]
    answer: Any = None


def jobs(draw: random.Random) -> list[Job]:
    """What good clients ask."""
    text = (SOURCE / "heldout.txt").read_text()
    found = []
    for i in range(16):
        start = draw.randrange(len(text) - 2000)
        prompt = f"# {CANARY} {i}\n{text[start : start + draw.choice((20, 200, 1200))]}"
        body: dict[str, Any] = {
            "prompt": prompt,
            "max_tokens": draw.choice((1, 16, 64)),
            "temperature": i % 2,
            "seed": i,
        }
        found.append(Job(COMPLETION, body | ({"logprobs": 3} if i % 4 == 0 else {}) | ({"n": 3} if i % 5 == 0 else {})))
    for i in range(6):
        messages = [{"role": "user", "content": f"{CANARY} {i} " + text[i * 100 : i * 100 + 50 * i + 20]}]
        found.append(Job(CHAT, {"messages": messages, "max_tokens": 24, "temperature": 0}))
    for i in range(4):
        found.append(Job(EMBEDDING, {"input": [f"{CANARY} {i} {text[j * 70 : j * 90 + 40]}" for j in range(i + 1)]}))
    return [Job(job.path, {"model": MODEL} | job.body) for job in found]


BAD: list[tuple[str, str, bytes, dict[str, str], tuple[int, ...]]] = [
    ("POST", COMPLETION, b"{", {}, (400,)),
    ("POST", COMPLETION, json.dumps({"model": MODEL, "prompt": CANARY, "n": 99}).encode(), {}, (400,)),
    ("POST", COMPLETION, json.dumps({"model": MODEL, "prompt": CANARY, CANARY: 1}).encode(), {}, (400,)),
    ("POST", COMPLETION, json.dumps({"model": MODEL, "prompt": f"{CANARY} x" * 9000}).encode(), {}, (400,)),
    ("POST", COMPLETION, json.dumps({"model": CANARY, "prompt": "x"}).encode(), {}, (404,)),
    ("POST", COMPLETION, b'"' + b"x" * (2 << 20), {}, (413,)),
    ("POST", COMPLETION, CANARY.encode(), {"Content-Type": "text/plain"}, (415,)),
    ("POST", COMPLETION, b"{}", {"Authorization": f"Bearer {KEY[:-1]}"}, (401,)),
    ("POST", EMBEDDING, json.dumps({"model": MODEL, "input": []}).encode(), {}, (400,)),
    ("POST", CHAT, json.dumps({"model": MODEL, "messages": [{"role": CANARY}]}).encode(), {}, (400,)),
    ("GET", f"/{CANARY}?{CANARY}", b"", {}, (404,)),
    ("DELETE", COMPLETION, b"", {}, (405,)),
]


@dataclass
class Server:
    """The server under load."""

    process: subprocess.Popen[bytes]
    log: Path
    port: int
    away: list[tuple[float, float]] = field(default_factory=list)  # when the engine process was away
    faults: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fault(self, text: str) -> None:
        """Notes what is wrong, and says so at once."""
        with self.lock:
            self.faults.append(text)
            if len(self.faults) <= 50:
                print(f"FAULT: {text}", file=sys.stderr, flush=True)

    def count(self, what: str) -> None:
        """One more of it."""
        with self.lock:
            self.counts[what] += 1

    def open(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Any:
        """A connection on which a request has been sent."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        given = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}", "Connection": "close"}
        connection.request(method, path, body, given | (headers or {}))
        return connection

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Status and body. A server that refuses while it is sent to may have closed before: status 0."""
        connection = None
        try:
            connection = self.open(method, path, body, headers)
            got = connection.getresponse()
            return got.status, got.read()
        except (ConnectionError, http.client.HTTPException):
            return 0, b""
        finally:
            if connection is not None:
                connection.close()

    def metrics(self) -> dict[str, float]:
        """By name; empty while it does not answer."""
        status, text = self.ask("GET", "/metrics")
        rows = (line.rpartition(" ") for line in text.decode().splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in rows} if status == 200 else {}

    def worker(self) -> int | None:
        """The engine process."""
        for child in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split():
            try:
                if b"ingot.serve.worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
            except OSError:  # it has just ended
                continue
        return None

    def was_away(self, begin: float, end: float) -> bool:
        """Whether the engine process was away at some time of these."""
        with self.lock:
            return any(first - AROUND <= end and begin <= last + AROUND for first, last in self.away)


def answer_of(job: Job, text: bytes) -> Any:
    """What has to be the same each time."""
    found = json.loads(text)
    if job.path == EMBEDDING:
        return found["data"], found["usage"]
    usage = {name: found["usage"][name] for name in ("prompt_tokens", "completion_tokens")}
    return found["choices"], usage


def texts_of(job: Job, answer: Any) -> list[tuple[str, str]]:
    """Texts and ends of the answers, as a stream has them too."""
    choices, _ = answer
    return [(one["message"]["content"] if job.path == CHAT else one["text"], one["finish_reason"]) for one in choices]


def streamed(job: Job, text: bytes) -> list[tuple[str, str]]:
    """The same of a stream. Raises ValueError for one that is not whole."""
    found: dict[int, list[str]] = {}
    ends: dict[int, str] = {}
    events = [line[6:] for line in text.decode().split("\n\n") if line.startswith("data: ")]
    if not events or events[-1] != "[DONE]":
        raise ValueError(f"a stream ends with {events[-1][:200] if events else 'nothing'}")
    for event in events[:-1]:
        for one in json.loads(event).get("choices", []):
            part = one["delta"].get("content") or "" if job.path == CHAT else one["text"]
            found.setdefault(one["index"], []).append(part)
            if one["finish_reason"]:
                ends[one["index"]] = one["finish_reason"]
    return [("".join(found[index]), ends[index]) for index in sorted(found)]


class Load:
    """All clients, which rest when they are told to."""

    def __init__(self, server: Server, known: list[Job], seed: int) -> None:
        self.server, self.known, self.seed = server, known, seed
        self.stop, self._may = threading.Event(), threading.Event()
        self._may.set()
        self._busy = 0
        self._changed = threading.Condition()
        kinds: Sequence[Callable[[random.Random], None]] = [self.good] * 4 + [
            self.drop,
            self.bad,
            self.burst,
            self.silent,
        ]
        self.names = sorted({kind.__name__ for kind in kinds})
        self.threads = [threading.Thread(target=self._run, args=(i, kind)) for i, kind in enumerate(kinds)]

    def _run(self, number: int, kind: Callable[[random.Random], None]) -> None:
        draw = random.Random(self.seed * 1000 + number)
        while not self.stop.is_set():
            self._may.wait()
            with self._changed:
                self._busy += 1
            try:
                kind(draw)
                self.server.count(kind.__name__)
            except Exception as e:  # an answer that cannot be read, or none: this client goes on
                self.server.fault(f"{kind.__name__}: {type(e).__name__}: {e}"[:400])
                time.sleep(0.5)
            finally:
                with self._changed:
                    self._busy -= 1
                    self._changed.notify_all()
            time.sleep(draw.random() * 0.1)

    def rest(self) -> bool:
        """Has all of them pause; whether they do within PATIENCE."""
        self._may.clear()
        with self._changed:
            return self._changed.wait_for(lambda: self._busy == 0, 2 * PATIENCE)

    def go_on(self) -> None:
        """Ends the rest."""
        self._may.set()

    def end(self) -> None:
        """Ends all of them."""
        self.stop.set()
        self._may.set()
        for thread in self.threads:
            thread.join()

    def good(self, draw: random.Random) -> None:
        """A request and its answer, which has to be that of the quiet server, or a refusal that is announced."""
        job, server = draw.choice(self.known), self.server
        stream = job.path != EMBEDDING and draw.random() < 0.5
        begin = time.monotonic()
        body = job.body | ({"stream": True} if stream else {})
        status, text = server.ask("POST", job.path, json.dumps(body).encode())
        away = server.was_away(begin, time.monotonic())
        if status == 200 and stream and away and b'"engine_down"' in text[-1000:]:
            server.count("streams ended by a kill")
        elif status == 200:
            found: Any = streamed(job, text) if stream else answer_of(job, text)
            if found != (texts_of(job, job.answer) if stream else job.answer):
                server.fault(f"another answer to {job.path} {str(job.body)[:80]}: {str(found)[:200]}")
            server.count("answers compared")
        elif status == 429 or (status == 503 and away):
            server.count(f"status {status}")
            time.sleep(0.2)
        else:
            server.fault(f"status {status} for a good request: {text[:200]!r}")

    def drop(self, draw: random.Random) -> None:
        """A stream whose client leaves."""
        body = json.dumps({"model": MODEL, "prompt": CANARY, "max_tokens": 900, "stream": True}).encode()
        connection = self.server.open("POST", COMPLETION, body)
        try:
            if draw.random() < 0.7:
                connection.getresponse().read(draw.randrange(1, 2000))
        except (ConnectionError, http.client.HTTPException):
            pass  # the engine process may be away; good clients judge that
        finally:
            connection.close()

    def bad(self, draw: random.Random) -> None:
        """A request that is wrong, and has to be told so. While nothing is taken that may be said first."""
        method, path, body, headers, expected = draw.choice(BAD)
        begin = time.monotonic()
        status, text = self.server.ask(method, path, body, headers)
        busy = status == 429 or (status == 503 and self.server.was_away(begin, time.monotonic()))
        cut = status == 0 and len(body) > 1 << 20
        if status not in expected and not busy and not cut:
            self.server.fault(f"status {status} and not {expected} for {method} {path} {body[:60]!r}: {text[:200]!r}")
        time.sleep(draw.random() * 0.3)

    def burst(self, draw: random.Random) -> None:
        """More requests than the queue takes, most of whose clients leave."""
        body = json.dumps({"model": MODEL, "prompt": CANARY * draw.choice((1, 60)), "max_tokens": 400}).encode()
        connections = [self.server.open("POST", COMPLETION, body) for _ in range(60)]
        time.sleep(draw.random())
        for connection in connections:
            connection.close()
        self.stop.wait(draw.uniform(1.0, 10.0))

    def silent(self, draw: random.Random) -> None:
        """Sockets that say nothing, or half of a head."""
        address, count = ("127.0.0.1", self.server.port), draw.randrange(1, 80)
        held = [socket.create_connection(address, PATIENCE) for _ in range(count)]
        try:
            for one in held[::2]:
                one.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: local")
        except ConnectionError:
            pass  # the server may have closed it, that is its right
        self.stop.wait(draw.uniform(0.5, 3.0))
        for one in held:
            one.close()


@dataclass(frozen=True)
class Rest:
    """What a process holds while nothing is asked."""

    at: float
    pid: int
    memory: int
    descriptors: int
    threads: int


def look(pid: int) -> Rest:
    """At one process."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    open_files = len(os.listdir(f"/proc/{pid}/fd"))
    return Rest(time.monotonic(), pid, int(status["VmRSS"].split()[0]) << 10, open_files, int(status["Threads"]))


def growth(rests: list[Rest]) -> tuple[float, float] | None:
    """By how many bytes a process grew over the time looked at, by the line of least squares, and its median; None for
    one that was looked at too few times."""
    if len(rests) < JUDGED:
        return None
    kept = rests[len(rests) // 3 :]
    line = statistics.linear_regression([one.at for one in kept], [one.memory for one in kept])
    return line.slope * (kept[-1].at - kept[0].at), statistics.median(one.memory for one in kept)


class Watch:
    """Looks at the server while all rest, and judges."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.rests: dict[int, list[Rest]] = {}
        self.log = 0
        self.first: dict[str, Rest] = {}

    def look(self) -> None:
        """The queue is empty, and no descriptor or thread is left behind, soon after all have paused."""
        server, deadline = self.server, time.monotonic() + PATIENCE
        while True:
            worker, held = server.worker(), server.metrics()
            idle = held.get("ingot_engine_up") == 1 and worker is not None
            idle = idle and not held["ingot_queue_depth"] and not held["ingot_requests_running"]
            found = {"HTTP": look(server.process.pid), "engine": look(worker)} if idle and worker else {}
            over = [text for name, one in found.items() if (text := self._over(name, one))]
            if found and not over:
                break
            if time.monotonic() > deadline:
                server.fault(f"at rest: {', '.join(over) or 'requests are left, or no engine'}; {held}"[:600])
                break
            time.sleep(0.1)
        for one in found.values():
            self.rests.setdefault(one.pid, []).append(one)
        server.count("rests")

    def _over(self, name: str, one: Rest) -> str:
        first = self.first.setdefault(name, one)
        if one.descriptors > first.descriptors + DESCRIPTORS:
            return f"{name} process: {one.descriptors} descriptors, {first.descriptors} at first"
        if one.threads > first.threads + THREADS:
            return f"{name} process: {one.threads} threads, {first.threads} at first"
        return ""

    def line(self) -> str:
        """How it goes."""
        counts = ", ".join(f"{name} {count}" for name, count in sorted(self.server.counts.items()))
        memory = [f"{rests[-1].memory >> 20} MiB" for rests in self.rests.values()]
        return f"{len(self.server.faults)} faults; {counts}; memory {memory[0]}, {memory[-1]}"

    def judge(self, seconds: float) -> list[dict[str, Any]]:
        """Memory of each process, over all of its time."""
        rows = []
        for pid, rests in self.rests.items():
            found, name = growth(rests), "HTTP" if pid == self.server.process.pid else "engine"
            row = {"process": name, "pid": pid, "rests": len(rests), "judged": found is not None}
            if found is not None:
                grown, median = found
                row |= {"grown_bytes": round(grown), "median_bytes": round(median)}
                if grown > max(LEAST, GROWTH * median):
                    self.server.fault(f"the {name} process {pid} grew by {grown / 1e6:.1f} MB of {median / 1e6:.1f}")
            rows.append(row)
        judged = {str(row["process"]) for row in rows if row["judged"]}
        if seconds >= LONG_RUN and judged != {"HTTP", "engine"}:
            self.server.fault(f"memory was judged of {sorted(judged)} only")
        return rows


def disturb(server: Server, draw: random.Random) -> None:
    """Kills or stops the engine process, and waits until another one answers."""
    worker = server.worker()
    if worker is None:
        return server.fault("no engine process to disturb")
    begin, number = time.monotonic(), draw.choice((signal.SIGKILL, signal.SIGSTOP))
    with server.lock:
        server.away.append((begin, begin + PATIENCE))
    os.kill(worker, number)
    while time.monotonic() < begin + PATIENCE:
        status, _ = server.ask("GET", "/ready")
        if server.worker() not in (None, worker) and status == 200:
            break
        time.sleep(0.1)
    else:
        server.fault(f"no engine {PATIENCE:g} s after {number.name}")
    with server.lock:
        server.away[-1] = (begin, time.monotonic())
    server.count(f"engine processes ended by {number.name}")


def started(folder: Path) -> Server:
    """A server that is ready."""
    key, log = folder / "key", folder / "log"
    key.write_text(KEY + "\n")
    key.chmod(0o600)
    command = [sys.executable, "-m", "ingot", "serve", str(SOURCE), "--port", "0", "--api-key-file", str(key)]
    command += ["--chat-template", "plain", "--max-running", "16", "--max-queue", "48", "--step-timeout", "6"]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, cwd=ROOT)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        for line in log.read_text().splitlines():
            if line.startswith("serving "):
                return Server(process, log, int(line.rpartition(":")[2]))
        time.sleep(0.1)
    process.kill()
    raise SystemExit("the server does not start:\n" + log.read_text())


def quiet(server: Server, asked: list[Job]) -> list[Job]:
    """The jobs with their answers; twice, so that what is compared is known to be the same each time."""
    found = []
    for job in asked * 2:
        status, text = server.ask("POST", job.path, json.dumps(job.body).encode())
        if status != 200:
            raise SystemExit(f"status {status} on a quiet server: {text[:300]!r}")
        found.append(Job(job.path, job.body, answer_of(job, text)))
    if found[: len(asked)] != found[len(asked) :]:
        raise SystemExit("a quiet server gives two answers to one request")
    return found[: len(asked)]


def soak(seconds: float, seed: int, folder: Path) -> dict[str, Any]:
    """Runs it; what came of it."""
    server, draw = started(folder), random.Random(seed)
    every, kill_every = max(4.0, min(60.0, seconds / 60)), max(20.0, min(1800.0, seconds / 5))
    load, watch = Load(server, quiet(server, jobs(draw)), seed), Watch(server)
    watch.look()
    begin = told = killed = time.monotonic()
    for thread in load.threads:
        thread.start()
    try:
        while (now := time.monotonic()) < begin + seconds:
            time.sleep(min(every, begin + seconds - now))
            if now - killed > kill_every:
                disturb(server, draw)
                killed = time.monotonic()
            if not load.rest():
                server.fault("clients do not come to an end")
            watch.look()
            load.go_on()
            if now - told >= 60:
                told = now
                print(f"{(now - begin) / 60:.0f} min: {watch.line()}", flush=True)
            if server.process.poll() is not None:
                raise SystemExit("the server has ended: " + server.log.read_text()[-2000:])
    finally:
        load.end()
        worker = server.worker() if server.process.poll() is None else None
        server.process.terminate()
        code = server.process.wait(PATIENCE)
    if code != 0 or (worker is not None and Path(f"/proc/{worker}").exists()):
        server.fault(f"it ended with exit code {code}, the engine process {worker} behind it")
    memory_rows = watch.judge(seconds)
    _judge_log(server)
    for name in (*load.names, "answers compared", "rests", *(["status 429"] if seconds >= LONG_RUN else [])):
        if not server.counts[name]:
            server.fault(f"{name}: none, so nothing was checked")
    return {
        "seconds": round(time.monotonic() - begin), "seed": seed, "counts": dict(server.counts), "memory": memory_rows,
        "faults": server.faults[:1000], "log_bytes": server.log.stat().st_size,
    }  # fmt: skip


def _judge_log(server: Server) -> None:
    """The log is short, without secrets, and tells of no fault."""
    requests = 0
    with server.log.open(errors="replace") as lines:
        for line in lines:
            requests += " s" in line
            for word in (KEY, KEY[:-1], CANARY, "Traceback", "a fault of ours"):
                if word in line:
                    server.fault(f"the log holds {word!r}: {line[:200]}")
    size = server.log.stat().st_size
    if size > LOG_PER_REQUEST * max(1, requests):
        server.fault(f"the log has {size:,} bytes for {requests:,} lines of requests")


def main() -> int:
    """The exit code: 1 when anything was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=86400.0, help="default: a day")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a file for the JSON that is printed at the end")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ingot-soak-") as folder:
        found = soak(args.seconds, args.seed, Path(folder))
    text = json.dumps(found, indent=1)
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n")
    return 1 if found["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
