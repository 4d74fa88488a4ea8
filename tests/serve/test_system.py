"""What the system does to a server: full disks, signals, stopped processes, slow loads, clocks that jump."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import ingot
from ingot.cli.arrays import write_arrays
from ingot.cli.serve import Log
from ingot.errors import FileError
from ingot.serve import engine_process, frames
from ingot.serve.engine_process import EngineProcess
from ingot.written import write_whole
from tests import kept
from tests.kept import PICO
from tests.serve.harness import MODEL, PATIENCE, ROOT, serving, until
from tests.serve.in_process import served

NET = ROOT / "tests/engine/golden/convnet-float32.ingot"
BODY = {"model": MODEL, "prompt": "import os", "max_tokens": 4}


class Started:
    """A server from its first moment on, before anybody can ask it."""

    def __init__(self, *words: str, log: str = os.devnull) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.command = [sys.executable, "-m", "ingot", "serve", str(kept.pico()), "--port", str(self.port), *words]
        with open(log, "w") as file:
            self.process = subprocess.Popen(self.command, stdout=file, stderr=file, cwd=ROOT)

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def asked(self, path: str = "/health", **words: Any) -> Any:
        """What it answers; None while nobody listens."""
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=PATIENCE, trust_env=False) as client:
                return client.request("POST" if words else "GET", path, **words)
        except httpx.ConnectError:
            return None

    def worker(self) -> int:
        """Its engine process, once that runs a program of its own: until then the server waits for it."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        pid = int(until(lambda: children.read_text().split() or None)[0])
        own = Path(f"/proc/{self.process.pid}/cmdline").read_bytes()
        until(lambda: True if Path(f"/proc/{pid}/cmdline").read_bytes() not in (b"", own) else None)
        return pid

    def is_ready(self) -> None:
        until(lambda: True if (got := self.asked()) is not None and got.status_code == 200 else None)


# -------------------------------------------------------------------------------------------------------- full disks


def test_a_server_outlives_the_disk_that_its_log_is_on() -> None:
    with Started(log="/dev/full") as server:
        server.is_ready()
        assert [server.asked("/v1/completions", json=BODY).status_code for _ in range(3)] == [200] * 3
        # ends it as SIGTERM does, unless these tests run under nohup
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        server.process.send_signal(signal.SIGTERM if ignored else signal.SIGHUP)
        assert server.process.wait(PATIENCE) == 0


def test_a_log_that_nobody_reads_holds_up_nobody() -> None:
    """A pipe that is full: lines wait, then are lost; whoever reads it later is told how many."""
    reads, writes = os.pipe()
    log, count, lines = Log(writes, waiting=50), 5000, list[bytes]()

    def say(text: str) -> None:
        log.handle(logging.LogRecord("x", logging.INFO, "", 0, text, None, None))

    def told() -> list[int]:
        return [int(line.split()[0].replace(b",", b"")) for line in lines if line.endswith(b"were lost here\n")]

    for i in range(count):
        say(f"line {i} {'.' * 990}")
    begin = time.monotonic()
    with open(reads, "rb", buffering=0) as pipe:
        while len(lines) - len(told()) + sum(told()) < count:
            assert time.monotonic() - begin < PATIENCE
            if select.select([pipe], [], [], 0.2)[0]:
                lines.append(pipe.readline())
            else:  # all that waited is read: what was lost is told before the next line
                say("after them")
                count += 1
    assert len(lines) - len(told()) + sum(told()) == count and sum(told()) > count // 2


@pytest.fixture
def small_disk() -> Iterator[None]:
    """No file may have more than 8 KiB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 13, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, small_disk: None) -> None:
    engine = ingot.load(NET)
    rows = {"x": np.zeros(1 << 16, np.float32)}
    saves = {
        "net.ingot": engine.save,
        "rows.npz": lambda path: write_arrays(str(path), rows),
        "x.npy": lambda path: write_arrays(str(path.parent), rows),
        "bytes": lambda path: write_whole(path, bytes(1 << 17)),
        "stream": lambda path: write_whole(path, lambda stream: [stream.write(bytes(1 << 12)) for _ in range(32)]),
    }
    why = r"cannot be written: File too large; (it ended after [\d,]+ bytes|[\d,]+ bytes are needed)"
    for name, save in saves.items():
        (tmp_path / name).write_text("before")
        with pytest.raises(FileError, match=f"{name} {why}"):
            save(tmp_path / name)
        assert (tmp_path / name).read_text() == "before", "half a file under its final name"
    assert sorted(os.listdir(tmp_path)) == sorted(saves)


def test_a_device_is_written_to_and_not_replaced() -> None:
    write_whole(Path("/dev/null"), b"x")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(FileError, match="/dev/full cannot be written: No space left on device; 1 bytes are needed"):
        write_whole(Path("/dev/full"), b"x")


FULL = "ingot: error: standard output cannot be written: No space left on device\n"


@pytest.mark.parametrize("words", [
    ("run", NET, "--random"), ("run", NET, "--random", "--json"),
    ("chat", PICO, "--chat-template", "plain", "--max-tokens", 2),
])  # fmt: skip
def test_standard_output_on_a_full_disk(words: tuple[object, ...]) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "ingot", *map(str, words)]
        done = subprocess.run(command, input="Hello\n", stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr[-len(FULL):]) == (2, FULL)


# ----------------------------------------------------------------------------------------------- loading and signals


def test_a_model_that_takes_long_to_load(tmp_path: Path) -> None:
    """The engine process is stopped as soon as it is there, as if its disk did not answer; what a terminal or a service
    manager sends to all processes comes to it meanwhile, while Python itself begins."""
    log = tmp_path / "log"
    with Started(log=str(log)) as server:
        worker = server.worker()
        os.kill(worker, signal.SIGSTOP)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(worker, number)
        got = until(server.asked)
        assert (got.status_code, got.json()["status"]) == (503, "loading")
        assert server.asked("/ready").json()["status"] == "loading"
        refused = server.asked("/v1/completions", json=BODY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "loading")
        assert int(refused.headers["retry-after"]) >= 1
        other = subprocess.run(server.command, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE)
        assert other.returncode == 2 and "Address already in use" in other.stderr, "two servers on one port"
        os.kill(worker, signal.SIGCONT)
        server.is_ready()
        assert server.worker() == worker and server.asked("/v1/completions", json=BODY).status_code == 200
        server.process.send_signal(signal.SIGINT)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 130
        assert not Path(f"/proc/{worker}").exists()
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_model_is_loaded(number: int, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Started(log=str(log)) as server:
        worker = server.worker()
        server.process.send_signal(number)
        server.process.send_signal(number)
        assert server.process.wait(PATIENCE) == (130 if number == signal.SIGINT else 0)
        assert not Path(f"/proc/{worker}").exists()
    assert "Traceback" not in log.read_text()


LOADS = """
import socket, sys
from ingot.serve import worker
def fail(start):
    raise OSError(5, "Input/output error", start.source)
worker._load = fail
with socket.socket(fileno=int(sys.argv[1])) as parent:
    sys.exit(worker.main(parent))
"""


def test_a_disk_that_fails_while_the_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def spawn(connection: socket.socket) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", LOADS, str(connection.fileno())]
        return subprocess.Popen(command, pass_fds=(connection.fileno(),), env=os.environ | {"PYTHONPATH": str(ROOT)})

    monkeypatch.setattr(engine_process, "_spawn", spawn)
    engine = EngineProcess(frames.Start("disk", None, None, "cpu", None, None, None, 1, True, None, None, None), 1)
    with pytest.raises(FileError, match="Input/output error: 'disk'"):
        asyncio.run(engine.open())


@pytest.mark.slow
def test_a_machine_that_sleeps() -> None:
    """Both processes are stopped for longer than an engine may be silent: nobody hangs, and the answer goes on."""
    with serving("--step-timeout", 6) as server:
        before = server.complete(max_tokens=900)
        engine = server.engine_pid()
        running = server.send("/v1/completions", BODY | {"max_tokens": 900, "temperature": 0})
        for pid in (server.process.pid, engine):
            os.kill(pid, signal.SIGSTOP)
        time.sleep(30)
        for pid in (engine, server.process.pid):
            os.kill(pid, signal.SIGCONT)
        data = running.recv(1 << 20)
        while b"\r\n\r\n" not in data or not data.endswith(b"}"):
            data += running.recv(1 << 20)
        running.close()
        assert json.loads(data.partition(b"\r\n\r\n")[2])["choices"] == before["choices"]
        assert server.engine_pid() == engine and server.metrics()["ingot_engine_hangs_total"] == 0


def test_an_engine_that_is_shortened_under_a_server(pico_engine: Path, tmp_path: Path) -> None:
    """Whoever asks is told, the log names the file, and the server goes on when the file is whole again."""
    path = tmp_path / f"{MODEL}.ingot"
    shutil.copyfile(pico_engine, path)
    with serving(source=path) as server:
        before = server.complete(max_tokens=8)
        os.truncate(path, path.stat().st_size // 4096 // 2 * 4096)
        got = server.post("/v1/completions", BODY | {"prompt": "class A:", "max_tokens": 200})
        assert (got.status_code, got.json()["error"]["code"]) == (503, "engine_down")
        assert server.says(f"{path.name} was shortened or lost while it was in use")
        assert server.says("the engine process does not start")
        shutil.copyfile(pico_engine, tmp_path / "whole")
        os.replace(tmp_path / "whole", path)
        until(lambda: True if server.http.get("/ready").status_code == 200 else None)
        assert server.complete(max_tokens=8)["choices"] == before["choices"]


# ------------------------------------------------------------------------------------------------------------ clocks


def test_clocks_that_jump(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits by the time of day: it may go back or forward by years between any two looks."""
    looks: list[float] = []

    def jumping() -> float:
        looks.append(1e9 if len(looks) % 2 else 4e9)
        return looks[-1]

    with served() as server:
        monkeypatch.setattr(time, "time", jumping)
        for _ in range(4):
            body = BODY | {"model": "m"}
            got = httpx.post(f"http://127.0.0.1:{server.port}/v1/completions", json=body, trust_env=False)
            assert got.status_code == 200 and got.json()["created"] in (10**9, 4 * 10**9)
        monkeypatch.undo()
    assert looks, "created is the time of day"


def test_nothing_but_created_asks_for_the_time_of_day() -> None:
    found = [
        line.strip()
        for path in sorted((ROOT / "ingot").rglob("*.py"))
        for line in path.read_text().splitlines()
        if re.search(r"\btime\.time(_ns)?\(|CLOCK_REALTIME|from time import .*\btime\b", line)
    ]
    assert found == [
        'self._head = {"id": self.id, "object": name, "created": int(time.time()), "model": job.model}',
        "return App(engine, settings, int(time.time()))",
    ]


# ----------------------------------------------------------------------------------------------------- signal storms

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
HARMLESS = (signal.SIGCHLD, signal.SIGPIPE, signal.SIGWINCH)
DEADLY = (signal.SIGUSR1, signal.SIGABRT, signal.SIGSEGV)  # of a process that does not expect them
GRACE = 60.0  # seconds for a server to end that has 1 for its running answers, on a busy machine


def descendants(pid: int) -> list[int]:
    """A process's children, theirs and so on, started by whichever thread."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *descendants(child)]
    return found


def storm(seed: int, folder: Path) -> None:
    """Signals to the server, its engine process and what renders templates, from a random moment of its life on."""
    draw, log = random.Random(seed), folder / f"log{seed}"
    seen: set[int] = set()
    with Started("--chat-template", "plain", "--drain", "1", log=str(log)) as server:
        if draw.random() < 0.5:
            server.is_ready()
            chat = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
            assert server.asked("/v1/chat/completions", json=chat).status_code == 200
        else:
            server.worker()  # the server's own handlers are there
            time.sleep(draw.random())
        for _ in range(draw.randrange(6)):
            seen.update(children := descendants(server.process.pid))
            pid = draw.choice([server.process.pid, *children])
            choices = HARMLESS if pid == server.process.pid else (*HARMLESS, *ENDING, *DEADLY)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, draw.choice(choices))
            time.sleep(draw.random() * 0.2)
        seen.update(descendants(server.process.pid))
        number = draw.choice(ENDING)
        for _ in range(draw.randrange(1, 4)):
            server.process.send_signal(number)
            time.sleep(draw.random() * 0.05)
        code = server.process.wait(GRACE)
    until(lambda: True if not any(Path(f"/proc/{pid}").exists() for pid in seen) else None)
    text = log.read_text()
    # An engine process that died while its model was loaded for the first time ends the server, with code 1.
    assert code == (130 if number == signal.SIGINT else 0) or (code == 1 and "ended while it loaded" in text), text
    assert "Traceback" not in text, text


def test_a_storm_of_signals(tmp_path: Path) -> None:
    storm(0, tmp_path)


@pytest.mark.slow
def test_many_storms_of_signals(tmp_path: Path) -> None:
    for seed in range(1, 40):
        storm(seed, tmp_path)
